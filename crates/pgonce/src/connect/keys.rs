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

const GSS: &str = "GSSAPI is not supported; authenticate with a password or a client certificate";
const OAUTH: &str = "OAuth is not supported; authenticate with a password or a client certificate";
const SCRAM_KEYS: &str = "give the password instead";

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
    accepted("max_protocol_version", Some("PGMAXPROTOCOLVERSION")),
    accepted("min_protocol_version", Some("PGMINPROTOCOLVERSION")),
    accepted("options", Some("PGOPTIONS")),
    accepted("passfile", Some("PGPASSFILE")),
    accepted("password", Some("PGPASSWORD")),
    accepted("port", Some("PGPORT")),
    accepted("require_auth", Some("PGREQUIREAUTH")),
    accepted("requirepeer", Some("PGREQUIREPEER")),
    accepted("service", Some("PGSERVICE")),
    accepted("servicefile", Some("PGSERVICEFILE")),
    accepted("ssl_max_protocol_version", Some("PGSSLMAXPROTOCOLVERSION")),
    accepted("ssl_min_protocol_version", Some("PGSSLMINPROTOCOLVERSION")),
    accepted("sslcert", Some("PGSSLCERT")),
    accepted("sslcertmode", Some("PGSSLCERTMODE")),
    accepted("sslcompression", Some("PGSSLCOMPRESSION")),
    accepted("sslcrl", Some("PGSSLCRL")),
    accepted("sslcrldir", Some("PGSSLCRLDIR")),
    accepted("sslkey", Some("PGSSLKEY")),
    accepted("sslmode", Some("PGSSLMODE")),
    accepted("sslnegotiation", Some("PGSSLNEGOTIATION")),
    accepted("sslrootcert", Some("PGSSLROOTCERT")),
    accepted("sslsni", Some("PGSSLSNI")),
    accepted("target_session_attrs", Some("PGTARGETSESSIONATTRS")),
    accepted("tcp_user_timeout", None),
    accepted("user", Some("PGUSER")),
    refused("gssdelegation", Some("PGGSSDELEGATION"), GSS),
    refused("gsslib", Some("PGGSSLIB"), GSS),
    refused("krbsrvname", Some("PGKRBSRVNAME"), GSS),
    refused("oauth_client_id", None, OAUTH),
    refused("oauth_client_secret", None, OAUTH),
    refused("oauth_issuer", None, OAUTH),
    refused("oauth_scope", None, OAUTH),
    refused(
        "replication",
        None,
        "which connections replicate is decided by the command, not by the string; leave it out",
    ),
    refused("requiressl", Some("PGREQUIRESSL"), "write sslmode=require"),
    refused("scram_client_key", None, SCRAM_KEYS),
    refused("scram_server_key", None, SCRAM_KEYS),
    refused("sslkeylogfile", None, "session keys are never written down"),
    refused(
        "sslpassword",
        None,
        "a service that starts by itself would keep it beside the key it protects; decrypt the key once, with \
         `openssl pkcs8 -in KEY -out NEW_KEY`, and let only its owner read it: chmod 0600",
    ),
];

impl Key {
    /// Whether the key only concerns a method of authentication that is never used: a variable that other programs
    /// need does no harm then.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.standing, Standing::Refused(GSS))
    }
}

/// The variables that libpq reads: what a child process must not inherit where it is told everything.
pub(super) fn variables() -> impl Iterator<Item = &'static str> {
    let others = ["PGCLIENTENCODING", "PGSSLKEYLOGFILE", "PGREALM", "PGSYSCONFDIR"];
    KEYS.iter().filter_map(|key| key.variable).chain(others)
}

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
        "clientcert" => Some("sslcert"),
        "pgpass" | "pgpassfile" | "passwordfile" => Some("passfile"),
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
