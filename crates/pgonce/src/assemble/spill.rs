//! Where the changes of a transaction lie: in memory, or, over a bound, in a file.
//!
//! A body is a sequence of entries, each a length (`u32`, little-endian) and that many bytes of one pgoutput message.
//! A spill file has no name from the moment it is made, so that it goes with the process, however the process ends.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::transaction::Digest;

/// When and where a transaction in assembly goes to disk.
#[derive(Clone, Debug)]
pub struct SpillSettings {
    /// Bytes of one transaction that stay in memory.
    pub memory: usize,
    /// Directory of spill files. Must exist.
    pub directory: PathBuf,
}

impl Default for SpillSettings {
    /// 16 MiB, and the system's directory for temporary files.
    fn default() -> Self {
        SpillSettings { memory: 16 << 20, directory: std::env::temp_dir() }
    }
}

/// The encoded changes of a transaction. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Body {
    spilled: Option<Arc<Spilled>>,
    /// All entries, or those behind the spilled ones.
    tail: Bytes,
}

#[derive(Debug)]
struct Spilled {
    file: File,
    length: u64,
}

impl Body {
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
                at: 0,
            }),
            tail: &self.tail,
        }
    }
}

/// Collects the entries of one transaction after another. The memory of small transactions is cut from shared blocks.
#[derive(Debug)]
pub(crate) struct Collector {
    settings: SpillSettings,
    buffer: BytesMut,
    file: Option<Writing>,
}

struct Writing {
    file: File,
    length: u64,
    hash: Box<Xxh3>,
}

impl fmt::Debug for Writing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writing").field("length", &self.length).finish_non_exhaustive()
    }
}

const BLOCK: usize = 256 << 10;

impl Collector {
    pub(crate) fn new(settings: SpillSettings) -> Collector {
        Collector { settings, buffer: BytesMut::with_capacity(BLOCK), file: None }
    }

    pub(crate) fn push(&mut self, message: &[u8]) -> io::Result<()> {
        let needed = message.len() + 4;
        if self.buffer.capacity() - self.buffer.len() < needed {
            self.buffer.reserve(needed.max(BLOCK));
        }
        self.buffer.put_u32_le(u32::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidInput)?);
        self.buffer.put_slice(message);
        if self.buffer.len() > self.settings.memory { self.spill() } else { Ok(()) }
    }

    fn spill(&mut self) -> io::Result<()> {
        if self.file.is_none() {
            let file = tempfile::tempfile_in(&self.settings.directory)?;
            self.file = Some(Writing { file, length: 0, hash: Box::new(Xxh3::new()) });
        }
        let writing = self.file.as_mut().expect("made above");
        writing.file.write_all_at(&self.buffer, writing.length)?;
        writing.hash.update(&self.buffer);
        writing.length += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Ends the transaction and starts the next one.
    pub(crate) fn finish(&mut self) -> (Body, Digest) {
        let tail = self.buffer.split().freeze();
        match self.file.take() {
            None => {
                let digest = Digest(xxh3_128(&tail));
                (Body { spilled: None, tail }, digest)
            }
            Some(mut writing) => {
                writing.hash.update(&tail);
                let digest = Digest(writing.hash.digest128());
                let spilled = Spilled { file: writing.file, length: writing.length };
                (Body { spilled: Some(Arc::new(spilled)), tail }, digest)
            }
        }
    }
}

/// A pass over the entries of a [`Body`].
#[derive(Debug)]
pub(crate) struct Reader<'b> {
    spilled: Option<SpillReader<'b>>,
    tail: &'b [u8],
}

#[derive(Debug)]
struct SpillReader<'b> {
    file: &'b File,
    length: u64,
    /// How much of the file has been read into `block`.
    offset: u64,
    block: BytesMut,
    /// Start of the next entry in `block`.
    at: usize,
}

impl Reader<'_> {
    pub(crate) fn next_entry(&mut self) -> io::Result<Option<&[u8]>> {
        if let Some(spilled) = &mut self.spilled {
            if spilled.advance()? {
                let spilled = self.spilled.as_mut().expect("just matched");
                return Ok(Some(spilled.entry()));
            }
            self.spilled = None;
        }
        let Some((length, rest)) = self.tail.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let (entry, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
        self.tail = rest;
        Ok(Some(entry))
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
            self.block.copy_within(self.at.., 0);
            self.at = 0;
            let read = needed.max(BLOCK).min(keep + (self.length - self.offset) as usize);
            self.block.resize(read.max(keep), 0);
            self.file.read_exact_at(&mut self.block[keep..], self.offset)?;
            self.offset += (read - keep) as u64;
        }
    }

    fn entry(&mut self) -> &[u8] {
        let length = u32::from_le_bytes(self.block[self.at..self.at + 4].try_into().expect("four bytes")) as usize;
        let start = self.at + 4;
        self.at = start + length;
        &self.block[start..self.at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entries(body: &Body) -> Vec<Vec<u8>> {
        let mut reader = body.reader();
        let mut found = Vec::new();
        while let Some(entry) = reader.next_entry().unwrap() {
            found.push(entry.to_vec());
        }
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_was_collected_is_read_back_in_memory_and_spilled_alike(
            transactions in prop::collection::vec(prop::collection::vec(
                prop_oneof![Just(0usize), 0usize..50, 0usize..5_000, Just(300_000)], 0..40), 1..4),
            memory in prop_oneof![Just(0usize), Just(100), Just(10_000), Just(usize::MAX)],
        ) {
            let mut spilling = Collector::new(SpillSettings { memory, ..SpillSettings::default() });
            let mut plain = Collector::new(SpillSettings { memory: usize::MAX, ..SpillSettings::default() });
            for (t, lengths) in transactions.iter().enumerate() {
                let expected: Vec<Vec<u8>> =
                    lengths.iter().enumerate().map(|(i, n)| vec![(t * 31 + i) as u8; *n]).collect();
                for entry in &expected {
                    spilling.push(entry).unwrap();
                    plain.push(entry).unwrap();
                }
                let ((a, digest_a), (b, digest_b)) = (spilling.finish(), plain.finish());
                prop_assert_eq!(&entries(&a), &expected);
                prop_assert_eq!(&entries(&a), &entries(&b)); // a second pass
                prop_assert_eq!(digest_a, digest_b);
                prop_assert_eq!(a.size(), b.size());
            }
        }
    }
}
