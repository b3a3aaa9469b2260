//! Kills at any point: nothing lost, nothing twice. Every test here carries both witnesses.

mod common;

use std::time::Duration;

use common::*;
use pgonce_testkit::{Cluster, Direction, Ending, KillCount, Proxy, Random, Workload, majors};
use tokio_postgres::Client;

/// Whether rows of the log have been written on the target, committed or not.
const LOG_WRITTEN: &str = "SELECT pg_relation_size('witness_log')";

const LOGGED: &str = "SELECT count(*) FROM witness_log";

/// One transaction of `rows` rows in the log and one in the mirror, behind them.
async fn large_transaction(source: &Client, rows: u32) {
    let sql = format!(
        "BEGIN; INSERT INTO witness_log SELECT nextval('witness_number'), 0, 'large' FROM generate_series(1, {rows});
         INSERT INTO witness_mirror (id, number) SELECT max(id) + 1, 0 FROM witness_mirror; COMMIT"
    );
    source.batch_execute(&sql).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_random_kills_lose_nothing_and_apply_nothing_twice() {
    for major in majors().unwrap() {
        let flow = Flow::new(major).await;
        flow.witnesses().await;
        let load = Workload::new(20).connections(3).start(&flow.source_url);
        let mut random = Random::new(20);
        let mut kills = KillCount::at_least(20);
        while kills.count() < 20 {
            let mut run = flow.start(&[]);
            tokio::time::sleep(Duration::from_millis(50 + random.below(1_200))).await;
            kills.record(run.sigkill());
        }
        load.stop().await;
        flow.assert_witnesses().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a8_a_snapshot_under_load_misses_no_row_at_the_handoff_and_takes_none_twice() {
    for major in majors().unwrap() {
        let flow = Flow::new(major).await;
        flow.witnesses().await;
        let load = Workload::new(8).connections(4).start(&flow.source_url);
        tokio::time::sleep(Duration::from_millis(500)).await;
        let mut run = flow.start(&["--until", "now"]);
        assert_eq!(run.ended().await, Some(0), "{}", flow.log());
        load.stop().await;
        flow.assert_witnesses().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a5_a_kill_in_the_middle_of_a_copied_transaction_repeats_the_whole_of_it_once() {
    for major in majors().unwrap() {
        let flow = Flow::new(major).await;
        flow.witnesses().await;
        flow.drain().await;
        let (source, target) = (flow.source_client().await, flow.target_client().await);
        let mut kills = KillCount::at_least(1);
        let mut run = flow.start(&[]);
        flow.streaming().await;

        // The mirror comes behind the thousand rows, and is held.
        let holder = flow.target_client().await;
        holder.batch_execute("BEGIN; LOCK TABLE witness_mirror IN ACCESS EXCLUSIVE MODE").await.unwrap();
        let rows: String = (1..=1_000).map(|number| format!("{number}\t0\tcopied\n")).collect();
        std::fs::write(flow.folder().join("rows"), rows).unwrap();
        source.batch_execute("BEGIN").await.unwrap();
        copy_in(&source, "COPY witness_log FROM STDIN", &flow.folder().join("rows")).await;
        source.batch_execute("UPDATE witness_mirror SET counter = 1 WHERE id = 1; COMMIT").await.unwrap();
        eventually("the rows are written and the mirror is waited for", || async {
            number(&target, LOG_WRITTEN).await > 0 && number(&target, WAITING_FOR_A_LOCK).await > 0
        })
        .await;
        kills.record(run.sigkill());
        holder.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(number(&target, LOGGED).await, 0, "nothing of a transaction that was not committed");

        flow.assert_witnesses().await;
        let changes = "SELECT count(*) FROM pgonce.applied WHERE changes = 1001";
        assert_eq!(number(&target, changes).await, 1);
        assert_eq!(number(&target, LOGGED).await, 1_000);
    }
}

/// Transactions that outgrow what the source keeps in memory, a few at a time: with savepoints that are rolled back,
/// prepared and not, committed and not.
async fn write_streamed(client: Client, writer: u64, end: tokio::sync::watch::Receiver<bool>) {
    let rows = |count: u32| {
        format!(
            "INSERT INTO witness_log SELECT nextval('witness_number'), {writer}, repeat('x', 300)
             FROM generate_series(1, {count});"
        )
    };
    let mut random = Random::new(writer);
    let mut number = 0;
    while !*end.borrow() {
        number += 1;
        client.batch_execute(&format!("BEGIN; {}", rows(400))).await.unwrap();
        tokio::time::sleep(Duration::from_millis(random.below(100))).await;
        client.batch_execute(&format!("SAVEPOINT s; {}", rows(400))).await.unwrap();
        tokio::time::sleep(Duration::from_millis(random.below(100))).await;
        let undo = if random.below(2) == 0 { "ROLLBACK TO s;" } else { "RELEASE s;" };
        let mirror = format!("UPDATE witness_mirror SET counter = counter + 1 WHERE id = {};", writer + 1);
        client.batch_execute(&format!("{undo} {} {mirror}", rows(10))).await.unwrap();
        let gid = format!("{writer}_{number}");
        match random.below(5) {
            0 => client.batch_execute("ROLLBACK").await.unwrap(),
            1 | 2 => client.batch_execute("COMMIT").await.unwrap(),
            way => {
                client.batch_execute(&format!("PREPARE TRANSACTION '{gid}'")).await.unwrap();
                tokio::time::sleep(Duration::from_millis(random.below(2_000))).await;
                let settle = if way == 3 && random.below(2) == 0 { "ROLLBACK" } else { "COMMIT" };
                client.batch_execute(&format!("{settle} PREPARED '{gid}'")).await.unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_among_streamed_and_prepared_transactions_lose_nothing_and_leave_no_file() {
    for major in majors().unwrap() {
        let source = Cluster::builder(major).name("source").conf("logical_decoding_work_mem", "64kB");
        let (source, target) =
            tokio::join!(source.conf("max_prepared_transactions", "10").start(), Cluster::builder(major).start());
        let mut flow = Flow::between(source.unwrap(), target.unwrap());
        flow.arguments = ["--spill-memory", "64kB"].map(str::to_owned).to_vec();
        flow.witnesses().await;
        flow.at_source("SELECT pg_create_logical_replication_slot('pgonce_test', 'pgoutput', false, true)").await;
        flow.drain().await;
        let (stop, end) = tokio::sync::watch::channel(false);
        let mut writers = Vec::new();
        for writer in 0..3 {
            writers.push(tokio::spawn(write_streamed(flow.source_client().await, writer, end.clone())));
        }
        let mut random = Random::new(14 + u64::from(major));
        let mut kills = KillCount::at_least(10);
        while kills.count() < 10 {
            let mut run = flow.start(&[]);
            flow.streaming().await;
            tokio::time::sleep(Duration::from_millis(random.below(1_500))).await;
            kills.record(run.sigkill());
            let spill = flow.data_dir().join("spill");
            assert_eq!(std::fs::read_dir(&spill).unwrap().count(), 0, "a spill file outlives its process");
        }
        stop.send_replace(true);
        for writer in writers {
            writer.await.unwrap();
        }
        flow.assert_witnesses().await;
        let source = flow.source_client().await;
        let streamed = "SELECT coalesce(sum(stream_txns), 0)::int8 FROM pg_stat_replication_slots";
        assert!(number(&source, streamed).await > 10, "hardly anything was streamed");
        let changes = "SELECT count(*) FROM pgonce.applied WHERE changes > 400";
        assert!(number(&flow.target_client().await, changes).await > 10, "hardly anything large was applied");
    }
}

async fn copy_in(client: &Client, statement: &str, file: &std::path::Path) {
    use futures_util::SinkExt;
    let sink = client.copy_in(statement).await.unwrap();
    let mut sink = std::pin::pin!(sink);
    sink.send(bytes::Bytes::from(std::fs::read(file).unwrap())).await.unwrap();
    sink.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a24_a_commit_whose_answer_is_lost_is_not_repeated() {
    for major in majors().unwrap() {
        let mut flow = Flow::new(major).await;
        flow.witnesses().await;
        let proxy = Proxy::to(&flow.target).await.unwrap();
        flow.target_url = proxy.url("postgres");
        flow.at_target(HOLD_COMMITS).await;
        let mut run = flow.start(&["--format", "json"]);
        flow.streaming().await;

        let (target, holder) = (flow.target_client().await, flow.target_client().await);
        let source = flow.source_client().await;
        for lost in 1..=3 {
            holder.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
            source.batch_execute(&format!("INSERT INTO witness_log VALUES ({lost}, 0)")).await.unwrap();
            eventually("the commit is held", || async { number(&target, WAITING_FOR_A_LOCK).await > 0 }).await;
            proxy.black_hole(Direction::ToClient, true);
            holder.batch_execute("SELECT pg_advisory_unlock(7)").await.unwrap();
            eventually("it has committed", || async { number(&target, LOGGED).await == 2 * lost - 1 }).await;
            assert!(proxy.end_connections(Ending::Reset) > 0);
            proxy.heal();
            // Behind the one that comes again.
            source.batch_execute(&format!("INSERT INTO witness_log VALUES (-{lost}, 0)")).await.unwrap();
            eventually("it goes on", || async { number(&target, LOGGED).await == 2 * lost }).await;
        }
        // Cut anywhere, under load.
        let load = Workload::new(24).connections(2).start(&flow.source_url);
        let mut random = Random::new(u64::from(major));
        for _ in 0..8 {
            let before = proxy.traffic().connections;
            proxy.cut_after(Direction::ToClient, random.between(2_000, 20_000));
            proxy.wait_for(|t| t.connections > before, Duration::from_secs(60)).await.unwrap();
        }
        load.stop().await;
        proxy.heal();
        flow.assert_witnesses_in_the_end().await;
        run.sigterm().await;
        let log = flow.log();
        let stopped = log.lines().last().and_then(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let redelivered = stopped.as_ref().and_then(|event| event["redelivered"].as_u64());
        assert!(redelivered >= Some(3), "what had committed came again and was skipped: {stopped:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f3_a_sigterm_ends_in_good_order_with_a_transaction_whole_or_not_at_all() {
    for major in majors().unwrap() {
        let mut flow = Flow::new(major).await;
        flow.witnesses().await;
        flow.drain().await;
        let proxy = Proxy::to(&flow.target).await.unwrap();
        flow.target_url = proxy.url("postgres");
        let (source, target) = (flow.source_client().await, flow.target_client().await);

        // More than two seconds' work: rolled back.
        let mut run = flow.start(&[]);
        flow.streaming().await;
        proxy.throttle(Direction::ToServer, Some(200_000));
        large_transaction(&source, 100_000).await;
        eventually("it is being applied", || async { number(&target, LOG_WRITTEN).await > 0 }).await;
        let took = run.sigterm().await;
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert_eq!(number(&target, LOGGED).await, 0, "nothing half-done");
        proxy.heal();
        flow.assert_witnesses().await;
        assert_eq!(number(&target, LOGGED).await, 100_000);

        // Less than that: finished.
        let mut run = flow.start(&[]);
        flow.streaming().await;
        let holder = flow.target_client().await;
        holder.batch_execute("BEGIN; LOCK TABLE witness_mirror IN ACCESS EXCLUSIVE MODE").await.unwrap();
        large_transaction(&source, 1_000).await;
        eventually("it is held", || async { number(&target, WAITING_FOR_A_LOCK).await > 0 }).await;
        let release = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            holder.batch_execute("ROLLBACK").await.unwrap();
        };
        tokio::join!(run.sigterm(), release);
        assert_eq!(number(&target, LOGGED).await, 101_000, "finished before the end");
        assert_eq!(flow.confirmed_flush().await, flow.stored().await, "and acknowledged");
        flow.assert_witnesses().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_crashes_of_source_target_and_both_heal_while_the_flow_runs() {
    for major in majors().unwrap() {
        let flow = Flow::new(major).await;
        flow.witnesses().await;
        let mut kills = KillCount::at_least(8);
        let mut run = flow.start(&[]);
        flow.streaming().await;
        let load = Workload::new(4).connections(3).start(&flow.source_url);
        let mut random = Random::new(4);
        for round in 0..6 {
            tokio::time::sleep(Duration::from_millis(300 + random.below(700))).await;
            let (source, target) = (round % 3 != 1, round % 3 != 0);
            if source {
                kills.record(flow.source.stop_immediate().await.unwrap());
            }
            if target {
                kills.record(flow.target.stop_immediate().await.unwrap());
            }
            tokio::time::sleep(Duration::from_millis(random.below(500))).await;
            if target {
                flow.target.start().await.unwrap();
            }
            if source {
                flow.source.start().await.unwrap();
            }
            run.assert_running();
        }
        load.stop().await;
        flow.assert_witnesses_in_the_end().await;
        run.sigterm().await;
        flow.assert_witnesses().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_while_a_group_is_narrowed_down_leaves_each_transaction_applied_once_or_not_at_all() {
    for major in majors().unwrap() {
        let mut flow = Flow::new(major).await;
        flow.witnesses().await;
        flow.at_target("ALTER TABLE witness_log ADD CONSTRAINT small CHECK (number <> 41)").await;
        flow.drain().await;
        let (source, target) = (flow.source_client().await, flow.target_client().await);
        for number in 1..=60 {
            let sql =
                format!("INSERT INTO witness_log VALUES ({number}, 0); UPDATE witness_mirror SET number = {number}");
            source.batch_execute(&sql).await.unwrap();
        }
        // Slow enough to be met in the middle.
        let proxy = Proxy::to(&flow.target).await.unwrap();
        flow.target_url = proxy.url("postgres");
        proxy.latency(Direction::ToClient, Duration::from_millis(20));
        let mut kills = KillCount::at_least(3);
        for kill in 0..3 {
            let met = i64::from(kill) * 10 + 5;
            let mut run = flow.start(&[]);
            eventually("it narrows", || async { number(&target, LOGGED).await >= met }).await;
            kills.record(run.sigkill());
        }
        proxy.heal();
        let said = flow.refused("transaction_failed", 7).await;
        assert!(said.contains("small"), "the constraint is named: {said}");
        assert_eq!(number(&target, LOGGED).await, 40, "everything before it, and nothing of it");
        flow.refused("transaction_failed", 7).await;
        flow.at_target("ALTER TABLE witness_log DROP CONSTRAINT small").await;
        flow.assert_witnesses().await;
    }
}
