//! What a flow costs that has nothing to do.

use std::time::Duration;

use anyhow::Result;

use super::latency::{self, SLOT};
use crate::contestant::Contestant;
use crate::measure::{Bench, Measured};
use crate::sample::cpu_seconds;
use crate::stand::{Databases, foreign_backends};

/// How long nothing happens.
const SECONDS: u32 = 20;

/// How long the flow has after its first row to come to rest.
const REST: Duration = Duration::from_secs(2);

/// Measures one contestant: the processor time of `pgonce run`, or of the subscription's worker, in [`SECONDS`]. That
/// of its backends on the source and on the target is beside it.
pub async fn run(bench: &Bench<'_>, databases: &Databases, contestant: Contestant) -> Result<Measured> {
    let mut running = latency::start(bench, databases, contestant).await?;
    tokio::time::sleep(REST).await;
    let (source, target) = bench.stand.watchers(databases).await?;
    let at_source = foreign_backends(&source).await?;
    let at_target = foreign_backends(&target).await?;
    let sum = |pids: &[u32]| pids.iter().filter_map(|pid| cpu_seconds(*pid)).sum::<f64>();
    let used = || [sum(&at_source), sum(&at_target), running.pid().and_then(cpu_seconds).unwrap_or(0.0)];
    let before = used();
    tokio::time::sleep(Duration::from_secs(u64::from(SECONDS))).await;
    let after = used();
    running.check()?;
    let own = running.pid().is_some();
    running.stop(databases).await?;
    databases.drop_slot(SLOT).await?;
    let [at_source, at_target, process] = std::array::from_fn(|at| ((after[at] - before[at]) * 100.0).round() / 100.0);
    let value = if own { process } else { at_target };
    let extra = [("cpu_source", at_source), ("cpu_target", at_target), ("seconds", f64::from(SECONDS))];
    Ok(Measured::new(contestant, value, extra.map(|(name, value)| (name.to_owned(), value)).into()))
}
