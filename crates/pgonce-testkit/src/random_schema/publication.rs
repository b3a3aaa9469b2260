//! How the tables are published.

use super::Table;
use crate::Random;

/// How the tables are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publication {
    /// pgonce makes the publication.
    Own,
    /// Named tables, partitions as their root.
    Roots,
    /// Named tables, each partition as itself.
    Leaves,
    /// Named tables, in two publications.
    Two,
    /// All tables, partitions as their root.
    All,
    /// The tables of whole schemas (from 15 on).
    Schemas,
}

impl Publication {
    pub(crate) fn new(random: &mut Random, major: u32) -> Publication {
        use Publication::{All, Leaves, Own, Roots, Schemas, Two};
        match *random.pick(&[Own, Own, Roots, Roots, Leaves, Leaves, Two, All, Schemas]) {
            Schemas if major < 15 => Roots,
            publication => publication,
        }
    }

    /// Whether a partition is published under its root's name.
    pub(crate) fn as_root(self) -> bool {
        self != Publication::Leaves
    }

    /// Whether each table is named in it: it can have a list of columns and a filter, or be of inserts only.
    pub(crate) fn names_tables(self) -> bool {
        matches!(self, Publication::Roots | Publication::Leaves | Publication::Two)
    }
}

/// The SQL that makes the publications of some tables, and their names.
pub(crate) fn create(
    tables: &[Table],
    publication: Publication,
    name: &str,
    takes: impl Fn(&Table) -> bool,
) -> (String, Vec<String>) {
    let mut sql = String::new();
    let mut names = Vec::new();
    let mut add = |suffix: &str, of: String, inserts_only: bool| {
        let root = if publication.as_root() { "publish_via_partition_root = true" } else { "" };
        let inserts = if inserts_only { "publish = 'insert'" } else { "" };
        let options: Vec<&str> = [root, inserts].into_iter().filter(|option| !option.is_empty()).collect();
        let with = if options.is_empty() { String::new() } else { format!(" WITH ({})", options.join(", ")) };
        sql += &format!("CREATE PUBLICATION {name}{suffix} FOR {of}{with};\n");
        names.push(format!("{name}{suffix}"));
    };
    let list = |tables: &[&Table]| {
        let members: Vec<String> = tables.iter().map(|table| table.member()).collect();
        format!("TABLE {}", members.join(", "))
    };
    let (inserts, all): (Vec<&Table>, Vec<&Table>) =
        tables.iter().filter(|table| takes(table)).partition(|table| table.is_inserts_only());
    match publication {
        Publication::Own => {}
        Publication::All => add("", "ALL TABLES".to_owned(), false),
        Publication::Schemas => {
            let mut schemas: Vec<String> = all.iter().map(|table| table.schema_quoted()).collect();
            schemas.sort();
            schemas.dedup();
            add("", format!("TABLES IN SCHEMA {}", schemas.join(", ")), false);
        }
        Publication::Two if all.len() > 1 => {
            let (one, other) = all.split_at(all.len() / 2);
            add("_1", list(one), false);
            add("_2", list(other), false);
        }
        Publication::Two | Publication::Roots | Publication::Leaves if all.is_empty() => {}
        Publication::Two | Publication::Roots | Publication::Leaves => add("", list(&all), false),
    }
    if !inserts.is_empty() {
        add("_inserts", list(&inserts), true);
    }
    (sql, names)
}
