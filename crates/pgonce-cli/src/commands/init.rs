//! `pgonce init`: a file to start from, and the SQL for an administrator. Nothing in a database is touched.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use clap::Args;
use pgonce::ident::{quote_ident, quote_literal, quote_qualified};
use serde_json::json;

use crate::config::flags::{DEFAULT_FILE, FlowOptions};
use crate::config::sample::sample;
use crate::config::{self, FlowConfig, Publish};
use crate::failure::Failure;
use crate::output::Output;

/// Arguments of `pgonce init`.
#[derive(Args, Debug)]
pub struct InitArguments {
    /// Write over a file that exists
    #[arg(long, conflicts_with = "sql")]
    pub force: bool,
    /// Print the SQL that an administrator types where the roles of the two URLs may not create things themselves
    #[arg(long)]
    pub sql: bool,
    /// The flow
    #[command(flatten)]
    pub options: FlowOptions,
}

/// Writes the file, or prints the SQL.
///
/// # Errors
///
/// The file exists or cannot be written; with `--sql`, the configuration is not valid.
pub fn execute(arguments: &InitArguments, output: Output) -> Result<(), Failure> {
    if arguments.sql {
        let sql = sql_for_admins(&config::load(&arguments.options)?);
        match output.is_json() {
            true => output.object(&json!({"source_sql": sql.source, "target_sql": sql.target})),
            false => output.line(&format!("{}\n{}", sql.source, sql.target)),
        }
        return Ok(());
    }
    if let Some(given) = arguments.options.keys.0.0.values().flatten().next() {
        let hint = "Write the file first, then edit it; or pass the flags to `pgonce run`, which needs no file.";
        return Err(Failure::usage(format!("{} does not go into the file that init writes", given.place), hint));
    }
    let path = arguments.options.named_file().unwrap_or_else(|| DEFAULT_FILE.into());
    write_sample(&path, arguments.force)?;
    if output.is_json() {
        output.object(&json!({"event": "written", "path": path.display().to_string()}));
    } else {
        output.line(&format!(
            "Wrote {}. Next: set SOURCE_URL and TARGET_URL, edit the file, then type `pgonce run`.",
            path.display()
        ));
    }
    Ok(())
}

fn write_sample(path: &Path, force: bool) -> Result<(), Failure> {
    let mut options = OpenOptions::new();
    options.write(true);
    match force {
        true => options.create(true).truncate(true),
        false => options.create_new(true),
    };
    let written = options.open(path).and_then(|mut file| file.write_all(sample().as_bytes()));
    written.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Failure::usage(
            format!("{} exists", path.display()),
            "It was left as it is. `pgonce init --force` writes over it, --config names another file.",
        ),
        _ => Failure::file(path, &error),
    })
}

struct Sql {
    source: String,
    target: String,
}

fn sql_for_admins(config: &FlowConfig) -> Sql {
    let role = quote_ident(&config.source.connection.user);
    let database = quote_ident(&config.source.connection.dbname);
    let publication = match &config.source.publish {
        Publish::Existing(names) => {
            let names: Vec<String> = names.iter().map(|name| quote_ident(name)).collect();
            format!("-- The publications exist and are used as they are: {}\n", names.join(", ").replace('\n', " "))
        }
        Publish::Ours { name, tables } => format!(
            "-- pgonce makes this publication itself where its role owns the tables and may CREATE in the database.\n\
             -- Otherwise list the tables here{}; each needs a primary key or REPLICA IDENTITY FULL:\n\
             CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true);\n",
            if tables.is_empty() { "" } else { " that match the configured patterns" },
            quote_ident(name),
            table_list(tables),
        ),
    };
    let source = format!(
        "-- ==== For the source: {} ====\n\
         -- As an administrator. Needs wal_level = logical (a restart):\n\
         --   ALTER SYSTEM SET wal_level = 'logical';\n\
         ALTER ROLE {role} WITH REPLICATION;\n\
         GRANT CONNECT ON DATABASE {database} TO {role};\n\
         -- For the initial copy, in each schema that is carried:\n\
         GRANT USAGE ON SCHEMA public TO {role};\n\
         GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role};\n\
         {publication}\
         -- pgonce makes the slot itself. To make it beforehand:\n\
         --   SELECT pg_create_logical_replication_slot({}, 'pgoutput');\n",
        config.source.connection.to_string().replace('\n', " "),
        quote_literal(&config.source.slot).replace('\n', " "),
    );
    let role = quote_ident(&config.target.connection.user);
    let target = format!(
        "-- ==== For the target: {} ====\n\
         -- As an administrator: the ledger, and what the role needs.\n\
         {}\n\
         GRANT USAGE ON SCHEMA pgonce TO {role};\n\
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pgonce TO {role};\n\
         -- In each schema that is carried:\n\
         GRANT USAGE ON SCHEMA public TO {role};\n\
         GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA public TO {role};\n\
         -- Optional, from version 15 on. Without it, triggers and foreign keys of the target act on what is written:\n\
         --   GRANT SET ON PARAMETER session_replication_role TO {role};",
        config.target.connection.to_string().replace('\n', " "),
        pgonce_target::LEDGER_SQL.trim_end(),
    );
    Sql { source, target }
}

/// Named tables as they are; for wildcards a place to fill in.
fn table_list(patterns: &[String]) -> String {
    let named = |pattern: &String| match pattern.split_once('.') {
        Some((schema, table)) if !pattern.contains('*') => quote_qualified(schema, table),
        _ => format!("... /* {} */", pattern.replace("*/", "* /").replace("/*", "/ *")),
    };
    if patterns.is_empty() { "...".to_owned() } else { patterns.iter().map(named).collect::<Vec<_>>().join(", ") }
}
