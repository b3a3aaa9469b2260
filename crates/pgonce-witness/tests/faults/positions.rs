//! Positions that do not fit together: a state, a slot, a target or a source that went elsewhere is refused, and a
//! restart does not turn the refusal into an acceptance.

use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use pgonce::position::Lsn;
use pgonce_testkit::{Cluster, DataCopy, Direction, Proxy, majors};

use crate::stage::*;

/// Where each way of keeping the state has it, as SQL.
fn state_table(keep: Keep) -> &'static str {
    if keep == Keep::Atomic { "public.flow_state" } else { "pgonce.checkpoint" }
}

impl Flow<'_> {
    fn state_file(&self) -> std::path::PathBuf {
        Path::new(&self.store).join("state.json")
    }

    /// Changes what is stored: `json` in the file, `sql` (the expression of the records) in the database.
    async fn alter_state(&self, json: impl Fn(&mut serde_json::Value), sql: &str) {
        if self.keep == Keep::File {
            let mut state = serde_json::from_slice(&std::fs::read(self.state_file()).unwrap()).unwrap();
            json(&mut state);
            std::fs::write(self.state_file(), serde_json::to_vec(&state).unwrap()).unwrap();
        } else {
            self.at_target(&format!("UPDATE {} SET records = {sql}", state_table(self.keep))).await;
        }
    }

    /// Keeps what is stored, for [`put_back`](Flow::put_back).
    async fn save_state(&self) {
        if self.keep == Keep::File {
            std::fs::copy(self.state_file(), self.state_file().with_extension("kept")).unwrap();
        } else {
            let table = state_table(self.keep);
            self.at_target(&format!("DROP TABLE IF EXISTS kept; CREATE TABLE kept AS TABLE {table}")).await;
        }
    }

    /// The number of the state that is stored.
    async fn stored_version(&self) -> i64 {
        if self.keep == Keep::File {
            let state = std::fs::read(self.state_file()).unwrap();
            let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
            return state["version"].as_i64().unwrap();
        }
        number(&self.target().await, &format!("SELECT version FROM {}", state_table(self.keep))).await
    }

    async fn put_back(&self) {
        if self.keep == Keep::File {
            std::fs::copy(self.state_file().with_extension("kept"), self.state_file()).unwrap();
        } else {
            let table = state_table(self.keep);
            self.at_target(&format!("DELETE FROM {table}; INSERT INTO {table} TABLE kept")).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a4_a_state_that_cannot_be_read_is_never_a_fresh_flow_and_a10_a_forged_one_is_refused() {
    for major in majors().unwrap() {
        let stage = Stage::new(major).await;
        for keep in Keep::ALL {
            let flow = stage.flow(keep).await;
            flow.numbered(5).await;
            flow.assert_witnesses(0, 0).await;
            flow.numbered(2).await;
            flow.save_state().await;

            // A10: a sink returns no position, and one that is written into its state has no checksum.
            let forge =
                |record: &str| record.replace("\"idle\":\"0/", "\"idle\":\"9/").replace("\"end\":\"0/", "\"end\":\"9/");
            let forged = |state: &mut serde_json::Value| {
                let position = state["records"]["position"].as_str().unwrap();
                assert_ne!(forge(position), position);
                state["records"]["position"] = forge(position).into();
            };
            let sql = "jsonb_set(records, '{position}', to_jsonb(replace(replace(records ->> 'position', \
                '\"idle\":\"0/', '\"idle\":\"9/'), '\"end\":\"0/', '\"end\":\"9/')))";
            flow.alter_state(forged, sql).await;
            let said = flow.refused_for_good("checkpoint_unreadable", 5).await;
            assert!(said.contains("checksum"), "{said}");
            flow.put_back().await;

            for record in ["flow", "position"] {
                let gone = |state: &mut serde_json::Value| {
                    state["records"].as_object_mut().unwrap().remove(record);
                };
                flow.alter_state(gone, &format!("records - '{record}'")).await;
                flow.refused_for_good("checkpoint_unreadable", 5).await;
                flow.put_back().await;
                let cut = |state: &mut serde_json::Value| {
                    let text = state["records"][record].as_str().unwrap();
                    state["records"][record] = text[..text.len() / 2].into();
                };
                let sql = format!("jsonb_set(records, '{{{record}}}', to_jsonb(left(records ->> '{record}', 70)))");
                flow.alter_state(cut, &sql).await;
                flow.refused_for_good("checkpoint_unreadable", 5).await;
                flow.put_back().await;
            }
            if keep == Keep::File {
                let sound = std::fs::read(flow.state_file()).unwrap();
                for damaged in [&sound[..sound.len() / 2], b"", b"{}x"] {
                    std::fs::write(flow.state_file(), damaged).unwrap();
                    flow.refused_for_good("checkpoint_unreadable", 5).await;
                }
                flow.put_back().await;
            }
            flow.assert_witnesses(0, 0).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a4_a_slot_made_anew_and_a19_a_slot_moved_are_data_gaps() {
    for major in majors().unwrap() {
        let stage = Stage::new(major).await;
        for keep in Keep::ALL {
            let flow = stage.flow(keep).await;
            flow.numbered(5).await;
            flow.assert_witnesses(0, 0).await;
            flow.numbered(5).await;
            let slot = flow.slot();
            flow.at_source(&format!("SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")).await;
            flow.refused_for_good("data_gap", 4).await;
            flow.at_source(&format!("SELECT pg_drop_replication_slot('{slot}')")).await;
            flow.refused_for_good("data_gap", 4).await;
            assert_eq!(flow.confirmed_flush().await, None, "a refused start makes no slot");
            flow.at_source(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")).await;
            flow.refused_for_good("data_gap", 4).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a18_a_state_that_is_older_than_what_was_acknowledged_is_a_data_gap() {
    for major in majors().unwrap() {
        let stage = Stage::new(major).await;
        for keep in Keep::ALL {
            let flow = stage.flow(keep).await;
            flow.numbered(5).await;
            flow.assert_witnesses(0, 0).await;
            flow.save_state().await;
            flow.numbered(5).await;
            flow.assert_witnesses(0, 0).await;
            flow.put_back().await;
            flow.refused_for_good("data_gap", 4).await;
            flow.numbered(1).await;
            flow.refused_for_good("data_gap", 4).await;
        }
    }
}

/// Makes the stopped source start on a new timeline, which leaves the old one at the end of its WAL: a promotion.
async fn promote(source: &Cluster) {
    let signal = source.data_dir().join("recovery.signal");
    std::fs::write(&signal, "").unwrap();
    let owner = std::fs::metadata(source.data_dir()).unwrap();
    chown(&signal, Some(owner.uid()), Some(owner.gid())).unwrap();
    source.set_conf("restore_command", "false").await.unwrap();
    source.start().await.unwrap();
    let client = source.connect("postgres").await.unwrap();
    while number(&client, "SELECT pg_is_in_recovery()::int::int8").await != 0 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// Transactions until the source's WAL has grown past a position. Other ones than before: the same would be sent again
/// byte for byte.
async fn grow_past(flow: &Flow<'_>, position: Lsn) {
    let source = flow.source().await;
    loop {
        let here: Lsn = text(&source, "SELECT pg_current_wal_lsn()::text").await.parse().unwrap();
        if here > position {
            return;
        }
        let sql = "INSERT INTO witness_log VALUES (nextval('witness_number'), 0, 'another history')";
        source.batch_execute(sql).await.unwrap();
    }
}

/// Three flows, one in each mode, drained.
async fn drained(stage: &Stage) -> Vec<Flow<'_>> {
    let mut flows = Vec::new();
    for keep in Keep::ALL {
        let flow = stage.flow(keep).await;
        flow.numbered(5).await;
        flow.assert_witnesses(0, 0).await;
        flows.push(flow);
    }
    flows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a6_another_cluster_and_a_source_restored_to_an_earlier_point_are_refused_also_when_it_has_grown_past() {
    for major in majors().unwrap() {
        let stage = Stage::new(major).await;
        let flows = drained(&stage).await;
        stage.source.stop_fast().await.unwrap();
        let older = DataCopy::of(&stage.source).unwrap();
        stage.source.start().await.unwrap();
        let mut applied = Lsn(0);
        for flow in &flows {
            flow.numbered(60).await;
            flow.assert_witnesses(0, 0).await;
            applied = applied.max(flow.confirmed_flush().await.unwrap());
        }
        stage.source.stop_fast().await.unwrap();
        older.restore(&stage.source).unwrap();
        stage.source.start().await.unwrap();
        for flow in &flows {
            flow.refused_for_good("source_changed", 5).await;
        }
        for flow in &flows {
            grow_past(flow, applied).await;
            flow.refused_for_good("source_changed", 5).await;
        }

        // Another cluster, with everything by the same names.
        let other = Stage::new(major).await;
        for flow in &flows {
            let twin = other.flow(flow.keep).await;
            twin.numbered(1).await;
            let mut stranger = stage.of(flow.keep, &flow.name);
            stranger.source_url = twin.source_url.clone();
            let ended = stranger.start(&["--until-now"]).ended().await;
            assert_eq!((stranger.last_words().0.as_str(), ended), ("source_changed", Some(5)));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a20_a_promoted_source_goes_on_above_what_was_written_and_is_refused_below() {
    for major in majors().unwrap() {
        let stage = Stage::new(major).await;
        let flows = drained(&stage).await;
        for flow in &flows {
            flow.numbered(10).await;
        }
        // Promoted after a crash, above what was written: with transactions of both timelines to come.
        let _ = stage.source.stop_immediate().await.unwrap();
        promote(&stage.source).await;
        for flow in &flows {
            flow.numbered(10).await;
            flow.assert_witnesses(0, 0).await;
        }
        // Promoted below what was written, and its WAL grown past it.
        stage.source.stop_fast().await.unwrap();
        let older = DataCopy::of(&stage.source).unwrap();
        stage.source.start().await.unwrap();
        let mut applied = Lsn(0);
        for flow in &flows {
            flow.numbered(20).await;
            flow.assert_witnesses(0, 0).await;
            applied = applied.max(flow.confirmed_flush().await.unwrap());
        }
        stage.source.stop_fast().await.unwrap();
        older.restore(&stage.source).unwrap();
        promote(&stage.source).await;
        for flow in &flows {
            flow.refused_for_good("timeline_diverged", 5).await;
        }
        for flow in &flows {
            grow_past(flow, applied).await;
            flow.refused_for_good("timeline_diverged", 5).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a22_a_commit_record_at_the_boundary_is_new() {
    for major in majors().unwrap() {
        let stage = Stage::new(major).await;
        for keep in Keep::ALL {
            let flow = stage.flow(keep).await;
            // The slot stands exactly where the commit record starts.
            let (source, writer) = (flow.source().await, flow.source().await);
            writer.batch_execute("BEGIN; INSERT INTO witness_log VALUES (nextval('witness_number'), 0)").await.unwrap();
            let here: Lsn = text(&source, "SELECT pg_current_wal_insert_lsn()::text").await.parse().unwrap();
            writer.batch_execute("COMMIT").await.unwrap();
            flow.at_source(&format!("SELECT pg_replication_slot_advance('{}', '{here}')", flow.slot())).await;
            assert_eq!(flow.confirmed_flush().await, Some(here));
            flow.assert_witnesses(0, 0).await;
            assert_eq!(arrived(&flow.target().await).await.len(), 1, "{keep:?} on {major}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a25_a_publication_that_changes_under_a_running_flow_stops_it_with_nothing_omitted_acknowledged() {
    for major in majors().unwrap() {
        let stage = Stage::new(major).await;
        for (keep, change) in [
            (Keep::Atomic, "ALTER PUBLICATION p DROP TABLE witness_log"),
            (Keep::File, "DROP PUBLICATION p"),
            (Keep::Postgres, "ALTER PUBLICATION p DROP TABLE witness_log"),
        ] {
            let flow = stage.flow(keep).await;
            flow.numbered(2).await;
            let run = flow.streaming(&[]).await;
            flow.logged(2).await;
            flow.at_source(change).await;
            flow.at_source("INSERT INTO witness_log VALUES (nextval('witness_number'), 0)").await;
            let source = flow.source().await;
            let omitted: Lsn = text(&source, "SELECT pg_current_wal_insert_lsn()::text").await.parse().unwrap();
            flow.at_source("UPDATE witness_mirror SET counter = counter + 1").await;
            assert_eq!(run.ended().await, Some(6), "{change}: {}", flow.tail());
            assert_eq!(flow.last_words().0, "publication_changed");
            assert!(flow.confirmed_flush().await.unwrap() < omitted, "{change} on {major}");
            flow.refused_for_good("publication_changed", 6).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a16_a_source_that_sends_another_transaction_in_the_place_of_one_is_refused() {
    for major in majors().unwrap() {
        let stage = Stage::new(major).await;
        let mut flows = drained(&stage).await;
        stage.source.stop_fast().await.unwrap();
        let older = DataCopy::of(&stage.source).unwrap();
        stage.source.start().await.unwrap();
        // Written, and never acknowledged.
        let proxy = Proxy::to(&stage.source).await.unwrap();
        for flow in &mut flows {
            let direct = std::mem::replace(&mut flow.source_url, proxy.url(&flow.name));
            let mut run = flow.streaming(&["--idle-ms", "600000"]).await;
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            let before = flow.stored_version().await;
            proxy.black_hole(Direction::ToServer, true);
            flow.at_source("INSERT INTO witness_log VALUES (nextval('witness_number'), 111)").await;
            flow.logged(6).await;
            flow.eventually("its state is stored", || async { flow.stored_version().await > before }).await;
            let _ = run.sigkill();
            proxy.heal();
            flow.source_url = direct;
            flow.confirmed_flush().await;
        }
        stage.source.stop_fast().await.unwrap();
        older.restore(&stage.source).unwrap();
        stage.source.start().await.unwrap();
        // The same WAL byte for byte, with another row.
        for flow in &flows {
            flow.at_source("INSERT INTO witness_log VALUES (nextval('witness_number'), 222)").await;
        }
        let mut codes = Vec::new();
        for flow in &flows {
            flow.numbered(20).await;
            // Where something else came in between, the commit record is elsewhere.
            assert_ne!(flow.start(&["--until-now"]).ended().await, Some(0), "{}", flow.tail());
            let (code, _) = flow.last_words();
            let status = if code == "redelivery_conflict" { 7 } else { 5 };
            flow.refused_for_good(&code, status).await;
            codes.push(code);
        }
        assert!(codes.iter().any(|code| code == "redelivery_conflict"), "{codes:?}");
        assert!(codes.iter().all(|code| code == "redelivery_conflict" || code == "source_changed"), "{codes:?}");
    }
}
