//! W3: pgbench's "TPC-B (sort of)" of several connections: three updates, of which one hits the same few rows again
//! and again, and an insert in each transaction.

use anyhow::Result;
use futures_util::future::{BoxFuture, try_join_all};
use pgonce_testkit::{Random, pgbench};
use tokio_postgres::Client;

use super::CatchUp;
use super::catch_up::Size;

/// pgbench's scale: 2,000,000 accounts.
const SCALE: u64 = 20;

const SEED: u64 = 3;

#[derive(Debug)]
pub struct W3;

impl W3 {
    fn scale(size: Size) -> u32 {
        u32::try_from(SCALE / u64::from(size.scale_div)).unwrap_or(1).max(1)
    }
}

impl CatchUp for W3 {
    fn tables(&self) -> &'static [&'static str] {
        &["pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history"]
    }

    fn transactions(&self, size: Size) -> u64 {
        size.of(60_000)
    }

    fn changes(&self, size: Size) -> u64 {
        4 * self.transactions(size)
    }

    fn prepare<'a>(&'a self, client: &'a Client, size: Size) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            pgbench::create(client, W3::scale(size)).await?;
            // A history without a key would measure something else: rows are only appended to it.
            let sql = "ALTER TABLE pgbench_history REPLICA IDENTITY DEFAULT, ADD COLUMN hid bigserial PRIMARY KEY";
            client.batch_execute(sql).await?;
            client.batch_execute("VACUUM ANALYZE").await?;
            Ok(())
        })
    }

    fn generate(&self, clients: Vec<Client>, size: Size) -> BoxFuture<'static, Result<()>> {
        let transactions = self.transactions(size);
        Box::pin(async move {
            let count = u64::try_from(clients.len())?;
            let work = clients.into_iter().zip(0..).map(async |(client, number)| {
                let mut random = Random::split(SEED, number);
                // What the division leaves over goes to the first connections.
                let share = transactions / count + u64::from(number < transactions % count);
                for _ in 0..share {
                    pgbench::tpcb(&client, &mut random, W3::scale(size)).await?;
                }
                anyhow::Ok(())
            });
            try_join_all(work).await?;
            Ok(())
        })
    }

    fn reset(&self) -> &'static [&'static str] {
        &[
            "TRUNCATE pgbench_history",
            "UPDATE pgbench_accounts SET abalance = 0 WHERE abalance <> 0",
            "UPDATE pgbench_tellers SET tbalance = 0",
            "UPDATE pgbench_branches SET bbalance = 0",
            "VACUUM pgbench_accounts, pgbench_tellers, pgbench_branches",
        ]
    }

    fn rows(&self) -> &'static str {
        "SELECT count(*) FROM pgbench_history"
    }

    fn fingerprint(&self) -> &'static str {
        "SELECT concat_ws(' ',
            (SELECT sum(hashtext(h::text)::bigint) FROM pgbench_history h),
            (SELECT sum(hashtext(aid || ':' || abalance)::bigint) FROM pgbench_accounts WHERE abalance <> 0),
            (SELECT sum(hashtext(tid || ':' || tbalance)::bigint) FROM pgbench_tellers),
            (SELECT sum(hashtext(bid || ':' || bbalance)::bigint) FROM pgbench_branches))"
    }
}
