//! Checks of the target's server and role, and of the ledger.

use pgonce::ident::quote_ident;
use pgonce_target::{LEDGER_SQL, LEDGER_VERSION};
use serde_json::Value;
use tokio_postgres::{Client, Error};

use super::finding::{Finding, Severity, Subject, Who};
use super::server::Server;
use super::source;

/// What the target says of the ledger and of what the role may.
#[derive(Debug, Default)]
pub struct Target {
    ledger: Ledger,
    /// `session_replication_role` can be set: triggers and foreign keys keep still.
    pub quiet: bool,
    origins: bool,
    read_only_by_default: bool,
    /// The flows that write here, as far as they can be read.
    pub flows: Vec<Flow>,
}

#[derive(Debug, Default)]
struct Ledger {
    exists: bool,
    usage: bool,
    owned: bool,
    tables: Vec<String>,
    /// Those that the role may not read and write.
    barred: Vec<String>,
    version: Option<i32>,
}

/// A flow that writes to the target.
#[derive(Clone, Debug, Default)]
pub struct Flow {
    /// Its name.
    pub name: String,
    /// `new`, `copying` or `streaming`.
    pub phase: String,
    /// The source that it is bound to.
    pub system_identifier: String,
    /// The tables that it publishes, as `schema.table` of the source.
    pub tables: Vec<String>,
}

impl Flow {
    /// Something has been applied, or copied.
    pub fn has_begun(&self) -> bool {
        self.phase != "new"
    }
}

impl Target {
    /// Asks.
    pub async fn ask(client: &Client, server: &Server) -> Result<Target, Error> {
        let sql = "SELECT n.oid IS NOT NULL, coalesce(has_schema_privilege(n.oid, 'USAGE'), false), \
               coalesce(pg_has_role(n.nspowner, 'USAGE'), false), \
               ARRAY(SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind = 'r' ORDER \
                 BY 1), \
               ARRAY(SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind = 'r' \
                 AND NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT') \
                   AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE')) ORDER BY 1), \
               (SELECT bool_and(has_function_privilege(p.oid, 'EXECUTE')) FROM pg_proc p \
                 WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname IN ('pg_replication_origin_create', \
                   'pg_replication_origin_session_setup', 'pg_replication_origin_xact_setup', \
                   'pg_replication_origin_session_reset')) \
             FROM (SELECT) one LEFT JOIN pg_namespace n ON n.nspname = 'pgonce'";
        let row = client.query_one(sql, &[]).await?;
        let mut ledger = Ledger {
            exists: row.get(0),
            usage: row.get(1),
            owned: row.get(2),
            tables: row.get(3),
            barred: row.get(4),
            version: None,
        };
        let may_read = |table: &str| {
            let table = table.to_owned();
            ledger.usage && ledger.tables.contains(&table) && !ledger.barred.contains(&table)
        };
        let mut flows = Vec::new();
        let (reads_meta, reads_flow) = (may_read("meta"), may_read("flow"));
        if reads_meta {
            let rows = client.query("SELECT m.version FROM pgonce.meta m", &[]).await?;
            ledger.version = rows.first().map(|row| row.get(0));
        }
        if reads_flow {
            let rows = client.query("SELECT to_jsonb(f)::text FROM pgonce.flow f ORDER BY f.name", &[]).await?;
            flows.extend(rows.iter().filter_map(|row| row.get::<_, String>(0).parse().ok()).map(|f: Value| flow(&f)));
        }
        // Whether it can be set is not only a matter of the role: hosted services have ways of their own.
        let quiet = match client.batch_execute("SET session_replication_role = replica").await {
            Ok(()) => true,
            Err(error) if error.as_db_error().is_some() => false,
            Err(error) => return Err(error),
        };
        if quiet {
            client.batch_execute("RESET session_replication_role").await?;
        }
        Ok(Target {
            ledger,
            quiet,
            origins: row.get::<_, Option<bool>>(5).unwrap_or_default(),
            read_only_by_default: server.setting("default_transaction_read_only") == Some("on"),
            flows,
        })
    }

    /// The flow of this name.
    pub fn flow(&self, name: Option<&str>) -> Option<&Flow> {
        self.flows.iter().find(|flow| Some(flow.name.as_str()) == name)
    }

    /// The ledger is there, readable, and of our version.
    pub fn is_current(&self) -> bool {
        self.ledger.version == Some(LEDGER_VERSION) && self.ledger.usage && self.ledger.barred.is_empty()
    }

    /// Version, role, ledger.
    pub fn check(&self, server: &Server, jobs: usize) -> Vec<Finding> {
        let mut found = vec![source::version("target.version", server), self.writable(server)];
        found.extend(self.ledger.check(server));
        found.push(self.triggers(server));
        found.push(self.origins(server));
        found.push(source::connections("target.connections", Who::TargetAdmin, server, jobs));
        found.push(Finding::new("target.disk", Severity::Unknown, "how much disk is free cannot be asked").means(
            "The copy takes about what the tables take on the source, and as much WAL: look at the file system \
                 (df) yourself.",
        ));
        found
    }

    fn writable(&self, server: &Server) -> Finding {
        const ID: &str = "target.writable";
        if server.in_recovery {
            return Finding::new(ID, Severity::Problem, "the server is a standby")
                .means("Nothing can be written to it. Point the URL at its primary, or promote it.");
        }
        match self.read_only_by_default {
            false => Finding::ok(ID, "transactions can write"),
            true => Finding::new(ID, Severity::Warning, "default_transaction_read_only is on")
                .means("pgonce writes in transactions that ask for it, but cannot make its schema.")
                .mend(
                    Who::TargetRole,
                    format!(
                        "ALTER ROLE {} IN DATABASE {} SET default_transaction_read_only = off;",
                        quote_ident(&server.role),
                        quote_ident(&server.database)
                    ),
                ),
        }
    }

    fn triggers(&self, server: &Server) -> Finding {
        const ID: &str = "target.session_replication_role";
        let finding = match self.quiet {
            true => {
                return Finding::ok(ID, "session_replication_role can be set: triggers and foreign keys keep still");
            }
            false => {
                Finding::new(ID, Severity::Note, format!("role {} cannot set session_replication_role", server.role))
            }
        };
        let means = "Optional. Without it, triggers, rules and foreign keys of the target act on what the flow writes: \
                     tables that have some are named.";
        match server.version >= 150_000 {
            true => finding.means(means).mend(
                Who::TargetAdmin,
                format!("GRANT SET ON PARAMETER session_replication_role TO {};", quote_ident(&server.role)),
            ),
            false => finding.means(format!("{means} Before PostgreSQL 15, only a superuser can set it.")),
        }
    }

    fn origins(&self, server: &Server) -> Finding {
        const ID: &str = "target.origins";
        if self.origins {
            return Finding::ok(ID, "replication origins can be used");
        }
        let role = quote_ident(&server.role);
        let functions = [
            "pg_replication_origin_create(text)",
            "pg_replication_origin_session_setup",
            "pg_replication_origin_session_reset()",
            "pg_replication_origin_xact_setup(pg_lsn, timestamptz)",
        ];
        let grants = functions.map(|f| format!("GRANT EXECUTE ON FUNCTION pg_catalog.{f} TO {role};")).join("\n");
        Finding::new(ID, Severity::Note, format!("role {} cannot use replication origins", server.role))
            .means("Optional. Only a flow in the other direction needs them, to tell these writes from its own.")
            .mend(Who::TargetAdmin, grants)
    }
}

fn flow(row: &Value) -> Flow {
    let text = |name: &str| row.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    // Lines of a fingerprint, such as `publishes 16384 # table public.t`.
    let tables = text("published");
    let tables = tables.lines().filter(|line| line.starts_with("publishes "));
    let tables = tables.filter_map(|line| Some(line.split_once(" # table ")?.1.to_owned())).collect();
    Flow { name: text("name"), phase: text("phase"), system_identifier: text("system_identifier"), tables }
}

/// What lets a role use the ledger.
pub fn ledger_grants(role: &str) -> String {
    format!(
        "GRANT USAGE ON SCHEMA pgonce TO {role};\nGRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA \
          pgonce TO \
         {role};",
        role = quote_ident(role)
    )
}

impl Ledger {
    fn check(&self, server: &Server) -> Vec<Finding> {
        const ID: &str = "target.ledger";
        let made = format!("{}\n{}", LEDGER_SQL.trim_end(), ledger_grants(&server.role));
        let of = || Subject::Object("pgonce".to_owned());
        let finding = if !self.exists || self.tables.is_empty() {
            let may = if self.exists { self.owned } else { server.may_create };
            match may {
                true => Finding::ok(ID, "schema pgonce does not exist yet: pgonce makes it").of(of()),
                false => {
                    let found = format!("role {} may not make the schema pgonce", server.role);
                    Finding::new(ID, Severity::Problem, found)
                        .of(of())
                        .means(
                            "pgonce keeps the flow's checkpoint there. `pgonce init --sql=target` prints it for \
                          an admin.",
                        )
                        .mend(Who::TargetAdmin, made)
                }
            }
        } else if !self.usage || !self.barred.is_empty() {
            let found = match self.usage {
                false => format!("role {} has no USAGE on schema pgonce", server.role),
                true => format!("role {} may not read and write pgonce.{}", server.role, self.barred.join(", pgonce.")),
            };
            Finding::new(ID, Severity::Problem, found)
                .of(of())
                .means("pgonce keeps the flow's checkpoint there.")
                .mend(Who::TargetAdmin, ledger_grants(&server.role))
        } else {
            match self.version {
                Some(version) if version == LEDGER_VERSION => {
                    Finding::ok(ID, format!("schema pgonce exists, with version {version}")).of(of())
                }
                Some(version) if version > LEDGER_VERSION => Finding::new(
                    ID,
                    Severity::Problem,
                    format!("schema pgonce has version {version}, and this pgonce knows up to {LEDGER_VERSION}"),
                )
                .of(of())
                .means("Run the newer pgonce that made it."),
                Some(version) => Finding::new(
                    ID,
                    if self.owned { Severity::Note } else { Severity::Problem },
                    format!("schema pgonce has version {version}, and this pgonce has {LEDGER_VERSION}"),
                )
                .of(of())
                .means("Its tables have to be brought up to date, by a role that owns them.")
                .mend(Who::on(pgonce::stop::Side::Target, self.owned), made),
                None => Finding::new(ID, Severity::Problem, "schema pgonce exists, and has no version")
                    .of(of())
                    .means("What is in it is not a ledger, or not a whole one. It is not taken for a fresh start."),
            }
        };
        vec![finding]
    }
}
