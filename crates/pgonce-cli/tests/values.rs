//! Every value arrives as it was, by copy and by stream. Faults C1 to C8.

mod common;
mod pair;

use pair::Case;
use pgonce_testkit::majors;

const TYPES: &str = r#"
    CREATE SCHEMA "Types; --";
    CREATE TYPE "Types; --"."Mood" AS ENUM ('sad', 'OK', 'it''s "fine"', '');
    CREATE FUNCTION "Types; --".wrong(text) RETURNS "Types; --"."Mood" IMMUTABLE LANGUAGE sql
        AS $$ SELECT enum_first(NULL::"Types; --"."Mood") $$;
    CREATE CAST (text AS "Types; --"."Mood") WITH FUNCTION "Types; --".wrong;
    CREATE DOMAIN "Types; --".small AS int CHECK (VALUE < 100);
    CREATE DOMAIN "Types; --".smaller AS "Types; --".small CHECK (VALUE < 50);
    CREATE DOMAIN "Types; --".code AS varchar(4);
    CREATE TYPE "Types; --".inner AS (a int, "B" text);
    CREATE TYPE "Types; --".outer AS (i "Types; --".inner, m "Types; --"."Mood", d "Types; --".smaller, l text[]);
    CREATE TYPE "Types; --".span AS RANGE (subtype = float8);
    CREATE EXTENSION hstore;
    CREATE EXTENSION citext;
"#;

/// Types, and values as SQL. NULL is added to each.
const VALUES: &[(&str, &[&str])] = &[
    // C1
    ("int8[]", &["'[0:1]={7,8}'", "'{}'", "'{NULL,1}'", "'[-2:-1][5:6]={{1,2},{3,NULL}}'"]),
    ("text[]", &["'{{a,b},{c,d}}'", r#"'{NULL,"NULL",""}'"#, r#"ARRAY['a"b', 'c\d', 'e,f', '{}', E'\t', ' ']"#]),
    (r#""Types; --"."Mood"[]"#, &[r#"ARRAY['OK', '', 'it''s "fine"', NULL]::"Types; --"."Mood"[]"#]),
    (r#""Types; --".inner[]"#, &[r#"ARRAY[ROW(1, 'x,"y"'), ROW(NULL, ''), NULL]::"Types; --".inner[]"#]),
    (r#""Types; --".smaller[]"#, &["'{1,NULL,49}'"]),
    ("char(3)[]", &["'{a,\"b  \"}'"]),
    // C2
    ("json", &["E'{\"a\":1,\\n  \"a\": 1.0 , \"b\":\"\\\\u00e9\"}'", "' 1 '", "'null'", "'\"null\"'"]),
    ("jsonb", &["'18446744073709551616'", "'{\"a\":1.10,\"a\":2}'", "'null'", "'[1e3, -0.0]'"]),
    // C3
    (
        "numeric",
        &["'NaN'", "'Infinity'", "'-Infinity'", "1e131071", "'0.00000000000000006938893903907228'", "1.10", "1.1"],
    ),
    ("numeric(10, 2)", &["1.1", "-0.00", "'NaN'"]),
    // C4
    (
        "float8",
        &["'-216237.00000035969'", "'-0'", "'0'", "'NaN'", "'-Infinity'", "'5e-324'", "'1.7976931348623157e308'"],
    ),
    ("float4", &["'1.17549435e-38'", "'3.4028235e38'", "'-0'", "'1e-45'", "0.1"]),
    ("bigint", &["2129020", "'-9223372036854775808'"]),
    // C5
    ("date", &["'infinity'", "'-infinity'", "'4713-01-01 BC'", "'10000-01-01'", "'5874897-12-31'"]),
    ("timestamp", &["'infinity'", "'0044-03-15 12:00:00.000001 BC'", "'294276-12-31 23:59:59.999999'"]),
    ("timestamptz", &["'-infinity'", "'1890-01-01 00:00:00+00'", "'10000-06-01 01:02:03.4+05:30'"]),
    ("time", &["'24:00:00'", "'00:00:00.000001'"]),
    ("timetz", &["'24:00:00+15:59:59'", "'12:34:56.789-01:02:03'"]),
    ("interval", &["'-1 year 2 mons -3 days 04:05:06.000007'", "'1 mon -1 days'", "'178000000 years'", "'0'"]),
    // C6
    (
        "text",
        &[
            r#"E'tab\t nl\n cr\r bs\\ q'' dq" \b\f\v'"#,
            r"E'\\.'",
            r"'\N'",
            "''",
            "' '",
            "chr(1114111)",
            "'NULL'",
            r"'\x'",
        ],
    ),
    (
        "bytea",
        &["(SELECT string_agg(set_byte('x', 0, i), '' ORDER BY i) FROM generate_series(0, 255) i)", "''", r"'\\000'"],
    ),
    // C7
    (r#""Types; --"."Mood""#, &["'sad'", "'OK'", "'it''s \"fine\"'", "''"]),
    (r#""Types; --".smaller"#, &["49", "-1"]),
    (r#""Types; --".code"#, &["'abcd'", "''", "'a  '"]),
    (
        r#""Types; --".outer"#,
        &[
            r#"ROW(ROW(1, 'a "b" (c), \d'), 'OK', 7, '{x,NULL}')::"Types; --".outer"#,
            "'(,,,)'",
            r#"'("(,)",sad,1,{})'"#,
        ],
    ),
    (r#""Types; --".span"#, &["'[1.5,2.5)'", "'empty'", "'(,-0]'"]),
    ("int4range", &["'[1,5]'", "'empty'", "'(,)'"]),
    ("int4multirange", &["'{[1,3), [5,7)}'", "'{}'"]),
    ("tstzrange", &["'[2020-01-01, infinity]'", "'(,2020-01-01)'"]),
    ("hstore", &[r#"'"a b"=>"c\"d", e=>NULL, f=>"NULL"'"#, "''"]),
    ("citext", &["'MiXed'", "''"]),
    ("xml", &["'<a>1</a><b/>'", "'text only'", "'<?xml version=\"1.0\"?><a/>'"]),
    ("bit(5)", &["B'10101'"]),
    ("bit varying", &["B''", "B'1'", "B'00000000000000001'"]),
    ("inet", &["'192.168.0.1/24'", "'::ffff:1.2.3.4'", "'0.0.0.0/0'"]),
    ("money", &["-12345.67", "'0.01'"]),
    ("tsvector", &["'a:1A,3 ''b c'':2'", "''"]),
    ("oid", &["4294967295"]),
    ("\"char\"", &["'x'", "''", r"E'\''", r"E'\\'"]),
    ("char(6)", &["'ab'", "''", "'abcdef'"]),
    ("varchar(6)", &["'ab  '", "''"]),
    ("name", &["'n'", "repeat('n', 63)"]),
    ("uuid", &["'00000000-0000-0000-0000-00000000000a'"]),
    ("boolean", &["true", "false"]),
    ("point", &["'(0.1,-0)'", "'(NaN,Infinity)'"]),
    ("polygon", &["'((0,0),(1e-300,1),(1,0))'"]),
    ("macaddr8", &["'08:00:2b:01:02:03:04:05'"]),
    ("pg_lsn", &["'FFFFFFFF/FFFFFFFF'"]),
    ("regclass", &["'pg_class'"]),
    ("int2vector", &["'1 2 3'"]),
    ("jsonpath", &["'$.a[*] ? (@ > 1)'"]),
];

/// What an administrator may have set, and what changes how values are printed or read.
const DEFAULTS: &[(&str, &str)] = &[
    ("DateStyle", "'German, DMY'"),
    ("IntervalStyle", "sql_standard"),
    ("TimeZone", "'Asia/Kolkata'"),
    ("extra_float_digits", "-15"),
    ("bytea_output", "escape"),
    ("xmloption", "document"),
    ("array_nulls", "off"),
    ("standard_conforming_strings", "off"),
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_deferrable", "on"),
    ("search_path", "\"Types; --\""),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c1_to_c7_every_value_arrives_as_it_was_by_copy_and_by_stream() {
    for major in majors().unwrap() {
        let case = Case::new(major, "values").await;
        let xml: bool = case
            .source
            .query_one("SELECT EXISTS (SELECT FROM pg_settings WHERE name = 'xmlbinary')", &[])
            .await
            .unwrap()
            .get(0);
        let values: Vec<_> = VALUES.iter().filter(|(kind, _)| xml || *kind != "xml").enumerate().collect();
        case.both(TYPES).await;
        for (n, (kind, _)) in &values {
            case.both(&format!(
                "CREATE TABLE t{n} (id int PRIMARY KEY, v {kind});
                 CREATE TABLE f{n} (id int, v {kind}); ALTER TABLE f{n} REPLICA IDENTITY FULL"
            ))
            .await;
        }
        for (n, (kind, values)) in &values {
            for (i, value) in values.iter().chain(&["NULL"]).enumerate() {
                for table in ["t", "f"] {
                    case.at_source(&format!("INSERT INTO {table}{n} VALUES ({i}, ({value})::{kind})")).await;
                }
            }
        }
        for (name, value) in DEFAULTS {
            case.both(&format!("ALTER DATABASE {} SET {name} = {value}", case.name)).await;
        }
        case.drain().await;
        let compare = async |when: &str| {
            for (n, (kind, _)) in &values {
                for table in ["t", "f"] {
                    let rows = case.assert_same(&format!("SELECT id, v FROM {table}{n} ORDER BY id")).await;
                    assert!(rows.len() > 1, "{kind} {when}");
                }
            }
        };
        compare("copied").await;
        for (n, _) in &values {
            // One row at a time, since the tables take turns; then as a run; then by update.
            case.at_source(&format!(
                "DO $$ DECLARE r record; BEGIN FOR r IN SELECT * FROM t{n} ORDER BY id LOOP
                     INSERT INTO t{n} VALUES (r.id + 100, r.v); INSERT INTO f{n} VALUES (r.id + 100, r.v);
                 END LOOP; END $$"
            ))
            .await;
            for table in ["t", "f"] {
                case.at_source(&format!(
                    "INSERT INTO {table}{n} SELECT id * 10 + i + 1000, v
                         FROM {table}{n}, generate_series(1, 4) i WHERE id < 100;
                     INSERT INTO {table}{n} SELECT id + 200, NULL FROM {table}{n} WHERE id < 100;
                     UPDATE {table}{n} u SET v = (SELECT v FROM {table}{n} s WHERE s.id = u.id - 200)
                         WHERE id BETWEEN 200 AND 299;
                     UPDATE {table}{n} SET id = -id - 1 WHERE id < 50;
                     UPDATE {table}{n} SET v = NULL WHERE id = 1001;
                     DELETE FROM {table}{n} WHERE id BETWEEN 1002 AND 1003"
                ))
                .await;
            }
        }
        case.drain().await;
        compare("streamed").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c6_a_source_in_latin1_keeps_its_letters_and_its_names() {
    let (table, column) = ("\"Stra\u{df}e\"", "\"gr\u{f6}\u{df}e\"");
    for major in majors().unwrap() {
        let mut case = Case::new(major, "c6_latin1").await;
        case.at_source("CREATE DATABASE c6_latin1_source TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'").await;
        case.source = case.pair.source.connect("c6_latin1_source").await.unwrap();
        case.source_url = case.pair.source.url("c6_latin1_source");
        case.both(&format!("CREATE TABLE {table} (id int PRIMARY KEY, {column} text)")).await;
        case.at_source(&format!("INSERT INTO {table} VALUES (1, '\u{e9}\u{ff}\u{ac}')")).await;
        case.drain().await;
        case.assert_same(&format!("SELECT * FROM {table}")).await;
        case.at_source(&format!("INSERT INTO {table} SELECT i, '\u{fc}\u{df}' FROM generate_series(2, 9) i")).await;
        case.at_source(&format!("UPDATE {table} SET {column} = '\u{d6}' WHERE id < 4")).await;
        case.drain().await;
        let rows = case.assert_same(&format!("SELECT * FROM {table} ORDER BY id")).await;
        assert_eq!((rows.len(), rows[0].as_str(), rows[8].as_str()), (9, "(1,\u{d6})", "(9,\u{fc}\u{df})"));
    }
}

/// Keys of types whose equality is not that of their text, or whose operators are not where others are.
const KEYS: &[(&str, &[&str])] = &[
    ("numeric", &["1.10", "'NaN'", "1e100"]),
    ("float8", &["'-0'", "'NaN'", "0.1"]),
    ("citext", &["'MiXed'", "'other'"]),
    ("hstore", &["'a=>1'", "''"]),
    ("char(5)", &["'ab'", "''"]),
    ("varchar(5)", &["'ab '", "''"]),
    ("text COLLATE \"C\"", &["'ab'", "''"]),
    ("text COLLATE ci", &["'Ab'", "'B'"]),
    (r#""Types; --"."Mood""#, &["'OK'", "''"]),
    (r#""Types; --".smaller"#, &["1", "2"]),
    (r#""Types; --".inner"#, &["'(1,x)'", "'(2,)'"]),
    ("int4range", &["'[1,3]'", "'empty'"]),
    ("text[]", &["'{a,NULL}'", "'[0:0]={a}'"]),
    ("timestamptz", &["'infinity'", "'2020-01-01 00:00:00.000001+00'"]),
    ("bytea", &[r"'\x00ff'", "''"]),
    ("name", &["'n'", "'N'"]),
    ("\"char\"", &["'a'", "''"]),
    ("inet", &["'1.2.3.4'", "'1.2.3.4/24'"]),
    ("uuid", &["'00000000-0000-0000-0000-00000000000a'"]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_any_type_finds_its_row() {
    for major in majors().unwrap() {
        let case = Case::new(major, "keys").await;
        case.both(TYPES).await;
        // Servers without ICU have no collation of this kind.
        let ci = "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)";
        let icu = case.source.batch_execute(ci).await.is_ok() && case.target.batch_execute(ci).await.is_ok();
        let keys: Vec<_> = KEYS.iter().filter(|(kind, _)| icu || !kind.ends_with(" ci")).enumerate().collect();
        for (n, (kind, values)) in &keys {
            case.both(&format!(
                "CREATE TABLE k{n} (id {kind}, part int, v text, PRIMARY KEY (part, id));
                 CREATE TABLE f{n} (id {kind} NOT NULL, part int NOT NULL, v text);
                 ALTER TABLE f{n} REPLICA IDENTITY FULL"
            ))
            .await;
            case.at_target(&format!("CREATE INDEX ON f{n} (id)")).await;
            for value in *values {
                case.at_source(&format!("INSERT INTO k{n} VALUES ({value}, 1, 'copied')")).await;
                case.at_source(&format!("INSERT INTO f{n} VALUES ({value}, 1, 'copied')")).await;
            }
        }
        case.drain().await;
        for (n, (_, values)) in &keys {
            for table in ["k", "f"] {
                for value in *values {
                    case.at_source(&format!("INSERT INTO {table}{n} VALUES ({value}, 2, 'streamed')")).await;
                }
                case.at_source(&format!("UPDATE {table}{n} SET v = 'changed'; UPDATE {table}{n} SET part = part + 10"))
                    .await;
                case.at_source(&format!("DELETE FROM {table}{n} WHERE part = 12")).await;
            }
        }
        case.drain().await;
        for (n, (kind, values)) in &keys {
            for table in ["k", "f"] {
                let sql = format!("SELECT id::text, part, v FROM {table}{n} ORDER BY id::text COLLATE \"C\", part");
                assert_eq!(case.assert_same(&sql).await.len(), values.len(), "{kind}");
            }
        }
    }
}
