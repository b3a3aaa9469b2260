//! Transactions that do not fit into memory.

use std::time::Duration;

use pgonce::assemble::SpillSettings;
use pgonce::slot_source::SlotSource;

use crate::common::*;
use crate::open::TempDir;
use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i2_a_million_rows_that_are_rolled_back_leave_neither_buffers_nor_files() {
    for major in each_major() {
        let (cluster, client) = early(major).await;
        let (directory, sink) = (TempDir::new(), MemorySink::default());
        let running = Running::start(spilling(&cluster.url("postgres"), directory.path()), &sink, options());
        eventually("streaming", || async { running.progress.borrow().acknowledged.is_some() }).await;
        client.batch_execute(&format!("BEGIN; {}", rows(1, 1_000_000))).await.unwrap();
        eventually("spilled", || async { spill_files(directory.path()) == 1 }).await;
        client.batch_execute("ROLLBACK").await.unwrap();
        let behind = insert_position(&client).await.before_page_header();
        eventually("gone", || async { spill_files(directory.path()) == 0 }).await;
        client.batch_execute(&rows(1, 1)).await.unwrap();
        eventually("the next one", || async { sink.applied().len() == 1 }).await;
        assert_eq!(sink.changes().len(), 1);
        eventually("acknowledged", || async { confirmed_flush(&client).await >= behind }).await;
        running.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i4_a_row_of_200_mb_is_delivered_and_above_the_bound_of_the_disk_refused_by_name_and_size() {
    for major in each_major() {
        let (cluster, client) = early(major).await;
        client.batch_execute("ALTER TABLE t ALTER COLUMN b SET STORAGE EXTERNAL").await.unwrap();
        let (directory, sink) = (TempDir::new(), MemorySink::default());
        let url = cluster.url("postgres");
        run_until_now(spilling(&url, directory.path()), &sink).await.unwrap();
        client.batch_execute("INSERT INTO t VALUES (1, 1, repeat('x', 200 << 20))").await.unwrap();
        let sql = "SELECT xmin::text FROM t";
        let xid: String = client.query_one(sql, &[]).await.unwrap().get(0);
        let mut bounded = settings(&url);
        bounded.spill = SpillSettings { memory: 1 << 20, disk: 100 << 20, directory: directory.path().to_owned() };
        let refused = run_until_now(SlotSource::new(bounded), &sink).await.unwrap_err();
        assert_eq!((refused.code(), refused.exit_status()), ("spill_full", 10), "{refused}");
        assert!(refused.to_string().contains(&format!("transaction {xid} has ")), "{refused}");
        assert!(refused.to_string().contains("public.t"), "{refused}");
        assert!(refused.to_string().contains("209715"), "the size of the row: {refused}");
        assert!(refused.hint().contains("--spill-disk"), "{}", refused.hint());
        run_until_now(spilling(&url, directory.path()), &sink).await.unwrap();
        let changes = sink.changes();
        assert_eq!((changes.len(), changes[0].len()), (1, "I t 1,1,".len() + (200 << 20)));
        assert_eq!(spill_files(directory.path()), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flow_that_dies_with_a_spilled_transaction_leaves_no_file_and_the_next_one_delivers_it() {
    let major = each_major()[0];
    let (cluster, client) = early(major).await;
    let (directory, sink) = (TempDir::new(), MemorySink::default());
    let url = cluster.url("postgres");
    let running = Running::start(spilling(&url, directory.path()), &sink, options());
    eventually("streaming", || async { running.progress.borrow().acknowledged.is_some() }).await;
    client.batch_execute(&format!("BEGIN; {}", rows(1, 5000))).await.unwrap();
    eventually("spilled", || async { spill_files(directory.path()) == 1 }).await;
    running.kill().await;
    eventually("closed", || async { spill_files(directory.path()) == 0 }).await;
    // Where a file system knows no files without a name, a kill may leave one.
    std::fs::write(directory.path().join("pgonce-spill-k1ll3d"), b"left").unwrap();
    // A stop position does not wait for what is open: it will commit behind it.
    run_until_now(spilling(&url, directory.path()), &sink).await.unwrap();
    assert!(sink.applied().is_empty());
    client.batch_execute("COMMIT").await.unwrap();
    run_until_now(spilling(&url, directory.path()), &sink).await.unwrap();
    assert_eq!(sink.changes().len(), 5000);
    assert_eq!(spill_files(directory.path()), 0, "swept by the start");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_sink_holds_the_socket_back_before_the_disk_is_full() {
    for major in each_major() {
        let (cluster, client) = early(major).await;
        let (directory, sink) = (TempDir::new(), MemorySink::default());
        let url = cluster.url("postgres");
        let source = || {
            let mut settings = settings(&url);
            let (memory, disk) = (50_000, 5 << 20);
            settings.spill = SpillSettings { memory, disk, directory: directory.path().to_owned() };
            SlotSource::new(settings)
        };
        run_until_now(source(), &sink).await.unwrap();
        sink.manners.lock().unwrap().write = Duration::from_millis(700);
        let mut one_by_one = options();
        one_by_one.group.transactions = 1;
        let running = Running::start(source(), &sink, one_by_one);
        // About two megabytes each.
        for batch in 0..8 {
            client.batch_execute(&rows(1 + batch * 20_000, 20_000)).await.unwrap();
        }
        let (mut most, mut applied) = (0, 0);
        while applied < 8 {
            most = most.max(spilled_bytes(directory.path()));
            applied = sink.applied().len();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(most > 2 << 20, "{most} bytes were on disk on {major}: nothing waited there");
        assert!(most < (5 << 20) + (512 << 10), "{most} bytes were on disk on {major}");
        running.stop().await.unwrap();
    }
}
