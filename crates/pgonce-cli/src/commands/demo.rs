//! `pgonce demo`: two throwaway clusters, a load, kills, and the proof that nothing was lost or applied twice.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;

use super::block_on;
use crate::config::flags::FormatOption;
use crate::demo::{self, DemoOptions};
use crate::failure::Failure;
use crate::output::Output;

/// Arguments of `pgonce demo`.
#[derive(Args, Debug)]
pub struct DemoArguments {
    /// How long the load runs, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(2..=3600))]
    pub seconds: u64,
    /// How often `pgonce run` is killed with SIGKILL; five times at least
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(5..=1000))]
    pub kills: u32,
    /// Decides what the load does and when is killed [default: another one each time, which is printed]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// The PostgreSQL major to run [default: the newest that is installed]
    #[arg(long, value_name = "MAJOR")]
    pub pg: Option<u32>,
    /// Directory for the configuration, the flow's log and the report
    #[arg(long, value_name = "DIR", default_value = demo::DIRECTORY)]
    pub dir: PathBuf,
    /// Leave both clusters running, and say how to look around and how to stop them
    #[arg(long)]
    pub keep: bool,
    /// Stop and remove the clusters that an earlier --keep left
    #[arg(long, conflicts_with_all = ["keep", "seconds", "kills", "seed", "pg"])]
    pub stop: bool,
    /// How to report
    #[command(flatten)]
    pub format: FormatOption,
}

/// Runs the demonstration. Status 0 says that nothing was lost or applied twice, 1 that something was.
///
/// # Errors
///
/// It could not be run to its end.
pub fn execute(arguments: &DemoArguments, output: Output) -> Result<u8, Failure> {
    if arguments.stop {
        demo::stop(&arguments.dir, output)?;
        return Ok(0);
    }
    let options = DemoOptions {
        load: Duration::from_secs(arguments.seconds),
        kills: arguments.kills,
        seed: arguments.seed.unwrap_or_else(any_seed),
        major: arguments.pg,
        directory: arguments.dir.clone(),
        keep: arguments.keep,
    };
    block_on(demo::run(&options, output))
}

/// Some number that is easily typed again.
fn any_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(since.subsec_nanos() / 1000) ^ (since.as_secs() & 0xF_FFFF)
}
