//! The ledger: what the target remembers of a flow, in its schema `pgonce`.
//!
//! What cannot be read, or contradicts itself, is never taken for a fresh flow: it is [`Reason::CheckpointUnreadable`].

use std::fmt;

use pgonce::destination::{Binding, IdlePoint, StartMode, Stored, StoredFlow, StoredPiece, StoredTable};
use pgonce::piece::{Extent, KeyValue};
use pgonce::position::{Boundary, Checkpoint, CommitLsn, EndLsn, Lsn, Timeline};
use pgonce::source::SourceIdentity;
use pgonce::sql_error::stop_from_sql;
use pgonce::stop::{Reason, Side, Stop};
use tokio_postgres::types::{FromSql, PgLsn};
use tokio_postgres::{Client, Row};

use crate::map::TableMap;
use crate::settings::TargetSettings;

/// The SQL that creates the ledger, for an admin where the flow's role may not. It can be run again.
pub const LEDGER_SQL: &str = include_str!("ledger.sql");

/// The version of the ledger's tables that this build reads and writes.
pub const LEDGER_VERSION: i32 = 2;

const TABLES: [&str; 4] = ["applied", "flow", "meta", "snapshot"];

/// What [`open`] finds: what is stored, and the epoch under which this session writes.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) stored: Stored,
    pub(crate) epoch: i64,
}

pub(crate) fn lsn(lsn: Lsn) -> PgLsn {
    PgLsn::from(lsn.0)
}

pub(crate) fn from_pg(lsn: PgLsn) -> Lsn {
    Lsn(u64::from(lsn))
}

pub(crate) fn sql_stop(error: tokio_postgres::Error) -> Stop {
    stop_from_sql(Side::Target, &error)
}

/// The reason for an error while the ledger's own tables are read or written: a missing table or column, or one of
/// another type, means that they are not what was stored.
pub(crate) fn ledger_stop(flow: &str, error: tokio_postgres::Error) -> Stop {
    let Some(db) = error.as_db_error() else { return sql_stop(error) };
    match db.code().code() {
        code @ ("42P01" | "42703" | "42804" | "42883" | "22P02") => unreadable(
            flow,
            format_args!("the tables in schema pgonce of the target are not those that pgonce made (SQLSTATE {code})"),
        ),
        _ => sql_stop(error),
    }
}

pub(crate) fn unreadable(flow: &str, what: impl fmt::Display) -> Stop {
    Reason::CheckpointUnreadable { flow: flow.to_owned(), what: what.to_string() }.into()
}

/// Makes sure that the ledger is there, whole, and of our version. Creates it where there is nothing at all, and takes
/// an older one up to our version.
pub(crate) async fn ensure(client: &Client, flow: &str) -> Result<(), Stop> {
    let version = version(client, flow).await?;
    if version < LEDGER_VERSION {
        upgrade(client, version).await?;
    }
    Ok(())
}

/// The same for who only looks: an older ledger is left as it is, and refused.
pub(crate) async fn ensure_readable(client: &Client, flow: &str) -> Result<(), Stop> {
    let version = version(client, flow).await?;
    if version < LEDGER_VERSION {
        let what = format!("schema pgonce of the target has version {version}, and this pgonce needs {LEDGER_VERSION}");
        let hint = "`pgonce run` takes it up to that version.".to_owned();
        return Err(Reason::TargetNotReady { what, hint }.into());
    }
    Ok(())
}

async fn version(client: &Client, flow: &str) -> Result<i32, Stop> {
    let mut missing = missing(client).await.map_err(sql_stop)?;
    if missing.len() == TABLES.len() {
        create(client).await?;
        missing = self::missing(client).await.map_err(sql_stop)?;
    }
    if !missing.is_empty() {
        return Err(unreadable(
            flow,
            format_args!("table pgonce.{} is missing on the target", missing.join(", pgonce.")),
        ));
    }
    let rows = client.query("SELECT version FROM pgonce.meta", &[]).await.map_err(|e| ledger_stop(flow, e))?;
    let version = match rows.as_slice() {
        [row] => row.try_get::<_, i32>(0).map_err(|_| unreadable(flow, "pgonce.meta has no version"))?,
        rows => return Err(unreadable(flow, format_args!("pgonce.meta has {} rows instead of one", rows.len()))),
    };
    if version > LEDGER_VERSION {
        return Err(Reason::TargetNotReady {
            what: format!(
                "schema pgonce of the target has version {version}, and this pgonce knows up to {LEDGER_VERSION}"
            ),
            hint: "Run the newer pgonce that made it.".to_owned(),
        }
        .into());
    }
    if version < 1 {
        return Err(unreadable(flow, format_args!("pgonce.meta says version {version}")));
    }
    Ok(version)
}

/// Whether the target has a ledger, or parts of one.
pub(crate) async fn any(client: &Client) -> Result<bool, tokio_postgres::Error> {
    Ok(missing(client).await?.len() < TABLES.len())
}

async fn missing(client: &Client) -> Result<Vec<&'static str>, tokio_postgres::Error> {
    let sql = "SELECT c.relname::pg_catalog.text FROM pg_catalog.pg_class AS c \
               JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
               WHERE n.nspname = 'pgonce' AND c.relkind = 'r'";
    let rows = client.query(sql, &[]).await?;
    let found = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<String>, _>>()?;
    Ok(TABLES.into_iter().filter(|table| !found.iter().any(|f| f == table)).collect())
}

async fn create(client: &Client) -> Result<(), Stop> {
    match run_ledger_sql(client).await {
        Err(error) if error.as_db_error().is_some_and(|db| db.code().code() == "42501") => {
            Err(Reason::TargetNotReady {
                what: "the target's role may not create the schema pgonce".to_owned(),
                hint: "Let an admin run what `pgonce init --sql` prints, with its GRANTs.".to_owned(),
            }
            .into())
        }
        done => done.map_err(sql_stop),
    }
}

async fn upgrade(client: &Client, version: i32) -> Result<(), Stop> {
    match run_ledger_sql(client).await {
        Err(error) if error.as_db_error().is_some_and(|db| db.code().code() == "42501") => {
            Err(Reason::TargetNotReady {
                what: format!(
                    "schema pgonce of the target has version {version}, this pgonce needs {LEDGER_VERSION}, and the \
                     target's role does not own its tables"
                ),
                hint: "Let its owner, or an admin, run the part for the target of what `pgonce init --sql` prints. It \
                       changes pgonce's own tables only, and keeps what they hold."
                    .to_owned(),
            }
            .into())
        }
        done => done.map_err(sql_stop),
    }
}

async fn run_ledger_sql(client: &Client) -> Result<(), tokio_postgres::Error> {
    // Two first starts at once would collide in the catalog, IF NOT EXISTS or not. The lock's number is "pgonce" in
    // ASCII.
    let sql = format!(
        "BEGIN; SET LOCAL synchronous_commit = on; SET LOCAL lock_timeout = '5s'; \
         SELECT pg_catalog.pg_advisory_xact_lock(123589553447781); {LEDGER_SQL} COMMIT;"
    );
    let done = client.batch_execute(&sql).await;
    if done.is_err() {
        let _ = client.batch_execute("ROLLBACK").await;
    }
    done
}

/// Takes the flow over, and reads what is stored of it.
///
/// The epoch is raised, and the state read, by one statement in a transaction that commits synchronously whatever the
/// session's setting is. Its commit record lies behind those of all commits that it saw, and flushing it flushes
/// them: the checkpoint that is returned is durable, even if an earlier session wrote it with `synchronous_commit =
/// off` and nobody knew yet.
pub(crate) async fn open(
    client: &Client,
    settings: &TargetSettings,
    holder: &str,
    started: f64,
    source: &SourceIdentity,
) -> Result<Opened, Stop> {
    // An old writer that hangs in its commit holds the row: better to say so and try again than to hang behind it.
    let begin = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; \
                 SET LOCAL synchronous_commit = on; SET LOCAL lock_timeout = '5s'";
    client.batch_execute(begin).await.map_err(sql_stop)?;
    let taken = take_over(client, settings, holder, started, source).await;
    match taken {
        Ok(opened) => {
            client.batch_execute("COMMIT").await.map_err(sql_stop)?;
            Ok(opened)
        }
        Err(stop) => {
            // A flow that is not ours to open stays with whoever holds it.
            let _ = client.batch_execute("ROLLBACK").await;
            Err(stop)
        }
    }
}

/// The first key of the advisory lock that a session holds while it writes a flow: "pgon" in ASCII. The second is the
/// hash of the flow's name.
const ALIVE: i32 = 1_885_826_926;

/// Shows that a flow is being written, for as long as this session lives. The lock is shared and keeps nobody out: the
/// fence does that.
pub(crate) async fn show_alive(client: &Client, flow: &str) -> Result<(), Stop> {
    let sql = "SELECT pg_catalog.pg_try_advisory_lock_shared($1, pg_catalog.hashtext($2))";
    client.query_one(sql, &[&ALIVE, &flow]).await.map_err(sql_stop)?;
    Ok(())
}

/// The server process of the session that writes a flow, if there is one.
pub(crate) async fn alive(client: &Client, flow: &str) -> Result<Option<i32>, Stop> {
    Ok(writers(client, flow).await?.first().copied())
}

/// The server processes of the sessions that write a flow now, whether or not its state can be read.
pub async fn writers(client: &Client, flow: &str) -> Result<Vec<i32>, Stop> {
    let sql = "
        SELECT l.pid FROM pg_catalog.pg_locks AS l
        WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
          AND l.classid = $1::pg_catalog.int4::pg_catalog.oid AND l.objid = pg_catalog.hashtext($2)::pg_catalog.oid
          AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d
                            WHERE d.datname = pg_catalog.current_database())
        ORDER BY l.pid DESC";
    let rows = client.query(sql, &[&ALIVE, &flow]).await.map_err(sql_stop)?;
    rows.iter().map(|row| row.try_get(0).map_err(sql_stop)).collect()
}

const INSERT_FLOW: &str = "
    INSERT INTO pgonce.flow (name, system_identifier, database, slot)
    SELECT $1, $2, $3, $4 WHERE NOT EXISTS (SELECT FROM pgonce.applied WHERE flow = $1)
                            AND NOT EXISTS (SELECT FROM pgonce.snapshot WHERE flow = $1)
    ON CONFLICT (name) DO NOTHING";

const TAKE_OVER: &str = "
    UPDATE pgonce.flow SET
        epoch = epoch + 1,
        holder = pg_catalog.format('%s, started %s', $2::pg_catalog.text, pg_catalog.to_char(
            pg_catalog.to_timestamp($3) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS UTC')),
        system_identifier = CASE phase WHEN 'new' THEN $4 ELSE system_identifier END,
        database = CASE phase WHEN 'new' THEN $5 ELSE database END,
        slot = CASE phase WHEN 'new' THEN $6 ELSE slot END,
        updated_at = pg_catalog.now()
    WHERE name = $1
    RETURNING epoch, system_identifier, database, slot, phase, start_mode, published, boundary, timeline,
              commit_lsn, end_lsn, checkpoint_timeline, idle_lsn, idle_timeline, map";

async fn take_over(
    client: &Client,
    settings: &TargetSettings,
    holder: &str,
    started: f64,
    source: &SourceIdentity,
) -> Result<Opened, Stop> {
    let flow = settings.flow.as_str();
    let failed = |e| ledger_stop(flow, e);
    let (system, database, slot) = (&source.system_identifier, &source.database, &source.slot);
    client.execute(INSERT_FLOW, &[&flow, system, database, slot]).await.map_err(failed)?;
    let row = client.query_opt(TAKE_OVER, &[&flow, &holder, &started, system, database, slot]).await.map_err(failed)?;
    let row =
        row.ok_or_else(|| unreadable(flow, "its row in pgonce.flow is gone, though it has applied transactions"))?;
    let applied = "SELECT commit_lsn FROM pgonce.flow f WHERE name = $1 AND commit_lsn IS NOT NULL AND NOT EXISTS \
                   (SELECT FROM pgonce.applied a WHERE a.flow = f.name AND a.commit_lsn = f.commit_lsn)";
    if client.query_opt(applied, &[&flow]).await.map_err(failed)?.is_some() {
        // That row is written with the checkpoint and never pruned.
        return Err(unreadable(flow, "pgonce.applied has no row for the transaction that the checkpoint names"));
    }
    let mut tables = stored_tables(client, flow).await?;
    let stored = Fields { flow, row: &row }.stored(source, &settings.map, &mut tables)?;
    if let Stored::Flow(stored) = &stored {
        collapse(client, flow, stored.position().boundary).await.map_err(failed)?;
    }
    Ok(Opened { stored, epoch: Fields { flow, row: &row }.get("epoch")? })
}

const TABLES_SQL: &str = "
    SELECT table_oid, piece, together, kind, key_column, low, high, bytes_estimated, boundary
    FROM pgonce.snapshot WHERE flow = $1 ORDER BY table_oid, piece";

async fn stored_tables(client: &Client, flow: &str) -> Result<Vec<StoredTable>, Stop> {
    let mut tables: Vec<StoredTable> = Vec::new();
    for row in client.query(TABLES_SQL, &[&flow]).await.map_err(|e| ledger_stop(flow, e))? {
        let (oid, together, piece) = stored_piece(&row)
            .ok_or_else(|| unreadable(flow, "pgonce.snapshot has a row that is no piece of a table"))?;
        match tables.last_mut() {
            Some(table) if table.oid == oid => table.pieces.push(piece),
            _ => tables.push(StoredTable { oid, together, pieces: vec![piece] }),
        }
    }
    if let Some(table) = tables.iter().find(|table| !covers(&table.pieces)) {
        let what = format!("pgonce.snapshot: the pieces of the table with OID {} do not cover it", table.oid);
        return Err(unreadable(flow, what));
    }
    Ok(tables)
}

fn stored_piece(row: &Row) -> Option<(u32, bool, StoredPiece)> {
    let bound = |column: &str| row.try_get::<_, Option<String>>(column).ok();
    let extent = match row.try_get::<_, String>("kind").ok()?.as_str() {
        "whole" => Extent::Whole,
        "key" => {
            let read = |text: Option<String>| text.map_or(Some(None), |text| KeyValue::parse(&text).map(Some));
            Extent::Key { column: bound("key_column")??, low: read(bound("low")?)?, high: read(bound("high")?)? }
        }
        "ctid" => {
            let read = |text: Option<String>| text.map_or(Some(None), |text| text.parse().ok().map(Some));
            Extent::Ctid { low: read(bound("low")?)?, high: read(bound("high")?)? }
        }
        _ => return None,
    };
    let piece = StoredPiece {
        number: row.try_get("piece").ok()?,
        extent,
        bytes: row.try_get::<_, i64>("bytes_estimated").ok()?.unsigned_abs(),
        boundary: row.try_get::<_, Option<PgLsn>>("boundary").ok()?.map(|lsn| Boundary(from_pg(lsn))),
    };
    Some((row.try_get("table_oid").ok()?, row.try_get("together").ok()?, piece))
}

/// Whether pieces, in their order, cover a table.
fn covers(pieces: &[StoredPiece]) -> bool {
    let mut edges: Vec<Option<String>> = vec![None];
    for piece in pieces {
        let (low, high) = match &piece.extent {
            Extent::Whole => (None, None),
            Extent::Key { low, high, .. } => (low.map(|v| v.to_string()), high.map(|v| v.to_string())),
            Extent::Ctid { low, high } => (low.map(|v| v.to_string()), high.map(|v| v.to_string())),
        };
        if edges.pop() != Some(low) {
            return false;
        }
        // Behind the last piece there is no edge, and another piece is one too many.
        edges.extend(high.map(Some));
    }
    edges.is_empty()
}

/// Whether the flow has passed every boundary of the table.
fn is_passed(table: &StoredTable, position: Boundary) -> bool {
    table.is_copied() && table.boundary() <= Some(position)
}

/// The pieces of a table that has been passed are one.
fn collapsed(table: &mut StoredTable) {
    let boundary = table.boundary();
    let bytes = table.pieces.iter().map(|piece| piece.bytes).sum();
    table.together = false;
    table.pieces = vec![StoredPiece { number: 0, extent: Extent::Whole, bytes, boundary }];
}

/// The same in the ledger: when all its boundaries are passed, of a table only the watermark remains.
async fn collapse(client: &Client, flow: &str, position: Boundary) -> Result<(), tokio_postgres::Error> {
    let sql = "
        WITH passed AS (
            SELECT table_oid, max(boundary) AS boundary, sum(rows)::int8 AS rows, sum(bytes)::int8 AS bytes,
                   sum(bytes_estimated)::int8 AS estimated, max(copied_at) AS copied_at
            FROM pgonce.snapshot WHERE flow = $1 GROUP BY 1
            HAVING count(*) > 1 AND bool_and(boundary IS NOT NULL AND boundary <= $2))
        UPDATE pgonce.snapshot AS s SET
            together = false, kind = 'whole', key_column = NULL, low = NULL, high = NULL,
            bytes_estimated = p.estimated, boundary = p.boundary, rows = p.rows, bytes = p.bytes,
            copied_at = p.copied_at
        FROM passed AS p WHERE s.flow = $1 AND s.table_oid = p.table_oid AND s.piece = 0";
    if client.execute(sql, &[&flow, &lsn(position.0)]).await? > 0 {
        let sql = "
            DELETE FROM pgonce.snapshot AS s USING pgonce.snapshot AS w
            WHERE s.flow = $1 AND s.piece > 0
              AND w.flow = $1 AND w.table_oid = s.table_oid AND w.piece = 0 AND w.kind = 'whole'";
        client.execute(sql, &[&flow]).await?;
    }
    Ok(())
}

/// A row of `pgonce.flow`, read with suspicion.
struct Fields<'a> {
    flow: &'a str,
    row: &'a Row,
}

impl Fields<'_> {
    fn stored(&self, source: &SourceIdentity, map: &TableMap, tables: &mut Vec<StoredTable>) -> Result<Stored, Stop> {
        let phase: String = self.get("phase")?;
        let streaming = match phase.as_str() {
            "new" => {
                let begun = self.get::<Option<PgLsn>>("commit_lsn")?.is_some() || !tables.is_empty();
                return if begun {
                    Err(self.unreadable("phase is new, yet there is data"))
                } else {
                    Ok(Stored::Nothing)
                };
            }
            "copying" => false,
            "streaming" => true,
            _ => return Err(self.unreadable("phase is none of new, copying, streaming")),
        };
        // Before any position is believed.
        self.is_bound_to(source)?;
        let stored: Option<String> = self.get("map")?;
        if let Some(what) = map.differs_from(stored.as_deref()) {
            return Err(Reason::MapChanged { flow: self.flow.to_owned(), what }.into());
        }
        let start = match self.get::<String>("start_mode")?.as_str() {
            "snapshot" => StartMode::Snapshot,
            "go-forward" => StartMode::GoForward,
            _ => return Err(self.unreadable("start_mode is neither snapshot nor go-forward")),
        };
        let boundary = Boundary(self.lsn("boundary")?);
        let binding =
            Binding { boundary, timeline: self.timeline("timeline")?, start, published: self.get("published")? };
        let idle = IdlePoint { boundary: Boundary(self.lsn("idle_lsn")?), timeline: self.timeline("idle_timeline")? };
        let checkpoint = self.checkpoint()?;
        if idle.boundary < boundary {
            return Err(self.unreadable("idle_lsn lies before boundary"));
        }
        if checkpoint.is_some_and(|c| !boundary.precedes(c.commit)) {
            return Err(self.unreadable("commit_lsn lies before boundary"));
        }
        let mut flow = StoredFlow { binding, streaming, tables: std::mem::take(tables), checkpoint, idle };
        let position = flow.position().boundary;
        flow.tables.iter_mut().filter(|table| is_passed(table, position)).for_each(collapsed);
        Ok(Stored::Flow(flow))
    }

    fn is_bound_to(&self, source: &SourceIdentity) -> Result<(), Stop> {
        let bound = [
            ("system identifier", self.get::<String>("system_identifier")?, &source.system_identifier),
            ("database", self.get("database")?, &source.database),
            ("slot", self.get("slot")?, &source.slot),
        ];
        let differs = bound.iter().filter(|(_, stored, found)| stored != *found);
        let what: Vec<String> =
            differs.map(|(name, stored, found)| format!("{name} is {found}, bound to {stored}")).collect();
        if what.is_empty() { Ok(()) } else { Err(Reason::SourceChanged { what: what.join("; ") }.into()) }
    }

    fn checkpoint(&self) -> Result<Option<Checkpoint>, Stop> {
        let commit: Option<PgLsn> = self.get("commit_lsn")?;
        let end: Option<PgLsn> = self.get("end_lsn")?;
        let timeline: Option<i64> = self.get("checkpoint_timeline")?;
        match (commit, end, timeline) {
            (None, None, None) => Ok(None),
            (Some(commit), Some(end), Some(_)) if commit < end => Ok(Some(Checkpoint {
                timeline: self.timeline("checkpoint_timeline")?,
                commit: CommitLsn(from_pg(commit)),
                end: EndLsn(from_pg(end)),
            })),
            _ => Err(self.unreadable("commit_lsn, end_lsn and checkpoint_timeline do not fit together")),
        }
    }

    fn lsn(&self, column: &str) -> Result<Lsn, Stop> {
        match from_pg(self.get(column)?) {
            Lsn::ZERO => Err(self.unreadable(column)),
            lsn => Ok(lsn),
        }
    }

    fn timeline(&self, column: &str) -> Result<Timeline, Stop> {
        let timeline = Timeline::try_from(self.get::<i64>(column)?).ok().filter(|timeline| *timeline > 0);
        timeline.ok_or_else(|| self.unreadable(column))
    }

    fn get<'s, T: FromSql<'s>>(&'s self, column: &str) -> Result<T, Stop> {
        self.row.try_get(column).map_err(|_| self.unreadable(column))
    }

    fn unreadable(&self, what: &str) -> Stop {
        unreadable(self.flow, format_args!("pgonce.flow: {what}"))
    }
}

/// Who holds the flow now, for a session that found itself fenced off.
pub(crate) async fn fenced(client: &Client, flow: &str) -> Stop {
    match client.query_opt("SELECT holder FROM pgonce.flow WHERE name = $1", &[&flow]).await {
        Ok(Some(row)) => {
            let holder: Option<String> = row.try_get(0).unwrap_or_default();
            let holder = holder.unwrap_or_else(|| "another process".to_owned());
            Reason::Fenced { flow: flow.to_owned(), holder }.into()
        }
        Ok(None) => unreadable(flow, "its row in pgonce.flow is gone"),
        Err(error) => ledger_stop(flow, error),
    }
}
