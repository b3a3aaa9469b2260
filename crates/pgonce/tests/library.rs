//! A program's sink on real servers, in both guarantee modes.

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use pgonce::assemble::TwoPhase;
use pgonce::checkpoint_store::{FileStore, PostgresStore};
use pgonce::destination::{Destination, StartMode};
use pgonce::guarantee::{Guarantee, Repeat};
use pgonce::kept::Kept;
use pgonce::logical_message::LogicalMessage;
use pgonce::pipeline::{Finished, GroupLimits, Pipeline, PipelineOptions, Until};
use pgonce::position::Lsn;
use pgonce::sink::{AtomicSink, Batch, Sink, SinkError};
use pgonce::slot_source::{SlotSettings, SlotSource};
use pgonce::source::{SlotOrigin, SourceIdentity};
use pgonce::transaction::Transaction;
use pgonce_testkit::Cluster;
use tokio_postgres::Client;

/// What has been persisted: it outlives every session.
#[derive(Debug, Default)]
struct Persisted {
    /// The changes of each transaction, and the size of the batches.
    transactions: Vec<Vec<String>>,
    batches: Vec<usize>,
    records: BTreeMap<&'static str, Vec<u8>>,
    version: u64,
    sessions: u32,
    /// Fails so many writes, before or after it has persisted them.
    fail_before: u32,
    fail_after: u32,
    refuses: bool,
    takes_prepared: bool,
    kinds: Vec<String>,
    /// Messages outside transactions: how many transactions were there before, prefix and content.
    messages: Vec<(usize, String, Vec<u8>)>,
    origins: Vec<Lsn>,
    refuses_origin: bool,
    /// How long a write keeps its thread, and how long a message takes.
    blocks: Duration,
    message_takes: Duration,
}

#[derive(Clone, Debug, Default)]
struct Memory(Arc<Mutex<Persisted>>);

impl Memory {
    fn changes(&self) -> Vec<String> {
        self.0.lock().unwrap().transactions.concat()
    }

    fn set<T>(&self, set: impl FnOnce(&mut Persisted) -> T) -> T {
        set(&mut self.0.lock().unwrap())
    }
}

impl Sink for Memory {
    async fn write(&mut self, batch: &Batch<'_>) -> Result<(), SinkError> {
        if !batch.transactions().is_empty() {
            std::thread::sleep(self.set(|m| m.blocks));
        }
        let mut persisted = self.0.lock().unwrap();
        if persisted.fail_before > 0 {
            persisted.fail_before -= 1;
            return Err(SinkError::transient("told to fail before"));
        }
        let state = batch.state();
        if !state.records().is_empty() {
            if persisted.version != state.replaces() {
                return Err(SinkError::fenced(state.flow()));
            }
            persisted.version = state.version();
            persisted.records.extend(state.records().iter().map(|r| (r.name(), r.bytes().to_vec())));
        }
        if !batch.transactions().is_empty() {
            persisted.batches.push(batch.transactions().len());
            persisted.kinds.extend(batch.transactions().iter().map(kind_of));
            persisted.transactions.extend(batch.transactions().iter().map(|t| applied(t).changes));
            if persisted.fail_after > 0 {
                persisted.fail_after -= 1;
                return Err(SinkError::transient("told to fail after"));
            }
        }
        Ok(())
    }

    fn takes_prepared(&self) -> bool {
        self.0.lock().unwrap().takes_prepared
    }

    fn wants_messages(&self) -> bool {
        true
    }

    async fn message(&mut self, message: &LogicalMessage) -> Result<(), SinkError> {
        tokio::time::sleep(self.set(|m| m.message_takes)).await;
        self.set(|m| {
            let before = m.transactions.len();
            if m.fail_before > 0 {
                m.fail_before -= 1;
                return Err(SinkError::transient("told to fail before"));
            }
            m.messages.push((before, message.prefix.clone(), message.content.to_vec()));
            Ok(())
        })
    }

    async fn accept_origin(&mut self, origin: &SlotOrigin) -> Result<(), SinkError> {
        self.set(|m| {
            m.origins.push(origin.boundary.0);
            if m.refuses_origin { Err(SinkError::refused("not from there")) } else { Ok(()) }
        })
    }

    async fn accept_source(&mut self, source: &SourceIdentity) -> Result<(), SinkError> {
        assert!(!source.system_identifier.is_empty());
        let mut persisted = self.0.lock().unwrap();
        persisted.sessions += 1;
        if persisted.refuses { Err(SinkError::refused("this source is not to be read")) } else { Ok(()) }
    }
}

impl AtomicSink for Memory {
    async fn load(&mut self, name: &'static str) -> Result<Option<Vec<u8>>, SinkError> {
        Ok(self.0.lock().unwrap().records.get(name).cloned())
    }
}

fn kind_of(transaction: &Transaction) -> String {
    format!("{:?} {} {}", transaction.kind(), transaction.gid().unwrap_or("-"), transaction.change_count())
}

const T: &str = "CREATE TABLE t (id int PRIMARY KEY, n int, b text); CREATE PUBLICATION p FOR TABLE t;";
const SLOT: &str = "SELECT pg_create_logical_replication_slot('pgonce_test', 'pgoutput')";

async fn with_t(major: u32) -> (Cluster, Client) {
    let cluster = source(major).await;
    let client = cluster.connect("postgres").await.unwrap();
    client.batch_execute(T).await.unwrap();
    client.batch_execute(SLOT).await.unwrap();
    (cluster, client)
}

fn go_forward() -> PipelineOptions {
    PipelineOptions { start: StartMode::GoForward, ..options() }
}

async fn until_now<D: Destination + 'static>(cluster: &Cluster, destination: D, options: PipelineOptions) {
    let options = PipelineOptions { until: Some(Until::Now), ..options };
    let mut settings = SlotSettings::new(connection(&cluster.url("postgres")), "pgonce_test", vec!["p".to_owned()]);
    if destination.takes_prepared() {
        settings.two_phase = TwoPhase::Seen;
    }
    let source = SlotSource::new(settings);
    let ended = Running::with(source, destination, options).ended().await.unwrap();
    assert!(matches!(ended, Finished::Drained(_)), "{ended:?}");
}

/// Runs one scenario in both modes, the second one with each store.
async fn in_each_mode(major: u32, scenario: impl AsyncFn(&Cluster, &Client, &str)) {
    for mode in ["atomic", "file", "postgres"] {
        let (cluster, client) = with_t(major).await;
        scenario(&cluster, &client, mode).await;
    }
}

async fn insert(client: &Client, ids: std::ops::Range<i32>) {
    for id in ids {
        client.batch_execute(&format!("INSERT INTO t VALUES ({id}, {id}, 'x')")).await.unwrap();
    }
}

fn inserted(ids: std::ops::Range<i32>) -> Vec<String> {
    ids.map(|id| format!("I t {id},{id},x")).collect()
}

/// Runs until now with the composition that `mode` names.
async fn drain(cluster: &Cluster, mode: &str, memory: &Memory, directory: &std::path::Path, options: PipelineOptions) {
    match mode {
        "atomic" => until_now(cluster, Kept::effect_once("f", memory.clone()), options).await,
        "file" => {
            until_now(cluster, Kept::at_least_once("f", memory.clone(), FileStore::new(directory)), options).await
        }
        _ => {
            let store = PostgresStore::new(connection(&cluster.url("postgres")));
            until_now(cluster, Kept::at_least_once("f", memory.clone(), store), options).await
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_arrive_once_across_restarts_in_every_composition() {
    for major in each_major() {
        in_each_mode(major, async |cluster, client, mode| {
            let directory = tempfile::tempdir().unwrap();
            let memory = Memory::default();
            insert(client, 0..5).await;
            for (from, limits) in [(5, GroupLimits::each_transaction()), (10, GroupLimits::default())] {
                let options = PipelineOptions { group: limits, ..go_forward() };
                drain(cluster, mode, &memory, directory.path(), options.clone()).await;
                insert(client, from..from + 5).await;
                drain(cluster, mode, &memory, directory.path(), options).await;
                assert_eq!(memory.changes(), inserted(0..from + 5), "{mode} on {major}");
            }
            let first_five = memory.set(|m| m.batches[..5].to_vec());
            assert_eq!(first_five, [1; 5], "delivery per transaction: {mode} on {major}");
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_behind_the_sinks_write_repeats_one_batch_at_most() {
    for major in each_major() {
        in_each_mode(major, async |cluster, client, mode| {
            let directory = tempfile::tempdir().unwrap();
            let memory = Memory::default();
            drain(cluster, mode, &memory, directory.path(), go_forward()).await;
            memory.set(|m| (m.fail_before, m.fail_after) = (1, 1));
            insert(client, 0..6).await;
            let limits = GroupLimits { transactions: 3, delay: Duration::from_secs(1), ..GroupLimits::default() };
            let options = PipelineOptions { group: limits, ..go_forward() };
            drain(cluster, mode, &memory, directory.path(), options).await;
            // What the sink persisted and then called a failure is repeated where the checkpoint comes after it.
            let expected = match mode {
                "atomic" => inserted(0..6),
                _ => [inserted(0..3), inserted(0..6)].concat(),
            };
            assert_eq!(memory.changes(), expected, "{mode} on {major}");
            assert!(memory.set(|m| m.batches.iter().all(|size| *size <= 3)));
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_that_refuses_the_source_stops_the_flow_before_anything_is_read_and_after_a_restart() {
    for major in each_major() {
        let (cluster, _client) = with_t(major).await;
        let memory = Memory::default();
        memory.set(|m| {
            m.refuses = true;
            m.records.insert("flow", b"not a record".to_vec());
        });
        for _ in 0..2 {
            let source = slot_source(&cluster.url("postgres"), "p");
            let running = Running::with(source, Kept::effect_once("f", memory.clone()), go_forward());
            assert_eq!(running.ended().await.unwrap_err().code(), "sink_refused");
        }
        memory.set(|m| m.refuses = false);
        let source = slot_source(&cluster.url("postgres"), "p");
        let running = Running::with(source, Kept::effect_once("f", memory.clone()), go_forward());
        assert_eq!(running.ended().await.unwrap_err().code(), "checkpoint_unreadable");
    }
}

#[test]
fn a_guarantee_is_a_value_of_what_was_composed_and_what_cannot_work_is_refused_without_a_connection() {
    let nowhere = || slot_source("host=127.0.0.1 port=1 user=u dbname=d", "p");
    let composed = |destination, limits| {
        let options = PipelineOptions { group: limits, ..go_forward() };
        Pipeline::new(nowhere(), destination, options)
    };
    let store = || FileStore::new("/nowhere");
    let stored = |limits| composed(Kept::at_least_once("f", Memory::default(), store()), limits);
    let bound = |repeat| Guarantee::AtLeastOnce { duplicates_at_most: repeat };
    assert_eq!(stored(GroupLimits::default()).guarantee(), bound(Repeat::Batch));
    assert_eq!(stored(GroupLimits::each_transaction()).guarantee(), bound(Repeat::Transaction));
    assert_eq!(stored(GroupLimits::default()).copy_guarantee(), bound(Repeat::SnapshotChunk));
    let atomic = Pipeline::new(nowhere(), Kept::effect_once("f", Memory::default()), go_forward());
    assert_eq!(atomic.guarantee(), Guarantee::EffectOnce);

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let no_transactions = GroupLimits { transactions: 0, ..GroupLimits::default() };
    let no_bytes = GroupLimits { bytes: 0, ..GroupLimits::default() };
    let limited = |group| PipelineOptions { group, ..go_forward() };
    for options in [limited(no_transactions), limited(no_bytes), options()] {
        let mut pipeline = Pipeline::new(nowhere(), Kept::effect_once("f", Memory::default()), options);
        let refused = runtime.block_on(pipeline.run(tokio::sync::watch::channel(false).1));
        assert_eq!(refused.unwrap_err().code(), "unsupported");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_that_asks_sees_prepared_transactions_and_how_they_were_settled_across_restarts() {
    for major in each_major() {
        for mode in ["atomic", "file"] {
            let cluster = Cluster::builder(major).conf("max_prepared_transactions", "5").start().await.unwrap();
            let client = cluster.connect("postgres").await.unwrap();
            client.batch_execute(T).await.unwrap();
            let slot = "SELECT pg_create_logical_replication_slot('pgonce_test', 'pgoutput', false, true)";
            client.batch_execute(slot).await.unwrap();
            let directory = tempfile::tempdir().unwrap();
            let memory = Memory::default();
            memory.set(|m| m.takes_prepared = true);
            for (statements, seen) in [
                ("BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'a'", "Prepared a 1"),
                ("BEGIN; INSERT INTO t VALUES (2), (3); PREPARE TRANSACTION 'b'", "Prepared b 2"),
                ("INSERT INTO t VALUES (4)", "Committed - 1"),
                ("COMMIT PREPARED 'b'", "CommitPrepared b 0"),
                ("ROLLBACK PREPARED 'a'", "RollbackPrepared a 0"),
            ] {
                client.batch_execute(statements).await.unwrap();
                drain(&cluster, mode, &memory, directory.path(), go_forward()).await;
                let kinds = memory.set(|m| m.kinds.clone());
                assert_eq!(kinds.last().map(String::as_str), Some(seen), "{mode} on {major}: {kinds:?}");
            }
            assert_eq!(memory.set(|m| m.kinds.len()), 5, "{mode} on {major}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_prepared_before_the_slot_knew_of_two_phases_is_delivered_whole_at_its_commit() {
    // PostgreSQL 14 knows of no such slots.
    for major in each_major().into_iter().filter(|major| *major >= 15) {
        for mode in ["atomic", "file"] {
            let cluster = Cluster::builder(major).conf("max_prepared_transactions", "5").start().await.unwrap();
            let client = cluster.connect("postgres").await.unwrap();
            client.batch_execute(T).await.unwrap();
            client.batch_execute(SLOT).await.unwrap();
            let prepare = "BEGIN; INSERT INTO t VALUES (100, 100, 'x'); PREPARE TRANSACTION 'old'";
            client.batch_execute(prepare).await.unwrap();
            insert(&client, 0..1).await;
            let past = "SELECT pg_replication_slot_advance('pgonce_test', pg_current_wal_lsn())";
            client.batch_execute(past).await.unwrap();
            let directory = tempfile::tempdir().unwrap();
            let memory = Memory::default();
            memory.set(|m| m.takes_prepared = true);
            drain(&cluster, mode, &memory, directory.path(), go_forward()).await;
            insert(&client, 1..3).await;
            client.batch_execute("COMMIT PREPARED 'old'").await.unwrap();
            insert(&client, 3..4).await;
            drain(&cluster, mode, &memory, directory.path(), go_forward()).await;
            drain(&cluster, mode, &memory, directory.path(), go_forward()).await;
            let expected = [inserted(1..3), inserted(100..101), inserted(3..4)].concat();
            assert_eq!(memory.changes(), expected, "{mode} on {major}");
            let kinds = memory.set(|m| m.kinds.clone());
            assert_eq!(kinds[2], "Committed old 1", "{mode} on {major}: {kinds:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flow_begins_to_see_prepared_transactions_only_where_nothing_comes_again() {
    for major in each_major().into_iter().filter(|major| *major >= 15) {
        let cluster = Cluster::builder(major).conf("max_prepared_transactions", "5").start().await.unwrap();
        let client = cluster.connect("postgres").await.unwrap();
        client.batch_execute(T).await.unwrap();
        client.batch_execute(SLOT).await.unwrap();
        let memory = Memory::default();
        let kept = || Kept::effect_once("f", memory.clone());
        until_now(&cluster, kept(), go_forward()).await;
        let running = Running::with(slot_source(&cluster.url("postgres"), "p"), kept(), go_forward());
        eventually("streaming", || async { running.progress.borrow().acknowledged.is_some() }).await;
        client.batch_execute("BEGIN; INSERT INTO t VALUES (100, 100, 'x'); PREPARE TRANSACTION 'a'").await.unwrap();
        // Written and not acknowledged: the session ends there, and there is no other.
        memory.set(|m| (m.fail_after, m.refuses) = (1, true));
        insert(&client, 0..1).await;
        assert_eq!(running.ended().await.unwrap_err().code(), "sink_refused");
        assert_eq!(memory.changes(), inserted(0..1), "on {major}");
        memory.set(|m| m.refuses = false);
        memory.set(|m| m.takes_prepared = true);
        let mut settings = SlotSettings::new(connection(&cluster.url("postgres")), "pgonce_test", vec!["p".to_owned()]);
        settings.two_phase = TwoPhase::Seen;
        let refused = Running::with(SlotSource::new(settings), kept(), go_forward()).ended().await.unwrap_err();
        assert_eq!(refused.code(), "unsupported", "on {major}: {refused}");
        memory.set(|m| m.takes_prepared = false);
        until_now(&cluster, kept(), go_forward()).await;
        memory.set(|m| m.takes_prepared = true);
        until_now(&cluster, kept(), go_forward()).await;
        client.batch_execute("COMMIT PREPARED 'a'").await.unwrap();
        until_now(&cluster, kept(), go_forward()).await;
        assert_eq!(memory.changes(), [inserted(0..1), inserted(100..101)].concat(), "on {major}");
    }
}

/// A current_thread runtime.
#[tokio::test]
async fn a_sink_that_blocks_the_only_thread_for_longer_than_wal_sender_timeout_keeps_its_session() {
    for major in each_major() {
        let (cluster, client) = with_t(major).await;
        client.batch_execute("ALTER SYSTEM SET wal_sender_timeout = '1s'").await.unwrap();
        client.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        let memory = Memory::default();
        let source = slot_source(&cluster.url("postgres"), "p");
        let running = Running::with(source, Kept::effect_once("f", memory.clone()), go_forward());
        eventually("streaming", || async { running.progress.borrow().acknowledged.is_some() }).await;
        memory.set(|m| m.blocks = Duration::from_secs(3));
        insert(&client, 0..1).await;
        eventually("written", || async { memory.changes().len() == 1 }).await;
        memory.set(|m| m.blocks = Duration::ZERO);
        insert(&client, 1..2).await;
        eventually("goes on", || async { memory.changes().len() == 2 }).await;
        assert_eq!(memory.set(|m| m.sessions), 1, "on {major}: {:?}", running.progress.borrow().fault);
        running.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_to_stop_does_not_wait_for_all_messages_that_have_come() {
    for major in each_major() {
        let (cluster, client) = with_t(major).await;
        let memory = Memory::default();
        memory.set(|m| m.message_takes = Duration::from_millis(500));
        let source = || slot_source(&cluster.url("postgres"), "p");
        let running = Running::with(source(), Kept::effect_once("f", memory.clone()), go_forward());
        eventually("streaming", || async { running.progress.borrow().acknowledged.is_some() }).await;
        let emit = "SELECT pg_logical_emit_message(false, 'app', i::text) FROM generate_series(1, 20) i";
        client.batch_execute(emit).await.unwrap();
        eventually("the first message", || async { memory.set(|m| !m.messages.is_empty()) }).await;
        let told = std::time::Instant::now();
        running.stop().await.unwrap();
        assert!(told.elapsed() < Duration::from_secs(5), "{:?} on {major}", told.elapsed());
        // The rest comes with the next start.
        memory.set(|m| m.message_takes = Duration::ZERO);
        until_now(&cluster, Kept::effect_once("f", memory.clone()), go_forward()).await;
        let mut contents: Vec<Vec<u8>> = memory.set(|m| m.messages.iter().map(|(_, _, c)| c.clone()).collect());
        contents.sort();
        contents.dedup();
        assert_eq!(contents.len(), 20, "on {major}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_outside_transactions_come_in_their_place_whatever_the_batches_are() {
    for major in each_major() {
        in_each_mode(major, async |cluster, client, mode| {
            let directory = tempfile::tempdir().unwrap();
            let memory = Memory::default();
            drain(cluster, mode, &memory, directory.path(), go_forward()).await;
            insert(client, 0..3).await;
            let emit = "SELECT pg_logical_emit_message(false, 'app', '\\x00ff'::bytea)";
            client.batch_execute(emit).await.unwrap();
            insert(client, 3..5).await;
            memory.set(|m| m.fail_before = 1);
            let limits = GroupLimits { delay: Duration::from_millis(300), ..GroupLimits::default() };
            let options = PipelineOptions { group: limits, ..go_forward() };
            drain(cluster, mode, &memory, directory.path(), options).await;
            assert_eq!(memory.changes(), inserted(0..5), "{mode} on {major}");
            let messages = memory.set(|m| m.messages.clone());
            assert_eq!(messages, [(3, "app".to_owned(), vec![0, 255])], "{mode} on {major}");
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_is_told_where_the_stream_begins_at_every_connect_and_may_refuse() {
    for major in each_major() {
        in_each_mode(major, async |cluster, client, mode| {
            let directory = tempfile::tempdir().unwrap();
            let memory = Memory::default();
            drain(cluster, mode, &memory, directory.path(), go_forward()).await;
            insert(client, 0..2).await;
            drain(cluster, mode, &memory, directory.path(), go_forward()).await;
            drain(cluster, mode, &memory, directory.path(), go_forward()).await;
            let origins = memory.set(|m| m.origins.clone());
            assert!(origins.len() >= 3 && origins.is_sorted(), "{mode} on {major}: {origins:?}");
            memory.set(|m| m.refuses_origin = true);
            for _ in 0..2 {
                let source = slot_source(&cluster.url("postgres"), "p");
                let store = FileStore::new(directory.path());
                let stop = match mode {
                    "atomic" => Running::with(source, Kept::effect_once("f", memory.clone()), go_forward()),
                    _ => Running::with(source, Kept::at_least_once("f", memory.clone(), store), go_forward()),
                };
                assert_eq!(stop.ended().await.unwrap_err().code(), "sink_refused", "{mode} on {major}");
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_that_holds_another_number_than_its_state_is_told_so_and_not_asked_for_ever() {
    let (cluster, client) = with_t(each_major()[0]).await;
    let memory = Memory::default();
    until_now(&cluster, Kept::effect_once("f", memory.clone()), go_forward()).await;
    insert(&client, 0..1).await;
    memory.set(|m| m.version += 5);
    let source = slot_source(&cluster.url("postgres"), "p");
    let running = Running::with(source, Kept::effect_once("f", memory.clone()), go_forward());
    let stop = running.ended().await.unwrap_err();
    assert_eq!(stop.code(), "checkpoint_unreadable", "{stop}");
    assert!(stop.to_string().contains("its store says that it holds another"), "{stop}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_phase_is_not_changed_while_a_prepared_transaction_is_held() {
    for major in each_major().into_iter().filter(|major| *major >= 15) {
        let cluster = Cluster::builder(major).conf("max_prepared_transactions", "5").start().await.unwrap();
        let client = cluster.connect("postgres").await.unwrap();
        client.batch_execute(T).await.unwrap();
        let slot = "SELECT pg_create_logical_replication_slot('pgonce_test', 'pgoutput', false, true)";
        client.batch_execute(slot).await.unwrap();
        let memory = Memory::default();
        let kept = || Kept::effect_once("f", memory.clone());
        client.batch_execute("BEGIN; INSERT INTO t VALUES (100, 100, 'x'); PREPARE TRANSACTION 'a'").await.unwrap();
        insert(&client, 0..1).await;
        until_now(&cluster, kept(), go_forward()).await;
        // Its content would come again below the checkpoint, and its commit without it.
        memory.set(|m| m.takes_prepared = true);
        for _ in 0..2 {
            let mut settings =
                SlotSettings::new(connection(&cluster.url("postgres")), "pgonce_test", vec!["p".to_owned()]);
            settings.two_phase = TwoPhase::Seen;
            let refused = Running::with(SlotSource::new(settings), kept(), go_forward()).ended().await.unwrap_err();
            assert_eq!(refused.code(), "unsupported", "on {major}: {refused}");
        }
        memory.set(|m| m.takes_prepared = false);
        client.batch_execute("COMMIT PREPARED 'a'").await.unwrap();
        until_now(&cluster, kept(), go_forward()).await;
        assert_eq!(memory.changes(), [inserted(0..1), inserted(100..101)].concat(), "on {major}");
        // Nothing is held any more.
        memory.set(|m| m.takes_prepared = true);
        until_now(&cluster, kept(), go_forward()).await;
        client.batch_execute("BEGIN; INSERT INTO t VALUES (101, 101, 'x'); PREPARE TRANSACTION 'b'").await.unwrap();
        until_now(&cluster, kept(), go_forward()).await;
        assert_eq!(memory.changes().last(), Some(&"I t 101,101,x".to_owned()), "on {major}");
    }
}
