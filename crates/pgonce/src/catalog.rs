//! What the source's catalog says: publications, published tables. One query each, whatever the number of tables.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::Client;

use crate::ident::{quote_ident, quote_literal, quote_qualified};
use crate::partitions::Partition;
use crate::pgoutput::ReplicaIdentity;
use crate::position::{Boundary, Lsn};
use crate::published::{Member, Published, PublishedTable};
pub use crate::slot_state::{SlotState, slot_state};
use crate::sql_error::{fault_of, stop_from_sql};
use crate::stop::{Reason, Side, Stop};

/// One of the publications that publishes no operation at all, if there is one.
pub(crate) async fn mute_publication(client: &Client, publications: &[String]) -> Result<Option<String>, Stop> {
    let sql = "SELECT p.pubname::text FROM pg_catalog.pg_publication p WHERE p.pubname = ANY ($1) \
         AND NOT (p.pubinsert OR p.pubupdate OR p.pubdelete OR p.pubtruncate) ORDER BY 1 LIMIT 1";
    let row = client.query_opt(sql, &[&publications]).await.map_err(|e| stop_from_sql(Side::Source, &e))?;
    Ok(row.map(|row| row.get(0)))
}

/// The failure to read the catalog as a whole. What is dropped at the same moment may be seen by a part of a question
/// and not by another, for which PostgreSQL has no better word than an internal error: the next reading is in order.
pub(crate) fn reading_failed(error: tokio_postgres::Error) -> Stop {
    match error.as_db_error() {
        Some(db) if db.code().code() == "XX000" => Reason::Busy { side: Side::Source, fault: fault_of(db) }.into(),
        _ => stop_from_sql(Side::Source, &error),
    }
}

/// Publications and their tables, as they are now.
///
/// # Errors
///
/// One of the publications does not exist, or the source cannot be asked.
pub async fn published(client: &Client, version: u32, publications: &[String]) -> Result<Published, Stop> {
    let failed = reading_failed;
    let names: Vec<&str> = publications.iter().map(String::as_str).collect();
    let (mut members, mut warnings) = (Vec::new(), Vec::new());
    let sql = "SELECT p.oid, p.pubname::text, p.puballtables, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, \
         p.pubviaroot, coalesce(pg_catalog.to_jsonb(p) ->> 'pubgencols', ''), p.xmin::text \
         FROM pg_catalog.pg_publication p \
         WHERE p.pubname = ANY ($1)";
    let mut found = Vec::new();
    for row in client.query(sql, &[&names]).await.map_err(failed)? {
        let (oid, name): (u32, String) = (row.get(0), row.get(1));
        let flags: String = (2..8).map(|i| if row.get::<_, bool>(i) { '1' } else { '0' }).collect();
        let generated: String = row.get(8);
        let operations = ["insert", "update", "delete", "truncate"];
        let published = |at: &usize| row.get::<_, bool>(3 + *at);
        let (sent, kept): (Vec<usize>, Vec<usize>) = (0..operations.len()).partition(published);
        let [sent, kept] = [sent, kept].map(|ats| ats.iter().map(|at| operations[*at]).collect::<Vec<_>>());
        if !kept.is_empty() {
            let kept = kept.join(", ");
            warnings.push(format!("publication {name} leaves out {kept}: the target will not see these changes"));
        }
        if row.get(2) {
            warnings.push(format!(
                "publication {name} is FOR ALL TABLES: a table or partition made later joins the flow, and stops \
                 it where the target has no such table; a publication of named tables avoids that"
            ));
        }
        members.push(Member {
            // With xmin, a change that was made and undone between two looks shows too.
            key: format!("publication {oid} {flags} {generated} {}", row.get::<_, String>(9)),
            label: format!("publication {name} with {}", sent.join(", ")),
            table: 0,
        });
        found.push(name);
    }
    if let Some(missing) = publications.iter().find(|p| !found.contains(p)) {
        let row = client.query_one("SELECT pg_catalog.current_database()::text", &[]).await.map_err(failed)?;
        return Err(Reason::PublicationMissing { publication: missing.clone(), database: row.get(0) }.into());
    }
    let details = if version >= 150_000 {
        "r.prattrs::text, pg_catalog.md5(pg_catalog.pg_get_expr(r.prqual, r.prrelid))"
    } else {
        "NULL::text, NULL::text"
    };
    let sql = format!(
        "SELECT r.oid, r.prrelid, n.nspname::text, c.relname::text, p.pubname::text, {details}, r.xmin::text \
         FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid \
         JOIN pg_catalog.pg_class c ON c.oid = r.prrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE p.pubname = ANY ($1)"
    );
    for row in client.query(&sql, &[&names]).await.map_err(failed)? {
        let (member, table): (u32, u32) = (row.get(0), row.get(1));
        let (schema, name, publication): (String, String, String) = (row.get(2), row.get(3), row.get(4));
        let columns: Option<String> = row.get(5);
        let filter: Option<String> = row.get(6);
        let parts = [(columns.is_some(), "columns"), (filter.is_some(), "rows")];
        for (_, part) in parts.iter().filter(|(limited, _)| *limited) {
            warnings.push(format!("publication {publication} carries only some {part} of table {schema}.{name}"));
        }
        members.push(Member {
            key: format!(
                "member {member} {table} [{}] {} {}",
                columns.unwrap_or_default(),
                filter.unwrap_or_default(),
                row.get::<_, String>(7)
            ),
            label: format!("table {schema}.{name} as a member of publication {publication}"),
            table,
        });
    }
    if version >= 150_000 {
        let sql = "SELECT s.oid, n.nspname::text, p.pubname::text, s.xmin::text FROM \
        pg_catalog.pg_publication_namespace s \
             JOIN pg_catalog.pg_publication p ON p.oid = s.pnpubid JOIN pg_catalog.pg_namespace n ON n.oid = s.pnnspid \
             WHERE p.pubname = ANY ($1)";
        for row in client.query(sql, &[&names]).await.map_err(failed)? {
            let (member, schema, publication): (u32, String, String) = (row.get(0), row.get(1), row.get(2));
            members.push(Member {
                key: format!("schema {member} {}", row.get::<_, String>(3)),
                label: format!("schema {schema} as a member of publication {publication}"),
                table: 0,
            });
        }
    }
    let tables = tables(client, version, &names).await?;
    let partitions = partitions(client, &tables).await?;
    members.extend(tables.iter().map(|t| Member {
        key: format!("publishes {}", t.oid),
        label: format!("table {t}"),
        table: t.oid,
    }));
    members.sort();
    Ok(Published { members, partitions, tables, warnings })
}

/// Partitions of published roots, and published tables that are partitions. Without a lock on any of them: what holds
/// one for long (VACUUM FULL) is not waited for. All partitions of the database are read, and put together here: the
/// planner would misjudge a recursive query by far.
async fn partitions(client: &Client, tables: &[PublishedTable]) -> Result<Vec<Partition>, Stop> {
    let sql = "SELECT i.inhrelid, i.inhparent, i.xmin::text, i.cmin::text::int8, c.relfilenode, c.xmin::text::int8, \
           pg_catalog.format('%I.%I', n.nspname, c.relname), pg_catalog.format('%I.%I', m.nspname, p.relname) \
         FROM pg_catalog.pg_inherits i \
         JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         JOIN pg_catalog.pg_class p ON p.oid = i.inhparent JOIN pg_catalog.pg_namespace m ON m.oid = p.relnamespace \
         WHERE c.relispartition AND c.relkind IN ('r', 'p', 'f') AND NOT i.inhdetachpending";
    struct Attached {
        oid: u32,
        parent: u32,
        by: String,
        command: i64,
        storage: u32,
        changed_by: i64,
        name: String,
        parent_name: String,
    }
    let rows = client.query(sql, &[]).await.map_err(reading_failed)?;
    let attached = rows.iter().map(|row| Attached {
        oid: row.get(0),
        parent: row.get(1),
        by: row.get(2),
        command: row.get(3),
        storage: row.get(4),
        changed_by: row.get(5),
        name: row.get(6),
        parent_name: row.get(7),
    });
    let attached: HashMap<u32, Attached> = attached.map(|a| (a.oid, a)).collect();
    let (roots, own): (Vec<&PublishedTable>, Vec<&PublishedTable>) = tables.iter().partition(|t| t.partitioned);
    let [roots, own] = [roots, own].map(|tables| tables.iter().map(|t| t.oid).collect::<HashSet<u32>>());
    let mut partitions = Vec::new();
    for partition in attached.values() {
        let levels = || std::iter::successors(Some(partition), |level| attached.get(&level.parent));
        // Published as the topmost that is.
        let published = levels().filter(|level| roots.contains(&level.parent)).last();
        let Some(top) = published.or_else(|| levels().last().filter(|_| own.contains(&partition.oid))) else {
            continue;
        };
        let below = || levels().take_while(|level| level.oid != top.oid).chain([top]);
        let by: Vec<&str> = match published {
            Some(_) => vec![&partition.by],
            None => below().map(|level| level.by.as_str()).collect(),
        };
        let command = below().filter(|level| level.by == partition.by).map(|level| level.command).max();
        partitions.push(Partition {
            oid: partition.oid,
            root: top.parent,
            own: published.is_none(),
            attached: by.join("."),
            storage: partition.storage,
            changed_by: u32::try_from(partition.changed_by).unwrap_or(0),
            command: command.unwrap_or(partition.command),
            label: format!("partition {} of {}", partition.name, top.parent_name),
        });
    }
    partitions.sort_by_key(|p| p.oid);
    Ok(partitions)
}

/// Whether a partition that is new may have held rows when it was attached. `None`: it is locked, and cannot be looked
/// into now.
///
/// One that was made as a partition held none. One that was made and attached by one transaction did, if a row of that
/// transaction, written by an earlier command, is on its first page. Of any other, rows from before cannot be told from
/// rows since.
pub(crate) async fn held_rows(client: &Client, partition: &Partition) -> Result<Option<bool>, Stop> {
    let Partition { oid, root, ref attached, command, storage, .. } = *partition;
    // A row of a system column is written with the table, and never again.
    let made = "SELECT a.xmin::text = $2 FROM pg_catalog.pg_attribute a WHERE a.attrelid = $1 AND a.attnum = -1";
    let made = client.query_opt(made, &[&oid, attached]).await.map_err(|e| stop_from_sql(Side::Source, &e))?;
    let made_attached = made.is_some_and(|row| row.get(0));
    if storage == 0 {
        return Ok(Some(!made_attached));
    }
    let ask = async |question: String| {
        // One message is one transaction: the setting is gone after it.
        let sql = format!("SELECT pg_catalog.set_config('lock_timeout', '200ms', true); SELECT {question}");
        let messages = client.simple_query(&sql).await?;
        Ok::<bool, tokio_postgres::Error>(
            messages.iter().rev().find_map(|message| match message {
                tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(|text| text == "t"),
                _ => None,
            }) == Some(true),
        )
    };
    let code = |error: &tokio_postgres::Error| error.code().map(|c| c.code().to_owned()).unwrap_or_default();
    let judged = |asked: Result<bool, tokio_postgres::Error>| match asked {
        Ok(held) => Ok(Some(held)),
        Err(error) => match code(&error).as_str() {
            "55P03" | "40P01" => Ok(None),
            // Dropped meanwhile, or not ours to read: the next look tells, or it is told though it may be nothing.
            "42P01" => Ok(None),
            "42501" => Ok(Some(true)),
            _ => Err(stop_from_sql(Side::Source, &error)),
        },
    };
    let any = judged(ask(format!("pg_catalog.pg_relation_size({oid}::oid::regclass) > 0")).await)?;
    if any != Some(true) || !made_attached {
        return Ok(any);
    }
    let names = "SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_class c \
                 JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1";
    let name = async |oid: u32| {
        let row = client.query_opt(names, &[&oid]).await.map_err(|e| stop_from_sql(Side::Source, &e))?;
        Ok::<_, Stop>(row.map(|row| quote_qualified(row.get(0), row.get(1))))
    };
    let (Some(table), Some(root)) = (name(oid).await?, name(root).await?) else { return Ok(None) };
    let earlier = format!("t.ctid < '(1,0)' AND t.xmin = '{attached}' AND t.cmin::text::int8 < {command}");
    let direct = ask(format!("EXISTS (SELECT FROM ONLY {table} AS t WHERE {earlier})")).await;
    match &direct {
        // The privilege on the root is enough to read it through the root.
        Err(error) if code(error) == "42501" => {
            let through = format!("EXISTS (SELECT FROM {root} AS t WHERE t.tableoid = {oid} AND {earlier})");
            judged(ask(through).await)
        }
        _ => judged(direct),
    }
}

async fn tables(client: &Client, version: u32, publications: &[&str]) -> Result<Vec<PublishedTable>, Stop> {
    let (attnames, columns, filter) = if version >= 150_000 {
        ("t.attnames", "(p.attnames IS NULL OR a.attname = ANY (p.attnames))", "t.rowfilter")
    } else {
        ("NULL::name[]", "true", "NULL::text")
    };
    // Before version 18 no generated column is sent, whatever a list says.
    let generated = if version >= 180_000 { "a.attgenerated = 's' AND p.attnames IS NOT NULL" } else { "false" };
    // The view is read once: it goes through all tables of a publication, whatever is asked of it. `listed` is computed
    // there, so that the list of all columns is not sorted along with each of them.
    let sql = format!(
        "WITH v AS MATERIALIZED (SELECT t.schemaname, t.tablename, {filter} AS rowfilter, {attnames} AS attnames, \
             {attnames} IS NOT NULL AS listed \
           FROM pg_catalog.pg_publication_tables t WHERE t.pubname = ANY ($1)), \
         p AS MATERIALIZED (SELECT t.schemaname, t.tablename, CASE WHEN pg_catalog.bool_and(t.rowfilter IS NOT NULL) \
               THEN pg_catalog.string_agg(DISTINCT '(' || t.rowfilter || ')', ' OR ') END AS filter, \
             CASE WHEN pg_catalog.bool_and(t.listed) THEN pg_catalog.array_agg(u.attname) END AS attnames \
           FROM v t LEFT JOIN LATERAL pg_catalog.unnest(t.attnames) u (attname) ON true GROUP BY 1, 2) \
         SELECT c.oid, n.nspname::text, c.relname::text, c.relkind::text, c.relreplident::text, \
           ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 \
             AND NOT a.attisdropped AND a.attgenerated = '' AND {columns} ORDER BY a.attnum), \
           p.filter, \
           ARRAY(SELECT a.attname::text FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a \
             ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey) WHERE i.indrelid = c.oid AND i.indisvalid \
             AND CASE c.relreplident WHEN 'i' THEN i.indisreplident WHEN 'n' THEN false ELSE i.indisprimary END \
             ORDER BY pg_catalog.array_position(i.indkey::int2[], a.attnum)), \
           coalesce(pg_catalog.pg_table_size(c.oid), 0)::int8, greatest(c.reltuples, 0)::int8, \
           ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 \
             AND NOT a.attisdropped AND a.attgenerated <> '' ORDER BY a.attnum), \
           ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 \
             AND NOT a.attisdropped AND (a.attgenerated = '' OR {generated}) AND {columns} ORDER BY a.attnum) \
         FROM p JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname \
         JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename ORDER BY 2, 3"
    );
    let rows = client.query(&sql, &[&publications]).await.map_err(reading_failed)?;
    Ok(rows
        .iter()
        .map(|row| PublishedTable {
            oid: row.get(0),
            schema: row.get(1),
            name: row.get(2),
            partitioned: row.get::<_, String>(3) == "p",
            identity: identity(row.get::<_, String>(4).as_bytes()),
            columns: row.get(5),
            row_filter: row.get(6),
            key: row.get(7),
            bytes: u64::try_from(row.get::<_, i64>(8)).unwrap_or(0),
            rows_estimated: u64::try_from(row.get::<_, i64>(9)).unwrap_or(0),
            generated: row.get(10),
            streamed: row.get(11),
        })
        .collect())
}

pub(crate) fn identity(relreplident: &[u8]) -> ReplicaIdentity {
    relreplident.first().and_then(|b| ReplicaIdentity::from_byte(*b)).unwrap_or(ReplicaIdentity::Nothing)
}

/// Which of `oids` are still tables of the source.
pub(crate) async fn existing(client: &Client, oids: &[u32]) -> Result<Vec<u32>, Stop> {
    let rows = client
        .query("SELECT c.oid FROM pg_catalog.pg_class c WHERE c.oid = ANY ($1)", &[&oids])
        .await
        .map_err(|e| stop_from_sql(Side::Source, &e))?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// The source's write position. On a standby, what it has replayed.
pub(crate) async fn insert_position(client: &Client) -> Result<Boundary, Stop> {
    Ok(write_positions(client).await?.0)
}

/// A position that covers everything that has been committed, and that the walsender will reach without anybody
/// writing.
///
/// A walsender sends what is flushed. An asynchronous commit is flushed within three times `wal_writer_delay`; what is
/// still not flushed then holds no commit, and may stay so for as long as nothing else is written.
pub(crate) async fn committed_position(client: &Client) -> Result<Boundary, Stop> {
    let (wanted, mut flushed, delay) = write_positions(client).await?;
    let deadline = Instant::now() + 3 * delay + Duration::from_millis(200);
    while flushed < wanted && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
        flushed = write_positions(client).await?.1;
    }
    Ok(wanted.min(flushed))
}

/// The write position, the flush position, and `wal_writer_delay`.
async fn write_positions(client: &Client) -> Result<(Boundary, Boundary, Duration), Stop> {
    let sql = "SELECT CASE WHEN r THEN pg_catalog.pg_last_wal_replay_lsn() \
           ELSE pg_catalog.pg_current_wal_insert_lsn() END::text, \
         CASE WHEN r THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_flush_lsn() END::text, \
         (SELECT s.setting::int4 FROM pg_catalog.pg_settings s WHERE s.name = 'wal_writer_delay') \
         FROM pg_catalog.pg_is_in_recovery() r";
    let row = client.query_one(sql, &[]).await.map_err(|e| stop_from_sql(Side::Source, &e))?;
    let lsn = |at| row.get::<_, String>(at).parse::<Lsn>().map(|lsn| Boundary(lsn.before_page_header()));
    let broken = |_| Stop::internal("a position of the source is no LSN");
    let delay = Duration::from_millis(u64::try_from(row.get::<_, i32>(2)).unwrap_or(200));
    Ok((lsn(0).map_err(broken)?, lsn(1).map_err(broken)?, delay))
}

/// Whether a change of a publication is under way: made, perhaps already in the WAL, and not yet visible.
pub(crate) async fn publication_change_in_flight(client: &Client) -> Result<bool, Stop> {
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity a WHERE a.wait_event = 'SyncRep' \
           AND a.datname = pg_catalog.current_database()) \
         OR EXISTS (SELECT FROM pg_catalog.pg_locks l WHERE l.locktype = 'object' AND l.granted \
         AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()) \
         AND l.mode = 'AccessExclusiveLock' AND l.classid IN ('pg_catalog.pg_publication'::regclass, \
         'pg_catalog.pg_publication_rel'::regclass, pg_catalog.to_regclass('pg_catalog.pg_publication_namespace')))";
    let row = client.query_one(sql, &[]).await.map_err(|e| stop_from_sql(Side::Source, &e))?;
    Ok(row.get(0))
}

/// A table that could be published.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Schema.
    pub schema: String,
    /// Name.
    pub name: String,
    identity: ReplicaIdentity,
    /// Whether the table itself has what its identity is said to be.
    usable: bool,
    /// Whether FULL would do.
    full_usable: bool,
    /// Whether DEFAULT would do.
    key_usable: bool,
    /// Partitions, quoted, that would have to be changed: their identity is their own, and what the stream says of a
    /// row is what the partition's says, under the name of the root's.
    partitions: Vec<String>,
}

impl Candidate {
    /// Whether publishing its updates and deletes leaves the source's own UPDATE and DELETE working, and tells which
    /// row they mean.
    pub fn identifiable(&self) -> bool {
        self.usable && self.partitions.is_empty()
    }

    /// What is wrong with it.
    pub fn problem(&self) -> String {
        let (schema, name) = (&self.schema, &self.name);
        if self.usable {
            let partitions = self.partitions.join(", ");
            return format!("table {schema}.{name} has partitions without its replica identity ({partitions})");
        }
        let why = match self.identity {
            ReplicaIdentity::Default => "no primary key, or one that is deferrable or has a generated column",
            ReplicaIdentity::Index => "the index that it uses is gone, or has a generated column",
            ReplicaIdentity::Full => "it is FULL, and generated columns are not sent",
            ReplicaIdentity::Nothing => "it is NOTHING",
        };
        format!("table {schema}.{name} has no usable replica identity ({why})")
    }

    /// The SQL that mends it.
    pub fn mend(&self) -> String {
        let identity = match (self.full_usable, self.key_usable) {
            (true, _) => "FULL",
            (false, true) => "DEFAULT",
            (false, false) => "USING INDEX ... /* a unique one, of columns that are NOT NULL and not generated */",
        };
        let root = (!self.usable).then(|| quote_qualified(&self.schema, &self.name));
        let tables = root.iter().chain(&self.partitions);
        tables.map(|t| format!("ALTER TABLE {t} REPLICA IDENTITY {identity};")).collect::<Vec<_>>().join(" ")
    }
}

/// An SQL condition: the table with this alias has what its replica identity (an SQL expression) is said to be, and
/// all of it is sent. The server asks for no less before it lets an UPDATE through; about generated columns from
/// version 18 on.
pub fn usable_identity(table: &str, identity: &str) -> String {
    let generated = |columns: &str| {
        format!(
            "NOT EXISTS (SELECT FROM pg_catalog.pg_attribute g WHERE g.attrelid = {table}.oid AND g.attnum > 0 \
             AND NOT g.attisdropped AND g.attgenerated <> '' {columns})"
        )
    };
    let full = format!("(pg_catalog.current_setting('server_version_num')::int4 < 180000 OR {})", generated(""));
    format!(
        "CASE {identity} WHEN 'f' THEN {full} WHEN 'n' THEN false \
         ELSE EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = {table}.oid AND i.indisvalid \
           AND i.indisunique AND i.indimmediate AND i.indpred IS NULL \
           AND CASE {identity} WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END AND {}) END",
        generated("AND g.attnum = ANY (i.indkey)")
    )
}

/// The tables that patterns choose.
#[derive(Debug)]
pub(crate) struct Choice {
    /// Schema and name of those that can be published.
    pub(crate) tables: Vec<(String, String)>,
    /// Those that cannot, each with the reason and the SQL that mends it.
    pub(crate) left_out: Vec<String>,
}

/// The query for every table that could be published: schema, name, replica identity, whether the table has what that
/// is said to be, whether FULL would do, whether DEFAULT would, and the partitions (quoted) without it.
fn candidates_sql() -> String {
    format!(
        "SELECT n.nspname::text, c.relname::text, c.relreplident::text, {root}, {full}, {key}, \
           ARRAY(SELECT pg_catalog.format('%I.%I', ln.nspname, l.relname) \
             FROM pg_catalog.pg_partition_tree(CASE c.relkind WHEN 'p' THEN c.oid END) t \
             JOIN pg_catalog.pg_class l ON l.oid = t.relid JOIN pg_catalog.pg_namespace ln ON ln.oid = l.relnamespace \
             WHERE l.relkind = 'r' \
               AND NOT ({leaf} AND (l.relreplident = 'f' OR c.relreplident = l.relreplident AND {root})) ORDER BY 1) \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition \
           AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pgonce') AND n.nspname NOT LIKE 'pg\\_%' \
         ORDER BY 1, 2",
        root = usable_identity("c", "c.relreplident"),
        leaf = usable_identity("l", "l.relreplident"),
        full = usable_identity("c", "'f'"),
        key = usable_identity("c", "'d'"),
    )
}

/// Every table that could be published: permanent, not a partition, and not the system's.
///
/// # Errors
///
/// The source cannot be asked.
pub async fn candidates(client: &Client) -> Result<Vec<Candidate>, Stop> {
    let rows = client.query(&candidates_sql(), &[]).await.map_err(reading_failed)?;
    let candidate = |row: &tokio_postgres::Row| Candidate {
        schema: row.get(0),
        name: row.get(1),
        identity: identity(row.get::<_, String>(2).as_bytes()),
        usable: row.get(3),
        full_usable: row.get(4),
        key_usable: row.get(5),
        partitions: row.get(6),
    };
    Ok(rows.iter().map(candidate).collect())
}

/// The tables that match `patterns` (`schema.table`, `*` for any run of characters).
///
/// A table without a usable replica identity is left out if a wildcard found it and refused if it was named: with it
/// in a publication of updates, the source's own UPDATE would fail.
pub(crate) async fn choose(client: &Client, patterns: &[String]) -> Result<Choice, Stop> {
    let candidates = candidates(client).await?;
    let (mut tables, mut left_out) = (Vec::new(), Vec::new());
    for pattern in patterns {
        let matching: Vec<&Candidate> =
            candidates.iter().filter(|c| matches(pattern, &format!("{}.{}", c.schema, c.name))).collect();
        if matching.is_empty() {
            return Err(Reason::SourceNotReady {
                what: format!("no table matches {pattern:?}"),
                hint: "Patterns are schema.table, with * for any characters; temporary, unlogged, foreign and \
                system tables \
                     cannot be replicated."
                    .to_owned(),
            }
            .into());
        }
        for table in matching {
            if table.identifiable() {
                let chosen = (table.schema.clone(), table.name.clone());
                if !tables.contains(&chosen) {
                    tables.push(chosen);
                }
                continue;
            }
            let (what, mend) = (table.problem(), table.mend());
            if !pattern.contains('*') {
                let hint = format!(
                    "In a publication of updates and deletes, the source's own UPDATE of it would fail. Type \
                    {mend} or give it \
                     a primary key; or publish its inserts only, in a publication of your own."
                );
                return Err(Reason::SourceNotReady { what, hint }.into());
            }
            left_out.push(format!("{what}: left out. To replicate it: {mend}"));
        }
    }
    Ok(Choice { tables, left_out })
}

/// What pgonce writes into the comment of a publication that it makes, and looks for before it removes one.
pub const PUBLICATION_COMMENT: &str = "made by pgonce";

/// Makes a publication of the chosen tables.
pub(crate) async fn create_publication(client: &Client, name: &str, choice: &Choice) -> Result<(), Stop> {
    let left_out = choice.left_out.join(" ");
    if choice.tables.is_empty() {
        let what = "none of the tables asked for can be published".to_owned();
        return Err(Reason::SourceNotReady { what, hint: left_out }.into());
    }
    let tables: Vec<String> = choice.tables.iter().map(|(schema, table)| quote_qualified(schema, table)).collect();
    let create = format!(
        "CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)",
        quote_ident(name),
        tables.join(", ")
    );
    let comment = format!("COMMENT ON PUBLICATION {} IS {}", quote_ident(name), quote_literal(PUBLICATION_COMMENT));
    client.batch_execute(&format!("{create}; {comment}")).await.map_err(|e| match e.code().map(|c| c.code()) {
        Some("42501") => Reason::SourceNotReady {
            what: format!("the role may not create publication {name}"),
            hint: format!(
                "Let an admin (who owns the tables and has CREATE on the database) type: {create}; {left_out}"
            ),
        }
        .into(),
        _ => stop_from_sql(Side::Source, &e),
    })
}

/// Whether `text` matches `pattern`, in which `*` stands for any run of characters.
pub fn matches(pattern: &str, text: &str) -> bool {
    let Some((first, mut pattern)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    while let Some((piece, behind)) = pattern.split_once('*') {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
        pattern = behind;
    }
    rest.ends_with(pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("public.*", "public.t", true),
            ("public.*", "publicity.t", false),
            ("*.orders", "shop.orders", true),
            ("*.orders", "shop.orders_old", false),
            ("shop.o*s", "shop.orders", true),
            ("shop.o*s", "shop.orderss", true),
            ("shop.orders", "shop.orders", true),
            ("shop.orders", "shop.orders2", false),
            ("*", "a.b", true),
            ("s.ab*ba", "s.aba", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
