//! The PostgreSQL target: a sink whose data, dedup records and checkpoint are one commit.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pgonce::connect::connect_sql;
use pgonce::destination::{Binding, Destination, IdlePoint, StartMode, Stored, StoredTable, Written};
use pgonce::guarantee::EffectOnce;
use pgonce::piece::{CopyPlan, Standing, TableCopy};
use pgonce::position::{Boundary, EndLsn};
use pgonce::published::Published;
use pgonce::source::SourceIdentity;
use pgonce::sql_error::is_encoding;
use pgonce::stop::Stop;
use pgonce::transaction::Transaction;
use tokio_postgres::types::ToSql;

use crate::copy_target::Targets;
use crate::ledger::{self, lsn, unreadable};
use crate::load::{self, PostgresLoader};
use crate::schema_copy;
use crate::scope::Scope;
use crate::sequences;
use crate::session::Session;
use crate::settings::TargetSettings;

/// What the session found out about the target, for warnings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TargetReport {
    /// Whether the target's ordinary triggers and foreign keys keep still for what the flow writes
    /// (`session_replication_role = replica`). If not, the role may not set it: triggers fire again for changes that
    /// the source's triggers have made already, and foreign keys are checked row by row.
    pub triggers_suppressed: bool,
}

/// A [`Destination`] that writes to a PostgreSQL database, with effect-once: the changes of a transaction, its row in
/// `pgonce.applied` and the checkpoint in `pgonce.flow` are one commit on the target.
///
/// Logical messages have no place in a table: they are left out, though counted.
///
/// Dropping the future of a call (a grace period that is over) drops the connection with it, and the target rolls
/// back what had been begun: it notices within half a second (`client_connection_check_interval`, from version 14 on)
/// even in the middle of a long statement. The next call must be [`open`](Destination::open).
pub struct PostgresTarget {
    settings: TargetSettings,
    holder: String,
    started: f64,
    session: Option<Session>,
    /// Of the last session that took the flow over.
    epoch: Option<i64>,
    /// The tables that are being copied.
    targets: Arc<Targets>,
    /// The tables that may hold rows before they are copied.
    replaced: HashSet<u32>,
    report: Option<TargetReport>,
    /// What came up beside the flow, and is told once.
    told: Vec<String>,
}

impl PostgresTarget {
    /// A target that is not connected yet.
    pub fn new(settings: TargetSettings) -> PostgresTarget {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        PostgresTarget {
            settings,
            holder: format!("{host}, PID {}", std::process::id()),
            started: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            session: None,
            epoch: None,
            targets: Arc::default(),
            replaced: HashSet::new(),
            report: None,
            told: Vec::new(),
        }
    }

    /// The settings.
    pub fn settings(&self) -> &TargetSettings {
        &self.settings
    }

    /// What the last session found out about the target; `None` before the first.
    pub fn report(&self) -> Option<TargetReport> {
        self.report
    }

    /// Ends the session: what had been begun is rolled back. The next call must be [`open`](Destination::open).
    pub fn abandon(&mut self) {
        self.session = None;
    }

    /// Takes the session out for the length of a call: whoever fails, or is dropped half-way, does not put it back.
    fn take(&mut self) -> Result<Session, Stop> {
        self.session.take().ok_or_else(|| Stop::internal("the target was used without an open session"))
    }
}

impl fmt::Debug for PostgresTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresTarget")
            .field("settings", &self.settings)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl Destination for PostgresTarget {
    type Loader = PostgresLoader;

    type Mode = EffectOnce;

    async fn open(&mut self, source: &SourceIdentity) -> Result<Stored, Stop> {
        self.session = None;
        let mut session = Session::connect(&self.settings).await?;
        let client = &session.connection.client;
        ledger::ensure(client, &self.settings.flow).await?;
        let opened = ledger::open(client, &self.settings, &self.holder, self.started, source).await?;
        ledger::show_alive(client, &self.settings.flow).await?;
        session.prepare().await?;
        session.epoch = opened.epoch;
        session.timeline = source.timeline;
        if let Stored::Flow(flow) = &opened.stored {
            session.opened_at(flow.checkpoint);
            session.scope = scope(&flow.binding, &flow.tables);
        }
        self.epoch = Some(opened.epoch);
        self.report = Some(TargetReport { triggers_suppressed: session.triggers_suppressed });
        self.session = Some(session);
        Ok(opened.stored)
    }

    async fn write(&mut self, group: &[Transaction]) -> Result<Written, Stop> {
        let mut session = self.take()?;
        if !group.is_sorted_by(|a, b| a.commit() < b.commit()) {
            return Err(Stop::internal("a group is not in commit order"));
        }
        let checkpoint = session.checkpoint.map(|c| c.commit);
        let (seen, new) = group.split_at(group.partition_point(|t| Some(t.commit()) <= checkpoint));
        if !seen.is_empty() {
            session.compare(seen).await?;
        }
        let changes = if new.is_empty() { 0 } else { session.apply(new).await? };
        session.prune(self.settings.applied_retention).await?;
        let durable = session.proved();
        self.session = Some(session);
        Ok(Written { applied: new.len() as u64, redelivered: seen.len() as u64, changes, durable })
    }

    async fn durable(&mut self) -> Result<Option<EndLsn>, Stop> {
        let mut session = self.take()?;
        let durable = session.durable().await?;
        self.session = Some(session);
        Ok(durable)
    }

    async fn persist_idle(&mut self, idle: IdlePoint) -> Result<bool, Stop> {
        // Flushed before it returns, whatever the session's setting: what follows is an acknowledgement. Never moves
        // backwards.
        let sql = "
            UPDATE pgonce.flow SET
                idle_timeline = CASE WHEN idle_lsn <= $3 THEN $4 ELSE idle_timeline END,
                idle_lsn = greatest(idle_lsn, $3), idle_at = pg_catalog.now(),
                stop_code = NULL, stop_text = NULL, stop_hint = NULL, stop_at = NULL, updated_at = pg_catalog.now()
            WHERE name = $1 AND epoch = $2 AND pg_catalog.set_config('synchronous_commit', 'on', true) = 'on'";
        let mut session = self.take()?;
        let (boundary, timeline) = (lsn(idle.boundary.0), i64::from(idle.timeline));
        session.under_fence(sql, &[&&*session.flow, &session.epoch, &boundary, &timeline]).await?;
        session.flushed_all();
        self.session = Some(session);
        Ok(true)
    }

    async fn check(&mut self, published: &Published, start: StartMode) -> Result<(), Stop> {
        self.settings.map.separates(published)?;
        // Without a copy, tables that are missing are met when something changes in them.
        if start == StartMode::Snapshot {
            let session = self.take()?;
            self.told.extend(schema_copy::before_rows(&self.settings, &session, published).await?);
            load::check(&session, published, &self.replaced).await?;
            self.session = Some(session);
        }
        Ok(())
    }

    async fn bind(&mut self, binding: &Binding) -> Result<(), Stop> {
        let sql = "
            UPDATE pgonce.flow SET
                boundary = $3, timeline = $4, start_mode = $5, published = $6, phase = $7, map = $8,
                idle_lsn = $3, idle_timeline = $4,
                stop_code = NULL, stop_text = NULL, stop_hint = NULL, stop_at = NULL, updated_at = pg_catalog.now()
            WHERE name = $1 AND epoch = $2 AND phase = 'new'
              AND pg_catalog.set_config('synchronous_commit', 'on', true) = 'on'";
        let mut session = self.take()?;
        let (start, phase) = match binding.start {
            StartMode::Snapshot => ("snapshot", "copying"),
            StartMode::GoForward => ("go-forward", "streaming"),
        };
        let (boundary, timeline) = (lsn(binding.boundary.0), i64::from(binding.timeline));
        let map = Some(self.settings.map.to_string()).filter(|map| !map.is_empty());
        let parameters: [&(dyn ToSql + Sync); 8] =
            [&&*session.flow, &session.epoch, &boundary, &timeline, &start, &binding.published, &phase, &map];
        let done = session.connection.client.execute(sql, &parameters).await;
        match done.map_err(|e| ledger::ledger_stop(&session.flow, e))? {
            1 => {}
            _ => return Err(not_ours_or_not(&session, "it is bound already").await),
        }
        session.scope = scope(binding, &[]);
        self.session = Some(session);
        Ok(())
    }

    fn replace(&mut self, tables: &HashSet<u32>) {
        self.replaced.clone_from(tables);
    }

    fn leave_out(&mut self, table: u32) {
        if let Some(session) = &mut self.session {
            session.scope.plan(table, &[]);
        }
    }

    async fn plan(&mut self, tables: &[TableCopy], published: &str) -> Result<Vec<CopyPlan>, Stop> {
        let mut session = self.take()?;
        let plan = load::plan(&session, tables, published).await?;
        for table in tables.iter().filter(|table| table.standing != Standing::Planned) {
            session.scope.plan(table.table.oid, &table.stored_pieces());
        }
        self.targets = Arc::new(plan.targets);
        self.session = Some(session);
        Ok(plan.plans)
    }

    fn loader(&mut self) -> Result<PostgresLoader, Stop> {
        let epoch = self.epoch.ok_or_else(|| Stop::internal("a loader of a target that was never opened"))?;
        Ok(PostgresLoader::new(self.settings.clone(), epoch, Arc::clone(&self.targets)))
    }

    fn landed(&mut self, table: u32, piece: i32, boundary: Boundary) {
        if let Some(session) = &mut self.session {
            session.scope.landed(table, piece, boundary);
        }
    }

    async fn copied(&mut self) -> Result<(), Stop> {
        let sql = "
            UPDATE pgonce.flow SET phase = 'streaming',
                stop_code = NULL, stop_text = NULL, stop_hint = NULL, stop_at = NULL, updated_at = pg_catalog.now()
            WHERE name = $1 AND epoch = $2 AND phase <> 'new'
              AND pg_catalog.set_config('synchronous_commit', 'on', true) = 'on'";
        let session = self.take()?;
        self.told.extend(schema_copy::after_rows(&self.settings, &session).await?);
        self.told.extend(sequences::at_handoff(&self.settings).await);
        session.under_fence(sql, &[&&*session.flow, &session.epoch]).await?;
        self.session = Some(session);
        Ok(())
    }

    async fn published(&mut self, published: &Published) -> Result<(), Stop> {
        self.settings.map.separates(published)?;
        let mut session = self.take()?;
        session.writer.claim(published);
        // Of a table that was dropped in the middle of its copy there is nothing left to copy.
        let sql = "
            DELETE FROM pgonce.snapshot AS s
            WHERE s.flow = $1 AND s.table_oid <> ALL ($3)
              AND EXISTS (SELECT FROM pgonce.flow AS f WHERE f.name = $1 AND f.epoch = $2)
              AND EXISTS (SELECT FROM pgonce.snapshot AS o
                          WHERE o.flow = $1 AND o.table_oid = s.table_oid AND o.boundary IS NULL)";
        let oids: Vec<u32> = published.tables.iter().map(|table| table.oid).collect();
        let forgotten = session.connection.client.execute(sql, &[&&*session.flow, &session.epoch, &oids]).await;
        forgotten.map_err(|e| ledger::ledger_stop(&session.flow, e))?;
        self.session = Some(session);
        Ok(())
    }

    async fn remember(&mut self, published: &str) -> Result<(), Stop> {
        let sql = "UPDATE pgonce.flow SET published = $3, updated_at = pg_catalog.now() WHERE name = $1 AND epoch = $2";
        let session = self.take()?;
        session.under_fence(sql, &[&&*session.flow, &session.epoch, &published]).await?;
        self.session = Some(session);
        Ok(())
    }

    fn warnings(&mut self) -> Vec<String> {
        let fires = self.report.is_some_and(|report| !report.triggers_suppressed);
        let warning = "the target's role may not set session_replication_role, so triggers and foreign keys on the \
                       target act on what the flow writes, although the source's have acted already. To keep them \
                       still: GRANT SET ON PARAMETER session_replication_role TO the role (from version 15 on), or \
                       ALTER TABLE ... DISABLE TRIGGER USER";
        let mut warnings = std::mem::take(&mut self.told);
        warnings.extend(fires.then(|| warning.to_owned()));
        warnings
    }

    async fn record_stop(&mut self, stop: &Stop) {
        let Some(epoch) = self.epoch else { return };
        self.session = None;
        let sql = "
            UPDATE pgonce.flow SET stop_code = $3, stop_text = $4, stop_hint = $5, stop_at = pg_catalog.now()
            WHERE name = $1 AND epoch = $2";
        let record = async {
            let connection = connect_sql(&self.settings.connection, "status").await.ok()?;
            let (code, text, hint) = (stop.code(), stop.to_string(), stop.hint());
            match connection.client.execute(sql, &[&self.settings.flow, &epoch, &code, &text, &hint]).await {
                // A name in it may have a character that the target's encoding lacks.
                Err(error) if error.code().is_some_and(|code| is_encoding(code.code())) => {
                    let (text, hint) = (in_ascii(&text), in_ascii(&hint));
                    connection.client.execute(sql, &[&self.settings.flow, &epoch, &code, &text, &hint]).await.ok()
                }
                done => done.ok(),
            }
        };
        if tokio::time::timeout(RECORD_STOP_WITHIN, record).await.ok().flatten().is_none() {
            tracing::warn!(code = stop.code(), "the reason for the stop could not be stored on the target");
        }
    }
}

/// A text that every encoding has.
fn in_ascii(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect()
}

/// Leaving word must not keep a process from ending.
const RECORD_STOP_WITHIN: Duration = Duration::from_secs(3);

fn scope(binding: &Binding, tables: &[StoredTable]) -> Scope {
    match binding.start {
        StartMode::Snapshot => Scope::new(tables, HashSet::new()),
        StartMode::GoForward => Scope::new(tables, binding.tables()),
    }
}

/// An update of the flow's row that did not hit: the epoch is another one, or else what `otherwise` says.
async fn not_ours_or_not(session: &Session, otherwise: &str) -> Stop {
    let sql = "SELECT FROM pgonce.flow WHERE name = $1 AND epoch = $2";
    match session.connection.client.query_opt(sql, &[&&*session.flow, &session.epoch]).await {
        Ok(Some(_)) => unreadable(&session.flow, otherwise),
        Ok(None) => ledger::fenced(&session.connection.client, &session.flow).await,
        Err(error) => ledger::ledger_stop(&session.flow, error),
    }
}
