//! The copy of tables: many pieces, one queue, largest first, as many workers as there are jobs.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::board::TableBoard;
use crate::copied_relation;
use crate::cut;
use crate::destination::{Destination, Loader, no_copy_of_prepared};
use crate::flow::{StartMode, StoredFlow, StoredTable};
use crate::join::Joining;
use crate::piece::{Format, Piece, Standing, TableCopy};
use crate::pipeline::{Phase, Pipeline, Progress};
use crate::position::Boundary;
use crate::published::{Published, PublishedTable};
use crate::snapshot::{Snapshot, SnapshotReader};
use crate::source::Source;
use crate::stop::{Reason, Stop};

/// A piece that is to be copied.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) table: Arc<TableCopy>,
    piece: Piece,
    format: Format,
    board: Arc<TableBoard>,
}

/// A piece that has been copied.
#[derive(Debug)]
pub(crate) struct Landed {
    pub(crate) table: u32,
    pub(crate) piece: i32,
    pub(crate) rows: u64,
}

impl<Src: Source, Dst: Destination> Pipeline<Src, Dst> {
    /// The initial copy: what has not been copied of the tables that are published. `snapshot` is that of a slot that
    /// was made just now.
    pub(crate) async fn copy(
        &mut self,
        flow: &mut StoredFlow,
        published: &Published,
        snapshot: Option<Snapshot>,
    ) -> Result<(), Stop> {
        // The slot's own snapshot is older than a look at what is published: changes of a table that was added in
        // between may be missing from the stream. It joins later.
        let bound = snapshot.is_some().then(|| flow.binding.tables());
        let to_copy = |table: &&PublishedTable| bound.as_ref().is_none_or(|bound| bound.contains(&table.oid));
        let tables: Vec<&PublishedTable> = published.tables.iter().filter(to_copy).collect();
        let replaced = self.replaced(published)?;
        let standings = standings(flow, published, &replaced);
        let (to_copy, done): (Vec<_>, Vec<_>) =
            tables.into_iter().partition(|table| standings.contains_key(&table.oid));
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
            None => self.source.snapshots().take().await?,
        };
        let reader = snapshot.reader().await?;
        let jobs = self.plan(flow, published, &reader, &to_copy, &replaced).await?;
        drop(reader);
        self.copy_pieces(flow, snapshot, jobs).await
    }

    /// What is to be copied while the flow streams, if anything is: tables that have joined the publication, those that
    /// are to be copied again, and what is left of an earlier session.
    pub(crate) async fn join(&mut self, flow: &mut StoredFlow, published: &Published) -> Result<Option<Joining>, Stop> {
        let replaced = self.replaced(published)?;
        let standings = standings(flow, published, &replaced);
        let to_copy = published.tables.iter().filter(|table| standings.contains_key(&table.oid));
        let mut to_copy: Vec<&PublishedTable> = to_copy.collect();
        if !self.destination.copies_joined(flow.binding.start) {
            let (copied, carried) = to_copy.into_iter().partition(|table| replaced.contains(&table.oid));
            to_copy = copied;
            self.carry(flow, published, carried).await?;
        }
        if to_copy.is_empty() {
            return Ok(None);
        }
        let snapshots = self.source.snapshots();
        let reader = snapshots.now().await?;
        let jobs = self.plan(flow, published, &reader, &to_copy, &replaced).await?;
        drop(reader);
        self.progress.send_modify(|p| {
            p.tables = published.tables.len();
            p.tables_copied = published.tables.len() - to_copy.len();
        });
        let together = flow.tables.iter().filter(|table| table.together).map(|table| table.oid).collect();
        Ok(Some(Joining::new(jobs, &together, snapshots, self.options.jobs)))
    }

    /// Takes in what has joined the publication without copying it.
    async fn carry(
        &mut self,
        flow: &mut StoredFlow,
        published: &Published,
        tables: Vec<&PublishedTable>,
    ) -> Result<(), Stop> {
        if tables.is_empty() {
            return Ok(());
        }
        let oids: HashSet<u32> = tables.iter().map(|table| table.oid).collect();
        flow.binding.published = published.extended(&flow.binding.published, &oids);
        self.destination.remember(&flow.binding.published).await?;
        let told = tables.iter().map(|table| {
            format!(
                "table {table} has joined the publication and is carried from there on; the rows that it held before \
                 are not copied, for the flow began without a copy"
            )
        });
        self.warn(told.collect());
        Ok(())
    }

    /// The OIDs of the tables that are to be copied again.
    pub(crate) fn replaced(&self, published: &Published) -> Result<HashSet<u32>, Stop> {
        let oid = |name: &String| match published.tables.iter().find(|table| table.to_string() == *name) {
            Some(table) => Ok(table.oid),
            None => {
                let what = format!("table {name} cannot be copied again: it is not published");
                let hint =
                    "Name tables as schema.table, as they are on the source and in the publication (of a partition \
                            that is published as its root, the root): \
                            SELECT schemaname, tablename FROM pg_publication_tables;"
                        .to_owned();
                Err(Reason::Unsupported { what, hint }.into())
            }
        };
        self.options.reseed.iter().map(oid).collect()
    }

    /// Cuts and stores what is to be copied, and gives the pieces, largest first.
    async fn plan(
        &mut self,
        flow: &mut StoredFlow,
        published: &Published,
        reader: &SnapshotReader,
        tables: &[&PublishedTable],
        replaced: &HashSet<u32>,
    ) -> Result<Vec<Job>, Stop> {
        if self.source.yields_prepared() {
            return Err(no_copy_of_prepared());
        }
        let standings = standings(flow, published, replaced);
        let is_fresh = |table: &&PublishedTable| standings.get(&table.oid) != Some(&Standing::Planned);
        let fresh: Vec<&PublishedTable> = tables.iter().copied().filter(is_fresh).collect();
        let (as_streamed, mut tables) = (self.destination.copies_as_streamed(), tables.to_vec());
        let piece_bytes = if as_streamed { u64::MAX } else { self.options.piece_bytes };
        let mut cut = cut::cut(reader, &fresh, piece_bytes).await?;
        let streamed: Vec<PublishedTable>;
        if as_streamed {
            let columns =
                |table: &&PublishedTable| PublishedTable { columns: table.streamed.clone(), ..(*table).clone() };
            streamed = tables.iter().map(columns).collect();
            tables = streamed.iter().collect();
        }
        let mut types = cut::column_types(reader, &tables).await?;
        let relations = copied_relation::relations(reader, &tables).await?;
        let stored: HashMap<u32, &StoredTable> = flow.tables.iter().map(|table| (table.oid, table)).collect();
        let planned = tables.iter().zip(relations).map(|(table, relation)| TableCopy {
            table: (*table).clone(),
            types: types.remove(&table.oid).unwrap_or_default(),
            relation,
            standing: standings.get(&table.oid).copied().unwrap_or(Standing::Planned),
            replaces: replaced.contains(&table.oid),
            pieces: match cut.remove(&table.oid) {
                Some(pieces) => pieces,
                None => stored.get(&table.oid).map(|stored| not_copied(stored)).unwrap_or_default(),
            },
        });
        let planned: Vec<TableCopy> = planned.collect();
        let taken: HashSet<u32> = fresh.iter().map(|table| table.oid).collect();
        let fingerprint = published.extended(&flow.binding.published, &taken);
        let plan = self.destination.plan(&planned, &fingerprint).await?;
        // From here on it is decided: another session of this process does not begin anew.
        self.options.reseed.clear();
        flow.binding.published = fingerprint;
        for (copy, plan) in planned.iter().zip(&plan).filter(|(copy, _)| copy.standing != Standing::Planned) {
            flow.tables.retain(|table| table.oid != copy.table.oid);
            let (oid, together) = (copy.table.oid, plan.together);
            flow.tables.push(StoredTable { oid, together, pieces: copy.stored_pieces() });
        }
        let board = Arc::clone(&self.progress.borrow().copy);
        board.begin(&planned);
        let formats = plan.iter().map(|plan| plan.format);
        Ok(jobs(planned, formats.zip(board.tables())))
    }

    /// Copies every piece before anything else.
    async fn copy_pieces(&mut self, flow: &mut StoredFlow, snapshot: Snapshot, jobs: Vec<Job>) -> Result<(), Stop> {
        let boundary = snapshot.boundary;
        let mut left: HashMap<u32, usize> = HashMap::new();
        jobs.iter().for_each(|job| *left.entry(job.table.table.oid).or_insert(0) += 1);
        let board = Arc::clone(&self.progress.borrow().copy);
        let workers = self.options.jobs.get().min(jobs.len());
        let loaders = (0..workers).map(|_| self.destination.loader()).collect::<Result<Vec<_>, Stop>>()?;
        let mut workers = Workers::start(snapshot, jobs, loaders);
        let before = self.progress.borrow().bytes_copied;
        let mut tick = interval(Duration::from_millis(250));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let look = |p: &mut Progress, current| {
            p.bytes_copied = before + board.passed().1;
            p.table = current;
        };
        loop {
            tokio::select! {
                landed = workers.next() => {
                    let Some(landed) = landed? else { break };
                    self.advanced = true;
                    land(flow, &landed, boundary);
                    self.destination.landed(landed.table, landed.piece, boundary);
                    let of_table = left.entry(landed.table).or_insert(1);
                    *of_table -= 1;
                    let whole = *of_table == 0;
                    self.progress.send_modify(|p| {
                        look(p, workers.current());
                        p.rows_copied += landed.rows;
                        p.tables_copied += usize::from(whole);
                    });
                }
                _ = tick.tick() => self.progress.send_modify(|p| look(p, workers.current())),
            }
        }
        self.progress.send_modify(|p| look(p, None));
        Ok(())
    }
}

/// Those that copy the pieces of one snapshot. Dropped, they end, and what they had begun is rolled back.
#[derive(Debug)]
pub(crate) struct Workers {
    tasks: JoinSet<Result<(), Stop>>,
    landed: mpsc::UnboundedReceiver<Landed>,
    current: Arc<Mutex<Option<String>>>,
}

impl Workers {
    /// One worker for each loader.
    pub(crate) fn start<L: Loader>(snapshot: Snapshot, jobs: Vec<Job>, loaders: Vec<L>) -> Workers {
        let (sender, landed) = mpsc::unbounded_channel();
        let current = Arc::new(Mutex::new(None));
        let (snapshot, queue) = (Arc::new(snapshot), Arc::new(Mutex::new(VecDeque::from(jobs))));
        let mut tasks = JoinSet::new();
        for loader in loaders {
            let worker = Worker {
                snapshot: Arc::clone(&snapshot),
                queue: Arc::clone(&queue),
                current: Arc::clone(&current),
                landed: sender.clone(),
            };
            tasks.spawn(worker.run(loader));
        }
        Workers { tasks, landed, current }
    }

    /// The next piece that has landed; `None` when all have. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Option<Landed>, Stop> {
        loop {
            tokio::select! {
                // What has been copied is taken note of before the fault that ends the session.
                biased;
                Some(landed) = self.landed.recv() => return Ok(Some(landed)),
                ended = self.tasks.join_next() => match ended {
                    Some(Ok(ended)) => ended?,
                    Some(Err(error)) => return Err(Stop::lost_task("a worker of the copy", &error)),
                    None => return Ok(None),
                },
            }
        }
    }

    /// The table that was taken last.
    pub(crate) fn current(&self) -> Option<String> {
        locked(&self.current).clone()
    }
}

/// One of those that copy pieces.
struct Worker {
    snapshot: Arc<Snapshot>,
    /// The pieces that nobody has taken yet.
    queue: Arc<Mutex<VecDeque<Job>>>,
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
            *locked(&self.current) = Some(job.table.table.to_string());
            job.board.taken();
            let passed = Arc::clone(&job.board.passed);
            let rows = reader.rows(&job.table.table, &job.piece.extent, job.format, passed).await?;
            let rows = loader.load(&job.table, &job.piece, self.snapshot.boundary, rows).await?;
            job.board.landed(job.piece.bytes);
            let landed = Landed { table: job.table.table.oid, piece: job.piece.number, rows };
            if self.landed.send(landed).is_err() {
                return Ok(());
            }
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn jobs(planned: Vec<TableCopy>, how: impl Iterator<Item = (Format, Arc<TableBoard>)>) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (table, (format, board)) in planned.into_iter().zip(how) {
        let table = Arc::new(table);
        let pieces = table.pieces.iter();
        jobs.extend(pieces.map(|piece| Job {
            table: Arc::clone(&table),
            piece: piece.clone(),
            format,
            board: Arc::clone(&board),
        }));
    }
    // Stable: the ranges of a table stay in their order, in which its blocks lie most likely.
    jobs.sort_by_key(|job| std::cmp::Reverse(job.piece.bytes));
    jobs
}

/// How the published tables stand that are to be copied, by OID.
fn standings(flow: &StoredFlow, published: &Published, replaced: &HashSet<u32>) -> HashMap<u32, Standing> {
    let stored: HashMap<u32, &StoredTable> = flow.tables.iter().map(|table| (table.oid, table)).collect();
    // A flow that began without a copy has the tables that were published then.
    let there = if flow.binding.start == StartMode::GoForward { flow.binding.tables() } else { HashSet::new() };
    let of = |table: &PublishedTable| {
        let stored = stored.get(&table.oid).copied();
        let standing = standing(stored, replaced.contains(&table.oid), there.contains(&table.oid));
        Some((table.oid, standing?))
    };
    published.tables.iter().filter_map(of).collect()
}

fn standing(stored: Option<&StoredTable>, replaced: bool, there: bool) -> Option<Standing> {
    match stored {
        Some(_) if replaced => Some(Standing::Anew),
        None if replaced => Some(Standing::New),
        Some(stored) if stored.is_copied() => None,
        // What was read in another snapshot does not hold together with what is read in this one.
        Some(stored) if stored.together && stored.boundary().is_some() => Some(Standing::Anew),
        Some(_) => Some(Standing::Planned),
        None if there => None,
        None => Some(Standing::New),
    }
}

fn not_copied(stored: &StoredTable) -> Vec<Piece> {
    let pieces = stored.pieces.iter().filter(|piece| piece.boundary.is_none());
    pieces.map(|p| Piece { number: p.number, extent: p.extent.clone(), bytes: p.bytes }).collect()
}

fn land(flow: &mut StoredFlow, done: &Landed, boundary: Boundary) {
    let table = flow.tables.iter_mut().find(|table| table.oid == done.table);
    if let Some(piece) = table.and_then(|table| table.pieces.iter_mut().find(|p| p.number == done.piece)) {
        piece.boundary = Some(boundary);
    }
}
