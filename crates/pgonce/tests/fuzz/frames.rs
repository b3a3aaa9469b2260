//! The frame reader: nothing panics, memory follows what has arrived and not what is announced, and whatever the reads
//! bring, the messages are those of the stream.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, ReadBuf};

use super::measured;
use frame::{FrameError, FrameReader, MESSAGE_BYTES_MAX};

/// The product's own file: the reader is none of what the crate offers.
#[path = "../../src/connect/frame.rs"]
#[allow(dead_code, reason = "only what reads is under test")]
mod frame;

/// What a reader may take, however little arrives: one read, and as much again while the buffer grows. With and without
/// gulps.
const BASE: [usize; 2] = [256 << 10, 1 << 20];

/// Eight bytes say how the stream is cut into reads, and one how it is read; the others are the stream.
pub fn frames_input(cuts: [u8; 8], how: u8, stream: &[u8]) -> Vec<u8> {
    [&cuts[..], &[how], stream].concat()
}

pub fn frames(input: &[u8]) {
    let Some((cuts, rest)) = input.split_first_chunk::<8>() else { return };
    let Some((&how, stream)) = rest.split_first() else { return };
    let max = [MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX, 64, 1_000][usize::from(how & 3)];
    let (peeks, gulps) = (how & 4 != 0, how & 8 != 0);
    let mut arriving = Arriving { stream, cuts: *cuts, reads: 0 };
    let mut reader = FrameReader::new(max);
    if gulps {
        reader.read_in_gulps();
    }
    let base = BASE[usize::from(gulps)];
    let (mut expected, mut held) = (stream, 0_isize);
    loop {
        let (frame, peak, kept) = measured(|| next(&mut reader, &mut arriving, peeks));
        assert!(
            held.saturating_add_unsigned(peak) <= (base + 4 * stream.len()) as isize,
            "{peak} bytes more than {held} for a stream of {}",
            stream.len()
        );
        held += kept;
        match (frame, model(&mut expected, max)) {
            (Ok((tag, body)), Expected::Frame(expected_tag, expected_body)) => {
                assert_eq!((tag, &*body), (expected_tag, expected_body));
                let ((), _, dropped) = measured(|| drop(body));
                held += dropped;
            }
            (Err(FrameError::Io(_)), Expected::End) => return,
            (Err(FrameError::TooShort { length, .. }), Expected::Refused(announced)) if length < 4 => {
                return assert_eq!(length, announced);
            }
            (Err(FrameError::TooLong { length, .. }), Expected::Refused(announced)) if length > max => {
                return assert_eq!(length, announced);
            }
            (found, expected) => panic!("{:?} instead of {expected:?}", found.map(|(tag, body)| (tag, body.len()))),
        }
    }
}

fn next(reader: &mut FrameReader, arriving: &mut Arriving<'_>, peeks: bool) -> Result<(u8, Vec<u8>), FrameError> {
    loop {
        if !peeks {
            return ready(reader.next(arriving)).map(|frame| (frame.tag, frame.body.to_vec()));
        }
        if let Some((tag, body)) = reader.peek()? {
            let frame = (tag, body.to_vec());
            reader.consume();
            return Ok(frame);
        }
        ready(reader.fill(arriving))?;
    }
}

/// What is always ready needs no runtime.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a read that is ready was waited for"),
    }
}

/// A stream that arrives in pieces, and then ends.
struct Arriving<'s> {
    stream: &'s [u8],
    cuts: [u8; 8],
    reads: usize,
}

impl AsyncRead for Arriving<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let cut = self.cuts[self.reads % self.cuts.len()];
        self.reads += 1;
        // From a byte to sixteen thousand.
        let size = (1 + usize::from(cut & 15)) << (cut >> 4).min(10);
        let (now, later) = self.stream.split_at(size.min(self.stream.len()).min(buffer.remaining()));
        buffer.put_slice(now);
        self.stream = later;
        Poll::Ready(Ok(()))
    }
}

#[derive(Debug)]
enum Expected<'s> {
    Frame(u8, &'s [u8]),
    /// A length that no message has.
    Refused(usize),
    End,
}

fn model<'s>(stream: &mut &'s [u8], max: usize) -> Expected<'s> {
    let Some(([tag, length @ ..], rest)) = stream.split_first_chunk::<5>() else { return Expected::End };
    let length = u32::from_be_bytes(*length) as usize;
    if length < 4 || length > max {
        return Expected::Refused(length);
    }
    let Some((body, rest)) = rest.split_at_checked(length - 4) else { return Expected::End };
    *stream = rest;
    Expected::Frame(*tag, body)
}
