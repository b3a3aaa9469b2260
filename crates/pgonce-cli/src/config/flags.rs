//! The keys as flags of a command.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueEnum};

use super::keys::{KEYS, Kind};
use super::raw::{Given, Place, Raw};

/// The file that is read where none is named.
pub const DEFAULT_FILE: &str = "pgonce.yml";

/// The options of every command that opens a flow.
#[derive(Args, Clone, Debug)]
pub struct FlowOptions {
    /// Configuration file; pgonce.yml is read if there is one
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// How to report
    #[command(flatten)]
    pub format: FormatOption,
    /// The keys
    #[command(flatten)]
    pub keys: KeyFlags,
}

/// The option `--format`, which every command has.
#[derive(Args, Clone, Copy, Debug)]
pub struct FormatOption {
    /// How to report: text for people, json for programs (one object a line)
    #[arg(long, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    pub format: Format,
}

/// How a command reports.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// For people.
    Text,
    /// For programs: one JSON object a line.
    Json,
}

/// What was given of the keys on the command line.
#[derive(Clone, Debug, Default)]
pub struct KeyFlags(pub Raw);

impl Args for KeyFlags {
    fn augment_args(command: Command) -> Command {
        KEYS.iter().fold(command, |command, key| {
            let argument = Arg::new(key.path)
                .long(key.flag)
                .value_name(key.value)
                .help(format!("{} [default: {}]", key.help, key.default))
                .help_heading("Flow (each is a key of the configuration file too, and wins over it)");
            command.arg(match key.kind {
                Kind::List => argument.action(ArgAction::Append).value_delimiter(','),
                Kind::Map => argument.action(ArgAction::Append),
                Kind::Boolean => argument.num_args(0..=1).default_missing_value("true"),
                _ => argument.action(ArgAction::Set),
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for KeyFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<KeyFlags, clap::Error> {
        let mut raw = Raw::default();
        for key in KEYS {
            let Some(values) = matches.get_many::<String>(key.path) else { continue };
            let place = Place::Flag(key.flag);
            let given = values.map(|text| Given { text: text.clone(), place: place.clone(), shown: true });
            raw.0.insert(key.path, given.collect());
        }
        Ok(KeyFlags(raw))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = KeyFlags::from_arg_matches(matches)?;
        Ok(())
    }
}
