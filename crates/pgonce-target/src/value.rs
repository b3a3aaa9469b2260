//! Values on their way from pgoutput to the target, as they are: text or binary, never parsed.

use std::error::Error;
use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use pgonce::pgoutput::Column;
use postgres_types::{Format, IsNull, ToSql, Type, to_sql_checked};

/// A parameter whose bytes are already in PostgreSQL's text or binary format. It goes as any type.
///
/// `Debug` shows the length, never the value.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum RawValue {
    /// SQL NULL.
    Null,
    /// The type's text format.
    Text(Bytes),
    /// The type's binary format.
    Binary(Bytes),
}

impl RawValue {
    /// Copies a column's value behind `arena` and takes it from there: one allocation serves many values.
    pub(crate) fn of(column: Column<'_>, arena: &mut BytesMut) -> RawValue {
        let mut keep = |bytes: &[u8]| {
            if arena.capacity() - arena.len() < bytes.len() {
                arena.reserve(bytes.len().max(ARENA_BYTES));
            }
            arena.extend_from_slice(bytes);
            arena.split().freeze()
        };
        match column {
            Column::Null | Column::Unchanged => RawValue::Null,
            Column::Text(bytes) => RawValue::Text(keep(bytes)),
            Column::Binary(bytes) => RawValue::Binary(keep(bytes)),
        }
    }

    /// How many bytes the value takes.
    pub(crate) fn len(&self) -> usize {
        match self {
            RawValue::Null => 0,
            RawValue::Text(bytes) | RawValue::Binary(bytes) => bytes.len(),
        }
    }
}

const ARENA_BYTES: usize = 64 << 10;

impl fmt::Debug for RawValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RawValue::Null => f.write_str("Null"),
            RawValue::Text(bytes) => write!(f, "Text({} bytes)", bytes.len()),
            RawValue::Binary(bytes) => write!(f, "Binary({} bytes)", bytes.len()),
        }
    }
}

impl ToSql for RawValue {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            RawValue::Null => Ok(IsNull::Yes),
            RawValue::Text(bytes) | RawValue::Binary(bytes) => {
                out.extend_from_slice(bytes);
                Ok(IsNull::No)
            }
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        match self {
            RawValue::Binary(_) => Format::Binary,
            RawValue::Null | RawValue::Text(_) => Format::Text,
        }
    }

    to_sql_checked!();
}

/// Text values of one column of many rows, as they lie in a `text[]` in binary format: each with its length before it
/// and nothing escaped.
pub(crate) struct TextColumn {
    array: BytesMut,
    rows: u32,
    any_null: bool,
}

/// Bytes before the first element of a one-dimensional array: dimensions, flags, element type, length, lower bound.
const ARRAY_HEADER: usize = 20;

impl TextColumn {
    pub(crate) fn new() -> TextColumn {
        let mut array = BytesMut::with_capacity(1024);
        array.put_bytes(0, ARRAY_HEADER);
        TextColumn { array, rows: 0, any_null: false }
    }

    /// Adds the next row's value.
    pub(crate) fn push(&mut self, value: Option<&[u8]>) {
        self.rows += 1;
        match value {
            // A value comes from a message of less than 1 GB: its length fits.
            Some(bytes) => {
                self.array.put_u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
                self.array.extend_from_slice(bytes);
            }
            None => {
                self.any_null = true;
                self.array.put_i32(-1);
            }
        }
    }

    /// All rows' values as one `text[]`; the column is empty afterwards.
    pub(crate) fn take_array(&mut self) -> RawValue {
        if let Some(mut header) = self.array.get_mut(..ARRAY_HEADER) {
            header.put_i32(1);
            header.put_i32(i32::from(self.any_null));
            header.put_u32(Type::TEXT.oid());
            header.put_u32(self.rows);
            header.put_i32(1);
        }
        RawValue::Binary(self.take())
    }

    /// Each row's value by itself; the column is empty afterwards.
    pub(crate) fn take_values(&mut self) -> impl Iterator<Item = RawValue> + use<> {
        let mut rest = self.take();
        rest = rest.slice(ARRAY_HEADER..);
        std::iter::from_fn(move || {
            let (length, _) = rest.split_first_chunk::<4>()?;
            let length = i32::from_be_bytes(*length);
            let _ = rest.split_to(4);
            Some(match usize::try_from(length) {
                Ok(length) => RawValue::Text(rest.split_to(length)),
                Err(_) => RawValue::Null,
            })
        })
    }

    fn take(&mut self) -> Bytes {
        self.rows = 0;
        self.any_null = false;
        let taken = self.array.split().freeze();
        self.array.reserve(taken.len().max(1024));
        self.array.put_bytes(0, ARRAY_HEADER);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_of_texts_is_an_array_in_binary_format() {
        let mut column = TextColumn::new();
        column.push(Some(b"a\"b"));
        column.push(None);
        column.push(Some(b""));
        let RawValue::Binary(array) = column.take_array() else { panic!("not binary") };
        let expected = b"\0\0\0\x01\0\0\0\x01\0\0\0\x19\0\0\0\x03\0\0\0\x01\0\0\0\x03a\"b\xff\xff\xff\xff\0\0\0\0";
        assert_eq!(&array[..], expected);
        column.push(Some(b"next"));
        let RawValue::Binary(array) = column.take_array() else { panic!("not binary") };
        assert_eq!(&array[..], b"\0\0\0\x01\0\0\0\0\0\0\0\x19\0\0\0\x01\0\0\0\x01\0\0\0\x04next");
    }

    #[test]
    fn the_same_column_gives_its_values_one_by_one() {
        let mut column = TextColumn::new();
        column.push(Some(b"ab"));
        column.push(None);
        column.push(Some(b""));
        let values: Vec<RawValue> = column.take_values().collect();
        let text = |bytes: &'static [u8]| RawValue::Text(Bytes::from_static(bytes));
        assert_eq!(values, [text(b"ab"), RawValue::Null, text(b"")]);
        assert_eq!(column.take_values().count(), 0);
    }

    #[test]
    fn debug_output_has_lengths_and_no_values() {
        assert_eq!(format!("{:?}", RawValue::Text(Bytes::from_static(b"secret"))), "Text(6 bytes)");
    }
}
