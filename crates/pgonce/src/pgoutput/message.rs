//! The messages of the protocol, as types that borrow from the bytes they came in.

use std::fmt;

use super::tuple::{OldTuple, Tuple};
use crate::position::{CommitLsn, EndLsn, Lsn};

/// One message of the logical replication protocol, versions 1 to 4.
///
/// `stream_xid` is `Some` exactly if the message came inside a stream block (between StreamStart and StreamStop): the
/// transaction, or subtransaction, that it belongs to.
///
/// `flags` is unused in every version so far and always 0; the decoder refuses anything else, as PostgreSQL's own
/// subscriber does.
///
/// `Debug` shows names, ids and lengths, never values and never the content of a LogicalMessage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// Begin (`B`): a transaction that has committed.
    Begin {
        /// Where the transaction's commit record starts.
        final_lsn: CommitLsn,
        /// When it committed.
        commit_time: PgTime,
        /// Its id.
        xid: u32,
    },
    /// Commit (`C`): the end of the transaction that Begin opened.
    Commit {
        /// Unused: 0.
        flags: u8,
        /// Where the commit record starts: Begin's `final_lsn`.
        commit: CommitLsn,
        /// Just behind the commit record.
        end: EndLsn,
        /// When it committed.
        commit_time: PgTime,
    },
    /// Origin (`O`): the transaction came to the source by replication.
    Origin {
        /// Its commit on that other server; `0/0` inside a stream block, where it is not known yet.
        commit_lsn: Lsn,
        /// The name of the replication origin on the source.
        name: &'a str,
    },
    /// Relation (`R`): a table as its following changes describe it.
    Relation(RelationBody<'a>),
    /// Type (`Y`): the name of a type that is not built in.
    Type {
        /// The transaction, inside a stream block.
        stream_xid: Option<u32>,
        /// The type's OID.
        oid: u32,
        /// Its schema; empty for `pg_catalog`.
        namespace: &'a str,
        /// Its name.
        name: &'a str,
    },
    /// Insert (`I`).
    Insert {
        /// The transaction, inside a stream block.
        stream_xid: Option<u32>,
        /// The OID of the relation.
        relation: u32,
        /// The row.
        new: Tuple<'a>,
    },
    /// Update (`U`).
    Update {
        /// The transaction, inside a stream block.
        stream_xid: Option<u32>,
        /// The OID of the relation.
        relation: u32,
        /// The row before, if the replica identity is `FULL`; its key, if the update changed the key or the key is
        /// TOASTed.
        old: Option<OldTuple<'a>>,
        /// The row after.
        new: Tuple<'a>,
    },
    /// Delete (`D`).
    Delete {
        /// The transaction, inside a stream block.
        stream_xid: Option<u32>,
        /// The OID of the relation.
        relation: u32,
        /// The row, or its key.
        old: OldTuple<'a>,
    },
    /// Truncate (`T`).
    Truncate {
        /// The transaction, inside a stream block.
        stream_xid: Option<u32>,
        /// `CASCADE`, `RESTART IDENTITY`.
        options: TruncateOptions,
        /// The OIDs of the truncated relations.
        relations: RelationIds<'a>,
    },
    /// Message (`M`): what `pg_logical_emit_message` wrote.
    LogicalMessage(LogicalMessageBody<'a>),
    /// Stream Start (`S`): opens a stream block, a part of a transaction that is still in progress.
    StreamStart {
        /// The (top-level) transaction.
        xid: u32,
        /// Whether it is the transaction's first block.
        first: bool,
    },
    /// Stream Stop (`E`): closes the stream block.
    StreamStop,
    /// Stream Commit (`c`): a streamed transaction has committed.
    StreamCommit {
        /// The transaction.
        xid: u32,
        /// Unused: 0.
        flags: u8,
        /// Where the commit record starts.
        commit: CommitLsn,
        /// Just behind the commit record.
        end: EndLsn,
        /// When it committed.
        commit_time: PgTime,
    },
    /// Stream Abort (`A`): a streamed transaction, or a subtransaction of one, was rolled back.
    StreamAbort {
        /// The (top-level) transaction.
        xid: u32,
        /// The subtransaction; equal to `xid` if the whole transaction was rolled back.
        sub_xid: u32,
        /// Where the abort was; only with `streaming 'parallel'` (protocol version 4).
        abort_lsn: Option<Lsn>,
        /// When it was rolled back; `Some` exactly if `abort_lsn` is.
        abort_time: Option<PgTime>,
    },
    /// Begin Prepare (`b`): a transaction that was prepared for a two-phase commit.
    BeginPrepare {
        /// Where the prepare record starts.
        prepare_lsn: Lsn,
        /// Just behind the prepare record.
        prepare_end_lsn: Lsn,
        /// When it was prepared.
        prepare_time: PgTime,
        /// Its id.
        xid: u32,
        /// Its global identifier, as given to `PREPARE TRANSACTION`.
        gid: &'a str,
    },
    /// Prepare (`P`): the end of the transaction that BeginPrepare opened.
    Prepare {
        /// Unused: 0.
        flags: u8,
        /// Where the prepare record starts.
        prepare_lsn: Lsn,
        /// Just behind the prepare record.
        prepare_end_lsn: Lsn,
        /// When it was prepared.
        prepare_time: PgTime,
        /// Its id.
        xid: u32,
        /// Its global identifier.
        gid: &'a str,
    },
    /// Commit Prepared (`K`): a prepared transaction has committed.
    CommitPrepared {
        /// Unused: 0.
        flags: u8,
        /// Where the commit record starts.
        commit: CommitLsn,
        /// Just behind the commit record.
        end: EndLsn,
        /// When it committed.
        commit_time: PgTime,
        /// Its id.
        xid: u32,
        /// Its global identifier.
        gid: &'a str,
    },
    /// Rollback Prepared (`r`): a prepared transaction was rolled back.
    RollbackPrepared {
        /// Unused: 0.
        flags: u8,
        /// Just behind the prepare record.
        prepare_end_lsn: Lsn,
        /// Just behind the rollback record.
        rollback_end_lsn: Lsn,
        /// When it was prepared.
        prepare_time: PgTime,
        /// When it was rolled back.
        rollback_time: PgTime,
        /// Its id.
        xid: u32,
        /// Its global identifier.
        gid: &'a str,
    },
    /// Stream Prepare (`p`): a streamed transaction was prepared for a two-phase commit.
    StreamPrepare {
        /// Unused: 0.
        flags: u8,
        /// Where the prepare record starts.
        prepare_lsn: Lsn,
        /// Just behind the prepare record.
        prepare_end_lsn: Lsn,
        /// When it was prepared.
        prepare_time: PgTime,
        /// Its id.
        xid: u32,
        /// Its global identifier.
        gid: &'a str,
    },
}

impl<'a> Message<'a> {
    /// Which message this is.
    pub fn kind(&self) -> MessageKind {
        match self {
            Message::Begin { .. } => MessageKind::Begin,
            Message::Commit { .. } => MessageKind::Commit,
            Message::Origin { .. } => MessageKind::Origin,
            Message::Relation(_) => MessageKind::Relation,
            Message::Type { .. } => MessageKind::Type,
            Message::Insert { .. } => MessageKind::Insert,
            Message::Update { .. } => MessageKind::Update,
            Message::Delete { .. } => MessageKind::Delete,
            Message::Truncate { .. } => MessageKind::Truncate,
            Message::LogicalMessage(_) => MessageKind::LogicalMessage,
            Message::StreamStart { .. } => MessageKind::StreamStart,
            Message::StreamStop => MessageKind::StreamStop,
            Message::StreamCommit { .. } => MessageKind::StreamCommit,
            Message::StreamAbort { .. } => MessageKind::StreamAbort,
            Message::BeginPrepare { .. } => MessageKind::BeginPrepare,
            Message::Prepare { .. } => MessageKind::Prepare,
            Message::CommitPrepared { .. } => MessageKind::CommitPrepared,
            Message::RollbackPrepared { .. } => MessageKind::RollbackPrepared,
            Message::StreamPrepare { .. } => MessageKind::StreamPrepare,
        }
    }

    /// The transaction, or subtransaction, that a message inside a stream block carries; `None` outside one, and for
    /// the kinds that carry none there.
    #[inline]
    pub fn stream_xid(&self) -> Option<u32> {
        match *self {
            Message::Relation(RelationBody { stream_xid, .. })
            | Message::LogicalMessage(LogicalMessageBody { stream_xid, .. })
            | Message::Type { stream_xid, .. }
            | Message::Insert { stream_xid, .. }
            | Message::Update { stream_xid, .. }
            | Message::Delete { stream_xid, .. }
            | Message::Truncate { stream_xid, .. } => stream_xid,
            _ => None,
        }
    }
}

macro_rules! kinds {
    ($($kind:ident = $byte:literal),* $(,)?) => {
        /// The kinds of message, each with the byte that a message of the kind starts with.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        #[expect(missing_docs, reason = "each is documented as the variant of `Message` of the same name")]
        pub enum MessageKind {
            $($kind = $byte),*
        }

        impl MessageKind {
            /// The kind that a message starting with `byte` is of.
            #[inline]
            pub const fn from_byte(byte: u8) -> Option<MessageKind> {
                match byte {
                    $($byte => Some(MessageKind::$kind),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    Begin = b'B',
    Commit = b'C',
    Origin = b'O',
    Relation = b'R',
    Type = b'Y',
    Insert = b'I',
    Update = b'U',
    Delete = b'D',
    Truncate = b'T',
    LogicalMessage = b'M',
    StreamStart = b'S',
    StreamStop = b'E',
    StreamCommit = b'c',
    StreamAbort = b'A',
    BeginPrepare = b'b',
    Prepare = b'P',
    CommitPrepared = b'K',
    RollbackPrepared = b'r',
    StreamPrepare = b'p',
}

impl MessageKind {
    /// The first byte of a message of this kind.
    #[inline]
    pub const fn byte(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for MessageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A point in time as PostgreSQL counts it (`TimestampTz`): microseconds since 2000-01-01 00:00 UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PgTime(pub i64);

impl PgTime {
    /// Microseconds since 1970-01-01 00:00 UTC; at the far end of the range the largest there are.
    pub const fn unix_micros(self) -> i64 {
        const SECONDS_BETWEEN_EPOCHS: i64 = 946_684_800;
        self.0.saturating_add(SECONDS_BETWEEN_EPOCHS * 1_000_000)
    }
}

/// What a Relation message (`R`) says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RelationBody<'a> {
    /// The transaction, inside a stream block.
    pub stream_xid: Option<u32>,
    /// The relation's OID.
    pub oid: u32,
    /// Its schema as sent: empty for `pg_catalog`. See [`RelationBody::schema`].
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// What identifies a row in updates and deletes.
    pub replica_identity: ReplicaIdentity,
    /// The published columns, in the order of every [`Tuple`] of the relation.
    pub columns: ColumnDefs<'a>,
}

impl<'a> RelationBody<'a> {
    /// The name of the relation's schema.
    pub fn schema(&self) -> &'a str {
        if self.namespace.is_empty() { "pg_catalog" } else { self.namespace }
    }
}

/// The replica identity of a relation (`relreplident` in `pg_class`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum ReplicaIdentity {
    /// The primary key, if there is one (`d`).
    Default = b'd',
    /// Nothing (`n`).
    Nothing = b'n',
    /// All columns (`f`).
    Full = b'f',
    /// A chosen unique index (`i`).
    Index = b'i',
}

impl ReplicaIdentity {
    /// The identity that the byte stands for.
    pub const fn from_byte(byte: u8) -> Option<ReplicaIdentity> {
        match byte {
            b'd' => Some(ReplicaIdentity::Default),
            b'n' => Some(ReplicaIdentity::Nothing),
            b'f' => Some(ReplicaIdentity::Full),
            b'i' => Some(ReplicaIdentity::Index),
            _ => None,
        }
    }

    /// The byte that stands for the identity.
    pub const fn byte(self) -> u8 {
        self as u8
    }
}

/// One column of a relation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ColumnDef<'a> {
    /// Whether the column is part of the replica identity.
    pub key: bool,
    /// Its name.
    pub name: &'a str,
    /// The OID of its type.
    pub type_oid: u32,
    /// The type's modifier (`atttypmod`); -1 for none.
    pub type_modifier: i32,
}

/// The columns of a relation: a borrowed run, checked when the message was decoded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ColumnDefs<'a> {
    pub(super) count: u16,
    /// Invariant: exactly `count` whole columns.
    pub(super) bytes: &'a [u8],
}

impl<'a> ColumnDefs<'a> {
    /// The number of columns.
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether the relation publishes no columns.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The columns, in order.
    pub fn iter(&self) -> ColumnDefIter<'a> {
        ColumnDefIter { left: self.count, bytes: self.bytes }
    }
}

impl<'a> IntoIterator for ColumnDefs<'a> {
    type Item = ColumnDef<'a>;
    type IntoIter = ColumnDefIter<'a>;

    fn into_iter(self) -> ColumnDefIter<'a> {
        self.iter()
    }
}

impl fmt::Debug for ColumnDefs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The columns of [`ColumnDefs`], one after the other.
#[derive(Clone)]
pub struct ColumnDefIter<'a> {
    left: u16,
    bytes: &'a [u8],
}

impl<'a> Iterator for ColumnDefIter<'a> {
    type Item = ColumnDef<'a>;

    fn next(&mut self) -> Option<ColumnDef<'a>> {
        let (&flags, rest) = self.bytes.split_first()?;
        let (name, rest) = rest.split_at_checked(rest.iter().position(|&byte| byte == 0)?)?;
        let (_, rest) = rest.split_first()?;
        let (type_oid, rest) = rest.split_first_chunk()?;
        let (type_modifier, rest) = rest.split_first_chunk()?;
        self.bytes = rest;
        self.left = self.left.saturating_sub(1);
        Some(ColumnDef {
            key: flags & 1 != 0,
            name: std::str::from_utf8(name).ok()?,
            type_oid: u32::from_be_bytes(*type_oid),
            type_modifier: i32::from_be_bytes(*type_modifier),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.left), Some(usize::from(self.left)))
    }
}

impl ExactSizeIterator for ColumnDefIter<'_> {}

impl std::iter::FusedIterator for ColumnDefIter<'_> {}

/// The options of a TRUNCATE.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TruncateOptions {
    /// `CASCADE` (bit 1).
    pub cascade: bool,
    /// `RESTART IDENTITY` (bit 2).
    pub restart_identity: bool,
}

/// The OIDs of the relations that a TRUNCATE names, borrowed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RelationIds<'a> {
    pub(super) oids: &'a [[u8; 4]],
}

impl<'a> RelationIds<'a> {
    /// The number of relations.
    pub fn len(&self) -> usize {
        self.oids.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.oids.is_empty()
    }

    /// The OIDs, in order.
    pub fn iter(&self) -> RelationIdIter<'a> {
        RelationIdIter { oids: self.oids.iter() }
    }
}

impl<'a> IntoIterator for RelationIds<'a> {
    type Item = u32;
    type IntoIter = RelationIdIter<'a>;

    fn into_iter(self) -> RelationIdIter<'a> {
        self.iter()
    }
}

impl fmt::Debug for RelationIds<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The OIDs of [`RelationIds`], one after the other.
#[derive(Clone)]
pub struct RelationIdIter<'a> {
    oids: std::slice::Iter<'a, [u8; 4]>,
}

impl Iterator for RelationIdIter<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        self.oids.next().map(|oid| u32::from_be_bytes(*oid))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.oids.size_hint()
    }
}

impl ExactSizeIterator for RelationIdIter<'_> {}

impl std::iter::FusedIterator for RelationIdIter<'_> {}

/// What a Message message (`M`) says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LogicalMessageBody<'a> {
    /// The transaction, inside a stream block.
    pub stream_xid: Option<u32>,
    /// Whether the message belongs to its transaction; if not, it comes at once, outside any transaction.
    pub transactional: bool,
    /// Where the message is in the source's WAL.
    pub lsn: Lsn,
    /// The prefix, by which programs know their own messages.
    pub prefix: &'a str,
    /// The content.
    pub content: &'a [u8],
}

impl fmt::Debug for LogicalMessageBody<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogicalMessageBody")
            .field("stream_xid", &self.stream_xid)
            .field("transactional", &self.transactional)
            .field("lsn", &self.lsn)
            .field("prefix", &self.prefix)
            .field("content", &format_args!("{} bytes", self.content.len()))
            .finish()
    }
}
