//! What a check finds: how grave it is, of what, what it means, and the SQL that mends it.

use pgonce::stop::Side;

/// How grave a finding is. The gravest come first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// The flow would not start, or would stop.
    Problem,
    /// The flow would run, and something would not be as one might expect.
    Warning,
    /// The role may not find out. Never taken for "ok".
    Unknown,
    /// Good to know.
    Note,
    /// As it should be.
    Ok,
}

impl Severity {
    /// All of them, in their order.
    pub const ALL: [Severity; 5] =
        [Severity::Problem, Severity::Warning, Severity::Unknown, Severity::Note, Severity::Ok];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Severity::Problem => "problem",
            Severity::Warning => "warning",
            Severity::Unknown => "unknown",
            Severity::Note => "note",
            Severity::Ok => "ok",
        }
    }
}

/// Who has to type what mends a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Who {
    /// The role of the source's URL may do it.
    SourceRole,
    /// Somebody with more rights on the source: the tables' owner, or an administrator.
    SourceAdmin,
    /// The role of the target's URL may do it.
    TargetRole,
    /// Somebody with more rights on the target.
    TargetAdmin,
    /// Whoever has a shell with both URLs.
    Shell,
}

impl Who {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Who::SourceRole => "the source's role",
            Who::SourceAdmin => "an admin of the source",
            Who::TargetRole => "the target's role",
            Who::TargetAdmin => "an admin of the target",
            Who::Shell => "in a shell",
        }
    }

    /// For programs.
    pub fn code(self) -> &'static str {
        match self {
            Who::SourceRole => "source_role",
            Who::SourceAdmin => "source_admin",
            Who::TargetRole => "target_role",
            Who::TargetAdmin => "target_admin",
            Who::Shell => "shell",
        }
    }

    /// The role itself, or an admin of its side.
    pub fn on(side: Side, role_may: bool) -> Who {
        match (side, role_may) {
            (Side::Source, true) => Who::SourceRole,
            (Side::Source, false) => Who::SourceAdmin,
            (Side::Target, true) => Who::TargetRole,
            (Side::Target, false) => Who::TargetAdmin,
        }
    }
}

/// What mends a finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mend {
    /// Who types it.
    pub who: Who,
    /// SQL, or a command of a shell.
    pub text: String,
    /// Whether the server has to be restarted before it counts.
    pub restart: bool,
}

/// What a finding is about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Subject {
    /// The server, the database or the role.
    Server,
    /// A table (or what stands where a table could), by schema and name.
    Table(String, String),
    /// A column of a table.
    Column(String, String, String),
    /// Something else, by name: a slot, a publication, an extension, a type.
    Object(String),
}

impl Subject {
    /// The name, for people.
    pub fn name(&self) -> Option<String> {
        match self {
            Subject::Server => None,
            Subject::Table(schema, table) => Some(format!("{schema}.{table}")),
            Subject::Column(schema, table, column) => Some(format!("{schema}.{table}, column {column}")),
            Subject::Object(name) => Some(name.clone()),
        }
    }
}

/// One finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Does not change between versions: `source.wal_level`.
    pub id: &'static str,
    /// How grave it is.
    pub severity: Severity,
    /// Of what.
    pub subject: Subject,
    /// What was found.
    pub found: String,
    /// What follows from it. The same for all findings that are shown together.
    pub means: String,
    /// What mends it.
    pub mends: Vec<Mend>,
}

impl Finding {
    /// A finding about a server.
    pub fn new(id: &'static str, severity: Severity, found: impl Into<String>) -> Finding {
        let (subject, means, mends) = (Subject::Server, String::new(), Vec::new());
        Finding { id, severity, subject, found: found.into(), means, mends }
    }

    /// Something is as it should be.
    pub fn ok(id: &'static str, found: impl Into<String>) -> Finding {
        Finding::new(id, Severity::Ok, found)
    }

    /// Says what it is about.
    pub fn of(mut self, subject: Subject) -> Finding {
        self.subject = subject;
        self
    }

    /// It is about a table.
    pub fn table(self, schema: &str, table: &str) -> Finding {
        self.of(Subject::Table(schema.to_owned(), table.to_owned()))
    }

    /// It is about a column.
    pub fn column(self, schema: &str, table: &str, column: &str) -> Finding {
        self.of(Subject::Column(schema.to_owned(), table.to_owned(), column.to_owned()))
    }

    /// Says what follows from it.
    pub fn means(mut self, means: impl Into<String>) -> Finding {
        self.means = means.into();
        self
    }

    /// Adds what mends it.
    pub fn mend(mut self, who: Who, text: impl Into<String>) -> Finding {
        self.mends.push(Mend { who, text: text.into(), restart: false });
        self
    }

    /// Adds what mends it with a restart of the server.
    pub fn mend_with_restart(mut self, who: Who, text: impl Into<String>) -> Finding {
        self.mends.push(Mend { who, text: text.into(), restart: true });
        self
    }

    /// The side that it is about: the first word of its id.
    pub fn side(&self) -> Side {
        if self.id.starts_with("source.") { Side::Source } else { Side::Target }
    }
}

/// Brings findings into their order: the gravest first, the source before the target. Nothing is said twice.
pub fn sort(findings: &mut Vec<Finding>) {
    let key = |f: &Finding| (f.severity, f.side() == Side::Target, f.id, f.subject.clone());
    findings.sort_by_key(key);
    findings.dedup();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gravest_come_first_and_nothing_twice() {
        let mut findings = vec![
            Finding::ok("source.version", "15"),
            Finding::new("target.b", Severity::Problem, "x"),
            Finding::new("source.z", Severity::Problem, "x"),
            Finding::new("source.z", Severity::Problem, "x"),
            Finding::new("source.a", Severity::Unknown, "x"),
        ];
        sort(&mut findings);
        let ids: Vec<&str> = findings.iter().map(|f| f.id).collect();
        assert_eq!(ids, ["source.z", "target.b", "source.a", "source.version"]);
    }
}
