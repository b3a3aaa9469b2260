//! Ranges that were read at different times, and the stream from before the first of them, give what the source has.

use std::collections::BTreeMap;

use pgonce::position::Lsn;
use pgonce::relation::RelationColumn;
use pgonce_testkit::Random;

use super::*;

fn relation(identity: ReplicaIdentity, key: &str) -> Relation {
    let column = |name: &str| RelationColumn {
        name: name.into(),
        type_oid: 20,
        type_modifier: -1,
        key: name == key || identity == ReplicaIdentity::Full,
    };
    Relation { oid: 1, schema: "s".into(), name: "t".into(), identity, columns: vec![column("id"), column("n")] }
}

fn stored(number: i32, low: Option<i64>, high: Option<i64>, boundary: Option<u64>) -> StoredPiece {
    let bound = |value: Option<i64>| value.map(KeyValue::Int);
    let extent = Extent::Key { column: "id".into(), low: bound(low), high: bound(high) };
    StoredPiece { number, extent, bytes: 0, boundary: boundary.map(|lsn| Boundary(Lsn(lsn))) }
}

fn scope(pieces: Vec<StoredPiece>) -> Scope {
    Scope::new(&[StoredTable { oid: 1, together: false, pieces }], HashSet::new())
}

fn at(lsn: u64) -> CommitLsn {
    CommitLsn(Lsn(lsn))
}

#[test]
fn a22_a_commit_exactly_at_the_boundary_is_new() {
    let whole = StoredPiece { number: 0, extent: Extent::Whole, bytes: 0, boundary: Some(Boundary(Lsn(100))) };
    let scope = scope(vec![whole]);
    let relation = relation(ReplicaIdentity::Default, "id");
    assert!(matches!(scope.takes(&relation, at(99)), Ok(Taken::Nothing)));
    assert!(matches!(scope.takes(&relation, at(100)), Ok(Taken::All)));
}

#[test]
fn d4_a_table_that_was_not_copied_is_named() {
    let mut other = relation(ReplicaIdentity::Default, "id");
    other.oid = 2;
    let stop = scope(Vec::new()).takes(&other, at(200)).map(|_| ()).unwrap_err();
    assert_eq!(stop.reason(), &Reason::TableJoined { table: "s.t".into(), oid: 2 });
    let mut scope = Scope::new(&[], HashSet::from([2]));
    assert!(matches!(scope.takes(&other, at(200)), Ok(Taken::All)), "a flow that began without a copy");
    scope.plan(2, &[]);
    assert!(matches!(scope.takes(&other, at(200)), Ok(Taken::Nothing)), "it is left out");
}

#[test]
fn ranges_of_blocks_hold_only_all_together() {
    let block = |number, low, high, boundary: Option<u64>| StoredPiece {
        number,
        extent: Extent::Ctid { low, high },
        bytes: 0,
        boundary: boundary.map(|lsn| Boundary(Lsn(lsn))),
    };
    let relation = relation(ReplicaIdentity::Full, "id");
    let mut scope = scope(vec![block(0, None, Some(7), Some(100)), block(1, Some(7), None, None)]);
    assert!(matches!(scope.takes(&relation, at(500)), Ok(Taken::Nothing)));
    scope.landed(1, 1, Boundary(Lsn(100)));
    assert!(matches!(scope.takes(&relation, at(500)), Ok(Taken::All)));
    assert!(matches!(scope.takes(&relation, at(99)), Ok(Taken::Nothing)));
}

#[test]
fn b7_a_replica_identity_that_has_lost_the_column_of_the_ranges_is_noticed() {
    let scope = scope(vec![stored(0, None, Some(10), Some(100)), stored(1, Some(10), None, Some(200))]);
    let relation = relation(ReplicaIdentity::Index, "n");
    let row = [Column::Text(b"5"), Column::Text(b"1")];
    let by_key = |lsn| match scope.takes(&relation, at(lsn)).unwrap() {
        Taken::ByKey(pieces) => pieces,
        other => panic!("{other:?}"),
    };
    let stop = by_key(150).update(None, &row).unwrap_err();
    assert!(stop.to_string().contains("has lost column \"id\""), "{stop}");
    assert!(stop.hint().contains("--reseed s.t"), "{}", stop.hint());
    assert!(by_key(150).delete([Column::Null, Column::Text(b"1")]).is_err());
    // An insert has all its values, and where all ranges agree nobody asks.
    assert_eq!(by_key(150).insert(row), Ok(true));
    assert!(matches!(scope.takes(&relation, at(200)), Ok(Taken::All)));
    assert!(matches!(scope.takes(&relation, at(99)), Ok(Taken::Nothing)));
}

/// A change of the source's table, by key and value.
#[derive(Clone, Copy, Debug)]
enum Change {
    Insert(i64, i64),
    Update(i64, i64, i64),
    Delete(i64),
    Truncate,
}

type Rows = BTreeMap<i64, i64>;

fn random_change(random: &mut Random, rows: &Rows) -> Change {
    let key = |random: &mut Random| random.below(24) as i64 - 12;
    let (some, fresh, value) = (key(random), key(random), random.below(1_000) as i64);
    let there = rows.range(some..).next().or_else(|| rows.iter().next()).map(|(key, _)| *key);
    match (random.below(20), there) {
        (0, _) => Change::Truncate,
        (1..6, Some(key)) => Change::Delete(key),
        (6..10, Some(key)) => Change::Update(key, key, value),
        (10..15, Some(key)) if !rows.contains_key(&fresh) => Change::Update(key, fresh, value),
        _ if !rows.contains_key(&fresh) => Change::Insert(fresh, value),
        (_, Some(key)) => Change::Delete(key),
        _ => Change::Truncate,
    }
}

fn apply(rows: &mut Rows, change: Change) {
    match change {
        Change::Insert(key, value) => assert_eq!(rows.insert(key, value), None, "twice: {change:?}"),
        Change::Update(old, new, value) => {
            assert!(rows.remove(&old).is_some(), "not there: {change:?}");
            assert_eq!(rows.insert(new, value), None, "twice: {change:?}");
        }
        Change::Delete(key) => assert!(rows.remove(&key).is_some(), "not there: {change:?}"),
        Change::Truncate => rows.clear(),
    }
}

/// The target's side of a change.
fn replay(target: &mut Rows, scope: &Scope, relation: &Relation, commit: CommitLsn, change: Change) {
    let pieces = match scope.takes(relation, commit).unwrap() {
        Taken::All => return apply(target, change),
        Taken::Nothing => return,
        Taken::ByKey(pieces) => pieces,
    };
    let text = |value: i64| value.to_string();
    match change {
        Change::Insert(key, _) => {
            if pieces.insert([Column::Text(text(key).as_bytes())]).unwrap() {
                apply(target, change);
            }
        }
        Change::Delete(key) => {
            if pieces.delete([Column::Text(text(key).as_bytes())]).unwrap() {
                apply(target, change);
            }
        }
        Change::Update(old, new, value) => {
            let (before, after) = (text(old), text(new));
            let (before, after) = ([Column::Text(before.as_bytes())], [Column::Text(after.as_bytes())]);
            // With an identity other than FULL, the old key is sent where it has changed.
            let sent = old != new || relation.identity == ReplicaIdentity::Full;
            match pieces.update(sent.then_some(before.as_slice()), &after).unwrap() {
                UpdateOf::Nothing => {}
                UpdateOf::Row => apply(target, change),
                UpdateOf::OldOnly => apply(target, Change::Delete(old)),
                UpdateOf::NewOnly => apply(target, Change::Insert(new, value)),
            }
        }
        Change::Truncate => {
            let emptied = pieces.truncated();
            for piece in &pieces.pieces.pieces {
                let condition = piece.extent.condition("id").unwrap_or_else(|| "true".into());
                if emptied.contains(&condition) {
                    target.retain(|key, _| !holds(&piece.extent, *key));
                }
            }
        }
    }
}

fn holds(extent: &Extent, key: i64) -> bool {
    let Extent::Key { low, high, .. } = extent else { panic!("{extent:?}") };
    low.is_none_or(|low| low <= KeyValue::Int(key)) && high.is_none_or(|high| KeyValue::Int(key) < high)
}

#[test]
fn d3_ranges_read_at_any_times_and_the_stream_give_what_the_source_has() {
    for seed in 0..3_000 {
        let mut random = Random::new(seed);
        // What the source had before each commit; commits are 10 apart, and a boundary may be one of them.
        let mut history = vec![Rows::new()];
        let mut changes = Vec::new();
        for _ in 0..random.between(1, 60) {
            let mut rows = history.last().unwrap().clone();
            let change = random_change(&mut random, &rows);
            apply(&mut rows, change);
            changes.push(change);
            history.push(rows);
        }
        let commit = |nth: usize| 1_000 + 10 * nth as u64;
        let mut cuts: Vec<i64> = (0..random.below(5)).map(|_| random.below(24) as i64 - 12).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let edges: Vec<Option<i64>> =
            std::iter::once(None).chain(cuts.iter().copied().map(Some)).chain([None]).collect();
        let mut pieces = Vec::new();
        let mut target = Rows::new();
        for (number, edge) in edges.windows(2).enumerate() {
            // Everything that committed before it has been read.
            let boundary = random.between(995, commit(changes.len()) + 5);
            let read = (0..changes.len()).filter(|nth| commit(*nth) < boundary).count();
            let piece = stored(number as i32, edge[0], edge[1], Some(boundary));
            target.extend(history[read].iter().filter(|(key, _)| holds(&piece.extent, **key)));
            pieces.push(piece);
        }
        let scope = scope(pieces);
        let identity = if random.below(2) == 0 { ReplicaIdentity::Full } else { ReplicaIdentity::Default };
        let relation = relation(identity, "id");
        for (nth, change) in changes.iter().enumerate() {
            replay(&mut target, &scope, &relation, at(commit(nth)), *change);
        }
        assert_eq!(&target, history.last().unwrap(), "seed {seed}");
    }
}
