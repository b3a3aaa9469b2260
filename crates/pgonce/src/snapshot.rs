//! A consistent snapshot of the source, and the rows of its tables as COPY data that nobody parses.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use tokio_postgres::Client;

use crate::connect::{ConnectionSettings, SqlConnection, connect_sql};
use crate::ident::{quote_ident, quote_literal, quote_qualified};
use crate::long_names::long_names;
use crate::piece::{Extent, Format};
use crate::position::Boundary;
use crate::published::PublishedTable;
use crate::replication::ReplicationSession;
use crate::row_count::RowCounter;
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

    /// A connection that reads as of the snapshot, and goes on doing so when the snapshot is dropped.
    pub async fn reader(&self) -> Result<SnapshotReader, Stop> {
        let connection = connect_sql(&self.settings, "snapshot").await.map_err(|e| e.into_stop(Side::Source))?;
        let begin = "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY";
        connection.client.batch_execute(begin).await.map_err(|e| stop_from_sql(Side::Source, &e))?;
        let import = format!("SET TRANSACTION SNAPSHOT {}; SAVEPOINT piece", quote_literal(&self.name));
        connection.client.batch_execute(&import).await.map_err(|e| match e.as_db_error() {
            // The session that exported it has ended.
            Some(db) if matches!(db.code().code(), "22023" | "42704") => {
                let what = "the snapshot is gone with the connection that exported it".to_owned();
                Reason::Connection { side: Side::Source, what }.into()
            }
            _ => stop_from_sql(Side::Source, &e),
        })?;
        Ok(SnapshotReader { connection: Arc::new(connection) })
    }
}

/// Takes snapshots of a source, beside whatever else is done with it.
#[derive(Clone, Debug)]
pub struct Snapshots {
    settings: ConnectionSettings,
}

impl Snapshots {
    pub(crate) fn new(settings: ConnectionSettings) -> Snapshots {
        Snapshots { settings }
    }

    /// A consistent snapshot, taken now: that of a temporary slot, which goes with it. Waits until the transactions
    /// that are open on the source have ended.
    pub async fn take(&self) -> Result<Snapshot, Stop> {
        let mut exporter = ReplicationSession::open(&self.settings).await?;
        let name = format!("pgonce_copy_{}_{}", std::process::id(), uniquifier());
        let created = exporter.create_slot(&name, true, false).await?;
        Ok(Snapshot::new(created.consistent_point, created.snapshot, self.settings.clone(), Box::new(exporter)))
    }

    /// A connection that reads what is there now, at no boundary: for looks at the catalog, and samples.
    pub(crate) async fn now(&self) -> Result<SnapshotReader, Stop> {
        let connection = connect_sql(&self.settings, "snapshot").await.map_err(|e| e.into_stop(Side::Source))?;
        let begin = "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY; SAVEPOINT piece";
        connection.client.batch_execute(begin).await.map_err(|e| stop_from_sql(Side::Source, &e))?;
        Ok(SnapshotReader { connection: Arc::new(connection) })
    }
}

/// Tells apart the temporary slots of one process.
fn uniquifier() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A connection that reads as of a [`Snapshot`], one piece after the other.
#[derive(Debug)]
pub struct SnapshotReader {
    connection: Arc<SqlConnection>,
}

impl SnapshotReader {
    /// The connection. What is locked through it is let go with the next piece.
    pub(crate) fn client(&self) -> &Client {
        &self.connection.client
    }

    /// Lets go of what the piece before has locked.
    pub(crate) async fn release(&self) -> Result<(), Stop> {
        let released = self.client().batch_execute("ROLLBACK TO SAVEPOINT piece").await;
        released.map_err(|e| stop_from_sql(Side::Source, &e))
    }

    /// The rows of a piece of a table, as of the snapshot. `passed` counts what has passed.
    pub async fn rows(
        &mut self,
        table: &PublishedTable,
        extent: &Extent,
        format: Format,
        passed: Arc<Passed>,
    ) -> Result<TableRows, Stop> {
        self.release().await?;
        self.assert_not_rewritten(table).await?;
        // A range of the key is meant for the key's index, whatever the statistics say: read as a whole once for each
        // of its ranges, a large table would never be done.
        let scan = if matches!(extent, Extent::Key { .. }) { "off" } else { "on" };
        let scan = self.client().batch_execute(&format!("SET LOCAL enable_seqscan = {scan}")).await;
        scan.map_err(|e| stop_from_sql(Side::Source, &e))?;
        let long_names = long_names(self.client(), table).await?;
        let stream = self.client().copy_out(&copy_out_statement(table, extent, format)).await;
        let stream = stream.map_err(|e| not_readable(table, e))?;
        Ok(TableRows {
            stream: Box::pin(stream.fuse()),
            table: table.to_string(),
            long_names,
            passed,
            format,
            counter: RowCounter::new(format),
            gathered: BytesMut::new(),
            connection: Arc::clone(&self.connection),
        })
    }

    /// Locks the table against being rewritten for as long as a piece is copied, and refuses one that was rewritten
    /// since the snapshot was taken: an older snapshot sees such a table as empty. The next attempt takes a new
    /// snapshot.
    async fn assert_not_rewritten(&self, table: &PublishedTable) -> Result<(), Stop> {
        let name = quote_qualified(&table.schema, &table.name);
        let lock = self.client().batch_execute(&format!("LOCK TABLE {name} IN ACCESS SHARE MODE")).await;
        lock.map_err(|e| not_readable(table, e))?;
        // The catalog is read as of the snapshot; the function looks at what is there now.
        let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = ANY (ARRAY( \
               SELECT $1::oid UNION ALL SELECT t.relid FROM pg_catalog.pg_partition_tree($1::oid::regclass) t)) \
             HAVING pg_catalog.bool_or(c.relfilenode <> 0 \
               AND pg_catalog.pg_relation_filenode(c.oid) IS DISTINCT FROM c.relfilenode))";
        let row = self.client().query_one(sql, &[&table.oid]).await.map_err(|e| stop_from_sql(Side::Source, &e))?;
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

/// The reason for not being able to read a table.
pub(crate) fn not_readable(table: &PublishedTable, error: tokio_postgres::Error) -> Stop {
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
        // It was dropped or altered since it was read what is published: that is read anew.
        Some(state @ ("42P01" | "42703" | "3F000")) => {
            let fault = ServerFault {
                sqlstate: state.to_owned(),
                schema: Some(table.schema.clone()),
                table: Some(table.name.clone()),
                ..ServerFault::default()
            };
            Reason::Busy { side: Side::Source, fault }.into()
        }
        _ => stop_from_sql(Side::Source, &error),
    }
}

fn copy_out_statement(table: &PublishedTable, extent: &Extent, format: Format) -> String {
    let columns: Vec<String> = table.columns.iter().map(|c| quote_ident(c)).collect();
    let only = if table.partitioned { "" } else { "ONLY " };
    let filter = table.row_filter.as_ref().map(|filter| format!("({filter})"));
    let piece = match extent {
        Extent::Key { column, .. } => extent.condition(column),
        _ => extent.condition(""),
    };
    let conditions: Vec<String> = filter.into_iter().chain(piece).collect();
    let conditions = if conditions.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) };
    let format = if format == Format::Binary { " (FORMAT binary)" } else { "" };
    format!(
        "COPY (SELECT {} FROM {only}{}{conditions}) TO STDOUT{format}",
        columns.join(", "),
        quote_qualified(&table.schema, &table.name),
    )
}

/// What has passed of a piece on its way, for whoever watches.
#[derive(Debug, Default)]
pub struct Passed {
    /// Rows.
    pub rows: AtomicU64,
    /// Bytes of COPY data.
    pub bytes: AtomicU64,
}

/// The rows of one piece of a table on their way: COPY data, in chunks that need not end with a row.
pub struct TableRows {
    stream: Pin<Box<dyn Stream<Item = Result<Bytes, tokio_postgres::Error>> + Send>>,
    table: String,
    long_names: Vec<String>,
    passed: Arc<Passed>,
    format: Format,
    counter: RowCounter,
    /// Short messages, put together.
    gathered: BytesMut,
    connection: Arc<SqlConnection>,
}

/// A server sends each row in a message of its own: so many bytes go on together.
const CHUNK_BYTES: usize = 64 << 10;

impl TableRows {
    /// The next chunk, or `None` behind the last one.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Stop> {
        loop {
            let message = self.stream.next().await.transpose();
            let message = message.map_err(|e| unsendable(&self.table, self.count() + 1, &e))?;
            let Some(message) = message else {
                let last = self.gathered.split().freeze();
                return Ok((!last.is_empty()).then_some(last));
            };
            let before = self.counter.rows();
            self.counter.pass(&message);
            self.passed.bytes.fetch_add(message.len() as u64, Ordering::Relaxed);
            self.passed.rows.fetch_add(self.counter.rows() - before, Ordering::Relaxed);
            if self.gathered.is_empty() {
                if message.len() >= CHUNK_BYTES {
                    return Ok(Some(message));
                }
                self.gathered.reserve(2 * CHUNK_BYTES);
            }
            self.gathered.extend_from_slice(&message);
            if self.gathered.len() >= CHUNK_BYTES {
                return Ok(Some(self.gathered.split().freeze()));
            }
        }
    }

    /// The format of the data.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Columns of type `name` with a value that takes more than 63 bytes in UTF8.
    pub fn long_names(&self) -> &[String] {
        &self.long_names
    }

    /// How many rows have passed.
    pub fn count(&self) -> u64 {
        self.counter.rows()
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
        f.debug_struct("TableRows").field("connection", &self.connection.endpoint()).finish_non_exhaustive()
    }
}
