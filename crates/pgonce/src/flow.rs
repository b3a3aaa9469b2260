//! What a flow is bound to and what is stored of it: what source and sink tell each other through the pipeline.

use std::collections::HashSet;

use crate::piece::Extent;
use crate::position::{Boundary, Checkpoint, Lsn, Timeline};
use crate::published::{Published, tables_of};

/// Who is at the other end, as `IDENTIFY_SYSTEM` on the replication connection says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceIdentity {
    /// System identifier of the cluster, made by `initdb` and shared by its physical copies.
    pub system_identifier: String,
    /// Current timeline.
    pub timeline: Timeline,
    /// WAL flush position.
    pub flushed: Lsn,
    /// Database.
    pub database: String,
    /// The slot that is read.
    pub slot: String,
    /// `server_version_num`, as in 150018.
    pub server_version: u32,
}

/// Where the stream of a slot will really begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotOrigin {
    /// The slot.
    pub slot: String,
    /// Whether it was made by this start.
    pub created: bool,
    /// From where the server sends: `confirmed_flush_lsn`, of a new slot its consistent point.
    pub confirmed_flush: Lsn,
    /// What was not carried before begins here: of a new slot its consistent point, otherwise the greater of what is
    /// stored and `confirmed_flush`. What the server sends of before that is skipped.
    pub boundary: Boundary,
    /// The source's timeline.
    pub timeline: Timeline,
    /// Whether transactions are told of when they are prepared
    /// ([`TwoPhase::Seen`](crate::assemble::TwoPhase::Seen)).
    pub sees_prepared: bool,
    /// Whether the slot was made with `two_phase`.
    pub two_phase: bool,
    /// Whether the slot is synchronised to standbys (`failover`, PostgreSQL 17).
    pub failover: bool,
}

/// A position that an idle source has reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdlePoint {
    /// Everything below it has been received and is durable.
    pub boundary: Boundary,
    /// The source's timeline.
    pub timeline: Timeline,
}

/// What a flow begins with: stored once, and held against the source at every connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Where the stream begins: of a new slot its consistent point, of an existing one its `confirmed_flush_lsn`.
    pub boundary: Boundary,
    /// The source's timeline.
    pub timeline: Timeline,
    /// Whether tables are copied first.
    pub start: StartMode,
    /// What is published, as [`Published::fingerprint`] writes it.
    pub published: String,
}

impl Binding {
    /// The binding of a flow that starts at `boundary`.
    pub fn new(boundary: Boundary, timeline: Timeline, start: StartMode, published: &Published) -> Binding {
        Binding { boundary, timeline, start, published: published.fingerprint() }
    }

    /// The OIDs of the tables that were published when the flow was bound.
    pub fn tables(&self) -> HashSet<u32> {
        tables_of(&self.published).collect()
    }
}

/// What an empty checkpoint means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartMode {
    /// The tables are copied first.
    Snapshot,
    /// Nothing is copied: the stream begins at the slot's position, onto a target that is a copy already.
    GoForward,
}

/// What a sink has stored of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The flow has never been bound.
    Nothing,
    /// The flow has begun.
    Flow(StoredFlow),
}

/// The stored state of a flow that has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredFlow {
    /// What [`Destination::bind`] stored.
    pub binding: Binding,
    /// Whether the initial copy is complete (or was never asked for).
    pub streaming: bool,
    /// The tables that have been copied, or are to be.
    pub tables: Vec<StoredTable>,
    /// The last applied transaction.
    pub checkpoint: Option<Checkpoint>,
    /// The last idle boundary; the binding's boundary until there is one.
    pub idle: IdlePoint,
}

/// A table that has been copied, or is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTable {
    /// OID on the source.
    pub oid: u32,
    /// Its pieces hold together only if they are all read in one snapshot.
    pub together: bool,
    /// Its pieces. They cover it.
    pub pieces: Vec<StoredPiece>,
}

/// A piece of a [`StoredTable`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPiece {
    /// Its number.
    pub number: i32,
    /// What it holds.
    pub extent: Extent,
    /// About how large it is on the source.
    pub bytes: u64,
    /// The boundary at which it was read, if it has been copied.
    pub boundary: Option<Boundary>,
}

impl StoredTable {
    /// Whether every piece has been copied.
    pub fn is_copied(&self) -> bool {
        self.pieces.iter().all(|piece| piece.boundary.is_some())
    }

    /// The last of its boundaries.
    pub fn boundary(&self) -> Option<Boundary> {
        self.pieces.iter().filter_map(|piece| piece.boundary).max()
    }
}

impl StoredFlow {
    /// The greatest position that the source may have been told, and its timeline.
    pub fn position(&self) -> IdlePoint {
        match self.checkpoint {
            Some(c) if c.end.as_boundary() >= self.idle.boundary => {
                IdlePoint { boundary: c.end.as_boundary(), timeline: c.timeline }
            }
            _ => self.idle,
        }
    }
}
