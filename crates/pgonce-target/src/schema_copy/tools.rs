//! Finding a `pg_dump` that can read the source: one of the source's major version or a newer one.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pgonce::stop::{Reason, Stop};

/// Where packages put client programs that are not in the path, one folder for each major version.
const PACKAGED: [(&str, &str, &str); 3] =
    [("/usr/lib/postgresql", "", "bin"), ("/usr", "pgsql-", "bin"), ("/opt/pgsql", "", "bin")];

/// A `pg_dump` of this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tool {
    pub(super) program: PathBuf,
    /// The major version.
    pub(super) major: u32,
    /// What it calls itself.
    version: String,
}

/// The newest `pg_dump` that is not older than the source.
///
/// It is looked for in `folder` alone, if one is configured; otherwise in the path and where packages put it.
pub(super) fn find(folder: Option<&Path>, source_major: u32) -> Result<Tool, Stop> {
    let candidates = match folder {
        Some(folder) => vec![folder.join("pg_dump"), folder.join("bin/pg_dump")],
        None => everywhere(),
    };
    let mut found: Vec<Tool> = Vec::new();
    for program in candidates.into_iter().filter(|program| program.is_file()) {
        found.extend(ask(program));
    }
    choose(found, folder, source_major)
}

fn choose(found: Vec<Tool>, folder: Option<&Path>, source_major: u32) -> Result<Tool, Stop> {
    let mut fit: Option<&Tool> = None;
    for tool in found.iter().filter(|tool| tool.major >= source_major) {
        // Of two of one version the one that was looked for first.
        if fit.is_none_or(|best| tool.major > best.major) {
            fit = Some(tool);
        }
    }
    fit.cloned().ok_or_else(|| missing(&found, folder, source_major))
}

fn missing(found: &[Tool], folder: Option<&Path>, source_major: u32) -> Stop {
    let place = folder.map_or(String::new(), |folder| format!(" in {}", folder.display()));
    let mut what =
        format!("copy_schema needs pg_dump {source_major} or newer, for the source is PostgreSQL {source_major}; ");
    if found.is_empty() {
        let _ = write!(what, "no pg_dump was found{}", if folder.is_some() { &place } else { " on this machine" });
    } else {
        let list: Vec<String> = found.iter().map(|t| format!("{} ({})", t.version, t.program.display())).collect();
        let _ = write!(what, "found{place}: {}", list.join(", "));
    }
    let elsewhere = match folder {
        Some(_) => "or correct `client_tools` (--client-tools DIR), the folder that holds it",
        None => "or name the folder of one that is elsewhere: --client-tools DIR",
    };
    let hint = format!(
        "Install it on this machine, where pgonce runs: apt-get install postgresql-client-{source_major} (Debian and \
         Ubuntu, from apt.postgresql.org where the distribution's own is older), dnf install postgresql{source_major} \
         (Red Hat, from yum.postgresql.org); {elsewhere}. Or create the schema yourself and leave copy_schema out."
    );
    Reason::Unsupported { what, hint }.into()
}

fn everywhere() -> Vec<PathBuf> {
    let mut programs = Vec::new();
    for (folder, prefix, bin) in PACKAGED {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let major = name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse::<u32>().ok());
            programs.extend(major.map(|_| entry.path().join(bin).join("pg_dump")));
        }
    }
    // After the packages' own: what Debian has in the path chooses among them by rules of its own.
    let path = std::env::var_os("PATH").unwrap_or_default();
    programs.extend(std::env::split_paths(&path).map(|folder| folder.join("pg_dump")));
    programs
}

/// Asks a program for its version; nothing where it does not run or is something else.
fn ask(program: PathBuf) -> Option<Tool> {
    let output = Command::new(&program).arg("--version").env("LC_ALL", "C").stdin(Stdio::null()).output().ok()?;
    let version = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    let major = major_of(&version)?;
    Some(Tool { program, major, version })
}

/// `pg_dump (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)` is 15, `pg_dump (PostgreSQL) 19beta1` is 19.
fn major_of(version: &str) -> Option<u32> {
    let number = version.strip_prefix("pg_dump (PostgreSQL) ")?;
    number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(major: u32, folder: &str) -> Tool {
        let version = format!("pg_dump (PostgreSQL) {major}.1");
        Tool { program: Path::new(folder).join("pg_dump"), major, version }
    }

    #[test]
    fn the_newest_that_is_not_older_than_the_source_is_taken() {
        let all = vec![tool(15, "/a"), tool(18, "/b"), tool(18, "/c"), tool(14, "/d")];
        assert_eq!(choose(all.clone(), None, 16).unwrap(), tool(18, "/b"));
        assert_eq!(choose(all.clone(), None, 15).unwrap(), tool(18, "/b"));
        let error = choose(all, None, 19).unwrap_err();
        assert_eq!(error.exit_status(), 2);
        assert!(error.to_string().contains("needs pg_dump 19 or newer"), "{error}");
        assert!(error.to_string().contains("15.1 (/a/pg_dump)"), "{error}");
        assert!(error.hint().contains("postgresql-client-19"), "{}", error.hint());
    }

    #[test]
    fn none_at_all_is_said_with_the_place_that_was_looked_at() {
        let error = choose(Vec::new(), Some(Path::new("/opt/tools")), 17).unwrap_err();
        assert!(error.to_string().contains("no pg_dump was found in /opt/tools"), "{error}");
        assert!(choose(Vec::new(), None, 17).unwrap_err().to_string().contains("on this machine"));
    }

    #[test]
    fn versions_are_read_as_pg_dump_prints_them() {
        assert_eq!(major_of("pg_dump (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"), Some(15));
        assert_eq!(major_of("pg_dump (PostgreSQL) 19beta1"), Some(19));
        assert_eq!(major_of("pg_dump (EDB) x"), None);
    }
}
