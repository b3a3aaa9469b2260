//! The copy of tables: many pieces, one queue, largest first, as many workers as there are jobs.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::cut;
use crate::flow::{StoredFlow, StoredTable};
use crate::piece::{Format, Piece, Standing, TableCopy};
use crate::pipeline::{Phase, Pipeline, Progress};
use crate::position::Boundary;
use crate::published::{Published, PublishedTable};
use crate::sink::{Loader, Sink};
use crate::snapshot::{Passed, Snapshot};
use crate::source::Source;
use crate::stop::Stop;

/// A piece that is to be copied.
struct Job {
    table: Arc<TableCopy>,
    piece: Piece,
    format: Format,
}

/// The pieces that nobody has taken yet, largest first.
type Queue = Arc<Mutex<VecDeque<Job>>>;

/// A piece that has been copied.
struct Landed {
    table: u32,
    piece: i32,
    rows: u64,
}

impl<Src: Source, Snk: Sink> Pipeline<Src, Snk> {
    /// Copies what has not been copied of the tables that the flow began with.
    pub(crate) async fn copy(
        &mut self,
        flow: &mut StoredFlow,
        published: &Published,
        snapshot: Option<Snapshot>,
    ) -> Result<(), Stop> {
        // Only what was published before the slot was made: of a table added since, changes may be missing from the
        // stream.
        let bound = flow.binding.tables();
        let known: HashMap<u32, &StoredTable> = flow.tables.iter().map(|table| (table.oid, table)).collect();
        let tables: Vec<&PublishedTable> = published.tables.iter().filter(|t| bound.contains(&t.oid)).collect();
        let is_copied = |table: &&PublishedTable| known.get(&table.oid).is_some_and(|t| t.is_copied());
        let (done, to_copy): (Vec<_>, Vec<_>) = tables.into_iter().partition(is_copied);
        self.progress.send_modify(|p| {
            p.phase = Phase::Copying;
            p.fault = None;
            p.tables = done.len() + to_copy.len();
            p.tables_copied = done.len();
        });
        if to_copy.is_empty() {
            return Ok(());
        }
        let snapshot = match snapshot {
            Some(snapshot) => snapshot,
            None => self.source.snapshot().await?,
        };
        let planned = plan(&snapshot, &to_copy, &known, self.options.piece_bytes).await?;
        let formats = self.sink.plan(&planned).await?;
        remember(flow, &planned);
        self.copy_pieces(flow, snapshot, planned, formats).await
    }

    /// Copies every piece of `planned` that is not copied.
    async fn copy_pieces(
        &mut self,
        flow: &mut StoredFlow,
        snapshot: Snapshot,
        planned: Vec<TableCopy>,
        formats: Vec<Format>,
    ) -> Result<(), Stop> {
        let boundary = snapshot.boundary;
        let mut left: HashMap<u32, usize> = planned.iter().map(|t| (t.table.oid, t.pieces.len())).collect();
        let queue = queue(planned, formats);
        let passed = Arc::new(Passed::default());
        let (sender, mut landed) = mpsc::unbounded_channel();
        let snapshot = Arc::new(snapshot);
        let workers = self.options.jobs.get().min(locked(&queue).len());
        let current = Arc::new(Mutex::new(None));
        // Dropped, it ends all workers; what they had begun is rolled back.
        let mut tasks = JoinSet::new();
        for _ in 0..workers {
            let worker = Worker {
                snapshot: Arc::clone(&snapshot),
                queue: Arc::clone(&queue),
                passed: Arc::clone(&passed),
                current: Arc::clone(&current),
                landed: sender.clone(),
            };
            tasks.spawn(worker.run(self.sink.loader()?));
        }
        drop(sender);
        let before = self.progress.borrow().bytes_copied;
        let mut tick = interval(Duration::from_millis(250));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let look = |p: &mut Progress| {
            p.bytes_copied = before + passed.bytes.load(Ordering::Relaxed);
            p.table = current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        };
        loop {
            tokio::select! {
                // What has been copied is taken note of before the fault that ends the session.
                biased;
                Some(done) = landed.recv() => {
                    self.advanced = true;
                    land(flow, &done, boundary);
                    self.sink.landed(done.table, done.piece, boundary);
                    let of_table = left.entry(done.table).or_insert(1);
                    *of_table -= 1;
                    let whole = *of_table == 0;
                    self.progress.send_modify(|p| {
                        look(p);
                        p.rows_copied += done.rows;
                        p.tables_copied += usize::from(whole);
                    });
                }
                ended = tasks.join_next() => match ended {
                    Some(Ok(ended)) => ended?,
                    Some(Err(error)) => return Err(Stop::internal(format!("a worker of the copy ended: {error}"))),
                    None => break,
                },
                _ = tick.tick() => self.progress.send_modify(look),
            }
        }
        self.progress.send_modify(|p| {
            look(p);
            p.table = None;
        });
        Ok(())
    }
}

/// One of those that copy pieces.
struct Worker {
    snapshot: Arc<Snapshot>,
    queue: Queue,
    passed: Arc<Passed>,
    /// The table that was taken last.
    current: Arc<Mutex<Option<String>>>,
    landed: mpsc::UnboundedSender<Landed>,
}

impl Worker {
    /// Copies pieces until there are none left.
    async fn run<L: Loader>(self, mut loader: L) -> Result<(), Stop> {
        let mut reader = self.snapshot.reader().await?;
        loop {
            let Some(job) = locked(&self.queue).pop_front() else { return Ok(()) };
            *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(job.table.table.to_string());
            let passed = Arc::clone(&self.passed);
            let rows = reader.rows(&job.table.table, &job.piece.extent, job.format, passed).await?;
            let rows = loader.load(&job.table, &job.piece, self.snapshot.boundary, rows).await?;
            let landed = Landed { table: job.table.table.oid, piece: job.piece.number, rows };
            if self.landed.send(landed).is_err() {
                return Ok(());
            }
        }
    }
}

fn locked(queue: &Queue) -> std::sync::MutexGuard<'_, VecDeque<Job>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

fn queue(planned: Vec<TableCopy>, formats: Vec<Format>) -> Queue {
    let mut jobs = Vec::new();
    for (table, format) in planned.into_iter().zip(formats) {
        let table = Arc::new(table);
        let pieces = table.pieces.iter();
        jobs.extend(pieces.map(|piece| Job { table: Arc::clone(&table), piece: piece.clone(), format }));
    }
    // Stable: the ranges of a table stay in their order, in which its blocks lie most likely.
    jobs.sort_by_key(|job| std::cmp::Reverse(job.piece.bytes));
    Arc::new(Mutex::new(jobs.into()))
}

/// What is to be copied under `snapshot`: pieces that were planned before and still hold, and new ones.
async fn plan(
    snapshot: &Snapshot,
    tables: &[&PublishedTable],
    known: &HashMap<u32, &StoredTable>,
    piece_bytes: u64,
) -> Result<Vec<TableCopy>, Stop> {
    let reader = snapshot.reader().await?;
    let standing = |table: &PublishedTable| match known.get(&table.oid) {
        None => Standing::New,
        // What was read in another snapshot does not hold together with what is read in this one.
        Some(stored) if stored.together && stored.boundary().is_some() => Standing::Anew,
        Some(_) => Standing::Planned,
    };
    let fresh: Vec<&PublishedTable> =
        tables.iter().copied().filter(|table| standing(table) != Standing::Planned).collect();
    let mut cut = cut::cut(&reader, &fresh, piece_bytes).await?;
    let mut types = cut::column_types(&reader, tables).await?;
    let planned = tables.iter().map(|table| TableCopy {
        table: (*table).clone(),
        types: types.remove(&table.oid).unwrap_or_default(),
        standing: standing(table),
        pieces: match cut.remove(&table.oid) {
            Some(pieces) => pieces,
            None => known.get(&table.oid).map(|stored| not_copied(stored)).unwrap_or_default(),
        },
    });
    Ok(planned.collect())
}

fn not_copied(stored: &StoredTable) -> Vec<Piece> {
    let pieces = stored.pieces.iter().filter(|piece| piece.boundary.is_none());
    pieces.map(|p| Piece { number: p.number, extent: p.extent.clone(), bytes: p.bytes }).collect()
}

/// Takes what was planned anew into what is stored of the flow.
fn remember(flow: &mut StoredFlow, planned: &[TableCopy]) {
    for plan in planned.iter().filter(|plan| plan.standing != Standing::Planned) {
        let together = plan.pieces.iter().any(|piece| piece.extent.is_physical());
        flow.tables.retain(|table| table.oid != plan.table.oid);
        flow.tables.push(StoredTable { oid: plan.table.oid, together, pieces: plan.stored_pieces() });
    }
}

fn land(flow: &mut StoredFlow, done: &Landed, boundary: Boundary) {
    let table = flow.tables.iter_mut().find(|table| table.oid == done.table);
    if let Some(piece) = table.and_then(|table| table.pieces.iter_mut().find(|p| p.number == done.piece)) {
        piece.boundary = Some(boundary);
    }
}
