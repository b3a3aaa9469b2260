//! pgbench's tables and its "TPC-B (sort of)" transaction in plain SQL: fetched servers come without the program.

use tokio_postgres::Client;

use crate::{KitError, Random};

/// The tables, as `pgbench -i` makes them. `pgbench_history` has no key and gets replica identity FULL.
const SCHEMA: &str = "
    CREATE TABLE pgbench_branches (bid int PRIMARY KEY, bbalance int, filler char(88)) WITH (fillfactor = 100);
    CREATE TABLE pgbench_tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84)) WITH (fillfactor = 100);
    CREATE TABLE pgbench_accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84)) WITH (fillfactor = 100);
    CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));
    ALTER TABLE pgbench_history REPLICA IDENTITY FULL;";

/// Creates the tables, empty: what a target needs.
pub async fn create_schema(client: &Client) -> Result<(), KitError> {
    client.batch_execute(SCHEMA).await.map_err(KitError::sql("creating pgbench's tables"))
}

/// Creates the tables and fills them: 100,000 accounts for each unit of `scale`.
pub async fn create(client: &Client, scale: u32) -> Result<(), KitError> {
    create_schema(client).await?;
    let sql = format!(
        "INSERT INTO pgbench_branches SELECT b, 0, '' FROM generate_series(1, {scale}) b;
         INSERT INTO pgbench_tellers SELECT t, (t - 1) / 10 + 1, 0, '' FROM generate_series(1, 10 * {scale}) t;
         INSERT INTO pgbench_accounts
             SELECT a, (a - 1) / 100000 + 1, 0, '' FROM generate_series(1, 100000 * {scale}) a;"
    );
    client.batch_execute(&sql).await.map_err(KitError::sql("filling pgbench's tables"))
}

/// The statements of one transaction, without BEGIN and COMMIT.
pub fn tpcb_statements(random: &mut Random, scale: u32) -> String {
    let scale = u64::from(scale);
    let (account, branch) = (random.between(1, 100_000 * scale), random.between(1, scale));
    let teller = random.between(1, 10 * scale);
    let delta = i64::try_from(random.below(10_001)).unwrap_or(0) - 5000;
    format!(
        "UPDATE pgbench_accounts SET abalance = abalance + {delta} WHERE aid = {account};
         SELECT abalance FROM pgbench_accounts WHERE aid = {account};
         UPDATE pgbench_tellers SET tbalance = tbalance + {delta} WHERE tid = {teller};
         UPDATE pgbench_branches SET bbalance = bbalance + {delta} WHERE bid = {branch};
         INSERT INTO pgbench_history (tid, bid, aid, delta, mtime)
             VALUES ({teller}, {branch}, {account}, {delta}, CURRENT_TIMESTAMP);"
    )
}

/// Runs one transaction.
pub async fn tpcb(client: &Client, random: &mut Random, scale: u32) -> Result<(), KitError> {
    let sql = format!("BEGIN; {} COMMIT;", tpcb_statements(random, scale));
    client.batch_execute(&sql).await.map_err(KitError::sql("running pgbench's transaction"))
}
