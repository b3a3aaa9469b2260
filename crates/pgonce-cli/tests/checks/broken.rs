//! What is broken on purpose on either side, and what makes it as it was.

use super::Broken;

/// Nothing broken.
pub const NONE: Broken = Broken {
    id: "",
    severity: "",
    source: "",
    target: "",
    both: "",
    undo_source: "",
    undo_target: "",
    undo: "",
    arguments: &[],
    mends: false,
    says: "",
};

/// On the source.
pub const OF_THE_SOURCE: &[Broken] = &[
    Broken {
        id: "source.table.identity",
        severity: "warning",
        both: "CREATE TABLE keyless (v text); CREATE TABLE late (id int PRIMARY KEY DEFERRABLE)",
        undo: "DROP TABLE keyless, late",
        mends: true,
        ..NONE
    },
    Broken {
        id: "source.table.identity",
        severity: "problem",
        both: "CREATE TABLE keyless (v text)",
        undo: "DROP TABLE keyless",
        arguments: &["--tables", "public.a,public.keyless"],
        mends: true,
        ..NONE
    },
    Broken {
        id: "source.table.identity",
        severity: "problem",
        both: "CREATE TABLE keyless (v text)",
        source: "CREATE PUBLICATION theirs FOR TABLE a, keyless",
        undo_source: "DROP PUBLICATION theirs",
        undo: "DROP TABLE keyless",
        arguments: &["--publication", "theirs"],
        mends: true,
        ..NONE
    },
    Broken {
        id: "source.table.kind",
        severity: "warning",
        both: "CREATE UNLOGGED TABLE u (id int PRIMARY KEY)",
        undo: "DROP TABLE u",
        says: "unlogged",
        mends: true,
        ..NONE
    },
    Broken {
        id: "source.table.kind",
        severity: "warning",
        source: "CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw;
            CREATE FOREIGN TABLE f (v text) SERVER files OPTIONS (filename '/dev/null')",
        undo_source: "DROP EXTENSION file_fdw CASCADE",
        says: "foreign",
        ..NONE
    },
    Broken {
        id: "source.table.kind",
        severity: "note",
        source: "CREATE VIEW w AS SELECT 1; CREATE MATERIALIZED VIEW x AS SELECT 1",
        undo_source: "DROP VIEW w; DROP MATERIALIZED VIEW x",
        says: "view",
        ..NONE
    },
    Broken {
        id: "source.table.full",
        severity: "warning",
        both: "CREATE TABLE wide (id int PRIMARY KEY, v text); ALTER TABLE wide ALTER v SET STORAGE EXTERNAL",
        source: "INSERT INTO wide VALUES (1, repeat('x', 10000)); ALTER TABLE wide REPLICA IDENTITY FULL",
        undo: "DROP TABLE wide",
        mends: true,
        ..NONE
    },
    Broken {
        id: "source.publication",
        severity: "problem",
        arguments: &["--publication", "theirs"],
        undo_source: "DROP PUBLICATION theirs",
        mends: true,
        ..NONE
    },
    Broken {
        id: "source.publication.operations",
        severity: "warning",
        source: "CREATE PUBLICATION pgonce_FLOW FOR TABLE a, b WITH (publish = 'insert, update')",
        undo_source: "DROP PUBLICATION pgonce_FLOW",
        says: "leaves out delete, truncate",
        mends: true,
        ..NONE
    },
    Broken {
        id: "source.publication.tables",
        severity: "warning",
        source: "CREATE PUBLICATION pgonce_FLOW FOR TABLE a",
        undo_source: "DROP PUBLICATION pgonce_FLOW",
        mends: true,
        ..NONE
    },
    Broken {
        id: "source.publication.tables",
        severity: "problem",
        source: "CREATE PUBLICATION theirs",
        undo_source: "DROP PUBLICATION theirs",
        arguments: &["--publication", "theirs"],
        ..NONE
    },
    Broken {
        id: "source.publication.others",
        severity: "note",
        source: "CREATE PUBLICATION theirs FOR TABLE a",
        undo_source: "DROP PUBLICATION theirs",
        arguments: &["--publication", "theirs"],
        ..NONE
    },
    Broken {
        id: "source.publication.all_tables",
        severity: "note",
        source: "CREATE PUBLICATION theirs FOR ALL TABLES",
        undo_source: "DROP PUBLICATION theirs",
        arguments: &["--publication", "theirs"],
        ..NONE
    },
    Broken {
        id: "source.publication.via_root",
        severity: "warning",
        both: "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);
            CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9)",
        source: "CREATE PUBLICATION theirs FOR TABLE p",
        undo_source: "DROP PUBLICATION theirs",
        undo: "DROP TABLE p",
        arguments: &["--publication", "theirs"],
        mends: true,
        ..NONE
    },
    Broken {
        id: "source.tables",
        severity: "problem",
        arguments: &["--tables", "public.nothing"],
        says: "public.nothing",
        ..NONE
    },
    Broken {
        id: "source.large_objects",
        severity: "warning",
        source: "SELECT lo_create(4711)",
        undo_source: "SELECT lo_unlink(4711)",
        ..NONE
    },
    Broken {
        id: "source.slot",
        severity: "problem",
        source: "SELECT pg_create_physical_replication_slot('pgonce_FLOW')",
        says: "pgoutput is needed",
        mends: true,
        ..NONE
    },
    Broken {
        id: "source.slot",
        severity: "note",
        source: "SELECT pg_create_logical_replication_slot('pgonce_FLOW', 'pgoutput')",
        undo_source: "SELECT pg_drop_replication_slot('pgonce_FLOW')",
        ..NONE
    },
    Broken {
        id: "source.other_slot",
        severity: "note",
        source: "SELECT pg_create_physical_replication_slot('other_FLOW', true); SELECT pg_switch_wal();",
        undo_source: "SELECT pg_drop_replication_slot('other_FLOW')",
        says: "slot other_",
        ..NONE
    },
];

/// On the target.
pub const OF_THE_TARGET: &[Broken] = &[
    Broken {
        id: "target.table",
        severity: "problem",
        source: "CREATE TABLE here (id int PRIMARY KEY)",
        target: "CREATE VIEW here AS SELECT 1 AS id",
        undo_source: "DROP TABLE here",
        undo_target: "DROP VIEW here",
        says: "a view",
        ..NONE
    },
    Broken {
        id: "target.column",
        severity: "problem",
        source: "ALTER TABLE a ADD extra numeric(5, 1)[]",
        undo: "ALTER TABLE a DROP extra",
        mends: true,
        ..NONE
    },
    Broken {
        id: "target.column.extra",
        severity: "problem",
        target: "ALTER TABLE a ADD own int NOT NULL",
        undo_target: "ALTER TABLE a DROP own",
        mends: true,
        ..NONE
    },
    Broken {
        id: "target.column.type",
        severity: "warning",
        source: "ALTER TABLE b ADD n bigint, ADD s varchar(9), ADD d numeric(9, 3)",
        target: "ALTER TABLE b ADD n int, ADD s varchar(5), ADD d numeric(9, 1)",
        undo: "ALTER TABLE b DROP n, DROP s, DROP d",
        mends: true,
        ..NONE
    },
    Broken {
        id: "target.column.type",
        severity: "problem",
        source: "ALTER TABLE b ADD n boolean",
        target: "ALTER TABLE b ADD n int",
        undo: "ALTER TABLE b DROP n",
        mends: true,
        ..NONE
    },
    Broken {
        id: "target.column.type",
        severity: "note",
        source: "ALTER TABLE b ADD n json",
        target: "ALTER TABLE b ADD n jsonb",
        undo: "ALTER TABLE b DROP n",
        ..NONE
    },
    Broken {
        id: "target.column.type",
        severity: "warning",
        both: "CREATE TYPE colour AS ENUM ('red'); ALTER TABLE b ADD n colour",
        source: "ALTER TYPE colour ADD VALUE 'it''s blue'",
        undo: "ALTER TABLE b DROP n; DROP TYPE colour",
        mends: true,
        ..NONE
    },
    Broken {
        id: "target.column.generated",
        severity: "problem",
        source: "ALTER TABLE b ADD g int",
        target: "ALTER TABLE b ADD g int GENERATED ALWAYS AS (id + 1) STORED",
        undo: "ALTER TABLE b DROP g",
        mends: true,
        ..NONE
    },
    Broken {
        id: "target.column.generated",
        severity: "problem",
        source: "ALTER TABLE b ADD g int GENERATED ALWAYS AS (id + 1) STORED",
        target: "ALTER TABLE b ADD g int",
        undo: "ALTER TABLE b DROP g",
        says: "generated on the source",
        ..NONE
    },
    Broken {
        id: "target.column.not_null",
        severity: "warning",
        target: "ALTER TABLE b ALTER c SET NOT NULL",
        mends: true,
        ..NONE
    },
    Broken {
        id: "target.column.identity",
        severity: "warning",
        target: "ALTER TABLE a ALTER id DROP IDENTITY",
        mends: true,
        ..NONE
    },
    Broken {
        id: "target.column.collation",
        severity: "note",
        source: "ALTER TABLE b ADD s text",
        target: "ALTER TABLE b ADD s text COLLATE \"C\"",
        undo: "ALTER TABLE b DROP s",
        ..NONE
    },
    Broken {
        id: "target.table.index",
        severity: "warning",
        target: "ALTER TABLE b DROP CONSTRAINT b_pkey",
        mends: true,
        ..NONE
    },
    Broken {
        id: "target.table.index",
        severity: "warning",
        both: "CREATE TABLE whole (b box, v text); ALTER TABLE whole REPLICA IDENTITY FULL",
        undo: "DROP TABLE whole",
        says: "no key on the source",
        mends: true,
        ..NONE
    },
    Broken {
        id: "target.table.rows",
        severity: "problem",
        target: "INSERT INTO a (v) VALUES ('there'); INSERT INTO b VALUES (1, 1)",
        mends: true,
        ..NONE
    },
    Broken {
        id: "target.table.deferrable",
        severity: "note",
        target: "ALTER TABLE b ADD CONSTRAINT late UNIQUE (c) DEFERRABLE",
        undo_target: "ALTER TABLE b DROP CONSTRAINT late",
        ..NONE
    },
    Broken {
        id: "target.table.triggers",
        severity: "warning",
        target: "CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
            CREATE TRIGGER \"Fire\" BEFORE INSERT ON b FOR EACH ROW EXECUTE FUNCTION fire();
            ALTER TABLE b ENABLE ALWAYS TRIGGER \"Fire\"",
        undo_target: "DROP FUNCTION fire CASCADE",
        mends: true,
        ..NONE
    },
    Broken {
        id: "target.table.rules",
        severity: "warning",
        target: "CREATE RULE no AS ON INSERT TO b DO INSTEAD NOTHING; ALTER TABLE b ENABLE ALWAYS RULE no",
        undo_target: "DROP RULE no ON b",
        mends: true,
        ..NONE
    },
    Broken {
        id: "target.extension",
        severity: "problem",
        source: "CREATE EXTENSION hstore; ALTER TABLE b ADD h hstore",
        undo: "DROP EXTENSION hstore CASCADE",
        mends: true,
        ..NONE
    },
];
