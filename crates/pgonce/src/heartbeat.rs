//! Heartbeats: small transactions of the source end, for sinks that cannot store an idle boundary.
//!
//! The acknowledgement of such a sink moves with transactions only. Where everything that is written goes to tables
//! that are not published, the slot would stand still and keep WAL for ever. A heartbeat is a transaction whose only
//! content is a message with the prefix [`PREFIX`]: it reaches the sink as an empty transaction, its commit becomes the
//! checkpoint, and the acknowledgement follows.
//!
//! There is one at a time, none while the flow is behind, and none in a database that is idle: the pulse beats only if
//! a page of WAL or more has come since what was acknowledged. Flows that share a database see each other's heartbeats,
//! which move them too, so that they do not add up.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::connect::SqlConnection;
use crate::position::{Boundary, Lsn};
use crate::source::Event;
use crate::sql_error::{condition, passes};

/// The prefix of the messages, whatever flow they are of; their content is the name of the slot. It is reserved: a
/// transactional message with it is shown to no sink.
pub const PREFIX: &str = "pgonce.heartbeat";

/// Less WAL than this behind the acknowledgement is not worth a heartbeat, whose own records are about 200 bytes.
const WORTH: u64 = 8192;

/// When to beat. No I/O.
#[derive(Debug)]
struct Pulse {
    interval: Duration,
    /// When the acknowledgement moved last, or a heartbeat was sent.
    since: Instant,
    /// How far the source has said that it has sent everything.
    reported: Lsn,
    /// The end of the last transaction that has come.
    received: Lsn,
    acknowledged: Lsn,
    /// The heartbeat that is on its way.
    outstanding: Option<Lsn>,
}

impl Pulse {
    fn new(interval: Duration, acknowledged: Lsn, now: Instant) -> Pulse {
        let start = Lsn::ZERO;
        Pulse { interval, since: now, reported: start, received: start, acknowledged, outstanding: None }
    }

    fn received(&mut self, events: &[Event]) {
        for event in events {
            match event {
                Event::Transaction(transaction) => self.received = self.received.max(transaction.end().0),
                Event::Reported { point, .. } => self.reported = self.reported.max(point.0),
                _ => {}
            }
        }
    }

    fn acknowledged(&mut self, position: Lsn, now: Instant) {
        if position > self.acknowledged {
            (self.acknowledged, self.since) = (position, now);
        }
        if self.outstanding.is_some_and(|at| position > at) {
            self.outstanding = None;
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        let behind = self.received > self.acknowledged || self.outstanding.is_some();
        let worth = self.reported.bytes_since(self.acknowledged) >= WORTH;
        !behind && worth && now >= self.since + self.interval
    }

    fn beat(&mut self, at: Lsn, now: Instant) {
        (self.outstanding, self.since) = (Some(at), now);
    }
}

/// Whose heartbeats.
pub(crate) struct Of {
    pub(crate) slot: String,
    pub(crate) server_version: u32,
}

/// The heartbeats of one session.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    pulse: Mutex<Pulse>,
    warnings: Mutex<Vec<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Heartbeat {
    pub(crate) fn start(sql: Arc<SqlConnection>, of: Of, interval: Duration, confirmed: Lsn) -> Heartbeat {
        let pulse = Mutex::new(Pulse::new(interval, confirmed, Instant::now()));
        let shared = Arc::new(Shared { pulse, warnings: Mutex::default() });
        let task = tokio::spawn(beat(sql, of, interval, Arc::clone(&shared)));
        Heartbeat { shared, task }
    }

    pub(crate) fn received(&self, events: &[Event]) {
        lock(&self.shared.pulse).received(events);
    }

    pub(crate) fn acknowledged(&self, position: Boundary) {
        lock(&self.shared.pulse).acknowledged(position.0, Instant::now());
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.shared.warnings))
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn beat(sql: Arc<SqlConnection>, of: Of, interval: Duration, shared: Arc<Shared>) {
    let Of { slot, server_version } = of;
    // A commit that waits for a standby would hold up what else is asked on this connection.
    const EMIT: &str = "SELECT CASE WHEN NOT pg_catalog.pg_is_in_recovery() \
         AND pg_catalog.set_config('synchronous_commit', 'local', true) = 'local' \
         THEN pg_catalog.pg_logical_emit_message(true, $1::text, $2::text)::text END";
    let pause = (interval / 4).clamp(Duration::from_millis(50), Duration::from_secs(5));
    loop {
        tokio::time::sleep(pause).await;
        if !lock(&shared.pulse).is_due(Instant::now()) {
            continue;
        }
        let emitted = sql.client.query_one(EMIT, &[&PREFIX, &slot]).await;
        let refused = match emitted {
            Ok(row) => match row.get::<_, Option<String>>(0).and_then(|text| text.parse().ok()) {
                Some(at) => {
                    lock(&shared.pulse).beat(at, Instant::now());
                    continue;
                }
                None => "the source is a standby".to_owned(),
            },
            Err(error) => match error.code().map(|code| code.code().to_owned()) {
                // Whoever else asks on this connection finds that it is gone.
                None => return,
                Some(state) if passes(&state) => continue,
                Some(state) => {
                    let hint = match state.as_str() {
                        "42501" => format!(
                            "; on the source: GRANT EXECUTE ON FUNCTION \
                             pg_catalog.pg_logical_emit_message(boolean, text, text{}) TO the source's role;",
                            if server_version >= 170_000 { ", boolean" } else { "" }
                        ),
                        _ => String::new(),
                    };
                    format!("pg_logical_emit_message: SQLSTATE {state} ({}){hint}", condition(&state))
                }
            },
        };
        lock(&shared.warnings).push(format!(
            "no heartbeat can be written, so that slot {slot} keeps WAL while only tables are written that are not \
             published: {refused}"
        ));
        return;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64, start: Instant) -> Instant {
        start + Duration::from_secs(second)
    }

    fn report(pulse: &mut Pulse, point: u64) {
        pulse.received(&[Event::Reported { point: Boundary(Lsn(point)), open: false, sending: false }]);
    }

    #[test]
    fn it_beats_once_while_nothing_else_moves_and_never_in_an_idle_database() {
        let start = Instant::now();
        let mut pulse = Pulse::new(Duration::from_secs(10), Lsn(1000), start);
        report(&mut pulse, 1000 + WORTH - 1);
        assert!(!pulse.is_due(at(100, start)), "too little was written");
        report(&mut pulse, 1000 + WORTH);
        assert!(!pulse.is_due(at(9, start)) && pulse.is_due(at(10, start)));
        pulse.beat(Lsn(20_000), at(10, start));
        report(&mut pulse, 1_000_000);
        assert!(!pulse.is_due(at(1000, start)), "one is on its way");
        pulse.acknowledged(Lsn(20_000), at(1000, start));
        assert!(!pulse.is_due(at(2000, start)), "what lies before it says nothing of it");
        pulse.acknowledged(Lsn(20_100), at(2000, start));
        assert!(!pulse.is_due(at(2009, start)) && pulse.is_due(at(2010, start)));
        pulse.acknowledged(Lsn(1_000_000), at(2011, start));
        assert!(!pulse.is_due(at(9000, start)), "nothing has been written since");
    }

    #[test]
    fn it_does_not_beat_while_the_flow_is_behind() {
        let start = Instant::now();
        let mut pulse = Pulse::new(Duration::from_secs(1), Lsn(1000), start);
        report(&mut pulse, 100_000);
        pulse.received = Lsn(50_000);
        assert!(!pulse.is_due(at(100, start)), "a transaction has come that is not durable");
        pulse.acknowledged(Lsn(50_000), at(100, start));
        assert!(pulse.is_due(at(101, start)));
    }
}
