//! What was written and may come again, so that a transaction with the same identity and other content is noticed.

use std::collections::VecDeque;
use std::fmt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::position::{Boundary, EndLsn, Lsn};
use crate::stop::{Reason, Stop};
use crate::transaction::{Digest, Transaction};

/// The last writes: of each, its first and last transaction, how many it had, and a digest over all of them.
/// Transactions without changes do not count (a server sends them or not), nor do those that were prepared first (their
/// commit may come again alone).
///
/// What has been acknowledged does not come again and is forgotten, but for the last write: a source that was restored
/// to an earlier point begins before it. Of what has not been acknowledged, the last [`Window::MAX`] writes are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Window {
    writes: VecDeque<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    first: u64,
    last: u64,
    end: u64,
    count: u64,
    digest: String,
}

/// How far a redelivery has been compared. Begins anew with each session.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// Whatever commits here or behind comes again, or has come: where the stream begins, and then behind each
    /// transaction that came.
    next: u64,
    /// The transactions of the write that is being compared, so far, and the last one that it has.
    run: Option<(Run, u64)>,
}

struct Run {
    count: u64,
    hash: Box<Xxh3>,
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Run {
    fn new() -> Run {
        Run { count: 0, hash: Box::new(Xxh3::new()) }
    }

    fn add(&mut self, transaction: &Transaction) {
        self.count += 1;
        self.hash.update(&transaction.commit().0.0.to_le_bytes());
        self.hash.update(transaction.digest().to_string().as_bytes());
    }

    fn digest(&self) -> String {
        format!("{}:{:032x}", Digest::VERSION, self.hash.digest128())
    }
}

impl Window {
    /// Enough for seconds without an acknowledgement, and a few dozen kilobytes at the most.
    const MAX: usize = 256;

    /// These transactions are written together.
    pub(super) fn wrote(&mut self, transactions: &[Transaction]) {
        let counted = || transactions.iter().filter(|transaction| counts(transaction));
        let (Some(first), Some(last)) = (counted().next(), counted().next_back()) else { return };
        let mut run = Run::new();
        counted().for_each(|transaction| run.add(transaction));
        if self.writes.len() == Window::MAX {
            self.writes.pop_front();
        }
        self.writes.push_back(Entry {
            first: first.commit().0.0,
            last: last.commit().0.0,
            end: last.end().0.0,
            count: run.count,
            digest: run.digest(),
        });
    }

    /// Everything below `boundary` does not come again from a source with the same history.
    pub(super) fn acknowledged(&mut self, boundary: Boundary) {
        let done = |entry: &Entry| EndLsn(Lsn(entry.end)).as_boundary() <= boundary;
        while self.writes.len() > 1 && self.writes.front().is_some_and(done) {
            self.writes.pop_front();
        }
    }

    /// Content is digested otherwise from here on.
    pub(super) fn forget(&mut self) {
        self.writes.clear();
    }

    /// Compares a transaction that comes again. They come in commit order, and from where the stream begins all of
    /// them.
    pub(super) fn compare(&self, comparison: &mut Comparison, again: &Transaction) -> Result<(), Stop> {
        if !counts(again) {
            return Ok(());
        }
        let commit = again.commit().0.0;
        self.came_before(comparison, commit)?;
        comparison.next = commit + 1;
        let at = self.writes.partition_point(|entry| entry.last < commit);
        let Some(entry) = self.writes.get(at).filter(|entry| entry.first <= commit) else {
            // What lies before all that is known may have been written; what lies between or behind was not.
            return if at == 0 { Ok(()) } else { Err(other_history(commit, "it was never written")) };
        };
        if commit == entry.first {
            comparison.run = Some((Run::new(), entry.last));
        }
        let Some((run, _)) = &mut comparison.run else { return Ok(()) };
        run.add(again);
        if commit != entry.last {
            return Ok(());
        }
        let (count, found) = (run.count, run.digest());
        comparison.run = None;
        if comparable(&found, &entry.digest) && (count, &found) != (entry.count, &entry.digest) {
            let (commit, xid, stored) = (again.commit(), again.xid(), entry.digest.clone());
            return Err(Reason::RedeliveryConflict { commit, xid, stored, found }.into());
        }
        Ok(())
    }

    /// Everything that was written, commits before `end` and comes again has come.
    pub(super) fn came_before(&self, comparison: &Comparison, end: u64) -> Result<(), Stop> {
        if let Some((_, last)) = &comparison.run
            && *last < end
        {
            return Err(other_history(*last, "it was written, and did not come again"));
        }
        let at = self.writes.partition_point(|entry| entry.first < comparison.next);
        match self.writes.get(at) {
            Some(entry) if entry.first < end => {
                Err(other_history(entry.first, "it was written, and did not come again"))
            }
            _ => Ok(()),
        }
    }
}

impl Comparison {
    /// Of a session in which whatever commits at `from` or behind is sent.
    pub(super) fn from(from: Boundary) -> Comparison {
        Comparison { next: from.0.0, run: None }
    }

    /// Nothing that was written comes any more.
    pub(super) fn end(&mut self) {
        *self = Comparison { next: u64::MAX, run: None };
    }
}

/// Whether a transaction is compared.
fn counts(transaction: &Transaction) -> bool {
    transaction.change_count() > 0 && transaction.gid().is_none()
}

fn other_history(commit: u64, what: &str) -> Stop {
    let what = format!(
        "of the transaction with commit LSN {}, behind which the flow stands, it has another history ({what}): it was \
         restored to an earlier point and has grown past it",
        Lsn(commit)
    );
    Reason::SourceChanged { what }.into()
}

/// Whether two digests are of one version.
fn comparable(one: &str, other: &str) -> bool {
    one.split_once(':').map(|(version, _)| version) == other.split_once(':').map(|(version, _)| version)
}
