//! What comes after the rows: indexes, constraints, and then everything else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use pgonce::stop::Stop;
use tokio_postgres::Client;

use super::parse::plain;
use super::plan::{Plan, Step};
use super::work::{Done, at_once, judge, lacks, run};
use super::{SchemaCopy, before, connect, record};
use crate::ledger::sql_stop;
use crate::session::Session;
use crate::settings::TargetSettings;

pub(super) async fn create(
    copy: &SchemaCopy,
    settings: &TargetSettings,
    session: &Session,
) -> Result<Vec<String>, Stop> {
    let Some(dump) = record::after_rows(&session.connection.client, &session.flow).await? else {
        return Ok(Vec::new());
    };
    let entries = before::read(&dump)?;
    let connection = connect(&settings.connection).await?;
    let client = &connection.client;
    let tables = Tables::read(client).await?;
    let mut plan = Plan::of(&entries, &|table| tables.partitioned(table), &|table| tables.is_view(table));
    let work = Work { copy, settings, session, client, tables };
    work.indexes(&mut plan).await?;
    work.constraints(&mut plan).await?;
    work.tell("attaching the indexes of partitions").await?;
    for step in &plan.attach {
        work.one(step).await?;
    }
    let mut warnings = work.foreign_keys(&plan).await?;
    warnings.extend(work.rest(&plan).await?);
    warnings.extend(loud_triggers(client).await?);
    warnings.extend(empty_views(client).await?);
    record::complete(&session.connection.client, &session.flow).await?;
    Ok(warnings)
}

/// The relations of the target.
struct Tables(BTreeMap<Name, Table>);

struct Table {
    kind: String,
    bytes: i64,
}

impl Tables {
    async fn read(client: &Client) -> Result<Tables, Stop> {
        let sql = "SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text, c.relkind::pg_catalog.text, \
                   CASE WHEN c.relkind IN ('r', 'm') THEN pg_catalog.pg_relation_size(c.oid) ELSE 0 END \
                   FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
                   WHERE n.nspname NOT IN ('pg_catalog', 'pg_toast', 'information_schema') \
                   AND c.relkind IN ('r', 'p', 'm', 'i', 'I', 'f')";
        let rows = client.query(sql, &[]).await.map_err(sql_stop)?;
        let mut tables = BTreeMap::new();
        for row in &rows {
            let bytes: Option<i64> = row.try_get(3).map_err(sql_stop)?;
            let table = Table { kind: row.try_get(2).map_err(sql_stop)?, bytes: bytes.unwrap_or_default() };
            tables.insert(name_in(row)?, table);
        }
        Ok(Tables(tables))
    }

    /// `name` is written as in the dump: qualified, and quoted where needed.
    fn find(&self, name: &str) -> Option<&Table> {
        self.0.get(&plain(name)?)
    }

    fn exists(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn partitioned(&self, name: &str) -> bool {
        self.find(name).is_some_and(|table| table.kind == "p")
    }

    fn is_view(&self, name: &str) -> bool {
        // Of a view that is created later nothing is known.
        self.find(name).is_none_or(|table| table.kind == "m")
    }

    fn bytes(&self, name: &str) -> i64 {
        self.find(name).map_or(0, |table| table.bytes)
    }
}

struct Work<'a> {
    copy: &'a SchemaCopy,
    settings: &'a TargetSettings,
    session: &'a Session,
    client: &'a Client,
    tables: Tables,
}

impl Work<'_> {
    /// Says what is being done: to whoever watches this process, and to `pgonce status`.
    async fn tell(&self, doing: &str) -> Result<(), Stop> {
        self.settings.tell(doing);
        record::doing(&self.session.connection.client, &self.session.flow, doing).await
    }

    async fn one(&self, step: &Step) -> Result<(), Stop> {
        match run(self.client, step).await? {
            Done::Made | Done::There => Ok(()),
            Done::Lacks => Err(lacks(step)),
        }
    }

    /// Runs groups of steps at once, those of the largest tables first (what takes longest should not begin last), and
    /// says how far they are. Returns those that lack something.
    async fn many(&self, what: &str, mut groups: Vec<(i64, Vec<Step>)>) -> Result<Vec<Step>, Stop> {
        let (all, done) = (groups.iter().map(|(_, steps)| steps.len()).sum::<usize>(), AtomicUsize::new(0));
        if all == 0 {
            return Ok(Vec::new());
        }
        groups.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        self.tell(&format!("{what}: {all}")).await?;
        let report = || {
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            self.settings.tell(&format!("{what}: {done} of {all}"));
        };
        let groups = groups.into_iter().map(|(_, steps)| steps).collect();
        at_once(&self.settings.connection, self.copy.jobs, groups, &report).await
    }

    async fn indexes(&self, plan: &mut Plan) -> Result<(), Stop> {
        let missing = plan.builds.iter().filter(|build| !self.tables.exists(&build.index.name));
        let groups = missing.map(|b| (self.tables.bytes(&b.index.table), vec![b.step.clone()])).collect();
        for step in self.many("building indexes", groups).await? {
            plan.postpone(step);
        }
        Ok(())
    }

    async fn constraints(&self, plan: &mut Plan) -> Result<(), Stop> {
        let there = constraints(self.client).await?;
        // One after another on a table: each locks it.
        let mut of_table: BTreeMap<&str, Vec<Step>> = BTreeMap::new();
        for (constraint, step) in plan.constraints.iter().filter(|(c, _)| !there.contains_key(&c.plain_names())) {
            of_table.entry(&constraint.table).or_default().push(step.clone());
        }
        let groups = of_table.into_iter().map(|(table, steps)| (self.tables.bytes(table), steps)).collect();
        for step in self.many("adding constraints", groups).await? {
            plan.postpone(step);
        }
        Ok(())
    }

    /// Adds the foreign keys, then has them looked at, many at a time. Those of a table that is carried to one that
    /// is not cannot hold, and are left out.
    async fn foreign_keys(&self, plan: &Plan) -> Result<Vec<String>, Stop> {
        let there = constraints(self.client).await?;
        let carried = carried(self.client, &self.session.flow).await?;
        let (mut warnings, mut proofs) = (Vec::new(), Vec::new());
        self.tell("adding foreign keys").await?;
        for (constraint, step) in &plan.foreign_keys {
            let referenced = constraint.referenced().unwrap_or_default();
            let carries = |table: &str| plain(table).is_some_and(|name| carried.contains(&name));
            if carries(&constraint.table) && !carries(&referenced) {
                warnings.push(format!(
                    "copy_schema: {} is left out, for it refers to {referenced}, which the flow does not carry",
                    step.title
                ));
                continue;
            }
            let proved = match there.get(&constraint.plain_names()) {
                Some(proved) => *proved,
                None => {
                    self.one(step).await?;
                    constraint.unproved() || !step.sql.ends_with("NOT VALID;")
                }
            };
            if !proved && !constraint.unproved() {
                let proof = Step { sql: constraint.validate(), ..step.clone() };
                proofs.push((self.tables.bytes(&constraint.table), vec![proof]));
            }
        }
        match self.many("checking foreign keys", proofs).await?.first() {
            Some(step) => Err(lacks(step)),
            None => Ok(warnings),
        }
    }

    /// Creates the rest. Where the flow's own changes would make triggers and rules act, they are created disabled.
    async fn rest(&self, plan: &Plan) -> Result<Vec<String>, Stop> {
        self.tell("creating triggers, rules, policies and comments").await?;
        let (mut warnings, mut disabled) = (Vec::new(), 0);
        for step in &plan.rest {
            let acts = matches!(step.kind.as_str(), "TRIGGER" | "RULE");
            if acts && !self.session.triggers_suppressed {
                disabled += self.disabled(step).await?;
                continue;
            }
            match run(self.client, step).await {
                Ok(Done::Made | Done::There) => {}
                Ok(Done::Lacks) => return Err(lacks(step)),
                Err(_) if step.kind == "EVENT TRIGGER" && !superuser(self.client).await? => warnings
                    .push(format!("copy_schema: {} is left out, for only a superuser may create it", step.title)),
                Err(stop) => return Err(stop),
            }
        }
        if disabled > 0 {
            warnings.push(format!(
                "copy_schema: triggers and rules ({disabled}) are created disabled, for they would act on what the \
                     flow \
                 writes: the target's role may not set session_replication_role. At the move, type on the target what \
                 this prints: SELECT pg_catalog.unnest(to_enable) FROM pgonce.schema_copy WHERE flow = '{}';",
                self.session.flow
            ));
        }
        Ok(warnings)
    }

    /// Creates a trigger or rule, and disables what it made in the same transaction. Returns how many were disabled.
    async fn disabled(&self, step: &Step) -> Result<usize, Stop> {
        let client = self.client;
        client.batch_execute("BEGIN").await.map_err(sql_stop)?;
        if let Err(error) = client.batch_execute(&step.sql).await {
            client.batch_execute("ROLLBACK").await.map_err(sql_stop)?;
            return match judge(step, error)? {
                Done::Lacks => Err(lacks(step)),
                Done::Made | Done::There => Ok(0),
            };
        }
        let made = client.query(MADE_NOW, &[]).await.map_err(sql_stop)?;
        for row in &made {
            let (table, what): (String, String) =
                (row.try_get(0).map_err(sql_stop)?, row.try_get(1).map_err(sql_stop)?);
            let disable = format!("ALTER TABLE {table} DISABLE {what}");
            client.batch_execute(&disable).await.map_err(sql_stop)?;
            let later = "UPDATE pgonce.schema_copy SET to_enable = to_enable || $2::pg_catalog.text WHERE flow = $1";
            let enable = format!("ALTER TABLE {table} ENABLE {what};");
            client.execute(later, &[&&*self.session.flow, &enable]).await.map_err(sql_stop)?;
        }
        client.batch_execute("COMMIT").await.map_err(sql_stop)?;
        Ok(made.len())
    }
}

/// Triggers and rules that this transaction has made on tables, and that act on ordinary changes. What partitions have
/// of their parent's follows the parent.
const MADE_NOW: &str = "
    SELECT c.oid::pg_catalog.regclass::pg_catalog.text, 'TRIGGER ' || pg_catalog.quote_ident(t.tgname)
    FROM pg_catalog.pg_trigger AS t JOIN pg_catalog.pg_class AS c ON c.oid = t.tgrelid
    WHERE t.xmin = pg_catalog.pg_current_xact_id()::pg_catalog.xid AND NOT t.tgisinternal AND t.tgenabled = 'O'
      AND t.tgparentid = 0 AND c.relkind IN ('r', 'p')
    UNION ALL
    SELECT c.oid::pg_catalog.regclass::pg_catalog.text, 'RULE ' || pg_catalog.quote_ident(r.rulename)
    FROM pg_catalog.pg_rewrite AS r JOIN pg_catalog.pg_class AS c ON c.oid = r.ev_class
    WHERE r.xmin = pg_catalog.pg_current_xact_id()::pg_catalog.xid AND r.ev_enabled = 'O' AND c.relkind IN ('r', 'p')";

/// Schema and name, without quotes: versions quote differently, for they know other key words.
type Name = (String, String);

fn name_in(row: &tokio_postgres::Row) -> Result<Name, Stop> {
    Ok((row.try_get(0).map_err(sql_stop)?, row.try_get(1).map_err(sql_stop)?))
}

/// The constraints of tables, and whether the rows are proved to fit.
async fn constraints(client: &Client) -> Result<BTreeMap<(Option<Name>, String), bool>, Stop> {
    let sql = "SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text, o.conname::pg_catalog.text, \
               o.convalidated FROM pg_catalog.pg_constraint AS o JOIN pg_catalog.pg_class AS c ON c.oid = o.conrelid \
               JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace";
    let rows = client.query(sql, &[]).await.map_err(sql_stop)?;
    let mut found = BTreeMap::new();
    for row in &rows {
        let key = (Some(name_in(row)?), row.try_get(2).map_err(sql_stop)?);
        found.insert(key, row.try_get(3).map_err(sql_stop)?);
    }
    Ok(found)
}

/// The tables that were copied, with what they are partitions of and what is a partition of them.
async fn carried(client: &Client, flow: &str) -> Result<BTreeSet<Name>, Stop> {
    let sql = "
        SELECT DISTINCT n.nspname::pg_catalog.text, r.relname::pg_catalog.text
        FROM (SELECT pg_catalog.to_regclass(pg_catalog.format('%I.%I', s.schema_name, s.table_name)) AS oid
              FROM pgonce.snapshot AS s WHERE s.flow = $1) AS c
        CROSS JOIN LATERAL (SELECT c.oid AS relid
            UNION ALL SELECT a.relid FROM pg_catalog.pg_partition_ancestors(c.oid) AS a
            UNION ALL SELECT p.relid FROM pg_catalog.pg_partition_tree(c.oid) AS p) AS t
        JOIN pg_catalog.pg_class AS r ON r.oid = t.relid
        JOIN pg_catalog.pg_namespace AS n ON n.oid = r.relnamespace";
    let rows = client.query(sql, &[&flow]).await.map_err(sql_stop)?;
    rows.iter().map(name_in).collect()
}

async fn superuser(client: &Client) -> Result<bool, Stop> {
    let row = client.query_one("SELECT pg_catalog.current_setting('is_superuser') = 'on'", &[]).await;
    row.and_then(|row| row.try_get(0)).map_err(sql_stop)
}

/// Triggers and rules that act on what the flow writes, whatever its role may set.
async fn loud_triggers(client: &Client) -> Result<Option<String>, Stop> {
    let sql = "
        SELECT t.tgrelid::pg_catalog.regclass || ': ' || t.tgname FROM pg_catalog.pg_trigger AS t
        JOIN pg_catalog.pg_class AS c ON c.oid = t.tgrelid
        WHERE t.tgenabled IN ('A', 'R') AND t.tgparentid = 0 AND c.relkind IN ('r', 'p')
        UNION ALL
        SELECT r.ev_class::pg_catalog.regclass || ': ' || r.rulename FROM pg_catalog.pg_rewrite AS r
        JOIN pg_catalog.pg_class AS c ON c.oid = r.ev_class
        WHERE r.ev_enabled IN ('A', 'R') AND c.relkind IN ('r', 'p') ORDER BY 1";
    let names = names(client, sql).await?;
    Ok((!names.is_empty()).then(|| {
        format!(
            "copy_schema: triggers and rules that are ENABLE ALWAYS or ENABLE REPLICA on the source are so on the \
             target, and act on what the flow writes: {}. If they should not: ALTER TABLE ... DISABLE TRIGGER ...",
            names.join(", ")
        )
    }))
}

/// Materialized views are created without rows.
async fn empty_views(client: &Client) -> Result<Option<String>, Stop> {
    let sql = "SELECT c.oid::pg_catalog.regclass::pg_catalog.text FROM pg_catalog.pg_class AS c \
               WHERE c.relkind = 'm' AND NOT c.relispopulated ORDER BY 1";
    let names = names(client, sql).await?;
    Ok((!names.is_empty()).then(|| {
        let refresh: Vec<String> = names.iter().map(|name| format!("REFRESH MATERIALIZED VIEW {name};")).collect();
        format!(
            "materialized views are not carried and hold nothing yet. At the move, on the target: {}",
            refresh.join(" ")
        )
    }))
}

async fn names(client: &Client, sql: &str) -> Result<Vec<String>, Stop> {
    let rows = client.query(sql, &[]).await.map_err(sql_stop)?;
    rows.iter().map(|row| row.try_get(0).map_err(sql_stop)).collect()
}
