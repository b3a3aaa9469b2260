//! All values of `types.sql`, copied and streamed, in tables of built-in types only (which may be copied in binary
//! format) and in tables with a type of the user's beside them (which may not).

use pgonce_testkit::majors;

use crate::common::said;
use crate::edges::{Edges, across, edges, make_types, set_defaults};
use crate::pair::Case;

/// Built-in types that no column can be filled with: the server has no input for them, or they exist for its catalog.
const NOT_FOR_USERS: &[&str] = &[
    "pg_node_tree",
    "pg_ndistinct",
    "pg_dependencies",
    "pg_mcv_list",
    "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary",
    "gtsvector",
];

/// The tables of one type, `b` with a key and `f` with the identity FULL; those of all types end with `_all`.
const TABLES: [&str; 2] = ["b", "f"];

async fn create(case: &Case, suffix: &str, columns: &str) {
    case.both(&format!(
        "CREATE TABLE b{suffix} (id int PRIMARY KEY, o int DEFAULT 0, {columns});
         CREATE TABLE f{suffix} (id int, o int DEFAULT 0, {columns}); ALTER TABLE f{suffix} REPLICA IDENTITY FULL"
    ))
    .await;
}

/// One table for all types, a row for the first value of each, and so on; and one for arrays of all types.
async fn create_wide(case: &Case, edges: &[Edges]) {
    let columns: Vec<String> = edges.iter().enumerate().map(|(n, e)| format!("c{n} {}", e.kind)).collect();
    create(case, "_all", &format!("own \"Types; --\".\"Mood\", {}", columns.join(", "))).await;
    for row in 0..edges.iter().map(|e| e.values.len()).max().unwrap() {
        let value = |e: &Edges| e.values.get(row).map_or("NULL".to_owned(), |v| format!("({v})::{}", e.kind));
        let values: Vec<String> = edges.iter().map(value).collect();
        for table in TABLES {
            let sql = format!("INSERT INTO {table}_all VALUES ({row}, 0, 'OK', {})", values.join(", "));
            case.at_source(&sql).await;
        }
    }
    let scalar: Vec<&Edges> = edges.iter().filter(|e| !e.kind.ends_with("[]") && !e.kind.ends_with("vector")).collect();
    let columns: Vec<String> = scalar.iter().enumerate().map(|(n, e)| format!("c{n} {}[]", e.kind)).collect();
    create(case, "_arrays", &columns.join(", ")).await;
    let all = |e: &Edges| {
        let values: Vec<String> = e.values.iter().map(|v| format!("({v})::{}", e.kind)).collect();
        format!("ARRAY[NULL, {}]::{}[]", values.join(", "), e.kind)
    };
    let nested = |e: &Edges| {
        let (first, last) = (e.values.first().unwrap(), e.values.last().unwrap());
        format!("ARRAY[[({first})::{0}, NULL], [({last})::{0}, ({first})::{0}]]::{0}[]", e.kind)
    };
    // A domain over an array is an element here, where a constructor would make one more dimension.
    let literal = |e: &Edges, text: &str| format!("{text}::{}[]", e.kind);
    let rows: [Vec<String>; 4] = [
        scalar
            .iter()
            .map(|e| if e.kind.ends_with(".list") { literal(e, "'{\"{1,NULL}\",NULL}'") } else { all(e) })
            .collect(),
        scalar
            .iter()
            .map(|e| if e.kind.ends_with(".list") { literal(e, "'{{\"{1}\"},{NULL}}'") } else { nested(e) })
            .collect(),
        scalar.iter().map(|e| literal(e, "'{}'")).collect(),
        // The one type whose arrays have another delimiter.
        scalar
            .iter()
            .map(|e| literal(e, if e.kind == "box" { "'[5:6]={NULL;NULL}'" } else { "'[5:6]={NULL,NULL}'" }))
            .collect(),
    ];
    for (id, values) in rows.iter().enumerate() {
        for table in TABLES {
            let sql = format!("INSERT INTO {table}_arrays VALUES ({id}, 0, {})", values.join(", "));
            case.at_source(&sql).await;
        }
    }
}

/// Writes to the tables with this suffix in every way that the stream has.
async fn write(case: &Case, suffix: &str, columns: &[String]) {
    let list = columns.join(", ");
    let set: Vec<String> = columns.iter().map(|c| format!("{c} = s.{c}")).collect();
    let nulls: Vec<String> = columns.iter().map(|c| format!("{c} = NULL")).collect();
    let (set, nulls) = (set.join(", "), nulls.join(", "));
    // One row at a time, since the tables take turns.
    case.at_source(&format!(
        "DO $$ DECLARE i int; BEGIN FOR i IN SELECT id FROM b{suffix} ORDER BY id LOOP
             INSERT INTO b{suffix} (id, {list}) SELECT id + 100, {list} FROM b{suffix} WHERE id = i;
             INSERT INTO f{suffix} (id, {list}) SELECT id + 100, {list} FROM f{suffix} WHERE id = i;
         END LOOP; END $$"
    ))
    .await;
    for table in TABLES {
        case.at_source(&format!(
            "INSERT INTO {table}{suffix} (id, {list}) SELECT id * 10 + i + 1000, {list}
                 FROM {table}{suffix}, generate_series(1, 4) i WHERE id < 100;
             INSERT INTO {table}{suffix} (id) SELECT id + 200 FROM {table}{suffix} WHERE id < 100;
             UPDATE {table}{suffix} u SET {set} FROM {table}{suffix} s
                 WHERE u.id BETWEEN 200 AND 299 AND s.id = u.id - 200;
             UPDATE {table}{suffix} SET o = o + 1 WHERE id < 100;
             UPDATE {table}{suffix} SET id = -id - 1 WHERE id < 100;
             UPDATE {table}{suffix} SET {nulls} WHERE id BETWEEN 1001 AND 1004;
             DELETE FROM {table}{suffix} WHERE id BETWEEN 100 AND 199 OR id % 3 = 0"
        ))
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c1_to_c7_every_value_arrives_as_it_was_by_copy_and_by_stream() {
    for major in majors().unwrap() {
        carry(&Case::new(major, "every").await).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c1_to_c7_every_value_arrives_as_it_was_from_one_version_to_another() {
    for (from, to) in across() {
        carry(&Case::between(from, to, &format!("every_{from}_{to}")).await).await;
    }
}

/// Copies and streams every value between the two sides of a case.
async fn carry(case: &Case) {
    make_types(case).await;
    let edges = edges(case).await;
    assert_complete(case, &edges).await;
    // One commit for all of it.
    case.both("BEGIN").await;
    for (n, e) in edges.iter().enumerate() {
        create(case, &n.to_string(), &format!("v {}", e.kind)).await;
        let row = |(i, value)| format!("({i}, 0, ({value})::{})", e.kind);
        let rows: Vec<String> = e.values.iter().map(String::as_str).chain(["NULL"]).enumerate().map(row).collect();
        let rows = rows.join(", ");
        case.at_source(&format!("INSERT INTO b{n} VALUES {rows}; INSERT INTO f{n} VALUES {rows}")).await;
    }
    create_wide(case, &edges).await;
    case.both("COMMIT").await;
    set_defaults(case).await;
    case.drain().await;
    compare(case, &edges, "copied").await;
    for n in 0..edges.len() {
        // Some transactions have many tables, and some have one.
        if n % 20 == 10 {
            case.at_source("BEGIN").await;
        }
        write(case, &n.to_string(), &["v".to_owned()]).await;
        if n % 20 == 19 {
            case.at_source("COMMIT").await;
        }
    }
    case.at_source(if edges.len() % 20 > 10 { "COMMIT" } else { "SELECT" }).await;
    for suffix in ["_all", "_arrays"] {
        let columns = "SELECT attname::text FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 2";
        let columns = case.source.query(columns, &[&format!("b{suffix}")]).await.unwrap();
        write(case, suffix, &columns.iter().map(|row| row.get(0)).collect::<Vec<_>>()).await;
    }
    case.drain().await;
    compare(case, &edges, "streamed").await;
    // Under each side's own defaults, which the tests' sessions are older than.
    let verified = case.output(&["verify"]).await;
    assert_eq!(verified.status.code(), Some(0), "{}: {}", case.name, said(&verified));
}

async fn compare(case: &Case, edges: &[Edges], when: &str) {
    for table in TABLES {
        for (n, e) in edges.iter().enumerate() {
            // What the output function prints. A cast to text is another matter: it pads no `char`, and shows the
            // declaration of xml that its output leaves out.
            let hash = if e.kind == "xml" { "NULL" } else { "md5(v::text)" };
            let sql = format!("SELECT id, o, v, {hash} FROM {table}{n} ORDER BY id");
            assert!(case.assert_same(&sql).await.len() > 1, "{} {when}", e.kind);
        }
        for suffix in ["_all", "_arrays"] {
            let sql = format!("SELECT * FROM {table}{suffix} ORDER BY id");
            assert!(case.assert_same(&sql).await.len() > 3, "{suffix} {when}");
        }
    }
}

/// Every built-in type that a column can have is in `types.sql`, alone; as an array it is in the table of arrays.
async fn assert_complete(case: &Case, edges: &[Edges]) {
    let sql = "SELECT format_type(t.oid, NULL) FROM pg_type t
               WHERE t.typnamespace = 'pg_catalog'::regnamespace AND t.typtype IN ('b', 'r', 'm')
                 AND t.typcategory <> 'A' AND t.typrelid = 0 AND t.typname NOT LIKE '\\_%' ORDER BY 1";
    let rows = case.source.query(sql, &[]).await.unwrap();
    let names = rows.iter().map(|row| row.get::<_, String>(0));
    let missing: Vec<String> = names
        .filter(|name| !NOT_FOR_USERS.contains(&name.as_str()) && !edges.iter().any(|e| e.kind == *name))
        .collect();
    assert_eq!(missing, Vec::<String>::new());
}
