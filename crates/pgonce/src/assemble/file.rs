//! Spill files: without a name, so that they go with the process, however the process ends.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// What the name of a spill file begins with, for the moment in which it has one.
const NAME: &str = "pgonce-spill-";

/// Makes the directory where it is missing, and removes what a process that was killed has left in it: files that have
/// a name for a moment, where the file system knows none without. Whoever writes to one that is removed here does not
/// need its name.
pub(crate) fn prepare_directory(directory: &Path) -> io::Result<()> {
    if !directory.exists() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    for entry in directory.read_dir()? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(NAME) && entry.file_type()?.is_file() {
            passed_over(std::fs::remove_file(entry.path()))?;
        }
    }
    Ok(())
}

/// A new file of mode 0600.
pub(super) fn unnamed(directory: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::TMPFILE | OFlags::EXCL;
    match rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(file.into()),
        // A kernel or a file system that knows no files without a name.
        Err(Errno::ISDIR | Errno::OPNOTSUPP | Errno::INVAL) => named_for_a_moment(directory),
        Err(e) => Err(e.into()),
    }
}

/// A new file of mode 0600 that loses its name before anything is written to it.
fn named_for_a_moment(directory: &Path) -> io::Result<File> {
    let (file, path) = tempfile::Builder::new().prefix(NAME).tempfile_in(directory)?.into_parts();
    passed_over(path.close())?;
    Ok(file)
}

/// A file that another process has removed, or that is another user's, is none of ours.
fn passed_over(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(e) if !matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = directory.read_dir().unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn spill_files_have_no_name_and_are_nobody_elses_with_and_without_the_file_systems_help() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("a/spill");
        prepare_directory(&directory).unwrap();
        assert_eq!(directory.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        for made in [unnamed(&directory), named_for_a_moment(&directory)] {
            let file = made.unwrap();
            file.write_all_at(b"abc", 2).unwrap();
            let metadata = file.metadata().unwrap();
            assert_eq!((metadata.mode() & 0o777, metadata.nlink(), metadata.len()), (0o600, 0, 5));
        }
        assert!(names(&directory).is_empty());
    }

    #[test]
    fn a_start_sweeps_what_a_kill_left_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["pgonce-spill-Xy12", "lock", "pgonce-spillage"] {
            std::fs::write(directory.path().join(name), b"").unwrap();
        }
        prepare_directory(directory.path()).unwrap();
        let mut left = names(directory.path());
        left.sort();
        assert_eq!(left, ["lock", "pgonce-spillage"]);
    }
}
