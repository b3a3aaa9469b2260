//! The acknowledgement rule: what was delivered, what is durable, and what may therefore be acknowledged. No I/O.
//!
//! Inputs arrive in the order in which they happen; outputs are computed, never stored from outside:
//!
//! - [`received`](Frontier::received): the source has handed out a whole committed transaction;
//! - [`handed_over`](Frontier::handed_over): the sink has been given everything up to a transaction;
//! - [`made_durable`](Frontier::made_durable): the sink *claims* durability up to a position. A claim counts for
//!   transactions that
//!   were handed over, and for nothing else: the acknowledgement does not follow a sink's number;
//! - [`received_message`](Frontier::received_message) and [`delivered`](Frontier::delivered): a message that belongs to
//!   no transaction is in flight, and nothing at or above it is acknowledged or taken for idle, until the sink has it;
//! - [`reported`](Frontier::reported): the source says that it has sent everything below a point;
//! - [`sent`](Frontier::sent): the source says that every transaction that commits below a point has been handed out;
//! - [`hold`](Frontier::hold) and [`release`](Frontier::release): a transaction is prepared, and is settled. The source
//!   sends it again only as long as nothing behind its prepare is acknowledged;
//! - [`persisted`](Frontier::persisted): the sink has stored an idle boundary;
//! - [`attested`](Frontier::attested): the source end has proved that nothing below a point was left out of the stream.
//!
//! A new connection gets a new frontier: nothing survives a reconnect. What was stored before is acknowledged only when
//! the source has sent everything below it that is not acknowledged yet, and the sink has compared it with what it has:
//! a source with another history is found by what it sends, and must not lose the evidence.

use std::collections::{BTreeMap, VecDeque};

use crate::position::{Boundary, CommitLsn, Durable, EndLsn, Lsn};

/// The state of one session between a source and a sink. See the [module](self).
#[derive(Clone, Debug)]
pub struct Frontier {
    /// Received and not yet durable, in the order of the stream.
    pending: VecDeque<Pending>,
    /// How many of `pending`, from the front, the sink has been given.
    handed_over: usize,
    /// End of the last transaction known durable on the sink, in this session or stored before it.
    durable: Option<EndLsn>,
    /// The last idle boundary that the sink has stored.
    persisted: Option<Boundary>,
    /// The last point that the source reported with nothing open below it.
    reported: Option<Boundary>,
    /// The last point below which the source has sent every transaction that commits there.
    sent: Option<Boundary>,
    /// Where transactions were prepared that are not settled, or not durable. With the end of those that are settled.
    held: BTreeMap<Boundary, Option<EndLsn>>,
    /// Below this point nothing was left out.
    attested: Option<Boundary>,
    /// What was stored before this session.
    stored: Option<Boundary>,
    /// Whether the source has sent everything below that.
    passed: bool,
    /// What the source has been told last.
    acknowledged: Option<Boundary>,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    /// A message that belongs to no transaction has none.
    commit: Option<CommitLsn>,
    end: EndLsn,
}

impl Pending {
    /// Whether all of it lies behind `point`. (Both are edges of records: what ends behind, begins behind.)
    fn is_behind(&self, point: Boundary) -> bool {
        self.commit.map_or(self.end.0 > point.0, |commit| point.precedes(commit))
    }
}

/// The order of events that a frontier was told is impossible: a defect in what drives it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a transaction with commit LSN {commit}, or a message that ends there, was received after {after}")]
pub struct OutOfOrder {
    /// What came too late.
    pub commit: CommitLsn,
    /// Where the frontier stood.
    pub after: EndLsn,
}

impl Frontier {
    /// A frontier for a session that starts where the sink's stored state says: `durable` is the end of its checkpoint,
    /// `persisted` its idle boundary.
    pub fn new(durable: Option<EndLsn>, persisted: Option<Boundary>) -> Frontier {
        Frontier {
            pending: VecDeque::new(),
            handed_over: 0,
            durable,
            persisted,
            reported: None,
            sent: None,
            held: BTreeMap::new(),
            attested: None,
            stored: persisted.max(durable.map(EndLsn::as_boundary)),
            passed: false,
            acknowledged: None,
        }
    }

    /// The source has handed out a whole transaction. Transactions come in commit order.
    pub fn received(&mut self, commit: CommitLsn, end: EndLsn) -> Result<(), OutOfOrder> {
        if let Some(last) = self.pending.back().map(|p| p.end)
            && commit.0 < last.0
        {
            return Err(OutOfOrder { commit, after: last });
        }
        self.passed |= self.is_new(commit);
        self.pending.push_back(Pending { commit: Some(commit), end });
        Ok(())
    }

    /// The source has handed out a message that belongs to no transaction, whose record ends at `end`, in the order of
    /// the stream. It holds everything back that lies behind it, until it is [`delivered`](Self::delivered).
    pub fn received_message(&mut self, end: Lsn) -> Result<(), OutOfOrder> {
        if let Some(last) = self.pending.back().map(|p| p.end)
            && end <= last.0
        {
            return Err(OutOfOrder { commit: CommitLsn(end), after: last });
        }
        self.pending.push_back(Pending { commit: None, end: EndLsn(end) });
        Ok(())
    }

    /// The sink has the next message, the one whose record ends at `end`, for good. Counts only if it was given
    /// everything before it.
    pub fn delivered(&mut self, end: Lsn) {
        if self.pending.get(self.handed_over).is_some_and(|p| p.commit.is_none() && p.end.0 == end) {
            self.handed_over += 1;
            self.drop_delivered();
        }
    }

    fn drop_delivered(&mut self) {
        while self.handed_over > 0 && self.pending.front().is_some_and(|p| p.commit.is_none()) {
            self.pending.pop_front();
            self.handed_over -= 1;
        }
    }

    /// The sink has been given every received transaction up to and including `commit`.
    pub fn handed_over(&mut self, commit: CommitLsn) {
        // Not past a message that it does not have.
        while self.pending.get(self.handed_over).is_some_and(|p| p.commit.is_some_and(|own| own <= commit)) {
            self.handed_over += 1;
        }
    }

    /// The sink claims that everything up to `claim` is durable. Only what it has been given can be.
    pub fn made_durable(&mut self, claim: EndLsn) {
        while self.handed_over > 0 && self.pending[0].end <= claim {
            let done = self.pending.pop_front().expect("handed_over counts entries of pending");
            self.handed_over -= 1;
            self.durable = self.durable.max(Some(done.end));
            self.drop_delivered();
        }
        self.let_go();
    }

    /// The source has sent everything below `point`. Counts only if nothing lies `open` below it: a transaction that
    /// has begun and not ended, or is prepared and not settled.
    pub fn reported(&mut self, point: Boundary, open: bool) {
        if !open {
            self.reported = self.reported.max(Some(point));
            self.passed |= self.stored <= Some(point);
        }
    }

    /// The source has sent every transaction that commits below `point`. One may lie open that will commit behind it.
    pub fn sent(&mut self, point: Boundary) {
        self.sent = self.sent.max(Some(point));
        self.passed |= self.stored <= Some(point);
    }

    /// A transaction is prepared. Its prepare record starts at `prepare`: nothing behind that may be acknowledged
    /// before it is settled and durable, or the source would not send it again.
    pub fn hold(&mut self, prepare: Boundary) {
        self.held.insert(prepare, None);
    }

    /// The transaction that is held since `prepare` is settled: rolled back, or committed with an `end`. Then what it
    /// committed has been received, and it is let go when everything up to there is durable or stored: after the next
    /// start its commit is told by its position alone.
    pub fn release(&mut self, prepare: Boundary, end: Option<EndLsn>) {
        match end {
            Some(_) => self.held.insert(prepare, end),
            None => self.held.remove(&prepare),
        };
        self.let_go();
    }

    fn let_go(&mut self) {
        if !self.held.is_empty() {
            let safe = self.persisted.max(self.durable.map(EndLsn::as_boundary));
            self.held.retain(|_, end| end.is_none_or(|end| Some(end.as_boundary()) > safe));
        }
    }

    /// The sink has stored `boundary` durably. Ignored unless it is one that [`idle_candidate`](Self::idle_candidate)
    /// could have offered: at or below what the source reported.
    pub fn persisted(&mut self, boundary: Boundary) {
        if Some(boundary) <= self.reported && self.pending.front().is_none_or(|p| p.is_behind(boundary)) {
            self.persisted = self.persisted.max(Some(boundary));
            self.let_go();
        }
    }

    /// The source end has proved that nothing below `point` was left out of the stream.
    pub fn attested(&mut self, point: Boundary) {
        self.attested = self.attested.max(Some(point));
    }

    /// An idle boundary that the sink should store: the source reported it, everything received is durable, it was
    /// attested, and it is ahead of both what is durable and what is stored.
    pub fn idle_candidate(&self) -> Option<Boundary> {
        let point = self.reported.min(self.attested)?;
        let stored = self.persisted.max(self.durable.map(EndLsn::as_boundary));
        (self.pending.is_empty() && Some(point) > stored).then_some(point)
    }

    /// What may be acknowledged now and has not been yet: the greater of the durable end and the stored idle
    /// boundary, held back to what was attested, and to where a transaction was prepared that may have to come again.
    ///
    /// Nothing is, until this session has gone past what was stored before it.
    pub fn acknowledge(&mut self) -> Option<Durable<Boundary>> {
        if !self.has_passed() {
            return None;
        }
        let safe = self.persisted.max(self.durable.map(EndLsn::as_boundary)).min(self.attested)?;
        let safe = self.held.first_key_value().map_or(safe, |(prepare, _)| safe.min(*prepare));
        (Some(safe) > self.acknowledged).then(|| {
            self.acknowledged = Some(safe);
            Durable::proved(safe)
        })
    }

    /// Whether this session has gone past what was stored before it, and what came again has been written.
    pub fn has_passed(&self) -> bool {
        self.passed && self.pending.front().and_then(|p| p.commit).is_none_or(|commit| self.is_new(commit))
    }

    fn is_new(&self, commit: CommitLsn) -> bool {
        self.stored.is_none_or(|stored| stored.precedes(commit))
    }

    /// Whether everything with `commit_lsn < stop` is durable, nothing below was left out, and the source has gone
    /// past `stop`. A transaction that is open then commits behind it.
    pub fn drained(&self, stop: Boundary) -> bool {
        let passed = self.reported_point().max(self.durable.map(EndLsn::as_boundary)) >= Some(stop)
            || self.pending.back().is_some_and(|p| p.is_behind(stop));
        // What was left out below would not be seen as missing.
        let complete = self.attested >= Some(stop);
        complete && passed && self.pending.iter().all(|p| p.is_behind(stop))
    }

    /// Whether everything received is durable, and every message delivered.
    pub fn settled(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether the sink has been given something that is not known durable, or something durable lies above what was
    /// attested: then the acknowledgement does not cover everything that it could.
    pub fn any_unacknowledgeable(&self) -> bool {
        self.handed_over > 0 || self.attested < self.durable.map(EndLsn::as_boundary).max(self.persisted)
    }

    /// The last point below which the source has sent everything that commits there.
    pub fn reported_point(&self) -> Option<Boundary> {
        self.reported.max(self.sent)
    }

    /// The end of the last durable transaction.
    pub fn durable_end(&self) -> Option<EndLsn> {
        self.durable
    }
}
