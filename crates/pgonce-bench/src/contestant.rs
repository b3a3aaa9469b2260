//! Who replicates: a native subscription, or `pgonce run`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::drain::Reader;
use crate::stand::Databases;
use crate::workload::decode::Depth;

/// How long `pgonce run` may take to end after SIGTERM.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// One contestant in one mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contestant {
    /// What it is.
    pub kind: Kind,
    /// Whether each commit on the target waits for its disk. Off is what native's apply worker does by itself.
    pub synchronous: bool,
}

/// What a contestant is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `CREATE SUBSCRIPTION`.
    Native {
        /// Its option `binary`.
        binary: bool,
        /// Its option `streaming`.
        streaming: &'static str,
    },
    /// `pgonce run`, slot to target.
    Pgonce,
    /// Bare binary COPY from one `psql` to another. Copies only.
    Pipe,
    /// `pgcopydb clone`. Copies only.
    Pgcopydb,
    /// What reads a slot and throws everything away. `receive` only.
    Reader(Reader),
    /// pgonce's decoder and assembler, without a server. `decode` only.
    Decoder(Depth),
}

/// The modes of a native subscription that are worth a run. Streaming changes nothing for small transactions before
/// 16; since then `parallel` is there, and the default from 18 on.
pub fn native_modes(major: u32, synchronous: bool) -> Vec<Contestant> {
    let native = |binary, streaming| Contestant { kind: Kind::Native { binary, streaming }, synchronous };
    if synchronous {
        // The disk decides here, not the format.
        return vec![native(true, "off")];
    }
    let mut modes = vec![native(false, "off"), native(true, "off")];
    if major >= 16 {
        modes.push(native(true, "parallel"));
    }
    modes
}

impl Contestant {
    /// Its name in the report.
    pub fn name(self) -> &'static str {
        match (self.kind, self.synchronous) {
            (Kind::Native { .. }, _) => "native",
            (Kind::Pgonce, false) => "pgonce",
            (Kind::Pgonce, true) => "pgonce-sync",
            (Kind::Pipe, _) => "pipe",
            (Kind::Pgcopydb, _) => "pgcopydb",
            (Kind::Reader(Reader::Ideal { .. }), _) => "ideal reader",
            (Kind::Reader(Reader::Pgonce) | Kind::Decoder(_), _) => "pgonce",
        }
    }

    /// Its mode, in words.
    pub fn mode(self) -> String {
        let commit = if self.synchronous { ", synchronous_commit=on" } else { "" };
        match self.kind {
            Kind::Native { binary, streaming } => {
                format!("{}, streaming={streaming}{commit}", if binary { "binary" } else { "text" })
            }
            Kind::Pgonce => format!("direct{commit}"),
            Kind::Pipe => "binary COPY".to_owned(),
            Kind::Pgcopydb => "clone".to_owned(),
            Kind::Reader(Reader::Ideal { pause: Duration::ZERO }) => "blocking reads".to_owned(),
            Kind::Reader(Reader::Ideal { pause }) => format!("pauses of {} ms", pause.as_secs_f64() * 1000.0),
            Kind::Reader(Reader::Pgonce) => "null sink".to_owned(),
            Kind::Decoder(Depth::Assemble) => "decode and assemble".to_owned(),
            Kind::Decoder(Depth::Read) => "decode, assemble, read every value".to_owned(),
        }
    }

    /// Begins to replicate from a slot that is there.
    pub async fn start(self, place: &Place<'_>) -> Result<Running> {
        match self.kind {
            Kind::Native { binary, streaming } => {
                let commit = if self.synchronous { "on" } else { "off" };
                let sql = format!(
                    "CREATE SUBSCRIPTION bench CONNECTION '{}' PUBLICATION {} WITH (slot_name = '{}',
                     create_slot = false, copy_data = false, enabled = true, binary = {binary}, streaming = {streaming},
                     synchronous_commit = '{commit}')",
                    place.databases.source_url, place.publication, place.slot
                );
                place.databases.target.batch_execute(&sql).await.context("creating the subscription")?;
                Ok(Running::Subscription)
            }
            Kind::Pgonce => Process::start(self.synchronous, place).map(Running::Process),
            Kind::Pipe | Kind::Pgcopydb | Kind::Reader(_) | Kind::Decoder(_) => {
                bail!("{} does not replicate", self.name())
            }
        }
    }
}

/// Where a contestant replicates.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// From where to where.
    pub databases: &'a Databases,
    /// The publication to read.
    pub publication: &'a str,
    /// The slot to read.
    pub slot: &'a str,
    /// The program `pgonce`.
    pub pgonce: &'a Path,
    /// A folder for what it writes.
    pub folder: &'a Path,
}

/// A contestant at work.
#[derive(Debug)]
pub enum Running {
    /// A subscription; the server runs it.
    Subscription,
    /// `pgonce run`.
    Process(Process),
}

impl Running {
    /// Its process, if it is one of its own.
    pub fn pid(&self) -> Option<u32> {
        match self {
            Running::Subscription => None,
            Running::Process(process) => Some(process.child.id()),
        }
    }

    /// Fails if the process has ended by itself. The server restarts a subscription's worker.
    pub fn check(&mut self) -> Result<()> {
        match self {
            Running::Subscription => Ok(()),
            Running::Process(process) => match process.child.try_wait()? {
                None => Ok(()),
                Some(status) => bail!("pgonce run ended by itself ({status}):\n{}", process.last_words()),
            },
        }
    }

    /// Ends it. The slot may be in use for a moment longer.
    pub async fn stop(self, databases: &Databases) -> Result<()> {
        match self {
            Running::Subscription => {
                for sql in [
                    "ALTER SUBSCRIPTION bench DISABLE",
                    "ALTER SUBSCRIPTION bench SET (slot_name = NONE)",
                    "DROP SUBSCRIPTION bench",
                ] {
                    databases.target.batch_execute(sql).await.context(sql)?;
                }
                Ok(())
            }
            Running::Process(mut process) => {
                let status = pgonce_testkit::kill::sigterm(&mut process.child, END_PATIENCE).await?;
                if !status.success() {
                    bail!("pgonce run did not end well after SIGTERM ({status}):\n{}", process.last_words());
                }
                Ok(())
            }
        }
    }
}

/// `pgonce run`. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    fn start(synchronous: bool, place: &Place<'_>) -> Result<Process> {
        fs::create_dir_all(place.folder)?;
        let data = place.folder.join("data");
        if data.exists() {
            fs::remove_dir_all(&data).context("removing the data directory of the run before")?;
        }
        let log = place.folder.join("pgonce.log");
        let out = File::create(&log)?;
        let mut command = Command::new(place.pgonce);
        command
            .args(["run", "--flow", "bench", "--stream", "none", "--start", "go-forward"])
            .args(["--source", &place.databases.source_url, "--target", &place.databases.target_url])
            .args(["--publication", place.publication, "--slot", place.slot])
            .args(["--synchronous-commit", if synchronous { "on" } else { "off" }])
            .arg("--data-dir")
            .arg(&data)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::null())
            .stderr(out.try_clone()?)
            .stdout(out);
        let child = command.spawn().with_context(|| format!("starting {}", place.pgonce.display()))?;
        Ok(Process { child, log })
    }

    /// The end of what it printed.
    fn last_words(&self) -> String {
        let text = fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail where it has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_runs_in_every_mode_that_its_major_has() {
        let modes = |major| native_modes(major, false).into_iter().map(Contestant::mode).collect::<Vec<_>>();
        assert_eq!(modes(15), ["text, streaming=off", "binary, streaming=off"]);
        assert_eq!(modes(18)[2], "binary, streaming=parallel");
        assert_eq!(native_modes(15, true)[0].mode(), "binary, streaming=off, synchronous_commit=on");
    }
}
