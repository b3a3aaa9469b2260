//! Why a flow stopped: typed reasons, each with a stable code, a hint for the operator and an exit status.
//!
//! Whether a fault heals by itself or stops the flow is decided in one place, [`Reason::heals`]; which exit status it
//! ends with, in [`Reason::family`]. `docs/stop-reasons.md` is the same table for readers, and a test holds the two
//! together.
//!
//! No reason carries a row value: positions, names, counts and SQLSTATEs only.

use std::fmt;

use crate::position::{CommitLsn, Lsn, Timeline};
use crate::sql_error::{TARGET_ENCODING, is_encoding};

/// The end of a connection that a reason speaks of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The database that changes are read from.
    Source,
    /// The database (or other sink) that changes are written to.
    Target,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Source => "source",
            Side::Target => "target",
        })
    }
}

/// What an error of a server says about itself, without its texts: a message or a detail may quote row values.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServerFault {
    /// Five characters, as in PostgreSQL's appendix "Error Codes". Empty where the failure did not come from a server.
    pub sqlstate: String,
    /// Schema of the object concerned, where the server names one.
    pub schema: Option<String>,
    /// Table concerned.
    pub table: Option<String>,
    /// Column concerned.
    pub column: Option<String>,
    /// Constraint concerned.
    pub constraint: Option<String>,
}

impl fmt::Display for ServerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SQLSTATE {}", self.sqlstate)?;
        match (&self.schema, &self.table) {
            (Some(schema), Some(table)) => write!(f, ", table {schema}.{table}")?,
            (None, Some(table)) => write!(f, ", table {table}")?,
            _ => {}
        }
        if let Some(column) = &self.column {
            write!(f, ", column {column}")?;
        }
        if let Some(constraint) = &self.constraint {
            write!(f, ", constraint {constraint}")?;
        }
        Ok(())
    }
}

fn large_row(row: Option<&(String, u64)>) -> String {
    row.map_or(String::new(), |(table, bytes)| format!(", with a row of {bytes} bytes in table {table}"))
}

fn identified_by(key: &[String]) -> String {
    if key.is_empty() { String::new() } else { format!("(identified by {})", key.join(", ")) }
}

/// Why a flow stopped, or why it is trying again.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// A connection could not be made, or broke.
    #[error("{side}: {what}")]
    Connection {
        /// Which end.
        side: Side,
        /// What failed, in words without values.
        what: String,
    },
    /// A connection cannot be made as it is configured: authentication, TLS, no such database.
    #[error("{side} refuses the connection: {what}")]
    ConnectionRefused {
        /// Which end.
        side: Side,
        /// What was refused.
        what: String,
        /// What to do about it.
        hint: String,
    },
    /// A server is busy with something that passes: deadlock, serialization failure, lock timeout, disk full, shutdown.
    #[error("{side} cannot go on for now: {fault}")]
    Busy {
        /// Which end.
        side: Side,
        /// What the server said.
        fault: ServerFault,
    },
    /// A program's sink says that it cannot go on for now.
    #[error("the sink cannot go on for now: {what}")]
    SinkBusy {
        /// In the sink's words.
        what: String,
    },
    /// A program's sink has failed, and says that it will not pass.
    #[error("the sink failed: {what}")]
    SinkFailed {
        /// In the sink's words.
        what: String,
    },
    /// A program's sink refuses the source, the position or a change of the schema.
    #[error("the sink refuses: {what}")]
    SinkRefused {
        /// In the sink's words.
        what: String,
    },
    /// Another process holds the slot, most often our own previous session, whose walsender has not noticed yet.
    #[error("slot {slot} is held by the server process with PID {pid}")]
    SlotInUse {
        /// The slot.
        slot: String,
        /// `active_pid` of `pg_replication_slots`; 0 where the server did not say.
        pid: i32,
    },
    /// Changes between what the sink has stored and what the source can still send are gone.
    #[error("data gap: {what}")]
    DataGap {
        /// How it was noticed.
        what: String,
    },
    /// The stored state of the flow cannot be read, or contradicts itself.
    #[error("the stored state of flow {flow} cannot be trusted: {what}")]
    CheckpointUnreadable {
        /// The flow.
        flow: String,
        /// What is wrong with it.
        what: String,
    },
    /// The source is not the one that this flow is bound to.
    #[error("the source is not the one that this flow is bound to: {what}")]
    SourceChanged {
        /// Bound and found identity.
        what: String,
    },
    /// The source's history has branched off below what has been applied.
    #[error("the source's timeline {found} left timeline {stored} at {switch}, before the applied position {applied}")]
    TimelineDiverged {
        /// Timeline of the stored checkpoint.
        stored: Timeline,
        /// The source's timeline now.
        found: Timeline,
        /// Where the source's history leaves the stored timeline.
        switch: Lsn,
        /// What has been applied.
        applied: Lsn,
    },
    /// The slot can no longer be read: its WAL was removed, or it was invalidated.
    #[error("slot {slot} has been invalidated: {what}")]
    SlotLost {
        /// The slot.
        slot: String,
        /// `wal_status` and, from PostgreSQL 16 on, the cause.
        what: String,
    },
    /// A slot of this name exists, but is not one that this flow can use.
    #[error("slot {slot} cannot be used: {what}")]
    SlotUnusable {
        /// The slot.
        slot: String,
        /// What is different.
        what: String,
        /// What to do about it.
        hint: String,
    },
    /// A publication does not exist.
    #[error("publication {publication} does not exist in database {database}")]
    PublicationMissing {
        /// The publication.
        publication: String,
        /// The source's database.
        database: String,
    },
    /// What is published has changed under the flow, so that changes may have been left out.
    #[error("what is published has changed: {what}")]
    PublicationChanged {
        /// What changed.
        what: String,
    },
    /// The source lacks something that the flow needs.
    #[error("the source is not ready: {what}")]
    SourceNotReady {
        /// What is missing.
        what: String,
        /// What to do about it.
        hint: String,
    },
    /// The target lacks something that the flow needs.
    #[error("the target is not ready: {what}")]
    TargetNotReady {
        /// What is missing.
        what: String,
        /// What to do about it.
        hint: String,
    },
    /// A source table cannot be mapped onto the target.
    #[error("table {table} cannot be mapped onto the target: {what}")]
    SchemaMismatch {
        /// Schema-qualified name.
        table: String,
        /// What does not fit.
        what: String,
        /// What to do about it.
        hint: String,
    },
    /// A table has changed on the source, and the program's sink does not accept it.
    #[error("table {table} has changed on the source, and the sink does not accept it: {what}")]
    SchemaChanged {
        /// Schema-qualified name, as it was before.
        table: String,
        /// The differences.
        what: String,
    },
    /// The flow began with other names on the target: rows would go elsewhere from here on.
    #[error("the map of flow {flow} is not the one that it began with: {what}")]
    MapChanged {
        /// The flow.
        flow: String,
        /// What changed.
        what: String,
    },
    /// A change arrived to a table that the flow does not know yet.
    #[error("table {table} has joined the publication")]
    TableJoined {
        /// Schema-qualified name.
        table: String,
        /// Its OID on the source.
        oid: u32,
    },
    /// A table that is to be copied holds rows on the target.
    #[error("not empty on the target, so that the initial copy would add to it: {}", tables.join(", "))]
    TargetNotEmpty {
        /// Their names, qualified and quoted.
        tables: Vec<String>,
    },
    /// One transaction cannot be applied. Everything before it has been; nothing of it has.
    #[error("transaction {xid} with commit LSN {commit} cannot be applied: {fault}")]
    TransactionFailed {
        /// Its commit LSN.
        commit: CommitLsn,
        /// Its transaction id on the source.
        xid: u32,
        /// What the target said.
        fault: ServerFault,
    },
    /// An update or delete did not hit exactly one row of the target.
    #[error(
        "transaction {xid} with commit LSN {commit}: {operation} on {table} found {found} rows instead of one \
         {}",
        identified_by(key)
    )]
    RowConflict {
        /// Commit LSN of the transaction.
        commit: CommitLsn,
        /// Its transaction id on the source.
        xid: u32,
        /// `UPDATE` or `DELETE`.
        operation: &'static str,
        /// Schema-qualified name of the target table.
        table: String,
        /// Names of the columns by which the row was looked for.
        key: Vec<String>,
        /// How many rows there were.
        found: u64,
    },
    /// A transaction came again with the same identity and other content.
    #[error(
        "transaction {xid} with commit LSN {commit} was delivered again with other content: applied as {stored}, \
        now {found}"
    )]
    RedeliveryConflict {
        /// Its commit LSN.
        commit: CommitLsn,
        /// Its transaction id on the source.
        xid: u32,
        /// The content digest in the ledger.
        stored: String,
        /// The content digest of what was delivered.
        found: String,
    },
    /// A newer writer has taken the flow over.
    #[error("flow {flow} has been taken over by {holder}")]
    Fenced {
        /// The flow.
        flow: String,
        /// The newer writer: host, PID and start.
        holder: String,
    },
    /// The server sent something that this version does not handle, or that the protocol does not allow.
    #[error("the source sent what cannot be handled: {what}")]
    Protocol {
        /// What, where, and what was expected.
        what: String,
    },
    /// A file of ours cannot be written or read.
    #[error("{path}: {what}")]
    LocalFile {
        /// The file or directory.
        path: String,
        /// The operating system's error.
        what: String,
    },
    /// Open transactions take more of the local disk than is allowed.
    #[error(
        "open transactions would take more than {bound} bytes of disk: {assembling} bytes are there, and transaction \
         {xid} has {size} bytes of changes so far{}",
        large_row(row.as_ref())
    )]
    SpillFull {
        /// The transaction that has most.
        xid: u32,
        /// Bytes of its changes, on disk and in memory.
        size: u64,
        /// The row of it that is too large by itself, if there is one: its table, schema-qualified, and its bytes.
        row: Option<(String, u64)>,
        /// Bytes that all of them have on disk.
        assembling: u64,
        /// The bound.
        bound: u64,
    },
    /// What was asked for cannot be done with what was composed or configured.
    #[error("{what}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// What to do instead.
        hint: String,
    },
    /// A defect of pgonce.
    #[error("internal error: {what}")]
    Internal {
        /// What was found.
        what: String,
    },
}

/// Reasons that end a process in the same way share a family, and with it an exit status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Family {
    /// Exit status 2: wrong usage.
    Usage,
    /// Exit status 3: a connection cannot be made as configured (or, for commands that do not retry, at all).
    Connection,
    /// Exit status 4: changes are gone, a new snapshot is needed.
    Gap,
    /// Exit status 5: another source, another timeline, or stored state that cannot be trusted.
    Identity,
    /// Exit status 6: the source is not set up for the flow, or what it publishes has changed.
    Source,
    /// Exit status 7: a transaction cannot be applied.
    Apply,
    /// Exit status 8: the target is not set up for the flow.
    Target,
    /// Exit status 9: another writer has taken over.
    Fenced,
    /// Exit status 10: the local disk.
    Local,
    /// Exit status 70: a defect of pgonce, or a protocol that it does not know.
    Internal,
}

impl Family {
    /// The family of the reasons with this code; none where this version has no such reason.
    pub fn of(code: &str) -> Option<Family> {
        Some(match code {
            "unsupported" | "map_changed" => Family::Usage,
            "connection" | "busy" | "sink_busy" | "connection_refused" => Family::Connection,
            "data_gap" | "slot_lost" => Family::Gap,
            "checkpoint_unreadable" | "source_changed" | "timeline_diverged" => Family::Identity,
            "slot_in_use"
            | "slot_unusable"
            | "publication_missing"
            | "publication_changed"
            | "source_not_ready"
            | "table_joined" => Family::Source,
            "transaction_failed" | "row_conflict" | "redelivery_conflict" | "sink_failed" => Family::Apply,
            "target_not_ready" | "schema_mismatch" | "schema_changed" | "target_not_empty" | "sink_refused" => {
                Family::Target
            }
            "fenced" => Family::Fenced,
            "local_file" | "spill_full" => Family::Local,
            "protocol" | "internal" => Family::Internal,
            _ => return None,
        })
    }

    /// The exit status of a process that ends for a reason of this family.
    pub fn exit_status(self) -> u8 {
        match self {
            Family::Usage => 2,
            Family::Connection => 3,
            Family::Gap => 4,
            Family::Identity => 5,
            Family::Source => 6,
            Family::Apply => 7,
            Family::Target => 8,
            Family::Fenced => 9,
            Family::Local => 10,
            Family::Internal => 70,
        }
    }
}

impl Reason {
    /// A stable word for programs: it does not change between versions.
    pub fn code(&self) -> &'static str {
        self.row().0
    }

    /// Whether the fault passes by itself, so that the flow tries again (with capped backoff, for ever, visibly).
    pub fn heals(&self) -> bool {
        self.row().1
    }

    /// The family, and with it the exit status.
    pub fn family(&self) -> Family {
        self.row().2
    }

    /// The one table of faults: code, whether it heals by itself, family.
    fn row(&self) -> (&'static str, bool, Family) {
        use Family as F;
        match self {
            Reason::Connection { .. } => ("connection", true, F::Connection),
            Reason::Busy { .. } => ("busy", true, F::Connection),
            Reason::SinkBusy { .. } => ("sink_busy", true, F::Connection),
            Reason::SinkFailed { .. } => ("sink_failed", false, F::Apply),
            Reason::SinkRefused { .. } => ("sink_refused", false, F::Target),
            Reason::SlotInUse { .. } => ("slot_in_use", true, F::Source),
            Reason::ConnectionRefused { .. } => ("connection_refused", false, F::Connection),
            Reason::DataGap { .. } => ("data_gap", false, F::Gap),
            Reason::SlotLost { .. } => ("slot_lost", false, F::Gap),
            Reason::CheckpointUnreadable { .. } => ("checkpoint_unreadable", false, F::Identity),
            Reason::SourceChanged { .. } => ("source_changed", false, F::Identity),
            Reason::TimelineDiverged { .. } => ("timeline_diverged", false, F::Identity),
            Reason::SlotUnusable { .. } => ("slot_unusable", false, F::Source),
            Reason::PublicationMissing { .. } => ("publication_missing", false, F::Source),
            Reason::PublicationChanged { .. } => ("publication_changed", false, F::Source),
            Reason::SourceNotReady { .. } => ("source_not_ready", false, F::Source),
            Reason::TargetNotReady { .. } => ("target_not_ready", false, F::Target),
            Reason::SchemaMismatch { .. } => ("schema_mismatch", false, F::Target),
            Reason::SchemaChanged { .. } => ("schema_changed", false, F::Target),
            Reason::MapChanged { .. } => ("map_changed", false, F::Usage),
            Reason::TableJoined { .. } => ("table_joined", true, F::Source),
            Reason::TargetNotEmpty { .. } => ("target_not_empty", false, F::Target),
            Reason::TransactionFailed { .. } => ("transaction_failed", false, F::Apply),
            Reason::RowConflict { .. } => ("row_conflict", false, F::Apply),
            Reason::RedeliveryConflict { .. } => ("redelivery_conflict", false, F::Apply),
            Reason::Fenced { .. } => ("fenced", false, F::Fenced),
            Reason::Protocol { .. } => ("protocol", false, F::Internal),
            Reason::LocalFile { .. } => ("local_file", false, F::Local),
            Reason::SpillFull { .. } => ("spill_full", false, F::Local),
            Reason::Unsupported { .. } => ("unsupported", false, F::Usage),
            Reason::Internal { .. } => ("internal", false, F::Internal),
        }
    }

    /// What the operator can do next, with the command or the SQL to type where there is one.
    pub fn hint(&self) -> String {
        const RESET: &str = "A new snapshot is needed: `pgonce reset` shows what it would remove, `pgonce reset --yes` \
             removes the flow's state and slot, then empty the target tables and `pgonce run` copies anew.";
        match self {
            Reason::Connection { side, .. } => format!(
                "Nothing to do if the {side} is restarting: the flow tries \
            again by itself."
            ),
            Reason::Busy { side, fault } if fault.sqlstate == "53400" => format!(
                "The flow tries again by itself. Something is all in use on the {side}: max_replication_slots or \
                 max_wal_senders, most likely. Who has the slots: SELECT slot_name, active_pid, restart_lsn FROM \
                 pg_replication_slots;"
            ),
            Reason::Busy { side, .. } => format!(
                "The flow tries again by itself. If this lasts, look at the {side}'s log, its disk space and who \
                holds locks: \
                 SELECT pid, state, query FROM pg_stat_activity WHERE wait_event_type = 'Lock';"
            ),
            Reason::SinkBusy { .. } => {
                "The flow tries again by itself. If this lasts, look at what the program's sink \
                 writes to: its own log has more."
                    .to_owned()
            }
            Reason::SinkFailed { .. } => "Everything before this batch is persisted, and nothing of it is \
                 acknowledged. Mend what the program's sink writes to (its own log has more), then start the program \
                 again: it takes the flow up at this batch."
                .to_owned(),
            Reason::SinkRefused { .. } => "The program's sink decides this, and will again after a restart. Change \
                 the source's URL, or what the sink accepts."
                .to_owned(),
            Reason::SlotInUse { pid, .. } => format!(
                "The flow tries again by itself; a walsender whose client has died goes within \
                wal_sender_timeout. If another \
                 pgonce runs this flow, stop one of them. To end the holder: SELECT pg_terminate_backend({pid});"
            ),
            Reason::ConnectionRefused { hint, .. }
            | Reason::SlotUnusable { hint, .. }
            | Reason::SourceNotReady { hint, .. }
            | Reason::TargetNotReady { hint, .. }
            | Reason::SchemaMismatch { hint, .. }
            | Reason::Unsupported { hint, .. } => hint.clone(),
            Reason::DataGap { .. } | Reason::SlotLost { .. } => RESET.to_owned(),
            Reason::CheckpointUnreadable { .. } => {
                format!("Restore the schema pgonce of the target from where the data came from, or start over. {RESET}")
            }
            Reason::SourceChanged { .. } => format!(
                "If the URL is wrong, correct it. If the source was really replaced, its history is another one. \
                {RESET}"
            ),
            Reason::TimelineDiverged { .. } => format!(
                "The target holds transactions that this source never had: it was promoted or restored at an \
                earlier point. {RESET}"
            ),
            Reason::PublicationMissing { publication, .. } => format!(
                "CREATE PUBLICATION \"{}\" FOR TABLE ...; on the source, or name an existing one with \
                --publication. A flow \
                 that has been running needs a new snapshot if changes were made while it was missing.",
                publication.replace('"', "\"\"")
            ),
            Reason::PublicationChanged { .. } => format!(
                "What left was carried by this flow, and changes made to it since may never have been sent: putting it \
                 back does not send them. (A table that was merely added is no reason to stop: it is copied while \
                 the flow goes on.) {RESET}"
            ),
            Reason::SchemaChanged { .. } => {
                "Everything before the transaction that brought the change is written, and \
                 nothing of it. The rows in it have the new form, so that changing the table back on the source does \
                 not help. Make the same change where the sink writes to, let the sink accept it (its `schema_change` \
                 returns `SchemaDecision::Accept`), and start the program again: it is asked again, and takes the \
                 flow up at this transaction. How the source has it now: \\d and the table's name, in psql."
                    .to_owned()
            }
            Reason::MapChanged { .. } => format!(
                "A flow keeps its map: put `map` back to what it was (`pgonce status` shows it). To carry the tables \
                elsewhere, start over with the new map. {RESET}"
            ),
            Reason::TableJoined { .. } => "Nothing to do: the flow reads anew what is published, and copies the table \
                 while it goes on. A flow that began without a copy carries it from where it joined."
                .to_owned(),
            Reason::TargetNotEmpty { tables } => format!(
                "If its rows may go, on the target: TRUNCATE {}; (tables that reference them have to be named \
                too), or let the copy take their place: `pgonce run --reseed SCHEMA.TABLE`. If they \
                 are a copy already, `pgonce reset --yes`, then `pgonce run --start go-forward` with a slot that \
                 was made when the copy was taken.",
                tables.join(", ")
            ),
            Reason::TransactionFailed { fault, .. } if is_encoding(&fault.sqlstate) => {
                format!("Everything before this transaction is applied and nothing of it. {TARGET_ENCODING}")
            }
            Reason::TransactionFailed { .. } | Reason::RowConflict { .. } => {
                "Everything before this transaction is applied and nothing of it. Mend the target (the table, \
                constraint or \
                 row named above; the target's server log has the statement, and names the row where PostgreSQL does), \
                 then `pgonce run` takes it up at this transaction."
                    .to_owned()
            }
            Reason::RedeliveryConflict { .. } => format!(
                "The ledger's row or the source was altered. Find out which before anything else: SELECT * FROM \
                pgonce.applied \
                 on the target, and compare with `pgonce verify`. {RESET}"
            ),
            Reason::Fenced { flow, .. } => format!(
                "Only one process may run flow {flow}. This one has stopped; the other goes on. Nothing to mend \
                unless the other \
                 was started by mistake."
            ),
            Reason::Protocol { .. } => "Please report this with the server's version; nothing was acknowledged \
            that was not \
                 applied, and a newer pgonce can take the flow up where it stopped."
                .to_owned(),
            Reason::LocalFile { .. } => "Check that the directory exists, is writable and has space, or name \
            another with \
                 --data-dir."
                .to_owned(),
            Reason::SpillFull { xid, .. } => format!(
                "Nothing of it has been applied, and everything before it has. Where the disk has room: \
                 `pgonce run --spill-disk 200GB` (or `spill.disk` in the file, and `data_dir` to place it). Whether \
                 the transaction is still open, on the source: SELECT pid, usename, application_name, state, \
                 xact_start FROM pg_stat_activity WHERE backend_xid = '{xid}';"
            ),
            Reason::Internal { .. } => "This is a defect of pgonce: please report it. Nothing was acknowledged \
            that was not \
                 applied; `pgonce run` takes the flow up where it stopped."
                .to_owned(),
        }
    }
}

/// A [`Reason`] on the heap: the error type of everything that moves a flow.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(transparent)]
pub struct Stop(Box<Reason>);

impl Stop {
    /// The reason.
    pub fn reason(&self) -> &Reason {
        &self.0
    }

    /// See [`Reason::code`].
    pub fn code(&self) -> &'static str {
        self.0.code()
    }

    /// See [`Reason::hint`].
    pub fn hint(&self) -> String {
        self.0.hint()
    }

    /// See [`Reason::heals`].
    pub fn is_transient(&self) -> bool {
        self.0.heals()
    }

    /// The exit status of a process that ends for this reason: see [`Family`].
    pub fn exit_status(&self) -> u8 {
        self.0.family().exit_status()
    }

    /// A defect, described in words without values.
    pub fn internal(what: impl Into<String>) -> Stop {
        Reason::Internal { what: what.into() }.into()
    }

    /// `task` has panicked. What it said then is left out: a program's sink panics in its own words, which may quote a
    /// row.
    pub(crate) fn lost_task(task: &str, error: &tokio::task::JoinError) -> Stop {
        Stop::internal(format!("{task} {}", if error.is_panic() { "panicked" } else { "was cancelled" }))
    }
}

impl From<Reason> for Stop {
    fn from(reason: Reason) -> Stop {
        Stop(Box::new(reason))
    }
}
