//! Our decoder on what PostgreSQL 14 to 18 really send, beside another decoder that nobody here has written.
//!
//! `PGONCE_UPDATE_RECORDINGS=1 PGONCE_TEST_PG=14,15,16,17,18 cargo test -p pgonce --test recorded` records anew.

#[path = "recorded/assembled.rs"]
mod assembled;
#[path = "recorded/model.rs"]
mod model;
#[path = "recorded/oracle.rs"]
mod oracle;
#[path = "recorded/record.rs"]
mod record;
#[path = "recorded/recording.rs"]
mod recording;
#[path = "recorded/workload.rs"]
mod workload;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use model::{Committed, Model, Said};
use pgonce::assemble::{Assembled, Assembler, SpillSettings};
use pgonce::pgoutput::encode::encoded;
use pgonce::pgoutput::{Column, Decoder, Message, OldTuple, Tuple, decode_message};
use pgonce::transaction::Digest;
use pgonce_testkit::majors;
use recording::Recording;

/// The recordings, made anew first if that is asked for.
static RECORDINGS: LazyLock<Vec<Recording>> = LazyLock::new(|| {
    if std::env::var_os("PGONCE_UPDATE_RECORDINGS").is_some() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        for major in majors().unwrap() {
            runtime.block_on(record::record(major));
        }
    }
    Recording::all()
});

/// How often each kind of message, and of what it holds, is there.
fn contents(recording: &Recording) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let mut count = |what: String| *counts.entry(what).or_default() += 1;
    let mut decoder = Decoder::new(recording.variant.protocol);
    for received in &recording.messages {
        let message = decoder.decode(&received.payload).unwrap();
        count(message.kind().to_string());
        match message {
            Message::Relation(body) => count(format!("identity {:?}", body.replica_identity)),
            Message::Insert { new, .. } => tuple(&new, &mut count),
            Message::Update { old, new, .. } => {
                tuple(&new, &mut count);
                old.iter().for_each(|old| old_tuple("update", old, &mut count));
            }
            Message::Delete { old, .. } => old_tuple("delete", &old, &mut count),
            _ => {}
        }
    }
    counts
}

fn tuple(tuple: &Tuple<'_>, count: &mut impl FnMut(String)) {
    for column in tuple.iter() {
        count(
            match column {
                Column::Null => "null",
                Column::Unchanged => "unchanged",
                Column::Text(_) => "text",
                Column::Binary(_) => "binary",
            }
            .to_owned(),
        );
    }
}

fn old_tuple(of: &str, old: &OldTuple<'_>, count: &mut impl FnMut(String)) {
    let kind = if matches!(old, OldTuple::Key(_)) { "key" } else { "full" };
    count(format!("{of} with its {kind}"));
    tuple(&old.tuple(), count);
}

/// What the files of the major have to contain, options aside.
const ALWAYS: &[&str] = &[
    "Begin",
    "Commit",
    "Origin",
    "Relation",
    "Type",
    "Insert",
    "Update",
    "Delete",
    "Truncate",
    "LogicalMessage",
    "identity Default",
    "identity Nothing",
    "identity Full",
    "identity Index",
    "null",
    "unchanged",
    "text",
    "update with its key",
    "update with its full",
    "delete with its key",
    "delete with its full",
];

#[test]
fn every_recording_has_every_kind_that_its_options_allow_and_no_other() {
    assert_eq!(RECORDINGS.len(), 3 + 5 + 7 + 7 + 7);
    for recording in RECORDINGS.iter() {
        let (variant, contents) = (&recording.variant, contents(recording));
        let mut wanted: BTreeSet<&str> = ALWAYS.iter().copied().collect();
        if variant.binary {
            wanted.insert("binary");
        }
        if variant.streaming.is_some() {
            wanted.extend(["StreamStart", "StreamStop", "StreamCommit", "StreamAbort"]);
        }
        if variant.two_phase {
            wanted.extend(["BeginPrepare", "Prepare", "CommitPrepared", "RollbackPrepared"]);
        }
        if variant.two_phase && variant.streaming.is_some() {
            wanted.insert("StreamPrepare");
        }
        let found: BTreeSet<&str> = contents.keys().map(String::as_str).collect();
        assert_eq!(found, wanted, "{}", recording.name());
    }
}

/// What must be in some file of every major, beyond the kinds of message: what has two forms has both.
const FORMS: &[&str] = &[
    "Delete of a transaction in a block",
    "Insert of a subtransaction in a block",
    "Insert of a transaction in a block",
    "LogicalMessage of a transaction in a block",
    "Relation of a subtransaction in a block",
    "Relation of a transaction in a block",
    "Truncate of a transaction in a block",
    "Type of a subtransaction in a block",
    "Type of a transaction in a block",
    "Update of a transaction in a block",
    "a block, the first: false",
    "a block, the first: true",
    "a message, empty: false",
    "a message, empty: true",
    "a message, transactional: false, streamed: false",
    "a message, transactional: true, streamed: false",
    "a message, transactional: true, streamed: true",
    "a row, without columns: false",
    "a row, without columns: true",
    "an abort, of all: false, with LSN: false",
    "an abort, of all: true, with LSN: false",
    "an origin, streamed: false",
    "an origin, streamed: true",
    "blocks of two transactions in turns",
    "truncate, cascade: false, restart identity: false, of several: false",
    "truncate, cascade: false, restart identity: false, of several: true",
    "truncate, cascade: false, restart identity: true, of several: true",
    "truncate, cascade: true, restart identity: false, of several: true",
    "truncate, cascade: true, restart identity: true, of several: true",
];

/// Since PostgreSQL 16, with `streaming 'parallel'`.
const FORMS_16: &[&str] = &["an abort, of all: false, with LSN: true", "an abort, of all: true, with LSN: true"];

#[test]
fn the_recordings_of_every_major_have_every_form() {
    for major in recording::MAJORS {
        let found = forms(major);
        let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
        let since_16 = if major >= 16 { FORMS_16 } else { &[] };
        assert_eq!(found, FORMS.iter().chain(since_16).copied().collect(), "PostgreSQL {major}");
    }
}

fn forms(major: u32) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for recording in RECORDINGS.iter().filter(|recording| recording.major == major) {
        let mut decoder = Decoder::new(recording.variant.protocol);
        let (mut block, mut turns) = (None, Vec::new());
        for received in &recording.messages {
            let message = decoder.decode(&received.payload).unwrap();
            match message {
                Message::StreamStart { xid, first } => {
                    if block.replace(xid) != Some(xid) {
                        turns.push(xid);
                    }
                    found.insert(format!("a block, the first: {first}"));
                }
                Message::StreamAbort { xid, sub_xid, abort_lsn, .. } => {
                    assert_eq!(abort_lsn.is_some(), recording.variant.streaming == Some("parallel"));
                    found.insert(format!("an abort, of all: {}, with LSN: {}", xid == sub_xid, abort_lsn.is_some()));
                }
                Message::Truncate { options, relations, .. } => {
                    found.insert(format!(
                        "truncate, cascade: {}, restart identity: {}, of several: {}",
                        options.cascade,
                        options.restart_identity,
                        relations.len() > 1
                    ));
                }
                Message::LogicalMessage(body) => {
                    let (transactional, streamed) = (body.transactional, body.stream_xid.is_some());
                    found.insert(format!("a message, transactional: {transactional}, streamed: {streamed}"));
                    found.insert(format!("a message, empty: {}", body.content.is_empty()));
                }
                Message::Origin { commit_lsn, .. } => {
                    found.insert(format!("an origin, streamed: {}", commit_lsn.0 == 0));
                }
                Message::Insert { new, .. } => {
                    found.insert(format!("a row, without columns: {}", new.is_empty()));
                }
                _ => {}
            }
            if let Some(xid) = message.stream_xid() {
                let own = if block == Some(xid) { "transaction" } else { "subtransaction" };
                found.insert(format!("{} of a {own} in a block", message.kind()));
            }
        }
        if turns.windows(3).any(|turn| turn[0] == turn[2]) {
            found.insert("blocks of two transactions in turns".to_owned());
        }
    }
    found
}

/// A fault of the other decoder: in which field, what it says instead, and how it is told that ours is right.
struct Fault {
    field: &'static str,
    why: &'static str,
    is: fn(&Seen<'_>) -> bool,
}

/// One field of one message.
struct Seen<'m> {
    payload: &'m [u8],
    /// The transaction that the StreamStart before it named.
    block: Option<u32>,
    ours: &'m str,
    theirs: &'m str,
}

const FAULTS: &[Fault] = &[Fault {
    field: "xid of the stream",
    why: "it reads the id that a message in a block carries and throws it away; it names the transaction of the block \
          instead, also for what belongs to a subtransaction (\"Xid of the transaction (only present for streamed \
          transactions)\" is the field; without it a StreamAbort of a subtransaction cannot be followed)",
    is: |seen| {
        let carried = seen.payload.get(1..5).map(|xid| u32::from_be_bytes(xid.try_into().unwrap()));
        carried.map(|xid| xid.to_string()).as_deref() == Some(seen.ours)
            && seen.block.map(|xid| xid.to_string()).as_deref() == Some(seen.theirs)
    },
}];

#[test]
fn both_decoders_see_the_same_fields_in_every_message() {
    let mut excused = vec![0; FAULTS.len()];
    for recording in RECORDINGS.iter() {
        let protocol = recording.variant.protocol;
        let mut ours = Decoder::new(protocol);
        let mut theirs = pg_walstream::LogicalReplicationParser::with_protocol_version(protocol.into());
        let mut block = None;
        for (number, received) in recording.messages.iter().enumerate() {
            let payload = &*received.payload;
            let place = format!("{}, message {number}", recording.name());
            let message = ours.decode(payload).unwrap_or_else(|error| panic!("{place}: {error}"));
            let other = theirs.parse_wal_message(payload).unwrap_or_else(|error| panic!("{place}: {error}"));
            if let Message::StreamStart { xid, .. } = message {
                block = Some(xid);
            }
            let (a, b) = (oracle::ours(&message), oracle::theirs(&other));
            let names = |fields: &oracle::Fields| fields.iter().map(|field| field.0.clone()).collect::<Vec<_>>();
            assert_eq!(names(&a), names(&b), "{place}");
            for ((field, ours), (_, theirs)) in a.iter().zip(&b).filter(|(a, b)| a != b) {
                let seen = Seen { payload, block, ours, theirs };
                let fault = FAULTS.iter().position(|fault| fault.field == field && (fault.is)(&seen));
                excused[fault.unwrap_or_else(|| panic!("{place}: {field} is {ours}, or {theirs} for the other"))] += 1;
            }
        }
    }
    for (fault, times) in FAULTS.iter().zip(excused) {
        assert_ne!(times, 0, "a fault that the other decoder no longer has: {}: {}", fault.field, fault.why);
    }
}

/// The encoder knows nothing of the decoder but the types, so a field that was misread comes out as other bytes.
#[test]
fn what_was_decoded_encodes_to_the_same_bytes() {
    for recording in RECORDINGS.iter() {
        let mut decoder = Decoder::new(recording.variant.protocol);
        for received in &recording.messages {
            let in_stream = decoder.in_stream();
            let message = decoder.decode(&received.payload).unwrap();
            assert_eq!(encoded(&message), received.payload);
            assert_eq!(decode_message(&received.payload, in_stream), Ok(message));
        }
    }
}

/// The transactions with their digests, as the assembler has them, those without a change left out; and the positions
/// of the non-transactional messages.
fn assembled(recording: &Recording, memory: usize) -> (Vec<Committed>, Vec<Digest>, Vec<u64>) {
    let mut assembler = Assembler::new(SpillSettings { memory, ..SpillSettings::default() });
    let (mut transactions, mut digests, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    for (number, received) in recording.messages.iter().enumerate() {
        let place = || format!("{}, message {number}", recording.name());
        let result = assembler.push(&received.payload).unwrap_or_else(|error| panic!("{}: {error}", place()));
        if let Assembled::Message(message) = result {
            alone.push(message.lsn.0);
        } else if let Some(transaction) = assembled::transaction(result).filter(|t| t.change_count() > 0) {
            let (committed, whole) = assembled::committed(&transaction);
            assert!(whole, "{}: a change cannot be read", place());
            transactions.push(committed);
            digests.push(transaction.digest());
        }
    }
    assert!(!assembler.is_open(), "{}", recording.name());
    (transactions, digests, alone)
}

/// The transactions, without those that have no change (some versions send begin and end of such); and the positions of
/// the non-transactional messages.
fn meaning(recording: &Recording) -> (Vec<Committed>, Vec<u64>) {
    let (mut transactions, mut alone) = (Vec::new(), Vec::new());
    let mut model = Model::new(recording.variant.protocol);
    for received in &recording.messages {
        match model.push(&received.payload).unwrap() {
            Said::Nothing => {}
            Said::Alone(lsn) => alone.push(lsn),
            Said::Committed(transaction) if transaction.changes.is_empty() => {}
            Said::Committed(transaction) => transactions.push(transaction),
        }
    }
    assert!(model.is_at_rest(), "{}", recording.name());
    (transactions, alone)
}

#[test]
fn the_same_transactions_come_out_however_they_were_sent_and_kept() {
    for major in recording::MAJORS {
        for binary in [false, true] {
            let alike = |r: &&Recording| r.major == major && r.variant.binary == binary;
            let mut first = None;
            for recording in RECORDINGS.iter().filter(alike) {
                let (expected, expected_alone) = meaning(recording);
                assert!(expected.len() >= 45, "{}: {} transactions", recording.name(), expected.len());
                // In memory, and every change in a file at once.
                for memory in [1 << 20, 0] {
                    let (transactions, digests, alone) = assembled(recording, memory);
                    assert_eq!((&transactions, &alone), (&expected, &expected_alone), "{}", recording.name());
                    let (_, of_first, name) =
                        first.get_or_insert_with(|| (expected.clone(), digests.clone(), recording.name()));
                    assert_eq!(*of_first, digests, "{name} and {}", recording.name());
                }
                let (of_first, _, name) = first.as_ref().unwrap();
                assert_eq!(*of_first, expected, "{name} and {}", recording.name());
            }
        }
    }
}
