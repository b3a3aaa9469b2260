//! W2: one transaction of many inserts, of rows like those of W1.

use anyhow::Result;
use futures_util::future::BoxFuture;
use tokio_postgres::Client;

use super::CatchUp;
use super::catch_up::Size;

#[derive(Debug)]
pub struct W2;

impl CatchUp for W2 {
    fn tables(&self) -> &'static [&'static str] {
        &["w2"]
    }

    fn transactions(&self, _size: Size) -> u64 {
        1
    }

    fn changes(&self, size: Size) -> u64 {
        size.of(2_000_000)
    }

    fn schema(&self, _size: Size) -> String {
        "CREATE TABLE w2 (id bigint PRIMARY KEY, a int, b text, c timestamptz, d numeric, e jsonb);".to_owned()
    }

    fn generate(&self, clients: Vec<Client>, size: Size) -> BoxFuture<'static, Result<()>> {
        let rows = self.changes(size);
        Box::pin(async move {
            let Some(client) = clients.first() else { return Ok(()) };
            let sql = format!(
                "INSERT INTO w2
                 SELECT i, ((i * 7919) % 1000003)::int,
                        md5(i::text) || md5((i + 1)::text) || md5((i + 2)::text) || 'abcd',
                        '2024-01-01'::timestamptz + i * interval '1 ms', (i * 1.37)::numeric(14, 2),
                        jsonb_build_object('k', i, 's', left(md5(i::text), 8))
                 FROM generate_series(1::bigint, {rows}) AS row (i)"
            );
            client.batch_execute(&sql).await?;
            Ok(())
        })
    }

    fn reset(&self) -> &'static [&'static str] {
        &["TRUNCATE w2"]
    }

    fn rows(&self) -> &'static str {
        "SELECT count(*) FROM w2"
    }

    fn fingerprint(&self) -> &'static str {
        "SELECT coalesce(sum(hashtext(w2::text)::bigint), 0)::text FROM w2"
    }
}
