//! Password files: one line for each server, `host:port:database:user:password`.
//!
//! See PostgreSQL, libpq, "The Password File". A file is read when a server asks for a password, so that a password
//! that was changed there counts for the next connection.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::endpoints::SOCKET_DIRECTORY;
use super::error::{At, ConnectError};
use super::settings::{ConnectionSettings, Endpoint, FileChoice, Host, Password};

/// A password for one server.
pub(super) struct Credential {
    pub(super) password: Password,
    /// The file it was found in.
    pub(super) file: Option<PathBuf>,
}

impl ConnectionSettings {
    /// The password for a server: the one that was given, or the file's.
    pub(super) fn credential(&self, at: &At) -> Result<Credential, ConnectError> {
        const NONE: &str = "the server asks for a password, and none was given";
        if let Some(password) = &self.password {
            return Ok(Credential { password: password.clone(), file: None });
        }
        let Some(choice) = &self.passfile else { return Err(at.authentication(NONE)) };
        let shown = choice.path().display();
        let none = |why: &str| Err(at.authentication(format_args!("{NONE} (password file {shown}: {why})")));
        match read(choice) {
            Ok(text) => match find(&text, &at.0, &self.dbname, &self.user).map(String::from_utf8) {
                None => none("no line fits this host, port, database and user"),
                Some(Ok(text)) if text.is_empty() => none("the line that fits has no password"),
                Some(Ok(text)) => {
                    Ok(Credential { password: Password::new(text), file: Some(choice.path().to_owned()) })
                }
                Some(Err(_)) => none("the password of the line that fits is not UTF-8"),
            },
            Err(Unusable::Missing) => none("there is no such file"),
            Err(Unusable::Refused(reason)) if choice.is_named() => {
                Err(ConnectError::PasswordFile { path: choice.path().to_owned(), reason })
            }
            Err(Unusable::Refused(why)) => {
                tracing::warn!("password file {shown} is not read: {why}");
                none(&why)
            }
        }
    }
}

enum Unusable {
    Missing,
    Refused(String),
}

fn read(choice: &FileChoice) -> Result<Vec<u8>, Unusable> {
    let refused = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => Unusable::Missing,
        _ => Unusable::Refused(error.to_string()),
    };
    let about = fs::metadata(choice.path()).map_err(refused)?;
    if !about.is_file() {
        return Err(Unusable::Refused("it is not a plain file".to_owned()));
    }
    let mode = about.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(Unusable::Refused(format!(
            "it has mode {mode:04o}, so that others may read or change it; type: chmod 0600 {}",
            shell_word(choice.path())
        )));
    }
    fs::read(choice.path()).map_err(refused)
}

/// A path as a shell takes it.
pub(super) fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    if text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-+".contains(&byte)) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The password of the first line that fits.
fn find(text: &[u8], endpoint: &Endpoint, dbname: &str, user: &str) -> Option<Vec<u8>> {
    let host = match &endpoint.host {
        Host::Tcp(host) => host.clone(),
        // The default socket goes by the name of localhost.
        Host::Unix(directory) if directory == Path::new(SOCKET_DIRECTORY) => "localhost".to_owned(),
        Host::Unix(directory) => directory.to_string_lossy().into_owned(),
    };
    let port = endpoint.port.to_string();
    text.split(|byte| *byte == b'\n').find_map(|line| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.starts_with(b"#") {
            return None;
        }
        let password =
            [host.as_str(), &port, dbname, user].iter().try_fold(line, |rest, wanted| match rest.strip_prefix(b"*:") {
                Some(rest) => Some(rest),
                None => field(rest, wanted.as_bytes()),
            });
        password.map(unescaped)
    })
}

/// What follows the field, if the field is `wanted`. A backslash takes the next character as it is.
fn field<'l>(line: &'l [u8], wanted: &[u8]) -> Option<&'l [u8]> {
    let (mut at, mut matched) = (0, 0);
    loop {
        match line.get(at)? {
            b':' => return (matched == wanted.len()).then(|| &line[at + 1..]),
            b'\\' if at + 1 < line.len() => at += 1,
            _ => {}
        }
        if wanted.get(matched) != line.get(at) {
            return None;
        }
        (at, matched) = (at + 1, matched + 1);
    }
}

/// The password is the rest of the line; a colon in it need not be escaped, but may be.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => plain.push(*bytes.next().unwrap_or(byte)),
            _ => plain.push(*byte),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint { host: Host::Tcp(host.to_owned()), address: None, port }
    }

    fn found(text: &str, endpoint: &Endpoint, dbname: &str, user: &str) -> Option<String> {
        find(text.as_bytes(), endpoint, dbname, user).map(|password| String::from_utf8(password).unwrap())
    }

    #[test]
    fn the_first_line_that_fits_counts() {
        let text = "# db:1:shop:ann:comment\r\n\nshort:line\ndb:1:shop:bob:b\r\ndb:1:shop:ann:a:b\\:c\\\\d\\\n\
                    db:*:*:ann:star\n*:2:*:ann:two\n::1:9:x:ann:broken\n\\:\\:1:9:x:ann:six\nlocalhost:7:s:u:local\n\
                    /tmp:7:s:u:tmp\nd\\*:1:*:*:star name\n";
        assert_eq!(found(text, &tcp("db", 1), "shop", "ann").as_deref(), Some("a:b:c\\d\\"));
        assert_eq!(found(text, &tcp("db", 1), "shop", "bob").as_deref(), Some("b"));
        assert_eq!(found(text, &tcp("db", 3), "other", "ann").as_deref(), Some("star"));
        assert_eq!(found(text, &tcp("elsewhere", 2), "other", "ann").as_deref(), Some("two"));
        assert_eq!(found(text, &tcp("elsewhere", 3), "other", "ann"), None);
        assert_eq!(found(text, &tcp("DB", 1), "shop", "bob"), None, "letters count");
        assert_eq!(found(text, &tcp("::1", 9), "x", "ann").as_deref(), Some("six"));
        assert_eq!(found(text, &tcp("d*", 1), "x", "x").as_deref(), Some("star name"));
        let unix = |directory: &str| Endpoint { host: Host::Unix(directory.into()), address: None, port: 7 };
        assert_eq!(found(text, &unix(SOCKET_DIRECTORY), "s", "u").as_deref(), Some("local"));
        assert_eq!(found(text, &unix("/tmp"), "s", "u").as_deref(), Some("tmp"));
        assert_eq!(found(text, &unix("/other"), "s", "u"), None);
        let named = Endpoint { address: "10.0.0.1".parse().ok(), ..tcp("db", 1) };
        assert_eq!(found(text, &named, "shop", "bob").as_deref(), Some("b"), "the name goes before the address");
    }

    proptest! {
        #[test]
        fn any_name_and_any_password_comes_back(db in "[^\0\n\r]+", user in "[^\0\n\r]+", password in "[^\0\n\r]+") {
            let escape = |text: &str| text.replace('\\', r"\\").replace(':', r"\:").replace('*', r"\*");
            let line = format!("x:*:*:*:wrong\ndb:1:{}:{}:{}\n", escape(&db), escape(&user), escape(&password));
            prop_assert_eq!(found(&line, &tcp("db", 1), &db, &user), Some(password.clone()));
            let other = format!("{user}x");
            prop_assert_eq!(found(&line, &tcp("db", 1), &db, &other), None);
        }
    }
}
