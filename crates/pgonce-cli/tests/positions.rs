//! Positions that do not fit together: a ledger, a slot, a target or a source that went elsewhere is refused, and a
//! restart does not turn the refusal into an acceptance. What was acknowledged is never lost.

mod common;

use std::os::unix::fs::{MetadataExt, chown};
use std::time::Duration;

use common::*;
use pgonce::position::Lsn;
use pgonce_testkit::{Cluster, DataCopy, Direction, KillCount, Proxy, Random, Workload, majors};

const LOGGED: &str = "SELECT count(*) FROM witness_log";

/// Transactions on the witnesses, run to their end.
async fn transactions(flow: &Flow, seed: u64, count: u64) {
    let _ = Workload::new(seed).connections(2).run_transactions(&flow.source_url, count).await;
}

/// Expects a stop, twice, that neither applies nor acknowledges anything.
async fn refused_for_good(flow: &Flow, code: &str, status: i32) -> String {
    let state = || async {
        let target = flow.target_client().await;
        let sql = "SELECT count(*)::text || ' ' || coalesce(max(number), 0) FROM witness_log";
        let stored = "SELECT coalesce(commit_lsn::text, '') || ' ' || idle_lsn FROM pgonce.flow";
        (flow.confirmed_flush().await, text(&target, sql).await, text(&target, stored).await)
    };
    let before = state().await;
    let said = flow.refused(code, status).await;
    assert_eq!(state().await, before, "{said}");
    flow.refused(code, status).await;
    assert_eq!(state().await, before, "{said}");
    assert_eq!(flow.status().await["doing"], "stopped");
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a16_a_redelivered_transaction_that_the_ledger_knows_otherwise_is_a_conflict() {
    for major in majors().unwrap() {
        let mut flow = Flow::new(major).await;
        flow.witnesses().await;
        flow.at_target(HOLD_COMMITS).await;
        flow.drain().await;
        let direct = flow.source_url.clone();
        let proxy = Proxy::to(&flow.source).await.unwrap();
        flow.source_url = proxy.url("postgres");
        let (source, target, holder) =
            (flow.source_client().await, flow.target_client().await, flow.target_client().await);
        let mut kills = KillCount::at_least(1);
        let mut run = flow.start(&[]);
        flow.streaming().await;

        // Applied, and not acknowledged: the source hears nothing from the moment at which the commit is held.
        holder.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
        source.batch_execute("INSERT INTO witness_log VALUES (1, 0)").await.unwrap();
        source.batch_execute("INSERT INTO witness_log VALUES (2, 0)").await.unwrap();
        source.batch_execute("INSERT INTO witness_log VALUES (3, 0)").await.unwrap();
        eventually("the commit is held", || async { number(&target, WAITING_FOR_A_LOCK).await > 0 }).await;
        proxy.black_hole(Direction::ToServer, true);
        holder.batch_execute("SELECT pg_advisory_unlock(7)").await.unwrap();
        eventually("applied", || async { number(&target, LOGGED).await > 0 }).await;
        kills.record(run.sigkill());
        flow.source_url = direct;
        drop(proxy);
        let confirmed = flow.confirmed_flush().await;
        let first: Lsn = text(&target, "SELECT min(commit_lsn)::text FROM pgonce.applied").await.parse().unwrap();
        assert!(confirmed <= first, "{confirmed} is not below {first}: it would not come again");

        let damages = [
            "digest = overlay(digest placing '00000000' from length(digest) - 7)",
            "changes = changes + 1",
            "xid = xid + 1",
        ];
        for damage in damages {
            target.batch_execute("CREATE TABLE saved AS TABLE pgonce.applied").await.unwrap();
            let damage = format!(
                "UPDATE pgonce.applied SET {damage} WHERE commit_lsn = (SELECT min(commit_lsn) FROM pgonce.applied)"
            );
            flow.at_source("INSERT INTO witness_log VALUES (nextval('witness_number') + 10, 0)").await;
            target.batch_execute(&damage).await.unwrap();
            let said = refused_for_good(&flow, "redelivery_conflict", 7).await;
            assert!(said.contains(&first.to_string()), "the transaction is named: {said}");
            let mend = "DELETE FROM pgonce.applied; INSERT INTO pgonce.applied TABLE saved; DROP TABLE saved";
            target.batch_execute(mend).await.unwrap();
        }
        flow.assert_witnesses().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a18_a_target_restored_from_an_older_copy_and_a19_a_slot_moved_by_hand_are_data_gaps() {
    for major in majors().unwrap() {
        let flow = Flow::new(major).await;
        flow.witnesses().await;
        transactions(&flow, 18, 50).await;
        flow.assert_witnesses().await;

        // The target goes back in time.
        flow.target.stop_fast().await.unwrap();
        let older = DataCopy::of(&flow.target).unwrap();
        flow.target.start().await.unwrap();
        transactions(&flow, 19, 50).await;
        flow.assert_witnesses().await;
        let confirmed = flow.confirmed_flush().await;
        flow.target.stop_fast().await.unwrap();
        older.restore(&flow.target).unwrap();
        flow.target.start().await.unwrap();
        assert!(flow.stored().await < confirmed);
        let told = refused_for_good(&flow, "data_gap", 4).await;
        assert!(told.contains("pgonce reset"), "the way out is named: {told}");
        transactions(&flow, 20, 5).await;
        refused_for_good(&flow, "data_gap", 4).await;

        // The way out, and then a slot moved over changes.
        let reset = flow.output(&["reset", "--yes"]).await;
        assert!(reset.status.success(), "{}", said(&reset));
        flow.at_target("TRUNCATE witness_log, witness_mirror").await;
        flow.assert_witnesses().await;
        transactions(&flow, 21, 5).await;
        flow.at_source("SELECT pg_replication_slot_advance('pgonce_test', pg_current_wal_lsn())").await;
        refused_for_good(&flow, "data_gap", 4).await;
    }
}

/// Makes the stopped source start on a new timeline, which leaves the old one at the end of its WAL: a promotion.
async fn promote(source: &Cluster) {
    let signal = source.data_dir().join("recovery.signal");
    std::fs::write(&signal, "").unwrap();
    let owner = std::fs::metadata(source.data_dir()).unwrap();
    chown(&signal, Some(owner.uid()), Some(owner.gid())).unwrap();
    // Nothing is in an archive.
    source.set_conf("restore_command", "false").await.unwrap();
    source.start().await.unwrap();
    let client = source.connect("postgres").await.unwrap();
    let recovering = "SELECT pg_is_in_recovery()::int::int8";
    eventually("promoted", || async { number(&client, recovering).await == 0 }).await;
}

/// Transactions until the source's WAL has grown past a position.
async fn grow_past(flow: &Flow, position: Lsn) {
    let source = flow.source_client().await;
    for seed in 100.. {
        let here: Lsn = text(&source, "SELECT pg_current_wal_lsn()::text").await.parse().unwrap();
        if here > position {
            return;
        }
        transactions(flow, seed, 30).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a20_a_promoted_source_goes_on_where_it_left_above_the_applied_position_and_is_refused_below() {
    for major in majors().unwrap() {
        let flow = Flow::new(major).await;
        flow.witnesses().await;
        transactions(&flow, 1, 50).await;
        flow.assert_witnesses().await;

        // Promoted after a crash, above what was applied: with transactions of both timelines to come.
        transactions(&flow, 2, 50).await;
        let _ = flow.source.stop_immediate().await.unwrap();
        promote(&flow.source).await;
        transactions(&flow, 3, 50).await;
        flow.assert_witnesses().await;
        let target = flow.target_client().await;
        assert_eq!(text(&target, "SELECT checkpoint_timeline::text FROM pgonce.flow").await, "2");

        // Promoted below what was applied, and its WAL grown past it.
        flow.source.stop_fast().await.unwrap();
        let older = DataCopy::of(&flow.source).unwrap();
        flow.source.start().await.unwrap();
        transactions(&flow, 4, 50).await;
        flow.assert_witnesses().await;
        let applied = flow.stored().await;
        flow.source.stop_fast().await.unwrap();
        older.restore(&flow.source).unwrap();
        promote(&flow.source).await;
        refused_for_good(&flow, "timeline_diverged", 5).await;
        grow_past(&flow, applied).await;
        let said = refused_for_good(&flow, "timeline_diverged", 5).await;
        assert!(said.contains("timeline 3 left timeline 2"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a6_a_source_restored_to_an_earlier_point_of_its_own_timeline_is_refused_also_when_it_has_grown_past() {
    for major in majors().unwrap() {
        let flow = Flow::new(major).await;
        flow.witnesses().await;
        transactions(&flow, 1, 30).await;
        flow.assert_witnesses().await;
        flow.source.stop_fast().await.unwrap();
        let older = DataCopy::of(&flow.source).unwrap();
        flow.source.start().await.unwrap();
        transactions(&flow, 2, 100).await;
        flow.assert_witnesses().await;
        let applied = flow.stored().await;
        flow.source.stop_fast().await.unwrap();
        older.restore(&flow.source).unwrap();
        flow.source.start().await.unwrap();
        refused_for_good(&flow, "source_changed", 5).await;
        grow_past(&flow, applied).await;
        refused_for_good(&flow, "source_changed", 5).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a21_nothing_is_acknowledged_that_a_crashed_target_lost() {
    for major in majors().unwrap() {
        // A log that is written late makes the target lose what it can.
        let target = Cluster::builder(major).name("target").conf("wal_writer_delay", "10s");
        let target = target.conf("wal_writer_flush_after", "2GB").conf("wal_buffers", "64MB").start();
        let (source, target) = tokio::join!(Cluster::builder(major).name("source").start(), target);
        let mut flow = Flow::between(source.unwrap(), target.unwrap());
        flow.arguments = vec!["--synchronous-commit".to_owned(), "off".to_owned()];
        flow.witnesses().await;
        flow.drain().await;
        let mut random = Random::new(21);
        let mut kills = KillCount::at_least(16);
        let mut lost = 0;
        let load = Workload::new(21).connections(1).changes_max(4).pause(Duration::from_millis(150));
        let load = load.start(&flow.source_url);
        let end = "SELECT coalesce(end_lsn, '0/0')::text FROM pgonce.flow";
        for _ in 0..8 {
            let mut run = flow.start(&[]);
            flow.streaming().await;
            let target = flow.target_client().await;
            let applied = number(&target, "SELECT count(*) FROM pgonce.applied").await;
            eventually("transactions are applied", || async {
                number(&target, "SELECT count(*) FROM pgonce.applied").await > applied
            })
            .await;
            tokio::time::sleep(Duration::from_millis(random.below(600))).await;
            let seen: Lsn = text(&target, end).await.parse().unwrap();
            drop(target);
            kills.record(flow.target.stop_immediate().await.unwrap());
            kills.record(run.sigkill());
            flow.target.start().await.unwrap();
            let kept: Lsn = text(&flow.target_client().await, end).await.parse().unwrap();
            lost += u32::from(kept < seen);
            let (confirmed, stored) = (flow.confirmed_flush().await, flow.stored().await);
            assert!(confirmed <= stored, "{confirmed} was acknowledged, and the target has {stored} only");
        }
        load.stop().await;
        assert!(lost > 0, "no crash lost anything: this test tests nothing");
        flow.assert_witnesses().await;
    }
}
