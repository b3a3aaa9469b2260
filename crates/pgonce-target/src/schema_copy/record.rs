//! `pgonce.schema_copy`: what is remembered of the copy of a flow's schema, so that it goes on where it ended.

use pgonce::ident::quote_ident;
use pgonce::stop::{Reason, Stop};
use tokio_postgres::Client;

use crate::ledger::{ledger_stop, sql_stop};

/// Makes the table in a ledger that an older pgonce, or an administrator, has made.
const ENSURE: &str = include_str!("record.sql");

/// Makes sure that the table is there.
pub(super) async fn ensure(client: &Client, flow: &str, user: &str) -> Result<(), Stop> {
    if exists(client, flow).await? {
        return Ok(());
    }
    match client.batch_execute(ENSURE).await {
        Ok(()) => Ok(()),
        Err(error) if error.code().is_some_and(|code| code.code() == "42501") => {
            let hint = format!(
                "As an administrator, on the target: {} GRANT SELECT, INSERT, UPDATE, DELETE ON pgonce.schema_copy \
                 TO {};",
                ENSURE.trim().replace('\n', " "),
                quote_ident(user)
            );
            let what = "the target's role may not create the table pgonce.schema_copy".to_owned();
            Err(Reason::TargetNotReady { what, hint }.into())
        }
        Err(error) => Err(sql_stop(error)),
    }
}

/// Whether the schema of the flow was created.
pub(super) async fn created(client: &Client, flow: &str) -> Result<bool, Stop> {
    let row = client.query_opt("SELECT FROM pgonce.schema_copy WHERE flow = $1", &[&flow]).await;
    Ok(row.map_err(|e| ledger_stop(flow, e))?.is_some())
}

/// Remembers, in the transaction that creates the tables, what is left for after the rows.
pub(super) async fn remember(client: &Client, flow: &str, after: &str) -> Result<(), Stop> {
    let sql = "INSERT INTO pgonce.schema_copy (flow, after_rows) VALUES ($1, $2)";
    client.execute(sql, &[&flow, &after]).await.map_err(|e| ledger_stop(flow, e))?;
    Ok(())
}

/// Whether the ledger has the table: one that an older pgonce made has not.
async fn exists(client: &Client, flow: &str) -> Result<bool, Stop> {
    let sql = "SELECT pg_catalog.to_regclass('pgonce.schema_copy') IS NOT NULL";
    client.query_one(sql, &[]).await.and_then(|row| row.try_get(0)).map_err(|e| ledger_stop(flow, e))
}

/// What is left for after the rows. Nothing where the schema was not created by the flow, or is complete.
pub(super) async fn after_rows(client: &Client, flow: &str) -> Result<Option<String>, Stop> {
    if !exists(client, flow).await? {
        return Ok(None);
    }
    let sql = "SELECT after_rows FROM pgonce.schema_copy WHERE flow = $1 AND after_rows IS NOT NULL";
    let row = client.query_opt(sql, &[&flow]).await.map_err(|e| ledger_stop(flow, e))?;
    row.map(|row| row.try_get(0).map_err(|e| ledger_stop(flow, e))).transpose()
}

/// What was last said by [`doing`], while the schema is not complete.
pub(crate) async fn doing_now(client: &Client, flow: &str) -> Result<Option<String>, Stop> {
    if !exists(client, flow).await? {
        return Ok(None);
    }
    let row = client.query_opt("SELECT doing FROM pgonce.schema_copy WHERE flow = $1", &[&flow]).await;
    let row = row.map_err(|e| ledger_stop(flow, e))?;
    row.map_or(Ok(None), |row| row.try_get(0).map_err(|e| ledger_stop(flow, e)))
}

/// Says what is being done, for `pgonce status`.
pub(super) async fn doing(client: &Client, flow: &str, doing: &str) -> Result<(), Stop> {
    let sql = "UPDATE pgonce.schema_copy SET doing = $2 WHERE flow = $1";
    client.execute(sql, &[&flow, &doing]).await.map_err(|e| ledger_stop(flow, e))?;
    Ok(())
}

/// The schema is complete.
pub(super) async fn complete(client: &Client, flow: &str) -> Result<(), Stop> {
    let sql = "UPDATE pgonce.schema_copy SET after_rows = NULL, doing = NULL, completed_at = pg_catalog.now() \
               WHERE flow = $1";
    client.execute(sql, &[&flow]).await.map_err(|e| ledger_stop(flow, e))?;
    Ok(())
}
