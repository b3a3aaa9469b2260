//! The keys as flags of a command.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, ValueEnum, ValueHint};

use super::keys::{Fallback, KEYS, Key};
use super::raw::{Given, Place, Raw};
use super::variables::CONFIG_FILE;

/// The file that is read where none is named.
pub const DEFAULT_FILE: &str = "pgonce.yml";

/// The options of every command that opens a flow.
#[derive(Args, Clone, Debug)]
pub struct FlowOptions {
    /// Configuration file. Each key is a flag too, listed below, and a variable: a flag wins over a variable, and that
    /// over the file [default: pgonce.yml, if there is one] [env: PGONCE_CONFIG]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// How to report
    #[command(flatten)]
    pub format: FormatOption,
    /// The keys
    #[command(flatten)]
    pub keys: KeyFlags,
}

impl FlowOptions {
    /// The configuration file that was named, by the flag or else by its variable.
    pub fn named_file(&self) -> Option<PathBuf> {
        let variable = || std::env::var_os(CONFIG_FILE).filter(|path| !path.is_empty()).map(PathBuf::from);
        self.config.clone().or_else(variable)
    }
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
            let argument = Arg::new(key.path).long(key.flag).value_name(key.value).help(help(key));
            command.arg(key.kind.argument(argument.help_heading(heading(key))))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// What `--help` says of a key.
fn help(key: &Key) -> String {
    let default = match key.default {
        Fallback::Required => "required".to_owned(),
        _ => format!("default: {}", key.default_words()),
    };
    format!("{}\n[{default}] [env: {}]", key.help, key.variable())
}

/// The heading that a key stands under: its section.
fn heading(key: &Key) -> &'static str {
    match key.section() {
        Some("source") => "Source",
        Some("target") => "Target",
        Some(section) => section,
        None => "Flow",
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
