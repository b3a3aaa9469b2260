//! Reads what `pg_dump` writes for indexes and constraints: which table, which name, and how to make it in steps.

use super::lexer::{Kind, Piece, pieces};

/// `CREATE INDEX`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Index {
    /// The table, qualified and quoted as in the text.
    pub(super) table: String,
    /// The index, qualified and quoted.
    pub(super) name: String,
}

/// `ALTER TABLE ... ADD CONSTRAINT`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Constraint {
    /// The table, qualified and quoted as in the text.
    pub(super) table: String,
    /// Whether it says `ONLY`.
    pub(super) only: bool,
    /// The constraint, quoted as in the text.
    pub(super) name: String,
    /// What it demands, from `PRIMARY KEY`, `FOREIGN KEY`, ... on, without the semicolon.
    pub(super) demand: String,
}

/// A primary key or unique constraint in two steps: the index, which may be built beside others, and the constraint
/// over it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stepwise {
    pub(super) build: String,
    pub(super) attach: String,
    /// The index, qualified and quoted.
    pub(super) index: String,
}

/// Goes over the pieces of a statement.
struct Reader<'a> {
    sql: &'a str,
    pieces: Vec<Piece>,
    at: usize,
}

impl<'a> Reader<'a> {
    fn new(sql: &'a str) -> Reader<'a> {
        let told = |piece: &Piece| !matches!(piece.kind, Kind::LineComment | Kind::BlockComment);
        Reader { sql, pieces: pieces(sql).filter(told).collect(), at: 0 }
    }

    fn text(&self, at: usize) -> Option<&'a str> {
        self.sql.get(self.pieces.get(at)?.at.clone())
    }

    /// Passes these words, if they are next.
    fn words(&mut self, words: &[&str]) -> bool {
        let met = words.iter().enumerate().all(|(i, word)| self.text(self.at + i) == Some(*word));
        self.at += if met { words.len() } else { 0 };
        met
    }

    /// Passes a name.
    fn name(&mut self) -> Option<&'a str> {
        let piece = self.pieces.get(self.at)?;
        let text = self.text(self.at)?;
        self.at += 1;
        matches!(piece.kind, Kind::Word | Kind::Quoted).then_some(text)
    }

    /// Passes `schema.name`.
    fn qualified(&mut self) -> Option<(&'a str, &'a str)> {
        let schema = self.name()?;
        let dot = self.words(&["."]);
        Some((schema, self.name().filter(|_| dot)?))
    }

    /// Passes what is in parentheses, and returns it with them.
    fn parenthesised(&mut self) -> Option<&'a str> {
        let start = self.pieces.get(self.at)?.at.start;
        let mut depth = 0_usize;
        loop {
            match self.text(self.at)? {
                "(" => depth += 1,
                ")" => depth = depth.checked_sub(1)?,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return self.sql.get(start..self.pieces.get(self.at - 1)?.at.end);
            }
        }
    }

    /// What is left, without a semicolon at its end.
    fn rest(&self) -> &'a str {
        let start = self.pieces.get(self.at).map_or(self.sql.len(), |piece| piece.at.start);
        self.sql.get(start..).unwrap_or_default().trim_end().trim_end_matches(';')
    }
}

/// Reads `CREATE INDEX name ON schema.table ...`.
pub(super) fn index(sql: &str) -> Option<Index> {
    let mut reader = Reader::new(sql);
    let create = reader.words(&["CREATE", "INDEX"]) || reader.words(&["CREATE", "UNIQUE", "INDEX"]);
    let name = reader.name().filter(|_| create)?;
    let on = reader.words(&["ON"]);
    reader.words(&["ONLY"]);
    let (schema, table) = reader.qualified().filter(|_| on)?;
    Some(Index { table: format!("{schema}.{table}"), name: format!("{schema}.{name}") })
}

/// Reads `ALTER TABLE schema.table ADD CONSTRAINT name ...`.
pub(super) fn constraint(sql: &str) -> Option<Constraint> {
    let mut reader = Reader::new(sql);
    let alter = reader.words(&["ALTER", "TABLE"]);
    let only = reader.words(&["ONLY"]);
    let (schema, table) = reader.qualified().filter(|_| alter)?;
    let add = reader.words(&["ADD", "CONSTRAINT"]);
    let name = reader.name().filter(|_| add)?.to_owned();
    Some(Constraint { table: format!("{schema}.{table}"), only, name, demand: reader.rest().to_owned() })
}

impl Constraint {
    /// The two steps of a primary key or unique constraint; nothing where it is made in one.
    pub(super) fn stepwise(&self) -> Option<Stepwise> {
        let mut reader = Reader::new(&self.demand);
        let kind = if reader.words(&["PRIMARY", "KEY"]) {
            "PRIMARY KEY"
        } else if reader.words(&["UNIQUE"]) {
            "UNIQUE"
        } else {
            return None;
        };
        let nulls = if reader.words(&["NULLS", "NOT", "DISTINCT"]) { " NULLS NOT DISTINCT" } else { "" };
        let columns = reader.parenthesised()?;
        // Over a range, from version 18 on: its index is of another kind, and no constraint takes it over.
        let mut words = Reader::new(columns);
        if (0..words.pieces.len()).any(|at| {
            words.at = at;
            words.words(&["WITHOUT", "OVERLAPS"])
        }) {
            return None;
        }
        let mut included = String::new();
        if reader.words(&["INCLUDE"]) {
            included = format!(" INCLUDE {}", reader.parenthesised()?);
        }
        let mut options = String::new();
        if reader.words(&["WITH"]) {
            options = format!(" WITH {}", reader.parenthesised()?);
        }
        let deferrable = reader.rest();
        if !matches!(deferrable, "" | "DEFERRABLE" | "DEFERRABLE INITIALLY DEFERRED") {
            return None;
        }
        let space = if deferrable.is_empty() { "" } else { " " };
        let (table, name) = (&self.table, &self.name);
        let schema = Reader::new(table).name()?;
        Some(Stepwise {
            build: format!("CREATE UNIQUE INDEX {name} ON {table} USING btree {columns}{included}{nulls}{options};"),
            attach: format!(
                "ALTER TABLE ONLY {table} ADD CONSTRAINT {name} {kind} USING INDEX {name}{space}{deferrable};"
            ),
            index: format!("{schema}.{name}"),
        })
    }

    /// The table that a foreign key refers to, qualified and quoted.
    pub(super) fn referenced(&self) -> Option<String> {
        let mut reader = Reader::new(&self.demand);
        if !reader.words(&["FOREIGN", "KEY"]) {
            return None;
        }
        reader.parenthesised()?;
        let references = reader.words(&["REFERENCES"]);
        let (schema, table) = reader.qualified().filter(|_| references)?;
        Some(format!("{schema}.{table}"))
    }

    /// Whether it need not hold for the rows that are there, on the source either.
    pub(super) fn unproved(&self) -> bool {
        let reader = Reader::new(&self.demand);
        let count = reader.pieces.len();
        count >= 2 && reader.text(count - 2) == Some("NOT") && reader.text(count - 1) == Some("VALID")
            || self.demand.ends_with("NOT ENFORCED")
    }

    /// Adds it without looking at the rows, which [`validate`](Constraint::validate) does later.
    pub(super) fn add_unproved(&self) -> String {
        let only = if self.only { "ONLY " } else { "" };
        format!("ALTER TABLE {only}{} ADD CONSTRAINT {} {} NOT VALID;", self.table, self.name, self.demand)
    }

    /// Looks at the rows.
    pub(super) fn validate(&self) -> String {
        format!("ALTER TABLE {} VALIDATE CONSTRAINT {};", self.table, self.name)
    }

    /// The table's and the constraint's names, without quotes.
    pub(super) fn plain_names(&self) -> (Option<(String, String)>, String) {
        (plain(&self.table), unquoted(&self.name))
    }
}

/// Schema and name, without quotes, of a qualified name as it stands in SQL.
pub(super) fn plain(qualified: &str) -> Option<(String, String)> {
    let (schema, name) = Reader::new(qualified).qualified()?;
    Some((unquoted(schema), unquoted(name)))
}

fn unquoted(name: &str) -> String {
    match name.strip_prefix('"').and_then(|name| name.strip_suffix('"')) {
        Some(name) => name.replace("\"\"", "\""),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_read_with_its_table() {
        let found = index("CREATE UNIQUE INDEX \"I x\" ON ONLY \"S.1\".\"t\"\"\" USING btree (lower(n));").unwrap();
        assert_eq!((found.table.as_str(), found.name.as_str()), ("\"S.1\".\"t\"\"\"", "\"S.1\".\"I x\""));
        assert_eq!(index("ALTER INDEX a.b ATTACH PARTITION a.c;"), None);
    }

    #[test]
    fn a_primary_key_becomes_an_index_and_a_constraint_over_it() {
        let found = constraint("ALTER TABLE ONLY public.t\n    ADD CONSTRAINT t_pkey PRIMARY KEY (id, \"B )\");");
        let steps = found.unwrap().stepwise().unwrap();
        assert_eq!(steps.build, "CREATE UNIQUE INDEX t_pkey ON public.t USING btree (id, \"B )\");");
        assert_eq!(steps.attach, "ALTER TABLE ONLY public.t ADD CONSTRAINT t_pkey PRIMARY KEY USING INDEX t_pkey;");
        assert_eq!(steps.index, "public.t_pkey");
    }

    #[test]
    fn what_a_unique_constraint_says_more_is_kept() {
        let sql = "ALTER TABLE ONLY s.t ADD CONSTRAINT \"U\" UNIQUE NULLS NOT DISTINCT (a) INCLUDE (b) \
                   WITH (fillfactor='70') DEFERRABLE INITIALLY DEFERRED;";
        let steps = constraint(sql).unwrap().stepwise().unwrap();
        assert_eq!(
            steps.build,
            "CREATE UNIQUE INDEX \"U\" ON s.t USING btree (a) INCLUDE (b) NULLS NOT DISTINCT WITH (fillfactor='70');"
        );
        assert!(steps.attach.ends_with("UNIQUE USING INDEX \"U\" DEFERRABLE INITIALLY DEFERRED;"), "{}", steps.attach);
    }

    #[test]
    fn other_constraints_are_made_in_one_step() {
        for demand in ["EXCLUDE USING gist (r WITH &&)", "PRIMARY KEY (id, r WITHOUT OVERLAPS)", "CHECK ((n > 0))"] {
            let found = constraint(&format!("ALTER TABLE ONLY s.t ADD CONSTRAINT c {demand};")).unwrap();
            assert_eq!((found.demand.as_str(), found.stepwise()), (demand, None));
        }
    }

    #[test]
    fn a_foreign_key_is_added_first_and_proved_later() {
        let sql = "ALTER TABLE ONLY s.t\n    ADD CONSTRAINT \"f \"\"k\" FOREIGN KEY (a, b) REFERENCES \"R\".r(a, b) \
                   ON DELETE CASCADE;";
        let found = constraint(sql).unwrap();
        assert_eq!(found.referenced().as_deref(), Some("\"R\".r"));
        assert!(!found.unproved());
        assert_eq!(found.plain_names(), (Some(("s".to_owned(), "t".to_owned())), "f \"k".to_owned()));
        assert!(found.add_unproved().ends_with("ON DELETE CASCADE NOT VALID;"), "{}", found.add_unproved());
        assert_eq!(found.validate(), "ALTER TABLE s.t VALIDATE CONSTRAINT \"f \"\"k\";");
        assert!(constraint(&sql.replace("CASCADE;", "CASCADE NOT VALID;")).unwrap().unproved());
    }
}
