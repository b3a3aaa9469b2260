-- What pgonce keeps on the target. Created by pgonce itself where its role may; an admin can run it instead, and then
-- grant:
--   GRANT USAGE ON SCHEMA pgonce TO <role>;
--   GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pgonce TO <role>;
CREATE SCHEMA IF NOT EXISTS pgonce;

CREATE TABLE IF NOT EXISTS pgonce.meta (version int NOT NULL);
COMMENT ON TABLE pgonce.meta IS 'pgonce: the version of this schema; one row';
INSERT INTO pgonce.meta SELECT 2 WHERE NOT EXISTS (SELECT FROM pgonce.meta);

CREATE TABLE IF NOT EXISTS pgonce.flow (
    name text PRIMARY KEY,
    -- The source that the flow is bound to.
    system_identifier text NOT NULL,
    database text NOT NULL,
    slot text NOT NULL,
    -- What it began with: null until the flow is bound.
    start_mode text CHECK (start_mode IN ('snapshot', 'go-forward')),
    published text,
    -- The target's names of schemas and tables, one a line, where they are not the source's.
    map text,
    boundary pg_lsn,
    timeline bigint,
    -- The checkpoint: the last applied transaction.
    commit_lsn pg_lsn,
    end_lsn pg_lsn,
    checkpoint_timeline bigint,
    commit_time timestamptz,
    -- The last position of an idle source.
    idle_lsn pg_lsn,
    idle_timeline bigint,
    idle_at timestamptz,
    phase text NOT NULL DEFAULT 'new' CHECK (phase IN ('new', 'copying', 'streaming')),
    -- The fence: a writer of an older epoch cannot commit.
    epoch bigint NOT NULL DEFAULT 0,
    holder text,
    -- Why it stopped.
    stop_code text,
    stop_text text,
    stop_hint text,
    stop_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CHECK ((commit_lsn IS NULL) = (end_lsn IS NULL) AND (commit_lsn IS NULL) = (checkpoint_timeline IS NULL)),
    CHECK (commit_lsn < end_lsn),
    CHECK (phase = 'new' OR (start_mode, published, boundary, timeline, idle_lsn, idle_timeline) IS NOT NULL)
);
COMMENT ON TABLE pgonce.flow IS 'pgonce: identity, checkpoint and fence of each flow that writes here';

CREATE TABLE IF NOT EXISTS pgonce.applied (
    flow text NOT NULL,
    commit_lsn pg_lsn NOT NULL,
    xid bigint NOT NULL,
    changes bigint NOT NULL,
    digest text NOT NULL,
    predecessor pg_lsn,
    applied_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (flow, commit_lsn)
);
COMMENT ON TABLE pgonce.applied IS
    'pgonce: the applied transactions, one row each; pruned behind the checkpoint by age';

CREATE TABLE IF NOT EXISTS pgonce.snapshot (
    flow text NOT NULL,
    -- The table, on the source.
    table_oid oid NOT NULL,
    piece int NOT NULL DEFAULT 0,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    -- The table that it is copied into.
    target text,
    -- The pieces of the table hold only if they are all read in one snapshot.
    together boolean NOT NULL DEFAULT false,
    kind text NOT NULL DEFAULT 'whole' CHECK (kind IN ('whole', 'key', 'ctid')),
    key_column text,
    -- From here on, and up to here and not including it; null is without a bound.
    low text,
    high text,
    -- Rows of the piece that the target holds already go when it is copied.
    replaces boolean NOT NULL DEFAULT false,
    -- About how large it is on the source.
    bytes_estimated bigint NOT NULL DEFAULT 0,
    -- Null until the piece has been copied: where it was read, and what of it was copied.
    boundary pg_lsn,
    rows bigint NOT NULL DEFAULT 0,
    bytes bigint NOT NULL DEFAULT 0,
    planned_at timestamptz NOT NULL DEFAULT now(),
    copied_at timestamptz,
    PRIMARY KEY (flow, table_oid, piece)
);
-- From version 1, where a table was one row, written when it had been copied.
DO $$
BEGIN
    IF (SELECT version FROM pgonce.meta) = 1 THEN
        ALTER TABLE pgonce.snapshot
            ADD COLUMN piece int NOT NULL DEFAULT 0,
            ADD COLUMN target text,
            ADD COLUMN together boolean NOT NULL DEFAULT false,
            ADD COLUMN kind text NOT NULL DEFAULT 'whole' CHECK (kind IN ('whole', 'key', 'ctid')),
            ADD COLUMN key_column text,
            ADD COLUMN low text,
            ADD COLUMN high text,
            ADD COLUMN replaces boolean NOT NULL DEFAULT false,
            ADD COLUMN bytes_estimated bigint NOT NULL DEFAULT 0,
            ADD COLUMN bytes bigint NOT NULL DEFAULT 0,
            ADD COLUMN planned_at timestamptz NOT NULL DEFAULT now(),
            ALTER COLUMN boundary DROP NOT NULL,
            ALTER COLUMN rows SET DEFAULT 0,
            ALTER COLUMN copied_at DROP NOT NULL,
            ALTER COLUMN copied_at DROP DEFAULT,
            DROP CONSTRAINT snapshot_pkey,
            ADD PRIMARY KEY (flow, table_oid, piece);
        ALTER TABLE pgonce.flow ADD COLUMN IF NOT EXISTS map text;
        UPDATE pgonce.meta SET version = 2;
    END IF;
END
$$;
COMMENT ON TABLE pgonce.snapshot IS
    'pgonce: the pieces in which tables are copied, and the point at which each was read';

CREATE TABLE IF NOT EXISTS pgonce.schema_copy (
    flow text PRIMARY KEY,
    -- What is left to create when the rows are copied, as pg_dump wrote it.
    after_rows text,
    doing text,
    -- Triggers and rules that were created disabled: what to type at the move.
    to_enable text[] NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    completed_at timestamptz
);
COMMENT ON TABLE pgonce.schema_copy IS 'pgonce: what is left to create of a copied schema, and what to enable at the move';
