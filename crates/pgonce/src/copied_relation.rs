//! Tables that are copied, described as the stream would.

use std::collections::HashMap;
use std::sync::Arc;

use crate::published::PublishedTable;
use crate::relation::{Relation, RelationColumn};
use crate::snapshot::SnapshotReader;
use crate::sql_error::stop_from_sql;
use crate::stop::{Side, Stop};

/// What pgoutput marks as the key: with FULL every column, else those of the index if it can tell rows apart at once.
const COLUMNS: &str = "
    SELECT a.attrelid, a.attname::pg_catalog.text, a.atttypid, a.atttypmod,
           c.relreplident = 'f' OR coalesce(a.attnum = ANY (k.attnums), false)
    FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN LATERAL (
        SELECT (i.indkey::int2[])[0:i.indnkeyatts - 1] AS attnums FROM pg_catalog.pg_index AS i
        WHERE i.indrelid = c.oid AND i.indisvalid AND i.indisunique AND i.indimmediate
          AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
        LIMIT 1) AS k ON true
    WHERE c.oid = ANY ($1)";

/// The description of each table, with its copied columns, in their order.
pub(crate) async fn relations(reader: &SnapshotReader, tables: &[&PublishedTable]) -> Result<Vec<Arc<Relation>>, Stop> {
    let oids: Vec<u32> = tables.iter().map(|table| table.oid).collect();
    let rows = reader.client().query(COLUMNS, &[&oids]).await.map_err(|e| stop_from_sql(Side::Source, &e))?;
    let mut columns: HashMap<(u32, String), RelationColumn> = HashMap::with_capacity(rows.len());
    for row in rows {
        let (oid, name): (u32, String) = (row.get(0), row.get(1));
        let (type_oid, type_modifier, key) = (row.get(2), row.get(3), row.get(4));
        columns.insert((oid, name.clone()), RelationColumn { name, type_oid, type_modifier, key });
    }
    let described = tables.iter().map(|table| {
        // A column that is gone fails the copy: what is published is read anew then.
        let unknown = |name: &String| RelationColumn { name: name.clone(), type_oid: 0, type_modifier: -1, key: false };
        let column = |name: &String| columns.remove(&(table.oid, name.clone())).unwrap_or_else(|| unknown(name));
        let columns = table.columns.iter().map(column).collect();
        let (schema, name) = (table.schema.clone(), table.name.clone());
        Arc::new(Relation { oid: table.oid, schema, name, identity: table.identity, columns })
    });
    Ok(described.collect())
}
