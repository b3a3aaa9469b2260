//! The byte stream to a server: TCP or a Unix socket, and TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::client_certificate::CertificateExchange;
use super::error::{At, ConnectError};
use super::settings::{ConnectionSettings, Endpoint, Host, SslMode, SslNegotiation};
use super::tries::{Encryption, Tries, within};
use super::{certificate, peer, tls};

/// The SSLRequest message: its length, and a code where a protocol's version would stand.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xD2, 0x16, 0x2F];

/// An open connection to a server, encrypted if the settings ask for it. No byte of the protocol has been sent on it.
#[derive(Debug)]
pub struct Transport {
    inner: Inner,
    endpoint: Endpoint,
    server_end_point: Option<Vec<u8>>,
    certificate_exchange: CertificateExchange,
}

#[derive(Debug)]
enum Inner {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Transport {
    /// The server at the other end.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Whether the connection is encrypted.
    pub fn is_tls(&self) -> bool {
        matches!(self.inner, Inner::Tls(_))
    }

    /// The `tls-server-end-point` channel binding (RFC 5929): a hash of the server's certificate.
    ///
    /// `None` without TLS, and for a certificate whose signature has no hash of its own (Ed25519).
    pub fn server_end_point(&self) -> Option<&[u8]> {
        self.server_end_point.as_deref()
    }

    /// What came of the client certificate.
    pub(super) fn certificate_exchange(&self) -> CertificateExchange {
        self.certificate_exchange
    }

    pub(super) fn at(&self) -> At {
        At(self.endpoint.clone())
    }
}

/// Opens a connection to the first of the hosts that can be reached.
///
/// With `sslmode=allow` it is not encrypted: whether the server insists on TLS shows only when a session starts.
///
/// # Errors
///
/// Why the host was not reached, or TLS not agreed upon; with several hosts, [`ConnectError::Hosts`] says it of each.
pub async fn open_transport(settings: &ConnectionSettings) -> Result<Transport, ConnectError> {
    let mut tries = Tries::new(settings);
    loop {
        let error = match tries.attempt().await {
            Ok(attempt) => match open_one(settings, &attempt.endpoint, attempt.encryption).await {
                Ok(transport) => return Ok(transport),
                Err(error) => error,
            },
            Err(error) => error,
        };
        tries.failed(error)?;
    }
}

/// Opens a connection to one host, encrypted as said.
pub(super) async fn open_one(
    settings: &ConnectionSettings,
    endpoint: &Endpoint,
    encryption: Encryption,
) -> Result<Transport, ConnectError> {
    let at = At(endpoint.clone());
    let plain = |inner| Transport {
        inner,
        endpoint: endpoint.clone(),
        server_end_point: None,
        certificate_exchange: CertificateExchange::default(),
    };
    let host = match &endpoint.host {
        Host::Unix(directory) => {
            let path = directory.join(format!(".s.PGSQL.{}", endpoint.port));
            let socket = within(settings, &at, async { UnixStream::connect(path).await.map_err(|e| at.connect(e)) });
            let socket = socket.await?;
            if let Some(user) = &settings.require_peer {
                peer::check(&socket, user, &at)?;
            }
            return Ok(plain(Inner::Unix(socket)));
        }
        Host::Tcp(host) => host,
    };
    let socket = within(settings, &at, open_tcp(settings, endpoint, &at)).await?;
    if encryption == Encryption::Plain {
        return Ok(plain(Inner::Tcp(socket)));
    }
    within(settings, &at, async {
        let answer = match settings.ssl_negotiation {
            SslNegotiation::Postgres => negotiate(socket, &at).await?,
            SslNegotiation::Direct => Answer::Willing(socket),
        };
        match answer {
            Answer::Willing(socket) => {
                let (stream, certificate_exchange) = handshake(settings, host, socket, &at).await?;
                let certificates = stream.get_ref().1.peer_certificates();
                let server_end_point =
                    certificates.and_then(<[_]>::first).and_then(|first| certificate::server_end_point(first));
                let inner = Inner::Tls(Box::new(stream));
                Ok(Transport { inner, endpoint: endpoint.clone(), server_end_point, certificate_exchange })
            }
            Answer::Unable(socket) if encryption == Encryption::Preferred => Ok(plain(Inner::Tcp(socket))),
            Answer::Unable(_) => Err(at.tls_not_offered()),
        }
    })
    .await
}

async fn open_tcp(settings: &ConnectionSettings, endpoint: &Endpoint, at: &At) -> Result<TcpStream, ConnectError> {
    let Some(address) = endpoint.address else {
        return Err(at.resolve(io::Error::new(io::ErrorKind::NotFound, "the name was not looked up")));
    };
    let socket = TcpStream::connect((address, endpoint.port)).await.map_err(|error| at.connect(error))?;
    tune(settings, &socket).map_err(|error| at.connect(error))?;
    Ok(socket)
}

fn tune(settings: &ConnectionSettings, socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let socket = SockRef::from(socket);
    let keepalives = settings.keepalives;
    if keepalives.enabled {
        let mut parameters = TcpKeepalive::new();
        if let Some(idle) = keepalives.idle {
            parameters = parameters.with_time(idle);
        }
        if let Some(interval) = keepalives.interval {
            parameters = parameters.with_interval(interval);
        }
        if let Some(count) = keepalives.count {
            parameters = parameters.with_retries(count);
        }
        socket.set_keepalive(true)?;
        socket.set_tcp_keepalive(&parameters)?;
    }
    #[cfg(target_os = "linux")]
    if settings.tcp_user_timeout.is_some() {
        socket.set_tcp_user_timeout(settings.tcp_user_timeout)?;
    }
    Ok(())
}

/// What the server says to SSLRequest.
enum Answer {
    Willing(TcpStream),
    Unable(TcpStream),
}

async fn negotiate(mut socket: TcpStream, at: &At) -> Result<Answer, ConnectError> {
    socket.write_all(&SSL_REQUEST).await.map_err(|error| at.io(error))?;
    // One byte and no more: whatever else was sent in clear would have to be part of the TLS handshake, and fail there.
    match socket.read_u8().await.map_err(|error| at.io(error))? {
        b'S' => Ok(Answer::Willing(socket)),
        b'N' => Ok(Answer::Unable(socket)),
        // Its text comes from who knows where; the server's log has it.
        b'E' => {
            Err(at.io(io::Error::new(io::ErrorKind::ConnectionAborted, "an error in answer to the request for TLS")))
        }
        other => Err(at.protocol(format_args!("the request for TLS was answered with byte {other:#04x}"))),
    }
}

async fn handshake(
    settings: &ConnectionSettings,
    host: &str,
    socket: TcpStream,
    at: &At,
) -> Result<(TlsStream<TcpStream>, CertificateExchange), ConnectError> {
    let name = match ServerName::try_from(host.to_owned()) {
        Ok(name) => name,
        Err(error) if settings.ssl_mode == SslMode::VerifyFull => return Err(at.tls(error)),
        // A name that no certificate can hold, and that nobody checks.
        Err(_) => ServerName::from(socket.peer_addr().map_err(|error| at.io(error))?.ip()),
    };
    let (config, identity) = tls::client_config(settings)?;
    let stream = TlsConnector::from(config).connect(name, socket).await.map_err(|error| {
        match tls::handshake_error(error) {
            Ok(reason) => at.tls(reason),
            // A server before 17 takes the handshake for a startup message, and hangs up.
            Err(_) if settings.ssl_negotiation == SslNegotiation::Direct => at.tls(NOT_DIRECT),
            Err(error) => at.io(error),
        }
    })?;
    let agreed = stream.get_ref().1.alpn_protocol();
    if settings.ssl_negotiation == SslNegotiation::Direct && agreed != Some(tls::PROTOCOL) {
        return Err(at.tls(NOT_DIRECT));
    }
    Ok((stream, identity.exchange()))
}

const NOT_DIRECT: &str = "the server does not take TLS without being asked; leave sslnegotiation=direct out";

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().inner {
            Inner::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Inner::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            Inner::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().inner {
            Inner::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Inner::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Inner::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().inner {
            Inner::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, buffers),
            Inner::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, buffers),
            Inner::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, buffers),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.inner {
            Inner::Tcp(stream) => stream.is_write_vectored(),
            Inner::Unix(stream) => stream.is_write_vectored(),
            Inner::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().inner {
            Inner::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Inner::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Inner::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().inner {
            Inner::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Inner::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Inner::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
