//! Takes the source's schema with `pg_dump`: what comes before the rows, and what comes after them.

use std::io::Read;
use std::process::{Child, Command, Stdio};

use pgonce::connect::{ConnectionSettings, connect_sql};
use pgonce::sql_error::stop_from_sql;
use pgonce::stop::{Reason, Side, Stop};

use super::tools::{self, Tool};
use super::{SchemaCopy, environment};

/// The schema of the source at one moment, as SQL.
pub(super) struct Dump {
    /// Types, functions, tables, sequences, views.
    pub(super) before: String,
    /// Indexes, constraints, triggers, rules, policies.
    pub(super) after: String,
}

/// What is never taken: the state of flows, what makes the source replicate, where it keeps its files, and labels of
/// modules that the target need not have.
const ALWAYS: [&str; 8] = [
    "--schema-only",
    "--encoding=UTF8",
    "--no-password",
    "--no-publications",
    "--no-subscriptions",
    "--no-security-labels",
    "--no-tablespaces",
    "--exclude-schema=pgonce",
];

/// Takes both parts, under one snapshot.
pub(super) async fn take(copy: &SchemaCopy) -> Result<Dump, Stop> {
    let source = connect_sql(&copy.source, "schema").await.map_err(|e| e.into_stop(Side::Source))?;
    let failed = |e| stop_from_sql(Side::Source, &e);
    let begin = "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY";
    source.client.batch_execute(begin).await.map_err(failed)?;
    let sql = "SELECT pg_catalog.current_setting('server_version_num')::pg_catalog.int4 / 10000, \
               pg_catalog.pg_export_snapshot()";
    let row = source.client.query_one(sql, &[]).await.map_err(failed)?;
    let (major, snapshot): (i32, String) = (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
    let tool = tools::find(copy.tools.as_deref(), major.unsigned_abs())?;
    tracing::info!(program = %tool.program.display(), major = tool.major, "the source's schema is dumped");
    let before = run(copy, &tool, "pre-data", &snapshot).await?;
    let after = run(copy, &tool, "post-data", &snapshot).await?;
    Ok(Dump { before, after })
}

async fn run(copy: &SchemaCopy, tool: &Tool, section: &str, snapshot: &str) -> Result<String, Stop> {
    let mut command = Command::new(&tool.program);
    command.args(ALWAYS).arg(format!("--section={section}")).arg(format!("--snapshot={snapshot}"));
    if !copy.privileges {
        command.args(["--no-owner", "--no-privileges"]);
    }
    command.env_clear().envs(environment::variables(&copy.source)).env("LC_ALL", "C");
    for kept in ["PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH"] {
        command.envs(std::env::var_os(kept).map(|value| (kept, value)));
    }
    let local = |error: std::io::Error| {
        Stop::from(Reason::LocalFile { path: tool.program.display().to_string(), what: error.to_string() })
    };
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(local)?;
    let mut child = Killed(child);
    let (stdout, stderr) = (child.0.stdout.take(), child.0.stderr.take());
    let (text, said) = tokio::join!(read(stdout), read(stderr));
    // Both pipes are at their end: the program is about to end, or has.
    let status = child.0.wait().map_err(local)?;
    if !status.success() {
        return Err(refused(&copy.source, &String::from_utf8_lossy(&said.map_err(local)?), status.to_string()));
    }
    String::from_utf8(text.map_err(local)?).map_err(|_| {
        let what = "the source's schema holds bytes that are not UTF-8 (its database has the encoding SQL_ASCII)";
        let hint = "Rename what is named so, or create the schema yourself and leave copy_schema out.";
        Reason::SourceNotReady { what: what.to_owned(), hint: hint.to_owned() }.into()
    })
}

/// Reads to the end, aside: what is written here may be long in coming.
async fn read(pipe: Option<impl Read + Send + 'static>) -> std::io::Result<Vec<u8>> {
    let Some(mut pipe) = pipe else { return Ok(Vec::new()) };
    let read = tokio::task::spawn_blocking(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).map(|_| bytes)
    });
    read.await.unwrap_or_else(|_| Err(std::io::Error::other("it was not read to its end")))
}

/// Kills the program when it is dropped: a flow that is told to stop leaves none behind.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// Why `pg_dump` failed. It has read nothing but the catalog, so that its words hold no row.
fn refused(source: &ConnectionSettings, said: &str, status: String) -> Stop {
    let said = said.lines().find_map(|line| line.split_once("error: ")).map_or(status, |(_, error)| error.to_owned());
    let said: String = said.chars().take(400).collect();
    let passing =
        ["Connection refused", "closed the connection", "terminat", "starting up", "shutting down", "timeout"];
    if passing.iter().any(|words| said.contains(words)) {
        return Reason::Connection { side: Side::Source, what: format!("pg_dump: {said}") }.into();
    }
    let hint = if said.contains("permission denied") {
        format!(
            "pg_dump reads every table of the database outside the schema pgonce, published or not. As an \
             administrator, on the source: GRANT pg_read_all_data TO {}; or create the schema yourself and leave \
             copy_schema out.",
            pgonce::ident::quote_ident(&source.user)
        )
    } else {
        "Try it by hand: pg_dump --schema-only \"$SOURCE_URL\". Or create the schema yourself and leave copy_schema \
         out."
            .to_owned()
    };
    Reason::SourceNotReady { what: format!("pg_dump cannot dump the schema: {said}"), hint }.into()
}

#[cfg(test)]
mod tests {
    use pgonce::connect::Environment;

    use super::*;

    fn refusal(said: &str) -> Stop {
        let source = ConnectionSettings::parse("user=ann dbname=d", &Environment::empty()).unwrap();
        refused(&source, said, "exit status: 1".to_owned())
    }

    #[test]
    fn a_missing_right_is_told_with_the_grant() {
        let stop = refusal("pg_dump: error: query failed: ERROR:  permission denied for table t\npg_dump: detail: x\n");
        assert_eq!(stop.code(), "source_not_ready");
        assert!(stop.to_string().contains("permission denied for table t"), "{stop}");
        assert!(stop.hint().contains("GRANT pg_read_all_data TO \"ann\";"), "{}", stop.hint());
    }

    #[test]
    fn a_server_that_is_away_is_waited_for() {
        let stop = refusal("pg_dump: error: connection to server at \"db\", port 5432 failed: Connection refused\n");
        assert!(stop.is_transient(), "{stop:?}");
        assert!(!refusal("").is_transient());
        assert!(refusal("").to_string().contains("exit status: 1"));
    }
}
