//! The workloads, one file each.
//!
//! `w2`, `w4u`, `w4d`, `copy` and `verify` are names kept for what is still to come: one large transaction of inserts,
//! updates or deletes is a [`CatchUp`] of its own and one more line in [`Workload::catch_up`]; a copy and a comparison
//! get a function beside [`latency::run`].

pub mod catch_up;
pub mod idle;
pub mod latency;
mod w1;
mod w3;

use clap::ValueEnum;

pub use catch_up::CatchUp;

/// What is measured.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// Catch-up: 200,000 transactions of one row
    W1,
    /// Catch-up: pgbench's TPC-B, 60,000 transactions of four connections
    W3,
    /// Commit to visible at 200 transactions a second
    Latency,
    /// Processor time of 20 idle seconds
    Idle,
}

impl Workload {
    /// Its name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Workload::W1 => "w1",
            Workload::W3 => "w3",
            Workload::Latency => "latency",
            Workload::Idle => "idle",
        }
    }

    /// The backlog to catch up with, if that is what is measured.
    pub fn catch_up(self) -> Option<&'static dyn CatchUp> {
        match self {
            Workload::W1 => Some(&w1::W1),
            Workload::W3 => Some(&w3::W3),
            Workload::Latency | Workload::Idle => None,
        }
    }

    /// The unit of its figures.
    pub fn unit(self) -> &'static str {
        match self {
            Workload::W1 | Workload::W3 | Workload::Idle => "s",
            Workload::Latency => "ms",
        }
    }

    /// Whether it is measured with `synchronous_commit = on` too.
    pub fn has_synchronous(self) -> bool {
        self.catch_up().is_some()
    }
}
