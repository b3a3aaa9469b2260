//! A transaction that cannot be applied, in the middle of many: it alone is named, and no value of it. Faults A9, K5.

mod common;
mod pair;

use common::said;
use pair::Case;
use pgonce_testkit::majors;

/// What is planted in the rows that fail, and must be found nowhere.
const MARKER: &str = "Zq7MARKER";
const NUMBER: &str = "7731377";

struct Poison {
    name: &'static str,
    /// Makes the target refuse the tenth transaction.
    target: &'static str,
    /// The tenth transaction; `MARKER` stands for the marker.
    transaction: &'static str,
    /// What is said of it.
    expected: &'static [&'static str],
    /// Makes the target take it.
    mend: &'static str,
}

const FAILURES: &[Poison] = &[
    Poison {
        name: "unique",
        target: "CREATE UNIQUE INDEX t_b_key ON t (b)",
        transaction: "INSERT INTO t VALUES (10, 7731377, 'MARKER'), (1010, 7731377, 'MARKER')",
        expected: &["SQLSTATE 23505, table public.t, constraint t_b_key"],
        mend: "DROP INDEX t_b_key",
    },
    Poison {
        name: "a9_smallint",
        target: "ALTER TABLE t ALTER n TYPE smallint",
        transaction: "INSERT INTO t VALUES (10, 7731377, 'MARKER')",
        expected: &["SQLSTATE 22003, table public.t"],
        mend: "ALTER TABLE t ALTER n TYPE int",
    },
    Poison {
        name: "a9_smallint_update",
        target: "ALTER TABLE t ALTER n TYPE smallint",
        transaction: "UPDATE t SET n = 7731377, b = 'MARKER' WHERE id = 9; INSERT INTO t VALUES (10, 1, '10')",
        expected: &["SQLSTATE 22003, table public.t"],
        mend: "ALTER TABLE t ALTER n TYPE int",
    },
    Poison {
        name: "not_null",
        target: "ALTER TABLE t ALTER b SET NOT NULL",
        transaction: "INSERT INTO t VALUES (10, 7731377, NULL)",
        expected: &["SQLSTATE 23502, table public.t, column b"],
        mend: "ALTER TABLE t ALTER b DROP NOT NULL",
    },
    Poison {
        name: "check",
        target: "ALTER TABLE t ADD CONSTRAINT no_markers CHECK (b NOT LIKE 'Zq7%')",
        transaction: "INSERT INTO t VALUES (10, 7731377, 'MARKER')",
        expected: &["SQLSTATE 23514, table public.t, constraint no_markers"],
        mend: "ALTER TABLE t DROP CONSTRAINT no_markers",
    },
    Poison {
        name: "exclusion",
        target: "ALTER TABLE t ADD CONSTRAINT alone EXCLUDE USING btree (b WITH =)",
        transaction: "SELECT pg_logical_emit_message(true, 'app', 'MARKER');
                      INSERT INTO t VALUES (10, 7731377, 'MARKER'), (1010, 7731377, 'MARKER')",
        expected: &["SQLSTATE 23P01, table public.t, constraint alone"],
        mend: "ALTER TABLE t DROP CONSTRAINT alone",
    },
    Poison {
        name: "domain",
        target: "CREATE DOMAIN plain AS text CONSTRAINT no_markers CHECK (VALUE NOT LIKE 'Zq7%');
                 ALTER TABLE t ALTER b TYPE plain",
        transaction: "INSERT INTO t VALUES (10, 7731377, 'MARKER')",
        expected: &["SQLSTATE 23514"],
        mend: "ALTER TABLE t ALTER b TYPE text",
    },
    Poison {
        name: "too_long",
        target: "ALTER TABLE t ALTER b TYPE varchar(5)",
        transaction: "INSERT INTO t VALUES (10, 7731377, 'MARKER')",
        expected: &["SQLSTATE 22001, table public.t"],
        mend: "ALTER TABLE t ALTER b TYPE text",
    },
    Poison {
        // Many rows at a time, which an explicit cast would cut short.
        name: "too_long_run",
        target: "ALTER TABLE t ALTER b TYPE varchar(5)",
        transaction: "INSERT INTO t SELECT 10 + i * 1000, 7731377, 'MARKER' FROM generate_series(0, 4) i",
        expected: &["SQLSTATE 22001, table public.t"],
        mend: "ALTER TABLE t ALTER b TYPE text",
    },
    Poison {
        name: "other_type",
        target: "ALTER TABLE t ALTER b TYPE int USING b::int",
        transaction: "INSERT INTO t VALUES (10, 7731377, 'MARKER')",
        expected: &["SQLSTATE 22P02, table public.t"],
        mend: "ALTER TABLE t ALTER b TYPE text",
    },
    Poison {
        // The server speaks up at COMMIT, and the trigger quotes the row.
        name: "deferred",
        target: "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                     IF NEW.b LIKE 'Zq7%' THEN RAISE EXCEPTION 'no %', NEW USING DETAIL = NEW.b, HINT = NEW.b; END IF;
                     RETURN NULL; END $$;
                 CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED
                     FOR EACH ROW EXECUTE FUNCTION refuse();
                 ALTER TABLE t ENABLE ALWAYS TRIGGER refuse",
        transaction: "INSERT INTO t VALUES (10, 7731377, 'MARKER')",
        expected: &["SQLSTATE P0001"],
        mend: "DROP TRIGGER refuse ON t",
    },
];

const CONFLICTS: &[Poison] = &[
    Poison {
        name: "k5_update",
        target: "DELETE FROM t WHERE id = 500",
        transaction: "UPDATE t SET n = 7731377, b = 'MARKER' WHERE id = 500; INSERT INTO t VALUES (10, 1, '10')",
        expected: &["UPDATE on public.t found 0 rows instead of one (identified by id)"],
        mend: "INSERT INTO t VALUES (500, 1, 'again')",
    },
    Poison {
        name: "k5_delete",
        target: "DELETE FROM k WHERE id = 'Zq7MARKER'",
        transaction: "DELETE FROM k WHERE id = 'MARKER'; INSERT INTO t VALUES (10, 1, '10')",
        expected: &["DELETE on public.k found 0 rows instead of one (identified by id, part)"],
        mend: "INSERT INTO k VALUES ('Zq7MARKER', 7731377)",
    },
    Poison {
        name: "k5_key_change",
        target: "DELETE FROM k WHERE id = 'Zq7MARKER'",
        transaction: "UPDATE k SET part = 1 WHERE id = 'MARKER'; INSERT INTO t VALUES (10, 1, '10')",
        expected: &["UPDATE on public.k found 0 rows instead of one (identified by id, part)"],
        mend: "INSERT INTO k VALUES ('Zq7MARKER', 7731377)",
    },
    Poison {
        name: "k5_nothing_to_set",
        target: "DELETE FROM k WHERE id = 'Zq7MARKER'",
        transaction: "UPDATE k SET part = part WHERE id = 'MARKER'; INSERT INTO t VALUES (10, 1, '10')",
        expected: &["UPDATE on public.k found 0 rows instead of one (identified by id, part)"],
        mend: "INSERT INTO k VALUES ('Zq7MARKER', 7731377)",
    },
    Poison {
        name: "k5_keyless",
        target: "UPDATE f SET n = 0 WHERE b = 'Zq7MARKER'",
        transaction: "DELETE FROM f WHERE b = 'MARKER'; INSERT INTO t VALUES (10, 1, '10')",
        expected: &["DELETE on public.f found 0 rows instead of one (identified by n, b)"],
        mend: "UPDATE f SET n = 7731377 WHERE b = 'Zq7MARKER'",
    },
    Poison {
        name: "k5_too_many",
        target: "ALTER TABLE t DROP CONSTRAINT t_pkey; INSERT INTO t SELECT * FROM t WHERE id = 500",
        transaction: "UPDATE t SET n = 7731377, b = 'MARKER' WHERE id = 500; INSERT INTO t VALUES (10, 1, '10')",
        expected: &["UPDATE on public.t found 2 rows instead of one (identified by id)"],
        mend: "DELETE FROM t WHERE ctid = (SELECT max(ctid) FROM t WHERE id = 500)",
    },
];

/// Fails if a planted value is anywhere in what pgonce said or stored.
async fn assert_no_values(case: &Case, said_before: &str) {
    let (text, json) = tokio::join!(case.output(&["status"]), case.output(&["status", "--format", "json"]));
    let places = [
        ("what run said", said_before.to_owned()),
        ("status", said(&text)),
        ("status --format json", said(&json)),
        ("the ledger", case.ledger().await),
    ];
    for (place, text) in places {
        for value in [MARKER, NUMBER] {
            assert!(!text.contains(value), "{}: {place} holds a row value: {text}", case.name);
        }
    }
}

async fn stops_at_the_tenth_and_goes_on(major: u32, poison: &Poison, code: &str, starts: usize) {
    let mut case = Case::new(major, poison.name).await;
    case.both(
        "CREATE TABLE t (id int PRIMARY KEY, n int, b text);
         CREATE TABLE k (id text, part int, PRIMARY KEY (id, part));
         CREATE TABLE f (n int, b text); ALTER TABLE f REPLICA IDENTITY FULL",
    )
    .await;
    case.at_source(&format!(
        "INSERT INTO t VALUES (500, 0, '500'); INSERT INTO k VALUES ('{MARKER}', {NUMBER});
         INSERT INTO f VALUES ({NUMBER}, '{MARKER}'), (1, 'other')"
    ))
    .await;
    case.drain().await;
    case.at_target(poison.target).await;
    let mut poisonous = 0;
    for n in 1..=20 {
        if n != 10 {
            case.at_source(&format!("INSERT INTO t VALUES ({n}, 1, '{n}')")).await;
            continue;
        }
        case.at_source("BEGIN").await;
        case.at_source(&poison.transaction.replace("MARKER", "Zq7MARKER")).await;
        let row = case.source.query_one("SELECT pg_current_xact_id()::text::int", &[]).await.unwrap();
        poisonous = row.get::<_, i32>(0).cast_unsigned();
        case.at_source("COMMIT").await;
    }
    case.environment.push(("PGONCE_LOG", "trace"));
    // Another start says the same, and does no more than the first.
    for start in 0..starts {
        let said = case.refused(code, 7).await;
        let held = case.held().await;
        let (commit, xid) = held.iter().find(|(_, xid)| *xid == poisonous).unwrap();
        assert!(said.contains(&format!("transaction {xid} with commit LSN {commit}")), "{commit} {xid}: {said}");
        for expected in poison.expected {
            assert!(said.contains(expected), "{}: {expected}: {said}", poison.name);
        }
        if start == 0 {
            let status = case.status().await.to_string();
            assert!(status.contains(code) && status.contains(poison.expected[0]), "{status}");
            assert_no_values(&case, &said).await;
        }
        let applied = case.there("SELECT id FROM t WHERE id < 500 ORDER BY id").await;
        assert_eq!(applied, (1..=9).map(|n| format!("({n})")).collect::<Vec<_>>());
        assert_eq!(case.there("SELECT count(*) FROM pgonce.applied").await, ["(9)"]);
    }
    case.at_target(poison.mend).await;
    case.environment.clear();
    case.drain().await;
    assert_eq!(case.there("SELECT count(*) FROM pgonce.applied").await, ["(20)"]);
    case.assert_same("SELECT id, n::int, b::text FROM t ORDER BY id").await;
    case.assert_same("SELECT * FROM k ORDER BY id, part").await;
    case.assert_same("SELECT * FROM f ORDER BY n, b").await;
    let status = case.status().await.to_string();
    assert!(!status.contains(code), "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a9_a_transaction_that_the_target_refuses_is_named_without_its_values() {
    for major in majors().unwrap() {
        for (n, poison) in FAILURES.iter().enumerate() {
            let starts = if n == 0 { 2 } else { 1 };
            stops_at_the_tenth_and_goes_on(major, poison, "transaction_failed", starts).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k5_a_row_that_is_not_there_once_stops_the_flow_without_its_values() {
    for major in majors().unwrap() {
        for (n, poison) in CONFLICTS.iter().enumerate() {
            let starts = if n == 0 { 2 } else { 1 };
            stops_at_the_tenth_and_goes_on(major, poison, "row_conflict", starts).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_cannot_be_copied_are_named_by_their_number_and_leave_nothing() {
    for major in majors().unwrap() {
        let case = Case::new(major, "copy_fails").await;
        case.both("CREATE TABLE t (id int PRIMARY KEY, n int, b text); CREATE TABLE whole (id int PRIMARY KEY)").await;
        case.at_target("ALTER TABLE t ALTER n TYPE smallint").await;
        case.at_source(&format!(
            "INSERT INTO t SELECT i, 1, 'x' FROM generate_series(1, 99) i;
             INSERT INTO t VALUES (100, {NUMBER}, '{MARKER}');
             INSERT INTO whole VALUES (1)"
        ))
        .await;
        let said = case.refused("schema_mismatch", 8).await;
        assert!(said.contains("table public.t ") && said.contains("at row 100 of the copy: SQLSTATE 22003"), "{said}");
        assert_no_values(&case, &said).await;
        assert_eq!(case.there("SELECT count(*) FROM t").await, ["(0)"]);
        case.at_target("ALTER TABLE t ALTER n TYPE int").await;
        case.at_source("INSERT INTO t VALUES (101, 1, 'while it stood still'); INSERT INTO whole VALUES (2)").await;
        case.drain().await;
        assert_eq!(case.assert_same("SELECT * FROM t ORDER BY id").await.len(), 101);
        assert_eq!(case.assert_same("SELECT * FROM whole ORDER BY id").await, ["(1)", "(2)"]);
    }
}
