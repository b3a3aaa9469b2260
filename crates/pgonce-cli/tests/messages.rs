//! What a newcomer reads: whom a flow waits for, what is denied, what was mistyped, and how a run says that it ends.

mod common;
mod pair;

use common::{Flow, eventually, number, said};
use pair::Case;
use pgonce_testkit::{Cluster, majors};
use serde_json::Value;

/// The process of a connection of this test.
async fn pid(client: &tokio_postgres::Client) -> i64 {
    number(client, "SELECT pg_backend_pid()::int8").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_in_the_making_names_the_transactions_that_it_waits_for() {
    for major in majors().unwrap() {
        // Clusters of its own: whoever makes a slot there waits too.
        let source = Cluster::builder(major).name("source").conf("max_prepared_transactions", "5").start();
        let (source, target) = tokio::join!(source, Cluster::builder(major).name("target").start());
        let flow = Flow::between(source.unwrap(), target.unwrap());
        flow.both("CREATE TABLE t (id int PRIMARY KEY, secret text)").await;
        let (one, other) = (flow.source_client().await, flow.source_client().await);
        one.batch_execute("BEGIN; INSERT INTO t VALUES (1, 'hidden value')").await.unwrap();
        let open = pid(&one).await;
        other.batch_execute("CREATE DATABASE elsewhere").await.unwrap();
        let other = flow.source.connect("elsewhere").await.unwrap();
        other.batch_execute("CREATE TABLE p (id int)").await.unwrap();
        let prepare = "BEGIN; INSERT INTO p VALUES (1); PREPARE TRANSACTION 'left behind'";
        other.batch_execute(prepare).await.unwrap();
        let mut run = flow.start(&[]);
        let named = format!("PID {open} (idle in transaction, open for ");
        eventually("the open transaction is named", || async { flow.log().contains(&named) }).await;
        let log = flow.log();
        assert!(log.contains("waiting on the source until transactions that are open there have ended: "), "{log}");
        assert!(log.contains("prepared transaction 'left behind' (prepared, open for "), "{log}");
        assert!(log.contains("COMMIT PREPARED") || log.contains(&format!("pg_terminate_backend({open})")), "{log}");
        let text = said(&flow.output(&["status"]).await);
        assert!(text.contains(&named) && text.contains("'left behind'"), "{text}");
        let status = flow.status().await;
        let blockers = status["waiting"][0]["blockers"].as_array().expect("a list");
        assert!(blockers.iter().any(|blocker| blocker["pid"] == open), "{status:#}");
        assert!(blockers.iter().any(|blocker| blocker["prepared"] == "left behind"), "{status:#}");
        assert!(!format!("{log}{text}{status}").contains("hidden value"));
        assert!(!format!("{log}{text}{status}").contains("INSERT"), "no query's text is shown");
        one.batch_execute("COMMIT").await.unwrap();
        other.batch_execute("ROLLBACK PREPARED 'left behind'").await.unwrap();
        eventually("it streams", || async { flow.status().await["doing"] == "streaming" }).await;
        assert_eq!(flow.status().await["waiting"], Value::Array(vec![]));
        run.sigterm().await;
        assert_eq!(flow.log().matches("waiting on the source").count(), 1, "said once: {}", flow.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_on_the_target_is_told_with_its_holder_while_copying_and_while_streaming() {
    for major in majors().unwrap() {
        let case = Case::new(major, "held").await;
        case.both("CREATE TABLE t (id int PRIMARY KEY)").await;
        case.at_source("INSERT INTO t VALUES (1)").await;
        let holder = pid(&case.target).await;
        let told = |log: &str| -> Vec<Value> {
            let events = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
            events.filter(|event| event["event"] == "waiting").collect()
        };
        case.at_target("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE").await;
        let run = case.start_with(&["--format", "json"]);
        eventually("the copy tells", || async { told(&case.log()).len() == 1 }).await;
        case.at_target("COMMIT").await;
        eventually("it is copied", || async { number(&case.target, "SELECT count(*) FROM t").await == 1 }).await;
        eventually("it streams", || async { case.status().await["doing"] == "streaming" }).await;

        case.at_target("BEGIN; LOCK TABLE t IN SHARE MODE").await;
        case.at_source("INSERT INTO t VALUES (2)").await;
        eventually("the stream tells", || async { told(&case.log()).len() == 2 }).await;
        for event in told(&case.log()) {
            assert_eq!((&event["side"], &event["table"]), (&"target".into(), &"public.t".into()), "{event}");
            assert_eq!(
                (&event["blockers"][0]["pid"], &event["blockers"].as_array().unwrap().len()),
                (&holder.into(), &1)
            );
            assert_eq!(event["blockers"][0]["state"], "idle in transaction");
            let hint = event["hint"].as_str().unwrap();
            assert!(hint.contains(&format!("SELECT pg_terminate_backend({holder});")), "{hint}");
        }
        let status = case.status().await;
        assert_eq!(status["waiting"][0]["blockers"][0]["pid"], holder, "{status:#}");
        case.at_target("COMMIT").await;
        eventually("it goes on", || async { number(&case.target, "SELECT count(*) FROM t").await == 2 }).await;
        run.end().await;
        assert_eq!(told(&case.log()).len(), 2, "an idle flow waits for nobody: {}", case.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_is_said_of_an_orderly_end_only() {
    for major in majors().unwrap() {
        let case = Case::new(major, "ending").await;
        case.both("CREATE TABLE t (id int PRIMARY KEY)").await;
        case.at_target("INSERT INTO t VALUES (1)").await;
        let text = case.refused("target_not_empty", 8).await;
        assert!(!text.contains("stopping"), "{text}");
        case.at_target("TRUNCATE t").await;
        let text = case.drain().await;
        assert!(text.lines().any(|line| line == "stopping"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_role_may_not_use_is_named_with_the_grant() {
    for major in majors().unwrap() {
        let mut case = Case::new(major, "denied").await;
        case.both("CREATE TABLE t (id int PRIMARY KEY)").await;
        case.drain().await;
        case.at_target("CREATE ROLE denied_role LOGIN; GRANT USAGE ON SCHEMA pgonce TO denied_role").await;
        let own = std::mem::take(&mut case.target_url);
        case.target_url = own.replace("postgres@", "denied_role@");
        let text = case.refused("target_not_ready", 8).await;
        assert!(text.contains("SQLSTATE 42501, table "), "{text}");
        assert!(
            text.contains("hint: On the target: GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON TABLE "),
            "{text}"
        );
        case.target_url = own;

        // Somebody's own error of the same code and the same words: it may quote a row.
        let other = Case::new(major, "raised").await;
        other.both("CREATE TABLE t (id int PRIMARY KEY, v text)").await;
        other.at_source("INSERT INTO t VALUES (1, 'hidden')").await;
        let raise = "CREATE FUNCTION raise() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 RAISE EXCEPTION 'permission denied for table %', NEW.v USING ERRCODE = '42501'; END $$;
             CREATE TRIGGER raise BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION raise();
             ALTER TABLE t ENABLE ALWAYS TRIGGER raise";
        other.at_target(raise).await;
        let text = other.refused("target_not_ready", 8).await;
        assert!(text.contains("SQLSTATE 42501 (insufficient_privilege)") && !text.contains("hidden"), "{text}");

        case.at_target("DROP OWNED BY denied_role; DROP ROLE denied_role").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mistyped_connection_is_told_with_the_key_that_holds_it() {
    for major in majors().unwrap() {
        let mut case = Case::new(major, "mistyped").await;
        case.both("CREATE TABLE t (id int PRIMARY KEY)").await;
        // No such database: nothing to wait for.
        let own = case.source_url.clone();
        case.source_url = own.replace("mistyped", "mistaken");
        let text = case.refused("connection_refused", 3).await;
        assert!(text.contains("database \"mistaken\" does not exist"), "{text}");
        assert!(text.contains("The source is named in `source.url` (--source, PGONCE_SOURCE_URL)"), "{text}");
        // Nobody listens: that may pass, and is told so that a mistake is found.
        case.source_url = "postgresql://ann@127.0.0.1:1/shop".to_owned();
        let run = case.start();
        eventually("it tells", || async { case.log().contains("trying again[connection]") }).await;
        let log = case.log();
        assert!(log.contains("source: cannot connect to 127.0.0.1:1"), "{log}");
        assert!(log.contains("has not reached the source since it was started"), "{log}");
        assert!(log.contains("correct host and port in `source.url` (--source, PGONCE_SOURCE_URL)"), "{log}");
        run.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reset_refuses_a_flow_that_copies_elsewhere_and_check_tells_how_it_stands() {
    for major in majors().unwrap() {
        let case = Case::new(major, "elsewhere").await;
        case.both("CREATE TABLE t (id int PRIMARY KEY)").await;
        case.at_source("INSERT INTO t VALUES (1)").await;
        assert_eq!(case.output(&["status", "--check"]).await.status.code(), Some(2), "never started");
        case.at_target("BEGIN; LOCK TABLE t IN SHARE MODE").await;
        let run = case.start();
        eventually("it copies", || async { case.status().await["doing"] == "copying" }).await;
        assert_eq!(case.output(&["status", "--check"]).await.status.code(), Some(0));
        // As from another machine: with a data directory that nobody holds.
        let output = case.output_elsewhere(&["reset", "--yes"]).await;
        let text = said(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        let alive = case.status().await["target"]["alive"].to_string();
        assert!(text.contains("error[flow_running]: flow elsewhere is running: its session on the target has PID "));
        assert!(text.contains(&format!("SELECT pg_terminate_backend({alive}); on the target")), "{text}");
        assert_eq!(case.there("SELECT count(*) FROM pgonce.flow").await, ["(1)"]);
        case.at_target("COMMIT").await;
        eventually("it streams", || async { case.status().await["doing"] == "streaming" }).await;
        run.end().await;
        assert_eq!(case.output(&["status", "--check"]).await.status.code(), Some(2), "it does not run");

        // A stopped flow ends a check with its own status.
        case.at_target("INSERT INTO t VALUES (2)").await;
        case.at_source("INSERT INTO t VALUES (2)").await;
        case.refused("transaction_failed", 7).await;
        assert_eq!(case.output(&["status"]).await.status.code(), Some(0));
        assert_eq!(case.output(&["status", "--check"]).await.status.code(), Some(7));
        let output = case.output_elsewhere(&["reset", "--yes"]).await;
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_of_a_conflicting_row_is_shown_to_who_asks_and_stored_nowhere() {
    for major in majors().unwrap() {
        let case = Case::new(major, "asked").await;
        case.both("CREATE TABLE k (\"Id\" text, part int, v text, PRIMARY KEY (\"Id\", part))").await;
        case.at_source("INSERT INTO k VALUES ('Zq7 key', 77313, 'Zq8 value'), ('other', 1, 'x')").await;
        case.drain().await;
        case.at_target("DELETE FROM k WHERE part = 77313").await;
        case.at_source("UPDATE k SET part = 2, v = 'Zq8 new' WHERE part = 77313").await;
        let text = case.refused("row_conflict", 7).await;
        assert!(!text.contains("Zq7") && !text.contains("77313"), "not asked for: {text}");
        let output = case.output(&["run", "--until", "now", "--show-keys"]).await;
        let text = said(&output);
        assert_eq!(output.status.code(), Some(7), "{text}");
        let shown = "the row that was looked for: Id = \"Zq7 key\", part = \"77313\"";
        assert!(text.contains(shown) && text.contains("(identified by Id, part)"), "{text}");
        assert!(!text.contains("Zq8"), "keys only: {text}");
        let stored = said(&case.output(&["status"]).await) + &case.ledger().await;
        assert!(!stored.contains("Zq7") && !stored.contains("77313"), "{stored}");
        let output = case.output(&["run", "--until", "now", "--show-keys", "--format", "json"]).await;
        let lines = String::from_utf8(output.stdout).unwrap();
        let rows = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let rows: Vec<Value> = rows.filter(|event| event["event"] == "row").collect();
        assert_eq!(rows.len(), 1, "{lines}");
        assert_eq!(rows[0]["key"], "Id = \"Zq7 key\", part = \"77313\"");

        // The other ways to look for a row: a delete, and a row that is told from others by all it holds.
        case.at_target("INSERT INTO k VALUES ('Zq7 key', 77313, 'x')").await;
        case.drain().await;
        case.at_target("DELETE FROM k WHERE part = 1").await;
        case.at_source("DELETE FROM k WHERE part = 1").await;
        let text = said(&case.output(&["run", "--until", "now", "--show-keys"]).await);
        assert!(text.contains("the row that was looked for: Id = \"other\", part = \"1\"\n"), "{text}");
        let text = said(&case.output(&["run", "--until", "now"]).await);
        assert!(!text.contains("looked for:") && !text.contains("\"other\""), "{text}");
    }
}
