//! What a fuzzer calls: each target takes any bytes, and panics if a promise is broken.
//!
//! Memory is counted by the allocator, so a program that includes this file makes `PeakAlloc` its global one.
#![allow(dead_code, unused_imports, reason = "each program uses its own part")]

#[path = "assembler.rs"]
mod assembler;
#[path = "decoder.rs"]
mod decoder;
#[path = "frames.rs"]
mod frames;

pub use assembler::{assembler, assembler_input};
pub use decoder::{decoder, decoder_input};
pub use frames::{frames, frames_input};

use peak_alloc::PeakAlloc;

/// Runs `work` and returns what it gave, how much memory it took at its peak, and how much it kept, in bytes.
///
/// Nothing else of the process may allocate meanwhile.
fn measured<T>(work: impl FnOnce() -> T) -> (T, usize, isize) {
    let before = PeakAlloc.current_usage();
    PeakAlloc.reset_peak_usage();
    let value = work();
    let peak = PeakAlloc.peak_usage().saturating_sub(before);
    let kept = PeakAlloc.current_usage() as isize - before as isize;
    (value, peak, kept)
}
