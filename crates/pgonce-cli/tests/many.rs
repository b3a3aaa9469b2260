//! Many tables: a start asks for all of them at once.

mod common;
mod pair;

use std::time::{Duration, Instant};

use pair::Case;
use pgonce_testkit::majors;

const TABLES: usize = 5_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_with_five_thousand_tables_asks_a_few_questions() {
    for major in majors().unwrap() {
        let case = Case::new(major, "many").await.with(&["--start", "go-forward"]);
        // Some hundred tables a transaction: the locks of all would not fit.
        for first in (0..TABLES).step_by(500) {
            case.at_source(&format!(
                "SET synchronous_commit = off; DO $$ BEGIN FOR i IN {first} .. {first} + 499 LOOP
                     EXECUTE format('CREATE TABLE u%s (id int)', i); END LOOP; END $$"
            ))
            .await;
        }
        case.at_source("CREATE TABLE t7 (id int PRIMARY KEY, n int, v text)").await;
        case.at_target("CREATE TABLE t7 (id int PRIMARY KEY, n int, v text)").await;
        case.at_source("CREATE EXTENSION pg_stat_statements; CREATE PUBLICATION pgonce_many FOR ALL TABLES").await;
        let began = Instant::now();
        case.drain().await;
        let first = began.elapsed();
        case.at_source("INSERT INTO t7 VALUES (1, 1, 'x'); SELECT pg_stat_statements_reset()").await;
        let began = Instant::now();
        case.drain().await;
        let again = began.elapsed();
        let sql =
            "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
                   WHERE d.datname = current_database()";
        let questions = common::number(&case.source, sql).await;
        let longest = "SELECT max(max_exec_time)::bigint FROM pg_stat_statements";
        let longest = common::number(&case.source, longest).await;
        println!(
            "PostgreSQL {major}: {first:?}, then {again:?} with {questions} statements, of which one took {longest} ms"
        );
        assert_eq!(case.assert_same("SELECT * FROM t7").await, ["(1,1,x)"]);
        assert!(questions > 0 && questions < 200, "{questions} statements at the source");
        assert!(first < Duration::from_secs(30) && again < Duration::from_secs(30), "{first:?}, {again:?}");
    }
}
