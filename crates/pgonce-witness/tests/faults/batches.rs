//! Batches that are open when something else happens.

use std::time::{Duration, Instant};

use pgonce::position::Lsn;
use pgonce_testkit::{Ending, Proxy, majors};

use crate::stage::*;

/// Where the slot stands, whoever reads it.
async fn confirmed(flow: &Flow<'_>) -> Lsn {
    let sql = format!("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{}'", flow.slot());
    text(&flow.source().await, &sql).await.parse().unwrap()
}

async fn written(flow: &Flow<'_>) -> Lsn {
    text(&flow.source().await, "SELECT pg_current_wal_insert_lsn()::text").await.parse().unwrap()
}

/// WAL that the flow has nothing of.
async fn other_wal(flow: &Flow<'_>) {
    flow.at_source(
        "CREATE TABLE IF NOT EXISTS other (b text); INSERT INTO other SELECT repeat(md5(i::text), 30)
                    FROM generate_series(1, 2000) i",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batching_x_reconnect_a14_an_open_batch_does_not_survive_into_the_next_connection() {
    for major in majors().unwrap() {
        let stage = Stage::new(major).await;
        let tested = async |keep: Keep| {
            let mut flow = stage.flow(keep).await;
            let proxy = Proxy::to(&stage.source).await.unwrap();
            flow.source_url = proxy.url(&flow.name);
            let run = flow.streaming(&["--delay-ms", "3000"]).await;
            flow.numbered(3).await;
            // A batch is open, and its timer runs, when the connection goes; with the next one it all comes again.
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert_eq!(arrived(&flow.target().await).await, [0; 0], "the batch is open");
            for _ in 0..2 {
                assert!(proxy.end_connections(Ending::Reset) > 0);
                flow.said("connection").await;
                tokio::time::sleep(Duration::from_millis(700)).await;
            }
            let began = Instant::now();
            flow.numbered(2).await;
            flow.logged(5).await;
            assert!(began.elapsed() > Duration::from_millis(500), "the timer of the lost connection closed a batch");
            run.sigterm().await;
            flow.assert_witnesses(0, 0).await;
        };
        tokio::join!(tested(Keep::Atomic), tested(Keep::File), tested(Keep::Postgres));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batching_x_idle_nothing_is_acknowledged_past_an_open_batch() {
    for major in majors().unwrap() {
        let stage = Stage::new(major).await;
        let tested = async |keep: Keep| {
            let flow = stage.flow(keep).await;
            let run = flow.streaming(&["--delay-ms", "4000"]).await;
            let before = written(&flow).await;
            flow.numbered(1).await;
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(3) {
                other_wal(&flow).await;
                assert!(confirmed(&flow).await <= before, "{keep:?} on {major}: past the open batch");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            flow.logged(1).await;
            // Closed, it holds nothing back.
            let now = written(&flow).await;
            other_wal(&flow).await;
            flow.eventually("idle positions are acknowledged", || async { confirmed(&flow).await >= now }).await;
            run.sigterm().await;
            flow.assert_witnesses(0, 0).await;
        };
        tokio::join!(tested(Keep::Atomic), tested(Keep::File), tested(Keep::Postgres));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batching_x_stop_an_open_batch_does_not_hold_up_the_end_and_comes_again() {
    for major in majors().unwrap() {
        let stage = Stage::new(major).await;
        let tested = async |keep: Keep| {
            let flow = stage.flow(keep).await;
            let run = flow.streaming(&["--delay-ms", "60000"]).await;
            flow.numbered(3).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
            let took = run.sigterm().await;
            assert!(took < Duration::from_secs(5), "{took:?}");
            let mut run = flow.streaming(&["--delay-ms", "60000"]).await;
            flow.numbered(3).await;
            let _ = run.sigkill();
            // With a stop position in view, nothing is waited for.
            let began = Instant::now();
            let drained = flow.start(&["--delay-ms", "60000", "--until-now"]).ended().await;
            assert_eq!(drained, Some(0), "{}", flow.tail());
            assert!(began.elapsed() < Duration::from_secs(30));
            assert_eq!(arrived(&flow.target().await).await.len(), 6);
            flow.assert_written(0, 0).await;
        };
        tokio::join!(tested(Keep::Atomic), tested(Keep::File), tested(Keep::Postgres));
    }
}
