//! What one core of ours decodes: streams with the shapes of W1, W2 and W3, made in memory, through the assembler. No
//! server, no socket, no other thread.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use pgonce::assemble::{Assembled, Assembler, SpillSettings};
use pgonce::pgoutput::encode::{ColumnDefsBuf, TupleBuf, encode};
use pgonce::pgoutput::{Column, ColumnDef, Message, PgTime, RelationBody, ReplicaIdentity, Tuple};
use pgonce::position::{CommitLsn, EndLsn, Lsn};
use pgonce::transaction::{Change, Transaction};

use super::catch_up::Size;
use crate::contestant::{Contestant, Kind};
use crate::measure::Measured;

/// What the stream is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// 200,000 transactions of one insert (W1).
    Small,
    /// One transaction of 2,000,000 inserts (W2): most of it passes through a spill file.
    Large,
    /// 60,000 transactions of three updates and an insert (W3).
    Updates,
}

/// What is done with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// Whole transactions are made of it.
    Assemble,
    /// And every column of every change is looked at, as a sink does.
    Read,
}

/// A large transaction is so many times the same rows, so that the stream fits into the processor's neighbourhood as
/// what comes from a socket does.
const BLOCK_ROWS: u64 = 20_000;

/// Messages, one behind the other.
#[derive(Default)]
struct Messages {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Messages {
    fn push(&mut self, message: &Message<'_>) {
        encode(message, &mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }
}

/// A stream: parts that come once or many times.
pub struct Stream {
    parts: Vec<(Messages, u64)>,
    rows: u64,
    transactions: u64,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("rows", &self.rows).finish_non_exhaustive()
    }
}

impl Stream {
    /// Makes one.
    pub fn of(shape: Shape, size: Size) -> Stream {
        match shape {
            Shape::Small => small(size.of(200_000)),
            Shape::Large => large(size.of(2_000_000)),
            Shape::Updates => updates(size.of(60_000)),
        }
    }

    fn bytes(&self) -> u64 {
        self.parts.iter().map(|(messages, times)| messages.bytes.len() as u64 * times).sum()
    }

    /// How many transactions it has.
    pub fn transactions(&self) -> u64 {
        self.transactions
    }

    /// Lets them pass.
    pub fn run(&self, contestant: Contestant) -> Result<Measured> {
        let Kind::Decoder(depth) = contestant.kind else { bail!("{} decodes nothing", contestant.name()) };
        let mut assembler = Assembler::new(SpillSettings::default());
        let (mut rows, mut transactions, mut looked) = (0, 0, 0);
        let begun = Instant::now();
        for (messages, times) in &self.parts {
            for _ in 0..*times {
                for message in messages.iter() {
                    if let Assembled::Transaction(transaction) = assembler.push(message)? {
                        transactions += 1;
                        rows += transaction.change_count();
                        if depth == Depth::Read {
                            looked += look(&transaction)?;
                        }
                    }
                }
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        ensure!(
            (rows, transactions) == (self.rows, self.transactions),
            "{rows} rows of {} and {transactions} transactions of {} came out",
            self.rows,
            self.transactions
        );
        ensure!(depth == Depth::Assemble || looked > 0, "no value was looked at");
        let extra = BTreeMap::from([
            ("rows_per_s".to_owned(), (rows as f64 / seconds).round()),
            ("mb_per_s".to_owned(), self.bytes() as f64 / seconds / 1e6),
        ]);
        Ok(Measured::new(contestant, seconds, extra))
    }
}

/// The bytes of all values.
fn look(transaction: &Transaction) -> Result<usize> {
    let bytes = |tuple: Tuple<'_>| -> usize {
        let columns = tuple.iter().map(|column| match column {
            Column::Text(value) | Column::Binary(value) => value.len(),
            Column::Null | Column::Unchanged => 0,
        });
        columns.sum()
    };
    let (mut sum, mut changes) = (0, transaction.changes());
    while let Some(change) = changes.next()? {
        sum += match change {
            Change::Insert { new, .. } => bytes(new),
            Change::Update { old, new, .. } => bytes(new) + old.map_or(0, |old| bytes(old.tuple())),
            Change::Delete { old, .. } => bytes(old.tuple()),
            Change::Truncate { .. } | Change::Message { .. } => 0,
        };
    }
    Ok(sum)
}

/// Who takes part.
pub fn lineup() -> Vec<Contestant> {
    [Depth::Assemble, Depth::Read].map(|depth| Contestant { kind: Kind::Decoder(depth), synchronous: false }).into()
}

const TIME: PgTime = PgTime(800_000_000_000_000);

fn lsn(transaction: u64) -> Lsn {
    Lsn(0x100_0000 + transaction * 512)
}

fn begin(transaction: u64) -> Message<'static> {
    let xid = u32::try_from(transaction % 0x8000_0000).unwrap_or(0) + 3;
    Message::Begin { final_lsn: CommitLsn(lsn(transaction)), commit_time: TIME, xid }
}

fn commit(transaction: u64) -> Message<'static> {
    let (commit, end) = (CommitLsn(lsn(transaction)), EndLsn(Lsn(lsn(transaction).0 + 48)));
    Message::Commit { flags: 0, commit, end, commit_time: TIME }
}

/// Describes a table; the first column is its key.
fn describe(messages: &mut Messages, oid: u32, name: &str, columns: &[(&str, u32)]) {
    let columns = columns.iter().zip(0..);
    let columns: ColumnDefsBuf = columns
        .map(|((name, type_oid), at)| ColumnDef { key: at == 0, name, type_oid: *type_oid, type_modifier: -1 })
        .collect();
    messages.push(&Message::Relation(RelationBody {
        stream_xid: None,
        oid,
        namespace: "public",
        name,
        replica_identity: ReplicaIdentity::Default,
        columns: columns.columns(),
    }));
}

fn row(values: &[String]) -> TupleBuf {
    values.iter().map(|value| Column::Text(value.as_bytes())).collect()
}

const WIDE: u32 = 16_384;
const WIDE_COLUMNS: [(&str, u32); 6] = [("id", 20), ("a", 23), ("b", 25), ("c", 1184), ("d", 1700), ("e", 3802)];

/// A row as W1 and W2 have it.
fn wide(id: u64) -> TupleBuf {
    let hash = id.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    row(&[
        id.to_string(),
        (id * 7919 % 1_000_003).to_string(),
        format!("{hash:032x}{:032x}{:032x}abcd", hash ^ id, hash.rotate_left(17)),
        format!("2024-01-01 00:{:02}:{:02}.{:03}+00", id / 60_000 % 60, id / 1000 % 60, id % 1000),
        format!("{}.{:02}", id * 137 / 100, id * 137 % 100),
        format!("{{\"k\": {id}, \"s\": \"{:08x}\"}}", hash >> 32),
    ])
}

fn small(transactions: u64) -> Stream {
    let mut messages = Messages::default();
    for id in 0..transactions {
        messages.push(&begin(id));
        if id == 0 {
            describe(&mut messages, WIDE, "w1", &WIDE_COLUMNS);
        }
        messages.push(&Message::Insert { stream_xid: None, relation: WIDE, new: wide(id).tuple() });
        messages.push(&commit(id));
    }
    Stream { parts: vec![(messages, 1)], rows: transactions, transactions }
}

fn large(rows: u64) -> Stream {
    let (mut head, mut block, mut rest, mut tail) =
        (Messages::default(), Messages::default(), Messages::default(), Messages::default());
    head.push(&begin(0));
    describe(&mut head, WIDE, "w2", &WIDE_COLUMNS);
    let insert = |messages: &mut Messages, id| {
        messages.push(&Message::Insert { stream_xid: None, relation: WIDE, new: wide(id).tuple() });
    };
    (0..BLOCK_ROWS.min(rows)).for_each(|id| insert(&mut block, id));
    (0..rows % BLOCK_ROWS.min(rows)).for_each(|id| insert(&mut rest, id));
    tail.push(&commit(0));
    let parts = vec![(head, 1), (block, rows / BLOCK_ROWS.min(rows)), (rest, 1), (tail, 1)];
    Stream { parts, rows, transactions: 1 }
}

fn updates(transactions: u64) -> Stream {
    let tables =
        [("pgbench_accounts", ["aid", "bid", "abalance"], 84), ("pgbench_tellers", ["tid", "bid", "tbalance"], 84)]
            .into_iter()
            .chain([("pgbench_branches", ["bid", "x", "bbalance"], 88)]);
    let tables: Vec<_> = tables.zip(1..).collect();
    let history = [("hid", 20), ("tid", 23), ("bid", 23), ("aid", 23), ("delta", 23), ("mtime", 1114)];
    let mut messages = Messages::default();
    for id in 0..transactions {
        messages.push(&begin(id));
        if id == 0 {
            for ((name, [key, second, third], _), oid) in &tables {
                describe(&mut messages, *oid, name, &[(key, 23), (second, 23), (third, 23), ("filler", 1042)]);
            }
            describe(&mut messages, 4, "pgbench_history", &history);
        }
        for ((_, _, filler), oid) in &tables {
            let new = row(&[id.to_string(), (id % 20).to_string(), format!("-{id}"), " ".repeat(*filler)]);
            messages.push(&Message::Update { stream_xid: None, relation: *oid, old: None, new: new.tuple() });
        }
        let new = [id, id % 200, id % 20, id, id % 5000].map(|number| number.to_string());
        let new = row(&[&new[..], &["2026-01-01 00:00:00.123456".to_owned()]].concat());
        messages.push(&Message::Insert { stream_xid: None, relation: 4, new: new.tuple() });
        messages.push(&commit(id));
    }
    Stream { parts: vec![(messages, 1)], rows: 4 * transactions, transactions }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_comes_out_whole() {
        for (shape, rows) in [(Shape::Small, 100), (Shape::Large, 1000), (Shape::Updates, 120)] {
            let stream = Stream::of(shape, Size { scale_div: 2000, synchronous: false });
            assert_eq!(stream.rows, rows);
            for contestant in lineup() {
                assert!(stream.run(contestant).unwrap().extra["rows_per_s"] > 0.0);
            }
        }
        let stream = large(50_001);
        assert_eq!(stream.run(lineup()[0]).unwrap().extra.len(), 2);
    }
}
