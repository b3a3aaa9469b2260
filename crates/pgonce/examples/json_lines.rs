//! A sink that prints each change as a line of JSON: `json_lines SOURCE_URL SLOT PUBLICATION STATE_DIRECTORY`.
//!
//! It begins where the slot is (made now, if it does not exist) and goes on there after a restart: at least once, for
//! a line that is printed cannot be taken back when the process is killed before its checkpoint is stored.

use std::io::Write;

use pgonce::checkpoint_store::FileStore;
use pgonce::connect::{ConnectionSettings, Environment};
use pgonce::destination::StartMode;
use pgonce::kept::Kept;
use pgonce::pgoutput::{Column, Tuple};
use pgonce::pipeline::{Pipeline, PipelineOptions};
use pgonce::relation::Relation;
use pgonce::sink::{Batch, Sink, SinkError};
use pgonce::slot_source::{SlotSettings, SlotSource};
use pgonce::transaction::Change;
use serde_json::{Map, Value, json};

struct JsonLines;

impl Sink for JsonLines {
    async fn write(&mut self, batch: &Batch<'_>) -> Result<(), SinkError> {
        let mut out = std::io::stdout().lock();
        for transaction in batch.transactions() {
            let lsn = transaction.commit().to_string();
            let mut changes = transaction.changes();
            while let Some(change) = changes.next()? {
                let line = match change {
                    Change::Insert { relation, new } => json!({"insert": row(relation, new)}),
                    Change::Update { relation, new, .. } => json!({"update": row(relation, new)}),
                    Change::Delete { relation, old } => json!({"delete": row(relation, old.tuple())}),
                    Change::Truncate { relations, .. } => {
                        json!({"truncate": relations.iter().map(|r| r.to_string()).collect::<Vec<_>>()})
                    }
                    Change::Message { prefix, .. } => json!({"message": prefix}),
                };
                writeln!(out, "{}", json!({"commit_lsn": lsn, "change": line}))?;
            }
        }
        Ok(out.flush()?)
    }
}

/// The columns that were sent, by name. An unchanged TOAST value is not a value, and is left out.
fn row(relation: &Relation, tuple: Tuple<'_>) -> Value {
    let mut row = Map::from_iter([("table".to_owned(), Value::String(relation.to_string()))]);
    for (column, value) in relation.columns.iter().zip(tuple) {
        match value {
            Column::Unchanged => continue,
            Column::Null => row.insert(column.name.clone(), Value::Null),
            Column::Text(bytes) | Column::Binary(bytes) => {
                row.insert(column.name.clone(), String::from_utf8_lossy(bytes).into())
            }
        };
    }
    Value::Object(row)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, slot, publication, directory] = arguments.as_slice() else {
        return Err("usage: json_lines SOURCE_URL SLOT PUBLICATION STATE_DIRECTORY".into());
    };
    let connection = ConnectionSettings::parse(url, &Environment::process())?;
    let source = SlotSource::new(SlotSettings::new(connection, slot, vec![publication.clone()]));
    let destination = Kept::at_least_once("json_lines", JsonLines, FileStore::new(directory));
    let mut pipeline = Pipeline::new(source, destination, PipelineOptions::new(StartMode::GoForward));
    eprintln!("{}", pipeline.guarantee());
    let (tell, told) = tokio::sync::watch::channel(false);
    let mut progress = pipeline.progress();
    tokio::spawn(async move {
        while progress.changed().await.is_ok() {
            // What heals by itself is waited out, for ever: say so.
            if let Some((fault, attempts @ 1)) = &progress.borrow_and_update().fault {
                eprintln!("attempt {attempts}: {fault}\n{}", fault.hint());
            }
        }
    });
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        tell.send_replace(true);
    });
    if let Err(stop) = pipeline.run(told).await {
        eprintln!("{}: {stop}\n{}", stop.code(), stop.hint());
        std::process::exit(stop.exit_status().into());
    }
    Ok(())
}
