//! One connection parser for every connection of the product, and the ways to open them.
//!
//! A connection string is parsed once, by [`ConnectionSettings::parse`], with libpq's rules. What it says holds for
//! both kinds of connection: [`connect_sql`] for SQL and `COPY`, [`open_session`] for what `tokio-postgres` cannot do
//! (replication). Both go through [`open_transport`]'s path, so that TLS, channel binding, timeouts and the order of
//! hosts are decided in one place. libpq's own programs connect alike by [`LibpqCommand`].

mod auth_methods;
mod authenticate;
mod certificate;
mod client_certificate;
mod endpoints;
mod environment;
mod error;
pub(crate) mod frame;
mod handover;
mod keys;
mod libpq;
mod open;
mod origin;
mod parse;
mod parse_error;
mod passfile;
mod peer;
mod pins;
mod read;
mod render;
mod revocation;
mod server_error;
mod service;
mod settings;
mod sql;
mod startup;
mod stream;
mod tls;
mod tries;
mod values;

pub use auth_methods::RequiredAuth;
pub use environment::Environment;
pub use error::{ConnectError, ConnectErrorKind};
pub use libpq::LibpqCommand;
pub use open::open_session;
pub use origin::{Given, Origin};
pub use parse_error::ParseConnectionError;
pub use pins::{PINS, SQL_PINS};
pub use server_error::ServerError;
pub use settings::{
    CertificateMode, ChannelBindingMode, ConnectionSettings, Endpoint, FileChoice, Host, Keepalives, Password,
    RevocationLists, RootCertificates, SslMode, SslNegotiation, TargetSessionAttrs, TlsVersion,
};
pub use sql::{SqlConnection, connect_sql};
pub use startup::{BackendKey, Session, startup};
pub use stream::{Transport, open_transport};
