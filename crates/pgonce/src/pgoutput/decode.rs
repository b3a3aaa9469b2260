//! From bytes to a [`Message`].

use super::error::{DecodeError, Expected};
use super::message::{
    ColumnDefs, LogicalMessageBody, Message, MessageKind, RelationBody, RelationIds, ReplicaIdentity, TruncateOptions,
};
use super::reader::Reader;
use super::tuple::OldTuple;
use crate::position::{CommitLsn, EndLsn};

/// Decodes the messages of one replication connection, in the order in which they come.
///
/// From protocol version 2 on, a message between StreamStart and StreamStop carries the id of its transaction, and
/// nothing in the message itself says so. The decoder remembers whether such a *stream block* is open; a new connection
/// needs a new decoder.
#[derive(Clone, Debug)]
pub struct Decoder {
    protocol: u8,
    in_stream: bool,
}

impl Decoder {
    /// A decoder for a connection that was started with `proto_version` `protocol`.
    ///
    /// # Panics
    ///
    /// If `protocol` is not 1, 2, 3 or 4.
    pub const fn new(protocol: u8) -> Decoder {
        assert!(matches!(protocol, 1..=4), "pgoutput protocol versions are 1 to 4");
        Decoder { protocol, in_stream: false }
    }

    /// The protocol version of the connection.
    pub const fn protocol(&self) -> u8 {
        self.protocol
    }

    /// Whether the last decoded message left a stream block open: the next one carries a transaction id.
    pub const fn in_stream(&self) -> bool {
        self.in_stream
    }

    /// Decodes one message: the payload of one `XLogData` message, whole.
    ///
    /// Messages of prepared transactions are decoded in every version, because a slot that was made with `two_phase`
    /// sends them whatever version is asked for.
    ///
    /// # Errors
    ///
    /// If the bytes are not exactly one message that the protocol version allows at this place. The decoder stays as it
    /// was.
    #[inline]
    pub fn decode<'a>(&mut self, bytes: &'a [u8]) -> Result<Message<'a>, DecodeError> {
        let message = decode(bytes, self.protocol, self.in_stream)?;
        match message {
            Message::StreamStart { .. } => self.in_stream = true,
            Message::StreamStop => self.in_stream = false,
            _ => {}
        }
        Ok(message)
    }
}

/// Decodes one message of protocol version 4, told whether it lies `in_stream`: behind a StreamStart, before the
/// StreamStop.
///
/// The stateless half of [`Decoder::decode`], for messages that were stored. Of the lower versions only StreamAbort
/// differs, and it says so by its length.
///
/// # Errors
///
/// If the bytes are not exactly one message that is allowed at this place.
#[inline]
pub fn decode_message(bytes: &[u8], in_stream: bool) -> Result<Message<'_>, DecodeError> {
    decode(bytes, 4, in_stream)
}

fn decode(bytes: &[u8], protocol: u8, in_stream: bool) -> Result<Message<'_>, DecodeError> {
    let kind = match bytes.first() {
        Some(&byte) => MessageKind::from_byte(byte),
        None => return Err(first_byte_error(None, Expected::Bytes { needed: 1, left: 0 })),
    };
    let Some(kind) = kind else {
        return Err(first_byte_error(None, Expected::That("a byte that names a kind of message")));
    };
    if let Some(expected) = misplaced(kind, protocol, in_stream) {
        return Err(first_byte_error(Some(kind), Expected::That(expected)));
    }
    let read = &mut Reader::new(kind, bytes);
    let message = match kind {
        MessageKind::Begin => Message::Begin {
            final_lsn: CommitLsn(read.lsn("final LSN")?),
            commit_time: read.time("commit timestamp")?,
            xid: read.xid("transaction id")?,
        },
        MessageKind::Commit => Message::Commit {
            flags: read.no_flags()?,
            commit: CommitLsn(read.lsn("commit LSN")?),
            end: EndLsn(read.lsn("end LSN")?),
            commit_time: read.time("commit timestamp")?,
        },
        MessageKind::Origin => {
            Message::Origin { commit_lsn: read.lsn_or_zero("commit LSN")?, name: read.string("origin name")? }
        }
        MessageKind::Relation => relation(read, in_stream)?,
        MessageKind::Type => Message::Type {
            stream_xid: stream_xid(read, in_stream)?,
            oid: read.u32("type OID")?,
            namespace: read.string("namespace")?,
            name: read.string("type name")?,
        },
        MessageKind::Insert => insert(read, in_stream)?,
        MessageKind::Update => update(read, in_stream)?,
        MessageKind::Delete => delete(read, in_stream)?,
        MessageKind::Truncate => truncate(read, in_stream)?,
        MessageKind::LogicalMessage => Message::LogicalMessage(LogicalMessageBody {
            stream_xid: stream_xid(read, in_stream)?,
            transactional: read.flag("flags")?,
            lsn: read.lsn_or_zero("message LSN")?,
            prefix: read.string("prefix")?,
            content: read.bytes("length of the content", "content")?,
        }),
        MessageKind::StreamStart => {
            Message::StreamStart { xid: read.xid("transaction id")?, first: read.flag("first segment")? }
        }
        MessageKind::StreamStop => Message::StreamStop,
        MessageKind::StreamCommit => Message::StreamCommit {
            xid: read.xid("transaction id")?,
            flags: read.no_flags()?,
            commit: CommitLsn(read.lsn("commit LSN")?),
            end: EndLsn(read.lsn("end LSN")?),
            commit_time: read.time("commit timestamp")?,
        },
        MessageKind::StreamAbort => stream_abort(read, protocol)?,
        MessageKind::BeginPrepare => Message::BeginPrepare {
            prepare_lsn: read.lsn("prepare LSN")?,
            prepare_end_lsn: read.lsn("end LSN")?,
            prepare_time: read.time("prepare timestamp")?,
            xid: read.xid("transaction id")?,
            gid: read.string("GID")?,
        },
        MessageKind::Prepare => Message::Prepare {
            flags: read.no_flags()?,
            prepare_lsn: read.lsn("prepare LSN")?,
            prepare_end_lsn: read.lsn("end LSN")?,
            prepare_time: read.time("prepare timestamp")?,
            xid: read.xid("transaction id")?,
            gid: read.string("GID")?,
        },
        MessageKind::CommitPrepared => Message::CommitPrepared {
            flags: read.no_flags()?,
            commit: CommitLsn(read.lsn("commit LSN")?),
            end: EndLsn(read.lsn("end LSN")?),
            commit_time: read.time("commit timestamp")?,
            xid: read.xid("transaction id")?,
            gid: read.string("GID")?,
        },
        MessageKind::RollbackPrepared => Message::RollbackPrepared {
            flags: read.no_flags()?,
            prepare_end_lsn: read.lsn("end LSN of the prepare")?,
            rollback_end_lsn: read.lsn("end LSN of the rollback")?,
            prepare_time: read.time("prepare timestamp")?,
            rollback_time: read.time("rollback timestamp")?,
            xid: read.xid("transaction id")?,
            gid: read.string("GID")?,
        },
        MessageKind::StreamPrepare => Message::StreamPrepare {
            flags: read.no_flags()?,
            prepare_lsn: read.lsn("prepare LSN")?,
            prepare_end_lsn: read.lsn("end LSN")?,
            prepare_time: read.time("prepare timestamp")?,
            xid: read.xid("transaction id")?,
            gid: read.string("GID")?,
        },
    };
    read.end()?;
    Ok(message)
}

/// What is wrong with a message of this kind at this place, if anything is.
#[inline]
fn misplaced(kind: MessageKind, protocol: u8, in_stream: bool) -> Option<&'static str> {
    use MessageKind as K;
    match kind {
        K::Relation | K::Type | K::Insert | K::Update | K::Delete | K::Truncate | K::LogicalMessage | K::Origin => None,
        K::StreamStart | K::StreamStop | K::StreamCommit | K::StreamAbort | K::StreamPrepare if protocol < 2 => {
            Some("protocol version 2 or later for a message of this kind")
        }
        K::StreamStop if !in_stream => Some("a message of this kind only inside a stream block"),
        K::StreamStop => None,
        _ if in_stream => Some("a message of this kind only outside a stream block"),
        _ => None,
    }
}

#[cold]
fn first_byte_error(kind: Option<MessageKind>, expected: Expected) -> DecodeError {
    DecodeError { kind, part: None, column: None, field: "kind of the message", offset: 0, expected }
}

/// The transaction, or subtransaction, that a message inside a stream block belongs to.
#[inline]
fn stream_xid(read: &mut Reader<'_>, in_stream: bool) -> Result<Option<u32>, DecodeError> {
    if in_stream { read.xid("transaction id of the stream").map(Some) } else { Ok(None) }
}

#[inline]
fn insert<'a>(read: &mut Reader<'a>, in_stream: bool) -> Result<Message<'a>, DecodeError> {
    let stream_xid = stream_xid(read, in_stream)?;
    let relation = read.u32("relation OID")?;
    read.accept("kind of the tuple", Reader::u8, |&byte| byte == b'N', "N")?;
    Ok(Message::Insert { stream_xid, relation, new: read.tuple("new tuple")? })
}

#[inline]
fn update<'a>(read: &mut Reader<'a>, in_stream: bool) -> Result<Message<'a>, DecodeError> {
    let stream_xid = stream_xid(read, in_stream)?;
    let relation = read.u32("relation OID")?;
    let first = read.accept("kind of the tuple", Reader::u8, |byte| matches!(byte, b'K' | b'O' | b'N'), "K, O or N")?;
    let old = if first == b'N' {
        None
    } else {
        let old = old_tuple(read, first)?;
        read.accept("kind of the second tuple", Reader::u8, |&byte| byte == b'N', "N")?;
        Some(old)
    };
    Ok(Message::Update { stream_xid, relation, old, new: read.tuple("new tuple")? })
}

#[inline]
fn delete<'a>(read: &mut Reader<'a>, in_stream: bool) -> Result<Message<'a>, DecodeError> {
    let stream_xid = stream_xid(read, in_stream)?;
    let relation = read.u32("relation OID")?;
    let kind = read.accept("kind of the tuple", Reader::u8, |byte| matches!(byte, b'K' | b'O'), "K or O")?;
    Ok(Message::Delete { stream_xid, relation, old: old_tuple(read, kind)? })
}

#[inline]
fn old_tuple<'a>(read: &mut Reader<'a>, kind: u8) -> Result<OldTuple<'a>, DecodeError> {
    if kind == b'K' { read.tuple("old key").map(OldTuple::Key) } else { read.tuple("old tuple").map(OldTuple::Full) }
}

fn relation<'a>(read: &mut Reader<'a>, in_stream: bool) -> Result<Message<'a>, DecodeError> {
    let stream_xid = stream_xid(read, in_stream)?;
    let oid = read.u32("relation OID")?;
    let namespace = read.string("namespace")?;
    let name = read.string("relation name")?;
    let acceptable = |&byte: &u8| ReplicaIdentity::from_byte(byte).is_some();
    let identity = read.accept("replica identity", Reader::u8, acceptable, "one of d, n, f, i")?;
    let count = read.count("number of columns")?;
    let columns = read.rest();
    for column in 0..count {
        read.column = Some(column);
        read.flag("flags")?;
        read.string("name")?;
        read.u32("type OID")?;
        read.i32("type modifier")?;
    }
    read.column = None;
    let length = columns.len() - read.rest().len();
    Ok(Message::Relation(RelationBody {
        stream_xid,
        oid,
        namespace,
        name,
        replica_identity: ReplicaIdentity::from_byte(identity).unwrap_or(ReplicaIdentity::Default),
        columns: ColumnDefs { count, bytes: columns.get(..length).unwrap_or_default() },
    }))
}

fn truncate<'a>(read: &mut Reader<'a>, in_stream: bool) -> Result<Message<'a>, DecodeError> {
    let stream_xid = stream_xid(read, in_stream)?;
    let acceptable = |&count: &u32| count <= i32::MAX as u32;
    let count = read.accept("number of relations", Reader::u32, acceptable, "a count from 0 to 2147483647")?;
    let options =
        read.accept("options", Reader::u8, |&bits| bits <= 3, "1 (CASCADE), 2 (RESTART IDENTITY), both or 0")?;
    let oids = read.take((count as usize).saturating_mul(4), "relation OIDs")?;
    Ok(Message::Truncate {
        stream_xid,
        options: TruncateOptions { cascade: options & 1 != 0, restart_identity: options & 2 != 0 },
        relations: RelationIds { oids: oids.as_chunks().0 },
    })
}

fn stream_abort<'a>(read: &mut Reader<'a>, protocol: u8) -> Result<Message<'a>, DecodeError> {
    let xid = read.xid("transaction id")?;
    let sub_xid = read.xid("subtransaction id")?;
    // Sent with `streaming 'parallel'` only, of which nothing else in the message speaks.
    let (abort_lsn, abort_time) = if protocol >= 4 && !read.rest().is_empty() {
        (Some(read.lsn_or_zero("abort LSN")?), Some(read.time("abort timestamp")?))
    } else {
        (None, None)
    };
    Ok(Message::StreamAbort { xid, sub_xid, abort_lsn, abort_time })
}
