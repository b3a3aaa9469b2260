//! The thread that a replication connection lives on.
//!
//! A runtime watches its sockets all the time: while a task sleeps, the thread that waits for all of them is still
//! woken by every byte that arrives. A walsender sends each message by itself, so that a reader who only sleeps in a
//! task has the server pay for a wake-up in each `send`. On this thread nothing runs but one connection: when it is not
//! read, nobody is woken. What is written to it, now and then, can wait so long.

use std::future::Future;
use std::io;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Ends, with every task on it, when it is dropped.
#[derive(Debug)]
pub(crate) struct ReaderThread {
    handle: Handle,
    _end: oneshot::Sender<()>,
}

impl ReaderThread {
    /// Starts one.
    pub(crate) fn start() -> io::Result<ReaderThread> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel();
        thread::Builder::new().name("pgonce-receive".to_owned()).spawn(move || {
            // The other end never sends: it goes away.
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        })?;
        Ok(ReaderThread { handle, _end: end })
    }

    /// Runs a task on it. A socket that is opened there is watched there, wherever it is used.
    pub(crate) fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.handle.spawn(task)
    }
}
