//! What the ledger says about itself: one unbroken chain of applied transactions, up to the checkpoint.

use pgonce::position::Lsn;
use pgonce::sql_error::stop_from_sql;
use pgonce::stop::Side;
use pgonce_target::FlowStatus;
use tokio_postgres::Client;

use super::report::{Interrupted, LedgerCheck, Problem};

/// Follows the chain from the oldest recorded transaction (those before it have been pruned) to the newest.
pub async fn check(target: &Client, status: &FlowStatus) -> Result<(LedgerCheck, Option<Problem>), Interrupted> {
    let sql = "SELECT pg_catalog.count(*), pg_catalog.min(a.commit_lsn)::text, pg_catalog.max(a.commit_lsn)::text, \
           pg_catalog.count(*) FILTER (WHERE a.before IS NOT NULL AND a.predecessor IS DISTINCT FROM a.before), \
           (pg_catalog.min(a.commit_lsn) FILTER (WHERE a.before IS NOT NULL AND a.predecessor IS DISTINCT FROM a.before))::text \
         FROM (SELECT commit_lsn, predecessor, pg_catalog.lag(commit_lsn) OVER (ORDER BY commit_lsn) AS before \
           FROM pgonce.applied WHERE flow = $1) a";
    let row = target.query_one(sql, &[&status.flow]).await.map_err(|e| stop_from_sql(Side::Target, &e))?;
    let check = LedgerCheck {
        transactions: row.get::<_, i64>(0).unsigned_abs(),
        oldest: row.get(1),
        newest: row.get(2),
        breaks: row.get::<_, i64>(3).unsigned_abs(),
    };
    let newest: Option<Lsn> = check.newest.as_deref().and_then(|text| text.parse().ok());
    let checkpoint = status.commit.map(|commit| commit.0);
    let hint = "The rows of pgonce.applied were altered, or a part of the target was restored. Find out which \
    before anything \
                else; `pgonce reset` shows how to start over.";
    if check.breaks > 0 {
        let first: Option<String> = row.get(4);
        let text = format!(
            "the ledger of flow {} has a hole: {} recorded transaction(s) name a predecessor that is not the one \
            before, first {}",
            status.flow,
            check.breaks,
            first.unwrap_or_default()
        );
        return Ok((check, Some(Problem::new("ledger_hole", text, hint))));
    }
    if newest != checkpoint {
        let shown = |position: Option<Lsn>| position.map_or("none".to_owned(), |position| position.to_string());
        let text = format!(
            "the ledger of flow {} contradicts itself: the checkpoint is {}, and the newest recorded transaction {}",
            status.flow,
            shown(checkpoint),
            shown(newest)
        );
        return Ok((check, Some(Problem::new("ledger_contradiction", text, hint))));
    }
    Ok((check, None))
}
