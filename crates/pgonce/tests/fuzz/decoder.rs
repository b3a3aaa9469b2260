//! The decoder: nothing panics, nothing is allocated, a message that is taken is exactly the bytes that it came from,
//! and another decoder sees the same in it.

use std::fmt::Write as _;

use pgonce::pgoutput::encode::encoded;
use pgonce::pgoutput::{Decoder, Message, decode_message};

use super::measured;

#[path = "../recorded/oracle.rs"]
mod oracle;

/// The first byte says the protocol version and whether a stream block is open; the others are one message.
pub fn decoder_input(protocol: u8, in_stream: bool, message: &[u8]) -> Vec<u8> {
    [&[(protocol - 1) | u8::from(in_stream) << 2], message].concat()
}

pub fn decoder(input: &[u8]) {
    let Some((&head, bytes)) = input.split_first() else { return };
    let (protocol, in_stream) = ((head & 3) + 1, head & 4 != 0 && head & 3 != 0);
    let mut decoder = Decoder::new(protocol);
    if in_stream {
        decoder.decode(b"S\0\0\0\x01\x01").expect("a StreamStart");
    }
    let (result, peak, _) = measured(|| decoder.decode(bytes));
    assert_eq!(peak, 0, "the decoder allocated");
    match result {
        Err(error) => {
            assert_eq!(decoder.in_stream(), in_stream, "a message that is refused changes nothing");
            let mut text = String::new();
            write!(text, "{error}").expect("a string takes everything");
            assert!((1..400).contains(&text.len()), "{text}");
        }
        Ok(message) => {
            match message {
                Message::StreamStart { .. } => assert!(decoder.in_stream()),
                Message::StreamStop => assert!(!decoder.in_stream()),
                _ => assert_eq!(decoder.in_stream(), in_stream),
            }
            assert_eq!(encoded(&message), bytes, "the message is not what it came from");
            assert_eq!(decode_message(bytes, in_stream), Ok(message), "with and without a state");
            shortened_and_lengthened(protocol, in_stream, bytes, &message);
            compared(protocol, in_stream, bytes, &message);
            // Values stay out of `Debug`, so it is no longer than what is named.
            let _ = format!("{message:?}").len();
        }
    }
}

/// A message with a byte more or less is none. Only a StreamAbort may end at two places.
fn shortened_and_lengthened(protocol: u8, in_stream: bool, bytes: &[u8], message: &Message<'_>) {
    let fresh = || {
        let mut decoder = Decoder::new(protocol);
        if in_stream {
            decoder.decode(b"S\0\0\0\x01\x01").expect("a StreamStart");
        }
        decoder
    };
    assert!(fresh().decode(&bytes[..bytes.len() - 1]).is_err());
    if !matches!(message, Message::StreamAbort { .. }) {
        assert!(fresh().decode(&[bytes, &[0]].concat()).is_err());
    }
}

fn compared(protocol: u8, in_stream: bool, bytes: &[u8], message: &Message<'_>) {
    let mut other = pg_walstream::LogicalReplicationParser::with_protocol_version(protocol.into());
    if in_stream {
        // It names the transaction of the block where the message names a subtransaction, so both are made the same.
        let xid = message.stream_xid().unwrap_or(1).to_be_bytes();
        let start = [b"S", &xid[..], &[1]].concat();
        other.parse_wal_message(&start).expect("a StreamStart");
    }
    let theirs = other.parse_wal_message(bytes).expect("what we take, the other decoder takes");
    assert_eq!(oracle::ours(message), oracle::theirs(&theirs));
}
