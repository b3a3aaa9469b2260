//! Transactions that are streamed while they are in progress.

use std::time::Duration;

use pgonce::slot_source::{SlotSource, Streaming};
use pgonce::source::Event;
use pgonce_testkit::{Ending, Proxy};

use crate::common::*;
use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a11_a_streamed_transaction_of_unpublished_tables_is_neither_delivered_nor_acknowledged_past_the_open_batch() {
    for major in each_major() {
        let (cluster, client) = early(major).await;
        let sink = MemorySink::default();
        run_until_now(SlotSource::new(settings(&cluster.url("postgres"))), &sink).await.unwrap();
        sink.manners.lock().unwrap().silent = true;
        let running = Running::start(SlotSource::new(settings(&cluster.url("postgres"))), &sink, options());
        client.batch_execute(&rows(1, 10)).await.unwrap();
        eventually("applied", || async { sink.applied().len() == 1 }).await;
        client.batch_execute(&unpublished(5000)).await.unwrap();
        has_streamed(&client, 1).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(sink.applied().len(), 1, "nothing is delivered of what nobody publishes");
        assert!(confirmed_flush(&client).await < sink.applied()[0].end.0, "acknowledged past what is not durable");
        // The batch becomes durable; then its end counts as any other position.
        sink.manners.lock().unwrap().silent = false;
        let behind = insert_position(&client).await;
        client.batch_execute(&rows(11, 1)).await.unwrap();
        eventually("acknowledged", || async { confirmed_flush(&client).await > behind }).await;
        client.batch_execute(&unpublished(5000)).await.unwrap();
        let behind = insert_position(&client).await.before_page_header();
        eventually("idle over an empty one", || async { confirmed_flush(&client).await >= behind }).await;
        assert_eq!(sink.applied().len(), 2);
        running.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a12_a_streamed_transaction_of_messages_only_is_delivered() {
    for major in each_major() {
        let (cluster, client) = early(major).await;
        let sink = MemorySink::default();
        run_until_now(SlotSource::new(settings(&cluster.url("postgres"))), &sink).await.unwrap();
        let sql = "SELECT pg_logical_emit_message(true, 'p', i || repeat('x', 1000)) FROM generate_series(1, 500) i";
        client.batch_execute(sql).await.unwrap();
        run_until_now(SlotSource::new(settings(&cluster.url("postgres"))), &sink).await.unwrap();
        has_streamed(&client, 1).await;
        let changes = sink.changes();
        assert_eq!((sink.applied().len(), changes.len()), (1, 500));
        assert!(changes[0].starts_with("M p 1x") && changes[499].starts_with("M p 500x"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a13_two_streamed_transactions_are_open_also_when_a_savepoint_of_one_is_rolled_back() {
    for major in each_major() {
        let (cluster, client) = early(major).await;
        let sink = MemorySink::default();
        let running = Running::start(SlotSource::new(settings(&cluster.url("postgres"))), &sink, options());
        eventually("streaming", || async { running.progress.borrow().acknowledged.is_some() }).await;
        let (a, b) = (cluster.connect("postgres").await.unwrap(), cluster.connect("postgres").await.unwrap());
        a.batch_execute(&format!("BEGIN; {} SAVEPOINT s; {}", rows(1, 2000), rows(10_001, 2000))).await.unwrap();
        b.batch_execute(&format!("BEGIN; {}", rows(20_001, 2000))).await.unwrap();
        has_streamed(&client, 2).await;
        let open_at = insert_position(&client).await;
        a.batch_execute("ROLLBACK TO s").await.unwrap();
        for _ in 0..10 {
            client.batch_execute(&unpublished(10)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(250)).await;
            assert!(sink.remembered().flow.unwrap().idle.boundary.0 <= open_at, "idle, with two open on {major}");
            assert!(confirmed_flush(&client).await <= open_at);
        }
        // A stop position does not wait for what commits behind it.
        let reported = running.progress.borrow().reported;
        assert!(reported.is_some_and(|at| at.0 > open_at), "{reported:?}");
        b.batch_execute(&format!("{} COMMIT", rows(30_001, 1))).await.unwrap();
        a.batch_execute(&format!("{} COMMIT", rows(40_001, 1))).await.unwrap();
        let behind = insert_position(&client).await.before_page_header();
        eventually("both", || async { sink.applied().len() == 2 }).await;
        let counts: Vec<usize> = sink.applied().iter().map(|t| t.changes.len()).collect();
        assert_eq!(counts, [2001, 2001], "in the order of their commits, without what was rolled back");
        let expected: Vec<u32> = (20_001..22_001).chain([30_001]).chain(1..2001).chain([40_001]).collect();
        assert_eq!(ids(&sink.changes()), expected);
        eventually("idle again", || async { confirmed_flush(&client).await >= behind }).await;
        running.stop().await.unwrap();
    }
}

/// The ids of inserted rows.
fn ids(changes: &[String]) -> Vec<u32> {
    let id = |change: &String| change.strip_prefix("I t ").unwrap().split(',').next().unwrap().parse().unwrap();
    changes.iter().map(id).collect()
}

/// Nested savepoints, some rolled back; a loop that catches an error in every other round; a table that is altered on
/// the way; the whole of it beside another one.
const TWISTED: &str = "\
    BEGIN; SAVEPOINT a; ROWS(1, 700) SAVEPOINT b; ROWS(1001, 700) SAVEPOINT c; ROWS(2001, 700) RELEASE c; \
    ROLLBACK TO b; ROWS(3001, 700) SAVEPOINT d; ROWS(4001, 700) RELEASE a; ROWS(5001, 10) \
    DO $$ BEGIN FOR i IN 1..60 LOOP BEGIN INSERT INTO t SELECT 6000 + i * 10 + j, i, repeat(md5(j::text), 20) \
        FROM generate_series(1, 9) j; \
        IF i % 2 = 0 THEN RAISE EXCEPTION 'even'; END IF; EXCEPTION WHEN raise_exception THEN NULL; END; \
    END LOOP; END $$; \
    UPDATE t SET n = -1 WHERE id % 100 = 0; ALTER TABLE t ADD COLUMN c int DEFAULT 7; ROWS7(8001, 700) \
    SAVEPOINT e; ALTER TABLE t ADD COLUMN d int; ROWS7(9001, 700) ROLLBACK TO e; DELETE FROM t WHERE id < 50; \
    SELECT pg_logical_emit_message(true, 'p', 'm'); ROWS7(10001, 5)";

fn twisted() -> String {
    let mut sql = TWISTED.to_owned();
    for (name, columns) in [("ROWS7(", ", 5"), ("ROWS(", "")] {
        while let Some(at) = sql.find(name) {
            let end = at + sql[at..].find(')').unwrap();
            let numbers: Vec<u32> =
                sql[at + name.len()..end].split(',').map(|number| number.trim().parse().unwrap()).collect();
            let (from, to) = (numbers[0], numbers[0] + numbers[1] - 1);
            let insert =
                format!("INSERT INTO t SELECT i, 0, repeat('y', 90){columns} FROM generate_series({from}, {to}) i;");
            sql.replace_range(at..=end, &insert);
        }
    }
    sql
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_streamed_is_what_is_sent_as_a_whole_with_the_same_digest() {
    for major in each_major() {
        let (cluster, client) = early(major).await;
        let directory = tempfile();
        let url = cluster.url("postgres");
        let mut whole = settings(&url);
        (whole.slot, whole.streaming) = ("whole".into(), Streaming::Off);
        let mut streaming = Reading::start(spilling(&url, directory.path())).await;
        let mut whole = Reading::start(SlotSource::new(whole)).await;
        let other = cluster.connect("postgres").await.unwrap();
        other.batch_execute(&format!("BEGIN; {}", rows(50_001, 2000))).await.unwrap();
        // The other one holds a lock on the table until then.
        other
            .batch_execute(&format!("SAVEPOINT s; {} ROLLBACK TO s; {} COMMIT", rows(60_001, 2000), rows(70_001, 20)))
            .await
            .unwrap();
        client.batch_execute(&twisted()).await.unwrap();
        let beside = cluster.connect("postgres").await.unwrap();
        beside.batch_execute(&unpublished(2000)).await.unwrap();
        client.batch_execute("COMMIT").await.unwrap();
        client
            .batch_execute(&format!("{} UPDATE t SET n = 5", rows(80_001, 1).replace("FROM", ", 1 FROM")))
            .await
            .unwrap();
        let mut found = Vec::new();
        for reading in [&mut streaming, &mut whole] {
            reading.until(3, is_transaction).await;
            let transactions = reading.events.iter().filter_map(|event| match event {
                Event::Transaction(t) => Some((t.xid(), t.commit(), t.end(), t.change_count(), t.size(), t.digest())),
                _ => None,
            });
            found.push(transactions.collect::<Vec<_>>());
        }
        assert_eq!(found[0], found[1], "on {major}");
        assert_eq!(found[0].len(), 3, "no empty one");
        assert!(spill_files(directory.path()) >= 2, "nothing was spilled");
        has_streamed(&client, 3).await;
        assert_eq!(streamed(&client, "whole").await, 0);
        streaming.events.clear();
        assert_eq!(spill_files(directory.path()), 0, "files go with their transactions");
    }
}

fn tempfile() -> TempDir {
    TempDir::new()
}

/// A directory that is removed.
pub struct TempDir(std::path::PathBuf);

impl TempDir {
    pub fn new() -> TempDir {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        TempDir(std::env::temp_dir().join(format!("pgonce-streams-{}-{number}", std::process::id())))
    }

    pub fn path(&self) -> &std::path::Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a14_a_transaction_that_was_sent_in_part_comes_again_in_another_form_and_once() {
    for major in each_major() {
        let (cluster, client) = early(major).await;
        let proxy = Proxy::to(&cluster).await.unwrap();
        let (directory, sink) = (TempDir::new(), MemorySink::default());
        let running = Running::start(spilling(&proxy.url("postgres"), directory.path()), &sink, options());
        eventually("streaming", || async { running.progress.borrow().acknowledged.is_some() }).await;
        let writer = cluster.connect("postgres").await.unwrap();
        writer.batch_execute(&format!("BEGIN; {} SAVEPOINT s; {}", rows(1, 3000), rows(10_001, 3000))).await.unwrap();
        eventually("spilled", || async { spill_files(directory.path()) == 1 }).await;
        let sessions = sink.remembered().sessions;
        proxy.end_connections(Ending::Reset);
        eventually("connected again", || async { sink.remembered().sessions > sessions }).await;
        eventually("streamed again", || async { spill_files(directory.path()) == 1 }).await;
        // The third time it is sent as a whole.
        proxy.refuse(true);
        proxy.end_connections(Ending::Reset);
        eventually("nothing of it is left", || async { spill_files(directory.path()) == 0 }).await;
        cluster.set_conf("logical_decoding_work_mem", "64MB").await.unwrap();
        writer.batch_execute(&format!("ROLLBACK TO s; {} COMMIT", rows(20_001, 3000))).await.unwrap();
        client.batch_execute(&rows(30_001, 1)).await.unwrap();
        proxy.refuse(false);
        eventually("delivered", || async { sink.applied().len() == 2 }).await;
        assert_eq!(ids(&sink.changes()), (1..3001).chain(20_001..23_001).chain([30_001]).collect::<Vec<_>>());
        let behind = sink.applied()[1].end.0;
        eventually("acknowledged", || async { confirmed_flush(&client).await >= behind }).await;
        assert_eq!(spill_files(directory.path()), 0);
        running.stop().await.unwrap();
    }
}
