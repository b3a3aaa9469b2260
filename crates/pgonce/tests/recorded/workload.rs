//! What the recorded servers do: every kind of message, and every kind of value in a row.

use pgonce_testkit::Cluster;

use super::record::Barrier;

pub const SCHEMA: &str = r#"
    CREATE TYPE mood AS ENUM ('glad', 'sad');
    CREATE DOMAIN positive AS int CHECK (VALUE > 0);
    CREATE TABLE plain (id int PRIMARY KEY, n bigint, t text);
    CREATE TABLE kinds (
        id int PRIMARY KEY, m mood, p positive, a int[], b bytea, n numeric(12, 3), ts timestamptz, u uuid,
        f float8, j jsonb, v varchar(10), o bool, acl aclitem
    );
    CREATE TABLE full_row (a int, b text);
    ALTER TABLE full_row REPLICA IDENTITY FULL;
    CREATE TABLE by_index (a int, b text NOT NULL, c text);
    CREATE UNIQUE INDEX by_index_b ON by_index (b);
    ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_b;
    CREATE TABLE two_keys (a int, b text, c int, PRIMARY KEY (b, a));
    CREATE TABLE no_identity (a int);
    ALTER TABLE no_identity REPLICA IDENTITY NOTHING;
    CREATE TABLE toasted (id int PRIMARY KEY, n int, big text, other text);
    ALTER TABLE toasted ALTER COLUMN big SET STORAGE EXTERNAL;
    CREATE TABLE toasted_key (id text PRIMARY KEY, n int);
    ALTER TABLE toasted_key ALTER COLUMN id SET STORAGE EXTERNAL;
    CREATE TABLE no_columns ();
    CREATE TABLE wide (id int PRIMARY KEY);
    DO $$ BEGIN
        FOR i IN 1..40 LOOP EXECUTE format('ALTER TABLE wide ADD COLUMN c%s int', i); END LOOP;
    END $$;
    CREATE SCHEMA "Größe ✓";
    CREATE TABLE "Größe ✓"."a ""b""" ("ä.1" int PRIMARY KEY, " " text);
    CREATE TABLE parent (id serial PRIMARY KEY, t text);
    CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent);
    CREATE TABLE parted (id int PRIMARY KEY, t text) PARTITION BY RANGE (id);
    CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100);
    CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (100) TO (200);
    -- Not published: filler makes transactions large, and tick makes the server write its WAL out.
    CREATE TABLE filler (t text);
    CREATE TABLE tick (n int);
    CREATE PUBLICATION p FOR TABLE plain, kinds, full_row, by_index, two_keys, no_identity, toasted, toasted_key,
        no_columns, wide, "Größe ✓"."a ""b""", parent, child, parted WITH (publish_via_partition_root = true);
    SELECT pg_replication_origin_create('upstream');
"#;

/// More than `logical_decoding_work_mem`, without a message.
const FILL: &str = "INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, 120)";

/// Transactions of one statement, or of several.
const SMALL: &[&str] = &[
    "INSERT INTO plain VALUES (1, 10, 'a'), (2, NULL, ''), (3, -9223372036854775808, E'tab\\tline\\n\\\\ ä ✓ 😀')",
    "UPDATE plain SET n = 11 WHERE id = 1",
    "UPDATE plain SET id = 9, t = NULL WHERE id = 1",
    "DELETE FROM plain WHERE id = 2",
    "INSERT INTO plain VALUES (3, 0, 'conflict') ON CONFLICT (id) DO UPDATE SET n = 5, t = excluded.t",
    "INSERT INTO plain VALUES (3, 0, 'nothing'), (4, 4, 'new') ON CONFLICT DO NOTHING",
    "COPY plain FROM PROGRAM 'printf \"20\\t1\\tone\\n21\\t\\\\\\\\N\\ttwo\\n22\\t3\\t\\\\\\\\N\\n\"'",
    "INSERT INTO kinds VALUES (1, 'glad', 7, '{1,NULL,3}', '\\x00ff10', 123456789.125, \
     '2026-01-02 03:04:05.678901+00', '12345678-9abc-def0-1234-56789abcdef0', '-Infinity', '{\"k\": [1, null]}', \
     'zehn', true, 'postgres=r/postgres'); INSERT INTO kinds (id) VALUES (2)",
    "UPDATE kinds SET m = 'sad', n = 'NaN', ts = 'infinity', b = '' WHERE id = 1",
    "INSERT INTO full_row VALUES (1, 'one'), (NULL, NULL), (3, 'three')",
    "UPDATE full_row SET b = 'uno' WHERE a = 1; DELETE FROM full_row WHERE a IS NULL",
    "INSERT INTO by_index VALUES (1, 'k', 'c'), (2, 'l', 'd')",
    "UPDATE by_index SET c = 'e' WHERE a = 1; UPDATE by_index SET b = 'm' WHERE a = 2; \
     DELETE FROM by_index WHERE a = 1",
    "INSERT INTO two_keys VALUES (1, 'x', 5); UPDATE two_keys SET c = 6; UPDATE two_keys SET a = 2; \
     DELETE FROM two_keys",
    "INSERT INTO no_identity VALUES (1), (NULL)",
    "INSERT INTO toasted VALUES (1, 1, repeat('b', 2040), 'o'), (2, 2, NULL, NULL)",
    "UPDATE toasted SET n = 5; UPDATE toasted SET other = NULL WHERE id = 1",
    "UPDATE toasted SET id = 3 WHERE id = 1",
    "ALTER TABLE toasted REPLICA IDENTITY FULL; UPDATE toasted SET n = 6 WHERE id = 3; \
     DELETE FROM toasted WHERE id = 2",
    "INSERT INTO toasted_key VALUES (repeat('k', 2040), 1); UPDATE toasted_key SET n = 2",
    "INSERT INTO no_columns DEFAULT VALUES",
    "INSERT INTO wide (id, c20) VALUES (1, 20); UPDATE wide SET c40 = 40",
    "INSERT INTO \"Größe ✓\".\"a \"\"b\"\"\" VALUES (1, 'x')",
    "INSERT INTO parted VALUES (1, 'low'), (150, 'high'); UPDATE parted SET id = 151 WHERE id = 1",
    "INSERT INTO parent (t) VALUES ('p'), ('q'); INSERT INTO child VALUES (1, 1)",
    "TRUNCATE parent CASCADE",
    "INSERT INTO parent (t) VALUES ('r')",
    "TRUNCATE parent, child, plain RESTART IDENTITY",
    "TRUNCATE full_row, by_index",
    "TRUNCATE parent, child RESTART IDENTITY CASCADE",
    "TRUNCATE parted",
    "ALTER TABLE plain ADD COLUMN added numeric(6, 2) DEFAULT 1.5; INSERT INTO plain VALUES (30, 1, 'wider', 2)",
    "ALTER TABLE plain DROP COLUMN n; UPDATE plain SET t = 'narrower' WHERE id = 30",
    "ALTER TABLE plain RENAME COLUMN t TO text; ALTER TABLE plain ALTER COLUMN added TYPE text",
    "INSERT INTO plain VALUES (31, 'renamed', 'retyped')",
    "SELECT pg_logical_emit_message(true, 'alone', 'a transaction of nothing else')",
    "SELECT pg_logical_emit_message(true, '', ''); INSERT INTO plain (id) VALUES (32); \
     SELECT pg_logical_emit_message(false, 'early', 'before its transaction'); \
     SELECT pg_logical_emit_message(true, 'bytes', '\\x00ff00'::bytea)",
    "INSERT INTO filler VALUES ('a transaction without a message')",
];

/// Runs everything, in a fixed order.
pub async fn run(cluster: &Cluster, barrier: &Barrier) {
    let a = cluster.connect("postgres").await.unwrap();
    let b = cluster.connect("postgres").await.unwrap();
    let on_a = async |sql: &str| a.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let on_b = async |sql: &str| b.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let fill_a = async || {
        on_a(FILL).await;
        barrier.pass().await;
    };
    let fill_b = async || {
        on_b(FILL).await;
        barrier.pass().await;
    };
    for sql in SMALL {
        on_a(&format!("BEGIN; {sql}; COMMIT")).await;
    }

    // Savepoints in a transaction that stays small.
    on_a("BEGIN; INSERT INTO plain (id) VALUES (40); SAVEPOINT s; INSERT INTO plain (id) VALUES (41); ROLLBACK TO s")
        .await;
    on_a("SAVEPOINT r; INSERT INTO plain (id) VALUES (42); RELEASE r; COMMIT").await;
    on_a("BEGIN; INSERT INTO plain (id) VALUES (43); ROLLBACK").await;

    // Two large transactions, block by block in turns; and a small one and a message that come in between.
    on_a("BEGIN; INSERT INTO plain VALUES (50, 'a'); INSERT INTO kinds (id, m) VALUES (50, 'sad')").await;
    fill_a().await;
    on_b("BEGIN; INSERT INTO plain VALUES (60, 'b'); DELETE FROM plain WHERE id = 30").await;
    fill_b().await;
    barrier.execute("INSERT INTO plain VALUES (70, 'between')").await;
    on_a(
        "UPDATE plain SET text = 'a again' WHERE id = 50; UPDATE full_row SET b = 'x'; INSERT INTO full_row VALUES (5)",
    )
    .await;
    on_a("SELECT pg_logical_emit_message(true, 'streamed', 'in its order'); DELETE FROM full_row").await;
    fill_a().await;
    on_b("SELECT pg_logical_emit_message(false, 'not streamed', 'at once'); INSERT INTO plain VALUES (61, 'b')").await;
    fill_b().await;
    on_a("TRUNCATE by_index, child").await;
    fill_a().await;
    on_b("COMMIT").await;
    on_a("UPDATE plain SET id = 51 WHERE id = 50; COMMIT").await;

    // Subtransactions: kept, rolled back before and after they were sent, and one inside another.
    on_a("BEGIN; INSERT INTO plain VALUES (80, 'kept'); SAVEPOINT s1; INSERT INTO plain VALUES (81, 'gone')").await;
    fill_a().await;
    on_a("ROLLBACK TO s1; INSERT INTO plain VALUES (82, 'kept'); SAVEPOINT s2; INSERT INTO plain VALUES (83, 'kept')")
        .await;
    fill_a().await;
    on_a("SAVEPOINT s3; INSERT INTO plain VALUES (84, 'gone')").await;
    fill_a().await;
    on_a("ROLLBACK TO s2; INSERT INTO plain VALUES (85, 'kept'); SAVEPOINT s4; INSERT INTO plain VALUES (86, 'kept')")
        .await;
    fill_a().await;
    on_a("RELEASE s4; SAVEPOINT s5; INSERT INTO plain VALUES (87, 'gone'); ROLLBACK TO s5; COMMIT").await;

    // A table that a subtransaction used first, which was rolled back.
    on_a("BEGIN; SAVEPOINT s; INSERT INTO kinds (id, m) VALUES (88, 'sad')").await;
    fill_a().await;
    on_a("ROLLBACK TO s; INSERT INTO kinds (id, m) VALUES (89, 'glad')").await;
    fill_a().await;
    on_a("COMMIT").await;

    // Subtransactions that ended well inside one that was rolled back.
    on_a(
        "BEGIN; INSERT INTO plain VALUES (180, 'kept'); SAVEPOINT s; INSERT INTO plain VALUES (181, 'gone'); \
          SAVEPOINT t; INSERT INTO plain VALUES (182, 'gone'); RELEASE t; INSERT INTO plain VALUES (183, 'gone')",
    )
    .await;
    fill_a().await;
    on_a("SAVEPOINT u; INSERT INTO plain VALUES (184, 'gone'); RELEASE u; INSERT INTO plain VALUES (185, 'gone')")
        .await;
    fill_a().await;
    on_a("ROLLBACK TO s; INSERT INTO plain VALUES (186, 'kept')").await;
    fill_a().await;
    on_a("COMMIT").await;

    // Rolled back as a whole, after blocks of it were sent; with nothing but a message; with nothing to send.
    on_a("BEGIN; INSERT INTO plain VALUES (90, 'gone')").await;
    fill_a().await;
    on_a("SAVEPOINT s; INSERT INTO plain VALUES (91, 'gone')").await;
    fill_a().await;
    on_a("ROLLBACK").await;
    on_a("BEGIN; SELECT pg_logical_emit_message(true, 'only', 'a message in a large transaction')").await;
    fill_a().await;
    on_a("COMMIT; BEGIN").await;
    fill_a().await;
    on_a("COMMIT").await;

    // A table that changes inside a large transaction.
    on_a("BEGIN; INSERT INTO two_keys VALUES (1, 'before', 1)").await;
    fill_a().await;
    on_a("ALTER TABLE two_keys ADD COLUMN d mood; INSERT INTO two_keys VALUES (2, 'behind', 2, 'glad')").await;
    fill_a().await;
    on_a("COMMIT").await;

    // From another server: small and large.
    on_a("SELECT pg_replication_origin_session_setup('upstream')").await;
    on_a("BEGIN; SELECT pg_replication_origin_xact_setup('0/ABCDEF', '2026-01-01 00:00+00')").await;
    on_a("INSERT INTO plain VALUES (100, 'replicated'); COMMIT").await;
    on_a("BEGIN; SELECT pg_replication_origin_xact_setup('0/ABCFFF', '2026-01-01 00:01+00')").await;
    on_a("INSERT INTO plain VALUES (101, 'replicated')").await;
    fill_a().await;
    on_a("INSERT INTO plain VALUES (102, 'replicated'); COMMIT; SELECT pg_replication_origin_session_reset()").await;

    // Prepared transactions: small and large, committed and rolled back, over another transaction and one in another.
    on_a(
        "BEGIN; INSERT INTO plain VALUES (110, 'prepared'); SAVEPOINT s; INSERT INTO plain VALUES (111, 'gone'); \
          ROLLBACK TO s; SELECT pg_logical_emit_message(true, 'prepared', ''); PREPARE TRANSACTION 'small'",
    )
    .await;
    on_a("BEGIN; INSERT INTO plain VALUES (112, 'never'); PREPARE TRANSACTION 'small, rolled back ✓'").await;
    barrier.pass().await;
    on_b("INSERT INTO plain VALUES (113, 'between')").await;
    on_a("COMMIT PREPARED 'small'").await;
    on_b("ROLLBACK PREPARED 'small, rolled back ✓'").await;
    on_a("BEGIN; INSERT INTO plain VALUES (120, 'large and prepared')").await;
    fill_a().await;
    on_a("SAVEPOINT s; INSERT INTO plain VALUES (121, 'gone')").await;
    fill_a().await;
    on_a("ROLLBACK TO s; INSERT INTO plain VALUES (122, 'kept'); PREPARE TRANSACTION 'large'").await;
    on_b("BEGIN; INSERT INTO plain VALUES (123, 'never')").await;
    fill_b().await;
    on_b("PREPARE TRANSACTION 'large, rolled back'").await;
    barrier.pass().await;
    on_b("ROLLBACK PREPARED 'large, rolled back'").await;
    on_b("COMMIT PREPARED 'large'").await;
    on_a("BEGIN; INSERT INTO filler VALUES ('nothing to send'); PREPARE TRANSACTION 'empty'").await;
    on_a("COMMIT PREPARED 'empty'").await;
}
