//! What the target remembers, and that nobody else can write.

mod support;

use pgonce::destination::{Binding, Destination, IdlePoint, StartMode, Stored};
use pgonce::position::{Boundary, CommitLsn, Lsn};
use pgonce::stop::Reason;
use pgonce_target::{FlowPhase, LEDGER_SQL, PostgresTarget, SynchronousCommit, list_flows, read_status, remove_flow};
use pgonce_testkit::{Cluster, majors};
use std::sync::Arc;
use std::time::Duration;
use support::{Feed, NULL, Table, Target, binding, source, stored, t, table_t};

async fn with_t(name: &str) -> Vec<(Target, Feed, Table)> {
    let mut all = Vec::new();
    for target in Target::each(name).await {
        target.sql("create table t(id int primary key, n int, b text)").await;
        let (mut feed, table) = (Feed::new(), table_t());
        feed.describe(&table);
        all.push((target, feed, table));
    }
    all
}

#[tokio::test]
async fn the_checkpoint_is_that_of_the_last_transaction_and_each_knows_its_predecessor() {
    for (target, mut feed, table) in with_t("checkpoint").await {
        let mut sink = PostgresTarget::new(target.settings());
        assert_eq!(sink.open(&source()).await.unwrap(), Stored::Nothing);
        sink.bind(&binding(StartMode::GoForward)).await.unwrap();
        let group: Vec<_> = (1..=3).map(|i| feed.insert(&table, &[t(&i.to_string()), NULL, NULL])).collect();
        sink.write(&group[..2]).await.unwrap();
        sink.write(&group[2..]).await.unwrap();
        let flow = stored(sink.open(&source()).await.unwrap());
        let checkpoint = flow.checkpoint.unwrap();
        assert_eq!((checkpoint.timeline, checkpoint.commit, checkpoint.end), (1, group[2].commit(), group[2].end()));
        assert_eq!((flow.streaming, flow.binding), (true, binding(StartMode::GoForward)));
        assert_eq!(flow.idle.boundary, Boundary(Lsn(0x100)));
        let rows =
            target.rows("select concat_ws(' ', commit_lsn, predecessor, changes) from pgonce.applied order by 1").await;
        assert_eq!(rows, ["0/200 1", "0/300 0/200 1", "0/400 0/300 1"]);
        let digest = &target.rows("select digest from pgonce.applied order by commit_lsn limit 1").await[0];
        assert_eq!(*digest, group[0].digest().to_string());
        let status = read_status(&target.client, "f").await.unwrap().unwrap();
        assert_eq!((status.phase, status.commit, status.epoch), (FlowPhase::Streaming, Some(group[2].commit()), 2));
        assert!(status.holder.unwrap().contains(&format!("PID {}", std::process::id())));
        assert!(status.commit_time.is_some());
    }
}

#[tokio::test]
async fn a24_a_redelivered_transaction_is_skipped_whole() {
    for (target, mut feed, table) in with_t("redelivered").await {
        let mut sink = target.open().await;
        let group: Vec<_> = (1..=3).map(|i| feed.insert(&table, &[t(&i.to_string()), NULL, NULL])).collect();
        sink.write(&group[..2]).await.unwrap();
        let written = sink.write(&group).await.unwrap();
        assert_eq!((written.applied, written.redelivered, written.changes), (1, 2, 1));
        let mut sink = target.open().await;
        let written = sink.write(&group).await.unwrap();
        assert_eq!((written.applied, written.redelivered), (0, 3));
        // What was read as stored is durable: whoever delivers it again may acknowledge it.
        assert_eq!(written.durable, Some(group[2].end()));
        assert_eq!(target.number("select count(*) from t").await, 3);
    }
}

#[tokio::test]
async fn a16_the_same_transaction_with_other_content_is_a_conflict() {
    for (target, mut feed, table) in with_t("other_content").await {
        let mut sink = target.open().await;
        let group = [feed.insert(&table, &[t("1"), NULL, NULL]), feed.insert(&table, &[t("2"), NULL, NULL])];
        sink.write(&group).await.unwrap();
        for change in ["digest = '1:00000000000000000000000000000000'", "changes = 7", "xid = 1"] {
            target.sql("create table saved as table pgonce.applied").await;
            target.sql(&format!("update pgonce.applied set {change} where commit_lsn = '0/300'")).await;
            let mut sink = target.open().await;
            let stop = sink.write(&group).await.unwrap_err();
            let Reason::RedeliveryConflict { commit, xid, .. } = stop.reason() else { panic!("{stop}") };
            assert_eq!((*commit, *xid), (group[1].commit(), group[1].xid()));
            target.sql("truncate pgonce.applied; insert into pgonce.applied table saved; drop table saved").await;
        }
        // Another version of the digest cannot be compared; a row that is gone has been pruned.
        target.sql("update pgonce.applied set digest = '0:77' where commit_lsn = '0/300'").await;
        target.sql("delete from pgonce.applied where commit_lsn = '0/200'").await;
        let mut sink = target.open().await;
        assert_eq!(sink.write(&group).await.unwrap().redelivered, 2);
    }
}

#[tokio::test]
async fn a17_the_older_of_two_writers_cannot_commit() {
    for (target, mut feed, table) in with_t("two_writers").await {
        let mut older = target.open().await;
        let first = feed.insert(&table, &[t("1"), NULL, NULL]);
        older.write(std::slice::from_ref(&first)).await.unwrap();
        let mut newer = target.open().await;
        let second = feed.insert(&table, &[t("2"), NULL, NULL]);
        let stop = older.write(std::slice::from_ref(&second)).await.unwrap_err();
        let Reason::Fenced { flow, holder } = stop.reason() else { panic!("{stop}") };
        assert_eq!(flow, "f");
        assert!(holder.contains("PID"), "{holder}");
        assert_eq!(target.number("select count(*) from t").await, 1);
        // Nor can it leave word of a stop, or move the idle position.
        older.record_stop(&stop).await;
        assert_eq!(read_status(&target.client, "f").await.unwrap().unwrap().stop, None);
        assert_eq!(newer.write(&[second]).await.unwrap().applied, 1);
        let mut newest = target.open().await;
        let idle = IdlePoint { boundary: Boundary(Lsn(0x900)), timeline: 1 };
        assert!(matches!(newer.persist_idle(idle).await.unwrap_err().reason(), Reason::Fenced { .. }));
        assert!(newest.persist_idle(idle).await.unwrap());
    }
}

#[tokio::test]
async fn a_writer_that_hangs_in_its_commit_is_waited_for_and_then_named_busy() {
    for (target, _, _) in with_t("stuck").await {
        let _sink = target.open().await;
        target.sql("begin; update pgonce.flow set updated_at = now()").await;
        let stop = target.open_with(SynchronousCommit::Off).await.unwrap_err();
        assert!(matches!(stop.reason(), Reason::Busy { .. }), "{stop}");
        target.sql("rollback").await;
    }
}

#[tokio::test]
async fn a6_another_source_is_refused_and_does_not_fence_off_the_right_one() {
    for (target, mut feed, table) in with_t("other_source").await {
        let mut sink = target.open().await;
        let mut other = source();
        other.system_identifier = "7000000000000000002".into();
        let stop = PostgresTarget::new(target.settings()).open(&other).await.unwrap_err();
        let Reason::SourceChanged { what } = stop.reason() else { panic!("{stop}") };
        assert!(what.contains("7000000000000000002"), "{what}");
        sink.write(&[feed.insert(&table, &[t("1"), NULL, NULL])]).await.unwrap();
    }
}

#[tokio::test]
async fn a4_a_checkpoint_that_cannot_be_read_is_never_a_fresh_flow() {
    for (target, mut feed, table) in with_t("unreadable").await {
        let mut sink = target.open().await;
        sink.write(&[feed.insert(&table, &[t("1"), NULL, NULL])]).await.unwrap();
        for (damage, repair) in [
            (
                "alter table pgonce.flow rename column commit_lsn to x",
                "alter table pgonce.flow rename column x to commit_lsn",
            ),
            ("alter table pgonce.applied rename to x", "alter table pgonce.x rename to applied"),
            ("alter table pgonce.flow rename to x", "alter table pgonce.x rename to flow"),
            ("delete from pgonce.meta", "insert into pgonce.meta values (2)"),
            (
                "create table s as table pgonce.flow; delete from pgonce.flow",
                "delete from pgonce.flow; insert into pgonce.flow table s; drop table s",
            ),
            ("update pgonce.flow set idle_lsn = '0/50'", "update pgonce.flow set idle_lsn = boundary"),
            ("update pgonce.flow set phase = 'new'", "update pgonce.flow set phase = 'streaming'"),
            ("update pgonce.flow set timeline = 0", "update pgonce.flow set timeline = 1"),
        ] {
            target.sql(damage).await;
            let stop = PostgresTarget::new(target.settings()).open(&source()).await.unwrap_err();
            assert_eq!(stop.code(), "checkpoint_unreadable", "{damage}: {stop}");
            target.sql(repair).await;
        }
        assert!(stored(PostgresTarget::new(target.settings()).open(&source()).await.unwrap()).checkpoint.is_some());
        target.sql("update pgonce.meta set version = 99").await;
        let stop = PostgresTarget::new(target.settings()).open(&source()).await.unwrap_err();
        assert_eq!(stop.code(), "target_not_ready");
    }
}

#[tokio::test]
async fn an_admin_can_make_the_ledger_for_a_role_that_may_not() {
    for (target, mut feed, table) in with_t("no_create").await {
        let role = "apply_only";
        target.sql(&format!("drop role if exists {role}; create role {role} login; grant all on t to {role}")).await;
        let mut settings = target.settings();
        settings.connection.user = role.into();
        let stop = PostgresTarget::new(settings.clone()).open(&source()).await.unwrap_err();
        assert!(stop.hint().contains("pgonce init --sql"), "{stop}: {}", stop.hint());
        target.sql(&format!("{LEDGER_SQL} {LEDGER_SQL}")).await;
        let grants = "grant usage on schema pgonce to apply_only;
                      grant select, insert, update, delete on all tables in schema pgonce to apply_only";
        target.sql(grants).await;
        let mut sink = PostgresTarget::new(settings);
        assert_eq!(sink.open(&source()).await.unwrap(), Stored::Nothing);
        assert!(!sink.report().unwrap().triggers_suppressed);
        sink.bind(&binding(StartMode::GoForward)).await.unwrap();
        let group: Vec<_> = (1..=5).map(|i| feed.insert(&table, &[t(&i.to_string()), NULL, NULL])).collect();
        assert_eq!(sink.write(&group).await.unwrap().applied, 5);
        target.sql(&format!("drop owned by {role}; drop role {role}")).await;
    }
}

#[tokio::test]
async fn a_commit_that_waits_is_durable_at_once_and_one_that_does_not_when_it_is_flushed() {
    for major in majors().unwrap() {
        // A server of its own: somebody else's synchronous commit would flush ours too.
        let cluster = Cluster::builder(major).name("flush").conf("wal_writer_delay", "300ms").conf("autovacuum", "off");
        let target = Target::on(Arc::new(cluster.start().await.unwrap()), "durability").await;
        target.sql("create table t(id int primary key, n int, b text)").await;
        let (mut feed, table) = (Feed::new(), table_t());
        feed.describe(&table);
        let mut sink = target.open_with(SynchronousCommit::On).await.unwrap();
        let first = feed.insert(&table, &[t("1"), NULL, NULL]);
        assert_eq!(sink.write(std::slice::from_ref(&first)).await.unwrap().durable, Some(first.end()));
        // The role's own setting does not count.
        target.sql("alter role postgres set synchronous_commit = on").await;
        let mut sink = target.open_with(SynchronousCommit::Off).await.unwrap();
        target.sql("alter role postgres reset synchronous_commit").await;
        let second = feed.insert(&table, &[t("2"), NULL, NULL]);
        sink.write(std::slice::from_ref(&second)).await.unwrap();
        let mut asked = 0;
        while sink.durable().await.unwrap() != Some(second.end()) {
            asked += 1;
            assert!(asked < 400, "not durable after two seconds");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(asked > 0, "called durable before the server's writer could have flushed it");
        // An idle position is durable when it is stored, and with it everything before.
        let third = feed.insert(&table, &[t("3"), NULL, NULL]);
        sink.write(std::slice::from_ref(&third)).await.unwrap();
        let idle = |lsn| IdlePoint { boundary: Boundary(Lsn(lsn)), timeline: 1 };
        assert!(sink.persist_idle(idle(0x900)).await.unwrap());
        assert_eq!(sink.durable().await.unwrap(), Some(third.end()));
        sink.persist_idle(idle(0x800)).await.unwrap();
        assert_eq!(stored(sink.open(&source()).await.unwrap()).idle, idle(0x900));
    }
}

#[tokio::test]
async fn a21_nothing_that_the_target_lost_was_called_durable() {
    for major in majors().unwrap() {
        // A server that flushes late on its own.
        let cluster = Cluster::builder(major).name("a21").conf("wal_writer_delay", "10s").conf("autovacuum", "off");
        let target = Target::on(Arc::new(cluster.start().await.unwrap()), "a21").await;
        target.sql("create table t(id int primary key, n int, b text); checkpoint").await;
        let (mut feed, table) = (Feed::new(), table_t());
        feed.describe(&table);
        let mut sink = target.open().await;
        let group: Vec<_> = (1..=20).map(|i| feed.insert(&table, &[t(&i.to_string()), NULL, NULL])).collect();
        let mut claimed = None;
        for transaction in &group {
            claimed = sink.write(std::slice::from_ref(transaction)).await.unwrap().durable.max(claimed);
        }
        claimed = sink.durable().await.unwrap().max(claimed);
        assert!(target.cluster.stop_immediate().await.is_ok());
        // The connection died with the server, and claims nothing more.
        assert!(sink.durable().await.is_err());
        target.cluster.start().await.unwrap();
        let flow = stored(sink.open(&source()).await.unwrap());
        assert!(flow.checkpoint.map(|c| c.end) >= claimed, "{:?} was claimed, {:?} is there", claimed, flow.checkpoint);
        assert!(claimed < Some(group[19].end()), "the server flushed so fast that the test shows nothing");
        sink.write(&group).await.unwrap();
        let client = target.cluster.connect("a21").await.unwrap();
        let rows: i64 = client.query_one("select count(*) from t", &[]).await.unwrap().get(0);
        assert_eq!(rows, 20);
    }
}

#[tokio::test]
async fn f3_a_write_that_is_dropped_leaves_nothing_behind() {
    for (target, mut feed, table) in with_t("dropped").await {
        let mut sink = target.open().await;
        let first = feed.insert(&table, &[t("1"), t("0"), NULL]);
        sink.write(std::slice::from_ref(&first)).await.unwrap();
        // Somebody holds the row that the second change of the transaction needs.
        target.sql("begin; select from t where id = 1 for update").await;
        let blocked = feed.transaction(|tx| {
            tx.insert(&table, &[t("2"), t("0"), NULL]);
            tx.update(&table, None, &[t("1"), t("1"), NULL]);
        });
        let write = sink.write(std::slice::from_ref(&blocked));
        assert!(tokio::time::timeout(Duration::from_millis(300), write).await.is_err());
        let stop = sink.write(std::slice::from_ref(&blocked)).await.unwrap_err();
        assert_eq!(stop.code(), "internal", "{stop}");
        // The server notices that nobody waits for the statement any more, though the lock is still held.
        let sql =
            "select count(*) from pg_stat_activity where datname = 'dropped' and application_name = 'pgonce apply'";
        let watcher = target.cluster.connect("postgres").await.unwrap();
        for left in (0..600).rev() {
            if watcher.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 0 {
                break;
            }
            assert!(left > 0, "the session outlives its client");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        target.sql("rollback").await;
        assert_eq!(target.table("t").await, ["(1,0,)"]);
        let mut sink = target.open().await;
        assert_eq!(sink.write(&[blocked]).await.unwrap().applied, 1);
    }
}

#[tokio::test]
async fn a22_changes_that_are_in_the_copy_are_left_out_and_those_at_its_boundary_are_not() {
    for (target, mut feed, table) in with_t("boundaries").await {
        target.sql("create table u(id int primary key, n int, b text)").await;
        let u = Table { oid: 2, name: "u".into(), ..table_t() };
        feed.describe(&u);
        let mut sink = PostgresTarget::new(target.settings());
        sink.open(&source()).await.unwrap();
        sink.bind(&binding(StartMode::Snapshot)).await.unwrap();
        assert!(!stored(sink.open(&source()).await.unwrap()).streaming);
        target
            .sql(
                "insert into pgonce.snapshot (flow, table_oid, schema_name, table_name, boundary, rows) values
                    ('f', 1, 'public', 't', '0/100', 0), ('f', 2, 'public', 'u', '0/300', 1);
                    insert into u values (1)",
            )
            .await;
        let flow = stored(sink.open(&source()).await.unwrap());
        assert_eq!(flow.tables.len(), 2);
        sink.copied().await.unwrap();
        let group = [
            feed.transaction(|tx| {
                tx.insert(&table, &[t("1"), NULL, NULL]);
                tx.insert(&u, &[t("1"), NULL, NULL]);
                tx.truncate(&[&table, &u], false);
            }),
            feed.transaction(|tx| tx.insert(&u, &[t("2"), NULL, NULL])),
        ];
        assert_eq!((group[0].commit(), group[1].commit()), (CommitLsn(Lsn(0x200)), CommitLsn(Lsn(0x300))));
        let written = sink.write(&group).await.unwrap();
        assert_eq!((written.applied, written.changes), (2, 3));
        assert_eq!(target.table("u").await, ["(1,,)", "(2,,)"]);
        assert_eq!(target.number("select count(*) from t").await, 0);
        // D4: a table that was not copied.
        let late = Table { oid: 3, ..table_t() };
        feed.describe(&late);
        let stop = sink.write(&[feed.insert(&late, &[t("9"), NULL, NULL])]).await.unwrap_err();
        assert_eq!(stop.reason(), &Reason::TableJoined { table: "public.t".into(), oid: 3 });
    }
}

#[tokio::test]
async fn a_ledger_of_version_1_is_taken_up_with_what_it_holds() {
    for (target, mut feed, table) in with_t("upgrade").await {
        let role = "upgrader";
        target
            .sql(&format!(
                "{} update pgonce.meta set version = 1;
                 insert into pgonce.flow (name, system_identifier, database, slot, start_mode, published, boundary,
                     timeline, idle_lsn, idle_timeline, phase)
                 values ('f', '{}', 'shop', 'pgonce_f', 'snapshot', 'nothing # nothing', '0/100', 1, '0/100', 1,
                     'streaming');
                 insert into pgonce.snapshot values ('f', 1, 'public', 't', '0/100', 7);
                 do $$ begin create role {role} login; exception when duplicate_object then null; end $$;
                 grant usage on schema pgonce to {role};
                 grant select, insert, update, delete on all tables in schema pgonce to {role}",
                include_str!("support/ledger-1.sql"),
                source().system_identifier,
            ))
            .await;
        // Whoever only looks changes nothing.
        let stop = read_status(&target.client, "f").await.unwrap_err();
        assert!(stop.hint().contains("`pgonce run`"), "{stop}");
        // A role that does not own the tables cannot.
        let mut settings = target.settings();
        settings.connection.user = role.into();
        let stop = PostgresTarget::new(settings).open(&source()).await.unwrap_err();
        assert!(stop.to_string().contains("does not own its tables"), "{stop}");
        assert!(stop.hint().contains("`pgonce init --sql`"), "{}", stop.hint());
        // The owner can, and an admin may run it again.
        let mut sink = PostgresTarget::new(target.settings());
        let flow = stored(sink.open(&source()).await.unwrap());
        assert_eq!((flow.tables.len(), flow.tables[0].boundary()), (1, Some(Boundary(Lsn(0x100)))));
        target.sql(pgonce_target::LEDGER_SQL).await;
        assert_eq!(target.rows("select version::text from pgonce.meta").await, ["2"]);
        sink.write(&[feed.insert(&table, &[t("1"), NULL, NULL])]).await.unwrap();
        assert_eq!(target.table("t").await, ["(1,,)"]);
        assert_eq!(read_status(&target.client, "f").await.unwrap().unwrap().copied[0].rows, 7);
        // An unfinished copy, and one whose pieces do not cover the table.
        target
            .sql(
                "insert into pgonce.snapshot (flow, table_oid, piece, schema_name, table_name, kind, key_column, low)
                    values ('f', 2, 1, 'public', 'u', 'key', 'id', '10')",
            )
            .await;
        let stop = PostgresTarget::new(target.settings()).open(&source()).await.unwrap_err();
        assert!(stop.to_string().contains("OID 2 do not cover it"), "{stop}");
        target
            .sql(
                "insert into pgonce.snapshot (flow, table_oid, schema_name, table_name, kind, key_column, high)
                    values ('f', 2, 'public', 'u', 'key', 'id', '10')",
            )
            .await;
        let flow = stored(PostgresTarget::new(target.settings()).open(&source()).await.unwrap());
        assert_eq!((flow.tables[1].pieces.len(), flow.tables[1].is_copied()), (2, false));
        // All of it copied, and passed: one row.
        target.sql("update pgonce.snapshot set boundary = '0/110', rows = 3 where table_oid = 2").await;
        let flow = stored(PostgresTarget::new(target.settings()).open(&source()).await.unwrap());
        assert_eq!((flow.tables[1].pieces.len(), flow.tables[1].boundary()), (1, Some(Boundary(Lsn(0x110)))));
        let rows = "select kind || ' ' || boundary || ' ' || rows from pgonce.snapshot where table_oid = 2";
        assert_eq!(target.rows(rows).await, ["whole 0/110 6"]);
    }
}

#[tokio::test]
async fn a_stop_is_remembered_until_the_flow_writes_again() {
    for (target, mut feed, table) in with_t("stop").await {
        let mut sink = target.open().await;
        let wrong = feed.insert(&table, &[t("x"), NULL, NULL]);
        let stop = sink.write(&[wrong]).await.unwrap_err();
        sink.record_stop(&stop).await;
        let stored = read_status(&target.client, "f").await.unwrap().unwrap().stop.unwrap();
        assert_eq!((stored.code.as_str(), stored.text, stored.hint), (stop.code(), stop.to_string(), stop.hint()));
        // The server notices in its own time that the session is gone.
        let mut tries = 0..600;
        while tries.next().is_some() && read_status(&target.client, "f").await.unwrap().unwrap().alive.is_some() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert!(!tries.is_empty(), "a session that is gone is taken for a writer");
        let mut sink = target.open().await;
        let status = read_status(&target.client, "f").await.unwrap().unwrap();
        assert!(status.stop.unwrap().at < status.updated_at, "it is known that it was started again");
        let pid =
            "select pid::int8 from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()";
        let pid = target.number(&format!("{pid} and application_name like '%apply%'")).await;
        assert_eq!(status.alive.map(i64::from), Some(pid));
        sink.write(&[feed.insert(&table, &[t("1"), NULL, NULL])]).await.unwrap();
        assert_eq!(read_status(&target.client, "f").await.unwrap().unwrap().stop, None);
    }
}

#[tokio::test]
async fn flows_are_listed_and_removed_with_all_that_is_stored_of_them() {
    for (target, mut feed, table) in with_t("remove").await {
        assert_eq!(list_flows(&target.client).await.unwrap(), Vec::<String>::new());
        assert_eq!(read_status(&target.client, "f").await.unwrap(), None);
        let mut sink = target.open().await;
        sink.write(&[feed.insert(&table, &[t("1"), NULL, NULL])]).await.unwrap();
        assert_eq!(list_flows(&target.client).await.unwrap(), ["f"]);
        let mut client = target.cluster.connect(&target.database).await.unwrap();
        assert!(remove_flow(&mut client, "f").await.unwrap());
        assert!(!remove_flow(&mut client, "f").await.unwrap());
        assert_eq!(target.number("select count(*) from pgonce.applied").await, 0);
        // Who ran it cannot go on.
        let stop = sink.write(&[feed.insert(&table, &[t("2"), NULL, NULL])]).await.unwrap_err();
        assert_eq!(stop.code(), "checkpoint_unreadable", "{stop}");
        let mut sink = PostgresTarget::new(target.settings());
        assert_eq!(sink.open(&source()).await.unwrap(), Stored::Nothing);
        let again = Binding { boundary: Boundary(Lsn(0x1000)), ..binding(StartMode::GoForward) };
        sink.bind(&again).await.unwrap();
        assert!(sink.bind(&again).await.is_err());
    }
}

#[tokio::test]
async fn a_group_out_of_order_is_refused() {
    for (target, mut feed, table) in with_t("out_of_order").await {
        let mut sink = target.open().await;
        let group = [feed.insert(&table, &[t("1"), NULL, NULL]), feed.insert(&table, &[t("2"), NULL, NULL])];
        let [first, second] = group;
        assert_eq!(sink.write(&[second, first]).await.unwrap_err().code(), "internal");
    }
}
