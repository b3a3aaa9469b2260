//! Several hosts: which one is chosen, and that everything of a session is at the same one.

use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::chown;
use std::process::Command;

use pgonce::slot_source::{SlotSettings, SlotSource};
use pgonce::source::Source;
use pgonce::sql_error::stop_from_sql;
use pgonce::stop::{Reason, Side};

use super::*;

/// A primary, and a standby that streams from it.
async fn pair(major: u32) -> (Cluster, Cluster) {
    let primary = Cluster::builder(major).name("primary").start().await.unwrap();
    let standby = Cluster::builder(major).name("standby").start().await.unwrap();
    primary.stop_fast().await.unwrap();
    standby.stop_fast().await.unwrap();
    std::fs::remove_dir_all(standby.data_dir()).unwrap();
    let copied = Command::new("cp").arg("-a").arg(primary.data_dir()).arg(standby.data_dir()).status().unwrap();
    assert!(copied.success());
    let signal = standby.data_dir().join("standby.signal");
    std::fs::write(&signal, "").unwrap();
    let owner = std::fs::metadata(primary.data_dir()).unwrap();
    chown(&signal, Some(owner.uid()), Some(owner.gid())).unwrap();
    let upstream = format!("host=127.0.0.1 port={} user=postgres", primary.port());
    standby.set_conf("primary_conninfo", &upstream).await.unwrap();
    standby.set_conf("hot_standby", "on").await.unwrap();
    primary.start().await.unwrap();
    standby.start().await.unwrap();
    (primary, standby)
}

/// Where both kinds of connection arrive, which must be one place.
async fn arrives(text: &str) -> Result<u16, ConnectError> {
    let settings = settings(text);
    let session = open_session(&settings, &[("replication", "database")]).await?;
    let pinned = settings.pinned_to(session.transport().endpoint());
    let sql = connect_sql(&pinned, "test").await?;
    let port: u16 = value(&sql, "SHOW port").await.parse().unwrap();
    assert_eq!((session.transport().endpoint().port, sql.endpoint().port), (port, port));
    Ok(port)
}

#[tokio::test]
async fn the_server_that_target_session_attrs_asks_for_is_found_also_after_a_failover() {
    for major in majors().unwrap() {
        let (primary, standby) = pair(major).await;
        let (p, s) = (primary.port(), standby.port());
        let base =
            "user=postgres dbname=postgres connect_timeout=10 host=127.0.0.1,localhost hostaddr=127.0.0.1,127.0.0.1";
        let at = async |ports: [u16; 2], attrs: &str| {
            arrives(&format!("{base} port={},{} target_session_attrs={attrs}", ports[0], ports[1])).await
        };
        for (attrs, first, second) in [
            ("any", p, s),
            ("read-write", p, p),
            ("read-only", s, s),
            ("primary", p, p),
            ("standby", s, s),
            ("prefer-standby", s, s),
        ] {
            assert_eq!(at([p, s], attrs).await.unwrap(), first, "{attrs} on {major}");
            assert_eq!(at([s, p], attrs).await.unwrap(), second, "{attrs} on {major}");
        }

        // Who asks for nothing may end up where nothing can be written, and is told what to ask for.
        let at_standby = settings(&format!("{base} port={s},{p}"));
        let sql = connect_sql(&at_standby, "test").await.unwrap();
        let error = sql.client.batch_execute("CREATE TABLE t (id int)").await.unwrap_err();
        let hint = stop_from_sql(Side::Target, &error).hint();
        assert!(hint.contains("target_session_attrs=read-write"), "{hint}");

        // The primary goes away: nobody can be written to, which is waited out.
        assert!(primary.sigkill_postmaster().await.unwrap().with_it() > 0);
        let error = at([p, s], "read-write").await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert!(matches!(&error, ConnectError::Hosts { errors } if errors.len() == 2), "{error}");
        standby.execute("postgres", "SELECT pg_promote()").await.unwrap();
        assert_eq!(at([p, s], "read-write").await.unwrap(), s);
        assert_eq!(at([p, s], "prefer-standby").await.unwrap(), s, "there is no standby, and this one is up");
        let error = at([p, s], "standby").await.unwrap_err();
        assert!(error.to_string().contains("is not a standby"), "{error}");
    }
}

#[tokio::test]
async fn a_source_behind_several_hosts_is_one_server_in_each_session() {
    let major = majors().unwrap().into_iter().max().unwrap();
    let (primary, standby) = pair(major).await;
    let (p, s) = (primary.port(), standby.port());
    let text = format!("user=postgres dbname=postgres host=127.0.0.1,127.0.0.1 port={p},{s} load_balance_hosts=random");
    let slots = |text: &str| SlotSource::new(SlotSettings::new(settings(text), "pgonce_test", vec!["p".to_owned()]));
    let mut source = slots(&text);
    for _ in 0..20 {
        source.connect().await.unwrap();
    }

    // One address, behind which two servers take turns, cannot be told apart from outside.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        for upstream in [p, s].into_iter().cycle() {
            let (mut here, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut there = tokio::net::TcpStream::connect(("127.0.0.1", upstream)).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut here, &mut there).await;
            });
        }
    });
    let mut balanced = slots(&format!("user=postgres dbname=postgres host=127.0.0.1 port={port} sslmode=disable"));
    let stop = balanced.connect().await.unwrap_err();
    let Reason::Connection { what, .. } = stop.reason() else { panic!("{stop}") };
    assert!(what.contains("reached two servers") && stop.is_transient(), "{what}");
}
