//! Killing processes, with proof.
//!
//! A crash test whose kill hit nothing passes for the wrong reason. Every function here fails if the process had
//! ended before, or if it did not end by what was done to it, and a [`KillCount`] fails the test that killed less
//! often than it meant to.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::KitError;

/// Proof of a kill: the process ran before, and is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a kill is counted, see KillCount"]
pub struct Killed {
    pub(crate) pid: u32,
    pub(crate) with_it: usize,
}

impl Killed {
    /// The process's number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How many other processes died with it: the backends of a postmaster.
    pub fn with_it(&self) -> usize {
        self.with_it
    }
}

/// Kills a child with SIGKILL and waits until it is gone.
///
/// # Errors
///
/// [`KitError::NotRunning`] if it had ended before, [`KitError::NotKilled`] if it ended by anything but signal 9.
pub fn sigkill(child: &mut Child) -> Result<Killed, KitError> {
    let what = format!("process {}", child.id());
    running(child, &what)?;
    send(child, Signal::KILL, &what)?;
    let status = child.wait().map_err(KitError::io(format!("waiting for {what}")))?;
    if status.signal() != Some(Signal::KILL.as_raw()) {
        return Err(KitError::NotKilled { what, how: status.to_string() });
    }
    Ok(Killed { pid: child.id(), with_it: 0 })
}

/// Asks a child with SIGTERM to end, and returns how it did.
///
/// # Errors
///
/// [`KitError::NotRunning`] if it had ended before, [`KitError::Timeout`] if it is still there after `patience` (it
/// is left running).
pub async fn sigterm(child: &mut Child, patience: Duration) -> Result<ExitStatus, KitError> {
    let what = format!("process {}", child.id());
    running(child, &what)?;
    send(child, Signal::TERM, &what)?;
    let deadline = tokio::time::Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait().map_err(KitError::io(format!("waiting for {what}")))? {
            return Ok(status);
        }
        if tokio::time::Instant::now() >= deadline {
            return Err(KitError::Timeout {
                what: format!("the end of {what} after SIGTERM"),
                seconds: patience.as_secs(),
            });
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Fails if the child has ended.
fn running(child: &mut Child, what: &str) -> Result<(), KitError> {
    match child.try_wait().map_err(KitError::io(format!("looking at {what}")))? {
        None => Ok(()),
        Some(status) => Err(KitError::NotRunning { what: format!("{what} ({status})") }),
    }
}

/// Sends a signal to a child that has not been waited for, so that its number is still its own.
pub(crate) fn send(child: &Child, signal: Signal, what: &str) -> Result<(), KitError> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| KitError::NotRunning { what: what.to_owned() })?;
    kill_process(pid, signal).map_err(|error| KitError::io(format!("signalling {what}"))(error.into()))
}

/// Counts kills, and panics when it is dropped with fewer of them than the test meant to make.
///
/// ```should_panic
/// let kills = pgonce_testkit::KillCount::at_least(1);
/// // A test that kills nothing fails here.
/// ```
#[derive(Debug)]
#[must_use = "the count is checked when it is dropped"]
pub struct KillCount {
    wanted: u32,
    killed: u32,
}

impl KillCount {
    /// A count that wants this many kills, at least one.
    pub fn at_least(wanted: u32) -> KillCount {
        KillCount { wanted: wanted.max(1), killed: 0 }
    }

    /// Counts one proved kill.
    pub fn record(&mut self, _proof: Killed) {
        self.killed += 1;
    }

    /// How many so far.
    pub fn count(&self) -> u32 {
        self.killed
    }
}

impl Drop for KillCount {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.killed >= self.wanted, "{} kills were wanted and {} made", self.wanted, self.killed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_killed_process_is_proved_dead() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let killed = sigkill(&mut child).unwrap();
        assert_eq!(killed.pid(), child.id());
        assert!(matches!(sigkill(&mut child), Err(KitError::NotRunning { .. })));
    }

    #[test]
    fn a_process_that_ended_by_itself_was_not_killed() {
        let mut child = Command::new("true").spawn().unwrap();
        while child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(matches!(sigkill(&mut child), Err(KitError::NotRunning { .. })));
    }

    #[tokio::test]
    async fn sigterm_tells_how_the_process_ended_and_that_it_did_not() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert_eq!(sigterm(&mut child, Duration::from_secs(10)).await.unwrap().signal(), Some(Signal::TERM.as_raw()));
        assert!(matches!(sigterm(&mut child, Duration::from_secs(10)).await, Err(KitError::NotRunning { .. })));
    }

    #[test]
    #[should_panic(expected = "2 kills were wanted and 1 made")]
    fn a_test_that_killed_too_little_fails() {
        let mut kills = KillCount::at_least(2);
        kills.record(Killed { pid: 1, with_it: 0 });
    }
}
