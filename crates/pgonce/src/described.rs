//! Tables as the stream would describe them, read from the catalog.

use std::collections::HashMap;
use std::sync::Arc;

use crate::pgoutput::ReplicaIdentity;
use crate::published::PublishedTable;
use crate::relation::{Relation, RelationColumn};
use crate::snapshot::SnapshotReader;
use crate::sql_error::stop_from_sql;
use crate::stop::{Side, Stop};

const COLUMNS: &str = "
    SELECT a.attrelid, a.attname::pg_catalog.text, a.atttypid, a.atttypmod
    FROM pg_catalog.pg_attribute AS a
    WHERE a.attrelid = ANY ($1) AND a.attnum > 0 AND NOT a.attisdropped";

/// The description of each table, with its copied columns, in their order.
pub(crate) async fn relations(reader: &SnapshotReader, tables: &[&PublishedTable]) -> Result<Vec<Arc<Relation>>, Stop> {
    let oids: Vec<u32> = tables.iter().map(|table| table.oid).collect();
    let rows = reader.client().query(COLUMNS, &[&oids]).await.map_err(|e| stop_from_sql(Side::Source, &e))?;
    let mut types: HashMap<u32, HashMap<String, (u32, i32)>> = HashMap::new();
    for row in rows {
        types.entry(row.get(0)).or_default().insert(row.get(1), (row.get(2), row.get(3)));
    }
    let described = tables.iter().map(|table| {
        let of_table = types.get(&table.oid);
        let column = |name: &String| {
            let (type_oid, type_modifier) = of_table.and_then(|t| t.get(name)).copied().unwrap_or((0, -1));
            let key = table.identity == ReplicaIdentity::Full || table.key.contains(name);
            RelationColumn { name: name.clone(), type_oid, type_modifier, key }
        };
        Arc::new(Relation {
            oid: table.oid,
            schema: table.schema.clone(),
            name: table.name.clone(),
            identity: table.identity,
            columns: table.columns.iter().map(column).collect(),
        })
    });
    Ok(described.collect())
}
