//! Prepared transactions, of slots that know of two phases.

use std::time::Duration;

use pgonce::assemble::TwoPhase;
use pgonce::destination::StartMode;
use pgonce::position::Lsn;
use pgonce::slot_source::SlotSource;
use pgonce::source::{Event, Source};
use pgonce::transaction::Kind;
use pgonce_testkit::{Ending, Proxy};
use tokio_postgres::Client;

use crate::common::*;
use crate::open::TempDir;
use crate::support::*;

async fn two_phase_slot(client: &Client) {
    client
        .batch_execute("SELECT pg_create_logical_replication_slot('pgonce_test', 'pgoutput', false, true)")
        .await
        .unwrap();
}

/// Prepares a transaction of so many rows; says where the log stands behind it.
async fn prepared(client: &Client, gid: &str, from: u32, count: u32) -> Lsn {
    client.batch_execute(&format!("BEGIN; {} PREPARE TRANSACTION '{gid}'", rows(from, count))).await.unwrap();
    insert_position(client).await
}

/// Waits until nobody reads the slot.
async fn is_free(client: &Client) {
    let sql = "SELECT active FROM pg_replication_slots WHERE slot_name = 'pgonce_test'";
    eventually("free", || async { !client.query_one(sql, &[]).await.unwrap().get::<_, bool>(0) }).await;
}

/// PostgreSQL 14 decodes at the commit whatever the slot says.
fn sees_prepares(major: u32) -> bool {
    major >= 15
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a26_nothing_is_acknowledged_past_a_prepared_transaction_before_it_is_settled() {
    for (major, count) in each_major().into_iter().flat_map(|major| [(major, 3), (major, 3000)]) {
        let (cluster, client) = early(major).await;
        two_phase_slot(&client).await;
        let proxy = Proxy::to(&cluster).await.unwrap();
        let (directory, sink) = (TempDir::new(), MemorySink::default());
        let url = proxy.url("postgres");
        let running = Running::start(spilling(&url, directory.path()), &sink, options());
        eventually("streaming", || async { running.progress.borrow().acknowledged.is_some() }).await;
        let behind = prepared(&client, "one", 1, count).await;
        // Others commit meanwhile and are applied; the flow idles; the connection is lost.
        client.batch_execute(&rows(10_001, 1)).await.unwrap();
        eventually("the other is applied", || async { sink.applied().len() == 1 }).await;
        for round in 0..6 {
            client.batch_execute(&unpublished(10)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(400)).await;
            if round == 3 {
                proxy.end_connections(Ending::Reset);
            }
            if sees_prepares(major) {
                assert!(confirmed_flush(&client).await < behind, "on {major}");
            }
        }
        running.kill().await;
        let running = Running::start(spilling(&url, directory.path()), &sink, options());
        eventually("streaming", || async { running.progress.borrow().reported.is_some_and(|at| at.0 > behind) }).await;
        assert_eq!(sink.applied().len(), 1);
        client.batch_execute("COMMIT PREPARED 'one'").await.unwrap();
        eventually("delivered at its commit", || async { sink.applied().len() == 2 }).await;
        let applied = sink.applied();
        assert_eq!(applied[1].changes.len(), count as usize);
        assert!(applied[1].commit.0 > applied[0].commit.0 && applied[1].commit.0 >= behind.before_page_header());
        let written = insert_position(&client).await.before_page_header();
        eventually("then all is acknowledged", || async { confirmed_flush(&client).await >= written }).await;
        running.stop().await.unwrap();
        assert_eq!(spill_files(directory.path()), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_that_overlap_the_first_is_not_missed_when_only_its_commit_comes_again() {
    for major in each_major() {
        let (cluster, client) = early(major).await;
        two_phase_slot(&client).await;
        let sink = MemorySink::default();
        let flow = || SlotSource::new(settings(&cluster.url("postgres")));
        let running = Running::start(flow(), &sink, options());
        eventually("streaming", || async { running.progress.borrow().acknowledged.is_some() }).await;
        let first = prepared(&client, "one", 1, 3).await;
        let second = prepared(&client, "two", 11, 3).await;
        client.batch_execute("COMMIT PREPARED 'one'").await.unwrap();
        eventually("the first", || async { sink.applied().len() == 1 }).await;
        // Between the two prepares: the first will not be sent again, its commit will.
        let between = || async {
            let at = confirmed_flush(&client).await;
            at >= first.before_page_header() && (at < second || !sees_prepares(major))
        };
        eventually("acknowledged up to the second", between).await;
        running.kill().await;
        let running = Running::start(flow(), &sink, options());
        client.batch_execute("ROLLBACK PREPARED 'two'").await.unwrap();
        let written = insert_position(&client).await.before_page_header();
        eventually("all is acknowledged", || async { confirmed_flush(&client).await >= written }).await;
        assert_eq!((sink.applied().len(), sink.changes().len()), (1, 3), "once, and nothing of what was rolled back");
        running.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_transaction_that_was_acknowledged_away_is_a_data_gap_and_stays_one() {
    for major in each_major().into_iter().filter(|major| sees_prepares(*major)) {
        let (cluster, client) = early(major).await;
        two_phase_slot(&client).await;
        prepared(&client, "one", 1, 3).await;
        client.batch_execute("SELECT pg_replication_slot_advance('pgonce_test', pg_current_wal_lsn())").await.unwrap();
        let sink = MemorySink::default();
        let flow = || SlotSource::new(settings(&cluster.url("postgres")));
        let mut forward = options();
        forward.start = StartMode::GoForward;
        let running = Running::start(flow(), &sink, forward.clone());
        eventually("streaming", || async { running.progress.borrow().acknowledged.is_some() }).await;
        client.batch_execute("COMMIT PREPARED 'one'").await.unwrap();
        client.batch_execute(&rows(21, 1)).await.unwrap();
        let stop = running.ended().await.unwrap_err();
        assert_eq!((stop.code(), stop.exit_status()), ("data_gap", 4), "{stop}");
        assert!(stop.hint().contains("new snapshot is needed"));
        let again = Running::start(flow(), &sink, forward).ended().await.unwrap_err();
        assert_eq!(again.code(), "data_gap", "{again}");
        assert!(sink.applied().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_prepared_before_the_slot_knew_of_two_phases_is_sent_whole_at_its_commit() {
    for major in each_major().into_iter().filter(|major| sees_prepares(*major)) {
        let (cluster, client) = early(major).await;
        client.batch_execute("SELECT pg_create_logical_replication_slot('pgonce_test', 'pgoutput')").await.unwrap();
        let source = || {
            let mut settings = settings(&cluster.url("postgres"));
            settings.two_phase = TwoPhase::Seen;
            SlotSource::new(settings)
        };
        let mut old = Reading::start(SlotSource::new(settings(&cluster.url("postgres")))).await;
        prepared(&client, "one", 1, 3).await;
        client.batch_execute(&rows(21, 1)).await.unwrap();
        old.until(1, is_transaction).await;
        old.source.close().await;
        drop(old);
        is_free(&client).await;
        client.batch_execute("SELECT pg_replication_slot_advance('pgonce_test', pg_current_wal_lsn())").await.unwrap();
        // From here on the slot knows of them.
        let mut reading = Reading::start(source()).await;
        client.batch_execute("COMMIT PREPARED 'one'").await.unwrap();
        reading.until(1, is_transaction).await;
        let Event::Transaction(content) = &reading.events[0] else { panic!("{:?}", reading.events) };
        assert_eq!((content.kind(), content.gid(), content.change_count()), (Kind::Committed, Some("one"), 3));
        // A session that wants them at their commit gets it the same way, from the same slot.
        reading.source.close().await;
        drop(reading);
        is_free(&client).await;
        let mut reading = Reading::start(SlotSource::new(settings(&cluster.url("postgres")))).await;
        reading.until(1, is_transaction).await;
        let Event::Transaction(transaction) = &reading.events[1] else { panic!("{:?}", reading.events) };
        assert_eq!((transaction.gid(), transaction.change_count()), (Some("one"), 3));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_asks_sees_prepare_commit_prepared_and_rollback_prepared_in_order() {
    for major in each_major() {
        let (cluster, client) = early(major).await;
        let mut settings = settings(&cluster.url("postgres"));
        settings.two_phase = TwoPhase::Seen;
        let mut source = SlotSource::new(settings);
        if !sees_prepares(major) {
            let refused = source.connect().await.unwrap_err();
            assert_eq!(refused.code(), "unsupported");
            assert!(refused.to_string().contains("PostgreSQL 14"), "{refused}");
            continue;
        }
        let mut reading = Reading::start(source).await;
        let sql = "SELECT two_phase FROM pg_replication_slots WHERE slot_name = 'pgonce_test'";
        assert!(client.query_one(sql, &[]).await.unwrap().get::<_, bool>(0), "made with TWO_PHASE");
        prepared(&client, "small", 1, 3).await;
        prepared(&client, "large", 11, 3000).await;
        client.batch_execute(&rows(10_001, 2)).await.unwrap();
        client.batch_execute("COMMIT PREPARED 'large'").await.unwrap();
        client.batch_execute("ROLLBACK PREPARED 'small'").await.unwrap();
        reading.until(1, |event| is_kind(event, Kind::RollbackPrepared)).await;
        let seen: Vec<String> = reading
            .events
            .iter()
            .map(|event| match event {
                Event::Transaction(t) => format!("{:?} {:?} {}", t.kind(), t.gid(), t.change_count()),
                other => format!("{other:?}"),
            })
            .collect();
        let expected = [
            "Prepared Some(\"small\") 3",
            "Prepared Some(\"large\") 3000",
            "Committed None 2",
            "CommitPrepared Some(\"large\") 0",
            "RollbackPrepared Some(\"small\") 0",
        ];
        assert_eq!(seen, expected, "on {major}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_that_knows_no_two_phases_is_not_given_any() {
    // Before anything is connected: nobody listens there.
    let mut settings = settings("host=127.0.0.1 port=1 user=u dbname=d");
    settings.two_phase = TwoPhase::Seen;
    let running = Running::start(SlotSource::new(settings), &MemorySink::default(), options());
    let stop = running.ended().await.unwrap_err();
    assert_eq!((stop.code(), stop.exit_status()), ("unsupported", 2), "{stop}");
}

fn is_kind(event: &Event, kind: Kind) -> bool {
    matches!(event, Event::Transaction(transaction) if transaction.kind() == kind)
}
