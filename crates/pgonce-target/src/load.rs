//! The initial copy of one table: its rows as they come, and the word that it was copied, in one commit.

use std::pin::pin;

use bytes::Bytes;
use futures_util::SinkExt;
use pgonce::position::Boundary;
use pgonce::published::{Published, PublishedTable};
use pgonce::snapshot::TableRows;
use pgonce::sql_error::{TARGET_ENCODING, condition, fault_of, is_encoding, passes};
use pgonce::stop::{Reason, Stop};
use tokio_postgres::CopyInSink;

use crate::context::copy_place;
use crate::ledger::{self, ledger_stop, lsn, sql_stop};
use crate::names::refuse_long_names;
use crate::schema::{TargetTable, lookup_failed, missing_table, read_table};
use crate::session::Session;

/// Copies a table, inside a transaction of its own. After an error the session is not to be used again.
pub(crate) async fn load(
    session: &Session,
    table: &PublishedTable,
    boundary: Boundary,
    mut rows: TableRows,
) -> Result<u64, Stop> {
    let client = &session.connection.client;
    // Synchronous: the stream may be acknowledged up to the boundary from here on.
    let begin = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL synchronous_commit = on";
    client.batch_execute(begin).await.map_err(sql_stop)?;
    let target = read_table(client, &table.schema, &table.name).await;
    let target = target.map_err(|e| lookup_failed(&table.schema, &table.name, e).into_stop(None))?;
    let target = target.ok_or_else(|| missing_table(&table.schema, &table.name))?;
    let statement = copy_in_statement(table, &target)?;
    refuse_long_names(table, &target, rows.long_names())?;
    let only = if target.partitioned { "" } else { "ONLY " };
    // Two flows that are started together must not both find it empty.
    let lock = format!("LOCK TABLE {only}{} IN SHARE ROW EXCLUSIVE MODE", target.quoted);
    client.batch_execute(&lock).await.map_err(|e| copy_stop(table, e))?;
    if occupied(session, &target).await? {
        return Err(Reason::TargetNotEmpty { tables: vec![target.quoted] }.into());
    }
    let copied = {
        let sink: CopyInSink<Bytes> = client.copy_in(&statement).await.map_err(|e| copy_stop(table, e))?;
        let mut sink = pin!(sink);
        while let Some(piece) = rows.next().await? {
            sink.feed(piece).await.map_err(|e| copy_stop(table, e))?;
        }
        sink.finish().await.map_err(|e| copy_stop(table, e))?
    };
    if copied != rows.count() {
        return Err(Reason::SchemaMismatch {
            table: table.to_string(),
            what: format!("of {} rows that were copied into it, it took {copied}", rows.count()),
            hint: "Something on the target swallows rows: a trigger (ENABLE ALWAYS, or where the role may not set \
                   session_replication_role) or a rule. Disable it for the flow."
                .to_owned(),
        }
        .into());
    }
    let sql = "
        INSERT INTO pgonce.snapshot (flow, table_oid, schema_name, table_name, boundary, rows)
        VALUES ($1, $2, $3, $4, $5, $6)
        ON CONFLICT (flow, table_oid) DO UPDATE SET
            schema_name = excluded.schema_name, table_name = excluded.table_name,
            boundary = excluded.boundary, rows = excluded.rows, copied_at = excluded.copied_at";
    let failed = |e| ledger_stop(&session.flow, e);
    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 6] =
        [&&*session.flow, &table.oid, &table.schema, &table.name, &lsn(boundary.0), &copied.cast_signed()];
    client.execute(sql, &parameters).await.map_err(failed)?;
    let fence =
        "UPDATE pgonce.flow SET updated_at = pg_catalog.now() WHERE name = $1 AND epoch = $2 AND phase = 'copying'";
    if client.execute(fence, &[&&*session.flow, &session.epoch]).await.map_err(failed)? == 0 {
        client.batch_execute("ROLLBACK").await.map_err(sql_stop)?;
        return Err(ledger::fenced(client, &session.flow).await);
    }
    // Deferred constraints speak up here.
    client.batch_execute("COMMIT").await.map_err(|e| copy_stop(table, e))?;
    Ok(copied)
}

/// Whether every table can be copied, all of them at once.
pub(crate) async fn check(session: &Session, published: &Published) -> Result<(), Stop> {
    let client = &session.connection.client;
    let (mut problems, mut filled) = (Vec::new(), Vec::new());
    for table in &published.tables {
        let target = read_table(client, &table.schema, &table.name).await;
        let target = match target.map_err(|e| lookup_failed(&table.schema, &table.name, e).into_stop(None)) {
            Err(stop) if matches!(stop.reason(), Reason::SchemaMismatch { .. }) => {
                problems.push(stop);
                continue;
            }
            target => target?,
        };
        let mapped = match target {
            None => Err(missing_table(&table.schema, &table.name)),
            Some(target) => copy_in_statement(table, &target).map(|_| target),
        };
        match mapped {
            Err(problem) => problems.push(problem),
            Ok(target) if occupied(session, &target).await? => filled.push(target.quoted),
            Ok(_) => {}
        }
    }
    let others = problems.len().saturating_sub(1);
    match problems.into_iter().next().map(|stop| stop.reason().clone()) {
        None if filled.is_empty() => Ok(()),
        None => Err(Reason::TargetNotEmpty { tables: filled }.into()),
        Some(Reason::SchemaMismatch { table, what, hint }) if others > 0 => {
            let what = format!("{what} (and {others} more tables cannot be mapped)");
            Err(Reason::SchemaMismatch { table, what, hint }.into())
        }
        Some(reason) => Err(reason.into()),
    }
}

async fn occupied(session: &Session, target: &TargetTable) -> Result<bool, Stop> {
    let only = if target.partitioned { "" } else { "ONLY " };
    let sql = format!("SELECT EXISTS (SELECT FROM {only}{})", target.quoted);
    let row = session.connection.client.query_one(&sql, &[]).await;
    row.and_then(|row| row.try_get(0)).map_err(sql_stop)
}

fn copy_in_statement(table: &PublishedTable, target: &TargetTable) -> Result<String, Stop> {
    let ordinary = |name: &&String| target.columns.iter().any(|c| c.name == **name && !c.generated);
    if let Some(name) = table.generated.iter().find(ordinary) {
        return Err(Reason::SchemaMismatch {
            table: table.to_string(),
            what: format!("column {name:?} is generated on the source and an ordinary one on the target"),
            hint:
                "The copy leaves generated columns to the target. Generate it there with the same expression, or leave \
                   it out of the publication (publish_generated_columns, or its list of columns)."
                    .to_owned(),
        }
        .into());
    }
    let mut columns = Vec::with_capacity(table.columns.len());
    for name in &table.columns {
        let problem = match target.position(name).and_then(|position| target.columns.get(position)) {
            Some(column) if column.generated => Some((
                format!("column {name:?} is generated on the target, and an ordinary one on the source"),
                format!(
                    "On the target: ALTER TABLE {} ALTER COLUMN {} DROP EXPRESSION; \
                     or leave the column out of the publication.",
                    target.quoted, column.quoted
                ),
            )),
            Some(column) => {
                columns.push(column.quoted.as_str());
                None
            }
            None => Some((
                format!("the target has no column {name:?}"),
                format!(
                    "On the target: ALTER TABLE {} ADD COLUMN {} <the source's type: see \\d on the source>;",
                    target.quoted,
                    pgonce::ident::quote_ident(name)
                ),
            )),
        };
        if let Some((what, hint)) = problem {
            return Err(Reason::SchemaMismatch { table: table.to_string(), what, hint }.into());
        }
    }
    // An empty list of columns is no list at all; the table then has none on either side that is published.
    let list = if columns.is_empty() { String::new() } else { format!(" ({})", columns.join(", ")) };
    Ok(format!("COPY {}{list} FROM STDIN", target.quoted))
}

/// The reason for an error of the target while rows went in. The server's message and context quote values, so
/// neither is told, except for the number of the line.
fn copy_stop(table: &PublishedTable, error: tokio_postgres::Error) -> Stop {
    let Some(db) = error.as_db_error() else { return sql_stop(error) };
    let code = db.code().code();
    if passes(code) || !matches!(code.get(..2), Some("22" | "23" | "42" | "44" | "54")) || code == "42501" {
        return sql_stop(error);
    }
    let columns: Vec<&str> = table.columns.iter().map(String::as_str).collect();
    let place = db.where_().map(|context| copy_place(context, &table.name, &columns)).unwrap_or_default();
    let line = place.row.map_or(String::new(), |line| format!(" at row {line} of the copy"));
    let mut fault = fault_of(db);
    fault.column = fault.column.or(place.column);
    let hint = match code {
        _ if is_encoding(code) => TARGET_ENCODING,
        _ => "Compare the table's definition on both sides. The target's server log has the full message.",
    };
    Reason::SchemaMismatch {
        table: table.to_string(),
        what: format!("its rows do not go in{line}: {fault} ({})", condition(code)),
        hint: hint.to_owned(),
    }
    .into()
}
