//! A checkpoint store in a PostgreSQL database.

use tokio_postgres::Client;

use super::CheckpointStore;
use crate::connect::{ConnectionSettings, SqlConnection, connect_sql};
use crate::sink::{SinkError, State};
use crate::sql_error::stop_from_sql;
use crate::stop::{Reason, Side, Stop};

/// Keeps the state of any number of flows in the table `pgonce.checkpoint` of a database, which may be the source's,
/// or any other.
///
/// The schema and the table are made at the first start where the role may; where it may not, the error has the SQL for
/// an admin. A save is one statement, flushed before it returns whatever the database's settings, and refused where
/// another process has saved in the meantime.
#[derive(Debug)]
pub struct PostgresStore {
    connection: ConnectionSettings,
    session: Option<SqlConnection>,
}

/// What the store needs, for an admin.
const SETUP: &str = "CREATE SCHEMA IF NOT EXISTS pgonce; CREATE TABLE IF NOT EXISTS pgonce.checkpoint (flow text \
    PRIMARY KEY, version int8 NOT NULL, records jsonb NOT NULL, updated_at timestamptz NOT NULL DEFAULT now());";

impl PostgresStore {
    /// A store in this database. Nothing is connected yet.
    pub fn new(connection: ConnectionSettings) -> PostgresStore {
        PostgresStore { connection, session: None }
    }

    fn client(&self) -> Result<&Client, SinkError> {
        let session = self.session.as_ref();
        session.map(|s| &s.client).ok_or_else(|| SinkError::permanent("the store was used before it was opened"))
    }

    async fn ensure(client: &Client) -> Result<(), SinkError> {
        let exists = "SELECT pg_catalog.to_regclass('pgonce.checkpoint') IS NOT NULL";
        if client.query_one(exists, &[]).await.map_err(failed)?.get(0) {
            return Ok(());
        }
        // Two that begin at the same time may both find it missing: the one that comes second meets a unique violation
        // in the catalog.
        for _ in 0..2 {
            match client.batch_execute(SETUP).await {
                Ok(()) => return Ok(()),
                Err(e) if e.code().is_some_and(|code| matches!(code.code(), "23505" | "42P06" | "42P07")) => {}
                Err(e) if e.code().is_some_and(|code| code.code() == "42501") => {
                    let what = "the checkpoint store's table pgonce.checkpoint does not exist, and the role may not \
                                make it"
                        .to_owned();
                    let hint = format!(
                        "As an admin, in the store's database: {SETUP} GRANT USAGE ON SCHEMA pgonce \
                         TO the role; GRANT SELECT, INSERT, UPDATE ON pgonce.checkpoint TO the role;"
                    );
                    return Err(Stop::from(Reason::TargetNotReady { what, hint }).into());
                }
                Err(e) => return Err(failed(e)),
            }
        }
        Ok(())
    }
}

fn failed(error: tokio_postgres::Error) -> SinkError {
    stop_from_sql(Side::Target, &error).into()
}

impl CheckpointStore for PostgresStore {
    async fn open(&mut self, _: &str) -> Result<(), SinkError> {
        self.session = None;
        let session = connect_sql(&self.connection, "checkpoint").await.map_err(|e| e.into_stop(Side::Target))?;
        PostgresStore::ensure(&session.client).await?;
        self.session = Some(session);
        Ok(())
    }

    async fn load(&mut self, flow: &str, name: &'static str) -> Result<Option<Vec<u8>>, SinkError> {
        let sql = "SELECT c.records ->> $2::text FROM pgonce.checkpoint AS c WHERE c.flow = $1::text";
        let row = self.client()?.query_opt(sql, &[&flow, &name]).await.map_err(failed)?;
        Ok(row.and_then(|row| row.get::<_, Option<String>>(0)).map(String::into_bytes))
    }

    async fn save(&mut self, state: &State<'_>) -> Result<(), SinkError> {
        let (names, texts): (Vec<&str>, Vec<String>) = state
            .records()
            .iter()
            .map(|record| (record.name(), String::from_utf8_lossy(record.bytes()).into_owned()))
            .unzip();
        let (version, replaces) = (number(state.version()), number(state.replaces()));
        // An insert can only be the first save; where there is a row already, its number decides.
        let sql = "
            WITH given AS (
                SELECT pg_catalog.jsonb_object_agg(r.name, r.content) AS records,
                       pg_catalog.set_config('synchronous_commit', 'on', true) AS flushed
                FROM ROWS FROM (pg_catalog.unnest($4::text[]), pg_catalog.unnest($5::text[])) AS r (name, content)
            )
            INSERT INTO pgonce.checkpoint AS c (flow, version, records)
            SELECT $1::text, $2::int8, g.records FROM given AS g WHERE g.flushed = 'on'
              AND ($3::int8 = 0 OR EXISTS (SELECT FROM pgonce.checkpoint AS o WHERE o.flow = $1))
            ON CONFLICT (flow) DO UPDATE SET
                version = excluded.version, records = c.records || excluded.records, updated_at = pg_catalog.now()
            WHERE c.version = $3";
        let saved = self.client()?.execute(sql, &[&state.flow(), &version, &replaces, &names, &texts]).await;
        match saved.map_err(failed)? {
            1 => Ok(()),
            _ => Err(SinkError::fenced(state.flow())),
        }
    }
}

fn number(version: u64) -> i64 {
    i64::try_from(version).unwrap_or(i64::MAX)
}
