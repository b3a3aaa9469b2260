//! A program's sink as the destination of a flow, with the flow's state kept for it.

mod copy;
mod keeping;
mod record;
mod scope;
mod window;

use std::collections::HashSet;
use std::sync::Arc;

use tokio::sync::Mutex;

pub use self::copy::TableLoader;
pub use self::keeping::{Atomic, Keeping, Stored};
use self::record::{FLOW, FlowRecord, POSITION, PositionRecord, TableRecord, Unreadable};
use self::scope::Scope;
use self::window::{Comparison, Window};
use crate::checkpoint_store::CheckpointStore;
use crate::destination::{Destination, Stored as StoredState, Written};
use crate::flow::{Binding, IdlePoint, SourceIdentity, StartMode, StoredFlow};
use crate::piece::{CopyPlan, Format, Standing, TableCopy};
use crate::position::{Boundary, Checkpoint};
use crate::published::tables_of;
use crate::sink::{AtomicSink, Batch, Record, Sink, SinkError, State};
use crate::stop::{Reason, Stop};
use crate::transaction::Transaction;

/// The [`Destination`] of a program's sink.
///
/// It skips whole what the flow has written before, holds what comes again against what was written, and stores where
/// the flow stands: in the sink's own write ([`effect_once`](Kept::effect_once)), or after it
/// ([`at_least_once`](Kept::at_least_once)).
#[derive(Debug)]
pub struct Kept<K> {
    flow: String,
    /// Shared with what copies tables beside the stream.
    inner: Arc<Mutex<Inner<K>>>,
    /// The number of the session.
    session: u64,
    takes_copy: bool,
    acknowledged: Option<Boundary>,
    /// Tables whose changes are to be left out from now on.
    left: Vec<u32>,
}

#[derive(Debug)]
struct Inner<K> {
    flow: String,
    keeping: K,
    /// How many sessions there have been: what was made for an earlier one writes no more.
    sessions: u64,
    session: Option<Session>,
    /// What ended the session, for whoever comes after.
    fault: Option<Stop>,
}

/// What is known between two calls. Taken out for the length of a call, and put back when it went well.
#[derive(Debug)]
struct Session {
    source: SourceIdentity,
    bound: Option<(FlowRecord, PositionRecord)>,
    comparison: Comparison,
    scope: Scope,
}

impl<S: AtomicSink> Kept<Atomic<S>> {
    /// A flow whose state is one write with its data: a redelivered transaction has no effect.
    pub fn effect_once(flow: impl Into<String>, sink: S) -> Kept<Atomic<S>> {
        Kept::new(flow.into(), Atomic { sink })
    }
}

impl<S: Sink, C: CheckpointStore> Kept<Stored<S, C>> {
    /// A flow whose state is stored after its data: a crash in between repeats one batch at most (one transaction,
    /// where delivery is per transaction).
    pub fn at_least_once(flow: impl Into<String>, sink: S, store: C) -> Kept<Stored<S, C>> {
        Kept::new(flow.into(), Stored { sink, store })
    }
}

impl<K: Keeping> Kept<K> {
    fn new(flow: String, mut keeping: K) -> Kept<K> {
        let takes_copy = keeping.sink().takes_copy();
        let inner = Inner { flow: flow.clone(), keeping, sessions: 0, session: None, fault: None };
        Kept { flow, inner: Arc::new(Mutex::new(inner)), session: 0, takes_copy, acknowledged: None, left: Vec::new() }
    }

    /// The flow's name.
    pub fn flow(&self) -> &str {
        &self.flow
    }
}

impl<K: Keeping> Inner<K> {
    async fn open(&mut self, source: &SourceIdentity) -> Result<StoredState, Stop> {
        self.session = None;
        self.fault = None;
        self.sessions += 1;
        // The veto comes before anything that is stored is believed.
        self.keeping.sink().accept_source(source).await?;
        self.keeping.open(&self.flow).await?;
        let flow = self.load(FLOW, FlowRecord::decode).await?;
        let position = self.load(POSITION, PositionRecord::decode).await?;
        let mut session =
            Session { source: source.clone(), bound: None, comparison: Comparison::default(), scope: Scope::default() };
        let (flow, position) = match (flow, position) {
            (None, None) => {
                self.session = Some(session);
                return Ok(StoredState::Nothing);
            }
            (Some(flow), Some(position)) if flow.id == position.id && flow.flow == self.flow => (flow, position),
            (Some(flow), _) if flow.flow != self.flow => {
                return Err(self.unreadable(&format!("it is that of flow {}", flow.flow)));
            }
            (Some(_), Some(_)) => return Err(self.unreadable("its two records are not of one flow")),
            (Some(_), None) => return Err(self.unreadable("it has no position")),
            (None, Some(_)) => return Err(self.unreadable("it has a position and nothing that it is bound to")),
        };
        flow.is_bound_to(source)?;
        let stored = StoredFlow {
            binding: flow.binding.clone(),
            streaming: flow.streaming,
            tables: flow.tables.iter().map(TableRecord::stored).collect(),
            checkpoint: position.checkpoint,
            idle: position.idle,
        };
        session.scope = flow.scope();
        session.bound = Some((flow, position));
        // The next number: an older process that is still at work cannot write any more, where the store compares.
        self.write(session, &[], false).await?;
        Ok(StoredState::Flow(stored))
    }

    async fn load<T>(
        &mut self,
        name: &'static str,
        decode: impl FnOnce(&[u8]) -> Result<T, Unreadable>,
    ) -> Result<Option<T>, Stop> {
        let Some(bytes) = self.keeping.load(&self.flow, name).await? else { return Ok(None) };
        decode(&bytes).map(Some).map_err(|e| self.unreadable(&format!("record {name}: {e}")))
    }

    fn unreadable(&self, what: &str) -> Stop {
        Reason::CheckpointUnreadable { flow: self.flow.clone(), what: what.to_owned() }.into()
    }

    /// Takes the session out for the length of a call: whoever fails, or is dropped half-way, does not put it back.
    fn take(&mut self) -> Result<Session, Stop> {
        let gone = || self.fault.clone().unwrap_or_else(|| Stop::internal("the sink was used without an open session"));
        self.session.take().ok_or_else(gone)
    }

    /// The same for what was made in session `number`.
    fn take_for(&mut self, number: u64) -> Result<Session, Stop> {
        if number != self.sessions {
            return Err(Stop::internal("the session that the copy belonged to is over"));
        }
        self.take()
    }

    /// Puts the session back, if what was done in it went well.
    fn put_back(&mut self, session: Session, done: Result<(), SinkError>) -> Result<(), Stop> {
        match done {
            Ok(()) => {
                self.session = Some(session);
                Ok(())
            }
            Err(error) => Err(self.fault.insert(error.into()).clone()),
        }
    }

    /// Writes transactions, and where the flow stands behind them.
    async fn write(
        &mut self,
        mut session: Session,
        transactions: &[Transaction],
        flow_changed: bool,
    ) -> Result<(), Stop> {
        if let (Some((_, position)), Some(last)) = (&mut session.bound, transactions.last()) {
            position.window.wrote(transactions);
            let timeline = session.source.timeline;
            position.checkpoint = Some(Checkpoint { timeline, commit: last.commit(), end: last.end() });
        }
        let (records, version, replaces) = session.next_state(flow_changed)?;
        let state = State { flow: &self.flow, records: &records, version, replaces };
        let written = self.keeping.write(&Batch { transactions, state }).await;
        self.put_back(session, written)
    }
}

impl Session {
    fn bound(&mut self) -> Result<&mut (FlowRecord, PositionRecord), Stop> {
        self.bound.as_mut().ok_or_else(|| Stop::internal("the sink was used before the flow was bound"))
    }

    /// What is stored of a table that is copied.
    fn copy(&mut self, oid: u32) -> Result<&mut TableRecord, Stop> {
        let table = self.bound()?.0.tables.iter_mut().find(|table| table.oid == oid);
        table.ok_or_else(|| Stop::internal("a table is copied that was not planned"))
    }

    /// Takes in what is to be copied. False: it is stored already.
    fn plan(&mut self, tables: &[TableCopy], published: &str) -> Result<bool, Stop> {
        let Session { bound: Some((flow, _)), scope, .. } = self else {
            return Err(Stop::internal("planned before the flow was bound"));
        };
        let mut any = false;
        for copy in tables.iter().filter(|copy| copy.standing != Standing::Planned) {
            let oid = copy.table.oid;
            let before = flow.tables.iter().position(|table| table.oid == oid);
            let before = before.map(|at| flow.tables.swap_remove(at));
            flow.tables.push(TableRecord {
                oid,
                bytes: copy.pieces.iter().map(|piece| piece.bytes).sum(),
                begun: copy.replaces || before.is_some_and(|before| before.begun),
                boundary: None,
            });
            scope.table(oid, None);
            any = true;
        }
        if any {
            published.clone_into(&mut flow.binding.published);
        }
        Ok(any)
    }

    /// What is to be stored next: the records that have changed, the number of the state and that of the last one.
    fn next_state(&mut self, flow_changed: bool) -> Result<(Vec<Record>, u64, u64), Stop> {
        let (flow, position) = self.bound()?;
        let replaces = position.version;
        position.version += 1;
        let mut records = vec![Record { name: POSITION, bytes: position.encode() }];
        if flow_changed {
            records.push(Record { name: FLOW, bytes: flow.encode() });
        }
        Ok((records, position.version, replaces))
    }
}

impl FlowRecord {
    /// What reaches the sink, by what is stored.
    fn scope(&self) -> Scope {
        Scope::new(self.tables.iter().map(|table| (table.oid, table.boundary)), self.carried())
    }

    /// The tables that are carried without having been copied.
    fn carried(&self) -> HashSet<u32> {
        match self.binding.start {
            StartMode::Snapshot => HashSet::new(),
            StartMode::GoForward => tables_of(&self.binding.published).collect(),
        }
    }
}

impl<K: Keeping + 'static> Destination for Kept<K> {
    type Loader = TableLoader<K>;
    type Mode = K::Mode;

    fn takes_copy(&self) -> bool {
        self.takes_copy
    }

    fn copies_as_streamed(&self) -> bool {
        true
    }

    fn copies_joined(&self, start: StartMode) -> bool {
        start == StartMode::Snapshot
    }

    async fn open(&mut self, source: &SourceIdentity) -> Result<StoredState, Stop> {
        self.acknowledged = None;
        self.left.clear();
        let mut inner = self.inner.lock().await;
        let opened = inner.open(source).await;
        self.session = inner.sessions;
        opened
    }

    async fn bind(&mut self, binding: &Binding) -> Result<(), Stop> {
        let mut inner = self.inner.lock().await;
        let mut session = inner.take()?;
        let source = &session.source;
        let id = flow_id(source, binding);
        let flow = FlowRecord {
            flow: self.flow.clone(),
            id: id.clone(),
            system_identifier: source.system_identifier.clone(),
            database: source.database.clone(),
            slot: source.slot.clone(),
            binding: binding.clone(),
            streaming: binding.start == StartMode::GoForward,
            tables: Vec::new(),
        };
        let idle = IdlePoint { boundary: binding.boundary, timeline: binding.timeline };
        let position = PositionRecord { id, version: 0, checkpoint: None, idle, window: Window::default() };
        session.scope = flow.scope();
        session.bound = Some((flow, position));
        inner.write(session, &[], true).await
    }

    async fn write(&mut self, group: &[Transaction]) -> Result<Written, Stop> {
        let mut inner = self.inner.lock().await;
        let mut session = inner.take()?;
        let Session { bound, comparison, scope, .. } = &mut session;
        let Some((_, position)) = bound else { return Err(Stop::internal("written before the flow was bound")) };
        let checkpoint = position.checkpoint.map(|c| c.commit);
        let (seen, new) = group.split_at(group.partition_point(|t| Some(t.commit()) <= checkpoint));
        for transaction in seen {
            position.window.compare(comparison, transaction)?;
        }
        if let Some(boundary) = self.acknowledged {
            position.window.acknowledged(boundary);
        }
        self.left.drain(..).for_each(|oid| scope.leave_out(oid));
        let written = scope.of(new)?;
        match written.is_empty() {
            true => inner.session = Some(session),
            false => inner.write(session, &written, false).await?,
        }
        let changes = new.iter().map(Transaction::change_count).sum();
        let durable = group.last().map(Transaction::end);
        Ok(Written { applied: new.len() as u64, redelivered: seen.len() as u64, changes, durable })
    }

    async fn persist_idle(&mut self, idle: IdlePoint) -> Result<bool, Stop> {
        let mut inner = self.inner.lock().await;
        let mut session = inner.take()?;
        session.bound()?.1.idle = idle;
        inner.write(session, &[], false).await?;
        Ok(true)
    }

    fn leave_out(&mut self, table: u32) {
        self.left.push(table);
    }

    async fn plan(&mut self, tables: &[TableCopy], published: &str) -> Result<Vec<CopyPlan>, Stop> {
        if !self.takes_copy {
            return Err(takes_no_copy_of(tables));
        }
        let mut inner = self.inner.lock().await;
        let mut session = inner.take()?;
        match session.plan(tables, published)? {
            true => inner.write(session, &[], true).await?,
            false => inner.session = Some(session),
        }
        Ok(vec![CopyPlan { format: Format::Text, together: false }; tables.len()])
    }

    fn loader(&mut self) -> Result<TableLoader<K>, Stop> {
        Ok(TableLoader { inner: Arc::clone(&self.inner), session: self.session })
    }

    async fn copied(&mut self) -> Result<(), Stop> {
        let mut inner = self.inner.lock().await;
        let mut session = inner.take()?;
        session.bound()?.0.streaming = true;
        inner.write(session, &[], true).await
    }

    async fn remember(&mut self, published: &str) -> Result<(), Stop> {
        let mut inner = self.inner.lock().await;
        let mut session = inner.take()?;
        let (flow, position) = session.bound()?;
        published.clone_into(&mut flow.binding.published);
        // Another publication may send other changes of the same transaction.
        position.window.forget();
        let carried = flow.carried();
        session.scope.carry(carried);
        inner.write(session, &[], true).await
    }

    fn acknowledged(&mut self, boundary: Boundary) {
        self.acknowledged = Some(boundary);
    }
}

/// The refusal of tables that would have to be copied.
fn takes_no_copy_of(tables: &[TableCopy]) -> Stop {
    let names: Vec<String> = tables.iter().map(|copy| copy.table.to_string()).collect();
    let what = format!("the sink takes no copy, and {} would have to be copied", names.join(", "));
    let hint = "Let the sink take a copy (Sink::takes_copy, begin_table and rows), or take the table out: \
                ALTER PUBLICATION ... DROP TABLE ...; on the source, before anything in it changes."
        .to_owned();
    Reason::Unsupported { what, hint }.into()
}

/// Something that no other binding has.
fn flow_id(source: &SourceIdentity, binding: &Binding) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}-{:x}-{:x}", source.system_identifier, binding.boundary, now.as_nanos(), std::process::id())
}
