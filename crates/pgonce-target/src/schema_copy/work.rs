//! Runs steps: one after another, or many at a time on connections of their own.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use futures_util::future::try_join_all;
use pgonce::connect::ConnectionSettings;
use pgonce::sql_error::{condition, fault_of, passes};
use pgonce::stop::{Reason, Stop};
use tokio_postgres::Client;

use super::plan::Step;
use super::{connect, refused};
use crate::ledger::sql_stop;

/// What became of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Done {
    /// It was made now.
    Made,
    /// It was there.
    There,
    /// Something that it speaks of is not there: yet, where steps are taken out of their order.
    Lacks,
}

const GOES_ON: &str = "When that is mended, `pgonce run` creates what is missing and goes on; the rows stay.";

/// Whether a SQLSTATE says that what was to be created exists: duplicate table, object, function, schema, column.
pub(super) fn says_it_exists(code: &str) -> bool {
    matches!(code, "42P07" | "42710" | "42723" | "42P06" | "42701")
}

/// Runs one step, in a transaction of its own.
pub(super) async fn run(client: &Client, step: &Step) -> Result<Done, Stop> {
    match client.batch_execute(&step.sql).await {
        Ok(()) => Ok(Done::Made),
        Err(error) => judge(step, error),
    }
}

/// What an error of a step means.
pub(super) fn judge(step: &Step, error: tokio_postgres::Error) -> Result<Done, Stop> {
    let Some(db) = error.as_db_error() else { return Err(sql_stop(error)) };
    let code = db.code().code();
    // A session of before that was still at it, and has committed meanwhile: the catalog's own index says so.
    let catalog = db.schema() == Some("pg_catalog") && code == "23505";
    if says_it_exists(code) || catalog {
        return Ok(Done::There);
    }
    if matches!(code, "42P01" | "42883" | "42704" | "42703" | "3F000") {
        return Ok(Done::Lacks);
    }
    if passes(code) || !matches!(code.get(..2), Some("22" | "23" | "44")) {
        return Err(refused(&step.title, error, GOES_ON));
    }
    let (schema, table) = (db.schema().unwrap_or_default(), db.table().unwrap_or_default());
    let table = if table.is_empty() { step.title.clone() } else { format!("{schema}.{table}") };
    Err(Reason::SchemaMismatch {
        table,
        what: format!("its rows do not fit {}: {} ({})", step.title, fault_of(db), condition(code)),
        hint: format!(
            "They do on the source, unless what compares or checks them differs there (a collation, an operator, a \
             function) or rows were written to the target by somebody else. The target's server log has the full \
             message. {GOES_ON}"
        ),
    }
    .into())
}

/// The same error for a step that lacks something and whose turn it is.
pub(super) fn lacks(step: &Step) -> Stop {
    let what = format!("{} cannot be created: something that it speaks of is not on the target", step.title);
    let hint = format!("The target's server log names it. Create it there. {GOES_ON}");
    Reason::TargetNotReady { what, hint }.into()
}

/// Runs groups of steps on up to `jobs` connections, the first one first; the steps of a group follow each other. Each
/// step is reported when it is done. Returns those that lack something.
pub(super) async fn at_once(
    target: &ConnectionSettings,
    jobs: usize,
    groups: Vec<Vec<Step>>,
    done: &(dyn Fn() + Sync),
) -> Result<Vec<Step>, Stop> {
    let workers = jobs.min(groups.len());
    let queue = Mutex::new(VecDeque::from(groups));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let lacking = Mutex::new(Vec::new());
    let work = || async {
        let connection = connect(target).await?;
        while let Some(group) = next() {
            for step in group {
                if run(&connection.client, &step).await? == Done::Lacks {
                    lacking.lock().unwrap_or_else(PoisonError::into_inner).push(step);
                }
                done();
            }
        }
        Ok::<(), Stop>(())
    };
    // The first error drops the others' connections, and the server ends what they were at.
    try_join_all((0..workers).map(|_| work())).await?;
    Ok(lacking.into_inner().unwrap_or_else(PoisonError::into_inner))
}
