//! Keys of every type that an index takes: the row of an update or a delete is found.

use pgonce_testkit::majors;

use crate::edges::{edges, make_types, set_defaults};
use crate::pair::Case;

/// SQLSTATE of a type that btree has no operators for.
const NO_OPERATORS: &str = "42704";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c4_c7_a_key_of_any_type_finds_its_row() {
    for major in majors().unwrap() {
        let case = Case::new(major, "keys").await;
        make_types(&case).await;
        // An array of boxes is taken for a key as long as no two have to be compared.
        let edges = edges(&case).await.into_iter().filter(|e| e.kind != "box[]");
        let mut kinds: Vec<(String, Vec<String>)> = edges.map(|e| (e.kind, e.values)).collect();
        kinds.push(("text COLLATE \"C\"".into(), vec!["'ab'".into(), "''".into()]));
        // Servers without ICU have no collation of this kind.
        let ci = "CREATE COLLATION public.ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)";
        if case.source.batch_execute(ci).await.is_ok() && case.target.batch_execute(ci).await.is_ok() {
            kinds.push(("text COLLATE public.ci".into(), vec!["'Ab'".into(), "'B'".into()]));
        }
        let mut keyed = Vec::new();
        case.both("BEGIN").await;
        for (n, (kind, values)) in kinds.iter().enumerate() {
            let create = format!(
                "CREATE TABLE k{n} (id {kind}, part int, v text, PRIMARY KEY (part, id));
                 CREATE TABLE l{n} (id {kind} NOT NULL, part int, v text);
                 ALTER TABLE l{n} REPLICA IDENTITY FULL"
            );
            case.at_source("SAVEPOINT before").await;
            if let Err(error) = case.source.batch_execute(&create).await {
                assert_eq!(error.code().map(|code| code.code()), Some(NO_OPERATORS), "{kind}: {error:?}");
                case.at_source("ROLLBACK TO before").await;
                continue;
            }
            case.at_target(&format!("{create}; CREATE INDEX ON l{n} (id)")).await;
            let plain = kind.split(" COLLATE").next().unwrap();
            for (i, value) in values.iter().enumerate() {
                for table in ["k", "l"] {
                    // Longer ones do not fit into an index.
                    case.at_source(&format!(
                        "INSERT INTO {table}{n} SELECT ({value})::{plain}, {i}, 'copied'
                         WHERE length((({value})::{plain})::text) < 500"
                    ))
                    .await;
                }
            }
            keyed.push((n, kind));
        }
        case.both("COMMIT").await;
        for kind in ["numeric", "hstore", "citext", "ltree", "bytea", "\"char\"", "\"Types; --\".outer", "text[]"] {
            assert!(keyed.iter().any(|(_, keyed)| *keyed == kind), "{kind}");
        }
        assert!(keyed.len() > 80, "{}", keyed.len());
        set_defaults(&case).await;
        case.drain().await;
        for table in ["k", "l"] {
            case.at_source("BEGIN").await;
            for (n, _) in &keyed {
                case.at_source(&format!(
                    "INSERT INTO {table}{n} SELECT id, part + 100, 'streamed' FROM {table}{n};
                     UPDATE {table}{n} SET v = 'changed'; UPDATE {table}{n} SET part = part + 1000;
                     DELETE FROM {table}{n} WHERE part % 2 = 1 AND part < 1100 OR part % 2 = 0 AND part >= 1100"
                ))
                .await;
            }
            case.at_source("COMMIT").await;
        }
        case.drain().await;
        for (n, kind) in &keyed {
            for table in ["k", "l"] {
                let sql = format!("SELECT id, part, v FROM {table}{n} ORDER BY part");
                assert!(!case.assert_same(&sql).await.is_empty(), "{kind}");
            }
        }
    }
}

/// Equal, and not the same: the row is found by the key that it has, and gets the one that it shall have.
const EQUAL: &[(&str, &str, &str)] = &[
    ("numeric", "1.1", "1.10"),
    ("double precision", "'0'", "'-0'"),
    ("real", "'-0'", "'0'"),
    ("citext", "'mixed'", "'MiXed'"),
    ("interval", "'1 mon'", "'30 days'"),
    ("numrange", "'[1.0,2]'", "'[1.00,2.0]'"),
    ("numeric[]", "'{1.0}'", "'{1.00}'"),
    ("jsonb", "'[1.0]'", "'[1.00]'"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c3_c4_a_key_that_changes_into_an_equal_one_arrives_as_it_is() {
    for major in majors().unwrap() {
        let case = Case::new(major, "equal").await;
        make_types(&case).await;
        for (n, (kind, first, _)) in EQUAL.iter().enumerate() {
            case.both(&format!(
                "CREATE TABLE e{n} (id {kind} PRIMARY KEY, v text);
                 CREATE TABLE f{n} (id {kind} PRIMARY KEY, v text); ALTER TABLE f{n} REPLICA IDENTITY FULL"
            ))
            .await;
            case.at_source(&format!("INSERT INTO e{n} VALUES ({first}, 'a'); INSERT INTO f{n} TABLE e{n}")).await;
        }
        case.drain().await;
        for (n, (_, first, second)) in EQUAL.iter().enumerate() {
            for table in ["e", "f"] {
                case.at_source(&format!(
                    "UPDATE {table}{n} SET id = {second}; UPDATE {table}{n} SET v = 'b';
                     UPDATE {table}{n} SET id = {first}, v = 'c'; UPDATE {table}{n} SET id = {second}"
                ))
                .await;
            }
        }
        case.drain().await;
        for n in 0..EQUAL.len() {
            for table in ["e", "f"] {
                assert_eq!(case.assert_same(&format!("SELECT id, v FROM {table}{n}")).await.len(), 1);
            }
        }
        for n in 0..EQUAL.len() {
            case.at_source(&format!("DELETE FROM e{n}; DELETE FROM f{n}")).await;
        }
        case.drain().await;
        for n in 0..EQUAL.len() {
            assert_eq!(case.there(&format!("SELECT count(*) FROM e{n}, f{n}")).await, ["(0)"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c7_a_key_that_the_target_has_no_index_for_is_compared_by_its_own_operator() {
    for major in majors().unwrap() {
        let case = Case::new(major, "unindexed").await;
        make_types(&case).await;
        let kinds = ["hstore", "ltree", "citext", "int", "numeric", "\"Types; --\".\"Mood\"", "text[]"];
        let values = ["'a=>1'", "'a.b'", "'Ab'", "7", "1.0", "'OK'", "'{a}'"];
        for (n, (kind, value)) in kinds.iter().zip(values).enumerate() {
            case.at_source(&format!("CREATE TABLE n{n} (id {kind} PRIMARY KEY, v text)")).await;
            case.at_target(&format!("CREATE TABLE n{n} (id {kind}, v text)")).await;
            case.at_source(&format!("INSERT INTO n{n} VALUES ({value}, 'copied')")).await;
        }
        case.drain().await;
        for n in 0..kinds.len() {
            case.at_source(&format!("UPDATE n{n} SET v = 'changed'")).await;
        }
        case.drain().await;
        for n in 0..kinds.len() {
            assert_eq!(case.assert_same(&format!("SELECT id, v FROM n{n}")).await.len(), 1);
            case.at_source(&format!("DELETE FROM n{n}")).await;
        }
        case.drain().await;
        for (n, kind) in kinds.iter().enumerate() {
            assert_eq!(case.there(&format!("SELECT count(*) FROM n{n}")).await, ["(0)"], "{kind}");
        }
    }
}
