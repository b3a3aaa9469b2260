//! A whole committed transaction: who it is, and a single pass over its changes that can be taken again.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128;

use crate::assemble::Body;
use crate::pgoutput::{DecodeError, Message, OldTuple, PgTime, Tuple, decode_message};
use crate::position::{CommitLsn, EndLsn, Lsn};
use crate::relation::{Relation, Relations};

/// A committed transaction of the source.
///
/// Its changes are never held as a list: they lie encoded in memory or in a spill file and are decoded while
/// [`changes`](Transaction::changes) passes over them, so that a transaction of any size goes through in bounded
/// memory. What is not yet durable can be passed over again.
#[derive(Clone, Debug)]
pub struct Transaction {
    pub(crate) kind: Kind,
    pub(crate) xid: u32,
    pub(crate) commit: CommitLsn,
    pub(crate) end: EndLsn,
    pub(crate) commit_time: PgTime,
    pub(crate) gid: Option<Arc<str>>,
    pub(crate) origin: Option<Arc<str>>,
    pub(crate) change_count: u64,
    /// OIDs of relations that were truncated.
    pub(crate) truncated: Arc<[u32]>,
    pub(crate) digest: Digest,
    pub(crate) body: Body,
    /// The relations known when the transaction began. None in one that was streamed: it describes what it uses.
    pub(crate) relations: Relations,
    /// Relations described inside the transaction, each with the number of changes before it.
    pub(crate) described: Arc<[(u64, Arc<Relation>)]>,
    /// Relations, by OID, whose changes are passed over.
    pub(crate) left_out: Option<Arc<HashSet<u32>>>,
}

/// What a [`Transaction`] says of the one on the source.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kind {
    /// It committed, with these changes. With a [`gid`](Transaction::gid) where it was prepared and nobody was told
    /// of that: they are delivered at their commit, or the slot did not know of two phases yet.
    #[default]
    Committed,
    /// It was prepared, with these changes, and may yet commit or be rolled back: [`gid`](Transaction::gid) tells
    /// which one is settled later. Only for a sink that takes them
    /// ([`TwoPhase::Seen`](crate::assemble::TwoPhase::Seen)), as the next two are. Its positions are those of the
    /// prepare record.
    Prepared,
    /// It committed; its changes came with [`Prepared`](Kind::Prepared), perhaps in an earlier session.
    CommitPrepared,
    /// It was rolled back. The sink may never have seen it prepared. The source tells where the record of the rollback
    /// ends and not where it starts: the position in its place is one byte below the end.
    RollbackPrepared,
}

impl Transaction {
    /// The settling of a prepared transaction: no changes.
    pub(crate) fn settling(
        kind: Kind,
        xid: u32,
        gid: Arc<str>,
        commit: CommitLsn,
        end: EndLsn,
        time: PgTime,
    ) -> Transaction {
        Transaction {
            kind,
            xid,
            commit,
            end,
            commit_time: time,
            gid: Some(gid),
            origin: None,
            change_count: 0,
            truncated: Arc::new([]),
            digest: Digest(xxh3_128(&[])),
            body: Body::empty(),
            relations: Relations::default(),
            described: Arc::new([]),
            left_out: None,
        }
    }

    /// Whether it committed, or was prepared or settled in two phases.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Transaction id on the source.
    pub fn xid(&self) -> u32 {
        self.xid
    }

    /// Where the commit record starts: the transaction's identity.
    pub fn commit(&self) -> CommitLsn {
        self.commit
    }

    /// Just behind the commit record.
    pub fn end(&self) -> EndLsn {
        self.end
    }

    /// When it committed, by the source's clock.
    pub fn commit_time(&self) -> PgTime {
        self.commit_time
    }

    /// The global identifier under which it was prepared, if it was and the slot knows of two phases.
    pub fn gid(&self) -> Option<&str> {
        self.gid.as_deref()
    }

    /// The replication origin it was applied under on the source, if it came from elsewhere. Of one that was streamed
    /// while in progress the source does not always say it: whoever decides by it has
    /// [`Streaming::Off`](crate::slot_source::Streaming::Off).
    pub fn origin(&self) -> Option<&str> {
        self.origin.as_deref()
    }

    /// Row changes, each truncated relation of a truncate, and messages: the number of records of `total_order`. It
    /// counts too what [`changes`](Transaction::changes) leaves out, and so does the digest.
    pub fn change_count(&self) -> u64 {
        self.change_count
    }

    /// A digest of the content, equal whenever the same server sends the same transaction for the same publications:
    /// whether it is streamed while in progress, prepared first, or sent as a whole.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Bytes of the encoded changes.
    pub fn size(&self) -> u64 {
        self.body.size()
    }

    /// Bytes of the encoded changes that lie in memory; the rest is spilled.
    pub fn in_memory(&self) -> usize {
        self.body.in_memory()
    }

    /// Which of these relations is changed by the change that has so many others before it: a server describes a
    /// relation right before a change that needs it.
    pub(crate) fn changed_at(&self, places: &[(u64, u32)]) -> Result<HashSet<u32>, ReadError> {
        let mut changed = HashSet::new();
        let Some((last, _)) = places.last() else { return Ok(changed) };
        let (mut reader, mut places, mut at) = (self.body.reader(), places, 0);
        while at <= *last && reader.advance()? {
            let entry = reader.entry();
            while let Some(((place, oid), rest)) = places.split_first()
                && *place == at
            {
                let is_changed = match decode_message(entry, false)? {
                    Message::Insert { relation, .. }
                    | Message::Update { relation, .. }
                    | Message::Delete { relation, .. } => relation == *oid,
                    Message::Truncate { relations, .. } => relations.into_iter().any(|relation| relation == *oid),
                    _ => false,
                };
                if is_changed {
                    changed.insert(*oid);
                }
                places = rest;
            }
            at += 1;
        }
        Ok(changed)
    }

    /// A pass over the changes, from the first one. What is in the copy of a table already is left out.
    pub fn changes(&self) -> Changes<'_> {
        Changes {
            reader: self.body.reader(),
            relations: Arc::clone(&self.relations),
            described: &self.described,
            truncated: Vec::new(),
            left_out: self.left_out.as_deref(),
            passed: 0,
        }
    }
}

/// One change of a transaction, borrowed from the pass that yields it.
#[derive(Debug)]
pub enum Change<'a> {
    /// A row was inserted.
    Insert {
        /// The table.
        relation: &'a Arc<Relation>,
        /// The new row.
        new: Tuple<'a>,
    },
    /// A row was updated.
    Update {
        /// The table.
        relation: &'a Arc<Relation>,
        /// The old key where it changed, or the whole old row with identity FULL.
        old: Option<OldTuple<'a>>,
        /// The new row. Columns with an unchanged TOAST value are absent from it.
        new: Tuple<'a>,
    },
    /// A row was deleted.
    Delete {
        /// The table.
        relation: &'a Arc<Relation>,
        /// The old key, or the whole old row with identity FULL.
        old: OldTuple<'a>,
    },
    /// Tables were emptied, all by one statement.
    Truncate {
        /// The tables that are published, of all that the statement emptied.
        relations: &'a [Arc<Relation>],
        /// CASCADE was given. The list already holds what it reached.
        cascade: bool,
        /// RESTART IDENTITY was given.
        restart_identity: bool,
    },
    /// A transactional message of `pg_logical_emit_message`.
    Message {
        /// Where the message was written.
        lsn: Lsn,
        /// Its prefix.
        prefix: &'a str,
        /// Its content.
        content: &'a [u8],
    },
}

/// A single pass over the changes of a [`Transaction`]. Lends each change until the next one is asked for.
#[derive(Debug)]
pub struct Changes<'t> {
    reader: crate::assemble::Reader<'t>,
    relations: Relations,
    described: &'t [(u64, Arc<Relation>)],
    truncated: Vec<Arc<Relation>>,
    left_out: Option<&'t HashSet<u32>>,
    /// Entries passed.
    passed: u64,
}

impl Changes<'_> {
    /// The next change, or `None` behind the last one.
    #[allow(clippy::should_implement_trait)] // lends, which Iterator cannot
    pub fn next(&mut self) -> Result<Option<Change<'_>>, ReadError> {
        loop {
            if !self.reader.advance()? {
                return Ok(None);
            }
            if !self.is_left_out()? {
                break;
            }
            self.passed += 1;
        }
        while let Some((at, relation)) = self.described.first()
            && *at <= self.passed
        {
            Arc::make_mut(&mut self.relations).insert(relation.oid, Arc::clone(relation));
            self.described = &self.described[1..];
        }
        self.passed += 1;
        let relations = &self.relations;
        let relation = |oid: u32| relations.get(&oid).ok_or(ReadError::UnknownRelation { oid });
        Ok(Some(match decode_message(self.reader.entry(), false)? {
            Message::Insert { relation: oid, new, .. } => Change::Insert { relation: relation(oid)?, new },
            Message::Update { relation: oid, old, new, .. } => Change::Update { relation: relation(oid)?, old, new },
            Message::Delete { relation: oid, old, .. } => Change::Delete { relation: relation(oid)?, old },
            Message::Truncate { options, relations: oids, .. } => {
                self.truncated.clear();
                for oid in oids.into_iter().filter(|oid| !self.left_out.is_some_and(|out| out.contains(oid))) {
                    self.truncated.push(Arc::clone(relation(oid)?));
                }
                Change::Truncate {
                    relations: &self.truncated,
                    cascade: options.cascade,
                    restart_identity: options.restart_identity,
                }
            }
            Message::LogicalMessage(m) => Change::Message { lsn: m.lsn, prefix: m.prefix, content: m.content },
            _ => return Err(ReadError::NotAChange),
        }))
    }

    /// Whether nothing is left of the entry that the reader stands at.
    fn is_left_out(&self) -> Result<bool, ReadError> {
        let Some(out) = self.left_out else { return Ok(false) };
        Ok(match decode_message(self.reader.entry(), false)? {
            Message::Insert { relation, .. } | Message::Update { relation, .. } | Message::Delete { relation, .. } => {
                out.contains(&relation)
            }
            Message::Truncate { relations, .. } => relations.into_iter().all(|oid| out.contains(&oid)),
            _ => false,
        })
    }
}

/// A stored change could not be read back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The spill file failed.
    #[error("spill file: {0}")]
    Spill(#[from] io::Error),
    /// The bytes are not a message.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A change names a relation that was never described.
    #[error("relation with OID {oid} was not described before its first change")]
    UnknownRelation {
        /// The OID.
        oid: u32,
    },
    /// A message that is not a change lies among the changes: a defect.
    #[error("not a change")]
    NotAChange,
}

impl From<ReadError> for crate::stop::Stop {
    fn from(error: ReadError) -> Self {
        use crate::stop::Reason;
        match error {
            ReadError::Spill(e) => Reason::LocalFile { path: "spill file".into(), what: e.to_string() }.into(),
            other => Reason::Protocol { what: other.to_string() }.into(),
        }
    }
}

/// A versioned 128-bit digest of a transaction's changes: their pgoutput messages in order, without the descriptions of
/// relations (which depend on the session). Two digests are comparable if their version is the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub(crate) u128);

impl Digest {
    /// The version that this build computes: XXH3 of the length-prefixed messages, tuples as text.
    pub const VERSION: u8 = 1;

    /// A digest of this build's version from its 128 bits.
    pub fn from_bits(bits: u128) -> Digest {
        Digest(bits)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:032x}", Digest::VERSION, self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
