//! Which hosts are tried, in which order, with or without TLS, and what ends the trying.

use std::collections::VecDeque;
use std::net::SocketAddr;

use ring::rand::{SecureRandom, SystemRandom};

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

/// One attempt: at one address, in one way.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    /// Where; its address is known, unless it is a Unix socket.
    pub(super) endpoint: Endpoint,
    /// How.
    pub(super) encryption: Encryption,
    /// What the server must be.
    pub(super) attrs: TargetSessionAttrs,
}

/// The attempts of one connection: every address of every host in order, and what `sslmode` allows at each.
pub(super) struct Tries<'a> {
    settings: &'a ConnectionSettings,
    attrs: TargetSessionAttrs,
    /// Hosts that were not looked up yet.
    hosts: VecDeque<&'a Endpoint>,
    /// What is left of the host that was; the first is the one being tried.
    addresses: VecDeque<Endpoint>,
    second: bool,
    errors: Vec<ConnectError>,
}

impl<'a> Tries<'a> {
    pub(super) fn new(settings: &'a ConnectionSettings) -> Tries<'a> {
        let mut tries = Tries {
            settings,
            attrs: settings.target_session_attrs,
            hosts: VecDeque::new(),
            addresses: VecDeque::new(),
            second: false,
            errors: Vec::new(),
        };
        tries.start();
        tries
    }

    fn start(&mut self) {
        self.hosts = self.settings.endpoints.iter().collect();
        if self.settings.load_balance_hosts {
            shuffle(self.hosts.make_contiguous());
        }
    }

    /// The attempt that is due.
    ///
    /// # Errors
    ///
    /// The host's name could not be looked up: tell it to [`failed`](Self::failed), as any other error.
    pub(super) async fn attempt(&mut self) -> Result<Attempt, ConnectError> {
        if self.addresses.is_empty()
            && let Some(host) = self.hosts.pop_front()
        {
            self.addresses = look_up(self.settings, host).await?;
            if self.settings.load_balance_hosts {
                shuffle(self.addresses.make_contiguous());
            }
        }
        match self.addresses.front() {
            Some(endpoint) => {
                Ok(Attempt { endpoint: endpoint.clone(), encryption: self.encryption(endpoint), attrs: self.attrs })
            }
            // Settings without any host.
            None => Err(ConnectError::Hosts { errors: Vec::new() }),
        }
    }

    fn encryption(&self, endpoint: &Endpoint) -> Encryption {
        match (self.settings.ssl_mode, self.second) {
            // TLS is not used on Unix sockets, as with libpq.
            _ if matches!(endpoint.host, Host::Unix(_)) => Encryption::Plain,
            (SslMode::Disable, _) | (SslMode::Allow, false) | (SslMode::Prefer, true) => Encryption::Plain,
            (SslMode::Prefer, false) => Encryption::Preferred,
            (SslMode::Allow, true) | (SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull, _) => {
                Encryption::Required
            }
        }
    }

    /// Moves on to the next attempt, or gives the error back if there is none, or none is worth it.
    ///
    /// Like libpq: `allow` and `prefer` try the other way if the server lets nobody in this way; an address that cannot
    /// be used makes way for the next; one that was reached and refused the user ends it all. `prefer-standby` takes
    /// what is there once no host has turned out to be a standby.
    pub(super) fn failed(&mut self, error: ConnectError) -> Result<(), ConnectError> {
        let two_ways = matches!(self.settings.ssl_mode, SslMode::Allow | SslMode::Prefer)
            && self.addresses.front().is_some_and(|endpoint| matches!(endpoint.host, Host::Tcp(_)));
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
        let goes_on = match &error {
            ConnectError::Server { .. } => error.is_transient(),
            ConnectError::Authentication { .. }
            | ConnectError::RootCertificates { .. }
            | ConnectError::ClientCertificate { .. }
            | ConnectError::RevocationList { .. }
            | ConnectError::PasswordFile { .. } => false,
            _ => true,
        };
        self.errors.push(error);
        self.addresses.pop_front();
        self.second = false;
        if goes_on && !(self.addresses.is_empty() && self.hosts.is_empty()) {
            return Ok(());
        }
        let no_standby = self.errors.iter().any(|error| matches!(error, ConnectError::SessionAttributes { .. }));
        if goes_on && no_standby && self.attrs == TargetSessionAttrs::PreferStandby {
            self.attrs = TargetSessionAttrs::Any;
            self.errors.clear();
            self.start();
            return Ok(());
        }
        let mut errors = std::mem::take(&mut self.errors);
        // A host with several addresses says the same of each.
        errors.dedup_by_key(|error| error.to_string());
        match errors.pop() {
            Some(error) if errors.is_empty() || !goes_on => Err(error),
            last => {
                errors.extend(last);
                Err(ConnectError::Hosts { errors })
            }
        }
    }
}

/// Every address of a host, each as an endpoint of its own.
async fn look_up(settings: &ConnectionSettings, endpoint: &Endpoint) -> Result<VecDeque<Endpoint>, ConnectError> {
    let (Host::Tcp(host), None) = (&endpoint.host, endpoint.address) else { return Ok([endpoint.clone()].into()) };
    let at = At(endpoint.clone());
    let found: VecDeque<SocketAddr> = within(settings, &at, async {
        let found = tokio::net::lookup_host((host.as_str(), endpoint.port)).await;
        found.map(Iterator::collect).map_err(|error| at.resolve(error))
    })
    .await?;
    if found.is_empty() {
        return Err(at.resolve(std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address")));
    }
    Ok(found.into_iter().map(|address| Endpoint { address: Some(address.ip()), ..endpoint.clone() }).collect())
}

/// Puts the items in a random order; leaves them if the system has no randomness.
fn shuffle<T>(items: &mut [T]) {
    let random = SystemRandom::new();
    for last in (1..items.len()).rev() {
        let mut bytes = [0; 8];
        if random.fill(&mut bytes).is_err() {
            return;
        }
        items.swap(last, (u64::from_ne_bytes(bytes) % (last as u64 + 1)) as usize);
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
    /// The query, for servers that do not report it unasked: those older than 14.
    pub(super) sql: &'static str,
    /// The answer that will do.
    pub(super) wanted: &'static str,
}

impl Question {
    pub(super) fn about(attrs: TargetSessionAttrs) -> Option<Question> {
        const READ_ONLY: &str = "SHOW transaction_read_only";
        const RECOVERY: &str = "SELECT pg_catalog.pg_is_in_recovery()";
        let (sql, wanted) = match attrs {
            TargetSessionAttrs::Any => return None,
            TargetSessionAttrs::ReadWrite => (READ_ONLY, "off"),
            TargetSessionAttrs::ReadOnly => (READ_ONLY, "on"),
            TargetSessionAttrs::Primary => (RECOVERY, "f"),
            TargetSessionAttrs::Standby | TargetSessionAttrs::PreferStandby => (RECOVERY, "t"),
        };
        Some(Question { attrs, sql, wanted })
    }

    /// The answer that the server's parameters give, if they do.
    pub(super) fn answered_by<'p>(&self, parameter: impl Fn(&str) -> Option<&'p str>) -> Option<bool> {
        let primary = parameter("in_hot_standby")? == "off";
        let writable = || Some(primary && parameter("default_transaction_read_only")? == "off");
        match self.attrs {
            TargetSessionAttrs::Any => Some(true),
            TargetSessionAttrs::ReadWrite => writable(),
            TargetSessionAttrs::ReadOnly => writable().map(|writable| !writable),
            TargetSessionAttrs::Primary => Some(primary),
            TargetSessionAttrs::Standby | TargetSessionAttrs::PreferStandby => Some(!primary),
        }
    }

    pub(super) fn check(&self, answer: bool, at: &At) -> Result<(), ConnectError> {
        let wanted = match self.attrs {
            TargetSessionAttrs::Any => "up",
            TargetSessionAttrs::ReadWrite => "read-write",
            TargetSessionAttrs::ReadOnly => "read-only",
            TargetSessionAttrs::Primary => "a primary",
            TargetSessionAttrs::Standby | TargetSessionAttrs::PreferStandby => "a standby",
        };
        if answer { Ok(()) } else { Err(at.session_attributes(wanted)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::Environment;

    async fn failing(text: &str, wrong: fn(&At) -> ConnectError) -> (Vec<String>, ConnectError) {
        let settings = ConnectionSettings::parse(text, &Environment::empty().with_os_user("os")).unwrap();
        let (mut tries, mut tried) = (Tries::new(&settings), Vec::new());
        loop {
            let attempt = tries.attempt().await.unwrap();
            tried.push(format!("{} {}", attempt.endpoint, attempt.attrs.as_str()));
            if let Err(error) = tries.failed(wrong(&At(attempt.endpoint))) {
                return (tried, error);
            }
        }
    }

    #[tokio::test]
    async fn every_host_is_tried_and_a_standby_is_only_preferred() {
        let refused = |at: &At| at.connect(std::io::ErrorKind::ConnectionRefused.into());
        let text = "host=127.0.0.1,127.0.0.2 port=1,2 sslmode=disable target_session_attrs=prefer-standby";
        let (tried, error) = failing(text, refused).await;
        assert_eq!(tried, ["127.0.0.1:1 prefer-standby", "127.0.0.2:2 prefer-standby"]);
        assert!(matches!(&error, ConnectError::Hosts { errors } if errors.len() == 2), "{error}");

        let (tried, _) = failing(text, |at| at.session_attributes("a standby")).await;
        assert_eq!(tried[2..], ["127.0.0.1:1 any", "127.0.0.2:2 any"]);
        let (tried, error) = failing(text, |at| at.authentication("no")).await;
        assert_eq!((tried.len(), error.code()), (1, "authentication"));
    }

    #[tokio::test]
    async fn a_balanced_load_begins_at_every_host_in_turn() {
        let text = "host=127.0.0.1,127.0.0.2,127.0.0.3 sslmode=disable load_balance_hosts=random";
        let mut first = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let (mut tried, _) = failing(text, |at| at.session_attributes("a primary")).await;
            first.insert(tried[0].clone());
            tried.sort();
            assert_eq!(tried, ["127.0.0.1:5432 any", "127.0.0.2:5432 any", "127.0.0.3:5432 any"]);
        }
        assert_eq!(first.len(), 3);
    }
}
