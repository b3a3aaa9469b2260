//! Clusters that go back in time.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Cluster, KitError};

/// A copy of a stopped cluster's data directory.
#[derive(Debug)]
pub struct DataCopy(PathBuf);

impl DataCopy {
    /// Copies the data directory, beside it, in the place of an older copy.
    ///
    /// # Errors
    ///
    /// A server that runs cannot be copied.
    pub fn of(cluster: &Cluster) -> Result<DataCopy, KitError> {
        let copy = cluster.folder().join("copy");
        stopped(cluster)?;
        if copy.exists() {
            std::fs::remove_dir_all(&copy).map_err(KitError::io("removing an older copy"))?;
        }
        copy_folder(&cluster.data_dir(), &copy)?;
        Ok(DataCopy(copy))
    }

    /// Puts the copy back in the place of the stopped cluster's data directory: the cluster goes back in time.
    ///
    /// # Errors
    ///
    /// A server that runs cannot be restored.
    pub fn restore(&self, cluster: &Cluster) -> Result<(), KitError> {
        stopped(cluster)?;
        std::fs::remove_dir_all(cluster.data_dir()).map_err(KitError::io("removing a data directory"))?;
        copy_folder(&self.0, &cluster.data_dir())
    }
}

fn stopped(cluster: &Cluster) -> Result<(), KitError> {
    match cluster.pid() {
        None => Ok(()),
        Some(pid) => {
            let error = std::io::Error::other(format!("its server runs, with PID {pid}"));
            Err(KitError::io("copying a data directory")(error))
        }
    }
}

/// With owner and rights.
fn copy_folder(from: &Path, to: &Path) -> Result<(), KitError> {
    let failed = || KitError::io(format!("copying {}", from.display()));
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).output().map_err(failed())?;
    match copied.status.success() {
        true => Ok(()),
        false => Err(failed()(std::io::Error::other(String::from_utf8_lossy(&copied.stderr).into_owned()))),
    }
}
