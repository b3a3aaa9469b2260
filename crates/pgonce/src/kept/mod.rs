//! A program's sink as the destination of a flow, with the flow's state kept for it.

mod copy;
mod keeping;
mod record;
mod schemas;
mod scope;
mod window;

use std::collections::HashSet;
use std::sync::Arc;

use tokio::sync::Mutex;

pub use self::copy::TableLoader;
pub use self::keeping::{Atomic, Keeping, Stored};
use self::record::{FLOW, FlowRecord, POSITION, PositionRecord, TableRecord, Unreadable};
use self::schemas::{SCHEMA, Schemas, Step};
use self::scope::Scope;
use self::window::{Comparison, Window};
use crate::checkpoint_store::CheckpointStore;
use crate::described::Described;
use crate::destination::{Destination, Stored as StoredState, Written};
use crate::flow::{Binding, IdlePoint, SlotOrigin, SourceIdentity, StartMode, StoredFlow};
use crate::logical_message::LogicalMessage;
use crate::piece::{CopyPlan, Format, TableCopy};
use crate::position::{Boundary, Checkpoint};
use crate::published::tables_of;
use crate::schema_change::{SchemaChange, SchemaDecision};
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
    takes_prepared: bool,
    wants_messages: bool,
    /// Whether the source tells of transactions when they are prepared.
    sees_prepared: bool,
    acknowledged: Option<Boundary>,
    /// Tables whose changes are to be left out from now on.
    left: Vec<u32>,
    /// What comes again in this session, against what was written.
    comparison: Comparison,
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
    /// The number of the state that was read when somebody else wrote in between.
    overtaken: Option<u64>,
}

/// What is known between two calls. Taken out for the length of a call, and put back when it went well.
#[derive(Debug)]
struct Session {
    source: SourceIdentity,
    bound: Option<(FlowRecord, PositionRecord)>,
    schemas: Schemas,
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
        let sink = keeping.sink();
        let (takes_copy, takes_prepared) = (sink.takes_copy(), sink.takes_prepared());
        let wants_messages = sink.wants_messages();
        let inner = Inner { flow: flow.clone(), keeping, sessions: 0, session: None, fault: None, overtaken: None };
        let inner = Arc::new(Mutex::new(inner));
        Kept {
            flow,
            inner,
            session: 0,
            takes_copy,
            takes_prepared,
            wants_messages,
            sees_prepared: false,
            acknowledged: None,
            left: Vec::new(),
            comparison: Comparison::default(),
        }
    }

    /// The flow's name.
    pub fn flow(&self) -> &str {
        &self.flow
    }
}

impl<K: Keeping> Inner<K> {
    async fn open(&mut self, source: &SourceIdentity) -> Result<StoredState, Stop> {
        (self.session, self.fault) = (None, None);
        self.sessions += 1;
        // The veto comes before anything that is stored is believed.
        self.keeping.sink().accept_source(source).await?;
        self.keeping.open(&self.flow).await?;
        let flow = self.load(FLOW, FlowRecord::decode).await?;
        let position = self.load(POSITION, PositionRecord::decode).await?;
        let schema = self.load(SCHEMA, Schemas::decode).await?;
        let mut session =
            Session { source: source.clone(), bound: None, schemas: Schemas::default(), scope: Scope::default() };
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
        session.schemas = match schema {
            Some((id, schemas)) if id == flow.id => schemas,
            Some(_) => return Err(self.unreadable("its record of tables is of another flow")),
            None => return Err(self.unreadable("it has no record of tables")),
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
        let read = position.version;
        session.bound = Some((flow, position));
        // The next number: an older process that is still at work cannot write any more, where the store compares.
        if let Err(stop) = self.write(&mut session, &[], false).await {
            let Reason::Fenced { flow, .. } = stop.reason() else { return Err(stop) };
            // What was on its way when another process ended has come in between: it is read again. Twice the same
            // state, and another number beside it, is no such thing.
            if self.overtaken.replace(read) == Some(read) {
                return Err(self.unreadable(&format!("it is number {read}, and its store says that it holds another")));
            }
            let what = format!("the state of flow {flow} has changed since it was read");
            return Err(Reason::SinkBusy { what }.into());
        }
        self.overtaken = None;
        self.session = Some(session);
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

    /// The fault that ends the session, for others that are still at work in it too.
    fn failed(&mut self, error: SinkError) -> Stop {
        self.fault.insert(error.into()).clone()
    }

    /// Writes transactions, and where the flow stands behind them.
    async fn write(
        &mut self,
        session: &mut Session,
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
        self.keeping.write(&Batch { transactions, state }).await.map_err(|e| self.failed(e))
    }

    /// Writes transactions that are new. Where a table has changed, what is before it is written first, and nothing
    /// behind it before the sink has accepted.
    async fn write_new(&mut self, session: &mut Session, new: &[Transaction]) -> Result<(), Stop> {
        let mut written = 0;
        for (at, transaction) in new.iter().enumerate() {
            let steps = session.schemas.examine(transaction)?;
            for step in &steps {
                let Step::Change(change) = step else { continue };
                if written < at {
                    self.write(session, &new[written..at], false).await?;
                    written = at;
                }
                match self.keeping.sink().schema_change(change).await? {
                    SchemaDecision::Accept => tracing::info!("accepted: {change}"),
                    SchemaDecision::Refuse => return Err(refused(change)),
                }
            }
            session.schemas.take(transaction, steps);
        }
        if written < new.len() {
            self.write(session, &new[written..], false).await?;
        }
        Ok(())
    }
}

impl Session {
    fn bound(&mut self) -> Result<&mut (FlowRecord, PositionRecord), Stop> {
        self.bound.as_mut().ok_or_else(|| Stop::internal("the sink was used before the flow was bound"))
    }

    /// What is to be stored next: the records that have changed, the number of the state and that of the last one.
    fn next_state(&mut self, flow_changed: bool) -> Result<(Vec<Record>, u64, u64), Stop> {
        let (flow, position) = self.bound()?;
        let replaces = position.version;
        position.version += 1;
        let version = position.version;
        let mut records = vec![Record { name: POSITION, bytes: position.encode() }];
        if flow_changed {
            records.push(Record { name: FLOW, bytes: flow.encode() });
        }
        let id = flow.id.clone();
        if let Some(bytes) = self.schemas.record(&id) {
            records.push(Record { name: SCHEMA, bytes });
        }
        Ok((records, version, replaces))
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

    fn takes_prepared(&self) -> bool {
        self.takes_prepared
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
            sees_prepared: self.sees_prepared,
            tables: Vec::new(),
        };
        let idle = IdlePoint { boundary: binding.boundary, timeline: binding.timeline };
        let position = PositionRecord { id, version: 0, checkpoint: None, idle, window: Window::default() };
        session.scope = flow.scope();
        session.bound = Some((flow, position));
        session.schemas = Schemas::new();
        inner.write(&mut session, &[], true).await?;
        inner.session = Some(session);
        Ok(())
    }

    async fn asks_described(&mut self) -> Result<bool, Stop> {
        let inner = self.inner.lock().await;
        Ok(inner.session.as_ref().is_some_and(|session| !session.schemas.is_begun()))
    }

    async fn described(&mut self, described: Described) -> Result<(), Stop> {
        let mut inner = self.inner.lock().await;
        let mut session = inner.take()?;
        session.schemas.begin(described);
        inner.write(&mut session, &[], false).await?;
        inner.session = Some(session);
        Ok(())
    }

    async fn write(&mut self, group: &[Transaction]) -> Result<Written, Stop> {
        let mut inner = self.inner.lock().await;
        let mut session = inner.take()?;
        let Some((_, position)) = &mut session.bound else {
            return Err(Stop::internal("written before the flow was bound"));
        };
        let checkpoint = position.checkpoint.map(|c| c.commit);
        let (seen, new) = group.split_at(group.partition_point(|t| Some(t.commit()) <= checkpoint));
        for transaction in seen {
            position.window.compare(&mut self.comparison, transaction)?;
            session.schemas.recall(transaction);
        }
        if !new.is_empty() {
            position.window.came_before(&self.comparison, u64::MAX)?;
            self.comparison.end();
        }
        if let Some(boundary) = self.acknowledged {
            position.window.acknowledged(boundary);
        }
        self.left.drain(..).for_each(|oid| session.scope.leave_out(oid));
        let reduced = session.scope.of(new)?;
        inner.write_new(&mut session, &reduced).await?;
        inner.session = Some(session);
        let changes = new.iter().map(Transaction::change_count).sum();
        let durable = group.last().map(Transaction::end);
        Ok(Written { applied: new.len() as u64, redelivered: seen.len() as u64, changes, durable })
    }

    async fn persist_idle(&mut self, idle: IdlePoint) -> Result<bool, Stop> {
        let mut inner = self.inner.lock().await;
        let mut session = inner.take()?;
        if let Some((_, position)) = &mut session.bound {
            position.idle = idle;
        }
        inner.write(&mut session, &[], false).await?;
        inner.session = Some(session);
        Ok(true)
    }

    fn leave_out(&mut self, table: u32) {
        self.left.push(table);
    }

    async fn plan(&mut self, tables: &[TableCopy], published: &str) -> Result<Vec<CopyPlan>, Stop> {
        if !self.takes_copy {
            return Err(copy::not_taken(tables));
        }
        let mut inner = self.inner.lock().await;
        let mut session = inner.take()?;
        if session.plan(tables, published)? {
            inner.write(&mut session, &[], true).await?;
        }
        inner.session = Some(session);
        Ok(vec![CopyPlan { format: Format::Text, together: false }; tables.len()])
    }

    fn loader(&mut self) -> Result<TableLoader<K>, Stop> {
        Ok(TableLoader { inner: Arc::clone(&self.inner), session: self.session })
    }

    async fn copied(&mut self) -> Result<(), Stop> {
        let mut inner = self.inner.lock().await;
        let mut session = inner.take()?;
        session.bound()?.0.streaming = true;
        inner.write(&mut session, &[], true).await?;
        inner.session = Some(session);
        Ok(())
    }

    async fn remember(&mut self, published: &str) -> Result<(), Stop> {
        let mut inner = self.inner.lock().await;
        let mut session = inner.take()?;
        let (flow, position) = session.bound()?;
        published.clone_into(&mut flow.binding.published);
        // Another publication may send other changes of the same transaction.
        position.window.forget();
        self.comparison.end();
        let carried = flow.carried();
        session.scope.carry(carried);
        inner.write(&mut session, &[], true).await?;
        inner.session = Some(session);
        Ok(())
    }

    async fn origin(&mut self, origin: &SlotOrigin) -> Result<(), Stop> {
        self.comparison = Comparison::from(Boundary(origin.confirmed_flush));
        self.sees_prepared = origin.sees_prepared;
        let mut inner = self.inner.lock().await;
        inner.keeping.sink().accept_origin(origin).await?;
        let mut session = inner.take()?;
        if session.sees_prepared(origin)? {
            inner.write(&mut session, &[], true).await?;
        }
        inner.session = Some(session);
        Ok(())
    }

    async fn came_again(&mut self) -> Result<(), Stop> {
        let mut inner = self.inner.lock().await;
        let session = inner.take()?;
        if let Some((_, position)) = &session.bound {
            position.window.came_before(&self.comparison, u64::MAX)?;
        }
        inner.session = Some(session);
        Ok(())
    }

    fn wants_messages(&self) -> bool {
        self.wants_messages
    }

    async fn message(&mut self, message: &LogicalMessage) -> Result<(), Stop> {
        let mut inner = self.inner.lock().await;
        // As with a write: after an error nothing goes on in this session.
        let session = inner.take()?;
        inner.keeping.sink().message(message).await?;
        inner.session = Some(session);
        Ok(())
    }

    fn acknowledged(&mut self, boundary: Boundary) {
        self.acknowledged = Some(boundary);
    }
}

impl Session {
    /// Whether transactions are told of when they are prepared, and were not before, or the other way round. Refused
    /// where something comes again that was told of otherwise: of a transaction that was prepared before the stored
    /// position one half would be taken for what has been written.
    fn sees_prepared(&mut self, origin: &SlotOrigin) -> Result<bool, Stop> {
        let Some((flow, position)) = &mut self.bound else { return Ok(false) };
        if flow.sees_prepared == origin.sees_prepared {
            return Ok(false);
        }
        let stored =
            position.idle.boundary.max(position.checkpoint.map_or(position.idle.boundary, |c| c.end.as_boundary()));
        if Boundary(origin.confirmed_flush) < stored {
            let what = format!(
                "the flow was told of prepared transactions in another way, and slot {} stands at {}, before what is \
                 stored ({stored}): what comes again was told of otherwise",
                origin.slot, origin.confirmed_flush
            );
            let hint = "Put TwoPhase back to what it was, let the prepared transactions be settled (SELECT * FROM \
                        pg_prepared_xacts), end the flow in good order, and then change it.";
            return Err(Reason::Unsupported { what, hint: hint.to_owned() }.into());
        }
        flow.sees_prepared = origin.sees_prepared;
        Ok(true)
    }
}

fn refused(change: &SchemaChange) -> Stop {
    let table = change.before().unwrap_or_else(|| change.after()).to_string();
    Reason::SchemaChanged { table, what: change.description() }.into()
}

/// Something that no other binding has.
fn flow_id(source: &SourceIdentity, binding: &Binding) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}-{:x}-{:x}", source.system_identifier, binding.boundary, now.as_nanos(), std::process::id())
}
