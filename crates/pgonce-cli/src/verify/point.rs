//! Where a comparison stands, and whether anything moved while it was made.
//!
//! The comparison stands at a position L of the source's WAL, read at its beginning, and at a second one, L', read at
//! its end. It says something only if no published change was committed between what the target has applied and L',
//! and if the target's checkpoint did not move. Then both sides were at rest, whichever snapshot either was read in.

use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use pgonce::catalog;
use pgonce::ident::quote_ident;
use pgonce::position::{CommitLsn, Lsn};
use pgonce::sql_error::stop_from_sql;
use pgonce::stop::{Side, Stop};
use pgonce_target::{FlowStatus, read_status};
use tokio_postgres::Client;

use super::report::{Interrupted, Problem};

/// How often the ledger is looked at while it is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A change is looked for in this many of the slot's messages first, then in more, at last in all.
const PEEKS: [Option<i32>; 3] = [Some(1), Some(20_000), None];

/// Looks at both ends of a flow.
#[derive(Debug)]
pub struct Watch<'a> {
    /// A session of the source that is in no transaction.
    pub source: &'a Client,
    /// A session of the target that is in no transaction.
    pub target: &'a Client,
    /// The flow.
    pub flow: &'a str,
    /// Its slot.
    pub slot: &'a str,
    /// Its publications.
    pub publications: &'a [String],
    /// How long a running flow may take to reach a position.
    pub wait: Duration,
}

/// Whether everything published before a position is applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Covered {
    /// It is: the ledger says so.
    ByLedger,
    /// It is: the slot holds no published change that is not applied.
    BySlot,
    /// Published transactions wait in the slot.
    Waiting {
        /// How many were seen.
        transactions: u64,
        /// The first of them.
        first: CommitLsn,
    },
    /// The checkpoint is no longer the one that was expected.
    Moved {
        /// Where it is now.
        checkpoint: CommitLsn,
    },
    /// The flow runs, and did not get there in time.
    Late {
        /// How far it has come.
        reached: Lsn,
    },
    /// The ledger does not say so, and there is no slot to ask.
    NoSlot,
}

/// The greater of the checkpoint's end and the idle boundary: the last position that the source may have been told.
pub fn stored(status: &FlowStatus) -> Lsn {
    let end = status.end.map(|end| end.0);
    let idle = status.idle.or(status.boundary).map(|idle| idle.0);
    end.max(idle).unwrap_or_default()
}

impl Watch<'_> {
    /// The source's write position, once all commits before it are flushed: a slot is read no further than that.
    pub async fn position(&self) -> Result<Lsn, Stop> {
        let failed = |e| stop_from_sql(Side::Source, &e);
        let sql = "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()::text \
             ELSE pg_catalog.pg_current_wal_insert_lsn()::text END, \
             (SELECT s.setting::int8 FROM pg_catalog.pg_settings s WHERE s.name = 'wal_writer_delay')";
        let row = self.source.query_one(sql, &[]).await.map_err(failed)?;
        let position = lsn(row.get(0))?.before_page_header();
        let delay = Duration::from_millis(u64::try_from(row.get::<_, i64>(1)).unwrap_or(200));
        // A commit with synchronous_commit = off is flushed within three rounds of the WAL writer. What is not
        // flushed after that is no commit.
        let patience = delay * 4 + Duration::from_millis(200);
        let begun = Instant::now();
        let sql = "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()::text \
             ELSE pg_catalog.pg_current_wal_flush_lsn()::text END";
        loop {
            let flushed = lsn(self.source.query_one(sql, &[]).await.map_err(failed)?.get(0))?.before_page_header();
            if flushed >= position {
                return Ok(position);
            }
            if begun.elapsed() > patience {
                return Ok(flushed);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What the ledger holds now.
    pub async fn status(&self) -> Result<FlowStatus, Interrupted> {
        status_of(self.target, self.flow).await
    }

    /// Finds out whether everything published before `position` is applied; and, with `expected`, whether the
    /// checkpoint is still that one.
    pub async fn covered(&self, position: Lsn, expected: Option<Option<CommitLsn>>) -> Result<Covered, Interrupted> {
        let begun = Instant::now();
        loop {
            let late = begun.elapsed() >= self.wait;
            let status = self.status().await?;
            if let (Some(expected), Some(checkpoint)) = (expected, status.commit)
                && expected != Some(checkpoint)
            {
                return Ok(Covered::Moved { checkpoint });
            }
            let reached = stored(&status);
            if reached >= position {
                return Ok(Covered::ByLedger);
            }
            let slot = catalog::slot_state(self.source, self.slot).await?;
            match slot {
                None => return Ok(Covered::NoSlot),
                Some(slot) if slot.active_pid.is_none() => {
                    if let Some(found) = self.peek(position, reached, status.commit).await? {
                        return Ok(found);
                    }
                }
                Some(_) => {}
            }
            if late {
                return Ok(Covered::Late { reached });
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Looks into a slot that nobody reads, without moving it. None: somebody reads it now.
    async fn peek(
        &self,
        position: Lsn,
        reached: Lsn,
        checkpoint: Option<CommitLsn>,
    ) -> Result<Option<Covered>, Interrupted> {
        for limit in PEEKS {
            let seen = match self.peek_at(position, limit, |commit| is_new(commit, reached, checkpoint)).await {
                Ok(seen) => seen,
                Err(error) if error.code().is_some_and(|code| code.code() == "55006") => return Ok(None),
                Err(error) => return Err(stop_from_sql(Side::Source, &error).into()),
            };
            if let Some(first) = seen.first {
                return Ok(Some(Covered::Waiting { transactions: seen.transactions, first }));
            }
            if limit.is_none_or(|limit| seen.messages < u64::try_from(limit).unwrap_or(0)) {
                break;
            }
        }
        Ok(Some(Covered::BySlot))
    }

    async fn peek_at(
        &self,
        position: Lsn,
        limit: Option<i32>,
        is_new: impl Fn(CommitLsn) -> bool,
    ) -> Result<Seen, tokio_postgres::Error> {
        // Of a message only its first byte, and of a Begin the commit LSN behind it: no value leaves the server.
        let sql = "SELECT pg_catalog.get_byte(p.data, 0), CASE pg_catalog.get_byte(p.data, 0) WHEN 66 \
               THEN ('x' || pg_catalog.encode(pg_catalog.substr(p.data, 2, 8), 'hex'))::bit(64)::int8 END \
             FROM pg_catalog.pg_logical_slot_peek_binary_changes($1, $2::text::pg_lsn, $3, \
               'proto_version', '1', 'publication_names', $4) p";
        let names: Vec<String> = self.publications.iter().map(|name| quote_ident(name)).collect();
        let (position, names) = (position.to_string(), names.join(","));
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 4] = [&self.slot, &position, &limit, &names];
        let rows = self.source.query_raw(sql, parameters).await?;
        let mut rows = std::pin::pin!(rows);
        let (mut seen, mut current, mut counted) = (Seen::default(), None, true);
        while let Some(row) = rows.try_next().await? {
            seen.messages += 1;
            match u8::try_from(row.get::<_, i32>(0)).unwrap_or(0) {
                b'B' => {
                    let commit = row.get::<_, Option<i64>>(1).unwrap_or(0);
                    current = Some(CommitLsn(Lsn(commit.cast_unsigned())));
                    counted = false;
                }
                b'I' | b'U' | b'D' | b'T' if !counted => {
                    counted = true;
                    if let Some(commit) = current.filter(|commit| is_new(*commit)) {
                        seen.transactions += 1;
                        seen.first.get_or_insert(commit);
                    }
                }
                _ => {}
            }
        }
        Ok(seen)
    }
}

/// Whether a transaction that the slot still holds has not been applied.
fn is_new(commit: CommitLsn, reached: Lsn, checkpoint: Option<CommitLsn>) -> bool {
    commit.0 >= reached && checkpoint.is_none_or(|checkpoint| commit > checkpoint)
}

#[derive(Default)]
struct Seen {
    messages: u64,
    transactions: u64,
    first: Option<CommitLsn>,
}

/// What the ledger holds of a flow that has begun.
pub async fn status_of(target: &Client, flow: &str) -> Result<FlowStatus, Interrupted> {
    match read_status(target, flow).await? {
        Some(status) => Ok(status),
        None => Err(Problem::new(
            "not_started",
            format!("the target has stored nothing of flow {flow}"),
            "Check --flow and the target's URL; or start the flow: `pgonce run`.",
        )
        .into()),
    }
}

fn lsn(text: String) -> Result<Lsn, Stop> {
    text.parse().map_err(|_| Stop::internal("the source's write position is no LSN"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_slot_holds_is_new_behind_the_checkpoint_and_the_idle_boundary() {
        let at = |lsn| CommitLsn(Lsn(lsn));
        assert!(!is_new(at(100), Lsn(140), Some(at(100))));
        assert!(is_new(at(140), Lsn(140), Some(at(100))));
        assert!(!is_new(at(150), Lsn(200), Some(at(100))));
        assert!(is_new(at(10), Lsn(10), None));
    }
}
