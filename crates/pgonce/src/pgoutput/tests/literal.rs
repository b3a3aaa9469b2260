//! Each kind of message as literal bytes, written from the protocol page; each kind of refusal with its words.

use super::super::encode::{ColumnDefsBuf, RelationIdsBuf, TupleBuf, encoded};
use super::super::*;
use crate::position::{CommitLsn, EndLsn, Lsn};

const LSN_1: &[u8] = b"\0\0\0\x16\xB3\x74\xD8\x48";
const LSN_2: &[u8] = b"\0\0\0\x16\xB3\x74\xD8\x78";
const TIME_1: &[u8] = b"\0\x02\xDC\x6C\x0A\x5F\x81\x23";
const TIME_2: &[u8] = b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF";
const XID: &[u8] = b"\0\0\x02\xF1";

const LSN_OF_1: Lsn = Lsn(0x16_B374_D848);
const LSN_OF_2: Lsn = Lsn(0x16_B374_D878);
const TIME_OF_1: PgTime = PgTime(0x0002_DC6C_0A5F_8123);
const TIME_OF_2: PgTime = PgTime(-1);

/// The parts decode to `expected`, in and only in the right place, and `expected` encodes to the parts.
#[track_caller]
fn assert_message(parts: &[&[u8]], in_stream: bool, expected: Message<'_>) {
    let bytes = parts.concat();
    assert_eq!(decode_message(&bytes, in_stream), Ok(expected));
    assert_eq!(encoded(&expected), bytes);
    let with_more = [&bytes[..], b"\0"].concat();
    assert!(decode_message(&with_more, in_stream).is_err(), "a byte behind the end is refused");
}

#[track_caller]
fn assert_refused(bytes: &[u8], in_stream: bool, words: &str) {
    assert_eq!(decode_message(bytes, in_stream).unwrap_err().to_string(), words);
}

#[test]
fn begin() {
    let expected = Message::Begin { final_lsn: CommitLsn(LSN_OF_1), commit_time: TIME_OF_1, xid: 753 };
    assert_message(&[b"B", LSN_1, TIME_1, XID], false, expected);
}

#[test]
fn commit() {
    let (commit, end) = (CommitLsn(LSN_OF_1), EndLsn(LSN_OF_2));
    let expected = Message::Commit { flags: 0, commit, end, commit_time: TIME_OF_1 };
    assert_message(&[b"C\0", LSN_1, LSN_2, TIME_1], false, expected);
}

#[test]
fn origin() {
    let expected = Message::Origin { commit_lsn: LSN_OF_1, name: "östlich" };
    assert_message(&[b"O", LSN_1, "östlich\0".as_bytes()], false, expected);
    let unknown_yet = Message::Origin { commit_lsn: Lsn::ZERO, name: "" };
    assert_message(&[b"O\0\0\0\0\0\0\0\0\0"], true, unknown_yet);
}

#[test]
fn relation() {
    let columns: ColumnDefsBuf = [
        ColumnDef { key: true, name: "id", type_oid: 20, type_modifier: -1 },
        ColumnDef { key: false, name: "price", type_oid: 1700, type_modifier: 0x000A_0006 },
    ]
    .into_iter()
    .collect();
    let mut expected = RelationBody {
        stream_xid: None,
        oid: 16384,
        namespace: "public",
        name: "item",
        replica_identity: ReplicaIdentity::Default,
        columns: columns.columns(),
    };
    let column_bytes = b"\0\x02\x01id\0\0\0\0\x14\xFF\xFF\xFF\xFF\0price\0\0\0\x06\xA4\0\x0A\0\x06";
    assert_message(&[b"R\0\0\x40\0public\0item\0d", column_bytes], false, Message::Relation(expected));
    assert_eq!(expected.schema(), "public");
    assert_eq!(expected.columns.len(), 2);
    assert_eq!(expected.columns.iter().map(|column| column.name).collect::<Vec<_>>(), ["id", "price"]);

    expected.stream_xid = Some(753);
    expected.namespace = "";
    for (byte, identity) in
        [(b"n", ReplicaIdentity::Nothing), (b"f", ReplicaIdentity::Full), (b"i", ReplicaIdentity::Index)]
    {
        expected.replica_identity = identity;
        let parts: &[&[u8]] = &[b"R", XID, b"\0\0\x40\0\0item\0", byte, column_bytes];
        assert_message(parts, true, Message::Relation(expected));
    }
    assert_eq!(expected.schema(), "pg_catalog");
}

#[test]
fn type_name() {
    let named = |stream_xid| Message::Type { stream_xid, oid: 16385, namespace: "public", name: "mood" };
    assert_message(&[b"Y\0\0\x40\x01public\0mood\0"], false, named(None));
    assert_message(&[b"Y", XID, b"\0\0\x40\x01public\0mood\0"], true, named(Some(753)));
}

#[test]
fn insert() {
    let columns = [Column::Text(b"42"), Column::Null, Column::Unchanged, Column::Binary(b"\0\xFF"), Column::Text(b"")];
    let row: TupleBuf = columns.into_iter().collect();
    let row_bytes = b"N\0\x05t\0\0\0\x0242nub\0\0\0\x02\0\xFFt\0\0\0\0";
    let inserted = |stream_xid| Message::Insert { stream_xid, relation: 16384, new: row.tuple() };
    assert_message(&[b"I\0\0\x40\0", row_bytes], false, inserted(None));
    assert_message(&[b"I", XID, b"\0\0\x40\0", row_bytes], true, inserted(Some(753)));
    assert_eq!(row.tuple().len(), 5);
    assert_eq!(row.tuple().iter().len(), 5);
    assert_eq!(row.tuple().iter().collect::<Vec<_>>(), columns);

    let empty = TupleBuf::default();
    let nothing = Message::Insert { stream_xid: None, relation: 16384, new: empty.tuple() };
    assert_message(&[b"I\0\0\x40\0N\0\0"], false, nothing);
    assert!(empty.tuple().is_empty());
}

#[test]
fn update() {
    let old: TupleBuf = [Column::Text(b"1"), Column::Null].into_iter().collect();
    let new: TupleBuf = [Column::Text(b"2"), Column::Unchanged].into_iter().collect();
    let (old_bytes, new_bytes) = (b"\0\x02t\0\0\0\x011n", b"N\0\x02t\0\0\0\x012u");
    let updated = |stream_xid, old| Message::Update { stream_xid, relation: 16384, old, new: new.tuple() };
    let (key, full) = (OldTuple::Key(old.tuple()), OldTuple::Full(old.tuple()));
    assert_message(&[b"U\0\0\x40\0", new_bytes], false, updated(None, None));
    assert_message(&[b"U\0\0\x40\0K", old_bytes, new_bytes], false, updated(None, Some(key)));
    assert_message(&[b"U", XID, b"\0\0\x40\0O", old_bytes, new_bytes], true, updated(Some(753), Some(full)));
    assert_eq!(key.tuple(), full.tuple());
}

/// With the option `binary` the server sends a type in binary format where it has one, and all others as text, in one
/// row. A value is never looked into: it may hold what opens another column.
#[test]
fn binary_columns() {
    let key = Column::Binary(b"\0\0\0\x07");
    let mixed = [key, Column::Binary(b""), Column::Binary(b"t\0\0\0\x01nub"), Column::Text(b"ok"), Column::Null];
    let bytes = b"\0\x05b\0\0\0\x04\0\0\0\x07b\0\0\0\0b\0\0\0\x08t\0\0\0\x01nubt\0\0\0\x02okn";
    let row: TupleBuf = mixed.into_iter().collect();
    assert_eq!(row.tuple().iter().collect::<Vec<_>>(), mixed);
    let (key, full) = (OldTuple::Key(row.tuple()), OldTuple::Full(row.tuple()));
    let updated = |old| Message::Update { stream_xid: None, relation: 16384, old, new: row.tuple() };
    assert_message(
        &[b"I\0\0\x40\0N", bytes],
        false,
        Message::Insert { stream_xid: None, relation: 16384, new: row.tuple() },
    );
    assert_message(&[b"U\0\0\x40\0N", bytes], false, updated(None));
    assert_message(&[b"U\0\0\x40\0K", bytes, b"N", bytes], false, updated(Some(key)));
    assert_message(&[b"U\0\0\x40\0O", bytes, b"N", bytes], false, updated(Some(full)));
    for (tag, old) in [(b"K", key), (b"O", full)] {
        let deleted = Message::Delete { stream_xid: None, relation: 16384, old };
        assert_message(&[b"D\0\0\x40\0", tag, bytes], false, deleted);
    }
    // The same bytes as text are another row.
    let text: TupleBuf = [Column::Text(b"7")].into_iter().collect();
    let binary: TupleBuf = [Column::Binary(b"7")].into_iter().collect();
    assert_ne!(text.tuple(), binary.tuple());
}

#[test]
fn delete() {
    let old: TupleBuf = [Column::Text(b"1"), Column::Null].into_iter().collect();
    let old_bytes = b"\0\x02t\0\0\0\x011n";
    let deleted = |stream_xid, old| Message::Delete { stream_xid, relation: 16384, old };
    assert_message(&[b"D\0\0\x40\0K", old_bytes], false, deleted(None, OldTuple::Key(old.tuple())));
    assert_message(&[b"D", XID, b"\0\0\x40\0O", old_bytes], true, deleted(Some(753), OldTuple::Full(old.tuple())));
}

#[test]
fn truncate() {
    let ids: RelationIdsBuf = [16384, 16390].into_iter().collect();
    for (byte, cascade, restart_identity) in [(0, false, false), (1, true, false), (2, false, true), (3, true, true)] {
        let options = TruncateOptions { cascade, restart_identity };
        let truncated = |stream_xid| Message::Truncate { stream_xid, options, relations: ids.relations() };
        assert_message(&[b"T\0\0\0\x02", &[byte], b"\0\0\x40\0\0\0\x40\x06"], false, truncated(None));
        assert_message(&[b"T", XID, b"\0\0\0\x02", &[byte], b"\0\0\x40\0\0\0\x40\x06"], true, truncated(Some(753)));
    }
    assert_eq!(ids.relations().iter().collect::<Vec<_>>(), [16384, 16390]);
}

#[test]
fn logical_message() {
    let said = |stream_xid, transactional, content| {
        let lsn = LSN_OF_1;
        Message::LogicalMessage(LogicalMessageBody { stream_xid, transactional, lsn, prefix: "outbox", content })
    };
    let content: &[u8] = b"\0any\xFF";
    assert_message(&[b"M\x01", LSN_1, b"outbox\0\0\0\0\x05\0any\xFF"], false, said(None, true, content));
    assert_message(&[b"M\0", LSN_1, b"outbox\0\0\0\0\0"], false, said(None, false, b""));
    assert_message(&[b"M", XID, b"\x01", LSN_1, b"outbox\0\0\0\0\x05\0any\xFF"], true, said(Some(753), true, content));
}

#[test]
fn stream_block() {
    assert_message(&[b"S", XID, b"\x01"], false, Message::StreamStart { xid: 753, first: true });
    assert_message(&[b"S", XID, b"\0"], false, Message::StreamStart { xid: 753, first: false });
    assert_message(&[b"E"], true, Message::StreamStop);
}

#[test]
fn stream_commit() {
    let (commit, end) = (CommitLsn(LSN_OF_1), EndLsn(LSN_OF_2));
    let expected = Message::StreamCommit { xid: 753, flags: 0, commit, end, commit_time: TIME_OF_1 };
    assert_message(&[b"c", XID, b"\0", LSN_1, LSN_2, TIME_1], false, expected);
}

#[test]
fn stream_abort() {
    let aborted = |abort_lsn, abort_time| Message::StreamAbort { xid: 753, sub_xid: 754, abort_lsn, abort_time };
    let plain: &[&[u8]] = &[b"A", XID, b"\0\0\x02\xF2"];
    let parallel: &[&[u8]] = &[b"A", XID, b"\0\0\x02\xF2", LSN_1, TIME_1];
    assert_message(plain, false, aborted(None, None));
    assert_message(parallel, false, aborted(Some(LSN_OF_1), Some(TIME_OF_1)));

    for protocol in 2..=4 {
        assert_eq!(Decoder::new(protocol).decode(&plain.concat()), Ok(aborted(None, None)));
    }
    let refused = Decoder::new(3).decode(&parallel.concat()).unwrap_err().to_string();
    assert_eq!(refused, "pgoutput StreamAbort message: end at byte 9: expected the end of the message, 16 bytes left");
}

#[test]
fn prepared() {
    let (flags, xid, gid) = (0, 753, "order 7");
    let (prepare_lsn, prepare_end_lsn, prepare_time) = (LSN_OF_1, LSN_OF_2, TIME_OF_1);
    let tail: &[u8] = b"\0\0\x02\xF1order 7\0";
    let begin = Message::BeginPrepare { prepare_lsn, prepare_end_lsn, prepare_time, xid, gid };
    assert_message(&[b"b", LSN_1, LSN_2, TIME_1, tail], false, begin);
    let prepare = Message::Prepare { flags, prepare_lsn, prepare_end_lsn, prepare_time, xid, gid };
    assert_message(&[b"P\0", LSN_1, LSN_2, TIME_1, tail], false, prepare);
    let streamed = Message::StreamPrepare { flags, prepare_lsn, prepare_end_lsn, prepare_time, xid, gid };
    assert_message(&[b"p\0", LSN_1, LSN_2, TIME_1, tail], false, streamed);

    let (commit, end) = (CommitLsn(LSN_OF_1), EndLsn(LSN_OF_2));
    let committed = Message::CommitPrepared { flags, commit, end, commit_time: TIME_OF_1, xid, gid };
    assert_message(&[b"K\0", LSN_1, LSN_2, TIME_1, tail], false, committed);

    let (prepare_end_lsn, rollback_end_lsn, rollback_time) = (LSN_OF_1, LSN_OF_2, TIME_OF_2);
    let rolled_back =
        Message::RollbackPrepared { flags, prepare_end_lsn, rollback_end_lsn, prepare_time, rollback_time, xid, gid };
    assert_message(&[b"r\0", LSN_1, LSN_2, TIME_1, TIME_2, tail], false, rolled_back);
}

#[test]
fn decoder_remembers_the_stream_block() {
    let mut decoder = Decoder::new(2);
    let plain = b"I\0\0\x40\0N\0\0";
    let streamed = b"I\0\0\x02\xF1\0\0\x40\0N\0\0";
    assert_eq!(decoder.decode(plain).unwrap().stream_xid(), None);
    assert!(decoder.decode(streamed).is_err());
    decoder.decode(b"S\0\0\x02\xF1\x01").unwrap();
    assert!(decoder.in_stream());
    assert_eq!(decoder.decode(streamed).unwrap().stream_xid(), Some(753));
    assert!(decoder.decode(plain).is_err());
    assert!(decoder.in_stream(), "a refusal changes nothing");
    decoder.decode(b"E").unwrap();
    assert!(!decoder.in_stream());
    assert_eq!(decoder.decode(plain).unwrap().stream_xid(), None);
}

#[test]
fn refusals_of_place_and_kind() {
    assert_refused(b"", false, "pgoutput message: kind of the message at byte 0: expected 1 bytes, 0 left");
    let unknown = "pgoutput message: kind of the message at byte 0: expected a byte that names a kind of message";
    assert_refused(b"Z", false, unknown);
    let outside = "kind of the message at byte 0: expected a message of this kind only outside a stream block";
    for byte in b"BCScAbPKrp" {
        let error = decode_message(&[*byte], true).unwrap_err();
        assert_eq!(error.kind(), MessageKind::from_byte(*byte));
        assert!(error.to_string().ends_with(outside), "{error}");
    }
    let inside = "kind of the message at byte 0: expected a message of this kind only inside a stream block";
    assert_refused(b"E", false, &format!("pgoutput StreamStop message: {inside}"));
    for byte in b"SEcAp" {
        let error = Decoder::new(1).decode(&[*byte]).unwrap_err().to_string();
        assert!(error.ends_with("expected protocol version 2 or later for a message of this kind"), "{error}");
    }
    // A slot that was made with two_phase sends these whatever protocol version is asked for.
    let begin_prepare = [b"b", LSN_1, LSN_2, TIME_1, XID, b"gid\0"].concat();
    assert_eq!(Decoder::new(1).decode(&begin_prepare).unwrap().kind(), MessageKind::BeginPrepare);
}

#[test]
fn refusals_of_fields() {
    let refused = [
        (&b"I\0\0"[..], "Insert message: relation OID at byte 1: expected 4 bytes, 2 left"),
        (b"I\0\0\x40\0K", "Insert message: kind of the tuple at byte 5: expected N"),
        (b"U\0\0\x40\0X", "Update message: kind of the tuple at byte 5: expected K, O or N"),
        (b"U\0\0\x40\0K\0\0K", "Update message: kind of the second tuple at byte 8: expected N"),
        (b"D\0\0\x40\0N", "Delete message: kind of the tuple at byte 5: expected K or O"),
        (b"I\0\0\x40\0N\0", "Insert message: new tuple, number of columns at byte 6: expected 2 bytes, 1 left"),
        (
            b"I\0\0\x40\0N\xFF\xFF",
            "Insert message: new tuple, number of columns at byte 6: expected a count from 0 to 32767",
        ),
        (
            b"I\0\0\x40\0N\0\x02n",
            "Insert message: new tuple, column 2, kind of the value at byte 9: expected 1 bytes, 0 left",
        ),
        (
            b"I\0\0\x40\0N\0\x01x",
            "Insert message: new tuple, column 1, kind of the value at byte 8: expected one of n, u, t, b",
        ),
        (
            b"I\0\0\x40\0N\0\x01t\0\0",
            "Insert message: new tuple, column 1, length of the value at byte 9: expected 4 bytes, 2 left",
        ),
        (
            b"D\0\0\x40\0K\0\x01b\0\0\0\x03xy",
            "Delete message: old key, column 1, value at byte 13: expected 3 bytes, 2 left",
        ),
        (
            b"D\0\0\x40\0O\0\x01t\xFF\xFF\xFF\xFFxy",
            "Delete message: old tuple, column 1, length of the value at byte 9: \
             expected a length from 0 to 2147483647",
        ),
        (b"I\0\0\x40\0N\0\x01nn", "Insert message: end at byte 9: expected the end of the message, 1 bytes left"),
        (b"R\0\0\x40\0public", "Relation message: namespace at byte 5: expected a string that ends with a zero byte"),
        (b"R\0\0\x40\0\0\xFF\0", "Relation message: relation name at byte 6: expected UTF-8"),
        (b"R\0\0\x40\0\0a\0x", "Relation message: replica identity at byte 8: expected one of d, n, f, i"),
        (b"R\0\0\x40\0\0a\0d\0\x01\x02", "Relation message: column 1, flags at byte 11: expected 0 or 1"),
        (
            b"R\0\0\x40\0\0a\0d\0\x01\x01b\0\0",
            "Relation message: column 1, type OID at byte 14: expected 4 bytes, 1 left",
        ),
        (
            b"R\0\0\x40\0\0a\0d\0\0\x01",
            "Relation message: end at byte 11: expected the end of the message, 1 bytes left",
        ),
        (b"T\x40\0\0\0\0\0\0", "Truncate message: relation OIDs at byte 6: expected 4294967296 bytes, 2 left"),
        (
            b"T\xFF\xFF\xFF\xFF\0",
            "Truncate message: number of relations at byte 1: expected a count from 0 to 2147483647",
        ),
        (
            b"T\0\0\0\0\x04",
            "Truncate message: options at byte 5: expected 1 (CASCADE), 2 (RESTART IDENTITY), both or 0",
        ),
        (b"M\x02", "LogicalMessage message: flags at byte 1: expected 0 or 1"),
        (
            b"M\0\0\0\0\0\0\0\0\0p\0\x7F\xFF\xFF\xFFx",
            "LogicalMessage message: content at byte 16: expected 2147483647 bytes, 1 left",
        ),
        (b"C\x01", "Commit message: flags at byte 1: expected 0 (no flags are defined)"),
        (b"B\0\0\0\0\0\0\0\0", "Begin message: final LSN at byte 1: expected a position other than 0/0"),
        (b"S\0\0\0\0\x01", "StreamStart message: transaction id at byte 1: expected a transaction id other than 0"),
    ];
    for (bytes, words) in refused {
        assert_refused(bytes, false, &format!("pgoutput {words}"));
    }
    let no_xid =
        "pgoutput Insert message: transaction id of the stream at byte 1: expected a transaction id other than 0";
    assert_refused(b"I\0\0\0\0", true, no_xid);
}

#[test]
fn errors_have_accessors() {
    let error = decode_message(b"I\0\0\x40\0N\0\x02nt\0", false).unwrap_err();
    assert_eq!(error.kind(), Some(MessageKind::Insert));
    assert_eq!((error.field(), error.column(), error.offset()), ("length of the value", Some(2), 10));
    assert_eq!((error.code(), error.is_transient()), ("pgoutput_malformed", false));
}

#[test]
fn nothing_shows_a_value() {
    let row: TupleBuf = [Column::Text(b"secret"), Column::Binary(b"secret"), Column::Null].into_iter().collect();
    let update =
        Message::Update { stream_xid: None, relation: 1, old: Some(OldTuple::Full(row.tuple())), new: row.tuple() };
    let content = LogicalMessageBody {
        stream_xid: None,
        transactional: true,
        lsn: LSN_OF_1,
        prefix: "outbox",
        content: b"secret",
    };
    for message in [update, Message::LogicalMessage(content)] {
        let shown = format!("{message:?}");
        assert!(!shown.contains("secret") && !shown.contains("115"), "{shown}");
        let mut bytes = encoded(&message);
        bytes.truncate(bytes.len() - 2);
        let error = decode_message(&bytes, false).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
    }
}

#[test]
fn times_in_unix_microseconds() {
    assert_eq!(PgTime(0).unix_micros(), 946_684_800_000_000);
    assert_eq!(PgTime(i64::MAX).unix_micros(), i64::MAX);
}

#[test]
#[should_panic(expected = "pgoutput protocol versions are 1 to 4")]
fn no_protocol_5() {
    let _ = Decoder::new(5);
}
