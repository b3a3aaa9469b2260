//! Money under another locale on either side (C7).

use std::path::Path;
use std::process::Command;

use pgonce_testkit::{Cluster, majors};

use crate::common::{Flow, text};

/// Makes a locale of its own from the system's sources, below `folder`.
fn make_locale(folder: &Path, language: &str) {
    let name = format!("{language}.UTF-8");
    let mut command = Command::new("localedef");
    command.args(["--no-archive", "-i", language, "-f", "UTF-8"]).arg(folder.join(&name));
    let output = command.output().expect("localedef, of Debian's package libc-bin");
    assert!(folder.join(&name).join("LC_MONETARY").is_file(), "install Debian's package locales: {output:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c7_money_under_a_german_lc_monetary() {
    let locales = tempfile::Builder::new().prefix("pgonce-locales-").tempdir_in("/tmp").unwrap();
    open(locales.path());
    // The second has no digits behind the point, so that it reads the same text as a hundred times as much.
    for language in ["de_DE", "ja_JP"] {
        make_locale(locales.path(), language);
    }
    for major in majors().unwrap() {
        let start = |name: &'static str, lc_monetary: &'static str| {
            let builder = Cluster::builder(major).name(name).environment("LOCPATH", locales.path());
            builder.conf("lc_monetary", lc_monetary).start()
        };
        let (source, target) = tokio::join!(start("source", "de_DE.UTF-8"), start("target", "ja_JP.UTF-8"));
        let flow = Flow::between(source.unwrap(), target.unwrap());
        let create = "CREATE TABLE m (id int PRIMARY KEY, v money, l money[]);
                      CREATE TABLE f (v money); ALTER TABLE f REPLICA IDENTITY FULL";
        flow.both(create).await;
        let rows = "INSERT INTO m VALUES (1, '-12345,67', '{\"1,50\"}'), (2, '0,01', NULL), (3, NULL, '{}'),
                        (4, '92233720368547758,07', NULL);
                    INSERT INTO f SELECT v FROM m";
        flow.at_source(rows).await;
        // Each side prints in its own way, and means the same.
        assert_eq!(text(&flow.source_client().await, "SELECT v::text FROM m WHERE id = 1").await, "-12.345,67 €");
        flow.drain().await;
        flow.at_source(
            "INSERT INTO m SELECT id + 10, v, l FROM m; UPDATE m SET v = '7,77' WHERE id IN (1, 11);
             UPDATE f SET v = '-0,50' WHERE v = '0,01'; DELETE FROM f WHERE v = '-12345,67'",
        )
        .await;
        flow.drain().await;
        flow.both("ALTER DATABASE postgres SET lc_monetary = 'C'").await;
        assert_eq!(flow.assert_same("SELECT * FROM m ORDER BY id").await.len(), 8);
        assert_eq!(flow.assert_same("SELECT * FROM f ORDER BY v").await.len(), 3);
    }
}

/// The servers' user reads it.
fn open(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
}
