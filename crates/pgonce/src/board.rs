//! How far the copy of tables is, for whoever watches: cheap to write, and to look at.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::piece::TableCopy;
use crate::snapshot::Passed;

/// The tables that a session copies.
#[derive(Debug, Default)]
pub struct Board {
    began: Mutex<Option<Instant>>,
    tables: Mutex<Vec<Arc<TableBoard>>>,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct TableBoard {
    table: String,
    pieces: usize,
    /// About what all its pieces take on the source.
    estimated: u64,
    /// The same of those that have been copied.
    landed: AtomicU64,
    landed_pieces: AtomicUsize,
    under_way: AtomicUsize,
    /// What has passed.
    pub(crate) passed: Arc<Passed>,
}

/// How far a table is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableLook {
    /// Schema and name.
    pub table: String,
    /// Rows that have passed.
    pub rows: u64,
    /// Bytes of COPY data that have passed.
    pub bytes: u64,
    /// About how many bytes of the table on the source are copied, and are to be copied in this session.
    pub done: u64,
    /// See [`done`](TableLook::done).
    pub estimated: u64,
    /// Pieces that have been copied, and are to be.
    pub pieces_copied: usize,
    /// See [`pieces_copied`](TableLook::pieces_copied).
    pub pieces: usize,
    /// Whether a piece of it is on its way.
    pub under_way: bool,
}

/// How far the copy is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The tables that are not complete and have a piece under way, or have begun.
    pub tables: Vec<TableLook>,
    /// About how many bytes are copied, of all tables of the session.
    pub done: u64,
    /// About how many there are.
    pub estimated: u64,
    /// How long the rest takes at the pace so far. `None` while there is too little to tell.
    pub left: Option<Duration>,
}

impl Board {
    /// Begins anew, with these tables.
    pub(crate) fn begin<'t>(&self, tables: impl IntoIterator<Item = &'t TableCopy>) {
        let boards = tables.into_iter().map(|copy| {
            Arc::new(TableBoard {
                table: copy.table.to_string(),
                pieces: copy.pieces.len(),
                estimated: copy.pieces.iter().map(|piece| piece.bytes).sum(),
                landed: AtomicU64::new(0),
                landed_pieces: AtomicUsize::new(0),
                under_way: AtomicUsize::new(0),
                passed: Arc::default(),
            })
        });
        *locked(&self.tables) = boards.collect();
        *locked(&self.began) = Some(Instant::now());
    }

    pub(crate) fn tables(&self) -> Vec<Arc<TableBoard>> {
        locked(&self.tables).clone()
    }

    /// Rows and bytes that have passed in all.
    pub(crate) fn passed(&self) -> (u64, u64) {
        let passed = |sum: (u64, u64), table: &Arc<TableBoard>| {
            let Passed { rows, bytes } = &*table.passed;
            (sum.0 + rows.load(Ordering::Relaxed), sum.1 + bytes.load(Ordering::Relaxed))
        };
        locked(&self.tables).iter().fold((0, 0), passed)
    }

    /// How far it is now.
    pub fn look(&self) -> Look {
        let tables: Vec<TableLook> = locked(&self.tables).iter().map(|table| table.look()).collect();
        let done = tables.iter().map(|table| table.done).sum();
        let estimated = tables.iter().map(|table| table.estimated).sum();
        let elapsed = locked(&self.began).map_or(Duration::ZERO, |began| began.elapsed());
        let begun =
            |table: &TableLook| table.under_way || (table.pieces_copied > 0 && table.pieces_copied < table.pieces);
        Look {
            left: left(done, estimated, elapsed),
            tables: tables.into_iter().filter(begun).collect(),
            done,
            estimated,
        }
    }
}

/// What the rest takes at the pace so far.
fn left(done: u64, estimated: u64, elapsed: Duration) -> Option<Duration> {
    if done == 0 || elapsed < Duration::from_secs(1) {
        return None;
    }
    let rest = estimated.saturating_sub(done) as f64 / done as f64;
    Duration::try_from_secs_f64(elapsed.as_secs_f64() * rest).ok()
}

impl TableBoard {
    /// A piece is on its way.
    pub(crate) fn taken(&self) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
    }

    /// It has landed.
    pub(crate) fn landed(&self, bytes: u64) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        self.landed_pieces.fetch_add(1, Ordering::Relaxed);
        self.landed.fetch_add(bytes, Ordering::Relaxed);
    }

    fn look(&self) -> TableLook {
        let Passed { rows, bytes } = &*self.passed;
        let (rows, bytes) = (rows.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed));
        let (landed, pieces_copied) = (self.landed.load(Ordering::Relaxed), self.landed_pieces.load(Ordering::Relaxed));
        let under_way = self.under_way.load(Ordering::Relaxed) > 0;
        // COPY data and blocks are not of one size: what is under way is not done before it has landed.
        let done = if under_way { bytes.min(self.estimated / 100 * 99) } else { landed };
        TableLook {
            table: self.table.clone(),
            rows,
            bytes,
            done: done.max(landed),
            estimated: self.estimated.max(landed),
            pieces_copied,
            pieces: self.pieces,
            under_way,
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_follows_from_the_pace_so_far() {
        assert_eq!(left(0, 100, Duration::from_secs(9)), None);
        assert_eq!(left(10, 100, Duration::from_millis(10)), None);
        assert_eq!(left(25, 100, Duration::from_secs(10)), Some(Duration::from_secs(30)));
        assert_eq!(left(100, 100, Duration::from_secs(10)), Some(Duration::ZERO));
    }

    #[test]
    fn what_is_under_way_counts_and_is_not_done_before_it_has_landed() {
        let board = TableBoard {
            table: "s.t".into(),
            pieces: 2,
            estimated: 200,
            landed: AtomicU64::new(0),
            landed_pieces: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            passed: Arc::default(),
        };
        board.taken();
        board.passed.bytes.store(50, Ordering::Relaxed);
        assert_eq!((board.look().done, board.look().under_way), (50, true));
        board.passed.bytes.store(5_000, Ordering::Relaxed);
        assert_eq!(board.look().done, 198, "less than all");
        board.landed(100);
        assert_eq!((board.look().done, board.look().pieces_copied, board.look().under_way), (100, 1, false));
    }
}
