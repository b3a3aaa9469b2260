//! The initial copy: 5,000,000 rows in one table, and 20 small ones.
//!
//! `copy` begins with an empty database and ends when all rows and all keys are there; `copy-keys` begins with the
//! tables and their keys. Peers are bare binary COPY pipes between two `psql`, `pgcopydb clone` where the system has
//! it, and a native subscription's initial synchronisation.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tokio_postgres::Client;

use super::latency::PUBLICATION;
use crate::contestant::{Contestant, Kind};
use crate::measure::{Bench, Measured};
use crate::sample::Sampler;
use crate::stand::{Databases, Stand};

/// Rows of the large table.
const ROWS: u64 = 5_000_000;

/// The small tables, and the rows of each.
const SMALL_TABLES: u32 = 20;
const SMALL_ROWS: u64 = 1_000;

/// Tables, or ranges of one, that are copied at a time: as many as the machine that this is made for has processors.
const JOBS: u32 = 2;

const LOOK: Duration = Duration::from_millis(20);

/// The longest that one run may take.
const RUN_MAX: Duration = Duration::from_secs(900);

/// What the target has before the copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begin {
    /// Nothing.
    Empty,
    /// The tables with their keys.
    Keys,
}

/// The source's tables, and where they go.
#[derive(Debug)]
pub struct Copy {
    databases: Databases,
    begin: Begin,
    rows: u64,
    fingerprint: String,
}

/// Who can copy from such a beginning.
pub fn peers(begin: Begin, major: u32) -> Vec<Contestant> {
    let peer = |kind| Contestant { kind, synchronous: false };
    match begin {
        Begin::Keys => vec![peer(Kind::Pipe), peer(Kind::Native { binary: true, streaming: "off" })],
        // Debian's package is made for Debian's own major.
        Begin::Empty if major == 15 => vec![peer(Kind::Pipe), peer(Kind::Pgcopydb)],
        Begin::Empty => vec![peer(Kind::Pipe)],
    }
}

impl Copy {
    /// Fills the source.
    pub async fn prepare(bench: &Bench<'_>, begin: Begin) -> Result<Copy> {
        let databases = bench.stand.databases("bench").await?;
        let rows = (ROWS / u64::from(bench.scale_div)).max(SMALL_ROWS);
        let source = &databases.source;
        for (table, rows) in tables(rows) {
            source.batch_execute(&create(&table, true)).await?;
            let fill = format!(
                "INSERT INTO {table}
                 SELECT i, ((i * 7919) % 1000003)::int, md5(i::text) || md5((i + 1)::text) || md5((i + 2)::text),
                        '2024-01-01'::timestamptz + i * interval '1 ms', (i * 1.37)::numeric(14, 2),
                        jsonb_build_object('k', i, 's', left(md5(i::text), 8))
                 FROM generate_series(1, {rows}::bigint) AS i"
            );
            source.batch_execute(&fill).await?;
            source.batch_execute(&format!("VACUUM ANALYZE {table}")).await?;
        }
        source.batch_execute(&format!("CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")).await?;
        source.batch_execute("CHECKPOINT").await?;
        let fingerprint = fingerprint(source).await?;
        Ok(Copy { databases, begin, rows, fingerprint })
    }

    /// Lets one contestant copy everything.
    pub async fn run(&self, bench: &Bench<'_>, contestant: Contestant) -> Result<Measured> {
        self.reset().await?;
        let databases = &self.databases;
        let (source, target) = bench.stand.watchers(databases).await?;
        let who = contestant.name();
        let begun = Instant::now();
        let (seconds, extra) = match contestant.kind {
            Kind::Native { binary, .. } => {
                let sampler = Sampler::start(source, target, None);
                self.native(binary, begun).await?;
                (begun.elapsed(), sampler.finish().await?)
            }
            Kind::Pipe | Kind::Pgcopydb | Kind::Pgonce => {
                let mut program = match contestant.kind {
                    Kind::Pipe => self.pipe(bench)?,
                    Kind::Pgcopydb => self.pgcopydb(bench)?,
                    _ => self.pgonce(bench)?,
                };
                let sampler = Sampler::start(source, target, Some(program.id()));
                let status = ended(&mut program, begun).await.with_context(|| format!("waiting for {who}"))?;
                ensure!(status.success(), "{who} ended with {status}:\n{}", last_words(&log(bench.scratch)));
                (begun.elapsed(), sampler.finish().await?)
            }
            Kind::Reader(_) | Kind::Decoder(_) => bail!("{who} copies nothing"),
        };
        self.check(contestant).await?;
        self.clear().await?;
        Ok(Measured::new(contestant, seconds.as_secs_f64(), extra))
    }

    /// `CREATE SUBSCRIPTION ... copy_data`, until every table is in step.
    async fn native(&self, binary: bool, begun: Instant) -> Result<()> {
        let target = &self.databases.target;
        let sql = format!(
            "CREATE SUBSCRIPTION bench CONNECTION '{}' PUBLICATION {PUBLICATION} WITH (binary = {binary})",
            self.databases.source_url
        );
        target.batch_execute(&sql).await.context("creating the subscription")?;
        let ready = "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate = 'r'";
        while target.query_one(ready, &[]).await?.get::<_, i64>(0) < i64::from(SMALL_TABLES) + 1 {
            ensure!(begun.elapsed() < RUN_MAX, "native has not copied after {} s", RUN_MAX.as_secs());
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// One shell that does what a careful hand would: the tables, largest first, two at a time, then their keys.
    fn pipe(&self, bench: &Bench<'_>) -> Result<Child> {
        let mut script = String::from("set -euo pipefail\n");
        let psql = "psql -X -q -v ON_ERROR_STOP=1 -d";
        script.push_str(&format!("copy() {{ {psql} \"$SOURCE\" -c \"COPY $1 TO STDOUT (FORMAT binary)\" | "));
        script.push_str(&format!("{psql} \"$TARGET\" -c \"COPY $1 FROM STDIN (FORMAT binary)\"; }}\nexport -f copy\n"));
        let names: Vec<String> = tables(self.rows).into_iter().map(|(table, _)| table).collect();
        if self.begin == Begin::Empty {
            let creates: String = names.iter().map(|table| create(table, false) + "\n").collect();
            script.push_str(&format!("{psql} \"$TARGET\" <<'SQL'\n{creates}SQL\n"));
        }
        script.push_str(&format!("printf '%s\\n' {} | xargs -P {JOBS} -I T bash -c 'copy T'\n", names.join(" ")));
        if self.begin == Begin::Empty {
            let keys: String = names.iter().map(|t| format!("ALTER TABLE {t} ADD PRIMARY KEY (id);\n")).collect();
            script.push_str(&format!("{psql} \"$TARGET\" <<'SQL'\n{keys}SQL\n"));
        }
        let mut command = Command::new("bash");
        command.arg("-c").arg(script);
        command.env("SOURCE", &self.databases.source_url).env("TARGET", &self.databases.target_url);
        start(command, bench.scratch)
    }

    fn pgcopydb(&self, bench: &Bench<'_>) -> Result<Child> {
        let folder = bench.scratch.join("pgcopydb");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let mut command = Command::new("pgcopydb");
        command.arg("clone").arg("--dir").arg(&folder);
        command.args(["--table-jobs", &JOBS.to_string(), "--index-jobs", &JOBS.to_string()]);
        command.args(["--no-owner", "--no-acl", "--skip-extensions", "--skip-large-objects"]);
        command.env("PGCOPYDB_SOURCE_PGURI", &self.databases.source_url);
        command.env("PGCOPYDB_TARGET_PGURI", &self.databases.target_url);
        start(command, bench.scratch).context("starting pgcopydb; type: scripts/setup bench")
    }

    fn pgonce(&self, bench: &Bench<'_>) -> Result<Child> {
        let data = bench.scratch.join("data");
        if data.exists() {
            fs::remove_dir_all(&data)?;
        }
        let mut command = Command::new(bench.pgonce);
        command.args(["run", "--until", "now", "--flow", "bench", "--stream", "none", "--publication", PUBLICATION]);
        command.args(["--source", &self.databases.source_url, "--target", &self.databases.target_url]);
        command.args(["--jobs", &JOBS.to_string()]).arg("--data-dir").arg(data);
        if self.begin == Begin::Empty {
            command.args(["--copy-schema", "true"]);
        }
        start(command, bench.scratch)
    }

    /// The target as it is before a copy.
    async fn reset(&self) -> Result<()> {
        self.clear().await?;
        let target = &self.databases.target;
        target.batch_execute("DROP SCHEMA IF EXISTS pgonce CASCADE").await?;
        for (table, _) in tables(self.rows) {
            target.batch_execute(&format!("DROP TABLE IF EXISTS {table}")).await?;
            if self.begin == Begin::Keys {
                target.batch_execute(&create(&table, true)).await?;
            }
        }
        target.batch_execute("CHECKPOINT").await?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok(())
    }

    /// Nothing is left that replicates.
    async fn clear(&self) -> Result<()> {
        let Databases { source, target, .. } = &self.databases;
        let there = "SELECT 1 FROM pg_subscription WHERE subname = 'bench'";
        if target.query_opt(there, &[]).await?.is_some() {
            target.batch_execute("DROP SUBSCRIPTION bench").await?;
        }
        // `pgcopydb` takes publications along.
        target.batch_execute(&format!("DROP PUBLICATION IF EXISTS {PUBLICATION}")).await?;
        let slots = "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database()";
        for row in source.query(slots, &[]).await? {
            self.databases.drop_slot(row.get(0)).await?;
        }
        // What `pgcopydb` leaves on the source.
        source.batch_execute("DROP SCHEMA IF EXISTS pgcopydb CASCADE").await?;
        Ok(())
    }

    /// A time counts only if everything has arrived, keys too.
    async fn check(&self, contestant: Contestant) -> Result<()> {
        let target = &self.databases.target;
        let who = contestant.name();
        let rows: i64 = target.query_one("SELECT count(*) FROM bulk", &[]).await?.get(0);
        ensure!(u64::try_from(rows) == Ok(self.rows), "{who} left {rows} rows instead of {}", self.rows);
        ensure!(fingerprint(target).await? == self.fingerprint, "{who} left other content than the source has");
        let sql = "SELECT count(*) FROM pg_index WHERE indisprimary AND indisvalid
                   AND indrelid::regclass::text ~ '^(bulk|small_.*)$'";
        let keys: i64 = target.query_one(sql, &[]).await?.get(0);
        ensure!(keys == i64::from(SMALL_TABLES) + 1, "{who} left {keys} primary keys");
        Ok(())
    }

    /// Its databases.
    pub fn databases(&self) -> &Databases {
        &self.databases
    }

    /// Removes it.
    pub async fn finish(self, stand: &Stand) -> Result<()> {
        stand.drop_databases(self.databases).await
    }
}

/// Names and numbers of rows, the largest first.
fn tables(rows: u64) -> Vec<(String, u64)> {
    let small = (1..=SMALL_TABLES).map(|number| (format!("small_{number}"), SMALL_ROWS));
    std::iter::once(("bulk".to_owned(), rows)).chain(small).collect()
}

fn create(table: &str, key: bool) -> String {
    let key = if key { " PRIMARY KEY" } else { " NOT NULL" };
    format!("CREATE TABLE {table} (id bigint{key}, a int, b text, c timestamptz, d numeric, e jsonb);")
}

async fn fingerprint(client: &Client) -> Result<String> {
    let sql = "SELECT (SELECT sum(hashtext(t::text)::bigint) FROM bulk t)::text || ' ' ||
                      (SELECT sum(hashtext(t::text)::bigint) FROM small_20 t)::text";
    Ok(client.query_one(sql, &[]).await?.get(0))
}

fn log(folder: &Path) -> std::path::PathBuf {
    folder.join("copy.log")
}

/// Starts a program in a process group of its own, so that what it has started ends with it.
fn start(mut command: Command, folder: &Path) -> Result<Child> {
    fs::create_dir_all(folder)?;
    let out = File::create(log(folder))?;
    command.stdin(Stdio::null()).stderr(out.try_clone()?).stdout(out).process_group(0);
    Ok(command.spawn()?)
}

async fn ended(program: &mut Child, begun: Instant) -> Result<ExitStatus> {
    loop {
        if let Some(status) = program.try_wait()? {
            return Ok(status);
        }
        if begun.elapsed() > RUN_MAX {
            // It fails where the program has just ended, which is what is wanted.
            let _ = program.kill();
            bail!("it has not ended after {} s", RUN_MAX.as_secs());
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn last_words(log: &Path) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pgcopydb_takes_part_where_its_package_is_made_for() {
        let names = |begin, major| peers(begin, major).into_iter().map(Contestant::name).collect::<Vec<_>>();
        assert_eq!(names(Begin::Empty, 15), ["pipe", "pgcopydb"]);
        assert_eq!(names(Begin::Empty, 18), ["pipe"]);
        assert_eq!(names(Begin::Keys, 18), ["pipe", "native"]);
    }
}
