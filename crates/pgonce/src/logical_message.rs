//! Messages of `pg_logical_emit_message` that belong to no transaction.

use std::fmt;

use bytes::Bytes;

use crate::pgoutput::LogicalMessageBody;
use crate::position::Lsn;

/// A non-transactional message of `pg_logical_emit_message(false, ...)`: delivered at least once, with its LSN as the
/// key by which a repetition is told. (A transactional one is a [`Change`](crate::transaction::Change) of its
/// transaction.)
///
/// `Debug` shows the length of the content and not the content.
#[derive(Clone, PartialEq, Eq)]
pub struct LogicalMessage {
    /// The end of its record in the source's WAL, as `pg_logical_emit_message` returned it. No two messages share it.
    pub lsn: Lsn,
    /// The prefix, by which programs know their own messages.
    pub prefix: String,
    /// The content, byte for byte.
    pub content: Bytes,
}

impl LogicalMessage {
    /// Bytes that it holds in memory, about.
    pub fn size(&self) -> u64 {
        (self.prefix.len() + self.content.len()) as u64 + 128
    }
}

impl From<LogicalMessageBody<'_>> for LogicalMessage {
    fn from(body: LogicalMessageBody<'_>) -> LogicalMessage {
        LogicalMessage { lsn: body.lsn, prefix: body.prefix.to_owned(), content: Bytes::copy_from_slice(body.content) }
    }
}

impl fmt::Debug for LogicalMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogicalMessage")
            .field("lsn", &self.lsn)
            .field("prefix", &self.prefix)
            .field("content", &format_args!("{} bytes", self.content.len()))
            .finish()
    }
}
