//! `pgonce init`: a file to start from, and the SQL for an administrator. Nothing in a database is touched.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::admin_sql;
use crate::config::flags::{DEFAULT_FILE, FlowOptions};
use crate::config::part;
use crate::config::sample::sample;
use crate::failure::Failure;
use crate::output::Output;

/// Arguments of `pgonce init`.
#[derive(Args, Debug)]
pub struct InitArguments {
    /// Write over a file that exists
    #[arg(long, conflicts_with = "sql")]
    pub force: bool,
    /// Print the SQL that an administrator types on one side, or on both, so that the two roles need no more rights
    #[arg(
        long, value_enum, value_name = "SIDE", num_args = 0..=1, require_equals = true, default_missing_value = "both"
    )]
    pub sql: Option<SqlFor>,
    /// The flow
    #[command(flatten)]
    pub options: FlowOptions,
}

/// For which side SQL is printed.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum SqlFor {
    /// For both, one after the other: to read.
    Both,
    /// For the source, as psql takes it.
    Source,
    /// For the target, as psql takes it.
    Target,
}

/// Writes the file, or prints the SQL.
///
/// # Errors
///
/// The file exists or cannot be written; with `--sql`, the configuration is not valid.
pub fn execute(arguments: &InitArguments, output: Output) -> Result<(), Failure> {
    if let Some(wanted) = arguments.sql {
        let part = part::load(&arguments.options)?;
        let source = (wanted != SqlFor::Target).then(|| admin_sql::for_source(&part));
        let target = (wanted != SqlFor::Source).then(|| admin_sql::for_target(&part));
        match output.is_json() {
            true => output.object(&json!({"source_sql": source, "target_sql": target})),
            false => output.line(&source.into_iter().chain(target).collect::<Vec<_>>().join("\n")),
        }
        return Ok(());
    }
    if let Some(given) = arguments.options.keys.0.0.values().flatten().next() {
        let hint = "Write the file first, then edit it; or pass the flags to `pgonce run`, which needs no file.";
        return Err(Failure::usage(format!("{} does not go into the file that init writes", given.place), hint));
    }
    let path = arguments.options.named_file().unwrap_or_else(|| DEFAULT_FILE.into());
    write_sample(&path, arguments.force)?;
    if output.is_json() {
        output.object(&json!({"event": "written", "path": path.display().to_string()}));
    } else {
        output.line(&format!(
            "Wrote {}. Next: set SOURCE_URL and TARGET_URL, edit the file, then type `pgonce run`.",
            path.display()
        ));
    }
    Ok(())
}

fn write_sample(path: &Path, force: bool) -> Result<(), Failure> {
    let mut options = OpenOptions::new();
    options.write(true);
    match force {
        true => options.create(true).truncate(true),
        false => options.create_new(true),
    };
    let written = options.open(path).and_then(|mut file| file.write_all(sample().as_bytes()));
    written.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Failure::usage(
            format!("{} exists", path.display()),
            "It was left as it is. `pgonce init --force` writes over it, --config names another file.",
        ),
        _ => Failure::file(path, &error),
    })
}
