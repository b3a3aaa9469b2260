//! The two ways in which the state of a flow is kept for a sink.

use std::future::Future;

use crate::checkpoint_store::CheckpointStore;
use crate::guarantee::{AtLeastOnce, EffectOnce, Mode};
use crate::sink::{AtomicSink, Batch, CopiedRows, CopiedTable, Record, Sink, SinkError, State};

/// A sink, and where the state of its flow goes. Implemented by [`Atomic`] and [`Stored`], and by nothing else.
pub trait Keeping: sealed::Sealed + Send {
    /// What follows from it.
    type Mode: Mode;
    /// The sink.
    type Sink: Sink;

    /// The sink.
    fn sink(&mut self) -> &mut Self::Sink;

    /// A session begins.
    fn open(&mut self, flow: &str) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// What is stored under `name`.
    fn load(
        &mut self,
        flow: &str,
        name: &'static str,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, SinkError>> + Send;

    /// Makes the batch durable, and its state not before the transactions.
    fn write(&mut self, batch: &Batch<'_>) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// The copy of a table begins: its state is durable before the first row is.
    fn begin_table(&mut self, table: &CopiedTable<'_>) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// Makes rows durable, and the state not before them.
    fn rows(&mut self, rows: &CopiedRows<'_>) -> impl Future<Output = Result<(), SinkError>> + Send;
}

/// What a sink is given to store where a store does.
fn nothing(state: State<'_>) -> State<'_> {
    const NOTHING: &[Record] = &[];
    State { records: NOTHING, ..state }
}

/// A sink that stores the state itself, with the data.
#[derive(Debug)]
pub struct Atomic<S> {
    pub(super) sink: S,
}

/// A sink, and a store that is written after it.
#[derive(Debug)]
pub struct Stored<S, C> {
    pub(super) sink: S,
    pub(super) store: C,
}

mod sealed {
    pub trait Sealed {}
    impl<S> Sealed for super::Atomic<S> {}
    impl<S, C> Sealed for super::Stored<S, C> {}
}

impl<S: AtomicSink> Keeping for Atomic<S> {
    type Mode = EffectOnce;
    type Sink = S;

    fn sink(&mut self) -> &mut S {
        &mut self.sink
    }

    async fn open(&mut self, _: &str) -> Result<(), SinkError> {
        Ok(())
    }

    async fn load(&mut self, _: &str, name: &'static str) -> Result<Option<Vec<u8>>, SinkError> {
        self.sink.load(name).await
    }

    async fn write(&mut self, batch: &Batch<'_>) -> Result<(), SinkError> {
        self.sink.write(batch).await
    }

    async fn begin_table(&mut self, table: &CopiedTable<'_>) -> Result<(), SinkError> {
        self.sink.begin_table(table).await
    }

    async fn rows(&mut self, rows: &CopiedRows<'_>) -> Result<(), SinkError> {
        self.sink.rows(rows).await
    }
}

impl<S: Sink, C: CheckpointStore> Keeping for Stored<S, C> {
    type Mode = AtLeastOnce;
    type Sink = S;

    fn sink(&mut self) -> &mut S {
        &mut self.sink
    }

    async fn open(&mut self, flow: &str) -> Result<(), SinkError> {
        self.store.open(flow).await
    }

    async fn load(&mut self, flow: &str, name: &'static str) -> Result<Option<Vec<u8>>, SinkError> {
        self.store.load(flow, name).await
    }

    async fn write(&mut self, batch: &Batch<'_>) -> Result<(), SinkError> {
        if !batch.transactions.is_empty() {
            self.sink.write(&Batch { state: nothing(batch.state), ..*batch }).await?;
        }
        self.store.save(&batch.state).await
    }

    async fn begin_table(&mut self, table: &CopiedTable<'_>) -> Result<(), SinkError> {
        self.store.save(&table.state).await?;
        self.sink.begin_table(&CopiedTable { state: nothing(table.state), ..*table }).await
    }

    async fn rows(&mut self, rows: &CopiedRows<'_>) -> Result<(), SinkError> {
        self.sink.rows(&CopiedRows { state: nothing(rows.state), ..*rows }).await?;
        self.store.save(&rows.state).await
    }
}
