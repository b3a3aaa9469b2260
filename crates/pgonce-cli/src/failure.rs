//! How a command ends badly: a code, words, a hint, and an exit status. Nothing here holds a secret or a row value.

use pgonce::sql_error::stop_from_sql;
use pgonce::stop::{Reason, Side, Stop};

use crate::config::raw::ConfigError;
use crate::watch::where_set;

/// Exit status of wrong usage: see `pgonce::stop::Family`.
pub const USAGE: u8 = 2;

/// Exit status of a defect. Never 1, which means drift and nothing else.
pub const INTERNAL: u8 = 70;

/// Why a command failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// A stable word for programs.
    pub code: &'static str,
    /// What is wrong, and where.
    pub text: String,
    /// What to do about it.
    pub hint: String,
    /// The process ends with it.
    pub exit_status: u8,
}

impl Failure {
    /// The command was not used as it can be.
    pub fn usage(text: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure { code: "usage", text: text.into(), hint: hint.into(), exit_status: USAGE }
    }

    /// A file or directory could not be used.
    pub fn file(path: &std::path::Path, error: &std::io::Error) -> Failure {
        let reason = Reason::LocalFile { path: path.display().to_string(), what: error.to_string() };
        Stop::from(reason).into()
    }

    /// A statement failed on one side.
    pub fn sql(side: Side, error: &tokio_postgres::Error) -> Failure {
        stop_from_sql(side, error).into()
    }
}

impl From<Stop> for Failure {
    fn from(stop: Stop) -> Failure {
        let mut hint = stop.hint();
        if let Reason::ConnectionRefused { side, .. } = stop.reason() {
            hint.push_str(&format!(" The {side} is named in {}", where_set(*side)));
        }
        Failure { code: stop.code(), text: stop.to_string(), hint, exit_status: stop.exit_status() }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Failure {
        Failure::usage(error.to_string(), error.hint)
    }
}
