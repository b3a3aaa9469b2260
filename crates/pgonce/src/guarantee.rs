//! What a composition of source and sink promises, as a value.

use std::fmt;

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
    /// One chunk of a snapshot.
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
                    Repeat::SnapshotChunk => "one snapshot chunk",
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
        for (repeat, said) in [
            (Repeat::Transaction, "one transaction"),
            (Repeat::Batch, "one batch"),
            (Repeat::SnapshotChunk, "one snapshot chunk"),
        ] {
            let guarantee = Guarantee::AtLeastOnce { duplicates_at_most: repeat };
            assert_eq!(guarantee.to_string(), format!("at-least-once: a crash repeats at most {said}"));
        }
    }
}
