//! The one loop: from a source to a sink, and the acknowledgement back.

use std::time::Duration;

use crate::position::{Boundary, Checkpoint, Lsn};
use crate::sink::StartMode;
use crate::stop::Stop;

/// How a pipeline runs.
#[derive(Clone, Debug)]
pub struct PipelineOptions {
    /// What an empty checkpoint means. There is no default in the library.
    pub start: StartMode,
    /// Where to end; `None` runs until told to stop.
    pub until: Option<Until>,
    /// Bounds of a group of transactions.
    pub group: GroupLimits,
    /// How often an idle boundary is stored, at most.
    pub idle_interval: Duration,
    /// The longest pause between attempts after a fault that heals by itself.
    pub backoff_max: Duration,
    /// After the signal to stop: how long a write that has begun may go on before it is rolled back.
    pub grace: Duration,
}

impl PipelineOptions {
    /// The usual bounds, with `start` as given.
    pub fn new(start: StartMode) -> PipelineOptions {
        PipelineOptions {
            start,
            until: None,
            group: GroupLimits::default(),
            idle_interval: Duration::from_secs(2),
            backoff_max: Duration::from_secs(10),
            grace: Duration::from_secs(2),
        }
    }
}

/// A stop position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Where the source's write position is when the stream starts.
    Now,
    /// An LSN: everything with `commit_lsn` below it.
    At(Lsn),
}

/// A group is closed when one of these is reached, or when nothing more is waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimits {
    /// Transactions.
    pub transactions: usize,
    /// Bytes of encoded changes.
    pub bytes: u64,
    /// Row changes.
    pub changes: u64,
}

impl Default for GroupLimits {
    fn default() -> Self {
        GroupLimits { transactions: 2_000, bytes: 8 << 20, changes: 20_000 }
    }
}

/// What a pipeline is doing, for whoever watches.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Progress {
    /// What it is doing.
    pub phase: Phase,
    /// The fault that it is waiting out, and for how many attempts it has been.
    pub fault: Option<(Stop, u32)>,
    /// Tables to copy in all.
    pub tables: usize,
    /// Tables copied.
    pub tables_copied: usize,
    /// The table that is being copied.
    pub table: Option<String>,
    /// Rows copied by this process.
    pub rows_copied: u64,
    /// Bytes copied by this process.
    pub bytes_copied: u64,
    /// Transactions applied by this process.
    pub applied: u64,
    /// Transactions that came again and were skipped whole.
    pub redelivered: u64,
    /// Row changes applied by this process.
    pub changes: u64,
    /// The last applied transaction.
    pub checkpoint: Option<Checkpoint>,
    /// The last position that the source reported with nothing open below it.
    pub reported: Option<Boundary>,
    /// The last acknowledged position.
    pub acknowledged: Option<Boundary>,
    /// Until then changes to some tables may be applied while others are still behind: no consistency between tables is claimed.
    pub consistent_from: Option<Boundary>,
    /// Things that the operator should know and that do not stop the flow.
    pub warnings: Vec<String>,
}

/// What a pipeline is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Connecting and checking both ends.
    #[default]
    Connecting,
    /// Copying tables.
    Copying,
    /// Streaming, with tables' boundaries not yet passed.
    CatchingUp,
    /// Streaming.
    Streaming,
    /// Waiting before the next attempt.
    Waiting,
    /// Ending.
    Stopping,
}

/// How a pipeline ended, when it ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// Drained to the stop position.
    Drained(Boundary),
    /// Told to stop.
    Stopped,
}
