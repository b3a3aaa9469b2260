//! The copy of the schema, and sequences.

mod common;
mod pair;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Flow, WAITING_FOR_A_LOCK, eventually, number, said, text};
use pair::Case;
use pgonce_testkit::{Cluster, Installation, majors};
use serde_json::Value;
use tokio_postgres::Client;

const RICH: &str = include_str!("schema_copy/rich.sql");

fn rich(major: u32) -> String {
    // Known from version 15 on.
    if major < 15 { RICH.replace(" NULLS NOT DISTINCT", "") } else { RICH.to_owned() }
}

/// A case whose schema is copied, with a `pg_dump` of this major or newer.
async fn copying(major: u32, name: &str, tools: u32) -> Case {
    let tools = Installation::client_tools(tools).unwrap();
    Case::new(major, name).await.with(&["--copy-schema=true", "--client-tools", tools.to_str().unwrap()])
}

/// The schema of a database as `pg_dump` writes it, without what differs from call to call.
fn dumped(tools: u32, url: &str) -> String {
    let program = Installation::client_tools(tools).unwrap().join("pg_dump");
    let flags = ["--schema-only", "--no-owner", "--no-privileges", "--no-publications", "--exclude-schema=pgonce"];
    let output = Command::new(program).args(flags).arg(url).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let kept = |line: &&str| !line.contains("restrict ") && !line.starts_with("-- Dumped");
    text.lines().filter(kept).map(|line| format!("{line}\n")).collect()
}

fn assert_same_schema(tools: u32, source: &str, target: &str) {
    let (source, target) = (dumped(tools, source), dumped(tools, target));
    let differs = |text: &str, other: &str| -> Vec<String> {
        text.lines().filter(|line| !other.lines().any(|o| o == *line)).map(str::to_owned).collect()
    };
    let (more, less) = (differs(&source, &target), differs(&target, &source));
    assert!(source == target, "only on the source: {more:#?}, only on the target: {less:#?}");
}

const ROWS: &str = "
    INSERT INTO customers (name, note) SELECT 'customer ' || i, 'n' FROM generate_series(1, 20) i;
    INSERT INTO orders (customer, amount, parts, \"Ref No\")
        SELECT 1 + i % 20, i, ARRAY[(i, 'p')]::pair[], 'r' || i FROM generate_series(1, 300) i;
    UPDATE customers SET best_order = id * 2;
    INSERT INTO \"Odd Schema\".\"Mixed \"\"Case\"\"\" DEFAULT VALUES;
    INSERT INTO \"Odd Schema\".\"Mixed \"\"Case\"\"\" DEFAULT VALUES;
    INSERT INTO bookings VALUES (1, '[1,5)'), (2, '[5,9)');
    INSERT INTO events SELECT i, date '2024-01-01' + i * 9, 'w' || i % 3 FROM generate_series(1, 100) i;
    INSERT INTO event_notes SELECT id, id, at FROM events WHERE id < 9;
    REFRESH MATERIALIZED VIEW totals";

const MORE_ROWS: &str = "
    INSERT INTO customers (name, note) SELECT 'late ' || i, 'n' FROM generate_series(1, 20) i;
    INSERT INTO orders (customer, amount) SELECT 21 + i % 20, i + 1000 FROM generate_series(1, 30) i;
    UPDATE customers SET best_order = 300 + id / 2 WHERE id > 20;
    INSERT INTO \"Odd Schema\".\"Mixed \"\"Case\"\"\" DEFAULT VALUES;
    DELETE FROM bookings WHERE id = 1; INSERT INTO bookings VALUES (3, '[1,2)');
    INSERT INTO events VALUES (1000, '2024-05-05', 'w'), (1001, '2031-05-05', 'w');
    UPDATE events SET at = '2024-12-31' WHERE id = 99; DELETE FROM event_notes WHERE id = 3";

const COMPARED: [&str; 6] = [
    "SELECT * FROM customers ORDER BY id",
    "SELECT * FROM orders ORDER BY id",
    "SELECT * FROM \"Odd Schema\".\"Mixed \"\"Case\"\"\" ORDER BY 1",
    "SELECT * FROM bookings ORDER BY id",
    "SELECT tableoid::regclass::text, * FROM events ORDER BY id",
    "SELECT * FROM event_notes ORDER BY id",
];

const NOT_VALID: &str = "SELECT (SELECT count(*) FROM pg_index WHERE NOT indisvalid)
    + (SELECT count(*) FROM pg_constraint WHERE NOT convalidated AND conname NOT IN ('unproved', 'name; -- is long'))";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_schema_is_copied_and_then_streamed_into() {
    for major in majors().unwrap() {
        let case = copying(major, "whole_schema", major).await;
        case.at_source(&rich(major)).await;
        case.at_source(ROWS).await;
        let told = case.drain().await;
        assert!(told.contains("REFRESH MATERIALIZED VIEW public.totals;"), "{told}");
        // What is over within a tenth of a second need not be shown.
        let activities = ["taking the source's schema", "creating ", "building indexes: ", "adding constraints: "];
        assert!(activities.iter().any(|words| told.contains(words)), "{told}");
        assert_same_schema(major, &case.source_url, &case.target_url);
        assert_eq!(number(&case.target, NOT_VALID).await, 0);
        // Triggers do not act again: each note has one mark, of the source's trigger.
        case.at_source(MORE_ROWS).await;
        case.drain().await;
        for sql in COMPARED {
            case.assert_same(sql).await;
        }
        let marks = "SELECT count(*) FROM customers WHERE note = 'n!'";
        assert_eq!(number(&case.target, marks).await, 40);
        assert_same_schema(major, &case.source_url, &case.target_url);
        // The ledger holds nothing that is left to do, and a reset takes its row along.
        let left = "SELECT count(*) FROM pgonce.schema_copy WHERE after_rows IS NOT NULL OR completed_at IS NULL";
        assert_eq!(number(&case.target, left).await, 0);
        assert_eq!(case.output(&["reset", "--yes"]).await.status.code(), Some(0));
        assert_eq!(number(&case.target, "SELECT count(*) FROM pgonce.schema_copy").await, 0);
    }
}

/// Makes statements on the target wait for advisory locks: the creation of a view for 7, that of an index or trigger
/// of this name for 9.
const HOLD: &str = "
    CREATE SCHEMA hold;
    CREATE FUNCTION hold.on_view() RETURNS event_trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_catalog.pg_advisory_xact_lock_shared(7); END';
    CREATE EVENT TRIGGER hold_view ON ddl_command_start WHEN TAG IN ('CREATE VIEW') EXECUTE FUNCTION hold.on_view();
    CREATE FUNCTION hold.on_index() RETURNS event_trigger LANGUAGE plpgsql AS
        'BEGIN IF pg_catalog.current_query() LIKE ''%held%'' THEN
             PERFORM pg_catalog.pg_advisory_xact_lock_shared(9); END IF; END';
    CREATE EVENT TRIGGER hold_index ON ddl_command_start WHEN TAG IN ('CREATE INDEX', 'CREATE TRIGGER', 'ALTER TABLE')
        EXECUTE FUNCTION hold.on_index()";

async fn held(case: &Case) {
    let waiting = format!("{WAITING_FOR_A_LOCK} AND wait_event = 'advisory' AND datname = current_database()");
    eventually("a session of pgonce waits", || async { number(&case.target, &waiting).await > 0 }).await;
}

async fn nobody_waits(case: &Case) {
    let gone = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgonce%' \
                AND datname = current_database()";
    eventually("the server has noticed", || async { number(&case.target, gone).await == 0 }).await;
}

const TABLES: &str = "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
    WHERE n.nspname NOT IN ('pgonce', 'hold', 'pg_catalog', 'information_schema', 'pg_toast') \
    AND relkind IN ('r', 'i')";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_before_during_and_after_the_rows_it_goes_on_and_makes_nothing_twice() {
    for major in majors().unwrap() {
        let case = copying(major, "schema_kills", major).await.with(&["--jobs", "3"]);
        // The generated column makes the rows wait on the target for 8; the source has no such lock.
        case.at_source(
            "CREATE FUNCTION slow(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
                 'BEGIN PERFORM pg_catalog.pg_advisory_xact_lock_shared(8); RETURN n; END';
             CREATE TABLE a (id int PRIMARY KEY, n int UNIQUE, m int GENERATED ALWAYS AS (slow(id)) STORED);
             CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a, c int);
             CREATE INDEX b_held ON b (c); CREATE INDEX b_free ON b (a, c); CREATE INDEX a_free ON a (n, id);
             CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
             CREATE TRIGGER trigger_held BEFORE INSERT ON a FOR EACH ROW EXECUTE FUNCTION act();
             ALTER TABLE b ADD CONSTRAINT fk_held FOREIGN KEY (c) REFERENCES a (n);
             CREATE VIEW v AS SELECT * FROM a;
             INSERT INTO a (id, n) SELECT i, i FROM generate_series(1, 100) i;
             INSERT INTO b SELECT i, i, i FROM generate_series(1, 100) i",
        )
        .await;
        case.at_target(HOLD).await;
        case.at_target("SELECT pg_advisory_lock(7), pg_advisory_lock(8), pg_advisory_lock(9)").await;
        // Before the rows: all or nothing.
        let run = case.start();
        held(&case).await;
        drop(run);
        nobody_waits(&case).await;
        assert_eq!(number(&case.target, TABLES).await, 0, "nothing stays of what was not finished");
        case.at_target("SELECT pg_advisory_unlock(7)").await;
        // In the rows: the tables stay, without indexes.
        let run = case.start();
        held(&case).await;
        drop(run);
        nobody_waits(&case).await;
        assert_eq!(number(&case.target, TABLES).await, 2, "{}", case.log());
        case.at_target("SELECT pg_advisory_unlock(8)").await;
        // In the indexes: those beside the one that waits are built.
        let run = case.start();
        held(&case).await;
        eventually("the other indexes are built", || async { number(&case.target, TABLES).await == 7 }).await;
        let doing = text(&case.target, "SELECT doing FROM pgonce.schema_copy").await;
        assert_eq!(doing, "building indexes: 6");
        assert_eq!(case.status().await["target"]["schema_copy"], "building indexes: 6");
        drop(run);
        nobody_waits(&case).await;
        let before = case.there("SELECT oid FROM pg_class WHERE relname IN ('b_free', 'a_free', 'a_pkey')").await;
        // In the foreign keys, with one that is added and not yet looked at.
        case.at_target(
            "ALTER FUNCTION hold.on_index() RENAME TO on_index_off; CREATE FUNCTION hold.on_fk() RETURNS event_trigger
                 LANGUAGE plpgsql AS 'BEGIN IF pg_catalog.current_query() LIKE ''%VALIDATE CONSTRAINT fk_held%'' THEN
                 PERFORM pg_catalog.pg_advisory_xact_lock_shared(9); END IF; END';
             DROP EVENT TRIGGER hold_index; CREATE EVENT TRIGGER hold_fk ON ddl_command_start
                 WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION hold.on_fk()",
        )
        .await;
        let run = case.start();
        held(&case).await;
        drop(run);
        nobody_waits(&case).await;
        assert_eq!(number(&case.target, NOT_VALID).await, 1, "added, and not looked at");
        case.at_target("SELECT pg_advisory_unlock_all()").await;
        case.drain().await;
        let after = case.there("SELECT oid FROM pg_class WHERE relname IN ('b_free', 'a_free', 'a_pkey')").await;
        assert_eq!(before, after, "what was built is not built again");
        assert_eq!(number(&case.target, NOT_VALID).await, 0);
        case.at_target(
            "DROP EVENT TRIGGER hold_view; DROP EVENT TRIGGER hold_fk; SET client_min_messages = error;
             DROP SCHEMA hold CASCADE",
        )
        .await;
        assert_same_schema(major, &case.source_url, &case.target_url);
        case.at_source("INSERT INTO a (id, n) VALUES (101, 101); UPDATE b SET c = 101 WHERE id = 7").await;
        case.drain().await;
        case.assert_same("SELECT * FROM a ORDER BY id").await;
        case.assert_same("SELECT * FROM b ORDER BY id").await;
    }
}

/// A `pg_dump` of our own making.
fn script(folder: &Path, text: &str) -> PathBuf {
    let program = folder.join("pg_dump");
    std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pg_dump_that_is_missing_or_too_old_is_said_before_anything_is_made() {
    let major = *majors().unwrap().last().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let case = Case::new(major, "tools").await;
    case.at_source("CREATE TABLE t (id int PRIMARY KEY)").await;
    let case = case.with(&["--copy-schema=true", "--client-tools", folder.path().to_str().unwrap()]);
    let said = case.refused("unsupported", 2).await;
    assert!(said.contains(&format!("needs pg_dump {major} or newer")), "{said}");
    assert!(said.contains("no pg_dump was found in") && said.contains("postgresql-client-"), "{said}");
    script(folder.path(), "echo 'pg_dump (PostgreSQL) 9.6.24'");
    let said = case.refused("unsupported", 2).await;
    assert!(said.contains("found") && said.contains("9.6.24") && said.contains("--client-tools"), "{said}");
    let slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'pgonce_tools'";
    assert_eq!(number(&case.source, slots).await, 0);
    // One that fails in the middle has made nothing either.
    script(
        folder.path(),
        "case $1 in --version) echo 'pg_dump (PostgreSQL) 99.1' ;; *) echo 'pg_dump: error: no' >&2; exit 3 ;; esac",
    );
    let said = case.refused("source_not_ready", 6).await;
    assert!(said.contains("pg_dump cannot dump the schema: no"), "{said}");
    assert_eq!(number(&case.source, slots).await, 0);
    assert_eq!(number(&case.target, TABLES).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_password_is_among_the_arguments_of_pg_dump() {
    let major = *majors().unwrap().first().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let real = Installation::client_tools(major).unwrap().join("pg_dump");
    let log = folder.path().join("seen");
    script(
        folder.path(),
        &format!(
            "tr '\\0' '\\n' </proc/$$/cmdline >>{0}; printf 'password=[%s]\\n' \"$PGPASSWORD\" >>{0}; exec {1} \"$@\"",
            log.display(),
            real.display()
        ),
    );
    let mut case = Case::new(major, "secret").await;
    case.at_source("CREATE TABLE t (id int PRIMARY KEY)").await;
    case.source_url = case.source_url.replace("postgres@", "postgres:s%20e%22c'r%5Cet%24%7Bx%7D@");
    let case = case.with(&["--copy-schema=true", "--client-tools", folder.path().to_str().unwrap()]);
    case.drain().await;
    let seen = std::fs::read_to_string(log).unwrap();
    let (passwords, arguments): (Vec<&str>, Vec<&str>) = seen.lines().partition(|l| l.starts_with("password="));
    assert!(passwords.contains(&"password=[s e\"c'r\\et${x}]"), "{seen}");
    assert!(arguments.contains(&"--schema-only"), "{seen}");
    let secret = |line: &&&str| ["s e\"c", "r\\et", "s%20e", "postgresql://"].iter().any(|part| line.contains(part));
    assert_eq!(arguments.iter().find(secret), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_are_there_in_part_are_named_and_those_that_are_whole_are_kept() {
    for major in majors().unwrap() {
        let case = copying(major, "in_part", major).await;
        case.at_source(
            "CREATE TABLE t (id int PRIMARY KEY, n int UNIQUE); CREATE TABLE \"U u\" (id int PRIMARY KEY);
             CREATE INDEX t_more ON t (n, id); INSERT INTO t VALUES (1, 1)",
        )
        .await;
        case.at_target("CREATE TABLE t (id int PRIMARY KEY, n int)").await;
        let said = case.refused("target_not_ready", 8).await;
        assert!(said.contains("some are there: \"public\".\"t\"; others are not: \"public\".\"U u\""), "{said}");
        assert!(said.contains("DROP TABLE \"public\".\"t\""), "{said}");
        // Something else of the same name: nothing is created at all.
        case.at_target("DROP TABLE t; CREATE SEQUENCE \"U u\"").await;
        let said = case.refused("target_not_ready", 8).await;
        assert!(said.contains("the target has TABLE public.U u already"), "{said}");
        assert_eq!(number(&case.target, TABLES).await, 0);
        case.at_target(
            "DROP SEQUENCE \"U u\"; CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE \"U u\" (id int)",
        )
        .await;
        let said = case.drain().await;
        assert!(said.contains("the tables are on the target already"), "{said}");
        case.assert_same("SELECT * FROM t").await;
        assert_same_schema(major, &case.source_url, &case.target_url);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_triggers_would_act_they_are_created_disabled_and_can_be_enabled() {
    for major in majors().unwrap() {
        let mut case = copying(major, "disabled", major).await;
        case.at_source(
            "CREATE TABLE t (id int PRIMARY KEY, n int);
             CREATE TABLE parts (id int, PRIMARY KEY (id)) PARTITION BY RANGE (id);
             CREATE TABLE parts_1 PARTITION OF parts DEFAULT;
             CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.id := NEW.id + 10; RETURN NEW; END';
             CREATE TRIGGER \"Act\" BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION act();
             CREATE TRIGGER off BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION act();
             ALTER TABLE t DISABLE TRIGGER off;
             CREATE TRIGGER acts AFTER INSERT ON parts FOR EACH ROW EXECUTE FUNCTION act();
             CREATE RULE nothing AS ON DELETE TO t DO INSTEAD NOTHING; INSERT INTO t VALUES (1, 1)",
        )
        .await;
        case.at_target(
            "DO $$BEGIN CREATE ROLE schema_plain LOGIN; EXCEPTION WHEN duplicate_object THEN END$$;
             ALTER DATABASE disabled OWNER TO schema_plain; GRANT ALL ON SCHEMA public TO schema_plain",
        )
        .await;
        case.target_url = case.target_url.replace("postgres@", "schema_plain@");
        let said = case.drain().await;
        assert!(said.contains("triggers and rules (3) are created disabled"), "{said}");
        assert!(said.contains("unnest(to_enable)"), "{said}");
        case.at_source("INSERT INTO t VALUES (2, 2); INSERT INTO parts VALUES (3)").await;
        case.drain().await;
        assert_eq!(case.assert_same("SELECT * FROM t ORDER BY id").await, ["(11,1)", "(12,2)"]);
        let enable = case.there("SELECT unnest(to_enable) FROM pgonce.schema_copy").await;
        for line in enable {
            // As a row it is quoted.
            let line = line.trim_matches(['(', ')', '"']).replace("\"\"", "\"");
            case.at_target(&line).await;
        }
        assert_same_schema(major, &case.source_url, &case.target_url);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_key_to_a_table_that_is_not_carried_is_left_out_and_owners_come_only_if_asked() {
    for major in majors().unwrap() {
        let case = copying(major, "not_carried", major).await.with(&["--tables", "public.child"]);
        let role = "DO $$BEGIN CREATE ROLE schema_owner; EXCEPTION WHEN duplicate_object THEN END$$";
        case.both(role).await;
        case.at_source(
            "CREATE TABLE parent (id int PRIMARY KEY); INSERT INTO parent VALUES (1);
             CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent); INSERT INTO child VALUES (1, 1);
             GRANT SELECT ON child TO schema_owner; ALTER TABLE parent OWNER TO schema_owner",
        )
        .await;
        let said = case.drain().await;
        let left_out = "FK CONSTRAINT public.child child_parent_fkey is left out, for it refers to public.parent";
        assert!(said.contains(left_out), "{said}");
        case.assert_same("SELECT * FROM child").await;
        let rights =
            "SELECT relname, relowner::regrole, relacl FROM pg_class WHERE relname IN ('child', 'parent') ORDER BY 1";
        assert_eq!(case.there(rights).await, ["(child,postgres,)", "(parent,postgres,)"]);
        let case = copying(major, "with_owners", major).await.with(&["--schema-privileges=true"]);
        case.at_source(
            "CREATE TABLE t (id int PRIMARY KEY); GRANT SELECT ON t TO PUBLIC; ALTER TABLE t OWNER TO schema_owner",
        )
        .await;
        case.drain().await;
        case.assert_same("SELECT relname, relowner::regrole, relacl FROM pg_class WHERE relname = 't'").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_source_goes_to_a_newer_target_and_a_newer_pg_dump_to_an_older_target() {
    let majors = majors().unwrap();
    let (oldest, newest) = (*majors.iter().min().unwrap(), *majors.iter().max().unwrap());
    let case = copying(oldest, "newer_tool", newest).await;
    case.at_source(&rich(oldest)).await;
    case.at_source(ROWS).await;
    case.drain().await;
    assert_same_schema(newest, &case.source_url, &case.target_url);
    let (source, target) =
        tokio::join!(Cluster::builder(oldest).name("source").start(), Cluster::builder(newest).name("target").start());
    let mut flow = Flow::between(source.unwrap(), target.unwrap());
    let tools = Installation::client_tools(newest).unwrap();
    flow.arguments = ["--copy-schema=true", "--client-tools", tools.to_str().unwrap()].map(str::to_owned).to_vec();
    flow.at_source(&rich(oldest)).await;
    flow.at_source(ROWS).await;
    flow.drain().await;
    for sql in COMPARED {
        flow.assert_same(sql).await;
    }
    assert_eq!(number(&flow.target_client().await, NOT_VALID).await, 0);
    flow.assert_same(
        "SELECT indexrelid::regclass::text FROM pg_index WHERE indexrelid >= 16384 \
                      AND indrelid::regclass::text NOT LIKE 'pgonce.%' \
                      AND indrelid::regclass::text NOT LIKE 'pg_toast%' \
                      ORDER BY indexrelid::regclass::text COLLATE \"C\"",
    )
    .await;
}

async fn listed(case: &Case) -> Vec<(String, String)> {
    let output = case.output(&["sequences", "list", "--format", "json"]).await;
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", said(&output)));
    let text = |sequence: &Value, key: &str| sequence[key].as_str().unwrap().to_owned();
    report["sequences"].as_array().unwrap().iter().map(|s| (text(s, "name"), text(s, "standing"))).collect()
}

async fn values(client: &Client) -> Vec<String> {
    let mut values = Vec::new();
    for name in ["serial_id_seq", "ident_id_seq", "down", "\"Not Called\""] {
        values.extend(Flow::rows(client, &format!("SELECT last_value, is_called FROM {name}")).await);
    }
    values
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sequences_are_set_at_the_handoff_and_when_asked_and_never_backwards() {
    for major in majors().unwrap() {
        let case = Case::new(major, "sequences").await;
        let schema = "CREATE TABLE serial (id serial PRIMARY KEY, n int);
             CREATE TABLE ident (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, n int);
             CREATE SEQUENCE down INCREMENT -7 MINVALUE -1000; CREATE SEQUENCE \"Not Called\" START 55;
             CREATE SEQUENCE cycling MAXVALUE 5 CYCLE";
        case.both(schema).await;
        // The same column's sequence under another name, and one that the target lacks.
        case.at_target("ALTER SEQUENCE ident_id_seq RENAME TO other_name").await;
        case.at_source(
            "CREATE SEQUENCE only_here; INSERT INTO serial (n) SELECT i FROM generate_series(1, 9) i;
             INSERT INTO ident (n) SELECT i FROM generate_series(1, 4) i;
             SELECT nextval('down'), nextval('down'), nextval('cycling') FROM generate_series(1, 4)",
        )
        .await;
        case.drain().await;
        case.at_target("ALTER SEQUENCE other_name RENAME TO ident_id_seq").await;
        assert_eq!(values(&case.source).await, values(&case.target).await);
        assert_eq!(values(&case.target).await, ["(9,t)", "(4,t)", "(-50,t)", "(55,f)"]);
        // On demand, with steps ahead; the cycling one has begun anew meanwhile.
        case.at_source(
            "SELECT nextval('down'), nextval('\"Not Called\"'), nextval('serial_id_seq'); \
                        SELECT nextval('cycling') FROM generate_series(1, 3)",
        )
        .await;
        let standings = listed(&case).await;
        let of = |name: &str| standings.iter().find(|(n, _)| n == name).unwrap().1.clone();
        assert_eq!([of("down"), of("Not Called"), of("cycling")], ["behind", "behind", "behind"]);
        assert_eq!([of("ident_id_seq"), of("only_here")], ["equal", "absent"]);
        let told = case.output(&["sequences", "list"]).await;
        assert!(said(&told).contains("-57 on the source, -50 on the target: behind, 1 steps"), "{}", said(&told));
        let output = case.output(&["sequences", "sync"]).await;
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(said(&output).contains("4 set now"), "{}", said(&output));
        case.assert_same("SELECT last_value, is_called FROM down").await;
        case.assert_same("SELECT last_value, is_called FROM \"Not Called\"").await;
        case.assert_same("SELECT last_value, is_called FROM cycling").await;
        // Ahead: left alone, unless forced.
        case.at_target("SELECT setval('serial_id_seq', 500), setval('down', -200)").await;
        let output = case.output(&["sequences", "sync"]).await;
        assert!(said(&output).contains("0 set now; 2 further than the source's, left alone"), "{}", said(&output));
        assert_eq!(case.there("SELECT last_value FROM serial_id_seq").await, ["(500)"]);
        let output = case.output(&["sequences", "sync", "--force", "--ahead", "100"]).await;
        assert_eq!(output.status.code(), Some(8), "100 steps of 7 are out of bounds of nothing but cycling: 5");
        assert!(said(&output).contains("\"cycling\" first: outside of the target's bounds"), "{}", said(&output));
        assert_eq!(case.there("SELECT last_value FROM serial_id_seq").await, ["(110)"]);
        assert_eq!(case.there("SELECT last_value FROM down").await, ["(-757)"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sequences_that_cannot_be_set_are_named_with_the_grant_and_do_not_stop_the_flow() {
    for major in majors().unwrap() {
        let mut case = Case::new(major, "sequence_rights").await;
        case.both("CREATE TABLE t (id serial PRIMARY KEY); CREATE TABLE u (id serial PRIMARY KEY)").await;
        case.at_source("INSERT INTO t DEFAULT VALUES; INSERT INTO u DEFAULT VALUES").await;
        case.at_target(
            "ALTER TABLE u ALTER id DROP DEFAULT; DROP SEQUENCE u_id_seq;
             DO $$BEGIN CREATE ROLE sequence_plain LOGIN; EXCEPTION WHEN duplicate_object THEN END$$;
             GRANT CREATE ON DATABASE sequence_rights TO sequence_plain;
             GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON t, u TO sequence_plain",
        )
        .await;
        case.target_url = case.target_url.replace("postgres@", "sequence_plain@");
        let told = case.drain().await;
        assert!(told.contains("sequences that could not be set: \"public\".\"t_id_seq\" (unsettable)"), "{told}");
        assert!(told.contains("\"public\".\"u_id_seq\" (missing)"), "{told}");
        let grant = "GRANT SELECT, UPDATE ON SEQUENCE \"public\".\"t_id_seq\" TO \"sequence_plain\";";
        assert!(told.contains(grant), "{told}");
        case.assert_same("SELECT * FROM t").await;
        let output = case.output(&["sequences", "sync"]).await;
        assert_eq!(output.status.code(), Some(8), "{}", said(&output));
        assert!(said(&output).contains("error[sequences_not_set]: 2 sequences") && said(&output).contains(grant));
        case.at_target(grant).await;
        case.at_target("CREATE SEQUENCE u_id_seq; GRANT SELECT, UPDATE ON SEQUENCE u_id_seq TO sequence_plain").await;
        let output = case.output(&["sequences", "sync"]).await;
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        case.assert_same("SELECT last_value, is_called FROM u_id_seq").await;
        // The source's role may not read them.
        case.at_source("DO $$BEGIN CREATE ROLE sequence_plain LOGIN; EXCEPTION WHEN duplicate_object THEN END$$").await;
        case.source_url = case.source_url.replace("postgres@", "sequence_plain@");
        let output = case.output(&["sequences", "sync"]).await;
        assert_eq!(output.status.code(), Some(6), "{}", said(&output));
        let grant = "GRANT SELECT ON SEQUENCE \"public\".\"t_id_seq\" TO \"sequence_plain\";";
        assert!(said(&output).contains(grant), "{}", said(&output));
    }
}
