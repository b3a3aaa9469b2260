//! Slow sinks, large transactions, and ends in good order and in none.

use std::time::{Duration, Instant};

use pgonce::position::Lsn;
use pgonce_testkit::majors;

use crate::stage::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a5_a_kill_in_the_middle_of_a_large_transaction_repeats_the_whole_of_it() {
    for major in majors().unwrap() {
        let stage = Stage::new(major).await;
        for keep in Keep::ALL {
            let flow = stage.flow(keep).await;
            let (target, holder) = (flow.target().await, flow.target().await);
            let mut run = flow.streaming(&[]).await;
            // The mirror comes behind ten thousand rows of the log, and is held.
            holder.batch_execute("BEGIN; LOCK TABLE witness_mirror IN ACCESS EXCLUSIVE MODE").await.unwrap();
            flow.large(10_000).await;
            flow.eventually("the rows are written and the mirror is waited for", || async {
                number(&target, "SELECT pg_relation_size('witness_log')").await > 0
                    && number(&target, WAITING_FOR_A_LOCK).await > 0
            })
            .await;
            let _ = run.sigkill();
            holder.batch_execute("ROLLBACK").await.unwrap();
            assert_eq!(arrived(&target).await, [0; 0], "nothing of a transaction that was not committed");
            flow.assert_witnesses(0, 0).await;
            assert_eq!(arrived(&target).await.len(), 10_000);
            if !keep.once() {
                // Killed behind the sink's commit, and before its state is stored: whole, and once more.
                flow.at_target(HOLD_COMMITS).await;
                holder.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
                let mut run = flow.streaming(&[]).await;
                flow.large(1_000).await;
                flow.eventually("the commit is held", || async { number(&target, WAITING_FOR_A_LOCK).await > 0 }).await;
                let _ = run.sigkill();
                holder.batch_execute("SELECT pg_advisory_unlock(7)").await.unwrap();
                flow.logged(11_000).await;
                let came_again = flow.assert_witnesses(1, 1_000).await;
                assert_eq!(came_again, [1_000], "all rows of the transaction");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_feedback_goes_on_while_a_sink_takes_longer_than_the_walsender_waits() {
    for major in majors().unwrap() {
        let stage = Stage::with(major, &[("wal_sender_timeout", "2s")]).await;
        let tested = async |keep: Keep| {
            let flow = stage.flow(keep).await;
            let run = flow.streaming(&["--write-ms", "8000"]).await;
            let source = flow.source().await;
            let sql = format!("SELECT active_pid::int8 FROM pg_replication_slots WHERE slot_name = '{}'", flow.slot());
            let walsender = number(&source, &sql).await;
            flow.large(1_000).await;
            flow.logged(1_000).await;
            assert_eq!(number(&source, &sql).await, walsender, "the walsender must not have timed out");
            assert!(!flow.log().contains("\"connection\""), "{}", flow.tail());
            run.sigterm().await;
            flow.assert_written(0, 0).await;
        };
        tokio::join!(tested(Keep::Atomic), tested(Keep::File));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f3_a_sigterm_during_a_large_transaction_finishes_it_or_rolls_it_back() {
    for major in majors().unwrap() {
        let stage = Stage::new(major).await;
        let tested = async |keep: Keep| {
            let flow = stage.flow(keep).await;
            let target = flow.target().await;
            let writing = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgonce sink'
                           AND state = 'idle in transaction' AND datname = current_database()";
            // Longer than the two seconds that it is given: rolled back.
            let run = flow.streaming(&["--write-ms", "20000"]).await;
            flow.large(20_000).await;
            flow.eventually("it writes", || async { number(&target, writing).await == 1 }).await;
            let took = run.sigterm().await;
            assert!(took < Duration::from_secs(10), "{took:?}");
            assert_eq!(arrived(&target).await, [0; 0], "nothing half-done");
            flow.drain().await;
            assert_eq!(arrived(&target).await.len(), 20_000, "whole");
            // Shorter: finished and stored, so that it does not come again.
            let run = flow.streaming(&["--write-ms", "700"]).await;
            flow.large(1_000).await;
            flow.eventually("it writes", || async { number(&target, writing).await == 1 }).await;
            run.sigterm().await;
            assert_eq!(arrived(&target).await.len(), 21_000, "{}", flow.tail());
            flow.assert_written(0, 0).await;
            flow.assert_witnesses(0, 0).await;
        };
        tokio::join!(tested(Keep::Atomic), tested(Keep::File), tested(Keep::Postgres));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e1_an_idle_flow_follows_writes_to_other_tables() {
    for major in majors().unwrap() {
        let stage = Stage::new(major).await;
        let tested = async |keep: Keep| {
            let flow = stage.flow(keep).await;
            let run = flow.streaming(&[]).await;
            let source = flow.source().await;
            source.batch_execute("CREATE TABLE other (b text)").await.unwrap();
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(4) {
                let sql = "INSERT INTO other SELECT repeat('x', 100) FROM generate_series(1, 1000) i";
                source.batch_execute(sql).await.unwrap();
            }
            let sql = "SELECT pg_current_wal_insert_lsn()::text";
            let written: Lsn = text(&source, sql).await.parse().unwrap();
            let sql = format!(
                "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{}'",
                flow.slot()
            );
            flow.eventually("confirmed_flush_lsn follows", || async {
                text(&source, &sql).await.parse::<Lsn>().unwrap() >= written.before_page_header()
            })
            .await;
            // What was acknowledged was stored before.
            let mut run = run;
            let _ = run.sigkill();
            flow.numbered(1).await;
            flow.assert_witnesses(0, 0).await;
        };
        tokio::join!(tested(Keep::Atomic), tested(Keep::File), tested(Keep::Postgres));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e2_a_slot_that_the_source_has_given_up_is_recognised_at_once_and_for_good() {
    for major in majors().unwrap() {
        let stage = Stage::with(major, &[("max_slot_wal_keep_size", "16MB"), ("max_wal_size", "32MB")]).await;
        let mut flows = Vec::new();
        for keep in Keep::ALL {
            let flow = stage.flow(keep).await;
            flow.numbered(2).await;
            flow.assert_witnesses(0, 0).await;
            flows.push(flow);
        }
        let source = flows[0].source().await;
        source.batch_execute("CREATE TABLE other (b text); ALTER TABLE other ALTER b SET STORAGE PLAIN").await.unwrap();
        let sql = "INSERT INTO other SELECT repeat('x', 7000) FROM generate_series(1, 4000) i";
        for _ in 0..7 {
            source.batch_execute(sql).await.unwrap();
            source.batch_execute("SELECT pg_switch_wal()").await.unwrap();
        }
        source.batch_execute("CHECKPOINT").await.unwrap();
        let lost = "SELECT count(*) FROM pg_replication_slots WHERE wal_status = 'lost'";
        assert_eq!(number(&source, lost).await, 3);
        for flow in &flows {
            let began = Instant::now();
            flow.refused_for_good("slot_lost", 4).await;
            assert!(began.elapsed() < Duration::from_secs(20));
        }
    }
}
