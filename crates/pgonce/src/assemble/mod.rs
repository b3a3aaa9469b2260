//! From pgoutput messages to whole committed transactions.

mod assembler;
mod body;
mod budget;
mod error;
mod file;
mod open;
mod prepared;
mod spool;
#[cfg(test)]
mod tests;

pub use assembler::{Assembled, Assembler};
pub use body::Body;
pub(crate) use body::Reader;
pub use budget::SpillSettings;
pub use error::AssembleError;
pub(crate) use file::prepare_directory;
pub use prepared::{CommitPrepared, PreparedTransaction, RollbackPrepared, TwoPhase};
