//! What a program's sink is lent of a table that is copied.

use std::sync::Arc;

use crate::copy_text::RowBuffer;
use crate::pgoutput::Tuple;
use crate::relation::Relation;
use crate::sink::State;

/// A table whose copy begins.
#[derive(Clone, Copy, Debug)]
pub struct CopiedTable<'a> {
    pub(crate) relation: &'a Arc<Relation>,
    pub(crate) key: &'a [String],
    pub(crate) anew: bool,
    pub(crate) state: State<'a>,
}

impl<'a> CopiedTable<'a> {
    /// The table, described as it is in the stream: the same columns in the same order.
    pub fn relation(&self) -> &'a Arc<Relation> {
        self.relation
    }

    /// The names of the columns that tell its rows apart: those of the replica identity or, where that is the whole
    /// row, of the primary key. None where the table has neither.
    pub fn key(&self) -> &'a [String] {
        self.key
    }

    /// Whether rows of this table may be there from an earlier copy, which was cut short or is to be replaced. All of
    /// them are to be removed: every row of the table comes now, read at another moment.
    pub fn is_anew(&self) -> bool {
        self.anew
    }

    /// What an [`AtomicSink`](crate::sink::AtomicSink) stores in the write that removes them. Without records where a
    /// checkpoint store keeps it.
    pub fn state(&self) -> State<'a> {
        self.state
    }
}

/// Some rows of a table that is copied: up to 1,000, or about 1 MB. A row that is larger comes alone or last.
///
/// `Debug` shows how many there are, and no value.
#[derive(Clone, Copy, Debug)]
pub struct CopiedRows<'a> {
    pub(crate) relation: &'a Arc<Relation>,
    pub(crate) buffer: &'a RowBuffer,
    pub(crate) last: bool,
    pub(crate) state: State<'a>,
}

impl<'a> CopiedRows<'a> {
    /// The table. Where [several are copied at a time](crate::pipeline::PipelineOptions::jobs), rows of one come
    /// between those of another.
    pub fn relation(&self) -> &'a Arc<Relation> {
        self.relation
    }

    /// The rows, in no order, each as the `new` row of an insert is: values in the text form of their types, NULL told
    /// apart, in the order of the relation's columns.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = Tuple<'a>> + use<'a> {
        self.buffer.rows()
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether there are none: of a table that has no rows, the last ones are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether these are the last rows: with them, the table is copied.
    pub fn is_last(&self) -> bool {
        self.last
    }

    /// What an [`AtomicSink`](crate::sink::AtomicSink) stores in the same write. Without records where a checkpoint
    /// store keeps it.
    pub fn state(&self) -> State<'a> {
        self.state
    }
}
