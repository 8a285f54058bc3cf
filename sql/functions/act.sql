-- What an operator does to many runs or chunks at once. The functions for a single one (hold, release, cancel, pause) decide what the
-- change means.

DROP FUNCTION IF EXISTS dataflow.hold_chunks(jsonb, text, boolean);
CREATE OR REPLACE FUNCTION dataflow.hold_chunks(selector jsonb, reason text DEFAULT NULL, dry_run boolean DEFAULT false) RETURNS TABLE (
    datasetid text, dataid text, was text, stops text[]
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._bounded_selector(selector);
    RETURN QUERY
    WITH chosen AS MATERIALIZED (
        SELECT c.datasetid, c.dataid, c.status, dataflow.sortkey(c.dataid) AS place FROM dataflow.select_chunks(selector) AS c WHERE c.status NOT IN ('HOLD', 'PENDING')
        UNION
        -- A person may hold a chunk before it exists, by naming its dataid.
        SELECT d.datasetid, p, 'NONE', dataflow.sortkey(p)
        FROM dataflow._texts(selector -> 'dataid') AS p,
            LATERAL (
                SELECT selector ->> 'dataset' AS datasetid WHERE selector ? 'dataset'
                UNION SELECT o.datasetid FROM dataflow.job_output o WHERE o.jobid = selector ->> 'job' AND NOT selector ? 'dataset'
            ) AS d
        WHERE NOT selector ? 'status' AND NOT selector ? 'error' AND p !~ '[*?]' AND strpos(p, '..') = 0
            AND NOT EXISTS (SELECT FROM dataflow.datastatus s WHERE s.datasetid = d.datasetid AND s.dataid = p AND s.locktype = 'OUT')
    ), busy AS MATERIALIZED (
        SELECT c.*, ARRAY(
            SELECT x.jobid || ' ' || x.run FROM dataflow.datastatus x
            WHERE x.datasetid = c.datasetid AND x.dataid = c.dataid AND x.status = 'RUNNING' ORDER BY x.jobid, dataflow.sortkey(x.run)) AS stops
        FROM chosen c
    )
    SELECT b.datasetid, b.dataid, CASE WHEN dry_run THEN b.status ELSE dataflow.hold(b.datasetid, b.dataid, hold_chunks.reason) END, b.stops
    FROM busy b ORDER BY b.datasetid, b.place;
END $$;
COMMENT ON FUNCTION dataflow.hold_chunks(jsonb, text, boolean) IS
    'hold() for every chunk that a selector names (see select_chunks); a literal dataid may name a chunk that does not exist yet. stops: the runs that write or read the chunk now. dry_run => true only shows them';

CREATE OR REPLACE FUNCTION dataflow.release_chunks(selector jsonb, dry_run boolean DEFAULT false) RETURNS TABLE (datasetid text, dataid text, becomes text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    datasets text[];
    dataids text[];
BEGIN
    PERFORM dataflow._bounded_selector(selector);
    SELECT array_agg(k.datasetid), array_agg(k.dataid) INTO datasets, dataids
    FROM (
        SELECT s.datasetid::text, s.dataid::text FROM dataflow.datastatus s
        WHERE s.locktype = 'OUT' AND s.held_from IS NOT NULL
            AND (s.datasetid, s.dataid) IN (SELECT c.datasetid, c.dataid FROM dataflow.select_chunks(selector) AS c WHERE c.status IN ('HOLD', 'PENDING'))
        ORDER BY s.datasetid, s.sortkey FOR UPDATE
    ) AS k;
    RETURN QUERY
    SELECT s.datasetid::text, s.dataid::text, s.held_from
    FROM unnest(datasets, dataids) WITH ORDINALITY AS c (datasetid, dataid, place)
    JOIN dataflow.datastatus s ON s.datasetid = c.datasetid AND s.dataid = c.dataid AND s.locktype = 'OUT' ORDER BY c.place;
    IF NOT dry_run THEN
        -- The same as release(), in two statements: a partitioning may have thousands of held batches.
        DELETE FROM dataflow.datastatus s USING unnest(datasets, dataids) AS c (datasetid, dataid)
            WHERE s.datasetid = c.datasetid AND s.dataid = c.dataid AND s.locktype = 'OUT' AND s.held_from = 'NONE';
        UPDATE dataflow.datastatus s SET status = s.held_from, held_from = NULL, reason = NULL, modified = now()
            FROM unnest(datasets, dataids) AS c (datasetid, dataid)
            WHERE s.datasetid = c.datasetid AND s.dataid = c.dataid AND s.locktype = 'OUT' AND s.held_from IS NOT NULL;
    END IF;
END $$;
COMMENT ON FUNCTION dataflow.release_chunks(jsonb, boolean) IS 'release() for every held chunk that a selector names (see select_chunks)';

CREATE OR REPLACE FUNCTION dataflow.cancel_runs(selector jsonb, reason text DEFAULT NULL, dry_run boolean DEFAULT false) RETURNS TABLE (
    jobid text, dataid text, attempt bigint, daemon text, claimed timestamptz
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._bounded_selector(selector);
    RETURN QUERY
    WITH chosen AS MATERIALIZED (
        SELECT r.jobid, r.dataid, a.attempt, a.daemon::text, a.claimed FROM dataflow.select_runs(selector || '{"status": "RUNNING"}') AS r
        JOIN dataflow.attempt a ON a.jobid = r.jobid AND a.dataid = r.dataid AND a.ended IS NULL
    ), done AS MATERIALIZED (
        SELECT c.*, dry_run OR dataflow.cancel(c.jobid, c.dataid, cancel_runs.reason) AS is_done FROM chosen c
    )
    SELECT d.jobid, d.dataid, d.attempt, d.daemon, d.claimed FROM done d WHERE d.is_done ORDER BY d.jobid, dataflow.sortkey(d.dataid);
END $$;
COMMENT ON FUNCTION dataflow.cancel_runs(jsonb, text, boolean) IS 'cancel() for every running run that a selector names (see select_runs)';

CREATE OR REPLACE FUNCTION dataflow.pause_scopes(jobs text[] DEFAULT NULL, dataset text DEFAULT NULL, daemon text DEFAULT NULL, paused boolean DEFAULT true) RETURNS TABLE (
    scope text, was boolean
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    scopes text[];
    fruitless text;
BEGIN
    IF dataset IS NOT NULL THEN
        PERFORM dataflow._known_dataset(dataset);
    END IF;
    SELECT p INTO fruitless FROM unnest(jobs) AS p WHERE NOT EXISTS (SELECT FROM dataflow.job j WHERE dataflow.matches(j.jobid, p)) LIMIT 1;
    IF FOUND THEN
        PERFORM dataflow._known_job(fruitless);
    END IF;
    IF daemon IS NOT NULL THEN
        PERFORM dataflow._known_daemon(pause_scopes.daemon);
    END IF;
    scopes := ARRAY(
        SELECT 'job:' || j.jobid FROM dataflow.job j WHERE EXISTS (SELECT FROM unnest(jobs) AS p WHERE dataflow.matches(j.jobid, p))
        UNION SELECT 'job:' || o.jobid FROM dataflow.job_output o WHERE o.datasetid = dataset
        UNION SELECT 'daemon:' || daemon WHERE daemon IS NOT NULL
        UNION SELECT 'global' WHERE cardinality(coalesce(jobs, '{}')) = 0 AND dataset IS NULL AND daemon IS NULL
        ORDER BY 1);
    IF cardinality(scopes) = 0 THEN
        RAISE EXCEPTION 'no job produces dataset %', dataset USING ERRCODE = 'DF404', HINT = 'dataflowctl hold --dataset locks its chunks';
    END IF;
    RETURN QUERY
    WITH before AS MATERIALIZED (
        SELECT s AS scope, coalesce(c.paused, false) AS was FROM unnest(scopes) AS s LEFT JOIN dataflow.control c ON c.scope = s
    ), changed AS MATERIALIZED (
        SELECT b.scope, b.was, CASE WHEN b.was <> pause_scopes.paused THEN dataflow.pause(b.scope, pause_scopes.paused) END FROM before b
    )
    SELECT c.scope, c.was FROM changed c ORDER BY c.scope;
END $$;
COMMENT ON FUNCTION dataflow.pause_scopes(text[], text, text, boolean) IS
    'pause() for jobs (names or globs), the producer of a dataset, or a daemon; without any of them, for everything. Returns the scopes and whether each was paused before';

CREATE OR REPLACE FUNCTION dataflow.shed(scope text, concurrency integer DEFAULT NULL, dry_run boolean DEFAULT false) RETURNS TABLE (jobid text, dataid text, attempt bigint, daemon text, claimed timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = 0
AS $$
#variable_conflict use_column
DECLARE
    surplus bigint;
    live bigint[];
    shed_attempts bigint[];
BEGIN
    PERFORM dataflow._known_job(substr(shed.scope, 5)) WHERE shed.scope LIKE 'job:%';
    IF NOT dry_run THEN
        -- Keeps claims out while the surplus is counted: they would start new attempts meanwhile.
        PERFORM dataflow._claim_lock();
    END IF;
    SELECT greatest(count(*) - coalesce(shed.concurrency, min(l.concurrency)), 0) INTO surplus
    FROM dataflow.attempt a LEFT JOIN dataflow.limits l ON l.scope = shed.scope
    WHERE a.ended IS NULL AND (shed.scope = 'global' OR shed.scope = 'job:' || a.jobid OR shed.scope = 'daemon:' || a.daemon);
    live := ARRAY(
        SELECT a.attempt FROM dataflow.attempt a
        WHERE a.ended IS NULL AND (shed.scope = 'global' OR shed.scope = 'job:' || a.jobid OR shed.scope = 'daemon:' || a.daemon));
    -- An attempt whose chunk somebody else has locked is not stopped.
    IF NOT dry_run AND surplus > 0 THEN
        live := dataflow._lock_attempts(live);
    END IF;
    -- The youngest attempts lose the least work.
    shed_attempts := ARRAY(SELECT a FROM unnest(live) AS a ORDER BY a DESC LIMIT surplus);
    IF NOT dry_run THEN
        UPDATE dataflow.datastatus s SET status = 'RESUBMIT', modified = now(), code = NULL, reason = 'stopped: the limit of ' || shed.scope || ' was lowered'
        FROM dataflow.attempt a JOIN dataflow.job_output o ON o.jobid = a.jobid
        WHERE a.attempt = ANY (shed_attempts) AND s.datasetid = o.datasetid AND s.dataid = a.dataid AND s.locktype = 'OUT' AND s.status = 'RUNNING';
    END IF;
    RETURN QUERY SELECT a.jobid::text, a.dataid::text, a.attempt, a.daemon::text, a.claimed
        FROM dataflow.attempt a WHERE a.attempt = ANY (shed_attempts) ORDER BY a.attempt;
END $$;
COMMENT ON FUNCTION dataflow.shed(text, integer, boolean) IS
    'Stops the youngest attempts beyond the limit of a scope, or beyond `concurrency` if it is given, at once; their runs start again when there is a place. dry_run => true only shows them';
