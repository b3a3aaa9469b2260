//! The replication connection: what `tokio-postgres` does not speak.

mod feedback;
mod queue;
mod receive;
mod session;
mod timeline;

pub(crate) use receive::{Receiver, ReceiverSettings};
pub(crate) use session::{ReplicationSession, StartOptions};
pub use timeline::{TimelineHistory, TimelineHistoryError};
