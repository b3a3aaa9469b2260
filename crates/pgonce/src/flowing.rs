//! The state of one streaming session of a pipeline.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::frontier::Frontier;
use crate::group::GroupLimits;
use crate::join::Joining;
use crate::logical_message::LogicalMessage;
use crate::position::{Boundary, Lsn, Timeline};
use crate::stop::Stop;
use crate::transaction::Transaction;

/// The state of one streaming session.
pub(crate) struct Flowing {
    pub(crate) frontier: Frontier,
    /// Received and not handed over, and when.
    pub(crate) waiting: VecDeque<(Instant, Transaction)>,
    /// Their encoded changes, and the messages.
    pub(crate) waiting_bytes: u64,
    /// Received and not delivered.
    pub(crate) messages: VecDeque<LogicalMessage>,
    /// Messages up to here were delivered before this session.
    pub(crate) has_messages_to: Lsn,
    /// How many those are.
    pub(crate) waiting_changes: u64,
    /// Nothing more comes from the source.
    pub(crate) ended: bool,
    /// Where the flow began.
    pub(crate) boundary: Boundary,
    pub(crate) timeline: Timeline,
    pub(crate) until: Option<Boundary>,
    /// What is copied beside the stream.
    pub(crate) joining: Option<Joining>,
    /// Bytes that had been copied when that began.
    pub(crate) bytes_before: u64,
    pub(crate) consistent_from: Option<Boundary>,
    /// Whether what came again has been compared to its end.
    pub(crate) compared: bool,
    pub(crate) durable_at: Instant,
    pub(crate) idle_at: Instant,
    pub(crate) ask_at: Instant,
}

impl Flowing {
    pub(crate) const DURABLE_EVERY: Duration = Duration::from_millis(50);
    pub(crate) const ASK_SOON: Duration = Duration::from_millis(200);

    /// With a stop position in view the source is asked often, for it is the answer that ends the run; with something
    /// to acknowledge often enough that a crash repeats little.
    pub(crate) fn ask_interval(&self) -> Duration {
        if self.until.is_some() {
            Duration::from_millis(50)
        } else if self.frontier.any_unacknowledgeable() {
            Flowing::ASK_SOON
        } else {
            Duration::from_secs(1)
        }
    }

    /// A transaction has been received.
    pub(crate) fn wait(&mut self, transaction: Transaction) {
        self.waiting_bytes += transaction.size();
        self.waiting_changes += transaction.change_count();
        self.waiting.push_back((Instant::now(), transaction));
    }

    /// Whether what is waiting is to be written now: it is a group's worth, it has waited long enough, or nothing that
    /// could join it will come.
    pub(crate) fn is_due(&self, limits: &GroupLimits) -> bool {
        let (Some((arrived, first)), Some((_, last))) = (self.waiting.front(), self.waiting.back()) else {
            return false;
        };
        let reaches_until = self
            .until
            .is_some_and(|until| until.precedes(last.commit()) || self.frontier.reported_point() >= Some(until));
        self.ended
            || reaches_until
            // Nothing can join that comes behind a message.
            || !self.messages.is_empty()
            || self.waiting.len() >= limits.transactions
            || self.waiting_bytes >= limits.bytes
            || self.waiting_changes >= limits.changes
            || last.end().0.bytes_since(first.commit().0) >= limits.wal_span
            || arrived.elapsed() >= limits.delay
    }

    /// As many whole transactions as are waiting, within bounds, none at or behind the stop position, and none that has
    /// to wait for a copy, nor what is behind it.
    pub(crate) fn next_group(&mut self, limits: &GroupLimits) -> Result<Vec<Transaction>, Stop> {
        let (mut count, mut bytes, mut changes) = (0, 0, 0);
        let first = self.waiting.front().map(|(_, transaction)| transaction.commit());
        for (_, transaction) in self.waiting.iter().take(limits.transactions) {
            if self.until.is_some_and(|until| until.precedes(transaction.commit()))
                || self.messages.front().is_some_and(|message| Boundary(message.lsn).precedes(transaction.commit()))
            {
                break;
            }
            bytes += transaction.size();
            changes += transaction.change_count();
            let span = first.map_or(0, |first| transaction.end().0.bytes_since(first.0));
            if count > 0 && (bytes > limits.bytes || changes > limits.changes || span > limits.wal_span) {
                break;
            }
            if let Some(joining) = &mut self.joining
                && joining.holds(transaction)?
            {
                break;
            }
            count += 1;
        }
        let group: Vec<Transaction> = self.waiting.drain(..count).map(|(_, transaction)| transaction).collect();
        self.waiting_bytes -= group.iter().map(Transaction::size).sum::<u64>();
        self.waiting_changes -= group.iter().map(Transaction::change_count).sum::<u64>();
        Ok(group)
    }

    /// The next message, if everything that came before it has been handed over, and it is not behind the stop
    /// position.
    pub(crate) fn due_message(&self) -> Option<&LogicalMessage> {
        let message = self.messages.front()?;
        let first = self.waiting.front().is_none_or(|(_, t)| Boundary(message.lsn).precedes(t.commit()));
        (first && self.until.is_none_or(|until| message.lsn <= until.0)).then_some(message)
    }

    /// The destination has the next message.
    pub(crate) fn delivered(&mut self) {
        if let Some(message) = self.messages.pop_front() {
            self.waiting_bytes -= message.size();
            self.frontier.delivered(message.lsn);
        }
    }

    /// Whether nothing that was received is still to be handed over.
    pub(crate) fn is_worked_off(&self) -> bool {
        self.waiting.is_empty() && self.due_message().is_none()
    }

    /// Whether less than a group is waiting.
    pub(crate) fn has_room(&self, limits: &GroupLimits) -> bool {
        (self.is_worked_off() || !self.ended)
            && self.waiting.len() + self.messages.len() < limits.transactions
            && self.waiting_bytes < limits.bytes
    }

    /// When something is due though nothing arrives.
    pub(crate) fn next_chore(&self, limits: &GroupLimits) -> Instant {
        let mut next = self.idle_at.min(self.ask_at);
        if let Some((arrived, _)) = self.waiting.front()
            && let Some(due) = arrived.checked_add(limits.delay).filter(|due| *due > Instant::now())
        {
            next = next.min(due);
        }
        if self.frontier.settled() { next } else { next.min(self.durable_at) }
    }
}
