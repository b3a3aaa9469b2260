//! `pgonce verify` on real servers: it finds every planted difference and names it, it says `converged` where there
//! is none, and where it cannot know it says so.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pgonce_testkit::{Cluster, Workload, majors, witness};
use serde_json::{Value, json};

const SCHEMA: &str = "
    CREATE TYPE pair AS (a int, b text);
    CREATE TABLE kinds (
        id int PRIMARY KEY, t text, n numeric, f float8, ts timestamptz, c char(5), b bool, j jsonb, p pair, a int[]
    );
    CREATE TABLE log (number int, note text);
    ALTER TABLE log REPLICA IDENTITY FULL;
    CREATE TABLE \"Odd \"\"Name\" (\"the %L key\" text PRIMARY KEY, v text, ip inet);
    CREATE TABLE doubled (id int PRIMARY KEY, v int, twice int GENERATED ALWAYS AS (v * 2) STORED);
    CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
    CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (100);
    CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (100) TO (10000);";

const ROWS: &str = "
    INSERT INTO kinds SELECT i, CASE i % 3 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE 'text ' || i END,
        (i || '.50')::numeric, i / 7.0::float8,
        '2024-02-29 12:00:00.000001Z'::timestamptz + i * interval '1 s', 'ab', i % 2 = 0, jsonb_build_object('i', i),
        ROW(i, NULL)::pair, ARRAY[i, NULL] FROM generate_series(1, 3000) i;
    UPDATE kinds SET f = '-0' WHERE id = 10;
    UPDATE kinds SET f = 'NaN', n = 'NaN' WHERE id = 11;
    UPDATE kinds SET p = NULL, a = NULL, j = 'null' WHERE id = 12;
    UPDATE kinds SET n = 1.0, t = '' WHERE id = 13;
    INSERT INTO log SELECT i / 2, 'note ' || i / 2 FROM generate_series(1, 1000) i;
    INSERT INTO \"Odd \"\"Name\" VALUES ('a', 'it''s', '10.0.0.1'), ('b', '%s \\ \"', '10.0.0.0/8'), ('', NULL, NULL);
    INSERT INTO doubled SELECT i, i FROM generate_series(1, 50) i;
    INSERT INTO parts SELECT i, 'v' || i FROM generate_series(1, 300) i;";

struct Flow {
    source: Cluster,
    target: Cluster,
    folder: tempfile::TempDir,
}

impl Flow {
    /// Two clusters with one schema and a flow that has copied it.
    async fn new(source: u32, target: u32, schema: &str, rows: &str) -> Flow {
        let (source, target) = tokio::try_join!(
            Cluster::builder(source).name("source").start(),
            Cluster::builder(target).name("target").start()
        )
        .unwrap();
        let flow = Flow { source, target, folder: tempfile::tempdir().unwrap() };
        flow.at_source(&format!("{schema}{rows}")).await;
        flow.at_target(schema).await;
        flow
    }

    async fn at_source(&self, sql: &str) {
        self.source.execute("postgres", sql).await.unwrap();
    }

    async fn at_target(&self, sql: &str) {
        self.target.execute("postgres", sql).await.unwrap();
    }

    fn command(&self, command: &str, more: &[&str]) -> Command {
        let mut process = Command::new(env!("CARGO_BIN_EXE_pgonce"));
        process.current_dir(self.folder.path()).args([
            command,
            "--flow",
            "shop",
            "--source",
            &self.source.url("postgres"),
        ]);
        if !more.contains(&"--target") {
            process.args(["--target", &self.target.url("postgres")]);
        }
        if !more.contains(&"--format") {
            process.args(["--format", "json"]);
        }
        process.args(more);
        process
    }

    fn drain(&self) {
        let output = self.command("run", &["--until", "now"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
    }

    /// Runs the flow until it is dropped, and returns when it streams.
    async fn run(&self) -> Running {
        let running = Running(self.command("run", &[]).stdout(Stdio::null()).spawn().unwrap());
        let source = self.source.connect("postgres").await.unwrap();
        let begun = Instant::now();
        while source.query("SELECT FROM pg_replication_slots WHERE active", &[]).await.unwrap().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(30), "the flow does not start");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        running
    }

    fn verify(&self, more: &[&str]) -> (i32, Value) {
        let output = self.command("verify", more).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let report = serde_json::from_str(&text)
            .unwrap_or_else(|e| panic!("{e}: {text}{}", String::from_utf8_lossy(&output.stderr)));
        (output.status.code().unwrap(), report)
    }

    #[track_caller]
    fn assert_converged(&self) {
        let (status, report) = self.verify(&[]);
        assert_eq!((status, &report["verdict"]), (0, &json!("converged")), "{report:#}");
    }

    #[track_caller]
    fn assert_not_comparable(&self, code: &str, more: &[&str]) {
        let (status, report) = self.verify(more);
        assert_eq!((status, &report["verdict"]), (2, &json!("not_comparable")), "{report:#}");
        assert_eq!(report["reasons"][0]["code"], code, "{report:#}");
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A difference that is planted on the target, and what must be said of it.
struct Planted {
    sql: &'static str,
    mend: &'static str,
    table: &'static str,
    /// Rows missing, extra, different.
    rows: [u64; 3],
    columns: &'static [&'static str],
    key: Value,
}

fn planted() -> Vec<Planted> {
    let kinds = |sql, mend, rows, columns, id: i32| Planted {
        sql,
        mend,
        table: "public.kinds",
        rows,
        columns,
        key: json!({"id": id.to_string()}),
    };
    let different = [0, 0, 1];
    let set = |sql, mend, columns, id| kinds(sql, mend, different, columns, id);
    vec![
        kinds(
            "CREATE TABLE kept AS SELECT * FROM kinds WHERE id = 77; DELETE FROM kinds WHERE id = 77",
            "INSERT INTO kinds SELECT * FROM kept; DROP TABLE kept",
            [1, 0, 0],
            &[],
            77,
        ),
        kinds("INSERT INTO kinds (id) VALUES (9001)", "DELETE FROM kinds WHERE id = 9001", [0, 1, 0], &[], 9001),
        set("UPDATE kinds SET t = NULL WHERE id = 13", "UPDATE kinds SET t = '' WHERE id = 13", &["t"], 13),
        set("UPDATE kinds SET t = '' WHERE id = 3", "UPDATE kinds SET t = NULL WHERE id = 3", &["t"], 3),
        set("UPDATE kinds SET n = 1.00 WHERE id = 13", "UPDATE kinds SET n = 1.0 WHERE id = 13", &["n"], 13),
        set("UPDATE kinds SET f = 0 WHERE id = 10", "UPDATE kinds SET f = '-0' WHERE id = 10", &["f"], 10),
        set("UPDATE kinds SET f = 0 WHERE id = 11", "UPDATE kinds SET f = 'NaN' WHERE id = 11", &["f"], 11),
        set("UPDATE kinds SET t = t || ' ' WHERE id = 20", "UPDATE kinds SET t = 'text 20' WHERE id = 20", &["t"], 20),
        set(
            "UPDATE kinds SET ts = ts + interval '1 us' WHERE id = 21",
            "UPDATE kinds SET ts = ts - interval '1 us' WHERE id = 21",
            &["ts"],
            21,
        ),
        set("UPDATE kinds SET b = NOT b WHERE id = 22", "UPDATE kinds SET b = NOT b WHERE id = 22", &["b"], 22),
        set("UPDATE kinds SET j = NULL WHERE id = 12", "UPDATE kinds SET j = 'null' WHERE id = 12", &["j"], 12),
        set(
            "UPDATE kinds SET p = ROW(NULL, NULL)::pair WHERE id = 12",
            "UPDATE kinds SET p = NULL WHERE id = 12",
            &["p"],
            12,
        ),
        set("UPDATE kinds SET a = '{}' WHERE id = 12", "UPDATE kinds SET a = NULL WHERE id = 12", &["a"], 12),
        // One text moves over the border between two columns.
        Planted {
            sql: "UPDATE \"Odd \"\"Name\" SET v = 'it''s,' WHERE \"the %L key\" = 'a'",
            mend: "UPDATE \"Odd \"\"Name\" SET v = 'it''s' WHERE \"the %L key\" = 'a'",
            table: "public.Odd \"Name",
            rows: different,
            columns: &["v"],
            key: json!({"the %L key": "a"}),
        },
        // Two rows exchange their values: every sum over a column is what it was.
        Planted {
            sql: "UPDATE doubled SET v = 9 - v WHERE id IN (4, 5)",
            mend: "UPDATE doubled SET v = 9 - v WHERE id IN (4, 5)",
            table: "public.doubled",
            rows: [0, 0, 2],
            columns: &["v"],
            key: Value::Null,
        },
        Planted {
            sql: "INSERT INTO log SELECT * FROM log WHERE number = 7 LIMIT 1",
            mend: "DELETE FROM log WHERE ctid = (SELECT max(ctid) FROM log WHERE number = 7)",
            table: "public.log",
            rows: [0, 1, 0],
            columns: &[],
            key: Value::Null,
        },
        Planted {
            sql: "DELETE FROM log WHERE ctid = (SELECT max(ctid) FROM log WHERE number = 8)",
            mend: "INSERT INTO log VALUES (8, 'note 8')",
            table: "public.log",
            rows: [1, 0, 0],
            columns: &[],
            key: Value::Null,
        },
        Planted {
            sql: "UPDATE parts SET v = 'other' WHERE id = 250",
            mend: "UPDATE parts SET v = 'v250' WHERE id = 250",
            table: "public.parts",
            rows: different,
            columns: &["v"],
            key: json!({"id": "250"}),
        },
    ]
}

fn assert_found(planted: &Planted, status: i32, report: &Value) {
    let sql = planted.sql;
    assert_eq!((status, &report["verdict"]), (1, &json!("drift")), "{sql}: {report:#}");
    let tables: Vec<&Value> = report["tables"].as_array().unwrap().iter().filter(|t| t["outcome"] != "same").collect();
    let [table] = tables.as_slice() else { panic!("{sql}: {tables:#?}") };
    assert_eq!(table["table"], planted.table, "{sql}");
    let difference = &table["difference"];
    let counts = ["missing", "extra", "different"].map(|kind| difference[kind].as_u64().unwrap());
    assert_eq!(counts, planted.rows, "{sql}: {table:#}");
    let columns: Vec<&String> = difference["columns"].as_object().unwrap().keys().collect();
    assert_eq!(columns, planted.columns, "{sql}");
    if !planted.key.is_null() {
        assert_eq!(difference["rows"][0]["key"], planted.key, "{sql}: {table:#}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_planted_difference_is_found_and_named() {
    let majors = majors().unwrap();
    let (oldest, newest) = (*majors.iter().min().unwrap(), *majors.iter().max().unwrap());
    let flow = Flow::new(oldest, newest, SCHEMA, ROWS).await;
    flow.at_target("CREATE TABLE own (x int); ALTER TABLE doubled ADD COLUMN own text DEFAULT 'here only'").await;
    flow.drain();
    let (status, report) = flow.verify(&[]);
    assert_eq!((status, &report["verdict"]), (0, &json!("converged")), "{report:#}");
    assert_eq!(report["tables"].as_array().unwrap().len(), 5);
    assert_eq!(report["only_on_target"], json!(["public.own"]));
    let doubled = report["tables"].as_array().unwrap().iter().find(|t| t["table"] == "public.doubled").unwrap();
    assert_eq!(
        doubled["not_compared"],
        json!([{"column": "twice", "why": "generated on the source"}, {"column": "own", "why": "only on the target"}])
    );

    for planted in planted() {
        flow.at_target(planted.sql).await;
        let (status, report) = flow.verify(&["--show-keys"]);
        assert_found(&planted, status, &report);
        assert_eq!(report["tables"][0]["difference"]["rows"][0]["source"], Value::Null, "values were not asked for");
        flow.at_target(planted.mend).await;
    }
    flow.assert_converged();

    // Neither keys nor values without being asked.
    flow.at_target("UPDATE kinds SET t = 'a secret' WHERE id = 2024").await;
    for format in ["text", "json"] {
        let output = flow.command("verify", &["--format", format]).output();
        let output = output.unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!text.contains("a secret") && !text.contains("2024\""), "{text}");
    }
    let (_, report) = flow.verify(&["--show-values", "--table", "public.kinds"]);
    let row = &report["tables"][0]["difference"]["rows"][0];
    assert_eq!((&row["source"]["t"], &row["target"]["t"]), (&json!("text 2024"), &json!("a secret")), "{report:#}");

    // Everything differs: the counts are exact, what is listed is limited.
    flow.at_target("UPDATE kinds SET f = f + 1").await;
    let (status, report) = flow.verify(&["--table", "public.kinds", "--show-keys"]);
    let difference = &report["tables"][0]["difference"];
    assert_eq!((status, difference["different"].as_u64()), (1, Some(2999)), "NaN + 1 is NaN");
    assert_eq!(difference["rows"].as_array().unwrap().len(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_at_rest_is_not_comparable() {
    for major in majors().unwrap() {
        let flow = Flow::new(major, major, "CREATE TABLE t (id int PRIMARY KEY, v text);", "").await;
        flow.at_source("INSERT INTO t VALUES (1, 'a')").await;
        flow.assert_not_comparable("not_started", &[]);
        flow.drain();
        flow.assert_converged();

        // Written to, and nobody applies: not drift, though the tables differ.
        flow.at_source("INSERT INTO t VALUES (2, 'b')").await;
        flow.assert_not_comparable("not_drained", &[]);
        flow.drain();
        flow.assert_converged();

        // What is not published moves the source's position, and nothing else.
        flow.at_source("CREATE TABLE unpublished (x int); INSERT INTO unpublished VALUES (1)").await;
        let (status, report) = flow.verify(&[]);
        assert_eq!((status, &report["positions"]["drained_by"]), (0, &json!("slot")), "{report:#}");
        assert_eq!(report["not_published"], json!(["public.unpublished"]));
        flow.at_target("CREATE TABLE unpublished (x int)").await;
        let (_, report) = flow.verify(&[]);
        assert_eq!((&report["not_published"], &report["only_on_target"]), (&json!(["public.unpublished"]), &json!([])));

        // A flow that runs is waited for.
        let running = flow.run().await;
        flow.at_source("INSERT INTO t VALUES (3, 'c')").await;
        let (status, report) = flow.verify(&["--wait", "30"]);
        assert_eq!((status, &report["positions"]["drained_by"]), (0, &json!("ledger")), "{report:#}");

        // The same under load: whatever is seen, it is not called drift.
        witness::create(&flow.source.connect("postgres").await.unwrap()).await.unwrap();
        let load = tokio::spawn({
            let source = flow.source.connect("postgres").await.unwrap();
            async move {
                for id in 100.. {
                    source.execute("INSERT INTO t VALUES ($1, 'load')", &[&id]).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        });
        for _ in 0..3 {
            let (status, report) = flow.verify(&["--wait", "5"]);
            assert_eq!((status, &report["verdict"]), (2, &json!("not_comparable")), "{report:#}");
        }
        load.abort();
        let _ = load.await;
        drop(running);
        flow.drain();
        flow.assert_converged();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_flows_own_records_are_checked() {
    let major = *majors().unwrap().last().unwrap();
    let flow = Flow::new(major, major, "CREATE TABLE t (id int PRIMARY KEY, v text);", "").await;
    flow.drain();
    for id in 0..5 {
        flow.at_source(&format!("INSERT INTO t VALUES ({id}, 'a')")).await;
    }
    flow.drain();
    flow.assert_converged();

    // A hole in the ledger.
    let second = "(SELECT commit_lsn FROM pgonce.applied ORDER BY commit_lsn OFFSET 2 LIMIT 1)";
    flow.at_target(&format!("CREATE TABLE kept AS SELECT * FROM pgonce.applied WHERE commit_lsn = {second}")).await;
    flow.at_target("DELETE FROM pgonce.applied WHERE commit_lsn = (SELECT commit_lsn FROM kept)").await;
    let (status, report) = flow.verify(&[]);
    assert_eq!((status, &report["alarms"][0]["code"]), (1, &json!("ledger_hole")), "{report:#}");
    flow.at_target("INSERT INTO pgonce.applied SELECT * FROM kept").await;
    flow.assert_converged();

    // A checkpoint that is not the newest recorded transaction.
    flow.at_target("CREATE TABLE last AS SELECT * FROM pgonce.applied ORDER BY commit_lsn DESC LIMIT 1").await;
    flow.at_target("DELETE FROM pgonce.applied WHERE commit_lsn = (SELECT commit_lsn FROM last)").await;
    let (status, report) = flow.verify(&[]);
    assert_eq!((status, &report["alarms"][0]["code"]), (1, &json!("ledger_contradiction")), "{report:#}");
    flow.at_target("INSERT INTO pgonce.applied SELECT * FROM last").await;
    flow.assert_converged();

    // A table that cannot be read is not a match, and not drift.
    flow.at_target(
        "CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA pgonce TO reader; \
                    GRANT SELECT ON ALL TABLES IN SCHEMA pgonce TO reader",
    )
    .await;
    let reader = flow.target.url("postgres").replace("postgres@", "reader@");
    let (status, report) = flow.verify(&["--target", &reader]);
    assert_eq!((status, &report["verdict"]), (2, &json!("not_comparable")), "{report:#}");
    assert!(report["tables"][0]["reason"]["text"].as_str().unwrap().contains("42501"), "{report:#}");

    // The slot was told more than is stored.
    flow.at_source("INSERT INTO t VALUES (10, 'lost'); SELECT pg_switch_wal()").await;
    flow.at_source("SELECT pg_replication_slot_advance('pgonce_shop', pg_current_wal_lsn())").await;
    let (status, report) = flow.verify(&[]);
    assert_eq!((status, &report["alarms"][0]["code"]), (1, &json!("data_gap")), "{report:#}");

    // No slot, no proof.
    flow.at_source("SELECT pg_drop_replication_slot('pgonce_shop')").await;
    flow.assert_not_comparable("not_drained", &[]);

    // A server that is not there.
    let begun = Instant::now();
    flow.target.stop_fast().await.unwrap();
    let output = flow.command("verify", &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(begun.elapsed() < Duration::from_secs(60));
}

/// A commit that waits for a synchronous standby is in the WAL, and so on the target, before the source shows it.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_the_source_does_not_show_yet_is_not_drift() {
    let major = majors().unwrap()[0];
    let flow = Flow::new(major, major, "CREATE TABLE t (id int PRIMARY KEY, v text);", "").await;
    flow.drain();
    let running = flow.run().await;
    flow.source.set_conf("synchronous_standby_names", "nobody").await.unwrap();
    let source = flow.source.connect("postgres").await.unwrap();
    let waiting = tokio::spawn(async move { source.batch_execute("INSERT INTO t VALUES (1, 'a')").await });
    let target = flow.target.connect("postgres").await.unwrap();
    let begun = Instant::now();
    while target.query("SELECT FROM t", &[]).await.unwrap().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(30), "the row does not arrive");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!waiting.is_finished());
    flow.assert_not_comparable("commit_not_visible", &["--wait", "4"]);
    flow.source.set_conf("synchronous_standby_names", "").await.unwrap();
    waiting.await.unwrap().unwrap();
    flow.assert_converged();
    drop(running);
}

/// The witnesses' own comparison and this one agree about a random history.
#[tokio::test(flavor = "multi_thread")]
async fn a_random_history_converges() {
    let majors = majors().unwrap();
    let flow = Flow::new(*majors.last().unwrap(), majors[0], "", "").await;
    witness::create(&flow.source.connect("postgres").await.unwrap()).await.unwrap();
    witness::create_target(&flow.target.connect("postgres").await.unwrap()).await.unwrap();
    flow.drain();
    Workload::new(7).run_transactions(&flow.source.url("postgres"), 500).await;
    flow.drain();
    flow.assert_converged();
    let (source, target) =
        (flow.source.connect("postgres").await.unwrap(), flow.target.connect("postgres").await.unwrap());
    witness::compare(&source, &target).await.unwrap().assert_clean();
}
