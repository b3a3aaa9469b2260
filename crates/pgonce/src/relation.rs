//! A table as the source described it in the stream.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use postgres_types::Type;

use crate::pgoutput::ReplicaIdentity;

/// A table as described by a pgoutput Relation message: the names and types behind the tuples that follow it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Relation {
    /// OID on the source.
    pub oid: u32,
    /// Schema. Never empty: pgoutput's empty string is `pg_catalog` here.
    pub schema: String,
    /// Table.
    pub name: String,
    /// What identifies a row in updates and deletes.
    pub identity: ReplicaIdentity,
    /// The published columns, in the order of the tuples.
    pub columns: Vec<RelationColumn>,
}

/// A published column of a [`Relation`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RelationColumn {
    /// Name.
    pub name: String,
    /// OID of the type on the source. Types made by users have other OIDs on other servers.
    pub type_oid: u32,
    /// `atttypmod`; -1 for none.
    pub type_modifier: i32,
    /// Whether the column is part of the replica identity. With identity FULL every column is.
    pub key: bool,
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

/// Relations by OID, shared between transactions and copied when one of them changes.
pub type Relations = Arc<HashMap<u32, Arc<Relation>>>;

/// The name of a built-in type, with its modifier as far as those of `varchar`, `char` and `numeric` go. `None` for a
/// type made by users.
pub fn built_in_type(oid: u32, modifier: i32) -> Option<String> {
    let built_in = Type::from_oid(oid)?;
    Some(match (built_in.name(), modifier) {
        (name @ ("varchar" | "bpchar"), 4..) => format!("{name}({})", modifier - 4),
        ("numeric", 4..) => format!("numeric({}, {})", (modifier - 4) >> 16, (modifier - 4) & 0x7ff),
        (name, _) if name.starts_with('_') => format!("{}[]", &name[1..]),
        ("char", _) => "\"char\"".to_owned(),
        (name, _) => name.to_owned(),
    })
}
