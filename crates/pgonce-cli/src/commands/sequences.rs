//! `pgonce sequences`: how the target's sequences stand to the source's, and setting them.

use clap::{Args, Subcommand};
use pgonce::ident::quote_qualified;
use pgonce::stop::{Family, Side};
use pgonce_target::{Position, Sequence, Sequences, Standing};
use serde_json::{Value, json};

use super::block_on;
use crate::config::flags::FlowOptions;
use crate::config::{self, FlowConfig};
use crate::facts;
use crate::failure::Failure;
use crate::output::{Output, Tone};
use crate::render::{Listing, counted};

/// Arguments of `pgonce sequences`.
#[derive(Args, Debug)]
pub struct SequencesArguments {
    /// What to do with them.
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Show each sequence's value on both sides; change nothing
    List(ListArguments),
    /// Set the target's sequences to where the source's are, never backwards
    Sync(SyncArguments),
}

#[derive(Args, Debug)]
struct ListArguments {
    /// The flow
    #[command(flatten)]
    options: FlowOptions,
}

#[derive(Args, Debug)]
struct SyncArguments {
    /// Set also those that are further than the source's: backwards
    #[arg(long)]
    force: bool,
    /// Set them so many steps further than the source's
    #[arg(long, value_name = "N", default_value_t = 0)]
    ahead: u32,
    /// The flow
    #[command(flatten)]
    options: FlowOptions,
}

impl SequencesArguments {
    /// The flow's options.
    pub fn options(&self) -> &FlowOptions {
        match &self.action {
            Action::List(arguments) => &arguments.options,
            Action::Sync(arguments) => &arguments.options,
        }
    }
}

/// Lists or sets the sequences.
///
/// # Errors
///
/// One of the databases cannot be asked, or, where they are to be set, one of them cannot be.
pub fn execute(arguments: &SequencesArguments, output: Output) -> Result<(), Failure> {
    let config = config::load(arguments.options())?;
    block_on(async {
        let source = facts::connect(&config.source.connection, Side::Source).await?;
        let target = facts::connect(&config.target.connection, Side::Target).await?;
        match &arguments.action {
            Action::List(_) => {
                let sequences = Sequences::read(&source.client, &target.client, 0).await?;
                report(&config, &sequences, None, output);
                Ok(())
            }
            Action::Sync(sync) => {
                let mut sequences = Sequences::read(&source.client, &target.client, sync.ahead).await?;
                let set = sequences.set(&target.client, sync.force).await?;
                report(&config, &sequences, Some(set), output);
                refuse_problems(&sequences, &config)
            }
        }
    })
}

/// Where something stands in the way, setting the others was not all that was asked for.
fn refuse_problems(sequences: &Sequences, config: &FlowConfig) -> Result<(), Failure> {
    let problems: Vec<&Sequence> = sequences.list.iter().filter(|s| s.standing.is_problem()).collect();
    let Some(first) = problems.first() else { return Ok(()) };
    let family = if first.standing == Standing::Unreadable { Family::Source } else { Family::Target };
    Err(Failure {
        code: "sequences_not_set",
        text: format!(
            "{} could not be set, {} first: {}",
            counted(problems.len() as u64, "sequence", "sequences"),
            quote_qualified(&first.schema, &first.name),
            words(first.standing)
        ),
        hint: remedy(first, config),
        exit_status: family.exit_status(),
    })
}

fn remedy(sequence: &Sequence, config: &FlowConfig) -> String {
    sequence.remedy(&config.source.connection.user, &config.target.connection.user)
}

fn words(standing: Standing) -> &'static str {
    match standing {
        Standing::Equal => "equal",
        Standing::Behind => "behind",
        Standing::Ahead => "ahead",
        Standing::Missing => "not on the target, though its table is",
        Standing::Absent => "not on the target",
        Standing::Unreadable => "the source's role may not read it",
        Standing::Unsettable => "the target's role may not read and set it",
        Standing::OutOfBounds => "outside of the target's bounds",
    }
}

fn report(config: &FlowConfig, sequences: &Sequences, set: Option<usize>, output: Output) {
    if output.is_json() {
        let list: Vec<Value> = sequences.list.iter().map(|sequence| object(sequence, config)).collect();
        output.object(&json!({
            "event": "sequences", "flow": config.flow.as_str(), "set": set, "sequences": list,
        }));
        return;
    }
    let mut listing = Listing::default();
    for sequence in &sequences.list {
        let label = quote_qualified(&sequence.schema, &sequence.name);
        let tone = match sequence.standing {
            Standing::Equal => Tone::Good,
            Standing::Behind | Standing::Ahead => Tone::Warning,
            Standing::Absent => Tone::Faint,
            _ => Tone::Bad,
        };
        listing.toned(&label, line(sequence), tone);
    }
    listing.write(output);
    let count = |standing| sequences.list.iter().filter(|s| s.standing == standing).count() as u64;
    let all = counted(sequences.list.len() as u64, "sequence", "sequences");
    match set {
        None if count(Standing::Behind) > 0 => {
            output.line(&format!("\n{all}, {} behind. To set them: pgonce sequences sync", count(Standing::Behind)));
        }
        None => output.line(&format!("{all}, none behind")),
        Some(set) => {
            let ahead = match count(Standing::Ahead) {
                0 => String::new(),
                n => format!("; {n} further than the source's, left alone (--force sets them back)"),
            };
            output.line(&format!("{all}, {set} set now{ahead}"));
        }
    }
}

/// Both values and what they mean, in a line.
fn line(sequence: &Sequence) -> String {
    let value = |position: Option<Position>| match position {
        None => "?".to_owned(),
        Some(Position { last, called: true }) => last.to_string(),
        Some(Position { last, called: false }) => format!("{last} (not handed out yet)"),
    };
    let difference = match (sequence.standing, sequence.difference()) {
        (Standing::Behind, Some(steps)) if steps > 0 => format!(", {steps} steps"),
        (Standing::Ahead, Some(steps)) => format!(", {} steps", steps.unsigned_abs()),
        _ => String::new(),
    };
    format!(
        "{} on the source, {} on the target: {}{difference}",
        value(sequence.source),
        value(sequence.target),
        words(sequence.standing)
    )
}

fn object(sequence: &Sequence, config: &FlowConfig) -> Value {
    let position = |position: Option<Position>| position.map(|p| json!({"last_value": p.last, "is_called": p.called}));
    let owner = sequence
        .owner
        .as_ref()
        .map(|(schema, table, column)| json!({"schema": schema, "table": table, "column": column}));
    let difference = sequence.difference().and_then(|steps| i64::try_from(steps).ok());
    let remedy = Some(remedy(sequence, config)).filter(|remedy| !remedy.is_empty());
    json!({
        "schema": sequence.schema, "name": sequence.name, "owned_by": owner, "increment": sequence.increment,
        "on_target": sequence.there, "source": position(sequence.source), "target": position(sequence.target),
        "standing": sequence.standing.word(), "difference": difference, "hint": remedy,
    })
}
