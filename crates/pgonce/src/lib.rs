//! PostgreSQL changes, delivered at least once, applied exactly once in effect, and provably so.
#![warn(missing_docs)]

pub mod assemble;
mod attestation;
pub mod board;
pub mod catalog;
pub mod checkpoint_store;
pub mod connect;
mod copied;
mod copy;
mod copy_text;
mod cut;
mod described;
pub mod destination;
pub mod flow;
pub mod frontier;
pub mod group;
pub mod guarantee;
pub mod ident;
mod join;
pub mod kept;
mod long_names;
pub mod partitions;
pub mod pgoutput;
pub mod piece;
pub mod pipeline;
pub mod position;
pub mod published;
pub mod relation;
pub mod replication;
mod resume;
mod row_count;

pub mod sink;
pub mod slot_source;
pub mod snapshot;
pub mod source;
pub mod sql_error;
pub mod stop;
pub mod transaction;
