//! A prepared statement on its way: what it is for, and in whose name it is sent.

use std::sync::Arc;

use pgonce::connect::SqlConnection;
use pgonce::pgoutput::Column;
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

impl Prepared {
    /// The columns by which the row is looked for, with their values: for an operator who asked to see them.
    pub(crate) fn key_with_values(&self, new: &[Column<'_>], old: &[Column<'_>]) -> String {
        let looked_for = |place: usize| {
            let given = |parameter: Parameter| self.parameters.contains(&parameter);
            let column = match (given(Parameter::Old(place)), given(Parameter::New(place))) {
                (true, _) => old.get(place),
                (false, true) => new.get(place),
                (false, false) => None,
            };
            match column {
                Some(Column::Text(text)) => format!("{:?}", String::from_utf8_lossy(text)),
                Some(Column::Binary(_)) => "(binary)".to_owned(),
                Some(Column::Null | Column::Unchanged) | None => "NULL".to_owned(),
            }
        };
        let columns =
            self.key.iter().map(|place| format!("{} = {}", self.mapping.column(*place).name, looked_for(*place)));
        columns.collect::<Vec<_>>().join(", ")
    }
}

/// What a statement is sent with.
#[derive(Clone, Copy)]
pub(crate) struct Turn<'a> {
    pub(crate) connection: &'a Arc<SqlConnection>,
    pub(crate) commit: CommitLsn,
    pub(crate) xid: u32,
}
