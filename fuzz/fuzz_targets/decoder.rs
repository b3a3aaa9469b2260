#![no_main]

#[path = "../../crates/pgonce/tests/fuzz/targets.rs"]
mod targets;

#[global_allocator]
static ALLOCATOR: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::decoder(input));
