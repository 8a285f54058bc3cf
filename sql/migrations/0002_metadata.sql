-- What is declared: datasets, jobs, which reads and writes what, and the controls.

-- The patterns look for what is forbidden, because a bounded repetition costs ten times as much.
CREATE DOMAIN dataflow.name AS text COLLATE "C"
    CHECK (VALUE !~ '[^A-Za-z0-9_.-]|^[^A-Za-z]|^$' AND length(VALUE) <= 63);
COMMENT ON DOMAIN dataflow.name IS
    'Name of a dataset, job or daemon: a letter, then up to 62 letters, digits, and _ . -';

CREATE DOMAIN dataflow.chunkid AS text COLLATE "C"
    CHECK (VALUE !~ '[^A-Za-z0-9._:+=-]|^[.-]|^$' AND length(VALUE) <= 128);
COMMENT ON DOMAIN dataflow.chunkid IS
    'A dataid: 1 to 128 letters, digits and . _ : + = -, not starting with a dot or a dash';

CREATE TABLE dataflow.dataset (
    datasetid dataflow.name PRIMARY KEY,
    flow text NOT NULL DEFAULT '',
    description text NOT NULL DEFAULT '',
    format text NOT NULL DEFAULT 'parquet'
        CHECK (format IN ('csv', 'json', 'parquet', 'orc', 'text', 'delta', 'iceberg', 'postgres', 'jdbc', 'none')),
    location text,
    hostname text,
    port integer CHECK (port BETWEEN 1 AND 65535),
    database text,
    schemaname text,
    tablename text,
    username text,
    encryptedpass text,
    columns text,
    options jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(options) = 'object'),
    checks jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(checks) = 'object'),
    ordering text NOT NULL DEFAULT 'natural' CHECK (ordering IN ('natural', 'text', 'date', 'number')),
    publish text NOT NULL DEFAULT 'pointer' CHECK (publish IN ('pointer', 'rename')),
    environment text,
    calendar text CHECK (calendar IN ('hourly', 'daily', 'weekly', 'monthly')),
    calendar_zone text NOT NULL DEFAULT 'UTC',
    calendar_start timestamptz,
    calendar_ready text NOT NULL DEFAULT 'end' CHECK (calendar_ready IN ('start', 'end')),
    calendar_next timestamptz,
    created timestamptz NOT NULL DEFAULT now(),
    modified timestamptz NOT NULL DEFAULT now(),
    retired timestamptz,
    CHECK ((calendar IS NULL) = (calendar_start IS NULL)),
    CHECK ((calendar IS NULL) = (calendar_next IS NULL))
);
COMMENT ON TABLE dataflow.dataset IS 'A named collection of data with everything needed to reach it, given a key';
COMMENT ON COLUMN dataflow.dataset.flow IS 'The flow file (its name) that declares it';
COMMENT ON COLUMN dataflow.dataset.location IS
    'Where the files are: a path or URL; {dataid} stands for the dataid. NULL for tables and calendars';
COMMENT ON COLUMN dataflow.dataset.encryptedpass IS 'Password sealed to a public key; nothing in this database can open it';
COMMENT ON COLUMN dataflow.dataset.columns IS 'Schema as Spark DDL: order_id bigint, customer string';
COMMENT ON COLUMN dataflow.dataset.options IS 'Reader and writer options, checked against an allow-list before use';
COMMENT ON COLUMN dataflow.dataset.checks IS 'Declared checks: min_rows, not_null, unique, ...';
COMMENT ON COLUMN dataflow.dataset.ordering IS 'How dataids are ordered: natural (2 < 10, 1.9 < 1.10), date, number, or text';
COMMENT ON COLUMN dataflow.dataset.publish IS 'pointer: readers resolve through manifest; rename: also at a fixed path, location/dataid=<id>, a link that is replaced in one moment';
COMMENT ON COLUMN dataflow.dataset.environment IS 'Only hosts of this environment may use it; NULL: any';
COMMENT ON COLUMN dataflow.dataset.calendar IS 'Chunks become READY by themselves, one a period; NULL: an ordinary dataset';
COMMENT ON COLUMN dataflow.dataset.calendar_ready IS 'Whether a period is READY when it starts or when it has ended';
COMMENT ON COLUMN dataflow.dataset.calendar_next IS 'Start of the first period that is not registered yet';
COMMENT ON COLUMN dataflow.dataset.retired IS 'When the flow stopped declaring it; its history stays';
COMMENT ON COLUMN dataflow.dataset.datasetid IS 'Name of the dataset';
COMMENT ON COLUMN dataflow.dataset.description IS 'What it is, for people';
COMMENT ON COLUMN dataflow.dataset.format IS 'How the data is stored: a format of files, or a kind of table';
COMMENT ON COLUMN dataflow.dataset.hostname IS 'Host of the database that holds it; NULL for files';
COMMENT ON COLUMN dataflow.dataset.port IS 'Port of that database; NULL: its default';
COMMENT ON COLUMN dataflow.dataset.database IS 'Database that holds the table';
COMMENT ON COLUMN dataflow.dataset.schemaname IS 'Schema of the table';
COMMENT ON COLUMN dataflow.dataset.tablename IS 'Table that holds the data';
COMMENT ON COLUMN dataflow.dataset.username IS 'Who logs in there; the password is encryptedpass';
COMMENT ON COLUMN dataflow.dataset.calendar_zone IS 'Time zone in which periods begin and end';
COMMENT ON COLUMN dataflow.dataset.calendar_start IS 'Start of the first period';
COMMENT ON COLUMN dataflow.dataset.created IS 'When the row was made';
COMMENT ON COLUMN dataflow.dataset.modified IS 'When the row was changed last';

INSERT INTO dataflow.dataset (datasetid, description, format, calendar, calendar_start, calendar_ready, calendar_next)
VALUES ('today', 'Every day (UTC), READY when it begins', 'none', 'daily',
    date_trunc('day', now(), 'UTC'), 'start', date_trunc('day', now(), 'UTC'));

CREATE TABLE dataflow.job (
    jobid dataflow.name PRIMARY KEY,
    flow text NOT NULL DEFAULT '',
    description text NOT NULL DEFAULT '',
    kind text NOT NULL DEFAULT 'python' CHECK (kind IN ('python', 'sql', 'command', 'spark_submit')),
    params jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(params) = 'object'),
    max_running integer CHECK (max_running >= 0),
    max_attempts integer NOT NULL DEFAULT 1 CHECK (max_attempts >= 1),
    max_lost integer NOT NULL DEFAULT 5 CHECK (max_lost >= 1),
    retry_delay interval NOT NULL DEFAULT '30 seconds' CHECK (retry_delay >= interval '0'),
    timeout interval CHECK (timeout > interval '0'),
    priority integer NOT NULL DEFAULT 0,
    strict_order boolean NOT NULL DEFAULT false,
    code_hash text,
    config_hash text,
    created timestamptz NOT NULL DEFAULT now(),
    modified timestamptz NOT NULL DEFAULT now(),
    retired timestamptz
);
COMMENT ON TABLE dataflow.job IS
    'A named transformation of input datasets into output datasets. Which code it runs is named only in the flow file on the host';
COMMENT ON COLUMN dataflow.job.kind IS 'What sort of code the flow file names for it; a label, never executed';
COMMENT ON COLUMN dataflow.job.params IS 'Parameters, passed to the job as data';
COMMENT ON COLUMN dataflow.job.max_running IS 'At most this many attempts at a time; NULL: no limit of its own';
COMMENT ON COLUMN dataflow.job.max_attempts IS 'Tries of a run before it stays FAILED';
COMMENT ON COLUMN dataflow.job.max_lost IS 'Times a run may lose its runner before it goes to FAILED';
COMMENT ON COLUMN dataflow.job.retry_delay IS 'Delay before the second try; doubles with each further one, with jitter';
COMMENT ON COLUMN dataflow.job.timeout IS 'An attempt that runs longer is cancelled and failed; NULL: none';
COMMENT ON COLUMN dataflow.job.priority IS 'Higher is claimed first; equal priorities share fairly';
COMMENT ON COLUMN dataflow.job.strict_order IS 'A dataid waits until every earlier one of the job is READY';
COMMENT ON COLUMN dataflow.job.code_hash IS 'Hash of the code that would run now; attempts made with another are stale';
COMMENT ON COLUMN dataflow.job.config_hash IS 'Hash of the configuration that would be used now';
COMMENT ON COLUMN dataflow.job.jobid IS 'Name of the job';

CREATE TABLE dataflow.job_input (
    jobid dataflow.name NOT NULL REFERENCES dataflow.job ON DELETE CASCADE,
    datasetid dataflow.name NOT NULL REFERENCES dataflow.dataset,
    mapping jsonb NOT NULL DEFAULT '{"kind": "identity"}' CHECK (jsonb_typeof(mapping) = 'object'),
    kind text NOT NULL GENERATED ALWAYS AS (mapping ->> 'kind') STORED
        CHECK (kind IN ('identity', 'offset', 'window', 'all', 'fixed')),
    PRIMARY KEY (jobid, datasetid)
);
CREATE INDEX job_input_datasetid ON dataflow.job_input (datasetid);
COMMENT ON TABLE dataflow.job_input IS 'What a job reads, and which input chunks make one output chunk';
COMMENT ON COLUMN dataflow.job_input.mapping IS
    '{"kind": "identity" | "offset" | "window" | "all" | "fixed", ...}; see dataflow.required_inputs';
COMMENT ON COLUMN dataflow.job_input.kind IS 'The kind of the mapping, from its JSON';

CREATE TABLE dataflow.job_output (
    jobid dataflow.name NOT NULL REFERENCES dataflow.job ON DELETE CASCADE,
    datasetid dataflow.name NOT NULL UNIQUE REFERENCES dataflow.dataset,
    PRIMARY KEY (jobid, datasetid)
);
COMMENT ON TABLE dataflow.job_output IS 'What a job writes. A dataset has one producer';

CREATE TABLE dataflow.control (
    scope text PRIMARY KEY CHECK (scope = 'global' OR scope ~ '^(job|daemon):[A-Za-z][A-Za-z0-9_.-]{0,62}$'),
    concurrency integer CHECK (concurrency >= 0),
    paused boolean NOT NULL DEFAULT false,
    modified timestamptz NOT NULL DEFAULT now(),
    CHECK (scope <> 'global' OR concurrency IS NOT NULL)
);
COMMENT ON TABLE dataflow.control IS
    'Limits and pauses, effective at once: UPDATE dataflow.control SET concurrency = 20 WHERE scope = ''global''';
COMMENT ON COLUMN dataflow.control.scope IS 'global, job:<jobid> or daemon:<name>';
COMMENT ON COLUMN dataflow.control.concurrency IS 'Attempts at a time in this scope; NULL: no limit of its own';
COMMENT ON COLUMN dataflow.control.paused IS 'No new attempts start in this scope; running ones go on';

INSERT INTO dataflow.control (scope, concurrency) VALUES ('global', 4);

CREATE TABLE dataflow.daemon (
    daemon dataflow.name PRIMARY KEY,
    incarnation uuid NOT NULL DEFAULT gen_random_uuid(),
    hostname text NOT NULL,
    pid integer NOT NULL,
    session_pid integer,
    environment text NOT NULL DEFAULT 'dev',
    version text NOT NULL DEFAULT '',
    jobs text[],
    started timestamptz NOT NULL DEFAULT now(),
    lease interval NOT NULL CHECK (lease > interval '0'),
    lease_until timestamptz NOT NULL,
    stopped timestamptz
);
COMMENT ON TABLE dataflow.daemon IS 'Who claims work, and until when its claims are to be respected without asking';
COMMENT ON COLUMN dataflow.daemon.incarnation IS 'Changes with every start: an old process under the same name can claim nothing';
COMMENT ON COLUMN dataflow.daemon.jobs IS 'The jobs whose code its host has: it claims no others. NULL: any';
COMMENT ON COLUMN dataflow.daemon.session_pid IS 'The server process of its claiming session, which holds its advisory locks';
COMMENT ON COLUMN dataflow.daemon.daemon IS 'Name of the daemon; one process at a time bears it';
COMMENT ON COLUMN dataflow.daemon.hostname IS 'Host it runs on';
COMMENT ON COLUMN dataflow.daemon.pid IS 'Its process on that host';
COMMENT ON COLUMN dataflow.daemon.environment IS 'The environment of its host';
COMMENT ON COLUMN dataflow.daemon.version IS 'Version of its program';
COMMENT ON COLUMN dataflow.daemon.started IS 'When this incarnation started';
COMMENT ON COLUMN dataflow.daemon.lease IS 'How long a renewal is good for';
COMMENT ON COLUMN dataflow.daemon.lease_until IS 'Until when its claims stand without asking';
COMMENT ON COLUMN dataflow.daemon.stopped IS 'When it stopped in order; NULL: it runs, or died';

CREATE TABLE dataflow.key (
    keyid text PRIMARY KEY,
    suite text NOT NULL,
    public_key bytea NOT NULL,
    created timestamptz NOT NULL DEFAULT now(),
    retired timestamptz
);
COMMENT ON TABLE dataflow.key IS 'Public keys to seal credentials with. The private keys are files on the hosts that run jobs';
COMMENT ON COLUMN dataflow.key.keyid IS 'Short name of the key, which sealed values carry';
COMMENT ON COLUMN dataflow.key.suite IS 'HPKE cipher suite it is for';
COMMENT ON COLUMN dataflow.key.public_key IS 'The public key, raw';
COMMENT ON COLUMN dataflow.key.retired IS 'When values ceased to be sealed with it';

CREATE TABLE dataflow.partitioning (
    partitioning dataflow.name,
    datasetid dataflow.name NOT NULL REFERENCES dataflow.dataset ON DELETE CASCADE,
    key_columns text[] NOT NULL CHECK (cardinality(key_columns) > 0),
    kind text NOT NULL CHECK (kind IN ('size', 'every', 'count', 'ids')),
    size bigint CHECK (size > 0),
    created timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (datasetid, partitioning)
);
COMMENT ON TABLE dataflow.partitioning IS 'A named way to split a keyed source into batches; several live side by side';
COMMENT ON COLUMN dataflow.partitioning.partitioning IS 'Name of the partitioning, such as size_5000';
COMMENT ON COLUMN dataflow.partitioning.key_columns IS 'Columns that make up the key, in order';
COMMENT ON COLUMN dataflow.partitioning.kind IS 'size: ranges of so many records; every: every n-th record; count: so many parts; ids: listed keys';
COMMENT ON COLUMN dataflow.partitioning.size IS 'The number that belongs to the kind';

CREATE TABLE dataflow.batch (
    datasetid dataflow.name NOT NULL,
    dataid dataflow.chunkid NOT NULL,
    partitioning dataflow.name NOT NULL,
    bounds jsonb NOT NULL,
    items bigint,
    PRIMARY KEY (datasetid, dataid),
    FOREIGN KEY (datasetid, partitioning) REFERENCES dataflow.partitioning (datasetid, partitioning) ON DELETE CASCADE
);
CREATE INDEX batch_partitioning ON dataflow.batch (datasetid, partitioning);
COMMENT ON TABLE dataflow.batch IS 'One batch of a partitioning, as data: which keys belong to the chunk';
COMMENT ON COLUMN dataflow.batch.dataid IS 'Id of the slice: a date, a sequence number, a shard';
COMMENT ON COLUMN dataflow.batch.bounds IS 'Which keys belong to the chunk, by the kind of its partitioning';
COMMENT ON COLUMN dataflow.batch.items IS 'Records counted when it was made; NULL: not counted';
