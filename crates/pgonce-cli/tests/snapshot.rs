//! Kills while tables are copied, and before: the next start copies, never streams over a copy that did not happen,
//! and leaves nothing over. Every test here carries both witnesses.

mod common;

use std::time::Duration;

use common::*;
use pgonce_testkit::{Direction, KillCount, Proxy, Random, Workload, majors};
use tokio_postgres::Client;

/// Rows that take a while through a slow proxy: about a megabyte in the log, less in the mirror.
async fn fill(source: &Client) {
    let sql = "
        INSERT INTO witness_log SELECT nextval('witness_number'), 0, repeat('x', 200) FROM generate_series(1, 5000);
        INSERT INTO witness_mirror (id, number, large)
            SELECT 1000000 + i, 0, repeat(md5(i::text), 100) FROM generate_series(1, 200) i";
    source.batch_execute(sql).await.unwrap();
}

const SLOW: Option<u64> = Some(400_000);

/// Slow enough that a busy machine looks at it in time.
const SLOWER: Option<u64> = Some(120_000);

const COPIED: &str = "SELECT count(*) FROM pgonce.snapshot WHERE boundary IS NOT NULL";

/// How many tables are in the middle of their copy.
const COPYING: &str = "SELECT count(*) FROM pg_stat_progress_copy WHERE bytes_processed > 0";

/// How many of the two witnesses hold rows.
async fn filled(client: &Client) -> i64 {
    let sql = "SELECT (EXISTS (SELECT FROM witness_log))::int::int8 + (EXISTS (SELECT FROM witness_mirror))::int";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// Fails if the flow has acknowledged anything behind what its slot began with, or applied a transaction.
async fn assert_not_streaming(flow: &Flow) {
    let (source, target) = (flow.source_client().await, flow.target_client().await);
    let sql = "SELECT phase || ' ' || boundary || ' ' || (SELECT count(*) FROM pgonce.applied) FROM pgonce.flow";
    let found = text(&target, sql).await;
    let sql = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'pgonce_test'";
    assert_eq!(found, format!("copying {} 0", text(&source, sql).await));
}

/// Fails if anything is left over that only a copy needs, or if the flow has made anything but its four tables.
async fn assert_no_leftovers(flow: &Flow) {
    let (source, target) = (flow.source_client().await, flow.target_client().await);
    let slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name <> 'pgonce_test'";
    eventually("no temporary slot is left", || async { number(&source, slots).await == 0 }).await;
    let made = "SELECT relname::text FROM pg_class WHERE relkind IN ('r', 'p', 'u') AND relnamespace IN
        (SELECT oid FROM pg_namespace WHERE nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast'))
        ORDER BY 1";
    let made = Flow::rows(&target, made).await;
    let expected =
        ["(applied)", "(flow)", "(meta)", "(schema_copy)", "(snapshot)", "(witness_log)", "(witness_mirror)"];
    assert_eq!(made, expected, "no staging table is left");
    let spill = flow.data_dir().join("spill");
    let spilled = std::fs::read_dir(&spill).unwrap().map(|e| e.unwrap().path()).collect::<Vec<_>>();
    assert_eq!(spilled, Vec::<std::path::PathBuf>::new(), "no spill file is left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a7_kills_during_a_slow_copy_lose_nothing_and_copy_nothing_twice() {
    for major in majors().unwrap() {
        let mut flow = Flow::new(major).await;
        flow.witnesses().await;
        fill(&flow.source_client().await).await;
        let proxy = Proxy::to(&flow.target).await.unwrap();
        flow.target_url = proxy.url("postgres");
        proxy.throttle(Direction::ToServer, SLOWER);
        let target = flow.target_client().await;
        let load = Workload::new(7).connections(2).pause(Duration::from_millis(20)).start(&flow.source_url);
        // One table after the other.
        flow.arguments = vec!["--jobs".to_owned(), "1".to_owned()];
        let mut kills = KillCount::at_least(2);

        // In the first table.
        let mut run = flow.start(&[]);
        eventually("the first is being copied", || async { number(&target, COPYING).await > 0 }).await;
        assert_not_streaming(&flow).await;
        kills.record(run.sigkill());
        eventually("the dead session is gone", || async { number(&target, COPYING).await == 0 }).await;
        assert_eq!(filled(&target).await, 0);

        // In the second one: the first is there to stay.
        let mut run = flow.start(&[]);
        eventually("the second is being copied", || async {
            number(&target, COPIED).await == 1 && number(&target, COPYING).await > 0
        })
        .await;
        assert_not_streaming(&flow).await;
        kills.record(run.sigkill());
        assert_eq!((number(&target, COPIED).await, filled(&target).await), (1, 1));

        proxy.heal();
        load.stop().await;
        flow.assert_witnesses().await;
        let boundaries = "SELECT count(DISTINCT boundary) FROM pgonce.snapshot";
        assert_eq!(number(&target, boundaries).await, 2, "each attempt has its own consistent point");
        assert_no_leftovers(&flow).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a15_kills_between_the_slots_creation_and_the_first_copied_row_do_not_skip_the_copy() {
    for major in majors().unwrap() {
        let mut flow = Flow::new(major).await;
        flow.witnesses().await;
        fill(&flow.source_client().await).await;
        let proxy = Proxy::to(&flow.target).await.unwrap();
        flow.target_url = proxy.url("postgres");
        let (source, target) = (flow.source_client().await, flow.target_client().await);
        let mut kills = KillCount::at_least(3);
        let making = "SELECT count(*) FROM pg_replication_slots WHERE confirmed_flush_lsn IS NULL";
        let made = "SELECT count(*) FROM pg_replication_slots
            WHERE slot_name = 'pgonce_test' AND confirmed_flush_lsn IS NOT NULL";
        let more = "INSERT INTO witness_log VALUES (nextval('witness_number'), 0, 'between')";

        // While the slot is being made, which waits for transactions that are open.
        let open = flow.source_client().await;
        open.batch_execute("BEGIN; INSERT INTO witness_log VALUES (nextval('witness_number'), 0, 'open')")
            .await
            .unwrap();
        let mut run = flow.start(&[]);
        eventually("the slot is being made", || async { number(&source, making).await == 1 }).await;
        // Busy, it does not notice that its client dies.
        let pid = number(&source, "SELECT active_pid::int8 FROM pg_replication_slots").await;
        signal(pid, "STOP");
        kills.record(run.sigkill());
        let mut run = flow.start(&[]);
        let named = format!("[slot_in_use]: slot pgonce_test is held by the server process with PID {pid}");
        eventually("the dead session is waited for, by name", || async { flow.log().contains(&named) }).await;
        run.assert_running();
        run.sigterm().await;
        signal(pid, "CONT");
        open.batch_execute("COMMIT").await.unwrap();
        source.batch_execute(more).await.unwrap();
        // Where the dead session gets to its end, the slot is there: without it, as if it had died in time.
        let drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active";
        eventually("the slot is left", || async {
            source.batch_execute(drop).await.unwrap();
            number(&source, "SELECT count(*) FROM pg_replication_slots").await == 0
        })
        .await;

        // When the slot is made and nothing is bound to it.
        open.batch_execute("BEGIN; INSERT INTO witness_log VALUES (nextval('witness_number'), 0, 'open')")
            .await
            .unwrap();
        let mut run = flow.start(&[]);
        eventually("the slot is being made", || async { number(&source, making).await == 1 }).await;
        proxy.pause(Direction::ToServer, true);
        open.batch_execute("COMMIT").await.unwrap();
        eventually("the slot is made", || async { number(&source, made).await == 1 }).await;
        source.batch_execute(more).await.unwrap();
        kills.record(run.sigkill());
        assert_eq!(text(&target, "SELECT phase FROM pgonce.flow").await, "new");
        proxy.heal();

        // When it is bound, before the first row.
        let holder = flow.target_client().await;
        holder.batch_execute("BEGIN; LOCK TABLE witness_log IN SHARE MODE").await.unwrap();
        let mut run = flow.start(&[]);
        eventually("the copy waits", || async { number(&target, WAITING_FOR_A_LOCK).await > 0 }).await;
        assert_not_streaming(&flow).await;
        source.batch_execute(more).await.unwrap();
        kills.record(run.sigkill());
        holder.batch_execute("ROLLBACK").await.unwrap();

        source.batch_execute(more).await.unwrap();
        flow.assert_witnesses().await;
        assert!(number(&target, COPIED).await == 2, "both tables were copied");
        assert_no_leftovers(&flow).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_twenty_kills_during_the_copy_under_load_get_through_and_leave_nothing_over() {
    for major in majors().unwrap() {
        let mut flow = Flow::new(major).await;
        flow.witnesses().await;
        fill(&flow.source_client().await).await;
        let proxy = Proxy::to(&flow.target).await.unwrap();
        flow.target_url = proxy.url("postgres");
        proxy.throttle(Direction::ToServer, SLOW);
        let load = Workload::new(4).connections(2).pause(Duration::from_millis(20)).start(&flow.source_url);
        let mut random = Random::new(40);
        let mut kills = KillCount::at_least(20);
        let mut spilled = false;
        while kills.count() < 20 {
            // Further and further, so that the kills spread over the copy and what follows.
            let mut run = flow.start(&[]);
            tokio::time::sleep(Duration::from_millis(30 + random.below(60 * u64::from(kills.count()) + 200))).await;
            kills.record(run.sigkill());
            let phase = "SELECT count(*) FROM pgonce.flow WHERE phase = 'streaming'";
            if !spilled && (number(&flow.target_client().await, phase).await == 1 || kills.count() == 18) {
                // Too large for memory.
                let sql = "INSERT INTO witness_log SELECT nextval('witness_number'), 0, repeat('s', 2000)
                           FROM generate_series(1, 12000)";
                flow.at_source(sql).await;
                proxy.heal();
                spilled = true;
            }
        }
        load.stop().await;
        proxy.heal();
        assert!(spilled);
        let mut run = flow.start(&[]);
        flow.streaming().await;
        assert_no_leftovers(&flow).await;
        run.sigterm().await;
        flow.assert_witnesses().await;
        assert_no_leftovers(&flow).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_crashes_of_both_servers_during_the_copy_heal_while_the_flow_runs() {
    for major in majors().unwrap() {
        let mut flow = Flow::new(major).await;
        flow.witnesses().await;
        fill(&flow.source_client().await).await;
        let proxy = Proxy::to(&flow.target).await.unwrap();
        flow.target_url = proxy.url("postgres");
        proxy.throttle(Direction::ToServer, SLOWER);
        let load = Workload::new(4).connections(2).pause(Duration::from_millis(20)).start(&flow.source_url);
        let mut kills = KillCount::at_least(4);
        let mut run = flow.start(&[]);
        for (source, target) in [(false, true), (true, false), (true, true)] {
            let client = flow.target_client().await;
            eventually("a table is being copied", || async { number(&client, COPYING).await > 0 }).await;
            drop(client);
            if target {
                kills.record(flow.target.stop_immediate().await.unwrap());
            }
            if source {
                kills.record(flow.source.stop_immediate().await.unwrap());
                flow.source.start().await.unwrap();
            }
            if target {
                flow.target.start().await.unwrap();
            }
            run.assert_running();
        }
        proxy.heal();
        load.stop().await;
        flow.assert_witnesses_in_the_end().await;
        run.sigterm().await;
        flow.assert_witnesses().await;
        assert_no_leftovers(&flow).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncate_between_the_copies_of_two_tables_empties_the_one_that_was_copied_before_it() {
    for major in majors().unwrap() {
        let flow = Flow::new(major).await;
        flow.witnesses().await;
        flow.both(
            "CREATE TABLE a_parent (id int PRIMARY KEY, v text);
             CREATE TABLE b_child (id int PRIMARY KEY, parent int REFERENCES a_parent)",
        )
        .await;
        flow.at_source("INSERT INTO a_parent VALUES (1, 'before'), (2, 'before'); INSERT INTO b_child VALUES (1, 1)")
            .await;
        let (source, target) = (flow.source_client().await, flow.target_client().await);
        let mut kills = KillCount::at_least(1);

        let holder = flow.target_client().await;
        holder.batch_execute("BEGIN; LOCK TABLE b_child IN SHARE MODE").await.unwrap();
        let mut run = flow.start(&[]);
        let copied = "SELECT count(*) FROM pgonce.snapshot WHERE table_name = 'a_parent'";
        eventually("the first is copied", || async { number(&target, copied).await == 1 }).await;
        kills.record(run.sigkill());
        holder.batch_execute("ROLLBACK").await.unwrap();
        // In the copy of the child, which is still to come, and not in that of its parent.
        let change = "TRUNCATE a_parent RESTART IDENTITY CASCADE; INSERT INTO a_parent VALUES (7, 'behind');
                      INSERT INTO b_child VALUES (7, 7); INSERT INTO witness_log VALUES (1, 0)";
        source.batch_execute(change).await.unwrap();
        flow.drain().await;
        assert_eq!(flow.assert_same("SELECT * FROM a_parent ORDER BY id").await, ["(7,behind)"]);
        assert_eq!(flow.assert_same("SELECT * FROM b_child ORDER BY id").await, ["(7,7)"]);
        flow.assert_witnesses().await;
    }
}
