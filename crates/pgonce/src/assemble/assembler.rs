//! Collects messages into transactions. No I/O but the spill's.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::BytesMut;

use super::budget::{Meter, SpillError, SpillSettings};
use super::error::{AssembleError, misplaced};
use super::open::{Ending, Open};
use super::prepared::{CommitPrepared, PreparedTransaction, RollbackPrepared, TwoPhase};
use crate::heartbeat;
use crate::pgoutput::{LogicalMessageBody, Message, PgTime, RelationBody, decode_message};
use crate::position::{Boundary, CommitLsn, EndLsn, Lsn};
use crate::relation::{Relation, RelationColumn, Relations};
use crate::transaction::Transaction;

/// Turns the messages of one replication session into whole committed transactions, in commit order.
#[derive(Debug)]
pub struct Assembler {
    pub(super) meter: Arc<Meter>,
    /// What small transactions take their memory from, one after the other.
    buffer: BytesMut,
    /// The relations that every transaction may use from now on.
    relations: Relations,
    /// For each of them which description it comes from.
    numbers: HashMap<u32, u64>,
    /// Descriptions so far.
    described: u64,
    sending: Sending,
    /// Transactions that are streamed while they are in progress.
    streamed: HashMap<u32, Open>,
    /// Transactions that are prepared and not settled.
    prepared: HashMap<u32, Kept>,
    two_phase: TwoPhase,
    /// What committed before it has been applied in an earlier session.
    applied: Boundary,
    /// Where the slot stood when the session began.
    confirmed: Boundary,
    leaves_out_origins: bool,
    /// The origin that was named last.
    origin: Option<Arc<str>>,
}

/// What the messages belong to that come now.
#[derive(Debug)]
enum Sending {
    Nothing,
    /// A transaction that is sent as a whole.
    Whole(Box<Open>, Announced),
    /// A part of a transaction that is in progress.
    Part(u32),
}

/// How a transaction that is sent as a whole said that it would end.
#[derive(Clone, Copy, Debug)]
enum Announced {
    Commit(CommitLsn),
    Prepare(Lsn),
}

/// A transaction that is prepared.
#[derive(Debug)]
struct Kept {
    open: Open,
    prepare: Boundary,
}

/// What a Prepare and a Stream Prepare say.
struct Prepare<'a> {
    prepare_lsn: Lsn,
    prepare_end_lsn: Lsn,
    prepare_time: PgTime,
    gid: &'a str,
}

/// What is known of a transaction that has begun and not ended.
#[derive(Debug)]
pub(crate) struct OpenTransaction {
    pub(crate) xid: u32,
    /// None while it is in progress, or prepared.
    pub(crate) commit: Option<CommitLsn>,
    /// The table that was described or changed last.
    pub(crate) last_table: Option<Arc<Relation>>,
}

/// What a message brought to an end.
#[derive(Debug)]
pub enum Assembled<'m> {
    /// Nothing yet.
    Nothing,
    /// A committed transaction is complete.
    Transaction(Transaction),
    /// A transaction of which nothing is published, nothing is left, or nothing is wanted, committed and ended there.
    Empty(EndLsn),
    /// A non-transactional message of `pg_logical_emit_message`.
    Message(LogicalMessageBody<'m>),
    /// A transaction is prepared, and kept until it is settled. Its prepare record starts at this point: while nothing
    /// behind it is acknowledged, the server sends the transaction again.
    Held(Boundary),
    /// The transaction whose prepare record starts at `prepare` is settled.
    Settled {
        /// See [`Held`](Assembled::Held).
        prepare: Boundary,
        /// Where its commit record ends; none if it was rolled back.
        end: Option<EndLsn>,
        /// The transaction, unless it was rolled back or nothing of it is published.
        transaction: Option<Transaction>,
    },
    /// With [`TwoPhase::Seen`]: a transaction is prepared.
    Prepared(Box<PreparedTransaction>),
    /// With [`TwoPhase::Seen`]: a prepared transaction has committed.
    CommitPrepared(CommitPrepared),
    /// With [`TwoPhase::Seen`]: a prepared transaction was rolled back.
    RollbackPrepared(RollbackPrepared),
}

impl Assembler {
    /// An assembler for a new session. Nothing of an older session may be fed into it.
    pub fn new(spill: SpillSettings) -> Assembler {
        Assembler {
            meter: Meter::new(spill),
            buffer: BytesMut::new(),
            relations: Relations::default(),
            numbers: HashMap::new(),
            described: 0,
            sending: Sending::Nothing,
            streamed: HashMap::new(),
            prepared: HashMap::new(),
            two_phase: TwoPhase::AtCommit,
            applied: Boundary(Lsn::ZERO),
            confirmed: Boundary(Lsn::ZERO),
            leaves_out_origins: false,
            origin: None,
        }
    }

    /// Leaves out transactions that have an origin: where the server does not do it itself, before PostgreSQL 16.
    #[must_use]
    pub fn leaving_out_origins(self, leaves_out_origins: bool) -> Assembler {
        Assembler { leaves_out_origins, ..self }
    }

    /// What becomes of prepared transactions.
    #[must_use]
    pub fn with_two_phase(self, two_phase: TwoPhase) -> Assembler {
        Assembler { two_phase, ..self }
    }

    /// What committed before `applied` has been applied in an earlier session. Of a prepared transaction among it the
    /// server may send nothing but its commit.
    #[must_use]
    pub fn with_applied(self, applied: Boundary) -> Assembler {
        Assembler { applied, ..self }
    }

    /// The slot stood at `confirmed` when the session began. One that was prepared before is sent, whole and at
    /// its commit, only if the slot did not know of two phases then: with [`TwoPhase::Seen`] it is a committed one.
    #[must_use]
    pub fn with_confirmed(self, confirmed: Boundary) -> Assembler {
        Assembler { confirmed, ..self }
    }

    /// Whether a transaction has begun and not ended, or is kept until it is settled.
    pub fn is_open(&self) -> bool {
        !matches!(self.sending, Sending::Nothing) || !self.streamed.is_empty() || !self.prepared.is_empty()
    }

    /// Whether a transaction is just being sent.
    pub fn is_sending(&self) -> bool {
        !matches!(self.sending, Sending::Nothing)
    }

    /// The transaction that is just being sent.
    pub(crate) fn open_transaction(&self) -> Option<OpenTransaction> {
        let (open, commit) = match &self.sending {
            Sending::Nothing => return None,
            Sending::Whole(open, Announced::Commit(commit)) => (&**open, Some(*commit)),
            Sending::Whole(open, Announced::Prepare(_)) => (&**open, None),
            Sending::Part(xid) => (self.streamed.get(xid)?, None),
        };
        Some(OpenTransaction { xid: open.xid, commit, last_table: open.last_table() })
    }

    /// Waits while the bound of the disk is near and complete transactions that were handed out take part of it.
    pub(crate) async fn wait_for_disk(&self) {
        self.meter.wait_for_disk().await;
    }

    /// Takes the next message of the stream.
    pub fn push<'m>(&mut self, bytes: &'m [u8]) -> Result<Assembled<'m>, AssembleError> {
        let in_part = matches!(self.sending, Sending::Part(_));
        let message = decode_message(bytes, in_part)?;
        match message {
            Message::Insert { relation, .. } | Message::Update { relation, .. } | Message::Delete { relation, .. } => {
                self.change(&message, bytes, 1)?.changed(relation);
            }
            Message::Truncate { relations, .. } => {
                self.change(&message, bytes, relations.len() as u64)?.truncates(relations.into_iter());
            }
            Message::LogicalMessage(body) if !body.transactional => return Ok(Assembled::Message(body)),
            // Of a heartbeat its transaction is all there is to see.
            Message::LogicalMessage(body) if body.prefix == heartbeat::PREFIX => {
                self.current("a message")?.heartbeat = true;
            }
            Message::LogicalMessage(_) => drop(self.change(&message, bytes, 1)?),
            Message::Relation(body) => self.describe(&body)?,
            Message::Type { .. } => {}
            Message::Origin { name, .. } => {
                // One and the same for many transactions in a row.
                let known = self.origin.take().filter(|known| **known == *name);
                let origin = known.unwrap_or_else(|| name.into());
                let left_out = self.leaves_out_origins;
                let open = self.current("Origin")?;
                (open.origin, open.left_out) = (Some(Arc::clone(&origin)), left_out);
                self.origin = Some(origin);
            }
            Message::Begin { final_lsn, xid, .. } => self.begin("Begin", xid, Announced::Commit(final_lsn))?,
            Message::Commit { commit, end, commit_time, .. } => return self.commit(commit, end, commit_time),
            Message::StreamStart { xid, first } => self.stream_start(xid, first)?,
            Message::StreamStop => self.sending = Sending::Nothing,
            Message::StreamCommit { xid, commit, end, commit_time, .. } => {
                self.between("Stream Commit")?;
                let open = self.take_streamed("Stream Commit", xid)?;
                let (transaction, _) = complete(open, Ending { commit, end, commit_time, gid: None })?;
                return Ok(transaction.map_or(Assembled::Empty(end), Assembled::Transaction));
            }
            Message::StreamAbort { xid, sub_xid, .. } => self.stream_abort(xid, sub_xid)?,
            Message::BeginPrepare { prepare_lsn, xid, .. } => {
                self.begin("Begin Prepare", xid, Announced::Prepare(prepare_lsn))?;
            }
            Message::Prepare { prepare_lsn, prepare_end_lsn, prepare_time, xid, gid, .. } => {
                let Sending::Whole(mut open, Announced::Prepare(announced)) = self.take_sending() else {
                    return Err(misplaced("Prepare", "outside of a transaction that is to be prepared"));
                };
                if (open.xid, announced) != (xid, prepare_lsn) {
                    return Err(misplaced("Prepare", "of another transaction than the one that began"));
                }
                self.buffer = open.detach();
                return self.prepare(*open, Prepare { prepare_lsn, prepare_end_lsn, prepare_time, gid });
            }
            Message::StreamPrepare { prepare_lsn, prepare_end_lsn, prepare_time, xid, gid, .. } => {
                self.between("Stream Prepare")?;
                let open = self.take_streamed("Stream Prepare", xid)?;
                return self.prepare(open, Prepare { prepare_lsn, prepare_end_lsn, prepare_time, gid });
            }
            Message::CommitPrepared { commit, end, commit_time, xid, gid, .. } => {
                self.between("Commit Prepared")?;
                return self.commit_prepared(CommitPrepared { xid, gid: gid.into(), commit, end, commit_time });
            }
            Message::RollbackPrepared { prepare_end_lsn, rollback_end_lsn, rollback_time, xid, gid, .. } => {
                self.between("Rollback Prepared")?;
                if self.two_phase == TwoPhase::Seen {
                    return Ok(Assembled::RollbackPrepared(RollbackPrepared {
                        xid,
                        gid: gid.into(),
                        prepare_end: EndLsn(prepare_end_lsn),
                        end: EndLsn(rollback_end_lsn),
                        rollback_time,
                    }));
                }
                // Of one whose prepare was acknowledged in an earlier session there is nothing to drop.
                if let Some(kept) = self.prepared.remove(&xid) {
                    return Ok(Assembled::Settled { prepare: kept.prepare, end: None, transaction: None });
                }
            }
        }
        Ok(Assembled::Nothing)
    }

    fn take_sending(&mut self) -> Sending {
        std::mem::replace(&mut self.sending, Sending::Nothing)
    }

    /// The transaction that the messages belong to that come now.
    fn current(&mut self, message: &'static str) -> Result<&mut Open, AssembleError> {
        let open = match &mut self.sending {
            Sending::Nothing => None,
            Sending::Whole(open, _) => Some(&mut **open),
            Sending::Part(xid) => self.streamed.get_mut(xid),
        };
        open.ok_or(misplaced(message, "outside of a transaction"))
    }

    fn change(&mut self, message: &Message<'_>, bytes: &[u8], counts: u64) -> Result<&mut Open, AssembleError> {
        let stream_xid = message.stream_xid();
        let open = self.current("a change")?;
        if open.left_out {
            return self.current("a change");
        }
        // Behind the first byte a streamed message has the id of its (sub-)transaction; otherwise they are the same.
        let behind = match stream_xid {
            Some(xid) => {
                open.writes(xid);
                5
            }
            None => 1,
        };
        let (Some(&kind), Some(rest)) = (bytes.first(), bytes.get(behind..)) else {
            return Err(misplaced("a change", "that is too short"));
        };
        if let Err(error) = open.change(kind, rest, counts) {
            let row = (open.xid, open.size() + rest.len() as u64, rest.len() as u64, changed_table(message, open));
            return Err(self.cannot_spill(error, Some(row)));
        }
        if self.meter.is_over(0) {
            self.make_room()?;
        }
        self.current("a change")
    }

    /// The largest in memory go to disk until there is room.
    #[cold]
    fn make_room(&mut self) -> Result<(), AssembleError> {
        while self.meter.is_over(0) {
            let largest = self.all_open().max_by_key(|open| open.in_memory());
            let Some(largest) = largest.filter(|open| open.in_memory() > 0) else { break };
            if let Err(error) = largest.flush() {
                return Err(self.cannot_spill(error, None));
            }
        }
        Ok(())
    }

    fn all_open(&mut self) -> impl Iterator<Item = &mut Open> {
        let whole = match &mut self.sending {
            Sending::Whole(open, _) => Some(&mut **open),
            _ => None,
        };
        let prepared = self.prepared.values_mut().map(|kept| &mut kept.open);
        whole.into_iter().chain(self.streamed.values_mut()).chain(prepared)
    }

    /// Names the largest transaction, or, where it is a row that is larger than all that may be in memory, that one.
    #[cold]
    fn cannot_spill(&mut self, error: SpillError, row: Option<(u32, u64, u64, Option<String>)>) -> AssembleError {
        let (bound, assembling) = (self.meter.settings().disk, self.meter.assembling());
        let largest = self.all_open().max_by_key(|open| open.size()).map_or((0, 0), |open| (open.xid, open.size()));
        let ((xid, size), row) = match row {
            Some((xid, size, row, table)) if row > self.meter.settings().memory as u64 => {
                ((xid, size), table.map(|table| (table, row)))
            }
            _ => (largest, None),
        };
        match error {
            SpillError::Full => AssembleError::SpillFull { xid, size, row, assembling, bound },
            SpillError::Io(error) => {
                AssembleError::Spill { directory: self.meter.settings().directory.clone(), xid, size, error }
            }
        }
    }

    fn describe(&mut self, body: &RelationBody<'_>) -> Result<(), AssembleError> {
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
        self.described += 1;
        let number = self.described;
        match &mut self.sending {
            // Its own until it commits: the server describes the relation to every other transaction again.
            Sending::Part(_) => {
                let open = self.current("Relation")?;
                if let Some(xid) = body.stream_xid {
                    open.writes(xid);
                }
                open.describe(relation, number);
                return Ok(());
            }
            Sending::Whole(open, _) => open.describe(Arc::clone(&relation), number),
            Sending::Nothing => {}
        }
        self.know(relation, number);
        Ok(())
    }

    /// Every transaction may use this description from now on, unless a younger one is known.
    fn know(&mut self, relation: Arc<Relation>, number: u64) {
        let known = self.numbers.entry(relation.oid).or_insert(0);
        if *known > number {
            return;
        }
        *known = number;
        if self.relations.get(&relation.oid) != Some(&relation) {
            Arc::make_mut(&mut self.relations).insert(relation.oid, relation);
        }
    }

    /// Whether no transaction is being sent, as at the places between them.
    fn between(&self, message: &'static str) -> Result<(), AssembleError> {
        if self.is_sending() { Err(misplaced(message, "inside a transaction")) } else { Ok(()) }
    }

    fn begin(&mut self, message: &'static str, xid: u32, announced: Announced) -> Result<(), AssembleError> {
        self.between(message)?;
        let (relations, buffer) = (Arc::clone(&self.relations), std::mem::take(&mut self.buffer));
        self.sending = Sending::Whole(Box::new(Open::new(xid, relations, &self.meter, buffer)), announced);
        Ok(())
    }

    fn commit(
        &mut self,
        commit: CommitLsn,
        end: EndLsn,
        commit_time: PgTime,
    ) -> Result<Assembled<'static>, AssembleError> {
        let Sending::Whole(open, Announced::Commit(announced)) = self.take_sending() else {
            return Err(misplaced("Commit", "outside of a transaction"));
        };
        if announced != commit {
            return Err(AssembleError::OtherCommit { xid: open.xid, announced, committed: commit });
        }
        let (transaction, buffer) = complete(*open, Ending { commit, end, commit_time, gid: None })?;
        self.buffer = buffer;
        Ok(transaction.map_or(Assembled::Empty(end), Assembled::Transaction))
    }

    fn stream_start(&mut self, xid: u32, first: bool) -> Result<(), AssembleError> {
        self.between("Stream Start")?;
        match (first, self.streamed.contains_key(&xid)) {
            (true, true) => return Err(misplaced("a first Stream Start", "of a transaction that has been started")),
            (false, false) => return Err(misplaced("a further Stream Start", "of a transaction that is not known")),
            (true, false) => {
                let open = Open::new(xid, Relations::default(), &self.meter, BytesMut::new());
                self.streamed.insert(xid, open);
            }
            (false, true) => {}
        }
        self.sending = Sending::Part(xid);
        Ok(())
    }

    /// Takes a transaction that has been streamed to its end. What it described is known from now on.
    fn take_streamed(&mut self, message: &'static str, xid: u32) -> Result<Open, AssembleError> {
        let open = self.streamed.remove(&xid);
        let open = open.ok_or(misplaced(message, "of a transaction that was not streamed"))?;
        for description in open.described() {
            self.know(Arc::clone(&description.relation), description.number);
        }
        Ok(open)
    }

    fn stream_abort(&mut self, xid: u32, sub_xid: u32) -> Result<(), AssembleError> {
        self.between("Stream Abort")?;
        if xid == sub_xid {
            self.streamed.remove(&xid);
        } else if let Some(open) = self.streamed.get_mut(&xid)
            && let Err(error) = open.abort(sub_xid)
        {
            return Err(self.cannot_spill(error.into(), None));
        }
        Ok(())
    }

    fn prepare(&mut self, open: Open, prepare: Prepare<'_>) -> Result<Assembled<'static>, AssembleError> {
        let Prepare { prepare_lsn, prepare_end_lsn, prepare_time, gid } = prepare;
        match self.two_phase {
            TwoPhase::AtCommit => {
                let prepare = Boundary(prepare_lsn);
                self.prepared.insert(open.xid, Kept { open, prepare });
                Ok(Assembled::Held(prepare))
            }
            // Its commit comes next. Nobody has seen it prepared, and its own position lies behind the stream.
            TwoPhase::Seen if prepare_lsn < self.confirmed.0 => {
                self.prepared.insert(open.xid, Kept { open, prepare: Boundary(prepare_lsn) });
                Ok(Assembled::Nothing)
            }
            TwoPhase::Seen => {
                let gid: Arc<str> = gid.into();
                let prepared = PreparedTransaction::new(open, gid, prepare_lsn, EndLsn(prepare_end_lsn), prepare_time)?;
                Ok(Assembled::Prepared(Box::new(prepared)))
            }
        }
    }

    fn commit_prepared(&mut self, settled: CommitPrepared) -> Result<Assembled<'static>, AssembleError> {
        let kept = self.prepared.remove(&settled.xid);
        if self.two_phase == TwoPhase::Seen && kept.is_none() {
            return Ok(Assembled::CommitPrepared(settled));
        }
        let CommitPrepared { xid, gid, commit, end, commit_time } = settled;
        let Some(Kept { open, prepare }) = kept else {
            // The server leaves out a Prepare before the position that was acknowledged. That is right only where its
            // commit has been applied, too.
            if self.applied.precedes(commit) {
                return Err(AssembleError::PreparedUnknown { xid, commit });
            }
            return Ok(Assembled::Nothing);
        };
        let (transaction, _) = complete(open, Ending { commit, end, commit_time, gid: Some(gid) })?;
        if self.two_phase == TwoPhase::Seen {
            return Ok(transaction.map_or(Assembled::Empty(end), Assembled::Transaction));
        }
        Ok(Assembled::Settled { prepare, end: Some(end), transaction })
    }
}

/// The table whose row it is, qualified.
fn changed_table(message: &Message<'_>, open: &Open) -> Option<String> {
    match message {
        Message::Insert { relation, .. } | Message::Update { relation, .. } | Message::Delete { relation, .. } => {
            open.table(*relation).map(|table| table.to_string())
        }
        _ => None,
    }
}

/// The complete transaction, unless nothing is in it, and the rest of its buffer.
fn complete(open: Open, ending: Ending) -> Result<(Option<Transaction>, BytesMut), AssembleError> {
    if open.is_empty() {
        return Ok((None, open.discard()));
    }
    let (transaction, rest) = open.finish(ending).map_err(AssembleError::SpillRead)?;
    Ok((Some(transaction), rest))
}
