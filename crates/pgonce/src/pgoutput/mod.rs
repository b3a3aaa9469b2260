//! PostgreSQL's logical replication messages (`pgoutput`, protocol versions 1 to 4), decoded in place.
//!
//! A [`Decoder`] turns the payload of one `XLogData` message into a [`Message`] that borrows from it: nothing is
//! allocated and no value is copied. Everything is checked in that one step, so that walking a [`Tuple`] afterwards
//! cannot fail. The layouts are those of [Logical Replication Message Formats][formats].
//!
//! ```
//! use pgonce::pgoutput::{Column, Decoder, Message};
//!
//! let mut decoder = Decoder::new(4);
//! let bytes = b"I\0\0\x40\x00N\0\x02t\0\0\0\x0242n";
//! let Message::Insert { relation, new, .. } = decoder.decode(bytes)? else { panic!("not an Insert") };
//! assert_eq!(relation, 16384);
//! assert_eq!(new.iter().collect::<Vec<_>>(), [Column::Text(b"42"), Column::Null]);
//! # Ok::<(), pgonce::pgoutput::DecodeError>(())
//! ```
//!
//! The decoder refuses what PostgreSQL does not send (unknown flags, a position of `0/0`, a transaction id of 0, bytes
//! behind the end of a message): such bytes mean that the two ends disagree, and guessing on would be worse than
//! stopping. Errors and `Debug` output carry names, counts and offsets, never bytes of a value.
//!
//! [formats]: https://www.postgresql.org/docs/18/protocol-logicalrep-message-formats.html

mod decode;
pub mod encode;
mod error;
mod message;
mod reader;
#[cfg(test)]
mod tests;
mod tuple;

pub use decode::{Decoder, decode_message};
pub use error::DecodeError;
pub use message::{
    ColumnDef, ColumnDefIter, ColumnDefs, LogicalMessageBody, Message, MessageKind, PgTime, RelationBody,
    RelationIdIter, RelationIds, ReplicaIdentity, TruncateOptions,
};
pub use tuple::{Column, ColumnIter, OldTuple, Tuple};
