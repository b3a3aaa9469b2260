//! PostgreSQL's logical replication messages (`pgoutput`, protocol versions 1 to 4), decoded in place.

mod message;
mod tuple;

pub use message::{
    ColumnDef, ColumnDefIter, ColumnDefs, LogicalMessageBody, Message, MessageKind, PgTime, RelationBody,
    RelationIdIter, RelationIds, ReplicaIdentity, TruncateOptions,
};
pub use tuple::{Column, ColumnIter, OldTuple, Tuple};
