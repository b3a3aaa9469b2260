//! `pgonce demo`, with small numbers: what it reports, and what `verify` says to a row that is damaged behind its back.

use std::path::Path;
use std::process::{Command, Output};

use pgonce_testkit::majors;
use serde_json::{Value, json};

fn pgonce(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pgonce")).current_dir(folder).args(arguments).output().unwrap()
}

/// The last object that a command printed.
fn last(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Stops what was kept, also when the test fails.
struct Kept<'a>(&'a Path);

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        pgonce(self.0, &["demo", "--stop"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demonstration_loses_nothing_and_a_damaged_row_is_found() {
    // Below the checkout's servers, wherever the test runs.
    let servers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.postgres");
    let folder = tempfile::tempdir().unwrap();
    let major = majors().unwrap().last().unwrap().to_string();
    let arguments =
        ["demo", "--seconds", "6", "--kills", "5", "--seed", "11", "--pg", &major, "--keep", "--format", "json"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgonce"));
    if std::env::var_os("PGONCE_POSTGRES_DIR").is_none() {
        command.env("PGONCE_POSTGRES_DIR", &servers);
    }
    let output = command.current_dir(folder.path()).args(arguments).output().unwrap();
    let _kept = Kept(folder.path());
    let printed = last(&output);
    assert_eq!(output.status.code(), Some(0), "{printed:#}\n{}", String::from_utf8_lossy(&output.stderr));
    let report = std::fs::read_to_string(folder.path().join("target/demo/report.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report, printed);
    assert_eq!(
        (&report["lost"], &report["duplicated"], &report["verdict"]),
        (&json!(0), &json!(0), &json!("converged"))
    );
    assert_eq!(report["source_transactions"], report["applied_transactions"]);
    assert!(report["source_transactions"].as_u64().unwrap() > 100, "{report:#}");
    assert_eq!(
        (&report["kills"], &report["source_crashes"], &report["target_crashes"]),
        (&json!(5), &json!(1), &json!(1))
    );
    assert!(report["redelivered"].is_u64() && report["elapsed_seconds"].is_f64());

    // The clusters are still up, and the flow can be verified again.
    let verify = ["verify", "--config", "target/demo/pgonce.yml", "--format", "json"];
    let output = pgonce(folder.path(), &verify);
    assert_eq!((output.status.code(), &last(&output)["verdict"]), (Some(0), &json!("converged")));

    let config = std::fs::read_to_string(folder.path().join("target/demo/pgonce.yml")).unwrap();
    let target = config.lines().filter(|line| line.contains("url:")).nth(1).unwrap();
    let target = target.split('"').nth(1).unwrap();
    let (client, connection) = tokio_postgres::connect(target, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let damage = "UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = 4711";
    assert_eq!(client.execute(damage, &[]).await.unwrap(), 1);
    let output = pgonce(folder.path(), &verify);
    let found = last(&output);
    assert_eq!((output.status.code(), &found["verdict"]), (Some(1), &json!("drift")), "{found:#}");
    let damaged: Vec<&Value> = found["tables"].as_array().unwrap().iter().filter(|t| t["outcome"] != "same").collect();
    let [table] = damaged.as_slice() else { panic!("{damaged:#?}") };
    assert_eq!(table["table"], "public.pgbench_accounts");
    assert_eq!(table["difference"]["columns"], json!({"abalance": 1}));

    let output = pgonce(folder.path(), &["demo", "--stop"]);
    assert!(output.status.success(), "{output:?}");
    assert!(client.simple_query("SELECT 1").await.is_err(), "the target is gone");
}

#[test]
fn a_missing_server_is_named_with_what_to_type() {
    let folder = tempfile::tempdir().unwrap();
    let output = pgonce(folder.path(), &["demo", "--pg", "9"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("PostgreSQL 9 is not installed") && text.contains("scripts/"), "{text}");
    let output = pgonce(folder.path(), &["demo", "--stop"]);
    assert_eq!(output.status.code(), Some(2));
}
