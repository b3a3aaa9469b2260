//! What a composition of source and sink promises, as a value.

use std::fmt;

use crate::group::GroupLimits;

/// The two kinds of promise, as types: a program can demand one of them in a signature, as in
/// `Pipeline<S, D> where D: Destination<Mode = EffectOnce>`.
pub trait Mode: sealed::Sealed + Send + 'static {
    /// What is promised where groups are bounded by `limits`.
    fn guarantee(limits: &GroupLimits) -> Guarantee;

    /// What is promised of an initial copy.
    fn copy_guarantee() -> Guarantee;
}

/// Data, dedup record and checkpoint are one atomic write.
#[derive(Debug)]
pub enum EffectOnce {}

/// The checkpoint is written after the data.
#[derive(Debug)]
pub enum AtLeastOnce {}

impl Mode for EffectOnce {
    fn guarantee(_: &GroupLimits) -> Guarantee {
        Guarantee::EffectOnce
    }

    fn copy_guarantee() -> Guarantee {
        Guarantee::EffectOnce
    }
}

impl Mode for AtLeastOnce {
    fn guarantee(limits: &GroupLimits) -> Guarantee {
        let duplicates_at_most = if limits.is_each_transaction() { Repeat::Transaction } else { Repeat::Batch };
        Guarantee::AtLeastOnce { duplicates_at_most }
    }

    fn copy_guarantee() -> Guarantee {
        Guarantee::AtLeastOnce { duplicates_at_most: Repeat::SnapshotChunk }
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::EffectOnce {}
    impl Sealed for super::AtLeastOnce {}
}

/// What is promised about duplicates. Loss is never allowed in any mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guarantee {
    /// Data, dedup record and checkpoint are one atomic write: a redelivered transaction has no effect.
    EffectOnce,
    /// The checkpoint is written after the data: what lies between may be written again after a crash.
    AtLeastOnce {
        /// The most that a crash can repeat.
        duplicates_at_most: Repeat,
    },
}

/// The unit that a crash can repeat where the checkpoint follows the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repeat {
    /// One source transaction.
    Transaction,
    /// One batch of source transactions.
    Batch,
    /// One chunk of a snapshot: what is read at one boundary and stored as copied in one write. A table is one, and of
    /// each table under way all rows may come again; a sink is told to remove those that it has.
    SnapshotChunk,
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Guarantee::EffectOnce => {
                f.write_str("effect-once: data, dedup record and checkpoint are one target commit")
            }
            Guarantee::AtLeastOnce { duplicates_at_most } => write!(
                f,
                "at-least-once: a crash repeats at most {}",
                match duplicates_at_most {
                    Repeat::Transaction => "one transaction",
                    Repeat::Batch => "one batch",
                    Repeat::SnapshotChunk => "the tables whose copy is under way, one snapshot chunk each",
                }
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn law_4_every_guarantee_says_what_a_crash_can_repeat() {
        assert!(Guarantee::EffectOnce.to_string().starts_with("effect-once: "));
        assert_eq!(EffectOnce::guarantee(&GroupLimits::default()), Guarantee::EffectOnce);
        for (limits, repeat) in
            [(GroupLimits::each_transaction(), Repeat::Transaction), (GroupLimits::default(), Repeat::Batch)]
        {
            let guarantee = Guarantee::AtLeastOnce { duplicates_at_most: repeat };
            assert_eq!(AtLeastOnce::guarantee(&limits), guarantee);
        }
        for (repeat, said) in [
            (Repeat::Transaction, "one transaction"),
            (Repeat::Batch, "one batch"),
            (Repeat::SnapshotChunk, "the tables whose copy is under way, one snapshot chunk each"),
        ] {
            let guarantee = Guarantee::AtLeastOnce { duplicates_at_most: repeat };
            assert_eq!(guarantee.to_string(), format!("at-least-once: a crash repeats at most {said}"));
        }
    }
}
