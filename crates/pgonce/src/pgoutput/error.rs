//! Why bytes are not a message.

use std::fmt;

use super::message::MessageKind;

/// The bytes are not a pgoutput message that the protocol allows here.
///
/// Says which message, which field, where, and what was expected; never what was found, because that may be a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError {
    pub(super) kind: Option<MessageKind>,
    pub(super) part: Option<&'static str>,
    pub(super) column: Option<u16>,
    pub(super) field: &'static str,
    pub(super) offset: usize,
    pub(super) expected: Expected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// So many bytes, with fewer left.
    Bytes { needed: usize, left: usize },
    /// The end of the message, with bytes left.
    End { left: usize },
    /// Something that words describe.
    That(&'static str),
}

impl DecodeError {
    /// The kind of the message; `None` if its first byte is missing or names no kind.
    pub fn kind(&self) -> Option<MessageKind> {
        self.kind
    }

    /// The field that could not be read, in the words of the protocol page.
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// The column the field belongs to, counted from 1 in the order of the message; `None` outside columns.
    pub fn column(&self) -> Option<usize> {
        self.column.map(|index| usize::from(index) + 1)
    }

    /// Where in the message the field starts (0 is the byte that names the kind).
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The stable name of this error.
    pub fn code(&self) -> &'static str {
        "pgoutput_malformed"
    }

    /// What an operator can do.
    pub fn hint(&self) -> &'static str {
        "the source sent a replication message that protocol versions 1 to 4 do not allow: \
         check that the slot's plugin is pgoutput and that nothing between here and the source rewrites traffic"
    }

    /// Whether waiting may heal it: no.
    pub fn is_transient(&self) -> bool {
        false
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Some(kind) => write!(f, "pgoutput {kind} message: ")?,
            None => write!(f, "pgoutput message: ")?,
        }
        if let Some(part) = self.part {
            write!(f, "{part}, ")?;
        }
        if let Some(column) = self.column() {
            write!(f, "column {column}, ")?;
        }
        write!(f, "{} at byte {}: expected {}", self.field, self.offset, self.expected)
    }
}

impl std::error::Error for DecodeError {}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expected::Bytes { needed, left } => write!(f, "{needed} bytes, {left} left"),
            Expected::End { left } => write!(f, "the end of the message, {left} bytes left"),
            Expected::That(words) => f.write_str(words),
        }
    }
}
