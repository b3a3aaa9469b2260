//! Where the state of a flow goes whose sink cannot store it itself.

mod file;
mod postgres;

use std::future::Future;

pub use self::file::FileStore;
pub use self::postgres::PostgresStore;
use crate::sink::{SinkError, State};

/// Keeps the state of flows: written after the sink has persisted, read at the beginning of each session.
pub trait CheckpointStore: Send {
    /// A session of this flow begins: connects, or takes a lock, so that one process at a time writes.
    ///
    /// # Errors
    ///
    /// Why it cannot. [`SinkError::transient`] where it may later.
    fn open(&mut self, flow: &str) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// The bytes that were saved last under this name; `None` if there never were any.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from being certain: *cannot be read* is not *was never there*.
    fn load(
        &mut self,
        flow: &str,
        name: &'static str,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, SinkError>> + Send;

    /// Saves all records or none, durably, and only in the place of the state that [`State::replaces`] names.
    ///
    /// # Errors
    ///
    /// Nothing may be taken for saved. [`SinkError::fenced`] where another process has saved in the meantime.
    fn save(&mut self, state: &State<'_>) -> impl Future<Output = Result<(), SinkError>> + Send;
}
