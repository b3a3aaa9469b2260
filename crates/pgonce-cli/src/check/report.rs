//! The findings of a check together: what they add up to, in which order, and for programs.

use pgonce::connect::Host;
use pgonce::stop::{Family, Side};
use serde_json::{Value, json};

use super::finding::{Finding, Mend, Severity, Subject, Who, sort};
use super::server::{self, Server};

/// What a check has found.
#[derive(Clone, Debug)]
pub struct Report {
    /// The flow, where it has a name.
    pub flow: Option<String>,
    /// When.
    pub at: String,
    /// The source, if it could be asked.
    pub source: Option<Facts>,
    /// The target, if it could be asked.
    pub target: Option<Facts>,
    /// How many tables are carried, or would be.
    pub tables: Option<usize>,
    /// What was found.
    pub findings: Vec<Finding>,
    /// Exit statuses of what failed.
    statuses: Vec<u8>,
}

/// A server, in three words.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Version.
    pub version: String,
    /// Database.
    pub database: String,
    /// The role that asked.
    pub role: String,
}

impl Facts {
    /// Those of a server.
    pub fn of(server: &Server) -> Facts {
        let Server { version_text: version, database, role, .. } = server.clone();
        Facts { version, database, role }
    }

    fn object(&self) -> Value {
        json!({"version": self.version, "database": self.database, "role": self.role})
    }
}

/// A host, or the directory of a socket.
pub fn host(host: &Host) -> String {
    match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(directory) => directory.display().to_string(),
    }
}

/// Findings that say the same of several subjects.
#[derive(Debug)]
pub struct Group<'a> {
    /// The id of all of them.
    pub id: &'static str,
    /// How grave they are.
    pub severity: Severity,
    /// What follows from them.
    pub means: &'a str,
    /// In their order. Never empty.
    pub findings: Vec<&'a Finding>,
}

impl Group<'_> {
    /// What was found, each with the names of its subjects.
    pub fn found(&self) -> Vec<(Vec<String>, &str)> {
        let mut found: Vec<(Vec<String>, &str)> = Vec::new();
        for finding in &self.findings {
            // The text names what is not a table.
            let name = match finding.subject {
                Subject::Table(..) | Subject::Column(..) => finding.subject.name(),
                Subject::Server | Subject::Object(_) => None,
            };
            match found.iter_mut().find(|(names, text)| *text == finding.found && !names.is_empty() && name.is_some()) {
                Some((names, _)) => names.extend(name),
                None => found.push((name.into_iter().collect(), &finding.found)),
            }
        }
        found
    }

    /// What mends them, each once, by who types it.
    pub fn mends(&self) -> Vec<(Who, Vec<&Mend>)> {
        let mut mends: Vec<(Who, Vec<&Mend>)> = Vec::new();
        for mend in self.findings.iter().flat_map(|finding| &finding.mends) {
            match mends.iter_mut().find(|(who, _)| *who == mend.who) {
                Some((_, list)) if list.contains(&mend) => {}
                Some((_, list)) => list.push(mend),
                None => mends.push((mend.who, vec![mend])),
            }
        }
        mends
    }
}

impl Report {
    /// Of a check that has not begun.
    pub fn new(flow: Option<String>) -> Report {
        let (findings, statuses) = (Vec::new(), Vec::new());
        Report { flow, at: server::now(), source: None, target: None, tables: None, findings, statuses }
    }

    /// Something failed that a flow would end with this exit status for.
    pub fn failed(&mut self, status: u8) {
        self.statuses.push(status);
    }

    /// Brings the findings into their order.
    pub fn finish(&mut self) {
        sort(&mut self.findings);
    }

    /// How many findings are of a severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }

    /// 0 without a problem; otherwise the lowest status that one of them asks for.
    pub fn exit_status(&self) -> u8 {
        let problems = self.findings.iter().filter(|finding| finding.severity == Severity::Problem);
        let of = |finding: &Finding| match (finding.id, finding.side()) {
            // These have brought their own.
            ("source.connection" | "target.connection" | "source.unreadable" | "target.unreadable", _) => None,
            (_, Side::Source) => Some(Family::Source.exit_status()),
            (_, Side::Target) => Some(Family::Target.exit_status()),
        };
        problems.filter_map(of).chain(self.statuses.iter().copied()).min().unwrap_or(0)
    }

    /// `ready` or `problems`.
    pub fn verdict(&self) -> &'static str {
        if self.exit_status() == 0 { "ready" } else { "problems" }
    }

    /// The findings, those together that say the same.
    pub fn groups(&self) -> Vec<Group<'_>> {
        let mut groups: Vec<Group<'_>> = Vec::new();
        for finding in &self.findings {
            let same =
                |g: &&mut Group<'_>| g.id == finding.id && g.severity == finding.severity && g.means == finding.means;
            match groups.iter_mut().find(same) {
                Some(group) => group.findings.push(finding),
                None => groups.push(Group {
                    id: finding.id,
                    severity: finding.severity,
                    means: &finding.means,
                    findings: vec![finding],
                }),
            }
        }
        groups
    }

    /// The report for programs.
    pub fn object(&self) -> Value {
        let counts: serde_json::Map<String, Value> =
            Severity::ALL.into_iter().map(|s| (s.word().to_owned(), self.count(s).into())).collect();
        json!({
            "event": "check",
            "flow": self.flow,
            "verdict": self.verdict(),
            "exit_status": self.exit_status(),
            "at": self.at,
            "source": self.source.as_ref().map(Facts::object),
            "target": self.target.as_ref().map(Facts::object),
            "tables": self.tables,
            "counts": counts,
            "findings": self.findings.iter().map(object).collect::<Vec<_>>(),
        })
    }
}

fn object(finding: &Finding) -> Value {
    let (schema, table, column, name) = match &finding.subject {
        Subject::Server => (None, None, None, None),
        Subject::Table(schema, table) => (Some(schema), Some(table), None, None),
        Subject::Column(schema, table, column) => (Some(schema), Some(table), Some(column), None),
        Subject::Object(name) => (None, None, None, Some(name)),
    };
    let mend = |mend: &Mend| json!({"who": mend.who.code(), "text": mend.text, "restart": mend.restart});
    json!({
        "id": finding.id,
        "severity": finding.severity.word(),
        "server": finding.side().to_string(),
        "schema": schema, "table": table, "column": column, "object": name,
        "found": finding.found,
        "means": finding.means,
        "mends": finding.mends.iter().map(mend).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(findings: Vec<Finding>) -> Report {
        let mut report = Report::new(None);
        report.findings = findings;
        report.finish();
        report
    }

    #[test]
    fn the_lowest_status_applies_and_warnings_have_none() {
        let problem = |id| Finding::new(id, Severity::Problem, "x");
        assert_eq!(report(vec![Finding::new("source.a", Severity::Warning, "x")]).exit_status(), 0);
        assert_eq!(report(vec![problem("target.a")]).exit_status(), 8);
        let mut both = report(vec![problem("target.a"), problem("source.a")]);
        assert_eq!(both.exit_status(), 6);
        both.failed(3);
        assert_eq!((both.exit_status(), both.verdict()), (3, "problems"));
    }

    #[test]
    fn the_same_of_many_tables_is_said_once() {
        let of = |table: &str, sql: &str| {
            Finding::new("source.a", Severity::Warning, "no key")
                .table("public", table)
                .means("m")
                .mend(Who::SourceAdmin, sql)
        };
        let report = report(vec![of("b", "one;"), of("a", "one;"), of("c", "two;")]);
        let groups = report.groups();
        assert_eq!(groups.len(), 1);
        let names = ["public.a", "public.b", "public.c"].map(str::to_owned).to_vec();
        assert_eq!(groups[0].found(), [(names, "no key")]);
        assert_eq!(groups[0].mends()[0].1.iter().map(|m| m.text.as_str()).collect::<Vec<_>>(), ["one;", "two;"]);
    }
}
