//! Large catalogs: thousands of tables, as many columns as there can be, a root with a thousand partitions.

mod common;
mod pair;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use common::{eventually, number, said};
use pair::Case;
use pgonce_testkit::majors;

/// How large the catalog is.
struct Size {
    tables: usize,
    columns: usize,
    partitions: usize,
}

/// What every run of the tests can afford.
const SMALLER: Size = Size { tables: 200, columns: 1_600, partitions: 100 };

/// What is promised.
const FULL: Size = Size { tables: 5_000, columns: 1_600, partitions: 1_000 };

/// Makes many small tables, some hundred in a transaction: the locks of all would not fit.
async fn small_tables(case: &Case, number: usize) {
    case.both("SET synchronous_commit = off").await;
    for first in (0..number).step_by(250) {
        let last = (first + 250).min(number) - 1;
        case.both(&format!(
            "DO $$ BEGIN FOR i IN {first} .. {last} LOOP
                 EXECUTE format('CREATE TABLE small_%s (id int PRIMARY KEY, v text)', i); END LOOP; END $$"
        ))
        .await;
        case.at_source(&format!(
            "DO $$ BEGIN FOR i IN {first} .. {last} LOOP
                 EXECUTE format('INSERT INTO small_%s VALUES (1, %L)', i, i); END LOOP; END $$"
        ))
        .await;
    }
}

/// The sum of all calls that `pg_stat_statements` has seen in this database on each side.
async fn statements(case: &Case) -> (i64, i64) {
    let sql = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
               WHERE d.datname = current_database() AND query NOT LIKE '%pg_stat_statements%'";
    (number(&case.source, sql).await, number(&case.target, sql).await)
}

async fn reset_statements(case: &Case) {
    // Of this database alone: other tests may use the same servers.
    let own = "SELECT pg_stat_statements_reset(0, (SELECT oid FROM pg_database WHERE datname = current_database()), 0)";
    case.both(own).await;
}

/// How many statements source and target see while something is done.
async fn counted(case: &Case, work: impl Future<Output = ()>) -> (i64, i64) {
    reset_statements(case).await;
    work.await;
    let (source, target) = statements(case).await;
    assert!(source > 0 && target > 0, "nothing was counted: {source} and {target}");
    (source, target)
}

/// What a flow of some small tables asks: at its first start without a copy, at a later start, by `status`, by the
/// check before a copy, and by the copy itself.
async fn questions(major: u32, tables: usize) -> [(i64, i64); 5] {
    let mut case = Case::new(major, &format!("questions_{tables}")).await.with(&["--start", "go-forward"]);
    case.both("CREATE EXTENSION pg_stat_statements").await;
    small_tables(&case, tables).await;
    let drain = async || drop(case.drain().await);
    let first = counted(&case, drain()).await;
    let again = counted(&case, drain()).await;
    let status = counted(&case, async { assert_eq!(case.status().await["doing"], "not_running") }).await;

    let output = case.output(&["reset", "--yes"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    case.arguments.clear();
    // Everything is looked at, and nothing is copied: one table holds a row already.
    case.at_target("INSERT INTO small_7 VALUES (1, '')").await;
    let check = counted(&case, async { drop(case.refused("target_not_empty", 8).await) }).await;
    case.at_target("TRUNCATE small_7").await;
    let copy = counted(&case, async { drop(case.drain().await) }).await;
    case.assert_same("SELECT * FROM small_7").await;
    [first, again, status, check, copy]
}

/// What the number of statements may differ by: how often a wait looks again depends on time.
const A_FEW: i64 = 60;

/// How many statements the check before a copy may take for each table, on either side: it asks for all of them at
/// once.
const CHECK_A_TABLE: i64 = 0;

/// How many statements the copy may take for each table, on either side.
const COPY_A_TABLE: i64 = 16;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starts_and_status_ask_no_more_of_two_hundred_tables_than_of_ten() {
    let major = *majors().unwrap().last().unwrap();
    let (few, many) = (questions(major, 10).await, questions(major, 200).await);
    println!(
        "PostgreSQL {major}: first start, later start, status, check, copy: {few:?} with 10 tables, {many:?} with 200"
    );
    let limits = [0, 0, 0, CHECK_A_TABLE, COPY_A_TABLE].map(|a_table| 190 * a_table + A_FEW);
    for ((few, many), limit) in few.iter().zip(&many).zip(limits) {
        assert!(many.0 - few.0 < limit && many.1 - few.1 < limit, "{few:?} and {many:?}, at most {limit} more");
    }
}

/// A table with as many columns as there can be, and a root with partitions.
fn wide_and_cut(size: &Size) -> String {
    let columns: Vec<String> = (1..size.columns).map(|n| format!("c{n} smallint")).collect();
    let mut sql = format!(
        "CREATE TABLE wide (id int PRIMARY KEY, {columns});
         CREATE TABLE wide_full (id int, {columns}); ALTER TABLE wide_full REPLICA IDENTITY FULL;
         CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);",
        columns = columns.join(", ")
    );
    for n in 0..size.partitions {
        let _ =
            write!(sql, "CREATE TABLE part_{n} PARTITION OF root FOR VALUES FROM ({}) TO ({});", n * 10, n * 10 + 10);
    }
    sql
}

async fn timed<T>(what: &str, times: &mut Vec<(String, Duration)>, work: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let done = work.await;
    times.push((what.to_owned(), begun.elapsed()));
    println!("{what}: {:?}", begun.elapsed());
    done
}

/// Starts, copies, streams, asks and compares. Returns how long each took.
async fn usable(major: u32, size: &Size) -> Vec<(String, Duration)> {
    let case = Case::new(major, "large").await;
    small_tables(&case, size.tables).await;
    for statement in wide_and_cut(size).split_inclusive(';') {
        case.both(statement).await;
    }
    // Half of the columns are NULL, so that a row fits into a page.
    let columns: Vec<String> =
        (1..size.columns).map(|n| if n % 2 == 0 { n.to_string() } else { "NULL".into() }).collect();
    let columns = columns.join(", ");
    for table in ["wide", "wide_full"] {
        case.at_source(&format!("INSERT INTO {table} SELECT i, {columns} FROM generate_series(1, 3) i")).await;
    }
    let last = size.partitions * 10 - 1;
    case.at_source(&format!("INSERT INTO root SELECT i, 'copied' FROM generate_series(0, {last}) i")).await;

    let mut times = Vec::new();
    println!("PostgreSQL {major}, {} tables, {} columns, {} partitions", size.tables, size.columns, size.partitions);
    timed("first start and copy", &mut times, case.drain()).await;
    let changes = [
        "UPDATE small_1 SET v = 'changed'; INSERT INTO small_2 VALUES (2, 'new'); DELETE FROM small_3".to_owned(),
        "UPDATE wide SET c1 = 7, id = -id WHERE id = 1; DELETE FROM wide WHERE id = 2".to_owned(),
        "UPDATE wide_full SET c1 = 7 WHERE id = 1; DELETE FROM wide_full WHERE id = 2".to_owned(),
        format!("INSERT INTO wide SELECT i, {columns} FROM generate_series(10, 20) i"),
        format!("INSERT INTO wide_full SELECT i, {columns} FROM generate_series(10, 20) i"),
        "UPDATE root SET v = 'changed' WHERE id % 10 = 3".to_owned(),
        format!("DELETE FROM root WHERE id IN (0, {last}); UPDATE root SET id = {last} WHERE id = 1"),
    ];
    for change in &changes {
        case.at_source(change).await;
    }
    timed("second start and stream", &mut times, case.drain()).await;
    let status = timed("status", &mut times, case.status()).await;
    assert_eq!(status["doing"], "not_running", "{status:#}");
    let verified = timed("verify", &mut times, case.output(&["verify"])).await;
    assert_eq!(verified.status.code(), Some(0), "{}", said(&verified));
    for table in ["small_1", "small_2", "small_3", "small_4", "wide", "wide_full", "root"] {
        case.assert_same(&format!("SELECT * FROM {table} ORDER BY id")).await;
    }
    // Beside it, how long a change takes to arrive while the flow runs.
    let run = case.start();
    let streams = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'pgonce_large' AND active";
    eventually("it streams", || async { number(&case.source, streams).await == 1 }).await;
    let wanted = "SELECT * FROM small_5 ORDER BY id";
    let arrived = async {
        case.at_source("INSERT INTO small_5 VALUES (5, 'five')").await;
        case.catch_up(wanted).await;
    };
    timed("one change", &mut times, arrived).await;
    let status = timed("status of a running flow", &mut times, case.status()).await;
    assert_eq!(status["doing"], "streaming", "{status:#}");
    run.end().await;
    times
}

fn assert_within(times: &[(String, Duration)], limits: &[(&str, u64)]) {
    for (what, seconds) in limits {
        let time = times.iter().find(|(timed, _)| timed == what).map(|(_, time)| *time);
        assert!(time.is_some_and(|time| time < Duration::from_secs(*seconds)), "{what}: {time:?}, at most {seconds} s");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_catalog_stays_usable() {
    // The oldest that is selected: the other test takes the newest.
    let times = usable(majors().unwrap()[0], &SMALLER).await;
    assert_within(&times, &[("second start and stream", 60), ("status", 10), ("one change", 20)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "five thousand tables take minutes: make soak"]
async fn soak_five_thousand_tables_stay_usable() {
    for major in majors().unwrap() {
        let times = usable(major, &FULL).await;
        let limits =
            [("first start and copy", 1_800), ("second start and stream", 60), ("status", 20), ("one change", 30)];
        assert_within(&times, &limits);
    }
}
