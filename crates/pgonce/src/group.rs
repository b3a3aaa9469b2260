//! How many transactions are written at a time.

use std::time::Duration;

/// Bounds of a group of transactions that is handed to a destination at once. A group goes when one of these is
/// reached, and at the latest when its first transaction has waited for `delay`.
///
/// With the default `delay` of zero a group is whatever is waiting: batching then never adds latency to an idle flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimits {
    /// Transactions. One is delivery per transaction.
    pub transactions: usize,
    /// Bytes of encoded changes. A transaction that is larger goes alone.
    pub bytes: u64,
    /// Row changes. A transaction that has more goes alone.
    pub changes: u64,
    /// Bytes of the source's WAL from the first transaction's commit record to the last one's end.
    pub wal_span: u64,
    /// How long a transaction may wait for others.
    pub delay: Duration,
}

impl Default for GroupLimits {
    fn default() -> Self {
        GroupLimits { transactions: 2_000, bytes: 8 << 20, changes: 20_000, wal_span: u64::MAX, delay: Duration::ZERO }
    }
}

impl GroupLimits {
    /// Delivery per transaction.
    pub fn each_transaction() -> GroupLimits {
        GroupLimits { transactions: 1, ..GroupLimits::default() }
    }

    /// Whether every group is one transaction.
    pub fn is_each_transaction(&self) -> bool {
        self.transactions == 1
    }
}
