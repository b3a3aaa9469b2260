//! What a run has to hand, and what it yields.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::contestant::Contestant;
use crate::stand::Stand;

/// What every run needs.
#[derive(Clone, Copy, Debug)]
pub struct Bench<'a> {
    /// The clusters.
    pub stand: &'a Stand,
    /// The program `pgonce`.
    pub pgonce: &'a Path,
    /// A folder for what contestants write.
    pub scratch: &'a Path,
    /// Divides the size of every workload.
    pub scale_div: u32,
}

/// The outcome of one run of one contestant.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Measured {
    /// Its name in the report.
    pub contestant: String,
    /// Its mode, in words.
    pub mode: String,
    /// Seconds, or the median in milliseconds: less is better.
    pub value: f64,
    /// Other figures by name.
    pub extra: BTreeMap<String, f64>,
}

impl Measured {
    /// A result of this contestant.
    pub fn new(contestant: Contestant, value: f64, extra: BTreeMap<String, f64>) -> Measured {
        Measured { contestant: contestant.name().to_owned(), mode: contestant.mode(), value, extra }
    }

    /// Whether it is of this contestant.
    pub fn is_of(&self, contestant: Contestant) -> bool {
        self.contestant == contestant.name() && self.mode == contestant.mode()
    }
}

/// The median; of an even number the mean of the two in the middle. `NaN` of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => f64::NAN,
        (length, middle) if length % 2 == 1 => sorted[middle],
        (_, middle) => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!(median(&[]).is_nan());
    }
}
