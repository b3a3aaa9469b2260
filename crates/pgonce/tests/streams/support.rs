//! Sources that stream early, and what a session brings without a sink.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pgonce::assemble::SpillSettings;
use pgonce::destination::{Binding, IdlePoint, StartMode, StoredFlow};
use pgonce::position::Lsn;
use pgonce::slot_source::{SlotSettings, SlotSource};
use pgonce::source::{Event, Source};
use pgonce_testkit::Cluster;
use tokio_postgres::Client;

use crate::common::{connection, eventually};

/// A table, its publication, and a table that nobody publishes.
pub const TABLES: &str = "CREATE TABLE t (id int PRIMARY KEY, n int, b text); CREATE TABLE other (a int, b text); \
    CREATE PUBLICATION p FOR TABLE t;";

/// A server that streams what outgrows 64 kB, with [`TABLES`].
pub async fn early(major: u32) -> (Cluster, Client) {
    let cluster = Cluster::builder(major)
        .conf("logical_decoding_work_mem", "64kB")
        .conf("max_prepared_transactions", "20")
        .start()
        .await
        .unwrap();
    let client = cluster.connect("postgres").await.unwrap();
    client.batch_execute(TABLES).await.unwrap();
    (cluster, client)
}

pub fn settings(url: &str) -> SlotSettings {
    SlotSettings::new(connection(url), "pgonce_test", vec!["p".to_owned()])
}

/// So little memory that everything larger is on disk.
pub fn spilling(url: &str, directory: &Path) -> SlotSource {
    let mut settings = settings(url);
    settings.spill = SpillSettings { memory: 50_000, directory: directory.to_owned(), ..SpillSettings::default() };
    SlotSource::new(settings)
}

/// Rows of about 100 bytes, with ids from `from` on.
pub fn rows(from: u32, count: u32) -> String {
    format!(
        "INSERT INTO t SELECT i, {from}, md5(i::text) || md5((i + 1)::text) FROM generate_series({from}, {}) i;",
        from + count - 1
    )
}

/// Rows for the table that nobody publishes.
pub fn unpublished(count: u32) -> String {
    format!("INSERT INTO other SELECT i, repeat(md5(i::text), 3) FROM generate_series(1, {count}) i;")
}

/// How many transactions the slot has streamed before they ended.
pub async fn streamed(client: &Client, slot: &str) -> i64 {
    let sql = "SELECT coalesce(sum(stream_txns), 0)::int8 FROM pg_stat_replication_slots WHERE slot_name = $1";
    client.query_one(sql, &[&slot]).await.unwrap().get(0)
}

/// Waits until the slot says that it has streamed.
pub async fn has_streamed(client: &Client, count: i64) {
    eventually("streamed", || async { streamed(client, "pgonce_test").await >= count }).await;
}

pub async fn insert_position(client: &Client) -> Lsn {
    let sql = "SELECT pg_current_wal_insert_lsn()::text";
    client.query_one(sql, &[]).await.unwrap().get::<_, String>(0).parse().unwrap()
}

/// Spill files in a directory that this process holds open; none of them has a name.
pub fn spill_files(directory: &Path) -> usize {
    assert_eq!(directory.read_dir().map_or(0, Iterator::count), 0, "a spill file has a name");
    open_files(directory).len()
}

/// Their bytes.
pub fn spilled_bytes(directory: &Path) -> u64 {
    open_files(directory).iter().filter_map(|fd| fd.metadata().ok()).map(|metadata| metadata.len()).sum()
}

fn open_files(directory: &Path) -> Vec<PathBuf> {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| Some(fd.ok()?.path()));
    open.filter(|fd| std::fs::read_link(fd).is_ok_and(|target| target.starts_with(directory))).collect()
}

/// A session that begins where the slot stands, without a sink.
pub struct Reading {
    pub source: SlotSource,
    pub events: Vec<Event>,
}

impl Reading {
    pub async fn start(mut source: SlotSource) -> Reading {
        let identity = source.connect().await.unwrap();
        let published = source.publish(StartMode::GoForward).await.unwrap();
        let begun = source.begin(StartMode::GoForward).await.unwrap();
        let binding = Binding::new(begun.boundary, identity.timeline, StartMode::GoForward, &published);
        drop(begun);
        source.published(&binding, &[]).await.unwrap();
        let idle = IdlePoint { boundary: binding.boundary, timeline: identity.timeline };
        let stored = StoredFlow { binding, streaming: true, tables: Vec::new(), checkpoint: None, idle };
        source.stream(&stored).await.unwrap();
        Reading { source, events: Vec::new() }
    }

    /// Receives until so many events of the kind are there, reports apart.
    pub async fn until(&mut self, count: usize, kind: fn(&Event) -> bool) {
        let receiving = async {
            while self.events.iter().filter(|event| kind(event)).count() < count {
                self.source.receive(&mut self.events).await.unwrap();
                self.events.retain(|event| !matches!(event, Event::Reported { .. }));
            }
        };
        tokio::time::timeout(Duration::from_secs(60), receiving).await.expect("did not come");
    }
}

pub fn is_transaction(event: &Event) -> bool {
    matches!(event, Event::Transaction(_))
}
