//! A sink that keeps tables in memory as the source has them, with everything that it was told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgonce::pgoutput::{Column, Tuple};
use pgonce::relation::Relation;
use pgonce::schema_change::{SchemaChange, SchemaDecision};
use pgonce::sink::{AtomicSink, Batch, CopiedRows, CopiedTable, Sink, SinkError, State};
use pgonce::source::SourceIdentity;
use pgonce::transaction::Change;
use tokio_postgres::Client;

pub type Row = Vec<Option<String>>;

/// What has been persisted, and how the sink behaves: both outlive every session.
#[derive(Debug, Default)]
pub struct Persisted {
    /// Rows by table and key.
    pub tables: BTreeMap<String, BTreeMap<Row, Vec<Row>>>,
    /// Tables as the copy described them.
    pub copied: BTreeMap<String, Relation>,
    /// Tables whose last rows have come.
    pub complete: BTreeSet<String>,
    pub records: BTreeMap<&'static str, Vec<u8>>,
    pub version: u64,
    pub sessions: u32,
    /// Tables whose copy began, and whether anew.
    pub begun: Vec<(String, bool)>,
    /// Rows that came together: table, how many, how many bytes.
    pub chunks: Vec<(String, usize, usize)>,
    pub truncated: Vec<Vec<String>>,
    /// Transactions without changes.
    pub empty: usize,
    /// Changes of tables that it was asked about.
    pub changed: Vec<String>,
    /// Says that it takes no copy.
    pub takes_none: bool,
    /// Takes transactions when they are prepared.
    pub takes_prepared: bool,
    /// How long it takes to take rows.
    pub slow: Duration,
    /// Holds for ever when the copy of this table begins.
    pub hold: Option<&'static str>,
    pub held: bool,
    /// Counts rows and keeps none.
    pub counts_only: bool,
    /// Fails at the chunk with this number, before or after it has persisted it.
    pub fault: Option<(usize, Fault)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Before,
    After,
    ForGood,
}

#[derive(Clone, Debug, Default)]
pub struct Mirror(pub Arc<Mutex<Persisted>>);

impl Persisted {
    fn store(&mut self, state: &State<'_>) -> Result<(), SinkError> {
        if state.records().is_empty() {
            return Ok(());
        }
        if self.version != state.replaces() {
            return Err(SinkError::fenced(state.flow()));
        }
        self.version = state.version();
        self.records.extend(state.records().iter().map(|r| (r.name(), r.bytes().to_vec())));
        Ok(())
    }

    fn table(&mut self, relation: &Relation) -> &mut BTreeMap<Row, Vec<Row>> {
        if let Some(copied) = self.copied.get(&relation.name) {
            assert_eq!(copied, relation, "the copy describes the table as the stream does");
        }
        self.tables.entry(relation.name.clone()).or_default()
    }

    fn remove(&mut self, relation: &Relation, key: &Row) -> Row {
        let rows = self.table(relation).get_mut(key);
        let row = rows.and_then(Vec::pop);
        row.unwrap_or_else(|| panic!("a row of {relation} is not there"))
    }

    fn apply(&mut self, change: &Change<'_>) {
        match change {
            Change::Insert { relation, new } => {
                let row = row(new);
                self.table(relation).entry(key(relation, &row)).or_default().push(row);
            }
            Change::Update { relation, old, new } => {
                let new = row_or(new);
                let old = match old {
                    Some(old) => row(&old.tuple()),
                    None => new.iter().map(|value| value.clone().flatten()).collect(),
                };
                let before = self.remove(relation, &key(relation, &old));
                let row: Row = new.into_iter().zip(before).map(|(new, before)| new.unwrap_or(before)).collect();
                self.table(relation).entry(key(relation, &row)).or_default().push(row);
            }
            Change::Delete { relation, old } => {
                let _ = self.remove(relation, &key(relation, &row(&old.tuple())));
            }
            Change::Truncate { relations, .. } => {
                self.truncated.push(relations.iter().map(|r| r.name.clone()).collect());
                relations.iter().for_each(|relation| self.table(relation).clear());
            }
            Change::Message { .. } => {}
        }
    }
}

fn row_or(tuple: &Tuple<'_>) -> Vec<Option<Option<String>>> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    tuple
        .iter()
        .map(|column| match column {
            Column::Unchanged => None,
            Column::Null => Some(None),
            Column::Text(bytes) => Some(Some(text(bytes))),
            Column::Binary(_) => panic!("text was asked for"),
        })
        .collect()
}

fn row(tuple: &Tuple<'_>) -> Row {
    row_or(tuple).into_iter().map(Option::flatten).collect()
}

fn key(relation: &Relation, row: &Row) -> Row {
    assert_eq!(relation.columns.len(), row.len());
    relation.columns.iter().zip(row).filter(|(column, _)| column.key).map(|(_, value)| value.clone()).collect()
}

impl Sink for Mirror {
    async fn write(&mut self, batch: &Batch<'_>) -> Result<(), SinkError> {
        let mut persisted = self.0.lock().unwrap();
        persisted.store(&batch.state())?;
        for transaction in batch.transactions() {
            let mut changes = transaction.changes();
            let mut any = false;
            while let Some(change) = changes.next()? {
                any = true;
                persisted.apply(&change);
            }
            persisted.empty += usize::from(!any);
        }
        Ok(())
    }

    async fn accept_source(&mut self, _: &SourceIdentity) -> Result<(), SinkError> {
        self.0.lock().unwrap().sessions += 1;
        Ok(())
    }

    fn takes_copy(&self) -> bool {
        !self.0.lock().unwrap().takes_none
    }

    fn takes_prepared(&self) -> bool {
        self.0.lock().unwrap().takes_prepared
    }

    async fn schema_change(&mut self, change: &SchemaChange) -> Result<SchemaDecision, SinkError> {
        let mut persisted = self.0.lock().unwrap();
        let after = change.after();
        persisted.changed.push(after.name.clone());
        persisted.copied.insert(after.name.clone(), after.clone());
        Ok(SchemaDecision::Accept)
    }

    async fn begin_table(&mut self, table: &CopiedTable<'_>) -> Result<(), SinkError> {
        let name = table.relation().name.clone();
        let holds = {
            let mut persisted = self.0.lock().unwrap();
            persisted.held = persisted.hold.is_some_and(|hold| hold == name);
            persisted.held
        };
        if holds {
            std::future::pending::<()>().await;
        }
        let mut persisted = self.0.lock().unwrap();
        persisted.store(&table.state())?;
        let rows = persisted.tables.entry(name.clone()).or_default();
        if table.is_anew() {
            rows.clear();
        }
        assert!(rows.is_empty(), "rows of {name} are there, and nobody says so");
        persisted.complete.remove(&name);
        persisted.copied.insert(name.clone(), Relation::clone(table.relation()));
        persisted.begun.push((name, table.is_anew()));
        Ok(())
    }

    async fn rows(&mut self, rows: &CopiedRows<'_>) -> Result<(), SinkError> {
        let slow = self.0.lock().unwrap().slow;
        tokio::time::sleep(slow).await;
        let mut persisted = self.0.lock().unwrap();
        let fault = persisted.fault.filter(|(at, _)| *at == persisted.chunks.len()).map(|(_, fault)| fault);
        match fault {
            Some(Fault::Before) => {
                persisted.fault = None;
                return Err(SinkError::transient("told to fail before"));
            }
            Some(Fault::ForGood) => return Err(SinkError::permanent("told to fail for good")),
            _ => {}
        }
        persisted.store(&rows.state())?;
        let relation = rows.relation();
        assert!(!persisted.complete.contains(&relation.name), "rows behind the last ones of {relation}");
        let bytes = rows.rows().map(|tuple| tuple.wire_len()).sum();
        persisted.chunks.push((relation.name.clone(), rows.len(), bytes));
        if !persisted.counts_only {
            for tuple in rows.rows() {
                let row = row(&tuple);
                persisted.table(relation).entry(key(relation, &row)).or_default().push(row);
            }
        }
        if rows.is_last() {
            persisted.complete.insert(relation.name.clone());
        }
        if fault == Some(Fault::After) {
            persisted.fault = None;
            return Err(SinkError::transient("told to fail after"));
        }
        Ok(())
    }
}

impl AtomicSink for Mirror {
    async fn load(&mut self, name: &'static str) -> Result<Option<Vec<u8>>, SinkError> {
        Ok(self.0.lock().unwrap().records.get(name).cloned())
    }
}

impl Mirror {
    pub fn look<T>(&self, look: impl FnOnce(&mut Persisted) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }

    pub fn rows(&self, table: &str) -> Vec<Row> {
        let mut rows: Vec<Row> = self
            .look(|p| p.tables.get(table).map(|rows| rows.values().flatten().cloned().collect()))
            .unwrap_or_default();
        rows.sort();
        rows
    }

    /// How often the copy of a table began.
    pub fn begun(&self, table: &str) -> usize {
        self.look(|p| p.begun.iter().filter(|(name, _)| name == table).count())
    }

    pub fn is_held(&self) -> bool {
        self.look(|p| p.held)
    }

    pub fn is_complete(&self, table: &str) -> bool {
        self.look(|p| p.complete.contains(table))
    }

    /// Every row of these tables, and of each exactly as many as the source has.
    #[track_caller]
    pub fn assert_same(&self, table: &str, source: Vec<Row>, case: &str) {
        let here = self.rows(table);
        let differs = here.iter().zip(&source).position(|(here, there)| here != there);
        let at = differs.unwrap_or(here.len().min(source.len()));
        let (one, other) = (here.get(at), source.get(at));
        assert!(
            here == source,
            "{table}: {} rows, {} at the source; {one:?}, {other:?} ({case})",
            here.len(),
            source.len()
        );
    }
}

/// The rows of a table at the source, with these columns.
pub async fn rows_at(source: &Client, table: &str, columns: &str) -> Vec<Row> {
    let list: Vec<String> = columns.split(',').map(|column| format!("{column}::text")).collect();
    let rows = source.query(&format!("SELECT {} FROM {table}", list.join(", ")), &[]).await.unwrap();
    let mut rows: Vec<Row> = rows.iter().map(|row| (0..row.len()).map(|at| row.get(at)).collect()).collect();
    rows.sort();
    rows
}
