//! The acknowledgement rule against a plain model, under arbitrary interleavings.

use pgonce::frontier::Frontier;
use pgonce::position::{Boundary, CommitLsn, EndLsn, Lsn};
use proptest::prelude::*;

/// What happens next. Distances become positions while the run goes on, so that every run is one that a server could
/// produce.
#[derive(Clone, Debug)]
enum Step {
    /// A transaction arrives: its commit record starts `gap` bytes behind the last record (0: exactly there).
    Receive { gap: u64, length: u64 },
    /// A message outside any transaction arrives, whose record lies `gap` bytes behind the last one.
    Message { gap: u64, length: u64 },
    /// The sink is given up to so many of the transactions that wait.
    HandOver(usize),
    /// The sink has a message: the next one, if its turn has come; or, a defect of what drives it, one before its turn.
    Deliver { early: bool },
    /// The sink claims durability: of what it was given up to an index, or of a number out of the air.
    Claim(Claim),
    /// A keepalive reports a position `gap` bytes behind the last record.
    Report { gap: u64, open: bool },
    /// The sink stores the idle candidate, if there is one; or, being mistaken, another number.
    Persist { mistaken: Option<u64> },
    /// The source end proves completeness up to somewhere around the last record.
    Attest { behind: bool, gap: u64 },
    /// A transaction is prepared, `gap` bytes behind the last record.
    Prepare { gap: u64 },
    /// One that is prepared is settled.
    Settle { which: usize, commits: bool },
    /// The connection is lost; the next session starts from what is stored.
    Reconnect,
}

#[derive(Clone, Debug)]
enum Claim {
    Given(usize),
    Number(u64),
    Everything,
}

fn step() -> impl Strategy<Value = Step> {
    let claim = prop_oneof![
        4 => (0usize..6).prop_map(Claim::Given),
        1 => (0u64..200).prop_map(Claim::Number),
        1 => Just(Claim::Everything),
    ];
    prop_oneof![
        4 => (0u64..3, 1u64..5).prop_map(|(gap, length)| Step::Receive { gap, length }),
        2 => (0u64..3, 1u64..5).prop_map(|(gap, length)| Step::Message { gap, length }),
        3 => (0usize..4).prop_map(Step::HandOver),
        3 => prop::bool::weighted(0.2).prop_map(|early| Step::Deliver { early }),
        3 => claim.prop_map(Step::Claim),
        3 => (0u64..4, prop::bool::weighted(0.3)).prop_map(|(gap, open)| Step::Report { gap, open }),
        2 => prop::option::weighted(0.2, 0u64..300).prop_map(|mistaken| Step::Persist { mistaken }),
        3 => (any::<bool>(), 0u64..5).prop_map(|(behind, gap)| Step::Attest { behind, gap }),
        2 => (0u64..3).prop_map(|gap| Step::Prepare { gap }),
        2 => (0usize..4, prop::bool::weighted(0.8)).prop_map(|(which, commits)| Step::Settle { which, commits }),
        1 => Just(Step::Reconnect),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    commit: u64,
    end: u64,
    /// A message: `commit` is where its record starts.
    message: bool,
    /// Given to the sink in this session.
    handed_over: bool,
    /// Of a message: delivered, at some time.
    durable: bool,
}

/// A prepared transaction that was not rolled back.
#[derive(Clone, Copy, Debug)]
struct Prepared {
    at: u64,
    /// Which of the transactions that were sent it became.
    settled: Option<usize>,
    /// Whether this session has been told.
    held: bool,
}

/// The model: every transaction that was ever sent, and what is true of it.
#[derive(Debug, Default)]
struct World {
    sent: Vec<Sent>,
    prepared: Vec<Prepared>,
    /// How many of `sent` this session has delivered.
    received: usize,
    /// Where the next record can start.
    wal: u64,
    reported: u64,
    persisted: u64,
    attested: u64,
    acknowledged: u64,
    /// Where the session began.
    resent_from: u64,
    /// What was stored when it began.
    stored_before: u64,
}

const START: u64 = 10;

fn boundary(at: u64) -> Boundary {
    Boundary(Lsn(at))
}

impl World {
    fn durable_end(&self) -> u64 {
        self.sent.iter().take_while(|t| t.durable).filter(|t| !t.message).map(|t| t.end).last().unwrap_or(0)
    }

    fn durable_commit(&self) -> u64 {
        self.sent.iter().take_while(|t| t.durable).filter(|t| !t.message).map(|t| t.commit).last().unwrap_or(0)
    }

    fn stored(&self) -> u64 {
        self.durable_end().max(self.persisted).max(START)
    }

    fn frontier(&self) -> Frontier {
        let durable = self.durable_end();
        Frontier::new((durable > 0).then_some(EndLsn(Lsn(durable))), Some(boundary(self.persisted.max(START))))
    }

    /// Transactions at or behind an acknowledged position are sent again; those before it are gone for ever.
    fn acknowledge(&mut self, frontier: &mut Frontier) {
        let Some(position) = frontier.acknowledge() else { return };
        let position = position.position().0.0;
        for (index, t) in self.sent.iter().enumerate() {
            assert!(t.commit >= position || t.durable, "acknowledged {position} over {t:?}");
            let compared = index < self.received && t.handed_over;
            assert!(t.commit >= position || compared, "acknowledged {position} over {t:?}, not sent again yet");
        }
        for p in &self.prepared {
            let safe = p.settled.is_some_and(|index| self.sent[index].end <= self.stored());
            assert!(safe || position <= p.at, "acknowledged {position} over {p:?}, which will be sent no more");
        }
        assert!(position <= self.attested, "acknowledged {position}, attested {}", self.attested);
        assert!(
            position <= self.stored(),
            "acknowledged {position}, stored {}: a gap at the next connect",
            self.stored()
        );
        self.acknowledged = self.acknowledged.max(position);
    }

    fn deliver(&mut self, frontier: &mut Frontier) {
        let (index, t) = (self.received, self.sent[self.received]);
        self.prepares_below(t.commit, frontier);
        self.received += 1;
        match t.message {
            false => frontier.received(CommitLsn(Lsn(t.commit)), EndLsn(Lsn(t.end))).unwrap(),
            // Delivered before what is stored behind it: it does not reach the frontier.
            true if t.end <= self.stored_before => self.sent[index].handed_over = true,
            true => frontier.received_message(Lsn(t.end)).unwrap(),
        }
        if let Some(p) = self.prepared.iter().find(|p| p.settled == Some(index) && p.held) {
            frontier.release(boundary(p.at), Some(EndLsn(Lsn(t.end))));
        }
    }

    fn send(&mut self, gap: u64, length: u64, message: bool) {
        let commit = self.wal + gap;
        self.wal = commit + length;
        self.sent.push(Sent { commit, end: self.wal, message, handed_over: false, durable: false });
    }

    /// The first that the sink has not been given.
    fn next(&self) -> usize {
        self.sent[..self.received].iter().take_while(|t| t.handed_over).count()
    }

    fn deliver_message(&mut self, index: usize, frontier: &mut Frontier) {
        (self.sent[index].handed_over, self.sent[index].durable) = (true, true);
        frontier.delivered(Lsn(self.sent[index].end));
    }

    /// The session is told of what was prepared up to there. What was acknowledged away is not sent again.
    fn prepares_below(&mut self, point: u64, frontier: &mut Frontier) {
        let from = self.resent_from;
        for p in self.prepared.iter_mut().filter(|p| !p.held && p.at < point && p.at >= from) {
            p.held = true;
            frontier.hold(boundary(p.at));
        }
    }

    fn step(&mut self, step: &Step, frontier: &mut Frontier) {
        // After a reconnect the server first sends again what was not acknowledged.
        let caught_up = self.received == self.sent.len();
        match *step {
            Step::Receive { gap, length } => {
                if caught_up {
                    self.send(gap, length, false);
                }
                self.deliver(frontier);
            }
            Step::Message { gap, length } => {
                if caught_up {
                    self.send(gap, length, true);
                }
                self.deliver(frontier);
            }
            Step::Deliver { early: false } => {
                let next = self.next();
                if next < self.received && self.sent[next].message {
                    self.deliver_message(next, frontier);
                }
            }
            Step::Deliver { early: true } => {
                let next = self.next();
                if let Some(t) = self.sent[..self.received].iter().skip(next + 1).find(|t| t.message) {
                    frontier.delivered(Lsn(t.end));
                }
            }
            Step::HandOver(count) => {
                let next = self.next();
                let waiting = self.sent[next..self.received].iter_mut().take_while(|t| !t.message).take(count);
                let last = waiting.map(|t| {
                    t.handed_over = true;
                    t.commit
                });
                if let Some(commit) = last.last() {
                    frontier.handed_over(CommitLsn(Lsn(commit)));
                }
            }
            Step::Claim(ref claim) => {
                let given = |index: usize| {
                    self.sent.iter().filter(|t| t.handed_over && !t.message).nth(index).map_or(0, |t| t.end)
                };
                let number = match *claim {
                    Claim::Given(index) => given(index),
                    Claim::Number(number) => number,
                    Claim::Everything => u64::MAX,
                };
                frontier.made_durable(EndLsn(Lsn(number)));
                // What a sink says of a transaction that it was given is believed; of others it cannot know.
                for t in self.sent.iter_mut().filter(|t| t.handed_over && !t.message && t.end <= number) {
                    t.durable = true;
                }
            }
            Step::Report { gap, open } if caught_up => {
                self.wal += gap;
                self.prepares_below(self.wal, frontier);
                let open = open || self.prepared.iter().any(|p| p.settled.is_none());
                if !open {
                    self.reported = self.reported.max(self.wal);
                }
                frontier.reported(boundary(self.wal), open);
            }
            Step::Report { .. } => {}
            Step::Persist { mistaken: None } => {
                if let Some(candidate) = frontier.idle_candidate() {
                    let at = candidate.0.0;
                    assert!(self.sent[..self.received].iter().all(|t| t.durable), "idle over undurable work");
                    assert!(at <= self.reported && at <= self.attested, "idle at {at}: {self:?}");
                    frontier.persisted(candidate);
                    self.persisted = self.persisted.max(at);
                }
            }
            // A sink that says it has stored what nobody reported is not followed.
            Step::Persist { mistaken: Some(number) } => {
                if number > self.reported {
                    frontier.persisted(boundary(number));
                }
            }
            Step::Attest { behind, gap } => {
                let at = if behind { self.wal.saturating_sub(gap) } else { self.wal + gap };
                self.attested = self.attested.max(at);
                frontier.attested(boundary(at));
            }
            Step::Prepare { gap } if caught_up => {
                let at = self.wal + gap;
                self.wal = at + 1;
                self.prepared.push(Prepared { at, settled: None, held: false });
                self.prepares_below(self.wal, frontier);
            }
            Step::Settle { which, commits } if caught_up => {
                self.prepares_below(self.wal, frontier);
                let open: Vec<usize> =
                    (0..self.prepared.len()).filter(|&index| self.prepared[index].settled.is_none()).collect();
                let Some(&index) = open.get(which % open.len().max(1)) else { return };
                if commits {
                    self.prepared[index].settled = Some(self.sent.len());
                    self.send(0, 2, false);
                    self.deliver(frontier);
                } else {
                    frontier.release(boundary(self.prepared.remove(index).at), None);
                }
            }
            Step::Prepare { .. } | Step::Settle { .. } => {}
            Step::Reconnect => {
                let resent_from = self.acknowledged.max(START);
                self.resent_from = resent_from;
                self.prepared.iter_mut().for_each(|p| p.held = false);
                self.received = self.sent.partition_point(|t| t.commit < resent_from);
                for (index, t) in self.sent.iter_mut().enumerate() {
                    t.handed_over = index < self.received;
                }
                (self.reported, self.attested) = (0, 0);
                self.stored_before = self.durable_commit().max(self.persisted).max(START);
                // What was delivered and has nothing stored behind it comes again.
                let before = self.stored_before;
                let again = |t: &&mut Sent| t.message && t.end > before && t.commit >= resent_from;
                self.sent.iter_mut().filter(again).for_each(|t| t.durable = false);
                *frontier = self.frontier();
            }
        }
    }
}

fn run(steps: &[Step]) {
    let mut world = World { wal: START, ..World::default() };
    let mut frontier = world.frontier();
    for step in steps {
        world.step(step, &mut frontier);
        world.acknowledge(&mut frontier);
    }
    // Never stuck: once everything is received, given, durable, reported, attested and stored, all of it is
    // acknowledged.
    while world.received < world.sent.len() {
        world.deliver(&mut frontier);
    }
    for p in world.prepared.iter().filter(|p| p.settled.is_none() && p.held) {
        frontier.release(boundary(p.at), None);
    }
    world.prepared.retain(|p| p.settled.is_some());
    world.attested = u64::MAX;
    frontier.attested(boundary(u64::MAX));
    for index in world.next()..world.sent.len() {
        let t = &mut world.sent[index];
        (t.handed_over, t.durable) = (true, true);
        match t.message {
            true => frontier.delivered(Lsn(t.end)),
            false => frontier.handed_over(CommitLsn(Lsn(t.commit))),
        }
    }
    for t in &mut world.sent {
        t.durable = true;
    }
    frontier.made_durable(EndLsn(Lsn(u64::MAX)));
    (world.reported, world.persisted) = (world.wal, world.wal);
    frontier.reported(boundary(world.wal), false);
    if let Some(candidate) = frontier.idle_candidate() {
        frontier.persisted(candidate);
    }
    world.acknowledge(&mut frontier);
    assert!(frontier.settled() && frontier.drained(boundary(world.wal)));
    assert_eq!(world.acknowledged, world.wal, "stuck below what is durable");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]
    #[test]
    fn law_1_never_above_what_is_durable_and_never_stuck(steps in prop::collection::vec(step(), 0..60)) {
        run(&steps);
    }
}

fn transaction(frontier: &mut Frontier, commit: u64, end: u64) {
    frontier.received(CommitLsn(Lsn(commit)), EndLsn(Lsn(end))).unwrap();
}

#[test]
fn a10_the_acknowledgement_does_not_follow_a_sinks_number() {
    let mut frontier = Frontier::new(None, Some(boundary(10)));
    frontier.attested(boundary(1000));
    transaction(&mut frontier, 20, 25);
    transaction(&mut frontier, 30, 35);
    frontier.handed_over(CommitLsn(Lsn(20)));
    frontier.made_durable(EndLsn(Lsn(999)));
    assert_eq!(frontier.acknowledge().map(|d| d.position()), Some(boundary(25)));
    frontier.persisted(boundary(900));
    assert_eq!(frontier.acknowledge(), None);
}

#[test]
fn a2_a_keepalive_over_undurable_work_moves_nothing() {
    let mut frontier = Frontier::new(None, Some(boundary(10)));
    frontier.attested(boundary(1000));
    frontier.reported(boundary(10), false);
    assert_eq!(frontier.acknowledge().map(|d| d.position()), Some(boundary(10)));
    transaction(&mut frontier, 20, 25);
    frontier.reported(boundary(500), false);
    assert_eq!((frontier.idle_candidate(), frontier.acknowledge()), (None, None));
}

#[test]
fn what_was_stored_is_acknowledged_when_it_has_come_again_and_was_compared() {
    let mut frontier = Frontier::new(Some(EndLsn(Lsn(25))), Some(boundary(10)));
    frontier.attested(boundary(1000));
    assert_eq!(frontier.acknowledge(), None, "the source has not shown what it has below");
    transaction(&mut frontier, 20, 25);
    frontier.reported(boundary(30), true);
    assert_eq!(frontier.acknowledge(), None, "shown and not compared");
    frontier.handed_over(CommitLsn(Lsn(20)));
    frontier.made_durable(EndLsn(Lsn(25)));
    assert!(!frontier.has_passed(), "what is being sent may commit below");
    assert_eq!(frontier.acknowledge(), None);
    frontier.sent(boundary(30));
    assert_eq!(frontier.acknowledge().map(|d| d.position()), Some(boundary(25)));
}

#[test]
fn drained_is_said_only_of_what_is_durable_and_passed() {
    let mut frontier = Frontier::new(None, Some(boundary(10)));
    assert!(!frontier.drained(boundary(30)));
    transaction(&mut frontier, 20, 25);
    frontier.reported(boundary(30), false);
    assert!(!frontier.drained(boundary(30)), "a transaction below is not durable");
    frontier.handed_over(CommitLsn(Lsn(20)));
    frontier.made_durable(EndLsn(Lsn(25)));
    frontier.attested(boundary(29));
    assert!(!frontier.drained(boundary(30)), "something may have been left out below");
    frontier.attested(boundary(31));
    assert!(frontier.drained(boundary(30)));
    transaction(&mut frontier, 30, 35);
    assert!(frontier.drained(boundary(30)), "a commit record that starts at the boundary is behind it");
    assert!(!frontier.drained(boundary(31)));
}

#[test]
fn a26_nothing_is_acknowledged_behind_a_prepare_before_its_commit_is_durable() {
    let mut frontier = Frontier::new(None, Some(boundary(10)));
    frontier.attested(boundary(1000));
    let durable = |frontier: &mut Frontier, commit: u64, end: u64| {
        frontier.handed_over(CommitLsn(Lsn(commit)));
        frontier.made_durable(EndLsn(Lsn(end)));
    };
    frontier.hold(boundary(20));
    frontier.hold(boundary(30));
    transaction(&mut frontier, 40, 45);
    durable(&mut frontier, 40, 45);
    assert_eq!(frontier.acknowledge().map(|d| d.position()), Some(boundary(20)));
    frontier.reported(boundary(50), true);
    frontier.sent(boundary(50));
    assert_eq!((frontier.idle_candidate(), frontier.acknowledge()), (None, None));
    assert!(frontier.drained(boundary(50)), "what is open commits behind it");
    // The first one commits. Before that is durable it may have to come again.
    transaction(&mut frontier, 60, 65);
    frontier.release(boundary(20), Some(EndLsn(Lsn(65))));
    assert_eq!(frontier.acknowledge(), None);
    durable(&mut frontier, 60, 65);
    assert_eq!(frontier.acknowledge().map(|d| d.position()), Some(boundary(30)));
    frontier.release(boundary(30), None);
    assert_eq!(frontier.acknowledge().map(|d| d.position()), Some(boundary(65)));
}
