//! Transactions that are streamed while they are in progress, or prepared, beside open batches, lost connections and
//! kills.

use std::time::{Duration, Instant};

use pgonce::position::Lsn;
use pgonce_testkit::{Ending, Proxy, majors};
use tokio_postgres::Client;

use crate::stage::*;

/// A source that streams what outgrows 64 kB.
async fn early(major: u32) -> Stage {
    Stage::with(major, &[("logical_decoding_work_mem", "64kB"), ("max_prepared_transactions", "20")]).await
}

/// Rows of the log with these numbers, of about 100 bytes.
fn rows(from: u32, count: u32) -> String {
    let last = from + count - 1;
    format!("INSERT INTO witness_log SELECT i, 0, repeat(md5(i::text), 3) FROM generate_series({from}, {last}) i;")
}

/// Rows of a table that nobody publishes.
fn unpublished(count: u32) -> String {
    format!("INSERT INTO other SELECT repeat(md5(i::text), 3) FROM generate_series(1, {count}) i;")
}

/// How many transactions the slot has streamed before they ended.
async fn has_streamed(flow: &Flow<'_>, count: i64) {
    let source = flow.source().await;
    let sql = format!(
        "SELECT coalesce(sum(stream_txns), 0)::int8 FROM pg_stat_replication_slots WHERE slot_name = '{}'",
        flow.slot()
    );
    flow.eventually("streamed", || async { number(&source, &sql).await >= count }).await;
}

async fn lsn(client: &Client, sql: &str) -> Lsn {
    text(client, sql).await.parse().unwrap()
}

async fn written(client: &Client) -> Lsn {
    lsn(client, "SELECT pg_current_wal_insert_lsn()::text").await
}

/// Where the slot stands, whoever reads it.
async fn confirmed(flow: &Flow<'_>, client: &Client) -> Lsn {
    let sql = format!("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{}'", flow.slot());
    lsn(client, &sql).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streaming_x_batching_a11_nothing_unpublished_is_delivered_or_acknowledged_past_an_open_batch() {
    for major in majors().unwrap() {
        let stage = early(major).await;
        let tested = async |keep: Keep| {
            let flow = stage.flow(keep).await;
            let (source, target) = (flow.source().await, flow.target().await);
            source.batch_execute("CREATE TABLE other (b text)").await.unwrap();
            let run = flow.streaming(&["--delay-ms", "4000"]).await;
            let before = written(&source).await;
            flow.numbered(1).await;
            let began = Instant::now();
            source.batch_execute(&unpublished(5_000)).await.unwrap();
            has_streamed(&flow, 1).await;
            while began.elapsed() < Duration::from_secs(3) {
                assert!(confirmed(&flow, &source).await <= before, "{keep:?} on {major}: past the open batch");
                assert_eq!(number(&target, LOGGED).await, 0, "the batch is open");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            flow.logged(1).await;
            // Alone, it is an idle position as any other.
            source.batch_execute(&unpublished(5_000)).await.unwrap();
            let behind = written(&source).await.before_page_header();
            flow.eventually("idle over it", || async { confirmed(&flow, &source).await >= behind }).await;
            run.sigterm().await;
            flow.assert_witnesses(0, 0).await;
        };
        tokio::join!(tested(Keep::Atomic), tested(Keep::File), tested(Keep::Postgres));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_x_batching_a12_messages_ride_in_their_transactions_and_alone_also_when_streamed() {
    for major in majors().unwrap() {
        let stage = early(major).await;
        let tested = async |keep: Keep| {
            let flow = stage.flow(keep).await;
            let (source, target) = (flow.source().await, flow.target().await);
            let mut run = flow.streaming(&["--delay-ms", "500", "--batch", "3"]).await;
            // Between rows, and without any; streamed, and small; with a savepoint that is rolled back.
            let message = |prefix: &str, count: u32| {
                format!(
                    "SELECT pg_logical_emit_message(true, '{prefix}', i || repeat('x', 1000))
                     FROM generate_series(1, {count}) i;"
                )
            };
            for sql in [
                format!("BEGIN; {} {} COMMIT", rows(1, 1), message("kept", 1)),
                format!("BEGIN; {} SAVEPOINT s; {} ROLLBACK TO s; COMMIT", message("kept", 400), message("gone", 400)),
                message("kept", 1),
                format!("BEGIN; {} {} COMMIT", rows(2, 1000), message("kept", 1)),
                "SELECT pg_logical_emit_message(true, 'kept', 'two at once'); ".repeat(2),
            ] {
                source.batch_execute(&sql).await.unwrap();
            }
            let sql = "SELECT count(*) FROM witness_message";
            flow.eventually("all messages", || async { number(&target, sql).await >= 405 }).await;
            // Which messages the savepoint took along, a streamed transaction does not say.
            has_streamed(&flow, 1).await;
            assert!(flow.log().contains("asked for as a whole"), "{}", flow.tail());
            let _ = run.sigkill();
            flow.assert_witnesses(0, 0).await;
            let gone = "SELECT count(*) FROM witness_message WHERE prefix = 'gone'";
            assert_eq!((number(&target, sql).await, number(&target, gone).await), (405, 0), "{}", flow.tail());
        };
        tokio::join!(tested(Keep::Atomic), tested(Keep::File), tested(Keep::Postgres));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streaming_x_idle_a13_while_a_streamed_transaction_is_open_nothing_is_taken_for_idle() {
    for major in majors().unwrap() {
        let stage = early(major).await;
        let tested = async |keep: Keep| {
            let flow = stage.flow(keep).await;
            let source = flow.source().await;
            source.batch_execute("CREATE TABLE other (b text)").await.unwrap();
            let mut run = flow.streaming(&[]).await;
            let (a, b) = (flow.source().await, flow.source().await);
            a.batch_execute(&format!("BEGIN; {} SAVEPOINT s; {}", rows(1, 1000), rows(5_001, 1000))).await.unwrap();
            b.batch_execute(&format!("BEGIN; {}", rows(10_001, 1000))).await.unwrap();
            for streams in [2, 4] {
                has_streamed(&flow, streams).await;
                a.batch_execute("ROLLBACK TO s").await.unwrap();
                // Until something of them has come they are not known to be open, and it does no harm: what was
                // reported until then is on its way to the source for a moment.
                tokio::time::sleep(Duration::from_millis(700)).await;
                let held = confirmed(&flow, &source).await;
                for _ in 0..4 {
                    source.batch_execute(&unpublished(10)).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(250)).await;
                    assert_eq!(confirmed(&flow, &source).await, held, "{keep:?} on {major}: idle, with two open");
                }
                if streams == 2 {
                    let _ = run.sigkill();
                    run = flow.start(&[]);
                }
            }
            b.batch_execute(&format!("{} COMMIT", rows(20_001, 1))).await.unwrap();
            a.batch_execute(&format!("{} COMMIT", rows(30_001, 1))).await.unwrap();
            flow.logged(2_002).await;
            run.sigterm().await;
            flow.assert_witnesses(0, 0).await;
            let expected: Vec<i64> = (10_001..11_001).chain([20_001]).chain(1..1_001).chain([30_001]).collect();
            assert_eq!(arrived(&flow.target().await).await, expected, "in the order of their commits");
        };
        tokio::join!(tested(Keep::Atomic), tested(Keep::File), tested(Keep::Postgres));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streaming_x_reconnect_a14_what_was_sent_in_part_beside_an_open_batch_comes_again_once() {
    for major in majors().unwrap() {
        let stage = early(major).await;
        let tested = async |keep: Keep| {
            let mut flow = stage.flow(keep).await;
            let proxy = Proxy::to(&stage.source).await.unwrap();
            flow.source_url = proxy.url(&flow.name);
            let run = flow.streaming(&["--delay-ms", "3000"]).await;
            let open = flow.source().await;
            open.batch_execute(&format!("BEGIN; {}", rows(1_001, 2_000))).await.unwrap();
            has_streamed(&flow, 1).await;
            flow.numbered(2).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert_eq!(arrived(&flow.target().await).await, [0; 0], "a batch is open");
            for _ in 0..2 {
                assert!(proxy.end_connections(Ending::Reset) > 0);
                flow.said("connection").await;
                tokio::time::sleep(Duration::from_millis(700)).await;
            }
            open.batch_execute(&format!("{} COMMIT", rows(9_001, 1))).await.unwrap();
            flow.logged(2_003).await;
            run.sigterm().await;
            flow.assert_witnesses(0, 0).await;
            let expected: Vec<i64> = (1..3).chain(1_001..3_001).chain([9_001]).collect();
            assert_eq!(arrived(&flow.target().await).await, expected);
        };
        tokio::join!(tested(Keep::Atomic), tested(Keep::File), tested(Keep::Postgres));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_phase_x_idle_and_two_phase_x_reconnect_a26_nothing_is_acknowledged_past_what_is_prepared() {
    for major in majors().unwrap() {
        let stage = early(major).await;
        let tested = async |keep: Keep| {
            let mut flow = stage.flow(keep).await;
            let source = flow.source().await;
            let slot = flow.slot();
            let sql = format!(
                "SELECT pg_drop_replication_slot('{slot}');
                 SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', false, true);
                 CREATE TABLE other (b text)"
            );
            source.batch_execute(&sql).await.unwrap();
            let proxy = Proxy::to(&stage.source).await.unwrap();
            flow.source_url = proxy.url(&flow.name);
            let mut run = flow.streaming(&[]).await;
            // One that is streamed, and a small one.
            let prepare = |gid: &str, from: u32, count: u32| {
                format!("BEGIN; {} PREPARE TRANSACTION '{}_{gid}'", rows(from, count), flow.name)
            };
            source.batch_execute(&prepare("large", 1_001, 2_000)).await.unwrap();
            let behind = written(&source).await;
            source.batch_execute(&prepare("small", 5_001, 3)).await.unwrap();
            source.batch_execute(&prepare("rolled_back", 6_001, 3)).await.unwrap();
            flow.numbered(1).await;
            flow.logged(1).await;
            for round in 0..6 {
                source.batch_execute(&unpublished(10)).await.unwrap();
                tokio::time::sleep(Duration::from_millis(300)).await;
                assert!(confirmed(&flow, &source).await < behind, "{keep:?} on {major}");
                if round == 2 {
                    proxy.end_connections(Ending::Reset);
                }
                if round == 4 {
                    let _ = run.sigkill();
                    run = flow.start(&[]);
                }
            }
            let settle = |how: &str, gid: &str| format!("{how} PREPARED '{}_{gid}'", flow.name);
            source.batch_execute(&settle("ROLLBACK", "rolled_back")).await.unwrap();
            source.batch_execute(&settle("COMMIT", "small")).await.unwrap();
            flow.logged(4).await;
            let _ = run.sigkill();
            let run = flow.start(&[]);
            source.batch_execute(&settle("COMMIT", "large")).await.unwrap();
            flow.logged(2_004).await;
            let written = written(&source).await.before_page_header();
            flow.eventually("then all is acknowledged", || async { confirmed(&flow, &source).await >= written }).await;
            run.sigterm().await;
            // At-least-once, the kill may have come before the small one was stored.
            flow.assert_witnesses(1, 3).await;
        };
        tokio::join!(tested(Keep::Atomic), tested(Keep::File), tested(Keep::Postgres));
    }
}
