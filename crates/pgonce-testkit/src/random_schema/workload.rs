//! Transactions, and how several sessions take turns.

use std::collections::VecDeque;

use super::publication::Publication;
use super::rows;
use super::table::Table;
use crate::Random;

/// One statement of one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The session: sessions take turns, and what one of them would have to wait for is given up.
    pub session: usize,
    /// `BEGIN`, a statement, `COMMIT` or `ROLLBACK`.
    pub sql: String,
}

/// How many sessions take turns at most.
const SESSIONS: usize = 3;

/// A few inserts into each table, in the order that foreign keys ask for.
pub(crate) fn first_rows(tables: &[Table], mut random: Random) -> Vec<Step> {
    let step = |sql: String| Step { session: 0, sql };
    let mut steps = Vec::new();
    for table in tables {
        for _ in 0..random.between(0, 6) {
            steps.extend(["BEGIN".to_owned(), rows::insert(table, &mut random), "COMMIT".to_owned()].map(step));
        }
    }
    steps
}

/// What a workload is about.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) tables: &'a [Table],
    pub(crate) publication: Publication,
    /// Tables that are published with their inserts only are only inserted into.
    pub(crate) gentle: bool,
}

pub(crate) fn steps(subject: Subject<'_>, mut random: Random, transactions: u32) -> Vec<Step> {
    let mut left = transactions;
    let mut steps = Vec::new();
    while left > 0 {
        let together = if random.percent(70) { 1 } else { random.place(SESSIONS) + 1 };
        let mut open: Vec<(usize, VecDeque<String>)> = (0..together.min(left as usize))
            .map(|session| (session, transaction(subject, &mut random).into()))
            .collect();
        left = left.saturating_sub(u32::try_from(together).unwrap_or(1));
        while !open.is_empty() {
            let at = random.place(open.len());
            let (session, statements) = &mut open[at];
            steps.extend(statements.pop_front().map(|sql| Step { session: *session, sql }));
            if statements.is_empty() {
                open.remove(at);
            }
        }
    }
    steps
}

fn transaction(subject: Subject<'_>, random: &mut Random) -> Vec<String> {
    let tables = subject.tables;
    let mut statements = vec!["BEGIN".to_owned()];
    let number = *random.pick(&[1, 1, 2, 3, 5, 9]);
    // A transaction often stays with a table, so that rows meet each other.
    let mut table = random.pick(tables);
    for _ in 0..number {
        if random.percent(40) {
            table = random.pick(tables);
        }
        if random.percent(12) {
            statements.push("SAVEPOINT inner_part".to_owned());
            for _ in 0..random.between(1, 3) {
                statements.push(statement(random.pick(tables), subject, random));
            }
            let end =
                if random.percent(65) { "ROLLBACK TO SAVEPOINT inner_part" } else { "RELEASE SAVEPOINT inner_part" };
            statements.push(end.to_owned());
        } else {
            statements.push(statement(table, subject, random));
        }
    }
    statements.push(if random.percent(8) { "ROLLBACK" } else { "COMMIT" }.to_owned());
    statements
}

fn statement(table: &Table, subject: Subject<'_>, random: &mut Random) -> String {
    if subject.gentle && table.inserts_only {
        return rows::insert(table, random);
    }
    let keyless = table.key.is_empty();
    match random.below(100) {
        0..40 => rows::insert(table, random),
        40..46 if keyless => rows::duplicate(table, random),
        40..68 => rows::update(table, random),
        68..82 => rows::change_key(table, random),
        82..96 => rows::delete(table, random),
        _ => truncate(table, subject, random),
    }
}

fn truncate(table: &Table, subject: Subject<'_>, random: &mut Random) -> String {
    // A partition that is published as its root is emptied without a word: PostgreSQL does not send it.
    if let Some(partitions) = table.partitions
        && !subject.publication.as_root()
        && random.percent(50)
    {
        return format!("TRUNCATE {}", random.pick(&table.leaves(partitions)));
    }
    let mut names = vec![table.quoted()];
    for other in subject.tables.iter().filter(|other| !(subject.gentle && other.inserts_only)) {
        if other.number != table.number && random.percent(15) {
            names.push(other.quoted());
        }
    }
    let restart = if random.percent(40) { " RESTART IDENTITY" } else { "" };
    format!("TRUNCATE {}{restart} CASCADE", names.join(", "))
}
