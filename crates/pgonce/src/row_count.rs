//! Counts the rows of COPY data that nobody parses.

use crate::piece::Format;

/// Counts rows in pieces of COPY data that may be cut anywhere.
#[derive(Debug)]
pub(crate) enum RowCounter {
    /// Each row ends with a newline; those within values are escaped.
    Text { rows: u64 },
    /// Walks over the lengths.
    Binary(Walk),
}

impl RowCounter {
    pub(crate) fn new(format: Format) -> RowCounter {
        match format {
            Format::Text => RowCounter::Text { rows: 0 },
            Format::Binary => RowCounter::Binary(Walk::default()),
        }
    }

    /// Passes over the next bytes.
    pub(crate) fn pass(&mut self, bytes: &[u8]) {
        match self {
            RowCounter::Text { rows } => *rows += bytes.iter().filter(|byte| **byte == b'\n').count() as u64,
            RowCounter::Binary(walk) => walk.pass(bytes),
        }
    }

    /// How many rows have passed.
    pub(crate) fn rows(&self) -> u64 {
        match self {
            RowCounter::Text { rows } => *rows,
            RowCounter::Binary(walk) => walk.rows,
        }
    }
}

/// Where in the binary format the next bytes belong.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    rows: u64,
    /// Bytes of a value, or of the header, that are passed over.
    skip: usize,
    at: At,
    /// The beginning of a number that was cut.
    cut: [u8; 4],
    has: usize,
}

#[derive(Debug, Default, Clone, Copy)]
enum At {
    /// Signature and flags, 15 bytes.
    #[default]
    Start,
    /// The length of the header's extension.
    Extension,
    /// The number of a row's values; -1 behind the last row.
    Row,
    /// The length of a value, and how many follow in the row, this one included.
    Value(u16),
    /// Behind the last row.
    End,
}

const SIGNATURE_AND_FLAGS: usize = 15;

impl Walk {
    fn pass(&mut self, mut bytes: &[u8]) {
        loop {
            let skipped = self.skip.min(bytes.len());
            bytes = &bytes[skipped..];
            self.skip -= skipped;
            let need = match self.at {
                _ if self.skip > 0 => return,
                At::Start => {
                    (self.skip, self.at) = (SIGNATURE_AND_FLAGS, At::Extension);
                    continue;
                }
                At::Row => 2,
                At::Extension | At::Value(_) => 4,
                At::End => return,
            };
            let taken = (need - self.has).min(bytes.len());
            self.cut[self.has..self.has + taken].copy_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            self.has += taken;
            if self.has < need {
                return;
            }
            self.has = 0;
            self.number();
        }
    }

    /// A number is complete.
    fn number(&mut self) {
        // NULL has the length -1, and no bytes.
        let length = usize::try_from(i32::from_be_bytes(self.cut)).unwrap_or(0);
        let of_row = |values| if values == 0 { At::Row } else { At::Value(values) };
        match self.at {
            At::Extension => (self.skip, self.at) = (length, At::Row),
            At::Row => match u16::try_from(i16::from_be_bytes([self.cut[0], self.cut[1]])) {
                Ok(values) => {
                    self.rows += 1;
                    self.at = of_row(values);
                }
                Err(_) => self.at = At::End,
            },
            At::Value(left) => (self.skip, self.at) = (length, of_row(left - 1)),
            At::Start | At::End => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binary(rows: &[&[Option<&[u8]>]]) -> Vec<u8> {
        let mut data = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\x03ext".to_vec();
        for row in rows {
            data.extend(i16::try_from(row.len()).unwrap().to_be_bytes());
            for value in *row {
                data.extend(value.map_or(-1, |v| i32::try_from(v.len()).unwrap()).to_be_bytes());
                data.extend(value.unwrap_or_default());
            }
        }
        data.extend([0xff, 0xff]);
        data
    }

    #[test]
    fn rows_in_binary_are_counted_however_the_data_is_cut() {
        let data = binary(&[&[Some(b"a\n\xff\xff"), None], &[Some(b""), Some(&[0xff; 300])], &[], &[None, None]]);
        for size in 1..data.len() + 1 {
            let mut counter = RowCounter::new(Format::Binary);
            data.chunks(size).for_each(|piece| counter.pass(piece));
            assert_eq!(counter.rows(), 4, "in pieces of {size}");
        }
        let mut counter = RowCounter::new(Format::Binary);
        counter.pass(&binary(&[]));
        assert_eq!(counter.rows(), 0);
    }

    #[test]
    fn rows_in_text_end_with_a_newline() {
        let mut counter = RowCounter::new(Format::Text);
        counter.pass(b"1\ta\\nb\n2");
        counter.pass(b"\tc\n");
        assert_eq!(counter.rows(), 2);
    }
}
