//! `pgonce run`: one flow, from its slot to its target, until it is told to stop.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use pgonce::assemble::SpillSettings;
use pgonce::destination::StartMode;
use pgonce::partitions;
use pgonce::pipeline::{Finished, Pipeline, PipelineOptions, Progress, Until};
use pgonce::position::Lsn;
use pgonce::slot_source::{SlotSettings, SlotSource};
use pgonce::stop::{Side, Stop};
use pgonce_target::{PostgresTarget, SchemaCopy, ShownKey, TargetSettings};
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};

use super::block_on;
use crate::config::flags::FlowOptions;
use crate::config::{self, FlowConfig, Publish, SpillConfig};
use crate::facts;
use crate::failure::Failure;
use crate::lock::DataDir;
use crate::output::{Output, Tone};
use crate::progress::Display;
use crate::render::{Listing, count, counted};
use crate::waits;

/// Exit status of a process that was interrupted twice: 128 and the number of SIGINT, as a shell counts.
const INTERRUPTED: i32 = 130;

/// Arguments of `pgonce run`.
#[derive(Args, Debug)]
pub struct RunArguments {
    /// End with status 0 when everything before this point is durable on the target: `now`, or an LSN as in 16/B374D848
    #[arg(long, value_name = "now|LSN", value_parser = parse_until)]
    pub until: Option<Until>,
    /// What was noted of the partitions of this table (or of this partition) is mended on the target: note it no more
    #[arg(long, value_name = "SCHEMA.TABLE")]
    pub mended: Vec<String>,
    /// Where a change of a row stops the flow because the target has no such row, or more than one, show the row's key
    /// with its values: they are printed, and stored nowhere
    #[arg(long)]
    pub show_keys: bool,
    /// Copy this table again, in place of what the target has of it, while the rest goes on. Again and again for more
    #[arg(long, value_name = "SCHEMA.TABLE")]
    pub reseed: Vec<String>,
    /// The flow
    #[command(flatten)]
    pub options: FlowOptions,
}

fn parse_until(text: &str) -> Result<Until, String> {
    if text == "now" {
        return Ok(Until::Now);
    }
    Lsn::from_str(text).map(Until::At).map_err(|error| format!("neither `now` nor an LSN: {error}"))
}

/// Runs the flow.
///
/// # Errors
///
/// The configuration is not valid, another process runs the flow, or a fault that does not heal by itself.
pub fn execute(arguments: &RunArguments, output: Output) -> Result<(), Failure> {
    let config = config::load(&arguments.options)?;
    let data_dir = DataDir::take(&config.data_dir)?;
    let spill = data_dir.spill()?;
    block_on(async {
        if !arguments.mended.is_empty() {
            mended(&config, &arguments.mended, output).await?;
        }
        run(config, arguments, spill, output).await
    })
}

/// Forgets what was noted of partitions.
async fn mended(config: &FlowConfig, names: &[String], output: Output) -> Result<(), Failure> {
    let flow = config.flow.as_str();
    let target = facts::connect(&config.target.connection, Side::Target).await?;
    let status = pgonce_target::read_status(&target.client, flow).await?;
    let Some(stored) = status.and_then(|status| status.published) else {
        let text = format!("--mended {}: flow {flow} has not begun", names.join(", "));
        return Err(Failure::usage(text, "Leave it out: nothing has been noted yet."));
    };
    let mut published = stored.clone();
    for name in names {
        published = partitions::mended(&published, name).ok_or_else(|| {
            let text = format!("--mended {name}: nothing is noted of a table or partition of this name");
            Failure::usage(text, "`pgonce status` shows what is, with the names: write them as they stand there.")
        })?;
    }
    if !pgonce_target::replace_published(&target.client, flow, &stored, &published).await? {
        let text = format!("--mended: flow {flow} has just been written by another process");
        return Err(Failure::usage(text, "Stop it, then type this again."));
    }
    output.note(&format!("taken as mended: {}", names.join(", ")));
    Ok(())
}

async fn run(config: FlowConfig, arguments: &RunArguments, spill: PathBuf, output: Output) -> Result<(), Failure> {
    let source = SlotSource::new(slot_settings(&config, spill));
    let mut target = target_settings(&config);
    target.show_key = arguments.show_keys.then(ShownKey::default);
    let shown = target.show_key.clone();
    let activity = target.activity.subscribe();
    let sink = PostgresTarget::new(target);
    let mut options = PipelineOptions::new(config.start);
    options.until = arguments.until;
    options.reseed.clone_from(&arguments.reseed);
    options.jobs = NonZeroUsize::new(config.jobs).unwrap_or(NonZeroUsize::MIN);
    if let Some(bytes) = piece_bytes() {
        options.piece_bytes = bytes;
    }
    let mut pipeline = Pipeline::new(source, sink, options);
    introduce(&config, &pipeline.guarantee().to_string(), output);
    let progress = pipeline.progress();
    let (tell, told) = watch::channel(false);
    let (waits, waited_for) = mpsc::unbounded_channel();
    let looking = tokio::spawn(waits::watch(config, progress.clone(), waits));
    let mut display = Display::new(output, activity, waited_for);
    let signals = tokio::spawn(stop_at_signal(Signals::listen()?, tell, output));
    let ended = tokio::select! {
        ended = pipeline.run(told) => ended,
        never = display.follow(progress.clone()) => match never {},
    };
    signals.abort();
    looking.abort();
    let last = progress.borrow().clone();
    display.finish(&last);
    if let Some(key) = shown.and_then(|shown| shown.take()).filter(|_| ended.is_err()) {
        match output.is_json() {
            true => output.event(json!({"event": "row", "key": key})),
            false => output.line(&format!("the row that was looked for: {key}")),
        }
    }
    conclude(ended?, &last, output);
    Ok(())
}

/// An environment variable for tests: tables that are larger than so many bytes are copied in pieces of that size.
const PIECE_BYTES: &str = "PGONCE_PIECE_BYTES";

fn piece_bytes() -> Option<u64> {
    std::env::var(PIECE_BYTES).ok()?.parse().ok()
}

fn slot_settings(config: &FlowConfig, spill: PathBuf) -> SlotSettings {
    let source = &config.source;
    let mut settings = SlotSettings::new(source.connection.clone(), &source.slot, source.publish.names());
    settings.create_publication = match &source.publish {
        Publish::Existing(_) => None,
        Publish::Ours { tables, .. } if tables.is_empty() => Some(vec!["*.*".to_owned()]),
        Publish::Ours { tables, .. } => Some(tables.clone()),
    };
    settings.origin = source.origin;
    settings.streaming = source.streaming;
    let SpillConfig { memory, disk } = config.spill;
    settings.spill = SpillSettings { memory, disk, directory: spill };
    settings
}

fn target_settings(config: &FlowConfig) -> TargetSettings {
    let mut settings = TargetSettings::new(config.flow.as_str(), config.target.connection.clone());
    settings.durability = config.target.synchronous_commit;
    settings.map = config.map.clone();
    settings.sequences_from = Some(config.source.connection.clone());
    settings.schema_copy = config.copy_schema.as_ref().map(|schema| {
        let mut copy = SchemaCopy::new(config.source.connection.clone());
        copy.tools.clone_from(&schema.client_tools);
        copy.privileges = schema.privileges;
        copy.jobs = config.jobs;
        copy
    });
    settings
}

/// Says what is about to run.
fn introduce(config: &FlowConfig, guarantee: &str, output: Output) {
    let (source, target) = (config.source.connection.to_string(), config.target.connection.to_string());
    let publications = config.source.publish.names().join(", ");
    if output.is_json() {
        output.event(json!({
            "event": "started", "version": super::version::VERSION, "pid": std::process::id(),
            "flow": config.flow.as_str(), "source": source, "source_id": config.source.id, "target": target,
            "slot": config.source.slot, "publications": config.source.publish.names(), "jobs": config.jobs,
            "map": config.map.to_string().lines().collect::<Vec<_>>(), "start": start_word(config.start),
            "copy_schema": config.copy_schema.is_some(), "guarantee": guarantee,
            "data_dir": config.data_dir.display().to_string(),
        }));
        return;
    }
    let tables = match &config.source.publish {
        Publish::Existing(_) => String::new(),
        Publish::Ours { tables, .. } if tables.is_empty() => " (every table, where pgonce makes it)".to_owned(),
        Publish::Ours { tables, .. } => format!(" ({}, where pgonce makes it)", tables.join(", ")),
    };
    let mut list = Listing::default();
    list.toned("flow", config.flow.as_str(), Tone::Strong);
    list.pair("source", source);
    if let Some(id) = &config.source.id {
        list.pair("source id", id);
    }
    list.pair("target", target);
    list.pair("slot", &config.source.slot);
    list.pair("publication", format!("{publications}{tables}"));
    for entry in config.map.to_string().lines() {
        list.pair("map", entry);
    }
    let schema = if config.copy_schema.is_some() { ", with the schema" } else { "" };
    list.pair("start", format!("{}{schema}", start_word(config.start)));
    list.pair("guarantee", guarantee);
    list.pair("data directory", config.data_dir.display().to_string());
    list.write(output);
}

/// A start mode as it is configured.
fn start_word(start: StartMode) -> &'static str {
    match start {
        StartMode::Snapshot => "snapshot",
        StartMode::GoForward => "go-forward",
    }
}

/// Says how it ended.
fn conclude(finished: Finished, progress: &Progress, output: Output) {
    let (event, lsn, text) = match finished {
        Finished::Drained(boundary) => {
            let text = format!("drained to {boundary}: everything that committed before it is durable on the target");
            ("drained", Some(boundary.to_string()), text)
        }
        Finished::Stopped => ("stopped", None, "stopped as told: `pgonce run` goes on where this ended".to_owned()),
    };
    if output.is_json() {
        output.event(json!({
            "event": event, "lsn": lsn, "applied": progress.applied, "redelivered": progress.redelivered,
            "changes": progress.changes, "rows_copied": progress.rows_copied,
            "commit_lsn": progress.checkpoint.map(|c| c.commit.to_string()), "exit_status": 0,
        }));
        return;
    }
    output.line(&output.tone(Tone::Good, &text));
    let mut parts = vec![
        format!("{} applied", counted(progress.applied, "transaction", "transactions")),
        counted(progress.changes, "change", "changes"),
    ];
    if progress.redelivered > 0 {
        parts.push(format!("{} redelivered and skipped", count(progress.redelivered)));
    }
    if progress.rows_copied > 0 {
        parts.push(format!("{} copied", counted(progress.rows_copied, "row", "rows")));
    }
    if let Some(checkpoint) = progress.checkpoint {
        parts.push(format!("checkpoint {}", checkpoint.commit));
    }
    output.line(&parts.join(", "));
}

/// The signals that end a run.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> Result<Signals, Failure> {
        let listen =
            |kind| signal(kind).map_err(|e| Failure::from(Stop::internal(format!("cannot listen for signals: {e}"))));
        Ok(Signals { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }
}

/// The first signal ends the run in good order. Another SIGINT ends the process at once, which is safe and may roll a
/// write back.
async fn stop_at_signal(mut signals: Signals, tell: watch::Sender<bool>, output: Output) {
    tokio::select! {
        _ = signals.interrupt.recv() => output.note("stopping; interrupt again to stop at once"),
        _ = signals.terminate.recv() => {}
    }
    tell.send_replace(true);
    signals.interrupt.recv().await;
    std::process::exit(INTERRUPTED);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_position_is_now_or_an_lsn() {
        assert_eq!(parse_until("now"), Ok(Until::Now));
        assert_eq!(parse_until("1/A"), Ok(Until::At(Lsn(0x1_0000_000A))));
        assert!(parse_until("later").unwrap_err().starts_with("neither `now` nor an LSN"));
    }
}
