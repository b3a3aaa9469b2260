//! The keys as environment variables: `PGONCE_SOURCE_URL` is `source.url`. They win over the file, and flags over them.

use super::keys::{KEYS, Kind};
use super::raw::{Given, Place, Raw};

/// The environment variable that names the configuration file.
pub const CONFIG_FILE: &str = "PGONCE_CONFIG";

/// Variables of pgonce that are no keys.
pub const OTHERS: [&str; 3] = [CONFIG_FILE, "PGONCE_LOG", crate::progress::PROGRESS_SECONDS];

/// A name is taken for another one that was misspelt if they are at least so alike.
const ALIKE: f64 = 0.7;

/// What was given of the keys in variables. An empty one counts as not set.
pub fn read(lookup: &dyn Fn(&str) -> Option<String>) -> Raw {
    let mut raw = Raw::default();
    for key in KEYS {
        let variable = key.variable();
        let Some(text) = lookup(&variable).filter(|text| !text.is_empty()) else { continue };
        let place = Place::Variable(variable);
        let shown = key.kind != Kind::Url;
        let given = key.kind.in_variable(&text).into_iter().map(|text| Given { text, place: place.clone(), shown });
        raw.0.insert(key.path, given.collect());
    }
    raw
}

/// A warning for each of the names that looks like a key's variable and is none.
pub fn warnings(names: impl Iterator<Item = String>) -> Vec<String> {
    let known: Vec<String> = KEYS.iter().map(|key| key.variable()).chain(OTHERS.map(str::to_owned)).collect();
    let mut names: Vec<String> = names.filter(|name| name.starts_with("PGONCE_") && !known.contains(name)).collect();
    names.sort_unstable();
    names
        .iter()
        .filter_map(|name| {
            let meant = meant(name, &known);
            let text = format!("the environment variable {name} means nothing to pgonce; did you mean ");
            (!meant.is_empty()).then(|| text + &meant.join(" or ") + "?")
        })
        .collect()
}

/// The variables that a name may have been meant for.
fn meant(name: &str, known: &[String]) -> Vec<String> {
    let word = |name: &str| name.trim_start_matches("PGONCE_").to_owned();
    let given = word(name);
    // Named after its flag, or without its section.
    let after = |text: &str| text.replace('-', "_").to_uppercase() == given;
    let keys = KEYS.iter().filter(|key| after(key.flag) || after(key.name()));
    let keys: Vec<String> = keys.map(|key| key.variable()).collect();
    if !keys.is_empty() {
        return keys;
    }
    let near = |other: &String| strsim::normalized_damerau_levenshtein(&word(other), &given);
    let nearest = known.iter().max_by(|a, b| near(a).total_cmp(&near(b)));
    nearest.filter(|other| near(other) >= ALIKE).cloned().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warned(name: &str) -> Option<String> {
        warnings(std::iter::once(name.to_owned())).pop()
    }

    #[test]
    fn a_misspelt_variable_is_named_and_others_are_not() {
        for (name, meant) in [
            ("PGONCE_SOURCE_ULR", "PGONCE_SOURCE_URL"),
            ("PGONCE_SOURCE", "PGONCE_SOURCE_URL"),
            ("PGONCE_SLOT", "PGONCE_SOURCE_SLOT"),
            ("PGONCE_URL", "PGONCE_SOURCE_URL or PGONCE_TARGET_URL"),
            ("PGONCE_JOB", "PGONCE_JOBS"),
            ("PGONCE_CONFG", "PGONCE_CONFIG"),
        ] {
            let text = format!("the environment variable {name} means nothing to pgonce; did you mean {meant}?");
            assert_eq!(warned(name), Some(text));
        }
        let of_tests = ["PGONCE_TEST_PG", "PGONCE_POSTGRES_DIR", "PGONCE_UPDATE_DOCS", "PGONCE_BENCH_PG"];
        // What a cluster of containers sets for a service named pgonce.
        let of_services = ["PGONCE_PORT", "PGONCE_SERVICE_HOST", "PGONCE_SERVICE_PORT", "PGONCE_PORT_80_TCP_ADDR"];
        for name in OTHERS.iter().chain(&of_tests).chain(&of_services).chain(&["PGPORT", "PGONCE_FLOW", "PATH"]) {
            assert_eq!(warned(name), None, "{name}");
        }
    }

    #[test]
    fn variables_are_read_and_an_empty_one_is_not_set() {
        let raw = read(&|name| match name {
            "PGONCE_SOURCE_TABLES" => Some("public.*, a.b".to_owned()),
            "PGONCE_JOBS" => Some("7".to_owned()),
            "PGONCE_FLOW" => Some(String::new()),
            _ => None,
        });
        let texts: Vec<&str> = raw.0["source.tables"].iter().map(|given| given.text.as_str()).collect();
        assert_eq!(texts, ["public.*", "a.b"]);
        assert_eq!(raw.0["jobs"][0].place.to_string(), "PGONCE_JOBS");
        assert!(!raw.0.contains_key("flow"));
    }
}
