//! Why a connection string was refused.

use std::path::PathBuf;

use super::origin::Origin;

/// Why a connection string was refused. Neither a value nor the whole string is ever quoted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseConnectionError {
    /// The string cannot be taken apart.
    #[error("connection string, byte {position}: {reason}")]
    Syntax {
        /// Where, in bytes from 1.
        position: usize,
        /// What is wrong there.
        reason: &'static str,
    },
    /// There is no such key.
    #[error("connection string: unknown key {key:?}{}", did_you_mean(*nearest))]
    UnknownKey {
        /// The key as it was written.
        key: String,
        /// The valid key that looks most like it.
        nearest: Option<&'static str>,
    },
    /// libpq knows the key; it is not obeyed here, and so it is not ignored either.
    #[error("{} is not supported: {reason}", place(key, origin))]
    UnsupportedKey {
        /// The key.
        key: &'static str,
        /// Who set it.
        origin: Origin,
        /// Why, or what to do instead.
        reason: &'static str,
    },
    /// A value that its key cannot have.
    #[error("{} is invalid: {reason}", place(key, origin))]
    InvalidValue {
        /// The key.
        key: &'static str,
        /// Who set it.
        origin: Origin,
        /// Why.
        reason: String,
    },
    /// A service file that cannot be read.
    #[error("service file {}{}: {reason}", file.display(), at_line(*line))]
    ServiceFile {
        /// The file.
        file: PathBuf,
        /// The line, from 1, if it is about one.
        line: Option<usize>,
        /// What is wrong.
        reason: String,
    },
    /// No service file has the service that was asked for.
    #[error("{}: no section [{service}] in {looked_in}", place("service", origin))]
    MissingService {
        /// Its name.
        service: String,
        /// Who asked for it.
        origin: Origin,
        /// The files that were read, in words.
        looked_in: String,
    },
    /// No user was named, and the operating system's user has no name.
    #[error("connection string: no user, and the name of the operating system's user is unknown; add user=...")]
    MissingUser,
}

pub(super) fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map(|key| format!("; did you mean {key:?}?")).unwrap_or_default()
}

fn at_line(line: Option<usize>) -> String {
    line.map(|line| format!(", line {line}")).unwrap_or_default()
}

fn place(key: &str, origin: &Origin) -> String {
    match origin {
        Origin::Variable(_) => format!("{origin} ({key})"),
        _ => format!("{origin}: {key}"),
    }
}
