//! A TCP proxy that injects faults.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::{Cluster, KitError};

/// How much of a direction's bytes the proxy itself may hold: little, so that a pause is felt by the sender.
const HELD_MAX: usize = 64 * 1024;

/// How much it may hold while it delays them.
const HELD_MAX_DELAYED: usize = 8 * 1024 * 1024;

/// A way through the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server: commands, acknowledgements.
    ToServer,
    /// From the server to the client: answers, changes.
    ToClient,
}

/// How connections are ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// In order (FIN).
    Close,
    /// By a reset (RST), which both sides see as an error.
    Reset,
}

/// What went through a proxy so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Connections taken, those that were then refused included.
    pub connections: u64,
    /// Connections open now.
    pub open: u64,
    /// Bytes forwarded to the server.
    pub to_server: u64,
    /// Bytes forwarded to the client.
    pub to_client: u64,
    /// Bytes read and dropped by a black hole, in both directions.
    pub swallowed: u64,
}

/// A proxy on a port of its own on 127.0.0.1. Faults are set and lifted while it runs, and hold for the connections
/// that are open and for new ones. Dropping it resets all of them.
///
/// ```no_run
/// # async fn example(source: pgonce_testkit::Cluster) -> Result<(), pgonce_testkit::KitError> {
/// use pgonce_testkit::{Direction, Proxy};
/// let proxy = Proxy::to(&source).await?;
/// let url = proxy.url("postgres");
/// proxy.black_hole(Direction::ToServer, true); // acknowledgements no longer arrive
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    faults: Arc<watch::Sender<Faults>>,
    counters: Arc<Counters>,
    listener: JoinHandle<()>,
}

#[derive(Clone, Debug)]
struct Faults {
    upstream: SocketAddr,
    refuse: bool,
    to_server: Way,
    to_client: Way,
    /// Counts the times that all connections were ended.
    endings: u64,
    ending: Ending,
}

/// The faults of one direction.
#[derive(Clone, Debug, Default)]
struct Way {
    paused: bool,
    black_hole: bool,
    latency: Duration,
    bytes_per_second: Option<u64>,
    /// Bytes that may still pass before everything is cut.
    cut_after: Option<u64>,
}

#[derive(Debug, Default)]
struct Counters {
    connections: AtomicU64,
    open: AtomicU64,
    to_server: AtomicU64,
    to_client: AtomicU64,
    swallowed: AtomicU64,
}

impl Proxy {
    /// Starts a proxy to a cluster's server.
    pub async fn to(cluster: &Cluster) -> Result<Proxy, KitError> {
        Proxy::start(cluster.address()).await
    }

    /// Starts a proxy to any server.
    pub async fn start(upstream: SocketAddr) -> Result<Proxy, KitError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(KitError::io("starting a proxy"))?;
        let address = listener.local_addr().map_err(KitError::io("starting a proxy"))?;
        let faults = Arc::new(watch::Sender::new(Faults {
            upstream,
            refuse: false,
            to_server: Way::default(),
            to_client: Way::default(),
            endings: 0,
            ending: Ending::Reset,
        }));
        let counters = Arc::new(Counters::default());
        let listener = tokio::spawn(accept(listener, Arc::clone(&faults), Arc::clone(&counters)));
        Ok(Proxy { address, faults, counters, listener })
    }

    /// Where the proxy listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The proxy's port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// A URI for connections through the proxy, as superuser `postgres`.
    pub fn url(&self, database: &str) -> String {
        format!("postgresql://postgres@127.0.0.1:{}/{database}", self.port())
    }

    /// Sends new connections to another server.
    pub fn set_upstream(&self, upstream: SocketAddr) {
        self.faults.send_modify(|faults| faults.upstream = upstream);
    }

    /// Stops or resumes reading in one direction: bytes wait at their sender, as behind a slow receiver.
    pub fn pause(&self, direction: Direction, paused: bool) {
        self.way(direction, |way| way.paused = paused);
    }

    /// Reads and drops what comes in one direction, a closing included, or ends that. Lift it only after
    /// [`end_connections`](Proxy::end_connections), or a message may lack its beginning.
    pub fn black_hole(&self, direction: Direction, swallow: bool) {
        self.way(direction, |way| way.black_hole = swallow);
    }

    /// Delays every byte of one direction, without making it slower than the wire otherwise is.
    pub fn latency(&self, direction: Direction, latency: Duration) {
        self.way(direction, |way| way.latency = latency);
    }

    /// Limits each connection in one direction, or lifts the limit.
    pub fn throttle(&self, direction: Direction, bytes_per_second: Option<u64>) {
        self.way(direction, |way| way.bytes_per_second = bytes_per_second.map(|bytes| bytes.max(1)));
    }

    /// Lets exactly this many more bytes pass in one direction, of all connections together, then resets every
    /// connection, once.
    pub fn cut_after(&self, direction: Direction, bytes: u64) {
        self.way(direction, |way| way.cut_after = Some(bytes));
    }

    /// Resets new connections as soon as they are made, or ends that.
    pub fn refuse(&self, refuse: bool) {
        self.faults.send_modify(|faults| faults.refuse = refuse);
    }

    /// Ends every open connection, and returns how many there were.
    pub fn end_connections(&self, ending: Ending) -> u64 {
        let open = self.traffic().open;
        self.faults.send_modify(|faults| {
            faults.endings += 1;
            faults.ending = ending;
        });
        open
    }

    /// Lifts every fault that is set.
    pub fn heal(&self) {
        self.faults.send_modify(|faults| {
            faults.refuse = false;
            faults.to_server = Way::default();
            faults.to_client = Way::default();
        });
    }

    /// What went through so far.
    pub fn traffic(&self) -> Traffic {
        let get = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Traffic {
            connections: get(&self.counters.connections),
            open: get(&self.counters.open),
            to_server: get(&self.counters.to_server),
            to_client: get(&self.counters.to_client),
            swallowed: get(&self.counters.swallowed),
        }
    }

    /// Waits until the traffic is as `wanted` says.
    pub async fn wait_for(&self, wanted: impl Fn(&Traffic) -> bool, patience: Duration) -> Result<Traffic, KitError> {
        let deadline = Instant::now() + patience;
        loop {
            let traffic = self.traffic();
            if wanted(&traffic) {
                return Ok(traffic);
            }
            if Instant::now() > deadline {
                let what = format!("the wanted traffic through a proxy, which has {traffic:?}");
                return Err(KitError::Timeout { what, seconds: patience.as_secs() });
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn way(&self, direction: Direction, change: impl FnOnce(&mut Way)) {
        self.faults.send_modify(|faults| change(faults.way_mut(direction)));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listener.abort();
        self.end_connections(Ending::Reset);
    }
}

impl Faults {
    fn way(&self, direction: Direction) -> &Way {
        match direction {
            Direction::ToServer => &self.to_server,
            Direction::ToClient => &self.to_client,
        }
    }

    fn way_mut(&mut self, direction: Direction) -> &mut Way {
        match direction {
            Direction::ToServer => &mut self.to_server,
            Direction::ToClient => &mut self.to_client,
        }
    }
}

async fn accept(listener: TcpListener, faults: Arc<watch::Sender<Faults>>, counters: Arc<Counters>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        counters.connections.fetch_add(1, Ordering::Relaxed);
        // Looked at before the next await, so that an ending from here on is this connection's too.
        let watched = faults.subscribe();
        let endings = watched.borrow().endings;
        if watched.borrow().refuse {
            let _ = client.set_zero_linger();
            continue;
        }
        counters.open.fetch_add(1, Ordering::Relaxed);
        let (faults, counters) = (Arc::clone(&faults), Arc::clone(&counters));
        tokio::spawn(async move {
            connection(client, &faults, watched, endings, &counters).await;
            counters.open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

async fn connection(
    mut client: TcpStream,
    faults: &watch::Sender<Faults>,
    mut watched: watch::Receiver<Faults>,
    endings: u64,
    counters: &Counters,
) {
    let upstream = watched.borrow().upstream;
    let Ok(mut server) = TcpStream::connect(upstream).await else {
        let _ = client.set_zero_linger();
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let in_order = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let pump = |direction, from, to| Pump { direction, from, to, faults, counters };
        let both = async {
            tokio::try_join!(
                pump(Direction::ToServer, from_client, to_server).run(faults.subscribe()),
                pump(Direction::ToClient, from_server, to_client).run(faults.subscribe()),
            )
        };
        tokio::select! {
            done = both => done.is_ok(),
            ended = watched.wait_for(|faults| faults.endings != endings) => {
                ended.is_ok_and(|faults| faults.ending == Ending::Close)
            }
        }
    };
    if !in_order {
        let _ = (client.set_zero_linger(), server.set_zero_linger());
    }
}

/// One direction of one connection.
struct Pump<'a> {
    direction: Direction,
    from: ReadHalf<'a>,
    to: WriteHalf<'a>,
    faults: &'a watch::Sender<Faults>,
    counters: &'a Counters,
}

impl Pump<'_> {
    /// Forwards until the sender has closed its side and everything is through.
    async fn run(mut self, mut watched: watch::Receiver<Faults>) -> io::Result<()> {
        let mut held: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
        let mut held_bytes = 0;
        let mut next_write = Instant::now();
        let mut closed = false;
        let mut buffer = vec![0; 16 * 1024];
        while !(closed && held.is_empty()) {
            let way = watched.borrow_and_update().way(self.direction).clone();
            let held_max = if way.latency.is_zero() { HELD_MAX } else { HELD_MAX_DELAYED };
            let due = held.front().filter(|_| !way.paused).map(|(due, _)| (*due).max(next_write));
            tokio::select! {
                changed = watched.changed() => changed.map_err(io::Error::other)?,
                read = self.from.read(&mut buffer), if !way.paused && !closed && held_bytes < held_max => {
                    // The faults of the moment count, not those from before the wait.
                    let way = watched.borrow().way(self.direction).clone();
                    if way.black_hole {
                        match read {
                            Ok(length) if length > 0 => add(&self.counters.swallowed, length),
                            // The end of the connection is swallowed too.
                            _ => pending().await,
                        }
                    } else {
                        let length = read?;
                        closed = length == 0;
                        if !closed {
                            held.push_back((Instant::now() + way.latency, buffer[..length].to_vec()));
                            held_bytes += length;
                        }
                    }
                }
                () = sleep_until(due) => {
                    let Some((due, mut bytes)) = held.pop_front() else { continue };
                    held_bytes -= bytes.len();
                    if let Some(rate) = way.bytes_per_second {
                        // Portions of a fiftieth of a second.
                        let portion = usize::try_from(rate.div_ceil(50)).unwrap_or(usize::MAX).min(bytes.len());
                        let rest = bytes.split_off(portion);
                        if !rest.is_empty() {
                            held_bytes += rest.len();
                            held.push_front((due, rest));
                        }
                        next_write = Instant::now() + Duration::from_secs_f64(bytes.len() as f64 / rate as f64);
                    }
                    self.forward(&bytes).await?;
                }
            }
        }
        self.to.shutdown().await
    }

    /// Writes bytes, and cuts every connection where a cut is due.
    async fn forward(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut allowed = bytes.len();
        let mut cut = false;
        // Taken from the account before the write, so that two connections do not spend the same bytes.
        self.faults.send_if_modified(|faults| {
            if let Some(left) = faults.way(self.direction).cut_after {
                allowed = allowed.min(usize::try_from(left).unwrap_or(usize::MAX));
                let left = left - allowed as u64;
                cut = left == 0;
                faults.way_mut(self.direction).cut_after = (!cut).then_some(left);
            }
            false
        });
        self.to.write_all(&bytes[..allowed]).await?;
        let forwarded = match self.direction {
            Direction::ToServer => &self.counters.to_server,
            Direction::ToClient => &self.counters.to_client,
        };
        add(forwarded, allowed);
        if cut {
            self.to.flush().await?;
            self.faults.send_modify(|faults| {
                faults.endings += 1;
                faults.ending = Ending::Reset;
            });
            // The ending takes this connection down as well.
            pending::<()>().await;
        }
        Ok(())
    }
}

fn add(counter: &AtomicU64, bytes: usize) {
    counter.fetch_add(bytes as u64, Ordering::Relaxed);
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => pending().await,
    }
}
