//! Values as they were given, with the place that each was given at.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::keys::Key;

/// Where a value was given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// On the command line, by the flag of this name.
    Flag(&'static str),
    /// In the environment, by the variable of this name.
    Variable(String),
    /// In a file; line and column count from 1.
    File {
        /// The file.
        path: PathBuf,
        /// Line.
        line: u64,
        /// Column, in characters.
        column: u64,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Flag(flag) => write!(f, "--{flag}"),
            Place::Variable(variable) => f.write_str(variable),
            Place::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
        }
    }
}

/// One value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Given {
    /// The value, references resolved.
    pub text: String,
    /// Where it was given.
    pub place: Place,
    /// Whether it may be shown: not what came out of a variable or a file.
    pub shown: bool,
}

impl Given {
    /// The value for a message: quoted, or a stand-in where it might be a secret.
    pub fn quoted(&self) -> String {
        if self.shown { format!("{:?}", self.text) } else { "the value of the reference".to_owned() }
    }
}

/// Everything that was given, by the path of the key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Raw(pub BTreeMap<&'static str, Vec<Given>>);

impl Raw {
    /// Lets `stronger` win, key by key.
    pub fn overridden_by(mut self, mut stronger: Raw) -> Raw {
        // Two ways to say the same thing: naming one on the command line takes back the other from the file.
        for (one, other) in [("source.tables", "source.publication"), ("source.publication", "source.tables")] {
            if stronger.0.contains_key(one) {
                self.0.remove(other);
            }
        }
        self.0.append(&mut stronger.0);
        self
    }

    /// All values of a key.
    pub fn list(&self, key: &Key) -> &[Given] {
        self.0.get(key.path).map_or(&[], Vec::as_slice)
    }

    /// The value of a key that has one.
    pub fn one(&self, key: &Key) -> Option<&Given> {
        self.list(key).last()
    }
}

/// Why a configuration was refused: where, what, and what to do about it. No secret is quoted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}{what}", place.as_ref().map(|place| format!("{place}: ")).unwrap_or_default())]
pub struct ConfigError {
    /// Where, if there is a place.
    pub place: Option<Place>,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub hint: String,
}

impl ConfigError {
    /// Something wrong at a place.
    pub fn at(place: &Place, what: impl Into<String>, hint: impl Into<String>) -> ConfigError {
        ConfigError { place: Some(place.clone()), what: what.into(), hint: hint.into() }
    }
}
