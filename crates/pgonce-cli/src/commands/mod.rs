//! The commands, one file each.

pub mod check;
pub mod completions;
pub mod config;
pub mod demo;
pub mod init;
pub mod man;
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
    if command.flow_options().is_some() {
        warn_of_variables(output);
    }
    match command {
        Command::Init(arguments) => init::execute(&arguments, output)?,
        Command::Check(arguments) => return check::execute(&arguments, output),
        Command::Run(arguments) => run::execute(&arguments, output)?,
        Command::Status(arguments) => return status::execute(&arguments, output),
        Command::Verify(arguments) => return verify::execute(&arguments, output),
        Command::Sequences(arguments) => sequences::execute(&arguments, output)?,
        Command::Reset(arguments) => reset::execute(&arguments, output)?,
        Command::Demo(arguments) => return demo::execute(&arguments, output),
        Command::Config(arguments) => return config::execute(&arguments, output),
        Command::Completions(arguments) => completions::execute(&arguments, output),
        Command::Man(arguments) => man::execute(&arguments, output)?,
        Command::Version(_) => version::execute(output),
    }
    Ok(0)
}

/// Names variables that look like a key's and are none. Standard output stays as it is.
fn warn_of_variables(output: Output) {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for warning in crate::config::variables::warnings(names) {
        match output.is_json() {
            true => tracing::warn!("{warning}"),
            false => output.note(&format!("warning: {warning}")),
        }
    }
}

/// Runs a future to its end.
fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Failure::file(std::path::Path::new("the runtime's threads"), &e))?;
    runtime.block_on(future)
}
