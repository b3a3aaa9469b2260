//! Checks of what the source publishes, or would.

use pgonce::catalog::{self, Candidate, matches};
use pgonce::ident::{quote_ident, quote_qualified};
use pgonce::published::PublishedTable;
use pgonce::stop::{Side, Stop};
use tokio_postgres::{Client, Error};

use super::columns::Column;
use super::finding::{Finding, Severity, Subject, Who};
use super::relations::{Chosen, Relation};
use super::server::Server;
use crate::config::Publish;
use crate::render::counted;

/// A publication that exists.
#[derive(Clone, Debug)]
pub struct Publication {
    name: String,
    all_tables: bool,
    /// Insert, update, delete, truncate.
    sends: [bool; 4],
    via_root: bool,
    owned: bool,
}

const OPERATIONS: [&str; 4] = ["insert", "update", "delete", "truncate"];

/// What is published.
#[derive(Debug)]
pub struct Publications {
    /// Those of the flow that exist.
    found: Vec<Publication>,
    /// Their tables. Empty where one of them is missing.
    pub tables: Vec<PublishedTable>,
}

impl Publications {
    /// Asks.
    pub async fn ask(client: &Client, server: &Server, names: &[String]) -> Result<Publications, Stop> {
        let sql = "SELECT p.pubname::text, p.puballtables, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, \
               p.pubviaroot, pg_has_role(p.pubowner, 'USAGE') \
             FROM pg_publication p WHERE p.pubname::text = ANY ($1) ORDER BY 1";
        let failed = |e: Error| pgonce::sql_error::stop_from_sql(Side::Source, &e);
        let rows = client.query(sql, &[&names]).await.map_err(failed)?;
        let publication = |row: &tokio_postgres::Row| Publication {
            name: row.get(0),
            all_tables: row.get(1),
            sends: [row.get(2), row.get(3), row.get(4), row.get(5)],
            via_root: row.get(6),
            owned: row.get(7),
        };
        let found: Vec<Publication> = rows.iter().map(publication).collect();
        let tables = match names.iter().all(|name| found.iter().any(|p| p.name == *name)) {
            true => catalog::published(client, server.version, names).await?.tables,
            false => Vec::new(),
        };
        Ok(Publications { found, tables })
    }

    /// Whether all that are named exist.
    pub fn complete(&self, names: &[String]) -> bool {
        names.iter().all(|name| self.found.iter().any(|p| p.name == *name))
    }

    /// How the tables come about, for the check of their identities.
    pub fn chosen<'a>(&self, publish: &Publish, patterns: &'a [String]) -> Chosen<'a> {
        Chosen {
            patterns: matches!(publish, Publish::Ours { .. }).then_some(patterns),
            changes: self.found.iter().any(|p| p.sends[1] || p.sends[2]),
        }
    }

    /// The checks.
    pub fn check(&self, publish: &Publish, server: &Server, all: &[Candidate], relations: &[Relation]) -> Vec<Finding> {
        let mut found = Vec::new();
        for name in publish.names() {
            match self.found.iter().find(|p| p.name == name) {
                Some(publication) => found.extend(publication.check(&self.tables, relations)),
                None => found.push(missing(&name, publish, server, all, relations)),
            }
        }
        if !self.complete(&publish.names()) {
            return found;
        }
        found.extend(self.left_out(publish, all));
        for table in &self.tables {
            if table.row_filter.is_some() {
                found.push(
                    Finding::new("source.publication.rows", Severity::Note, "the publication has a row filter for it")
                        .table(&table.schema, &table.name)
                        .means("Only rows that match are carried. One that stops to match is deleted on the target."),
                );
            }
        }
        if self.tables.is_empty() {
            found.push(
                Finding::new("source.publication.tables", Severity::Problem, "the publications publish no table")
                    .of(Subject::Object(publish.names().join(", ")))
                    .means("There is nothing to carry."),
            );
        }
        found
    }

    /// Tables that could be published, and are not.
    fn left_out(&self, publish: &Publish, all: &[Candidate]) -> Vec<Finding> {
        let published = |c: &Candidate| self.tables.iter().any(|t| t.schema == c.schema && t.name == c.name);
        let others = all.iter().filter(|c| c.identifiable() && !published(c));
        match publish {
            Publish::Existing(_) => others
                .map(|c| {
                    Finding::new("source.publication.others", Severity::Note, "not published")
                        .table(&c.schema, &c.name)
                        .means("It is not carried.")
                })
                .collect(),
            Publish::Ours { name, tables } => others
                .filter(|c| chosen(tables, c))
                .map(|c| {
                    let owned = self.found.iter().any(|p| p.owned);
                    let table = quote_qualified(&c.schema, &c.name);
                    Finding::new("source.publication.tables", Severity::Warning, "asked for, and not published")
                        .table(&c.schema, &c.name)
                        .means(
                            "It is not carried. A flow that has begun cannot take a table in; before the flow has \
                             begun, add it.",
                        )
                        .mend(
                            Who::on(Side::Source, owned),
                            format!("ALTER PUBLICATION {} ADD TABLE {table};", quote_ident(name)),
                        )
                })
                .collect(),
        }
    }
}

/// Whether patterns choose a table; no pattern chooses all.
pub fn chosen(patterns: &[String], table: &Candidate) -> bool {
    let name = format!("{}.{}", table.schema, table.name);
    patterns.is_empty() || patterns.iter().any(|pattern| matches(pattern, &name))
}

impl Publication {
    fn check(&self, tables: &[PublishedTable], relations: &[Relation]) -> Vec<Finding> {
        let name = &self.name;
        let of = || Subject::Object(name.clone());
        let who = Who::on(Side::Source, self.owned);
        let mut found = vec![
            Finding::ok(
                "source.publication",
                format!("publication {name} exists, with {}", counted(tables.len() as u64, "table", "tables")),
            )
            .of(of()),
        ];
        let kept: Vec<&str> = OPERATIONS.into_iter().zip(self.sends).filter(|(_, s)| !s).map(|(o, _)| o).collect();
        if !kept.is_empty() {
            found.push(
                Finding::new(
                    "source.publication.operations",
                    Severity::Warning,
                    format!("publication {name} leaves out {}", kept.join(", ")),
                )
                .of(of())
                .means("The target does not see these changes, and differs from the source afterwards.")
                .mend(
                    who,
                    format!(
                        "ALTER PUBLICATION {} SET (publish = 'insert, update, delete, truncate');",
                        quote_ident(name)
                    ),
                ),
            );
        }
        if self.all_tables {
            found.push(
                Finding::new(
                    "source.publication.all_tables",
                    Severity::Note,
                    format!("publication {name} is FOR ALL TABLES"),
                )
                .of(of())
                .means(
                    "A table that is made later is not carried, and the first change to it stops the flow. A \
                         publication of named tables avoids that.",
                ),
            );
        }
        let partitions = relations.iter().filter(|r| r.partition && tables.iter().any(|t| t.oid == r.oid));
        let partitions = partitions.count() as u64;
        if !self.via_root && partitions > 0 {
            let found_here = format!(
                "publication {name} publishes {} as themselves",
                counted(partitions, "partition", "partitions")
            );
            found.push(
                Finding::new("source.publication.via_root", Severity::Warning, found_here)
                    .of(of())
                    .means(
                        "The target needs the same partitions, and one that is made later stops the flow with its \
                         first change. Published as their root, the target may be partitioned as it likes.",
                    )
                    .mend(
                        who,
                        format!("ALTER PUBLICATION {} SET (publish_via_partition_root = true);", quote_ident(name)),
                    ),
            );
        }
        found
    }
}

/// A table of which only some columns are published. `changes`: updates or deletes are.
pub fn columns(relation: &Relation, all: &[Column], published: &[String], changes: bool) -> Option<Finding> {
    const ID: &str = "source.publication.columns";
    let kept: Vec<&Column> = all.iter().filter(|c| !c.is_generated() && !published.contains(&c.name)).collect();
    let list = |columns: &[&Column]| columns.iter().map(|c| c.name.clone()).collect::<Vec<_>>().join(", ");
    let keys: Vec<&Column> = kept.iter().filter(|c| c.key).copied().collect();
    if changes && !keys.is_empty() {
        return Some(
            Finding::new(ID, Severity::Problem, format!("published without {}", list(&keys)))
                .table(&relation.schema, &relation.name)
                .means(
                    "The replica identity is not published, so the source's own UPDATE and DELETE of it fail. The \
                     publication's list of columns has to hold it.",
                ),
        );
    }
    (!kept.is_empty()).then(|| {
        Finding::new(ID, Severity::Note, format!("published without {}", list(&kept)))
            .table(&relation.schema, &relation.name)
            .means("The publication has a list of columns. The others are not carried: the target fills in defaults.")
    })
}

/// A publication that does not exist: who can make it, and how.
fn missing(name: &str, publish: &Publish, server: &Server, all: &[Candidate], relations: &[Relation]) -> Finding {
    const ID: &str = "source.publication";
    let patterns: &[String] = match publish {
        Publish::Ours { tables, .. } => tables,
        Publish::Existing(_) => &[],
    };
    let tables: Vec<&Candidate> = all.iter().filter(|c| c.identifiable() && chosen(patterns, c)).collect();
    let of = Subject::Object(name.to_owned());
    if tables.is_empty() {
        return Finding::new(
            ID,
            Severity::Problem,
            format!("publication {name} does not exist, and no table can be published"),
        )
        .of(of)
        .means("No table matches that has a usable replica identity: there is nothing to carry.");
    }
    let owned = |c: &&&Candidate| relations.iter().any(|r| r.owned && r.schema == c.schema && r.name == c.name);
    let foreign = tables.len() - tables.iter().filter(owned).count();
    let names: Vec<String> = tables.iter().map(|c| quote_qualified(&c.schema, &c.name)).collect();
    let create = format!(
        "CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true);",
        quote_ident(name),
        names.join(", ")
    );
    let count = counted(names.len() as u64, "table", "tables");
    let may = !server.in_recovery && (server.superuser || server.may_create && foreign == 0);
    if let (Publish::Ours { .. }, true) = (publish, may) {
        return Finding::ok(ID, format!("publication {name} does not exist yet: pgonce makes it, of {count}")).of(of);
    }
    let means = match publish {
        Publish::Existing(_) => "It was named, so it has to be there before the flow begins.".to_owned(),
        Publish::Ours { .. } if server.in_recovery => {
            "A standby cannot make it: it has to be made on the primary.".to_owned()
        }
        Publish::Ours { .. } if foreign > 0 => {
            let foreign = counted(foreign as u64, "table", "tables");
            format!("Role {} cannot make it, of {count}: it does not own {foreign} of them.", server.role)
        }
        Publish::Ours { .. } => {
            format!("Role {} cannot make it: it has no CREATE on database {}.", server.role, server.database)
        }
    };
    Finding::new(ID, Severity::Problem, format!("publication {name} does not exist"))
        .of(of)
        .means(means)
        .mend(Who::on(Side::Source, may), create)
}
