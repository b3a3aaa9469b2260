//! From rounds to the report: ratios of times that were measured side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Serialize;

use crate::measure::{Measured, median};
use crate::parts::{Part, Round};

/// One line of `report.json`.
#[derive(Serialize, Clone, PartialEq, Debug)]
pub struct Entry {
    /// The workload's name.
    pub workload: String,
    /// The servers' major.
    pub postgres: u32,
    /// `pgonce` in direct mode, or a variant of it.
    pub contestant: String,
    /// The peer, in its best mode of this run: `native` is a native subscription, `pipe` bare COPY.
    pub against: String,
    /// The peer's time divided by pgonce's, of each pair: the median.
    pub ratio_median: f64,
    /// The lowest.
    pub ratio_min: f64,
    /// The highest.
    pub ratio_max: f64,
    /// How many pairs.
    pub runs: usize,
    /// Of `latency`: the median ratio of the 99th percentiles; the others are of the medians.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_p99_median: Option<f64>,
    /// The peer's best mode.
    pub against_mode: String,
    /// The median of pgonce's figures.
    pub value_median: f64,
    /// The median of the peer's figures.
    pub against_value_median: f64,
    /// The unit of both.
    pub unit: &'static str,
    /// Medians of pgonce's other figures.
    pub extra: BTreeMap<String, f64>,
    /// Medians of the peer's other figures.
    pub against_extra: BTreeMap<String, f64>,
    /// How many transactions the backlog had.
    pub transactions: Option<u64>,
    /// What sizes were divided by: not 1 was only a try.
    pub scale_div: u32,
    /// The servers' version.
    pub server: String,
    /// The optimisation that both servers were built with.
    pub server_build: String,
    /// The commit.
    pub commit: String,
    /// The day of the last pair.
    pub date: String,
}

/// The rounds of each part, in order of their first appearance.
fn by_part(rounds: &[Round]) -> Vec<(&Part, Vec<&Round>)> {
    let mut parts: Vec<(&Part, Vec<&Round>)> = Vec::new();
    for round in rounds {
        match parts.iter_mut().find(|(part, _)| **part == round.part) {
            Some((_, known)) => known.push(round),
            None => parts.push((&round.part, vec![round])),
        }
    }
    parts
}

/// The results of each contestant and mode.
fn by_mode<'a>(rounds: &[&'a Round]) -> BTreeMap<(&'a str, &'a str), Vec<&'a Measured>> {
    let mut modes: BTreeMap<_, Vec<&Measured>> = BTreeMap::new();
    for measured in rounds.iter().flat_map(|round| &round.measured) {
        modes.entry((measured.contestant.as_str(), measured.mode.as_str())).or_default().push(measured);
    }
    modes
}

fn median_value(results: &[&Measured]) -> f64 {
    median(&results.iter().map(|measured| measured.value).collect::<Vec<_>>())
}

fn median_extra(results: &[&Measured]) -> BTreeMap<String, f64> {
    let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (name, value) in results.iter().flat_map(|measured| &measured.extra) {
        values.entry(name.clone()).or_default().push(*value);
    }
    values.into_iter().map(|(name, values)| (name, rounded(median(&values)))).collect()
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// The unit of a workload's figures.
fn unit(workload: &str) -> &'static str {
    if workload == "latency" { "ms" } else { "s" }
}

/// The comparisons that the rounds allow.
pub fn entries(rounds: &[Round]) -> Vec<Entry> {
    by_part(rounds).into_iter().flat_map(|(part, rounds)| part_entries(part, &rounds)).collect()
}

fn is_own(contestant: &str) -> bool {
    contestant.starts_with("pgonce")
}

/// pgonce against each of its peers.
fn part_entries(part: &Part, rounds: &[&Round]) -> Vec<Entry> {
    if part.workload == "idle" {
        // Next to nothing divided by next to nothing says nothing.
        return Vec::new();
    }
    let contestants = rounds.iter().flat_map(|round| &round.measured).map(|one| one.contestant.as_str());
    let peers: BTreeSet<&str> = contestants.filter(|contestant| !is_own(contestant)).collect();
    peers.into_iter().filter_map(|peer| entry(part, peer, rounds)).collect()
}

fn entry(part: &Part, peer: &str, rounds: &[&Round]) -> Option<Entry> {
    // Rounds without one of the two are no pairs.
    let has = |round: &Round, wanted: &dyn Fn(&str) -> bool| round.measured.iter().any(|one| wanted(&one.contestant));
    let both = |round: &Round| has(round, &|name| name == peer) && has(round, &is_own);
    let pairs: Vec<&Round> = rounds.iter().copied().filter(|round| both(round)).collect();
    let modes = by_mode(&pairs);
    let peers = modes.iter().filter(|((contestant, _), results)| {
        // A mode that is missing in some pairs cannot be compared in them.
        *contestant == peer && results.len() == pairs.len()
    });
    let (best, theirs) = peers.min_by(|(_, left), (_, right)| median_value(left).total_cmp(&median_value(right)))?;
    let (own, ours) = modes.iter().find(|((contestant, _), _)| is_own(contestant))?;
    let ratios: Vec<f64> = theirs.iter().zip(ours).map(|(theirs, ours)| theirs.value / ours.value).collect();
    let p99 = |one: &Measured| one.extra.get("p99").copied();
    let p99_ratios: Option<Vec<f64>> =
        theirs.iter().zip(ours).map(|(theirs, ours)| Some(p99(theirs)? / p99(ours)?)).collect();
    let last = pairs.last()?;
    Some(Entry {
        workload: part.workload.clone(),
        postgres: part.postgres,
        contestant: own.0.to_owned(),
        against: best.0.to_owned(),
        ratio_median: rounded(median(&ratios)),
        ratio_min: rounded(ratios.iter().copied().fold(f64::INFINITY, f64::min)),
        ratio_max: rounded(ratios.iter().copied().fold(0.0, f64::max)),
        runs: ratios.len(),
        ratio_p99_median: p99_ratios.map(|ratios| rounded(median(&ratios))),
        against_mode: best.1.to_owned(),
        value_median: rounded(median_value(ours)),
        against_value_median: rounded(median_value(theirs)),
        unit: unit(&part.workload),
        extra: median_extra(ours),
        against_extra: median_extra(theirs),
        transactions: last.transactions,
        scale_div: part.scale_div,
        server: last.server.clone(),
        server_build: last.build.clone(),
        commit: part.commit.clone(),
        date: last.date.clone(),
    })
}

/// The report for people, in the form of `docs/benchmarks.md`: ratios, then the figures of every mode.
pub fn text(rounds: &[Round]) -> String {
    let mut text = String::new();
    let entries = entries(rounds);
    if !entries.is_empty() {
        text.push_str("| workload | PostgreSQL | contestant | against | ratio (median) | min | max | pairs |\n");
        text.push_str("|---|---|---|---|---|---|---|---|\n");
        for one in &entries {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {}, {} | {:.2} | {:.2} | {:.2} | {} |",
                one.workload,
                one.server,
                one.contestant,
                one.against,
                one.against_mode,
                one.ratio_median,
                one.ratio_min,
                one.ratio_max,
                one.runs
            );
            if let Some(ratio) = one.ratio_p99_median {
                let _ = writeln!(
                    text,
                    "| {}, p99 | {} | {} | {} | {ratio:.2} | | | {} |",
                    one.workload, one.server, one.contestant, one.against, one.runs
                );
            }
        }
        text.push('\n');
    }
    text.push_str("| workload | PostgreSQL | contestant | mode | median | runs | of each process |\n");
    text.push_str("|---|---|---|---|---|---|---|\n");
    for (part, rounds) in by_part(rounds) {
        for ((contestant, mode), results) in by_mode(&rounds) {
            let extra: Vec<String> =
                median_extra(&results).into_iter().map(|(name, value)| format!("{name} {value:.2}")).collect();
            let _ = writeln!(
                text,
                "| {} | {} | {contestant} | {mode} | {:.2} {} | {} | {} |",
                part.workload,
                if part.postgres == 0 { "-".to_owned() } else { part.postgres.to_string() },
                median_value(&results),
                unit(&part.workload),
                results.len(),
                extra.join(", ")
            );
        }
    }
    if let Some(note) = note(rounds) {
        let _ = write!(text, "\n{note}");
    }
    text
}

/// What a reader of the figures must know: size, builds.
fn note(rounds: &[Round]) -> Option<String> {
    let first = rounds.first()?;
    let mut note = format!("Commit {}, {}.", first.part.commit, first.date);
    if first.part.scale_div != 1 {
        let _ = write!(note, " Sizes divided by {}: a try, not a measurement.", first.part.scale_div);
    }
    let mut builds: Vec<(&str, &str)> =
        rounds.iter().map(|round| (round.server.as_str(), round.build.as_str())).collect();
    builds.retain(|(server, _)| *server != "none");
    builds.sort_unstable();
    builds.dedup();
    for (server, build) in builds {
        let _ = write!(note, " PostgreSQL {server} is built with {build}");
        note.push_str(if build == "-Os" { " (for size: slower than packaged servers)." } else { "." });
    }
    note.push('\n');
    Some(note)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::tests::round;

    #[test]
    fn ratios_are_of_the_same_pair_and_against_the_best_mode() {
        let rounds = [
            round("w1", false, &[("native", "text", 9.0), ("native", "binary", 4.0), ("pgonce", "direct", 2.0)]),
            round("w1", false, &[("native", "text", 3.0), ("native", "binary", 6.0), ("pgonce", "direct", 4.0)]),
            round("w1", false, &[("native", "text", 9.0), ("native", "binary", 4.0), ("pgonce", "direct", 4.0)]),
        ];
        let entries = entries(&rounds);
        let [one] = entries.as_slice() else { panic!("{entries:?}") };
        assert_eq!((one.against.as_str(), one.against_mode.as_str(), one.runs), ("native", "binary", 3));
        assert_eq!((one.ratio_median, one.ratio_min, one.ratio_max), (1.5, 1.0, 2.0));
        assert!(text(&rounds).contains("| w1 | 15.18 | pgonce | native, binary | 1.50 | 1.00 | 2.00 | 3 |"));
    }

    #[test]
    fn what_is_no_pair_gives_no_ratio() {
        let alone = [round("w1", false, &[("native", "binary", 4.0)])];
        assert_eq!(entries(&alone), []);
        assert!(text(&alone).contains("| w1 | 15 | native | binary | 4.00 s | 1 |"), "{}", text(&alone));
        assert_eq!(entries(&[round("idle", false, &[("native", "b", 0.1), ("pgonce", "direct", 0.1)])]), []);
    }

    #[test]
    fn synchronous_runs_are_a_comparison_of_their_own() {
        let rounds = [
            round("w3", false, &[("native", "binary", 4.0), ("pgonce", "direct", 2.0)]),
            round("w3", true, &[("native", "binary, on", 40.0), ("pgonce-sync", "direct, on", 4.0)]),
        ];
        let found: Vec<_> = entries(&rounds).into_iter().map(|one| (one.contestant, one.ratio_median)).collect();
        assert_eq!(found, [("pgonce".to_owned(), 2.0), ("pgonce-sync".to_owned(), 10.0)]);
    }

    #[test]
    fn each_peer_is_a_comparison_of_its_own() {
        let rounds = [round("copy", false, &[("pipe", "p", 4.0), ("pgcopydb", "c", 8.0), ("pgonce", "direct", 4.0)])];
        let found: Vec<_> = entries(&rounds).into_iter().map(|one| (one.against, one.ratio_median)).collect();
        assert_eq!(found, [("pgcopydb".to_owned(), 2.0), ("pipe".to_owned(), 1.0)]);
    }
}
