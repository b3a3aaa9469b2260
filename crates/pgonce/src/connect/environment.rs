//! The variables and the user name that fill what a connection string leaves open.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// What a connection string is completed from: environment variables, and the name of the operating system's user.
///
/// A value of its own, so that nothing but [`Environment::process`] reads the environment of the process.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, OsString>,
    os_user: Option<String>,
}

impl Environment {
    /// Nothing set, no user name.
    pub fn empty() -> Environment {
        Environment::default()
    }

    /// The environment of this process: `PG*` and `HOME`, and the name of its effective user.
    pub fn process() -> Environment {
        let mut variables: BTreeMap<String, OsString> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, _)| name.starts_with("PG") || name == "HOME")
            .collect();
        // Without the variable, the home directory that the system's accounts have.
        if let Some(home) = std::env::home_dir().filter(|home| !home.as_os_str().is_empty()) {
            variables.insert("HOME".to_owned(), home.into_os_string());
        }
        Environment { variables, os_user: whoami::username().ok() }
    }

    /// The same environment with one variable more.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl AsRef<OsStr>) -> Environment {
        self.variables.insert(name.to_owned(), value.as_ref().to_owned());
        self
    }

    /// The same environment with the operating system's user name: the default of `user`.
    #[must_use]
    pub fn with_os_user(mut self, name: &str) -> Environment {
        self.os_user = Some(name.to_owned());
        self
    }

    /// The value of a variable, if it is set.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(name).map(OsString::as_os_str)
    }

    /// The home directory, where libpq's default files lie.
    pub(super) fn home(&self) -> Option<PathBuf> {
        self.get("HOME").filter(|home| !home.is_empty()).map(PathBuf::from)
    }

    /// The operating system's user name, if it is known.
    pub fn os_user(&self) -> Option<&str> {
        self.os_user.as_deref()
    }
}

impl std::fmt::Debug for Environment {
    /// The names of the variables, never their values.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Environment")
            .field("variables", &self.variables.keys().collect::<Vec<_>>())
            .field("os_user", &self.os_user)
            .finish()
    }
}
