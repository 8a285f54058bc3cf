-- Recovery: choose runs, preview, run them again.

-- A pattern is a glob (2026-01-*, ?) or a range (2026-01-01..2026-01-31), the same everywhere.
CREATE OR REPLACE FUNCTION dataflow.matches(dataid text, pattern text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN strpos(pattern, '..') > 0 THEN
            dataflow.sortkey(dataid) BETWEEN dataflow.sortkey(split_part(pattern, '..', 1)) AND dataflow.sortkey(split_part(pattern, '..', 2))
        WHEN pattern ~ '[*?]' THEN
            dataid LIKE replace(replace(replace(pattern, '_', E'\\_'), '*', '%'), '?', '_')
        ELSE dataid = pattern
    END
$$;
COMMENT ON FUNCTION dataflow.matches(text, text) IS
    'Whether a dataid fits a pattern: a glob (2026-01-*) or a range (2026-01-01..2026-01-31)';

-- Patterns that are plain dataids are looked up by key instead of being tried on every chunk.
CREATE OR REPLACE FUNCTION dataflow._are_literal(patterns text[]) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT cardinality(patterns) > 0 AND NOT EXISTS (SELECT FROM unnest(patterns) AS p WHERE p ~ '[*?]' OR strpos(p, '..') > 0) $$;

CREATE OR REPLACE FUNCTION dataflow.select_runs(selector jsonb) RETURNS TABLE (jobid text, dataid text, status text, code text, modified timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    known constant text[] := ARRAY['job', 'dataset', 'dataid', 'status', 'error', 'since', 'stale'];
    unknown text;
    patterns text[];
    is_literal boolean;
    statuses text[];
BEGIN
    SELECT k INTO unknown FROM jsonb_object_keys(selector) AS k WHERE k <> ALL (known) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'a selector has no key %', unknown USING ERRCODE = 'DF400', HINT = 'its keys are ' || array_to_string(known, ', ');
    END IF;
    IF selector ? 'job' THEN
        PERFORM dataflow._known_job(selector ->> 'job');
    END IF;
    IF selector ? 'dataset' THEN
        PERFORM dataflow._known_dataset(selector ->> 'dataset');
    END IF;
    patterns := ARRAY(SELECT jsonb_array_elements_text(CASE jsonb_typeof(selector -> 'dataid') WHEN 'array' THEN selector -> 'dataid' ELSE jsonb_build_array(selector -> 'dataid') END) WHERE selector ? 'dataid');
    is_literal := dataflow._are_literal(patterns);
    statuses := ARRAY(SELECT upper(jsonb_array_elements_text(CASE jsonb_typeof(selector -> 'status') WHEN 'array' THEN selector -> 'status' ELSE jsonb_build_array(selector -> 'status') END)) WHERE selector ? 'status');
    SELECT s INTO unknown FROM unnest(statuses) AS s WHERE s NOT IN ('RUNNING', 'READY', 'FAILED', 'RESUBMIT', 'PENDING', 'HOLD') LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% is no status', unknown USING ERRCODE = 'DF400', HINT = 'allowed are RUNNING, READY, FAILED, RESUBMIT, PENDING, HOLD';
    END IF;
    RETURN QUERY
    SELECT s.jobid::text, s.dataid::text, max(s.status), max(s.code), max(s.modified)
    FROM dataflow.job_output o JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.locktype = 'OUT' AND s.jobid = o.jobid
    WHERE (NOT selector ? 'job' OR o.jobid = selector ->> 'job')
        AND (NOT selector ? 'dataset' OR o.datasetid = selector ->> 'dataset')
        AND (NOT is_literal OR s.dataid = ANY (patterns))
        AND (is_literal OR NOT selector ? 'dataid' OR EXISTS (SELECT FROM unnest(patterns) AS p WHERE dataflow.matches(s.dataid, p)))
        AND (NOT selector ? 'status' OR s.status = ANY (statuses))
        AND (NOT selector ? 'error' OR s.code IN (SELECT upper(t) FROM dataflow._texts(selector -> 'error') AS t))
        AND (NOT selector ? 'since' OR s.modified >= (selector ->> 'since')::timestamptz)
        AND (NOT coalesce((selector ->> 'stale')::boolean, false) OR (s.datasetid, s.dataid) IN (SELECT x.datasetid, x.dataid FROM dataflow.stale x))
    GROUP BY s.jobid, s.dataid;
END $$;
COMMENT ON FUNCTION dataflow.select_runs(jsonb) IS
    'The runs that a selector names: {"job", "dataset", "dataid": pattern or list, "status", "error": one or list, "since", "stale"}, all optional';

CREATE OR REPLACE FUNCTION dataflow.resubmit(selector jsonb, downstream boolean DEFAULT false, dry_run boolean DEFAULT false) RETURNS TABLE (
    depth integer,
    jobid text,
    dataid text,
    was text,
    code text
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    chosen_jobs text[];
    chosen_dataids text[];
    depths integer[];
BEGIN
    WITH RECURSIVE chosen AS (
        SELECT r.jobid, r.dataid FROM dataflow.select_runs(selector) AS r
        WHERE r.status IN ('FAILED', 'READY', 'RUNNING', 'RESUBMIT')
        UNION
        SELECT a.jobid, a.dataid
        FROM chosen c
        JOIN dataflow.job_output o ON o.jobid = c.jobid
        CROSS JOIN LATERAL dataflow.affected_runs(o.datasetid, c.dataid) AS a
        WHERE downstream AND EXISTS (
            SELECT FROM dataflow.job_output p JOIN dataflow.datastatus s ON s.datasetid = p.datasetid AND s.dataid = a.dataid AND s.locktype = 'OUT'
            WHERE p.jobid = a.jobid)
    ), jobs AS MATERIALIZED (
        SELECT DISTINCT c.jobid FROM chosen c
    ), edges AS MATERIALIZED (
        SELECT DISTINCT o.jobid AS producer, i.jobid AS consumer
        FROM dataflow.job_output o JOIN dataflow.job_input i ON i.datasetid = o.datasetid AND i.jobid <> o.jobid
        WHERE o.jobid IN (SELECT j.jobid FROM jobs j) AND i.jobid IN (SELECT j.jobid FROM jobs j)
    ), levels AS (
        -- Depth is a matter of jobs; a job that continues its own output goes through it in the order of its dataids. No
        -- chain is longer than there are jobs, unless they run in a circle.
        SELECT j.jobid::text COLLATE "C" AS jobid, 0 AS level FROM jobs j
        UNION
        SELECT e.consumer::text COLLATE "C", l.level + 1 FROM levels l JOIN edges e ON e.producer = l.jobid
        WHERE l.level < (SELECT count(*) FROM jobs)
    ), deepest AS (
        SELECT l.jobid, max(l.level) AS depth FROM levels l GROUP BY l.jobid
    )
    SELECT array_agg(c.jobid), array_agg(c.dataid), array_agg(d.depth) INTO chosen_jobs, chosen_dataids, depths
    FROM chosen c JOIN deepest d ON d.jobid = c.jobid;

    RETURN QUERY
    SELECT r.depth, r.jobid, r.dataid, max(s.status), max(s.code)
    FROM unnest(chosen_jobs, chosen_dataids, depths) AS r (jobid, dataid, depth)
    JOIN dataflow.job_output o ON o.jobid = r.jobid
    JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = r.dataid AND s.locktype = 'OUT'
    WHERE s.status IN ('FAILED', 'READY', 'RUNNING', 'RESUBMIT')
    GROUP BY r.depth, r.jobid, r.dataid
    ORDER BY r.depth, r.jobid, dataflow.sortkey(r.dataid);

    IF NOT dry_run THEN
        UPDATE dataflow.datastatus s SET status = 'RESUBMIT', modified = now(), code = NULL, reason = NULL
        FROM unnest(chosen_jobs, chosen_dataids) AS r (jobid, dataid)
        JOIN dataflow.job_output o ON o.jobid = r.jobid
        WHERE s.datasetid = o.datasetid AND s.dataid = r.dataid AND s.locktype = 'OUT' AND s.status IN ('FAILED', 'READY', 'RUNNING');
    END IF;
END $$;
COMMENT ON FUNCTION dataflow.resubmit(jsonb, boolean, boolean) IS
    'Runs again what a selector names (see select_runs), with downstream => true also every consumer, transitively; returns the runs in the order in which they will run. dry_run => true only shows them. SELECT * FROM dataflow.resubmit(''{"status": "FAILED", "dataid": "2026-01-*"}'')';
