//! What both ends say of themselves: server, database, role. And the session that asks, which can only read.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use pgonce::connect::{ConnectionSettings, SqlConnection};
use pgonce::stop::Side;
use serde_json::Value;
use tokio_postgres::{Client, Error};

use crate::facts;
use crate::failure::Failure;

/// A database that does not answer is unreachable after this long, where the URL sets no `connect_timeout`.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens a session that can only read.
///
/// # Errors
///
/// Why there is none.
pub async fn connect(settings: &ConnectionSettings, side: Side) -> Result<SqlConnection, Failure> {
    let mut settings = settings.clone();
    settings.connect_timeout.get_or_insert(CONNECT_TIMEOUT);
    let connection = facts::connect(&settings, side).await?;
    // A question that meets a lock (of a long ALTER TABLE, say) is given up, not waited for. Compiling a question that
    // is asked once takes longer than answering it.
    let pins = "SET default_transaction_read_only = on; SET lock_timeout = '5s'; SET statement_timeout = '60s'; \
         SET jit = off";
    connection.client.batch_execute(pins).await.map_err(|e| Failure::sql(side, &e))?;
    Ok(connection)
}

/// A server, the database, and the role that asks.
#[derive(Clone, Debug, Default)]
pub struct Server {
    /// `server_version_num`.
    pub version: u32,
    /// `server_version`.
    pub version_text: String,
    /// The database.
    pub database: String,
    /// The role.
    pub role: String,
    /// It is a superuser.
    pub superuser: bool,
    /// It has REPLICATION.
    pub replication: bool,
    /// It may create schemas and publications in the database.
    pub may_create: bool,
    /// Its CONNECTION LIMIT, -1 for none.
    pub connection_limit: i32,
    /// The server is a standby.
    pub in_recovery: bool,
    /// Encoding of the database.
    pub encoding: String,
    /// How the database sorts, as one text to compare.
    pub collation: String,
    /// What tells this database of this running server from any other, where the role may know.
    pub identity: Option<String>,
    /// Client connections that are open.
    pub connections: i64,
    /// Settings by name, each in its own unit.
    pub settings: HashMap<String, String>,
}

impl Server {
    /// Asks.
    pub async fn ask(client: &Client) -> Result<Server, Error> {
        let sql = "SELECT current_setting('server_version_num')::int4, current_setting('server_version'), \
               current_database()::text, r.rolname::text, r.rolsuper, r.rolreplication, \
               has_database_privilege(d.oid, 'CREATE'), r.rolconnlimit, pg_is_in_recovery(), \
               pg_encoding_to_char(d.encoding)::text, to_jsonb(d)::text, \
               has_function_privilege('pg_control_system()', 'EXECUTE'), \
               (SELECT sum(s.numbackends)::int8 FROM pg_stat_database s), \
               ARRAY(SELECT name::text FROM pg_settings ORDER BY name), \
               ARRAY(SELECT CASE WHEN name LIKE 'default_transaction%' THEN reset_val ELSE setting END \
                     FROM pg_settings ORDER BY name) \
             FROM pg_roles r, pg_database d WHERE r.rolname = current_user AND d.datname = current_database()";
        let row = client.query_one(sql, &[]).await?;
        let identity = match row.get(11) {
            true => {
                let sql = "SELECT concat_ws('/', (pg_control_system()).system_identifier, d.oid, \
                     pg_postmaster_start_time()) FROM pg_database d WHERE d.datname = current_database()";
                Some(client.query_one(sql, &[]).await?.get(0))
            }
            false => None,
        };
        let database: Value = row.get::<_, String>(10).parse().unwrap_or_default();
        // The locale of ICU and of the built-in provider moved from `daticulocale` to `datlocale` with 17.
        let text = |name: &str| database.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let locale = [text("datlocale"), text("daticulocale")].concat();
        let (names, values): (Vec<String>, Vec<Option<String>>) = (row.get(13), row.get(14));
        Ok(Server {
            version: u32::try_from(row.get::<_, i32>(0)).unwrap_or_default(),
            version_text: row.get(1),
            database: row.get(2),
            role: row.get(3),
            superuser: row.get(4),
            replication: row.get(5),
            may_create: row.get(6),
            connection_limit: row.get(7),
            in_recovery: row.get(8),
            encoding: row.get(9),
            collation: match locale.is_empty() {
                true => format!("{}, {}", text("datcollate"), text("datctype")),
                false => format!("{}, {}, {locale}", text("datcollate"), text("datctype")),
            },
            identity,
            connections: row.get::<_, Option<i64>>(12).unwrap_or_default(),
            settings: names.into_iter().zip(values).filter_map(|(name, value)| Some((name, value?))).collect(),
        })
    }

    /// The value of a setting, in its own unit; `None` where this server has none of that name.
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    /// The value of a setting that is a number.
    pub fn number(&self, name: &str) -> Option<i64> {
        self.setting(name)?.parse().ok()
    }

    /// The major version.
    pub fn major(&self) -> u32 {
        self.version / 10_000
    }

    /// Connections that are free for this role. A superuser has the reserved ones too.
    pub fn free_connections(&self) -> i64 {
        let setting = |name| self.number(name).unwrap_or_default();
        let reserved = setting("superuser_reserved_connections") + setting("reserved_connections");
        let reserved = if self.superuser { 0 } else { reserved };
        let free = setting("max_connections") - reserved - self.connections;
        match i64::from(self.connection_limit) {
            limit if limit >= 0 && !self.superuser => free.min(limit),
            _ => free,
        }
    }
}

/// An age for people, from seconds.
pub fn age(seconds: f64) -> String {
    crate::render::duration(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default())
}

/// The moment of a check, as reports print it.
pub fn now() -> String {
    crate::time::utc(SystemTime::now())
}
