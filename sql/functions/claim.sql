-- The claim.
--
-- The claim is serialised by one transaction-level advisory lock, so that the limits it reads are exact when it writes.
-- The row in `attempt` is the claim. The session-level advisory lock on the run is a guard: it shows that no live
-- session still works on the run, and dies with the session.
--
-- While a session holds the claim lock it waits for nothing: a person's open transaction must not stop healthy daemons. The session
-- takes other locks before the claim lock, or with SKIP LOCKED after it. tests/lint_sql.py and tests/sql/test_no_waiting.py check this.

CREATE OR REPLACE FUNCTION dataflow._run_lock(jobid text, dataid text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT hashtextextended(jobid || '/' || dataid, 20250101) $$;

-- Where the last claim of this session ended in a job's queue. While any transaction holds an old snapshot, the index keeps dead entries
-- of all runs that were claimed since; a claim that starts at the mark does not walk over them. The mark is a hint that the session
-- keeps. If it is lost, the next claim starts at the beginning of the queue.
CREATE OR REPLACE FUNCTION dataflow._mark(jobid text) RETURNS text
LANGUAGE sql STABLE
AS $$ SELECT coalesce(current_setting('dataflow.mark_' || md5(jobid), true), '') $$;

-- The jobs that a host with the code of these jobs can run: these, and the jobs that share their code. NULL: any job.
CREATE OR REPLACE FUNCTION dataflow._with_likes(jobs text[]) RETURNS text[]
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    -- NULL || '{}' is '{}'.
    RETURN CASE WHEN _with_likes.jobs IS NOT NULL
        THEN _with_likes.jobs || ARRAY(SELECT l.jobid::text FROM dataflow.job_like l WHERE l.base = ANY (_with_likes.jobs)) END;
END $$;

-- How many runs of each job this claim takes: the job's own limit, the daemon's and the global one all hold. Of the `scarce` jobs together
-- it takes no more than `room`, because this host has no place for more, and another daemon may have one.
CREATE OR REPLACE FUNCTION dataflow._shares(
    daemon text, environment text, want integer, from_start boolean, scarce text[], room integer, OUT jobid text, OUT share integer
) RETURNS SETOF record
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    -- Claims are serialised, so every attempt with a smaller number than the oldest running one has ended for good.
    oldest bigint := coalesce(nullif(current_setting('dataflow.oldest_running', true), ''), '0')::bigint;
    served text[] := (SELECT CASE WHEN d.is_outside THEN d.jobs ELSE dataflow._with_likes(d.jobs) END FROM dataflow.daemon d WHERE d.daemon = _shares.daemon);
    outside boolean := (SELECT d.is_outside FROM dataflow.daemon d WHERE d.daemon = _shares.daemon);
    -- What begin_run() claims counts for what executes it.
    limited constant text := CASE WHEN outside THEN current_setting('dataflow.executor', true) ELSE _shares.daemon END;
    free integer;
    running jsonb;
BEGIN
    SELECT
        least(want, g.concurrency - coalesce(sum(live.attempts), 0), d.concurrency - coalesce(sum(live.attempts) FILTER (WHERE live.daemon = limited), 0)),
        coalesce(jsonb_object_agg(live.jobid, live.of_job) FILTER (WHERE live.jobid IS NOT NULL), '{}'),
        coalesce(min(live.oldest), (SELECT max(a.attempt) FROM dataflow.attempt a), 0)
    INTO free, running, oldest
    FROM dataflow.control g
    LEFT JOIN dataflow.control d ON d.scope = 'daemon:' || limited
    LEFT JOIN LATERAL (
        SELECT a.jobid, a.daemon, count(*) AS attempts, sum(count(*)) OVER (PARTITION BY a.jobid) AS of_job, min(a.attempt) AS oldest
        FROM dataflow.attempt a WHERE a.ended IS NULL AND a.attempt >= oldest GROUP BY a.jobid, a.daemon
    ) AS live ON true
    WHERE g.scope = 'global' AND NOT g.paused AND NOT coalesce(d.paused, false)
    GROUP BY g.concurrency, d.concurrency;
    IF free IS NOT NULL THEN
        PERFORM set_config('dataflow.oldest_running', oldest::text, false);
    END IF;
    IF coalesce(free, 0) <= 0 THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH open AS MATERIALIZED (
        SELECT j.jobid, j.priority, coalesce((running ->> j.jobid)::int, 0) AS running,
            coalesce(l.base, j.jobid) = ANY (scarce) AS is_scarce,
            least(free, dataflow._limit_of(j, c) - coalesce((running ->> j.jobid)::int, 0), CASE WHEN coalesce(l.base, j.jobid) = ANY (scarce) THEN room END) AS places
        FROM dataflow.job j
        LEFT JOIN dataflow.job_like l ON l.jobid = j.jobid
        LEFT JOIN dataflow.control c ON c.scope = 'job:' || j.jobid
        WHERE j.retired IS NULL AND NOT dataflow._is_stopped(j, c) AND (served IS NULL OR j.jobid = ANY (served))
            AND (outside OR j.kind <> 'outside')
            -- The rule of bound_elsewhere().
            AND NOT EXISTS (
                SELECT FROM dataflow.job_output o JOIN dataflow.dataset d ON d.datasetid = o.datasetid
                WHERE o.jobid = j.jobid AND d.environment <> _shares.environment)
            AND NOT EXISTS (
                SELECT FROM dataflow.job_input i JOIN dataflow.dataset d ON d.datasetid = i.datasetid
                WHERE i.jobid = j.jobid AND d.environment <> _shares.environment)
            -- A strict job waits until settle() has judged all that changed: only then is its first run known.
            AND NOT (j.strict_order AND (
                EXISTS (SELECT FROM dataflow.recheck r WHERE NOT r.is_judged AND r.jobid = j.jobid)
                OR EXISTS (SELECT FROM dataflow.job_input i JOIN dataflow.recheck r ON r.datasetid = i.datasetid WHERE NOT r.is_judged AND i.jobid = j.jobid)
                OR EXISTS (SELECT FROM dataflow.job_output o JOIN dataflow.recheck r ON r.datasetid = o.datasetid WHERE NOT r.is_judged AND o.jobid = j.jobid)))
    ), waiting AS (
        -- The queue of a job at its limit is not read; of any other job, only as many rows as it has free places.
        SELECT o.jobid, o.priority, o.running + w.position AS turn, o.is_scarce
        FROM open o, LATERAL (
            SELECT row_number() OVER (ORDER BY q.sortkey) AS position
            FROM dataflow.work q
            WHERE q.jobid || '' = o.jobid AND q.not_before IS NULL AND q.sortkey >= CASE WHEN from_start THEN '' ELSE dataflow._mark(o.jobid) END
            ORDER BY q.sortkey LIMIT o.places
        ) AS w
        WHERE o.places > 0
    ), chosen AS (
        -- Fair: among jobs of equal priority the one with the fewest running attempts comes first, however long its queue is.
        SELECT p.jobid FROM (
            SELECT w.*, row_number() OVER (PARTITION BY w.is_scarce ORDER BY w.priority DESC, w.turn, w.jobid) AS place FROM waiting w
        ) AS p
        WHERE NOT p.is_scarce OR p.place <= room
        ORDER BY p.priority DESC, p.turn, p.jobid LIMIT free
    )
    SELECT c.jobid::text, count(*)::integer FROM chosen c GROUP BY c.jobid;
END $$;

-- The next runs of the queue, locked. Only a look from the start of the queue finds runs that came in before the marks (a retry, a
-- resubmit, a late dataid). While such a look is cheap, every claim does it. When dead entries make it slow, looks from the start take at
-- most a twentieth of the time; the claims between them start at the marks, unless they find too little there.
CREATE OR REPLACE FUNCTION dataflow._next_work(
    daemon text, environment text, want integer, scarce text[], room integer, OUT jobids text[], OUT dataids text[]
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    share_of_looks constant integer := 20;
    cheap constant interval := '10 milliseconds';
    bearable constant interval := '250 milliseconds';
    -- Kept as seconds: the text of a moment or an interval depends on the session's DateStyle, IntervalStyle and TimeZone.
    last_cost interval := make_interval(secs => coalesce(nullif(current_setting('dataflow.look_seconds', true), ''), '0')::double precision);
    next_look timestamptz := to_timestamp(coalesce(nullif(current_setting('dataflow.look_again', true), ''), '0')::double precision);
    began timestamptz := clock_timestamp();
BEGIN
    IF last_cost > cheap AND began < next_look THEN
        SELECT n.jobids, n.dataids INTO jobids, dataids FROM dataflow._look(_next_work.daemon, _next_work.environment, want, false, scarce, room) AS n;
        -- If nothing was found, look from the start whatever it costs: no daemon looks again until something else happens.
        IF cardinality(jobids) >= want OR (cardinality(jobids) > 0 AND last_cost > bearable) THEN
            RETURN;
        END IF;
    END IF;
    SELECT n.jobids, n.dataids INTO jobids, dataids FROM dataflow._look(_next_work.daemon, _next_work.environment, want, true, scarce, room) AS n;
    PERFORM set_config('dataflow.look_seconds', extract(epoch FROM clock_timestamp() - began)::text, false),
        set_config('dataflow.look_again', extract(epoch FROM clock_timestamp() + share_of_looks * (clock_timestamp() - began))::text, false);
END $$;

CREATE OR REPLACE FUNCTION dataflow._look(
    daemon text, environment text, want integer, from_start boolean, scarce text[], room integer, OUT jobids text[], OUT dataids text[]
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    WITH taken AS MATERIALIZED (
        -- Rows that another transaction has locked are skipped; nothing waits inside the claim.
        SELECT w.jobid, w.dataid, w.sortkey FROM dataflow._shares(_look.daemon, _look.environment, want, from_start, scarce, room) AS s,
            LATERAL (
                SELECT q.jobid, q.dataid, q.sortkey FROM dataflow.work q
                WHERE q.jobid || '' = s.jobid AND q.not_before IS NULL AND q.sortkey >= CASE WHEN from_start THEN '' ELSE dataflow._mark(s.jobid) END
                ORDER BY q.sortkey LIMIT s.share
                FOR UPDATE SKIP LOCKED
            ) AS w
    ), marked AS MATERIALIZED (
        SELECT set_config('dataflow.mark_' || md5(t.jobid), max(t.sortkey), false) FROM taken t GROUP BY t.jobid
    )
    SELECT array_agg(t.jobid), array_agg(t.dataid) INTO jobids, dataids FROM taken t, (SELECT count(*) FROM marked) AS all_marked;
END $$;

-- From the counters: while somebody holds an old snapshot, the queue itself is full of dead rows.
CREATE OR REPLACE FUNCTION dataflow.queue_of(jobs text[], OUT queued bigint, OUT later bigint, OUT due_seconds double precision, OUT has_rechecks boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    served constant text[] := dataflow._with_likes(queue_of.jobs);
    stopped constant text[] := ARRAY(
        SELECT j.jobid::text FROM dataflow.job j LEFT JOIN dataflow.control c ON c.scope = 'job:' || j.jobid
        WHERE dataflow._is_stopped(j, c) OR j.kind = 'outside');
BEGIN
    SELECT coalesce(sum(n.chunks), 0) INTO queued FROM dataflow.counter n
        WHERE n.locktype = 'WORK' AND (served IS NULL OR n.jobid = ANY (served)) AND n.jobid <> ALL (stopped);
    SELECT count(*), extract(epoch FROM min(w.not_before) - clock_timestamp()) INTO later, due_seconds FROM dataflow.work w
        WHERE w.not_before IS NOT NULL AND (served IS NULL OR w.jobid = ANY (served)) AND w.jobid <> ALL (stopped);
    has_rechecks := EXISTS (SELECT FROM dataflow.recheck);
END $$;
COMMENT ON FUNCTION dataflow.queue_of(text[]) IS
    'How many runs of these jobs, and of jobs that share their code, are queued; how many of them wait for their retry, and in how many seconds the first is due; and whether runs have to be judged again. Jobs that are paused, whose limit is 0, or that are executed outside do not count. NULL: all jobs';

-- The environment of the daemon that this session belongs to.
CREATE OR REPLACE FUNCTION dataflow._leased(daemon text, incarnation uuid) RETURNS text
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    daemon_environment text;
BEGIN
    SELECT d.environment INTO daemon_environment FROM dataflow.daemon d
        WHERE d.daemon = _leased.daemon AND d.incarnation = _leased.incarnation AND d.stopped IS NULL AND d.lease_until > clock_timestamp()
            AND d.session_pid = pg_backend_pid();
    IF NOT FOUND THEN
        RAISE EXCEPTION 'daemon % holds no lease in this session', _leased.daemon USING ERRCODE = 'DF409',
            HINT = 'register_daemon() first, and retake_attempts() after a reconnect';
    END IF;
    RETURN daemon_environment;
END $$;

-- Judges runs whose chunks the caller has locked, and makes attempts of those that may run; if forced, of all of them, and keeps as evidence
-- which questions were answered no. A claim judges each run here and nowhere else. The planner's settings are the caller's.
CREATE OR REPLACE FUNCTION dataflow._take(daemon text, incarnation uuid, jobids text[], dataids text[], forced boolean) RETURNS TABLE (
    attempt bigint,
    token uuid,
    jobid text,
    dataid text,
    number integer,
    tag text,
    inputs jsonb,
    params jsonb,
    timeout_seconds double precision
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    step_aside constant interval := '5 seconds';
BEGIN
    RETURN QUERY
    WITH judged AS MATERIALIZED (
        SELECT e.*, CASE WHEN NOT _take.forced THEN coalesce(e.not_ready, e.wrong_data, e.invalid_path, e.not_validated, e.locked) END AS reason
        FROM dataflow._evaluate(jobids, dataids) AS e
    ), turned_away AS (
        DELETE FROM dataflow.work w USING judged j
        WHERE j.reason IS NOT NULL AND w.jobid = j.jobid AND w.dataid = j.dataid
    ), told AS (
        INSERT INTO dataflow.event (kind, jobid, dataid, code, reason)
        SELECT 'refused', j.jobid, j.dataid, CASE
            WHEN j.not_ready IS NOT NULL THEN 'DATA_NOT_READY' WHEN j.wrong_data IS NOT NULL THEN 'WRONG_DATA'
            WHEN j.invalid_path IS NOT NULL THEN 'INVALID_PATH' WHEN j.not_validated IS NOT NULL THEN 'NOT_VALIDATED' ELSE 'LOCKED' END, j.reason
        FROM judged j WHERE j.reason IS NOT NULL
    ), guarded AS MATERIALIZED (
        -- The run lock does not show that the runner of a cancelled attempt still runs: a session can take its own lock twice, and a
        -- daemon that lost its connection has lost its locks. So the run waits until the daemon sets let_go, or its lease ends.
        SELECT j.*, CASE WHEN last.outcome = 'CANCELLED' AND NOT last.let_go AND (last.lease_until > clock_timestamp() OR EXISTS (
                SELECT FROM dataflow.daemon d WHERE d.daemon = last.daemon AND d.incarnation = last.incarnation
                    AND (d.incarnation = _take.incarnation OR (d.stopped IS NULL AND d.lease_until > clock_timestamp())))) THEN false
            ELSE pg_try_advisory_lock(dataflow._run_lock(j.jobid, j.dataid)) END AS mine,
            last.number, last.outcome, last.code, last.tries, last.lost
        FROM judged j
        -- The last attempt of the run, not the attempt that the chunk names: a chunk may be deleted, its attempts stay.
        LEFT JOIN LATERAL (
            SELECT a.number, a.outcome, a.code, a.tries, a.lost, a.let_go, a.daemon, a.incarnation, a.lease_until FROM dataflow.attempt a
            WHERE a.jobid = j.jobid AND a.dataid = j.dataid ORDER BY a.number DESC LIMIT 1
        ) AS last ON true
        WHERE j.reason IS NULL
    ), aside AS (
        UPDATE dataflow.work w SET not_before = now() + step_aside FROM guarded g
        WHERE NOT g.mine AND w.jobid = g.jobid AND w.dataid = g.dataid
    ), taken AS (
        DELETE FROM dataflow.work w USING guarded g WHERE g.mine AND w.jobid = g.jobid AND w.dataid = g.dataid
        RETURNING w.jobid, w.dataid
    ), attempts AS (
        INSERT INTO dataflow.attempt AS a (jobid, dataid, number, tries, lost, daemon, incarnation, tag, forced, inputs, answers, params)
        SELECT g.jobid, g.dataid, coalesce(g.number, 0) + 1,
            -- An attempt that asked to be tried later has not spent a try.
            CASE WHEN g.outcome = 'FAILED' AND g.out_status = 'FAILED' THEN g.tries + (g.code <> 'RETRY_LATER')::int
                WHEN g.outcome IN ('LOST', 'RETURNED') THEN g.tries ELSE 1 END,
            -- At max_lost the run has failed. A resubmit resets the counter.
            CASE WHEN g.outcome = 'LOST' AND g.lost + 1 < k.max_lost THEN g.lost + 1 WHEN g.outcome = 'RETURNED' THEN g.lost ELSE 0 END,
            _take.daemon, _take.incarnation, 'dataflow-' || gen_random_uuid(), _take.forced, coalesce(g.inputs, '{}'),
            jsonb_build_object('ready', g.not_ready IS NULL, 'right_data', g.wrong_data IS NULL, 'right_place', g.invalid_path IS NULL,
                'validated', g.not_validated IS NULL, 'safe', g.locked IS NULL),
            -- A new run has no row that could hold parameters; most runs are new.
            CASE WHEN g.out_status IS NOT NULL THEN dataflow._given_params(g.jobid, g.dataid) END
        FROM guarded g JOIN dataflow.job k ON k.jobid = g.jobid WHERE g.mine
        RETURNING a.attempt, a.token, a.jobid, a.dataid, a.number, a.tag, a.inputs, a.params
    ), unanswered AS (
        INSERT INTO dataflow.evidence (attempt, told)
        SELECT a.attempt, jsonb_build_object('forced', dataflow._noes(
            g.jobid, g.dataid, g.not_ready, g.wrong_data, g.invalid_path, g.not_validated, g.locked, g.last_attempt, g.out_status))
        FROM attempts a JOIN guarded g ON g.jobid = a.jobid AND g.dataid = a.dataid WHERE _take.forced
    ), locks AS (
        INSERT INTO dataflow.datastatus AS s (datasetid, dataid, locktype, jobid, run, status, attempt, version, sortkey)
        SELECT o.datasetid, a.dataid, 'OUT', a.jobid, a.dataid, 'RUNNING', a.attempt,
            coalesce((SELECT gone.version FROM dataflow.deleted_version gone WHERE gone.datasetid = o.datasetid AND gone.dataid = a.dataid), 0),
            dataflow._ordered(d.ordering, a.dataid)
        FROM attempts a JOIN dataflow.job_output o ON o.jobid = a.jobid JOIN dataflow.dataset d ON d.datasetid = o.datasetid
        UNION ALL
        SELECT split_part(i.key, '/', 1), split_part(i.key, '/', 2), 'IN', a.jobid, a.dataid, 'RUNNING', a.attempt, i.value::int, ''
        FROM attempts a, jsonb_each_text(a.inputs) AS i
        ON CONFLICT (datasetid, dataid, locktype, jobid, run) DO UPDATE SET
            status = 'RUNNING', attempt = excluded.attempt, modified = now(), code = NULL, reason = NULL, held_from = NULL,
            version = CASE s.locktype WHEN 'IN' THEN excluded.version ELSE s.version END
    )
    SELECT a.attempt, a.token, a.jobid::text, a.dataid::text, a.number, a.tag, a.inputs, j.params || coalesce(a.params, '{}'), extract(epoch FROM j.timeout)::double precision
    FROM attempts a JOIN dataflow.job j ON j.jobid = a.jobid;
END $$;

CREATE OR REPLACE FUNCTION dataflow.claim_within(daemon text, incarnation uuid, want integer, scarce text[], room integer) RETURNS TABLE (
    attempt bigint,
    token uuid,
    jobid text,
    dataid text,
    number integer,
    tag text,
    inputs jsonb,
    params jsonb,
    timeout_seconds double precision
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = 0
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_nestloop = on
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_material = off
SET enable_memoize = off
SET enable_bitmapscan = off
SET join_collapse_limit = 1
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    step_aside constant interval := '5 seconds';
    settled_per_claim constant integer := 1000;
    daemon_environment text;
    jobids text[];
    dataids text[];
    free_jobs text[];
    locked_jobids text[];
    locked_dataids text[];
BEGIN
    PERFORM dataflow._forget_small_plans();
    -- Before the claim lock, because settle() may wait a moment for a row of the queue.
    PERFORM dataflow.settle(settled_per_claim);
    PERFORM dataflow._claim_lock();
    daemon_environment := dataflow._leased(claim_within.daemon, claim_within.incarnation);
    UPDATE dataflow.work w SET not_before = NULL
    FROM (SELECT l.jobid, l.dataid FROM dataflow.work l WHERE l.not_before <= now() FOR UPDATE SKIP LOCKED) AS due
    WHERE w.jobid = due.jobid AND w.dataid = due.dataid;

    SELECT n.jobids, n.dataids INTO jobids, dataids FROM dataflow._next_work(claim_within.daemon, daemon_environment, want, coalesce(scarce, '{}'), coalesce(room, 0)) AS n;
    IF jobids IS NULL THEN
        RETURN;
    END IF;
    -- The inputs and outputs of these jobs stay as they are until the commit. A job that apply_flow() is changing, or whose output
    -- somebody is registering, is skipped.
    free_jobs := ARRAY(
        SELECT j.jobid::text FROM dataflow.job j WHERE j.jobid = ANY (ARRAY(SELECT DISTINCT n FROM unnest(jobids) AS n)) FOR KEY SHARE SKIP LOCKED);
    free_jobs := ARRAY(
        SELECT f FROM unnest(free_jobs) AS f
        WHERE coalesce((
            SELECT bool_and(pg_try_advisory_xact_lock(dataflow._registration_lock(o.datasetid))) FROM dataflow.job_output o WHERE o.jobid = f), true));
    -- The chunks are locked before they are judged, so that the judgement stays true until the commit. Most runs are new and have no rows
    -- yet, so each row is looked up before it is locked.
    SELECT
        array_agg(r.jobid) FILTER (WHERE outputs.taken + inputs.taken = 0), array_agg(r.dataid) FILTER (WHERE outputs.taken + inputs.taken = 0),
        array_agg(r.jobid) FILTER (WHERE outputs.taken + inputs.taken > 0), array_agg(r.dataid) FILTER (WHERE outputs.taken + inputs.taken > 0)
    INTO jobids, dataids, locked_jobids, locked_dataids
    FROM unnest(jobids, dataids) AS r (jobid, dataid)
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE known.is_there AND mine.found IS NULL)
            + (r.jobid <> ALL (free_jobs) OR NOT pg_try_advisory_xact_lock(dataflow._hold_lock(r.jobid, r.dataid)))::int AS taken
        FROM dataflow.job_output o
        LEFT JOIN LATERAL (
            SELECT true AS is_there FROM dataflow.datastatus x WHERE x.datasetid = o.datasetid AND x.dataid = r.dataid AND x.locktype = 'OUT' OFFSET 0
        ) AS known ON true
        LEFT JOIN LATERAL (
            SELECT true AS found FROM dataflow.datastatus x
            WHERE known.is_there AND x.datasetid = o.datasetid AND x.dataid = r.dataid AND x.locktype = 'OUT' FOR UPDATE SKIP LOCKED
        ) AS mine ON true
        WHERE o.jobid = r.jobid
    ) AS outputs
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE mine.found IS NULL AND EXISTS (
                SELECT FROM dataflow.datastatus x WHERE x.datasetid = i.datasetid AND x.dataid = i.dataid AND x.locktype = 'OUT'))
            + count(*) FILTER (WHERE known.is_there AND earlier.found IS NULL) AS taken
        FROM dataflow._inputs(r.jobid, r.dataid) AS i
        LEFT JOIN LATERAL (
            SELECT true AS found FROM dataflow.datastatus x
            WHERE x.datasetid = i.datasetid AND x.dataid = i.dataid AND x.locktype = 'OUT' FOR SHARE SKIP LOCKED
        ) AS mine ON true
        LEFT JOIN LATERAL (
            SELECT true AS is_there FROM dataflow.datastatus x
            WHERE x.datasetid = i.datasetid AND x.dataid = i.dataid AND x.locktype = 'IN' AND x.jobid = r.jobid AND x.run = r.dataid OFFSET 0
        ) AS known ON true
        LEFT JOIN LATERAL (
            SELECT true AS found FROM dataflow.datastatus x
            WHERE known.is_there AND x.datasetid = i.datasetid AND x.dataid = i.dataid AND x.locktype = 'IN' AND x.jobid = r.jobid AND x.run = r.dataid
            FOR UPDATE SKIP LOCKED
        ) AS earlier ON true
    ) AS inputs;
    IF locked_jobids IS NOT NULL THEN
        -- Otherwise every claim would meet these runs first, and never reach the runs behind them.
        UPDATE dataflow.work w SET not_before = now() + step_aside FROM unnest(locked_jobids, locked_dataids) AS l (jobid, dataid)
        WHERE w.jobid = l.jobid AND w.dataid = l.dataid;
    END IF;
    IF jobids IS NULL THEN
        RETURN;
    END IF;

    RETURN QUERY SELECT * FROM dataflow._take(claim_within.daemon, claim_within.incarnation, jobids, dataids, false);
END $$;
COMMENT ON FUNCTION dataflow.claim_within(text, uuid, integer, text[], integer) IS
    'claim(), but of the jobs in `scarce` together at most `room` runs: the daemon has no place for more of them';

CREATE OR REPLACE FUNCTION dataflow.claim(daemon text, incarnation uuid, want integer) RETURNS TABLE (
    attempt bigint,
    token uuid,
    jobid text,
    dataid text,
    number integer,
    tag text,
    inputs jsonb,
    params jsonb,
    timeout_seconds double precision
)
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT * FROM dataflow.claim_within(daemon, incarnation, want, '{}', 0) $$;
COMMENT ON FUNCTION dataflow.claim(text, uuid, integer) IS
    'Takes up to `want` ready runs, within every limit, and returns their attempts. Only the session that registered the daemon may call it';

-- One run that a person names. If forced, it runs although questions are answered no, but never while somebody writes or reads its
-- chunks, beyond a limit, or in another environment than that of its datasets.
CREATE OR REPLACE FUNCTION dataflow.claim_run(daemon text, incarnation uuid, of_job text, of_dataid text, forced boolean, reason text) RETURNS TABLE (
    attempt bigint,
    token uuid,
    jobid text,
    dataid text,
    number integer,
    tag text,
    inputs jsonb,
    params jsonb,
    timeout_seconds double precision
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    codes constant text[] := '{DATA_NOT_READY,WRONG_DATA,INVALID_PATH,NOT_VALIDATED,LOCKED}';
    daemon_environment text;
    outside boolean;
    limited text;
    stopper text;
BEGIN
    PERFORM dataflow._known_job(claim_run.of_job);
    PERFORM dataflow._checked_dataid(claim_run.of_dataid);
    IF claim_run.forced IS NULL THEN
        RAISE EXCEPTION 'forced cannot be NULL' USING ERRCODE = 'DF400', HINT = 'it is true or false';
    END IF;
    -- As in a claim, everything is locked before it is judged. Here it waits for other transactions, because it has no claim lock yet.
    PERFORM FROM dataflow.job j WHERE j.jobid = claim_run.of_job FOR KEY SHARE;
    PERFORM pg_advisory_xact_lock(dataflow._registration_lock(o.datasetid))
        FROM (SELECT x.datasetid FROM dataflow.job_output x WHERE x.jobid = claim_run.of_job ORDER BY x.datasetid OFFSET 0) AS o;
    PERFORM pg_advisory_xact_lock(dataflow._hold_lock(claim_run.of_job, claim_run.of_dataid));
    PERFORM FROM dataflow.job_output o JOIN dataflow.datastatus s ON s.datasetid = o.datasetid
        WHERE o.jobid = claim_run.of_job AND s.dataid = claim_run.of_dataid AND s.locktype = 'OUT' ORDER BY s.datasetid FOR UPDATE OF s;
    PERFORM FROM dataflow._inputs(claim_run.of_job, claim_run.of_dataid) AS i JOIN dataflow.datastatus s ON s.datasetid = i.datasetid AND s.dataid = i.dataid
        WHERE s.locktype = 'OUT' ORDER BY s.datasetid, s.dataid FOR SHARE OF s;
    PERFORM FROM dataflow._inputs(claim_run.of_job, claim_run.of_dataid) AS i JOIN dataflow.datastatus s ON s.datasetid = i.datasetid AND s.dataid = i.dataid
        WHERE s.locktype = 'IN' AND s.jobid = claim_run.of_job AND s.run = claim_run.of_dataid ORDER BY s.datasetid, s.dataid FOR UPDATE OF s;
    PERFORM FROM dataflow.work w WHERE w.jobid = claim_run.of_job AND w.dataid = claim_run.of_dataid FOR UPDATE;
    PERFORM dataflow._claim_lock();
    daemon_environment := dataflow._leased(claim_run.daemon, claim_run.incarnation);
    stopper := dataflow.bound_elsewhere(claim_run.of_job, daemon_environment);
    IF stopper IS NOT NULL THEN
        RAISE EXCEPTION '%', stopper USING ERRCODE = 'DF412', HINT = 'run it on a host of that environment';
    END IF;
    outside := (SELECT d.is_outside FROM dataflow.daemon d WHERE d.daemon = claim_run.daemon);
    limited := CASE WHEN outside THEN current_setting('dataflow.executor', true) ELSE claim_run.daemon END;
    IF NOT outside AND EXISTS (SELECT FROM dataflow.job j WHERE j.jobid = claim_run.of_job AND j.kind = 'outside') THEN
        RAISE EXCEPTION 'job % is executed outside: no daemon runs it', of_job USING ERRCODE = 'DF409', HINT = format('dataflowctl begin %s', of_job);
    END IF;
    IF EXISTS (SELECT FROM dataflow.job j WHERE j.jobid = claim_run.of_job AND j.retired IS NOT NULL) THEN
        RAISE EXCEPTION 'job % is retired: its flow no longer declares it', of_job USING ERRCODE = 'DF409', HINT = 'dataflowctl apply a flow that declares it';
    END IF;
    SELECT CASE WHEN l.paused THEN l.scope || ' is paused' ELSE format('the limit of %s, %s, is reached', l.scope, dataflow._counted(l.concurrency, 'attempt')) END INTO stopper
        FROM dataflow.limits l
        WHERE l.scope IN ('global', 'job:' || claim_run.of_job, 'daemon:' || limited) AND (l.paused OR l.concurrency <= l.running)
        ORDER BY l.scope <> 'global' LIMIT 1;
    IF stopper IS NOT NULL THEN
        RAISE EXCEPTION '%', stopper USING ERRCODE = 'DF423', HINT = 'wait, or see `dataflowctl concurrency` and `dataflowctl resume`';
    END IF;
    SELECT format('attempt %s of daemon %s is at it', a.attempt, a.daemon) INTO stopper FROM dataflow.attempt a
        WHERE a.jobid = claim_run.of_job AND a.dataid = claim_run.of_dataid AND a.ended IS NULL;
    IF stopper IS NOT NULL THEN
        RAISE EXCEPTION '%', stopper USING ERRCODE = 'DF423', HINT = 'wait for it, or `dataflowctl cancel` it';
    END IF;
    IF forced THEN
        SELECT format('%s/%s is being read by job %s (dataid %s)', s.datasetid, s.dataid, s.jobid, s.run) INTO stopper
            FROM dataflow.job_output o JOIN dataflow.datastatus s ON s.datasetid = o.datasetid
            WHERE o.jobid = claim_run.of_job AND s.dataid = claim_run.of_dataid AND s.locktype = 'IN' AND s.status = 'RUNNING' LIMIT 1;
        IF stopper IS NOT NULL THEN
            RAISE EXCEPTION '%', stopper USING ERRCODE = 'DF423', HINT = 'wait for it, or `dataflowctl cancel` it: what is being read is not rewritten, also by force';
        END IF;
    END IF;
    RETURN QUERY SELECT * FROM dataflow._take(
        claim_run.daemon, claim_run.incarnation, ARRAY[claim_run.of_job], ARRAY[claim_run.of_dataid], claim_run.forced);
    IF forced THEN
        INSERT INTO dataflow.event (kind, jobid, dataid, attempt, code, reason)
        SELECT 'status', claim_run.of_job, claim_run.of_dataid, a.attempt, 'FORCED', concat_ws('; ', claim_run.reason, coalesce((
            SELECT string_agg(format('%s: %s', n.key, n.value), '; ' ORDER BY array_position(codes, n.key)) FROM jsonb_each_text(e.told -> 'forced') AS n),
            'every question was answered yes'))
        FROM dataflow.attempt a JOIN dataflow.evidence e ON e.attempt = a.attempt
        WHERE a.jobid = claim_run.of_job AND a.dataid = claim_run.of_dataid AND a.ended IS NULL;
    END IF;
END $$;
COMMENT ON FUNCTION dataflow.claim_run(text, uuid, text, text, boolean, text) IS
    'Takes one run that a person has named, within every limit; no row: it may not run. forced => true: also if questions are answered no, but not while its chunk is being read or written; the attempt and the history keep these answers, and the reason';

CREATE OR REPLACE FUNCTION dataflow.claim_run(daemon text, incarnation uuid, of_job text, of_dataid text, forced boolean DEFAULT false) RETURNS TABLE (
    attempt bigint,
    token uuid,
    jobid text,
    dataid text,
    number integer,
    tag text,
    inputs jsonb,
    params jsonb,
    timeout_seconds double precision
)
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT * FROM dataflow.claim_run(daemon, incarnation, of_job, of_dataid, forced, NULL) $$;
COMMENT ON FUNCTION dataflow.claim_run(text, uuid, text, text, boolean) IS 'claim_run() without a reason';
