//! The session parameters that every connection pins.

use std::fmt::Write;

/// The parameters that every connection sets at its start, replication included, with their values.
///
/// The text form of a value depends on the first seven, and where it names an object on the `search_path`: two
/// connections that do not pin them may print one value in two ways. The two timeouts would end a connection that does
/// what it should. `client_encoding` is set beside them, as UTF8.
pub const PINS: &[(&str, &str)] = &[
    ("DateStyle", "ISO,MDY"),
    ("IntervalStyle", "postgres"),
    ("TimeZone", "UTC"),
    ("extra_float_digits", "3"),
    ("bytea_output", "hex"),
    ("lc_monetary", "C"),
    ("quote_all_identifiers", "off"),
    ("statement_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("search_path", ""),
];

/// What an SQL connection pins beyond [`PINS`]: an empty `search_path`, for every name that is sent is qualified, and
/// what decides how a text is read; catalog queries over thousands of tables are not worth compiling. With
/// `array_nulls` off, a NULL in an array would become the string `NULL`; with
/// `xmloption` at `document`, xml that is no document would be refused.
pub const SQL_PINS: &[(&str, &str)] = &[
    ("row_security", "off"),
    ("jit", "off"),
    ("standard_conforming_strings", "on"),
    ("array_nulls", "on"),
    ("xmloption", "content"),
];

/// The startup parameter `options`: what the user asked for, then the pins, which win where both name one parameter.
pub(super) fn options(user: Option<&str>, pins: &[&[(&str, &str)]]) -> String {
    let mut options = user.unwrap_or_default().to_owned();
    for (name, value) in pins.iter().copied().flatten() {
        if !options.is_empty() {
            options.push(' ');
        }
        // Writing to a String cannot fail.
        let _ = write!(options, "-c {name}=");
        for character in value.chars() {
            if character == '\\' || character.is_whitespace() {
                options.push('\\');
            }
            options.push(character);
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_follow_what_the_user_asked_for() {
        let options = options(Some("-c DateStyle=German -c work_mem=1MB"), &[PINS, SQL_PINS]);
        assert!(options.starts_with("-c DateStyle=German -c work_mem=1MB -c DateStyle=ISO,MDY -c "), "{options}");
        assert!(
            options.ends_with(
                " -c row_security=off -c jit=off -c standard_conforming_strings=on -c array_nulls=on -c \
                     xmloption=content"
            ),
            "{options}"
        );
    }

    #[test]
    fn blanks_and_backslashes_are_escaped() {
        assert_eq!(options(None, &[&[("a", r"x y\z")]]), r"-c a=x\ y\\z");
    }
}
