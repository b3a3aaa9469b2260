//! Consecutive inserts into one table, gathered to be written by one statement.

use std::sync::Arc;

use pgonce::pgoutput::{Column, Tuple};
use pgonce::position::CommitLsn;
use pgonce::relation::Relation;

use crate::prepared::Turn;
use crate::schema::Mapping;
use crate::value::{RawValue, TextColumn};

/// From this many rows on, one statement for all is worth its planning.
pub(crate) const RUN_ROWS_MIN: usize = 4;
const RUN_ROWS_MAX: usize = 2_000;
const RUN_BYTES_MAX: usize = 1 << 20;

/// Rows of consecutive inserts into one table, possibly of several transactions: column by column, as text.
#[derive(Default)]
pub(crate) struct InsertRun {
    /// The table, and the transaction of the first row.
    subject: Option<(Arc<Mapping>, CommitLsn, u32)>,
    /// For each writable column. There may be more than the table has.
    columns: Vec<TextColumn>,
    rows: usize,
    bytes: usize,
}

impl InsertRun {
    /// Whether a run of this relation, as it is described now, is under way.
    pub(crate) fn takes(&self, relation: &Arc<Relation>) -> bool {
        self.subject
            .as_ref()
            .is_some_and(|(mapping, ..)| Arc::ptr_eq(&mapping.relation, relation) || mapping.relation == *relation)
    }

    pub(crate) fn begin(&mut self, mapping: Arc<Mapping>, turn: Turn<'_>) {
        self.clear();
        while self.columns.len() < mapping.writable.len() {
            self.columns.push(TextColumn::new());
        }
        self.subject = Some((mapping, turn.commit, turn.xid));
    }

    /// Adds a row. False, and nothing is added: the row cannot be written in a run.
    pub(crate) fn push(&mut self, row: Tuple<'_>) -> bool {
        let Some((mapping, ..)) = &self.subject else { return false };
        let whole = row.len() == mapping.columns.len();
        if !mapping.runs || !whole || row.iter().any(|c| matches!(c, Column::Binary(_) | Column::Unchanged)) {
            return false;
        }
        if row.iter().enumerate().any(|(place, column)| mapping.cuts(place, column)) {
            return false;
        }
        let mut writable = mapping.writable.iter().zip(&mut self.columns).peekable();
        for (position, column) in row.iter().enumerate() {
            let Some((_, values)) = writable.next_if(|(place, _)| **place == position) else { continue };
            values.push(if let Column::Text(bytes) = column { Some(bytes) } else { None });
        }
        self.rows += 1;
        self.bytes += row.wire_len();
        true
    }

    pub(crate) fn is_full(&self) -> bool {
        self.rows >= RUN_ROWS_MAX || self.bytes >= RUN_BYTES_MAX
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The table and the transaction of the first row, if there is a row.
    pub(crate) fn subject(&self) -> Option<(Arc<Mapping>, CommitLsn, u32)> {
        self.subject.clone().filter(|_| self.rows > 0)
    }

    /// A `text[]` for each column. The run is over.
    pub(crate) fn take_arrays(&mut self) -> Vec<RawValue> {
        let values = self.used().iter_mut().map(TextColumn::take_array).collect();
        self.clear();
        values
    }

    /// The values of each row. The run is over.
    pub(crate) fn take_rows(&mut self) -> Vec<Vec<RawValue>> {
        let rows = self.rows;
        let mut columns: Vec<_> = self.used().iter_mut().map(TextColumn::take_values).collect();
        self.clear();
        (0..rows).map(|_| columns.iter_mut().filter_map(Iterator::next).collect()).collect()
    }

    pub(crate) fn clear(&mut self) {
        if self.rows > 0 {
            // Only a run that was given up still has rows.
            for column in self.used() {
                let _ = column.take_array();
            }
        }
        self.subject = None;
        self.rows = 0;
        self.bytes = 0;
    }

    fn used(&mut self) -> &mut [TextColumn] {
        let used = self.subject.as_ref().map_or(0, |(mapping, ..)| mapping.writable.len());
        self.columns.get_mut(..used).unwrap_or_default()
    }
}
