//! The entries of a dump in plain text: `pg_dump` writes a header of comments above each object.

use super::lexer::{Kind, pieces};

/// An object of the dump: what its header says, and the SQL that makes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    /// `TABLE`, `INDEX`, `FK CONSTRAINT`, ...
    pub(super) kind: String,
    /// As the header has it: for a constraint or trigger, the table's name first. For people.
    pub(super) name: String,
    /// The schema, or `-`.
    pub(super) schema: String,
    /// The statements.
    pub(super) sql: String,
}

impl Entry {
    /// The entry in words: `INDEX public.t_n_idx`.
    pub(super) fn title(&self) -> String {
        let schema = if self.schema == "-" { String::new() } else { format!("{}.", self.schema) };
        format!("{} {schema}{}", self.kind, self.name)
    }

    /// The statements one by one. Not for functions, whose bodies may hold semicolons without quotes.
    pub(super) fn statements(&self) -> Vec<&str> {
        let (mut statements, mut start) = (Vec::new(), None);
        for piece in pieces(&self.sql) {
            if matches!(piece.kind, Kind::LineComment | Kind::BlockComment) {
                continue;
            }
            let begun = *start.get_or_insert(piece.at.start);
            if piece.kind == Kind::Symbol && self.sql.get(piece.at.clone()) == Some(";") {
                statements.extend(self.sql.get(begun..piece.at.end).filter(|s| *s != ";"));
                start = None;
            }
        }
        statements
    }
}

/// Commands of `psql` that guard a dump against a hostile server's names (since the minor versions of August 2025).
/// The text is not read by `psql` here, so that they guard nothing.
const GUARDS: [&str; 2] = ["\\restrict", "\\unrestrict"];

/// Cuts a dump into its entries.
///
/// What stands before the first header is left out: settings of the session, some of which an older server does not
/// know (`transaction_timeout`). The session that runs the entries has its own.
///
/// # Errors
///
/// A line that only `psql` could run.
pub(super) fn entries(dump: &str) -> Result<Vec<Entry>, String> {
    let (mut found, mut current): (Vec<Entry>, Option<Entry>) = (Vec::new(), None);
    // Where SQL of the current entry begins that has not been taken over.
    let mut from = 0;
    let mut rule: Option<usize> = None;
    let take = |entry: &mut Option<Entry>, from: usize, to: usize| {
        if let (Some(entry), Some(text)) = (entry, dump.get(from..to)) {
            entry.sql.push_str(text);
        }
    };
    for piece in pieces(dump) {
        let text = dump.get(piece.at.clone()).unwrap_or_default();
        let header = if piece.kind == Kind::LineComment { rule.and_then(|_| header(text)) } else { None };
        if let (Some(entry), Some(start)) = (header, rule) {
            take(&mut current, from, start);
            found.extend(current.replace(entry));
            from = piece.at.end;
        }
        rule = (piece.kind == Kind::LineComment && text == "--").then_some(piece.at.start);
        if piece.kind == Kind::Meta {
            let word = text.split_whitespace().next().unwrap_or_default();
            if !GUARDS.contains(&word) {
                return Err(format!("the dump holds a command of psql, {word}"));
            }
            take(&mut current, from, piece.at.start);
            from = piece.at.end;
        }
    }
    take(&mut current, from, dump.len());
    found.extend(current);
    found.retain(|entry| pieces(&entry.sql).any(|p| !matches!(p.kind, Kind::LineComment | Kind::BlockComment)));
    Ok(found)
}

/// `-- Name: t_pkey; Type: CONSTRAINT; Schema: public; Owner: -`. A name may hold all of it but a newline; what follows
/// it may not.
fn header(line: &str) -> Option<Entry> {
    let rest = line.strip_prefix("-- Name: ")?;
    let (name, rest) = rest.rsplit_once("; Type: ")?;
    let (kind, rest) = rest.split_once("; Schema: ")?;
    let schema = rest.rsplit_once("; Owner:").map_or(rest, |(schema, _)| schema);
    let entry = |text: &str| text.trim().to_owned();
    Some(Entry { kind: entry(kind), name: entry(name), schema: entry(schema), sql: String::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &str = "--
-- PostgreSQL database dump
--

\\restrict abc

-- Dumped from database version 15.18

SET transaction_timeout = 0;
SELECT pg_catalog.set_config('search_path', '', false);

--
-- Name: f(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.f() RETURNS text
    LANGUAGE sql
    AS $_$
--
-- Name: trap; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE trap (n int);
\\q
$_$;


SET default_table_access_method = heap;

--
-- Name: a; Type: b; Type: TABLE; Schema: my; Owner: x; Tablespace: fast
--

CREATE TABLE my.\"a; Type: b\" (
    \"--
-- Name: x; Type: TABLE; Schema: public; Owner: -
--
\" text DEFAULT '--
-- Name: y; Type: TABLE; Schema: public; Owner: -
'
);
ALTER TABLE ONLY my.\"a; Type: b\" REPLICA IDENTITY FULL;


--
-- Name: public; Type: SCHEMA; Schema: -; Owner: -
--

-- *not* creating schema, since initdb creates it


--
-- PostgreSQL database dump complete
--

\\unrestrict abc
";

    #[test]
    fn entries_are_told_apart_whatever_bodies_strings_and_names_look_like() {
        let found = entries(DUMP).unwrap();
        let titles: Vec<String> = found.iter().map(Entry::title).collect();
        assert_eq!(titles, ["FUNCTION public.f()", "TABLE my.a; Type: b"]);
        assert!(found[0].sql.contains("CREATE TABLE trap (n int);\n\\q\n$_$;"), "{}", found[0].sql);
        assert!(found[0].sql.contains("SET default_table_access_method = heap;"));
        let statements = found[1].statements();
        assert_eq!(statements.len(), 2, "{statements:?}");
        assert!(statements[0].starts_with("CREATE TABLE my.\"a; Type: b\" (") && statements[0].ends_with(");"));
        assert_eq!(statements[1], "ALTER TABLE ONLY my.\"a; Type: b\" REPLICA IDENTITY FULL;");
        assert!(!DUMP.is_empty() && found.iter().all(|e| !e.sql.contains("restrict")));
    }

    #[test]
    fn a_command_of_psql_is_refused() {
        assert_eq!(entries("\\connect shop\n"), Err("the dump holds a command of psql, \\connect".to_owned()));
    }
}
