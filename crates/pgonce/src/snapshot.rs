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
use crate::position::Boundary;
use crate::published::PublishedTable;
use crate::sql_error::stop_from_sql;
use crate::stop::{Reason, Side, Stop};

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
        let stream = connection.client.copy_out(&copy_out_statement(table)).await;
        let stream = stream.map_err(|e| match e.code().map(|c| c.code()) {
            Some("42501") => Reason::SourceNotReady {
                what: format!("the role may not read table {table}"),
                hint: format!(
                    "GRANT SELECT ON {} TO the source's role (and USAGE on its schema); on the source.",
                    quote_qualified(&table.schema, &table.name)
                ),
            }
            .into(),
            _ => failed(e),
        })?;
        Ok(TableRows { stream: Box::pin(stream), bytes, _connection: connection })
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
    bytes: Arc<AtomicU64>,
    _connection: SqlConnection,
}

impl TableRows {
    /// The next piece, or `None` behind the last one.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Stop> {
        let piece = self.stream.next().await.transpose().map_err(|e| stop_from_sql(Side::Source, &e))?;
        self.bytes.fetch_add(piece.as_ref().map_or(0, |p| p.len() as u64), Ordering::Relaxed);
        Ok(piece)
    }
}

impl fmt::Debug for TableRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TableRows")
    }
}
