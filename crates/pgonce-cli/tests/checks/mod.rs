//! Running `pgonce check`, and things that are broken on purpose.

pub mod broken;

use std::process::Command;

use serde_json::Value;
use tokio_postgres::Client;

use crate::common::said;
use crate::pair::Case;

/// A report, and the exit status.
pub struct Checked {
    pub report: Value,
    pub status: i32,
}

impl Checked {
    /// The findings with this id.
    pub fn of(&self, id: &str) -> Vec<&Value> {
        self.findings().filter(|f| f["id"] == id).collect()
    }

    pub fn findings(&self) -> impl Iterator<Item = &Value> {
        self.report["findings"].as_array().expect("findings").iter()
    }

    /// The findings with this id and severity.
    pub fn at(&self, id: &str, severity: &str) -> Vec<&Value> {
        self.of(id).into_iter().filter(|f| f["severity"] == severity).collect()
    }

    /// Ids of what is a problem, a warning or unknown.
    pub fn grave(&self) -> Vec<String> {
        let grave = self.findings().filter(|f| matches!(f["severity"].as_str(), Some("problem" | "warning")));
        grave.map(|f| format!("{} {} ({})", f["severity"], f["id"], f["found"])).collect()
    }
}

/// Runs `pgonce check --format json` with the case's arguments and more.
pub async fn check(case: &Case, more: &[&str]) -> Checked {
    let output = case.output(&[&["check", "--format", "json"], more].concat()).await;
    read(&output)
}

/// Reads what a check has said.
pub fn read(output: &std::process::Output) -> Checked {
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", said(output)));
    Checked { report, status: output.status.code().expect("it ends by itself") }
}

/// Types what mends the findings.
pub async fn mend(case: &Case, findings: &[&Value]) {
    let mut typed: Vec<String> = Vec::new();
    for mend in findings.iter().flat_map(|f| f["mends"].as_array().expect("mends")) {
        let text = mend["text"].as_str().expect("text");
        if typed.iter().any(|t| t == text) {
            continue;
        }
        typed.push(text.to_owned());
        match mend["who"].as_str().expect("who") {
            "source_role" | "source_admin" => type_sql(&case.source, text).await,
            "target_role" | "target_admin" => type_sql(&case.target, text).await,
            _ => panic!("{mend}"),
        }
    }
}

/// What cannot be in a transaction is a line each.
pub async fn type_sql(client: &Client, text: &str) {
    let parts: Vec<&str> = if text.contains("ALTER SYSTEM") { text.lines().collect() } else { vec![text] };
    for part in parts {
        client.batch_execute(part).await.unwrap_or_else(|e| panic!("{part}: {e:?}"));
    }
}

/// Something broken on purpose.
#[derive(Clone, Copy)]
pub struct Broken {
    /// The finding.
    pub id: &'static str,
    pub severity: &'static str,
    /// What breaks it, and what makes it as it was.
    pub source: &'static str,
    pub target: &'static str,
    pub both: &'static str,
    pub undo_source: &'static str,
    pub undo_target: &'static str,
    pub undo: &'static str,
    /// More arguments.
    pub arguments: &'static [&'static str],
    /// Whether SQL mends it.
    pub mends: bool,
    /// A piece of what is found.
    pub says: &'static str,
}

impl Broken {
    /// Breaks it, looks whether it is found, mends it as is said, looks whether it is gone, and makes all as it was.
    ///
    /// `clean` is what is found without it.
    pub async fn prove(&self, case: &Case, clean: &Checked) {
        let Broken { id, severity, .. } = *self;
        let replace = |sql: &str| sql.replace("FLOW", &case.name);
        let with_arguments = match self.arguments {
            [] => None,
            arguments => Some(check(case, arguments).await),
        };
        let before = with_arguments.as_ref().unwrap_or(clean);
        let named = |f: &&Value| f["found"].as_str().expect("found").contains(self.says);
        let known = before.at(id, severity).into_iter().filter(named).count();
        case.both(&replace(self.both)).await;
        case.at_source(&replace(self.source)).await;
        case.at_target(&replace(self.target)).await;
        let broken = check(case, self.arguments).await;
        let found: Vec<&Value> = broken.at(id, severity).into_iter().filter(named).collect();
        let place = format!("{} {id} {severity} {:?}", case.major, self.says);
        // With arguments that are wrong by themselves, it is there before.
        let was_there = !self.arguments.is_empty() && known > 0;
        assert!(found.len() > known || was_there && !found.is_empty(), "{place}: {:#?}", broken.grave());
        for finding in &found {
            assert_ne!(finding["means"], "", "{place}: {finding}");
        }
        if severity == "problem" {
            assert!([6, 8].contains(&broken.status), "{place}: {}", broken.status);
        }
        if self.mends {
            assert!(found.iter().any(|f| !f["mends"].as_array().expect("mends").is_empty()), "{place}: {found:?}");
            mend(case, &found).await;
            let mended = check(case, self.arguments).await;
            let left: Vec<&Value> = mended.at(id, severity).into_iter().filter(named).collect();
            assert!(left.len() == known && !was_there || left.is_empty(), "{place}: mended, and still there: {left:?}");
        }
        case.at_source(&replace(self.undo_source)).await;
        case.at_target(&replace(self.undo_target)).await;
        case.both(&replace(self.undo)).await;
    }
}

/// `pgonce check` with nothing but these arguments, in an empty folder.
pub async fn alone(arguments: &[&str]) -> std::process::Output {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgonce"));
    command.arg("check").args(arguments).current_dir(folder.path());
    let output = tokio::task::spawn_blocking(move || command.output().expect("it starts")).await.expect("joined");
    assert_eq!(folder.path().read_dir().expect("read").count(), 0, "a check leaves no file");
    output
}
