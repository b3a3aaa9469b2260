use super::*;
use crate::assemble::{Assembled, Assembler, SpillSettings};
use crate::pgoutput::encode::{ColumnDefsBuf, RelationIdsBuf, TupleBuf, encoded};
use crate::pgoutput::{Column, ColumnDef, Message, PgTime, RelationBody, TruncateOptions};
use crate::position::{CommitLsn, EndLsn, Lsn};
use crate::schema_change::Difference;

/// A session that brings transactions.
struct Stream(Assembler);

/// What comes inside of a transaction.
enum Said<'a> {
    /// A table with these columns.
    Table(u32, &'a [&'a str]),
    Row(u32),
    Truncated(&'a [u32]),
}

use Said::{Row, Table, Truncated};

impl Stream {
    fn new() -> Stream {
        Stream(Assembler::new(SpillSettings::default()))
    }

    fn transaction(&mut self, commit: u64, said: &[Said<'_>]) -> Transaction {
        let (final_lsn, commit_time) = (CommitLsn(Lsn(commit)), PgTime(0));
        let mut messages = vec![encoded(&Message::Begin { final_lsn, commit_time, xid: 1 })];
        for said in said {
            messages.push(match said {
                Table(oid, columns) => {
                    let columns = columns.iter().map(|name| ColumnDef {
                        name,
                        key: *name == "id",
                        type_oid: 23,
                        type_modifier: -1,
                    });
                    encoded(&Message::Relation(RelationBody {
                        stream_xid: None,
                        oid: *oid,
                        namespace: "s",
                        name: "t",
                        replica_identity: ReplicaIdentity::Default,
                        columns: columns.collect::<ColumnDefsBuf>().columns(),
                    }))
                }
                Row(relation) => {
                    let row: TupleBuf = [Column::Text(b"1")].into_iter().collect();
                    encoded(&Message::Insert { stream_xid: None, relation: *relation, new: row.tuple() })
                }
                Truncated(oids) => {
                    let options = TruncateOptions { cascade: false, restart_identity: false };
                    let relations = oids.iter().copied().collect::<RelationIdsBuf>();
                    encoded(&Message::Truncate { stream_xid: None, options, relations: relations.relations() })
                }
            });
        }
        let (commit, end) = (CommitLsn(Lsn(commit)), EndLsn(Lsn(commit + 1)));
        messages.push(encoded(&Message::Commit { flags: 0, commit, end, commit_time }));
        let last = messages.iter().map(|message| self.0.push(message).unwrap()).last();
        match last {
            Some(Assembled::Transaction(transaction)) => transaction,
            other => panic!("{other:?}"),
        }
    }
}

fn relation(oid: u32, columns: &[&str]) -> Relation {
    let columns = columns.iter().map(|name| RelationColumn {
        name: (*name).to_owned(),
        type_oid: 23,
        type_modifier: -1,
        key: *name == "id",
    });
    let identity = ReplicaIdentity::Default;
    Relation { oid, schema: "s".into(), name: "t".into(), identity, columns: columns.collect() }
}

/// The catalog had table 1, with `id` and `n`, before position 100.
fn bound() -> Schemas {
    let mut schemas = Schemas::new();
    schemas.begin(Described { tables: vec![relation(1, &["id", "n"])], read_before: Boundary(Lsn(100)) });
    schemas
}

/// Takes a transaction in and tells what it has changed, and whether that is to be stored.
fn taken(schemas: &mut Schemas, transaction: &Transaction) -> (Vec<String>, bool) {
    schemas.changed = false;
    let steps = schemas.examine(transaction).unwrap();
    let changes = steps.iter().filter_map(|step| match step {
        Step::Change(change) => Some(change.description()),
        Step::Take { .. } => None,
    });
    let changes = changes.collect();
    schemas.take(transaction, steps);
    (changes, schemas.changed)
}

fn nothing() -> (Vec<String>, bool) {
    (Vec::new(), false)
}

const Z: &str = "column \"z\" added, of type int4";

#[test]
fn g2_the_first_description_is_held_against_the_catalog() {
    let (mut schemas, mut stream) = (bound(), Stream::new());
    assert_eq!(taken(&mut schemas, &stream.transaction(100, &[Table(1, &["id", "n"]), Row(1)])), nothing());
    let (mut schemas, mut stream) = (bound(), Stream::new());
    let later = stream.transaction(100, &[Table(1, &["id", "n", "z"]), Row(1)]);
    assert_eq!(taken(&mut schemas, &later), (vec![Z.to_owned()], true));
    // What is older than the catalog is what was there before.
    let (mut schemas, mut stream) = (bound(), Stream::new());
    let older = stream.transaction(99, &[Table(1, &["id"]), Row(1)]);
    assert_eq!(taken(&mut schemas, &older), (vec![], true));
    let then = stream.transaction(99, &[Table(1, &["id", "z"]), Row(1)]);
    assert_eq!(taken(&mut schemas, &then), (vec![Z.to_owned()], true));
}

#[test]
fn a_change_in_a_transaction_is_held_against_the_one_before_it() {
    let (mut schemas, mut stream) = (bound(), Stream::new());
    let said = [
        Table(1, &["id"]),
        Row(1),
        Table(1, &["id", "z"]),
        Row(1),
        Table(1, &["id", "z"]),
        Row(1),
        Table(1, &["id"]),
        Row(1),
    ];
    let dropped = |name: &str| format!("column \"{name}\" dropped");
    let transaction = stream.transaction(100, &said);
    assert_eq!(taken(&mut schemas, &transaction), (vec![dropped("n"), Z.to_owned(), dropped("z")], true));
    assert_eq!(schemas.tables[&1].relation.columns.len(), 1);
}

#[test]
fn a_table_that_joins_is_told_where_a_change_uses_it_and_a_partition_of_a_root_is_not() {
    let (mut schemas, mut stream) = (bound(), Stream::new());
    let joined = (vec![Difference::FirstSeen.to_string()], true);
    // The root is described, then the partition, and the row is the root's.
    let root = stream.transaction(100, &[Table(1, &["id", "n"]), Table(7, &["id"]), Row(1), Table(8, &[]), Row(1)]);
    assert_eq!(taken(&mut schemas, &root), nothing());
    let truncated = [Row(1), Table(5, &["id"]), Table(6, &["id"]), Truncated(&[1, 6])];
    assert_eq!(taken(&mut schemas, &stream.transaction(101, &truncated)), joined);
    assert!(schemas.tables.contains_key(&6) && !schemas.tables.contains_key(&5));
    assert_eq!(taken(&mut schemas, &stream.transaction(102, &[Row(1), Table(9, &["id"]), Row(9)])), joined);
    let then = stream.transaction(103, &[Table(9, &["id", "z"]), Row(9)]);
    assert_eq!(taken(&mut schemas, &then), (vec![Z.to_owned()], true));
}

#[test]
fn what_comes_again_is_older_than_what_is_stored_or_the_same() {
    let (mut schemas, mut stream) = (bound(), Stream::new());
    let first = [Table(1, &["id", "n"]), Row(1)];
    let then = [Table(1, &["id", "n", "z"]), Row(1)];
    taken(&mut schemas, &stream.transaction(100, &first));
    taken(&mut schemas, &stream.transaction(110, &then));
    let record = schemas.record("f").unwrap();
    let (id, mut schemas) = Schemas::decode(&record).unwrap();
    assert_eq!(id, "f");
    let mut stream = Stream::new();
    schemas.recall(&stream.transaction(100, &first));
    schemas.recall(&stream.transaction(110, &then));
    assert_eq!(schemas.record("f"), None);
    // Without a description: the last one is that of what came again.
    assert_eq!(taken(&mut schemas, &stream.transaction(120, &[Row(1)])), nothing());
    let changed = stream.transaction(121, &[Table(1, &["id", "n"]), Row(1)]);
    assert_eq!(taken(&mut schemas, &changed), (vec!["column \"z\" dropped".to_owned()], true));

    // The catalog alone is known, which is younger than what came again.
    let (mut schemas, mut stream) = (bound(), Stream::new());
    schemas.recall(&stream.transaction(50, &[Table(1, &["id"]), Row(1)]));
    let added = stream.transaction(120, &[Table(1, &["id", "z"]), Row(1)]);
    assert_eq!(taken(&mut schemas, &added), (vec![Z.to_owned()], true));
}

#[test]
fn what_was_described_before_the_flow_began_is_what_the_table_was() {
    let (mut schemas, mut stream) = (bound(), Stream::new());
    // Nobody is shown this transaction.
    stream.transaction(40, &[Table(1, &["id"]), Row(1)]);
    assert_eq!(taken(&mut schemas, &stream.transaction(60, &[Row(1)])), (vec![], true));
    let added = stream.transaction(120, &[Table(1, &["id", "z"]), Row(1)]);
    assert_eq!(taken(&mut schemas, &added), (vec![Z.to_owned()], true));
}

#[test]
fn where_nothing_is_described_nothing_is_looked_at() {
    let (mut schemas, mut stream) = (bound(), Stream::new());
    taken(&mut schemas, &stream.transaction(100, &[Table(1, &["id", "n"]), Row(1)]));
    taken(&mut schemas, &stream.transaction(101, &[Row(1)]));
    assert!(schemas.says_nothing(&stream.transaction(102, &[Row(1)])));
    // Another table's description in between does not hide that this one has changed.
    taken(&mut schemas, &stream.transaction(103, &[Table(2, &["id"]), Row(2)]));
    assert!(!schemas.says_nothing(&stream.transaction(104, &[Row(1)])));
}

#[test]
fn a4_the_record_comes_back_as_it_was_and_no_damage_goes_unnoticed() {
    let mut schemas = bound();
    let mut full = relation(2, &["id", "Q \"q\"", ""]);
    full.identity = ReplicaIdentity::Full;
    schemas.tables.insert(2, Known { relation: Arc::new(full), read_before: None });
    let record = schemas.record("f").unwrap();
    assert_eq!(schemas.record("f"), None);
    let back = Schemas::decode(&record).unwrap();
    assert_eq!(back, ("f".to_owned(), schemas));
    for at in 0..record.len() {
        let mut damaged = record.clone();
        damaged[at] ^= 1;
        assert!(Schemas::decode(&damaged).is_err(), "byte {at}");
        assert!(Schemas::decode(&record[..at]).is_err(), "cut at {at}");
    }
}
