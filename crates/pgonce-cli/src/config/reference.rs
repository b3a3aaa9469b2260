//! References to what a configuration file should not hold itself: `${VAR}` in a string, and files.

use std::path::Path;

/// Replaces each `${VAR}` by what `lookup` has for it, and each `$${` by `${`. The flag says whether anything was
/// replaced.
///
/// # Errors
///
/// The name that is unknown or malformed, in words.
pub fn expand(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<(String, bool), String> {
    let mut expanded = String::with_capacity(text.len());
    let mut replaced = false;
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if rest[..at].ends_with('$') {
            expanded.push_str(&rest[..at]);
            expanded.push('{');
            rest = &rest[at + 2..];
            continue;
        }
        expanded.push_str(&rest[..at]);
        let behind = &rest[at + 2..];
        let Some(end) = behind.find('}') else {
            return Err("`${` without its `}`".to_owned());
        };
        let name = &behind[..end];
        if !is_variable(name) {
            return Err("between `${` and `}` must be the name of an environment variable".to_owned());
        }
        expanded.push_str(&lookup(name).ok_or_else(|| format!("the environment variable {name} is not set"))?);
        replaced = true;
        rest = &behind[end + 1..];
    }
    expanded.push_str(rest);
    Ok((expanded, replaced))
}

fn is_variable(name: &str) -> bool {
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts_well && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Reads a secret from a file: its text without the line's end that editors leave.
///
/// # Errors
///
/// What is wrong with the file, in words.
pub fn read_secret(path: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    let text = text.trim_end_matches(['\n', '\r']);
    match text {
        "" => Err(format!("{} is empty", path.display())),
        _ if text.contains(['\n', '\r']) => Err(format!("{} holds more than one line", path.display())),
        _ => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<(String, bool), String> {
        expand(text, &|name| (name == "WHO").then(|| "ann".to_owned()))
    }

    #[test]
    fn variables_are_replaced_and_escapes_are_kept() {
        assert_eq!(expanded("plain $x"), Ok(("plain $x".to_owned(), false)));
        assert_eq!(expanded("a ${WHO}, b ${WHO}"), Ok(("a ann, b ann".to_owned(), true)));
        assert_eq!(expanded("$${WHO}"), Ok(("${WHO}".to_owned(), false)));
        assert_eq!(expanded("$${x} ${WHO}"), Ok(("${x} ann".to_owned(), true)));
    }

    #[test]
    fn a_value_is_not_expanded_again() {
        let twice = expand("${A}", &|_| Some("${B}".to_owned()));
        assert_eq!(twice, Ok(("${B}".to_owned(), true)));
    }

    #[test]
    fn what_cannot_be_replaced_is_refused() {
        assert_eq!(expanded("${NO}").unwrap_err(), "the environment variable NO is not set");
        assert!(expanded("${WHO").unwrap_err().contains("without its"));
        assert!(expanded("${a b}").unwrap_err().contains("name of an environment variable"));
        assert!(expanded("${}").unwrap_err().contains("name of an environment variable"));
    }
}
