//! One round trip of a seed: the schema on both sides, rows, a flow that copies and streams while transactions go on,
//! and both sides compared; with a native subscription beside it where that can carry the tables.

pub mod kills;
pub mod parts;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pgonce_testkit::Random;
use pgonce_testkit::random_schema::{RandomSchema, Step, Table};
use tokio_postgres::Client;

use crate::common::{Flow, said};
use crate::pair::{Case, Running};

/// What values look like, whatever the servers are set to.
const PINNED: &str = "SET DateStyle = 'ISO, YMD'; SET IntervalStyle = postgres; SET TimeZone = 'UTC';
    SET extra_float_digits = 1; SET bytea_output = hex";

/// How long the native subscription may take to catch up with what pgonce has carried already.
const NATIVE_PATIENCE: Duration = Duration::from_secs(90);

/// What a round trip has done.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Counts {
    pub tables: u64,
    /// Of them, those that were compared with a native subscription's.
    pub native: u64,
    pub rows: u64,
    pub committed: u64,
    pub given_up: u64,
    pub kills: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.tables += other.tables;
        self.native += other.native;
        self.rows += other.rows;
        self.committed += other.committed;
        self.given_up += other.given_up;
        self.kills += other.kills;
    }
}

/// Where the SQL of a seed is kept if it fails.
pub fn kept(seed: u64, major: u32) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    target.join("roundtrip").join(format!("seed-{seed}-postgresql-{major}"))
}

/// Runs a seed. Panics if it fails; what it was made of is then in the folder [`kept`].
pub async fn round_trip(seed: u64, major: u32) -> Counts {
    let schema = RandomSchema::new(seed, major);
    let case = Case::new(major, &format!("seed_{seed}")).await;
    let folder = kept(seed, major);
    std::fs::create_dir_all(&folder).unwrap();
    let mut trip = Trip { folder, case, schema, counts: Counts::default(), steps: String::new(), native: None };
    trip.run().await;
    trip.clean_up().await;
    std::fs::remove_dir_all(&trip.folder).unwrap();
    trip.counts
}

struct Trip {
    folder: PathBuf,
    case: Case,
    schema: RandomSchema,
    counts: Counts,
    /// What has been run at the source, with what became of it.
    steps: String,
    /// The database of the native subscription.
    native: Option<Client>,
}

/// A trip that fails leaves what it was made of.
impl Drop for Trip {
    fn drop(&mut self) {
        if std::thread::panicking() {
            drop(std::fs::write(self.folder.join("steps.sql"), &self.steps));
            drop(std::fs::write(self.folder.join("pgonce.log"), self.case.log()));
            drop(std::fs::write(self.folder.join("target.log"), self.case.pair.target.log_tail()));
            drop(std::fs::write(self.folder.join("source.log"), self.case.pair.source.log_tail()));
        }
    }
}

impl Trip {
    async fn run(&mut self) {
        self.set_up().await;
        let mut random = Random::split(self.schema.seed(), 200);
        let mut sessions = Vec::new();
        for _ in 0..3 {
            let session = self.case.pair.source.connect(&self.case.name).await.unwrap();
            // What another session, or the copy, holds is not waited for.
            session.batch_execute("SET lock_timeout = '200ms'").await.unwrap();
            sessions.push(session);
        }
        self.play(&sessions, &self.schema.first_rows()).await;
        self.play(&sessions, &self.schema.workload(0, 8, false)).await;

        self.subscribe().await;
        let mut run = self.case.start();
        let during = cut(self.schema.workload(1, 25, true));
        let kill_at = random.percent(60).then(|| random.place(during.len()));
        let pause = Duration::from_millis(random.below(8));
        for (at, step) in during.into_iter().enumerate() {
            if kill_at == Some(at) {
                let killed = run.sigkill();
                self.counts.kills += u64::from(killed.pid() > 0);
                run = self.case.start();
            }
            self.play(&sessions, &step).await;
            tokio::time::sleep(pause).await;
        }
        self.case.settled(&mut run).await;
        self.natively_settled().await;
        self.play(&sessions, &self.schema.workload(2, 25, false)).await;
        run.end().await;
        self.case.drain().await;
        self.compare().await;
        self.compare_natively().await;
    }

    async fn set_up(&mut self) {
        let schema = &self.schema;
        let (publications, names) = schema.publications();
        let (native_publications, _) = schema.native_publications();
        let description = format!(
            "-- seed {}, PostgreSQL {}, published as {:?}\n-- Source\n{}{publications}{native_publications}\n\
             -- Target\n{}",
            schema.seed(),
            self.case.major,
            schema.publication(),
            schema.source_sql(),
            schema.target_sql(),
        );
        std::fs::write(self.folder.join("schema.sql"), description).unwrap();
        self.case.at_source(PINNED).await;
        self.case.at_target(PINNED).await;
        self.case.at_source(&format!("{}{publications}", schema.source_sql())).await;
        self.case.at_target(&schema.target_sql()).await;
        if !names.is_empty() {
            self.case.arguments.extend(["--publication".to_owned(), names.join(",")]);
        }
    }

    /// Runs steps one after the other, whatever their sessions.
    async fn play(&mut self, sessions: &[Client], steps: &[Step]) {
        let mut given_up = vec![false; sessions.len()];
        for step in steps {
            let (session, end) = (&sessions[step.session], ["COMMIT", "ROLLBACK"].contains(&step.sql.as_str()));
            if std::mem::take(&mut given_up[step.session]) {
                given_up[step.session] = !end;
                continue;
            }
            let outcome = session.batch_execute(&step.sql).await;
            let _ = writeln!(self.steps, "/* session {} */ {};", step.session, step.sql);
            match outcome {
                Ok(()) => self.counts.committed += u64::from(step.sql == "COMMIT"),
                Err(error) => {
                    let error = error.as_db_error().unwrap_or_else(|| panic!("{}: {error:?}", step.sql));
                    let code = error.code().code();
                    // A constraint, or a lock that another session holds: the rest of the transaction is left out.
                    assert!(["23", "55", "40"].contains(&&code[..2]), "{}: {error:?}", step.sql);
                    let _ = writeln!(self.steps, "/* session {}: {code} */ ROLLBACK;", step.session);
                    session.batch_execute("ROLLBACK").await.unwrap();
                    self.counts.given_up += 1;
                    given_up[step.session] = !end;
                }
            }
        }
    }

    /// Makes a database for a native subscription, and the subscription.
    async fn subscribe(&mut self) {
        let (publications, names) = self.schema.native_publications();
        if names.is_empty() {
            return;
        }
        let name = format!("{}_native", self.case.name);
        self.case.pair.target.create_database(&name).await.unwrap();
        let native = self.case.pair.target.connect(&name).await.unwrap();
        native.batch_execute(&format!("{PINNED}; {}", self.schema.native_sql())).await.unwrap();
        self.case.at_source(&publications).await;
        let subscription = format!(
            "CREATE SUBSCRIPTION {name} CONNECTION '{}' PUBLICATION {}",
            self.case.source_url,
            names.join(", ")
        );
        native.batch_execute(&subscription).await.unwrap();
        self.native = Some(native);
    }

    /// Waits until the native subscription has copied all of its tables.
    async fn natively_settled(&self) {
        let Some(native) = &self.native else { return };
        let deadline = Instant::now() + NATIVE_PATIENCE;
        let copying = "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate NOT IN ('s', 'r')";
        while native.query_one(copying, &[]).await.unwrap().get::<_, i64>(0) > 0 {
            assert!(Instant::now() < deadline, "the native subscription does not end its copy");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The target against the source: what is published of it, and nothing else.
    async fn compare(&mut self) {
        let publication = self.schema.publication();
        for table in self.schema.tables() {
            self.counts.tables += 1;
            // What was updated or deleted at the source stays at the target: the native subscription says what it is.
            if table.is_inserts_only() {
                continue;
            }
            let rows = Flow::rows(&self.case.source, &table.source_rows()).await;
            let there = Flow::rows(&self.case.target, &table.target_rows()).await;
            same("the source", &rows, "the target", &there, table);
            self.counts.rows += rows.len() as u64;
            for partition in table.partition_rows(publication) {
                let rows = Flow::rows(&self.case.source, &partition).await;
                let there = Flow::rows(&self.case.target, &partition).await;
                same("the source's partition", &rows, "the target's", &there, table);
            }
        }
        if self.schema.tables().iter().any(Table::is_inserts_only) {
            return;
        }
        let verified = self.case.output(&["verify"]).await;
        assert_eq!(verified.status.code(), Some(0), "verify: {}", said(&verified));
    }

    /// The target against what a native subscription has made of the same.
    async fn compare_natively(&mut self) {
        let Some(native) = &self.native else { return };
        let deadline = Instant::now() + NATIVE_PATIENCE;
        for table in self.schema.tables().iter().filter(|table| table.is_native()) {
            self.counts.native += 1;
            let rows = Flow::rows(&self.case.target, &table.all_target_rows()).await;
            loop {
                let there = Flow::rows(native, &table.all_target_rows()).await;
                if rows == there {
                    break;
                }
                if Instant::now() > deadline {
                    same("pgonce", &rows, "the native subscription", &there, table);
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    /// Leaves nothing on the clusters.
    async fn clean_up(&mut self) {
        if let Some(native) = self.native.take() {
            native.batch_execute(&format!("DROP SUBSCRIPTION {}_native", self.case.name)).await.unwrap();
            drop(native);
            let drop = format!("DROP DATABASE {}_native WITH (FORCE)", self.case.name);
            self.case.pair.target.execute("postgres", &drop).await.unwrap();
        }
        self.case.clean_up().await;
    }
}

/// Steps in pieces that end with no transaction open, so that what comes between two pieces holds nobody up.
fn cut(steps: Vec<Step>) -> Vec<Vec<Step>> {
    let (mut pieces, mut open) = (vec![Vec::new()], 0);
    for step in steps {
        match step.sql.as_str() {
            "BEGIN" => open += 1,
            "COMMIT" | "ROLLBACK" => open -= 1,
            _ => {}
        }
        pieces.last_mut().unwrap().push(step);
        if open == 0 {
            pieces.push(Vec::new());
        }
    }
    pieces
}

/// Fails with what one side has and the other has not.
#[track_caller]
fn same(here: &str, rows: &[String], there: &str, others: &[String], table: &Table) {
    if rows == others {
        return;
    }
    let only = |a: &[String], b: &[String]| {
        let mut left = b.to_vec();
        let keep = |row: &&String| left.iter().position(|other| other == *row).map(|at| left.remove(at)).is_none();
        a.iter().filter(keep).take(3).cloned().collect::<Vec<_>>()
    };
    let mut text = format!("table {}: {here} has {} rows, {there} {}", table.quoted(), rows.len(), others.len());
    for (side, rows) in [(here, only(rows, others)), (there, only(others, rows))] {
        for row in rows {
            let short: String = row.chars().take(300).collect();
            let _ = write!(text, "\n  only {side}: {short}");
        }
    }
    panic!("{text}");
}

impl Case {
    /// Takes the flow and both databases away.
    pub async fn clean_up(&self) {
        let output = self.output(&["reset", "--yes"]).await;
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        self.pair.source.execute("postgres", &drop).await.unwrap();
        self.pair.target.execute("postgres", &drop).await.unwrap();
    }

    /// Waits until the copy is complete. Fails if the run has ended.
    async fn settled(&self, run: &mut Running) {
        let deadline = Instant::now() + Duration::from_secs(120);
        let streaming = "SELECT count(*) FROM pgonce.flow WHERE phase = 'streaming'";
        while crate::common::number(&self.target, streaming).await == 0 {
            run.assert_running(|| self.log());
            assert!(Instant::now() < deadline, "the copy is not complete after 120 s: {}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
