//! Checks that need both databases, and of others that write to the target.

use std::collections::{BTreeMap, HashMap, HashSet};

use pgonce::ident::quote_ident;
use tokio_postgres::{Client, Error};

use super::finding::{Finding, Severity, Subject, Who};
use super::names;
use super::pair::Carried;
use super::server::Server;
use super::target::Target;

/// An extension of a database.
pub type Extensions = BTreeMap<String, String>;

/// Names and versions of the extensions that a database has.
pub async fn extensions(client: &Client) -> Result<Extensions, Error> {
    let rows = client.query("SELECT e.extname::text, e.extversion FROM pg_extension e", &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Names of the extensions that could be made.
pub async fn available(client: &Client) -> Result<HashSet<String>, Error> {
    let rows = client.query("SELECT e.name::text FROM pg_available_extensions e", &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Versions, databases, encodings.
pub fn servers(source: &Server, target: &Server) -> Vec<Finding> {
    let mut found = Vec::new();
    const SAME: &str = "target.same_database";
    found.push(match (&source.identity, &target.identity) {
        (Some(a), Some(b)) if a == b => {
            Finding::new(SAME, Severity::Problem, format!("database {} is also the source", target.database))
                .means("A flow carries changes from one database to another: correct one of the two URLs.")
        }
        (Some(_), Some(_)) => Finding::ok(SAME, "source and target are two databases"),
        _ => Finding::new(SAME, Severity::Unknown, "whether source and target are two databases cannot be read")
            .means("The function pg_control_system() tells it, which a role here may not call."),
    });
    if target.major() < source.major() {
        found.push(
            Finding::new(
                "target.older",
                Severity::Note,
                format!("PostgreSQL {}, older than the source's {}", target.version_text, source.version_text),
            )
            .means(
                "The flow carries rows all the same; types and options that only the newer version has do not \
              exist here.",
            ),
        );
    }
    found.push(encoding(&source.encoding, &target.encoding));
    if source.collation != target.collation {
        let what =
            format!("the databases sort differently: {} on the source, {} here", source.collation, target.collation);
        found.push(
            Finding::new("target.collation", Severity::Note, what)
                .means("Rows that are sorted by texts come in another order. The flow itself is not concerned."),
        );
    }
    found
}

fn encoding(source: &str, target: &str) -> Finding {
    const ID: &str = "target.encoding";
    let both = format!("{source} on the source, {target} on the target");
    match (source, target) {
        (a, b) if a == b => Finding::ok(ID, format!("both databases are encoded in {a}")),
        ("SQL_ASCII", _) => Finding::new(ID, Severity::Warning, both).means(
            "The source does not know which characters its bytes mean: bytes that are no UTF8 cannot be carried, and \
             stop the flow.",
        ),
        (_, "UTF8" | "SQL_ASCII") => Finding::ok(ID, both),
        _ => Finding::new(ID, Severity::Warning, both)
            .means("A character that the target's encoding lacks stops the flow. A database in UTF8 has all of them."),
    }
}

/// Extensions of the types that are carried.
pub fn types(
    carried: &[Carried],
    source: &Extensions,
    target: &Extensions,
    available: &HashSet<String>,
) -> Vec<Finding> {
    let mut used: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for table in carried {
        for column in table.columns.iter() {
            if let Some(extension) = &column.kind.extension {
                used.entry(extension).or_default().push(format!("{}.{}.{}", table.schema, table.name, column.name));
            }
        }
    }
    let mut found = Vec::new();
    for (name, columns) in used {
        let of = Subject::Object(name.to_owned());
        let first = columns.first().map(String::as_str).unwrap_or_default();
        match (source.get(name), target.get(name)) {
            (_, None) => {
                let finding =
                    Finding::new("target.extension", Severity::Problem, format!("extension {name} is missing"))
                        .of(of)
                        .means(match available.contains(name) {
                            true => format!("Types of it are carried (column {first}, for one)."),
                            false => format!(
                                "Types of it are carried (column {first}, for one), and the server has no files of it: \
                             install its package first."
                            ),
                        });
                found.push(finding.mend(Who::TargetAdmin, format!("CREATE EXTENSION {} CASCADE;", quote_ident(name))));
            }
            (Some(here), Some(there)) if here != there => found.push(
                Finding::new(
                    "target.extension",
                    Severity::Note,
                    format!("extension {name} {there}, and {here} on the source"),
                )
                .of(of)
                .means("Values go over as text. Whether both versions read them alike is the extension's matter."),
            ),
            _ => found.push(Finding::ok("target.extension", format!("extension {name} is there")).of(of)),
        }
    }
    found
}

/// A subscription that writes to tables of the target's database: OIDs by name.
pub async fn subscriptions(client: &Client) -> Result<Vec<(String, Vec<u32>)>, Error> {
    let sql = "SELECT s.subname::text, array_agg(r.srrelid) FROM pg_subscription s \
         JOIN pg_subscription_rel r ON r.srsubid = s.oid WHERE s.subenabled \
           AND s.subdbid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()) GROUP BY 1 ORDER \
             BY 1";
    let rows = client.query(sql, &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Others that write to the same tables.
pub fn conflicts(
    flow: Option<&str>,
    target: &Target,
    subscriptions: &[(String, Vec<u32>)],
    tables: &HashMap<u32, (String, String)>,
) -> Vec<Finding> {
    let mut found = Vec::new();
    let ours: HashSet<&(String, String)> = tables.values().collect();
    for other in target.flows.iter().filter(|other| Some(other.name.as_str()) != flow && other.has_begun()) {
        // A fingerprint has names as they are, so that a dot in one is ambiguous: every reading counts.
        let both = other.tables.iter().flat_map(|text| {
            text.match_indices('.').map(|(at, _)| names::on_target(&text[..at], &text[at + 1..])).collect::<Vec<_>>()
        });
        for (schema, name) in both.filter(|name| ours.contains(name)) {
            found.push(
                Finding::new("target.conflict", Severity::Warning, format!("flow {} writes to it too", other.name))
                    .table(&schema, &name)
                    .means(
                        "Two flows into one table meet each other's rows as conflicts, unless their rows are apart. \
                         `pgonce reset` forgets a flow that is no longer wanted.",
                    ),
            );
        }
    }
    for (name, oids) in subscriptions {
        for (schema, table) in oids.iter().filter_map(|oid| tables.get(oid)) {
            found.push(
                Finding::new("target.conflict", Severity::Warning, format!("subscription {name} writes to it too"))
                    .table(schema, table)
                    .means("Both apply the same changes if they come from the same source, and the second one fails.")
                    .mend(Who::TargetAdmin, format!("ALTER SUBSCRIPTION {} DISABLE;", quote_ident(name))),
            );
        }
    }
    if found.is_empty() {
        found.push(Finding::ok("target.conflict", "nobody else is known to write to the tables"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(version: u32, identity: Option<&str>, encoding: &str) -> Server {
        let identity = identity.map(str::to_owned);
        Server { version, identity, encoding: encoding.to_owned(), ..Server::default() }
    }

    #[test]
    fn what_two_servers_are_to_each_other() {
        let at = |source: &Server, target: &Server, id: &str| {
            servers(source, target).into_iter().find(|f| f.id == id).map(|f| f.severity)
        };
        let new = server(180_000, Some("1/5"), "UTF8");
        assert_eq!(at(&new, &server(150_000, Some("2/5"), "UTF8"), "target.older"), Some(Severity::Note));
        assert_eq!(at(&new, &server(180_000, Some("2/5"), "UTF8"), "target.older"), None);
        assert_eq!(at(&new, &new, "target.same_database"), Some(Severity::Problem));
        let unknown = server(180_000, None, "UTF8");
        assert_eq!(at(&unknown, &unknown, "target.same_database"), Some(Severity::Unknown));
        let ascii = server(150_000, Some("1/5"), "SQL_ASCII");
        assert_eq!(at(&ascii, &new, "target.encoding"), Some(Severity::Warning));
        assert_eq!(at(&new, &ascii, "target.encoding"), Some(Severity::Ok));
    }
}
