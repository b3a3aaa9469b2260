//! The documentation says what the program does. `PGONCE_UPDATE_DOCS=1 cargo test -p pgonce-cli --test docs` writes it
//! anew.

use std::path::{Path, PathBuf};
use std::process::Command;

use pgonce::position::{CommitLsn, Lsn};
use pgonce::stop::{Family, Reason, ServerFault, Side};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Holds a document against what it should be, or writes it.
fn hold(path: &str, expected: &str) {
    let file = root().join(path);
    if std::env::var_os("PGONCE_UPDATE_DOCS").is_some() {
        std::fs::write(&file, expected).expect("written");
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(found == expected, "{path} is out of date: PGONCE_UPDATE_DOCS=1 cargo test -p pgonce-cli --test docs");
}

/// One of each reason, with words that stand for its particulars.
fn reasons() -> Vec<Reason> {
    let text = |text: &str| text.to_owned();
    let own = || text("(its own, by what is wrong)");
    let commit = CommitLsn(Lsn(0x1_6B37_4D48));
    let fault = || ServerFault { sqlstate: text("23505"), ..ServerFault::default() };
    let (what, hint) = (|| text("..."), own);
    let (slot, flow, table) = (|| text("SLOT"), || text("FLOW"), || text("SCHEMA.TABLE"));
    vec![
        Reason::Connection { side: Side::Source, what: what() },
        Reason::Busy { side: Side::Target, fault: fault() },
        Reason::SinkBusy { what: what() },
        Reason::SinkFailed { what: what() },
        Reason::SinkRefused { what: what() },
        Reason::SlotInUse { slot: slot(), pid: 4711 },
        Reason::ConnectionRefused { side: Side::Source, what: what(), hint: hint() },
        Reason::DataGap { what: what() },
        Reason::SlotLost { slot: slot(), what: what() },
        Reason::CheckpointUnreadable { flow: flow(), what: what() },
        Reason::SourceChanged { what: what() },
        Reason::TimelineDiverged { stored: 1, found: 2, switch: Lsn(1), applied: Lsn(2) },
        Reason::SlotUnusable { slot: slot(), what: what(), hint: hint() },
        Reason::PublicationMissing { publication: text("PUBLICATION"), database: text("DATABASE") },
        Reason::PublicationChanged { what: what() },
        Reason::SourceNotReady { what: what(), hint: hint() },
        Reason::TargetNotReady { what: what(), hint: hint() },
        Reason::SchemaMismatch { table: table(), what: what(), hint: hint() },
        Reason::SchemaChanged { table: table(), what: what() },
        Reason::MapChanged { flow: flow(), what: what() },
        Reason::TableJoined { table: table(), oid: 16384 },
        Reason::TargetNotEmpty { tables: vec![table()] },
        Reason::TransactionFailed { commit, xid: 1, fault: fault() },
        Reason::RowConflict { commit, xid: 1, operation: "UPDATE", table: table(), key: vec![], found: 0 },
        Reason::RedeliveryConflict { commit, xid: 1, stored: what(), found: what() },
        Reason::Fenced { flow: flow(), holder: what() },
        Reason::Protocol { what: what() },
        Reason::LocalFile { path: what(), what: what() },
        Reason::SpillFull { xid: 743, size: 0, row: None, assembling: 0, bound: 0 },
        Reason::Unsupported { what: what(), hint: hint() },
        Reason::Internal { what: what() },
    ]
}

/// Name, documentation and code of each variant, as the source has them: the compiler does not tell a test of another
/// crate that a reason is missing here.
fn variants() -> Vec<(String, String, String)> {
    let source = std::fs::read_to_string(root().join("crates/pgonce/src/stop.rs")).expect("stop.rs");
    let rows = source.lines().filter_map(|line| {
        let (name, rest) = line.trim().strip_prefix("Reason::")?.split_once(" { .. } => (\"")?;
        Some((name.to_owned(), rest.split_once('"')?.0.to_owned()))
    });
    let lines: Vec<&str> = source.lines().collect();
    rows.map(|(name, code)| {
        let at = lines.iter().position(|line| *line == format!("    {name} {{")).unwrap_or_else(|| panic!("no {name}"));
        let doc = lines[..at].iter().rev().map(|line| line.trim()).skip_while(|line| !line.starts_with("///"));
        let mut doc: Vec<&str> = doc.map_while(|line| line.strip_prefix("/// ")).collect();
        doc.reverse();
        (name, doc.join(" "), code)
    })
    .collect()
}

#[test]
fn stop_reasons_are_all_documented() {
    let (reasons, variants) = (reasons(), variants());
    assert!(variants.len() > 20, "the table in stop.rs is written otherwise now");
    let mut page = String::from(
        "# Stop reasons\n\n\
         <!-- Written by the test `stop_reasons_are_all_documented` from crates/pgonce/src/stop.rs. -->\n\n\
         Why a flow stopped, or why it is trying again. Codes do not change between versions. A fault that *heals* is \
         waited out: the flow tries again with growing pauses, for ever, and `pgonce status` and the output of `pgonce \
         run` say so. Any other ends `pgonce run` with the exit status given here, and is kept in the ledger for \
         `pgonce status`. (A command that does not wait, such as `status`, ends with the exit status of a fault that \
         heals, too.)\n\n\
         No message holds a row value: positions, names, counts and SQLSTATEs only.\n\n\
         | code | heals by itself | exit status | meaning | hint |\n|---|---|---|---|---|\n",
    );
    for (name, meaning, code) in &variants {
        let reason = reasons.iter().find(|reason| reason.code() == code);
        let reason = reason.unwrap_or_else(|| panic!("Reason::{name} ({code}) is missing in this test"));
        let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
        page.push_str(&format!(
            "| `{code}` | {} | {} | {} | {} |\n",
            if reason.heals() { "yes" } else { "no" },
            reason.family().exit_status(),
            cell(meaning),
            cell(&reason.hint()),
        ));
    }
    assert_eq!(reasons.len(), variants.len());
    for reason in &reasons {
        assert_eq!(Family::of(reason.code()), Some(reason.family()), "{}", reason.code());
    }
    assert!(!page.contains("|  |"), "a reason has no meaning or no hint");
    hold("docs/stop-reasons.md", &page);
}

/// The table of the keys in the documentation is that of the program.
#[test]
fn every_key_is_documented() {
    let keys = Command::new(env!("CARGO_BIN_EXE_pgonce")).args(["config", "keys", "--format", "json"]).output();
    let keys: serde_json::Value = serde_json::from_slice(&keys.expect("the command starts").stdout).expect("JSON");
    let mut table = String::from("| key | flag, environment variable | default | meaning |\n|---|---|---|---|\n");
    for key in keys["keys"].as_array().expect("keys") {
        let text = |name: &str| key[name].as_str().unwrap_or_default().replace('|', "\\|");
        let default = match text("default") {
            words if words.contains(' ') => words,
            value => format!("`{value}`"),
        };
        let sentences = [format!("{}.", text("help")), text("more"), text("several")];
        let mut meaning: Vec<String> = sentences.into_iter().filter(|text| !text.is_empty()).collect();
        if let Some(last) = meaning.last_mut() {
            *last = last.trim_end_matches('.').to_owned();
        }
        table += &format!(
            "| `{}` | `{}`<br>`{}` | {default} | {} |\n",
            text("key"),
            text("flag"),
            text("environment"),
            meaning.join(" ")
        );
    }
    let page = std::fs::read_to_string(root().join("docs/configuration.md")).expect("docs/configuration.md");
    let (begin, end) = ("<!-- Written by the test `every_key_is_documented`. -->\n\n", "\n<!-- The end of it. -->\n");
    let (head, rest) = page.split_once(begin).expect("the mark of the table's beginning");
    let (_, tail) = rest.split_once(end).expect("the mark of the table's end");
    hold("docs/configuration.md", &format!("{head}{begin}{table}{end}{tail}"));
}

/// What `pgonce COMMAND --help` says of the keys, as a reader of the documentation needs it.
#[test]
fn every_flag_is_documented() {
    let help = Command::new(env!("CARGO_BIN_EXE_pgonce")).args(["run", "--help"]).output().expect("the command starts");
    let help = String::from_utf8(help.stdout).expect("text");
    let page = std::fs::read_to_string(root().join("docs/configuration.md")).expect("docs/configuration.md");
    let commands = std::fs::read_to_string(root().join("docs/commands.md")).expect("docs/commands.md");
    let flags = help
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("--"))
        .map(|line| line.split([' ', '<', '[', ',']).next().unwrap_or_default());
    let mut count = 0;
    for flag in flags.filter(|flag| !flag.is_empty()) {
        count += 1;
        assert!(page.contains(&format!("`--{flag}")) || commands.contains(&format!("`--{flag}")), "--{flag}");
    }
    assert!(count > 12, "{help}");
}
