//! Rows, walked in place.

use std::fmt;

/// One row of a message (`TupleData`): a borrowed run of columns, checked when the message was decoded.
///
/// Two tuples are equal if their columns are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tuple<'a> {
    pub(super) count: u16,
    /// The columns as they came, without the count before them. Invariant: exactly `count` whole columns.
    pub(super) bytes: &'a [u8],
}

impl<'a> Tuple<'a> {
    /// A row of so many columns, written as pgoutput does.
    pub(crate) fn of_columns(count: u16, bytes: &'a [u8]) -> Tuple<'a> {
        Tuple { count, bytes }
    }

    /// The number of columns.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether the row has no columns.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The columns, in the order of the relation's columns.
    #[inline]
    pub fn iter(&self) -> ColumnIter<'a> {
        ColumnIter { left: self.count, bytes: self.bytes }
    }

    /// How many bytes the row takes in the message, column headers included.
    #[inline]
    pub fn wire_len(&self) -> usize {
        self.bytes.len()
    }
}

impl<'a> IntoIterator for Tuple<'a> {
    type Item = Column<'a>;
    type IntoIter = ColumnIter<'a>;

    #[inline]
    fn into_iter(self) -> ColumnIter<'a> {
        self.iter()
    }
}

impl fmt::Debug for Tuple<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// One column of a row.
///
/// `Debug` shows the length of a value, never the value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Column<'a> {
    /// SQL NULL (`n`).
    Null,
    /// A TOASTed value that the change left alone (`u`): absent, not a value. The target keeps what it has.
    Unchanged,
    /// A value in the type's text format (`t`).
    Text(&'a [u8]),
    /// A value in the type's binary format (`b`).
    Binary(&'a [u8]),
}

impl fmt::Debug for Column<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Column::Null => f.write_str("Null"),
            Column::Unchanged => f.write_str("Unchanged"),
            Column::Text(value) => write!(f, "Text({} bytes)", value.len()),
            Column::Binary(value) => write!(f, "Binary({} bytes)", value.len()),
        }
    }
}

/// The columns of a [`Tuple`], one after the other.
#[derive(Clone)]
pub struct ColumnIter<'a> {
    left: u16,
    bytes: &'a [u8],
}

impl<'a> Iterator for ColumnIter<'a> {
    type Item = Column<'a>;

    #[inline]
    fn next(&mut self) -> Option<Column<'a>> {
        let (&kind, rest) = self.bytes.split_first()?;
        let (column, rest) = match kind {
            b'n' => (Column::Null, rest),
            b'u' => (Column::Unchanged, rest),
            _ => {
                let (length, rest) = rest.split_first_chunk::<4>()?;
                let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
                (if kind == b't' { Column::Text(value) } else { Column::Binary(value) }, rest)
            }
        };
        self.bytes = rest;
        self.left = self.left.saturating_sub(1);
        Some(column)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.left), Some(usize::from(self.left)))
    }
}

impl ExactSizeIterator for ColumnIter<'_> {}

impl std::iter::FusedIterator for ColumnIter<'_> {}

/// What an Update or a Delete says of the row as it was before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OldTuple<'a> {
    /// The columns of the replica identity index (`K`); all others are [`Column::Null`] and mean nothing.
    Key(Tuple<'a>),
    /// The whole row (`O`): the replica identity is `FULL`.
    Full(Tuple<'a>),
}

impl<'a> OldTuple<'a> {
    /// The row, whichever it is.
    #[inline]
    pub fn tuple(&self) -> Tuple<'a> {
        match *self {
            OldTuple::Key(tuple) | OldTuple::Full(tuple) => tuple,
        }
    }
}
