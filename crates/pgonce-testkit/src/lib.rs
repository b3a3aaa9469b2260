//! What the tests, the benchmarks and the demonstration of pgonce run on.
//!
//! - [`Cluster`]: throwaway PostgreSQL clusters of any installed major, which can be stopped, killed and started again.
//! - [`Proxy`]: a TCP proxy that injects faults.
//! - [`kill`]: process killing that proves that it killed.
//! - [`RandomKills`]: kills of a running flow and of the servers that it runs between, from a seed.
//! - [`DataCopy`]: clusters that go back in time.
//! - [`memory`]: how much of it a process takes, and a limit that holds.
//! - [`witness`]: two tables that show any transaction lost or applied twice.
//! - [`Workload`]: seeded random transactions on the witness tables, which survive the source's crashes.
//! - [`random_schema`]: tables, rows and transactions of every kind, generated from a seed.
//! - [`pgbench`]: pgbench's tables and transaction, without the program.
//!
//! A server that is missing and a kill that hit nothing are errors, never a reason to skip.

mod cluster;
mod data_copy;
mod error;
mod ident;
mod installation;
pub mod kill;
pub mod memory;
pub mod pgbench;
mod process;
mod proxy;
mod random;
mod random_kills;
pub mod random_schema;
mod settings;
mod sweep;
mod template;
mod tls;
pub mod witness;
mod workload;

pub use cluster::Cluster;
pub use data_copy::DataCopy;
pub use error::KitError;
pub use installation::{Installation, installed_majors, majors};
pub use kill::{KillCount, Killed};
pub use proxy::{Direction, Ending, Proxy, Traffic};
pub use random::Random;
pub use random_kills::{Hits, RandomKills};
pub use settings::ClusterBuilder;
pub use sweep::remove_kept;
pub use tls::{Curve, TlsFiles};
pub use workload::{Counts, RunningWorkload, Workload};
