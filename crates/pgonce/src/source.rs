//! Where transactions come from.

use std::future::Future;

use crate::assemble::{Assembled, Assembler};
use crate::described::Described;
use crate::flow::{Binding, StartMode, StoredFlow};
pub use crate::flow::{SlotOrigin, SourceIdentity};
use crate::logical_message::LogicalMessage;
use crate::position::{Boundary, Durable, EndLsn};
use crate::published::Published;
use crate::snapshot::{Snapshot, Snapshots};
use crate::stop::Stop;
use crate::transaction::Transaction;

/// Yields whole committed transactions in commit order, and takes acknowledgements.
///
/// The order of calls in a session: [`connect`](Source::connect); on a first start [`publish`](Source::publish) and
/// [`begin`](Source::begin); then [`slot_origin`](Source::slot_origin), [`published`](Source::published), and,
/// while tables are copied, snapshots from [`snapshots`](Source::snapshots); then [`stream`](Source::stream) once, and
/// [`receive`](Source::receive) again and again. After any error the session is over: the next call is `connect`, and
/// nothing of the session survives into the next.
pub trait Source: Send {
    /// Whether it yields transactions when they are prepared, and how they were settled: the destination has to take
    /// them.
    fn yields_prepared(&self) -> bool {
        false
    }

    /// Connects and says who is at the other end. Drops what is left of an older session.
    fn connect(&mut self) -> impl Future<Output = Result<SourceIdentity, Stop>> + Send;

    /// First start: makes sure of the publications, and says what they publish. One that exists is used as it is.
    fn publish(&mut self, start: StartMode) -> impl Future<Output = Result<Published, Stop>> + Send;

    /// First start, behind [`publish`](Source::publish): makes sure of the slot, and says where the stream will
    /// begin. A slot that exists is used as it is.
    fn begin(&mut self, start: StartMode) -> impl Future<Output = Result<Begun, Stop>> + Send;

    /// What is published now. Stops if something has left the publications since the flow was bound, except of the
    /// tables named in `again` (as schema.table), which are copied again.
    fn published(
        &mut self,
        binding: &Binding,
        again: &[String],
    ) -> impl Future<Output = Result<Published, Stop>> + Send;

    /// What the catalog says now of the published tables, for a destination that does not know yet what they are like.
    fn described(&mut self) -> impl Future<Output = Result<Described, Stop>> + Send;

    /// What takes consistent snapshots, while the stream runs too.
    fn snapshots(&self) -> Snapshots;

    /// Says where the stream will really begin, checked against what is stored: at every connect, before anything is
    /// copied or streamed. `None`: nothing is stored yet, and [`begin`](Source::begin) was just called.
    fn slot_origin(&mut self, stored: Option<&StoredFlow>) -> impl Future<Output = Result<SlotOrigin, Stop>> + Send;

    /// Whether messages that belong to no transaction are to be handed out. Said before the stream starts; the default
    /// is a source that has none.
    fn want_messages(&mut self, wanted: bool) {
        let _ = wanted;
    }

    /// Checks what is stored against slot and timeline, and starts the stream.
    fn stream(&mut self, stored: &StoredFlow) -> impl Future<Output = Result<(), Stop>> + Send;

    /// Waits until something has arrived and appends all that has to `events`. Dropping the future loses nothing.
    fn receive(&mut self, events: &mut Vec<Event>) -> impl Future<Output = Result<(), Stop>> + Send;

    /// Takes note of what may be acknowledged. Returns at once; the source sends it in its own time.
    fn acknowledge(&mut self, position: Durable<Boundary>);

    /// Asks the source to report its position soon, and to prove anew how far nothing was left out of the stream.
    /// Returns at once.
    fn ask_position(&mut self);

    /// The point below which nothing was left out of the stream, as far as it has been proved. Returns at once.
    fn attested(&mut self) -> Result<Option<Boundary>, Stop>;

    /// Whether a table is published that the flow does not know, as far as has been noticed since the stream started.
    fn joined(&self) -> bool {
        false
    }

    /// A position behind everything that has been committed: a stop position for "until now".
    fn committed_position(&mut self) -> impl Future<Output = Result<Boundary, Stop>> + Send;

    /// What the operator should know and what does not stop the flow, since the last call.
    fn warnings(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// What the flow should remember of what is published, in place of [`Binding::published`], if that has changed
    /// since the last call.
    fn take_memory(&mut self) -> Option<String> {
        None
    }

    /// Ends the session in good order: the last acknowledgement is sent, the slot is let go.
    fn close(&mut self) -> impl Future<Output = ()> + Send;
}

/// The first start of a flow at its source.
#[derive(Debug)]
pub struct Begun {
    /// Where the stream will begin.
    pub boundary: Boundary,
    /// The new slot's own snapshot, at `boundary`. An existing slot has none.
    pub snapshot: Option<Snapshot>,
}

/// What arrives from a source, in the order of the source's log.
#[derive(Debug)]
pub enum Event {
    /// A whole committed transaction; or one that was prepared, or settled, where it was asked for.
    Transaction(Transaction),
    /// A message outside any transaction, if such were [wanted](Source::want_messages).
    Message(LogicalMessage),
    /// A transaction is prepared, and its source keeps it until it is settled. While nothing behind this point is
    /// acknowledged, it comes again after a reconnect.
    Held(Boundary),
    /// The transaction that was held since `prepare` is settled. If it committed, the event before this one delivers
    /// it (unless nothing of it is published).
    Settled {
        /// See [`Held`](Event::Held).
        prepare: Boundary,
        /// Where its commit record ends; none if it was rolled back.
        end: Option<EndLsn>,
    },
    /// The source has sent everything below this point.
    Reported {
        /// The point.
        point: Boundary,
        /// Whether a transaction lies open below it: it is being sent, is in progress and streamed, or is prepared and
        /// not settled.
        open: bool,
        /// Whether one is just being sent. If not, every transaction that commits below the point has been sent.
        sending: bool,
    },
}

impl Event {
    /// What the assembler has brought to an end, as events; `messages`, if such are wanted.
    pub(crate) fn of(assembled: Assembled<'_>, messages: bool, assembler: &Assembler, events: &mut Vec<Event>) {
        let event = match assembled {
            Assembled::Message(message) if messages => Event::Message(message.into()),
            Assembled::Nothing | Assembled::Message(_) => return,
            Assembled::Transaction(transaction) => Event::Transaction(transaction),
            // It is all sent, and so is everything before its end.
            Assembled::Empty(end) => Event::reported(end.as_boundary(), assembler),
            Assembled::Held(prepare) => Event::Held(prepare),
            Assembled::Settled { prepare, end, transaction } => {
                let empty = end.filter(|_| transaction.is_none());
                events.extend(transaction.map(Event::Transaction));
                events.push(Event::Settled { prepare, end });
                match empty {
                    Some(end) => Event::reported(end.as_boundary(), assembler),
                    None => return,
                }
            }
            Assembled::Prepared(prepared) => Event::Transaction(prepared.into_transaction()),
            Assembled::CommitPrepared(settled) => Event::Transaction(settled.into_transaction()),
            Assembled::RollbackPrepared(settled) => Event::Transaction(settled.into_transaction()),
        };
        events.push(event);
    }

    /// The source has sent everything below this point.
    pub(crate) fn reported(point: Boundary, assembler: &Assembler) -> Event {
        Event::Reported { point, open: assembler.is_open(), sending: assembler.is_sending() }
    }

    /// Bytes that it takes in memory, about.
    pub(crate) fn in_memory(&self) -> usize {
        match self {
            Event::Transaction(transaction) => 256 + transaction.in_memory(),
            Event::Message(message) => usize::try_from(message.size()).unwrap_or(usize::MAX),
            _ => 0,
        }
    }
}
