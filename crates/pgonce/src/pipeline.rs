//! The one loop: from a source to a destination, and the acknowledgement back.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::board::Board;
use crate::destination::{
    Binding, Destination, IdlePoint, StartMode, Stored, StoredFlow, StoredTable, Written, no_copy, no_copy_of_prepared,
};
use crate::flowing::Flowing;
use crate::frontier::Frontier;
pub use crate::group::GroupLimits;
use crate::guarantee::{Guarantee, Mode};
use crate::join::{Joined, Joining};
use crate::pgoutput::PgTime;
use crate::position::{Boundary, Checkpoint, Lsn, Timeline};
use crate::source::{Event, Source};
use crate::stop::{Reason, Stop};
use crate::transaction::Transaction;

/// How a pipeline runs.
#[derive(Clone, Debug)]
pub struct PipelineOptions {
    /// What an empty checkpoint means. There is no default in the library.
    pub start: StartMode,
    /// Where to end; `None` runs until told to stop.
    pub until: Option<Until>,
    /// How many pieces of tables are copied at a time, at most.
    pub jobs: NonZeroUsize,
    /// A table that is larger is copied in pieces of about so many bytes.
    pub piece_bytes: u64,
    /// Tables, as schema.table, that are copied again: what the target has of them is replaced.
    pub reseed: Vec<String>,
    /// Bounds of a group of transactions.
    pub group: GroupLimits,
    /// How often an idle boundary is stored, at most.
    pub idle_interval: Duration,
    /// The longest pause between attempts after a fault that heals by itself.
    pub backoff_max: Duration,
    /// After the signal to stop: how long a write that has begun may go on before it is rolled back.
    pub grace: Duration,
}

impl PipelineOptions {
    /// The usual bounds, with `start` as given.
    pub fn new(start: StartMode) -> PipelineOptions {
        PipelineOptions {
            start,
            until: None,
            jobs: NonZeroUsize::new(4).unwrap_or(NonZeroUsize::MIN),
            piece_bytes: 64 << 20,
            reseed: Vec::new(),
            group: GroupLimits::default(),
            idle_interval: Duration::from_secs(2),
            backoff_max: Duration::from_secs(10),
            grace: Duration::from_secs(2),
        }
    }
}

/// A stop position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Where the source's write position is when the stream starts.
    Now,
    /// An LSN: everything with `commit_lsn` below it.
    At(Lsn),
}

/// What a pipeline is doing, for whoever watches.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Progress {
    /// What it is doing.
    pub phase: Phase,
    /// The fault that it is waiting out, and for how many attempts it has been.
    pub fault: Option<(Stop, u32)>,
    /// Tables to copy in all.
    pub tables: usize,
    /// Tables copied.
    pub tables_copied: usize,
    /// The table that is being copied.
    pub table: Option<String>,
    /// Rows copied by this process.
    pub rows_copied: u64,
    /// Bytes copied by this process.
    pub bytes_copied: u64,
    /// How far the tables are that are being copied.
    pub copy: Arc<Board>,
    /// Transactions applied by this process.
    pub applied: u64,
    /// Transactions that came again and were skipped whole.
    pub redelivered: u64,
    /// Row changes applied by this process.
    pub changes: u64,
    /// The last applied transaction.
    pub checkpoint: Option<Checkpoint>,
    /// When it committed, by the source's clock.
    pub commit_time: Option<PgTime>,
    /// Transactions received and waiting to be applied.
    pub waiting: usize,
    /// Whether a group has been handed to the destination and has not come back.
    pub writing: bool,
    /// The last position that the source reported with nothing open below it.
    pub reported: Option<Boundary>,
    /// The last acknowledged position.
    pub acknowledged: Option<Boundary>,
    /// Until then changes to some tables may be applied while others are still behind: no consistency between tables
    /// is claimed.
    pub consistent_from: Option<Boundary>,
    /// Things that the operator should know and that do not stop the flow.
    pub warnings: Vec<String>,
}

/// What a pipeline is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Connecting and checking both ends.
    #[default]
    Connecting,
    /// Making the slot, which waits until the transactions that are open on the source have ended.
    Beginning,
    /// Copying tables.
    Copying,
    /// Streaming, with tables' boundaries not yet passed.
    CatchingUp,
    /// Streaming.
    Streaming,
    /// Waiting before the next attempt.
    Waiting,
    /// Ending in good order.
    Stopping,
}

/// How a pipeline ended, when it ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// Drained to the stop position.
    Drained(Boundary),
    /// Told to stop.
    Stopped,
}

/// A source and a destination, joined.
#[derive(Debug)]
pub struct Pipeline<Src, Dst> {
    pub(crate) source: Src,
    pub(crate) destination: Dst,
    pub(crate) options: PipelineOptions,
    pub(crate) progress: watch::Sender<Progress>,
    /// Whether the session that has just ended got anything done: then the next pause is a short one.
    pub(crate) advanced: bool,
    /// Tables that changes arrived to before the flow knew them: OID and name.
    strangers: BTreeMap<u32, String>,
}

impl<Src: Source, Dst: Destination> Pipeline<Src, Dst> {
    /// Joins a source and a destination. Nothing is connected yet.
    pub fn new(source: Src, destination: Dst, options: PipelineOptions) -> Pipeline<Src, Dst> {
        Pipeline {
            source,
            destination,
            options,
            progress: watch::Sender::new(Progress::default()),
            advanced: false,
            strangers: BTreeMap::new(),
        }
    }

    /// What this composition promises about duplicates while it streams.
    pub fn guarantee(&self) -> Guarantee {
        Dst::Mode::guarantee(&self.options.group)
    }

    /// What it promises about duplicates of the initial copy.
    pub fn copy_guarantee(&self) -> Guarantee {
        Dst::Mode::copy_guarantee()
    }

    /// What the pipeline is doing, at any time.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Runs until the stop position is reached, `stop` becomes true, or a fault that does not heal by itself.
    ///
    /// Faults that do heal are waited out with growing pauses, for ever, and show in [`Progress::fault`].
    ///
    /// # Errors
    ///
    /// The fault. What cannot work as it is composed is refused before anything is connected
    /// ([`Reason::Unsupported`]).
    pub async fn run(&mut self, mut stop: watch::Receiver<bool>) -> Result<Finished, Stop> {
        self.check_composition()?;
        let mut attempts: u32 = 0;
        loop {
            self.advanced = false;
            let fault = match self.session(&mut stop).await {
                Ok(Some(finished)) => return Ok(finished),
                Ok(None) => {
                    tracing::info!("a table has joined the publication: the flow takes it in");
                    continue;
                }
                Err(fault) => fault,
            };
            if let Reason::TableJoined { table, oid } = fault.reason()
                && self.strangers.insert(*oid, table.clone()).is_none()
            {
                tracing::info!("{fault}");
                self.source.close().await;
                continue;
            }
            if self.advanced {
                attempts = 0;
            }
            if !fault.is_transient() {
                self.destination.record_stop(&fault).await;
                self.source.close().await;
                return Err(fault);
            }
            attempts += 1;
            tracing::warn!(code = fault.code(), attempts, "{fault}");
            if attempts == 1 {
                tracing::info!("{}", fault.hint());
            }
            self.progress.send_modify(|p| {
                p.phase = Phase::Waiting;
                p.fault = Some((fault, attempts));
            });
            let pause = Duration::from_millis(50 << attempts.min(12)).min(self.options.backoff_max);
            tokio::select! {
                () = sleep(pause) => {}
                () = stopped(&mut stop) => return Ok(Finished::Stopped),
            }
        }
    }

    /// Refuses what cannot work, whatever is at the other ends.
    fn check_composition(&self) -> Result<(), Stop> {
        if self.options.start == StartMode::Snapshot && !self.destination.takes_copy() {
            return Err(no_copy());
        }
        if self.source.yields_prepared() && !self.destination.takes_prepared() {
            let what = "the destination does not take transactions when they are prepared".to_owned();
            let hint = "Have them delivered when they commit: TwoPhase::AtCommit.".to_owned();
            return Err(Reason::Unsupported { what, hint }.into());
        }
        if self.source.yields_prepared()
            && (self.options.start == StartMode::Snapshot || !self.options.reseed.is_empty())
        {
            return Err(no_copy_of_prepared());
        }
        let limits = &self.options.group;
        if limits.transactions == 0 || limits.bytes == 0 {
            let what = "a group of no transactions, or of no bytes, has room for nothing".to_owned();
            let hint =
                "GroupLimits::transactions is 1 for delivery per transaction, or more; GroupLimits::bytes is at \
                        least 1."
                    .to_owned();
            return Err(Reason::Unsupported { what, hint }.into());
        }
        Ok(())
    }

    /// One session: from connecting to the end of the stream. Whatever ends it, the next one starts from what is
    /// stored. `None`: another one is to begin at once, to take in what has joined the publication.
    async fn session(&mut self, stop: &mut watch::Receiver<bool>) -> Result<Option<Finished>, Stop> {
        let mut connect_stop = stop.clone();
        let Prepared { flow, timeline, joining } = tokio::select! {
            // Dropping a copy or a connection half-way leaves nothing behind: both commit whole or not at all.
            () = stopped(&mut connect_stop) => return Ok(Some(Finished::Stopped)),
            ready = self.prepare() => ready?,
        };
        self.source.want_messages(self.destination.wants_messages());
        self.source.stream(&flow).await?;
        let until = match self.options.until {
            None => None,
            Some(Until::At(lsn)) => Some(Boundary(lsn)),
            Some(Until::Now) => Some(self.source.committed_position().await?),
        };
        let consistent_from = flow.tables.iter().filter_map(StoredTable::boundary).max();
        self.progress.send_modify(|p| {
            p.fault = None;
            p.checkpoint = flow.checkpoint;
            p.consistent_from = consistent_from;
            let behind = consistent_from.is_some() || joining.is_some();
            p.phase = if behind { Phase::CatchingUp } else { Phase::Streaming };
        });
        let mut flowing = Flowing {
            frontier: Frontier::new(flow.checkpoint.map(|c| c.end), Some(flow.idle.boundary)),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            waiting_changes: 0,
            ended: false,
            messages: VecDeque::new(),
            has_messages_to: flow.checkpoint.map_or(flow.idle.boundary.0, |c| c.commit.0.max(flow.idle.boundary.0)),
            boundary: flow.binding.boundary,
            timeline,
            until,
            joining,
            bytes_before: self.progress.borrow().bytes_copied,
            consistent_from,
            compared: false,
            durable_at: Instant::now(),
            idle_at: Instant::now(),
            ask_at: Instant::now(),
        };
        let finished = self.flow(&mut flowing, stop).await?;
        if finished.is_some() {
            self.progress.send_modify(|p| p.phase = Phase::Stopping);
        }
        // Pieces that are under way are rolled back.
        drop(flowing);
        self.source.close().await;
        Ok(finished)
    }

    /// Connects both ends, and on a first start binds and copies.
    async fn prepare(&mut self) -> Result<Prepared, Stop> {
        self.progress.send_modify(|p| {
            p.phase = Phase::Connecting;
            p.writing = false;
        });
        let identity = self.source.connect().await?;
        let (mut flow, snapshot) = match self.destination.open(&identity).await? {
            Stored::Flow(flow) => {
                let origin = self.source.slot_origin(Some(&flow)).await?;
                self.destination.origin(&origin).await?;
                (flow, None)
            }
            Stored::Nothing => {
                let published = self.source.publish(self.options.start).await?;
                let replaced = self.replaced(&published)?;
                self.destination.replace(&replaced);
                // Before there is a slot that keeps WAL.
                self.destination.check(&published, self.options.start).await?;
                self.progress.send_modify(|p| p.phase = Phase::Beginning);
                let begun = self.source.begin(self.options.start).await?;
                let origin = self.source.slot_origin(None).await?;
                self.destination.origin(&origin).await?;
                let binding = Binding::new(begun.boundary, identity.timeline, self.options.start, &published);
                self.destination.bind(&binding).await?;
                let idle = IdlePoint { boundary: binding.boundary, timeline: identity.timeline };
                let streaming = self.options.start == StartMode::GoForward;
                (StoredFlow { binding, streaming, tables: Vec::new(), checkpoint: None, idle }, begun.snapshot)
            }
        };
        let published = self.source.published(&flow.binding, &self.options.reseed).await?;
        self.destination.published(&published).await?;
        if self.destination.asks_described().await? {
            let described = self.source.described().await?;
            self.destination.described(described).await?;
        }
        let replaced = self.replaced(&published)?;
        self.destination.replace(&replaced);
        let mut warnings = Vec::new();
        for (oid, table) in std::mem::take(&mut self.strangers) {
            if !published.tables.iter().any(|published| published.oid == oid) {
                warnings.push(format!(
                    "table {table} has left the publication again before it was copied: its changes are left out"
                ));
                self.destination.leave_out(oid);
            }
        }
        self.warn(warnings);
        if !flow.streaming {
            self.copy(&mut flow, &published, snapshot).await?;
            self.destination.copied().await?;
            flow.streaming = true;
            // What comes up when the copy is handed over to the stream.
            self.warn(Vec::new());
        }
        let joining = self.join(&mut flow, &published).await?;
        Ok(Prepared { flow, timeline: identity.timeline, joining })
    }

    /// Shows these warnings, the source's and the destination's, each once.
    pub(crate) fn warn(&mut self, mut warnings: Vec<String>) {
        warnings.extend(self.source.warnings());
        warnings.extend(self.destination.warnings());
        if warnings.is_empty() {
            return;
        }
        self.progress.send_modify(|p| {
            for warning in warnings {
                if !p.warnings.contains(&warning) {
                    p.warnings.push(warning);
                }
            }
        });
    }

    /// What was noticed of partitions is said, and stored: it must not be forgotten with the session.
    async fn take_news(&mut self) -> Result<(), Stop> {
        self.warn(Vec::new());
        match self.source.take_memory() {
            Some(published) => self.destination.remember(&published).await,
            None => Ok(()),
        }
    }

    /// The stream: groups to the destination, and what became durable back.
    async fn flow(&mut self, state: &mut Flowing, stop: &mut watch::Receiver<bool>) -> Result<Option<Finished>, Stop> {
        let mut events = Vec::new();
        loop {
            // Whatever has arrived joins the next group; nothing is waited for while there is work. With a group's
            // worth waiting, the rest stays with the source, whose bounded queue then leaves the socket unread.
            if state.has_room(&self.options.group)
                && let Some(received) = self.source.receive(&mut events).now_or_never()
            {
                self.take_in(state, received, &mut events)?;
            }
            self.begin_round(state).await?;
            // However busy the stream is.
            while let Some(joined) = next_joined(&mut state.joining).now_or_never() {
                self.take_joined(state, joined?).await?;
                self.begin_round(state).await?;
            }
            // Told to stop, the messages that wait are left for the next run.
            while !*stop.borrow()
                && let Some(message) = state.due_message()
            {
                tokio::select! {
                    delivered = self.destination.message(message) => delivered?,
                    () = stopped_for(stop, self.options.grace) => return Ok(Some(Finished::Stopped)),
                }
                state.delivered();
                self.advanced = true;
            }
            let group = match state.is_due(&self.options.group) {
                true => state.next_group(&self.options.group)?,
                false => Vec::new(),
            };
            if !group.is_empty() {
                self.progress.send_modify(|p| p.writing = true);
                let written = tokio::select! {
                    written = self.destination.write(&group) => written?,
                    () = stopped_for(stop, self.options.grace) => return Ok(Some(Finished::Stopped)),
                };
                self.wrote(state, &group, written);
            }
            let grace = self.options.grace;
            tokio::select! {
                done = self.keep_house(state) => done?,
                () = stopped_for(stop, grace) => return Ok(Some(Finished::Stopped)),
            }
            if state.joining.is_none() {
                if let Some(until) = state.until
                    && state.frontier.drained(until)
                {
                    self.settle(state).await?;
                    return Ok(Some(Finished::Drained(until)));
                }
                if self.source.joined() {
                    return Ok(None);
                }
            }
            if *stop.borrow() {
                // Whatever blocks it must not keep the process from ending: then the next session repeats a little.
                let _ = tokio::time::timeout(4 * self.options.grace, self.settle(state)).await;
                return Ok(Some(Finished::Stopped));
            }
            if !group.is_empty() {
                continue;
            }
            let next_chore = state.next_chore(&self.options.group);
            tokio::select! {
                received = self.source.receive(&mut events), if state.has_room(&self.options.group) => {
                    self.take_in(state, received, &mut events)?;
                }
                joined = next_joined(&mut state.joining) => self.take_joined(state, joined?).await?,
                () = tokio::time::sleep_until(next_chore) => {}
                () = stopped(stop) => {}
            }
        }
    }

    /// Begins the next round of what is copied beside the stream, if there is none under way.
    async fn begin_round(&mut self, state: &mut Flowing) -> Result<(), Stop> {
        let Some(joining) = state.joining.as_mut().filter(|joining| joining.is_idle()) else { return Ok(()) };
        let hold = match joining.must_hold() {
            true => Some(self.source.committed_position().await?),
            false => None,
        };
        joining.begin(hold);
        Ok(())
    }

    /// Something has happened to what is copied beside the stream.
    async fn take_joined(&mut self, state: &mut Flowing, joined: Joined) -> Result<(), Stop> {
        let Some(joining) = &mut state.joining else { return Ok(()) };
        match joined {
            Joined::Snapshot(snapshot) => {
                if joining.accepts(snapshot.boundary) {
                    let loaders = (0..joining.workers()).map(|_| self.destination.loader());
                    let loaders = loaders.collect::<Result<Vec<_>, Stop>>()?;
                    joining.copy(*snapshot, loaders);
                    self.progress.send_modify(|p| p.table = joining.current());
                }
            }
            Joined::Piece { landed, boundary, last } => {
                self.advanced = true;
                self.destination.landed(landed.table, landed.piece, boundary);
                state.consistent_from = state.consistent_from.max(Some(boundary));
                let bytes = state.bytes_before + self.progress.borrow().copy.passed().1;
                self.progress.send_modify(|p| {
                    p.consistent_from = state.consistent_from;
                    p.rows_copied += landed.rows;
                    p.bytes_copied = bytes;
                    p.tables_copied += usize::from(last);
                });
            }
            Joined::Round => {
                self.progress.send_modify(|p| p.table = joining.current());
                if joining.is_done() {
                    state.joining = None;
                    self.progress.borrow().copy.begin([]);
                    // What is drained to has to cover what was copied.
                    if self.options.until == Some(Until::Now) {
                        state.until = state.until.max(Some(self.source.committed_position().await?));
                    }
                }
            }
        }
        Ok(())
    }

    fn take_in(
        &mut self,
        state: &mut Flowing,
        received: Result<(), Stop>,
        events: &mut Vec<Event>,
    ) -> Result<(), Stop> {
        if let Err(stop) = received {
            // The end of the source waits until everything before it is written, for it may be the same after every
            // start. It is told again.
            state.ended = true;
            return if state.is_worked_off() { Err(stop) } else { Ok(()) };
        }
        for event in events.drain(..) {
            match event {
                // A slot that was moved forward by hand stands where it was before after a crash of the source. What
                // lies before the beginning of the flow is not its own, whether anything has been applied since or
                // not.
                Event::Transaction(transaction) if !state.boundary.precedes(transaction.commit()) => {}
                Event::Transaction(transaction) => {
                    let received = state.frontier.received(transaction.commit(), transaction.end());
                    received.map_err(|e| Stop::internal(e.to_string()))?;
                    state.wait(transaction);
                }
                // Delivered before what is stored behind it was written, or from before the flow began.
                Event::Message(message) if message.lsn <= state.has_messages_to => {}
                Event::Message(message) => {
                    let received = state.frontier.received_message(message.lsn);
                    received.map_err(|e| Stop::internal(e.to_string()))?;
                    state.waiting_bytes += message.size();
                    state.messages.push_back(message);
                }
                Event::Held(prepare) => state.frontier.hold(prepare),
                Event::Settled { prepare, end } => state.frontier.release(prepare, end),
                Event::Reported { point, open, sending } => {
                    state.frontier.reported(point, open);
                    if !sending {
                        state.frontier.sent(point);
                    }
                }
            }
        }
        Ok(())
    }

    fn wrote(&mut self, state: &mut Flowing, group: &[Transaction], written: Written) {
        let last = group.last().expect("a group that was written is not empty");
        state.frontier.handed_over(last.commit());
        state.ask_at = state.ask_at.min(Instant::now() + Flowing::ASK_SOON);
        if let Some(claim) = written.durable {
            state.frontier.made_durable(claim);
        }
        self.advanced |= written.applied > 0;
        let passed = state.joining.is_none() && state.consistent_from.is_none_or(|from| from.precedes(last.commit()));
        self.progress.send_modify(|p| {
            p.applied += written.applied;
            p.redelivered += written.redelivered;
            p.changes += written.changes;
            p.waiting = state.waiting.len();
            p.writing = false;
            if p.checkpoint.is_none_or(|c| c.commit < last.commit()) {
                let timeline = state.timeline;
                p.checkpoint = Some(Checkpoint { timeline, commit: last.commit(), end: last.end() });
                p.commit_time = Some(last.commit_time());
            }
            if passed {
                p.consistent_from = None;
                p.phase = Phase::Streaming;
            }
        });
    }

    /// What is due: ask the destination how far it is durable, prove that nothing was left out, store an idle boundary,
    /// acknowledge.
    async fn keep_house(&mut self, state: &mut Flowing) -> Result<(), Stop> {
        let now = Instant::now();
        if !state.frontier.settled() && now >= state.durable_at {
            state.durable_at = now + Flowing::DURABLE_EVERY;
            if let Some(claim) = self.destination.durable().await? {
                state.frontier.made_durable(claim);
            }
        }
        if now >= state.ask_at {
            state.ask_at = now + state.ask_interval();
            self.source.ask_position();
        }
        self.take_attested(state)?;
        self.take_news().await?;
        if !state.compared && state.frontier.has_passed() {
            self.destination.came_again().await?;
            state.compared = true;
        }
        if now >= state.idle_at {
            state.idle_at = now + self.options.idle_interval;
            self.persist_idle(state).await?;
        }
        self.acknowledge(state);
        Ok(())
    }

    fn take_attested(&mut self, state: &mut Flowing) -> Result<(), Stop> {
        if let Some(point) = self.source.attested()? {
            state.frontier.attested(point);
        }
        Ok(())
    }

    async fn persist_idle(&mut self, state: &mut Flowing) -> Result<(), Stop> {
        if let Some(boundary) = state.frontier.idle_candidate()
            && self.destination.persist_idle(IdlePoint { boundary, timeline: state.timeline }).await?
        {
            state.frontier.persisted(boundary);
        }
        Ok(())
    }

    fn acknowledge(&mut self, state: &mut Flowing) {
        let acknowledged = state.frontier.acknowledge();
        if let Some(position) = acknowledged {
            self.source.acknowledge(position);
            self.destination.acknowledged(position.position());
        }
        let reported = state.frontier.reported_point();
        let passed = state.joining.is_none()
            && state.consistent_from.is_some_and(|from| state.frontier.settled() && reported >= Some(from));
        if passed {
            state.consistent_from = None;
        }
        self.progress.send_if_modified(|p| {
            let changed = acknowledged.is_some() || p.reported != reported || passed;
            p.reported = reported;
            if let Some(position) = acknowledged {
                p.acknowledged = Some(position.position());
            }
            if passed {
                p.consistent_from = None;
                p.phase = Phase::Streaming;
            }
            changed
        });
    }

    /// At a good end: waits a moment for what is written to become durable and for a last proof, so that the last
    /// acknowledgement covers it.
    async fn settle(&mut self, state: &mut Flowing) -> Result<(), Stop> {
        let deadline = Instant::now() + 2 * self.options.grace;
        while state.frontier.any_unacknowledgeable() && Instant::now() < deadline {
            self.source.ask_position();
            if let Some(claim) = self.destination.durable().await? {
                state.frontier.made_durable(claim);
            }
            self.take_attested(state)?;
            sleep(Duration::from_millis(10)).await;
        }
        self.take_news().await?;
        self.persist_idle(state).await?;
        self.acknowledge(state);
        Ok(())
    }
}

/// What a session streams from.
struct Prepared {
    flow: StoredFlow,
    timeline: Timeline,
    joining: Option<Joining>,
}

/// Waits for what happens to what is copied beside the stream; for ever if nothing is.
async fn next_joined(joining: &mut Option<Joining>) -> Result<Joined, Stop> {
    match joining {
        Some(joining) => joining.next().await,
        None => std::future::pending().await,
    }
}

/// Until `stop` becomes true (or nobody is left who could set it: then never).
async fn stopped(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Until `stop` has been true for `grace`.
async fn stopped_for(stop: &mut watch::Receiver<bool>, grace: Duration) {
    stopped(stop).await;
    sleep(grace).await;
}
