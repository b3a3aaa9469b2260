//! What a connection string says.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::auth_methods::RequiredAuth;
use super::origin::{Given, Provenance};

/// What every connection is opened with: a connection string, completed from the environment and by libpq's defaults.
///
/// `Display` and `Debug` never print the password.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionSettings {
    /// Where to connect, tried in order. Never empty.
    pub endpoints: Vec<Endpoint>,
    /// The role to log in as.
    pub user: String,
    /// Its password, if one was given.
    pub password: Option<Password>,
    /// The file that has passwords, one for each server, where none was given. It is read anew for each connection.
    pub passfile: Option<FileChoice>,
    /// The database.
    pub dbname: String,
    /// What the server shows as the name of the program.
    pub application_name: Option<String>,
    /// Command-line options for the server's process. Pinned parameters override them: [`PINS`](super::PINS).
    pub options: Option<String>,
    /// How long one address may take to accept a connection, and then how long the session may take to start. `None`:
    /// for ever.
    pub connect_timeout: Option<Duration>,
    /// Whether TLS is used, and what is checked.
    pub ssl_mode: SslMode,
    /// The certificates that the server's chain must lead to.
    pub root_certificates: Option<RootCertificates>,
    /// The lists of certificates that were revoked.
    pub revocation_lists: RevocationLists,
    /// How TLS is agreed upon.
    pub ssl_negotiation: SslNegotiation,
    /// Whether the server hears, in clear, by which name it is called.
    pub ssl_sni: bool,
    /// The lowest version of TLS that will do.
    pub ssl_min_version: TlsVersion,
    /// The highest version of TLS that will do.
    pub ssl_max_version: TlsVersion,
    /// Whether a client certificate is shown.
    pub certificate_mode: CertificateMode,
    /// The client certificate, with the chain that leads to its authority.
    pub certificate: Option<FileChoice>,
    /// The client certificate's private key.
    pub certificate_key: Option<FileChoice>,
    /// The methods by which the server may authenticate us. `None`: all.
    pub require_auth: Option<RequiredAuth>,
    /// The operating system's user that a server behind a Unix socket must run as.
    pub require_peer: Option<String>,
    /// Whether SCRAM is bound to the TLS channel.
    pub channel_binding: ChannelBindingMode,
    /// TCP keepalives.
    pub keepalives: Keepalives,
    /// How long sent data may stay unacknowledged before TCP gives up. `None`: the system's default.
    pub tcp_user_timeout: Option<Duration>,
    /// What the server must be able to do.
    pub target_session_attrs: TargetSessionAttrs,
    /// Whether hosts, and the addresses of each, are tried in a random order.
    pub load_balance_hosts: bool,
    pub(super) provenance: Provenance,
}

impl ConnectionSettings {
    /// What was given and by whom, in the order of the keys. Secrets have no value here.
    pub fn provenance(&self) -> &[Given] {
        &self.provenance.0
    }

    /// The same settings for one server alone: where another connection of these settings was made to, so that both
    /// are at the same one.
    #[must_use]
    pub fn pinned_to(&self, endpoint: &Endpoint) -> ConnectionSettings {
        ConnectionSettings { endpoints: vec![endpoint.clone()], load_balance_hosts: false, ..self.clone() }
    }
}

/// A file that a connection needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FileChoice {
    /// It was named: it must be usable where it is needed.
    Named(PathBuf),
    /// libpq's default file, which counts only if it exists.
    Default(PathBuf),
}

impl FileChoice {
    /// Where it lies.
    pub fn path(&self) -> &Path {
        match self {
            FileChoice::Named(path) | FileChoice::Default(path) => path,
        }
    }

    /// Whether it was named.
    pub fn is_named(&self) -> bool {
        matches!(self, FileChoice::Named(_))
    }

    /// The file, unless it is a default one that does not exist.
    pub(super) fn present(&self) -> Option<&Path> {
        (self.is_named() || self.path().exists()).then(|| self.path())
    }
}

/// One place where a server may listen.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Endpoint {
    /// The name the server is known by: what `verify-full` checks.
    pub host: Host,
    /// The address to connect to, instead of looking the host up.
    pub address: Option<IpAddr>,
    /// The port, also part of a socket's file name.
    pub port: u16,
}

/// A host, or the directory of a Unix socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Host {
    /// A host name or a numeric address.
    Tcp(String),
    /// The directory that holds the server's Unix socket. TLS is not used there, whatever `sslmode` says.
    Unix(PathBuf),
}

/// A password. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    /// Keeps a password.
    pub fn new(password: impl Into<String>) -> Password {
        Password(password.into())
    }

    /// The password itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

/// `sslmode`: whether TLS is used, and what of the server's certificate is checked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SslMode {
    /// Never TLS.
    Disable,
    /// Without TLS, and with it if the server wants that.
    Allow,
    /// With TLS, and without it if the server cannot. The default.
    Prefer,
    /// TLS. The certificate is not checked, unless there are root certificates: then like `verify-ca`.
    Require,
    /// TLS, with a certificate whose chain leads to a root certificate.
    VerifyCa,
    /// As `verify-ca`, and the certificate names the host.
    VerifyFull,
}

impl SslMode {
    /// The mode as it is written in a connection string.
    pub fn as_str(self) -> &'static str {
        match self {
            SslMode::Disable => "disable",
            SslMode::Allow => "allow",
            SslMode::Prefer => "prefer",
            SslMode::Require => "require",
            SslMode::VerifyCa => "verify-ca",
            SslMode::VerifyFull => "verify-full",
        }
    }
}

/// `sslrootcert`: the certificates to trust.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RootCertificates {
    /// A PEM file that was named. It must exist where certificates are checked.
    File(PathBuf),
    /// libpq's default file, `~/.postgresql/root.crt`, which counts only if it exists.
    Default(PathBuf),
    /// What the operating system trusts (`sslrootcert=system`).
    System,
}

/// `sslcrl` and `sslcrldir`: where it is said which certificates were revoked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RevocationLists {
    /// A PEM file.
    pub file: Option<FileChoice>,
    /// A directory of PEM files.
    pub directory: Option<PathBuf>,
}

/// `sslnegotiation`: how TLS is agreed upon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SslNegotiation {
    /// PostgreSQL's own way: the client asks for TLS. The default.
    Postgres,
    /// TLS at once, without asking: server 17 and later.
    Direct,
}

/// A version of TLS.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TlsVersion {
    /// TLS 1.2.
    V1_2,
    /// TLS 1.3.
    V1_3,
}

impl TlsVersion {
    /// The version as it is written in a connection string.
    pub fn as_str(self) -> &'static str {
        match self {
            TlsVersion::V1_2 => "TLSv1.2",
            TlsVersion::V1_3 => "TLSv1.3",
        }
    }
}

/// `sslcertmode`: whether a client certificate is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CertificateMode {
    /// Never.
    Disable,
    /// If there is one and the server asks. The default.
    Allow,
    /// The server must ask, and gets one.
    Require,
}

impl CertificateMode {
    /// The mode as it is written in a connection string.
    pub fn as_str(self) -> &'static str {
        match self {
            CertificateMode::Disable => "disable",
            CertificateMode::Allow => "allow",
            CertificateMode::Require => "require",
        }
    }
}

/// `channel_binding`: whether the password exchange is bound to the TLS channel, so that nobody in between can relay
/// it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChannelBindingMode {
    /// Never.
    Disable,
    /// Where the server offers it. The default.
    Prefer,
    /// Always: a server that authenticates in another way is refused.
    Require,
}

impl ChannelBindingMode {
    /// The mode as it is written in a connection string.
    pub fn as_str(self) -> &'static str {
        match self {
            ChannelBindingMode::Disable => "disable",
            ChannelBindingMode::Prefer => "prefer",
            ChannelBindingMode::Require => "require",
        }
    }
}

/// TCP keepalives. A `None` is the system's default.
///
/// A connection string that says nothing of them means 30 s, then 3 times 10 s: a peer that is gone is noticed within a
/// minute, where the systems' default is more than two hours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Keepalives {
    /// Whether they are sent.
    pub enabled: bool,
    /// How long the connection is idle before the first.
    pub idle: Option<Duration>,
    /// The time between two.
    pub interval: Option<Duration>,
    /// How many may stay unanswered.
    pub count: Option<u32>,
}

/// `target_session_attrs`: which servers will do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TargetSessionAttrs {
    /// Every server.
    Any,
    /// A server where transactions may write.
    ReadWrite,
    /// A server where transactions may not write.
    ReadOnly,
    /// A server that is not in recovery.
    Primary,
    /// A server that is in recovery.
    Standby,
    /// A server that is in recovery, or any other if no host is.
    PreferStandby,
}

impl TargetSessionAttrs {
    /// All of them.
    pub(super) const ALL: [TargetSessionAttrs; 6] = {
        use TargetSessionAttrs::{Any, PreferStandby, Primary, ReadOnly, ReadWrite, Standby};
        [Any, ReadWrite, ReadOnly, Primary, Standby, PreferStandby]
    };

    /// The value as it is written in a connection string.
    pub fn as_str(self) -> &'static str {
        match self {
            TargetSessionAttrs::Any => "any",
            TargetSessionAttrs::ReadWrite => "read-write",
            TargetSessionAttrs::ReadOnly => "read-only",
            TargetSessionAttrs::Primary => "primary",
            TargetSessionAttrs::Standby => "standby",
            TargetSessionAttrs::PreferStandby => "prefer-standby",
        }
    }
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
