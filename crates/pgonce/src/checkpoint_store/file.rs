//! A checkpoint store in a local file.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use super::CheckpointStore;
use crate::sink::{SinkError, State};
use crate::stop::{Reason, Stop};

/// Keeps the state of one flow in a directory: `state.json`, replaced as a whole and synced with every save, and
/// `lock`, held while the process runs.
///
/// The file says how far the data has come that the sink has persisted. Moved to another machine without the data, or
/// restored from a backup that is older than the data, it is not that any more; a state that is older than what was
/// acknowledged is refused as a data gap.
#[derive(Debug)]
pub struct FileStore {
    directory: PathBuf,
    open: Option<Open>,
    /// A save that was begun. It goes on when nobody waits for it any more.
    saving: Option<JoinHandle<io::Result<()>>>,
}

#[derive(Debug)]
struct Open {
    lock: Arc<File>,
    saved: Saved,
}

/// The content of `state.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Saved {
    version: u64,
    /// By name. Each is text with a checksum of its own.
    records: BTreeMap<String, String>,
}

impl FileStore {
    /// A store in this directory, which is made at the first start (for this user alone).
    pub fn new(directory: impl Into<PathBuf>) -> FileStore {
        FileStore { directory: directory.into(), open: None, saving: None }
    }

    fn path(&self) -> PathBuf {
        self.directory.join("state.json")
    }

    fn take(&self) -> Result<File, SinkError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.directory);
        made.map_err(|e| SinkError::file(&self.directory, &e))?;
        let path = self.directory.join("lock");
        let open = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = open.map_err(|e| SinkError::file(&path, &e))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => {
                let what = format!("{}: another process holds it", path.display());
                Err(Stop::from(Reason::SinkBusy { what }).into())
            }
            Err(TryLockError::Error(e)) => Err(SinkError::file(&path, &e)),
        }
    }

    /// Waits for the save that was begun.
    async fn settle(&mut self) -> io::Result<()> {
        match &mut self.saving {
            None => Ok(()),
            Some(saving) => {
                let saved = saving.await;
                self.saving = None;
                saved.unwrap_or_else(|_| Err(io::Error::other("the save did not end")))
            }
        }
    }

    fn read(&self, flow: &str) -> Result<Saved, SinkError> {
        let path = self.path();
        match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|_| {
                let what = format!("{} does not hold together", path.display());
                Stop::from(Reason::CheckpointUnreadable { flow: flow.to_owned(), what }).into()
            }),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Saved::default()),
            Err(e) => Err(SinkError::file(&path, &e)),
        }
    }
}

/// Puts a new file in the place of the old one: whatever is killed, one of the two is there.
fn replace(directory: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = directory.join("state.json.new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, directory.join("state.json"))?;
    File::open(directory)?.sync_all()
}

impl CheckpointStore for FileStore {
    async fn open(&mut self, flow: &str) -> Result<(), SinkError> {
        // What comes of it is on the disk, and read below.
        let _ = self.settle().await;
        // The lock is kept from session to session, for nobody else may write in between.
        let lock = match self.open.take() {
            Some(open) => open.lock,
            None => Arc::new(self.take()?),
        };
        self.open = Some(Open { lock, saved: self.read(flow)? });
        Ok(())
    }

    async fn load(&mut self, _: &str, name: &'static str) -> Result<Option<Vec<u8>>, SinkError> {
        let open = self.open.as_ref().ok_or_else(|| SinkError::permanent("the store was used before it was opened"))?;
        Ok(open.saved.records.get(name).map(|text| text.clone().into_bytes()))
    }

    async fn save(&mut self, state: &State<'_>) -> Result<(), SinkError> {
        let Some(mut open) = self.open.take() else {
            return Err(SinkError::permanent("the store was used before it was opened"));
        };
        if open.saved.version != state.replaces() {
            return Err(SinkError::fenced(state.flow()));
        }
        open.saved.version = state.version();
        for record in state.records() {
            let text = String::from_utf8_lossy(record.bytes()).into_owned();
            open.saved.records.insert(record.name().to_owned(), text);
        }
        let path = self.path();
        let bytes = serde_json::to_vec(&open.saved).map_err(|_| SinkError::permanent("the state has no JSON form"))?;
        // It holds the lock as long as it goes on, even if the store is dropped meanwhile: nobody may read what it is
        // about to replace.
        let (directory, lock) = (self.directory.clone(), Arc::clone(&open.lock));
        self.open = Some(open);
        self.saving = Some(tokio::task::spawn_blocking(move || {
            let replaced = replace(&directory, &bytes);
            drop(lock);
            replaced
        }));
        self.settle().await.map_err(|e| SinkError::file(&path, &e))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::sink::Record;

    #[tokio::test]
    async fn a_save_that_nobody_waits_for_keeps_the_lock_until_it_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let records = [Record { name: "r", bytes: vec![b'x'; 64 << 20] }];
        let mut store = FileStore::new(directory.path());
        store.open("f").await.unwrap();
        let state = State { flow: "f", records: &records, version: 1, replaces: 0 };
        assert!(store.save(&state).now_or_never().is_none(), "it takes a moment");
        drop(store);
        // Whoever comes next does not read what was there before.
        let mut tries = 0;
        loop {
            let mut next = FileStore::new(directory.path());
            match next.open("f").await {
                Ok(()) => {
                    assert_eq!(next.open.unwrap().saved.version, 1);
                    break;
                }
                Err(error) => assert_eq!(Stop::from(error).code(), "sink_busy"),
            }
            tries += 1;
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert!(tries > 0, "the save was over before anybody came");
    }
}
