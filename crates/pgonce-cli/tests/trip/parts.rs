//! Long runs in parts whose results are kept, so that one that was ended goes on where it was.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("soak")
}

/// What is being tested.
fn commit() -> String {
    let described = Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12"]).output();
    let text = described.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    if text.is_empty() { "unknown".to_owned() } else { text }
}

/// Runs the parts of `name` that have not passed yet, and fails at the end if any has failed.
///
/// The result of each is `target/soak/<name>-<number>.json`. Parts that have passed are left out, whatever has changed
/// since: their files say at which commit that was. `PGONCE_SOAK_PARTS=2` runs at most two of each name.
pub async fn parts<T: serde::Serialize>(name: &str, number: u64, run: impl AsyncFn(u64) -> Result<T, String>) {
    std::fs::create_dir_all(folder()).unwrap();
    let most = std::env::var("PGONCE_SOAK_PARTS").ok().filter(|text| !text.is_empty());
    let most = most.map_or(number, |text| text.parse().expect("PGONCE_SOAK_PARTS is a number"));
    let mut run_now = 0;
    let mut failed = Vec::new();
    for part in 1..=number {
        let file = folder().join(format!("{name}-{part:02}.json"));
        let before = std::fs::read(&file).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        if let Some(before) = before.filter(|before| before["status"] == "passed") {
            println!("{name} {part} of {number}: passed before, at {}", before["commit"]);
            continue;
        }
        if run_now == most {
            println!("{name} {part} of {number}: not yet");
            continue;
        }
        run_now += 1;
        let begun = Instant::now();
        let (status, counts, error) = match run(part).await {
            Ok(counts) => ("passed", Some(counts), None),
            Err(error) => ("failed", None, Some(error)),
        };
        let seconds = begun.elapsed().as_secs();
        println!(
            "{name} {part} of {number}: {status} after {seconds} s{}",
            match &error {
                Some(error) => format!("\n{error}"),
                None => String::new(),
            }
        );
        let result = json!({
            "part": format!("{name} {part} of {number}"),
            "status": status,
            "counts": counts,
            "error": error,
            "seconds": seconds,
            "commit": commit(),
            "postgresql": std::env::var("PGONCE_TEST_PG").unwrap_or_else(|_| "15,18".to_owned()),
        });
        // By rename, so that what is killed here leaves no half of a result.
        let new = file.with_extension("new");
        std::fs::write(&new, format!("{result:#}\n")).unwrap();
        std::fs::rename(&new, &file).unwrap();
        if status == "failed" {
            failed.push(part);
        }
    }
    assert!(failed.is_empty(), "{name}: parts {failed:?} of {number} failed; {} has why", folder().display());
}

/// What a task that panicked has said.
#[allow(dead_code, reason = "not every soak runs its parts as tasks")]
pub fn reason(error: tokio::task::JoinError) -> String {
    let why = error.into_panic();
    let text = why.downcast_ref::<&str>().map(|text| (*text).to_owned());
    why.downcast_ref::<String>().cloned().or(text).unwrap_or_else(|| "see above".to_owned())
}
