//! Reading a backlog and throwing it away, in a process of its own whose processor time can be told from everything
//! else: this program, started again by itself.

mod ideal;
mod null;

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use pgonce::position::{CommitLsn, Lsn};
use serde::{Deserialize, Serialize};

/// Who reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    /// A reader that cuts frames and looks at nothing in them, with this pause behind each read that brought little.
    Ideal {
        /// `ZERO`: it reads what there is, as soon as there is something.
        pause: Duration,
    },
    /// pgonce's source end, and a sink that takes everything for durable.
    Pgonce,
}

impl Reader {
    /// The ideal reader's rhythms. None is the best for every stream.
    pub const IDEAL: [Reader; 3] = [Reader::ideal(0), Reader::ideal(500), Reader::ideal(2000)];

    const fn ideal(micros: u64) -> Reader {
        Reader::Ideal { pause: Duration::from_micros(micros) }
    }
}

/// What a reader is told.
#[derive(Args, Clone, Debug)]
pub struct Task {
    /// Who reads
    #[arg(long, value_enum)]
    reader: Which,
    /// The ideal reader's pause in microseconds
    #[arg(long, default_value_t = 0)]
    pause: u64,
    /// The source
    #[arg(long)]
    source: String,
    /// The slot
    #[arg(long)]
    slot: String,
    /// The publication
    #[arg(long)]
    publication: String,
    /// Ends with the first transaction that committed at this LSN or behind it
    #[arg(long, value_parser = lsn)]
    marker: CommitLsn,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Which {
    Ideal,
    Pgonce,
}

fn lsn(text: &str) -> Result<CommitLsn, pgonce::position::ParseLsnError> {
    text.parse::<Lsn>().map(CommitLsn)
}

/// What a reader has read, up to the marker.
#[derive(Serialize, Deserialize, Clone, Copy, Default, PartialEq, Debug)]
pub struct Drained {
    /// From before the connection was opened.
    pub seconds: f64,
    /// From there to the first transaction, or the first message of one.
    pub first: f64,
    /// Transactions.
    pub transactions: u64,
    /// Changes of rows.
    pub changes: u64,
}

/// Reads, in this process, and prints the outcome.
pub async fn run(task: &Task) -> Result<()> {
    let drained = match task.reader {
        Which::Ideal => ideal::run(task)?,
        Which::Pgonce => null::run(task).await?,
    };
    println!("{}", serde_json::to_string(&drained)?);
    Ok(())
}

/// The process that reads, ready to be started.
pub fn command(reader: Reader, source: &str, slot: &str, publication: &str, marker: &str) -> Result<Command> {
    let (which, pause) = match reader {
        Reader::Ideal { pause } => ("ideal", pause),
        Reader::Pgonce => ("pgonce", Duration::ZERO),
    };
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command
        .args(["drain", "--reader", which, "--pause", &pause.as_micros().to_string()])
        .args(["--source", source, "--slot", slot, "--publication", publication, "--marker", marker])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    Ok(command)
}

/// What it printed.
pub fn outcome(printed: &[u8]) -> Result<Drained> {
    let text = String::from_utf8_lossy(printed);
    match text.lines().last() {
        Some(line) => serde_json::from_str(line).context("reading what the reader printed"),
        None => bail!("the reader ended without a result"),
    }
}
