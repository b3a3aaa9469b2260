//! Columns of many tables at once, on either side, with what decides whether a value of one fits into another.

use std::collections::HashMap;

use tokio_postgres::{Client, Error};

/// A column.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Column {
    /// Name.
    pub name: String,
    /// Its type, as SQL writes it.
    pub type_name: String,
    /// The type below all domains.
    pub kind: Kind,
    /// NOT NULL.
    pub not_null: bool,
    /// It has a default, or makes its values itself.
    pub filled: bool,
    /// `a` or `d` for an identity column, otherwise empty.
    pub identity: String,
    /// `s` or `v` for a generated column, otherwise empty.
    pub generated: String,
    /// Part of the replica identity; of the primary key where that is FULL.
    pub key: bool,
    /// The role may read it.
    pub readable: bool,
    /// Its collation, where that is not the database's default.
    pub collation: Option<String>,
}

/// The type of a column's values, domains looked through.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Kind {
    /// The name without modifier, qualified where it is not PostgreSQL's own.
    pub name: String,
    /// The modifier, -1 for none.
    pub modifier: i32,
    /// `typcategory`.
    pub category: String,
    /// The extension that it (or its elements' type) belongs to.
    pub extension: Option<String>,
    /// The labels of an enum, in their order.
    pub labels: Option<Vec<String>>,
}

impl Column {
    /// Whether the source sends and copies values of it.
    pub fn is_generated(&self) -> bool {
        !self.generated.is_empty()
    }
}

/// The columns of tables, by the tables' OIDs, in their order.
pub async fn ask(client: &Client, tables: &[u32]) -> Result<HashMap<u32, Vec<Column>>, Error> {
    // What is known of a type is found out once for each type, not for each column.
    let sql = "WITH RECURSIVE a AS MATERIALIZED ( \
           SELECT * FROM pg_attribute WHERE attrelid = ANY ($1) AND attnum > 0 AND NOT attisdropped), \
         d AS ( \
           SELECT u.atttypid AS top, t.oid, t.typtype, t.typbasetype, -1 AS modifier \
             FROM (SELECT DISTINCT atttypid FROM a) u JOIN pg_type t ON t.oid = u.atttypid \
           UNION ALL \
           SELECT d.top, t.oid, t.typtype, t.typbasetype, \
             (SELECT o.typtypmod FROM pg_type o WHERE o.oid = d.oid) \
             FROM d JOIN pg_type t ON t.oid = d.typbasetype WHERE d.typtype = 'd'), \
         k AS MATERIALIZED ( \
           SELECT d.top, format_type(d.oid, -1) AS name, d.modifier, t.typcategory::text AS category, \
             (SELECT e.extname::text FROM pg_depend p JOIN pg_extension e ON e.oid = p.refobjid \
               WHERE p.classid = 'pg_type'::regclass AND p.objid = l.oid AND p.deptype = 'e' \
                 AND p.refclassid = 'pg_extension'::regclass LIMIT 1) AS extension, \
             (SELECT array_agg(e.enumlabel::text ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = l.oid) \
               AS labels, t.typcollation, d.top <> d.oid AS domain \
           FROM d JOIN pg_type t ON t.oid = d.oid \
           JOIN pg_type l ON l.oid = CASE WHEN t.typcategory = 'A' AND t.typelem <> 0 THEN t.typelem ELSE t.oid END \
           WHERE d.typtype <> 'd') \
         SELECT a.attrelid, a.attname::text, format_type(a.atttypid, a.atttypmod), k.name, \
           CASE WHEN k.domain THEN k.modifier ELSE a.atttypmod END, k.category, k.extension, k.labels, a.attnotnull, \
           a.atthasdef OR a.attidentity <> '' OR EXISTS \
             (SELECT FROM pg_type t WHERE t.oid = a.atttypid AND t.typdefault IS NOT NULL), \
           a.attidentity::text, a.attgenerated::text, \
           coalesce(a.attnum = ANY (i.indkey), false), has_column_privilege(a.attrelid, a.attnum, 'SELECT'), \
           CASE WHEN a.attcollation <> 0 AND a.attcollation <> 100 AND a.attcollation <> coalesce(k.typcollation, 0) \
             THEN (SELECT o.collname::text FROM pg_collation o WHERE o.oid = a.attcollation) END \
         FROM a JOIN k ON k.top = a.atttypid JOIN pg_class c ON c.oid = a.attrelid \
         LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisvalid \
           AND CASE c.relreplident WHEN 'i' THEN i.indisreplident WHEN 'n' THEN false ELSE i.indisprimary END \
         ORDER BY a.attrelid, a.attnum";
    let mut found: HashMap<u32, Vec<Column>> = HashMap::new();
    for row in client.query(sql, &[&tables]).await? {
        found.entry(row.get(0)).or_default().push(Column {
            name: row.get(1),
            type_name: row.get(2),
            kind: Kind {
                name: row.get(3),
                modifier: row.get(4),
                category: row.get(5),
                extension: row.get(6),
                labels: row.get(7),
            },
            not_null: row.get(8),
            filled: row.get(9),
            identity: row.get(10),
            generated: row.get(11),
            key: row.get(12),
            readable: row.get(13),
            collation: row.get(14),
        });
    }
    Ok(found)
}
