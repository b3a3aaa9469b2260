//! Tells what happens, with the time since the beginning.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::output::{Output, Tone};

/// The teller.
#[derive(Debug)]
pub struct Story {
    begun: Instant,
    output: Output,
}

impl Story {
    /// Begins now.
    pub fn begin(output: Output) -> Story {
        Story { begun: Instant::now(), output }
    }

    /// How long it has been going on.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Tells of something.
    pub fn tell(&self, who: &str, what: &str) {
        self.tell_of(Tone::Strong, who, what);
    }

    /// Tells of something, in a tone.
    pub fn tell_of(&self, tone: Tone, who: &str, what: &str) {
        let seconds = self.elapsed().as_secs_f64();
        if self.output.is_json() {
            let event = json!({"event": "story", "elapsed_seconds": seconds, "who": who, "text": what});
            self.output.object(&event);
            return;
        }
        let who = self.output.tone(tone, &format!("{who:<7}"));
        self.output.line(&format!("{seconds:5.1} s  {who}  {what}"));
    }
}
