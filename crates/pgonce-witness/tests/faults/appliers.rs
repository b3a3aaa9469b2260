//! Two processes on one flow, and what a killed one leaves on its way.

use pgonce_testkit::majors;

use crate::stage::*;

/// Ends the walsender of a flow.
async fn end_walsender(flow: &Flow<'_>) {
    let sql = format!(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{}'",
        flow.slot()
    );
    flow.at_source(&sql).await;
    flow.confirmed_flush().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a17_of_two_processes_on_one_state_the_older_one_cannot_store_says_why_and_ends() {
    for major in majors().unwrap() {
        let stage = Stage::new(major).await;
        for keep in [Keep::Atomic, Keep::Postgres] {
            let flow = stage.flow(keep).await;
            flow.numbered(1).await;
            flow.assert_witnesses(0, 0).await;
            // The older one has a batch in its hands when its walsender goes.
            let older = flow.streaming(&["--write-ms", "4000"]).await;
            flow.numbered(1).await;
            let target = flow.target().await;
            let writing = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgonce sink'
                           AND state = 'idle in transaction' AND datname = current_database()";
            flow.eventually("the older one writes", || async { number(&target, writing).await == 1 }).await;
            end_walsender(&flow).await;
            let newer = flow.start(&[]);
            flow.logged(2).await;
            assert_eq!(older.ended().await, Some(9), "{}", flow.tail());
            assert_eq!(flow.last_words().0, "fenced");
            assert!(flow.last_words().1.contains("another process"), "{}", flow.tail());
            flow.numbered(1).await;
            // What it had in its hands is written by both of them where the state comes after the data.
            flow.logged(if keep.once() { 3 } else { 4 }).await;
            newer.sigterm().await;
            flow.assert_witnesses(1, 1).await;
        }

        // A directory has a lock: the newer one waits for the end of the older one, and says so.
        let flow = stage.flow(Keep::File).await;
        let mut older = flow.streaming(&["--write-ms", "4000"]).await;
        flow.numbered(1).await;
        end_walsender(&flow).await;
        let newer = flow.start(&[]);
        flow.said("sink_busy").await;
        assert!(flow.log().contains("another process holds it"), "{}", flow.tail());
        let _ = older.sigkill();
        flow.logged(1).await;
        newer.sigterm().await;
        flow.assert_witnesses(1, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f2_a_commit_that_a_killed_process_left_on_its_way_does_not_stop_the_next_one() {
    for major in majors().unwrap() {
        let stage = Stage::new(major).await;
        let flow = stage.flow(Keep::Atomic).await;
        flow.at_target(HOLD_COMMITS).await;
        let holder = flow.target().await;
        holder.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
        let mut run = flow.streaming(&[]).await;
        flow.numbered(1).await;
        let target = flow.target().await;
        let waiting = |sessions: i64| {
            let target = &target;
            move || async move { number(target, WAITING_FOR_A_LOCK).await == sessions }
        };
        flow.eventually("the commit is held", waiting(1)).await;
        let _ = run.sigkill();
        // The next one has read a state that the commit, which nobody waits for any more, is about to replace.
        let next = flow.start(&["--until-now"]);
        flow.eventually("the next one waits for it", waiting(2)).await;
        holder.batch_execute("SELECT pg_advisory_unlock(7)").await.unwrap();
        assert_eq!(next.ended().await, Some(0), "{}", flow.tail());
        flow.assert_written(0, 0).await;
    }
}
