//! The start of a session of our own: startup message, authentication, parameters, until the server is ready.
//!
//! See PostgreSQL, "Message Flow", "Start-up", and "SASL Authentication".

use std::collections::BTreeMap;
use std::io;

use bytes::{Buf, BytesMut};
use postgres_protocol::authentication::{md5_hash, sasl};
use postgres_protocol::message::frontend;
use tokio::io::AsyncWriteExt;

use super::error::{At, ConnectError};
use super::frame::{Frame, FrameError, FrameReader, MESSAGE_BYTES_MAX};
use super::pins::{self, PINS};
use super::server_error::ServerError;
use super::settings::{ChannelBindingMode, ConnectionSettings};
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
    let mut session = Session {
        parameters: BTreeMap::new(),
        backend_key: None,
        transport,
        frames: FrameReader::new(MESSAGE_BYTES_MAX),
    };
    let options = pins::options(settings.options.as_deref(), &[PINS]);
    let mut parameters = vec![
        ("user", settings.user.as_str()),
        ("database", &settings.dbname),
        ("client_encoding", "UTF8"),
        ("options", &options),
    ];
    let name = settings.application_name.as_deref();
    parameters.extend(name.map(|name| ("application_name", name)));
    parameters.extend(extra_params.iter().filter(|(key, _)| *key != "application_name" || name.is_none()));
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

    fn at(&self) -> At {
        self.transport.at()
    }

    async fn send(&mut self, write: impl FnOnce(&mut BytesMut) -> io::Result<()>) -> Result<(), ConnectError> {
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
    async fn receive(&mut self) -> Result<Frame, ConnectError> {
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

    fn unexpected(&self, frame: &Frame) -> ConnectError {
        self.at().protocol(format_args!("an unexpected message of type {:?}", char::from(frame.tag)))
    }

    /// The next Authentication message: its code and what follows it.
    async fn receive_authentication(&mut self) -> Result<(u32, bytes::Bytes), ConnectError> {
        let mut frame = self.receive().await?;
        if frame.tag != b'R' {
            return Err(self.unexpected(&frame));
        }
        let code = frame.body.try_get_u32().map_err(|_| self.at().protocol("a malformed Authentication message"))?;
        Ok((code, frame.body))
    }

    async fn authenticate(&mut self, settings: &ConnectionSettings) -> Result<(), ConnectError> {
        let (code, body) = self.receive_authentication().await?;
        if code != AUTHENTICATION_SASL && settings.channel_binding == ChannelBindingMode::Require {
            let reason = why_unbound(self.transport.is_tls(), self.transport.server_end_point().is_some());
            return Err(self.at().authentication(reason));
        }
        match code {
            AUTHENTICATION_OK => return Ok(()),
            AUTHENTICATION_CLEARTEXT => {
                let password = self.password(settings)?;
                self.send(|buffer| frontend::password_message(password.as_bytes(), buffer)).await?;
            }
            AUTHENTICATION_MD5 => {
                let salt = body.as_ref().try_into().map_err(|_| self.at().protocol("a malformed md5 salt"))?;
                let password = self.password(settings)?;
                let hash = md5_hash(settings.user.as_bytes(), password.as_bytes(), salt);
                self.send(|buffer| frontend::password_message(hash.as_bytes(), buffer)).await?;
            }
            AUTHENTICATION_SASL => self.authenticate_scram(settings, &body).await?,
            _ => {
                let method = match code {
                    2 => "Kerberos 5",
                    7 | 8 => "GSSAPI",
                    9 => "SSPI",
                    _ => "a method of an unknown number",
                };
                return Err(self
                    .at()
                    .authentication(format_args!("the server asks for {method}, which is not supported")));
            }
        }
        match self.receive_authentication().await? {
            (AUTHENTICATION_OK, _) => Ok(()),
            (code, _) => Err(self.at().protocol(format_args!("authentication went on with code {code}"))),
        }
    }

    fn password<'s>(&self, settings: &'s ConnectionSettings) -> Result<&'s str, ConnectError> {
        let password = settings.password.as_ref().map(super::settings::Password::reveal);
        password.ok_or_else(|| self.at().authentication("the server asks for a password, and none was given"))
    }

    async fn authenticate_scram(
        &mut self,
        settings: &ConnectionSettings,
        mechanisms: &[u8],
    ) -> Result<(), ConnectError> {
        let offered = |name: &str| mechanisms.split(|byte| *byte == 0).any(|mechanism| mechanism == name.as_bytes());
        let end_point =
            self.transport.server_end_point().filter(|_| settings.channel_binding != ChannelBindingMode::Disable);
        let (mechanism, binding) = match (end_point, offered(sasl::SCRAM_SHA_256_PLUS)) {
            (Some(hash), true) => (sasl::SCRAM_SHA_256_PLUS, sasl::ChannelBinding::tls_server_end_point(hash.to_vec())),
            // Says "I could", so that a server which offered it notices if somebody in between struck it out.
            (Some(_), false) => (sasl::SCRAM_SHA_256, sasl::ChannelBinding::unrequested()),
            (None, _) => (sasl::SCRAM_SHA_256, sasl::ChannelBinding::unsupported()),
        };
        if !offered(mechanism) {
            return Err(self.at().authentication("the server offers no SASL mechanism that is supported"));
        }
        if mechanism != sasl::SCRAM_SHA_256_PLUS && settings.channel_binding == ChannelBindingMode::Require {
            let reason = why_unbound(self.transport.is_tls(), self.transport.server_end_point().is_some());
            return Err(self.at().authentication(reason));
        }
        let mut scram = sasl::ScramSha256::new(self.password(settings)?.as_bytes(), binding);
        self.send(|buffer| frontend::sasl_initial_response(mechanism, scram.message(), buffer)).await?;
        let challenge = self.receive_sasl(AUTHENTICATION_SASL_CONTINUE).await?;
        scram.update(&challenge).map_err(|error| self.at().authentication(error))?;
        self.send(|buffer| frontend::sasl_response(scram.message(), buffer)).await?;
        let proof = self.receive_sasl(AUTHENTICATION_SASL_FINAL).await?;
        scram.finish(&proof).map_err(|error| self.at().authentication(error))
    }

    async fn receive_sasl(&mut self, expected: u32) -> Result<bytes::Bytes, ConnectError> {
        match self.receive_authentication().await? {
            (code, body) if code == expected => Ok(body),
            (code, _) => Err(self.at().protocol(format_args!("the SCRAM exchange went on with code {code}"))),
        }
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

const AUTHENTICATION_OK: u32 = 0;
const AUTHENTICATION_CLEARTEXT: u32 = 3;
const AUTHENTICATION_MD5: u32 = 5;
const AUTHENTICATION_SASL: u32 = 10;
const AUTHENTICATION_SASL_CONTINUE: u32 = 11;
const AUTHENTICATION_SASL_FINAL: u32 = 12;

/// Why SCRAM was not bound to the channel, although `channel_binding=require` asks for it.
pub(super) fn why_unbound(is_tls: bool, has_end_point: bool) -> &'static str {
    match (is_tls, has_end_point) {
        (false, _) => "channel_binding=require, and the connection does not use TLS",
        (true, false) => {
            "channel_binding=require, and the server's certificate has no hash to bind to (RSA-PSS, Ed25519)"
        }
        (true, true) => "channel_binding=require, and the server does not offer it",
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
