//! The PostgreSQL target of pgonce: changes, dedup records and checkpoint in one commit.
//!
//! [`PostgresTarget`] is the [`Destination`](pgonce::destination::Destination); it keeps its state in the schema
//! `pgonce` of the target
//! ([`LEDGER_SQL`]). [`read_status`], [`list_flows`], [`writers`] and [`remove_flow`] are for commands that look at
//! that state.

mod context;
mod copy_target;
mod failure;
mod inflight;
mod ledger;
mod load;
mod map;
mod names;
mod plan;
mod prepared;
mod run;
mod schema;
mod schema_copy;
mod scope;
mod sequences;
mod session;
mod settings;
mod statement;
mod status;
mod target;
mod value;
mod write;

pub use ledger::{LEDGER_SQL, LEDGER_VERSION, writers};
pub use load::PostgresLoader;
pub use map::{MapError, TableMap, TableName};
pub use schema_copy::SchemaCopy;
pub use sequences::{Position, Sequence, Sequences, Standing};
pub use settings::{ShownKey, SynchronousCommit, TargetSettings};
pub use status::{
    CopiedTable, CopyingTable, FlowPhase, FlowStatus, StoredStop, list_flows, read_status, remove_flow,
    replace_published,
};
pub use target::{PostgresTarget, TargetReport};
