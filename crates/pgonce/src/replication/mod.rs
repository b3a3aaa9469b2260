//! The replication connection: what `tokio-postgres` does not speak.

mod feedback;
mod queue;
mod receive;
mod session;
mod timeline;

pub(crate) use feedback::Feedback;
pub(crate) use queue::Queue;
pub(crate) use receive::{Receiver, ReceiverSettings};
pub(crate) use session::{CreatedSlot, ReplicationSession, StartOptions};
pub use timeline::{TimelineHistory, TimelineHistoryError};
