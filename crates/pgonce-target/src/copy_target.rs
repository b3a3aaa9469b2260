//! The tables that are copied into, as the target's catalog describes them: one question for all of them.

use std::collections::HashMap;

use pgonce::ident::{quote_ident, quote_qualified};
use pgonce::piece::{ColumnType, Format};
use pgonce::published::PublishedTable;
use pgonce::stop::{Reason, Stop};
use tokio_postgres::{Client, Error};

use crate::map::{TableMap, TableName};
use crate::schema::missing_table;

/// A table that is copied into.
#[derive(Debug, Clone)]
pub(crate) struct CopyTarget {
    /// OID on the target.
    pub(crate) oid: u32,
    /// Schema-qualified and quoted.
    pub(crate) quoted: String,
    /// Its name, where it is not the source's.
    renamed: Option<TableName>,
    /// `ONLY ` where the table has no partitions by definition.
    pub(crate) only: &'static str,
    columns: Vec<TargetColumn>,
}

#[derive(Debug, Clone)]
struct TargetColumn {
    name: String,
    generated: bool,
    column_type: ColumnType,
}

/// The OID of the type `name`.
const NAME: u32 = 19;

/// Whether every letter takes one byte in the target's encoding.
pub(crate) async fn letters(client: &Client) -> Result<bool, Error> {
    let sql = "SELECT pg_catalog.pg_encoding_max_length(d.encoding) = 1 AND pg_catalog.getdatabaseencoding() <> \
         'SQL_ASCII' \
               FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database()";
    client.query_one(sql, &[]).await?.try_get(0)
}

const TABLES: &str = "
    WITH RECURSIVE d AS (
        SELECT t.oid AS domain, t.typbasetype AS base FROM pg_catalog.pg_type AS t WHERE t.typtype = 'd'
        UNION ALL
        SELECT d.domain, t.typbasetype FROM d JOIN pg_catalog.pg_type AS t ON t.oid = d.base AND t.typtype = 'd'),
    e AS (
        SELECT e.enumtypid,
               pg_catalog.string_agg(e.enumlabel::pg_catalog.text, E'\\n' ORDER BY e.enumsortorder) AS labels
        FROM pg_catalog.pg_enum AS e GROUP BY 1)
    SELECT u.place, c.oid, c.relkind = 'p', a.attname::pg_catalog.text, a.attgenerated <> '', b.oid, e.labels
    FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.text[]))
         WITH ORDINALITY AS u (schema, name, place)
    JOIN pg_catalog.pg_namespace AS n ON n.nspname = u.schema::pg_catalog.name
    JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = u.name::pg_catalog.name
         AND c.relkind IN ('r', 'p')
    LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN (SELECT d.domain, d.base FROM d JOIN pg_catalog.pg_type AS t ON t.oid = d.base AND t.typtype <> 'd') AS x
         ON x.domain = a.atttypid
    LEFT JOIN LATERAL (SELECT coalesce(x.base, a.atttypid) AS oid) AS b ON true
    LEFT JOIN e ON e.enumtypid = b.oid
    ORDER BY u.place, a.attnum";

/// The target of each table, in their order; `None` where it has no such table.
pub(crate) async fn find(
    client: &Client,
    map: &TableMap,
    tables: &[&PublishedTable],
) -> Result<Vec<Option<CopyTarget>>, Error> {
    let there: Vec<TableName> = tables.iter().map(|table| map.target(&table.schema, &table.name)).collect();
    let (schemas, names): (Vec<&str>, Vec<&str>) = there.iter().map(|t| (t.schema.as_str(), t.name.as_str())).unzip();
    let mut found: Vec<Option<CopyTarget>> = vec![None; tables.len()];
    for row in client.query(TABLES, &[&schemas, &names]).await? {
        let place = usize::try_from(row.try_get::<_, i64>(0)?).unwrap_or(0).saturating_sub(1);
        let (Some(slot), Some(table), Some(there)) = (found.get_mut(place), tables.get(place), there.get(place)) else {
            continue;
        };
        if slot.is_none() {
            let only = if row.try_get(2)? { "" } else { "ONLY " };
            let quoted = quote_qualified(&there.schema, &there.name);
            let renamed = (table.schema != there.schema || table.name != there.name).then(|| there.clone());
            *slot = Some(CopyTarget { oid: row.try_get(1)?, quoted, renamed, only, columns: Vec::new() });
        }
        // A table without columns is one row without a column.
        let (Some(target), Some(name)) = (slot, row.try_get(3)?) else { continue };
        let column_type = ColumnType { oid: row.try_get(5)?, labels: row.try_get(6)? };
        target.columns.push(TargetColumn { name, generated: row.try_get(4)?, column_type });
    }
    Ok(found)
}

/// The reason for a table that the target does not have.
pub(crate) fn missing(map: &TableMap, table: &PublishedTable) -> Stop {
    missing_table(&TableName::new(&table.schema, &table.name), &map.target(&table.schema, &table.name))
}

impl CopyTarget {
    fn column(&self, name: &str) -> Option<&TargetColumn> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// Whether a column is of the type `name`, or a domain of it.
    pub(crate) fn is_name(&self, column: &str) -> bool {
        self.column(column).is_some_and(|column| column.column_type.oid == NAME)
    }

    /// The statement that takes the table's rows in.
    pub(crate) fn copy_in(&self, table: &PublishedTable, format: Format) -> Result<String, Stop> {
        let mismatch = |what: String, hint: String| -> Stop {
            Reason::SchemaMismatch { table: table.to_string(), what, hint }.into()
        };
        let ordinary = |name: &&String| self.column(name).is_some_and(|column| !column.generated);
        if let Some(name) = table.generated.iter().find(ordinary) {
            return Err(mismatch(
                format!("column {name:?} is generated on the source and an ordinary one on the target"),
                "The copy leaves generated columns to the target. Generate it there with the same expression, or leave \
                 it out of the publication (publish_generated_columns, or its list of columns)."
                    .to_owned(),
            ));
        }
        for name in &table.columns {
            match self.column(name) {
                Some(column) if column.generated => {
                    return Err(mismatch(
                        format!("column {name:?} is generated on the target, and an ordinary one on the source"),
                        format!(
                            "On the target: ALTER TABLE {} ALTER COLUMN {} DROP EXPRESSION; \
                             or leave the column out of the publication.",
                            self.quoted,
                            quote_ident(name)
                        ),
                    ));
                }
                Some(_) => {}
                None => {
                    return Err(mismatch(
                        match &self.renamed {
                            Some(there) => format!("the target's table {there} has no column {name:?}"),
                            None => format!("the target has no column {name:?}"),
                        },
                        format!(
                            "On the target: ALTER TABLE {} ADD COLUMN {} <the source's type: see \\d on the source>;",
                            self.quoted,
                            quote_ident(name)
                        ),
                    ));
                }
            }
        }
        // An empty list of columns is no list at all; the table then has none on either side that is published.
        let columns: Vec<String> = table.columns.iter().map(|name| quote_ident(name)).collect();
        let list = if columns.is_empty() { String::new() } else { format!(" ({})", columns.join(", ")) };
        let format = if format == Format::Binary { " (FORMAT binary)" } else { "" };
        Ok(format!("COPY {}{list} FROM STDIN{format}", self.quoted))
    }

    /// Binary where both sides have the same types, and their binary form is the same in all versions.
    pub(crate) fn format(&self, table: &PublishedTable, types: &[ColumnType]) -> Format {
        let alike = |(name, source): (&String, &ColumnType)| {
            self.column(name).is_some_and(|target| go_in_binary(source, &target.column_type))
        };
        match types.len() == table.columns.len() && table.columns.iter().zip(types).all(alike) {
            true => Format::Binary,
            false => Format::Text,
        }
    }
}

fn go_in_binary(source: &ColumnType, target: &ColumnType) -> bool {
    match (&source.labels, &target.labels) {
        // An enum goes by its label, and its OID is another one on each server.
        (Some(source), Some(target)) => source == target,
        (None, None) => source.oid == target.oid && STABLE.contains(&source.oid),
        _ => false,
    }
}

/// Built-in types whose binary form is the same from 14 to 18, and their arrays. Not `money`, which depends on a
/// setting; not `regclass` and the like, whose numbers mean something else on another server.
#[rustfmt::skip]
const STABLE: &[u32] = &[
    // bool, bytea, "char", name, int8, int2, int4, text, oid
    16, 17, 18, 19, 20, 21, 23, 25, 26, 1000, 1001, 1002, 1003, 1016, 1005, 1007, 1009, 1028,
    // json, xml, jsonb
    114, 142, 3802, 199, 143, 3807,
    // point, lseg, path, box, polygon, line, circle
    600, 601, 602, 603, 604, 628, 718, 1017, 1018, 1019, 1020, 1027, 629, 719,
    // float4, float8, numeric
    700, 701, 1700, 1021, 1022, 1231,
    // cidr, inet, macaddr, macaddr8
    650, 869, 829, 774, 651, 1041, 1040, 775,
    // bpchar, varchar
    1042, 1043, 1014, 1015,
    // date, time, timestamp, timestamptz, interval, timetz
    1082, 1083, 1114, 1184, 1186, 1266, 1182, 1183, 1115, 1185, 1187, 1270,
    // bit, varbit
    1560, 1562, 1561, 1563,
    // uuid, pg_lsn
    2950, 3220, 2951, 3221,
    // tsvector; an empty tsquery is not taken in
    3614, 3643,
    // int4range, numrange, tsrange, tstzrange, daterange, int8range
    3904, 3906, 3908, 3910, 3912, 3926, 3905, 3907, 3909, 3911, 3913, 3927,
    // int4multirange, nummultirange, tsmultirange, tstzmultirange, datemultirange, int8multirange
    4451, 4532, 4533, 4534, 4535, 4536, 6150, 6151, 6152, 6153, 6155, 6157,
];

/// Of tables that are copied by ranges of a column: those where rows of different ranges can be in each other's way,
/// because something unique does not contain the column. Two ranges of such a table that were read at different times
/// need not go together, and so all of them are read at one time.
pub(crate) async fn hold_together(client: &Client, ranges: &[(u32, &str)]) -> Result<Vec<u32>, Error> {
    if ranges.is_empty() {
        return Ok(Vec::new());
    }
    let (oids, columns): (Vec<u32>, Vec<&str>) = ranges.iter().copied().unzip();
    let sql = "
        SELECT DISTINCT u.oid
        FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.oid[]), pg_catalog.unnest($2::pg_catalog.text[]))
             AS u (oid, key)
        CROSS JOIN LATERAL (SELECT u.oid AS relid
                            UNION SELECT t.relid FROM pg_catalog.pg_partition_tree(u.oid) AS t) AS t
        JOIN pg_catalog.pg_index AS i ON i.indrelid = t.relid
        WHERE (i.indisunique OR i.indisexclusion) AND (i.indisexclusion OR NOT EXISTS (
            SELECT FROM pg_catalog.pg_attribute AS a
            WHERE a.attrelid = i.indrelid AND a.attname::pg_catalog.text = u.key
              AND a.attnum = ANY ((i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1])))";
    client.query(sql, &[&oids, &columns]).await?.iter().map(|row| row.try_get(0)).collect()
}

/// Which of the tables hold rows, asked for some hundred at a time.
pub(crate) async fn occupied<'t>(client: &Client, targets: &[&'t CopyTarget]) -> Result<Vec<&'t CopyTarget>, Error> {
    let mut filled = Vec::new();
    for some in targets.chunks(200) {
        let questions = some.iter().enumerate().map(|(place, target)| {
            format!("SELECT {place} WHERE EXISTS (SELECT FROM {}{})", target.only, target.quoted)
        });
        let sql = questions.collect::<Vec<_>>().join(" UNION ALL ");
        for row in client.query(&sql, &[]).await? {
            let place = usize::try_from(row.try_get::<_, i32>(0)?).unwrap_or(0);
            filled.extend(some.get(place));
        }
    }
    Ok(filled)
}

/// By OID on the source.
pub(crate) type Targets = HashMap<u32, CopyTarget>;
