//! The configuration file as a JSON schema, for editors.

use serde_json::{Map, Value, json};

use super::keys::{Fallback, KEYS, Key, sections};

/// The schema, in the draft of 2020-12. Nothing is required of the file: flags and variables may give the rest.
pub fn schema() -> Value {
    let mut properties = Map::new();
    for section in sections() {
        let keys = KEYS.iter().filter(|key| key.section() == section);
        let keys = keys.map(|key| (key.name().to_owned(), property(key)));
        match section {
            None => properties.extend(keys),
            Some(section) => {
                let keys: Map<String, Value> = keys.collect();
                let description = format!("The {section}'s keys");
                let object = json!({
                    "description": description, "type": ["object", "null"], "properties": keys,
                    "additionalProperties": false,
                });
                properties.insert(section.to_owned(), object);
            }
        }
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "pgonce",
        "description": "The configuration of one pgonce flow. In each string, ${VAR} stands for an environment \
             variable.",
        "type": ["object", "null"],
        "properties": properties,
        "additionalProperties": false,
    })
}

fn property(key: &Key) -> Value {
    let mut property = key.kind.schema();
    let more = if key.more.is_empty() { String::new() } else { format!(" {}", key.more) };
    property["description"] = format!(
        "{}.{more} Default: {}. Flag: --{}. Environment variable: {}.",
        key.help,
        key.default_words(),
        key.flag,
        key.variable()
    )
    .into();
    if let Fallback::Value(value) = key.default
        && !value.contains('<')
    {
        property["default"] = serde_json::from_str(value).unwrap_or_else(|_| value.into());
    }
    property
}
