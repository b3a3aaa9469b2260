//! The fuzz targets without a fuzzer: on what was recorded, on what once broke them, and on a fixed number of damaged
//! inputs. With a fuzzer: `scripts/fuzz decoder 600`, or `make soak`.

#[path = "../../pgonce-cli/tests/trip/parts.rs"]
mod parts;
#[path = "recorded/recording.rs"]
mod recording;
#[path = "fuzz/seeds.rs"]
mod seeds;
#[path = "fuzz/targets.rs"]
mod targets;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use peak_alloc::PeakAlloc;
use pgonce_testkit::Random;
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// A target, where its inputs come from, and how many damaged ones it is given.
struct Target {
    name: &'static str,
    run: fn(&[u8]),
    seeds: fn() -> Vec<Vec<u8>>,
    damaged: u32,
}

const DECODER: Target = Target { name: "decoder", run: targets::decoder, seeds: seeds::decoder, damaged: 120_000 };
const ASSEMBLER: Target =
    Target { name: "assembler", run: targets::assembler, seeds: seeds::assembler, damaged: 20_000 };
const FRAMES: Target = Target { name: "frames", run: targets::frames, seeds: seeds::frames, damaged: 60_000 };

/// The targets measure memory, so there is one at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

impl Target {
    /// Runs one input; says which it was if it breaks.
    fn check(&self, input: &[u8], what: &str) {
        // What is measured is the memory of the process, and the test runner may have taken some: three times it does
        // not.
        if (0..3).all(|_| catch_unwind(AssertUnwindSafe(|| (self.run)(input))).is_err()) {
            let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("broken-{}", self.name));
            fs::write(&file, input).unwrap();
            panic!("{} on {what}; the input is in {}", self.name, file.display());
        }
    }

    fn seeds_and_past_crashes(&self) {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let seeds = (self.seeds)();
        assert!(seeds.len() > 100, "{}: {} seeds", self.name, seeds.len());
        for (number, seed) in seeds.iter().enumerate() {
            self.check(seed, &format!("seed {number}"));
        }
        let folder = root().join("fuzz/regressions").join(self.name);
        let mut files: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(!files.is_empty(), "{} is empty", folder.display());
        for file in files {
            self.check(&fs::read(&file).unwrap(), &file.display().to_string());
        }
    }

    /// Where `scripts/fuzz` wants them, each in a file named after what is in it.
    fn write_seeds(&self) {
        let folder = std::env::var_os("PGONCE_FUZZ_SEEDS").expect("PGONCE_FUZZ_SEEDS names the folder");
        // The runner's working directory is the package's.
        let folder = root().join(folder);
        for seed in (self.seeds)() {
            fs::write(folder.join(format!("seed-{:016x}", xxhash_rust::xxh3::xxh3_64(&seed))), seed).unwrap();
        }
    }

    fn damaged(&self) {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let seeds = (self.seeds)();
        let mut random = Random::new(4);
        for number in 0..self.damaged {
            self.check(&seeds::damaged(&seeds, &mut random), &format!("damaged input {number}"));
        }
    }
}

#[test]
fn the_decoder_on_every_seed_and_every_past_crash() {
    DECODER.seeds_and_past_crashes();
}

#[test]
fn the_assembler_on_every_seed_and_every_past_crash() {
    ASSEMBLER.seeds_and_past_crashes();
}

#[test]
fn the_frame_reader_on_every_seed_and_every_past_crash() {
    FRAMES.seeds_and_past_crashes();
}

#[test]
fn the_decoder_on_120_000_damaged_messages() {
    DECODER.damaged();
}

#[test]
fn the_assembler_on_20_000_damaged_streams() {
    ASSEMBLER.damaged();
}

#[test]
fn the_frame_reader_on_60_000_damaged_streams() {
    FRAMES.damaged();
}

#[test]
#[ignore = "scripts/fuzz calls it"]
fn write_seeds_of_the_decoder() {
    DECODER.write_seeds();
}

#[test]
#[ignore = "scripts/fuzz calls it"]
fn write_seeds_of_the_assembler() {
    ASSEMBLER.write_seeds();
}

#[test]
#[ignore = "scripts/fuzz calls it"]
fn write_seeds_of_the_frames() {
    FRAMES.write_seeds();
}

/// Minutes of each target, of which each part takes five.
const SOAK_MINUTES: u64 = 10;
const PART_MINUTES: u64 = 5;

/// Five minutes of a target.
async fn part(target: &str) -> Result<Value, String> {
    let seconds = (PART_MINUTES * 60).to_string();
    let run = Command::new(root().join("scripts/fuzz")).args([target, &seconds]).output();
    let output = run.map_err(|error| format!("scripts/fuzz: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let last: Vec<&str> = text.lines().rev().take(40).collect();
    let last = last.into_iter().rev().collect::<Vec<_>>().join("\n");
    if !output.status.success() {
        return Err(format!("{target}: {}\n{last}", output.status));
    }
    let stat = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("stat::{name}:")));
        line.and_then(|number| number.trim().parse::<u64>().ok()).ok_or(format!("no {name} in\n{last}"))
    };
    let runs = stat("number_of_executed_units")?;
    // A fuzzer that ran nothing has shown nothing.
    if runs < 10_000 {
        return Err(format!("{target}: only {runs} inputs in {seconds} s\n{last}"));
    }
    Ok(json!({ "inputs": runs, "new": stat("new_units_added")?, "peak_mb": stat("peak_rss_mb")? }))
}

async fn soak(target: &str) {
    parts::parts(&format!("fuzz-{target}"), SOAK_MINUTES / PART_MINUTES, async |_| part(target).await).await;
}

#[tokio::test]
#[ignore = "ten minutes: make soak"]
async fn soak_the_decoder() {
    soak("decoder").await;
}

#[tokio::test]
#[ignore = "ten minutes: make soak"]
async fn soak_the_assembler() {
    soak("assembler").await;
}

#[tokio::test]
#[ignore = "ten minutes: make soak"]
async fn soak_the_frame_reader() {
    soak("frames").await;
}
