//! Histories of transactions as a server could send them: whole, streamed in parts, prepared; with sub-transactions of
//! any depth, rolled back or not; with descriptions of relations as pgoutput's own memory of them demands.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::super::{AssembleError, Assembled, Assembler, SpillSettings, TwoPhase};
use crate::pgoutput::encode::{ColumnDefsBuf, RelationIdsBuf, TupleBuf, encoded};
use crate::pgoutput::{
    Column, ColumnDef, LogicalMessageBody, Message, PgTime, RelationBody, ReplicaIdentity, TruncateOptions,
};
use crate::position::{Boundary, CommitLsn, EndLsn, Lsn};
use crate::source::Event;
use crate::transaction::{Change, Digest, Transaction};

#[derive(Clone, Copy, Debug)]
enum Op {
    Insert {
        table: u32,
        size: usize,
    },
    Truncate {
        table: u32,
    },
    Message,
    Savepoint,
    Release,
    Rollback,
    /// The definition of a table changes.
    Alter {
        table: u32,
    },
    /// The part that is streamed ends here.
    Cut,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Fate {
    Commits,
    Aborts,
    IsPreparedAndCommits,
    IsPreparedAndAborts,
    StaysOpen,
}

#[derive(Clone, Debug)]
struct Script {
    streamed: bool,
    fate: Fate,
    ops: Vec<Op>,
}

fn op() -> impl Strategy<Value = Op> {
    let size = prop_oneof![6 => 0usize..60, 2 => 500usize..2000, 1 => Just(300_000)];
    prop_oneof![
        10 => (1u32..4, size).prop_map(|(table, size)| Op::Insert { table, size }),
        1 => (1u32..4).prop_map(|table| Op::Truncate { table }),
        1 => Just(Op::Message),
        4 => Just(Op::Savepoint),
        2 => Just(Op::Release),
        3 => Just(Op::Rollback),
        1 => (1u32..4).prop_map(|table| Op::Alter { table }),
        4 => Just(Op::Cut),
    ]
}

fn script() -> impl Strategy<Value = Script> {
    let fate = prop_oneof![
        6 => Just(Fate::Commits),
        2 => Just(Fate::Aborts),
        2 => Just(Fate::IsPreparedAndCommits),
        1 => Just(Fate::IsPreparedAndAborts),
        1 => Just(Fate::StaysOpen),
    ];
    (any::<bool>(), fate, prop::collection::vec(op(), 0..30)).prop_map(|(streamed, fate, ops)| Script {
        streamed,
        fate,
        ops,
    })
}

/// What is sent of a change, apart from the id of its sub-transaction.
#[derive(Clone, Debug)]
enum Item {
    Insert { table: u32, version: u32, id: u32, size: usize },
    Truncate { table: u32, version: u32 },
    Message { id: u32 },
}

/// A transaction under way.
struct Running {
    script: Script,
    xid: u32,
    next: usize,
    /// Savepoints, each with the sub-transactions that go with it.
    savepoints: Vec<Vec<u32>>,
    subs: u32,
    items: Vec<(u32, Item)>,
    /// Who had something streamed.
    wrote: HashSet<u32>,
    begun: bool,
    /// Relations that the server remembers to have described in the stream of this transaction.
    described: HashSet<u32>,
    prepared: Option<u64>,
    ended: bool,
}

/// The server, and what it must have led to.
struct Server {
    assembler: Assembler,
    versions: HashMap<u32, u32>,
    described: HashSet<u32>,
    lsn: u64,
    id: u32,
    events: Vec<Event>,
    expected: Vec<(CommitLsn, Vec<(u32, Item)>)>,
    /// The session has ended: what is streamed has to be sent as a whole.
    in_doubt: bool,
}

const TIME: PgTime = PgTime(800_000_000_000_000);

impl Server {
    fn send(&mut self, message: &Message<'_>) {
        if self.in_doubt {
            return;
        }
        let bytes = encoded(message);
        let assembled = match self.assembler.push(&bytes) {
            Err(AssembleError::MessagesInDoubt { .. }) => {
                self.in_doubt = true;
                return;
            }
            assembled => assembled.unwrap(),
        };
        Event::of(assembled, true, &self.assembler, &mut self.events);
    }

    fn lsn(&mut self) -> u64 {
        self.lsn += 0x10;
        self.lsn
    }

    fn describe(&mut self, stream_xid: Option<u32>, table: u32) {
        let version = self.versions[&table];
        self.send(&relation(stream_xid, table, version, &columns(version)));
    }

    fn send_item(&mut self, stream_xid: Option<u32>, item: &Item) {
        match *item {
            Item::Insert { table, version, id, size } => {
                let row = row(version, id, size);
                self.send(&Message::Insert { stream_xid, relation: table, new: row.tuple() });
            }
            Item::Truncate { table, .. } => {
                let oids: RelationIdsBuf = [table].into_iter().collect();
                let options = TruncateOptions { cascade: false, restart_identity: true };
                self.send(&Message::Truncate { stream_xid, options, relations: oids.relations() });
            }
            Item::Message { id } => self.send(&Message::LogicalMessage(LogicalMessageBody {
                stream_xid,
                transactional: true,
                lsn: Lsn(u64::from(id)),
                prefix: "p",
                content: &id.to_be_bytes(),
            })),
        }
    }
}

fn relation<'a>(stream_xid: Option<u32>, oid: u32, version: u32, columns: &'a ColumnDefsBuf) -> Message<'a> {
    const NAMES: [&str; 12] = ["t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8", "t9", "t10", "t11"];
    Message::Relation(RelationBody {
        stream_xid,
        oid,
        namespace: "public",
        name: NAMES[version as usize % 12],
        replica_identity: ReplicaIdentity::Default,
        columns: columns.columns(),
    })
}

/// A table of version n has n + 1 columns.
fn columns(version: u32) -> ColumnDefsBuf {
    (0..=version).map(|_| ColumnDef { key: false, name: "c", type_oid: 25, type_modifier: -1 }).collect()
}

fn row(version: u32, id: u32, size: usize) -> TupleBuf {
    let (id, padding) = (id.to_be_bytes(), vec![b'x'; size]);
    let first = [&id[..], &padding].concat();
    let others = (0..version).map(|_| Column::Null);
    std::iter::once(Column::Text(&first)).chain(others).collect()
}

impl Running {
    /// The next thing that the server sends of it: all of it, a part of it, a rollback, its end.
    fn step(&mut self, server: &mut Server) {
        if let Some(prepare) = self.prepared {
            self.settle(server, prepare);
            return;
        }
        let mut part = false;
        while let Some(op) = self.script.ops.get(self.next).copied() {
            self.next += 1;
            let writer = self.savepoints.last().map_or(self.xid, |subs| subs[0]);
            let item = match op {
                Op::Insert { table, size } => {
                    server.id += 1;
                    Item::Insert { table, version: server.versions[&table], id: server.id, size }
                }
                Op::Truncate { table } => Item::Truncate { table, version: server.versions[&table] },
                Op::Message => {
                    server.id += 1;
                    Item::Message { id: server.id }
                }
                Op::Savepoint => {
                    self.subs += 1;
                    self.savepoints.push(vec![self.xid + self.subs]);
                    continue;
                }
                Op::Release => {
                    if let Some(gone) = self.savepoints.pop()
                        && let Some(outer) = self.savepoints.last_mut()
                    {
                        outer.extend(gone);
                    }
                    continue;
                }
                Op::Rollback => {
                    let Some(gone) = self.savepoints.pop() else { continue };
                    self.items.retain(|(xid, _)| !gone.contains(xid));
                    if part {
                        server.send(&Message::StreamStop);
                    }
                    for sub_xid in gone.into_iter().rev().filter(|xid| self.wrote.contains(xid)) {
                        let (xid, abort_lsn) = (self.xid, (sub_xid % 2 == 0).then_some(Lsn(5)));
                        let abort_time = abort_lsn.map(|_| TIME);
                        server.send(&Message::StreamAbort { xid, sub_xid, abort_lsn, abort_time });
                        self.described.clear();
                    }
                    if self.script.streamed {
                        return;
                    }
                    continue;
                }
                Op::Alter { table } => {
                    // It would wait for those that use the table: then their descriptions are not outdated.
                    if server.versions[&table] < 9 {
                        *server.versions.get_mut(&table).unwrap() += 1;
                        server.described.remove(&table);
                        self.described.remove(&table);
                    }
                    continue;
                }
                Op::Cut if part => break,
                Op::Cut => continue,
            };
            if self.script.streamed {
                if !part {
                    server.send(&Message::StreamStart { xid: self.xid, first: !self.begun });
                    (part, self.begun) = (true, true);
                }
                if let Item::Insert { table, .. } | Item::Truncate { table, .. } = item
                    && self.described.insert(table)
                {
                    server.describe(Some(writer), table);
                }
                server.send_item(Some(writer), &item);
                self.wrote.insert(writer);
            }
            self.items.push((writer, item));
        }
        if part {
            server.send(&Message::StreamStop);
            return;
        }
        self.end(server);
    }

    fn end(&mut self, server: &mut Server) {
        let (xid, commit_time) = (self.xid, TIME);
        let streamed = self.script.streamed && self.begun;
        self.ended = true;
        let at = server.lsn();
        let (commit, end) = (CommitLsn(Lsn(at)), EndLsn(Lsn(at + 8)));
        let prepares = matches!(self.script.fate, Fate::IsPreparedAndCommits | Fate::IsPreparedAndAborts);
        match self.script.fate {
            Fate::StaysOpen | Fate::Aborts if !streamed => return,
            Fate::StaysOpen => {
                self.ended = false;
                return;
            }
            Fate::Aborts => {
                server.send(&Message::StreamAbort { xid, sub_xid: xid, abort_lsn: None, abort_time: None });
                return;
            }
            _ => {}
        }
        if !streamed {
            server.send(&match prepares {
                true => Message::BeginPrepare {
                    prepare_lsn: commit.0,
                    prepare_end_lsn: end.0,
                    prepare_time: commit_time,
                    xid,
                    gid: "g",
                },
                false => Message::Begin { final_lsn: commit, commit_time, xid },
            });
            for (_, item) in &mut self.items {
                if let Item::Insert { table, version, .. } | Item::Truncate { table, version } = item {
                    *version = server.versions[table];
                    if server.described.insert(*table) {
                        server.describe(None, *table);
                    }
                }
                server.send_item(None, item);
            }
        }
        let (prepare_lsn, prepare_end_lsn, prepare_time, gid) = (commit.0, end.0, commit_time, "g");
        match (prepares, streamed) {
            (true, true) => {
                server.send(&Message::StreamPrepare { flags: 0, prepare_lsn, prepare_end_lsn, prepare_time, xid, gid })
            }
            (true, false) => {
                server.send(&Message::Prepare { flags: 0, prepare_lsn, prepare_end_lsn, prepare_time, xid, gid });
            }
            (false, _) => {
                // As the server remembers it.
                server.described.extend(self.described.drain());
                self.expect(server, commit);
                server.send(&match streamed {
                    true => Message::StreamCommit { xid, flags: 0, commit, end, commit_time },
                    false => Message::Commit { flags: 0, commit, end, commit_time },
                });
                return;
            }
        }
        let held = server.events.iter().any(|e| matches!(e, Event::Held(at) if at.0 == prepare_lsn));
        assert!(held, "held from its prepare on");
        self.prepared = Some(prepare_lsn.0);
        self.ended = false;
    }

    fn settle(&mut self, server: &mut Server, prepare: u64) {
        self.ended = true;
        self.prepared = None;
        let (xid, at, gid) = (self.xid, server.lsn(), "g");
        let end = match self.script.fate {
            Fate::IsPreparedAndCommits => {
                let (commit, end) = (CommitLsn(Lsn(at)), EndLsn(Lsn(at + 8)));
                self.expect(server, commit);
                server.send(&Message::CommitPrepared { flags: 0, commit, end, commit_time: TIME, xid, gid });
                Some(end)
            }
            _ => {
                server.send(&Message::RollbackPrepared {
                    flags: 0,
                    prepare_end_lsn: Lsn(prepare + 8),
                    rollback_end_lsn: Lsn(at + 8),
                    prepare_time: TIME,
                    rollback_time: TIME,
                    xid,
                    gid,
                });
                None
            }
        };
        let settled = server
            .events
            .iter()
            .any(|e| matches!(e, Event::Settled { prepare: p, end: e } if p.0.0 == prepare && *e == end));
        assert!(settled, "let go when it is settled");
    }

    fn expect(&mut self, server: &mut Server, commit: CommitLsn) {
        let items = std::mem::take(&mut self.items);
        if !items.is_empty() {
            server.expected.push((commit, items));
        }
    }
}

/// What the model knows of a change, and what a pass over the transaction finds, in the same words.
fn found(transaction: &Transaction) -> Vec<String> {
    let mut changes = transaction.changes();
    let mut found = Vec::new();
    while let Some(change) = changes.next().unwrap() {
        found.push(match change {
            Change::Insert { relation, new } => {
                let columns: Vec<_> = new.iter().collect();
                let Column::Text(first) = columns[0] else { panic!("a text") };
                let id = u32::from_be_bytes(first[..4].try_into().unwrap());
                assert_eq!(relation.columns.len(), columns.len(), "described as it was sent");
                format!("I {} {} {id} {}", relation.oid, relation.columns.len() - 1, first.len() - 4)
            }
            Change::Truncate { relations, .. } => format!("T {} {}", relations[0].oid, relations[0].columns.len() - 1),
            Change::Message { content, .. } => format!("M {}", u32::from_be_bytes(content.try_into().unwrap())),
            other => panic!("{other:?}"),
        });
    }
    found
}

fn words(item: &Item) -> String {
    match item {
        Item::Insert { table, version, id, size } => format!("I {table} {version} {id} {size}"),
        Item::Truncate { table, version } => format!("T {table} {version}"),
        Item::Message { id } => format!("M {id}"),
    }
}

/// The digest of the same content, sent as a whole to an assembler that spills nothing.
fn digest_of_whole(items: &[(u32, Item)], commit: CommitLsn) -> Digest {
    let settings = SpillSettings { memory: usize::MAX, ..SpillSettings::default() };
    let mut server = Server {
        assembler: Assembler::new(settings),
        versions: HashMap::new(),
        described: HashSet::new(),
        lsn: 0,
        id: 0,
        events: Vec::new(),
        expected: Vec::new(),
        in_doubt: false,
    };
    let end = EndLsn(Lsn(commit.0.0 + 8));
    server.send(&Message::Begin { final_lsn: commit, commit_time: TIME, xid: 77 });
    for (_, item) in items {
        if let Item::Insert { table, version, .. } | Item::Truncate { table, version } = item {
            server.versions.insert(*table, *version);
            server.describe(None, *table);
        }
        server.send_item(None, item);
    }
    server.send(&Message::Commit { flags: 0, commit, end, commit_time: TIME });
    match server.events.pop() {
        Some(Event::Transaction(transaction)) => transaction.digest(),
        other => panic!("{other:?}"),
    }
}

fn run(scripts: Vec<Script>, turns: &[usize], memory: usize) {
    let settings = SpillSettings { memory, ..SpillSettings::default() };
    let mut server = Server {
        assembler: Assembler::new(settings),
        versions: (1..4).map(|table| (table, 0)).collect(),
        described: HashSet::new(),
        lsn: 0x100,
        id: 0,
        events: Vec::new(),
        expected: Vec::new(),
        in_doubt: false,
    };
    let mut running: Vec<Running> = (1u32..)
        .zip(scripts)
        .map(|(n, script)| Running {
            script,
            xid: n * 1000,
            next: 0,
            savepoints: Vec::new(),
            subs: 0,
            items: Vec::new(),
            wrote: HashSet::new(),
            begun: false,
            described: HashSet::new(),
            prepared: None,
            ended: false,
        })
        .collect();
    let (mut delivered, mut turns) = (Vec::new(), turns.iter().cycle());
    for _ in 0..2000 {
        let able: Vec<usize> = (0..running.len())
            .filter(|&n| {
                let r = &running[n];
                let idles = r.script.fate == Fate::StaysOpen && r.next == r.script.ops.len();
                !r.ended && !idles
            })
            .collect();
        if able.is_empty() {
            break;
        }
        let n = able[turns.next().unwrap() % able.len()];
        // Of a table that others have described in their streams no definition changes.
        let used: HashSet<u32> = running
            .iter()
            .enumerate()
            .filter(|(m, _)| *m != n)
            .flat_map(|(_, r)| r.described.iter().copied())
            .collect();
        let r = &mut running[n];
        for op in &mut r.script.ops[r.next..] {
            if let Op::Alter { table } = op
                && used.contains(table)
            {
                *op = Op::Cut;
            }
        }
        r.step(&mut server);
        if server.in_doubt {
            return;
        }
        let open = running.iter().any(|r| !r.ended && (r.begun || r.prepared.is_some()));
        assert_eq!((server.assembler.is_open(), server.assembler.is_sending()), (open, false));
        for event in server.events.drain(..) {
            match event {
                Event::Transaction(transaction) => delivered.push(transaction),
                Event::Reported { open: told, sending, .. } => assert_eq!((told, sending), (open, false)),
                _ => {}
            }
        }
    }
    assert_eq!(delivered.len(), server.expected.len(), "neither empty ones nor any missing");
    for (transaction, (commit, items)) in delivered.iter().zip(&server.expected) {
        assert_eq!(transaction.commit(), *commit, "in commit order");
        assert_eq!(transaction.change_count(), items.len() as u64, "counted without holes");
        assert_eq!(found(transaction), items.iter().map(|(_, item)| words(item)).collect::<Vec<_>>());
        assert_eq!(transaction.digest(), digest_of_whole(items, *commit), "the same however it was sent");
    }
    let meter = std::sync::Arc::clone(&server.assembler.meter);
    drop(delivered);
    drop(server);
    assert_eq!((meter.memory(), meter.assembling(), meter.on_disk()), (0, 0, 0), "nothing stays behind");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn histories_arrive_as_they_were_however_they_are_sent_a11_a12_a13(
        scripts in prop::collection::vec(script(), 1..6),
        turns in prop::collection::vec(0usize..100, 1..40),
        memory in prop_oneof![Just(0usize), Just(300), Just(20_000), Just(usize::MAX)],
    ) {
        run(scripts, &turns, memory);
    }
}

fn push(assembler: &mut Assembler, message: &Message<'_>) -> Result<Assembled<'static>, AssembleError> {
    // What it borrows lives as long as the test.
    assembler.push(encoded(message).leak())
}

fn commit_prepared(xid: u32, at: u64) -> Message<'static> {
    let (commit, end) = (CommitLsn(Lsn(at)), EndLsn(Lsn(at + 8)));
    Message::CommitPrepared { flags: 0, commit, end, commit_time: TIME, xid, gid: "g" }
}

#[test]
fn a_commit_of_what_was_prepared_unseen_is_a_gap_unless_it_was_applied_a26() {
    let mut assembler = Assembler::new(SpillSettings::default()).with_applied(Boundary(Lsn(0x200)));
    assert!(matches!(push(&mut assembler, &commit_prepared(5, 0x1f0)), Ok(Assembled::Nothing)));
    let gap = push(&mut assembler, &commit_prepared(6, 0x200)).unwrap_err();
    let stop = crate::stop::Stop::from(gap);
    assert_eq!(stop.code(), "data_gap", "{stop}");
    assert!(stop.to_string().contains("transaction 6 has committed at 0/200"), "{stop}");
}

#[test]
fn whoever_asks_sees_the_two_phases() {
    let mut assembler = Assembler::new(SpillSettings::default()).with_two_phase(TwoPhase::Seen);
    let (prepare_lsn, prepare_end_lsn, prepare_time, xid, gid) = (Lsn(0x100), Lsn(0x108), TIME, 9, "g");
    let begin = Message::BeginPrepare { prepare_lsn, prepare_end_lsn, prepare_time, xid, gid };
    push(&mut assembler, &begin).unwrap();
    push(&mut assembler, &relation(None, 1, 0, &columns(0))).unwrap();
    push(&mut assembler, &Message::Insert { stream_xid: None, relation: 1, new: row(0, 3, 5).tuple() }).unwrap();
    assert!(assembler.is_open());
    let prepare = Message::Prepare { flags: 0, prepare_lsn, prepare_end_lsn, prepare_time, xid, gid };
    let Ok(Assembled::Prepared(prepared)) = push(&mut assembler, &prepare) else { panic!("prepared") };
    assert_eq!((prepared.xid(), prepared.gid(), prepared.prepare(), prepared.change_count()), (9, "g", Lsn(0x100), 1));
    assert!(matches!(prepared.changes().next(), Ok(Some(Change::Insert { .. }))));
    let Ok(Assembled::CommitPrepared(settled)) = push(&mut assembler, &commit_prepared(9, 0x300)) else {
        panic!("committed")
    };
    assert_eq!((settled.xid, &*settled.gid, settled.commit), (9, "g", CommitLsn(Lsn(0x300))));
    // Of an earlier session's, too: the sink has it.
    assert!(matches!(push(&mut assembler, &commit_prepared(4, 0x400)), Ok(Assembled::CommitPrepared(_))));
}

#[test]
fn the_largest_goes_to_disk_first_and_the_bound_of_the_disk_names_it() {
    let settings = SpillSettings { memory: 100_000, disk: 150_000, ..SpillSettings::default() };
    let mut assembler = Assembler::new(settings);
    let start = |assembler: &mut Assembler, xid: u32, rows: usize, first: bool| {
        push(assembler, &Message::StreamStart { xid, first })?;
        push(assembler, &relation(Some(xid), 1, 0, &columns(0)))?;
        for id in 0..rows {
            let row = row(0, id as u32, 1000);
            push(assembler, &Message::Insert { stream_xid: Some(xid), relation: 1, new: row.tuple() })?;
        }
        push(assembler, &Message::StreamStop)
    };
    start(&mut assembler, 11, 60, true).unwrap();
    start(&mut assembler, 12, 30, true).unwrap();
    assert_eq!(assembler.meter.on_disk(), 0);
    start(&mut assembler, 12, 20, false).unwrap();
    let spilled = assembler.meter.on_disk();
    assert!((60_000..63_000).contains(&spilled), "the first one and nothing else: {spilled}");
    let full = start(&mut assembler, 13, 200, true).unwrap_err();
    let AssembleError::SpillFull { xid, size, bound, .. } = full else { panic!("{full:?}") };
    assert_eq!((xid, bound), (13, 150_000));
    assert!(size > 60_000, "{size}");
}

#[test]
fn a_description_in_a_stream_is_its_own_until_the_commit_and_outlives_no_younger_one() {
    let mut assembler = Assembler::new(SpillSettings::default());
    let mut send = |message: &Message<'_>| match push(&mut assembler, message).unwrap() {
        Assembled::Transaction(transaction) => Some(found(&transaction)),
        _ => None,
    };
    let whole = |at: u64| {
        let (commit, end) = (CommitLsn(Lsn(at)), EndLsn(Lsn(at + 8)));
        let begin = Message::Begin { final_lsn: commit, commit_time: TIME, xid: at as u32 };
        (begin, Message::Commit { flags: 0, commit, end, commit_time: TIME })
    };
    let insert = |stream_xid, version, id| {
        encoded(&Message::Insert { stream_xid, relation: 1, new: row(version, id, 0).tuple() })
    };
    let insert = |stream_xid, version, id| (insert(stream_xid, version, id), stream_xid.is_some());
    let mut bytes = |assembled: (Vec<u8>, bool)| {
        let (bytes, in_stream) = assembled;
        let message = crate::pgoutput::decode_message(&bytes, in_stream).unwrap();
        send(&message)
    };
    let describe =
        |stream_xid, version| (encoded(&relation(stream_xid, 1, version, &columns(version))), stream_xid.is_some());
    let plain = |message: &Message<'_>| (encoded(message), false);
    let stop = (encoded(&Message::StreamStop), true);
    bytes(plain(&Message::StreamStart { xid: 7, first: true }));
    bytes(describe(Some(7), 0));
    bytes(insert(Some(7), 0, 1));
    bytes(stop);
    // The publication's column list changes, and another transaction is told so.
    let (begin, commit) = whole(0x100);
    for message in [plain(&begin), describe(None, 1), insert(None, 1, 2)] {
        bytes(message);
    }
    assert_eq!(bytes(plain(&commit)), Some(vec!["I 1 1 2 0".to_owned()]));
    let (commit, end) = (CommitLsn(Lsn(0x200)), EndLsn(Lsn(0x208)));
    let streamed = bytes(plain(&Message::StreamCommit { xid: 7, flags: 0, commit, end, commit_time: TIME }));
    assert_eq!(streamed, Some(vec!["I 1 0 1 0".to_owned()]), "as it was when it was streamed");
    let (begin, commit) = whole(0x300);
    bytes(plain(&begin));
    bytes(insert(None, 1, 3));
    assert_eq!(bytes(plain(&commit)), Some(vec!["I 1 1 3 0".to_owned()]), "the younger description holds");
}

#[test]
fn what_cannot_come_at_its_place_is_refused() {
    let (commit, end, commit_time) = (CommitLsn(Lsn(0x100)), EndLsn(Lsn(0x108)), TIME);
    let begin = Message::Begin { final_lsn: commit, commit_time, xid: 5 };
    let stream = |xid, first| Message::StreamStart { xid, first };
    for messages in [
        vec![begin, begin],
        vec![begin, stream(7, true)],
        vec![stream(7, false)],
        vec![stream(7, true), Message::StreamStop, stream(7, true)],
        vec![Message::StreamCommit { xid: 7, flags: 0, commit, end, commit_time }],
        vec![Message::Commit { flags: 0, commit, end, commit_time }],
        vec![begin, Message::StreamAbort { xid: 7, sub_xid: 7, abort_lsn: None, abort_time: None }],
        vec![begin, commit_prepared(7, 0x100)],
    ] {
        let mut assembler = Assembler::new(SpillSettings::default());
        let outcomes: Vec<_> = messages.iter().map(|m| push(&mut assembler, m)).collect();
        let (last, before) = outcomes.split_last().unwrap();
        assert!(before.iter().all(Result::is_ok), "{messages:?}");
        assert!(matches!(last, Err(AssembleError::Misplaced { .. })), "{messages:?}: {last:?}");
    }
}

/// A streamed message carries the transaction's id, whichever sub-transaction wrote it.
#[test]
fn messages_that_may_have_been_rolled_back_are_not_delivered_a12() {
    let message = |xid: u32| {
        Message::LogicalMessage(LogicalMessageBody {
            stream_xid: Some(xid),
            transactional: true,
            lsn: Lsn(7),
            prefix: "p",
            content: b"m",
        })
    };
    let insert = |xid: u32| {
        let row = Box::leak(Box::new(row(0, 3, 5)));
        Message::Insert { stream_xid: Some(xid), relation: 1, new: row.tuple() }
    };
    let abort = |sub_xid: u32| Message::StreamAbort { xid: 5, sub_xid, abort_lsn: None, abort_time: None };
    // What stands behind the first change of a sub-transaction is its own, and goes with it.
    for (sent, in_doubt) in [
        (vec![message(5)], true),
        (vec![message(5), insert(6)], true),
        (vec![insert(5), message(5), insert(6), message(5)], true),
        (vec![insert(6), message(5), insert(6)], false),
        (vec![message(5), insert(5), insert(6), message(5)], false),
        (vec![message(6)], false),
    ] {
        let told = Arc::new(AtomicBool::new(false));
        let mut assembler = Assembler::new(SpillSettings::default()).telling_of_doubt(Arc::clone(&told));
        push(&mut assembler, &Message::StreamStart { xid: 5, first: true }).unwrap();
        push(&mut assembler, &relation(Some(5), 1, 0, Box::leak(Box::new(columns(0))))).unwrap();
        for message in &sent {
            push(&mut assembler, message).unwrap();
        }
        push(&mut assembler, &Message::StreamStop).unwrap();
        let aborted = push(&mut assembler, &abort(6));
        assert_eq!(matches!(aborted, Err(AssembleError::MessagesInDoubt { xid: 5 })), in_doubt, "{sent:?}");
        assert_eq!(told.load(Ordering::Relaxed), in_doubt);
    }
}
