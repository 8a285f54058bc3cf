-- What happens: the status of every chunk, the work that is ready, attempts, what they published, and history.
--
-- The tables that every run writes have no foreign keys to dataset, job and attempt: each check would lock the same few
-- rows for all writers. The functions that write look these names up anyway, and nothing deletes what is referred to.

CREATE TABLE dataflow.attempt (
    attempt bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    jobid dataflow.name NOT NULL,
    dataid dataflow.chunkid NOT NULL,
    number integer NOT NULL CHECK (number >= 1),
    tries integer NOT NULL CHECK (tries >= 1),
    lost integer NOT NULL DEFAULT 0 CHECK (lost >= 0),
    token uuid NOT NULL DEFAULT gen_random_uuid(),
    daemon dataflow.name NOT NULL,
    incarnation uuid NOT NULL,
    tag text NOT NULL,
    forced boolean NOT NULL DEFAULT false,
    inputs jsonb NOT NULL,
    answers jsonb NOT NULL,
    -- not now(): a claim may take what was queued after its transaction began
    claimed timestamptz NOT NULL DEFAULT clock_timestamp(),
    started timestamptz,
    ended timestamptz,
    outcome text CHECK (outcome IN ('DONE', 'FAILED', 'LOST', 'CANCELLED', 'RETURNED')),
    code text,
    error text,
    retry_at timestamptz,
    code_hash text,
    config_hash text,
    usage jsonb NOT NULL DEFAULT '{}',
    let_go boolean NOT NULL DEFAULT false,
    CHECK ((ended IS NULL) = (outcome IS NULL)),
    CHECK (retry_at IS NULL OR outcome IS NOT DISTINCT FROM 'FAILED'),
    CHECK (outcome IS DISTINCT FROM 'FAILED' OR code IS NOT NULL)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
CREATE UNIQUE INDEX attempt_run ON dataflow.attempt (jobid, dataid, number);
-- Never two live attempts for a run. NOT let_go is always true of them; it keeps this index out of the plans that count
-- what runs, which are to start in the next one at the oldest attempt.
CREATE UNIQUE INDEX attempt_live ON dataflow.attempt (jobid, dataid) WHERE ended IS NULL AND NOT let_go;
CREATE INDEX attempt_running ON dataflow.attempt (attempt) INCLUDE (jobid, daemon) WHERE ended IS NULL;
CREATE INDEX attempt_stopping ON dataflow.attempt (daemon) WHERE outcome = 'CANCELLED' AND NOT let_go;
CREATE INDEX attempt_failed ON dataflow.attempt (jobid, ended) WHERE outcome IN ('FAILED', 'LOST', 'CANCELLED');
COMMENT ON TABLE dataflow.attempt IS 'One try of a run. The row is the claim, the token is the fence';
COMMENT ON COLUMN dataflow.attempt.number IS 'Counts the attempts of the run, from 1';
COMMENT ON COLUMN dataflow.attempt.tries IS 'Which try of this production it is; RESUBMIT starts again at 1';
COMMENT ON COLUMN dataflow.attempt.lost IS 'How often this production lost its runner before';
COMMENT ON COLUMN dataflow.attempt.token IS 'Every write by the attempt names it; another token means stop';
COMMENT ON COLUMN dataflow.attempt.tag IS 'Unique mark that goes to Spark as job tag, so that a restarted daemon can find or kill it';
COMMENT ON COLUMN dataflow.attempt.forced IS 'Started by an operator although a question was answered no';
COMMENT ON COLUMN dataflow.attempt.inputs IS 'Which version of each input it was given: {dataset: {dataid: version}}';
COMMENT ON COLUMN dataflow.attempt.answers IS 'The five answers at the moment of the claim';
COMMENT ON COLUMN dataflow.attempt.started IS 'When the job''s own code began';
COMMENT ON COLUMN dataflow.attempt.outcome IS 'DONE, FAILED, LOST (its daemon died), CANCELLED, RETURNED (given back at shutdown)';
COMMENT ON COLUMN dataflow.attempt.retry_at IS 'When the job''s own retry policy tries again; NULL: it waits for RESUBMIT';
COMMENT ON COLUMN dataflow.attempt.let_go IS 'Its daemon says that its runner is gone; a cancelled run is not claimed again by the same daemon before that';
COMMENT ON COLUMN dataflow.attempt.usage IS 'Exit status, signal, max_rss, cpu_seconds and the like';
COMMENT ON COLUMN dataflow.attempt.attempt IS 'Number of the attempt, unique in this database';
COMMENT ON COLUMN dataflow.attempt.claimed IS 'When a daemon claimed the run';
COMMENT ON COLUMN dataflow.attempt.ended IS 'When it ended; NULL: it is alive';
COMMENT ON COLUMN dataflow.attempt.error IS 'What went wrong, for people';

CREATE TABLE dataflow.manifest (
    datasetid dataflow.name NOT NULL,
    dataid dataflow.chunkid NOT NULL,
    version integer NOT NULL CHECK (version >= 1),
    attempt bigint NOT NULL,
    location text,
    files jsonb NOT NULL DEFAULT '[]',
    bytes bigint CHECK (bytes >= 0),
    rows bigint CHECK (rows >= 0),
    columns text,
    fingerprint text,
    published timestamptz NOT NULL DEFAULT now(),
    collected timestamptz,
    PRIMARY KEY (datasetid, dataid, version)
);
CREATE INDEX manifest_attempt ON dataflow.manifest (attempt);
COMMENT ON TABLE dataflow.manifest IS 'What an attempt published for a chunk. datastatus.manifest points at the current one';
COMMENT ON COLUMN dataflow.manifest.files IS 'The files: [{"path", "bytes", "rows"}]';
COMMENT ON COLUMN dataflow.manifest.version IS 'Counts the publications of the chunk, from 1';
COMMENT ON COLUMN dataflow.manifest.bytes IS 'Size of all files';
COMMENT ON COLUMN dataflow.manifest.rows IS 'Number of rows, as counted and as the files say';
COMMENT ON COLUMN dataflow.manifest.fingerprint IS 'Hash of the content, where the job gives one';
COMMENT ON COLUMN dataflow.manifest.published IS 'When it became current';
COMMENT ON COLUMN dataflow.manifest.collected IS 'When its files were removed, because a later version had long replaced it; NULL: they are there';

CREATE TABLE dataflow.forgotten (
    attempt bigint NOT NULL,
    datasetid dataflow.name NOT NULL,
    dataid dataflow.chunkid NOT NULL,
    claimed timestamptz NOT NULL,
    ended timestamptz,
    forgotten timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (attempt, datasetid)
);
COMMENT ON TABLE dataflow.forgotten IS
    'Attempts whose runs or chunks were deleted: collect() knows by them that the files were ours, and since when nobody wants them';
COMMENT ON COLUMN dataflow.forgotten.forgotten IS 'When the run or chunk was deleted';

CREATE TABLE dataflow.datastatus (
    datasetid dataflow.name NOT NULL,
    dataid dataflow.chunkid NOT NULL,
    locktype text COLLATE "C" NOT NULL DEFAULT 'OUT',
    jobid text COLLATE "C" NOT NULL DEFAULT '',
    run text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    modified timestamptz NOT NULL DEFAULT now(),
    attempt bigint,
    version integer NOT NULL DEFAULT 0 CHECK (version >= 0),
    manifest integer,
    external boolean NOT NULL DEFAULT false,
    validated boolean NOT NULL DEFAULT true,
    held_from text,
    code text,
    reason text,
    sortkey text COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (datasetid, dataid, locktype, jobid, run),
    FOREIGN KEY (datasetid, dataid, manifest) REFERENCES dataflow.manifest (datasetid, dataid, version),
    CONSTRAINT datastatus_status CHECK (
        (locktype = 'OUT' AND status IN ('RUNNING', 'READY', 'FAILED', 'RESUBMIT', 'PENDING', 'HOLD'))
        OR (locktype = 'IN' AND status IN ('RUNNING', 'DONE', 'ERROR'))
    ),
    CONSTRAINT datastatus_run CHECK (CASE locktype WHEN 'OUT' THEN run = dataid ELSE jobid <> '' END),
    CONSTRAINT datastatus_published CHECK (status <> 'READY' OR external <> (manifest IS NOT NULL)),
    CONSTRAINT datastatus_running CHECK (status <> 'RUNNING' OR attempt IS NOT NULL),
    CONSTRAINT datastatus_held CHECK ((held_from IS NOT NULL) = (status IN ('HOLD', 'PENDING')))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
CREATE UNIQUE INDEX datastatus_chunk ON dataflow.datastatus (datasetid, dataid) WHERE locktype = 'OUT';
-- Indexes for order start with an expression and leave the dataid out, so that no look-up by key can choose them: a plan made while the tables
-- are empty sees no difference between them and the key, and would scan a million rows for one later.
CREATE INDEX datastatus_order ON dataflow.datastatus ((datasetid || ''), sortkey) WHERE locktype = 'OUT';
COMMENT ON TABLE dataflow.datastatus IS
    'The status of every chunk, and the lock table. OUT: RUNNING (being written), READY (published and validated), FAILED, RESUBMIT (may be rewritten), PENDING and HOLD (an operator''s hand). IN: RUNNING (being consumed), DONE, ERROR. No row: no lock. UPDATE ... SET status = ''RESUBMIT'' recovers';
COMMENT ON COLUMN dataflow.datastatus.locktype IS 'OUT: the chunk as its producer''s output; IN: the chunk as a job''s input';
COMMENT ON COLUMN dataflow.datastatus.jobid IS 'OUT: the producer, empty for a chunk that no job produces; IN: the consumer';
COMMENT ON COLUMN dataflow.datastatus.run IS 'The dataid of the run; differs from dataid where a mapping does';
COMMENT ON COLUMN dataflow.datastatus.attempt IS 'The last attempt that wrote or read it';
COMMENT ON COLUMN dataflow.datastatus.version IS 'OUT: counts publications; IN: the version that was used';
COMMENT ON COLUMN dataflow.datastatus.manifest IS 'The version whose manifest describes the published data';
COMMENT ON COLUMN dataflow.datastatus.external IS 'Registered from outside: READY without a manifest';
COMMENT ON COLUMN dataflow.datastatus.validated IS 'False: it has arrived, but nobody has vouched for it yet';
COMMENT ON COLUMN dataflow.datastatus.held_from IS 'The status that release() restores';
COMMENT ON COLUMN dataflow.datastatus.code IS 'Why it is FAILED: one word';
COMMENT ON COLUMN dataflow.datastatus.reason IS 'Why it is FAILED or held: a sentence';
COMMENT ON COLUMN dataflow.datastatus.sortkey IS 'Orders the dataids of a dataset; see dataflow.sortkey()';
COMMENT ON COLUMN dataflow.datastatus.status IS 'See the table''s comment; synonyms are normalised, anything else is refused';

CREATE TABLE dataflow.work (
    jobid dataflow.name NOT NULL,
    dataid dataflow.chunkid NOT NULL,
    sortkey text COLLATE "C" NOT NULL,
    not_before timestamptz,
    enqueued timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (jobid, dataid)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX work_next ON dataflow.work ((jobid || ''), sortkey) WHERE not_before IS NULL;
CREATE INDEX work_later ON dataflow.work (not_before) WHERE not_before IS NOT NULL;
CREATE INDEX work_age ON dataflow.work ((jobid || ''), enqueued);
COMMENT ON TABLE dataflow.work IS 'Runs that are ready now. Derived: never edited by hand, rebuilt by dataflow.rebuild_work()';
COMMENT ON COLUMN dataflow.work.not_before IS 'A retry waits until then; NULL: at once';
COMMENT ON COLUMN dataflow.work.enqueued IS 'When it became ready';

CREATE TABLE dataflow.open_run (
    jobid dataflow.name NOT NULL,
    sortkey text COLLATE "C" NOT NULL,
    dataid dataflow.chunkid NOT NULL,
    PRIMARY KEY (jobid, sortkey, dataid)
);
COMMENT ON TABLE dataflow.open_run IS 'The known runs of strict_order jobs that are not READY, in order. Derived';

CREATE TABLE dataflow.recheck (
    recheck bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    jobid dataflow.name NOT NULL,
    dataid dataflow.chunkid,
    horizon xid8,
    looked timestamptz
);
COMMENT ON TABLE dataflow.recheck IS
    'Runs judged not ready while another transaction was changing status: settle() judges them again. Derived';
COMMENT ON COLUMN dataflow.recheck.horizon IS 'Once every transaction before this one has ended, one more look is the last; NULL: settle() has not looked yet';
COMMENT ON COLUMN dataflow.recheck.looked IS 'When settle() looked last, while an earlier transaction was still open';
COMMENT ON COLUMN dataflow.recheck.dataid IS 'NULL: the first open run of a strict_order job';
COMMENT ON COLUMN dataflow.recheck.recheck IS 'Number of the entry, in order of arrival';

CREATE TABLE dataflow.check_result (
    attempt bigint NOT NULL REFERENCES dataflow.attempt ON DELETE CASCADE,
    datasetid dataflow.name NOT NULL,
    name text NOT NULL,
    severity text NOT NULL DEFAULT 'error' CHECK (severity IN ('error', 'warn')),
    passed boolean NOT NULL,
    observed text,
    expected text,
    PRIMARY KEY (attempt, datasetid, name)
);
COMMENT ON TABLE dataflow.check_result IS 'What each declared check observed, and its limit';
COMMENT ON COLUMN dataflow.check_result.name IS 'Name of the check, such as min_rows';
COMMENT ON COLUMN dataflow.check_result.severity IS 'error: the attempt fails with it; warn: it does not';
COMMENT ON COLUMN dataflow.check_result.passed IS 'Whether the data kept to it';
COMMENT ON COLUMN dataflow.check_result.observed IS 'What was found';
COMMENT ON COLUMN dataflow.check_result.expected IS 'What was declared';

CREATE TABLE dataflow.node_stat (
    attempt bigint NOT NULL REFERENCES dataflow.attempt ON DELETE CASCADE,
    node text NOT NULL,
    ordinal integer NOT NULL DEFAULT 0,
    items bigint NOT NULL DEFAULT 0,
    successes bigint NOT NULL DEFAULT 0,
    failures bigint NOT NULL DEFAULT 0,
    seconds double precision NOT NULL DEFAULT 0,
    PRIMARY KEY (attempt, node)
);
COMMENT ON TABLE dataflow.node_stat IS 'What each named node of a job did in an attempt';
COMMENT ON COLUMN dataflow.node_stat.node IS 'Name that the job gave to the step';
COMMENT ON COLUMN dataflow.node_stat.ordinal IS 'Place of the node in the job';
COMMENT ON COLUMN dataflow.node_stat.items IS 'Records that came to the node';
COMMENT ON COLUMN dataflow.node_stat.successes IS 'Records that passed';
COMMENT ON COLUMN dataflow.node_stat.failures IS 'Records that did not';
COMMENT ON COLUMN dataflow.node_stat.seconds IS 'Time spent';

CREATE TABLE dataflow.quarantine (
    jobid dataflow.name NOT NULL REFERENCES dataflow.job,
    dataid dataflow.chunkid NOT NULL,
    itemid text NOT NULL,
    attempt bigint NOT NULL,
    code text NOT NULL DEFAULT 'BAD_RECORD',
    reason text NOT NULL DEFAULT '',
    details jsonb NOT NULL DEFAULT '{}',
    created timestamptz NOT NULL DEFAULT now(),
    is_resolved boolean NOT NULL DEFAULT false,
    resolved_by text,
    resolved timestamptz,
    resolution jsonb,
    applied bigint,
    PRIMARY KEY (jobid, dataid, itemid),
    CHECK (is_resolved = (resolved IS NOT NULL))
);
COMMENT ON TABLE dataflow.quarantine IS 'Bad records, set aside for a person';
COMMENT ON COLUMN dataflow.quarantine.itemid IS 'Key of the record in its chunk';
COMMENT ON COLUMN dataflow.quarantine.details IS 'The record, and what is wrong with it';
COMMENT ON COLUMN dataflow.quarantine.is_resolved IS 'Whether a person has dealt with it';
COMMENT ON COLUMN dataflow.quarantine.resolved_by IS 'Who has';
COMMENT ON COLUMN dataflow.quarantine.resolved IS 'When';
COMMENT ON COLUMN dataflow.quarantine.resolution IS '{"repaired": {column: value}}, or why it is dropped';
COMMENT ON COLUMN dataflow.quarantine.applied IS 'The attempt that published the chunk with the resolution; NULL: replay() does';

CREATE TABLE dataflow.event (
    event bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor text NOT NULL DEFAULT session_user,
    application text NOT NULL DEFAULT current_setting('application_name'),
    kind text NOT NULL CHECK (kind IN ('status', 'queued', 'blocked', 'refused', 'control', 'daemon', 'credential')),
    jobid text COLLATE "C" NOT NULL DEFAULT '',
    dataid text COLLATE "C" NOT NULL DEFAULT '',
    datasetid text COLLATE "C",
    attempt bigint,
    from_status text,
    to_status text,
    code text,
    reason text
);
CREATE INDEX event_run ON dataflow.event (jobid, dataid, event);
CREATE INDEX event_at ON dataflow.event USING brin (at);
COMMENT ON TABLE dataflow.event IS
    'Append-only history of every transition and of every change of a run''s blocking reason: who, when, from, to, why';
COMMENT ON COLUMN dataflow.event.actor IS 'The database user who did it';
COMMENT ON COLUMN dataflow.event.application IS 'The program it was done with (application_name)';
COMMENT ON COLUMN dataflow.event.event IS 'Number of the event; a later one is larger';
COMMENT ON COLUMN dataflow.event.at IS 'When it happened';
COMMENT ON COLUMN dataflow.event.kind IS 'What it is about: a status, the queue, a refusal, a control, a daemon or a credential';
COMMENT ON COLUMN dataflow.event.from_status IS 'Status before';
COMMENT ON COLUMN dataflow.event.to_status IS 'Status after';

CREATE TABLE dataflow.counter (
    datasetid text COLLATE "C" NOT NULL,
    jobid text COLLATE "C" NOT NULL,
    locktype text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    chunks bigint NOT NULL
);
COMMENT ON TABLE dataflow.counter IS
    'Chunks by dataset, job and status (locktype OUT), and queued runs by job (locktype WORK): the sum of all rows of a key is exact. Writers append differences, so that no row is hot; fold_counters() adds them up';
COMMENT ON COLUMN dataflow.counter.chunks IS 'A difference to be added up';

CREATE TYPE dataflow.status_change AS (
    datasetid text,
    dataid text,
    locktype text,
    jobid text,
    run text,
    was text,
    now text,
    attempt bigint,
    code text,
    reason text
);
COMMENT ON TYPE dataflow.status_change IS 'One row of datastatus that changed: was NULL when inserted, now NULL when deleted';
