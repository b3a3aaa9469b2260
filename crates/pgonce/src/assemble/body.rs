//! Where the changes of a complete transaction lie: in memory, or partly in a file.
//!
//! A body is a sequence of entries, each a length (`u32`, little-endian) and that many bytes of one pgoutput message.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::budget::Meter;
use super::spool::BLOCK;

/// The encoded changes of a transaction. Cheap to clone.
///
/// `Debug` shows how many bytes they are, never the bytes.
#[derive(Clone)]
pub struct Body {
    spilled: Option<Arc<Spilled>>,
    /// All entries, or those behind the spilled ones.
    tail: Bytes,
}

#[derive(Debug)]
pub(super) struct Spilled {
    file: File,
    length: u64,
    meter: Arc<Meter>,
}

impl Spilled {
    pub(super) fn new(file: File, length: u64, meter: Arc<Meter>) -> Spilled {
        Spilled { file, length, meter }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for Spilled {
    fn drop(&mut self) {
        self.meter.freed(self.length);
    }
}

impl Body {
    /// Of a transaction without changes.
    pub(crate) fn empty() -> Body {
        Body::in_memory_only(Bytes::new())
    }

    pub(super) fn in_memory_only(tail: Bytes) -> Body {
        Body { spilled: None, tail }
    }

    pub(super) fn spilled(spilled: Spilled, tail: Bytes) -> Body {
        Body { spilled: Some(Arc::new(spilled)), tail }
    }

    /// Bytes of all entries with their lengths.
    pub fn size(&self) -> u64 {
        self.spilled.as_ref().map_or(0, |s| s.length) + self.tail.len() as u64
    }

    /// Bytes that lie in memory.
    pub fn in_memory(&self) -> usize {
        self.tail.len()
    }

    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader {
            spilled: self.spilled.as_deref().map(|s| SpillReader {
                file: &s.file,
                length: s.length,
                offset: 0,
                block: BytesMut::new(),
                start: 0,
                at: 0,
            }),
            tail: &self.tail,
            entry: &[],
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("size", &self.size()).field("in_memory", &self.in_memory()).finish()
    }
}

/// A pass over the entries of a [`Body`].
pub(crate) struct Reader<'b> {
    spilled: Option<SpillReader<'b>>,
    tail: &'b [u8],
    /// The entry that lies in memory.
    entry: &'b [u8],
}

struct SpillReader<'b> {
    file: &'b File,
    length: u64,
    /// How much of the file has been read into `block`.
    offset: u64,
    block: BytesMut,
    /// Start of the entry in `block`.
    start: usize,
    /// Start of the next one.
    at: usize,
}

impl fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("left_in_memory", &self.tail.len()).finish_non_exhaustive()
    }
}

impl Reader<'_> {
    /// Goes to the next entry. False behind the last one.
    pub(crate) fn advance(&mut self) -> io::Result<bool> {
        if let Some(spilled) = &mut self.spilled {
            if spilled.advance()? {
                spilled.pass();
                return Ok(true);
            }
            self.spilled = None;
        }
        let Some((length, rest)) = self.tail.split_first_chunk::<4>() else {
            return Ok(false);
        };
        (self.entry, self.tail) = rest.split_at(u32::from_le_bytes(*length) as usize);
        Ok(true)
    }

    /// The entry that it stands at.
    pub(crate) fn entry(&self) -> &[u8] {
        self.spilled.as_ref().map_or(self.entry, |spilled| &spilled.block[spilled.start..spilled.at])
    }
}

impl SpillReader<'_> {
    /// Brings a whole entry into the block. False behind the last one.
    fn advance(&mut self) -> io::Result<bool> {
        loop {
            let have = &self.block[self.at..];
            let needed = match have.first_chunk::<4>() {
                Some(length) => 4 + u32::from_le_bytes(*length) as usize,
                None => 4,
            };
            if have.len() >= needed && needed > 4 || have.len() >= 4 && needed == 4 {
                return Ok(true);
            }
            if self.offset == self.length {
                return if have.is_empty() { Ok(false) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
            let keep = have.len();
            if self.block.capacity() > 4 * BLOCK && needed <= BLOCK {
                // A large row is behind; its memory is not kept.
                self.block = BytesMut::from(have);
            } else {
                self.block.copy_within(self.at.., 0);
            }
            self.at = 0;
            let read = needed.max(BLOCK).min(keep + (self.length - self.offset) as usize);
            self.block.resize(read.max(keep), 0);
            self.file.read_exact_at(&mut self.block[keep..], self.offset)?;
            self.offset += (read - keep) as u64;
        }
    }

    fn pass(&mut self) {
        let length = u32::from_le_bytes(self.block[self.at..self.at + 4].try_into().expect("four bytes")) as usize;
        self.start = self.at + 4;
        self.at = self.start + length;
    }
}
