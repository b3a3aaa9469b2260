//! The slot: who may read it, what becomes of it, and which process has the flow.

mod common;

use std::time::Duration;

use common::*;
use pgonce_testkit::{Cluster, KillCount, Workload, majors};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a17_of_two_appliers_the_older_one_cannot_commit_says_why_and_ends() {
    for major in majors().unwrap() {
        let flow = Flow::new(major).await;
        flow.witnesses().await;
        flow.drain().await;
        let load = Workload::new(17).connections(2).pause(Duration::from_millis(5)).start(&flow.source_url);

        // A second process waits for the slot, by name, and leaves the first one alone.
        let mut older = flow.start_in("older", &[]);
        flow.streaming().await;
        let source = flow.source_client().await;
        let pid = number(&source, "SELECT active_pid::int8 FROM pg_replication_slots").await;
        let mut newer = flow.start_in("newer", &[]);
        let named = format!("[slot_in_use]: slot pgonce_test is held by the server process with PID {pid}");
        eventually("the holder is named", || async { flow.log_of("newer").contains(&named) }).await;
        older.assert_running();

        // The first one is held in the middle of a transaction, and its walsender ends: the second one takes over.
        let (target, holder) = (flow.target_client().await, flow.target_client().await);
        holder.batch_execute("BEGIN; LOCK TABLE witness_log IN ACCESS EXCLUSIVE MODE").await.unwrap();
        eventually("the first is held", || async { number(&target, WAITING_FOR_A_LOCK).await == 1 }).await;
        source.batch_execute(&format!("SELECT pg_terminate_backend({pid})")).await.unwrap();
        eventually("both are held", || async { number(&target, WAITING_FOR_A_LOCK).await == 2 }).await;
        holder.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(older.ended().await, Some(9), "{}", flow.log_of("older"));
        let said = flow.log_of("older");
        assert!(said.contains("[fenced]") && said.contains(&format!("PID {}", newer.id())), "{said}");
        newer.assert_running();
        load.stop().await;
        flow.assert_witnesses_in_the_end().await;
        newer.sigterm().await;
        flow.assert_witnesses().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f2_a_process_killed_and_started_at_once_waits_for_its_old_walsender_by_name() {
    for major in majors().unwrap() {
        let flow = Flow::new(major).await;
        flow.witnesses().await;
        flow.drain().await;
        let source = flow.source_client().await;
        let mut kills = KillCount::at_least(1);
        let mut run = flow.start(&[]);
        flow.streaming().await;
        // The old walsender is busy and does not notice: it is stopped.
        let pid = number(&source, "SELECT active_pid::int8 FROM pg_replication_slots").await;
        signal(pid, "STOP");
        kills.record(run.sigkill());
        let mut run = flow.start(&[]);
        let named = format!("[slot_in_use]: slot pgonce_test is held by the server process with PID {pid}");
        eventually("it is named", || async { flow.log().contains(&named) }).await;
        signal(pid, "CONT");
        let load = Workload::new(2).connections(2).run_transactions(&flow.source_url, 20).await;
        assert!(load.committed > 0);
        flow.assert_witnesses_in_the_end().await;
        run.sigterm().await;
        assert_eq!(flow.log().matches("[slot_in_use]").count(), 1, "said once: {}", flow.log());
    }
}

/// Writes WAL until the slot cannot be kept.
async fn lose(flow: &Flow) {
    let source = flow.source_client().await;
    let lost = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'pgonce_test' AND wal_status = 'lost'";
    for _ in 0..8 {
        source.batch_execute("SELECT pg_logical_emit_message(false, 'fill', 'x'), pg_switch_wal()").await.unwrap();
    }
    eventually("the slot is lost", || async {
        source.batch_execute("CHECKPOINT").await.unwrap();
        number(&source, lost).await == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e2_a_slot_whose_wal_was_removed_is_lost_at_once_with_the_way_out() {
    for major in majors().unwrap() {
        let source = Cluster::builder(major).name("source").conf("max_slot_wal_keep_size", "16MB");
        let source = source.conf("max_wal_size", "32MB").conf("min_wal_size", "32MB").start();
        let (source, target) = tokio::join!(source, Cluster::builder(major).name("target").start());
        let flow = Flow::between(source.unwrap(), target.unwrap());
        flow.witnesses().await;
        flow.drain().await;

        // While the flow is down.
        flow.at_source("INSERT INTO witness_log VALUES (1, 0)").await;
        lose(&flow).await;
        for _ in 0..2 {
            let said = flow.refused("slot_lost", 4).await;
            assert!(said.contains("pgonce reset"), "the way out is named: {said}");
        }
        assert_eq!(number(&flow.target_client().await, "SELECT count(*) FROM witness_log").await, 0);

        // The way out.
        let reset = flow.output(&["reset", "--yes"]).await;
        assert!(reset.status.success(), "{}", said(&reset));
        flow.at_target("TRUNCATE witness_log, witness_mirror").await;
        flow.assert_witnesses().await;

        // While it is held at the target.
        let mut run = flow.start(&[]);
        flow.streaming().await;
        let (target, holder) = (flow.target_client().await, flow.target_client().await);
        holder.batch_execute("BEGIN; LOCK TABLE witness_log IN ACCESS EXCLUSIVE MODE").await.unwrap();
        flow.at_source("INSERT INTO witness_log VALUES (2, 0)").await;
        eventually("it is held", || async { number(&target, WAITING_FOR_A_LOCK).await > 0 }).await;
        lose(&flow).await;
        holder.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(run.ended().await, Some(4), "{}", flow.log());
        flow.refused("slot_lost", 4).await;
        assert_eq!(flow.status().await["target"]["stop"]["code"], "slot_lost");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e3_a_source_without_a_free_slot_is_waited_for_and_says_so() {
    for major in majors().unwrap() {
        let source = Cluster::builder(major).name("source").conf("max_replication_slots", "1").start();
        let (source, target) = tokio::join!(source, Cluster::builder(major).name("target").start());
        let flow = Flow::between(source.unwrap(), target.unwrap());
        flow.witnesses().await;
        flow.at_source("INSERT INTO witness_log VALUES (1, 0)").await;
        flow.at_source("SELECT pg_create_physical_replication_slot('other')").await;
        let connections = "SELECT sum(sessions)::int8 FROM pg_stat_database WHERE datname = 'postgres'";
        let mut run = flow.start(&[]);
        eventually("it says so", || async { flow.log().contains("max_replication_slots") }).await;
        let source = flow.source_client().await;
        let before = number(&source, connections).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let after = number(&source, connections).await;
        assert!(after - before < 40, "a hot loop: {before} and {after} connections within two seconds");
        run.assert_running();
        source.batch_execute("SELECT pg_drop_replication_slot('other')").await.unwrap();
        flow.assert_witnesses_in_the_end().await;
        run.sigterm().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a22_a_slot_that_a_crash_moved_back_below_where_the_flow_began_brings_nothing_of_what_lies_before() {
    for major in majors().unwrap() {
        let mut flow = Flow::new(major).await;
        flow.arguments = ["--start", "go-forward", "--publication", "p"].map(str::to_owned).to_vec();
        flow.witnesses().await;
        flow.at_source("CREATE PUBLICATION p FOR TABLE witness_log, witness_mirror").await;
        flow.at_source("SELECT pg_create_logical_replication_slot('pgonce_test', 'pgoutput')").await;
        // On both sides before the flow begins.
        flow.both("INSERT INTO witness_log VALUES (1, 0), (2, 0)").await;
        flow.at_target("INSERT INTO witness_mirror (id, number) SELECT i, 0 FROM generate_series(1, 16) i").await;
        flow.at_source("SELECT pg_replication_slot_advance('pgonce_test', pg_current_wal_lsn())").await;
        let advanced = flow.confirmed_flush().await;
        flow.drain().await;

        // An advance is not on disk before the next checkpoint.
        let mut kills = KillCount::at_least(1);
        kills.record(flow.source.stop_immediate().await.unwrap());
        flow.source.start().await.unwrap();
        assert!(flow.confirmed_flush().await < advanced, "the slot did not go back: this test tests nothing");
        flow.at_source("INSERT INTO witness_log VALUES (3, 0)").await;
        flow.assert_witnesses().await;
        flow.assert_witnesses().await;
    }
}
