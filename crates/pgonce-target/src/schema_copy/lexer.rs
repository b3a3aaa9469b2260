//! Cuts SQL text into pieces, as far as is needed to know where a string, a name or a function's body ends.

use std::ops::Range;

/// What a piece of SQL text is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// `-- ...`, without its newline.
    LineComment,
    /// `/* ... */`.
    BlockComment,
    /// A string constant, in quotes or dollars.
    String,
    /// A name in double quotes.
    Quoted,
    /// A key word, a plain name or a number.
    Word,
    /// A line that begins with a backslash: a command of `psql`.
    Meta,
    /// Any other character.
    Symbol,
}

/// A piece of SQL text and where it stands. White space is between pieces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) kind: Kind,
    pub(super) at: Range<usize>,
}

/// The pieces of `sql`, which was written with `standard_conforming_strings` on.
pub(super) fn pieces(sql: &str) -> Pieces<'_> {
    Pieces { sql, at: 0 }
}

/// See [`pieces`].
pub(super) struct Pieces<'a> {
    sql: &'a str,
    at: usize,
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let bytes = self.sql.as_bytes();
        while bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        let start = self.at;
        let first = *bytes.get(start)?;
        let begins_line = start == 0 || bytes.get(start - 1) == Some(&b'\n');
        let rest = self.sql.get(start..).unwrap_or_default();
        let (kind, length) = match first {
            b'-' if rest.starts_with("--") => (Kind::LineComment, line_length(rest)),
            b'\\' if begins_line => (Kind::Meta, line_length(rest)),
            b'/' if rest.starts_with("/*") => (Kind::BlockComment, block_comment_length(rest.as_bytes())),
            b'\'' => (Kind::String, quoted_length(rest.as_bytes(), b'\'', false)),
            b'E' | b'e' if rest.as_bytes().get(1) == Some(&b'\'') => {
                (Kind::String, 1 + quoted_length(rest.get(1..).unwrap_or_default().as_bytes(), b'\'', true))
            }
            b'"' => (Kind::Quoted, quoted_length(rest.as_bytes(), b'"', false)),
            b'$' => match dollar_tag(rest) {
                Some(tag) => (Kind::String, dollar_length(rest, tag)),
                None => (Kind::Symbol, 1),
            },
            c if is_word(c) => {
                let end = rest.bytes().position(|c| !is_word(c) && c != b'$').unwrap_or(rest.len());
                (Kind::Word, end)
            }
            _ => (Kind::Symbol, 1),
        };
        self.at = start + length;
        Some(Piece { kind, at: start..self.at })
    }
}

fn is_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || c == b'_' || c >= 0x80
}

fn line_length(text: &str) -> usize {
    text.find('\n').unwrap_or(text.len())
}

/// Block comments nest.
fn block_comment_length(text: &[u8]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        match text.get(at..at + 2) {
            Some(b"/*") => (depth, at) = (depth + 1, at + 2),
            Some(b"*/") => {
                (depth, at) = (depth.saturating_sub(1), at + 2);
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    text.len()
}

/// The length of what begins with `quote`, to its end or the end of the text. A doubled quote stands for itself.
fn quoted_length(text: &[u8], quote: u8, backslashes: bool) -> usize {
    let mut at = 1;
    while let Some(c) = text.get(at) {
        let doubled = *c == quote && text.get(at + 1) == Some(&quote);
        if doubled || (*c == b'\\' && backslashes) {
            at += 2;
        } else if *c == quote {
            return at + 1;
        } else {
            at += 1;
        }
    }
    text.len()
}

/// The opening `$tag$`, if the text begins with one.
fn dollar_tag(text: &str) -> Option<&str> {
    let end = text.get(1..)?.find('$')? + 2;
    let tag = text.get(..end)?;
    let inner = tag.get(1..end - 1)?.as_bytes();
    let names = inner.iter().all(|c| is_word(*c)) && !inner.first().is_some_and(u8::is_ascii_digit);
    names.then_some(tag)
}

fn dollar_length(text: &str, tag: &str) -> usize {
    let body = text.get(tag.len()..).unwrap_or_default();
    body.find(tag).map_or(text.len(), |end| end + 2 * tag.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(sql: &str) -> Vec<(Kind, &str)> {
        pieces(sql).map(|piece| (piece.kind, &sql[piece.at])).collect()
    }

    #[test]
    fn strings_names_and_bodies_end_where_they_should() {
        let sql =
            "SELECT 'it''s; --', E'a\\'; b', \"na\"\"me;\", $$ ; $x$ $$, $f$ $$;\n-- x\n$f$, a$b$c /* ; /* */ */;";
        let expected = [
            (Kind::Word, "SELECT"),
            (Kind::String, "'it''s; --'"),
            (Kind::Symbol, ","),
            (Kind::String, "E'a\\'; b'"),
            (Kind::Symbol, ","),
            (Kind::Quoted, "\"na\"\"me;\""),
            (Kind::Symbol, ","),
            (Kind::String, "$$ ; $x$ $$"),
            (Kind::Symbol, ","),
            (Kind::String, "$f$ $$;\n-- x\n$f$"),
            (Kind::Symbol, ","),
            (Kind::Word, "a$b$c"),
            (Kind::BlockComment, "/* ; /* */ */"),
            (Kind::Symbol, ";"),
        ];
        assert_eq!(cut(sql), expected);
    }

    #[test]
    fn a_backslash_begins_a_command_only_at_the_beginning_of_a_line() {
        let found = cut("\\restrict x y\nSELECT '\n\\restrict' -- \\q");
        let kinds: Vec<Kind> = found.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [Kind::Meta, Kind::Word, Kind::String, Kind::LineComment]);
    }

    #[test]
    fn letters_of_other_languages_are_letters() {
        assert_eq!(cut("größe$1 $ä$;$ä$"), [(Kind::Word, "größe$1"), (Kind::String, "$ä$;$ä$")]);
    }
}
