//! What `pgonce status` says while a flow starts, copies, streams, and afterwards.

mod common;
mod pair;

use common::{eventually, said};
use pair::Case;
use pgonce_testkit::majors;
use serde_json::Value;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_told_and_so_is_its_writer() {
    for major in majors().unwrap() {
        let case = Case::new(major, "told").await;
        case.both("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)").await;
        case.at_source("INSERT INTO b VALUES (1)").await;
        // A stop that a later run leaves behind.
        case.at_target("INSERT INTO b VALUES (1)").await;
        case.refused("target_not_empty", 8).await;
        let text = said(&case.output(&["status"]).await);
        assert!(text.contains("stopped by itself") && text.contains("the copy is not complete"), "{text}");
        case.at_target("TRUNCATE b; BEGIN; LOCK TABLE b").await;
        let run = case.start();
        eventually("the writer is seen", || async { case.status().await["target"]["alive"].is_number() }).await;
        let text = said(&case.output(&["status"]).await);
        assert!(text.contains("copying: 0 tables copied so far, the writer is alive (server process PID "), "{text}");
        assert!(text.contains("the copy is not complete") && text.contains("last stop"), "{text}");
        let status = case.status().await;
        assert_eq!((&status["doing"], &status["lag_bytes"]), (&"copying".into(), &Value::Null), "{status:#}");
        case.at_target("COMMIT").await;
        eventually("it streams", || async { case.status().await["doing"] == "streaming" }).await;
        run.end().await;
        case.drain().await;
        let (text, status) = (said(&case.output(&["status"]).await), case.status().await);
        assert!(text.contains("not running: nobody reads the slot"), "{text}");
        assert!(!text.contains("stop ") && status["target"]["stop"].is_null(), "{text}");
        assert!(status["target"]["alive"].is_null(), "{status:#}");
    }
}
