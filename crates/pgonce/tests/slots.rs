//! Where a stream begins and when it is refused; messages, origins and heartbeats: on real servers.

mod common;

use std::time::Duration;

use common::*;
use pgonce::destination::StartMode;
use pgonce::pipeline::{Finished, Until};
use pgonce::position::Lsn;
use pgonce::slot_source::{OriginFilter, SlotSettings, SlotSource};
use pgonce::stop::Stop;
use pgonce_testkit::Cluster;
use tokio_postgres::Client;

const T: &str = "CREATE TABLE t (id int PRIMARY KEY, n int, b text); CREATE PUBLICATION p FOR TABLE t;";

async fn with_t(major: u32) -> (Cluster, Client) {
    let cluster = source(major).await;
    let client = cluster.connect("postgres").await.unwrap();
    client.batch_execute(T).await.unwrap();
    (cluster, client)
}

fn settings(cluster: &Cluster, publications: &[&str]) -> SlotSettings {
    let publications = publications.iter().map(|&name| name.to_owned()).collect();
    SlotSettings::new(connection(&cluster.url("postgres")), "pgonce_test", publications)
}

fn flow(cluster: &Cluster) -> SlotSource {
    SlotSource::new(settings(cluster, &["p"]))
}

async fn lsn(client: &Client, sql: &str) -> Lsn {
    client.query_one(sql, &[]).await.unwrap().get::<_, String>(0).parse().unwrap()
}

/// A start onto a sink that knows nothing, and one of a flow that has begun: each is refused, twice, with this code and
/// words, and nothing is applied or left behind.
async fn refused(source: impl Fn() -> SlotSource, sinks: [&MemorySink; 2], code: &str, words: &str) -> Stop {
    let mut last = None;
    for sink in sinks {
        let before = (sink.applied().len(), sink.remembered().flow);
        for _ in 0..2 {
            let stop = run_until_now(source(), sink).await.unwrap_err();
            assert_eq!(stop.code(), code, "{stop}");
            assert!(!stop.is_transient() && stop.to_string().contains(words), "{stop}");
            assert_eq!((sink.applied().len(), sink.remembered().flow), before, "{stop}");
            last = Some(stop);
        }
    }
    last.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a4_a_slot_that_is_not_ours_to_read_is_refused_at_the_first_start_and_at_every_other() {
    for major in each_major() {
        let (cluster, client) = with_t(major).await;
        cluster.create_database("other").await.unwrap();
        let other = cluster.connect("other").await.unwrap();
        let begun = MemorySink::default();
        run_until_now(flow(&cluster), &begun).await.unwrap();
        let drop_slot = "SELECT pg_drop_replication_slot('pgonce_test')";
        client.batch_execute(drop_slot).await.unwrap();
        let new = MemorySink::default();
        let made = [
            (&client, "pg_create_physical_replication_slot('pgonce_test')", "it is a physical slot"),
            (&client, "pg_create_logical_replication_slot('pgonce_test', 'test_decoding')", "test_decoding"),
            (&other, "pg_create_logical_replication_slot('pgonce_test', 'pgoutput')", "belongs to database other"),
            (&client, "pg_create_logical_replication_slot('pgonce_test', 'pgoutput', true)", "a temporary slot"),
            (&other, "pg_create_logical_replication_slot('pgonce_test', 'pgoutput', true)", "database other"),
        ];
        for (at, sql, words) in made {
            at.batch_execute(&format!("SELECT {sql}")).await.unwrap();
            let stop = refused(|| flow(&cluster), [&new, &begun], "slot_unusable", words).await;
            assert!(stop.hint().contains("--slot"), "{}", stop.hint());
            at.batch_execute(drop_slot).await.unwrap();
        }
        let slots = client.query("SELECT 1 FROM pg_replication_slots", &[]).await.unwrap();
        assert!(slots.is_empty(), "a refused start makes no slot");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_cannot_be_read_or_was_left_behind_is_named() {
    for major in each_major() {
        let (cluster, client) = with_t(major).await;
        client.batch_execute("CREATE ROLE reader LOGIN REPLICATION; GRANT SELECT ON t TO reader").await.unwrap();
        let url = cluster.url("postgres").replace("postgres@", "reader@");
        let begun = MemorySink::default();
        run_until_now(slot_source(&url, "p"), &begun).await.unwrap();
        let new = MemorySink::default();
        client.batch_execute("REVOKE SELECT ON pg_replication_slots FROM PUBLIC").await.unwrap();
        let stop = refused(|| slot_source(&url, "p"), [&new, &begun], "source_not_ready", "pg_replication_slots").await;
        assert!(stop.hint().contains("GRANT SELECT ON TABLE \"pg_replication_slots\""), "{}", stop.hint());
        client.batch_execute("GRANT SELECT ON pg_replication_slots TO PUBLIC").await.unwrap();
        client.batch_execute("ALTER ROLE reader NOREPLICATION").await.unwrap();
        let stop = refused(|| slot_source(&url, "p"), [&new, &begun], "connection_refused", "").await;
        assert!(stop.hint().contains("REPLICATION"), "{}", stop.hint());
        client.batch_execute("ALTER ROLE reader REPLICATION").await.unwrap();
        run_until_now(slot_source(&url, "p"), &begun).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a25_publications_that_are_missing_or_publish_nothing_are_named() {
    for major in each_major() {
        let (cluster, client) = with_t(major).await;
        let both = || SlotSource::new(settings(&cluster, &["p", "q"]));
        let new = MemorySink::default();
        let stop = refused(both, [&new, &new], "publication_missing", "publication q").await;
        assert!(stop.hint().contains("CREATE PUBLICATION \"q\""), "{}", stop.hint());
        client.batch_execute("CREATE PUBLICATION q FOR TABLE t WITH (publish = '')").await.unwrap();
        let stop = refused(both, [&new, &new], "source_not_ready", "publication q publishes no operation").await;
        assert!(stop.hint().contains("ALTER PUBLICATION \"q\" SET (publish ="), "{}", stop.hint());
        client.batch_execute("CREATE PUBLICATION none").await.unwrap();
        let none = || SlotSource::new(settings(&cluster, &["none"]));
        let stop = refused(none, [&new, &new], "source_not_ready", "publishes no table").await;
        assert!(stop.hint().contains("ALTER PUBLICATION \"none\" ADD TABLE"), "{}", stop.hint());
        let slots = client.query("SELECT 1 FROM pg_replication_slots", &[]).await.unwrap();
        assert!(slots.is_empty(), "a refused start makes no slot");

        client.batch_execute("ALTER PUBLICATION q SET (publish = 'insert')").await.unwrap();
        let begun = MemorySink::default();
        run_until_now(both(), &begun).await.unwrap();
        client.batch_execute("ALTER PUBLICATION q SET (publish = '')").await.unwrap();
        refused(both, [&begun, &begun], "publication_changed", "publication q").await;
        client.batch_execute("DROP PUBLICATION q").await.unwrap();
        refused(both, [&begun, &begun], "publication_changed", "publication q no longer exists").await;
        // Made anew it is another one, which may have left something out.
        client.batch_execute("CREATE PUBLICATION q FOR TABLE t WITH (publish = 'insert')").await.unwrap();
        refused(both, [&begun, &begun], "publication_changed", "publication q").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e2_a_wal_segment_taken_away_by_hand_stops_the_flow_and_does_not_try_for_ever() {
    for major in each_major() {
        let (cluster, client) = with_t(major).await;
        let sink = MemorySink::default();
        run_until_now(flow(&cluster), &sink).await.unwrap();
        let file = "SELECT pg_walfile_name(restart_lsn) FROM pg_replication_slots";
        let file: String = client.query_one(file, &[]).await.unwrap().get(0);
        client.batch_execute("INSERT INTO t VALUES (1, 1, 'a'); SELECT pg_switch_wal(); CHECKPOINT").await.unwrap();
        client.batch_execute("INSERT INTO t VALUES (2, 1, 'a'); SELECT pg_switch_wal(); CHECKPOINT").await.unwrap();
        std::fs::remove_file(cluster.data_dir().join("pg_wal").join(file)).unwrap();
        let stop = refused(|| flow(&cluster), [&sink, &sink], "source_not_ready", "58P01").await;
        assert!(stop.hint().contains("pgonce reset"), "{}", stop.hint());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_is_not_logical_is_refused_at_the_first_start_and_at_every_other() {
    for major in each_major() {
        let (cluster, client) = with_t(major).await;
        let begun = MemorySink::default();
        run_until_now(flow(&cluster), &begun).await.unwrap();
        client.batch_execute("SELECT pg_drop_replication_slot('pgonce_test')").await.unwrap();
        drop(client);
        cluster.set_conf("wal_level", "replica").await.unwrap();
        cluster.restart().await.unwrap();
        let new = MemorySink::default();
        let stop = refused(|| flow(&cluster), [&new, &begun], "source_not_ready", "wal_level is replica").await;
        assert!(stop.hint().contains("ALTER SYSTEM SET wal_level = 'logical'"), "{}", stop.hint());
        cluster.set_conf("wal_level", "logical").await.unwrap();
        cluster.restart().await.unwrap();
        refused(|| flow(&cluster), [&begun, &begun], "data_gap", "does not exist").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sink_is_told_where_the_stream_begins_before_it_does_and_may_refuse() {
    for major in each_major() {
        let (cluster, client) = with_t(major).await;
        let sink = MemorySink::default();
        sink.manners.lock().unwrap().vetoes = true;
        assert_eq!(run_until_now(flow(&cluster), &sink).await.unwrap_err().code(), "unsupported");
        assert!(sink.remembered().flow.is_none() && sink.remembered().copied.is_empty(), "nothing was begun");
        let vetoed = sink.remembered().origins.pop().unwrap();
        assert!(vetoed.created && vetoed.boundary.0 == vetoed.confirmed_flush, "{vetoed:?}");
        assert_eq!((vetoed.slot.as_str(), vetoed.timeline, vetoed.two_phase), ("pgonce_test", 1, false));
        assert_eq!(confirmed_flush(&client).await, vetoed.confirmed_flush);

        sink.manners.lock().unwrap().vetoes = false;
        run_until_now(flow(&cluster), &sink).await.unwrap();
        let again = sink.remembered().origins.pop().unwrap();
        assert!(!again.created && again.boundary == vetoed.boundary, "{again:?}");
        assert_eq!(sink.remembered().flow.unwrap().binding.boundary, again.boundary);

        // What is stored may be ahead of what was acknowledged.
        sink.manners.lock().unwrap().idles = false;
        client.batch_execute("INSERT INTO t VALUES (1, 1, 'a')").await.unwrap();
        run_until_now(flow(&cluster), &sink).await.unwrap();
        let confirmed = confirmed_flush(&client).await;
        let mut memory = sink.remembered();
        let checkpoint = memory.flow.as_mut().unwrap().checkpoint.as_mut().unwrap();
        checkpoint.end.0.0 = checkpoint.end.0.0.max(confirmed.0 + 8);
        let end = checkpoint.end.as_boundary();
        client.batch_execute("INSERT INTO t VALUES (2, 1, 'a')").await.unwrap();
        *sink.memory.lock().unwrap() = memory;
        run_until_now(flow(&cluster), &sink).await.unwrap();
        let ahead = sink.remembered().origins.pop().unwrap();
        assert_eq!((ahead.confirmed_flush, ahead.boundary), (confirmed, end));

        // At every connect, the veto too.
        sink.manners.lock().unwrap().vetoes = true;
        let before = sink.applied().len();
        client.batch_execute("INSERT INTO t VALUES (3, 1, 'a')").await.unwrap();
        assert_eq!(run_until_now(flow(&cluster), &sink).await.unwrap_err().code(), "unsupported");
        assert_eq!(sink.applied().len(), before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_in_a_transaction_keep_their_place_and_every_byte() {
    for major in each_major() {
        let (cluster, client) = with_t(major).await;
        let sink = MemorySink::default();
        run_until_now(flow(&cluster), &sink).await.unwrap();
        let emit = "SELECT pg_logical_emit_message(true";
        client
            .batch_execute(&format!(
                "BEGIN; {emit}, 'one', 'first'); INSERT INTO t VALUES (1, 1, 'a'); {emit}, 'two', 'between'); \
                 SAVEPOINT s; {emit}, 'gone', 'rolled back'); INSERT INTO t VALUES (2, 1, 'b'); ROLLBACK TO s; \
                 INSERT INTO t VALUES (3, 1, 'c'); COMMIT"
            ))
            .await
            .unwrap();
        client.batch_execute(&format!("BEGIN; {emit}, 'gone', 'rolled back'); ROLLBACK")).await.unwrap();
        client.batch_execute(&format!("{emit}, 'Präfix', 'alone')")).await.unwrap();
        client.batch_execute(&format!("{emit}, '', ''::bytea)")).await.unwrap();
        run_until_now(flow(&cluster), &sink).await.unwrap();
        let changes: Vec<Vec<String>> = sink.applied().into_iter().map(|t| t.changes).collect();
        assert_eq!(
            changes,
            [vec!["M one first", "I t 1,1,a", "M two between", "I t 3,1,c"], vec!["M Präfix alone"], vec!["M  "],]
        );
        assert_eq!(sink.applied()[0].change_count, 4);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_outside_transactions_come_in_stream_order_with_the_lsn_that_the_server_returned() {
    for major in each_major() {
        let (cluster, client) = with_t(major).await;
        let sink = MemorySink::default();
        sink.manners.lock().unwrap().messages = true;
        let before = "SELECT pg_logical_emit_message(false, 'before', 'the flow')";
        client.batch_execute(before).await.unwrap();
        run_until_now(flow(&cluster), &sink).await.unwrap();
        let emit =
            |content: &str| format!("SELECT pg_logical_emit_message(false, 'p', decode('{content}', 'hex'))::text");
        let mut returned = Vec::new();
        // Also such as end at the edge of a page, or lie over several.
        let contents = ["00ff80fe0000", "", &"ab".repeat(7_000), &"00".repeat(100_000), "01"];
        for (number, content) in contents.iter().enumerate() {
            returned.push(lsn(&client, &emit(content)).await);
            client.batch_execute(&format!("INSERT INTO t VALUES ({number}, 1, 'a')")).await.unwrap();
        }
        // Inside a transaction, that is rolled back: it is there all the same, before what commits behind it.
        client.batch_execute("BEGIN; INSERT INTO t VALUES (100, 1, 'a')").await.unwrap();
        returned.push(lsn(&client, &emit("02")).await);
        client.batch_execute("ROLLBACK").await.unwrap();
        for size in (0..8192).step_by(97) {
            returned.push(lsn(&client, &emit(&"cc".repeat(size))).await);
        }
        run_until_now(flow(&cluster), &sink).await.unwrap();
        let messages = sink.remembered().messages;
        let lsns: Vec<Lsn> = messages.iter().map(|(_, m)| m.lsn).collect();
        assert_eq!(lsns, returned, "on {major}");
        for (number, content) in contents.iter().enumerate() {
            let (place, message) = &messages[number];
            assert_eq!((*place, message.prefix.as_str()), (number, "p"));
            let hex: String = message.content.iter().map(|b| format!("{b:02x}")).collect();
            assert!(hex == *content, "message {number} on {major}");
        }
        assert!(!format!("{messages:?}").contains("abab"), "no content in what is logged");
        // Nothing of it comes again, and everything is acknowledged.
        run_until_now(flow(&cluster), &sink).await.unwrap();
        assert_eq!(sink.remembered().messages.len(), messages.len());
        assert!(confirmed_flush(&client).await >= *returned.last().unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_in_flight_holds_the_acknowledgement_and_comes_again_after_a_kill() {
    for major in each_major() {
        for idles in [true, false] {
            let (cluster, client) = with_t(major).await;
            let sink = MemorySink::default();
            {
                let mut manners = sink.manners.lock().unwrap();
                (manners.messages, manners.idles) = (true, idles);
            }
            run_until_now(flow(&cluster), &sink).await.unwrap();
            let running = Running::start(flow(&cluster), &sink, options());
            client.batch_execute("INSERT INTO t VALUES (1, 1, 'a')").await.unwrap();
            eventually("the first is there", || async { sink.applied().len() == 1 }).await;
            // It takes for ever.
            sink.manners.lock().unwrap().write = Duration::from_secs(600);
            let emit = "SELECT pg_logical_emit_message(false, 'p', 'x')::text";
            let at = lsn(&client, emit).await;
            client.batch_execute("INSERT INTO t VALUES (2, 1, 'a')").await.unwrap();
            client.batch_execute("CREATE TABLE other AS SELECT generate_series(1, 10000) AS a").await.unwrap();
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert!(confirmed_flush(&client).await < at, "acknowledged over a message in flight");
            running.kill().await;
            assert_eq!((sink.applied().len(), sink.remembered().messages.len()), (1, 0));
            sink.manners.lock().unwrap().write = Duration::ZERO;
            run_until_now(flow(&cluster), &sink).await.unwrap();
            let messages = sink.remembered().messages;
            assert_eq!((messages.len(), messages[0].0, messages[0].1.lsn), (1, 1, at), "idles: {idles}");
            assert_eq!(sink.applied().len(), 2);
            assert!(confirmed_flush(&client).await > at);
            // One that is the last thing there is, and was delivered: again, if nothing behind it could be stored.
            lsn(&client, emit).await;
            run_until_now(flow(&cluster), &sink).await.unwrap();
            let delivered = sink.remembered().messages.len();
            run_until_now(flow(&cluster), &sink).await.unwrap();
            assert_eq!(sink.remembered().messages.len(), delivered + usize::from(!idles));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_behind_the_stop_position_are_left_for_the_next_run() {
    let (cluster, client) = with_t(each_major()[0]).await;
    let sink = MemorySink::default();
    sink.manners.lock().unwrap().messages = true;
    run_until_now(flow(&cluster), &sink).await.unwrap();
    let emit = "SELECT pg_logical_emit_message(false, 'p', 'x')::text";
    let first = lsn(&client, emit).await;
    let second = lsn(&client, emit).await;
    let mut to_stop = options();
    to_stop.until = Some(Until::At(first));
    let ended = Running::start(flow(&cluster), &sink, to_stop).ended().await.unwrap();
    assert!(matches!(ended, Finished::Drained(at) if at.0 == first));
    let lsns = || sink.remembered().messages.iter().map(|(_, m)| m.lsn).collect::<Vec<_>>();
    assert_eq!(lsns(), [first]);
    run_until_now(flow(&cluster), &sink).await.unwrap();
    // At least once: nothing that could be stored lay behind the first.
    let mut lsns = lsns();
    lsns.dedup();
    assert_eq!(lsns, [first, second]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn origins_are_visible_and_left_out_alike_by_every_version() {
    let mut seen = Vec::new();
    for major in each_major() {
        let (cluster, client) = with_t(major).await;
        let (all, own) = (MemorySink::default(), MemorySink::default());
        let filtered = || {
            let mut settings = settings(&cluster, &["p"]);
            (settings.slot, settings.origin) = ("own".to_owned(), OriginFilter::None);
            SlotSource::new(settings)
        };
        run_until_now(flow(&cluster), &all).await.unwrap();
        run_until_now(filtered(), &own).await.unwrap();
        client.batch_execute("SELECT pg_replication_origin_create('elsewhere')").await.unwrap();
        let (enter, leave) =
            ("SELECT pg_replication_origin_session_setup('elsewhere')", "SELECT pg_replication_origin_session_reset()");
        client.batch_execute("INSERT INTO t VALUES (1, 1, 'own')").await.unwrap();
        client.batch_execute(enter).await.unwrap();
        client.batch_execute("INSERT INTO t VALUES (2, 1, 'of elsewhere')").await.unwrap();
        client.batch_execute("SELECT pg_logical_emit_message(true, 'm', 'of elsewhere')").await.unwrap();
        client.batch_execute(leave).await.unwrap();
        client.batch_execute("UPDATE t SET n = 2 WHERE id = 2").await.unwrap();
        run_until_now(flow(&cluster), &all).await.unwrap();
        run_until_now(filtered(), &own).await.unwrap();
        let origins: Vec<_> = all.applied().into_iter().map(|t| t.origin).collect();
        let elsewhere = Some("elsewhere".to_owned());
        assert_eq!(origins, [None, elsewhere.clone(), elsewhere, None], "on {major}");
        assert_eq!(all.changes(), ["I t 1,1,own", "I t 2,1,of elsewhere", "M m of elsewhere", "U t 2,2,of elsewhere"]);
        assert_eq!(own.changes(), ["I t 1,1,own", "U t 2,2,of elsewhere"], "on {major}");
        let of_own = |sink: &MemorySink| sink.applied().into_iter().filter(|t| t.origin.is_none()).collect::<Vec<_>>();
        assert_eq!(of_own(&all), own.applied(), "the same transactions, to the digest, on {major}");
        seen.push(own.changes());

        // Nor does one that outgrows the server's memory: what of it is sent before its commit may not say where it
        // comes from, if it changed the catalog first.
        client.batch_execute("ALTER SYSTEM SET logical_decoding_work_mem = '64kB'").await.unwrap();
        client.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        client.batch_execute(enter).await.unwrap();
        let large = "BEGIN; CREATE TABLE made (a int); \
            INSERT INTO t SELECT i, 1, repeat('x', 100) FROM generate_series(100, 3000) i; \
            DELETE FROM t WHERE id >= 100; COMMIT";
        client.batch_execute(large).await.unwrap();
        client.batch_execute(leave).await.unwrap();
        run_until_now(filtered(), &own).await.unwrap();
        assert_eq!(own.changes().len(), 2, "on {major}");

        // Nothing of elsewhere holds the acknowledgement, or lets it go too far.
        let running = Running::start(filtered(), &own, options());
        client.batch_execute(enter).await.unwrap();
        client.batch_execute("INSERT INTO t SELECT i, 1, 'x' FROM generate_series(1000, 20000) i").await.unwrap();
        let end = lsn(&client, "SELECT pg_current_wal_insert_lsn()::text").await;
        client.batch_execute(leave).await.unwrap();
        let sql = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'own'";
        eventually("acknowledged", || async { lsn(&client, sql).await >= end.before_page_header() }).await;
        client.batch_execute("INSERT INTO t VALUES (3, 1, 'own')").await.unwrap();
        eventually("goes on", || async { own.changes().len() == 3 }).await;
        running.stop().await.unwrap();
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{seen:?}");
}

fn beating(cluster: &Cluster, slot: &str, heartbeat: Option<Duration>) -> SlotSource {
    let mut settings = settings(cluster, &["p"]);
    (settings.slot, settings.heartbeat) = (slot.to_owned(), heartbeat);
    SlotSource::new(settings)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e1_a_heartbeat_moves_a_sink_that_cannot_store_an_idle_boundary_and_without_it_it_stays() {
    for major in each_major() {
        let (cluster, client) = with_t(major).await;
        let sinks: [MemorySink; 3] = Default::default();
        for sink in &sinks {
            sink.manners.lock().unwrap().idles = false;
        }
        let second = Some(Duration::from_secs(1));
        let flows = [("still", None), ("one", second), ("two", second)];
        let mut running = Vec::new();
        for ((slot, heartbeat), sink) in flows.iter().zip(&sinks) {
            run_until_now(beating(&cluster, slot, None), sink).await.unwrap();
            running.push(Running::start(beating(&cluster, slot, *heartbeat), sink, options()));
        }
        let confirmed = async |slot: &str| {
            let sql = format!("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{slot}'");
            lsn(&client, &sql).await
        };
        client.batch_execute("CREATE TABLE other (a int, b text)").await.unwrap();
        let still = confirmed("still").await;
        // Beside the third no heartbeat comes: alone it stays where it is.
        running.remove(1).stop().await.unwrap();
        running.remove(1).stop().await.unwrap();
        let write = "INSERT INTO other SELECT i, repeat('x', 100) FROM generate_series(1, 1000) i";
        for _ in 0..20 {
            client.batch_execute(write).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let written = lsn(&client, "SELECT pg_current_wal_insert_lsn()::text").await;
        assert_eq!(confirmed("still").await, still, "moved without a heartbeat");
        running.remove(0).stop().await.unwrap();

        let one = Running::start(beating(&cluster, "one", second), &sinks[1], options());
        let two = Running::start(beating(&cluster, "two", second), &sinks[2], options());
        eventually("the slots follow", || async {
            confirmed("one").await >= written && confirmed("two").await >= written
        })
        .await;
        for _ in 0..50 {
            client.batch_execute(write).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let beats = sinks[1].applied().len();
        assert!((2..=12).contains(&beats), "{beats} heartbeats within some seven seconds, of two flows");
        // To a sink it is a transaction, and nothing in it.
        for sink in &sinks[1..] {
            assert!(sink.applied().iter().all(|t| t.changes.is_empty() && t.change_count == 0));
        }
        // An idle database stays idle.
        let settled = lsn(&client, "SELECT pg_current_wal_insert_lsn()::text").await;
        eventually("followed", || async { confirmed("one").await >= settled.before_page_header() }).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (quiet, count) = (lsn(&client, "SELECT pg_current_wal_insert_lsn()::text").await, sinks[1].applied().len());
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(sinks[1].applied().len(), count, "heartbeats though nothing is written");
        let grown = lsn(&client, "SELECT pg_current_wal_insert_lsn()::text").await.bytes_since(quiet);
        assert!(grown < 1024, "{grown} bytes of WAL in an idle database");
        one.stop().await.unwrap();
        two.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_that_may_not_be_written_is_told_once_and_with_the_grant() {
    for major in each_major() {
        let (cluster, client) = with_t(major).await;
        let function =
            format!("pg_logical_emit_message(boolean, text, text{})", if major >= 17 { ", boolean" } else { "" });
        let roles = format!(
            "CREATE ROLE reader LOGIN REPLICATION; GRANT SELECT ON t TO reader; \
             REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC; CREATE TABLE other (a int)"
        );
        client.batch_execute(&roles).await.unwrap();
        let url = cluster.url("postgres").replace("postgres@", "reader@");
        let mut settings = SlotSettings::new(connection(&url), "pgonce_test", vec!["p".to_owned()]);
        settings.heartbeat = Some(Duration::from_millis(500));
        let sink = MemorySink::default();
        sink.manners.lock().unwrap().idles = false;
        let mut options = options();
        options.start = StartMode::GoForward;
        let running = Running::start(SlotSource::new(settings), &sink, options);
        eventually("streaming", || async { running.progress.borrow().reported.is_some() }).await;
        client.batch_execute("INSERT INTO other SELECT generate_series(1, 10000)").await.unwrap();
        let warned = || running.progress.borrow().warnings.iter().filter(|w| w.contains("heartbeat")).count();
        eventually("told", || async { warned() > 0 }).await;
        let warnings = running.progress.borrow().warnings.clone();
        let grant = format!("GRANT EXECUTE ON FUNCTION pg_catalog.{function} TO");
        assert!(warnings.iter().any(|w| w.contains(&grant)), "{warnings:?}");
        client.batch_execute("INSERT INTO other SELECT generate_series(1, 10000)").await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(warned(), 1);
        running.stop().await.unwrap();
    }
}

/// A standby of `primary`, from a copy of its files, without its slots.
async fn standby(primary: &Cluster) -> Cluster {
    use std::os::unix::fs::{MetadataExt, chown};
    let standby = Cluster::builder(primary.major()).name("standby").start().await.unwrap();
    standby.stop_fast().await.unwrap();
    primary.stop_fast().await.unwrap();
    let data = standby.data_dir();
    let owner = std::fs::metadata(&data).unwrap();
    std::fs::remove_dir_all(&data).unwrap();
    let copied = std::process::Command::new("cp").arg("-a").arg(primary.data_dir()).arg(&data).status();
    assert!(copied.unwrap().success());
    for slot in std::fs::read_dir(data.join("pg_replslot")).unwrap() {
        std::fs::remove_dir_all(slot.unwrap().path()).unwrap();
    }
    let signal = data.join("standby.signal");
    std::fs::write(&signal, "").unwrap();
    chown(&signal, Some(owner.uid()), Some(owner.gid())).unwrap();
    primary.start().await.unwrap();
    let primary_conninfo = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", primary.port());
    standby.set_conf("primary_conninfo", &primary_conninfo).await.unwrap();
    standby.set_conf("primary_slot_name", "standby").await.unwrap();
    standby.set_conf("hot_standby_feedback", "on").await.unwrap();
    standby.start().await.unwrap();
    standby
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a20_a_standby_that_is_not_promoted_is_refused_and_goes_on_when_it_is_where_the_slot_was_synchronised() {
    for major in each_major() {
        let synchronises = major >= 17;
        let (primary, client) = with_t(major).await;
        let failover = if synchronises { ", true" } else { "" };
        let make = format!(
            "SELECT pg_create_physical_replication_slot('standby', true), \
             pg_create_logical_replication_slot('pgonce_test', 'pgoutput', false, false{failover})"
        );
        client.batch_execute(&make).await.unwrap();
        let (new, begun) = (MemorySink::default(), MemorySink::default());
        run_until_now(flow(&primary), &begun).await.unwrap();
        let origin = begun.remembered().origins.pop().unwrap();
        assert_eq!((origin.failover, origin.created), (synchronises, false));

        drop(client);
        let standby = standby(&primary).await;
        let client = primary.connect("postgres").await.unwrap();
        let there = standby.connect("postgres").await.unwrap();
        let words = if synchronises {
            let sql = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'pgonce_test' AND NOT temporary";
            let synced = || async {
                // The slot has to be ahead of what the standby has of the catalogs.
                client.batch_execute("SELECT pg_log_standby_snapshot()").await.unwrap();
                run_until_now(flow(&primary), &begun).await.unwrap();
                let _ = there.batch_execute("SELECT pg_sync_replication_slots()").await;
                there.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 1
            };
            eventually("the slot is synchronised", synced).await;
            "has not been promoted"
        } else {
            "this server is a standby, and does not have it"
        };
        let stop = refused(|| flow(&standby), [&new, &begun], "slot_unusable", words).await;
        assert!(stop.hint().contains("pg_promote()"), "{}", stop.hint());

        drop(client);
        primary.stop_fast().await.unwrap();
        there.batch_execute("SELECT pg_promote()").await.unwrap();
        if synchronises {
            there.batch_execute("INSERT INTO t VALUES (1, 1, 'promoted')").await.unwrap();
            run_until_now(flow(&standby), &begun).await.unwrap();
            assert_eq!(begun.changes(), ["I t 1,1,promoted"]);
            assert_eq!(begun.remembered().origins.pop().unwrap().timeline, 2);
        } else {
            refused(|| flow(&standby), [&begun, &begun], "data_gap", "does not exist").await;
        }
    }
}
