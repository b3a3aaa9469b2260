//! The benchmark at a tiny scale: without the program `pgonce`, so that the crate can be tested without a release
//! build.

use std::path::Path;
use std::process::{Command, Output};

fn bench(output: &Path, words: &[&str]) -> Output {
    bench_of(output, &[&["--contestants", "native"], words].concat())
}

fn bench_of(output: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pgonce-bench"))
        .args(["--scale-div", "2000", "--runs", "1", "--output"])
        .arg(output)
        .args(words)
        .env_remove("PGONCE_BENCH_PG")
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_part_is_measured_once_and_the_report_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let major = pgonce_testkit::majors().unwrap()[0].to_string();
    let words = ["--workload", "w1", "--postgres", &major];
    let printed = text(&bench(folder.path(), &words));
    assert!(printed.contains(&format!("| w1 | {major} | native | binary, streaming=off |")), "{printed}");
    // Native alone makes no pair.
    assert_eq!(std::fs::read_to_string(folder.path().join("report.json")).unwrap(), "[]\n");
    let again = text(&bench(folder.path(), &words));
    assert!(!again.contains("starting two clusters") && again.contains("| w1 |"), "{again}");
}

#[test]
fn a_null_sink_and_an_ideal_reader_drain_the_same_backlog() {
    let folder = tempfile::tempdir().unwrap();
    let major = pgonce_testkit::majors().unwrap()[0].to_string();
    let words = ["--contestants", "native,pgonce", "--workload", "receive,decode", "--postgres", &major];
    let printed = text(&bench_of(folder.path(), &words));
    let entries: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("report.json")).unwrap()).unwrap();
    let found: Vec<(&str, &str)> = entries
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["workload"].as_str().unwrap(), one["against"].as_str().unwrap()))
        .collect();
    let pairs = ["receive-w1", "receive-w2", "receive-w3"].map(|workload| (workload, "ideal reader"));
    assert_eq!(found, pairs, "{printed}");
    assert!(printed.contains("| decode-w3 | - | pgonce | decode and assemble |"), "{printed}");
}

#[test]
fn a_missing_program_is_an_error_that_says_what_to_type() {
    let folder = tempfile::tempdir().unwrap();
    let output = bench(folder.path(), &["--contestants", "pgonce", "--pgonce", "nowhere/pgonce"]);
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("cargo build --release"), "{error}");
}
