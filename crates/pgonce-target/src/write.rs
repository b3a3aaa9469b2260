//! The row writer: changes in source order, many statements in flight, consecutive inserts into one table as one
//! statement.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::BytesMut;
use pgonce::connect::SqlConnection;
use pgonce::pgoutput::{Column, OldTuple, ReplicaIdentity, Tuple};
use pgonce::relation::Relation;
use pgonce::transaction::{Change, Transaction};
use tokio_postgres::types::Type;

use crate::failure::{Failure, unidentified};
use crate::inflight::{InFlight, Subject};
use crate::plan::{Planner, Scope};
use crate::prepared::{Prepared, Turn};
use crate::run::{InsertRun, RUN_ROWS_MIN};
use crate::schema::{Mapping, missing_table, read_table};
use crate::statement::{self, Locator, Parameter, Statement};
use crate::value::RawValue;

/// Writes rows one after the other.
#[derive(Default)]
pub(crate) struct RowWriter {
    /// By the relation's OID.
    tables: HashMap<u32, Table>,
    /// Statements prepared for all tables.
    prepared: usize,
    run: InsertRun,
    arena: BytesMut,
    /// The key of a statement, put together anew for each change.
    shape: Vec<u8>,
}

struct Table {
    mapping: Arc<Mapping>,
    /// By shape: the operation, and what decides the statement's text.
    statements: HashMap<Box<[u8]>, Arc<Prepared>>,
}

/// Where more statements have been prepared than this, all are forgotten: shapes of wide tables could be without
/// number.
const PREPARED_MAX: usize = 2_000;

impl Planner for RowWriter {
    async fn apply(
        &mut self,
        connection: &Arc<SqlConnection>,
        group: &[Transaction],
        scope: &Scope,
        flight: &mut InFlight,
    ) -> Result<u64, Failure> {
        // A run that a failed attempt left behind belongs to that attempt.
        self.run.clear();
        let mut applied = 0;
        for transaction in group {
            let turn = Turn { connection, commit: transaction.commit(), xid: transaction.xid() };
            let mut changes = transaction.changes();
            while let Some(change) = changes.next()? {
                applied += self.change(turn, &change, scope, flight).await?;
            }
        }
        self.flush(connection, flight).await?;
        Ok(applied)
    }

    fn forget(&mut self) {
        self.tables.clear();
        self.prepared = 0;
        self.run.clear();
    }
}

impl RowWriter {
    async fn change(
        &mut self,
        turn: Turn<'_>,
        change: &Change<'_>,
        scope: &Scope,
        flight: &mut InFlight,
    ) -> Result<u64, Failure> {
        match change {
            Change::Insert { relation, new } => {
                if !scope.takes(relation, turn.commit)? {
                    return Ok(0);
                }
                self.insert(turn, relation, *new, flight).await?;
            }
            Change::Update { relation, old, new } => {
                if !scope.takes(relation, turn.commit)? {
                    return Ok(0);
                }
                self.flush(turn.connection, flight).await?;
                self.update(turn, relation, *old, *new, flight).await?;
            }
            Change::Delete { relation, old } => {
                if !scope.takes(relation, turn.commit)? {
                    return Ok(0);
                }
                self.flush(turn.connection, flight).await?;
                self.delete(turn, relation, *old, flight).await?;
            }
            Change::Truncate { relations, restart_identity, cascade: _ } => {
                self.flush(turn.connection, flight).await?;
                return self.truncate(turn, relations, *restart_identity, scope, flight).await;
            }
            // A message has no place in a table.
            Change::Message { .. } => return Ok(0),
        }
        Ok(1)
    }

    async fn insert(
        &mut self,
        turn: Turn<'_>,
        relation: &Arc<Relation>,
        new: Tuple<'_>,
        flight: &mut InFlight,
    ) -> Result<(), Failure> {
        if !self.run.takes(relation) {
            self.flush(turn.connection, flight).await?;
            let mapping = self.mapping(turn.connection, relation, flight).await?;
            self.run.begin(mapping, turn);
        }
        if self.run.push(new) {
            if self.run.is_full() {
                self.flush(turn.connection, flight).await?;
            }
            return Ok(());
        }
        // Not for a run: a value in binary format, or a table where something watches each row.
        self.flush(turn.connection, flight).await?;
        let mapping = self.mapping(turn.connection, relation, flight).await?;
        let new: Vec<Column<'_>> = new.iter().collect();
        self.shape.clear();
        self.shape.push(b'I');
        let prepared = self.prepared(turn.connection, &mapping, flight, insert_parts).await?;
        self.send(turn, prepared, &new, &[], flight).await
    }

    /// Sends the run of inserts that has gathered.
    async fn flush(&mut self, connection: &Arc<SqlConnection>, flight: &mut InFlight) -> Result<(), Failure> {
        let Some((mapping, commit, xid)) = self.run.subject() else { return Ok(()) };
        let turn = Turn { connection, commit, xid };
        self.shape.clear();
        let rows = self.run.rows();
        if rows >= RUN_ROWS_MIN {
            self.shape.push(b'R');
            let prepared = self.prepared(connection, &mapping, flight, run_parts).await?;
            let values = self.run.take_arrays();
            return self.send_values(turn, prepared, values, rows as u64, flight).await;
        }
        self.shape.push(b'I');
        let prepared = self.prepared(connection, &mapping, flight, insert_parts).await?;
        for values in self.run.take_rows() {
            self.send_values(turn, Arc::clone(&prepared), values, 1, flight).await?;
        }
        Ok(())
    }

    async fn update(
        &mut self,
        turn: Turn<'_>,
        relation: &Arc<Relation>,
        old: Option<OldTuple<'_>>,
        new: Tuple<'_>,
        flight: &mut InFlight,
    ) -> Result<(), Failure> {
        let mapping = self.mapping(turn.connection, relation, flight).await?;
        let new: Vec<Column<'_>> = new.iter().collect();
        let old: Option<Vec<Column<'_>>> = old.map(|old| old.tuple().iter().collect());
        let (locator, tag) = locate(&mapping, old.as_deref(), &new).ok_or_else(|| unidentified(relation, "UPDATE"))?;
        let locator = locator.borrowed(&mapping);
        self.shape.clear();
        self.shape.extend_from_slice(b"U");
        self.shape.extend_from_slice(&tag.to_be_bytes());
        let mut replaces = false;
        let mut set = Vec::with_capacity(new.len());
        for column in &mapping.writable {
            let Some(value) = new.get(*column) else { return Err(unidentified(relation, "UPDATE")) };
            let before = old.as_ref().and_then(|old| old.get(*column));
            let in_key = matches!(locator, Locator::Key { columns, .. } if columns.contains(column));
            let full = matches!(relation.identity, ReplicaIdentity::Full);
            // Of the old row only key columns are known, unless all are.
            let unchanged = match before {
                Some(before) if in_key || full => before == value,
                _ => in_key,
            };
            let always = mapping.column(*column).identity_always;
            if matches!(value, Column::Unchanged) || (unchanged && (in_key || always)) {
                continue;
            }
            replaces |= always;
            self.shape.extend_from_slice(&(*column as u16).to_be_bytes());
            set.push(*column);
        }
        if let Locator::Image { nulls } = locator {
            self.shape.extend(mapping.lookup.iter().map(|c| u8::from(nulls.get(*c) == Some(&true))));
        }
        if replaces {
            self.shape.push(b'!');
        }
        let key = locator.columns(&mapping);
        let make = |m: &Mapping| {
            let statement =
                if replaces { statement::replace(m, &set, locator) } else { statement::update(m, &set, locator) };
            Parts { statement, operation: "UPDATE", key, types: Vec::new() }
        };
        let prepared = self.prepared(turn.connection, &mapping, flight, make).await?;
        self.send(turn, prepared, &new, old.as_deref().unwrap_or_default(), flight).await
    }

    async fn delete(
        &mut self,
        turn: Turn<'_>,
        relation: &Arc<Relation>,
        old: OldTuple<'_>,
        flight: &mut InFlight,
    ) -> Result<(), Failure> {
        let mapping = self.mapping(turn.connection, relation, flight).await?;
        let old: Vec<Column<'_>> = old.tuple().iter().collect();
        let (locator, tag) = locate(&mapping, Some(&old), &[]).ok_or_else(|| unidentified(relation, "DELETE"))?;
        let locator = locator.borrowed(&mapping);
        self.shape.clear();
        self.shape.extend_from_slice(b"D");
        self.shape.extend_from_slice(&tag.to_be_bytes());
        if let Locator::Image { nulls } = locator {
            self.shape.extend(mapping.lookup.iter().map(|c| u8::from(nulls.get(*c) == Some(&true))));
        }
        let key = locator.columns(&mapping);
        let make = |m: &Mapping| Parts {
            statement: statement::delete(m, locator),
            operation: "DELETE",
            key,
            types: Vec::new(),
        };
        let prepared = self.prepared(turn.connection, &mapping, flight, make).await?;
        self.send(turn, prepared, &[], &old, flight).await
    }

    async fn truncate(
        &mut self,
        turn: Turn<'_>,
        relations: &[Arc<Relation>],
        restart_identity: bool,
        scope: &Scope,
        flight: &mut InFlight,
    ) -> Result<u64, Failure> {
        let mut tables = Vec::with_capacity(relations.len());
        for relation in relations {
            if scope.takes(relation, turn.commit)? {
                tables.push(self.mapping(turn.connection, relation, flight).await?);
            }
        }
        let Some(first) = tables.first() else { return Ok(0) };
        flight.drain().await?;
        let of_first = Some((first.table.schema.clone(), first.table.name.clone()));
        // With the others of the list out of it, because they were copied later, foreign keys may forbid to truncate.
        let sql = if tables.len() < relations.len() {
            statement::delete_all(&tables)
        } else {
            statement::truncate(&tables, restart_identity)
        };
        let done = turn.connection.client.batch_execute(&sql).await;
        done.map_err(|error| Failure::Sql { error, table: of_first.filter(|_| tables.len() == 1) })?;
        Ok(tables.len() as u64)
    }

    /// How `relation`, as it is described now, lies on the target.
    async fn mapping(
        &mut self,
        connection: &Arc<SqlConnection>,
        relation: &Arc<Relation>,
        flight: &mut InFlight,
    ) -> Result<Arc<Mapping>, Failure> {
        if let Some(table) = self.tables.get(&relation.oid)
            && (Arc::ptr_eq(&table.mapping.relation, relation) || table.mapping.relation == *relation)
        {
            return Ok(Arc::clone(&table.mapping));
        }
        // Every statement before must have gone well, or the question is not answered; see also `InFlight`.
        flight.drain().await?;
        let table = read_table(&connection.client, &relation.schema, &relation.name).await?;
        let table = table.ok_or_else(|| missing_table(&relation.schema, &relation.name))?;
        let mapping = Arc::new(Mapping::new(relation, table)?);
        let fresh = Table { mapping: Arc::clone(&mapping), statements: HashMap::new() };
        if let Some(stale) = self.tables.insert(relation.oid, fresh) {
            self.prepared -= stale.statements.len();
        }
        Ok(mapping)
    }

    /// The statement of the current shape.
    async fn prepared(
        &mut self,
        connection: &Arc<SqlConnection>,
        mapping: &Arc<Mapping>,
        flight: &mut InFlight,
        make: impl FnOnce(&Mapping) -> Parts,
    ) -> Result<Arc<Prepared>, Failure> {
        let known = self.tables.get(&mapping.relation.oid).and_then(|t| t.statements.get(self.shape.as_slice()));
        if let Some(prepared) = known {
            return Ok(Arc::clone(prepared));
        }
        flight.drain().await?;
        if self.prepared >= PREPARED_MAX {
            self.tables.values_mut().for_each(|table| table.statements.clear());
            self.prepared = 0;
        }
        let Parts { statement: Statement { sql, parameters }, operation, key, types } = make(mapping);
        let of_table = || Some((mapping.table.schema.clone(), mapping.table.name.clone()));
        let statement = connection.client.prepare_typed(&sql, &types).await;
        let statement = statement.map_err(|error| Failure::Sql { error, table: of_table() })?;
        let prepared = Arc::new(Prepared { statement, parameters, mapping: Arc::clone(mapping), operation, key });
        if let Some(table) = self.tables.get_mut(&mapping.relation.oid) {
            table.statements.insert(self.shape.as_slice().into(), Arc::clone(&prepared));
            self.prepared += 1;
        }
        Ok(prepared)
    }

    async fn send(
        &mut self,
        turn: Turn<'_>,
        prepared: Arc<Prepared>,
        new: &[Column<'_>],
        old: &[Column<'_>],
        flight: &mut InFlight,
    ) -> Result<(), Failure> {
        let mut values = Vec::with_capacity(prepared.parameters.len());
        for parameter in &prepared.parameters {
            let column = match *parameter {
                Parameter::New(column) => new.get(column),
                Parameter::Old(column) => old.get(column),
            };
            match column {
                // An absent value must never become NULL.
                None | Some(Column::Unchanged) => {
                    return Err(unidentified(&prepared.mapping.relation, prepared.operation));
                }
                Some(column) => values.push(RawValue::of(*column, &mut self.arena)),
            }
        }
        self.send_values(turn, prepared, values, 1, flight).await
    }

    async fn send_values(
        &mut self,
        turn: Turn<'_>,
        prepared: Arc<Prepared>,
        values: Vec<RawValue>,
        rows: u64,
        flight: &mut InFlight,
    ) -> Result<(), Failure> {
        let statement = prepared.statement.clone();
        let subject = Subject::Change { statement: prepared, commit: turn.commit, xid: turn.xid, rows };
        flight.send(turn.connection, &statement, values, subject).await
    }
}

/// What a statement is made of.
struct Parts {
    statement: Statement,
    operation: &'static str,
    key: Vec<usize>,
    types: Vec<Type>,
}

fn insert_parts(m: &Mapping) -> Parts {
    Parts { statement: statement::insert(m), operation: "INSERT", key: Vec::new(), types: Vec::new() }
}

fn run_parts(m: &Mapping) -> Parts {
    let statement = Statement { sql: statement::insert_run(m), parameters: Vec::new() };
    Parts { statement, operation: "INSERT", key: Vec::new(), types: vec![Type::TEXT_ARRAY; m.writable.len()] }
}

/// A [`Locator`] that owns what it has learned of the row.
enum Located {
    Key { key: usize, old: bool },
    Image { nulls: Vec<bool> },
}

impl Located {
    fn borrowed<'a>(&'a self, mapping: &'a Mapping) -> Locator<'a> {
        match self {
            Located::Key { key, old } => Locator::Key { columns: &mapping.keys[*key], old: *old },
            Located::Image { nulls } => Locator::Image { nulls },
        }
    }
}

/// How to find the row, and a number that is the same for the same way.
fn locate(mapping: &Mapping, old: Option<&[Column<'_>]>, new: &[Column<'_>]) -> Option<(Located, u16)> {
    let full = matches!(mapping.relation.identity, ReplicaIdentity::Full);
    match old {
        Some(old) => match mapping.key_in(old) {
            Some(key) => Some((Located::Key { key, old: true }, key as u16)),
            None if full && !mapping.writable.is_empty() => {
                let nulls = old.iter().map(|c| matches!(c, Column::Null)).collect();
                Some((Located::Image { nulls }, u16::MAX))
            }
            None => None,
        },
        // With FULL an old row is always sent.
        None if full => None,
        None => mapping.key_in(new).map(|key| (Located::Key { key, old: false }, u16::MAX - 1)),
    }
}
