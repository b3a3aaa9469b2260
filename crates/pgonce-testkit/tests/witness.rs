//! The witnesses notice what they are there to notice, on every selected major.

use std::error::Error;
use std::time::Duration;

use pgonce_testkit::witness::{self, Comparison};
use pgonce_testkit::{Cluster, KillCount, Random, Workload, majors, pgbench};
use tokio_postgres::Client;

type Outcome = Result<(), Box<dyn Error>>;

/// Two databases of one cluster, the second a copy of the first after 200 transactions.
async fn source_and_copy(cluster: &Cluster) -> Result<(Client, Client), Box<dyn Error>> {
    cluster.create_database("source").await?;
    let source = cluster.connect("source").await?;
    witness::create(&source).await?;
    let counts = Workload::new(1).connections(2).run_transactions(&cluster.url("source"), 200).await;
    assert_eq!(counts.committed + counts.rolled_back + counts.failed, 200, "{counts:?}");
    assert!(counts.committed > 100 && counts.rolled_back > 0, "{counts:?}");
    drop(source);
    cluster.execute("postgres", "CREATE DATABASE copy TEMPLATE source").await?;
    Ok((cluster.connect("source").await?, cluster.connect("copy").await?))
}

#[tokio::test]
async fn planted_faults_are_found_and_nothing_else() -> Outcome {
    for major in majors()? {
        let cluster = Cluster::builder(major).start().await?;
        let (source, copy) = source_and_copy(&cluster).await?;
        let clean = witness::compare(&source, &copy).await?;
        clean.assert_clean();
        assert!(clean.source_transactions > 100 && clean.source_transactions == clean.target_transactions);

        copy.batch_execute("INSERT INTO witness_log SELECT * FROM witness_log ORDER BY number LIMIT 1").await?;
        let found = witness::compare(&source, &copy).await?;
        assert_eq!((found.duplicated, found.lost, found.unexpected), (1, 0, 0));
        let number = found.examples[0];

        copy.execute("DELETE FROM witness_log WHERE number = $1", &[&number]).await?;
        let found = witness::compare(&source, &copy).await?;
        assert_eq!((found.duplicated, found.lost, found.unexpected), (0, 1, 0));
        assert_eq!(found.target_transactions, found.source_transactions - 1);
        assert!(!found.is_clean());
        assert_eq!(found.examples, [number]);

        copy.execute("INSERT INTO witness_log VALUES ($1, 0, NULL), (-5, 0, 'rolled back')", &[&number]).await?;
        let found = witness::compare(&source, &copy).await?;
        assert_eq!((found.duplicated, found.lost, found.unexpected), (0, 0, 1));
        copy.batch_execute("DELETE FROM witness_log WHERE number = -5").await?;

        for (damage, rows) in [
            ("UPDATE witness_mirror SET counter = counter + 1 WHERE id = 1", 1),
            ("UPDATE witness_mirror SET note = '' WHERE id = 2 AND note IS NULL", 1),
            ("DELETE FROM witness_mirror WHERE id = 3", 1),
            ("UPDATE witness_mirror SET id = -4 WHERE id = 4", 2),
        ] {
            let before = witness::compare(&source, &copy).await?.mirror_differences;
            copy.batch_execute(damage).await?;
            let after = witness::compare(&source, &copy).await?.mirror_differences;
            assert_eq!(after - before, rows, "{damage}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_target_that_catches_up_is_waited_for() -> Outcome {
    let cluster = Cluster::builder(majors()?[0]).start().await?;
    let (source, copy) = source_and_copy(&cluster).await?;
    source.batch_execute("INSERT INTO witness_log VALUES (1000000, 0)").await?;
    let found = witness::compare_when_caught_up(&source, &copy, Duration::from_millis(200)).await?;
    assert_eq!(found.lost, 1);
    let late = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        copy.batch_execute("INSERT INTO witness_log VALUES (1000000, 0)").await
    };
    let (inserted, found) =
        tokio::join!(late, witness::compare_when_caught_up(&source, &copy, Duration::from_secs(20)));
    inserted?;
    found?.assert_clean();
    Ok(())
}

#[tokio::test]
async fn an_empty_comparison_is_no_proof() -> Outcome {
    let cluster = Cluster::builder(majors()?[0]).start().await?;
    let source = cluster.connect("postgres").await?;
    witness::create(&source).await?;
    let found = witness::compare(&source, &source).await?;
    assert_eq!(found, Comparison::default());
    assert!(std::panic::catch_unwind(|| found.assert_clean()).is_err());
    Ok(())
}

#[tokio::test]
async fn the_workload_makes_every_kind_of_change() -> Outcome {
    for major in majors()? {
        let cluster = Cluster::builder(major).start().await?;
        let source = cluster.connect("postgres").await?;
        witness::create(&source).await?;
        pgbench::create(&source, 1).await?;
        source.execute("SELECT pg_create_logical_replication_slot('s', 'test_decoding')", &[]).await?;
        let counts = Workload::new(3).pgbench(1).run_transactions(&cluster.url("postgres"), 300).await;
        assert_eq!(counts.failed, 0, "no deadlock and no other error: {counts:?}\n{}", cluster.log_tail());
        let sql = "SELECT
                count(*) FILTER (WHERE data LIKE 'table public.witness_mirror: INSERT:%'),
                count(*) FILTER (WHERE data LIKE 'table public.witness_mirror: UPDATE: old-key:%'),
                count(*) FILTER (WHERE data LIKE 'table public.witness_mirror: UPDATE:%unchanged-toast-datum%'),
                count(*) FILTER (WHERE data LIKE 'table public.witness_mirror: DELETE:%'),
                count(*) FILTER (WHERE data LIKE 'table public.pgbench_history: INSERT:%'),
                count(*) FILTER (WHERE data LIKE 'table public.witness_log: INSERT:%'),
                count(*) FILTER (WHERE data LIKE '%rolled back%')
            FROM pg_logical_slot_peek_changes('s', NULL, NULL)";
        let row = source.query_one(sql, &[]).await?;
        for kind in 0..5 {
            assert!(row.get::<_, i64>(kind) > 10, "too few changes of kind {kind}: {row:?}");
        }
        assert_eq!(row.get::<_, i64>(5), i64::try_from(counts.committed)?);
        assert_eq!(row.get::<_, i64>(6), 0);
    }
    Ok(())
}

#[tokio::test]
async fn the_workload_goes_on_after_the_source_crashed() -> Outcome {
    for major in majors()? {
        let cluster = Cluster::builder(major).start().await?;
        witness::create(&cluster.connect("postgres").await?).await?;
        let running = Workload::new(5).connections(3).start(&cluster.url("postgres"));
        let mut kills = KillCount::at_least(2);
        for kill in 0..2 {
            let before = running.counts();
            while running.counts().committed < before.committed + 50 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            kills.record(if kill == 0 {
                cluster.stop_immediate().await?
            } else {
                cluster.sigkill_postmaster().await?
            });
            cluster.start().await?;
        }
        let before = running.counts().committed;
        while running.counts().committed < before + 50 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let counts = running.stop().await;
        assert!(counts.connected >= 9, "three connections, two crashes: {counts:?}");
        let client = cluster.connect("postgres").await?;
        let row = client.query_one("SELECT count(*), count(DISTINCT number) FROM witness_log", &[]).await?;
        let (rows, numbers): (i64, i64) = (row.get(0), row.get(1));
        assert_eq!(rows, numbers, "every transaction has a number of its own");
        let (rows, sure) = (u64::try_from(rows)?, counts.committed);
        assert!((sure..=sure + counts.unknown).contains(&rows), "{rows} rows, {counts:?}");
    }
    Ok(())
}

#[tokio::test]
async fn pgbench_keeps_its_balances() -> Outcome {
    let cluster = Cluster::builder(majors()?[0]).start().await?;
    let client = cluster.connect("postgres").await?;
    pgbench::create(&client, 1).await?;
    let mut random = Random::new(9);
    for _ in 0..20 {
        pgbench::tpcb(&client, &mut random, 1).await?;
    }
    let sql = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history),
                      (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(tbalance) FROM pgbench_tellers),
                      (SELECT count(*) FROM pgbench_history)";
    let row = client.query_one(sql, &[]).await?;
    assert_eq!((row.get(0), row.get(1), row.get(2)), (true, true, 20_i64));
    Ok(())
}
