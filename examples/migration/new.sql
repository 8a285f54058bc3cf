-- The target database. The table has the same columns as before, and the shard of each row.
CREATE TABLE customers (
    id bigint PRIMARY KEY,
    name text NOT NULL,
    email text,
    balance numeric(12, 2) NOT NULL,
    born date,
    changed timestamptz NOT NULL,
    note text,
    shard text NOT NULL
);
CREATE INDEX ON customers (shard);

-- Faults on purpose: the database refuses one of :every loads, as if its disk were full. A rollback does not reset a
-- sequence, so the retry of a refused load gets the next number.
CREATE SEQUENCE loads;
CREATE FUNCTION refuse_now_and_then() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('loads') % TG_ARGV[0]::int = 0 THEN
        RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER faults AFTER INSERT ON customers FOR EACH STATEMENT EXECUTE FUNCTION refuse_now_and_then(:every);
