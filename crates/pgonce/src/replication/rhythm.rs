//! When the socket is read.
//!
//! A walsender sends each message by itself. A reader that waits for the next one is woken by each, and the server
//! pays for it: of many small transactions it sends less than half as many in a second as to a reader that comes by now
//! and then. A reader that is not behind must not let anything wait.

use std::time::{Duration, Instant};

/// Decides how long the reader stays away from the socket.
#[derive(Debug)]
pub(super) struct Rhythm {
    lag: Lag,
    /// Since when `messages` are counted.
    since: Instant,
    messages: u32,
    /// Whether the last whole window had many messages.
    fast: bool,
    /// The pause that brings about as much as is wanted.
    pause: Duration,
    paused: bool,
}

/// How far the walsender is behind its own commits.
#[derive(Clone, Copy, Debug, Default)]
struct Lag {
    /// When the transaction committed that is being sent, by the source's clock. `None`: it has not.
    committed: Option<i64>,
    /// When the last message was sent, by the same clock.
    sent: i64,
}

/// Messages are counted for so long, at least.
const WINDOW: Duration = Duration::from_millis(10);

/// A stream with fewer messages in a window is read as it comes: there is nothing to gain.
const MANY: u32 = 50;

/// A transaction that is sent so much later than it committed is not made late by a pause (microseconds).
const BEHIND: i64 = 20_000;

/// What a pause should bring: enough for many messages, and less than fills the socket's buffer, for then the
/// walsender has to wait for the reader.
const WANTED: std::ops::Range<usize> = 16 << 10..48 << 10;

const PAUSES: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(1));

impl Rhythm {
    pub(super) fn new() -> Rhythm {
        Rhythm {
            lag: Lag::default(),
            since: Instant::now(),
            messages: 0,
            fast: false,
            pause: Duration::from_micros(500),
            paused: false,
        }
    }

    /// A message came, sent at this time by the source's clock.
    #[inline]
    pub(super) fn message(&mut self, sent: i64, message: &[u8]) {
        self.messages += 1;
        self.lag.sent = sent;
        match message {
            // Begin: the commit's LSN, then its time.
            [b'B', rest @ ..] => self.lag.committed = time_at(rest, 8),
            // StreamCommit: the transaction, flags, the commit's LSN, the end LSN, then its time.
            [b'c', rest @ ..] => self.lag.committed = time_at(rest, 4 + 1 + 8 + 8),
            // StreamStart: nobody waits for a transaction that is still open.
            [b'S', ..] => self.lag.committed = None,
            _ => {}
        }
    }

    /// Everything that a read has brought was looked at; it was so many bytes. How long to stay away now?
    pub(super) fn after_read(&mut self, bytes: usize, now: Instant) -> Option<Duration> {
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed >= WINDOW {
            let messages = u128::from(self.messages);
            self.fast = messages * WINDOW.as_micros() >= u128::from(MANY) * elapsed.as_micros();
            self.since = now;
            self.messages = 0;
        }
        if self.paused {
            if bytes >= WANTED.end {
                self.pause = (self.pause * 3 / 4).max(PAUSES.0);
            } else if bytes < WANTED.start {
                self.pause = (self.pause * 5 / 4).min(PAUSES.1);
            }
        }
        self.paused = self.fast && self.is_behind();
        self.paused.then_some(self.pause)
    }

    fn is_behind(&self) -> bool {
        self.lag.committed.is_none_or(|committed| self.lag.sent.saturating_sub(committed) >= BEHIND)
    }
}

fn time_at(bytes: &[u8], at: usize) -> Option<i64> {
    bytes.get(at..)?.first_chunk().map(|time| i64::from_be_bytes(*time))
}
