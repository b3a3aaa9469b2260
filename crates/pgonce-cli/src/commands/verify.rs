//! `pgonce verify`: whether the target holds what the source holds.

use std::time::Duration;

use clap::Args;

use super::block_on;
use crate::config;
use crate::config::flags::FlowOptions;
use crate::failure::Failure;
use crate::output::Output;
use crate::verify::{self, Shown, VerifyOptions};

/// Arguments of `pgonce verify`.
#[derive(Args, Debug)]
pub struct VerifyArguments {
    /// Compare this table only, written as schema.table; can be given again
    #[arg(long, value_name = "TABLE")]
    pub table: Vec<String>,
    /// How long a flow that runs may take to reach the source's write position, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub wait: u64,
    /// Name the rows that differ by their keys
    #[arg(long)]
    pub show_keys: bool,
    /// Show keys and values of the rows that differ
    #[arg(long)]
    pub show_values: bool,
    /// The flow
    #[command(flatten)]
    pub options: FlowOptions,
}

/// Compares, and reports. The exit status is that of the verdict.
///
/// # Errors
///
/// The configuration is not valid, or a connection cannot be made or broke.
pub fn execute(arguments: &VerifyArguments, output: Output) -> Result<u8, Failure> {
    let config = config::load(&arguments.options)?;
    let options = VerifyOptions {
        tables: arguments.table.clone(),
        jobs: config.jobs,
        wait: Duration::from_secs(arguments.wait),
        shown: Shown { keys: arguments.show_keys || arguments.show_values, values: arguments.show_values },
    };
    let report = block_on(verify::verify(&config, &options))?;
    match output.is_json() {
        true => output.object(&serde_json::to_value(&report).map_err(|e| {
            Failure::from(pgonce::stop::Stop::internal(format!("the report cannot be written as JSON: {e}")))
        })?),
        false => verify::write(&report, output),
    }
    Ok(report.verdict.exit_status())
}
