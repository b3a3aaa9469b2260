//! Kills, at any point.

use std::time::Duration;

use pgonce_testkit::witness::Comparison;
use pgonce_testkit::{Hits, KillCount, Random, RandomKills, Workload, majors};
use tokio::join;

use crate::stage::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_random_kills_lose_nothing_and_write_nothing_twice() {
    for major in majors().unwrap() {
        let (hits, _) = random_kills(major, u64::from(major), 20).await;
        assert!(hits.all() >= 20, "{hits:?}");
    }
}

/// Kills a flow in the atomic mode, and the servers, while others write, and compares.
pub async fn random_kills(major: u32, seed: u64, wanted: u32) -> (Hits, Comparison) {
    let stage = Stage::new(major).await;
    let flow = stage.flow(Keep::Atomic).await;
    let load = Workload::new(seed).connections(3).pause(Duration::from_millis(5)).start(&flow.source_url);
    let slot = flow.slot();
    let kills = RandomKills { source: &stage.source, target: &stage.target, slot: &slot, seed, wanted };
    let hits =
        kills.run(|| Ok(flow.command(&[]).spawn().unwrap())).await.unwrap_or_else(|e| panic!("{e}\n{}", flow.tail()));
    load.stop().await;
    flow.assert_witnesses(0, 0).await;
    (hits, flow.compare().await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_kills_repeat_one_batch_each_at_most_where_the_checkpoint_follows_the_data() {
    const KILLS: u32 = 10;
    for major in majors().unwrap() {
        let stage = Stage::new(major).await;
        // Time between the two writes of a batch is short: with each transaction a batch, it is hit more often.
        let kept = async |keep: Keep, batch: usize| {
            let name = format!("{}_{batch}", keep.word());
            let mut flow = stage.named(keep, &name).await;
            flow.arguments = vec!["--batch".to_owned(), batch.to_string()];
            let load = Workload::new(10).connections(2).pause(Duration::from_millis(10)).start(&flow.source_url);
            let mut random = Random::new(10);
            let mut kills = KillCount::at_least(KILLS);
            while kills.count() < KILLS {
                let mut run = flow.start(&[]);
                tokio::time::sleep(Duration::from_millis(100 + random.below(500))).await;
                kills.record(run.sigkill());
            }
            load.stop().await;
            flow.assert_witnesses(KILLS as usize, batch).await
        };
        let runs = join!(kept(Keep::File, 1), kept(Keep::File, 7), kept(Keep::Postgres, 1), kept(Keep::Postgres, 7));
        println!("PostgreSQL {major}: came again {runs:?}");
    }
}
