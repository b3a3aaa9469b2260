//! A connection for `pg_dump`, in its environment: its arguments can be read by every user of the machine.

use std::ffi::OsString;

use pgonce::connect::ConnectionSettings;

/// What `pg_dump` has to see as pgonce does: the text of constants and defaults depends on it.
const PINS: &str = "-c standard_conforming_strings=on -c DateStyle=ISO,MDY -c IntervalStyle=postgres \
    -c statement_timeout=0 -c idle_in_transaction_session_timeout=0";

/// libpq's variables for these settings. They are the whole of what `pg_dump` is told of the connection.
pub(super) fn variables(settings: &ConnectionSettings) -> Vec<(&'static str, OsString)> {
    let mut settings = settings.clone();
    settings.options = Some(settings.options.map_or(PINS.to_owned(), |options| format!("{options} {PINS}")));
    settings.application_name.get_or_insert_with(|| "pgonce schema".to_owned());
    settings.libpq_environment()
}

#[cfg(test)]
mod tests {
    use pgonce::connect::Environment;

    use super::*;

    #[test]
    fn what_pg_dump_has_to_see_as_we_do_comes_last() {
        let settings = ConnectionSettings::parse("host=db user=u options='-c a=b'", &Environment::empty()).unwrap();
        let found = variables(&settings);
        let options = &found.iter().find(|(name, _)| *name == "PGOPTIONS").unwrap().1;
        assert!(options.to_string_lossy().starts_with("-c a=b -c standard_conforming_strings=on"), "{options:?}");
        assert!(found.contains(&("PGAPPNAME", "pgonce schema".into())), "{found:?}");
    }
}
