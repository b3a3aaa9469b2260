//! The one way out: lines on standard output and standard error, coloured only for a terminal.

use std::io::{IsTerminal, Write};
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::config::flags::Format;
use crate::failure::Failure;
use crate::time::utc;

/// Where a command writes to, and how.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// For people or for programs.
    pub format: Format,
    colours: Colours,
}

#[derive(Clone, Copy, Debug)]
struct Colours {
    stdout: bool,
    stderr: bool,
}

/// What a colour says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tone {
    /// A label: present, and not in the way.
    Faint,
    /// A heading.
    Strong,
    /// All is well.
    Good,
    /// Worth a look.
    Warning,
    /// Wrong.
    Bad,
}

impl Tone {
    fn code(self) -> &'static str {
        match self {
            Tone::Faint => "2",
            Tone::Strong => "1",
            Tone::Good => "32",
            Tone::Warning => "33",
            Tone::Bad => "31;1",
        }
    }
}

impl Output {
    /// Output in `format`. `NO_COLOR` is respected.
    pub fn new(format: Format) -> Output {
        let wanted = format == Format::Text && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let colours = Colours {
            stdout: wanted && std::io::stdout().is_terminal(),
            stderr: wanted && std::io::stderr().is_terminal(),
        };
        Output { format, colours }
    }

    /// Whether standard error takes colours.
    pub fn colours_stderr(self) -> bool {
        self.colours.stderr
    }

    /// Whether programs read.
    pub fn is_json(self) -> bool {
        self.format == Format::Json
    }

    /// `text` in a tone, on standard output.
    pub fn tone(self, tone: Tone, text: &str) -> String {
        paint(self.colours.stdout, tone, text)
    }

    /// A line on standard output.
    pub fn line(self, text: &str) {
        // A reader that went away (`pgonce status | head -1`) is no failure of the command.
        let _ = writeln!(std::io::stdout().lock(), "{text}");
    }

    /// An object on standard output, on a line.
    pub fn object(self, value: &Value) {
        self.line(&value.to_string());
    }

    /// Something that happens now, on a line of standard output, with its time.
    pub fn event(self, mut value: Value) {
        value["at"] = utc(SystemTime::now()).into();
        self.object(&value);
    }

    /// A note to the person at the terminal, on standard error; programs do not get it.
    pub fn note(self, text: &str) {
        if !self.is_json() {
            let _ = writeln!(std::io::stderr().lock(), "{text}");
        }
    }

    /// Reports how a command failed: for programs an object on standard output, for people on standard error.
    pub fn failure(self, failure: &Failure) {
        let Failure { code, text, hint, exit_status } = failure;
        if self.is_json() {
            self.event(json!({
                "event": "error", "code": code, "text": text, "hint": hint, "exit_status": exit_status,
            }));
            return;
        }
        let head = paint(self.colours.stderr, Tone::Bad, &format!("error[{code}]:"));
        let mut lines = format!("{head} {text}");
        if !hint.is_empty() {
            lines.push_str(&format!("\n{} {hint}", paint(self.colours.stderr, Tone::Strong, "hint:")));
        }
        self.note(&lines);
    }
}

fn paint(coloured: bool, tone: Tone, text: &str) -> String {
    if coloured { format!("\x1b[{}m{text}\x1b[0m", tone.code()) } else { text.to_owned() }
}
