//! The test stand: a source and a target cluster, and on each the database of one workload.

use std::time::Duration;

use anyhow::{Context as _, Result};
use pgonce_testkit::Cluster;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

/// What the benchmark's own connections call themselves, so that they are not counted as a contestant's.
const OWN_NAME: &str = "pgonce-bench";

/// Two clusters of one major.
#[derive(Debug)]
pub struct Stand {
    source: Cluster,
    target: Cluster,
    /// The version of both servers, as in `15.18`.
    pub version: String,
    /// The optimisation level that the servers were built with, as in `-O2`. Packagers differ, and a server built for
    /// size is slower: only pairs on the same build compare.
    pub build: String,
}

impl Stand {
    /// Starts both clusters.
    pub async fn start(major: u32) -> Result<Stand> {
        let buffers = format!("{}MB", shared_buffers_mb());
        let start = async |name: &str| {
            let settings = [
                ("max_connections", "60"),
                ("max_worker_processes", "20"),
                ("max_logical_replication_workers", "10"),
                ("shared_buffers", buffers.as_str()),
                ("max_wal_size", "8GB"),
                ("min_wal_size", "1GB"),
                ("checkpoint_timeout", "30min"),
                ("fsync", "on"),
                ("synchronous_commit", "on"),
                ("wal_retrieve_retry_interval", "100ms"),
                ("maintenance_work_mem", "256MB"),
                ("log_min_messages", "warning"),
            ];
            let builder = Cluster::builder(major).name(name);
            settings.iter().fold(builder, |builder, (name, value)| builder.conf(name, value)).start().await
        };
        let (source, target) = (start("bench-source").await?, start("bench-target").await?);
        let client = source.connect("postgres").await?;
        let version: String = client.query_one("SHOW server_version", &[]).await?.get(0);
        let sql = "SELECT setting FROM pg_config() WHERE name = 'CFLAGS'";
        let flags: String = client.query_one(sql, &[]).await?.get(0);
        let build = flags.split_whitespace().rfind(|flag| flag.starts_with("-O")).unwrap_or("unknown").to_owned();
        let version = version.split(' ').next().unwrap_or_default().to_owned();
        Ok(Stand { source, target, version, build })
    }

    /// Makes a database of this name on both clusters, anew.
    pub async fn databases(&self, name: &str) -> Result<Databases> {
        for cluster in [&self.source, &self.target] {
            let client = cluster.connect("postgres").await?;
            drop_slots(&client, name).await?;
            client.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
            client.batch_execute(&format!("CREATE DATABASE {name}")).await?;
        }
        Ok(Databases {
            name: name.to_owned(),
            source_url: self.source.url(name),
            target_url: self.target.url(name),
            source: connect(&self.source, name).await?,
            target: connect(&self.target, name).await?,
        })
    }

    /// Drops them.
    pub async fn drop_databases(&self, databases: Databases) -> Result<()> {
        let name = databases.name.clone();
        drop(databases);
        for cluster in [&self.target, &self.source] {
            let client = cluster.connect("postgres").await?;
            drop_slots(&client, &name).await?;
            client.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await?;
        }
        Ok(())
    }

    /// Further connections to the source, for what generates a load.
    pub async fn source_clients(&self, databases: &Databases, count: usize) -> Result<Vec<Client>> {
        let mut clients = Vec::new();
        for _ in 0..count {
            let client = connect(&self.source, &databases.name).await?;
            // A backlog is the same with and without waiting for the disk, and sooner there without.
            client.batch_execute("SET synchronous_commit = off").await?;
            clients.push(client);
        }
        Ok(clients)
    }

    /// Connections that watch a run: to the source and to the target.
    pub async fn watchers(&self, databases: &Databases) -> Result<(Client, Client)> {
        Ok((connect(&self.source, &databases.name).await?, connect(&self.target, &databases.name).await?))
    }
}

/// The databases of one workload.
#[derive(Debug)]
pub struct Databases {
    name: String,
    /// For contestants: the source.
    pub source_url: String,
    /// For contestants: the target.
    pub target_url: String,
    /// Our connection to the source.
    pub source: Client,
    /// Our connection to the target.
    pub target: Client,
}

impl Databases {
    /// Runs statements on both sides.
    pub async fn both(&self, sql: &str) -> Result<()> {
        for client in [&self.source, &self.target] {
            client.batch_execute(sql).await.with_context(|| sql.to_owned())?;
        }
        Ok(())
    }

    /// A slot at the source's present position.
    pub async fn create_slot(&self, name: &str) -> Result<()> {
        let sql = "SELECT pg_create_logical_replication_slot($1, 'pgoutput')";
        self.source.execute(sql, &[&name]).await.context("creating a slot")?;
        Ok(())
    }

    /// A slot at the position of another one, so that each run decodes the same WAL.
    pub async fn copy_slot(&self, from: &str, to: &str) -> Result<()> {
        let sql = "SELECT pg_copy_logical_replication_slot($1, $2)";
        self.source.execute(sql, &[&from, &to]).await.context("copying a slot")?;
        Ok(())
    }

    /// Drops a slot, once its walsender has let go of it.
    pub async fn drop_slot(&self, name: &str) -> Result<()> {
        for _ in 0..200 {
            match self.source.execute("SELECT pg_drop_replication_slot($1)", &[&name]).await {
                Ok(_) => return Ok(()),
                Err(error) if error.code() == Some(&SqlState::OBJECT_IN_USE) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(error) => return Err(error).with_context(|| format!("dropping slot {name}")),
            }
        }
        anyhow::bail!("slot {name} is still in use")
    }
}

async fn connect(cluster: &Cluster, database: &str) -> Result<Client> {
    let client = cluster.connect(database).await?;
    client.batch_execute(&format!("SET application_name = '{OWN_NAME}'")).await?;
    Ok(client)
}

/// The backends in a database that are not the benchmark's.
pub async fn foreign_backends(client: &Client) -> Result<Vec<u32>> {
    let sql = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name <> $1
               AND backend_type <> 'autovacuum worker'";
    let rows = client.query(sql, &[&OWN_NAME]).await?;
    Ok(rows.iter().filter_map(|row| u32::try_from(row.get::<_, i32>(0)).ok()).collect())
}

async fn drop_slots(client: &Client, database: &str) -> Result<()> {
    let sql = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1";
    client.execute(sql, &[&database]).await.context("dropping slots")?;
    Ok(())
}

/// 1 GB, or an eighth of the memory of a smaller machine: there are two clusters, and the system's cache is needed too.
fn shared_buffers_mb() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total_kb = text.strip_prefix("MemTotal:").and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    total_kb.map_or(1024, |kb| (kb / 1024 / 8).clamp(128, 1024))
}
