//! A commented configuration file with every key: what `pgonce init` writes.

use super::keys::{Fallback, KEYS, Key};

const HEAD: &str = "\
# The configuration of one pgonce flow: `pgonce run` reads pgonce.yml in the current directory, --config FILE another.
# Each key is a flag too (--slot), and an environment variable (PGONCE_SOURCE_SLOT): a flag wins over a variable, and a
# variable over this file. `pgonce config show` says what holds, and why; `pgonce config schema` is for your editor.
#
# ${VAR} is replaced by that environment variable, and $${ is a plain ${. A connection string may also be kept in a file
# that only this user can read: `url: {file: /run/secrets/source_url}`.
";

/// Columns of the file.
const WIDTH: usize = 118;

/// The file's text. Keys that must be set are set, the others are commented.
pub fn sample() -> String {
    let mut text = HEAD.to_owned();
    // Keys of the top level stand between the sections, in the order of the list.
    let mut written = Vec::new();
    for key in KEYS {
        match key.section() {
            None => write_key(key, "", &mut text),
            Some(section) if !written.contains(&section) => {
                text.push_str(&format!("\n{section}:"));
                for key in KEYS.iter().filter(|key| key.section() == Some(section)) {
                    write_key(key, "  ", &mut text);
                }
                written.push(section);
            }
            Some(_) => {}
        }
    }
    text
}

fn write_key(key: &Key, indent: &str, text: &mut String) {
    let default = match key.default {
        Fallback::Required => String::new(),
        _ => format!(" Default: {}", key.default_words()),
    };
    let words = format!("{}. {}{default}", key.help, key.more);
    text.push('\n');
    for line in wrapped(&words, WIDTH - indent.len() - 2) {
        text.push_str(&format!("{indent}# {line}\n"));
    }
    let mark = if key.default == Fallback::Required { "" } else { "# " };
    text.push_str(&format!("{indent}{mark}{}: {}\n", key.name(), key.example));
}

/// The words of a text on lines.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
