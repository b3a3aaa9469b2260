//! Values of every kind arrive as they were, written one by one and in runs.

mod support;

use pgonce::destination::Destination;
use pgonce::pgoutput::{Column, ReplicaIdentity};
use support::{Feed, NULL, Table, Target, t};

const TYPES: &str = r#"
    create schema "Odd";
    create type "Odd"."Mood" as enum ('so so', 'it''s "fine"', 'A,b');
    create domain d1 as varchar(5);
    create domain d2 as d1 check (value <> 'never');
    create domain d3 as numeric(6,2);
    create type pair as (a int, "B c" text);
    create type nested as (p pair, moods "Odd"."Mood"[]);
    create domain dpair as pair;
"#;

/// A type, and values of it in PostgreSQL's own text format.
const VALUES: &[(&str, &[&str])] = &[
    ("bool", &["t", "f"]),
    ("int2", &["-32768", "32767"]),
    ("bigint", &["2129020", "-9223372036854775808"]),
    ("oid", &["4294967295"]),
    ("numeric", &["NaN", "Infinity", "-Infinity", "0.00000000000000006938893903907228", "1.10", "1.1"]),
    ("numeric(10,2)", &["1.10", "-0.01"]),
    ("float8", &["-216237.0000003597", "-0", "NaN", "1e+308"]),
    ("float4", &["3.4028235e+38", "1e-45"]),
    ("money", &["$1,234.56", "-$0.01"]),
    ("text", &["", "\t\n\\\r'\"", "\u{10FFFF}é", "NULL", "{}", "\\N", "\\."]),
    ("varchar(5)", &["ab   ", "éééé"]),
    ("char(5)", &["ab   ", "     "]),
    ("bpchar", &["ab  "]),
    ("\"char\"", &["x", ""]),
    ("name", &["a name"]),
    ("bytea", &["\\x", "\\x00ff5c27"]),
    ("bit(3)", &["101"]),
    ("bit", &["1"]),
    ("varbit(5)", &["", "10101"]),
    ("varbit", &["1010101010101010101010101010101010101"]),
    ("date", &["infinity", "-infinity", "0044-03-15 BC", "10000-01-01"]),
    ("time(3)", &["24:00:00", "01:02:03.123"]),
    ("timetz", &["12:34:56.789+01:02:03"]),
    ("timestamp", &["infinity", "0001-01-01 00:00:00 BC"]),
    ("timestamptz(0)", &["2000-01-01 00:00:00+00"]),
    ("interval", &["-1 mons +2 days -03:04:05.678", "00:00:00"]),
    ("interval day to second (2)", &["1 day 00:00:01.25"]),
    ("json", &["{\"a\": 1,\n \"a\":  2}", "null"]),
    ("jsonb", &["18446744073709551616", "{\"a\": [1, null]}"]),
    ("jsonpath", &["$.\"a\"[*]"]),
    ("xml", &["<a>\n<b/>é</a>", "no element"]),
    ("uuid", &["00000000-0000-0000-0000-0000000000ff"]),
    ("inet", &["::1", "10.0.0.1/8"]),
    ("cidr", &["10.0.0.0/8"]),
    ("macaddr", &["08:00:2b:01:02:03"]),
    ("point", &["(1.5,-0)"]),
    ("polygon", &["((0,0),(1,1),(1,0))"]),
    ("tsvector", &["'a':1A 'b''c':2"]),
    ("tsquery", &["'a' & !'b'"]),
    ("pg_lsn", &["16/B374D848"]),
    ("regclass", &["pg_class", "12345678", "-"]),
    ("int4range", &["[1,5)", "empty", "(,)"]),
    ("int4multirange", &["{[1,3),[5,7)}", "{}"]),
    ("tstzrange", &["[\"2000-01-01 00:00:00+00\",infinity)"]),
    ("int8[]", &["[0:1]={7,8}", "{}", "{{1,2},{3,NULL}}"]),
    ("text[]", &["{{a,b},{c,d}}", "{NULL,\"NULL\",\"\",\"a,\\\"\\\\b\"}"]),
    ("varchar(3)[]", &["{abc,\"a b\"}"]),
    ("bit(3)[]", &["{101,111}"]),
    ("char(3)[]", &["{\"a  \"}"]),
    ("\"Odd\".\"Mood\"", &["so so", "it's \"fine\"", "A,b"]),
    ("\"Odd\".\"Mood\"[]", &["{\"so so\",\"it's \\\"fine\\\"\",\"A,b\"}"]),
    ("d1", &["abcde"]),
    ("d2", &["abc"]),
    ("d2[]", &["{abc,\"d e\"}"]),
    ("d3", &["1.50"]),
    ("pair", &["(1,\"a \"\"b\"\",c\")", "(,)"]),
    ("dpair", &["(1,x)"]),
    ("pair[]", &["{\"(1,a)\",\"(,\\\"b c\\\")\"}"]),
    ("nested", &["(\"(1,\"\"x y\"\")\",\"{\"\"so so\"\"}\")"]),
];

#[tokio::test]
async fn c1_to_c7_values_arrive_as_they_were_in_runs_and_one_by_one() {
    for target in Target::each("values").await {
        target.sql(TYPES).await;
        let mut feed = Feed::new();
        let mut sink = target.open().await;
        for (number, (name, values)) in VALUES.iter().enumerate() {
            target.sql(&format!("create table one_{number}(v {name}); create table run_{number}(v {name})")).await;
            let number = u32::try_from(number).unwrap();
            let table = |kind: &str, oid| Table::new(oid, &format!("{kind}_{number}"), ReplicaIdentity::Full, &["v"]);
            let (one, run) = (table("one", 2 * number + 1), table("run", 2 * number + 2));
            feed.describe(&one);
            feed.describe(&run);
            // Enough for a run, and NULL among them.
            let rows: Vec<Column<'_>> =
                values.iter().map(|v| t(v)).chain([NULL]).cycle().take((values.len() + 1) * 4).collect();
            let many = feed.transaction(|tx| rows.iter().for_each(|row| tx.insert(&run, &[*row])));
            sink.write(&[many]).await.unwrap_or_else(|stop| panic!("{name} in a run: {stop}"));
            for row in &rows[..=values.len()] {
                let stop = sink.write(&[feed.insert(&one, &[*row])]).await;
                stop.unwrap_or_else(|stop| panic!("{name}: {stop}"));
            }
            let mut expected: Vec<String> = values.iter().map(|v| (*v).to_owned()).collect();
            expected.push("NULL".into());
            let query = |kind: &str| format!("copy (select v from {kind}_{number} order by ctid) to stdout");
            let (alone, in_run) = (copied(&target, &query("one")).await, copied(&target, &query("run")).await);
            assert_eq!(alone, expected, "{name}");
            assert_eq!(in_run, std::iter::repeat_n(expected, 4).flatten().collect::<Vec<_>>(), "{name}");
            // Each is found again by its image.
            let gone = feed.transaction(|tx| rows.iter().for_each(|row| tx.delete(&run, &[*row])));
            sink.write(&[gone]).await.unwrap_or_else(|stop| panic!("{name} deleted: {stop}"));
            assert_eq!(target.number(&format!("select count(*) from run_{number}")).await, 0, "{name}");
        }
    }
}

/// One column's values as COPY writes them, with its escapes undone.
async fn copied(target: &Target, sql: &str) -> Vec<String> {
    use std::pin::pin;

    use futures_util::TryStreamExt;
    // The pins of every connection, for the tests' own.
    target.sql("set timezone = 'UTC'; set intervalstyle = postgres; set datestyle = iso; set lc_monetary = 'C'").await;
    let mut stream = pin!(target.client.copy_out(sql).await.unwrap());
    let mut text = Vec::new();
    while let Some(piece) = stream.try_next().await.unwrap() {
        text.extend_from_slice(&piece);
    }
    String::from_utf8(text).unwrap().lines().map(unescaped).collect()
}

fn unescaped(line: &str) -> String {
    if line == "\\N" {
        return "NULL".into();
    }
    let mut out = String::new();
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        out.push(match c {
            '\\' => match characters.next() {
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some(other) => other,
                None => panic!("{line:?}"),
            },
            other => other,
        });
    }
    out
}

#[tokio::test]
async fn c8_names_of_types_and_columns_in_runs() {
    for target in Target::each("odd_names").await {
        target.sql(TYPES).await;
        target.sql(r#"create table "Order"("order" "Odd"."Mood", "Mixed Case" text, c0 int, u int)"#).await;
        let table = Table::new(1, "Order", ReplicaIdentity::Full, &["order", "Mixed Case", "c0", "u"]);
        let mut feed = Feed::new();
        feed.describe(&table);
        let mut sink = target.open().await;
        let row = [t("so so"), t("x"), t("1"), NULL];
        let many = feed.transaction(|tx| (0..5).for_each(|_| tx.insert(&table, &row)));
        sink.write(&[many]).await.unwrap();
        assert_eq!(target.rows(r#"select distinct t::text from "Order" t"#).await, [r#"("so so",x,1,)"#]);
    }
}

#[tokio::test]
async fn a_domain_refuses_what_is_too_long_instead_of_cutting_it() {
    for target in Target::each("domain_length").await {
        target.sql(TYPES).await;
        target.sql("create table t(id int primary key, v d2, b bit(3))").await;
        let table = Table::new(1, "t", ReplicaIdentity::Default, &["*id", "v", "b"]);
        for (value, bits) in [("abcdef", "101"), ("abc", "1011")] {
            let mut feed = Feed::new();
            feed.describe(&table);
            let mut sink = target.open().await;
            let id: Vec<String> = (0..6).map(|i| i.to_string()).collect();
            let many = feed.transaction(|tx| id.iter().for_each(|i| tx.insert(&table, &[t(i), t(value), t(bits)])));
            let stop = sink.write(&[many]).await.unwrap_err();
            assert_eq!(stop.code(), "transaction_failed");
            assert_eq!(target.number("select count(*) from t").await, 0);
        }
    }
}

#[tokio::test]
async fn casts_that_users_made_from_text_are_not_used() {
    for target in Target::each("user_cast").await {
        target
            .sql(
                "create type mood as enum ('a', 'b');
                 create function wrong(text) returns mood language sql as $$ select 'b'::mood $$;
                 create cast (text as mood) with function wrong(text);
                 create table t(id int primary key, m mood)",
            )
            .await;
        let table = Table::new(1, "t", ReplicaIdentity::Default, &["*id", "m"]);
        let mut feed = Feed::new();
        feed.describe(&table);
        let mut sink = target.open().await;
        let id: Vec<String> = (0..6).map(|i| i.to_string()).collect();
        let many = feed.transaction(|tx| id.iter().for_each(|i| tx.insert(&table, &[t(i), t("a")])));
        sink.write(&[many]).await.unwrap();
        assert_eq!(target.rows("select distinct m::text from t").await, ["a"]);
    }
}
