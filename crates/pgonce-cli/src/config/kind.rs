//! What the value of a key may be, and what follows from it for the flag, the environment variable, the JSON schema and
//! what `pgonce config show` prints. A new kind is a new arm in each of these, and one in the reader of the file.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ValueHint};
use serde_json::{Value, json};

use super::raw::Given;

/// What the value of a key may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A connection string. It may hold a password: it is never printed, and may be a reference to a file.
    Url,
    /// A word.
    Text,
    /// A directory.
    Directory,
    /// Words; in the file also a single one.
    List,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A whole number, from 1 up to this.
    Count(u64),
    /// So many bytes, with a unit as PostgreSQL writes it.
    Size,
    /// `true` or `false`.
    Boolean,
    /// Pairs of names: keys and values in the file, `SOURCE=TARGET` elsewhere.
    Map,
}

/// What a reference in a string of the file looks like to a JSON schema.
const REFERENCE: &str = r"\$\{[A-Za-z_][A-Za-z0-9_]*\}";

impl Kind {
    /// What a value may be, in words.
    pub fn allowed(self) -> String {
        match self {
            Kind::Url => "a connection string, or {file: PATH} to read it from a file".to_owned(),
            Kind::Text => "a single word".to_owned(),
            Kind::Directory => "the path of a directory".to_owned(),
            Kind::List => "a word, or a list of words".to_owned(),
            Kind::Choice(words) => words.join(" or "),
            Kind::Count(most) => format!("a whole number from 1 to {most}"),
            Kind::Size => "a whole number with kB, MB, GB or TB, as in 64MB".to_owned(),
            Kind::Boolean => "true or false".to_owned(),
            Kind::Map => "names of the source with those of the target, as in `public: app`".to_owned(),
        }
    }

    /// The flag, as far as it depends on the kind.
    pub fn argument(self, argument: Arg) -> Arg {
        match self {
            Kind::Url => argument.action(ArgAction::Set).value_hint(ValueHint::Url),
            Kind::Text | Kind::Count(_) | Kind::Size => argument.action(ArgAction::Set).value_hint(ValueHint::Other),
            Kind::Directory => argument.action(ArgAction::Set).value_hint(ValueHint::DirPath),
            Kind::List => argument.action(ArgAction::Append).value_delimiter(',').value_hint(ValueHint::Other),
            Kind::Map => argument.action(ArgAction::Append).value_hint(ValueHint::Other),
            Kind::Choice(words) => argument.action(ArgAction::Set).value_parser(PossibleValuesParser::new(words)),
            Kind::Boolean => {
                let words = PossibleValuesParser::new(["true", "false"]);
                argument.num_args(0..=1).default_missing_value("true").value_parser(words)
            }
        }
    }

    /// The values in an environment variable.
    pub fn in_variable(self, text: &str) -> Vec<String> {
        match self {
            Kind::List | Kind::Map => text.split(',').map(|part| part.trim().to_owned()).collect(),
            _ => vec![text.to_owned()],
        }
    }

    /// How several values are given on the command line and in a variable, in a sentence; none where there is one.
    pub fn several(self) -> Option<&'static str> {
        match self {
            Kind::List => Some("As a flag: separated by commas, or the flag again"),
            Kind::Map => Some("As a flag: again for each pair; as a variable: separated by commas"),
            _ => None,
        }
    }

    /// The values for a program.
    pub fn value(self, given: &[Given]) -> Value {
        let last = given.last().map(|given| given.text.as_str()).unwrap_or_default();
        match self {
            Kind::List => given.iter().map(|given| given.text.as_str()).collect(),
            Kind::Map => {
                let pairs = given.iter().filter_map(|given| given.text.split_once('='));
                pairs.map(|(source, target)| (source.to_owned(), Value::from(target))).collect()
            }
            Kind::Count(_) => last.parse::<u64>().map_or_else(|_| last.into(), Value::from),
            Kind::Boolean => last.parse::<bool>().map_or_else(|_| last.into(), Value::from),
            _ => last.into(),
        }
    }

    /// What the file may hold, as a JSON schema.
    pub fn schema(self) -> Value {
        let referring = json!({"type": "string", "pattern": REFERENCE});
        match self {
            Kind::Url => json!({"anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "description": "Read from a file of one line; a relative path starts at this file's directory",
                    "properties": {"file": {"type": "string", "minLength": 1}},
                    "required": ["file"],
                    "additionalProperties": false,
                },
            ]}),
            Kind::Text => json!({"type": ["string", "number"]}),
            Kind::Directory => json!({"type": "string", "minLength": 1}),
            Kind::List => json!({"anyOf": [
                {"type": ["string", "number"]},
                {"type": "array", "items": {"type": ["string", "number"]}},
            ]}),
            // Some read `off` as YAML 1.1 does.
            Kind::Choice(words @ ["off", "on"]) => json!({"anyOf": [{"enum": words}, {"type": "boolean"}, referring]}),
            Kind::Choice(words) => json!({"anyOf": [{"enum": words}, referring]}),
            Kind::Count(most) => json!({"anyOf": [{"type": "integer", "minimum": 1, "maximum": most}, referring]}),
            Kind::Size => json!({"anyOf": [{"type": "string", "pattern": "^[0-9]+(kB|MB|GB|TB)$"}, referring]}),
            Kind::Boolean => json!({"anyOf": [{"type": "boolean"}, referring]}),
            Kind::Map => json!({"type": "object", "additionalProperties": {"type": "string", "minLength": 1}}),
        }
    }
}
