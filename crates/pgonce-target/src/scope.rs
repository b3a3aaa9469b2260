//! Which changes apply: of what was copied only those behind the boundary at which it was read. Pure.

use std::collections::{HashMap, HashSet};

use pgonce::flow::{StoredPiece, StoredTable};
use pgonce::pgoutput::{Column, ReplicaIdentity};
use pgonce::piece::{Extent, KeyValue};
use pgonce::position::{Boundary, CommitLsn};
use pgonce::relation::Relation;
use pgonce::stop::{Reason, Stop};

/// Which changes apply, by table.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    /// The copied tables, and those to be copied, by OID on the source.
    tables: HashMap<u32, Pieces>,
    /// Other tables whose changes apply: the flow began without a copy.
    there: HashSet<u32>,
}

/// What a change of a table does.
#[derive(Debug)]
pub(crate) enum Taken<'a> {
    /// It applies.
    All,
    /// It is in the copy already, or will be.
    Nothing,
    /// That depends on the row.
    ByKey(ByKey<'a>),
}

/// What an update does where that depends on the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpdateOf {
    /// Nothing.
    Nothing,
    /// It applies.
    Row,
    /// The row went where its copy has it already: the old one is deleted.
    OldOnly,
    /// The row came from where its copy has it no more: the new one is inserted.
    NewOnly,
}

impl Scope {
    /// `tables` were copied, or are to be; those `there`, by OID, were on the target from the beginning.
    pub(crate) fn new<'t>(tables: impl IntoIterator<Item = &'t StoredTable>, there: HashSet<u32>) -> Scope {
        let tables = tables.into_iter().map(|table| (table.oid, Pieces::new(&table.pieces))).collect();
        Scope { tables, there }
    }

    /// Adds a table that is to be copied, or puts it in the place of what was known of it.
    pub(crate) fn plan(&mut self, table: u32, pieces: &[StoredPiece]) {
        self.tables.insert(table, Pieces::new(pieces));
    }

    /// A piece has been copied.
    pub(crate) fn landed(&mut self, table: u32, piece: i32, boundary: Boundary) {
        if let Some(pieces) = self.tables.get_mut(&table) {
            pieces.landed(piece, boundary);
        }
    }

    /// Whether a change of `relation` in the transaction that committed at `commit` applies.
    pub(crate) fn takes<'a>(&'a self, relation: &'a Relation, commit: CommitLsn) -> Result<Taken<'a>, Stop> {
        match self.tables.get(&relation.oid) {
            Some(pieces) => Ok(pieces.takes(relation, commit)),
            None if self.there.contains(&relation.oid) => Ok(Taken::All),
            None => Err(Reason::TableJoined { table: relation.to_string(), oid: relation.oid }.into()),
        }
    }
}

/// The pieces of a table, in their order.
#[derive(Debug)]
struct Pieces {
    /// The column that they are ranges of. `None`: they hold only all together.
    column: Option<String>,
    pieces: Vec<Range>,
    /// The boundary of the piece that was read first, and of the one that was read last if all were.
    first: Option<Boundary>,
    last: Option<Boundary>,
}

/// A piece: it begins where the one before ends.
#[derive(Debug)]
struct Range {
    number: i32,
    high: Option<KeyValue>,
    extent: Extent,
    boundary: Option<Boundary>,
}

impl Pieces {
    fn new(pieces: &[StoredPiece]) -> Pieces {
        let column = pieces.iter().find_map(|piece| match &piece.extent {
            Extent::Key { column, .. } => Some(column.clone()),
            _ => None,
        });
        let range = |piece: &StoredPiece| Range {
            number: piece.number,
            high: match &piece.extent {
                Extent::Key { high, .. } => *high,
                _ => None,
            },
            extent: piece.extent.clone(),
            boundary: piece.boundary,
        };
        let mut pieces = Pieces { column, pieces: pieces.iter().map(range).collect(), first: None, last: None };
        pieces.summarise();
        pieces
    }

    fn summarise(&mut self) {
        let boundaries = || self.pieces.iter().map(|piece| piece.boundary);
        self.first = boundaries().flatten().min();
        let all = boundaries().all(|boundary| boundary.is_some());
        self.last = if all { boundaries().flatten().max() } else { None };
    }

    fn landed(&mut self, number: i32, boundary: Boundary) {
        if let Some(piece) = self.pieces.iter_mut().find(|piece| piece.number == number) {
            piece.boundary = Some(boundary);
            self.summarise();
        }
    }

    fn takes<'a>(&'a self, relation: &'a Relation, commit: CommitLsn) -> Taken<'a> {
        if self.last.is_some_and(|last| last.precedes(commit)) {
            return Taken::All;
        }
        match &self.column {
            Some(column) if self.first.is_some_and(|first| first.precedes(commit)) => {
                Taken::ByKey(ByKey { pieces: self, column, relation, commit })
            }
            _ => Taken::Nothing,
        }
    }

    /// The piece that holds a value.
    fn piece(&self, value: KeyValue) -> Option<&Range> {
        let at = self.pieces.partition_point(|piece| piece.high.is_some_and(|high| high <= value));
        self.pieces.get(at)
    }
}

/// A table of which some ranges take a transaction, and others have it in their copy.
#[derive(Debug)]
pub(crate) struct ByKey<'a> {
    pieces: &'a Pieces,
    column: &'a str,
    relation: &'a Relation,
    commit: CommitLsn,
}

impl<'a> ByKey<'a> {
    /// Whether an insert applies.
    pub(crate) fn insert<'c>(&self, new: impl IntoIterator<Item = Column<'c>>) -> Result<bool, Stop> {
        self.applies(new)
    }

    /// Whether a delete applies.
    pub(crate) fn delete<'c>(&self, old: impl IntoIterator<Item = Column<'c>>) -> Result<bool, Stop> {
        self.identified()?;
        self.applies(old)
    }

    /// What an update does. Without an old row the key is what it was.
    pub(crate) fn update(&self, old: Option<&[Column<'_>]>, new: &[Column<'_>]) -> Result<UpdateOf, Stop> {
        self.identified()?;
        let after = self.applies(new.iter().copied())?;
        let before = match old {
            Some(old) => self.applies(old.iter().copied())?,
            None => after,
        };
        Ok(match (before, after) {
            (false, false) => UpdateOf::Nothing,
            (true, true) => UpdateOf::Row,
            (true, false) => UpdateOf::OldOnly,
            (false, true) => UpdateOf::NewOnly,
        })
    }

    /// The conditions of the ranges that a TRUNCATE empties, for the column of that name on the target.
    pub(crate) fn truncated(&self) -> Vec<String> {
        let taken = self.pieces.pieces.iter().filter(|piece| self.is_taken(piece));
        taken.map(|piece| piece.extent.condition(self.column).unwrap_or_else(|| "true".to_owned())).collect()
    }

    /// A row that comes into a range without a value that the copy of another range has.
    pub(crate) fn incomplete(&self) -> Stop {
        self.undecided("a row was moved from one range of its copy to another, with a value that was not sent")
    }

    fn is_taken(&self, piece: &Range) -> bool {
        piece.boundary.is_some_and(|boundary| boundary.precedes(self.commit))
    }

    fn applies<'c>(&self, row: impl IntoIterator<Item = Column<'c>>) -> Result<bool, Stop> {
        let place = self.relation.columns.iter().position(|column| column.name == *self.column);
        let column = place.and_then(|place| row.into_iter().nth(place));
        let value = column.and_then(|column| KeyValue::of(&column));
        let piece = value.and_then(|value| self.pieces.piece(value));
        match piece {
            Some(piece) => Ok(self.is_taken(piece)),
            None => Err(self.undecided("a change of it does not say in which range of its copy the row lies")),
        }
    }

    /// The ranges' column must be one by which the source identifies rows: else an update that changes it does not say
    /// so.
    fn identified(&self) -> Result<(), Stop> {
        let full = matches!(self.relation.identity, ReplicaIdentity::Full);
        if full || self.relation.columns.iter().any(|column| column.key && column.name == *self.column) {
            return Ok(());
        }
        let what = format!("its replica identity has lost column {:?}, whose ranges it is copied by", self.column);
        Err(self.undecided(&what))
    }

    fn undecided(&self, what: &str) -> Stop {
        Reason::SchemaMismatch {
            table: self.relation.to_string(),
            what: format!("{what}, and its ranges were read at different times"),
            hint: format!("Copy the table again: `pgonce run --reseed {}`. The other tables go on.", self.relation),
        }
        .into()
    }
}

#[cfg(test)]
#[path = "scope_tests.rs"]
mod tests;
