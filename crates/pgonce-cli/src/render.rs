//! Numbers, sizes, durations and aligned lists as people read them.

use std::time::Duration;

use crate::output::{Output, Tone};

/// Labels and values, aligned, in groups.
#[derive(Debug, Default)]
pub struct Listing(Vec<Entry>);

#[derive(Debug)]
enum Entry {
    Pair(String, String, Option<Tone>),
    Gap,
}

impl Listing {
    /// Adds a value with its label.
    pub fn pair(&mut self, label: &str, value: impl Into<String>) {
        self.0.push(Entry::Pair(label.to_owned(), value.into(), None));
    }

    /// Adds a value in a tone.
    pub fn toned(&mut self, label: &str, value: impl Into<String>, tone: Tone) {
        self.0.push(Entry::Pair(label.to_owned(), value.into(), Some(tone)));
    }

    /// Begins another group.
    pub fn gap(&mut self) {
        if !matches!(self.0.last(), None | Some(Entry::Gap)) {
            self.0.push(Entry::Gap);
        }
    }

    /// Writes the list.
    pub fn write(&self, output: Output) {
        self.lines(|tone, text| output.tone(tone, text)).iter().for_each(|line| output.line(line));
    }

    fn lines(&self, paint: impl Fn(Tone, &str) -> String) -> Vec<String> {
        let widths = self.0.iter().map(|entry| match entry {
            Entry::Pair(label, ..) => label.chars().count(),
            Entry::Gap => 0,
        });
        let width = widths.max().unwrap_or(0);
        let line = |entry: &Entry| match entry {
            Entry::Gap => String::new(),
            Entry::Pair(label, value, tone) => {
                // A value of several lines keeps to its column.
                let value = value.replace('\n', &format!("\n{:width$}  ", ""));
                let value = tone.map_or_else(|| value.clone(), |tone| paint(tone, &value));
                format!("{}  {value}", paint(Tone::Faint, &format!("{label:width$}")))
            }
        };
        self.0.iter().map(line).collect()
    }
}

/// A number with its thousands apart: `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 table`, `2 tables`.
pub fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// A size, as `pg_size_pretty` counts (1 kB is 1024 bytes) with one decimal.
pub fn bytes(size: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if size < 1024 {
        return counted(size, "byte", "bytes");
    }
    let mut scaled = size as f64 / 1024.0;
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    format!("{scaled:.1} {}", UNITS[unit])
}

/// A duration, in the two units that matter.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 if time.is_zero() => "0 s".to_owned(),
        0..=9 => format!("{:.1} s", time.as_secs_f64()),
        10..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min {} s", seconds / 60, seconds % 60),
        7200..=172_799 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Hides what looks like the password of a connection string in text that others made of the command line.
pub fn redacted(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    // `//user:password@host`
    while let Some(at) = rest.find("//") {
        let (before, behind) = rest.split_at(at + 2);
        clean.push_str(before);
        let authority = behind.find(|c: char| c == '/' || c.is_whitespace()).unwrap_or(behind.len());
        match (behind[..authority].find(':'), behind[..authority].rfind('@')) {
            (Some(colon), Some(end)) if colon < end => {
                clean.push_str(&behind[..=colon]);
                clean.push_str("...");
                rest = &behind[end..];
            }
            _ => rest = behind,
        }
    }
    clean.push_str(rest);
    // `password=...`
    let mut parts = clean.split("password=");
    let mut hidden = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_whitespace() || c == '&').unwrap_or(part.len());
        hidden.push_str("password=...");
        hidden.push_str(&part[end..]);
    }
    hidden
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_sizes_read_well() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [1, 1023, 1024, 1536, 5 << 20, 3 << 40].map(bytes),
            ["1 byte", "1,023 bytes", "1.0 kB", "1.5 kB", "5.0 MB", "3.0 TB"]
        );
        assert_eq!(bytes(u64::MAX), "16384.0 PB");
        let texts = [0, 59, 61, 3599, 7200, 200_000].map(|s| duration(Duration::from_secs(s)));
        assert_eq!(texts, ["0 s", "59 s", "61 s", "59 min 59 s", "2 h 0 min", "2 d 7 h"]);
    }

    #[test]
    fn lists_are_aligned() {
        let mut list = Listing::default();
        list.gap();
        list.pair("a", "1\n2");
        list.gap();
        list.gap();
        list.toned("long", "3", Tone::Good);
        assert_eq!(list.lines(|_, text| text.to_owned()), ["a     1\n      2", "", "long  3"]);
    }

    #[test]
    fn passwords_are_hidden_wherever_they_look_like_some() {
        for (text, clean) in [
            ("'postgresql://ann:hidden@one/shop' found", "'postgresql://ann:...@one/shop' found"),
            ("postgres://ann:hid@den@one/shop?password=hidden&x=1", "postgres://ann:...@one/shop?password=...&x=1"),
            ("host=one password=hidden user=ann", "host=one password=... user=ann"),
            ("postgresql://one:5432/shop", "postgresql://one:5432/shop"),
        ] {
            assert_eq!(redacted(text), clean);
        }
    }
}
