//! Transactions larger than memory.

use std::time::{Duration, Instant};

use pgonce_testkit::majors;
use pgonce_testkit::memory::{limited, peak_rss};
use serde_json::{Value, json};

use crate::stage::*;

/// What the process may take.
const MEMORY: u64 = 256 << 20;

/// One transaction of fault I1: `rows` rows, the last of which has as many bytes. 60,000 of them are 1.8 GB.
async fn grown(flow: &Flow<'_>, rows: u64) {
    flow.at_source(&format!("INSERT INTO grown SELECT x, x, repeat('a', x) FROM generate_series(1, {rows}) x")).await;
}

/// Carries the transaction under the limit, and returns the most memory that the process had, and how long it took.
async fn carried(stage: &Stage, keep: Keep, rows: u64) -> (u64, Duration) {
    let flow = stage.named(keep, &format!("{}_{rows}", keep.word())).await;
    let table = "CREATE TABLE grown (id int PRIMARY KEY, n int, b text)";
    flow.at_target(table).await;
    flow.at_source(&format!("{table}; ALTER PUBLICATION p ADD TABLE grown")).await;
    flow.numbered(1).await;
    let log = || std::fs::OpenOptions::new().create(true).append(true).open(flow.log_file()).unwrap();
    let mut command = limited(&flow.command(&[]), MEMORY);
    let mut run = Run(command.stdout(log()).stderr(log()).spawn().unwrap());
    flow.logged(1).await;
    let began = Instant::now();
    grown(&flow, rows).await;
    flow.numbered(1).await;
    let target = flow.target().await;
    while number(&target, LOGGED).await < 2 {
        assert!(run.is_running(), "{}", flow.tail());
        assert!(began.elapsed() < Duration::from_secs(900), "{}", flow.tail());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let took = began.elapsed();
    let peak = peak_rss(run.id()).unwrap();
    run.sigterm().await;
    let sql = "SELECT count(*) || ' ' || sum(length(b)) || ' ' || count(DISTINCT xmin::text) FROM grown";
    assert_eq!(text(&target, sql).await, format!("{rows} {} 1", rows * (rows + 1) / 2), "one target transaction");
    flow.assert_witnesses(0, 0).await;
    (peak, took)
}

fn result(keep: Keep, rows: u64, (peak, took): (u64, Duration)) -> Value {
    let bytes = rows * (rows + 1) / 2;
    println!("{} MB, {}: peak RSS {} MB, {took:.1?}", bytes / 1_000_000, keep.word(), peak >> 20);
    assert!(peak < MEMORY, "{peak} bytes");
    json!({"keep": keep.word(), "transaction_bytes": bytes, "peak_rss_bytes": peak, "seconds": took.as_secs()})
}

/// Carries a small one and a large one, in both modes, and compares what they took.
pub async fn flat(major: u32, small: u64, large: u64) -> Vec<Value> {
    let stage = Stage::new(major).await;
    let mut results = Vec::new();
    for keep in [Keep::Atomic, Keep::File] {
        let (little, much) = (carried(&stage, keep, small).await, carried(&stage, keep, large).await);
        results.extend([result(keep, small, little), result(keep, large, much)]);
        assert!(much.0 < little.0 + (64 << 20), "memory grows with the transaction: {results:?}");
    }
    results
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_a_transaction_larger_than_memory_goes_through_in_flat_memory() {
    // 20 MB and 200 MB.
    flat(*majors().unwrap().last().unwrap(), 6_300, 20_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i3_updates_of_large_rows_with_identity_full_take_linear_time_and_i4_one_large_row_is_delivered() {
    for major in majors().unwrap() {
        let stage = Stage::new(major).await;
        let tested = async |keep: Keep| {
            let flow = stage.flow(keep).await;
            flow.at_source("ALTER TABLE witness_mirror ALTER large SET STORAGE EXTERNAL").await;
            let insert = |first: u32, last: u32| {
                format!(
                    "INSERT INTO witness_mirror (id, number, large) SELECT i, 0, repeat('x', 10000)
                         FROM generate_series({first}, {last}) i"
                )
            };
            flow.at_source(&insert(10_001, 14_000)).await;
            let run = flow.streaming(&[]).await;
            // The old row goes along with the new one: 20 kB a row.
            let mut times = Vec::new();
            for (logged, rows) in [(1, 500), (2, 4_000)] {
                let began = Instant::now();
                flow.at_source(&format!(
                    "BEGIN; UPDATE witness_mirror SET counter = counter + 1 WHERE id BETWEEN 10001 AND 10000 + {rows};
                     INSERT INTO witness_log VALUES (nextval('witness_number'), 0); COMMIT"
                ))
                .await;
                flow.logged(logged).await;
                times.push(began.elapsed());
            }
            // I4: 50 MB in one row.
            flow.at_source(
                "BEGIN; INSERT INTO witness_mirror (id, number, large) VALUES (9000, 0, repeat('x', 50000000));
                 INSERT INTO witness_log VALUES (nextval('witness_number'), 0); COMMIT",
            )
            .await;
            flow.logged(3).await;
            run.sigterm().await;
            flow.assert_witnesses(0, 0).await;
            times
        };
        for keep in [Keep::Atomic, Keep::File] {
            let times = tested(keep).await;
            println!("PostgreSQL {major}, {}: 10 MB and 80 MB in {times:?}", keep.word());
            assert!(times[1] < 24 * times[0].max(Duration::from_millis(250)), "{times:?}");
        }
    }
}
