//! From the values of a connection string to what a connection is opened with.

use std::path::PathBuf;
use std::time::Duration;

use super::auth_methods::RequiredAuth;
use super::environment::Environment;
use super::origin::Provenance;
use super::parse_error::ParseConnectionError;
use super::settings::{
    CertificateMode, ChannelBindingMode, ConnectionSettings, Keepalives, Password, RevocationLists, RootCertificates,
    SslMode, SslNegotiation, TargetSessionAttrs, TlsVersion,
};
use super::values::Values;

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
    /// What is malformed, unknown or not supported, each by its place: the byte of the string, the line of the service
    /// file, the variable. No error quotes a value.
    pub fn parse(text: &str, environment: &Environment) -> Result<ConnectionSettings, ParseConnectionError> {
        let values = Values::gather(text, environment)?;
        let user = match (values.text("user"), environment.os_user()) {
            (Some(user), _) => user.to_owned(),
            (None, Some(user)) => user.to_owned(),
            (None, None) => return Err(ParseConnectionError::MissingUser),
        };
        let (ssl_mode, root_certificates) = tls(&values, environment)?;
        let ssl_negotiation = negotiation(&values, ssl_mode)?;
        let (ssl_min_version, ssl_max_version) = tls_versions(&values)?;
        Ok(ConnectionSettings {
            endpoints: values.endpoints()?,
            dbname: values.text("dbname").unwrap_or(&user).to_owned(),
            user,
            password: values.text("password").map(Password::new),
            passfile: values.file("passfile", environment, ".pgpass"),
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
            revocation_lists: RevocationLists {
                file: values.file("sslcrl", environment, ".postgresql/root.crl"),
                directory: values.text("sslcrldir").map(PathBuf::from),
            },
            ssl_negotiation,
            ssl_sni: values.choice("sslsni", true, &[("0", false), ("1", true)])?,
            ssl_min_version,
            ssl_max_version,
            certificate_mode: values.choice(
                "sslcertmode",
                CertificateMode::Allow,
                &[CertificateMode::Disable, CertificateMode::Allow, CertificateMode::Require]
                    .map(|mode| (mode.as_str(), mode)),
            )?,
            certificate: values.file("sslcert", environment, ".postgresql/postgresql.crt"),
            certificate_key: values.file("sslkey", environment, ".postgresql/postgresql.key"),
            require_auth: match values.text("require_auth") {
                Some(text) => Some(RequiredAuth::parse(text).map_err(|reason| values.invalid("require_auth", reason))?),
                None => None,
            },
            require_peer: values.text("requirepeer").map(str::to_owned),
            channel_binding: values.choice(
                "channel_binding",
                ChannelBindingMode::Prefer,
                &[ChannelBindingMode::Disable, ChannelBindingMode::Prefer, ChannelBindingMode::Require]
                    .map(|mode| (mode.as_str(), mode)),
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
                &TargetSessionAttrs::ALL.map(|attrs| (attrs.as_str(), attrs)),
            )?,
            load_balance_hosts: values.choice("load_balance_hosts", false, &[("disable", false), ("random", true)])?,
            provenance: Provenance(values.given()),
        })
    }
}

fn tls(
    values: &Values,
    environment: &Environment,
) -> Result<(SslMode, Option<RootCertificates>), ParseConnectionError> {
    use SslMode::{Allow, Disable, Prefer, Require, VerifyCa, VerifyFull};
    let roots = match values.text("sslrootcert") {
        Some("system") => Some(RootCertificates::System),
        Some(path) => Some(RootCertificates::File(path.into())),
        None => environment.home().map(|home| RootCertificates::Default(home.join(".postgresql/root.crt"))),
    };
    // Like libpq: who trusts every public authority must check the name too.
    let system = roots == Some(RootCertificates::System);
    let default = if system { VerifyFull } else { Prefer };
    let modes = [Disable, Allow, Prefer, Require, VerifyCa, VerifyFull].map(|mode| (mode.as_str(), mode));
    let mode = values.choice("sslmode", default, &modes)?;
    if system && mode != VerifyFull {
        return Err(values.invalid("sslmode", "with sslrootcert=system it must be verify-full, or left out"));
    }
    Ok((mode, roots))
}

fn negotiation(values: &Values, mode: SslMode) -> Result<SslNegotiation, ParseConnectionError> {
    let choices = [("postgres", SslNegotiation::Postgres), ("direct", SslNegotiation::Direct)];
    let negotiation = values.choice("sslnegotiation", SslNegotiation::Postgres, &choices)?;
    if negotiation == SslNegotiation::Direct && mode < SslMode::Require {
        return Err(values.invalid("sslnegotiation", "direct needs sslmode=require, verify-ca or verify-full"));
    }
    Ok(negotiation)
}

/// The lowest and the highest version of TLS. TLS 1.2 is the lowest that is spoken, whatever lower one would do.
fn tls_versions(values: &Values) -> Result<(TlsVersion, TlsVersion), ParseConnectionError> {
    use TlsVersion::{V1_2, V1_3};
    let lowest = [("TLSv1", V1_2), ("TLSv1.1", V1_2), ("TLSv1.2", V1_2), ("TLSv1.3", V1_3), ("", V1_2)];
    let highest = [("TLSv1.2", V1_2), ("TLSv1.3", V1_3), ("", V1_3)];
    let min = values.choice("ssl_min_protocol_version", V1_2, &lowest)?;
    let max = values.choice("ssl_max_protocol_version", V1_3, &highest)?;
    if min > max {
        return Err(values.invalid("ssl_max_protocol_version", "it is lower than ssl_min_protocol_version"));
    }
    Ok((min, max))
}
