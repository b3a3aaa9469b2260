//! Collects messages into transactions. No I/O but the spill's.

use std::sync::Arc;

use super::spill::{Collector, SpillSettings};
use crate::pgoutput::{DecodeError, Message, RelationBody, decode_message};
use crate::position::{CommitLsn, Lsn};
use crate::relation::{Relation, RelationColumn, Relations};
use crate::transaction::Transaction;

/// Turns the messages of one replication session into whole committed transactions, in commit order.
#[derive(Debug)]
pub struct Assembler {
    collector: Collector,
    relations: Relations,
    open: Option<Open>,
    /// The origin that was named last.
    origin: Option<Arc<str>>,
}

#[derive(Debug)]
struct Open {
    xid: u32,
    final_lsn: CommitLsn,
    origin: Option<Arc<str>>,
    /// The relations known at its begin.
    relations: Relations,
    described: Vec<(u64, Arc<Relation>)>,
    entries: u64,
    change_count: u64,
    truncated: Vec<u32>,
    /// The relation that was described or changed last.
    last_relation: Option<u32>,
}

/// What is known of a transaction that has begun and not ended.
#[derive(Debug)]
pub(crate) struct OpenTransaction {
    pub(crate) xid: u32,
    pub(crate) commit: CommitLsn,
    /// The table that was described or changed last.
    pub(crate) last_table: Option<Arc<Relation>>,
}

/// What a message brought to an end.
#[derive(Debug)]
pub enum Assembled {
    /// Nothing yet.
    Nothing,
    /// A committed transaction is complete.
    Transaction(Transaction),
    /// A non-transactional message of `pg_logical_emit_message`, written at this position.
    Message(Lsn),
}

/// The stream broke its own protocol, or uses a part of it that is not handled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AssembleError {
    /// The bytes are not a message.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A message that cannot come at this place.
    #[error("{message} {place}")]
    Misplaced {
        /// The message.
        message: &'static str,
        /// What was open.
        place: &'static str,
    },
    /// The transaction's commit is not the one its begin announced.
    #[error("transaction {xid} announced commit LSN {announced} and committed at {committed}")]
    OtherCommit {
        /// Its id.
        xid: u32,
        /// From Begin.
        announced: CommitLsn,
        /// From Commit.
        committed: CommitLsn,
    },
    /// A kind of transaction that is not delivered.
    #[error("{message}: {why}")]
    NotHandled {
        /// The message.
        message: &'static str,
        /// Why it is refused.
        why: &'static str,
    },
    /// The spill file failed.
    #[error("spill file: {0}")]
    Spill(#[from] std::io::Error),
}

const TWO_PHASE: &str = "the slot was made with two_phase; prepared transactions are not delivered by this version";
const STREAMED: &str = "streaming of open transactions was not asked for";

impl Assembler {
    /// An assembler for a new session. Nothing of an older session may be fed into it.
    pub fn new(spill: SpillSettings) -> Assembler {
        Assembler { collector: Collector::new(spill), relations: Relations::default(), open: None, origin: None }
    }

    /// Whether a transaction has begun and not ended.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The transaction that has begun and not ended.
    pub(crate) fn open_transaction(&self) -> Option<OpenTransaction> {
        let open = self.open.as_ref()?;
        let last_table = open.last_relation.and_then(|oid| self.relations.get(&oid)).map(Arc::clone);
        Some(OpenTransaction { xid: open.xid, commit: open.final_lsn, last_table })
    }

    /// Takes the next message of the stream.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Assembled, AssembleError> {
        let message = decode_message(bytes, false)?;
        match message {
            Message::Insert { relation, .. } | Message::Update { relation, .. } | Message::Delete { relation, .. } => {
                self.change(bytes, 1)?;
                self.open_mut("a change")?.last_relation = Some(relation);
            }
            Message::Truncate { relations, .. } => {
                self.change(bytes, relations.len() as u64)?;
                self.open_mut("Truncate")?.truncated.extend(relations);
            }
            Message::LogicalMessage(message) if message.transactional => self.change(bytes, 1)?,
            Message::LogicalMessage(message) => return Ok(Assembled::Message(message.lsn)),
            Message::Relation(body) => self.describe(&body),
            Message::Type { .. } => {}
            Message::Begin { final_lsn, xid, .. } => {
                if self.open.is_some() {
                    return Err(AssembleError::Misplaced { message: "Begin", place: "inside a transaction" });
                }
                self.open = Some(Open {
                    xid,
                    final_lsn,
                    origin: None,
                    relations: Arc::clone(&self.relations),
                    described: Vec::new(),
                    entries: 0,
                    change_count: 0,
                    truncated: Vec::new(),
                    last_relation: None,
                });
            }
            Message::Origin { name, .. } => {
                // One and the same for many transactions in a row.
                let known = self.origin.take().filter(|known| **known == *name);
                let origin = known.unwrap_or_else(|| name.into());
                self.origin = Some(Arc::clone(&origin));
                self.open_mut("Origin")?.origin = Some(origin);
            }
            Message::Commit { commit, end, commit_time, .. } => {
                let open = self
                    .open
                    .take()
                    .ok_or(AssembleError::Misplaced { message: "Commit", place: "outside of a transaction" })?;
                if open.final_lsn != commit {
                    return Err(AssembleError::OtherCommit {
                        xid: open.xid,
                        announced: open.final_lsn,
                        committed: commit,
                    });
                }
                let (body, digest) = self.collector.finish();
                return Ok(Assembled::Transaction(Transaction {
                    xid: open.xid,
                    commit,
                    end,
                    commit_time,
                    origin: open.origin,
                    change_count: open.change_count,
                    truncated: shared(open.truncated),
                    digest,
                    body,
                    relations: open.relations,
                    described: shared(open.described),
                }));
            }
            Message::BeginPrepare { .. } => return Err(not_handled("Begin Prepare", TWO_PHASE)),
            Message::Prepare { .. } => return Err(not_handled("Prepare", TWO_PHASE)),
            Message::CommitPrepared { .. } => return Err(not_handled("Commit Prepared", TWO_PHASE)),
            Message::RollbackPrepared { .. } => return Err(not_handled("Rollback Prepared", TWO_PHASE)),
            Message::StreamPrepare { .. } => return Err(not_handled("Stream Prepare", TWO_PHASE)),
            Message::StreamStart { .. } => return Err(not_handled("Stream Start", STREAMED)),
            Message::StreamStop => return Err(not_handled("Stream Stop", STREAMED)),
            Message::StreamCommit { .. } => return Err(not_handled("Stream Commit", STREAMED)),
            Message::StreamAbort { .. } => return Err(not_handled("Stream Abort", STREAMED)),
        }
        Ok(Assembled::Nothing)
    }

    fn open_mut(&mut self, message: &'static str) -> Result<&mut Open, AssembleError> {
        self.open.as_mut().ok_or(AssembleError::Misplaced { message, place: "outside of a transaction" })
    }

    fn change(&mut self, bytes: &[u8], counts: u64) -> Result<(), AssembleError> {
        let open = self.open_mut("a change")?;
        open.entries += 1;
        open.change_count += counts;
        self.collector.push(bytes)?;
        Ok(())
    }

    fn describe(&mut self, body: &RelationBody<'_>) {
        let relation = Arc::new(Relation {
            oid: body.oid,
            schema: body.schema().to_owned(),
            name: body.name.to_owned(),
            identity: body.replica_identity,
            columns: body
                .columns
                .iter()
                .map(|c| RelationColumn {
                    name: c.name.to_owned(),
                    type_oid: c.type_oid,
                    type_modifier: c.type_modifier,
                    key: c.key,
                })
                .collect(),
        });
        if let Some(open) = &mut self.open {
            open.described.push((open.entries, Arc::clone(&relation)));
            open.last_relation = Some(relation.oid);
        }
        Arc::make_mut(&mut self.relations).insert(relation.oid, relation);
    }
}

/// Shares a list. What most transactions have, an empty one, takes no memory.
fn shared<T: 'static>(list: Vec<T>) -> Arc<[T]> {
    if list.is_empty() { Arc::default() } else { list.into() }
}

fn not_handled(message: &'static str, why: &'static str) -> AssembleError {
    AssembleError::NotHandled { message, why }
}

impl From<AssembleError> for crate::stop::Stop {
    fn from(error: AssembleError) -> Self {
        use crate::stop::Reason;
        match error {
            AssembleError::Spill(e) => Reason::LocalFile { path: "spill file".into(), what: e.to_string() }.into(),
            other => Reason::Protocol { what: other.to_string() }.into(),
        }
    }
}
