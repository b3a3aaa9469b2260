//! Which hosts are tried, in which order, with or without TLS, and what ends the trying.

use super::error::{At, ConnectError};
use super::settings::{ConnectionSettings, Endpoint, Host, SslMode, TargetSessionAttrs};

/// Whether a connection is encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Encryption {
    /// It is not.
    Plain,
    /// It is, if the server can.
    Preferred,
    /// It is.
    Required,
}

/// The attempts of one connection: every host in order, and what `sslmode` allows at each.
pub(super) struct Tries<'a> {
    settings: &'a ConnectionSettings,
    host: usize,
    second: bool,
    errors: Vec<ConnectError>,
}

impl<'a> Tries<'a> {
    pub(super) fn new(settings: &'a ConnectionSettings) -> Tries<'a> {
        Tries { settings, host: 0, second: false, errors: Vec::new() }
    }

    pub(super) fn endpoint(&self) -> &'a Endpoint {
        &self.settings.endpoints[self.host]
    }

    pub(super) fn encryption(&self) -> Encryption {
        match (self.settings.ssl_mode, self.second) {
            // TLS is not used on Unix sockets, as with libpq.
            _ if matches!(self.endpoint().host, Host::Unix(_)) => Encryption::Plain,
            (SslMode::Disable, _) | (SslMode::Allow, false) | (SslMode::Prefer, true) => Encryption::Plain,
            (SslMode::Prefer, false) => Encryption::Preferred,
            (SslMode::Allow, true) | (SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull, _) => {
                Encryption::Required
            }
        }
    }

    /// Moves on to the next attempt, or gives the error back if there is none, or none is worth it.
    ///
    /// Like libpq: `allow` and `prefer` try the other way if the server lets nobody in this way; a host that cannot be
    /// used makes way for the next; one that was reached and refused the user ends it all.
    pub(super) fn failed(&mut self, error: ConnectError) -> Result<(), ConnectError> {
        let two_ways = matches!(self.settings.ssl_mode, SslMode::Allow | SslMode::Prefer)
            && matches!(self.endpoint().host, Host::Tcp(_));
        let other_way = match &error {
            // 28000 is what the server says if pg_hba.conf has no line for the connection.
            ConnectError::Server { error, .. } => error.sqlstate == "28000",
            ConnectError::Tls { .. } => self.settings.ssl_mode == SslMode::Prefer,
            _ => false,
        };
        if two_ways && other_way && !self.second {
            self.second = true;
            self.errors.push(error);
            return Ok(());
        }
        let next_host = match &error {
            ConnectError::Server { .. } => error.is_transient(),
            ConnectError::Authentication { .. } | ConnectError::RootCertificates { .. } => false,
            _ => true,
        };
        self.errors.push(error);
        if next_host && self.host + 1 < self.settings.endpoints.len() {
            (self.host, self.second) = (self.host + 1, false);
            return Ok(());
        }
        let mut errors = std::mem::take(&mut self.errors);
        match errors.pop() {
            Some(error) if errors.is_empty() || !next_host => Err(error),
            last => {
                errors.extend(last);
                Err(ConnectError::Hosts { errors })
            }
        }
    }
}

/// Runs a step of a connection's start within `connect_timeout`.
pub(super) async fn within<T>(
    settings: &ConnectionSettings,
    at: &At,
    step: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    match settings.connect_timeout {
        Some(limit) => tokio::time::timeout(limit, step).await.unwrap_or_else(|_| Err(at.timeout(limit))),
        None => step.await,
    }
}

/// What to ask a server because of `target_session_attrs`.
pub(super) struct Question {
    attrs: TargetSessionAttrs,
    /// The query, for servers older than 14, which do not report it unasked.
    pub(super) sql: &'static str,
    /// The answer that will do.
    pub(super) wanted: &'static str,
}

impl Question {
    pub(super) fn about(attrs: TargetSessionAttrs) -> Option<Question> {
        match attrs {
            TargetSessionAttrs::Any => None,
            TargetSessionAttrs::ReadWrite => Some(Question { attrs, sql: "SHOW transaction_read_only", wanted: "off" }),
            TargetSessionAttrs::Primary => {
                Some(Question { attrs, sql: "SELECT pg_catalog.pg_is_in_recovery()", wanted: "f" })
            }
        }
    }

    /// The answer that the server's parameters give, if they do.
    pub(super) fn answered_by<'p>(&self, parameter: impl Fn(&str) -> Option<&'p str>) -> Option<bool> {
        let primary = parameter("in_hot_standby")? == "off";
        match self.attrs {
            TargetSessionAttrs::ReadWrite => Some(primary && parameter("default_transaction_read_only")? == "off"),
            _ => Some(primary),
        }
    }

    pub(super) fn check(&self, answer: bool, at: &At) -> Result<(), ConnectError> {
        let wanted = match self.attrs {
            TargetSessionAttrs::ReadWrite => "read-write",
            _ => "a primary",
        };
        if answer { Ok(()) } else { Err(at.session_attributes(wanted)) }
    }
}
