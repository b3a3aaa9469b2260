//! What a connection string says.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::environment::Environment;
use super::keys::{KEYS, Key, Standing};
use super::parse;
use super::parse_error::ParseConnectionError;

/// Where Debian, Red Hat and the other packagers put the server's socket.
const SOCKET_DIRECTORY: &str = "/var/run/postgresql";

const PORT: u16 = 5432;

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
    /// Whether SCRAM is bound to the TLS channel.
    pub channel_binding: ChannelBindingMode,
    /// TCP keepalives.
    pub keepalives: Keepalives,
    /// How long sent data may stay unacknowledged before TCP gives up. `None`: the system's default.
    pub tcp_user_timeout: Option<Duration>,
    /// What the server must be able to do.
    pub target_session_attrs: TargetSessionAttrs,
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
    /// A server that is not in recovery.
    Primary,
}

impl ConnectionSettings {
    /// Reads a connection string, a URI or keys and values, and completes it from `environment`.
    ///
    /// ```
    /// use pgonce::connect::{ConnectionSettings, Environment};
    ///
    /// let text = "postgresql://ann:s%40cret@db1:5433,db2/shop?sslmode=verify-full";
    /// let settings = ConnectionSettings::parse(text, &Environment::empty())?;
    /// assert_eq!(settings.password.as_ref().unwrap().reveal(), "s@cret");
    /// assert_eq!(settings.to_string(), "postgresql://ann@db1:5433,db2:5432/shop?sslmode=verify-full");
    /// # Ok::<(), pgonce::connect::ParseConnectionError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// What is malformed, unknown or not supported, each by its place. No error quotes a value.
    pub fn parse(text: &str, environment: &Environment) -> Result<ConnectionSettings, ParseConnectionError> {
        let values = Values::gather(text, environment)?;
        values.refuse_what_is_not_supported()?;
        let user = match (values.text("user"), environment.os_user()) {
            (Some(user), _) => user.to_owned(),
            (None, Some(user)) => user.to_owned(),
            (None, None) => return Err(ParseConnectionError::MissingUser),
        };
        let (ssl_mode, root_certificates) = values.tls(environment)?;
        Ok(ConnectionSettings {
            endpoints: values.endpoints()?,
            dbname: values.text("dbname").unwrap_or(&user).to_owned(),
            user,
            password: values.text("password").map(Password::new),
            application_name: values
                .text("application_name")
                .or_else(|| values.text("fallback_application_name"))
                .map(str::to_owned),
            options: values.text("options").map(str::to_owned),
            connect_timeout: values.number("connect_timeout")?.filter(|seconds| *seconds > 0).map(|seconds| {
                // Like libpq: one second is too easily over before it began.
                Duration::from_secs(seconds.max(2).unsigned_abs().into())
            }),
            ssl_mode,
            root_certificates,
            channel_binding: values.choice(
                "channel_binding",
                ChannelBindingMode::Prefer,
                &[
                    ("disable", ChannelBindingMode::Disable),
                    ("prefer", ChannelBindingMode::Prefer),
                    ("require", ChannelBindingMode::Require),
                ],
            )?,
            keepalives: Keepalives {
                enabled: values.number("keepalives")? != Some(0),
                idle: Some(Duration::from_secs(values.positive("keepalives_idle")?.unwrap_or(30).into())),
                interval: Some(Duration::from_secs(values.positive("keepalives_interval")?.unwrap_or(10).into())),
                count: values.positive("keepalives_count")?.or(Some(3)),
            },
            tcp_user_timeout: values.positive("tcp_user_timeout")?.map(|n| Duration::from_millis(n.into())),
            target_session_attrs: values.choice(
                "target_session_attrs",
                TargetSessionAttrs::Any,
                &[
                    ("any", TargetSessionAttrs::Any),
                    ("read-write", TargetSessionAttrs::ReadWrite),
                    ("primary", TargetSessionAttrs::Primary),
                ],
            )?,
        })
    }
}

/// A value, and where it comes from.
struct Value {
    key: &'static Key,
    text: String,
    variable: Option<&'static str>,
}

impl Value {
    fn invalid(&self, reason: impl Into<String>) -> ParseConnectionError {
        ParseConnectionError::InvalidValue { key: self.key.name, variable: self.variable, reason: reason.into() }
    }
}

/// The values of a connection string, completed from the environment.
struct Values(BTreeMap<&'static str, Value>);

impl Values {
    fn gather(text: &str, environment: &Environment) -> Result<Values, ParseConnectionError> {
        let mut values = BTreeMap::new();
        for (key, text) in parse::pairs(text)? {
            values.insert(key.name, Value { key, text, variable: None });
        }
        for key in KEYS {
            let Some(variable) = key.variable else { continue };
            let Some(found) = environment.get(variable) else { continue };
            if values.contains_key(key.name) {
                continue;
            }
            let invalid = |reason: &str| ParseConnectionError::InvalidValue {
                key: key.name,
                variable: Some(variable),
                reason: reason.to_owned(),
            };
            let text = found.to_str().ok_or_else(|| invalid("it is not UTF-8"))?.to_owned();
            if text.contains('\0') {
                return Err(invalid("it holds a NUL character"));
            }
            values.insert(key.name, Value { key, text, variable: Some(variable) });
        }
        Ok(Values(values))
    }

    fn refuse_what_is_not_supported(&self) -> Result<(), ParseConnectionError> {
        for value in self.0.values() {
            let Standing::Refused(reason) = value.key.standing else { continue };
            // A variable set for other programs does no harm where it would not be looked at.
            let idle = value.variable.is_some()
                && (value.text.is_empty() || (value.key.name == "passfile" && self.text("password").is_some()));
            if !idle {
                return Err(ParseConnectionError::UnsupportedKey {
                    key: value.key.name,
                    variable: value.variable,
                    reason,
                });
            }
        }
        self.choice("sslnegotiation", (), &[("postgres", ())])?;
        self.choice("gssencmode", (), &[("disable", ()), ("prefer", ())])?;
        self.choice("load_balance_hosts", (), &[("disable", ())])?;
        self.choice("client_encoding", (), &[("UTF8", ()), ("utf8", ()), ("UTF-8", ()), ("utf-8", ()), ("auto", ())])
    }

    /// The value of a key that means nothing when empty.
    fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(|value| value.text.as_str()).filter(|text| !text.is_empty())
    }

    fn choice<T: Copy>(&self, key: &str, default: T, choices: &[(&str, T)]) -> Result<T, ParseConnectionError> {
        let Some(value) = self.0.get(key) else { return Ok(default) };
        let chosen = choices.iter().find(|(name, _)| *name == value.text).map(|(_, chosen)| *chosen);
        chosen.ok_or_else(|| {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            value.invalid(format!("accepted: {}", names.join(", ")))
        })
    }

    fn number(&self, key: &str) -> Result<Option<i32>, ParseConnectionError> {
        let Some(value) = self.0.get(key) else { return Ok(None) };
        value.text.trim().parse().map(Some).map_err(|_| value.invalid("it is not a whole number"))
    }

    /// A number of which 0 means the system's default.
    fn positive(&self, key: &str) -> Result<Option<u32>, ParseConnectionError> {
        let Some(number) = self.number(key)? else { return Ok(None) };
        match u32::try_from(number) {
            Ok(number) => Ok(Some(number).filter(|number| *number > 0)),
            Err(_) => Err(self.0[key].invalid("it is negative")),
        }
    }

    fn tls(&self, environment: &Environment) -> Result<(SslMode, Option<RootCertificates>), ParseConnectionError> {
        use SslMode::{Allow, Disable, Prefer, Require, VerifyCa, VerifyFull};
        let roots = match self.text("sslrootcert") {
            Some("system") => Some(RootCertificates::System),
            Some(path) => Some(RootCertificates::File(path.into())),
            None => environment
                .get("HOME")
                .filter(|home| !home.is_empty())
                .map(|home| RootCertificates::Default(PathBuf::from(home).join(".postgresql/root.crt"))),
        };
        // Like libpq: who trusts every public authority must check the name too.
        let system = roots == Some(RootCertificates::System);
        let default = if system { VerifyFull } else { Prefer };
        let modes = [Disable, Allow, Prefer, Require, VerifyCa, VerifyFull].map(|mode| (mode.as_str(), mode));
        let mode = self.choice("sslmode", default, &modes)?;
        if system && mode != VerifyFull {
            return Err(self.0["sslmode"].invalid("with sslrootcert=system it must be verify-full, or left out"));
        }
        Ok((mode, roots))
    }

    fn endpoints(&self) -> Result<Vec<Endpoint>, ParseConnectionError> {
        let list = |key: &str| self.text(key).map(|text| text.split(',').map(str::trim).collect::<Vec<_>>());
        let (hosts, addresses) = (list("host"), list("hostaddr"));
        let ports = self.ports(list("port").unwrap_or_default())?;
        if hosts.is_none() && addresses.is_none() {
            let port = match ports.as_slice() {
                [] => PORT,
                [port] => *port,
                _ => return Err(self.0["port"].invalid("several ports, and no host")),
            };
            let hosts = [Host::Unix(SOCKET_DIRECTORY.into()), Host::Tcp("localhost".to_owned())];
            return Ok(hosts.map(|host| Endpoint { host, address: None, port }).into());
        }
        let count = hosts.as_ref().or(addresses.as_ref()).map_or(0, Vec::len);
        if addresses.as_ref().is_some_and(|addresses| addresses.len() != count) {
            return Err(self.0["hostaddr"].invalid("there must be as many addresses as hosts"));
        }
        if ports.len() > 1 && ports.len() != count {
            return Err(self.0["port"].invalid("there must be one port, or as many as hosts"));
        }
        (0..count)
            .map(|index| {
                let port = ports.get(index).or(ports.first()).copied().unwrap_or(PORT);
                let host = hosts.as_ref().map_or("", |hosts| hosts[index]);
                let address = addresses.as_ref().map_or("", |addresses| addresses[index]);
                self.endpoint(host, address, port)
            })
            .collect()
    }

    fn ports(&self, texts: Vec<&str>) -> Result<Vec<u16>, ParseConnectionError> {
        let port = |text: &str| match text.parse() {
            _ if text.is_empty() => Ok(PORT),
            Ok(0) | Err(_) => Err(self.0["port"].invalid("a port is a number from 1 to 65535")),
            Ok(port) => Ok(port),
        };
        texts.into_iter().map(port).collect()
    }

    fn endpoint(&self, host: &str, address: &str, port: u16) -> Result<Endpoint, ParseConnectionError> {
        if host.starts_with('@') {
            return Err(self.0["host"].invalid("abstract Unix sockets are not supported"));
        }
        if address.is_empty() {
            let host = match host {
                "" => Host::Unix(SOCKET_DIRECTORY.into()),
                path if path.starts_with('/') => Host::Unix(path.into()),
                name => Host::Tcp(name.to_owned()),
            };
            return Ok(Endpoint { host, address: None, port });
        }
        let parsed = address.parse().map_err(|_| self.0["hostaddr"].invalid("it is not an IPv4 or IPv6 address"))?;
        let host = if host.is_empty() { address } else { host };
        Ok(Endpoint { host: Host::Tcp(host.to_owned()), address: Some(parsed), port })
    }
}

/// Writes `text` so that a URI's parser reads it back.
fn percent_encoded(text: &str) -> String {
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

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
