//! Transactions that are prepared for a two-phase commit.

use std::io;
use std::sync::Arc;

use super::error::AssembleError;
use super::open::{Ending, Open};
use crate::pgoutput::PgTime;
use crate::position::{CommitLsn, EndLsn, Lsn};
use crate::transaction::{Changes, Digest, Kind, Transaction};

/// What becomes of transactions that are prepared for a two-phase commit (`PREPARE TRANSACTION`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TwoPhase {
    /// They are delivered when they commit, as any other transaction. The slot need not know of two phases.
    #[default]
    AtCommit,
    /// The sink sees PREPARE, COMMIT PREPARED and ROLLBACK PREPARED. The slot is made with `TWO_PHASE`, which needs
    /// PostgreSQL 15 or later.
    Seen,
}

/// A transaction that has been prepared and may yet commit or be rolled back.
#[derive(Clone, Debug)]
pub struct PreparedTransaction {
    gid: Arc<str>,
    prepare_time: PgTime,
    /// With the positions of the prepare record in place of a commit record's.
    content: Transaction,
}

impl PreparedTransaction {
    pub(super) fn new(
        open: Open,
        gid: Arc<str>,
        prepare: Lsn,
        prepare_end: EndLsn,
        prepare_time: PgTime,
    ) -> Result<PreparedTransaction, AssembleError> {
        let ending = Ending {
            commit: CommitLsn(prepare),
            end: prepare_end,
            commit_time: prepare_time,
            gid: Some(Arc::clone(&gid)),
        };
        let finished: io::Result<_> = open.finish(ending);
        let (content, _) = finished.map_err(AssembleError::SpillRead)?;
        Ok(PreparedTransaction { gid, prepare_time, content })
    }

    /// It as a [`Transaction`] of its kind, with the positions of the prepare record.
    pub fn into_transaction(self) -> Transaction {
        Transaction { kind: Kind::Prepared, ..self.content }
    }

    /// Transaction id on the source.
    pub fn xid(&self) -> u32 {
        self.content.xid()
    }

    /// Its global identifier, as given to `PREPARE TRANSACTION`.
    pub fn gid(&self) -> &str {
        &self.gid
    }

    /// Where the prepare record starts.
    pub fn prepare(&self) -> Lsn {
        self.content.commit().0
    }

    /// Just behind the prepare record.
    pub fn prepare_end(&self) -> EndLsn {
        self.content.end()
    }

    /// When it was prepared, by the source's clock.
    pub fn prepare_time(&self) -> PgTime {
        self.prepare_time
    }

    /// The replication origin it was applied under on the source, if it came from elsewhere.
    pub fn origin(&self) -> Option<&str> {
        self.content.origin()
    }

    /// See [`Transaction::change_count`]. May be 0.
    pub fn change_count(&self) -> u64 {
        self.content.change_count()
    }

    /// See [`Transaction::digest`].
    pub fn digest(&self) -> Digest {
        self.content.digest()
    }

    /// See [`Transaction::size`].
    pub fn size(&self) -> u64 {
        self.content.size()
    }

    /// See [`Transaction::in_memory`].
    pub fn in_memory(&self) -> usize {
        self.content.in_memory()
    }

    /// See [`Transaction::changes`].
    pub fn changes(&self) -> Changes<'_> {
        self.content.changes()
    }
}

/// A prepared transaction has committed. It may have been prepared, and made durable, in an earlier session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommitPrepared {
    /// Transaction id on the source.
    pub xid: u32,
    /// Its global identifier.
    pub gid: Arc<str>,
    /// Where the commit record starts.
    pub commit: CommitLsn,
    /// Just behind the commit record.
    pub end: EndLsn,
    /// When it committed, by the source's clock.
    pub commit_time: PgTime,
}

impl CommitPrepared {
    /// It as a [`Transaction`] of its kind.
    pub fn into_transaction(self) -> Transaction {
        let CommitPrepared { xid, gid, commit, end, commit_time } = self;
        Transaction::settling(Kind::CommitPrepared, xid, gid, commit, end, commit_time)
    }
}

/// A prepared transaction was rolled back. The sink may never have seen it prepared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RollbackPrepared {
    /// Transaction id on the source.
    pub xid: u32,
    /// Its global identifier.
    pub gid: Arc<str>,
    /// Just behind the prepare record: with the gid it names the prepared transaction.
    pub prepare_end: EndLsn,
    /// Just behind the record of the rollback.
    pub end: EndLsn,
    /// When it was rolled back, by the source's clock.
    pub rollback_time: PgTime,
}

impl RollbackPrepared {
    /// It as a [`Transaction`] of its kind.
    pub fn into_transaction(self) -> Transaction {
        let RollbackPrepared { xid, gid, end, rollback_time, .. } = self;
        let start = CommitLsn(Lsn(end.0.0.saturating_sub(1)));
        Transaction::settling(Kind::RollbackPrepared, xid, gid, start, end, rollback_time)
    }
}
