//! What the source publishes: tables, and a fingerprint of everything that decides which changes are sent.

use std::fmt;

use crate::pgoutput::ReplicaIdentity;

/// The publications of a flow and the tables they publish, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Lines of the fingerprint, sorted: see [`Published::fingerprint`].
    pub(crate) members: Vec<Member>,
    /// The tables, by schema and name.
    pub tables: Vec<PublishedTable>,
}

/// One thing that decides what is sent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Member {
    /// Compared: OIDs and settings.
    pub(crate) key: String,
    /// For people.
    pub(crate) label: String,
    /// The table's OID where the member is one, 0 otherwise.
    pub(crate) table: u32,
}

/// A table as it is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedTable {
    /// OID on the source.
    pub oid: u32,
    /// Schema.
    pub schema: String,
    /// Name.
    pub name: String,
    /// Published columns that carry values (generated ones do not), in the table's order.
    pub columns: Vec<String>,
    /// The publication's row filter, as SQL.
    pub row_filter: Option<String>,
    /// A partitioned table that is published as its root.
    pub partitioned: bool,
    /// Replica identity.
    pub identity: ReplicaIdentity,
    /// Columns of the replica identity; with FULL those of the primary key, if there is one. Empty: no key.
    pub key: Vec<String>,
    /// `pg_table_size`, bytes; for progress.
    pub bytes: u64,
    /// `reltuples`, an estimate; for progress.
    pub rows_estimated: u64,
}

impl fmt::Display for PublishedTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

impl Published {
    /// Text that is equal as long as nothing has left the publications or been made anew: a line for each publication, each
    /// membership and each table that is published. What follows ` # ` in a line is for people and not compared.
    pub fn fingerprint(&self) -> String {
        let mut text = String::new();
        for member in &self.members {
            text.push_str(&format!("{} # {}\n", member.key, member.label.replace('\n', " ")));
        }
        text
    }

    /// Labels of what `stored` (a fingerprint) had and this one has not: changes may have been left out of the stream.
    pub fn missing_from(&self, stored: &str) -> Vec<String> {
        let lines = stored.lines().filter_map(|line| line.split_once(" # "));
        lines
            .filter(|(key, _)| !self.members.iter().any(|m| m.key == *key))
            .map(|(_, label)| label.to_owned())
            .collect()
    }

    /// Labels of what this one has and `stored` (a fingerprint) had not.
    pub fn added_to(&self, stored: &str) -> Vec<String> {
        let known: Vec<&str> = stored.lines().filter_map(|line| line.split_once(" # ")).map(|(key, _)| key).collect();
        self.members.iter().filter(|m| !known.contains(&m.key.as_str())).map(|m| m.label.clone()).collect()
    }
}
