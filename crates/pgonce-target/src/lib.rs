//! The PostgreSQL target of pgonce: changes, dedup records and checkpoint in one commit.
//!
//! [`PostgresTarget`] is the [`Sink`](pgonce::sink::Sink); it keeps its state in the schema `pgonce` of the target
//! ([`LEDGER_SQL`]). [`read_status`], [`list_flows`], [`writers`] and [`remove_flow`] are for commands that look at that state.

mod failure;
mod inflight;
mod ledger;
mod load;
mod plan;
mod prepared;
mod run;
mod schema;
mod session;
mod settings;
mod statement;
mod status;
mod target;
mod value;
mod write;

pub use ledger::{LEDGER_SQL, LEDGER_VERSION, writers};
pub use settings::{ShownKey, SynchronousCommit, TargetSettings};
pub use status::{CopiedTable, FlowPhase, FlowStatus, StoredStop, list_flows, read_status, remove_flow};
pub use target::{PostgresTarget, TargetReport};
