-- What `dataflowctl status` shows: each job by status, why runs are FAILED, daemons, and what an operator has to do.

CREATE OR REPLACE VIEW dataflow.daemons AS
SELECT d.daemon::text, d.hostname, d.pid, d.environment, d.version, d.started, d.lease_until,
    CASE WHEN d.stopped IS NOT NULL THEN 'STOPPED' WHEN d.lease_until < clock_timestamp() THEN 'LOST' WHEN NOT dataflow._has_session(d.session_pid) THEN 'GONE'
        WHEN d.jobs = '{}' THEN 'IDLE' ELSE 'ALIVE' END AS state,
    coalesce(live.attempts, 0) AS running, c.concurrency, coalesce(c.paused, false) AS paused, d.lease_until - d.lease AS heard
FROM dataflow.daemon d
LEFT JOIN dataflow.control c ON c.scope = 'daemon:' || d.daemon
LEFT JOIN (SELECT a.daemon, count(*) AS attempts FROM dataflow.attempt a WHERE a.ended IS NULL GROUP BY a.daemon) AS live ON live.daemon = d.daemon;
COMMENT ON VIEW dataflow.daemons IS 'Every daemon that was ever seen: ALIVE, IDLE (it starts nothing: it is stopping, or has no flow), GONE (its session has ended: it was killed, or cannot reach the server; it keeps its runs until its lease ends), LOST (its lease has ended, and it has not said that it stopped) or STOPPED; with how many attempts it runs';

CREATE OR REPLACE FUNCTION dataflow.status() RETURNS TABLE (
    jobid text, ready bigint, running bigint, failed bigint, resubmit bigint, held bigint,
    queued bigint, oldest_queued timestamptz, retry_later bigint, quarantined bigint, max_running integer, paused boolean
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
    WITH counted AS (
        SELECT c.jobid, c.status, max(c.chunks) AS chunks FROM dataflow.chunk_count c GROUP BY c.jobid, c.status
    )
    SELECT j.jobid::text,
        coalesce(max(c.chunks) FILTER (WHERE c.status = 'READY'), 0),
        coalesce(max(c.chunks) FILTER (WHERE c.status = 'RUNNING'), 0),
        coalesce(max(c.chunks) FILTER (WHERE c.status = 'FAILED'), 0),
        coalesce(max(c.chunks) FILTER (WHERE c.status = 'RESUBMIT'), 0),
        coalesce(sum(c.chunks) FILTER (WHERE c.status IN ('HOLD', 'PENDING')), 0)::bigint,
        coalesce(max(q.queued), 0), max(w.oldest), coalesce(max(l.later), 0), coalesce(max(x.records), 0),
        dataflow._limit_of(j, k), coalesce(k.paused, false)
    FROM dataflow.job j
    LEFT JOIN counted c ON c.jobid = j.jobid
    LEFT JOIN dataflow.control k ON k.scope = 'job:' || j.jobid
    LEFT JOIN (SELECT n.jobid, sum(n.chunks)::bigint AS queued FROM dataflow.counter n WHERE n.locktype = 'WORK' GROUP BY n.jobid) AS q ON q.jobid = j.jobid
    LEFT JOIN LATERAL (SELECT min(o.enqueued) AS oldest FROM dataflow.work o WHERE o.jobid || '' = j.jobid) AS w ON true
    LEFT JOIN (SELECT r.jobid, count(*) AS later FROM dataflow.work r WHERE r.not_before IS NOT NULL GROUP BY r.jobid) AS l ON l.jobid = j.jobid
    LEFT JOIN LATERAL (SELECT count(*) AS records FROM dataflow.quarantine z WHERE z.jobid = j.jobid AND NOT z.is_resolved) AS x ON true
    WHERE j.retired IS NULL
    GROUP BY j.jobid, k.scope
    ORDER BY j.jobid
$$;
COMMENT ON FUNCTION dataflow.status() IS 'One row a job: its runs by status, what is queued and since when, and its limit. Cheap at any size';

-- Finds FAILED chunks through their attempts: an index of datastatus on the status would slow down every change. FAILED chunks that only
-- the counters know were set by hand.
CREATE OR REPLACE FUNCTION dataflow.causes(jobid text DEFAULT NULL) RETURNS TABLE (
    code text, runs bigint, retrying bigint, jobs bigint, first timestamptz, last timestamptz, example_jobid text, example_dataid text, reason text
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_material = off
SET enable_memoize = off
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
        -- Counts the jobs whose runs are not retried by themselves, if there are any.
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
    -- Chunks that a retired job has left. No job makes them again.
    SELECT 'NO_PRODUCER', sum(h.runs)::bigint, 0, 0, NULL, NULL, NULL, NULL,
        format('%s of %s: no job makes them', dataflow._counted(sum(h.runs)::bigint, 'chunk'), string_agg(h.datasetid, ', ' ORDER BY h.datasetid))
    FROM by_hand h WHERE h.jobid = '' HAVING count(*) > 0
    ORDER BY 2 DESC, 1
$$;
COMMENT ON FUNCTION dataflow.causes(text) IS
    'Why runs are FAILED now, grouped by code, most frequent first; retrying: how many of them are retried by themselves';

-- From a bounded number of attempts, so that it is cheap at any size.
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

-- Only the form is checked: a job may have codes of its own, and a monitor names them before the first attempt has ended with one.
CREATE OR REPLACE FUNCTION dataflow._checked_codes(codes text[]) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    stranger text;
BEGIN
    SELECT c INTO stranger FROM unnest(codes) AS c WHERE c IS NULL OR c !~ '^[A-Z][A-Z0-9_]{0,62}$' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% is not a code', coalesce(quote_literal(left(stranger, 80)), 'NULL') USING ERRCODE = 'DF400',
            HINT = 'write a code as `dataflowctl status` shows it, such as HELD or CHECK_FAILED';
    END IF;
END $$;

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
    PERFORM dataflow._checked_codes(coalesce(ignored, '{}'));
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
            d ->> 'daemon', d ->> 'hostname', dataflow._stamp((d ->> 'heard')::timestamptz),
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
        -- An earlier process of a daemon that was started again. Its pid is no longer known.
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
