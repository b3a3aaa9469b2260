//! The report for people.

use std::collections::BTreeMap;

use super::report::{
    Difference, LedgerCheck, Outcome, Positions, Problem, Report, RowKind, RowReport, TableReport, Verdict,
};
use crate::output::{Output, Tone};
use crate::render::{Listing, count, counted};

/// Names that are listed of tables that are not compared, at most.
const NAMES_MAX: usize = 12;

/// Writes a report.
pub fn write(report: &Report, output: Output) {
    let flow = output.tone(Tone::Strong, &format!("flow {}", report.flow));
    output.line(&format!("{flow}, compared at rest: drained, and written to by nobody meanwhile."));
    output.line(
        &output
            .tone(Tone::Faint, "This verification is not yet live: it does not work while the source is written to."),
    );
    output.line("");
    if let Some(positions) = &report.positions {
        watermarks(positions, report.ledger.as_ref()).write(output);
        output.line("");
    }
    if !report.tables.is_empty() {
        table_lines(report, output);
        output.line("");
    }
    others(report, output);
    problems(&report.alarms, Tone::Bad, output);
    problems(&report.reasons, Tone::Warning, output);
    verdict(report, output);
}

fn watermarks(positions: &Positions, ledger: Option<&LedgerCheck>) -> Listing {
    let unknown = || "none".to_owned();
    let mut list = Listing::default();
    if let Some(point) = &positions.point {
        list.pair("compared at", format!("{point} (the source's write position at the beginning)"));
    }
    let proof = match positions.drained_by {
        Some("ledger") => "the target has stored this position or a later one",
        Some("slot") => "what the slot still holds is applied already, or not published",
        _ => "not shown",
    };
    list.pair("drained", proof);
    list.pair(
        "checkpoint",
        match (&positions.checkpoint, &positions.checkpoint_end) {
            (Some(commit), Some(end)) => format!("{commit} (its commit record ends at {end})"),
            _ => unknown(),
        },
    );
    list.pair("idle boundary", positions.idle.clone().unwrap_or_else(unknown));
    let confirmed = positions.confirmed_flush.clone().unwrap_or_else(unknown);
    list.pair("acknowledged", format!("{confirmed} (slot {})", positions.slot));
    if let Some(end) = &positions.source_end {
        list.pair("source now", end);
    }
    if let Some(LedgerCheck { transactions, oldest, breaks, .. }) = ledger {
        let recorded = counted(*transactions, "transaction", "transactions");
        list.pair(
            "ledger",
            match (oldest, breaks) {
                (Some(oldest), 0) => format!("{recorded} recorded, an unbroken chain from {oldest} to the checkpoint"),
                (Some(_), breaks) => format!("{recorded} recorded, with {}", counted(*breaks, "hole", "holes")),
                (None, _) => "no transaction recorded yet".to_owned(),
            },
        );
    }
    list
}

/// One line for each table, in columns, and below it what differs.
fn table_lines(report: &Report, output: Output) {
    const HEAD: [&str; 6] = ["table", "source rows", "target rows", "keys", "content", ""];
    let mut lines = vec![HEAD.map(str::to_owned)];
    lines.extend(report.tables.iter().map(cells));
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    for (number, line) in lines.iter().enumerate() {
        let text: Vec<String> = line
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, width))| match column {
                1 | 2 => format!("{cell:>width$}"),
                _ => format!("{cell:<width$}"),
            })
            .collect();
        let text = text.join("  ");
        let table = number.checked_sub(1).and_then(|index| report.tables.get(index));
        let tone = match table.map(|table| table.outcome) {
            None => Some(Tone::Faint),
            Some(Outcome::Same) => None,
            Some(Outcome::Different) => Some(Tone::Bad),
            Some(Outcome::NotComparable) => Some(Tone::Warning),
        };
        let text = text.trim_end();
        output.line(&tone.map_or_else(|| text.to_owned(), |tone| output.tone(tone, text)));
        if let Some(table) = table {
            below(table, output);
        }
    }
}

fn cells(table: &TableReport) -> [String; 6] {
    let rows = |sums: &Option<super::report::Sums>| sums.as_ref().map_or("-".to_owned(), |sums| count(sums.rows));
    let (mut keys, mut content) = ("-".to_owned(), "-".to_owned());
    if let (Some(here), Some(there)) = (&table.source, &table.target) {
        keys = same(here.key_checksum.as_deref(), there.key_checksum.as_deref());
        content = same(Some(&here.content_checksum), Some(&there.content_checksum));
    }
    let word = match table.outcome {
        Outcome::Same => "same",
        Outcome::Different => "DIFFERENT",
        Outcome::NotComparable => "not comparable",
    };
    let both = |there: &String| format!("{} -> {there}", table.table);
    let name = table.target_table.as_ref().map_or_else(|| table.table.clone(), both);
    [name, rows(&table.source), rows(&table.target), keys, content, word.to_owned()]
}

/// The beginnings of two checksums.
fn same(here: Option<&str>, there: Option<&str>) -> String {
    let short = |checksum: &str| checksum.chars().take(8).collect::<String>();
    match (here, there) {
        (Some(here), Some(there)) if here == there => short(here),
        (Some(here), Some(there)) => format!("{} / {}", short(here), short(there)),
        _ => "no key".to_owned(),
    }
}

fn below(table: &TableReport, output: Output) {
    if let Some(Problem { text, hint, .. }) = &table.reason {
        output.line(&format!("    {text}\n    {hint}"));
    }
    if let Some(difference) = &table.difference {
        differences(table, difference, output);
    }
    let mut asides = Vec::new();
    if let Some(filter) = &table.row_filter {
        asides.push(format!("only the source's rows of the publication's filter: {filter}"));
    }
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for skipped in &table.not_compared {
        by_reason.entry(skipped.why).or_default().push(&skipped.column);
    }
    asides.extend(by_reason.iter().map(|(why, columns)| format!("not compared ({why}): {}", columns.join(", "))));
    asides.extend(table.notes.iter().cloned());
    for aside in asides {
        output.line(&output.tone(Tone::Faint, &format!("    {aside}")));
    }
}

fn differences(table: &TableReport, difference: &Difference, output: Output) {
    let Difference { missing, extra, different, columns, examined, rows } = difference;
    let mut parts = Vec::new();
    let mut part = |number: &u64, what: &str| {
        if *number > 0 {
            parts.push(format!("{} {what}", counted(*number, "row", "rows")));
        }
    };
    part(missing, "missing on the target");
    part(extra, "extra on the target");
    part(different, "with other content");
    output.line(&format!("    {}", parts.join(", ")));
    if !columns.is_empty() {
        let names: Vec<String> = columns.iter().map(|(column, rows)| format!("{column} ({})", count(*rows))).collect();
        let of = if examined < different { format!(" of the first {} rows", count(*examined)) } else { String::new() };
        output.line(&format!("    differing columns{of}: {}", names.join(", ")));
    }
    let told = rows.iter().filter(|row| row.key.is_some() || row.source.is_some() || row.target.is_some());
    let told: Vec<String> = told.map(row_text).collect();
    for line in &told {
        output.line(&format!("      {line}"));
    }
    let all = missing + extra + different;
    if told.is_empty() {
        if !table.key.is_empty() {
            output.line(&output.tone(Tone::Faint, "    which rows: add --show-keys"));
        }
    } else if all > rows.iter().map(|row| row.times).sum() {
        output.line(&format!("      ... and more: {} are listed at most", super::narrow::LISTED_MAX));
    }
}

fn row_text(row: &RowReport) -> String {
    let kind = match row.kind {
        RowKind::Missing => "missing  ",
        RowKind::Extra => "extra    ",
        RowKind::Different => "different",
    };
    let mut text = kind.to_owned();
    if row.times > 1 {
        text.push_str(&format!(" {} times", count(row.times)));
    }
    if let Some(key) = &row.key {
        text.push_str(&format!("  {}", values(key, |_| true)));
    }
    if !row.columns.is_empty() {
        text.push_str(&format!("  in {}", row.columns.join(", ")));
    }
    text.truncate(text.trim_end().len());
    // Of a row that differs only what differs; of another one all there is.
    let keep = |column: &str| row.columns.is_empty() || row.columns.iter().any(|differing| differing == column);
    for (side, of) in [("source", &row.source), ("target", &row.target)] {
        if let Some(of) = of {
            text.push_str(&format!("\n                 {side}: {}", values(of, keep)));
        }
    }
    text
}

fn values(values: &BTreeMap<String, Option<String>>, keep: impl Fn(&str) -> bool) -> String {
    let kept = values.iter().filter(|(column, _)| keep(column));
    let pairs: Vec<String> = kept
        .map(|(column, value)| match value {
            Some(value) => format!("{column}={value:?}"),
            None => format!("{column}=NULL"),
        })
        .collect();
    pairs.join(" ")
}

fn others(report: &Report, output: Output) {
    let mut list = Listing::default();
    for (label, names) in [("only on target", &report.only_on_target), ("not published", &report.not_published)] {
        if !names.is_empty() {
            let mut text = names.iter().take(NAMES_MAX).cloned().collect::<Vec<_>>().join(", ");
            if names.len() > NAMES_MAX {
                text.push_str(&format!(" and {} more", names.len() - NAMES_MAX));
            }
            list.toned(label, text, Tone::Faint);
            list.gap();
        }
    }
    if !report.only_on_target.is_empty() || !report.not_published.is_empty() {
        list.write(output);
    }
}

fn problems(problems: &[Problem], tone: Tone, output: Output) {
    for Problem { code, text, hint } in problems {
        output.line(&format!("{} {text}", output.tone(tone, &format!("{code}:"))));
        output.line(&format!("{} {hint}", output.tone(Tone::Strong, "hint:")));
        output.line("");
    }
}

fn verdict(report: &Report, output: Output) {
    let of = |outcome| report.tables.iter().filter(|table| table.outcome == outcome).count() as u64;
    let rows: u64 = report.tables.iter().filter_map(|table| table.source.as_ref()).map(|sums| sums.rows).sum();
    let (tone, what) = match report.verdict {
        Verdict::Converged => (
            Tone::Good,
            format!(
                "{} and {} are the same on both sides",
                counted(report.tables.len() as u64, "table", "tables"),
                counted(rows, "row", "rows")
            ),
        ),
        Verdict::Drift if of(Outcome::Different) == 0 => (Tone::Bad, "the flow's own records do not agree".to_owned()),
        Verdict::Drift => {
            let (different, tables) = (of(Outcome::Different), counted(report.tables.len() as u64, "table", "tables"));
            (Tone::Bad, format!("{different} of {tables} {}", if different == 1 { "differs" } else { "differ" }))
        }
        Verdict::NotComparable => (Tone::Warning, "no verdict, for the reason above".to_owned()),
    };
    let head = output.tone(tone, &format!("verdict: {}", report.verdict.words()));
    output.line(&format!("{head} ({what}; {:.1} s)", report.elapsed_seconds));
}
