//! Where transactions come from.

use std::future::Future;

use crate::described::Described;
pub use crate::flow::SourceIdentity;
use crate::flow::{Binding, StartMode, StoredFlow};
use crate::position::{Boundary, Durable};
use crate::published::Published;
use crate::snapshot::{Snapshot, Snapshots};
use crate::stop::Stop;
use crate::transaction::Transaction;

/// Yields whole committed transactions in commit order, and takes acknowledgements.
///
/// The order of calls in a session: [`connect`](Source::connect); on a first start [`publish`](Source::publish) and
/// [`begin`](Source::begin); then [`published`](Source::published), and,
/// while tables are copied, snapshots from [`snapshots`](Source::snapshots); then [`stream`](Source::stream) once, and
/// [`receive`](Source::receive) again and again. After any error the session is over: the next call is `connect`, and
/// nothing of the session survives into the next.
pub trait Source: Send {
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

/// What arrives from a source.
#[derive(Debug)]
pub enum Event {
    /// A whole committed transaction.
    Transaction(Transaction),
    /// The source has sent everything below this point.
    Reported {
        /// The point.
        point: Boundary,
        /// Whether a transaction lies open below it.
        open: bool,
    },
}
