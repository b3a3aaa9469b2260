//! The bounded queue between the task that reads the socket and the pipeline.

use std::sync::Mutex;

use tokio::sync::Notify;

use crate::source::Event;
use crate::stop::Stop;

/// Events on their way. Filled a whole read at a time and emptied whole, so that neither side is woken for each
/// transaction.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    filled: Notify,
    emptied: Notify,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct State {
    events: Vec<Event>,
    bytes: usize,
    ended: Option<Stop>,
}

impl Queue {
    /// A queue that makes its writer wait while more than `bytes_max` bytes of changes are in it.
    pub(crate) fn new(bytes_max: usize) -> Queue {
        Queue { state: Mutex::default(), filled: Notify::new(), emptied: Notify::new(), bytes_max }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // A poisoned lock means that the other side panicked; its last consistent state is the best there is.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Appends `events`, emptying them, and waits until there is room for more.
    pub(crate) async fn put(&self, events: &mut Vec<Event>) {
        if events.is_empty() {
            return;
        }
        {
            let mut state = self.lock();
            state.bytes += events.iter().map(Event::in_memory).sum::<usize>();
            // Of two reports in a row only the later one says anything.
            if let (Some(Event::Reported { .. }), Some(Event::Reported { .. })) = (state.events.last(), events.first())
            {
                state.events.pop();
            }
            state.events.append(events);
        }
        self.filled.notify_one();
        loop {
            let emptied = self.emptied.notified();
            if self.lock().bytes <= self.bytes_max {
                return;
            }
            emptied.await;
        }
    }

    /// Nothing more comes, for this reason.
    pub(crate) fn end(&self, stop: Stop) {
        self.lock().ended.get_or_insert(stop);
        self.filled.notify_one();
    }

    /// Waits for events and takes all there are. The end is reported when everything before it has been taken.
    pub(crate) async fn take(&self, into: &mut Vec<Event>) -> Result<(), Stop> {
        loop {
            let filled = self.filled.notified();
            {
                let mut state = self.lock();
                if !state.events.is_empty() {
                    into.append(&mut state.events);
                    state.bytes = 0;
                    drop(state);
                    self.emptied.notify_one();
                    return Ok(());
                }
                if let Some(stop) = &state.ended {
                    return Err(stop.clone());
                }
            }
            filled.await;
        }
    }
}
