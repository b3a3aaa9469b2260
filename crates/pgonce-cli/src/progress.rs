//! Shows a run: a living line on a terminal, plain lines elsewhere, JSON lines for programs.

use std::convert::Infallible;
use std::io::IsTerminal;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indicatif::{ProgressBar, ProgressStyle};
use pgonce::pipeline::{Phase, Progress};
use tokio::sync::{mpsc, watch};

use crate::output::{Output, Tone};
use crate::waits::Waiting;
use crate::watch::{Notice, Pace, Watcher};

/// Where nobody looks at a living line, a plain one this often, as long as there is something to say.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// An environment variable that sets another interval for plain and JSON lines, in seconds.
pub const PROGRESS_SECONDS: &str = "PGONCE_PROGRESS_SECONDS";

/// A living line changes this often at most.
const REFRESH_EVERY: Duration = Duration::from_millis(250);

/// Shows what a pipeline is doing.
pub struct Display {
    output: Output,
    watcher: Watcher,
    started: Instant,
    living: Option<ProgressBar>,
    shown: (Progress, Instant),
    waits: mpsc::UnboundedReceiver<Waiting>,
    /// What is being done besides copying and streaming.
    activity: watch::Receiver<String>,
    /// What of it was last said, and when.
    activity_shown: String,
    said: Instant,
}

impl Display {
    /// A display for `output`; what the flow is found to wait for comes through `waits`.
    pub fn new(output: Output, activity: watch::Receiver<String>, waits: mpsc::UnboundedReceiver<Waiting>) -> Display {
        let terminal = !output.is_json() && std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        let living = terminal.then(|| {
            let line = ProgressBar::new_spinner();
            let style = ProgressStyle::with_template("{spinner} {msg}");
            line.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            line
        });
        let now = Instant::now();
        Display {
            output,
            watcher: Watcher::default(),
            started: now,
            living,
            shown: (Progress::default(), now),
            waits,
            activity,
            activity_shown: String::new(),
            said: now,
        }
    }

    /// Follows the pipeline until the future is dropped.
    pub async fn follow(&mut self, mut progress: watch::Receiver<Progress>) -> Infallible {
        let every = if self.living.is_some() { REFRESH_EVERY } else { line_every() };
        loop {
            let seen = progress.borrow_and_update().clone();
            self.show(&seen, every);
            let due = every.saturating_sub(self.shown.1.elapsed());
            tokio::select! {
                changed = progress.changed() => if changed.is_err() {
                    // The pipeline is gone: nothing more will change.
                    std::future::pending::<()>().await;
                },
                Some(waiting) = self.waits.recv() => self.say(&Notice::Waiting(waiting)),
                Ok(()) = self.activity.changed() => self.tell_activity(every),
                () = tokio::time::sleep(due) => {}
            }
            // A busy pipeline changes far more often than anybody can read.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Shows the last of it, and takes the living line away.
    pub fn finish(&mut self, progress: &Progress) {
        self.notices(progress);
        if let Some(line) = self.living.take() {
            line.finish_and_clear();
        }
    }

    fn show(&mut self, progress: &Progress, every: Duration) {
        self.notices(progress);
        let interval = self.shown.1.elapsed();
        if interval < every {
            return;
        }
        let pace = Pace::between(&self.shown.0, progress, interval, unix_micros());
        let moved = moved(&self.shown.0, progress);
        self.shown = (progress.clone(), Instant::now());
        match &self.living {
            Some(line) if progress.fault.is_none() => {
                let lines: Vec<String> = std::iter::once(pace.text()).chain(pace.tables()).collect();
                line.set_message(lines.join("\n"));
                line.tick();
            }
            Some(line) => line.set_message("waiting to try again"),
            None if !moved => {}
            None if self.output.is_json() => self.output.event(pace.object()),
            None => self.output.line(&pace.text()),
        }
    }

    /// Says what is being done: each new thing at once, and how far it is every so often.
    fn tell_activity(&mut self, every: Duration) {
        let before = self.activity_shown.clone();
        let doing = self.activity.borrow_and_update().clone();
        let thing = |text: &str| text.split(':').next().unwrap_or_default().to_owned();
        if let Some(line) = &self.living {
            line.set_message(doing.clone());
            line.tick();
        }
        if thing(&before) == thing(&doing) && (self.living.is_some() || self.said.elapsed() < every) {
            return;
        }
        self.said = Instant::now();
        self.activity_shown.clone_from(&doing);
        match &self.living {
            _ if self.output.is_json() => self.output.event(serde_json::json!({"event": "activity", "text": doing})),
            Some(line) => line.suspend(|| self.output.line(&doing)),
            None => self.output.line(&doing),
        }
    }

    fn notices(&mut self, progress: &Progress) {
        for notice in self.watcher.look(progress, self.started.elapsed()) {
            self.say(&notice);
        }
    }

    fn say(&self, notice: &Notice) {
        if self.output.is_json() {
            self.output.event(notice.object());
            return;
        }
        let text = match notice {
            Notice::Fault { .. } | Notice::Warning(_) | Notice::Waiting(_) => {
                self.output.tone(Tone::Warning, &notice.text())
            }
            Notice::Recovered { .. } => self.output.tone(Tone::Good, &notice.text()),
            Notice::Phase { phase: Phase::Connecting | Phase::Stopping, .. } => {
                self.output.tone(Tone::Faint, &notice.text())
            }
            _ => notice.text(),
        };
        match &self.living {
            Some(line) => line.suspend(|| self.output.line(&text)),
            None => self.output.line(&text),
        }
    }
}

/// How often a plain line comes.
fn line_every() -> Duration {
    let asked = std::env::var(PROGRESS_SECONDS).ok().and_then(|text| text.parse().ok());
    asked.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(LINE_EVERY)
}

fn moved(before: &Progress, after: &Progress) -> bool {
    (before.applied, before.redelivered, before.bytes_copied, before.tables_copied)
        != (after.applied, after.redelivered, after.bytes_copied, after.tables_copied)
}

fn unix_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
