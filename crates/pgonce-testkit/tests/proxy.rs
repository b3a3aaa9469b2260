//! The proxy does to connections what it is told, and counts.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use pgonce_testkit::{Cluster, Direction, Ending, Proxy, majors, witness};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_postgres::NoTls;

type Outcome = Result<(), Box<dyn Error>>;

const PATIENCE: Duration = Duration::from_secs(20);
const MOMENT: Duration = Duration::from_millis(100);

/// A server that sends back what it receives.
async fn echo() -> Result<SocketAddr, Box<dyn Error>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                tokio::io::copy(&mut from, &mut to).await
            });
        }
    });
    Ok(address)
}

async fn through(proxy: &Proxy) -> Result<TcpStream, Box<dyn Error>> {
    let stream = TcpStream::connect(proxy.address()).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends bytes and receives as many.
async fn round_trip(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(bytes).await?;
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back).await?;
    assert_eq!(back, bytes);
    Ok(())
}

#[tokio::test]
async fn bytes_go_both_ways_and_are_counted() -> Outcome {
    let proxy = Proxy::start(echo().await?).await?;
    let mut stream = through(&proxy).await?;
    round_trip(&mut stream, &[7; 100_000]).await?;
    let traffic = proxy.traffic();
    assert_eq!((traffic.connections, traffic.open), (1, 1));
    assert_eq!((traffic.to_server, traffic.to_client, traffic.swallowed), (100_000, 100_000, 0));

    stream.shutdown().await?;
    assert_eq!(stream.read(&mut [0; 1]).await?, 0, "a connection closed in order ends in order");
    proxy.wait_for(|traffic| traffic.open == 0, PATIENCE).await?;
    Ok(())
}

#[tokio::test]
async fn a_pause_holds_bytes_back_and_loses_none() -> Outcome {
    let proxy = Proxy::start(echo().await?).await?;
    let mut stream = through(&proxy).await?;
    round_trip(&mut stream, b"before").await?;
    proxy.pause(Direction::ToServer, true);
    stream.write_all(b"held").await?;
    assert!(timeout(MOMENT, stream.read_u8()).await.is_err());
    assert_eq!(proxy.traffic().to_server, 6);

    // Backpressure: a sender that goes on sending gets stuck.
    let much = vec![0; 64 * 1024 * 1024];
    assert!(timeout(MOMENT, stream.write_all(&much)).await.is_err());
    proxy.pause(Direction::ToServer, false);
    let mut back = [0; 4];
    stream.read_exact(&mut back).await?;
    assert_eq!(&back, b"held");
    Ok(())
}

#[tokio::test]
async fn a_black_hole_swallows_one_direction() -> Outcome {
    let proxy = Proxy::start(echo().await?).await?;
    for direction in [Direction::ToServer, Direction::ToClient] {
        let mut stream = through(&proxy).await?;
        round_trip(&mut stream, b"before").await?;
        let before = proxy.traffic();
        proxy.black_hole(direction, true);
        stream.write_all(b"gone").await?;
        let after = proxy.wait_for(|traffic| traffic.swallowed == before.swallowed + 4, PATIENCE).await?;
        let reached = u64::from(direction == Direction::ToClient) * 4;
        assert_eq!(after.to_server - before.to_server, reached);
        assert_eq!(after.to_client, before.to_client);
        assert!(timeout(MOMENT, stream.read_u8()).await.is_err());
        proxy.heal();
    }
    Ok(())
}

#[tokio::test]
async fn the_end_of_a_client_is_not_heard_through_a_black_hole() -> Outcome {
    let proxy = Proxy::start(echo().await?).await?;
    let mut stream = through(&proxy).await?;
    round_trip(&mut stream, b"before").await?;
    proxy.black_hole(Direction::ToServer, true);
    drop(stream);
    tokio::time::sleep(MOMENT).await;
    assert_eq!(proxy.traffic().open, 1);
    assert_eq!(proxy.end_connections(Ending::Close), 1);
    proxy.wait_for(|traffic| traffic.open == 0, PATIENCE).await?;
    Ok(())
}

#[tokio::test]
async fn connections_are_ended_by_close_or_reset() -> Outcome {
    let proxy = Proxy::start(echo().await?).await?;
    for (ending, reset) in [(Ending::Close, false), (Ending::Reset, true)] {
        let mut streams = [through(&proxy).await?, through(&proxy).await?];
        for stream in &mut streams {
            round_trip(stream, b"hello").await?;
        }
        proxy.wait_for(|traffic| traffic.open == 2, PATIENCE).await?;
        assert_eq!(proxy.end_connections(ending), 2);
        for stream in &mut streams {
            assert_eq!(timeout(PATIENCE, stream.read(&mut [0; 1])).await?.is_err(), reset);
        }
        proxy.wait_for(|traffic| traffic.open == 0, PATIENCE).await?;
    }
    let mut stream = through(&proxy).await?;
    round_trip(&mut stream, b"a new connection is not affected").await?;
    Ok(())
}

#[tokio::test]
async fn refused_connections_come_to_nothing() -> Outcome {
    let proxy = Proxy::start(echo().await?).await?;
    let mut before = through(&proxy).await?;
    round_trip(&mut before, b"hello").await?;
    proxy.refuse(true);
    let mut refused = through(&proxy).await?;
    assert!(round_trip(&mut refused, b"hello").await.is_err());
    round_trip(&mut before, b"an old connection is not affected").await?;
    proxy.refuse(false);
    round_trip(&mut through(&proxy).await?, b"hello").await?;
    assert_eq!(proxy.traffic().connections, 3);
    Ok(())
}

#[tokio::test]
async fn a_cut_lets_exactly_its_bytes_pass() -> Outcome {
    let proxy = Proxy::start(echo().await?).await?;
    let mut stream = through(&proxy).await?;
    round_trip(&mut stream, b"before").await?;
    let before = proxy.traffic();
    proxy.cut_after(Direction::ToServer, 70_001);
    let _ = stream.write_all(&[1; 100_000]).await;
    let after = proxy.wait_for(|traffic| traffic.open == 0, PATIENCE).await?;
    assert_eq!(after.to_server - before.to_server, 70_001);
    round_trip(&mut through(&proxy).await?, &[2; 100_000]).await?;
    Ok(())
}

#[tokio::test]
async fn latency_delays_and_does_not_throttle() -> Outcome {
    let proxy = Proxy::start(echo().await?).await?;
    let mut stream = through(&proxy).await?;
    proxy.latency(Direction::ToServer, Duration::from_millis(200));
    let start = Instant::now();
    round_trip(&mut stream, &[3; 1_000_000]).await?;
    let elapsed = start.elapsed();
    assert!(elapsed >= Duration::from_millis(200), "{elapsed:?}");
    assert!(elapsed < Duration::from_secs(5), "{elapsed:?}");
    Ok(())
}

#[tokio::test]
async fn a_throttle_limits_the_rate() -> Outcome {
    let proxy = Proxy::start(echo().await?).await?;
    let mut stream = through(&proxy).await?;
    proxy.throttle(Direction::ToClient, Some(100_000));
    let start = Instant::now();
    round_trip(&mut stream, &[4; 50_000]).await?;
    let elapsed = start.elapsed();
    assert!(elapsed >= Duration::from_millis(450), "{elapsed:?}");
    proxy.throttle(Direction::ToClient, None);
    round_trip(&mut stream, &[5; 50_000]).await?;
    Ok(())
}

#[tokio::test]
async fn new_connections_go_to_the_upstream_of_the_moment() -> Outcome {
    let proxy = Proxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 1))).await?;
    let mut refused = through(&proxy).await?;
    assert!(round_trip(&mut refused, b"hello").await.is_err());
    proxy.set_upstream(echo().await?);
    round_trip(&mut through(&proxy).await?, b"hello").await?;
    Ok(())
}

#[tokio::test]
async fn sql_goes_through_and_a_cut_breaks_it() -> Outcome {
    for major in majors()? {
        let cluster = Cluster::builder(major).start().await?;
        witness::create(&cluster.connect("postgres").await?).await?;
        let proxy = Proxy::to(&cluster).await?;
        let (client, connection) = tokio_postgres::connect(&proxy.url("postgres"), NoTls).await?;
        let connection = tokio::spawn(connection);
        client.batch_execute("INSERT INTO witness_log VALUES (1, 0)").await?;
        proxy.cut_after(Direction::ToClient, 0);
        assert!(client.batch_execute("INSERT INTO witness_log VALUES (2, 0)").await.is_err());
        assert!(connection.await?.is_err());

        // What the client does not know, the witness does: the commit happened.
        let row = cluster.connect("postgres").await?.query_one("SELECT count(*) FROM witness_log", &[]).await?;
        assert_eq!(row.get::<_, i64>(0), 2);
    }
    Ok(())
}
