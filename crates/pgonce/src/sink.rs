//! What a program brings: a place for transactions to go.
//!
//! A [`Sink`] has one required method. It is not told of positions and returns none: what may be acknowledged to the
//! source is computed by the [pipeline](crate::pipeline) alone. Where a flow stands is kept for it, in one of two ways:
//!
//! - a sink that can store a few bytes in the same atomic write as the data is an [`AtomicSink`], and its flow is
//!   *effect-once*: [`Kept::effect_once`](crate::kept::Kept::effect_once);
//! - any other sink gets a [`CheckpointStore`](crate::checkpoint_store::CheckpointStore), which is written after the
//!   sink has persisted, and its flow is *at-least-once*, with a bound on what a crash repeats:
//!   [`Kept::at_least_once`](crate::kept::Kept::at_least_once).

use std::future::Future;
use std::io;

pub use crate::copied::{CopiedRows, CopiedTable};
use crate::flow::SlotOrigin;
use crate::logical_message::LogicalMessage;
use crate::schema_change::{SchemaChange, SchemaDecision};
use crate::source::SourceIdentity;
use crate::sql_error::{condition, fault_of, is_conversion, passes as passes_in_server, stop_from_sql};
use crate::stop::{Reason, Side, Stop};
use crate::transaction::{ReadError, Transaction};

/// Makes committed transactions durable.
///
/// In each session (and again after every fault that heals): [`accept_source`](Sink::accept_source), then
/// [`write`](Sink::write) for each batch, in commit order, one at a time, with
/// [`schema_change`](Sink::schema_change) between two batches where a table has changed. After an error the session is
/// over, and what was handed over and not persisted comes again in the next one. A flow that begins with a copy hands
/// each table over first: [`begin_table`](Sink::begin_table), then [`rows`](Sink::rows) until the last ones.
pub trait Sink: Send {
    /// Makes a batch durable. `Ok` says that all of it is, and will be after a crash: what it held may be acknowledged
    /// to the source, and does not come again. Whole transactions, in commit order, none of them empty of meaning: one
    /// without changes says that the source has come so far.
    ///
    /// When the flow is told to stop, a write that has begun may go on for
    /// [`PipelineOptions::grace`](crate::pipeline::PipelineOptions::grace); then its future is dropped, wherever it
    /// waits. What it had done by then may or may not be there, and comes again.
    ///
    /// # Errors
    ///
    /// [`SinkError::transient`] for what passes by itself: the flow tries again, for ever, with growing pauses.
    /// [`SinkError::permanent`] stops the flow.
    fn write(&mut self, batch: &Batch<'_>) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// Whether it takes an initial copy: [`begin_table`](Sink::begin_table) and [`rows`](Sink::rows) are there then.
    /// Asked once, before anything is connected; where it says no (the default), a flow that is to begin with a copy is
    /// refused.
    fn takes_copy(&self) -> bool {
        false
    }

    /// The copy of a table begins: all rows that it has at one moment come through [`rows`](Sink::rows).
    ///
    /// Where the table [is begun anew](CopiedTable::is_anew), `Ok` says that no row of it is left that came before, nor
    /// comes back after a crash. A sink that is read while the copy runs does well to show a table only when its last
    /// rows have come. It may be called again, for the same table, in a later session.
    ///
    /// # Errors
    ///
    /// As for [`write`](Sink::write).
    fn begin_table(&mut self, table: &CopiedTable<'_>) -> impl Future<Output = Result<(), SinkError>> + Send {
        let _ = table;
        async { Err(SinkError::permanent("it says that it takes a copy and has no begin_table")) }
    }

    /// Makes rows of a table durable, as [`write`](Sink::write) does with transactions: `Ok` says that they are.
    ///
    /// A copy that is cut short is not resumed within a table: the next session begins the table anew, with
    /// [`begin_table`](Sink::begin_table), and all of its rows come again. A table whose [last](CopiedRows::is_last)
    /// rows have been taken stays as it is. While the initial copy runs no transaction comes; then those changes
    /// of each table come that its copy does not hold. A table that joins the publication later is copied between
    /// batches.
    ///
    /// # Errors
    ///
    /// As for [`write`](Sink::write).
    fn rows(&mut self, rows: &CopiedRows<'_>) -> impl Future<Output = Result<(), SinkError>> + Send {
        let _ = rows;
        async { Err(SinkError::permanent("it says that it takes a copy and has no rows method")) }
    }

    /// Whether it takes transactions when they are prepared for a two-phase commit, and how they were settled
    /// ([`Kind`](crate::transaction::Kind)). The source has to be told, too:
    /// [`TwoPhase::Seen`](crate::assemble::TwoPhase::Seen). A prepared transaction has to be as durable as a committed
    /// one: it does not come again at its commit. One that the sink does not know at its commit was lost: that is a
    /// permanent error.
    fn takes_prepared(&self) -> bool {
        false
    }

    /// A session begins: with this source, before anything stored is read. A sink may refuse it, and drops what it
    /// holds of an earlier session.
    ///
    /// # Errors
    ///
    /// [`SinkError::refused`] stops the flow before a position has been believed, and so does the next start.
    fn accept_source(&mut self, source: &SourceIdentity) -> impl Future<Output = Result<(), SinkError>> + Send {
        let _ = source;
        async { Ok(()) }
    }

    /// Where the stream will really begin, at every connect, before anything is copied or written. A sink that holds
    /// more, or less, than what comes before this position may refuse it.
    ///
    /// # Errors
    ///
    /// As for [`accept_source`](Sink::accept_source).
    fn accept_origin(&mut self, origin: &SlotOrigin) -> impl Future<Output = Result<(), SinkError>> + Send {
        let _ = origin;
        async { Ok(()) }
    }

    /// Whether it takes messages of `pg_logical_emit_message` that belong to no transaction. Those in a transaction
    /// come as its changes, in any case.
    fn wants_messages(&self) -> bool {
        false
    }

    /// Makes such a message durable, in stream order: everything before it has been written, and nothing behind it.
    /// At least once, whatever is composed: it may come again after a crash, with the same
    /// [`lsn`](LogicalMessage::lsn), by which a repetition is told.
    ///
    /// # Errors
    ///
    /// As for [`write`](Sink::write).
    fn message(&mut self, message: &LogicalMessage) -> impl Future<Output = Result<(), SinkError>> + Send {
        let _ = message;
        async { Ok(()) }
    }

    /// A table has changed: rows of the next transaction are of its new form. Everything before that transaction has
    /// been written. Accepted, the new form is stored with the transaction; where that is not persisted, the same
    /// change comes again. The default accepts what is additive, and refuses what is destructive.
    ///
    /// # Errors
    ///
    /// Why it cannot decide, or cannot follow. [`SinkError::transient`] where it may later.
    fn schema_change(
        &mut self,
        change: &SchemaChange,
    ) -> impl Future<Output = Result<SchemaDecision, SinkError>> + Send {
        let decision = change.default_decision();
        async move { Ok(decision) }
    }
}

/// A sink that stores where the flow stands in the same atomic write as the data.
///
/// Its [`write`](Sink::write) stores [`Batch::state`] together with the transactions: both, or, whatever is killed,
/// neither. A batch without transactions holds state alone. The same holds of a copy: [`CopiedRows::state`] is one
/// write with the rows, and [`CopiedTable::state`] with the removal of those that were there: then no row of a table is
/// there twice, whatever is killed.
pub trait AtomicSink: Sink {
    /// The bytes that were stored last under this name ([`Record::name`]); `None` if there never were any.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from being certain. *Cannot be read* is not *was never there*: a flow that takes one for the
    /// other begins anew over what it has written.
    fn load(&mut self, name: &'static str) -> impl Future<Output = Result<Option<Vec<u8>>, SinkError>> + Send;
}

/// Transactions to make durable, and what is to be stored with them.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    pub(crate) transactions: &'a [Transaction],
    pub(crate) state: State<'a>,
}

impl<'a> Batch<'a> {
    /// Whole transactions, in commit order.
    pub fn transactions(&self) -> &'a [Transaction] {
        self.transactions
    }

    /// What an [`AtomicSink`] stores in the same write. Without records where a checkpoint store keeps it.
    pub fn state(&self) -> State<'a> {
        self.state
    }
}

/// Where a flow stands, as bytes to store: a few named records, and a number that grows with each write.
#[derive(Clone, Copy, Debug)]
pub struct State<'a> {
    pub(crate) flow: &'a str,
    pub(crate) records: &'a [Record],
    pub(crate) version: u64,
    pub(crate) replaces: u64,
}

impl<'a> State<'a> {
    /// The flow's name. What is stored of one flow is nothing to another one.
    pub fn flow(&self) -> &'a str {
        self.flow
    }

    /// The records that have changed. Each takes the place of what is stored under its name.
    pub fn records(&self) -> &'a [Record] {
        self.records
    }

    /// The number of this state.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The number of the state that it follows; 0 for the first one.
    ///
    /// A store that can compare it with the number that it holds, in the same atomic write, and reports
    /// [`SinkError::fenced`] where they differ, keeps an older process from writing after a newer one has begun.
    pub fn replaces(&self) -> u64 {
        self.replaces
    }
}

/// A named piece of what is stored of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub(crate) name: &'static str,
    pub(crate) bytes: Vec<u8>,
}

impl Record {
    /// Its name: one of a few, in lower case.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its content: UTF-8 text with a checksum, of some hundred bytes to some hundred kilobytes. It holds positions and
    /// names, and no row value.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Why a sink, or a checkpoint store, could not do what it was asked to.
///
/// It holds no text but the program's own literals: an error message of a library may quote a row, and what is said
/// here goes to logs and reports. Log the rest where it happens, if it may be logged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct SinkError(Stop);

impl SinkError {
    /// Something that passes by itself. `what` completes the sentence "the sink cannot go on for now: ...".
    pub fn transient(what: &'static str) -> SinkError {
        SinkError(Reason::SinkBusy { what: what.to_owned() }.into())
    }

    /// Something that does not: the flow stops. `what` completes the sentence "the sink failed: ...".
    pub fn permanent(what: &'static str) -> SinkError {
        SinkError(Reason::SinkFailed { what: what.to_owned() }.into())
    }

    /// The sink will have nothing of this source, this position or this change.
    pub fn refused(what: &'static str) -> SinkError {
        SinkError(Reason::SinkRefused { what: what.to_owned() }.into())
    }

    /// Another process has taken the flow over.
    pub fn fenced(flow: &str) -> SinkError {
        SinkError(Reason::Fenced { flow: flow.to_owned(), holder: "another process".to_owned() }.into())
    }

    /// A file that could not be read or written.
    pub fn file(path: &std::path::Path, error: &io::Error) -> SinkError {
        if passes(error.kind()) {
            let what = format!("{}: {}", path.display(), error.kind());
            return SinkError(Reason::SinkBusy { what }.into());
        }
        SinkError(Reason::LocalFile { path: path.display().to_string(), what: error.kind().to_string() }.into())
    }

    /// The reason, as the flow reports it.
    pub fn reason(&self) -> &Reason {
        self.0.reason()
    }
}

/// By its kind; its text is not repeated.
impl From<io::Error> for SinkError {
    fn from(error: io::Error) -> SinkError {
        let what = error.kind().to_string();
        if passes(error.kind()) {
            SinkError(Reason::SinkBusy { what }.into())
        } else {
            SinkError(Reason::SinkFailed { what }.into())
        }
    }
}

/// By its SQLSTATE; its texts are not repeated. A value that cannot be converted to or from its SQL type does not pass.
impl From<tokio_postgres::Error> for SinkError {
    fn from(error: tokio_postgres::Error) -> SinkError {
        if let Some(db) = error.as_db_error().filter(|db| !passes_in_server(db.code().code())) {
            let fault = fault_of(db);
            let what = format!("{fault} ({})", condition(&fault.sqlstate));
            return SinkError(Reason::SinkFailed { what }.into());
        }
        if is_conversion(&error) {
            return SinkError::permanent("a value could not be converted to or from its SQL type");
        }
        SinkError(stop_from_sql(Side::Target, &error))
    }
}

impl From<ReadError> for SinkError {
    fn from(error: ReadError) -> SinkError {
        SinkError(error.into())
    }
}

impl From<SinkError> for Stop {
    fn from(error: SinkError) -> Stop {
        error.0
    }
}

impl From<Stop> for SinkError {
    fn from(stop: Stop) -> SinkError {
        SinkError(stop)
    }
}

fn passes(kind: io::ErrorKind) -> bool {
    use io::ErrorKind as K;
    matches!(
        kind,
        K::ConnectionRefused
            | K::ConnectionReset
            | K::ConnectionAborted
            | K::NotConnected
            | K::BrokenPipe
            | K::TimedOut
            | K::Interrupted
            | K::WouldBlock
            | K::HostUnreachable
            | K::NetworkUnreachable
            | K::NetworkDown
            | K::AddrNotAvailable
            | K::ResourceBusy
            | K::StorageFull
            | K::QuotaExceeded
            | K::StaleNetworkFileHandle
            | K::OutOfMemory
            | K::UnexpectedEof
    )
}
