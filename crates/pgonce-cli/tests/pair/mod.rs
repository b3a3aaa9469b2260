//! Many flows between one pair of clusters: a case has a database, a slot and a flow of its own on them.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::BTreeMap;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Weak};
use std::time::Duration;

use pgonce_testkit::{Cluster, kill};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio_postgres::Client;

use crate::common::{Flow, eventually, number, said};

/// A source and a target.
pub struct Pair {
    pub source: Cluster,
    pub target: Cluster,
}

/// The pairs that tests of this process use now, by the majors of source and target: the last one to end takes the
/// pair down.
static PAIRS: Mutex<BTreeMap<(u32, u32), Weak<Pair>>> = Mutex::const_new(BTreeMap::new());

impl Pair {
    /// The pair of two majors.
    async fn of(source: u32, target: u32) -> Arc<Pair> {
        let mut pairs = PAIRS.lock().await;
        if let Some(pair) = pairs.get(&(source, target)).and_then(Weak::upgrade) {
            return pair;
        }
        let cluster = |major, name| {
            let cluster = Cluster::builder(major).name(name).conf("max_replication_slots", "100");
            let cluster = cluster.conf("shared_preload_libraries", "pg_stat_statements");
            // Native subscriptions beside the flows: each takes a worker, and some more while it copies.
            let cluster = cluster.conf("max_worker_processes", "60").conf("max_logical_replication_workers", "50");
            let cluster = cluster.conf("wal_retrieve_retry_interval", "200ms");
            cluster.conf("max_wal_senders", "100").conf("max_connections", "200").start()
        };
        let (from, to) = tokio::join!(cluster(source, "source"), cluster(target, "target"));
        let pair = Arc::new(Pair { source: from.unwrap(), target: to.unwrap() });
        pairs.insert((source, target), Arc::downgrade(&pair));
        pair
    }
}

/// A flow between two databases of its own.
pub struct Case {
    pub name: String,
    /// The source's.
    pub major: u32,
    pub target_major: u32,
    pub source: Client,
    pub target: Client,
    pub source_url: String,
    pub target_url: String,
    /// More arguments of every command.
    pub arguments: Vec<String>,
    /// Environment of every command.
    pub environment: Vec<(&'static str, &'static str)>,
    directory: tempfile::TempDir,
    pub pair: Arc<Pair>,
}

impl Case {
    /// A database on each side, and a flow named like it.
    pub async fn new(major: u32, name: &str) -> Case {
        Case::between(major, major, name).await
    }

    /// The same, from one major to another.
    pub async fn between(major: u32, target_major: u32, name: &str) -> Case {
        let pair = Pair::of(major, target_major).await;
        let (source, target) = tokio::join!(pair.source.create_database(name), pair.target.create_database(name));
        source.and(target).unwrap();
        Case {
            name: name.to_owned(),
            major,
            target_major,
            source: pair.source.connect(name).await.unwrap(),
            target: pair.target.connect(name).await.unwrap(),
            source_url: pair.source.url(name),
            target_url: pair.target.url(name),
            arguments: Vec::new(),
            environment: Vec::new(),
            directory: tempfile::tempdir().unwrap(),
            pair,
        }
    }

    /// Adds arguments to every command.
    #[must_use]
    pub fn with(mut self, arguments: &[&str]) -> Case {
        self.arguments.extend(arguments.iter().map(|a| (*a).to_owned()));
        self
    }

    pub async fn at_source(&self, sql: &str) {
        self.source.batch_execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }

    pub async fn at_target(&self, sql: &str) {
        self.target.batch_execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }

    /// The same SQL on both sides.
    pub async fn both(&self, sql: &str) {
        self.at_source(sql).await;
        self.at_target(sql).await;
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pgonce"));
        let flow = ["--flow", &self.name, "--source", &self.source_url, "--target", &self.target_url];
        command.args(words).args(flow).args(&self.arguments);
        command.arg("--data-dir").arg(self.directory.path().join("data"));
        command.envs(self.environment.iter().copied()).current_dir(self.directory.path()).stdin(Stdio::null());
        command
    }

    pub async fn output(&self, words: &[&str]) -> Output {
        let mut command = self.command(words);
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    /// The same as from another machine: with a data directory of its own.
    pub async fn output_elsewhere(&self, words: &[&str]) -> Output {
        let flow = ["--flow", &self.name, "--source", &self.source_url, "--target", &self.target_url];
        let mut command = Command::new(env!("CARGO_BIN_EXE_pgonce"));
        command.args(words).args(flow).args(["--data-dir", "elsewhere"]).current_dir(self.directory.path());
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    /// Drains, fails if that does not end well, and returns what was said.
    pub async fn drain(&self) -> String {
        let output = self.output(&["run", "--until", "now"]).await;
        let said = said(&output);
        assert_eq!(output.status.code(), Some(0), "{}, PostgreSQL {}: {said}", self.name, self.major);
        said
    }

    /// Drains and expects a stop with this code and exit status. Returns everything that was said.
    pub async fn refused(&self, code: &str, status: i32) -> String {
        let output = self.output(&["run", "--until", "now"]).await;
        let said = said(&output);
        assert_eq!(output.status.code(), Some(status), "{}, PostgreSQL {}: {said}", self.name, self.major);
        assert!(said.contains(&format!("error[{code}]")), "{said}");
        said
    }

    /// Starts `pgonce run` in the background, with its output to a file.
    pub fn start(&self) -> Running {
        self.start_with(&[])
    }

    /// The same, with more arguments.
    pub fn start_with(&self, words: &[&str]) -> Running {
        let path = self.directory.path().join("log");
        let open = || std::fs::OpenOptions::new().create(true).append(true).open(&path).unwrap();
        Running(self.command(&["run"]).args(words).stdout(open()).stderr(open()).spawn().unwrap())
    }

    /// What background runs have said.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    pub async fn status(&self) -> Value {
        let output = self.output(&["status", "--format", "json"]).await;
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", said(&output)))
    }

    /// Fails unless a query gives the same text on both sides, and returns it.
    #[track_caller]
    pub fn assert_same(&self, sql: &str) -> impl Future<Output = Vec<String>> {
        let place = std::panic::Location::caller();
        async move {
            let (source, target) = (Flow::rows(&self.source, sql).await, Flow::rows(&self.target, sql).await);
            assert_eq!(source, target, "source and target, {}, PostgreSQL {}: {sql} ({place})", self.name, self.major);
            source
        }
    }

    /// The rows of a query at the target, as text.
    pub async fn there(&self, sql: &str) -> Vec<String> {
        Flow::rows(&self.target, sql).await
    }

    /// Waits until a query gives the same on both sides.
    pub async fn catch_up(&self, sql: &str) {
        eventually(sql, || async { Flow::rows(&self.source, sql).await == Flow::rows(&self.target, sql).await }).await;
    }

    /// Commit LSN and xid of each transaction that the slot still holds, from the server's own decoding. The flow is
    /// stopped; its walsender may not have noticed.
    pub async fn held(&self) -> Vec<(String, u32)> {
        let active =
            format!("SELECT active::int::bigint FROM pg_replication_slots WHERE slot_name = 'pgonce_{}'", self.name);
        eventually("the slot is free", || async { number(&self.source, &active).await == 0 }).await;
        let sql = format!(
            "SELECT ('x' || encode(substring(data FROM 2 FOR 8), 'hex'))::bit(64)::bigint,
                    ('x' || encode(substring(data FROM 18 FOR 4), 'hex'))::bit(32)::int
             FROM pg_logical_slot_peek_binary_changes('pgonce_{0}', NULL, NULL, 'proto_version', '1',
                                                      'publication_names', 'pgonce_{0}')
             WHERE get_byte(data, 0) = ascii('B')",
            self.name
        );
        let rows = self.source.query(&sql, &[]).await.unwrap();
        let place = |lsn: i64| format!("{:X}/{:X}", lsn >> 32, lsn & 0xffff_ffff);
        rows.iter().map(|row| (place(row.get(0)), row.get::<_, i32>(1).cast_unsigned())).collect()
    }

    /// Every row of the ledger, as text.
    pub async fn ledger(&self) -> String {
        let mut text = String::new();
        for table in ["meta", "flow", "applied", "snapshot"] {
            text += &self.there(&format!("SELECT * FROM pgonce.{table}")).await.join("\n");
        }
        text
    }
}

/// A run in the background.
pub struct Running(Child);

impl Running {
    /// Fails, with what is to be said, if it has ended.
    pub fn assert_running(&mut self, log: impl FnOnce() -> String) {
        let ended = self.0.try_wait().unwrap();
        assert!(ended.is_none(), "pgonce has ended ({ended:?}): {}", log());
    }

    /// Kills it with SIGKILL.
    pub fn sigkill(&mut self) -> pgonce_testkit::Killed {
        kill::sigkill(&mut self.0).unwrap()
    }

    /// Ends it with SIGTERM, which must end well.
    pub async fn end(mut self) {
        let status = kill::sigterm(&mut self.0, Duration::from_secs(60)).await.unwrap();
        assert_eq!(status.code(), Some(0));
    }

    /// Kills it with SIGKILL.
    pub fn kill(mut self) -> kill::Killed {
        kill::sigkill(&mut self.0).unwrap()
    }

    /// Waits until it ends by itself, and returns its exit status.
    pub async fn ended(mut self) -> Option<i32> {
        tokio::task::spawn_blocking(move || self.0.wait().unwrap().code()).await.unwrap()
    }
}

/// A test that fails shows what its runs in the background said.
impl Drop for Case {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- {}\n{}", self.name, lines[lines.len().saturating_sub(40)..].join("\n"));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Of a failed test, or of one that has waited for it: then there is nothing to kill.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
