//! Recorded streams: what a walsender sent, kept in files.
//!
//! `crates/pgonce/tests/recorded/<major>-<protocol>[-<option>...].bin`, where the options are `binary`, `streaming`
//! (`streaming 'on'`), `parallel` (`streaming 'parallel'`) and `two_phase`. All files of one major hold the same
//! transactions of the same server, received at the same time, so that they differ in nothing but the options.
//!
//! A file starts with the line `pgonce recording 1`. What follows are the XLogData messages, in the order in which they
//! came, each as three fields, the integers big-endian: the start of the WAL data (`u64`), the length of the payload
//! (`u32`), and the payload, which is one pgoutput message. The end of the WAL is always the start in a logical stream,
//! and is left out, as are keepalives.
#![allow(dead_code, reason = "each program uses its own part")]

use std::path::{Path, PathBuf};

const HEAD: &[u8] = b"pgonce recording 1\n";

/// How one file of a major was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    pub protocol: u8,
    pub binary: bool,
    /// The value of the option `streaming`, if it was given.
    pub streaming: Option<&'static str>,
    pub two_phase: bool,
}

impl Variant {
    /// Everything that this major can send.
    pub fn all(major: u32) -> Vec<Variant> {
        let plain = |protocol| Variant { protocol, binary: false, streaming: None, two_phase: false };
        let mut all =
            vec![plain(1), Variant { binary: true, ..plain(1) }, Variant { streaming: Some("on"), ..plain(2) }];
        if major >= 15 {
            all.push(Variant { two_phase: true, ..plain(3) });
            all.push(Variant { streaming: Some("on"), two_phase: true, ..plain(3) });
        }
        if major >= 16 {
            all.push(Variant { streaming: Some("parallel"), ..plain(4) });
            all.push(Variant { streaming: Some("parallel"), binary: true, two_phase: true, ..plain(4) });
        }
        all
    }

    /// The file's name, without the major and the extension.
    pub fn name(&self) -> String {
        let mut name = self.protocol.to_string();
        for (given, option) in [
            (self.binary, "binary"),
            (self.streaming == Some("on"), "streaming"),
            (self.streaming == Some("parallel"), "parallel"),
            (self.two_phase, "two_phase"),
        ] {
            if given {
                name.push('-');
                name.push_str(option);
            }
        }
        name
    }

    /// The options of `START_REPLICATION`.
    pub fn options(&self) -> String {
        let mut options = format!("proto_version '{}', messages 'true'", self.protocol);
        if self.binary {
            options.push_str(", binary 'true'");
        }
        if let Some(streaming) = self.streaming {
            options.push_str(&format!(", streaming '{streaming}'"));
        }
        if self.two_phase {
            options.push_str(", two_phase 'on'");
        }
        options
    }
}

/// One XLogData message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The position: start and end of its WAL data.
    pub lsn: u64,
    /// The pgoutput message.
    pub payload: Vec<u8>,
}

/// One file.
#[derive(Clone, Debug)]
pub struct Recording {
    pub major: u32,
    pub variant: Variant,
    pub messages: Vec<Received>,
}

/// The majors of which there are recordings.
pub const MAJORS: [u32; 5] = [14, 15, 16, 17, 18];

impl Recording {
    pub fn name(&self) -> String {
        format!("{}-{}", self.major, self.variant.name())
    }

    fn file(major: u32, variant: &Variant) -> PathBuf {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        // The fuzz targets are a package of their own, beside the folder of crates.
        let folder = if folder.ends_with("fuzz") { folder.join("../crates/pgonce") } else { folder.to_owned() };
        folder.join(format!("tests/recorded/{major}-{}.bin", variant.name()))
    }

    /// Every recording there has to be.
    pub fn all() -> Vec<Recording> {
        let variants = MAJORS.iter().flat_map(|&major| Variant::all(major).into_iter().map(move |v| (major, v)));
        variants.map(|(major, variant)| Recording::read(major, variant)).collect()
    }

    fn read(major: u32, variant: Variant) -> Recording {
        let file = Recording::file(major, &variant);
        let bytes = std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mut rest = bytes.strip_prefix(HEAD).unwrap_or_else(|| panic!("{} is no recording", file.display()));
        let mut messages = Vec::new();
        while !rest.is_empty() {
            let (lsn, behind) = rest.split_first_chunk::<8>().expect("a position");
            let (length, behind) = behind.split_first_chunk::<4>().expect("a length");
            let (payload, behind) = behind.split_at(u32::from_be_bytes(*length) as usize);
            rest = behind;
            messages.push(Received { lsn: u64::from_be_bytes(*lsn), payload: payload.to_vec() });
        }
        Recording { major, variant, messages }
    }

    pub fn write(&self) {
        let mut bytes = HEAD.to_vec();
        for message in &self.messages {
            bytes.extend(message.lsn.to_be_bytes());
            bytes.extend(u32::try_from(message.payload.len()).unwrap().to_be_bytes());
            bytes.extend(&message.payload);
        }
        std::fs::write(Recording::file(self.major, &self.variant), bytes).unwrap();
    }
}
