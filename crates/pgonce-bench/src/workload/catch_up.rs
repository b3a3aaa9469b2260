//! Catching up with a backlog, which is prepared once behind a slot: every run decodes the same WAL through a copy of
//! that slot, into an equal target, until a marker row that was committed last is visible there.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use futures_util::future::BoxFuture;
use tokio_postgres::Client;

use crate::contestant::{Contestant, Place};
use crate::measure::{Bench, Measured};
use crate::sample::Sampler;
use crate::stand::{Databases, Stand};

/// The slot that holds the backlog, and the copy of it that a run reads.
pub const BASE_SLOT: &str = "bench_base";
pub const RUN_SLOT: &str = "bench_run";
pub const PUBLICATION: &str = "bench";

/// Connections that generate a backlog.
const CONNECTIONS: usize = 4;

/// How often we look for the marker.
pub const LOOK: Duration = Duration::from_millis(5);

/// The longest that one run may take.
pub const RUN_MAX: Duration = Duration::from_secs(600);

/// With `synchronous_commit = on` native waits for the disk after every transaction, and needs minutes for what takes
/// it seconds otherwise: both sides get a fifth of the transactions.
const SYNCHRONOUS_DIV: u64 = 5;

/// How large a backlog is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Divides everything.
    pub scale_div: u32,
    /// Whether it is for runs with `synchronous_commit = on`.
    pub synchronous: bool,
}

impl Size {
    /// A number of transactions or rows at this size.
    pub fn of(self, full: u64) -> u64 {
        let div = u64::from(self.scale_div) * if self.synchronous { SYNCHRONOUS_DIV } else { 1 };
        (full / div).max(1)
    }
}

/// A backlog.
pub trait CatchUp: std::fmt::Debug + Sync {
    /// The tables that are published.
    fn tables(&self) -> &'static [&'static str];

    /// How many transactions the backlog has.
    fn transactions(&self, size: Size) -> u64;

    /// How many changes of rows these are.
    fn changes(&self, size: Size) -> u64 {
        self.transactions(size)
    }

    /// The statements that make the tables, on either side.
    fn schema(&self, _size: Size) -> String {
        String::new()
    }

    /// Makes the tables and what is in them before the backlog, on either side.
    fn prepare<'a>(&'a self, client: &'a Client, size: Size) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { Ok(client.batch_execute(&self.schema(size)).await?) })
    }

    /// Commits the backlog, over all of these connections.
    fn generate(&self, clients: Vec<Client>, size: Size) -> BoxFuture<'static, Result<()>>;

    /// The statements that take the target back to where the source was before the backlog.
    fn reset(&self) -> &'static [&'static str];

    /// Counts rows; at the end there is one for each transaction.
    fn rows(&self) -> &'static str;

    /// Text that is equal on both sides if the content is.
    fn fingerprint(&self) -> &'static str;
}

/// A prepared backlog.
#[derive(Debug)]
pub struct Backlog {
    workload: &'static dyn CatchUp,
    databases: Databases,
    transactions: u64,
    changes: u64,
    marker: String,
    fingerprint: String,
}

impl Backlog {
    /// Generates it.
    pub async fn prepare(stand: &Stand, workload: &'static dyn CatchUp, size: Size) -> Result<Backlog> {
        let databases = stand.databases("bench").await?;
        databases.both("CREATE TABLE bench_marker (id int PRIMARY KEY)").await?;
        for client in [&databases.source, &databases.target] {
            workload.prepare(client, size).await?;
        }
        let tables = workload.tables().join(", ");
        let sql = format!(
            "CREATE PUBLICATION {PUBLICATION} FOR TABLE {tables}, bench_marker
             WITH (publish = 'insert, update, delete')"
        );
        databases.source.batch_execute(&sql).await?;
        databases.source.batch_execute("CHECKPOINT").await?;
        databases.create_slot(BASE_SLOT).await?;
        workload.generate(stand.source_clients(&databases, CONNECTIONS).await?, size).await?;
        let marker = databases.source.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).await?.get(0);
        // The first commit that waits for the disk again takes all those before it along.
        databases.source.batch_execute("INSERT INTO bench_marker VALUES (1)").await?;
        databases.source.execute("SELECT pg_switch_wal()", &[]).await?;
        databases.source.batch_execute("CHECKPOINT").await?;
        let fingerprint = databases.source.query_one(workload.fingerprint(), &[]).await?.get(0);
        let (transactions, changes) = (workload.transactions(size), workload.changes(size));
        Ok(Backlog { workload, databases, transactions, changes, marker, fingerprint })
    }

    /// Lets one contestant catch up.
    pub async fn run(&self, bench: &Bench<'_>, contestant: Contestant) -> Result<Measured> {
        self.reset().await?;
        let databases = &self.databases;
        databases.copy_slot(BASE_SLOT, RUN_SLOT).await?;
        let (source, target) = bench.stand.watchers(databases).await?;
        let marker = databases.target.prepare("SELECT 1 FROM bench_marker").await?;
        let place =
            Place { databases, publication: PUBLICATION, slot: RUN_SLOT, pgonce: bench.pgonce, folder: bench.scratch };
        let begun = Instant::now();
        let mut running = contestant.start(&place).await?;
        let sampler = Sampler::start(source, target, running.pid());
        while databases.target.query_opt(&marker, &[]).await?.is_none() {
            running.check()?;
            if begun.elapsed() > RUN_MAX {
                bail!("{} has not caught up after {} s", contestant.name(), RUN_MAX.as_secs());
            }
            tokio::time::sleep(LOOK).await;
        }
        let seconds = begun.elapsed().as_secs_f64();
        let extra = sampler.finish().await?;
        running.stop(databases).await?;
        databases.drop_slot(RUN_SLOT).await?;
        self.check(contestant).await?;
        Ok(Measured::new(contestant, seconds, extra))
    }

    /// The target as the source was before the backlog, with nothing left of the run before, and nothing left to write.
    async fn reset(&self) -> Result<()> {
        let target = &self.databases.target;
        for sql in ["TRUNCATE bench_marker", "DROP SCHEMA IF EXISTS pgonce CASCADE"] {
            target.batch_execute(sql).await?;
        }
        for sql in self.workload.reset() {
            target.batch_execute(sql).await?;
        }
        target.batch_execute("CHECKPOINT").await?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok(())
    }

    /// A time counts only if everything has arrived.
    async fn check(&self, contestant: Contestant) -> Result<()> {
        let target = &self.databases.target;
        let rows: i64 = target.query_one(self.workload.rows(), &[]).await?.get(0);
        let who = format!("{} ({})", contestant.name(), contestant.mode());
        ensure!(
            u64::try_from(rows) == Ok(self.transactions),
            "{who} left {rows} rows instead of {}",
            self.transactions
        );
        let fingerprint: String = target.query_one(self.workload.fingerprint(), &[]).await?.get(0);
        ensure!(fingerprint == self.fingerprint, "{who} left other content than the source has");
        Ok(())
    }

    /// Removes it.
    pub async fn finish(self, stand: &Stand) -> Result<()> {
        stand.drop_databases(self.databases).await
    }

    /// Its databases.
    pub fn databases(&self) -> &Databases {
        &self.databases
    }

    /// How many transactions it has, without the marker's.
    pub fn transactions(&self) -> u64 {
        self.transactions
    }

    /// How many changes of rows it has, without the marker's.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Everything but the marker committed before this LSN, the marker behind it.
    pub fn marker(&self) -> &str {
        &self.marker
    }
}
