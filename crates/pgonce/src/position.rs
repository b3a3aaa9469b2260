//! The four positions of a flow, four types.
//!
//! The likeliest error in this field is one "LSN" for everything. A [`CommitLsn`] names a transaction, an [`EndLsn`]
//! is what standby feedback reports for it, a [`Boundary`] lies between records, and [`Durable`] is a position that a
//! sink has proved flushed. There is no conversion between them except by the named methods here.

use std::fmt;
use std::str::FromStr;

/// A raw position in the write-ahead log, as PostgreSQL counts it: a byte address (`pg_lsn`).
///
/// Printed and parsed the way PostgreSQL prints `pg_lsn`: two hexadecimal halves, `16/B374D848`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

impl Lsn {
    /// `0/0`, PostgreSQL's `InvalidXLogRecPtr`.
    pub const ZERO: Lsn = Lsn(0);

    /// Bytes from `earlier` to `self`; 0 if `earlier` is not earlier.
    pub fn bytes_since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The same point between records, addressed before a WAL page header instead of behind it.
    ///
    /// `pg_current_wal_insert_lsn()` names the place where the next record's first byte will go, so right after a
    /// record that ends a page it points behind the next page's header (24 bytes, 40 at the start of a segment),
    /// while a walsender that has sent everything reports the end of that record: the page's edge. Both are the same
    /// point.
    pub fn before_page_header(self) -> Lsn {
        const PAGE: u64 = 8192;
        match self.0 % PAGE {
            24 => Lsn(self.0 - 24),
            40 if (self.0 - 40).is_multiple_of(1024 * 1024) => Lsn(self.0 - 40),
            _ => self,
        }
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not an LSN as PostgreSQL prints one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an LSN: expected two hexadecimal numbers of up to 8 digits with a slash between them, as in 16/B374D848")]
pub struct ParseLsnError;

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Lsn, ParseLsnError> {
        let half = |digits: &str| {
            let well_formed = (1..=8).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
            if well_formed { u64::from_str_radix(digits, 16).map_err(|_| ParseLsnError) } else { Err(ParseLsnError) }
        };
        let (high, low) = text.split_once('/').ok_or(ParseLsnError)?;
        Ok(Lsn(half(high)? << 32 | half(low)?))
    }
}

macro_rules! position {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub Lsn);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

position! {
    /// Where a transaction's commit record starts: the transaction's identity, and the watermark.
    ///
    /// A transaction with `commit_lsn <= checkpoint` has been applied.
    CommitLsn
}

position! {
    /// Just behind a transaction's commit record: what standby feedback reports once the transaction is durable.
    EndLsn
}

position! {
    /// A point between records: a snapshot's consistent point, an idle position, a stop position.
    ///
    /// Exclusive: a transaction is *new* if [`Boundary::precedes`] it. A commit record may start exactly at the
    /// boundary.
    Boundary
}

impl Boundary {
    /// Whether the transaction that committed at `commit` lies behind this boundary, that is, is new to who stands on
    /// it.
    pub fn precedes(self, commit: CommitLsn) -> bool {
        commit.0 >= self.0
    }
}

impl EndLsn {
    /// The point right behind the commit record, as a boundary. A commit record may start exactly there.
    pub fn as_boundary(self) -> Boundary {
        Boundary(self.0)
    }
}

/// A position that the sink has proved flushed. Only such a position may be acknowledged to the source.
///
/// Made by the [frontier](crate::frontier) alone: never from a number that a sink returned, never from a received
/// `wal_end`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Durable<P>(P);

impl<P: Copy> Durable<P> {
    pub(crate) fn proved(position: P) -> Self {
        Durable(position)
    }

    /// The position that was proved.
    pub fn position(self) -> P {
        self.0
    }
}

/// The timeline id of a source server: 1 after `initdb`, one more with each promotion.
pub type Timeline = u32;

/// What a sink has applied last: the watermark, stored in the same write as the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// The source's timeline when the transaction was received.
    pub timeline: Timeline,
    /// The last applied transaction. Everything up to and including it has been applied.
    pub commit: CommitLsn,
    /// The end of that transaction's commit record.
    pub end: EndLsn,
}
