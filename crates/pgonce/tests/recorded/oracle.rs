//! The fields of a message as two decoders see them: ours, and `pg_walstream`'s.

use std::fmt::Write as _;

use pg_walstream::{ColumnData, LogicalReplicationMessage as Theirs, StreamingReplicationMessage, protocol::TupleData};
use pgonce::pgoutput::{Column, Message, OldTuple, Tuple};

/// The fields of a message, in the order of PostgreSQL's documentation, each as text.
pub type Fields = Vec<(String, String)>;

struct List(Fields);

impl List {
    fn new(kind: &str) -> List {
        List(vec![("kind".to_owned(), kind.to_owned())])
    }

    fn with(mut self, name: &str, value: impl ToString) -> List {
        self.0.push((name.to_owned(), value.to_string()));
        self
    }

    fn with_some(self, name: &str, value: Option<impl ToString>) -> List {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    fn columns(mut self, name: &str, columns: impl Iterator<Item = (char, Vec<u8>)>) -> List {
        let before = self.0.len();
        for (number, (kind, value)) in columns.enumerate() {
            self.0.push((format!("{name} column {number}"), format!("{kind} {}", hex(&value))));
        }
        let count = self.0.len() - before;
        self.with(&format!("{name} columns"), count)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn our_columns(tuple: Tuple<'_>) -> impl Iterator<Item = (char, Vec<u8>)> {
    tuple.iter().map(|column| match column {
        Column::Null => ('n', Vec::new()),
        Column::Unchanged => ('u', Vec::new()),
        Column::Text(value) => ('t', value.to_vec()),
        Column::Binary(value) => ('b', value.to_vec()),
    })
}

fn their_columns(tuple: &TupleData) -> impl Iterator<Item = (char, Vec<u8>)> {
    tuple.columns.iter().map(|column: &ColumnData| (column.data_type as char, column.as_bytes().to_vec()))
}

/// What our decoder says.
pub fn ours(message: &Message<'_>) -> Fields {
    let list = List::new(&message.kind().to_string()).with_some("xid of the stream", message.stream_xid());
    match *message {
        Message::Begin { final_lsn, commit_time, xid } => {
            list.with("final LSN", final_lsn.0.0).with("time", commit_time.0).with("xid", xid)
        }
        Message::Commit { flags, commit, end, commit_time } => {
            list.with("flags", flags).with("LSN", commit.0.0).with("end", end.0.0).with("time", commit_time.0)
        }
        Message::Origin { commit_lsn, name } => list.with("LSN", commit_lsn.0).with("name", name),
        Message::Relation(body) => {
            let mut list = list
                .with("OID", body.oid)
                .with("namespace", body.namespace)
                .with("name", body.name)
                .with("identity", char::from(body.replica_identity.byte()))
                .with("columns", body.columns.len());
            for column in body.columns {
                list = list
                    .with("flags", u8::from(column.key))
                    .with("column", column.name)
                    .with("type", column.type_oid)
                    .with("modifier", column.type_modifier);
            }
            list
        }
        Message::Type { stream_xid: _, oid, namespace, name } => {
            list.with("OID", oid).with("namespace", namespace).with("name", name)
        }
        Message::Insert { stream_xid: _, relation, new } => {
            list.with("relation", relation).columns("new", our_columns(new))
        }
        Message::Update { stream_xid: _, relation, old, new } => {
            let list = list.with("relation", relation);
            let list = match old {
                None => list,
                Some(OldTuple::Key(old)) => list.with("old", 'K').columns("old", our_columns(old)),
                Some(OldTuple::Full(old)) => list.with("old", 'O').columns("old", our_columns(old)),
            };
            list.columns("new", our_columns(new))
        }
        Message::Delete { stream_xid: _, relation, old } => {
            let kind = if matches!(old, OldTuple::Key(_)) { 'K' } else { 'O' };
            list.with("relation", relation).with("old", kind).columns("old", our_columns(old.tuple()))
        }
        Message::Truncate { stream_xid: _, options, relations } => {
            let bits = u8::from(options.cascade) + 2 * u8::from(options.restart_identity);
            let list = list.with("options", bits).with("relations", relations.len());
            relations.iter().fold(list, |list, oid| list.with("relation", oid))
        }
        Message::LogicalMessage(body) => list
            .with("flags", u8::from(body.transactional))
            .with("LSN", body.lsn.0)
            .with("prefix", body.prefix)
            .with("content", hex(body.content)),
        Message::StreamStart { xid, first } => list.with("xid", xid).with("first", first),
        Message::StreamStop => list,
        Message::StreamCommit { xid, flags, commit, end, commit_time } => list
            .with("xid", xid)
            .with("flags", flags)
            .with("LSN", commit.0.0)
            .with("end", end.0.0)
            .with("time", commit_time.0),
        Message::StreamAbort { xid, sub_xid, abort_lsn, abort_time } => list
            .with("xid", xid)
            .with("sub xid", sub_xid)
            .with_some("LSN", abort_lsn.map(|lsn| lsn.0))
            .with_some("time", abort_time.map(|time| time.0)),
        Message::BeginPrepare { prepare_lsn, prepare_end_lsn, prepare_time, xid, gid } => list
            .with("LSN", prepare_lsn.0)
            .with("end", prepare_end_lsn.0)
            .with("time", prepare_time.0)
            .with("xid", xid)
            .with("GID", gid),
        Message::Prepare { flags, prepare_lsn, prepare_end_lsn, prepare_time, xid, gid }
        | Message::StreamPrepare { flags, prepare_lsn, prepare_end_lsn, prepare_time, xid, gid } => list
            .with("flags", flags)
            .with("LSN", prepare_lsn.0)
            .with("end", prepare_end_lsn.0)
            .with("time", prepare_time.0)
            .with("xid", xid)
            .with("GID", gid),
        Message::CommitPrepared { flags, commit, end, commit_time, xid, gid } => list
            .with("flags", flags)
            .with("LSN", commit.0.0)
            .with("end", end.0.0)
            .with("time", commit_time.0)
            .with("xid", xid)
            .with("GID", gid),
        Message::RollbackPrepared {
            flags,
            prepare_end_lsn,
            rollback_end_lsn,
            prepare_time,
            rollback_time,
            xid,
            gid,
        } => list
            .with("flags", flags)
            .with("end of the prepare", prepare_end_lsn.0)
            .with("end", rollback_end_lsn.0)
            .with("time of the prepare", prepare_time.0)
            .with("time", rollback_time.0)
            .with("xid", xid)
            .with("GID", gid),
    }
    .0
}

/// What the other decoder says.
pub fn theirs(decoded: &StreamingReplicationMessage) -> Fields {
    let kind = match &decoded.message {
        Theirs::Begin { .. } => "Begin",
        Theirs::Commit { .. } => "Commit",
        Theirs::Relation { .. } => "Relation",
        Theirs::Insert { .. } => "Insert",
        Theirs::Update { .. } => "Update",
        Theirs::Delete { .. } => "Delete",
        Theirs::Truncate { .. } => "Truncate",
        Theirs::Type { .. } => "Type",
        Theirs::Origin { .. } => "Origin",
        Theirs::Message { .. } => "LogicalMessage",
        Theirs::StreamStart { .. } => "StreamStart",
        Theirs::StreamStop => "StreamStop",
        Theirs::StreamCommit { .. } => "StreamCommit",
        Theirs::StreamAbort { .. } => "StreamAbort",
        Theirs::BeginPrepare { .. } => "BeginPrepare",
        Theirs::Prepare { .. } => "Prepare",
        Theirs::CommitPrepared { .. } => "CommitPrepared",
        Theirs::RollbackPrepared { .. } => "RollbackPrepared",
        Theirs::StreamPrepare { .. } => "StreamPrepare",
    };
    // It names the transaction of the block with every message; of these kinds the message itself names one.
    let names_xid =
        matches!(kind, "Relation" | "Type" | "Insert" | "Update" | "Delete" | "Truncate" | "LogicalMessage");
    let list = List::new(kind).with_some("xid of the stream", decoded.xid.filter(|_| names_xid));
    match &decoded.message {
        Theirs::Begin { final_lsn, timestamp, xid } => {
            list.with("final LSN", final_lsn).with("time", timestamp).with("xid", xid)
        }
        Theirs::Commit { flags, commit_lsn, end_lsn, timestamp } => {
            list.with("flags", flags).with("LSN", commit_lsn).with("end", end_lsn).with("time", timestamp)
        }
        Theirs::Origin { origin_lsn, origin_name } => list.with("LSN", origin_lsn).with("name", origin_name),
        Theirs::Relation { relation_id, namespace, relation_name, replica_identity, columns } => {
            let mut list = list
                .with("OID", relation_id)
                .with("namespace", namespace)
                .with("name", relation_name)
                .with("identity", char::from(*replica_identity))
                .with("columns", columns.len());
            for column in columns {
                list = list
                    .with("flags", column.flags)
                    .with("column", &column.name)
                    .with("type", column.type_id)
                    .with("modifier", column.type_modifier);
            }
            list
        }
        Theirs::Type { type_id, namespace, type_name } => {
            list.with("OID", type_id).with("namespace", namespace).with("name", type_name)
        }
        Theirs::Insert { relation_id, tuple } => {
            list.with("relation", relation_id).columns("new", their_columns(tuple))
        }
        Theirs::Update { relation_id, old_tuple, new_tuple, key_type } => {
            let list = list.with("relation", relation_id).with_some("old", *key_type);
            let list = match old_tuple {
                Some(old) => list.columns("old", their_columns(old)),
                None => list,
            };
            list.columns("new", their_columns(new_tuple))
        }
        Theirs::Delete { relation_id, old_tuple, key_type } => {
            list.with("relation", relation_id).with("old", key_type).columns("old", their_columns(old_tuple))
        }
        Theirs::Truncate { relation_ids, flags } => {
            let list = list.with("options", flags).with("relations", relation_ids.len());
            relation_ids.iter().fold(list, |list, oid| list.with("relation", oid))
        }
        Theirs::Message { flags, lsn, prefix, content } => {
            list.with("flags", flags).with("LSN", lsn).with("prefix", prefix).with("content", hex(content))
        }
        Theirs::StreamStart { xid, first_segment } => list.with("xid", xid).with("first", first_segment),
        Theirs::StreamStop => list,
        Theirs::StreamCommit { xid, flags, commit_lsn, end_lsn, timestamp } => list
            .with("xid", xid)
            .with("flags", flags)
            .with("LSN", commit_lsn)
            .with("end", end_lsn)
            .with("time", timestamp),
        Theirs::StreamAbort { xid, subtransaction_xid, abort_lsn, abort_timestamp } => list
            .with("xid", xid)
            .with("sub xid", subtransaction_xid)
            .with_some("LSN", *abort_lsn)
            .with_some("time", *abort_timestamp),
        Theirs::BeginPrepare { prepare_lsn, end_lsn, timestamp, xid, gid } => {
            list.with("LSN", prepare_lsn).with("end", end_lsn).with("time", timestamp).with("xid", xid).with("GID", gid)
        }
        Theirs::Prepare { flags, prepare_lsn: lsn, end_lsn, timestamp, xid, gid }
        | Theirs::StreamPrepare { flags, prepare_lsn: lsn, end_lsn, timestamp, xid, gid }
        | Theirs::CommitPrepared { flags, commit_lsn: lsn, end_lsn, timestamp, xid, gid } => list
            .with("flags", flags)
            .with("LSN", lsn)
            .with("end", end_lsn)
            .with("time", timestamp)
            .with("xid", xid)
            .with("GID", gid),
        Theirs::RollbackPrepared {
            flags,
            prepare_end_lsn,
            rollback_end_lsn,
            prepare_timestamp,
            rollback_timestamp,
            xid,
            gid,
        } => list
            .with("flags", flags)
            .with("end of the prepare", prepare_end_lsn)
            .with("end", rollback_end_lsn)
            .with("time of the prepare", prepare_timestamp)
            .with("time", rollback_timestamp)
            .with("xid", xid)
            .with("GID", gid),
    }
    .0
}
