//! A source that reads a replication slot.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_postgres::Client;

use crate::assemble::{Assembler, SpillSettings, TwoPhase, prepare_directory};
use crate::attestation::{self, Attestation, Claim};
use crate::catalog;
use crate::connect::{ConnectionSettings, SqlConnection, connect_sql};
use crate::described::{Described, described};
use crate::destination::{Binding, SlotOrigin, StartMode, StoredFlow};
use crate::heartbeat::{Heartbeat, Of};
use crate::ident::quote_ident;
use crate::partitions::Watch;
use crate::position::{Boundary, Durable};
use crate::published::Published;
use crate::replication::{Receiver, ReceiverSettings, ReplicationSession, StartOptions};
use crate::resume;
use crate::slot_state::{self, STANDBY, SlotState};
use crate::snapshot::{Snapshot, Snapshots};
use crate::source::{Begun, Event, Source, SourceIdentity};
use crate::sql_error::stop_from_sql;
use crate::stop::{Reason, Side, Stop};

/// What a [`SlotSource`] reads.
#[derive(Clone, Debug)]
pub struct SlotSettings {
    /// The source database.
    pub connection: ConnectionSettings,
    /// The slot. Made on the first start if it does not exist.
    pub slot: String,
    /// The publications.
    pub publications: Vec<String>,
    /// Patterns of the tables for which the (single) publication is made on the first start if it does not exist.
    /// `None`: the publications are an admin's and must exist.
    pub create_publication: Option<Vec<String>>,
    /// Whether transactions are sent while they are in progress.
    pub streaming: Streaming,
    /// What becomes of prepared transactions.
    pub two_phase: TwoPhase,
    /// When transactions in assembly go to disk.
    pub spill: SpillSettings,
    /// Which transactions are carried, by where they come from.
    pub origin: OriginFilter,
    /// Where the sink cannot store an idle boundary: how long the acknowledgement may stand still while others write
    /// before a [heartbeat](crate::heartbeat) moves it. `None` (the default): for ever.
    pub heartbeat: Option<Duration>,
    /// Bytes of assembled transactions that may wait for the sink before the socket is left unread.
    pub queue_bytes: usize,
}

impl SlotSettings {
    /// Settings with the usual bounds.
    pub fn new(connection: ConnectionSettings, slot: impl Into<String>, publications: Vec<String>) -> SlotSettings {
        SlotSettings {
            connection,
            slot: slot.into(),
            publications,
            create_publication: None,
            streaming: Streaming::default(),
            two_phase: TwoPhase::default(),
            spill: SpillSettings::default(),
            origin: OriginFilter::default(),
            heartbeat: None,
            queue_bytes: 32 << 20,
        }
    }
}

/// Which transactions are carried, by where they come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OriginFilter {
    /// All.
    #[default]
    Any,
    /// Only those that have no replication origin: what was itself applied by replication, and marked so, is left out.
    None,
}

/// The first version whose walsender filters by origin.
const FILTERS_ORIGINS: u32 = 160_000;

/// Whether the source sends transactions that outgrow its `logical_decoding_work_mem` while they are in progress. They
/// are delivered when they commit, either way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Streaming {
    /// When they commit: the source keeps them on its disk until then. What is rolled back is not sent.
    Off,
    /// As they grow: at their commit most of them is here already, and the source keeps no copy. What is rolled back
    /// was sent in vain.
    #[default]
    On,
}

/// A replication slot of a PostgreSQL server, read through pgoutput.
#[derive(Debug)]
pub struct SlotSource {
    settings: SlotSettings,
    session: Option<Session>,
    messages: bool,
    /// A streamed transaction could not be told apart from what was rolled back in it: from then on they are sent as a
    /// whole.
    in_doubt: Arc<AtomicBool>,
    warnings: Vec<String>,
}

/// All state of one connection. A reconnect drops it whole.
struct Session {
    /// The server that the replication connection is at, and no other: where all else of the session connects to.
    connection: ConnectionSettings,
    sql: Arc<SqlConnection>,
    replication: Option<ReplicationSession>,
    identity: SourceIdentity,
    receiver: Option<Receiver>,
    attestation: Option<Attestation>,
    heartbeat: Option<Heartbeat>,
    /// The slot was made in this session.
    created: bool,
    /// Since [`Source::published`].
    partitions: Option<Arc<Mutex<Watch>>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl SlotSource {
    /// A source that has not connected yet.
    pub fn new(settings: SlotSettings) -> SlotSource {
        SlotSource { settings, session: None, messages: false, in_doubt: Arc::default(), warnings: Vec::new() }
    }

    fn session(&mut self) -> Result<&mut Session, Stop> {
        self.session.as_mut().ok_or_else(|| Stop::internal("the source was used before it was connected"))
    }

    /// Checks that a logical slot can be read here at all.
    async fn check_server(sql: &Client) -> Result<u32, Stop> {
        let query = "SELECT current_setting('server_version_num')::int4, current_setting('wal_level'), \
             current_setting('max_replication_slots')::int4";
        let row = sql.query_one(query, &[]).await.map_err(|e| stop_from_sql(Side::Source, &e))?;
        let (version, wal_level, slots): (i32, String, i32) = (row.get(0), row.get(1), row.get(2));
        let not_ready = |what: String, hint: &str| Reason::SourceNotReady { what, hint: hint.to_owned() };
        if version < 140_000 {
            let what = format!("server version {}.{} is older than 14", version / 10_000, version % 10_000);
            return Err(not_ready(what, "pgonce reads PostgreSQL 14 to 18.").into());
        }
        if wal_level != "logical" {
            let hint = "ALTER SYSTEM SET wal_level = 'logical'; then restart the server.";
            return Err(not_ready(format!("wal_level is {wal_level}, not logical"), hint).into());
        }
        if slots == 0 {
            let hint = "ALTER SYSTEM SET max_replication_slots = 10; then restart the server.";
            return Err(not_ready("max_replication_slots is 0".to_owned(), hint).into());
        }
        Ok(u32::try_from(version).unwrap_or(0))
    }

    async fn slot_state(&mut self) -> Result<Option<SlotState>, Stop> {
        let name = self.settings.slot.clone();
        let session = self.session()?;
        let state = slot_state::slot_state(&session.sql.client, &name).await?;
        match &state {
            Some(state) => state.usable(&name, &session.identity.database)?,
            // Its absence says nothing there.
            None if slot_state::in_recovery(&session.sql.client).await? => {
                return Err(Reason::SlotUnusable {
                    slot: name,
                    what: "this server is a standby, and does not have it".to_owned(),
                    hint: STANDBY.to_owned(),
                }
                .into());
            }
            None => {}
        }
        Ok(state)
    }

    /// Makes the publication if it is ours to make and does not exist.
    async fn ensure_publication(&mut self) -> Result<(), Stop> {
        let Some(patterns) = self.settings.create_publication.clone() else { return Ok(()) };
        let [name] = self.settings.publications.as_slice() else { return Ok(()) };
        let name = name.clone();
        let session = self.session()?;
        let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_publication p WHERE p.pubname = $1)";
        let exists = session.sql.client.query_one(sql, &[&name]).await;
        if exists.map_err(|e| stop_from_sql(Side::Source, &e))?.get(0) {
            return Ok(());
        }
        let choice = catalog::choose(&session.sql.client, &patterns).await?;
        catalog::create_publication(&session.sql.client, &name, &choice).await
    }

    /// Tables that the patterns choose now and that are not carried.
    async fn warn_of_unpublished(&mut self, published: &Published) -> Result<(), Stop> {
        let Some(patterns) = self.settings.create_publication.clone() else { return Ok(()) };
        let session = self.session()?;
        let choice = catalog::choose(&session.sql.client, &patterns).await;
        // A table that was named and can no longer be published is not what this is about.
        let Ok(choice) = choice else { return Ok(()) };
        let missing = choice
            .tables
            .iter()
            .filter(|(schema, name)| !published.tables.iter().any(|t| t.schema == *schema && t.name == *name));
        let missing: Vec<String> = missing.map(|(schema, name)| format!("{schema}.{name}")).collect();
        self.warnings.extend(choice.left_out);
        if !missing.is_empty() {
            let missing = missing.join(", ");
            self.warnings.push(format!("not in the publication, and so not carried: {missing}"));
        }
        Ok(())
    }
}

impl Source for SlotSource {
    fn yields_prepared(&self) -> bool {
        self.settings.two_phase == TwoPhase::Seen
    }

    async fn connect(&mut self) -> Result<SourceIdentity, Stop> {
        self.session = None;
        let mut replication = ReplicationSession::open(&self.settings.connection).await?;
        let system = replication.identify_system().await?;
        let connection = self.settings.connection.pinned_to(replication.endpoint());
        let sql = connect_sql(&connection, "source").await.map_err(|e| e.into_stop(Side::Source))?;
        replication.assert_same_server(&sql.client).await?;
        let server_version = SlotSource::check_server(&sql.client).await?;
        if self.settings.two_phase == TwoPhase::Seen && server_version < 150_000 {
            let what = "PostgreSQL 14 cannot send transactions when they are prepared".to_owned();
            let hint =
                "Have them delivered when they commit (TwoPhase::AtCommit), or read from PostgreSQL 15 or later."
                    .to_owned();
            return Err(Reason::Unsupported { what, hint }.into());
        }
        let query = "SELECT pg_catalog.current_database()::text";
        let row = sql.client.query_one(query, &[]).await.map_err(|e| stop_from_sql(Side::Source, &e))?;
        let identity = SourceIdentity {
            system_identifier: system.identifier,
            timeline: system.timeline,
            flushed: system.flushed,
            database: row.get(0),
            slot: self.settings.slot.clone(),
            server_version,
        };
        // Before the sink is opened, and with it an older writer fenced off: whoever reads the slot is left alone. A
        // slot that could not be read anyway is not waited for.
        if let Some(state) = slot_state::slot_state(&sql.client, &self.settings.slot).await?
            && let Some(pid) = state.active_pid
        {
            state.usable(&self.settings.slot, &identity.database)?;
            return Err(Reason::SlotInUse { slot: self.settings.slot.clone(), pid }.into());
        }
        self.session = Some(Session {
            connection,
            sql: Arc::new(sql),
            replication: Some(replication),
            identity: identity.clone(),
            receiver: None,
            attestation: None,
            heartbeat: None,
            created: false,
            partitions: None,
        });
        Ok(identity)
    }

    async fn publish(&mut self, start: StartMode) -> Result<Published, Stop> {
        // The slot is inspected before anything is made.
        self.slot_state().await?;
        self.ensure_publication().await?;
        let publications = self.settings.publications.clone();
        let session = self.session()?;
        let published = catalog::published(&session.sql.client, session.identity.server_version, &publications).await?;
        let mute = catalog::mute_publication(&session.sql.client, &publications).await?;
        if let Some(mute) = mute {
            let hint = format!(
                "ALTER PUBLICATION {} SET (publish = 'insert, update, delete, truncate'); on the source.",
                quote_ident(&mute)
            );
            return Err(
                Reason::SourceNotReady { what: format!("publication {mute} publishes no operation"), hint }.into()
            );
        }
        if published.tables.is_empty() {
            let what = format!("publication {} publishes no table", publications.join(", "));
            if start == StartMode::Snapshot {
                let first = publications.first().map(|name| quote_ident(name)).unwrap_or_default();
                let hint = format!("ALTER PUBLICATION {first} ADD TABLE ...; on the source.");
                return Err(Reason::SourceNotReady { what, hint }.into());
            }
            self.warnings.push(format!("{what}: until it does, nothing but messages is carried"));
        }
        Ok(published)
    }

    async fn begin(&mut self, start: StartMode) -> Result<Begun, Stop> {
        let state = self.slot_state().await?;
        let settings = self.settings.clone();
        let connection = self.session()?.connection.clone();
        if let Some(state) = state {
            let confirmed = state.confirmed_flush.ok_or_else(|| resume::no_position(&settings.slot))?;
            return Ok(Begun { boundary: Boundary(confirmed), snapshot: None });
        }
        let mut exporter = ReplicationSession::open(&connection).await?;
        let created = exporter.create_slot(&settings.slot, false, settings.two_phase == TwoPhase::Seen).await?;
        let boundary = created.consistent_point;
        self.session()?.created = true;
        if start == StartMode::GoForward {
            self.warnings.push(format!(
                "slot {} did not exist and was made now: what was committed before {boundary} is not carried. \
                Go-forward is \
                 for a target that already holds all of it",
                settings.slot
            ));
        }
        let snapshot = Snapshot::new(boundary, created.snapshot, connection, Box::new(exporter));
        Ok(Begun { boundary, snapshot: Some(snapshot) })
    }

    async fn published(&mut self, binding: &Binding, again: &[String]) -> Result<Published, Stop> {
        let publications = self.settings.publications.clone();
        let session = self.session()?;
        let version = session.identity.server_version;
        let now = attestation::published(&session.sql, version, &publications, &binding.published, again).await?;
        let watch = Arc::new(Mutex::new(Watch::new(&binding.published)));
        attestation::look(&session.sql, &now, &watch).await?;
        session.partitions = Some(watch);
        self.warnings.extend(now.warnings.iter().cloned());
        self.warn_of_unpublished(&now).await?;
        Ok(now)
    }

    async fn described(&mut self) -> Result<Described, Stop> {
        let publications = self.settings.publications.clone();
        let session = self.session()?;
        described(&session.sql.client, session.identity.server_version, &publications).await
    }

    fn snapshots(&self) -> Snapshots {
        let pinned = self.session.as_ref().map(|session| &session.connection);
        Snapshots::new(pinned.unwrap_or(&self.settings.connection).clone())
    }

    async fn slot_origin(&mut self, stored: Option<&StoredFlow>) -> Result<SlotOrigin, Stop> {
        let state = self.slot_state().await?;
        let slot = self.settings.slot.clone();
        let session = self.session()?;
        let boundary = match stored {
            Some(stored) => {
                let replication = session.replication.as_mut();
                let replication = replication.ok_or_else(|| Stop::internal("asked behind the stream's start"))?;
                let history = replication.timeline_history(session.identity.timeline).await?;
                resume::timeline(stored.position(), &session.identity, &history)?;
                resume::slot(stored, &slot, state.as_ref())?;
                Some(stored.position().boundary)
            }
            None => None,
        };
        let state = state.ok_or_else(|| resume::no_slot(&slot))?;
        let confirmed_flush = state.confirmed_flush.ok_or_else(|| resume::no_position(&slot))?;
        Ok(SlotOrigin {
            slot,
            created: session.created,
            confirmed_flush,
            boundary: boundary.max(Some(Boundary(confirmed_flush))).unwrap_or(Boundary(confirmed_flush)),
            timeline: session.identity.timeline,
            sees_prepared: self.settings.two_phase == TwoPhase::Seen,
            two_phase: state.two_phase,
            failover: state.failover,
        })
    }

    fn want_messages(&mut self, wanted: bool) {
        self.messages = wanted;
    }

    async fn stream(&mut self, stored: &StoredFlow) -> Result<(), Stop> {
        let state = self.slot_state().await?;
        let (settings, messages, in_doubt) = (self.settings.clone(), self.messages, Arc::clone(&self.in_doubt));
        let session = self.session()?;
        let mut replication =
            session.replication.take().ok_or_else(|| Stop::internal("the stream was started twice"))?;
        // Read again: on a first start the slot, and with it the stored position, is younger than the connection.
        session.identity.flushed = replication.identify_system().await?.flushed;
        let history = replication.timeline_history(session.identity.timeline).await?;
        resume::timeline(stored.position(), &session.identity, &history)?;
        let confirmed = resume::slot(stored, &settings.slot, state.as_ref())?;
        if settings.two_phase == TwoPhase::Seen {
            begins_to_see(&settings.slot, state.as_ref(), confirmed, stored.position().boundary)?;
        }
        let filters = session.identity.server_version >= FILTERS_ORIGINS;
        // Of a transaction in progress the server does not always tell the origin; at its commit it does.
        let filters_here = settings.origin == OriginFilter::None && !filters;
        let spill = &settings.spill.directory;
        prepare_directory(spill)
            .map_err(|e| Reason::LocalFile { path: spill.display().to_string(), what: e.to_string() })?;
        let options = StartOptions {
            origin_none: settings.origin == OriginFilter::None && filters,
            slot: &settings.slot,
            publications: &settings.publications,
            server_version: session.identity.server_version,
            streaming: settings.streaming == Streaming::On && !filters_here && !in_doubt.load(Ordering::Relaxed),
            two_phase: settings.two_phase == TwoPhase::Seen,
        };
        let wal_sender_timeout = wal_sender_timeout(&session.sql.client).await?;
        let streaming = match replication.start(&options).await {
            Ok(streaming) => streaming,
            Err(stop) => return Err(self.explain(stop).await),
        };
        let session = self.session()?;
        // Tables may have joined since it was read what is published: what is remembered must not undo that.
        session.partitions = Some(Arc::new(Mutex::new(Watch::new(&stored.binding.published))));
        session.attestation = Some(Attestation::start(Claim {
            sql: Arc::clone(&session.sql),
            server_version: session.identity.server_version,
            publications: settings.publications,
            bound: stored.binding.published.clone(),
            patience: silence_max(wal_sender_timeout),
            partitions: session.partitions.clone().unwrap_or_default(),
        }));
        session.heartbeat = settings.heartbeat.map(|interval| {
            let of = Of { slot: settings.slot.clone(), server_version: session.identity.server_version };
            Heartbeat::start(Arc::clone(&session.sql), of, interval, confirmed.0)
        });
        session.receiver = Some(Receiver::start(
            streaming,
            ReceiverSettings {
                slot: settings.slot,
                assembler: Assembler::new(settings.spill)
                    .with_two_phase(settings.two_phase)
                    .telling_of_doubt(in_doubt)
                    .with_applied(stored.position().boundary)
                    .with_confirmed(confirmed)
                    .leaving_out_origins(filters_here),
                queue_bytes: settings.queue_bytes,
                wal_sender_timeout,
                silence_max: silence_max(wal_sender_timeout),
                messages,
            },
        ));
        Ok(())
    }

    async fn receive(&mut self, events: &mut Vec<Event>) -> Result<(), Stop> {
        let receiver = self.session()?.receiver.as_ref();
        let receiver = receiver.ok_or_else(|| Stop::internal("received before the stream was started"))?;
        let first = events.len();
        let queue = Arc::clone(&receiver.queue);
        if let Err(stop) = queue.take(events).await {
            return Err(self.explain(stop).await);
        }
        self.note_received(&events[first..]);
        Ok(())
    }

    fn acknowledge(&mut self, position: Durable<Boundary>) {
        if let Some(receiver) = self.session.as_ref().and_then(|s| s.receiver.as_ref()) {
            receiver.feedback.acknowledge(position);
        }
        if let Some(heartbeat) = self.session.as_ref().and_then(|s| s.heartbeat.as_ref()) {
            heartbeat.acknowledged(position.position());
        }
    }

    fn ask_position(&mut self) {
        let Some(session) = &self.session else { return };
        if let Some(receiver) = &session.receiver {
            receiver.feedback.ask();
        }
        if let Some(attestation) = &session.attestation {
            attestation.ask();
        }
    }

    fn attested(&mut self) -> Result<Option<Boundary>, Stop> {
        self.session()?.attestation.as_ref().map_or(Ok(None), Attestation::latest)
    }

    fn joined(&self) -> bool {
        self.session.as_ref().and_then(|s| s.attestation.as_ref()).is_some_and(Attestation::joined)
    }

    async fn committed_position(&mut self) -> Result<Boundary, Stop> {
        catalog::committed_position(&self.session()?.sql.client).await
    }

    fn warnings(&mut self) -> Vec<String> {
        let mut warnings = std::mem::take(&mut self.warnings);
        warnings.extend(self.partitions(Watch::take_news).unwrap_or_default());
        if let Some(heartbeat) = self.session.as_ref().and_then(|s| s.heartbeat.as_ref()) {
            warnings.extend(heartbeat.warnings());
        }
        warnings
    }

    fn take_memory(&mut self) -> Option<String> {
        self.partitions(Watch::take_memory).flatten()
    }

    async fn close(&mut self) {
        if let Some(mut session) = self.session.take()
            && let Some(receiver) = session.receiver.take()
        {
            receiver.end().await;
        }
    }
}

impl SlotSource {
    /// Asks what is known of the partitions.
    fn partitions<T>(&self, ask: impl FnOnce(&mut Watch) -> T) -> Option<T> {
        let watch = self.session.as_ref()?.partitions.as_ref()?;
        Some(ask(&mut watch.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Which TRUNCATEs the stream brought, and how far it has come.
    fn note_received(&self, events: &[Event]) {
        if let Some(heartbeat) = self.session.as_ref().and_then(|s| s.heartbeat.as_ref()) {
            heartbeat.received(events);
        }
        self.partitions(|watch| {
            for event in events {
                match event {
                    Event::Transaction(transaction) => {
                        if !transaction.truncated.is_empty() {
                            watch.truncated(transaction.xid, &transaction.truncated);
                        }
                        watch.received(transaction.end().0);
                    }
                    Event::Reported { point, sending: false, .. } => watch.received(point.0),
                    _ => {}
                }
            }
        });
    }

    /// What the slot itself has to say where the walsender refused to start or has ended: who holds it, or what has
    /// become of it. The walsender's own word is an SQLSTATE and a text, and the text is not for programs.
    async fn explain(&mut self, stop: Stop) -> Stop {
        let held = matches!(stop.reason(), Reason::SlotInUse { .. });
        if stop.is_transient() && !held {
            return stop;
        }
        let slot = self.settings.slot.clone();
        match tokio::time::timeout(Duration::from_secs(10), self.slot_state()).await {
            Ok(Ok(Some(SlotState { active_pid: Some(pid), .. }))) if held => Reason::SlotInUse { slot, pid }.into(),
            Ok(Ok(None)) => resume::no_slot(&slot),
            Ok(Err(found)) if !found.is_transient() => found,
            _ => stop,
        }
    }
}

/// A slot begins to know of two phases where it stands. What comes again from there on came otherwise before: what was
/// delivered at its commit, or was prepared and not told of, would be taken for something else.
fn begins_to_see(slot: &str, state: Option<&SlotState>, confirmed: Boundary, stored: Boundary) -> Result<(), Stop> {
    if state.is_none_or(|state| state.two_phase) || confirmed >= stored {
        return Ok(());
    }
    let what = format!(
        "slot {slot} does not know of two phases and stands at {confirmed}, before what is stored ({stored}): what \
         comes again was delivered without them"
    );
    let hint = "Run the flow with TwoPhase::AtCommit until it stops in good order, and then with TwoPhase::Seen.";
    Err(Reason::Unsupported { what, hint: hint.to_owned() }.into())
}

/// A server that says nothing for so long, though it is asked now and then, is not there any more.
fn silence_max(wal_sender_timeout: Duration) -> Duration {
    match wal_sender_timeout {
        Duration::ZERO => Duration::from_secs(300),
        timeout => 2 * timeout.max(Duration::from_secs(5)),
    }
}

async fn wal_sender_timeout(client: &Client) -> Result<Duration, Stop> {
    let sql = "SELECT s.setting::int8 FROM pg_catalog.pg_settings s WHERE s.name = 'wal_sender_timeout'";
    let row = client.query_one(sql, &[]).await.map_err(|e| stop_from_sql(Side::Source, &e))?;
    Ok(Duration::from_millis(u64::try_from(row.get::<_, i64>(0)).unwrap_or(60_000)))
}
