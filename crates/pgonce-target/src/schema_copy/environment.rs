//! A connection for `pg_dump`, in its environment: its arguments can be read by every user of the machine.

use std::ffi::OsString;

use pgonce::connect::{ChannelBindingMode, ConnectionSettings, Host, RootCertificates, TargetSessionAttrs};

/// What `pg_dump` has to see as pgonce does: the text of constants and defaults depends on it.
const PINS: &str = "-c standard_conforming_strings=on -c DateStyle=ISO,MDY -c IntervalStyle=postgres \
    -c statement_timeout=0 -c idle_in_transaction_session_timeout=0";

/// libpq's variables for these settings. They are the whole of what `pg_dump` is told of the connection.
pub(super) fn variables(settings: &ConnectionSettings) -> Vec<(&'static str, OsString)> {
    let mut variables: Vec<(&'static str, OsString)> = Vec::new();
    let mut set = |name, value: OsString| variables.push((name, value));
    let hosts = settings.endpoints.iter().map(|endpoint| match &endpoint.host {
        Host::Tcp(host) => OsString::from(host),
        Host::Unix(directory) => directory.clone().into_os_string(),
    });
    set("PGHOST", joined(hosts));
    if settings.endpoints.iter().any(|endpoint| endpoint.address.is_some()) {
        let addresses = settings.endpoints.iter();
        set("PGHOSTADDR", joined(addresses.map(|e| e.address.map_or(OsString::new(), |a| a.to_string().into()))));
    }
    set("PGPORT", joined(settings.endpoints.iter().map(|endpoint| endpoint.port.to_string().into())));
    set("PGUSER", settings.user.clone().into());
    set("PGDATABASE", settings.dbname.clone().into());
    if let Some(password) = &settings.password {
        set("PGPASSWORD", password.reveal().into());
    }
    set("PGSSLMODE", settings.ssl_mode.as_str().into());
    match &settings.root_certificates {
        Some(RootCertificates::File(path)) => set("PGSSLROOTCERT", path.clone().into_os_string()),
        Some(RootCertificates::System) => set("PGSSLROOTCERT", "system".into()),
        // libpq's own default, found by HOME.
        _ => {}
    }
    // Versions before 13 do not know the variable, and their default is the same.
    match settings.channel_binding {
        ChannelBindingMode::Disable => set("PGCHANNELBINDING", "disable".into()),
        ChannelBindingMode::Require => set("PGCHANNELBINDING", "require".into()),
        ChannelBindingMode::Prefer => {}
    }
    match settings.target_session_attrs {
        TargetSessionAttrs::Any => {}
        TargetSessionAttrs::ReadWrite => set("PGTARGETSESSIONATTRS", "read-write".into()),
        TargetSessionAttrs::Primary => set("PGTARGETSESSIONATTRS", "primary".into()),
    }
    if let Some(timeout) = settings.connect_timeout {
        set("PGCONNECT_TIMEOUT", timeout.as_secs().to_string().into());
    }
    let options = settings.options.as_ref().map_or(PINS.to_owned(), |options| format!("{options} {PINS}"));
    set("PGOPTIONS", options.into());
    set("PGAPPNAME", settings.application_name.clone().unwrap_or_else(|| "pgonce schema".to_owned()).into());
    set("PGGSSENCMODE", "disable".into());
    variables
}

fn joined(values: impl Iterator<Item = OsString>) -> OsString {
    let mut list = OsString::new();
    for (index, value) in values.enumerate() {
        if index > 0 {
            list.push(",");
        }
        list.push(value);
    }
    list
}

#[cfg(test)]
mod tests {
    use pgonce::connect::Environment;

    use super::*;

    fn of(text: &str) -> Vec<(&'static str, String)> {
        let settings = ConnectionSettings::parse(text, &Environment::empty()).unwrap();
        variables(&settings).into_iter().map(|(name, value)| (name, value.into_string().unwrap())).collect()
    }

    #[test]
    fn everything_that_the_connection_string_says_is_in_the_variables() {
        let found = of("postgresql://ann:p%20'%22%5C@db1:5433,db2/shop?sslmode=verify-full&sslrootcert=/ca.pem\
                        &target_session_attrs=primary&channel_binding=require&connect_timeout=7&options=-c%20a%3Db");
        let expected = [
            ("PGHOST", "db1,db2"),
            ("PGPORT", "5433,5432"),
            ("PGUSER", "ann"),
            ("PGDATABASE", "shop"),
            ("PGPASSWORD", "p '\"\\"),
            ("PGSSLMODE", "verify-full"),
            ("PGSSLROOTCERT", "/ca.pem"),
            ("PGCHANNELBINDING", "require"),
            ("PGTARGETSESSIONATTRS", "primary"),
            ("PGCONNECT_TIMEOUT", "7"),
            ("PGAPPNAME", "pgonce schema"),
        ];
        for (name, value) in expected {
            assert!(found.contains(&(name, value.to_owned())), "{name}: {found:?}");
        }
        let options = &found.iter().find(|(name, _)| *name == "PGOPTIONS").unwrap().1;
        assert!(options.starts_with("-c a=b -c standard_conforming_strings=on"), "{options}");
    }

    #[test]
    fn sockets_and_addresses_are_passed_on() {
        let found = of("host=/run/pg,db hostaddr=,10.0.0.1 port=1,2 user=u dbname=d");
        assert!(found.contains(&("PGHOST", "/run/pg,db".to_owned())), "{found:?}");
        assert!(found.contains(&("PGHOSTADDR", ",10.0.0.1".to_owned())), "{found:?}");
        assert!(found.contains(&("PGPORT", "1,2".to_owned())), "{found:?}");
    }
}
