//! Fresh data directories, quickly: `initdb` runs once for each server, and clusters get copies, each with a system
//! identifier of its own.
//!
//! A copy that kept the identifier would be the same cluster to PostgreSQL and to whoever asks `IDENTIFY_SYSTEM`. The
//! identifier lies in `pg_control` (with a checksum) and in the first page of each WAL segment.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::KitError;
use crate::installation::{Installation, temporary_folder};

/// One thread of a process makes a template; other processes may make the same one, and the first to finish wins.
static MAKING: Mutex<()> = Mutex::new(());

/// Makes `data` a data directory as `initdb` would with `words`, with a system identifier of its own.
///
/// `prepare` makes an empty folder that the server may write.
pub(crate) fn data_directory(
    installation: &Installation,
    data: &Path,
    words: &[&str],
    prepare: impl Fn(&Path) -> Result<(), KitError>,
) -> Result<(), KitError> {
    let template = {
        let _making = MAKING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let template = template_folder(installation, words)?;
        if !template.join("data").join("PG_VERSION").is_file() {
            make(installation, &template, words, &prepare)?;
        }
        template
    };
    let mut copy = Command::new("cp");
    copy.args(["-a", "--reflink=auto", "-T"]).arg(template.join("data")).arg(data);
    run(&mut copy, "cp")?;
    set_system_identifier(data, new_identifier()).map_err(KitError::io("giving a cluster an identifier"))
}

fn template_folder(installation: &Installation, words: &[&str]) -> Result<PathBuf, KitError> {
    let program = PathBuf::from(installation.command("postgres").get_program());
    let server = fs::metadata(&program).map_err(KitError::io("looking at the server's program"))?;
    let mut hasher = DefaultHasher::new();
    (program, server.len(), server.mtime(), words).hash(&mut hasher);
    let user = rustix::process::geteuid().as_raw();
    Ok(temporary_folder().join(format!("pgonce-template-{user}-{}-{:016x}", installation.major(), hasher.finish())))
}

fn make(
    installation: &Installation,
    template: &Path,
    words: &[&str],
    prepare: &impl Fn(&Path) -> Result<(), KitError>,
) -> Result<(), KitError> {
    let making = template.with_extension(format!("{}", std::process::id()));
    fs::create_dir_all(&making).map_err(KitError::io("making a template"))?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&making, mode).map_err(KitError::io("making a template"))?;
    prepare(&making.join("data"))?;
    run(installation.command("initdb").arg("-D").arg(making.join("data")).args(words), "initdb")?;
    // Fails where another process has finished first: its template serves as well.
    if fs::rename(&making, template).is_err() {
        fs::remove_dir_all(&making).map_err(KitError::io("removing a template"))?;
    }
    Ok(())
}

fn run(command: &mut Command, program: &str) -> Result<(), KitError> {
    let output = command.output().map_err(KitError::io("running a program"))?;
    if output.status.success() {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(KitError::Program { program: program.into(), output })
}

fn new_identifier() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    (now.as_nanos(), std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)).hash(&mut hasher);
    // As initdb does: the time in the upper half. Here only the lower half tells clusters of one second apart.
    now.as_secs() << 32 | hasher.finish() & 0xFFFF_FFFF
}

fn set_system_identifier(data: &Path, identifier: u64) -> std::io::Result<()> {
    let control = data.join("global").join("pg_control");
    let mut bytes = fs::read(&control)?;
    let checksum_at = |bytes: &[u8]| {
        (64..1024.min(bytes.len() - 4)).step_by(4).find(|at| bytes[*at..at + 4] == crc32c(&bytes[..*at]).to_le_bytes())
    };
    let at = checksum_at(&bytes)
        .ok_or_else(|| std::io::Error::other("pg_control has no checksum where one is looked for"))?;
    bytes[..8].copy_from_slice(&identifier.to_le_bytes());
    let checksum = crc32c(&bytes[..at]).to_le_bytes();
    bytes[at..at + 4].copy_from_slice(&checksum);
    fs::write(&control, bytes)?;
    for entry in fs::read_dir(data.join("pg_wal"))? {
        let segment = entry?;
        if segment.file_type()?.is_file() && segment.file_name().len() == 24 {
            let file = fs::OpenOptions::new().write(true).open(segment.path())?;
            // Behind the header that every page has, the first page of a segment names the system.
            std::os::unix::fs::FileExt::write_all_at(&file, &identifier.to_le_bytes(), 24)?;
        }
    }
    Ok(())
}

/// CRC-32C, as `pg_control` has it.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 })
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_checksum_is_castagnolis() {
        assert_eq!(super::crc32c(b"123456789"), 0xE306_9283);
    }
}
