//! What `/proc` knows of a process.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// A process named so that a later process with the same number is not taken for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ProcessId {
    pub(crate) pid: u32,
    /// When it started, in clock ticks since the machine did.
    started: u64,
}

struct Stat {
    state: char,
    parent: u32,
    started: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name stands in parentheses and may hold anything; fields are counted from behind it.
    let mut fields = text.get(text.rfind(')')? + 1..)?.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    Some(Stat { state, parent, started })
}

impl ProcessId {
    /// This process.
    pub(crate) fn own() -> Option<ProcessId> {
        ProcessId::of(std::process::id())
    }

    /// The process that has this number now.
    pub(crate) fn of(pid: u32) -> Option<ProcessId> {
        stat(pid).map(|stat| ProcessId { pid, started: stat.started })
    }

    /// Parses what [`Display`](std::fmt::Display) prints.
    pub(crate) fn parse(text: &str) -> Option<ProcessId> {
        let (pid, started) = text.trim().split_once(' ')?;
        Some(ProcessId { pid: pid.parse().ok()?, started: started.parse().ok()? })
    }

    /// Whether it still runs. A zombie does not: it holds no port, no memory and no file.
    pub(crate) fn is_alive(self) -> bool {
        stat(self.pid).is_some_and(|stat| stat.started == self.started && !matches!(stat.state, 'Z' | 'X'))
    }

    /// Sends a signal, unless the process is gone.
    pub(crate) fn signal(self, signal: Signal) -> std::io::Result<()> {
        if !self.is_alive() {
            return Err(rustix::io::Errno::SRCH.into());
        }
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).ok_or(rustix::io::Errno::SRCH)?;
        kill_process(pid, signal).map_err(Into::into)
    }

    /// Its children at this moment.
    pub(crate) fn children(self) -> Vec<ProcessId> {
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter_map(|pid| {
                let stat = stat(pid)?;
                (stat.parent == self.pid).then_some(ProcessId { pid, started: stat.started })
            })
            .collect()
    }

    /// The words it was started with.
    pub(crate) fn arguments(self) -> Vec<String> {
        let bytes = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        bytes.split(|b| *b == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    }
}

impl std::fmt::Display for ProcessId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.pid, self.started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_itself_and_its_children() {
        let own = ProcessId::own().unwrap();
        assert!(own.is_alive());
        assert_eq!(ProcessId::parse(&own.to_string()), Some(own));

        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let known = ProcessId::of(child.id()).unwrap();
        assert!(own.children().contains(&known));
        known.signal(Signal::KILL).unwrap();
        child.wait().unwrap();
        assert!(!known.is_alive());
        assert!(known.signal(Signal::KILL).is_err());
    }

    #[test]
    fn a_number_used_again_is_another_process() {
        let own = ProcessId::own().unwrap();
        assert!(!ProcessId { started: own.started + 1, ..own }.is_alive());
    }
}
