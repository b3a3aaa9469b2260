//! The SQL that both sides run: digests of rows and keys, and sums of them.
//!
//! A row becomes text by [`encoding`], in which different rows differ; the text becomes 128 bits by MD5; what is
//! compared are counts and sums of these, which depend on no order. Nothing of it depends on the server's version,
//! its encoding, its collations or its settings (the connection pins those that shape values).

use std::fmt::Write as _;

use pgonce::ident::{quote_ident, quote_qualified};

/// PostgreSQL's limit is 100 arguments of a function; the format string is one of them.
const ARGUMENTS_MAX: usize = 99;

/// One side of a table: what is read of it, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scan {
    /// Schema.
    pub schema: String,
    /// Name.
    pub name: String,
    /// Whether rows of children belong to it: a partitioned table.
    pub with_children: bool,
    /// The publication's row filter, on the source.
    pub filter: Option<String>,
    /// Names of the compared columns, in one order on both sides.
    pub columns: Vec<String>,
    /// Which of them are the key; empty for a table without one.
    pub key: Vec<usize>,
}

impl Scan {
    /// Number of rows, and both halves of the sums of key digests and row digests: `(count, k1, k2, m1, m2)`.
    pub fn sums(&self) -> String {
        let key = if self.key.is_empty() { "'0'".to_owned() } else { digest(&self.key_columns("t")) };
        format!(
            "SELECT pg_catalog.count(*), {}, {} FROM (SELECT {key} AS k, {} AS m FROM {} OFFSET 0) s",
            if self.key.is_empty() { "'0', '0'".to_owned() } else { halves("s.k") },
            halves("s.m"),
            digest(&self.all_columns("t")),
            self.from(),
        )
    }

    /// The same, for each bucket of rows: `(bucket, count, m1, m2)`. Rows with equal keys are in one bucket.
    pub fn buckets(&self, bits: u32) -> String {
        let (key, bucket) = match self.key.as_slice() {
            [] => ("NULL".to_owned(), bucket("s.m", bits)),
            _ => (digest(&self.key_columns("t")), bucket("s.k", bits)),
        };
        format!(
            "SELECT {bucket}, pg_catalog.count(*), {} FROM (SELECT {key} AS k, {} AS m FROM {} OFFSET 0) s GROUP BY 1",
            halves("s.m"),
            digest(&self.all_columns("t")),
            self.from(),
        )
    }

    /// The rows of some buckets (`$1`) in the order of their identity: `(identity, digest)`. The identity of a row is
    /// the digest of its key, or of all of it where there is no key.
    pub fn rows(&self, bits: u32) -> String {
        format!(
            "SELECT pg_catalog.decode(s.k, 'hex'), pg_catalog.decode({}, 'hex') FROM {} WHERE {} = ANY ($1) ORDER \
            BY 1, 2",
            digest(&self.inner_columns()),
            self.inner(),
            bucket("s.k", bits),
        )
    }

    /// Rows by their identities (`$1`): `(identity, a digest of each column, a text of each column in shown)`.
    pub fn details(&self, shown: &[usize]) -> String {
        let digests: Vec<String> = self.inner_columns().iter().map(|c| digest(std::slice::from_ref(c))).collect();
        let texts: Vec<String> = shown.iter().map(|index| text(&format!("s.c{index}"))).collect();
        format!(
            "SELECT pg_catalog.decode(s.k, 'hex'), ARRAY[{}]::text[], ARRAY[{}]::text[] FROM {} \
             WHERE pg_catalog.decode(s.k, 'hex') = ANY ($1)",
            digests.join(", "),
            texts.join(", "),
            self.inner(),
        )
    }

    /// The rows with their identity as `k` and their columns as `c0`, `c1`, ...
    fn inner(&self) -> String {
        let key = if self.key.is_empty() { self.all_columns("t") } else { self.key_columns("t") };
        let mut columns = String::new();
        for (index, column) in self.columns.iter().enumerate() {
            let _ = write!(columns, ", t.{} AS c{index}", quote_ident(column));
        }
        format!("(SELECT {} AS k{columns} FROM {} OFFSET 0) s", digest(&key), self.from())
    }

    fn inner_columns(&self) -> Vec<String> {
        (0..self.columns.len()).map(|index| format!("s.c{index}")).collect()
    }

    fn all_columns(&self, alias: &str) -> Vec<String> {
        self.columns.iter().map(|column| format!("{alias}.{}", quote_ident(column))).collect()
    }

    fn key_columns(&self, alias: &str) -> Vec<String> {
        let names = self.key.iter().filter_map(|index| self.columns.get(*index));
        names.map(|column| format!("{alias}.{}", quote_ident(column))).collect()
    }

    fn from(&self) -> String {
        let only = if self.with_children { "" } else { "ONLY " };
        let filter = self.filter.as_ref().map_or(String::new(), |filter| format!(" WHERE ({filter})"));
        format!("{only}{} AS t{filter}", quote_qualified(&self.schema, &self.name))
    }
}

/// Text of values, in which different lists of values differ.
///
/// `format('%L')` prints a value with its type's output function, as the replication stream carries it (a cast to
/// text would not: it trims `char(n)` and spells out booleans), as a quoted literal, and NULL without quotes. With
/// commas between, every such text can be read back in one way only.
pub fn encoding(values: &[String]) -> String {
    if values.is_empty() {
        return "''::text".to_owned();
    }
    let pieces: Vec<String> = values
        .chunks(ARGUMENTS_MAX)
        .map(|chunk| format!("pg_catalog.format('{}', {})", vec!["%L"; chunk.len()].join(","), chunk.join(", ")))
        .collect();
    pieces.join(" || ',' || ")
}

/// A digest of values, as 32 hexadecimal digits. Taken of UTF-8, whatever the database's encoding.
fn digest(values: &[String]) -> String {
    format!("pg_catalog.md5(pg_catalog.convert_to({}, 'UTF8'))", encoding(values))
}

/// A value's text, or NULL.
fn text(value: &str) -> String {
    // IS NULL would be true of a composite value that has fields of NULL only.
    format!("CASE WHEN {value} IS NOT DISTINCT FROM NULL THEN NULL ELSE pg_catalog.format('%s', {value}) END")
}

/// Sums of both halves of a digest, as text: they are exact and pass 64 bits.
fn halves(digest: &str) -> String {
    let half = |start: u32| {
        let number = format!("('x' || pg_catalog.substr({digest}, {start}, 16))::bit(64)::int8");
        format!("coalesce(pg_catalog.sum({number}), 0)::text")
    };
    format!("{}, {}", half(1), half(17))
}

fn bucket(digest: &str, bits: u32) -> String {
    let mask = (1_u64 << bits) - 1;
    format!("(('x' || pg_catalog.substr({digest}, 1, 8))::bit(32)::int8 & {mask})::int4")
}

/// A checksum out of both halves of a sum: the sum modulo 2^64 of each, in hexadecimal. Comparisons use the exact sums.
pub fn checksum(halves: (i128, i128)) -> String {
    let wrapped = |sum: i128| sum.rem_euclid(1 << 64);
    format!("{:016x}{:016x}", wrapped(halves.0), wrapped(halves.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan() -> Scan {
        Scan {
            schema: "Shop".to_owned(),
            name: "or\"ders".to_owned(),
            with_children: false,
            filter: Some("id > 5".to_owned()),
            columns: vec!["id".to_owned(), "it's".to_owned()],
            key: vec![0],
        }
    }

    #[test]
    fn names_are_quoted_and_the_filter_is_applied() {
        let from = scan().from();
        assert_eq!(from, r#"ONLY "Shop"."or""ders" AS t WHERE (id > 5)"#);
        let partitioned = Scan { with_children: true, filter: None, ..scan() };
        assert_eq!(partitioned.from(), r#""Shop"."or""ders" AS t"#);
    }

    #[test]
    fn the_encoding_keeps_to_the_limit_of_arguments() {
        let columns: Vec<String> = (0..250).map(|n| format!("t.c{n}")).collect();
        let encoded = encoding(&columns);
        assert_eq!(encoded.matches("pg_catalog.format(").count(), 3);
        assert_eq!(encoded.matches("%L").count(), 250);
        assert_eq!(encoding(&[]), "''::text");
    }

    #[test]
    fn a_digest_is_taken_of_the_key_and_of_all_columns_in_one_scan() {
        let sums = scan().sums();
        assert_eq!(sums.matches(" FROM ").count(), 2, "{sums}");
        assert!(sums.contains(r#"format('%L', t."id")"#) && sums.contains(r#"format('%L,%L', t."id", t."it's")"#));
        // Evaluated once a row: OFFSET 0 keeps the planner from copying the expression into each sum.
        assert!(sums.ends_with("OFFSET 0) s"), "{sums}");
    }

    #[test]
    fn a_table_without_a_key_is_identified_by_its_whole_rows() {
        let keyless = Scan { key: Vec::new(), ..scan() };
        assert!(keyless.sums().contains("count(*), '0', '0',"));
        assert!(keyless.buckets(10).contains("substr(s.m, 1, 8)"));
        assert!(keyless.rows(10).contains(r#"format('%L,%L', t."id", t."it's"), 'UTF8')) AS k"#));
        assert!(keyless.rows(10).contains("& 1023"));
    }

    #[test]
    fn checksums_wrap_around() {
        assert_eq!(checksum((-1, 255)), "ffffffffffffffff00000000000000ff");
        assert_eq!(checksum(((1 << 64) + 1, 0)), "00000000000000010000000000000000");
    }
}
