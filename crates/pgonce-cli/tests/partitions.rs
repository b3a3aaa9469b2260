//! Partition trees on both sides, names that differ, and what comes over partitions while a flow runs. Fault H1.

mod common;
mod pair;

use common::{eventually, said};
use pair::Case;
use pgonce_testkit::majors;

/// A tree of two levels, with a default partition, with columns in another order and with dropped ones.
const TREE: &str = "
    CREATE TABLE p (id int, k text, gone int, v text, PRIMARY KEY (id, k)) PARTITION BY RANGE (id);
    ALTER TABLE p DROP gone; ALTER TABLE p ALTER v SET STORAGE EXTERNAL;
    CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (10);
    CREATE TABLE p_2 (v text, x int, k text NOT NULL, id int NOT NULL) PARTITION BY LIST (k);
    ALTER TABLE p_2 DROP x; ALTER TABLE p ATTACH PARTITION p_2 FOR VALUES FROM (10) TO (20);
    CREATE TABLE p_2_a PARTITION OF p_2 FOR VALUES IN ('a');
    CREATE TABLE p_2_b (k text NOT NULL, v text, y int, id int NOT NULL); ALTER TABLE p_2_b DROP y;
    ALTER TABLE p_2 ATTACH PARTITION p_2_b DEFAULT;
    CREATE TABLE p_d PARTITION OF p DEFAULT";

const KEYLESS: &str = "
    ALTER TABLE p DROP CONSTRAINT p_pkey; ALTER TABLE p REPLICA IDENTITY FULL; ALTER TABLE p_1 REPLICA IDENTITY FULL;
    ALTER TABLE p_2_a REPLICA IDENTITY FULL; ALTER TABLE p_2_b REPLICA IDENTITY FULL;
    ALTER TABLE p_d REPLICA IDENTITY FULL";

const PLAIN: &str = "CREATE TABLE p (k text, v text, id int, PRIMARY KEY (id, k))";

const HASHED: &str = "CREATE TABLE p (k text, id int, v text, PRIMARY KEY (id, k)) PARTITION BY HASH (id);
    CREATE TABLE h_1 PARTITION OF p FOR VALUES WITH (MODULUS 2, REMAINDER 0);
    CREATE TABLE h_2 PARTITION OF p FOR VALUES WITH (MODULUS 2, REMAINDER 1)";

const FILL: &str = "INSERT INTO p SELECT i, CASE i % 3 WHEN 0 THEN 'a' ELSE 'b' END, repeat('x', 3000)
                    FROM generate_series(0, 29) i";

/// Rows that move from partition to partition, runs of rows over all of them, values that are not sent.
const CHANGES: [&str; 6] = [
    "UPDATE p SET v = 'changed' WHERE id % 4 = 0",
    "DELETE FROM p WHERE id IN (5, 11, 12, 15, 27)",
    "UPDATE p SET id = id + 10 WHERE id IN (1, 2, 25)",
    "UPDATE p SET k = 'c' WHERE k = 'a' AND id IN (0, 3, 18); UPDATE p SET id = 9 - id WHERE id IN (0, 3)",
    "INSERT INTO p SELECT i, 'a', 'run' FROM generate_series(100, 110) i; UPDATE p SET id = id - 95 WHERE id > 105",
    "BEGIN; INSERT INTO p VALUES (8, 'z', 'z'); UPDATE p SET id = 18 WHERE k = 'z'; DELETE FROM p WHERE k = 'z'; END",
];

async fn verified(case: &Case) {
    let output = case.output(&["verify"]).await;
    let said = said(&output);
    assert_eq!(output.status.code(), Some(0), "{}, PostgreSQL {}: {said}", case.name, case.major);
    assert!(said.contains("converged"), "{said}");
}

async fn warnings(case: &Case) -> String {
    let status = case.status().await;
    status["target"]["warnings"].as_array().unwrap().iter().map(|w| w.as_str().unwrap()).collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h1_trees_go_where_the_target_has_its_tables_however_those_are_partitioned() {
    for major in majors().unwrap() {
        let apart = "CREATE TABLE archive (id int, v text, k text) PARTITION BY LIST (k);
                     CREATE TABLE archive_c PARTITION OF archive FOR VALUES IN ('c');
                     CREATE TABLE archive_d PARTITION OF archive DEFAULT";
        let keyless = format!("{TREE}; {KEYLESS}");
        let moved = format!("CREATE SCHEMA app; SET search_path = app; {TREE}; RESET search_path");
        let (all, there_all) = ("SELECT id, k, v FROM p ORDER BY 1, 2, 3", "SELECT id, k, v FROM {} ORDER BY 1, 2, 3");
        for (name, source, target, table, arguments) in [
            ("trees_same", TREE, TREE, "p", &[][..]),
            ("trees_hashed", TREE, HASHED, "p", &[]),
            ("trees_plain", TREE, PLAIN, "p", &[]),
            ("trees_keyless", &keyless, TREE, "p", &[]),
            ("trees_apart", &keyless, apart, "archive", &["--map", "public.p=public.archive"]),
            ("trees_leaves", TREE, &moved, "app.p", &["--map", "public=app", "--publication", "leaves"]),
            ("trees_full_leaves", &keyless, &moved, "app.p", &["--map", "public=app", "--publication", "leaves"]),
            ("trees_of_plain", PLAIN, HASHED, "p", &[]),
            ("trees_of_plain_2", PLAIN, TREE, "p", &[]),
        ] {
            let case = Case::new(major, name).await.with(arguments);
            case.at_source(source).await;
            case.at_target(target).await;
            if arguments.contains(&"leaves") {
                case.at_source("CREATE PUBLICATION leaves FOR TABLE p").await;
            }
            let there_all = there_all.replace("{}", table);
            let same = async || {
                let here: Vec<String> = common::Flow::rows(&case.source, all).await;
                assert_eq!(here, case.there(&there_all).await, "{name}, PostgreSQL {major}");
                here.len()
            };
            let fill = if source == PLAIN { FILL.replace("INTO p", "INTO p (id, k, v)") } else { FILL.to_owned() };
            case.at_source(&fill).await;
            case.drain().await;
            assert_eq!(same().await, 30);
            for change in CHANGES {
                case.at_source(&change.replace("INTO p ", "INTO p (id, k, v) ")).await;
            }
            case.drain().await;
            assert!(same().await > 30);
            verified(&case).await;
            case.at_source("TRUNCATE p; INSERT INTO p (id, k, v) VALUES (1, 'a', 'last')").await;
            let said = case.drain().await;
            assert_eq!(same().await, 1);
            assert!(!said.contains("warning: partition"), "{said}");
            verified(&case).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_map_names_the_targets_tables_and_stays_as_it_was() {
    for major in majors().unwrap() {
        let case = Case::new(major, "map").await;
        case.at_source(
            "CREATE SCHEMA \"My.Schema\"; CREATE TABLE \"My.Schema\".\"T\" (id int PRIMARY KEY, n smallint);
             CREATE TABLE u (id int PRIMARY KEY, n int); CREATE TABLE own (id int PRIMARY KEY);
             CREATE TABLE v (id int PRIMARY KEY); INSERT INTO \"My.Schema\".\"T\" VALUES (1, 1);
             INSERT INTO u VALUES (1, 1); INSERT INTO v VALUES (1)",
        )
        .await;
        // A table of the source's name is there too, and is not touched.
        case.at_target(
            "CREATE SCHEMA app; CREATE TABLE app.\"a\"\"b\" (n smallint, id int PRIMARY KEY);
             CREATE TABLE app.u (id int PRIMARY KEY, n int); CREATE TABLE u (id int PRIMARY KEY, n int);
             INSERT INTO u VALUES (99, 99); CREATE TABLE app.own (id int PRIMARY KEY)",
        )
        .await;
        let mut case = case.with(&["--map", r#""My.Schema"."T"=app."a""b""#, "--map", "public=app"]);
        let said = case.refused("schema_mismatch", 8).await;
        assert!(
            said.contains("table public.v ") && said.contains("into app.v") && said.contains(r#""app"."v""#),
            "{said}"
        );
        case.at_target("CREATE TABLE app.v (id int PRIMARY KEY)").await;
        case.drain().await;
        case.at_source(
            "UPDATE \"My.Schema\".\"T\" SET n = 2; INSERT INTO u SELECT i, i FROM generate_series(2, 9) i;
             DELETE FROM u WHERE id = 1; TRUNCATE v; INSERT INTO v VALUES (7)",
        )
        .await;
        case.drain().await;
        assert_eq!(case.there("SELECT id, n FROM app.\"a\"\"b\"").await, ["(1,2)"]);
        assert_eq!(case.there("SELECT count(*), min(id) FROM app.u").await, ["(8,2)"]);
        assert_eq!(case.there("SELECT id FROM app.v").await, ["(7)"]);
        assert_eq!(case.there("SELECT * FROM public.u").await, ["(99,99)"]);
        verified(&case).await;
        let output = case.output(&["verify"]).await;
        let verify = common::said(&output);
        assert!(verify.contains("public.u -> app.u") && verify.contains("public.u\n"), "{verify}");
        case.at_target("UPDATE app.u SET n = 0 WHERE id = 2; DELETE FROM app.v").await;
        assert_eq!(case.output(&["verify"]).await.status.code(), Some(1));
        case.at_source("DELETE FROM v").await;
        let said = case.refused("row_conflict", 7).await;
        assert!(said.contains("app.v (public.v on the source)"), "{said}");
        case.at_target("INSERT INTO app.v VALUES (7)").await;
        case.drain().await;
        assert!(case.status().await["target"]["map"][0] == "public -> app");
        // Another map, and none, are refused, and what changed is named. So is a comparison by it.
        let kept = std::mem::take(&mut case.arguments);
        for arguments in [&[][..], &["--map", "public=app", "--map", "public.u=app.other"]] {
            case.arguments = arguments.iter().map(|a| (*a).to_owned()).collect();
            for _ in 0..2 {
                let said = case.refused("map_changed", 2).await;
                assert!(said.contains(r#"missing is "My.Schema"."T" -> app."a""b""#), "{said}");
                assert_eq!(said.contains("new is public.u -> app.other"), !arguments.is_empty(), "{said}");
            }
            assert_eq!(case.output(&["verify"]).await.status.code(), Some(2));
        }
        case.arguments = kept;
        case.drain().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_tables_do_not_go_into_one() {
    for major in majors().unwrap() {
        for (name, start) in [("two_copied", "snapshot"), ("two_forward", "go-forward")] {
            let case = Case::new(major, name).await.with(&["--start", start, "--map", "public.a=public.b"]);
            case.both("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)").await;
            for _ in 0..2 {
                let said = case.refused("schema_mismatch", 8).await;
                assert!(said.contains("public.b on the target is where public.a goes too"), "{said}");
            }
            // Nothing was made that keeps WAL.
            let slot = format!("SELECT slot_name FROM pg_replication_slots WHERE slot_name = 'pgonce_{name}'");
            assert!(common::Flow::rows(&case.source, &slot).await.is_empty());
        }
        // One that came later is refused too, before a row of it is written.
        let case = Case::new(major, "two_later").await;
        let case = case.with(&["--start", "go-forward", "--map", "public.a=public.b", "--publication", "everything"]);
        case.both("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY)").await;
        case.at_target("CREATE TABLE b (id int PRIMARY KEY)").await;
        case.at_source("CREATE PUBLICATION everything FOR ALL TABLES").await;
        case.drain().await;
        let run = case.start();
        case.at_source("INSERT INTO a VALUES (1)").await;
        eventually("carried", || async { case.there("SELECT id FROM b").await == ["(1)"] }).await;
        case.at_source("CREATE TABLE b (id int PRIMARY KEY)").await;
        case.at_source("INSERT INTO b VALUES (2)").await;
        assert_eq!(run.ended().await, Some(8), "{}", case.log());
        assert!(case.log().contains("public.b on the target is where public.a goes too"), "{}", case.log());
        let said = case.refused("schema_mismatch", 8).await;
        assert!(said.contains("public.b on the target is where public.a goes too"), "{said}");
        assert_eq!(case.there("SELECT id FROM b").await, ["(1)"]);
    }
}

const MONTHS: &str = "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
    CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (10);
    CREATE TABLE p_2 PARTITION OF p FOR VALUES FROM (10) TO (20);
    CREATE TABLE p_3 PARTITION OF p FOR VALUES FROM (20) TO (30);
    INSERT INTO p SELECT i, 'first' FROM generate_series(0, 29) i";

const AHEAD: &str = "CREATE TABLE p (id int PRIMARY KEY, v text)";

const ALL: &str = "SELECT * FROM p ORDER BY id";

/// A flow from a partitioned table into a plain one that runs, and has copied.
async fn months(major: u32, name: &str) -> (Case, pair::Running) {
    let case = Case::new(major, name).await;
    case.at_source(MONTHS).await;
    case.at_target(AHEAD).await;
    case.drain().await;
    let run = case.start();
    case.at_source("INSERT INTO p VALUES (0, 'second') ON CONFLICT (id) DO UPDATE SET v = excluded.v").await;
    case.catch_up(ALL).await;
    (case, run)
}

async fn logged(case: &Case, text: &str) {
    eventually(text, || async { case.log().contains(text) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_made_while_the_flow_runs_are_carried_without_a_word() {
    for major in majors().unwrap() {
        let (case, run) = months(major, "made").await;
        case.at_source("CREATE TABLE p_4 PARTITION OF p FOR VALUES FROM (30) TO (40)").await;
        case.at_source("INSERT INTO p VALUES (31, 'after')").await;
        // Made, attached and filled by one transaction, in this order.
        case.at_source(
            "BEGIN; CREATE TABLE p_5 PARTITION OF p FOR VALUES FROM (40) TO (50); INSERT INTO p VALUES (41, 'in it');
             COMMIT",
        )
        .await;
        // As pg_partman makes them, and in steps, empty.
        case.at_source(
            "BEGIN; CREATE TABLE p_6 (LIKE p INCLUDING ALL);
             ALTER TABLE p ATTACH PARTITION p_6 FOR VALUES FROM (50) TO (60);
             INSERT INTO p VALUES (51, 'in it'); COMMIT",
        )
        .await;
        case.at_source("CREATE TABLE p_7 (LIKE p INCLUDING ALL)").await;
        case.at_source("ALTER TABLE p ATTACH PARTITION p_7 FOR VALUES FROM (60) TO (70)").await;
        case.at_source(
            "BEGIN; CREATE TABLE q (LIKE p INCLUDING ALL) PARTITION BY RANGE (id);
             CREATE TABLE q_1 PARTITION OF q FOR VALUES FROM (70) TO (75);
             ALTER TABLE p ATTACH PARTITION q FOR VALUES FROM (70) TO (80); INSERT INTO p VALUES (71, 'in it'); COMMIT",
        )
        .await;
        case.at_source("INSERT INTO p SELECT i, 'run' FROM generate_series(52, 59) i").await;
        case.catch_up(ALL).await;
        run.end().await;
        case.at_source(
            "BEGIN; CREATE TABLE p_8 PARTITION OF p FOR VALUES FROM (80) TO (90);
             INSERT INTO p SELECT i, 'while nobody looked' FROM generate_series(80, 89) i; COMMIT;
             UPDATE p SET v = 'again' WHERE id > 80; ALTER TABLE p_8 RENAME TO p_eight",
        )
        .await;
        let said = case.drain().await;
        case.assert_same(ALL).await;
        assert!(!said.contains("warning") && !case.log().contains("warning"), "{said}\n{}", case.log());
        assert_eq!(warnings(&case).await, "");
        verified(&case).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_attached_with_rows_is_named_until_it_is_mended() {
    for major in majors().unwrap() {
        let (case, run) = months(major, "attached").await;
        case.at_source(
            "CREATE TABLE p_4 (LIKE p INCLUDING ALL); INSERT INTO p_4 VALUES (31, 'before');
             ALTER TABLE p ATTACH PARTITION p_4 FOR VALUES FROM (30) TO (40); INSERT INTO p VALUES (32, 'after')",
        )
        .await;
        logged(&case, "partition public.p_4 was attached to public.p and may have held rows").await;
        // By one transaction: nothing but the rows tells.
        case.at_source(
            "BEGIN; CREATE TABLE p_5 (LIKE p INCLUDING ALL); INSERT INTO p_5 VALUES (41, 'before');
             ALTER TABLE p ATTACH PARTITION p_5 FOR VALUES FROM (40) TO (50); INSERT INTO p VALUES (42, 'after');
             COMMIT",
        )
        .await;
        logged(&case, "partitions public.p_4, public.p_5 were attached to public.p").await;
        eventually("carried", || async { case.there("SELECT id FROM p WHERE id > 29 ORDER BY 1").await.len() == 2 })
            .await;
        assert_eq!(case.there("SELECT id FROM p WHERE id > 29 ORDER BY 1").await, ["(32)", "(42)"]);
        run.end().await;
        // While the flow is down, and a level further down.
        case.at_source(
            "BEGIN; CREATE TABLE q (LIKE p INCLUDING ALL) PARTITION BY RANGE (id);
             CREATE TABLE q_1 PARTITION OF q FOR VALUES FROM (70) TO (75); INSERT INTO q VALUES (71, 'before');
             ALTER TABLE p ATTACH PARTITION q FOR VALUES FROM (70) TO (80); COMMIT",
        )
        .await;
        for _ in 0..2 {
            let said = case.drain().await;
            assert!(said.contains("warning: partitions public.p_4, public.p_5, public.q_1 were attached"), "{said}");
            assert!(said.contains("pgonce run --reseed public.p;") && said.contains("--mended public.p\n"), "{said}");
        }
        assert!(warnings(&case).await.contains("public.p_4, public.p_5, public.q_1 were attached"));
        assert_eq!(case.output(&["verify"]).await.status.code(), Some(1));
        case.at_target("INSERT INTO p VALUES (31, 'before'), (41, 'before'), (71, 'before')").await;
        verified(&case).await;
        let wrong = case.output(&["run", "--until", "now", "--mended", "public.none"]).await;
        assert!(wrong.status.code() == Some(2) && said(&wrong).contains("public.none"), "{}", said(&wrong));
        for (name, left) in [("public.p_4", "partitions public.p_5, public.q_1"), ("public.p", "")] {
            let output = case.output(&["run", "--until", "now", "--mended", name]).await;
            assert_eq!(output.status.code(), Some(0), "{}", said(&output));
            assert_eq!(said(&output).contains("warning"), !left.is_empty(), "{}", said(&output));
            assert!(warnings(&case).await.contains(left));
        }
        assert_eq!(warnings(&case).await, "");
        assert!(!case.drain().await.contains("warning"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_taken_out_or_dropped_stop_nothing_and_are_not_forgotten() {
    for major in majors().unwrap() {
        let (case, run) = months(major, "gone").await;
        case.at_source("ALTER TABLE p DETACH PARTITION p_1").await;
        logged(&case, "partition public.p_1 was detached from public.p").await;
        case.at_source("INSERT INTO p_1 VALUES (5, 'alone') ON CONFLICT (id) DO UPDATE SET v = 'alone'").await;
        // Came while the flow ran, and is dropped while it runs.
        case.at_source("CREATE TABLE p_4 PARTITION OF p FOR VALUES FROM (30) TO (40)").await;
        case.at_source("INSERT INTO p VALUES (31, 'of p_4')").await;
        eventually("carried", || async { case.there("SELECT v FROM p WHERE id = 31").await == ["(\"of p_4\")"] }).await;
        let known = "SELECT 1::bigint FROM pgonce.flow WHERE published LIKE '%partition public.p_4 of public.p%'";
        eventually("stored", || async { !case.there(known).await.is_empty() }).await;
        case.at_source("DROP TABLE p_4; UPDATE p SET v = 'goes on' WHERE id = 25").await;
        logged(&case, "partition public.p_4 of public.p was dropped").await;
        eventually("goes on", || async { case.there("SELECT v FROM p WHERE id = 25").await == ["(\"goes on\")"] })
            .await;
        run.end().await;
        case.at_source("ALTER TABLE p DETACH PARTITION p_2; DROP TABLE p_2").await;
        for _ in 0..2 {
            let said = case.drain().await;
            assert!(said.contains("partition public.p_1 was detached from public.p"), "{said}");
            assert!(said.contains("partitions public.p_2, public.p_4 of public.p were dropped"), "{said}");
        }
        let told = warnings(&case).await;
        assert!(told.contains("public.p_1 was detached") && told.contains("public.p_2, public.p_4 of"), "{told}");
        assert_eq!(case.output(&["verify"]).await.status.code(), Some(1));
        // The same on the target, and it is over.
        case.at_target("DELETE FROM p WHERE id < 20 OR id = 31").await;
        verified(&case).await;
        let output = case.output(&["run", "--until", "now", "--mended", "public.p"]).await;
        assert!(output.status.success() && !said(&output).contains("warning: partition"), "{}", said(&output));
        // Attached again it has rows that the target lacks.
        case.at_source("ALTER TABLE p ATTACH PARTITION p_1 FOR VALUES FROM (0) TO (10)").await;
        assert!(case.drain().await.contains("partition public.p_1 was attached to public.p"));
        let output = case.output(&["run", "--until", "now", "--mended", "public.p"]).await;
        assert!(output.status.success(), "{}", said(&output));
        // Out and in again between two looks, and written to in between.
        case.at_source(
            "ALTER TABLE p DETACH PARTITION p_1; UPDATE p_1 SET v = 'unseen' WHERE id = 3;
             ALTER TABLE p ATTACH PARTITION p_1 FOR VALUES FROM (0) TO (10)",
        )
        .await;
        assert!(case.drain().await.contains("partition public.p_1 was attached to public.p"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncated_partition_is_named_and_a_truncated_root_is_not() {
    for major in majors().unwrap() {
        let (case, run) = months(major, "truncated").await;
        case.at_source("TRUNCATE p; INSERT INTO p SELECT i, 'anew' FROM generate_series(0, 29) i").await;
        case.catch_up(ALL).await;
        case.at_source("TRUNCATE p_1; UPDATE p SET v = 'goes on' WHERE id = 25").await;
        logged(&case, "partition public.p_1 of public.p was truncated, or rewritten").await;
        eventually("goes on", || async { case.there("SELECT v FROM p WHERE id = 25").await == ["(\"goes on\")"] })
            .await;
        assert_eq!(case.there("SELECT count(*) FROM p").await, ["(30)"]);
        run.end().await;
        // All of them by name are not the root.
        case.at_source("TRUNCATE p; INSERT INTO p VALUES (1, 'x'), (11, 'x')").await;
        let said = case.drain().await;
        assert!(said.contains("partition public.p_1 of public.p was truncated") && !said.contains("p_2"), "{said}");
        case.assert_same(ALL).await;
        verified(&case).await;
        let output = case.output(&["run", "--until", "now", "--mended", "public.p"]).await;
        assert!(output.status.success() && !common::said(&output).contains("warning"), "{}", common::said(&output));
        assert!(!case.drain().await.contains("warning"));
        case.at_source("BEGIN; TRUNCATE p_1, p_2, p_3; INSERT INTO p VALUES (25, 'y'); COMMIT").await;
        for _ in 0..2 {
            let said = case.drain().await;
            let named = "partitions public.p_1, public.p_2, public.p_3 of public.p were truncated, or rewritten";
            assert!(said.contains(named) && said.contains("pgonce verify --table public.p."), "{said}");
        }
        assert!(warnings(&case).await.contains("were truncated, or rewritten"));
        let output = case.output(&["verify", "--table", "public.p"]).await;
        assert_eq!(output.status.code(), Some(1), "{}", common::said(&output));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaf_published_for_itself_and_detached_is_told_and_told_again_when_it_returns() {
    for major in majors().unwrap() {
        let case = Case::new(major, "leaf_gone").await.with(&["--publication", "leaves"]);
        case.at_source(&format!("{MONTHS}; CREATE PUBLICATION leaves FOR TABLE p")).await;
        case.at_target(MONTHS).await;
        case.at_target("TRUNCATE p").await;
        case.drain().await;
        let run = case.start();
        case.at_source("UPDATE p SET v = 'second' WHERE id = 1").await;
        case.catch_up(ALL).await;
        case.at_source("UPDATE p SET v = 'last' WHERE id = 2; ALTER TABLE p DETACH PARTITION p_1").await;
        logged(&case, "partition public.p_1 was detached from public.p").await;
        case.at_source("UPDATE p_1 SET v = 'alone' WHERE id = 3; UPDATE p SET v = 'goes on' WHERE id = 25").await;
        eventually("goes on", || async { case.there("SELECT v FROM p_3 WHERE id = 25").await == ["(\"goes on\")"] })
            .await;
        assert_eq!(case.there("SELECT v FROM p WHERE id IN (2, 3) ORDER BY id").await, ["(last)", "(first)"]);
        run.end().await;
        for _ in 0..2 {
            assert!(case.drain().await.contains("partition public.p_1 was detached from public.p"));
        }
        case.at_target("ALTER TABLE p DETACH PARTITION p_1").await;
        let output = case.output(&["run", "--until", "now", "--mended", "public.p_1"]).await;
        assert!(output.status.success() && !said(&output).contains("warning: partition"), "{}", said(&output));
        assert!(!case.drain().await.contains("warning"));
        case.both("ALTER TABLE p ATTACH PARTITION p_1 FOR VALUES FROM (0) TO (10)").await;
        case.at_source("UPDATE p SET v = 'carried again' WHERE id = 4").await;
        for _ in 0..2 {
            assert!(case.drain().await.contains("partition public.p_1 was attached to public.p"));
        }
        assert_eq!(case.there("SELECT v FROM p WHERE id = 4").await, ["(\"carried again\")"]);
        assert_eq!(case.output(&["verify"]).await.status.code(), Some(1));
        // Taken out of the publication it is another matter.
        case.at_source("ALTER PUBLICATION leaves SET TABLE p_2, p_3").await;
        case.refused("publication_changed", 6).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_may_read_the_root_alone_can_tell_new_partitions_apart_too() {
    for major in majors().unwrap() {
        let mut case = Case::new(major, "root_only").await.with(&["--publication", "root"]);
        case.at_source(MONTHS).await;
        case.at_target(AHEAD).await;
        case.at_source(
            "CREATE ROLE root_only LOGIN REPLICATION; GRANT SELECT ON p TO root_only;
             CREATE PUBLICATION root FOR TABLE p WITH (publish_via_partition_root = true)",
        )
        .await;
        case.source_url = case.source_url.replace("postgres@", "root_only@");
        case.drain().await;
        case.at_source(
            "BEGIN; CREATE TABLE p_4 PARTITION OF p FOR VALUES FROM (30) TO (40); INSERT INTO p VALUES (31, 'in it');
             COMMIT",
        )
        .await;
        let said = case.drain().await;
        assert!(!said.contains("warning"), "{said}");
        case.assert_same(ALL).await;
        case.at_source(
            "BEGIN; CREATE TABLE p_5 (LIKE p INCLUDING ALL); INSERT INTO p_5 VALUES (41, 'before');
             ALTER TABLE p ATTACH PARTITION p_5 FOR VALUES FROM (40) TO (50); COMMIT",
        )
        .await;
        let said = case.drain().await;
        assert!(said.contains("partition public.p_5 was attached to public.p"), "{said}");
    }
}
