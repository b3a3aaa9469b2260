//! Connections for SQL and `COPY`, through `tokio-postgres`, on a transport of our own.

use std::convert::Infallible;
use std::future::{Ready, poll_fn, ready};
use std::io;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::config::{ChannelBinding, SslMode, SslNegotiation};
use tokio_postgres::tls::{TlsConnect, TlsStream};
use tokio_postgres::{AsyncMessage, Client, Config, Connection};

use super::error::{At, ConnectError};
use super::pins::{self, PINS, SQL_PINS};
use super::server_error::ServerError;
use super::settings::{ChannelBindingMode, ConnectionSettings, Endpoint};
use super::startup::why_unbound;
use super::stream::{Transport, open_one};
use super::tries::{Encryption, Question, Tries, within};

/// A client, and the task that drives its connection. Dropped, the task ends, and with it the connection.
#[derive(Debug)]
pub struct SqlConnection {
    /// Sends the commands.
    pub client: Client,
    /// Drives the connection.
    pub task: JoinHandle<()>,
    endpoint: Endpoint,
    encryption: Encryption,
    closed: watch::Receiver<bool>,
}

impl SqlConnection {
    /// The server at the other end.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Waits until the connection is closed, by whomever.
    pub async fn closed(&self) {
        let mut closed = self.closed.clone();
        // An error says that the task is gone, which is the same.
        let _ = closed.wait_for(|closed| *closed).await;
    }
}

impl SqlConnection {
    /// Asks the server to cancel what the connection is doing, over a connection of its own, encrypted if this one is.
    ///
    /// It may come too late; the command's own result tells. Use this instead of the client's `cancel_token`, which
    /// does not know how the connection was opened.
    ///
    /// # Errors
    ///
    /// Why the request was not delivered.
    pub async fn cancel_query(&self, settings: &ConnectionSettings) -> Result<(), ConnectError> {
        let transport = open_one(settings, &self.endpoint, self.encryption).await?;
        let at = transport.at();
        within(settings, &at, async {
            let token = self.client.cancel_token();
            token.cancel_query_raw(transport, Established).await.map_err(|error| translate(&at, error))
        })
        .await
    }
}

impl Drop for SqlConnection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Opens a connection for SQL on the first of the hosts that will do, with [`PINS`] and [`SQL_PINS`] pinned.
///
/// `role` says what the connection is for, in a word (`apply`, `verify`). The server shows it in `application_name`, as
/// `pgonce role`, unless the settings name the program themselves.
///
/// # Errors
///
/// Why no session was started; with several hosts, [`ConnectError::Hosts`] says it of each.
pub async fn connect_sql(settings: &ConnectionSettings, role: &str) -> Result<SqlConnection, ConnectError> {
    let mut tries = Tries::new(settings);
    loop {
        match connect_one(settings, &tries, role).await {
            Ok(connection) => return Ok(connection),
            Err(error) => tries.failed(error)?,
        }
    }
}

async fn connect_one(
    settings: &ConnectionSettings,
    tries: &Tries<'_>,
    role: &str,
) -> Result<SqlConnection, ConnectError> {
    let transport = open_one(settings, tries.endpoint(), tries.encryption()).await?;
    let encryption = if transport.is_tls() { Encryption::Required } else { Encryption::Plain };
    let at = transport.at();
    let config = config(settings, role, transport.is_tls());
    let unbound = why_unbound(transport.is_tls(), transport.server_end_point().is_some());
    let connected = within(settings, &at, async {
        config.connect_raw(transport, Established).await.map_err(|error| match translate(&at, error) {
            ConnectError::Authentication { reason, .. } if reason == UNBOUND => at.authentication(unbound),
            ConnectError::Authentication { reason, .. } if reason == NO_PASSWORD => {
                at.authentication("the server asks for a password, and none was given")
            }
            other => other,
        })
    });
    let (client, connection) = connected.await?;
    let question = Question::about(settings.target_session_attrs);
    let answer = question.as_ref().and_then(|question| question.answered_by(|name| connection.parameter(name)));
    let (sender, closed) = watch::channel(false);
    let task = tokio::spawn(async move {
        drive(connection).await;
        let _ = sender.send(true);
    });
    let connection = SqlConnection { client, task, endpoint: tries.endpoint().clone(), encryption, closed };
    within(settings, &at, async {
        if let Some(question) = question {
            let answer = match answer {
                Some(answer) => answer,
                None => first_value(&connection.client, question.sql, &at).await?.as_deref() == Some(question.wanted),
            };
            question.check(answer, &at)?;
        }
        first_value(&connection.client, UNLIMITED, &at).await
    })
    .await?;
    Ok(connection)
}

/// What `tokio-postgres` says where `channel_binding=require` is not met.
const UNBOUND: &str = "server did not use channel binding";

/// What `tokio-postgres` says where the server asks for a password that was not given.
const NO_PASSWORD: &str = "password missing";

/// Lifts the limits that only newer servers know, and that older ones would refuse at the start.
const UNLIMITED: &str = "SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings \
     WHERE name IN ('idle_session_timeout', 'transaction_timeout')";

async fn first_value(client: &Client, sql: &str, at: &At) -> Result<Option<String>, ConnectError> {
    let messages = client.simple_query(sql).await.map_err(|error| translate(at, error))?;
    Ok(messages.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    }))
}

fn config(settings: &ConnectionSettings, role: &str, tls: bool) -> Config {
    let mut config = Config::new();
    config
        .user(&settings.user)
        .dbname(&settings.dbname)
        .options(pins::options(settings.options.as_deref(), &[PINS, SQL_PINS]))
        .application_name(settings.application_name.clone().unwrap_or_else(|| format!("pgonce {role}")))
        .channel_binding(match settings.channel_binding {
            ChannelBindingMode::Disable => ChannelBinding::Disable,
            ChannelBindingMode::Prefer => ChannelBinding::Prefer,
            ChannelBindingMode::Require => ChannelBinding::Require,
        });
    if let Some(password) = &settings.password {
        config.password(password.reveal());
    }
    if tls {
        // The transport is encrypted already. "Direct" hands it to `Established` without another request for TLS.
        config.ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct);
    } else {
        config.ssl_mode(SslMode::Disable);
    }
    config
}

/// Stands for a TLS handshake that is done: hands the transport through, with its channel binding.
struct Established;

impl TlsConnect<Transport> for Established {
    type Stream = Transport;
    type Error = Infallible;
    type Future = Ready<Result<Transport, Infallible>>;

    fn connect(self, stream: Transport) -> Self::Future {
        ready(Ok(stream))
    }
}

impl TlsStream for Transport {
    fn channel_binding(&self) -> tokio_postgres::tls::ChannelBinding {
        match self.server_end_point() {
            Some(hash) => tokio_postgres::tls::ChannelBinding::tls_server_end_point(hash.to_vec()),
            None => tokio_postgres::tls::ChannelBinding::none(),
        }
    }
}

/// Drives the connection to its end. Notices are logged without their texts, which may quote rows.
async fn drive(mut connection: Connection<Transport, Transport>) {
    loop {
        match poll_fn(|cx| connection.poll_message(cx)).await {
            Some(Ok(AsyncMessage::Notice(notice))) => {
                let notice = ServerError::from(&notice);
                tracing::debug!(%notice, "notice");
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                let sqlstate = error.code().map(tokio_postgres::error::SqlState::code);
                tracing::debug!(sqlstate, %error, "connection lost");
                return;
            }
            None => return,
        }
    }
}

/// What went wrong while a session started, in our own terms.
fn translate(at: &At, error: tokio_postgres::Error) -> ConnectError {
    if let Some(error) = error.as_db_error() {
        return at.server(error.into());
    }
    if error.is_closed() {
        return at.io(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
    }
    let what = error.to_string();
    match error.into_source() {
        Some(source) if what.starts_with("error communicating") => match source.downcast::<io::Error>() {
            Ok(source) => at.io(*source),
            Err(source) => at.protocol(source),
        },
        Some(source) if what.starts_with("authentication") || what.starts_with("invalid configuration") => {
            at.authentication(source)
        }
        Some(source) => at.protocol(format_args!("{what}: {source}")),
        None => at.protocol(what),
    }
}
