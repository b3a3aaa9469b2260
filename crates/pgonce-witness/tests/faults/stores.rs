//! Checkpoint stores that fail behind a sink that has written: at most one batch comes again, nothing is lost, and the
//! flow does not stand still.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use pgonce_testkit::{Ending, Proxy, majors};

use crate::stage::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_under_the_store_repeats_one_batch_and_heals() {
    for major in majors().unwrap() {
        let stage = Stage::new(major).await;
        for (name, batch) in [("each", 1), ("batches", 3)] {
            let mut flow = stage.named(Keep::File, name).await;
            flow.arguments = ["--delay-ms", "300", "--batch"].map(str::to_owned).into();
            flow.arguments.push(batch.to_string());
            let run = flow.streaming(&[]).await;
            flow.numbered(4).await;
            flow.logged(4).await;
            // The new file is written onto a device that is always full.
            let new = Path::new(&flow.store).join("state.json.new");
            // Not while one is being put in its place.
            flow.eventually("the link is made", || async { symlink("/dev/full", &new).is_ok() }).await;
            flow.numbered(6).await;
            flow.said("sink_busy").await;
            assert!(flow.log().contains("no storage space"), "{}", flow.tail());
            // However long it lasts.
            tokio::time::sleep(Duration::from_secs(2)).await;
            std::fs::remove_file(&new).unwrap();
            let target = flow.target().await;
            let distinct = "SELECT count(DISTINCT number) FROM witness_log";
            flow.eventually("all have arrived", || async { number(&target, distinct).await == 10 }).await;
            run.sigterm().await;
            let came_again = flow.assert_witnesses(1, batch).await;
            assert_eq!(came_again.len(), 1, "the batch that was not stored");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_cannot_be_reached_repeats_one_batch_and_heals() {
    for major in majors().unwrap() {
        let stage = Stage::new(major).await;
        for (name, batch) in [("each", 1), ("batches", 3)] {
            let mut flow = stage.named(Keep::Postgres, name).await;
            let proxy = Proxy::to(&stage.target).await.unwrap();
            flow.store = proxy.url(name);
            flow.arguments = ["--delay-ms", "300", "--batch"].map(str::to_owned).into();
            flow.arguments.push(batch.to_string());
            let run = flow.streaming(&["--write-ms", "1000"]).await;
            flow.numbered(6).await;
            // Between the write of the sink and the save.
            let target = flow.target().await;
            let writing = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgonce sink'
                           AND state = 'idle in transaction' AND datname = current_database()";
            flow.eventually("the sink writes", || async { number(&target, writing).await == 1 }).await;
            proxy.refuse(true);
            proxy.end_connections(Ending::Reset);
            flow.said("connection").await;
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert_eq!(number(&target, LOGGED).await, batch, "nothing is read while nothing can be stored");
            proxy.refuse(false);
            flow.logged(6 + batch).await;
            run.sigterm().await;
            let came_again = flow.assert_witnesses(1, batch as usize).await;
            assert_eq!(came_again, [batch as usize], "the batch that was not stored");
        }
    }
}
