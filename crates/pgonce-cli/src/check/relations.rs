//! Tables of the source: which ones are carried, which cannot be, and what is wrong with those that are.

use std::collections::HashMap;

use pgonce::catalog::{Candidate, matches, usable_identity};
use pgonce::ident::{quote_ident, quote_qualified};
use pgonce::stop::Side;
use tokio_postgres::{Client, Error};

use super::finding::{Finding, Severity, Who};
use super::server::Server;
use crate::render::bytes;

/// A table of the source, or what stands where a table could.
#[derive(Clone, Debug, Default)]
pub struct Relation {
    /// OID.
    pub oid: u32,
    /// Schema.
    pub schema: String,
    /// Name.
    pub name: String,
    /// `relkind`.
    pub kind: String,
    /// `relpersistence`.
    pub persistence: String,
    /// A partition of a partitioned table.
    pub partition: bool,
    /// `relreplident`.
    pub identity: String,
    /// The role owns it, or is a member of the role that does.
    pub owned: bool,
    usage: bool,
    rows_hidden: bool,
    /// It has what its replica identity is said to be.
    pub identifiable: bool,
    /// DEFAULT would do.
    key_usable: bool,
    toast_bytes: i64,
}

impl Relation {
    /// Asks for all of them, of the system's own none.
    pub async fn ask(client: &Client) -> Result<Vec<Relation>, Error> {
        let sql = format!(
            "SELECT c.oid, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text, \
               c.relispartition, c.relreplident::text, pg_has_role(c.relowner, 'USAGE'), \
               has_schema_privilege(n.oid, 'USAGE'), c.relrowsecurity AND row_security_active(c.oid), {identifiable}, \
               {key}, coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)), 0) \
             FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm') AND n.nspname NOT IN ('information_schema', 'pgonce') \
               AND (n.nspname NOT LIKE 'pg\\_%' OR c.relpersistence = 't' AND n.nspname NOT LIKE 'pg\\_toast%') \
             ORDER BY 2, 3",
            identifiable = usable_identity("c", "c.relreplident"),
            key = usable_identity("c", "'d'"),
        );
        let rows = client.query(&sql, &[]).await?;
        let relation = |row: &tokio_postgres::Row| Relation {
            oid: row.get(0),
            schema: row.get(1),
            name: row.get(2),
            kind: row.get(3),
            persistence: row.get(4),
            partition: row.get(5),
            identity: row.get(6),
            owned: row.get(7),
            usage: row.get(8),
            rows_hidden: row.get(9),
            identifiable: row.get(10),
            key_usable: row.get(11),
            toast_bytes: row.get(12),
        };
        Ok(rows.iter().map(relation).collect())
    }

    fn dotted(&self) -> String {
        format!("{}.{}", self.schema, self.name)
    }

    fn quoted(&self) -> String {
        quote_qualified(&self.schema, &self.name)
    }

    fn owner(&self) -> Who {
        Who::on(Side::Source, self.owned)
    }

    /// Why it cannot be replicated whatever its identity is, and how grave that is where nobody named it.
    fn barred(&self) -> Option<(Severity, &'static str)> {
        match (self.kind.as_str(), self.persistence.as_str()) {
            ("v", _) => Some((Severity::Note, "a view")),
            ("m", _) => Some((Severity::Note, "a materialized view")),
            ("f", _) => Some((Severity::Warning, "a foreign table")),
            (_, "t") => Some((Severity::Note, "a temporary table")),
            (_, "u") => Some((Severity::Warning, "an unlogged table")),
            _ => None,
        }
    }
}

/// Those that patterns choose and that cannot be replicated, each with the reason.
pub fn barred(relations: &[Relation], patterns: &[String]) -> Vec<Finding> {
    let mut found = Vec::new();
    for relation in relations {
        let Some((severity, what)) = relation.barred() else { continue };
        let matching: Vec<&String> = patterns.iter().filter(|p| matches(p, &relation.dotted())).collect();
        if matching.is_empty() {
            continue;
        }
        let named = matching.iter().any(|pattern| !pattern.contains('*'));
        let finding = Finding::new("source.table.kind", if named { Severity::Problem } else { severity }, what)
            .table(&relation.schema, &relation.name)
            .means("PostgreSQL's logical replication does not carry it: the target gets none of its rows.");
        found.push(match relation.persistence.as_str() {
            "u" => finding.mend(relation.owner(), format!("ALTER TABLE {} SET LOGGED;", relation.quoted())),
            _ => finding,
        });
    }
    found
}

/// How the tables of a flow come about.
#[derive(Clone, Copy, Debug)]
pub struct Chosen<'a> {
    /// By patterns, for a publication of ours.
    pub patterns: Option<&'a [String]>,
    /// Updates or deletes are published, and not inserts only.
    pub changes: bool,
}

/// Replica identities of the tables that are carried or would be.
pub fn identities(
    candidates: &[Candidate],
    relations: &HashMap<u32, &Relation>,
    carried: &[(String, String)],
    chosen: Chosen<'_>,
) -> Vec<Finding> {
    const ID: &str = "source.table.identity";
    let owned = |schema: &str, name: &str| {
        let of = relations.values().find(|r| r.schema == schema && r.name == name);
        Who::on(Side::Source, of.is_some_and(|r| r.owned))
    };
    let is_carried: std::collections::HashSet<(&str, &str)> =
        carried.iter().map(|(schema, name)| (schema.as_str(), name.as_str())).collect();
    let mut found = Vec::new();
    for table in candidates.iter().filter(|table| !table.identifiable()) {
        let text = format!("{}.{}", table.schema, table.name);
        let is_carried = is_carried.contains(&(table.schema.as_str(), table.name.as_str()));
        let (severity, means) = match (is_carried, chosen.patterns) {
            (true, _) if chosen.changes => (
                Severity::Problem,
                "It is published with updates and deletes, so the source's own UPDATE and DELETE of it fail.",
            ),
            (true, _) => (Severity::Note, "Only its inserts are published, for which no replica identity is needed."),
            (false, None) => continue,
            (false, Some(patterns)) => {
                let matching: Vec<&String> = patterns.iter().filter(|pattern| matches(pattern, &text)).collect();
                if matching.is_empty() {
                    continue;
                }
                match matching.iter().any(|pattern| !pattern.contains('*')) {
                    true => (
                        Severity::Problem,
                        "It was named, and in a publication of updates and deletes the source's own UPDATE of it \
                         would fail: `pgonce run` does not take it in.",
                    ),
                    false => (
                        Severity::Warning,
                        "It is left out and not carried: in a publication of updates and deletes the source's own \
                         UPDATE of it would fail.",
                    ),
                }
            }
        };
        let what = table.problem();
        let what = what.strip_prefix(&format!("table {text} has ")).unwrap_or(&what).to_owned();
        let finding = Finding::new(ID, severity, what).table(&table.schema, &table.name).means(means);
        let whole = severity == Severity::Note || table.mend().contains("...");
        found.push(match whole {
            true => finding,
            false => finding.mend(owned(&table.schema, &table.name), table.mend()),
        });
    }
    found
}

/// What the copy and the stream meet in tables that are carried.
pub fn carried(relation: &Relation, server: &Server, copies: bool) -> Vec<Finding> {
    let mut found = Vec::new();
    let (schema, name) = (relation.schema.as_str(), relation.name.as_str());
    let role = quote_ident(&server.role);
    let grave = if copies { Severity::Problem } else { Severity::Warning };
    if !relation.usage {
        found.push(
            Finding::new("source.privilege", grave, format!("role {} has no USAGE on schema {schema}", server.role))
                .table(schema, name)
                .means("The initial copy and `pgonce verify` read tables as this role.")
                .mend(Who::SourceAdmin, format!("GRANT USAGE ON SCHEMA {} TO {role};", quote_ident(schema))),
        );
    }
    if relation.rows_hidden {
        found.push(
            Finding::new(
                "source.row_security",
                grave,
                format!("row-level security hides rows from role {}", server.role),
            )
            .table(schema, name)
            .means("The copy would lack them, so it is refused. The stream has all rows, whatever the policies say.")
            .mend(Who::SourceAdmin, format!("ALTER ROLE {role} BYPASSRLS;")),
        );
    }
    if relation.identity == "f" {
        let (severity, what) = match relation.toast_bytes > 0 {
            true => {
                let size = bytes(relation.toast_bytes.unsigned_abs());
                (Severity::Warning, format!("replica identity FULL, and {size} of TOASTed values"))
            }
            false => (Severity::Note, "replica identity FULL".to_owned()),
        };
        let finding = Finding::new("source.table.full", severity, what).table(schema, name).means(
            "Each UPDATE and DELETE writes the whole old row to the WAL, TOASTed values included, and sends it. With a \
             key as identity, values that an UPDATE leaves alone stay out of both, and the target keeps what it has.",
        );
        found.push(match relation.key_usable {
            true => {
                finding.mend(relation.owner(), format!("ALTER TABLE {} REPLICA IDENTITY DEFAULT;", relation.quoted()))
            }
            false => finding,
        });
    }
    found
}

/// Whether a pattern names something that is there and cannot be replicated.
pub fn names_barred(relations: &[Relation], pattern: &str) -> bool {
    relations.iter().any(|relation| relation.barred().is_some() && matches(pattern, &relation.dotted()))
}

/// Partitions that are published as themselves, without a usable replica identity.
pub fn partitions(carried: &[&Relation], chosen: Chosen<'_>) -> Vec<Finding> {
    if !chosen.changes {
        return Vec::new();
    }
    let without = carried.iter().filter(|r| r.partition && !r.identifiable);
    without
        .map(|relation| {
            Finding::new("source.table.identity", Severity::Problem, "no usable replica identity")
                .table(&relation.schema, &relation.name)
                .means("It is published with updates and deletes, so the source's own UPDATE and DELETE of it fail.")
                .mend(relation.owner(), format!("ALTER TABLE {} REPLICA IDENTITY FULL;", relation.quoted()))
        })
        .collect()
}
