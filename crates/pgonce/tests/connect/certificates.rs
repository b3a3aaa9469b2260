//! Client certificates, revocation lists, versions of TLS. Faults J1, J2.

use std::fs::{Permissions, create_dir, set_permissions, write};
use std::os::unix::fs::PermissionsExt;

use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;

use super::*;

const HBA: &str = "hostssl all,replication app 127.0.0.1/32 cert";

fn private(folder: &Path, name: &str, text: &str) -> String {
    let path = file(folder, name, text);
    set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path
}

async fn cluster(major: u32, name: &str, files: &TlsFiles) -> Cluster {
    let cluster = Cluster::builder(major).name(name).tls(files.clone()).client_certificates().hba(HBA).require_tls();
    let cluster = cluster.start().await.unwrap();
    cluster.execute("postgres", "CREATE ROLE app LOGIN REPLICATION").await.unwrap();
    cluster
}

#[tokio::test]
async fn j1_a_client_certificate_is_shown_where_it_is_asked_for() {
    for major in majors().unwrap() {
        let files = TlsFiles::generate().unwrap();
        let cluster = cluster(major, "client", &files).await;
        let (certificate, key) = files.client("app").unwrap();
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join(".postgresql");
        create_dir(&folder).unwrap();
        let (certificate, key) = (file(&folder, "a.crt", &certificate), private(&folder, "a.key", &key));
        let base = format!(
            "host=127.0.0.1 port={} user=app dbname=postgres connect_timeout=10 sslmode=verify-full sslrootcert={}",
            cluster.port(),
            cluster.ca_file().display()
        );
        let with = format!("{base} sslcert={certificate} sslkey={key}");
        for more in ["", "sslcertmode=require", "require_auth=none", "sslsni=0", "ssl_max_protocol_version=TLSv1.2"] {
            let text = format!("{with} {more}");
            assert!(is_encrypted(&text).await.unwrap_or_else(|error| panic!("{text}: {error}")), "{text}");
        }
        // DER, which libpq takes too: PKCS #8, and within it the key of SEC 1.
        let pem = std::fs::read(&key).unwrap();
        let der = PrivateKeyDer::from_pem_slice(&pem).unwrap().secret_der().to_vec();
        let inner = der.windows(4).position(|bytes| bytes == b"\x04\x6d\x30\x6b").unwrap() + 2;
        for bytes in [&der[..], &der[inner..]] {
            let path = private(&folder, "a.der", "");
            write(&path, bytes).unwrap();
            is_encrypted(&format!("{base} sslcert={certificate} sslkey={path}")).await.unwrap();
        }
        // libpq's default files.
        std::fs::rename(&certificate, folder.join("postgresql.crt")).unwrap();
        std::fs::rename(&key, folder.join("postgresql.key")).unwrap();
        let environment = Environment::empty().with("HOME", home.path());
        let default = ConnectionSettings::parse(&base, &environment).unwrap();
        connect_sql(&default, "test").await.unwrap();
        std::fs::rename(folder.join("postgresql.crt"), &certificate).unwrap();
        std::fs::rename(folder.join("postgresql.key"), &key).unwrap();

        let (_, other_key) = files.client("app").unwrap();
        let other_key = private(&folder, "other.key", &other_key);
        let (foreign, foreign_key) = TlsFiles::generate().unwrap().client("app").unwrap();
        let foreign = (file(&folder, "f.crt", &foreign), private(&folder, "f.key", &foreign_key));
        let (stranger, stranger_key) = files.client("stranger").unwrap();
        let stranger = (file(&folder, "s.crt", &stranger), private(&folder, "s.key", &stranger_key));
        let locked = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        let locked = private(&folder, "locked.key", locked);
        for (text, code, words) in [
            (base.clone(), "authentication_refused", "valid client certificate"),
            (format!("{with} sslcertmode=disable"), "authentication_refused", "valid client certificate"),
            (format!("{with} require_auth=scram-sha-256"), "authentication", "does not ask who we are"),
            (format!("{base} sslcert={} sslkey={}", foreign.0, foreign.1), "tls_failed", "client certificate"),
            (format!("{base} sslcert={} sslkey={}", stranger.0, stranger.1), "authentication_refused", "app"),
            (format!("{base} sslcert={certificate} sslkey={other_key}"), "tls_client_certificate", "not the key"),
            (format!("{base} sslcert={certificate}"), "tls_client_certificate", "no private key"),
            (format!("{base} sslcert={certificate} sslkey={key}.no"), "tls_client_certificate", "No such file"),
            (format!("{base} sslcert={certificate} sslkey={certificate}"), "tls_client_certificate", "chmod 06"),
            (format!("{base} sslcert={certificate} sslkey={locked}"), "tls_client_certificate", "openssl pkey"),
            (format!("{base} sslcert={key} sslkey={key}"), "tls_client_certificate", "no PEM certificate"),
        ] {
            let error = is_encrypted(&text).await.expect_err(&text);
            assert!(!error.is_transient() && error.code() == code, "{text}: {error}");
            assert!(error.to_string().contains(words), "{text}: {error}");
        }
    }
}

#[tokio::test]
async fn a_server_that_asks_for_no_certificate_does_not_meet_sslcertmode_require() {
    let files = TlsFiles::generate().unwrap();
    let cluster = Cluster::builder(MAJOR).name("unasked").tls(files.clone()).start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = files.client("postgres").unwrap();
    let (certificate, key) = (file(folder.path(), "crt", &certificate), private(folder.path(), "key", &key));
    let base = format!("{}?sslmode=require&sslcert={certificate}&sslkey={key}", cluster.url("postgres"));
    assert!(is_encrypted(&base).await.unwrap());
    let error = is_encrypted(&format!("{base}&sslcertmode=require")).await.unwrap_err();
    assert!(error.to_string().contains("did not ask for a client certificate"), "{error}");
}

#[tokio::test]
async fn j1_a_revoked_certificate_is_refused() {
    let files = TlsFiles::generate_for(&["localhost"], Curve::P384).unwrap();
    let cluster = Cluster::builder(MAJOR).name("revoked").tls(files.clone()).start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [none, server] = [false, true].map(|with_server| files.revocation_list(with_server).unwrap());
    let foreign = TlsFiles::generate().unwrap().revocation_list(false).unwrap();
    for (directory, list) in [("none", &none), ("server", &server), ("foreign", &foreign)] {
        create_dir(folder.path().join(directory)).unwrap();
        write(folder.path().join(directory).join("0a0b0c0d.r0"), list).unwrap();
    }
    create_dir(folder.path().join("empty")).unwrap();
    let at = folder.path().display();
    let base = format!(
        "user=postgres dbname=postgres port={} hostaddr=127.0.0.1 sslrootcert={}",
        cluster.port(),
        cluster.ca_file().display()
    );
    for (more, code) in [
        (format!("host=localhost sslmode=verify-full sslcrl={at}/none/0a0b0c0d.r0"), None),
        (format!("host=localhost sslmode=verify-full sslcrldir={at}/none"), None),
        // The list says nothing of the name.
        (format!("host=elsewhere sslmode=verify-ca sslcrldir={at}/none"), None),
        (format!("host=elsewhere sslmode=verify-full sslcrldir={at}/none"), Some("tls_failed")),
        (format!("host=localhost sslmode=verify-full sslcrldir={at}/server"), Some("tls_failed")),
        (format!("host=localhost sslmode=verify-ca sslcrl={at}/server/0a0b0c0d.r0"), Some("tls_failed")),
        (format!("host=localhost sslmode=verify-ca sslcrldir={at}/foreign"), Some("tls_failed")),
        (format!("host=localhost sslmode=verify-ca sslcrldir={at}/empty"), Some("tls_revocation_list")),
        (format!("host=localhost sslmode=verify-ca sslcrl={at}/missing"), Some("tls_revocation_list")),
    ] {
        let text = format!("{base} {more}");
        match (is_encrypted(&text).await, code) {
            (Ok(encrypted), None) => assert!(encrypted, "{text}"),
            (Err(error), Some(code)) => {
                assert!(error.code() == code && !error.is_transient(), "{text}: {error}");
                assert!(!more.contains("/server") || error.to_string().contains("Revoked"), "{text}: {error}");
            }
            (other, _) => panic!("{text}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn tls_without_being_asked_is_for_servers_that_know_it() {
    for major in majors().unwrap() {
        let files = TlsFiles::generate().unwrap();
        let cluster = Cluster::builder(major).name("direct").tls(files).start().await.unwrap();
        let text = format!(
            "{}?sslmode=verify-full&sslrootcert={}&sslnegotiation=direct",
            cluster.url("postgres"),
            cluster.ca_file().display()
        );
        match is_encrypted(&text).await {
            Ok(encrypted) => assert!(encrypted && major >= 17, "{major}"),
            Err(error) => assert!(error.code() == "tls_failed" && major < 17, "{major}: {error}"),
        }
    }
}

#[tokio::test]
async fn versions_of_tls_can_be_narrowed() {
    let cluster = Cluster::builder(MAJOR)
        .name("versions")
        .tls(TlsFiles::generate().unwrap())
        .conf("ssl_max_protocol_version", "TLSv1.2")
        .start()
        .await
        .unwrap();
    let base = format!("{}?sslmode=require", cluster.url("postgres"));
    assert!(is_encrypted(&format!("{base}&ssl_min_protocol_version=TLSv1.2")).await.unwrap());
    let error = is_encrypted(&format!("{base}&ssl_min_protocol_version=TLSv1.3")).await.unwrap_err();
    assert_eq!((error.code(), error.is_transient()), ("tls_failed", false), "{error}");
}
