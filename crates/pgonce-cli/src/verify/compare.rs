//! Compares tables: several at a time, each inside both servers at once.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use futures_util::stream::{FuturesUnordered, TryStreamExt};
use pgonce::connect::{ConnectionSettings, SqlConnection, connect_sql};
use pgonce::ident::quote_literal;
use pgonce::sql_error::stop_from_sql;
use pgonce::stop::{Side, Stop};
use tokio_postgres::{Client, Row};

use super::narrow::{Narrow, Shown, SideError};
use super::report::{Interrupted, Outcome, Problem, Sums, TableReport};
use super::sql::{Scan, checksum};
use super::tables::TablePlan;

/// A session that holds a snapshot, which other sessions can import.
pub struct Point {
    settings: ConnectionSettings,
    side: Side,
    /// The session that exported the snapshot: it is in a transaction, and reads as of the snapshot itself.
    pub connection: SqlConnection,
    name: String,
}

impl Point {
    /// Takes a snapshot now.
    pub async fn take(settings: &ConnectionSettings, side: Side) -> Result<Point, Stop> {
        let connection = connect(settings, side).await?;
        let failed = |e| stop_from_sql(side, &e);
        connection.client.batch_execute(BEGIN).await.map_err(failed)?;
        let row = connection.client.query_one("SELECT pg_catalog.pg_export_snapshot()", &[]).await.map_err(failed)?;
        // A snapshot is of one server.
        let settings = settings.pinned_to(connection.endpoint());
        Ok(Point { settings, side, name: row.get(0), connection })
    }

    /// Another session in the same snapshot.
    async fn join(&self) -> Result<SqlConnection, Stop> {
        let connection = connect(&self.settings, self.side).await?;
        let begin = format!("{BEGIN}; SET TRANSACTION SNAPSHOT {}", quote_literal(&self.name));
        connection.client.batch_execute(&begin).await.map_err(|e| stop_from_sql(self.side, &e))?;
        Ok(connection)
    }
}

const BEGIN: &str = "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// Opens a session for this command.
pub async fn connect(settings: &ConnectionSettings, side: Side) -> Result<SqlConnection, Stop> {
    connect_sql(settings, "verify").await.map_err(|e| e.into_stop(side))
}

/// Compares tables as both points see them, `jobs` at a time. Reports are in the order of the plans.
pub async fn tables(
    source: &Point,
    target: &Point,
    plans: Vec<TablePlan>,
    jobs: usize,
    shown: Shown,
) -> Result<Vec<TableReport>, Interrupted> {
    let workers = jobs.clamp(1, plans.len().max(1));
    let queue: Mutex<VecDeque<(usize, TablePlan)>> = Mutex::new(plans.into_iter().enumerate().collect());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let done = Mutex::new(Vec::new());
    let work = async || -> Result<(), Interrupted> {
        let (here, there) = tokio::try_join!(source.join(), target.join())?;
        while let Some((index, plan)) = next() {
            let report = table(&here.client, &there.client, plan, shown).await?;
            done.lock().unwrap_or_else(PoisonError::into_inner).push((index, report));
        }
        Ok(())
    };
    let all: FuturesUnordered<_> = (0..workers).map(|_| work()).collect();
    all.try_collect::<Vec<()>>().await?;
    let mut reports = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    reports.sort_by_key(|(index, _)| *index);
    Ok(reports.into_iter().map(|(_, report)| report).collect())
}

async fn table(source: &Client, target: &Client, plan: TablePlan, shown: Shown) -> Result<TableReport, Interrupted> {
    let TablePlan { mut report, scans } = plan;
    let Some((here, there)) = scans else { return Ok(report) };
    // Rolled back to its savepoint, a session keeps no lock on the table: nobody's ALTER or TRUNCATE waits for the
    // other tables.
    savepoint(source, target, "SAVEPOINT scan").await?;
    match compare(source, target, &here, &there, shown, &mut report).await {
        Ok(()) => {}
        Err((side, error)) => {
            let stop = stop_from_sql(side, &error);
            let Interrupted::NotComparable(problem) = Interrupted::from(stop) else {
                return Err(stop_from_sql(side, &error).into());
            };
            report.outcome = Outcome::NotComparable;
            report.reason = Some(problem);
        }
    }
    savepoint(source, target, "ROLLBACK TO SAVEPOINT scan").await?;
    Ok(report)
}

async fn savepoint(source: &Client, target: &Client, sql: &str) -> Result<(), Stop> {
    source.batch_execute(sql).await.map_err(|e| stop_from_sql(Side::Source, &e))?;
    target.batch_execute(sql).await.map_err(|e| stop_from_sql(Side::Target, &e))
}

async fn compare(
    source: &Client,
    target: &Client,
    here: &Scan,
    there: &Scan,
    shown: Shown,
    report: &mut TableReport,
) -> Result<(), SideError> {
    let (left, right) = tokio::try_join!(sums(source, here, Side::Source), sums(target, there, Side::Target))?;
    let keyed = !here.key.is_empty();
    (report.source, report.target) = (Some(left.report(keyed)), Some(right.report(keyed)));
    if left == right {
        report.outcome = Outcome::Same;
        return Ok(());
    }
    report.outcome = Outcome::Different;
    let narrow = Narrow { source, target, here, there, shown };
    report.difference = Some(narrow.run(left.rows.max(right.rows)).await?);
    Ok(())
}

/// Exact sums.
#[derive(PartialEq, Eq)]
struct Exact {
    rows: u64,
    key: (i128, i128),
    content: (i128, i128),
}

impl Exact {
    fn report(&self, keyed: bool) -> Sums {
        Sums {
            rows: self.rows,
            key_checksum: keyed.then(|| checksum(self.key)),
            content_checksum: checksum(self.content),
        }
    }
}

async fn sums(client: &Client, scan: &Scan, side: Side) -> Result<Exact, SideError> {
    let row = client.query_one(&scan.sums(), &[]).await.map_err(|e| (side, e))?;
    Ok(Exact {
        rows: row.get::<_, i64>(0).unsigned_abs(),
        key: (number(&row, 1), number(&row, 2)),
        content: (number(&row, 3), number(&row, 4)),
    })
}

/// A sum of 64-bit numbers over fewer than 2^63 rows fits 128 bits.
fn number(row: &Row, column: usize) -> i128 {
    row.get::<_, &str>(column).parse().unwrap_or_default()
}

/// For a table of which the publications leave operations out: a difference is then to be expected.
pub fn excuse(report: &mut TableReport, operations: &str) {
    let text = format!("the publications leave out {operations} of table {}", report.table);
    if report.outcome == Outcome::Different {
        report.outcome = Outcome::NotComparable;
        report.reason = Some(Problem::new(
            "partly_published",
            format!("{text}, so that a difference is to be expected"),
            "Nothing to mend if that is intended. What differs is counted below.",
        ));
    } else {
        report.notes.push(text);
    }
}
