//! What can be wrong with the messages of a session, or with keeping them.

use std::io;
use std::path::PathBuf;

use crate::pgoutput::DecodeError;
use crate::position::CommitLsn;
use crate::stop::{Reason, Side, Stop};

/// The stream broke its own protocol, or what it brings cannot be kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AssembleError {
    /// The bytes are not a message.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A message that cannot come at this place.
    #[error("{message} {place}")]
    Misplaced {
        /// The message.
        message: &'static str,
        /// What was open.
        place: &'static str,
    },
    /// The transaction's commit is not the one its begin announced.
    #[error("transaction {xid} announced commit LSN {announced} and committed at {committed}")]
    OtherCommit {
        /// Its id.
        xid: u32,
        /// From Begin.
        announced: CommitLsn,
        /// From Commit.
        committed: CommitLsn,
    },
    /// A prepared transaction commits whose content is not sent any more, and was never applied.
    #[error("transaction {xid} committed at {commit}, prepared before the position that the slot has confirmed")]
    PreparedUnknown {
        /// Its id.
        xid: u32,
        /// Its commit.
        commit: CommitLsn,
    },
    /// There is more to keep on disk than is allowed.
    #[error(
        "{assembling} bytes of open transactions are on disk, {size} of transaction {xid}, and {bound} are allowed"
    )]
    SpillFull {
        /// The largest transaction.
        xid: u32,
        /// Bytes of its changes so far.
        size: u64,
        /// The row that is too large by itself, if it is one: its table, and its bytes.
        row: Option<(String, u64)>,
        /// Bytes of all transactions in assembly that are on disk.
        assembling: u64,
        /// The bound of that.
        bound: u64,
    },
    /// A spill file cannot be written.
    #[error("spill file in {}: {error}, with {size} bytes of transaction {xid}", directory.display())]
    Spill {
        /// Where.
        directory: PathBuf,
        /// The largest transaction.
        xid: u32,
        /// Bytes of its changes so far.
        size: u64,
        /// The operating system's error.
        error: io::Error,
    },
    /// A savepoint was rolled back in a transaction that is streamed, behind messages that may have gone with it: the
    /// server does not say. Sent as a whole, it comes without what was rolled back.
    #[error(
        "a savepoint of transaction {xid} was rolled back while it was streamed, and which of its messages went with \
         it is not said: it is asked for as a whole"
    )]
    MessagesInDoubt {
        /// Its id.
        xid: u32,
    },
    /// A spill file cannot be read back.
    #[error("spill file: {0}")]
    SpillRead(io::Error),
}

pub(super) fn misplaced(message: &'static str, place: &'static str) -> AssembleError {
    AssembleError::Misplaced { message, place }
}

impl From<AssembleError> for Stop {
    fn from(error: AssembleError) -> Self {
        match error {
            AssembleError::Spill { directory, xid, size, error } => Reason::LocalFile {
                path: directory.display().to_string(),
                what: format!("{error}, when transaction {xid}, which has {size} bytes of changes so far, was spilled"),
            }
            .into(),
            AssembleError::SpillRead(e) => Reason::LocalFile { path: "spill file".into(), what: e.to_string() }.into(),
            AssembleError::SpillFull { xid, size, row, assembling, bound } => {
                Reason::SpillFull { xid, size, row, assembling, bound }.into()
            }
            in_doubt @ AssembleError::MessagesInDoubt { .. } => {
                Reason::Connection { side: Side::Source, what: in_doubt.to_string() }.into()
            }
            AssembleError::PreparedUnknown { xid, commit } => Reason::DataGap {
                what: format!(
                    "transaction {xid} has committed at {commit}, was prepared before the position that the slot has \
                     confirmed, and has not been applied: the source no longer sends its changes"
                ),
            }
            .into(),
            other => Reason::Protocol { what: other.to_string() }.into(),
        }
    }
}
