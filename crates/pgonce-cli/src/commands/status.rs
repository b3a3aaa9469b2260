//! `pgonce status`: how a flow stands, from both databases, whether or not it runs and whether or not both answer.

use std::time::Duration;

use clap::Args;
use pgonce::position::Lsn;
use pgonce::stop::{Family, Side};
use pgonce_target::{CopyingTable, FlowPhase};
use serde_json::{Value, json};

use super::block_on;
use crate::config::flags::FlowOptions;
use crate::config::{self, FlowConfig, Publish};
use crate::facts::{self, SlotFacts, SourceFacts};
use crate::failure::{Failure, INTERNAL, USAGE};
use crate::ledger::{self, FlowState, StoredStop};
use crate::output::{Output, Tone};
use crate::render::{Listing, bytes, counted, duration};
use crate::time::utc;
use crate::waits::{self, Waiting};

/// A database that does not answer is unreachable after this long, where the URL sets no `connect_timeout`.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Arguments of `pgonce status`.
#[derive(Args, Debug)]
pub struct StatusArguments {
    /// End with the exit status of the reason for the last stop if the flow has stopped, and with 2 if it does not run
    /// otherwise; without this, a report that could be made ends with 0
    #[arg(long)]
    pub check: bool,
    /// The flow
    #[command(flatten)]
    pub options: FlowOptions,
}

/// Reports. The exit status is that of the database that could not be asked, if there is one.
///
/// # Errors
///
/// The configuration is not valid.
pub fn execute(arguments: &StatusArguments, output: Output) -> Result<u8, Failure> {
    let config = config::load(&arguments.options)?;
    let status = block_on(async { Ok(ask(&config).await) })?;
    match output.is_json() {
        true => output.object(&status.object(&config)),
        false => status.listing(&config).write(output),
    }
    Ok(if arguments.check { status.checked() } else { status.exit_status() })
}

/// What both databases say.
struct Status {
    source: Result<SourceFacts, Failure>,
    target: Result<Option<FlowState>, Failure>,
    /// What the flow waits for.
    waits: Vec<Waiting>,
}

async fn ask(config: &FlowConfig) -> Status {
    let source = async {
        let mut connection = config.source.connection.clone();
        connection.connect_timeout.get_or_insert(CONNECT_TIMEOUT);
        let connection = facts::connect(&connection, Side::Source).await?;
        let facts = facts::ask(&connection.client, &config.source.slot, &config.source.publish.names()).await?;
        Ok((facts, waits::at_source(&connection.client).await?))
    };
    let target = async {
        let mut connection = config.target.connection.clone();
        connection.connect_timeout.get_or_insert(CONNECT_TIMEOUT);
        let connection = facts::connect(&connection, Side::Target).await?;
        let state = ledger::read(&connection.client, config.flow.as_str()).await?;
        Ok((state, waits::at_target(&connection.client, config.flow.as_str()).await?))
    };
    let (source, target) = tokio::join!(source, target);
    let (source, at_source) = source.map_or_else(|e| (Err(e), None), |(facts, waiting)| (Ok(facts), waiting));
    let (target, at_target) = target.map_or_else(|e| (Err(e), None), |(state, waiting)| (Ok(state), waiting));
    let mut status = Status::of(source, target);
    status.waits.extend(at_target);
    // The slot in the making may be another flow's, where this one makes none.
    if matches!(status.doing(), Doing::Starting | Doing::Copying) {
        status.waits.extend(at_source);
    }
    status
}

/// What a flow is doing, as far as can be told from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doing {
    NeverStarted,
    Starting,
    Copying,
    Waiting,
    Streaming,
    Stopped,
    NotRunning,
    Unknown,
}

impl Doing {
    fn word(self) -> &'static str {
        match self {
            Doing::NeverStarted => "never started",
            Doing::Starting => "starting",
            Doing::Copying => "copying",
            Doing::Waiting => "waiting",
            Doing::Streaming => "streaming",
            Doing::Stopped => "stopped",
            Doing::NotRunning => "not running",
            Doing::Unknown => "unknown",
        }
    }

    fn explained(self, state: Option<&FlowState>) -> String {
        let copied = state.map_or(0, |state| state.copied.len() as u64);
        let copied = format!("{} copied", counted(copied, "table", "tables"));
        let writer = state.and_then(|state| state.alive);
        let writer = writer.map(|pid| format!("the writer is alive (server process PID {pid} on the target)"));
        let with_writer = |text: &str| match &writer {
            Some(writer) => format!("{text}, {writer}"),
            None => text.to_owned(),
        };
        match self {
            Doing::NeverStarted => "never started: the target knows no flow of this name".to_owned(),
            Doing::Starting => with_writer("starting: making publication and slot"),
            Doing::Copying => match state.and_then(|state| state.schema_copy.as_ref()) {
                Some(schema) => with_writer(&format!("copying: {copied}; {schema}")),
                None => with_writer(&format!("copying: {copied} so far")),
            },
            Doing::Waiting => with_writer("waiting: the slot is not being read yet"),
            Doing::Streaming if state.is_some_and(|state| !state.copying.is_empty()) => {
                with_writer("streaming, and catching up: tables are being copied beside the stream")
            }
            Doing::Streaming => with_writer("streaming"),
            Doing::Stopped => "stopped by itself, see below".to_owned(),
            Doing::NotRunning => match state.map(|state| state.phase) {
                Some(FlowPhase::New) => "not running; the copy has not begun".to_owned(),
                Some(FlowPhase::Copying) => format!("not running; the copy is not complete ({copied})"),
                Some(FlowPhase::Streaming) | None => "not running: nobody reads the slot".to_owned(),
            },
            Doing::Unknown => with_writer("unknown, since not all could be asked"),
        }
    }

    fn tone(self) -> Tone {
        match self {
            Doing::Streaming | Doing::Copying | Doing::Starting => Tone::Good,
            Doing::Stopped => Tone::Bad,
            Doing::NeverStarted | Doing::Waiting | Doing::NotRunning | Doing::Unknown => Tone::Warning,
        }
    }
}

/// How far the target is behind the source.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Lag {
    bytes: u64,
    /// Unknown where nothing has been applied yet and no idle boundary was stored.
    time: Option<Duration>,
}

impl Status {
    fn of(source: Result<SourceFacts, Failure>, target: Result<Option<FlowState>, Failure>) -> Status {
        Status { source, target, waits: Vec::new() }
    }

    fn exit_status(&self) -> u8 {
        let failures = [self.target.as_ref().err(), self.source.as_ref().err()];
        failures.into_iter().flatten().next().map_or(0, |failure| failure.exit_status)
    }

    /// The exit status of `--check`: whether it runs, and why not.
    fn checked(&self) -> u8 {
        match (self.exit_status(), self.doing()) {
            (0, Doing::Stopped) => {
                let family = self.stop().and_then(|stop| Family::of(&stop.code));
                family.map_or(INTERNAL, Family::exit_status)
            }
            (0, Doing::NeverStarted | Doing::NotRunning) => USAGE,
            (status, _) => status,
        }
    }

    fn doing(&self) -> Doing {
        let Ok(state) = &self.target else { return Doing::Unknown };
        let Some(state) = state else { return Doing::NeverStarted };
        let active = self.source.as_ref().ok().map(|source| source.slot.as_ref().is_some_and(|slot| slot.active));
        match (state.alive.is_some(), state.phase, active) {
            // While tables are copied, their slot is kept but not read.
            (true, FlowPhase::New, _) => Doing::Starting,
            (true, FlowPhase::Copying, _) | (false, FlowPhase::Copying, Some(true)) => Doing::Copying,
            (_, _, Some(true)) => Doing::Streaming,
            (true, FlowPhase::Streaming, Some(false)) => Doing::Waiting,
            (true, FlowPhase::Streaming, None) => Doing::Unknown,
            (false, ..) if state.stop.as_ref().is_some_and(|stop| !stop.past) => Doing::Stopped,
            (false, _, Some(false)) => Doing::NotRunning,
            (false, _, None) => Doing::Unknown,
        }
    }

    /// Why it stopped, or, while it runs again, why it did last. A later run that ended well leaves nothing to say.
    fn stop(&self) -> Option<&StoredStop> {
        let stop = self.target.as_ref().ok()?.as_ref()?.stop.as_ref()?;
        let over = stop.past && self.doing() == Doing::NotRunning;
        (!over).then_some(stop)
    }

    fn is_copying(&self) -> bool {
        matches!(&self.target, Ok(Some(state)) if state.phase == FlowPhase::Copying)
    }

    /// Known if both databases answered, and the initial copy is complete.
    fn lag(&self) -> Option<Lag> {
        if self.is_copying() {
            return None;
        }
        let (Ok(source), Ok(Some(state))) = (&self.source, &self.target) else { return None };
        let (position, reached) = state.reached()?;
        let bytes = source.position.bytes_since(position);
        let since = |reached| source.now.duration_since(reached).unwrap_or_default();
        let time = if bytes == 0 { Some(Duration::ZERO) } else { reached.map(since) };
        Some(Lag { bytes, time })
    }

    fn listing(&self, config: &FlowConfig) -> Listing {
        let mut list = Listing::default();
        let doing = self.doing();
        list.toned("flow", config.flow.as_str(), Tone::Strong);
        let state = self.target.as_ref().ok().and_then(Option::as_ref);
        list.toned("doing", doing.explained(state), doing.tone());
        for waiting in &self.waits {
            list.toned("waiting", waiting.text(), Tone::Warning);
            list.pair("hint", waiting.hint());
        }
        if self.is_copying() {
            list.pair("lag", "the copy is not complete");
        }
        if let Some(lag) = self.lag() {
            let time = lag.time.map(|time| format!(", {}", duration(time))).unwrap_or_default();
            list.pair("lag", format!("{}{time}", bytes(lag.bytes)));
        }
        if let Some(stop) = self.stop() {
            list_stop(stop, doing, &mut list);
        }
        for warning in state.map_or(&[][..], |state| &state.warnings) {
            list.toned("warning", warning.as_str(), Tone::Warning);
        }
        list.gap();
        list.pair("source", config.source.connection.to_string());
        match &self.source {
            Ok(source) => list_source(source, config, &self.target, &mut list),
            Err(failure) => list_failure(failure, &mut list),
        }
        list.gap();
        list.pair("target", config.target.connection.to_string());
        match &self.target {
            Ok(Some(state)) => list_state(state, &mut list),
            Ok(None) => list.pair("ledger", "nothing of this flow; `pgonce run` starts it"),
            Err(failure) => list_failure(failure, &mut list),
        }
        list
    }

    fn object(&self, config: &FlowConfig) -> Value {
        let lag = self.lag();
        let source = match &self.source {
            Ok(source) => json!({
                "version": source.version, "wal_lsn": source.position.to_string(), "publications": source.publications,
                "slot": source.slot.as_ref().map(|slot| slot_object(slot, source.retained_bytes())),
            }),
            Err(failure) => failure_object(failure),
        };
        let target = match &self.target {
            Ok(Some(state)) => state_object(state, self.stop()),
            Ok(None) => Value::Null,
            Err(failure) => failure_object(failure),
        };
        json!({
            "flow": config.flow.as_str(), "doing": self.doing().word().replace(' ', "_"),
            "waiting": self.waits.iter().map(Waiting::object).collect::<Vec<_>>(),
            "lag_bytes": lag.map(|lag| lag.bytes),
            "lag_seconds": lag.and_then(|lag| lag.time).map(|time| time.as_secs_f64()),
            "slot": config.source.slot, "source_url": config.source.connection.to_string(),
            "target_url": config.target.connection.to_string(), "source": source, "target": target,
        })
    }
}

fn list_stop(stop: &StoredStop, doing: Doing, list: &mut Listing) {
    // While it runs again, the reason is history.
    let (label, tone) = if doing == Doing::Stopped { ("why", Tone::Bad) } else { ("last stop", Tone::Faint) };
    list.toned(label, format!("{}: {}", stop.code, stop.text), tone);
    if doing == Doing::Stopped {
        list.pair("hint", &stop.hint);
    }
    list.pair("when", stop.at.map_or_else(String::new, utc));
}

fn list_source(
    source: &SourceFacts,
    config: &FlowConfig,
    target: &Result<Option<FlowState>, Failure>,
    list: &mut Listing,
) {
    list.pair("server", format!("PostgreSQL {}, WAL at {}", source.version, source.position));
    for name in config.source.publish.names() {
        match source.publications.contains(&name) {
            true => list.pair("publication", name),
            false if matches!((&config.source.publish, target), (Publish::Ours { .. }, Ok(None))) => {
                list.pair("publication", format!("{name} does not exist yet"));
            }
            false => list.toned("publication", format!("{name} does not exist"), Tone::Bad),
        }
    }
    let name = &config.source.slot;
    let Some(slot) = &source.slot else {
        match target {
            Ok(Some(_)) => list.toned("slot", format!("{name} does not exist: changes since are lost"), Tone::Bad),
            _ => list.pair("slot", format!("{name} does not exist yet")),
        }
        return;
    };
    let reader = match slot.active_pid {
        Some(pid) => format!("read by the server process with PID {pid}"),
        None if slot.active => "being read".to_owned(),
        None => "not being read".to_owned(),
    };
    match slot_trouble(slot) {
        Some(trouble) => list.toned("slot", format!("{name}, {reader}, {trouble}"), Tone::Bad),
        None => list.pair("slot", format!("{name}, {reader}")),
    }
    let mut kept = source.retained_bytes().map(|size| format!("{} kept for the slot", bytes(size))).unwrap_or_default();
    if let Some(safe) = slot.safe_wal_size.and_then(|size| u64::try_from(size).ok()) {
        kept.push_str(&format!(", {} more until it may be lost (max_slot_wal_keep_size)", bytes(safe)));
    }
    list.pair("WAL", kept);
    if let Some(lsn) = slot.confirmed_flush {
        list.pair("confirmed", lsn.to_string());
    }
}

fn slot_trouble(slot: &SlotFacts) -> Option<String> {
    match (slot.wal_status.as_deref(), &slot.invalidation) {
        (_, Some(cause)) => Some(format!("invalidated ({cause}): a new snapshot is needed, see `pgonce reset`")),
        (Some("lost"), None) => Some("lost: a new snapshot is needed, see `pgonce reset`".to_owned()),
        (Some("unreserved"), None) => Some("about to be lost: its WAL goes with the next checkpoint".to_owned()),
        _ => None,
    }
}

fn list_state(state: &FlowState, list: &mut Listing) {
    match &state.checkpoint {
        Some(checkpoint) => {
            let committed = state.commit_time.map(|at| format!(", committed {}", utc(at))).unwrap_or_default();
            let (commit, end, timeline) = (checkpoint.commit, checkpoint.end, checkpoint.timeline);
            list.pair("checkpoint", format!("{commit}, ends at {end}, timeline {timeline}{committed}"));
        }
        None => list.pair("checkpoint", "none: no transaction applied yet"),
    }
    if let Some(idle) = &state.idle {
        let at = state.idle_at.map(|at| format!(", {}", utc(at))).unwrap_or_default();
        list.pair("idle", format!("{idle}: nothing outstanding below it{at}"));
    }
    let copying = state.phase == FlowPhase::Copying;
    if !state.copied.is_empty() || copying {
        let so_far = if copying { " so far" } else { "" };
        let rows = state.copied.iter().map(|table| table.rows).sum();
        let (tables, rows) = (counted(state.copied.len() as u64, "table", "tables"), counted(rows, "row", "rows"));
        list.pair("copied", format!("{tables}, {rows}{so_far}"));
    }
    for entry in &state.map {
        list.pair("map", entry);
    }
    list_copying(state, list);
    let holder = state.holder.as_deref().unwrap_or("nobody yet");
    list.pair("writer", format!("{holder}, epoch {}", state.epoch));
}

/// The tables whose copy is not complete: those that have begun, and how many have not.
fn list_copying(state: &FlowState, list: &mut Listing) {
    if state.copying.is_empty() {
        return;
    }
    let done = |table: &CopyingTable| (table.bytes_copied + table.bytes_under_way).min(table.bytes);
    let (all, size) = (state.copying.iter().map(done).sum(), state.copying.iter().map(|table| table.bytes).sum());
    let left = state.copy_left.map(|left| format!(", about {} left", duration(left))).unwrap_or_default();
    let tables = counted(state.copying.len() as u64, "table", "tables");
    list.pair("to copy", format!("{tables}, {} of about {}{left}", bytes(all), bytes(size)));
    for table in state.copying.iter().filter(|table| done(table) > 0).take(COPYING_MAX) {
        let (name, rows) = (format!("{}.{}", table.schema, table.name), counted(table.rows, "row", "rows"));
        let ranges = match table.pieces {
            1 => String::new(),
            n => format!(", {} of {n} ranges", table.pieces_copied),
        };
        list.pair("copying", format!("{name}: {} of about {}, {rows}{ranges}", bytes(done(table)), bytes(table.bytes)));
    }
}

/// So many of the tables that are being copied are listed.
const COPYING_MAX: usize = 20;

fn list_failure(failure: &Failure, list: &mut Listing) {
    list.toned("cannot ask", format!("{}: {}", failure.code, failure.text), Tone::Bad);
    list.pair("hint", &failure.hint);
}

fn failure_object(failure: &Failure) -> Value {
    let Failure { code, text, hint, exit_status } = failure;
    json!({"error": {"code": code, "text": text, "hint": hint, "exit_status": exit_status}})
}

fn slot_object(slot: &SlotFacts, retained: Option<u64>) -> Value {
    let lsn = |lsn: Option<Lsn>| lsn.map(|lsn| lsn.to_string());
    json!({
        "active": slot.active, "active_pid": slot.active_pid, "wal_status": slot.wal_status, "retained_bytes": retained,
        "restart_lsn": lsn(slot.restart), "confirmed_flush_lsn": lsn(slot.confirmed_flush),
        "safe_wal_size": slot.safe_wal_size, "invalidation": slot.invalidation,
    })
}

fn state_object(state: &FlowState, stop: Option<&StoredStop>) -> Value {
    let tables = state
        .copied
        .iter()
        .map(|table| json!({"table": table.name, "rows": table.rows, "boundary_lsn": table.boundary.to_string()}));
    json!({
        "phase": phase_word(state.phase), "epoch": state.epoch, "holder": state.holder, "alive": state.alive,
        "map": state.map, "warnings": state.warnings,
        "checkpoint": state.checkpoint.map(|c| json!({
            "timeline": c.timeline, "commit_lsn": c.commit.to_string(), "end_lsn": c.end.to_string(),
            "commit_time": state.commit_time.map(utc),
        })),
        "idle": state.idle.map(|lsn| json!({"lsn": lsn.to_string(), "at": state.idle_at.map(utc)})),
        "copied": tables.collect::<Vec<_>>(), "schema_copy": state.schema_copy,
        "copying": state.copying.iter().map(|table| json!({
            "table": format!("{}.{}", table.schema, table.name), "rows": table.rows, "pieces": table.pieces,
            "pieces_copied": table.pieces_copied, "source_bytes_done": table.bytes_copied,
            "source_bytes": table.bytes, "bytes_under_way": table.bytes_under_way,
        })).collect::<Vec<_>>(),
        "copy_seconds_left": state.copy_left.map(|left| left.as_secs()),
        "stop": stop.map(|stop| json!({
            "code": stop.code, "text": stop.text, "hint": stop.hint, "at": stop.at.map(utc),
        })),
    })
}

fn phase_word(phase: FlowPhase) -> &'static str {
    match phase {
        FlowPhase::New => "new",
        FlowPhase::Copying => "copying",
        FlowPhase::Streaming => "streaming",
    }
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use pgonce::position::{Boundary, Checkpoint, CommitLsn, EndLsn};

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn source(position: u64, active: bool) -> SourceFacts {
        let slot = SlotFacts { active, ..SlotFacts::default() };
        let (version, publications, made) = ("15.1".to_owned(), Vec::new(), Vec::new());
        SourceFacts { version, position: Lsn(position), now: at(9), slot: Some(slot), publications, made }
    }

    fn state(end: u64, idle: u64) -> FlowState {
        FlowState {
            phase: FlowPhase::Streaming,
            checkpoint: Some(Checkpoint { timeline: 1, commit: CommitLsn(Lsn(end - 8)), end: EndLsn(Lsn(end)) }),
            commit_time: Some(at(4)),
            idle: Some(Boundary(Lsn(idle))),
            idle_at: Some(at(6)),
            ..FlowState::default()
        }
    }

    fn unreachable() -> Failure {
        Failure { code: "connection", text: "no".to_owned(), hint: "wait".to_owned(), exit_status: 3 }
    }

    #[test]
    fn lag_is_measured_from_the_later_of_checkpoint_and_idle_boundary() {
        let lag = |position, state| Status::of(Ok(source(position, true)), Ok(Some(state))).lag();
        let seconds = |n| Some(Duration::from_secs(n));
        assert_eq!(lag(1000, state(900, 100)), Some(Lag { bytes: 100, time: seconds(5) }));
        assert_eq!(lag(1000, state(900, 950)), Some(Lag { bytes: 50, time: seconds(3) }));
        assert_eq!(lag(1000, state(1000, 100)), Some(Lag { bytes: 0, time: seconds(0) }));
        assert_eq!(lag(1000, FlowState::default()), None);
        assert_eq!(lag(1000, FlowState { phase: FlowPhase::Copying, ..state(900, 100) }), None);
    }

    #[test]
    fn what_it_is_doing_is_told_from_both_sides() {
        let doing = |source, target| Status::of(source, target).doing();
        let stopped = || {
            let stop = StoredStop { code: "busy".to_owned(), ..StoredStop::default() };
            FlowState { stop: Some(stop), ..state(10, 10) }
        };
        assert_eq!(doing(Ok(source(1, true)), Ok(Some(state(10, 10)))), Doing::Streaming);
        assert_eq!(doing(Ok(source(1, true)), Ok(Some(stopped()))), Doing::Streaming);
        assert_eq!(doing(Ok(source(1, false)), Ok(Some(stopped()))), Doing::Stopped);
        assert_eq!(doing(Err(unreachable()), Ok(Some(stopped()))), Doing::Stopped);
        assert_eq!(doing(Ok(source(1, false)), Ok(Some(state(10, 10)))), Doing::NotRunning);
        assert_eq!(doing(Ok(source(1, false)), Ok(None)), Doing::NeverStarted);
        assert_eq!(doing(Ok(source(1, true)), Err(unreachable())), Doing::Unknown);
    }

    #[test]
    fn a_writer_that_is_alive_does_not_stand_still() {
        let told = |phase, alive, active, past| {
            let stop = StoredStop { code: "busy".to_owned(), past, ..StoredStop::default() };
            let state = FlowState { phase, alive, stop: Some(stop), ..state(10, 10) };
            let status = Status::of(Ok(source(1, active)), Ok(Some(state)));
            (status.doing(), status.stop().is_some())
        };
        let (new, copying, streaming) = (FlowPhase::New, FlowPhase::Copying, FlowPhase::Streaming);
        assert_eq!(told(new, Some(7), false, true), (Doing::Starting, true));
        assert_eq!(told(copying, Some(7), false, true), (Doing::Copying, true));
        assert_eq!(told(streaming, Some(7), false, true), (Doing::Waiting, true));
        assert_eq!(told(streaming, Some(7), true, true), (Doing::Streaming, true));
        assert_eq!(told(copying, None, false, false), (Doing::Stopped, true));
        assert_eq!(told(streaming, None, false, true), (Doing::NotRunning, false));
        let state = FlowState { phase: copying, ..FlowState::default() };
        let said = Doing::NotRunning.explained(Some(&state));
        assert_eq!(said, "not running; the copy is not complete (0 tables copied)");
    }

    #[test]
    fn a_database_that_cannot_be_asked_decides_the_exit_status() {
        assert_eq!(Status::of(Ok(source(1, true)), Ok(None)).exit_status(), 0);
        assert_eq!(Status::of(Err(unreachable()), Ok(None)).exit_status(), 3);
        assert_eq!(Status::of(Err(unreachable()), Ok(None)).checked(), 3);
    }

    #[test]
    fn a_check_ends_as_the_run_did() {
        let checked = |active, code: Option<&str>, past| {
            let stop = code.map(|code| StoredStop { code: code.to_owned(), past, ..StoredStop::default() });
            Status::of(Ok(source(1, active)), Ok(Some(FlowState { stop, ..state(10, 10) }))).checked()
        };
        assert_eq!(checked(false, Some("row_conflict"), false), 7);
        assert_eq!(checked(false, Some("data_gap"), false), 4);
        assert_eq!(checked(false, Some("of a newer version"), false), 70);
        assert_eq!(checked(true, Some("row_conflict"), true), 0);
        assert_eq!(checked(true, None, false), 0);
        assert_eq!(checked(false, None, false), 2);
        assert_eq!(Status::of(Ok(source(1, false)), Ok(None)).checked(), 2);
    }
}
