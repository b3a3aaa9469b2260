//! Spools and bodies against plain lists.

use bytes::BytesMut;
use proptest::prelude::*;

use super::super::body::Body;
use super::super::budget::{Meter, SpillError, SpillSettings};
use super::super::spool::Spool;

fn entries(body: &Body) -> Vec<Vec<u8>> {
    let mut reader = body.reader();
    let mut found = Vec::new();
    while reader.advance().unwrap() {
        let entry = reader.entry();
        found.push(entry.to_vec());
    }
    found
}

#[derive(Clone, Debug)]
enum Step {
    Push(usize),
    /// Back to an earlier length, as a part of all entries.
    Back(f64),
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => prop_oneof![Just(0usize), 0usize..50, 0usize..5_000, Just(300_000), Just(1_000_000)].prop_map(Step::Push),
        2 => (0.0..1.0).prop_map(Step::Back),
        2 => Just(Step::Flush),
    ]
}

fn meter(memory: usize, disk: u64) -> std::sync::Arc<Meter> {
    Meter::new(SpillSettings { memory, disk, ..SpillSettings::default() })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_was_collected_is_read_back_in_memory_and_spilled_alike(
        transactions in prop::collection::vec(prop::collection::vec(step(), 0..60), 1..4),
        memory in prop_oneof![Just(0usize), Just(100), Just(10_000), Just(usize::MAX)],
    ) {
        let (spilling, plain) = (meter(memory, u64::MAX), meter(usize::MAX, u64::MAX));
        let (mut rest, mut plain_rest) = (BytesMut::new(), BytesMut::new());
        let mut bodies = Vec::new();
        for (t, steps) in transactions.iter().enumerate() {
            let mut spool = Spool::new(spilling.clone(), rest);
            let mut expected: Vec<(u64, Vec<u8>)> = Vec::new();
            for (i, step) in steps.iter().enumerate() {
                match *step {
                    Step::Push(length) => {
                        let entry = vec![(t * 31 + i) as u8; 1 + length];
                        expected.push((spool.length(), entry.clone()));
                        spool.push(entry[0], &entry[1..]).unwrap();
                    }
                    Step::Back(part) => {
                        let keep = (expected.len() as f64 * part) as usize;
                        if let Some((length, _)) = expected.get(keep) {
                            spool.truncate(*length).unwrap();
                            expected.truncate(keep);
                        }
                    }
                    Step::Flush => spool.flush().unwrap(),
                }
            }
            let mut straight = Spool::new(plain.clone(), plain_rest);
            for (_, entry) in &expected {
                straight.push(entry[0], &entry[1..]).unwrap();
            }
            let (a, digest_a, left) = spool.finish().unwrap();
            let (b, digest_b, plain_left) = straight.finish().unwrap();
            (rest, plain_rest) = (left, plain_left);
            let expected: Vec<Vec<u8>> = expected.into_iter().map(|(_, entry)| entry).collect();
            prop_assert!(entries(&a) == expected);
            prop_assert!(entries(&a) == entries(&b)); // a second pass
            prop_assert_eq!(digest_a, digest_b);
            prop_assert_eq!(a.size(), b.size());
            prop_assert_eq!((spilling.memory(), spilling.assembling()), (0, 0));
            prop_assert_eq!(spilling.on_disk(), bodies.iter().map(on_disk).sum::<u64>() + on_disk(&a));
            bodies.push(a);
        }
        drop(bodies);
        prop_assert_eq!(spilling.on_disk(), 0);
    }
}

fn on_disk(body: &Body) -> u64 {
    body.size() - body.in_memory() as u64
}

#[test]
fn a_spool_that_is_over_the_bound_of_the_disk_says_so_and_leaves_nothing() {
    let meter = meter(1000, 10_000);
    let mut kept = Spool::new(meter.clone(), BytesMut::new());
    kept.push(b'I', &[0; 6_000]).unwrap();
    kept.flush().unwrap();
    let mut spool = Spool::new(meter.clone(), BytesMut::new());
    spool.push(b'I', &[0; 5_000]).unwrap();
    assert!(matches!(spool.flush(), Err(SpillError::Full)));
    drop(spool);
    assert_eq!(meter.on_disk(), 6_005);
    drop(kept);
    assert_eq!((meter.on_disk(), meter.memory(), meter.assembling()), (0, 0, 0));
}
