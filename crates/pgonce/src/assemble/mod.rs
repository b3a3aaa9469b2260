//! From pgoutput messages to whole committed transactions.

mod assembler;
mod spill;

pub use assembler::{AssembleError, Assembled, Assembler};
pub(crate) use spill::Reader;
pub use spill::{Body, SpillSettings};
