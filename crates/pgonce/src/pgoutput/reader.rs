//! Reads the fields of one message, in order, and knows where it stands when one is missing.

use super::error::{DecodeError, Expected};
use super::message::{MessageKind, PgTime};
use super::tuple::Tuple;
use crate::position::Lsn;

pub(super) struct Reader<'a> {
    kind: MessageKind,
    /// The column of a Relation message that is being read.
    pub(super) column: Option<u16>,
    message_len: usize,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads behind the first byte of `message`, which names `kind`.
    #[inline]
    pub(super) fn new(kind: MessageKind, message: &'a [u8]) -> Self {
        Reader { kind, column: None, message_len: message.len(), rest: message.get(1..).unwrap_or_default() }
    }

    /// What has not been read yet.
    #[inline]
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[cold]
    #[inline(never)]
    fn error(&self, field: &'static str, rest: &[u8], expected: Expected) -> DecodeError {
        DecodeError {
            kind: Some(self.kind),
            part: None,
            column: self.column,
            field,
            offset: self.message_len.saturating_sub(rest.len()),
            expected,
        }
    }

    #[inline]
    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        match self.rest.split_first_chunk::<N>() {
            Some((array, rest)) => {
                self.rest = rest;
                Ok(*array)
            }
            None => Err(self.error(field, self.rest, Expected::Bytes { needed: N, left: self.rest.len() })),
        }
    }

    /// `Byte1` or `Int8`.
    #[inline]
    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.array::<1>(field).map(|[byte]| byte)
    }

    /// `Int32`, unsigned.
    #[inline]
    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.array(field).map(u32::from_be_bytes)
    }

    /// `Int32`, signed.
    #[inline]
    pub(super) fn i32(&mut self, field: &'static str) -> Result<i32, DecodeError> {
        self.array(field).map(i32::from_be_bytes)
    }

    /// `Int64 (TimestampTz)`.
    #[inline]
    pub(super) fn time(&mut self, field: &'static str) -> Result<PgTime, DecodeError> {
        self.array(field).map(|bytes| PgTime(i64::from_be_bytes(bytes)))
    }

    /// `Int64 (XLogRecPtr)`, possibly `0/0`.
    #[inline]
    pub(super) fn lsn_or_zero(&mut self, field: &'static str) -> Result<Lsn, DecodeError> {
        self.array(field).map(|bytes| Lsn(u64::from_be_bytes(bytes)))
    }

    /// `Int64 (XLogRecPtr)` that names a place.
    #[inline]
    pub(super) fn lsn(&mut self, field: &'static str) -> Result<Lsn, DecodeError> {
        self.accept(field, Self::lsn_or_zero, |&lsn| lsn != Lsn::ZERO, "a position other than 0/0")
    }

    /// `Int32 (TransactionId)` that names a transaction.
    #[inline]
    pub(super) fn xid(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.accept(field, Self::u32, |&xid| xid != 0, "a transaction id other than 0")
    }

    /// `Int8` that says yes or no.
    #[inline]
    pub(super) fn flag(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        self.accept(field, Self::u8, |&byte| byte <= 1, "0 or 1").map(|byte| byte == 1)
    }

    /// `Int8` that is unused and therefore 0.
    #[inline]
    pub(super) fn no_flags(&mut self) -> Result<u8, DecodeError> {
        self.accept("flags", Self::u8, |&byte| byte == 0, "0 (no flags are defined)")
    }

    /// `Int16` that counts.
    #[inline]
    pub(super) fn count(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        let read = |reader: &mut Self, field| reader.array(field).map(u16::from_be_bytes);
        self.accept(field, read, |&count| count <= i16::MAX as u16, "a count from 0 to 32767")
    }

    /// A field of which not every value is one: an unacceptable one is refused where it starts.
    #[inline]
    pub(super) fn accept<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&mut Self, &'static str) -> Result<T, DecodeError>,
        acceptable: impl FnOnce(&T) -> bool,
        expected: &'static str,
    ) -> Result<T, DecodeError> {
        let before = self.rest;
        let value = read(self, field)?;
        if acceptable(&value) { Ok(value) } else { Err(self.error(field, before, Expected::That(expected))) }
    }

    /// As many bytes as an `Int32` counts.
    #[inline]
    pub(super) fn bytes(&mut self, length_field: &'static str, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let acceptable = |&length: &u32| length <= i32::MAX as u32;
        let length = self.accept(length_field, Self::u32, acceptable, "a length from 0 to 2147483647")? as usize;
        self.take(length, field)
    }

    /// `needed` bytes.
    #[inline]
    pub(super) fn take(&mut self, needed: usize, field: &'static str) -> Result<&'a [u8], DecodeError> {
        match self.rest.split_at_checked(needed) {
            Some((bytes, rest)) => {
                self.rest = rest;
                Ok(bytes)
            }
            None => Err(self.error(field, self.rest, Expected::Bytes { needed, left: self.rest.len() })),
        }
    }

    /// `String`: UTF-8 (every connection pins `client_encoding`) up to a zero byte.
    pub(super) fn string(&mut self, field: &'static str) -> Result<&'a str, DecodeError> {
        let Some(length) = self.rest.iter().position(|&byte| byte == 0) else {
            return Err(self.error(field, self.rest, Expected::That("a string that ends with a zero byte")));
        };
        let (string, rest) = self.rest.split_at(length);
        match std::str::from_utf8(string) {
            Ok(string) => {
                self.rest = rest.get(1..).unwrap_or_default();
                Ok(string)
            }
            Err(_) => Err(self.error(field, self.rest, Expected::That("UTF-8"))),
        }
    }

    /// `TupleData`. Walks all columns once, so that whoever walks them again needs no checks. `part` names the row in
    /// errors.
    #[inline]
    pub(super) fn tuple(&mut self, part: &'static str) -> Result<Tuple<'a>, DecodeError> {
        let count = self.count("number of columns").map_err(|error| DecodeError { part: Some(part), ..error })?;
        let start = self.rest;
        let mut rest = start;
        for column in 0..count {
            rest = match rest {
                [b'n' | b'u', rest @ ..] => rest,
                [b't' | b'b', l0, l1, l2, l3, rest @ ..] => {
                    let length = u32::from_be_bytes([*l0, *l1, *l2, *l3]);
                    match rest.get(length as usize..) {
                        Some(rest) if length <= i32::MAX as u32 => rest,
                        _ => return Err(self.column_error(part, column, length, rest)),
                    }
                }
                _ => return Err(self.column_header_error(part, column, rest)),
            };
        }
        self.rest = rest;
        let length = start.len() - rest.len();
        Ok(Tuple { count, bytes: start.get(..length).unwrap_or_default() })
    }

    /// A column of `length` bytes, which `rest`, behind that length, does not have.
    #[cold]
    #[inline(never)]
    fn column_error(&self, part: &'static str, column: u16, length: u32, rest: &[u8]) -> DecodeError {
        let error = if length > i32::MAX as u32 {
            let mut error = self.error("length of the value", rest, Expected::That("a length from 0 to 2147483647"));
            error.offset = error.offset.saturating_sub(4);
            error
        } else {
            self.error("value", rest, Expected::Bytes { needed: length as usize, left: rest.len() })
        };
        DecodeError { part: Some(part), column: Some(column), ..error }
    }

    /// A column that starts at `rest` and lacks its kind or its length.
    #[cold]
    #[inline(never)]
    fn column_header_error(&self, part: &'static str, column: u16, rest: &[u8]) -> DecodeError {
        let error = match rest {
            [] => self.error("kind of the value", rest, Expected::Bytes { needed: 1, left: 0 }),
            [b't' | b'b', rest @ ..] => {
                self.error("length of the value", rest, Expected::Bytes { needed: 4, left: rest.len() })
            }
            _ => self.error("kind of the value", rest, Expected::That("one of n, u, t, b")),
        };
        DecodeError { part: Some(part), column: Some(column), ..error }
    }

    /// The end of the message.
    #[inline]
    pub(super) fn end(&self) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(self.error("end", self.rest, Expected::End { left: self.rest.len() }))
    }
}
