//! `pgonce config`: what holds and why, the keys, and the schema of the file. No database is asked.

use clap::{Args, Subcommand};
use pgonce::connect::Environment;
use serde_json::{Value, json};

use crate::config::effective::{Effective, Origin, effective};
use crate::config::flags::{FlowOptions, Format, FormatOption};
use crate::config::keys::KEYS;
use crate::config::schema::schema;
use crate::config::{FlowConfig, gather};
use crate::failure::Failure;
use crate::output::{Output, Tone};
use crate::render::Listing;

/// Arguments of `pgonce config`.
#[derive(Args, Debug)]
pub struct ConfigArguments {
    /// What to say
    #[command(subcommand)]
    pub what: ConfigCommand,
}

/// The commands below `pgonce config`.
#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// Show every key with the value that holds and where it came from; secrets are left out
    ///
    /// Ends with status 2 and the error of `pgonce run` if the configuration cannot be used.
    Show(FlowOptions),
    /// Print the JSON schema of the configuration file, for editors
    Schema(FormatOption),
    /// List the keys, each with its flag, its environment variable and its default
    Keys(FormatOption),
}

impl ConfigCommand {
    /// How the command is to report.
    pub fn format(&self) -> Format {
        match self {
            ConfigCommand::Show(options) => options.format.format,
            ConfigCommand::Schema(option) | ConfigCommand::Keys(option) => option.format,
        }
    }
}

/// Says what was asked for.
///
/// # Errors
///
/// The file cannot be read; with `show`, the configuration cannot be used.
pub fn execute(arguments: &ConfigArguments, output: Output) -> Result<u8, Failure> {
    match &arguments.what {
        ConfigCommand::Show(options) => return show(options, output),
        ConfigCommand::Schema(_) if output.is_json() => output.object(&schema()),
        ConfigCommand::Schema(_) => output.line(&format!("{:#}", schema())),
        ConfigCommand::Keys(_) => keys(output),
    }
    Ok(0)
}

fn show(options: &FlowOptions, output: Output) -> Result<u8, Failure> {
    let gathered = gather(options)?;
    let environment = Environment::process();
    let refused = FlowConfig::validate(&gathered.raw, &environment).err().map(Failure::from);
    let effective = effective(&gathered.raw, refused.is_none(), &environment);
    let file = gathered.file.map(|path| path.display().to_string());
    if output.is_json() {
        let missing = effective.iter().filter(|key| key.origin == Origin::Missing).map(|key| key.key.path);
        let missing: Value = missing.collect();
        let keys: Vec<Value> = effective.iter().map(object).collect();
        let error = refused.as_ref().map(|failure| {
            let Failure { code, text, hint, exit_status } = failure;
            json!({"code": code, "text": text, "hint": hint, "exit_status": exit_status})
        });
        output.object(&json!({
            "file": file, "valid": refused.is_none(), "error": error, "missing": missing, "keys": keys,
        }));
        return Ok(refused.map_or(0, |failure| failure.exit_status));
    }
    let mut list = Listing::default();
    let width = effective.iter().map(|key| key.text.chars().count()).max().unwrap_or_default().min(WIDTH);
    for key in &effective {
        let line = format!("{:width$}  {}", key.text, key.origin.text(key.key));
        match key.origin {
            Origin::Missing => list.toned(key.key.path, line, Tone::Bad),
            Origin::Default => list.toned(key.key.path, line, Tone::Faint),
            Origin::Given(_) => list.pair(key.key.path, line),
        }
    }
    list.gap();
    list.pair("file", file.unwrap_or_else(|| "none".to_owned()));
    list.write(output);
    refused.map_or(Ok(0), Err)
}

/// Values that are longer push the origin out of its column.
const WIDTH: usize = 72;

fn object(effective: &Effective) -> Value {
    let Effective { key, value, origin, connection, .. } = effective;
    let mut object = json!({
        "key": key.path, "value": value, "origin": origin.object(), "flag": format!("--{}", key.flag),
        "environment": key.variable(),
    });
    if let Some(connection) = connection {
        object["connection"] = connection.clone();
    }
    object
}

fn keys(output: Output) {
    if output.is_json() {
        let keys: Vec<Value> = KEYS
            .iter()
            .map(|key| {
                json!({
                    "key": key.path, "flag": format!("--{} {}", key.flag, key.value), "environment": key.variable(),
                    "allowed": key.allowed(), "default": key.default_words(), "help": key.help, "more": key.more,
                    "several": key.kind.several(),
                })
            })
            .collect();
        output.object(&json!({"keys": keys}));
        return;
    }
    let mut list = Listing::default();
    for key in KEYS {
        list.toned(key.path, format!("--{} {}, {}", key.flag, key.value, key.variable()), Tone::Strong);
        let several = key.kind.several().map(|text| format!(". {text}")).unwrap_or_default();
        list.pair("", format!("{}{several}", key.help));
        list.pair("", format!("Allowed: {}. Default: {}", key.allowed(), key.default_words()));
        list.gap();
    }
    list.write(output);
}
