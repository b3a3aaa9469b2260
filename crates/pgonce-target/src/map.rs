//! Where a source table lies on the target: under its own name, unless the flow's map says otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use pgonce::ident::quote_ident;
use pgonce::published::Published;
use pgonce::stop::{Reason, Stop};

/// Schema and name of a table.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TableName {
    /// Schema.
    pub schema: String,
    /// Name.
    pub name: String,
}

impl TableName {
    /// A name.
    pub fn new(schema: impl Into<String>, name: impl Into<String>) -> TableName {
        TableName { schema: schema.into(), name: name.into() }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

/// The target's names of schemas and tables, where they are not the source's. A table's own entry goes before that of
/// its schema.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TableMap {
    schemas: BTreeMap<String, String>,
    tables: BTreeMap<TableName, TableName>,
}

/// An entry that has no meaning, and what to do about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapError {
    /// What is wrong.
    pub what: String,
    /// What to write instead.
    pub hint: String,
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for MapError {}

impl MapError {
    fn new(what: impl Into<String>, hint: impl Into<String>) -> MapError {
        MapError { what: what.into(), hint: hint.into() }
    }
}

/// What an entry looks like.
const FORM: &str = "An entry maps a schema to a schema (public=app) or a table to a table (public.orders=app.orders). \
                    Names with dots, capitals or other characters are written as PostgreSQL quotes them: \
                    \"My.Schema\".\"T\".";

impl TableMap {
    /// Adds an entry, `SOURCE=TARGET`.
    ///
    /// # Errors
    ///
    /// It has no meaning, or the map has another one for the same name.
    pub fn add(&mut self, entry: &str) -> Result<(), MapError> {
        let Some((source, target)) = split_outside_quotes(entry, '=') else {
            return Err(MapError::new(format!("{entry:?} is not SOURCE=TARGET"), FORM));
        };
        let (from, to) = (parts(source)?, parts(target)?);
        if let Some(reserved) = to.first().filter(|schema| reserved(schema)) {
            let hint = "Nothing is carried into PostgreSQL's own schemas, nor into that of pgonce.";
            return Err(MapError::new(format!("schema {reserved} cannot be a target"), hint));
        }
        let known = match (from.as_slice(), to.as_slice()) {
            ([from], [to]) => self.schemas.insert(from.clone(), to.clone()).is_some(),
            ([schema, name], [to_schema, to_name]) => {
                let to = TableName::new(to_schema, to_name);
                self.tables.insert(TableName::new(schema, name), to).is_some()
            }
            _ => {
                let what = format!("{entry:?} maps a schema to a table, or a table to a schema");
                return Err(MapError::new(what, FORM));
            }
        };
        if known {
            return Err(MapError::new(format!("{} is mapped twice", source.trim()), "Remove one of the two."));
        }
        Ok(())
    }

    /// Whether every table keeps its name.
    pub fn is_empty(&self) -> bool {
        self.schemas.is_empty() && self.tables.is_empty()
    }

    /// The target's name of a source table.
    pub fn target(&self, schema: &str, name: &str) -> TableName {
        let source = TableName::new(schema, name);
        match (self.tables.get(&source), self.schemas.get(schema)) {
            (Some(table), _) => table.clone(),
            (None, Some(schema)) => TableName::new(schema, name),
            (None, None) => source,
        }
    }

    /// How a map that was stored differs from this one, in words; `None`: not at all. `None` was stored where there
    /// was no map.
    pub fn differs_from(&self, stored: Option<&str>) -> Option<String> {
        let stored: BTreeSet<&str> = stored.unwrap_or_default().lines().collect();
        let here = self.to_string();
        let here: BTreeSet<&str> = here.lines().collect();
        let new = here.difference(&stored).map(|line| format!("new is {line}"));
        let gone = stored.difference(&here).map(|line| format!("missing is {line}"));
        let changes: Vec<String> = new.chain(gone).collect();
        (!changes.is_empty()).then(|| changes.join("; "))
    }

    /// Refuses a map by which two published tables would be written into one.
    pub(crate) fn separates(&self, published: &Published) -> Result<(), Stop> {
        let mut taken: BTreeMap<TableName, &str> = BTreeMap::new();
        let sources: Vec<String> = published.tables.iter().map(ToString::to_string).collect();
        for (table, source) in published.tables.iter().zip(&sources) {
            let target = self.target(&table.schema, &table.name);
            if let Some(other) = taken.insert(target.clone(), source) {
                return Err(two_into_one(other, source, &target));
            }
        }
        Ok(())
    }
}

/// The reason for two source tables that would share a target table: what is truncated, copied or compared of one
/// would be the other's too.
pub(crate) fn two_into_one(one: &str, other: &str, target: &TableName) -> Stop {
    Reason::SchemaMismatch {
        table: other.to_owned(),
        what: format!("{target} on the target is where {one} goes too"),
        hint: "Give each of them a table of its own in `map`. To carry the partitions of a table into one table, \
               publish them as their root: a publication WITH (publish_via_partition_root = true), which pgonce's own \
               has; the target's table may be partitioned or not."
            .to_owned(),
    }
    .into()
}

/// One line an entry, in PostgreSQL's spelling and always in the same order: what is stored of a map, and shown.
impl fmt::Display for TableMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (from, to) in &self.schemas {
            writeln!(f, "{} -> {}", spelled(from), spelled(to))?;
        }
        let qualified = |table: &TableName| format!("{}.{}", spelled(&table.schema), spelled(&table.name));
        for (from, to) in &self.tables {
            writeln!(f, "{} -> {}", qualified(from), qualified(to))?;
        }
        Ok(())
    }
}

fn reserved(schema: &str) -> bool {
    matches!(schema, "pgonce" | "information_schema") || schema.starts_with("pg_")
}

/// A name as it is written: quoted only where it must be.
fn spelled(name: &str) -> String {
    let plain = |(at, c): (usize, char)| c == '_' || c.is_ascii_lowercase() || (at > 0 && c.is_ascii_digit());
    if !name.is_empty() && name.chars().enumerate().all(plain) { name.to_owned() } else { quote_ident(name) }
}

/// Splits at the first `separator` that is not inside double quotes.
fn split_outside_quotes(text: &str, separator: char) -> Option<(&str, &str)> {
    let mut quoted = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            c if c == separator && !quoted => return Some((&text[..at], &text[at + c.len_utf8()..])),
            _ => {}
        }
    }
    None
}

/// The parts of a name, one for a schema, two for a table, unquoted.
fn parts(text: &str) -> Result<Vec<String>, MapError> {
    let mut rest = text.trim();
    let mut parts = Vec::new();
    loop {
        let (part, behind) = match split_outside_quotes(rest, '.') {
            Some((part, behind)) => (part, Some(behind)),
            None => (rest, None),
        };
        parts.push(unquoted(part, text)?);
        match behind {
            Some(behind) if parts.len() < 2 => rest = behind,
            Some(_) => return Err(MapError::new(format!("{text:?} has more than two parts"), FORM)),
            None => return Ok(parts),
        }
    }
}

fn unquoted(part: &str, whole: &str) -> Result<String, MapError> {
    let wrong = |why: &str| Err(MapError::new(format!("{whole:?} is not a name: {why}"), FORM));
    let name = match part.strip_prefix('"') {
        Some(inner) => {
            let Some(inner) = inner.strip_suffix('"') else { return wrong("a quote is not closed") };
            let bare = inner.replace("\"\"", "");
            if bare.contains('"') {
                return wrong("a quote inside quotes is doubled");
            }
            inner.replace("\"\"", "\"")
        }
        None => {
            if part.contains('*') {
                return wrong("there are no wildcards; map the schema, or each table");
            }
            if part.chars().any(char::is_uppercase) {
                // PostgreSQL would fold it, and nothing else in this configuration is folded.
                return wrong("with capitals it must be in double quotes");
            }
            let odd = |c: char| !(c == '_' || c == '$' || c.is_alphanumeric());
            if part.contains(odd) || part.starts_with(|c: char| c.is_ascii_digit()) {
                return wrong("with these characters it must be in double quotes");
            }
            part.to_owned()
        }
    };
    match name.len() {
        0 => wrong("a part is empty"),
        1..=63 => Ok(name),
        _ => wrong("a part is longer than 63 bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[&str]) -> TableMap {
        let mut map = TableMap::default();
        for entry in entries {
            map.add(entry).unwrap_or_else(|e| panic!("{entry}: {e}"));
        }
        map
    }

    #[test]
    fn a_table_goes_before_its_schema_and_what_is_not_mapped_keeps_its_name() {
        let map = map(&["public=app", "public.orders=archive.orders_2024"]);
        assert_eq!(map.target("public", "orders"), TableName::new("archive", "orders_2024"));
        assert_eq!(map.target("public", "users"), TableName::new("app", "users"));
        assert_eq!(map.target("shop", "orders"), TableName::new("shop", "orders"));
        // Not applied twice.
        assert_eq!(map.target("archive", "orders_2024"), TableName::new("archive", "orders_2024"));
    }

    #[test]
    fn names_are_quoted_as_postgresql_does() {
        let map = map(&[r#""My.Schema"."T=1"=app."a""b""#, r#" grün = "Grün" "#]);
        assert_eq!(map.target("My.Schema", "T=1"), TableName::new("app", "a\"b"));
        assert_eq!(map.target("grün", "t"), TableName::new("Grün", "t"));
        assert_eq!(map.to_string(), "\"grün\" -> \"Grün\"\n\"My.Schema\".\"T=1\" -> app.\"a\"\"b\"\n");
    }

    #[test]
    fn what_has_no_meaning_is_refused_with_what_to_write() {
        for (entry, why) in [
            ("public", "is not SOURCE=TARGET"),
            ("public=app.t", "maps a schema to a table"),
            ("public.t=app", "maps a schema to a table"),
            ("a.b.c=a.b", "more than two parts"),
            ("Public=app", "in double quotes"),
            ("pub lic=app", "in double quotes"),
            ("1a=app", "in double quotes"),
            ("\"public=app", "is not SOURCE=TARGET"),
            ("public=\"app", "not closed"),
            ("public=\"a\"b\"", "doubled"),
            ("public.*=app.*", "no wildcards"),
            ("public.=app.t", "empty"),
            ("public=", "empty"),
            ("public=pgonce", "cannot be a target"),
            ("public.t=pg_catalog.t", "cannot be a target"),
        ] {
            let error = TableMap::default().add(entry).unwrap_err();
            assert!(error.what.contains(why) && !error.hint.is_empty(), "{entry}: {error}");
        }
        let mut map = map(&["public=app"]);
        assert!(map.add("public=other").unwrap_err().what.contains("mapped twice"));
        let long = format!("public=\"{}\"", "x".repeat(64));
        assert!(TableMap::default().add(&long).is_err());
    }

    #[test]
    fn a_changed_map_says_what_changed() {
        let stored = map(&["public=app", "public.t=app.u"]).to_string();
        assert_eq!(map(&["public.t=app.u", "public=app"]).differs_from(Some(&stored)), None);
        assert_eq!(TableMap::default().differs_from(None), None);
        let changed = map(&["public=app", "public.t=app.v"]).differs_from(Some(&stored));
        let said = "new is public.t -> app.v; missing is public.t -> app.u";
        assert_eq!(changed.as_deref(), Some(said));
        assert!(TableMap::default().differs_from(Some(&stored)).is_some());
    }
}
