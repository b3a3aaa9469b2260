//! `make bench`: how fast pgonce is beside native logical replication.
//!
//! Two throwaway clusters of one major; on them each contestant in turn, several times, so that what disturbs the
//! machine disturbs all of them; the report has the ratios of times measured side by side, because times alone do not
//! travel. `docs/benchmarks.md` explains the method.

mod contestant;
mod drain;
mod measure;
mod options;
mod parts;
mod report;
mod sample;
mod stand;
mod workload;

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::Parser as _;

use contestant::{Contestant, Kind, native_modes};
use measure::{Bench, Measured};
use options::{Inner, Options, Party};
use parts::{Part, Parts, Round};
use stand::{Databases, Stand};
use workload::catch_up::{Backlog, Size};
use workload::copy::{self, Copy};
use workload::decode::Stream;
use workload::{Workload, decode, idle, latency, receive};

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    if let Some(Inner::Drain(task)) = &options.inner {
        return drain::run(task).await;
    }
    // Ending by itself, the program takes its clusters and contestants along.
    tokio::select! {
        result = run(&options) => result,
        signal = tokio::signal::ctrl_c() => {
            signal?;
            bail!("interrupted; the same command goes on where it was")
        }
    }
}

async fn run(options: &Options) -> Result<()> {
    let commit = parts::code_version();
    let parts = Parts::open(&options.output)?;
    let session = Session { options, commit, parts, begun: Instant::now() };
    if !options.report {
        let pgonce = options.has(Party::Pgonce) || options.has(Party::PgonceSync);
        let needed = options.workloads().into_iter().any(Workload::needs_program);
        if pgonce && needed && !options.pgonce.is_file() {
            bail!("{} is not there; type: cargo build --release -p pgonce-cli", options.pgonce.display());
        }
        session.measure().await?;
    }
    session.report()
}

/// Stands for the major of parts that are measured without a server.
const NO_SERVER: u32 = 0;

/// The benchmark as it was asked for.
struct Session<'a> {
    options: &'a Options,
    commit: String,
    parts: Parts,
    begun: Instant,
}

/// A part that has runs to make.
struct Due {
    workload: Workload,
    part: Part,
    lineup: Vec<Contestant>,
    rounds: u32,
}

/// What the runs of a part work on.
enum Prepared {
    Backlog(Backlog),
    Copy(Copy),
    Databases(Databases),
}

impl Session<'_> {
    async fn measure(&self) -> Result<()> {
        for due in self.due(NO_SERVER)? {
            self.measure_stream(&due)?;
        }
        for major in &self.options.postgres {
            let due = self.due(*major)?;
            if due.is_empty() || self.is_late() {
                continue;
            }
            println!("PostgreSQL {major}: starting two clusters");
            let stand = Stand::start(*major).await?;
            let scratch = self.options.output.join("scratch");
            let pgonce = fs::canonicalize(&self.options.pgonce).unwrap_or_else(|_| self.options.pgonce.clone());
            fs::create_dir_all(&scratch)?;
            let bench = Bench {
                stand: &stand,
                pgonce: &pgonce,
                scratch: &fs::canonicalize(&scratch)?,
                scale_div: self.options.scale_div,
            };
            for due in due {
                if self.is_late() {
                    break;
                }
                self.measure_part(&bench, &due).await?;
            }
        }
        if self.is_late() {
            println!("{} minutes are over; the same command makes up for what is missing", self.options.minutes);
        }
        Ok(())
    }

    fn is_late(&self) -> bool {
        self.begun.elapsed() >= self.options.budget()
    }

    /// What is missing of this major, in the order in which it is measured.
    fn due(&self, major: u32) -> Result<Vec<Due>> {
        let mut due = Vec::new();
        let without_server = |workload: &Workload| workload.decode().is_some();
        for workload in self.options.workloads() {
            if without_server(&workload) != (major == NO_SERVER) {
                continue;
            }
            for synchronous in [false, true] {
                let lineup = self.lineup(workload, major, synchronous);
                if lineup.is_empty() {
                    continue;
                }
                let part = Part {
                    commit: self.commit.clone(),
                    workload: workload.name().to_owned(),
                    postgres: major,
                    synchronous,
                    scale_div: self.options.scale_div,
                };
                if self.options.fresh {
                    self.parts.forget(&part)?;
                }
                let done = self.parts.rounds(&part)?.iter().filter(|round| round.has(&lineup)).count();
                let wanted = if workload == Workload::Idle { 1 } else { self.options.runs };
                let rounds = wanted.saturating_sub(u32::try_from(done)?);
                if rounds > 0 {
                    due.push(Due { workload, part, lineup, rounds });
                }
            }
        }
        Ok(due)
    }

    /// Who takes part, in the order of a round.
    fn lineup(&self, workload: Workload, major: u32, synchronous: bool) -> Vec<Contestant> {
        let options = self.options;
        let own = options.has(if synchronous { Party::PgonceSync } else { Party::Pgonce });
        if synchronous && !(own && workload.has_synchronous()) {
            return Vec::new();
        }
        if workload.receive().is_some() {
            return receive::lineup(options.has(Party::Native), own);
        }
        if workload.decode().is_some() {
            return if own { decode::lineup() } else { Vec::new() };
        }
        let mut lineup = match (options.has(Party::Native), workload.copy()) {
            (false, _) => Vec::new(),
            (true, Some(begin)) => copy::peers(begin, major),
            (true, None) => native_modes(major, synchronous),
        };
        if workload == Workload::Idle {
            lineup.truncate(1);
        }
        if own {
            lineup.push(Contestant { kind: Kind::Pgonce, synchronous });
        }
        lineup
    }

    async fn measure_part(&self, bench: &Bench<'_>, due: &Due) -> Result<()> {
        let part = &due.part;
        let title = format!("{} on {}", part.workload, bench.stand.version);
        println!("{title}{}: preparing", if part.synchronous { ", synchronous_commit=on" } else { "" });
        let size = Size { scale_div: self.options.scale_div, synchronous: part.synchronous };
        let prepared = match (due.workload.catch_up().or(due.workload.receive()), due.workload.copy()) {
            (Some(workload), _) => Prepared::Backlog(Backlog::prepare(bench.stand, workload, size).await?),
            (None, Some(begin)) => Prepared::Copy(Copy::prepare(bench, begin).await?),
            (None, None) => Prepared::Databases(latency::prepare(bench).await?),
        };
        if let (Prepared::Backlog(_) | Prepared::Copy(_), Some(first)) = (&prepared, due.lineup.first())
            && !part.synchronous
        {
            // The first to read the backlog would pay for the caches of all others.
            one_run(bench, due.workload, &prepared, *first).await?;
        }
        for number in 1..=due.rounds {
            if self.is_late() {
                break;
            }
            let mut measured = Vec::new();
            for contestant in &due.lineup {
                let one = one_run(bench, due.workload, &prepared, *contestant)
                    .await
                    .with_context(|| format!("{title}: {} ({})", contestant.name(), contestant.mode()))?;
                let (value, unit) = (one.value, due.workload.unit());
                println!("{title}: {number}/{} {} ({}): {value:.2} {unit}", due.rounds, one.contestant, one.mode);
                measured.push(one);
            }
            let databases = prepared.databases();
            let date: String = databases.source.query_one("SELECT current_date::text", &[]).await?.get(0);
            self.parts.append(&Round {
                part: part.clone(),
                date,
                server: bench.stand.version.clone(),
                build: bench.stand.build.clone(),
                transactions: prepared.transactions(),
                measured,
            })?;
        }
        prepared.finish(bench.stand).await
    }

    /// A part that needs no server.
    fn measure_stream(&self, due: &Due) -> Result<()> {
        let Some(shape) = due.workload.decode() else { return Ok(()) };
        let part = &due.part;
        println!("{}: preparing", part.workload);
        let stream = Stream::of(shape, Size { scale_div: self.options.scale_div, synchronous: false });
        for number in 1..=due.rounds {
            if self.is_late() {
                break;
            }
            let mut measured = Vec::new();
            for contestant in &due.lineup {
                let one = stream.run(*contestant)?;
                let (value, unit) = (one.value, due.workload.unit());
                println!(
                    "{}: {number}/{} {} ({}): {value:.2} {unit}",
                    part.workload, due.rounds, one.contestant, one.mode
                );
                measured.push(one);
            }
            self.parts.append(&Round {
                part: part.clone(),
                date: parts::today()?,
                server: "none".to_owned(),
                build: "none".to_owned(),
                transactions: Some(stream.transactions()),
                measured,
            })?;
        }
        Ok(())
    }

    /// Merges everything of this commit, prints it, and writes it down.
    fn report(&self) -> Result<()> {
        let rounds = self.parts.all(&self.commit, self.options.scale_div)?;
        let output = &self.options.output;
        let write = |name: &str, text: &str| write_whole(&output.join(name), text);
        write("report.json", &(serde_json::to_string_pretty(&report::entries(&rounds))? + "\n"))?;
        let text = report::text(&rounds);
        write("report.md", &text)?;
        println!("\n{text}\nwritten to {} and report.md beside it", output.join("report.json").display());
        Ok(())
    }
}

impl Prepared {
    fn databases(&self) -> &Databases {
        match self {
            Prepared::Backlog(backlog) => backlog.databases(),
            Prepared::Copy(copy) => copy.databases(),
            Prepared::Databases(databases) => databases,
        }
    }

    fn transactions(&self) -> Option<u64> {
        match self {
            Prepared::Backlog(backlog) => Some(backlog.transactions()),
            Prepared::Copy(_) | Prepared::Databases(_) => None,
        }
    }

    async fn finish(self, stand: &Stand) -> Result<()> {
        match self {
            Prepared::Backlog(backlog) => backlog.finish(stand).await,
            Prepared::Copy(copy) => copy.finish(stand).await,
            Prepared::Databases(databases) => stand.drop_databases(databases).await,
        }
    }
}

async fn one_run(
    bench: &Bench<'_>,
    workload: Workload,
    prepared: &Prepared,
    contestant: Contestant,
) -> Result<Measured> {
    match prepared {
        Prepared::Backlog(backlog) if workload.receive().is_some() => receive::run(bench, backlog, contestant).await,
        Prepared::Backlog(backlog) => backlog.run(bench, contestant).await,
        Prepared::Copy(copy) => copy.run(bench, contestant).await,
        Prepared::Databases(databases) if workload == Workload::Idle => idle::run(bench, databases, contestant).await,
        Prepared::Databases(databases) => latency::run(bench, databases, contestant).await,
    }
}

/// Replaces a file in one step: a reader sees the old one or the new one.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, text).and_then(|()| fs::rename(&new, path)).with_context(|| format!("writing {}", path.display()))
}
