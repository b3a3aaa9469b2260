//! What of a pipeline's progress is worth saying: snapshots of it become notices, each said once. No clock and no
//! output here.

use std::time::Duration;

use pgonce::board::{Look, TableLook};
use pgonce::pipeline::{Phase, Progress};
use pgonce::position::Boundary;
use pgonce::stop::{Reason, Side, Stop};
use serde_json::{Value, json};

use crate::config::keys::key;
use crate::render::{bytes, count, counted, duration};
use crate::waits::Waiting;

/// Something that happened.
#[derive(Clone, PartialEq, Debug)]
pub enum Notice {
    /// The pipeline does something else now.
    Phase {
        /// What.
        phase: Phase,
        /// How many tables there are to copy.
        tables: usize,
        /// From where on tables are consistent with each other.
        consistent_from: Option<Boundary>,
    },
    /// The initial copy is complete.
    Copied {
        /// Tables.
        tables: usize,
        /// Rows copied by this process.
        rows: u64,
        /// Bytes copied by this process.
        bytes: u64,
        /// How long it took.
        took: Duration,
    },
    /// A fault that heals by itself has begun, or has become another one.
    Fault {
        /// The fault.
        stop: Stop,
        /// Whether this process has not been connected to both ends yet: then what was typed may be wrong.
        first: bool,
    },
    /// The flow stands still, and this is what for.
    Waiting(Waiting),
    /// It is over.
    Recovered {
        /// How long it lasted.
        after: Duration,
    },
    /// Something to know.
    Warning(String),
}

/// Remembers what has been said.
#[derive(Debug, Default)]
pub struct Watcher {
    phase: Option<Phase>,
    fault: Option<(Stop, Duration)>,
    copying_since: Option<Duration>,
    warnings: usize,
    /// Whether both ends have been connected to.
    connected: bool,
}

impl Watcher {
    /// What is new in `progress`, looked at when the run is `elapsed` old.
    pub fn look(&mut self, progress: &Progress, elapsed: Duration) -> Vec<Notice> {
        let mut notices = Vec::new();
        let unseen = progress.warnings.get(self.warnings..).unwrap_or_default();
        notices.extend(unseen.iter().cloned().map(Notice::Warning));
        self.warnings = self.warnings.max(progress.warnings.len());
        self.connected |= !matches!(progress.phase, Phase::Connecting | Phase::Waiting);
        self.look_at_fault(progress, elapsed, &mut notices);
        // While a fault is waited out, attempts to connect are not news.
        if self.fault.is_none() && self.phase != Some(progress.phase) && progress.phase != Phase::Waiting {
            // Looks may miss the phases in between: a copy is over when the last table is, whatever came next.
            if let Some(since) = self.copying_since
                && progress.phase != Phase::Copying
                && progress.tables_copied == progress.tables
            {
                self.copying_since = None;
                let Progress { tables, rows_copied: rows, bytes_copied: bytes, .. } = *progress;
                notices.push(Notice::Copied { tables, rows, bytes, took: elapsed.saturating_sub(since) });
            }
            if progress.phase == Phase::Copying && self.copying_since.is_none() {
                self.copying_since = Some(elapsed);
            }
            self.phase = Some(progress.phase);
            let Progress { phase, tables, consistent_from, .. } = *progress;
            notices.push(Notice::Phase { phase, tables, consistent_from });
        }
        notices
    }

    fn look_at_fault(&mut self, progress: &Progress, elapsed: Duration, notices: &mut Vec<Notice>) {
        match (&progress.fault, self.fault.take()) {
            (None, None) => {}
            (None, Some((_, since))) => notices.push(Notice::Recovered { after: elapsed.saturating_sub(since) }),
            (Some((fault, _)), before) => {
                if before.as_ref().is_none_or(|(said, _)| said != fault) {
                    notices.push(Notice::Fault { stop: fault.clone(), first: !self.connected });
                }
                self.fault = Some((fault.clone(), before.map_or(elapsed, |(_, since)| since)));
            }
        }
    }
}

/// A phase, in a word for programs.
pub fn phase_word(phase: Phase) -> &'static str {
    match phase {
        Phase::Connecting => "connecting",
        Phase::Beginning => "beginning",
        Phase::Copying => "copying",
        Phase::CatchingUp => "catching_up",
        Phase::Streaming => "streaming",
        Phase::Waiting => "waiting",
        Phase::Stopping => "stopping",
        _ => "working",
    }
}

impl Notice {
    /// The notice for people, on a line or a few.
    pub fn text(&self) -> String {
        match self {
            Notice::Phase { phase: Phase::Beginning, .. } => {
                "making the slot (which waits until transactions that are open on the source have ended)".to_owned()
            }
            Notice::Phase { phase: Phase::Copying, tables, .. } => {
                format!("copying {}", counted(*tables as u64, "table", "tables"))
            }
            Notice::Phase { phase: Phase::CatchingUp, consistent_from: Some(from), .. } => {
                format!("catching up: tables may differ in age until everything before {from} is applied")
            }
            Notice::Phase { phase: Phase::CatchingUp, .. } => "catching up".to_owned(),
            Notice::Phase { phase, .. } => phase_word(*phase).to_owned(),
            Notice::Copied { tables, rows, bytes: size, took } => format!(
                "copied {}: {}, {} in {}",
                counted(*tables as u64, "table", "tables"),
                counted(*rows, "row", "rows"),
                bytes(*size),
                duration(*took)
            ),
            Notice::Fault { stop, first } => {
                format!("trying again[{}]: {stop}\nhint: {}", stop.code(), fault_hint(stop, *first))
            }
            Notice::Waiting(waiting) => format!("{}\nhint: {}", waiting.text(), waiting.hint()),
            Notice::Recovered { after } => format!("recovered after {}", duration(*after)),
            Notice::Warning(text) => format!("warning: {text}"),
        }
    }

    /// The notice for programs.
    pub fn object(&self) -> Value {
        match self {
            Notice::Phase { phase, tables, consistent_from } => json!({
                "event": "phase", "phase": phase_word(*phase), "tables": tables,
                "consistent_from": consistent_from.map(|lsn| lsn.to_string()),
            }),
            Notice::Copied { tables, rows, bytes, took } => json!({
                "event": "copied", "tables": tables, "rows": rows, "bytes": bytes, "seconds": took.as_secs_f64(),
            }),
            Notice::Fault { stop, first } => json!({
                "event": "fault", "code": stop.code(), "text": stop.to_string(), "hint": fault_hint(stop, *first),
            }),
            Notice::Waiting(waiting) => {
                let mut object = waiting.object();
                object["event"] = "waiting".into();
                object
            }
            Notice::Recovered { after } => json!({"event": "recovered", "seconds": after.as_secs_f64()}),
            Notice::Warning(text) => json!({"event": "warning", "text": text}),
        }
    }
}

/// What can be done about a fault. A server that this process has never reached may not be the one that was meant.
fn fault_hint(stop: &Stop, first: bool) -> String {
    let Reason::Connection { side, .. } = stop.reason() else { return stop.hint() };
    if !first {
        return stop.hint();
    }
    format!(
        "pgonce has not reached the {side} since it was started, and keeps trying until it does. If the {side} should \
         be there, interrupt this and correct host and port in {}",
        where_set(*side)
    )
}

/// Where the connection string of a side is set, in a sentence.
pub fn where_set(side: Side) -> String {
    let key = key(match side {
        Side::Source => "source.url",
        Side::Target => "target.url",
    });
    format!(
        "`{}` (--{}, {}): `pgonce config show` says what holds and where it was set.",
        key.path,
        key.flag,
        key.variable()
    )
}

/// Two looks at the counters, a while apart: what is said regularly.
#[derive(Clone, Debug)]
pub struct Pace {
    /// The counters.
    pub progress: Progress,
    /// Transactions a second since the look before.
    pub transactions_per_second: f64,
    /// Changes a second.
    pub changes_per_second: f64,
    /// Copied bytes a second.
    pub bytes_per_second: f64,
    /// How far the tables are that are being copied.
    pub copy: Look,
    /// How long before `now` the last applied transaction committed, where there is more to apply.
    pub lag: Option<Duration>,
}

impl Pace {
    /// The pace between two looks. `now` is this machine's clock, in microseconds since 1970.
    pub fn between(before: &Progress, after: &Progress, interval: Duration, now: i64) -> Pace {
        let seconds = interval.as_secs_f64().max(0.001);
        let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
        let behind = after.waiting > 0;
        let lag = after.commit_time.filter(|_| behind).map(|time| now.saturating_sub(time.unix_micros()).max(0));
        Pace {
            transactions_per_second: rate(before.applied, after.applied),
            changes_per_second: rate(before.changes, after.changes),
            bytes_per_second: rate(before.bytes_copied, after.bytes_copied),
            copy: after.copy.look(),
            lag: lag.map(|micros| Duration::from_micros(micros.unsigned_abs())),
            progress: after.clone(),
        }
    }

    /// The pace for people, on a line.
    pub fn text(&self) -> String {
        let p = &self.progress;
        if p.phase == Phase::Copying {
            return format!("copying: {}", self.copying());
        }
        let position = p.checkpoint.map(|c| format!(", at {}", c.commit)).unwrap_or_default();
        let lag = match self.lag {
            Some(lag) => format!(", {} behind", duration(lag)),
            None => ", up to date".to_owned(),
        };
        let again = match p.redelivered {
            0 => String::new(),
            n => format!(", {} redelivered and skipped", count(n)),
        };
        let copying = if self.copy.tables.is_empty() { String::new() } else { format!("; copying {}", self.copying()) };
        format!(
            "{}: {} applied ({}/s, {} changes/s){again}{position}{lag}{copying}",
            phase_word(p.phase).replace('_', " "),
            counted(p.applied, "transaction", "transactions"),
            count(self.transactions_per_second.round() as u64),
            count(self.changes_per_second.round() as u64),
        )
    }

    /// The copy in all: tables, rows, bytes, rate, time left.
    fn copying(&self) -> String {
        let p = &self.progress;
        let share = share(self.copy.done, self.copy.estimated).map(|share| format!(" ({share})")).unwrap_or_default();
        let left = self.copy.left.map(|left| format!(", about {} left", duration(left))).unwrap_or_default();
        let under_way = self.copy.tables.iter().filter(|table| table.under_way);
        let now: Vec<String> = under_way.take(SHOWN_MAX).map(|table| table.table.clone()).collect();
        let now = if now.is_empty() { String::new() } else { format!(", now {}", now.join(", ")) };
        format!(
            "{} of {} tables, {} copied{share}, {}/s{left}{now}",
            p.tables_copied,
            p.tables,
            bytes(p.bytes_copied),
            bytes(self.bytes_per_second as u64),
        )
    }

    /// A line for each table that is under way, for a terminal.
    pub fn tables(&self) -> Vec<String> {
        let line = |table: &TableLook| {
            let share = share(table.done, table.estimated).unwrap_or_default();
            let pieces = match table.pieces {
                1 => String::new(),
                n => format!(", {} of {n} ranges", table.pieces_copied),
            };
            let (rows, size) = (counted(table.rows, "row", "rows"), bytes(table.bytes));
            format!("  {}: {rows}, {size}, {share}{pieces}", table.table)
        };
        self.copy.tables.iter().filter(|table| table.under_way).take(SHOWN_MAX).map(line).collect()
    }

    /// The pace for programs.
    pub fn object(&self) -> Value {
        let p = &self.progress;
        json!({
            "event": "progress", "phase": phase_word(p.phase), "tables": p.tables, "tables_copied": p.tables_copied,
            "table": p.table, "rows_copied": p.rows_copied, "bytes_copied": p.bytes_copied,
            "bytes_per_second": self.bytes_per_second.round(), "copy": self.copy_object(),
            "applied": p.applied, "redelivered": p.redelivered,
            "changes": p.changes, "waiting": p.waiting,
            "transactions_per_second": self.transactions_per_second.round(),
            "changes_per_second": self.changes_per_second.round(),
            "lag_seconds": self.lag.map_or(0.0, |lag| lag.as_secs_f64()),
            "checkpoint": p.checkpoint.map(|c| json!({
                "timeline": c.timeline, "commit_lsn": c.commit.to_string(), "end_lsn": c.end.to_string(),
            })),
            "reported_lsn": p.reported.map(|lsn| lsn.to_string()),
            "acknowledged_lsn": p.acknowledged.map(|lsn| lsn.to_string()),
        })
    }

    fn copy_object(&self) -> Value {
        let table = |table: &TableLook| {
            json!({
                "table": table.table, "rows": table.rows, "bytes": table.bytes, "source_bytes_done": table.done,
                "source_bytes": table.estimated, "pieces_copied": table.pieces_copied, "pieces": table.pieces,
            })
        };
        json!({
            "source_bytes_done": self.copy.done, "source_bytes": self.copy.estimated,
            "seconds_left": self.copy.left.map(|left| left.as_secs()),
            "tables": self.copy.tables.iter().map(table).collect::<Vec<_>>(),
        })
    }
}

/// So many tables are shown at most.
const SHOWN_MAX: usize = 8;

/// A part of a whole, for people.
fn share(done: u64, estimated: u64) -> Option<String> {
    let percent = done.saturating_mul(100).checked_div(estimated)?;
    Some(format!("{percent}%"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn at(phase: Phase) -> Progress {
        let mut progress = Progress::default();
        progress.phase = phase;
        progress
    }

    fn lost(what: &str) -> Stop {
        Reason::Connection { side: Side::Source, what: what.to_owned() }.into()
    }

    fn texts(notices: &[Notice]) -> Vec<String> {
        notices.iter().map(Notice::text).collect()
    }

    #[test]
    fn each_phase_is_said_once_and_the_copy_is_summed_up() {
        let mut watcher = Watcher::default();
        let mut copying = at(Phase::Copying);
        copying.tables = 2;
        assert_eq!(texts(&watcher.look(&at(Phase::Connecting), seconds(0))), ["connecting"]);
        assert_eq!(texts(&watcher.look(&copying, seconds(1))), ["copying 2 tables"]);
        assert!(watcher.look(&copying, seconds(2)).is_empty());
        let mut streaming = at(Phase::Streaming);
        (streaming.tables, streaming.tables_copied) = (2, 2);
        (streaming.rows_copied, streaming.bytes_copied) = (1000, 2048);
        let said = watcher.look(&streaming, seconds(21));
        assert_eq!(texts(&said), ["copied 2 tables: 1,000 rows, 2.0 kB in 20 s", "streaming"]);
    }

    #[test]
    fn a_fault_is_said_once_per_change_and_not_once_per_attempt() {
        let mut watcher = Watcher::default();
        watcher.look(&at(Phase::Streaming), seconds(0));
        let mut waiting = at(Phase::Waiting);
        waiting.fault = Some((lost("connection lost"), 1));
        assert_eq!(watcher.look(&waiting, seconds(5)), [Notice::Fault { stop: lost("connection lost"), first: false }]);
        waiting.phase = Phase::Connecting;
        waiting.fault = Some((lost("connection lost"), 2));
        assert!(watcher.look(&waiting, seconds(6)).is_empty());
        waiting.fault = Some((lost("connection refused"), 3));
        assert_eq!(
            watcher.look(&waiting, seconds(7)),
            [Notice::Fault { stop: lost("connection refused"), first: false }]
        );
        // The phase is the one that was said before: nothing to add.
        assert_eq!(texts(&watcher.look(&at(Phase::Streaming), seconds(17))), ["recovered after 12 s"]);
    }

    #[test]
    fn a_server_that_was_never_reached_is_told_with_the_key_that_names_it() {
        let mut watcher = Watcher::default();
        let mut waiting = at(Phase::Waiting);
        waiting.fault = Some((lost("cannot connect to nowhere:5432: connection refused"), 1));
        let said = watcher.look(&waiting, seconds(1));
        let text = said[0].text();
        for part in ["nowhere:5432", "has not reached the source", "`source.url` (--source, PGONCE_SOURCE_URL)"] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(said[0].object()["hint"], text.split_once("hint: ").expect("a hint").1);
    }

    #[test]
    fn a_warning_is_said_once() {
        let mut watcher = Watcher::default();
        let mut progress = at(Phase::Connecting);
        progress.warnings.push("one".to_owned());
        assert_eq!(texts(&watcher.look(&progress, seconds(0))), ["warning: one", "connecting"]);
        progress.warnings.push("two".to_owned());
        assert_eq!(texts(&watcher.look(&progress, seconds(1))), ["warning: two"]);
    }

    #[test]
    fn a_copy_is_told_in_all_and_table_by_table() {
        let mut after = at(Phase::Copying);
        (after.tables, after.tables_copied, after.bytes_copied) = (10, 3, 300 << 20);
        let mut pace = Pace::between(&at(Phase::Copying), &after, seconds(10), 0);
        let table = |name: &str, under_way| TableLook {
            table: name.into(),
            rows: 1_200_000,
            bytes: 100 << 20,
            done: 25,
            estimated: 100,
            pieces_copied: 1,
            pieces: 4,
            under_way,
        };
        let tables = vec![table("public.a", true), table("public.b", false)];
        pace.copy = Look { tables, done: 30, estimated: 120, left: Some(seconds(90)) };
        assert_eq!(
            pace.text(),
            "copying: 3 of 10 tables, 300.0 MB copied (25%), 30.0 MB/s, about 90 s left, now public.a"
        );
        assert_eq!(pace.tables(), ["  public.a: 1,200,000 rows, 100.0 MB, 25%, 1 of 4 ranges"]);
        assert_eq!(pace.object()["copy"]["seconds_left"], 90);
        assert_eq!(pace.object()["copy"]["tables"][1]["pieces"], 4);
    }

    #[test]
    fn the_pace_is_that_of_the_interval() {
        let before = at(Phase::Streaming);
        let mut after = at(Phase::Streaming);
        (after.applied, after.changes) = (2000, 30_000);
        let pace = Pace::between(&before, &after, seconds(10), 0);
        assert_eq!(pace.text(), "streaming: 2,000 transactions applied (200/s, 3,000 changes/s), up to date");
        assert_eq!(pace.object()["changes_per_second"], 3000.0);
    }
}
