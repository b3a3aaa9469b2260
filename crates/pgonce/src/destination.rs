//! Where transactions go, and what a destination remembers of a flow.

use std::collections::HashSet;
use std::future::Future;

use crate::described::Described;
use crate::flow::SourceIdentity;
pub use crate::flow::{Binding, IdlePoint, SlotOrigin, StartMode, Stored, StoredFlow, StoredPiece, StoredTable};
use crate::guarantee::Mode;
use crate::logical_message::LogicalMessage;
use crate::piece::{CopyPlan, Piece, TableCopy};
use crate::position::{Boundary, EndLsn};
use crate::published::Published;
use crate::snapshot::TableRows;
use crate::stop::{Reason, Stop};
use crate::transaction::Transaction;

/// Makes whole transactions durable, and says so.
///
/// The order of calls in a session: [`open`](Destination::open); on a first start [`check`](Destination::check) and
/// [`bind`](Destination::bind); [`published`](Destination::published); while tables are to be copied
/// [`plan`](Destination::plan) once, for all of them, then [`loader`](Destination::loader) for each worker and
/// [`landed`](Destination::landed) behind each [`Loader::load`] that went well; when every table of the initial copy
/// has been copied [`copied`](Destination::copied), once in the life of a flow; then [`write`](Destination::write),
/// [`durable`](Destination::durable), [`remember`](Destination::remember) and
/// [`persist_idle`](Destination::persist_idle) as the stream demands.
/// Tables that are copied while the flow streams are planned before the first of these, in the session that copies
/// them; `loader` and `landed` come between them.
/// After any error the session is over: the next call is `open`, and nothing of what was handed over before it may be
/// counted on, except pieces that were loaded.
pub trait Destination: Send {
    /// What copies pieces of tables, beside it. [`NoLoader`] for one that takes no snapshot.
    type Loader: Loader;

    /// What it promises about duplicates: [`EffectOnce`](crate::guarantee::EffectOnce) or
    /// [`AtLeastOnce`](crate::guarantee::AtLeastOnce).
    type Mode: Mode;

    /// Whether it takes an initial copy. Where it does not, a flow that is to begin with one is refused before anything
    /// is connected.
    fn takes_copy(&self) -> bool {
        true
    }

    /// Whether it takes tables as whole ones, and with exactly the columns that the stream brings: it keeps no table of
    /// its own that would generate the rest. (False: in pieces, and generated columns are left to it.)
    fn copies_as_streamed(&self) -> bool {
        false
    }

    /// Whether a table that joins the publication of a flow that began so is copied. (Otherwise it is carried from
    /// where it joined.)
    fn copies_joined(&self, start: StartMode) -> bool {
        let _ = start;
        true
    }

    /// Whether it takes transactions when they are prepared, and how they were settled. Where it does not, a source
    /// that yields them is refused before anything is connected.
    fn takes_prepared(&self) -> bool {
        false
    }

    /// Starts a session: connects, fences off older writers, and reads what is stored of the flow.
    ///
    /// `source` was read from the replication connection itself. A destination refuses a source that is not the one it
    /// is bound to ([`Reason::SourceChanged`]) before it reads any position.
    fn open(&mut self, source: &SourceIdentity) -> impl Future<Output = Result<Stored, Stop>> + Send;

    /// Where the stream will really begin, at every connect, before anything is copied or streamed; on a first start
    /// before [`bind`](Destination::bind). One that cannot go on from there refuses.
    fn origin(&mut self, origin: &SlotOrigin) -> impl Future<Output = Result<(), Stop>> + Send {
        let _ = origin;
        async { Ok(()) }
    }

    /// Whether [`message`](Destination::message) is to be called. False (the default) costs nothing: messages outside
    /// transactions are then dropped as they arrive.
    fn wants_messages(&self) -> bool {
        false
    }

    /// A message that belongs to no transaction, in stream order: everything that came before it has been written,
    /// nothing that comes behind it has. Ok means that it will not be lost; until then nothing behind it is
    /// acknowledged. After a crash it may come again, with the same LSN.
    fn message(&mut self, message: &LogicalMessage) -> impl Future<Output = Result<(), Stop>> + Send {
        let _ = message;
        async { Ok(()) }
    }

    /// Writes whole transactions, in commit order. Those that the stored checkpoint covers are skipped whole.
    fn write(&mut self, group: &[Transaction]) -> impl Future<Output = Result<Written, Stop>> + Send;

    /// Asks again how far it is durable, while something written is not known to be. The default has nothing to
    /// add.
    fn durable(&mut self) -> impl Future<Output = Result<Option<EndLsn>, Stop>> + Send {
        async { Ok(None) }
    }

    /// Stores durably that everything below `boundary` has been received, though no transaction ends there. False
    /// (the default) from one that cannot: it is never advanced while idle.
    fn persist_idle(&mut self, idle: IdlePoint) -> impl Future<Output = Result<bool, Stop>> + Send {
        let _ = idle;
        async { Ok(false) }
    }

    /// First start: refuses what could not be carried, before anything is made on the source.
    fn check(&mut self, published: &Published, start: StartMode) -> impl Future<Output = Result<(), Stop>> + Send {
        let (_, _) = (published, start);
        async { Ok(()) }
    }

    /// Stores what the flow is bound to, before anything is copied or streamed.
    fn bind(&mut self, binding: &Binding) -> impl Future<Output = Result<(), Stop>> + Send;

    /// These tables, by OID, may hold rows on the target: their copy takes the place of them. Said before
    /// [`check`](Destination::check) and [`plan`](Destination::plan).
    fn replace(&mut self, tables: &HashSet<u32>) {
        let _ = tables;
    }

    /// Changes of this table, by OID, are left out: it was published for a while, and left again before it was copied.
    fn leave_out(&mut self, table: u32) {
        let _ = table;
    }

    /// Stores durably into which pieces tables are cut that are to be copied, before any of them is, and what is
    /// published with them (as [`Published::fingerprint`] writes it); says how each is to be copied. What is
    /// [`Planned`](crate::piece::Standing::Planned) is stored already; what is
    /// [`Anew`](crate::piece::Standing::Anew) replaces what was, and what was copied of that table is removed in the
    /// same atomic write, or, where the table says so, piece by piece as it is copied. One that takes no snapshot
    /// refuses.
    fn plan(
        &mut self,
        tables: &[TableCopy],
        published: &str,
    ) -> impl Future<Output = Result<Vec<CopyPlan>, Stop>> + Send {
        let (_, _) = (tables, published);
        async { Err(no_copy()) }
    }

    /// A loader for the pieces of this session, on a connection of its own. It is not used beyond the session.
    fn loader(&mut self) -> Result<Self::Loader, Stop>;

    /// A loader has copied a piece: changes to it apply from its boundary on.
    fn landed(&mut self, table: u32, piece: i32, boundary: Boundary) {
        let (_, _, _) = (table, piece, boundary);
    }

    /// Every table has been copied: from here on the flow streams.
    fn copied(&mut self) -> impl Future<Output = Result<(), Stop>> + Send {
        async { Ok(()) }
    }

    /// What is published, at the beginning of each session, before anything is copied or written: refuses what cannot
    /// be carried.
    fn published(&mut self, published: &Published) -> impl Future<Output = Result<(), Stop>> + Send {
        let _ = published;
        async { Ok(()) }
    }

    /// Whether it is to be told what the published tables are like, by [`described`](Destination::described). Asked in
    /// each session behind [`published`](Destination::published).
    fn asks_described(&mut self) -> impl Future<Output = Result<bool, Stop>> + Send {
        async { Ok(false) }
    }

    /// What the catalog says of the published tables. What they were like before is stored, so that a change is
    /// noticed that comes before the first row.
    fn described(&mut self, described: Described) -> impl Future<Output = Result<(), Stop>> + Send {
        let _ = described;
        async { Ok(()) }
    }

    /// Stores what the flow is to remember of what is published, in place of what [`bind`](Destination::bind) stored.
    fn remember(&mut self, published: &str) -> impl Future<Output = Result<(), Stop>> + Send {
        let _ = published;
        async { Ok(()) }
    }

    /// All that comes again has come: once in a session, before anything is acknowledged in it. A source that has not
    /// sent what it must have has another history, and is refused ([`Reason::SourceChanged`]).
    fn came_again(&mut self) -> impl Future<Output = Result<(), Stop>> + Send {
        async { Ok(()) }
    }

    /// The source has been told that everything below this point is durable: it does not send it again.
    fn acknowledged(&mut self, boundary: Boundary) {
        let _ = boundary;
    }

    /// What the operator should know and what does not stop the flow, since the last call.
    fn warnings(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// The flow is stopping for this reason; one that can leaves word of it for `status`. Failures to do so are
    /// ignored.
    fn record_stop(&mut self, stop: &Stop) -> impl Future<Output = ()> + Send {
        let _ = stop;
        async {}
    }
}

/// Copies pieces of tables, one at a time, beside whatever the destination does.
pub trait Loader: Send + 'static {
    /// Copies one piece: its rows, and the boundary at which they were read, in one atomic write, and only if the
    /// destination's session still holds the flow. Returns the number of rows. After an error the loader is not used
    /// again.
    fn load(
        &mut self,
        table: &TableCopy,
        piece: &Piece,
        boundary: Boundary,
        rows: TableRows,
    ) -> impl Future<Output = Result<u64, Stop>> + Send;
}

/// The loader of a destination that takes no snapshot. There is none.
#[derive(Debug)]
pub enum NoLoader {}

impl Loader for NoLoader {
    async fn load(&mut self, _: &TableCopy, _: &Piece, _: Boundary, _: TableRows) -> Result<u64, Stop> {
        Err(no_copy())
    }
}

/// The refusal of a destination that takes no snapshot.
pub fn no_copy() -> Stop {
    let what = "this destination takes no initial copy".to_owned();
    Reason::Unsupported { what, hint: "Start it with `go-forward`.".to_owned() }.into()
}

/// The refusal of a copy beside transactions that come when they are prepared: one that was prepared before a table's
/// boundary and committed behind it would be neither in the copy nor behind the boundary.
pub(crate) fn no_copy_of_prepared() -> Stop {
    let what = "tables cannot be copied by a flow that brings transactions when they are prepared".to_owned();
    let hint = "Have them delivered when they commit (TwoPhase::AtCommit), or start with `go-forward`.".to_owned();
    Reason::Unsupported { what, hint }.into()
}

/// What a write achieved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Transactions that took effect now.
    pub applied: u64,
    /// Transactions that had taken effect before and were skipped whole.
    pub redelivered: u64,
    /// Row changes that took effect now.
    pub changes: u64,
    /// Everything up to here is claimed durable. The acknowledgement is computed from what was handed over, whatever
    /// is claimed.
    pub durable: Option<EndLsn>,
}
