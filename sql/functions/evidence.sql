-- The evidence of attempts: what each was given, from where, who had made it, and what its host found there.
--
-- It is not written on the hot path, but when the attempt gets its order, and with the details of its result. Of very many input
-- chunks only the first are listed and the others are counted, so that a row stays small; `attempt.inputs` has the version of each.

CREATE OR REPLACE FUNCTION dataflow.take_order(attempt bigint, token uuid) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    told_at_most constant integer := 65536;
    given constant jsonb := dataflow.attempt_order(take_order.attempt, take_order.token);
    known jsonb;
    listed integer;
BEGIN
    IF given IS NULL THEN
        RETURN NULL;
    END IF;
    FOREACH listed IN ARRAY ARRAY[50, 5, 0] LOOP
        known := dataflow._given(take_order.attempt, listed);
        EXIT WHEN octet_length(known::text) <= told_at_most;
    END LOOP;
    INSERT INTO dataflow.evidence AS e (attempt, told) VALUES (take_order.attempt, known)
    ON CONFLICT ON CONSTRAINT evidence_pkey DO UPDATE SET told = e.told || excluded.told;
    RETURN given;
END $$;
COMMENT ON FUNCTION dataflow.take_order(bigint, uuid) IS
    'attempt_order(), and stores as evidence what the attempt is told and where its inputs come from; NULL: the attempt is fenced, stop';

-- {"at", "daemon", "hostname", "environment", "version", "flow", "params",
--  "inputs": {dataset: {"place", "chunks", "listed": [{"dataid", "version", "status", "location", "files", "bytes", "rows", "by", "at",
--      "validated", "registered": {what was measured at its registration}, "checks": [{"name", "passed", "observed", "expected"}], "lock"}]}},
--  "outputs": {dataset: {"place", "lock"}}}
CREATE OR REPLACE FUNCTION dataflow._given(attempt bigint, listed integer) RETURNS jsonb
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_material = off
SET enable_memoize = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    checks_at_most constant integer := 20;
    a dataflow.attempt;
    inputs jsonb;
    outputs jsonb;
BEGIN
    SELECT x.* INTO a FROM dataflow.attempt x WHERE x.attempt = _given.attempt;
    SELECT coalesce(jsonb_object_agg(i.datasetid, jsonb_build_object('place', dataflow._place(d, NULL), 'chunks', c.chunks, 'listed', c.listed)), '{}') INTO inputs
    FROM dataflow.job_input i
    JOIN dataflow.dataset d ON d.datasetid = i.datasetid
    CROSS JOIN LATERAL (
        SELECT count(*) AS chunks, coalesce(jsonb_agg(e.entry ORDER BY k.place) FILTER (WHERE e.entry IS NOT NULL), '[]') AS listed
        FROM (
            SELECT split_part(g.key, '/', 2) AS dataid, g.value::integer AS version, row_number() OVER (ORDER BY g.key) AS place
            FROM jsonb_each_text(a.inputs) AS g WHERE split_part(g.key, '/', 1) = i.datasetid
        ) AS k
        LEFT JOIN LATERAL (
            SELECT jsonb_strip_nulls(jsonb_build_object('dataid', k.dataid, 'version', k.version, 'status', s.status,
                'location', coalesce(m.location, dataflow._place(d, k.dataid)),
                'files', jsonb_array_length(m.files), 'bytes', m.bytes, 'rows', m.rows, 'validated', s.validated, 'registered', r.found,
                'by', o.who, 'at', o.at,
                'checks', (
                    SELECT jsonb_agg(jsonb_build_object('name', r.name, 'passed', r.passed, 'observed', left(r.observed, 100), 'expected', left(r.expected, 100)) ORDER BY r.name)
                    FROM (SELECT x.* FROM dataflow.check_result x WHERE x.attempt = coalesce(m.attempt, g.attempt) AND x.datasetid = i.datasetid ORDER BY x.name LIMIT checks_at_most) AS r),
                'lock', (
                    SELECT format('IN %s by %s/%s, version %s', l.status, l.jobid, l.run, l.version) FROM dataflow.datastatus l
                    WHERE l.datasetid = i.datasetid AND l.dataid = k.dataid AND l.locktype = 'IN' AND l.jobid = a.jobid AND l.run = a.dataid))) AS entry
            FROM (SELECT) AS one
            LEFT JOIN dataflow.datastatus s ON s.datasetid = i.datasetid AND s.dataid = k.dataid AND s.locktype = 'OUT'
            LEFT JOIN dataflow.manifest m ON m.datasetid = i.datasetid AND m.dataid = k.dataid AND m.version = k.version
            LEFT JOIN dataflow.measurement r ON r.datasetid = i.datasetid AND r.dataid = k.dataid AND r.version = k.version
            LEFT JOIN dataflow.judgement g ON g.datasetid = i.datasetid AND g.dataid = k.dataid AND g.version = k.version
            LEFT JOIN LATERAL dataflow._maker(i.datasetid, k.dataid, s.jobid, m.attempt, NULL) AS o ON true
            WHERE k.place <= _given.listed
        ) AS e ON true
    ) AS c
    WHERE i.jobid = a.jobid;
    SELECT coalesce(jsonb_object_agg(o.datasetid, jsonb_strip_nulls(jsonb_build_object(
        'place', CASE WHEN d.location IS NULL THEN dataflow._place(d, a.dataid) ELSE replace(dataflow._written_to(d), '{dataid}', a.dataid) END,
        'lock', 'OUT ' || s.status || ' by attempt ' || s.attempt))), '{}') INTO outputs
    FROM dataflow.job_output o
    JOIN dataflow.dataset d ON d.datasetid = o.datasetid
    LEFT JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = a.dataid AND s.locktype = 'OUT'
    WHERE o.jobid = a.jobid;
    RETURN (
        SELECT jsonb_strip_nulls(jsonb_build_object('at', clock_timestamp(), 'daemon', a.daemon, 'hostname', d.hostname, 'environment', d.environment,
            'version', d.version, 'flow', nullif(j.flow, ''), 'params', nullif(dataflow._without_secrets(j.params || coalesce(a.params, '{}')), '{}'),
            'inputs', inputs, 'outputs', outputs))
        FROM dataflow.job j LEFT JOIN dataflow.daemon d ON d.daemon = a.daemon AND d.incarnation = a.incarnation WHERE j.jobid = a.jobid);
END $$;

-- Who made or registered the version of a chunk, and when. until: the last one at that moment; NULL: now.
CREATE OR REPLACE FUNCTION dataflow._maker(datasetid text, dataid text, jobid text, attempt bigint, until timestamptz, OUT who text, OUT at timestamptz)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    IF _maker.attempt IS NOT NULL THEN
        SELECT format('attempt %s of %s on %s', a.number, a.jobid, a.daemon), a.ended INTO who, at FROM dataflow.attempt a WHERE a.attempt = _maker.attempt;
    ELSE
        SELECT e.actor || coalesce(' with ' || nullif(e.application, ''), ''), e.at INTO who, at FROM dataflow.event e
            WHERE e.jobid = coalesce(_maker.jobid, '') AND e.dataid = _maker.dataid AND e.datasetid = _maker.datasetid AND e.kind = 'status'
                AND (e.to_status = 'READY' OR e.code = 'NEW_VERSION') AND (_maker.until IS NULL OR e.at <= _maker.until)
            ORDER BY e.event DESC LIMIT 1;
    END IF;
END $$;

-- What a name of a secret has in it: dataflowd.model.masking has the same list, see tests/sql/test_rules.py.
CREATE OR REPLACE FUNCTION dataflow._secret_names() RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT '(password|passwd|passphrase|secret|token|private[_-]?key|access[_-]?key|api[_-]?key|credential|encryptedpass)' $$;

-- For history and evidence: masks values whose names look like secrets, and passwords in URLs, as dataflowd.model.masking does.
CREATE OR REPLACE FUNCTION dataflow._without_secrets(value jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN CASE jsonb_typeof(_without_secrets.value)
        WHEN 'object' THEN coalesce((
            SELECT jsonb_object_agg(e.key, CASE
                WHEN e.key ~* dataflow._secret_names() THEN '"***"'::jsonb
                ELSE dataflow._without_secrets(e.value) END)
            FROM jsonb_each(_without_secrets.value) AS e), '{}')
        WHEN 'array' THEN coalesce((
            SELECT jsonb_agg(dataflow._without_secrets(e.value) ORDER BY e.ordinality)
            FROM jsonb_array_elements(_without_secrets.value) WITH ORDINALITY AS e), '[]')
        WHEN 'string' THEN to_jsonb(regexp_replace(_without_secrets.value #>> '{}', '([a-z0-9+.-]+://[^[:space:]:/@]*:)[^[:space:]]+@', E'\\1***@', 'gi'))
        ELSE _without_secrets.value END;
END $$;

-- A daemon tells here that the code of an attempt runs, and what the host found before: both are kept even if the daemon dies or the attempt is
-- cancelled. An attempt that ends before the daemon has told it tells the same with its result.
CREATE OR REPLACE FUNCTION dataflow.began(attempt bigint, token uuid, seconds double precision, host_found jsonb) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    UPDATE dataflow.attempt a SET started = dataflow._start(a.claimed, began.seconds)
        WHERE a.attempt = began.attempt AND a.token = began.token AND a.ended IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM dataflow._record_found(jsonb_build_array(jsonb_build_object('attempt', began.attempt, 'found', began.host_found)), ARRAY[began.attempt]);
    RETURN true;
END $$;
COMMENT ON FUNCTION dataflow.began(bigint, uuid, double precision, jsonb) IS
    'Records that the job''s own code began so many seconds ago, and what the host had found before (see dataflow.evidence), or NULL; false: the attempt is fenced, stop';

-- What the host found, for attempts whose results were accepted. The daemon limits its size; of anything larger only the size is kept.
CREATE OR REPLACE FUNCTION dataflow._record_found(results jsonb, accepted bigint[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    found_at_most constant integer := 65536;
BEGIN
    INSERT INTO dataflow.evidence AS e (attempt, found)
    SELECT r.attempt, CASE WHEN octet_length(r.found::text) <= found_at_most THEN r.found ELSE jsonb_build_object('left_out', octet_length(r.found::text)) END
    FROM jsonb_to_recordset(results) AS r (attempt bigint, found jsonb)
    WHERE r.attempt = ANY (accepted) AND jsonb_typeof(r.found) = 'object'
    ON CONFLICT ON CONSTRAINT evidence_pkey DO UPDATE SET found = excluded.found;
END $$;
