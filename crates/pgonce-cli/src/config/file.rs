//! The configuration file: YAML, read into values with their places. Types and names are checked here, meanings later.

use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, Location, Spanned};

use super::keys::{KEYS, Key, Kind};
use super::raw::{ConfigError, Given, Place, Raw};
use super::reference::{expand, read_secret};

/// Reads the text of the file `path`. Variables come from `lookup`; files that it refers to are looked for beside it.
///
/// # Errors
///
/// What is not YAML, not a key, or not a value that its key may have, each with its line and column.
pub fn read(path: &Path, text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Raw, ConfigError> {
    let reader = Reader { path, lookup };
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::PassThrough, with_snippet: false };
    let document: Option<Spanned<Node>> = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        // The parser's own words may quote the text, and with it a password: only the place is taken over.
        let location = error.location().unwrap_or(Location::UNKNOWN);
        let what = "this is not YAML that pgonce can read";
        let hint = "Look for a missing colon or quote, a tab, or an indentation that does not match. A value with \
                    `: `, ` #`, or one of {}[]&*!|>%@` at its start must be quoted.";
        ConfigError::at(&reader.place(location), what, hint)
    })?;
    let mut raw = Raw::default();
    match document.map(|document| (document.value, document.referenced)) {
        None | Some((Node::Null, _)) => {}
        Some((Node::Map(entries), _)) => reader.section(None, entries, &mut raw)?,
        Some((_, location)) => {
            let hint = "`pgonce init` writes a file to start from.";
            return Err(ConfigError::at(&reader.place(location), "keys were expected, as in `flow: shop`", hint));
        }
    }
    Ok(raw)
}

/// A node of the document.
enum Node {
    Null,
    Boolean(bool),
    Number(String),
    Text(String),
    List(Vec<Spanned<Node>>),
    Map(Vec<(Spanned<String>, Spanned<Node>)>),
}

impl Node {
    fn kind(&self) -> &'static str {
        match self {
            Node::Null => "nothing",
            Node::Boolean(_) => "true or false",
            Node::Number(_) => "a number",
            Node::Text(_) => "text",
            Node::List(_) => "a list",
            Node::Map(_) => "keys and values",
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Boolean(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Number(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Number(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Number(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Node::Map(map))
    }
}

struct Reader<'a> {
    path: &'a Path,
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl Reader<'_> {
    fn place(&self, location: Location) -> Place {
        Place::File { path: self.path.to_owned(), line: location.line(), column: location.column() }
    }

    fn section(
        &self,
        section: Option<&'static str>,
        entries: Vec<(Spanned<String>, Spanned<Node>)>,
        raw: &mut Raw,
    ) -> Result<(), ConfigError> {
        let mut seen: Vec<(String, u64)> = Vec::new();
        for (name, value) in entries {
            let place = self.place(name.referenced);
            if let Some((_, line)) = seen.iter().find(|(seen, _)| *seen == name.value) {
                let what = format!("`{}` is given twice, first in line {line}", name.value);
                return Err(ConfigError::at(&place, what, "Remove one of the two."));
            }
            seen.push((name.value.clone(), name.referenced.line()));
            let opens = section.is_none().then(|| KEYS.iter().filter_map(Key::section).find(|s| *s == name.value));
            match (opens.flatten(), value.value) {
                (Some(_), Node::Null) => {}
                (Some(opened), Node::Map(entries)) => self.section(Some(opened), entries, raw)?,
                (Some(opened), other) => {
                    let what = format!("`{opened}` is a section, and holds {} here", other.kind());
                    let names: Vec<&str> = names_of(Some(opened)).collect();
                    let hint = format!("Its keys go below it, indented: {}.", names.join(", "));
                    return Err(ConfigError::at(&self.place(value.referenced), what, hint));
                }
                (None, node) => {
                    let known = KEYS.iter().find(|key| key.section() == section && key.name() == name.value);
                    let key = known.ok_or_else(|| unknown(&place, section, &name.value))?;
                    raw.0.insert(key.path, self.values(key, node, value.referenced)?);
                }
            }
        }
        Ok(())
    }

    fn values(&self, key: &Key, node: Node, location: Location) -> Result<Vec<Given>, ConfigError> {
        let place = self.place(location);
        match node {
            Node::List(items) if key.kind == Kind::List => {
                items.into_iter().map(|item| self.value(key, item.value, self.place(item.referenced))).collect()
            }
            Node::Map(entries) if key.kind == Kind::Map => self.pairs(key, entries),
            Node::Map(entries) if key.kind == Kind::Url => Ok(vec![self.secret(key, entries, place)?]),
            node => Ok(vec![self.value(key, node, place)?]),
        }
    }

    /// `SOURCE: TARGET` for each entry, as the flag has them.
    fn pairs(&self, key: &Key, entries: Vec<(Spanned<String>, Spanned<Node>)>) -> Result<Vec<Given>, ConfigError> {
        let pair = |(name, value): (Spanned<String>, Spanned<Node>)| {
            let place = self.place(name.referenced);
            let target = match value.value {
                Node::Text(target) => target,
                Node::Null => {
                    let what = format!("`{}` in `{}` has no value", name.value, key.path);
                    return Err(ConfigError::at(&place, what, "Give it the target's name, or remove the line."));
                }
                other => {
                    let what = format!("`{}` in `{}` holds {}", name.value, key.path, other.kind());
                    return Err(ConfigError::at(&place, what, format!("Allowed: {}.", key.allowed())));
                }
            };
            let target = self.expanded(key, &target, place.clone())?;
            Ok(Given { text: format!("{}={}", name.value, target.text), ..target })
        };
        entries.into_iter().map(pair).collect()
    }

    fn value(&self, key: &Key, node: Node, place: Place) -> Result<Given, ConfigError> {
        let text = match (node, key.kind) {
            (Node::Text(text), kind) if kind != Kind::Map => return self.expanded(key, &text, place),
            (Node::Number(text), Kind::Count(_) | Kind::Text | Kind::List) => text,
            (Node::Boolean(value), Kind::Boolean) => value.to_string(),
            // Some read `off` as YAML 1.1 does.
            (Node::Boolean(value), Kind::Choice(["off", "on"])) => if value { "on" } else { "off" }.to_owned(),
            (Node::Null, _) => {
                let hint = format!("Give it a value ({}), or remove the line.", key.allowed());
                return Err(ConfigError::at(&place, format!("`{}` has no value", key.path), hint));
            }
            (other, _) => {
                let what = format!("`{}` holds {}", key.path, other.kind());
                let hint = format!("Allowed: {}. Text that looks like something else must be quoted.", key.allowed());
                return Err(ConfigError::at(&place, what, hint));
            }
        };
        Ok(Given { text, place, shown: true })
    }

    fn expanded(&self, key: &Key, text: &str, place: Place) -> Result<Given, ConfigError> {
        let (text, replaced) = expand(text, self.lookup).map_err(|what| {
            let hint = "Set the variable for this process, or write `$${` for a plain `${`.";
            ConfigError::at(&place, format!("`{}`: {what}", key.path), hint)
        })?;
        Ok(Given { text, place, shown: !replaced && key.kind != Kind::Url })
    }

    /// `{file: path}`.
    fn secret(
        &self,
        key: &Key,
        entries: Vec<(Spanned<String>, Spanned<Node>)>,
        place: Place,
    ) -> Result<Given, ConfigError> {
        let form = format!("Write `{}: {{file: PATH}}`.", key.name());
        let Ok([(name, value)]) = <[_; 1]>::try_from(entries) else {
            return Err(ConfigError::at(&place, format!("`{}` is not a reference to a file", key.path), form));
        };
        if name.value != "file" {
            let place = self.place(name.referenced);
            return Err(ConfigError::at(
                &place,
                format!("unknown reference `{}` for `{}`", name.value, key.path),
                form,
            ));
        }
        let place = self.place(value.referenced);
        let Node::Text(path) = value.value else {
            return Err(ConfigError::at(&place, format!("the file of `{}` is not a path", key.path), form));
        };
        let path = self.expanded(key, &path, place.clone())?.text;
        let path = self.path.parent().unwrap_or(Path::new("")).join(path);
        let text = read_secret(&path).map_err(|what| {
            let hint = "The file holds the connection string on one line, and must be readable for this user.";
            ConfigError::at(&place, format!("`{}`: {what}", key.path), hint)
        })?;
        Ok(Given { text, place, shown: false })
    }
}

/// The names that may stand in a section.
fn names_of(section: Option<&str>) -> impl Iterator<Item = &'static str> {
    let mut sections: Vec<&str> = match section {
        None => KEYS.iter().filter_map(Key::section).collect(),
        Some(_) => Vec::new(),
    };
    sections.dedup();
    let keys = KEYS.iter().filter(move |key| key.section() == section).map(Key::name);
    keys.chain(sections)
}

fn unknown(place: &Place, section: Option<&str>, name: &str) -> ConfigError {
    let home = section.map_or_else(|| "at the top level".to_owned(), |section| format!("in `{section}`"));
    // A key that exists, in another room.
    let elsewhere: Vec<&str> =
        KEYS.iter().filter(|key| key.name() == name || key.flag == name).map(|k| k.path).collect();
    let near = |candidate: &&str| strsim::normalized_damerau_levenshtein(candidate, &name.to_lowercase());
    let nearest =
        names_of(section).max_by(|a, b| near(a).total_cmp(&near(b))).filter(|candidate| near(candidate) > 0.5);
    let meant = match (elsewhere.as_slice(), nearest) {
        ([], Some(nearest)) => format!("; did you mean `{nearest}`?"),
        ([], None) => String::new(),
        (paths, _) => format!("; did you mean `{}`?", paths.join("` or `")),
    };
    let names: Vec<&str> = names_of(section).collect();
    let hint = format!("Keys {home}: {}.", names.join(", "));
    ConfigError::at(place, format!("unknown key `{name}` {home}{meant}"), hint)
}
