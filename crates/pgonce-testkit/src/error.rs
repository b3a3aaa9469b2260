//! What can go wrong in the test kit.

use std::{fmt, io};

/// An error of the test kit. Tests return it or unwrap it; nothing recovers from one.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum KitError {
    /// A server of this major is selected and not installed.
    #[error("PostgreSQL {major} is not installed; type: scripts/setup && scripts/fetch-postgres {major}")]
    MissingServer {
        /// The major version that was asked for.
        major: u32,
    },
    /// No client programs of this major or a newer one are installed.
    #[error(
        "pg_dump {major} or newer is not installed; type: scripts/setup && scripts/fetch-postgres --client {major}"
    )]
    MissingClient {
        /// The major version that was asked for.
        major: u32,
    },
    /// Servers do not run as root, and the user they would run as does not exist.
    #[error("running as root, and there is no user `postgres` to run servers as; type: scripts/setup")]
    MissingUser,
    /// `PGONCE_TEST_PG` is not a list of major versions.
    #[error("PGONCE_TEST_PG={text:?} is not a comma-separated list of PostgreSQL majors, as in 15,18")]
    BadSelection {
        /// The variable's value.
        text: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// A program reported failure.
    #[error("{program} failed: {output}")]
    Program {
        /// The program's name.
        program: String,
        /// What it printed.
        output: String,
    },
    /// A server ended instead of starting.
    #[error("the server of cluster {cluster} ended instead of starting; the end of its log:\n{log}")]
    DidNotStart {
        /// The cluster's name.
        cluster: String,
        /// The end of the server's log.
        log: String,
    },
    /// A server was to be started and runs already.
    #[error("the server of cluster {cluster} is running already")]
    AlreadyRunning {
        /// The cluster's name.
        cluster: String,
    },
    /// A process was to be killed and had ended before. A kill that hits nothing proves nothing.
    #[error("{what} was not running, so nothing was killed")]
    NotRunning {
        /// The process.
        what: String,
    },
    /// A process was killed and ended in another way, or not at all.
    #[error("{what} did not end as it was told to: {how}")]
    NotKilled {
        /// The process.
        what: String,
        /// How it ended instead.
        how: String,
    },
    /// Something did not happen in time.
    #[error("{what}: not within {seconds} s")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        seconds: u64,
    },
    /// A statement failed on a cluster or could not be sent.
    #[error("{what}: {}", describe(source))]
    Sql {
        /// What was tried.
        what: String,
        /// The driver's error.
        source: tokio_postgres::Error,
    },
    /// A setting was refused by the server.
    #[error("setting {name}: {reason}")]
    Setting {
        /// The setting's name.
        name: String,
        /// Why the server does not take it.
        reason: String,
    },
    /// A certificate could not be made.
    #[error("making certificates: {0}")]
    Certificate(#[from] rcgen::Error),
}

impl KitError {
    /// For `map_err`: an I/O error and what was tried.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> KitError {
        move |source| KitError::Io { what: what.into(), source }
    }

    /// For `map_err`: a driver's error and what was tried.
    pub(crate) fn sql(what: impl Into<String>) -> impl FnOnce(tokio_postgres::Error) -> KitError {
        move |source| KitError::Sql { what: what.into(), source }
    }
}

/// A test that returns an error has it printed by `Debug`: the message, with the command to type, is what helps then.
impl fmt::Debug for KitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The driver prints a server's error as "db error"; a test wants its text.
fn describe(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(server) => format!("{} (SQLSTATE {})", server.message(), server.code().code()),
        None => {
            let mut text = error.to_string();
            let mut cause = std::error::Error::source(error);
            while let Some(next) = cause {
                text.push_str(": ");
                text.push_str(&next.to_string());
                cause = next.source();
            }
            text
        }
    }
}
