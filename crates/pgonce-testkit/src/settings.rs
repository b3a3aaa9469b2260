//! What a cluster is made with.

use std::ffi::OsString;
use std::fmt::Write as _;

use crate::{Cluster, KitError, TlsFiles};

/// Collects what a cluster is made with; see [`Cluster::builder`].
#[derive(Clone, Debug)]
pub struct ClusterBuilder {
    pub(crate) major: u32,
    pub(crate) name: String,
    pub(crate) conf: Vec<(String, String)>,
    pub(crate) hba: Vec<String>,
    pub(crate) initdb: Vec<String>,
    pub(crate) environment: Vec<(String, OsString)>,
    pub(crate) roles: Vec<(String, String)>,
    pub(crate) tls: Option<TlsFiles>,
}

/// Small, crash-safe, and ready for every kind of replication.
const DEFAULTS: &[(&str, &str)] = &[
    ("listen_addresses", "127.0.0.1"),
    ("wal_level", "logical"),
    ("max_replication_slots", "20"),
    ("max_wal_senders", "20"),
    ("max_prepared_transactions", "20"),
    ("max_connections", "100"),
    ("shared_buffers", "128MB"),
    ("huge_pages", "off"),
    ("max_wal_size", "4GB"),
    ("fsync", "on"),
    ("autovacuum", "on"),
    ("log_line_prefix", "%m [%p] %q%a "),
];

impl ClusterBuilder {
    pub(crate) fn new(major: u32) -> ClusterBuilder {
        ClusterBuilder {
            major,
            name: "cluster".to_owned(),
            conf: DEFAULTS.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            hba: Vec::new(),
            initdb: Vec::new(),
            environment: Vec::new(),
            roles: Vec::new(),
            tls: None,
        }
    }

    /// Names the cluster, in messages and in its folder's name.
    pub fn name(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    /// Sets a parameter of `postgresql.conf`.
    pub fn conf(mut self, name: &str, value: &str) -> Self {
        set(&mut self.conf, name, value);
        self
    }

    /// Puts lines of `pg_hba.conf` before those that trust every connection from this machine.
    ///
    /// [`Cluster::connect`] uses the Unix socket and is not subject to them.
    pub fn hba(mut self, lines: &str) -> Self {
        self.hba.extend(lines.lines().map(str::to_owned));
        self
    }

    /// Passes one more word to `initdb`.
    pub fn initdb(mut self, word: &str) -> Self {
        self.initdb.push(word.to_owned());
        self
    }

    /// Sets a variable of the server's environment.
    pub fn environment(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    /// Adds a superuser that has to give a password over TCP (SCRAM).
    pub fn password_role(mut self, role: &str, password: &str) -> Self {
        for database in ["all", "replication"] {
            self.hba.push(format!("host {database} \"{role}\" 127.0.0.1/32 scram-sha-256"));
        }
        self.roles.push((role.to_owned(), password.to_owned()));
        self
    }

    /// Switches TLS on. Connections without it are still taken, unless [`require_tls`](Self::require_tls) says
    /// otherwise.
    pub fn tls(mut self, files: TlsFiles) -> Self {
        for (name, value) in [("ssl", "on"), ("ssl_cert_file", "server.crt"), ("ssl_key_file", "server.key")] {
            set(&mut self.conf, name, value);
        }
        self.tls = Some(files);
        self
    }

    /// Asks clients for a certificate of the authority that signed the server's own. What is asked of whom is up to
    /// [`hba`](Self::hba).
    pub fn client_certificates(self) -> Self {
        self.conf("ssl_ca_file", "ca.crt")
    }

    /// Refuses connections over TCP without TLS.
    pub fn require_tls(mut self) -> Self {
        for database in ["all", "replication"] {
            self.hba.insert(0, format!("hostnossl {database} all all reject"));
        }
        self
    }

    /// Makes the cluster and starts its server.
    ///
    /// # Errors
    ///
    /// [`KitError::MissingServer`] with the command to type; [`KitError::DidNotStart`] with the end of the server's
    /// log.
    pub async fn start(self) -> Result<Cluster, KitError> {
        Cluster::create(self).await
    }

    pub(crate) fn hba_text(&self) -> String {
        let mut text = String::from("local all all trust\nlocal replication all trust\n");
        for line in &self.hba {
            text.push_str(line);
            text.push('\n');
        }
        text.push_str("host all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n");
        text
    }
}

/// Sets `name` in a list of settings, or adds it.
pub(crate) fn set(conf: &mut Vec<(String, String)>, name: &str, value: &str) {
    match conf.iter_mut().find(|(known, _)| known == name) {
        Some((_, old)) => value.clone_into(old),
        None => conf.push((name.to_owned(), value.to_owned())),
    }
}

/// The settings as lines of `postgresql.conf`.
pub(crate) fn conf_text(conf: &[(String, String)]) -> String {
    conf.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{name} = '{}'", value.replace('\'', "''"));
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_given_twice_counts_once_and_quotes_are_doubled() {
        let mut conf = Vec::new();
        set(&mut conf, "application_name", "first");
        set(&mut conf, "application_name", "it's");
        assert_eq!(conf_text(&conf), "application_name = 'it''s'\n");
    }

    #[test]
    fn lines_of_a_test_stand_before_those_that_trust() {
        let text = ClusterBuilder::new(15).password_role("app", "secret").require_tls().hba_text();
        let line = |start: &str| text.lines().position(|line| line.starts_with(start)).unwrap();
        assert!(line("local all all trust") < line("hostnossl all"));
        assert!(line("hostnossl replication") < line("host all \"app\""));
        assert!(line("host replication \"app\"") < line("host all all"));
    }
}
