//! Tables of the target, and how a source table's columns map onto them: by name.

use std::collections::HashMap;
use std::sync::Arc;

use pgonce::ident::{quote_ident, quote_qualified};
use pgonce::pgoutput::{Column, ReplicaIdentity};
use pgonce::relation::{Relation, built_in_type};
use pgonce::sql_error::{TARGET_ENCODING, condition, is_encoding};
use pgonce::stop::{Reason, Stop};
use tokio_postgres::Client;

use crate::failure::Failure;
use crate::map::{TableMap, TableName};

/// A table of the target, as its catalog describes it.
#[derive(Debug, Default)]
pub(crate) struct TargetTable {
    /// The source's name of it, where that is another one.
    pub(crate) mapped_from: Option<TableName>,
    pub(crate) schema: String,
    pub(crate) name: String,
    /// Schema-qualified and quoted.
    pub(crate) quoted: String,
    pub(crate) partitioned: bool,
    /// No trigger or rule of the table fires in this session: rows may be written many at a time.
    pub(crate) quiet: bool,
    /// Every letter takes one byte in the database's encoding.
    pub(crate) letters: bool,
    pub(crate) columns: Vec<TargetColumn>,
    /// Valid btree indexes on columns alone, without a predicate: the primary key first, then unique ones, then the
    /// longest.
    pub(crate) indexes: Vec<TargetIndex>,
}

/// A column of a [`TargetTable`].
#[derive(Debug, Default, Clone)]
pub(crate) struct TargetColumn {
    pub(crate) name: String,
    pub(crate) quoted: String,
    /// The type without its modifier and, if it is a domain, the type below all domains: a cast to it can neither cut
    /// a value short (as an explicit cast to `varchar(3)` or to a domain over it would) nor be checked twice. What
    /// the column's type or domain demands is applied by the assignment, which refuses instead of cutting.
    pub(crate) base_type: String,
    pub(crate) domain: bool,
    /// The base type is `name`.
    pub(crate) is_name: bool,
    /// The equality operator of the base type's default btree operator class, as SQL. Empty where it has none of its
    /// own.
    pub(crate) equals: String,
    /// A cast function from text exists, which need not do what the type's input function does.
    pub(crate) own_cast: bool,
    pub(crate) not_null: bool,
    pub(crate) identity: bool,
    pub(crate) identity_always: bool,
    pub(crate) generated: bool,
}

/// A btree index of a [`TargetTable`].
#[derive(Debug, Clone)]
pub(crate) struct TargetIndex {
    /// Unique and enforced at once, so that it identifies a row.
    pub(crate) unique: bool,
    /// Position in the table's columns, and the index's equality operator as SQL.
    pub(crate) columns: Vec<(usize, String)>,
}

/// Equality where no index says otherwise.
const EQUALS: &str = "OPERATOR(pg_catalog.=)";

/// A source table as described at one time, laid onto its target table.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) relation: Arc<Relation>,
    pub(crate) table: TargetTable,
    /// For each column of the relation the one of the table.
    pub(crate) columns: Vec<usize>,
    /// Columns of the relation that can be written: all but those that the target generates.
    pub(crate) writable: Vec<usize>,
    /// Sets of columns of the relation that identify a row. Without identity FULL there is one, the replica identity;
    /// with FULL one for each unique index of the target, the primary key first.
    pub(crate) keys: Vec<Vec<usize>>,
    /// For a row that no key identifies: columns of the relation in an index that narrows the search.
    pub(crate) lookup: Vec<usize>,
    /// Inserts may be written many at a time.
    pub(crate) runs: bool,
    /// The equality operator for each column of the relation.
    equals: Vec<String>,
}

impl Mapping {
    /// Lays `relation` onto `table`.
    pub(crate) fn new(relation: &Arc<Relation>, table: TargetTable) -> Result<Mapping, Stop> {
        let columns = map_columns(relation, &table)?;
        let at: HashMap<usize, usize> = columns.iter().enumerate().map(|(source, target)| (*target, source)).collect();
        let source_columns = |index: &TargetIndex| -> Option<Vec<usize>> {
            index.columns.iter().map(|(target, _)| at.get(target).copied()).collect()
        };
        let full = matches!(relation.identity, ReplicaIdentity::Full);
        let identifying =
            |index: &&TargetIndex| index.unique && index.columns.iter().all(|(c, _)| table.columns[*c].not_null);
        let keys: Vec<Vec<usize>> = if full {
            table.indexes.iter().filter(identifying).filter_map(source_columns).collect()
        } else {
            let key = relation.columns.iter().enumerate().filter(|(_, c)| c.key).map(|(i, _)| i).collect();
            vec![key]
        };
        let lookup = if full { table.indexes.iter().find_map(source_columns).unwrap_or_default() } else { Vec::new() };
        let equals = columns.iter().map(|c| table.equals(*c)).collect();
        let writable: Vec<usize> = (0..columns.len()).filter(|c| !table.columns[columns[*c]].generated).collect();
        let runs = table.quiet && !writable.is_empty() && writable.iter().all(|c| !table.columns[columns[*c]].own_cast);
        Ok(Mapping { relation: Arc::clone(relation), columns, writable, keys, lookup, runs, equals, table })
    }

    /// The target's column for a column of the relation.
    pub(crate) fn column(&self, column: usize) -> &TargetColumn {
        &self.table.columns[self.columns[column]]
    }

    /// The equality operator for a column of the relation.
    pub(crate) fn equals(&self, column: usize) -> &str {
        &self.equals[column]
    }

    /// The first key whose columns are all there, and not null, in an old row.
    pub(crate) fn key_in(&self, row: &[Column<'_>]) -> Option<usize> {
        let given = |c: &usize| matches!(row.get(*c), Some(Column::Text(_) | Column::Binary(_)));
        self.keys.iter().position(|key| !key.is_empty() && key.iter().all(given))
    }
}

impl TargetTable {
    fn equals(&self, column: usize) -> String {
        let of_index = |index: &TargetIndex| index.columns.iter().find(|(c, _)| *c == column).map(|(_, op)| op.clone());
        let of_type = || self.columns.get(column).map(|c| c.equals.clone()).filter(|equals| !equals.is_empty());
        self.indexes.iter().find_map(of_index).or_else(of_type).unwrap_or_else(|| EQUALS.to_owned())
    }

    /// Its name for people, with the source's where that is another one.
    pub(crate) fn label(&self) -> String {
        let here = format!("{}.{}", self.schema, self.name);
        self.mapped_from.as_ref().map_or(here.clone(), |source| format!("{here} ({source} on the source)"))
    }

    /// `the target`, or where the names differ, `the target's table s.t`.
    pub(crate) fn holder(&self) -> String {
        let here = format!("the target's table {}.{}", self.schema, self.name);
        self.mapped_from.as_ref().map_or_else(|| "the target".to_owned(), |_| here)
    }

    pub(crate) fn position(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|c| c.name == column)
    }
}

fn map_columns(relation: &Relation, table: &TargetTable) -> Result<Vec<usize>, Stop> {
    let mut columns = Vec::with_capacity(relation.columns.len());
    let mut missing = Vec::new();
    for column in &relation.columns {
        match table.position(&column.name) {
            Some(position) => columns.push(position),
            None => missing.push(column),
        }
    }
    if missing.is_empty() {
        return Ok(columns);
    }
    let names: Vec<String> = missing.iter().map(|c| format!("{:?}", c.name)).collect();
    let additions: Vec<String> = missing
        .iter()
        .map(|c| format!("ADD COLUMN {} {}", quote_ident(&c.name), type_name(c.type_oid, c.type_modifier)))
        .collect();
    Err(Reason::SchemaMismatch {
        table: relation.to_string(),
        what: format!("{} has no column {}", table.holder(), names.join(", ")),
        hint: format!("On the target: ALTER TABLE {} {}; {ADD_COLUMN_CARE}", table.quoted, additions.join(", ")),
    }
    .into())
}

/// What else a column takes that is added to follow the source: neither a default nor a new name is in the stream.
const ADD_COLUMN_CARE: &str = "With the source's DEFAULT, if it has one: rows that were there before have it, \
     and none of them is sent again. If the column was renamed on the source, RENAME COLUMN on the target instead.";

/// The name of a built-in type, as far as its OID and modifier tell.
fn type_name(oid: u32, modifier: i32) -> String {
    built_in_type(oid, modifier).unwrap_or_else(|| format!("<the source's type with OID {oid}: see \\d on the source>"))
}

const TABLE_SQL: &str = "
    SELECT c.oid, c.relkind = 'p',
           NOT c.relhasrules AND NOT EXISTS (
               SELECT FROM pg_catalog.pg_trigger AS t
               WHERE (t.tgrelid = c.oid OR t.tgrelid IN (SELECT relid FROM pg_catalog.pg_partition_tree(c.oid)))
                 AND NOT t.tgisinternal
                 AND t.tgenabled::pg_catalog.text = ANY (
                     CASE pg_catalog.current_setting('session_replication_role')
                     WHEN 'replica' THEN '{R,A}'::pg_catalog.text[] ELSE '{O,A}'::pg_catalog.text[] END)),
           a.attname::pg_catalog.text, a.attnotnull, a.attidentity::pg_catalog.text, a.attgenerated::pg_catalog.text,
           b.oid <> a.atttypid, pg_catalog.format_type(b.oid, -1),
           EXISTS (SELECT FROM pg_catalog.pg_cast AS k WHERE k.casttarget = b.oid
                   AND k.castsource = 'pg_catalog.text'::pg_catalog.regtype AND k.castmethod = 'f'),
           b.oid = 'pg_catalog.name'::pg_catalog.regtype,
           (SELECT coalesce(pg_catalog.min(pg_catalog.format('OPERATOR(%I.%s)', s.nspname, o.oprname)), '')
            FROM pg_catalog.pg_opclass AS l
            JOIN pg_catalog.pg_am AS m ON m.oid = l.opcmethod AND m.amname = 'btree'
            JOIN pg_catalog.pg_amop AS p ON p.amopfamily = l.opcfamily AND p.amoplefttype = l.opcintype
                 AND p.amoprighttype = l.opcintype AND p.amopstrategy = 3
            JOIN pg_catalog.pg_operator AS o ON o.oid = p.amopopr
            JOIN pg_catalog.pg_namespace AS s ON s.oid = o.oprnamespace
            WHERE l.opcintype = b.oid AND l.opcdefault),
           (SELECT d.encoding <> 0 AND pg_catalog.pg_encoding_max_length(d.encoding) = 1
            FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())
    FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN LATERAL (
        WITH RECURSIVE d AS (
            SELECT t.oid, t.typtype, t.typbasetype FROM pg_catalog.pg_type AS t WHERE t.oid = a.atttypid
            UNION ALL
            SELECT t.oid, t.typtype, t.typbasetype FROM d JOIN pg_catalog.pg_type AS t ON t.oid = d.typbasetype
            WHERE d.typtype = 'd')
        SELECT d.oid FROM d WHERE d.typtype <> 'd') AS b ON true
    WHERE n.nspname = $1::pg_catalog.text AND c.relname = $2::pg_catalog.text AND c.relkind IN ('r', 'p')
    ORDER BY a.attnum";

const INDEX_SQL: &str = "
    SELECT i.indisunique AND i.indimmediate, k.names, k.operators
    FROM pg_catalog.pg_index AS i
    JOIN pg_catalog.pg_class AS x ON x.oid = i.indexrelid
    JOIN pg_catalog.pg_am AS m ON m.oid = x.relam AND m.amname = 'btree'
    CROSS JOIN LATERAL (
        SELECT pg_catalog.array_agg(a.attname::pg_catalog.text ORDER BY u.place) AS names,
               pg_catalog.array_agg(pg_catalog.format('OPERATOR(%I.%s)', s.nspname, o.oprname)
                                    ORDER BY u.place) AS operators
        FROM ROWS FROM (pg_catalog.unnest(i.indkey::pg_catalog.int2[]), pg_catalog.unnest(i.indclass::pg_catalog.oid[]))
             WITH ORDINALITY AS u (attnum, opclass, place)
        JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = u.attnum
        JOIN pg_catalog.pg_opclass AS c ON c.oid = u.opclass
        JOIN pg_catalog.pg_amop AS p ON p.amopfamily = c.opcfamily AND p.amoplefttype = c.opcintype
             AND p.amoprighttype = c.opcintype AND p.amopstrategy = 3
        JOIN pg_catalog.pg_operator AS o ON o.oid = p.amopopr
        JOIN pg_catalog.pg_namespace AS s ON s.oid = o.oprnamespace
        WHERE u.place <= i.indnkeyatts) AS k
    WHERE i.indrelid = $1 AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
    ORDER BY i.indisprimary DESC, i.indisunique AND i.indimmediate DESC, i.indnkeyatts DESC, x.relname";

/// The target's table of a source table, under the name that `map` gives it: the one way by which tables are found.
pub(crate) async fn find_table(client: &Client, map: &TableMap, schema: &str, name: &str) -> Result<TargetTable, Stop> {
    let there = map.target(schema, name);
    let source = TableName::new(schema, name);
    let table = read_table(client, &there).await.map_err(|e| lookup_failed(schema, name, e).into_stop(None))?;
    let mut table = table.ok_or_else(|| missing_table(&source, &there))?;
    table.mapped_from = (source != there).then_some(source);
    Ok(table)
}

/// Reads the catalog of the target. `None`: no such table, or not a table.
async fn read_table(client: &Client, table: &TableName) -> Result<Option<TargetTable>, tokio_postgres::Error> {
    let TableName { schema, name } = table;
    let rows = client.query(TABLE_SQL, &[schema, name]).await?;
    let Some(first) = rows.first() else { return Ok(None) };
    let oid: u32 = first.try_get(0)?;
    let mut table = TargetTable {
        mapped_from: None,
        schema: schema.clone(),
        name: name.clone(),
        quoted: quote_qualified(schema, name),
        partitioned: first.try_get(1)?,
        quiet: first.try_get(2)?,
        letters: first.try_get(12)?,
        columns: Vec::with_capacity(rows.len()),
        indexes: Vec::new(),
    };
    for row in &rows {
        // A table without columns is one row without a column.
        let Some(name) = row.try_get::<_, Option<String>>(3)? else { break };
        let identity: String = row.try_get(5)?;
        table.columns.push(TargetColumn {
            quoted: quote_ident(&name),
            name,
            not_null: row.try_get(4)?,
            identity: !identity.is_empty(),
            identity_always: identity == "a",
            generated: !row.try_get::<_, String>(6)?.is_empty(),
            domain: row.try_get(7)?,
            base_type: row.try_get(8)?,
            own_cast: row.try_get(9)?,
            is_name: row.try_get(10)?,
            equals: row.try_get(11)?,
        });
    }
    for row in client.query(INDEX_SQL, &[&oid]).await? {
        let names: Option<Vec<String>> = row.try_get(1)?;
        let operators: Option<Vec<String>> = row.try_get(2)?;
        let (Some(names), Some(operators)) = (names, operators) else { continue };
        let columns: Option<Vec<(usize, String)>> =
            names.iter().zip(operators).map(|(name, operator)| Some((table.position(name)?, operator))).collect();
        if let Some(columns) = columns {
            table.indexes.push(TargetIndex { unique: row.try_get(0)?, columns });
        }
    }
    Ok(Some(table))
}

/// The failure to look for a table by its name.
pub(crate) fn lookup_failed(schema: &str, name: &str, error: tokio_postgres::Error) -> Failure {
    match error.code().map(|code| code.code()) {
        Some(state) if is_encoding(state) => Failure::Stop(
            Reason::SchemaMismatch {
                table: format!("{schema}.{name}"),
                what: format!(
                    "the encoding of the target database lacks a character of the table's name: SQLSTATE {state} ({})",
                    condition(state)
                ),
                hint: TARGET_ENCODING.to_owned(),
            }
            .into(),
        ),
        _ => error.into(),
    }
}

/// The reason for a source table that the target does not have.
pub(crate) fn missing_table(source: &TableName, there: &TableName) -> Stop {
    let quoted = shell_quoted(&quote_qualified(&source.schema, &source.name));
    let dump = format!(
        "pg_dump --schema-only --no-owner --no-privileges --no-publications --no-subscriptions --table={quoted} SOURCE"
    );
    let (what, hint) = if source == there {
        let hint = format!(
            "Create it on the target first, most easily with: {dump} | psql TARGET (without --table for all tables)"
        );
        ("the target has no table of this name".to_owned(), hint)
    } else {
        let hint = format!(
            "Create it on the target first, under the name that `map` gives it: {} (its definition on the source: \
             {dump}). Or correct `map`.",
            quote_qualified(&there.schema, &there.name)
        );
        (format!("`map` carries it into {there}, and the target has no table of that name"), hint)
    };
    Reason::SchemaMismatch { table: source.to_string(), what, hint }.into()
}

fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_named_as_far_as_the_oid_tells() {
        assert_eq!(type_name(23, -1), "int4");
        assert_eq!(type_name(1043, 24), "varchar(20)");
        assert_eq!(type_name(1700, (10 << 16 | 2) + 4), "numeric(10, 2)");
        assert_eq!(type_name(1009, -1), "text[]");
        assert_eq!(type_name(18, -1), "\"char\"");
        assert!(type_name(99999, -1).contains("99999"));
    }

    #[test]
    fn a_missing_table_is_named_with_the_command_to_type() {
        let name = TableName::new("it's", "T");
        let stop = missing_table(&name, &name);
        let mapped = missing_table(&name, &TableName::new("app", "t"));
        assert!(mapped.to_string().contains("into app.t") && mapped.hint().contains(r#""app"."t""#), "{mapped}");
        assert!(stop.hint().contains(r#"--table='"it'\''s"."T"'"#), "{}", stop.hint());
    }
}
