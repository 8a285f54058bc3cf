-- Recovery: previews which runs a selector names, and runs them again.

-- The parameters that the next attempt of a run gets instead of the job's own. If a person sets one output to RESUBMIT, the run has none.
CREATE OR REPLACE FUNCTION dataflow._given_params(jobid text, dataid text) RETURNS jsonb
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN bool_and(s.params IS NOT NULL) THEN (array_agg(s.params))[1] END
    FROM dataflow.job_output o JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = _given_params.dataid AND s.locktype = 'OUT'
    WHERE o.jobid = _given_params.jobid
$$;

CREATE OR REPLACE FUNCTION dataflow._params_text(params jsonb) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT string_agg(format('%s = %s', p.key, p.value), ', ' ORDER BY p.key) FROM jsonb_each(params) AS p $$;

CREATE OR REPLACE FUNCTION dataflow._kind_of_param(declared jsonb) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE jsonb_typeof(declared) WHEN 'string' THEN 'text' WHEN 'boolean' THEN 'true or false' WHEN 'array' THEN 'a list' WHEN 'object' THEN 'a table'
        WHEN 'number' THEN CASE WHEN declared::text ~ '^-?[0-9]+$' THEN 'a whole number' ELSE 'a number' END END
$$;

-- A value must have the type that it has in the flow. Text is read as JSON if the flow has a number, a boolean, a list or a table: command
-- lines only know text.
CREATE OR REPLACE FUNCTION dataflow._checked_params(jobid text, params jsonb) RETURNS jsonb
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    most constant integer := 10000;
    declared jsonb := (SELECT j.params FROM dataflow.job j WHERE j.jobid = _checked_params.jobid);
    checked jsonb := '{}';
    given record;
    value jsonb;
    kind text;
BEGIN
    IF jsonb_typeof(params) <> 'object' THEN
        RAISE EXCEPTION 'params have to be an object' USING ERRCODE = 'DF400', HINT = '{"name": value}, with names of the job''s parameters';
    END IF;
    IF length(params::text) > most THEN
        RAISE EXCEPTION 'params are longer than % characters', most USING ERRCODE = 'DF400', HINT = 'put large values into a dataset that the job reads';
    END IF;
    FOR given IN SELECT p.key, p.value FROM jsonb_each(params) AS p ORDER BY p.key LOOP
        IF NOT declared ? given.key THEN
            RAISE EXCEPTION 'job % has no parameter %', jobid, quote_literal(given.key) USING ERRCODE = 'DF400',
                HINT = coalesce('its parameters are ' || (SELECT string_agg(format('%s (%s)', p.key, dataflow._kind_of_param(p.value)), ', ' ORDER BY p.key)
                    FROM jsonb_each(declared) AS p), 'its flow declares none in [job.' || jobid || '.params]');
        END IF;
        kind := dataflow._kind_of_param(declared -> given.key);
        value := given.value;
        IF jsonb_typeof(value) = 'string' AND kind <> 'text' THEN
            BEGIN
                value := (value #>> '{}')::jsonb;
            EXCEPTION WHEN data_exception THEN
                NULL;
            END;
        END IF;
        IF jsonb_typeof(value) <> jsonb_typeof(declared -> given.key) OR (kind = 'a whole number' AND dataflow._kind_of_param(value) <> kind) THEN
            RAISE EXCEPTION 'parameter % of job % is %, and not %', given.key, jobid, kind, given.value USING ERRCODE = 'DF400',
                HINT = format('in its flow it is %s', declared -> given.key);
        END IF;
        checked := checked || jsonb_build_object(given.key, value);
    END LOOP;
    RETURN nullif(checked, '{}');
END $$;

CREATE OR REPLACE FUNCTION dataflow.resubmit_with(
    selector jsonb, params jsonb, downstream boolean DEFAULT false, dry_run boolean DEFAULT false
) RETURNS TABLE (
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
    named_jobs text[];
    named_dataids text[];
    given jsonb;
    chosen_jobs text[];
    chosen_dataids text[];
    depths integer[];
BEGIN
    SELECT array_agg(r.jobid), array_agg(r.dataid) INTO named_jobs, named_dataids FROM dataflow.select_runs(selector) AS r
        WHERE r.status IN ('FAILED', 'READY', 'RUNNING', 'RESUBMIT');
    -- For each job that is named. Consumers that follow (downstream) use their own parameters.
    SELECT coalesce(jsonb_object_agg(j.jobid, dataflow._checked_params(j.jobid, resubmit_with.params)), '{}') INTO given
        FROM (SELECT DISTINCT n AS jobid FROM unnest(named_jobs) AS n ORDER BY n) AS j WHERE resubmit_with.params IS NOT NULL;
    IF given <> '{}' AND NOT dry_run THEN
        -- Waits for claims that are under way: their attempts are cancelled, and the next attempts get the parameters.
        PERFORM FROM unnest(named_jobs, named_dataids) AS r (jobid, dataid) JOIN dataflow.job_output o ON o.jobid = r.jobid
            JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = r.dataid AND s.locktype = 'OUT'
            ORDER BY s.datasetid, s.dataid FOR UPDATE OF s;
    END IF;
    WITH RECURSIVE chosen AS (
        SELECT r.jobid, r.dataid FROM unnest(named_jobs, named_dataids) AS r (jobid, dataid)
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
        -- Depth counts jobs, not runs: a job that reads its own output goes on in the order of its dataids. Without a cycle no chain is
        -- longer than the number of jobs.
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
        -- A resubmit makes the whole chunk. replay_rows() calls this function, and then asks for rows alone where that is possible.
        DELETE FROM dataflow.row_replay k USING unnest(chosen_jobs, chosen_dataids) AS r (jobid, dataid) WHERE k.jobid = r.jobid AND k.dataid = r.dataid;
        UPDATE dataflow.datastatus s SET status = 'RESUBMIT', modified = now(), code = NULL, params = x.params, reason = 'with ' || dataflow._params_text(x.params)
        FROM unnest(chosen_jobs, chosen_dataids) AS r (jobid, dataid)
        JOIN dataflow.job_output o ON o.jobid = r.jobid
        LEFT JOIN unnest(named_jobs, named_dataids) AS n (jobid, dataid) ON given ? n.jobid AND n.jobid = r.jobid AND n.dataid = r.dataid
        CROSS JOIN LATERAL (SELECT nullif(given -> n.jobid, 'null') AS params) AS x
        WHERE s.datasetid = o.datasetid AND s.dataid = r.dataid AND s.locktype = 'OUT' AND s.status IN ('FAILED', 'READY', 'RUNNING');
        -- Runs that already wait for RESUBMIT, and held outputs, get the parameters of this call, too.
        UPDATE dataflow.datastatus s SET params = x.params
        FROM unnest(chosen_jobs, chosen_dataids) AS r (jobid, dataid)
        JOIN dataflow.job_output o ON o.jobid = r.jobid
        LEFT JOIN unnest(named_jobs, named_dataids) AS n (jobid, dataid) ON given ? n.jobid AND n.jobid = r.jobid AND n.dataid = r.dataid
        CROSS JOIN LATERAL (SELECT nullif(given -> n.jobid, 'null') AS params) AS x
        WHERE s.datasetid = o.datasetid AND s.dataid = r.dataid AND s.locktype = 'OUT' AND s.status IN ('RESUBMIT', 'HOLD', 'PENDING')
            AND s.params IS DISTINCT FROM x.params;
    END IF;
END $$;
COMMENT ON FUNCTION dataflow.resubmit_with(jsonb, jsonb, boolean, boolean) IS
    'resubmit(), with parameters that replace those of the job for the selected runs and this resubmission alone; NULL: none. SELECT * FROM dataflow.resubmit_with(''{"job": "clean_orders"}'', ''{"least": 0}'')';

CREATE OR REPLACE FUNCTION dataflow.resubmit(selector jsonb, downstream boolean DEFAULT false, dry_run boolean DEFAULT false) RETURNS TABLE (
    depth integer,
    jobid text,
    dataid text,
    was text,
    code text
)
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT * FROM dataflow.resubmit_with(selector, NULL, downstream, dry_run) $$;
COMMENT ON FUNCTION dataflow.resubmit(jsonb, boolean, boolean) IS
    'Runs again what a selector names (see select_runs), with downstream => true also every consumer, transitively; returns the runs in the order in which they will run. dry_run => true only shows them. SELECT * FROM dataflow.resubmit(''{"status": "FAILED", "dataid": "2026-01-*"}'')';
