//! The keys of a connection string: which are known, which variable stands in for each, and which are refused.

/// What becomes of a key that is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// Read and obeyed.
    Accepted,
    /// Known to libpq, not obeyed here: refused with this reason, never ignored in silence.
    Refused(&'static str),
}

/// One key of a connection string.
#[derive(Debug)]
pub(super) struct Key {
    /// The key's name, as libpq spells it.
    pub name: &'static str,
    /// The variable that stands in for the key.
    pub variable: Option<&'static str>,
    /// Whether it is obeyed.
    pub standing: Standing,
}

const fn accepted(name: &'static str, variable: Option<&'static str>) -> Key {
    Key { name, variable, standing: Standing::Accepted }
}

const fn refused(name: &'static str, variable: Option<&'static str>, reason: &'static str) -> Key {
    Key { name, variable, standing: Standing::Refused(reason) }
}

const CLIENT_CERTIFICATE: &str = "client certificates are not supported yet; authenticate with a password";
const REVOCATION: &str = "certificate revocation lists are not supported yet";
const TLS_VERSIONS: &str = "TLS 1.2 and 1.3 are used, and this cannot be narrowed yet";
const GSS: &str = "GSSAPI is not supported; authenticate with a password";

/// Every key of libpq 18. A key that is missing here is unknown.
pub(super) const KEYS: &[Key] = &[
    accepted("application_name", Some("PGAPPNAME")),
    accepted("channel_binding", Some("PGCHANNELBINDING")),
    accepted("client_encoding", None),
    accepted("connect_timeout", Some("PGCONNECT_TIMEOUT")),
    accepted("dbname", Some("PGDATABASE")),
    accepted("fallback_application_name", None),
    accepted("gssencmode", Some("PGGSSENCMODE")),
    accepted("host", Some("PGHOST")),
    accepted("hostaddr", Some("PGHOSTADDR")),
    accepted("keepalives", None),
    accepted("keepalives_count", None),
    accepted("keepalives_idle", None),
    accepted("keepalives_interval", None),
    accepted("load_balance_hosts", Some("PGLOADBALANCEHOSTS")),
    accepted("options", Some("PGOPTIONS")),
    accepted("password", Some("PGPASSWORD")),
    accepted("port", Some("PGPORT")),
    accepted("sslmode", Some("PGSSLMODE")),
    accepted("sslnegotiation", Some("PGSSLNEGOTIATION")),
    accepted("sslrootcert", Some("PGSSLROOTCERT")),
    accepted("target_session_attrs", Some("PGTARGETSESSIONATTRS")),
    accepted("tcp_user_timeout", None),
    accepted("user", Some("PGUSER")),
    refused("gssdelegation", Some("PGGSSDELEGATION"), GSS),
    refused("gsslib", Some("PGGSSLIB"), GSS),
    refused("krbsrvname", None, GSS),
    refused("max_protocol_version", Some("PGMAXPROTOCOLVERSION"), "protocol 3.0 is always used"),
    refused("min_protocol_version", Some("PGMINPROTOCOLVERSION"), "protocol 3.0 is always used"),
    refused("oauth_client_id", None, "OAuth is not supported"),
    refused("oauth_client_secret", None, "OAuth is not supported"),
    refused("oauth_issuer", None, "OAuth is not supported"),
    refused("oauth_scope", None, "OAuth is not supported"),
    refused("passfile", Some("PGPASSFILE"), "password files are not supported yet; give the password itself"),
    refused(
        "replication",
        None,
        "which connections replicate is decided by the command, not by the string; leave it out",
    ),
    refused(
        "require_auth",
        Some("PGREQUIREAUTH"),
        "the method cannot be pinned yet; channel_binding=require pins SCRAM",
    ),
    refused("requirepeer", Some("PGREQUIREPEER"), "the server's user cannot be checked yet"),
    refused("requiressl", Some("PGREQUIRESSL"), "write sslmode=require"),
    refused("scram_client_key", None, "give the password instead"),
    refused("scram_server_key", None, "give the password instead"),
    refused("service", Some("PGSERVICE"), "service files are not supported yet; write the keys here"),
    refused("servicefile", None, "service files are not supported yet; write the keys here"),
    refused("ssl_max_protocol_version", Some("PGSSLMAXPROTOCOLVERSION"), TLS_VERSIONS),
    refused("ssl_min_protocol_version", Some("PGSSLMINPROTOCOLVERSION"), TLS_VERSIONS),
    refused("sslcert", Some("PGSSLCERT"), CLIENT_CERTIFICATE),
    refused("sslcertmode", Some("PGSSLCERTMODE"), CLIENT_CERTIFICATE),
    refused("sslcompression", Some("PGSSLCOMPRESSION"), "TLS is never compressed; leave it out"),
    refused("sslcrl", Some("PGSSLCRL"), REVOCATION),
    refused("sslcrldir", Some("PGSSLCRLDIR"), REVOCATION),
    refused("sslkey", Some("PGSSLKEY"), CLIENT_CERTIFICATE),
    refused("sslkeylogfile", None, "session keys are never written down"),
    refused("sslpassword", None, CLIENT_CERTIFICATE),
    refused("sslsni", Some("PGSSLSNI"), "the server's name is always sent; leave it out"),
];

/// The key of this name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// The accepted key that looks most like `name`, if any looks like it.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    let squeezed: String = name.to_ascii_lowercase().chars().filter(|c| *c != '-' && *c != '_').collect();
    let alias = match squeezed.as_str() {
        "database" | "db" => Some("dbname"),
        "username" => Some("user"),
        "pass" | "pwd" | "passwd" => Some("password"),
        "server" | "hostname" => Some("host"),
        "schema" | "searchpath" | "currentschema" => Some("options"),
        "timeout" => Some("connect_timeout"),
        "rootcert" | "cacert" => Some("sslrootcert"),
        _ => None,
    };
    alias.or_else(|| {
        KEYS.iter()
            .filter(|key| key.standing == Standing::Accepted)
            .map(|key| (strsim::damerau_levenshtein(&squeezed, &key.name.replace('_', "")), key.name))
            .filter(|(distance, known)| *distance * 3 <= known.len())
            .min()
            .map(|(_, known)| known)
    })
}
