//! Messages of the server, cut out of the byte stream.

use std::fmt;
use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// How long a message may be unless said otherwise: a little above 1 GiB, PostgreSQL's own bound on a field and a row.
pub(crate) const MESSAGE_BYTES_MAX: usize = (1 << 30) + (16 << 20);

/// How much is read at a time, at least.
const READ_BYTES: usize = 64 << 10;

/// The same where much is to come.
const GULP_BYTES: usize = 256 << 10;

/// The type byte and the length word.
const HEADER_BYTES: usize = 5;

/// One message of the server.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The type byte.
    pub tag: u8,
    /// What follows the length word.
    pub body: Bytes,
}

/// Why the byte stream is not a sequence of messages.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    /// The socket failed, or ended within a message or before one (`UnexpectedEof`).
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The length word counts itself, so it is at least 4.
    #[error("a message of type {tag:#04x} announces {length} bytes, fewer than its own length word")]
    TooShort {
        /// The type byte.
        tag: u8,
        /// What the length word says.
        length: usize,
    },
    /// The message is longer than the bound.
    #[error("a message of type {tag:#04x} announces {length} bytes, more than the bound of {max}")]
    TooLong {
        /// The type byte.
        tag: u8,
        /// What the length word says.
        length: usize,
        /// The bound.
        max: usize,
    },
}

/// Reads messages. What was read beyond the last message waits in the buffer.
///
/// The buffer grows with what arrives, never by what a length word announces. All methods are cancel safe.
pub(crate) struct FrameReader {
    buffer: BytesMut,
    message_bytes_max: usize,
    read_bytes: usize,
}

/// Shows how much waits, never what.
impl fmt::Debug for FrameReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameReader").field("buffered", &self.buffer.len()).finish_non_exhaustive()
    }
}

impl FrameReader {
    /// A reader that refuses messages longer than `message_bytes_max`, length word included.
    pub(crate) fn new(message_bytes_max: usize) -> FrameReader {
        FrameReader { buffer: BytesMut::new(), message_bytes_max, read_bytes: READ_BYTES }
    }

    /// From now on read more at a time.
    pub(crate) fn read_in_gulps(&mut self) {
        self.read_bytes = GULP_BYTES;
    }

    /// What was read beyond the last message.
    pub(crate) fn into_rest(self) -> BytesMut {
        self.buffer
    }

    /// The next message, if all of it is in the buffer.
    pub(crate) fn buffered(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some((tag, length)) = self.header()? else { return Ok(None) };
        if self.buffer.len() < 1 + length {
            return Ok(None);
        }
        self.buffer.advance(HEADER_BYTES);
        let body = self.buffer.split_to(length - 4).freeze();
        Ok(Some(Frame { tag, body }))
    }

    /// The next message, if all of it is in the buffer, without taking it out: see [`consume`](Self::consume).
    pub(crate) fn peek(&self) -> Result<Option<(u8, &[u8])>, FrameError> {
        let Some((tag, length)) = self.header()? else { return Ok(None) };
        Ok(self.buffer.get(HEADER_BYTES..1 + length).map(|body| (tag, body)))
    }

    /// Takes the message out that [`peek`](Self::peek) has shown.
    pub(crate) fn consume(&mut self) {
        if let Ok(Some((_, length))) = self.header() {
            self.buffer.advance((1 + length).min(self.buffer.len()));
        }
    }

    /// The next message, read from `stream` as far as needed.
    pub(crate) async fn next<S: AsyncRead + Unpin>(&mut self, stream: &mut S) -> Result<Frame, FrameError> {
        loop {
            if let Some(frame) = self.buffered()? {
                return Ok(frame);
            }
            self.fill(stream).await?;
        }
    }

    /// One read from `stream` into the buffer. The end of the stream is an error: no message ends a connection.
    pub(crate) async fn fill<S: AsyncRead + Unpin>(&mut self, stream: &mut S) -> Result<usize, FrameError> {
        self.buffer.reserve(self.read_bytes);
        match stream.read_buf(&mut self.buffer).await? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection").into()),
            count => Ok(count),
        }
    }

    fn header(&self) -> Result<Option<(u8, usize)>, FrameError> {
        let Some((header, _)) = self.buffer.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let [tag, word @ ..] = *header;
        let length = u32::from_be_bytes(word) as usize;
        if length < 4 {
            return Err(FrameError::TooShort { tag, length });
        }
        if length > self.message_bytes_max {
            return Err(FrameError::TooLong { tag, length, max: self.message_bytes_max });
        }
        Ok(Some((tag, length)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_are_cut_whatever_the_reads_bring() {
        let bytes = b"Z\0\0\0\x05I1\0\0\0\x04D\0\0\0\x07abc";
        for size in 1..=bytes.len() {
            let mut stream = tokio_test_stream(bytes, size);
            let mut reader = FrameReader::new(MESSAGE_BYTES_MAX);
            let mut seen = Vec::new();
            for _ in 0..3 {
                let frame = reader.next(&mut stream).await.unwrap();
                seen.push((frame.tag, frame.body.to_vec()));
            }
            assert_eq!(seen, [(b'Z', b"I".to_vec()), (b'1', Vec::new()), (b'D', b"abc".to_vec())]);
            assert!(matches!(reader.next(&mut stream).await, Err(FrameError::Io(_))));
        }
    }

    #[tokio::test]
    async fn lengths_out_of_bounds_are_refused_and_nothing_is_allocated_for_a_promise() {
        let mut short = &b"D\0\0\0\x03"[..];
        assert!(matches!(FrameReader::new(100).next(&mut short).await, Err(FrameError::TooShort { length: 3, .. })));
        let mut long = &b"D\0\0\0\x65"[..];
        assert!(matches!(FrameReader::new(100).next(&mut long).await, Err(FrameError::TooLong { length: 101, .. })));
        let mut promise = &b"D\x40\0\0\0abc"[..];
        let mut reader = FrameReader::new(MESSAGE_BYTES_MAX);
        assert!(matches!(reader.next(&mut promise).await, Err(FrameError::Io(_))));
        assert!(reader.buffer.capacity() < 4 * READ_BYTES);
    }

    /// A stream that yields `bytes` at most `size` at a time.
    fn tokio_test_stream(bytes: &'static [u8], size: usize) -> impl AsyncRead + Unpin {
        struct Slow(&'static [u8], usize);
        impl AsyncRead for Slow {
            fn poll_read(
                mut self: std::pin::Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
                buffer: &mut tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<io::Result<()>> {
                let (now, later) = self.0.split_at(self.1.min(self.0.len()));
                buffer.put_slice(now);
                self.0 = later;
                std::task::Poll::Ready(Ok(()))
            }
        }
        Slow(bytes, size)
    }
}
