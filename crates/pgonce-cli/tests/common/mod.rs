//! Flows of the real program between two real clusters.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use pgonce::position::Lsn;
use pgonce_testkit::{Cluster, Killed, kill, witness};
use serde_json::Value;
use tokio_postgres::Client;

/// A source, a target, and the arguments of a flow between them.
pub struct Flow {
    pub source: Cluster,
    pub target: Cluster,
    /// Where the source and the target are reached: a test that puts a proxy between replaces them.
    pub source_url: String,
    pub target_url: String,
    /// More arguments of every command.
    pub arguments: Vec<String>,
    directory: tempfile::TempDir,
}

impl Flow {
    /// Two fresh clusters of a major.
    pub async fn new(major: u32) -> Flow {
        let source = Cluster::builder(major).name("source");
        let target = Cluster::builder(major).name("target");
        let (source, target) = tokio::join!(source.start(), target.start());
        Flow::between(source.unwrap(), target.unwrap())
    }

    /// Two clusters made otherwise.
    pub fn between(source: Cluster, target: Cluster) -> Flow {
        Flow {
            source_url: source.url("postgres"),
            target_url: target.url("postgres"),
            source,
            target,
            arguments: Vec::new(),
            directory: tempfile::tempdir().unwrap(),
        }
    }

    /// The same SQL on both sides.
    pub async fn both(&self, sql: &str) {
        self.at_source(sql).await;
        self.at_target(sql).await;
    }

    pub async fn at_source(&self, sql: &str) {
        self.source.execute("postgres", sql).await.unwrap();
    }

    pub async fn at_target(&self, sql: &str) {
        self.target.execute("postgres", sql).await.unwrap();
    }

    pub async fn source_client(&self) -> Client {
        self.source.connect("postgres").await.unwrap()
    }

    pub async fn target_client(&self) -> Client {
        self.target.connect("postgres").await.unwrap()
    }

    /// A folder for whatever the test keeps. It goes with the flow.
    pub fn folder(&self) -> &Path {
        self.directory.path()
    }

    pub fn data_dir(&self) -> PathBuf {
        self.folder().join("data")
    }

    /// What the process has written to its standard output and error so far, all runs together.
    pub fn log(&self) -> String {
        self.log_of("data")
    }

    /// The same of the runs in another data directory.
    pub fn log_of(&self, data_dir: &str) -> String {
        std::fs::read_to_string(self.folder().join(format!("{data_dir}.log"))).unwrap_or_default()
    }

    /// A command of pgonce with the flow's arguments.
    pub fn command(&self, words: &[&str]) -> Command {
        self.command_in("data", words)
    }

    fn command_in(&self, data_dir: &str, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pgonce"));
        command.args(words).args(["--flow", "test", "--source", &self.source_url, "--target", &self.target_url]);
        command.args(&self.arguments).arg("--data-dir").arg(self.folder().join(data_dir));
        command.current_dir(self.folder()).stdin(Stdio::null());
        command
    }

    /// Starts `pgonce run` in the background.
    pub fn start(&self, words: &[&str]) -> Run {
        self.start_in("data", words)
    }

    /// Starts `pgonce run` with another data directory, and so beside one that is running.
    pub fn start_in(&self, data_dir: &str, words: &[&str]) -> Run {
        let open = || {
            let path = self.folder().join(format!("{data_dir}.log"));
            std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap()
        };
        let mut command = self.command_in(data_dir, &["run"]);
        command.args(words).stdout(open()).stderr(open());
        Run(command.spawn().unwrap())
    }

    /// Creates the witnesses on both sides.
    pub async fn witnesses(&self) {
        witness::create(&self.source_client().await).await.unwrap();
        witness::create_target(&self.target_client().await).await.unwrap();
    }

    /// Drains and compares the witnesses.
    pub async fn assert_witnesses(&self) {
        self.drain().await;
        let (source, target) = (self.source_client().await, self.target_client().await);
        witness::compare(&source, &target).await.unwrap().assert_clean();
    }

    /// Waits, without another start of pgonce, until the witnesses agree. The source is at rest.
    pub async fn assert_witnesses_in_the_end(&self) {
        let (source, target) = (self.source_client().await, self.target_client().await);
        let patience = Duration::from_secs(90);
        let found = witness::compare_when_caught_up(&source, &target, patience).await.unwrap();
        assert!(found.is_clean(), "{found:?}\n{}", self.log());
        found.assert_clean();
    }

    /// Waits until the flow streams.
    pub async fn streaming(&self) {
        let target = self.target_client().await;
        let source = self.source_client().await;
        let phase = "SELECT count(*) FROM pgonce.flow WHERE phase = 'streaming'";
        let slot = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'pgonce_test' AND active";
        eventually("the flow streams", || async { number(&target, phase).await + number(&source, slot).await == 2 })
            .await;
    }

    /// Waits until nobody reads the slot, and returns its `confirmed_flush_lsn`.
    pub async fn confirmed_flush(&self) -> Lsn {
        let source = self.source_client().await;
        let active = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'pgonce_test' AND active";
        eventually("the slot is left", || async { number(&source, active).await == 0 }).await;
        let sql = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'pgonce_test'";
        text(&source, sql).await.parse().unwrap()
    }

    /// The position that the target has stored: the greater of the checkpoint's end and the idle boundary.
    pub async fn stored(&self) -> Lsn {
        let sql = "SELECT greatest(end_lsn, idle_lsn)::text FROM pgonce.flow";
        text(&self.target_client().await, sql).await.parse().unwrap()
    }

    /// Runs a command to its end.
    pub async fn output(&self, words: &[&str]) -> Output {
        let mut command = self.command(words);
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    /// Drains, fails with what pgonce said if that does not end well, and returns what it said.
    pub async fn drain(&self) -> String {
        let output = self.output(&["run", "--until", "now"]).await;
        let said = said(&output);
        assert_eq!(output.status.code(), Some(0), "{said}");
        said
    }

    /// Drains and expects a stop with this code and exit status. Returns everything that was said.
    pub async fn refused(&self, code: &str, status: i32) -> String {
        let output = self.output(&["run", "--until", "now"]).await;
        let said = said(&output);
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains(&format!("[{code}]")), "{said}");
        said
    }

    pub async fn status(&self) -> Value {
        let output = self.output(&["status", "--format", "json"]).await;
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", said(&output)))
    }

    /// The rows of a query on one side, as text.
    pub async fn rows(client: &Client, sql: &str) -> Vec<String> {
        let sql = format!("SELECT coalesce(q::text, '') FROM ({sql}) q");
        client.query(&sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
    }

    /// Fails unless a query gives the same on both sides, and returns the rows.
    pub async fn assert_same(&self, sql: &str) -> Vec<String> {
        let (source, target) = (self.source_client().await, self.target_client().await);
        let (source, target) = (Flow::rows(&source, sql).await, Flow::rows(&target, sql).await);
        assert_eq!(source, target, "{sql}");
        source
    }
}

/// Everything that a command said.
pub fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A test that fails shows what the processes said.
impl Drop for Flow {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for entry in std::fs::read_dir(self.folder()).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|e| e == "log") {
                let log = std::fs::read_to_string(entry.path()).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let tail = lines[lines.len().saturating_sub(60)..].join("\n");
                eprintln!("--- {}\n{tail}", entry.file_name().display());
            }
        }
    }
}

/// A `pgonce run` in the background, killed when it is dropped: a test that fails leaves none behind.
pub struct Run(pub Child);

impl Deref for Run {
    type Target = Child;
    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Run {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}

impl Run {
    /// Kills it with SIGKILL.
    pub fn sigkill(&mut self) -> Killed {
        kill::sigkill(&mut self.0).unwrap()
    }

    /// Fails if it has ended.
    pub fn assert_running(&mut self) {
        assert_eq!(self.0.try_wait().unwrap(), None, "the process must still run");
    }

    /// Waits until it ends by itself, and returns its exit status.
    pub async fn ended(&mut self) -> Option<i32> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "pgonce has not ended within 60 s");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Ends it with SIGTERM, which must end well, and returns how long that took.
    pub async fn sigterm(&mut self) -> Duration {
        let begun = Instant::now();
        let status = kill::sigterm(&mut self.0, Duration::from_secs(30)).await.unwrap();
        assert_eq!(status.code(), Some(0));
        begun.elapsed()
    }
}

/// Waits until `met` holds, and fails with `what` if it never does.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut met: impl FnMut() -> F) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !met().await {
        assert!(Instant::now() < deadline, "not within 60 s: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// One text from a query on one side; empty where it is NULL.
pub async fn text(client: &Client, sql: &str) -> String {
    client.query_one(sql, &[]).await.unwrap().get::<_, Option<String>>(0).unwrap_or_default()
}

/// How many sessions of pgonce wait for a lock on the target.
pub const WAITING_FOR_A_LOCK: &str = "SELECT count(*) FROM pg_stat_activity \
     WHERE wait_event_type = 'Lock' AND application_name LIKE 'pgonce%'";

/// Makes every commit on the target that inserts into the log wait, in the commit itself, for an advisory lock.
pub const HOLD_COMMITS: &str = "
    CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON witness_log DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION hold();
    ALTER TABLE witness_log ENABLE ALWAYS TRIGGER hold";

/// Signals a process of a cluster of this test.
pub fn signal(pid: i64, signal: &str) {
    let done = Command::new("kill").args([format!("-{signal}"), pid.to_string()]).status().unwrap();
    assert!(done.success());
}

/// A number from a query on one side; 0 where the table is not there yet.
pub async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.map_or(0, |row| row.get(0))
}
