-- Statements on the databases that hold tables of datasets, which are not the control database. {name} stands for a quoted
-- identifier, a type as the server writes it, or a list of them; {text} for a quoted string, {count} for a number; values are
-- bound.

-- begin: intervals have one spelling, and hours of dataids are in UTC
SELECT set_config('TimeZone', 'UTC', false), set_config('client_min_messages', 'warning', false);

-- bind: COPY takes no parameters, so the values of a read are settings; its conditions read them with current_setting
SELECT set_config(key, value, false) FROM json_each_text($1::json);

-- columns: the columns of a table; no rows: there is no such table
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

-- whole_pass: a split reads all rows, while Postgres plans a cursor for the first tenth; until the transaction ends
SELECT set_config('cursor_tuple_fraction', '1', true);

-- walk: a cursor in the order of the key, which skips rows without sending them
DECLARE dataflow_walk NO SCROLL CURSOR FOR SELECT {order} FROM {source} AS s WHERE {present} ORDER BY {order};

-- walk_on: skip so many records
MOVE FORWARD {count} FROM dataflow_walk;

-- walk_read: the next records
FETCH FORWARD {count} FROM dataflow_walk;

-- walk_end: close the cursor
CLOSE dataflow_walk;

-- split: where each batch of so many records begins in the order of the key, and how many come before it; and the last record
SELECT {texts}, n, first, is_last FROM (
    SELECT {keys}, row_number() OVER w - 1 AS n, rank() OVER w - 1 AS first, lead(1) OVER w IS NULL AS is_last
    FROM {source} WHERE {present} WINDOW w AS (ORDER BY {keys})
) AS ranked
WHERE n %% %(size)s::bigint = 0 OR is_last ORDER BY n;

-- keyed: how many records there are that have a key, and how many keys
SELECT count(*), count(DISTINCT ({keys})) FROM {source} WHERE {present};

-- keyless: how many records have no key
SELECT count(*) FROM {source} WHERE NOT ({present});

-- every: the keys whose rank leaves a rest; equal keys stay together
SELECT {keys} FROM (
    SELECT {keys}, dense_rank() OVER (ORDER BY {keys}) - 1 AS n FROM {source} WHERE {present}
) AS ranked
WHERE n % {every} = {rest};

-- as_type: whether a dataid can be a value of a column
SELECT %(dataid)s::{type};

-- lock_names: only one attempt at a time creates a table that all chunks share; held until the transaction ends
SELECT pg_advisory_xact_lock(hashtextextended('dataflow ' || %(schema)s, 0));

-- has_ledger: whether the ledger is there
SELECT to_regclass(%(ledger)s) IS NOT NULL;

-- create_ledger: a table of which attempt may replace a chunk's rows, and which attempt has replaced them
CREATE TABLE IF NOT EXISTS {ledger} (
    tablename text NOT NULL,
    dataid text NOT NULL,
    fence bigint NOT NULL,
    attempt bigint,
    rows bigint,
    published timestamptz,
    PRIMARY KEY (tablename, dataid)
);

-- comment_ledger: explains the ledger to the owners of the schema
COMMENT ON TABLE {ledger} IS 'dataflowd: the attempt that may replace the rows of a chunk (fence), and the one that did (attempt). Without it an outdated attempt could overwrite a newer one';

-- take: from now on no older attempt can replace the rows; no row: a newer attempt came first
INSERT INTO {ledger} AS l (tablename, dataid, fence) VALUES (%(table)s, %(dataid)s, %(attempt)s)
ON CONFLICT (tablename, dataid) DO UPDATE SET fence = excluded.fence WHERE l.fence <= excluded.fence
RETURNING l.fence;

-- entry: a chunk's fence and the attempt that is published
SELECT fence, attempt FROM {ledger} WHERE tablename = %(table)s AND dataid = %(dataid)s;

-- entry_locked: the same, locked until this transaction ends
SELECT fence, attempt FROM {ledger} WHERE tablename = %(table)s AND dataid = %(dataid)s FOR UPDATE;

-- published_locked: which of these chunks an attempt has published, locked until this transaction ends
SELECT dataid FROM {ledger} WHERE tablename = %(table)s AND dataid = ANY (%(dataids)s::text[]) AND attempt IS NOT NULL
ORDER BY dataid FOR UPDATE;

-- enter: record that the rows of this attempt are in the table
UPDATE {ledger} SET attempt = %(attempt)s, rows = %(rows)s, published = now()
WHERE tablename = %(table)s AND dataid = %(dataid)s;

-- leave: record that the chunks have no rows any more, and fence all attempts so far
UPDATE {ledger} SET fence = fence + 1, attempt = NULL, rows = NULL, published = NULL
WHERE tablename = %(table)s AND dataid = ANY (%(dataids)s::text[]);

-- create_staging: unlogged, because an attempt that a crash of the server interrupts is repeated
CREATE UNLOGGED TABLE {staging} ();

-- add_column: to a table that is being made
ALTER TABLE {target} ADD COLUMN {column} {type};

-- mark_staging: whose staging table it is; only tables with this mark are ever collected
COMMENT ON TABLE {staging} IS {text};

-- create_target: the table that the first attempt publishes to
CREATE TABLE {target} (LIKE {staging});

-- index_target: replacing a chunk's rows must not read all others
CREATE INDEX ON {target} ({column});

-- measure: what an attempt has staged
SELECT (SELECT count(*) FROM {staging}), pg_table_size(%(staging)s::regclass);

-- strays: staged rows that belong to another chunk
SELECT count(*) FROM {staging} WHERE {column}::{type} IS DISTINCT FROM %(dataid)s::{type};

-- delete_rows: the rows of a chunk until now
DELETE FROM {target} WHERE {column} = %(dataid)s::{type};

-- delete_chunks: all rows of some chunks
DELETE FROM {target} WHERE {column} = ANY (%(dataids)s::{type}[]);

-- insert_rows: the rows of a chunk from now on
INSERT INTO {target} ({columns}) SELECT {sources} FROM {staging};

-- drop_staging: its rows are published, or nobody needs them
DROP TABLE IF EXISTS {staging};

-- bounds: limits the time of this transaction, because another one waits for it
SELECT set_config('lock_timeout', %(lock)s, true), set_config('statement_timeout', %(statement)s, true);

-- hurry: gives up a staging table that somebody still writes; the next collection takes it
SELECT set_config('lock_timeout', '500ms', true);

-- stagings: the staging tables of a table, with their marks
SELECT c.relname::text, obj_description(c.oid, 'pg_class')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind = 'r' AND starts_with(obj_description(c.oid, 'pg_class'), %(mark)s);
