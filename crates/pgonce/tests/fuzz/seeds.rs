//! Inputs for the targets: from the recordings, by hand, and by small damage to other inputs.

use pgonce::pgoutput::{Decoder, MessageKind};
use pgonce_testkit::Random;

use super::recording::Recording;
use super::targets::{assembler_input, decoder_input, frames_input};

/// Of each kind of message of each recording, at most so many.
const OF_EACH_KIND: usize = 3;

/// How many messages are one input of the assembler, and how many of them the next one repeats.
const WINDOW: usize = 48;
const OVERLAP: usize = 16;

pub fn decoder() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for recording in Recording::all() {
        let mut decoder = Decoder::new(recording.variant.protocol);
        let mut counts = [0; 256];
        for received in &recording.messages {
            let in_stream = decoder.in_stream();
            let kind = decoder.decode(&received.payload).unwrap().kind();
            let count = &mut counts[usize::from(kind.byte())];
            *count += 1;
            if *count <= OF_EACH_KIND || kind == MessageKind::Update {
                inputs.push(decoder_input(recording.variant.protocol, in_stream, &received.payload));
            }
        }
    }
    distinct(inputs)
}

pub fn assembler() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for (number, recording) in Recording::all().iter().enumerate() {
        let payloads: Vec<&[u8]> = recording.messages.iter().map(|received| &*received.payload).collect();
        // The relations come first, so that a part of the stream can be read.
        let relations: Vec<&[u8]> =
            payloads.iter().copied().filter(|payload| payload[0] == b'R' && payload.len() < 200).take(12).collect();
        for start in (0..payloads.len()).step_by(WINDOW - OVERLAP) {
            let window = payloads[start..].iter().take(WINDOW).filter(|payload| payload.len() < 1_000);
            let messages = relations.iter().chain(window).copied();
            inputs.push(assembler_input(start % 5 == 0, messages));
        }
        if number % 4 == 0 {
            inputs.push(assembler_input(number % 8 == 0, payloads));
        }
    }
    distinct(inputs)
}

pub fn frames() -> Vec<Vec<u8>> {
    let frame = |tag: u8, body: &[u8]| {
        let length = u32::try_from(body.len() + 4).unwrap();
        [&[tag], &length.to_be_bytes()[..], body].concat()
    };
    let mut inputs = vec![
        frames_input([0; 8], 0, b""),
        frames_input([0; 8], 4, b"d\xff\xff\xff\xff"),
        frames_input([1; 8], 0, b"d\x7f\xff\xff\xffabc"),
        frames_input([255; 8], 0, b"d\x40\0\0\0abc"),
        frames_input([255; 8], 2, b"d\0\0\0\x03"),
        frames_input([3; 8], 4, b"Z\0\0\0\x05I1\0\0\0\x04D\0\0\0\x07abc"),
    ];
    for (number, recording) in Recording::all().iter().enumerate() {
        for (part, messages) in recording.messages.chunks(20).enumerate() {
            let mut stream = Vec::new();
            for received in messages {
                let head = [&[b'w'][..], &received.lsn.to_be_bytes(), &received.lsn.to_be_bytes(), &[0; 8]].concat();
                stream.extend(frame(b'd', &[head, received.payload.clone()].concat()));
            }
            stream.extend(frame(b'd', &[&[b'k'][..], &[0; 17]].concat()));
            let cuts = std::array::from_fn(|at| (number * 37 + part * 11 + at * 29) as u8);
            inputs.push(frames_input(cuts, (number + part) as u8, &stream));
        }
    }
    distinct(inputs)
}

fn distinct(mut inputs: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    inputs.sort();
    inputs.dedup();
    inputs
}

/// Bytes that sit at the borders of lengths, counts and flags.
const BORDERS: &[u8] = &[0, 1, 2, 3, 4, 5, 7, 8, 9, 0x20, 0x7f, 0x80, 0xfe, 0xff];

/// The bytes that start a message, a row, or a value.
const LETTERS: &[u8] = b"BCORYIUDTMSEcAbPKrpNKOntub";

/// An input with small damage, and now and then parts of another one.
pub fn damaged(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = random.pick(seeds).clone();
    for _ in 0..random.between(1, 6) {
        let at = random.place(input.len());
        let length = random.between(1, 24) as usize;
        match random.below(9) {
            0 => input[at] ^= 1 << random.below(8),
            1 => input[at] = *random.pick(BORDERS),
            2 => input[at] = *random.pick(LETTERS),
            3 => input[at] = random.next() as u8,
            4 => drop(input.drain(at..(at + length).min(input.len()))),
            5 => {
                let copied = input[at..(at + length).min(input.len())].to_vec();
                let to = random.place(input.len());
                input.splice(to..to, copied);
            }
            6 => input.truncate(at),
            7 => {
                let other = random.pick(seeds);
                let from = random.place(other.len());
                let part = other[from..].iter().take(length * 8).copied();
                input.splice(at..at, part);
            }
            _ => {
                let end = (at + 4).min(input.len());
                let number = *random.pick(&[0_u32, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX, 0x4000_0000, 0xffff]);
                input[at..end].copy_from_slice(&number.to_be_bytes()[..end - at]);
            }
        }
        if input.is_empty() {
            input.push(random.next() as u8);
        }
    }
    input
}
