//! What the tests share: a server for each major, and a source that is made of bytes.
#![allow(dead_code, missing_docs, reason = "each test uses its part")]

use std::sync::{Arc, Weak};

use pgonce::assemble::{Assembled, Assembler, SpillSettings};
use pgonce::connect::{ConnectionSettings, Environment};
use pgonce::destination::{Binding, Destination, StartMode, Stored, StoredFlow};
use pgonce::pgoutput::encode::{ColumnDefsBuf, RelationIdsBuf, TupleBuf, encoded};
use pgonce::pgoutput::{Column, ColumnDef, Message, OldTuple, PgTime, RelationBody, ReplicaIdentity, TruncateOptions};
use pgonce::position::{Boundary, CommitLsn, EndLsn, Lsn};
use pgonce::source::SourceIdentity;
use pgonce::stop::Stop;
use pgonce::transaction::Transaction;
use pgonce_target::{PostgresTarget, SynchronousCommit, TargetSettings};
use pgonce_testkit::{Cluster, majors};
use tokio::sync::Mutex;
use tokio_postgres::Client;

static CLUSTERS: Mutex<Vec<(u32, Weak<Cluster>)>> = Mutex::const_new(Vec::new());

/// A database of its own on a server that the tests of a file share.
pub struct Target {
    pub cluster: Arc<Cluster>,
    pub database: String,
    pub client: Client,
}

impl Target {
    /// One for each major that tests run on.
    pub async fn each(name: &str) -> Vec<Target> {
        let mut targets = Vec::new();
        for major in majors().unwrap() {
            targets.push(Target::on(shared(major).await, name).await);
        }
        targets
    }

    pub async fn on(cluster: Arc<Cluster>, name: &str) -> Target {
        cluster.create_database(name).await.unwrap();
        let client = cluster.connect(name).await.unwrap();
        Target { database: name.to_owned(), client, cluster }
    }

    pub fn settings(&self) -> TargetSettings {
        let url = self.cluster.url(&self.database);
        TargetSettings::new("f", ConnectionSettings::parse(&url, &Environment::empty()).unwrap())
    }

    /// A target that has been opened and, if new, bound to go forward from 0/100.
    pub async fn open(&self) -> PostgresTarget {
        self.open_with(SynchronousCommit::Off).await.unwrap()
    }

    pub async fn open_with(&self, durability: SynchronousCommit) -> Result<PostgresTarget, Stop> {
        let mut settings = self.settings();
        settings.durability = durability;
        let mut sink = PostgresTarget::new(settings);
        if sink.open(&source()).await? == Stored::Nothing {
            sink.bind(&binding(StartMode::GoForward)).await?;
        }
        Ok(sink)
    }

    pub async fn sql(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap();
    }

    /// The rows of a query of one text column.
    pub async fn rows(&self, sql: &str) -> Vec<String> {
        let rows = self.client.query(sql, &[]).await.unwrap();
        rows.iter().map(|row| row.get::<_, Option<String>>(0).unwrap_or_else(|| "NULL".to_owned())).collect()
    }

    pub async fn number(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// All rows of a table as text, in their physical order.
    pub async fn table(&self, name: &str) -> Vec<String> {
        self.rows(&format!("SELECT t::text FROM {name} t ORDER BY ctid")).await
    }
}

async fn shared(major: u32) -> Arc<Cluster> {
    let mut clusters = CLUSTERS.lock().await;
    let known = clusters.iter().find(|(m, _)| *m == major).and_then(|(_, cluster)| cluster.upgrade());
    if let Some(cluster) = known {
        return cluster;
    }
    let cluster = Arc::new(Cluster::builder(major).name("target").start().await.unwrap());
    clusters.retain(|(m, _)| *m != major);
    clusters.push((major, Arc::downgrade(&cluster)));
    cluster
}

pub fn source() -> SourceIdentity {
    SourceIdentity {
        system_identifier: "7000000000000000001".into(),
        timeline: 1,
        flushed: Lsn(0x100),
        database: "shop".into(),
        slot: "pgonce_f".into(),
        server_version: 180_000,
    }
}

pub fn binding(start: StartMode) -> Binding {
    Binding { boundary: Boundary(Lsn(0x100)), timeline: 1, start, published: published() }
}

/// The fingerprint of whatever tables the tests write to.
fn published() -> String {
    (1..1000).map(|oid| format!("publishes {oid} # table {oid}\n")).collect()
}

pub fn stored(stored: Stored) -> StoredFlow {
    let Stored::Flow(flow) = stored else { panic!("nothing stored") };
    flow
}

pub const NULL: Column<'static> = Column::Null;
pub const UNCHANGED: Column<'static> = Column::Unchanged;

pub fn t(text: &str) -> Column<'_> {
    Column::Text(text.as_bytes())
}

/// A table of the source.
#[derive(Clone)]
pub struct Table {
    pub oid: u32,
    pub schema: String,
    pub name: String,
    pub identity: ReplicaIdentity,
    pub columns: Vec<(String, bool)>,
}

impl Table {
    /// Columns whose names begin with `*` are the key.
    pub fn new(oid: u32, name: &str, identity: ReplicaIdentity, columns: &[&str]) -> Table {
        let full = identity == ReplicaIdentity::Full;
        let columns = columns.iter().map(|c| (c.trim_start_matches('*').to_owned(), full || c.starts_with('*')));
        Table { oid, schema: "public".into(), name: name.into(), identity, columns: columns.collect() }
    }
}

/// `create table t(id int primary key, n int, b text)`
pub fn table_t() -> Table {
    Table::new(1, "t", ReplicaIdentity::Default, &["*id", "n", "b"])
}

/// A source made of bytes.
pub struct Feed {
    assembler: Assembler,
    lsn: u64,
    xid: u32,
}

impl Feed {
    pub fn new() -> Feed {
        Feed { assembler: Assembler::new(SpillSettings::default()), lsn: 0x100, xid: 700 }
    }

    /// Describes a table, outside of a transaction.
    pub fn describe(&mut self, table: &Table) {
        let columns: ColumnDefsBuf = table
            .columns
            .iter()
            .map(|(name, key)| ColumnDef { key: *key, name, type_oid: 25, type_modifier: -1 })
            .collect();
        self.push(&Message::Relation(RelationBody {
            stream_xid: None,
            oid: table.oid,
            namespace: &table.schema,
            name: &table.name,
            replica_identity: table.identity,
            columns: columns.columns(),
        }));
    }

    fn push(&mut self, message: &Message<'_>) -> Option<Transaction> {
        match self.assembler.push(&encoded(message)).unwrap() {
            Assembled::Transaction(transaction) => Some(transaction),
            _ => None,
        }
    }

    /// The next transaction.
    pub fn transaction(&mut self, fill: impl FnOnce(&mut Filling<'_>)) -> Transaction {
        self.lsn += 0x100;
        self.xid += 1;
        let (commit, end) = (CommitLsn(Lsn(self.lsn)), EndLsn(Lsn(self.lsn + 0x30)));
        let commit_time = PgTime(800_000_000_000_000);
        self.push(&Message::Begin { final_lsn: commit, commit_time, xid: self.xid });
        fill(&mut Filling { feed: self });
        self.push(&Message::Commit { flags: 0, commit, end, commit_time }).unwrap()
    }

    /// The next transaction, which inserts one row.
    pub fn insert(&mut self, table: &Table, row: &[Column<'_>]) -> Transaction {
        self.transaction(|tx| tx.insert(table, row))
    }
}

/// A transaction that is being put together.
pub struct Filling<'a> {
    feed: &'a mut Feed,
}

fn tuple(row: &[Column<'_>]) -> TupleBuf {
    row.iter().copied().collect()
}

impl Filling<'_> {
    pub fn describe(&mut self, table: &Table) {
        self.feed.describe(table);
    }

    pub fn insert(&mut self, table: &Table, row: &[Column<'_>]) {
        self.feed.push(&Message::Insert { stream_xid: None, relation: table.oid, new: tuple(row).tuple() });
    }

    pub fn update(&mut self, table: &Table, old: Option<&[Column<'_>]>, new: &[Column<'_>]) {
        let old = old.map(tuple);
        let old = old.as_ref().map(|old| side(table, old));
        self.feed.push(&Message::Update { stream_xid: None, relation: table.oid, old, new: tuple(new).tuple() });
    }

    pub fn delete(&mut self, table: &Table, old: &[Column<'_>]) {
        let old = tuple(old);
        self.feed.push(&Message::Delete { stream_xid: None, relation: table.oid, old: side(table, &old) });
    }

    pub fn truncate(&mut self, tables: &[&Table], restart_identity: bool) {
        let relations: RelationIdsBuf = tables.iter().map(|t| t.oid).collect();
        let options = TruncateOptions { cascade: true, restart_identity };
        self.feed.push(&Message::Truncate { stream_xid: None, options, relations: relations.relations() });
    }
}

fn side<'a>(table: &Table, old: &'a TupleBuf) -> OldTuple<'a> {
    match table.identity {
        ReplicaIdentity::Full => OldTuple::Full(old.tuple()),
        _ => OldTuple::Key(old.tuple()),
    }
}
