//! Clusters start, stop, die and come back, on every selected major.

use std::error::Error;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pgonce_testkit::{Cluster, Curve, KillCount, KitError, TlsFiles, majors};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::NoTls;
use tokio_postgres_rustls::MakeRustlsConnect;

type Outcome = Result<(), Box<dyn Error>>;

async fn count(cluster: &Cluster) -> Result<i64, Box<dyn Error>> {
    Ok(cluster.connect("postgres").await?.query_one("SELECT count(*) FROM t", &[]).await?.get(0))
}

/// Shuts a server down immediately, as a person would who knows its process.
fn quit(postmaster: u32) -> Outcome {
    let pid = rustix::process::Pid::from_raw(i32::try_from(postmaster)?).ok_or("no process")?;
    Ok(rustix::process::kill_process(pid, rustix::process::Signal::QUIT)?)
}

#[tokio::test]
async fn committed_rows_survive_every_way_to_stop() -> Outcome {
    for major in majors()? {
        let cluster = Cluster::builder(major).name("survivor").conf("wal_sender_timeout", "2s").start().await?;
        let client = cluster.connect("postgres").await?;
        let settings = "SELECT current_setting('server_version_num')::int / 10000, current_setting('wal_level'),
                        current_setting('wal_sender_timeout'), current_setting('fsync')";
        let row = client.query_one(settings, &[]).await?;
        assert_eq!(row.get::<_, i32>(0), i32::try_from(major)?);
        assert_eq!((row.get(1), row.get(2), row.get(3)), ("logical", "2s", "on"));
        client.batch_execute("CREATE TABLE t (i int); INSERT INTO t VALUES (1)").await?;

        let port = cluster.port();
        cluster.stop_fast().await?;
        cluster.start().await?;
        cluster.execute("postgres", "INSERT INTO t VALUES (2)").await?;

        let postmaster = cluster.pid().ok_or("no server")?;
        let bystander = cluster.connect("postgres").await?;
        let killed = cluster.stop_immediate().await?;
        assert_eq!(killed.pid(), postmaster);
        assert!(killed.with_it() > 0, "a server with a connection has backends");
        assert!(bystander.simple_query("SELECT 1").await.is_err());
        cluster.start().await?;
        cluster.execute("postgres", "INSERT INTO t VALUES (3)").await?;

        let killed = cluster.sigkill_postmaster().await?;
        assert!(killed.with_it() > 0, "a server has backends");
        cluster.start().await?;
        assert_eq!(count(&cluster).await?, 3);
        assert_eq!(cluster.port(), port);
        let recoveries = cluster.log().matches("was not properly shut down").count();
        assert_eq!(recoveries, 2, "an immediate shutdown and a kill lead to recovery:\n{}", cluster.log_tail());
    }
    Ok(())
}

#[tokio::test]
async fn what_does_not_run_cannot_be_stopped_or_killed() -> Outcome {
    let cluster = Cluster::builder(majors()?[0]).start().await?;
    assert!(matches!(cluster.start().await, Err(KitError::AlreadyRunning { .. })));
    cluster.stop_fast().await?;
    assert!(cluster.pid().is_none());
    assert!(matches!(cluster.stop_fast().await, Err(KitError::NotRunning { .. })));
    assert!(matches!(cluster.stop_immediate().await, Err(KitError::NotRunning { .. })));
    assert!(matches!(cluster.sigkill_postmaster().await, Err(KitError::NotRunning { .. })));

    // A server that died behind the kit's back was not killed by it either.
    cluster.start().await?;
    let pid = cluster.pid().ok_or("no server")?;
    quit(pid)?;
    let deadline = Instant::now() + Duration::from_secs(30);
    while std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(Instant::now() < deadline, "the server does not end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(matches!(cluster.stop_immediate().await, Err(KitError::NotRunning { .. })));
    Ok(())
}

#[tokio::test]
async fn clusters_are_told_apart_by_their_system_identifiers() -> Outcome {
    let major = majors()?[0];
    let (one, other) =
        tokio::try_join!(Cluster::builder(major).name("one").start(), Cluster::builder(major).name("other").start())?;
    let mut identifiers = Vec::new();
    for cluster in [&one, &other] {
        let client = cluster.connect("postgres").await?;
        let row = client.query_one("SELECT system_identifier FROM pg_control_system()", &[]).await?;
        identifiers.push(row.get::<_, i64>(0));
    }
    assert_ne!(identifiers[0], identifiers[1]);
    assert_ne!(one.port(), other.port());
    Ok(())
}

#[tokio::test]
async fn a_dropped_cluster_leaves_nothing_and_a_kept_one_stays() -> Outcome {
    let cluster = Cluster::builder(majors()?[0]).start().await?;
    let (folder, url) = (cluster.folder().to_owned(), cluster.url("postgres"));
    cluster.keep()?;
    drop(cluster);
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    client.simple_query("SELECT 1").await?;

    let pid = std::fs::read_to_string(folder.join("data/postmaster.pid"))?;
    quit(pid.lines().next().ok_or("no process")?.parse()?)?;
    std::fs::remove_dir_all(&folder)?;

    let cluster = Cluster::builder(majors()?[0]).start().await?;
    let (folder, url) = (cluster.folder().to_owned(), cluster.url("postgres"));
    drop(cluster);
    assert!(!folder.exists());
    assert!(tokio_postgres::connect(&url, NoTls).await.is_err());
    Ok(())
}

/// The process that the next test kills. It is a test only to be found in this binary.
#[tokio::test]
async fn helper_that_is_killed_with_a_cluster() -> Outcome {
    let Ok(report) = std::env::var("PGONCE_TESTKIT_HELPER_REPORT") else { return Ok(()) };
    let cluster = Cluster::builder(majors()?[0]).name("orphan").start().await?;
    std::fs::write(format!("{report}.new"), format!("{}\n{}", cluster.folder().display(), cluster.url("postgres")))?;
    std::fs::rename(format!("{report}.new"), &report)?;
    std::future::pending::<()>().await;
    Ok(())
}

#[tokio::test]
async fn the_cluster_of_a_killed_process_is_swept() -> Outcome {
    let folder = tempfile::tempdir()?;
    let report = folder.path().join("report");
    let mut helper = Command::new(std::env::current_exe()?)
        .args(["--exact", "helper_that_is_killed_with_a_cluster"])
        .env("PGONCE_TESTKIT_HELPER_REPORT", &report)
        .spawn()?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while !report.exists() {
        assert!(Instant::now() < deadline && helper.try_wait()?.is_none(), "the helper made no cluster");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let report = std::fs::read_to_string(&report)?;
    let (orphan, url) = report.split_once('\n').ok_or("half a report")?;
    KillCount::at_least(1).record(pgonce_testkit::kill::sigkill(&mut helper)?);

    let _next = Cluster::builder(majors()?[0]).start().await?;
    assert!(!std::path::Path::new(orphan).exists());
    assert!(tokio_postgres::connect(url, NoTls).await.is_err());
    Ok(())
}

#[tokio::test]
async fn a_changed_setting_holds_on_return_and_a_refused_one_is_an_error() -> Outcome {
    for major in majors()? {
        let cluster = Cluster::builder(major).start().await?;
        cluster.set_conf("work_mem", "5MB").await?;
        let client = cluster.connect("postgres").await?;
        assert_eq!(client.query_one("SHOW work_mem", &[]).await?.get::<_, &str>(0), "5MB");
        cluster.set_conf("max_connections", "50").await?;
        assert!(matches!(cluster.set_conf("work_mem", "lots").await, Err(KitError::Setting { .. })));
        cluster.set_conf("work_mem", "6MB").await?;
        cluster.restart().await?;
        let client = cluster.connect("postgres").await?;
        assert_eq!(client.query_one("SHOW max_connections", &[]).await?.get::<_, &str>(0), "50");
    }
    Ok(())
}

#[tokio::test]
async fn a_server_that_does_not_start_shows_its_log() -> Outcome {
    let error = Cluster::builder(majors()?[0]).conf("shared_buffers", "nonsense").start().await.unwrap_err();
    assert!(matches!(error, KitError::DidNotStart { .. }));
    assert!(error.to_string().contains("shared_buffers"), "{error}");
    Ok(())
}

#[tokio::test]
async fn passwords_are_asked_for_over_tcp() -> Outcome {
    for major in majors()? {
        let cluster = Cluster::builder(major).password_role("app", "it's secret").start().await?;
        let config = format!("host=127.0.0.1 port={} user=app dbname=postgres", cluster.port());
        assert!(tokio_postgres::connect(&config, NoTls).await.is_err());
        let (client, connection) =
            tokio_postgres::connect(&format!("{config} password='it\\'s secret'"), NoTls).await?;
        tokio::spawn(connection);
        client.simple_query("SELECT 1").await?;
    }
    Ok(())
}

/// Settings of a TLS client that trusts one authority.
fn trusting(authority: &str) -> Result<ClientConfig, Box<dyn Error>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes())?)?;
    Ok(ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

#[tokio::test]
async fn a_server_with_tls_can_insist_on_it() -> Outcome {
    for major in majors()? {
        for curve in [Curve::P256, Curve::P384] {
            let files = TlsFiles::generate_for(&["localhost", "127.0.0.1"], curve)?;
            let builder = Cluster::builder(major).tls(files.clone()).password_role("app", "secret");
            let cluster = builder.require_tls().start().await?;
            assert_eq!(std::fs::read_to_string(cluster.ca_file())?, files.ca_certificate);
            assert!(tokio_postgres::connect(&cluster.url("postgres"), NoTls).await.is_err());

            let config = format!(
                "host=localhost hostaddr=127.0.0.1 port={} user=app password=secret dbname=postgres
                 sslmode=require channel_binding=require",
                cluster.port()
            );
            let tls = MakeRustlsConnect::new(trusting(&files.ca_certificate)?);
            let (client, connection) = tokio_postgres::connect(&config, tls).await?;
            tokio::spawn(connection);
            let sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
            assert!(client.query_one(sql, &[]).await?.get::<_, bool>(0));

            let stranger = TlsFiles::generate_for(&["localhost"], curve)?;
            let tls = MakeRustlsConnect::new(trusting(&stranger.ca_certificate)?);
            assert!(tokio_postgres::connect(&config, tls).await.is_err());
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_start_waits_for_a_port_that_another_process_has() -> Outcome {
    for major in majors()? {
        let cluster = Cluster::builder(major).start().await?;
        let port = cluster.port();
        cluster.stop_fast().await?;
        let squatter = std::net::TcpListener::bind(("127.0.0.1", port))?;
        let leaves = async {
            tokio::time::sleep(Duration::from_millis(700)).await;
            drop(squatter);
        };
        let ((), started) = tokio::join!(leaves, cluster.start());
        started?;
        assert_eq!(cluster.port(), port);
        assert!(cluster.log().contains("Address already in use"));
        cluster.execute("postgres", "SELECT 1").await?;
    }
    Ok(())
}
