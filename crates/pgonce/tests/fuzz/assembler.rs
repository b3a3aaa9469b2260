//! The assembler: nothing panics, memory stays within the input's size times a constant, and every transaction that
//! comes out is the one that went in, in its order.

use pgonce::assemble::{Assembler, SpillSettings};

use super::measured;
use assembled::{committed, transaction};
use model::{Model, Said};

#[path = "../recorded/assembled.rs"]
mod assembled;
#[path = "../recorded/model.rs"]
mod model;

/// Bytes of memory for each byte of input: a message of six bytes opens a transaction.
const FACTOR: usize = 256;

/// What an assembler may take for itself.
const BASE: usize = 1 << 20;

/// What each transaction may take that is in progress: its first change reserves room for more.
const OPEN: usize = 40 << 10;

/// The first byte says whether transactions go to disk; then come messages, each behind its length (`u16`,
/// little-endian).
pub fn assembler_input<'m>(spill: bool, messages: impl IntoIterator<Item = &'m [u8]>) -> Vec<u8> {
    let mut input = vec![if spill { 7 } else { 0 }];
    for message in messages {
        let message = &message[..message.len().min(usize::from(u16::MAX))];
        input.extend((message.len() as u16).to_le_bytes());
        input.extend(message);
    }
    input
}

pub fn assembler(input: &[u8]) {
    let Some((&head, mut rest)) = input.split_first() else { return };
    // Files are slow, so only few inputs have them.
    let memory = if head % 8 == 7 { 64 } else { 1 << 20 };
    let settings = SpillSettings { memory, ..SpillSettings::default() };
    let (mut assembler, _, mut kept) = measured(|| Assembler::new(settings));
    let mut model = Some(Model::new(4));
    let mut begun = 0;
    while let Some((length, behind)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(behind.len());
        let (message, behind) = behind.split_at(length);
        rest = behind;
        let (result, peak, more) = measured(|| assembler.push(message));
        begun += usize::from(matches!(message.first(), Some(b'S' | b'b')));
        let bound = BASE + FACTOR * input.len() + OPEN * begun;
        assert!(
            kept.saturating_add_unsigned(peak) <= bound as isize,
            "{peak} bytes more than {kept} for an input of {}",
            input.len()
        );
        kept += more;
        // No more comes behind an error: the session is over.
        let Ok(assembled) = result else { return };
        let (done, _, dropped) = measured(|| transaction(assembled));
        kept += dropped;
        let before = done.as_ref().map(committed);
        // What has been read once is read again, as by a sink that failed.
        assert_eq!(before, done.as_ref().map(committed));
        let ((), _, dropped) = measured(|| drop(done));
        kept += dropped;
        let Some(plain) = &mut model else { continue };
        match plain.push(message) {
            // PostgreSQL never sends it, and the assembler need not know.
            Err(_) => model = None,
            Ok(Said::Committed(expected)) => same(expected, before),
            Ok(_) => assert!(before.is_none(), "a transaction that has not committed came out"),
        }
    }
}

fn same(expected: model::Committed, found: Option<(model::Committed, bool)>) {
    let Some((found, whole)) = found else {
        assert!(expected.changes.is_empty(), "a transaction with changes was left out");
        return;
    };
    // What was truncated is named by the relations that are known, and here they may be anything.
    let comparable = |change: &Vec<u8>| if change[0] == b'T' { vec![b'T'] } else { change.clone() };
    let changes = |of: &model::Committed| of.changes.iter().map(comparable).collect::<Vec<_>>();
    let (expected_changes, found_changes) = (changes(&expected), changes(&found));
    // A change of a relation that was never described cannot be read, and nothing behind it.
    assert!(expected_changes.starts_with(&found_changes), "other changes, or in another order");
    assert!(!whole || expected_changes.len() == found_changes.len(), "changes are missing at the end");
    assert_eq!(
        (expected.xid, expected.commit, expected.end, expected.origin),
        (found.xid, found.commit, found.end, found.origin)
    );
}
