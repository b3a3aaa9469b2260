//! pgonce, the command: reads arguments, runs one command, and turns its outcome into an exit status.

mod admin_sql;
mod arguments;
mod check;
mod commands;
mod config;
mod demo;
mod facts;
mod failure;
mod ledger;
mod lock;
mod output;
mod progress;
mod render;
mod time;
mod verify;
mod waits;
mod watch;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::Arguments;
use crate::config::flags::Format;
use crate::failure::{Failure, INTERNAL, USAGE};
use crate::output::Output;

fn main() -> ExitCode {
    report_panics();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    let output = Output::new(arguments.command.format());
    start_log(output.format);
    match commands::execute(arguments.command, output) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            output.failure(&failure);
            ExitCode::from(failure.exit_status)
        }
    }
}

/// Help and version go to standard output with status 0; what clap refuses is wrong usage.
fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    // The message quotes the arguments, and one of them may be a connection string in the wrong place.
    let plain = error.render().to_string();
    let clean = render::redacted(&plain);
    if clean == plain {
        let _ = error.print();
    } else {
        Output::new(Format::Text).note(clean.trim_end());
    }
    ExitCode::from(USAGE)
}

/// A panic is a defect: it is reported by its place alone, since its message may hold values, and ends the process at
/// once.
fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(|l| format!(" at {}:{}", l.file(), l.line())).unwrap_or_default();
        Output::new(Format::Text).failure(&Failure {
            code: "internal",
            text: format!("internal error{place} in pgonce {}", commands::version::VERSION),
            hint: "This is a defect of pgonce: please report it. Nothing was acknowledged that was not applied; \
                   `pgonce run` takes the flow up where it stopped."
                .to_owned(),
            exit_status: INTERNAL,
        });
        std::process::exit(INTERNAL.into());
    }));
}

/// The log of the libraries goes to standard error, as much of it as `PGONCE_LOG` asks for.
fn start_log(format: Format) {
    use tracing_subscriber::EnvFilter;
    // The pipeline logs each attempt; `run` itself tells of a fault once, when it changes.
    let filter =
        EnvFilter::try_from_env("PGONCE_LOG").unwrap_or_else(|_| EnvFilter::new("warn,pgonce::pipeline=error"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let log = log.with_ansi(Output::new(format).colours_stderr());
    match format {
        Format::Text => log.init(),
        Format::Json => log.json().init(),
    }
}
