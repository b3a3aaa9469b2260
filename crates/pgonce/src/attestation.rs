//! The proof that nothing was left out of the stream: what is published is still what the flow is bound to.
//!
//! A walsender leaves out, without a word, the changes of a table that has left the publication, and its keepalives
//! move over them. So nothing is acknowledged above a point for which this proof has been made.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::catalog;
use crate::connect::SqlConnection;
use crate::partitions::{self, Answers, Watch};
use crate::position::Boundary;
use crate::published::{Published, tables_of};
use crate::stop::{Reason, Side, Stop};

/// Proofs are not made closer to one another than this, nor than so many times what the last one took, within reason.
const SPACING: Duration = Duration::from_millis(50);
const SPACING_TIMES: u32 = 5;
const SPACING_MAX: Duration = Duration::from_secs(10);

/// Makes proofs in a task of its own, when asked to: neither the stream nor the sink ever waits for one.
#[derive(Debug)]
pub(crate) struct Attestation {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    /// A table is published that the flow does not know.
    joined: AtomicBool,
    latest: Mutex<Result<Option<Boundary>, Stop>>,
    asked: Notify,
}

/// What is proved, and of whom.
pub(crate) struct Claim {
    pub(crate) sql: Arc<SqlConnection>,
    pub(crate) server_version: u32,
    pub(crate) publications: Vec<String>,
    /// The fingerprint that the flow is bound to.
    pub(crate) bound: String,
    /// How long the server may take to answer.
    pub(crate) patience: Duration,
    /// What is known of the partitions.
    pub(crate) partitions: Arc<Mutex<Watch>>,
}

impl Attestation {
    pub(crate) fn start(claim: Claim) -> Attestation {
        let shared =
            Arc::new(Shared { joined: AtomicBool::new(false), latest: Mutex::new(Ok(None)), asked: Notify::new() });
        let task = tokio::spawn(attest(claim, Arc::clone(&shared)));
        Attestation { shared, task }
    }

    /// Asks for a new proof.
    pub(crate) fn ask(&self) {
        self.shared.asked.notify_one();
    }

    /// Whether a table is published that the flow does not know.
    pub(crate) fn joined(&self) -> bool {
        self.shared.joined.load(Ordering::Relaxed)
    }

    /// What has been proved, or why nothing can be any more.
    pub(crate) fn latest(&self) -> Result<Option<Boundary>, Stop> {
        self.shared.latest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Attestation {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn attest(claim: Claim, shared: Arc<Shared>) {
    let mut looks = Looks { known: tables_of(&claim.bound).collect(), ..Looks::default() };
    loop {
        let begun = Instant::now();
        let result = tokio::time::timeout(claim.patience, prove(&claim, &mut looks, &shared.joined))
            .await
            .unwrap_or_else(|_| {
                let patience = claim.patience.as_secs();
                let what = format!("no answer to a question about the publications within {patience} s");
                Err(Reason::Connection { side: Side::Source, what }.into())
            });
        let ended = result.is_err();
        *shared.latest.lock().unwrap_or_else(PoisonError::into_inner) = result;
        if ended {
            return;
        }
        tokio::time::sleep((begun.elapsed() * SPACING_TIMES).clamp(SPACING, SPACING_MAX)).await;
        shared.asked.notified().await;
    }
}

/// Where the source's write position was at the last look, and up to where two looks have agreed.
#[derive(Default)]
struct Looks {
    /// The tables that the flow knows.
    known: HashSet<u32>,
    looked: Option<Boundary>,
    proved: Option<Boundary>,
}

/// Looks whether a change of a publication is under way, and what is published.
///
/// A change may lie in the WAL, and be obeyed by the walsender, before anybody can see it: its transaction is then
/// between its commit record and its end, for microseconds, or for as long as it waits for a synchronous standby. So a
/// write position counts as proved only by a look that begins later than the one that read it.
async fn prove(claim: &Claim, looks: &mut Looks, joined: &AtomicBool) -> Result<Option<Boundary>, Stop> {
    let client = &claim.sql.client;
    let point = catalog::insert_position(client).await?;
    if looks.proved == Some(point) || catalog::publication_change_in_flight(client).await? {
        // A change under way is not a fault: the next look will tell.
        return Ok(looks.proved);
    }
    let now = published(&claim.sql, claim.server_version, &claim.publications, &claim.bound, &[]).await?;
    look(&claim.sql, &now, &claim.partitions).await?;
    if now.tables.iter().any(|table| !looks.known.contains(&table.oid)) {
        joined.store(true, Ordering::Relaxed);
    }
    looks.proved = looks.looked.max(looks.proved);
    looks.looked = Some(point);
    Ok(looks.proved)
}

/// Looks whether anything has come over the partitions that the stream does not tell.
pub(crate) async fn look(sql: &SqlConnection, now: &Published, watch: &Mutex<Watch>) -> Result<(), Stop> {
    let lock = || watch.lock().unwrap_or_else(PoisonError::into_inner);
    let roots: BTreeSet<u32> = now.tables.iter().map(|t| t.oid).collect();
    let questions = lock().questions(&now.partitions, &roots);
    if questions.nothing_new() {
        return Ok(());
    }
    let mut answers = Answers::default();
    for partition in &questions.new {
        match catalog::held_rows(&sql.client, partition).await? {
            Some(false) => {}
            Some(true) => drop(answers.filled.insert(partition.oid)),
            None => drop(answers.unknown.insert(partition.oid)),
        }
    }
    if !questions.gone.is_empty() {
        answers.existing = catalog::existing(&sql.client, &questions.gone).await?.into_iter().collect();
    }
    if questions.storage {
        answers.point = catalog::insert_position(&sql.client).await?.0;
    }
    lock().look(&now.partitions, &roots, &answers);
    Ok(())
}

/// What is published now. Refused if something has left since the fingerprint `bound` was taken, except of the tables
/// named in `again`.
pub(crate) async fn published(
    sql: &SqlConnection,
    server_version: u32,
    publications: &[String],
    bound: &str,
    again: &[String],
) -> Result<Published, Stop> {
    let now = catalog::published(&sql.client, server_version, publications).await;
    let mut now = now.map_err(|stop| match stop.reason() {
        // A publication that the flow was bound to is gone: what was sent since is not known to be complete.
        Reason::PublicationMissing { publication, .. } => {
            Reason::PublicationChanged { what: format!("publication {publication} no longer exists") }.into()
        }
        _ => stop,
    })?;
    let again: Vec<u32> =
        now.tables.iter().filter(|table| again.contains(&table.to_string())).map(|table| table.oid).collect();
    let mut missing = now.missing_from(bound);
    missing.retain(|member| !again.contains(&member.table));
    if !missing.is_empty() {
        // A partition that was published for itself, and detached, left with its tree: what was committed before is in
        // the stream, and it is told.
        let leaves = partitions::leaves_of(bound);
        missing.retain(|m| !(m.key.starts_with("publishes") && leaves.contains(&m.table)));
    }
    let gone: Vec<u32> = missing.iter().map(|m| m.table).filter(|oid| *oid != 0).collect();
    let existing = if gone.is_empty() { Vec::new() } else { catalog::existing(&sql.client, &gone).await? };
    // A table that no longer exists has left nothing out; one of the same name made since is another table.
    for gone in missing.iter().filter(|m| m.key.starts_with("publishes") && !existing.contains(&m.table)) {
        now.warnings.push(format!(
            "{} no longer exists on the source: what the target has of it stays; a new table of that name is \
             another one",
            gone.label
        ));
    }
    let left: Vec<&str> =
        missing.iter().filter(|m| m.table == 0 || existing.contains(&m.table)).map(|m| m.label.as_str()).collect();
    if left.is_empty() {
        return Ok(now);
    }
    Err(Reason::PublicationChanged { what: format!("no longer there: {}", left.join("; ")) }.into())
}
