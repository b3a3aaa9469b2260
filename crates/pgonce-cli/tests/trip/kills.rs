//! The initial copy, killed at random while others write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pgonce_testkit::{KillCount, Random, Workload, witness};
use tokio_postgres::Client;

use crate::common::text;
use crate::pair::Case;

/// Tables that take a while to copy: with a key, with two columns in the key, with none, and in partitions.
const BALLAST: &str = "
    CREATE TABLE heavy (id int PRIMARY KEY, n int, v text);
    CREATE TABLE \"Two; keys\" (a text, b bigint, n int, v text, PRIMARY KEY (a, b));
    CREATE TABLE bare (id int, n int, v text); ALTER TABLE bare REPLICA IDENTITY FULL; CREATE INDEX ON bare (id);
    CREATE TABLE cut (id int PRIMARY KEY, n int, v text) PARTITION BY HASH (id);
    CREATE TABLE cut_0 PARTITION OF cut FOR VALUES WITH (MODULUS 3, REMAINDER 0);
    CREATE TABLE cut_1 PARTITION OF cut FOR VALUES WITH (MODULUS 3, REMAINDER 1);
    CREATE TABLE cut_2 PARTITION OF cut FOR VALUES WITH (MODULUS 3, REMAINDER 2)";

const ROWS: u64 = 30_000;

const TABLES: [(&str, &str); 4] = [("heavy", "id"), ("\"Two; keys\"", "b"), ("bare", "id"), ("cut", "id")];

/// What was done to copies.
#[derive(Debug, serde::Serialize)]
pub struct Attempts {
    pub kills: u32,
    /// How often a copy was completed, and both sides compared.
    pub comparisons: u32,
}

/// Kills `pgonce run` `wanted` times while it copies, and compares both sides each time that a copy was completed, and
/// at the end.
pub async fn kills_of_the_copy(part: u64, major: u32, wanted: u32) -> Attempts {
    let case = Case::new(major, &format!("kills_{part}")).await.with(&["--jobs", "4"]);
    case.both(BALLAST).await;
    witness::create(&case.source).await.unwrap();
    witness::create_target(&case.target).await.unwrap();
    case.at_source(&format!(
        "INSERT INTO heavy SELECT i, 0, repeat(md5(i::text), 8) FROM generate_series(1, {ROWS}) i;
         INSERT INTO \"Two; keys\" SELECT 'k' || i % 7, i, 0, repeat(md5(i::text), 8) FROM generate_series(1, {ROWS}) i;
         INSERT INTO bare SELECT i % 20000, 0, md5((i % 20000)::text) FROM generate_series(1, {ROWS}) i;
         INSERT INTO cut SELECT i, 0, repeat(md5(i::text), 8) FROM generate_series(1, {ROWS}) i"
    ))
    .await;

    let mut random = Random::split(part, 300);
    let mut kills = KillCount::at_least(wanted);
    let mut comparisons = 0;
    while kills.count() < wanted {
        let load = Workload::new(random.below(1 << 32)).connections(2).pause(Duration::from_millis(4));
        let load = load.start(&case.source_url);
        let (writer, stop) = write(&case, random.below(1 << 32)).await;
        let mut copied = false;
        while kills.count() < wanted && !copied {
            let mut run = case.start();
            tokio::time::sleep(Duration::from_millis(60 + random.below(1_200))).await;
            run.assert_running(|| case.log());
            let killed = run.sigkill();
            // One that hit the stream is a kill too, but not one that is wanted here.
            match phase(&case).await.as_str() {
                "streaming" => copied = true,
                "copying" => kills.record(killed),
                _ => {}
            }
        }
        // With the writers, then without.
        case.drain().await;
        stop.store(true, Ordering::Relaxed);
        writer.await.unwrap();
        load.stop().await;
        case.drain().await;
        compare(&case).await;
        comparisons += 1;
        if kills.count() < wanted {
            anew(&case).await;
        }
    }
    case.clean_up().await;
    Attempts { kills: kills.count(), comparisons }
}

async fn phase(case: &Case) -> String {
    let there = text(&case.target, "SELECT to_regclass('pgonce.flow')::text").await;
    if there.is_empty() { there } else { text(&case.target, "SELECT max(phase) FROM pgonce.flow").await }
}

/// Writes into the tables that are copied, until told to stop.
async fn write(case: &Case, seed: u64) -> (tokio::task::JoinHandle<()>, Arc<AtomicBool>) {
    let client: Client = case.pair.source.connect(&case.name).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let mut random = Random::new(seed);
    let task = tokio::spawn(async move {
        while !told.load(Ordering::Relaxed) {
            let (table, key) = *random.pick(&TABLES);
            let (id, other) = (random.between(1, ROWS), random.between(1, ROWS));
            let sql = match random.below(10) {
                0..6 => format!("UPDATE {table} SET n = n + 1 WHERE {key} BETWEEN {id} AND {id} + 3"),
                6 => format!("DELETE FROM {table} WHERE {key} = {id}"),
                7 => format!(
                    "UPDATE {table} SET {key} = -{key} WHERE {key} = {id} AND NOT EXISTS
                              (SELECT FROM {table} x WHERE x.{key} = -{id})"
                ),
                8 => format!(
                    "BEGIN; DELETE FROM {table} WHERE {key} = {id}; UPDATE {table} SET v = 'x' WHERE {key} = {other};
                     ROLLBACK"
                ),
                _ if table.starts_with('"') => {
                    format!("INSERT INTO {table} VALUES ('new', {id}, 1, 'new') ON CONFLICT DO NOTHING")
                }
                _ => format!("INSERT INTO {table} VALUES ({id}, 1, 'new') ON CONFLICT DO NOTHING"),
            };
            client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
            tokio::time::sleep(Duration::from_millis(random.below(6))).await;
        }
    });
    (task, stop)
}

/// Both witnesses, and every row that was copied.
async fn compare(case: &Case) {
    witness::compare(&case.source, &case.target).await.unwrap().assert_clean();
    for (table, _) in TABLES {
        let rows = case
            .assert_same(&format!(
                "SELECT count(*), md5(string_agg(t::text, '' ORDER BY t::text COLLATE \"C\")) FROM {table} t"
            ))
            .await;
        assert!(!rows[0].starts_with("(0,"), "{table} has rows");
    }
}

/// The flow once more from the start, with what the source holds now.
async fn anew(case: &Case) {
    let output = case.output(&["reset", "--yes"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", crate::common::said(&output));
    let tables: Vec<&str> = TABLES.iter().map(|(table, _)| *table).collect();
    case.at_target(&format!("TRUNCATE {}, witness_log, witness_mirror", tables.join(", "))).await;
}
