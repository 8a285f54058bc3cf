-- Statements on the databases that hold tables of datasets, which are not the control database. {name} stands for a quoted
-- identifier, a type as the server writes it, or a list of them; {text} for a quoted string, {count} for a number; values are
-- bound.

-- begin: an interval is written the same everywhere, and a chunk named by an hour means that hour in UTC
SELECT set_config('TimeZone', 'UTC', false), set_config('client_min_messages', 'warning', false);

-- bind: the values of a read, which COPY takes from no parameter; conditions find them by name with current_setting
SELECT set_config(key, value, false) FROM json_each_text($1::json);

-- columns: what a table consists of; no rows: there is none
SELECT a.attname::text, format_type(a.atttypid, -1), coalesce(base.typname, t.typname)::text,
    CASE WHEN t.typbasetype <> 0 THEN t.typtypmod ELSE a.atttypmod END,
    a.atthasdef OR a.attidentity <> '', a.attgenerated <> ''
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_type base ON base.oid = nullif(t.typbasetype, 0)
WHERE n.nspname = %(schema)s AND c.relname = %(table)s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
ORDER BY a.attnum;

-- read: some columns of the rows that fulfil all conditions
SELECT {columns} FROM {source} WHERE {condition};

-- extremes: between which values a column lies
SELECT min({column}), max({column}) FROM {source} WHERE {condition};

-- whole_pass: a split reads all of what it orders, where a cursor is planned for the first tenth; until the transaction ends
SELECT set_config('cursor_tuple_fraction', '1', true);

-- walk: a place in the order of the key, to be moved on without sending what it passes
DECLARE dataflow_walk NO SCROLL CURSOR FOR SELECT {order} FROM {source} AS s WHERE {present} ORDER BY {order};

-- walk_on: over so many records
MOVE FORWARD {count} FROM dataflow_walk;

-- walk_read: the next records
FETCH FORWARD {count} FROM dataflow_walk;

-- walk_end: the place is given up
CLOSE dataflow_walk;

-- split: where each batch of so many records begins in the order of the key, and how many come before it; and the last record
SELECT {texts}, n, first, is_last FROM (
    SELECT {keys}, row_number() OVER w - 1 AS n, rank() OVER w - 1 AS first, lead(1) OVER w IS NULL AS is_last
    FROM {source} WHERE {present} WINDOW w AS (ORDER BY {keys})
) AS ranked
WHERE n %% %(size)s::bigint = 0 OR is_last ORDER BY n;

-- keyed: how many records there are that have a key, and how many keys
SELECT count(*), count(DISTINCT ({keys})) FROM {source} WHERE {present};

-- keyless: how many have none
SELECT count(*) FROM {source} WHERE NOT ({present});

-- every: the keys whose rank leaves a rest; equal keys stay together
SELECT {keys} FROM (
    SELECT {keys}, dense_rank() OVER (ORDER BY {keys}) - 1 AS n FROM {source} WHERE {present}
) AS ranked
WHERE n % {every} = {rest};

-- as_type: whether a dataid can be a value of a column
SELECT %(dataid)s::{type};

-- lock_names: whoever creates a table that all chunks share does so alone; held until the transaction ends
SELECT pg_advisory_xact_lock(hashtextextended('dataflow ' || %(schema)s, 0));

-- has_ledger: whether the ledger is there
SELECT to_regclass(%(ledger)s) IS NOT NULL;

-- create_ledger: which attempt has the right to replace a chunk's rows, and which one has done it
CREATE TABLE IF NOT EXISTS {ledger} (
    tablename text NOT NULL,
    dataid text NOT NULL,
    fence bigint NOT NULL,
    attempt bigint,
    rows bigint,
    published timestamptz,
    PRIMARY KEY (tablename, dataid)
);

-- comment_ledger: for the people whose schema it stands in
COMMENT ON TABLE {ledger} IS 'dataflowd: the attempt that may replace the rows of a chunk (fence), and the one that did (attempt). Without it an outdated attempt could overwrite a newer one';

-- take: from now on no older attempt can replace the rows; no row: a newer one has been here
INSERT INTO {ledger} AS l (tablename, dataid, fence) VALUES (%(table)s, %(dataid)s, %(attempt)s)
ON CONFLICT (tablename, dataid) DO UPDATE SET fence = excluded.fence WHERE l.fence <= excluded.fence
RETURNING l.fence;

-- entry: a chunk's fence and the attempt that is published
SELECT fence, attempt FROM {ledger} WHERE tablename = %(table)s AND dataid = %(dataid)s;

-- entry_locked: the same, and nobody else changes it before this transaction ends
SELECT fence, attempt FROM {ledger} WHERE tablename = %(table)s AND dataid = %(dataid)s FOR UPDATE;

-- published_locked: those of some chunks that an attempt has published; nobody else changes them before this transaction ends
SELECT dataid FROM {ledger} WHERE tablename = %(table)s AND dataid = ANY (%(dataids)s::text[]) AND attempt IS NOT NULL
ORDER BY dataid FOR UPDATE;

-- enter: the rows of this attempt are in the table
UPDATE {ledger} SET attempt = %(attempt)s, rows = %(rows)s, published = now()
WHERE tablename = %(table)s AND dataid = %(dataid)s;

-- leave: the chunks have no rows any more, and no attempt that is known until now may give them some
UPDATE {ledger} SET fence = fence + 1, attempt = NULL, rows = NULL, published = NULL
WHERE tablename = %(table)s AND dataid = ANY (%(dataids)s::text[]);

-- create_staging: unlogged, because an attempt that a crash of the server interrupts is repeated
CREATE UNLOGGED TABLE {staging} ();

-- add_column: to a table that is being made
ALTER TABLE {target} ADD COLUMN {column} {type};

-- mark_staging: whose it is; only what bears this mark is ever collected
COMMENT ON TABLE {staging} IS {text};

-- create_target: a table for what was staged first
CREATE TABLE {target} (LIKE {staging});

-- index_target: replacing a chunk's rows must not read all others
CREATE INDEX ON {target} ({column});

-- measure: what an attempt has staged
SELECT (SELECT count(*) FROM {staging}), pg_table_size(%(staging)s::regclass);

-- strays: staged rows that name another chunk
SELECT count(*) FROM {staging} WHERE {column}::{type} IS DISTINCT FROM %(dataid)s::{type};

-- delete_rows: what a chunk consisted of until now
DELETE FROM {target} WHERE {column} = %(dataid)s::{type};

-- delete_chunks: all rows of some chunks
DELETE FROM {target} WHERE {column} = ANY (%(dataids)s::{type}[]);

-- insert_rows: what it consists of from now on
INSERT INTO {target} ({columns}) SELECT {sources} FROM {staging};

-- drop_staging: its rows are where they belong, or nobody wants them any more
DROP TABLE IF EXISTS {staging};

-- bounds: somebody waits for the end of this transaction, with another one open
SELECT set_config('lock_timeout', %(lock)s, true), set_config('statement_timeout', %(statement)s, true);

-- hurry: a staging table that somebody still writes is left for the next time
SELECT set_config('lock_timeout', '500ms', true);

-- stagings: the staging tables of a table, with their marks
SELECT c.relname::text, obj_description(c.oid, 'pg_class')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind = 'r' AND starts_with(obj_description(c.oid, 'pg_class'), %(mark)s);
