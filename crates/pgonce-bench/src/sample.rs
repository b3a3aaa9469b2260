//! What a run costs: processor time and memory of the processes of a contestant, from `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::Result;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::stand::foreign_backends;

/// Clock ticks in a second, as `/proc` counts them on every Linux.
const TICKS: f64 = 100.0;

const PAUSE: Duration = Duration::from_millis(20);

/// How many pauses lie between two looks for new backends.
const LOOK_EVERY: u32 = 4;

/// Watches a run until it is told to end.
#[derive(Debug)]
pub struct Sampler {
    end: oneshot::Sender<()>,
    task: JoinHandle<BTreeMap<String, f64>>,
}

/// The last and the highest figures of a process.
#[derive(Debug, Default)]
struct Seen {
    whose: &'static str,
    cpu: f64,
    rss_mb: f64,
}

impl Sampler {
    /// Watches every backend in the databases that is not the benchmark's own, and `process` if the contestant is one.
    pub fn start(source: Client, target: Client, process: Option<u32>) -> Sampler {
        let (end, mut ended) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut seen = BTreeMap::new();
            if let Some(pid) = process {
                add(&mut seen, pid, "process");
            }
            for round in 0_u32.. {
                if round % LOOK_EVERY == 0 {
                    for (whose, client) in [("source", &source), ("target", &target)] {
                        for pid in foreign_backends(client).await.unwrap_or_default() {
                            add(&mut seen, pid, whose);
                        }
                    }
                }
                sample(&mut seen);
                if tokio::time::timeout(PAUSE, &mut ended).await.is_ok() {
                    sample(&mut seen);
                    break;
                }
            }
            summary(&seen)
        });
        Sampler { end, task }
    }

    /// Ends, and returns `cpu_*` in seconds and `rss_mb_*` in MB, each for `source` and `target` (backends) and
    /// `process`.
    pub async fn finish(self) -> Result<BTreeMap<String, f64>> {
        // The other end is gone only if the task has failed, which the next line shows.
        let _ = self.end.send(());
        Ok(self.task.await?)
    }
}

fn add(seen: &mut BTreeMap<u32, Seen>, pid: u32, whose: &'static str) {
    // Every run has processes of its own, so that all they have used belongs to it.
    seen.entry(pid).or_insert_with(|| Seen { whose, ..Seen::default() });
}

fn sample(seen: &mut BTreeMap<u32, Seen>) {
    for (pid, process) in seen {
        // The last figures of a process that has ended stand.
        if let Some(cpu) = cpu_seconds(*pid) {
            process.cpu = cpu;
        }
        if let Some(rss) = rss_mb(*pid, process.whose == "process") {
            process.rss_mb = process.rss_mb.max(rss);
        }
    }
}

fn summary(seen: &BTreeMap<u32, Seen>) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for process in seen.values() {
        *sums.entry(format!("cpu_{}", process.whose)).or_insert(0.0) += process.cpu;
        let rss = sums.entry(format!("rss_mb_{}", process.whose)).or_insert(0.0_f64);
        *rss = rss.max(process.rss_mb);
    }
    sums.iter_mut().for_each(|(_, value)| *value = (*value * 100.0).round() / 100.0);
    sums
}

/// The processor time that a process has used, in user and in system mode.
pub fn cpu_seconds(pid: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name stands in parentheses and may hold anything; fields are counted from behind it.
    let mut fields = text.get(text.rfind(')')? + 1..)?.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS)
}

/// The memory of a process: all of it at its peak, or the part that is not shared, which is what counts of a backend.
fn rss_mb(pid: u32, peak: bool) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let name = if peak { "VmHWM:" } else { "RssAnon:" };
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<f64>().ok()? / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_processor_time() {
        let pid = std::process::id();
        assert!(rss_mb(pid, true).unwrap() > 0.5);
        assert!(cpu_seconds(pid).unwrap() >= 0.0);
        assert_eq!(cpu_seconds(u32::MAX), None);
    }
}
