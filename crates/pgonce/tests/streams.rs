//! Large and open transactions, streamed and prepared, from real servers that keep little in memory.

mod common;
#[path = "streams/large.rs"]
mod large;
#[path = "streams/open.rs"]
mod open;
#[path = "streams/support.rs"]
mod support;
#[path = "streams/two_phase.rs"]
mod two_phase;
