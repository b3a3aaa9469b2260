//! The values of `types.sql`, the types that they need, and the two sides that call these types by other OIDs.

use pgonce_testkit::majors;

use crate::common::Flow;
use crate::pair::Case;

/// Types that users make, in this order on the source.
const OWN_TYPES: &[&str] = &[
    r#"CREATE TYPE "Types; --"."Mood" AS ENUM ('sad', 'OK', 'it''s "fine"', '', 'ünïcödé',
        'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx')"#,
    // Not what the type's input function does, and not to be used.
    r#"CREATE FUNCTION "Types; --".wrong(text) RETURNS "Types; --"."Mood" IMMUTABLE LANGUAGE sql
        AS $$ SELECT enum_first(NULL::"Types; --"."Mood") $$"#,
    r#"CREATE CAST (text AS "Types; --"."Mood") WITH FUNCTION "Types; --".wrong"#,
    r#"CREATE DOMAIN "Types; --".small AS int CHECK (VALUE < 100)"#,
    r#"CREATE DOMAIN "Types; --".smaller AS "Types; --".small CHECK (VALUE < 50)"#,
    r#"CREATE DOMAIN "Types; --".code AS varchar(4)"#,
    r#"CREATE DOMAIN "Types; --".padded AS char(4)"#,
    r#"CREATE DOMAIN "Types; --".flags AS bit(3)"#,
    r#"CREATE DOMAIN "Types; --".price AS numeric(10, 2)"#,
    r#"CREATE DOMAIN "Types; --".list AS int[] CHECK (cardinality(VALUE) < 9)"#,
    r#"CREATE DOMAIN "Types; --".feeling AS "Types; --"."Mood""#,
    r#"CREATE DOMAIN "Types; --".email AS citext CHECK (VALUE LIKE '%@%')"#,
    r#"CREATE TYPE "Types; --".inner AS (a int, "B" text)"#,
    r#"CREATE DOMAIN "Types; --".thing AS "Types; --".inner"#,
    r#"CREATE TYPE "Types; --".outer AS (i "Types; --".inner, m "Types; --"."Mood", d "Types; --".smaller, l text[])"#,
    r#"CREATE TYPE "Types; --".single AS (alone text)"#,
    r#"CREATE TYPE "Types; --".shrunk AS (gone text, a int, b text)"#,
    r#"ALTER TYPE "Types; --".shrunk DROP ATTRIBUTE gone"#,
    r#"CREATE TABLE "Types; --"."Named like, this" (a int PRIMARY KEY, moods "Types; --"."Mood"[])"#,
    r#"CREATE TYPE "Types; --".span AS RANGE (subtype = float8, multirange_type_name = "Types; --".spans)"#,
    r#"CREATE TYPE "Types; --".words AS RANGE (subtype = text, collation = "C")"#,
];

/// Schemas that make unqualified names of these types mean them.
pub const PATH: &[&str] = &["public", "ext", "\"Other ext\""];

/// What an administrator may have set at the source, and at the target: it changes how values are printed or read.
const DEFAULTS: [&[(&str, &str)]; 2] = [
    &[
        ("DateStyle", "'German, DMY'"),
        ("IntervalStyle", "sql_standard"),
        ("TimeZone", "'Asia/Kolkata'"),
        ("extra_float_digits", "-15"),
        ("bytea_output", "escape"),
        ("xmloption", "document"),
        ("array_nulls", "off"),
        ("standard_conforming_strings", "off"),
        ("quote_all_identifiers", "on"),
        ("default_transaction_isolation", "serializable"),
        ("default_transaction_deferrable", "on"),
        ("search_path", "\"Types; --\""),
    ],
    &[
        ("DateStyle", "'SQL, MDY'"),
        ("IntervalStyle", "iso_8601"),
        ("TimeZone", "'America/St_Johns'"),
        ("extra_float_digits", "0"),
        ("bytea_output", "escape"),
        ("xmloption", "document"),
        ("array_nulls", "off"),
        ("standard_conforming_strings", "off"),
        ("default_text_search_config", "'pg_catalog.german'"),
        ("search_path", "\"Types; --\", pg_catalog"),
    ],
];

/// A type, and its values as SQL.
pub struct Edges {
    pub kind: String,
    pub values: Vec<String>,
}

/// The first and the last of the majors, in both directions.
pub fn across() -> [(u32, u32); 2] {
    let majors = majors().unwrap();
    let (first, last) = (majors[0], majors[majors.len() - 1]);
    [(first, last), (last, first)]
}

/// Makes the types on both sides of a case, so that they have other OIDs, and the extensions in other schemas.
pub async fn make_types(case: &Case) {
    let path = format!("SET search_path = {}", PATH.join(", "));
    case.both(&path).await;
    case.at_source("CREATE SCHEMA ext").await;
    case.at_target("CREATE SCHEMA \"Other ext\"").await;
    for extension in ["hstore", "citext", "ltree"] {
        case.at_source(&format!("CREATE EXTENSION {extension} SCHEMA ext")).await;
    }
    for extension in ["ltree", "hstore", "citext"] {
        case.at_target(&format!("CREATE EXTENSION {extension} SCHEMA \"Other ext\"")).await;
    }
    case.both("CREATE SCHEMA \"Types; --\"; CREATE SCHEMA filler").await;
    for (n, sql) in OWN_TYPES.iter().enumerate() {
        case.at_source(sql).await;
        case.at_target(&format!("CREATE TYPE filler.f{n} AS (a int)")).await;
        // The same attributes, but never another one before them.
        let there = if sql.contains("DROP ATTRIBUTE") { "" } else { sql };
        case.at_target(&there.replace("(gone text, ", "(")).await;
    }
    let oids = "SELECT typname, oid FROM pg_type WHERE typnamespace = '\"Types; --\"'::regnamespace";
    // By name: no type has on the target the OID that it has on the source.
    let (here, there) = (Flow::rows(&case.source, oids).await, case.there(oids).await);
    assert!(!here.is_empty() && here.iter().all(|oid| !there.contains(oid)), "the types must have other OIDs");
}

/// Sets, on each side, the database's defaults to something of its own.
pub async fn set_defaults(case: &Case) {
    for (name, value) in DEFAULTS[0] {
        case.at_source(&format!("ALTER DATABASE {} SET {name} = {value}", case.name)).await;
    }
    for (name, value) in DEFAULTS[1] {
        case.at_target(&format!("ALTER DATABASE {} SET {name} = {value}", case.name)).await;
    }
}

/// Reads `types.sql`: the types that both sides have.
pub async fn edges(case: &Case) -> Vec<Edges> {
    case.at_source(include_str!("../types.sql")).await;
    let sql = "SELECT type, array_agg(value ORDER BY id) FROM edge WHERE since <= $1 GROUP BY type ORDER BY min(id)";
    let both = i32::try_from(case.major.min(case.target_major)).unwrap();
    let rows = case.source.query(sql, &[&both]).await.unwrap();
    let edges: Vec<Edges> = rows.iter().map(|row| Edges { kind: row.get(0), values: row.get(1) }).collect();
    assert!(edges.iter().map(|edges| edges.values.len()).sum::<usize>() >= 400);
    edges
}
