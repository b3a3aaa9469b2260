//! What a verification found: for programs as it is, for people by [`super::text`].

use std::collections::BTreeMap;

use pgonce::stop::Stop;
use serde::Serialize;

use crate::failure::Failure;

/// The outcome of a verification.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every published table was compared at one point, and nothing differs.
    Converged,
    /// Something differs, or the flow's own records say that something is lost.
    Drift,
    /// It cannot be said.
    NotComparable,
}

impl Verdict {
    /// The exit status of the command.
    pub fn exit_status(self) -> u8 {
        match self {
            Verdict::Converged => 0,
            Verdict::Drift => 1,
            Verdict::NotComparable => 2,
        }
    }

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Converged => "converged",
            Verdict::Drift => "drift",
            Verdict::NotComparable => "not comparable",
        }
    }
}

/// Something that stands in the way, or that is wrong with the flow itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Problem {
    /// A stable word for programs.
    pub code: String,
    /// What, and where.
    pub text: String,
    /// What to do about it.
    pub hint: String,
}

impl Problem {
    /// A problem.
    pub fn new(code: &str, text: impl Into<String>, hint: impl Into<String>) -> Problem {
        Problem { code: code.to_owned(), text: text.into(), hint: hint.into() }
    }
}

impl From<&Stop> for Problem {
    fn from(stop: &Stop) -> Problem {
        Problem::new(stop.code(), stop.to_string(), stop.hint())
    }
}

/// Why a step of a verification ended early.
#[derive(Debug)]
pub enum Interrupted {
    /// The command fails: a connection cannot be made or broke, or it was used wrongly.
    Failed(Failure),
    /// There is no verdict, and this is why.
    NotComparable(Problem),
}

impl From<Stop> for Interrupted {
    fn from(stop: Stop) -> Interrupted {
        match stop.code() {
            "connection" | "connection_refused" | "internal" | "protocol" => Interrupted::Failed(stop.into()),
            _ => Interrupted::NotComparable(Problem::from(&stop)),
        }
    }
}

impl From<Problem> for Interrupted {
    fn from(problem: Problem) -> Interrupted {
        Interrupted::NotComparable(problem)
    }
}

/// Everything that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `verify`, for who reads lines of several commands.
    pub event: &'static str,
    /// The flow.
    pub flow: String,
    /// The outcome.
    pub verdict: Verdict,
    /// Whether the databases may be written to meanwhile. Always false here.
    pub live: bool,
    /// Why there is no verdict, where there is none.
    pub reasons: Vec<Problem>,
    /// What is wrong with the flow itself, whatever its tables hold.
    pub alarms: Vec<Problem>,
    /// The watermarks.
    pub positions: Option<Positions>,
    /// What the target's ledger says about itself.
    pub ledger: Option<LedgerCheck>,
    /// The published tables.
    pub tables: Vec<TableReport>,
    /// Tables of the target that the source does not have. Never drift.
    pub only_on_target: Vec<String>,
    /// Tables of the source that are not published, so that nothing is said of them, on the target or not.
    pub not_published: Vec<String>,
    /// How long it took.
    pub elapsed_seconds: f64,
}

impl Report {
    /// A report that says nothing yet.
    pub fn new(flow: &str) -> Report {
        Report {
            event: "verify",
            flow: flow.to_owned(),
            verdict: Verdict::NotComparable,
            live: false,
            reasons: Vec::new(),
            alarms: Vec::new(),
            positions: None,
            ledger: None,
            tables: Vec::new(),
            only_on_target: Vec::new(),
            not_published: Vec::new(),
            elapsed_seconds: 0.0,
        }
    }

    /// Draws the verdict from what was found. `at_rest` says whether nothing moved while the tables were compared.
    pub fn conclude(&mut self, at_rest: bool) {
        let any = |outcome| self.tables.iter().any(|table| table.outcome == outcome);
        self.verdict = if !self.alarms.is_empty() || (at_rest && any(Outcome::Different)) {
            Verdict::Drift
        } else if !at_rest || !self.reasons.is_empty() || any(Outcome::NotComparable) {
            Verdict::NotComparable
        } else {
            Verdict::Converged
        };
    }
}

/// The watermarks, as PostgreSQL prints LSNs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Positions {
    /// Where the comparison stands: everything that committed on the source before it was compared.
    pub point: Option<String>,
    /// The source's write position when everything had been compared.
    pub source_end: Option<String>,
    /// Commit LSN of the checkpoint: the last applied transaction.
    pub checkpoint: Option<String>,
    /// The end of its commit record.
    pub checkpoint_end: Option<String>,
    /// The last stored idle boundary.
    pub idle: Option<String>,
    /// The slot's `confirmed_flush_lsn`.
    pub confirmed_flush: Option<String>,
    /// The slot.
    pub slot: String,
    /// How it was shown that nothing published lies between what is applied and the point: the `ledger` has stored
    /// the point, or the `slot` holds nothing that is published and not applied.
    pub drained_by: Option<&'static str>,
}

/// What the ledger says about itself.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct LedgerCheck {
    /// Recorded transactions.
    pub transactions: u64,
    /// The oldest that has not been pruned.
    pub oldest: Option<String>,
    /// The newest.
    pub newest: Option<String>,
    /// How many name a predecessor that is not the recorded one.
    pub breaks: u64,
}

/// What was found of one table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Equal.
    Same,
    /// Not equal.
    Different,
    /// It cannot be said.
    NotComparable,
}

/// One published table.
#[derive(Clone, Debug, Serialize)]
pub struct TableReport {
    /// Schema and name.
    pub table: String,
    /// Schema and name on the target, where they are others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_table: Option<String>,
    /// What was found.
    pub outcome: Outcome,
    /// Why it cannot be said, where it cannot.
    pub reason: Option<Problem>,
    /// The source's rows.
    pub source: Option<Sums>,
    /// The target's rows.
    pub target: Option<Sums>,
    /// Columns by which rows are told apart. Empty: rows are compared as a multiset.
    pub key: Vec<String>,
    /// The compared columns.
    pub columns: Vec<String>,
    /// Columns that were not compared, and why.
    pub not_compared: Vec<NotCompared>,
    /// The publication's row filter, which was applied to the source.
    pub row_filter: Option<String>,
    /// Other things worth knowing.
    pub notes: Vec<String>,
    /// What differs.
    pub difference: Option<Difference>,
}

/// A column that was not compared.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NotCompared {
    /// The column.
    pub column: String,
    /// Why.
    pub why: &'static str,
}

/// Count and checksums of a table on one side.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Sums {
    /// Rows.
    pub rows: u64,
    /// Checksum of the keys; none without a key.
    pub key_checksum: Option<String>,
    /// Checksum of the compared columns of all rows.
    pub content_checksum: String,
}

/// What differs in a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Rows of the source that the target lacks.
    pub missing: u64,
    /// Rows of the target that the source lacks.
    pub extra: u64,
    /// Rows with the same key and other content.
    pub different: u64,
    /// In which columns the examined ones of them differ, with the number of rows.
    pub columns: BTreeMap<String, u64>,
    /// How many of the different rows were examined for their columns.
    pub examined: u64,
    /// Some of the rows. Their keys and values are there only if they were asked for.
    pub rows: Vec<RowReport>,
}

/// What differs of one row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowKind {
    /// The target lacks it.
    Missing,
    /// The source lacks it.
    Extra,
    /// Both have it, with other content.
    Different,
}

/// A row that differs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RowReport {
    /// How.
    pub kind: RowKind,
    /// How many such rows, in a table without a key.
    pub times: u64,
    /// Columns that differ.
    pub columns: Vec<String>,
    /// Its key, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<BTreeMap<String, Option<String>>>,
    /// The source's values, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<BTreeMap<String, Option<String>>>,
    /// The target's values, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<BTreeMap<String, Option<String>>>,
}
