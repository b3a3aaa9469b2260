//! A prepared statement on its way: what it is for, and in whose name it is sent.

use std::sync::Arc;

use pgonce::connect::SqlConnection;
use pgonce::position::CommitLsn;

use crate::schema::Mapping;
use crate::statement::Parameter;

/// A statement that the server has prepared, and what it is for.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) statement: tokio_postgres::Statement,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) operation: &'static str,
    /// Columns of the relation by which the row is looked for.
    pub(crate) key: Vec<usize>,
}

/// What a statement is sent with.
#[derive(Clone, Copy)]
pub(crate) struct Turn<'a> {
    pub(crate) connection: &'a Arc<SqlConnection>,
    pub(crate) commit: CommitLsn,
    pub(crate) xid: u32,
}
