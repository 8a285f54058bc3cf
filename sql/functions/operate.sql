-- What an operator asks and does: each command of dataflowctl calls one function or view, most of them from here. They
-- choose, preview and explain; what a change means is decided where it always is (hold, release, cancel, resubmit, ...).

CREATE OR REPLACE VIEW dataflow.daemons AS
SELECT d.daemon::text, d.hostname, d.pid, d.environment, d.version, d.started, d.lease_until,
    CASE WHEN d.stopped IS NOT NULL THEN 'STOPPED' WHEN d.lease_until < clock_timestamp() THEN 'LOST' WHEN NOT dataflow._has_session(d.session_pid) THEN 'GONE'
        WHEN d.jobs = '{}' THEN 'IDLE' ELSE 'ALIVE' END AS state,
    coalesce(live.attempts, 0) AS running, c.concurrency, coalesce(c.paused, false) AS paused, d.lease_until - d.lease AS heard
FROM dataflow.daemon d
LEFT JOIN dataflow.control c ON c.scope = 'daemon:' || d.daemon
LEFT JOIN (SELECT a.daemon, count(*) AS attempts FROM dataflow.attempt a WHERE a.ended IS NULL GROUP BY a.daemon) AS live ON live.daemon = d.daemon;
COMMENT ON VIEW dataflow.daemons IS 'Every daemon that was ever seen: ALIVE, IDLE (it starts nothing: it is stopping, or has no flow), GONE (its session has ended: it was killed, or cannot reach the server; its runs are its own until the lease ends), LOST (its lease ended without a word) or STOPPED, and what it runs';

CREATE OR REPLACE VIEW dataflow.limits AS
WITH live AS MATERIALIZED (
    SELECT a.jobid, a.daemon, count(*) AS attempts FROM dataflow.attempt a WHERE a.ended IS NULL GROUP BY a.jobid, a.daemon
)
SELECT l.scope, l.concurrency, l.paused, coalesce((
    SELECT sum(v.attempts) FROM live v
    WHERE l.scope = 'global' OR l.scope = 'job:' || v.jobid OR l.scope = 'daemon:' || v.daemon), 0)::bigint AS running, l.declared_in, l.runners, l.slots
FROM (
    SELECT c.scope, coalesce(c.concurrency, j.max_running) AS concurrency, c.paused, c.runners, c.slots,
        CASE WHEN c.concurrency IS NULL AND j.max_running IS NOT NULL THEN 'flow' ELSE 'control' END AS declared_in
    FROM dataflow.control c LEFT JOIN dataflow.job j ON c.scope = 'job:' || j.jobid
    UNION ALL
    SELECT 'job:' || j.jobid, j.max_running, false, NULL, NULL, 'flow' FROM dataflow.job j
    WHERE j.max_running IS NOT NULL AND j.retired IS NULL
        AND NOT EXISTS (SELECT FROM dataflow.control c WHERE c.scope = 'job:' || j.jobid)
) AS l;
COMMENT ON VIEW dataflow.limits IS
    'Every limit and pause that is in force, with how many attempts run under it; declared_in says whether the control table or the flow set it';

-- FAILED chunks are found through their attempts, for datastatus has no index on a status: it would make every change of
-- status dearer. Whatever the counters know beyond these was set by hand.
CREATE OR REPLACE FUNCTION dataflow.causes(jobid text DEFAULT NULL) RETURNS TABLE (
    code text, runs bigint, retrying bigint, jobs bigint, first timestamptz, last timestamptz, example_jobid text, example_dataid text, reason text
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
    WITH counted AS MATERIALIZED (
        SELECT c.datasetid, c.jobid, c.chunks FROM dataflow.chunk_count c JOIN dataflow.dataset d ON d.datasetid = c.datasetid AND d.retired IS NULL
        WHERE c.status = 'FAILED' AND (causes.jobid IS NULL OR c.jobid = causes.jobid)
    ), found AS MATERIALIZED (
        SELECT c.datasetid, c.jobid, a.dataid::text, coalesce(s.code, a.code, 'FAILED') AS code, coalesce(s.reason, a.error) AS reason, s.modified, a.retry_at
        FROM counted c
        JOIN dataflow.attempt a ON a.jobid = c.jobid AND a.outcome IN ('FAILED', 'LOST', 'CANCELLED')
        CROSS JOIN LATERAL (
            SELECT x.code, x.reason, x.modified FROM dataflow.datastatus x
            WHERE x.datasetid = c.datasetid AND x.dataid = a.dataid AND x.locktype = 'OUT' AND x.status = 'FAILED' AND x.attempt = a.attempt OFFSET 0
        ) AS s
    ), by_hand AS (
        SELECT c.datasetid, c.jobid, c.chunks - count(f.dataid) AS runs FROM counted c LEFT JOIN found f ON f.datasetid = c.datasetid AND f.jobid = c.jobid
        GROUP BY c.datasetid, c.jobid, c.chunks HAVING c.chunks > count(f.dataid)
    )
    SELECT f.code, count(DISTINCT (f.jobid, f.dataid)), count(DISTINCT (f.jobid, f.dataid)) FILTER (WHERE f.retry_at IS NOT NULL),
        -- Of those that need a hand, where there are any.
        coalesce(nullif(count(DISTINCT f.jobid) FILTER (WHERE f.retry_at IS NULL), 0), count(DISTINCT f.jobid)), min(f.modified), max(f.modified),
        (array_agg(f.jobid ORDER BY f.retry_at IS NOT NULL, f.modified, f.jobid))[1],
        (array_agg(f.dataid ORDER BY f.retry_at IS NOT NULL, f.modified, f.jobid))[1],
        CASE WHEN count(DISTINCT split_part(f.reason, E'\n', 1)) < 2 THEN min(f.reason)
            ELSE format('%s (and %s: dataflowctl runs --failed)',
                split_part((array_agg(f.reason ORDER BY f.retry_at IS NOT NULL, f.modified, f.jobid))[1], E'\n', 1),
                dataflow._counted(count(DISTINCT split_part(f.reason, E'\n', 1)) - 1, 'other message')) END
    FROM found f GROUP BY f.code
    UNION ALL
    SELECT 'BY_HAND', sum(h.runs)::bigint, 0, count(DISTINCT h.jobid), NULL, NULL, max(h.jobid), NULL, 'set to FAILED by hand'
    FROM by_hand h WHERE h.jobid <> '' HAVING count(*) > 0
    UNION ALL
    -- A job that is no more may have left them; nobody makes them again.
    SELECT 'NO_PRODUCER', sum(h.runs)::bigint, 0, 0, NULL, NULL, NULL, NULL,
        format('%s of %s: no job makes them', dataflow._counted(sum(h.runs)::bigint, 'chunk'), string_agg(h.datasetid, ', ' ORDER BY h.datasetid))
    FROM by_hand h WHERE h.jobid = '' HAVING count(*) > 0
    ORDER BY 2 DESC, 1
$$;
COMMENT ON FUNCTION dataflow.causes(text) IS
    'Why runs are FAILED now, grouped by code, most frequent first; retrying says how many of them the job''s own policy tries again';

-- How fast jobs have gone of late, from a bounded number of attempts.
CREATE OR REPLACE FUNCTION dataflow.rates() RETURNS TABLE (jobid text, per_hour double precision)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    WITH recent AS MATERIALIZED (
        SELECT a.jobid, a.outcome, a.claimed, a.ended FROM dataflow.attempt a ORDER BY a.attempt DESC LIMIT 2000
    ), span AS (
        SELECT greatest(min(r.claimed), now() - interval '1 hour') AS began FROM recent r
    )
    SELECT r.jobid::text, count(*) * 3600 / greatest(extract(epoch FROM now() - s.began), 60)::double precision
    FROM recent r, span s WHERE r.outcome = 'DONE' AND r.ended >= s.began GROUP BY r.jobid, s.began
$$;
COMMENT ON FUNCTION dataflow.rates() IS 'Runs done per hour and job, measured over the last hour or the last 2000 attempts, whichever is shorter';

CREATE OR REPLACE FUNCTION dataflow.overview(jobid text, ignored text[]) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    jobs jsonb;
    causes jsonb;
    daemons jsonb;
    limits record;
    alive bigint;
    queued numeric;
    for_daemons numeric;
    held numeric;
    quarantined numeric;
    waits text;
    hands jsonb;
    for_spark jsonb;
BEGIN
    IF overview.jobid IS NOT NULL THEN
        PERFORM dataflow._known_job(overview.jobid);
    END IF;
    SELECT l.concurrency, l.paused, l.running INTO limits FROM dataflow.limits l WHERE l.scope = 'global';
    SELECT coalesce(jsonb_agg(to_jsonb(d) ORDER BY d.daemon), '[]'), count(*) FILTER (WHERE d.state = 'ALIVE') INTO daemons, alive
        FROM dataflow.daemons d WHERE d.state <> 'STOPPED';
    SELECT coalesce(jsonb_agg(to_jsonb(c)), '[]') INTO causes FROM dataflow.causes(overview.jobid) AS c;
    SELECT coalesce(jsonb_agg(jsonb_build_object(
            'jobid', s.jobid, 'done', s.ready, 'running', s.running, 'limit', s.max_running, 'waiting', s.queued, 'retry_later', s.retry_later,
            'failed', s.failed, 'resubmit', s.resubmit, 'held', s.held, 'quarantined', s.quarantined, 'oldest_waiting', s.oldest_queued,
            'forced', coalesce(f.runs, 0), 'waits_for_spark', coalesce(w.attempts, 0), 'per_hour', round(r.per_hour::numeric, 1), 'eta_seconds', CASE WHEN NOT (s.paused OR limits.paused) THEN round(((s.queued + s.running) * 3600 / nullif(r.per_hour, 0))::numeric) END, 'paused', s.paused)
            ORDER BY s.failed > 0 DESC, s.running > 0 DESC, s.queued > 0 DESC, s.jobid), '[]'),
        coalesce(sum(s.queued), 0), coalesce(sum(s.queued) FILTER (WHERE s.jobid NOT IN (SELECT k.jobid FROM dataflow.job k WHERE k.kind = 'outside')), 0),
        coalesce(sum(s.quarantined), 0)
    INTO jobs, queued, for_daemons, quarantined
    FROM dataflow.status() AS s LEFT JOIN dataflow.rates() AS r ON r.jobid = s.jobid
    LEFT JOIN (SELECT v.jobid, count(DISTINCT v.dataid) AS runs FROM dataflow.forced v GROUP BY v.jobid) AS f ON f.jobid = s.jobid
    LEFT JOIN (
        SELECT a.jobid, count(*) AS attempts FROM dataflow.attempt a WHERE a.ended IS NULL AND a.waits IS NOT NULL GROUP BY a.jobid
    ) AS w ON w.jobid = s.jobid
    WHERE overview.jobid IS NULL OR s.jobid = overview.jobid;

    SELECT coalesce(jsonb_agg(jsonb_build_object('daemon', w.daemon, 'runs', w.runs, 'detail', dataflow._waits_for(w.example)) ORDER BY w.daemon), '[]') INTO for_spark
    FROM (
        SELECT a.daemon::text, count(*) AS runs, min(a.attempt) AS example FROM dataflow.attempt a
        WHERE a.ended IS NULL AND a.waits IS NOT NULL GROUP BY a.daemon
    ) AS w;

    waits := CASE queued WHEN 1 THEN '1 run waits' ELSE queued || ' runs wait' END;
    SELECT coalesce(sum(c.chunks), 0) INTO held FROM dataflow.chunk_count c
        WHERE c.status IN ('HOLD', 'PENDING') AND (overview.jobid IS NULL OR c.jobid = overview.jobid);
    SELECT coalesce(jsonb_agg(jsonb_build_object('code', h.code, 'count', h.count, 'detail', h.detail, 'remedy', h.remedy) ORDER BY h.place, h.count DESC, h.code), '[]')
    INTO hands FROM (
        SELECT 1 AS place, 'NO_DAEMON' AS code, for_daemons AS count, format('%s ready, and no daemon is there to start %s', CASE for_daemons WHEN 1 THEN '1 run is' ELSE for_daemons || ' runs are' END,
            CASE for_daemons WHEN 1 THEN 'it' ELSE 'them' END) AS detail, 'start dataflowd' AS remedy
        WHERE for_daemons > 0 AND alive = 0
        UNION ALL
        SELECT 2, 'NOT_SERVED', n.runs, format('%s of %s: no live daemon has the job', dataflow._counted(n.runs::bigint, 'ready run'), n.names),
            format('dataflowctl why %s', n.example)
        FROM (
            SELECT sum((j ->> 'waiting')::numeric) AS runs, min(j ->> 'jobid') AS example,
                min(j ->> 'jobid') || CASE WHEN count(*) > 1 THEN format(' and %s', dataflow._counted(count(*) - 1, 'other job')) ELSE '' END AS names
            FROM jsonb_array_elements(jobs) AS j
            WHERE (j ->> 'waiting')::numeric > 0 AND NOT EXISTS (
                SELECT FROM dataflow.daemons d JOIN dataflow.daemon x ON x.daemon = d.daemon
                WHERE d.state = 'ALIVE' AND (x.jobs IS NULL OR dataflow._code_of(j ->> 'jobid') = ANY (x.jobs)))
                AND NOT EXISTS (SELECT FROM dataflow.job k WHERE k.jobid = j ->> 'jobid' AND k.kind = 'outside')
        ) AS n WHERE alive > 0 AND n.runs > 0
        UNION ALL
        SELECT 2, 'PAUSED', queued, format('everything is paused; %s', waits), 'dataflowctl resume' WHERE limits.paused
        UNION ALL
        SELECT 2, 'LIMIT_ZERO', queued, format('the global limit is 0; %s', waits), 'dataflowctl concurrency 4' WHERE limits.concurrency = 0
        UNION ALL
        SELECT 3, 'LOST_DAEMON', (d ->> 'running')::numeric, format('daemon %s on %s was last heard of %s; %s its own',
            d ->> 'daemon', d ->> 'hostname', to_char((d ->> 'heard')::timestamptz, 'YYYY-MM-DD HH24:MI:SSOF'),
            CASE d ->> 'running' WHEN '1' THEN '1 attempt is' ELSE (d ->> 'running') || ' attempts are' END)
            || CASE WHEN d ->> 'state' = 'GONE' THEN format(' until %s', to_char((d ->> 'lease_until')::timestamptz, 'HH24:MI:SS')) ELSE '' END,
            CASE WHEN d ->> 'state' = 'GONE' THEN format('it was killed, or cannot reach the database: look after %s; a restart there takes them over at once, %s',
                    d ->> 'hostname', CASE WHEN alive > 0 THEN 'another daemon does when its lease has ended' ELSE 'a daemon elsewhere does when the lease has ended' END)
                WHEN hanging.session_pid IS NOT NULL THEN dataflow._hanging((d ->> 'pid')::integer, d ->> 'hostname', hanging.session_pid, CASE WHEN alive > 0 THEN hanging.ends END)
                WHEN alive > 0 THEN format('another daemon takes them over; look after %s', d ->> 'hostname')
                ELSE format('start dataflowd, which takes them over; look after %s', d ->> 'hostname') END
        FROM jsonb_array_elements(daemons) AS d
        LEFT JOIN LATERAL (
            SELECT x.session_pid, x.lease_until + x.lease AS ends FROM dataflow.daemon x JOIN dataflow.daemon_session s ON s.daemon = x.daemon AND s.session_pid = x.session_pid
            WHERE x.daemon = d ->> 'daemon'
        ) AS hanging ON true
        WHERE d ->> 'state' IN ('GONE', 'LOST') AND (d ->> 'running')::int > 0
        UNION ALL
        -- An earlier process of a daemon that was started again: its pid is not known any more.
        SELECT 3, 'LOST_DAEMON', f.attempts, format('an earlier process of daemon %s keeps %s', f.daemon, dataflow._counted(f.attempts, 'run')),
            dataflow._hanging(NULL, f.hostname, f.session_pid, NULL)
        FROM dataflow.frozen_sessions() AS f WHERE NOT EXISTS (SELECT FROM dataflow.daemon x WHERE x.daemon = f.daemon AND x.session_pid = f.session_pid)
        UNION ALL
        SELECT 4, c ->> 'code', (c ->> 'runs')::numeric - (c ->> 'retrying')::numeric,
            CASE WHEN c ->> 'code' = 'NO_PRODUCER' THEN 'FAILED: ' || (c ->> 'reason') ELSE format('%s of %s FAILED: %s',
                dataflow._counted((c ->> 'runs')::bigint - (c ->> 'retrying')::bigint, 'run'),
                dataflow._counted((c ->> 'jobs')::bigint, 'job'), coalesce(split_part(c ->> 'reason', E'\n', 1), 'no reason is known')) END,
            CASE WHEN c ->> 'code' = 'NO_PRODUCER' THEN 'dataflowctl chunks DATASET --status FAILED, then dataflowctl ready DATASET DATAID, or dataflowctl delete JOB of the job that made them'
                WHEN c ->> 'example_dataid' IS NULL THEN format('dataflowctl why %s, then dataflowctl resubmit %s', c ->> 'example_jobid', c ->> 'example_jobid')
                ELSE format('dataflowctl why %s %s, then dataflowctl resubmit --error %s', c ->> 'example_jobid', c ->> 'example_dataid', c ->> 'code') END
        FROM jsonb_array_elements(causes) AS c WHERE (c ->> 'runs')::bigint > (c ->> 'retrying')::bigint
        UNION ALL
        SELECT 5, 'HELD', held, format('%s held by an operator', chunks), 'dataflowctl release --status HOLD --dry-run'
        FROM dataflow._counted(held::bigint, 'chunk') AS chunks WHERE held > 0
        UNION ALL
        SELECT 6, 'QUARANTINED', quarantined, format('%s set aside', records), 'dataflowctl quarantine list'
        FROM dataflow._counted(quarantined::bigint, 'record') AS records WHERE quarantined > 0
        UNION ALL
        SELECT 7, 'PARTIAL', p.runs, format('%s of %s made by force, without all inputs', dataflow._counted(p.runs, 'chunk'), p.jobid),
            format('dataflowctl why %s %s', p.jobid, p.example)
        FROM (
            SELECT v.jobid, count(DISTINCT v.dataid) AS runs, min(v.dataid) AS example FROM dataflow.forced v
            WHERE v.missing IS NOT NULL AND (overview.jobid IS NULL OR v.jobid = overview.jobid) GROUP BY v.jobid
        ) AS p
    ) AS h WHERE h.code <> ALL (coalesce(ignored, '{}'));
    RETURN jsonb_build_object('at', now(), 'running', limits.running, 'limit', limits.concurrency, 'paused', limits.paused, 'waiting', queued, 'waits_for_spark', for_spark,
        'needs_hand', hands, 'causes', causes, 'daemons', daemons, 'jobs', jobs);
END $$;
COMMENT ON FUNCTION dataflow.overview(text, text[]) IS
    'All that `dataflowctl status` shows, what needs a hand first: needs_hand without the ignored codes, causes, daemons, jobs. Cheap at any size';

CREATE OR REPLACE FUNCTION dataflow.overview(jobid text DEFAULT NULL) RETURNS jsonb
LANGUAGE sql STABLE
AS $$ SELECT dataflow.overview(jobid, '{}') $$;
COMMENT ON FUNCTION dataflow.overview(text) IS 'overview() with nothing ignored';

CREATE OR REPLACE FUNCTION dataflow.needs_hand(jobid text DEFAULT NULL, ignored text[] DEFAULT '{}') RETURNS TABLE (code text, count bigint, detail text, remedy text)
LANGUAGE sql STABLE
AS $$
    SELECT h.code, h.count, h.detail, h.remedy
    FROM jsonb_to_recordset(dataflow.overview(jobid, ignored) -> 'needs_hand') AS h (code text, count bigint, detail text, remedy text)
$$;
COMMENT ON FUNCTION dataflow.needs_hand(text, text[]) IS
    'What needs a hand, most urgent first, but for the ignored codes; no row: nothing does. SELECT * FROM dataflow.needs_hand(ignored => ''{HELD,QUARANTINED}'')';

CREATE OR REPLACE FUNCTION dataflow._counted(n bigint, thing text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT n || ' ' || thing || CASE n WHEN 1 THEN '' ELSE 's' END $$;

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
    -- Mostly nobody forces anything, and no input has to be looked at.
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
        -- The index gives the order of dataids; every other order has to see them all.
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

CREATE OR REPLACE FUNCTION dataflow._checked_statuses(statuses text[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    known constant text[] := ARRAY['RUNNING', 'READY', 'FAILED', 'RESUBMIT', 'PENDING', 'HOLD'];
    unknown text;
BEGIN
    SELECT s INTO unknown FROM unnest(statuses) AS s WHERE s <> ALL (known) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% is no status', unknown USING ERRCODE = 'DF400', HINT = 'allowed are ' || array_to_string(known, ', ');
    END IF;
END $$;

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
        string_agg(CASE n.status WHEN 'READY' THEN CASE WHEN n.validated THEN '.' ELSE '?' END WHEN 'RUNNING' THEN 'R' WHEN 'FAILED' THEN 'F'
            WHEN 'RESUBMIT' THEN 's' ELSE 'H' END, '' ORDER BY n.place)
    FROM numbered n GROUP BY n.place / greatest(width, 1) ORDER BY n.place / greatest(width, 1);
END $$;
COMMENT ON FUNCTION dataflow.chunk_map(text, integer, text, text) IS
    'A heat map of a dataset, one character a chunk in the order of its dataids: . READY, ? not validated, R RUNNING, F FAILED, s RESUBMIT, H held';

-- The map as a person reads it: a row is a period of time, or a range of numbers, and what is missing in it is seen. By the form of the dataids
-- alone, so that a day which does not exist has its place, too.
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
    -- To tell whether a chunk is stale costs more than all the rest.
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
            SELECT s.dataid::text, row_number() OVER (ORDER BY s.sortkey) - 1 AS place, CASE s.status
                WHEN 'READY' THEN CASE WHEN NOT s.validated THEN '?' WHEN s.dataid IN (SELECT t.dataid FROM stale t) THEN '~' ELSE '.' END
                WHEN 'RUNNING' THEN 'R' WHEN 'FAILED' THEN 'F' WHEN 'RESUBMIT' THEN 's' ELSE 'H' END AS letter
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
        -- Lines of which everything is missing are shown, unless there are far more of them than others.
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
    'A heat map of a dataset whose lines are months of days, days of hours, years of weeks or months, or ranges of numbers: . READY, ~ stale, ? not validated, R RUNNING, F FAILED, s RESUBMIT, H held, _ missing between the first and the last. Of more than 100000 chunks it is not asked which are stale';

-- What a claimed attempt waits for, and who has it; NULL: it does not wait. Its daemon says within two seconds that it waits: a younger
-- attempt without a word is not counted among those that have an application.
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
COMMENT ON FUNCTION dataflow.runs(text, boolean, timestamptz, integer) IS 'Recent runs, each by its last attempt, newest first. One that has not begun because all Spark applications are in use is WAITS_FOR_SPARK, and error says who uses them';

DROP FUNCTION IF EXISTS dataflow.attempts(text, text);
CREATE OR REPLACE FUNCTION dataflow.attempts(jobid text, dataid text) RETURNS TABLE (
    number integer, attempt bigint, status text, tries integer, lost integer, claimed timestamptz, started timestamptz, ended timestamptz,
    seconds double precision, daemon text, hostname text, code text, error text, retry_at timestamptz, forced boolean, tag text,
    inputs jsonb, code_hash text, config_hash text, usage jsonb, checks jsonb, nodes jsonb, missing text[], forced_inputs text[], params jsonb, words text[]
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
        dataflow._not_given(a), dataflow._forced_inputs(a.inputs), a.params, a.words
    FROM dataflow.attempt a LEFT JOIN dataflow.daemon d ON d.daemon = a.daemon
    WHERE a.jobid = attempts.jobid AND a.dataid = attempts.dataid ORDER BY a.number;
END $$;
COMMENT ON FUNCTION dataflow.attempts(text, text) IS 'All attempts of a run, with what they were given, what they used, their checks and node statistics';

CREATE OR REPLACE FUNCTION dataflow._attempt_status(a dataflow.attempt) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT coalesce(a.outcome, CASE WHEN a.waits IS NULL THEN 'RUNNING' ELSE 'WAITS_FOR_SPARK' END) $$;

-- How far the queue is looked along to say a place in it.
CREATE OR REPLACE FUNCTION dataflow._queue_position(jobid text, dataid text) RETURNS bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT q.place FROM (
        SELECT w.dataid, row_number() OVER (ORDER BY w.sortkey) AS place FROM dataflow.work w
        WHERE w.jobid || '' = _queue_position.jobid AND w.not_before IS NULL ORDER BY w.sortkey LIMIT 10000
    ) AS q WHERE q.dataid = _queue_position.dataid
$$;

CREATE OR REPLACE FUNCTION dataflow.run_state(jobid text, dataid text) RETURNS TABLE (
    state text, datasetid text, since timestamptz, version integer, reason text, attempt bigint, number integer, tries integer, max_attempts integer,
    outcome text, code text, error text, claimed timestamptz, ended timestamptz, retry_at timestamptz, daemon text, hostname text, inputs jsonb, not_before timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_job(run_state.jobid);
    PERFORM dataflow._checked_dataid(run_state.dataid);
    RETURN QUERY
    SELECT CASE
            WHEN s.status IN ('HOLD', 'PENDING') THEN 'HELD'
            WHEN s.status = 'FAILED' AND a.retry_at IS NOT NULL AND w.jobid IS NOT NULL THEN 'RETRYING'
            WHEN s.status IN ('RUNNING', 'READY', 'FAILED') THEN s.status
            WHEN w.jobid IS NOT NULL THEN 'QUEUED'
            WHEN s.status IS NOT NULL OR EXISTS (
                SELECT FROM dataflow.required_inputs(run_state.jobid, run_state.dataid) AS i JOIN dataflow.job_input k ON k.jobid = run_state.jobid AND k.datasetid = i.datasetid
                JOIN dataflow.datastatus c ON c.datasetid = i.datasetid AND c.dataid = i.dataid AND c.locktype = 'OUT' WHERE k.kind <> 'fixed') THEN 'WAITING'
            ELSE 'UNKNOWN'
        END,
        s.datasetid::text, s.modified, s.version, s.reason, a.attempt, a.number, a.tries, j.max_attempts,
        a.outcome, a.code, a.error, a.claimed, a.ended, a.retry_at, a.daemon::text, d.hostname, a.inputs, w.not_before
    FROM dataflow.job j
    LEFT JOIN LATERAL (
        SELECT c.* FROM dataflow.job_output o JOIN dataflow.datastatus c ON c.datasetid = o.datasetid AND c.dataid = run_state.dataid AND c.locktype = 'OUT'
        WHERE o.jobid = j.jobid ORDER BY c.status <> 'READY' DESC, c.datasetid LIMIT 1
    ) AS s ON true
    LEFT JOIN LATERAL (
        SELECT t.* FROM dataflow.attempt t WHERE t.jobid = j.jobid AND t.dataid = run_state.dataid ORDER BY t.number DESC LIMIT 1
    ) AS a ON true
    LEFT JOIN dataflow.daemon d ON d.daemon = a.daemon
    LEFT JOIN dataflow.work w ON w.jobid = j.jobid AND w.dataid = run_state.dataid
    WHERE j.jobid = run_state.jobid;
END $$;
COMMENT ON FUNCTION dataflow.run_state(text, text) IS
    'Where a run stands: READY, RUNNING, FAILED, RETRYING, HELD, QUEUED, WAITING (for its data) or UNKNOWN, with its last attempt';

-- What may keep a job from starting although its data is fine.
CREATE OR REPLACE FUNCTION dataflow._obstacles(jobid text) RETURNS TABLE (number integer, question text, answer boolean, code text, detail text, remedy text)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 6, 'Is it free to start?', NOT coalesce(g.paused OR l.paused, g.paused), CASE WHEN g.paused OR l.paused THEN 'PAUSED' END,
        CASE WHEN g.paused THEN 'everything is paused' WHEN l.paused THEN format('job %s is paused', _obstacles.jobid) ELSE 'neither the job nor everything is paused' END,
        CASE WHEN g.paused THEN 'dataflowctl resume' WHEN l.paused THEN format('dataflowctl resume %s', _obstacles.jobid) END
    FROM dataflow.limits g LEFT JOIN dataflow.limits l ON l.scope = 'job:' || _obstacles.jobid WHERE g.scope = 'global'
    UNION ALL
    SELECT 7, 'Is there a free place?', NOT coalesce(full_scope.is_full, false), CASE WHEN full_scope.is_full THEN 'AT_LIMIT' END,
        CASE WHEN full_scope.is_full THEN format('%s: %s of %s are running', full_scope.scope, full_scope.running, full_scope.concurrency)
            ELSE concat_ws(', ', format('global: %s of %s are running', g.running, g.concurrency), CASE WHEN l.scope IS NOT NULL THEN format('job: %s of %s', l.running, l.concurrency) END) END,
        CASE WHEN full_scope.is_full THEN CASE full_scope.concurrency WHEN 0 THEN '' ELSE 'wait, or ' END || 'dataflowctl concurrency ' || full_scope.running + 1
            || CASE full_scope.scope WHEN 'global' THEN '' ELSE ' --job ' || _obstacles.jobid END END
    FROM dataflow.limits g
    LEFT JOIN dataflow.limits l ON l.scope = 'job:' || _obstacles.jobid AND l.concurrency IS NOT NULL
    LEFT JOIN LATERAL (
        SELECT true AS is_full, f.scope, f.running, f.concurrency FROM (VALUES (g.scope, g.running, g.concurrency), (l.scope, l.running, l.concurrency)) AS f (scope, running, concurrency)
        WHERE f.running >= f.concurrency ORDER BY f.scope <> 'global' LIMIT 1
    ) AS full_scope ON true
    WHERE g.scope = 'global'
    UNION ALL
    SELECT 8, 'Is a daemon there to run it?', n.code IS NULL, n.code, n.detail, n.remedy
    FROM (
        SELECT max(s.environment) AS environment, min(s.datasetid) AS dataset FROM (
            SELECT o.datasetid FROM dataflow.job_output o WHERE o.jobid = _obstacles.jobid
            UNION ALL
            SELECT i.datasetid FROM dataflow.job_input i WHERE i.jobid = _obstacles.jobid
        ) AS used
        JOIN dataflow.dataset s ON s.datasetid = used.datasetid WHERE s.environment IS NOT NULL
    ) AS e
    CROSS JOIN LATERAL (
        SELECT count(*) AS alive, count(*) FILTER (WHERE x.is_here) AS here, count(*) FILTER (WHERE x.is_here AND x.serves) AS serving,
            string_agg(x.name || coalesce(': ' || x.reason, ''), ', ' ORDER BY x.name) FILTER (WHERE x.is_here) AS names,
            bool_or(x.reason IS NOT NULL) AS has_reason,
            string_agg(x.name, ', ' ORDER BY x.name) FILTER (WHERE x.is_here AND x.serves AND x.is_free) AS fit
        FROM (
            SELECT format('%s on %s%s', a.daemon, a.hostname, CASE a.state WHEN 'IDLE' THEN ' (it starts nothing)' ELSE '' END) AS name,
                a.environment = coalesce(e.environment, a.environment) AS is_here, NOT a.paused AND coalesce(a.concurrency, 1) > 0 AS is_free,
                b.jobs IS NULL OR dataflow._code_of(_obstacles.jobid) = ANY (b.jobs) AS serves, b.unserved ->> dataflow._code_of(_obstacles.jobid) AS reason
            FROM dataflow.daemons a JOIN dataflow.daemon b ON b.daemon = a.daemon WHERE a.state IN ('ALIVE', 'IDLE')
        ) AS x
    ) AS d
    CROSS JOIN LATERAL (
        SELECT k.* FROM (VALUES
            (EXISTS (SELECT FROM dataflow.job j WHERE j.jobid = _obstacles.jobid AND j.kind = 'outside'), 'OUTSIDE', 'something outside executes the job; it has not begun this run',
                format('dataflowctl begin %s', _obstacles.jobid)),
            (d.fit IS NOT NULL, NULL, d.fit || coalesce(format('; only hosts of environment %s: dataset %s belongs to it', e.environment, e.dataset), ''), NULL),
            (d.serving > 0, 'PAUSED', 'every daemon that has the job is paused, or its limit is 0', 'dataflowctl resume --daemon NAME'),
            (d.here > 0, 'NOT_SERVED', format('no live daemon has the job, or can run it; there is %s', d.names),
                CASE WHEN d.has_reason THEN 'correct that on its host (dataflowctl doctor there says how), and reload the daemon'
                ELSE format('add its flow (%s) to the setting flows of a daemon whose engine fits, and reload that: dataflowctl doctor',
                    (SELECT j.flow FROM dataflow.job j WHERE j.jobid = dataflow._code_of(_obstacles.jobid))) END),
            (d.alive > 0, 'WRONG_ENVIRONMENT', format('no daemon of environment %s is alive, and dataset %s belongs to it', e.environment, e.dataset), format('start dataflowd on a host of environment %s', e.environment)),
            (true, 'NO_DAEMON', 'no daemon is alive', 'start dataflowd')
        ) AS k (applies, code, detail, remedy) WHERE k.applies LIMIT 1
    ) AS n
$$;

CREATE OR REPLACE FUNCTION dataflow.root_causes(jobid text, dataid text) RETURNS TABLE (
    depth integer, datasetid text, dataid text, jobid text, status text, code text, reason text
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
    WITH RECURSIVE missing AS (
        SELECT 1 AS depth, i.datasetid, i.dataid, o.jobid::text, s.status, s.code, s.reason
        FROM dataflow.required_inputs(root_causes.jobid, root_causes.dataid) AS i
        LEFT JOIN dataflow.job_output o ON o.datasetid = i.datasetid
        LEFT JOIN dataflow.datastatus s ON s.datasetid = i.datasetid AND s.dataid = i.dataid AND s.locktype = 'OUT'
        WHERE s.status IS DISTINCT FROM 'READY'
        UNION
        SELECT m.depth + 1, i.datasetid, i.dataid, o.jobid, s.status, s.code, s.reason
        FROM missing m
        CROSS JOIN LATERAL dataflow.required_inputs(m.jobid, m.dataid) AS i
        LEFT JOIN dataflow.job_output o ON o.datasetid = i.datasetid
        LEFT JOIN dataflow.datastatus s ON s.datasetid = i.datasetid AND s.dataid = i.dataid AND s.locktype = 'OUT'
        WHERE m.depth < 50 AND m.status IS DISTINCT FROM 'FAILED' AND s.status IS DISTINCT FROM 'READY'
    ), looked_at AS MATERIALIZED (
        SELECT * FROM missing LIMIT 2000
    )
    SELECT max(l.depth), l.datasetid, l.dataid, l.jobid, l.status, l.code, l.reason FROM looked_at l
    WHERE NOT EXISTS (
        SELECT FROM dataflow.required_inputs(l.jobid, l.dataid) AS i
        LEFT JOIN dataflow.datastatus s ON s.datasetid = i.datasetid AND s.dataid = i.dataid AND s.locktype = 'OUT'
        WHERE l.status IS DISTINCT FROM 'FAILED' AND s.status IS DISTINCT FROM 'READY')
    GROUP BY l.datasetid, l.dataid, l.jobid, l.status, l.code, l.reason
    ORDER BY 1 DESC, 2, 3
$$;
COMMENT ON FUNCTION dataflow.root_causes(text, text) IS
    'The chunks at the far end of what a run waits for: those that are missing or FAILED although all that they need is there';

-- What to do about a chunk that no job makes: register it, or let its calendar do so.
CREATE OR REPLACE FUNCTION dataflow._arrival(datasetid text, dataid text) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE
        WHEN d.calendar IS NULL AND d.ordering IN ('date', 'number') AND NOT dataflow._fits_ordering(d.ordering, _arrival.dataid)
            THEN format('it cannot arrive: %s is no %s, and the ordering of dataset %s is %s', _arrival.dataid, d.ordering, _arrival.datasetid, d.ordering)
        WHEN d.calendar IS NULL THEN format('when it has arrived: dataflowctl ready %s %s', _arrival.datasetid, _arrival.dataid)
        WHEN p.due IS NULL THEN format('the calendar %s has no such period: it has %s ones', _arrival.datasetid, d.calendar)
        WHEN p.start < d.calendar_start THEN format('the calendar %s begins with %s; to have an earlier period all the same: dataflowctl ready %s %s',
            _arrival.datasetid, dataflow.period_id(dataflow._calendar_unit(d.calendar), d.calendar_start, d.calendar_zone), _arrival.datasetid, _arrival.dataid)
        WHEN p.due > now() THEN format('wait: the calendar makes it READY at %s', to_char(p.due, 'YYYY-MM-DD HH24:MI:SSOF'))
        ELSE format('it is due since %s: start dataflowd, which makes it READY', to_char(p.due, 'YYYY-MM-DD HH24:MI:SSOF')) END
    FROM dataflow.dataset d
    CROSS JOIN LATERAL (
        SELECT s.start, dataflow._calendar_due(d, s.start) AS due
        FROM (SELECT dataflow.period_start(dataflow._calendar_unit(d.calendar), _arrival.dataid, d.calendar_zone) AS start) AS s
    ) AS p
    WHERE d.datasetid = _arrival.datasetid
$$;

CREATE OR REPLACE FUNCTION dataflow.why(jobid text, dataid text) RETURNS TABLE (
    number integer, question text, answer boolean, code text, detail text, remedy text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    run record;
    missing record;
    unvalidated text;
    held record;
    root record;
    roots bigint;
    began boolean;
    is_retired boolean;
    maker record;
    given text;
    old record;
    host record;
    kept record;
    advice text;
    takes text;
    renewal text;
    lacks text;
    waits text;
    place bigint;
    here constant text := format('%s %s', why.jobid, why.dataid);
    again constant text := format('dataflowctl resubmit %s --dataid %s', why.jobid, why.dataid);
    stamp constant text := 'YYYY-MM-DD HH24:MI:SSOF';
BEGIN
    SELECT r.* INTO run FROM dataflow.run_state(why.jobid, why.dataid) AS r;
    SELECT j.retired IS NOT NULL INTO is_retired FROM dataflow.job j WHERE j.jobid = why.jobid;
    SELECT a.started IS NOT NULL INTO began FROM dataflow.attempt a WHERE a.attempt = run.attempt;
    -- The version that is published may be of an earlier attempt than the last.
    SELECT a.attempt, a.number, a.daemon, a.ended, a.inputs, a.forced, a.params, dataflow._not_given(a) AS missing, dataflow._forced_inputs(a.inputs) AS forced_inputs
        INTO maker FROM dataflow.datastatus s JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest
        JOIN dataflow.attempt a ON a.attempt = m.attempt
        WHERE s.datasetid = run.datasetid AND s.dataid = why.dataid AND s.locktype = 'OUT';
    -- Of the attempt that runs, or of the next one.
    SELECT dataflow._params_text(CASE run.state WHEN 'RUNNING' THEN (SELECT a.params FROM dataflow.attempt a WHERE a.attempt = run.attempt)
        ELSE dataflow._given_params(why.jobid, why.dataid) END) INTO given WHERE run.state <> 'READY';
    SELECT x.because, x.input, x.changed INTO old FROM dataflow.job_output o
        CROSS JOIN LATERAL (SELECT t.because, t.input, t.changed FROM dataflow.stale t WHERE t.datasetid = o.datasetid AND t.dataid = why.dataid OFFSET 0) AS x
        WHERE o.jobid = why.jobid ORDER BY o.datasetid LIMIT 1;
    SELECT d.state, d.heard, EXISTS (SELECT FROM dataflow.daemons o WHERE o.state = 'ALIVE') AS has_heirs INTO host FROM dataflow.daemons d WHERE d.daemon = run.daemon;
    -- Release 0.1 wrote the last step into the error, which is said here.
    advice := regexp_replace(substring(run.error FROM 'remedy: (.*)$'), '[,;] then resubmit( the chunk)?$', '');
    SELECT c.accepted_by, c.accepted, c.reason INTO kept FROM dataflow.job j
        JOIN dataflow.datastatus s ON s.datasetid = run.datasetid AND s.dataid = why.dataid AND s.locktype = 'OUT'
        JOIN dataflow.acceptance c ON c.datasetid = s.datasetid AND c.dataid = s.dataid AND c.version = s.manifest
        WHERE j.jobid = why.jobid AND c.code_hash = j.code_hash AND c.config_hash IS NOT DISTINCT FROM j.config_hash;
    takes := CASE WHEN old.because && ARRAY['CODE', 'CONFIGURATION'] THEN format('; dataflowctl accept %s --dataid %s takes it as it is', why.jobid, why.dataid) ELSE '' END;
    renewal := again || CASE WHEN old.because IS NULL THEN ' --status READY makes it again' ELSE ' --stale makes it again' || takes END;
    -- Made by force: resubmitted it would wait for what was missing then and is missing still.
    SELECT n INTO lacks FROM unnest(maker.missing) AS n WHERE run.state = 'READY' AND NOT EXISTS (
        SELECT FROM dataflow.datastatus p WHERE p.datasetid = split_part(n, '/', 1) AND p.dataid = split_part(n, '/', 2) AND p.locktype = 'OUT' AND p.status = 'READY')
        ORDER BY n LIMIT 1;
    IF lacks IS NOT NULL THEN
        renewal := format('dataflowctl force %s makes it again of what is there now; when %s is READY, %s%s makes it of all', here, lacks, again,
            CASE WHEN old.because IS NULL THEN ' --status READY' ELSE ' --stale' END);
    END IF;
    waits := CASE WHEN run.state = 'RUNNING' AND host.state NOT IN ('GONE', 'LOST', 'STOPPED') THEN dataflow._waits_for(run.attempt) END;
    RETURN QUERY SELECT 0, 'Where does it stand?', NULL::boolean, CASE WHEN waits IS NULL THEN run.state ELSE 'WAITS_FOR_SPARK' END, CASE CASE WHEN is_retired AND run.state IN ('QUEUED', 'WAITING', 'UNKNOWN') THEN 'RETIRED' ELSE run.state END
            WHEN 'READY' THEN CASE WHEN maker.attempt IS NULL THEN format('version %s was registered by hand %s', run.version, to_char(run.since, stamp))
                ELSE format('attempt %s on %s made version %s%s, finished %s, of %s', maker.number, maker.daemon, run.version,
                    CASE WHEN maker.forced THEN ' by force' ELSE '' END, to_char(maker.ended, stamp),
                    coalesce((SELECT string_agg(format('%s v%s', key, value), ', ' ORDER BY key) FROM jsonb_each_text(maker.inputs)), 'nothing'))
                    || coalesce(', with ' || dataflow._params_text(maker.params), '')
                    || CASE WHEN run.attempt IS NULL OR maker.attempt >= run.attempt THEN ''
                        ELSE format('; set to READY by hand %s, after attempt %s ended %s', to_char(run.since, stamp), run.number, coalesce(run.code, run.outcome)) END END
                || CASE WHEN kept.accepted_by IS NULL THEN '' ELSE format('; %s accepted it as it is with the code of now, %s: %s',
                    kept.accepted_by, to_char(kept.accepted, stamp), coalesce(kept.reason, 'no reason was given')) END
            WHEN 'RUNNING' THEN format('attempt %s %s %s (%s) since %s', run.number, CASE WHEN waits IS NULL THEN 'runs on' ELSE 'was claimed by' END, run.daemon,
                    coalesce(run.hostname, (SELECT 'its lease ends ' || to_char(a.lease_until, stamp) FROM dataflow.attempt a WHERE a.attempt = run.attempt), 'an unknown host'),
                    to_char(run.claimed, stamp)) || coalesce(', and ' || waits, '')
                || CASE WHEN host.state IN ('GONE', 'LOST', 'STOPPED') THEN format('; that daemon is %s, and was last heard of %s', host.state, to_char(host.heard, stamp)) ELSE '' END
            WHEN 'FAILED' THEN format('%s, %s: %s', CASE WHEN run.outcome IN ('FAILED', 'LOST', 'CANCELLED') THEN format('attempt %s ended %s', run.number, to_char(run.ended, stamp)) ELSE 'set by hand ' || to_char(run.since, stamp) END,
                CASE WHEN run.outcome IN ('FAILED', 'LOST', 'CANCELLED') THEN run.code ELSE 'BY_HAND' END,
                coalesce(split_part(CASE WHEN run.outcome IN ('FAILED', 'LOST', 'CANCELLED') THEN run.error END, E'\n', 1), run.reason, 'no reason is known'))
            WHEN 'RETRYING' THEN format(CASE run.code WHEN 'RETRY_LATER' THEN 'it asked to be tried later, %3$s: %4$s' ELSE 'try %1$s of %2$s failed, %3$s: %4$s' END,
                run.tries, run.max_attempts, run.code, coalesce(split_part(run.error, E'\n', 1), 'no reason is known'))
            WHEN 'HELD' THEN format('held since %s: %s', to_char(run.since, stamp), coalesce(run.reason, 'no reason was given'))
            WHEN 'QUEUED' THEN 'all its data is there; it is in the queue'
            WHEN 'WAITING' THEN 'it cannot start yet; the questions say why'
            WHEN 'RETIRED' THEN 'its flow no longer declares the job' || CASE WHEN run.attempt IS NULL THEN ''
                ELSE format('; attempt %s ended %s, %s', run.number, to_char(run.ended, stamp), coalesce(run.code, run.outcome)) END
            ELSE 'nothing is known of it yet: none of the chunks that it reads was ever made or registered' END
            || coalesce(CASE run.state WHEN 'RUNNING' THEN ', with ' ELSE '; its next attempt gets ' END || given, ''),
        CASE run.state
            WHEN 'READY' THEN renewal
            WHEN 'RUNNING' THEN CASE WHEN waits LIKE '%is starting' THEN 'wait until it has started'
                WHEN waits IS NOT NULL THEN 'wait until one is free; runners, in the table control or the daemon''s settings, says how many there may be'
                WHEN host.state NOT IN ('GONE', 'LOST', 'STOPPED') THEN format('dataflowctl logs %s --follow', here)
                WHEN host.has_heirs THEN 'wait: another daemon takes it over' ELSE 'start dataflowd: it takes it over' END
            -- An attempt that ended before the job's code has no log; its error says what to do.
            WHEN 'FAILED' THEN concat_ws(', then ', coalesce(advice, format('dataflowctl logs %s', here)), again)
            WHEN 'RETRYING' THEN format('it is tried again by itself; %s does so at once', again)
            WHEN 'HELD' THEN format('dataflowctl release --dataset %s --dataid %s', run.datasetid, why.dataid)
        END;

    SELECT i.datasetid, i.dataid, o.jobid, s.status INTO missing
    FROM dataflow.required_inputs(why.jobid, why.dataid) AS i
    LEFT JOIN dataflow.job_output o ON o.datasetid = i.datasetid
    LEFT JOIN dataflow.datastatus s ON s.datasetid = i.datasetid AND s.dataid = i.dataid AND s.locktype = 'OUT'
    WHERE coalesce(s.status NOT IN ('READY', 'HOLD', 'PENDING'), true) ORDER BY i.datasetid || '/' || i.dataid LIMIT 1;
    SELECT i.datasetid || ' ' || i.dataid INTO unvalidated FROM dataflow.required_inputs(why.jobid, why.dataid) AS i
    JOIN dataflow.datastatus s ON s.datasetid = i.datasetid AND s.dataid = i.dataid AND s.locktype = 'OUT'
    WHERE NOT s.validated ORDER BY 1 LIMIT 1;
    SELECT i.datasetid, i.dataid INTO held FROM dataflow.required_inputs(why.jobid, why.dataid) AS i
    JOIN dataflow.datastatus s ON s.datasetid = i.datasetid AND s.dataid = i.dataid AND s.locktype = 'OUT'
    WHERE s.status IN ('HOLD', 'PENDING') ORDER BY i.datasetid || '/' || i.dataid LIMIT 1;
    -- What only the host sees, the last attempt has seen: five_questions() says it of a run that waits for RESUBMIT. One that is retried may start.
    RETURN QUERY SELECT q.number, q.question, q.answer AND q.seen IS NULL, coalesce(q.code, q.seen),
        CASE WHEN q.seen IS NULL THEN q.detail ELSE format('attempt %s found: %s', run.number, split_part(run.error, E'\n', 1)) END, CASE CASE WHEN NOT q.is_of_host THEN q.code END
            WHEN 'DATA_NOT_READY' THEN CASE
                WHEN missing.jobid IS NOT NULL THEN format('dataflowctl why %s %s', missing.jobid, missing.dataid)
                ELSE dataflow._arrival(missing.datasetid, missing.dataid) END
            WHEN 'WRONG_DATA' THEN 'use a dataid that every input''s mapping knows; for strict order see to the earlier run first'
            WHEN 'INVALID_PATH' THEN 'correct the dataset in its flow, and dataflowctl apply it'
            WHEN 'NOT_VALIDATED' THEN format('when it is right: dataflowctl ready %s', unvalidated)
            WHEN 'LOCKED' THEN CASE WHEN is_retired THEN 'dataflowctl apply a flow that declares it'
                WHEN starts_with(q.detail, format('%s/%s is ', held.datasetid, held.dataid)) THEN format('dataflowctl release --dataset %s --dataid %s', held.datasetid, held.dataid)
                ELSE CASE run.state
                WHEN 'READY' THEN CASE WHEN old.because IS NULL THEN 'nothing to do' ELSE renewal END
                WHEN 'RUNNING' THEN format('wait, or dataflowctl cancel %s --dataid %s', why.jobid, why.dataid)
                WHEN 'FAILED' THEN again
                WHEN 'HELD' THEN format('dataflowctl release --dataset %s --dataid %s', run.datasetid, why.dataid)
                ELSE 'wait until it is free' END END
            ELSE CASE WHEN q.seen IS NOT NULL OR q.is_of_host THEN coalesce(advice, again) END
        END
    FROM (
        SELECT f.*, NOT f.answer AND starts_with(f.detail, format('attempt %s found: ', run.number)) AS is_of_host,
            CASE WHEN f.answer AND NOT began AND run.outcome = 'FAILED' AND run.state = 'RETRYING'
            AND run.code = (ARRAY['DATA_NOT_READY', 'WRONG_DATA', 'INVALID_PATH', 'NOT_VALIDATED', 'LOCKED'])[f.number] THEN run.code END AS seen
        FROM dataflow.five_questions(why.jobid, why.dataid) AS f
    ) AS q ORDER BY q.number;

    IF run.state IN ('QUEUED', 'RETRYING') THEN
        RETURN QUERY SELECT o.* FROM dataflow._obstacles(why.jobid) AS o;
        IF run.not_before IS NOT NULL THEN
            RETURN QUERY SELECT 9, 'Is it due?', run.not_before <= now(), CASE WHEN run.not_before > now() THEN 'RETRY_LATER' END,
                format('it is tried again at %s', to_char(run.not_before, stamp)), CASE WHEN run.not_before > now() THEN 'wait, or ' || again END;
        ELSE
            place := dataflow._queue_position(why.jobid, why.dataid);
            RETURN QUERY SELECT 9, 'Is it its turn?', coalesce(place, 0) = 1, CASE WHEN place = 1 THEN NULL ELSE 'IN_QUEUE' END,
                CASE WHEN place = 1 THEN 'it is the next run of its job' WHEN place IS NULL THEN 'more than 10000 runs of the job come before it'
                    ELSE format('%s of the job come before it', dataflow._counted(place - 1, 'run')) END,
                CASE WHEN place = 1 THEN NULL ELSE 'wait' END;
        END IF;
    END IF;
    IF run.state = 'READY' AND maker.forced THEN
        RETURN QUERY SELECT 11, 'Was it made in order?', false, 'FORCED', format('attempt %s was forced', maker.number) || coalesce(format(', and had %s of %s: not %s%s',
                (SELECT count(*) FROM jsonb_object_keys(maker.inputs)),
                dataflow._counted((SELECT count(*) FROM jsonb_object_keys(maker.inputs)) + cardinality(maker.missing), 'input'), maker.missing[1],
                CASE WHEN cardinality(maker.missing) > 1 THEN format(' (and %s more)', cardinality(maker.missing) - 1) ELSE '' END), ''),
            CASE WHEN maker.missing IS NULL OR old.because IS NOT NULL THEN renewal
                ELSE format('when they are there: %s --status READY', again) END;
    END IF;
    IF run.state = 'READY' AND maker.forced_inputs IS NOT NULL THEN
        RETURN QUERY SELECT 12, 'Were its inputs made in order?', false, 'FORCED_INPUT', format('%s v%s was made by force%s', i.first, maker.inputs ->> i.first,
                CASE WHEN cardinality(maker.forced_inputs) > 1 THEN format(' (and %s more)', cardinality(maker.forced_inputs) - 1) ELSE '' END),
            coalesce((SELECT format('dataflowctl why %s %s', o.jobid, split_part(i.first, '/', 2)) FROM dataflow.job_output o WHERE o.datasetid = split_part(i.first, '/', 1)),
                again || ' --status READY makes it again')
        FROM (SELECT maker.forced_inputs[1] AS first) AS i;
    END IF;
    IF run.state = 'READY' AND old.because IS NOT NULL THEN
        RETURN QUERY SELECT 13, 'Is it up to date?', false, 'STALE', concat_ws('; ',
                CASE WHEN 'CODE' = ANY (old.because) THEN 'the job''s code has changed since' || coalesce(' (' || array_to_string(old.changed[:5], ', ')
                    || CASE WHEN cardinality(old.changed) > 5 THEN format(' and %s more)', cardinality(old.changed) - 5) ELSE ')' END, '') END,
                CASE WHEN 'CONFIGURATION' = ANY (old.because) THEN 'the job''s configuration has changed since' END,
                old.input || CASE WHEN maker.inputs ? old.input THEN ' was published again since' ELSE ' was not there then' END),
            renewal;
    END IF;
    IF missing.jobid IS NOT NULL AND missing.status IS DISTINCT FROM 'FAILED' THEN
        SELECT c.*, count(*) OVER () AS others INTO root FROM dataflow.root_causes(why.jobid, why.dataid) AS c LIMIT 1;
        IF root.depth > 1 THEN
            RETURN QUERY SELECT 10, 'What is at the root?', NULL::boolean, coalesce(root.code, root.status, 'NOT_THERE'),
                format('%s/%s %s%s', root.datasetid, root.dataid, coalesce('is ' || root.status, 'is not there'), coalesce(': ' || split_part(root.reason, E'\n', 1), ''))
                    || CASE WHEN root.others > 1 THEN format(' (and %s more)', root.others - 1) ELSE '' END,
                CASE WHEN root.jobid IS NULL THEN dataflow._arrival(root.datasetid, root.dataid)
                    ELSE format('dataflowctl why %s %s', root.jobid, root.dataid) END;
        END IF;
    END IF;
END $$;
COMMENT ON FUNCTION dataflow.why(text, text) IS
    'Why a run did, does or does not run: where it stands (0), the five questions (1 to 5), what else keeps it (6 to 9), what is at the root (10), and of a READY one whether it was made by force (11), of inputs that were (12), or is stale (13), each with a remedy';

CREATE OR REPLACE FUNCTION dataflow.blockers(jobid text) RETURNS TABLE (
    code text, what text, runs bigint, first text, last text, detail text, remedy text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    looked_at constant integer := 5000;
    dataids text[];
    queued bigint;
BEGIN
    PERFORM dataflow._known_job(blockers.jobid);
    SELECT array_agg(k.dataid) INTO dataids FROM (
        SELECT a.dataid FROM dataflow.job_input i
        CROSS JOIN LATERAL (
            SELECT s.datasetid, s.dataid FROM dataflow.datastatus s
            WHERE s.datasetid || '' = i.datasetid AND s.locktype = 'OUT' ORDER BY s.sortkey DESC LIMIT looked_at
        ) AS c
        CROSS JOIN LATERAL dataflow.affected_runs(c.datasetid, c.dataid) AS a
        WHERE i.jobid = blockers.jobid AND a.jobid = blockers.jobid AND i.kind <> 'fixed'
        UNION
        SELECT s.dataid FROM dataflow.chunk_count n JOIN dataflow.datastatus s ON s.datasetid = n.datasetid AND s.locktype = 'OUT' AND s.status = n.status
        WHERE n.jobid = blockers.jobid AND n.status IN ('FAILED', 'RESUBMIT', 'HOLD', 'PENDING')
        UNION
        SELECT x.dataid FROM dataflow.open_run x WHERE x.jobid = blockers.jobid
        LIMIT 2 * looked_at
    ) AS k;
    RETURN QUERY
    WITH judged AS MATERIALIZED (
        SELECT e.* FROM dataflow._evaluate(array_fill(blockers.jobid, ARRAY[coalesce(cardinality(dataids), 0)]), coalesce(dataids, '{}')) AS e
        WHERE e.out_status IS NULL OR e.out_status NOT IN ('READY', 'RUNNING')
    ), inputs AS MATERIALIZED (
        SELECT CASE WHEN s.status IN ('HOLD', 'PENDING') THEN 'LOCKED' ELSE 'DATA_NOT_READY' END AS code,
            i.datasetid || CASE WHEN o.jobid IS NULL THEN '' ELSE ' (made by ' || o.jobid || ')' END AS what, j.dataid, j.sortkey,
            CASE WHEN s.status IN ('HOLD', 'PENDING') THEN format('%s/%s is %s', i.datasetid, i.dataid, concat_ws(': ', s.status, split_part(s.reason, E'\n', 1)))
                ELSE format('%s/%s %s', i.datasetid, i.dataid, coalesce('is ' || s.status || coalesce(' (' || s.code || ')', ''), 'is not there')) END AS detail,
            CASE WHEN s.status IN ('HOLD', 'PENDING') THEN format('dataflowctl release --dataset %s --dataid %s', i.datasetid, i.dataid)
                WHEN o.jobid IS NULL THEN dataflow._arrival(i.datasetid, i.dataid) ELSE format('dataflowctl why %s %s', o.jobid, i.dataid) END AS remedy
        FROM judged j CROSS JOIN LATERAL dataflow.required_inputs(j.jobid, j.dataid) AS i
        LEFT JOIN dataflow.job_output o ON o.datasetid = i.datasetid
        LEFT JOIN dataflow.datastatus s ON s.datasetid = i.datasetid AND s.dataid = i.dataid AND s.locktype = 'OUT'
        WHERE coalesce(j.not_ready, j.locked) IS NOT NULL AND s.status IS DISTINCT FROM 'READY'
    ), kept AS (
        SELECT * FROM inputs
        UNION ALL
        SELECT n.code, n.what, j.dataid, j.sortkey, n.detail, format('dataflowctl why %s %s', j.jobid, j.dataid)
        FROM judged j
        LEFT JOIN dataflow.attempt a ON a.attempt = j.last_attempt
        CROSS JOIN LATERAL (VALUES
            ('WRONG_DATA', 'the dataid or its order', j.wrong_data), ('INVALID_PATH', 'a dataset''s place', j.invalid_path),
            ('NOT_VALIDATED', 'an input that nobody vouched for', j.not_validated),
            ('LOCKED', CASE j.out_status WHEN 'FAILED' THEN 'FAILED before: ' || coalesce(a.code, 'BY_HAND') WHEN 'HOLD' THEN 'held' WHEN 'PENDING' THEN 'held' ELSE 'a lock' END,
                j.locked)
        ) AS n (code, what, detail)
        -- An input that is held is told above, with its own remedy.
        WHERE n.detail IS NOT NULL AND NOT EXISTS (SELECT FROM inputs i WHERE i.dataid = j.dataid AND i.code = n.code AND i.detail = n.detail)
    )
    SELECT k.code, k.what, count(DISTINCT k.dataid), (array_agg(k.dataid ORDER BY k.sortkey))[1], (array_agg(k.dataid ORDER BY k.sortkey DESC))[1],
        (array_agg(k.detail ORDER BY k.sortkey))[1], (array_agg(k.remedy ORDER BY k.sortkey))[1]
    FROM kept k GROUP BY k.code, k.what ORDER BY 3 DESC, 1, 2;
    SELECT s.queued INTO queued FROM dataflow.status() AS s WHERE s.jobid = blockers.jobid;
    RETURN QUERY SELECT o.code, 'ready to run', queued, NULL::text, NULL::text, o.detail, o.remedy
        FROM dataflow._obstacles(blockers.jobid) AS o WHERE NOT o.answer AND queued > 0;
END $$;
COMMENT ON FUNCTION dataflow.blockers(text) IS
    'What keeps the runs of a job, grouped and most frequent first: looks at the latest 5000 chunks of each input, and at all that is FAILED, held or to be resubmitted';

-- The chunks that a selector names (see select_runs), and unless it names a job also those that no job produces.
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
        -- A chunk that is not there yet can be held by its name.
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
    'hold() for every chunk that a selector names (see select_chunks); a literal dataid also before the chunk exists. stops: the runs that write or read it now. dry_run => true only shows them';

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
        -- As release() does it, for all at once: batches come by the thousand.
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
        -- No claim may count while the surplus is being counted.
        PERFORM dataflow._claim_lock();
    END IF;
    SELECT greatest(count(*) - coalesce(shed.concurrency, min(l.concurrency)), 0) INTO surplus
    FROM dataflow.attempt a LEFT JOIN dataflow.limits l ON l.scope = shed.scope
    WHERE a.ended IS NULL AND (shed.scope = 'global' OR shed.scope = 'job:' || a.jobid OR shed.scope = 'daemon:' || a.daemon);
    live := ARRAY(
        SELECT a.attempt FROM dataflow.attempt a
        WHERE a.ended IS NULL AND (shed.scope = 'global' OR shed.scope = 'job:' || a.jobid OR shed.scope = 'daemon:' || a.daemon));
    -- One whose chunk is in somebody's open transaction is passed over.
    IF NOT dry_run AND surplus > 0 THEN
        live := dataflow._lock_attempts(live);
    END IF;
    -- The youngest have the least to lose.
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
    'Stops the youngest attempts beyond the limit of a scope, or beyond the one that is given, at once; they run again when there is a place. dry_run => true only shows them';

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
            -- Seen at once where it is far too long; the last million is counted.
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

CREATE OR REPLACE VIEW dataflow.jobs AS
SELECT j.jobid::text, j.flow, j.kind, j.description,
    ARRAY(SELECT i.datasetid::text || CASE i.kind WHEN 'identity' THEN '' WHEN 'partitioning' THEN format(' (%s)', i.mapping ->> 'name') ELSE ' (' || i.kind || ')' END FROM dataflow.job_input i WHERE i.jobid = j.jobid ORDER BY i.datasetid) AS inputs,
    ARRAY(SELECT o.datasetid::text FROM dataflow.job_output o WHERE o.jobid = j.jobid ORDER BY o.datasetid) AS outputs,
    coalesce(c.concurrency, j.max_running) AS max_running, j.max_attempts, extract(epoch FROM j.retry_delay)::double precision AS retry_delay_seconds,
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

DROP FUNCTION IF EXISTS dataflow.lineage(text, text);
CREATE OR REPLACE FUNCTION dataflow.lineage(dataset text, chunk text DEFAULT NULL) RETURNS TABLE (
    direction text, depth integer, path text[], jobid text, datasetid text, dataid text, status text, version integer, code text,
    forced boolean, missing text[]
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    shown constant integer := 2000;
BEGIN
    PERFORM dataflow._known_dataset(dataset);
    IF chunk IS NULL THEN
        RETURN QUERY
        WITH RECURSIVE up AS (
            SELECT 0 AS depth, ARRAY[dataset COLLATE "C"] AS path, NULL::text COLLATE "C" AS jobid, dataset COLLATE "C" AS datasetid
            UNION ALL
            SELECT u.depth + 1, u.path || i.datasetid::text, o.jobid, i.datasetid
            FROM up u JOIN dataflow.job_output o ON o.datasetid = u.datasetid JOIN dataflow.job_input i ON i.jobid = o.jobid
            WHERE i.datasetid <> ALL (u.path)
        ), down AS (
            SELECT 0 AS depth, ARRAY[dataset COLLATE "C"] AS path, NULL::text COLLATE "C" AS jobid, dataset COLLATE "C" AS datasetid
            UNION ALL
            SELECT u.depth + 1, u.path || o.datasetid::text, o.jobid, o.datasetid
            FROM down u JOIN dataflow.job_input i ON i.datasetid = u.datasetid JOIN dataflow.job_output o ON o.jobid = i.jobid
            WHERE o.datasetid <> ALL (u.path)
        )
        (SELECT 'up', u.depth, u.path, u.jobid, u.datasetid, NULL::text, NULL::text, NULL::integer, NULL::text, NULL::boolean, NULL::text[] FROM up u LIMIT shown)
        UNION ALL
        (SELECT 'down', u.depth, u.path, u.jobid, u.datasetid, NULL, NULL, NULL, NULL, NULL, NULL FROM down u WHERE u.depth > 0 LIMIT shown)
        ORDER BY 1 DESC, 3;
        RETURN;
    END IF;
    PERFORM dataflow._checked_dataid(chunk);
    RETURN QUERY
    WITH RECURSIVE up AS (
        SELECT 0 AS depth, ARRAY[(dataset || '/' || chunk) COLLATE "C"] AS path, NULL::text COLLATE "C" AS jobid, dataset COLLATE "C" AS datasetid, chunk COLLATE "C" AS dataid
        UNION ALL
        SELECT u.depth + 1, u.path || (i.datasetid || '/' || i.dataid), o.jobid, i.datasetid, i.dataid
        FROM up u JOIN dataflow.job_output o ON o.datasetid = u.datasetid CROSS JOIN LATERAL dataflow.required_inputs(o.jobid, u.dataid) AS i
        WHERE i.datasetid || '/' || i.dataid <> ALL (u.path)
    ), down AS (
        SELECT 0 AS depth, ARRAY[(dataset || '/' || chunk) COLLATE "C"] AS path, NULL::text COLLATE "C" AS jobid, dataset COLLATE "C" AS datasetid, chunk COLLATE "C" AS dataid
        UNION ALL
        SELECT u.depth + 1, u.path || (o.datasetid || '/' || r.dataid), o.jobid, o.datasetid, r.dataid
        FROM down u CROSS JOIN LATERAL dataflow.affected_runs(u.datasetid, u.dataid) AS r JOIN dataflow.job_output o ON o.jobid = r.jobid
        WHERE o.datasetid || '/' || r.dataid <> ALL (u.path)
    ), found AS (
        (SELECT 'up' AS direction, u.* FROM up u LIMIT shown)
        UNION ALL
        (SELECT 'down', u.* FROM down u WHERE u.depth > 0 LIMIT shown)
    )
    SELECT f.direction, f.depth, f.path, f.jobid, f.datasetid, f.dataid, s.status, s.version, s.code,
        CASE WHEN s.status IS NOT NULL THEN coalesce(a.forced, false) END, CASE WHEN a.forced THEN dataflow._not_given(a) END
    FROM found f LEFT JOIN dataflow.datastatus s ON s.datasetid = f.datasetid AND s.dataid = f.dataid AND s.locktype = 'OUT'
    LEFT JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest
    LEFT JOIN dataflow.attempt a ON a.attempt = m.attempt
    ORDER BY 1 DESC, 3;
END $$;
COMMENT ON FUNCTION dataflow.lineage(text, text) IS
    'What a dataset or chunk is made of (up) and what is made of it (down), at most 2000 rows each; path leads from it to the row, forced and missing say that a version was made by force and without which inputs';

CREATE OR REPLACE FUNCTION dataflow.delete_runs(jobid text, patterns text[] DEFAULT NULL, dry_run boolean DEFAULT false, at_most integer DEFAULT 1000000) RETURNS TABLE (
    dataid text, status text, chunks bigint, attempts bigint, versions bigint, quarantined bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    is_literal constant boolean := coalesce(dataflow._are_literal(patterns), false);
    chosen text[];
    busy text;
    orphan_datasets text[];
    orphan_dataids text[];
BEGIN
    PERFORM dataflow._known_job(delete_runs.jobid);
    chosen := ARRAY(
        SELECT k.dataid FROM (
            SELECT s.dataid::text FROM dataflow.job_output o JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.locktype = 'OUT'
            WHERE o.jobid = delete_runs.jobid AND (NOT is_literal OR s.dataid = ANY (patterns))
            UNION SELECT a.dataid FROM dataflow.attempt a WHERE a.jobid = delete_runs.jobid AND (NOT is_literal OR a.dataid = ANY (patterns))
            UNION SELECT q.dataid FROM dataflow.quarantine q WHERE q.jobid = delete_runs.jobid AND (NOT is_literal OR q.dataid = ANY (patterns))
        ) AS k
        WHERE is_literal OR patterns IS NULL OR EXISTS (SELECT FROM unnest(patterns) AS p WHERE dataflow.matches(k.dataid, p))
        ORDER BY dataflow.sortkey(k.dataid) LIMIT at_most);
    -- What it made for datasets that no job makes any more: a retired job has no outputs.
    SELECT array_agg(s.datasetid::text), array_agg(s.dataid::text) INTO orphan_datasets, orphan_dataids
    FROM dataflow.dataset d JOIN dataflow.attempt a ON a.jobid = delete_runs.jobid AND a.dataid = ANY (chosen)
    JOIN dataflow.datastatus s ON s.datasetid = d.datasetid AND s.dataid = a.dataid AND s.locktype = 'OUT' AND s.attempt = a.attempt AND NOT s.external
    WHERE NOT EXISTS (SELECT FROM dataflow.job_output o WHERE o.datasetid = d.datasetid);
    IF NOT dry_run THEN
        -- From here on nobody begins to write or to read them.
        PERFORM FROM dataflow.job_output o JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.locktype = 'OUT' AND s.dataid = ANY (chosen)
            WHERE o.jobid = delete_runs.jobid ORDER BY s.datasetid, s.dataid FOR UPDATE OF s;
    END IF;
    SELECT format('%s/%s', s.datasetid, s.dataid) INTO busy
    FROM unnest(chosen) AS c (dataid) JOIN dataflow.job_output o ON o.jobid = delete_runs.jobid
    JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = c.dataid
    WHERE s.status = 'RUNNING' ORDER BY 1 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'chunk % is being written or read: nothing was deleted', busy USING ERRCODE = 'DF409',
            HINT = format('wait, or dataflowctl cancel %s; dataflowctl pause %s keeps new ones from starting', jobid, jobid);
    END IF;
    RETURN QUERY
    SELECT c.dataid, max(s.status), count(s.datasetid) + (SELECT count(*) FROM unnest(orphan_dataids) AS x WHERE x = c.dataid),
        (SELECT count(*) FROM dataflow.attempt a WHERE a.jobid = delete_runs.jobid AND a.dataid = c.dataid),
        coalesce(sum((SELECT count(*) FROM dataflow.manifest m WHERE m.datasetid = s.datasetid AND m.dataid = s.dataid)), 0)::bigint,
        (SELECT count(*) FROM dataflow.quarantine q WHERE q.jobid = delete_runs.jobid AND q.dataid = c.dataid)
    FROM unnest(chosen) WITH ORDINALITY AS c (dataid, place)
    LEFT JOIN dataflow.job_output o ON o.jobid = delete_runs.jobid
    LEFT JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = c.dataid AND s.locktype = 'OUT'
    GROUP BY c.dataid, c.place ORDER BY c.place;
    IF dry_run THEN
        RETURN;
    END IF;
    DELETE FROM dataflow.datastatus s
    USING dataflow.attempt a, jsonb_object_keys(a.inputs) AS i
    WHERE a.jobid = delete_runs.jobid AND a.dataid = ANY (chosen) AND s.datasetid = split_part(i, '/', 1) AND s.dataid = split_part(i, '/', 2)
        AND s.locktype = 'IN' AND s.jobid = a.jobid AND s.run = a.dataid;
    PERFORM dataflow.delete_chunk(o.datasetid, c.dataid) FROM unnest(chosen) AS c (dataid), dataflow.job_output o WHERE o.jobid = delete_runs.jobid;
    PERFORM dataflow.delete_chunk(x.datasetid, x.dataid) FROM unnest(orphan_datasets, orphan_dataids) AS x (datasetid, dataid);
    -- A cancelled attempt stays until its daemon says that its runner has stopped: it keeps the run from being claimed beside it. One
    -- that was claimed at this moment is none of those that were chosen.
    WITH gone AS (
        DELETE FROM dataflow.attempt a WHERE a.jobid = delete_runs.jobid AND a.dataid = ANY (chosen) AND a.ended IS NOT NULL
            AND NOT (a.outcome = 'CANCELLED' AND NOT a.let_go AND (coalesce(a.lease_until > clock_timestamp(), false) OR EXISTS (
                SELECT FROM dataflow.daemon d WHERE d.daemon = a.daemon AND d.incarnation = a.incarnation AND d.stopped IS NULL)))
        RETURNING a.attempt, a.jobid, a.dataid, a.claimed, a.ended, a.started, a.outcome
    )
    INSERT INTO dataflow.forgotten (attempt, datasetid, dataid, claimed, ended)
    SELECT g.attempt, o.datasetid, g.dataid, g.claimed, dataflow._written_until(g.outcome, g.ended)
    FROM gone g JOIN dataflow.job_output o ON o.jobid = g.jobid WHERE dataflow._may_have_written(g.outcome, g.started)
    ON CONFLICT DO NOTHING;
    DELETE FROM dataflow.quarantine q WHERE q.jobid = delete_runs.jobid AND q.dataid = ANY (chosen);
END $$;
COMMENT ON FUNCTION dataflow.delete_runs(text, text[], boolean, integer) IS
    'Forgets runs of a job: status, locks, attempts (but for one that is still being stopped), versions, statistics and quarantine. Files stay until they are collected, history stays, and a run whose inputs are READY is queued anew. dry_run => true only shows them';

-- The runs that have read a chunk, and those that are to read it again.
CREATE OR REPLACE FUNCTION dataflow._readers(datasetid text, dataid text) RETURNS TABLE (jobid text, dataid text)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
    SELECT r.jobid, r.dataid FROM (
        SELECT s.jobid COLLATE "C" AS jobid, s.run COLLATE "C" AS dataid FROM dataflow.datastatus s
        WHERE s.datasetid = _readers.datasetid AND s.dataid = _readers.dataid AND s.locktype = 'IN'
        UNION
        SELECT a.jobid COLLATE "C", a.dataid COLLATE "C" FROM dataflow.affected_runs(_readers.datasetid, _readers.dataid) AS a
        WHERE EXISTS (
            SELECT FROM dataflow.job_output o JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = a.dataid AND s.locktype = 'OUT'
            WHERE o.jobid = a.jobid AND s.status = 'RESUBMIT')
    ) AS r
$$;

CREATE OR REPLACE FUNCTION dataflow._withdraw(datasetid text, patterns text[], made text, dry_run boolean) RETURNS TABLE (
    deed text, jobid text, dataset text, dataid text, status text, version integer
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    is_literal constant boolean := coalesce(dataflow._are_literal(patterns), false);
    chosen text[];
    jobids text[];
    runs text[];
    odd record;
    unknown text;
BEGIN
    PERFORM dataflow._known_dataset(_withdraw.datasetid);
    IF made NOT IN ('keep', 'delete') THEN
        RAISE EXCEPTION 'what was made of a chunk cannot be treated by %', made USING ERRCODE = 'DF400', HINT = 'write keep or delete';
    END IF;
    chosen := ARRAY(
        SELECT s.dataid::text FROM dataflow.datastatus s
        WHERE s.datasetid = _withdraw.datasetid AND s.locktype = 'OUT' AND (NOT is_literal OR s.dataid = ANY (patterns))
            AND (is_literal OR EXISTS (SELECT FROM unnest(patterns) AS p WHERE dataflow.matches(s.dataid, p)))
        ORDER BY s.sortkey);
    SELECT p INTO unknown FROM unnest(patterns) AS p
        WHERE CASE WHEN is_literal THEN p <> ALL (chosen) ELSE NOT EXISTS (SELECT FROM unnest(chosen) AS c WHERE dataflow.matches(c, p)) END LIMIT 1;
    IF FOUND OR chosen = '{}' THEN
        RAISE EXCEPTION 'nothing is registered as %/%', datasetid, coalesce(unknown, '...') USING ERRCODE = 'DF404',
            HINT = format('dataflowctl chunks %s lists what is', datasetid);
    END IF;
    IF NOT dry_run THEN
        -- From here on nobody begins to read them.
        PERFORM FROM dataflow.datastatus s WHERE s.datasetid = _withdraw.datasetid AND s.dataid = ANY (chosen) AND s.locktype = 'OUT'
            ORDER BY s.dataid FOR UPDATE;
    END IF;
    SELECT s.dataid, s.jobid, s.held_from, b.partitioning, a.jobid AS maker INTO odd
    FROM dataflow.datastatus s
    LEFT JOIN dataflow.batch b ON b.datasetid = s.datasetid AND b.dataid = s.dataid
    LEFT JOIN dataflow.attempt a ON a.attempt = s.attempt
    WHERE s.datasetid = _withdraw.datasetid AND s.dataid = ANY (chosen) AND s.locktype = 'OUT'
        AND (NOT s.external OR s.attempt IS NOT NULL OR b.partitioning IS NOT NULL)
    ORDER BY s.sortkey LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'chunk %/% %: nothing is withdrawn', datasetid, odd.dataid, CASE
                WHEN odd.partitioning IS NOT NULL THEN format('is a batch of partitioning %s', odd.partitioning)
                WHEN odd.held_from = 'NONE' THEN 'is on hold, and was never registered'
                ELSE format('is made by job %s, and not registered', coalesce(odd.maker, odd.jobid)) END USING ERRCODE = 'DF409',
            HINT = CASE
                WHEN odd.partitioning IS NOT NULL THEN format('dataflowctl partition delete %s --dataset %s', odd.partitioning, datasetid)
                WHEN odd.held_from = 'NONE' THEN format('dataflowctl release --dataset %s --dataid %s', datasetid, odd.dataid)
                ELSE format('dataflowctl delete %s --dataid %s forgets it', coalesce(odd.maker, odd.jobid), odd.dataid) END;
    END IF;
    SELECT s.dataid, s.jobid, s.run INTO odd FROM dataflow.datastatus s
        WHERE s.datasetid = _withdraw.datasetid AND s.dataid = ANY (chosen) AND s.locktype = 'IN' AND s.status = 'RUNNING' ORDER BY s.dataid, s.jobid, s.run LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'chunk %/% is being read by % %: nothing is withdrawn', datasetid, odd.dataid, odd.jobid, odd.run USING ERRCODE = 'DF409',
            HINT = format('wait; or dataflowctl hold --dataset %s --dataid %s, then dataflowctl cancel %s --dataid %s', datasetid, odd.dataid, odd.jobid, odd.run);
    END IF;

    -- A run is met once, however many ways lead to it: a job that continues its own output makes long chains.
    WITH RECURSIVE met AS (
        SELECT r.jobid, r.dataid FROM unnest(chosen) AS c, LATERAL dataflow._readers(_withdraw.datasetid, c) AS r
        UNION
        SELECT r.jobid, r.dataid FROM met m JOIN dataflow.job_output o ON o.jobid = m.jobid, LATERAL dataflow._readers(o.datasetid, m.dataid) AS r
    ), ordered AS MATERIALIZED (
        SELECT m.jobid, m.dataid, row_number() OVER () AS place FROM met m
    )
    SELECT array_agg(m.jobid ORDER BY m.place), array_agg(m.dataid ORDER BY m.place) INTO jobids, runs FROM ordered m
    WHERE EXISTS (
        SELECT FROM dataflow.job_output o JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = m.dataid AND s.locktype = 'OUT' WHERE o.jobid = m.jobid);
    IF runs IS NOT NULL AND made IS NULL AND NOT dry_run THEN
        RAISE EXCEPTION '% read %/%: nothing is withdrawn', CASE cardinality(runs) WHEN 1 THEN '1 run has' ELSE cardinality(runs) || ' runs have' END, datasetid,
            chosen[1] || CASE WHEN cardinality(chosen) > 1 THEN format(' and %s', dataflow._counted(cardinality(chosen) - 1, 'other chunk')) ELSE '' END USING ERRCODE = 'DF409',
            HINT = 'say what becomes of that: made => ''delete'' forgets it, made => ''keep'' leaves it as it is';
    END IF;

    RETURN QUERY
    SELECT 'withdraw', NULL::text, s.datasetid::text, s.dataid::text, s.status, s.version FROM dataflow.datastatus s
    WHERE s.datasetid = _withdraw.datasetid AND s.dataid = ANY (chosen) AND s.locktype = 'OUT' ORDER BY s.sortkey;
    RETURN QUERY
    SELECT coalesce(made, 'undecided'), s.jobid, s.datasetid::text, s.dataid::text, s.status, s.version
    FROM unnest(jobids, runs) WITH ORDINALITY AS r (jobid, dataid, place)
    JOIN dataflow.job_output o ON o.jobid = r.jobid
    JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = r.dataid AND s.locktype = 'OUT'
    ORDER BY r.place, s.datasetid;
    IF dry_run THEN
        RETURN;
    END IF;
    INSERT INTO dataflow.deleted_version AS v (datasetid, dataid, version)
    SELECT s.datasetid, s.dataid, s.version FROM dataflow.datastatus s
    WHERE s.datasetid = _withdraw.datasetid AND s.dataid = ANY (chosen) AND s.locktype = 'OUT' AND s.version > 0
    ON CONFLICT (datasetid, dataid) DO UPDATE SET version = greatest(v.version, excluded.version);
    -- IN rows stay with the runs that are kept: they say which version these have used.
    DELETE FROM dataflow.datastatus s WHERE s.datasetid = _withdraw.datasetid AND s.dataid = ANY (chosen) AND s.locktype = 'OUT';
END $$;

-- Who may withdraw need not be allowed to forget runs: it is the caller who deletes them.
CREATE OR REPLACE FUNCTION dataflow.unregister(datasetid text, patterns text[], made text DEFAULT NULL, dry_run boolean DEFAULT false) RETURNS TABLE (
    deed text, jobid text, dataset text, dataid text, status text, version integer
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    told record;
    jobids text[] := '{}';
    runs text[] := '{}';
BEGIN
    FOR told IN SELECT w.* FROM dataflow._withdraw(unregister.datasetid, patterns, made, dry_run) AS w LOOP
        IF told.deed = 'delete' THEN
            jobids := jobids || told.jobid;
            runs := runs || told.dataid;
        END IF;
        RETURN QUERY SELECT told.deed, told.jobid, told.dataset, told.dataid, told.status, told.version;
    END LOOP;
    IF NOT dry_run AND runs <> '{}' THEN
        -- Those that were made first go first: a run whose inputs are gone is not queued anew.
        PERFORM dataflow.delete_runs(r.jobid, r.dataids)
        FROM (
            SELECT u.jobid, array_agg(DISTINCT u.dataid) AS dataids, min(u.place) AS place FROM unnest(jobids, runs) WITH ORDINALITY AS u (jobid, dataid, place) GROUP BY u.jobid
            ORDER BY min(u.place) OFFSET 0
        ) AS r;
    END IF;
END $$;
COMMENT ON FUNCTION dataflow.unregister(text, text[], text, boolean) IS
    'Withdraws the registration of external chunks (dataids, globs or ranges). made says what becomes of the runs that have read them: delete forgets these too, keep leaves them. Files stay. dry_run => true only shows both. SELECT * FROM dataflow.unregister(''raw_orders'', ''{2026-01-31}'', dry_run => true)';

CREATE OR REPLACE FUNCTION dataflow.prunable(older_than interval) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT count(*) FROM dataflow.event e WHERE e.at < now() - older_than $$;
COMMENT ON FUNCTION dataflow.prunable(interval) IS 'How many events prune() would delete';
