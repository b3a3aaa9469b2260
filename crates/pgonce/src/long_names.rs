//! Values of the type `name` that are longer in UTF8 than the type takes: a source in an encoding of one byte may hold
//! 63 letters that take two bytes each. The input function of another server would cut them, and say nothing.

use tokio_postgres::Client;

use crate::ident::{quote_ident, quote_qualified};
use crate::published::PublishedTable;
use crate::sql_error::stop_from_sql;
use crate::stop::{Side, Stop};

/// The columns of `table`, of type `name`, that have such a value, as of the session's snapshot.
pub(crate) async fn long_names(client: &Client, table: &PublishedTable) -> Result<Vec<String>, Stop> {
    let failed = |e| stop_from_sql(Side::Source, &e);
    // With UTF8, none can have.
    let sql = "SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_attribute AS a \
         WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped \
           AND a.atttypid = 'pg_catalog.name'::pg_catalog.regtype \
           AND pg_catalog.getdatabaseencoding() NOT IN ('UTF8', 'SQL_ASCII')";
    let mut long = Vec::new();
    for row in client.query(sql, &[&table.oid]).await.map_err(failed)? {
        let column: String = row.try_get(0).map_err(failed)?;
        if !table.columns.contains(&column) {
            continue;
        }
        let sql = format!(
            "SELECT EXISTS (SELECT FROM {}{} WHERE pg_catalog.octet_length(pg_catalog.convert_to({}::pg_catalog.text, \
             'UTF8')) > 63)",
            if table.partitioned { "" } else { "ONLY " },
            quote_qualified(&table.schema, &table.name),
            quote_ident(&column)
        );
        if client.query_one(&sql, &[]).await.and_then(|row| row.try_get(0)).map_err(failed)? {
            long.push(column);
        }
    }
    Ok(long)
}
