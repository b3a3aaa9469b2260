//! The stored state of flows, for commands that only look, and its removal.

use std::time::{Duration, SystemTime};

use pgonce::destination::StartMode;
use pgonce::position::{Boundary, CommitLsn, EndLsn, Timeline};
use pgonce::stop::Stop;
use tokio_postgres::types::{FromSql, PgLsn};
use tokio_postgres::{Client, Row};

use crate::ledger::{self, from_pg, ledger_stop, sql_stop, unreadable};
use crate::schema_copy;

/// How far a flow has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FlowPhase {
    /// Not bound yet.
    #[default]
    New,
    /// The initial copy is under way.
    Copying,
    /// It streams.
    Streaming,
}

/// What the target has stored of a flow.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FlowStatus {
    /// The flow's name.
    pub flow: String,
    /// System identifier of the source that it is bound to.
    pub system_identifier: String,
    /// The source's database.
    pub database: String,
    /// The slot.
    pub slot: String,
    /// What it began with; `None` until it is bound.
    pub start: Option<StartMode>,
    /// What was published when it was bound.
    pub published: Option<String>,
    /// The target's names of tables, as [`TableMap`](crate::TableMap) writes them, where they are not the source's.
    pub map: Option<String>,
    /// Where its stream began.
    pub boundary: Option<Boundary>,
    /// The source's timeline at that time.
    pub timeline: Option<Timeline>,
    /// The last applied transaction.
    pub commit: Option<CommitLsn>,
    /// The end of its commit record.
    pub end: Option<EndLsn>,
    /// The source's timeline when it was received.
    pub checkpoint_timeline: Option<Timeline>,
    /// When it committed on the source, by the source's clock.
    pub commit_time: Option<SystemTime>,
    /// The last idle position.
    pub idle: Option<Boundary>,
    /// The source's timeline at that time.
    pub idle_timeline: Option<Timeline>,
    /// When it was stored, by the target's clock.
    pub idle_at: Option<SystemTime>,
    /// How far it has come.
    pub phase: FlowPhase,
    /// The fence: how often the flow was taken over.
    pub epoch: i64,
    /// Who took it over last: host, PID and start of a process.
    pub holder: Option<String>,
    /// The server process on the target that writes it now, if there is one.
    pub alive: Option<i32>,
    /// Why it stopped, if it did and has not written since.
    pub stop: Option<StoredStop>,
    /// The tables that were copied.
    pub copied: Vec<CopiedTable>,
    /// What is being done to the target's schema, in words, while it is.
    pub schema_copy: Option<String>,
    /// The tables that are to be copied, or are being copied.
    pub copying: Vec<CopyingTable>,
    /// How long their copy takes at its pace so far, by the estimates; `None` while there is too little to tell.
    pub copy_left: Option<Duration>,
    /// When it was first opened.
    pub created_at: SystemTime,
    /// When it last wrote.
    pub updated_at: SystemTime,
}

/// The reason for a stop, as it was stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredStop {
    /// [`Stop::code`].
    pub code: String,
    /// The reason in words.
    pub text: String,
    /// [`Stop::hint`].
    pub hint: String,
    /// When, by the target's clock.
    pub at: SystemTime,
}

/// A table that was copied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopiedTable {
    /// OID on the source.
    pub oid: u32,
    /// Schema.
    pub schema: String,
    /// Name.
    pub name: String,
    /// Where it was read.
    pub boundary: Boundary,
    /// How many rows there were.
    pub rows: u64,
}

/// A table whose copy is not complete.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CopyingTable {
    /// Schema.
    pub schema: String,
    /// Name.
    pub name: String,
    /// Its pieces.
    pub pieces: u64,
    /// Those that have been copied.
    pub pieces_copied: u64,
    /// Rows of those.
    pub rows: u64,
    /// About what they take on the source.
    pub bytes_copied: u64,
    /// About what all pieces take on the source.
    pub bytes: u64,
    /// COPY data of pieces under way that the target has taken, by `pg_stat_progress_copy`.
    pub bytes_under_way: u64,
}

/// What `client`'s database has stored of a flow. `None`: nothing, or there is no ledger at all.
pub async fn read_status(client: &Client, flow: &str) -> Result<Option<FlowStatus>, Stop> {
    if !has_flows(client).await? {
        return Ok(None);
    }
    ledger::ensure_readable(client, flow).await?;
    let failed = |e| ledger_stop(flow, e);
    let Some(row) = client.query_opt("SELECT * FROM pgonce.flow WHERE name = $1", &[&flow]).await.map_err(failed)?
    else {
        return Ok(None);
    };
    let sql = "SELECT table_oid, min(schema_name), min(table_name), max(boundary), sum(rows)::int8 \
               FROM pgonce.snapshot WHERE flow = $1 GROUP BY 1 HAVING bool_and(boundary IS NOT NULL) ORDER BY 2, 3";
    let mut copied = Vec::new();
    for row in client.query(sql, &[&flow]).await.map_err(failed)? {
        let field = |error| failed(error);
        copied.push(CopiedTable {
            oid: row.try_get(0).map_err(field)?,
            schema: row.try_get(1).map_err(field)?,
            name: row.try_get(2).map_err(field)?,
            boundary: Boundary(from_pg(row.try_get(3).map_err(field)?)),
            rows: row.try_get::<_, i64>(4).map_err(field)?.unsigned_abs(),
        });
    }
    let alive = ledger::alive(client, flow).await?;
    let mut status = status(flow, &row, alive, copied)?;
    status.schema_copy = schema_copy::doing_now(client, flow).await?;
    (status.copying, status.copy_left) = copying(client, flow).await?;
    Ok(Some(status))
}

const COPYING: &str = "
    SELECT min(s.schema_name), min(s.table_name), count(*), count(s.boundary), sum(s.rows)::int8,
           coalesce(sum(s.bytes_estimated) FILTER (WHERE s.boundary IS NOT NULL), 0)::int8,
           sum(s.bytes_estimated)::int8,
           (SELECT coalesce(sum(p.bytes_processed), 0)::int8 FROM pg_catalog.pg_stat_progress_copy AS p
            WHERE p.datname = pg_catalog.current_database() AND p.command = 'COPY FROM'
              AND p.relid = pg_catalog.to_regclass(min(s.target))),
           extract(epoch FROM pg_catalog.now() - min(s.planned_at))::float8
    FROM pgonce.snapshot AS s WHERE s.flow = $1
    GROUP BY s.table_oid HAVING NOT bool_and(s.boundary IS NOT NULL) ORDER BY 1, 2";

/// The tables whose copy is not complete, and what the rest of it takes.
async fn copying(client: &Client, flow: &str) -> Result<(Vec<CopyingTable>, Option<Duration>), Stop> {
    let failed = |e| ledger_stop(flow, e);
    let (mut tables, mut elapsed) = (Vec::new(), 0_f64);
    for row in client.query(COPYING, &[&flow]).await.map_err(failed)? {
        let number = |at: usize| row.try_get::<_, i64>(at).map(i64::unsigned_abs).map_err(failed);
        tables.push(CopyingTable {
            schema: row.try_get(0).map_err(failed)?,
            name: row.try_get(1).map_err(failed)?,
            pieces: number(2)?,
            pieces_copied: number(3)?,
            rows: number(4)?,
            bytes_copied: number(5)?,
            bytes: number(6)?,
            bytes_under_way: number(7)?,
        });
        elapsed = elapsed.max(row.try_get(8).map_err(failed)?);
    }
    let done: u64 = tables.iter().map(|t| (t.bytes_copied + t.bytes_under_way).min(t.bytes)).sum();
    let rest = tables.iter().map(|t| t.bytes).sum::<u64>().saturating_sub(done);
    let left = (done > 0).then(|| Duration::try_from_secs_f64(elapsed * rest as f64 / done as f64).ok()).flatten();
    Ok((tables, left))
}

/// The names of all flows that write to `client`'s database, sorted.
pub async fn list_flows(client: &Client) -> Result<Vec<String>, Stop> {
    if !has_flows(client).await? {
        return Ok(Vec::new());
    }
    let rows = client.query("SELECT name FROM pgonce.flow ORDER BY name", &[]).await.map_err(sql_stop)?;
    rows.iter().map(|row| row.try_get(0).map_err(sql_stop)).collect()
}

/// Puts `published` in the place of what is stored as published, if that is still `before`. Whether it was.
pub async fn replace_published(client: &Client, flow: &str, before: &str, published: &str) -> Result<bool, Stop> {
    let sql = "UPDATE pgonce.flow SET published = $3 WHERE name = $1 AND published = $2";
    let done = client.execute(sql, &[&flow, &before, &published]).await;
    Ok(done.map_err(|e| ledger_stop(flow, e))? > 0)
}

/// Removes all that is stored of a flow, and fences off whoever runs it: its next commit fails. Whether there was
/// anything.
///
/// The tables that it wrote to are left as they are.
pub async fn remove_flow(client: &mut Client, flow: &str) -> Result<bool, Stop> {
    if !has_flows(client).await? {
        return Ok(false);
    }
    let failed = |e| ledger_stop(flow, e);
    let transaction = client.transaction().await.map_err(sql_stop)?;
    let begin = "SET LOCAL synchronous_commit = on; SET LOCAL lock_timeout = '5s'";
    transaction.batch_execute(begin).await.map_err(sql_stop)?;
    let mut removed = 0;
    // The flow's row first: it is what a writer holds while it commits. A ledger that has lost a table is no obstacle.
    for (table, column) in [("flow", "name"), ("applied", "flow"), ("snapshot", "flow"), ("schema_copy", "flow")] {
        let exists = "SELECT pg_catalog.to_regclass($1) IS NOT NULL";
        let exists = transaction.query_one(exists, &[&format!("pgonce.{table}")]).await.map_err(sql_stop)?;
        if exists.get(0) {
            let delete = format!("DELETE FROM pgonce.{table} WHERE {column} = $1");
            removed += transaction.execute(&delete, &[&flow]).await.map_err(failed)?;
        }
    }
    transaction.commit().await.map_err(sql_stop)?;
    Ok(removed > 0)
}

async fn has_flows(client: &Client) -> Result<bool, Stop> {
    ledger::any(client).await.map_err(sql_stop)
}

fn status(flow: &str, row: &Row, alive: Option<i32>, copied: Vec<CopiedTable>) -> Result<FlowStatus, Stop> {
    let phase = match get::<String>(flow, row, "phase")?.as_str() {
        "new" => FlowPhase::New,
        "copying" => FlowPhase::Copying,
        "streaming" => FlowPhase::Streaming,
        _ => return Err(unreadable(flow, "pgonce.flow: phase")),
    };
    let start = match get::<Option<String>>(flow, row, "start_mode")?.as_deref() {
        None => None,
        Some("snapshot") => Some(StartMode::Snapshot),
        Some("go-forward") => Some(StartMode::GoForward),
        Some(_) => return Err(unreadable(flow, "pgonce.flow: start_mode")),
    };
    let position = |column| get::<Option<PgLsn>>(flow, row, column).map(|lsn| lsn.map(from_pg));
    let timeline = |column| match get::<Option<i64>>(flow, row, column)? {
        None => Ok(None),
        Some(id) => {
            Timeline::try_from(id).map(Some).map_err(|_| unreadable(flow, format_args!("pgonce.flow: {column}")))
        }
    };
    let stop = match get::<Option<String>>(flow, row, "stop_code")? {
        None => None,
        Some(code) => Some(StoredStop {
            code,
            text: get(flow, row, "stop_text")?,
            hint: get(flow, row, "stop_hint")?,
            at: get(flow, row, "stop_at")?,
        }),
    };
    Ok(FlowStatus {
        flow: flow.to_owned(),
        system_identifier: get(flow, row, "system_identifier")?,
        database: get(flow, row, "database")?,
        slot: get(flow, row, "slot")?,
        start,
        published: get(flow, row, "published")?,
        map: get(flow, row, "map")?,
        boundary: position("boundary")?.map(Boundary),
        timeline: timeline("timeline")?,
        commit: position("commit_lsn")?.map(CommitLsn),
        end: position("end_lsn")?.map(EndLsn),
        checkpoint_timeline: timeline("checkpoint_timeline")?,
        commit_time: get(flow, row, "commit_time")?,
        idle: position("idle_lsn")?.map(Boundary),
        idle_timeline: timeline("idle_timeline")?,
        idle_at: get(flow, row, "idle_at")?,
        phase,
        epoch: get(flow, row, "epoch")?,
        holder: get(flow, row, "holder")?,
        alive,
        stop,
        copied,
        schema_copy: None,
        copying: Vec::new(),
        copy_left: None,
        created_at: get(flow, row, "created_at")?,
        updated_at: get(flow, row, "updated_at")?,
    })
}

fn get<'r, T: FromSql<'r>>(flow: &str, row: &'r Row, column: &str) -> Result<T, Stop> {
    row.try_get(column).map_err(|_| unreadable(flow, format_args!("pgonce.flow: {column}")))
}
