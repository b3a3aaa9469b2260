//! Compares the source and the target of a flow that has drained, while nobody writes.
//!
//! [`point`] shows that both sides are at rest, [`tables`] maps tables and columns, [`compare`] sums them up inside
//! the servers, [`narrow`] finds the rows that differ, [`ledger`] looks at the flow's own records. Nothing is written
//! anywhere.

mod compare;
mod ledger;
mod narrow;
mod point;
mod report;
mod sql;
mod tables;
mod text;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use pgonce::catalog;
use pgonce::destination::Binding;
use pgonce::position::Lsn;
use pgonce::published::Published;
use pgonce::slot_source::{SlotSettings, SlotSource};
use pgonce::source::{Source, SourceIdentity};
use pgonce::stop::{Reason, Side, Stop};
use pgonce_target::{FlowPhase, FlowStatus};

use self::compare::Point;
pub use self::narrow::Shown;
use self::point::{Covered, Watch, status_of, stored};
pub use self::report::Report;
use self::report::{Interrupted, Positions, Problem};
pub use self::text::write;
use crate::config::FlowConfig;
use crate::failure::Failure;

/// What to compare, and how.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// Only these tables (`schema.table`); all where there is none.
    pub tables: Vec<String>,
    /// How many tables at a time.
    pub jobs: usize,
    /// How long a running flow may take to reach the source's write position.
    pub wait: Duration,
    /// What may be told of rows.
    pub shown: Shown,
}

/// Compares both sides.
///
/// # Errors
///
/// A connection cannot be made or broke, or a table was named that is not published. Everything else is in the report.
pub async fn verify(config: &FlowConfig, options: &VerifyOptions) -> Result<Report, Failure> {
    let begun = Instant::now();
    let mut report = Report::new(config.flow.as_str());
    let outcome = examine(config, options, &mut report).await;
    let at_rest = match outcome {
        Ok(()) => true,
        Err(Interrupted::Failed(failure)) => return Err(failure),
        Err(Interrupted::NotComparable(problem)) => {
            report.reasons.push(problem);
            false
        }
    };
    report.conclude(at_rest);
    report.elapsed_seconds = begun.elapsed().as_secs_f64();
    Ok(report)
}

async fn examine(config: &FlowConfig, options: &VerifyOptions, report: &mut Report) -> Result<(), Interrupted> {
    let flow = config.flow.as_str();
    let target = compare::connect(&config.target.connection, Side::Target).await?;
    let source = compare::connect(&config.source.connection, Side::Source).await?;
    let status = status_of(&target.client, flow).await?;
    if let Some(what) = config.map.differs_from(status.map.as_deref()) {
        let reason = Reason::MapChanged { flow: status.flow.clone(), what };
        return Err(Problem::from(&Stop::from(reason)).into());
    }
    let (published, publications) = published(config, &status).await?;
    let chosen = choose(&published, &options.tables)?;
    let watch = Watch {
        source: &source.client,
        target: &target.client,
        flow,
        slot: &status.slot,
        publications: &publications,
        wait: options.wait,
    };
    let mut positions = Positions { slot: status.slot.clone(), ..Positions::default() };
    record(&mut positions, &status);
    acknowledged(&watch, &mut positions, report).await?;

    let point = watch.position().await?;
    positions.point = Some(point.to_string());
    report.positions = Some(positions.clone());
    positions.drained_by = Some(drained(watch.covered(point, None).await?, point, options.wait)?);

    let (here, there, status) = points(config, &watch, options.wait).await?;
    record(&mut positions, &status);
    report.positions = Some(positions.clone());

    let sources = tables::read(&here.connection.client, Side::Source).await?;
    let targets = tables::read(&there.connection.client, Side::Target).await?;
    let left_out = tables::left_out(&source.client, &publications).await?;
    let names = published.tables.iter().map(|table| (table.schema.clone(), table.name.clone()));
    let names: BTreeSet<tables::TableName> = names.collect();
    if options.tables.is_empty() {
        let there = |(schema, name): &tables::TableName| {
            let there = config.map.target(schema, name);
            (there.schema, there.name)
        };
        let on_source: BTreeSet<tables::TableName> = sources.keys().chain(&names).map(there).collect();
        report.only_on_target = tables::others(&targets, &on_source);
        report.not_published = tables::others(&sources, &names);
    }
    let plans = published.tables.iter().filter(|table| chosen.contains(&table.to_string())).map(|table| {
        let name = (table.schema.clone(), table.name.clone());
        let there = config.map.target(&table.schema, &table.name);
        let found = targets.get(&(there.schema.clone(), there.name.clone()));
        tables::plan(table, &there, sources.get(&name), found)
    });
    report.tables = compare::tables(&here, &there, plans.collect(), options.jobs, options.shown).await?;
    for table in &mut report.tables {
        let name = names.iter().find(|(schema, name)| format!("{schema}.{name}") == table.table);
        if let Some(operations) = name.and_then(|name| left_out.get(name)) {
            compare::excuse(table, operations);
        }
    }
    let (check, problem) = ledger::check(&there.connection.client, &status).await?;
    report.ledger = Some(check);
    report.alarms.extend(problem);

    let end = watch.position().await?;
    positions.source_end = Some(end.to_string());
    acknowledged(&watch, &mut positions, report).await?;
    report.positions = Some(positions);
    at_rest(watch.covered(end, Some(status.commit)).await?, point, end, options.wait)
}

fn record(positions: &mut Positions, status: &FlowStatus) {
    positions.checkpoint = status.commit.map(|commit| commit.to_string());
    positions.checkpoint_end = status.end.map(|end| end.to_string());
    positions.idle = status.idle.map(|idle| idle.to_string());
}

/// A snapshot of each side, and the ledger as the target's snapshot has it. The source's snapshot sees every
/// transaction that the target's has applied; what the source commits later is found out at the end.
async fn points(
    config: &FlowConfig,
    watch: &Watch<'_>,
    wait: Duration,
) -> Result<(Point, Point, FlowStatus), Interrupted> {
    let begun = Instant::now();
    loop {
        let before = watch.status().await?;
        let here = Point::take(&config.source.connection, Side::Source).await?;
        let there = Point::take(&config.target.connection, Side::Target).await?;
        let status = status_of(&there.connection.client, watch.flow).await?;
        if status.commit != before.commit {
            // Applied between the two snapshots, and perhaps committed between them too.
            let text = "the source was written to while it was compared: the target applied something between the \
                two snapshots";
            return Err(Problem::new("source_written", text, QUIET).into());
        }
        let Some(xid) = point::unseen(&here.connection.client, &there.connection.client, watch.flow).await? else {
            return Ok((here, there, status));
        };
        if begun.elapsed() >= wait {
            let text = format!(
                "transaction {xid} is applied on the target, and the source does not show it yet: its commit is in \
                 the WAL and waits, most likely for a synchronous standby"
            );
            let hint = "SELECT pid, wait_event FROM pg_stat_activity WHERE wait_event = 'SyncRep'; on the source. \
                Verify again when it has gone through.";
            return Err(Problem::new("commit_not_visible", text, hint).into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The tables that the flow is bound to, once the source has proved to be the flow's, and its publications.
async fn published(config: &FlowConfig, status: &FlowStatus) -> Result<(Published, Vec<String>), Interrupted> {
    let (Some(boundary), Some(timeline), Some(start), Some(fingerprint), true) =
        (status.boundary, status.timeline, status.start, &status.published, status.phase == FlowPhase::Streaming)
    else {
        let text = format!("flow {} has not finished its initial copy", status.flow);
        return Err(Problem::new("copying", text, "Let `pgonce run` finish it, then verify.").into());
    };
    let publications = config.source.publish.names();
    // Asked for its identity and its publications only. With the name of the slot it would refuse to look on while
    // the flow runs; no slot has an empty name.
    let settings = SlotSettings::new(config.source.connection.clone(), "", publications.clone());
    let mut source = SlotSource::new(settings);
    let identity = source.connect().await?;
    same_source(status, &identity)?;
    let binding = Binding { boundary, timeline, start, published: fingerprint.clone() };
    let published = source.published(&binding, &[]).await;
    source.close().await;
    Ok((published?, publications))
}

/// Positions mean something only on the source, and the timeline, that they were received from.
fn same_source(status: &FlowStatus, found: &SourceIdentity) -> Result<(), Interrupted> {
    if (&status.system_identifier, &status.database) != (&found.system_identifier, &found.database) {
        let text = format!(
            "flow {} is bound to database {} of system {}, and the source is database {} of system {}",
            status.flow, status.database, status.system_identifier, found.database, found.system_identifier
        );
        return Err(Problem::new("source_changed", text, "Correct the source's URL, or the flow's name.").into());
    }
    let by_checkpoint = status.end.map(|end| end.0) >= status.idle.map(|idle| idle.0);
    let timeline = if by_checkpoint { status.checkpoint_timeline } else { status.idle_timeline };
    if timeline.is_some_and(|timeline| timeline != found.timeline) {
        let text =
            format!("the source has been promoted to timeline {} since the flow's last position", found.timeline);
        let hint = "Let `pgonce run` connect once: it checks the source's history, and goes on or says why not.";
        return Err(Problem::new("timeline", text, hint).into());
    }
    Ok(())
}

/// The tables to compare.
fn choose(published: &Published, wanted: &[String]) -> Result<BTreeSet<String>, Interrupted> {
    let all: BTreeSet<String> = published.tables.iter().map(ToString::to_string).collect();
    if let Some(unknown) = wanted.iter().find(|table| !all.contains(*table)) {
        let text = format!("--table {unknown}: the flow's publications have no table of this name");
        let hint = "Write schema.table, as the report of `pgonce verify` without --table does.";
        return Err(Interrupted::Failed(Failure::usage(text, hint)));
    }
    if all.is_empty() {
        let text = "the flow's publications publish no table";
        return Err(
            Problem::new("nothing_published", text, "ALTER PUBLICATION ... ADD TABLE ...; on the source.").into()
        );
    }
    Ok(if wanted.is_empty() { all } else { wanted.iter().cloned().collect() })
}

/// Holds what the slot was told against what is stored. The slot first: what is stored only grows.
async fn acknowledged(watch: &Watch<'_>, positions: &mut Positions, report: &mut Report) -> Result<(), Interrupted> {
    let slot = catalog::slot_state(watch.source, watch.slot).await?;
    let status = watch.status().await?;
    let Some(confirmed) = slot.and_then(|slot| slot.confirmed_flush) else { return Ok(()) };
    positions.confirmed_flush = Some(confirmed.to_string());
    let stored = stored(&status);
    if confirmed > stored && report.alarms.is_empty() {
        report.alarms.push(Problem::new(
            "data_gap",
            format!(
                "slot {} was told {confirmed}, and the target has stored {stored} only: what lies between is never \
                 sent again",
                watch.slot
            ),
            "Someone moved the slot or made it anew, or the target went back in time. `pgonce reset` shows how to \
             start over.",
        ));
    }
    Ok(())
}

fn drained(covered: Covered, point: Lsn, wait: Duration) -> Result<&'static str, Interrupted> {
    match covered {
        Covered::ByLedger => Ok("ledger"),
        Covered::BySlot => Ok("slot"),
        other => Err(moved(other, "not_drained", point, wait)),
    }
}

fn at_rest(covered: Covered, point: Lsn, end: Lsn, wait: Duration) -> Result<(), Interrupted> {
    match covered {
        Covered::ByLedger | Covered::BySlot => Ok(()),
        Covered::Moved { checkpoint } => {
            let text = format!(
                "the source was written to while it was compared: the target has meanwhile applied transaction \
                 {checkpoint}, and the comparison stands at {point}"
            );
            Err(Problem::new("source_written", text, QUIET).into())
        }
        Covered::Waiting { transactions, first } => {
            let text = format!(
                "the source was written to while it was compared: {transactions} published transaction(s) since \
                 {point}, the first with commit LSN {first}"
            );
            Err(Problem::new("source_written", text, QUIET).into())
        }
        other => Err(moved(other, "source_written", end, wait)),
    }
}

const QUIET: &str = "This verification needs a source that nobody writes to. Stop the writers, drain with \
                     `pgonce run --until now`, and verify again.";

/// Why the target is not known to have everything before a position.
fn moved(covered: Covered, code: &str, position: Lsn, wait: Duration) -> Interrupted {
    let (text, hint) = match covered {
        Covered::Waiting { transactions, first } => (
            format!(
                "the flow has not drained: published transactions wait in the slot before {position} \
                 ({transactions} seen, the first with commit LSN {first})"
            ),
            "Drain it: `pgonce run --until now`.",
        ),
        Covered::Late { reached } => (
            format!(
                "the flow runs, and did not drain within {} s: it has reached {reached}, and the source {position}",
                wait.as_secs()
            ),
            "Stop the writers of the source, or give it more time with --wait.",
        ),
        Covered::NoSlot => (
            format!(
                "the slot does not exist, and nothing else tells whether something was published before {position}"
            ),
            "`pgonce status` says more. Without its slot the flow cannot go on: `pgonce reset` shows how to start \
             over.",
        ),
        Covered::Moved { .. } | Covered::ByLedger | Covered::BySlot => ("the flow moved".to_owned(), QUIET),
    };
    Problem::new(code, text, hint).into()
}
