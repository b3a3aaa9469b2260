//! The data directory of a flow, held by one process at a time.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// A data directory that this process holds. Dropped, it is free again; so it is when the process dies, however it
/// dies.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Creates the directory where it is missing (readable for this user alone) and takes it.
    ///
    /// # Errors
    ///
    /// Another process holds it, or the disk says no.
    pub fn take(path: &Path) -> Result<DataDir, Failure> {
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|e| Failure::file(path, &e))?;
        let name = path.join("lock");
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&name);
        let mut file = open.map_err(|e| Failure::file(&name, &e))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(held(path, &mut file)),
            Err(TryLockError::Error(e)) => return Err(Failure::file(&name, &e)),
        }
        let written =
            file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
        written.map_err(|e| Failure::file(&name, &e))?;
        Ok(DataDir { path: path.to_owned(), _lock: file })
    }

    /// The directory of spilled transactions, made if need be, with what an earlier process left in it removed.
    ///
    /// # Errors
    ///
    /// The disk says no.
    pub fn spill(&self) -> Result<PathBuf, Failure> {
        let path = spill_path(&self.path);
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(|e| Failure::file(&path, &e))?;
        for file in spilled(&path)? {
            std::fs::remove_file(&file).map_err(|e| Failure::file(&file, &e))?;
        }
        Ok(path)
    }
}

/// Where the spill files of a data directory lie.
pub fn spill_path(data_dir: &Path) -> PathBuf {
    data_dir.join("spill")
}

/// The files in a directory of spilled transactions; none where there is no directory.
///
/// # Errors
///
/// The directory cannot be read.
pub fn spilled(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Failure::file(path, &e)),
    };
    let entries: Result<Vec<_>, _> = entries.collect();
    let entries = entries.map_err(|e| Failure::file(path, &e))?;
    Ok(entries.into_iter().map(|entry| entry.path()).filter(|path| path.is_file()).collect())
}

fn held(path: &Path, file: &mut File) -> Failure {
    let mut text = String::new();
    // The holder may be about to write its PID: then it stays unknown.
    let _ = file.read_to_string(&mut text);
    let holder = match text.trim() {
        pid if !pid.is_empty() && pid.bytes().all(|b| b.is_ascii_digit()) => format!("the process with PID {pid}"),
        _ => "another process".to_owned(),
    };
    Failure::usage(
        format!("{} is in use by {holder}", path.display()),
        "Only one process may run a flow: stop the other one first. For another flow, choose another --data-dir.",
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_directory_is_private_and_held_once() {
        let parent = tempfile::tempdir().expect("a directory");
        let path = parent.path().join("a/b");
        let held = DataDir::take(&path).expect("free");
        assert_eq!(std::fs::metadata(&path).expect("made").permissions().mode() & 0o777, 0o700);
        let refusal = DataDir::take(&path).expect_err("held");
        assert_eq!(refusal.exit_status, 2);
        assert!(refusal.text.ends_with(&format!("the process with PID {}", std::process::id())), "{}", refusal.text);
        drop(held);
        DataDir::take(&path).expect("free again");
    }

    #[test]
    fn what_an_earlier_process_spilled_is_swept() {
        let parent = tempfile::tempdir().expect("a directory");
        let held = DataDir::take(parent.path()).expect("free");
        let spill = held.spill().expect("made");
        std::fs::write(spill.join("left"), "over").expect("written");
        assert_eq!(spilled(&spill).expect("read").len(), 1);
        held.spill().expect("swept");
        assert!(spilled(&spill).expect("read").is_empty());
    }
}
