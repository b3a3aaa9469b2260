//! Cuts tables into pieces: a few questions for all of them, and a sample of each large one.

use std::collections::HashMap;

use crate::ident::{quote_ident, quote_qualified};
use crate::piece::{ColumnType, Extent, KEY_TYPES, KeyValue, Piece};
use crate::published::PublishedTable;
use crate::snapshot::{SnapshotReader, not_readable};
use crate::sql_error::stop_from_sql;
use crate::stop::{Side, Stop};

/// A table is cut into at most so many pieces.
const PIECES_MAX: u64 = 1024;

/// Blocks that are looked at for each cut, for all together at least, and at most.
const SAMPLE_BLOCKS: (u64, u64, u64) = (32, 256, 20_000);

/// Where the order of the key follows that of the blocks less than this, a range of the key would touch most blocks.
const CORRELATION_MIN: f64 = 0.5;

/// PostgreSQL's block size, unless it was built with another one: then pieces are a little larger or smaller.
const BLOCK_BYTES: u64 = 8192;

const COLUMN_TYPES: &str = "
    WITH RECURSIVE d AS (
        SELECT t.oid AS domain, t.typbasetype AS base FROM pg_catalog.pg_type AS t WHERE t.typtype = 'd'
        UNION ALL
        SELECT d.domain, t.typbasetype FROM d JOIN pg_catalog.pg_type AS t ON t.oid = d.base AND t.typtype = 'd'),
    e AS (
        SELECT e.enumtypid,
               pg_catalog.string_agg(e.enumlabel::pg_catalog.text, E'\\n' ORDER BY e.enumsortorder) AS labels
        FROM pg_catalog.pg_enum AS e GROUP BY 1)
    SELECT a.attrelid, a.attname::pg_catalog.text, b.oid, e.labels
    FROM pg_catalog.pg_attribute AS a
    LEFT JOIN (SELECT d.domain, d.base FROM d JOIN pg_catalog.pg_type AS t ON t.oid = d.base AND t.typtype <> 'd') AS x
         ON x.domain = a.atttypid
    CROSS JOIN LATERAL (SELECT coalesce(x.base, a.atttypid) AS oid) AS b
    LEFT JOIN e ON e.enumtypid = b.oid
    WHERE a.attrelid = ANY ($1) AND a.attnum > 0 AND NOT a.attisdropped";

/// The types of the copied columns of tables, by the table's OID.
pub(crate) async fn column_types(
    reader: &SnapshotReader,
    tables: &[&PublishedTable],
) -> Result<HashMap<u32, Vec<ColumnType>>, Stop> {
    let oids: Vec<u32> = tables.iter().map(|table| table.oid).collect();
    let rows = reader.client().query(COLUMN_TYPES, &[&oids]).await.map_err(|e| stop_from_sql(Side::Source, &e))?;
    let mut found: HashMap<u32, HashMap<String, ColumnType>> = HashMap::new();
    for row in rows {
        let of_table = found.entry(row.get(0)).or_default();
        of_table.insert(row.get(1), ColumnType { oid: row.get(2), labels: row.get(3) });
    }
    let unknown = || ColumnType { oid: 0, labels: None };
    let types = tables.iter().map(|table| {
        let of_table = found.get(&table.oid);
        let type_of = |name| of_table.and_then(|columns| columns.get(name)).cloned().unwrap_or_else(unknown);
        (table.oid, table.columns.iter().map(type_of).collect())
    });
    Ok(types.collect())
}

/// Cuts tables into pieces of about `piece_bytes`. The pieces of each cover it.
pub(crate) async fn cut(
    reader: &SnapshotReader,
    tables: &[&PublishedTable],
    piece_bytes: u64,
) -> Result<HashMap<u32, Vec<Piece>>, Stop> {
    let partitioned = partitioned_bytes(reader, tables).await?;
    let bytes_of = |table: &PublishedTable| partitioned.get(&table.oid).copied().unwrap_or(table.bytes);
    let large: Vec<&PublishedTable> = tables.iter().copied().filter(|table| bytes_of(table) > piece_bytes).collect();
    let facts = facts(reader, &large).await?;
    let mut pieces = HashMap::with_capacity(tables.len());
    for table in tables {
        let bytes = bytes_of(table);
        let extents = match facts.get(&table.oid) {
            Some(facts) => extents(reader, table, facts, bytes, piece_bytes).await?,
            None => vec![Extent::Whole],
        };
        let each = bytes / (extents.len() as u64).max(1);
        let of_table = (0..).zip(extents).map(|(number, extent)| Piece { number, extent, bytes: each });
        pieces.insert(table.oid, of_table.collect());
    }
    Ok(pieces)
}

/// What partitioned tables hold in all their partitions.
async fn partitioned_bytes(reader: &SnapshotReader, tables: &[&PublishedTable]) -> Result<HashMap<u32, u64>, Stop> {
    let roots: Vec<u32> = tables.iter().filter(|table| table.partitioned).map(|table| table.oid).collect();
    if roots.is_empty() {
        return Ok(HashMap::new());
    }
    let sql = "SELECT r.oid, coalesce(pg_catalog.sum(pg_catalog.pg_table_size(t.relid)), 0)::int8 \
               FROM pg_catalog.unnest($1::oid[]) AS r (oid), pg_catalog.pg_partition_tree(r.oid::regclass) AS t \
               GROUP BY 1";
    let rows = reader.client().query(sql, &[&roots]).await.map_err(|e| stop_from_sql(Side::Source, &e))?;
    Ok(rows.iter().map(|row| (row.get(0), row.get::<_, i64>(1).unsigned_abs())).collect())
}

/// What decides how a large table is cut.
struct Facts {
    /// Blocks of the table itself, without what is TOASTed; 0 for a partitioned one.
    blocks: u64,
    /// The key's first column can be cut.
    key: bool,
}

async fn facts(reader: &SnapshotReader, tables: &[&PublishedTable]) -> Result<HashMap<u32, Facts>, Stop> {
    if tables.is_empty() {
        return Ok(HashMap::new());
    }
    let oids: Vec<u32> = tables.iter().map(|table| table.oid).collect();
    let keys: Vec<Option<&str>> = tables.iter().map(|table| table.key.first().map(String::as_str)).collect();
    let sql = "SELECT u.oid, coalesce(CASE c.relkind WHEN 'r' THEN pg_catalog.pg_relation_size(c.oid) \
                   / pg_catalog.current_setting('block_size')::int8 END, 0), \
                 coalesce(a.attnotnull AND a.atttypid = ANY ($3), false) \
               FROM ROWS FROM (pg_catalog.unnest($1::oid[]), pg_catalog.unnest($2::text[])) AS u (oid, key) \
               JOIN pg_catalog.pg_class c ON c.oid = u.oid \
               LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = u.oid AND a.attname::text = u.key AND a.attnum > 0";
    let types: Vec<u32> = KEY_TYPES.to_vec();
    let rows = reader.client().query(sql, &[&oids, &keys, &types]).await;
    let rows = rows.map_err(|e| stop_from_sql(Side::Source, &e))?;
    let facts = |row: &tokio_postgres::Row| Facts { blocks: row.get::<_, i64>(1).unsigned_abs(), key: row.get(2) };
    Ok(rows.iter().map(|row| (row.get(0), facts(row))).collect())
}

async fn extents(
    reader: &SnapshotReader,
    table: &PublishedTable,
    facts: &Facts,
    bytes: u64,
    piece_bytes: u64,
) -> Result<Vec<Extent>, Stop> {
    let count = bytes.div_ceil(piece_bytes.max(1)).clamp(1, PIECES_MAX);
    let by_block = || block_extents(facts.blocks, count);
    let Some(column) = table.key.first().filter(|_| facts.key) else { return Ok(by_block()) };
    let sample = sample(reader, table, column, facts.blocks.max(bytes / BLOCK_BYTES), count).await?;
    let scattered = sample.correlation.is_some_and(|correlation| correlation.abs() < CORRELATION_MIN);
    if sample.cuts.is_empty() || (scattered && facts.blocks > 1) {
        return Ok(by_block());
    }
    let column = |low, high| Extent::Key { column: column.clone(), low, high };
    Ok(ranges(&sample.cuts).map(|(low, high)| column(low, high)).collect())
}

/// Ranges of blocks; a partitioned table has none, and is copied whole.
fn block_extents(blocks: u64, count: u64) -> Vec<Extent> {
    let count = count.min(blocks);
    let cuts: Vec<u32> = (1..count).filter_map(|n| u32::try_from(blocks * n / count).ok()).collect();
    match cuts.is_empty() {
        true => vec![Extent::Whole],
        false => ranges(&cuts).map(|(low, high)| Extent::Ctid { low, high }).collect(),
    }
}

/// The ranges between cuts, and those before the first and behind the last one.
fn ranges<T: Copy>(cuts: &[T]) -> impl Iterator<Item = (Option<T>, Option<T>)> {
    let edges = || std::iter::once(None).chain(cuts.iter().copied().map(Some)).chain([None]);
    edges().zip(edges().skip(1)).collect::<Vec<_>>().into_iter()
}

/// What a look at some blocks of a table says about its key.
struct Sample {
    /// How closely the order of the key follows that of the blocks, from -1 to 1. `None` for a partitioned table, and
    /// where there is too little to tell.
    correlation: Option<f64>,
    /// Values that cut the table into parts of about the same number of rows, ascending.
    cuts: Vec<KeyValue>,
}

async fn sample(
    reader: &SnapshotReader,
    table: &PublishedTable,
    column: &str,
    blocks: u64,
    count: u64,
) -> Result<Sample, Stop> {
    let (each, min, max) = SAMPLE_BLOCKS;
    let wanted = (count * each).clamp(min, max);
    let percent = (100.0 * wanted as f64 / blocks.max(1) as f64).min(100.0);
    let name = quote_qualified(&table.schema, &table.name);
    let (only, place) = match table.partitioned {
        true => ("", "NULL::pg_catalog.float8"),
        false => ("ONLY ", "(t.ctid::pg_catalog.text::pg_catalog.point)[0]"),
    };
    let sql = format!(
        "WITH s AS MATERIALIZED (SELECT t.{} AS k, {place} AS b FROM {only}{name} AS t \
                                 TABLESAMPLE SYSTEM ({percent})) \
         SELECT (SELECT pg_catalog.corr(x.r, x.b) \
                 FROM (SELECT s.b, pg_catalog.row_number() OVER (ORDER BY s.k) AS r FROM s) AS x), \
                (SELECT pg_catalog.percentile_disc($1::float8[]) WITHIN GROUP (ORDER BY s.k)::text[] FROM s)",
        quote_ident(column)
    );
    let fractions: Vec<f64> = (1..count).map(|n| n as f64 / count as f64).collect();
    let row = reader.client().query_one(&sql, &[&fractions]).await.map_err(|e| not_readable(table, e))?;
    // What was locked for the look is let go.
    reader.release().await?;
    let cuts: Option<Vec<Option<String>>> = row.get(1);
    let mut cuts: Vec<KeyValue> =
        cuts.unwrap_or_default().iter().flatten().filter_map(|text| KeyValue::parse(text)).collect();
    cuts.sort_unstable();
    cuts.dedup();
    Ok(Sample { correlation: row.get(0), cuts })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_everything_and_do_not_overlap() {
        let all: Vec<_> = ranges(&[1, 5]).collect();
        assert_eq!(all, [(None, Some(1)), (Some(1), Some(5)), (Some(5), None)]);
        assert_eq!(ranges::<u32>(&[]).collect::<Vec<_>>(), [(None, None)]);
    }

    #[test]
    fn blocks_are_cut_evenly_and_no_block_is_cut() {
        assert_eq!(block_extents(0, 8), [Extent::Whole]);
        assert_eq!(block_extents(1, 8), [Extent::Whole]);
        assert_eq!(
            block_extents(3, 2),
            [Extent::Ctid { low: None, high: Some(1) }, Extent::Ctid { low: Some(1), high: None }]
        );
        assert_eq!(block_extents(1000, 8).len(), 8);
    }
}
