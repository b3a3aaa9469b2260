//! Whether the stream may go on from what is stored: the checks of every connect, without I/O.

use crate::catalog::SlotState;
use crate::destination::{IdlePoint, StoredFlow};
use crate::position::Boundary;
use crate::replication::TimelineHistory;
use crate::source::SourceIdentity;
use crate::stop::{Reason, Stop};

/// Holds the stored position against the source's timeline and WAL.
///
/// A position on the source's own timeline must lie within its WAL; one on an ancestor at or below the point where
/// the ancestor was left. Anything else means that the target holds transactions that this source never had.
pub(crate) fn timeline(stored: IdlePoint, identity: &SourceIdentity, history: &TimelineHistory) -> Result<(), Stop> {
    let applied = stored.boundary.0;
    if stored.timeline == identity.timeline {
        if applied > identity.flushed {
            let what = format!(
                "{applied} has been received from it, and its WAL ends at {}: it was restored to an earlier point",
                identity.flushed
            );
            return Err(Reason::SourceChanged { what }.into());
        }
        return Ok(());
    }
    match history.left_at(stored.timeline) {
        Some(switch) if applied <= switch => Ok(()),
        Some(switch) => {
            Err(Reason::TimelineDiverged { stored: stored.timeline, found: identity.timeline, switch, applied }.into())
        }
        None => Err(Reason::SourceChanged {
            what: format!(
                "its timeline {} does not descend from timeline {} of the stored position",
                identity.timeline, stored.timeline
            ),
        }
        .into()),
    }
}

/// Holds the slot against the stored position: nothing above what was stored may have been acknowledged.
pub(crate) fn slot(stored: &StoredFlow, slot: &str, state: Option<&SlotState>) -> Result<Boundary, Stop> {
    let position = stored.position().boundary;
    let Some(state) = state else {
        return Err(Reason::DataGap {
            what: format!("slot {slot} does not exist, and the flow has a stored position ({position})"),
        }
        .into());
    };
    let Some(confirmed) = state.confirmed_flush else { return Err(no_position(slot)) };
    if confirmed > position.0 {
        return Err(Reason::DataGap {
            what: format!(
                "slot {slot} stands at {confirmed}, and the target has stored {position} only: the slot was moved \
                or made \
                 anew, or the target went back in time"
            ),
        }
        .into());
    }
    Ok(Boundary(confirmed))
}

/// The slot was there before, and is not any more.
pub(crate) fn no_slot(slot: &str) -> Stop {
    Reason::DataGap { what: format!("slot {slot} no longer exists") }.into()
}

/// It cannot be told where the slot stands.
pub(crate) fn no_position(slot: &str) -> Stop {
    Reason::DataGap { what: format!("slot {slot} has no confirmed_flush_lsn") }.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::destination::{Binding, StartMode};
    use crate::position::{Checkpoint, CommitLsn, EndLsn, Lsn};

    fn identity(timeline: u32, flushed: u64) -> SourceIdentity {
        SourceIdentity {
            system_identifier: "7".into(),
            timeline,
            flushed: Lsn(flushed),
            database: "d".into(),
            slot: "s".into(),
            server_version: 150_000,
        }
    }

    fn at(timeline: u32, position: u64) -> IdlePoint {
        IdlePoint { boundary: Boundary(Lsn(position)), timeline }
    }

    fn stored(end: Option<u64>, idle: u64) -> StoredFlow {
        StoredFlow {
            binding: Binding {
                boundary: Boundary(Lsn(10)),
                timeline: 1,
                start: StartMode::Snapshot,
                published: String::new(),
            },
            streaming: true,
            tables: Vec::new(),
            checkpoint: end.map(|end| Checkpoint {
                timeline: 1,
                commit: CommitLsn(Lsn(end - 5)),
                end: EndLsn(Lsn(end)),
            }),
            idle: at(1, idle),
        }
    }

    fn standing(confirmed: u64) -> SlotState {
        SlotState { confirmed_flush: Some(Lsn(confirmed)), ..SlotState::default() }
    }

    fn code<T: std::fmt::Debug>(checked: Result<T, Stop>) -> &'static str {
        checked.unwrap_err().code()
    }

    #[test]
    fn a_position_must_lie_on_the_sources_history() {
        let history = TimelineHistory::parse("1\t0/64\tpromoted\n2\t0/C8\tpromoted").unwrap();
        assert_eq!(timeline(at(3, 250), &identity(3, 250), &history), Ok(()));
        assert_eq!(code(timeline(at(3, 251), &identity(3, 250), &history)), "source_changed");
        assert_eq!(timeline(at(1, 100), &identity(3, 250), &history), Ok(()));
        assert_eq!(code(timeline(at(1, 101), &identity(3, 250), &history)), "timeline_diverged");
        assert_eq!(timeline(at(2, 200), &identity(3, 250), &history), Ok(()));
        assert_eq!(code(timeline(at(4, 1), &identity(3, 250), &history)), "source_changed");
    }

    #[test]
    fn a_slot_above_what_is_stored_is_a_gap() {
        assert_eq!(slot(&stored(Some(100), 50), "s", Some(&standing(100))), Ok(Boundary(Lsn(100))));
        assert_eq!(slot(&stored(Some(100), 120), "s", Some(&standing(120))), Ok(Boundary(Lsn(120))));
        assert_eq!(slot(&stored(None, 50), "s", Some(&standing(7))), Ok(Boundary(Lsn(7))));
        for (flow, state) in [
            (stored(Some(100), 50), Some(standing(101))),
            (stored(None, 50), Some(standing(51))),
            (stored(Some(100), 50), Some(SlotState::default())),
            (stored(Some(100), 50), None),
        ] {
            assert_eq!(code(slot(&flow, "s", state.as_ref())), "data_gap", "{flow:?} {state:?}");
        }
    }
}
