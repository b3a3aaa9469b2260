//! The types of columns, and values of each.

use crate::Random;

/// A type that a column can have.
#[derive(Debug)]
pub(crate) struct Kind {
    /// As it is written behind the column's name.
    pub(crate) name: &'static str,
    /// Values as SQL expressions.
    values: &'static [&'static str],
    /// A value for each number, all of them different: the type can be a key's. Numbers are below 1,000.
    key: Option<fn(u64) -> String>,
    /// A value too large to stay in its row.
    large: Option<fn(u64) -> String>,
    /// How the type's `=` goes with what the values look like.
    pub(crate) equality: Equality,
    /// No part of it is defined by a user.
    pub(crate) built_in: bool,
}

/// What a type's default equality operator says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Equality {
    /// There is none.
    None,
    /// Values that are printed differently can be equal.
    Loose,
    /// Only the same value is equal.
    Exact,
}

/// Types that a user defines, on every side alike.
pub(crate) const USER_TYPES: &str = r#"
CREATE SCHEMA "Ty; pes";
CREATE TYPE "Ty; pes"."Mood" AS ENUM ('sad', 'OK', 'it''s "fine"', '', 'e,f', '(g)');
CREATE DOMAIN "Ty; pes".positive AS int CHECK (VALUE > 0);
CREATE DOMAIN "Ty; pes".small AS "Ty; pes".positive CHECK (VALUE < 2000);
CREATE DOMAIN "Ty; pes".code AS varchar(8);
CREATE TYPE "Ty; pes".pair AS (a int, "B" text);
CREATE TYPE "Ty; pes".deep AS (p "Ty; pes".pair, m "Ty; pes"."Mood", l text[], s "Ty; pes".small);
CREATE TYPE "Ty; pes".span AS RANGE (subtype = float8);
CREATE DOMAIN "Ty; pes".numbers AS int[] CHECK (array_length(VALUE, 1) IS DISTINCT FROM 99);
CREATE DOMAIN "Ty; pes".whole_pair AS "Ty; pes".pair CHECK ((VALUE).a IS DISTINCT FROM 99);
"#;

const fn exact(name: &'static str, values: &'static [&'static str], key: Option<fn(u64) -> String>) -> Kind {
    Kind { name, values, key, large: None, equality: Equality::Exact, built_in: true }
}

const fn loose(name: &'static str, values: &'static [&'static str], key: Option<fn(u64) -> String>) -> Kind {
    Kind { equality: Equality::Loose, ..exact(name, values, key) }
}

const fn unequal(name: &'static str, values: &'static [&'static str]) -> Kind {
    Kind { equality: Equality::None, ..exact(name, values, None) }
}

impl Kind {
    const fn user(self) -> Kind {
        Kind { built_in: false, ..self }
    }

    const fn large(self, large: fn(u64) -> String) -> Kind {
        Kind { large: Some(large), ..self }
    }

    pub(crate) fn is_key(&self) -> bool {
        self.key.is_some()
    }

    pub(crate) fn can_be_large(&self) -> bool {
        self.large.is_some()
    }

    /// The value with this number, of a type that can be a key's.
    pub(crate) fn key_value(&self, number: u64) -> String {
        self.key.map_or_else(|| self.values[0].to_owned(), |key| key(number))
    }

    /// Any value but NULL.
    pub(crate) fn value(&self, random: &mut Random) -> String {
        match (self.large, self.key) {
            (Some(large), _) if random.percent(15) => large(random.below(1_000)),
            (_, Some(key)) if random.percent(40) => key(random.below(1_000)),
            _ => (*random.pick(self.values)).to_owned(),
        }
    }
}

/// About 6 kB that hardly compress.
fn large_text(salt: u64) -> String {
    format!("(SELECT string_agg(md5({salt}::text || g), '') FROM generate_series(1, 190) g)")
}

fn number(n: u64) -> String {
    format!("{n}")
}

/// Letters with everything that has a meaning to COPY, to SQL or to a shell.
fn letters(n: u64) -> String {
    let odd = ["", "'' ", r"\\ ", r"\t", r"\n", "\" ", "% ", "\u{e4}\u{20ac}", r"\N", ","];
    format!("E'k{n}{}'", odd[usize::try_from(n % 10).unwrap_or(0)])
}

/// All types.
pub(crate) const KINDS: &[Kind] = &[
    exact("int2", &["0", "-1", "32767", "-32768"], Some(number)),
    exact("int4", &["0", "1", "-1", "2147483647", "-2147483648"], Some(number)),
    exact("int8", &["0", "9223372036854775807", "-9223372036854775808"], Some(|n| format!("{n}00000007"))),
    loose("numeric", &["1.0", "1.00", "1", "-0.0", "'NaN'", "'Infinity'", "1e40"], Some(|n| format!("{n}.5"))),
    exact("numeric(12,3)", &["0", "1.5", "-99.999"], Some(|n| format!("{n}.125"))),
    loose("float8", &["0", "'-0'", "'NaN'", "'-Infinity'", "0.1", "5e-324"], Some(|n| format!("{n}.3e7"))),
    loose("float4", &["0", "'-0'", "1e-45", "0.1"], Some(|n| format!("{n}.5"))),
    exact("text", &["''", "'NULL'", r"'\N'", r"E'a\tb\\c\nd\re'", "'\u{1f600}'", "'(,\"'"], Some(letters))
        .large(large_text),
    exact("varchar(12)", &["''", "'a  '", "'\u{e4}bcdefghijkl'"], Some(letters)),
    exact("char(9)", &["''", "'a'", "'\u{e9} x'"], Some(letters)),
    exact("\"char\"", &["'x'", "''", r"E'\\'"], None),
    exact("name", &["'n'", "repeat('n', 63)"], Some(letters)),
    exact("bytea", &["''", r"'\x00ff5c0a'", r"'\x'"], Some(|n| format!("'\\x{n:06x}00'"))).large(|salt| {
        format!("(SELECT string_agg(sha256(({salt} + g)::text::bytea), '') FROM generate_series(1, 190) g)")
    }),
    exact("bool", &["true", "false"], None),
    exact("date", &["'infinity'", "'4713-01-01 BC'", "'10000-01-01'"], Some(|n| format!("date '1999-12-31' + {n}"))),
    exact("time", &["'24:00'", "'00:00:00.000001'"], Some(|n| format!("time '00:00' + {n} * interval '1 s'"))),
    exact("timetz", &["'24:00:00+15:59:59'", "'12:34:56.789-01:02:03'"], None),
    exact(
        "timestamp(3)",
        &["'-infinity'", "'0044-03-15 12:00:00.001 BC'"],
        Some(|n| format!("timestamp '1999-12-31 23:59:59.999' + {n} * interval '1 h'")),
    ),
    exact(
        "timestamptz",
        &["'infinity'", "'1890-01-01 00:00:00+00'", "'10000-06-01 01:02:03.4+05:30'"],
        Some(|n| format!("timestamptz '2026-03-29 00:00:00+00' + {n} * interval '1 h'")),
    ),
    loose("interval", &["'1 mon'", "'30 days'", "'-1 year 2 mons -3 days 04:05:06.000007'", "'0'"], None),
    exact("uuid", &["'ffffffff-ffff-ffff-ffff-ffffffffffff'"], Some(|n| format!("md5('{n}')::uuid"))),
    unequal("json", &["'{\"a\": 1, \"a\" : 1.0}'", "' 1 '", "'null'"])
        .large(|salt| format!("(SELECT to_json({}))", large_text(salt))),
    loose("jsonb", &["'{\"b\":1.10,\"a\":[null,\"x\\\\n\"]}'", "'1.0'", "'1'", "'null'"], None)
        .large(|salt| format!("(SELECT to_jsonb({}))", large_text(salt))),
    exact("inet", &["'::ffff:1.2.3.4'", "'0.0.0.0/0'", "'192.168.0.1/24'"], Some(|n| format!("inet '10.0.0.0' + {n}"))),
    exact("cidr", &["'10.0.0.0/8'", "'::/0'"], None),
    exact("macaddr", &["'08:00:2b:01:02:03'"], None),
    exact("bit(10)", &["B'0000000001'"], Some(|n| format!("{n}::bit(10)"))),
    exact("varbit", &["B''", "B'1'", "B'00000000000000001'"], None),
    unequal("point", &["'(0.1,-0)'", "'(NaN,Infinity)'"]),
    unequal("polygon", &["'((0,0),(1e-300,1),(1,0))'"]),
    exact("money", &["-12345.67", "0.01"], None),
    loose("tsvector", &["'a:1A,3 ''b c'':2'", "''"], None),
    exact("oid", &["4294967295"], Some(number)),
    exact("pg_lsn", &["'FFFFFFFF/FFFFFFFF'"], Some(|n| format!("'{n:X}/{n:X}'"))),
    unequal("jsonpath", &["'$.a[*] ? (@ > 1)'"]),
    exact("int4range", &["'[1,5]'", "'empty'", "'(,)'"], Some(|n| format!("int4range({n}, {n} + 3)"))),
    loose("numrange", &["'[1.0,2.00)'", "'[1,2)'", "'empty'"], None),
    exact("tstzrange", &["'[2020-01-01, infinity]'", "'(,2020-01-01)'"], None),
    exact("int8multirange", &["'{[1,3), [5,7)}'", "'{}'"], None),
    exact(
        "int4[]",
        &["'[0:1]={7,8}'", "'{}'", "'{NULL,1}'", "'[-2:-1][5:6]={{1,2},{3,NULL}}'"],
        Some(|n| format!("ARRAY[{n}, NULL, -{n}]")),
    ),
    exact("text[]", &["'{{a,b},{c,d}}'", r#"'{NULL,"NULL",""}'"#, r#"ARRAY['a"b', 'c\d', 'e,f', '{}', E'\t']"#], None)
        .large(|salt| format!("ARRAY[{}, NULL, '']", large_text(salt))),
    loose("numeric[]", &["'{1.0,1.00}'", "'{1.00,1.0}'", "'{NaN}'"], None),
    exact("timestamptz[]", &["'{2020-01-01 00:00:00+00,infinity}'", "'{}'"], None),
    exact("bool[]", &["'{t,f,NULL}'"], None),
    exact(r#""Ty; pes"."Mood""#, &["'sad'", "'OK'", "'it''s \"fine\"'", "''", "'e,f'", "'(g)'"], None).user(),
    exact(r#""Ty; pes".positive"#, &["1", "2147483647"], Some(|n| format!("{n} + 1"))).user(),
    exact(r#""Ty; pes".small"#, &["1", "1999"], Some(|n| format!("{n} + 1"))).user(),
    exact(r#""Ty; pes".code"#, &["''", "'abcdefgh'", "'a  '"], Some(letters)).user(),
    exact(
        r#""Ty; pes".pair"#,
        &["'(,)'", r#"'(1,"x,""y""")'"#, "'(,\"\")'"],
        Some(|n| format!("ROW({n}, {})::\"Ty; pes\".pair", letters(n))),
    )
    .user(),
    exact(
        r#""Ty; pes".deep"#,
        &["'(,,,)'", r#"'("(,)",sad,"{1,NULL}",7)'"#, r#"ROW('(1,"a\\b")', 'e,f', ARRAY['(', E'\t'], 3)"#],
        None,
    )
    .user(),
    loose(r#""Ty; pes".span"#, &["'[1.5,2.5)'", "'empty'", "'(,-0]'", "'(,0]'"], None).user(),
    exact(r#""Ty; pes".numbers"#, &["'{1,2}'", "'{}'"], None).user(),
    exact(r#""Ty; pes".whole_pair"#, &["'(1,a)'", "'(,)'"], None).user(),
    exact(r#""Ty; pes"."Mood"[]"#, &["'{}'", r#"'{OK,"",NULL,"(g)"}'"#], None).user(),
    exact(r#""Ty; pes".pair[]"#, &[r#"ARRAY[ROW(1, 'x,"y"'), ROW(NULL, ''), NULL]::"Ty; pes".pair[]"#], None).user(),
    exact(r#""Ty; pes".small[]"#, &["'{1,NULL,1999}'"], None).user(),
];

/// The types with whole numbers and with text, on which other things rest.
pub(crate) fn kind(name: &str) -> &'static Kind {
    KINDS.iter().find(|kind| kind.name == name).unwrap_or(&KINDS[0])
}
