//! What was written and may come again, so that a transaction with the same identity and other content is noticed.

use std::collections::VecDeque;
use std::fmt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::position::{Boundary, EndLsn, Lsn};
use crate::stop::{Reason, Stop};
use crate::transaction::{Digest, Transaction};

/// The last writes: of each, its first and last transaction, how many it had, and a digest over all of them.
/// Transactions without changes do not count: a server sends them or not.
///
/// What has been acknowledged does not come again and is forgotten; of what has not, the last [`Window::MAX`] writes
/// are kept.
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
    /// The transactions of the write that is being compared, so far.
    run: Option<Run>,
    /// The commit LSN of the last transaction that came.
    last: Option<u64>,
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
        let counted = || transactions.iter().filter(|transaction| transaction.change_count() > 0);
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

    /// Everything below `boundary` does not come again.
    pub(super) fn acknowledged(&mut self, boundary: Boundary) {
        while self.writes.front().is_some_and(|entry| EndLsn(Lsn(entry.end)).as_boundary() <= boundary) {
            self.writes.pop_front();
        }
    }

    /// Content is digested otherwise from here on.
    pub(super) fn forget(&mut self) {
        self.writes.clear();
    }

    /// Compares a transaction that comes again. They come in commit order, and from some point on all of them.
    pub(super) fn compare(&self, comparison: &mut Comparison, again: &Transaction) -> Result<(), Stop> {
        if again.change_count() == 0 {
            return Ok(());
        }
        let commit = again.commit().0.0;
        let before = comparison.last.replace(commit);
        let at = self.writes.partition_point(|entry| entry.last < commit);
        let Some(entry) = self.writes.get(at) else { return Ok(()) };
        let conflict = |found: String| {
            let (commit, xid, stored) = (again.commit(), again.xid(), entry.digest.clone());
            Err(Reason::RedeliveryConflict { commit, xid, stored, found }.into())
        };
        if commit == entry.first {
            comparison.run = Some(Run::new());
        } else if commit > entry.first && before.is_some_and(|before| before < entry.first) {
            return conflict("nothing where its first transaction was".to_owned());
        }
        let Some(run) = &mut comparison.run else { return Ok(()) };
        run.add(again);
        if commit != entry.last {
            return Ok(());
        }
        let (count, found) = (run.count, run.digest());
        comparison.run = None;
        if comparable(&found, &entry.digest) && (count, &found) != (entry.count, &entry.digest) {
            return conflict(found);
        }
        Ok(())
    }
}

/// Whether two digests are of one version.
fn comparable(one: &str, other: &str) -> bool {
    one.split_once(':').map(|(version, _)| version) == other.split_once(':').map(|(version, _)| version)
}
