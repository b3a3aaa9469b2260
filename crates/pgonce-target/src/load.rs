//! The copy of tables: what is checked and planned before it, and a piece's rows in one commit with the word that it
//! was copied.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::SinkExt;
use pgonce::connect::SqlConnection;
use pgonce::destination::Loader;
use pgonce::piece::{CopyPlan, Extent, Format, Piece, Standing, TableCopy};
use pgonce::position::Boundary;
use pgonce::published::{Published, PublishedTable};
use pgonce::snapshot::TableRows;
use pgonce::sql_error::{TARGET_ENCODING, condition, fault_of, is_encoding, passes};
use pgonce::stop::{Reason, Stop};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, CopyInSink};

use crate::context::copy_place;
use crate::copy_target::{self, CopyTarget, Targets};
use crate::ledger::{self, ledger_stop, lsn, sql_stop};
use crate::names::refuse_long_names;
use crate::schema::lookup_failed;
use crate::session::{self, Session};
use crate::settings::TargetSettings;

/// Synchronous: the stream may be acknowledged up to the boundary from the commit on.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL synchronous_commit = on";

/// Whether every table can be copied, all of them at once. Those that are replaced may hold rows.
pub(crate) async fn check(session: &Session, published: &Published, replaced: &HashSet<u32>) -> Result<(), Stop> {
    let client = &session.connection.client;
    let tables: Vec<&PublishedTable> = published.tables.iter().collect();
    let targets = mapped(session, &tables).await?;
    let targets = tables.iter().zip(&targets).filter(|(table, _)| !replaced.contains(&table.oid));
    let targets: Vec<&CopyTarget> = targets.map(|(_, target)| target).collect();
    let filled = copy_target::occupied(client, &targets).await.map_err(sql_stop)?;
    if filled.is_empty() {
        return Ok(());
    }
    Err(Reason::TargetNotEmpty { tables: filled.iter().map(|target| target.quoted.clone()).collect() }.into())
}

/// The target's table of each, if it has one. A name that the target cannot even be asked for is told.
async fn find(session: &Session, tables: &[&PublishedTable]) -> Result<Vec<Option<CopyTarget>>, Stop> {
    let client = &session.connection.client;
    let error = match copy_target::find(client, &session.map, tables).await {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    if error.code().is_some_and(|code| is_encoding(code.code())) {
        for table in tables {
            if let Err(error) = copy_target::find(client, &session.map, &[table]).await {
                return Err(lookup_failed(&table.schema, &table.name, error).into_stop(None));
            }
        }
    }
    Err(sql_stop(error))
}

/// The target of each table, in their order. Stops if one cannot be copied, and says how many others there are.
async fn mapped(session: &Session, tables: &[&PublishedTable]) -> Result<Vec<CopyTarget>, Stop> {
    let found = find(session, tables).await?;
    let (mut targets, mut problems) = (Vec::with_capacity(tables.len()), Vec::new());
    for (table, target) in tables.iter().zip(found) {
        let target = target.ok_or_else(|| copy_target::missing(&session.map, table));
        match target.and_then(|target| target.copy_in(table, Format::Text).map(|_| target)) {
            Ok(target) => targets.push(target),
            Err(problem) => problems.push(problem),
        }
    }
    let others = problems.len().saturating_sub(1);
    match problems.into_iter().next().map(|stop| stop.reason().clone()) {
        None => Ok(targets),
        Some(Reason::SchemaMismatch { table, what, hint }) if others > 0 => {
            let what = format!("{what} (and {others} more tables cannot be mapped)");
            Err(Reason::SchemaMismatch { table, what, hint }.into())
        }
        Some(reason) => Err(reason.into()),
    }
}

/// What a plan has come to.
pub(crate) struct Plan {
    pub(crate) targets: Targets,
    pub(crate) plans: Vec<CopyPlan>,
}

/// Stores the pieces of tables that are not stored yet, and what is published with them.
pub(crate) async fn plan(session: &Session, tables: &[TableCopy], fingerprint: &str) -> Result<Plan, Stop> {
    let client = &session.connection.client;
    let published: Vec<&PublishedTable> = tables.iter().map(|plan| &plan.table).collect();
    let targets = mapped(session, &published).await?;
    let with = |(plan, target): (&TableCopy, &CopyTarget)| CopyPlan {
        format: target.format(&plan.table, &plan.types),
        together: plan.pieces.iter().any(|piece| piece.extent.is_physical()),
    };
    let mut plans: Vec<CopyPlan> = tables.iter().zip(&targets).map(with).collect();
    if !session.triggers_suppressed {
        let replaced: Vec<&CopyTarget> =
            tables.iter().zip(&targets).filter(|(copy, _)| copy.replaces).map(|(_, target)| target).collect();
        refuse_acting_references(client, &replaced).await?;
    }
    if tables.iter().any(|copy| copy.standing != Standing::Planned) {
        let ranges: Vec<(u32, &str)> =
            tables.iter().zip(&targets).filter_map(|(copy, target)| Some((target.oid, copy.key_column()?))).collect();
        let together: HashSet<u32> =
            copy_target::hold_together(client, &ranges).await.map_err(sql_stop)?.into_iter().collect();
        for (plan, target) in plans.iter_mut().zip(&targets) {
            plan.together |= together.contains(&target.oid);
        }
        let fresh: Vec<Fresh<'_>> = tables
            .iter()
            .zip(&targets)
            .zip(&plans)
            .filter(|((copy, _), _)| copy.standing != Standing::Planned)
            .map(|((copy, target), plan)| Fresh { copy, target, together: plan.together })
            .collect();
        let new = fresh.iter().filter(|fresh| fresh.copy.standing == Standing::New);
        let new: Vec<&str> = new.map(|fresh| fresh.target.quoted.as_str()).collect();
        // Before its lock is waited for.
        unclaimed(client, &session.flow, &new).await?;
        client.batch_execute(BEGIN).await.map_err(sql_stop)?;
        for fresh in &fresh {
            match fresh.copy.standing {
                // The rows of each piece go when it is copied.
                _ if fresh.replaces() => {}
                _ if fresh.copy.replaces => clear(client, fresh.target).await?,
                Standing::Anew => clear(client, fresh.target).await?,
                Standing::New if fresh.copy.pieces.len() > 1 => claim(session, fresh.target).await?,
                Standing::New | Standing::Planned => {}
            }
        }
        insert(session, &fresh).await?;
        let sql = "UPDATE pgonce.flow SET published = $3 WHERE name = $1 AND epoch = $2 AND published <> $3";
        let stored = client.execute(sql, &[&&*session.flow, &session.epoch, &fingerprint]).await;
        stored.map_err(|e| ledger_stop(&session.flow, e))?;
        hold_fence(client, &session.flow, session.epoch).await?;
        client.batch_execute("COMMIT").await.map_err(sql_stop)?;
    }
    let targets = tables.iter().map(|plan| plan.table.oid).zip(targets).collect();
    Ok(Plan { targets, plans })
}

/// A table whose pieces are to be stored.
struct Fresh<'a> {
    copy: &'a TableCopy,
    target: &'a CopyTarget,
    together: bool,
}

impl Fresh<'_> {
    /// What the target holds of a piece goes in the commit that copies it. Not where pieces can be in each other's way.
    fn replaces(&self) -> bool {
        self.copy.replaces && !self.together
    }
}

/// Makes sure that a table that will be copied in pieces is empty, and nobody else's.
async fn claim(session: &Session, target: &CopyTarget) -> Result<(), Stop> {
    let client = &session.connection.client;
    // Two flows that are started together must not both find it empty.
    let lock = format!("LOCK TABLE {}{} IN SHARE ROW EXCLUSIVE MODE", target.only, target.quoted);
    client.batch_execute(&lock).await.map_err(sql_stop)?;
    vacant(client, &session.flow, target).await
}

/// Refuses a table that holds rows, or into which another flow copies.
async fn vacant(client: &Client, flow: &str, target: &CopyTarget) -> Result<(), Stop> {
    unclaimed(client, flow, &[&target.quoted]).await?;
    match copy_target::occupied(client, &[target]).await.map_err(sql_stop)?.is_empty() {
        true => Ok(()),
        false => Err(Reason::TargetNotEmpty { tables: vec![target.quoted.clone()] }.into()),
    }
}

/// Refuses to replace the rows of tables that others reference with an action of their own: without
/// `session_replication_role`, deleting a row would take theirs along, or change them.
async fn refuse_acting_references(client: &Client, targets: &[&CopyTarget]) -> Result<(), Stop> {
    let oids: Vec<u32> = targets.iter().map(|target| target.oid).collect();
    let sql = "
        SELECT DISTINCT u.oid::pg_catalog.regclass::pg_catalog.text, k.conrelid::pg_catalog.regclass::pg_catalog.text
        FROM pg_catalog.unnest($1::pg_catalog.oid[]) AS u (oid)
        CROSS JOIN LATERAL (SELECT u.oid AS relid UNION
                            SELECT t.relid FROM pg_catalog.pg_partition_tree(u.oid) AS t) AS t
        JOIN pg_catalog.pg_constraint AS k ON k.confrelid = t.relid AND k.contype = 'f'
             AND k.conparentid = 0
        ORDER BY 1, 2";
    let rows = client.query(sql, &[&oids]).await.map_err(sql_stop)?;
    let Some(first) = rows.first() else { return Ok(()) };
    let table: String = first.get(0);
    let others: Vec<String> =
        rows.iter().filter(|row| row.get::<_, String>(0) == table).map(|row| row.get(1)).collect();
    let others = others.join(", ");
    let what = format!(
        "the rows of table {table} cannot be replaced: {others} would lose or change rows with them (or forbid it, \
         without ON DELETE CASCADE, SET NULL or SET DEFAULT), for the target's role may not set \
         session_replication_role"
    );
    let hint = "GRANT SET ON PARAMETER session_replication_role TO the role (from version 15 on), which keeps the \
                actions still; or drop these foreign keys for the time of the copy."
        .to_owned();
    Err(Reason::TargetNotReady { what, hint }.into())
}

/// Refuses tables into which another flow copies piece by piece: they may be empty still.
async fn unclaimed(client: &Client, flow: &str, targets: &[&str]) -> Result<(), Stop> {
    let sql = "SELECT flow, target FROM pgonce.snapshot \
               WHERE target = ANY ($1) AND flow <> $2 AND boundary IS NULL AND kind <> 'whole' LIMIT 1";
    let claimed = client.query_opt(sql, &[&targets, &flow]).await.map_err(|e| ledger_stop(flow, e))?;
    let Some(row) = claimed else { return Ok(()) };
    let (other, target): (String, String) = (row.get(0), row.get(1));
    let what = format!("flow {other} is copying into table {target} and has not finished");
    let hint = format!("Let it finish; if it is not wanted any more: `pgonce reset --flow {other} --yes`.");
    Err(Reason::TargetNotReady { what, hint }.into())
}

/// Removes what was copied into a table, at once where that may be done.
async fn clear(client: &Client, target: &CopyTarget) -> Result<(), Stop> {
    let (only, name) = (target.only, &target.quoted);
    let truncate = format!("SAVEPOINT clear; SET LOCAL lock_timeout = '2s'; TRUNCATE {only}{name}");
    if client.batch_execute(&truncate).await.is_err() {
        // Not the owner, referenced by a foreign key, or somebody is reading it.
        let delete = format!("ROLLBACK TO SAVEPOINT clear; DELETE FROM {only}{name}");
        client.batch_execute(&delete).await.map_err(sql_stop)?;
    }
    client.batch_execute("RELEASE SAVEPOINT clear; SET LOCAL lock_timeout = 0").await.map_err(sql_stop)
}

async fn insert(session: &Session, fresh: &[Fresh<'_>]) -> Result<(), Stop> {
    let mut rows = Rows::default();
    for fresh in fresh {
        fresh.copy.pieces.iter().for_each(|piece| rows.push(fresh, piece));
    }
    let client = &session.connection.client;
    let failed = |e| ledger_stop(&session.flow, e);
    let oids: Vec<u32> = fresh.iter().map(|fresh| fresh.copy.table.oid).collect();
    let delete = "DELETE FROM pgonce.snapshot WHERE flow = $1 AND table_oid = ANY ($2)";
    client.execute(delete, &[&&*session.flow, &oids]).await.map_err(failed)?;
    let sql = "
        INSERT INTO pgonce.snapshot (flow, table_oid, piece, schema_name, table_name, target, together, kind,
                                     key_column, low, high, replaces, bytes_estimated)
        SELECT $1, u.* FROM unnest(
            $2::pg_catalog.oid[], $3::pg_catalog.int4[], $4::pg_catalog.text[], $5::pg_catalog.text[],
            $6::pg_catalog.text[], $7::pg_catalog.bool[], $8::pg_catalog.text[], $9::pg_catalog.text[],
            $10::pg_catalog.text[], $11::pg_catalog.text[], $12::pg_catalog.bool[], $13::pg_catalog.int8[]) AS u";
    let parameters: [&(dyn ToSql + Sync); 13] = [
        &&*session.flow,
        &rows.oids,
        &rows.numbers,
        &rows.schemas,
        &rows.names,
        &rows.targets,
        &rows.together,
        &rows.kinds,
        &rows.columns,
        &rows.lows,
        &rows.highs,
        &rows.replaces,
        &rows.bytes,
    ];
    client.execute(sql, &parameters).await.map_err(failed)?;
    Ok(())
}

/// Rows of `pgonce.snapshot`, column by column.
#[derive(Default)]
struct Rows<'a> {
    oids: Vec<u32>,
    numbers: Vec<i32>,
    schemas: Vec<&'a str>,
    names: Vec<&'a str>,
    targets: Vec<&'a str>,
    together: Vec<bool>,
    kinds: Vec<&'static str>,
    columns: Vec<Option<&'a str>>,
    lows: Vec<Option<String>>,
    highs: Vec<Option<String>>,
    replaces: Vec<bool>,
    bytes: Vec<i64>,
}

impl<'a> Rows<'a> {
    fn push(&mut self, fresh: &Fresh<'a>, piece: &'a Piece) {
        let plan = fresh.copy;
        let text = |value: &dyn std::fmt::Display| value.to_string();
        let (kind, column, low, high) = match &piece.extent {
            Extent::Whole => ("whole", None, None, None),
            Extent::Key { column, low, high } => {
                ("key", Some(column.as_str()), low.as_ref().map(|v| text(v)), high.as_ref().map(|v| text(v)))
            }
            Extent::Ctid { low, high } => ("ctid", None, low.as_ref().map(|v| text(v)), high.as_ref().map(|v| text(v))),
        };
        self.oids.push(plan.table.oid);
        self.numbers.push(piece.number);
        self.schemas.push(&plan.table.schema);
        self.names.push(&plan.table.name);
        self.targets.push(&fresh.target.quoted);
        self.together.push(fresh.together);
        self.replaces.push(fresh.replaces());
        self.kinds.push(kind);
        self.columns.push(column);
        self.lows.push(low);
        self.highs.push(high);
        self.bytes.push(piece.bytes.cast_signed());
    }
}

/// Holds the flow's row until the commit: whoever takes the flow over waits for it, and then sees what was committed.
/// Fails if somebody has taken it over.
async fn hold_fence(client: &Client, flow: &str, epoch: i64) -> Result<(), Stop> {
    let sql = "SELECT FROM pgonce.flow WHERE name = $1 AND epoch = $2 AND phase <> 'new' FOR SHARE";
    match client.query_opt(sql, &[&flow, &epoch]).await.map_err(|e| ledger_stop(flow, e))? {
        Some(_) => Ok(()),
        None => {
            client.batch_execute("ROLLBACK").await.map_err(sql_stop)?;
            Err(ledger::fenced(client, flow).await)
        }
    }
}

/// Copies pieces, on a connection of its own.
#[derive(Debug)]
pub struct PostgresLoader {
    settings: TargetSettings,
    epoch: i64,
    targets: Arc<Targets>,
    connection: Option<SqlConnection>,
}

impl PostgresLoader {
    pub(crate) fn new(settings: TargetSettings, epoch: i64, targets: Arc<Targets>) -> PostgresLoader {
        PostgresLoader { settings, epoch, targets, connection: None }
    }
}

impl Loader for PostgresLoader {
    async fn load(
        &mut self,
        table: &TableCopy,
        piece: &Piece,
        boundary: Boundary,
        rows: TableRows,
    ) -> Result<u64, Stop> {
        // Whoever fails does not put it back.
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => session::connect_writer(&self.settings, "copy").await?.0,
        };
        let target = self.targets.get(&table.table.oid);
        let target = target.ok_or_else(|| Stop::internal("a piece of a table that was not planned"))?;
        let copied = self.copy(&connection.client, table, piece, target, boundary, rows).await?;
        self.connection = Some(connection);
        Ok(copied)
    }
}

impl PostgresLoader {
    async fn copy(
        &self,
        client: &Client,
        plan: &TableCopy,
        piece: &Piece,
        target: &CopyTarget,
        boundary: Boundary,
        mut rows: TableRows,
    ) -> Result<u64, Stop> {
        let (table, flow) = (&plan.table, self.settings.flow.as_str());
        client.batch_execute(BEGIN).await.map_err(sql_stop)?;
        if piece.extent == Extent::Whole {
            // Two flows that are started together must not both find it empty.
            let lock = format!("LOCK TABLE {}{} IN SHARE ROW EXCLUSIVE MODE", target.only, target.quoted);
            client.batch_execute(&lock).await.map_err(|e| copy_stop(table, e))?;
        }
        // It may have been decided by an earlier process.
        let sql = "SELECT replaces FROM pgonce.snapshot WHERE flow = $1 AND table_oid = $2 AND piece = $3";
        let row = client.query_opt(sql, &[&flow, &table.oid, &piece.number]).await;
        let row = row.map_err(|e| ledger_stop(flow, e))?;
        if row.is_some_and(|row| row.get(0)) {
            let condition = piece.extent.condition(plan.key_column().unwrap_or_default());
            let condition = condition.map(|condition| format!(" WHERE {condition}")).unwrap_or_default();
            let delete = format!("DELETE FROM {}{}{condition}", target.only, target.quoted);
            client.batch_execute(&delete).await.map_err(|e| copy_stop(table, e))?;
        } else if piece.extent == Extent::Whole {
            vacant(client, flow, target).await?;
        }
        if !rows.long_names().is_empty() && !copy_target::letters(client).await.map_err(sql_stop)? {
            refuse_long_names(table, target, rows.long_names())?;
        }
        let mut bytes = 0;
        let copied = {
            let statement = target.copy_in(table, rows.format())?;
            let sink: CopyInSink<Bytes> = client.copy_in(&statement).await.map_err(|e| copy_stop(table, e))?;
            let mut sink = pin!(sink);
            while let Some(chunk) = rows.next().await? {
                bytes += chunk.len() as i64;
                sink.feed(chunk).await.map_err(|e| copy_stop(table, e))?;
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
            UPDATE pgonce.snapshot SET boundary = $4, rows = $5, bytes = $6, copied_at = pg_catalog.now()
            WHERE flow = $1 AND table_oid = $2 AND piece = $3 AND boundary IS NULL";
        let parameters: [&(dyn ToSql + Sync); 6] =
            [&flow, &table.oid, &piece.number, &lsn(boundary.0), &copied.cast_signed(), &bytes];
        let planned = client.execute(sql, &parameters).await.map_err(|e| ledger_stop(flow, e))?;
        hold_fence(client, flow, self.epoch).await?;
        if planned != 1 {
            let what = format!("pgonce.snapshot has no piece {} of table {table} that is to be copied", piece.number);
            return Err(ledger::unreadable(flow, what));
        }
        // Deferred constraints speak up here.
        client.batch_execute("COMMIT").await.map_err(|e| copy_stop(table, e))?;
        Ok(copied)
    }
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
