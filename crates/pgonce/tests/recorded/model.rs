//! What a stream means, in the plainest way: every transaction's messages in a list, until it ends.

use std::collections::BTreeMap;

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

#[derive(Debug, Default)]
struct Pending {
    origin: Option<String>,
    /// Each with the subtransaction that it belongs to.
    changes: Vec<(u32, Vec<u8>)>,
}

impl Pending {
    fn committed(self, xid: u32, commit: u64, end: u64) -> Committed {
        Committed { xid, commit, end, origin: self.origin, changes: self.changes.into_iter().map(|c| c.1).collect() }
    }
}

/// The transactions that committed, in the order of the stream, and the positions of the non-transactional messages.
pub fn meaning<'a>(protocol: u8, messages: impl Iterator<Item = &'a [u8]>) -> (Vec<Committed>, Vec<u64>) {
    let mut decoder = Decoder::new(protocol);
    let (mut committed, mut alone) = (Vec::new(), Vec::new());
    // Streamed and prepared transactions by their id, and the id of the one that is being sent.
    let mut pending: BTreeMap<u32, Pending> = BTreeMap::new();
    let mut open: Option<u32> = None;
    for bytes in messages {
        match decoder.decode(bytes).unwrap() {
            Message::Begin { xid, .. } | Message::BeginPrepare { xid, .. } | Message::StreamStart { xid, .. } => {
                assert_eq!(open.replace(xid), None);
                pending.entry(xid).or_default();
            }
            Message::StreamStop | Message::Prepare { .. } => assert!(open.take().is_some()),
            Message::Commit { commit, end, .. } => {
                let xid = open.take().unwrap();
                committed.push(pending.remove(&xid).unwrap().committed(xid, commit.0.0, end.0.0));
            }
            Message::StreamCommit { xid, commit, end, .. } | Message::CommitPrepared { xid, commit, end, .. } => {
                committed.push(pending.remove(&xid).unwrap().committed(xid, commit.0.0, end.0.0));
            }
            Message::StreamPrepare { xid, .. } => assert!(pending.contains_key(&xid)),
            Message::RollbackPrepared { xid, .. } => assert!(pending.remove(&xid).is_some()),
            Message::StreamAbort { xid, sub_xid, .. } if xid == sub_xid => assert!(pending.remove(&xid).is_some()),
            Message::StreamAbort { xid, sub_xid, .. } => {
                pending.get_mut(&xid).unwrap().changes.retain(|change| change.0 != sub_xid);
            }
            Message::Origin { name, .. } => {
                pending.get_mut(&open.unwrap()).unwrap().origin = Some(name.to_owned());
            }
            Message::Relation(_) | Message::Type { .. } => {}
            Message::LogicalMessage(LogicalMessageBody { transactional: false, lsn, .. }) => alone.push(lsn.0),
            change => {
                let top = open.unwrap();
                let change = (change.stream_xid().unwrap_or(top), encoded(&unstreamed(change)));
                pending.get_mut(&top).unwrap().changes.push(change);
            }
        }
    }
    assert_eq!(open, None);
    assert!(pending.is_empty(), "{pending:?}");
    (committed, alone)
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
