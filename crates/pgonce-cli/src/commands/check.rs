//! `pgonce check`: what stands in the way of a flow. Reads, and changes nothing.

use std::path::PathBuf;

use clap::Args;

use super::block_on;
use crate::check;
use crate::config::flags::FlowOptions;
use crate::config::part;
use crate::failure::Failure;
use crate::output::Output;

/// Arguments of `pgonce check`.
#[derive(Args, Debug)]
pub struct CheckArguments {
    /// Show what is in order too, and cut no list short
    #[arg(long)]
    pub all: bool,
    /// Write the report as a page to this file, too
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// The flow, as far as it is known: --source alone is enough
    #[command(flatten)]
    pub options: FlowOptions,
}

/// Reports. The exit status is 0 without a problem.
///
/// # Errors
///
/// The configuration is not valid, or the page cannot be written.
pub fn execute(arguments: &CheckArguments, output: Output) -> Result<u8, Failure> {
    let part = part::load(&arguments.options)?;
    if part.source.is_none() && part.target.is_none() {
        let hint = "Give --source URL, --target URL, or both; or the file that `pgonce init` writes, with --config.";
        return Err(Failure::usage("there is no database to check", hint));
    }
    let report = block_on(async { Ok(check::check(&part).await) })?;
    match output.is_json() {
        true => output.object(&report.object()),
        false => report.write(output, arguments.all),
    }
    if let Some(path) = &arguments.html {
        std::fs::write(path, report.html()).map_err(|error| Failure::file(path, &error))?;
        output.note(&format!("The page is {}.", path.display()));
    }
    Ok(report.exit_status())
}
