//! The pieces in which a table is copied, and the plan of a table that is to be copied. No I/O.

use std::fmt;
use std::sync::Arc;

use crate::flow::StoredPiece;
use crate::ident::{quote_ident, quote_literal};
use crate::pgoutput::Column;
use crate::published::PublishedTable;
use crate::relation::Relation;

/// What of a table a piece holds. The pieces of a table cover it and do not overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of it.
    Whole,
    /// A range of the first column of its key. Holds for any snapshot.
    Key {
        /// The column.
        column: String,
        /// From here on; `None` from the beginning.
        low: Option<KeyValue>,
        /// Up to here and not including it; `None` to the end.
        high: Option<KeyValue>,
    },
    /// A range of its blocks. Holds for one snapshot: in another one rows lie elsewhere.
    Ctid {
        /// From this block on; `None` from the beginning.
        low: Option<u32>,
        /// Up to this block and not including it; `None` to the end.
        high: Option<u32>,
    },
}

impl Extent {
    /// The condition that a row of the piece meets, or `None` where every row does. `column` is how the key column is
    /// called where it is used.
    pub fn condition(&self, column: &str) -> Option<String> {
        let bounds = match self {
            Extent::Whole => return None,
            Extent::Key { low, high, .. } => [(">=", low), ("<", high)].map(|(operator, bound)| {
                bound.as_ref().map(|v| comparison(&quote_ident(column), operator, &v.literal()))
            }),
            Extent::Ctid { low, high } => [(">=", low), ("<", high)].map(|(operator, bound)| {
                bound.map(|block| comparison("ctid", operator, &format!("'({block},0)'::pg_catalog.tid")))
            }),
        };
        let bounds: Vec<String> = bounds.into_iter().flatten().collect();
        (!bounds.is_empty()).then(|| bounds.join(" AND "))
    }

    /// Whether the piece holds only in the snapshot that it was cut for.
    pub fn is_physical(&self) -> bool {
        matches!(self, Extent::Ctid { .. })
    }
}

fn comparison(left: &str, operator: &str, right: &str) -> String {
    format!("{left} OPERATOR(pg_catalog.{operator}) {right}")
}

/// A value of a column that ranges are made of: `int2`, `int4`, `int8` or `uuid`. Ordered as PostgreSQL orders them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyValue {
    /// An integer of any width.
    Int(i64),
    /// A UUID.
    Uuid([u8; 16]),
}

/// The types whose values are [`KeyValue`]s, by OID: `int2`, `int4`, `int8`, `uuid`.
pub const KEY_TYPES: [u32; 4] = [21, 23, 20, 2950];

impl KeyValue {
    /// Reads PostgreSQL's text form.
    pub fn parse(text: &str) -> Option<KeyValue> {
        if let Ok(number) = text.parse() {
            return Some(KeyValue::Int(number));
        }
        let mut digits = text.bytes().filter(|byte| *byte != b'-');
        let mut uuid = [0; 16];
        for byte in &mut uuid {
            let mut digit = || char::from(digits.next()?).to_digit(16);
            *byte = u8::try_from(digit()? << 4 | digit()?).ok()?;
        }
        digits.next().is_none().then_some(KeyValue::Uuid(uuid))
    }

    /// Reads a column of the stream. `None`: it is not there, or not such a value.
    pub fn of(column: &Column<'_>) -> Option<KeyValue> {
        match *column {
            Column::Text(bytes) => KeyValue::parse(std::str::from_utf8(bytes).ok()?),
            Column::Binary(bytes) => match bytes.len() {
                2 => bytes.try_into().ok().map(|b| KeyValue::Int(i16::from_be_bytes(b).into())),
                4 => bytes.try_into().ok().map(|b| KeyValue::Int(i32::from_be_bytes(b).into())),
                8 => bytes.try_into().ok().map(|b| KeyValue::Int(i64::from_be_bytes(b))),
                16 => bytes.try_into().ok().map(KeyValue::Uuid),
                _ => None,
            },
            Column::Null | Column::Unchanged => None,
        }
    }

    fn literal(self) -> String {
        let of_type = if matches!(self, KeyValue::Int(_)) { "int8" } else { "uuid" };
        format!("{}::pg_catalog.{of_type}", quote_literal(&self.to_string()))
    }
}

impl fmt::Display for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyValue::Int(number) => write!(f, "{number}"),
            KeyValue::Uuid(bytes) => {
                for (at, byte) in bytes.iter().enumerate() {
                    if matches!(at, 4 | 6 | 8 | 10) {
                        f.write_str("-")?;
                    }
                    write!(f, "{byte:02x}")?;
                }
                Ok(())
            }
        }
    }
}

/// Shows the kind, never the value.
impl fmt::Debug for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, KeyValue::Int(_)) { "Int" } else { "Uuid" })
    }
}

/// One piece of a table that is to be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its number among the pieces of the table.
    pub number: i32,
    /// What it holds.
    pub extent: Extent,
    /// About how large it is.
    pub bytes: u64,
}

/// The type of a column, as far as it decides how its values are copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnType {
    /// The type's OID; of a domain, the type below all domains.
    pub oid: u32,
    /// The labels of an enum, in order, each on a line of its own.
    pub labels: Option<String>,
}

/// How a table that is to be copied stands with the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its pieces are new to the sink, which has nothing of the table.
    New,
    /// The sink has its pieces from an earlier session; some of them may have been copied.
    Planned,
    /// The sink has pieces from an earlier session that hold no more: these take their place, and what was copied of
    /// the table is removed.
    Anew,
}

/// A table that is to be copied.
#[derive(Clone, Debug)]
pub struct TableCopy {
    /// The table.
    pub table: PublishedTable,
    /// The types of the table's copied columns on the source, in order.
    pub types: Vec<ColumnType>,
    /// The table and its copied columns as the stream describes them.
    pub relation: Arc<Relation>,
    /// How it stands.
    pub standing: Standing,
    /// The target may hold rows of it, which the copy takes the place of.
    pub replaces: bool,
    /// The pieces that have not been copied; all of them unless it is [`Standing::Planned`].
    pub pieces: Vec<Piece>,
}

impl TableCopy {
    /// The pieces, as they are stored before they are copied.
    pub fn stored_pieces(&self) -> Vec<StoredPiece> {
        let stored = |piece: &Piece| StoredPiece {
            number: piece.number,
            extent: piece.extent.clone(),
            bytes: piece.bytes,
            boundary: None,
        };
        self.pieces.iter().map(stored).collect()
    }

    /// The column that the pieces are ranges of.
    pub fn key_column(&self) -> Option<&str> {
        self.pieces.iter().find_map(|piece| match &piece.extent {
            Extent::Key { column, .. } => Some(column.as_str()),
            _ => None,
        })
    }
}

/// What a sink says of a table that it was told to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPlan {
    /// The format in which it is copied.
    pub format: Format,
    /// Its pieces hold together only if they are all read in one snapshot.
    pub together: bool,
}

/// A format of COPY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text.
    Text,
    /// Binary: both ends have the same types, whose binary form is the same in all versions.
    Binary,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_postgres_writes_them_and_ordered_as_it_orders_them() {
        for text in ["0", "-9223372036854775808", "9223372036854775807", "00000000-0000-4000-8000-00000000000a"] {
            assert_eq!(KeyValue::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "x", "1.0", "00000000-0000-4000-8000-00000000000", "00000000-0000-4000-8000-00000000000ab"] {
            assert_eq!(KeyValue::parse(text), None, "{text}");
        }
        assert!(KeyValue::Int(-1) < KeyValue::Int(0));
        let uuid = |text| KeyValue::parse(text).unwrap();
        assert!(uuid("7fffffff-0000-0000-0000-000000000000") < uuid("80000000-0000-0000-0000-000000000000"));
    }

    #[test]
    fn the_stream_gives_values_as_text_or_in_binary() {
        assert_eq!(KeyValue::of(&Column::Text(b"-5")), Some(KeyValue::Int(-5)));
        assert_eq!(KeyValue::of(&Column::Binary(&(-5i16).to_be_bytes())), Some(KeyValue::Int(-5)));
        assert_eq!(KeyValue::of(&Column::Binary(&(-5i32).to_be_bytes())), Some(KeyValue::Int(-5)));
        assert_eq!(KeyValue::of(&Column::Binary(&(-5i64).to_be_bytes())), Some(KeyValue::Int(-5)));
        assert_eq!(KeyValue::of(&Column::Binary(&[7; 16])), Some(KeyValue::Uuid([7; 16])));
        assert_eq!(KeyValue::of(&Column::Unchanged), None);
        assert_eq!(KeyValue::of(&Column::Null), None);
    }

    #[test]
    fn a_piece_is_a_condition() {
        let key = |low, high| Extent::Key { column: "i\"d".into(), low, high };
        assert_eq!(key(None, None).condition("i\"d"), None);
        assert_eq!(
            key(Some(KeyValue::Int(-1)), Some(KeyValue::Int(9))).condition("i\"d").unwrap(),
            "\"i\"\"d\" OPERATOR(pg_catalog.>=) '-1'::pg_catalog.int8 AND \
             \"i\"\"d\" OPERATOR(pg_catalog.<) '9'::pg_catalog.int8"
        );
        assert_eq!(
            Extent::Ctid { low: Some(3), high: None }.condition("").unwrap(),
            "ctid OPERATOR(pg_catalog.>=) '(3,0)'::pg_catalog.tid"
        );
        assert_eq!(format!("{:?}", KeyValue::Int(4711)), "Int");
    }
}
