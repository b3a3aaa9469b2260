//! The faults of docs/faults.md, on real servers, for a sink of a program's own in both guarantee modes.
//!
//! Flows are processes; each writes both witnesses. In the atomic mode nothing may be missing and nothing twice; where
//! a checkpoint store follows the sink, what comes twice is held against the bound that the guarantee names.

#[path = "../../../pgonce-cli/tests/trip/parts.rs"]
mod parts;
mod stage;

mod appliers;
mod batches;
mod ends;
mod kills;
mod open;
mod positions;
mod size;
mod soak;
mod stores;
