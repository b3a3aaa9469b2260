//! Names and strings on their way into SQL.

/// Quotes an identifier, always: `na"me` becomes `"na""me"`.
pub fn quote_ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Quotes a string, for `standard_conforming_strings` on or off.
pub fn quote_literal(text: &str) -> String {
    let doubled = text.replace('\'', "''");
    if doubled.contains('\\') { format!("E'{}'", doubled.replace('\\', "\\\\")) } else { format!("'{doubled}'") }
}

/// Quotes a schema-qualified name.
pub fn quote_qualified(schema: &str, name: &str) -> String {
    format!("{}.{}", quote_ident(schema), quote_ident(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_stay_names() {
        assert_eq!(quote_ident("a\"; drop table t; --"), "\"a\"\"; drop table t; --\"");
        assert_eq!(quote_literal("it's"), "'it''s'");
        assert_eq!(quote_literal("a\\'b"), "E'a\\\\''b'");
        assert_eq!(quote_qualified("Main", "t.x"), "\"Main\".\"t.x\"");
    }
}
