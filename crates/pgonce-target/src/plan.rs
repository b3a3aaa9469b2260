//! The interface between the target and what turns transactions into statements. Another planner takes the row
//! writer's place here, and nowhere else.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use pgonce::connect::SqlConnection;
use pgonce::position::{Boundary, CommitLsn};
use pgonce::relation::Relation;
use pgonce::stop::{Reason, Stop};
use pgonce::transaction::Transaction;

use crate::failure::Failure;
use crate::inflight::InFlight;

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

/// Which changes apply: those of a copied table only behind the boundary at which it was copied.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    /// The copied tables, by OID on the source. `None`: nothing was copied, everything applies.
    copied: Option<HashMap<u32, Boundary>>,
}

impl Scope {
    /// A flow whose tables were copied.
    pub(crate) fn copied(tables: impl IntoIterator<Item = (u32, Boundary)>) -> Scope {
        Scope { copied: Some(tables.into_iter().collect()) }
    }

    /// A flow that began without a copy.
    pub(crate) fn everything() -> Scope {
        Scope { copied: None }
    }

    /// Adds a table that has been copied.
    pub(crate) fn add(&mut self, table: u32, boundary: Boundary) {
        self.copied.get_or_insert_default().insert(table, boundary);
    }

    /// Whether a change of `relation` in the transaction that committed at `commit` applies, or is in the copy already.
    pub(crate) fn takes(&self, relation: &Relation, commit: CommitLsn) -> Result<bool, Stop> {
        let Some(copied) = &self.copied else { return Ok(true) };
        match copied.get(&relation.oid) {
            Some(boundary) => Ok(boundary.precedes(commit)),
            None => Err(Reason::SchemaMismatch {
                table: relation.to_string(),
                what: "it was added to the publication after the flow began and has not been copied".to_owned(),
                hint: "This version cannot take a table in while the flow runs: to carry it, start the flow anew \
                       (`pgonce reset` shows how). Partitions made later are carried where the publication has \
                       publish_via_partition_root."
                    .to_owned(),
            }
            .into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use pgonce::pgoutput::ReplicaIdentity;
    use pgonce::position::Lsn;

    use super::*;

    fn relation(oid: u32) -> Relation {
        Relation { oid, schema: "s".into(), name: "t".into(), identity: ReplicaIdentity::Default, columns: Vec::new() }
    }

    #[test]
    fn a22_a_commit_exactly_at_the_boundary_is_new() {
        let scope = Scope::copied([(1, Boundary(Lsn(100)))]);
        assert_eq!(scope.takes(&relation(1), CommitLsn(Lsn(99))), Ok(false));
        assert_eq!(scope.takes(&relation(1), CommitLsn(Lsn(100))), Ok(true));
    }

    #[test]
    fn d4_a_table_that_was_not_copied_is_refused_by_name() {
        let stop = Scope::copied([(1, Boundary(Lsn(100)))]).takes(&relation(2), CommitLsn(Lsn(200))).unwrap_err();
        assert_eq!(stop.code(), "schema_mismatch");
        assert_eq!(Scope::everything().takes(&relation(2), CommitLsn(Lsn(200))), Ok(true));
    }
}
