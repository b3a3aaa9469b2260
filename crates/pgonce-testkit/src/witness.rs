//! The two witnesses: tables in which any transaction that is lost or applied twice shows, by plain SQL on both sides.
//!
//! `witness_log` is append-only and has no key, so nothing in the database stops a second application: it is an extra
//! row. Each workload transaction puts exactly one row with a number of its own into it. `witness_mirror` has a key
//! and is inserted into, updated (often without touching its large value), deleted from, and has its keys changed; it
//! is compared row for row.
//!
//! Nothing here asks pgonce for anything.

use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use crate::KitError;

/// Rows of `witness_mirror` that every connection of a workload updates. They have the keys 1 to 16 and are never
/// deleted.
pub const SHARED_ROWS: u64 = 16;

const TABLES: &str = "
    CREATE TABLE witness_log (number bigint NOT NULL, worker int NOT NULL, note text);
    ALTER TABLE witness_log REPLICA IDENTITY FULL;
    CREATE TABLE witness_mirror (
        id bigint PRIMARY KEY,
        number bigint NOT NULL,
        counter int NOT NULL DEFAULT 0,
        amount numeric,
        note text,
        large text
    );
    ALTER TABLE witness_mirror ALTER COLUMN large SET STORAGE EXTERNAL;";

/// Creates both tables at a source, the sequence that numbers transactions, and the shared rows.
pub async fn create(source: &Client) -> Result<(), KitError> {
    create_target(source).await?;
    let sql = format!(
        "CREATE SEQUENCE witness_number;
         INSERT INTO witness_mirror (id, number) SELECT i, 0 FROM generate_series(1, {SHARED_ROWS}) i;"
    );
    source.batch_execute(&sql).await.map_err(KitError::sql("creating the witnesses' sequence"))
}

/// Creates both tables at a target, empty.
pub async fn create_target(target: &Client) -> Result<(), KitError> {
    target.batch_execute(TABLES).await.map_err(KitError::sql("creating the witnesses"))
}

/// What the witnesses say of a source and a target, both at rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Transactions at the source: distinct numbers in its log.
    pub source_transactions: u64,
    /// Transactions at the target: distinct numbers in its log.
    pub target_transactions: u64,
    /// Transactions at the source and not at the target.
    pub lost: u64,
    /// Rows of the target's log beyond those that the source has of the same number.
    pub duplicated: u64,
    /// Transactions at the target that the source does not have: rolled back, or never there. They are not in
    /// `duplicated`.
    pub unexpected: u64,
    /// Keys of the mirror whose rows differ, or that one side lacks.
    pub mirror_differences: u64,
    /// Up to ten numbers of transactions lost, duplicated or unexpected, for the message of a failing test.
    pub examples: Vec<i64>,
    /// Up to ten keys of the mirror that differ.
    pub mirror_examples: Vec<i64>,
}

impl Comparison {
    /// Whether nothing is lost, duplicated, unexpected or different.
    pub fn is_clean(&self) -> bool {
        self.lost == 0 && self.duplicated == 0 && self.unexpected == 0 && self.mirror_differences == 0
    }

    /// Panics unless the comparison is clean and saw at least one transaction.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(self.source_transactions > 0, "the witnesses saw no transaction: {self:?}");
        assert!(self.is_clean(), "{self:?}");
    }
}

/// Compares the witnesses of a source and a target.
pub async fn compare(source: &Client, target: &Client) -> Result<Comparison, KitError> {
    let mut found = Comparison::default();
    compare_logs(source, target, &mut found).await?;
    compare_mirrors(source, target, &mut found).await?;
    Ok(found)
}

/// Compares until the comparison is clean, for as long as `patience`, and returns the last one. The source is at rest.
pub async fn compare_when_caught_up(
    source: &Client,
    target: &Client,
    patience: Duration,
) -> Result<Comparison, KitError> {
    let deadline = Instant::now() + patience;
    loop {
        let found = compare(source, target).await?;
        if found.is_clean() || Instant::now() >= deadline {
            return Ok(found);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn compare_logs(source: &Client, target: &Client, found: &mut Comparison) -> Result<(), KitError> {
    let sql = "SELECT number, count(*) FROM witness_log GROUP BY number ORDER BY number";
    let count = |row: &Row| -> i64 { row.get(1) };
    merge(source, target, sql, count, |number, here, there| {
        found.source_transactions += u64::from(here.is_some());
        found.target_transactions += u64::from(there.is_some());
        match (here, there) {
            (Some(_), None) => found.lost += 1,
            (None, Some(_)) => found.unexpected += 1,
            (Some(here), Some(there)) if there > here => found.duplicated += (there - here).unsigned_abs(),
            // Fewer rows of a number than the source has: a part of what should be there is lost.
            (Some(here), Some(there)) if there < here => found.lost += (here - there).unsigned_abs(),
            _ => return,
        }
        remember(&mut found.examples, number);
    })
    .await
}

async fn compare_mirrors(source: &Client, target: &Client, found: &mut Comparison) -> Result<(), KitError> {
    let sql = "SELECT id, md5(ROW(id, number, counter, amount, note, large)::text) FROM witness_mirror ORDER BY id";
    let digest = |row: &Row| -> String { row.get(1) };
    merge(source, target, sql, digest, |id, here, there| {
        if here != there {
            found.mirror_differences += 1;
            remember(&mut found.mirror_examples, id);
        }
    })
    .await
}

fn remember(examples: &mut Vec<i64>, number: i64) {
    if examples.len() < 10 {
        examples.push(number);
    }
}

/// Reads the same ordered query on both sides and visits each key with what either side has, in bounded memory.
async fn merge<T>(
    source: &Client,
    target: &Client,
    sql: &str,
    value: impl Fn(&Row) -> T,
    mut visit: impl FnMut(i64, Option<T>, Option<T>),
) -> Result<(), KitError> {
    let none: [&(dyn ToSql + Sync); 0] = [];
    let at_source = |error| KitError::sql("reading the witnesses at the source")(error);
    let at_target = |error| KitError::sql("reading the witnesses at the target")(error);
    let here = source.query_raw(sql, none).await.map_err(at_source)?.map_err(at_source);
    let there = target.query_raw(sql, none).await.map_err(at_target)?.map_err(at_target);
    let (mut here, mut there) = (pin!(here), pin!(there));
    let (mut left, mut right) = (here.next().await.transpose()?, there.next().await.transpose()?);
    loop {
        let key = |row: &Option<Row>| row.as_ref().map(|row| row.get::<_, i64>(0));
        let (left_key, right_key) = (key(&left), key(&right));
        let Some(lowest) = [left_key, right_key].into_iter().flatten().min() else { return Ok(()) };
        let mut values = (None, None);
        if left_key == Some(lowest) {
            values.0 = left.as_ref().map(&value);
            left = here.next().await.transpose()?;
        }
        if right_key == Some(lowest) {
            values.1 = right.as_ref().map(&value);
            right = there.next().await.transpose()?;
        }
        visit(lowest, values.0, values.1);
    }
}
