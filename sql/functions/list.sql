-- What `dataflowctl jobs`, `datasets`, `chunks`, `runs` and `attempts` list.

CREATE OR REPLACE VIEW dataflow.jobs AS
SELECT j.jobid::text, j.flow, j.kind, j.description,
    ARRAY(SELECT i.datasetid::text || CASE i.kind WHEN 'identity' THEN '' WHEN 'partitioning' THEN format(' (%s)', i.mapping ->> 'name') ELSE ' (' || i.kind || ')' END FROM dataflow.job_input i WHERE i.jobid = j.jobid ORDER BY i.datasetid) AS inputs,
    ARRAY(SELECT o.datasetid::text FROM dataflow.job_output o WHERE o.jobid = j.jobid ORDER BY o.datasetid) AS outputs,
    dataflow._limit_of(j, c) AS max_running, j.max_attempts, extract(epoch FROM j.retry_delay)::double precision AS retry_delay_seconds,
    extract(epoch FROM j.timeout)::double precision AS timeout_seconds, j.priority, j.strict_order, coalesce(c.paused, false) AS paused,
    j.params, j.code_hash, j.config_hash, j.created, j.modified, j.retired, l.base::text AS like_job
FROM dataflow.job j LEFT JOIN dataflow.control c ON c.scope = 'job:' || j.jobid LEFT JOIN dataflow.job_like l ON l.jobid = j.jobid;
COMMENT ON VIEW dataflow.jobs IS 'Every job with what it reads and writes and how it is run';

CREATE OR REPLACE VIEW dataflow.datasets AS
SELECT d.datasetid::text, d.flow, d.format, d.description, o.jobid::text AS producer,
    ARRAY(SELECT i.jobid::text FROM dataflow.job_input i WHERE i.datasetid = d.datasetid ORDER BY i.jobid) AS consumers,
    coalesce(d.location, nullif(concat_ws('.', d.database, d.schemaname, d.tablename), ''), 'calendar ' || d.calendar) AS place, d.hostname, d.ordering, d.environment,
    coalesce(c.chunks, 0) AS chunks, coalesce(c.ready, 0) AS ready,
    d.created, d.modified, d.retired
FROM dataflow.dataset d LEFT JOIN dataflow.job_output o ON o.datasetid = d.datasetid
LEFT JOIN (
    SELECT n.datasetid, sum(n.chunks)::bigint AS chunks, (sum(n.chunks) FILTER (WHERE n.status = 'READY'))::bigint AS ready
    FROM dataflow.counter n WHERE n.locktype = 'OUT' GROUP BY n.datasetid
) AS c ON c.datasetid = d.datasetid;
COMMENT ON VIEW dataflow.datasets IS 'Every dataset with its producer, its consumers, its place and how many chunks it has; no credentials';

-- Of release 0.1.0, with fewer columns.
DROP FUNCTION IF EXISTS dataflow.chunks(text, text[], text, text, text, boolean, text, boolean, integer);
CREATE OR REPLACE FUNCTION dataflow.chunks(
    datasetid text, statuses text[] DEFAULT NULL, first text DEFAULT NULL, last text DEFAULT NULL, pattern text DEFAULT NULL,
    only_stale boolean DEFAULT false, sort text DEFAULT 'dataid', descending boolean DEFAULT false, at_most integer DEFAULT 100
) RETURNS TABLE (
    dataid text, status text, jobid text, rows bigint, bytes bigint, version integer, modified timestamptz, attempt bigint,
    code_hash text, config_hash text, validated boolean, external boolean, stale text[], code text, reason text, location text,
    forced boolean, missing text[], forced_inputs text[], params jsonb
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    sorts constant text[] := ARRAY['dataid', 'modified', 'rows', 'bytes', 'status'];
    wanted constant text[] := ARRAY(SELECT upper(s) FROM unnest(statuses) AS s);
    dataset_ordering text;
    from_key text;
    to_key text;
    plain constant boolean := NOT only_stale AND sort = 'dataid';
    -- Usually no attempt was forced, and the inputs need not be looked at.
    has_forced constant boolean := EXISTS (SELECT FROM dataflow.attempt a WHERE a.forced);
BEGIN
    PERFORM dataflow._known_dataset(chunks.datasetid);
    PERFORM dataflow._checked_statuses(wanted);
    IF sort <> ALL (sorts) THEN
        RAISE EXCEPTION 'chunks cannot be sorted by %', sort USING ERRCODE = 'DF400', HINT = 'sort by ' || array_to_string(sorts, ', ');
    END IF;
    SELECT d.ordering INTO dataset_ordering FROM dataflow.dataset d WHERE d.datasetid = chunks.datasetid;
    from_key := coalesce(dataflow._ordered(dataset_ordering, first), '');
    to_key := dataflow._ordered(dataset_ordering, last);
    RETURN QUERY
    WITH page AS MATERIALIZED (
        -- The index gives the order of dataids. Every other order has to read all chunks.
        (SELECT s.* FROM dataflow.datastatus s
        WHERE plain AND NOT descending AND s.datasetid || '' = chunks.datasetid AND s.locktype = 'OUT' AND s.sortkey >= from_key
            AND (to_key IS NULL OR s.sortkey <= to_key) AND (statuses IS NULL OR s.status = ANY (wanted)) AND (pattern IS NULL OR dataflow.matches(s.dataid, pattern))
        ORDER BY s.sortkey LIMIT at_most)
        UNION ALL
        (SELECT s.* FROM dataflow.datastatus s
        WHERE plain AND descending AND s.datasetid || '' = chunks.datasetid AND s.locktype = 'OUT' AND s.sortkey >= from_key
            AND (to_key IS NULL OR s.sortkey <= to_key) AND (statuses IS NULL OR s.status = ANY (wanted)) AND (pattern IS NULL OR dataflow.matches(s.dataid, pattern))
        ORDER BY s.sortkey DESC LIMIT at_most)
        UNION ALL
        (SELECT s.* FROM dataflow.datastatus s
        LEFT JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest
        CROSS JOIN LATERAL (
            SELECT CASE sort WHEN 'modified' THEN extract(epoch FROM s.modified) WHEN 'rows' THEN m.rows WHEN 'bytes' THEN m.bytes END
        ) AS measured (value)
        WHERE NOT plain AND s.datasetid || '' = chunks.datasetid AND s.locktype = 'OUT' AND s.sortkey >= from_key
            AND (to_key IS NULL OR s.sortkey <= to_key) AND (statuses IS NULL OR s.status = ANY (wanted)) AND (pattern IS NULL OR dataflow.matches(s.dataid, pattern))
            AND (NOT only_stale OR s.dataid IN (SELECT t.dataid FROM dataflow.stale t WHERE t.datasetid = chunks.datasetid))
        ORDER BY
            CASE WHEN descending THEN -measured.value ELSE measured.value END NULLS LAST,
            CASE WHEN sort = 'status' AND NOT descending THEN s.status END,
            CASE WHEN sort = 'status' AND descending THEN s.status END DESC,
            CASE WHEN descending AND sort = 'dataid' THEN s.sortkey END DESC,
            s.sortkey
        LIMIT at_most)
    ), numbered AS MATERIALIZED (
        SELECT row_number() OVER () AS place, p.* FROM page p
    )
    SELECT p.dataid::text, p.status, nullif(p.jobid, ''), m.rows, m.bytes, p.version, p.modified, coalesce(m.attempt, p.attempt),
        a.code_hash, a.config_hash, p.validated, p.external, x.because, p.code, p.reason, m.location,
        coalesce(a.forced, false), CASE WHEN a.forced THEN dataflow._not_given(a) END, CASE WHEN has_forced THEN dataflow._forced_inputs(a.inputs) END, a.params
    FROM numbered p
    LEFT JOIN dataflow.manifest m ON m.datasetid = p.datasetid AND m.dataid = p.dataid AND m.version = p.manifest
    LEFT JOIN dataflow.attempt a ON a.attempt = m.attempt
    LEFT JOIN LATERAL (SELECT t.because FROM dataflow.stale t WHERE t.datasetid = p.datasetid AND t.dataid = p.dataid OFFSET 0) AS x ON true
    ORDER BY p.place;
END $$;
COMMENT ON FUNCTION dataflow.chunks(text, text[], text, text, text, boolean, text, boolean, integer) IS
    'Chunks of a dataset with status, producer, size, version and what made them; first and last bound the dataids in the dataset''s order. SELECT * FROM dataflow.chunks(''orders'', ''{FAILED}'')';

-- The letter of a chunk in a heat map.
CREATE OR REPLACE FUNCTION dataflow._letter(status text, validated boolean, is_stale boolean) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE status WHEN 'READY' THEN CASE WHEN NOT validated THEN '?' WHEN is_stale THEN '~' ELSE '.' END
        WHEN 'RUNNING' THEN 'R' WHEN 'FAILED' THEN 'F' WHEN 'RESUBMIT' THEN 's' ELSE 'H' END
$$;

-- Release 0.1 shows this map, and the demo reads it; `dataflowctl chunks --map` uses chunk_grid().
CREATE OR REPLACE FUNCTION dataflow.chunk_map(datasetid text, width integer DEFAULT 60, low text DEFAULT NULL, high text DEFAULT NULL) RETURNS TABLE (
    first text, last text, map text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    dataset_ordering text;
BEGIN
    PERFORM dataflow._known_dataset(chunk_map.datasetid);
    SELECT d.ordering INTO dataset_ordering FROM dataflow.dataset d WHERE d.datasetid = chunk_map.datasetid;
    RETURN QUERY
    WITH numbered AS (
        SELECT s.dataid, s.status, s.validated, row_number() OVER (ORDER BY s.sortkey) - 1 AS place
        FROM dataflow.datastatus s
        WHERE s.datasetid || '' = chunk_map.datasetid AND s.locktype = 'OUT'
            AND (low IS NULL OR s.sortkey >= dataflow._ordered(dataset_ordering, low))
            AND (high IS NULL OR s.sortkey <= dataflow._ordered(dataset_ordering, high))
    )
    SELECT (array_agg(n.dataid::text ORDER BY n.place))[1], (array_agg(n.dataid::text ORDER BY n.place DESC))[1],
        string_agg(dataflow._letter(n.status, n.validated, false), '' ORDER BY n.place)
    FROM numbered n GROUP BY n.place / greatest(width, 1) ORDER BY n.place / greatest(width, 1);
END $$;
COMMENT ON FUNCTION dataflow.chunk_map(text, integer, text, text) IS
    'A heat map of a dataset, one character a chunk in the order of its dataids: . READY, ? not validated, R RUNNING, F FAILED, s RESUBMIT, H held';

-- Each line is a period of time or a range of numbers, so that a person sees what is missing. The form of the dataids alone decides which;
-- a day that does not exist in the calendar has its place, too.
CREATE OR REPLACE FUNCTION dataflow.chunk_grid(datasetid text, width integer DEFAULT 60, low text DEFAULT NULL, high text DEFAULT NULL) RETURNS TABLE (
    kind text, label text, first text, last text, map text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    wide constant integer := greatest(width, 1);
    -- Finding out which chunks are stale costs more than everything else here.
    most_judged constant integer := 100000;
    from_key text;
    to_key text;
    grid text;
    chunks bigint;
    digits integer;
BEGIN
    PERFORM dataflow._known_dataset(chunk_grid.datasetid);
    SELECT coalesce(dataflow._ordered(d.ordering, low), ''), dataflow._ordered(d.ordering, high) INTO from_key, to_key
        FROM dataflow.dataset d WHERE d.datasetid = chunk_grid.datasetid;
    SELECT CASE
            WHEN bool_and(s.dataid ~ '^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$') THEN 'day'
            WHEN bool_and(s.dataid ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}$' AND dataflow.period_start('hour', s.dataid, 'UTC') IS NOT NULL) THEN 'hour'
            WHEN bool_and(s.dataid ~ '^[0-9]{4}-W(0[1-9]|[1-4][0-9]|5[0-3])$') THEN 'week'
            WHEN bool_and(s.dataid ~ '^[0-9]{4}-(0[1-9]|1[0-2])$') THEN 'month'
            WHEN bool_and(s.dataid ~ '^(0|[1-9][0-9]{0,14})$') OR (bool_and(s.dataid ~ '^[0-9]{1,15}$') AND min(length(s.dataid)) = max(length(s.dataid))) THEN 'number'
            ELSE 'other'
        END, count(*), CASE WHEN bool_or(s.dataid ~ '^0.') THEN max(length(s.dataid)) ELSE 1 END
    INTO grid, chunks, digits
    FROM dataflow.datastatus s
    WHERE s.datasetid || '' = chunk_grid.datasetid AND s.locktype = 'OUT' AND s.sortkey >= from_key AND (to_key IS NULL OR s.sortkey <= to_key);
    RETURN QUERY
    WITH stale AS MATERIALIZED (
        SELECT t.dataid FROM dataflow.stale t WHERE t.datasetid = chunk_grid.datasetid AND chunks <= most_judged
    ), placed AS MATERIALIZED (
        SELECT c.dataid, c.place, c.letter, p.line, p.spot FROM (
            SELECT s.dataid::text, row_number() OVER (ORDER BY s.sortkey) - 1 AS place,
                dataflow._letter(s.status, s.validated, s.dataid IN (SELECT t.dataid FROM stale t)) AS letter
            FROM dataflow.datastatus s
            WHERE s.datasetid || '' = chunk_grid.datasetid AND s.locktype = 'OUT' AND s.sortkey >= from_key AND (to_key IS NULL OR s.sortkey <= to_key)
        ) AS c
        CROSS JOIN LATERAL (
            SELECT CASE grid
                    WHEN 'day' THEN substr(c.dataid, 1, 4)::bigint * 12 + substr(c.dataid, 6, 2)::bigint - 1
                    WHEN 'hour' THEN substr(c.dataid, 1, 10)::date - '0001-01-01'::date
                    WHEN 'number' THEN c.dataid::bigint / wide
                    WHEN 'other' THEN c.place / wide
                    ELSE substr(c.dataid, 1, 4)::bigint END AS line,
                CASE grid
                    WHEN 'day' THEN substr(c.dataid, 9, 2)::bigint - 1
                    WHEN 'hour' THEN substr(c.dataid, 12, 2)::bigint
                    WHEN 'week' THEN substr(c.dataid, 7, 2)::bigint - 1
                    WHEN 'month' THEN substr(c.dataid, 6, 2)::bigint - 1
                    WHEN 'number' THEN c.dataid::bigint % wide
                    ELSE c.place % wide END AS spot
        ) AS p
    ), ends AS MATERIALIZED (
        SELECT min(p.line) AS line, max(p.line) AS last_line, min(ARRAY[p.line, p.spot]) AS first, max(ARRAY[p.line, p.spot]) AS last, count(DISTINCT p.line) AS lines
        FROM placed p
    ), lines AS MATERIALIZED (
        -- Empty lines are shown, unless there are far more of them than others.
        SELECT n AS line FROM ends e, generate_series(e.line, e.last_line) AS n WHERE e.last_line - e.line < 3 * e.lines + 24
        UNION
        SELECT p.line FROM placed p
    ), named AS MATERIALIZED (
        SELECT l.line, CASE grid
                WHEN 'day' THEN lpad((l.line / 12)::text, 4, '0') || '-' || lpad((l.line % 12 + 1)::text, 2, '0')
                WHEN 'hour' THEN to_char('0001-01-01'::date + l.line::integer, 'YYYY-MM-DD')
                WHEN 'number' THEN lpad((l.line * wide)::text, greatest(digits, length((l.line * wide)::text)), '0')
                WHEN 'other' THEN NULL
                ELSE lpad(l.line::text, 4, '0') END AS label,
            CASE grid
                WHEN 'day' THEN extract(day FROM make_date(greatest(l.line / 12, 1)::integer, (l.line % 12 + 1)::integer, 1) + interval '1 month - 1 day')::integer
                WHEN 'hour' THEN 24 WHEN 'week' THEN 52 WHEN 'month' THEN 12 WHEN 'number' THEN wide ELSE 0 END AS spots
        FROM lines l
    )
    SELECT grid, coalesce(n.label, (array_agg(p.dataid ORDER BY p.spot) FILTER (WHERE p.dataid IS NOT NULL))[1]),
        (array_agg(p.dataid ORDER BY p.spot) FILTER (WHERE p.dataid IS NOT NULL))[1],
        (array_agg(p.dataid ORDER BY p.spot DESC) FILTER (WHERE p.dataid IS NOT NULL))[1],
        rtrim(string_agg(coalesce(p.letter, CASE WHEN ARRAY[n.line, k.spot] BETWEEN e.first AND e.last THEN '_' ELSE ' ' END), '' ORDER BY k.spot))
    FROM named n
    CROSS JOIN ends e
    CROSS JOIN LATERAL generate_series(0::bigint, greatest(n.spots::bigint, (SELECT max(x.spot) + 1 FROM placed x WHERE x.line = n.line)) - 1) AS k (spot)
    LEFT JOIN placed p ON p.line = n.line AND p.spot = k.spot
    GROUP BY n.line, n.label ORDER BY n.line;
END $$;
COMMENT ON FUNCTION dataflow.chunk_grid(text, integer, text, text) IS
    'A heat map of a dataset whose lines are months of days, days of hours, years of weeks or months, or ranges of numbers: . READY, ~ stale, ? not validated, R RUNNING, F FAILED, s RESUBMIT, H held, _ missing between the first and the last. If there are more than 100000 chunks, none is shown as stale';

DROP FUNCTION IF EXISTS dataflow.runs(text, boolean, timestamptz, integer);
CREATE OR REPLACE FUNCTION dataflow.runs(job text DEFAULT NULL, only_failed boolean DEFAULT false, since timestamptz DEFAULT NULL, at_most integer DEFAULT 50) RETURNS TABLE (
    jobid text, dataid text, number integer, attempt bigint, status text, claimed timestamptz, ended timestamptz, seconds double precision,
    daemon text, code text, error text, retry_at timestamptz, params jsonb
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF job IS NOT NULL THEN
        PERFORM dataflow._known_job(job);
    END IF;
    RETURN QUERY
    SELECT a.jobid::text, a.dataid::text, a.number, a.attempt, dataflow._attempt_status(a), a.claimed, a.ended,
        extract(epoch FROM coalesce(a.ended, clock_timestamp()) - coalesce(a.started, a.claimed))::double precision,
        a.daemon::text, a.code, coalesce(a.error, dataflow._waits_for(a.attempt)), a.retry_at, a.params
    FROM dataflow.attempt a
    WHERE (job IS NULL OR a.jobid = job)
        AND (NOT only_failed OR a.outcome IN ('FAILED', 'LOST', 'CANCELLED'))
        AND (since IS NULL OR a.ended IS NULL OR a.ended >= since)
        AND NOT EXISTS (SELECT FROM dataflow.attempt b WHERE b.jobid = a.jobid AND b.dataid = a.dataid AND b.number = a.number + 1)
    ORDER BY a.attempt DESC LIMIT at_most;
END $$;
COMMENT ON FUNCTION dataflow.runs(text, boolean, timestamptz, integer) IS 'Recent runs, each by its last attempt, newest first. A run that has not begun because all Spark applications are in use is WAITS_FOR_SPARK, and error names the runs that use them';

DROP FUNCTION IF EXISTS dataflow.attempts(text, text);
CREATE OR REPLACE FUNCTION dataflow.attempts(jobid text, dataid text) RETURNS TABLE (
    number integer, attempt bigint, status text, tries integer, lost integer, claimed timestamptz, started timestamptz, ended timestamptz,
    seconds double precision, daemon text, hostname text, code text, error text, retry_at timestamptz, forced boolean, tag text,
    inputs jsonb, code_hash text, config_hash text, usage jsonb, checks jsonb, nodes jsonb, missing text[], forced_inputs text[], params jsonb, words text[], remedy text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_job(attempts.jobid);
    PERFORM dataflow._checked_dataid(attempts.dataid);
    RETURN QUERY
    SELECT a.number, a.attempt, dataflow._attempt_status(a), a.tries, a.lost, a.claimed, a.started, a.ended,
        extract(epoch FROM coalesce(a.ended, clock_timestamp()) - coalesce(a.started, a.claimed))::double precision,
        a.daemon::text, d.hostname, a.code, coalesce(a.error, dataflow._waits_for(a.attempt)), a.retry_at, a.forced, a.tag, a.inputs, a.code_hash, a.config_hash, a.usage,
        (SELECT coalesce(jsonb_agg(jsonb_build_object('datasetid', c.datasetid, 'name', c.name, 'severity', c.severity, 'passed', c.passed,
            'observed', c.observed, 'expected', c.expected) ORDER BY c.datasetid, c.name), '[]') FROM dataflow.check_result c WHERE c.attempt = a.attempt),
        (SELECT coalesce(jsonb_agg(jsonb_build_object('node', n.node, 'parent', n.parent, 'sources', n.sources, 'items', n.items, 'successes', n.successes, 'failures', n.failures,
            'seconds', n.seconds) ORDER BY n.ordinal, n.node), '[]') FROM dataflow.node_stat n WHERE n.attempt = a.attempt),
        dataflow._not_given(a), dataflow._forced_inputs(a.inputs), a.params, a.words, a.remedy
    FROM dataflow.attempt a LEFT JOIN dataflow.daemon d ON d.daemon = a.daemon
    WHERE a.jobid = attempts.jobid AND a.dataid = attempts.dataid ORDER BY a.number;
END $$;
COMMENT ON FUNCTION dataflow.attempts(text, text) IS 'All attempts of a run, with what they were given, what they used, their checks and node statistics';

CREATE OR REPLACE FUNCTION dataflow._attempt_status(a dataflow.attempt) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT coalesce(a.outcome, CASE WHEN a.waits IS NULL THEN 'RUNNING' ELSE 'WAITS_FOR_SPARK' END) $$;

-- What a claimed attempt waits for, and which runs have it; NULL: it does not wait. A daemon reports a wait within two seconds, so an
-- attempt that is younger than three seconds and has not started is not counted as having an application.
CREATE OR REPLACE FUNCTION dataflow._waits_for(attempt bigint) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
    SELECT CASE a.waits WHEN 0 THEN 'waits for its Spark application, which is starting'
        ELSE format('waits for a Spark application: %1$s of %1$s in use%2$s', a.waits, ' (' || used.runs || ')') END
    FROM dataflow.attempt a
    CROSS JOIN LATERAL (
        SELECT string_agg(u.run, ', ' ORDER BY u.place) || CASE WHEN max(u.number) > 5 THEN format(' and %s more', max(u.number) - 5) ELSE '' END AS runs
        FROM (
            SELECT CASE WHEN lag(b.jobid) OVER in_order = b.jobid THEN '' ELSE b.jobid || ' ' END || b.dataid AS run,
                row_number() OVER in_order AS place, count(*) OVER () AS number
            FROM dataflow.attempt b JOIN dataflow.job j ON j.jobid = b.jobid AND j.kind <> 'command'
            WHERE b.ended IS NULL AND b.daemon = a.daemon AND b.waits IS NULL
                AND (b.started IS NOT NULL OR b.claimed < clock_timestamp() - interval '3 seconds')
            WINDOW in_order AS (ORDER BY b.jobid, b.attempt)
        ) AS u WHERE u.place <= 5
    ) AS used
    WHERE a.attempt = _waits_for.attempt AND a.ended IS NULL AND a.waits IS NOT NULL
$$;
