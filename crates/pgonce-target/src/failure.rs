//! What can go wrong while a group is written, and which reason it becomes.

use pgonce::pgoutput::ReplicaIdentity;
use pgonce::position::CommitLsn;
use pgonce::relation::Relation;
use pgonce::sql_error::{fault_of, passes, stop_from_sql};
use pgonce::stop::{Reason, Side, Stop};
use pgonce::transaction::{ReadError, Transaction};

/// A failure inside a group.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The target's error, and the table of the statement.
    Sql { error: tokio_postgres::Error, table: Option<(String, String)> },
    /// A statement did not hit as many rows as it should have.
    Rows {
        commit: CommitLsn,
        xid: u32,
        operation: &'static str,
        table: String,
        key: Vec<String>,
        found: u64,
        /// The key with its values, where the operator asked for it.
        shown: Option<Box<str>>,
    },
    /// The flow's row has another epoch.
    Fenced,
    /// Anything that has its reason already.
    Stop(Stop),
}

impl Failure {
    /// Whether the group's transactions are tried one by one: something in one of them may be what fails.
    pub(crate) fn narrows(&self) -> bool {
        match self {
            Failure::Sql { error, .. } => error.as_db_error().is_some_and(|e| !passes(e.code().code())),
            Failure::Rows { .. } => true,
            Failure::Fenced => false,
            Failure::Stop(stop) => {
                matches!(stop.reason(), Reason::SchemaMismatch { .. } | Reason::TransactionFailed { .. })
            }
        }
    }

    /// The reason. An error that does not pass is the fault of `transaction`, if it was applied alone.
    pub(crate) fn into_stop(self, transaction: Option<&Transaction>) -> Stop {
        match self {
            Failure::Sql { error, table } => match (error.as_db_error(), transaction) {
                (Some(db), Some(transaction)) if !passes(db.code().code()) => {
                    let mut fault = fault_of(db);
                    if let (None, Some((schema, name))) = (&fault.table, table) {
                        (fault.schema, fault.table) = (Some(schema), Some(name));
                    }
                    Reason::TransactionFailed { commit: transaction.commit(), xid: transaction.xid(), fault }.into()
                }
                _ => stop_from_sql(Side::Target, &error),
            },
            Failure::Rows { commit, xid, operation, table, key, found, shown: _ } => {
                Reason::RowConflict { commit, xid, operation, table, key, found }.into()
            }
            Failure::Fenced => Stop::internal("a fenced session did not look who holds the flow"),
            Failure::Stop(stop) => stop,
        }
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Failure {
        Failure::Sql { error, table: None }
    }
}

impl From<Stop> for Failure {
    fn from(stop: Stop) -> Failure {
        Failure::Stop(stop)
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Failure {
        Failure::Stop(error.into())
    }
}

/// An update or delete that says nothing by which its row could be found.
pub(crate) fn unidentified(relation: &Relation, operation: &str) -> Failure {
    let identity = match relation.identity {
        ReplicaIdentity::Full => "FULL",
        ReplicaIdentity::Nothing => "NOTHING",
        _ => "an index",
    };
    let what = format!("{operation} on {relation} without the columns of its replica identity ({identity})");
    Failure::Stop(Reason::Protocol { what }.into())
}
