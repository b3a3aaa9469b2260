//! Service files: sections of keys and values, which a connection string names by `service`.
//!
//! See PostgreSQL, libpq, "The Connection Service File". A value is the rest of its line as it stands, blanks at the
//! end excepted: nothing is quoted or escaped, and blanks before or behind `=` count.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::environment::Environment;
use super::keys::{self, Key};
use super::origin::Origin;
use super::parse_error::{ParseConnectionError, did_you_mean};

/// Where packagers let libpq look for the system's `pg_service.conf`, if `PGSYSCONFDIR` does not say.
const SYSTEM_DIRECTORIES: &[&str] = &["/etc/postgresql-common", "/etc/sysconfig/pgsql"];

/// A key, its value, and the line it stands on.
pub(super) type Entry = (&'static Key, String, usize);

/// The section that was found.
pub(super) struct Section {
    pub(super) file: PathBuf,
    pub(super) entries: Vec<Entry>,
}

/// Finds the section of `service`: in the file that was named, or the user's own, then in the system's.
pub(super) fn find(
    service: &str,
    origin: &Origin,
    named: Option<&str>,
    environment: &Environment,
) -> Result<Section, ParseConnectionError> {
    let mut files = Vec::new();
    match named {
        Some(file) => files.push((PathBuf::from(file), true)),
        None => files.extend(environment.home().map(|home| (home.join(".pg_service.conf"), false))),
    }
    match environment.get("PGSYSCONFDIR").filter(|directory| !directory.is_empty()) {
        Some(directory) => files.push((Path::new(directory).join("pg_service.conf"), false)),
        None => files.extend(SYSTEM_DIRECTORIES.iter().map(|at| (Path::new(at).join("pg_service.conf"), false))),
    }
    let mut looked_in = Vec::new();
    for (file, must_exist) in files {
        let failed = |line, reason| ParseConnectionError::ServiceFile { file: file.clone(), line, reason };
        let text = match fs::read(&file) {
            Ok(text) => text,
            Err(error) if !must_exist && matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                looked_in.push(format!("{} (no such file)", file.display()));
                continue;
            }
            Err(error) => return Err(failed(None, error.to_string())),
        };
        match section(&text, service) {
            Ok(Some(entries)) => return Ok(Section { file, entries }),
            Ok(None) => looked_in.push(file.display().to_string()),
            Err((line, reason)) => return Err(failed(Some(line), reason)),
        }
    }
    let looked_in = looked_in.join(", ");
    Err(ParseConnectionError::MissingService { service: service.to_owned(), origin: origin.clone(), looked_in })
}

/// The entries of a section; an error has its line.
fn section(text: &[u8], service: &str) -> Result<Option<Vec<Entry>>, (usize, String)> {
    let mut entries: Option<Vec<Entry>> = None;
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let failed = |reason: &str| (index + 1, reason.to_owned());
        let line = line.trim_ascii();
        if line.is_empty() || line[0] == b'#' {
            continue;
        }
        if line[0] == b'[' {
            if entries.is_some() {
                break;
            }
            if line
                .strip_prefix(b"[")
                .and_then(|line| line.strip_prefix(service.as_bytes()))
                .is_some_and(|rest| rest.starts_with(b"]"))
            {
                entries = Some(Vec::new());
            }
            continue;
        }
        // Other services are nobody's business here, as with libpq.
        let Some(entries) = &mut entries else { continue };
        let line = std::str::from_utf8(line).map_err(|_| failed("it is not UTF-8"))?;
        if line.contains('\0') {
            return Err(failed("it holds a NUL character"));
        }
        if line.starts_with("ldap") {
            return Err(failed("a service in an LDAP directory is not supported; write its keys here"));
        }
        let Some((name, value)) = line.split_once('=') else {
            return Err(failed("a line is key=value, [service] or # comment"));
        };
        if matches!(name, "service" | "servicefile") {
            return Err(failed("a service cannot name another one"));
        }
        match keys::find(name) {
            // The first one counts.
            Some(key) if entries.iter().any(|(known, ..)| known.name == key.name) => {}
            Some(key) => entries.push((key, value.to_owned(), index + 1)),
            None if keys::find(name.trim_end()).is_some() => {
                return Err(failed("no blank may stand before the =; one behind it belongs to the value"));
            }
            // What looks like no key may be a part of a password.
            None if name.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase()) => {
                return Err((index + 1, format!("unknown key {name:?}{}", did_you_mean(keys::nearest(name)))));
            }
            None => return Err(failed("what stands before the = is not a key")),
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# comment\r\n[other]\nnonsense\n\n[shop]\n  host=db1,db2\npassword= a'b\\c#d=e f  \nport=\n\
                        host=late\n[shop]\nuser=never\n";

    fn values(text: &str, service: &str) -> Vec<(&'static str, String, usize)> {
        let entries = section(text.as_bytes(), service).unwrap().unwrap();
        entries.into_iter().map(|(key, value, line)| (key.name, value, line)).collect()
    }

    #[test]
    fn a_section_is_read_up_to_the_next_and_its_values_as_they_stand() {
        let wanted = [("host", "db1,db2", 6), ("password", " a'b\\c#d=e f", 7), ("port", "", 8)];
        assert_eq!(values(FILE, "shop"), wanted.map(|(key, value, line)| (key, value.to_owned(), line)));
        assert!(section(FILE.as_bytes(), "sho").unwrap().is_none());
        assert_eq!(values("[a]\n", "a"), []);
    }

    #[test]
    fn what_is_wrong_is_named_by_its_line_and_without_what_may_be_secret() {
        for (line, reason) in [
            ("nonsense SECRET", "key=value"),
            ("host = SECRET", "no blank"),
            ("SECRET=x", "not a key"),
            ("hots=SECRET", "did you mean \"host\""),
            ("service=SECRET", "cannot name another"),
            ("ldap://SECRET", "LDAP"),
            ("password=SECRET\0", "NUL"),
        ] {
            let (at, message) = section(format!("[a]\n\n{line}\n").as_bytes(), "a").map(|_| ()).unwrap_err();
            assert!(at == 3 && message.contains(reason) && !message.contains("SECRET"), "{line}: {message}");
        }
        assert_eq!(section(b"[a]\npassword=\xff", "a").map(|_| ()).unwrap_err().0, 2);
    }
}
