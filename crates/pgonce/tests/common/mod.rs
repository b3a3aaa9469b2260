//! A sink that remembers in memory, and flows of it from real servers.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pgonce::connect::{ConnectionSettings, Environment};
use pgonce::destination::{
    Binding, Destination, IdlePoint, Loader, SlotOrigin, StartMode, Stored, StoredFlow, StoredTable, Written,
};
use pgonce::guarantee::EffectOnce;
use pgonce::logical_message::LogicalMessage;
use pgonce::pgoutput::{Column, OldTuple, Tuple};
use pgonce::piece::{CopyPlan, Format, Piece, Standing, TableCopy};
use pgonce::pipeline::{Finished, Pipeline, PipelineOptions, Progress, Until};
use pgonce::position::{Boundary, Checkpoint, CommitLsn, EndLsn, Lsn};
use pgonce::slot_source::{SlotSettings, SlotSource};
use pgonce::snapshot::TableRows;
use pgonce::source::SourceIdentity;
use pgonce::stop::{Reason, Stop};
use pgonce::transaction::{Change, Digest, Transaction};
use pgonce_testkit::{Cluster, majors};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What the sink has made durable: it outlives every session.
#[derive(Clone, Debug, Default)]
pub struct Remembered {
    pub identity: Option<SourceIdentity>,
    pub flow: Option<StoredFlow>,
    pub applied: Vec<Applied>,
    pub copied: Vec<(String, String)>,
    pub redelivered: u64,
    pub sessions: u32,
    /// Messages outside transactions, each with the number of transactions applied before it.
    pub messages: Vec<(usize, LogicalMessage)>,
    pub origins: Vec<SlotOrigin>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    pub xid: u32,
    pub commit: CommitLsn,
    pub end: EndLsn,
    pub origin: Option<String>,
    pub digest: Digest,
    pub change_count: u64,
    pub changes: Vec<String>,
}

/// How the sink behaves; may be changed while a flow runs.
#[derive(Clone, Debug)]
pub struct Manners {
    /// How long a write takes.
    pub write: Duration,
    /// Claims everything durable, whatever it was given.
    pub lies: bool,
    /// Says nothing of durability.
    pub silent: bool,
    /// Stores idle boundaries.
    pub idles: bool,
    /// Wants messages outside transactions.
    pub messages: bool,
    /// Refuses every slot's origin.
    pub vetoes: bool,
}

impl Default for Manners {
    fn default() -> Self {
        Manners { write: Duration::ZERO, lies: false, silent: false, idles: true, messages: false, vetoes: false }
    }
}

#[derive(Clone, Debug, Default)]
pub struct MemorySink {
    pub memory: Arc<Mutex<Remembered>>,
    pub manners: Arc<Mutex<Manners>>,
}

impl MemorySink {
    pub fn remembered(&self) -> Remembered {
        self.memory.lock().unwrap().clone()
    }

    pub fn applied(&self) -> Vec<Applied> {
        self.remembered().applied
    }

    /// All changes of all applied transactions.
    pub fn changes(&self) -> Vec<String> {
        self.applied().into_iter().flat_map(|t| t.changes).collect()
    }
}

impl Loader for MemorySink {
    async fn load(
        &mut self,
        table: &TableCopy,
        piece: &Piece,
        boundary: Boundary,
        mut rows: TableRows,
    ) -> Result<u64, Stop> {
        let mut data = Vec::new();
        while let Some(chunk) = rows.next().await? {
            data.extend_from_slice(&chunk);
        }
        let text = String::from_utf8(data).expect("text COPY in UTF-8");
        let count = text.lines().count() as u64;
        let mut memory = self.memory.lock().unwrap();
        memory.copied.push((table.table.to_string(), text));
        let tables = &mut memory.flow.as_mut().expect("bound").tables;
        let stored = tables.iter_mut().find(|t| t.oid == table.table.oid).expect("planned");
        stored.pieces.iter_mut().find(|p| p.number == piece.number).expect("planned").boundary = Some(boundary);
        Ok(count)
    }
}

impl Destination for MemorySink {
    type Loader = MemorySink;

    type Mode = EffectOnce;

    async fn open(&mut self, source: &SourceIdentity) -> Result<Stored, Stop> {
        let mut memory = self.memory.lock().unwrap();
        memory.sessions += 1;
        if let Some(bound) = &memory.identity
            && (bound.system_identifier != source.system_identifier || bound.database != source.database)
        {
            let what = format!("bound to system {}, found {}", bound.system_identifier, source.system_identifier);
            return Err(Reason::SourceChanged { what }.into());
        }
        memory.identity.get_or_insert_with(|| source.clone());
        Ok(memory.flow.clone().map_or(Stored::Nothing, Stored::Flow))
    }

    async fn origin(&mut self, origin: &SlotOrigin) -> Result<(), Stop> {
        self.memory.lock().unwrap().origins.push(origin.clone());
        match self.manners.lock().unwrap().vetoes {
            true => Err(Reason::Unsupported { what: "not from there".to_owned(), hint: String::new() }.into()),
            false => Ok(()),
        }
    }

    fn wants_messages(&self) -> bool {
        self.manners.lock().unwrap().messages
    }

    async fn message(&mut self, message: &LogicalMessage) -> Result<(), Stop> {
        let pause = self.manners.lock().unwrap().write;
        tokio::time::sleep(pause).await;
        let mut memory = self.memory.lock().unwrap();
        let before = memory.applied.len();
        memory.messages.push((before, message.clone()));
        Ok(())
    }

    async fn write(&mut self, group: &[Transaction]) -> Result<Written, Stop> {
        let manners = self.manners.lock().unwrap().clone();
        tokio::time::sleep(manners.write).await;
        let mut memory = self.memory.lock().unwrap();
        let mut written = Written::default();
        for transaction in group {
            let flow = memory.flow.as_mut().expect("bound before written");
            if flow.checkpoint.is_some_and(|c| transaction.commit() <= c.commit) {
                written.redelivered += 1;
                continue;
            }
            flow.checkpoint =
                Some(Checkpoint { timeline: flow.idle.timeline, commit: transaction.commit(), end: transaction.end() });
            written.applied += 1;
            written.changes += transaction.change_count();
            memory.applied.push(applied(transaction));
        }
        memory.redelivered += written.redelivered;
        let checkpoint = memory.flow.as_ref().and_then(|f| f.checkpoint);
        written.durable = match manners {
            Manners { lies: true, .. } => Some(EndLsn(Lsn(u64::MAX))),
            Manners { silent: true, .. } => None,
            _ => checkpoint.map(|c| c.end),
        };
        Ok(written)
    }

    async fn persist_idle(&mut self, idle: IdlePoint) -> Result<bool, Stop> {
        if !self.manners.lock().unwrap().idles {
            return Ok(false);
        }
        self.memory.lock().unwrap().flow.as_mut().expect("bound").idle = idle;
        Ok(true)
    }

    async fn bind(&mut self, binding: &Binding) -> Result<(), Stop> {
        self.memory.lock().unwrap().flow = Some(StoredFlow {
            binding: binding.clone(),
            streaming: binding.start == StartMode::GoForward,
            tables: Vec::new(),
            checkpoint: None,
            idle: IdlePoint { boundary: binding.boundary, timeline: binding.timeline },
        });
        Ok(())
    }

    async fn plan(&mut self, tables: &[TableCopy], published: &str) -> Result<Vec<CopyPlan>, Stop> {
        let mut memory = self.memory.lock().unwrap();
        let flow = memory.flow.as_mut().expect("bound");
        for plan in tables.iter().filter(|plan| plan.standing != Standing::Planned) {
            assert_eq!(plan.standing, Standing::New);
            let pieces = plan.stored_pieces();
            flow.tables.push(StoredTable { oid: plan.table.oid, together: false, pieces });
        }
        flow.binding.published = published.to_owned();
        Ok(vec![CopyPlan { format: Format::Text, together: false }; tables.len()])
    }

    fn loader(&mut self) -> Result<MemorySink, Stop> {
        Ok(self.clone())
    }

    async fn copied(&mut self) -> Result<(), Stop> {
        self.memory.lock().unwrap().flow.as_mut().expect("bound").streaming = true;
        Ok(())
    }
}

pub fn applied(transaction: &Transaction) -> Applied {
    let mut changes = Vec::new();
    let mut pass = transaction.changes();
    while let Some(change) = pass.next().expect("changes read back") {
        changes.push(match change {
            Change::Insert { relation, new } => format!("I {} {}", relation.name, tuple(&new)),
            Change::Update { relation, old, new } => {
                let old = old.map_or(String::new(), |old| format!("{} -> ", old_tuple(&old)));
                format!("U {} {old}{}", relation.name, tuple(&new))
            }
            Change::Delete { relation, old } => format!("D {} {}", relation.name, old_tuple(&old)),
            Change::Truncate { relations, .. } => {
                let names: Vec<&str> = relations.iter().map(|r| r.name.as_str()).collect();
                format!("T {}", names.join(","))
            }
            Change::Message { prefix, content, .. } => format!("M {prefix} {}", String::from_utf8_lossy(content)),
        });
    }
    Applied {
        xid: transaction.xid(),
        commit: transaction.commit(),
        end: transaction.end(),
        origin: transaction.origin().map(str::to_owned),
        digest: transaction.digest(),
        change_count: transaction.change_count(),
        changes,
    }
}

fn old_tuple(old: &OldTuple<'_>) -> String {
    tuple(&old.tuple())
}

fn tuple(tuple: &Tuple<'_>) -> String {
    let columns: Vec<String> = tuple
        .iter()
        .map(|column| match column {
            Column::Null => "NULL".to_owned(),
            Column::Unchanged => "unchanged".to_owned(),
            Column::Text(text) => String::from_utf8_lossy(text).into_owned(),
            Column::Binary(bytes) => format!("{} bytes", bytes.len()),
        })
        .collect();
    columns.join(",")
}

/// The majors under test.
pub fn each_major() -> Vec<u32> {
    majors().unwrap()
}

pub async fn source(major: u32) -> Cluster {
    Cluster::builder(major).name("source").start().await.unwrap()
}

pub fn connection(url: &str) -> ConnectionSettings {
    ConnectionSettings::parse(url, &Environment::empty().with_os_user("postgres")).unwrap()
}

pub fn slot_source(url: &str, publication: &str) -> SlotSource {
    SlotSource::new(SlotSettings::new(connection(url), "pgonce_test", vec![publication.to_owned()]))
}

pub fn options() -> PipelineOptions {
    let mut options = PipelineOptions::new(StartMode::Snapshot);
    options.idle_interval = Duration::from_millis(200);
    options
}

/// A flow that runs until it is told to stop or stops by itself.
pub struct Running {
    stop: watch::Sender<bool>,
    pub progress: watch::Receiver<Progress>,
    task: JoinHandle<Result<Finished, Stop>>,
}

impl Running {
    pub fn start(source: SlotSource, sink: &MemorySink, options: PipelineOptions) -> Running {
        Running::with(source, sink.clone(), options)
    }

    pub fn with<D: Destination + 'static>(source: SlotSource, destination: D, options: PipelineOptions) -> Running {
        let mut pipeline = Pipeline::new(source, destination, options);
        let (stop, stopped) = watch::channel(false);
        let progress = pipeline.progress();
        let task = tokio::spawn(async move { pipeline.run(stopped).await });
        Running { stop, progress, task }
    }

    pub async fn stop(self) -> Result<Finished, Stop> {
        self.stop.send_replace(true);
        self.task.await.unwrap()
    }

    /// The process dies: no last words, no orderly end.
    pub async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    /// Waits until it ends by itself.
    pub async fn ended(self) -> Result<Finished, Stop> {
        match tokio::time::timeout(Duration::from_secs(60), self.task).await {
            Ok(ended) => ended.unwrap(),
            Err(_) => panic!("the flow did not end: {:?}", *self.progress.borrow()),
        }
    }
}

/// Runs until now and returns how it ended.
pub async fn run_until_now(source: SlotSource, sink: &MemorySink) -> Result<Finished, Stop> {
    let mut options = options();
    options.until = Some(Until::Now);
    Running::start(source, sink, options).ended().await
}

/// Waits until `met` holds, and fails with `what` if it never does.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut met: impl FnMut() -> F) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !met().await {
        assert!(Instant::now() < deadline, "not within 30 s: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub async fn confirmed_flush(client: &tokio_postgres::Client) -> Lsn {
    let sql = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'pgonce_test'";
    client.query_one(sql, &[]).await.unwrap().get::<_, String>(0).parse().unwrap()
}
