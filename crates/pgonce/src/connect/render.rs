//! Connections in words, without secrets.

use std::fmt;

use super::settings::{ConnectionSettings, Endpoint, Host};

/// Writes `text` so that a URI's parser reads it back.
pub(super) fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(byte.into());
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

impl fmt::Display for Endpoint {
    /// `host:port`, `[address]:port`, or the socket's file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Tcp(host) if host.contains(':') => write!(f, "[{host}]:{}", self.port),
            Host::Tcp(host) => write!(f, "{host}:{}", self.port),
            Host::Unix(directory) => write!(f, "{}/.s.PGSQL.{}", directory.display(), self.port),
        }
    }
}

impl fmt::Display for ConnectionSettings {
    /// A URI that says where and as whom, without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "postgresql://{}@", percent_encoded(&self.user))?;
        for (index, endpoint) in self.endpoints.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            match &endpoint.host {
                Host::Unix(directory) => {
                    write!(f, "{}:{}", percent_encoded(&directory.to_string_lossy()), endpoint.port)?;
                }
                Host::Tcp(_) => endpoint.fmt(f)?,
            }
        }
        write!(f, "/{}?sslmode={}", percent_encoded(&self.dbname), self.ssl_mode.as_str())
    }
}

impl fmt::Debug for ConnectionSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectionSettings({self})")
    }
}
