//! From "this table differs" to rows and columns: buckets first, then the rows of the buckets that differ.
//!
//! Memory is bounded whatever differs: sums of at most 2^18 buckets, two streams of rows in one order that are merged
//! as they come, and a limited number of rows that are looked at closely.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;

use futures_util::{Stream, TryStreamExt};
use pgonce::stop::Side;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use super::report::{Difference, RowKind, RowReport};
use super::sql::Scan;

/// Rows that are listed of a table, at most.
pub const LISTED_MAX: usize = 20;

/// Different rows that are looked at for the columns in which they differ, at most.
const EXAMINED_MAX: usize = 1000;

/// An error of one of the two servers.
pub type SideError = (Side, tokio_postgres::Error);

/// A row's identity: the digest of its key, or of all of it.
type Identity = Vec<u8>;

/// What may be told of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shown {
    /// Their keys.
    pub keys: bool,
    /// All their values.
    pub values: bool,
}

/// Both sides of a table, in sessions that see the same point.
#[derive(Debug)]
pub struct Narrow<'a> {
    /// The source's session.
    pub source: &'a Client,
    /// The target's session.
    pub target: &'a Client,
    /// How the source's table is read.
    pub here: &'a Scan,
    /// How the target's table is read.
    pub there: &'a Scan,
    /// What may be told.
    pub shown: Shown,
}

/// Rows that differ, before anything of them is told.
#[derive(Debug, Default)]
struct Found {
    difference: Difference,
    /// The first of them.
    listed: Vec<(RowKind, Identity, u64)>,
    /// The first of those that both sides have.
    examined: Vec<Identity>,
}

impl Found {
    fn add(&mut self, kind: RowKind, identity: &Identity, times: u64) {
        match kind {
            RowKind::Missing => self.difference.missing += times,
            RowKind::Extra => self.difference.extra += times,
            RowKind::Different => self.difference.different += times,
        }
        if self.listed.len() < LISTED_MAX {
            self.listed.push((kind, identity.clone(), times));
        }
        if kind == RowKind::Different && self.examined.len() < EXAMINED_MAX {
            self.examined.push(identity.clone());
        }
    }

    /// Takes all rows of one identity, as digests: what both sides have is no difference.
    fn take(&mut self, identity: &Identity, here: &[Vec<u8>], there: &[Vec<u8>]) {
        let mut balance: BTreeMap<&[u8], i64> = BTreeMap::new();
        here.iter().for_each(|digest| *balance.entry(digest).or_default() += 1);
        there.iter().for_each(|digest| *balance.entry(digest).or_default() -= 1);
        let only = |sign: i64| balance.values().map(|n| u64::try_from(n * sign).unwrap_or(0)).sum::<u64>();
        let (missing, extra) = (only(1), only(-1));
        let different = missing.min(extra);
        for (kind, times) in [
            (RowKind::Different, different),
            (RowKind::Missing, missing - different),
            (RowKind::Extra, extra - different),
        ] {
            if times > 0 {
                self.add(kind, identity, times);
            }
        }
    }
}

impl Narrow<'_> {
    /// Counts the rows that differ, and names the columns. `rows` is the size of the larger side.
    pub async fn run(&self, rows: u64) -> Result<Difference, SideError> {
        let bits = bucket_bits(rows);
        let buckets = self.differing_buckets(bits).await?;
        let mut found = self.differing_rows(bits, &buckets).await?;
        self.describe(&mut found).await?;
        Ok(found.difference)
    }

    async fn differing_buckets(&self, bits: u32) -> Result<Vec<i32>, SideError> {
        let (here, there) = tokio::try_join!(
            buckets(self.source, self.here, bits, Side::Source),
            buckets(self.target, self.there, bits, Side::Target)
        )?;
        let all: BTreeSet<i32> = here.keys().chain(there.keys()).copied().collect();
        Ok(all.into_iter().filter(|bucket| here.get(bucket) != there.get(bucket)).collect())
    }

    async fn differing_rows(&self, bits: u32, buckets: &[i32]) -> Result<Found, SideError> {
        let mut here = Rows::open(self.source, &self.here.rows(bits), buckets, Side::Source).await?;
        let mut there = Rows::open(self.target, &self.there.rows(bits), buckets, Side::Target).await?;
        let (mut left, mut right) = (here.next().await?, there.next().await?);
        let mut found = Found::default();
        loop {
            let lowest = match (&left, &right) {
                (None, None) => return Ok(found),
                (Some(row), None) | (None, Some(row)) => row.0.clone(),
                (Some(left), Some(right)) => left.0.clone().min(right.0.clone()),
            };
            let (mut digests_left, mut digests_right) = (Vec::new(), Vec::new());
            while let Some((_, digest)) = left.take_if(|row| row.0 == lowest) {
                digests_left.push(digest);
                left = here.next().await?;
            }
            while let Some((_, digest)) = right.take_if(|row| row.0 == lowest) {
                digests_right.push(digest);
                right = there.next().await?;
            }
            found.take(&lowest, &digests_left, &digests_right);
        }
    }

    /// Looks closely at the first rows: in which columns they differ, and what may be told of them.
    async fn describe(&self, found: &mut Found) -> Result<(), SideError> {
        let columns = &self.here.columns;
        let texts: Vec<usize> = match self.shown {
            Shown { values: true, .. } => (0..columns.len()).collect(),
            Shown { keys: true, .. } => self.here.key.clone(),
            _ => Vec::new(),
        };
        let mut wanted: BTreeSet<&Identity> = found.examined.iter().collect();
        if !texts.is_empty() {
            wanted.extend(found.listed.iter().map(|(_, identity, _)| identity));
        }
        let wanted: Vec<&Identity> = wanted.into_iter().collect();
        if wanted.is_empty() {
            found.difference.rows = found.listed.iter().map(|(kind, _, times)| plain(*kind, *times)).collect();
            return Ok(());
        }
        let (here, there) = tokio::try_join!(
            details(self.source, self.here, &texts, &wanted, Side::Source),
            details(self.target, self.there, &texts, &wanted, Side::Target)
        )?;
        let differing = |identity: &Identity| -> Vec<String> {
            let (Some(here), Some(there)) = (here.get(identity), there.get(identity)) else { return Vec::new() };
            let pairs = here.digests.iter().zip(&there.digests).zip(columns);
            pairs.filter(|((here, there), _)| here != there).map(|(_, column)| column.clone()).collect()
        };
        for identity in &found.examined {
            for column in differing(identity) {
                *found.difference.columns.entry(column).or_default() += 1;
            }
        }
        found.difference.examined = found.examined.len() as u64;
        for (kind, identity, times) in &found.listed {
            let mut row = plain(*kind, *times);
            if *kind == RowKind::Different {
                row.columns = differing(identity);
            }
            let named = |detail: &Detail, keep: &dyn Fn(usize) -> bool| -> BTreeMap<String, Option<String>> {
                let pairs = texts.iter().zip(&detail.texts).filter(|(index, _)| keep(**index));
                pairs.filter_map(|(index, text)| Some((columns.get(*index)?.clone(), text.clone()))).collect()
            };
            let known = here.get(identity).or_else(|| there.get(identity));
            if self.shown.keys && !self.here.key.is_empty() {
                row.key = known.map(|detail| named(detail, &|index| self.here.key.contains(&index)));
            }
            if self.shown.values {
                // Without a key, the other side may have the row too, only less often.
                let of = |detail: Option<&Detail>, shown: bool| detail.filter(|_| shown).map(|d| named(d, &|_| true));
                row.source = of(here.get(identity), *kind != RowKind::Extra);
                row.target = of(there.get(identity), *kind != RowKind::Missing);
            }
            found.difference.rows.push(row);
        }
        Ok(())
    }
}

fn plain(kind: RowKind, times: u64) -> RowReport {
    RowReport { kind, times, columns: Vec::new(), key: None, source: None, target: None }
}

/// Some hundred rows to a bucket, so that few rows are read where few differ.
fn bucket_bits(rows: u64) -> u32 {
    let wanted = u64::BITS - (rows / 256).leading_zeros();
    wanted.clamp(10, 18)
}

type Bucket = (i64, String, String);

async fn buckets(client: &Client, scan: &Scan, bits: u32, side: Side) -> Result<BTreeMap<i32, Bucket>, SideError> {
    let rows = client.query(&scan.buckets(bits), &[]).await.map_err(|e| (side, e))?;
    Ok(rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2), row.get(3)))).collect())
}

/// Rows of some buckets as they come.
struct Rows {
    rows: Pin<Box<dyn Stream<Item = Result<Row, tokio_postgres::Error>> + Send>>,
    side: Side,
}

impl Rows {
    async fn open(client: &Client, sql: &str, buckets: &[i32], side: Side) -> Result<Rows, SideError> {
        let parameters: [&(dyn ToSql + Sync); 1] = [&buckets];
        let rows = client.query_raw(sql, parameters).await.map_err(|e| (side, e))?;
        Ok(Rows { rows: Box::pin(rows), side })
    }

    async fn next(&mut self) -> Result<Option<(Identity, Vec<u8>)>, SideError> {
        let row = self.rows.try_next().await.map_err(|e| (self.side, e))?;
        Ok(row.map(|row| (row.get(0), row.get(1))))
    }
}

/// One row, closely.
struct Detail {
    digests: Vec<String>,
    texts: Vec<Option<String>>,
}

async fn details(
    client: &Client,
    scan: &Scan,
    shown: &[usize],
    wanted: &[&Identity],
    side: Side,
) -> Result<BTreeMap<Identity, Detail>, SideError> {
    let rows = client.query(&scan.details(shown), &[&wanted]).await.map_err(|e| (side, e))?;
    Ok(rows.iter().map(|row| (row.get(0), Detail { digests: row.get(1), texts: row.get(2) })).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(here: &[&[u8]], there: &[&[u8]]) -> (u64, u64, u64) {
        let owned = |digests: &[&[u8]]| digests.iter().map(|digest| digest.to_vec()).collect::<Vec<_>>();
        let mut found = Found::default();
        found.take(&vec![1], &owned(here), &owned(there));
        (found.difference.missing, found.difference.extra, found.difference.different)
    }

    #[test]
    fn rows_of_one_identity_are_compared_as_multisets() {
        assert_eq!(counts(&[b"a"], &[b"a"]), (0, 0, 0));
        assert_eq!(counts(&[b"a"], &[b"b"]), (0, 0, 1));
        assert_eq!(counts(&[b"a"], &[]), (1, 0, 0));
        assert_eq!(counts(&[b"a"], &[b"a", b"a"]), (0, 1, 0));
        assert_eq!(counts(&[b"a", b"b"], &[b"b", b"c", b"c"]), (0, 1, 1));
    }

    #[test]
    fn what_is_listed_is_limited_and_what_is_counted_is_not() {
        let mut found = Found::default();
        for number in 0..5000_u32 {
            found.take(&number.to_be_bytes().to_vec(), &[vec![1]], &[vec![2]]);
        }
        assert_eq!(
            (found.difference.different, found.listed.len(), found.examined.len()),
            (5000, LISTED_MAX, EXAMINED_MAX)
        );
    }

    #[test]
    fn there_are_more_buckets_for_more_rows_within_bounds() {
        assert_eq!([0, 1000, 1 << 20, u64::MAX].map(bucket_bits), [10, 10, 13, 18]);
    }
}
