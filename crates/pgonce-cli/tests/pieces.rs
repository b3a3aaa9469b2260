//! Tables that are copied in pieces: how they are cut, in which format they go, and what a kill, a lost snapshot and
//! changes that cross the pieces leave behind. Faults A7, A15, B7, D1, D2, D3, D5, E4.

mod common;
mod pair;

use common::{WAITING_FOR_A_LOCK, eventually, number, said, text};
use pair::{Case, Running};
use pgonce_testkit::{KillCount, majors, witness};

/// So small that a few hundred rows are many pieces.
const SMALL: (&str, &str) = ("PGONCE_PIECE_BYTES", "16384");

async fn case(major: u32, name: &str, jobs: &'static str) -> Case {
    let mut case = Case::new(major, name).await.with(&["--jobs", jobs]);
    case.environment.push(SMALL);
    case
}

/// The pieces of a table in the ledger: kind, number, and how many of them have been copied.
async fn pieces(case: &Case, table: &str) -> String {
    let sql = format!(
        "SELECT min(kind) || ' ' || count(*) || ' ' || count(boundary) FROM pgonce.snapshot
         WHERE table_name = '{table}'"
    );
    text(&case.target, &sql).await
}

async fn boundaries(case: &Case, table: &str) -> i64 {
    let sql = format!("SELECT count(DISTINCT boundary) FROM pgonce.snapshot WHERE table_name = '{table}'");
    number(&case.target, &sql).await
}

/// Makes the piece that holds a row of `t` wait, in the middle of its copy, for an advisory lock.
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

async fn release(case: &Case, table: &str) {
    case.at_target(&format!("SELECT pg_advisory_unlock(7); DROP TRIGGER hold ON {table}")).await;
}

async fn gone(case: &Case) {
    let sessions = "SELECT count(*) FROM pg_stat_activity
        WHERE application_name LIKE 'pgonce%' AND datname = current_database()";
    eventually("the dead sessions are gone", || async { number(&case.target, sessions).await == 0 }).await;
}

async fn no_leftovers(case: &Case) {
    let slots = format!(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND slot_name <> 'pgonce_{}'",
        case.name
    );
    eventually("no temporary slot is left", || async { number(&case.source, &slots).await == 0 }).await;
    let unfinished = "SELECT count(*) FROM pgonce.snapshot WHERE boundary IS NULL";
    assert_eq!(number(&case.target, unfinished).await, 0, "no piece is left");
}

async fn kill(case: &Case, run: Running) {
    let mut kills = KillCount::at_least(1);
    kills.record(run.kill());
    gone(case).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_are_cut_by_their_key_or_their_blocks_and_go_in_binary_where_both_sides_have_the_types() {
    for major in majors().unwrap() {
        let case = case(major, "cut", "4").await;
        case.both(
            "CREATE EXTENSION pg_stat_statements;
             CREATE TYPE colour AS ENUM ('red', 'green');
             CREATE DOMAIN small AS int CHECK (VALUE < 100000);
             CREATE TABLE by_int (id int PRIMARY KEY, n small, c colour, b text);
             CREATE TABLE by_uuid (id uuid PRIMARY KEY, b text);
             CREATE TABLE by_text (id text PRIMARY KEY, b text);
             CREATE TABLE keyless (n int, b text); ALTER TABLE keyless REPLICA IDENTITY FULL;
             CREATE TABLE scattered (id uuid PRIMARY KEY, b text);
             CREATE TABLE few (id int PRIMARY KEY, b text);
             CREATE TABLE part (id bigint PRIMARY KEY, b text) PARTITION BY RANGE (id);
             CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (MINVALUE) TO (200);
             CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (200) TO (MAXVALUE)",
        )
        .await;
        case.at_source("CREATE TABLE other (id int PRIMARY KEY, m money, b text)").await;
        case.at_target("CREATE TABLE other (id bigint PRIMARY KEY, m money, b text)").await;
        case.at_source(
            "INSERT INTO by_int SELECT i, i, CASE i % 2 WHEN 0 THEN 'red' ELSE 'green' END::colour, repeat('x', 200)
                 FROM generate_series(-200, 200) i;
             INSERT INTO by_uuid SELECT lpad(to_hex(i), 32, '0')::uuid, repeat('x', 200) FROM generate_series(1, 400) i;
             INSERT INTO by_text SELECT 'k' || i, repeat('x', 200) FROM generate_series(1, 400) i;
             INSERT INTO keyless SELECT i % 7, repeat('x', 200) FROM generate_series(1, 400) i;
             INSERT INTO scattered SELECT md5(i::text)::uuid, repeat('x', 200) FROM generate_series(1, 400) i;
             INSERT INTO few SELECT i, 'x' FROM generate_series(1, 10) i;
             INSERT INTO part SELECT i, repeat('x', 200) FROM generate_series(1, 400) i;
             INSERT INTO other SELECT i, i, repeat('x', 200) FROM generate_series(1, 400) i;
             SELECT pg_stat_statements_reset()",
        )
        .await;
        // Nobody has analyzed them.
        let drained = case.start();
        let phase = "SELECT count(*) FROM pgonce.flow WHERE phase = 'streaming'";
        eventually("it streams", || async { number(&case.target, phase).await == 1 }).await;
        for (table, kind, least) in [
            ("by_int", "key", 4),
            ("by_uuid", "key", 4),
            ("by_text", "ctid", 4),
            ("keyless", "ctid", 4),
            ("scattered", "ctid", 4),
            ("few", "whole", 1),
            ("part", "key", 4),
            ("other", "key", 4),
        ] {
            let found = pieces(&case, table).await;
            let words: Vec<&str> = found.split(' ').collect();
            let (count, copied): (i32, i32) = (words[1].parse().unwrap(), words[2].parse().unwrap());
            assert!(words[0] == kind && count >= least && count == copied, "{table}: {found}, PostgreSQL {major}");
        }
        let formats = "SELECT (query LIKE '%\"public\".\"' || t || '\"%')::text || (query LIKE '%binary%')::text
            FROM unnest(ARRAY['by_int', 'other']) t, pg_stat_statements
            WHERE query LIKE 'COPY%' AND query LIKE '%\"public\".\"' || t || '\"%' GROUP BY t, 1 ORDER BY t";
        assert_eq!(common::Flow::rows(&case.source, formats).await, ["(truetrue)", "(truefalse)"]);
        drained.end().await;
        for table in ["by_int", "by_uuid", "by_text", "keyless", "scattered", "few", "part", "other"] {
            let rows = case.assert_same(&format!("SELECT * FROM {table} ORDER BY 1, 2")).await;
            assert!(rows.len() >= 10, "{table}");
        }
        no_leftovers(&case).await;
        // Once the boundaries are passed, only the watermark remains.
        case.at_source("INSERT INTO few VALUES (99, 'later')").await;
        case.drain().await;
        case.drain().await;
        assert_eq!(pieces(&case, "by_int").await, "whole 1 1");
        case.assert_same("SELECT * FROM few ORDER BY 1").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d3_a7_kills_between_ranges_and_changes_across_them_lose_nothing_and_resurrect_nothing() {
    for major in majors().unwrap() {
        let case = case(major, "across", "1").await;
        case.both(
            "CREATE TABLE t (id int PRIMARY KEY, n int, b text);
             ALTER TABLE t ALTER b SET STORAGE EXTERNAL",
        )
        .await;
        case.at_source("INSERT INTO t SELECT i, i, repeat('x', 200) FROM generate_series(1, 600) i").await;
        witness::create(&case.source).await.unwrap();
        witness::create_target(&case.target).await.unwrap();
        let change = |n: i32| {
            format!(
                "BEGIN; INSERT INTO witness_log VALUES (nextval('witness_number'), 0);
                 UPDATE witness_mirror SET counter = counter + 1 WHERE id = 1 + {n} % 16;
                 UPDATE t SET n = n + 1 WHERE id % 10 = {n} % 10; COMMIT;
                 -- Across ranges: up, down, and into what was emptied.
                 UPDATE t SET id = 10000 + id WHERE id = 5 + {n};
                 UPDATE t SET id = -id WHERE id = 590 - {n};
                 DELETE FROM t WHERE id IN (40 + {n}, 300 + {n}, 540 + {n});
                 INSERT INTO t VALUES (40 + {n}, -1, 'new'), (300 + {n}, -1, 'new'), (540 + {n}, -1, 'new')"
            )
        };
        // A kill in the first, in a middle and in the last range; changes before, between and after.
        for (n, held_key) in [(0, 20), (1, 310), (2, 700_000)] {
            hold_at(&case, "t", &format!("NEW.id >= {held_key}")).await;
            case.at_source(&change(4 * n)).await;
            if n == 2 {
                case.at_source("INSERT INTO t VALUES (700001, 0, 'last')").await;
            }
            let run = case.start();
            held(&case).await;
            case.at_source(&change(4 * n + 1)).await;
            kill(&case, run).await;
            case.at_source(&change(4 * n + 2)).await;
            release(&case, "t").await;
        }
        assert!(boundaries(&case, "t").await >= 2, "each attempt has its own consistent point");
        let run = case.start();
        case.at_source(&change(30)).await;
        case.catch_up("SELECT * FROM t ORDER BY id").await;
        run.end().await;
        case.at_source(&change(31)).await;
        case.drain().await;
        case.assert_same("SELECT * FROM t ORDER BY id").await;
        witness::compare(&case.source, &case.target).await.unwrap().assert_clean();
        no_leftovers(&case).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d3_a_truncate_between_ranges_empties_those_that_were_copied_before_it() {
    for major in majors().unwrap() {
        let case = case(major, "emptied", "1").await;
        case.both("CREATE TABLE t (id int PRIMARY KEY, b text); CREATE TABLE u (id int PRIMARY KEY REFERENCES t)")
            .await;
        let rows = |from: i32| format!("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series({from}, 600) i");
        case.at_source(&rows(1)).await;
        case.at_source("INSERT INTO u VALUES (1), (2)").await;
        hold_at(&case, "t", "NEW.id = 300").await;
        let run = case.start();
        held(&case).await;
        kill(&case, run).await;
        case.at_source(&format!("TRUNCATE t, u; {}; INSERT INTO u VALUES (7)", rows(5))).await;
        release(&case, "t").await;
        hold_at(&case, "t", "NEW.id = 580").await;
        let run = case.start();
        held(&case).await;
        kill(&case, run).await;
        release(&case, "t").await;
        let sql = "SELECT count(DISTINCT boundary) FROM pgonce.snapshot WHERE table_name = 't'";
        assert_eq!(number(&case.target, sql).await, 2);
        case.at_source("UPDATE t SET b = 'short' WHERE id % 7 = 0; INSERT INTO u VALUES (8)").await;
        case.drain().await;
        case.assert_same("SELECT * FROM t ORDER BY id").await;
        case.assert_same("SELECT * FROM u ORDER BY id").await;
        no_leftovers(&case).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a7_a_kill_among_ranges_of_blocks_or_beside_another_unique_key_copies_that_table_anew_and_the_rest_stays() {
    for major in majors().unwrap() {
        for (name, table) in [
            ("anew_keyless", "CREATE TABLE t (n int, email text, b text); ALTER TABLE t REPLICA IDENTITY FULL"),
            ("anew_unique", "CREATE TABLE t (n int PRIMARY KEY, email text UNIQUE, b text)"),
        ] {
            let case = case(major, name, "1").await;
            case.both(&format!("{table}; CREATE TABLE ranges (id int PRIMARY KEY, b text)")).await;
            case.at_source(
                "INSERT INTO ranges SELECT i, repeat('x', 200) FROM generate_series(1, 400) i;
                 INSERT INTO t SELECT i, 'e' || i, repeat('x', 200) FROM generate_series(1, 600) i",
            )
            .await;
            hold_at(&case, "t", "NEW.n = 300").await;
            let run = case.start();
            held(&case).await;
            let copied = "SELECT piece FROM pgonce.snapshot WHERE table_name = 't' AND boundary IS NOT NULL";
            // Where all of it had been copied, its pieces are one by now.
            let others =
                "SELECT DISTINCT boundary FROM pgonce.snapshot WHERE table_name <> 't' AND boundary IS NOT NULL";
            let (some, before) = (case.there(copied).await, case.there(others).await);
            assert!(!some.is_empty(), "a part of it was copied");
            kill(&case, run).await;
            // A value goes from one range to another.
            case.at_source(
                "DELETE FROM t WHERE n = 3; INSERT INTO t VALUES (999, 'e3', 'moved');
                 UPDATE t SET b = 'changed' WHERE n = 7; DELETE FROM t WHERE n = 8",
            )
            .await;
            release(&case, "t").await;
            let run = case.start();
            case.catch_up("SELECT * FROM t ORDER BY 1, 2").await;
            run.end().await;
            assert_eq!(boundaries(&case, "t").await, 1, "all of it in one snapshot");
            let kept = case.there(others).await;
            assert!(before.iter().all(|boundary| kept.contains(boundary)), "{before:?} of {kept:?}");
            case.at_source("INSERT INTO t VALUES (1007, NULL, 'again')").await;
            case.drain().await;
            case.assert_same("SELECT * FROM t ORDER BY 1, 2").await;
            case.assert_same("SELECT * FROM ranges ORDER BY 1, 2").await;
            no_leftovers(&case).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d1_a_snapshot_that_is_lost_half_way_costs_what_was_not_copied() {
    for major in majors().unwrap() {
        let case = case(major, "lost", "1").await;
        case.both("CREATE TABLE t (id int PRIMARY KEY, b text); CREATE TABLE u (id int PRIMARY KEY, b text)").await;
        case.at_source(
            "INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 600) i; INSERT INTO u VALUES (1)",
        )
        .await;
        hold_at(&case, "t", "NEW.id = 300").await;
        let run = case.start();
        held(&case).await;
        let copied = number(&case.target, "SELECT count(boundary) FROM pgonce.snapshot").await;
        assert!(copied > 0);
        // The session that reads the snapshot, and the one that exported it.
        case.at_source("UPDATE t SET b = 'changed' WHERE id % 3 = 0").await;
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name LIKE 'pgonce%' AND pid <> pg_backend_pid()";
        assert!(number(&case.source, sql).await >= 2);
        case.at_target("SELECT pg_advisory_unlock(7); DROP TRIGGER hold ON t").await;
        case.catch_up("SELECT * FROM t ORDER BY id").await;
        case.catch_up("SELECT * FROM u ORDER BY id").await;
        assert_eq!(boundaries(&case, "t").await, 2, "{}", case.log());
        run.end().await;
        no_leftovers(&case).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b7_a_replica_identity_that_is_swapped_between_ranges_is_noticed() {
    for major in majors().unwrap() {
        let case = case(major, "swapped", "1").await;
        case.both(
            "CREATE TABLE t (id int PRIMARY KEY, other int NOT NULL, b text);
             CREATE UNIQUE INDEX t_other ON t (other, id)",
        )
        .await;
        case.at_source("INSERT INTO t SELECT i, i, repeat('x', 200) FROM generate_series(1, 600) i").await;
        hold_at(&case, "t", "NEW.id = 300").await;
        let run = case.start();
        held(&case).await;
        kill(&case, run).await;
        release(&case, "t").await;
        // The ranges' column is in the new identity, if not in the first place.
        case.at_source("ALTER TABLE t REPLICA IDENTITY USING INDEX t_other; UPDATE t SET id = 10000 + id WHERE id < 4")
            .await;
        case.drain().await;
        case.assert_same("SELECT * FROM t ORDER BY id").await;
        no_leftovers(&case).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d5_a_filled_table_and_one_that_another_flow_copies_into_are_refused_by_name() {
    for major in majors().unwrap() {
        let case = case(major, "taken", "1").await;
        case.both("CREATE TABLE t (id int PRIMARY KEY, b text)").await;
        case.at_source("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 600) i").await;
        hold_at(&case, "t", "NEW.id >= 1").await;
        let run = case.start();
        held(&case).await;
        // Another flow between the same databases.
        let mut other = std::process::Command::new(env!("CARGO_BIN_EXE_pgonce"));
        let folder = tempfile::tempdir().unwrap();
        other.args(["run", "--until", "now", "--flow", "second", "--source", &case.source_url]).args([
            "--target",
            &case.target_url,
            "--tables",
            "public.t",
            "--data-dir",
        ]);
        other.arg(folder.path()).env(SMALL.0, SMALL.1);
        let output = tokio::task::spawn_blocking(move || other.output().unwrap()).await.unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(8), "{said}");
        assert!(said.contains("flow taken is copying into table \"public\".\"t\"") && said.contains("reset"), "{said}");
        case.at_source("SELECT pg_drop_replication_slot('pgonce_second')").await;
        kill(&case, run).await;
        release(&case, "t").await;
        case.at_target("INSERT INTO t VALUES (3, 'mine')").await;
        let refused = case.refused("schema_mismatch", 8).await;
        assert!(refused.contains("23505") && refused.contains("public.t"), "{refused}");
        case.at_target("DELETE FROM t WHERE b = 'mine'").await;
        case.drain().await;
        case.assert_same("SELECT * FROM t ORDER BY id").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_in_pieces_is_told_table_by_table_while_it_goes_on() {
    for major in majors().unwrap() {
        let mut case = case(major, "told", "1").await;
        case.environment.push(("PGONCE_PROGRESS_SECONDS", "0.1"));
        case.both("CREATE TABLE t (id int PRIMARY KEY, b text); CREATE TABLE u (id int PRIMARY KEY)").await;
        case.at_source("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 600) i").await;
        hold_at(&case, "t", "NEW.id = 300").await;
        let run = case.start_with(&["--format", "json"]);
        held(&case).await;
        let status = case.status().await;
        let copying = &status["target"]["copying"];
        assert_eq!(copying[0]["table"], "public.t", "{status:#}");
        let number = |of: &serde_json::Value, key: &str| of[key].as_u64().unwrap_or_else(|| panic!("{key}: {of:#}"));
        let (copied, all) = (number(&copying[0], "pieces_copied"), number(&copying[0], "pieces"));
        assert!(copied > 0 && copied < all && number(&copying[0], "rows") > 0, "{status:#}");
        assert!(number(&copying[0], "source_bytes_done") < number(&copying[0], "source_bytes"), "{status:#}");
        assert!(status["target"]["copy_seconds_left"].is_u64(), "{status:#}");
        let told = || case.log().contains("\"event\":\"progress\"");
        eventually("it is told", || async { told() }).await;
        release(&case, "t").await;
        case.catch_up("SELECT * FROM t ORDER BY id").await;
        run.end().await;
        let events: Vec<serde_json::Value> =
            case.log().lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let told = events.iter().filter(|event| event["event"] == "progress" && event["phase"] == "copying");
        let told: Vec<&serde_json::Value> = told.filter(|event| event["copy"]["tables"][0]["pieces"] == all).collect();
        assert!(!told.is_empty(), "{}", case.log());
        assert!(told.iter().all(|event| event["copy"]["source_bytes"].as_u64() > Some(0)), "{told:?}");
        case.drain().await;
        let after = case.status().await;
        assert_eq!(after["target"]["copying"], serde_json::json!([]), "{after:#}");
    }
}
