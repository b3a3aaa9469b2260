//! The same connection for libpq's own programs, `psql` and `pg_dump`: as variables of their environment.
//!
//! No part of it stands in the command line, which every user of the machine can read.

use std::ffi::OsString;
use std::process::Command;

use super::keys;
use super::settings::{
    CertificateMode, ChannelBindingMode, ConnectionSettings, Endpoint, FileChoice, Host, RootCertificates,
    SslNegotiation, TargetSessionAttrs, TlsVersion,
};

impl ConnectionSettings {
    /// The variables that make libpq connect as these settings say: where, as whom, with which password, TLS and
    /// certificates. TCP keepalives and `tcp_user_timeout` have no variables and stay libpq's own.
    ///
    /// The password is among them: set them for a child process, print them never. [`LibpqCommand::connect_as`] does.
    pub fn libpq_environment(&self) -> Vec<(&'static str, OsString)> {
        let mut variables: Vec<(&'static str, OsString)> = vec![
            ("PGHOST", list(&self.endpoints, host)),
            ("PGPORT", list(&self.endpoints, |endpoint| endpoint.port.to_string().into())),
            ("PGUSER", self.user.clone().into()),
            ("PGDATABASE", self.dbname.clone().into()),
            ("PGSSLMODE", self.ssl_mode.as_str().into()),
            ("PGGSSENCMODE", "disable".into()),
            ("PGCLIENTENCODING", "UTF8".into()),
        ];
        let mut set = |name: &'static str, value: Option<OsString>| variables.extend(value.map(|value| (name, value)));
        let text = |text: &Option<String>| text.clone().map(OsString::from);
        let file = |choice: &Option<FileChoice>| {
            choice.as_ref().and_then(|choice| choice.present()).map(|path| path.as_os_str().to_owned())
        };
        if self.endpoints.iter().any(|endpoint| endpoint.address.is_some()) {
            let address = |endpoint: &Endpoint| endpoint.address.map(|a| a.to_string()).unwrap_or_default().into();
            set("PGHOSTADDR", Some(list(&self.endpoints, address)));
        }
        match &self.password {
            Some(password) => set("PGPASSWORD", Some(password.reveal().into())),
            None => set("PGPASSFILE", file(&self.passfile)),
        }
        set("PGAPPNAME", text(&self.application_name));
        set("PGOPTIONS", text(&self.options));
        set("PGCONNECT_TIMEOUT", self.connect_timeout.map(|limit| limit.as_secs().to_string().into()));
        set(
            "PGSSLROOTCERT",
            match &self.root_certificates {
                Some(RootCertificates::System) => Some("system".into()),
                Some(RootCertificates::File(path)) => Some(path.into()),
                Some(RootCertificates::Default(path)) => path.exists().then(|| path.into()),
                None => None,
            },
        );
        set("PGSSLCRL", file(&self.revocation_lists.file));
        set("PGSSLCRLDIR", self.revocation_lists.directory.as_ref().map(OsString::from));
        if self.ssl_negotiation == SslNegotiation::Direct {
            set("PGSSLNEGOTIATION", Some("direct".into()));
        }
        if !self.ssl_sni {
            set("PGSSLSNI", Some("0".into()));
        }
        set("PGSSLMINPROTOCOLVERSION", Some(self.ssl_min_version.as_str().into()));
        if self.ssl_max_version != TlsVersion::V1_3 {
            set("PGSSLMAXPROTOCOLVERSION", Some(self.ssl_max_version.as_str().into()));
        }
        if self.certificate_mode != CertificateMode::Allow {
            set("PGSSLCERTMODE", Some(self.certificate_mode.as_str().into()));
        }
        if self.certificate_mode != CertificateMode::Disable {
            set("PGSSLCERT", file(&self.certificate));
            set("PGSSLKEY", file(&self.certificate_key));
        }
        set("PGREQUIREAUTH", self.require_auth.as_ref().map(|required| required.to_string().into()));
        set("PGREQUIREPEER", text(&self.require_peer));
        if self.channel_binding != ChannelBindingMode::Prefer {
            set("PGCHANNELBINDING", Some(self.channel_binding.as_str().into()));
        }
        if self.target_session_attrs != TargetSessionAttrs::Any {
            set("PGTARGETSESSIONATTRS", Some(self.target_session_attrs.as_str().into()));
        }
        if self.load_balance_hosts {
            set("PGLOADBALANCEHOSTS", Some("random".into()));
        }
        variables
    }
}

/// Commands that connect by libpq.
pub trait LibpqCommand {
    /// Lets the command connect as `settings` say, whatever this process's own environment says.
    fn connect_as(&mut self, settings: &ConnectionSettings) -> &mut Self;
}

impl LibpqCommand for Command {
    fn connect_as(&mut self, settings: &ConnectionSettings) -> &mut Command {
        for name in keys::variables() {
            self.env_remove(name);
        }
        self.envs(settings.libpq_environment())
    }
}

fn host(endpoint: &Endpoint) -> OsString {
    match &endpoint.host {
        Host::Tcp(host) => host.into(),
        Host::Unix(directory) => directory.into(),
    }
}

/// One value for each endpoint, separated by commas.
fn list(endpoints: &[Endpoint], value: impl Fn(&Endpoint) -> OsString) -> OsString {
    let mut list = OsString::new();
    for (index, endpoint) in endpoints.iter().enumerate() {
        if index > 0 {
            list.push(",");
        }
        list.push(value(endpoint));
    }
    list
}
