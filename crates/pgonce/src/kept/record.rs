//! The two records that are stored of a flow, as text with a checksum.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::window::Window;
use crate::flow::{Binding, IdlePoint, SourceIdentity, StartMode, StoredPiece, StoredTable};
use crate::piece::Extent;
use crate::position::{Boundary, Checkpoint, CommitLsn, EndLsn, Lsn, Timeline};
use crate::stop::{Reason, Stop};

/// What a flow is: changes seldom.
pub(super) const FLOW: &str = "flow";
/// Where it stands: changes with every write.
pub(super) const POSITION: &str = "position";

/// Of a format that this version does not know, nothing is believed.
const FORMAT: &str = "pgonce-state 1";

/// What a flow is bound to, and how far its beginning is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FlowRecord {
    pub(super) flow: String,
    /// Made when the flow is bound; the position names it, so that the two are of one flow.
    pub(super) id: String,
    pub(super) system_identifier: String,
    pub(super) database: String,
    pub(super) slot: String,
    pub(super) binding: Binding,
    pub(super) streaming: bool,
    /// Whether transactions are told of when they are prepared.
    pub(super) sees_prepared: bool,
    /// The tables that are copied, or have been.
    pub(super) tables: Vec<TableRecord>,
}

/// A table that is copied, or has been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TableRecord {
    pub(super) oid: u32,
    /// About how large it is on the source.
    pub(super) bytes: u64,
    /// Rows of it may be there.
    pub(super) begun: bool,
    /// Where it was read, if all of it has been.
    pub(super) boundary: Option<Boundary>,
}

/// How far a flow has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PositionRecord {
    /// Of the [`FlowRecord`].
    pub(super) id: String,
    /// Grows with every write.
    pub(super) version: u64,
    pub(super) checkpoint: Option<Checkpoint>,
    pub(super) idle: IdlePoint,
    pub(super) window: Window,
}

#[derive(Serialize, Deserialize)]
struct FlowText {
    flow: String,
    id: String,
    system_identifier: String,
    database: String,
    slot: String,
    boundary: String,
    timeline: Timeline,
    start: String,
    published: String,
    streaming: bool,
    sees_prepared: bool,
    tables: Vec<TableText>,
}

#[derive(Serialize, Deserialize)]
struct TableText {
    oid: u32,
    bytes: u64,
    begun: bool,
    boundary: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct PositionText {
    id: String,
    version: u64,
    checkpoint: Option<CheckpointText>,
    idle: String,
    idle_timeline: Timeline,
    window: Window,
}

#[derive(Serialize, Deserialize)]
struct CheckpointText {
    timeline: Timeline,
    commit: String,
    end: String,
}

impl FlowRecord {
    pub(super) fn encode(&self) -> Vec<u8> {
        seal(&FlowText {
            flow: self.flow.clone(),
            id: self.id.clone(),
            system_identifier: self.system_identifier.clone(),
            database: self.database.clone(),
            slot: self.slot.clone(),
            boundary: self.binding.boundary.to_string(),
            timeline: self.binding.timeline,
            start: match self.binding.start {
                StartMode::Snapshot => "snapshot",
                StartMode::GoForward => "go-forward",
            }
            .to_owned(),
            published: self.binding.published.clone(),
            streaming: self.streaming,
            sees_prepared: self.sees_prepared,
            tables: self.tables.iter().map(TableRecord::text).collect(),
        })
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<FlowRecord, Unreadable> {
        let text: FlowText = unseal(bytes)?;
        let start = match text.start.as_str() {
            "snapshot" => StartMode::Snapshot,
            "go-forward" => StartMode::GoForward,
            _ => return Err(Unreadable::Content),
        };
        Ok(FlowRecord {
            flow: text.flow,
            id: text.id,
            system_identifier: text.system_identifier,
            database: text.database,
            slot: text.slot,
            binding: Binding {
                boundary: Boundary(lsn(&text.boundary)?),
                timeline: text.timeline,
                start,
                published: text.published,
            },
            streaming: text.streaming,
            sees_prepared: text.sees_prepared,
            tables: text.tables.into_iter().map(TableRecord::read).collect::<Result<_, _>>()?,
        })
    }

    /// Refuses a source that is not the one that the flow is bound to.
    pub(super) fn is_bound_to(&self, source: &SourceIdentity) -> Result<(), Stop> {
        let bound = [
            ("system identifier", &self.system_identifier, &source.system_identifier),
            ("database", &self.database, &source.database),
            ("slot", &self.slot, &source.slot),
        ];
        let differs = bound.iter().filter(|(_, stored, found)| stored != found);
        let what: Vec<String> =
            differs.map(|(name, stored, found)| format!("{name} is {found}, bound to {stored}")).collect();
        if what.is_empty() { Ok(()) } else { Err(Reason::SourceChanged { what: what.join("; ") }.into()) }
    }
}

impl TableRecord {
    fn text(&self) -> TableText {
        let boundary = self.boundary.map(|boundary| boundary.to_string());
        TableText { oid: self.oid, bytes: self.bytes, begun: self.begun, boundary }
    }

    fn read(text: TableText) -> Result<TableRecord, Unreadable> {
        let boundary = text.boundary.map(|boundary| Ok(Boundary(lsn(&boundary)?))).transpose()?;
        Ok(TableRecord { oid: text.oid, bytes: text.bytes, begun: text.begun, boundary })
    }

    pub(super) fn stored(&self) -> StoredTable {
        let piece = StoredPiece { number: 0, extent: Extent::Whole, bytes: self.bytes, boundary: self.boundary };
        StoredTable { oid: self.oid, together: false, pieces: vec![piece] }
    }
}

impl PositionRecord {
    pub(super) fn encode(&self) -> Vec<u8> {
        seal(&PositionText {
            id: self.id.clone(),
            version: self.version,
            checkpoint: self.checkpoint.map(|c| CheckpointText {
                timeline: c.timeline,
                commit: c.commit.to_string(),
                end: c.end.to_string(),
            }),
            idle: self.idle.boundary.to_string(),
            idle_timeline: self.idle.timeline,
            window: self.window.clone(),
        })
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<PositionRecord, Unreadable> {
        let text: PositionText = unseal(bytes)?;
        let checkpoint = text.checkpoint.map(|c| {
            let (commit, end) = (CommitLsn(lsn(&c.commit)?), EndLsn(lsn(&c.end)?));
            Ok(Checkpoint { timeline: c.timeline, commit, end })
        });
        Ok(PositionRecord {
            id: text.id,
            version: text.version,
            checkpoint: checkpoint.transpose()?,
            idle: IdlePoint { boundary: Boundary(lsn(&text.idle)?), timeline: text.idle_timeline },
            window: text.window,
        })
    }
}

/// Why a record is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("it is of a format that this version does not know")]
    Format,
    #[error("its checksum does not fit: it was damaged or edited")]
    Checksum,
    #[error("its content does not hold together")]
    Content,
}

pub(super) fn lsn(text: &str) -> Result<Lsn, Unreadable> {
    text.parse().map_err(|_| Unreadable::Content)
}

/// A line with format and checksum, and the content.
pub(super) fn seal<T: Serialize>(content: &T) -> Vec<u8> {
    // Structs of strings and numbers always have a JSON form.
    let body = serde_json::to_vec(content).unwrap_or_default();
    let mut bytes = format!("{FORMAT} {:032x}\n", xxh3_128(&body)).into_bytes();
    bytes.extend_from_slice(&body);
    bytes
}

pub(super) fn unseal<'b, T: Deserialize<'b>>(bytes: &'b [u8]) -> Result<T, Unreadable> {
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or(Unreadable::Format)?;
    let (head, body) = (&bytes[..end], &bytes[end + 1..]);
    let checksum = head.strip_prefix(FORMAT.as_bytes()).ok_or(Unreadable::Format)?;
    if checksum != format!(" {:032x}", xxh3_128(body)).as_bytes() {
        return Err(Unreadable::Checksum);
    }
    serde_json::from_slice(body).map_err(|_| Unreadable::Content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow() -> FlowRecord {
        FlowRecord {
            flow: "shop".into(),
            id: "1".into(),
            system_identifier: "7".into(),
            database: "d".into(),
            slot: "s".into(),
            binding: Binding {
                boundary: Boundary(Lsn(10)),
                timeline: 2,
                start: StartMode::GoForward,
                published: "member 1 # a \"b\"\n".into(),
            },
            streaming: true,
            sees_prepared: false,
            tables: vec![
                TableRecord { oid: 4, bytes: 8192, begun: true, boundary: Some(Boundary(Lsn(11))) },
                TableRecord { oid: 5, bytes: 0, begun: false, boundary: None },
            ],
        }
    }

    #[test]
    fn records_come_back_as_they_were() {
        assert_eq!(FlowRecord::decode(&flow().encode()), Ok(flow()));
        for checkpoint in [None, Some(Checkpoint { timeline: 1, commit: CommitLsn(Lsn(7)), end: EndLsn(Lsn(9 << 32)) })]
        {
            let idle = IdlePoint { boundary: Boundary(Lsn(3)), timeline: 1 };
            let position = PositionRecord { id: "1".into(), version: 4, checkpoint, idle, window: Window::default() };
            assert_eq!(PositionRecord::decode(&position.encode()), Ok(position));
        }
    }

    #[test]
    fn a4_no_damage_goes_unnoticed() {
        let sound = flow().encode();
        for at in 0..sound.len() {
            for flip in [1, 0x20, 0x80] {
                let mut damaged = sound.clone();
                damaged[at] ^= flip;
                assert!(FlowRecord::decode(&damaged).is_err(), "byte {at} flipped by {flip:#x}");
            }
            assert!(FlowRecord::decode(&sound[..at]).is_err(), "cut at {at}");
        }
    }
}
