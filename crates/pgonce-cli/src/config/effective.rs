//! What holds for each key, and why: what `pgonce config show` reports. Secrets are left out here already.

use pgonce::connect::{ConnectionSettings, Environment};
use serde_json::{Value, json};

use super::keys::{Fallback, KEYS, Key, Kind, key};
use super::raw::{Given, Place, Raw};
use crate::render::redacted;

/// What stands for a secret.
const HIDDEN: &str = "***";

/// A key with what holds for it.
#[derive(Clone, Debug)]
pub struct Effective {
    /// The key.
    pub key: &'static Key,
    /// Its value, for programs; null where there is none.
    pub value: Value,
    /// Its value, for people.
    pub text: String,
    /// Where it came from.
    pub origin: Origin,
    /// How to connect, of a connection string that can be read.
    pub connection: Option<Value>,
}

/// Where the value of a key came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// It was given there.
    Given(Place),
    /// Nothing was given, and this is the default.
    Default,
    /// Nothing was given, and it must be.
    Missing,
}

impl Origin {
    /// The origin for people.
    pub fn text(&self, key: &Key) -> String {
        match self {
            Origin::Given(Place::File { path, line, .. }) => format!("{}:{line}", path.display()),
            Origin::Given(place) => place.to_string(),
            Origin::Default => "default".to_owned(),
            Origin::Missing => format!("missing: give --{} or {}, or set it in the file", key.flag, key.variable()),
        }
    }

    /// The origin for programs.
    pub fn object(&self) -> Value {
        match self {
            Origin::Given(Place::Flag(flag)) => json!({"kind": "flag", "name": format!("--{flag}")}),
            Origin::Given(Place::Variable(name)) => json!({"kind": "environment", "name": name}),
            Origin::Given(Place::File { path, line, column }) => {
                json!({"kind": "file", "path": path.display().to_string(), "line": line, "column": column})
            }
            Origin::Default => json!({"kind": "default"}),
            Origin::Missing => json!({"kind": "missing"}),
        }
    }
}

/// Every key with what holds for it. `valid` says whether the configuration can be used: if not, what came out of a
/// reference may have come into the wrong key, and is not shown.
pub fn effective(raw: &Raw, valid: bool, environment: &Environment) -> Vec<Effective> {
    let flow = raw.one(key("flow")).filter(|given| valid || given.shown).map(|given| given.text.as_str());
    KEYS.iter()
        .map(|key| match raw.list(key) {
            [] => fallen_back(key, raw, flow),
            given => shown(key, given, valid, environment),
        })
        .collect()
}

fn fallen_back(key: &'static Key, raw: &Raw, flow: Option<&str>) -> Effective {
    let published = key.path == "source.tables" && raw.0.contains_key("source.publication");
    let (value, text, origin) = match key.default {
        Fallback::Required => (Value::Null, "not set".to_owned(), Origin::Missing),
        Fallback::Words(_) if published => (Value::Null, "those of the publication".to_owned(), Origin::Default),
        Fallback::Words(words) => (Value::Null, words.to_owned(), Origin::Default),
        Fallback::Value(value) => match flow {
            None if value.contains("<flow>") => (Value::Null, value.to_owned(), Origin::Default),
            flow => {
                let text = value.replace("<flow>", flow.unwrap_or_default());
                let given = Given { text: text.clone(), place: Place::Flag(key.flag), shown: true };
                (key.kind.value(&[given]), text, Origin::Default)
            }
        },
    };
    Effective { key, value, text, origin, connection: None }
}

fn shown(key: &'static Key, given: &[Given], valid: bool, environment: &Environment) -> Effective {
    // A list has the place of its first value.
    let place = given.first().map_or(Place::Flag(key.flag), |given| given.place.clone());
    let origin = Origin::Given(place);
    if key.kind == Kind::Url {
        let last = given.last().map(|given| given.text.as_str()).unwrap_or_default();
        let settings = ConnectionSettings::parse(last, environment).ok();
        let text = settings.as_ref().map_or_else(|| HIDDEN.to_owned(), without_password);
        let connection = settings.as_ref().map(connection);
        return Effective { key, value: text.clone().into(), text, origin, connection };
    }
    let given: Vec<Given> = given
        .iter()
        .map(|given| Given {
            text: if valid || given.shown { redacted(&given.text) } else { HIDDEN.to_owned() },
            ..given.clone()
        })
        .collect();
    let texts: Vec<&str> = given.iter().map(|given| given.text.as_str()).collect();
    Effective { key, value: key.kind.value(&given), text: texts.join(", "), origin, connection: None }
}

/// A connection string as it was completed, with a stand-in for its password.
fn without_password(settings: &ConnectionSettings) -> String {
    match settings.password {
        // What a user's name holds of `@` is encoded.
        Some(_) => settings.to_string().replacen('@', &format!(":{HIDDEN}@"), 1),
        None => settings.to_string(),
    }
}

fn connection(settings: &ConnectionSettings) -> Value {
    let hosts: Vec<String> = settings.endpoints.iter().map(ToString::to_string).collect();
    json!({
        "hosts": hosts, "user": settings.user, "database": settings.dbname,
        "password": settings.password.as_ref().map(|_| HIDDEN), "sslmode": settings.ssl_mode.as_str(),
    })
}
