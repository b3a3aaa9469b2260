//! Takes in the entries of one transaction: in memory, and, over the bound of all together, in a file.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::body::{Body, Spilled};
use super::budget::{Meter, SpillError};
use super::file::unnamed;
use crate::transaction::Digest;

/// How much is written or read at a time.
pub(super) const BLOCK: usize = 256 << 10;

/// The entries of a transaction that has not ended. They can be taken back from the end, as far as one likes.
pub(super) struct Spool {
    meter: Arc<Meter>,
    /// All entries, or those behind the ones in the file.
    buffer: BytesMut,
    file: Option<Written>,
}

#[derive(Debug)]
struct Written {
    file: File,
    length: u64,
    digesting: Digesting,
}

impl fmt::Debug for Spool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spool").field("length", &self.length()).field("in_memory", &self.in_memory()).finish()
    }
}

impl Spool {
    /// Begins a transaction. `buffer` is empty; what it has room for is used first.
    pub(super) fn new(meter: Arc<Meter>, buffer: BytesMut) -> Spool {
        Spool { meter, buffer, file: None }
    }

    /// Bytes of all entries with their lengths.
    pub(super) fn length(&self) -> u64 {
        self.file.as_ref().map_or(0, |f| f.length) + self.buffer.len() as u64
    }

    /// Bytes in memory.
    pub(super) fn in_memory(&self) -> usize {
        self.buffer.len()
    }

    /// Takes in an entry: the first byte of a message, and the rest of it.
    pub(super) fn push(&mut self, kind: u8, rest: &[u8]) -> Result<(), SpillError> {
        let length = u32::try_from(1 + rest.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let needed = rest.len() + 5;
        if needed > BLOCK && self.meter.is_over(needed) {
            // Not through the buffer: a row can be larger than all that may be in memory.
            self.flush()?;
            let mut head = [0; 5];
            head[..4].copy_from_slice(&length.to_le_bytes());
            head[4] = kind;
            return self.write(&[&head, rest]);
        }
        if self.buffer.capacity() - self.buffer.len() < needed {
            self.buffer.reserve(needed.max(BLOCK / 8));
        }
        self.buffer.put_u32_le(length);
        self.buffer.put_u8(kind);
        self.buffer.put_slice(rest);
        self.meter.hold(needed);
        // Once it has a file it takes no more than a block of memory.
        if self.file.is_some() && self.buffer.len() >= BLOCK { self.flush() } else { Ok(()) }
    }

    /// Everything that is in memory goes to the file.
    pub(super) fn flush(&mut self) -> Result<(), SpillError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let buffer = std::mem::take(&mut self.buffer);
        if let Err(error) = self.write(&[&buffer]) {
            self.buffer = buffer;
            return Err(error);
        }
        self.meter.let_go(buffer.len());
        if buffer.capacity() <= 2 * BLOCK {
            self.buffer = buffer;
            self.buffer.clear();
        }
        Ok(())
    }

    fn write(&mut self, parts: &[&[u8]]) -> Result<(), SpillError> {
        self.meter.write(parts.iter().map(|part| part.len() as u64).sum())?;
        let written = match &mut self.file {
            Some(written) => written,
            none => {
                let file = unnamed(&self.meter.settings().directory)?;
                none.insert(Written { file, length: 0, digesting: Digesting::default() })
            }
        };
        for part in parts {
            written.file.write_all_at(part, written.length)?;
            written.digesting.written(&written.file, written.length, part)?;
            written.length += part.len() as u64;
        }
        Ok(())
    }

    /// Takes back everything from `length` on, where an entry ends.
    pub(super) fn truncate(&mut self, length: u64) -> io::Result<()> {
        let before = self.file.as_ref().map_or(0, |f| f.length);
        let keep = usize::try_from(length.saturating_sub(before)).unwrap_or(usize::MAX).min(self.buffer.len());
        self.meter.let_go(self.buffer.len() - keep);
        self.buffer.truncate(keep);
        if let Some(written) = &mut self.file
            && length < written.length
        {
            written.file.set_len(length)?;
            self.meter.erased(written.length - length);
            written.length = length;
            written.digesting.rewind(length);
        }
        Ok(())
    }

    /// What of the buffer has not been used is given back: the transaction will not end soon.
    pub(super) fn detach(&mut self) -> BytesMut {
        let rest = self.buffer.split_off(self.buffer.len());
        // A little does not keep a large block.
        if self.buffer.len() < BLOCK / 2 {
            self.buffer = BytesMut::from(&self.buffer[..]);
        }
        rest
    }

    /// Ends the transaction. Gives back what of the buffer has not been used, too.
    pub(super) fn finish(mut self) -> io::Result<(Body, Digest, BytesMut)> {
        let tail = self.buffer.split().freeze();
        self.meter.let_go(tail.len());
        let rest = std::mem::take(&mut self.buffer);
        let Some(mut written) = self.file.take() else {
            let digest = Digest(xxh3_128(&tail));
            return Ok((Body::in_memory_only(tail), digest, rest));
        };
        // From here on the file counts as that of a complete transaction, whether it can be read or not.
        self.meter.completed(written.length);
        let spilled = Spilled::new(written.file, written.length, Arc::clone(&self.meter));
        let digest = written.digesting.finish(spilled.file(), written.length, &tail)?;
        Ok((Body::spilled(spilled, tail), digest, rest))
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.meter.let_go(self.buffer.len());
        if let Some(written) = &self.file {
            self.meter.erased(written.length);
        }
    }
}

/// The digest of a file that grows at its end, and is cut there now and then.
///
/// It follows what is written as it is written. After a cut it goes on from a mark before it, and reads what lies in
/// between, a little at a time, so that nothing is held up for long.
#[derive(Default)]
struct Digesting {
    state: Box<Xxh3>,
    /// How far it has come.
    at: u64,
    /// States that it can go back to, from the first to the last.
    marks: Vec<(u64, Box<Xxh3>)>,
}

/// About how far marks are apart.
const MARK_EVERY: u64 = if cfg!(test) { 1 << 20 } else { 32 << 20 };

/// How much of what it lacks is read with every write.
const CATCH_UP: u64 = 4 * BLOCK as u64;

impl Digesting {
    /// `bytes` have been written to the end of the file, at `length`.
    fn written(&mut self, file: &File, length: u64, bytes: &[u8]) -> io::Result<()> {
        self.catch_up(file, length, CATCH_UP)?;
        if self.at == length {
            self.take(bytes);
        }
        Ok(())
    }

    /// The file has been cut to `length`.
    fn rewind(&mut self, length: u64) {
        if self.at <= length {
            return;
        }
        while self.marks.last().is_some_and(|(at, _)| *at > length) {
            self.marks.pop();
        }
        (self.at, self.state) = self.marks.last().cloned().unwrap_or_default();
    }

    fn finish(&mut self, file: &File, length: u64, tail: &[u8]) -> io::Result<Digest> {
        self.catch_up(file, length, u64::MAX)?;
        self.state.update(tail);
        Ok(Digest(self.state.digest128()))
    }

    fn catch_up(&mut self, file: &File, length: u64, most: u64) -> io::Result<()> {
        let until = length.min(self.at.saturating_add(most));
        let mut block = Vec::new();
        while self.at < until {
            block.resize(usize::try_from(until - self.at).unwrap_or(BLOCK).min(BLOCK), 0);
            file.read_exact_at(&mut block, self.at)?;
            self.take(&block);
        }
        Ok(())
    }

    fn take(&mut self, bytes: &[u8]) {
        self.state.update(bytes);
        self.at += bytes.len() as u64;
        if self.at >= self.marks.last().map_or(0, |(at, _)| *at) + MARK_EVERY {
            self.marks.push((self.at, self.state.clone()));
        }
    }
}

impl fmt::Debug for Digesting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Digesting").field("at", &self.at).finish_non_exhaustive()
    }
}
