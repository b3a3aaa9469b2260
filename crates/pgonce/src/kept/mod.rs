//! A program's sink as the destination of a flow, with the flow's state kept for it.

mod keeping;
mod record;
mod schemas;
mod window;

use std::sync::Arc;

use tokio::sync::Mutex;

pub use self::keeping::{Atomic, Keeping, Stored};
use self::record::{FLOW, FlowRecord, POSITION, PositionRecord, Unreadable};
use self::schemas::{SCHEMA, Schemas, Step};
use self::window::{Comparison, Window};
use crate::checkpoint_store::CheckpointStore;
use crate::described::Described;
use crate::destination::{Destination, NoLoader, Stored as StoredState, Written, no_copy};
use crate::flow::{Binding, IdlePoint, SourceIdentity, StartMode, StoredFlow};
use crate::position::{Boundary, Checkpoint};
use crate::schema_change::{SchemaChange, SchemaDecision};
use crate::sink::{AtomicSink, Batch, Record, Sink, State};
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
    takes_prepared: bool,
    acknowledged: Option<Boundary>,
}

#[derive(Debug)]
struct Inner<K> {
    flow: String,
    keeping: K,
    session: Option<Session>,
}

/// What is known between two calls. Taken out for the length of a call, and put back when it went well.
#[derive(Debug)]
struct Session {
    source: SourceIdentity,
    bound: Option<(FlowRecord, PositionRecord)>,
    comparison: Comparison,
    schemas: Schemas,
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
        let takes_prepared = keeping.sink().takes_prepared();
        let inner = Inner { flow: flow.clone(), keeping, session: None };
        Kept { flow, inner: Arc::new(Mutex::new(inner)), takes_prepared, acknowledged: None }
    }

    /// The flow's name.
    pub fn flow(&self) -> &str {
        &self.flow
    }
}

impl<K: Keeping> Inner<K> {
    async fn open(&mut self, source: &SourceIdentity) -> Result<StoredState, Stop> {
        self.session = None;
        // The veto comes before anything that is stored is believed.
        self.keeping.sink().accept_source(source).await?;
        self.keeping.open(&self.flow).await?;
        let flow = self.load(FLOW, FlowRecord::decode).await?;
        let position = self.load(POSITION, PositionRecord::decode).await?;
        let schema = self.load(SCHEMA, Schemas::decode).await?;
        let mut session = Session {
            source: source.clone(),
            bound: None,
            comparison: Comparison::default(),
            schemas: Schemas::default(),
        };
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
            tables: Vec::new(),
            checkpoint: position.checkpoint,
            idle: position.idle,
        };
        session.bound = Some((flow, position));
        // The next number: an older process that is still at work cannot write any more, where the store compares.
        self.write(&mut session, &[], false).await?;
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

    fn take(&mut self) -> Result<Session, Stop> {
        self.session.take().ok_or_else(|| Stop::internal("the sink was used without an open session"))
    }

    /// Writes transactions, and where the flow stands behind them.
    async fn write(
        &mut self,
        session: &mut Session,
        transactions: &[Transaction],
        flow_changed: bool,
    ) -> Result<(), Stop> {
        let Some((flow, position)) = &mut session.bound else {
            return Err(Stop::internal("written before the flow was bound"));
        };
        let replaces = position.version;
        position.version += 1;
        if let Some(last) = transactions.last() {
            position.window.wrote(transactions);
            let timeline = session.source.timeline;
            position.checkpoint = Some(Checkpoint { timeline, commit: last.commit(), end: last.end() });
        }
        let mut records = vec![Record { name: POSITION, bytes: position.encode() }];
        if flow_changed {
            records.push(Record { name: FLOW, bytes: flow.encode() });
        }
        if let Some(bytes) = session.schemas.record(&flow.id) {
            records.push(Record { name: SCHEMA, bytes });
        }
        let state = State { flow: &self.flow, records: &records, version: position.version, replaces };
        Ok(self.keeping.write(&Batch { transactions, state }).await?)
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

impl<K: Keeping> Destination for Kept<K> {
    type Loader = NoLoader;
    type Mode = K::Mode;

    fn takes_copy(&self) -> bool {
        false
    }

    fn takes_prepared(&self) -> bool {
        self.takes_prepared
    }

    async fn open(&mut self, source: &SourceIdentity) -> Result<StoredState, Stop> {
        self.acknowledged = None;
        self.inner.lock().await.open(source).await
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
        };
        let idle = IdlePoint { boundary: binding.boundary, timeline: binding.timeline };
        let position = PositionRecord { id, version: 0, checkpoint: None, idle, window: Window::default() };
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
            position.window.compare(&mut session.comparison, transaction)?;
            session.schemas.recall(transaction);
        }
        if let Some(boundary) = self.acknowledged {
            position.window.acknowledged(boundary);
        }
        inner.write_new(&mut session, new).await?;
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

    fn loader(&mut self) -> Result<NoLoader, Stop> {
        Err(no_copy())
    }

    async fn remember(&mut self, published: &str) -> Result<(), Stop> {
        let mut inner = self.inner.lock().await;
        let mut session = inner.take()?;
        if let Some((flow, position)) = &mut session.bound {
            published.clone_into(&mut flow.binding.published);
            // Another publication may send other changes of the same transaction.
            position.window.forget();
        }
        inner.write(&mut session, &[], true).await?;
        inner.session = Some(session);
        Ok(())
    }

    fn acknowledged(&mut self, boundary: Boundary) {
        self.acknowledged = Some(boundary);
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
