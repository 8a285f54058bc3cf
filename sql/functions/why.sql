-- Why a run did, does or does not run, and what to do about it.

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

-- Reads at most the first 10000 runs of the queue. NULL: the run is not among them.
CREATE OR REPLACE FUNCTION dataflow._queue_position(jobid text, dataid text) RETURNS bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT q.place FROM (
        SELECT w.dataid, row_number() OVER (ORDER BY w.sortkey) AS place FROM dataflow.work w
        WHERE w.jobid || '' = _queue_position.jobid AND w.not_before IS NULL ORDER BY w.sortkey LIMIT 10000
    ) AS q WHERE q.dataid = _queue_position.dataid
$$;

-- What may keep a job from starting although its data is ready.
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
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_material = off
SET enable_memoize = off
SET jit = off
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
    'The chunks that a run waits for in the end: those that are missing or FAILED although all that they need is there';

-- What to do about a missing chunk that no job makes: register it, or wait for its calendar.
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
        WHEN p.due > now() THEN format('wait: the calendar makes it READY at %s', dataflow._stamp(p.due))
        ELSE format('it is due since %s: start dataflowd, which makes it READY', dataflow._stamp(p.due)) END
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
    last dataflow.attempt;
    began boolean;
    is_retired boolean;
    maker record;
    given text;
    words text;
    old record;
    host record;
    kept record;
    takes text;
    renewal text;
    lacks text;
    waits text;
    place bigint;
    here constant text := format('%s %s', why.jobid, why.dataid);
    again constant text := format('dataflowctl resubmit %s --dataid %s', why.jobid, why.dataid);
BEGIN
    SELECT r.* INTO run FROM dataflow.run_state(why.jobid, why.dataid) AS r;
    SELECT j.retired IS NOT NULL INTO is_retired FROM dataflow.job j WHERE j.jobid = why.jobid;
    SELECT a.* INTO last FROM dataflow.attempt a WHERE a.attempt = run.attempt;
    began := last.started IS NOT NULL;
    words := ', with the words ' || dataflow._words_text(last.words);
    -- An earlier attempt than the last may have made the published version.
    SELECT a.attempt, a.number, a.daemon, a.ended, a.inputs, a.forced, a.params, a.words, dataflow._not_given(a) AS missing, dataflow._forced_inputs(a.inputs) AS forced_inputs
        INTO maker FROM dataflow.datastatus s JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest
        JOIN dataflow.attempt a ON a.attempt = m.attempt
        WHERE s.datasetid = run.datasetid AND s.dataid = why.dataid AND s.locktype = 'OUT';
    -- The parameters of the running attempt, or of the next one.
    SELECT dataflow._params_text(CASE run.state WHEN 'RUNNING' THEN last.params
        ELSE dataflow._given_params(why.jobid, why.dataid) END) INTO given WHERE run.state <> 'READY';
    SELECT x.because, x.input, x.changed INTO old FROM dataflow.job_output o
        CROSS JOIN LATERAL (SELECT t.because, t.input, t.changed FROM dataflow.stale t WHERE t.datasetid = o.datasetid AND t.dataid = why.dataid OFFSET 0) AS x
        WHERE o.jobid = why.jobid ORDER BY o.datasetid LIMIT 1;
    SELECT d.state, d.heard, EXISTS (SELECT FROM dataflow.daemons o WHERE o.state = 'ALIVE') AS has_heirs INTO host FROM dataflow.daemons d WHERE d.daemon = run.daemon;
    SELECT c.accepted_by, c.accepted, c.reason INTO kept FROM dataflow.job j
        JOIN dataflow.datastatus s ON s.datasetid = run.datasetid AND s.dataid = why.dataid AND s.locktype = 'OUT'
        JOIN dataflow.acceptance c ON c.datasetid = s.datasetid AND c.dataid = s.dataid AND c.version = s.manifest
        WHERE j.jobid = why.jobid AND c.code_hash = j.code_hash AND c.config_hash IS NOT DISTINCT FROM j.config_hash;
    takes := CASE WHEN old.because && ARRAY['CODE', 'CONFIGURATION'] THEN format('; dataflowctl accept %s --dataid %s takes it as it is', why.jobid, why.dataid) ELSE '' END;
    renewal := again || CASE WHEN old.because IS NULL THEN ' --status READY makes it again' ELSE ' --stale makes it again' || takes END;
    -- A chunk that was made by force lacks an input that is still missing. A resubmitted run would wait for that input.
    SELECT n INTO lacks FROM unnest(maker.missing) AS n WHERE run.state = 'READY' AND NOT EXISTS (
        SELECT FROM dataflow.datastatus p WHERE p.datasetid = split_part(n, '/', 1) AND p.dataid = split_part(n, '/', 2) AND p.locktype = 'OUT' AND p.status = 'READY')
        ORDER BY n LIMIT 1;
    IF lacks IS NOT NULL THEN
        renewal := format('dataflowctl force %s makes it again of what is there now; when %s is READY, %s%s makes it of all', here, lacks, again,
            CASE WHEN old.because IS NULL THEN ' --status READY' ELSE ' --stale' END);
    END IF;
    waits := CASE WHEN run.state = 'RUNNING' AND host.state NOT IN ('GONE', 'LOST', 'STOPPED') THEN dataflow._waits_for(run.attempt) END;
    RETURN QUERY SELECT 0, 'Where does it stand?', NULL::boolean, CASE WHEN waits IS NULL THEN run.state ELSE 'WAITS_FOR_SPARK' END, CASE CASE WHEN is_retired AND run.state IN ('QUEUED', 'WAITING', 'UNKNOWN') THEN 'RETIRED' ELSE run.state END
            WHEN 'READY' THEN CASE WHEN maker.attempt IS NULL THEN format('version %s was registered by hand %s', run.version, dataflow._stamp(run.since))
                ELSE format('attempt %s on %s made version %s%s, finished %s, of %s', maker.number, maker.daemon, run.version,
                    CASE WHEN maker.forced THEN ' by force' ELSE '' END, dataflow._stamp(maker.ended),
                    coalesce((SELECT string_agg(format('%s v%s', key, value), ', ' ORDER BY key) FROM jsonb_each_text(maker.inputs)), 'nothing'))
                    || coalesce(', with ' || dataflow._params_text(maker.params), '') || coalesce(', with the words ' || dataflow._words_text(maker.words), '')
                    || CASE WHEN run.attempt IS NULL OR maker.attempt >= run.attempt THEN ''
                        ELSE format('; set to READY by hand %s, after attempt %s ended %s', dataflow._stamp(run.since), run.number, coalesce(run.code, run.outcome)) END END
                || CASE WHEN kept.accepted_by IS NULL THEN '' ELSE format('; %s accepted it as it is with the code of now, %s: %s',
                    kept.accepted_by, dataflow._stamp(kept.accepted), coalesce(kept.reason, 'no reason was given')) END
            WHEN 'RUNNING' THEN format('attempt %s %s %s (%s) since %s', run.number, CASE WHEN waits IS NULL THEN 'runs on' ELSE 'was claimed by' END, run.daemon,
                    coalesce(run.hostname, 'its lease ends ' || dataflow._stamp(last.lease_until), 'an unknown host'),
                    dataflow._stamp(run.claimed)) || coalesce(words, '') || coalesce(', and ' || waits, '')
                || CASE WHEN host.state IN ('GONE', 'LOST', 'STOPPED') THEN format('; that daemon is %s, and was last heard of %s', host.state, dataflow._stamp(host.heard)) ELSE '' END
            WHEN 'FAILED' THEN format('%s, %s: %s', CASE WHEN run.outcome IN ('FAILED', 'LOST', 'CANCELLED') THEN format('attempt %s ended %s%s', run.number, dataflow._stamp(run.ended), words) ELSE 'set by hand ' || dataflow._stamp(run.since) END,
                CASE WHEN run.outcome IN ('FAILED', 'LOST', 'CANCELLED') THEN run.code ELSE 'BY_HAND' END,
                coalesce(split_part(CASE WHEN run.outcome IN ('FAILED', 'LOST', 'CANCELLED') THEN run.error END, E'\n', 1), run.reason, 'no reason is known'))
            WHEN 'RETRYING' THEN format(CASE run.code WHEN 'RETRY_LATER' THEN 'it asked to be tried later, %3$s: %4$s' ELSE 'try %1$s of %2$s failed%5$s, %3$s: %4$s' END,
                run.tries, run.max_attempts, run.code, coalesce(split_part(run.error, E'\n', 1), 'no reason is known'), words)
            WHEN 'HELD' THEN format('held since %s: %s', dataflow._stamp(run.since), coalesce(run.reason, 'no reason was given'))
            WHEN 'QUEUED' THEN 'all its data is there; it is in the queue'
            WHEN 'WAITING' THEN 'it cannot start yet; the questions say why'
            WHEN 'RETIRED' THEN 'its flow no longer declares the job' || CASE WHEN run.attempt IS NULL THEN ''
                ELSE format('; attempt %s ended %s, %s', run.number, dataflow._stamp(run.ended), coalesce(run.code, run.outcome)) END
            ELSE 'nothing is known of it yet: none of the chunks that it reads was ever made or registered' END
            || coalesce(CASE run.state WHEN 'RUNNING' THEN ', with ' ELSE '; its next attempt gets ' END || given, ''),
        CASE run.state
            WHEN 'READY' THEN renewal
            WHEN 'RUNNING' THEN CASE WHEN last.waits = 0 AND waits IS NOT NULL THEN 'wait until it has started'
                WHEN waits IS NOT NULL THEN 'wait until one is free; runners, in the table control or the daemon''s settings, says how many there may be'
                WHEN host.state NOT IN ('GONE', 'LOST', 'STOPPED') THEN format('dataflowctl logs %s --follow', here)
                WHEN host.has_heirs THEN 'wait: another daemon takes it over' ELSE 'start dataflowd: it takes it over' END
            -- An attempt that ended before the job's code began has no log, but a remedy.
            WHEN 'FAILED' THEN concat_ws(', then ', coalesce(last.remedy, format('dataflowctl logs %s', here)), again)
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
    -- five_questions() shows the host's answer no of the last attempt if the run waits for RESUBMIT. If it is retried by itself, it is added here.
    RETURN QUERY SELECT q.number, q.question, q.answer AND q.seen IS NULL, coalesce(q.code, q.seen),
        CASE WHEN q.seen IS NULL THEN q.detail ELSE format('attempt %s found: %s', run.number, split_part(run.error, E'\n', 1)) END, CASE CASE WHEN NOT q.is_of_host THEN q.code END
            WHEN 'DATA_NOT_READY' THEN CASE
                WHEN missing.jobid IS NOT NULL THEN format('dataflowctl why %s %s', missing.jobid, missing.dataid)
                ELSE dataflow._arrival(missing.datasetid, missing.dataid) END
            WHEN 'WRONG_DATA' THEN 'use a dataid for which every input has a chunk; for strict order, see to the earlier run first'
            WHEN 'INVALID_PATH' THEN 'correct the dataset in its flow, and dataflowctl apply it'
            WHEN 'NOT_VALIDATED' THEN format('when it is right: dataflowctl ready %s', unvalidated)
            WHEN 'LOCKED' THEN CASE WHEN is_retired THEN 'dataflowctl apply a flow that declares it'
                -- In these states an output is locked only while somebody reads it, or if another output is held: then the input is not the cause.
                WHEN held.datasetid IS NOT NULL AND run.state NOT IN ('READY', 'RUNNING', 'FAILED', 'HELD') AND NOT EXISTS (
                    SELECT FROM dataflow.job_output o JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = why.dataid
                    WHERE o.jobid = why.jobid AND (s.locktype = 'IN' AND s.status = 'RUNNING' OR s.locktype = 'OUT' AND s.status IN ('HOLD', 'PENDING'))) THEN format('dataflowctl release --dataset %s --dataid %s', held.datasetid, held.dataid)
                ELSE CASE run.state
                WHEN 'READY' THEN CASE WHEN old.because IS NULL THEN 'nothing to do' ELSE renewal END
                WHEN 'RUNNING' THEN format('wait, or dataflowctl cancel %s --dataid %s', why.jobid, why.dataid)
                WHEN 'FAILED' THEN again
                WHEN 'HELD' THEN format('dataflowctl release --dataset %s --dataid %s', run.datasetid, why.dataid)
                ELSE 'wait until it is free' END END
            ELSE CASE WHEN q.seen IS NOT NULL OR q.is_of_host THEN coalesce(last.remedy, again) END
        END
    FROM (
        SELECT f.*, CASE WHEN f.answer AND NOT began AND run.outcome = 'FAILED' AND run.state = 'RETRYING'
            AND run.code = (ARRAY['DATA_NOT_READY', 'WRONG_DATA', 'INVALID_PATH', 'NOT_VALIDATED', 'LOCKED'])[f.number] THEN run.code END AS seen
        FROM dataflow._questions(why.jobid, why.dataid) AS f
    ) AS q ORDER BY q.number;

    IF run.state IN ('QUEUED', 'RETRYING') THEN
        RETURN QUERY SELECT o.* FROM dataflow._obstacles(why.jobid) AS o;
        IF run.not_before IS NOT NULL THEN
            RETURN QUERY SELECT 9, 'Is it due?', run.not_before <= now(), CASE WHEN run.not_before > now() THEN 'RETRY_LATER' END,
                format('it is tried again at %s', dataflow._stamp(run.not_before)), CASE WHEN run.not_before > now() THEN 'wait, or ' || again END;
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
        -- A held input is listed above, with its own remedy.
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
