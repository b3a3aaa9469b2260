//! Removing what processes left behind that could not clean up: a test that was killed leaves a running server.
//!
//! A cluster's folder holds a file `owner`, which names the process that made it. A folder whose owner is gone is
//! stopped and removed when the next cluster is made, by whichever process. A kept cluster has no such file and is
//! left alone.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::KitError;
use crate::installation::temporary_folder;
use crate::process::ProcessId;

/// The name of the file that names the owner.
const OWNER: &str = "owner";

/// How the folders of this user's clusters begin.
pub(crate) fn folder_prefix() -> String {
    format!("pgonce-cluster-{}-", rustix::process::geteuid().as_raw())
}

/// Makes this process the owner of a cluster's folder.
pub(crate) fn claim(folder: &Path) -> Result<(), KitError> {
    let owner = ProcessId::own().map(|own| own.to_string()).unwrap_or_default();
    // By rename, so that no other process reads half of it.
    fs::write(folder.join("owner.new"), owner)
        .and_then(|()| fs::rename(folder.join("owner.new"), folder.join(OWNER)))
        .map_err(KitError::io("writing a cluster's owner"))
}

/// Gives a folder up, so that it stays when this process ends.
pub(crate) fn disclaim(folder: &Path) -> Result<(), KitError> {
    fs::remove_file(folder.join(OWNER)).map_err(KitError::io("removing a cluster's owner"))
}

/// Stops and removes the clusters of this user whose owners are gone. What fails is left for the next sweep.
pub(crate) fn sweep() {
    let Ok(entries) = fs::read_dir(temporary_folder()) else { return };
    let prefix = folder_prefix();
    let uid = rustix::process::geteuid().as_raw();
    for entry in entries.flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(&prefix)
            && fs::symlink_metadata(entry.path()).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid);
        if ours && is_abandoned(&entry.path()) {
            stop(&entry.path());
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn is_abandoned(folder: &Path) -> bool {
    fs::read_to_string(folder.join(OWNER))
        .ok()
        .and_then(|text| ProcessId::parse(&text))
        .is_some_and(|owner| !owner.is_alive())
}

/// The running postmaster of a cluster's folder, if it has one: the process that `postmaster.pid` names, and only if
/// it was started on this very data folder.
pub(crate) fn postmaster(folder: &Path) -> Option<ProcessId> {
    let data = folder.join("data");
    let text = fs::read_to_string(data.join("postmaster.pid")).ok()?;
    let process = ProcessId::of(text.lines().next()?.trim().parse().ok()?)?;
    let on_this_folder = process.arguments().iter().any(|word| Path::new(word) == data);
    (on_this_folder && process.is_alive()).then_some(process)
}

/// Stops a cluster that was kept at once, if it runs, and removes it. Needs no installation: only the folder.
pub fn remove_kept(folder: &Path) -> Result<(), KitError> {
    stop(folder);
    fs::remove_dir_all(folder).map_err(KitError::io("removing a kept cluster"))
}

/// Stops the server of an abandoned folder at once.
fn stop(folder: &Path) {
    let Some(server) = postmaster(folder) else { return };
    for (signal, patience) in [(Signal::QUIT, Duration::from_secs(7)), (Signal::KILL, Duration::from_secs(2))] {
        if server.signal(signal).is_err() {
            return;
        }
        let deadline = Instant::now() + patience;
        while server.is_alive() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
