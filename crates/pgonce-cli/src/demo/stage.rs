//! What the demonstration plays on: two clusters with a schema, and the flow's configuration.

use std::fs;
use std::path::{Path, PathBuf};

use pgonce_testkit::{Cluster, KitError, installed_majors, pgbench, remove_kept, witness};
use serde::{Deserialize, Serialize};

use super::failed;
use crate::failure::Failure;

/// The database on both sides.
pub const DATABASE: &str = "shop";

/// pgbench's scale: 100,000 accounts for each unit, enough for an initial copy that can be interrupted.
pub const SCALE: u32 = 3;

/// Both clusters, and where everything is written.
#[derive(Debug)]
pub struct Stage {
    /// Where changes come from.
    pub source: Cluster,
    /// Where they go.
    pub target: Cluster,
    /// The demonstration's directory.
    pub directory: PathBuf,
}

/// The major to run.
pub fn major(wanted: Option<u32>) -> Result<u32, Failure> {
    let installed = installed_majors().map_err(|e| failed(&e))?;
    let none = Failure::usage(
        "no PostgreSQL server is installed, and the demonstration needs one",
        "Type scripts/setup in a checkout of pgonce, or install your system's package of the server: apt install \
         postgresql",
    );
    match wanted {
        None => installed.last().copied().ok_or(none),
        Some(major) if installed.contains(&major) => Ok(major),
        Some(_) if installed.is_empty() => Err(none),
        Some(major) => {
            let found: Vec<String> = installed.iter().map(ToString::to_string).collect();
            let text = format!("PostgreSQL {major} is not installed; found: {}", found.join(", "));
            let hint = format!("Type scripts/fetch-postgres {major} in a checkout of pgonce, or leave --pg out.");
            Err(Failure::usage(text, hint))
        }
    }
}

impl Stage {
    /// Starts both clusters.
    pub async fn build(major: u32, directory: &Path) -> Result<Stage, Failure> {
        let local = |error| Failure::file(directory, &error);
        fs::create_dir_all(directory).map_err(local)?;
        let directory = directory.canonicalize().map_err(local)?;
        let start = async |name| -> Result<Cluster, KitError> {
            let cluster = Cluster::builder(major).name(name).conf("wal_sender_timeout", "5s").start().await?;
            cluster.create_database(DATABASE).await?;
            Ok(cluster)
        };
        let (source, target) = tokio::try_join!(start("source"), start("target")).map_err(|e| failed(&e))?;
        Ok(Stage { source, target, directory })
    }

    /// Makes the tables on both sides, and fills those of the source.
    pub async fn fill(&self) -> Result<(), KitError> {
        let source = self.source.connect(DATABASE).await?;
        let target = self.target.connect(DATABASE).await?;
        pgbench::create(&source, SCALE).await?;
        pgbench::create_schema(&target).await?;
        witness::create(&source).await?;
        witness::create_target(&target).await
    }

    /// Compares the witnesses, by plain SQL on both sides.
    pub async fn witnesses(&self) -> Result<witness::Comparison, KitError> {
        let (source, target) = (self.source.connect(DATABASE).await?, self.target.connect(DATABASE).await?);
        witness::compare(&source, &target).await
    }

    /// Where the flow's configuration is.
    pub fn config(&self) -> PathBuf {
        self.directory.join("pgonce.yml")
    }

    /// Writes the flow's configuration.
    pub fn write_config(&self) -> Result<(), Failure> {
        // A JSON string is a YAML string.
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let text = format!(
            "# Written by `pgonce demo`. Both clusters are throwaway ones.\n\
             flow: demo\n\
             source:\n  url: {}\n\
             target:\n  url: {}\n\
             data_dir: {}\n",
            quoted(&self.source.url(DATABASE)),
            quoted(&self.target.url(DATABASE)),
            quoted(&self.directory.join("data").display().to_string()),
        );
        let file = self.config();
        fs::write(&file, text).map_err(|e| Failure::file(&file, &e))
    }

    /// Leaves both clusters running when the program ends.
    pub fn keep(&self) -> Result<(), Failure> {
        let folders = vec![self.source.folder().to_owned(), self.target.folder().to_owned()];
        let kept = Kept { major: self.source.major(), folders };
        let file = Kept::file(&self.directory);
        let text = serde_json::to_string_pretty(&kept).unwrap_or_default();
        fs::write(&file, text).map_err(|e| Failure::file(&file, &e))?;
        self.source.keep().and_then(|()| self.target.keep()).map_err(|e| failed(&e))
    }
}

/// What `pgonce demo --stop` has to know of the clusters that were kept.
#[derive(Debug, Serialize, Deserialize)]
pub struct Kept {
    major: u32,
    folders: Vec<PathBuf>,
}

impl Kept {
    /// Where it is written.
    pub fn file(directory: &Path) -> PathBuf {
        directory.join("kept.json")
    }

    /// Stops and removes the clusters that were kept in `directory`. Returns how many there were.
    pub fn stop(directory: &Path) -> Result<usize, Failure> {
        let file = Kept::file(directory);
        let kept: Option<Kept> = fs::read_to_string(&file).ok().and_then(|text| serde_json::from_str(&text).ok());
        let Some(kept) = kept else {
            let text = format!("no clusters were kept in {}", directory.display());
            return Err(Failure::usage(text, "`pgonce demo --keep` keeps some; --dir names its directory."));
        };
        for folder in &kept.folders {
            let ours = folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("pgonce-cluster-"));
            if !ours || !folder.exists() {
                continue;
            }
            // One that does not run any more (the machine was restarted, say) is removed all the same.
            remove_kept(folder).map_err(|e| failed(&e))?;
        }
        fs::remove_file(&file).map_err(|e| Failure::file(&file, &e))?;
        Ok(kept.folders.len())
    }
}
