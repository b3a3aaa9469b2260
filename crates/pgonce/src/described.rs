//! The published tables as the stream would describe them, read from the catalog: what the schema of a table was before
//! its first change arrived.

use tokio_postgres::Client;

use crate::catalog::{identity, insert_position, reading_failed};
use crate::position::Boundary;
use crate::relation::{Relation, RelationColumn};
use crate::stop::Stop;

/// Published tables, as described by the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The tables. Of partitions that are published as their root, the root.
    pub tables: Vec<Relation>,
    /// The catalog was read before this point: what commits behind it and describes a table otherwise has changed it
    /// since. What commits before it may be older than the catalog.
    pub read_before: Boundary,
}

/// Describes what is published now, as pgoutput does: published columns, in the order in which they were made, those of
/// the replica identity marked (with FULL every one).
///
/// # Errors
///
/// The source cannot be asked.
pub(crate) async fn described(client: &Client, version: u32, publications: &[String]) -> Result<Described, Stop> {
    let names: Vec<&str> = publications.iter().map(String::as_str).collect();
    // The view knows lists of columns from version 15 on, and generated columns that are sent from 18 on.
    let (attnames, published) = match version {
        ..150_000 => ("NULL::name[]", "a.attgenerated = ''"),
        150_000..180_000 => ("t.attnames", "a.attname = ANY (p.attnames) AND a.attgenerated = ''"),
        _ => ("t.attnames", "a.attname = ANY (p.attnames)"),
    };
    let sql = format!(
        "WITH v AS MATERIALIZED (SELECT t.schemaname, t.tablename, {attnames} AS attnames \
           FROM pg_catalog.pg_publication_tables t WHERE t.pubname = ANY ($1)), \
         p AS MATERIALIZED (SELECT v.schemaname, v.tablename, pg_catalog.array_agg(u.attname) AS attnames \
           FROM v LEFT JOIN LATERAL pg_catalog.unnest(v.attnames) u (attname) ON true GROUP BY 1, 2) \
         SELECT c.oid, n.nspname::text, c.relname::text, c.relreplident::text, a.attname::text, a.atttypid, \
           a.atttypmod, c.relreplident = 'f' OR coalesce(a.attnum = ANY (k.attnums), false) \
         FROM p JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname \
         JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename \
         LEFT JOIN LATERAL (SELECT (i.indkey::int2[])[0:i.indnkeyatts - 1] AS attnums FROM pg_catalog.pg_index i \
           WHERE i.indrelid = c.oid AND i.indisvalid AND i.indisunique AND i.indimmediate \
             AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END \
           LIMIT 1) k ON true \
         LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
           AND {published} \
         ORDER BY c.oid, a.attnum"
    );
    let rows = client.query(&sql, &[&names]).await.map_err(reading_failed)?;
    let mut tables: Vec<Relation> = Vec::new();
    for row in &rows {
        let oid: u32 = row.get(0);
        if tables.last().is_none_or(|table| table.oid != oid) {
            let identity = identity(row.get::<_, String>(3).as_bytes());
            tables.push(Relation { oid, schema: row.get(1), name: row.get(2), identity, columns: Vec::new() });
        }
        // A table without columns is one row without a column.
        if let (Some(table), Some(name)) = (tables.last_mut(), row.get::<_, Option<String>>(4)) {
            let (type_oid, type_modifier, key) = (row.get(5), row.get(6), row.get(7));
            table.columns.push(RelationColumn { name, type_oid, type_modifier, key });
        }
    }
    Ok(Described { tables, read_before: insert_position(client).await? })
}
