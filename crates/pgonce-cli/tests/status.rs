//! What `pgonce status` says while a flow copies, streams, and afterwards; what `pgonce reset` takes away.

mod common;
mod pair;

use common::{eventually, number, said};
use pair::Case;
use pgonce_testkit::majors;
use serde_json::Value;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_told_and_so_is_its_writer() {
    for major in majors().unwrap() {
        let case = Case::new(major, "told").await.with(&["--jobs", "1"]);
        case.both("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)").await;
        case.at_source("INSERT INTO b VALUES (1)").await;
        // A stop that a later run leaves behind.
        case.at_target("INSERT INTO b VALUES (1)").await;
        case.refused("target_not_empty", 8).await;
        let text = said(&case.output(&["status"]).await);
        assert!(text.contains("stopped by itself") && text.contains("target_not_empty"), "{text}");
        case.at_target("TRUNCATE b").await;
        case.at_target("BEGIN; LOCK TABLE b IN SHARE MODE").await;
        let run = case.start();
        eventually("it copies", || async { case.status().await["doing"] == "copying" }).await;
        assert!(case.status().await["target"]["alive"].is_number());
        let text = said(&case.output(&["status"]).await);
        assert!(text.contains("copying: 0 tables copied so far, the writer is alive (server process PID "), "{text}");
        assert!(text.contains("the copy is not complete") && !text.contains("target_not_empty"), "{text}");
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reset_drops_only_the_publication_that_pgonce_made() {
    for major in majors().unwrap() {
        let mut case = Case::new(major, "left").await;
        case.both("CREATE TABLE t (id int PRIMARY KEY)").await;
        case.drain().await;
        let publications = "SELECT count(*) FROM pg_publication";
        let slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'pgonce_left'";
        case.at_source("COMMENT ON PUBLICATION pgonce_left IS NULL").await;
        let text = said(&case.output(&["reset"]).await);
        assert!(text.contains("none (pgonce_left stays: pgonce did not make it)"), "{text}");
        let text = said(&case.output(&["reset", "--yes"]).await);
        assert!(text.contains("none (pgonce_left stays: pgonce did not make it)"), "{text}");
        assert_eq!((number(&case.source, publications).await, number(&case.source, slots).await), (1, 0));

        // One that the role may not drop is left over, and nothing else is.
        case.drain().await;
        case.at_source("COMMENT ON PUBLICATION pgonce_left IS 'made by pgonce'").await;
        case.at_source("CREATE ROLE weak LOGIN REPLICATION").await;
        let own = std::mem::take(&mut case.source_url);
        case.source_url = own.replace("postgres@", "weak@");
        let output = case.output(&["reset", "--yes"]).await;
        let text = said(&output);
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert!(text.contains("left over") && text.contains("DROP PUBLICATION IF EXISTS \"pgonce_left\";"), "{text}");
        assert_eq!((number(&case.source, publications).await, number(&case.source, slots).await), (1, 0));
        assert_eq!(case.there("SELECT count(*) FROM pgonce.flow").await, ["(0)"]);

        case.source_url = own;
        let text = said(&case.output(&["reset", "--yes"]).await);
        assert_eq!(number(&case.source, publications).await, 0, "{text}");
        case.at_source("DROP ROLE weak").await;
    }
}
