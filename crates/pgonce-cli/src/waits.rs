//! Whom a flow waits for: transactions that are open on the source while a slot is made, and holders of locks on the
//! target. Names, PIDs and ages only, never the text of a query.

use std::time::Duration;

use pgonce::connect::{SqlConnection, connect_sql};
use pgonce::ident::quote_literal;
use pgonce::pipeline::{Phase, Progress};
use pgonce::stop::Side;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio_postgres::{Client, Row};

use crate::config::FlowConfig;
use crate::failure::Failure;
use crate::render::duration;

/// What takes longer is looked into.
const PATIENCE: Duration = Duration::from_secs(2);

/// A look that takes longer is given up.
const LOOK_WITHIN: Duration = Duration::from_secs(10);

/// So many blockers are named; the others are counted.
const NAMED: usize = 10;

/// Something that a flow waits for.
#[derive(Clone, PartialEq, Debug)]
pub struct Waiting {
    /// Where.
    pub side: Side,
    /// The table whose lock is waited for, if it is one.
    pub table: Option<String>,
    /// Who is in the way, the oldest first.
    pub blockers: Vec<Blocker>,
}

/// A transaction that is in the way.
#[derive(Clone, PartialEq, Debug)]
pub struct Blocker {
    who: Who,
    /// `state` of `pg_stat_activity`, where the role may see it.
    state: Option<String>,
    /// How long it has been open, where the role may see it.
    open: Option<Duration>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Who {
    /// A server process.
    Process(i32),
    /// A prepared transaction, by its `gid`.
    Prepared(String),
}

impl Waiting {
    /// Whether `other` waits for the same, however old that has become.
    fn same(&self, other: &Waiting) -> bool {
        let who = |waiting: &Waiting| waiting.blockers.iter().map(|blocker| blocker.who.clone()).collect::<Vec<_>>();
        (self.side, &self.table, who(self)) == (other.side, &other.table, who(other))
    }

    /// What is waited for, on a line.
    pub fn text(&self) -> String {
        let named: Vec<String> = self.blockers.iter().take(NAMED).map(Blocker::text).collect();
        let more = match self.blockers.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let named = format!("{}{more}", named.join(", "));
        match (self.side, &self.table) {
            (Side::Source, _) => {
                format!("waiting on the source until transactions that are open there have ended: {named}")
            }
            (Side::Target, Some(table)) => format!("waiting on the target for a lock on {table}, held by {named}"),
            (Side::Target, None) => format!("waiting on the target for a lock, held by {named}"),
        }
    }

    /// What can be done about it.
    pub fn hint(&self) -> String {
        let Some(first) = self.blockers.first() else { return String::new() };
        let why = match self.side {
            Side::Source => "A slot can be made once they have ended; the flow goes on by itself then.",
            Side::Target => "The flow goes on by itself when the lock is let go.",
        };
        let end = match &first.who {
            Who::Process(pid) => format!("SELECT pg_terminate_backend({pid});"),
            Who::Prepared(gid) => format!("COMMIT PREPARED {0}; or ROLLBACK PREPARED {0};", quote_literal(gid)),
        };
        format!("{why} To end the first of them, on the {}: {end}", self.side)
    }

    /// The same for programs.
    pub fn object(&self) -> Value {
        let blockers: Vec<Value> = self.blockers.iter().map(Blocker::object).collect();
        json!({
            "side": self.side.to_string(), "table": self.table, "blockers": blockers, "text": self.text(),
            "hint": self.hint(),
        })
    }
}

impl Blocker {
    fn text(&self) -> String {
        let who = match &self.who {
            Who::Process(pid) => format!("PID {pid}"),
            Who::Prepared(gid) => format!("prepared transaction {}", quote_literal(gid)),
        };
        let open = self.open.map(|open| format!("open for {}", duration(open)));
        let known: Vec<String> = self.state.clone().into_iter().chain(open).collect();
        if known.is_empty() { who } else { format!("{who} ({})", known.join(", ")) }
    }

    fn object(&self) -> Value {
        let (pid, gid) = match &self.who {
            Who::Process(pid) => (Some(pid), None),
            Who::Prepared(gid) => (None, Some(gid)),
        };
        json!({
            "pid": pid, "prepared": gid, "state": self.state, "open_seconds": self.open.map(|open| open.as_secs_f64()),
        })
    }

    fn of(row: &Row) -> Result<Blocker, tokio_postgres::Error> {
        let who = match row.try_get::<_, Option<i32>>(0)? {
            Some(pid) => Who::Process(pid),
            None => Who::Prepared(row.try_get::<_, Option<String>>(1)?.unwrap_or_default()),
        };
        let open = row.try_get::<_, Option<f64>>(3)?;
        let open = open.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok());
        Ok(Blocker { who, state: row.try_get(2)?, open })
    }
}

/// Transactions that a slot in the making waits for, if one is. Every role may read `pg_locks`; what it may not see of
/// others' sessions is left out.
///
/// # Errors
///
/// A statement failed.
pub async fn at_source(client: &Client) -> Result<Option<Waiting>, Failure> {
    let sql = "
        WITH maker AS (
            SELECT l.pid, l.waitstart FROM pg_catalog.pg_locks l
            JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid AND a.backend_type = 'walsender'
            WHERE l.locktype = 'transactionid' AND NOT l.granted LIMIT 1)
        SELECT l.pid, NULL::text, a.state,
            pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - a.xact_start) AS open
        FROM maker m JOIN pg_catalog.pg_locks l ON l.pid <> m.pid
        LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
        WHERE l.locktype = 'transactionid' AND l.granted AND l.mode = 'ExclusiveLock' AND l.pid IS NOT NULL
            AND (a.xact_start IS NULL OR m.waitstart IS NULL OR a.xact_start <= m.waitstart
                 OR l.pid = ANY (pg_catalog.pg_blocking_pids(m.pid)))
        UNION
        SELECT NULL, p.gid::text, 'prepared',
            pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - p.prepared)
        FROM maker m, pg_catalog.pg_prepared_xacts p WHERE m.waitstart IS NULL OR p.prepared <= m.waitstart
        ORDER BY open DESC NULLS LAST";
    let rows = client.query(sql, &[]).await.map_err(|e| Failure::sql(Side::Source, &e))?;
    let blockers: Result<Vec<Blocker>, _> = rows.iter().map(Blocker::of).collect();
    let blockers = blockers.map_err(|e| Failure::sql(Side::Source, &e))?;
    Ok((!blockers.is_empty()).then_some(Waiting { side: Side::Source, table: None, blockers }))
}

/// The lock that a session of the flow waits for on the target, if one does, and who holds it.
///
/// # Errors
///
/// A statement failed.
pub async fn at_target(client: &Client, flow: &str) -> Result<Option<Waiting>, Failure> {
    let failed = |e: tokio_postgres::Error| Failure::sql(Side::Target, &e);
    let writers = pgonce_target::writers(client, flow).await?;
    let sql = "
        SELECT n.nspname::text || '.' || c.relname::text, pg_catalog.pg_blocking_pids(l.pid)
        FROM pg_catalog.pg_locks l
        LEFT JOIN pg_catalog.pg_class c ON c.oid = l.relation
        LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE NOT l.granted AND l.pid = ANY ($1) ORDER BY l.waitstart LIMIT 1";
    let Some(row) = client.query_opt(sql, &[&writers]).await.map_err(failed)? else { return Ok(None) };
    let (table, pids): (Option<String>, Vec<i32>) = (row.get(0), row.get(1));
    // A prepared transaction is nobody's process: it shows as 0.
    let sql = "
        SELECT u.pid, NULL::text, a.state,
            pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - a.xact_start) AS open
        FROM unnest($1::pg_catalog.int4[]) u (pid) LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = u.pid
        WHERE u.pid <> 0
        UNION
        SELECT NULL, p.gid::text, 'prepared',
            pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - p.prepared)
        FROM pg_catalog.pg_prepared_xacts p
        WHERE 0 = ANY ($1) AND p.database::text = pg_catalog.current_database()::text
        ORDER BY open DESC NULLS LAST";
    let rows = client.query(sql, &[&pids]).await.map_err(failed)?;
    let blockers: Vec<Blocker> = rows.iter().map(Blocker::of).collect::<Result<_, _>>().map_err(failed)?;
    Ok((!blockers.is_empty()).then_some(Waiting { side: Side::Target, table, blockers }))
}

/// What has to move where nothing is waited for.
#[derive(PartialEq, Eq)]
struct Marks(Phase, bool, [u64; 3], usize);

impl Marks {
    fn of(p: &Progress) -> Marks {
        Marks(p.phase, p.writing, [p.applied, p.redelivered, p.bytes_copied], p.tables_copied)
    }

    /// Whether standing still is a sign that something is waited for.
    fn may_wait(&self) -> bool {
        self.1 || matches!(self.0, Phase::Connecting | Phase::Beginning | Phase::Copying)
    }
}

/// Looks, on connections of its own, whom a flow waits for when it has stood still for a while, and tells it once. Ends
/// with the pipeline.
pub async fn watch(config: FlowConfig, mut progress: watch::Receiver<Progress>, tell: mpsc::UnboundedSender<Waiting>) {
    let mut looker = Looker { config, source: None, target: None };
    let mut told: Vec<Waiting> = Vec::new();
    loop {
        let marks = Marks::of(&progress.borrow_and_update());
        let moved = async {
            while progress.changed().await.is_ok() {
                if Marks::of(&progress.borrow_and_update()) != marks {
                    return true;
                }
            }
            false
        };
        if !marks.may_wait() {
            if !moved.await {
                return;
            }
            continue;
        }
        match tokio::time::timeout(PATIENCE, moved).await {
            Ok(false) => return,
            Ok(true) => {
                told.clear();
                (looker.source, looker.target) = (None, None);
            }
            Err(_) => {
                let found = tokio::time::timeout(LOOK_WITHIN, looker.look(marks.0)).await.unwrap_or_default();
                let news: Vec<&Waiting> = found.iter().filter(|new| !told.iter().any(|old| old.same(new))).collect();
                if news.into_iter().any(|new| tell.send(new.clone()).is_err()) {
                    return;
                }
                told = found;
            }
        }
    }
}

/// The connections of a look, kept for as long as the flow stands still.
struct Looker {
    config: FlowConfig,
    source: Option<SqlConnection>,
    target: Option<SqlConnection>,
}

impl Looker {
    /// What is waited for. A look that fails says nothing: whatever is wrong, the flow itself will meet it.
    async fn look(&mut self, phase: Phase) -> Vec<Waiting> {
        let mut found = Vec::new();
        if matches!(phase, Phase::Beginning | Phase::Copying) {
            if self.source.is_none() {
                self.source = connect_sql(&self.config.source.connection, "watch").await.ok();
            }
            if let Some(connection) = self.source.take()
                && let Ok(waiting) = at_source(&connection.client).await
            {
                found.extend(waiting);
                self.source = Some(connection);
            }
        }
        if self.target.is_none() {
            self.target = connect_sql(&self.config.target.connection, "watch").await.ok();
        }
        if let Some(connection) = self.target.take()
            && let Ok(waiting) = at_target(&connection.client, self.config.flow.as_str()).await
        {
            found.extend(waiting);
            self.target = Some(connection);
        }
        found
    }
}
