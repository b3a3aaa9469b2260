//! Round trips of schemas, rows and transactions that seeds describe: copied, streamed, killed now and then, and
//! compared byte for byte with the source and with a native subscription.
//!
//! `PGONCE_SEED=7 cargo test -p pgonce-cli --test roundtrip round_trips` runs one seed, on each of the majors.

mod common;
mod pair;
mod trip;

use std::sync::Arc;

use pgonce_testkit::majors;
use tokio::sync::Semaphore;
use trip::kills::kills_of_the_copy;
use trip::parts::{parts, reason};
use trip::{Counts, kept, round_trip};

/// How many seeds are under way at a time.
const AT_A_TIME: usize = 4;

/// Runs seeds, each on a major, and fails with all that failed.
async fn run(trips: Vec<(u64, u32)>) -> Result<Counts, String> {
    let places = Arc::new(Semaphore::new(AT_A_TIME));
    let mut under_way = Vec::new();
    for (seed, major) in trips {
        let places = Arc::clone(&places);
        let trip = tokio::spawn(async move {
            let _place = places.acquire().await.unwrap();
            round_trip(seed, major).await
        });
        under_way.push((seed, major, trip));
    }
    let (mut counts, mut failed) = (Counts::default(), Vec::new());
    for (seed, major, trip) in under_way {
        match trip.await {
            Ok(more) => counts += more,
            Err(error) => {
                failed.push(format!(
                    "seed {seed} on PostgreSQL {major}: {}\n  kept in {}\n  again: PGONCE_TEST_PG={major} \
                     PGONCE_SEED={seed} cargo test -p pgonce-cli --test roundtrip round_trips",
                    reason(error),
                    kept(seed, major).display()
                ));
            }
        }
    }
    if failed.is_empty() { Ok(counts) } else { Err(format!("{} seeds failed\n{}", failed.len(), failed.join("\n"))) }
}

/// Seeds, each on one of the majors in turn.
fn spread(seeds: std::ops::RangeInclusive<u64>) -> Vec<(u64, u32)> {
    let majors = majors().unwrap();
    seeds.map(|seed| (seed, majors[usize::try_from(seed).unwrap() % majors.len()])).collect()
}

/// The seeds that are chosen by `PGONCE_SEED` (`7`, `7,9` or `1-50`), each on every major; without it those of `all`,
/// which the majors share.
fn chosen(all: std::ops::RangeInclusive<u64>) -> Vec<(u64, u32)> {
    let majors = majors().unwrap();
    let Ok(text) = std::env::var("PGONCE_SEED") else { return spread(all) };
    let number = |text: &str| text.trim().parse::<u64>().unwrap_or_else(|_| panic!("PGONCE_SEED: {text:?}"));
    let seeds = text.split(',').flat_map(|part| match part.split_once('-') {
        Some((first, last)) => number(first)..=number(last),
        None => number(part)..=number(part),
    });
    seeds.flat_map(|seed| majors.iter().map(move |major| (seed, *major)).collect::<Vec<_>>()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn round_trips_of_twenty_seeds_arrive_byte_for_byte() {
    let trips = chosen(1..=20);
    let alone = trips.len() < 10;
    let counts = run(trips).await.unwrap_or_else(|failed| panic!("{failed}"));
    println!("{counts:?}");
    // Not a proof of nothing.
    assert!(counts.committed > 3 * counts.given_up && counts.tables > 0, "{counts:?}");
    assert!(alone || counts.kills > 0 && counts.native * 10 > counts.tables * 7 && counts.rows > 100, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "five hundred seeds take an hour: make soak"]
async fn soak_round_trips_of_five_hundred_seeds() {
    const SEEDS: u64 = 25;
    parts("roundtrip", 20, async |part| {
        let first = (part - 1) * SEEDS + 1;
        run(spread(first..=first + SEEDS - 1)).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a hundred kills take a quarter of an hour: make soak"]
async fn soak_a_hundred_kills_of_the_copy_lose_nothing_and_copy_nothing_twice() {
    const KILLS: u32 = 10;
    let majors = majors().unwrap();
    parts("kills-of-the-copy", 10, async |part| {
        let major = majors[usize::try_from(part).unwrap() % majors.len()];
        let killed = tokio::spawn(kills_of_the_copy(part, major, KILLS)).await;
        killed.map_err(|error| format!("PostgreSQL {major}: {}", reason(error)))
    })
    .await;
}
