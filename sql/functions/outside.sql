-- Runs that something else executes: a notebook, an appliance, a person.
--
-- begin_run() acts as a daemon for one statement, so the claim, the limits and the five questions are those of every daemon. The attempt
-- then has a lease of its own instead of a daemon's. No session holds its run lock, so rescue() takes it back as soon as that lease has
-- ended. The token is the fence, as for every attempt. The handle consists of the attempt's number and its token. Readers of the tables
-- do not see tokens, so they cannot make a handle.

CREATE OR REPLACE FUNCTION dataflow._parsed_handle(handle text, OUT attempt bigint, OUT token uuid)
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- The message does not repeat the text: it may be a handle with a typing error.
    IF handle IS NULL OR handle !~ '^[0-9]{1,18}[.][0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN
        RAISE EXCEPTION 'this is no handle' USING ERRCODE = 'DF400', HINT = 'give it as begin_run() or `dataflowctl begin` has returned it';
    END IF;
    attempt := split_part(handle, '.', 1)::bigint;
    token := split_part(handle, '.', 2)::uuid;
END $$;

-- The attempt that a handle names. An attempt of a daemon is not found: it has no lease of its own.
CREATE OR REPLACE FUNCTION dataflow._handled(handle text) RETURNS dataflow.attempt
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    found dataflow.attempt;
BEGIN
    SELECT a.* INTO found FROM dataflow._parsed_handle(_handled.handle) AS h JOIN dataflow.attempt a ON a.attempt = h.attempt AND a.token = h.token
        WHERE a.lease_until IS NOT NULL;
    IF found.attempt IS NULL THEN
        RAISE EXCEPTION 'there is no attempt with this handle' USING ERRCODE = 'DF404', HINT = 'begin the run again: `dataflowctl begin`';
    END IF;
    RETURN found;
END $$;

CREATE OR REPLACE FUNCTION dataflow._checked_lease(lease interval) RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF lease IS NULL OR lease < interval '1 second' OR lease > interval '30 days' THEN
        RAISE EXCEPTION 'a lease cannot be as long as %', coalesce(lease::text, 'NULL') USING ERRCODE = 'DF400',
            HINT = 'it is from 1 second to 30 days; renew_run() or `dataflowctl renew` prolongs it';
    END IF;
END $$;

-- The directory of a chunk, above those of its attempts.
CREATE OR REPLACE FUNCTION dataflow._chunk_directory(location text, dataid text) RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN strpos(p.place, '{dataid}') > 0 THEN replace(p.place, '{dataid}', dataid) ELSE p.place || '/dataid=' || dataid END
    FROM (SELECT rtrim(location, '/') AS place) AS p
$$;

-- The directory that only this attempt writes, as dataflowd.model.work_order.attempt_location computes it if the dataset's own directory is
-- the root. The database does not know the roots of hosts; a host that begins a run uses its own.
CREATE OR REPLACE FUNCTION dataflow._attempt_location(location text, dataid text, attempt bigint) RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT dataflow._chunk_directory(p.above || '/.attempts' || substr(p.place, length(p.above) + 1), dataid) || '/attempt=' || attempt
    FROM (SELECT q.place, regexp_replace(q.place, '/[^/]*[{]dataid[}].*$', '') AS above FROM (SELECT rtrim(location, '/') AS place) AS q) AS p
$$;

-- Whether a directory belongs to this attempt and no other: it is the chunk's own, with `.attempts` inserted below some root.
CREATE OR REPLACE FUNCTION dataflow._is_attempt_location(told text, location text, dataid text, attempt bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(strpos(told, '/.attempts/') > 0 AND regexp_replace(regexp_replace(told, '/[.]attempts/', '/'), '/+', '/', 'g')
        = regexp_replace(dataflow._chunk_directory(location, dataid) || '/attempt=' || attempt, '/+', '/', 'g'), false)
$$;

-- given: the work order that begin_run() has just taken; NULL: it is composed again.
CREATE OR REPLACE FUNCTION dataflow._outside_order(of_handle text, given jsonb) RETURNS TABLE (
    handle text, attempt bigint, jobid text, dataid text, number integer, tag text, lease_until timestamptz, params jsonb, outputs jsonb, work_order jsonb
)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    mine dataflow.attempt := dataflow._handled(_outside_order.of_handle);
BEGIN
    RETURN QUERY
    SELECT _outside_order.of_handle, mine.attempt, mine.jobid::text, mine.dataid::text, mine.number, mine.tag, mine.lease_until, j.params || coalesce(mine.params, '{}'),
        (SELECT coalesce(jsonb_object_agg(d.datasetid, dataflow._attempt_location(d.location, mine.dataid, mine.attempt)), '{}')
            FROM dataflow.job_output o JOIN dataflow.dataset d ON d.datasetid = o.datasetid WHERE o.jobid = mine.jobid AND d.location IS NOT NULL),
        coalesce(_outside_order.given, dataflow.attempt_order(mine.attempt, mine.token))
    FROM dataflow.job j WHERE j.jobid = mine.jobid AND mine.ended IS NULL;
END $$;

-- Takes back attempts that were begun outside and whose lease has ended: those of the job, which the run may wait for, and those of the
-- executor, which count against its limit. There may be no daemon that calls rescue().
CREATE OR REPLACE FUNCTION dataflow._rescue_outside(jobid text, executor text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    orphans bigint[];
BEGIN
    WITH expired AS MATERIALIZED (
        SELECT a.attempt, a.jobid, a.dataid FROM dataflow.attempt a
        WHERE a.ended IS NULL AND (a.jobid = _rescue_outside.jobid OR a.daemon = _rescue_outside.executor) AND a.lease_until < clock_timestamp()
    ), free AS MATERIALIZED (
        SELECT e.attempt, pg_try_advisory_xact_lock(dataflow._run_lock(e.jobid, e.dataid)) AS is_free FROM expired e
    )
    SELECT array_agg(f.attempt) INTO orphans FROM free f WHERE f.is_free;
    IF orphans IS NOT NULL THEN
        PERFORM dataflow._lose(dataflow._lock_attempts(orphans));
    END IF;
END $$;

CREATE OR REPLACE FUNCTION dataflow._begin_run(
    of_job text, of_dataid text, lease interval, environment text, executor text, prepared boolean, instead boolean
) RETURNS TABLE (
    handle text, attempt bigint, jobid text, dataid text, number integer, tag text, lease_until timestamptz, params jsonb, outputs jsonb, work_order jsonb
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    passing constant text := 'outside.' || replace(gen_random_uuid()::text, '-', '');
    born uuid;
    taken record;
BEGIN
    PERFORM dataflow._known_job(_begin_run.of_job);
    IF _begin_run.of_dataid IS NOT NULL THEN
        PERFORM dataflow._checked_dataid(_begin_run.of_dataid);
    END IF;
    PERFORM dataflow._checked_lease(_begin_run.lease);
    IF NOT dataflow._is_name(executor) THEN
        RAISE EXCEPTION 'not a name for what executes a run: %', coalesce(quote_literal(left(executor, 80)), 'NULL') USING ERRCODE = 'DF400',
            HINT = 'write a letter, then up to 62 letters, digits and _ . -';
    END IF;
    IF environment IS NULL OR prepared IS NULL THEN
        RAISE EXCEPTION 'environment and prepared cannot be NULL' USING ERRCODE = 'DF400', HINT = 'leave them out, or give a name and a boolean';
    END IF;
    IF NOT instead AND NOT EXISTS (SELECT FROM dataflow.job j WHERE j.jobid = _begin_run.of_job AND j.kind = 'outside') THEN
        RAISE EXCEPTION 'job % is executed by daemons', of_job USING ERRCODE = 'DF409',
            HINT = 'declare it with executor = "outside" in its flow, or take one run from them: `dataflowctl begin --instead`, dataflow.begin_instead()';
    END IF;
    IF EXISTS (SELECT FROM dataflow.daemon d WHERE d.daemon = executor) THEN
        RAISE EXCEPTION '% is the name of a daemon', executor USING ERRCODE = 'DF409', HINT = 'give what executes the run a name of its own';
    END IF;
    PERFORM dataflow._require_read_committed();
    -- The claim lock is held until the transaction ends. If a person left it open, all daemons would stop; the time-outs prevent that.
    PERFORM set_config(s.name, m.milliseconds, true) FROM (VALUES ('idle_in_transaction_session_timeout', '5000'), ('transaction_timeout', '60000')) AS m (name, milliseconds)
        JOIN pg_settings s ON s.name = m.name WHERE s.setting = '0' OR s.setting::bigint > m.milliseconds::bigint;
    PERFORM dataflow._rescue_outside(_begin_run.of_job, _begin_run.executor);

    INSERT INTO dataflow.daemon AS d (daemon, hostname, pid, session_pid, environment, jobs, lease, lease_until, is_outside)
    VALUES (passing, '', 0, pg_backend_pid(), _begin_run.environment, ARRAY[_begin_run.of_job], interval '1 hour', clock_timestamp() + interval '1 hour', true)
    RETURNING d.incarnation INTO born;
    -- The limit of what executes the run, daemon:<name>, is looked at under the claim lock, with all others.
    PERFORM set_config('dataflow.executor', executor, true);
    IF _begin_run.of_dataid IS NULL THEN
        SELECT c.* INTO taken FROM dataflow.claim(passing, born, 1) AS c;
    ELSE
        SELECT c.* INTO taken FROM dataflow.claim_run(passing, born, _begin_run.of_job, _begin_run.of_dataid) AS c;
    END IF;
    DELETE FROM dataflow.daemon d WHERE d.daemon = passing;
    IF taken.attempt IS NULL THEN
        RETURN;
    END IF;
    -- The run lock is not needed any more: other claims wait for this transaction, and then see the attempt.
    PERFORM pg_advisory_unlock(dataflow._run_lock(taken.jobid, taken.dataid));
    UPDATE dataflow.attempt a SET daemon = executor, started = CASE WHEN prepared THEN clock_timestamp() END,
        lease_until = clock_timestamp() + least(_begin_run.lease, make_interval(secs => taken.timeout_seconds))
        WHERE a.attempt = taken.attempt;
    RETURN QUERY SELECT o.* FROM dataflow._outside_order(format('%s.%s', taken.attempt, taken.token), dataflow.take_order(taken.attempt, taken.token)) AS o;
END $$;

CREATE OR REPLACE FUNCTION dataflow.begin_run(
    of_job text, of_dataid text DEFAULT NULL, lease interval DEFAULT '1 hour', environment text DEFAULT 'dev', executor text DEFAULT 'outside',
    prepared boolean DEFAULT true
) RETURNS TABLE (
    handle text, attempt bigint, jobid text, dataid text, number integer, tag text, lease_until timestamptz, params jsonb, outputs jsonb, work_order jsonb
)
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT * FROM dataflow._begin_run(of_job, of_dataid, lease, environment, executor, prepared, false) $$;
COMMENT ON FUNCTION dataflow.begin_run(text, text, interval, text, text, boolean) IS
    'Claims the next run, or a named one, of a job that something else executes (executor = "outside"), within every limit; no row: nothing may run now. Keep the handle secret, renew_run() before lease_until, and end_run(). outputs says where this attempt alone writes. prepared => false: started is set by the first renew_run()';

CREATE OR REPLACE FUNCTION dataflow.begin_instead(
    of_job text, of_dataid text DEFAULT NULL, lease interval DEFAULT '1 hour', environment text DEFAULT 'dev', executor text DEFAULT 'outside',
    prepared boolean DEFAULT true
) RETURNS TABLE (
    handle text, attempt bigint, jobid text, dataid text, number integer, tag text, lease_until timestamptz, params jsonb, outputs jsonb, work_order jsonb
)
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT * FROM dataflow._begin_run(of_job, of_dataid, lease, environment, executor, prepared, true) $$;
COMMENT ON FUNCTION dataflow.begin_instead(text, text, interval, text, text, boolean) IS
    'begin_run() also for a job that daemons execute: this one run is executed outside instead';

CREATE OR REPLACE FUNCTION dataflow.run_order(of_handle text) RETURNS TABLE (
    handle text, attempt bigint, jobid text, dataid text, number integer, tag text, lease_until timestamptz, params jsonb, outputs jsonb, work_order jsonb
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT * FROM dataflow._outside_order(run_order.of_handle, NULL) $$;
COMMENT ON FUNCTION dataflow.run_order(text) IS 'Returns again what begin_run() has returned; no row: the attempt has lost its claim, stop';

CREATE OR REPLACE FUNCTION dataflow.renew_run(handle text, lease interval DEFAULT '1 hour') RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    mine dataflow.attempt := dataflow._handled(renew_run.handle);
    until timestamptz;
BEGIN
    PERFORM dataflow._checked_lease(renew_run.lease);
    -- An attempt whose lease has ended can still be renewed, as long as rescue() has not taken it back.
    UPDATE dataflow.attempt a SET started = coalesce(a.started, clock_timestamp()),
        lease_until = least(clock_timestamp() + renew_run.lease, a.claimed + j.timeout)
        FROM dataflow.job j WHERE a.attempt = mine.attempt AND a.token = mine.token AND a.ended IS NULL AND j.jobid = a.jobid
        RETURNING a.lease_until INTO until;
    RETURN until;
END $$;
COMMENT ON FUNCTION dataflow.renew_run(text, interval) IS
    'Prolongs the lease of an attempt that begin_run() made, at most until the job''s timeout; NULL: the attempt has lost its claim, stop and throw its output away';

-- Checks what the executor reports of its outputs. They lie in the attempt's own directories: below a root of the host that began the run, or
-- where begin_run() says.
CREATE OR REPLACE FUNCTION dataflow._told_outputs(mine dataflow.attempt, told jsonb, rows bigint) RETURNS jsonb
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    names text[] := ARRAY(SELECT o.datasetid::text FROM dataflow.job_output o WHERE o.jobid = mine.jobid ORDER BY o.datasetid);
    wrong text;
    made jsonb;
BEGIN
    SELECT t INTO wrong FROM jsonb_object_keys(told) AS t WHERE t <> ALL (names) LIMIT 1;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'job % has no output %', mine.jobid, left(wrong, 80) USING ERRCODE = 'DF400', HINT = format('its outputs are %s', array_to_string(names, ', '));
    END IF;
    SELECT format('%s.%s', t.key, k) INTO wrong FROM jsonb_each(told) AS t CROSS JOIN LATERAL jsonb_object_keys(t.value) AS k
        WHERE k <> ALL ('{location,files,bytes,rows,columns,fingerprint}') LIMIT 1;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'an output has no %', left(wrong, 120) USING ERRCODE = 'DF400', HINT = 'tell location, files, bytes, rows, columns and fingerprint';
    END IF;
    IF rows IS NOT NULL AND cardinality(names) <> 1 THEN
        RAISE EXCEPTION 'it is not clear of which output of job % these are the rows: %', mine.jobid, array_to_string(names, ', ') USING ERRCODE = 'DF400',
            HINT = format('tell them by name: {"outputs": {"%s": {"rows": %s}}}', names[1], rows);
    END IF;
    SELECT jsonb_object_agg(d.datasetid, coalesce(told -> d.datasetid, '{}') || jsonb_strip_nulls(jsonb_build_object('rows', rows))
        || jsonb_build_object('location', CASE WHEN d.location IS NOT NULL
            THEN coalesce(told -> d.datasetid ->> 'location', dataflow._attempt_location(d.location, mine.dataid, mine.attempt)) END))
    INTO made FROM unnest(names) AS n JOIN dataflow.dataset d ON d.datasetid = n;
    SELECT d.datasetid::text INTO wrong FROM unnest(names) AS n JOIN dataflow.dataset d ON d.datasetid = n
        WHERE d.location IS NOT NULL AND NOT dataflow._is_attempt_location(made -> d.datasetid ->> 'location', d.location, mine.dataid, mine.attempt) ORDER BY 1 LIMIT 1;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'what is told as the location of output % is not the directory of this attempt', wrong USING ERRCODE = 'DF400',
            HINT = 'leave it out, or tell where `dataflowctl begin` had it written';
    END IF;
    -- Readers compare the files on the disk with the files of the manifest.
    SELECT d.datasetid::text INTO wrong FROM unnest(names) AS n JOIN dataflow.dataset d ON d.datasetid = n
        WHERE dataflow._is_files(d.format) AND d.location ~ '^(/|file:)'
            AND jsonb_typeof(made -> d.datasetid -> 'files') IS DISTINCT FROM 'array' ORDER BY 1 LIMIT 1;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'the files of output % are not told', wrong USING ERRCODE = 'DF400',
            HINT = format('tell {"outputs": {"%s": {"files": [{"path": "part-1.csv", "bytes": 9000}]}}}; `dataflowctl end` looks for them itself', wrong);
    END IF;
    RETURN made;
END $$;

-- The first declared check without a result; NULL: all have one. A check by column has one result for each column: not_null(a).
CREATE OR REPLACE FUNCTION dataflow._untold_check(jobid text, told jsonb) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('%s of output %s', c.name, d.datasetid)
    FROM dataflow.job_output o JOIN dataflow.dataset d ON d.datasetid = o.datasetid CROSS JOIN LATERAL jsonb_object_keys(d.checks) AS c (name)
    WHERE o.jobid = _untold_check.jobid AND NOT EXISTS (
        SELECT FROM jsonb_array_elements(told) AS t
        WHERE t ->> 'dataset' = d.datasetid AND split_part(t ->> 'name', '(', 1) = c.name AND jsonb_typeof(t -> 'passed') = 'boolean')
    ORDER BY 1 LIMIT 1
$$;

CREATE OR REPLACE FUNCTION dataflow.end_run(
    handle text, outcome text, reason text DEFAULT NULL, rows bigint DEFAULT NULL, result jsonb DEFAULT '{}'
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    known constant text[] := '{outputs,checks,nodes,quarantine,usage,code,remedy,retry,retry_after,code_hash,config_hash,applied,found}';
    mine dataflow.attempt := dataflow._handled(end_run.handle);
    wrong text;
    told jsonb;
    given jsonb := coalesce(end_run.result, '{}');
    ending text := end_run.outcome;
    failure text := left(end_run.reason, 20000);
    broken text;
BEGIN
    IF ending IS NULL OR ending NOT IN ('DONE', 'FAILED', 'RETURNED') THEN
        RAISE EXCEPTION 'a run cannot end as %', coalesce(quote_literal(left(ending, 40)), 'NULL') USING ERRCODE = 'DF400', HINT = 'outcome is DONE, FAILED or RETURNED';
    END IF;
    IF jsonb_typeof(given) <> 'object' THEN
        RAISE EXCEPTION 'the result is no object' USING ERRCODE = 'DF400', HINT = format('its keys are %s', array_to_string(known, ', '));
    END IF;
    SELECT k INTO wrong FROM jsonb_object_keys(given) AS k WHERE k <> ALL (known) LIMIT 1;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'a result has no %', left(wrong, 80) USING ERRCODE = 'DF400', HINT = format('its keys are %s', array_to_string(known, ', '));
    END IF;
    IF given ->> 'code' !~ '^[A-Z][A-Z0-9_]{0,62}$' THEN
        RAISE EXCEPTION 'not a code: %', left(given ->> 'code', 80) USING ERRCODE = 'DF400', HINT = 'write it as BAD_FEED: capital letters, digits and _';
    END IF;
    IF jsonb_typeof(coalesce(given -> 'outputs', '{}')) <> 'object' OR jsonb_typeof(coalesce(given -> 'checks', '[]')) <> 'array'
        OR EXISTS (SELECT FROM jsonb_each(given -> 'outputs') AS o WHERE jsonb_typeof(o.value) <> 'object') THEN
        RAISE EXCEPTION 'the result cannot be read' USING ERRCODE = 'DF400',
            HINT = 'it is like {"outputs": {"clean": {"rows": 12}}, "checks": [{"dataset": "clean", "name": "min_rows", "passed": true}]}';
    END IF;
    IF rows < 0 THEN
        RAISE EXCEPTION 'not a number of rows: %', rows USING ERRCODE = 'DF400', HINT = 'it is 0 or more';
    END IF;
    IF ending = 'FAILED' AND failure IS NULL THEN
        RAISE EXCEPTION 'a run that has failed needs a reason' USING ERRCODE = 'DF400', HINT = 'others will read it';
    END IF;
    IF ending = 'DONE' AND mine.ended IS NULL THEN
        told := dataflow._told_outputs(mine, coalesce(given -> 'outputs', '{}'), rows);
        wrong := dataflow._untold_check(mine.jobid, coalesce(given -> 'checks', '[]'));
        IF wrong IS NOT NULL THEN
            RAISE EXCEPTION 'no result is told of the check %', wrong USING ERRCODE = 'DF400',
                HINT = 'tell {"checks": [{"dataset", "name", "passed", "observed", "expected"}]}; `dataflowctl end` judges those that the number of rows decides';
        END IF;
        SELECT string_agg(format('%s: %s: observed %s, expected %s', c ->> 'dataset', c ->> 'name', c ->> 'observed', c ->> 'expected'), '; ') INTO broken
            FROM jsonb_array_elements(given -> 'checks') AS c WHERE (c ->> 'passed')::boolean IS NOT TRUE AND coalesce(c ->> 'severity', 'error') = 'error';
        IF broken IS NOT NULL THEN
            ending := 'FAILED';
            failure := broken;
            given := given || '{"code": "CHECK_FAILED"}';
        END IF;
    END IF;
    BEGIN
        RETURN (
            SELECT f.verdict FROM dataflow.finish(jsonb_build_array(
                jsonb_build_object('config_hash', (SELECT j.config_hash FROM dataflow.job j WHERE j.jobid = mine.jobid AND j.kind = 'outside')) || given
                || jsonb_build_object('attempt', mine.attempt, 'token', mine.token, 'outcome', ending, 'error', failure, 'outputs', coalesce(told, '{}'),
                    'started', CASE WHEN ending = 'DONE' THEN coalesce(mine.started, mine.claimed) END))) AS f);
    EXCEPTION WHEN data_exception OR integrity_constraint_violation THEN
        RAISE EXCEPTION 'the result holds a value that cannot be stored: %', SQLERRM USING ERRCODE = 'DF400', HINT = 'correct it; nothing has changed';
    END;
END $$;
COMMENT ON FUNCTION dataflow.end_run(text, text, text, bigint, jsonb) IS
    'Ends an attempt that begin_run() made: DONE publishes what lies in its directories, FAILED needs a reason, RETURNED gives the run back. rows: of the only output; result: as finish() takes it. Returns accepted; fenced (it has lost its claim: throw its output away); busy (somebody has its rows locked: call it again)';
