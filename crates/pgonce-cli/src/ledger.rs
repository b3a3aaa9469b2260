//! The flow's state on the target, as the commands show it.

use std::time::{Duration, SystemTime};

use pgonce::ident::quote_ident;
use pgonce::partitions;
use pgonce::position::{Boundary, Checkpoint, Lsn};
use pgonce::stop::Side;
use pgonce_target::{CopyingTable, FlowPhase, FlowStatus};
use tokio_postgres::Client;

use crate::failure::Failure;

/// What the ledger holds of a flow.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FlowState {
    /// How far it has come.
    pub phase: FlowPhase,
    /// The server process on the target that writes it now, if there is one.
    pub alive: Option<i32>,
    /// The last applied transaction.
    pub checkpoint: Option<Checkpoint>,
    /// When it committed on the source.
    pub commit_time: Option<SystemTime>,
    /// The last idle boundary.
    pub idle: Option<Boundary>,
    /// When it was stored.
    pub idle_at: Option<SystemTime>,
    /// The tables that were copied.
    pub copied: Vec<CopiedTable>,
    /// The target's names of tables, an entry a line, as the flow began with them.
    pub map: Vec<String>,
    /// What is to be mended of its partitions, in words.
    pub warnings: Vec<String>,
    /// What is being done to the target's schema, while it is.
    pub schema_copy: Option<String>,
    /// The tables whose copy is not complete.
    pub copying: Vec<CopyingTable>,
    /// How long it takes to complete them, about.
    pub copy_left: Option<Duration>,
    /// The fence's number.
    pub epoch: i64,
    /// Who writes, or wrote last.
    pub holder: Option<String>,
    /// Why it stopped last.
    pub stop: Option<StoredStop>,
}

/// A table of the initial copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopiedTable {
    /// Schema and name.
    pub name: String,
    /// Rows copied.
    pub rows: u64,
    /// Where it was read.
    pub boundary: Boundary,
}

/// Why a flow stopped.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StoredStop {
    /// See [`pgonce::stop::Reason::code`].
    pub code: String,
    /// In words.
    pub text: String,
    /// What to do.
    pub hint: String,
    /// When.
    pub at: Option<SystemTime>,
    /// Whether the flow was started again since: it is history.
    pub past: bool,
}

impl FlowState {
    /// How far the flow has come: the greater of the checkpoint's end and the idle boundary, and the time that belongs
    /// to it.
    pub fn reached(&self) -> Option<(Lsn, Option<SystemTime>)> {
        let end = self.checkpoint.map(|checkpoint| (checkpoint.end.0, self.commit_time));
        let idle = self.idle.map(|idle| (idle.0, self.idle_at));
        [end, idle].into_iter().flatten().max_by_key(|(position, at)| (*position, *at))
    }
}

impl From<FlowStatus> for FlowState {
    fn from(status: FlowStatus) -> FlowState {
        let checkpoint = match (status.checkpoint_timeline, status.commit, status.end) {
            (Some(timeline), Some(commit), Some(end)) => Some(Checkpoint { timeline, commit, end }),
            _ => None,
        };
        let copied = status.copied.into_iter().map(|table| CopiedTable {
            name: format!("{}.{}", table.schema, table.name),
            rows: table.rows,
            boundary: table.boundary,
        });
        let stop = status.stop.map(|stop| StoredStop {
            past: stop.at < status.updated_at,
            code: stop.code,
            text: stop.text,
            hint: stop.hint,
            at: Some(stop.at),
        });
        FlowState {
            phase: status.phase,
            alive: status.alive,
            checkpoint,
            commit_time: status.commit_time,
            idle: status.idle,
            idle_at: status.idle_at,
            copied: copied.collect(),
            map: status.map.iter().flat_map(|map| map.lines()).map(str::to_owned).collect(),
            warnings: status.published.as_deref().map(partitions::warnings).unwrap_or_default(),
            schema_copy: status.schema_copy,
            copying: status.copying,
            copy_left: status.copy_left,
            epoch: status.epoch,
            holder: status.holder,
            stop,
        }
    }
}

/// Reads the state of a flow; none where the target has no ledger, or no such flow in it.
///
/// # Errors
///
/// A statement failed, or what is stored cannot be read.
pub async fn read(client: &Client, flow: &str) -> Result<Option<FlowState>, Failure> {
    Ok(pgonce_target::read_status(client, flow).await?.map(FlowState::from))
}

/// The tables of the ledger that hold rows of a flow, each with their number.
///
/// # Errors
///
/// A statement failed.
pub async fn rows_of(client: &Client, flow: &str) -> Result<Vec<(String, u64)>, Failure> {
    let mut found = Vec::new();
    for (table, column) in tables(client).await? {
        let sql = format!("SELECT count(*) FROM pgonce.{} WHERE {} = $1", quote_ident(&table), quote_ident(&column));
        let row = client.query_one(&sql, &[&flow]).await.map_err(|e| Failure::sql(Side::Target, &e))?;
        let rows = u64::try_from(row.get::<_, i64>(0)).unwrap_or_default();
        if rows > 0 {
            found.push((format!("pgonce.{table}"), rows));
        }
    }
    Ok(found)
}

/// The tables of the ledger that keep something for each flow, with the column that names it. Asked of the catalog, so
/// that a table of a newer ledger is not left behind.
async fn tables(client: &Client) -> Result<Vec<(String, String)>, Failure> {
    let sql = "SELECT c.relname::text, a.attname::text FROM pg_catalog.pg_class c \
           JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
           JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
         WHERE n.nspname = 'pgonce' AND c.relkind = 'r' \
           AND a.attname::text = CASE WHEN c.relname = 'flow' THEN 'name' ELSE 'flow' END \
         ORDER BY c.relname <> 'flow', 1";
    let rows = client.query(sql, &[]).await.map_err(|e| Failure::sql(Side::Target, &e))?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}
