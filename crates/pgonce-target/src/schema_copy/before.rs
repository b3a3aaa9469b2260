//! What comes before the rows: types, functions, tables, sequences and views, in one transaction.

use std::collections::BTreeSet;

use pgonce::ident::quote_qualified;
use pgonce::published::Published;
use pgonce::stop::{Reason, Stop};
use tokio_postgres::Client;

use super::entries::{Entry, entries};
use super::{SchemaCopy, connect, dump, record, refused};
use crate::ledger::{self, ledger_stop, sql_stop};
use crate::session::Session;
use crate::settings::TargetSettings;

const BY_HAND: &str = "Nothing was created. `pgonce run` tries again; or create the schema yourself and leave \
    copy_schema out.";

pub(super) async fn create(
    copy: &SchemaCopy,
    settings: &TargetSettings,
    session: &Session,
    published: &Published,
) -> Result<Vec<String>, Stop> {
    let client = &session.connection.client;
    record::ensure(client, &session.flow, &settings.connection.user).await?;
    if record::created(client, &session.flow).await? {
        return Ok(Vec::new());
    }
    let there = all_or_nothing(client, published).await?;
    settings.tell("taking the source's schema with pg_dump");
    let dump = dump::take(copy).await?;
    let before = read(&dump.before)?;
    read(&dump.after)?;
    let connection = connect(&settings.connection).await?;
    let client = &connection.client;
    client.batch_execute("BEGIN").await.map_err(sql_stop)?;
    let mut warnings = Vec::new();
    if there {
        warnings.push(
            "copy_schema: the tables are on the target already, so that only what they lack (indexes, constraints, \
             triggers) is created after the rows"
                .to_owned(),
        );
    } else {
        settings.tell(&format!("creating {} types, functions, tables and views", before.len()));
        let schemas = schemas(client).await?;
        for entry in &before {
            if let Some(left_out) = left_out(entry, &schemas, copy.privileges) {
                warnings.extend(left_out);
                continue;
            }
            client.batch_execute(&entry.sql).await.map_err(|e| exists_or_refused(entry, e))?;
        }
    }
    record::remember(client, &session.flow, &dump.after).await?;
    let fence = "UPDATE pgonce.flow SET updated_at = pg_catalog.now() WHERE name = $1 AND epoch = $2";
    let held = client.execute(fence, &[&&*session.flow, &session.epoch]).await;
    if held.map_err(|e| ledger_stop(&session.flow, e))? == 0 {
        client.batch_execute("ROLLBACK").await.map_err(sql_stop)?;
        return Err(ledger::fenced(client, &session.flow).await);
    }
    client.batch_execute("COMMIT").await.map_err(sql_stop)?;
    Ok(warnings)
}

pub(super) fn read(dump: &str) -> Result<Vec<Entry>, Stop> {
    entries(dump).map_err(|what| {
        let hint = "Please report this with the version of pg_dump. Until then, create the schema yourself and leave \
                    copy_schema out.";
        Reason::Unsupported { what, hint: hint.to_owned() }.into()
    })
}

/// Whether the tables are there already. Some of them, and others not, are somebody else's business.
async fn all_or_nothing(client: &Client, published: &Published) -> Result<bool, Stop> {
    let sql = "SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text FROM pg_catalog.pg_class AS c \
               JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
               WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')";
    let rows = client.query(sql, &[]).await.map_err(sql_stop)?;
    let mut found: BTreeSet<(String, String)> = BTreeSet::new();
    for row in &rows {
        found.insert((row.try_get(0).map_err(sql_stop)?, row.try_get(1).map_err(sql_stop)?));
    }
    let (there, missing): (Vec<_>, Vec<_>) =
        published.tables.iter().partition(|table| found.contains(&(table.schema.clone(), table.name.clone())));
    let names = |tables: &[&pgonce::published::PublishedTable]| {
        let more = tables.len().saturating_sub(10);
        let mut names: Vec<String> = tables.iter().take(10).map(|t| quote_qualified(&t.schema, &t.name)).collect();
        names.extend((more > 0).then(|| format!("and {more} more")));
        names.join(", ")
    };
    if there.is_empty() || missing.is_empty() {
        return Ok(!there.is_empty());
    }
    let what = format!(
        "copy_schema creates all tables or none, and of {} some are there: {}; others are not: {}",
        published.tables.len(),
        names(&there),
        names(&missing)
    );
    let hint = format!(
        "If those that are there may go, on the target: DROP TABLE {}; then `pgonce run` creates all of them. Or \
         create \
         the others yourself and leave copy_schema out.",
        names(&there)
    );
    Err(Reason::TargetNotReady { what, hint }.into())
}

async fn schemas(client: &Client) -> Result<BTreeSet<String>, Stop> {
    let sql = "SELECT nspname::pg_catalog.text FROM pg_catalog.pg_namespace";
    let rows = client.query(sql, &[]).await.map_err(sql_stop)?;
    rows.iter().map(|row| row.try_get(0).map_err(sql_stop)).collect()
}

/// Whether an entry is left out, and what to say of it.
fn left_out(entry: &Entry, schemas: &BTreeSet<String>, privileges: bool) -> Option<Option<String>> {
    match entry.kind.as_str() {
        "SCHEMA" if schemas.contains(&entry.name) => Some(None),
        // They belong to whoever made schema or extension there.
        "COMMENT" if entry.name.strip_prefix("SCHEMA ").is_some_and(|s| schemas.contains(s.trim_matches('"'))) => {
            Some(None)
        }
        "COMMENT" if entry.name.starts_with("EXTENSION ") => Some(None),
        // It speaks of a role, and may hold its password.
        "USER MAPPING" if !privileges => {
            Some(Some(format!("copy_schema: {} is left out, for it belongs to a role", entry.title())))
        }
        _ => None,
    }
}

fn exists_or_refused(entry: &Entry, error: tokio_postgres::Error) -> Stop {
    let exists = error.code().is_some_and(|code| super::work::says_it_exists(code.code()));
    if !exists {
        return refused(&entry.title(), error, BY_HAND);
    }
    let what = format!("copy_schema: the target has {} already, though not the published tables", entry.title());
    let hint = format!("If it may go, drop it on the target: DROP {} ...; {BY_HAND}", entry.kind);
    Reason::TargetNotReady { what, hint }.into()
}
