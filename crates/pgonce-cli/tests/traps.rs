//! Ways to lose rows without a word: each was found by trying.

mod common;

use common::*;
use pgonce_testkit::majors;

const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a25_a_publication_that_was_changed_and_put_back_is_refused_for_good() {
    for major in majors().unwrap() {
        let flow = Flow::new(major).await;
        flow.both("CREATE TABLE t (id int PRIMARY KEY, n int)").await;
        flow.at_source("INSERT INTO t VALUES (1, 1)").await;
        flow.drain().await;
        flow.at_source("ALTER PUBLICATION pgonce_test SET (publish = 'insert')").await;
        flow.at_source("UPDATE t SET n = 2").await;
        flow.at_source("ALTER PUBLICATION pgonce_test SET (publish = 'insert, update, delete, truncate')").await;
        for _ in 0..2 {
            let said = flow.refused("publication_changed", 6).await;
            assert!(said.contains("publication pgonce_test"), "{said}");
        }
        assert_eq!(Flow::rows(&flow.target_client().await, "SELECT n FROM t").await, ["(1)"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_is_taken_out_of_a_published_root_is_noticed() {
    for major in majors().unwrap() {
        let flow = Flow::new(major).await;
        let tables = "CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id);
             CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10);
             CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (10) TO (20)";
        flow.both(tables).await;
        flow.at_source("INSERT INTO r VALUES (1), (11)").await;
        flow.drain().await;
        // One that is made later is carried with its root, and one that is dropped leaves nothing out.
        flow.both("CREATE TABLE r3 PARTITION OF r FOR VALUES FROM (20) TO (30)").await;
        flow.at_source("INSERT INTO r VALUES (21); DROP TABLE r1").await;
        flow.drain().await;
        assert_eq!(
            Flow::rows(&flow.target_client().await, "SELECT id FROM r ORDER BY id").await,
            ["(1)", "(11)", "(21)"]
        );
        flow.at_source("ALTER TABLE r DETACH PARTITION r2").await;
        flow.at_source("INSERT INTO r2 VALUES (12)").await;
        flow.at_source("ALTER TABLE r ATTACH PARTITION r2 FOR VALUES FROM (10) TO (20)").await;
        // Nothing of a published table is left out by it, but the row that it brings is not in the stream.
        let output = flow.output(&["run", "--until", "now"]).await;
        let said = said(&output);
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(said.contains("partition public.r2 was attached to public.r"), "{said}");
        assert!(said.contains("partition public.r1 of public.r was dropped"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_role_under_row_level_security_is_refused_rather_than_given_part_of_a_table() {
    for major in majors().unwrap() {
        let mut flow = Flow::new(major).await;
        flow.both("CREATE TABLE t (id int PRIMARY KEY)").await;
        let setup = "INSERT INTO t SELECT generate_series(1, 10);
             ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY few ON t USING (id < 5);
             CREATE ROLE rep LOGIN REPLICATION; GRANT SELECT ON t TO rep; CREATE PUBLICATION p FOR TABLE t";
        flow.at_source(setup).await;
        flow.source_url = flow.source_url.replace("postgres@", "rep@");
        flow.arguments.extend(["--publication".to_owned(), "p".to_owned()]);
        let said = flow.refused("source_not_ready", 6).await;
        assert!(said.contains("table public.t") && said.contains("BYPASSRLS"), "{said}");
        assert_eq!(number(&flow.target_client().await, "SELECT count(*) FROM t").await, 0);
        flow.at_source("ALTER ROLE rep BYPASSRLS").await;
        flow.drain().await;
        assert_eq!(number(&flow.target_client().await, "SELECT count(*) FROM t").await, 10);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_the_target_swallows_are_missed_in_the_copy_too() {
    for major in majors().unwrap() {
        let flow = Flow::new(major).await;
        flow.both("CREATE TABLE t (id int PRIMARY KEY, b text)").await;
        flow.at_source("INSERT INTO t SELECT i, E'two\\nlines\\\\' FROM generate_series(1, 10) i").await;
        let swallow = "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN IF new.id % 2 = 0 THEN RETURN NULL; END IF; RETURN new; END';
             CREATE TRIGGER swallow BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION swallow();
             ALTER TABLE t ENABLE ALWAYS TRIGGER swallow";
        flow.at_target(swallow).await;
        let said = flow.refused("schema_mismatch", 8).await;
        assert!(said.contains("of 10 rows") && said.contains("took 5"), "{said}");
        assert_eq!(number(&flow.target_client().await, "SELECT count(*) FROM t").await, 0);
        flow.at_target("DROP TRIGGER swallow ON t").await;
        flow.drain().await;
        flow.assert_same("SELECT * FROM t ORDER BY id").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_rewritten_before_its_turn_to_be_copied_is_copied_from_a_newer_snapshot() {
    for major in majors().unwrap() {
        let flow = Flow::new(major).await;
        flow.both("CREATE TABLE big (id int PRIMARY KEY); CREATE TABLE small (id int PRIMARY KEY, n int)").await;
        flow.at_target("ALTER TABLE small ALTER n TYPE bigint").await;
        let fill = "INSERT INTO big SELECT generate_series(1, 20000);
             INSERT INTO small SELECT i, i FROM generate_series(1, 1000) i";
        flow.at_source(fill).await;
        let target = flow.target_client().await;
        let holder = flow.target_client().await;
        holder.batch_execute("BEGIN; LOCK TABLE big IN SHARE MODE").await.unwrap();
        let mut run = flow.start(&[]);
        eventually("the copy of the first table waits", || async { number(&target, WAITING).await > 0 }).await;
        flow.at_source("ALTER TABLE small ALTER n TYPE bigint; INSERT INTO small VALUES (1001, 1)").await;
        holder.batch_execute("ROLLBACK").await.unwrap();
        let all = "SELECT count(*) FROM small";
        eventually("all rows arrive", || async { number(&target, all).await == 1001 }).await;
        run.sigterm().await;
        flow.drain().await;
        flow.assert_same("SELECT * FROM small ORDER BY id").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_that_was_moved_forward_by_hand_is_not_believed() {
    for major in majors().unwrap() {
        let flow = Flow::new(major).await;
        flow.both("CREATE TABLE t (id int PRIMARY KEY)").await;
        flow.drain().await;
        flow.at_source("INSERT INTO t VALUES (1)").await;
        flow.drain().await;
        flow.at_source("INSERT INTO t VALUES (2)").await;
        flow.at_target("UPDATE pgonce.flow SET commit_lsn = commit_lsn + 65536, end_lsn = end_lsn + 65536").await;
        flow.refused("checkpoint_unreadable", 5).await;
        assert_eq!(number(&flow.target_client().await, "SELECT count(*) FROM t").await, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f3_a_target_that_blocks_does_not_keep_a_sigterm_waiting() {
    let flow = Flow::new(majors().unwrap()[0]).await;
    flow.both("CREATE TABLE t (id int PRIMARY KEY)").await;
    flow.drain().await;
    let mut run = flow.start(&[]);
    flow.streaming().await;
    let holder = flow.target_client().await;
    holder.batch_execute("BEGIN; SELECT FROM pgonce.flow FOR UPDATE").await.unwrap();
    flow.at_source("INSERT INTO t VALUES (1); CREATE TABLE other AS SELECT generate_series(1, 1000) AS a").await;
    let target = flow.target_client().await;
    eventually("it waits for the lock", || async { number(&target, WAITING).await > 0 }).await;
    let took = run.sigterm().await;
    assert!(took < std::time::Duration::from_secs(12), "{took:?}");
    holder.batch_execute("ROLLBACK").await.unwrap();
    flow.drain().await;
    flow.assert_same("SELECT * FROM t").await;
}
