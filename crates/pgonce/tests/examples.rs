//! The examples run, and do what they say.

mod common;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use common::*;
use pgonce_testkit::Cluster;

/// An example, as cargo has built it with the tests.
fn example(name: &str) -> Command {
    let mut path: PathBuf = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.push("examples");
    path.push(name);
    assert!(path.exists(), "to run this test alone: cargo test -p pgonce --examples --test examples");
    Command::new(path)
}

/// Started anew for every run, so that what was printed by a killed one stays.
fn json_lines(cluster: &Cluster, directory: &std::path::Path) -> Child {
    let output = std::fs::OpenOptions::new().create(true).append(true).open(directory.join("output")).unwrap();
    let mut command = example("json_lines");
    command.args([&cluster.url("postgres"), "json_lines", "p"]).arg(directory.join("state"));
    command.stdout(output).stderr(Stdio::null()).spawn().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_lines_prints_each_change_and_goes_on_after_a_kill() {
    for major in each_major() {
        let cluster = source(major).await;
        let client = cluster.connect("postgres").await.unwrap();
        client
            .batch_execute("CREATE TABLE t (id int PRIMARY KEY, b text); CREATE PUBLICATION p FOR TABLE t")
            .await
            .unwrap();
        let slot = "SELECT pg_create_logical_replication_slot('json_lines', 'pgoutput')";
        client.batch_execute(slot).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let printed = || std::fs::read_to_string(directory.path().join("output")).unwrap_or_default();
        let mut expected = Vec::new();
        for round in 0..3 {
            let mut child = json_lines(&cluster, directory.path());
            let insert = format!("INSERT INTO t VALUES ({round}, 'a\"b'); UPDATE t SET b = NULL WHERE id = {round}");
            for statement in insert.split("; ") {
                client.batch_execute(statement).await.unwrap();
            }
            expected.push(format!(r#"{{"insert":{{"b":"a\"b","id":"{round}","table":"public.t"}}}}"#));
            expected.push(format!(r#"{{"update":{{"b":null,"id":"{round}","table":"public.t"}}}}"#));
            eventually("the changes are printed", async || printed().contains(expected.last().unwrap())).await;
            // SIGKILL.
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let lines: Vec<serde_json::Value> =
            printed().lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
        assert!(lines.iter().all(|line| line["commit_lsn"].is_string()));
        // A kill between the lines of a batch and its checkpoint repeats them; nothing is missing and nothing is out
        // of order.
        let mut next = 0;
        for change in lines.iter().map(|line| line["change"].to_string()) {
            match expected.get(next) == Some(&change) {
                true => next += 1,
                false => assert!(expected[..next].contains(&change), "{change} out of order on {major}"),
            }
        }
        assert_eq!(next, expected.len(), "on {major}");
    }
}
