//! The ideal reader: a socket, frames cut in place, keepalives answered, nothing else. No program that decodes can be
//! faster, so its rate is the walsender's.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bytes::{BufMut as _, BytesMut};
use postgres_protocol::message::frontend;
use tokio_postgres::config::Host;

use super::{Drained, Task};

/// A read that brings less is followed by the pause.
const GULP: usize = 64 << 10;

/// Room for the longest message of a workload, many times over.
const BUFFER: usize = 4 << 20;

pub fn run(task: &Task) -> Result<Drained> {
    let begun = Instant::now();
    let mut connection = Connection::open(&task.source)?;
    connection.start(&task.slot, &task.publication)?;
    let mut drained = Drained::default();
    loop {
        let mut at = 0;
        while let Some((tag, body)) = connection.frame(at) {
            let length = 5 + body.len();
            match (tag, body) {
                // XLogData: three positions and times, then the message.
                (b'd', [b'w', rest @ ..]) if rest.len() > 24 => {
                    if drained.first == 0.0 {
                        drained.first = begun.elapsed().as_secs_f64();
                    }
                    match &rest[24..] {
                        [b'I' | b'U' | b'D', ..] => drained.changes += 1,
                        // Commit: flags, then where the commit record starts.
                        [b'C', _, commit @ ..] => {
                            drained.transactions += 1;
                            let commit = commit.first_chunk().map_or(0, |lsn| u64::from_be_bytes(*lsn));
                            if commit >= task.marker.0.0 {
                                drained.seconds = begun.elapsed().as_secs_f64();
                                return Ok(drained);
                            }
                        }
                        _ => {}
                    }
                }
                // Keepalive that wants an answer.
                (b'd', [b'k', .., 1]) => connection.answer()?,
                (b'E', body) => bail!("the walsender: {}", String::from_utf8_lossy(body)),
                _ => {}
            }
            at += length;
        }
        connection.consume(at);
        let read = connection.fill()?;
        let pause = Duration::from_micros(task.pause);
        if read < GULP && !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
}

struct Connection {
    socket: TcpStream,
    buffer: Vec<u8>,
    filled: usize,
}

impl Connection {
    fn open(url: &str) -> Result<Connection> {
        let config: tokio_postgres::Config = url.parse().context("the source")?;
        let (Some(Host::Tcp(host)), Some(port)) = (config.get_hosts().first(), config.get_ports().first()) else {
            bail!("the ideal reader connects over TCP, to a host and a port");
        };
        let socket = TcpStream::connect((host.as_str(), *port)).context("connecting")?;
        socket.set_nodelay(true)?;
        let mut connection = Connection { socket, buffer: vec![0; BUFFER], filled: 0 };
        let parameters = [
            ("user", config.get_user().unwrap_or("postgres")),
            ("database", config.get_dbname().unwrap_or("postgres")),
            ("replication", "database"),
            ("application_name", "ideal reader"),
            ("client_encoding", "UTF8"),
        ];
        let mut message = BytesMut::new();
        frontend::startup_message(parameters, &mut message)?;
        connection.socket.write_all(&message)?;
        connection.wait_for(b'Z')?;
        Ok(connection)
    }

    /// Starts the stream, with the options that pgonce gives.
    fn start(&mut self, slot: &str, publication: &str) -> Result<()> {
        let mut message = BytesMut::new();
        let command = format!(
            "START_REPLICATION SLOT \"{slot}\" LOGICAL 0/0 (proto_version '1', publication_names '\"{publication}\"',
             messages 'true')"
        );
        frontend::query(&command, &mut message)?;
        self.socket.write_all(&message)?;
        self.wait_for(b'W')
    }

    /// Reads up to a message of this type.
    fn wait_for(&mut self, wanted: u8) -> Result<()> {
        loop {
            while let Some((tag, body)) = self.frame(0) {
                if tag == b'E' {
                    bail!("the server: {}", String::from_utf8_lossy(body));
                }
                if tag == b'R' && body != [0; 4] {
                    bail!("the ideal reader has no password to give");
                }
                let length = 5 + body.len();
                self.consume(length);
                if tag == wanted {
                    return Ok(());
                }
            }
            self.fill()?;
        }
    }

    /// The message that begins `at`, if all of it is there.
    fn frame(&self, at: usize) -> Option<(u8, &[u8])> {
        let rest = self.buffer.get(at..self.filled)?;
        let (header, rest) = rest.split_first_chunk::<5>()?;
        let [tag, word @ ..] = *header;
        Some((tag, rest.get(..u32::from_be_bytes(word) as usize - 4)?))
    }

    fn consume(&mut self, count: usize) {
        self.buffer.copy_within(count..self.filled, 0);
        self.filled -= count;
    }

    fn fill(&mut self) -> Result<usize> {
        if self.filled == self.buffer.len() {
            bail!("a message of more than {BUFFER} bytes");
        }
        loop {
            match self.socket.read(&mut self.buffer[self.filled..]) {
                Ok(0) => bail!("the server closed the connection"),
                Ok(count) => {
                    self.filled += count;
                    return Ok(count);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("reading"),
            }
        }
    }

    /// A status update that acknowledges nothing.
    fn answer(&mut self) -> Result<()> {
        let mut message = BytesMut::new();
        message.put_u8(b'd');
        message.put_i32(4 + 1 + 8 * 4 + 1);
        message.put_u8(b'r');
        message.put_bytes(0, 8 * 4 + 1);
        self.socket.write_all(&message).context("answering a keepalive")
    }
}
