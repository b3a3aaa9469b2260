//! The commands, one file each.

pub mod demo;
pub mod init;
pub mod reset;
pub mod run;
pub mod sequences;
pub mod status;
pub mod verify;
pub mod version;

use std::future::Future;

use crate::arguments::Command;
use crate::failure::Failure;
use crate::output::Output;

/// Runs a command. Returns the exit status of one that has reported all there is to report.
///
/// # Errors
///
/// What is yet to be reported.
pub fn execute(command: Command, output: Output) -> Result<u8, Failure> {
    match command {
        Command::Init(arguments) => init::execute(&arguments, output)?,
        Command::Run(arguments) => run::execute(&arguments, output)?,
        Command::Status(arguments) => return status::execute(&arguments, output),
        Command::Verify(arguments) => return verify::execute(&arguments, output),
        Command::Sequences(arguments) => sequences::execute(&arguments, output)?,
        Command::Reset(arguments) => reset::execute(&arguments, output)?,
        Command::Demo(arguments) => return demo::execute(&arguments, output),
        Command::Version(_) => version::execute(output),
    }
    Ok(0)
}

/// Runs a future to its end.
fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Failure::file(std::path::Path::new("the runtime's threads"), &e))?;
    runtime.block_on(future)
}
