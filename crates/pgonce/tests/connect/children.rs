//! libpq's own programs, with the same connection.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use pgonce::connect::LibpqCommand;

use super::*;

/// Runs a program of the system, in an environment that would lead it astray.
fn run(program: &str, words: &[&str], settings: &ConnectionSettings) -> Output {
    let mut command = Command::new(program);
    for (name, value) in
        [("PGHOST", "nowhere.invalid"), ("PGSERVICE", "none"), ("PGPASSWORD", "wrong"), ("PGHOSTADDR", "x")]
    {
        command.env(name, value);
    }
    command.args(words).connect_as(settings).output().unwrap()
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[tokio::test]
async fn psql_and_pg_dump_connect_as_the_settings_say() {
    let (user, db) = (r#"o'd"d \u:s=r%"#, "postgresql://d b=c?");
    let files = TlsFiles::generate().unwrap();
    let cluster = Cluster::builder(MAJOR)
        .name("children")
        .tls(files.clone())
        .client_certificates()
        .require_tls()
        .hba("hostssl all certified 127.0.0.1/32 cert\nhostssl all all 127.0.0.1/32 scram-sha-256")
        .start()
        .await
        .unwrap();
    let literal = ODD_PASSWORD.replace('\'', "''");
    for sql in [
        format!("CREATE ROLE \"{}\" LOGIN SUPERUSER PASSWORD '{literal}'", user.replace('"', "\"\"")),
        "CREATE ROLE certified LOGIN".to_owned(),
        format!("CREATE DATABASE \"{db}\""),
    ] {
        cluster.execute("postgres", &sql).await.unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let base = format!(
        "host=localhost hostaddr=127.0.0.1 port={} dbname='{}' sslmode=verify-full sslrootcert={} \
         application_name='a b' options='-c work_mem=1234kB' connect_timeout=10",
        cluster.port(),
        quoted(db),
        cluster.ca_file().display()
    );
    let question = "SELECT current_user || '|' || current_database() || '|' || current_setting('work_mem') || '|' || \
                    current_setting('application_name') || '|' || (SELECT ssl FROM pg_stat_ssl WHERE pid = \
                    pg_backend_pid())";
    let ask = |settings: &ConnectionSettings| run("psql", &["-XAtqw", "-c", question], settings);

    let bound = "channel_binding=require require_auth=scram-sha-256";
    let given = settings(&format!("{base} user='{}' password='{}' {bound}", quoted(user), quoted(ODD_PASSWORD)));
    assert_eq!(printed(&ask(&given)), format!("{user}|{db}|1234kB|a b|true\n"));
    let dump = printed(&run("pg_dump", &["--schema-only", "--create", "-w"], &given));
    assert!(dump.contains(&format!("CREATE DATABASE \"{db}\"")), "{dump}");

    let escape = |text: &str| text.replace('\\', r"\\").replace(':', r"\:");
    let line = format!("localhost:*:{}:{}:{}\n", escape(db), escape(user), escape(ODD_PASSWORD));
    let passfile = file(folder.path(), "passfile", &line);
    set_permissions(&passfile, Permissions::from_mode(0o600)).unwrap();
    let filed = settings(&format!("{base} user='{}' passfile={passfile}", quoted(user)));
    assert_eq!(printed(&ask(&filed)), format!("{user}|{db}|1234kB|a b|true\n"));

    let (certificate, key) = files.client("certified").unwrap();
    let (certificate, key) = (file(folder.path(), "c.crt", &certificate), file(folder.path(), "c.key", &key));
    set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let certified = settings(&format!("{base} user=certified sslcert={certificate} sslkey={key}"));
    assert_eq!(printed(&ask(&certified)), format!("certified|{db}|1234kB|a b|true\n"));

    // The children are as strict as the settings.
    let stranger = file(folder.path(), "ca", &TlsFiles::generate().unwrap().ca_certificate);
    let wrong =
        settings(&format!("{base} user='{}' password='{}' sslrootcert={stranger}", quoted(user), quoted(ODD_PASSWORD)));
    let refused = ask(&wrong);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("SSL error"), "{said}");
}
