//! Finding PostgreSQL servers, and the user to run them as.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::KitError;

/// The majors that tests run on: `PGONCE_TEST_PG`, a comma-separated list; without it 15 and 18.
///
/// # Errors
///
/// [`KitError::BadSelection`] if the variable names none. A server that is not installed shows when a cluster is
/// started.
pub fn majors() -> Result<Vec<u32>, KitError> {
    parse_majors(&std::env::var("PGONCE_TEST_PG").unwrap_or_else(|_| "15,18".to_owned()))
}

fn parse_majors(text: &str) -> Result<Vec<u32>, KitError> {
    text.split(',')
        .map(|major| major.trim().parse().map_err(|_| KitError::BadSelection { text: text.to_owned() }))
        .collect()
}

/// The majors that are installed, in ascending order: what a demonstration may choose from. Tests take [`majors`].
///
/// # Errors
///
/// [`KitError::Io`] if there is no working directory.
pub fn installed_majors() -> Result<Vec<u32>, KitError> {
    let mut found: Vec<u32> = folders()?
        .into_iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flat_map(|entries| entries.flatten())
        .filter(|entry| holds_server(&entry.path()))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// The folders that hold one folder for each installed major.
fn folders() -> Result<Vec<PathBuf>, KitError> {
    let mut folders = vec![PathBuf::from("/usr/lib/postgresql")];
    match std::env::var_os("PGONCE_POSTGRES_DIR") {
        Some(folder) => folders.push(PathBuf::from(folder)),
        None => {
            let here = std::env::current_dir().map_err(KitError::io("finding the working directory"))?;
            folders.extend(here.ancestors().map(|folder| folder.join(".postgres")));
        }
    }
    Ok(folders)
}

fn holds_server(place: &Path) -> bool {
    ["postgres", "initdb", "pg_ctl"].iter().all(|program| place.join("bin").join(program).is_file())
}

/// The programs of one PostgreSQL major.
#[derive(Clone, Debug)]
pub struct Installation {
    major: u32,
    bin: PathBuf,
    run_as: Option<RunAs>,
}

/// The unprivileged user that servers run as when tests run as root: `initdb` and `postgres` refuse root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunAs {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Installation {
    /// Looks in Debian's place, then among the fetched servers: `PGONCE_POSTGRES_DIR`, or `.postgres` in the working
    /// directory or above it.
    ///
    /// # Errors
    ///
    /// [`KitError::MissingServer`], with the command to type.
    pub fn find(major: u32) -> Result<Installation, KitError> {
        let run_as = RunAs::needed()?;
        let place = folders()?
            .into_iter()
            .map(|folder| folder.join(major.to_string()))
            .find(|place| holds_server(place))
            .ok_or(KitError::MissingServer { major })?;
        // Programs are run in another working directory.
        let place = place.canonicalize().map_err(KitError::io("finding the server's folder"))?;
        let place = if run_as.is_some() && !open_to_all(&place) { readable_copy(&place, major)? } else { place };
        Ok(Installation { major, bin: place.join("bin"), run_as })
    }

    /// The folder of a `pg_dump` and a `psql` of this major or a newer one: the system's, or fetched beside the fetched
    /// servers, which come without them.
    ///
    /// # Errors
    ///
    /// [`KitError::MissingClient`], with the command to type.
    pub fn client_tools(major: u32) -> Result<PathBuf, KitError> {
        let mut found: Vec<(u32, PathBuf)> = Vec::new();
        for entry in folders()?.into_iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let number = name.strip_suffix("-client").unwrap_or(&name).parse().ok().filter(|number| *number >= major);
            let bin = entry.path().join("bin");
            let whole = ["pg_dump", "psql"].iter().all(|program| bin.join(program).is_file());
            found.extend(number.filter(|_| whole).map(|number| (number, bin)));
        }
        found.sort();
        found.into_iter().next().map(|(_, bin)| bin).ok_or(KitError::MissingClient { major })
    }

    /// The major version.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// Whether a program is installed: fetched servers come without `psql`, `pg_dump` and their like.
    pub fn has(&self, program: &str) -> bool {
        self.bin.join(program).is_file()
    }

    /// A command that runs one of the programs as the servers' user, in an environment of its own.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        command.env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C").current_dir("/").stdin(Stdio::null());
        if let Some(user) = self.run_as {
            command.uid(user.uid).gid(user.gid);
        }
        command
    }

    pub(crate) fn run_as(&self) -> Option<RunAs> {
        self.run_as
    }
}

impl RunAs {
    /// `None` unless this process is root.
    fn needed() -> Result<Option<RunAs>, KitError> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let users = fs::read_to_string("/etc/passwd").map_err(KitError::io("reading /etc/passwd"))?;
        RunAs::among(&users).map(Some).ok_or(KitError::MissingUser)
    }

    fn among(users: &str) -> Option<RunAs> {
        let line = users.lines().find(|line| line.starts_with("postgres:"))?;
        let mut fields = line.split(':').skip(2);
        Some(RunAs { uid: fields.next()?.parse().ok()?, gid: fields.next()?.parse().ok()? })
    }
}

/// Whether every folder on the way, and the last one, may be entered by everybody.
fn open_to_all(path: &Path) -> bool {
    let Ok(path) = path.canonicalize() else { return false };
    path.ancestors().all(|folder| fs::metadata(folder).is_ok_and(|meta| meta.permissions().mode() & 0o001 != 0))
}

/// Where clusters and copies of servers go: the folder for temporary files, if the servers' user may enter it.
pub(crate) fn temporary_folder() -> PathBuf {
    let folder = std::env::temp_dir();
    if open_to_all(&folder) { folder } else { PathBuf::from("/tmp") }
}

/// A checkout below a private folder (`/root`) is closed to the servers' user. It gets a copy, made once for each
/// build.
fn readable_copy(place: &Path, major: u32) -> Result<PathBuf, KitError> {
    let built = fs::metadata(place.join("bin/postgres")).map_err(KitError::io("reading the server's age"))?;
    let uid = rustix::process::geteuid().as_raw();
    let name = format!("pgonce-postgres-{uid}-{major}-{:x}-{:x}-{:x}", built.ino(), built.size(), built.mtime());
    let copy = temporary_folder().join(&name);
    if fs::symlink_metadata(&copy).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid) {
        return Ok(copy);
    }
    let work = tempfile::Builder::new()
        .prefix("pgonce-copying-")
        .tempdir_in(temporary_folder())
        .map_err(KitError::io("making a folder for a copy of the server"))?;
    let output = Command::new("cp")
        .args(["-R", "-P", "--preserve=mode,timestamps", "--reflink=auto"])
        .arg(place)
        .arg(work.path().join("server"))
        .output()
        .map_err(KitError::io("running cp"))?;
    if !output.status.success() {
        let output = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(KitError::Program { program: "cp".into(), output });
    }
    fs::set_permissions(work.path().join("server"), fs::Permissions::from_mode(0o755))
        .map_err(KitError::io("opening the copy of the server"))?;
    // The rename makes the copy appear whole. If another process was faster, its copy is the same.
    match fs::rename(work.path().join("server"), &copy) {
        Ok(()) => Ok(copy),
        Err(_) if copy.join("bin/postgres").is_file() => Ok(copy),
        Err(error) => Err(KitError::io("moving the copy of the server into place")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selection_is_a_list_of_majors_and_never_empty() {
        assert_eq!(parse_majors("15, 18").unwrap(), [15, 18]);
        assert_eq!(parse_majors("17").unwrap(), [17]);
        for wrong in ["", "15,", "fifteen", "15;18"] {
            assert!(matches!(parse_majors(wrong), Err(KitError::BadSelection { .. })), "{wrong:?}");
        }
    }

    #[test]
    fn a_missing_server_is_an_error_that_names_the_command() {
        let error = Installation::find(9).unwrap_err();
        assert!(error.to_string().contains("scripts/fetch-postgres 9"), "{error}");
    }

    #[test]
    fn the_selected_majors_are_installed() {
        let installed = installed_majors().unwrap();
        for major in majors().unwrap() {
            assert!(installed.contains(&major), "{}", KitError::MissingServer { major });
        }
    }

    #[test]
    fn the_servers_user_is_read_from_passwd() {
        let users = "root:x:0:0:root:/root:/bin/sh\npostgres:x:101:104:PostgreSQL,,,:/var/lib/postgresql:/bin/bash\n";
        assert_eq!(RunAs::among(users), Some(RunAs { uid: 101, gid: 104 }));
        assert_eq!(RunAs::among("root:x:0:0:root:/root:/bin/sh\n"), None);
    }

    #[test]
    fn a_private_folder_is_not_open_to_all() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(!open_to_all(folder.path()));
        assert!(open_to_all(Path::new("/usr/bin")));
    }
}
