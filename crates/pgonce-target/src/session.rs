//! One session on the target: a connection, what it has prepared, and what it knows of the flow.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join;
use pgonce::connect::{SqlConnection, connect_sql};
use pgonce::position::{Checkpoint, CommitLsn, EndLsn, Lsn, Timeline};
use pgonce::sql_error::fault_of;
use pgonce::stop::{Reason, Side, Stop};
use pgonce::transaction::Transaction;
use tokio_postgres::types::{PgLsn, ToSql};
use tokio_postgres::{Error, Row, Statement};

use crate::failure::Failure;
use crate::inflight::{InFlight, Subject};
use crate::ledger::{self, from_pg, ledger_stop, lsn, sql_stop, unreadable};
use crate::map::TableMap;
use crate::plan::Planner;
use crate::scope::Scope;
use crate::settings::{ShownKey, SynchronousCommit, TargetSettings};

/// The planner in use.
type InUse = crate::write::RowWriter;

/// Everything that dies with the connection.
pub(crate) struct Session {
    pub(crate) connection: Arc<SqlConnection>,
    pub(crate) flow: Arc<str>,
    pub(crate) epoch: i64,
    pub(crate) scope: Scope,
    pub(crate) checkpoint: Option<Checkpoint>,
    pub(crate) timeline: Timeline,
    /// Whether target triggers and foreign keys keep still.
    pub(crate) triggers_suppressed: bool,
    /// The target's names of tables.
    pub(crate) map: TableMap,
    pub(crate) writer: InUse,
    show_key: Option<ShownKey>,
    ledger: LedgerStatements,
    durability: SynchronousCommit,
    /// Everything up to here is flushed.
    proved: Option<EndLsn>,
    /// Commits that may not be flushed yet: where the target's log ended right after each, and what it made durable.
    unflushed: VecDeque<(Lsn, EndLsn)>,
    /// Since when something has been unflushed.
    unflushed_since: Instant,
    pub(crate) prune_at: Instant,
}

struct LedgerStatements {
    begin: Statement,
    applied: Statement,
    checkpoint: Statement,
    commit: Statement,
    rollback: Statement,
    positions: Statement,
    redelivered: Statement,
}

const APPLIED: &str = "
    INSERT INTO pgonce.applied (flow, commit_lsn, xid, changes, digest, predecessor)
    SELECT $1, u.c, u.x, u.n, u.d, u.p
    FROM unnest($2::pg_catalog.pg_lsn[], $3::pg_catalog.int8[], $4::pg_catalog.int8[], $5::pg_catalog.text[],
                $6::pg_catalog.pg_lsn[]) AS u (c, x, n, d, p)";

const CHECKPOINT: &str = "
    UPDATE pgonce.flow SET commit_lsn = $3, end_lsn = $4, checkpoint_timeline = $5,
        commit_time = '2000-01-01 00:00:00+00'::pg_catalog.timestamptz
            + $6::pg_catalog.float8 * '1 us'::pg_catalog.interval,
        stop_code = NULL, stop_text = NULL, stop_hint = NULL, stop_at = NULL, updated_at = pg_catalog.now()
    WHERE name = $1 AND epoch = $2";

const REDELIVERED: &str = "
    SELECT commit_lsn, xid, changes, digest FROM pgonce.applied WHERE flow = $1 AND commit_lsn = ANY ($2)";

/// Of these positions behind the checkpoint and without a row, those that never had one: the next row names a
/// predecessor before them. What lies before the beginning of the flow is not the ledger's business.
const NEVER_APPLIED: &str = "
    SELECT u.c FROM unnest($2::pg_catalog.pg_lsn[]) AS u (c)
    CROSS JOIN LATERAL (SELECT a.predecessor FROM pgonce.applied AS a WHERE a.flow = $1 AND a.commit_lsn > u.c
                        ORDER BY a.commit_lsn LIMIT 1) AS next
    WHERE coalesce(next.predecessor < u.c, true) AND u.c >= (SELECT f.boundary FROM pgonce.flow AS f WHERE f.name = $1)
    ORDER BY u.c LIMIT 1";

const POSITIONS: &str = "SELECT pg_catalog.pg_current_wal_insert_lsn(), pg_catalog.pg_current_wal_flush_lsn()";

/// A transaction that is pruned at once deletes at most as many rows.
const PRUNE_ROWS: i64 = 5_000;
const PRUNE_EVERY: Duration = Duration::from_secs(60);

const PRUNE: &str = "
    DELETE FROM pgonce.applied WHERE flow = $1
        AND applied_at < pg_catalog.now() - $3::pg_catalog.float8 * '1 s'::pg_catalog.interval
        AND commit_lsn IN (SELECT commit_lsn FROM pgonce.applied WHERE flow = $1 AND commit_lsn < $2
                           ORDER BY commit_lsn LIMIT $4)";

/// An unflushed commit is waited for so long; then the log is flushed on purpose. The server's own writer does it
/// within three times `wal_writer_delay`, except that a record of another session behind ours, in an otherwise quiet
/// log, can stay for long.
const FLUSH_AFTER: Duration = Duration::from_millis(1_000);

/// A parameter of a request that goes out beside others.
pub(crate) type Parameter = Box<dyn ToSql + Sync + Send>;

impl Session {
    /// Connects, and pins what the session needs.
    pub(crate) async fn connect(settings: &TargetSettings) -> Result<Session, Stop> {
        let (connection, triggers_suppressed) = connect_writer(settings, "apply").await?;
        let client = &connection.client;
        Ok(Session {
            flow: settings.flow.as_str().into(),
            epoch: 0,
            scope: Scope::default(),
            checkpoint: None,
            timeline: 0,
            triggers_suppressed,
            writer: InUse::new(settings.map.clone(), settings.show_key.is_some()),
            map: settings.map.clone(),
            show_key: settings.show_key.clone(),
            ledger: LedgerStatements::none(client).await?,
            durability: settings.durability,
            proved: None,
            unflushed: VecDeque::new(),
            unflushed_since: Instant::now(),
            prune_at: Instant::now() + PRUNE_EVERY,
            connection: Arc::new(connection),
        })
    }

    /// Prepares the statements of the ledger, which is there now.
    pub(crate) async fn prepare(&mut self) -> Result<(), Stop> {
        let client = &self.connection.client;
        let failed = |e| ledger_stop(&self.flow, e);
        self.ledger.applied = client.prepare(APPLIED).await.map_err(failed)?;
        self.ledger.checkpoint = client.prepare(CHECKPOINT).await.map_err(failed)?;
        self.ledger.redelivered = client.prepare(REDELIVERED).await.map_err(failed)?;
        Ok(())
    }

    /// Everything up to the checkpoint is flushed, as [`ledger::open`] has seen to.
    pub(crate) fn opened_at(&mut self, checkpoint: Option<Checkpoint>) {
        self.checkpoint = checkpoint;
        self.proved = checkpoint.map(|c| c.end);
    }

    /// How far everything is known to be flushed.
    pub(crate) fn proved(&self) -> Option<EndLsn> {
        self.proved
    }

    /// A commit on this session was synchronous: it, and everything before it in the log, is flushed.
    pub(crate) fn flushed_all(&mut self) {
        if let Some((_, end)) = self.unflushed.drain(..).next_back() {
            self.proved = Some(end);
        }
    }

    /// Compares transactions that were applied before with what the ledger has of them.
    pub(crate) async fn compare(&self, seen: &[Transaction]) -> Result<(), Stop> {
        let commits: Vec<PgLsn> = seen.iter().map(|t| lsn(t.commit().0)).collect();
        let rows = self.connection.client.query(&self.ledger.redelivered, &[&&*self.flow, &commits]).await;
        let rows = rows.map_err(|e| ledger_stop(&self.flow, e))?;
        if rows.len() < seen.len() {
            self.assert_pruned(seen, &rows).await?;
        }
        for row in &rows {
            let read = || -> Result<(PgLsn, i64, i64, String), Error> {
                Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?))
            };
            let (commit, xid, changes, digest) = read().map_err(|e| ledger_stop(&self.flow, e))?;
            // A transaction without a row has been pruned.
            let commit = CommitLsn(from_pg(commit));
            let Some(transaction) = seen.iter().find(|t| t.commit() == commit) else { continue };
            let found = transaction.digest().to_string();
            let version = |digest: &str| digest.split(':').next().map(str::to_owned);
            let same = i64::from(transaction.xid()) == xid
                && transaction.change_count() == changes.unsigned_abs()
                && (digest == found || version(&digest) != version(&found));
            if !same {
                let describe =
                    |digest: &str, xid: i64, changes: u64| format!("{digest} ({changes} changes, xid {xid})");
                return Err(Reason::RedeliveryConflict {
                    commit,
                    xid: transaction.xid(),
                    stored: describe(&digest, xid, changes.unsigned_abs()),
                    found: describe(&found, transaction.xid().into(), transaction.change_count()),
                }
                .into());
            }
        }
        Ok(())
    }

    /// Transactions without a row must have been pruned. One that was never applied is not a duplicate: the source
    /// has another history than the one that was applied, restored to an earlier point and grown past it, say.
    async fn assert_pruned(&self, seen: &[Transaction], rows: &[Row]) -> Result<(), Stop> {
        let failed = |e| ledger_stop(&self.flow, e);
        let known = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<PgLsn>, Error>>().map_err(failed)?;
        let missing: Vec<PgLsn> = seen.iter().map(|t| lsn(t.commit().0)).filter(|c| !known.contains(c)).collect();
        let never = self.connection.client.query_opt(NEVER_APPLIED, &[&&*self.flow, &missing]).await.map_err(failed)?;
        let Some(never) = never else { return Ok(()) };
        let what = format!(
            "it sends a transaction with commit LSN {}, behind the checkpoint, that the ledger has never seen: it \
            was restored to \
             an earlier point and has grown past the checkpoint, or the ledger was altered",
            CommitLsn(from_pg(never.try_get(0).map_err(failed)?))
        );
        Err(Reason::SourceChanged { what }.into())
    }

    /// Applies transactions that are new, in one commit; if that fails for what is in one of them, each in its own.
    pub(crate) async fn apply(&mut self, group: &[Transaction]) -> Result<u64, Stop> {
        match self.commit_group(group).await {
            Ok(changes) => Ok(changes),
            Err(failure) if failure.narrows() => {
                tracing::info!(transactions = group.len(), "a group failed; trying its transactions one by one");
                self.narrow(group).await
            }
            Err(failure) => Err(self.stop(failure, None).await),
        }
    }

    async fn narrow(&mut self, group: &[Transaction]) -> Result<u64, Stop> {
        let mut changes = 0;
        for transaction in group {
            // The connection's transaction is the failed one, or none, which ROLLBACK takes with a warning.
            self.connection.client.execute(&self.ledger.rollback, &[]).await.map_err(sql_stop)?;
            // What failed may have been a statement made for a table that has changed since.
            self.writer.forget();
            match self.commit_group(std::slice::from_ref(transaction)).await {
                Ok(applied) => changes += applied,
                Err(failure) => return Err(self.stop(failure, Some(transaction)).await),
            }
        }
        Ok(changes)
    }

    async fn stop(&self, mut failure: Failure, transaction: Option<&Transaction>) -> Stop {
        if let (Failure::Rows { shown, .. }, Some(place)) = (&mut failure, &self.show_key)
            && let Some(key) = shown.take()
        {
            place.keep(key.into());
        }
        match failure {
            Failure::Fenced => {
                if let Err(error) = self.connection.client.execute(&self.ledger.rollback, &[]).await {
                    return sql_stop(error);
                }
                ledger::fenced(&self.connection.client, &self.flow).await
            }
            Failure::Sql { error, .. } if error.as_db_error().is_some_and(|e| e.schema() == Some("pgonce")) => {
                // A row in the ledger where none can be, or one that a constraint of the ledger refuses.
                let what = error.as_db_error().map(fault_of).unwrap_or_default();
                unreadable(&self.flow, what)
            }
            failure => failure.into_stop(transaction),
        }
    }

    /// One target commit: the changes, a row for each transaction, and the checkpoint, under the fence.
    async fn commit_group(&mut self, group: &[Transaction]) -> Result<u64, Failure> {
        let Some(last) = group.last() else { return Ok(0) };
        let mut flight = InFlight::default();
        let connection = Arc::clone(&self.connection);
        flight.send(&connection, &self.ledger.begin, Vec::new(), Subject::Other).await?;
        let applied = self.writer.apply(&connection, group, &self.scope, &mut flight).await;
        let changes = match applied {
            Ok(changes) => changes,
            Err(failure) => {
                flight.abandon();
                return Err(failure);
            }
        };
        flight.track(self.request(&self.ledger.applied, self.applied_rows(group)), 0, Subject::Other).await?;
        let checkpoint = Checkpoint { timeline: self.timeline, commit: last.commit(), end: last.end() };
        let parameters: Vec<Parameter> = vec![
            Box::new(self.flow.to_string()),
            Box::new(self.epoch),
            Box::new(lsn(last.commit().0)),
            Box::new(lsn(last.end().0)),
            Box::new(i64::from(self.timeline)),
            Box::new(last.commit_time().0 as f64),
        ];
        flight.track(self.request(&self.ledger.checkpoint, parameters), 0, Subject::Flow).await?;
        // Every statement has done what it should before COMMIT is on its way.
        flight.drain().await?;
        self.commit(checkpoint).await?;
        Ok(changes)
    }

    /// Commits. Without waiting for the flush, it asks in the same round trip, and on the same connection, where the
    /// target's log ends now: when the log is flushed to there, so is the commit.
    async fn commit(&mut self, checkpoint: Checkpoint) -> Result<(), Failure> {
        let client = &self.connection.client;
        if self.durability.waits() {
            client.execute(&self.ledger.commit, &[]).await?;
            self.proved = Some(checkpoint.end);
        } else {
            let (committed, positions) =
                join(client.execute(&self.ledger.commit, &[]), client.query_one(&self.ledger.positions, &[])).await;
            committed?;
            let (inserted, flushed) = positions_of(&positions?)?;
            if self.unflushed.is_empty() {
                self.unflushed_since = Instant::now();
            }
            self.unflushed.push_back((inserted, checkpoint.end));
            self.flushed(flushed);
        }
        self.checkpoint = Some(checkpoint);
        Ok(())
    }

    /// How far everything is flushed, asked anew.
    ///
    /// The question goes over the connection that committed. If the target crashed in between and lost the commit,
    /// that connection died with it, and the error says so; another connection would ask a server that starts its log
    /// where the lost commit was, and might find that position flushed again, by somebody else's records.
    pub(crate) async fn durable(&mut self) -> Result<Option<EndLsn>, Stop> {
        if self.unflushed.is_empty() {
            return Ok(self.proved);
        }
        if self.unflushed_since.elapsed() > FLUSH_AFTER {
            let sql = "UPDATE pgonce.flow SET updated_at = pg_catalog.now() WHERE name = $1 AND epoch = $2 \
                       AND pg_catalog.set_config('synchronous_commit', 'on', true) = 'on'";
            self.under_fence(sql, &[&&*self.flow, &self.epoch]).await?;
            self.flushed_all();
            return Ok(self.proved);
        }
        let row = self.connection.client.query_one(&self.ledger.positions, &[]).await.map_err(sql_stop)?;
        let (_, flushed) = positions_of(&row).map_err(sql_stop)?;
        self.flushed(flushed);
        Ok(self.proved)
    }

    fn flushed(&mut self, flushed: Lsn) {
        while let Some((inserted, end)) = self.unflushed.front().copied()
            && inserted <= flushed
        {
            self.unflushed.pop_front();
            self.unflushed_since = Instant::now();
            self.proved = Some(end);
        }
    }

    /// Runs an `UPDATE` of the flow's row that asks for our epoch; no row means that we are fenced off.
    pub(crate) async fn under_fence(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<(), Stop> {
        match self.connection.client.execute(sql, parameters).await {
            Ok(0) => Err(ledger::fenced(&self.connection.client, &self.flow).await),
            Ok(_) => Ok(()),
            Err(error) => Err(ledger_stop(&self.flow, error)),
        }
    }

    /// Deletes a bounded number of old rows of `applied`, behind what is durable.
    pub(crate) async fn prune(&mut self, retention: Duration) -> Result<(), Stop> {
        let (Some(checkpoint), Some(proved)) = (self.checkpoint, self.proved) else { return Ok(()) };
        if Instant::now() < self.prune_at {
            return Ok(());
        }
        // The checkpoint's own row stays, and whatever is not known to be durable.
        let below = lsn(checkpoint.commit.0.min(proved.0));
        let client = &self.connection.client;
        let deleted = client.execute(PRUNE, &[&&*self.flow, &below, &retention.as_secs_f64(), &PRUNE_ROWS]).await;
        let deleted = deleted.map_err(|e| ledger_stop(&self.flow, e))?;
        // Where there is more to delete, after the next group.
        if deleted < PRUNE_ROWS.unsigned_abs() {
            self.prune_at = Instant::now() + PRUNE_EVERY;
        }
        Ok(())
    }

    fn applied_rows(&self, group: &[Transaction]) -> Vec<Parameter> {
        let commits: Vec<PgLsn> = group.iter().map(|t| lsn(t.commit().0)).collect();
        let before = self.checkpoint.map(|c| lsn(c.commit.0));
        let after = commits.iter().take(commits.len().saturating_sub(1)).copied().map(Some);
        let predecessors: Vec<Option<PgLsn>> = std::iter::once(before).chain(after).collect();
        vec![
            Box::new(self.flow.to_string()),
            Box::new(commits),
            Box::new(group.iter().map(|t| i64::from(t.xid())).collect::<Vec<i64>>()),
            Box::new(group.iter().map(|t| t.change_count().cast_signed()).collect::<Vec<i64>>()),
            Box::new(group.iter().map(|t| t.digest().to_string()).collect::<Vec<String>>()),
            Box::new(predecessors),
        ]
    }

    fn request(
        &self,
        statement: &Statement,
        parameters: Vec<Parameter>,
    ) -> Pin<Box<dyn Future<Output = Result<u64, Error>> + Send>> {
        let (connection, statement) = (Arc::clone(&self.connection), statement.clone());
        Box::pin(async move {
            let parameters = parameters.iter().map(|p| &**p as &(dyn ToSql + Sync));
            connection.client.execute_raw(&statement, parameters).await
        })
    }
}

/// Connects, and pins what a session that writes tables needs. Whether target triggers and foreign keys keep still.
pub(crate) async fn connect_writer(settings: &TargetSettings, role: &str) -> Result<(SqlConnection, bool), Stop> {
    let connection = connect_sql(&settings.connection, role).await.map_err(|e| e.into_stop(Side::Target))?;
    let client = &connection.client;
    // Statements are prepared once and used for long, also on tables that were empty and unanalyzed when they were
    // planned: a plan that scans the whole table must not be what they are stuck with. Compiling such plans would be
    // for nothing.
    let pins = format!(
        "SET synchronous_commit = {}; SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; \
         SET jit = off; SET row_security = off",
        settings.durability.setting()
    );
    client.batch_execute(&pins).await.map_err(sql_stop)?;
    // If this process is killed, a long statement of its session does not outlive it by more than this. Known from
    // version 14 on.
    let watched = client.batch_execute("SET client_connection_check_interval = '500ms'").await;
    refused(watched)?;
    let triggers_suppressed = refused(client.batch_execute("SET session_replication_role = replica").await)?;
    Ok((connection, triggers_suppressed))
}

impl LedgerStatements {
    /// The statements that need no table, and placeholders for the others.
    async fn none(client: &tokio_postgres::Client) -> Result<LedgerStatements, Stop> {
        let positions = client.prepare(POSITIONS).await.map_err(sql_stop)?;
        Ok(LedgerStatements {
            begin: client.prepare("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await.map_err(sql_stop)?,
            commit: client.prepare("COMMIT").await.map_err(sql_stop)?,
            rollback: client.prepare("ROLLBACK").await.map_err(sql_stop)?,
            applied: positions.clone(),
            checkpoint: positions.clone(),
            redelivered: positions.clone(),
            positions,
        })
    }
}

/// Insert and flush position. Behind a page's last record the first is given behind the next page's header, the other
/// not.
fn positions_of(row: &Row) -> Result<(Lsn, Lsn), Error> {
    let (inserted, flushed): (PgLsn, PgLsn) = (row.try_get(0)?, row.try_get(1)?);
    Ok((from_pg(inserted).before_page_header(), from_pg(flushed)))
}

/// Whether a setting was taken; false if the server refuses it or does not know it.
fn refused(result: Result<(), Error>) -> Result<bool, Stop> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.as_db_error().is_some_and(|e| matches!(e.code().code(), "42501" | "42704" | "22023")) => {
            Ok(false)
        }
        Err(error) => Err(sql_stop(error)),
    }
}
