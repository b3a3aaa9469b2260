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

/// So much is read without a pause; there is more.
pub(super) const GULP_MAX: usize = 256 << 10;

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

    /// Everything that was there has been read and looked at; it was so many bytes. How long to stay away now?
    pub(super) fn after_gulp(&mut self, bytes: usize, now: Instant) -> Option<Duration> {
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
        self.paused = self.fast && self.is_behind() && bytes < GULP_MAX;
        self.paused.then_some(self.pause)
    }

    fn is_behind(&self) -> bool {
        self.lag.committed.is_none_or(|committed| self.lag.sent.saturating_sub(committed) >= BEHIND)
    }
}

fn time_at(bytes: &[u8], at: usize) -> Option<i64> {
    bytes.get(at..)?.first_chunk().map(|time| i64::from_be_bytes(*time))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream of Begin, some other message and Commit, and a clock.
    struct Stream {
        rhythm: Rhythm,
        now: Instant,
    }

    impl Stream {
        fn new() -> Stream {
            let rhythm = Rhythm::new();
            Stream { now: rhythm.since, rhythm }
        }

        /// A read, `after` the one before, of so many transactions and bytes, sent `lag` after their commits.
        fn read(&mut self, after: Duration, transactions: u32, bytes: usize, lag: i64) -> Option<Duration> {
            let committed = 1_000_000;
            let mut begin = vec![b'B'; 9];
            begin.extend_from_slice(&i64::to_be_bytes(committed));
            begin.extend_from_slice(&[0, 0, 0, 3]);
            for message in (0..transactions).flat_map(|_| [&begin[..], b"I", b"C"]) {
                self.rhythm.message(committed + lag, message);
            }
            self.now += after;
            self.rhythm.after_gulp(bytes, self.now)
        }

        fn reads(&mut self, count: u32, after: Duration, bytes: usize, lag: i64) -> Option<Duration> {
            (0..count).fold(None, |_, _| self.read(after, 1, bytes, lag))
        }
    }

    const MICROS: Duration = Duration::from_micros(1);

    #[test]
    fn what_has_just_committed_is_never_waited_for_however_much_it_is() {
        let mut stream = Stream::new();
        for _ in 0..20_000 {
            assert_eq!(stream.read(50 * MICROS, 1, 300, 400), None);
        }
    }

    #[test]
    fn a_reader_that_is_behind_stays_away_and_a_late_wake_up_changes_nothing() {
        let mut stream = Stream::new();
        assert!(stream.reads(500, 50 * MICROS, 300, 5_000_000).is_some());
        // What comes behind a read that had to wait.
        assert!(stream.read(3_000 * MICROS, 100, 30_000, 5_000_000).is_some());
        assert!(stream.read(500 * MICROS, 100, 30_000, 5_000_000).is_some());
    }

    #[test]
    fn the_first_transaction_that_is_not_behind_ends_it_at_once() {
        let mut stream = Stream::new();
        assert!(stream.reads(500, 50 * MICROS, 300, 5_000_000).is_some());
        assert_eq!(stream.read(50 * MICROS, 1, 300, 500), None);
    }

    #[test]
    fn a_slow_stream_is_read_as_it_comes() {
        let mut stream = Stream::new();
        assert_eq!(stream.reads(500, 5_000 * MICROS, 300, 5_000_000), None);
        // After a silence too.
        assert!(stream.reads(500, 50 * MICROS, 300, 5_000_000).is_some());
        assert_eq!(stream.read(1_000_000 * MICROS, 1, 300, 5_000_000), None);
    }

    #[test]
    fn an_open_transaction_in_pieces_is_nobody_s_who_waits_until_it_commits() {
        let mut stream = Stream::new();
        let mut pieces = |messages: u32, message: &[u8]| {
            (0..messages).for_each(|_| stream.rhythm.message(1_000_000, message));
            stream.now += 100 * MICROS;
            stream.rhythm.after_gulp(30_000, stream.now)
        };
        let paused = (0..200).fold(None, |_, _| pieces(20, b"S\0\0\0\x07\x01"));
        assert!(paused.is_some());
        let mut commit = vec![0; 1 + 4 + 1 + 8 + 8];
        commit[0] = b'c';
        commit.extend_from_slice(&i64::to_be_bytes(999_000));
        assert_eq!(pieces(1, &commit), None);
    }

    #[test]
    fn the_pause_follows_what_it_brings() {
        let mut stream = Stream::new();
        let many = |stream: &mut Stream, bytes| {
            (0..200).fold(None, |_, _| stream.read(500 * MICROS, 100, bytes, 5_000_000)).unwrap()
        };
        assert_eq!(many(&mut stream, 200_000), PAUSES.0);
        assert_eq!(many(&mut stream, 1_000), PAUSES.1);
        let between = many(&mut stream, 30_000);
        assert_eq!(many(&mut stream, 30_000), between);
    }
}
