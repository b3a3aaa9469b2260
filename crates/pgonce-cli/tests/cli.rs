//! The command as a user meets it, where no database is needed: usage, exit statuses, and that no output holds a
//! password.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// A password that must not show anywhere.
const SECRET: &str = "s3cr3t-0f-4nn";

/// Nobody listens there: port 1 of the loopback.
const NOWHERE: &str = "postgresql://ann:s3cr3t-0f-4nn@127.0.0.1:1/shop?connect_timeout=2";
const NOWHERE_ELSE: &str = "host=127.0.0.1 port=1 user=ann password=s3cr3t-0f-4nn dbname=copy connect_timeout=2";

fn pgonce(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgonce"));
    for variable in ["PGONCE_LOG", "SOURCE_URL", "TARGET_URL", "PGHOST", "PGSERVICE", "PGPASSFILE"] {
        command.env_remove(variable);
    }
    command.current_dir(directory).args(arguments).output().expect("the command starts")
}

/// Runs the command, which must end with `status` and not show the password; what it said, on either stream.
fn said(directory: &Path, arguments: &[&str], status: i32) -> String {
    let output = pgonce(directory, arguments);
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("text")).concat();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
    assert!(!text.contains(SECRET), "{arguments:?}: {text}");
    text
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

fn flow(extra: &[&'static str]) -> Vec<&'static str> {
    let mut arguments = vec!["--flow", "shop", "--source", NOWHERE, "--target", NOWHERE_ELSE];
    arguments.extend(extra);
    arguments
}

#[test]
fn help_and_version_are_no_errors() {
    let here = folder();
    assert!(said(here.path(), &["--help"], 0).contains("Exit statuses:"));
    assert!(said(here.path(), &["--version"], 0).starts_with("pgonce "));
    let help = said(here.path(), &["run", "--help"], 0);
    for flag in [
        "--config",
        "--flow",
        "--source",
        "--target",
        "--source-id",
        "--tables",
        "--publication",
        "--slot",
        "--stream",
        "--start",
        "--copy-schema",
        "--jobs",
        "--data-dir",
        "--synchronous-commit",
        "--format",
        "--until",
    ] {
        assert!(help.contains(&format!("{flag} ")), "{flag} is missing");
    }
}

#[test]
fn version_tells_programs_too() {
    let here = folder();
    let object: Value = serde_json::from_str(&said(here.path(), &["version", "--format", "json"], 0)).expect("JSON");
    assert_eq!(object["version"], env!("CARGO_PKG_VERSION"));
    assert!(object["ledger"].is_number() && object["postgresql"]["newest"].is_number());
    assert!(said(here.path(), &["version"], 0).contains("PostgreSQL"));
}

#[test]
fn wrong_usage_is_status_2() {
    let here = folder();
    assert!(said(here.path(), &[], 2).contains("Usage:"));
    assert!(said(here.path(), &["statsu"], 2).contains("status"));
    assert!(said(here.path(), &["run", "--flwo", "x"], 2).contains("--flow"));
    assert!(said(here.path(), &["run", "--until", "soon"], 2).contains("neither `now` nor an LSN"));
    assert!(said(here.path(), &["run"], 2).contains("error[usage]: `flow` is not set\nhint: Give --flow NAME"));
    assert!(said(here.path(), &["run", "--config", "none.yml"], 2).contains("cannot read none.yml"));
    let text = said(here.path(), &[&["run"], flow(&["--stream", "local"]).as_slice()].concat(), 2);
    assert!(text.starts_with("error[usage]: --stream: there is no local log yet\nhint: "), "{text}");
    let text = said(here.path(), &[&["run"], flow(&["--copy-schema"]).as_slice()].concat(), 2);
    assert!(text.contains("pg_dump --schema-only"), "{text}");
}

#[test]
fn a_connection_string_in_the_wrong_place_is_not_echoed() {
    let here = folder();
    assert!(said(here.path(), &["run", NOWHERE], 2).contains("ann:...@"));
    said(here.path(), &["run", NOWHERE_ELSE], 2);
    said(here.path(), &["run", "--source", "postgresql//ann:s3cr3t-0f-4nn@h/d?x=y", "--flow", "x"], 2);
    said(here.path(), &["run", "--flow", "x", "--source", NOWHERE, "--target", "password=s3cr3t-0f-4nn port=x"], 2);
}

#[test]
fn mistakes_in_the_file_are_shown_with_their_place() {
    let here = folder();
    std::fs::write(here.path().join("pgonce.yml"), "flow: shop\nsource:\n  url: x\n  solt: a\n").expect("written");
    let text = said(here.path(), &["status"], 2);
    assert!(text.contains("pgonce.yml:4:3: unknown key `solt` in `source`; did you mean `slot`?"), "{text}");
    let object: Value = serde_json::from_str(&said(here.path(), &["status", "--format", "json"], 2)).expect("JSON");
    assert_eq!((&object["code"], &object["exit_status"]), (&"usage".into(), &2.into()));
}

#[test]
fn init_writes_a_file_once() {
    let here = folder();
    assert!(said(here.path(), &["init"], 0).contains("Wrote pgonce.yml"));
    assert!(said(here.path(), &["init"], 2).contains("pgonce.yml exists"));
    said(here.path(), &["init", "--force"], 0);
    said(here.path(), &["init", "--config", "other.yml"], 0);
    assert!(said(here.path(), &["run"], 2).contains("the environment variable SOURCE_URL is not set"));
    assert!(said(here.path(), &["init", "--force", "--flow", "x"], 2).contains("--flow does not go into the file"));
}

#[test]
fn init_sql_prints_what_an_administrator_types() {
    let here = folder();
    let text = said(here.path(), &[&["init", "--sql"], flow(&["--tables", "public.a,x.*"]).as_slice()].concat(), 0);
    for part in [
        "CREATE SCHEMA",
        "ALTER ROLE \"ann\" WITH REPLICATION",
        "CREATE PUBLICATION \"pgonce_shop\"",
        "LIKE 'public.a'",
        "LIKE 'x.%'",
        "-- ==== For the source: ",
        "\n-- ==== For the target: ",
        "GRANT SET ON PARAMETER session_replication_role TO ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_database_that_does_not_answer_is_status_3_and_said_of_both() {
    let here = folder();
    let text = said(here.path(), &[&["status"], flow(&[]).as_slice()].concat(), 3);
    assert_eq!(text.matches("cannot ask").count(), 2, "{text}");
    let text = said(here.path(), &[&["status", "--format", "json"], flow(&[]).as_slice()].concat(), 3);
    let object: Value = serde_json::from_str(&text).expect("one JSON object");
    assert_eq!(object["source"]["error"]["exit_status"], 3);
    assert_eq!(object["doing"], "unknown");
    assert!(said(here.path(), &[&["reset", "--yes"], flow(&[]).as_slice()].concat(), 3).contains("error[connection]"));
    assert!(!here.path().join("pgonce-data").exists(), "asking makes no directory");
}

#[test]
fn a_run_waits_for_a_database_says_so_once_and_ends_at_a_signal_with_status_0() {
    let here = folder();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgonce"));
    command.current_dir(here.path()).arg("run").args(flow(&["--format", "json"]));
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
    let child = command.spawn().expect("the command starts");
    std::thread::sleep(std::time::Duration::from_secs(3));
    // A second process of the same flow is refused while the first one lives.
    let text = said(here.path(), &[&["run"], flow(&[]).as_slice()].concat(), 2);
    assert!(text.contains(&format!("is in use by the process with PID {}", child.id())), "{text}");
    let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill starts");
    assert!(killed.success());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(!text.contains(SECRET), "{text}");
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let count = |event: &str| events.iter().filter(|object| object["event"] == event).count();
    assert_eq!((count("started"), count("fault"), count("stopped")), (1, 1, 1), "{text}");
}
