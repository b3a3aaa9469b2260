//! The SQL that makes the tables on each side.

use std::fmt::Write as _;

use super::column::LISTED;
use super::table::{By, Identity, Partitions, SCHEMAS, Table, TargetPartitions};
use super::types::USER_TYPES;
use crate::ident::quote;

/// Which of the databases the tables are for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Source,
    Target,
    Native,
}

/// Schemas and types.
pub(crate) fn preamble(tables: &[Table]) -> String {
    let mut sql = USER_TYPES.to_owned();
    for schema in SCHEMAS.iter().filter(|schema| **schema != "public") {
        if tables.iter().any(|table| table.schema == **schema) {
            let _ = writeln!(sql, "CREATE SCHEMA {};", quote(schema));
        }
    }
    sql
}

/// A table with its partitions, indexes and identity.
pub(crate) fn create(table: &Table, all: &[Table], side: Side) -> String {
    let partitions = match (table.partitions, side, table.target_partitions) {
        (Some(partitions), Side::Source, _) | (Some(partitions), _, TargetPartitions::AsSource) => Cut::As(partitions),
        (Some(partitions), _, TargetPartitions::Other) => Cut::Otherwise(partitions),
        (Some(_), _, TargetPartitions::None) | (None, _, _) => Cut::Not,
    };
    let name = table.quoted();
    let mut lines = columns(table, side, false);
    lines.extend(constraints(table, all, side));
    let by = match partitions {
        Cut::As(partitions) => format!(" PARTITION BY {} ({})", method(partitions.by), column(table, partitions)),
        Cut::Otherwise(partitions) => format!(" PARTITION BY HASH ({})", column(table, partitions)),
        Cut::Not => String::new(),
    };
    let mut sql = format!("CREATE TABLE {name} (\n    {}\n){by};\n", lines.join(",\n    "));
    if has_dropped(table, side) {
        let _ = writeln!(sql, "ALTER TABLE {name} DROP COLUMN gone;");
    }
    for column in table.columns.iter().filter(|column| column.external) {
        let _ = writeln!(sql, "ALTER TABLE {name} ALTER COLUMN {} SET STORAGE EXTERNAL;", column.name);
    }
    let mut tables = vec![name.clone()];
    match partitions {
        Cut::As(partitions) => tables.extend(cut(table, partitions, side, &mut sql)),
        Cut::Otherwise(_) => {
            for remainder in 0..2 {
                let part = table.partition(&format!("x{remainder}"));
                let bound = format!("FOR VALUES WITH (MODULUS 2, REMAINDER {remainder})");
                let _ = writeln!(sql, "CREATE TABLE {part} PARTITION OF {name} {bound};");
                tables.push(part);
            }
        }
        Cut::Not => {}
    }
    identity(table, &tables, &mut sql);
    if let Some(at) = table.target_index.filter(|_| side != Side::Source) {
        let _ = writeln!(sql, "CREATE INDEX ON {name} ({});", table.columns[at].name);
    }
    sql
}

/// How a table is cut on one side.
enum Cut {
    As(Partitions),
    Otherwise(Partitions),
    Not,
}

fn column(table: &Table, partitions: Partitions) -> &str {
    &table.columns[partitions.column].name
}

fn method(by: By) -> &'static str {
    match by {
        By::Range => "RANGE",
        By::List => "LIST",
        By::Hash => "HASH",
    }
}

/// A partition that is attached has the table's columns, and no dropped one of the root.
fn has_dropped(table: &Table, side: Side) -> bool {
    table.dropped && (side == Side::Source || table.target_own)
}

fn columns(table: &Table, side: Side, apart: bool) -> Vec<String> {
    let in_order = || (0..table.columns.len()).collect::<Vec<_>>();
    let mut order = if side == Side::Source { in_order() } else { table.target_order.clone() };
    if apart {
        order.reverse();
    }
    let mut lines = Vec::new();
    if apart || has_dropped(table, side) {
        lines.push("gone int".to_owned());
    }
    lines.extend(order.iter().map(|at| table.columns[*at].definition()));
    if side != Side::Source && table.target_own {
        lines.insert(lines.len() / 2, "own_number int NOT NULL DEFAULT 7".to_owned());
        lines.push("own_text text".to_owned());
    }
    lines
}

fn constraints(table: &Table, all: &[Table], side: Side) -> Vec<String> {
    let mut lines = Vec::new();
    if !table.key.is_empty() {
        let names: Vec<&str> = table.key.iter().map(|at| table.columns[*at].name.as_str()).collect();
        let deferrable = if table.deferrable { " DEFERRABLE" } else { "" };
        lines.push(format!("PRIMARY KEY ({}){deferrable}", names.join(", ")));
    }
    if let Some(key) = table.foreign_key.filter(|_| side != Side::Native)
        && let Some(parent) = all.iter().find(|parent| parent.number == key.table)
    {
        let cascade = if key.cascade { " ON DELETE CASCADE ON UPDATE CASCADE" } else { "" };
        lines.push(format!(
            "FOREIGN KEY ({}) REFERENCES {} ({}){cascade}",
            table.columns[key.column].name,
            parent.quoted(),
            parent.columns[parent.key[0]].name,
        ));
    }
    lines
}

/// The partitions as the source has them. Returns the names of all.
fn cut(table: &Table, partitions: Partitions, side: Side, sql: &mut String) -> Vec<String> {
    let root = table.quoted();
    let hash = |remainder: usize| format!("FOR VALUES WITH (MODULUS 3, REMAINDER {remainder})");
    let bounds = match partitions.by {
        By::Range => [
            "FOR VALUES FROM (MINVALUE) TO (60)".to_owned(),
            "FOR VALUES FROM (60) TO (200)".to_owned(),
            "DEFAULT".to_owned(),
        ],
        By::List => [
            format!("FOR VALUES IN ({}, {})", LISTED[0], LISTED[2]),
            format!("FOR VALUES IN ({}, {})", LISTED[1], LISTED[5]),
            "DEFAULT".to_owned(),
        ],
        By::Hash => [hash(0), hash(1), hash(2)],
    };
    let mut names = Vec::new();
    for (at, bound) in bounds.iter().enumerate() {
        let part = table.partition(&(at + 1).to_string());
        if at == 2 && partitions.attached {
            let lines = columns(table, side, true).join(",\n    ");
            let _ = writeln!(sql, "CREATE TABLE {part} (\n    {lines}\n);\nALTER TABLE {part} DROP COLUMN gone;");
            let _ = writeln!(sql, "ALTER TABLE {root} ATTACH PARTITION {part} {bound};");
        } else if at == 1 && partitions.below {
            let by = column(table, partitions);
            let _ = writeln!(sql, "CREATE TABLE {part} PARTITION OF {root} {bound} PARTITION BY HASH ({by});");
            for (remainder, suffix) in ["2a", "2b"].iter().enumerate() {
                let leaf = table.partition(suffix);
                let bound = format!("FOR VALUES WITH (MODULUS 2, REMAINDER {remainder})");
                let _ = writeln!(sql, "CREATE TABLE {leaf} PARTITION OF {part} {bound};");
                names.push(leaf);
            }
        } else {
            let _ = writeln!(sql, "CREATE TABLE {part} PARTITION OF {root} {bound};");
        }
        names.push(part);
    }
    names
}

fn identity(table: &Table, tables: &[String], sql: &mut String) {
    let word = match table.identity {
        Identity::Default => return,
        Identity::Full => "FULL".to_owned(),
        Identity::Nothing => "NOTHING".to_owned(),
        Identity::Index(at) => {
            let index = format!("identity of {}", table.number);
            let name = &table.columns[at].name;
            let _ = writeln!(sql, "CREATE UNIQUE INDEX {} ON {} ({name});", quote(&index), table.quoted());
            format!("USING INDEX {}", quote(&index))
        }
    };
    for name in tables {
        let _ = writeln!(sql, "ALTER TABLE {name} REPLICA IDENTITY {word};");
    }
}
