//! Passwords and names of any characters, from every place they can come from.

use std::fs::{Permissions, set_permissions, write};
use std::os::unix::fs::PermissionsExt;

use pgonce_testkit::Random;

use super::*;

/// What means something in one of the places, and letters that SASLprep maps or keeps.
const CHARACTERS: &[&str] = &[
    "a",
    "Z",
    "7",
    "'",
    "\"",
    "\\",
    " ",
    ":",
    "/",
    "@",
    "%",
    "#",
    "?",
    "=",
    "&",
    "+",
    ",",
    ";",
    "[",
    "]",
    "*",
    "$",
    "{",
    "é",
    "ß",
    "→",
    "日",
    "\u{2003}",
    "ª",
    "\u{1F512}",
    "%41",
    "\\'",
    "\t",
];

fn odd(random: &mut Random, pieces: u64) -> String {
    let mut text: String = (0..pieces).map(|_| CHARACTERS[random.below(CHARACTERS.len() as u64) as usize]).collect();
    // A service file cannot have blanks at the end of a line.
    text.push('.');
    text
}

fn escaped(text: &str) -> String {
    text.replace('\\', r"\\").replace(':', r"\:").replace('*', r"\*")
}

#[tokio::test]
async fn any_password_any_role_and_any_database_connects_from_every_place() {
    let seed: u64 = 0x5EED_C0DE;
    let mut random = Random::new(seed);
    for major in majors().unwrap() {
        let cluster = Cluster::builder(major)
            .name("odd")
            .hba("host all,replication +hashed 127.0.0.1/32 md5")
            .hba("host all,replication +scrammed 127.0.0.1/32 scram-sha-256")
            .start()
            .await
            .unwrap();
        cluster.execute("postgres", "CREATE ROLE hashed; CREATE ROLE scrammed").await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        for round in 0..8 {
            let (group, encryption) = [("hashed", "md5"), ("scrammed", "scram-sha-256")][round % 2];
            let user = odd(&mut random, 8);
            let (db, password) = (format!("{round}{}", odd(&mut random, 8)), odd(&mut random, 14));
            let quoted_user = user.replace('"', "\"\"");
            let literal = password.replace('\'', "''");
            cluster
                .execute(
                    "postgres",
                    &format!(
                        "SET password_encryption = '{encryption}'; CREATE ROLE \"{quoted_user}\" LOGIN REPLICATION \
                         PASSWORD '{literal}' IN ROLE {group}"
                    ),
                )
                .await
                .unwrap();
            cluster.execute("postgres", &format!("CREATE DATABASE \"{}\"", db.replace('"', "\"\""))).await.unwrap();

            let port = cluster.port();
            let passfile = file(
                folder.path(),
                "passfile",
                &format!(
                    "# comment\nelsewhere:*:*:*:wrong\n127.0.0.1:{port}:{}:{}:{}\n*:*:*:*:wrong\n",
                    escaped(&db),
                    escaped(&user),
                    escaped(&password)
                ),
            );
            set_permissions(&passfile, Permissions::from_mode(0o600)).unwrap();
            let text = format!("[odd]\nhost=127.0.0.1\nport={port}\nuser={user}\ndbname={db}\npassword={password}\n");
            let services = file(folder.path(), "services", &text);
            let [u, d, p] = [&user, &db, &password].map(|text| percent_encoded(text));
            let names = format!("host=127.0.0.1 port={port} user='{}' dbname='{}'", quoted(&user), quoted(&db));
            let empty = Environment::empty;
            for (place, text, environment) in [
                ("URI", format!("postgresql://{u}:{p}@127.0.0.1:{port}/{d}"), empty()),
                ("keys", format!("{names} password='{}'", quoted(&password)), empty()),
                ("passfile", format!("{names} passfile={passfile}"), empty()),
                ("PGPASSFILE", names.clone(), empty().with("PGPASSFILE", &passfile)),
                ("service", format!("service=odd servicefile={services}"), empty()),
                ("PGSERVICE", String::new(), empty().with("PGSERVICE", "odd").with("PGSERVICEFILE", &services)),
                ("PGPASSWORD", names.clone(), empty().with("PGPASSWORD", &password)),
            ] {
                let what = || format!("{place} on {major}, seed {seed:#x}, round {round}");
                let settings =
                    ConnectionSettings::parse(&text, &environment).unwrap_or_else(|e| panic!("{}: {e}", what()));
                let sql = connect_sql(&settings, "test").await.unwrap_or_else(|e| panic!("{}: {e}", what()));
                assert_eq!(value(&sql, "SELECT current_user::text").await, user, "{}", what());
                assert_eq!(value(&sql, "SELECT current_database()::text").await, db, "{}", what());
                open_session(&settings, &[("replication", "database")])
                    .await
                    .unwrap_or_else(|e| panic!("{}: {e}", what()));
                let shown = format!("{settings} {settings:?} {:?}", settings.provenance());
                assert!(!shown.contains(&password) && !shown.contains(&p), "{}", what());
            }
            let wrong = file(folder.path(), "wrong", "*:*:*:*:SECRET\n");
            set_permissions(&wrong, Permissions::from_mode(0o600)).unwrap();
            let error = is_encrypted(&format!("{names} passfile={wrong}")).await.unwrap_err();
            assert_eq!(error.code(), "authentication_password", "{error}");
            let message = error.to_string();
            assert!(message.contains(&format!("(the password was taken from {wrong})")), "{message}");
            assert!(!message.contains("SECRET"));
        }
    }
}

#[tokio::test]
async fn a_passfile_is_read_for_each_connection_and_only_if_nobody_else_can() {
    let hba = "host all,replication app 127.0.0.1/32 scram-sha-256";
    let cluster = Cluster::builder(MAJOR).name("passfile").hba(hba).start().await.unwrap();
    cluster.execute("postgres", "CREATE ROLE app LOGIN REPLICATION PASSWORD 'first'").await.unwrap();
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join(".pgpass");
    let mode = |mode: u32| set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    let base = format!("host=db.example.org hostaddr=127.0.0.1 port={} user=app dbname=postgres", cluster.port());
    let default = ConnectionSettings::parse(&base, &Environment::empty().with("HOME", home.path())).unwrap();
    let named = settings(&format!("{base} passfile={}", path.display()));

    for settings in [&default, &named] {
        let error = connect_sql(settings, "test").await.unwrap_err();
        assert_eq!(error.code(), "authentication");
        assert!(error.to_string().ends_with(&format!("(password file {}: there is no such file)", path.display())));
    }
    write(&path, "127.0.0.1:*:*:*:wrong\ndb.example.org:*:*:app:first\n").unwrap();
    mode(0o600);
    for settings in [&default, &named] {
        connect_sql(settings, "test").await.unwrap();
    }
    // The same settings, another password.
    cluster.execute("postgres", "ALTER ROLE app PASSWORD 'second'").await.unwrap();
    assert_eq!(connect_sql(&named, "test").await.unwrap_err().code(), "authentication_password");
    write(&path, "db.example.org:*:*:app:second\n").unwrap();
    connect_sql(&named, "test").await.unwrap();

    mode(0o640);
    let error = connect_sql(&named, "test").await.unwrap_err();
    assert_eq!((error.code(), error.is_transient()), ("password_file", false));
    assert!(error.to_string().ends_with(&format!("type: chmod 0600 {}", path.display())), "{error}");
    // libpq's default file is passed over, and said so where a password is missing for it.
    let error = connect_sql(&default, "test").await.unwrap_err();
    assert_eq!(error.code(), "authentication");
    assert!(error.to_string().contains("it has mode 0640"), "{error}");
    // A password that was given needs no file.
    connect_sql(&settings(&format!("{base} password=second passfile={}", path.display())), "test").await.unwrap();
}

#[tokio::test]
async fn methods_that_are_not_required_are_refused_before_a_password_is_sent() {
    let hba = "host all,replication clear 127.0.0.1/32 password\nhost all,replication scram 127.0.0.1/32 scram-sha-256";
    let cluster = Cluster::builder(MAJOR).name("methods").hba(hba).start().await.unwrap();
    let sql = "CREATE ROLE clear LOGIN REPLICATION PASSWORD 'p'; CREATE ROLE scram LOGIN REPLICATION PASSWORD 'p'";
    cluster.execute("postgres", sql).await.unwrap();
    let base = format!("host=127.0.0.1 port={} dbname=postgres password=p", cluster.port());
    for (user, required, fine) in [
        ("clear", "password", true),
        ("clear", "!scram-sha-256", true),
        ("clear", "scram-sha-256", false),
        ("clear", "!password", false),
        ("scram", "scram-sha-256,none", true),
        ("scram", "md5", false),
        ("postgres", "none", true),
        ("postgres", "!none", false),
    ] {
        let text = format!("{base} user={user} require_auth={required}");
        match is_encrypted(&text).await {
            Ok(_) => assert!(fine, "{text}"),
            Err(error) => {
                assert!(!fine && error.code() == "authentication", "{text}: {error}");
                assert!(error.to_string().contains(&format!("require_auth={required}")), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn the_server_behind_a_socket_must_run_as_the_peer_that_is_required() {
    let cluster = Cluster::builder(MAJOR).name("peer").start().await.unwrap();
    let socket = cluster.socket_folder().unwrap();
    let base = format!("host={} port={} user=postgres dbname=postgres", socket.display(), cluster.port());
    let owner = std::process::Command::new("stat").args(["-c", "%U"]).arg(cluster.data_dir()).output().unwrap().stdout;
    let owner = String::from_utf8(owner).unwrap();
    is_encrypted(&format!("{base} requirepeer={}", owner.trim())).await.unwrap();
    let error = is_encrypted(&format!("{base} requirepeer=nobody")).await.unwrap_err();
    assert_eq!(error.code(), "authentication");
    assert!(error.to_string().ends_with(&format!("runs as {}", owner.trim())), "{error}");
}
