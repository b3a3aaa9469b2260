//! What the receive path takes from the allocator: nothing for a message, and next to nothing for a transaction.

use pgonce::assemble::{Assembled, Assembler, SpillSettings};
use pgonce::pgoutput::encode::{ColumnDefsBuf, TupleBuf, encoded};
use pgonce::pgoutput::{Column, ColumnDef, Message, PgTime, RelationBody, ReplicaIdentity};
use pgonce::position::{CommitLsn, EndLsn, Lsn};

const TABLE: u32 = 16_384;

fn description() -> Vec<u8> {
    let column = |name, key| ColumnDef { key, name, type_oid: 25, type_modifier: -1 };
    let columns: ColumnDefsBuf = [column("id", true), column("text", false)].into_iter().collect();
    encoded(&Message::Relation(RelationBody {
        stream_xid: None,
        oid: TABLE,
        namespace: "public",
        name: "t",
        replica_identity: ReplicaIdentity::Default,
        columns: columns.columns(),
    }))
}

/// One transaction: its messages.
fn transaction(number: u64, rows: usize, origin: bool) -> Vec<Vec<u8>> {
    let (commit, time) = (CommitLsn(Lsn(0x100_0000 + number * 1_000)), PgTime(800_000_000_000_000));
    let mut messages = vec![encoded(&Message::Begin { final_lsn: commit, commit_time: time, xid: 3 })];
    if origin {
        messages.push(encoded(&Message::Origin { commit_lsn: Lsn(8), name: "elsewhere" }));
    }
    let (id, text) = (number.to_string(), "x".repeat(150));
    let row: TupleBuf = [id.as_bytes(), text.as_bytes()].map(Column::Text).into_iter().collect();
    let insert = encoded(&Message::Insert { stream_xid: None, relation: TABLE, new: row.tuple() });
    messages.extend(std::iter::repeat_n(insert, rows));
    let end = EndLsn(Lsn(commit.0.0 + 48));
    messages.push(encoded(&Message::Commit { flags: 0, commit, end, commit_time: time }));
    messages
}

/// Allocations, and their bytes, while transactions pass of which none is kept.
fn allocations(transactions: u64, rows: usize, origin: bool) -> (u64, u64) {
    let mut assembler = Assembler::new(SpillSettings::default());
    let mut first = transaction(0, 1, origin);
    first.insert(1, description());
    for message in &first {
        assembler.push(message).unwrap();
    }
    let stream: Vec<Vec<Vec<u8>>> = (1..=transactions).map(|number| transaction(number, rows, origin)).collect();
    let mut changes = 0;
    let counted = allocation_counter::measure(|| {
        for message in stream.iter().flatten() {
            if let Assembled::Transaction(transaction) = assembler.push(message).unwrap() {
                changes += transaction.change_count();
            }
        }
    });
    assert_eq!(changes, transactions * rows as u64);
    (counted.count_total, counted.bytes_total)
}

#[test]
fn a_transaction_of_one_row_takes_one_allocation() {
    for origin in [false, true] {
        let (count, bytes) = allocations(10_000, 1, origin);
        // One while it is open; and the blocks in which the changes of many lie, 2 MB of them.
        assert!(count <= 10_500 && bytes < 8 << 20, "{count} allocations of {bytes} bytes for 10,000 transactions");
    }
}

#[test]
fn a_row_takes_no_allocation_of_its_own() {
    let (few, _) = allocations(100, 1, false);
    let (many, _) = allocations(100, 101, false);
    // Blocks.
    assert!(many <= few + 200, "{many} allocations for 10,100 rows, {few} for 100");
}
