//! What happens to partitions that the stream does not tell: attached with rows, detached, dropped, truncated alone.
//!
//! None of it leaves a change of a published table out of the stream, so none of it stops a flow (ADR 7). All of it
//! makes the target differ, so it is noted, in lines of the flow's fingerprint beside those of its partitions, and told
//! at every start until somebody says that it is mended. No I/O here.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::fmt;

use crate::position::Lsn;

/// A partition of a published tree, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Partition {
    pub(crate) oid: u32,
    /// The root of its tree.
    pub(crate) root: u32,
    /// Published for itself, and not as its root.
    pub(crate) own: bool,
    /// Which attachments it is there by: their transactions.
    pub(crate) attached: String,
    /// `relfilenode`; 0 for one that holds no rows itself.
    pub(crate) storage: u32,
    /// The transaction that changed its row of `pg_class` last.
    pub(crate) changed_by: u32,
    /// The last command of the transaction that attached it, of those that attached it or what it is below.
    pub(crate) command: i64,
    /// `partition s.p of s.root`, names quoted where they must be.
    pub(crate) label: String,
}

impl Partition {
    /// Its line of the fingerprint.
    pub(crate) fn line(&self) -> String {
        let Partition { oid, root, attached, storage, label, .. } = self;
        match self.own {
            true => format!("leaf {oid} {attached} {root} # {label}"),
            false => format!("partition {oid} {attached} {root} {storage} # {label}"),
        }
    }

    fn parse(line: &str) -> Option<Partition> {
        let (key, label) = line.split_once(" # ")?;
        let mut words = key.split(' ');
        let own = match words.next()? {
            "leaf" => true,
            "partition" => false,
            _ => return None,
        };
        let (oid, attached) = (words.next()?.parse().ok()?, words.next()?.to_owned());
        // The first version knew neither root nor storage.
        let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let (root, storage) = (number(), number());
        Some(Partition { oid, root, own, attached, storage, label: label.to_owned(), ..Partition::default() })
    }
}

/// What may have come over a partition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Attached,
    Detached,
    Dropped,
    Rewritten,
    /// Detached, published for itself before, and said to be mended: not told, but not forgotten.
    Settled,
}

impl Kind {
    const ALL: [(Kind, &str); 5] = [
        (Kind::Attached, "attached"),
        (Kind::Detached, "detached"),
        (Kind::Dropped, "dropped"),
        (Kind::Rewritten, "rewritten"),
        (Kind::Settled, "settled"),
    ];

    fn of(word: &str) -> Option<Kind> {
        Kind::ALL.iter().find(|(_, name)| *name == word).map(|(kind, _)| *kind)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Kind::ALL.iter().find(|(kind, _)| kind == self).map_or("", |(_, name)| name))
    }
}

/// Something to be mended.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Note {
    root: u32,
    kind: Kind,
    oid: u32,
    label: String,
}

impl Note {
    fn line(&self) -> String {
        format!("{} {} {} # {}", self.kind, self.oid, self.root, self.label)
    }

    fn parse(line: &str) -> Option<Note> {
        let (key, label) = line.split_once(" # ")?;
        let mut words = key.split(' ');
        let kind = Kind::of(words.next()?)?;
        let (oid, root) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Note { root, kind, oid, label: label.to_owned() })
    }

    /// The names in a label: the partition's and the root's.
    fn names(&self) -> (&str, &str) {
        let label = self.label.strip_prefix("partition ").unwrap_or(&self.label);
        // Inside quotes, ` of ` is part of a name.
        let outside = |at: &usize| label[..*at].matches('"').count().is_multiple_of(2);
        let split = label.match_indices(" of ").map(|(at, _)| at).find(outside);
        split.map_or((label, label), |at| (&label[..at], &label[at + " of ".len()..]))
    }
}

/// Whether a line of a fingerprint is about a partition: it is this module's, and not compared as others are.
pub(crate) fn is_line(line: &str) -> bool {
    let word = line.split(' ').next().unwrap_or_default();
    matches!(word, "partition" | "leaf") || Kind::of(word).is_some()
}

/// Tables that were published for themselves, as partitions, when `text` (a fingerprint) was written. One that is no
/// longer there, and exists, was detached.
pub(crate) fn leaves_of(text: &str) -> BTreeSet<u32> {
    let leaves = text.lines().filter_map(Partition::parse).filter(|p| p.own).map(|p| p.oid);
    let notes = text.lines().filter_map(Note::parse);
    leaves.chain(notes.filter(|n| matches!(n.kind, Kind::Detached | Kind::Settled)).map(|n| n.oid)).collect()
}

/// What is to be mended, as a stored fingerprint has it, in words: a text for each tree and each kind of thing.
pub fn warnings(text: &str) -> Vec<String> {
    told(&text.lines().filter_map(Note::parse).collect())
}

/// Names that are listed in one text.
const NAMES_MAX: usize = 5;

fn told(notes: &BTreeSet<Note>) -> Vec<String> {
    let mut groups: BTreeMap<(u32, Kind), Vec<&Note>> = BTreeMap::new();
    for note in notes.iter().filter(|note| note.kind != Kind::Settled) {
        groups.entry((note.root, note.kind)).or_default().push(note);
    }
    groups.into_iter().map(|((_, kind), notes)| tell(kind, &notes)).collect()
}

fn tell(kind: Kind, notes: &[&Note]) -> String {
    let root = notes.first().map_or("", |note| note.names().1);
    let mut names: Vec<&str> = notes.iter().take(NAMES_MAX).map(|note| note.names().0).collect();
    let more = notes.len().saturating_sub(NAMES_MAX);
    let more_text = format!("{more} more");
    if more > 0 {
        names.push(&more_text);
    }
    let (one, names) = (notes.len() == 1, names.join(", "));
    let (subject, was) =
        if one { (format!("partition {names}"), "was") } else { (format!("partitions {names}"), "were") };
    let what = match kind {
        Kind::Attached => format!(
            "{subject} {was} attached to {root} and may have held rows: rows from before are not in the stream, and \
             the target lacks them. To copy {root} anew: pgonce run --reseed {root}; or copy these rows by hand"
        ),
        Kind::Detached => format!(
            "{subject} {was} detached from {root}: its rows stay on the target, and later changes to it are not \
             carried. Do the same there (ALTER TABLE ... DETACH PARTITION ..., or DELETE its rows)"
        ),
        Kind::Dropped => format!(
            "{subject} of {root} {was} dropped, which the stream does not tell: its rows stay on the target. Do the \
             same there (DROP TABLE of the partition, or DELETE its rows)"
        ),
        Kind::Rewritten => format!(
            "{subject} of {root} {was} truncated, or rewritten (VACUUM FULL, CLUSTER, some ALTER TABLE): which of them \
             is not known, and a TRUNCATE of a partition is not sent where the root is published. Compare: pgonce \
             verify --table {root}. If it was truncated, DELETE its rows on the target, or: pgonce run --reseed {root}"
        ),
        Kind::Settled => String::new(),
    };
    format!("{what}. When that is mended: pgonce run --mended {root}")
}

/// `text` (a fingerprint) without what it has noted of the table or partition `name`, whose root it may be. `None`:
/// nothing is noted of it.
pub fn mended(text: &str, name: &str) -> Option<String> {
    let mut found = false;
    let published = |oid: u32| text.lines().any(|line| line.starts_with(&format!("publishes {oid} # ")));
    let mut lines = Vec::new();
    for line in text.lines() {
        let note = Note::parse(line).filter(|note| note.kind != Kind::Settled);
        match note.filter(|note| note.names().0 == name || note.names().1 == name) {
            None => lines.push(line.to_owned()),
            Some(note) => {
                found = true;
                if note.kind == Kind::Detached && published(note.oid) {
                    lines.push(Note { kind: Kind::Settled, ..note }.line());
                }
            }
        }
    }
    found.then(|| lines.iter().map(|line| format!("{line}\n")).collect())
}

/// The lines of `text` (a fingerprint) about partitions, with those of the tables `taken`, which are copied anew, as
/// they are `now`: what was noted of them is mended by that.
pub(crate) fn taken_anew(text: &str, now: &[Partition], taken: &HashSet<u32>) -> String {
    let concerned = |oid: u32, root: u32| taken.contains(&oid) || taken.contains(&root);
    let kept =
        text.lines().filter(|line| is_line(line)).filter(|line| match (Partition::parse(line), Note::parse(line)) {
            (Some(partition), _) => !concerned(partition.oid, partition.root),
            (None, Some(note)) => !concerned(note.oid, note.root),
            (None, None) => true,
        });
    let fresh = now.iter().filter(|p| if p.own { taken.contains(&p.oid) } else { taken.contains(&p.root) });
    let lines = kept.map(str::to_owned).chain(fresh.map(|p| p.line().replace('\n', " ")));
    lines.map(|line| line + "\n").collect()
}

/// What has to be found out before a look can be judged.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    /// Partitions that are new: did they hold rows before?
    pub(crate) new: Vec<Partition>,
    /// Partitions that are gone: do they exist?
    pub(crate) gone: Vec<u32>,
    /// Something has other storage than it had: how far has the source written?
    pub(crate) storage: bool,
    /// Nothing is to be asked, and yet there is something to take note of.
    complete: bool,
}

impl Questions {
    pub(crate) fn nothing_new(&self) -> bool {
        self.new.is_empty() && self.gone.is_empty() && !self.storage && !self.complete
    }
}

/// The answers.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// New partitions that may have held rows before.
    pub(crate) filled: BTreeSet<u32>,
    /// New partitions that could not be looked into now: they stay new.
    pub(crate) unknown: BTreeSet<u32>,
    /// Tables that exist.
    pub(crate) existing: BTreeSet<u32>,
    /// Everything that the look has seen was committed before.
    pub(crate) point: Lsn,
}

/// A partition whose storage is another one. Judged when the stream has come to `point`: a TRUNCATE of the root, which
/// is sent, does it too.
#[derive(Debug)]
struct Pending {
    oid: u32,
    storage: u32,
    changed_by: u32,
    point: Lsn,
}

/// So many TRUNCATEs are remembered until the partitions have been looked at.
const TRUNCATES_MAX: usize = 10_000;

/// What is known of the partitions of a flow.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Lines of the fingerprint that are not ours.
    others: Vec<String>,
    published: BTreeSet<u32>,
    known: BTreeMap<u32, Partition>,
    notes: BTreeSet<Note>,
    pending: Vec<Pending>,
    truncated: VecDeque<(u32, Vec<u32>)>,
    received: Lsn,
    /// Something to store.
    changed: bool,
    /// Notes to tell.
    news: bool,
}

impl Watch {
    /// Of the fingerprint that the flow is bound to.
    pub(crate) fn new(bound: &str) -> Watch {
        let (ours, others): (Vec<&str>, Vec<&str>) = bound.lines().partition(|line| is_line(line));
        let published = |line: &&str| line.strip_prefix("publishes ")?.split(' ').next()?.parse().ok();
        let notes: BTreeSet<Note> = ours.iter().filter_map(|line| Note::parse(line)).collect();
        Watch {
            published: others.iter().filter_map(published).collect(),
            others: others.into_iter().map(str::to_owned).collect(),
            known: ours.iter().filter_map(|line| Partition::parse(line)).map(|p| (p.oid, p)).collect(),
            news: !notes.is_empty(),
            notes,
            ..Watch::default()
        }
    }

    /// What has to be found out about `now`. `roots`: the tables that are published.
    pub(crate) fn questions(&self, now: &[Partition], roots: &BTreeSet<u32>) -> Questions {
        let here: BTreeSet<u32> = now.iter().map(|p| p.oid).collect();
        let mut questions = Questions::default();
        for partition in now.iter().filter(|p| self.concerns(p)) {
            match self.known.get(&partition.oid) {
                None if partition.own => questions.complete = true,
                None => questions.new.push(partition.clone()),
                Some(known) => {
                    questions.complete |= known.attached != partition.attached || known.root != partition.root;
                    questions.storage |= self.is_rewritten(known, partition);
                }
            }
        }
        let gone = self.known.values().filter(|p| !here.contains(&p.oid) && (p.own || roots.contains(&p.root)));
        questions.gone = gone.map(|p| p.oid).collect();
        questions
    }

    /// A partition that is published for itself and came after the flow began is a table that was added.
    fn concerns(&self, partition: &Partition) -> bool {
        !partition.own || self.published.contains(&partition.oid)
    }

    fn is_rewritten(&self, known: &Partition, now: &Partition) -> bool {
        let pending = || self.pending.iter().rev().find(|p| p.oid == now.oid).map(|p| p.storage);
        now.storage != 0 && known.storage != 0 && pending().unwrap_or(known.storage) != now.storage
    }

    /// Takes note of how things are. `roots`: the tables that are published.
    pub(crate) fn look(&mut self, now: &[Partition], roots: &BTreeSet<u32>, answers: &Answers) {
        let here: BTreeSet<u32> = now.iter().map(|p| p.oid).collect();
        for partition in now {
            if !self.concerns(partition) || answers.unknown.contains(&partition.oid) {
                continue;
            }
            let Some(known) = self.known.get(&partition.oid).cloned() else {
                let was_here = self.forget_gone(partition.oid);
                if was_here || answers.filled.contains(&partition.oid) {
                    self.note(Kind::Attached, partition);
                }
                self.learn(partition.clone());
                continue;
            };
            if known.attached != partition.attached && known.own == partition.own {
                // Detached, written to or not, and attached again.
                self.note(Kind::Attached, partition);
                self.learn(partition.clone());
            } else if self.is_rewritten(&known, partition) {
                let Partition { oid, storage, changed_by, .. } = *partition;
                self.pending.push(Pending { oid, storage, changed_by, point: answers.point });
            } else if known.root != partition.root {
                self.learn(partition.clone());
            }
        }
        let gone: Vec<Partition> = self.known.values().filter(|p| !here.contains(&p.oid)).cloned().collect();
        for partition in gone.iter().filter(|p| p.own || roots.contains(&p.root)) {
            self.known.remove(&partition.oid);
            self.pending.retain(|p| p.oid != partition.oid);
            self.notes.retain(|n| n.oid != partition.oid || n.kind != Kind::Rewritten);
            self.changed = true;
            match (answers.existing.contains(&partition.oid), partition.own) {
                // Still published, as a table that is no partition.
                (_, true) if roots.contains(&partition.oid) => {}
                (true, _) => self.note(Kind::Detached, partition),
                (false, false) => self.note(Kind::Dropped, partition),
                // A published table that no longer exists: told as such.
                (false, true) => {}
            }
        }
        self.judge();
    }

    fn learn(&mut self, partition: Partition) {
        self.pending.retain(|p| p.oid != partition.oid);
        self.known.insert(partition.oid, partition);
        self.changed = true;
    }

    fn note(&mut self, kind: Kind, partition: &Partition) {
        let Partition { oid, root, ref label, .. } = *partition;
        let new = self.notes.insert(Note { root, kind, oid, label: label.clone() });
        self.changed |= new;
        self.news |= new;
    }

    /// Whether the partition is known to have been taken out, which is then no longer so.
    fn forget_gone(&mut self, oid: u32) -> bool {
        let before = self.notes.len();
        self.notes.retain(|n| n.oid != oid || !matches!(n.kind, Kind::Detached | Kind::Settled));
        self.notes.len() < before
    }

    /// The stream has brought everything before `point`.
    pub(crate) fn received(&mut self, point: Lsn) {
        if point > self.received {
            self.received = point;
            self.judge();
        }
    }

    /// The stream has brought a TRUNCATE of published tables.
    pub(crate) fn truncated(&mut self, xid: u32, tables: &[u32]) {
        if self.known.is_empty() {
            return;
        }
        self.truncated.push_back((xid, tables.to_vec()));
        if self.truncated.len() > TRUNCATES_MAX {
            self.truncated.pop_front();
        }
    }

    /// Judges what the stream has caught up with.
    fn judge(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let pending = std::mem::take(&mut self.pending);
        for pending in pending {
            if pending.point > self.received {
                self.pending.push(pending);
                continue;
            }
            let Some(known) = self.known.get_mut(&pending.oid) else { continue };
            known.storage = pending.storage;
            let root = known.root;
            let known = known.clone();
            self.changed = true;
            let sent = |(xid, tables): &(u32, Vec<u32>)| *xid == pending.changed_by && tables.contains(&root);
            if !self.truncated.iter().any(sent) {
                self.note(Kind::Rewritten, &known);
            }
        }
    }

    /// The fingerprint that the flow should be bound to from now on, if it is another one.
    pub(crate) fn take_memory(&mut self) -> Option<String> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let ours = self.known.values().map(Partition::line).chain(self.notes.iter().map(Note::line));
        let lines = self.others.iter().cloned().chain(ours.map(|line| line.replace('\n', " ")));
        Some(lines.map(|line| format!("{line}\n")).collect())
    }

    /// What is to be mended, in words, if that is news.
    pub(crate) fn take_news(&mut self) -> Vec<String> {
        if std::mem::take(&mut self.news) { told(&self.notes) } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests;
