//! Connections for SQL and `COPY`, through `tokio-postgres`, on a transport of our own.

use std::convert::Infallible;
use std::future::{Ready, poll_fn, ready};
use std::io;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{NoTls, NoTlsStream, TlsConnect, TlsStream};
use tokio_postgres::{AsyncMessage, Client, Config, Connection};

use super::error::{At, ConnectError};
use super::handover::Handover;
use super::open::first_session;
use super::pins::{PINS, SQL_PINS};
use super::server_error::ServerError;
use super::settings::{ConnectionSettings, Endpoint};
use super::startup::Parameters;
use super::stream::{Transport, open_one};
use super::tries::{Encryption, within};

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
    let name = format!("pgonce {role}");
    let parameters = Parameters { extra: &[("application_name", &name)], pins: &[PINS, SQL_PINS] };
    let mut session = first_session(settings, parameters).await?;
    let transport = session.transport();
    let (endpoint, at) = (transport.endpoint().clone(), transport.at());
    let encryption = if transport.is_tls() { Encryption::Required } else { Encryption::Plain };
    let (client, connection) = within(settings, &at, async {
        session.first_value(UNLIMITED).await?;
        // Whom it is for and who that is has been settled; the client only has to believe it.
        let mut config = Config::new();
        config.user(&settings.user).ssl_mode(SslMode::Disable);
        config.connect_raw(Handover::new(session), NoTls).await.map_err(|error| translate(&at, error))
    })
    .await?;
    let (sender, closed) = watch::channel(false);
    let task = tokio::spawn(async move {
        drive(connection).await;
        let _ = sender.send(true);
    });
    Ok(SqlConnection { client, task, endpoint, encryption, closed })
}

/// Lifts the limits that only newer servers know, and that older ones would refuse at the start.
const UNLIMITED: &str = "SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings \
     WHERE name IN ('idle_session_timeout', 'transaction_timeout')";

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
async fn drive(mut connection: Connection<Handover, NoTlsStream>) {
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

/// What went wrong with a message of the client's, in our own terms.
fn translate(at: &At, error: tokio_postgres::Error) -> ConnectError {
    if let Some(error) = error.as_db_error() {
        return at.server(error.into());
    }
    if error.is_closed() {
        return at.io(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
    }
    let what = error.to_string();
    match error.into_source().map(|source| source.downcast::<io::Error>()) {
        Some(Ok(source)) => at.io(*source),
        Some(Err(source)) => at.protocol(format_args!("{what}: {source}")),
        None => at.protocol(what),
    }
}
