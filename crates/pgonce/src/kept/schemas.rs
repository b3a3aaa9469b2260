//! What the tables of a flow are like, as stored: neither a restart nor a reconnect forgets it.
//!
//! A table is known from the catalog as it was when the flow was bound, or from its last description in the stream. A
//! description that comes again with a transaction that was written before may be older than what is stored, and is no
//! change back.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::record::{Unreadable, lsn, seal, unseal};
use crate::described::Described;
use crate::pgoutput::ReplicaIdentity;
use crate::position::Boundary;
use crate::relation::{Relation, RelationColumn, Relations};
use crate::schema_change::SchemaChange;
use crate::stop::Stop;
use crate::transaction::Transaction;

/// The name of the record: it changes when a table does.
pub(super) const SCHEMA: &str = "schema";

/// The tables of a flow, and what a session has been told of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Schemas {
    /// The tables that the flow was bound to are in.
    begun: bool,
    tables: BTreeMap<u32, Known>,
    /// Something is to be stored.
    changed: bool,
    /// The relations with which the last transaction began.
    at_begin: Relations,
    /// And those that were described in it.
    described: Arc<[(u64, Arc<Relation>)]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    relation: Arc<Relation>,
    /// Known from the catalog alone, read before this point. What commits before it may describe an older form.
    read_before: Option<Boundary>,
}

/// What a transaction says of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The stream says what was known, or what it was like before it was known.
    Take { relation: Arc<Relation>, store: bool },
    /// It is not what it was.
    Change(SchemaChange),
}

impl Step {
    fn relation(&self) -> &Arc<Relation> {
        match self {
            Step::Take { relation, .. } => relation,
            Step::Change(change) => change.after_shared(),
        }
    }
}

impl Schemas {
    /// Of a flow that has just been bound.
    pub(super) fn new() -> Schemas {
        Schemas { changed: true, ..Schemas::default() }
    }

    /// Whether the catalog is to be asked.
    pub(super) fn is_begun(&self) -> bool {
        self.begun
    }

    /// What the catalog says at the beginning of the flow.
    pub(super) fn begin(&mut self, described: Described) {
        let read_before = Some(described.read_before);
        for table in described.tables {
            let known = || Known { relation: Arc::new(table.clone()), read_before };
            self.tables.entry(table.oid).or_insert_with(known);
        }
        (self.begun, self.changed) = (true, true);
    }

    /// A table was copied in this form, which the sink has from the copy. What was committed before it, and is left out
    /// of the stream, says nothing of it.
    pub(super) fn copied(&mut self, relation: &Arc<Relation>) {
        self.tables.insert(relation.oid, Known { relation: Arc::clone(relation), read_before: None });
        self.changed = true;
    }

    /// What a transaction says that is about to be written, in order. Nothing is taken for known by it.
    pub(super) fn examine(&self, transaction: &Transaction) -> Result<Vec<Step>, Stop> {
        if self.says_nothing(transaction) {
            return Ok(Vec::new());
        }
        let mut steps: Vec<Step> = self.before(transaction);
        let left_out = |oid| transaction.left_out.as_ref().is_some_and(|out| out.contains(&oid));
        let described = || transaction.described.iter().filter(|(_, relation)| !left_out(relation.oid));
        let unknown = described().filter(|(_, relation)| !self.tables.contains_key(&relation.oid));
        let unknown: Vec<(u64, u32)> = unknown.map(|(at, relation)| (*at, relation.oid)).collect();
        // Of a partition that is published as its root a server describes both, and sends rows of the root alone.
        let joined = transaction.changed_at(&unknown)?;
        for (_, relation) in described() {
            let earlier = steps.iter().rev().find(|step| step.relation().oid == relation.oid);
            let (known, read_before) = match (earlier, self.tables.get(&relation.oid)) {
                (Some(step), _) => (step.relation(), None),
                (None, Some(known)) => (&known.relation, known.read_before),
                (None, None) => {
                    if joined.contains(&relation.oid) {
                        steps.push(Step::Change(SchemaChange::first_seen(relation)));
                    }
                    continue;
                }
            };
            if read_before.is_some_and(|read| !read.precedes(transaction.commit())) {
                steps.push(Step::Take { relation: Arc::clone(relation), store: true });
            } else if let Some(change) = SchemaChange::between(known, relation) {
                steps.push(Step::Change(change));
            } else if read_before.is_some() {
                steps.push(Step::Take { relation: Arc::clone(relation), store: false });
            }
        }
        Ok(steps)
    }

    /// Takes the steps of a transaction for known.
    pub(super) fn take(&mut self, transaction: &Transaction, steps: Vec<Step>) {
        for step in steps {
            self.changed |= !matches!(step, Step::Take { store: false, .. });
            let relation = Arc::clone(step.relation());
            self.tables.insert(relation.oid, Known { relation, read_before: None });
        }
        self.passed(transaction);
    }

    /// A transaction has come again that was written before. Where the catalog alone is known, what it says came
    /// earlier; anything else that is stored is as young as it, or younger.
    pub(super) fn recall(&mut self, transaction: &Transaction) {
        if self.says_nothing(transaction) {
            return;
        }
        let mut steps = self.before(transaction);
        for (_, relation) in transaction.described.iter() {
            steps.extend(self.older(relation, |read| !read.precedes(transaction.commit())));
        }
        self.take(transaction, steps);
    }

    /// What is to be stored, if it has changed since it was last asked for.
    pub(super) fn record(&mut self, id: &str) -> Option<Vec<u8>> {
        std::mem::take(&mut self.changed).then(|| self.encode(id))
    }

    /// The ordinary case: nothing has been described since the last transaction.
    fn says_nothing(&self, transaction: &Transaction) -> bool {
        transaction.described.is_empty()
            && self.described.is_empty()
            && Arc::ptr_eq(&self.at_begin, &transaction.relations)
    }

    fn passed(&mut self, transaction: &Transaction) {
        // Held, so that the map is copied when it changes, and is another one then.
        self.at_begin = Arc::clone(&transaction.relations);
        self.described = Arc::clone(&transaction.described);
    }

    /// What was described before the transaction began and in none that came here: the flow began behind it.
    fn before(&self, transaction: &Transaction) -> Vec<Step> {
        if Arc::ptr_eq(&self.at_begin, &transaction.relations) {
            return Vec::new();
        }
        let told: HashMap<u32, &Arc<Relation>> = self.described.iter().map(|(_, r)| (r.oid, r)).collect();
        let known = |relation: &Arc<Relation>| {
            let here = told.get(&relation.oid).copied().or_else(|| self.at_begin.get(&relation.oid));
            here.is_some_and(|here| Arc::ptr_eq(here, relation))
        };
        let unknown = transaction.relations.values().filter(|relation| !known(relation));
        unknown.filter_map(|relation| self.older(relation, |_| true)).collect()
    }

    fn older(&self, relation: &Arc<Relation>, is_older: impl Fn(Boundary) -> bool) -> Option<Step> {
        let read_before = self.tables.get(&relation.oid)?.read_before?;
        is_older(read_before).then(|| Step::Take { relation: Arc::clone(relation), store: true })
    }
}

#[derive(Serialize, Deserialize)]
struct SchemaText {
    id: String,
    begun: bool,
    tables: Vec<TableText>,
}

#[derive(Serialize, Deserialize)]
struct TableText {
    oid: u32,
    schema: String,
    name: String,
    identity: char,
    columns: Vec<(String, u32, i32, bool)>,
    read_before: Option<String>,
}

impl Schemas {
    fn encode(&self, id: &str) -> Vec<u8> {
        let table = |known: &Known| {
            let Relation { oid, schema, name, identity, columns } = known.relation.as_ref();
            let columns = columns.iter().map(|c| (c.name.clone(), c.type_oid, c.type_modifier, c.key));
            TableText {
                oid: *oid,
                schema: schema.clone(),
                name: name.clone(),
                identity: char::from(identity.byte()),
                columns: columns.collect(),
                read_before: known.read_before.map(|read| read.to_string()),
            }
        };
        seal(&SchemaText { id: id.to_owned(), begun: self.begun, tables: self.tables.values().map(table).collect() })
    }

    /// What is stored, and of which flow it is.
    pub(super) fn decode(bytes: &[u8]) -> Result<(String, Schemas), Unreadable> {
        let text: SchemaText = unseal(bytes)?;
        let mut schemas = Schemas { begun: text.begun, ..Schemas::default() };
        for table in text.tables {
            let identity = u8::try_from(table.identity).ok().and_then(ReplicaIdentity::from_byte);
            let columns = table.columns.into_iter();
            let relation = Relation {
                oid: table.oid,
                schema: table.schema,
                name: table.name,
                identity: identity.ok_or(Unreadable::Content)?,
                columns: columns
                    .map(|(name, type_oid, type_modifier, key)| RelationColumn { name, type_oid, type_modifier, key })
                    .collect(),
            };
            let read_before = table.read_before.map(|text| lsn(&text).map(Boundary)).transpose()?;
            schemas.tables.insert(table.oid, Known { relation: Arc::new(relation), read_before });
        }
        Ok((text.id, schemas))
    }
}

#[cfg(test)]
mod tests;
