//! What a demonstration showed: `report.json`, and a page to read.

use pgonce_testkit::witness::Comparison;
use serde::Serialize;
use serde_json::Value;

use crate::output::{Output, Tone};
use crate::render::{Listing, count, counted};

/// The report.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// `demo`.
    pub event: &'static str,
    /// Whether everything is as it should be.
    pub passed: bool,
    /// The PostgreSQL major.
    pub postgres: u32,
    /// The seed that repeats it, as far as the machine repeats its timing.
    pub seed: u64,
    /// Transactions on the source, by SQL: distinct numbers in the log witness.
    pub source_transactions: u64,
    /// The same on the target.
    pub applied_transactions: u64,
    /// How often `pgonce run` was killed with SIGKILL, each proved.
    pub kills: u32,
    /// How many of these hit the initial copy.
    pub kills_while_copying: u32,
    /// How often the source was shut down immediately.
    pub source_crashes: u32,
    /// How often the target was.
    pub target_crashes: u32,
    /// How many processes ran the flow.
    pub runs: u32,
    /// Transactions that came again after a kill or crash and were skipped whole, as the flow's own output says. A
    /// process that was killed before it said so is not counted, so there may have been more.
    pub redelivered: u64,
    /// Transactions of the source that the target lacks, by SQL.
    pub lost: u64,
    /// Rows of the log witness that the target has too many, by SQL.
    pub duplicated: u64,
    /// Transactions that only the target has, by SQL.
    pub unexpected: u64,
    /// Rows of the mirror witness that differ, by SQL.
    pub mirror_differences: u64,
    /// The verdict of `pgonce verify`.
    pub verdict: String,
    /// Tables that it compared.
    pub tables: u64,
    /// Rows that it compared.
    pub rows: u64,
    /// How long everything took.
    pub elapsed_seconds: f64,
}

impl Summary {
    /// Fills in what the witnesses say.
    pub fn witnessed(&mut self, found: &Comparison) {
        self.source_transactions = found.source_transactions;
        self.applied_transactions = found.target_transactions;
        self.lost = found.lost;
        self.duplicated = found.duplicated;
        self.unexpected = found.unexpected;
        self.mirror_differences = found.mirror_differences;
    }

    /// Fills in what `pgonce verify` says.
    pub fn verified(&mut self, report: &Value) {
        self.verdict = report["verdict"].as_str().unwrap_or("unknown").to_owned();
        let tables = report["tables"].as_array().map_or(&[][..], Vec::as_slice);
        self.tables = tables.len() as u64;
        self.rows = tables.iter().filter_map(|table| table["source"]["rows"].as_u64()).sum();
    }

    fn differs(&self) -> bool {
        (self.lost, self.duplicated, self.unexpected, self.mirror_differences) != (0, 0, 0, 0)
    }

    /// Draws the conclusion.
    pub fn conclude(&mut self) {
        self.passed = self.source_transactions > 0
            && !self.differs()
            && self.verdict == "converged"
            && self.kills >= 5
            && self.source_crashes >= 1
            && self.target_crashes >= 1;
    }

    /// The exit status: 1 says that something differs, 2 that nothing can be said.
    pub fn exit_status(&self) -> u8 {
        match (self.passed, self.differs() || self.verdict == "drift") {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        }
    }

    /// Writes it for people.
    pub fn write(&self, output: Output) {
        let zero = |number: u64| if number == 0 { Tone::Good } else { Tone::Bad };
        let times = |number: u32| counted(number.into(), "time", "times");
        let mut list = Listing::default();
        list.pair("transactions on the source", count(self.source_transactions));
        list.pair("transactions on the target", count(self.applied_transactions));
        list.gap();
        list.pair(
            "pgonce killed (SIGKILL)",
            match self.kills_while_copying {
                0 => times(self.kills),
                copying => format!("{}, {copying} of them during the initial copy", times(self.kills)),
            },
        );
        list.pair("source crashed", times(self.source_crashes));
        list.pair("target crashed", times(self.target_crashes));
        list.pair("redelivered, and skipped", counted(self.redelivered, "transaction", "transactions"));
        list.gap();
        list.toned("lost", count(self.lost), zero(self.lost));
        list.toned("applied twice", count(self.duplicated), zero(self.duplicated));
        list.toned("rows that differ", count(self.mirror_differences), zero(self.mirror_differences));
        if self.unexpected > 0 {
            list.toned("never on the source", count(self.unexpected), Tone::Bad);
        }
        let tone = if self.verdict == "converged" { Tone::Good } else { Tone::Bad };
        let (tables, rows) = (counted(self.tables, "table", "tables"), counted(self.rows, "row", "rows"));
        list.toned("pgonce verify", format!("{} ({tables}, {rows})", self.verdict.replace('_', " ")), tone);
        list.gap();
        let (seconds, postgres, seed) = (self.elapsed_seconds, self.postgres, self.seed);
        list.pair("elapsed", format!("{seconds:.0} s (PostgreSQL {postgres}, seed {seed})"));
        output.line("");
        list.write(output);
        output.line("");
        output.line(if self.passed { PROVED } else { FAILED });
    }
}

const PROVED: &str = "\
What this shows: each transaction of the load put one row with a number of its own into a table without a key, where
nothing stops a second application. Lost and applied-twice are counted from that table, by plain SQL on both sides and not
by pgonce. Whatever was killed in between, every transaction is on the target, and none is there twice.";

const FAILED: &str = "\
Something is not as it should be. run.log in the demonstration's directory has all that the flow said; please report it
with the seed. With --keep the clusters stay for a look.";

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Summary {
        Summary {
            source_transactions: 9,
            applied_transactions: 9,
            kills: 5,
            source_crashes: 1,
            target_crashes: 1,
            verdict: "converged".to_owned(),
            ..Summary::default()
        }
    }

    fn status(mut summary: Summary) -> u8 {
        summary.conclude();
        summary.exit_status()
    }

    #[test]
    fn only_a_demonstration_that_showed_everything_passes() {
        assert_eq!(status(good()), 0);
        assert_eq!(status(Summary { lost: 1, ..good() }), 1);
        assert_eq!(status(Summary { duplicated: 1, ..good() }), 1);
        assert_eq!(status(Summary { mirror_differences: 1, ..good() }), 1);
        assert_eq!(status(Summary { verdict: "drift".to_owned(), ..good() }), 1);
        assert_eq!(status(Summary { verdict: "not_comparable".to_owned(), ..good() }), 2);
        assert_eq!(status(Summary { kills: 4, ..good() }), 2);
        assert_eq!(status(Summary { target_crashes: 0, ..good() }), 2);
        assert_eq!(status(Summary { source_transactions: 0, ..good() }), 2);
    }
}
