//! Standby status updates, sent from a task that nothing can block.
//!
//! The task owns the sending half of the connection, and lives on the connection's own thread: a sink that blocks the
//! program's runtime holds nothing up. It sends unasked, at least every third of `wal_sender_timeout`:
//! with backpressure the socket may stay unread, and a keepalive that asks for an answer unseen.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncWriteExt, WriteHalf};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::reader_thread::ReaderThread;
use super::session::standby_status_update;
use crate::connect::Transport;
use crate::position::{Boundary, Durable, Lsn};

/// What the feedback task is told. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Feedback(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    acknowledged: AtomicU64,
    answer: AtomicBool,
    ask: AtomicBool,
    wake: Notify,
    task: Mutex<Option<JoinHandle<()>>>,
    ending: AtomicBool,
}

/// Acknowledgements that follow one another closely are sent together.
const SPACING: Duration = Duration::from_millis(100);

impl Feedback {
    /// Starts the task on the connection's thread. `wal_sender_timeout` is the server's; zero means that it has none.
    pub(crate) fn start(thread: &ReaderThread, write: WriteHalf<Transport>, wal_sender_timeout: Duration) -> Feedback {
        let interval = match wal_sender_timeout {
            Duration::ZERO => Duration::from_secs(10),
            timeout => (timeout / 3).min(Duration::from_secs(10)),
        };
        let shared = Arc::new(Shared {
            acknowledged: AtomicU64::new(0),
            answer: AtomicBool::new(false),
            ask: AtomicBool::new(false),
            wake: Notify::new(),
            task: Mutex::new(None),
            ending: AtomicBool::new(false),
        });
        let task = thread.spawn(send_updates(write, interval, Arc::clone(&shared)));
        *shared.task.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(task);
        Feedback(shared)
    }

    /// From now on report `position` as flushed.
    pub(crate) fn acknowledge(&self, position: Durable<Boundary>) {
        self.0.acknowledged.fetch_max(position.position().0.0, Ordering::AcqRel);
        self.0.wake.notify_one();
    }

    /// The server has asked for an answer.
    pub(crate) fn answer(&self) {
        self.0.answer.store(true, Ordering::Release);
        self.0.wake.notify_one();
    }

    /// Ask the server to report its position.
    pub(crate) fn ask(&self) {
        self.0.ask.store(true, Ordering::Release);
        self.0.wake.notify_one();
    }

    /// Sends the last acknowledgement and ends the stream in good order.
    pub(crate) async fn end(&self) {
        self.0.ending.store(true, Ordering::Release);
        self.0.wake.notify_one();
        let task = self.0.task.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(task) = task {
            let _ = tokio::time::timeout(Duration::from_secs(1), task).await;
        }
    }

    /// Ends the task where it stands.
    pub(crate) fn abort(&self) {
        if let Some(task) = self.0.task.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take() {
            task.abort();
        }
    }
}

async fn send_updates(mut write: WriteHalf<Transport>, interval: Duration, shared: Arc<Shared>) {
    let mut message = BytesMut::new();
    let mut sent_at: Option<Instant> = None;
    let mut sent = None;
    loop {
        let ending = shared.ending.load(Ordering::Acquire);
        let position = Lsn(shared.acknowledged.load(Ordering::Acquire));
        let asks = shared.ask.swap(false, Ordering::AcqRel);
        let answers = shared.answer.swap(false, Ordering::AcqRel);
        let due = sent_at.is_none_or(|at| at.elapsed() >= interval);
        let spaced = sent_at.is_none_or(|at| at.elapsed() >= SPACING);
        if due || asks || answers || ending || (sent != Some(position) && spaced) {
            message.clear();
            // The server is asked for an answer now and then, so that a connection that has gone silent is noticed.
            standby_status_update(position, asks || due, &mut message);
            if ending {
                message.extend_from_slice(b"c\0\0\0\x04"); // CopyDone
            }
            // An error here is the connection's end, which the receiving half sees and reports.
            if write.write_all(&message).await.is_err() || write.flush().await.is_err() || ending {
                return;
            }
            (sent, sent_at) = (Some(position), Some(Instant::now()));
        }
        let pause = if sent == Some(Lsn(shared.acknowledged.load(Ordering::Acquire))) { interval } else { SPACING };
        let since = sent_at.map_or(Duration::ZERO, |at| at.elapsed());
        let _ = tokio::time::timeout(pause.saturating_sub(since).max(Duration::from_millis(1)), shared.wake.notified())
            .await;
    }
}
