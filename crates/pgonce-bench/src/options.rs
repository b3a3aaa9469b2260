//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

use crate::drain::Task;
use crate::workload::Workload;

/// Measures pgonce against native logical replication, on the same two throwaway clusters in the same run.
#[derive(Parser, Clone, Debug)]
#[command(version)]
pub struct Options {
    #[command(subcommand)]
    pub inner: Option<Inner>,
    /// Workloads to measure; all of them if none is named
    #[arg(long, value_enum, value_delimiter = ',')]
    pub workload: Vec<Workload>,
    /// PostgreSQL majors, for both clusters of a pair
    #[arg(long, value_name = "MAJORS", value_delimiter = ',', env = "PGONCE_BENCH_PG", default_value = "15")]
    pub postgres: Vec<u32>,
    /// Who takes part
    #[arg(long, value_enum, value_delimiter = ',', default_value = "native,pgonce,pgonce-sync")]
    pub contestants: Vec<Party>,
    /// Interleaved runs of each contestant
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Divides the size of every workload, to try things out
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub scale_div: u32,
    /// No run begins after this many minutes; what is missing is made up for by the next start
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub minutes: u64,
    /// Measure again what was measured at this commit
    #[arg(long)]
    pub fresh: bool,
    /// Only merge and print what was measured at this commit
    #[arg(long)]
    pub report: bool,
    /// The program to measure
    #[arg(long, value_name = "PROGRAM", default_value = "target/release/pgonce")]
    pub pgonce: PathBuf,
    /// Where results go
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    pub output: PathBuf,
}

/// What the program starts itself with.
#[derive(Subcommand, Clone, Debug)]
pub enum Inner {
    /// Reads a slot up to a marker and prints how long that took
    #[command(hide = true)]
    Drain(Task),
}

/// Whom a run may leave out.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Party {
    /// The peers: a native subscription in each of its modes; of a copy also bare pipes and pgcopydb; of `receive` the
    /// ideal reader
    Native,
    /// `pgonce run`, slot to target; of `receive` and `decode` its library
    Pgonce,
    /// The same with synchronous_commit=on, beside a native subscription with it
    PgonceSync,
}

impl Options {
    /// The workloads to measure.
    pub fn workloads(&self) -> Vec<Workload> {
        let named = if self.workload.is_empty() { Workload::value_variants() } else { &self.workload };
        let mut all = Vec::new();
        for workload in named.iter().flat_map(|workload| workload.parts()) {
            if !all.contains(&workload) {
                all.push(workload);
            }
        }
        all
    }

    /// Whether a party takes part.
    pub fn has(&self, party: Party) -> bool {
        self.contestants.contains(&party)
    }

    /// How long runs may begin.
    pub fn budget(&self) -> Duration {
        Duration::from_secs(self.minutes * 60)
    }
}
