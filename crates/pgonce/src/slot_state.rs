//! What the source's catalog says of a slot, and whether it can be read.

use tokio_postgres::Client;

use crate::position::Lsn;
use crate::sql_error::stop_from_sql;
use crate::stop::{Reason, Side, Stop};

/// A row of `pg_replication_slots`. What a version does not have is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotState {
    /// `plugin`; empty for a physical slot.
    pub plugin: String,
    /// `database`; empty for a physical slot.
    pub database: String,
    /// `active_pid`.
    pub active_pid: Option<i32>,
    /// `confirmed_flush_lsn`.
    pub confirmed_flush: Option<Lsn>,
    /// `restart_lsn`: WAL from here on is kept for the slot.
    pub restart: Option<Lsn>,
    /// `wal_status`: `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// `safe_wal_size`, bytes.
    pub safe_wal_size: Option<i64>,
    /// `two_phase`.
    pub two_phase: bool,
    /// `temporary`.
    pub temporary: bool,
    /// `invalidation_reason` (17), or `conflict` where 16 says `conflicting`.
    pub invalidation: Option<String>,
    /// `synced` (17): made by slot synchronisation on a standby, which has not been promoted.
    pub synced: bool,
    /// `failover` (17): synchronised to standbys.
    pub failover: bool,
}

/// What to do where the source turns out to be a standby.
pub(crate) const STANDBY: &str = "Point the source URL at the primary (or at all servers, with \
     target_session_attrs=read-write). If the primary is gone for good: SELECT pg_promote(); on this one first, and \
     then run again.";

/// Reads the state of a slot, or `None` if there is none of that name.
pub async fn slot_state(client: &Client, slot: &str) -> Result<Option<SlotState>, Stop> {
    // Through jsonb, so that a column that the version lacks reads as NULL.
    let sql = "SELECT coalesce(s.plugin::text, ''), coalesce(s.database::text, ''), s.active_pid, \
         s.confirmed_flush_lsn::text, s.restart_lsn::text, s.wal_status, s.safe_wal_size, \
         coalesce((j ->> 'two_phase')::bool, false), s.temporary, \
         coalesce(j ->> 'invalidation_reason', CASE WHEN (j ->> 'conflicting')::bool THEN 'conflict' END), \
         coalesce((j ->> 'synced')::bool, false) AND pg_catalog.pg_is_in_recovery(), \
         coalesce((j ->> 'failover')::bool, false) \
         FROM pg_catalog.pg_replication_slots s, LATERAL (SELECT pg_catalog.to_jsonb(s) AS j) x WHERE s.slot_name = $1";
    let row = client.query_opt(sql, &[&slot]).await.map_err(|e| stop_from_sql(Side::Source, &e))?;
    let lsn = |text: Option<String>| text.and_then(|t| t.parse().ok());
    Ok(row.map(|row| SlotState {
        plugin: row.get(0),
        database: row.get(1),
        active_pid: row.get(2),
        confirmed_flush: lsn(row.get(3)),
        restart: lsn(row.get(4)),
        wal_status: row.get(5),
        safe_wal_size: row.get(6),
        two_phase: row.get(7),
        temporary: row.get(8),
        invalidation: row.get(9),
        synced: row.get(10),
        failover: row.get(11),
    }))
}

/// Whether the server is a standby.
pub(crate) async fn in_recovery(client: &Client) -> Result<bool, Stop> {
    let row = client.query_one("SELECT pg_catalog.pg_is_in_recovery()", &[]).await;
    Ok(row.map_err(|e| stop_from_sql(Side::Source, &e))?.get(0))
}

impl SlotState {
    /// Refuses a slot that cannot be streamed from, whatever is stored about it.
    ///
    /// # Errors
    ///
    /// Why it cannot.
    pub fn usable(&self, slot: &str, database: &str) -> Result<(), Stop> {
        let unusable = |what: String, hint: &str| {
            Err(Reason::SlotUnusable { slot: slot.to_owned(), what, hint: hint.to_owned() }.into())
        };
        let other_name = "Name another slot with --slot (an unused name makes a new one).";
        if self.plugin != "pgoutput" {
            let found = match self.plugin.as_str() {
                "" => "it is a physical slot, and a logical one with the plugin pgoutput is needed".to_owned(),
                plugin => format!("its plugin is {plugin}, and pgoutput is needed"),
            };
            return unusable(found, other_name);
        }
        if self.database != database {
            return unusable(format!("it belongs to database {}, not {database}", self.database), other_name);
        }
        if self.wal_status.as_deref() == Some("lost") || self.invalidation.is_some() {
            let cause = invalidation_words(self.invalidation.as_deref());
            return Err(Reason::SlotLost { slot: slot.to_owned(), what: format!("wal_status lost ({cause})") }.into());
        }
        if self.synced {
            return unusable(
                "it is synchronised from a primary and this server has not been promoted".to_owned(),
                STANDBY,
            );
        }
        if self.temporary {
            let holder = self.active_pid.map_or(String::new(), |pid| format!(" (PID {pid})"));
            return unusable(
                format!("it is a temporary slot: it goes with the session that made it{holder}"),
                other_name,
            );
        }
        Ok(())
    }
}

/// Why a slot was invalidated, with the setting that decides it.
fn invalidation_words(reason: Option<&str>) -> String {
    match reason {
        None | Some("wal_removed") => "the WAL it needs was removed: max_slot_wal_keep_size".to_owned(),
        Some("idle_timeout") => "idle_timeout: nobody read it for as long as idle_replication_slot_timeout".to_owned(),
        Some("rows_removed") => "rows_removed: rows of catalogs that it needs were vacuumed on the primary; \
             hot_standby_feedback and a physical slot for the standby keep them"
            .to_owned(),
        Some("wal_level_insufficient") => {
            "wal_level_insufficient: the primary's wal_level was below logical".to_owned()
        }
        Some(other) => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> SlotState {
        SlotState { plugin: "pgoutput".to_owned(), database: "d".to_owned(), ..SlotState::default() }
    }

    fn judged(state: &SlotState) -> (&'static str, String) {
        let stop = state.usable("s", "d").unwrap_err();
        assert!(!stop.is_transient() && !stop.hint().is_empty(), "{stop}");
        (stop.code(), stop.to_string())
    }

    #[test]
    fn an_invalidated_slot_is_lost_for_the_reason_that_the_server_gives() {
        assert_eq!(good().usable("s", "d"), Ok(()));
        let reasons = [
            (None, "max_slot_wal_keep_size"),
            (Some("wal_removed"), "max_slot_wal_keep_size"),
            (Some("idle_timeout"), "idle_replication_slot_timeout"),
            (Some("rows_removed"), "hot_standby_feedback"),
            (Some("wal_level_insufficient"), "wal_level"),
            // PostgreSQL 16 says no more than this; one to come may say what is not known here.
            (Some("conflict"), "conflict"),
            (Some("something_new"), "something_new"),
        ];
        for (reason, words) in reasons {
            let lost = SlotState { wal_status: Some("lost".to_owned()), ..good() };
            let lost = SlotState { invalidation: reason.map(str::to_owned), ..lost };
            let (code, said) = judged(&lost);
            assert!(code == "slot_lost" && said.contains(words), "{said}");
        }
        // Invalidated, whatever wal_status says.
        assert_eq!(judged(&SlotState { invalidation: Some("idle_timeout".to_owned()), ..good() }).0, "slot_lost");
    }

    #[test]
    fn a_slot_of_another_kind_is_named_by_what_it_is() {
        let others = [
            (SlotState { plugin: String::new(), ..good() }, "physical"),
            (SlotState { plugin: "wal2json".to_owned(), ..good() }, "wal2json"),
            (SlotState { database: "e".to_owned(), ..good() }, "database e"),
            (SlotState { temporary: true, active_pid: Some(7), ..good() }, "temporary slot"),
            // What slot synchronisation makes on a standby is temporary until it has caught up.
            (SlotState { synced: true, temporary: true, ..good() }, "synchronised"),
        ];
        for (state, words) in others {
            let (code, said) = judged(&state);
            assert!(code == "slot_unusable" && said.contains(words), "{said}");
        }
        assert_eq!(SlotState { failover: true, ..good() }.usable("s", "d"), Ok(()));
    }
}
