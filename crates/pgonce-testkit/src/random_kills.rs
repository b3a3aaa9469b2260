//! Random kills of a running flow, and of the servers that it runs between.

use std::ops::{Deref, DerefMut};
use std::process::Child;
use std::time::Duration;

use crate::kill::Killed;
use crate::{Cluster, KitError, Random, kill};

/// How long a walsender that was ended may take to go.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a flow may take to end in good order.
const LAST_PATIENCE: Duration = Duration::from_secs(60);

/// Kills, at random and from a seed: the process of a flow (SIGKILL, and started again at once), its walsender, the
/// source and the target (immediate shutdown, and started again). A process that ends by itself is an error: it has to
/// outlive everything but its own end.
#[derive(Debug)]
pub struct RandomKills<'c> {
    /// Where the flow reads.
    pub source: &'c Cluster,
    /// Where it writes.
    pub target: &'c Cluster,
    /// The slot that it reads.
    pub slot: &'c str,
    /// What is hit when.
    pub seed: u64,
    /// How many kills, all together.
    pub wanted: u32,
}

/// What was hit, and how often. Each is proved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// The process of the flow.
    pub process: u32,
    /// The walsender that it read from.
    pub walsender: u32,
    /// The source.
    pub source: u32,
    /// The target.
    pub target: u32,
}

impl Hits {
    /// All of them.
    pub fn all(&self) -> u32 {
        self.process + self.walsender + self.source + self.target
    }
}

impl RandomKills<'_> {
    /// Starts the flow with `start`, kills, and ends it in good order.
    ///
    /// # Errors
    ///
    /// Whatever could not be killed or started, and a process that ended by itself.
    pub async fn run(self, mut start: impl FnMut() -> Result<Child, KitError>) -> Result<Hits, KitError> {
        let mut random = Random::new(self.seed);
        let mut hits = Hits::default();
        let mut process = Guard(start()?);
        while hits.all() < self.wanted {
            tokio::time::sleep(Duration::from_millis(50 + random.below(1_000))).await;
            if let Some(status) = process.try_wait().map_err(KitError::io("looking at the flow"))? {
                return Err(KitError::NotRunning { what: format!("the flow ({status}, after {hits:?})") });
            }
            let pause = Duration::from_millis(random.below(400));
            match random.below(100) {
                0..50 => {
                    let _proof = kill::sigkill(&mut process)?;
                    process = Guard(start()?);
                    hits.process += 1;
                }
                50..75 => {
                    // It may be between two sessions: then there is none.
                    hits.walsender += u32::from(self.end_walsender().await?.is_some());
                }
                75..88 => {
                    let _proof = self.source.stop_immediate().await?;
                    tokio::time::sleep(pause).await;
                    self.source.start().await?;
                    hits.source += 1;
                }
                _ => {
                    let _proof = self.target.stop_immediate().await?;
                    tokio::time::sleep(pause).await;
                    self.target.start().await?;
                    hits.target += 1;
                }
            }
        }
        self.wait_for_reader(&mut process).await?;
        let status = kill::sigterm(&mut process, LAST_PATIENCE).await?;
        match status.success() {
            true => Ok(hits),
            false => Err(KitError::NotRunning { what: format!("the flow, when it was asked to end ({status})") }),
        }
    }

    /// Waits until the slot is read: whatever was hit last has healed.
    async fn wait_for_reader(&self, process: &mut Child) -> Result<(), KitError> {
        let client = self.source.connect("postgres").await?;
        let deadline = tokio::time::Instant::now() + LAST_PATIENCE;
        let sql = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND active";
        loop {
            let read = client.query_one(sql, &[&self.slot]).await.map_err(KitError::sql("looking at the slot"))?;
            if read.get::<_, i64>(0) == 1 {
                return Ok(());
            }
            if let Some(status) = process.try_wait().map_err(KitError::io("looking at the flow"))? {
                return Err(KitError::NotRunning { what: format!("the flow ({status}, after the last kill)") });
            }
            if tokio::time::Instant::now() >= deadline {
                let what = "a flow that reads its slot".to_owned();
                return Err(KitError::Timeout { what, seconds: LAST_PATIENCE.as_secs() });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends the walsender of the slot, if there is one, and waits until it is gone.
    async fn end_walsender(&self) -> Result<Option<Killed>, KitError> {
        let client = self.source.connect("postgres").await?;
        let sql = "SELECT active_pid, pg_terminate_backend(active_pid) FROM pg_replication_slots
                   WHERE slot_name = $1 AND active_pid IS NOT NULL";
        let failed = || KitError::sql("ending a walsender");
        let Some(row) = client.query_opt(sql, &[&self.slot]).await.map_err(failed())? else { return Ok(None) };
        let (pid, signalled): (i32, bool) = (row.get(0), row.get(1));
        if !signalled {
            return Ok(None);
        }
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)";
        while !client.query_one(gone, &[&pid]).await.map_err(failed())?.get::<_, bool>(0) {
            if tokio::time::Instant::now() >= deadline {
                let what = format!("the end of walsender {pid}");
                return Err(KitError::Timeout { what, seconds: PATIENCE.as_secs() });
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(Some(Killed { pid: pid.unsigned_abs(), with_it: 0 }))
    }
}

/// A process that does not outlive the test.
#[derive(Debug)]
struct Guard(Child);

impl Deref for Guard {
    type Target = Child;
    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Guard {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}
