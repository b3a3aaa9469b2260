//! Which changes reach a sink: of a table that is copied, those from its boundary on. No I/O.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::position::{Boundary, CommitLsn};
use crate::relation::Relations;
use crate::stop::{Reason, Stop};
use crate::transaction::{Change, Transaction};

/// What is known of the tables, by OID.
#[derive(Debug, Default)]
pub(super) struct Scope {
    /// The copied tables with their boundaries, and those that are to be copied.
    tables: HashMap<u32, Option<Boundary>>,
    /// Others whose changes arrive: the flow began without a copy.
    there: HashSet<u32>,
    /// Tables that have left the publication before they were copied.
    left: HashSet<u32>,
    /// Relations that are all known.
    seen: Option<Relations>,
    out: Option<Out>,
}

/// The tables that are left out of transactions, up to some commit.
#[derive(Debug)]
struct Out {
    tables: Option<Arc<HashSet<u32>>>,
    /// The next boundary.
    until: Option<Boundary>,
}

impl Scope {
    pub(super) fn new(tables: impl IntoIterator<Item = (u32, Option<Boundary>)>, there: HashSet<u32>) -> Scope {
        Scope { tables: tables.into_iter().collect(), there, ..Scope::default() }
    }

    /// A table is to be copied (`None`), or has been copied at this boundary.
    pub(super) fn table(&mut self, oid: u32, boundary: Option<Boundary>) {
        self.tables.insert(oid, boundary);
        self.out = None;
    }

    /// Changes of these tables arrive that are not copied.
    pub(super) fn carry(&mut self, there: HashSet<u32>) {
        self.there = there;
    }

    /// Changes of this table are left out.
    pub(super) fn leave_out(&mut self, oid: u32) {
        self.left.insert(oid);
        self.out = None;
    }

    /// The transactions without what is in a copy already, or will be. Refuses a change of a table that the flow does
    /// not know: it has joined the publication.
    pub(super) fn of<'t>(&mut self, transactions: &'t [Transaction]) -> Result<Cow<'t, [Transaction]>, Stop> {
        let mut reduced: Vec<Option<Arc<HashSet<u32>>>> = Vec::new();
        for (at, transaction) in transactions.iter().enumerate() {
            self.knows(transaction)?;
            if let Some(out) = self.out_of(transaction.commit()) {
                reduced.resize(at, None);
                reduced.push(Some(out));
            }
        }
        if reduced.is_empty() {
            return Ok(Cow::Borrowed(transactions));
        }
        reduced.resize(transactions.len(), None);
        let with = |(transaction, left_out): (&Transaction, _)| Transaction { left_out, ..transaction.clone() };
        Ok(Cow::Owned(transactions.iter().zip(reduced).map(with).collect()))
    }

    fn out_of(&mut self, commit: CommitLsn) -> Option<Arc<HashSet<u32>>> {
        if let Some(out) = &self.out
            && !out.until.is_some_and(|until| until.precedes(commit))
        {
            return out.tables.clone();
        }
        let ahead = |boundary: &Boundary| !boundary.precedes(commit);
        let pending = self.tables.iter().filter(|(_, boundary)| boundary.as_ref().is_none_or(ahead));
        let tables: HashSet<u32> = pending.map(|(oid, _)| *oid).chain(self.left.iter().copied()).collect();
        let tables = (!tables.is_empty()).then(|| Arc::new(tables));
        let until = self.tables.values().flatten().copied().filter(|boundary| ahead(boundary)).min();
        self.out = Some(Out { tables: tables.clone(), until });
        tables
    }

    /// Whether the flow knows every table that the transaction changes. Passes over the changes only where a table has
    /// been described that it does not.
    fn knows(&mut self, transaction: &Transaction) -> Result<(), Stop> {
        let known = |oid: &u32| [&self.there, &self.left].iter().any(|set| set.contains(oid)) || self.copies(*oid);
        let seen = self.seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &transaction.relations));
        let before = seen || transaction.relations.keys().all(known);
        if before && transaction.described.iter().all(|(_, relation)| known(&relation.oid)) {
            if !seen {
                self.seen = Some(Arc::clone(&transaction.relations));
            }
            return Ok(());
        }
        let mut changes = transaction.changes();
        while let Some(change) = changes.next()? {
            let relations = match &change {
                Change::Insert { relation, .. } | Change::Update { relation, .. } | Change::Delete { relation, .. } => {
                    std::slice::from_ref(*relation)
                }
                Change::Truncate { relations, .. } => relations,
                Change::Message { .. } => &[],
            };
            if let Some(relation) = relations.iter().find(|relation| !known(&relation.oid)) {
                return Err(Reason::TableJoined { table: relation.to_string(), oid: relation.oid }.into());
            }
        }
        Ok(())
    }

    fn copies(&self, oid: u32) -> bool {
        self.tables.contains_key(&oid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::Lsn;

    #[test]
    fn a_table_is_left_out_up_to_its_boundary_and_a22_not_at_it() {
        let boundary = |lsn| Some(Boundary(Lsn(lsn)));
        let mut scope = Scope::new([(1, boundary(10)), (2, boundary(20)), (3, None)], HashSet::new());
        let out = |scope: &mut Scope, lsn| {
            let mut tables: Vec<u32> =
                scope.out_of(CommitLsn(Lsn(lsn))).iter().flat_map(|t| t.iter().copied()).collect();
            tables.sort_unstable();
            tables
        };
        assert_eq!(out(&mut scope, 9), [1, 2, 3]);
        assert_eq!(out(&mut scope, 10), [2, 3]);
        assert_eq!(out(&mut scope, 19), [2, 3]);
        scope.table(3, boundary(30));
        assert_eq!(out(&mut scope, 29), [3]);
        assert_eq!(out(&mut scope, 30), [0; 0]);
        scope.leave_out(4);
        assert_eq!(out(&mut scope, 99), [4]);
    }
}
