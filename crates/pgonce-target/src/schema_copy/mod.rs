//! The copy of the schema: tables before the rows, indexes and constraints after them.
//!
//! `pg_dump` takes the source's schema, once, in two parts under one snapshot. What comes before the rows is created in
//! one transaction, which also stores what comes after them; so a flow that is killed at any point has either no table
//! yet, or all of them and the rest to create. That rest is created object by object, each in a transaction of its own,
//! and what is there already is passed over: no state but the target's own catalog says how far it has come.

mod after;
mod before;
mod dump;
mod entries;
mod environment;
mod lexer;
mod parse;
mod plan;
mod record;
mod tools;
mod work;

pub(crate) use record::doing_now;

use std::path::PathBuf;

use pgonce::connect::{ConnectionSettings, SqlConnection, connect_sql};
use pgonce::published::Published;
use pgonce::sql_error::{condition, fault_of, passes};
use pgonce::stop::{Reason, Side, Stop};
use tokio_postgres::error::DbError;

use crate::ledger::sql_stop;
use crate::session::Session;
use crate::settings::TargetSettings;

/// How a flow creates the schema of its target.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SchemaCopy {
    /// The database whose schema is copied.
    pub source: ConnectionSettings,
    /// The folder that holds `pg_dump`; `None` looks for it in the path and where packages put it.
    pub tools: Option<PathBuf>,
    /// Whether owners and privileges are copied too. The roles have to exist on the target.
    pub privileges: bool,
    /// How many indexes are built at a time.
    pub jobs: usize,
}

impl SchemaCopy {
    /// The usual settings: four jobs, no owners and privileges.
    pub fn new(source: ConnectionSettings) -> SchemaCopy {
        SchemaCopy { source, tools: None, privileges: false, jobs: 4 }
    }
}

/// First start, before anything is looked at on the target or made on the source: creates what comes before the rows,
/// unless an attempt of before has.
///
/// Returns what the operator should know.
pub(crate) async fn before_rows(
    settings: &TargetSettings,
    session: &Session,
    published: &Published,
) -> Result<Vec<String>, Stop> {
    match &settings.schema_copy {
        Some(copy) => before::create(copy, settings, session, published).await,
        None => Ok(Vec::new()),
    }
}

/// Every row is copied, and nothing is streamed yet: creates what comes after the rows.
///
/// Returns what the operator should know.
pub(crate) async fn after_rows(settings: &TargetSettings, session: &Session) -> Result<Vec<String>, Stop> {
    match &settings.schema_copy {
        Some(copy) => after::create(copy, settings, session).await,
        None => Ok(Vec::new()),
    }
}

/// What the session of a dump sets: bodies are not checked, for they may speak of what is created later.
const SESSION: &str = "SET check_function_bodies = false; SET client_min_messages = warning; \
    SET synchronous_commit = on; SET lock_timeout = 0; SET session_replication_role = origin";

/// A session that creates objects.
async fn connect(target: &ConnectionSettings) -> Result<SqlConnection, Stop> {
    let connection = connect_sql(target, "schema").await.map_err(|e| e.into_stop(Side::Target))?;
    let settings: Vec<&str> = SESSION.split("; ").collect();
    let [settings @ .., replica] = settings.as_slice() else { return Ok(connection) };
    connection.client.batch_execute(&settings.join("; ")).await.map_err(sql_stop)?;
    // A role that may not set it has the default, unless it was made for it. Known from version 14 on is the other: a
    // process that is killed leaves no statement behind for longer than this.
    for optional in [*replica, "SET client_connection_check_interval = '500ms'"] {
        let set = connection.client.batch_execute(optional).await;
        if let Err(error) = set
            && error.as_db_error().is_none()
        {
            return Err(sql_stop(error));
        }
    }
    Ok(connection)
}

/// What the target said of a statement that creates something, in words. Where it looked at rows, it may quote them:
/// then only the condition is told.
fn said(error: &DbError) -> String {
    let code = error.code().code();
    match code.get(..2) {
        Some("0A" | "2B" | "3D" | "3F" | "42" | "55") => format!("{} ({code})", error.message()),
        _ if code == "58P01" => format!("{} ({code})", error.message()),
        _ => format!("{} ({})", fault_of(error), condition(code)),
    }
}

/// The reason for an error of a statement that creates `title`.
fn refused(title: &str, error: tokio_postgres::Error, hint: &str) -> Stop {
    let Some(db) = error.as_db_error() else { return sql_stop(error) };
    let hint = match db.code().code() {
        "53200" => "Raise max_locks_per_transaction on the target (a restart), for all tables are created in one \
                    transaction: ALTER SYSTEM SET max_locks_per_transaction = 1024;"
            .to_owned(),
        code if passes(code) => return sql_stop(error),
        "42501" => format!("Let an administrator grant the target's role what is missing, or create it. {hint}"),
        _ => hint.to_owned(),
    };
    Reason::TargetNotReady { what: format!("{title} cannot be created: {}", said(db)), hint }.into()
}
