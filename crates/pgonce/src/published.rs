//! What the source publishes: tables, and a fingerprint of everything that decides which changes are sent.

use std::collections::HashSet;
use std::fmt;

use crate::partitions::{self, Partition};
use crate::pgoutput::ReplicaIdentity;

/// The publications of a flow and the tables they publish, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Lines of the fingerprint, sorted: see [`Published::fingerprint`].
    pub(crate) members: Vec<Member>,
    /// Partitions of published roots, and published tables that are partitions.
    pub(crate) partitions: Vec<Partition>,
    /// The tables, by schema and name.
    pub tables: Vec<PublishedTable>,
    /// What the publications leave out, and what follows from how they are made, in words for the operator.
    pub warnings: Vec<String>,
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
    /// Published columns that are copied: all but generated ones, in the table's order.
    pub columns: Vec<String>,
    /// Generated columns. The copy leaves them to the target, and so does the stream, except that version 18 can be
    /// told to publish them.
    pub generated: Vec<String>,
    /// The columns that the stream brings, in the table's order: those that are copied, and generated ones that version
    /// 18 was told to publish.
    pub streamed: Vec<String>,
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
    /// Text that is equal as long as nothing has left the publications or been made anew: a line for each
    /// publication, each membership and each table that is published. What follows ` # ` in a line is for people and
    /// not compared. Lines of partitions are not compared here: see [`partitions`](crate::partitions).
    pub fn fingerprint(&self) -> String {
        let mut text = String::new();
        for member in &self.members {
            text.push_str(&format!("{} # {}\n", member.key, member.label.replace('\n', " ")));
        }
        for partition in &self.partitions {
            text.push_str(&partition.line().replace('\n', " "));
            text.push('\n');
        }
        text
    }

    /// What `stored` (a fingerprint) had and this one has not: changes may have been left out of the stream.
    pub(crate) fn missing_from(&self, stored: &str) -> Vec<Member> {
        let here: HashSet<&str> = self.members.iter().map(|m| m.key.as_str()).collect();
        let compared = stored.lines().filter(|line| !partitions::is_line(line));
        compared.filter_map(Member::parse).filter(|member| !here.contains(member.key.as_str())).collect()
    }

    /// The fingerprint `stored` with what belongs to the tables `taken` as it is now, and with what has come to the
    /// publications as such. Of the partitions of these tables nothing is to be mended any more.
    pub(crate) fn extended(&self, stored: &str, taken: &HashSet<u32>) -> String {
        let known: HashSet<&str> = stored.lines().filter_map(|line| Some(line.split_once(" # ")?.0)).collect();
        let belongs = |member: &&Member| match member.table {
            0 => !known.contains(member.key.as_str()),
            table => taken.contains(&table),
        };
        let compared = stored.lines().filter(|line| !partitions::is_line(line));
        let kept = compared.filter_map(Member::parse).filter(|member| !taken.contains(&member.table));
        let mut members: Vec<Member> = kept.chain(self.members.iter().filter(belongs).cloned()).collect();
        members.sort();
        let mut text = Published { members, ..Published::default() }.fingerprint();
        text.push_str(&partitions::taken_anew(stored, &self.partitions, taken));
        text
    }
}

/// The OIDs of the tables of a fingerprint.
pub(crate) fn tables_of(fingerprint: &str) -> impl Iterator<Item = u32> {
    let published = fingerprint.lines().filter_map(|line| line.strip_prefix("publishes "));
    published.filter_map(|line| line.split_once(" # ")?.0.parse().ok())
}

impl Member {
    fn parse(line: &str) -> Option<Member> {
        let (key, label) = line.split_once(" # ")?;
        let mut words = key.split(' ');
        let table = match (words.next()?, words.next()?, words.next()) {
            ("member", _, Some(table)) | ("publishes", table, _) => table.parse().ok()?,
            _ => 0,
        };
        Some(Member { key: key.to_owned(), label: label.to_owned(), table })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(key: &str, table: u32) -> Member {
        Member { key: key.to_owned(), label: format!("the {key}"), table }
    }

    #[test]
    fn a_fingerprint_tells_what_left_and_what_came() {
        let before = Published {
            members: vec![
                member("member 9 16384 []", 16384),
                member("publication 5 1111", 0),
                member("publishes 16384", 16384),
            ],
            partitions: Vec::new(),
            tables: Vec::new(),
            warnings: Vec::new(),
        };
        let after = Published {
            members: vec![member("publication 5 1111", 0), member("publishes 16390", 16390)],
            partitions: Vec::new(),
            tables: Vec::new(),
            warnings: Vec::new(),
        };
        let stored = before.fingerprint();
        assert!(before.missing_from(&stored).is_empty());
        assert_eq!(after.missing_from(&stored), [before.members[0].clone(), before.members[2].clone()]);
        assert_eq!(tables_of(&stored).collect::<Vec<_>>(), [16384]);
        // Taken in, it is guarded as the others are; what was there stays.
        let extended = after.extended(&stored, &HashSet::from([16390]));
        assert_eq!(tables_of(&extended).collect::<Vec<_>>(), [16384, 16390]);
        assert_eq!(after.extended(&extended, &HashSet::new()), extended);
        // Taken in again, only what there is now is guarded.
        let again = "member 9 16384 [old] # x\npublication 5 1111 # z\npublishes 16384 # y\n";
        assert_eq!(before.extended(again, &HashSet::from([16384])).lines().count(), 3);
        assert!(before.missing_from(&before.extended(again, &HashSet::from([16384]))).is_empty());
    }
}
