//! W1: many transactions of one row each, into a table of six columns of six types.

use anyhow::Result;
use futures_util::future::{BoxFuture, try_join_all};
use tokio_postgres::Client;

use super::CatchUp;
use super::catch_up::Size;

/// Inserts sent to a connection before their answers are awaited.
const PIPELINED: i64 = 200;

/// About 180 bytes a row, computed from its number.
const INSERT: &str = "INSERT INTO w1
    SELECT i, ((i * 7919) % 1000003)::int, md5(i::text) || md5((i + 1)::text) || md5((i + 2)::text) || 'abcd',
           '2024-01-01'::timestamptz + i * interval '1 ms', (i * 1.37)::numeric(14, 2),
           jsonb_build_object('k', i, 's', left(md5(i::text), 8))
    FROM (SELECT $1::bigint) AS row (i)";

#[derive(Debug)]
pub struct W1;

impl CatchUp for W1 {
    fn tables(&self) -> &'static [&'static str] {
        &["w1"]
    }

    fn transactions(&self, size: Size) -> u64 {
        size.of(200_000)
    }

    fn schema(&self, _size: Size) -> String {
        "CREATE TABLE w1 (id bigint PRIMARY KEY, a int, b text, c timestamptz, d numeric, e jsonb);".to_owned()
    }

    fn generate(&self, clients: Vec<Client>, size: Size) -> BoxFuture<'static, Result<()>> {
        let rows = i64::try_from(self.transactions(size)).unwrap_or(i64::MAX);
        Box::pin(async move {
            let step = i64::try_from(clients.len())?;
            let inserts = clients.into_iter().zip(1..).map(|(client, first)| insert(client, first, step, rows));
            try_join_all(inserts).await?;
            Ok(())
        })
    }

    fn reset(&self) -> &'static [&'static str] {
        &["TRUNCATE w1"]
    }

    fn rows(&self) -> &'static str {
        "SELECT count(*) FROM w1"
    }

    fn fingerprint(&self) -> &'static str {
        "SELECT coalesce(sum(hashtext(w1::text)::bigint), 0)::text FROM w1"
    }
}

/// Inserts every `step`-th row, each in a transaction of its own.
async fn insert(client: Client, first: i64, step: i64, rows: i64) -> Result<()> {
    let statement = client.prepare(INSERT).await?;
    let mut next = first;
    while next <= rows {
        let ids: Vec<i64> = (0..PIPELINED).map(|at| next + at * step).filter(|id| *id <= rows).collect();
        try_join_all(ids.iter().map(async |id| client.execute(&statement, &[id]).await)).await?;
        next += PIPELINED * step;
    }
    Ok(())
}
