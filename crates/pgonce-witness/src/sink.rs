//! A sink that writes rows into a PostgreSQL database, and, where it is asked to, the flow's state with them.

use std::time::Duration;

use pgonce::connect::{ConnectionSettings, SqlConnection, connect_sql};
use pgonce::pgoutput::{Column, Tuple};
use pgonce::relation::Relation;
use pgonce::sink::{AtomicSink, Batch, Sink, SinkError, State};
use pgonce::source::SourceIdentity;
use pgonce::stop::Side;
use pgonce::transaction::Change;
use postgres_protocol::escape::{escape_identifier, escape_literal};

/// Where the state goes that is stored with the data.
const STATE: &str = "CREATE TABLE IF NOT EXISTS public.flow_state (flow text PRIMARY KEY, version int8 NOT NULL, \
    records jsonb NOT NULL)";

/// SQL is sent in pieces of about this size.
const PIECE: usize = 256 << 10;

/// The tables of one database. Each batch is one transaction there.
///
/// A table with a column `id` is a mirror: its rows are put in the place of those with the same `id`, or removed, so
/// that a batch that is written twice leaves what it left the first time. Any other table is a log: rows are added,
/// and each that is added twice shows.
#[derive(Debug)]
pub struct Target {
    settings: ConnectionSettings,
    write_time: Duration,
    connection: Option<SqlConnection>,
}

impl Target {
    /// Nothing is connected yet.
    pub fn new(settings: ConnectionSettings, write_time: Duration) -> Target {
        Target { settings, write_time, connection: None }
    }

    async fn connection(&mut self) -> Result<SqlConnection, SinkError> {
        if let Some(connection) = self.connection.take() {
            return Ok(connection);
        }
        let connection = connect_sql(&self.settings, "sink").await.map_err(|e| e.into_stop(Side::Target))?;
        connection.client.batch_execute(STATE).await?;
        Ok(connection)
    }
}

impl Sink for Target {
    async fn write(&mut self, batch: &Batch<'_>) -> Result<(), SinkError> {
        // What fails on the way leaves no connection behind, and so nothing half-done.
        let connection = self.connection().await?;
        let client = &connection.client;
        let mut sql = "BEGIN;".to_owned();
        for transaction in batch.transactions() {
            let mut changes = transaction.changes();
            while let Some(change) = changes.next()? {
                statement(&change, &mut sql)?;
                if sql.len() > PIECE {
                    client.batch_execute(&sql).await?;
                    sql.clear();
                }
            }
        }
        client.batch_execute(&sql).await?;
        tokio::time::sleep(self.write_time).await;
        if !batch.state().records().is_empty() {
            store(&connection, &batch.state()).await?;
        }
        client.batch_execute("COMMIT").await?;
        self.connection = Some(connection);
        Ok(())
    }

    async fn accept_source(&mut self, _: &SourceIdentity) -> Result<(), SinkError> {
        self.connection = None;
        Ok(())
    }
}

impl AtomicSink for Target {
    async fn load(&mut self, name: &'static str) -> Result<Option<Vec<u8>>, SinkError> {
        let connection = self.connection().await?;
        let sql = "SELECT records ->> $1::text FROM public.flow_state WHERE flow = 'witness'";
        let row = connection.client.query_opt(sql, &[&name]).await?;
        self.connection = Some(connection);
        Ok(row.and_then(|row| row.get::<_, Option<String>>(0)).map(String::into_bytes))
    }
}

/// Stores the state in the place of the one that it replaces, and of no other.
async fn store(connection: &SqlConnection, state: &State<'_>) -> Result<(), SinkError> {
    let number = |version: u64| i64::try_from(version).unwrap_or(i64::MAX);
    let names: Vec<&str> = state.records().iter().map(|record| record.name()).collect();
    let contents = state.records().iter().map(|record| std::str::from_utf8(record.bytes()));
    let contents: Vec<&str> =
        contents.collect::<Result<_, _>>().map_err(|_| SinkError::permanent("a record is not UTF-8"))?;
    let sql = "
        INSERT INTO public.flow_state AS s (flow, version, records)
        SELECT $1::text, $2::int8, jsonb_object($4::text[], $5::text[])
        WHERE $3::int8 = 0 OR EXISTS (SELECT FROM public.flow_state WHERE flow = $1)
        ON CONFLICT (flow) DO UPDATE SET version = excluded.version, records = s.records || excluded.records
        WHERE s.version = $3";
    let (flow, version, replaces) = (state.flow(), number(state.version()), number(state.replaces()));
    let stored = connection.client.execute(sql, &[&flow, &version, &replaces, &names, &contents]).await?;
    if stored == 1 { Ok(()) } else { Err(SinkError::fenced(flow)) }
}

/// Adds what a change is at the target.
fn statement(change: &Change<'_>, sql: &mut String) -> Result<(), SinkError> {
    match change {
        Change::Insert { relation, new } => put(relation, &row(*new, None)?, sql),
        Change::Update { relation, old, new } => {
            let old = old.map(|old| old.tuple());
            let id = id_of(relation).ok_or_else(|| SinkError::permanent("a row of a log was updated"))?;
            let new = row(*new, old)?;
            if let Some(old) = old
                && value(old, id)? != new[id]
            {
                remove(relation, old, sql)?;
            }
            put(relation, &new, sql)
        }
        Change::Delete { relation, old } => remove(relation, old.tuple(), sql),
        Change::Truncate { relations, .. } => {
            let tables: Vec<String> = relations.iter().map(|relation| table(relation)).collect();
            sql.push_str(&format!("TRUNCATE {};", tables.join(", ")));
            Ok(())
        }
        Change::Message { prefix, content, .. } => {
            let content = String::from_utf8_lossy(content);
            let values = format!("{}, {}", escape_literal(prefix), escape_literal(&content));
            sql.push_str(&format!("INSERT INTO public.witness_message (prefix, content) VALUES ({values});"));
            Ok(())
        }
    }
}

/// The values of a row. With replica identity FULL the old row has those that were not sent because they did not
/// change.
fn row<'a>(new: Tuple<'a>, old: Option<Tuple<'a>>) -> Result<Vec<Option<&'a str>>, SinkError> {
    let column = |(at, column)| match (column, old) {
        (Column::Unchanged, Some(old)) => value(old, at),
        (column, _) => text(column),
    };
    new.iter().enumerate().map(column).collect()
}

fn value(tuple: Tuple<'_>, at: usize) -> Result<Option<&str>, SinkError> {
    text(tuple.iter().nth(at).unwrap_or(Column::Null))
}

fn text(column: Column<'_>) -> Result<Option<&str>, SinkError> {
    match column {
        Column::Null => Ok(None),
        Column::Text(bytes) => std::str::from_utf8(bytes).map(Some).map_err(|_| SinkError::permanent("not UTF-8")),
        Column::Unchanged => Err(SinkError::permanent("a mirror needs replica identity FULL at the source")),
        Column::Binary(_) => Err(SinkError::permanent("a value came in binary")),
    }
}

fn id_of(relation: &Relation) -> Option<usize> {
    relation.columns.iter().position(|column| column.name == "id")
}

fn put(relation: &Relation, row: &[Option<&str>], sql: &mut String) -> Result<(), SinkError> {
    let names: Vec<String> = relation.columns.iter().map(|column| escape_identifier(&column.name)).collect();
    sql.push_str(&format!("INSERT INTO {} ({}) VALUES (", table(relation), names.join(", ")));
    for (at, value) in row.iter().enumerate() {
        sql.push_str(if at == 0 { "" } else { ", " });
        match value {
            Some(text) => sql.push_str(&escape_literal(text)),
            None => sql.push_str("NULL"),
        }
    }
    sql.push(')');
    if id_of(relation).is_some() {
        let set: Vec<String> = names.iter().map(|name| format!("{name} = excluded.{name}")).collect();
        sql.push_str(&format!(" ON CONFLICT (id) DO UPDATE SET {}", set.join(", ")));
    }
    sql.push(';');
    Ok(())
}

fn remove(relation: &Relation, old: Tuple<'_>, sql: &mut String) -> Result<(), SinkError> {
    let id = id_of(relation).ok_or_else(|| SinkError::permanent("a row of a log was deleted"))?;
    let id = value(old, id)?.ok_or_else(|| SinkError::permanent("a row without its id"))?;
    sql.push_str(&format!("DELETE FROM {} WHERE id = {};", table(relation), escape_literal(id)));
    Ok(())
}

fn table(relation: &Relation) -> String {
    format!("{}.{}", escape_identifier(&relation.schema), escape_identifier(&relation.name))
}
