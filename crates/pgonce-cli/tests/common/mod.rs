//! Flows of the real program between two real clusters.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use pgonce_testkit::Cluster;
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

    pub fn data_dir(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// What the process has written to its standard output and error so far, all runs together.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// A command of pgonce with the flow's arguments.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pgonce"));
        command.args(words).args(["--flow", "test", "--source", &self.source_url, "--target", &self.target_url]);
        command.args(&self.arguments).arg("--data-dir").arg(self.data_dir());
        command.current_dir(self.directory.path()).stdin(Stdio::null());
        command
    }

    /// Starts `pgonce run` in the background.
    pub fn start(&self, words: &[&str]) -> Child {
        let open = || {
            let path = self.directory.path().join("log");
            std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap()
        };
        let mut command = self.command(&["run"]);
        command.args(words).stdout(open()).stderr(open());
        command.spawn().unwrap()
    }

    /// Runs a command to its end.
    pub async fn output(&self, words: &[&str]) -> Output {
        let mut command = self.command(words);
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    /// Drains, and fails with what pgonce said if that does not end well.
    pub async fn drain(&self) {
        let output = self.output(&["run", "--until", "now"]).await;
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
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

/// Waits until `met` holds, and fails with `what` if it never does.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut met: impl FnMut() -> F) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !met().await {
        assert!(Instant::now() < deadline, "not within 60 s: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A number from a query on one side; 0 where the table is not there yet.
pub async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.map_or(0, |row| row.get(0))
}
