//! Where and how a target writes.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pgonce::connect::ConnectionSettings;
use tokio::sync::watch;

use crate::schema_copy::SchemaCopy;

use crate::map::TableMap;

/// Where and how a [`PostgresTarget`](crate::PostgresTarget) writes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TargetSettings {
    /// The flow's name, under which its state is stored on the target.
    pub flow: String,
    /// How to connect.
    pub connection: ConnectionSettings,
    /// Whether a commit waits until it is flushed. The default is [`SynchronousCommit::Off`].
    pub durability: SynchronousCommit,
    /// How long the rows of `pgonce.applied` are kept behind the checkpoint. The default is 7 days.
    pub applied_retention: Duration,
    /// Whether and how the target's tables are created. The default is that they exist.
    pub schema_copy: Option<SchemaCopy>,
    /// The database whose sequences are carried over once, when the rows are copied and before the stream. The default
    /// is none.
    pub sequences_from: Option<ConnectionSettings>,
    /// Where it is told what is being done besides copying and streaming, in words.
    pub activity: watch::Sender<String>,
    /// The target's names of tables. It belongs to the flow: stored at the first start, and held against what is
    /// stored at every later one. The default is empty.
    pub map: TableMap,
    /// Where an operator asked to see it: the key of the row that an update or a delete did not hit.
    pub show_key: Option<ShownKey>,
}

/// A place for the key of a row that an update or a delete should have hit: the only way by which values of a row
/// leave.
/// It is for whoever asked for it by name; what is stored, logged or returned as a [`Stop`](pgonce::stop::Stop) never
/// holds it. Clones are the same place. `Debug` does not print it.
#[derive(Clone, Default)]
pub struct ShownKey(Arc<Mutex<Option<String>>>);

impl ShownKey {
    /// Takes the key out, as `id = 5, part = 7`.
    pub fn take(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn keep(&self, key: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(key);
    }
}

impl fmt::Debug for ShownKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShownKey(..)")
    }
}

impl TargetSettings {
    /// The usual settings for a flow.
    pub fn new(flow: impl Into<String>, connection: ConnectionSettings) -> TargetSettings {
        TargetSettings {
            flow: flow.into(),
            connection,
            durability: SynchronousCommit::default(),
            applied_retention: Duration::from_secs(7 * 24 * 60 * 60),
            schema_copy: None,
            sequences_from: None,
            activity: watch::Sender::new(String::new()),
            map: TableMap::default(),
            show_key: None,
        }
    }

    /// Tells what is being done.
    pub(crate) fn tell(&self, doing: &str) {
        self.activity.send_replace(doing.to_owned());
    }
}

/// `synchronous_commit` of the session that applies. Either way nothing is called durable before it is flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SynchronousCommit {
    /// A commit does not wait; it is called durable when the target's flushed log has passed it. Faster.
    #[default]
    Off,
    /// A commit waits until it is flushed and, where the target has synchronous standbys, until they have it.
    On,
}

impl SynchronousCommit {
    pub(crate) fn setting(self) -> &'static str {
        match self {
            SynchronousCommit::Off => "off",
            SynchronousCommit::On => "on",
        }
    }

    pub(crate) fn waits(self) -> bool {
        self == SynchronousCommit::On
    }
}
