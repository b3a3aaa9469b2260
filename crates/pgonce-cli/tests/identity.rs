//! Replica identity and TOAST: which row is meant, and which of its columns were sent. Faults B1 to B7 and D2.

mod common;
mod pair;

use common::said;
use pair::Case;
use pgonce_testkit::majors;

/// 10 kB that neither compress nor stay in the row.
const LARGE: &str = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 320) i)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b1_with_full_an_unchanged_toast_value_is_kept_and_the_stream_goes_on() {
    for major in majors().unwrap() {
        let case = Case::new(major, "b1").await;
        for (table, key) in [("t", "PRIMARY KEY"), ("keyless", "")] {
            case.both(&format!(
                "CREATE TABLE {table} (id int {key}, n int, b text);
                 ALTER TABLE {table} ALTER b SET STORAGE EXTERNAL, REPLICA IDENTITY FULL"
            ))
            .await;
            case.at_source(&format!("INSERT INTO {table} SELECT 1, 0, {LARGE}")).await;
        }
        case.drain().await;
        for table in ["t", "keyless"] {
            case.at_source(&format!("INSERT INTO {table} SELECT 2, 0, {LARGE}")).await;
            case.at_source(&format!("UPDATE {table} SET n = 1")).await;
            case.at_source(&format!("UPDATE {table} SET b = b || 'x' WHERE id = 2")).await;
            case.at_source(&format!("INSERT INTO {table} VALUES (3, 3, 'behind')")).await;
        }
        case.drain().await;
        for table in ["t", "keyless"] {
            case.assert_same(&format!("SELECT * FROM {table} ORDER BY id")).await;
            let lengths = case.there(&format!("SELECT id, n, length(b) FROM {table} ORDER BY id")).await;
            assert_eq!(lengths, ["(1,1,10240)", "(2,1,10241)", "(3,3,6)"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b2_b3_a_value_that_was_not_sent_is_not_set() {
    for major in majors().unwrap() {
        let case = Case::new(major, "b2_b3").await;
        case.both(
            "CREATE TABLE t (id int PRIMARY KEY, n int, b jsonb, c text); ALTER TABLE t ALTER c SET STORAGE EXTERNAL",
        )
        .await;
        let insert = |id| format!("INSERT INTO t SELECT {id}, 0, to_jsonb({LARGE}), {LARGE}");
        case.at_source(&insert(1)).await;
        case.drain().await;
        case.at_source(&insert(2)).await;
        case.drain().await;
        case.assert_same("SELECT * FROM t ORDER BY id").await;
        // What is on the target only would be overwritten by any value that pgonce made up.
        case.at_target("UPDATE t SET b = '\"kept\"', c = 'kept'").await;
        case.at_source("UPDATE t SET n = 1").await;
        // Of two values that could stay away, one is sent.
        case.at_source("UPDATE t SET c = 'sent' WHERE id = 2").await;
        // A key change alone keeps them too.
        case.at_source("UPDATE t SET id = 3 WHERE id = 1").await;
        case.drain().await;
        let rows = case.there("SELECT * FROM t ORDER BY id").await;
        assert_eq!(rows, [r#"(2,1,"""kept""",sent)"#, r#"(3,1,"""kept""",kept)"#]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b4_a_table_that_is_all_key_updates_without_anything_to_set() {
    for major in majors().unwrap() {
        let case = Case::new(major, "b4").await;
        case.both(
            "CREATE TABLE k (id int PRIMARY KEY);
             CREATE TABLE kk (a int, b text, PRIMARY KEY (a, b));
             CREATE TABLE kf (a int, b text, PRIMARY KEY (a, b)); ALTER TABLE kf REPLICA IDENTITY FULL;
             CREATE TABLE none (); ALTER TABLE none REPLICA IDENTITY FULL",
        )
        .await;
        case.at_source("INSERT INTO k VALUES (1); INSERT INTO kk VALUES (1, 'a'); INSERT INTO kf VALUES (1, 'a')")
            .await;
        case.at_source("INSERT INTO none DEFAULT VALUES").await;
        case.drain().await;
        case.at_source("UPDATE k SET id = id").await;
        for table in ["kk", "kf"] {
            case.at_source(&format!("UPDATE {table} SET a = a, b = b")).await;
            case.at_source(&format!("INSERT INTO {table} VALUES (1, 'b'), (2, 'a')")).await;
            case.at_source(&format!("DELETE FROM {table} WHERE b = 'b'; INSERT INTO {table} VALUES (1, 'b')")).await;
            case.at_source(&format!("UPDATE {table} SET b = 'c' WHERE a = 2")).await;
        }
        case.at_source("INSERT INTO none DEFAULT VALUES").await;
        case.drain().await;
        assert_eq!(case.assert_same("SELECT * FROM k").await, ["(1)"]);
        for table in ["kk", "kf"] {
            let rows = case.assert_same(&format!("SELECT * FROM {table} ORDER BY a, b")).await;
            assert_eq!(rows, ["(1,a)", "(1,b)", "(2,c)"]);
        }
        assert_eq!(case.assert_same("SELECT count(*) FROM none").await, ["(2)"]);
    }
}

/// Tables that a wildcard finds, and whose UPDATE would fail at the source once their updates are published.
const UNIDENTIFIED: &[(&str, &str)] = &[
    ("keyless", "CREATE TABLE keyless (id int, n int)"),
    ("nothing", "CREATE TABLE nothing (id int PRIMARY KEY, n int); ALTER TABLE nothing REPLICA IDENTITY NOTHING"),
    ("deferrable_key", "CREATE TABLE deferrable_key (id int PRIMARY KEY DEFERRABLE, n int)"),
    (
        "index_gone",
        "CREATE TABLE index_gone (id int NOT NULL, n int); CREATE UNIQUE INDEX gone ON index_gone (id);
         ALTER TABLE index_gone REPLICA IDENTITY USING INDEX gone; DROP INDEX gone",
    ),
    (
        // The identity of a partitioned table is not that of its partitions.
        "root_full",
        "CREATE TABLE root_full (id int, n int) PARTITION BY LIST (id);
         CREATE TABLE root_full_1 PARTITION OF root_full FOR VALUES IN (1);
         ALTER TABLE root_full REPLICA IDENTITY FULL",
    ),
    (
        "leaf_nothing",
        "CREATE TABLE leaf_nothing (id int PRIMARY KEY, n int) PARTITION BY LIST (id);
         CREATE TABLE leaf_nothing_1 PARTITION OF leaf_nothing FOR VALUES IN (1);
         ALTER TABLE leaf_nothing_1 REPLICA IDENTITY NOTHING",
    ),
    (
        "generated_key",
        "CREATE TABLE generated_key (id int NOT NULL, n int, g int GENERATED ALWAYS AS (id + 1) STORED PRIMARY KEY)",
    ),
];

/// From version 18 on the server asks that all of a replica identity is published.
const UNIDENTIFIED_18: &[(&str, &str)] = &[
    (
        "full_generated",
        "CREATE TABLE full_generated (id int PRIMARY KEY, n int, g int GENERATED ALWAYS AS (id + 1) STORED);
         ALTER TABLE full_generated REPLICA IDENTITY FULL",
    ),
    (
        "full_virtual",
        "CREATE TABLE full_virtual (id int PRIMARY KEY, n int, g int GENERATED ALWAYS AS (id + 1) VIRTUAL);
         ALTER TABLE full_virtual REPLICA IDENTITY FULL",
    ),
];

fn unidentified(major: u32) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    UNIDENTIFIED.iter().chain(UNIDENTIFIED_18.iter().filter(move |_| major >= 18))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b5_a_table_without_identity_is_left_out_and_its_own_update_still_works() {
    for major in majors().unwrap() {
        let case = Case::new(major, "b5_left_out").await;
        case.both("CREATE TABLE good (id int PRIMARY KEY, n int)").await;
        for (table, create) in unidentified(major) {
            case.both(create).await;
            case.at_source(&format!("INSERT INTO {table} VALUES (1, 0)")).await;
        }
        case.at_source("INSERT INTO good VALUES (1, 0)").await;
        let said = case.drain().await;
        case.at_source("UPDATE good SET n = 1").await;
        for (table, _) in unidentified(major) {
            assert!(said.contains(&format!("public.{table} ")), "{table}: {said}");
            let mend = said.lines().filter_map(|line| line.split_once(&format!("public.{table} ")));
            let mend: String = mend.map(|(_, rest)| rest).collect();
            assert!(mend.contains("To replicate it: ALTER TABLE") && mend.contains(table), "{table}: {said}");
            case.at_source(&format!("UPDATE {table} SET n = n + 1; DELETE FROM {table}")).await;
        }
        case.drain().await;
        assert_eq!(case.assert_same("SELECT * FROM good").await, ["(1,1)"]);
        for (table, _) in unidentified(major) {
            assert_eq!(case.there(&format!("SELECT count(*) FROM {table}")).await, ["(0)"], "{table}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b5_a_table_without_identity_is_refused_where_it_is_named() {
    for major in majors().unwrap() {
        let case = Case::new(major, "b5_named").await;
        for (table, create) in unidentified(major) {
            case.both(create).await;
            let named = case.output(&["run", "--until", "now", "--tables", &format!("public.{table}")]).await;
            let said = said(&named);
            assert_eq!(named.status.code(), Some(6), "{said}");
            assert!(said.contains("error[source_not_ready]") && said.contains(&format!("public.{table} ")), "{said}");
            // What the hint says is enough.
            let typed = said.lines().find_map(|line| line.split_once("Type ")).unwrap().1;
            let typed = typed.split_once(" or give it").unwrap().0;
            let index = format!("CREATE UNIQUE INDEX enough ON {table} (id)");
            if typed.contains("USING INDEX ...") {
                case.at_source(&index).await;
            }
            case.at_source(&typed.replace("...", "enough")).await;
            case.at_source(&format!("INSERT INTO {table} VALUES (1, 0)")).await;
        }
        case.drain().await;
        for (table, _) in unidentified(major) {
            case.at_source(&format!("UPDATE {table} SET n = n + 1")).await;
        }
        case.drain().await;
        for (table, _) in unidentified(major) {
            assert_eq!(case.assert_same(&format!("SELECT id, n FROM {table}")).await, ["(1,1)"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b5_a_publication_of_inserts_carries_a_table_without_identity() {
    for major in majors().unwrap() {
        let case = Case::new(major, "b5_inserts").await;
        case.both("CREATE TABLE keyless (v text)").await;
        case.at_source("CREATE PUBLICATION inserts FOR TABLE keyless WITH (publish = 'insert')").await;
        case.at_source("INSERT INTO keyless VALUES ('copied'), ('copied')").await;
        let case = case.with(&["--publication", "inserts"]);
        case.drain().await;
        case.at_source("INSERT INTO keyless VALUES ('streamed'), ('streamed')").await;
        case.at_source("UPDATE keyless SET v = 'at the source only'").await;
        case.at_source("DELETE FROM keyless; TRUNCATE keyless").await;
        case.drain().await;
        let rows = case.there("SELECT v, count(*) FROM keyless GROUP BY v ORDER BY v").await;
        assert_eq!(rows, ["(copied,2)", "(streamed,2)"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b6_of_identical_rows_exactly_one_goes() {
    for major in majors().unwrap() {
        let case = Case::new(major, "b6").await;
        case.both(
            "CREATE TABLE d (a text, b numeric, c float8, d json, e text); ALTER TABLE d REPLICA IDENTITY FULL;
             CREATE TABLE p (a text, n int) PARTITION BY LIST (a);
             CREATE TABLE p_1 PARTITION OF p FOR VALUES IN ('x'); CREATE TABLE p_2 PARTITION OF p DEFAULT;
             ALTER TABLE p REPLICA IDENTITY FULL; ALTER TABLE p_1 REPLICA IDENTITY FULL;
             ALTER TABLE p_2 REPLICA IDENTITY FULL",
        )
        .await;
        // Equal to each other, but only the two of a pair are the same.
        let rows = "('x', 1.0, 0, '{}', NULL), ('x', 1.0, 0, '{}', NULL), ('x', 1.00, 0, '{}', NULL),
                    ('x', 1.0, '-0'::float8, '{}', NULL), ('x', 1.0, 0, '{ }', NULL), ('x', 1.0, 0, '{}', ''),
                    (NULL, NULL, NULL, NULL, NULL), (NULL, NULL, NULL, NULL, NULL)";
        case.at_source(&format!("INSERT INTO d VALUES {rows}")).await;
        case.at_source("INSERT INTO p VALUES ('x', 1), ('x', 1), ('y', 1), ('y', 1)").await;
        case.drain().await;
        case.at_source(&format!(
            "INSERT INTO d SELECT CASE a WHEN 'x' THEN 'y' END, b, c::float8, d::json, e
             FROM (VALUES {rows}) v (a, b, c, d, e)"
        ))
        .await;
        let one = |table: &str, where_: &str| format!("ctid = (SELECT min(ctid) FROM {table} WHERE {where_})");
        for a in ["a = 'x'", "a = 'y' AND b IS NOT NULL"] {
            let same = format!("{a} AND b::text = '1.0' AND c::text = '0' AND d::text = '{{}}' AND e IS NULL");
            case.at_source(&format!("DELETE FROM d WHERE {}", one("d", &same))).await;
            case.at_source(&format!("DELETE FROM d WHERE {a} AND b::text = '1.00'")).await;
            case.at_source(&format!("UPDATE d SET b = 2 WHERE {a} AND c::text = '-0'")).await;
            case.at_source(&format!("UPDATE d SET b = 3 WHERE {a} AND d::text = '{{ }}'")).await;
        }
        case.at_source(&format!("DELETE FROM d WHERE {}", one("d", "a IS NULL"))).await;
        case.at_source(&format!("DELETE FROM p_1 WHERE {}", one("p_1", "true"))).await;
        case.at_source(&format!("UPDATE p_2 SET n = 2 WHERE {}", one("p_2", "true"))).await;
        case.drain().await;
        let rows = case.assert_same("SELECT * FROM d ORDER BY a, b::text, c::text, d::text, e").await;
        assert_eq!(rows.len(), 4 + 4 + 1 + 2, "{rows:?}");
        let rows = case.assert_same("SELECT * FROM p ORDER BY a, n").await;
        assert_eq!(rows, ["(x,1)", "(y,1)", "(y,2)"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b7_a_change_of_the_identity_is_noticed_while_running() {
    for major in majors().unwrap() {
        let case = Case::new(major, "b7").await;
        case.both(
            "CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL UNIQUE, b int NOT NULL UNIQUE, v text);
             ALTER TABLE t REPLICA IDENTITY USING INDEX t_a_key",
        )
        .await;
        case.at_source("INSERT INTO t SELECT i, i + 10, i + 20, 'copied' FROM generate_series(1, 4) i").await;
        let run = case.start();
        let all = "SELECT * FROM t ORDER BY id";
        case.catch_up(all).await;
        for (identity, change) in [
            ("USING INDEX t_a_key", "UPDATE t SET id = id + 100, v = 'by a'"),
            ("USING INDEX t_b_key", "UPDATE t SET id = id + 100, a = a + 100, v = 'by b'"),
            ("FULL", "UPDATE t SET id = id + 100, a = a + 100, b = b + 100, v = 'by all'"),
            ("DEFAULT", "UPDATE t SET a = a + 100, b = b + 100, v = 'by id'"),
        ] {
            case.at_source(&format!("ALTER TABLE t REPLICA IDENTITY {identity}; {change}")).await;
            case.at_source("DELETE FROM t WHERE id = (SELECT min(id) FROM t)").await;
            case.at_source(change).await;
            case.catch_up(all).await;
        }
        run.end().await;
        assert_eq!(case.assert_same("SELECT count(*) FROM t").await, ["(0)"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_change_in_every_way_that_the_source_allows() {
    for major in majors().unwrap() {
        let case = Case::new(major, "key_changes").await;
        case.both(
            "CREATE TABLE t (id int PRIMARY KEY, n int, b text); ALTER TABLE t ALTER b SET STORAGE EXTERNAL;
             CREATE TABLE f (LIKE t INCLUDING ALL); ALTER TABLE f REPLICA IDENTITY FULL;
             CREATE TABLE later (id int PRIMARY KEY DEFERRABLE, n int); ALTER TABLE later REPLICA IDENTITY FULL",
        )
        .await;
        for table in ["t", "f"] {
            case.at_source(&format!("INSERT INTO {table} SELECT i, i, {LARGE} FROM generate_series(1, 10) i")).await;
        }
        case.at_source("INSERT INTO later SELECT i, i FROM generate_series(1, 5) i").await;
        case.drain().await;
        for t in ["t", "f"] {
            case.at_source(&format!("UPDATE {t} SET id = -id WHERE id <= 3")).await;
            case.at_source(&format!(
                "BEGIN; UPDATE {t} SET id = 99 WHERE id = 4; UPDATE {t} SET id = 4 WHERE id = 5;
                 UPDATE {t} SET id = 5 WHERE id = 99; COMMIT"
            ))
            .await;
            // The same key twenty times over, deleted and inserted again, in one transaction and in many.
            let many: String = (0..20).map(|n| format!("UPDATE {t} SET n = {n} WHERE id = 6;")).collect();
            let again = format!("DELETE FROM {t} WHERE id = 6; INSERT INTO {t} VALUES (6, 7, 'again');");
            case.at_source(&format!("BEGIN; {many} {again} {many} {again} COMMIT")).await;
            for statement in format!("{many} {again}").split_inclusive(';') {
                case.at_source(statement).await;
            }
            case.at_source(&format!("INSERT INTO {t} VALUES (11, 1, 'gone'); DELETE FROM {t} WHERE id = 11")).await;
        }
        // All keys at once, which collide on the way.
        case.at_source("UPDATE later SET id = id + 1").await;
        case.drain().await;
        for table in ["t", "f"] {
            let rows = case.assert_same(&format!("SELECT id, n, md5(b) FROM {table} ORDER BY id")).await;
            assert_eq!(rows.len(), 10);
        }
        assert_eq!(case.assert_same("SELECT * FROM later ORDER BY id").await.len(), 5);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d2_identity_and_generated_columns_are_copied_and_streamed() {
    for major in majors().unwrap() {
        let case = Case::new(major, "d2").await;
        let virtual_ = if major >= 18 { ", v text GENERATED ALWAYS AS (b || '!') VIRTUAL" } else { "" };
        let stored = if major < 18 { ", gen text GENERATED ALWAYS AS (upper(b)) STORED" } else { "" };
        case.both(&format!(
            "CREATE TABLE a (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, b text,
                             gen text GENERATED ALWAYS AS (upper(b)) STORED{virtual_});
             CREATE TABLE d (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, b text,
                             gen text GENERATED ALWAYS AS (upper(b)) STORED);
             CREATE TABLE f (id bigint GENERATED ALWAYS AS IDENTITY, b text{stored});
             ALTER TABLE f REPLICA IDENTITY FULL"
        ))
        .await;
        for t in ["a", "d", "f"] {
            case.at_source(&format!("INSERT INTO {t} (b) SELECT 'copied' FROM generate_series(1, 5)")).await;
        }
        case.drain().await;
        for t in ["a", "d", "f"] {
            case.at_source(&format!("INSERT INTO {t} (b) SELECT 'streamed' FROM generate_series(1, 8)")).await;
            case.at_source(&format!("INSERT INTO {t} (b) VALUES (NULL)")).await;
            case.at_source(&format!("UPDATE {t} SET b = 'changed' WHERE id IN (2, 7)")).await;
            case.at_source(&format!("UPDATE {t} SET id = DEFAULT WHERE id IN (3, 8)")).await;
            case.at_source(&format!("DELETE FROM {t} WHERE id = 1")).await;
        }
        case.drain().await;
        for t in ["a", "d", "f"] {
            assert_eq!(case.assert_same(&format!("SELECT * FROM {t} ORDER BY id")).await.len(), 13);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d2_published_generated_columns_are_not_left_empty_by_the_copy() {
    for major in majors().unwrap().into_iter().filter(|major| *major >= 18) {
        let case = Case::new(major, "d2_published").await.with(&["--publication", "generated"]);
        let table = "CREATE TABLE t (id int PRIMARY KEY, gen int GENERATED ALWAYS AS (id * 2) STORED)";
        case.both(&format!("{table}; CREATE TABLE other (id int PRIMARY KEY)")).await;
        case.at_source(
            "CREATE PUBLICATION generated FOR ALL TABLES WITH (publish_generated_columns = stored);
             INSERT INTO t VALUES (1)",
        )
        .await;
        case.at_target("DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, gen int)").await;
        let said = case.refused("schema_mismatch", 8).await;
        assert!(
            said.contains("table public.t ") && said.contains("column \"gen\" is generated on the source"),
            "{said}"
        );
        assert_eq!(case.there("SELECT count(*) FROM t").await, ["(0)"]);
        case.at_target(&format!("DROP TABLE t; {table}")).await;
        case.drain().await;
        case.at_source("ALTER TABLE t REPLICA IDENTITY FULL; INSERT INTO t VALUES (2); UPDATE t SET id = -id").await;
        case.drain().await;
        assert_eq!(case.assert_same("SELECT * FROM t ORDER BY id").await, ["(-2,-4)", "(-1,-2)"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_inheriting_tables_are_kept_apart() {
    for major in majors().unwrap() {
        let case = Case::new(major, "inheritance").await;
        case.both(
            "CREATE TABLE parent (id int PRIMARY KEY, n int);
             CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent);
             CREATE TABLE parent_full (id int, n int); ALTER TABLE parent_full REPLICA IDENTITY FULL;
             CREATE TABLE child_full () INHERITS (parent_full); ALTER TABLE child_full REPLICA IDENTITY FULL",
        )
        .await;
        let tables = ["parent", "child", "parent_full", "child_full"];
        for t in tables {
            case.at_source(&format!("INSERT INTO {t} VALUES (1, 1), (2, 1), (3, 1)")).await;
        }
        case.drain().await;
        for t in tables {
            case.at_source(&format!("UPDATE ONLY {t} SET n = 2 WHERE id = 1")).await;
            case.at_source(&format!("UPDATE ONLY {t} SET id = 4 WHERE id = 2")).await;
            case.at_source(&format!("UPDATE ONLY {t} SET n = n WHERE id = 3")).await;
        }
        case.at_source("DELETE FROM ONLY parent WHERE id = 3; DELETE FROM ONLY parent_full WHERE id = 3").await;
        case.at_source("INSERT INTO parent VALUES (5, 5); TRUNCATE ONLY parent_full").await;
        case.drain().await;
        for t in tables {
            case.assert_same(&format!("SELECT * FROM ONLY {t} ORDER BY id")).await;
        }
        assert_eq!(case.there("SELECT count(*) FROM parent").await, ["(6)"]);
    }
}
