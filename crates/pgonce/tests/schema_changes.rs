//! Tables that change while a program's sink is carried, in both guarantee modes. Faults G1, G2, G3, B7.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use common::*;
use pgonce::checkpoint_store::FileStore;
use pgonce::destination::StartMode;
use pgonce::kept::Kept;
use pgonce::pipeline::{Finished, PipelineOptions, Until};
use pgonce::schema_change::{SchemaChange, SchemaDecision};
use pgonce::sink::{AtomicSink, Batch, Sink, SinkError};
use pgonce::stop::Stop;
use pgonce_testkit::Cluster;
use tokio_postgres::Client;

/// What a sink makes of changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Policy {
    #[default]
    Default,
    Accept,
    Refuse,
}

#[derive(Debug, Default)]
struct Persisted {
    /// What happened, in order: `wrote` with the changes of a batch, `asked` with a change of a table.
    log: Vec<String>,
    records: BTreeMap<&'static str, Vec<u8>>,
    version: u64,
    policy: Policy,
    /// Fails so many writes of transactions.
    fail: u32,
}

#[derive(Clone, Debug, Default)]
struct Memory(Arc<Mutex<Persisted>>);

impl Memory {
    fn set<T>(&self, set: impl FnOnce(&mut Persisted) -> T) -> T {
        set(&mut self.0.lock().unwrap())
    }

    fn policy(&self, policy: Policy) {
        self.set(|m| m.policy = policy);
    }

    /// What has happened since the last call.
    fn news(&self) -> Vec<String> {
        self.set(|m| std::mem::take(&mut m.log))
    }
}

impl Sink for Memory {
    async fn write(&mut self, batch: &Batch<'_>) -> Result<(), SinkError> {
        let mut persisted = self.0.lock().unwrap();
        if persisted.fail > 0 && !batch.transactions().is_empty() {
            persisted.fail -= 1;
            return Err(SinkError::transient("told to fail"));
        }
        let state = batch.state();
        if !state.records().is_empty() {
            assert_eq!(persisted.version, state.replaces());
            persisted.version = state.version();
            persisted.records.extend(state.records().iter().map(|r| (r.name(), r.bytes().to_vec())));
        }
        let changes: Vec<String> = batch.transactions().iter().flat_map(|t| applied(t).changes).collect();
        persisted.log.extend(changes.into_iter().map(|change| format!("wrote {change}")));
        Ok(())
    }

    async fn schema_change(&mut self, change: &SchemaChange) -> Result<SchemaDecision, SinkError> {
        let mut persisted = self.0.lock().unwrap();
        persisted.log.push(format!("asked {change}"));
        Ok(match persisted.policy {
            Policy::Default => change.default_decision(),
            Policy::Accept => SchemaDecision::Accept,
            Policy::Refuse => SchemaDecision::Refuse,
        })
    }
}

impl AtomicSink for Memory {
    async fn load(&mut self, name: &'static str) -> Result<Option<Vec<u8>>, SinkError> {
        Ok(self.0.lock().unwrap().records.get(name).cloned())
    }
}

/// A source, a sink, and how the flow's state is kept.
struct Case {
    cluster: Cluster,
    client: Client,
    memory: Memory,
    directory: tempfile::TempDir,
    atomic: bool,
}

const SLOT: &str = "SELECT pg_create_logical_replication_slot('pgonce_test', 'pgoutput')";

impl Case {
    async fn new(major: u32, atomic: bool, setup: &str) -> Case {
        let cluster = source(major).await;
        let client = cluster.connect("postgres").await.unwrap();
        client.batch_execute(setup).await.unwrap();
        client.batch_execute(SLOT).await.unwrap();
        Case { cluster, client, memory: Memory::default(), directory: tempfile::tempdir().unwrap(), atomic }
    }

    /// Waits until the walsender of the last session has let go of the slot.
    async fn is_free(&self) {
        let sql = "SELECT active FROM pg_replication_slots WHERE slot_name = 'pgonce_test'";
        eventually("free", || async { !self.client.query_one(sql, &[]).await.unwrap().get::<_, bool>(0) }).await;
    }

    async fn sql(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }

    fn start(&self, until: Option<Until>) -> Running {
        let options = PipelineOptions { start: StartMode::GoForward, until, ..options() };
        let source = slot_source(&self.cluster.url("postgres"), "p");
        let store = |directory: &Path| FileStore::new(directory);
        match self.atomic {
            true => Running::with(source, Kept::effect_once("f", self.memory.clone()), options),
            false => {
                let kept = Kept::at_least_once("f", self.memory.clone(), store(self.directory.path()));
                Running::with(source, kept, options)
            }
        }
    }

    async fn run(&self) -> Result<Finished, Stop> {
        self.start(Some(Until::Now)).ended().await
    }

    async fn drain(&self) {
        let ended = self.run().await.unwrap();
        assert!(matches!(ended, Finished::Drained(_)), "{ended:?}");
    }

    /// The flow stops for a change that is not accepted, and says these differences.
    async fn refused(&self, what: &str) -> Stop {
        let stop = self.run().await.unwrap_err();
        assert_eq!(stop.code(), "schema_changed", "{stop}");
        assert!(stop.to_string().contains(what), "{stop} instead of {what}");
        stop
    }
}

async fn in_both_modes(setup: &str, scenario: impl AsyncFn(&Case)) {
    for major in each_major() {
        for atomic in [true, false] {
            scenario(&Case::new(major, atomic, setup).await).await;
        }
    }
}

const T: &str = "CREATE TABLE t (id int PRIMARY KEY, n int); CREATE PUBLICATION p FOR TABLE t;";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_g3_a_column_that_is_added_is_told_once_and_a_refusal_stands_across_restarts() {
    in_both_modes(T, async |case| {
        case.sql("INSERT INTO t VALUES (1, 1)").await;
        case.drain().await;
        assert_eq!(case.memory.news(), ["wrote I t 1,1"]);
        case.memory.policy(Policy::Refuse);
        case.sql("INSERT INTO t VALUES (2, 2)").await;
        case.sql("ALTER TABLE t ADD \"Z z\" varchar(7) DEFAULT 'secret'; INSERT INTO t VALUES (3, 3)").await;
        case.sql("INSERT INTO t VALUES (4, 4)").await;
        let asked = "asked table public.t: column \"Z z\" added, of type varchar(7)";
        let stop = case.refused("public.t").await;
        assert!(stop.to_string().contains("column \"Z z\" added") && !stop.to_string().contains("secret"), "{stop}");
        assert!(stop.hint().contains("SchemaDecision::Accept"), "{}", stop.hint());
        assert_eq!(case.memory.news(), ["wrote I t 2,2", asked]);
        for _ in 0..2 {
            case.refused("column \"Z z\" added").await;
            assert_eq!(case.memory.news(), [asked]);
        }
        // The default takes what is additive. What was not persisted is asked again; what was is not.
        case.memory.policy(Policy::Default);
        case.memory.set(|m| m.fail = 1);
        case.drain().await;
        assert_eq!(case.memory.news(), [asked, asked, "wrote I t 3,3,secret", "wrote I t 4,4,secret"]);
        case.memory.policy(Policy::Refuse);
        case.sql("INSERT INTO t VALUES (5, 5)").await;
        case.drain().await;
        assert_eq!(case.memory.news(), ["wrote I t 5,5,secret"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_what_changes_before_the_first_row_is_noticed_from_the_catalog() {
    let setup = "CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE u (id int PRIMARY KEY, n int);
                 CREATE PUBLICATION p FOR TABLE t, u;";
    in_both_modes(setup, async |case| {
        case.drain().await;
        case.sql("ALTER TABLE t ADD z int; ALTER TABLE u DROP n").await;
        case.drain().await;
        assert!(case.memory.news().is_empty());
        case.sql("INSERT INTO t VALUES (1, 1, 1)").await;
        case.drain().await;
        let asked = "asked table public.t: column \"z\" added, of type int4";
        assert_eq!(case.memory.news(), [asked, "wrote I t 1,1,1"]);
        case.sql("INSERT INTO u VALUES (1)").await;
        for _ in 0..2 {
            case.refused(
                "table public.u has changed on the source, and the sink does not accept it: column \"n\" dropped",
            )
            .await;
            assert_eq!(case.memory.news(), ["asked table public.u: column \"n\" dropped"]);
        }
    })
    .await;
}

/// Changes of `t`, what is said of each, and how the table is called afterwards.
const KINDS: &[(&str, &str, &str)] = &[
    ("ALTER TABLE t ALTER a TYPE varchar(20)", "column \"a\" changed from type varchar(10) to type varchar(20)", "t"),
    ("ALTER TABLE t ALTER b TYPE bigint", "type of column \"b\" changed from type int4 to type int8", "t"),
    ("ALTER TABLE t ALTER b TYPE text USING 'x' || b", "type of column \"b\" changed from type int8 to type text", "t"),
    ("ALTER TABLE t RENAME a TO \"A a\"", "column \"a\" renamed to \"A a\"", "t"),
    ("ALTER TABLE t RENAME d TO e", "column \"d\" dropped; column \"e\" added, of type text", "t"),
    ("ALTER TABLE t DROP c", "column \"c\" dropped", "t"),
    ("ALTER TABLE t REPLICA IDENTITY FULL", "replica identity changed from DEFAULT to FULL", "t"),
    ("ALTER TABLE t REPLICA IDENTITY USING INDEX u1", "replica identity changed from FULL to USING INDEX", "t"),
    (
        "ALTER TABLE t REPLICA IDENTITY USING INDEX u2",
        "the columns that identify a row changed from (\"k1\") to (\"k2\", \"k3\")",
        "t",
    ),
    ("ALTER TABLE t REPLICA IDENTITY NOTHING", "replica identity changed from USING INDEX to NOTHING", "t"),
    ("ALTER TABLE t REPLICA IDENTITY DEFAULT", "replica identity changed from NOTHING to DEFAULT", "t"),
    (
        "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (k1, id)",
        "the columns that identify a row changed from (\"id\") to (\"id\", \"k1\")",
        "t",
    ),
    (
        "ALTER TABLE t DROP k2, DROP k3; ALTER TABLE t ADD k2 int NOT NULL DEFAULT 1",
        "columns (\"id\", \"A a\", \"b\", \"k1\", \"k2\", \"e\") are in the order",
        "t",
    ),
    ("ALTER TABLE t RENAME TO \"T 2\"", "renamed from \"t\" to \"T 2\"", "\"T 2\""),
    ("ALTER TABLE \"T 2\" SET SCHEMA s", "moved from schema \"public\" to schema \"s\"", "s.\"T 2\""),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b7_every_destructive_kind_is_refused_again_and_again_until_it_is_accepted() {
    let setup = "CREATE SCHEMA s;
        CREATE TABLE t (id serial PRIMARY KEY, a varchar(10), b int, c text, k1 serial NOT NULL, k2 serial NOT NULL,
                        k3 int NOT NULL DEFAULT 1, d text);
        CREATE UNIQUE INDEX u1 ON t (k1) INCLUDE (b); CREATE UNIQUE INDEX u2 ON t (k2, k3);
        CREATE PUBLICATION p FOR TABLE t WITH (publish = 'insert');";
    in_both_modes(setup, async |case| {
        case.drain().await;
        case.sql("INSERT INTO t DEFAULT VALUES").await;
        case.drain().await;
        assert_eq!(case.memory.news().len(), 1);
        let mut name = "t";
        for (alter, said, now) in KINDS {
            case.sql(&format!("INSERT INTO {name} DEFAULT VALUES; {alter};")).await;
            case.sql(&format!("INSERT INTO {now} DEFAULT VALUES")).await;
            case.memory.policy(Policy::Default);
            case.refused(said).await;
            let news = case.memory.news();
            let starts: Vec<&str> = news.iter().map(|entry| &entry[..5]).collect();
            assert_eq!(starts, ["wrote", "asked"], "{alter}: {news:?}");
            case.refused(said).await;
            assert_eq!(case.memory.news().len(), 1, "{alter}");
            case.memory.policy(Policy::Accept);
            case.drain().await;
            let news = case.memory.news();
            assert!(matches!(news.as_slice(), [asked, wrote] if asked.contains(said) && wrote.starts_with("wrote I")));
            name = now;
        }
        // All of it is known now.
        case.memory.policy(Policy::Refuse);
        case.sql(&format!("INSERT INTO {name} DEFAULT VALUES")).await;
        case.drain().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_inside_a_transaction_come_in_order_and_nothing_of_it_is_written_before_they_are_accepted() {
    in_both_modes(T, async |case| {
        case.drain().await;
        case.sql("INSERT INTO t VALUES (1, 1)").await;
        case.sql(
            "BEGIN; INSERT INTO t VALUES (2, 2); ALTER TABLE t ADD a int; INSERT INTO t VALUES (3, 3, 3);
             ALTER TABLE t DROP n; INSERT INTO t VALUES (4, 4); COMMIT",
        )
        .await;
        case.sql("INSERT INTO t VALUES (5, 5)").await;
        let asked =
            ["asked table public.t: column \"a\" added, of type int4", "asked table public.t: column \"n\" dropped"];
        case.refused("column \"n\" dropped").await;
        assert_eq!(case.memory.news(), ["wrote I t 1,1", asked[0], asked[1]]);
        // What was accepted in it is forgotten with it.
        case.refused("column \"n\" dropped").await;
        assert_eq!(case.memory.news(), asked);
        case.memory.policy(Policy::Accept);
        case.drain().await;
        let wrote = ["wrote I t 2,2", "wrote I t 3,3,3", "wrote I t 4,4", "wrote I t 5,5"];
        assert_eq!(case.memory.news(), [&asked[..], &wrote[..]].concat());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_streamed_transaction_tells_its_changes_and_not_those_that_it_rolled_back() {
    in_both_modes(T, async |case| {
        case.sql("ALTER SYSTEM SET logical_decoding_work_mem = '64kB'").await;
        case.sql("SELECT pg_reload_conf()").await;
        case.drain().await;
        let rows =
            |from: u32| format!("INSERT INTO t (id, n) SELECT i, 0 FROM generate_series({from}, {from} + 1999) i");
        case.sql(&format!(
            "BEGIN; {}; ALTER TABLE t ADD z int; {}; SAVEPOINT s; ALTER TABLE t DROP n; INSERT INTO t (id)
             SELECT i FROM generate_series(20001, 22000) i; ROLLBACK TO s; {}; COMMIT",
            rows(1),
            rows(4001),
            rows(8001)
        ))
        .await;
        let asked = "asked table public.t: column \"z\" added, of type int4";
        case.memory.policy(Policy::Refuse);
        for _ in 0..2 {
            case.refused("column \"z\" added").await;
            assert_eq!(case.memory.news(), [asked]);
        }
        case.memory.policy(Policy::Default);
        case.drain().await;
        let news = case.memory.news();
        assert_eq!((news.len(), news[0].as_str()), (6001, asked));
        assert_eq!((news[1].as_str(), news[6000].as_str()), ("wrote I t 1,0", "wrote I t 10000,0,NULL"));
        case.memory.policy(Policy::Refuse);
        case.sql("INSERT INTO t VALUES (0, 0, 0)").await;
        case.drain().await;
        assert_eq!(case.memory.news(), ["wrote I t 0,0,0"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_undone_before_the_next_row_is_no_change_and_neither_is_what_only_the_server_sees() {
    let setup = "CREATE TABLE t (id int PRIMARY KEY, n int, g int GENERATED ALWAYS AS (n * 2) STORED);
                 CREATE PUBLICATION p FOR TABLE t;";
    in_both_modes(setup, async |case| {
        case.memory.policy(Policy::Refuse);
        case.drain().await;
        for (id, alter) in [
            (1, "ALTER TABLE t ADD z int; ALTER TABLE t DROP z"),
            (2, "ALTER TABLE t RENAME TO x; ALTER TABLE x RENAME TO t"),
            (3, "ALTER TABLE t REPLICA IDENTITY FULL; ALTER TABLE t REPLICA IDENTITY DEFAULT"),
            (4, "ALTER TABLE t DROP g; CREATE INDEX ON t (n); ALTER TABLE t ALTER n SET DEFAULT 4"),
            (5, "VACUUM FULL t"),
            (6, "ALTER TABLE t ALTER n SET NOT NULL; TRUNCATE t; ANALYZE t"),
        ] {
            for statement in alter.split("; ") {
                case.sql(statement).await;
            }
            case.sql(&format!("INSERT INTO t (id, n) VALUES ({id}, 0)")).await;
            case.drain().await;
            assert_eq!(case.memory.news().last().unwrap(), &format!("wrote I t {id},0"), "{alter}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reconnect_forgets_nothing() {
    in_both_modes(T, async |case| {
        let running = case.start(None);
        let cut = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL";
        for id in 0..3 {
            case.sql(&format!("INSERT INTO t (id) VALUES ({id}); {cut}")).await;
            let written = || async { case.memory.set(|m| m.log.len()) == id + 1 };
            eventually("the row is written", written).await;
        }
        assert_eq!(case.memory.news().len(), 3);
        case.memory.policy(Policy::Accept);
        case.sql(&format!("ALTER TABLE t ADD z int; {cut}")).await;
        case.sql(&format!("INSERT INTO t VALUES (4, 4, 4); {cut}")).await;
        eventually("the row is written", || async { case.memory.set(|m| m.log.len()) >= 2 }).await;
        case.sql("INSERT INTO t VALUES (5, 5, 5)").await;
        eventually("the row is written", || async { case.memory.set(|m| m.log.len()) >= 3 }).await;
        let asked = "asked table public.t: column \"z\" added, of type int4";
        assert_eq!(case.memory.news(), [asked, "wrote I t 4,4,4", "wrote I t 5,5,5"]);
        case.memory.policy(Policy::Default);
        case.sql(&format!("ALTER TABLE t DROP n; {cut}")).await;
        case.sql("INSERT INTO t VALUES (6, 6)").await;
        let stop = running.ended().await.unwrap_err();
        assert_eq!((stop.code(), stop.exit_status()), ("schema_changed", 8), "{stop}");
        assert_eq!(case.memory.news(), ["asked table public.t: column \"n\" dropped"]);
        case.refused("column \"n\" dropped").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redelivery_that_describes_what_was_before_is_no_change_back() {
    in_both_modes(T, async |case| {
        case.drain().await;
        case.sql("SELECT pg_copy_logical_replication_slot('pgonce_test', 'older')").await;
        case.sql("INSERT INTO t VALUES (1, 1)").await;
        case.sql("ALTER TABLE t ADD z int; INSERT INTO t VALUES (2, 2, 2)").await;
        case.drain().await;
        let asked = "asked table public.t: column \"z\" added, of type int4";
        assert_eq!(case.memory.news(), ["wrote I t 1,1", asked, "wrote I t 2,2,2"]);
        case.memory.policy(Policy::Refuse);
        case.is_free().await;
        case.sql(
            "SELECT pg_drop_replication_slot('pgonce_test');
             SELECT pg_copy_logical_replication_slot('older', 'pgonce_test');
             INSERT INTO t VALUES (3, 3, 3);",
        )
        .await;
        case.drain().await;
        assert_eq!(case.memory.news(), ["wrote I t 3,3,3"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_is_older_than_the_flow_begins_with_what_the_tables_were() {
    let setup = "CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE u (id int PRIMARY KEY, n int);
                 CREATE PUBLICATION p FOR TABLE t, u;";
    in_both_modes(setup, async |case| {
        // Before the flow is bound: a change that rows lie across, and one that none does.
        case.sql("INSERT INTO t VALUES (1, 1)").await;
        case.sql("ALTER TABLE t ADD z int; INSERT INTO t VALUES (2, 2, 2)").await;
        case.sql("ALTER TABLE u DROP n; INSERT INTO u VALUES (1)").await;
        case.sql("ALTER TABLE t ADD y int").await;
        let wrote = ["wrote I t 1,1", "wrote I t 2,2,2", "wrote I u 1"];
        let asked = "asked table public.t: column \"z\" added, of type int4";
        case.drain().await;
        assert_eq!(case.memory.news(), [wrote[0], asked, wrote[1], wrote[2]]);
        case.sql("INSERT INTO t VALUES (3, 3, 3, 3); INSERT INTO u VALUES (2)").await;
        case.drain().await;
        let asked = "asked table public.t: column \"y\" added, of type int4";
        assert_eq!(case.memory.news(), [asked, "wrote I t 3,3,3,3", "wrote I u 2"]);
    })
    .await;
}

/// Tables of every kind that matters to how a server describes them.
const EVERY_KIND: &str = r#"
    CREATE TYPE mood AS ENUM ('a', 'b'); CREATE DOMAIN dom AS varchar(9); CREATE TYPE comp AS (x int, y text);
    CREATE SCHEMA "S s";
    CREATE TABLE plain (id int PRIMARY KEY, a varchar(3), b numeric(7, 2), c timestamptz(3), d bpchar(4)[], m mood,
                        e dom, f comp, g bit varying(5), h interval day to second(2), i "char", j oid[]);
    CREATE TABLE "S s"."Q ""q" (gone int, "I i" int, "N n" text, PRIMARY KEY ("N n", "I i"));
    ALTER TABLE "S s"."Q ""q" DROP gone;
    CREATE TABLE included (id int, a int NOT NULL DEFAULT 1, b int, UNIQUE (a) INCLUDE (b),
                           PRIMARY KEY (id) INCLUDE (b));
    CREATE TABLE indexed (id int PRIMARY KEY, a int NOT NULL DEFAULT 1, b int NOT NULL DEFAULT 1);
    CREATE UNIQUE INDEX ix ON indexed (b, a) INCLUDE (id); ALTER TABLE indexed REPLICA IDENTITY USING INDEX ix;
    CREATE TABLE wide (id int PRIMARY KEY, a int); ALTER TABLE wide REPLICA IDENTITY FULL;
    CREATE TABLE none (id int PRIMARY KEY, a int); ALTER TABLE none REPLICA IDENTITY NOTHING;
    CREATE TABLE keyless (id int, a int);
    CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE, a int);
    CREATE TABLE lost (id int, a int NOT NULL DEFAULT 1);
    CREATE UNIQUE INDEX lost_ix ON lost (a); ALTER TABLE lost REPLICA IDENTITY USING INDEX lost_ix; DROP INDEX lost_ix;
    CREATE TABLE generated (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED, a int);
    CREATE TABLE root (id int, a int, PRIMARY KEY (id)) PARTITION BY RANGE (id);
    CREATE TABLE leaf_1 (a int, gone int, id int NOT NULL); ALTER TABLE leaf_1 DROP gone;
    ALTER TABLE root ATTACH PARTITION leaf_1 FOR VALUES FROM (0) TO (100);
    CREATE TABLE parent (id int PRIMARY KEY, a int); CREATE TABLE child (b int, PRIMARY KEY (id)) INHERITS (parent);
"#;

const LISTED: &str = "CREATE PUBLICATION p FOR TABLE plain (h, id, a), indexed (a, b), wide, root (id), generated (id)
    WITH (publish_via_partition_root)";

const INSERTS: &str = r#"
    INSERT INTO plain (id) VALUES (1); INSERT INTO "S s"."Q ""q" VALUES (1, 'n'); INSERT INTO included (id) VALUES (1);
    INSERT INTO indexed (id) VALUES (1); INSERT INTO wide (id) VALUES (1); INSERT INTO none (id) VALUES (1);
    INSERT INTO keyless (id) VALUES (1); INSERT INTO deferred (id) VALUES (1); INSERT INTO lost (id) VALUES (1);
    INSERT INTO generated (id) VALUES (1); INSERT INTO root (id) VALUES (1); INSERT INTO parent (id) VALUES (1);
    INSERT INTO child (id) VALUES (1);
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_catalog_is_read_as_the_stream_describes_it() {
    let all = r#"CREATE PUBLICATION p FOR TABLE plain, "S s"."Q ""q", included, indexed, wide, none, keyless, deferred,
                 lost, generated, root, parent"#;
    for major in each_major() {
        let publications: &[&str] = match major {
            ..15 => &["", "WITH (publish_via_partition_root, publish = 'insert')"],
            15..18 => &["WITH (publish_via_partition_root, publish = 'insert')", "listed"],
            _ => &[
                "WITH (publish_via_partition_root, publish = 'insert', publish_generated_columns = stored)",
                "WITH (publish = 'insert')",
                "listed",
            ],
        };
        for with in publications {
            let publish = match *with {
                "listed" => LISTED.to_owned(),
                _ => format!("{all} {with}"),
            };
            let case = Case::new(major, true, &format!("{EVERY_KIND} {publish}")).await;
            case.memory.policy(Policy::Refuse);
            case.drain().await;
            case.sql(INSERTS).await;
            let rows = if *with == "listed" { 5 } else { 13 };
            case.drain().await;
            assert_eq!(case.memory.news().len(), rows, "{with} on {major}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_partition_is_nothing_new_where_the_root_is_published() {
    let setup = "CREATE TABLE root (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
                 CREATE TABLE one PARTITION OF root FOR VALUES FROM (0) TO (10);
                 CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root);";
    in_both_modes(setup, async |case| {
        case.memory.policy(Policy::Refuse);
        case.drain().await;
        case.sql("INSERT INTO root VALUES (1, 1)").await;
        case.sql(
            "CREATE TABLE two (n int, id int NOT NULL);
             ALTER TABLE root ATTACH PARTITION two FOR VALUES FROM (10) TO (20);
             BEGIN; INSERT INTO root VALUES (2, 2), (12, 2); UPDATE root SET id = 3 WHERE id = 12; TRUNCATE root;
             COMMIT",
        )
        .await;
        case.drain().await;
        assert_eq!(case.memory.news().len(), 6);
        case.memory.policy(Policy::Default);
        case.sql("ALTER TABLE root DROP n; INSERT INTO root VALUES (14)").await;
        case.refused(
            "table public.root has changed on the source, and the sink does not accept it: column \"n\" dropped",
        )
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_of_tables_that_is_damaged_or_lost_is_not_believed() {
    for major in each_major() {
        let case = Case::new(major, true, T).await;
        case.drain().await;
        let sound = case.memory.set(|m| m.records["schema"].clone());
        let mut damaged = sound.clone();
        *damaged.last_mut().unwrap() ^= 1;
        case.memory.set(|m| m.records.insert("schema", damaged));
        assert_eq!(case.run().await.unwrap_err().code(), "checkpoint_unreadable");
        case.memory.set(|m| m.records.remove("schema"));
        assert_eq!(case.run().await.unwrap_err().code(), "checkpoint_unreadable");
        case.memory.set(|m| m.records.insert("schema", sound));
        case.drain().await;
    }
}
