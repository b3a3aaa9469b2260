//! Kills at any point: nothing lost, nothing twice. Every test here carries both witnesses.

mod common;

use std::time::Duration;

use common::*;
use pgonce_testkit::{KillCount, Random, Workload, kill, majors, witness};

/// Creates the witnesses on both sides.
async fn witnesses(flow: &Flow) {
    witness::create(&flow.source_client().await).await.unwrap();
    witness::create_target(&flow.target_client().await).await.unwrap();
}

/// Drains and compares the witnesses.
async fn assert_witnesses(flow: &Flow) {
    flow.drain().await;
    let (source, target) = (flow.source_client().await, flow.target_client().await);
    witness::compare(&source, &target).await.unwrap().assert_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_random_kills_lose_nothing_and_apply_nothing_twice() {
    for major in majors().unwrap() {
        let flow = Flow::new(major).await;
        witnesses(&flow).await;
        let load = Workload::new(20).connections(3).start(&flow.source_url);
        let mut random = Random::new(20);
        let mut kills = KillCount::at_least(20);
        while kills.count() < 20 {
            let mut run = flow.start(&[]);
            tokio::time::sleep(Duration::from_millis(50 + random.below(1_200))).await;
            kills.record(kill::sigkill(&mut run).unwrap());
        }
        load.stop().await;
        assert_witnesses(&flow).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a8_a_snapshot_under_load_misses_no_row_at_the_handoff_and_takes_none_twice() {
    for major in majors().unwrap() {
        let flow = Flow::new(major).await;
        witnesses(&flow).await;
        let load = Workload::new(8).connections(4).start(&flow.source_url);
        tokio::time::sleep(Duration::from_millis(500)).await;
        let run = flow.start(&["--until", "now"]);
        let output = tokio::task::spawn_blocking(move || run.wait_with_output()).await.unwrap().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", flow.log());
        load.stop().await;
        assert_witnesses(&flow).await;
    }
}
