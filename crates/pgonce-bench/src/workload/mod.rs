//! The workloads, one file each.
//!
//! `w4u`, `w4d` and `verify` are names kept for what is still to come: one large transaction of updates or deletes is a
//! [`CatchUp`] of its own and one more line in [`Workload::catch_up`], and so is `w2`, whose backlog is there; a
//! comparison gets a function beside [`latency::run`].

pub mod catch_up;
pub mod copy;
pub mod decode;
pub mod idle;
pub mod latency;
pub mod receive;
mod w1;
mod w2;
mod w3;

use clap::ValueEnum;

pub use catch_up::CatchUp;
use copy::Begin;

/// What is measured.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// Catch-up: 200,000 transactions of one row
    W1,
    /// Catch-up: pgbench's TPC-B, 60,000 transactions of four connections
    W3,
    /// Commit to visible at 200 transactions a second
    Latency,
    /// Processor time of 20 idle seconds
    Idle,
    /// The copy of 5,000,000 rows and 20 small tables into an empty database
    Copy,
    /// The same into tables that are there, with their keys
    CopyKeys,
    /// The backlogs of w1, w2 and w3 into a null sink, beside an ideal reader
    Receive,
    /// Receive, of w1 alone
    ReceiveW1,
    /// Receive, of one transaction of 2,000,000 inserts
    ReceiveW2,
    /// Receive, of w3 alone
    ReceiveW3,
    /// What one core decodes of streams like those of w1, w2 and w3, without a server
    Decode,
    /// Decode, of w1 alone
    DecodeW1,
    /// Decode, of w2 alone
    DecodeW2,
    /// Decode, of w3 alone
    DecodeW3,
}

impl Workload {
    /// Its name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Workload::W1 => "w1",
            Workload::W3 => "w3",
            Workload::Latency => "latency",
            Workload::Idle => "idle",
            Workload::Copy => "copy",
            Workload::CopyKeys => "copy-keys",
            Workload::Receive => "receive",
            Workload::ReceiveW1 => "receive-w1",
            Workload::ReceiveW2 => "receive-w2",
            Workload::ReceiveW3 => "receive-w3",
            Workload::Decode => "decode",
            Workload::DecodeW1 => "decode-w1",
            Workload::DecodeW2 => "decode-w2",
            Workload::DecodeW3 => "decode-w3",
        }
    }

    /// What is measured one after the other under this name.
    pub fn parts(self) -> Vec<Workload> {
        match self {
            Workload::Receive => vec![Workload::ReceiveW1, Workload::ReceiveW2, Workload::ReceiveW3],
            Workload::Decode => vec![Workload::DecodeW1, Workload::DecodeW2, Workload::DecodeW3],
            one => vec![one],
        }
    }

    /// The backlog to catch up with, if that is what is measured.
    pub fn catch_up(self) -> Option<&'static dyn CatchUp> {
        match self {
            Workload::W1 => Some(&w1::W1),
            Workload::W3 => Some(&w3::W3),
            _ => None,
        }
    }

    /// The backlog that is read and thrown away, if that is what is measured.
    pub fn receive(self) -> Option<&'static dyn CatchUp> {
        match self {
            Workload::ReceiveW1 => Some(&w1::W1),
            Workload::ReceiveW2 => Some(&w2::W2),
            Workload::ReceiveW3 => Some(&w3::W3),
            _ => None,
        }
    }

    /// The stream that is decoded without a server, if that is what is measured.
    pub fn decode(self) -> Option<decode::Shape> {
        match self {
            Workload::DecodeW1 => Some(decode::Shape::Small),
            Workload::DecodeW2 => Some(decode::Shape::Large),
            Workload::DecodeW3 => Some(decode::Shape::Updates),
            _ => None,
        }
    }

    /// Whether the program `pgonce` takes part. Otherwise it is this program that reads the stream with pgonce's
    /// library.
    pub fn needs_program(self) -> bool {
        self.receive().is_none() && self.decode().is_none()
    }

    /// What the target has before the copy, if a copy is what is measured.
    pub fn copy(self) -> Option<Begin> {
        match self {
            Workload::Copy => Some(Begin::Empty),
            Workload::CopyKeys => Some(Begin::Keys),
            _ => None,
        }
    }

    /// The unit of its figures.
    pub fn unit(self) -> &'static str {
        match self {
            Workload::Latency => "ms",
            _ => "s",
        }
    }

    /// Whether it is measured with `synchronous_commit = on` too.
    pub fn has_synchronous(self) -> bool {
        self.catch_up().is_some()
    }
}
