//! Where the values of a connection come from.

use std::fmt;
use std::path::PathBuf;

/// Where a value comes from. Of two, the one that stands first here counts.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Origin {
    /// The connection string itself.
    String,
    /// A service's section in a service file.
    Service {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A variable of the environment.
    Variable(&'static str),
    /// Nobody said anything.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::String => f.write_str("connection string"),
            Origin::Service { file, line } => write!(f, "service file {}, line {line}", file.display()),
            Origin::Variable(name) => write!(f, "environment variable {name}"),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// A key that has a value, for showing: of a password only that there is one.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Given {
    /// The key, as libpq spells it.
    pub key: &'static str,
    /// Its value; `None` for a secret.
    pub value: Option<String>,
    /// Who said so.
    pub origin: Origin,
}

/// What was given, in the order of the keys. All are equal: where a value comes from makes no difference to it.
#[derive(Clone, Default)]
pub(super) struct Provenance(pub(super) Vec<Given>);

impl PartialEq for Provenance {
    fn eq(&self, _: &Provenance) -> bool {
        true
    }
}

impl Eq for Provenance {}
