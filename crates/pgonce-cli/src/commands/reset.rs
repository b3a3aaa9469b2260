//! `pgonce reset`: takes away what a flow has left behind, so that it can begin anew. User tables are never touched.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use clap::Args;
use pgonce::ident::{quote_ident, quote_qualified};
use pgonce::stop::Side;
use serde_json::json;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::block_on;
use crate::config::flags::FlowOptions;
use crate::config::{self, FlowConfig, Publish};
use crate::facts::{self, SourceFacts};
use crate::failure::{Failure, USAGE};
use crate::ledger;
use crate::lock::{DataDir, spill_path, spilled};
use crate::output::{Output, Tone};
use crate::render::{Listing, counted};

/// Arguments of `pgonce reset`.
#[derive(Args, Debug)]
pub struct ResetArguments {
    /// Remove what is listed; without it, nothing is changed
    #[arg(long)]
    pub yes: bool,
    /// The flow
    #[command(flatten)]
    pub options: FlowOptions,
}

/// Lists what there is, and with `--yes` removes it.
///
/// # Errors
///
/// One of the databases cannot be asked, or something is in use.
pub fn execute(arguments: &ResetArguments, output: Output) -> Result<(), Failure> {
    let config = config::load(&arguments.options)?;
    // A directory that does not exist is not made for this.
    let held = config.data_dir.exists().then(|| DataDir::take(&config.data_dir)).transpose()?;
    block_on(reset(&config, arguments.yes, output))?;
    drop(held);
    Ok(())
}

/// What a flow has left behind.
struct Remains {
    source: SourceFacts,
    /// Tables of the ledger, each with the number of the flow's rows.
    ledger: Vec<(String, u64)>,
    /// Our publication, if it exists and pgonce made it.
    publication: Option<String>,
    /// What keeps the role from dropping it, after an attempt.
    left_over: Option<LeftOver>,
    spilled: Vec<std::path::PathBuf>,
    /// Published tables that hold rows on the target.
    filled: Vec<String>,
}

/// A publication that the role may not drop.
struct LeftOver {
    why: String,
    sql: String,
}

async fn reset(config: &FlowConfig, yes: bool, output: Output) -> Result<(), Failure> {
    let source = facts::connect(&config.source.connection, Side::Source).await?;
    let mut target = facts::connect(&config.target.connection, Side::Target).await?;
    let mut remains = find(config, &source.client, &target.client).await?;
    refuse_active(config, &remains.source)?;
    refuse_alive(config, &target.client).await?;
    if yes {
        remove(config, &mut remains, &source.client, &mut target.client).await?;
    }
    report(config, &remains, yes, output);
    Ok(())
}

async fn find(config: &FlowConfig, source: &Client, target: &Client) -> Result<Remains, Failure> {
    let names = config.source.publish.names();
    let facts = facts::ask(source, &config.source.slot, &names).await?;
    let publication = match &config.source.publish {
        Publish::Ours { name, .. } if facts.made.contains(name) => Some(name.clone()),
        _ => None,
    };
    Ok(Remains {
        ledger: ledger::rows_of(target, config.flow.as_str()).await?,
        publication,
        left_over: None,
        spilled: spilled(&spill_path(&config.data_dir))?,
        filled: filled(target, &tables(config, source, target, &names).await?).await?,
        source: facts,
    })
}

/// The tables of the flow, quoted: those that are published, and, should the publication be gone, those that were
/// copied.
async fn tables(
    config: &FlowConfig,
    source: &Client,
    target: &Client,
    publications: &[String],
) -> Result<BTreeSet<String>, Failure> {
    let sql = "SELECT DISTINCT t.schemaname::text, t.tablename::text FROM pg_catalog.pg_publication_tables t \
               WHERE t.pubname::text = ANY ($1) ORDER BY 1, 2";
    let published = source.query(sql, &[&publications]).await.map_err(|e| Failure::sql(Side::Source, &e))?;
    let mut tables: BTreeSet<String> = published.iter().map(|row| quote_qualified(row.get(0), row.get(1))).collect();
    // A ledger that cannot be read is a reason for a reset, not against it.
    if let Ok(Some(status)) = pgonce_target::read_status(target, config.flow.as_str()).await {
        tables.extend(status.copied.iter().map(|table| quote_qualified(&table.schema, &table.name)));
    }
    Ok(tables)
}

/// The tables that hold rows on the target.
async fn filled(target: &Client, tables: &BTreeSet<String>) -> Result<Vec<String>, Failure> {
    let mut filled = Vec::new();
    for table in tables {
        let exists = "SELECT pg_catalog.to_regclass($1) IS NOT NULL";
        let exists = target.query_one(exists, &[table]).await.map_err(|e| Failure::sql(Side::Target, &e))?;
        if !exists.get::<_, bool>(0) {
            continue;
        }
        let any = target.query_one(&format!("SELECT EXISTS (SELECT FROM {table})"), &[]).await;
        // A table that may not be read is named rather than passed over.
        if any.map_or(true, |row| row.get(0)) {
            filled.push(table.clone());
        }
    }
    Ok(filled)
}

fn refuse_active(config: &FlowConfig, source: &SourceFacts) -> Result<(), Failure> {
    let Some(slot) = source.slot.as_ref().filter(|slot| slot.active) else { return Ok(()) };
    let name = &config.source.slot;
    let (reader, end) = match slot.active_pid {
        Some(pid) => {
            let end = format!(" To end its connection: SELECT pg_terminate_backend({pid}); on the source.");
            (format!("the server process with PID {pid}"), end)
        }
        None => ("another session".to_owned(), String::new()),
    };
    Err(Failure {
        code: "slot_in_use",
        text: format!("slot {name} is being read by {reader}"),
        hint: format!("Stop the `pgonce run` of this flow first.{end}"),
        exit_status: pgonce::stop::Family::Source.exit_status(),
    })
}

/// How long a writer that has been ended may take to go.
const GOES_WITHIN: Duration = Duration::from_secs(3);

/// While it copies, a flow does not read its slot, and may run on another machine with another data directory: its
/// session on the target says that it lives.
async fn refuse_alive(config: &FlowConfig, target: &Client) -> Result<(), Failure> {
    let deadline = Instant::now() + GOES_WITHIN;
    loop {
        let writers = pgonce_target::writers(target, config.flow.as_str()).await?;
        let Some(pid) = writers.first() else { return Ok(()) };
        if Instant::now() >= deadline {
            return Err(Failure {
                code: "flow_running",
                text: format!("flow {} is running: its session on the target has PID {pid}", config.flow),
                hint: format!(
                    "Stop the `pgonce run` of this flow first; `pgonce status` says on which host it is. To end its \
                     session: SELECT pg_terminate_backend({pid}); on the target."
                ),
                exit_status: USAGE,
            });
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The slot goes first: with it gone, what is left can only be refused by a later start, never continued with a gap.
/// The publication goes last: it may belong to a role that ours is not, and nothing depends on it any more.
async fn remove(
    config: &FlowConfig,
    remains: &mut Remains,
    source: &Client,
    target: &mut Client,
) -> Result<(), Failure> {
    let on_source = |e: tokio_postgres::Error| Failure::sql(Side::Source, &e);
    if remains.source.slot.is_some() {
        let sql = "SELECT pg_catalog.pg_drop_replication_slot($1::text::name)";
        source.execute(sql, &[&config.source.slot]).await.map_err(on_source)?;
    }
    pgonce_target::remove_flow(target, config.flow.as_str()).await?;
    for file in &remains.spilled {
        std::fs::remove_file(file).map_err(|e| Failure::file(file, &e))?;
    }
    if let Some(publication) = &remains.publication {
        let sql = format!("DROP PUBLICATION IF EXISTS {};", quote_ident(publication));
        match source.batch_execute(&sql).await {
            Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
                let why = error.as_db_error().map_or_else(String::new, |error| error.message().to_owned());
                remains.left_over = Some(LeftOver { why, sql });
            }
            dropped => dropped.map_err(on_source)?,
        }
    }
    Ok(())
}

fn report(config: &FlowConfig, remains: &Remains, removed: bool, output: Output) {
    let truncate = (!remains.filled.is_empty()).then(|| format!("TRUNCATE {};", remains.filled.join(", ")));
    let publication = remains.publication.as_ref().filter(|_| remains.left_over.is_none());
    let staying: Vec<&String> =
        remains.source.publications.iter().filter(|name| remains.publication.as_ref() != Some(*name)).collect();
    if output.is_json() {
        output.object(&json!({
            "event": if removed { "removed" } else { "would_remove" }, "flow": config.flow.as_str(),
            "slot": remains.source.slot.as_ref().map(|_| &config.source.slot), "publication": publication,
            "publications_left": staying,
            "left_over": remains.left_over.as_ref().map(|left| json!({
                "publication": remains.publication, "why": left.why, "sql": left.sql,
            })),
            "ledger_rows": remains.ledger.iter().cloned().collect::<BTreeMap<_, _>>(),
            "spill_files": remains.spilled.len(), "tables_with_rows": remains.filled, "truncate": truncate,
        }));
        return;
    }
    output.line(if removed { "Removed:" } else { "This would be removed:" });
    let mut list = Listing::default();
    let none = "none".to_owned();
    list.pair("  slot", remains.source.slot.as_ref().map_or(none.clone(), |_| config.source.slot.clone()));
    let publication = match (&remains.left_over, &config.source.publish) {
        (Some(left), _) => format!("none: left over, see below ({})", left.why),
        (None, Publish::Existing(names)) => format!("none ({} stays)", names.join(", ")),
        (None, Publish::Ours { name, .. }) => match &remains.publication {
            Some(name) => name.clone(),
            None if staying.is_empty() => none,
            None => format!("none ({name} stays: pgonce did not make it)"),
        },
    };
    list.pair("  publication", publication);
    for (table, rows) in &remains.ledger {
        list.pair(&format!("  {table}"), counted(*rows, "row", "rows"));
    }
    if remains.ledger.is_empty() {
        list.pair("  ledger", "nothing of this flow");
    }
    list.pair("  spill files", remains.spilled.len().to_string());
    list.write(output);
    if let Some(left) = &remains.left_over {
        output.line(&format!(
            "\nThe source's role may not drop the publication. Its owner or an administrator types on the \
            source:\n  {}",
            left.sql
        ));
    }
    if let Some(truncate) = truncate {
        let tables = counted(remains.filled.len() as u64, "table", "tables");
        output.line(&format!(
            "\n{tables} of the flow hold rows on the target and are left alone. If they may go, before a new copy:\n  \
             {truncate}"
        ));
    }
    if !removed {
        output.line(&format!(
            "\nNothing has been changed. To remove it: {}",
            output.tone(Tone::Strong, "pgonce reset --yes")
        ));
    }
}
