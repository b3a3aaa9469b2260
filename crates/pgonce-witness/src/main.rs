//! A library flow as a process of its own, for tests that kill it: a sink of a program's own writes into a target
//! database, in each of the ways in which a flow's state can be kept.

mod sink;

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use pgonce::assemble::SpillSettings;
use pgonce::checkpoint_store::{FileStore, PostgresStore};
use pgonce::connect::{ConnectionSettings, Environment};
use pgonce::destination::{Destination, StartMode};
use pgonce::kept::Kept;
use pgonce::pipeline::{GroupLimits, Pipeline, PipelineOptions, Until};
use pgonce::slot_source::{SlotSettings, SlotSource};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::sink::Target;

/// Carries one publication into the tables of the same names of a target, from where the slot is.
#[derive(Debug, Parser)]
struct Arguments {
    /// Where the flow's state goes.
    #[arg(long, value_enum)]
    keep: Keep,
    /// The source's connection string.
    #[arg(long)]
    source: String,
    /// The target's connection string.
    #[arg(long)]
    target: String,
    /// The slot. It is made if it does not exist.
    #[arg(long)]
    slot: String,
    /// The publication.
    #[arg(long)]
    publication: String,
    /// Where the checkpoint store is: a directory (file), or a connection string (postgres).
    #[arg(long, required_if_eq_any = [("keep", "file"), ("keep", "postgres")])]
    store: Option<String>,
    /// Transactions in a batch at most; 1 is delivery per transaction.
    #[arg(long, default_value_t = 2_000)]
    batch: usize,
    /// How long a transaction may wait for others.
    #[arg(long, default_value_t = 0)]
    delay_ms: u64,
    /// How long the sink takes for each write, with its statements sent and nothing committed.
    #[arg(long, default_value_t = 0)]
    write_ms: u64,
    /// How often an idle position is stored.
    #[arg(long, default_value_t = 200)]
    idle_ms: u64,
    /// Where transactions go that do not fit into memory. The system's directory for temporary files without it.
    #[arg(long)]
    spill: Option<PathBuf>,
    /// Ends when everything that is committed now has been written.
    #[arg(long)]
    until_now: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Keep {
    /// In the target, in one transaction with the data: effect-once.
    Atomic,
    /// In a directory, behind the data: at-least-once.
    File,
    /// In a PostgreSQL database, behind the data: at-least-once.
    Postgres,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(status) => status,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::from(2)
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let target = Target::new(connection(&arguments.target)?, Duration::from_millis(arguments.write_ms));
    let store = arguments.store.as_deref().unwrap_or_default();
    match arguments.keep {
        Keep::Atomic => flow(Kept::effect_once("witness", target), &arguments).await,
        Keep::File => flow(Kept::at_least_once("witness", target, FileStore::new(store)), &arguments).await,
        Keep::Postgres => {
            let store = PostgresStore::new(connection(store)?);
            flow(Kept::at_least_once("witness", target, store), &arguments).await
        }
    }
}

async fn flow(destination: impl Destination, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let publications = vec![arguments.publication.clone()];
    let mut settings = SlotSettings::new(connection(&arguments.source)?, &arguments.slot, publications);
    if let Some(directory) = &arguments.spill {
        settings.spill = SpillSettings { directory: directory.clone(), ..SpillSettings::default() };
    }
    let mut options = PipelineOptions::new(StartMode::GoForward);
    options.until = arguments.until_now.then_some(Until::Now);
    let delay = Duration::from_millis(arguments.delay_ms);
    options.group = GroupLimits { transactions: arguments.batch, delay, ..GroupLimits::default() };
    options.idle_interval = Duration::from_millis(arguments.idle_ms);
    options.backoff_max = Duration::from_secs(1);
    let mut pipeline = Pipeline::new(SlotSource::new(settings), destination, options);
    say("guarantee", pipeline.guarantee());
    tell_of_faults(pipeline.progress());
    match pipeline.run(told_to_stop()?).await {
        Ok(finished) => {
            say("finished", format!("{finished:?}"));
            Ok(ExitCode::SUCCESS)
        }
        Err(stop) => {
            say(stop.code(), &stop);
            Ok(ExitCode::from(stop.exit_status()))
        }
    }
}

fn connection(text: &str) -> anyhow::Result<ConnectionSettings> {
    Ok(ConnectionSettings::parse(text, &Environment::process())?)
}

/// One line for each thing that happens.
fn say(what: &str, words: impl Display) {
    eprintln!("{}", json!({"what": what, "words": words.to_string()}));
}

/// Says which faults are waited out.
fn tell_of_faults(mut progress: watch::Receiver<pgonce::pipeline::Progress>) {
    tokio::spawn(async move {
        let mut told = None;
        while progress.changed().await.is_ok() {
            let fault = progress.borrow_and_update().fault.clone().map(|(stop, _)| stop);
            if fault != told
                && let Some(stop) = &fault
            {
                say(stop.code(), format!("waiting: {stop}"));
            }
            told = fault;
        }
    });
}

/// Becomes true with SIGTERM.
fn told_to_stop() -> anyhow::Result<watch::Receiver<bool>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let (tell, told) = watch::channel(false);
    tokio::spawn(async move {
        terminate.recv().await;
        tell.send_replace(true);
        tell.closed().await;
    });
    Ok(told)
}
