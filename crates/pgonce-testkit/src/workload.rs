//! Seeded random transactions on the witnesses.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

use crate::{Random, pgbench, witness};

/// Keys of the mirror that each connection changes: few enough to meet rows again and again.
const OWN_ROWS: u64 = 400;

/// How long a connection waits before it connects again.
const RECONNECT: Duration = Duration::from_millis(50);

/// How long [`RunningWorkload::stop`] waits for the transactions under way.
const STOP_PATIENCE: Duration = Duration::from_secs(60);

/// A random workload on the tables of [`witness`]: mixed transactions of 1 to 50 changes, some rolled back, some with
/// sub-transactions rolled back, some left open while others commit, each with one row of `witness_log`.
///
/// The seed decides what each connection does; how the connections interleave, the machine decides. A connection that
/// breaks is opened again: whether its last commit happened is counted as unknown, because the witnesses are compared
/// by SQL.
///
/// ```no_run
/// # async fn example(source: pgonce_testkit::Cluster) -> Result<(), pgonce_testkit::KitError> {
/// use pgonce_testkit::{Workload, witness};
/// witness::create(&source.connect("postgres").await?).await?;
/// let running = Workload::new(42).connections(4).start(&source.url("postgres"));
/// // ... kill things ...
/// let counts = running.stop().await;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Workload {
    seed: u64,
    connections: u64,
    changes_max: u64,
    transactions_max: Option<u64>,
    pgbench_scale: Option<u32>,
    pause: Duration,
}

/// What a workload has done so far, as far as it knows. Tests compare the witnesses instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Transactions whose commit was confirmed.
    pub committed: u64,
    /// Transactions rolled back on purpose.
    pub rolled_back: u64,
    /// Transactions that the server refused (a deadlock, say).
    pub failed: u64,
    /// Transactions whose connection broke before the outcome was known.
    pub unknown: u64,
    /// Connections opened, the first ones included.
    pub connected: u64,
    /// Changes asked for in transactions whose commit was confirmed. Some of them met no row.
    pub changes: u64,
}

/// A workload that runs until it is stopped. Dropping it aborts it.
#[derive(Debug)]
#[must_use = "a workload ends when it is dropped"]
pub struct RunningWorkload {
    shared: Arc<Shared>,
    connections: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    begun: AtomicU64,
    committed: AtomicU64,
    rolled_back: AtomicU64,
    failed: AtomicU64,
    unknown: AtomicU64,
    connected: AtomicU64,
    changes: AtomicU64,
}

impl Workload {
    /// A workload with four connections that goes as fast as it can.
    pub fn new(seed: u64) -> Workload {
        Workload {
            seed,
            connections: 4,
            changes_max: 50,
            transactions_max: None,
            pgbench_scale: None,
            pause: Duration::ZERO,
        }
    }

    /// How many connections.
    pub fn connections(mut self, connections: u64) -> Self {
        self.connections = connections;
        self
    }

    /// How many changes a transaction has at most.
    pub fn changes_max(mut self, changes: u64) -> Self {
        self.changes_max = changes.max(1);
        self
    }

    /// Ends by itself after this many transactions, of all connections together and however they ended.
    pub fn transactions(mut self, transactions: u64) -> Self {
        self.transactions_max = Some(transactions);
        self
    }

    /// Adds pgbench's statements to half of the transactions; the tables must be there, see [`pgbench::create`].
    pub fn pgbench(mut self, scale: u32) -> Self {
        self.pgbench_scale = Some(scale);
        self
    }

    /// Waits this long after each transaction of a connection.
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Starts the connections to a database that has the witnesses.
    pub fn start(&self, url: &str) -> RunningWorkload {
        let shared = Arc::new(Shared::default());
        let mut connections = JoinSet::new();
        for number in 0..self.connections {
            let worker = Worker {
                number,
                workload: self.clone(),
                random: Random::split(self.seed, number),
                url: url.to_owned(),
                shared: Arc::clone(&shared),
            };
            connections.spawn(worker.run());
        }
        RunningWorkload { shared, connections }
    }

    /// Runs for a time.
    pub async fn run_for(&self, url: &str, time: Duration) -> Counts {
        let running = self.start(url);
        tokio::time::sleep(time).await;
        running.stop().await
    }

    /// Runs a number of transactions and returns when they are done.
    pub async fn run_transactions(self, url: &str, transactions: u64) -> Counts {
        self.transactions(transactions).start(url).finish().await
    }
}

impl RunningWorkload {
    /// What it has done so far.
    pub fn counts(&self) -> Counts {
        let get = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Counts {
            committed: get(&self.shared.committed),
            rolled_back: get(&self.shared.rolled_back),
            failed: get(&self.shared.failed),
            unknown: get(&self.shared.unknown),
            connected: get(&self.shared.connected),
            changes: get(&self.shared.changes),
        }
    }

    /// Lets the transactions under way end, and ends.
    pub async fn stop(mut self) -> Counts {
        self.shared.stop.store(true, Ordering::Relaxed);
        let all = async { while self.connections.join_next().await.is_some() {} };
        // A connection that hangs (a proxy that is paused) is cut off when the set is dropped.
        let _ = tokio::time::timeout(STOP_PATIENCE, all).await;
        self.counts()
    }

    /// Waits for the end of a workload with a number of [`transactions`](Workload::transactions).
    pub async fn finish(mut self) -> Counts {
        while self.connections.join_next().await.is_some() {}
        self.counts()
    }
}

/// One connection.
struct Worker {
    number: u64,
    workload: Workload,
    random: Random,
    url: String,
    shared: Arc<Shared>,
}

/// A transaction in two batches of statements; the second ends with COMMIT or ROLLBACK.
struct Plan {
    first: String,
    second: String,
    /// How long it stays open between the two.
    open_for: Option<Duration>,
    commits: bool,
    changes: u64,
}

impl Worker {
    async fn run(mut self) {
        while self.goes_on() {
            let Ok((client, connection)) = tokio_postgres::connect(&self.url, NoTls).await else {
                tokio::time::sleep(RECONNECT).await;
                continue;
            };
            count(&self.shared.connected);
            let reader = tokio::spawn(async move { drop(connection.await) });
            while self.goes_on() && !client.is_closed() && self.may_begin() {
                self.transaction(&client).await;
                if !self.workload.pause.is_zero() {
                    tokio::time::sleep(self.workload.pause).await;
                }
            }
            drop(client);
            let _ = reader.await;
        }
    }

    fn goes_on(&self) -> bool {
        let all_begun = |max| self.shared.begun.load(Ordering::Relaxed) >= max;
        !self.shared.stop.load(Ordering::Relaxed) && !self.workload.transactions_max.is_some_and(all_begun)
    }

    fn may_begin(&self) -> bool {
        let before = self.shared.begun.fetch_add(1, Ordering::Relaxed);
        self.workload.transactions_max.is_none_or(|max| before < max)
    }

    async fn transaction(&mut self, client: &Client) {
        let plan = self.plan();
        let outcome = async {
            match plan.open_for {
                None => client.batch_execute(&format!("{}{}", plan.first, plan.second)).await,
                Some(time) => {
                    client.batch_execute(&plan.first).await?;
                    tokio::time::sleep(time).await;
                    client.batch_execute(&plan.second).await
                }
            }
        };
        match outcome.await {
            Ok(()) if plan.commits => {
                count(&self.shared.committed);
                self.shared.changes.fetch_add(plan.changes, Ordering::Relaxed);
            }
            Ok(()) => count(&self.shared.rolled_back),
            Err(error) if error.as_db_error().is_some() && client.batch_execute("ROLLBACK").await.is_ok() => {
                count(&self.shared.failed);
            }
            Err(_) => count(&self.shared.unknown),
        }
    }

    fn plan(&mut self) -> Plan {
        // Half of the transactions are small, as in life.
        let most = if self.random.percent(50) { self.workload.changes_max.min(3) } else { self.workload.changes_max };
        let changes = self.random.between(1, most);
        let commits = !self.random.percent(8);
        let open_for = self.random.percent(5).then(|| Duration::from_millis(self.random.between(1, 40)));
        let mut first = format!(
            "BEGIN; INSERT INTO witness_log (number, worker) VALUES (nextval('witness_number'), {});",
            self.number
        );
        self.shared_rows(&mut first);
        if let Some(scale) = self.workload.pgbench_scale
            && self.random.percent(50)
        {
            // Behind the shared rows in every transaction, so that two connections do not wait for each other.
            first.push_str(&pgbench::tpcb_statements(&mut self.random, scale));
        }
        let mut second = String::new();
        for change in 0..changes {
            let statements = if change < changes / 2 { &mut first } else { &mut second };
            if self.random.percent(4) {
                self.subtransaction(statements);
            } else {
                self.change(statements);
            }
        }
        second.push_str(if commits { "COMMIT;" } else { "ROLLBACK;" });
        Plan { first, second, open_for, commits, changes }
    }

    /// Now and then, rows that all connections update, in ascending order: they make transactions wait for each
    /// other, and their values show whether the target kept the order of commits.
    fn shared_rows(&mut self, statements: &mut String) {
        if self.random.percent(15) {
            let first = self.random.between(1, witness::SHARED_ROWS);
            for id in first..=(first + self.random.below(3)).min(witness::SHARED_ROWS) {
                let _ = write!(
                    statements,
                    "UPDATE witness_mirror SET counter = counter + 1, number = currval('witness_number')
                     WHERE id = {id};"
                );
            }
        }
    }

    /// A sub-transaction that is released or rolled back. What it puts into the log carries the number of no
    /// transaction that commits, so that one applied in spite of its rollback shows as unexpected.
    fn subtransaction(&mut self, statements: &mut String) {
        statements.push_str("SAVEPOINT inner_part;");
        for _ in 0..self.random.between(1, 4) {
            self.change(statements);
        }
        if self.random.percent(60) {
            let _ = write!(
                statements,
                "INSERT INTO witness_log (number, worker, note) VALUES (-currval('witness_number'), {}, 'rolled back');
                 ROLLBACK TO SAVEPOINT inner_part;",
                self.number
            );
        } else {
            statements.push_str("RELEASE SAVEPOINT inner_part;");
        }
    }

    /// One change of a row that only this connection changes.
    fn change(&mut self, statements: &mut String) {
        let id = self.own_id();
        let salt = self.random.below(1_000_000);
        let _ = match self.random.below(100) {
            0..40 => {
                let large = match self.random.below(10) {
                    0..2 => format!("repeat(md5('{salt}'), 320)"),
                    2 => "''".to_owned(),
                    _ => "NULL".to_owned(),
                };
                let note = if self.random.percent(20) { "NULL".to_owned() } else { format!("'note {salt}'") };
                write!(
                    statements,
                    "INSERT INTO witness_mirror (id, number, amount, note, large)
                     VALUES ({id}, currval('witness_number'), {salt}.{}, {note}, {large}) ON CONFLICT (id) DO NOTHING;",
                    self.random.below(100)
                )
            }
            40..70 => write!(
                statements,
                "UPDATE witness_mirror SET number = currval('witness_number'), counter = counter + 1, amount = -{salt}
                 WHERE id = {id};"
            ),
            70..76 => write!(
                statements,
                "UPDATE witness_mirror SET number = currval('witness_number'), large = repeat(md5('{salt}'), 320)
                 WHERE id = {id};"
            ),
            76..90 => write!(statements, "DELETE FROM witness_mirror WHERE id = {id};"),
            _ => {
                let other = self.own_id();
                write!(
                    statements,
                    "UPDATE witness_mirror SET id = {other}, number = currval('witness_number') WHERE id = {id}
                     AND NOT EXISTS (SELECT FROM witness_mirror WHERE id = {other});"
                )
            }
        };
    }

    fn own_id(&mut self) -> u64 {
        1000 + self.random.below(OWN_ROWS) * self.workload.connections + self.number
    }
}

fn count(number: &AtomicU64) {
    number.fetch_add(1, Ordering::Relaxed);
}
