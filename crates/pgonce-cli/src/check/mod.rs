//! `pgonce check`: what stands in the way of a flow, found before anything is created.
//!
//! The sessions can only read. The catalogs are asked a fixed number of questions, each for all tables at once; only
//! whether target tables hold rows takes one more for every 500 tables that have any blocks.

mod both;
mod columns;
mod finding;
mod html;
mod names;
mod pair;
mod publication;
mod relations;
mod report;
mod server;
mod slots;
mod source;
mod target;
mod target_tables;
mod text;
mod types;

use std::collections::{HashMap, HashSet};

use pgonce::catalog;
use pgonce::connect::SqlConnection;
use pgonce::destination::StartMode;
use pgonce::ident::{quote_ident, quote_qualified};
use pgonce::stop::{Side, Stop};
use tokio_postgres::Client;

use self::columns::Column;
use self::finding::{Finding, Severity, Who};
use self::pair::Carried;
use self::publication::Publications;
use self::relations::Relation;
pub use self::report::Report;
use self::server::Server;
use self::source::{Needs, Waits};
use self::target::Target;
pub use self::target::ledger_grants;
use crate::config::Publish;
use crate::config::part::PartOfFlow;
use crate::failure::Failure;
use crate::render::counted;

/// Checks whatever is configured of a flow.
pub async fn check(part: &PartOfFlow) -> Report {
    let mut check = Check { part, report: Report::new(part.flow.as_ref().map(|flow| flow.as_str().to_owned())) };
    let (source, target) = tokio::join!(check.part.connect(Side::Source), check.part.connect(Side::Target));
    let source = check.opened("source.connection", source);
    let target = check.opened("target.connection", target);
    let there = match &target {
        Some(connection) => check.target(&connection.client).await.map(|found| (connection, found)),
        None => None,
    };
    let begun = there.as_ref().and_then(|(_, there)| there.target.flow(check.flow())).cloned();
    let here = match &source {
        Some(connection) => check.source(&connection.client, begun.as_ref(), there.as_ref().map(|t| t.1.alive)).await,
        None => None,
    };
    if let (Some(here), Some((connection, there))) = (&here, &there) {
        check.report.tables = Some(here.carried.len());
        let begun = begun.is_some_and(|flow| flow.has_begun());
        if let Err(failure) = check.pair(here, &connection.client, there, begun).await {
            check.unreadable(Side::Target, &failure);
        }
    }
    let Check { mut report, .. } = check;
    report.finish();
    report
}

impl PartOfFlow {
    /// Opens a session on one side, if that side is configured.
    async fn connect(&self, side: Side) -> Option<Result<SqlConnection, Failure>> {
        let settings = match side {
            Side::Source => self.source.as_ref()?,
            Side::Target => self.target.as_ref()?,
        };
        Some(server::connect(settings, side).await)
    }

    /// The patterns that choose tables, where a publication of ours is to be made.
    fn patterns(&self) -> Vec<String> {
        match &self.publish {
            Publish::Ours { tables, .. } if !tables.is_empty() => tables.clone(),
            _ => vec!["*.*".to_owned()],
        }
    }
}

struct Check<'a> {
    part: &'a PartOfFlow,
    report: Report,
}

/// What the source has told.
struct Here {
    server: Server,
    carried: Vec<Carried>,
    extensions: both::Extensions,
}

/// What the target has told.
struct There {
    server: Server,
    target: Target,
    /// A writer of the flow is at work.
    alive: bool,
}

impl Check<'_> {
    fn flow(&self) -> Option<&str> {
        self.part.flow.as_ref().map(|flow| flow.as_str())
    }

    fn add(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.report.findings.extend(findings);
    }

    fn opened(&mut self, id: &'static str, opened: Option<Result<SqlConnection, Failure>>) -> Option<SqlConnection> {
        match opened? {
            Ok(connection) => {
                let endpoint = connection.endpoint();
                let text = format!("connected to {}, port {}", report::host(&endpoint.host), endpoint.port);
                self.add([Finding::ok(id, text)]);
                Some(connection)
            }
            Err(failure) => {
                self.report.failed(failure.exit_status);
                self.add([Finding::new(id, Severity::Problem, failure.text).means(failure.hint)]);
                None
            }
        }
    }

    /// A question was not answered: what it would have told is not known, and that is not fine.
    fn unreadable(&mut self, side: Side, failure: &Failure) {
        let id = match side {
            Side::Source => "source.unreadable",
            Side::Target => "target.unreadable",
        };
        self.report.failed(failure.exit_status);
        let finding = Finding::new(id, Severity::Problem, format!("a question was not answered: {}", failure.text));
        self.add([
            finding.means(format!("What is not known is not fine, so the check is not complete. {}", failure.hint))
        ]);
    }

    async fn target(&mut self, client: &Client) -> Option<There> {
        let told = async {
            let failed = |e| Failure::sql(Side::Target, &e);
            let server = Server::ask(client).await.map_err(failed)?;
            let target = Target::ask(client, &server).await.map_err(failed)?;
            Ok((server, target))
        };
        match told.await {
            Err(failure) => {
                self.unreadable(Side::Target, &failure);
                None
            }
            Ok((server, target)) => {
                self.report.target = Some(report::Facts::of(&server));
                self.add(target.check(&server, self.part.jobs));
                let alive = match (self.flow(), target.is_current()) {
                    (Some(flow), true) => match crate::ledger::read(client, flow).await {
                        Ok(state) => state.is_some_and(|state| state.alive.is_some()),
                        Err(failure) => {
                            self.unreadable(Side::Target, &failure);
                            false
                        }
                    },
                    _ => false,
                };
                Some(There { server, target, alive })
            }
        }
    }

    async fn source(&mut self, client: &Client, flow: Option<&target::Flow>, alive: Option<bool>) -> Option<Here> {
        let server = match Server::ask(client).await {
            Ok(server) => server,
            Err(error) => {
                self.unreadable(Side::Source, &Failure::sql(Side::Source, &error));
                return None;
            }
        };
        self.report.source = Some(report::Facts::of(&server));
        if server.major() < 14 {
            self.add([source::version("source.version", &server)]);
            return None;
        }
        match self.ask_source(client, server, flow, alive.unwrap_or_default()).await {
            Ok(here) => Some(here),
            Err(failure) => {
                self.unreadable(Side::Source, &failure);
                None
            }
        }
    }

    async fn ask_source(
        &mut self,
        client: &Client,
        server: Server,
        flow: Option<&target::Flow>,
        alive: bool,
    ) -> Result<Here, Failure> {
        let failed = |e| Failure::sql(Side::Source, &e);
        let begun = flow.is_some_and(target::Flow::has_begun);
        let slot = self.part.slot.as_deref();
        let own = match slot {
            Some(slot) => slots::own(client, slot).await?,
            None => None,
        };
        let needs = Needs {
            copies: self.part.start == StartMode::Snapshot && flow.is_none_or(|flow| flow.phase != "streaming"),
            slot_exists: own.is_some(),
            jobs: self.part.jobs,
        };
        self.add(source::check(&server, needs));
        let slots = slots::Slots::ask(client, slot).await.map_err(failed)?;
        self.add(slots.check(&server, needs));
        let known = slots::Known { begun, alive, retained: slots.retained };
        if let Some(slot) = slot {
            self.add([slots::check_own(slot, own.as_ref(), &server.database, known)]);
        }
        let waits = Waits::ask(client).await.map_err(failed)?;
        self.add(waits.check(&server, needs.slot_exists));
        self.add_identity(&server, flow).await;
        let names = self.part.publish.names();
        let candidates = catalog::candidates(client).await?;
        let relations = Relation::ask(client).await.map_err(failed)?;
        let publications = Publications::ask(client, &server, &names).await?;
        let complete = publications.complete(&names);
        let patterns = self.part.patterns();
        self.add(publications.check(&self.part.publish, &server, &candidates, &relations));
        let by_oid: HashMap<u32, &Relation> = relations.iter().map(|r| (r.oid, r)).collect();
        let chosen = choose(&publications, complete, &patterns, &candidates, &relations);
        let carried_names: Vec<(String, String)> =
            chosen.iter().map(|(r, _)| (r.schema.clone(), r.name.clone())).collect();
        let how = publications.chosen(&self.part.publish, &patterns);
        self.add(relations::identities(&candidates, &by_oid, &carried_names, how));
        self.add(relations::partitions(&carried_tables(&chosen), how));
        self.add(relations::barred(&relations, &patterns));
        self.add(unmatched(&self.part.publish, &patterns, &candidates, &relations));
        let oids: Vec<u32> = chosen.iter().map(|(r, _)| r.oid).collect();
        let mut columns = columns::ask(client, &oids).await.map_err(failed)?;
        let mut carried = Vec::new();
        for (relation, published) in &chosen {
            self.add(relations::carried(relation, &server, needs.copies));
            let all = columns.remove(&relation.oid).unwrap_or_default();
            if let Some(list) = published {
                self.add(publication::columns(relation, &all, list, how.changes));
            }
            let sent = |c: &Column| c.is_generated() || published.as_ref().is_none_or(|list| list.contains(&c.name));
            let columns: Vec<Column> = all.into_iter().filter(sent).collect();
            self.add(unread(relation, &columns, &server, needs.copies));
            carried.push(Carried {
                there: names::on_target(&relation.schema, &relation.name),
                schema: relation.schema.clone(),
                name: relation.name.clone(),
                full: relation.identity == "f",
                columns,
            });
        }
        self.report.tables = Some(carried.len());
        self.add(not_carried(client, &server).await.map_err(failed)?);
        let extensions = both::extensions(client).await.map_err(failed)?;
        Ok(Here { server, carried, extensions })
    }

    /// Whether a replication connection can be opened, and whether it leads to the source that the flow is bound to.
    async fn add_identity(&mut self, server: &Server, flow: Option<&target::Flow>) {
        let Some(settings) = &self.part.source else { return };
        let mut settings = settings.clone();
        settings.connect_timeout.get_or_insert(server::CONNECT_TIMEOUT);
        let tried: Result<String, Stop> = pgonce::replication::identify(&settings).await;
        self.add([source::replication(server, &tried)]);
        let bound = flow.filter(|flow| flow.has_begun());
        if let (Ok(found), Some(flow)) = (&tried, bound)
            && *found != flow.system_identifier
        {
            let what = format!("system identifier {found}, and the flow is bound to {}", flow.system_identifier);
            self.add([Finding::new("source.identity", Severity::Problem, what).means(
                "This is another source than the one that the flow has followed. If the URL is wrong, correct it; \
                 otherwise a new copy is needed (`pgonce reset`).",
            )]);
        }
    }

    async fn pair(&mut self, here: &Here, client: &Client, there: &There, begun: bool) -> Result<(), Failure> {
        let failed = |e| Failure::sql(Side::Target, &e);
        self.add(both::servers(&here.server, &there.server));
        let extensions = both::extensions(client).await.map_err(failed)?;
        let available = both::available(client).await.map_err(failed)?;
        self.add(both::types(&here.carried, &here.extensions, &extensions, &available));
        let names: Vec<(String, String)> = here.carried.iter().map(|c| c.there.clone()).collect();
        let tables = target_tables::ask(client, &names).await.map_err(failed)?;
        let oids: Vec<u32> = tables.values().filter(|t| t.is_table()).map(|t| t.oid).collect();
        let columns = columns::ask(client, &oids).await.map_err(failed)?;
        let (mut matched, mut created) = (0, 0);
        for carried in &here.carried {
            let table = tables.get(&carried.there);
            if table.is_none() && self.part.copy_schema && !begun {
                created += 1;
                continue;
            }
            self.add(pair::missing(carried, table));
            let Some(table) = table.filter(|table| table.is_table()) else { continue };
            matched += 1;
            self.add(table.check(&there.server, there.target.quiet));
            let none = Vec::new();
            self.add(pair::columns(carried, table, columns.get(&table.oid).unwrap_or(&none)));
        }
        self.add(pair::created(created, &there.server));
        let matched_text = format!("{} of {} there", counted(matched, "table is", "tables are"), here.carried.len());
        if matched == here.carried.len() as u64 {
            self.add([Finding::ok("target.table", matched_text)]);
        }
        if self.part.start == StartMode::Snapshot && !begun {
            let list: Vec<&target_tables::TargetTable> = tables.values().collect();
            let filled = target_tables::filled(client, &list).await.map_err(failed)?;
            self.add(rows(filled, &list));
        }
        let subscriptions = both::subscriptions(client).await.map_err(failed)?;
        let by_oid = tables.into_iter().map(|(name, table)| (table.oid, name)).collect();
        let flow = self.flow().map(str::to_owned);
        self.add(both::conflicts(flow.as_deref(), &there.target, &subscriptions, &by_oid));
        Ok(())
    }
}

/// A table that is carried, and its published columns where the publication names some.
type Choice<'a> = (&'a Relation, Option<Vec<String>>);

fn choose<'a>(
    publications: &Publications,
    complete: bool,
    patterns: &[String],
    candidates: &[catalog::Candidate],
    relations: &'a [Relation],
) -> Vec<Choice<'a>> {
    if complete {
        let by_oid: HashMap<u32, &Relation> = relations.iter().map(|r| (r.oid, r)).collect();
        let choice = |t: &pgonce::published::PublishedTable| Some((*by_oid.get(&t.oid)?, Some(t.columns.clone())));
        return publications.tables.iter().filter_map(choice).collect();
    }
    let chosen: HashSet<(&str, &str)> = candidates
        .iter()
        .filter(|c| c.identifiable() && publication::chosen(patterns, c))
        .map(|c| (c.schema.as_str(), c.name.as_str()))
        .collect();
    relations.iter().filter(|r| chosen.contains(&(r.schema.as_str(), r.name.as_str()))).map(|r| (r, None)).collect()
}

fn carried_tables<'a>(chosen: &[Choice<'a>]) -> Vec<&'a Relation> {
    chosen.iter().map(|(relation, _)| *relation).collect()
}

/// Patterns that no table matches.
fn unmatched(
    publish: &Publish,
    patterns: &[String],
    candidates: &[catalog::Candidate],
    relations: &[Relation],
) -> Vec<Finding> {
    let Publish::Ours { tables, .. } = publish else { return Vec::new() };
    let patterns = patterns.iter().filter(|_| !tables.is_empty());
    let matched = |pattern: &String| {
        candidates.iter().any(|c| catalog::matches(pattern, &format!("{}.{}", c.schema, c.name)))
            || relations::names_barred(relations, pattern)
    };
    patterns
        .filter(|pattern| !matched(pattern))
        .map(|pattern| {
            Finding::new("source.tables", Severity::Problem, format!("no table matches {pattern:?}"))
                .of(finding::Subject::Object(pattern.clone()))
                .means("Patterns are schema.table, with * for any characters; tables of the system are not carried.")
        })
        .collect()
}

/// Columns that the copy cannot read.
fn unread(relation: &Relation, columns: &[Column], server: &Server, copies: bool) -> Option<Finding> {
    let hidden: Vec<&str> =
        columns.iter().filter(|c| !c.readable && !c.is_generated()).map(|c| c.name.as_str()).collect();
    if hidden.is_empty() {
        return None;
    }
    let all = hidden.len() == columns.iter().filter(|c| !c.is_generated()).count();
    let what = match all {
        true => format!("role {} has no SELECT", server.role),
        false => format!("role {} has no SELECT on {}", server.role, hidden.join(", ")),
    };
    let severity = if copies { Severity::Problem } else { Severity::Warning };
    let (table, role) = (quote_qualified(&relation.schema, &relation.name), quote_ident(&server.role));
    let columns: Vec<String> = hidden.iter().map(|c| quote_ident(c)).collect();
    let columns = if all { String::new() } else { format!(" ({})", columns.join(", ")) };
    Some(
        Finding::new("source.privilege", severity, what)
            .table(&relation.schema, &relation.name)
            .means("The initial copy and `pgonce verify` read tables as this role.")
            .mend(Who::on(Side::Source, relation.owned), format!("GRANT SELECT{columns} ON {table} TO {role};")),
    )
}

/// What logical replication does not carry: sequences and large objects.
async fn not_carried(client: &Client, server: &Server) -> Result<Vec<Finding>, tokio_postgres::Error> {
    let sql = "SELECT n.nspname::text, c.relname::text, has_sequence_privilege(c.oid, 'SELECT, USAGE'), \
           pg_has_role(c.relowner, 'USAGE'), EXISTS (SELECT FROM pg_largeobject_metadata) \
         FROM (SELECT) one LEFT JOIN (pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
           AND n.nspname NOT IN ('information_schema', 'pgonce') AND n.nspname NOT LIKE 'pg\\_%') ON c.relkind = 'S' \
         ORDER BY 1, 2";
    let rows = client.query(sql, &[]).await?;
    let mut found = Vec::new();
    let mut sequences = 0;
    for row in &rows {
        let (Some(schema), Some(name)) = (row.get::<_, Option<String>>(0), row.get::<_, Option<String>>(1)) else {
            continue;
        };
        sequences += 1;
        if row.get::<_, Option<bool>>(2) != Some(true) {
            let who = Who::on(Side::Source, row.get::<_, Option<bool>>(3) == Some(true));
            let sequence = quote_qualified(&schema, &name);
            found.push(
                Finding::new("source.sequence", Severity::Note, format!("role {} cannot read its value", server.role))
                    .table(&schema, &name)
                    .means("Sequences are set at the handoff; who sets this one needs its value from another role.")
                    .mend(who, format!("GRANT SELECT ON SEQUENCE {sequence} TO {};", quote_ident(&server.role))),
            );
        }
    }
    if sequences > 0 {
        let text = format!("{} not in the stream", counted(sequences, "sequence is", "sequences are"));
        found.push(Finding::new("source.sequences", Severity::Note, text).means(
            "They are set when the copy ends. At the handoff, when the writers have stopped: pgonce sequences sync.",
        ));
    }
    if rows.first().is_some_and(|row| row.get(4)) {
        found.push(
            Finding::new("source.large_objects", Severity::Warning, "there are large objects")
                .means("Logical replication does not carry them: only their OIDs, in the tables that refer to them."),
        );
    }
    Ok(found)
}

/// Tables of the target that are to be copied into and hold rows.
fn rows(filled: Option<Vec<u32>>, tables: &[&target_tables::TargetTable]) -> Vec<Finding> {
    const ID: &str = "target.table.rows";
    let Some(filled) = filled else {
        return vec![
            Finding::new(ID, Severity::Unknown, "whether tables hold rows could not be found out in time")
                .means("A table is locked, or full of dead rows. The copy refuses tables that hold rows."),
        ];
    };
    let mut filled: Vec<&&target_tables::TargetTable> = tables.iter().filter(|t| filled.contains(&t.oid)).collect();
    filled.sort_by_key(|t| (t.schema.clone(), t.name.clone()));
    let names: Vec<String> = filled.iter().map(|t| t.quoted()).collect();
    let finding = |table: &target_tables::TargetTable| {
        Finding::new(ID, Severity::Problem, "holds rows").table(&table.schema, &table.name).means(
            "The initial copy would add to them, so it is refused. If they may go, empty the tables, all by one \
             statement because of foreign keys; if they are a copy already, use `--start go-forward` with a slot that \
             was made when the copy was taken.",
        )
    };
    let mut findings: Vec<Finding> = filled.iter().map(|table| finding(table)).collect();
    // One statement for all of them is given once, with the first.
    if let Some(first) = findings.first_mut() {
        *first = first.clone().mend(Who::TargetRole, format!("TRUNCATE {};", names.join(", ")));
    }
    findings
}
