-- All that happened to a run, in order: its own events, those around it at the same time, and what it waited for. why_then.sql reads the same
-- events, and answers the five questions for one moment.

-- The story of a chunk that no job makes: by whom it was registered, held or withdrawn, and what was declared of its dataset meanwhile.
CREATE OR REPLACE FUNCTION dataflow._chunk_history(of_dataset text, of_dataid text) RETURNS TABLE (
    at timestamptz, actor text, application text, kind text, datasetid text, attempt bigint, from_status text, to_status text, code text, reason text
)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    maker text := (SELECT o.jobid FROM dataflow.job_output o WHERE o.datasetid = _chunk_history.of_dataset);
    first bigint;
BEGIN
    IF maker IS NOT NULL THEN
        RAISE EXCEPTION '% is a dataset, and job % makes it', _chunk_history.of_dataset, maker USING ERRCODE = 'DF404',
            HINT = format('dataflowctl history %s %s', maker, _chunk_history.of_dataid);
    END IF;
    SELECT min(e.event) INTO first FROM dataflow.event e
        WHERE e.jobid = '' AND e.dataid = _chunk_history.of_dataid AND e.datasetid = _chunk_history.of_dataset;
    RETURN QUERY
    SELECT e.at, e.actor, e.application, e.kind, e.datasetid, e.attempt, e.from_status, e.to_status, e.code, e.reason FROM dataflow.event e
    WHERE e.jobid = '' AND e.dataid IN ('', _chunk_history.of_dataid) AND e.datasetid = _chunk_history.of_dataset AND e.event >= first
    ORDER BY e.event;
END $$;

CREATE OR REPLACE FUNCTION dataflow.history(jobid text, dataid text) RETURNS TABLE (
    at timestamptz, actor text, application text, kind text, datasetid text, attempt bigint, from_status text, to_status text, code text, reason text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    around_at_most constant integer := 1000;
    first bigint;
    last bigint;
    used constant text[] := dataflow._used_datasets(ARRAY[history.jobid]);
BEGIN
    IF NOT EXISTS (SELECT FROM dataflow.job j WHERE j.jobid = history.jobid) AND EXISTS (SELECT FROM dataflow.dataset d WHERE d.datasetid = history.jobid) THEN
        RETURN QUERY SELECT * FROM dataflow._chunk_history(history.jobid, history.dataid);
        RETURN;
    END IF;
    PERFORM dataflow._known_job(history.jobid);
    SELECT min(e.event), max(e.event) INTO first, last FROM dataflow.event e WHERE e.jobid = history.jobid AND e.dataid = history.dataid;
    IF dataflow._is_open(history.jobid, history.dataid) THEN
        last := 9223372036854775807;
    END IF;
    RETURN QUERY
    WITH told AS (
        SELECT e.* FROM dataflow.event e WHERE e.jobid = history.jobid AND e.dataid = history.dataid
        UNION ALL
        -- The job, its limits and pauses, its datasets, and daemons: between the first and the last event of the run.
        (SELECT e.* FROM dataflow.event e
         WHERE e.jobid IN ('', history.jobid) AND e.dataid = '' AND e.event BETWEEN first AND last AND (
            e.jobid = history.jobid OR e.kind = 'daemon' OR (e.kind = 'control' AND (starts_with(e.scope, 'daemon:') OR e.scope IN ('global', 'job:' || history.jobid)))
            OR (e.kind IN ('dataset', 'credential') AND (e.datasetid IS NULL OR e.datasetid = ANY (used))))
         ORDER BY e.event DESC LIMIT around_at_most)
        UNION ALL
        -- The chunks that the run reads: who registered them again, held them or withdrew them at that time.
        (SELECT e.* FROM dataflow.attempt a CROSS JOIN LATERAL (SELECT k FROM jsonb_object_keys(a.inputs) AS k LIMIT 100) AS i
         JOIN dataflow.event e ON e.jobid = '' AND e.dataid = split_part(i.k, '/', 2) AND e.datasetid = split_part(i.k, '/', 1) AND e.kind = 'status'
         WHERE a.attempt = (SELECT b.attempt FROM dataflow.attempt b WHERE b.jobid = history.jobid AND b.dataid = history.dataid ORDER BY b.number DESC LIMIT 1)
            AND e.event BETWEEN first AND last
         LIMIT around_at_most)
    )
    SELECT h.at, h.actor, h.application, h.kind, h.datasetid, h.attempt, h.from_status, h.to_status, h.code, h.reason
    FROM (
        SELECT t.event, t.at, t.actor, t.application, t.kind, t.datasetid, t.attempt, t.from_status, t.to_status, t.code, t.reason FROM told t
        UNION ALL
        SELECT NULL, w.at, '', '', 'waited', NULL, w.attempt, NULL, NULL, w.code, w.reason FROM dataflow._waits_of(history.jobid, history.dataid) AS w
    ) AS h
    ORDER BY h.at, h.event NULLS LAST;
END $$;
COMMENT ON FUNCTION dataflow.history(text, text) IS
    'The story of a run, or of a chunk of a dataset that no job makes, in order: every transition, every change of what it waited for, what happened around it at the same time (limits, pauses, daemons, declarations), and what each attempt waited for (kind waited)';

-- Whether the run is queued or running. Then events of now belong to its story, too.
CREATE OR REPLACE FUNCTION dataflow._is_open(jobid text, dataid text) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN EXISTS (SELECT FROM dataflow.work w WHERE w.jobid = _is_open.jobid AND w.dataid = _is_open.dataid)
        OR EXISTS (SELECT FROM dataflow.attempt a WHERE a.jobid = _is_open.jobid AND a.dataid = _is_open.dataid AND a.ended IS NULL);
END $$;

-- The limit of a scope at a moment, and whether it was paused: as the last change before the moment says, else as it was before the first change after it.
CREATE OR REPLACE FUNCTION dataflow._limit_at(scope text, moment timestamptz, OUT concurrency integer, OUT paused boolean)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    SELECT e.to_status::integer, e.paused INTO concurrency, paused FROM dataflow.event e
        WHERE e.jobid = '' AND e.dataid = '' AND e.kind = 'control' AND e.scope = _limit_at.scope AND e.at <= _limit_at.moment
        ORDER BY e.at DESC, e.event DESC LIMIT 1;
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT e.from_status::integer, false INTO concurrency, paused FROM dataflow.event e
        WHERE e.jobid = '' AND e.dataid = '' AND e.kind = 'control' AND e.scope = _limit_at.scope AND e.at > _limit_at.moment
        ORDER BY e.at, e.event LIMIT 1;
    IF NOT FOUND THEN
        SELECT c.concurrency, c.paused INTO concurrency, paused FROM dataflow.control c WHERE c.scope = _limit_at.scope;
    END IF;
END $$;

-- What each attempt of a run waited for: in the queue, and from its claim until its code began. Waits shorter than a second are left out.
CREATE OR REPLACE FUNCTION dataflow._waits_of(jobid text, dataid text) RETURNS TABLE (attempt bigint, at timestamptz, code text, reason text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    worth_telling constant interval := '1 second';
    looked_at constant integer := 10000;
    stamp constant text := 'HH24:MI:SSOF';
    a dataflow.attempt;
    since timestamptz;
    middle timestamptz;
    running bigint;
    of_job bigint;
    of_daemon bigint;
    overtaken bigint;
    every record;
    own record;
    here record;
    job_limit integer;
    came record;
    alive boolean;
BEGIN
    FOR a IN SELECT x.* FROM dataflow.attempt x WHERE x.jobid = _waits_of.jobid AND x.dataid = _waits_of.dataid ORDER BY x.number LOOP
        SELECT e.at INTO since FROM dataflow.event e
            WHERE e.jobid = _waits_of.jobid AND e.dataid = _waits_of.dataid AND e.kind = 'queued' AND e.at <= a.claimed ORDER BY e.at DESC, e.event DESC LIMIT 1;
        -- A retry waits until it is due; only after that does it wait for a place.
        since := greatest(since, (SELECT b.retry_at FROM dataflow.attempt b WHERE b.jobid = a.jobid AND b.dataid = a.dataid AND b.number = a.number - 1 AND b.retry_at <= a.claimed));
        IF a.claimed - since >= worth_telling THEN
            middle := since + (a.claimed - since) / 2;
            -- Attempts are numbered in the order of their claims, so the last ones before this attempt are read.
            SELECT count(*) FILTER (WHERE o.was_running), count(*) FILTER (WHERE o.was_running AND o.jobid = a.jobid), count(*) FILTER (WHERE o.was_running AND o.daemon = a.daemon),
                count(*) FILTER (WHERE o.jobid = a.jobid AND o.claimed >= since)
            INTO running, of_job, of_daemon, overtaken FROM (
                SELECT x.jobid, x.daemon, x.claimed, x.claimed <= middle AND coalesce(x.ended, 'infinity') > middle AS was_running
                FROM dataflow.attempt x WHERE x.attempt < a.attempt ORDER BY x.attempt DESC LIMIT looked_at
            ) AS o;
            SELECT l.* INTO every FROM dataflow._limit_at('global', middle) AS l;
            SELECT l.* INTO own FROM dataflow._limit_at('job:' || a.jobid, middle) AS l;
            SELECT l.* INTO here FROM dataflow._limit_at('daemon:' || a.daemon, middle) AS l;
            job_limit := coalesce(own.concurrency, (SELECT j.max_running FROM dataflow.job j WHERE j.jobid = a.jobid));
            -- Whether any daemon was running at that moment.
            SELECT bool_or(d.state IN ('STARTED', 'RELOADED')) INTO alive FROM (
                SELECT DISTINCT ON (e.scope) e.to_status AS state FROM dataflow.event e
                WHERE e.jobid = '' AND e.dataid = '' AND e.kind = 'daemon' AND e.scope IS NOT NULL AND e.to_status NOT IN ('RESTORED', 'ENDED') AND e.at <= middle
                ORDER BY e.scope, e.at DESC, e.event DESC
            ) AS d;
            SELECT e.at, e.reason INTO came FROM dataflow.event e
                WHERE e.jobid = '' AND e.dataid = '' AND e.kind = 'daemon' AND e.to_status = 'STARTED' AND e.at BETWEEN since AND a.claimed ORDER BY e.at DESC, e.event DESC LIMIT 1;
            attempt := a.attempt;
            at := a.claimed;
            SELECT w.code, format('%s s in the queue, from %s: %s', round(extract(epoch FROM a.claimed - since)::numeric, 1), to_char(since, stamp), w.what) INTO code, reason
            FROM (VALUES
                (1, coalesce(every.paused, false), 'PAUSED', 'everything was paused'),
                (2, coalesce(own.paused, false), 'PAUSED', format('job %s was paused', a.jobid)),
                (3, NOT coalesce(alive, false), 'DAEMON', 'no daemon was running' || coalesce(' until ' || came.reason || ' started at ' || to_char(came.at, stamp), '')),
                (4, coalesce(here.paused, false), 'PAUSED', format('daemon %s, which took it, was paused', a.daemon)),
                (5, running >= every.concurrency, 'PLACE', format('for a place: %s of %s were running (limit of global)', running, every.concurrency)),
                (6, of_job >= job_limit, 'PLACE', format('for a place: %s of %s of its job were running', of_job, job_limit)),
                (7, of_daemon >= here.concurrency, 'PLACE', format('for a place: %s of %s of daemon %s were running', of_daemon, here.concurrency, a.daemon)),
                (8, came.at IS NOT NULL, 'DAEMON', format('for a daemon that may run it: %s started at %s', came.reason, to_char(came.at, stamp))),
                (9, overtaken > 0, 'TURN', format('for its turn: %s of its job came first', dataflow._counted(overtaken, 'run'))),
                (10, true, 'UNKNOWN', format('history does not tell for what; %s of %s were running', running, coalesce(every.concurrency::text, 'no limit')))
            ) AS w (number, applies, code, what) WHERE w.applies ORDER BY w.number LIMIT 1;
            RETURN NEXT;
        END IF;
        IF coalesce(a.started, a.ended, clock_timestamp()) - a.claimed >= worth_telling THEN
            attempt := a.attempt;
            at := coalesce(a.started, a.ended, clock_timestamp());
            code := 'RUNNER';
            reason := format('%s s from the claim: %s', round(extract(epoch FROM at - a.claimed)::numeric, 1), CASE
                WHEN a.started IS NOT NULL THEN 'for its runner''s start and the host''s checks, then its code began'
                WHEN a.ended IS NOT NULL THEN 'for its runner''s start and the host''s checks; its code never began'
                ELSE coalesce('it ' || dataflow._waits_for(a.attempt), 'it waits for its runner''s start') END);
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;
