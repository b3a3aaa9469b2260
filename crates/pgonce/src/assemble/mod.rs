//! From pgoutput messages to whole committed transactions.

mod assembler;
mod spill;

pub use assembler::{Assembled, Assembler, AssembleError};
pub(crate) use spill::Reader;
pub use spill::{Body, SpillSettings};
