//! A consistent snapshot of the source, and the rows of its tables as COPY data that nobody parses.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};

use crate::connect::{ConnectionSettings, SqlConnection, connect_sql};
use crate::ident::{quote_ident, quote_literal, quote_qualified};
use crate::long_names::long_names;
use crate::position::Boundary;
use crate::published::PublishedTable;
use crate::sql_error::{SOURCE_ENCODING, condition, is_encoding, stop_from_sql};
use crate::stop::{Reason, ServerFault, Side, Stop};

/// A snapshot exported by a slot's creation: every table is read as of its [`boundary`](Snapshot::boundary), by any
/// number of connections at once, for as long as this value lives.
pub struct Snapshot {
    /// Everything that committed before it is in the snapshot; a transaction is new if the boundary precedes it.
    pub boundary: Boundary,
    name: String,
    settings: ConnectionSettings,
    /// The replication session that exported the snapshot: the snapshot can be imported while it lives.
    _exporter: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("boundary", &self.boundary).field("name", &self.name).finish_non_exhaustive()
    }
}

impl Snapshot {
    pub(crate) fn new(
        boundary: Boundary,
        name: String,
        settings: ConnectionSettings,
        exporter: Box<dyn Any + Send + Sync>,
    ) -> Snapshot {
        Snapshot { boundary, name, settings, _exporter: exporter }
    }

    /// The rows of a table, in COPY's text format, as of the snapshot. `bytes` counts what has passed.
    pub async fn rows(&self, table: &PublishedTable, bytes: Arc<AtomicU64>) -> Result<TableRows, Stop> {
        let connection = connect_sql(&self.settings, "snapshot").await.map_err(|e| e.into_stop(Side::Source))?;
        let begin = format!(
            "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {}",
            quote_literal(&self.name)
        );
        let failed = |e| stop_from_sql(Side::Source, &e);
        connection.client.batch_execute(&begin).await.map_err(failed)?;
        self.assert_not_rewritten(&connection.client, table).await?;
        let long_names = long_names(&connection.client, table).await?;
        let stream = connection.client.copy_out(&copy_out_statement(table)).await;
        let stream = stream.map_err(|e| not_readable(table, e))?;
        Ok(TableRows {
            stream: Box::pin(stream),
            table: table.to_string(),
            long_names,
            bytes,
            count: 0,
            _connection: connection,
        })
    }
}

impl Snapshot {
    /// Locks the table against being rewritten for as long as it is copied, and refuses one that was rewritten since
    /// the snapshot was taken: an older snapshot sees such a table as empty. The next attempt takes a new snapshot.
    async fn assert_not_rewritten(&self, client: &tokio_postgres::Client, table: &PublishedTable) -> Result<(), Stop> {
        let name = quote_qualified(&table.schema, &table.name);
        let lock = client.batch_execute(&format!("LOCK TABLE {name} IN ACCESS SHARE MODE")).await;
        lock.map_err(|e| not_readable(table, e))?;
        // The catalog is read as of the snapshot; the function looks at what is there now.
        let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = $1 OR c.oid IN \
               (SELECT t.relid FROM pg_catalog.pg_partition_tree($1::oid::regclass) t) \
             HAVING pg_catalog.bool_or(c.relfilenode <> 0 \
               AND pg_catalog.pg_relation_filenode(c.oid) IS DISTINCT FROM c.relfilenode))";
        let row = client.query_one(sql, &[&table.oid]).await.map_err(|e| stop_from_sql(Side::Source, &e))?;
        if row.get(0) {
            let fault = ServerFault {
                sqlstate: "40001".to_owned(),
                schema: Some(table.schema.clone()),
                table: Some(table.name.clone()),
                ..ServerFault::default()
            };
            return Err(Reason::Busy { side: Side::Source, fault }.into());
        }
        Ok(())
    }
}

fn not_readable(table: &PublishedTable, error: tokio_postgres::Error) -> Stop {
    match error.code().map(|c| c.code()) {
        Some("42501") => Reason::SourceNotReady {
            what: format!("the role may not read all of table {table}"),
            hint: format!(
                "GRANT SELECT ON {} TO the source's role (and USAGE on its schema); on the source. Where row-level \
                 security is on, the role needs BYPASSRLS: ALTER ROLE ... BYPASSRLS;",
                quote_qualified(&table.schema, &table.name)
            ),
        }
        .into(),
        _ => stop_from_sql(Side::Source, &error),
    }
}

fn copy_out_statement(table: &PublishedTable) -> String {
    let columns: Vec<String> = table.columns.iter().map(|c| quote_ident(c)).collect();
    let only = if table.partitioned { "" } else { "ONLY " };
    let filter = table.row_filter.as_ref().map_or(String::new(), |filter| format!(" WHERE {filter}"));
    format!(
        "COPY (SELECT {} FROM {only}{}.{}{filter}) TO STDOUT",
        columns.join(", "),
        quote_ident(&table.schema),
        quote_ident(&table.name),
    )
}

/// The rows of one table on their way: COPY data in text format, in pieces that need not end with a row.
pub struct TableRows {
    stream: Pin<Box<dyn Stream<Item = Result<Bytes, tokio_postgres::Error>> + Send>>,
    table: String,
    long_names: Vec<String>,
    bytes: Arc<AtomicU64>,
    count: u64,
    _connection: SqlConnection,
}

impl TableRows {
    /// The next piece, or `None` behind the last one.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Stop> {
        let piece = self.stream.next().await.transpose();
        let piece = piece.map_err(|e| unsendable(&self.table, self.count + 1, &e))?;
        self.bytes.fetch_add(piece.as_ref().map_or(0, |p| p.len() as u64), Ordering::Relaxed);
        // Each row ends with a newline; those within values are escaped.
        self.count += piece.as_ref().map_or(0, |p| p.iter().filter(|byte| **byte == b'\n').count() as u64);
        Ok(piece)
    }

    /// Columns of type `name` with a value that takes more than 63 bytes in UTF8.
    pub fn long_names(&self) -> &[String] {
        &self.long_names
    }

    /// How many rows have passed.
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// The reason for an error between two rows. Where it is a value that cannot be sent, it is one of the next row.
fn unsendable(table: &str, row: u64, error: &tokio_postgres::Error) -> Stop {
    match error.code().map(|code| code.code()) {
        Some(state) if is_encoding(state) => Reason::SourceNotReady {
            what: format!(
                "table {table} has a value that cannot be sent as UTF8, in row {row} of the copy: \
                 SQLSTATE {state} ({})",
                condition(state)
            ),
            hint: format!("{SOURCE_ENCODING} Then `pgonce run` copies the table."),
        }
        .into(),
        _ => stop_from_sql(Side::Source, error),
    }
}

impl fmt::Debug for TableRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TableRows")
    }
}
