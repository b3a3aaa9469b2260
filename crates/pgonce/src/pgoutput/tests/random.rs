//! Random messages there and back; random, cut and damaged bytes that must be refused or be a message, and never panic.

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::encode::{ColumnDefsBuf, RelationIdsBuf, TupleBuf, encoded};
use super::super::*;
use crate::position::{CommitLsn, EndLsn, Lsn};

/// Lets a generated message borrow what it is made of. Tests are short, so it is never given back.
fn keep<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

fn string() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        "[a-z_]{0,8}",
        vec(any::<char>().prop_filter("a zero byte ends it", |&c| c != '\0'), 0..6)
            .prop_map(|chars| chars.into_iter().collect::<String>()),
    ]
    .prop_map(|string| keep(string).as_str())
}

fn bytes() -> impl Strategy<Value = &'static [u8]> {
    vec(any::<u8>(), 0..12).prop_map(|bytes| keep(bytes).as_slice())
}

fn lsn() -> impl Strategy<Value = Lsn> {
    (1..=u64::MAX).prop_map(Lsn)
}

fn time() -> impl Strategy<Value = PgTime> {
    any::<i64>().prop_map(PgTime)
}

fn column() -> impl Strategy<Value = Column<'static>> {
    prop_oneof![
        Just(Column::Null),
        Just(Column::Unchanged),
        bytes().prop_map(Column::Text),
        bytes().prop_map(Column::Binary)
    ]
}

fn tuple() -> impl Strategy<Value = Tuple<'static>> {
    vec(column(), 0..6).prop_map(|columns| keep(columns.into_iter().collect::<TupleBuf>()).tuple())
}

fn old_tuple() -> impl Strategy<Value = OldTuple<'static>> {
    prop_oneof![tuple().prop_map(OldTuple::Key), tuple().prop_map(OldTuple::Full)]
}

fn column_def() -> impl Strategy<Value = ColumnDef<'static>> {
    (any::<bool>(), string(), any::<u32>(), any::<i32>()).prop_map(|(key, name, type_oid, type_modifier)| ColumnDef {
        key,
        name,
        type_oid,
        type_modifier,
    })
}

fn relation(stream_xid: Option<u32>) -> impl Strategy<Value = Message<'static>> {
    let identity = prop_oneof![
        Just(ReplicaIdentity::Default),
        Just(ReplicaIdentity::Nothing),
        Just(ReplicaIdentity::Full),
        Just(ReplicaIdentity::Index)
    ];
    (any::<u32>(), string(), string(), identity, vec(column_def(), 0..5)).prop_map(
        move |(oid, namespace, name, replica_identity, columns)| {
            let columns = keep(columns.into_iter().collect::<ColumnDefsBuf>()).columns();
            Message::Relation(RelationBody { stream_xid, oid, namespace, name, replica_identity, columns })
        },
    )
}

/// A message that may lie inside a stream block.
fn change(stream_xid: Option<u32>) -> BoxedStrategy<Message<'static>> {
    let relation_oid = any::<u32>();
    prop_oneof![
        (any::<u64>(), string()).prop_map(|(lsn, name)| Message::Origin { commit_lsn: Lsn(lsn), name }),
        relation(stream_xid),
        (any::<u32>(), string(), string()).prop_map(move |(oid, namespace, name)| Message::Type {
            stream_xid,
            oid,
            namespace,
            name
        }),
        (relation_oid, tuple()).prop_map(move |(relation, new)| Message::Insert { stream_xid, relation, new }),
        (any::<u32>(), proptest::option::of(old_tuple()), tuple())
            .prop_map(move |(relation, old, new)| Message::Update { stream_xid, relation, old, new }),
        (any::<u32>(), old_tuple()).prop_map(move |(relation, old)| Message::Delete { stream_xid, relation, old }),
        (any::<bool>(), any::<bool>(), vec(any::<u32>(), 0..5)).prop_map(move |(cascade, restart_identity, oids)| {
            let relations = keep(oids.into_iter().collect::<RelationIdsBuf>()).relations();
            Message::Truncate { stream_xid, options: TruncateOptions { cascade, restart_identity }, relations }
        }),
        (any::<bool>(), any::<u64>(), string(), bytes()).prop_map(move |(transactional, lsn, prefix, content)| {
            Message::LogicalMessage(LogicalMessageBody { stream_xid, transactional, lsn: Lsn(lsn), prefix, content })
        }),
    ]
    .boxed()
}

/// A message that lies outside stream blocks.
fn control() -> BoxedStrategy<Message<'static>> {
    let parts = (lsn(), lsn(), time(), time(), 1..=u32::MAX, string(), any::<bool>());
    let kind = 0..11;
    (kind, parts)
        .prop_map(|(kind, (lsn, end_lsn, time, later, xid, gid, yes))| {
            let (flags, commit, end, commit_time) = (0, CommitLsn(lsn), EndLsn(end_lsn), time);
            let (prepare_lsn, prepare_end_lsn, prepare_time) = (lsn, end_lsn, time);
            match kind {
                0 => Message::Begin { final_lsn: commit, commit_time, xid },
                1 => Message::Commit { flags, commit, end, commit_time },
                2 => Message::StreamStart { xid, first: yes },
                3 => Message::StreamCommit { xid, flags, commit, end, commit_time },
                4 => Message::StreamAbort { xid, sub_xid: xid, abort_lsn: None, abort_time: None },
                5 => Message::StreamAbort { xid, sub_xid: 1, abort_lsn: Some(lsn), abort_time: Some(time) },
                6 => Message::BeginPrepare { prepare_lsn, prepare_end_lsn, prepare_time, xid, gid },
                7 => Message::Prepare { flags, prepare_lsn, prepare_end_lsn, prepare_time, xid, gid },
                8 => Message::CommitPrepared { flags, commit, end, commit_time, xid, gid },
                9 => Message::StreamPrepare { flags, prepare_lsn, prepare_end_lsn, prepare_time, xid, gid },
                _ => {
                    let (prepare_end_lsn, rollback_end_lsn, rollback_time) = (lsn, end_lsn, later);
                    Message::RollbackPrepared {
                        flags,
                        prepare_end_lsn,
                        rollback_end_lsn,
                        prepare_time,
                        rollback_time,
                        xid,
                        gid,
                    }
                }
            }
        })
        .boxed()
}

/// A message, and whether it lies inside a stream block.
fn placed_message() -> impl Strategy<Value = (Message<'static>, bool)> {
    prop_oneof![
        change(None).prop_map(|message| (message, false)),
        (1..=u32::MAX).prop_flat_map(|xid| change(Some(xid))).prop_map(|message| (message, true)),
        control().prop_map(|message| (message, false)),
        Just((Message::StreamStop, true)),
    ]
}

/// Walks whatever can be walked, and checks the counts.
fn walk(message: &Message<'_>) {
    let walk_tuple = |tuple: Tuple<'_>| {
        assert_eq!(tuple.iter().len(), tuple.len());
        assert_eq!(tuple.iter().count(), tuple.len());
    };
    match message {
        Message::Insert { new, .. } => walk_tuple(*new),
        Message::Update { old, new, .. } => {
            old.iter().for_each(|old| walk_tuple(old.tuple()));
            walk_tuple(*new);
        }
        Message::Delete { old, .. } => walk_tuple(old.tuple()),
        Message::Relation(relation) => assert_eq!(relation.columns.iter().count(), relation.columns.len()),
        Message::Truncate { relations, .. } => assert_eq!(relations.iter().count(), relations.len()),
        _ => {}
    }
    let _ = format!("{message:?}");
}

/// Whatever the bytes are: no panic, and a message only if they are exactly what PostgreSQL would have sent for it.
fn accepts_only_what_it_would_write(bytes: &[u8]) {
    for in_stream in [false, true] {
        match decode_message(bytes, in_stream) {
            Ok(message) => {
                walk(&message);
                assert_eq!(encoded(&message), bytes);
            }
            Err(error) => {
                assert!(error.offset() <= bytes.len());
                assert!(!error.to_string().is_empty());
            }
        }
    }
    for protocol in 1..=4 {
        let _ = Decoder::new(protocol).decode(bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn columns_come_back(columns in vec(column(), 0..300)) {
        let row: TupleBuf = columns.iter().copied().collect();
        let bytes = encoded(&Message::Insert { stream_xid: None, relation: 1, new: row.tuple() });
        let Ok(Message::Insert { new, .. }) = decode_message(&bytes, false) else { panic!("not an Insert") };
        prop_assert_eq!(new.len(), columns.len());
        prop_assert!(new.iter().eq(columns));
    }

    #[test]
    fn column_defs_come_back(defs in vec(column_def(), 0..20)) {
        let buf: ColumnDefsBuf = defs.iter().copied().collect();
        prop_assert!(buf.columns().iter().eq(defs));
    }

    #[test]
    fn messages_come_back((message, in_stream) in placed_message()) {
        let bytes = encoded(&message);
        prop_assert_eq!(decode_message(&bytes, in_stream), Ok(message));
        walk(&message);
    }

    #[test]
    fn a_cut_message_is_refused((message, in_stream) in placed_message()) {
        let bytes = encoded(&message);
        for length in 0..bytes.len() {
            // A StreamAbort without its last two fields is one of a lower protocol version.
            if matches!(message, Message::StreamAbort { .. }) && length == 9 {
                continue;
            }
            prop_assert!(decode_message(&bytes[..length], in_stream).is_err(), "cut at {}", length);
        }
    }

    #[test]
    fn a_damaged_message_is_no_panic(
        (message, _) in placed_message(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        insert in proptest::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let mut bytes = encoded(&message);
        for (index, byte) in damage {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        if let Some((index, byte)) = insert {
            bytes.insert(index.index(bytes.len()), byte);
        }
        accepts_only_what_it_would_write(&bytes);
    }

    #[test]
    fn random_bytes_are_no_panic(
        kind in prop::sample::select(&b"BCORYIUDTMSEcAbPKrp\0"[..]),
        rest in vec(any::<u8>(), 0..80),
    ) {
        accepts_only_what_it_would_write(&rest);
        accepts_only_what_it_would_write(&[&[kind][..], &rest].concat());
    }

    /// Bytes that are mostly zero get further than uniformly random ones: counts and lengths are small.
    #[test]
    fn sparse_bytes_are_no_panic(
        kind in prop::sample::select(&b"CORYIUDTM"[..]),
        rest in vec(prop_oneof![4 => Just(0), 1 => Just(1), 2 => prop::sample::select(&b"NKOntubd"[..])], 0..60),
    ) {
        accepts_only_what_it_would_write(&[&[kind][..], &rest].concat());
    }
}
