//! How a table that the stream describes differs from what it was before. No I/O here.
//!
//! Columns are compared by name. Their order tells more than it seems to: PostgreSQL sends columns in the order in
//! which they were made, and a new one always comes last. So a column with a new name between two that have kept theirs
//! was renamed; and columns that have changed places were dropped and made anew, or have exchanged their names.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use crate::ident::quote_ident;
use crate::pgoutput::ReplicaIdentity;
use crate::relation::{Relation, RelationColumn, built_in_type};

/// A table has changed: the rows behind this point are of another form than those before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaChange {
    before: Option<Arc<Relation>>,
    after: Arc<Relation>,
    what: Vec<Difference>,
}

/// What a sink makes of a [`SchemaChange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaDecision {
    /// It takes the rows that follow. The new form is stored with the transaction that brought it.
    Accept,
    /// The flow stops before that transaction, and does so again at every start, until the change is accepted.
    Refuse,
}

/// One difference between two descriptions of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// The table has joined the flow.
    FirstSeen,
    /// The table has another name.
    Renamed {
        /// Its name before.
        from: String,
        /// Its name now.
        to: String,
    },
    /// The table is in another schema.
    Moved {
        /// Its schema before.
        from: String,
        /// Its schema now.
        to: String,
    },
    /// A column was added. Rows that were there before have its default, and are not sent again.
    ColumnAdded {
        /// The column.
        column: RelationColumn,
    },
    /// A column is no longer sent: it was dropped. At the end of a table, a renamed column shows as one that was
    /// dropped and one that was added.
    ColumnDropped {
        /// Its name.
        column: String,
    },
    /// A column has another name.
    ColumnRenamed {
        /// Its name before.
        from: String,
        /// Its name now.
        to: String,
    },
    /// A column has another type.
    ColumnType {
        /// Its name now.
        column: String,
        /// OID and modifier of its type before.
        from: (u32, i32),
        /// OID and modifier of its type now.
        to: (u32, i32),
    },
    /// A column's type has another modifier, as in `varchar(10)`.
    ColumnModifier {
        /// Its name now.
        column: String,
        /// OID of the type.
        type_oid: u32,
        /// `atttypmod` before.
        from: i32,
        /// `atttypmod` now.
        to: i32,
    },
    /// Other columns than before identify a row, though the replica identity is of the same kind.
    KeyColumns {
        /// Their names before.
        from: Vec<String>,
        /// Their names now.
        to: Vec<String>,
    },
    /// The replica identity is of another kind.
    Identity {
        /// Before.
        from: ReplicaIdentity,
        /// Now.
        to: ReplicaIdentity,
    },
    /// Columns have changed places: they were dropped and made anew, or have exchanged their names.
    ColumnOrder {
        /// The columns that are in both, as they were.
        from: Vec<String>,
        /// As they are now.
        to: Vec<String>,
    },
}

impl Difference {
    /// Whether what was written before remains as it is: nothing is gone, and nothing has another meaning.
    pub fn is_additive(&self) -> bool {
        match self {
            Difference::FirstSeen | Difference::ColumnAdded { .. } => true,
            Difference::Renamed { .. }
            | Difference::Moved { .. }
            | Difference::ColumnDropped { .. }
            | Difference::ColumnRenamed { .. }
            | Difference::ColumnType { .. }
            | Difference::ColumnModifier { .. }
            | Difference::KeyColumns { .. }
            | Difference::Identity { .. }
            | Difference::ColumnOrder { .. } => false,
        }
    }

    /// The contrary of [`is_additive`](Difference::is_additive).
    pub fn is_destructive(&self) -> bool {
        !self.is_additive()
    }
}

impl SchemaChange {
    /// From `before` to `after`, two descriptions of one table. `None`: they say the same.
    pub fn between(before: &Arc<Relation>, after: &Arc<Relation>) -> Option<SchemaChange> {
        let what = differences(before, after);
        if what.is_empty() {
            return None;
        }
        Some(SchemaChange { before: Some(Arc::clone(before)), after: Arc::clone(after), what })
    }

    /// A table that the flow did not have before.
    pub(crate) fn first_seen(after: &Arc<Relation>) -> SchemaChange {
        SchemaChange { before: None, after: Arc::clone(after), what: vec![Difference::FirstSeen] }
    }

    /// The table's OID on the source.
    pub fn oid(&self) -> u32 {
        self.after.oid
    }

    /// The table as it was; `None` where it was not part of the flow.
    pub fn before(&self) -> Option<&Relation> {
        self.before.as_deref()
    }

    /// The table as it is from here on.
    pub fn after(&self) -> &Relation {
        &self.after
    }

    pub(crate) fn after_shared(&self) -> &Arc<Relation> {
        &self.after
    }

    /// The differences. Never none.
    pub fn what(&self) -> &[Difference] {
        &self.what
    }

    /// Whether all that has happened is additive: a table that has joined, columns that were added.
    pub fn is_additive(&self) -> bool {
        self.what.iter().all(Difference::is_additive)
    }

    /// Whether something is gone or has another meaning.
    pub fn is_destructive(&self) -> bool {
        !self.is_additive()
    }

    /// What a sink decides that does not decide for itself.
    pub fn default_decision(&self) -> SchemaDecision {
        if self.is_additive() { SchemaDecision::Accept } else { SchemaDecision::Refuse }
    }

    /// The differences, in words.
    pub fn description(&self) -> String {
        let what: Vec<String> = self.what.iter().map(Difference::to_string).collect();
        what.join("; ")
    }
}

/// The table's name (the one before, where it has another now) and the differences.
impl fmt::Display for SchemaChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.before.as_ref().unwrap_or(&self.after);
        write!(f, "table {name}: {}", self.description())
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::FirstSeen => f.write_str("it has joined the flow"),
            Difference::Renamed { from, to } => write!(f, "renamed from {} to {}", quote_ident(from), quote_ident(to)),
            Difference::Moved { from, to } => {
                write!(f, "moved from schema {} to schema {}", quote_ident(from), quote_ident(to))
            }
            Difference::ColumnAdded { column } => {
                let name = quote_ident(&column.name);
                write!(f, "column {name} added, of {}", type_label(column.type_oid, column.type_modifier))
            }
            Difference::ColumnDropped { column } => write!(f, "column {} dropped", quote_ident(column)),
            Difference::ColumnRenamed { from, to } => {
                write!(f, "column {} renamed to {}", quote_ident(from), quote_ident(to))
            }
            Difference::ColumnType { column, from, to } => {
                let [from, to] = [from, to].map(|(oid, modifier)| type_label(*oid, *modifier));
                write!(f, "type of column {} changed from {from} to {to}", quote_ident(column))
            }
            Difference::ColumnModifier { column, type_oid, from, to } => {
                let column = quote_ident(column);
                match [from, to].map(|modifier| type_label(*type_oid, *modifier)) {
                    [before, after] if before == after => {
                        write!(f, "type modifier of column {column}, of {before}, changed from {from} to {to}")
                    }
                    [before, after] => write!(f, "column {column} changed from {before} to {after}"),
                }
            }
            Difference::KeyColumns { from, to } => {
                write!(f, "the columns that identify a row changed from {} to {}", list(from), list(to))
            }
            Difference::Identity { from, to } => {
                write!(f, "replica identity changed from {} to {}", identity_label(*from), identity_label(*to))
            }
            Difference::ColumnOrder { from, to } => write!(
                f,
                "columns {} are in the order {} now: dropped and made anew, or names exchanged",
                list(from),
                list(to)
            ),
        }
    }
}

fn list(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| quote_ident(name)).collect();
    format!("({})", names.join(", "))
}

fn type_label(oid: u32, modifier: i32) -> String {
    built_in_type(oid, modifier).map_or_else(|| format!("the type with OID {oid}"), |name| format!("type {name}"))
}

fn identity_label(identity: ReplicaIdentity) -> &'static str {
    match identity {
        ReplicaIdentity::Default => "DEFAULT",
        ReplicaIdentity::Nothing => "NOTHING",
        ReplicaIdentity::Full => "FULL",
        ReplicaIdentity::Index => "USING INDEX",
    }
}

fn differences(before: &Relation, after: &Relation) -> Vec<Difference> {
    let mut what = Vec::new();
    if before.schema != after.schema {
        what.push(Difference::Moved { from: before.schema.clone(), to: after.schema.clone() });
    }
    if before.name != after.name {
        what.push(Difference::Renamed { from: before.name.clone(), to: after.name.clone() });
    }
    let renamed = columns(before, after, &mut what);
    if before.identity != after.identity {
        what.push(Difference::Identity { from: before.identity, to: after.identity });
    }
    what.extend(keys(before, after, &renamed));
    what
}

/// The differences of columns; returns the new names of those that were renamed.
fn columns<'r>(before: &'r Relation, after: &'r Relation, what: &mut Vec<Difference>) -> HashMap<&'r str, &'r str> {
    let names = |relation: &'r Relation| relation.columns.iter().map(|c| c.name.as_str()).collect::<HashSet<&str>>();
    let (old_names, new_names) = (names(before), names(after));
    let common = |relation: &'r Relation, other: &HashSet<&str>| {
        let kept = relation.columns.iter().map(|c| c.name.as_str()).filter(|name| other.contains(name));
        kept.collect::<Vec<&str>>()
    };
    let (old_order, new_order) = (common(before, &new_names), common(after, &old_names));
    let renamed = match old_order == new_order {
        true => renamed(before, after, &old_order),
        false => HashMap::new(),
    };
    let old_name_of: HashMap<&str, &str> = renamed.iter().map(|(from, to)| (*to, *from)).collect();
    for column in &before.columns {
        match renamed.get(column.name.as_str()) {
            Some(to) => what.push(Difference::ColumnRenamed { from: column.name.clone(), to: (*to).to_owned() }),
            None if !new_names.contains(column.name.as_str()) => {
                what.push(Difference::ColumnDropped { column: column.name.clone() });
            }
            None => {}
        }
    }
    let old: HashMap<&str, &RelationColumn> = before.columns.iter().map(|c| (c.name.as_str(), c)).collect();
    for column in &after.columns {
        let name = column.name.as_str();
        let Some(was) = old.get(old_name_of.get(name).copied().unwrap_or(name)) else {
            what.push(Difference::ColumnAdded { column: column.clone() });
            continue;
        };
        if was.type_oid != column.type_oid {
            let from = (was.type_oid, was.type_modifier);
            let to = (column.type_oid, column.type_modifier);
            what.push(Difference::ColumnType { column: name.to_owned(), from, to });
        } else if was.type_modifier != column.type_modifier {
            let (from, to) = (was.type_modifier, column.type_modifier);
            let type_oid = column.type_oid;
            what.push(Difference::ColumnModifier { column: name.to_owned(), type_oid, from, to });
        }
    }
    if old_order != new_order {
        let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
        what.push(Difference::ColumnOrder { from: owned(old_order), to: owned(new_order) });
    }
    renamed
}

/// Columns that were renamed: as many as are gone have come between the same two neighbours, and not at the end.
fn renamed<'r>(before: &'r Relation, after: &'r Relation, common: &[&str]) -> HashMap<&'r str, &'r str> {
    let mut renamed = HashMap::new();
    let (mut old, mut new) = (before.columns.iter(), after.columns.iter());
    for neighbour in common {
        let gone: Vec<&str> = old.by_ref().map(|c| c.name.as_str()).take_while(|name| name != neighbour).collect();
        let come: Vec<&str> = new.by_ref().map(|c| c.name.as_str()).take_while(|name| name != neighbour).collect();
        if gone.len() == come.len() {
            renamed.extend(gone.into_iter().zip(come));
        }
    }
    renamed
}

fn keys(before: &Relation, after: &Relation, renamed: &HashMap<&str, &str>) -> Option<Difference> {
    let full = |relation: &Relation| relation.identity == ReplicaIdentity::Full;
    let kept = |name: &str, other: &Relation| other.columns.iter().any(|column| column.name == name);
    // With FULL every column is one, so that the set changes with every column that comes or goes.
    let key = |relation: &Relation, other: &Relation| {
        let of_key = relation.columns.iter().filter(|c| c.key && (!full(relation) || kept(&c.name, other)));
        of_key.map(|c| c.name.clone()).collect::<Vec<String>>()
    };
    if full(before) != full(after) {
        return None;
    }
    let (from, to) = (key(before, after), key(after, before));
    let now = |name: &String| renamed.get(name.as_str()).map_or_else(|| name.clone(), |to| (*to).to_owned());
    let (old, new): (HashSet<String>, HashSet<String>) = (from.iter().map(now).collect(), to.iter().cloned().collect());
    (old != new).then_some(Difference::KeyColumns { from, to })
}

#[cfg(test)]
mod tests;
