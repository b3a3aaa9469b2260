//! The workloads, one file each.
//!
//! `w2`, `w4u`, `w4d` and `verify` are names kept for what is still to come: one large transaction of inserts, updates
//! or
//! deletes is a [`CatchUp`] of its own and one more line in [`Workload::catch_up`]; a comparison gets a function beside
//! [`latency::run`].

pub mod catch_up;
pub mod copy;
pub mod idle;
pub mod latency;
mod w1;
mod w3;

use clap::ValueEnum;

pub use catch_up::CatchUp;
use copy::Begin;

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
    /// The copy of 5,000,000 rows and 20 small tables into an empty database
    Copy,
    /// The same into tables that are there, with their keys
    CopyKeys,
}

impl Workload {
    /// Its name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Workload::W1 => "w1",
            Workload::W3 => "w3",
            Workload::Latency => "latency",
            Workload::Idle => "idle",
            Workload::Copy => "copy",
            Workload::CopyKeys => "copy-keys",
        }
    }

    /// The backlog to catch up with, if that is what is measured.
    pub fn catch_up(self) -> Option<&'static dyn CatchUp> {
        match self {
            Workload::W1 => Some(&w1::W1),
            Workload::W3 => Some(&w3::W3),
            Workload::Latency | Workload::Idle | Workload::Copy | Workload::CopyKeys => None,
        }
    }

    /// What the target has before the copy, if a copy is what is measured.
    pub fn copy(self) -> Option<Begin> {
        match self {
            Workload::Copy => Some(Begin::Empty),
            Workload::CopyKeys => Some(Begin::Keys),
            _ => None,
        }
    }

    /// The unit of its figures.
    pub fn unit(self) -> &'static str {
        match self {
            Workload::Latency => "ms",
            _ => "s",
        }
    }

    /// Whether it is measured with `synchronous_commit = on` too.
    pub fn has_synchronous(self) -> bool {
        self.catch_up().is_some()
    }
}
