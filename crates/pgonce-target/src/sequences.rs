//! Sequences: their positions on both sides, and the target's set to the source's. The stream does not carry them.

use std::collections::{BTreeMap, BTreeSet};

use pgonce::connect::connect_sql;
use pgonce::ident::{quote_ident, quote_qualified};
use pgonce::sql_error::stop_from_sql;
use pgonce::stop::{Side, Stop};
use tokio_postgres::{Client, Row};

use crate::settings::TargetSettings;

/// A sequence's position: `last_value` and `is_called`, as `setval` takes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// `last_value`.
    pub last: i64,
    /// Whether the last value was handed out: if not, the next one is the last value itself.
    pub called: bool,
}

/// A sequence of the source beside the target's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sequence {
    /// Its schema on the source.
    pub schema: String,
    /// Its name on the source.
    pub name: String,
    /// The column that it belongs to (serial, identity), as schema, table and column.
    pub owner: Option<(String, String, String)>,
    /// By how much it moves; negative: downwards.
    pub increment: i64,
    /// The target's sequence, qualified and quoted: the one of this name, or else the one of the same column.
    pub there: Option<String>,
    /// Where it stands on the source, as far as the role may see.
    pub source: Option<Position>,
    /// Where it stands on the target, as far as the role may see.
    pub target: Option<Position>,
    /// What is to be done about it.
    pub standing: Standing,
    cycles: bool,
    target_oid: u32,
    bounds: (i64, i64),
}

/// How the target's sequence stands to the source's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Where the source's is.
    Equal,
    /// Before it: it would hand out values that the source has handed out.
    Behind,
    /// Past it, in the direction of its increment.
    Ahead,
    /// The target has the table that it belongs to, but no such sequence.
    Missing,
    /// The target has neither such a sequence nor the table that it belongs to, if it belongs to one.
    Absent,
    /// The source's role may not read it.
    Unreadable,
    /// The target's role may not read and set it.
    Unsettable,
    /// The position lies outside of the target's MINVALUE and MAXVALUE.
    OutOfBounds,
}

impl Standing {
    /// A word for programs.
    pub fn word(self) -> &'static str {
        match self {
            Standing::Equal => "equal",
            Standing::Behind => "behind",
            Standing::Ahead => "ahead",
            Standing::Missing => "missing",
            Standing::Absent => "absent",
            Standing::Unreadable => "unreadable",
            Standing::Unsettable => "unsettable",
            Standing::OutOfBounds => "out_of_bounds",
        }
    }

    /// Whether something has to be done before it can be set.
    pub fn is_problem(self) -> bool {
        matches!(self, Standing::Missing | Standing::Unreadable | Standing::Unsettable | Standing::OutOfBounds)
    }
}

impl Sequence {
    /// By how many steps the target is behind; negative where it is ahead. Nothing where a position is not known, or
    /// the sequence cycles.
    pub fn difference(&self) -> Option<i128> {
        let (source, target) = (self.source?, self.target?);
        let steps = (i128::from(source.last) - i128::from(target.last)) / i128::from(self.increment);
        (!self.cycles).then_some(steps + i128::from(source.called) - i128::from(target.called))
    }

    fn sign(&self) -> i128 {
        if self.increment < 0 { -1 } else { 1 }
    }

    /// What to type so that it can be set; empty where nothing stands against it.
    pub fn remedy(&self, source_role: &str, target_role: &str) -> String {
        let schema = quote_ident(&self.schema);
        let name = quote_qualified(&self.schema, &self.name);
        let role = |role: &str| quote_ident(role);
        match self.standing {
            Standing::Missing => format!(
                "Create it on the target; on the source, pg_dump --schema-only --table={} shows how.",
                pgonce::ident::quote_literal(&name)
            ),
            Standing::Unreadable => format!(
                "On the source: GRANT USAGE ON SCHEMA {schema} TO {0}; GRANT SELECT ON SEQUENCE {name} TO {0};",
                role(source_role)
            ),
            Standing::Unsettable => format!(
                "On the target: GRANT SELECT, UPDATE ON SEQUENCE {} TO {};",
                self.there.as_deref().unwrap_or(&name),
                role(target_role)
            ),
            Standing::OutOfBounds => format!(
                "On the target: ALTER SEQUENCE {} with the source's MINVALUE and MAXVALUE;",
                self.there.as_deref().unwrap_or(&name)
            ),
            _ => String::new(),
        }
    }

    /// How the target stands to `wanted`. Where a sequence is cannot be said by its value if it cycles: it is set to
    /// where the source's is, whichever is greater.
    fn compare(&self, wanted: Position, target: Position) -> Standing {
        let place = |p: Position| (i128::from(p.last) * self.sign(), p.called);
        match place(wanted).cmp(&place(target)) {
            std::cmp::Ordering::Equal => Standing::Equal,
            std::cmp::Ordering::Less if !self.cycles => Standing::Ahead,
            _ => Standing::Behind,
        }
    }

    /// The source's position, and `ahead` steps more.
    fn wanted(&self, ahead: u32) -> Option<Position> {
        let source = self.source?;
        let last = i128::from(source.last) + i128::from(ahead) * i128::from(self.increment);
        let within = i128::from(self.bounds.0)..=i128::from(self.bounds.1);
        let last = i64::try_from(last).ok().filter(|last| within.contains(&i128::from(*last)))?;
        Some(Position { last, called: source.called })
    }
}

/// The sequences of a source's database, each beside the target's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sequences {
    /// In the order of their names.
    pub list: Vec<Sequence>,
    ahead: u32,
}

/// A sequence as one side has it.
struct Found {
    oid: u32,
    schema: String,
    name: String,
    increment: i64,
    bounds: (i64, i64),
    cycles: bool,
    owner: Option<(String, String, String)>,
    settable: bool,
    position: Option<Position>,
}

impl Sequences {
    /// Reads both sides. `ahead` is by how many steps the target is to be further than the source.
    ///
    /// # Errors
    ///
    /// A statement failed.
    pub async fn read(source: &Client, target: &Client, ahead: u32) -> Result<Sequences, Stop> {
        let here = find(source, Side::Source).await?;
        let there = find(target, Side::Target).await?;
        let tables = tables(target).await?;
        let by_name: BTreeMap<(&str, &str), &Found> =
            there.iter().map(|f| ((f.schema.as_str(), f.name.as_str()), f)).collect();
        let by_owner: BTreeMap<_, &Found> = there.iter().filter_map(|f| Some((f.owner.as_ref()?, f))).collect();
        let list = here.into_iter().map(|found| {
            let same = by_name.get(&(found.schema.as_str(), found.name.as_str()));
            let same = same.or_else(|| by_owner.get(found.owner.as_ref()?)).copied();
            beside(found, same, &tables, ahead)
        });
        Ok(Sequences { list: list.collect(), ahead })
    }

    /// Sets those of the target that are behind; with `force` also those that are ahead. Returns how many were set.
    ///
    /// # Errors
    ///
    /// A statement failed.
    pub async fn set(&mut self, target: &Client, force: bool) -> Result<usize, Stop> {
        let ahead = self.ahead;
        let due = |s: &&mut Sequence| s.standing == Standing::Behind || force && s.standing == Standing::Ahead;
        let mut due: Vec<(&mut Sequence, Position)> =
            self.list.iter_mut().filter(due).filter_map(|s| Some((s.wanted(ahead)?, s))).map(|(p, s)| (s, p)).collect();
        let sql = "SELECT pg_catalog.setval(u.o::pg_catalog.regclass, u.v, u.c) \
                   FROM unnest($1::pg_catalog.oid[], $2::pg_catalog.int8[], $3::pg_catalog.bool[]) \
                   AS u (o, v, c)";
        for some in due.chunks_mut(AT_ONCE) {
            let oids: Vec<u32> = some.iter().map(|(s, _)| s.target_oid).collect();
            let values: Vec<i64> = some.iter().map(|(_, p)| p.last).collect();
            let called: Vec<bool> = some.iter().map(|(_, p)| p.called).collect();
            let set = target.query(sql, &[&oids, &values, &called]).await;
            set.map_err(|e| stop_from_sql(Side::Target, &e))?;
            for (sequence, position) in some {
                (sequence.target, sequence.standing) = (Some(*position), Standing::Equal);
            }
        }
        Ok(due.len())
    }
}

fn beside(found: Found, same: Option<&Found>, tables: &BTreeSet<(String, String)>, ahead: u32) -> Sequence {
    let mut sequence = Sequence {
        there: same.map(|f| quote_qualified(&f.schema, &f.name)),
        source: found.position,
        target: same.and_then(|f| f.position),
        standing: Standing::Equal,
        cycles: found.cycles,
        target_oid: same.map_or(0, |f| f.oid),
        bounds: same.map_or((i64::MIN, i64::MAX), |f| f.bounds),
        increment: found.increment,
        schema: found.schema,
        name: found.name,
        owner: found.owner,
    };
    let owned = sequence.owner.as_ref().is_some_and(|(s, t, _)| tables.contains(&(s.clone(), t.clone())));
    sequence.standing = match (same, sequence.source, sequence.target) {
        (None, _, _) if owned => Standing::Missing,
        (None, _, _) => Standing::Absent,
        (_, None, _) => Standing::Unreadable,
        (Some(same), _, target) if !same.settable || target.is_none() => Standing::Unsettable,
        (_, _, target) => match (sequence.wanted(ahead), target) {
            (Some(wanted), Some(target)) => sequence.compare(wanted, target),
            _ => Standing::OutOfBounds,
        },
    };
    sequence
}

/// So many sequences are read or set by one statement: each is locked until it ends.
const AT_ONCE: usize = 500;

const FIND: &str = "
    SELECT c.oid, n.nspname::pg_catalog.text, c.relname::pg_catalog.text, s.seqincrement, s.seqmin, s.seqmax,
           s.seqcycle, tn.nspname::pg_catalog.text, t.relname::pg_catalog.text, a.attname::pg_catalog.text,
           pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_sequence_privilege(c.oid, 'SELECT'),
           pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_sequence_privilege(c.oid, 'UPDATE')
    FROM pg_catalog.pg_sequence AS s
    JOIN pg_catalog.pg_class AS c ON c.oid = s.seqrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    LEFT JOIN pg_catalog.pg_depend AS d ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid
        AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjsubid > 0
        AND d.deptype IN ('a', 'i')
    LEFT JOIN pg_catalog.pg_class AS t ON t.oid = d.refobjid
    LEFT JOIN pg_catalog.pg_namespace AS tn ON tn.oid = t.relnamespace
    LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
    WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'pgonce') AND c.relpersistence <> 't'
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend AS e
                      WHERE e.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND e.objid = c.oid
                        AND e.deptype = 'e')
    ORDER BY 2, 3";

/// The sequences of a database that belong to no extension, with their positions. `pg_sequences` would not do: it has
/// no `is_called`, and no value before the first one is handed out.
async fn find(client: &Client, side: Side) -> Result<Vec<Found>, Stop> {
    let failed = |e| stop_from_sql(side, &e);
    let (mut found, mut readable) = (Vec::new(), Vec::new());
    for row in client.query(FIND, &[]).await.map_err(failed)? {
        let (sequence, may_read) = read(&row).map_err(failed)?;
        readable.extend(may_read.then_some(found.len()));
        found.push(sequence);
    }
    for some in readable.chunks(AT_ONCE) {
        let select = |at: &usize| {
            let sequence: &Found = &found[*at];
            format!("SELECT {at}, last_value, is_called FROM {}", quote_qualified(&sequence.schema, &sequence.name))
        };
        let sql: Vec<String> = some.iter().map(select).collect();
        for row in client.query(&sql.join(" UNION ALL "), &[]).await.map_err(failed)? {
            let at: i32 = row.try_get(0).map_err(failed)?;
            let position = Position { last: row.try_get(1).map_err(failed)?, called: row.try_get(2).map_err(failed)? };
            if let Some(sequence) = usize::try_from(at).ok().and_then(|at| found.get_mut(at)) {
                sequence.position = Some(position);
            }
        }
    }
    Ok(found)
}

fn read(row: &Row) -> Result<(Found, bool), tokio_postgres::Error> {
    let owner: (Option<String>, Option<String>, Option<String>) = (row.try_get(7)?, row.try_get(8)?, row.try_get(9)?);
    let owner = match owner {
        (Some(schema), Some(table), Some(column)) => Some((schema, table, column)),
        _ => None,
    };
    let sequence = Found {
        oid: row.try_get(0)?,
        schema: row.try_get(1)?,
        name: row.try_get(2)?,
        increment: row.try_get(3)?,
        bounds: (row.try_get(4)?, row.try_get(5)?),
        cycles: row.try_get(6)?,
        owner,
        settable: row.try_get(11)?,
        position: None,
    };
    Ok((sequence, row.try_get(10)?))
}

async fn tables(target: &Client) -> Result<BTreeSet<(String, String)>, Stop> {
    let failed = |e| stop_from_sql(Side::Target, &e);
    let sql = "SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text FROM pg_catalog.pg_class AS c \
               JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'f')";
    let rows = target.query(sql, &[]).await.map_err(failed)?;
    rows.iter().map(|row| Ok((row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?))).collect()
}

/// Sets the sequences when the rows are copied. That they cannot be set does not stop the flow: it is told.
pub(crate) async fn at_handoff(settings: &TargetSettings) -> Option<String> {
    let source_settings = settings.sequences_from.as_ref()?;
    settings.tell("setting sequences");
    let set = async {
        let source = connect_sql(source_settings, "sequences").await.map_err(|e| e.into_stop(Side::Source))?;
        let target = connect_sql(&settings.connection, "sequences").await.map_err(|e| e.into_stop(Side::Target))?;
        let mut sequences = Sequences::read(&source.client, &target.client, 0).await?;
        sequences.set(&target.client, false).await?;
        Ok::<Sequences, Stop>(sequences)
    };
    const LATER: &str = "The flow goes on; set them at the move: `pgonce sequences sync`";
    let sequences = match set.await {
        Ok(sequences) => sequences,
        Err(stop) => return Some(format!("the sequences were not set: {stop}. {LATER}")),
    };
    let problems: Vec<&Sequence> = sequences.list.iter().filter(|s| s.standing.is_problem()).collect();
    let first = problems.first()?;
    let names: Vec<String> = problems
        .iter()
        .take(10)
        .map(|s| format!("{} ({})", quote_qualified(&s.schema, &s.name), s.standing.word().replace('_', " ")))
        .collect();
    let more = problems.len().saturating_sub(names.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Some(format!(
        "sequences that could not be set: {}{more}. {} {LATER}",
        names.join(", "),
        first.remedy(&source_settings.user, &settings.connection.user)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(increment: i64, cycles: bool, last: i64, called: bool) -> Found {
        Found {
            oid: 1,
            schema: "s".to_owned(),
            name: "q".to_owned(),
            increment,
            bounds: (-100, 100),
            cycles,
            owner: None,
            settable: true,
            position: Some(Position { last, called }),
        }
    }

    fn standing(increment: i64, cycles: bool, source: (i64, bool), target: (i64, bool), ahead: u32) -> Standing {
        let there = found(increment, cycles, target.0, target.1);
        beside(found(increment, cycles, source.0, source.1), Some(&there), &BTreeSet::new(), ahead).standing
    }

    #[test]
    fn a_sequence_is_behind_in_the_direction_of_its_increment() {
        assert_eq!(standing(1, false, (5, true), (4, true), 0), Standing::Behind);
        assert_eq!(standing(1, false, (5, true), (5, true), 0), Standing::Equal);
        assert_eq!(standing(1, false, (5, true), (6, false), 0), Standing::Ahead);
        assert_eq!(standing(1, false, (1, true), (1, false), 0), Standing::Behind);
        assert_eq!(standing(-2, false, (-5, true), (-1, true), 0), Standing::Behind);
        assert_eq!(standing(-2, false, (-5, true), (-7, true), 0), Standing::Ahead);
        assert_eq!(standing(-2, false, (-1, true), (-1, false), 0), Standing::Behind);
    }

    #[test]
    fn what_cycles_is_never_ahead() {
        assert_eq!(standing(1, true, (2, true), (90, true), 0), Standing::Behind);
        assert_eq!(standing(1, true, (2, true), (2, true), 0), Standing::Equal);
    }

    #[test]
    fn steps_ahead_go_in_the_same_direction_and_not_out_of_bounds() {
        assert_eq!(standing(-2, false, (-5, true), (-7, true), 10), Standing::Behind);
        assert_eq!(standing(1, false, (95, true), (95, true), 10), Standing::OutOfBounds);
        assert_eq!(standing(-2, false, (-95, true), (-95, true), 10), Standing::OutOfBounds);
        let there = found(-2, false, 0, false);
        let sequence = beside(found(-2, false, -5, true), Some(&there), &BTreeSet::new(), 0);
        assert_eq!(sequence.wanted(10), Some(Position { last: -25, called: true }));
    }

    #[test]
    fn a_sequence_that_the_target_lacks_matters_if_its_table_is_there() {
        let owned = || {
            let mut found = found(1, false, 1, true);
            found.owner = Some(("s".to_owned(), "t".to_owned(), "id".to_owned()));
            found
        };
        let tables = BTreeSet::from([("s".to_owned(), "t".to_owned())]);
        let missing = beside(owned(), None, &tables, 0);
        assert_eq!(missing.standing, Standing::Missing);
        assert!(missing.remedy("a", "b").contains("--table='\"s\".\"q\"'"), "{}", missing.remedy("a", "b"));
        assert_eq!(beside(owned(), None, &BTreeSet::new(), 0).standing, Standing::Absent);
    }
}
