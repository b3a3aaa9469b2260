//! A timeline's history file: which timelines it descends from, and where it left each of them.

use crate::position::{Lsn, Timeline};

/// The ancestors of a timeline, oldest first, each with the position at which it was left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimelineHistory {
    ancestors: Vec<(Timeline, Lsn)>,
}

/// The history file is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("timeline history, line {line}: expected a timeline and an LSN")]
pub struct TimelineHistoryError {
    /// Counted from 1.
    pub line: usize,
}

impl TimelineHistory {
    /// Reads a history file: a line for each ancestor, of timeline, switch point and reason; `#` starts a comment.
    pub fn parse(content: &str) -> Result<TimelineHistory, TimelineHistoryError> {
        let mut ancestors = Vec::new();
        for (number, line) in content.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = line.split_whitespace();
            let entry = (|| Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?)))();
            ancestors.push(entry.ok_or(TimelineHistoryError { line: number + 1 })?);
        }
        Ok(TimelineHistory { ancestors })
    }

    /// Where `timeline` was left, if it is an ancestor.
    pub fn left_at(&self, timeline: Timeline) -> Option<Lsn> {
        self.ancestors.iter().find(|(t, _)| *t == timeline).map(|(_, at)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_file_is_read() {
        let file = "# comment\n1\t0/3000158\tno recovery target specified\n\n2\t16/B374D848\tbefore 2026-01-01\n";
        let history = TimelineHistory::parse(file).unwrap();
        assert_eq!(history.left_at(1), Some(Lsn(0x300_0158)));
        assert_eq!(history.left_at(2), Some(Lsn(0x16_B374_D848)));
        assert_eq!(history.left_at(3), None);
        assert_eq!(TimelineHistory::parse("1 x"), Err(TimelineHistoryError { line: 1 }));
    }
}
