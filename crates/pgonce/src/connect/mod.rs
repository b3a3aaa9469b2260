//! One connection parser for every connection of the product, and the ways to open them.
//!
//! A connection string is parsed once, by [`ConnectionSettings::parse`], with libpq's rules. What it says holds for
//! both kinds of connection: [`connect_sql`] for SQL and `COPY`, [`open_session`] for what `tokio-postgres` cannot do
//! (replication). Both go through [`open_transport`]'s path, so that TLS, channel binding, timeouts and the order of
//! hosts are decided in one place.

mod certificate;
mod environment;
mod error;
pub(crate) mod frame;
mod keys;
mod open;
mod parse;
mod parse_error;
mod pins;
mod server_error;
mod settings;
mod sql;
mod startup;
mod stream;
mod tls;
mod tries;

pub use environment::Environment;
pub use error::{ConnectError, ConnectErrorKind};
pub use open::open_session;
pub use parse_error::ParseConnectionError;
pub use pins::{PINS, SQL_PINS};
pub use server_error::ServerError;
pub use settings::{
    ChannelBindingMode, ConnectionSettings, Endpoint, Host, Keepalives, Password, RootCertificates, SslMode,
    TargetSessionAttrs,
};
pub use sql::{SqlConnection, connect_sql};
pub use startup::{BackendKey, Session, startup};
pub use stream::{Transport, open_transport};
