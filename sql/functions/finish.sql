-- How an attempt ends: its own daemon finishes it, another daemon rescues it, or a person cancels it. outside.sql has attempts without a daemon.

-- One element a result: {"attempt", "token", "outcome": "DONE" | "FAILED" | "RETURNED", "code", "error", "remedy",
-- "ran": seconds since the job's code began, which began() may have told before; "started": the moment itself, by the database's clock,
-- "retry": false to fail for good, true to be tried again in any case, "retry_after": seconds, "code_hash", "config_hash", "usage": {},
-- "outputs": {dataset: {"location", "files", "bytes", "rows", "columns", "fingerprint"}},
-- "checks": [{"dataset", "name", "severity", "passed", "observed", "expected"}],
-- "nodes": [{"node", "parent", "items", "successes", "failures", "seconds"}],
-- "quarantine": [{"item", "code", "reason", "details"}],
-- "applied": true when the attempt was given the resolved records of its run; "replayed": true when it has run these alone,
-- "found": {} what the host found before the job's code began, which is kept as evidence}
CREATE OR REPLACE FUNCTION dataflow.finish(results jsonb) RETURNS TABLE (attempt bigint, verdict text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- finish() does not wait for a row that a person's open transaction holds. The time-out is shorter than deadlock_timeout, so that in a
-- deadlock finish() fails and never the person's statement.
SET lock_timeout = '100ms'
AS $$
#variable_conflict use_column
DECLARE
    result jsonb;
BEGIN
    IF jsonb_typeof(results) IS DISTINCT FROM 'array' OR EXISTS (
        SELECT FROM jsonb_array_elements(results) AS r
        WHERE NOT coalesce(r ->> 'outcome' IN ('DONE', 'FAILED', 'RETURNED') AND r ->> 'attempt' ~ '^[0-9]{1,18}$'
            AND r ->> 'token' ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$', false)) THEN
        RAISE EXCEPTION 'finish needs a list of results with attempt, token and outcome' USING ERRCODE = 'DF400',
            HINT = 'outcome is DONE, FAILED or RETURNED';
    END IF;
    BEGIN
        RETURN QUERY SELECT * FROM dataflow._finish(results);
        RETURN;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
        NULL;
    END;
    FOR result IN SELECT jsonb_array_elements(results) LOOP
        BEGIN
            RETURN QUERY SELECT * FROM dataflow._finish(jsonb_build_array(result));
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            RETURN QUERY SELECT (result ->> 'attempt')::bigint, 'busy';
        END;
    END LOOP;
END $$;
COMMENT ON FUNCTION dataflow.finish(jsonb) IS
    'Ends attempts, a batch at a time, and publishes what they made. Per attempt: accepted; fenced (it lost its claim: stop, throw its output away); busy (somebody has its rows locked: offer it again)';

CREATE OR REPLACE FUNCTION dataflow._finish(results jsonb) RETURNS TABLE (attempt bigint, verdict text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
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
    accepted bigint[];
    stopped bigint[];
BEGIN
    WITH ending AS (
        UPDATE dataflow.attempt a SET
            ended = now(),
            let_go = true,
            outcome = r.outcome,
            started = coalesce(a.started, r.started, dataflow._start(a.claimed, r.ran)),
            code = CASE r.outcome WHEN 'DONE' THEN NULL ELSE coalesce(r.code, r.outcome) END,
            error = r.error,
            remedy = CASE r.outcome WHEN 'FAILED' THEN coalesce(r.remedy, dataflow._remedy_in(r.error)) END,
            code_hash = r.code_hash,
            config_hash = r.config_hash,
            usage = coalesce(r.usage, '{}'),
            -- The host checks what the database cannot see. A code of the five questions, before the job's code began, is the host's answer no.
            answers = CASE WHEN r.outcome = 'FAILED' AND coalesce(a.started, r.started) IS NULL AND r.ran IS NULL AND r.code IN ('WRONG_DATA', 'INVALID_PATH', 'NOT_VALIDATED', 'LOCKED')
                THEN a.answers || jsonb_build_object(
                    CASE r.code WHEN 'WRONG_DATA' THEN 'right_data' WHEN 'INVALID_PATH' THEN 'right_place' WHEN 'NOT_VALIDATED' THEN 'validated' ELSE 'safe' END, false,
                    'refused', jsonb_build_object('code', r.code, 'detail', left(split_part(r.error, E'\n', 1), 2000)))
                ELSE a.answers END,
            retry_at = CASE WHEN r.outcome = 'FAILED' AND coalesce(r.retry, a.tries < j.max_attempts)
                -- The delay doubles with each try, and varies by a fifth, so that runs which failed together are not retried together.
                THEN now() + coalesce(make_interval(secs => r.retry_after), j.retry_delay * (2 ^ least(a.tries - 1, 20)) * (0.9 + random() * 0.2)) END
        FROM jsonb_to_recordset(results) AS r (attempt bigint, token uuid, outcome text, code text, error text, remedy text, started timestamptz, ran double precision,
            retry boolean, retry_after double precision, code_hash text, config_hash text, usage jsonb)
        JOIN dataflow.attempt x ON x.attempt = r.attempt
        JOIN dataflow.job j ON j.jobid = x.jobid
        -- `ended IS NULL` would mean the same, but the planner would choose the index of running attempts, which looks almost empty after an
        -- ANALYZE at a quiet moment, and would read all results once for each running attempt.
        WHERE a.attempt = r.attempt AND a.token = r.token AND a.outcome IS NULL
        RETURNING a.attempt
    )
    SELECT array_agg(e.attempt) INTO accepted FROM ending e;
    IF accepted IS NOT NULL THEN
        PERFORM dataflow._publish(results, accepted);
        IF EXISTS (SELECT FROM jsonb_array_elements(results) AS r WHERE r ?| ARRAY['checks', 'nodes', 'quarantine', 'applied']) THEN
            PERFORM dataflow._record_details(results, accepted);
        END IF;
        IF EXISTS (SELECT FROM jsonb_array_elements(results) AS r WHERE r ? 'found') THEN
            PERFORM dataflow._record_found(results, accepted);
            PERFORM dataflow._note_first_use(results, accepted);
        END IF;
        IF EXISTS (SELECT FROM jsonb_array_elements(results) AS r WHERE r ? 'judged') THEN
            PERFORM dataflow._note_judged(results, accepted);
        END IF;
    END IF;

    IF coalesce(cardinality(accepted), 0) < jsonb_array_length(results) THEN
        -- A cancelled attempt that reports a result has stopped, so its run may be claimed again.
        WITH stopping AS (
            UPDATE dataflow.attempt a SET let_go = true
            FROM jsonb_to_recordset(results) AS r (attempt bigint, token uuid)
            WHERE a.attempt = r.attempt AND a.token = r.token AND a.outcome = 'CANCELLED' AND NOT a.let_go
            RETURNING a.attempt
        )
        SELECT array_agg(s.attempt) INTO stopped FROM stopping s;
        -- A claim may have postponed the run (step_aside) until the attempt stops.
        UPDATE dataflow.work w SET not_before = NULL FROM dataflow.attempt a
            WHERE a.attempt = ANY (stopped) AND w.jobid = a.jobid AND w.dataid = a.dataid AND w.not_before IS NOT NULL;
        IF FOUND THEN
            PERFORM pg_notify('dataflow', 'work');
        END IF;
    END IF;
    PERFORM pg_advisory_unlock(dataflow._run_lock(a.jobid, a.dataid))
    FROM unnest(accepted || stopped) AS n (attempt) JOIN dataflow.attempt a ON a.attempt = n.attempt
    JOIN dataflow.daemon d ON d.daemon = a.daemon AND d.incarnation = a.incarnation AND d.session_pid = pg_backend_pid();

    RETURN QUERY SELECT (r ->> 'attempt')::bigint, CASE WHEN (r ->> 'attempt')::bigint = ANY (accepted) THEN 'accepted' ELSE 'fenced' END
    FROM jsonb_array_elements(results) AS r;
END $$;

-- Writes the manifests and sets the status of accepted attempts, in one transaction. The planner's settings are those of _finish().
CREATE OR REPLACE FUNCTION dataflow._publish(results jsonb, accepted bigint[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO dataflow.manifest (datasetid, dataid, version, attempt, location, files, bytes, rows, columns, fingerprint)
    SELECT s.datasetid, s.dataid, s.version + 1, a.attempt, m.location, coalesce(m.files, '[]'), m.bytes, m.rows, m.columns, m.fingerprint
    FROM jsonb_to_recordset(results) AS r (attempt bigint, outcome text, outputs jsonb)
    JOIN dataflow.attempt a ON a.attempt = r.attempt
    JOIN dataflow.job_output o ON o.jobid = a.jobid
    CROSS JOIN LATERAL (
        SELECT c.datasetid, c.dataid, c.version FROM dataflow.datastatus c
        WHERE c.datasetid = o.datasetid AND c.dataid = a.dataid AND c.locktype = 'OUT' AND c.attempt = a.attempt OFFSET 0
    ) AS s
    CROSS JOIN LATERAL jsonb_to_record(coalesce(r.outputs -> o.datasetid, '{}')) AS m (
        location text, files jsonb, bytes bigint, rows bigint, columns text, fingerprint text)
    WHERE r.outcome = 'DONE' AND r.attempt = ANY (accepted);

    UPDATE dataflow.datastatus s SET
        modified = now(),
        status = CASE
            WHEN s.locktype = 'OUT' THEN CASE a.outcome WHEN 'DONE' THEN 'READY' WHEN 'FAILED' THEN 'FAILED' ELSE 'RESUBMIT' END
            ELSE CASE a.outcome WHEN 'DONE' THEN 'DONE' ELSE 'ERROR' END
        END,
        version = CASE WHEN s.locktype = 'OUT' AND a.outcome = 'DONE' THEN s.version + 1 ELSE s.version END,
        manifest = CASE WHEN s.locktype = 'OUT' AND a.outcome = 'DONE' THEN s.version + 1 ELSE s.manifest END,
        external = s.external AND a.outcome <> 'DONE',
        validated = s.validated OR a.outcome = 'DONE',
        params = CASE WHEN a.outcome <> 'DONE' THEN s.params END,
        code = a.code,
        reason = left(a.error, 500)
    FROM (
        SELECT x.attempt, o.datasetid, x.dataid, 'OUT' AS locktype, x.jobid, x.dataid AS run, x.outcome, x.code, x.error
        FROM unnest(accepted) AS n (attempt) JOIN dataflow.attempt x ON x.attempt = n.attempt JOIN dataflow.job_output o ON o.jobid = x.jobid
        UNION ALL
        SELECT x.attempt, split_part(i, '/', 1), split_part(i, '/', 2), 'IN', x.jobid, x.dataid, x.outcome, NULL, NULL
        FROM unnest(accepted) AS n (attempt) JOIN dataflow.attempt x ON x.attempt = n.attempt CROSS JOIN jsonb_object_keys(x.inputs) AS i
    ) AS a
    WHERE s.datasetid = a.datasetid AND s.dataid = a.dataid AND s.locktype = a.locktype AND s.jobid = a.jobid AND s.run = a.run
        AND s.attempt = a.attempt;
END $$;

CREATE OR REPLACE FUNCTION dataflow._record_details(results jsonb, accepted bigint[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO dataflow.check_result (attempt, datasetid, name, severity, passed, observed, expected)
    SELECT r.attempt, c.dataset, c.name, coalesce(c.severity, 'error'), c.passed, c.observed, c.expected
    FROM jsonb_to_recordset(results) AS r (attempt bigint, checks jsonb),
        jsonb_to_recordset(r.checks) AS c (dataset text, name text, severity text, passed boolean, observed text, expected text)
    WHERE r.attempt = ANY (accepted)
    ON CONFLICT DO NOTHING;

    INSERT INTO dataflow.node_stat (attempt, node, parent, sources, ordinal, items, successes, failures, seconds)
    SELECT r.attempt, n.value ->> 'node', n.value ->> 'parent', dataflow._node_sources(n.value -> 'sources'), n.ordinality, coalesce((n.value ->> 'items')::bigint, 0), coalesce((n.value ->> 'successes')::bigint, 0),
        coalesce((n.value ->> 'failures')::bigint, 0), coalesce((n.value ->> 'seconds')::double precision, 0)
    FROM jsonb_to_recordset(results) AS r (attempt bigint, nodes jsonb), jsonb_array_elements(r.nodes) WITH ORDINALITY AS n
    WHERE r.attempt = ANY (accepted)
    ON CONFLICT DO NOTHING;

    -- A rerun replaces the open records of its run and keeps the resolved ones. An attempt that only added rows has not read the other records.
    DELETE FROM dataflow.quarantine q USING dataflow.attempt a
    WHERE a.attempt = ANY (accepted) AND a.outcome = 'DONE' AND q.jobid = a.jobid AND q.dataid = a.dataid AND NOT q.is_resolved
        AND NOT EXISTS (SELECT FROM jsonb_to_recordset(results) AS r (attempt bigint, replayed boolean) WHERE r.attempt = a.attempt AND r.replayed);
    DELETE FROM dataflow.row_replay r USING dataflow.attempt a
    WHERE a.attempt = ANY (accepted) AND a.outcome = 'DONE' AND r.jobid = a.jobid AND r.dataid = a.dataid AND r.asked <= a.claimed;
    INSERT INTO dataflow.quarantine AS k (jobid, dataid, itemid, attempt, code, reason, details)
    SELECT a.jobid, a.dataid, q.item, a.attempt, coalesce(q.code, 'BAD_RECORD'), coalesce(q.reason, ''), coalesce(q.details, '{}')
    FROM jsonb_to_recordset(results) AS r (attempt bigint, quarantine jsonb)
    JOIN dataflow.attempt a ON a.attempt = r.attempt AND a.outcome = 'DONE',
        jsonb_to_recordset(r.quarantine) AS q (item text, code text, reason text, details jsonb)
    WHERE r.attempt = ANY (accepted)
    -- A repaired record that is bad again, or whose item came again as another record, is open again; its earlier resolution is kept for the person who decides.
    ON CONFLICT (jobid, dataid, itemid) DO UPDATE SET attempt = excluded.attempt, code = excluded.code, reason = excluded.reason,
        details = excluded.details || jsonb_build_object('earlier', jsonb_build_object('record', k.details -> 'record', 'resolution', k.resolution,
            'resolved_by', k.resolved_by, 'resolved', k.resolved)), created = excluded.created, is_resolved = false, resolved_by = NULL, resolved = NULL, resolution = NULL, applied = NULL, contained = false;

    -- The work order is read after the claim, so it contained every record that was resolved before the claim.
    UPDATE dataflow.quarantine q SET applied = a.attempt, contained = false
    FROM jsonb_to_recordset(results) AS r (attempt bigint, applied boolean)
    JOIN dataflow.attempt a ON a.attempt = r.attempt AND a.outcome = 'DONE'
    WHERE r.applied AND r.attempt = ANY (accepted) AND q.jobid = a.jobid AND q.dataid = a.dataid AND q.is_resolved AND q.resolved <= a.claimed;
END $$;

-- The moment when the job's code began. A daemon tells how many seconds ago that was, by its monotonic clock: the clocks of hosts differ.
CREATE OR REPLACE FUNCTION dataflow._start(claimed timestamptz, seconds double precision) RETURNS timestamptz
LANGUAGE sql STABLE
AS $$ SELECT CASE WHEN seconds IS NOT NULL THEN greatest(claimed, now() - make_interval(secs => seconds)) END $$;

-- Whether an attempt waits for a Spark application. Only people see it; nothing is decided by it.
CREATE OR REPLACE FUNCTION dataflow.waits(attempt bigint, token uuid, applications integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    UPDATE dataflow.attempt a SET waits = waits.applications
        WHERE a.attempt = waits.attempt AND a.token = waits.token AND a.ended IS NULL;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION dataflow.waits(bigint, uuid, integer) IS
    'Records that the attempt waits for one of so many Spark applications; NULL: it waits no longer. False: the attempt is fenced, stop';

-- Locks all rows that the end of these attempts changes, and returns the attempts for which that succeeded. It waits for no row.
CREATE OR REPLACE FUNCTION dataflow._lock_attempts(attempts bigint[]) RETURNS bigint[]
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN ARRAY(
        WITH mine AS MATERIALIZED (
            SELECT a.attempt, a.jobid, a.dataid, a.inputs FROM dataflow.attempt a
            WHERE a.attempt = ANY (attempts) AND a.ended IS NULL FOR UPDATE SKIP LOCKED
        ), rows AS MATERIALIZED (
            SELECT m.attempt, o.datasetid::text AS datasetid, m.dataid::text AS dataid, 'OUT' AS locktype, NULL AS jobid, NULL AS run
            FROM mine m JOIN dataflow.job_output o ON o.jobid = m.jobid
            UNION ALL
            SELECT m.attempt, split_part(i, '/', 1), split_part(i, '/', 2), 'IN', m.jobid, m.dataid FROM mine m, jsonb_object_keys(m.inputs) AS i
        ), checked AS MATERIALIZED (
            SELECT r.attempt, locked.found IS NOT NULL OR NOT EXISTS (
                SELECT FROM dataflow.datastatus x WHERE x.datasetid = r.datasetid AND x.dataid = r.dataid AND x.locktype = r.locktype
                    AND (r.jobid IS NULL OR (x.jobid = r.jobid AND x.run = r.run))) AS is_mine
            FROM rows r LEFT JOIN LATERAL (
                SELECT true AS found FROM dataflow.datastatus x WHERE x.datasetid = r.datasetid AND x.dataid = r.dataid AND x.locktype = r.locktype
                    AND (r.jobid IS NULL OR (x.jobid = r.jobid AND x.run = r.run)) FOR UPDATE SKIP LOCKED
            ) AS locked ON true
        )
        SELECT m.attempt FROM mine m WHERE NOT EXISTS (SELECT FROM checked c WHERE c.attempt = m.attempt AND NOT c.is_mine) ORDER BY m.attempt);
END $$;

-- Ends attempts whose daemon is gone. The caller has locked their rows. Their runs go back to the queue without spending a try; a run
-- that has lost its runner max_lost times fails.
CREATE OR REPLACE FUNCTION dataflow._lose(lost bigint[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    UPDATE dataflow.attempt a SET ended = now(), outcome = 'LOST', code = 'LOST',
        error = CASE WHEN a.lease_until IS NOT NULL THEN format('%s has neither ended it nor renewed its lease', a.daemon)
            WHEN EXISTS (SELECT FROM dataflow.daemon d WHERE d.daemon = a.daemon AND d.incarnation <> a.incarnation)
            THEN format('daemon %s was restarted; what it ran is lost', a.daemon)
            ELSE format('daemon %s stopped answering; its lease has ended', a.daemon) END
        -- A lease may have been renewed since the attempt was chosen.
        WHERE a.attempt = ANY (_lose.lost) AND a.ended IS NULL AND (a.lease_until IS NULL OR a.lease_until < clock_timestamp());
    -- Only daemons that are gone: not one that was restarted, and not an executor outside, which is no daemon.
    INSERT INTO dataflow.event (kind, scope, to_status, reason)
    SELECT 'daemon', 'daemon:' || a.daemon, 'GONE', format('%s: it left %s behind', a.daemon, dataflow._counted(count(*), 'attempt'))
    FROM dataflow.attempt a WHERE a.attempt = ANY (_lose.lost) AND a.outcome = 'LOST' AND a.lease_until IS NULL
        AND NOT EXISTS (SELECT FROM dataflow.daemon d WHERE d.daemon = a.daemon AND d.incarnation <> a.incarnation)
    GROUP BY a.daemon;
    UPDATE dataflow.datastatus s SET modified = now(),
        status = CASE WHEN a.lost + 1 >= j.max_lost THEN 'FAILED' ELSE 'RESUBMIT' END,
        code = 'LOST',
        reason = CASE WHEN a.lost + 1 >= j.max_lost THEN format('lost its runner %s times', a.lost + 1) ELSE a.error END
    FROM dataflow.attempt a JOIN dataflow.job j ON j.jobid = a.jobid JOIN dataflow.job_output o ON o.jobid = a.jobid
    WHERE a.attempt = ANY (_lose.lost) AND a.outcome = 'LOST' AND s.attempt = a.attempt
        AND s.datasetid = o.datasetid AND s.dataid = a.dataid AND s.locktype = 'OUT' AND s.status = 'RUNNING';
    UPDATE dataflow.datastatus s SET status = 'ERROR', modified = now()
    FROM dataflow.attempt a, jsonb_object_keys(a.inputs) AS i
    WHERE a.attempt = ANY (_lose.lost) AND s.datasetid = split_part(i, '/', 1) AND s.dataid = split_part(i, '/', 2)
        AND s.locktype = 'IN' AND s.jobid = a.jobid AND s.run = a.dataid AND s.attempt = a.attempt AND s.status = 'RUNNING';
END $$;

-- Takes no claim lock: the run lock keeps retake_attempts() out, and the row locks keep out everybody else.
CREATE OR REPLACE FUNCTION dataflow.rescue() RETURNS TABLE (attempt bigint, jobid text, dataid text, daemon text, tag text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    -- As in a claim: while any transaction holds an old snapshot, attempts that have ended since stay in the index as dead entries.
    oldest bigint := coalesce(nullif(current_setting('dataflow.oldest_running', true), ''), '0')::bigint;
    orphans bigint[];
BEGIN
    PERFORM dataflow._require_read_committed(), set_config('dataflow.defer', 'on', true);
    -- An expired lease alone is not enough: a session that still holds the run lock is alive. An attempt of an earlier incarnation
    -- has no lease at all.
    WITH live AS MATERIALIZED (
        SELECT a.attempt, a.jobid, a.dataid, a.daemon, a.incarnation, a.lease_until FROM dataflow.attempt a WHERE a.ended IS NULL AND a.attempt >= oldest
    ), expired AS MATERIALIZED (
        SELECT l.attempt, l.jobid, l.dataid FROM live l
        LEFT JOIN dataflow.daemon d ON d.daemon = l.daemon AND d.incarnation = l.incarnation
        -- An attempt that was begun outside has no daemon, but a lease of its own.
        WHERE CASE WHEN l.lease_until IS NOT NULL THEN l.lease_until < clock_timestamp()
            ELSE d.daemon IS NULL OR d.stopped IS NOT NULL OR d.lease_until < clock_timestamp() END
    ), free AS MATERIALIZED (
        SELECT e.attempt, pg_try_advisory_xact_lock(dataflow._run_lock(e.jobid, e.dataid)) AS is_free FROM expired e
    )
    SELECT (SELECT array_agg(f.attempt) FROM free f WHERE f.is_free),
        coalesce((SELECT min(l.attempt) FROM live l), (SELECT max(a.attempt) FROM dataflow.attempt a), 0)
    INTO orphans, oldest;
    PERFORM set_config('dataflow.oldest_running', oldest::text, false);
    IF orphans IS NULL THEN
        RETURN;
    END IF;
    -- An attempt whose chunk a person's open transaction holds is left for a later rescue.
    orphans := dataflow._lock_attempts(orphans);
    PERFORM dataflow._lose(orphans);
    RETURN QUERY SELECT a.attempt, a.jobid::text, a.dataid::text, a.daemon::text, a.tag FROM dataflow.attempt a WHERE a.attempt = ANY (orphans);
END $$;
COMMENT ON FUNCTION dataflow.rescue() IS
    'Takes back the attempts of daemons whose lease has ended and whose session is gone; returns them. How long an attempt has run does not matter';

CREATE OR REPLACE FUNCTION dataflow.cancel(jobid text, dataid text, reason text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_job(cancel.jobid);
    UPDATE dataflow.datastatus s SET status = 'FAILED', modified = now(), code = 'CANCELLED', reason = coalesce(cancel.reason, 'cancelled by ' || session_user)
        FROM dataflow.job_output o
        WHERE o.jobid = cancel.jobid AND s.datasetid = o.datasetid AND s.dataid = cancel.dataid AND s.locktype = 'OUT' AND s.status = 'RUNNING';
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE dataflow.datastatus s SET status = 'ERROR', modified = now()
        FROM dataflow.attempt a, jsonb_object_keys(a.inputs) AS i
        WHERE a.jobid = cancel.jobid AND a.dataid = cancel.dataid AND a.outcome = 'CANCELLED' AND a.ended = now()
            AND s.datasetid = split_part(i, '/', 1) AND s.dataid = split_part(i, '/', 2)
            AND s.locktype = 'IN' AND s.jobid = a.jobid AND s.run = a.dataid AND s.status = 'RUNNING';
    RETURN true;
END $$;
COMMENT ON FUNCTION dataflow.cancel(text, text, text) IS
    'Cancels the running attempt of a run: its token dies at once, the chunk goes to FAILED and waits for RESUBMIT. False: nothing was running';

CREATE OR REPLACE FUNCTION dataflow.cancelled(daemon text, incarnation uuid, attempts bigint[]) RETURNS SETOF bigint
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT n.attempt FROM unnest(attempts) AS n (attempt)
    LEFT JOIN dataflow.attempt a ON a.attempt = n.attempt AND a.daemon = cancelled.daemon AND a.incarnation = cancelled.incarnation
    WHERE a.attempt IS NULL OR a.ended IS NOT NULL
$$;
COMMENT ON FUNCTION dataflow.cancelled(text, uuid, bigint[]) IS
    'Which of these attempts the daemon has lost: it must stop them';
