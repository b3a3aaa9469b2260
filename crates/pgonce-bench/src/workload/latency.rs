//! How long a commit takes to be visible on the target, at 200 transactions a second.
//!
//! The source stamps each row inside its transaction of one insert, so that the wait for the source's disk is part of
//! the figure, for every contestant alike. One reader asks the target again every half millisecond.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use pgonce_testkit::Random;
use tokio_postgres::{Client, NoTls};

use crate::contestant::{Contestant, Place, Running};
use crate::measure::{Bench, Measured};
use crate::stand::Databases;

/// Transactions of one run, and how many there are a second.
const TRANSACTIONS: u64 = 2_000;
const RATE: u64 = 200;

/// How long the reader waits between two looks.
const LOOK: Duration = Duration::from_micros(500);

/// How long the first row may take, and the last one.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) const PUBLICATION: &str = "bench";
pub(super) const SLOT: &str = "bench_run";

/// The databases for this workload.
pub async fn prepare(bench: &Bench<'_>) -> Result<Databases> {
    let databases = bench.stand.databases("bench").await?;
    databases.both("CREATE TABLE beat (id bigint PRIMARY KEY, at timestamptz)").await?;
    databases.source.batch_execute(&format!("CREATE PUBLICATION {PUBLICATION} FOR TABLE beat")).await?;
    Ok(databases)
}

/// Starts a contestant on empty tables and a slot of its own, and waits for a first row to arrive.
pub(super) async fn start(bench: &Bench<'_>, databases: &Databases, contestant: Contestant) -> Result<Running> {
    databases.both("TRUNCATE beat").await?;
    databases.target.batch_execute("DROP SCHEMA IF EXISTS pgonce CASCADE").await?;
    databases.both("CHECKPOINT").await?;
    databases.create_slot(SLOT).await?;
    let place = Place { databases, publication: PUBLICATION, slot: SLOT, pgonce: bench.pgonce, folder: bench.scratch };
    let mut running = contestant.start(&place).await?;
    databases.source.batch_execute("INSERT INTO beat VALUES (0, clock_timestamp())").await?;
    let begun = Instant::now();
    while databases.target.query_opt("SELECT 1 FROM beat", &[]).await?.is_none() {
        running.check()?;
        if begun.elapsed() > PATIENCE {
            bail!("{} has applied nothing after {} s", contestant.name(), PATIENCE.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(running)
}

/// Measures one contestant. The value is the median in milliseconds; `p99` and `max` are beside it.
pub async fn run(bench: &Bench<'_>, databases: &Databases, contestant: Contestant) -> Result<Measured> {
    let transactions = i64::try_from((TRANSACTIONS / u64::from(bench.scale_div)).max(20))?;
    let mut running = start(bench, databases, contestant).await?;
    // What a start leaves to do (a first feedback, caches) is done before anything is measured.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let reader = Reader::start(databases.target_url.clone(), transactions);
    beat(&databases.source, transactions).await?;
    let mut delays = reader.finish().await?;
    running.check()?;
    running.stop(databases).await?;
    databases.drop_slot(SLOT).await?;
    ensure!(
        i64::try_from(delays.len())? == transactions,
        "{} of {transactions} rows arrived with {}",
        delays.len(),
        contestant.name()
    );
    delays.sort_by(f64::total_cmp);
    let percentile = |percent: usize| delays[(delays.len() * percent / 100).min(delays.len() - 1)];
    let extra = BTreeMap::from([("p99".to_owned(), percentile(99)), ("max".to_owned(), percentile(100))]);
    Ok(Measured::new(contestant, percentile(50), extra))
}

/// Commits a row at random moments, `RATE` a second, whatever the target does.
async fn beat(source: &Client, transactions: i64) -> Result<()> {
    let statement = source.prepare("INSERT INTO beat VALUES ($1, clock_timestamp())").await?;
    let mut random = Random::new(RATE);
    let mut due = tokio::time::Instant::now();
    for id in 1..=transactions {
        due += Duration::from_micros(random.below(2 * 1_000_000 / RATE));
        tokio::time::sleep_until(due).await;
        source.execute(&statement, &[&id]).await?;
    }
    Ok(())
}

/// Looks for rows on the target, in a thread of its own: a timer of the runtime is coarser than what is measured.
struct Reader {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<f64>>>,
}

impl Reader {
    fn start(url: String, transactions: i64) -> Reader {
        let ended = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(read(&url, transactions, &end))
        });
        Reader { ended, thread }
    }

    /// Waits until all rows are there, or for as long as the last one may take.
    async fn finish(self) -> Result<Vec<f64>> {
        let deadline = Instant::now() + PATIENCE;
        while !self.thread.is_finished() {
            if Instant::now() > deadline {
                self.ended.store(true, Ordering::Relaxed);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.thread.join().map_err(|_| anyhow!("the reader panicked"))?
    }
}

/// The delay of each row in milliseconds, in the order of their arrival.
async fn read(url: &str, transactions: i64, ended: &AtomicBool) -> Result<Vec<f64>> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.context("connecting to the target")?;
    let connection = tokio::spawn(connection);
    client.batch_execute("SET application_name = 'pgonce-bench'").await?;
    let statement = client.prepare("SELECT id, extract(epoch FROM at)::float8 FROM beat WHERE id > $1").await?;
    let mut delays = Vec::new();
    let mut last = 0_i64;
    while last < transactions && !ended.load(Ordering::Relaxed) {
        let rows = client.query(&statement, &[&last]).await?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        for row in rows {
            delays.push((now - row.get::<_, f64>(1)) * 1000.0);
            // One connection commits them in order, so that none is behind one that is visible.
            last = last.max(row.get(0));
        }
        std::thread::sleep(LOOK);
    }
    drop(client);
    connection.await??;
    Ok(delays)
}
