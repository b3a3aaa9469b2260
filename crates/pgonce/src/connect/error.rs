//! Why a connection was not opened.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::server_error::ServerError;
use super::settings::Endpoint;
use crate::stop::{Reason, Side, Stop};

/// Why a connection was not opened, or a session not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The host's name has no address.
    #[error("cannot look up {endpoint}: {source}")]
    Resolve {
        /// Where.
        endpoint: Box<Endpoint>,
        /// What the resolver said.
        source: io::Error,
    },
    /// The socket could not be connected.
    #[error("cannot connect to {endpoint}: {source}")]
    Connect {
        /// Where.
        endpoint: Box<Endpoint>,
        /// What the system said.
        source: io::Error,
    },
    /// `connect_timeout` is over.
    #[error("{endpoint} did not answer within {} s", after.as_secs())]
    Timeout {
        /// Where.
        endpoint: Box<Endpoint>,
        /// How long it had.
        after: Duration,
    },
    /// The connection broke before the session was ready.
    #[error("the connection to {endpoint} broke: {source}")]
    Io {
        /// Where.
        endpoint: Box<Endpoint>,
        /// What the system said.
        source: io::Error,
    },
    /// TLS is required and the server has none.
    #[error("{endpoint} does not offer TLS, and sslmode requires it")]
    TlsNotOffered {
        /// Where.
        endpoint: Box<Endpoint>,
    },
    /// The TLS handshake failed, most often because of the server's certificate.
    #[error("TLS with {endpoint} failed: {reason}")]
    Tls {
        /// Where.
        endpoint: Box<Endpoint>,
        /// Why.
        reason: String,
    },
    /// The root certificates could not be read.
    #[error("root certificates{}: {reason}", path.as_ref().map(|p| format!(" {}", p.display())).unwrap_or_default())]
    RootCertificates {
        /// The file; `None` is the operating system's store.
        path: Option<PathBuf>,
        /// Why.
        reason: String,
    },
    /// The client certificate or its key could not be used.
    #[error("client certificate, file {}: {reason}", path.display())]
    ClientCertificate {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A list of revoked certificates could not be read.
    #[error("revocation list {}: {reason}", path.display())]
    RevocationList {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The password file that was named could not be read.
    #[error("password file {}: {reason}", path.display())]
    PasswordFile {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The server ended the start of the session with an error.
    #[error("{endpoint} refused the session: {error}: {}{}", error.message(), taken_from(password_file.as_deref()))]
    Server {
        /// Where.
        endpoint: Box<Endpoint>,
        /// What the server said.
        error: Box<ServerError>,
        /// The file that the refused password was taken from.
        password_file: Option<PathBuf>,
    },
    /// The server was asked for a password exchange that did not work out on our side.
    #[error("authentication with {endpoint} failed: {reason}")]
    Authentication {
        /// Where.
        endpoint: Box<Endpoint>,
        /// Why.
        reason: String,
    },
    /// What answers does not speak PostgreSQL's protocol 3.
    #[error("{endpoint} broke the protocol: {reason}")]
    Protocol {
        /// Where.
        endpoint: Box<Endpoint>,
        /// What was wrong.
        reason: String,
    },
    /// The server is up, but not of the kind that `target_session_attrs` asks for.
    #[error("{endpoint} is not {wanted}, as target_session_attrs asks")]
    SessionAttributes {
        /// Where.
        endpoint: Box<Endpoint>,
        /// What was asked for.
        wanted: &'static str,
    },
    /// Every host was tried, and each failed.
    #[error("no host could be used: {}", joined(errors))]
    Hosts {
        /// Why, in the order they were tried.
        errors: Vec<ConnectError>,
    },
}

fn taken_from(password_file: Option<&Path>) -> String {
    password_file.map(|file| format!(" (the password was taken from {})", file.display())).unwrap_or_default()
}

fn joined(errors: &[ConnectError]) -> String {
    errors.iter().map(ConnectError::to_string).collect::<Vec<_>>().join("; ")
}

/// What is to be known of an error: its code, whether it heals by itself, and what to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ConnectErrorKind {
    /// A stable name.
    pub code: &'static str,
    /// Whether trying again later may help, with nothing changed by anybody.
    pub transient: bool,
    /// The next thing to do.
    pub hint: &'static str,
}

const fn transient(code: &'static str, hint: &'static str) -> ConnectErrorKind {
    ConnectErrorKind { code, transient: true, hint }
}

const fn permanent(code: &'static str, hint: &'static str) -> ConnectErrorKind {
    ConnectErrorKind { code, transient: false, hint }
}

impl ConnectError {
    /// The table of errors: which is which, whether it is transient, and what to do about it.
    pub fn kind(&self) -> ConnectErrorKind {
        match self {
            ConnectError::Resolve { .. } => transient("connect_resolve", "check the host's name and the resolver"),
            ConnectError::Connect { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                permanent("connect_permission", "let this user reach the socket, or connect over TCP")
            }
            ConnectError::Connect { .. } => transient(
                "connect_refused",
                "check that the server runs, listens at this address, and no firewall is between",
            ),
            ConnectError::Timeout { .. } => {
                transient("connect_timeout", "check the address and the firewall, or raise connect_timeout")
            }
            ConnectError::Io { .. } => transient("connect_broken", "look into the server's log; it may be restarting"),
            ConnectError::TlsNotOffered { .. } => {
                permanent("tls_not_offered", "set ssl = on at the server, or choose sslmode=prefer")
            }
            ConnectError::Tls { .. } => {
                permanent("tls_failed", "check sslrootcert, the host's name, and the server's certificate")
            }
            ConnectError::RootCertificates { .. } => {
                permanent("tls_root_certificates", "name a readable PEM file in sslrootcert, or choose another sslmode")
            }
            ConnectError::ClientCertificate { .. } => {
                permanent("tls_client_certificate", "correct sslcert and sslkey, or write sslcertmode=disable")
            }
            ConnectError::RevocationList { .. } => {
                permanent("tls_revocation_list", "name readable PEM files in sslcrl and sslcrldir, or leave them out")
            }
            ConnectError::PasswordFile { .. } => {
                permanent("password_file", "correct the file or its permissions, or give the password otherwise")
            }
            ConnectError::Server { error, .. } => server(error),
            ConnectError::Authentication { .. } => {
                permanent("authentication", "check user, password and channel_binding, and the server's pg_hba.conf")
            }
            ConnectError::Protocol { .. } => {
                permanent("protocol", "check that host and port are those of a PostgreSQL server")
            }
            ConnectError::SessionAttributes { .. } => {
                transient("session_attributes", "wait for the failover to end, or add the other hosts to the string")
            }
            ConnectError::Hosts { errors } => {
                let first = errors.iter().map(ConnectError::kind);
                // One host that may come back is enough to try again.
                first
                    .clone()
                    .find(|kind| kind.transient)
                    .or_else(|| first.clone().next())
                    .unwrap_or(permanent("connect_no_host", "name a host in the connection string"))
            }
        }
    }

    /// A stable name for the kind of error.
    pub fn code(&self) -> &'static str {
        self.kind().code
    }

    /// Whether trying again later may help, with nothing changed by anybody.
    pub fn is_transient(&self) -> bool {
        self.kind().transient
    }

    /// The next thing to do.
    pub fn hint(&self) -> &'static str {
        self.kind().hint
    }

    /// The reason that a flow gives for this: one that it waits out, or one that stops it.
    pub fn into_stop(self, side: Side) -> Stop {
        let what = self.to_string();
        match self.kind() {
            kind if kind.transient => Reason::Connection { side, what }.into(),
            kind => {
                let mut hint = kind.hint.to_owned();
                if let Some(first) = hint.get_mut(..1) {
                    first.make_ascii_uppercase();
                }
                Reason::ConnectionRefused { side, what, hint: hint + "." }.into()
            }
        }
    }

    /// The same error; if it is about a password that came from a file, it names the file.
    pub(super) fn with_password_file(mut self, file: Option<PathBuf>) -> ConnectError {
        if let ConnectError::Server { error, password_file, .. } = &mut self
            && error.sqlstate == "28P01"
        {
            *password_file = file;
        }
        self
    }

    /// The server's own error, if it was the server that refused.
    pub fn server_error(&self) -> Option<&ServerError> {
        match self {
            ConnectError::Server { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// The same table for what the server itself says, by SQLSTATE.
fn server(error: &ServerError) -> ConnectErrorKind {
    match (error.sqlstate.as_str(), error.class()) {
        ("57P01" | "57P02" | "57P03" | "57P05", _) => {
            transient("server_unavailable", "wait: the server is starting up, shutting down or recovering")
        }
        ("53300", _) => transient("server_full", "raise max_connections (or max_wal_senders), or close connections"),
        (_, "08") => transient("server_connection", "look into the server's log"),
        ("28P01", _) => permanent("authentication_password", "correct the password, or the user"),
        (_, "28") => permanent("authentication_refused", "let this user, database, address and TLS in by pg_hba.conf"),
        ("3D000", _) => permanent("database_missing", "correct dbname, or create the database"),
        ("42501", _) => permanent(
            "privilege_missing",
            "give the role what it lacks: on a source ALTER ROLE ... REPLICATION; elsewhere GRANT CONNECT ON DATABASE \
             ... TO ...; look into the server's log",
        ),
        _ => permanent("server_refused", "look up the SQLSTATE, and look into the server's log"),
    }
}

/// What the server does not like of the client certificate, or its absence: with TLS 1.3 it says so only when the
/// client takes the handshake for done.
fn refusal(error: &io::Error) -> Option<String> {
    use rustls::AlertDescription as Alert;
    match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::AlertReceived(
            alert @ (Alert::CertificateRequired
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::DecryptError),
        ) => Some(format!("{alert:?} (about the client certificate)")),
        _ => None,
    }
}

/// Where an error happened, to make errors of.
#[derive(Clone)]
pub(super) struct At(pub(super) Endpoint);

impl At {
    fn endpoint(&self) -> Box<Endpoint> {
        Box::new(self.0.clone())
    }

    pub(super) fn resolve(&self, source: io::Error) -> ConnectError {
        ConnectError::Resolve { endpoint: self.endpoint(), source }
    }

    pub(super) fn connect(&self, source: io::Error) -> ConnectError {
        ConnectError::Connect { endpoint: self.endpoint(), source }
    }

    pub(super) fn timeout(&self, after: Duration) -> ConnectError {
        ConnectError::Timeout { endpoint: self.endpoint(), after }
    }

    /// A socket that failed; or, where the peer said by TLS's own means that it will have none of it, that.
    pub(super) fn io(&self, source: io::Error) -> ConnectError {
        if let Some(reason) = refusal(&source) {
            return self.tls(format_args!("the server ended the handshake: {reason}"));
        }
        ConnectError::Io { endpoint: self.endpoint(), source }
    }

    pub(super) fn tls_not_offered(&self) -> ConnectError {
        ConnectError::TlsNotOffered { endpoint: self.endpoint() }
    }

    pub(super) fn tls(&self, reason: impl fmt::Display) -> ConnectError {
        ConnectError::Tls { endpoint: self.endpoint(), reason: reason.to_string() }
    }

    pub(super) fn server(&self, error: ServerError) -> ConnectError {
        ConnectError::Server { endpoint: self.endpoint(), error: Box::new(error), password_file: None }
    }

    pub(super) fn authentication(&self, reason: impl fmt::Display) -> ConnectError {
        ConnectError::Authentication { endpoint: self.endpoint(), reason: reason.to_string() }
    }

    pub(super) fn protocol(&self, reason: impl fmt::Display) -> ConnectError {
        ConnectError::Protocol { endpoint: self.endpoint(), reason: reason.to_string() }
    }

    pub(super) fn session_attributes(&self, wanted: &'static str) -> ConnectError {
        ConnectError::SessionAttributes { endpoint: self.endpoint(), wanted }
    }
}
