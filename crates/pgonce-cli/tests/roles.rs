//! Publications made by others, roles that may little, names that look like SQL. Faults J1, J3, J4, K3.

mod common;
mod pair;

use std::os::unix::fs::PermissionsExt;

use common::{Flow, said};
use pair::Case;
use pgonce_testkit::{Cluster, TlsFiles, majors};

/// 63 bytes, as long as a name can be.
const LONG: &str = "l\u{f6}ng;\"name' of sixty-three bytes -- $1 %s \\ {} ............ 63";

fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The source lets a client certificate in, and the target a password, each over TLS only. Both connections are
/// described by service files, the password lies in a password file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn j1_a_flow_by_services_with_a_client_certificate_and_a_password_file() {
    const PASSWORD: &str = r"p:a\s's w@o%r#d";
    for major in majors().unwrap() {
        let files = TlsFiles::generate().unwrap();
        let builder =
            |name| Cluster::builder(major).name(name).tls(files.clone()).require_tls().conf("log_connections", "on");
        let source = builder("source").client_certificates().hba("hostssl all,replication mover 127.0.0.1/32 cert");
        let target = builder("target").hba("hostssl all,replication mover 127.0.0.1/32 scram-sha-256");
        let (source, target) = tokio::join!(source.start(), target.start());
        let mut flow = Flow::between(source.unwrap(), target.unwrap());
        flow.at_source("CREATE ROLE mover LOGIN SUPERUSER").await;
        let literal = PASSWORD.replace('\'', "''");
        flow.at_target(&format!("CREATE ROLE mover LOGIN SUPERUSER PASSWORD '{literal}'")).await;

        let private = |name: &str, text: &str| {
            let path = flow.folder().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            path.display().to_string()
        };
        let (certificate, key) = files.client("mover").unwrap();
        let (certificate, key) = (private("mover.crt", &certificate), private("mover.key", &key));
        let escaped = PASSWORD.replace('\\', r"\\").replace(':', r"\:");
        let passfile = private("passfile", &format!("localhost:{}:*:mover:{escaped}\n", flow.target.port()));
        let common = |cluster: &Cluster| {
            format!(
                "host=localhost\nport={}\nuser=mover\ndbname=postgres\nsslmode=verify-full\nsslrootcert={}\n",
                cluster.port(),
                cluster.ca_file().display()
            )
        };
        let services = private(
            "services",
            &format!(
                "[source]\n{}sslcert={certificate}\nsslkey={key}\n[target]\n{}passfile={passfile}\n\
                 channel_binding=require\n",
                common(&flow.source),
                common(&flow.target)
            ),
        );
        (flow.source_url, flow.target_url) = ("service=source".to_owned(), "service=target".to_owned());
        flow.both("CREATE TABLE t (id int PRIMARY KEY)").await;
        let run = async |words: &[&str], status: i32| {
            let mut command = flow.command(words);
            command.env("PGSERVICEFILE", &services);
            let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
            assert_eq!(output.status.code(), Some(status), "{}", said(&output));
            said(&output)
        };
        for n in 0..2 {
            flow.at_source(&format!("INSERT INTO t VALUES ({n})")).await;
            run(&["run", "--until", "now"], 0).await;
        }
        assert_eq!(flow.assert_same("SELECT * FROM t ORDER BY id").await.len(), 2);
        for cluster in [&flow.source, &flow.target] {
            let log = cluster.log();
            let lines: Vec<&str> = log.lines().filter(|line| line.contains("authorized: user=mover")).collect();
            assert!(!lines.is_empty() && lines.iter().all(|line| line.contains("SSL enabled")), "{lines:?}");
            let replication = lines.iter().any(|line| line.contains("replication connection authorized"));
            assert_eq!(replication, cluster.name() == "source", "{lines:?}");
        }
        flow.source_url = "service=source sslmode=disable".to_owned();
        let mut command = flow.command(&["run", "--until", "now"]);
        command.env("PGSERVICEFILE", &services);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        assert_eq!(output.status.code(), Some(3), "{}", said(&output));
        assert!(said(&output).contains("[connection_refused]"), "{}", said(&output));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn j4_names_are_quoted_and_never_sql() {
    for major in majors().unwrap() {
        assert_eq!(LONG.len(), 63);
        let case = Case::new(major, "j4").await;
        let schemas = ["S; DROP TABLE victim; --", LONG];
        let tables = ["T\"; DROP TABLE victim; --", "Order", "a.b", "it's", LONG];
        let columns = ["order", "Col\"; --", "$1", "a,b", LONG];
        case.both("CREATE TABLE victim (id int PRIMARY KEY)").await;
        let mut names = Vec::new();
        for schema in schemas {
            case.both(&format!("CREATE SCHEMA {}", quote(schema))).await;
            names.extend(tables.iter().map(|table| format!("{}.{}", quote(schema), quote(table))));
        }
        for (n, name) in names.iter().enumerate() {
            let list: String = columns.iter().map(|c| format!("{} text, ", quote(c))).collect();
            let key = if n % 2 == 0 { "PRIMARY KEY (\"order\", \"Col\"\"; --\")" } else { "UNIQUE (\"order\")" };
            case.both(&format!(
                "CREATE TABLE {name} ({list}{key}); ALTER TABLE {name} ALTER \"a,b\" SET STORAGE EXTERNAL"
            ))
            .await;
            if n % 2 == 1 {
                case.both(&format!("ALTER TABLE {name} REPLICA IDENTITY FULL")).await;
            }
            case.at_source(&format!("INSERT INTO {name} VALUES ('k', 'k', 'v', repeat('x', 10000), 'v')")).await;
        }
        let case = case.with(&["--slot", &format!("{:0<63}", "j4_slot_of_sixty_three_bytes_")]);
        let publication = ["--publication", "pub\"; DROP TABLE victim; --"];
        let refused = case.output(&[&["run", "--until", "now"][..], &publication].concat()).await;
        assert_eq!(refused.status.code(), Some(6), "{}", said(&refused));
        let sql = said(&refused);
        assert!(sql.contains("CREATE PUBLICATION \"pub\"\"; DROP TABLE victim; --\""), "{sql}");
        case.at_source("CREATE PUBLICATION \"pub\"\"; DROP TABLE victim; --\" FOR ALL TABLES").await;
        let case = case.with(&publication);
        case.drain().await;
        for name in &names {
            case.at_source(&format!("UPDATE {name} SET \"$1\" = 'w'; UPDATE {name} SET \"order\" = 'key';")).await;
            case.at_source(&format!(
                "INSERT INTO {name} SELECT i::text, 'b', 'c', 'd', 'e' FROM generate_series(1, 6) i"
            ))
            .await;
            case.at_source(&format!("DELETE FROM {name} WHERE \"order\" = '1'")).await;
        }
        case.drain().await;
        for name in &names {
            assert_eq!(case.assert_same(&format!("SELECT * FROM {name} ORDER BY \"order\"")).await.len(), 6);
        }
        case.at_source(&format!("TRUNCATE {}", names.join(", "))).await;
        case.drain().await;
        for name in &names {
            case.assert_same(&format!("SELECT * FROM {name}")).await;
        }
        assert_eq!(case.assert_same("SELECT count(*) FROM victim").await, ["(0)"]);
        // What cannot be a slot's name is refused before anything is made.
        let arguments = case.arguments.iter().skip(2).map(String::as_str).collect::<Vec<_>>();
        let bad = Case::new(major, "j4_bad").await.with(&arguments).with(&["--slot", "s'; DROP TABLE victim; --"]);
        bad.both("CREATE TABLE victim (id int PRIMARY KEY)").await;
        bad.at_source("CREATE PUBLICATION \"pub\"\"; DROP TABLE victim; --\" FOR ALL TABLES").await;
        let output = bad.output(&["run", "--until", "now"]).await;
        assert!(!matches!(output.status.code(), Some(0 | 1 | 70) | None), "{}", said(&output));
        assert_eq!(bad.assert_same("SELECT count(*) FROM victim").await, ["(0)"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn j4_tables_of_hostile_names_are_published_by_pattern() {
    for major in majors().unwrap() {
        let case = Case::new(major, "j4_patterns").await;
        let hostile = quote("T\"; DROP TABLE victim; --");
        case.both(&format!(
            "CREATE TABLE victim (id int PRIMARY KEY); CREATE SCHEMA \"My\";
             CREATE TABLE \"My\".{hostile} (id int PRIMARY KEY);
             CREATE TABLE \"My\".keyless (v text); CREATE TABLE \"My\".{} (id int PRIMARY KEY)",
            quote(LONG)
        ))
        .await;
        let case = case.with(&["--tables", "My.*"]);
        let said = case.drain().await;
        assert!(said.contains(r#"ALTER TABLE "My"."keyless" REPLICA IDENTITY FULL;"#), "{said}");
        case.at_source(&format!("INSERT INTO \"My\".{hostile} VALUES (1); INSERT INTO victim VALUES (1)")).await;
        case.at_source(&format!("INSERT INTO \"My\".{} VALUES (1)", quote(LONG))).await;
        case.drain().await;
        assert_eq!(case.assert_same(&format!("SELECT * FROM \"My\".{hostile}")).await, ["(1)"]);
        assert_eq!(case.assert_same(&format!("SELECT * FROM \"My\".{}", quote(LONG))).await, ["(1)"]);
        assert_eq!(case.there("SELECT count(*) FROM victim").await, ["(0)"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_column_list_and_a_row_filter_hold_for_copy_and_stream() {
    for major in majors().unwrap().into_iter().filter(|major| *major >= 15) {
        let case = Case::new(major, "filtered").await;
        case.both("CREATE TABLE t (id int PRIMARY KEY, n int, secret text DEFAULT 'default', \"order\" text)").await;
        case.at_source(
            "CREATE PUBLICATION filtered FOR TABLE t (\"order\", id) WHERE (id % 2 = 1 AND id > 0);
             INSERT INTO t SELECT i, i, 'secret', 'o' FROM generate_series(1, 10) i",
        )
        .await;
        let case = case.with(&["--publication", "filtered"]);
        case.drain().await;
        let seen = "SELECT id, \"order\" FROM t WHERE id % 2 = 1 AND id > 0 ORDER BY id";
        assert_eq!(case.assert_same(seen).await.len(), 5);
        case.at_source("INSERT INTO t SELECT i, i, 'secret', 'o' FROM generate_series(11, 20) i").await;
        // Into the filter, out of it, and within.
        case.at_source("UPDATE t SET id = 101 WHERE id = 2; UPDATE t SET id = 102 WHERE id = 1").await;
        case.at_source("UPDATE t SET \"order\" = 'p', n = 0; DELETE FROM t WHERE id IN (3, 4)").await;
        case.drain().await;
        assert_eq!(case.assert_same(seen).await.len(), 9);
        let rest = case.there("SELECT DISTINCT n, secret, (SELECT count(*) FROM t) FROM t").await;
        assert_eq!(rest, ["(,default,9)"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_publications_feed_one_flow() {
    for major in majors().unwrap() {
        let case = Case::new(major, "two").await;
        case.both("CREATE TABLE a (id int PRIMARY KEY)").await;
        case.both("CREATE TABLE b (LIKE a INCLUDING ALL); CREATE TABLE c (LIKE a INCLUDING ALL)").await;
        case.at_source("INSERT INTO a VALUES (1); INSERT INTO b VALUES (1); INSERT INTO c VALUES (1)").await;
        case.at_source("CREATE PUBLICATION \"One\" FOR TABLE a, b; CREATE PUBLICATION two FOR TABLE b").await;
        let case = case.with(&["--publication", "One,two"]);
        case.drain().await;
        for table in ["a", "b", "c"] {
            case.at_source(&format!("INSERT INTO {table} VALUES (2); UPDATE {table} SET id = 3 WHERE id = 1")).await;
        }
        case.drain().await;
        assert_eq!(case.assert_same("SELECT * FROM a ORDER BY id").await, ["(2)", "(3)"]);
        assert_eq!(case.assert_same("SELECT * FROM b ORDER BY id").await, ["(2)", "(3)"]);
        assert_eq!(case.there("SELECT count(*) FROM c").await, ["(0)"]);
        case.at_source("ALTER PUBLICATION \"One\" DROP TABLE a; INSERT INTO a VALUES (4)").await;
        let said = case.refused("publication_changed", 6).await;
        assert!(said.contains("table public.a as a member of publication One"), "{said}");
        // One of the two publications still has the table; that it left the other is no reason to trust the rest.
        case.at_source("DROP PUBLICATION two; INSERT INTO b VALUES (4)").await;
        let said = case.refused("publication_changed", 6).await;
        assert!(said.contains("publication two"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn j3_roles_without_superuser_are_enough_and_triggers_are_told_of() {
    for major in majors().unwrap() {
        let mut case = Case::new(major, "j3").await;
        let table = "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, up int REFERENCES t, v text)";
        let trigger = "
            CREATE TABLE fired (id int); GRANT ALL ON fired TO PUBLIC;
            CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN INSERT INTO public.fired VALUES (NEW.id); RETURN NEW; END $$;
            CREATE TRIGGER fire BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION fire();";
        case.at_source(&format!(
            "CREATE ROLE reader LOGIN REPLICATION; {table}; GRANT SELECT ON t TO reader;
             INSERT INTO t (up, v) VALUES (1, 'copied');"
        ))
        .await;
        case.at_target(&format!(
            "CREATE ROLE writer LOGIN; GRANT USAGE, CREATE ON SCHEMA public TO writer;
             SET ROLE writer; {table}; RESET ROLE;
             {trigger}"
        ))
        .await;
        case.source_url = case.source_url.replace("postgres@", "reader@");
        case.target_url = case.target_url.replace("postgres@", "writer@");
        // Neither role may make what is needed, and the SQL for an admin is printed: first the target's ledger.
        let said_of_ledger = case.refused("target_not_ready", 8).await;
        assert!(said_of_ledger.contains("pgonce init --sql"), "{said_of_ledger}");
        let printed = case.output(&["init", "--sql", "--format", "json"]).await;
        let printed: serde_json::Value =
            serde_json::from_slice(&printed.stdout).unwrap_or_else(|e| panic!("{e}: {}", said(&printed)));
        case.at_target(printed["target_sql"].as_str().unwrap()).await;
        let refused = case.refused("source_not_ready", 6).await;
        let create = refused.split_once("type: ").unwrap().1.split_once(';').unwrap().0;
        case.at_source(create).await;
        let said_at_first = case.drain().await;
        case.at_source("INSERT INTO t (up, v) VALUES (1, 'streamed'); UPDATE t SET v = 'changed' WHERE id = 1").await;
        case.at_source("UPDATE t SET up = 2 WHERE id = 2; INSERT INTO t (v) SELECT 'run' FROM generate_series(1, 9)")
            .await;
        case.drain().await;
        assert_eq!(case.assert_same("SELECT * FROM t ORDER BY id").await.len(), 11);
        // Triggers fire, and it was said.
        assert!(said_at_first.contains("triggers"), "{said_at_first}");
        assert_ne!(case.there("SELECT count(*) FROM fired").await, ["(0)"]);
        // Allowed to keep them still, it does.
        if major >= 15 {
            case.at_target("GRANT SET ON PARAMETER session_replication_role TO writer; TRUNCATE fired").await;
            case.at_source("INSERT INTO t (v) VALUES ('quiet')").await;
            let said = case.drain().await;
            assert!(!said.contains("triggers"), "{said}");
            assert_eq!(case.there("SELECT count(*) FROM fired").await, ["(0)"]);
        }
        case.at_source("TRUNCATE t").await;
        case.drain().await;
        case.assert_same("SELECT * FROM t").await;
        for role in ["REVOKE ALL ON t FROM reader; DROP ROLE reader", ""] {
            case.at_source(role).await;
        }
        case.at_target("DROP OWNED BY writer; DROP ROLE writer").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn triggers_and_foreign_keys_of_the_target_keep_still_for_a_superuser() {
    for major in majors().unwrap() {
        let case = Case::new(major, "quiet").await;
        case.both("CREATE TABLE t (id int PRIMARY KEY, v text)").await;
        case.at_target(
            "CREATE TABLE fired (id int);
             CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN INSERT INTO public.fired VALUES (NEW.id); NEW.v := 'spoiled'; RETURN NEW; END $$;
             CREATE TRIGGER fire BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION fire();
             CREATE TABLE parent (id int PRIMARY KEY); ALTER TABLE t ADD FOREIGN KEY (id) REFERENCES parent",
        )
        .await;
        case.at_source("INSERT INTO t VALUES (1, 'copied')").await;
        let said = case.drain().await;
        assert!(!said.contains("triggers"), "{said}");
        case.at_source("INSERT INTO t VALUES (2, 'streamed'); UPDATE t SET v = 'changed' WHERE id = 1").await;
        case.at_source("INSERT INTO t SELECT i, 'run' FROM generate_series(3, 9) i").await;
        case.drain().await;
        case.assert_same("SELECT * FROM t ORDER BY id").await;
        assert_eq!(case.there("SELECT count(*) FROM fired").await, ["(0)"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k3_constraints_hold_as_the_source_committed_them() {
    for major in majors().unwrap() {
        let case = Case::new(major, "k3").await;
        case.both(
            "CREATE TABLE u (id int PRIMARY KEY, email text UNIQUE DEFERRABLE INITIALLY DEFERRED, n int);
             CREATE TABLE x (id int PRIMARY KEY, r int4range, EXCLUDE USING gist (r WITH &&));
             CREATE TABLE p (id int PRIMARY KEY, email text, live bool); CREATE UNIQUE INDEX ON p (email) WHERE live;
             CREATE TABLE a (id int PRIMARY KEY);
             CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a DEFERRABLE INITIALLY DEFERRED)",
        )
        .await;
        case.at_source(
            "INSERT INTO u VALUES (1, 'one', 1), (2, 'two', 2); INSERT INTO x VALUES (1, '[1,5)'), (2, '[5,9)')",
        )
        .await;
        case.at_source("INSERT INTO p VALUES (1, 'e', true), (2, 'e', false); INSERT INTO a VALUES (1)").await;
        case.drain().await;
        // One script is one transaction.
        case.at_source("UPDATE u SET email = 'two' WHERE id = 1; UPDATE u SET email = 'one' WHERE id = 2").await;
        case.at_source("DELETE FROM u WHERE id = 1; INSERT INTO u VALUES (3, 'two', 3)").await;
        case.at_source(
            "DELETE FROM x WHERE id = 1; INSERT INTO x VALUES (3, '[0,5)'); UPDATE x SET r = '[6,9)' WHERE id = 2",
        )
        .await;
        case.at_source("UPDATE p SET live = false WHERE id = 1; UPDATE p SET live = true WHERE id = 2").await;
        case.at_source("INSERT INTO b VALUES (1, 2); INSERT INTO a VALUES (2); UPDATE a SET id = 3 WHERE id = 1").await;
        case.drain().await;
        for table in ["u", "x", "p", "a", "b"] {
            case.assert_same(&format!("SELECT * FROM {table} ORDER BY id")).await;
        }
    }
}
