//! Writes messages, byte for byte as PostgreSQL does: for tests, and for simulations of programs that embed this crate.
//!
//! ```
//! use pgonce::pgoutput::encode::{TupleBuf, encoded};
//! use pgonce::pgoutput::{Column, Message, decode_message};
//!
//! let row: TupleBuf = [Column::Text(b"42"), Column::Null].into_iter().collect();
//! let insert = Message::Insert { stream_xid: None, relation: 16384, new: row.tuple() };
//! assert_eq!(decode_message(&encoded(&insert), false), Ok(insert));
//! ```

use super::message::{
    ColumnDef, ColumnDefs, LogicalMessageBody, Message, PgTime, RelationBody, RelationIds, TruncateOptions,
};
use super::tuple::{Column, OldTuple, Tuple};
use crate::position::Lsn;

/// The bytes of a message. See [`encode`].
///
/// # Panics
///
/// As [`encode`].
pub fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    encode(message, &mut out);
    out
}

/// Appends the bytes of a message to `out`. A `stream_xid` is written exactly if it is there.
///
/// Fields that the decoder would refuse (a position of `0/0`, unknown flags) are written all the same.
///
/// # Panics
///
/// If a string contains a zero byte, a length or count does not fit its field, or StreamAbort has one of its optional
/// fields without the other.
pub fn encode(message: &Message<'_>, out: &mut Vec<u8>) {
    let w = &mut Writer(out);
    w.u8(message.kind().byte());
    if let Some(xid) = message.stream_xid() {
        w.u32(xid);
    }
    match *message {
        Message::Begin { final_lsn, commit_time, xid } => {
            w.lsn(final_lsn.0);
            w.time(commit_time);
            w.u32(xid);
        }
        Message::Commit { flags, commit, end, commit_time } => w.outcome(flags, commit.0, end.0, commit_time),
        Message::Origin { commit_lsn, name } => {
            w.lsn(commit_lsn);
            w.string(name);
        }
        Message::Relation(RelationBody { stream_xid: _, oid, namespace, name, replica_identity, columns }) => {
            w.u32(oid);
            w.string(namespace);
            w.string(name);
            w.u8(replica_identity.byte());
            w.raw(&columns.count.to_be_bytes());
            w.raw(columns.bytes);
        }
        Message::Type { stream_xid: _, oid, namespace, name } => {
            w.u32(oid);
            w.string(namespace);
            w.string(name);
        }
        Message::Insert { stream_xid: _, relation, new } => {
            w.u32(relation);
            w.tuple(b'N', new);
        }
        Message::Update { stream_xid: _, relation, old, new } => {
            w.u32(relation);
            if let Some(old) = old {
                w.old_tuple(old);
            }
            w.tuple(b'N', new);
        }
        Message::Delete { stream_xid: _, relation, old } => {
            w.u32(relation);
            w.old_tuple(old);
        }
        Message::Truncate { stream_xid: _, options: TruncateOptions { cascade, restart_identity }, relations } => {
            w.length(relations.len());
            w.u8(u8::from(cascade) | u8::from(restart_identity) << 1);
            w.raw(relations.oids.as_flattened());
        }
        Message::LogicalMessage(LogicalMessageBody { stream_xid: _, transactional, lsn, prefix, content }) => {
            w.u8(u8::from(transactional));
            w.lsn(lsn);
            w.string(prefix);
            w.length(content.len());
            w.raw(content);
        }
        Message::StreamStart { xid, first } => {
            w.u32(xid);
            w.u8(u8::from(first));
        }
        Message::StreamStop => {}
        Message::StreamCommit { xid, flags, commit, end, commit_time } => {
            w.u32(xid);
            w.outcome(flags, commit.0, end.0, commit_time);
        }
        Message::StreamAbort { xid, sub_xid, abort_lsn, abort_time } => {
            w.u32(xid);
            w.u32(sub_xid);
            match (abort_lsn, abort_time) {
                (Some(lsn), Some(time)) => {
                    w.lsn(lsn);
                    w.time(time);
                }
                (None, None) => {}
                _ => panic!("StreamAbort has both an abort LSN and an abort time, or neither"),
            }
        }
        Message::BeginPrepare { prepare_lsn, prepare_end_lsn, prepare_time, xid, gid } => {
            w.lsn(prepare_lsn);
            w.lsn(prepare_end_lsn);
            w.time(prepare_time);
            w.prepared(xid, gid);
        }
        Message::Prepare { flags, prepare_lsn, prepare_end_lsn, prepare_time, xid, gid }
        | Message::StreamPrepare { flags, prepare_lsn, prepare_end_lsn, prepare_time, xid, gid } => {
            w.outcome(flags, prepare_lsn, prepare_end_lsn, prepare_time);
            w.prepared(xid, gid);
        }
        Message::CommitPrepared { flags, commit, end, commit_time, xid, gid } => {
            w.outcome(flags, commit.0, end.0, commit_time);
            w.prepared(xid, gid);
        }
        Message::RollbackPrepared {
            flags,
            prepare_end_lsn,
            rollback_end_lsn,
            prepare_time,
            rollback_time,
            xid,
            gid,
        } => {
            w.outcome(flags, prepare_end_lsn, rollback_end_lsn, prepare_time);
            w.time(rollback_time);
            w.prepared(xid, gid);
        }
    }
}

/// The columns of a row, owned.
#[derive(Clone, Default)]
pub struct TupleBuf {
    count: u16,
    bytes: Vec<u8>,
}

impl TupleBuf {
    /// The row, to put into a message.
    pub fn tuple(&self) -> Tuple<'_> {
        Tuple { count: self.count, bytes: &self.bytes }
    }
}

impl<'c> FromIterator<Column<'c>> for TupleBuf {
    fn from_iter<I: IntoIterator<Item = Column<'c>>>(columns: I) -> TupleBuf {
        let mut row = TupleBuf::default();
        for column in columns {
            row.count = one_more(row.count);
            let w = &mut Writer(&mut row.bytes);
            match column {
                Column::Null => w.u8(b'n'),
                Column::Unchanged => w.u8(b'u'),
                Column::Text(value) => w.value(b't', value),
                Column::Binary(value) => w.value(b'b', value),
            }
        }
        row
    }
}

/// The columns of a relation, owned.
#[derive(Clone, Default)]
pub struct ColumnDefsBuf {
    count: u16,
    bytes: Vec<u8>,
}

impl ColumnDefsBuf {
    /// The columns, to put into a message.
    pub fn columns(&self) -> ColumnDefs<'_> {
        ColumnDefs { count: self.count, bytes: &self.bytes }
    }
}

impl<'c> FromIterator<ColumnDef<'c>> for ColumnDefsBuf {
    fn from_iter<I: IntoIterator<Item = ColumnDef<'c>>>(columns: I) -> ColumnDefsBuf {
        let mut buf = ColumnDefsBuf::default();
        for ColumnDef { key, name, type_oid, type_modifier } in columns {
            buf.count = one_more(buf.count);
            let w = &mut Writer(&mut buf.bytes);
            w.u8(u8::from(key));
            w.string(name);
            w.u32(type_oid);
            w.raw(&type_modifier.to_be_bytes());
        }
        buf
    }
}

/// The OIDs of the relations of a TRUNCATE, owned.
#[derive(Clone, Default)]
pub struct RelationIdsBuf {
    oids: Vec<[u8; 4]>,
}

impl RelationIdsBuf {
    /// The OIDs, to put into a message.
    pub fn relations(&self) -> RelationIds<'_> {
        RelationIds { oids: &self.oids }
    }
}

impl FromIterator<u32> for RelationIdsBuf {
    fn from_iter<I: IntoIterator<Item = u32>>(oids: I) -> RelationIdsBuf {
        RelationIdsBuf { oids: oids.into_iter().map(u32::to_be_bytes).collect() }
    }
}

fn one_more(count: u16) -> u16 {
    assert!(count < i16::MAX as u16, "a message has at most 32767 columns");
    count + 1
}

struct Writer<'o>(&'o mut Vec<u8>);

impl Writer<'_> {
    fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn u8(&mut self, byte: u8) {
        self.0.push(byte);
    }

    fn u32(&mut self, number: u32) {
        self.raw(&number.to_be_bytes());
    }

    fn lsn(&mut self, lsn: Lsn) {
        self.raw(&lsn.0.to_be_bytes());
    }

    fn time(&mut self, time: PgTime) {
        self.raw(&time.0.to_be_bytes());
    }

    fn length(&mut self, length: usize) {
        let length = i32::try_from(length).expect("a length fits an Int32");
        self.raw(&length.to_be_bytes());
    }

    fn string(&mut self, string: &str) {
        assert!(!string.contains('\0'), "a string of the protocol contains no zero byte");
        self.raw(string.as_bytes());
        self.u8(0);
    }

    fn value(&mut self, kind: u8, value: &[u8]) {
        self.u8(kind);
        self.length(value.len());
        self.raw(value);
    }

    fn tuple(&mut self, kind: u8, tuple: Tuple<'_>) {
        self.u8(kind);
        self.raw(&tuple.count.to_be_bytes());
        self.raw(tuple.bytes);
    }

    fn old_tuple(&mut self, old: OldTuple<'_>) {
        match old {
            OldTuple::Key(tuple) => self.tuple(b'K', tuple),
            OldTuple::Full(tuple) => self.tuple(b'O', tuple),
        }
    }

    /// What a commit, a prepare and their like have in common.
    fn outcome(&mut self, flags: u8, lsn: Lsn, end: Lsn, time: PgTime) {
        self.u8(flags);
        self.lsn(lsn);
        self.lsn(end);
        self.time(time);
    }

    fn prepared(&mut self, xid: u32, gid: &str) {
        self.u32(xid);
        self.string(gid);
    }
}
