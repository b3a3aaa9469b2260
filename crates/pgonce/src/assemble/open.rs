//! A transaction that has begun and not ended.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use bytes::BytesMut;

use super::budget::{Meter, SpillError};
use super::spool::Spool;
use crate::pgoutput::PgTime;
use crate::position::{CommitLsn, EndLsn};
use crate::relation::{Relation, Relations};
use crate::transaction::{Kind, Transaction};

#[derive(Debug)]
pub(super) struct Open {
    pub(super) xid: u32,
    pub(super) origin: Option<Arc<str>>,
    /// It has an origin, and such are not wanted: nothing of it is kept.
    pub(super) left_out: bool,
    /// A heartbeat is in it: it is delivered though nothing else is.
    pub(super) heartbeat: bool,
    /// The relations known at its begin. None in a transaction that is streamed: it describes what it uses.
    relations: Relations,
    described: Vec<Description>,
    entries: u64,
    change_count: u64,
    truncated: Vec<u32>,
    /// The relation that was described or changed last.
    last_relation: Option<u32>,
    spool: Spool,
    meter: Arc<Meter>,
    /// The sub-transaction that wrote last, or the transaction itself.
    writer: u32,
    subs: Option<Box<Subs>>,
    /// The last entries are messages of which the server does not say whose they are: the transaction's own, or those
    /// of a sub-transaction that has changed nothing so far.
    in_doubt: bool,
}

/// A relation as it was described inside a transaction.
#[derive(Clone, Debug)]
pub(super) struct Description {
    /// The number of entries before it.
    at: u64,
    /// Which of all descriptions of the session it is.
    pub(super) number: u64,
    pub(super) relation: Arc<Relation>,
}

/// How a transaction ended well.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) commit: CommitLsn,
    pub(super) end: EndLsn,
    pub(super) commit_time: PgTime,
    pub(super) gid: Option<Arc<str>>,
}

impl Open {
    pub(super) fn new(xid: u32, relations: Relations, meter: &Arc<Meter>, buffer: BytesMut) -> Open {
        Open {
            xid,
            origin: None,
            left_out: false,
            heartbeat: false,
            relations,
            described: Vec::new(),
            entries: 0,
            change_count: 0,
            truncated: Vec::new(),
            last_relation: None,
            spool: Spool::new(Arc::clone(meter), buffer),
            meter: Arc::clone(meter),
            writer: xid,
            subs: None,
            in_doubt: false,
        }
    }

    /// Takes in a change: the first byte of its message, and the rest without the id that a streamed one carries.
    pub(super) fn change(&mut self, kind: u8, rest: &[u8], counts: u64) -> Result<(), SpillError> {
        self.spool.push(kind, rest)?;
        self.entries += 1;
        self.change_count += counts;
        Ok(())
    }

    pub(super) fn changed(&mut self, relation: u32) {
        self.last_relation = Some(relation);
    }

    pub(super) fn truncates(&mut self, relations: impl Iterator<Item = u32>) {
        self.truncated.extend(relations);
    }

    /// The relation has been described. One that is the same as before needs no second description.
    pub(super) fn describe(&mut self, relation: Arc<Relation>, number: u64) {
        self.last_relation = Some(relation.oid);
        match self.described.iter_mut().rfind(|d| d.relation.oid == relation.oid) {
            Some(last) if last.relation == relation => last.number = number,
            _ => self.described.push(Description { at: self.entries, number, relation }),
        }
    }

    pub(super) fn described(&self) -> &[Description] {
        &self.described
    }

    /// The table that was described or changed last.
    pub(super) fn last_table(&self) -> Option<Arc<Relation>> {
        self.table(self.last_relation?).map(Arc::clone)
    }

    /// A table as it is described now.
    pub(super) fn table(&self, oid: u32) -> Option<&Arc<Relation>> {
        let described = self.described.iter().rfind(|d| d.relation.oid == oid).map(|d| &d.relation);
        described.or_else(|| self.relations.get(&oid))
    }

    /// What comes now was written by a sub-transaction (or by the transaction itself).
    pub(super) fn writes(&mut self, xid: u32) {
        let in_doubt = std::mem::take(&mut self.in_doubt);
        if xid == self.writer {
            return;
        }
        self.writer = xid;
        if xid != self.xid {
            let subs = self.subs.get_or_insert_with(|| Box::new(Subs::new(Arc::clone(&self.meter))));
            subs.begin(Sub {
                xid,
                length: self.spool.length(),
                entries: self.entries,
                change_count: self.change_count,
                described: self.described.len() as u32,
                truncated: self.truncated.len() as u32,
                in_doubt,
            });
        }
    }

    /// The sub-transaction was rolled back. Everything behind its first change is its own, or that of sub-transactions
    /// that went with it: nobody else could write meanwhile. False if messages stand before that of which it cannot be
    /// told whether they went with it.
    pub(super) fn abort(&mut self, xid: u32) -> io::Result<bool> {
        let Some(sub) = self.subs.as_mut().and_then(|subs| subs.abort(xid)) else { return Ok(!self.in_doubt) };
        if sub.in_doubt {
            return Ok(false);
        }
        self.writer = self.xid;
        self.in_doubt = false;
        self.spool.truncate(sub.length)?;
        self.entries = sub.entries;
        self.change_count = sub.change_count;
        self.described.truncate(sub.described as usize);
        self.truncated.truncate(sub.truncated as usize);
        Ok(true)
    }

    /// A message was streamed. The server names the transaction for it, whichever sub-transaction wrote it.
    pub(super) fn streams_message(&mut self, xid: u32) {
        self.in_doubt |= xid == self.xid;
    }

    /// Whether there is nothing to deliver.
    pub(super) fn is_empty(&self) -> bool {
        self.left_out || (self.change_count == 0 && !self.heartbeat)
    }

    /// Bytes of its changes.
    pub(super) fn size(&self) -> u64 {
        self.spool.length()
    }

    pub(super) fn in_memory(&self) -> usize {
        self.spool.in_memory()
    }

    pub(super) fn flush(&mut self) -> Result<(), SpillError> {
        self.spool.flush()
    }

    /// It will not end soon: gives back what its buffer has room for.
    pub(super) fn detach(&mut self) -> BytesMut {
        self.spool.detach()
    }

    /// Nothing of it is kept. Gives back its buffer.
    pub(super) fn discard(mut self) -> BytesMut {
        let _ = self.spool.truncate(0);
        self.spool.detach()
    }

    /// The complete transaction, and the rest of its buffer.
    pub(super) fn finish(self, ending: Ending) -> io::Result<(Transaction, BytesMut)> {
        let (body, digest, rest) = self.spool.finish()?;
        let described: Vec<_> = self.described.into_iter().map(|d| (d.at, d.relation)).collect();
        let transaction = Transaction {
            kind: Kind::Committed,
            xid: self.xid,
            commit: ending.commit,
            end: ending.end,
            commit_time: ending.commit_time,
            gid: ending.gid,
            origin: self.origin,
            change_count: self.change_count,
            truncated: shared(self.truncated),
            digest,
            body,
            relations: self.relations,
            described: shared(described),
            left_out: None,
        };
        Ok((transaction, rest))
    }
}

/// Shares a list. What most transactions have, an empty one, takes no memory.
fn shared<T: 'static>(list: Vec<T>) -> Arc<[T]> {
    if list.is_empty() { Arc::default() } else { list.into() }
}

/// Where each sub-transaction began that may still be rolled back: all that wrote something and were not. Of one that
/// has ended well the stream says nothing.
#[derive(Debug)]
struct Subs {
    meter: Arc<Meter>,
    /// In the order of their first changes.
    begun: Vec<Sub>,
    /// Where in `begun` each is.
    places: HashMap<u32, u32>,
}

#[derive(Clone, Copy, Debug)]
struct Sub {
    xid: u32,
    /// How large everything was before its first change.
    length: u64,
    entries: u64,
    change_count: u64,
    described: u32,
    truncated: u32,
    /// What stands before its first change may be its own.
    in_doubt: bool,
}

impl Subs {
    /// What one takes, about.
    const BYTES: usize = 64;

    fn new(meter: Arc<Meter>) -> Subs {
        Subs { meter, begun: Vec::new(), places: HashMap::new() }
    }

    fn begin(&mut self, sub: Sub) {
        let place = self.begun.len() as u32;
        if let std::collections::hash_map::Entry::Vacant(vacant) = self.places.entry(sub.xid) {
            vacant.insert(place);
            self.begun.push(sub);
            self.meter.hold_table(Subs::BYTES);
        }
    }

    fn abort(&mut self, xid: u32) -> Option<Sub> {
        let place = *self.places.get(&xid)? as usize;
        let sub = *self.begun.get(place)?;
        for gone in self.begun.drain(place..) {
            self.places.remove(&gone.xid);
            self.meter.let_go_table(Subs::BYTES);
        }
        Some(sub)
    }
}

impl Drop for Subs {
    fn drop(&mut self) {
        self.meter.let_go_table(Subs::BYTES * self.begun.len());
    }
}
