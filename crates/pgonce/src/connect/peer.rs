//! `requirepeer`: who the server behind a Unix socket runs as.

use tokio::net::UnixStream;

use super::error::{At, ConnectError};

/// Refuses a server that does not run as `wanted`.
pub(super) fn check(socket: &UnixStream, wanted: &str, at: &At) -> Result<(), ConnectError> {
    let uid = socket.peer_cred().map_err(|error| at.io(error))?.uid();
    match name_of(uid) {
        Some(name) if name == wanted => Ok(()),
        Some(name) => {
            Err(at
                .authentication(format_args!("requirepeer={wanted}, and the server behind the socket runs as {name}")))
        }
        None => Err(at.authentication(format_args!(
            "requirepeer={wanted}, and the server behind the socket runs as user number {uid}, which /etc/passwd does \
             not have"
        ))),
    }
}

/// The account of this number.
fn name_of(uid: u32) -> Option<String> {
    let accounts = std::fs::read_to_string("/etc/passwd").ok()?;
    accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let number: u32 = fields.nth(1)?.parse().ok()?;
        (number == uid).then(|| name.to_owned())
    })
}
