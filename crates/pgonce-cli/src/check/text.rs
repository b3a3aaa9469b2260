//! A report as people read it at a terminal.

use super::finding::Severity;
use super::report::{Facts, Group, Report};
use crate::output::{Output, Tone};
use crate::render::{count, counted};

/// Names, and lines of SQL, that are shown of a group without `--all`.
const SHOWN: usize = 10;

/// Columns of a terminal.
const WIDTH: usize = 100;

impl Severity {
    fn tone(self) -> Tone {
        match self {
            Severity::Problem => Tone::Bad,
            Severity::Warning | Severity::Unknown => Tone::Warning,
            Severity::Note => Tone::Strong,
            Severity::Ok => Tone::Good,
        }
    }
}

impl Report {
    /// Writes the report. `all`: what is in order too, and no list is cut short.
    pub fn write(&self, output: Output, all: bool) {
        for (side, facts) in [("source", &self.source), ("target", &self.target)] {
            if let Some(Facts { version, database, role }) = facts {
                let side = output.tone(Tone::Faint, side);
                output.line(&format!("{side}  PostgreSQL {version}, database {database}, as role {role}"));
            }
        }
        for group in self.groups().iter().filter(|group| all || group.severity != Severity::Ok) {
            output.line("");
            self.write_group(group, output, all);
        }
        output.line("");
        output.line(&self.summary(output));
    }

    fn write_group(&self, group: &Group<'_>, output: Output, all: bool) {
        let limit = if all { usize::MAX } else { SHOWN };
        let word = output.tone(group.severity.tone(), group.severity.word());
        let number = match group.findings.len() {
            1 => String::new(),
            n => format!("  ({})", count(n as u64)),
        };
        output.line(&format!("{word}  {}{number}", output.tone(Tone::Strong, group.id)));
        let found = group.found();
        for (names, text) in found.iter().take(limit) {
            let line = match names.as_slice() {
                [] => (*text).to_owned(),
                names => format!("{}: {text}", listed(names, limit)),
            };
            write_wrapped(output, &line);
        }
        if found.len() > limit {
            output.line(&format!("  ... and {} more, which --all shows", count((found.len() - limit) as u64)));
        }
        if !group.means.is_empty() {
            write_wrapped(output, group.means);
        }
        for (who, mends) in group.mends() {
            output.line(&format!("  {}", output.tone(Tone::Faint, &format!("{}:", who.words()))));
            // Whole statements or none: half of one is worse than nothing.
            let (mut shown, mut left) = (0, 0);
            for mend in mends.iter() {
                let lines = mend.text.lines().count();
                if shown + lines > limit {
                    left += lines;
                    continue;
                }
                shown += lines;
                mend.text.lines().for_each(|line| output.line(&format!("    {line}")));
            }
            if left > 0 {
                output.line(&format!("    -- and {} of SQL, which --all shows", counted(left as u64, "line", "lines")));
            }
            if mends.iter().any(|mend| mend.restart) {
                output.line("    -- and restart the server");
            }
        }
    }

    fn summary(&self, output: Output) -> String {
        let of = |severity: Severity, one: &str, many: &str| counted(self.count(severity) as u64, one, many);
        let (verdict, tone) = match self.exit_status() {
            0 => ("ready", Tone::Good),
            _ => ("not ready", Tone::Bad),
        };
        let tables = match self.tables {
            Some(tables) => format!(", {} to carry", counted(tables as u64, "table", "tables")),
            None => String::new(),
        };
        format!(
            "{}: {}, {}, {} unknown, {}; {} in order{tables}",
            output.tone(tone, verdict),
            of(Severity::Problem, "problem", "problems"),
            of(Severity::Warning, "warning", "warnings"),
            count(self.count(Severity::Unknown) as u64),
            of(Severity::Note, "note", "notes"),
            count(self.count(Severity::Ok) as u64),
        )
    }
}

/// Names with commas between, cut short with their number.
fn listed(names: &[String], limit: usize) -> String {
    let shown = names.iter().take(limit).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(limit) {
        None | Some(0) => shown,
        Some(more) => format!("{} tables: {shown}, ... and {} more", count(names.len() as u64), count(more as u64)),
    }
}

fn write_wrapped(output: Output, text: &str) {
    let mut line = String::from(" ");
    for word in text.split(' ') {
        if line.chars().count() + 1 + word.chars().count() > WIDTH && line.len() > 1 {
            output.line(&line);
            line = String::from(" ");
        }
        line.push(' ');
        line.push_str(word);
    }
    output.line(&line);
}

#[cfg(test)]
mod tests {
    use super::listed;

    #[test]
    fn long_lists_are_cut_with_their_number() {
        let names: Vec<String> = (0..12).map(|n| format!("t{n}")).collect();
        assert_eq!(listed(&names[..2], 10), "t0, t1");
        assert!(
            listed(&names, 10).starts_with("12 tables: t0, ") && listed(&names, 10).ends_with("t9, ... and 2 more")
        );
    }
}
