//! Tables of the target: what the role may do to them, and what acts on what it writes.

use std::collections::HashMap;

use pgonce::ident::{quote_ident, quote_qualified};
use pgonce::stop::Side;
use tokio_postgres::{Client, Error};

use super::finding::{Finding, Severity, Who};
use super::server::Server;

/// A table of the target.
#[derive(Clone, Debug, Default)]
pub struct TargetTable {
    /// OID.
    pub oid: u32,
    /// Schema.
    pub schema: String,
    /// Name.
    pub name: String,
    /// `relkind`.
    pub kind: String,
    /// The role owns it, or is a member of the role that does.
    pub owned: bool,
    usage: bool,
    /// Of [`PRIVILEGES`], those that the role lacks.
    lacks: Vec<String>,
    row_security: bool,
    /// Name and `tgenabled`.
    triggers: Vec<(String, String)>,
    rules: Vec<(String, String)>,
    foreign_keys: Vec<String>,
    deferrable: Vec<String>,
    indexes: Vec<Index>,
    bytes: i64,
}

/// A valid btree index on columns alone, without a predicate.
#[derive(Clone, Debug)]
struct Index {
    primary: bool,
    columns: Vec<String>,
}

const PRIVILEGES: [&str; 5] = ["SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE"];

/// Asks for tables by schema and name. Those that do not exist are missing in the result.
pub async fn ask(client: &Client, names: &[(String, String)]) -> Result<HashMap<(String, String), TargetTable>, Error> {
    let lacks: Vec<String> =
        PRIVILEGES.iter().map(|p| format!("CASE WHEN NOT has_table_privilege(c.oid, '{p}') THEN '{p}' END")).collect();
    let sql = format!(
        "SELECT c.oid, n.nspname::text, c.relname::text, c.relkind::text, pg_has_role(c.relowner, 'USAGE'), \
           has_schema_privilege(n.oid, 'USAGE'), array_remove(ARRAY[{}], NULL), \
           c.relrowsecurity AND row_security_active(c.oid), \
           ARRAY(SELECT DISTINCT t.tgenabled::text || t.tgname FROM pg_trigger t WHERE NOT t.tgisinternal \
             AND t.tgenabled <> 'D' \
             AND (t.tgrelid = c.oid OR t.tgrelid IN (SELECT p.relid FROM pg_partition_tree(c.oid) p)) ORDER BY 1), \
           ARRAY(SELECT r.ev_enabled::text || r.rulename FROM pg_rewrite r WHERE r.ev_class = c.oid \
             AND r.ev_enabled <> 'D' AND r.rulename <> '_RETURN' ORDER BY 1), \
           ARRAY(SELECT o.conname::text FROM pg_constraint o WHERE o.conrelid = c.oid AND o.contype = 'f' ORDER BY 1), \
           ARRAY(SELECT o.conname::text FROM pg_constraint o WHERE o.conrelid = c.oid AND o.condeferrable \
             AND o.contype IN ('p', 'u', 'x') ORDER BY 1), \
           (SELECT jsonb_agg(jsonb_build_array(i.indisprimary, \
               (SELECT jsonb_agg(a.attname ORDER BY u.place) FROM unnest(i.indkey::int2[]) WITH ORDINALITY u (n, \
                 place) \
                 JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = u.n WHERE u.place <= i.indnkeyatts))) \
             FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am m ON m.oid = x.relam \
             WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL \
               AND m.amname = 'btree')::text, \
           CASE c.relkind WHEN 'p' THEN (SELECT sum(pg_relation_size(p.relid)) FROM pg_partition_tree(c.oid) p)::int8 \
             WHEN 'r' THEN pg_relation_size(c.oid) ELSE 0 END \
         FROM unnest($1::text[], $2::text[]) u (schema, name) JOIN pg_namespace n ON n.nspname = u.schema \
         JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = u.name AND c.relkind IN ('r', 'p', 'v', 'm', 'f')",
        lacks.join(", ")
    );
    let (schemas, tables): (Vec<&str>, Vec<&str>) = names.iter().map(|(s, n)| (s.as_str(), n.as_str())).unzip();
    let mut found = HashMap::new();
    for row in client.query(&sql, &[&schemas, &tables]).await? {
        let marked = |at| {
            let texts: Vec<String> = row.get(at);
            texts.iter().map(|text| (text[1..].to_owned(), text[..1].to_owned())).collect()
        };
        let table = TargetTable {
            oid: row.get(0),
            schema: row.get(1),
            name: row.get(2),
            kind: row.get(3),
            owned: row.get(4),
            usage: row.get(5),
            lacks: row.get(6),
            row_security: row.get(7),
            triggers: marked(8),
            rules: marked(9),
            foreign_keys: row.get(10),
            deferrable: row.get(11),
            indexes: indexes(row.get::<_, Option<String>>(12).as_deref().unwrap_or("[]")),
            bytes: row.get::<_, Option<i64>>(13).unwrap_or_default(),
        };
        found.insert((table.schema.clone(), table.name.clone()), table);
    }
    Ok(found)
}

fn indexes(json: &str) -> Vec<Index> {
    let parsed: Vec<(bool, Vec<String>)> = serde_json::from_str(json).unwrap_or_default();
    parsed.into_iter().map(|(primary, columns)| Index { primary, columns }).collect()
}

/// Of these tables, those that hold rows. `None` where it could not be found out in time.
pub async fn filled(client: &Client, tables: &[&TargetTable]) -> Result<Option<Vec<u32>>, Error> {
    let mut found = Vec::new();
    // A table without a single block has no rows. Each one that is looked into is locked until its query ends.
    let suspects: Vec<&&TargetTable> = tables.iter().filter(|t| t.bytes > 0 && t.reads()).collect();
    for part in suspects.chunks(500) {
        let one = |t: &&&TargetTable| {
            let only = if t.kind == "p" { "" } else { "ONLY " };
            format!("SELECT {}::oid WHERE EXISTS (SELECT FROM {only}{})", t.oid, quote_qualified(&t.schema, &t.name))
        };
        let sql = part.iter().map(one).collect::<Vec<_>>().join(" UNION ALL ");
        match client.query(&sql, &[]).await {
            Ok(rows) => found.extend(rows.iter().map(|row| row.get::<_, u32>(0))),
            // A timeout, or a table that somebody has locked.
            Err(error) if error.as_db_error().is_some() => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(found))
}

impl TargetTable {
    /// Rows can be written to it.
    pub fn is_table(&self) -> bool {
        matches!(self.kind.as_str(), "r" | "p")
    }

    /// The role may look into it.
    pub fn reads(&self) -> bool {
        self.is_table() && self.usage && !self.row_security && !self.lacks.iter().any(|p| p == "SELECT")
    }

    /// Schema-qualified and quoted.
    pub fn quoted(&self) -> String {
        quote_qualified(&self.schema, &self.name)
    }

    /// Who may alter it.
    pub fn owner(&self) -> Who {
        Who::on(Side::Target, self.owned)
    }

    fn finding(&self, id: &'static str, severity: Severity, found: impl Into<String>) -> Finding {
        Finding::new(id, severity, found).table(&self.schema, &self.name)
    }

    /// What the role may do to it, and what acts on what is written.
    pub fn check(&self, server: &Server, quiet: bool) -> Vec<Finding> {
        let mut found = Vec::new();
        let role = quote_ident(&server.role);
        if !self.usage {
            found.push(
                self.finding("target.privilege", Severity::Problem, format!("no USAGE on schema {}", self.schema))
                    .means(format!("Role {} cannot write to it as the flow needs.", server.role))
                    .mend(Who::TargetAdmin, format!("GRANT USAGE ON SCHEMA {} TO {role};", quote_ident(&self.schema))),
            );
        }
        if !self.lacks.is_empty() {
            let lacks = self.lacks.join(", ");
            let truncate = self.lacks == ["TRUNCATE"];
            let means = match truncate {
                true => format!("A TRUNCATE on the source would stop the flow: role {} may not.", server.role),
                false => format!("Role {} cannot write to it as the flow needs.", server.role),
            };
            found.push(
                self.finding(
                    "target.privilege",
                    if truncate { Severity::Warning } else { Severity::Problem },
                    format!("no {lacks}"),
                )
                .means(means)
                .mend(Who::TargetAdmin, format!("GRANT {lacks} ON {} TO {role};", self.quoted())),
            );
        } else if !self.owned {
            found.push(self.finding("target.owner", Severity::Note, "owned by another role").means(format!(
                "Role {} may write to it, and that is enough, but for TRUNCATE ... RESTART IDENTITY on the source: \
                     that asks for the owner of the sequence, and would stop the flow.",
                server.role
            )));
        }
        if self.row_security {
            found.push(
                self.finding("target.row_security", Severity::Problem, "row-level security applies to the role")
                    .means("Rows that a policy hides or refuses would stop the flow, so pgonce does not begin.")
                    .mend(Who::TargetAdmin, format!("ALTER ROLE {role} BYPASSRLS;")),
            );
        }
        found.extend(self.acting(quiet, &role, server));
        if quiet && !self.deferrable.is_empty() {
            found.push(
                self.finding(
                    "target.table.deferrable",
                    Severity::Note,
                    format!("deferrable: {}", self.deferrable.join(", ")),
                )
                .means(
                    "Deferrable unique and exclusion constraints are checked by triggers, which keep still while the \
                     flow writes: they hold as far as the source's do.",
                ),
            );
        }
        found
    }

    /// Triggers, rules and foreign keys that act on what the flow writes.
    fn acting(&self, quiet: bool, role: &str, server: &Server) -> Vec<Finding> {
        let mut found = Vec::new();
        let acts = |enabled: &str| if quiet { matches!(enabled, "R" | "A") } else { matches!(enabled, "O" | "A") };
        let names = |of: &[(String, String)]| {
            of.iter().filter(|(_, enabled)| acts(enabled)).map(|(name, _)| name.clone()).collect::<Vec<String>>()
        };
        let (triggers, rules) = (names(&self.triggers), names(&self.rules));
        let silence = |kind: &str, names: &[String]| {
            let alter = |n: &String| format!("ALTER TABLE {} DISABLE {kind} {};", self.quoted(), quote_ident(n));
            names.iter().map(alter).collect::<Vec<_>>().join("\n")
        };
        for (id, kind, names) in
            [("target.table.triggers", "TRIGGER", &triggers), ("target.table.rules", "RULE", &rules)]
        {
            if names.is_empty() {
                continue;
            }
            let what = format!("acts on what the flow writes: {} {}", kind.to_lowercase(), names.join(", "));
            found.push(
                self.finding(id, Severity::Warning, what)
                    .means(
                        "What it did on the source comes with the changes, and is done again on the target. One that \
                         keeps a row out stops the flow. Enable it again at the handoff.",
                    )
                    .mend(self.owner(), silence(kind, names)),
            );
        }
        if !quiet && !self.foreign_keys.is_empty() {
            let what = format!("checked on what the flow writes: {}", self.foreign_keys.join(", "));
            let finding = self.finding("target.table.foreign_keys", Severity::Warning, what).means(
                "The copy takes one table after the other: rows whose parents come later are refused, and an ON DELETE \
                 CASCADE does again what the source has done.",
            );
            found.push(match server.version >= 150_000 {
                true => finding
                    .mend(Who::TargetAdmin, format!("GRANT SET ON PARAMETER session_replication_role TO {role};")),
                false => {
                    let drop =
                        |n: &String| format!("ALTER TABLE {} DROP CONSTRAINT {};", self.quoted(), quote_ident(n));
                    finding.mend(self.owner(), self.foreign_keys.iter().map(drop).collect::<Vec<_>>().join("\n"))
                }
            });
        }
        found
    }

    /// An index by which updates and deletes find their row. `key`: columns of the source's replica identity; `any`:
    /// the whole row identifies, and any index helps. `first`: a column to index.
    pub fn index(&self, key: &[String], any: bool, first: Option<&str>) -> Option<Finding> {
        let covers = |index: &Index| {
            index.columns.first().is_some_and(|first| key.contains(first))
                && index.columns.iter().all(|c| key.contains(c))
        };
        let quoted: Vec<String> = key.iter().map(|c| quote_ident(c)).collect();
        if any && key.is_empty() {
            if !self.indexes.is_empty() {
                return None;
            }
            let finding = self
                .finding("target.table.index", Severity::Warning, "no index, and no key on the source")
                .means("Each UPDATE and DELETE reads the whole table to find its row. An index on any column helps.");
            let create = |column: &str| format!("CREATE INDEX ON {} ({});", self.quoted(), quote_ident(column));
            return Some(match first {
                Some(column) => finding.mend(self.owner(), create(column)),
                None => finding,
            });
        }
        if key.is_empty() || self.indexes.iter().any(covers) {
            return None;
        }
        let unique = match self.indexes.iter().any(|i| i.primary) {
            true => format!("CREATE UNIQUE INDEX ON {} ({});", self.quoted(), quoted.join(", ")),
            false => format!("ALTER TABLE {} ADD PRIMARY KEY ({});", self.quoted(), quoted.join(", ")),
        };
        Some(
            self.finding("target.table.index", Severity::Warning, format!("no index on the key: {}", key.join(", ")))
                .means("Each UPDATE and DELETE reads the whole table to find its row.")
                .mend(self.owner(), unique),
        )
    }
}
