//! The PostgreSQL target of pgonce: changes, dedup records and checkpoint in one commit.
//!
//! [`PostgresTarget`] is the [`Sink`](pgonce::sink::Sink); it keeps its state in the schema `pgonce` of the target
//! ([`LEDGER_SQL`]). [`read_status`], [`list_flows`] and [`remove_flow`] are for commands that look at that state.

mod copy_target;
mod failure;
mod inflight;
mod ledger;
mod load;
mod plan;
mod prepared;
mod run;
mod schema;
mod scope;
mod session;
mod settings;
mod statement;
mod status;
mod target;
mod value;
mod write;

pub use ledger::{LEDGER_SQL, LEDGER_VERSION};
pub use load::PostgresLoader;
pub use settings::{SynchronousCommit, TargetSettings};
pub use status::{CopiedTable, FlowPhase, FlowStatus, StoredStop, list_flows, read_status, remove_flow};
pub use target::{PostgresTarget, TargetReport};
