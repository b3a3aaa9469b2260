//! The text format of COPY, read into rows of the form that the stream has them in. No I/O.

use std::fmt;

use crate::pgoutput::Tuple;

/// So many rows are handed over together at most,
const ROWS_MAX: usize = 1_000;
/// and no row is added to so many bytes.
const BYTES_MAX: usize = 1 << 20;

/// Rows, one behind the other in a buffer that is used again: values are unescaped into it, and nothing is allocated
/// for one of them.
///
/// It reads what COPY TO STDOUT writes and nothing else: what a human could have typed as well (other escapes, a line
/// feed of another system, an end mark) would mean that the two ends disagree.
pub(crate) struct RowBuffer {
    columns: u16,
    /// Whole rows, and the one under way, as pgoutput has them.
    bytes: Vec<u8>,
    /// Where each whole row ends.
    ends: Vec<usize>,
    /// Of the row under way, if there is one.
    row: Option<Row>,
    /// Rows since the beginning, for errors.
    passed: u64,
}

struct Row {
    /// Columns that are whole.
    columns: u16,
    /// Where the value under way begins, with its header.
    value: usize,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Plain,
    /// Behind a backslash.
    Escape,
    /// Behind `\N`.
    Null,
}

/// Kind and length.
const HEADER: usize = 5;

impl RowBuffer {
    pub(crate) fn new(columns: u16) -> RowBuffer {
        RowBuffer { columns, bytes: Vec::new(), ends: Vec::new(), row: None, passed: 0 }
    }

    /// Whether it takes no further row before it is [cleared](RowBuffer::clear).
    pub(crate) fn is_full(&self) -> bool {
        self.row.is_none() && (self.ends.len() >= ROWS_MAX || self.bytes.len() >= BYTES_MAX)
    }

    /// How many whole rows it holds.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The whole rows.
    pub(crate) fn rows(&self) -> impl ExactSizeIterator<Item = Tuple<'_>> {
        let mut from = 0;
        self.ends.iter().map(move |end| {
            let row = &self.bytes[std::mem::replace(&mut from, *end)..*end];
            Tuple::of_columns(self.columns, row)
        })
    }

    /// Forgets the rows that it holds, between two of them.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        // One huge row does not keep its memory.
        self.bytes.shrink_to(2 * BYTES_MAX);
    }

    /// Takes COPY data in, and returns how much of it: all, unless it is full.
    pub(crate) fn push(&mut self, data: &[u8]) -> Result<usize, BadCopyText> {
        let mut at = 0;
        while at < data.len() && !self.is_full() {
            at += self.step(&data[at..]).map_err(|what| BadCopyText { row: self.passed + 1, what })?;
        }
        Ok(at)
    }

    /// The data is at its end, which is between two rows.
    pub(crate) fn finish(&self) -> Result<(), BadCopyText> {
        match self.row {
            None => Ok(()),
            Some(_) => Err(BadCopyText { row: self.passed + 1, what: What::Cut }),
        }
    }

    /// Takes in some bytes, one at least.
    fn step(&mut self, data: &[u8]) -> Result<usize, What> {
        if self.columns == 0 {
            // A row of no columns is an empty line.
            return if data[0] == b'\n' { Ok(self.end_row()) } else { Err(What::Columns) };
        }
        let row = match &mut self.row {
            Some(row) => row,
            None => self.row.insert(Row { columns: 0, value: begin_value(&mut self.bytes), state: State::Plain }),
        };
        match row.state {
            State::Plain => {
                let special = |byte: &u8| matches!(byte, 0x08..=0x0d | b'\\');
                let plain = data.iter().position(special).unwrap_or(data.len());
                if plain > 0 {
                    self.bytes.extend_from_slice(&data[..plain]);
                    return Ok(plain);
                }
                match data[0] {
                    b'\\' => row.state = State::Escape,
                    end @ (b'\t' | b'\n') => self.end_value(end)?,
                    _ => return Err(What::Escape),
                }
            }
            State::Escape => {
                row.state = State::Plain;
                self.bytes.push(match data[0] {
                    b'\\' => b'\\',
                    b't' => b'\t',
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b'b' => 0x08,
                    b'f' => 0x0c,
                    b'v' => 0x0b,
                    b'N' if self.bytes.len() == row.value + HEADER => {
                        row.state = State::Null;
                        return Ok(1);
                    }
                    _ => return Err(What::Escape),
                });
            }
            State::Null => match data[0] {
                end @ (b'\t' | b'\n') => self.end_value(end)?,
                _ => return Err(What::Escape),
            },
        }
        Ok(1)
    }

    /// A value ends, and with a line feed its row.
    fn end_value(&mut self, end: u8) -> Result<(), What> {
        let Some(row) = &mut self.row else { return Ok(()) };
        if row.state == State::Null {
            self.bytes.truncate(row.value);
            self.bytes.push(b'n');
        } else {
            let length = u32::try_from(self.bytes.len() - row.value - HEADER).map_err(|_| What::Length)?;
            self.bytes[row.value + 1..row.value + HEADER].copy_from_slice(&length.to_be_bytes());
        }
        row.columns += 1;
        match end {
            b'\t' if row.columns < self.columns => {
                (row.value, row.state) = (begin_value(&mut self.bytes), State::Plain);
                Ok(())
            }
            b'\n' if row.columns == self.columns => {
                self.end_row();
                Ok(())
            }
            _ => Err(What::Columns),
        }
    }

    /// A row ends, with a line feed: one byte.
    fn end_row(&mut self) -> usize {
        self.row = None;
        self.passed += 1;
        self.ends.push(self.bytes.len());
        1
    }
}

/// The header of a value, its length still to come.
fn begin_value(bytes: &mut Vec<u8>) -> usize {
    let at = bytes.len();
    bytes.extend_from_slice(&[b't', 0, 0, 0, 0]);
    at
}

/// Shows how many rows there are, and no value.
impl fmt::Debug for RowBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowBuffer").field("rows", &self.ends.len()).field("bytes", &self.bytes.len()).finish()
    }
}

/// COPY data that no server writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("row {row} of the COPY data {what}")]
pub(crate) struct BadCopyText {
    row: u64,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum What {
    #[error("has not as many columns as were asked for")]
    Columns,
    #[error("is not written as COPY TO writes")]
    Escape,
    #[error("has a value of more than 4 GB")]
    Length,
    #[error("is cut off")]
    Cut,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pgoutput::Column;

    type Value = Option<Vec<u8>>;

    /// As COPY TO writes it (`CopyAttributeOutText` of the server).
    fn encode(rows: &[Vec<Value>]) -> Vec<u8> {
        let mut out = Vec::new();
        for row in rows {
            for (at, value) in row.iter().enumerate() {
                if at > 0 {
                    out.push(b'\t');
                }
                let Some(value) = value else {
                    out.extend_from_slice(b"\\N");
                    continue;
                };
                for byte in value {
                    match byte {
                        8 => out.extend_from_slice(b"\\b"),
                        9 => out.extend_from_slice(b"\\t"),
                        10 => out.extend_from_slice(b"\\n"),
                        11 => out.extend_from_slice(b"\\v"),
                        12 => out.extend_from_slice(b"\\f"),
                        13 => out.extend_from_slice(b"\\r"),
                        b'\\' => out.extend_from_slice(b"\\\\"),
                        other => out.push(*other),
                    }
                }
            }
            out.push(b'\n');
        }
        out
    }

    fn taken(buffer: &RowBuffer) -> Vec<Vec<Value>> {
        let value = |column| match column {
            Column::Null => None,
            Column::Text(text) => Some(text.to_vec()),
            other => panic!("{other:?}"),
        };
        buffer.rows().map(|row| row.iter().map(value).collect()).collect()
    }

    /// Reads it in pieces of these sizes, and takes the rows out whenever the buffer is full.
    fn decode(columns: u16, data: &[u8], cuts: &[usize]) -> Result<Vec<Vec<Value>>, BadCopyText> {
        let (mut buffer, mut rows, mut rest) = (RowBuffer::new(columns), Vec::new(), data);
        let mut cuts = cuts.iter().copied().chain(std::iter::repeat(usize::MAX));
        while !rest.is_empty() {
            if buffer.is_full() {
                rows.extend(taken(&buffer));
                buffer.clear();
            }
            let piece = &rest[..cuts.next().unwrap_or(usize::MAX).clamp(1, rest.len())];
            rest = &rest[buffer.push(piece)?..];
        }
        buffer.finish()?;
        rows.extend(taken(&buffer));
        Ok(rows)
    }

    fn odd_byte() -> impl Strategy<Value = u8> {
        prop_oneof![0u8..32, Just(b'\\'), Just(b'N'), Just(b'.'), any::<u8>()]
    }

    fn table() -> impl Strategy<Value = Vec<Vec<Value>>> {
        (0usize..6).prop_flat_map(|columns| {
            let value = proptest::option::weighted(0.8, proptest::collection::vec(odd_byte(), 0..12));
            proptest::collection::vec(proptest::collection::vec(value, columns..=columns), 0..40)
        })
    }

    proptest! {
        #[test]
        fn rows_come_out_as_they_went_in_however_they_are_cut(
            rows in table(), cuts in proptest::collection::vec(1usize..9, 0..200),
        ) {
            let columns = rows.first().map_or(1, Vec::len) as u16;
            prop_assert_eq!(decode(columns, &encode(&rows), &cuts), Ok(rows));
        }

        #[test]
        fn whatever_comes_is_refused_or_is_what_copy_to_would_write(
            data in proptest::collection::vec(prop_oneof![odd_byte(), Just(b'\t'), Just(b'\n')], 0..60),
            columns in 0u16..4,
        ) {
            if let Ok(rows) = decode(columns, &data, &[]) {
                prop_assert_eq!(encode(&rows), data);
            }
        }
    }

    #[test]
    fn what_no_server_writes_is_refused_by_row_and_without_its_bytes() {
        let refused = |columns, data: &[u8]| decode(columns, data, &[]).unwrap_err().to_string();
        assert_eq!(refused(1, b"a\nsecret\\x41\n"), "row 2 of the COPY data is not written as COPY TO writes");
        for data in [&b"\\.\n"[..], b"a\x0b\n", b"a\\N\n", b"\\Na\n", b"\\N\\N\n", b"a\r\n"] {
            assert!(refused(1, data).ends_with("is not written as COPY TO writes"), "{data:?}");
        }
        for (columns, data) in [(2, &b"a\n"[..]), (1, b"a\tb\n"), (0, b"a\n"), (3, b"a\tb\tc\td\n")] {
            assert!(refused(columns, data).ends_with("as many columns as were asked for"), "{data:?}");
        }
        for data in [&b"a"[..], b"a\\", b"\\N", b"a\nb"] {
            assert!(refused(1, data).ends_with("is cut off"), "{data:?}");
        }
    }

    #[test]
    fn rows_are_bounded_by_count_and_by_bytes() {
        let mut buffer = RowBuffer::new(1);
        let many = b"x\n".repeat(ROWS_MAX + 5);
        assert_eq!(buffer.push(&many), Ok(2 * ROWS_MAX));
        assert_eq!((buffer.len(), buffer.is_full(), buffer.push(b"x\n")), (ROWS_MAX, true, Ok(0)));
        buffer.clear();
        let mut wide = vec![b'q'; BYTES_MAX];
        wide.extend_from_slice(b"\nz\n");
        assert_eq!(buffer.push(&wide), Ok(BYTES_MAX + 1));
        assert_eq!((buffer.len(), buffer.is_full()), (1, true));
        assert!(!format!("{buffer:?}").contains('q'), "{buffer:?}");
    }
}
