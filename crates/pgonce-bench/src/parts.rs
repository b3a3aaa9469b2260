//! What was measured so far, kept on disk so that an interrupted benchmark goes on where it ended.
//!
//! `parts/<workload>-<major>.jsonl` has a line for each round: each contestant's run, one after the other.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::contestant::Contestant;
use crate::measure::Measured;

/// What rounds have in common whose results may stand side by side.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// The last commit that changed the code, and a mark of what is changed since.
    pub commit: String,
    /// The workload's name.
    pub workload: String,
    /// The servers' major; 0 without a server.
    pub postgres: u32,
    /// Whether commits on the target waited for its disk.
    pub synchronous: bool,
    /// What sizes were divided by.
    pub scale_div: u32,
}

/// One run of each contestant.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Round {
    /// Where it belongs.
    #[serde(flatten)]
    pub part: Part,
    /// The day, by the source's clock.
    pub date: String,
    /// The servers' version.
    pub server: String,
    /// The optimisation that the servers were built with.
    pub build: String,
    /// How many transactions the backlog had.
    pub transactions: Option<u64>,
    /// The results.
    pub measured: Vec<Measured>,
}

impl Round {
    /// Whether each of these took part.
    pub fn has(&self, lineup: &[Contestant]) -> bool {
        lineup.iter().all(|contestant| self.measured.iter().any(|measured| measured.is_of(*contestant)))
    }
}

/// The folder of results.
#[derive(Clone, Debug)]
pub struct Parts(PathBuf);

impl Parts {
    /// Opens it, or makes it.
    pub fn open(output: &Path) -> Result<Parts> {
        let folder = output.join("parts");
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        Ok(Parts(folder))
    }

    fn file(&self, part: &Part) -> PathBuf {
        self.0.join(format!("{}-{}.jsonl", part.workload, part.postgres))
    }

    /// The rounds of a part.
    pub fn rounds(&self, part: &Part) -> Result<Vec<Round>> {
        let mut rounds = read(&self.file(part))?;
        rounds.retain(|round| round.part == *part);
        Ok(rounds)
    }

    /// Every round of a commit and a size.
    pub fn all(&self, commit: &str, scale_div: u32) -> Result<Vec<Round>> {
        let mut files: Vec<PathBuf> = fs::read_dir(&self.0)?.flatten().map(|entry| entry.path()).collect();
        files.sort();
        let mut rounds = Vec::new();
        for file in files {
            rounds.extend(read(&file)?);
        }
        rounds.retain(|round| round.part.commit == commit && round.part.scale_div == scale_div);
        Ok(rounds)
    }

    /// Adds a round.
    pub fn append(&self, round: &Round) -> Result<()> {
        let mut file = File::options().create(true).append(true).open(self.file(&round.part))?;
        writeln!(file, "{}", serde_json::to_string(round)?).context("keeping a result")
    }

    /// Forgets the rounds of a part.
    pub fn forget(&self, part: &Part) -> Result<()> {
        let file = self.file(part);
        let mut rounds = read(&file)?;
        rounds.retain(|round| round.part != *part);
        let lines: Result<Vec<String>, _> = rounds.iter().map(serde_json::to_string).collect();
        let text: String = lines?.into_iter().map(|line| line + "\n").collect();
        fs::write(&file, text).context("forgetting results")
    }
}

fn read(file: &Path) -> Result<Vec<Round>> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("reading {}", file.display())),
    };
    // A line that a crash cut short, or that another version wrote, is no result.
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// Names the code that is measured: the last commit that changed it, and a mark of changes that are not committed.
/// Commits of documents leave it as it is. `unknown` outside a checkout.
pub fn code_version() -> String {
    git_version().unwrap_or_else(|_| "unknown".to_owned())
}

fn git_version() -> Result<String> {
    const CODE: [&str; 4] = ["--", "crates", "Cargo.toml", "Cargo.lock"];
    let git = |words: &[&str]| -> Result<String> {
        let output = Command::new("git").args(words).args(CODE).output().context("running git")?;
        if !output.status.success() {
            bail!("git {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let commit = git(&["log", "-1", "--format=%h"])?.trim().to_owned();
    let changes = git(&["diff", "HEAD"])? + &git(&["ls-files", "--others", "--exclude-standard"])?;
    if changes.is_empty() {
        return Ok(commit);
    }
    let mut hasher = DefaultHasher::new();
    changes.hash(&mut hasher);
    Ok(format!("{commit}+{:08x}", hasher.finish() >> 32))
}

/// The day, by this machine's clock.
pub fn today() -> Result<String> {
    let output = Command::new("date").arg("+%F").output().context("running date")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::contestant::native_modes;

    /// A round with these results: name, mode, value.
    pub fn round(workload: &str, synchronous: bool, results: &[(&str, &str, f64)]) -> Round {
        let part = Part { commit: "c".into(), workload: workload.into(), postgres: 15, synchronous, scale_div: 1 };
        let measured = results
            .iter()
            .map(|(contestant, mode, value)| Measured {
                contestant: (*contestant).to_owned(),
                mode: (*mode).to_owned(),
                value: *value,
                extra: std::collections::BTreeMap::new(),
            })
            .collect();
        Round {
            part,
            date: "2026-01-01".into(),
            server: "15.18".into(),
            build: "-O2".into(),
            transactions: None,
            measured,
        }
    }

    #[test]
    fn rounds_are_kept_by_part_and_a_torn_line_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let parts = Parts::open(folder.path()).unwrap();
        let (slow, fast) = (round("w1", true, &[]), round("w1", false, &[("native", "text, streaming=off", 2.0)]));
        for kept in [&slow, &fast, &fast] {
            parts.append(kept).unwrap();
        }
        let file = parts.file(&fast.part);
        fs::write(&file, fs::read_to_string(&file).unwrap() + "{\"commit\":\"c\",\"work").unwrap();
        assert_eq!(parts.rounds(&fast.part).unwrap(), [fast.clone(), fast.clone()]);
        assert_eq!(parts.all("c", 1).unwrap().len(), 3);
        assert_eq!(parts.all("c", 2).unwrap(), []);
        parts.forget(&fast.part).unwrap();
        assert_eq!(parts.all("c", 1).unwrap(), [slow]);
    }

    #[test]
    fn a_round_counts_if_everybody_took_part() {
        let round = round("w1", false, &[("native", "text, streaming=off", 2.0)]);
        assert!(round.has(&native_modes(15, false)[..1]));
        assert!(!round.has(&native_modes(15, false)));
    }
}
