//! Two clusters, and flows between them: each in databases of its own.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pgonce::position::Lsn;
use pgonce_testkit::witness::{self, Comparison};
use pgonce_testkit::{Cluster, Killed, kill};
use tokio_postgres::Client;

/// Where the state of a flow goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    Atomic,
    File,
    Postgres,
}

impl Keep {
    pub const ALL: [Keep; 3] = [Keep::Atomic, Keep::File, Keep::Postgres];

    pub fn word(self) -> &'static str {
        match self {
            Keep::Atomic => "atomic",
            Keep::File => "file",
            Keep::Postgres => "postgres",
        }
    }

    /// Whether the state is one write with the data.
    pub fn once(self) -> bool {
        self == Keep::Atomic
    }
}

/// A source and a target.
pub struct Stage {
    pub source: Cluster,
    pub target: Cluster,
    folder: tempfile::TempDir,
}

impl Stage {
    pub async fn new(major: u32) -> Stage {
        Stage::with(major, &[]).await
    }

    /// With settings of the source.
    pub async fn with(major: u32, settings: &[(&str, &str)]) -> Stage {
        let source = Cluster::builder(major).name("source");
        let source = settings.iter().fold(source, |source, (name, value)| source.conf(name, value));
        let target = Cluster::builder(major).name("target");
        let (source, target) = tokio::join!(source.start(), target.start());
        Stage { source: source.unwrap(), target: target.unwrap(), folder: tempfile::tempdir().unwrap() }
    }

    /// A flow that has not been started, in a new database on either side: with the witnesses, and with a slot.
    pub async fn flow(&self, keep: Keep) -> Flow<'_> {
        self.named(keep, &format!("of_{}", keep.word())).await
    }

    pub async fn named(&self, keep: Keep, name: &str) -> Flow<'_> {
        self.source.create_database(name).await.unwrap();
        self.target.create_database(name).await.unwrap();
        let flow = self.of(keep, name);
        let (source, target) = (flow.source().await, flow.target().await);
        witness::create(&source).await.unwrap();
        witness::create_target(&target).await.unwrap();
        // FULL, so that an update carries the whole row: the sink puts rows in place, whatever it has.
        let sql = "ALTER TABLE witness_mirror REPLICA IDENTITY FULL;
                   CREATE PUBLICATION p FOR TABLE witness_log, witness_mirror;";
        source.batch_execute(sql).await.unwrap();
        let sql = format!("SELECT pg_create_logical_replication_slot('{}', 'pgoutput')", flow.slot());
        source.batch_execute(&sql).await.unwrap();
        // The order of arrival, and the rows that are there before the slot.
        let sql = format!(
            "ALTER TABLE witness_log ADD arrived bigint GENERATED ALWAYS AS IDENTITY;
             CREATE TABLE witness_message (prefix text, content text);
             INSERT INTO witness_mirror (id, number) SELECT i, 0 FROM generate_series(1, {}) i",
            witness::SHARED_ROWS
        );
        target.batch_execute(&sql).await.unwrap();
        flow
    }

    /// A flow whose databases are there.
    pub fn of(&self, keep: Keep, name: &str) -> Flow<'_> {
        Flow {
            stage: self,
            keep,
            name: name.to_owned(),
            source_url: self.source.url(name),
            target_url: self.target.url(name),
            store: match keep {
                Keep::Postgres => self.target.url(name),
                _ => self.folder.path().join(name).display().to_string(),
            },
            arguments: Vec::new(),
        }
    }
}

/// A test that fails shows what the processes said last.
impl Drop for Flow<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.tail());
        }
    }
}

/// A flow between databases of its own on a stage.
pub struct Flow<'s> {
    pub stage: &'s Stage,
    pub keep: Keep,
    pub name: String,
    /// Where the source and the target are reached: a test that puts a proxy between replaces them.
    pub source_url: String,
    pub target_url: String,
    /// Where the checkpoint store is.
    pub store: String,
    /// More arguments of every start.
    pub arguments: Vec<String>,
}

impl Flow<'_> {
    pub fn slot(&self) -> String {
        format!("witness_{}", self.name)
    }

    pub async fn source(&self) -> Client {
        self.stage.source.connect(&self.name).await.unwrap()
    }

    pub async fn target(&self) -> Client {
        self.stage.target.connect(&self.name).await.unwrap()
    }

    pub async fn at_source(&self, sql: &str) {
        self.source().await.batch_execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }

    pub async fn at_target(&self, sql: &str) {
        self.target().await.batch_execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }

    pub fn log_file(&self) -> PathBuf {
        self.stage.folder.path().join(format!("{}.log", self.name))
    }

    /// What the processes of this flow have said so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let log = || OpenOptions::new().create(true).append(true).open(self.log_file()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pgonce-witness"));
        command.args(["--keep", self.keep.word(), "--source", &self.source_url, "--target", &self.target_url]);
        command.args(["--slot", &self.slot(), "--publication", "p", "--store", &self.store]);
        command.args(&self.arguments).args(words);
        command.stdin(Stdio::null()).stdout(log()).stderr(log());
        command
    }

    /// Starts it.
    pub fn start(&self, words: &[&str]) -> Run {
        Run(self.command(words).spawn().unwrap())
    }

    /// Starts it, and waits until it reads the slot.
    pub async fn streaming(&self, words: &[&str]) -> Run {
        let run = self.start(words);
        let source = self.source().await;
        let sql = format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{}' AND active", self.slot());
        self.eventually("the slot is read", || async { number(&source, &sql).await == 1 }).await;
        run
    }

    /// Runs until everything is written that is committed now.
    pub async fn drain(&self) {
        let status = self.start(&["--until-now"]).ended().await;
        assert_eq!(status, Some(0), "{}", self.tail());
    }

    /// Starts it twice, and expects it to stop both times for this reason, with nothing written and nothing
    /// acknowledged. Returns what it said.
    pub async fn refused_for_good(&self, code: &str, status: i32) -> String {
        let before = (self.state().await, self.confirmed_flush().await);
        for start in ["first", "second"] {
            let ended = self.start(&["--until-now"]).ended().await;
            let said = self.last_words();
            assert_eq!((said.0.as_str(), ended), (code, Some(status)), "{start} start: {}", self.tail());
            assert_eq!((self.state().await, self.confirmed_flush().await), before, "{start} start: {}", said.1);
        }
        self.last_words().1
    }

    /// What is in the target, apart from the state of the flow.
    pub async fn state(&self) -> String {
        let sql = "SELECT count(*) || ' ' || (SELECT md5(string_agg(m::text, ',' ORDER BY id)) FROM witness_mirror m)
                   FROM witness_log";
        text(&self.target().await, sql).await
    }

    /// The code and the words of the last thing that was said.
    pub fn last_words(&self) -> (String, String) {
        let log = self.log();
        let last = log.lines().last().unwrap_or_default();
        let line: serde_json::Value = serde_json::from_str(last).unwrap_or_else(|e| panic!("{e}: {last}"));
        let word = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        (word("what"), word("words"))
    }

    /// The end of what was said.
    pub fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        format!("{:?} flow {}:\n{}", self.keep, self.name, lines[lines.len().saturating_sub(20)..].join("\n"))
    }

    /// Waits until nobody reads the slot, and returns its `confirmed_flush_lsn`; `None` where there is no slot.
    pub async fn confirmed_flush(&self) -> Option<Lsn> {
        let source = self.source().await;
        let active =
            format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{}' AND active", self.slot());
        self.eventually("the slot is left", || async { number(&source, &active).await == 0 }).await;
        let sql =
            format!("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{}'", self.slot());
        let row = source.query_opt(&sql, &[]).await.unwrap();
        row.map(|row| row.get::<_, String>(0).parse().unwrap())
    }

    /// Numbered transactions, each with one row of the log and one change of the mirror.
    pub async fn numbered(&self, count: u32) {
        let source = self.source().await;
        for _ in 0..count {
            let sql = "BEGIN; INSERT INTO witness_log VALUES (nextval('witness_number'), 0);
                       UPDATE witness_mirror SET number = currval('witness_number'), counter = counter + 1
                       WHERE id = 1 + currval('witness_number') % 16; COMMIT";
            source.batch_execute(sql).await.unwrap();
        }
    }

    /// One transaction of many rows of the log, and a change of the mirror behind them.
    pub async fn large(&self, rows: u32) {
        let sql = format!(
            "BEGIN; INSERT INTO witness_log SELECT nextval('witness_number'), 0, 'large'
                 FROM generate_series(1, {rows});
             UPDATE witness_mirror SET counter = counter + 1 WHERE id = 1; COMMIT"
        );
        self.at_source(&sql).await;
    }

    pub async fn compare(&self) -> Comparison {
        witness::compare(&self.source().await, &self.target().await).await.unwrap()
    }

    /// Drains, and holds both witnesses against the source: nothing is missing, the mirror is the same, and what came
    /// twice are at most `faults` runs of at most `bound` transactions, each whole and in order. In the atomic mode
    /// nothing may. Returns the lengths of the runs.
    pub async fn assert_witnesses(&self, faults: usize, bound: usize) -> Vec<usize> {
        self.drain().await;
        self.assert_written(faults, bound).await
    }

    /// The same of what is there.
    pub async fn assert_written(&self, faults: usize, bound: usize) -> Vec<usize> {
        let found = self.compare().await;
        let repeats = repeats(&arrived(&self.target().await).await);
        if self.keep.once() {
            assert!(found.is_clean(), "{found:?}\n{}", self.tail());
        }
        let clean = Comparison { duplicated: 0, examples: Vec::new(), ..found.clone() };
        assert!(clean.is_clean() && found.source_transactions > 0, "{found:?}\n{}", self.tail());
        assert!(
            repeats.len() <= faults && repeats.iter().all(|run| *run <= bound),
            "{repeats:?} came again, of at most {bound} transactions in at most {faults} runs\n{}",
            self.tail()
        );
        assert_eq!(found.duplicated > 0, !repeats.is_empty());
        repeats
    }

    /// Waits until `met` holds, and fails with `what` if it never does.
    pub async fn eventually<F: Future<Output = bool>>(&self, what: &str, mut met: impl FnMut() -> F) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !met().await {
            assert!(Instant::now() < deadline, "not within 60 s: {what}\n{}", self.tail());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until the log at the target has so many rows.
    pub async fn logged(&self, rows: i64) {
        let target = self.target().await;
        self.eventually(&format!("{rows} rows are in the log"), || async { number(&target, LOGGED).await >= rows })
            .await;
    }

    /// Waits until something is said with this code.
    pub async fn said(&self, code: &str) {
        let wanted = format!("\"what\":\"{code}\"");
        self.eventually(code, || async { self.log().contains(&wanted) }).await;
    }
}

pub const LOGGED: &str = "SELECT count(*) FROM witness_log";

/// The numbers in the log of the target, in the order of their arrival.
pub async fn arrived(target: &Client) -> Vec<i64> {
    let rows = target.query("SELECT number FROM witness_log ORDER BY arrived", &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// How many came again, each time that the sequence goes back. Panics where it goes forward over something, or where
/// something new comes before the end of what came again.
pub fn repeats(numbers: &[i64]) -> Vec<usize> {
    let mut places = HashMap::new();
    let (mut at, mut repeats) = (0, Vec::new());
    for number in numbers {
        let known = places.len();
        match places.get(number) {
            None => {
                assert_eq!(at, known, "number {number} came in the middle of what came again");
                places.insert(*number, known);
            }
            Some(place) if *place == at => {}
            Some(place) => {
                assert!(*place < at, "what came again left something out before number {number}");
                repeats.push(known - place);
                at = *place;
            }
        }
        at += 1;
    }
    assert_eq!(at, places.len(), "what came again did not come to its end");
    repeats
}

#[test]
fn repeats_are_runs_up_to_the_end_of_what_was_known() {
    assert_eq!(repeats(&[5, 3, 9]), [0; 0]);
    assert_eq!(repeats(&[5, 3, 9, 3, 9, 4]), [2]);
    assert_eq!(repeats(&[5, 3, 9, 9, 3, 9, 4]), [1, 2]);
    for broken in [&[5, 3, 9, 3, 4][..], &[5, 3, 9, 5, 9, 4], &[5, 3, 9, 5, 3]] {
        assert!(std::panic::catch_unwind(|| repeats(broken)).is_err(), "{broken:?}");
    }
}

/// A process, killed when it is dropped: a test that fails leaves none behind.
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
    pub fn sigkill(&mut self) -> Killed {
        kill::sigkill(&mut self.0).unwrap()
    }

    pub fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// Waits until it ends by itself, and returns its exit status.
    pub async fn ended(mut self) -> Option<i32> {
        let deadline = Instant::now() + Duration::from_secs(90);
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it has not ended within 90 s");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends it with SIGTERM, which must end well, and returns how long that took.
    pub async fn sigterm(mut self) -> Duration {
        let begun = Instant::now();
        let status = kill::sigterm(&mut self.0, Duration::from_secs(30)).await.unwrap();
        assert_eq!(status.code(), Some(0));
        begun.elapsed()
    }
}

/// A number from a query; 0 where the table is not there yet.
pub async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.map_or(0, |row| row.get(0))
}

/// One text from a query; empty where it is NULL.
pub async fn text(client: &Client, sql: &str) -> String {
    client.query_one(sql, &[]).await.unwrap().get::<_, Option<String>>(0).unwrap_or_default()
}

/// How many sessions wait for a lock.
pub const WAITING_FOR_A_LOCK: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";

/// Makes every commit on the target that inserts into the log wait, in the commit itself, for an advisory lock.
pub const HOLD_COMMITS: &str = "
    CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON witness_log DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION hold()";
