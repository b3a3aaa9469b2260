//! Where in a copy an error lies, from the server's context line: its number and, where it is given, the column. The
//! rest of the line quotes the row.

/// The place of an error in the rows that went into a table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CopyPlace {
    /// Counted from 1.
    pub(crate) row: Option<u64>,
    pub(crate) column: Option<String>,
}

/// Reads `COPY t, line 17, column n: "..."`. The words between the names are in the language of the server
/// (`lc_messages`, which only a superuser may set), so nothing depends on them.
pub(crate) fn copy_place(context: &str, table: &str, columns: &[&str]) -> CopyPlace {
    let found = context.lines().find_map(|line| {
        let behind = line.strip_prefix("COPY ")?.strip_prefix(table)?.strip_prefix(", ")?;
        let (_, behind) = behind.split_once(' ')?;
        let digits = behind.len() - behind.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let row = behind.get(..digits)?.parse().ok()?;
        // Behind the number may follow a column, or the row itself.
        let named = behind.get(digits..).and_then(|rest| rest.strip_prefix(", ")?.split_once(' '));
        let column = named.and_then(|(_, rest)| {
            columns
                .iter()
                .filter(|column| rest.strip_prefix(**column).is_some_and(|rest| rest.starts_with(": ")))
                .max_by_key(|column| column.len())
        });
        Some(CopyPlace { row: Some(row), column: column.map(|column| (*column).to_owned()) })
    });
    found.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(context: &str, table: &str) -> CopyPlace {
        copy_place(context, table, &["n", "n: \"x", "b c"])
    }

    #[test]
    fn of_the_context_the_line_and_the_column_are_told() {
        let at = |row, column: &str| CopyPlace { row: Some(row), column: Some(column.to_owned()) };
        assert_eq!(place(r#"COPY t, line 17, column n: "70000""#, "t"), at(17, "n"));
        assert_eq!(place(r#"COPY t, Zeile 17, Spalte b c: »70000«"#, "t"), at(17, "b c"));
        assert_eq!(place("COPY t, line 2, column n: null input", "t"), at(2, "n"));
        assert_eq!(place("unnamed portal\nCOPY t, line 2, column n: null input", "t"), at(2, "n"));
    }

    #[test]
    fn of_a_row_nothing_but_its_number_is_told() {
        let at = |row| CopyPlace { row: Some(row), column: None };
        assert_eq!(place("COPY t, line 3: \"1\tsecret\"", "t"), at(3));
        assert_eq!(place("COPY t, line 2000", "t"), at(2000));
        assert_eq!(place(r#"COPY t, line 9, line 4: "1""#, "t, line 9"), at(4));
        assert_eq!(place(r#"COPY t, line 9, column secret: "1""#, "t"), at(9));
    }

    #[test]
    fn other_contexts_say_nothing() {
        for context in ["PL/pgSQL function f() line 3 at RAISE", "COPY u, line 3", "COPY t, line x", "COPY t", ""] {
            assert_eq!(place(context, "t"), CopyPlace::default(), "{context}");
        }
    }
}
