-- Selectors: which runs and chunks a command means.

-- A pattern is a dataid, a glob (2026-01-*, ?) or a range (2026-01-01..2026-01-31), in all commands.
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

-- Whether all patterns are plain dataids. Then chunks are looked up by key instead of matching every chunk.
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
    patterns constant text[] := ARRAY(SELECT dataflow._texts(selector -> 'dataid'));
    is_literal constant boolean := dataflow._are_literal(patterns);
    statuses constant text[] := ARRAY(SELECT upper(t) FROM dataflow._texts(selector -> 'status') AS t);
    unknown text;
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
    PERFORM dataflow._checked_statuses(statuses);
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

-- The chunks of the runs that a selector names (see select_runs). If it names no job, also chunks that no job produces.
CREATE OR REPLACE FUNCTION dataflow.select_chunks(selector jsonb) RETURNS TABLE (datasetid text, dataid text, jobid text, status text, reason text, modified timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    patterns constant text[] := ARRAY(SELECT dataflow._texts(selector -> 'dataid'));
    is_literal constant boolean := dataflow._are_literal(patterns);
BEGIN
    RETURN QUERY
    SELECT s.datasetid::text, s.dataid::text, s.jobid, s.status, s.reason, s.modified
    FROM dataflow.select_runs(selector) AS r
    JOIN dataflow.job_output o ON o.jobid = r.jobid AND (NOT selector ? 'dataset' OR o.datasetid = selector ->> 'dataset')
    JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = r.dataid AND s.locktype = 'OUT'
    UNION ALL
    SELECT s.datasetid::text, s.dataid::text, s.jobid, s.status, s.reason, s.modified
    FROM dataflow.datastatus s
    WHERE NOT selector ? 'job' AND NOT selector ? 'stale' AND s.locktype = 'OUT' AND s.jobid = ''
        AND (NOT selector ? 'dataset' OR s.datasetid = selector ->> 'dataset')
        AND (NOT is_literal OR s.dataid = ANY (patterns))
        AND (is_literal OR NOT selector ? 'dataid' OR EXISTS (SELECT FROM unnest(patterns) AS p WHERE dataflow.matches(s.dataid, p)))
        AND (NOT selector ? 'status' OR s.status IN (SELECT upper(t) FROM dataflow._texts(selector -> 'status') AS t))
        AND (NOT selector ? 'error' OR s.code IN (SELECT upper(t) FROM dataflow._texts(selector -> 'error') AS t))
        AND (NOT selector ? 'since' OR s.modified >= (selector ->> 'since')::timestamptz);
END $$;
COMMENT ON FUNCTION dataflow.select_chunks(jsonb) IS
    'The chunks that a selector names: those of the runs of select_runs, and without "job" also chunks that no job produces';

CREATE OR REPLACE FUNCTION dataflow._texts(value jsonb) RETURNS SETOF text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT jsonb_array_elements_text(CASE jsonb_typeof(value) WHEN 'array' THEN value ELSE jsonb_build_array(value) END) WHERE value IS NOT NULL $$;

CREATE OR REPLACE FUNCTION dataflow._bounded_selector(selector jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF selector = '{}' THEN
        RAISE EXCEPTION 'nothing is selected' USING ERRCODE = 'DF400', HINT = 'name a job, a dataset, a dataid or a pattern';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION dataflow.dataid_range(bounds text) RETURNS SETOF text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    at_most constant integer := 1000000;
    low constant text := split_part(bounds, '..', 1);
    high constant text := split_part(bounds, '..', 2);
    unit text;
    number bigint;
    moment timestamptz;
    until timestamptz;
    made integer := 0;
BEGIN
    IF low ~ '^[0-9]{1,18}$' AND high ~ '^[0-9]{1,18}$' AND low::bigint <= high::bigint AND (length(low) = length(high) OR (low !~ '^0.' AND high !~ '^0.')) THEN
        IF high::bigint - low::bigint >= at_most THEN
            RAISE EXCEPTION 'the range % has more than % dataids', bounds, at_most USING ERRCODE = 'DF400', HINT = 'register it in parts';
        END IF;
        RETURN QUERY SELECT CASE WHEN low ~ '^0.' THEN lpad(n::text, length(low), '0') ELSE n::text END FROM generate_series(low::bigint, high::bigint) AS n;
        RETURN;
    END IF;
    FOREACH unit IN ARRAY ARRAY['hour', 'day', 'week', 'month'] LOOP
        moment := dataflow.period_start(unit, low, 'UTC');
        until := dataflow.period_start(unit, high, 'UTC');
        IF moment <= until THEN
            -- Refuses a range that is far too long before counting; a shorter one is counted below.
            IF (until - moment) / at_most > (CASE unit WHEN 'hour' THEN interval '1 hour' WHEN 'day' THEN interval '25 hours'
                WHEN 'week' THEN interval '8 days' ELSE interval '31 days' END) THEN
                RAISE EXCEPTION 'the range % has more than % dataids', bounds, at_most USING ERRCODE = 'DF400', HINT = 'register it in parts';
            END IF;
            WHILE moment <= until LOOP
                made := made + 1;
                IF made > at_most THEN
                    RAISE EXCEPTION 'the range % has more than % dataids', bounds, at_most USING ERRCODE = 'DF400', HINT = 'register it in parts';
                END IF;
                RETURN NEXT dataflow.period_id(unit, moment, 'UTC');
                moment := dataflow.period_add(unit, moment, 1, 'UTC');
            END LOOP;
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'not a range of dataids: %', bounds USING ERRCODE = 'DF400',
        HINT = 'write two dates, hours, weeks, months or whole numbers, the smaller first: 2026-01-01..2026-01-31, 1..500';
END $$;
COMMENT ON FUNCTION dataflow.dataid_range(text) IS 'All dataids from A to B of ''A..B'': dates, hours, weeks, months or whole numbers';
