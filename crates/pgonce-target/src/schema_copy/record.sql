CREATE TABLE IF NOT EXISTS pgonce.schema_copy (
    flow text PRIMARY KEY,
    after_rows text,
    doing text,
    to_enable text[] NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    completed_at timestamptz
);
COMMENT ON TABLE pgonce.schema_copy IS 'pgonce: what is left to create of a copied schema, and what to enable at the move';
