//! Checks of the source's server and role.

use pgonce::ident::{quote_ident, quote_literal};
use pgonce::stop::{Reason, Stop};

use super::finding::{Finding, Severity, Subject, Who};
use super::server::Server;
use crate::render::counted;

/// What the checks of a server need to know of the flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs {
    /// The initial copy is still to be made.
    pub copies: bool,
    /// The slot exists.
    pub slot_exists: bool,
    /// Tables that are copied at a time.
    pub jobs: usize,
}

/// The versions that are supported.
const VERSIONS: std::ops::RangeInclusive<u32> = 14..=18;

/// Version, role and settings that decide whether a slot can be made and read.
pub fn check(server: &Server, needs: Needs) -> Vec<Finding> {
    let mut found = vec![version("source.version", server)];
    found.push(recovery(server));
    found.push(wal_level(server));
    found.push(timeout(server));
    found.push(connections("source.connections", Who::SourceAdmin, server, needs.jobs));
    found.extend(memory(server));
    found.extend(idle_timeout(server));
    found
}

/// A version that is known to work, or why not.
pub fn version(id: &'static str, server: &Server) -> Finding {
    let found = format!("PostgreSQL {}", server.version_text);
    match server.major() {
        major if major < *VERSIONS.start() => {
            Finding::new(id, Severity::Problem, found).means("pgonce works with PostgreSQL 14 to 18.")
        }
        major if major > *VERSIONS.end() => Finding::new(id, Severity::Warning, found)
            .means("This version of pgonce has been tested with PostgreSQL 14 to 18, and not with a later one."),
        _ => Finding::ok(id, found),
    }
}

fn recovery(server: &Server) -> Finding {
    const ID: &str = "source.recovery";
    match (server.in_recovery, server.major() >= 16) {
        (false, _) => Finding::ok(ID, "the server is a primary"),
        (true, false) => Finding::new(ID, Severity::Problem, "the server is a standby").means(
            "Before PostgreSQL 16, a standby cannot have a logical slot. Point the URL at the primary, or promote \
             this server.",
        ),
        (true, true) => Finding::new(ID, Severity::Warning, "the server is a standby").means(
            "A slot can be made here, but not a publication, which has to come from the primary; and the slot is lost \
             where the standby falls behind or rows that it needs are vacuumed (hot_standby_feedback).",
        ),
    }
}

fn wal_level(server: &Server) -> Finding {
    const ID: &str = "source.wal_level";
    match server.setting("wal_level") {
        Some("logical") => Finding::ok(ID, "wal_level is logical"),
        other => {
            Finding::new(ID, Severity::Problem, format!("wal_level is {}, not logical", other.unwrap_or("unknown")))
                .means("The WAL does not hold what a logical slot needs: the slot cannot be made.")
                .mend_with_restart(Who::SourceAdmin, "ALTER SYSTEM SET wal_level = 'logical';")
        }
    }
}

fn timeout(server: &Server) -> Finding {
    const ID: &str = "source.wal_sender_timeout";
    match server.number("wal_sender_timeout") {
        Some(0) => Finding::new(ID, Severity::Warning, "wal_sender_timeout is 0")
            .means(
                "The server never notices that a client is gone: after a crash of pgonce's machine, the slot stays in \
                 use until somebody ends its walsender.",
            )
            .mend(
                Who::SourceAdmin,
                "ALTER SYSTEM SET wal_sender_timeout = '60s';\nSELECT pg_catalog.pg_reload_conf();",
            ),
        Some(timeout) => Finding::ok(ID, format!("wal_sender_timeout is {timeout} ms")),
        None => Finding::new(ID, Severity::Unknown, "wal_sender_timeout cannot be read"),
    }
}

/// Connections that the flow needs at a time, beside walsenders: one to follow, and one for each job of the copy.
pub fn connections(id: &'static str, who: Who, server: &Server, jobs: usize) -> Finding {
    let (free, needed) = (server.free_connections(), i64::try_from(jobs).unwrap_or(i64::MAX).saturating_add(2));
    let found = format!("{} free", counted(free.max(0).unsigned_abs(), "connection is", "connections are"));
    if free >= needed {
        return Finding::ok(id, found);
    }
    let max = server.number("max_connections").unwrap_or(100) + needed;
    let finding = Finding::new(id, Severity::Warning, format!("{found}, and {needed} may be needed"))
        .means("While it copies, pgonce opens one connection for each of --jobs and some more.");
    if server.connection_limit >= 0 && i64::from(server.connection_limit) < needed {
        return finding.mend(who, format!("ALTER ROLE {} CONNECTION LIMIT -1;", quote_ident(&server.role)));
    }
    finding.mend_with_restart(who, format!("ALTER SYSTEM SET max_connections = {max};"))
}

fn memory(server: &Server) -> Option<Finding> {
    let kilobytes = server.number("logical_decoding_work_mem")?;
    let found = format!("logical_decoding_work_mem is {} MB", kilobytes / 1024);
    Some(if kilobytes < 16 * 1024 {
        Finding::new("source.logical_decoding_work_mem", Severity::Note, found).means(
            "A transaction larger than this is spilled to the source's disk while it is decoded. More memory makes \
             that rarer: 64MB is the default.",
        )
    } else {
        Finding::ok("source.logical_decoding_work_mem", found)
    })
}

fn idle_timeout(server: &Server) -> Option<Finding> {
    const ID: &str = "source.idle_replication_slot_timeout";
    let seconds = server.number("idle_replication_slot_timeout")?;
    Some(match seconds {
        0 => Finding::ok(ID, "idle_replication_slot_timeout is off"),
        _ => Finding::new(ID, Severity::Warning, format!("idle_replication_slot_timeout is {seconds} s"))
            .means(
                "A flow that is stopped for longer than this loses its slot, and with it its place: a new copy is \
                 needed.",
            )
            .mend(
                Who::SourceAdmin,
                "ALTER SYSTEM SET idle_replication_slot_timeout = 0;\nSELECT pg_catalog.pg_reload_conf();",
            ),
    })
}

/// Whether a replication connection can be opened, which was tried.
pub fn replication(server: &Server, tried: &Result<String, Stop>) -> Finding {
    const ID: &str = "source.replication";
    let stop = match tried {
        Ok(_) => return Finding::ok(ID, format!("role {} opens a replication connection", server.role)),
        Err(stop) => stop,
    };
    let found = format!("role {} cannot open a replication connection: {stop}", server.role);
    let means = "Changes are read over such a connection.";
    if !server.replication && !server.superuser {
        return Finding::new(ID, Severity::Problem, found)
            .of(Subject::Object(server.role.clone()))
            .means(format!("{means} The role lacks REPLICATION (a hosted service may have a role to grant instead)."))
            .mend(Who::SourceAdmin, format!("ALTER ROLE {} WITH REPLICATION;", quote_ident(&server.role)));
    }
    let finding = Finding::new(ID, Severity::Problem, found);
    match stop.reason() {
        Reason::Busy { fault, .. } if fault.sqlstate.starts_with("53") => {
            let max = server.number("max_wal_senders").unwrap_or(10) + 5;
            finding
                .means(format!("{means} All walsenders are in use."))
                .mend_with_restart(Who::SourceAdmin, format!("ALTER SYSTEM SET max_wal_senders = {max};"))
        }
        _ => finding.means(format!(
            "{means} An entry of pg_hba.conf for this database and role is needed, and no connection pooler in \
             between."
        )),
    }
}

/// Transactions that the making of a slot has to wait for.
#[derive(Clone, Debug)]
pub struct Waits {
    /// PID, age in seconds, state, database.
    pub running: Vec<(i32, Option<f64>, String, String)>,
    /// Global identifier, age in seconds, database.
    pub prepared: Vec<(String, f64, String)>,
}

/// A transaction that is older than this will not end in a moment.
const LONG: f64 = 10.0;

impl Waits {
    /// Asks for transactions that have written something: those that have an xid.
    pub async fn ask(client: &tokio_postgres::Client) -> Result<Waits, tokio_postgres::Error> {
        let sql = "SELECT a.pid, extract(epoch FROM clock_timestamp() - a.xact_start)::float8, \
               coalesce(a.state, ''), coalesce(a.datname::text, '') \
             FROM pg_stat_activity a WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid() ORDER BY 2 DESC";
        let running = client.query(sql, &[]).await?;
        let sql = "SELECT p.gid, extract(epoch FROM clock_timestamp() - p.prepared)::float8, p.database::text \
             FROM pg_prepared_xacts p ORDER BY 2 DESC";
        let prepared = client.query(sql, &[]).await?;
        Ok(Waits {
            running: running.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect(),
            prepared: prepared.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect(),
        })
    }

    /// What they mean for a slot that is made, or for one that exists.
    pub fn check(&self, server: &Server, slot_exists: bool) -> Vec<Finding> {
        let (severity, means) = match slot_exists {
            true => (Severity::Note, "While it is open, the slot's restart_lsn stays behind it, and WAL is kept."),
            false => (
                Severity::Warning,
                "Making the slot, and the copy's snapshot, waits for every open transaction that has written \
                 something, in any database of the server.",
            ),
        };
        let mut found = Vec::new();
        for (pid, seconds, state, database) in &self.running {
            if seconds.is_some_and(|seconds| seconds >= LONG) {
                let old = super::server::age(seconds.unwrap_or_default());
                let text = format!(
                    "the transaction of the server process with PID {pid} ({database}, {state}) is {old} \
                                    old"
                );
                found.push(
                    Finding::new("source.long_transaction", severity, text)
                        .of(Subject::Object(format!("PID {pid}")))
                        .means(means)
                        .mend(Who::SourceAdmin, format!("SELECT pg_catalog.pg_terminate_backend({pid});")),
                );
            }
        }
        let hidden = self.running.iter().filter(|(_, seconds, ..)| seconds.is_none()).count() as u64;
        if hidden > 0 {
            let text = format!(
                "how long {} been open cannot be seen",
                counted(
                    hidden,
                    "transaction that has written something has",
                    "transactions that have written something have"
                )
            );
            found.push(
                Finding::new("source.long_transaction", Severity::Unknown, text)
                    .means("A role sees the start of other roles' transactions only as a member of pg_read_all_stats.")
                    .mend(Who::SourceAdmin, format!("GRANT pg_read_all_stats TO {};", quote_ident(&server.role))),
            );
        }
        for (gid, seconds, database) in &self.prepared {
            let text =
                format!("prepared transaction {gid:?} of database {database} is {} old", super::server::age(*seconds));
            let gid_quoted = quote_literal(gid);
            found.push(
                Finding::new("source.prepared_transaction", severity, text)
                    .of(Subject::Object(gid.clone()))
                    .means(format!("{means} A prepared one stays open until somebody ends it."))
                    .mend(
                        Who::SourceAdmin,
                        format!("COMMIT PREPARED {gid_quoted}; -- or ROLLBACK PREPARED, in database {database}"),
                    ),
            );
        }
        if found.is_empty() {
            found.push(Finding::ok("source.long_transaction", "no open or prepared transaction is in the way"));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(version: u32, in_recovery: bool) -> Server {
        Server { version, version_text: format!("{}.1", version / 10_000), in_recovery, ..Server::default() }
    }

    #[test]
    fn versions_are_supported_from_14_to_18() {
        let severity = |number| version("source.version", &server(number, false)).severity;
        assert_eq!([130_022, 140_000, 180_001].map(severity), [Severity::Problem, Severity::Ok, Severity::Ok]);
        assert_eq!(severity(190_000), Severity::Warning);
    }

    #[test]
    fn a_standby_has_slots_from_16_on() {
        let severity = |number, standby| recovery(&server(number, standby)).severity;
        assert_eq!(severity(150_000, false), Severity::Ok);
        assert_eq!((severity(150_000, true), severity(160_000, true)), (Severity::Problem, Severity::Warning));
    }

    #[test]
    fn only_what_is_open_for_long_is_told_and_what_cannot_be_seen() {
        let waits = Waits {
            running: vec![
                (1, Some(0.5), "active".to_owned(), "d".to_owned()),
                (2, Some(3600.0), "idle in transaction".to_owned(), "d".to_owned()),
                (3, None, String::new(), "d".to_owned()),
            ],
            prepared: vec![("it's".to_owned(), 5.0, "d".to_owned())],
        };
        let found = waits.check(&server(150_000, false), false);
        let severities: Vec<Severity> = found.iter().map(|f| f.severity).collect();
        assert_eq!(severities, [Severity::Warning, Severity::Unknown, Severity::Warning]);
        assert!(found[2].mends[0].text.starts_with("COMMIT PREPARED 'it''s';"), "{found:?}");
        assert_eq!(waits.check(&server(150_000, false), true)[0].severity, Severity::Note);
    }
}
