//! Sources and targets in other encodings than UTF8 (C6).

use pgonce_testkit::majors;

use crate::pair::Case;

/// A case with databases of these encodings.
async fn case(major: u32, name: &str, source: &str, target: &str) -> Case {
    let mut case = Case::new(major, name).await;
    let database = |side: &str, encoding| {
        let database = format!("{name}_{side}");
        let sql = format!("CREATE DATABASE {database} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'");
        (database, sql)
    };
    let (database_here, sql) = database("here", source);
    case.at_source(&sql).await;
    let (database_there, sql) = database("there", target);
    case.at_target(&sql).await;
    case.source = case.pair.source.connect(&database_here).await.unwrap();
    case.target = case.pair.target.connect(&database_there).await.unwrap();
    case.source_url = case.pair.source.url(&database_here);
    case.target_url = case.pair.target.url(&database_there);
    case
}

/// An encoding, and letters that it has beyond ASCII.
const ENCODINGS: &[(&str, &str)] =
    &[("LATIN1", "éÿ¬ßü×"), ("LATIN2", "čŁőßü×"), ("WIN1252", "€„™ßü×"), ("EUC_JP", "日本カÄЖ×")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c6_a_source_in_another_encoding_keeps_its_letters_and_its_names() {
    for major in majors().unwrap() {
        for (n, (encoding, letters)) in ENCODINGS.iter().enumerate() {
            // And back: from UTF8 to a target that has these letters.
            for (side, source, target) in [("from", *encoding, "UTF8"), ("to", "UTF8", *encoding)] {
                let case = case(major, &format!("c6_{side}_{n}"), source, target).await;
                let (schema, table) = (format!("\"s {letters}\""), format!("\"s {letters}\".\"t {letters}\""));
                case.both(&format!(
                    "CREATE SCHEMA {schema};
                     CREATE TYPE {schema}.\"e {letters}\" AS ENUM ('{letters}', 'b');
                     CREATE TYPE {schema}.\"c {letters}\" AS (\"{letters}\" text);
                     CREATE TABLE {table} (\"k {letters}\" text PRIMARY KEY, \"{letters}\" text,
                         e {schema}.\"e {letters}\",
                         l {schema}.\"e {letters}\"[], c {schema}.\"c {letters}\", j json, b jsonb,
                         v varchar(6), n name,
                         x char(8), h text[]);
                     CREATE TABLE f (t text, e {schema}.\"e {letters}\"); ALTER TABLE f REPLICA IDENTITY FULL"
                ))
                .await;
                let row = |key: &str| {
                    format!(
                        "('{letters}{key}', '{letters}', '{letters}', '{{{letters},b}}', '(\"{letters}\")',
                          '{{\"{letters}\":1}}', '{{\"{letters}\":1}}', '{letters}', '{letters}', '{letters}',
                          '{{{letters}}}')"
                    )
                };
                let rows: Vec<String> = ["1", "2", "3"].map(row).into();
                case.at_source(&format!("INSERT INTO {table} VALUES {}", rows.join(", "))).await;
                case.at_source(&format!("INSERT INTO f VALUES ('{letters}', '{letters}'), ('b', 'b')")).await;
                case.drain().await;
                let rows: Vec<String> = ["4", "5", "6", "7", "8"].map(row).into();
                case.at_source(&format!(
                    "INSERT INTO {table} VALUES {};
                     UPDATE {table} SET \"{letters}\" = 'x{letters}' WHERE \"k {letters}\" = '{letters}1';
                     UPDATE {table} SET \"k {letters}\" = '{letters}9' WHERE \"k {letters}\" = '{letters}2';
                     DELETE FROM {table} WHERE \"k {letters}\" = '{letters}4';
                     UPDATE f SET t = t || '{letters}'; DELETE FROM f WHERE e = 'b'; INSERT INTO f VALUES ('', NULL)",
                    rows.join(", ")
                ))
                .await;
                case.drain().await;
                let sql = format!("SELECT * FROM {table} ORDER BY \"k {letters}\" COLLATE \"C\"");
                assert_eq!(case.assert_same(&sql).await.len(), 7, "{encoding}");
                assert_eq!(case.assert_same("SELECT * FROM f ORDER BY t COLLATE \"C\"").await.len(), 2, "{encoding}");
            }
        }
    }
}

/// What must not be told: the character, its bytes, and the value around it.
const SECRETS: &[&str] =
    &["Zq7MARKER", "€", "e2 82 ac", "E282AC", "\u{e9}", "0xe9", "0xff", "0x80", "0x81", "471108824"];

fn assert_told(said: &str, expected: &[&str]) {
    for expected in expected {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    for secret in SECRETS {
        assert!(!said.contains(secret), "{secret}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c6_a_copy_into_an_encoding_that_lacks_a_character_names_the_row_and_not_the_character() {
    for major in majors().unwrap() {
        let mut case = case(major, "c6_copy_lacks", "UTF8", "LATIN1").await;
        case.both("CREATE TABLE t (id int PRIMARY KEY, price text); CREATE TABLE other (id int PRIMARY KEY)").await;
        case.at_source(
            "INSERT INTO other VALUES (1); INSERT INTO t SELECT i, 'é' FROM generate_series(1, 1999) i;
             INSERT INTO t VALUES (471108824, 'Zq7MARKER €');
             INSERT INTO t SELECT i + 8000, 'é' FROM generate_series(1, 2000) i",
        )
        .await;
        case.environment.push(("PGONCE_LOG", "trace"));
        for _ in 0..2 {
            let said = case.refused("schema_mismatch", 8).await;
            let expected = ["table public.t ", "at row 2000 of the copy", "SQLSTATE 22P05", "untranslatable_character"];
            assert_told(&said, &expected);
            assert_told(&case.ledger().await, &[]);
            assert_eq!(case.there("SELECT count(*) FROM t").await, ["(0)"]);
        }
        case.environment.clear();
        case.at_source("UPDATE t SET price = 'EUR' WHERE id = 471108824; INSERT INTO other VALUES (2)").await;
        case.drain().await;
        assert_eq!(case.assert_same("SELECT * FROM t ORDER BY id").await.len(), 4000);
        assert_eq!(case.assert_same("SELECT * FROM other ORDER BY id").await.len(), 2);
    }
}

/// Commits `poisonous` between two innocent transactions, and expects, at every start, a stop there that names
/// `expected` and the transaction. Returns its id.
async fn stops_at(case: &mut Case, poisonous: &str, code: &str, status: i32, expected: &[&str]) -> String {
    case.at_source("INSERT INTO other VALUES (10)").await;
    case.at_source("BEGIN").await;
    case.at_source(poisonous).await;
    let xid: String = case.source.query_one("SELECT pg_current_xact_id()::text", &[]).await.unwrap().get(0);
    case.at_source("COMMIT").await;
    case.at_source("INSERT INTO other VALUES (11)").await;
    case.environment.push(("PGONCE_LOG", "trace"));
    for _ in 0..2 {
        let said = case.refused(code, status).await;
        assert_told(&said, &[&format!("transaction {xid} with commit LSN ")]);
        assert_told(&said, expected);
        assert_told(&case.ledger().await, &[]);
        assert_told(&case.status().await.to_string(), &[code]);
        // Everything before it is applied, and nothing behind it; it is not acknowledged.
        assert_eq!(case.there("SELECT max(id) FROM other").await, ["(10)"]);
        let behind = "SELECT confirmed_flush_lsn < pg_current_wal_lsn() FROM pg_replication_slots WHERE slot_name = $1";
        let slot = format!("pgonce_{}", case.name);
        assert!(case.source.query_one(behind, &[&slot]).await.unwrap().get::<_, bool>(0));
    }
    case.environment.clear();
    xid
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c6_a_streamed_character_that_the_target_lacks_names_the_transaction_and_not_the_character() {
    let poison = "'Zq7MARKER €'";
    let transactions = [
        format!("INSERT INTO t VALUES (5001, {poison})"),
        format!("INSERT INTO t SELECT i, CASE i WHEN 6003 THEN {poison} END FROM generate_series(6000, 6009) i"),
        format!("UPDATE t SET price = {poison} WHERE id = 7"),
        format!("UPDATE t SET j = to_jsonb({poison}::text) WHERE id = 7"),
        format!("INSERT INTO f VALUES ({poison}, 'a'); DELETE FROM f"),
    ];
    for major in majors().unwrap() {
        for (n, transaction) in transactions.iter().enumerate() {
            let mut case = case(major, &format!("c6_lacks_{n}"), "UTF8", "LATIN1").await;
            case.both(
                "CREATE TABLE t (id int PRIMARY KEY, price text, j jsonb); CREATE TABLE other (id int PRIMARY KEY);
                 CREATE TABLE f (a text, b text); ALTER TABLE f REPLICA IDENTITY FULL",
            )
            .await;
            case.at_source("INSERT INTO t SELECT i, 'é' FROM generate_series(1, 9) i").await;
            case.drain().await;
            let table = if transaction.contains("INTO f") { "table public.f" } else { "table public.t" };
            let expected = [table, "SQLSTATE 22P05", "encoding"];
            let xid = stops_at(&mut case, transaction, "transaction_failed", 7, &expected).await;
            assert!(case.held().await.iter().any(|(_, held)| held.to_string() == xid));
            assert_eq!(case.there("SELECT count(*) FROM t WHERE price = 'é'").await, ["(9)"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c6_a_name_that_the_target_cannot_have_is_a_table_or_a_column_that_it_lacks() {
    for major in majors().unwrap() {
        let case = case(major, "c6_names_lack", "UTF8", "LATIN1").await;
        case.at_source("CREATE TABLE \"t€\" (id int PRIMARY KEY)").await;
        let said = case.refused("schema_mismatch", 8).await;
        assert!(said.contains("public.t€") && said.contains("22P05") && said.contains("encoding"), "{said}");
        case.at_source("ALTER TABLE \"t€\" RENAME TO t; ALTER TABLE t ADD COLUMN \"c€\" int").await;
        case.at_target("CREATE TABLE t (id int PRIMARY KEY)").await;
        let said = case.refused("schema_mismatch", 8).await;
        assert!(said.contains("public.t") && said.contains("c€"), "{said}");
        case.at_source("ALTER TABLE t DROP COLUMN \"c€\"; INSERT INTO t VALUES (1)").await;
        case.drain().await;
        // While the flow runs, an added column of such a name.
        case.at_source("ALTER TABLE t ADD COLUMN \"c€\" int; INSERT INTO t VALUES (2, 3)").await;
        for _ in 0..2 {
            let said = case.refused("schema_mismatch", 8).await;
            assert!(said.contains("public.t") && said.contains("c€"), "{said}");
        }
        assert!(case.status().await.to_string().contains("schema_mismatch"));
    }
}

/// An encoding, and bytes in it that are no characters of UTF8.
const NOT_UTF8: &[(&str, &str, &str)] = &[
    ("SQL_ASCII", "convert_from('\\xff', 'SQL_ASCII')", "22021"),
    ("WIN1252", "convert_from('\\x81', 'WIN1252')", "22P05"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c6_bytes_that_the_source_cannot_send_are_refused_by_row_and_by_transaction() {
    for major in majors().unwrap() {
        for (n, (encoding, bytes, state)) in NOT_UTF8.iter().enumerate() {
            let mut case = case(major, &format!("c6_bytes_{n}"), encoding, "UTF8").await;
            case.both("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE other (id int PRIMARY KEY)").await;
            // What is UTF8 by chance, or by agreement, passes.
            case.at_source("INSERT INTO t SELECT i, 'ü' FROM generate_series(1, 1999) i").await;
            case.at_source(&format!("INSERT INTO t VALUES (471108824, 'Zq7MARKER' || {bytes}), (8000, '')")).await;
            case.environment.push(("PGONCE_LOG", "trace"));
            for _ in 0..2 {
                let said = case.refused("source_not_ready", 6).await;
                let state = format!("SQLSTATE {state}");
                assert_told(&said, &["table public.t", "row 2000 of the copy", &state, "UTF8"]);
                assert_told(&case.ledger().await, &[]);
            }
            case.environment.clear();
            case.at_source("UPDATE t SET v = 'ö' WHERE id = 471108824").await;
            case.drain().await;
            case.assert_same("SELECT * FROM t ORDER BY id").await;
            let transaction = format!("INSERT INTO t VALUES (8001, 'ä'), (8002, 'Zq7MARKER' || {bytes})");
            let expected = [&*format!("SQLSTATE {state}"), "UTF8", "table public.t"];
            stops_at(&mut case, &transaction, "source_not_ready", 6, &expected).await;
            assert_eq!(case.there("SELECT count(*) FROM t").await, ["(2001)"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c6_between_two_databases_without_an_encoding() {
    for major in majors().unwrap() {
        let case = case(major, "c6_ascii", "SQL_ASCII", "SQL_ASCII").await;
        case.both("CREATE TABLE \"t ü\" (id int PRIMARY KEY, v text, f varchar(4))").await;
        case.at_source("INSERT INTO \"t ü\" VALUES (1, '日', 'üü')").await;
        case.drain().await;
        case.at_source("INSERT INTO \"t ü\" SELECT i, 'é', 'x' FROM generate_series(2, 9) i").await;
        case.at_source("UPDATE \"t ü\" SET v = 'ß' WHERE id < 3").await;
        case.drain().await;
        assert_eq!(case.assert_same("SELECT * FROM \"t ü\" ORDER BY id").await.len(), 9);
    }
}

/// Names of 63 letters that take two bytes each in UTF8: PostgreSQL would cut such a value of the type `name` short.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c6_a_value_of_type_name_is_never_cut_short() {
    for major in majors().unwrap() {
        let mut case = case(major, "c6_name", "LATIN1", "UTF8").await;
        case.both("CREATE TABLE t (id int PRIMARY KEY, n name); CREATE TABLE other (id int PRIMARY KEY)").await;
        case.at_source("INSERT INTO t VALUES (1, repeat('é', 31)), (2, repeat('é', 32))").await;
        let said = case.refused("schema_mismatch", 8).await;
        assert!(said.contains("table public.t ") && said.contains("column \"n\"") && said.contains("22001"), "{said}");
        assert!(said.contains("TYPE varchar(63)") && !said.contains('é'), "{said}");
        case.at_source("UPDATE t SET n = repeat('n', 63) WHERE id = 2").await;
        case.drain().await;
        case.at_source("INSERT INTO t SELECT id + 2, n FROM t").await;
        case.drain().await;
        case.assert_same("SELECT * FROM t ORDER BY id").await;
        let long = "INSERT INTO t VALUES (7, repeat('é', 63))";
        stops_at(&mut case, long, "transaction_failed", 7, &["table public.t", "column n", "22001"]).await;
        case.at_target("ALTER TABLE t ALTER n TYPE varchar(63)").await;
        case.drain().await;
        assert_eq!(case.assert_same("SELECT * FROM t ORDER BY id").await.len(), 5);
    }
}
