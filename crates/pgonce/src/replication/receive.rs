//! Reads the stream: frames, XLogData and keepalives, into the assembler, into the queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::io::ReadHalf;
use tokio::task::JoinHandle;

use super::feedback::Feedback;
use super::queue::Queue;
use super::reader_thread::ReaderThread;
use super::rhythm::{GULP_MAX, Rhythm};
use super::session::{Streaming, broken, frame_stop, server_stop};
use crate::assemble::Assembler;
use crate::connect::frame::FrameReader;
use crate::connect::{ServerError, Transport};
use crate::position::{Boundary, Lsn};
use crate::source::Event;
use crate::sql_error::{SOURCE_ENCODING, condition, is_encoding};
use crate::stop::{Reason, Side, Stop};

/// The task that reads the socket, and the two ends through which the pipeline deals with it.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) queue: Arc<Queue>,
    pub(crate) feedback: Feedback,
    task: JoinHandle<()>,
    /// Where the task runs, for as long as it does.
    _thread: ReaderThread,
}

/// Bounds of what waits between the socket and the sink.
#[derive(Debug)]
pub(crate) struct ReceiverSettings {
    pub(crate) slot: String,
    pub(crate) assembler: Assembler,
    pub(crate) queue_bytes: usize,
    pub(crate) wal_sender_timeout: Duration,
    pub(crate) silence_max: Duration,
    /// Messages outside transactions are handed out.
    pub(crate) messages: bool,
}

impl Receiver {
    pub(crate) fn start(streaming: Streaming, settings: ReceiverSettings) -> Receiver {
        let feedback = Feedback::start(&streaming.thread, streaming.write, settings.wal_sender_timeout);
        let queue = Arc::new(Queue::new(settings.queue_bytes));
        let mut frames = streaming.frames;
        frames.read_in_gulps();
        let reading = Reading {
            read: streaming.read,
            frames,
            assembler: settings.assembler,
            messages: settings.messages,
            slot: settings.slot,
            feedback: feedback.clone(),
            rhythm: Rhythm::new(),
            silence_max: settings.silence_max,
        };
        let task = streaming.thread.spawn({
            let queue = Arc::clone(&queue);
            async move {
                let stop = reading.run(&queue).await;
                queue.end(stop);
            }
        });
        Receiver { queue, feedback, task, _thread: streaming.thread }
    }
}

impl Receiver {
    /// Sends the last acknowledgement and ends the stream, and waits a moment for the server to have taken both in.
    pub(crate) async fn end(mut self) {
        self.feedback.end().await;
        let _ = tokio::time::timeout(Duration::from_secs(1), &mut self.task).await;
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
        self.feedback.abort();
    }
}

/// Events are held back for so long, at the most, while the stream is behind and more keeps coming.
const HOLD: Duration = Duration::from_millis(2);

struct Reading {
    read: ReadHalf<Transport>,
    frames: FrameReader,
    assembler: Assembler,
    messages: bool,
    slot: String,
    feedback: Feedback,
    rhythm: Rhythm,
    /// A server that says nothing for so long, though it is asked now and then, is not there any more.
    silence_max: Duration,
}

impl Reading {
    async fn run(mut self, queue: &Queue) -> Stop {
        let mut events = Vec::new();
        let mut gulp = 0;
        // Since when events are held back.
        let mut held: Option<Instant> = None;
        loop {
            let taken = self.take_buffered(&mut events);
            // Whatever more is there (a read through TLS brings a record or two) belongs to the gulp.
            if taken.is_ok() && (1..GULP_MAX).contains(&gulp) {
                match self.frames.fill(&mut self.read).now_or_never() {
                    Some(Ok(more)) => {
                        gulp += more;
                        continue;
                    }
                    Some(Err(error)) => {
                        queue.put(&mut events).await;
                        return frame_stop(error);
                    }
                    None => {}
                }
            }
            let now = Instant::now();
            let pause = if taken.is_ok() { self.rhythm.after_gulp(gulp, now) } else { None };
            // Whoever takes the events is not woken for each gulp: that would take time away from the walsender.
            let hold = pause.is_some() && !events.is_empty() && now - *held.get_or_insert(now) < HOLD;
            if !hold {
                held = None;
                queue.put(&mut events).await;
                if let Err(stop) = taken {
                    return stop;
                }
                // Not while something is held back, which may be what takes the room.
                self.assembler.wait_for_disk().await;
            }
            if let Some(pause) = pause {
                // The whole thread sleeps, which is what it is there for: see `reader_thread`.
                std::thread::sleep(pause);
            }
            let patience = if events.is_empty() { self.silence_max } else { HOLD };
            gulp = match tokio::time::timeout(patience, self.frames.fill(&mut self.read)).await {
                Ok(Ok(count)) => count,
                Ok(Err(error)) => {
                    queue.put(&mut events).await;
                    return frame_stop(error);
                }
                // Nothing more comes for now: what is held back goes.
                Err(_) if !events.is_empty() => 0,
                Err(_) => {
                    let what = format!("the walsender has been silent for {} s", self.silence_max.as_secs());
                    return Reason::Connection { side: Side::Source, what }.into();
                }
            };
        }
    }

    /// The reason behind the walsender's error. It says of no value whose it is; where it is a value that makes it
    /// end, the transaction is the one that it was sending.
    fn server_stop(&self, body: &[u8]) -> Stop {
        let state = ServerError::parse(body).map(|error| error.sqlstate).unwrap_or_default();
        match self.assembler.open_transaction() {
            Some(open) if is_encoding(&state) => {
                let table =
                    open.last_table.map_or(String::new(), |table| format!("; its last table was table {table}"));
                let commit = open.commit.map_or(String::new(), |commit| format!(" with commit LSN {commit}"));
                Reason::SourceNotReady {
                    what: format!(
                        "transaction {}{commit} has a value that cannot be sent as UTF8: SQLSTATE {state} ({}){table}",
                        open.xid,
                        condition(&state)
                    ),
                    hint: format!(
                        "Everything before this transaction is applied and nothing of it. {SOURCE_ENCODING} The log \
                         keeps what the transaction wrote, so a new snapshot is needed then: `pgonce reset --yes`, \
                         empty the target tables, and `pgonce run`."
                    ),
                }
                .into()
            }
            _ => server_stop(body, &self.slot),
        }
    }

    fn take_buffered(&mut self, events: &mut Vec<Event>) -> Result<(), Stop> {
        while let Some((tag, body)) = self.frames.peek().map_err(frame_stop)? {
            match tag {
                b'd' => copy_data(body, &mut self.assembler, self.messages, &mut self.rhythm, &self.feedback, events)?,
                b'N' => notice(body)?,
                b'E' => return Err(self.server_stop(body)),
                // The answer to our own end of the stream. The server lets go of the slot before it says more.
                b'c' => {}
                b'C' | b'Z' => {
                    let what = "the walsender ended the stream".to_owned();
                    return Err(Reason::Connection { side: Side::Source, what }.into());
                }
                b'S' => {}
                other => return Err(broken(&format!("unexpected message {other:#04x} in the stream"))),
            }
            self.frames.consume();
        }
        Ok(())
    }
}

fn copy_data(
    body: &[u8],
    assembler: &mut Assembler,
    messages: bool,
    rhythm: &mut Rhythm,
    feedback: &Feedback,
    events: &mut Vec<Event>,
) -> Result<(), Stop> {
    match body {
        // XLogData: start, end and send time, then the message.
        [b'w', rest @ ..] if rest.len() >= 24 => {
            let sent = i64::from_be_bytes(rest[16..24].try_into().expect("eight bytes"));
            rhythm.message(sent, &rest[24..]);
            let assembled = assembler.push(&rest[24..])?;
            Event::of(assembled, messages, assembler, events);
        }
        // Keepalive: end of what was sent, send time, and whether an answer is wanted at once.
        [b'k', rest @ ..] if rest.len() == 17 => {
            let point = u64::from_be_bytes(rest[..8].try_into().expect("eight bytes"));
            if rest[16] != 0 {
                feedback.answer();
            }
            if let Some(Event::Reported { .. }) = events.last() {
                events.pop();
            }
            events.push(Event::reported(Boundary(Lsn(point)), assembler));
        }
        _ => return Err(broken("a CopyData message that is neither XLogData nor a keepalive")),
    }
    Ok(())
}

/// A walsender warns where it goes on although something is missing: PostgreSQL 18 leaves out a dropped publication
/// this way.
fn notice(body: &[u8]) -> Result<(), Stop> {
    match ServerError::parse(body) {
        Some(notice) if notice.severity == "WARNING" => Err(Reason::PublicationChanged {
            what: format!("the walsender warns that it leaves something out (SQLSTATE {})", notice.sqlstate),
        }
        .into()),
        Some(_) => Ok(()),
        None => Err(broken("a NoticeResponse that does not hold together")),
    }
}
