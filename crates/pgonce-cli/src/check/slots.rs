//! Checks of the source's slots, walsenders, and the WAL that is kept for them.

use pgonce::catalog::{SlotState, slot_state};
use pgonce::ident::{quote_ident, quote_literal};
use pgonce::stop::Stop;
use tokio_postgres::{Client, Error};

use super::finding::{Finding, Severity, Subject, Who};
use super::server::Server;
use super::source::Needs;
use crate::render::{bytes, counted};

/// Where a slot that holds more WAL than this, and that nobody reads, is worth a warning.
const RETAINED_MUCH: i64 = 1 << 30;

/// A limit of the retained WAL below this is soon reached.
const LIMIT_SMALL: i64 = 1024;

/// What the source says of its slots.
#[derive(Debug)]
pub struct Slots {
    /// Bytes of WAL that the flow's own slot retains.
    pub retained: Option<i64>,
    others: Vec<Other>,
    total: i64,
    walsenders: i64,
    /// Bytes in `pg_wal`, where the role may know.
    wal: Option<i64>,
}

#[derive(Debug)]
struct Other {
    name: String,
    active: bool,
    retained: Option<i64>,
    lost: bool,
}

impl Slots {
    /// Asks.
    pub async fn ask(client: &Client, slot: Option<&str>) -> Result<Slots, Error> {
        let sql = "SELECT s.slot_name::text, s.active, coalesce(s.wal_status, '') = 'lost', \
               pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() \
                 ELSE pg_current_wal_lsn() END, s.restart_lsn)::int8 \
             FROM pg_replication_slots s ORDER BY 1";
        let rows = client.query(sql, &[]).await?;
        let sql = "SELECT (SELECT count(*) FROM pg_stat_replication), \
               has_function_privilege('pg_ls_waldir()', 'EXECUTE')";
        let row = client.query_one(sql, &[]).await?;
        let wal = match row.get::<_, bool>(1) {
            true => Some(client.query_one("SELECT sum(size)::int8 FROM pg_ls_waldir()", &[]).await?.get(0)),
            false => None,
        };
        let other = |row: &tokio_postgres::Row| Other {
            name: row.get(0),
            active: row.get(1),
            lost: row.get(2),
            retained: row.get(3),
        };
        let (own, others): (Vec<Other>, Vec<Other>) =
            rows.iter().map(other).partition(|other| slot == Some(other.name.as_str()));
        let retained = own.first().and_then(|own| own.retained);
        Ok(Slots { retained, others, total: rows.len() as i64, walsenders: row.get(0), wal })
    }

    /// Free slots and walsenders, other slots, and the WAL.
    pub fn check(&self, server: &Server, needs: Needs) -> Vec<Finding> {
        let mut found = Vec::new();
        let (slots, senders) = (i64::from(!needs.slot_exists), 1);
        let copy = i64::from(needs.copies);
        found.push(free(
            ("source.slots", "max_replication_slots", "slot"),
            server.number("max_replication_slots").unwrap_or_default(),
            self.total,
            (slots, slots + copy),
        ));
        found.push(free(
            ("source.wal_senders", "max_wal_senders", "walsender"),
            server.number("max_wal_senders").unwrap_or_default(),
            self.walsenders,
            (senders, senders + copy),
        ));
        found.extend(self.others.iter().filter_map(Other::check));
        found.push(limit(server));
        found.push(self.disk(server));
        found
    }

    fn disk(&self, server: &Server) -> Finding {
        const ID: &str = "source.disk";
        let means = "PostgreSQL does not say how much of the disk is free. While a flow is stopped, or copies, all WAL \
                     that is written stays: look at the file system of pg_wal (df) yourself.";
        match self.wal {
            Some(size) => Finding::new(ID, Severity::Unknown, format!("pg_wal holds {}", size_of(size))).means(means),
            None => Finding::new(ID, Severity::Unknown, "the size of pg_wal cannot be read")
                .means(format!("{means} Its size is shown to members of pg_monitor."))
                .mend(Who::SourceAdmin, format!("GRANT pg_monitor TO {};", quote_ident(&server.role))),
        }
    }
}

fn size_of(size: i64) -> String {
    bytes(size.max(0).unsigned_abs())
}

/// Whether enough of something is free: at the least, and while the copy lasts.
fn free(names: (&'static str, &str, &str), max: i64, used: i64, (least, most): (i64, i64)) -> Finding {
    let (id, setting, thing) = names;
    let free = (max - used).max(0);
    let found = format!("{} of {max} ({setting}) free", counted(free.unsigned_abs(), thing, &format!("{thing}s")));
    if free >= most {
        return Finding::ok(id, found);
    }
    let (severity, means) = match free >= least {
        true => (Severity::Warning, "The copy takes one more for itself, and waits until there is one."),
        false => (Severity::Problem, "The flow needs one."),
    };
    Finding::new(id, severity, found)
        .means(means)
        .mend_with_restart(Who::SourceAdmin, format!("ALTER SYSTEM SET {setting} = {};", used + most + 2))
}

impl Other {
    fn check(&self) -> Option<Finding> {
        const ID: &str = "source.other_slot";
        let drop = format!("SELECT pg_catalog.pg_drop_replication_slot({});", quote_literal(&self.name));
        let of = Subject::Object(self.name.clone());
        if self.lost {
            return Some(
                Finding::new(ID, Severity::Note, format!("slot {} is lost", self.name))
                    .of(of)
                    .means("It keeps no WAL any more, but takes one of max_replication_slots.")
                    .mend(Who::SourceAdmin, drop),
            );
        }
        let retained = self.retained.filter(|retained| *retained > 0)?;
        let found = format!("slot {} retains {}", self.name, size_of(retained));
        Some(match (self.active, retained >= RETAINED_MUCH) {
            (false, true) => Finding::new(ID, Severity::Warning, format!("{found}, and nobody reads it"))
                .of(of)
                .means("The WAL that it retains takes disk from the flow's. Drop it if nobody will come back for it.")
                .mend(Who::SourceAdmin, drop),
            _ => Finding::new(ID, Severity::Note, found)
                .of(of)
                .means("Another slot of this server. What it retains, and the flow's slot, share one disk."),
        })
    }
}

fn limit(server: &Server) -> Finding {
    const ID: &str = "source.max_slot_wal_keep_size";
    match server.number("max_slot_wal_keep_size") {
        None => Finding::new(ID, Severity::Unknown, "max_slot_wal_keep_size cannot be read"),
        Some(-1) => Finding::new(ID, Severity::Note, "max_slot_wal_keep_size is -1: WAL is kept without limit").means(
            "A flow that is stopped for long fills the disk of the source. With a limit it loses its slot instead, and \
             has to copy anew. `pgonce status` shows what is retained.",
        ),
        Some(limit) => {
            let size = size_of(limit.saturating_mul(1 << 20));
            let finding = Finding::new(
                ID,
                if limit < LIMIT_SMALL { Severity::Warning } else { Severity::Note },
                format!("max_slot_wal_keep_size is {size}"),
            )
            .means(
                "Where more WAL than this is written while the flow is stopped, behind, or copying, its slot is lost \
                 and a new copy is needed.",
            );
            match limit < LIMIT_SMALL {
                true => finding.mend(
                    Who::SourceAdmin,
                    "ALTER SYSTEM SET max_slot_wal_keep_size = '-1';\nSELECT pg_catalog.pg_reload_conf();",
                ),
                false => finding,
            }
        }
    }
}

/// The state of the flow's own slot.
pub async fn own(client: &Client, slot: &str) -> Result<Option<SlotState>, Stop> {
    slot_state(client, slot).await
}

/// What is known of a flow when its slot is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The target has stored something of it.
    pub begun: bool,
    /// A writer is at work.
    pub alive: bool,
    /// Bytes of WAL that the slot retains.
    pub retained: Option<i64>,
}

/// Checks the flow's own slot.
pub fn check_own(slot: &str, state: Option<&SlotState>, database: &str, known: Known) -> Finding {
    let Known { begun, alive, retained } = known;
    const ID: &str = "source.slot";
    let of = Subject::Object(slot.to_owned());
    let drop = format!("SELECT pg_catalog.pg_drop_replication_slot({});", quote_literal(slot));
    let Some(state) = state else {
        return match begun {
            false => Finding::ok(ID, format!("slot {slot} does not exist yet: pgonce makes it")).of(of),
            true => Finding::new(ID, Severity::Problem, format!("slot {slot} does not exist, and the flow has begun"))
                .of(of)
                .means(
                    "Changes that were made since are gone: a new copy is needed. `pgonce reset` shows what it would \
                     remove.",
                ),
        };
    };
    if let Err(stop) = state.usable(slot, database) {
        let finding = Finding::new(ID, Severity::Problem, stop.to_string()).of(of).means(stop.hint());
        return finding.mend(Who::SourceRole, drop);
    }
    if let Some(pid) = state.active_pid {
        let found = format!("slot {slot} is being read by the server process with PID {pid}");
        return match alive {
            true => Finding::ok(ID, format!("{found}: the flow is running")).of(of),
            false => Finding::new(ID, Severity::Warning, found)
                .of(of)
                .means("`pgonce run` waits until it is free. If that is another pgonce, only one of them can run.")
                .mend(Who::SourceAdmin, format!("SELECT pg_catalog.pg_terminate_backend({pid});")),
        };
    }
    let found = format!(
        "slot {slot} exists, with wal_status {}, confirmed to {}, and retains {}",
        state.wal_status.as_deref().unwrap_or("unknown"),
        state.confirmed_flush.map_or_else(|| "nothing yet".to_owned(), |lsn| lsn.to_string()),
        retained.map_or_else(|| "nothing".to_owned(), size_of),
    );
    if state.wal_status.as_deref() == Some("unreserved") {
        return Finding::new(ID, Severity::Warning, found).of(of).means(
            "It retains more WAL than max_slot_wal_keep_size allows, and is lost at a checkpoint soon unless the flow \
             catches up.",
        );
    }
    match begun {
        true => Finding::ok(ID, found).of(of),
        false => Finding::new(ID, Severity::Note, found)
            .of(of)
            .means("It is used as it is: changes are taken from its position on."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(active: bool, retained: i64) -> Other {
        Other { name: "s".to_owned(), active, retained: Some(retained), lost: false }
    }

    #[test]
    fn a_slot_that_nobody_reads_and_that_holds_much_is_a_warning() {
        let severity = |slot: Other| slot.check().map(|finding| finding.severity);
        assert_eq!(severity(slot(false, 2 << 30)), Some(Severity::Warning));
        assert_eq!(severity(slot(true, 2 << 30)), Some(Severity::Note));
        assert_eq!(severity(slot(false, 1)), Some(Severity::Note));
        assert_eq!(severity(slot(false, 0)), None);
        assert_eq!(severity(Other { lost: true, ..slot(false, 0) }), Some(Severity::Note));
    }

    #[test]
    fn the_flows_own_slot_is_lost_missing_or_read_by_somebody() {
        let known = |begun, alive| Known { begun, alive, retained: None };
        let check = |state: Option<&SlotState>, known| check_own("s", state, "d", known).severity;
        assert_eq!(
            (check(None, known(false, false)), check(None, known(true, false))),
            (Severity::Ok, Severity::Problem)
        );
        let good = SlotState { plugin: "pgoutput".to_owned(), database: "d".to_owned(), ..SlotState::default() };
        assert_eq!(check(Some(&good), known(true, false)), Severity::Ok);
        assert_eq!(check(Some(&good), known(false, false)), Severity::Note);
        let read = SlotState { active_pid: Some(7), ..good.clone() };
        assert_eq!(check(Some(&read), known(true, true)), Severity::Ok);
        assert_eq!(check(Some(&read), known(true, false)), Severity::Warning);
        for broken in [
            SlotState { wal_status: Some("lost".to_owned()), ..good.clone() },
            SlotState { database: "other".to_owned(), ..good.clone() },
        ] {
            assert_eq!(check(Some(&broken), known(true, false)), Severity::Problem, "{broken:?}");
        }
        let late = SlotState { wal_status: Some("unreserved".to_owned()), ..good };
        assert_eq!(check(Some(&late), known(true, false)), Severity::Warning);
    }
}
