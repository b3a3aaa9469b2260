//! In which order what comes after the rows is created, and what of it at the same time.

use super::entries::Entry;
use super::parse::{self, Constraint, Index};

/// What comes after the rows, in the steps that follow each other.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Indexes, those of primary keys and unique constraints included: each on its own, many at a time.
    pub(super) builds: Vec<Build>,
    /// Constraints over those indexes, and those that build an index themselves: one after another on a table, many
    /// tables at a time.
    pub(super) constraints: Vec<(Constraint, Step)>,
    /// Indexes of partitions become part of their parent's, in the order of the dump.
    pub(super) attach: Vec<Step>,
    /// Foreign keys are added without a look at the rows, one after another: two at a time may deadlock.
    pub(super) foreign_keys: Vec<(Constraint, Step)>,
    /// The rest, in the order of the dump.
    pub(super) rest: Vec<Step>,
}

/// Statements that are run together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Step {
    /// Its place in the dump.
    pub(super) at: usize,
    pub(super) kind: String,
    /// In words.
    pub(super) title: String,
    pub(super) sql: String,
}

/// An index to build.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Build {
    pub(super) index: Index,
    pub(super) step: Step,
}

impl Plan {
    /// Lays the entries out. `partitioned` are tables that hold no rows of their own, qualified and quoted;
    /// `views` are the materialized ones.
    pub(super) fn of(entries: &[Entry], partitioned: &dyn Fn(&str) -> bool, views: &dyn Fn(&str) -> bool) -> Plan {
        let mut plan = Plan::default();
        for (at, entry) in entries.iter().enumerate() {
            let step = |sql: &str| Step { at, kind: entry.kind.clone(), title: entry.title(), sql: sql.to_owned() };
            match entry.kind.as_str() {
                "INDEX" => {
                    let statements = entry.statements();
                    match statements.split_first().and_then(|(first, more)| Some((parse::index(first)?, first, more))) {
                        // Of a materialized view that is created among the rest.
                        Some((index, first, more)) if !views(&index.table) => {
                            plan.builds.push(Build { index, step: step(first) });
                            // They want a stronger lock, for a moment: beside other builds that could deadlock.
                            plan.rest.extend((!more.is_empty()).then(|| step(&more.join("\n"))));
                        }
                        _ => plan.rest.push(step(&entry.sql)),
                    }
                }
                "CONSTRAINT" | "CHECK CONSTRAINT" => {
                    let statements = entry.statements();
                    let read = statements.split_first().and_then(|(f, more)| Some((parse::constraint(f)?, f, more)));
                    let Some((constraint, first, more)) = read else {
                        plan.rest.push(step(&entry.sql));
                        continue;
                    };
                    let steps = constraint.stepwise().filter(|_| !partitioned(&constraint.table));
                    plan.rest.extend((!more.is_empty()).then(|| step(&more.join("\n"))));
                    let sql = match steps {
                        Some(steps) => {
                            let index = Index { table: constraint.table.clone(), name: steps.index };
                            plan.builds.push(Build { index, step: step(&steps.build) });
                            steps.attach
                        }
                        None => (*first).to_owned(),
                    };
                    plan.constraints.push((constraint, step(&sql)));
                }
                "INDEX ATTACH" => plan.attach.push(step(&entry.sql)),
                "FK CONSTRAINT" => match entry.statements().as_slice() {
                    [statement] if parse::constraint(statement).is_some() => {
                        let Some(constraint) = parse::constraint(statement) else { continue };
                        // Not all versions take it later where one of the two tables is partitioned.
                        let parts = partitioned(&constraint.table)
                            || constraint.referenced().is_some_and(|table| partitioned(&table));
                        let now = constraint.unproved() || parts;
                        let sql = if now { (*statement).to_owned() } else { constraint.add_unproved() };
                        plan.foreign_keys.push((constraint, step(&sql)));
                    }
                    _ => plan.rest.push(step(&entry.sql)),
                },
                _ => plan.rest.push(step(&entry.sql)),
            }
        }
        plan
    }

    /// Puts a step among the rest, at its place in the dump.
    pub(super) fn postpone(&mut self, step: Step) {
        let at = self.rest.partition_point(|other| other.at <= step.at);
        self.rest.insert(at, step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: &str, sql: &str) -> Entry {
        Entry { kind: kind.to_owned(), name: "n".to_owned(), schema: "s".to_owned(), sql: sql.to_owned() }
    }

    #[test]
    fn each_kind_has_its_step_and_what_wants_a_stronger_lock_comes_later() {
        let entries = [
            entry("CONSTRAINT", "ALTER TABLE ONLY s.t ADD CONSTRAINT p PRIMARY KEY (id);"),
            entry("CONSTRAINT", "ALTER TABLE ONLY s.parts ADD CONSTRAINT q PRIMARY KEY (id);"),
            entry("INDEX", "CREATE INDEX i ON s.t USING btree (n);\n\nALTER TABLE s.t CLUSTER ON i;"),
            entry("INDEX", "CREATE INDEX m ON s.view USING btree (n);"),
            entry("INDEX ATTACH", "ALTER INDEX s.q ATTACH PARTITION s.q1;"),
            entry("TRIGGER", "CREATE TRIGGER x AFTER INSERT ON s.t FOR EACH ROW EXECUTE FUNCTION s.f();"),
            entry("FK CONSTRAINT", "ALTER TABLE ONLY s.t ADD CONSTRAINT f FOREIGN KEY (n) REFERENCES s.u(id);"),
            entry("FK CONSTRAINT", "ALTER TABLE s.parts ADD CONSTRAINT g FOREIGN KEY (n) REFERENCES s.u(id);"),
        ];
        let mut plan = Plan::of(&entries, &|table| table == "s.parts", &|table| table == "s.view");
        let builds: Vec<&str> = plan.builds.iter().map(|build| build.index.name.as_str()).collect();
        assert_eq!(builds, ["s.p", "s.i"]);
        assert!(plan.constraints[0].1.sql.contains("USING INDEX p"), "{:?}", plan.constraints);
        assert!(plan.constraints[1].1.sql.contains("PRIMARY KEY (id)"), "{:?}", plan.constraints);
        assert_eq!(plan.attach.len(), 1);
        assert!(plan.foreign_keys[0].1.sql.ends_with("NOT VALID;"));
        assert!(!plan.foreign_keys[1].1.sql.contains("NOT VALID"), "of a partitioned table it cannot be");
        let rest: Vec<usize> = plan.rest.iter().map(|step| step.at).collect();
        assert_eq!(rest, [2, 3, 5]);
        assert_eq!(plan.rest[0].sql, "ALTER TABLE s.t CLUSTER ON i;");
        plan.postpone(Step { at: 4, kind: String::new(), title: String::new(), sql: String::new() });
        let rest: Vec<usize> = plan.rest.iter().map(|step| step.at).collect();
        assert_eq!(rest, [2, 3, 4, 5]);
    }
}
