//! Tables that are copied while the flow streams: those that join the publication (D4), and those that are copied again
//! with `--reseed` (D5). Under load, with kills, and without a word that is not true.

mod common;
mod pair;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{WAITING_FOR_A_LOCK, eventually, number, said, signal};
use pair::{Case, Running};
use pgonce_testkit::{KillCount, Random, majors, witness};
use tokio::task::JoinHandle;

/// So small that a few hundred rows are many pieces.
const SMALL: (&str, &str) = ("PGONCE_PIECE_BYTES", "16384");

/// The tables that are copied beside the stream: one that is cut by its key, one that can only be copied as one because
/// of another unique column, one without a key, a small one.
const LATE: &str = "
    CREATE TABLE late (id int PRIMARY KEY, n int, b text);
    CREATE TABLE late_unique (id int PRIMARY KEY, n int UNIQUE, b text);
    CREATE TABLE late_keyless (id int, n int, b text); ALTER TABLE late_keyless REPLICA IDENTITY FULL;
    CREATE TABLE late_small (id int PRIMARY KEY, n int, b text)";

const LATE_ROWS: &str = "
    INSERT INTO late SELECT i, i, repeat('x', 200) FROM generate_series(1, 600) i;
    INSERT INTO late_unique SELECT i, i, repeat('x', 200) FROM generate_series(1, 400) i;
    INSERT INTO late_keyless SELECT i, i, repeat('x', 200) FROM generate_series(1, 400) i;
    INSERT INTO late_small SELECT i, i, 'x' FROM generate_series(1, 5) i";

const NAMES: [&str; 4] = ["late", "late_unique", "late_keyless", "late_small"];

async fn case(major: u32, name: &str) -> Case {
    let mut case = Case::new(major, name).await.with(&["--jobs", "2", "--publication", "p"]);
    case.environment.push(SMALL);
    witness::create(&case.source).await.unwrap();
    witness::create_target(&case.target).await.unwrap();
    case.both(LATE).await;
    case.at_source(LATE_ROWS).await;
    case.at_source("CREATE PUBLICATION p FOR TABLE witness_log, witness_mirror").await;
    case
}

const JOIN: &str = "ALTER PUBLICATION p ADD TABLE late, late_unique, late_keyless, late_small";

/// Changes everything, again and again, until it is stopped: inserts, updates, deletes, keys that change, and now and
/// then a truncate.
struct Load {
    stop: Arc<AtomicBool>,
    task: JoinHandle<u64>,
}

impl Load {
    async fn start(case: &Case, seed: u64) -> Load {
        let client = case.pair.source.connect(&case.name).await.unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut random = Random::new(seed);
            let mut done = 0;
            while !stopped.load(Ordering::Relaxed) {
                let table = NAMES[random.below(4) as usize];
                let (id, fresh) = (random.between(1, 600), 1_000 + done);
                let change = match random.below(40) {
                    0 if table != "late_unique" => format!("TRUNCATE {table}"),
                    0..12 => format!("INSERT INTO {table} VALUES ({fresh}, {fresh}, 'new')"),
                    12..20 => format!("UPDATE {table} SET b = b || 'y' WHERE id % 97 = {id} % 97"),
                    20..28 => format!("DELETE FROM {table} WHERE id = {id}"),
                    // Across ranges; a value that is unique goes from one row to another.
                    _ => format!(
                        "UPDATE {table} SET id = {fresh} WHERE id = (SELECT id FROM {table} WHERE id >= {id} \
                                  ORDER BY id LIMIT 1); DELETE FROM {table} WHERE n = {id}; \
                                  INSERT INTO {table} VALUES (-{fresh}, {id}, 'moved')"
                    ),
                };
                let sql = format!(
                    "BEGIN; INSERT INTO witness_log VALUES (nextval('witness_number'), 1); {change};
                     UPDATE witness_mirror SET counter = counter + 1 WHERE id = 1 + {id} % 16; COMMIT"
                );
                client.batch_execute(&sql).await.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
                done += 1;
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
            done
        });
        Load { stop, task }
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        assert!(self.task.await.unwrap() > 20, "the load must have run");
    }
}

async fn streams(case: &Case) {
    let phase = "SELECT count(*) FROM pgonce.flow WHERE phase = 'streaming'";
    let read = format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'pgonce_{}' AND active", case.name);
    eventually("it streams", || async { number(&case.target, phase).await + number(&case.source, &read).await == 2 })
        .await;
}

/// How many pieces of the late tables have not been copied, or are not planned yet.
async fn joined(case: &Case) {
    let sql = "SELECT (count(DISTINCT table_oid) FILTER (WHERE table_name LIKE 'late%') - 4)
                      - count(*) FILTER (WHERE boundary IS NULL) FROM pgonce.snapshot";
    eventually("all is copied", || async {
        number(&case.target, sql).await == 0 && number(&case.target, PIECES).await > 0
    })
    .await;
}

const PIECES: &str = "SELECT count(boundary) FROM pgonce.snapshot WHERE table_name LIKE 'late%'";

async fn assert_same(case: &Case) {
    witness::compare(&case.source, &case.target).await.unwrap().assert_clean();
    for table in NAMES {
        case.assert_same(&format!("SELECT * FROM {table} ORDER BY 1, 2, 3")).await;
    }
    let slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND temporary";
    assert_eq!(number(&case.source, slots).await, 0, "no temporary slot is left");
    let unfinished = "SELECT count(*) FROM pgonce.snapshot WHERE boundary IS NULL";
    assert_eq!(number(&case.target, unfinished).await, 0, "no piece is left");
}

async fn hold_at(case: &Case, table: &str, condition: &str) {
    case.at_target(&format!(
        "CREATE OR REPLACE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NEW; END';
         CREATE TRIGGER hold BEFORE INSERT ON {table} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION hold();
         ALTER TABLE {table} ENABLE ALWAYS TRIGGER hold; SELECT pg_advisory_lock(7)"
    ))
    .await;
}

async fn held(case: &Case) {
    let held = format!("{WAITING_FOR_A_LOCK} AND datname = current_database()");
    eventually("a piece is held", || async { number(&case.target, &held).await > 0 }).await;
}

async fn kill(case: &Case, run: Running, kills: &mut KillCount) {
    kills.record(run.kill());
    let sessions = "SELECT count(*) FROM pg_stat_activity
        WHERE application_name LIKE 'pgonce%' AND datname = current_database()";
    eventually("the dead sessions are gone", || async { number(&case.target, sessions).await == 0 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d4_tables_that_join_under_load_are_copied_while_the_flow_runs() {
    for major in majors().unwrap() {
        let case = case(major, "join").await;
        let load = Load::start(&case, 4).await;
        let run = case.start();
        streams(&case).await;
        case.at_source(JOIN).await;
        joined(&case).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        load.end().await;
        case.catch_up("SELECT count(*) FROM witness_log").await;
        run.end().await;
        case.drain().await;
        assert_same(&case).await;
        let rounds = "SELECT count(DISTINCT boundary) FROM pgonce.snapshot WHERE table_name = 'late'";
        assert!(number(&case.target, rounds).await >= 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d4_a_snapshot_that_the_stream_has_overtaken_is_discarded() {
    for major in majors().unwrap() {
        let case = case(major, "overtaken").await;
        let run = case.start();
        streams(&case).await;
        let open = case.pair.source.connect(&case.name).await.unwrap();
        open.batch_execute("BEGIN; INSERT INTO witness_log VALUES (nextval('witness_number'), 0)").await.unwrap();
        case.at_source("ALTER PUBLICATION p ADD TABLE late_small").await;
        // It waits for the open transaction; anywhere else it might hold what the whole server needs.
        let making = "SELECT coalesce(max(active_pid), 0)::bigint
            FROM pg_replication_slots s JOIN pg_stat_activity a ON a.pid = s.active_pid
            WHERE s.database = current_database() AND temporary AND a.wait_event = 'transactionid'";
        eventually("the slot is being made", || async { number(&case.source, making).await > 0 }).await;
        // It is stopped before the record at which its snapshot will stand, and the stream goes on.
        let pid = number(&case.source, making).await;
        signal(pid, "STOP");
        open.batch_execute("COMMIT; CHECKPOINT").await.unwrap();
        let change = "UPDATE late_small SET n = n + 1; INSERT INTO late_small VALUES (77, 77, 'overtaken');
            DELETE FROM late_small WHERE id = 1; INSERT INTO witness_log VALUES (nextval('witness_number'), 0)";
        case.at_source(change).await;
        case.catch_up("SELECT count(*) FROM witness_log").await;
        assert_eq!(case.there("SELECT count(*) FROM late_small").await, ["(0)"], "left out: it will be in the copy");
        signal(pid, "CONT");
        let copied = "SELECT count(*) FROM pgonce.snapshot WHERE table_name = 'late_small' AND boundary IS NOT NULL";
        eventually("it is copied", || async { number(&case.target, copied).await == 1 }).await;
        case.at_source("UPDATE late_small SET n = n + 1").await;
        case.catch_up("SELECT * FROM late_small ORDER BY id").await;
        run.end().await;
        witness::compare(&case.source, &case.target).await.unwrap().assert_clean();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d4_kills_while_a_table_joins_lose_nothing_and_copy_nothing_twice() {
    for major in majors().unwrap() {
        let case = case(major, "join_killed").await;
        let load = Load::start(&case, 5).await;
        let mut kills = KillCount::at_least(3);
        let run = case.start();
        streams(&case).await;
        // In a range of the key, in the copy of one that goes as one, and at any time.
        hold_at(&case, "late", "NEW.id BETWEEN 200 AND 400").await;
        case.at_source(JOIN).await;
        held(&case).await;
        kill(&case, run, &mut kills).await;
        case.at_target("SELECT pg_advisory_unlock(7); DROP TRIGGER hold ON late").await;
        hold_at(&case, "late_keyless", "NEW.b LIKE 'x%'").await;
        let run = case.start();
        held(&case).await;
        kill(&case, run, &mut kills).await;
        case.at_target("SELECT pg_advisory_unlock(7); DROP TRIGGER hold ON late_keyless").await;
        let mut random = Random::new(u64::from(major));
        while kills.count() < 6 {
            let run = case.start();
            tokio::time::sleep(Duration::from_millis(200 + random.below(1_200))).await;
            kill(&case, run, &mut kills).await;
        }
        let run = case.start();
        joined(&case).await;
        load.end().await;
        // The kills may have let everything join: it is not to be ended before it has begun.
        streams(&case).await;
        run.end().await;
        case.drain().await;
        assert_same(&case).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d5_tables_are_copied_again_under_load_and_under_kills() {
    for major in majors().unwrap() {
        let case = case(major, "again").await;
        case.at_source(JOIN).await;
        case.drain().await;
        let load = Load::start(&case, 6).await;
        let run = case.start();
        streams(&case).await;
        run.end().await;
        // Damage.
        case.at_target(
            "DELETE FROM late WHERE id % 2 = 0; UPDATE late_unique SET b = 'wrong'; DELETE FROM late_small;
                        INSERT INTO late_keyless VALUES (1, 1, 'wrong'); INSERT INTO late VALUES (-5000, 0, 'wrong')",
        )
        .await;
        let names = NAMES.map(|name| format!("public.{name}"));
        let words: Vec<&str> = names.iter().flat_map(|name| ["--reseed", name.as_str()]).collect();
        hold_at(&case, "late", "NEW.id > 300").await;
        let mut kills = KillCount::at_least(2);
        let run = case.start_with(&words);
        held(&case).await;
        kill(&case, run, &mut kills).await;
        case.at_target("SELECT pg_advisory_unlock(7); DROP TRIGGER hold ON late").await;
        // It was decided: it goes on without being told again. And being told again is another beginning.
        let run = case.start();
        joined(&case).await;
        kill(&case, run, &mut kills).await;
        let run = case.start_with(&words);
        tokio::time::sleep(Duration::from_millis(500)).await;
        joined(&case).await;
        load.end().await;
        run.end().await;
        case.drain().await;
        assert_same(&case).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d5_a_first_start_onto_filled_tables_replaces_those_that_are_named() {
    for major in majors().unwrap() {
        let mut case = Case::new(major, "filled").await;
        case.environment.push(SMALL);
        case.both(LATE).await;
        case.at_source(LATE_ROWS).await;
        case.at_target(LATE_ROWS).await;
        case.at_target("UPDATE late SET b = 'mine'; DELETE FROM late_keyless WHERE n < 9; DELETE FROM late_small")
            .await;
        let said_no = case.refused("target_not_empty", 8).await;
        assert!(said_no.contains("\"late\"") && said_no.contains("--reseed"), "{said_no}");
        let some = ["--reseed", "public.late", "--reseed", "public.late_keyless"];
        let refused = case.output(&[&["run", "--until", "now"], some.as_slice()].concat()).await;
        assert_eq!(refused.status.code(), Some(8), "{}", said(&refused));
        assert!(
            said(&refused).contains("late_unique") && !said(&refused).contains("late_keyless"),
            "{}",
            said(&refused)
        );
        let none = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";
        assert_eq!(number(&case.source, none).await, 0, "nothing was made on the source");
        let output = case
            .output(&[&["run", "--until", "now", "--reseed", "public.late_unique"], some.as_slice()].concat())
            .await;
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        for table in NAMES {
            case.assert_same(&format!("SELECT * FROM {table} ORDER BY 1, 2, 3")).await;
        }
        let output = case.output(&["run", "--until", "now", "--reseed", "public.nothing"]).await;
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains("public.nothing cannot be copied again: it is not published"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d4_a_table_that_has_left_again_is_left_out_and_taken_whole_when_it_comes_back() {
    for major in majors().unwrap() {
        let case = case(major, "left").await;
        case.drain().await;
        case.at_source("ALTER PUBLICATION p ADD TABLE late_small").await;
        case.at_source("INSERT INTO late_small VALUES (10, 10, 'seen'); INSERT INTO witness_log VALUES (1, 1)").await;
        case.at_source("ALTER PUBLICATION p DROP TABLE late_small").await;
        case.at_source("INSERT INTO witness_log VALUES (2, 1)").await;
        let said = case.drain().await;
        assert!(said.contains("table public.late_small has left the publication again"), "{said}");
        assert_eq!(case.there("SELECT count(*) FROM late_small").await, ["(0)"]);
        case.at_source("ALTER PUBLICATION p ADD TABLE late_small; INSERT INTO late_small VALUES (11, 11, 'back')")
            .await;
        case.drain().await;
        assert_eq!(case.assert_same("SELECT * FROM late_small ORDER BY 1").await.len(), 7);
        // Taken in, it must not leave again; and copying it anew is the way out.
        case.at_source("ALTER PUBLICATION p DROP TABLE late_small; INSERT INTO late_small VALUES (12, 12, 'unseen')")
            .await;
        case.at_source("ALTER PUBLICATION p ADD TABLE late_small").await;
        case.refused("publication_changed", 6).await;
        let output = case.output(&["run", "--until", "now", "--reseed", "public.late_small"]).await;
        assert_eq!(output.status.code(), Some(0), "{}", common::said(&output));
        case.drain().await;
        assert_eq!(case.assert_same("SELECT * FROM late_small ORDER BY 1").await.len(), 8);
        witness::compare(&case.source, &case.target).await.unwrap().assert_clean();
    }
}

/// Kills at random points of copies of every kind: the initial one, tables that join, tables that are copied again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "as long as it is told: PGONCE_SOAK_KILLS (100) kills, from PGONCE_SOAK_SEED (1)"]
async fn random_kills_in_copies_of_every_kind_lose_nothing_and_copy_nothing_twice() {
    let asked = |name: &str, default: u64| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (wanted, seed) = (asked("PGONCE_SOAK_KILLS", 100), asked("PGONCE_SOAK_SEED", 1));
    println!("{wanted} kills, seed {seed}");
    for major in majors().unwrap() {
        let mut random = Random::new(seed);
        let mut kills = KillCount::at_least(u32::try_from(wanted).unwrap());
        let mut flows = 0;
        while u64::from(kills.count()) < wanted {
            flows += 1;
            let case = case(major, &format!("soak_{flows}")).await;
            if random.percent(50) {
                case.at_source(JOIN).await;
            }
            let load = Load::start(&case, seed + flows).await;
            for kill_in_flow in 0..10 {
                let bound = "SELECT count(*) FROM pgonce.flow WHERE published LIKE '%public.late_small%'";
                let again = number(&case.target, bound).await == 1 && random.percent(30);
                let name = format!("public.{}", NAMES[random.below(4) as usize]);
                let words: Vec<&str> = if again { vec!["--reseed", &name] } else { Vec::new() };
                let run = case.start_with(&words);
                tokio::time::sleep(Duration::from_millis(random.between(20, 2_500))).await;
                kill(&case, run, &mut kills).await;
                if kill_in_flow == 3 {
                    // Fails where they have joined already.
                    let _ = case.source.batch_execute(JOIN).await;
                }
            }
            let run = case.start();
            joined(&case).await;
            load.end().await;
            kill(&case, run, &mut kills).await;
            case.drain().await;
            assert_same(&case).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d5_a_table_with_whose_rows_those_of_others_would_go_is_not_replaced() {
    for major in majors().unwrap() {
        let mut case = Case::new(major, "acting").await;
        case.both(
            "CREATE TABLE p (id int PRIMARY KEY);
             CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p ON DELETE SET NULL)",
        )
        .await;
        case.at_target(
            "CREATE ROLE acting LOGIN; ALTER TABLE p OWNER TO acting; ALTER TABLE c OWNER TO acting;
             GRANT CREATE ON DATABASE acting TO acting",
        )
        .await;
        case.target_url = case.target_url.replace("postgres@", "acting@");
        case.drain().await;
        case.at_source("INSERT INTO p VALUES (1); INSERT INTO c VALUES (1, 1)").await;
        case.drain().await;
        let output = case.output(&["run", "--until", "now", "--reseed", "public.p"]).await;
        let said = crate::common::said(&output);
        assert_eq!(output.status.code(), Some(8), "{said}");
        assert!(said.contains("c would lose or change rows with them"), "{said}");
        assert_eq!(case.there("SELECT * FROM c").await, ["(1,1)"]);
        // A table that references others can be replaced.
        case.at_target("UPDATE c SET p = NULL").await;
        let output = case.output(&["run", "--until", "now", "--reseed", "public.c"]).await;
        assert_eq!(output.status.code(), Some(0), "{}", crate::common::said(&output));
        assert_eq!(case.there("SELECT * FROM c").await, ["(1,1)"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d4_a_table_that_is_dropped_while_it_joins_is_forgotten() {
    for major in majors().unwrap() {
        let mut case = Case::new(major, "dropped").await;
        case.environment.push(SMALL);
        case.both("CREATE TABLE o (id int PRIMARY KEY); CREATE TABLE late (id int PRIMARY KEY, b text)").await;
        case.at_source("CREATE PUBLICATION pgonce_dropped FOR TABLE o").await;
        case.at_source("INSERT INTO late SELECT i, repeat('x', 200) FROM generate_series(1, 600) i").await;
        case.drain().await;
        hold_at(&case, "late", "NEW.id BETWEEN 200 AND 400").await;
        let run = case.start();
        streams(&case).await;
        case.at_source("ALTER PUBLICATION pgonce_dropped ADD TABLE late").await;
        held(&case).await;
        let dropping = case.pair.source.connect("dropped").await.unwrap();
        let dropped = tokio::spawn(async move { dropping.batch_execute("DROP TABLE late").await });
        case.at_target("SELECT pg_advisory_unlock(7); DROP TRIGGER hold ON late").await;
        dropped.await.unwrap().unwrap();
        case.at_source("INSERT INTO o VALUES (1)").await;
        case.catch_up("SELECT * FROM o").await;
        run.end().await;
        case.drain().await;
        assert_eq!(number(&case.target, "SELECT count(*) FROM pgonce.snapshot WHERE boundary IS NULL").await, 0);
    }
}
