//! How much the transactions in assembly may hold together, in memory and on disk.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// When and where transactions in assembly go to disk.
#[derive(Clone, Debug)]
pub struct SpillSettings {
    /// Bytes that all transactions in assembly together keep in memory. Over it the largest goes to disk first.
    pub memory: usize,
    /// Bytes that they may have on disk together. Over it the flow stops, and names the largest.
    pub disk: u64,
    /// Directory of spill files. Made with mode 0700 where it is missing.
    pub directory: PathBuf,
}

impl Default for SpillSettings {
    /// 32 MiB in memory, 64 GiB on disk, in the system's directory for temporary files.
    fn default() -> Self {
        SpillSettings { memory: 32 << 20, disk: 64 << 30, directory: std::env::temp_dir() }
    }
}

/// What is in use. Shared by an assembler and everything that it has handed out.
#[derive(Debug)]
pub(super) struct Meter {
    settings: SpillSettings,
    /// Bytes in the buffers of transactions in assembly.
    memory: AtomicUsize,
    /// Bytes of what is kept to undo sub-transactions of theirs.
    tables: AtomicUsize,
    /// Bytes of their files.
    assembling: AtomicU64,
    /// Bytes of all files, those of transactions that wait to be delivered too.
    disk: AtomicU64,
    freed: Notify,
}

/// A transaction could not go to disk.
#[derive(Debug, thiserror::Error)]
pub(super) enum SpillError {
    /// The file failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// There would be more on disk than is allowed.
    #[error("over the bound")]
    Full,
}

impl Meter {
    pub(super) fn new(settings: SpillSettings) -> Arc<Meter> {
        Arc::new(Meter {
            settings,
            memory: AtomicUsize::new(0),
            tables: AtomicUsize::new(0),
            assembling: AtomicU64::new(0),
            disk: AtomicU64::new(0),
            freed: Notify::new(),
        })
    }

    pub(super) fn settings(&self) -> &SpillSettings {
        &self.settings
    }

    pub(super) fn memory(&self) -> usize {
        self.memory.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn on_disk(&self) -> u64 {
        self.disk.load(Ordering::Relaxed)
    }

    pub(super) fn assembling(&self) -> u64 {
        self.assembling.load(Ordering::Relaxed)
    }

    /// Whether `more` bytes would be over the bound. What can undo sub-transactions takes its part of it, but never so
    /// much that every change would go to disk by itself.
    pub(super) fn is_over(&self, more: usize) -> bool {
        let bound = self.settings.memory;
        let left = bound.saturating_sub(self.tables.load(Ordering::Relaxed)).max(bound / 4);
        self.memory().saturating_add(more) > left
    }

    pub(super) fn hold(&self, bytes: usize) {
        self.memory.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn let_go(&self, bytes: usize) {
        self.memory.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn hold_table(&self, bytes: usize) {
        self.tables.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn let_go_table(&self, bytes: usize) {
        self.tables.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Before `bytes` are written for a transaction in assembly.
    pub(super) fn write(&self, bytes: u64) -> Result<(), SpillError> {
        if self.assembling().saturating_add(bytes) > self.settings.disk {
            return Err(SpillError::Full);
        }
        self.assembling.fetch_add(bytes, Ordering::Relaxed);
        self.disk.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes of a transaction in assembly are gone from the disk.
    pub(super) fn erased(&self, bytes: u64) {
        self.assembling.fetch_sub(bytes, Ordering::Relaxed);
        self.freed(bytes);
    }

    /// A transaction of that many bytes on disk is complete.
    pub(super) fn completed(&self, bytes: u64) {
        self.assembling.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes are gone from the disk.
    pub(super) fn freed(&self, bytes: u64) {
        self.disk.fetch_sub(bytes, Ordering::Relaxed);
        self.freed.notify_waiters();
    }

    /// Waits while the bound of the disk is near and complete transactions take part of it: they go when they have been
    /// delivered.
    pub(super) async fn wait_for_disk(&self) {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            let (disk, slack) = (self.disk.load(Ordering::Relaxed), self.settings.memory as u64);
            if disk.saturating_add(slack) <= self.settings.disk || disk <= self.assembling() {
                return;
            }
            freed.await;
        }
    }
}
