//! What the source says about itself and the flow's slot: asked by `status` and `reset`, never by the flow.

use std::time::SystemTime;

use pgonce::catalog::PUBLICATION_COMMENT;
use pgonce::connect::{ConnectionSettings, SqlConnection, connect_sql};
use pgonce::position::Lsn;
use pgonce::stop::Side;
use serde_json::Value;
use tokio_postgres::Client;

use crate::failure::Failure;
use crate::watch::where_set;

/// Opens a connection for a command.
///
/// # Errors
///
/// Why there is none.
pub async fn connect(settings: &ConnectionSettings, side: Side) -> Result<SqlConnection, Failure> {
    connect_sql(settings, "command").await.map_err(|error| {
        let stop = error.into_stop(side);
        let waits = stop.is_transient();
        let mut failure = Failure::from(stop);
        if waits {
            // The hint is for a flow, which tries again by itself. A command does not.
            failure.hint =
                format!("Check that the {side} runs, and host and port in {} Then type this again.", where_set(side));
        }
        failure
    })
}

/// The source, at one moment.
#[derive(Clone, Debug)]
pub struct SourceFacts {
    /// `server_version`.
    pub version: String,
    /// Where its WAL is written to (on a standby: replayed to).
    pub position: Lsn,
    /// Its clock.
    pub now: SystemTime,
    /// The slot, if there is one of this name.
    pub slot: Option<SlotFacts>,
    /// Names of the asked-for publications that exist.
    pub publications: Vec<String>,
    /// Those of them that pgonce made, by their comment.
    pub made: Vec<String>,
}

/// A row of `pg_replication_slots`. What a server does not have is absent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SlotFacts {
    /// The PID that reads it.
    pub active_pid: Option<i64>,
    /// Whether it is being read.
    pub active: bool,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// From where on WAL is kept for it.
    pub restart: Option<Lsn>,
    /// What it was told.
    pub confirmed_flush: Option<Lsn>,
    /// Bytes until it may be lost, where `max_slot_wal_keep_size` is set.
    pub safe_wal_size: Option<i64>,
    /// Why it was invalidated: `invalidation_reason` of 17 and later, `conflicting` of 16.
    pub invalidation: Option<String>,
    /// Its output plugin.
    pub plugin: Option<String>,
}

impl SourceFacts {
    /// Bytes of WAL that are kept for the slot.
    pub fn retained_bytes(&self) -> Option<u64> {
        self.slot.as_ref()?.restart.map(|restart| self.position.bytes_since(restart))
    }
}

/// Asks the source.
///
/// # Errors
///
/// A statement failed.
pub async fn ask(client: &Client, slot: &str, publications: &[String]) -> Result<SourceFacts, Failure> {
    let sql = "SELECT pg_catalog.current_setting('server_version'), \
           (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() \
             ELSE pg_catalog.pg_current_wal_lsn() END)::text, \
           pg_catalog.clock_timestamp(), \
           (SELECT pg_catalog.row_to_json(s)::text FROM pg_catalog.pg_replication_slots s \
             WHERE s.slot_name::text = $1), \
           ARRAY(SELECT p.pubname::text FROM pg_catalog.pg_publication p WHERE p.pubname::text = ANY ($2) ORDER BY 1), \
           ARRAY(SELECT p.pubname::text FROM pg_catalog.pg_publication p WHERE p.pubname::text = ANY ($2) \
             AND pg_catalog.obj_description(p.oid, 'pg_publication') = $3 ORDER BY 1)";
    let row = client.query_one(sql, &[&slot, &publications, &PUBLICATION_COMMENT]).await;
    let row = row.map_err(|e| Failure::sql(Side::Source, &e))?;
    let slot: Option<String> = row.get(3);
    Ok(SourceFacts {
        version: row.get(0),
        position: row.get::<_, Option<String>>(1).and_then(|text| text.parse().ok()).unwrap_or_default(),
        now: row.get(2),
        // Columns come and go with the server's version: a row as JSON is read by name.
        slot: slot.and_then(|text| serde_json::from_str(&text).ok()).map(|row| slot_facts(&row)),
        publications: row.get(4),
        made: row.get(5),
    })
}

fn slot_facts(row: &Value) -> SlotFacts {
    let text = |column: &str| row.get(column).and_then(Value::as_str).map(str::to_owned);
    let lsn = |column: &str| text(column).and_then(|text| text.parse().ok());
    let conflicting = || {
        let conflicting = row.get("conflicting").and_then(Value::as_bool) == Some(true);
        conflicting.then(|| "conflicting with recovery".to_owned())
    };
    SlotFacts {
        active_pid: row.get("active_pid").and_then(Value::as_i64),
        active: row.get("active").and_then(Value::as_bool) == Some(true),
        wal_status: text("wal_status"),
        restart: lsn("restart_lsn"),
        confirmed_flush: lsn("confirmed_flush_lsn"),
        safe_wal_size: row.get("safe_wal_size").and_then(Value::as_i64),
        invalidation: text("invalidation_reason").or_else(conflicting),
        plugin: text("plugin"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_read_by_the_names_of_columns_that_the_server_has() {
        let old = serde_json::json!({"active": true, "active_pid": 7, "restart_lsn": "0/10", "wal_status": "reserved"});
        let facts = slot_facts(&old);
        assert_eq!((facts.active, facts.active_pid, facts.restart), (true, Some(7), Some(Lsn(16))));
        assert_eq!(facts.invalidation, None);
        let lost = serde_json::json!({"active": false, "wal_status": "lost", "invalidation_reason": "wal_removed"});
        assert_eq!(slot_facts(&lost).invalidation.as_deref(), Some("wal_removed"));
        let conflict = serde_json::json!({"active": false, "conflicting": true});
        assert_eq!(slot_facts(&conflict).invalidation.as_deref(), Some("conflicting with recovery"));
    }
}
