//! The SQL of row changes. Pure: from a mapping and what is known of a row to a statement and where its parameters
//! come from.

use std::fmt::Write;

use crate::schema::Mapping;

/// Where a parameter's value comes from: a column of the relation, in the new or the old row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parameter {
    New(usize),
    Old(usize),
}

/// How the row of an update or a delete is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Locator<'a> {
    /// By columns of the relation that identify it. The values are those of the old row, if there is one.
    Key { columns: &'a [usize], old: bool },
    /// By the image of the whole old row, any one of the rows that have it. `nulls` says which of the relation's
    /// columns are NULL in it.
    Image { nulls: &'a [bool] },
}

impl Locator<'_> {
    /// The columns by which the row is looked for.
    pub(crate) fn columns(&self, mapping: &Mapping) -> Vec<usize> {
        match self {
            Locator::Key { columns, .. } => columns.to_vec(),
            Locator::Image { .. } => mapping.writable.clone(),
        }
    }
}

/// A statement, and the source of each of its parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Statement {
    pub(crate) sql: String,
    pub(crate) parameters: Vec<Parameter>,
}

/// One row, `INSERT INTO t (a, b) VALUES ($1, $2)`.
pub(crate) fn insert(m: &Mapping) -> Statement {
    if m.writable.is_empty() {
        return Statement { sql: format!("INSERT INTO {} DEFAULT VALUES", m.table.quoted), parameters: Vec::new() };
    }
    let marks: Vec<String> = (1..=m.writable.len()).map(|n| format!("${n}")).collect();
    let sql = format!("{} VALUES ({})", insert_into(m), marks.join(", "));
    Statement { sql, parameters: m.writable.iter().map(|c| Parameter::New(*c)).collect() }
}

/// Many rows: a `text[]` for each of the writable columns, in their order.
pub(crate) fn insert_run(m: &Mapping) -> String {
    let mut values = Vec::new();
    let mut arrays = Vec::new();
    let mut names = Vec::new();
    for (n, column) in m.writable.iter().enumerate() {
        values.push(format!("u.c{n}::{}", m.column(*column).base_type));
        arrays.push(format!("${}::pg_catalog.text[]", n + 1));
        names.push(format!("c{n}"));
    }
    // `unnest` of several arrays is syntax of its own, under its bare name only; it means the one of pg_catalog.
    let unnest = if arrays.len() == 1 { "pg_catalog.unnest" } else { "unnest" };
    format!(
        "{} SELECT {} FROM {unnest}({}) AS u({})",
        insert_into(m),
        values.join(", "),
        arrays.join(", "),
        names.join(", ")
    )
}

/// Sets the columns `set`; where there is nothing to set, makes sure that the row is there.
pub(crate) fn update(m: &Mapping, set: &[usize], locator: Locator<'_>) -> Statement {
    let mut builder = Builder::default();
    let assignments: Vec<String> =
        set.iter().map(|c| format!("{} = {}", m.column(*c).quoted, builder.mark(Parameter::New(*c)))).collect();
    let found = builder.found(m, locator);
    let table = format!("{}{}", only(m), m.table.quoted);
    let sql = match (assignments.is_empty(), found) {
        (true, Found::Where(condition)) => format!("SELECT FROM {table} AS t WHERE {condition} FOR NO KEY UPDATE"),
        (true, Found::From(row)) => format!("SELECT FROM {row}"),
        (false, Found::Where(condition)) => {
            format!("UPDATE {table} AS t SET {} WHERE {condition}", assignments.join(", "))
        }
        (false, Found::From(row)) => {
            format!("UPDATE {table} AS t SET {} FROM {row} WHERE {JOINED}", assignments.join(", "))
        }
    };
    builder.statement(sql)
}

/// Deletes the row.
pub(crate) fn delete(m: &Mapping, locator: Locator<'_>) -> Statement {
    let mut builder = Builder::default();
    let sql = delete_from(m, builder.found(m, locator));
    builder.statement(sql)
}

/// An update that changes a `GENERATED ALWAYS AS IDENTITY` column, which `SET` refuses: the row is taken out and put
/// in again, with what it had in the columns that are not `set`.
pub(crate) fn replace(m: &Mapping, set: &[usize], locator: Locator<'_>) -> Statement {
    let mut builder = Builder::default();
    let deletion = delete_from(m, builder.found(m, locator));
    let mut names = Vec::new();
    let mut values = Vec::new();
    for (position, column) in m.table.columns.iter().enumerate() {
        if column.generated {
            continue;
        }
        names.push(column.quoted.as_str());
        values.push(match set.iter().find(|c| m.columns[**c] == position) {
            Some(c) => format!("{}::{}", builder.mark(Parameter::New(*c)), column.base_type),
            None => format!("d.{}", column.quoted),
        });
    }
    let sql = format!(
        "WITH d AS ({deletion} RETURNING t.*) INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM d",
        m.table.quoted,
        names.join(", "),
        values.join(", ")
    );
    builder.statement(sql)
}

/// Empties all of `tables` at once. CASCADE is not replayed: the list holds what it reached.
pub(crate) fn truncate(tables: &[std::sync::Arc<Mapping>], restart_identity: bool) -> String {
    let names: Vec<String> = tables.iter().map(|m| format!("{}{}", only(m), m.table.quoted)).collect();
    format!("TRUNCATE {}{}", names.join(", "), if restart_identity { " RESTART IDENTITY" } else { "" })
}

/// Empties all of `tables` row by row. What was truncated along with them, and references them, holds rows of later.
pub(crate) fn delete_all(tables: &[std::sync::Arc<Mapping>]) -> String {
    let deletes: Vec<String> = tables.iter().map(|m| format!("DELETE FROM {}{}", only(m), m.table.quoted)).collect();
    deletes.join("; ")
}

fn insert_into(m: &Mapping) -> String {
    let names: Vec<&str> = m.writable.iter().map(|c| m.column(*c).quoted.as_str()).collect();
    let overriding = if m.table.columns.iter().any(|c| c.identity) { " OVERRIDING SYSTEM VALUE" } else { "" };
    format!("INSERT INTO {} ({}){overriding}", m.table.quoted, names.join(", "))
}

fn delete_from(m: &Mapping, found: Found) -> String {
    let table = format!("{}{}", only(m), m.table.quoted);
    match found {
        Found::Where(condition) => format!("DELETE FROM {table} AS t WHERE {condition}"),
        Found::From(row) => format!("DELETE FROM {table} AS t USING {row} WHERE {JOINED}"),
    }
}

/// A partitioned table has children by definition; of any other one only its own rows are meant, as in the source's
/// stream.
fn only(m: &Mapping) -> &'static str {
    if m.table.partitioned { "" } else { "ONLY " }
}

/// Joins a table `t` to a row found by its place.
const JOINED: &str = "t.ctid = r.place AND t.tableoid = r.part";

enum Found {
    /// A condition on `t`.
    Where(String),
    /// A subquery `r` with the place and the partition of the row.
    From(String),
}

#[derive(Default)]
struct Builder {
    parameters: Vec<Parameter>,
}

impl Builder {
    fn mark(&mut self, parameter: Parameter) -> String {
        let known = self.parameters.iter().position(|p| *p == parameter);
        let number = known.unwrap_or_else(|| {
            self.parameters.push(parameter);
            self.parameters.len() - 1
        });
        format!("${}", number + 1)
    }

    fn statement(self, sql: String) -> Statement {
        Statement { sql, parameters: self.parameters }
    }

    /// Finds the row. A `ctid` alone names a row of one table, so for partitions their OID is needed beside it.
    fn found(&mut self, m: &Mapping, locator: Locator<'_>) -> Found {
        match locator {
            Locator::Key { columns, old } => {
                let side = if old { Parameter::Old } else { Parameter::New };
                let terms: Vec<String> = columns.iter().map(|c| self.equal(m, "t", *c, side(*c))).collect();
                Found::Where(terms.join(" AND "))
            }
            Locator::Image { nulls } => {
                let condition = self.image(m, nulls);
                let table = format!("{}{}", only(m), m.table.quoted);
                if m.table.partitioned {
                    Found::From(format!(
                        "(SELECT s.tableoid AS part, s.ctid AS place FROM {table} AS s WHERE {condition} LIMIT 1) AS r"
                    ))
                } else {
                    Found::Where(format!("t.ctid = (SELECT s.ctid FROM {table} AS s WHERE {condition} LIMIT 1)"))
                }
            }
        }
    }

    fn equal(&mut self, m: &Mapping, alias: &str, column: usize, value: Parameter) -> String {
        let mark = self.mark(value);
        let target = m.column(column);
        format!("{alias}.{} {} {mark}::{}", target.quoted, m.equals(column), target.base_type)
    }

    /// The old row's image, byte for byte (`*=`, `record_image_eq`): it needs no equality operator (json, xml,
    /// point), tells 1.0 from 1.00, and takes NULL for equal to NULL. Before it, what an index can find.
    fn image(&mut self, m: &Mapping, nulls: &[bool]) -> String {
        let mut condition = String::new();
        for column in &m.lookup {
            let term = if nulls.get(*column) == Some(&true) {
                format!("s.{} IS NULL", m.column(*column).quoted)
            } else {
                self.equal(m, "s", *column, Parameter::Old(*column))
            };
            // Writing to a String cannot fail.
            let _ = write!(condition, "{term} AND ");
        }
        let mut here = Vec::new();
        let mut there = Vec::new();
        for column in &m.writable {
            let target = m.column(*column);
            // The two records must have the same types, and the parameter's is below all domains.
            let cast = if target.domain { format!("::{}", target.base_type) } else { String::new() };
            here.push(format!("s.{}{cast}", target.quoted));
            there.push(format!("{}::{}", self.mark(Parameter::Old(*column)), target.base_type));
        }
        let _ = write!(
            condition,
            "ROW({})::pg_catalog.record OPERATOR(pg_catalog.*=) ROW({})::pg_catalog.record",
            here.join(", "),
            there.join(", ")
        );
        condition
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pgonce::pgoutput::ReplicaIdentity;
    use pgonce::relation::{Relation, RelationColumn};

    use super::*;
    use crate::schema::{TargetColumn, TargetIndex, TargetTable};

    fn column(name: &str, base_type: &str) -> TargetColumn {
        TargetColumn {
            quoted: pgonce::ident::quote_ident(name),
            name: name.into(),
            base_type: base_type.into(),
            ..TargetColumn::default()
        }
    }

    fn mapping(identity: ReplicaIdentity, change: impl FnOnce(&mut TargetTable)) -> Mapping {
        let source = |name: &str, key| RelationColumn { name: name.into(), type_oid: 25, type_modifier: -1, key };
        let full = matches!(identity, ReplicaIdentity::Full);
        let relation = Relation {
            oid: 1,
            schema: "s".into(),
            name: "t".into(),
            identity,
            columns: vec![source("id", true), source("n", full), source("b", full)],
        };
        let mut table = TargetTable {
            quoted: r#""s"."t""#.into(),
            quiet: true,
            // Another order than the source's.
            columns: vec![column("n", "integer"), column("b", "text"), column("id", "bigint"), column("own", "text")],
            ..TargetTable::default()
        };
        change(&mut table);
        Mapping::new(&Arc::new(relation), table).unwrap()
    }

    fn plain() -> Mapping {
        mapping(ReplicaIdentity::Default, |_| {})
    }

    const BY_KEY: Locator<'static> = Locator::Key { columns: &[0], old: false };

    #[test]
    fn columns_go_by_name() {
        let insert = insert(&plain());
        assert_eq!(insert.sql, r#"INSERT INTO "s"."t" ("id", "n", "b") VALUES ($1, $2, $3)"#);
        assert_eq!(insert.parameters, [Parameter::New(0), Parameter::New(1), Parameter::New(2)]);
        assert_eq!(
            insert_run(&plain()),
            "INSERT INTO \"s\".\"t\" (\"id\", \"n\", \"b\") SELECT u.c0::bigint, u.c1::integer, u.c2::text \
             FROM unnest($1::pg_catalog.text[], $2::pg_catalog.text[], $3::pg_catalog.text[]) AS u(c0, c1, c2)"
        );
    }

    #[test]
    fn a_missing_column_is_named_with_its_alter_table() {
        let relation = Arc::clone(&plain().relation);
        let table = TargetTable { quoted: "q".into(), columns: vec![column("id", "bigint")], ..TargetTable::default() };
        let stop = Mapping::new(&relation, table).unwrap_err();
        assert_eq!(stop.code(), "schema_mismatch");
        assert!(stop.to_string().contains(r#"no column "n", "b""#), "{stop}");
        assert!(stop.hint().contains(r#"ALTER TABLE q ADD COLUMN "n" text, ADD COLUMN "b" text;"#), "{}", stop.hint());
    }

    #[test]
    fn b3_an_update_sets_what_was_sent() {
        let update = update(&plain(), &[1], BY_KEY);
        assert_eq!(
            update.sql,
            r#"UPDATE ONLY "s"."t" AS t SET "n" = $1 WHERE t."id" OPERATOR(pg_catalog.=) $2::bigint"#
        );
        assert_eq!(update.parameters, [Parameter::New(1), Parameter::New(0)]);
    }

    #[test]
    fn b4_an_update_without_anything_to_set_looks_for_the_row() {
        let update = update(&plain(), &[], BY_KEY);
        let expected =
            r#"SELECT FROM ONLY "s"."t" AS t WHERE t."id" OPERATOR(pg_catalog.=) $1::bigint FOR NO KEY UPDATE"#;
        assert_eq!(update.sql, expected);
    }

    #[test]
    fn an_old_key_finds_the_row_whose_key_changes() {
        let update = update(&plain(), &[0, 1], Locator::Key { columns: &[0], old: true });
        assert_eq!(update.parameters, [Parameter::New(0), Parameter::New(1), Parameter::Old(0)]);
    }

    #[test]
    fn b6_one_row_is_found_by_its_image_with_an_index_before_it() {
        let m = mapping(ReplicaIdentity::Full, |table| {
            table.columns[0].domain = true;
            let columns = vec![(0, "OPERATOR(x.=)".to_owned()), (2, "OPERATOR(pg_catalog.=)".to_owned())];
            table.indexes.push(TargetIndex { unique: false, columns });
        });
        assert_eq!(m.keys, Vec::<Vec<usize>>::new());
        let delete = delete(&m, Locator::Image { nulls: &[true, false, false] });
        assert_eq!(
            delete.sql,
            "DELETE FROM ONLY \"s\".\"t\" AS t WHERE t.ctid = (SELECT s.ctid FROM ONLY \"s\".\"t\" AS s WHERE \
             s.\"n\" OPERATOR(x.=) $1::integer AND s.\"id\" IS NULL AND \
             ROW(s.\"id\", s.\"n\"::integer, s.\"b\")::pg_catalog.record OPERATOR(pg_catalog.*=) \
             ROW($2::bigint, $1::integer, $3::text)::pg_catalog.record LIMIT 1)"
        );
        assert_eq!(delete.parameters, [Parameter::Old(1), Parameter::Old(0), Parameter::Old(2)]);
    }

    #[test]
    fn a_row_of_a_partition_needs_its_table_beside_its_place() {
        let m = mapping(ReplicaIdentity::Full, |table| table.partitioned = true);
        let delete = delete(&m, Locator::Image { nulls: &[false; 3] });
        assert!(
            delete.sql.starts_with(r#"DELETE FROM "s"."t" AS t USING (SELECT s.tableoid AS part"#),
            "{}",
            delete.sql
        );
        assert!(delete.sql.ends_with("WHERE t.ctid = r.place AND t.tableoid = r.part"), "{}", delete.sql);
    }

    #[test]
    fn with_full_a_unique_index_of_columns_that_cannot_be_null_identifies() {
        let m = mapping(ReplicaIdentity::Full, |table| {
            let columns = vec![(2, "OPERATOR(pg_catalog.=)".to_owned())];
            table.columns[2].not_null = true;
            table.indexes.push(TargetIndex { unique: true, columns });
        });
        assert_eq!(m.keys, [[0]]);
    }

    #[test]
    fn d2_generated_columns_are_left_to_the_target_and_identity_is_overridden() {
        let m = mapping(ReplicaIdentity::Default, |table| {
            table.columns[1].generated = true;
            table.columns[2].identity = true;
            table.columns[2].identity_always = true;
        });
        assert_eq!(insert(&m).sql, r#"INSERT INTO "s"."t" ("id", "n") OVERRIDING SYSTEM VALUE VALUES ($1, $2)"#);
        let replace = replace(&m, &[0], Locator::Key { columns: &[0], old: true });
        assert_eq!(
            replace.sql,
            "WITH d AS (DELETE FROM ONLY \"s\".\"t\" AS t WHERE t.\"id\" OPERATOR(pg_catalog.=) $1::bigint \
             RETURNING t.*) \
             INSERT INTO \"s\".\"t\" (\"n\", \"id\", \"own\") OVERRIDING SYSTEM VALUE \
             SELECT d.\"n\", $2::bigint, d.\"own\" FROM d"
        );
        assert_eq!(replace.parameters, [Parameter::Old(0), Parameter::New(0)]);
    }

    #[test]
    fn a_truncate_names_all_its_tables_and_never_cascades() {
        let m = Arc::new(plain());
        let sql = truncate(&[Arc::clone(&m), m], true);
        assert_eq!(sql, r#"TRUNCATE ONLY "s"."t", ONLY "s"."t" RESTART IDENTITY"#);
    }
}
