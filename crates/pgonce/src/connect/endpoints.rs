//! The hosts, addresses and ports of a connection string, put together.

use super::parse_error::ParseConnectionError;
use super::settings::{Endpoint, Host};
use super::values::Values;

/// Where Debian, Red Hat and the other packagers put the server's socket, and let libpq look for it.
pub(super) const SOCKET_DIRECTORY: &str = "/var/run/postgresql";

const PORT: u16 = 5432;

impl Values {
    pub(super) fn endpoints(&self) -> Result<Vec<Endpoint>, ParseConnectionError> {
        let list = |key: &str| self.text(key).map(|text| text.split(',').map(str::trim).collect::<Vec<_>>());
        let (hosts, addresses) = (list("host"), list("hostaddr"));
        let ports = self.ports(list("port").unwrap_or_default())?;
        if hosts.is_none() && addresses.is_none() {
            let port = match ports.as_slice() {
                [] => PORT,
                [port] => *port,
                _ => return Err(self.invalid("port", "several ports, and no host")),
            };
            let hosts = [Host::Unix(SOCKET_DIRECTORY.into()), Host::Tcp("localhost".to_owned())];
            return Ok(hosts.map(|host| Endpoint { host, address: None, port }).into());
        }
        let count = hosts.as_ref().or(addresses.as_ref()).map_or(0, Vec::len);
        if addresses.as_ref().is_some_and(|addresses| addresses.len() != count) {
            return Err(self.invalid("hostaddr", "there must be as many addresses as hosts"));
        }
        if ports.len() > 1 && ports.len() != count {
            return Err(self.invalid("port", "there must be one port, or as many as hosts"));
        }
        (0..count)
            .map(|index| {
                let port = ports.get(index).or(ports.first()).copied().unwrap_or(PORT);
                let host = hosts.as_ref().map_or("", |hosts| hosts[index]);
                let address = addresses.as_ref().map_or("", |addresses| addresses[index]);
                self.endpoint(host, address, port)
            })
            .collect()
    }

    fn ports(&self, texts: Vec<&str>) -> Result<Vec<u16>, ParseConnectionError> {
        let port = |text: &str| match text.parse() {
            _ if text.is_empty() => Ok(PORT),
            Ok(0) | Err(_) => Err(self.invalid("port", "a port is a number from 1 to 65535")),
            Ok(port) => Ok(port),
        };
        texts.into_iter().map(port).collect()
    }

    fn endpoint(&self, host: &str, address: &str, port: u16) -> Result<Endpoint, ParseConnectionError> {
        if host.starts_with('@') {
            return Err(self.invalid("host", "abstract Unix sockets are not supported"));
        }
        if address.is_empty() {
            let host = match host {
                "" => Host::Unix(SOCKET_DIRECTORY.into()),
                path if path.starts_with('/') => Host::Unix(path.into()),
                name => Host::Tcp(name.to_owned()),
            };
            return Ok(Endpoint { host, address: None, port });
        }
        let parsed = address.parse().map_err(|_| self.invalid("hostaddr", "it is not an IPv4 or IPv6 address"))?;
        let host = if host.is_empty() { address } else { host };
        Ok(Endpoint { host: Host::Tcp(host.to_owned()), address: Some(parsed), port })
    }
}
