-- A schema with what schemas have. Loads on every supported version.
CREATE SCHEMA "Odd Schema";
CREATE TYPE mood AS ENUM ('sad', 'it''s; fine', 'glad');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TYPE pair AS (a int, b text);
CREATE SEQUENCE "Odd Schema"."Plain Seq" INCREMENT -3 MINVALUE -9000 MAXVALUE -1 START -5;
CREATE FUNCTION trap(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $_$
--
-- Name: trap; Type: TABLE; Schema: public; Owner: -
--
BEGIN
    -- $$ ; '
    RETURN n * 2; /* ; */
END
$_$;
CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN NEW.note := coalesce(NEW.note, '') || '!'; RETURN NEW; END $$;
CREATE TABLE customers (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    twice int GENERATED ALWAYS AS (trap(3) + 1) STORED,
    feeling mood DEFAULT 'it''s; fine',
    best_order bigint,
    note text
);
ALTER TABLE customers ADD CONSTRAINT "name; -- is long" CHECK (length(name) > 1) NOT VALID;
CREATE TABLE orders (
    id bigserial PRIMARY KEY WITH (fillfactor = 80),
    customer int NOT NULL REFERENCES customers ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    amount positive,
    parts pair[],
    "Ref No" text UNIQUE DEFERRABLE INITIALLY DEFERRED,
    UNIQUE (customer, id) INCLUDE (amount)
);
ALTER TABLE customers ADD CONSTRAINT best FOREIGN KEY (best_order) REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE customers ADD CONSTRAINT unproved FOREIGN KEY (best_order) REFERENCES orders (id) NOT VALID;
CREATE TABLE "Odd Schema"."Mixed ""Case""" (
    "Key; Col" int DEFAULT nextval('"Odd Schema"."Plain Seq"'),
    "--
-- Name: x; Type: TABLE; Schema: public; Owner: -
--
" text DEFAULT '--
-- Name: y; Type: INDEX; Schema: public; Owner: -
--
;',
    CONSTRAINT "Pk; -- of it" PRIMARY KEY ("Key; Col")
);
CREATE TABLE bookings (id int PRIMARY KEY, during int4range, EXCLUDE USING gist (during WITH &&));
CREATE TABLE events (id int, at date, what text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE events_2024 PARTITION OF events FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
CREATE TABLE events_rest PARTITION OF events DEFAULT PARTITION BY LIST (at);
CREATE TABLE events_rest_all PARTITION OF events_rest DEFAULT;
CREATE INDEX events_what ON events (what, lower(what));
CREATE TABLE event_notes (id int PRIMARY KEY, event int, at date, FOREIGN KEY (event, at) REFERENCES events);
CREATE INDEX orders_amount ON orders (amount) WHERE amount > 10;
CREATE INDEX orders_customer ON orders (customer);
ALTER TABLE orders CLUSTER ON orders_customer;
CREATE UNIQUE INDEX "Orders Expr" ON orders ((amount + 1), trap(amount)) NULLS NOT DISTINCT;
CREATE INDEX orders_stat ON orders ((amount * 2));
ALTER INDEX orders_stat ALTER COLUMN 1 SET STATISTICS 300;
CREATE STATISTICS orders_corr (dependencies) ON customer, amount FROM orders;
CREATE VIEW big_spenders AS
    SELECT c.id, c.name, sum(o.amount) AS total FROM customers c JOIN orders o ON o.customer = c.id GROUP BY c.id;
CREATE MATERIALIZED VIEW totals AS SELECT customer, count(*) AS n FROM orders GROUP BY customer;
CREATE UNIQUE INDEX totals_customer ON totals (customer);
CREATE TRIGGER stamp BEFORE INSERT ON customers FOR EACH ROW EXECUTE FUNCTION stamp();
CREATE RULE quiet AS ON DELETE TO bookings WHERE OLD.id < 0 DO INSTEAD NOTHING;
CREATE POLICY mine ON event_notes USING (id > 0);
ALTER TABLE event_notes ENABLE ROW LEVEL SECURITY;
COMMENT ON TABLE customers IS 'who''s who; --
-- Name: z; Type: TABLE; Schema: public; Owner: -
';
COMMENT ON CONSTRAINT best ON customers IS 'the best';
COMMENT ON INDEX orders_amount IS 'an index';
COMMENT ON TRIGGER stamp ON customers IS 'a trigger';
