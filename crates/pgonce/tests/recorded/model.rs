//! What a stream means, in the plainest way: every transaction's messages in a list, until it ends.
#![allow(dead_code, reason = "each program uses its own part")]

use std::collections::BTreeMap;

use pgonce::heartbeat;
use pgonce::pgoutput::{Decoder, LogicalMessageBody, Message, encode::encoded};

/// A transaction that has committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    pub xid: u32,
    /// Where the commit record starts, and just behind it.
    pub commit: u64,
    pub end: u64,
    pub origin: Option<String>,
    /// Its changes and messages, without the transaction ids of the stream.
    pub changes: Vec<Vec<u8>>,
}

/// What a message brought to an end.
#[derive(Debug)]
pub enum Said {
    Nothing,
    Committed(Committed),
    /// A non-transactional message at this position.
    Alone(u64),
}

/// The sequence is none that PostgreSQL sends.
#[derive(Debug)]
pub struct Nonsense;

#[derive(Debug, Default)]
struct Pending {
    /// No more comes of it but how it is settled.
    prepared: bool,
    origin: Option<String>,
    written: Vec<Written>,
}

#[derive(Debug)]
struct Written {
    /// The transaction or subtransaction that it belongs to.
    xid: u32,
    /// A change or a message; none for a description of a relation.
    change: Option<Vec<u8>>,
    /// It came behind something that was rolled back, so it must be rolled back too before the transaction commits:
    /// both are of one subtransaction that has the other within.
    doomed: bool,
}

impl Pending {
    fn committed(self, xid: u32, commit: u64, end: u64) -> Result<Said, Nonsense> {
        if self.written.iter().any(|written| written.doomed) {
            return Err(Nonsense);
        }
        let changes = self.written.into_iter().filter_map(|written| written.change).collect();
        Ok(Said::Committed(Committed { xid, commit, end, origin: self.origin, changes }))
    }

    fn roll_back(&mut self, sub_xid: u32) {
        let first = self.written.iter().position(|written| written.xid == sub_xid).unwrap_or(self.written.len());
        self.written[first..].iter_mut().for_each(|written| written.doomed = true);
        self.written.retain(|written| written.xid != sub_xid);
    }
}

/// Takes the messages of one connection.
#[derive(Debug)]
pub struct Model {
    decoder: Decoder,
    /// Streamed and prepared transactions, and the one that is being sent, by their ids.
    pending: BTreeMap<u32, Pending>,
    /// The one that is being sent.
    open: Option<u32>,
}

impl Model {
    pub fn new(protocol: u8) -> Model {
        Model { decoder: Decoder::new(protocol), pending: BTreeMap::new(), open: None }
    }

    /// Whether no transaction is under way.
    pub fn is_at_rest(&self) -> bool {
        self.open.is_none() && self.pending.is_empty()
    }

    pub fn push(&mut self, bytes: &[u8]) -> Result<Said, Nonsense> {
        let message = self.decoder.decode(bytes).map_err(|_| Nonsense)?;
        match message {
            Message::Begin { xid, .. } | Message::BeginPrepare { xid, .. } => self.open(xid, true)?,
            Message::StreamStart { xid, first } => self.open(xid, first)?,
            Message::StreamStop => {
                self.open.take().ok_or(Nonsense)?;
            }
            Message::Prepare { xid, .. } if self.open.take() == Some(xid) => self.streamed(xid)?.prepared = true,
            Message::Prepare { .. } => return Err(Nonsense),
            Message::StreamPrepare { xid, .. } => self.streamed(xid)?.prepared = true,
            Message::Commit { commit, end, .. } => {
                let xid = self.open.take().ok_or(Nonsense)?;
                return self.ended(xid, false)?.committed(xid, commit.0.0, end.0.0);
            }
            Message::StreamCommit { xid, commit, end, .. } => {
                return self.ended(xid, false)?.committed(xid, commit.0.0, end.0.0);
            }
            Message::CommitPrepared { xid, commit, end, .. } => {
                return self.ended(xid, true)?.committed(xid, commit.0.0, end.0.0);
            }
            Message::RollbackPrepared { xid, .. } => drop(self.ended(xid, true)?),
            Message::StreamAbort { xid, sub_xid, .. } if xid == sub_xid => drop(self.ended(xid, false)?),
            Message::StreamAbort { xid, sub_xid, .. } => self.streamed(xid)?.roll_back(sub_xid),
            Message::Origin { name, .. } => self.current()?.1.origin = Some(name.to_owned()),
            Message::Type { .. } => {}
            Message::Relation(body) => {
                if let (Some(xid), Ok((_, pending))) = (body.stream_xid, self.current()) {
                    pending.written.push(Written { xid, change: None, doomed: false });
                }
            }
            Message::LogicalMessage(LogicalMessageBody { transactional: false, lsn, .. }) => {
                return Ok(Said::Alone(lsn.0));
            }
            // Of a heartbeat its transaction is all there is to see.
            Message::LogicalMessage(body) if body.prefix == heartbeat::PREFIX => {
                self.current()?;
            }
            change => {
                let (top, pending) = self.current()?;
                let xid = change.stream_xid().unwrap_or(top);
                pending.written.push(Written { xid, change: Some(encoded(&unstreamed(change))), doomed: false });
            }
        }
        Ok(Said::Nothing)
    }

    fn open(&mut self, xid: u32, first: bool) -> Result<(), Nonsense> {
        if self.open.is_some() || self.pending.contains_key(&xid) == first {
            return Err(Nonsense);
        }
        self.pending.entry(xid).or_default();
        self.streamed(xid)?;
        self.open = Some(xid);
        Ok(())
    }

    /// One that is under way, with nothing being sent.
    fn streamed(&mut self, xid: u32) -> Result<&mut Pending, Nonsense> {
        let pending = self.pending.get_mut(&xid).filter(|pending| !pending.prepared).ok_or(Nonsense)?;
        if self.open.is_some() { Err(Nonsense) } else { Ok(pending) }
    }

    fn ended(&mut self, xid: u32, prepared: bool) -> Result<Pending, Nonsense> {
        if self.open.is_some() {
            return Err(Nonsense);
        }
        self.pending.remove(&xid).filter(|pending| pending.prepared == prepared).ok_or(Nonsense)
    }

    fn current(&mut self) -> Result<(u32, &mut Pending), Nonsense> {
        let xid = self.open.ok_or(Nonsense)?;
        Ok((xid, self.pending.get_mut(&xid).ok_or(Nonsense)?))
    }
}

/// The change as it is outside a stream block.
fn unstreamed(message: Message<'_>) -> Message<'_> {
    match message {
        Message::Insert { stream_xid: _, relation, new } => Message::Insert { stream_xid: None, relation, new },
        Message::Update { stream_xid: _, relation, old, new } => {
            Message::Update { stream_xid: None, relation, old, new }
        }
        Message::Delete { stream_xid: _, relation, old } => Message::Delete { stream_xid: None, relation, old },
        Message::Truncate { stream_xid: _, options, relations } => {
            Message::Truncate { stream_xid: None, options, relations }
        }
        Message::LogicalMessage(body) => Message::LogicalMessage(LogicalMessageBody { stream_xid: None, ..body }),
        other => other,
    }
}
