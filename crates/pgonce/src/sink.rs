//! Where transactions go, and what a sink remembers of a flow.

use std::future::Future;

use crate::flow::SourceIdentity;
pub use crate::flow::{Binding, IdlePoint, StartMode, Stored, StoredFlow};
use crate::guarantee::Guarantee;
use crate::position::{Boundary, EndLsn};
use crate::published::{Published, PublishedTable};
use crate::snapshot::TableRows;
use crate::stop::{Reason, Stop};
use crate::transaction::Transaction;

/// Makes whole transactions durable, and says so.
///
/// The order of calls in a session: [`open`](Sink::open); on a first start [`check`](Sink::check) and
/// [`bind`](Sink::bind); [`published`](Sink::published); until all is copied [`load`](Sink::load) for each table and
/// [`copied`](Sink::copied); then [`write`](Sink::write), [`durable`](Sink::durable), [`remember`](Sink::remember) and
/// [`persist_idle`](Sink::persist_idle) as the stream demands. After any error the session is over: the next call is
/// `open`, and nothing of what was handed over before it may be counted on.
pub trait Sink: Send {
    /// What this sink promises about duplicates.
    fn guarantee(&self) -> Guarantee;

    /// Starts a session: connects, fences off older writers, and reads what is stored of the flow.
    ///
    /// `source` was read from the replication connection itself. A sink refuses a source that is not the one it is
    /// bound to ([`Reason::SourceChanged`]) before it reads any position.
    fn open(&mut self, source: &SourceIdentity) -> impl Future<Output = Result<Stored, Stop>> + Send;

    /// Writes whole transactions, in commit order. Those that the stored checkpoint covers are skipped whole.
    fn write(&mut self, group: &[Transaction]) -> impl Future<Output = Result<Written, Stop>> + Send;

    /// Asks again how far the sink is durable, while something written is not known to be. The default has nothing to
    /// add.
    fn durable(&mut self) -> impl Future<Output = Result<Option<EndLsn>, Stop>> + Send {
        async { Ok(None) }
    }

    /// Stores durably that everything below `boundary` has been received, though no transaction ends there. False
    /// (the default) from a sink that cannot: it is never advanced while idle.
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

    /// Copies one table: its rows, and the boundary at which they were read, in one atomic write. Returns the number
    /// of rows. A sink that takes no snapshot refuses.
    fn load(
        &mut self,
        table: &PublishedTable,
        boundary: Boundary,
        rows: TableRows,
    ) -> impl Future<Output = Result<u64, Stop>> + Send {
        let (_, _, _) = (table, boundary, rows);
        async {
            let what = "this sink takes no initial copy".to_owned();
            Err(Reason::Unsupported { what, hint: "Start it with `go-forward`.".to_owned() }.into())
        }
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

    /// Stores what the flow is to remember of what is published, in place of what [`bind`](Sink::bind) stored.
    fn remember(&mut self, published: &str) -> impl Future<Output = Result<(), Stop>> + Send {
        let _ = published;
        async { Ok(()) }
    }

    /// What the operator should know and what does not stop the flow, since the last call.
    fn warnings(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// The flow is stopping for this reason; a sink that can leaves word of it for `status`. Failures to do so are
    /// ignored.
    fn record_stop(&mut self, stop: &Stop) -> impl Future<Output = ()> + Send {
        let _ = stop;
        async {}
    }
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
