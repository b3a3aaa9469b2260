//! The interface between the target and what turns transactions into statements. Another planner takes the row
//! writer's place here, and nowhere else.

use std::future::Future;
use std::sync::Arc;

use pgonce::connect::SqlConnection;
use pgonce::transaction::Transaction;

use crate::failure::Failure;
use crate::inflight::InFlight;
use crate::scope::Scope;

/// Turns whole transactions into statements of one target transaction.
pub(crate) trait Planner: Send {
    /// Sends what makes `group` take effect, in the transaction that is open on `connection`. On return everything
    /// has been sent or is in `flight`; the caller drains it before it commits. Returns the number of rows (and
    /// truncated tables) that change.
    fn apply(
        &mut self,
        connection: &Arc<SqlConnection>,
        group: &[Transaction],
        scope: &Scope,
        flight: &mut InFlight,
    ) -> impl Future<Output = Result<u64, Failure>> + Send;

    /// Forgets what was prepared and what was learned of the target's tables: they may have changed.
    fn forget(&mut self);
}
