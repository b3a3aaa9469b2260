//! Why a connection string was refused.

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
    #[error("{} is not supported: {reason}", place(key, *variable))]
    UnsupportedKey {
        /// The key.
        key: &'static str,
        /// The variable that set it, if not the string itself.
        variable: Option<&'static str>,
        /// Why, or what to do instead.
        reason: &'static str,
    },
    /// A value that its key cannot have.
    #[error("{} is invalid: {reason}", place(key, *variable))]
    InvalidValue {
        /// The key.
        key: &'static str,
        /// The variable that set it, if not the string itself.
        variable: Option<&'static str>,
        /// Why.
        reason: String,
    },
    /// No user was named, and the operating system's user has no name.
    #[error("connection string: no user, and the name of the operating system's user is unknown; add user=...")]
    MissingUser,
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map(|key| format!("; did you mean {key:?}?")).unwrap_or_default()
}

fn place(key: &str, variable: Option<&str>) -> String {
    match variable {
        Some(variable) => format!("environment variable {variable} ({key})"),
        None => format!("connection string: {key}"),
    }
}
