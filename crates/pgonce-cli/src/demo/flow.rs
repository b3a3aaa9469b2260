//! `pgonce run` as a child: started, killed, started again, and what it said.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use pgonce_testkit::kill::{self, Killed};
use serde_json::Value;

use super::failed;
use crate::failure::{Failure, INTERNAL};
use crate::progress::PROGRESS_SECONDS;

/// The flow's process, and everything it has said.
#[derive(Debug)]
pub struct FlowProcess {
    program: PathBuf,
    config: PathBuf,
    log: PathBuf,
    child: Option<Child>,
    /// Where in the log the words of the present process begin.
    begun_at: u64,
    /// How many were started.
    pub runs: u32,
    /// Transactions that were delivered again and skipped whole: as far as each process came to say so.
    pub redelivered: u64,
}

impl FlowProcess {
    /// No process yet.
    pub fn new(config: &Path, log: &Path) -> Result<FlowProcess, Failure> {
        let program = std::env::current_exe().map_err(|e| Failure::file(Path::new("the program itself"), &e))?;
        File::create(log).map_err(|e| Failure::file(log, &e))?;
        Ok(FlowProcess {
            program,
            config: config.to_owned(),
            log: log.to_owned(),
            child: None,
            begun_at: 0,
            runs: 0,
            redelivered: 0,
        })
    }

    /// Starts `pgonce run`. Returns its PID.
    pub fn start(&mut self, more: &[&str]) -> Result<u32, Failure> {
        let file = || File::options().append(true).open(&self.log).map_err(|e| Failure::file(&self.log, &e));
        self.begun_at = fs::metadata(&self.log).map_err(|e| Failure::file(&self.log, &e))?.len();
        let child = self
            .command("run", more)
            .env(PROGRESS_SECONDS, "0.1")
            .stdin(Stdio::null())
            .stdout(Stdio::from(file()?))
            .stderr(Stdio::from(file()?))
            .spawn()
            .map_err(|e| Failure::file(&self.program, &e))?;
        let pid = child.id();
        self.child = Some(child);
        self.runs += 1;
        Ok(pid)
    }

    /// One of the program's own commands on the flow.
    pub fn command(&self, command: &str, more: &[&str]) -> Command {
        let mut process = Command::new(&self.program);
        process.arg(command).arg("--config").arg(&self.config).args(["--format", "json"]).args(more);
        process
    }

    /// Kills it, and says what it was doing.
    pub fn kill(&mut self) -> Result<(Killed, Doing), Failure> {
        self.check()?;
        let Some(mut child) = self.child.take() else { return Err(wrong("it was not running", "")) };
        let killed = kill::sigkill(&mut child).map_err(|e| failed(&e))?;
        let doing = self.doing();
        self.redelivered += doing.redelivered;
        Ok((killed, doing))
    }

    /// Asks it to end, and waits until it has.
    pub async fn stop(&mut self) -> Result<(), Failure> {
        self.check()?;
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let status = kill::sigterm(&mut child, Duration::from_secs(20)).await;
        self.redelivered += self.doing().redelivered;
        match status.map_err(|e| failed(&e))? {
            status if status.success() => Ok(()),
            // It had only just been started, and was not listening yet.
            status if status.signal() == Some(15) => Ok(()),
            status => Err(wrong(&format!("SIGTERM ended it with {status}"), &self.last_error())),
        }
    }

    /// Waits until it has ended by itself with status 0.
    pub async fn finish(&mut self, patience: Duration) -> Result<(), Failure> {
        let begun = Instant::now();
        while begun.elapsed() < patience {
            if let Some(status) = self.ended()? {
                self.child = None;
                self.redelivered += self.doing().redelivered;
                return match status.success() {
                    true => Ok(()),
                    false => Err(wrong(&format!("it ended with {status}"), &self.last_error())),
                };
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err(wrong(&format!("it did not drain within {} s", patience.as_secs()), &self.last_error()))
    }

    /// Fails if it has ended by itself: it should wait out whatever happens to the databases.
    pub fn check(&mut self) -> Result<(), Failure> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => Err(wrong(&format!("it ended by itself with {status}"), &self.last_error())),
        }
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>, Failure> {
        match &mut self.child {
            None => Ok(None),
            Some(child) => child.try_wait().map_err(|e| Failure::file(&self.program, &e)),
        }
    }

    /// What the present process said last about what it is doing.
    pub fn doing(&self) -> Doing {
        self.events().iter().fold(Doing::default(), |mut doing, event| {
            if let Some(phase) = event["phase"].as_str() {
                doing.phase = phase.to_owned();
            }
            doing.applied = doing.applied.max(event["applied"].as_u64().unwrap_or(0));
            doing.redelivered = doing.redelivered.max(event["redelivered"].as_u64().unwrap_or(0));
            doing
        })
    }

    fn events(&self) -> Vec<Value> {
        let text = fs::read(&self.log).unwrap_or_default();
        let own = text.get(usize::try_from(self.begun_at).unwrap_or(0)..).unwrap_or_default();
        String::from_utf8_lossy(own).lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Why it failed, in its own words.
    fn last_error(&self) -> String {
        let events = self.events();
        let error = events.iter().rev().find(|event| matches!(event["event"].as_str(), Some("error" | "fault")));
        error.and_then(|event| event["text"].as_str()).unwrap_or_default().to_owned()
    }
}

impl Drop for FlowProcess {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What a process is doing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Doing {
    /// In a word.
    pub phase: String,
    /// Transactions that it has applied.
    pub applied: u64,
    /// Transactions that it has skipped because they had been applied.
    pub redelivered: u64,
}

impl Doing {
    /// In a few words.
    pub fn words(&self) -> &'static str {
        match self.phase.as_str() {
            "copying" => "copying tables",
            "catching_up" => "catching up after the copy",
            "streaming" => "streaming",
            "waiting" => "waiting for a database",
            _ => "connecting",
        }
    }
}

fn wrong(what: &str, why: &str) -> Failure {
    let why = if why.is_empty() { String::new() } else { format!(": {why}") };
    Failure {
        code: "flow_failed",
        text: format!("pgonce run did not do what it should: {what}{why}"),
        hint: "run.log in the demonstration's directory has all it said. Please report it with the seed.".to_owned(),
        exit_status: INTERNAL,
    }
}
