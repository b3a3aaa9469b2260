//! Connections against a real server: TLS, passwords, hosts, pins.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use pgonce::connect::{
    ConnectError, ConnectionSettings, Environment, PINS, SqlConnection, connect_sql, open_session, open_transport,
};
use pgonce_testkit::{Cluster, Curve, TlsFiles, majors};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[path = "connect/certificates.rs"]
mod certificates;
#[path = "connect/children.rs"]
mod children;
#[path = "connect/hosts.rs"]
mod hosts;
#[path = "connect/passwords.rs"]
mod passwords;

const MAJOR: u32 = 15;

/// Quotes of both kinds, a backslash, blanks, what a URI reserves, and letters beyond ASCII.
const ODD_PASSWORD: &str = r#"p'a"s\s w:o/r@d?%&=#[]é→ "#;

fn settings(text: &str) -> ConnectionSettings {
    ConnectionSettings::parse(text, &Environment::empty()).unwrap()
}

/// Connects in both ways, which must agree, and asks the server whether the connection is encrypted.
async fn is_encrypted(text: &str) -> Result<bool, ConnectError> {
    let settings = settings(text);
    let session = open_session(&settings, &[("replication", "database")]).await;
    let sql = connect_sql(&settings, "test").await;
    match (session, sql) {
        (Ok(session), Ok(sql)) => {
            let encrypted =
                value(&sql, "SELECT ssl::text FROM pg_catalog.pg_stat_ssl WHERE pid = pg_backend_pid()").await;
            assert_eq!(session.transport().is_tls(), encrypted == "true", "{text}");
            assert!(session.backend_key.is_some() && !session.parameters["server_version"].is_empty());
            Ok(encrypted == "true")
        }
        (Err(one), Err(other)) => {
            assert_eq!(one.to_string(), other.to_string(), "{text}");
            assert_eq!((one.code(), one.is_transient()), (other.code(), other.is_transient()), "{text}");
            assert!(!one.hint().is_empty());
            Err(one)
        }
        (one, other) => panic!("{text}: the two ways disagree: {one:?}, {other:?}"),
    }
}

async fn value(sql: &SqlConnection, query: &str) -> String {
    sql.client.query_one(query, &[]).await.unwrap().get(0)
}

/// The code of the error, which must be permanent.
async fn permanent(text: &str) -> &'static str {
    let error = is_encrypted(text).await.expect_err(text);
    assert!(!error.is_transient(), "{text}: {error}");
    error.code()
}

fn quoted(password: &str) -> String {
    password.replace('\\', r"\\").replace('\'', r"\'")
}

fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        let _ = write!(encoded, "%{byte:02X}");
        encoded
    })
}

fn file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn j1_tls_checks_what_sslmode_says() {
    for major in majors().unwrap() {
        tls_checks(major).await;
    }
}

async fn tls_checks(major: u32) {
    let files = TlsFiles::generate_for(&["localhost"], Curve::P256).unwrap();
    let cluster = Cluster::builder(major)
        .name("tls")
        .hba("hostssl all,replication app 127.0.0.1/32 scram-sha-256")
        .tls(files)
        .require_tls()
        .password_role("app", "secret")
        .start()
        .await
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let stranger = TlsFiles::generate().unwrap().ca_certificate;
    let (right, wrong) = (cluster.ca_file().to_str().unwrap().to_owned(), file(folder.path(), "ca", &stranger));
    let base = format!("user=app password=secret dbname=postgres port={} connect_timeout=10", cluster.port());
    // The certificate is for localhost, not for the address.
    let address = format!("{base} host=127.0.0.1");
    let name = format!("{base} host=localhost hostaddr=127.0.0.1");

    for text in [
        format!("{address} sslmode=allow"),
        format!("{address} sslmode=prefer"),
        format!("{address} sslmode=prefer sslrootcert={wrong}"),
        format!("{address} sslmode=require"),
        format!("{address} sslmode=require sslrootcert={right}"),
        format!("{address} sslmode=require channel_binding=require"),
        format!("{address} sslmode=require channel_binding=disable"),
        format!("{address} sslmode=verify-ca sslrootcert={right}"),
        format!("{name} sslmode=verify-full sslrootcert={right} channel_binding=require"),
    ] {
        assert!(is_encrypted(&text).await.unwrap_or_else(|error| panic!("{text}: {error}")), "{text}");
    }
    for (text, code) in [
        (format!("{address} sslmode=disable"), "authentication_refused"),
        (format!("{address} sslmode=disable channel_binding=require"), "authentication_refused"),
        (format!("{address} sslmode=verify-full sslrootcert={right}"), "tls_failed"),
        (format!("{address} sslmode=verify-ca sslrootcert={wrong}"), "tls_failed"),
        (format!("{address} sslmode=require sslrootcert={wrong}"), "tls_failed"),
        (format!("{name} sslmode=verify-full sslrootcert={wrong}"), "tls_failed"),
        (format!("{name} sslrootcert=system"), "tls_failed"),
        (format!("{name} sslmode=verify-full"), "tls_root_certificates"),
        (format!("{name} sslmode=verify-ca sslrootcert={wrong}.missing"), "tls_root_certificates"),
        (format!("{name} sslmode=require password=other"), "authentication_password"),
    ] {
        let found = permanent(&text).await;
        // A machine may trust nobody.
        let nobody = text.contains("=system") && found == "tls_root_certificates";
        assert!(found == code || nobody, "{text}: {found}");
    }
}

#[tokio::test]
async fn j2_a_sha_384_certificate_binds_the_channel_and_an_odd_password_passes() {
    for major in majors().unwrap() {
        channel_is_bound(major).await;
    }
}

async fn channel_is_bound(major: u32) {
    let cluster = Cluster::builder(major)
        .name("p384")
        .tls(TlsFiles::generate_for(&["127.0.0.1"], Curve::P384).unwrap())
        .require_tls()
        .password_role("app", ODD_PASSWORD)
        .start()
        .await
        .unwrap();
    let tail = format!("sslmode=verify-full&channel_binding=require&sslrootcert={}", cluster.ca_file().display());
    let encoded = percent_encoded(ODD_PASSWORD);
    let uri = format!("postgresql://app:{encoded}@127.0.0.1:{}/postgres?{tail}", cluster.port());
    assert!(is_encrypted(&uri).await.unwrap());
    let quoted = quoted(ODD_PASSWORD);
    let words = format!(
        "user=app password='{quoted}' host=127.0.0.1 port={} dbname=postgres {}",
        cluster.port(),
        tail.replace('&', " ")
    );
    assert!(is_encrypted(&words).await.unwrap());
    let transport = open_transport(&settings(&uri)).await.unwrap();
    assert_eq!(transport.server_end_point().map(<[u8]>::len), Some(48));

    let error = is_encrypted(&uri.replace(&encoded, "%41")).await.unwrap_err();
    assert_eq!((error.code(), error.is_transient()), ("authentication_password", false));
    assert!(!error.to_string().contains("secret"));
}

#[tokio::test]
async fn a_server_without_tls_takes_every_kind_of_password() {
    let cluster = Cluster::builder(MAJOR)
        .name("plain")
        .hba("host all,replication md5 127.0.0.1/32 md5\nhost all,replication clear 127.0.0.1/32 password")
        .hba("host all,replication scram 127.0.0.1/32 scram-sha-256")
        .start()
        .await
        .unwrap();
    let literal = ODD_PASSWORD.replace('\'', "''");
    let roles = ["md5", "clear", "scram"].map(|role| {
        let encryption = if role == "md5" { "md5" } else { "scram-sha-256" };
        format!("SET password_encryption = '{encryption}'; CREATE ROLE {role} LOGIN REPLICATION PASSWORD '{literal}';")
    });
    cluster.execute("postgres", &roles.concat()).await.unwrap();

    let base = format!("host=127.0.0.1 port={} dbname=postgres", cluster.port());
    let password = format!("password='{}'", quoted(ODD_PASSWORD));
    for role in ["md5", "clear", "scram"] {
        for sslmode in ["disable", "allow", "prefer"] {
            let text = format!("{base} user={role} {password} sslmode={sslmode}");
            assert!(!is_encrypted(&text).await.unwrap_or_else(|error| panic!("{text}: {error}")));
        }
        let bound = format!("{base} user={role} {password} channel_binding=require");
        assert_eq!(permanent(&bound).await, "authentication");
        assert_eq!(permanent(&format!("{base} user={role} password=wrong")).await, "authentication_password");
        assert_eq!(permanent(&format!("{base} user={role}")).await, "authentication");
    }
    assert_eq!(permanent(&format!("{base} user=postgres channel_binding=require")).await, "authentication");
    assert_eq!(permanent(&format!("{base} user=postgres sslmode=require")).await, "tls_not_offered");
    assert_eq!(permanent(&format!("{base} user=postgres dbname=nowhere")).await, "database_missing");
}

#[tokio::test]
async fn hosts_are_tried_in_order() {
    let cluster = Cluster::builder(MAJOR).name("hosts").start().await.unwrap();
    let unused = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let tail = "user=postgres dbname=postgres connect_timeout=10";

    let refused = is_encrypted(&format!("host=127.0.0.1 port={unused} {tail}")).await.unwrap_err();
    assert_eq!((refused.code(), refused.is_transient()), ("connect_refused", true));
    let socket = is_encrypted(&format!("host=/nonexistent port={unused} {tail}")).await.unwrap_err();
    assert_eq!((socket.code(), socket.is_transient()), ("connect_refused", true));
    let name = is_encrypted(&format!("host=no-such-host.invalid {tail}")).await.unwrap_err();
    assert_eq!((name.code(), name.is_transient()), ("connect_resolve", true));
    let both = is_encrypted(&format!("host=127.0.0.1,/nonexistent port={unused} {tail}")).await.unwrap_err();
    assert!(matches!(&both, ConnectError::Hosts { errors } if errors.len() == 2), "{both}");

    let ports = format!("{unused},{}", cluster.port());
    is_encrypted(&format!("host=127.0.0.1,127.0.0.1 port={ports} {tail}")).await.unwrap();
    is_encrypted(&format!("host=127.0.0.1,127.0.0.1 port={ports} {tail} target_session_attrs=primary")).await.unwrap();

    // A server that hears and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let slow = "user=postgres connect_timeout=2 sslmode=disable";
    let error = open_session(&settings(&format!("host=127.0.0.1 port={port} {slow}")), &[]).await.unwrap_err();
    assert_eq!((error.code(), error.is_transient()), ("connect_timeout", true));
}

#[tokio::test]
async fn target_session_attrs_are_checked() {
    let cluster = Cluster::builder(MAJOR).name("attrs").start().await.unwrap();
    let base = format!("{}?target_session_attrs=", cluster.url("postgres"));
    is_encrypted(&format!("{base}read-write")).await.unwrap();
    let read_only = "&options=-c%20default_transaction_read_only%3Don";
    is_encrypted(&format!("{base}primary{read_only}")).await.unwrap();
    let error = is_encrypted(&format!("{base}read-write{read_only}")).await.unwrap_err();
    assert_eq!((error.code(), error.is_transient()), ("session_attributes", true));
}

#[tokio::test]
async fn every_connection_is_pinned_and_keeps_the_options_of_the_user() {
    let cluster = Cluster::builder(MAJOR).name("pins").conf("idle_session_timeout", "1h").start().await.unwrap();
    let settings = settings(&format!(
        "{}?options=-c%20DateStyle%3DGerman%20-c%20work_mem%3D1234kB%20-c%20lock_timeout%3D9s",
        cluster.url("postgres")
    ));
    let sql = connect_sql(&settings, "test").await.unwrap();
    for (name, wanted) in PINS {
        let wanted = if *name == "DateStyle" { "ISO, MDY" } else { wanted };
        assert_eq!(value(&sql, &format!("SHOW {name}")).await, wanted, "{name}");
    }
    for (name, wanted) in [
        ("client_encoding", "UTF8"),
        ("search_path", ""),
        ("work_mem", "1234kB"),
        ("lock_timeout", "9s"),
        ("idle_session_timeout", "0"),
        ("application_name", "pgonce test"),
    ] {
        assert_eq!(value(&sql, &format!("SHOW {name}")).await, wanted, "{name}");
    }
    let session = open_session(&settings, &[("replication", "database"), ("application_name", "relay")]).await.unwrap();
    for (name, wanted) in [
        ("DateStyle", "ISO, MDY"),
        ("IntervalStyle", "postgres"),
        ("TimeZone", "UTC"),
        ("client_encoding", "UTF8"),
        ("application_name", "relay"),
    ] {
        assert_eq!(session.parameters[name], wanted, "{name}");
    }
}

#[tokio::test]
async fn the_end_of_a_connection_is_noticed_and_a_dropped_one_ends() {
    let cluster = Cluster::builder(MAJOR).name("closed").start().await.unwrap();
    let settings = settings(&cluster.url("postgres"));
    let one = connect_sql(&settings, "one").await.unwrap();
    let other = connect_sql(&settings, "other").await.unwrap();
    let kill = "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity WHERE application_name = 'pgonce one'";
    assert!(tokio::time::timeout(Duration::from_millis(50), one.closed()).await.is_err());
    assert_eq!(value(&other, kill).await, "true");
    tokio::time::timeout(Duration::from_secs(10), one.closed()).await.unwrap();

    drop(connect_sql(&settings, "dropped").await.unwrap());
    let count = "SELECT count(*)::text FROM pg_stat_activity WHERE application_name = 'pgonce dropped'";
    for _ in 0..500 {
        if value(&other, count).await == "0" {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the dropped connection stays open");
}

#[tokio::test]
async fn a_stopped_server_and_a_full_one_are_transient() {
    let cluster = Cluster::builder(MAJOR)
        .name("full")
        .conf("max_connections", "4")
        .conf("superuser_reserved_connections", "0")
        .conf("max_wal_senders", "1")
        .start()
        .await
        .unwrap();
    let settings = settings(&cluster.url("postgres"));
    let mut held = Vec::new();
    let full = loop {
        match connect_sql(&settings, "held").await {
            Ok(connection) => held.push(connection),
            Err(error) => break error,
        }
        assert!(held.len() <= 4);
    };
    assert_eq!((full.code(), full.is_transient()), ("server_full", true), "{full}");
    let replication = [("replication", "database")];
    let _sender = open_session(&settings, &replication).await.unwrap();
    let full = open_session(&settings, &replication).await.unwrap_err();
    assert_eq!((full.code(), full.is_transient()), ("server_full", true), "{full}");

    cluster.stop_fast().await.unwrap();
    let gone = connect_sql(&settings, "gone").await.unwrap_err();
    assert_eq!((gone.code(), gone.is_transient()), ("connect_refused", true), "{gone}");
}

/// A server that answers the startup message, and then every message, with the next of these texts.
async fn fake(answers: Vec<Vec<u8>>) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            for answer in &answers {
                let mut request = [0; 4096];
                if !matches!(socket.read(&mut request).await, Ok(1..)) || socket.write_all(answer).await.is_err() {
                    break;
                }
            }
        }
    });
    port
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
    [&[tag], length.as_slice(), body].concat()
}

#[tokio::test]
async fn a_server_that_starts_up_is_waited_for_or_passed_over() {
    let starting = message(b'E', b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0");
    let port = fake(vec![starting]).await;
    let tail = "user=postgres dbname=postgres sslmode=disable connect_timeout=10";
    let error = is_encrypted(&format!("host=127.0.0.1 port={port} {tail}")).await.unwrap_err();
    assert_eq!((error.code(), error.is_transient()), ("server_unavailable", true));
    assert!(error.to_string().contains("starting up"), "{error}");
    assert_eq!(error.server_error().unwrap().sqlstate, "57P03");

    let cluster = Cluster::builder(MAJOR).name("second").start().await.unwrap();
    let ports = format!("{port},{}", cluster.port());
    is_encrypted(&format!("host=127.0.0.1,127.0.0.1 port={ports} {tail}")).await.unwrap();
}

/// As [`permanent`], where the two ways need not agree in words.
async fn permanent_kind(text: &str) -> &'static str {
    let settings = settings(text);
    let session = open_session(&settings, &[]).await.expect_err(text);
    let sql = connect_sql(&settings, "test").await.expect_err(text);
    assert_eq!((session.code(), session.is_transient()), (sql.code(), false), "{session}; {sql}");
    session.code()
}

#[tokio::test]
async fn a_server_that_cannot_prove_that_it_knows_the_password_is_refused() {
    let tail = "user=app password=secret sslmode=disable connect_timeout=10";
    let ok = message(b'R', &[0, 0, 0, 0]);
    let ready = message(b'Z', b"I");
    let scram = message(b'R', b"\0\0\0\x0aSCRAM-SHA-256\0\0");
    let challenge = message(b'R', b"\0\0\0\x0br=foreign,s=c2FsdA==,i=4096");
    for (answers, code) in [
        (vec![scram.clone(), [ok, ready].concat()], "protocol"),
        (vec![scram, challenge], "authentication"),
        (vec![message(b'R', b"\0\0\0\x0aOTHER\0\0")], "authentication"),
        (vec![message(b'R', &[0, 0, 0, 7])], "authentication"),
    ] {
        let port = fake(answers).await;
        assert_eq!(permanent_kind(&format!("host=127.0.0.1 port={port} {tail}")).await, code);
    }
}

#[tokio::test]
async fn what_does_not_speak_the_protocol_is_refused() {
    let web = fake(vec![b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()]).await;
    let text = format!("host=127.0.0.1 port={web} user=app connect_timeout=10");
    assert_eq!(permanent(&format!("{text} sslmode=require")).await, "protocol");
    let error = open_session(&settings(&format!("{text} sslmode=disable")), &[]).await.unwrap_err();
    assert_eq!((error.code(), error.is_transient()), ("protocol", false), "{error}");
}

#[tokio::test]
async fn a_query_is_cancelled_the_way_the_connection_was_opened() {
    let tls = TlsFiles::generate().unwrap();
    let cluster = Cluster::builder(MAJOR).name("cancel").tls(tls).start().await.unwrap();
    for sslmode in ["disable", "require"] {
        let settings = settings(&format!("{}?sslmode={sslmode}", cluster.url("postgres")));
        let sql = connect_sql(&settings, "test").await.unwrap();
        let (slept, cancelled) = tokio::join!(sql.client.batch_execute("SELECT pg_sleep(60)"), async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            sql.cancel_query(&settings).await
        });
        cancelled.unwrap();
        assert_eq!(slept.unwrap_err().code().unwrap().code(), "57014");
    }
}
