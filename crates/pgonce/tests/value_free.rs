//! Law 7: no row value leaves. Marked values of every kind go through a program's flow, whose sink fails in every way
//! and shows what it is given, and through damaged messages; no error, log event, report or stored state holds one.

mod common;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Debug;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::BytesMut;
use common::*;
use pgonce::assemble::{Assembled, Assembler, SpillSettings};
use pgonce::destination::StartMode;
use pgonce::kept::Kept;
use pgonce::logical_message::LogicalMessage;
use pgonce::pgoutput::decode_message;
use pgonce::pipeline::{PipelineOptions, Until};
use pgonce::sink::{AtomicSink, Batch, CopiedRows, CopiedTable, Sink, SinkError};
use pgonce::transaction::Transaction;
use pgonce_testkit::Cluster;
use tokio_postgres::Client;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

/// What is planted, in the forms in which it could come out.
const MARKER: &str = "Zq7MARKER";
const OTHERS: &[&str] =
    &["471108824", "1947-11-08", "5a71374d-4152-4b45-5231-947110800001", "203.0.113.247", "18:47:11.088"];

const SCHEMA: &str = "
    CREATE TYPE pair AS (a text, b int);
    CREATE DOMAIN short AS text CHECK (length(value) < 40);
    CREATE TABLE t (
        id text PRIMARY KEY, n int, n8 bigint, num numeric, d date, moment timestamp, u uuid, address inet, raw bytea,
        j json, jb jsonb, x xml, list text[], numbers int[], c pair, s short, v varchar(50), fixed char(20),
        span int4range, bits bit varying, words tsvector, at time, big text
    );
    ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
    CREATE TABLE whole (n bigint, b text, big text);
    ALTER TABLE whole REPLICA IDENTITY FULL;
    ALTER TABLE whole ALTER big SET STORAGE EXTERNAL;
    CREATE PUBLICATION p FOR TABLE t, whole;";

/// One transaction with changes of every kind, and messages within and outside.
const CHANGES: &str = "
    BEGIN;
    INSERT INTO t VALUES ('Zq7MARKER KEY', 471108824, 471108824, 471108824.5, '1947-11-08', '1947-11-08 18:47:11.088',
        '5a71374d-4152-4b45-5231-947110800001', '203.0.113.247', 'Zq7MARKER', '{\"Zq7MARKER\": \"Zq7MARKER\"}',
        '{\"Zq7MARKER\": 471108824}', '<a>Zq7MARKER</a>', '{Zq7MARKER,b}', '{471108824}', '(Zq7MARKER,471108824)',
        'Zq7MARKER', 'Zq7MARKER', 'Zq7MARKER', '[1,471108824)', B'1010', 'Zq7MARKER', '18:47:11.088',
        repeat('Zq7MARKER', 2000));
    INSERT INTO whole VALUES (471108824, 'Zq7MARKER', repeat('Zq7MARKER', 2000));
    UPDATE t SET id = 'Zq7MARKER NEW', n = n - 1;
    UPDATE whole SET n = n + 1;
    SELECT pg_logical_emit_message(true, 'prefix', 'Zq7MARKER');
    DELETE FROM whole;
    DELETE FROM t;
    COMMIT;
    SELECT pg_logical_emit_message(false, 'prefix', 'Zq7MARKER');";

/// Every form of `value` that a value could be printed in: as it is, in another case, and its bytes in hex (plain,
/// escaped, as a list), in decimal (as `Debug` shows a slice) and in base64, at each of the three offsets.
fn forms(value: &str) -> Vec<String> {
    let list =
        |each: fn(&u8) -> String, between: &str| value.bytes().map(|b| each(&b)).collect::<Vec<_>>().join(between);
    let mut forms = vec![
        value.to_lowercase(),
        list(|b| format!("{b:02x}"), ""),
        list(|b| format!("{b:02x}"), " "),
        list(|b| format!("0x{b:02x}"), ", "),
        list(|b| format!("\\x{b:02x}"), ""),
        list(|b| b.to_string(), ", "),
        list(|b| b.to_string(), ","),
        list(|b| b.to_string(), ",\n    "),
    ];
    forms.extend((0..3).map(|offset| base64_inside(value.as_bytes(), offset).to_lowercase()));
    forms
}

/// The characters of a base64 text that depend only on `bytes`, which come `offset` bytes behind a multiple of three.
fn base64_inside(bytes: &[u8], offset: usize) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: Vec<bool> = bytes.iter().flat_map(|b| (0..8).rev().map(move |bit| b >> bit & 1 == 1)).collect();
    let skipped = (6 - offset * 8 % 6) % 6;
    let sextet = |bits: &[bool]| ALPHABET[bits.iter().fold(0, |n, bit| n << 1 | usize::from(*bit))] as char;
    bits[skipped..].chunks_exact(6).map(sextet).collect()
}

/// The planted value that `text` holds in one form or another.
fn found(text: &str) -> Option<String> {
    let text = text.to_lowercase();
    std::iter::once(&MARKER).chain(OTHERS).flat_map(|value| forms(value)).find(|form| text.contains(form))
}

/// Everything that was said, from all threads.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Said {
    fn note(&self, what: &str, thing: &dyn Debug) {
        self.0.lock().unwrap().extend(format!("{what}: {thing:?}\n{thing:#?}\n").bytes());
    }

    fn take(&self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut *self.0.lock().unwrap())).into_owned()
    }
}

impl io::Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How the sink answers.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Answer {
    Fine,
    Transient,
    Permanent,
    Refused,
    Fenced,
    /// `?` on an error whose text holds the marker.
    Io,
    IoThatPasses,
    /// `?` on an error of a server that quotes the row.
    Server,
    /// Cannot convert a value, and quotes it.
    Client,
    Panics,
}

const ANSWERS: [Answer; 10] = [
    Answer::Fine,
    Answer::Transient,
    Answer::Permanent,
    Answer::Refused,
    Answer::Fenced,
    Answer::Io,
    Answer::IoThatPasses,
    Answer::Server,
    Answer::Client,
    Answer::Panics,
];

/// A parameter that says in its error what could not be converted.
#[derive(Debug)]
struct Quoting;

impl ToSql for Quoting {
    fn to_sql(&self, _: &Type, _: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        Err(io::Error::other(MARKER).into())
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// Shows all that it is given, and answers as it is told.
#[derive(Clone)]
struct Showing {
    said: Said,
    answer: Answer,
    url: String,
    records: Arc<Mutex<BTreeMap<&'static str, Vec<u8>>>>,
    calls: Arc<Mutex<u32>>,
}

impl Showing {
    async fn answer(&self) -> Result<(), SinkError> {
        let first = {
            let mut calls = self.calls.lock().unwrap();
            *calls += 1;
            *calls == 1
        };
        let text = format!("{MARKER} {}", OTHERS.join(" "));
        match self.answer {
            Answer::Fine => {}
            Answer::Transient if first => return Err(SinkError::transient("told to")),
            Answer::IoThatPasses if first => return Err(io::Error::new(io::ErrorKind::BrokenPipe, text).into()),
            Answer::Transient | Answer::IoThatPasses => {}
            Answer::Permanent => return Err(SinkError::permanent("told to")),
            Answer::Refused => return Err(SinkError::refused("told to")),
            Answer::Fenced => return Err(SinkError::fenced("f")),
            Answer::Io => return Err(io::Error::other(text).into()),
            Answer::Server | Answer::Client => {
                let (client, connection) = tokio_postgres::connect(&self.url, tokio_postgres::NoTls).await?;
                tokio::spawn(connection);
                if self.answer == Answer::Server {
                    let raise = format!("RAISE EXCEPTION '{text}' USING DETAIL = '{text}', HINT = '{text}'");
                    client.batch_execute(&format!("DO $$ BEGIN {raise}; END $$")).await?;
                }
                client.query("SELECT $1::text", &[&Quoting]).await?;
                client.query_one("SELECT 1 AS a", &[]).await?.try_get::<_, String>(0)?;
            }
            // Its own words are the program's, and the hook of the test does not print them.
            Answer::Panics => panic!("{text}"),
        }
        Ok(())
    }

    fn keep(&self, state: &pgonce::sink::State<'_>) {
        let mut records = self.records.lock().unwrap();
        for record in state.records() {
            self.said.note("stored", &String::from_utf8_lossy(record.bytes()));
            records.insert(record.name(), record.bytes().to_vec());
        }
    }
}

impl Sink for Showing {
    async fn write(&mut self, batch: &Batch<'_>) -> Result<(), SinkError> {
        self.said.note("batch", batch);
        batch.transactions().iter().for_each(|transaction| show(&self.said, transaction));
        if !batch.transactions().is_empty() {
            self.answer().await?;
        }
        self.keep(&batch.state());
        Ok(())
    }

    fn takes_copy(&self) -> bool {
        true
    }

    async fn begin_table(&mut self, table: &CopiedTable<'_>) -> Result<(), SinkError> {
        self.said.note("table", table);
        self.keep(&table.state());
        Ok(())
    }

    async fn rows(&mut self, rows: &CopiedRows<'_>) -> Result<(), SinkError> {
        self.said.note("rows", rows);
        rows.rows().for_each(|row| self.said.note("row", &row));
        if self.answer == Answer::Fine {
            self.keep(&rows.state());
            return Ok(());
        }
        self.answer().await?;
        self.keep(&rows.state());
        Ok(())
    }

    fn wants_messages(&self) -> bool {
        true
    }

    async fn message(&mut self, message: &LogicalMessage) -> Result<(), SinkError> {
        self.said.note("message", message);
        self.answer().await
    }
}

impl AtomicSink for Showing {
    async fn load(&mut self, name: &'static str) -> Result<Option<Vec<u8>>, SinkError> {
        Ok(self.records.lock().unwrap().get(name).cloned())
    }
}

fn show(said: &Said, transaction: &Transaction) {
    said.note("transaction", transaction);
    let mut changes = transaction.changes();
    loop {
        match changes.next() {
            Ok(Some(change)) => said.note("change", &change),
            Ok(None) => break,
            Err(error) => return said.note(&error.to_string(), &error),
        }
    }
    said.note("pass", &transaction.changes());
}

/// All that is said from now on, by any thread: log events with their fields at every level, and panics but their text.
fn listen() -> Said {
    let said = Said::default();
    let writer = said.clone();
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .init();
    said
}

async fn with_tables(major: u32) -> (Cluster, Client) {
    let cluster = source(major).await;
    let client = cluster.connect("postgres").await.unwrap();
    client.batch_execute(SCHEMA).await.unwrap();
    (cluster, client)
}

/// A flow that begins with the stream, or with a copy, and how it ended.
async fn flow(cluster: &Cluster, client: &Client, said: &Said, answer: Answer, start: StartMode) {
    let slot = "SELECT pg_create_logical_replication_slot('pgonce_test', 'pgoutput')";
    let rows = CHANGES.split("UPDATE t").next().unwrap().to_owned() + "COMMIT";
    match start {
        StartMode::GoForward => {
            client.batch_execute(slot).await.unwrap();
            client.batch_execute(CHANGES).await.unwrap();
        }
        _ => client.batch_execute(&rows).await.unwrap(),
    }
    let url = cluster.url("postgres");
    let (records, calls) = (Arc::default(), Arc::default());
    let sink = Showing { said: said.clone(), answer, url: url.clone(), records, calls };
    let options = PipelineOptions { start, until: Some(Until::Now), ..options() };
    let mut pipeline = pgonce::pipeline::Pipeline::new(slot_source(&url, "p"), Kept::effect_once("f", sink), options);
    let progress = pipeline.progress();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let run = tokio::spawn(async move { pipeline.run(stopped).await });
    // What is taken for something that passes is tried again, for ever.
    let stopping = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(2)).await;
        stop.send_replace(true);
    });
    let ended = run.await;
    stopping.abort();
    match ended {
        Ok(Ok(finished)) => said.note("finished", &finished),
        Ok(Err(stop)) => {
            said.note(&format!("{answer:?} {stop} {:?}", stop.reason().hint()), &stop);
            let mut cause = std::error::Error::source(&stop);
            while let Some(error) = cause {
                said.note(&error.to_string(), &error);
                cause = error.source();
            }
        }
        // The pipeline was driven by the program's own task, and so is the text of this panic the program's.
        Err(join) => assert!(join.is_panic() && answer == Answer::Panics, "{answer:?}"),
    }
    said.note("progress", &*progress.borrow());
    eventually("the slot is let go", || async {
        client.batch_execute("SELECT pg_drop_replication_slot('pgonce_test')").await.is_ok()
    })
    .await;
    client.batch_execute("TRUNCATE t, whole").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_7_no_value_is_in_an_error_a_log_a_report_or_a_state() {
    let said = listen();
    // The search finds what it is to find, in each form.
    tracing::trace!(field = MARKER.to_uppercase(), "a canary");
    assert!(found(&said.take()).is_some(), "the log is not heard");
    for planted in [&b"<Zq7MARKER>"[..], b"Zq7MARKER", b"--471108824"] {
        said.note("bytes", &planted);
        assert!(found(&said.take()).is_some(), "a slice of bytes is not found");
        said.note("bytes", &bytes::Bytes::from_static(planted));
        assert!(found(&said.take()).is_some(), "Bytes are not found");
    }
    assert!(found("WnE3TUFSS0VS").is_some() && found("eFpxN01BUktFUg==").is_some(), "base64 is not found");
    std::panic::set_hook(Box::new(|panic| {
        let ours = panic.location().is_none_or(|at| !at.file().ends_with("value_free.rs"));
        assert!(!ours, "a panic in the library: {panic}");
    }));

    for major in each_major() {
        let (cluster, client) = with_tables(major).await;
        for answer in ANSWERS {
            for start in [StartMode::GoForward, StartMode::Snapshot] {
                flow(&cluster, &client, &said, answer, start).await;
                let text = said.take();
                assert!(text.contains("progress"), "{answer:?}");
                if let Some(form) = found(&text) {
                    let line = text.lines().find(|line| found(line).is_some()).unwrap_or(&text);
                    let line: String = line.chars().take(2000).collect();
                    let _ = std::panic::take_hook();
                    panic!("PostgreSQL {major}, {answer:?}, {start:?}: {form} in: {line}");
                }
            }
        }
        damaged(&client, &said).await;
        let text = said.take();
        let _ = found(&text).inspect(|form| {
            let _ = std::panic::take_hook();
            panic!("PostgreSQL {major}, damaged messages: {form}");
        });
    }
    let _ = std::panic::take_hook();
}

/// What a walsender sends of the changes, cut and damaged at many places, and with no room for it.
async fn damaged(client: &Client, said: &Said) {
    let slot = "SELECT pg_create_logical_replication_slot('raw', 'pgoutput')";
    client.batch_execute(slot).await.unwrap();
    client.batch_execute(CHANGES).await.unwrap();
    let read = "SELECT data FROM pg_logical_slot_get_binary_changes('raw', NULL, NULL,
                'proto_version', '1', 'publication_names', 'p', 'messages', 'true')";
    let rows = client.query(read, &[]).await.unwrap();
    let messages: Vec<Vec<u8>> = rows.iter().map(|row| row.get(0)).collect();
    client.batch_execute("SELECT pg_drop_replication_slot('raw')").await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let settings = |memory, disk| SpillSettings { memory, disk, directory: directory.path().to_owned() };
    for (at, message) in messages.iter().enumerate() {
        for damaged in damages(message) {
            if let Err(error) = decode_message(&damaged, false) {
                said.note(&error.to_string(), &error);
            }
            let mut assembler = Assembler::new(settings(1 << 20, 1 << 20));
            messages[..at].iter().for_each(|whole| push(&mut assembler, whole, said));
            push(&mut assembler, &damaged, said);
            messages[at + 1..].iter().for_each(|whole| push(&mut assembler, whole, said));
        }
    }
    for (memory, disk) in [(1, 1), (1, 20_000), (1, 1 << 20)] {
        let mut assembler = Assembler::new(settings(memory, disk));
        for message in &messages {
            push(&mut assembler, message, said);
            said.note("assembler", &assembler);
        }
    }
}

fn push(assembler: &mut Assembler, message: &[u8], said: &Said) {
    match assembler.push(message) {
        Ok(Assembled::Transaction(transaction)) => show(said, &transaction),
        Ok(other) => said.note("assembled", &other),
        Err(error) => said.note(&error.to_string(), &error),
    }
}

/// Cut short, and with a byte changed: at a few places each.
fn damages(message: &[u8]) -> Vec<Vec<u8>> {
    let step = (message.len() / 12).max(1);
    let places = (0..message.len().min(40)).chain((40..message.len()).step_by(step)).step_by(3);
    let changed = |at: usize| {
        let mut changed = message.to_vec();
        changed[at] ^= 0x85;
        changed
    };
    places.flat_map(|at| [message[..at].to_vec(), changed(at)]).collect()
}
