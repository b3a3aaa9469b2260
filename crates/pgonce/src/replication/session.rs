//! Commands of the replication protocol, before the stream starts.
//!
//! See PostgreSQL, "Streaming Replication Protocol".

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};
use tokio_postgres::Client;

use super::reader_thread::ReaderThread;
use super::timeline::TimelineHistory;
use crate::connect::frame::{FrameError, FrameReader};
use crate::connect::{ConnectionSettings, Endpoint, ServerError, Transport, open_session};
use crate::ident::{quote_ident, quote_literal};
use crate::position::{Boundary, Lsn, Timeline};
use crate::sql_error::{condition, passes, stop_from_sql};
use crate::stop::{Reason, ServerFault, Side, Stop};

/// A connection with `replication=database`, between commands.
pub(crate) struct ReplicationSession {
    endpoint: Endpoint,
    transport: Transport,
    frames: FrameReader,
    thread: ReaderThread,
}

/// `CREATE_REPLICATION_SLOT`'s answer.
#[derive(Debug)]
pub(crate) struct CreatedSlot {
    pub(crate) consistent_point: Boundary,
    pub(crate) snapshot: String,
}

/// `IDENTIFY_SYSTEM`'s answer.
#[derive(Debug)]
pub(crate) struct System {
    pub(crate) identifier: String,
    pub(crate) timeline: Timeline,
    pub(crate) flushed: Lsn,
}

/// The options of `START_REPLICATION`.
pub(crate) struct StartOptions<'a> {
    pub(crate) slot: &'a str,
    pub(crate) publications: &'a [String],
    /// `server_version_num`; decides the protocol version.
    pub(crate) server_version: u32,
    /// Leave out what has a replication origin (PostgreSQL 16 and later).
    pub(crate) origin_none: bool,
    /// Whether transactions are sent while they are in progress.
    pub(crate) streaming: bool,
    /// Whether prepared transactions are asked for. A slot that was made so sends them whatever is asked.
    pub(crate) two_phase: bool,
}

type Fields = Vec<Option<Bytes>>;

impl ReplicationSession {
    pub(crate) async fn open(settings: &ConnectionSettings) -> Result<ReplicationSession, Stop> {
        let parameters = [
            ("replication", "database"),
            ("application_name", "pgonce replication"),
            // Making a slot waits for transactions that are open, however long they are.
            ("lock_timeout", "0"),
        ];
        let thread = ReaderThread::start().map_err(|e| Stop::internal(format!("starting a thread: {e}")))?;
        let settings = settings.clone();
        let session = thread.spawn(async move { open_session(&settings, &parameters).await }).await;
        let session = session.map_err(|e| Stop::lost_task("the task that opens a replication connection", &e))?;
        let session = session.map_err(|e| e.into_stop(Side::Source))?;
        let endpoint = session.transport().endpoint().clone();
        let (transport, frames) = session.into_parts();
        Ok(ReplicationSession { endpoint, transport, frames, thread })
    }

    /// The server at the other end.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Makes sure that an SQL connection to the same address is at the same server: behind one address there may be
    /// several, and catalogue, slot and stream must be of one.
    pub(crate) async fn assert_same_server(&mut self, client: &Client) -> Result<(), Stop> {
        // No two servers are started in the same microsecond; the time zone is pinned on both connections.
        let query = "SELECT pg_catalog.pg_postmaster_start_time()::text";
        let rows = self.command(query).await?;
        let ours = text(rows.first().ok_or_else(|| broken("no start time"))?, 0, "start time")?;
        let theirs = client.query_one(query, &[]).await.map_err(|e| stop_from_sql(Side::Source, &e))?;
        if theirs.get::<_, &str>(0) == ours {
            return Ok(());
        }
        let what = format!(
            "two connections to {} reached two servers (something in between distributes them); name the servers \
             themselves, several in one URL with target_session_attrs=read-write",
            self.endpoint
        );
        Err(Reason::Connection { side: Side::Source, what }.into())
    }

    pub(crate) async fn identify_system(&mut self) -> Result<System, Stop> {
        let rows = self.command("IDENTIFY_SYSTEM").await?;
        let row = rows.first().ok_or_else(|| broken("IDENTIFY_SYSTEM returned no row"))?;
        Ok(System {
            identifier: text(row, 0, "systemid")?,
            timeline: text(row, 1, "timeline")?.parse().map_err(|_| broken("IDENTIFY_SYSTEM: timeline"))?,
            flushed: text(row, 2, "xlogpos")?.parse().map_err(|_| broken("IDENTIFY_SYSTEM: xlogpos"))?,
        })
    }

    /// The history of `timeline`. Timeline 1 has none and is not asked for.
    pub(crate) async fn timeline_history(&mut self, timeline: Timeline) -> Result<TimelineHistory, Stop> {
        if timeline <= 1 {
            return Ok(TimelineHistory::default());
        }
        let rows = self.command(&format!("TIMELINE_HISTORY {timeline}")).await?;
        let content = rows.first().and_then(|row| row.get(1)).and_then(Option::as_ref);
        let content = content.ok_or_else(|| broken("TIMELINE_HISTORY returned no content"))?;
        TimelineHistory::parse(&String::from_utf8_lossy(content)).map_err(|e| broken(&e.to_string()))
    }

    /// Creates a logical slot with pgoutput and exports its snapshot, which lives until the next command or the
    /// session's end.
    pub(crate) async fn create_slot(
        &mut self,
        slot: &str,
        temporary: bool,
        two_phase: bool,
    ) -> Result<CreatedSlot, Stop> {
        let temporary = if temporary { " TEMPORARY" } else { "" };
        // The syntax with parentheses came with the option.
        let options = if two_phase { "(SNAPSHOT 'export', TWO_PHASE)" } else { "EXPORT_SNAPSHOT" };
        let command = format!("CREATE_REPLICATION_SLOT {}{temporary} LOGICAL pgoutput {options}", quote_ident(slot));
        let rows = self.command(&command).await?;
        let row = rows.first().ok_or_else(|| broken("CREATE_REPLICATION_SLOT returned no row"))?;
        let point = text(row, 1, "consistent_point")?;
        Ok(CreatedSlot {
            consistent_point: Boundary(point.parse().map_err(|_| broken("CREATE_REPLICATION_SLOT: consistent_point"))?),
            snapshot: text(row, 2, "snapshot_name")?,
        })
    }

    /// Starts the stream at the slot's own position, so that what was delivered and not acknowledged comes again and
    /// is held against the ledger.
    pub(crate) async fn start(mut self, options: &StartOptions<'_>) -> Result<Streaming, Stop> {
        let protocol = match options.server_version {
            160_000.. => 4,
            150_000.. => 3,
            140_000.. => 2,
            _ => 1,
        };
        let origin = if options.origin_none { ", origin 'none'" } else { "" };
        let publications: Vec<String> = options.publications.iter().map(|p| quote_ident(p)).collect();
        let streaming = if options.streaming && protocol >= 2 { ", streaming 'on'" } else { "" };
        let two_phase = if options.two_phase && protocol >= 3 { ", two_phase 'on'" } else { "" };
        let command = format!(
            "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '{protocol}', publication_names {}, messages \
             'true'{streaming}{two_phase}{origin})",
            quote_ident(options.slot),
            quote_literal(&publications.join(",")),
        );
        self.send_query(&command).await?;
        loop {
            let frame = self.frames.next(&mut self.transport).await.map_err(frame_stop)?;
            match frame.tag {
                b'W' => break,
                b'E' => return Err(server_stop(&frame.body, options.slot)),
                b'N' | b'S' => {}
                other => return Err(broken(&format!("message {other:#04x} instead of CopyBothResponse"))),
            }
        }
        let (read, write) = tokio::io::split(self.transport);
        Ok(Streaming { read, write, frames: self.frames, thread: self.thread })
    }

    /// Sends a command and collects its result.
    async fn command(&mut self, command: &str) -> Result<Vec<Fields>, Stop> {
        self.send_query(command).await?;
        let (mut rows, mut failure) = (Vec::new(), None);
        loop {
            let frame = self.frames.next(&mut self.transport).await.map_err(frame_stop)?;
            match frame.tag {
                b'D' => rows.push(fields(&frame.body).ok_or_else(|| broken("a DataRow that does not hold together"))?),
                b'E' => failure = Some(server_stop(&frame.body, "")),
                b'Z' => return failure.map_or(Ok(rows), Err),
                b'T' | b'C' | b'S' | b'N' | b'I' => {}
                other => return Err(broken(&format!("unexpected message {other:#04x} in the answer to a command"))),
            }
        }
    }

    async fn send_query(&mut self, command: &str) -> Result<(), Stop> {
        let mut message = BytesMut::new();
        postgres_protocol::message::frontend::query(command, &mut message).map_err(|e| broken(&e.to_string()))?;
        self.transport.write_all(&message).await.map_err(|e| lost(&e))?;
        self.transport.flush().await.map_err(|e| lost(&e))
    }
}

/// The two halves of a connection in copy-both mode.
pub(crate) struct Streaming {
    pub(crate) read: ReadHalf<Transport>,
    pub(crate) write: WriteHalf<Transport>,
    pub(crate) frames: FrameReader,
    /// Where the socket is watched, and should be read.
    pub(crate) thread: ReaderThread,
}

/// A standby status update: written, flushed and applied up to `position`.
pub(super) fn standby_status_update(position: Lsn, reply: bool, out: &mut BytesMut) {
    let since_2000 = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH + std::time::Duration::from_secs(946_684_800))
        .map_or(0, |d| d.as_micros() as i64);
    out.put_u8(b'd');
    out.put_i32(4 + 1 + 8 * 4 + 1);
    out.put_u8(b'r');
    for _ in 0..3 {
        out.put_u64(position.0);
    }
    out.put_i64(since_2000);
    out.put_u8(u8::from(reply));
}

fn fields(mut body: &[u8]) -> Option<Fields> {
    let (count, rest) = body.split_first_chunk::<2>()?;
    body = rest;
    let mut fields = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (length, rest) = body.split_first_chunk::<4>()?;
        body = rest;
        fields.push(match i32::from_be_bytes(*length) {
            -1 => None,
            length => {
                let (value, rest) = body.split_at_checked(usize::try_from(length).ok()?)?;
                body = rest;
                Some(Bytes::copy_from_slice(value))
            }
        });
    }
    Some(fields)
}

fn text(row: &Fields, index: usize, name: &str) -> Result<String, Stop> {
    let value = row.get(index).and_then(Option::as_ref).ok_or_else(|| broken(&format!("no {name}")))?;
    String::from_utf8(value.to_vec()).map_err(|_| broken(&format!("{name} is not UTF-8")))
}

pub(super) fn broken(what: &str) -> Stop {
    Reason::Protocol { what: what.to_owned() }.into()
}

pub(super) fn lost(error: &std::io::Error) -> Stop {
    Reason::Connection { side: Side::Source, what: format!("replication connection lost: {error}") }.into()
}

pub(super) fn frame_stop(error: FrameError) -> Stop {
    match error {
        FrameError::Io(e) => lost(&e),
        other => broken(&other.to_string()),
    }
}

/// The reason behind an ErrorResponse on the replication connection. Its texts speak of slots, publications and WAL
/// files, and of a row at the most when an output function fails; they are left out all the same.
pub(super) fn server_stop(body: &[u8], slot: &str) -> Stop {
    let Some(error) = ServerError::parse(body) else {
        return broken("an ErrorResponse that does not hold together");
    };
    let fault = ServerFault {
        sqlstate: error.sqlstate.clone(),
        schema: error.schema.clone(),
        table: error.table.clone(),
        column: error.column.clone(),
        constraint: error.constraint.clone(),
    };
    match error.sqlstate.as_str() {
        "55006" => Reason::SlotInUse { slot: slot.to_owned(), pid: 0 }.into(),
        // Of the classes that pass elsewhere these do not: the same would be said after every start.
        "08P01" => broken("the walsender says that the protocol was violated (SQLSTATE 08P01)"),
        "58P01" => Reason::SourceNotReady {
            what: format!("the walsender does not find a file that it needs: {fault} ({})", condition("58P01")),
            hint: "The source's server log names the file. If it is a WAL segment, put it back into pg_wal from the \
                 archive; if there is none, a new snapshot is needed: `pgonce reset --yes`, empty the target tables, \
                 and `pgonce run`."
                .to_owned(),
        }
        .into(),
        "42501" => Reason::SourceNotReady {
            what: format!("the walsender is refused what it needs: {fault} ({})", condition("42501")),
            hint: "Most likely, as a superuser on the source: ALTER ROLE ... REPLICATION; The source's server log has \
                 the full message."
                .to_owned(),
        }
        .into(),
        state if passes(state) => Reason::Busy { side: Side::Source, fault }.into(),
        "42704" if !slot.is_empty() => Reason::PublicationChanged {
            what: "the walsender no longer finds a publication (or the slot) that the stream needs (SQLSTATE 42704)"
                .into(),
        }
        .into(),
        state => Reason::SourceNotReady {
            what: format!("the walsender ended with {fault} ({})", condition(state)),
            hint: "The source's server log has the full message.".to_owned(),
        }
        .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stop(sqlstate: &str) -> Stop {
        let body = format!("SERROR\0VERROR\0C{sqlstate}\0Mthe value 4711 is in the message\0\0");
        let stop = server_stop(body.as_bytes(), "s");
        assert!(!format!("{stop} {} {stop:?}", stop.hint()).contains("4711"));
        stop
    }

    #[test]
    fn of_what_ends_a_walsender_some_passes_and_the_rest_stops_the_flow() {
        let passes = [
            ("57P01", "busy"), // admin_shutdown; also how the checkpointer ends who reads a slot that it invalidates
            ("57P02", "busy"), // crash_shutdown
            ("57P03", "busy"), // cannot_connect_now
            ("57014", "busy"), // query_canceled
            ("53100", "busy"), // disk_full
            ("53200", "busy"), // out_of_memory
            ("53300", "busy"), // too_many_connections
            ("53400", "busy"), // configuration_limit_exceeded
            ("40001", "busy"), // serialization_failure: a conflict with recovery
            ("55P03", "busy"), // lock_not_available
            ("58030", "busy"), // io_error
            ("55006", "slot_in_use"),
        ];
        for (sqlstate, code) in passes {
            let stop = stop(sqlstate);
            assert_eq!((stop.code(), stop.is_transient()), (code, true), "{sqlstate}: {stop}");
        }
        let ends = [
            ("42704", "publication_changed"), // undefined_object
            ("55000", "source_not_ready"),    // object_not_in_prerequisite_state: the slot is asked what it is
            ("42501", "source_not_ready"),    // insufficient_privilege
            ("0A000", "source_not_ready"),    // feature_not_supported
            ("58P01", "source_not_ready"),    // undefined_file: a WAL segment is gone
            ("57P04", "source_not_ready"),    // database_dropped
            ("XX000", "source_not_ready"),    // internal_error: it is the same after every start
            ("XX001", "source_not_ready"),    // data_corrupted
            ("22P05", "source_not_ready"),    // untranslatable_character
            ("08P01", "protocol"),            // protocol_violation
        ];
        for (sqlstate, code) in ends {
            let stop = stop(sqlstate);
            assert_eq!((stop.code(), stop.is_transient()), (code, false), "{sqlstate}: {stop}");
            assert!(stop.to_string().contains(sqlstate) && !stop.hint().is_empty(), "{stop}");
        }
        assert_eq!(server_stop(b"Cno end", "s").code(), "protocol");
    }
}
