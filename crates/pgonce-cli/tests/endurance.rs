//! `pgonce run` under random kills, and with a transaction larger than memory.

mod common;
#[path = "trip/parts.rs"]
mod parts;

use std::time::{Duration, Instant};

use common::*;
use parts::{parts, reason};
use pgonce_testkit::memory::{limited, peak_rss};
use pgonce_testkit::witness::{self, Comparison};
use pgonce_testkit::{Hits, RandomKills, Workload, majors};
use serde_json::{Value, json};

/// Kills a flow and the servers while others write, and compares.
async fn random_kills(major: u32, seed: u64, wanted: u32) -> (Hits, Comparison) {
    let flow = Flow::new(major).await;
    flow.witnesses().await;
    flow.drain().await;
    let load = Workload::new(seed).connections(3).pause(Duration::from_millis(5)).start(&flow.source_url);
    let kills = RandomKills { source: &flow.source, target: &flow.target, slot: "pgonce_test", seed, wanted };
    let log = || std::fs::OpenOptions::new().create(true).append(true).open(flow.folder().join("data.log")).unwrap();
    let start = || Ok(flow.command(&["run"]).stdout(log()).stderr(log()).spawn().unwrap());
    let hits = kills.run(start).await.unwrap_or_else(|error| panic!("{error}\n{}", flow.log()));
    load.stop().await;
    flow.assert_witnesses().await;
    let (source, target) = (flow.source_client().await, flow.target_client().await);
    (hits, witness::compare(&source, &target).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_random_kills_of_the_flow_and_its_servers_lose_nothing_and_apply_nothing_twice() {
    for major in majors().unwrap() {
        let (hits, _) = random_kills(major, u64::from(major), 20).await;
        assert!(hits.all() >= 20, "{hits:?}");
    }
}

/// What the process may take.
const MEMORY: u64 = 256 << 20;

/// Carries the transaction of fault I1 (`rows` rows, the last of which has as many bytes) under the limit.
async fn carried(major: u32, rows: u64) -> Value {
    let flow = Flow::new(major).await;
    flow.witnesses().await;
    flow.both("CREATE TABLE grown (id int PRIMARY KEY, n int, b text)").await;
    flow.drain().await;
    let log = || std::fs::OpenOptions::new().create(true).append(true).open(flow.folder().join("data.log")).unwrap();
    let mut command = limited(&flow.command(&["run"]), MEMORY);
    let mut run = Run(command.stdout(log()).stderr(log()).spawn().unwrap());
    flow.streaming().await;
    let began = Instant::now();
    flow.at_source(&format!("INSERT INTO grown SELECT x, x, repeat('a', x) FROM generate_series(1, {rows}) x")).await;
    flow.at_source("INSERT INTO witness_log VALUES (nextval('witness_number'), 0)").await;
    let target = flow.target_client().await;
    while number(&target, "SELECT count(*) FROM witness_log").await < 1 {
        run.assert_running();
        assert!(began.elapsed() < Duration::from_secs(900));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (took, peak) = (began.elapsed(), peak_rss(run.id()).unwrap());
    run.sigterm().await;
    let bytes = rows * (rows + 1) / 2;
    let sql = "SELECT count(*) || ' ' || sum(length(b)) || ' ' || count(DISTINCT xmin::text) FROM grown";
    assert_eq!(text(&target, sql).await, format!("{rows} {bytes} 1"), "one target transaction");
    flow.assert_witnesses().await;
    println!("PostgreSQL {major}, {} MB: peak RSS {} MB, {took:.1?}", bytes / 1_000_000, peak >> 20);
    assert!(peak < MEMORY, "{peak} bytes");
    json!({"transaction_bytes": bytes, "peak_rss_bytes": peak, "seconds": took.as_secs()})
}

/// Carries a small one and a large one, and compares what they took.
async fn flat(major: u32, small: u64, large: u64) -> Vec<Value> {
    let results = vec![carried(major, small).await, carried(major, large).await];
    let peak = |at: usize| results[at]["peak_rss_bytes"].as_u64().unwrap();
    assert!(peak(1) < peak(0) + (64 << 20), "memory grows with the transaction: {results:?}");
    results
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_a_transaction_larger_than_memory_goes_through_in_flat_memory() {
    // 20 MB and 200 MB.
    flat(majors().unwrap()[0], 6_300, 20_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "two hundred kills on each major take half an hour: make soak"]
async fn soak_two_hundred_random_kills_of_the_flow_and_its_servers_lose_nothing_and_apply_nothing_twice() {
    parts("kills-of-run", 10, async |part| {
        let mut counts = Vec::new();
        for major in majors().unwrap() {
            let killed = tokio::spawn(random_kills(major, 1_000 * part + u64::from(major), 20)).await;
            let (hits, found) = killed.map_err(|error| format!("PostgreSQL {major}: {}", reason(error)))?;
            counts.push(json!({
                "postgresql": major,
                "process_kills": hits.process,
                "walsender_ends": hits.walsender,
                "source_crashes": hits.source,
                "target_crashes": hits.target,
                "transactions": found.source_transactions,
                "lost": found.lost,
                "duplicated": found.duplicated,
                "mirror_differences": found.mirror_differences,
            }));
        }
        Ok(counts)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "1.8 GB in one transaction on each major: make soak"]
async fn soak_i1_a_transaction_of_1800_mb_goes_through_in_256_mb() {
    let majors = majors().unwrap();
    parts("i1-run", majors.len() as u64, async |part| {
        let major = majors[usize::try_from(part).unwrap() - 1];
        // 200 MB and 1.8 GB.
        let carried = tokio::spawn(flat(major, 20_000, 60_000)).await;
        let results = carried.map_err(|error| format!("PostgreSQL {major}: {}", reason(error)))?;
        Ok(json!({"postgresql": major, "limit_bytes": MEMORY, "transactions": results}))
    })
    .await;
}
