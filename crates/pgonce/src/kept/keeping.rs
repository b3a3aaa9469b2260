//! The two ways in which the state of a flow is kept for a sink.

use std::future::Future;

use crate::checkpoint_store::CheckpointStore;
use crate::guarantee::{AtLeastOnce, EffectOnce, Mode};
use crate::sink::{AtomicSink, Batch, Record, Sink, SinkError, State};

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
            const NOTHING: &[Record] = &[];
            self.sink.write(&Batch { state: State { records: NOTHING, ..batch.state }, ..*batch }).await?;
        }
        self.store.save(&batch.state).await
    }
}
