//! Tables that are copied while the stream runs: those that joined the publication, and those that are copied again.
//!
//! They are copied in rounds of a few pieces. Each round has a snapshot of its own, and its rows stand at the
//! snapshot's boundary B. What the stream brings for a piece that has not been copied is left out: it lies before the
//! boundary of the copy to come, and is in it. For that to hold,
//!
//! 1. while a round is copied, no transaction from B on that touches one of its tables is handed over: when its pieces
//!    have landed, it applies. Commit order is kept, so what is behind such a transaction waits with it;
//! 2. if such a transaction had been handed over (and was left out) before B was known, the snapshot is discarded and
//!    another one taken. After a few that were lost in this way, transactions are held back before B is known.
//!
//! What was handed over before a snapshot was asked for lies before its boundary, in this session or an earlier one.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::pending;
use std::num::NonZeroUsize;

use tokio::task::JoinSet;

use crate::copy::{Job, Landed, Workers};
use crate::destination::Loader;
use crate::position::{Boundary, CommitLsn};
use crate::snapshot::{Snapshot, Snapshots};
use crate::stop::Stop;
use crate::transaction::{Change, Transaction};

/// So many snapshots in a row may be lost to transactions that were handed over; from then on they are held back.
const LOST_MAX: u32 = 3;

/// The copy of tables beside the stream.
pub(crate) struct Joining {
    snapshots: Snapshots,
    /// The pieces that are in no round yet. Those of one table that hold only together are together.
    queue: VecDeque<Vec<Job>>,
    jobs: NonZeroUsize,
    /// Pieces of each table that have not landed.
    left: HashMap<u32, usize>,
    round: Option<Round>,
    /// Snapshots lost in a row.
    lost: u32,
}

/// Some pieces on their way.
struct Round {
    /// The tables that its pieces are of.
    tables: HashSet<u32>,
    pieces: Vec<Job>,
    gate: Gate,
    stage: Stage,
}

enum Stage {
    /// A snapshot is being taken.
    Taking(JoinSet<Result<Snapshot, Stop>>),
    /// The pieces are being copied.
    Copying { boundary: Boundary, workers: Workers },
}

/// Something that has happened to the copy.
pub(crate) enum Joined {
    /// A snapshot was taken for the round, at this boundary.
    Snapshot(Box<Snapshot>),
    /// A piece has landed.
    Piece {
        /// It, and its table.
        landed: Landed,
        /// Where it was read.
        boundary: Boundary,
        /// Whether it was the last of its table.
        last: bool,
    },
    /// All pieces of the round have landed.
    Round,
}

impl Joining {
    /// The copy of these pieces.
    pub(crate) fn new(
        jobs_to_do: Vec<Job>,
        together: &HashSet<u32>,
        snapshots: Snapshots,
        jobs: NonZeroUsize,
    ) -> Joining {
        let mut left = HashMap::new();
        let mut queue: VecDeque<Vec<Job>> = VecDeque::new();
        let mut whole: HashMap<u32, usize> = HashMap::new();
        for job in jobs_to_do {
            let table = job.table.table.oid;
            *left.entry(table).or_insert(0) += 1;
            match whole.get(&table).and_then(|place| queue.get_mut(*place)) {
                Some(pieces) => pieces.push(job),
                None => {
                    if together.contains(&table) {
                        whole.insert(table, queue.len());
                    }
                    queue.push_back(vec![job]);
                }
            }
        }
        Joining { snapshots, queue, jobs, left, round: None, lost: 0 }
    }

    /// Whether everything has landed.
    pub(crate) fn is_done(&self) -> bool {
        self.round.is_none() && self.queue.is_empty()
    }

    /// Whether the next round is to be begun.
    pub(crate) fn is_idle(&self) -> bool {
        self.round.is_none() && !self.queue.is_empty()
    }

    /// Whether the next round has to hold transactions back before its snapshot is taken.
    pub(crate) fn must_hold(&self) -> bool {
        self.lost >= LOST_MAX
    }

    /// Begins the next round. `hold`: transactions from here on that touch its tables are held back at once; a position
    /// that the source has just reached.
    pub(crate) fn begin(&mut self, hold: Option<Boundary>) {
        let mut pieces = Vec::new();
        while pieces.len() < self.jobs.get()
            && let Some(next) = self.queue.pop_front()
        {
            pieces.extend(next);
        }
        if pieces.is_empty() {
            return;
        }
        let tables = pieces.iter().map(|job| job.table.table.oid).collect();
        let stage = Stage::Taking(self.take());
        self.round = Some(Round { tables, pieces, gate: Gate { hold, ..Gate::default() }, stage });
    }

    fn take(&self) -> JoinSet<Result<Snapshot, Stop>> {
        let snapshots = self.snapshots.clone();
        let mut task = JoinSet::new();
        task.spawn(async move { snapshots.take().await });
        task
    }

    /// The round's snapshot stands at `boundary`. Whether it can be used; if not, the round is to be begun anew.
    pub(crate) fn accepts(&mut self, boundary: Boundary) -> bool {
        let Some(round) = &mut self.round else { return false };
        if round.gate.opened_at(boundary) {
            self.lost = 0;
            return true;
        }
        self.lost += 1;
        if let Some(round) = self.round.take() {
            self.queue.push_front(round.pieces);
        }
        false
    }

    /// Copies the round's pieces from its snapshot.
    pub(crate) fn copy<L: Loader>(&mut self, snapshot: Snapshot, loaders: Vec<L>) {
        let Some(round) = &mut self.round else { return };
        let boundary = snapshot.boundary;
        let workers = Workers::start(snapshot, round.pieces.clone(), loaders);
        round.stage = Stage::Copying { boundary, workers };
    }

    /// How many can copy the round's pieces at once.
    pub(crate) fn workers(&self) -> usize {
        self.round.as_ref().map_or(0, |round| round.pieces.len()).min(self.jobs.get())
    }

    /// The tables on their way, for whoever watches.
    pub(crate) fn current(&self) -> Option<String> {
        self.round.as_ref()?.pieces.first().map(|job| job.table.table.to_string())
    }

    /// Waits for what happens next. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Joined, Stop> {
        let Some(round) = &mut self.round else { return pending().await };
        match &mut round.stage {
            Stage::Taking(task) => match task.join_next().await {
                Some(Ok(snapshot)) => Ok(Joined::Snapshot(Box::new(snapshot?))),
                Some(Err(error)) => Err(Stop::lost_task("the task that takes a snapshot", &error)),
                None => pending().await,
            },
            Stage::Copying { boundary, workers } => match workers.next().await? {
                Some(landed) => {
                    let left = self.left.entry(landed.table).or_insert(1);
                    *left = left.saturating_sub(1);
                    Ok(Joined::Piece { boundary: *boundary, last: *left == 0, landed })
                }
                None => {
                    self.round = None;
                    Ok(Joined::Round)
                }
            },
        }
    }

    /// Whether a transaction has to wait: it touches a table of the round, and lies behind its boundary.
    pub(crate) fn holds(&mut self, transaction: &Transaction) -> Result<bool, Stop> {
        let Some(round) = &mut self.round else { return Ok(false) };
        let tables = &round.tables;
        round.gate.pass(transaction.commit(), || touches(transaction, tables))
    }
}

fn touches(transaction: &Transaction, tables: &HashSet<u32>) -> Result<bool, Stop> {
    let mut changes = transaction.changes();
    while let Some(change) = changes.next()? {
        let touched = match &change {
            Change::Insert { relation, .. } | Change::Update { relation, .. } | Change::Delete { relation, .. } => {
                tables.contains(&relation.oid)
            }
            Change::Truncate { relations, .. } => relations.iter().any(|relation| tables.contains(&relation.oid)),
            Change::Message { .. } => false,
        };
        if touched {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Which transactions of a round may be handed over. No I/O.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// Transactions from here on that touch a table of the round are held back.
    hold: Option<Boundary>,
    /// The last transaction that touches one and was handed over since the round began.
    handed_over: Option<CommitLsn>,
    /// A transaction that is being held.
    held: Option<CommitLsn>,
}

impl Gate {
    /// Whether the next transaction in commit order has to wait; if not, it is handed over. It is asked whether it
    /// touches a table of the round only where that matters.
    fn pass(&mut self, commit: CommitLsn, touches: impl FnOnce() -> Result<bool, Stop>) -> Result<bool, Stop> {
        if self.held == Some(commit) {
            return Ok(true);
        }
        if self.hold.is_some_and(|hold| !hold.precedes(commit)) || !touches()? {
            return Ok(false);
        }
        let noted = if self.hold.is_some() { &mut self.held } else { &mut self.handed_over };
        *noted = Some(commit);
        Ok(self.hold.is_some())
    }

    /// The boundary is known: from it on, transactions are held. False: one was handed over already.
    fn opened_at(&mut self, boundary: Boundary) -> bool {
        let lost = self.handed_over.is_some_and(|commit| boundary.precedes(commit));
        // What was held before the boundary was known, and lies before it, may go.
        self.hold = Some(boundary);
        self.held = None;
        !lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::Lsn;

    fn at(lsn: u64) -> CommitLsn {
        CommitLsn(Lsn(lsn))
    }

    fn boundary(lsn: u64) -> Boundary {
        Boundary(Lsn(lsn))
    }

    #[test]
    fn what_touches_a_table_on_its_way_waits_from_the_boundary_on() {
        let mut gate = Gate::default();
        assert_eq!(gate.pass(at(10), || Ok(true)), Ok(false), "nothing is held before the boundary is known");
        assert!(gate.opened_at(boundary(20)));
        assert_eq!(gate.pass(at(19), || panic!("nobody needs to know")), Ok(false));
        assert_eq!(gate.pass(at(20), || Ok(false)), Ok(false));
        assert_eq!(gate.pass(at(21), || Ok(true)), Ok(true));
        assert_eq!(gate.pass(at(21), || panic!("it is known")), Ok(true));
    }

    #[test]
    fn a_snapshot_is_lost_to_a_transaction_that_was_handed_over() {
        let mut gate = Gate::default();
        assert_eq!(gate.pass(at(20), || Ok(true)), Ok(false));
        assert_eq!(gate.pass(at(30), || Ok(false)), Ok(false));
        assert!(!gate.opened_at(boundary(20)), "it lies behind the boundary, and was left out");
        let mut gate = Gate::default();
        assert_eq!(gate.pass(at(20), || Ok(true)), Ok(false));
        assert!(gate.opened_at(boundary(21)));
    }

    #[test]
    fn what_was_held_early_goes_if_it_lies_before_the_boundary() {
        let mut gate = Gate { hold: Some(boundary(10)), ..Gate::default() };
        assert_eq!(gate.pass(at(15), || Ok(true)), Ok(true));
        assert!(gate.opened_at(boundary(20)));
        assert_eq!(gate.pass(at(15), || panic!("it lies before the boundary")), Ok(false));
    }
}
