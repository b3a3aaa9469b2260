//! The initial copy, from a real source.

mod support;

use std::collections::HashSet;
use std::sync::Arc;

use pgonce::connect::{ConnectionSettings, Environment};
use pgonce::destination::{Binding, Destination, Loader, StartMode, Stored};
use pgonce::piece::{CopyPlan, Extent, Format, Piece, Standing, TableCopy};
use pgonce::published::Published;
use pgonce::relation::Relation;
use pgonce::slot_source::{SlotSettings, SlotSource};
use pgonce::source::{Begun, Source};
use pgonce::stop::{Reason, Stop};
use pgonce_target::{FlowPhase, PostgresTarget, read_status};
use support::{Target, stored};
use tokio_postgres::Client;

/// A source database beside the target's, on the same server.
struct Copying {
    target: Target,
    from: Client,
    source: SlotSource,
    sink: PostgresTarget,
    published: Published,
    begun: Begun,
    planned: HashSet<u32>,
}

impl Copying {
    async fn begin(target: Target, tables: &str) -> Copying {
        let name = format!("{}_source", target.database);
        target.cluster.create_database(&name).await.unwrap();
        let from = target.cluster.connect(&name).await.unwrap();
        from.batch_execute(tables).await.unwrap();
        let connection = ConnectionSettings::parse(&target.cluster.url(&name), &Environment::empty()).unwrap();
        let mut settings = SlotSettings::new(connection, name.clone(), vec!["p".into()]);
        settings.create_publication = Some(vec!["public.*".into()]);
        let mut source = SlotSource::new(settings);
        let identity = source.connect().await.unwrap();
        let mut sink = PostgresTarget::new(target.settings());
        assert_eq!(sink.open(&identity).await.unwrap(), Stored::Nothing);
        let published = source.publish(StartMode::Snapshot).await.unwrap();
        let begun = source.begin(StartMode::Snapshot).await.unwrap();
        let binding = Binding::new(begun.boundary, identity.timeline, StartMode::Snapshot, &published);
        sink.bind(&binding).await.unwrap();
        Copying { target, from, source, sink, published, begun, planned: HashSet::new() }
    }

    /// Copies a table whole, as text.
    async fn load(&mut self, name: &str) -> Result<u64, Stop> {
        let table = self.published.tables.iter().find(|t| t.name == name).unwrap().clone();
        let snapshot = self.begun.snapshot.as_ref().unwrap();
        let standing = if self.planned.insert(table.oid) { Standing::New } else { Standing::Planned };
        let piece = Piece { number: 0, extent: Extent::Whole, bytes: table.bytes };
        let pieces = vec![piece.clone()];
        let relation = Arc::new(Relation {
            oid: table.oid,
            schema: table.schema.clone(),
            name: table.name.clone(),
            identity: table.identity,
            columns: Vec::new(),
        });
        let copy = TableCopy { table, types: Vec::new(), relation, standing, replaces: false, pieces };
        let planned = self.sink.plan(std::slice::from_ref(&copy), &self.published.fingerprint()).await;
        if planned.is_err() {
            self.planned.remove(&copy.table.oid);
        }
        assert_eq!(planned?, [CopyPlan { format: Format::Text, together: false }]);
        let mut reader = snapshot.reader().await?;
        let rows = reader.rows(&copy.table, &piece.extent, Format::Text, Arc::default()).await?;
        let copied = self.sink.loader()?.load(&copy, &piece, snapshot.boundary, rows).await?;
        self.sink.landed(copy.table.oid, 0, snapshot.boundary);
        Ok(copied)
    }

    /// Opens the target again, as after an error.
    async fn open(&mut self) -> pgonce::destination::StoredFlow {
        let identity = self.source.connect().await.unwrap();
        stored(self.sink.open(&identity).await.unwrap())
    }

    async fn end(mut self) {
        self.source.close().await;
        drop(self.begun);
        let slot = format!("{}_source", self.target.database);
        let drop_slot = "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1";
        self.from.execute(drop_slot, &[&slot]).await.unwrap();
    }
}

#[tokio::test]
async fn tables_are_copied_with_their_boundaries() {
    for target in Target::each("load").await {
        target
            .sql(
                r#"create table child(id int primary key, parent int);
                   create table parent(id bigint generated always as identity primary key,
                       v text, gen text generated always as (upper(v)) stored);
                   alter table child add foreign key (parent) references parent;
                   create table "Part"(b text, own int default 7, n int) partition by list (n);
                   create table p1 partition of "Part" for values in (1); create table p2 partition of "Part" default"#,
            )
            .await;
        let mut copying = Copying::begin(
            target,
            r#"create table parent(id bigint generated always as identity primary key, v text,
                   gen text generated always as (upper(v)) stored);
               create table child(id int primary key, parent bigint references parent);
               create table "Part"(n int primary key, b text);
               insert into parent(v) select 'é\' || i from generate_series(1, 1000) i;
               insert into child select i, i from generate_series(1, 1000) i;
               insert into "Part" values (1, E'\t\\N'), (2, null)"#,
        )
        .await;
        // In an order that foreign keys would refuse.
        assert_eq!(copying.load("child").await.unwrap(), 1000);
        assert_eq!(copying.load("parent").await.unwrap(), 1000);
        assert_eq!(copying.load("Part").await.unwrap(), 2);
        let boundary = copying.begun.boundary;
        copying.sink.record_stop(&Stop::internal("a stop that is over")).await;
        let flow = copying.open().await;
        assert_eq!((flow.tables.len(), flow.streaming), (3, false));
        assert!(flow.tables.iter().all(|table| table.is_copied() && table.boundary() == Some(boundary)));
        copying.sink.copied().await.unwrap();
        assert!(copying.open().await.streaming);
        let status = read_status(&copying.target.client, "f").await.unwrap().unwrap();
        assert_eq!((status.phase, status.copied.len()), (FlowPhase::Streaming, 3));
        assert_eq!(status.stop, None);
        assert_eq!(status.copied[0].rows, 2);
        assert_eq!(
            copying.target.rows(r#"select t::text from "Part" t order by n"#).await,
            ["(\"\t\\\\N\",7,1)", "(,7,2)"]
        );
        assert_eq!(copying.target.rows("select gen from parent where id = 1000").await, [r"É\1000"]);
        copying.end().await;
    }
}

#[tokio::test]
async fn d5_a_row_that_is_there_already_is_named_and_nothing_is_copied() {
    for target in Target::each("occupied").await {
        target.sql("create table t(id int primary key); insert into t values (7)").await;
        let mut copying = Copying::begin(target, "create table t(id int primary key); insert into t values (1)").await;
        let stop = copying.load("t").await.unwrap_err();
        assert!(matches!(stop.reason(), Reason::TargetNotEmpty { .. }), "{stop}");
        copying.target.sql("truncate t").await;
        assert!(!copying.open().await.tables[0].is_copied());
        assert_eq!(copying.load("t").await.unwrap_or_else(|s| panic!("{s}")), 1);
        copying.end().await;
    }
}

#[tokio::test]
async fn what_does_not_fit_is_named_without_its_value() {
    for target in Target::each("misfit").await {
        target
            .sql(
                "create table small(n smallint);
                    create table gen(n int, m int generated always as (n) stored); create table few(x int)",
            )
            .await;
        let tables = "create table small(n int primary key); insert into small values (1), (70000);
                      create table gen(n int primary key, m int); create table few(x int primary key, y int);
                      create table none(x int primary key)";
        let mut copying = Copying::begin(target, tables).await;
        let stop = copying.load("small").await.unwrap_err();
        assert!(stop.to_string().contains("at row 2") && stop.to_string().contains("22003"), "{stop}");
        assert!(!stop.to_string().contains("70000"), "{stop}");
        for (name, word) in [("gen", "generated on the target"), ("few", "no column \"y\""), ("none", "no table")] {
            let mut sink = PostgresTarget::new(copying.target.settings());
            let identity = copying.source.connect().await;
            std::mem::swap(&mut copying.sink, &mut sink);
            copying.sink.open(&identity.unwrap()).await.unwrap();
            let snapshot = copying.source.snapshots().take().await.unwrap();
            copying.begun.snapshot = Some(snapshot);
            let stop = copying.load(name).await.unwrap_err();
            assert!(matches!(stop.reason(), Reason::SchemaMismatch { .. }), "{stop}");
            assert!(stop.to_string().contains(word), "{name}: {stop}");
        }
        copying.end().await;
    }
}
