//! The source end on real servers, with a sink that remembers in memory.

mod common;

use std::time::Duration;

use common::*;
use pgonce::destination::StartMode;
use pgonce::pipeline::{Finished, Until};
use pgonce::position::Lsn;
use pgonce::slot_source::{SlotSettings, SlotSource};
use pgonce_testkit::Cluster;
use tokio_postgres::Client;

const T: &str = "CREATE TABLE t (id int PRIMARY KEY, n int, b text); CREATE PUBLICATION p FOR TABLE t;";

async fn with_t(major: u32) -> (Cluster, Client) {
    let cluster = source(major).await;
    let client = cluster.connect("postgres").await.unwrap();
    client.batch_execute(T).await.unwrap();
    (cluster, client)
}

fn flow(cluster: &Cluster) -> pgonce::slot_source::SlotSource {
    slot_source(&cluster.url("postgres"), "p")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_then_the_stream_in_commit_order_a1() {
    for major in each_major() {
        let (cluster, first) = with_t(major).await;
        first.batch_execute("INSERT INTO t VALUES (1, 10, 'a''b'), (2, NULL, E'tab\\there')").await.unwrap();
        let sink = MemorySink::default();
        let ended = run_until_now(flow(&cluster), &sink).await.unwrap();
        assert!(matches!(ended, Finished::Drained(_)));
        assert_eq!(sink.remembered().copied, [("public.t".to_owned(), "1\t10\ta'b\n2\t\\N\ttab\\there\n".to_owned())]);

        // S1 begins first and commits last.
        let second = cluster.connect("postgres").await.unwrap();
        first.batch_execute("BEGIN; INSERT INTO t VALUES (3, 1, 'first')").await.unwrap();
        second.batch_execute("BEGIN; INSERT INTO t VALUES (4, 2, 'second'); COMMIT").await.unwrap();
        first.batch_execute("UPDATE t SET id = 9 WHERE id = 1; COMMIT").await.unwrap();
        first
            .batch_execute("BEGIN; DELETE FROM t WHERE id = 2; SAVEPOINT s; TRUNCATE t; ROLLBACK TO s; COMMIT")
            .await
            .unwrap();
        first.batch_execute("TRUNCATE t").await.unwrap();
        run_until_now(flow(&cluster), &sink).await.unwrap();
        let changes: Vec<Vec<String>> = sink.applied().into_iter().map(|t| t.changes).collect();
        assert_eq!(
            changes,
            [
                vec!["I t 4,2,second"],
                vec!["I t 3,1,first", "U t 1,NULL,NULL -> 9,10,a'b"],
                vec!["D t 2,NULL,NULL"],
                vec!["T t"],
            ]
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a2_keepalives_inside_a_large_transaction_move_nothing_and_f1_feedback_goes_on_under_a_slow_sink() {
    for major in each_major() {
        let cluster = Cluster::builder(major).conf("wal_sender_timeout", "2s").start().await.unwrap();
        let client = cluster.connect("postgres").await.unwrap();
        client.batch_execute(T).await.unwrap();
        let sink = MemorySink::default();
        run_until_now(flow(&cluster), &sink).await.unwrap();
        sink.manners.lock().unwrap().write = Duration::from_secs(8);
        let running = Running::start(flow(&cluster), &sink, options());
        let before = confirmed_flush(&client).await;
        client.batch_execute("INSERT INTO t SELECT i, i, 'x' FROM generate_series(1, 10000) i").await.unwrap();
        client
            .batch_execute("CREATE TABLE other (a int); INSERT INTO other SELECT generate_series(1, 1000)")
            .await
            .unwrap();
        for _ in 0..12 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            if sink.applied().is_empty() {
                assert!(confirmed_flush(&client).await <= before.max(sink.remembered().flow.unwrap().idle.boundary.0));
            }
        }
        eventually("the slow transaction is acknowledged", || async {
            sink.applied().last().is_some_and(|t| t.changes.len() == 10_000)
                && confirmed_flush(&client).await >= sink.applied().last().unwrap().end.0
        })
        .await;
        assert_eq!(sink.remembered().sessions, 2, "the walsender must not have timed out");
        running.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a10_a_sink_that_claims_too_much_is_not_followed() {
    let (cluster, client) = with_t(each_major()[0]).await;
    let sink = MemorySink::default();
    run_until_now(flow(&cluster), &sink).await.unwrap();
    sink.manners.lock().unwrap().lies = true;
    sink.manners.lock().unwrap().idles = false;
    let running = Running::start(flow(&cluster), &sink, options());
    client.batch_execute("INSERT INTO t VALUES (1, 1, 'a')").await.unwrap();
    let applied = || async { sink.applied().len() == 1 };
    eventually("applied", applied).await;
    client.batch_execute("CREATE TABLE other AS SELECT generate_series(1, 10000) AS a").await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(confirmed_flush(&client).await, sink.applied()[0].end.0);
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e1_an_idle_flow_follows_writes_to_other_tables() {
    for major in each_major() {
        let (cluster, client) = with_t(major).await;
        let sink = MemorySink::default();
        let running = Running::start(flow(&cluster), &sink, options());
        eventually("streaming", || async { sink.remembered().flow.is_some_and(|f| f.streaming) }).await;
        client.batch_execute("CREATE TABLE other (a int, b text)").await.unwrap();
        let start = std::time::Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            client
                .batch_execute("INSERT INTO other SELECT i, repeat('x', 100) FROM generate_series(1, 1000) i")
                .await
                .unwrap();
        }
        let sql = "SELECT pg_current_wal_insert_lsn()::text";
        let written: Lsn = client.query_one(sql, &[]).await.unwrap().get::<_, String>(0).parse().unwrap();
        eventually("confirmed_flush_lsn follows", || async {
            confirmed_flush(&client).await >= written.before_page_header()
        })
        .await;
        assert!(sink.remembered().flow.unwrap().idle.boundary.0 >= confirmed_flush(&client).await);
        running.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a4_a_slot_made_anew_and_a19_a_slot_moved_are_data_gaps_and_stay_so() {
    for major in each_major() {
        let (cluster, client) = with_t(major).await;
        let sink = MemorySink::default();
        client.batch_execute("INSERT INTO t VALUES (1, 1, 'a')").await.unwrap();
        run_until_now(flow(&cluster), &sink).await.unwrap();

        client.batch_execute("INSERT INTO t VALUES (2, 1, 'a')").await.unwrap();
        client.batch_execute("SELECT pg_replication_slot_advance('pgonce_test', pg_current_wal_lsn())").await.unwrap();
        for _ in 0..2 {
            assert_eq!(run_until_now(flow(&cluster), &sink).await.unwrap_err().code(), "data_gap");
        }
        client.batch_execute("SELECT pg_drop_replication_slot('pgonce_test')").await.unwrap();
        assert_eq!(run_until_now(flow(&cluster), &sink).await.unwrap_err().code(), "data_gap");
        let slots = client.query("SELECT 1 FROM pg_replication_slots", &[]).await.unwrap();
        assert!(slots.is_empty(), "a refused start makes no slot");
        client.batch_execute("SELECT pg_create_logical_replication_slot('pgonce_test', 'pgoutput')").await.unwrap();
        let refused = run_until_now(flow(&cluster), &sink).await.unwrap_err();
        assert_eq!((refused.code(), refused.exit_status()), ("data_gap", 4));
        assert!(refused.hint().contains("new snapshot is needed"));
        assert!(sink.applied().is_empty(), "nothing was applied over the gap");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a25_a_publication_dropped_or_a_table_taken_out_is_noticed_and_nothing_omitted_is_acknowledged() {
    for major in each_major() {
        for change in ["ALTER PUBLICATION p DROP TABLE t", "DROP PUBLICATION p"] {
            let (cluster, client) = with_t(major).await;
            client.batch_execute("CREATE TABLE u (id int PRIMARY KEY); ALTER PUBLICATION p ADD TABLE u").await.unwrap();
            let sink = MemorySink::default();
            let running = Running::start(flow(&cluster), &sink, options());
            eventually("streaming", || async { sink.remembered().flow.is_some_and(|f| f.streaming) }).await;
            client.batch_execute(change).await.unwrap();
            let sql = "INSERT INTO t VALUES (1, 1, 'left out'); SELECT pg_current_wal_lsn()";
            client.batch_execute(sql).await.unwrap();
            let sql = "SELECT pg_current_wal_insert_lsn()::text";
            let omitted: Lsn = client.query_one(sql, &[]).await.unwrap().get::<_, String>(0).parse().unwrap();
            client.batch_execute("INSERT INTO u SELECT generate_series(1, 100)").await.unwrap();
            let stop = running.ended().await.unwrap_err();
            assert_eq!(stop.code(), "publication_changed", "{change} on {major}: {stop}");
            assert!(confirmed_flush(&client).await < omitted, "{change} on {major}");
            let again = run_until_now(flow(&cluster), &sink).await.unwrap_err();
            assert_eq!(again.code(), "publication_changed", "a restart does not accept what was refused");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a6_another_cluster_is_refused() {
    let (cluster, client) = with_t(each_major()[0]).await;
    let sink = MemorySink::default();
    run_until_now(flow(&cluster), &sink).await.unwrap();
    drop(client);
    let (other, _client) = with_t(each_major()[0]).await;
    let refused = run_until_now(flow(&other), &sink).await.unwrap_err();
    assert_eq!((refused.code(), refused.exit_status()), ("source_changed", 5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a3_a_stop_position_is_reached_only_with_everything_below_it() {
    for major in each_major() {
        let (cluster, client) = with_t(major).await;
        let sink = MemorySink::default();
        run_until_now(flow(&cluster), &sink).await.unwrap();
        for id in 1..=5 {
            client.batch_execute(&format!("INSERT INTO t VALUES ({id}, 1, 'a')")).await.unwrap();
        }
        let sql = "SELECT pg_current_wal_insert_lsn()::text";
        let stop: Lsn = client.query_one(sql, &[]).await.unwrap().get::<_, String>(0).parse().unwrap();
        client.batch_execute("INSERT INTO t VALUES (6, 1, 'behind')").await.unwrap();
        let mut to_stop = options();
        to_stop.until = Some(Until::At(stop));
        sink.manners.lock().unwrap().write = Duration::from_millis(300);
        let mut slow = to_stop.clone();
        slow.group.transactions = 1;
        let running = Running::start(flow(&cluster), &sink, slow);
        eventually("all but the last", || async { sink.applied().len() == 4 }).await;
        running.kill().await;
        assert_eq!(sink.applied().len(), 4);
        let ended = Running::start(flow(&cluster), &sink, to_stop).ended().await.unwrap();
        assert!(matches!(ended, Finished::Drained(at) if at.0 == stop));
        assert_eq!(sink.applied().len(), 5, "everything below the stop position and nothing behind it");
        run_until_now(flow(&cluster), &sink).await.unwrap();
        assert_eq!(sink.applied().len(), 6);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a22_a_commit_record_at_the_boundary_is_new() {
    for major in each_major() {
        let (cluster, client) = with_t(major).await;
        let sink = MemorySink::default();
        // A slot that stands exactly where the next commit record starts: the rows are written first, and the slot
        // moved there.
        client.batch_execute("SELECT pg_create_logical_replication_slot('pgonce_test', 'pgoutput')").await.unwrap();
        let writer = cluster.connect("postgres").await.unwrap();
        writer.batch_execute("BEGIN; INSERT INTO t VALUES (1, 1, 'at the boundary')").await.unwrap();
        let sql = "SELECT pg_current_wal_insert_lsn()::text";
        let here: Lsn = client.query_one(sql, &[]).await.unwrap().get::<_, String>(0).parse().unwrap();
        writer.batch_execute("COMMIT").await.unwrap();
        let advance = format!("SELECT pg_replication_slot_advance('pgonce_test', '{here}')");
        client.batch_execute(&advance).await.unwrap();
        let mut forward = options();
        forward.start = StartMode::GoForward;
        forward.until = Some(Until::Now);
        Running::start(flow(&cluster), &sink, forward).ended().await.unwrap();
        let binding = sink.remembered().flow.unwrap().binding;
        assert_eq!(sink.changes(), ["I t 1,1,at the boundary"], "on {major}, boundary {:?}", binding.boundary);
        assert_eq!(sink.applied()[0].commit.0, here.before_page_header(), "the commit record starts at the boundary");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a24_a_lost_acknowledgement_is_a_duplicate_that_is_skipped() {
    let (cluster, client) = with_t(each_major()[0]).await;
    let proxy = pgonce_testkit::Proxy::to(&cluster).await.unwrap();
    let sink = MemorySink::default();
    let through = || slot_source(&proxy.url("postgres"), "p");
    run_until_now(through(), &sink).await.unwrap();
    let running = Running::start(through(), &sink, options());
    eventually("streaming", || async { running.progress.borrow().acknowledged.is_some() }).await;
    proxy.black_hole(pgonce_testkit::Direction::ToServer, true);
    client.batch_execute("INSERT INTO t VALUES (1, 1, 'a')").await.unwrap();
    eventually("applied", || async { sink.applied().len() == 1 }).await;
    running.kill().await;
    proxy.heal();
    run_until_now(through(), &sink).await.unwrap();
    assert_eq!((sink.applied().len(), sink.remembered().redelivered), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f2_a_slot_that_the_last_process_still_holds_is_waited_for_by_name() {
    let (cluster, _client) = with_t(each_major()[0]).await;
    let sink = MemorySink::default();
    run_until_now(flow(&cluster), &sink).await.unwrap();
    let holder = Running::start(flow(&cluster), &sink, options());
    eventually("held", || async { holder.progress.borrow().acknowledged.is_some() }).await;
    let second =
        Running::start(flow(&cluster), &MemorySink { memory: sink.memory.clone(), ..MemorySink::default() }, options());
    let named = || async {
        second
            .progress
            .borrow()
            .fault
            .as_ref()
            .is_some_and(|(stop, _)| stop.code() == "slot_in_use" && !stop.to_string().ends_with("PID 0"))
    };
    eventually("the holder is named", named).await;
    holder.kill().await;
    eventually("the second goes on", || async { second.progress.borrow().acknowledged.is_some() }).await;
    second.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_sink_slows_the_socket_in_bounded_memory() {
    let (cluster, client) = with_t(each_major()[0]).await;
    let sink = MemorySink::default();
    run_until_now(flow(&cluster), &sink).await.unwrap();
    let mut settings = SlotSettings::new(connection(&cluster.url("postgres")), "pgonce_test", vec!["p".to_owned()]);
    settings.queue_bytes = 8 << 20;
    let mut options = options();
    options.group.bytes = 1 << 20;
    // So slow that it gets through little of what is written, however long that takes.
    sink.manners.lock().unwrap().write = Duration::from_secs(2);
    let running = Running::start(SlotSource::new(settings), &sink, options);
    eventually("streaming", || async { running.progress.borrow().acknowledged.is_some() }).await;
    let write = "DO $$ BEGIN FOR i IN 1..600 LOOP INSERT INTO t VALUES (i, 1, repeat(md5(i::text), 3000)); \
    COMMIT; END LOOP; \
         END $$";
    client.batch_execute("ALTER TABLE t ALTER COLUMN b SET STORAGE EXTERNAL").await.unwrap();
    client.batch_execute(write).await.unwrap();
    let sql = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), sent_lsn)::int8 FROM pg_stat_replication \
         WHERE application_name = 'pgonce replication'";
    let (mut unsent_max, mut waiting_max) = (0, 0);
    for _ in 0..50 {
        unsent_max = unsent_max.max(client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    sink.manners.lock().unwrap().write = Duration::from_millis(20);
    while sink.applied().len() < 600 {
        waiting_max = waiting_max.max(running.progress.borrow().waiting);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // 57 MB were written; what did not fit into a group, the queue and the socket's buffers stayed with the server.
    assert!(unsent_max > 10 << 20, "the walsender was never held back: {unsent_max}");
    assert!(waiting_max < 150, "{waiting_max} transactions of 96 kB waited at once");
    assert_eq!(sink.remembered().sessions, 2);
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_walsender_that_falls_silent_is_noticed() {
    let cluster = Cluster::builder(each_major()[0]).conf("wal_sender_timeout", "2s").start().await.unwrap();
    let client = cluster.connect("postgres").await.unwrap();
    client.batch_execute(T).await.unwrap();
    let proxy = pgonce_testkit::Proxy::to(&cluster).await.unwrap();
    let sink = MemorySink::default();
    let running = Running::start(slot_source(&proxy.url("postgres"), "p"), &sink, options());
    eventually("streaming", || async { running.progress.borrow().acknowledged.is_some() }).await;
    proxy.black_hole(pgonce_testkit::Direction::ToClient, true);
    let silent = || async { running.progress.borrow().fault.is_some() || sink.remembered().sessions > 1 };
    eventually("noticed", silent).await;
    proxy.heal();
    proxy.end_connections(pgonce_testkit::Ending::Reset);
    client.batch_execute("INSERT INTO t VALUES (1, 1, 'a')").await.unwrap();
    eventually("goes on", || async { sink.applied().len() == 1 }).await;
    running.stop().await.unwrap();
}
