//! The replication connection: what `tokio-postgres` does not speak.

mod feedback;
mod queue;
mod reader_thread;
mod receive;
mod rhythm;
mod session;
mod timeline;

pub(crate) use receive::{Receiver, ReceiverSettings};
pub(crate) use session::{ReplicationSession, StartOptions};
pub use timeline::{TimelineHistory, TimelineHistoryError};

use crate::connect::ConnectionSettings;
use crate::stop::Stop;

/// Opens a replication connection, asks the source for its system identifier, and closes it again. Whether this can
/// be done depends on more than the role's attributes: `pg_hba.conf`, free walsenders, a pooler in between.
///
/// # Errors
///
/// Why it cannot.
pub async fn identify(settings: &ConnectionSettings) -> Result<String, Stop> {
    let mut session = ReplicationSession::open(settings).await?;
    Ok(session.identify_system().await?.identifier)
}
