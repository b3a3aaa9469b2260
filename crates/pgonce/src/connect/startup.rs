//! The start of a session of our own: startup message, authentication, parameters, until the server is ready.
//!
//! See PostgreSQL, "Message Flow", "Start-up", and "SASL Authentication".

use std::collections::BTreeMap;
use std::io;

use bytes::{Buf, BytesMut};
use postgres_protocol::message::frontend;
use tokio::io::AsyncWriteExt;

use super::error::{At, ConnectError};
use super::frame::{Frame, FrameError, FrameReader, MESSAGE_BYTES_MAX};
use super::pins::{self, PINS};
use super::server_error::ServerError;
use super::settings::ConnectionSettings;
use super::stream::Transport;

/// A session that is ready for its first command.
#[derive(Debug)]
pub struct Session {
    /// What the server reported of its parameters: `server_version` and others.
    pub parameters: BTreeMap<String, String>,
    /// What a request to cancel must present, if the server gave it.
    pub backend_key: Option<BackendKey>,
    pub(crate) transport: Transport,
    pub(crate) frames: FrameReader,
}

/// What names a server process, and proves the right to cancel what it does.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendKey {
    /// The process's number, as in `pg_stat_activity`.
    pub process_id: i32,
    /// The secret.
    pub secret_key: i32,
}

impl std::fmt::Debug for BackendKey {
    /// The process's number; the secret stays secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackendKey").field("process_id", &self.process_id).finish_non_exhaustive()
    }
}

/// Starts a session on a connection, with every parameter of [`PINS`] pinned.
///
/// `extra_params` are startup parameters beyond those that the settings give, such as `("replication", "database")`; an
/// `application_name` among them is the default for settings without one.
///
/// # Errors
///
/// Why the server refused, or was refused by us; [`ConnectError::is_transient`] says whether to try again.
pub async fn startup(
    transport: Transport,
    settings: &ConnectionSettings,
    extra_params: &[(&str, &str)],
) -> Result<Session, ConnectError> {
    start(transport, settings, Parameters { extra: extra_params, pins: &[PINS] }).await
}

/// The parameters of a session beyond those that the settings give.
#[derive(Clone, Copy)]
pub(super) struct Parameters<'p> {
    /// Startup parameters; an `application_name` among them is the default for settings without one.
    pub(super) extra: &'p [(&'p str, &'p str)],
    /// What is pinned, whatever the settings say.
    pub(super) pins: &'p [&'p [(&'p str, &'p str)]],
}

/// As [`startup`], with other pins.
pub(super) async fn start(
    transport: Transport,
    settings: &ConnectionSettings,
    more: Parameters<'_>,
) -> Result<Session, ConnectError> {
    let mut session = Session {
        parameters: BTreeMap::new(),
        backend_key: None,
        transport,
        frames: FrameReader::new(MESSAGE_BYTES_MAX),
    };
    let options = pins::options(settings.options.as_deref(), more.pins);
    let mut parameters = vec![
        ("user", settings.user.as_str()),
        ("database", &settings.dbname),
        ("client_encoding", "UTF8"),
        ("options", &options),
    ];
    let name = settings.application_name.as_deref();
    parameters.extend(name.map(|name| ("application_name", name)));
    parameters.extend(more.extra.iter().filter(|(key, _)| *key != "application_name" || name.is_none()));
    session.send(|buffer| frontend::startup_message(parameters, buffer)).await?;
    session.authenticate(settings).await?;
    session.read_until_ready().await?;
    Ok(session)
}

impl Session {
    /// The server at the other end.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// The connection, and what was read of it beyond the start.
    pub(crate) fn into_parts(self) -> (Transport, FrameReader) {
        (self.transport, self.frames)
    }

    pub(super) fn at(&self) -> At {
        self.transport.at()
    }

    pub(super) async fn send(
        &mut self,
        write: impl FnOnce(&mut BytesMut) -> io::Result<()>,
    ) -> Result<(), ConnectError> {
        let mut buffer = BytesMut::new();
        // The one thing that cannot be written is a NUL within a string.
        write(&mut buffer).map_err(|error| self.at().protocol(format_args!("a message of ours: {error}")))?;
        let sent = async {
            self.transport.write_all(&buffer).await?;
            self.transport.flush().await
        };
        sent.await.map_err(|error| self.at().io(error))
    }

    /// The next message that is neither a notice nor a parameter; errors are returned as such.
    pub(super) async fn receive(&mut self) -> Result<Frame, ConnectError> {
        loop {
            let frame = self.frames.next(&mut self.transport).await.map_err(|error| match error {
                FrameError::Io(error) => self.at().io(error),
                other => self.at().protocol(other),
            })?;
            match frame.tag {
                b'E' => {
                    let error = ServerError::parse(&frame.body);
                    return Err(match error {
                        Some(error) => self.at().server(error),
                        None => self.at().protocol("an error that cannot be read"),
                    });
                }
                b'N' => {
                    if let Some(notice) = ServerError::parse(&frame.body) {
                        tracing::debug!(%notice, "notice while a session starts");
                    }
                }
                b'S' => {
                    let (name, value) = two_strings(&frame.body).ok_or_else(|| self.malformed(&frame))?;
                    self.parameters.insert(name, value);
                }
                _ => return Ok(frame),
            }
        }
    }

    fn malformed(&self, frame: &Frame) -> ConnectError {
        self.at().protocol(format_args!("a malformed message of type {:?}", char::from(frame.tag)))
    }

    pub(super) fn unexpected(&self, frame: &Frame) -> ConnectError {
        self.at().protocol(format_args!("an unexpected message of type {:?}", char::from(frame.tag)))
    }

    async fn read_until_ready(&mut self) -> Result<(), ConnectError> {
        loop {
            let mut frame = self.receive().await?;
            match frame.tag {
                b'K' => {
                    let (Ok(process_id), Ok(secret_key)) = (frame.body.try_get_i32(), frame.body.try_get_i32()) else {
                        return Err(self.malformed(&frame));
                    };
                    self.backend_key = Some(BackendKey { process_id, secret_key });
                }
                // NegotiateProtocolVersion: a server that knows an older minor version than 3.0 does not exist.
                b'v' => {}
                b'Z' => return Ok(()),
                _ => return Err(self.unexpected(&frame)),
            }
        }
    }

    /// The first column of the first row of a simple query. `None` without a row, or for NULL.
    pub(super) async fn first_value(&mut self, sql: &str) -> Result<Option<String>, ConnectError> {
        self.send(|buffer| frontend::query(sql, buffer)).await?;
        let mut value = None;
        loop {
            let mut frame = self.receive().await?;
            match frame.tag {
                b'D' if value.is_none() => {
                    let text = first_column(&mut frame.body).ok_or_else(|| self.malformed(&frame))?;
                    value = Some(text);
                }
                b'D' | b'T' | b'C' => {}
                b'Z' => return Ok(value.flatten()),
                _ => return Err(self.unexpected(&frame)),
            }
        }
    }
}

/// The two strings of a ParameterStatus message.
fn two_strings(body: &[u8]) -> Option<(String, String)> {
    let mut strings = body.split(|byte| *byte == 0);
    let mut next = || Some(String::from_utf8_lossy(strings.next()?).into_owned());
    let pair = (next()?, next()?);
    // Behind the second terminator stands nothing.
    strings.next().is_some_and(<[u8]>::is_empty).then_some(pair)
}

/// The first column of a DataRow message.
fn first_column(body: &mut bytes::Bytes) -> Option<Option<String>> {
    if body.try_get_u16().ok()? == 0 {
        return None;
    }
    match body.try_get_i32().ok()? {
        -1 => Some(None),
        length => {
            let length = usize::try_from(length).ok()?;
            Some(Some(String::from_utf8_lossy(body.get(..length)?).into_owned()))
        }
    }
}
