//! Makes the recordings: all walsenders of a server at once, while the workload runs.

use std::time::Duration;

use bytes::{Buf, BytesMut};
use pgonce_testkit::Cluster;
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_postgres::Client;

use super::recording::{Received, Recording, Variant};
use super::workload;

/// The prefix of the message behind which a recording ends.
pub const LAST: &str = "the end";

/// Runs the workload on a new server of this major, and writes its files.
pub async fn record(major: u32) {
    let cluster = Cluster::builder(major)
        .name("recorded")
        .conf("logical_decoding_work_mem", "64kB")
        .conf("autovacuum", "off")
        .start()
        .await
        .unwrap();
    let client = cluster.connect("postgres").await.unwrap();
    client.batch_execute(workload::SCHEMA).await.unwrap();
    let variants = Variant::all(major);
    let mut walsenders = Vec::new();
    for (number, variant) in variants.iter().enumerate() {
        let slot = format!("recorded_{number}");
        let sql = "SELECT pg_create_logical_replication_slot($1::text::name, 'pgoutput', false, $2)";
        client.execute(sql, &[&slot, &variant.two_phase]).await.unwrap();
        let stream = start(&cluster, &slot, variant).await;
        walsenders.push(tokio::spawn(receive(stream)));
    }
    let barrier = Barrier { client: cluster.connect("postgres").await.unwrap(), walsenders: variants.len() as i64 };
    workload::run(&cluster, &barrier).await;
    barrier.client.execute("SELECT pg_logical_emit_message(false, $1, '')", &[&LAST]).await.unwrap();
    barrier.client.batch_execute("INSERT INTO tick VALUES (0)").await.unwrap();
    for (variant, walsender) in variants.into_iter().zip(walsenders) {
        let received = tokio::time::timeout(Duration::from_secs(60), walsender).await;
        let messages = received.expect("the last message did not come").unwrap();
        Recording { major, variant, messages }.write();
    }
}

/// Waits for the walsenders: they decode a transaction before it has ended only if it is still open then.
pub struct Barrier {
    client: Client,
    walsenders: i64,
}

impl Barrier {
    /// Runs a statement in a connection of its own.
    pub async fn execute(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap();
    }

    /// Returns when every walsender has decoded what has been written.
    pub async fn pass(&self) {
        let lsn: String = self.client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).await.unwrap().get(0);
        // What is open is not flushed by itself.
        self.client.batch_execute("INSERT INTO tick VALUES (1)").await.unwrap();
        let sql = "SELECT count(*) FROM pg_stat_replication WHERE sent_lsn >= $1::text::pg_lsn";
        for _ in 0..3_000 {
            let passed: i64 = self.client.query_one(sql, &[&lsn]).await.unwrap().get(0);
            if passed == self.walsenders {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the walsenders did not come to {lsn} within 30 s");
    }
}

async fn start(cluster: &Cluster, slot: &str, variant: &Variant) -> Wire {
    let stream = TcpStream::connect(cluster.address()).await.unwrap();
    let mut wire = Wire { stream, buffer: BytesMut::new() };
    let parameters = [
        ("user", "postgres"),
        ("database", "postgres"),
        ("replication", "database"),
        ("client_encoding", "UTF8"),
        ("DateStyle", "ISO"),
        ("TimeZone", "UTC"),
    ];
    let mut out = BytesMut::new();
    frontend::startup_message(parameters, &mut out).unwrap();
    wire.stream.write_all(&out).await.unwrap();
    while wire.next().await.0 != b'Z' {}
    let options = variant.options();
    let command = format!("START_REPLICATION SLOT {slot} LOGICAL 0/0 ({options}, publication_names 'p')");
    out.clear();
    frontend::query(&command, &mut out).unwrap();
    wire.stream.write_all(&out).await.unwrap();
    let (tag, body) = wire.next().await;
    assert_eq!(tag, b'W', "{command}: {}", String::from_utf8_lossy(&body));
    wire
}

/// The XLogData messages, up to the last one.
async fn receive(mut wire: Wire) -> Vec<Received> {
    let mut messages = Vec::new();
    loop {
        let (tag, mut body) = wire.next().await;
        assert_eq!(tag, b'd', "{}", String::from_utf8_lossy(&body));
        if body.get_u8() != b'w' {
            continue;
        }
        let lsn = body.get_u64();
        assert_eq!(body.get_u64(), lsn, "the end of the WAL data of a message is its start");
        body.advance(8);
        let payload = body.to_vec();
        let is_last = payload[0] == b'M' && payload.windows(LAST.len()).any(|part| part == LAST.as_bytes());
        messages.push(Received { lsn, payload });
        if is_last {
            return messages;
        }
    }
}

/// A connection, read in the plainest way: what the product reads with is under test.
struct Wire {
    stream: TcpStream,
    buffer: BytesMut,
}

impl Wire {
    async fn next(&mut self) -> (u8, BytesMut) {
        loop {
            if let Some([tag, l0, l1, l2, l3]) = self.buffer.first_chunk() {
                let (tag, length) = (*tag, u32::from_be_bytes([*l0, *l1, *l2, *l3]) as usize);
                if self.buffer.len() > length {
                    self.buffer.advance(5);
                    return (tag, self.buffer.split_to(length - 4));
                }
            }
            assert_ne!(self.stream.read_buf(&mut self.buffer).await.unwrap(), 0, "the walsender closed the stream");
        }
    }
}
