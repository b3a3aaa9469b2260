//! Tables that differ, and tables that change while a flow runs. Faults D4, D5, G1 to G4, H1, H2.

mod common;
mod pair;

use pair::Case;
use pgonce_testkit::majors;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_column_added_at_the_source_stops_the_flow_until_the_target_has_it() {
    for major in majors().unwrap() {
        let case = Case::new(major, "g1").await;
        case.both("CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE other (id int PRIMARY KEY)").await;
        case.at_source("INSERT INTO t VALUES (1, 1), (2, 2)").await;
        case.drain().await;
        let run = case.start();
        case.at_source("INSERT INTO other VALUES (1)").await;
        case.catch_up("SELECT * FROM other").await;
        // Rows that were there get the default without a change of theirs.
        case.at_source(
            "BEGIN; INSERT INTO t VALUES (3, 3); ALTER TABLE t ADD COLUMN \"Z z\" varchar(7) DEFAULT 'dflt';
             INSERT INTO t VALUES (4, 4, 'new'); UPDATE t SET \"Z z\" = 'set' WHERE id = 1; COMMIT;",
        )
        .await;
        assert_eq!(run.ended().await, Some(8), "{}", case.log());
        case.at_source("INSERT INTO other VALUES (2)").await;
        let mut hint = String::new();
        for _ in 0..2 {
            let said = case.refused("schema_mismatch", 8).await;
            assert!(said.contains("table public.t ") && said.contains("no column \"Z z\""), "{said}");
            hint = said.lines().find_map(|line| line.split_once("On the target: ")).unwrap().1.to_owned();
            assert!(hint.contains("DEFAULT"), "rows that were there have the default: {hint}");
            assert_eq!(case.there("SELECT * FROM t ORDER BY id").await, ["(1,1)", "(2,2)"]);
            assert_eq!(case.there("SELECT * FROM other").await, ["(1)"]);
        }
        let alter = hint.split_once(';').unwrap().0;
        case.at_target(&format!("{alter} DEFAULT 'dflt'")).await;
        case.drain().await;
        let rows = case.assert_same("SELECT * FROM t ORDER BY id").await;
        assert_eq!(rows, ["(1,1,set)", "(2,2,dflt)", "(3,3,dflt)", "(4,4,new)"]);
        case.assert_same("SELECT * FROM other ORDER BY id").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_g3_a_column_is_noticed_without_memory_and_no_error_where_it_is_already() {
    for major in majors().unwrap() {
        let case = Case::new(major, "g2_g3").await;
        case.both("CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE u (id int PRIMARY KEY, n int)").await;
        case.drain().await;
        // Nobody has seen a row of the table before.
        case.at_source("ALTER TABLE t ADD z int").await;
        case.both("ALTER TABLE u ADD z numeric(6, 2)[]").await;
        case.at_source("INSERT INTO u VALUES (1, 1, '{1.10}')").await;
        case.drain().await;
        assert_eq!(case.assert_same("SELECT * FROM u").await, ["(1,1,{1.10})"]);
        case.at_source("INSERT INTO t VALUES (1, 1, 1)").await;
        let said = case.refused("schema_mismatch", 8).await;
        assert!(said.contains(r#"ALTER TABLE "public"."t" ADD COLUMN "z" int4"#), "{said}");
        case.at_target("ALTER TABLE t ADD z int").await;
        // Dropped, renamed and of another type, each made on the target before the flow meets it.
        case.at_source("ALTER TABLE t DROP n; INSERT INTO t VALUES (2, 2)").await;
        case.both("ALTER TABLE u RENAME n TO m; ALTER TABLE u ALTER m TYPE bigint").await;
        case.at_source("INSERT INTO u VALUES (2, 9999999999, NULL); UPDATE u SET id = 3 WHERE id = 1").await;
        case.drain().await;
        case.assert_same("SELECT id, z FROM t ORDER BY id").await;
        case.assert_same("SELECT * FROM u ORDER BY id").await;
        // Renamed at the source alone: an added column would be the wrong answer, and the hint says so.
        case.at_source("ALTER TABLE u RENAME m TO k; INSERT INTO u VALUES (4, 4, NULL)").await;
        let said = case.refused("schema_mismatch", 8).await;
        assert!(said.contains("no column \"k\"") && said.contains("renamed"), "{said}");
        case.at_target("ALTER TABLE u RENAME m TO k").await;
        case.drain().await;
        case.assert_same("SELECT * FROM u ORDER BY id").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g4_columns_go_by_name_and_what_the_target_has_more_keeps_its_default() {
    for major in majors().unwrap() {
        let case = Case::new(major, "g4").await;
        case.at_source("CREATE TABLE t (id int PRIMARY KEY, a text, dropped int, b text); ALTER TABLE t DROP dropped")
            .await;
        case.at_target(
            "CREATE TABLE t (own int DEFAULT 7, gone int, b text, own_null int, id int PRIMARY KEY, a text,
                             stamp int NOT NULL DEFAULT 1);
             ALTER TABLE t DROP gone",
        )
        .await;
        case.at_source("INSERT INTO t VALUES (1, 'a', 'b')").await;
        case.drain().await;
        case.at_target("UPDATE t SET own = 70, own_null = 71").await;
        case.at_source("INSERT INTO t VALUES (2, 'A', 'B')").await;
        case.at_source("INSERT INTO t SELECT i, 'A', 'B' FROM generate_series(3, 9) i").await;
        case.at_source("UPDATE t SET a = 'set' WHERE id < 3").await;
        case.at_source("UPDATE t SET id = 10 WHERE id = 1").await;
        case.drain().await;
        case.assert_same("SELECT id, a, b FROM t ORDER BY id").await;
        let rows = case.there("SELECT own, own_null, stamp FROM t WHERE id IN (2, 9, 10) ORDER BY id").await;
        assert_eq!(rows, ["(7,,1)", "(7,,1)", "(70,71,1)"]);
        // Without a default, and not null: the row cannot be.
        case.at_target("ALTER TABLE t ALTER stamp DROP DEFAULT").await;
        case.at_source("INSERT INTO t VALUES (11, 'a', 'b')").await;
        let said = case.refused("transaction_failed", 7).await;
        assert!(said.contains("SQLSTATE 23502, table public.t, column stamp"), "{said}");
        case.at_target("ALTER TABLE t ALTER stamp DROP NOT NULL").await;
        case.drain().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d5_what_the_copy_cannot_begin_with_is_named_with_what_to_type() {
    for major in majors().unwrap() {
        let case = Case::new(major, "d5").await;
        case.at_source("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 1)").await;
        let said = case.refused("schema_mismatch", 8).await;
        assert!(said.contains("table public.t ") && said.contains("no table of this name"), "{said}");
        assert!(said.contains(r#"--no-publications --no-subscriptions --table='"public"."t"'"#), "{said}");
        case.at_target("CREATE TABLE t (id int PRIMARY KEY)").await;
        let said = case.refused("schema_mismatch", 8).await;
        assert!(said.contains("no column \"n\""), "{said}");
        assert!(said.contains(r#"ALTER TABLE "public"."t" ADD COLUMN "n""#), "{said}");
        case.at_target("ALTER TABLE t ADD n int; INSERT INTO t VALUES (99, 99)").await;
        for _ in 0..2 {
            let said = case.refused("target_not_empty", 8).await;
            assert!(said.contains("not empty on the target") && said.contains(r#"TRUNCATE "public"."t";"#), "{said}");
            assert_eq!(case.there("SELECT * FROM t").await, ["(99,99)"]);
        }
        case.at_target("TRUNCATE t").await;
        case.at_source("INSERT INTO t VALUES (2, 2)").await;
        case.drain().await;
        assert_eq!(case.assert_same("SELECT * FROM t ORDER BY id").await, ["(1,1)", "(2,2)"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d4_a_table_that_joins_is_copied_or_named_where_the_target_lacks_it() {
    for major in majors().unwrap() {
        let case = Case::new(major, "d4").await;
        case.both("CREATE TABLE t (id int PRIMARY KEY)").await;
        case.at_source("CREATE PUBLICATION everything FOR ALL TABLES").await;
        let case = case.with(&["--publication", "everything"]);
        case.drain().await;
        case.at_source("CREATE TABLE late (id int PRIMARY KEY); INSERT INTO late VALUES (7)").await;
        case.at_source("INSERT INTO t VALUES (2)").await;
        case.at_source("BEGIN; INSERT INTO t VALUES (3); INSERT INTO late VALUES (1); COMMIT").await;
        for _ in 0..2 {
            let said = case.refused("schema_mismatch", 8).await;
            assert!(said.contains("table public.late ") && said.contains("no table of this name"), "{said}");
        }
        // On the target, with rows that are not the flow's.
        case.at_target("CREATE TABLE late (id int PRIMARY KEY); INSERT INTO late VALUES (9)").await;
        for _ in 0..2 {
            let said = case.refused("target_not_empty", 8).await;
            assert!(said.contains("\"late\"") && said.contains("--reseed"), "{said}");
        }
        case.at_target("TRUNCATE late").await;
        case.drain().await;
        assert_eq!(case.assert_same("SELECT * FROM late ORDER BY id").await, ["(1)", "(7)"]);
        assert_eq!(case.assert_same("SELECT * FROM t ORDER BY id").await, ["(1)", "(2)", "(3)"].map(String::from)[1..]);
        // From now on it is one of the flow's tables: taken out, its changes could be lost.
        case.at_source("INSERT INTO late VALUES (2)").await;
        case.drain().await;
        case.assert_same("SELECT * FROM late ORDER BY id").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_table_stops_nothing_and_a_renamed_one_does() {
    for major in majors().unwrap() {
        let case = Case::new(major, "dropped").await;
        case.both(
            "CREATE TABLE dropped (id int PRIMARY KEY); CREATE TABLE renamed (id int PRIMARY KEY);
             CREATE TABLE stays (id int PRIMARY KEY)",
        )
        .await;
        case.at_source("INSERT INTO dropped VALUES (1)").await;
        let run = case.start();
        case.catch_up("SELECT * FROM dropped").await;
        case.at_source("INSERT INTO dropped VALUES (2); DROP TABLE dropped").await;
        case.at_source("INSERT INTO stays VALUES (1)").await;
        case.catch_up("SELECT * FROM stays").await;
        assert_eq!(case.there("SELECT * FROM dropped ORDER BY id").await, ["(1)", "(2)"]);
        case.at_source("ALTER TABLE renamed RENAME TO another").await;
        case.at_source("INSERT INTO stays VALUES (2)").await;
        case.catch_up("SELECT * FROM stays ORDER BY id").await;
        case.at_source("INSERT INTO another VALUES (1)").await;
        assert_eq!(run.ended().await, Some(8), "{}", case.log());
        let said = case.refused("schema_mismatch", 8).await;
        assert!(said.contains("table public.another ") && said.contains("no table of this name"), "{said}");
        case.at_target("ALTER TABLE renamed RENAME TO another").await;
        case.drain().await;
        assert_eq!(case.assert_same("SELECT * FROM another").await, ["(1)"]);
    }
}

const PARTITIONS: &str = "
    CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (10);
    CREATE TABLE p_2 PARTITION OF p FOR VALUES FROM (10) TO (20) PARTITION BY LIST (k);
    CREATE TABLE p_2_a PARTITION OF p_2 FOR VALUES IN ('a'); CREATE TABLE p_2_b PARTITION OF p_2 DEFAULT";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h1_rows_of_partitions_land_where_the_mapping_says() {
    for major in majors().unwrap() {
        let root = "CREATE TABLE p (id int, k text, v text, PRIMARY KEY (id, k))";
        let otherwise = "CREATE TABLE x_1 PARTITION OF p FOR VALUES WITH (MODULUS 2, REMAINDER 0);
                         CREATE TABLE x_2 PARTITION OF p FOR VALUES WITH (MODULUS 2, REMAINDER 1)";
        for (name, target, leaves) in [
            ("h1_plain", root.to_owned(), false),
            ("h1_same", format!("{root} PARTITION BY RANGE (id); {PARTITIONS}"), false),
            ("h1_otherwise", format!("{root} PARTITION BY HASH (k); {otherwise}"), false),
            ("h1_leaves", format!("{root} PARTITION BY RANGE (id); {PARTITIONS}"), true),
        ] {
            let case = Case::new(major, name).await;
            case.at_source(&format!("{root} PARTITION BY RANGE (id); {PARTITIONS}")).await;
            case.at_target(&target).await;
            case.at_source(
                "INSERT INTO p SELECT i, CASE i % 3 WHEN 0 THEN 'a' ELSE 'b' END, 'copied'
                 FROM generate_series(0, 19) i",
            )
            .await;
            let case = if leaves {
                case.at_source("CREATE PUBLICATION leaves FOR TABLE p").await;
                case.with(&["--publication", "leaves"])
            } else {
                case
            };
            let all = "SELECT * FROM p ORDER BY id, k";
            case.drain().await;
            assert_eq!(case.assert_same(all).await.len(), 20);
            case.at_source("UPDATE p SET v = 'changed' WHERE id % 4 = 0").await;
            case.at_source("DELETE FROM p WHERE id IN (11, 12, 13); UPDATE p SET id = id + 10 WHERE id IN (1, 2)")
                .await;
            case.at_source("UPDATE p SET k = 'c', id = 9 - id WHERE k = 'a' AND id IN (0, 3)").await;
            case.at_source("DELETE FROM p WHERE id IN (5, 15); INSERT INTO p VALUES (5, 'c', 'new')").await;
            if !leaves {
                // Published as its root, a partition may come while the flow runs.
                case.at_source("CREATE TABLE p_3 PARTITION OF p FOR VALUES FROM (20) TO (30)").await;
                if name == "h1_same" {
                    case.at_target("CREATE TABLE p_3 PARTITION OF p FOR VALUES FROM (20) TO (30)").await;
                }
                case.at_source("INSERT INTO p VALUES (25, 'a', 'in the new one')").await;
            }
            case.drain().await;
            assert!(case.assert_same(all).await.len() >= 16);
            if leaves {
                case.assert_same("SELECT tableoid::regclass, * FROM p ORDER BY id, k").await;
            }
            case.at_source("TRUNCATE p_2").await;
            case.drain().await;
            // The root was not truncated; without it in the list there is nothing to truncate as a whole.
            if leaves {
                case.assert_same(all).await;
            }
            case.at_source("TRUNCATE p; INSERT INTO p VALUES (1, 'a', 'last')").await;
            case.drain().await;
            assert_eq!(case.assert_same(all).await, ["(1,a,last)"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h2_tables_are_truncated_together_with_their_sequences_and_no_others() {
    for major in majors().unwrap() {
        let case = Case::new(major, "h2").await;
        case.both(
            "CREATE TABLE a (id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY);
             CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a);
             CREATE TABLE c (id serial PRIMARY KEY, b int REFERENCES b);
             CREATE TABLE self (id int PRIMARY KEY, up int REFERENCES self)",
        )
        .await;
        case.at_target("CREATE TABLE outside (id int PRIMARY KEY); INSERT INTO outside VALUES (1)").await;
        let fill = "INSERT INTO a VALUES (1), (2); INSERT INTO b VALUES (1, 1); INSERT INTO c VALUES (1, 1);
                    INSERT INTO self VALUES (1, 1)";
        case.at_source(fill).await;
        case.drain().await;
        case.at_target("SELECT setval('a_id_seq', 50); SELECT setval('c_id_seq', 50)").await;
        case.at_source("INSERT INTO a VALUES (3); TRUNCATE a CASCADE; INSERT INTO a VALUES (4)").await;
        case.drain().await;
        assert_eq!(case.assert_same("SELECT * FROM a").await, ["(4)"]);
        case.assert_same("SELECT (SELECT count(*) FROM b), (SELECT count(*) FROM c), (SELECT count(*) FROM self)")
            .await;
        assert_eq!(case.there("SELECT last_value FROM a_id_seq").await, ["(50)"]);
        case.at_source(&format!("TRUNCATE a, b, c, self; {fill}")).await;
        case.at_source("TRUNCATE c, a, b RESTART IDENTITY; INSERT INTO self VALUES (2, 1)").await;
        case.drain().await;
        assert_eq!(case.there("SELECT last_value, is_called FROM a_id_seq").await, ["(1,f)"]);
        assert_eq!(case.there("SELECT last_value, is_called FROM c_id_seq").await, ["(1,f)"]);
        case.assert_same("SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM b), (SELECT count(*) FROM c)").await;
        assert_eq!(case.assert_same("SELECT * FROM self ORDER BY id").await, ["(1,1)", "(2,1)"]);
        // A table outside the flow that hangs on one of it is not emptied along: that is for a person to decide.
        case.at_target("ALTER TABLE outside ADD a int REFERENCES a").await;
        case.at_source("INSERT INTO a VALUES (9); TRUNCATE a CASCADE").await;
        let said = case.refused("transaction_failed", 7).await;
        assert!(said.contains("SQLSTATE 0A000"), "{said}");
        assert_eq!(case.there("SELECT id FROM outside").await, ["(1)"]);
        case.at_target("ALTER TABLE outside DROP a").await;
        case.drain().await;
        case.assert_same("SELECT * FROM a").await;
    }
}
