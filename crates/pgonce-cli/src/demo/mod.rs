//! The demonstration: a flow under load, killed again and again, and what became of the data.

mod flow;
mod stage;
mod story;
mod summary;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use pgonce_testkit::{Cluster, KitError, Random, Workload};
use tokio::signal::unix::{SignalKind, signal};

use self::flow::FlowProcess;
use self::stage::{DATABASE, Kept, SCALE, Stage};
use self::story::Story;
use self::summary::Summary;
use crate::failure::{Failure, INTERNAL};
use crate::output::{Output, Tone};
use crate::render::count;

/// What to show.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// How long the load runs.
    pub load: Duration,
    /// How often `pgonce run` is killed.
    pub kills: u32,
    /// Decides what the load does and when is killed.
    pub seed: u64,
    /// The PostgreSQL major; the newest that is installed where there is none.
    pub major: Option<u32>,
    /// Where everything is written.
    pub directory: PathBuf,
    /// Whether the clusters stay.
    pub keep: bool,
}

/// How long the flow may take to apply what is left when the load has ended.
const DRAIN_PATIENCE: Duration = Duration::from_secs(120);

/// What happens while the load runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    Kill,
    CrashSource,
    CrashTarget,
}

/// Runs the demonstration to its end, or until it is interrupted. Either way the clusters are stopped, unless they
/// are kept.
///
/// # Errors
///
/// It could not be run to its end.
pub async fn run(options: &DemoOptions, output: Output) -> Result<u8, Failure> {
    let listen = |kind| signal(kind).map_err(|e| Failure::file(Path::new("signals"), &e));
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    let told = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    let mut told = std::pin::pin!(told);
    let played = tokio::select! {
        biased;
        () = &mut told => return Err(interrupted()),
        played = play(options, output) => played,
    };
    // A terminal interrupts the servers too, and their end may be seen before the signal is.
    let moment = Duration::from_millis(if played.is_err() { 100 } else { 0 });
    match tokio::time::timeout(moment, told).await {
        Ok(()) if played.is_err() => Err(interrupted()),
        _ => played,
    }
}

fn interrupted() -> Failure {
    Failure {
        code: "interrupted",
        text: "interrupted: both clusters are stopped and removed".to_owned(),
        hint: String::new(),
        exit_status: 130,
    }
}

async fn play(options: &DemoOptions, output: Output) -> Result<u8, Failure> {
    let story = Story::begin(output);
    if Kept::file(&options.directory).exists() {
        stop(&options.directory, output)?;
    }
    let major = stage::major(options.major)?;
    story.tell("start", &format!("two throwaway clusters of PostgreSQL {major} (seed {})", options.seed));
    let stage = Stage::build(major, &options.directory).await?;
    stage.fill().await.map_err(|e| failed(&e))?;
    stage.write_config()?;
    let (source, target) = (stage.source.port(), stage.target.port());
    let accounts = count(u64::from(SCALE) * 100_000);
    story.tell("start", &format!(
        "source on port {source}, target on port {target}: pgbench's tables with {accounts} accounts, and two witnesses"
    ));
    let mut flow = FlowProcess::new(&stage.config(), &stage.directory.join("run.log"))?;
    let mut summary = Summary { event: "demo", postgres: major, seed: options.seed, ..Summary::default() };
    under_load(options, &story, &stage, &mut flow, &mut summary).await?;

    flow.stop().await?;
    flow.start(&["--until", "now"])?;
    flow.finish(DRAIN_PATIENCE).await?;
    (summary.runs, summary.redelivered) = (flow.runs, flow.redelivered);
    story.tell("drain", "pgonce run --until now: the target has everything");

    let verified = flow.command("verify", &[]).stderr(Stdio::inherit()).output();
    let verified = verified.map_err(|e| Failure::file(Path::new("pgonce verify"), &e))?;
    summary.verified(&serde_json::from_slice(&verified.stdout).unwrap_or_default());
    let verdict = summary.verdict.replace('_', " ");
    story.tell("verify", &format!("pgonce verify, every table, inside both servers: {verdict}"));
    summary.witnessed(&stage.witnesses().await.map_err(|e| failed(&e))?);
    story.tell("verify", "the witnesses are counted on both sides, by plain SQL");
    summary.conclude();
    summary.elapsed_seconds = story.elapsed().as_secs_f64();
    finish(options, output, &stage, &summary)?;
    Ok(summary.exit_status())
}

/// The load, and everything that happens to the flow and its databases meanwhile.
async fn under_load(
    options: &DemoOptions,
    story: &Story,
    stage: &Stage,
    flow: &mut FlowProcess,
    summary: &mut Summary,
) -> Result<(), Failure> {
    let mut random = Random::new(options.seed);
    let load = Workload::new(options.seed).connections(4).pgbench(SCALE).pause(Duration::from_millis(4));
    let load = load.start(&stage.source.url(DATABASE));
    story.tell("load", "four connections write random transactions, half of them with pgbench's TPC-B in it");
    let begun = Instant::now();
    let pid = flow.start(&[])?;
    story.tell("run", &format!("pgonce run copies the tables under load, then follows (PID {pid})"));
    copying(flow, Duration::from_millis(random.between(5, 150))).await?;
    kill(story, flow, summary)?;
    let mut last = begun.elapsed();
    for (at, act) in acts(options, last, &mut random) {
        // A database's recovery takes its time: what was planned meanwhile does not happen all at once.
        let earliest = last + Duration::from_millis(random.between(150, 900));
        until(begun + at.max(earliest), flow).await?;
        match act {
            Act::Kill => kill(story, flow, summary)?,
            Act::CrashSource => {
                crash(story, &stage.source, "source").await?;
                summary.source_crashes += 1;
            }
            Act::CrashTarget => {
                crash(story, &stage.target, "target").await?;
                summary.target_crashes += 1;
            }
        }
        last = begun.elapsed();
    }
    until(begun + options.load, flow).await?;
    let counts = load.stop().await;
    let (committed, rolled_back, unknown) = (count(counts.committed), count(counts.rolled_back), counts.unknown);
    story.tell(
        "load",
        &format!(
            "ended: {committed} transactions committed, {rolled_back} rolled back, {unknown} cut off with an unknown \
         outcome"
        ),
    );
    Ok(())
}

/// Waits for a moment, as long as the flow runs.
async fn until(moment: Instant, flow: &mut FlowProcess) -> Result<(), Failure> {
    loop {
        flow.check()?;
        let left = moment.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        tokio::time::sleep(left.min(Duration::from_millis(50))).await;
    }
}

/// Waits until the flow copies tables, and a little longer.
async fn copying(flow: &mut FlowProcess, longer: Duration) -> Result<(), Failure> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(10) && matches!(flow.doing().phase.as_str(), "" | "connecting") {
        flow.check()?;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(longer).await;
    Ok(())
}

fn kill(story: &Story, flow: &mut FlowProcess, summary: &mut Summary) -> Result<(), Failure> {
    let (killed, doing) = flow.kill()?;
    summary.kills += 1;
    if doing.phase == "copying" {
        summary.kills_while_copying += 1;
    }
    let pid = flow.start(&[])?;
    let did = match doing.applied {
        0 => String::new(),
        applied => format!(", {} transactions after its start", count(applied)),
    };
    let (dead, doing) = (killed.pid(), doing.words());
    story.tell_of(
        Tone::Bad,
        "SIGKILL",
        &format!("pgonce run (PID {dead}) while {doing}{did}; started again (PID {pid})"),
    );
    Ok(())
}

async fn crash(story: &Story, cluster: &Cluster, name: &str) -> Result<(), Failure> {
    let killed = cluster.stop_immediate().await.map_err(|e| failed(&e))?;
    let begun = Instant::now();
    cluster.start().await.map_err(|e| failed(&e))?;
    let (processes, seconds) = (killed.with_it() + 1, begun.elapsed().as_secs_f64());
    story.tell_of(
        Tone::Bad,
        "CRASH",
        &format!("the {name}, all {processes} processes (shutdown -m immediate); recovered after {seconds:.1} s"),
    );
    Ok(())
}

/// When what happens: all kills but the first, and each database's crash, at a random moment of a part of its own.
fn acts(options: &DemoOptions, from: Duration, random: &mut Random) -> Vec<(Duration, Act)> {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let first = millis(from);
    let length = millis(options.load).saturating_sub(first).max(1000);
    let parts = u64::from(options.kills).saturating_sub(1).max(1);
    let part = length / parts;
    let kills = (1..u64::from(options.kills)).map(|number| (part * (number - 1) + random.below(part), Act::Kill));
    let mut acts: Vec<(u64, Act)> = kills.collect();
    acts.push((length / 5 + random.below(length / 5), Act::CrashTarget));
    acts.push((length * 3 / 5 + random.below(length / 5), Act::CrashSource));
    acts.sort_by_key(|(at, _)| *at);
    acts.into_iter().map(|(at, act)| (Duration::from_millis(first + at), act)).collect()
}

/// Writes the report, and says what can be done next.
fn finish(options: &DemoOptions, output: Output, stage: &Stage, summary: &Summary) -> Result<(), Failure> {
    let file = stage.directory.join("report.json");
    let value = serde_json::to_value(summary).unwrap_or_default();
    fs::write(&file, format!("{value:#}\n")).map_err(|e| Failure::file(&file, &e))?;
    if options.keep {
        stage.keep()?;
    }
    if output.is_json() {
        output.object(&value);
        return Ok(());
    }
    summary.write(output);
    output.line("");
    let (program, directory) = (program(), options.directory.display());
    output.line(&format!("The report is in {directory}/report.json, what the flow said in {directory}/run.log."));
    if !options.keep {
        output.line("");
        output.line("Next: keep both clusters, damage a row of the target, and see what verify says to it:");
        output.line(&format!("  {program} demo --keep"));
        return Ok(());
    }
    let (source, target) = (stage.source.url(DATABASE), stage.target.url(DATABASE));
    let other = match options.directory == Path::new(DIRECTORY) {
        true => String::new(),
        false => format!(" --dir {directory}"),
    };
    output.line(&format!(
        "\nBoth clusters are still up. Have a look:\n\
         \x20 psql {source}   # the source\n\
         \x20 psql {target}   # the target\n\
         Damage a row of the target, and let verify find it:\n\
         \x20 psql {target} -c 'UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = 4711'\n\
         \x20 {program} verify --config {directory}/pgonce.yml --show-keys\n\
         Stop and remove both:\n\
         \x20 {program} demo --stop{other}"
    ));
    Ok(())
}

/// Where everything is written, if nothing else is said.
pub const DIRECTORY: &str = "target/demo";

/// Stops and removes the clusters that a demonstration kept.
///
/// # Errors
///
/// There are none, or they cannot be stopped.
pub fn stop(directory: &Path, output: Output) -> Result<(), Failure> {
    let clusters = Kept::stop(directory)?;
    match output.is_json() {
        true => output.object(&serde_json::json!({"event": "stopped", "clusters": clusters})),
        false => output.line("The clusters that the last demonstration kept are stopped and removed."),
    }
    Ok(())
}

/// The program as the user can type it.
fn program() -> String {
    let Ok(program) = std::env::current_exe() else { return "pgonce".to_owned() };
    let here = std::env::current_dir().ok().and_then(|here| program.strip_prefix(here).ok().map(Path::to_owned));
    here.unwrap_or(program).display().to_string()
}

/// An error of the test kit as the command's.
fn failed(error: &KitError) -> Failure {
    match error {
        KitError::MissingServer { .. } | KitError::MissingUser => Failure::usage(
            error.to_string(),
            "Type scripts/setup in a checkout of pgonce: it installs what is missing.",
        ),
        error => Failure {
            code: "demo_failed",
            text: error.to_string(),
            hint: "The demonstration could not go on; its clusters are stopped and removed.".to_owned(),
            exit_status: INTERNAL,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kill_and_both_crashes_are_planned_within_the_load() {
        for seed in 0..200 {
            let (load, directory) = (Duration::from_secs(6), PathBuf::new());
            let options = DemoOptions { load, kills: 5, seed, major: None, directory, keep: false };
            let acts = acts(&options, Duration::from_millis(800), &mut Random::new(seed));
            assert_eq!(acts.iter().filter(|(_, act)| *act == Act::Kill).count(), 4);
            assert_eq!(acts.len(), 6);
            assert!(acts.is_sorted_by_key(|(at, _)| *at) && acts.iter().all(|(at, _)| *at < options.load));
        }
    }
}
