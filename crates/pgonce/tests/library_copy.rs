//! The initial copy into a program's sink, on real servers and in both guarantee modes.

mod common;
#[path = "library_copy/mirror.rs"]
mod mirror;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use common::*;
use mirror::{Fault, Mirror, rows_at};
use pgonce::assemble::TwoPhase;
use pgonce::checkpoint_store::{CheckpointStore, FileStore};
use pgonce::destination::StartMode;
use pgonce::kept::Kept;
use pgonce::pipeline::{Finished, PipelineOptions, Until};
use pgonce::sink::{SinkError, State};
use pgonce::slot_source::{SlotSettings, SlotSource};
use pgonce::stop::Stop;
use pgonce_testkit::{Cluster, witness};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

const MIRROR: &str = "id,number,counter,amount,note,large";
const LOG: &str = "number,worker,note";

/// A source with the witnesses and three tables of 2,500 rows, and a sink of one of the two modes.
struct Case {
    cluster: Cluster,
    source: Client,
    mode: &'static str,
    sink: Mirror,
    directory: tempfile::TempDir,
    options: PipelineOptions,
}

impl Case {
    async fn new(major: u32, mode: &'static str) -> Case {
        let cluster = source(major).await;
        let source = cluster.connect("postgres").await.unwrap();
        witness::create(&source).await.unwrap();
        for table in ["a", "b", "c"] {
            let sql = format!(
                "CREATE TABLE {table} (id int PRIMARY KEY, n numeric(10, 2), t varchar(40));
                 INSERT INTO {table} SELECT i, i / 4.0, 'row ' || i FROM generate_series(1, 2500) i;"
            );
            source.batch_execute(&sql).await.unwrap();
        }
        source.batch_execute("CREATE PUBLICATION p FOR TABLE a, b, c, witness_log, witness_mirror").await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let options = PipelineOptions { jobs: 2.try_into().unwrap(), ..options() };
        Case { cluster, source, mode, sink: Mirror::default(), directory, options }
    }

    fn start(&self) -> Running {
        self.start_with(self.options.clone())
    }

    fn start_with(&self, options: PipelineOptions) -> Running {
        let source = slot_source(&self.cluster.url("postgres"), "p");
        let sink = self.sink.clone();
        match self.mode {
            "atomic" => Running::with(source, Kept::effect_once("f", sink), options),
            _ => Running::with(source, Kept::at_least_once("f", sink, FileStore::new(self.directory.path())), options),
        }
    }

    async fn drained(&self) -> Result<Finished, Stop> {
        self.start_with(PipelineOptions { until: Some(Until::Now), ..self.options.clone() }).ended().await
    }

    async fn sql(&self, sql: &str) {
        self.source.batch_execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }

    async fn assert_same(&self) {
        let case = format!("{} on {}", self.mode, self.cluster.major());
        for (table, columns) in
            [("a", "id,n,t"), ("b", "id,n,t"), ("c", "id,n,t"), ("witness_log", LOG), ("witness_mirror", MIRROR)]
        {
            self.sink.assert_same(table, rows_at(&self.source, table, columns).await, &case);
        }
        self.assert_described();
        let slots = "SELECT count(*) FROM pg_replication_slots WHERE temporary";
        let left: i64 = self.source.query_one(slots, &[]).await.unwrap().get(0);
        assert_eq!(left, 0, "no temporary slot is left: {case}");
    }

    /// What the copy says of a table is what the stream says: nothing looks like a change of it.
    fn assert_described(&self) {
        assert_eq!(self.sink.look(|p| p.changed.clone()), [""; 0]);
    }

    async fn one_write(&self, number: i32) {
        self.sql(&write(number)).await;
    }
}

/// A transaction over witnesses and tables.
fn write(number: i32) -> String {
    let (id, fresh) = (1 + number % 2500, 10_000 + number);
    format!(
        "BEGIN; INSERT INTO witness_log VALUES (nextval('witness_number'), 1);
         UPDATE witness_mirror SET counter = counter + 1, large = repeat('x', 3000) WHERE id = 1 + {number} % 16;
         UPDATE witness_mirror SET counter = counter + 1 WHERE id = 1 + {number} % 7;
         INSERT INTO a VALUES ({fresh}, 1, 'new'); UPDATE b SET id = -id, t = 'moved' WHERE id = {id};
         DELETE FROM c WHERE id = {id}; COMMIT"
    )
}

/// Writes until it is told to end.
struct Load {
    stop: Arc<AtomicBool>,
    task: JoinHandle<i32>,
}

impl Load {
    async fn start(case: &Case) -> Load {
        let client = case.cluster.connect("postgres").await.unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut number = 0;
            while !stopped.load(Ordering::Relaxed) {
                client.batch_execute(&write(number)).await.unwrap();
                number += 1;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            number
        });
        Load { stop, task }
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        assert!(self.task.await.unwrap() > 20, "the load must have run");
    }
}

async fn in_both_modes(scenario: impl AsyncFn(&mut Case)) {
    for major in each_major() {
        for mode in ["atomic", "file"] {
            scenario(&mut Case::new(major, mode).await).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a7_kills_during_a_slow_copy_keep_what_is_copied_and_begin_the_rest_anew() {
    in_both_modes(async |case| {
        case.sink.look(|p| p.slow = Duration::from_millis(15));
        for number in 0..6 {
            let running = case.start();
            let before = case.sink.look(|p| p.chunks.len());
            eventually("rows arrive", || async { case.sink.look(|p| p.chunks.len()) > before + 1 }).await;
            running.kill().await;
            // Between two snapshots: each table has a boundary of its own.
            case.one_write(number).await;
        }
        case.sink.look(|p| p.slow = Duration::ZERO);
        case.drained().await.unwrap();
        case.assert_same().await;
        let begun = case.sink.look(|p| std::mem::take(&mut p.begun));
        assert!(begun.iter().any(|(_, anew)| *anew), "{begun:?}");
        for table in ["a", "b", "c", "witness_log", "witness_mirror"] {
            let of_table: Vec<bool> = begun.iter().filter(|(name, _)| name == table).map(|(_, anew)| *anew).collect();
            assert!(!of_table[0] && of_table[1..].iter().all(|anew| *anew), "{table}: {of_table:?}");
        }
        case.one_write(7).await;
        case.drained().await.unwrap();
        case.assert_same().await;
        assert_eq!(case.sink.look(|p| p.begun.len()), 0, "what is copied is not begun again");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a8_writes_while_the_snapshot_starts_are_neither_missing_nor_there_twice() {
    in_both_modes(async |case| {
        let load = Load::start(case).await;
        case.sink.look(|p| p.slow = Duration::from_millis(20));
        let running = case.start();
        eventually("all is copied", || async { case.sink.look(|p| p.complete.len()) == 5 }).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        load.end().await;
        running.stop().await.unwrap();
        case.drained().await.unwrap();
        case.assert_same().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a15_kills_between_the_slots_creation_and_the_first_row_do_not_skip_the_copy() {
    in_both_modes(async |case| {
        case.sink.look(|p| p.slow = Duration::from_secs(60));
        let slot = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'pgonce_test'";
        for number in 0..4 {
            let running = case.start();
            eventually("there is a slot", || async {
                case.source.query_one(slot, &[]).await.unwrap().get::<_, i64>(0) == 1
            })
            .await;
            if number > 1 {
                eventually("a table is begun", || async { case.sink.look(|p| !p.begun.is_empty()) }).await;
            }
            running.kill().await;
            assert_eq!(case.sink.look(|p| p.chunks.len()), 0);
            case.one_write(number).await;
        }
        case.sink.look(|p| p.slow = Duration::ZERO);
        case.drained().await.unwrap();
        assert!(case.sink.look(|p| p.complete.len()) == 5);
        case.assert_same().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d1_a_snapshot_that_is_lost_half_way_costs_the_tables_under_way() {
    in_both_modes(async |case| {
        // More than the sockets on the way take in.
        case.sql(
            "CREATE TABLE big (id int PRIMARY KEY, t text); ALTER PUBLICATION p ADD TABLE big;
             INSERT INTO big SELECT i, repeat('b', 10000) FROM generate_series(1, 4000) i",
        )
        .await;
        case.sink.look(|p| p.slow = Duration::from_millis(30));
        let running = case.start();
        eventually("one is copied, another is not", || async {
            case.sink.is_complete("a") && case.sink.begun("big") == 1
        })
        .await;
        assert!(!case.sink.is_complete("big"));
        case.one_write(3).await;
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                   WHERE backend_type IN ('walsender', 'client backend') AND pid <> pg_backend_pid()";
        case.source.query(end, &[]).await.unwrap();
        case.sink.look(|p| p.slow = Duration::ZERO);
        eventually("all is copied", || async { case.sink.look(|p| p.complete.len()) == 6 }).await;
        running.stop().await.unwrap();
        case.drained().await.unwrap();
        case.assert_same().await;
        case.sink.assert_same("big", rows_at(&case.source, "big", "id,t").await, case.mode);
        assert_eq!((case.sink.begun("a"), case.sink.begun("big")), (1, 2));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncate_between_two_boundaries_reaches_only_the_table_that_was_copied_before_it() {
    in_both_modes(async |case| {
        case.options.jobs = 1.try_into().unwrap();
        // Of tables of one size, the order is that of their names.
        case.sink.look(|p| p.hold = Some("b"));
        let running = case.start();
        eventually("it stands between two tables", || async { case.sink.is_held() && case.sink.is_complete("a") })
            .await;
        running.kill().await;
        case.sql("TRUNCATE a, b; INSERT INTO b VALUES (1, 1, 'behind the truncate')").await;
        case.sql("INSERT INTO b VALUES (2, 2, 'in the copy')").await;
        case.sink.look(|p| p.hold = None);
        case.drained().await.unwrap();
        case.assert_same().await;
        assert_eq!(case.sink.look(|p| std::mem::take(&mut p.truncated)), [["a"]]);
        assert_eq!(case.sink.look(|p| p.empty), 1, "a transaction of which nothing is left still says how far it is");
        case.sql("TRUNCATE a, b").await;
        case.drained().await.unwrap();
        assert_eq!(case.sink.look(|p| std::mem::take(&mut p.truncated)), [["a", "b"]]);
        case.assert_same().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_that_fails_in_the_copy_goes_on_or_stops_and_leaves_nothing_twice() {
    in_both_modes(async |case| {
        for (at, fault) in [(2, Fault::Before), (7, Fault::After), (12, Fault::ForGood)] {
            case.sink.look(|p| p.fault = Some((at, fault)));
            let running = case.start();
            if fault == Fault::ForGood {
                assert_eq!(running.ended().await.unwrap_err().code(), "sink_failed");
                case.sink.look(|p| p.fault = None);
                break;
            }
            eventually("it has failed", || async { case.sink.look(|p| p.fault.is_none()) }).await;
            running.kill().await;
        }
        case.one_write(1).await;
        case.drained().await.unwrap();
        case.assert_same().await;
    })
    .await;
}

/// A store of which each third save fails.
struct Shaky {
    store: FileStore,
    saves: Arc<AtomicU32>,
}

impl CheckpointStore for Shaky {
    async fn open(&mut self, flow: &str) -> Result<(), SinkError> {
        self.store.open(flow).await
    }

    async fn load(&mut self, flow: &str, name: &'static str) -> Result<Option<Vec<u8>>, SinkError> {
        self.store.load(flow, name).await
    }

    async fn save(&mut self, state: &State<'_>) -> Result<(), SinkError> {
        // Less and less often: within a session that begins tables it must get somewhere.
        let save = self.saves.fetch_add(1, Ordering::Relaxed);
        if [3, 5, 8, 12, 15, 19, 24].contains(&save) {
            return Err(SinkError::transient("told to fail"));
        }
        self.store.save(state).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_fails_in_the_copy_repeats_tables_and_leaves_nothing_twice() {
    for major in each_major() {
        let case = Case::new(major, "file").await;
        let store = |directory: &Path| FileStore::new(directory);
        let saves = Arc::new(AtomicU32::new(0));
        let shaky = Shaky { store: store(case.directory.path()), saves: Arc::clone(&saves) };
        let source = slot_source(&case.cluster.url("postgres"), "p");
        let running = Running::with(source, Kept::at_least_once("f", case.sink.clone(), shaky), case.options.clone());
        eventually("all is copied", || async { case.sink.look(|p| p.complete.len()) == 5 }).await;
        eventually("all failures are over", || async { saves.load(Ordering::Relaxed) > 25 }).await;
        running.stop().await.unwrap();
        case.one_write(1).await;
        case.drained().await.unwrap();
        case.assert_same().await;
        assert!(case.sink.look(|p| p.begun.iter().any(|(_, anew)| *anew)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d4_a_table_that_joins_is_copied_beside_the_stream() {
    in_both_modes(async |case| {
        let running = case.start();
        eventually("all is copied", || async { case.sink.look(|p| p.complete.len()) == 5 }).await;
        case.sql("CREATE TABLE late (id int PRIMARY KEY, t text)").await;
        case.sql("INSERT INTO late SELECT i, 'x' FROM generate_series(1, 3000) i").await;
        let load = Load::start(case).await;
        case.sql("ALTER PUBLICATION p ADD TABLE late").await;
        for id in 0..50 {
            case.sql(&format!("UPDATE late SET t = t || 'y' WHERE id % 50 = {id}")).await;
            case.sql(&format!("DELETE FROM late WHERE id = {id} * 3")).await;
        }
        eventually("it is copied", || async { case.sink.is_complete("late") }).await;
        load.end().await;
        case.sql("INSERT INTO late VALUES (-1, 'behind')").await;
        running.stop().await.unwrap();
        case.drained().await.unwrap();
        case.assert_same().await;
        case.sink.assert_same("late", rows_at(&case.source, "late", "id,t").await, case.mode);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d4_a_table_that_joins_a_flow_without_a_copy_is_carried_from_there_on_and_named() {
    in_both_modes(async |case| {
        case.options.start = StartMode::GoForward;
        let running = case.start();
        let slot = "SELECT count(*) FROM pg_replication_slots WHERE active";
        eventually("it streams", || async { case.source.query_one(slot, &[]).await.unwrap().get::<_, i64>(0) == 1 })
            .await;
        case.sql("CREATE TABLE late (id int PRIMARY KEY, t text); INSERT INTO late VALUES (1, 'before')").await;
        case.sql("ALTER PUBLICATION p ADD TABLE late").await;
        for id in 2..30 {
            case.sql(&format!("INSERT INTO late VALUES ({id}, 'behind')")).await;
        }
        let expected = || async {
            let rows = rows_at(&case.source, "late", "id,t").await;
            rows.into_iter().filter(|row| row[1].as_deref() == Some("behind")).collect::<Vec<_>>()
        };
        let behind = expected().await;
        eventually("its changes arrive", || async { case.sink.rows("late") == behind }).await;
        let warned = |warning: &String| warning.contains("public.late has joined") && warning.contains("not copied");
        eventually("it is told", || async { running.progress.borrow().warnings.iter().any(warned) }).await;
        let sessions = case.sink.look(|p| p.sessions);
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert_eq!(case.sink.look(|p| p.sessions), sessions, "it does not go round in circles");
        case.sql("INSERT INTO late VALUES (99, 'behind')").await;
        running.stop().await.unwrap();
        case.drained().await.unwrap();
        case.sink.assert_same("late", expected().await, case.mode);
        assert_eq!(case.sink.look(|p| p.begun.len()), 0);
        // It is remembered: that it leaves is noticed.
        case.sql("ALTER PUBLICATION p DROP TABLE late").await;
        assert_eq!(case.drained().await.unwrap_err().code(), "publication_changed");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_every_character_empty_tables_and_tables_without_columns_come_as_they_are() {
    in_both_modes(async |case| {
        case.sql(
            "CREATE DOMAIN short AS varchar(9);
             CREATE TABLE odd (id int PRIMARY KEY, t text, u text, d short, b bytea, x numeric(9, 3)[]);
             CREATE TABLE empty (id int PRIMARY KEY, t text); CREATE TABLE nothing ();
             INSERT INTO nothing DEFAULT VALUES; INSERT INTO nothing DEFAULT VALUES;
             INSERT INTO odd SELECT i, chr(i), chr(i) || '\\N' || chr(i) || E'\\t' || chr(i), 'd' || chr(i),
                 decode(lpad(to_hex(i % 256), 2, '0'), 'hex'), ARRAY[i / 8.0, NULL]
                 FROM generate_series(1, 900) i;
             INSERT INTO odd VALUES (-1, NULL, '', '', NULL, NULL), (-2, '\\N', 'N', '\\', '', '{}'),
                 (-3, '\\.', E'\\\\.\\n', NULL, '\\x00', NULL),
                 (-4, E'\\\\x41\\r\\n\\b\\f\\v', chr(128512), '', NULL, NULL);
             ALTER PUBLICATION p ADD TABLE odd, empty, nothing",
        )
        .await;
        case.drained().await.unwrap();
        let same = async || {
            case.sink.assert_same("odd", rows_at(&case.source, "odd", "id,t,u,d,b,x").await, case.mode);
            case.sink.assert_same("empty", rows_at(&case.source, "empty", "id,t").await, case.mode);
        };
        same().await;
        assert!(case.sink.is_complete("empty") && case.sink.rows("nothing").len() == 2);
        // The sink holds every relation of the stream against that of the copy.
        case.sql("UPDATE odd SET t = u, u = t; DELETE FROM odd WHERE id = 7").await;
        case.sql("INSERT INTO empty VALUES (1, E'a\\\\\\n')").await;
        case.drained().await.unwrap();
        same().await;
        case.assert_described();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn column_lists_row_filters_and_generated_columns_are_those_of_the_stream() {
    in_both_modes(async |case| {
        let twice = "twice int GENERATED ALWAYS AS (n * 2) STORED";
        case.sql(&format!("CREATE TABLE g (id int PRIMARY KEY, n int, {twice}, t text)")).await;
        case.sql("INSERT INTO g (id, n, t) SELECT i, i, 'x' || i FROM generate_series(1, 100) i").await;
        let major = case.cluster.major();
        // A list of columns may name generated ones from version 18 on.
        let (publication, columns, condition) = match major {
            14 => ("ADD TABLE g", "id,n,t", "true"),
            15..18 => ("ADD TABLE g (id, n) WHERE (id > 40)", "id,n", "id > 40"),
            _ => ("ADD TABLE g (id, twice) WHERE (id > 40)", "id,twice", "id > 40"),
        };
        case.sql(&format!("ALTER PUBLICATION p {publication}")).await;
        case.drained().await.unwrap();
        let table = format!("g WHERE {condition}");
        case.sink.assert_same("g", rows_at(&case.source, &table, columns).await, case.mode);
        case.sql("UPDATE g SET n = n + 1; INSERT INTO g (id, n) VALUES (200, 3), (-1, 3)").await;
        case.sql("UPDATE g SET id = 1000 WHERE id = 10").await;
        case.drained().await.unwrap();
        case.sink.assert_same("g", rows_at(&case.source, &table, columns).await, case.mode);
        if major >= 18 {
            let case = Case::new(major, case.mode).await;
            case.sql("ALTER PUBLICATION p SET (publish_generated_columns = stored)").await;
            case.sql(
                "CREATE TABLE g (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED,
                      v int GENERATED ALWAYS AS (id * 3) VIRTUAL); ALTER PUBLICATION p ADD TABLE g;
                      INSERT INTO g (id) SELECT generate_series(1, 9)",
            )
            .await;
            for id in 10..12 {
                case.drained().await.unwrap();
                case.sink.assert_same("g", rows_at(&case.source, "g", "id,twice").await, case.mode);
                case.sql(&format!("INSERT INTO g (id) VALUES ({id})")).await;
            }
            case.assert_described();
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_tables_come_in_bounded_chunks_and_whole_however_large() {
    in_both_modes(async |case| {
        case.sql(
            "CREATE TABLE many (id int PRIMARY KEY, t text); CREATE TABLE wide (id int PRIMARY KEY, t text);
             INSERT INTO many SELECT i, 'x' FROM generate_series(1, 100000) i;
             INSERT INTO wide SELECT i, repeat('y', 5000) FROM generate_series(1, 1500) i;
             INSERT INTO wide VALUES (0, repeat('z', 3000000)); ALTER PUBLICATION p ADD TABLE many, wide",
        )
        .await;
        // Far smaller than the tables are: a sink takes them whole all the same.
        case.options.piece_bytes = 8192;
        case.sink.look(|p| p.counts_only = true);
        case.drained().await.unwrap();
        let chunks = case.sink.look(|p| std::mem::take(&mut p.chunks));
        let of = |table: &str| chunks.iter().filter(|chunk| chunk.0 == table).map(|c| (c.1, c.2)).collect::<Vec<_>>();
        let (many, wide) = (of("many"), of("wide"));
        assert_eq!(many.iter().map(|(rows, _)| rows).sum::<usize>(), 100_000);
        assert_eq!(wide.iter().map(|(rows, _)| rows).sum::<usize>(), 1_501);
        assert!(many.iter().all(|(rows, _)| *rows == 1_000), "{many:?}");
        assert!(wide.len() > 6 && wide.iter().all(|(_, bytes)| *bytes < 4_100_000), "{wide:?}");
        assert!(wide.iter().filter(|(_, bytes)| *bytes > 1_100_000).count() <= 1, "{wide:?}");
        assert_eq!((case.sink.begun("many"), case.sink.begun("wide")), (1, 1));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_to_be_copied_again_is_begun_anew_beside_the_stream() {
    in_both_modes(async |case| {
        case.drained().await.unwrap();
        case.sink.look(|p| drop(p.tables.get_mut("b").map(|rows| rows.pop_first())));
        case.one_write(5).await;
        case.options.reseed = vec!["public.b".to_owned()];
        case.drained().await.unwrap();
        case.assert_same().await;
        assert_eq!((case.sink.begun("a"), case.sink.begun("b")), (1, 2));
        // One that was there from the beginning of a flow without a copy is replaced too.
        let mut case = Case::new(case.cluster.major(), case.mode).await;
        case.options.start = StartMode::GoForward;
        case.drained().await.unwrap();
        case.sql("INSERT INTO b VALUES (0, 0, 'streamed')").await;
        case.drained().await.unwrap();
        assert_eq!(case.sink.rows("b").len(), 1);
        case.options.reseed = vec!["public.b".to_owned()];
        case.drained().await.unwrap();
        case.sink.assert_same("b", rows_at(&case.source, "b", "id,n,t").await, case.mode);
        assert_eq!(case.sink.look(|p| p.begun.clone()), [("b".to_owned(), true)]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_column_that_is_added_before_a_table_is_copied_comes_with_the_copy_and_one_behind_it_is_asked_about() {
    in_both_modes(async |case| {
        case.options.jobs = 1.try_into().unwrap();
        case.sink.look(|p| p.hold = Some("b"));
        let running = case.start();
        eventually("it stands between two tables", || async { case.sink.is_held() && case.sink.is_complete("a") })
            .await;
        running.kill().await;
        case.sql("UPDATE b SET t = 'older' WHERE id = 1").await;
        case.sql("ALTER TABLE b DROP COLUMN n, ADD COLUMN x int; UPDATE b SET x = id WHERE id < 10").await;
        case.sink.look(|p| p.hold = None);
        case.drained().await.unwrap();
        case.sql("UPDATE b SET x = 1 WHERE id = 2; ALTER TABLE c ADD COLUMN x int; INSERT INTO c VALUES (0, 0, '', 7)")
            .await;
        case.drained().await.unwrap();
        case.sink.assert_same("b", rows_at(&case.source, "b", "id,t,x").await, case.mode);
        assert_eq!(case.sink.look(|p| p.changed.clone()), ["c"], "{}", case.mode);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d4_a_sink_that_takes_no_copy_any_more_refuses_a_table_that_joins_by_name() {
    in_both_modes(async |case| {
        case.drained().await.unwrap();
        case.sink.look(|p| p.takes_none = true);
        case.options.start = StartMode::GoForward;
        case.one_write(1).await;
        case.drained().await.unwrap();
        case.assert_same().await;
        case.sql("CREATE TABLE late (id int PRIMARY KEY); ALTER PUBLICATION p ADD TABLE late").await;
        for _ in 0..2 {
            let refused = case.drained().await.unwrap_err();
            assert_eq!(refused.code(), "unsupported");
            assert!(refused.to_string().contains("public.late"), "{refused}");
        }
        assert!(case.sink.rows("late").is_empty());
        case.sink.look(|p| p.takes_none = false);
        case.sql("INSERT INTO late VALUES (1)").await;
        case.drained().await.unwrap();
        case.sink.assert_same("late", rows_at(&case.source, "late", "id").await, case.mode);
    })
    .await;
}

#[tokio::test]
async fn a_copy_beside_transactions_that_come_when_they_are_prepared_is_refused_without_a_connection() {
    let sink = Mirror::default();
    sink.look(|p| p.takes_prepared = true);
    let nowhere = connection("host=127.0.0.1 port=1 user=u dbname=d");
    let again = PipelineOptions { start: StartMode::GoForward, reseed: vec!["public.a".to_owned()], ..options() };
    for options in [options(), again] {
        let mut settings = SlotSettings::new(nowhere.clone(), "s", vec!["p".to_owned()]);
        settings.two_phase = TwoPhase::Seen;
        let running = Running::with(SlotSource::new(settings), Kept::effect_once("f", sink.clone()), options);
        let refused = running.ended().await.unwrap_err();
        assert!(refused.code() == "unsupported" && refused.to_string().contains("prepared"), "{refused}");
    }
}
