-- A chunk that comes from outside has no manifest, so each version is measured once: by the program that registers it, if it can see the
-- files, else by the first host that reads it successfully. A later attempt that finds something else is refused.
--
-- Only chunks whose location contains {dataid} are measured: a location that several chunks share changes when any of them comes.

CREATE OR REPLACE FUNCTION dataflow._is_measured(d dataflow.dataset) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT coalesce(strpos(d.location, '{dataid}') > 0 AND dataflow._is_files(d.format), false) $$;

CREATE OR REPLACE FUNCTION dataflow.measures(datasetid text, OUT is_measured boolean, OUT digest boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_dataset(measures.datasetid);
    SELECT dataflow._is_measured(d), d.digest INTO is_measured, digest FROM dataflow.dataset d WHERE d.datasetid = measures.datasetid;
END $$;
COMMENT ON FUNCTION dataflow.measures(text) IS
    'Whether chunks of a dataset are measured when they are registered from outside, and whether a digest of their files is part of it';

CREATE OR REPLACE FUNCTION dataflow.note_found(datasetid text, measured jsonb) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    noted bigint;
BEGIN
    PERFORM dataflow._known_dataset(note_found.datasetid);
    IF jsonb_typeof(note_found.measured) IS DISTINCT FROM 'object' OR EXISTS (
        SELECT FROM jsonb_each(note_found.measured) AS f WHERE NOT coalesce(jsonb_typeof(f.value) = 'object' AND jsonb_typeof(f.value -> 'files') = 'number' AND jsonb_typeof(f.value -> 'bytes') = 'number', false)) THEN
        RAISE EXCEPTION 'no measurements: %', coalesce(quote_literal(left(note_found.measured::text, 140)), 'NULL') USING ERRCODE = 'DF400',
            HINT = '{"2026-01-31": {"files": 1, "bytes": 1024, "modified": "2026-01-31T05:00:00.000+00:00"}}';
    END IF;
    INSERT INTO dataflow.measurement AS m (datasetid, dataid, version, found)
    SELECT s.datasetid, s.dataid, s.version, f.value
    FROM jsonb_each(note_found.measured) AS f
    JOIN dataflow.dataset d ON d.datasetid = note_found.datasetid AND dataflow._is_measured(d)
    JOIN dataflow.datastatus s ON s.datasetid = d.datasetid AND s.dataid = f.key AND s.locktype = 'OUT' AND s.status = 'READY' AND s.external
    WHERE NOT EXISTS (SELECT FROM dataflow.batch b WHERE b.datasetid = s.datasetid AND b.dataid = s.dataid)
    ORDER BY s.dataid
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS noted = ROW_COUNT;
    RETURN noted;
END $$;
COMMENT ON FUNCTION dataflow.note_found(text, jsonb) IS
    'Stores what was measured at the locations of chunks that were just registered, by dataid; returns how many. An earlier measurement of the same version stays. Hosts compare with it before each use';

-- Stores what the first successful attempt found of versions that nobody had measured. `found` comes from dataflowd.storage.evidence.
CREATE OR REPLACE FUNCTION dataflow._note_first_use(results jsonb, accepted bigint[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO dataflow.measurement AS m (datasetid, dataid, version, found, measured_by)
    SELECT DISTINCT ON (s.datasetid, s.dataid, s.version) s.datasetid, s.dataid, s.version,
        jsonb_strip_nulls(jsonb_build_object('files', l.value -> 'files', 'bytes', l.value -> 'bytes', 'modified', l.value -> 'modified', 'digest', l.value -> 'digest')), a.daemon
    FROM jsonb_to_recordset(results) AS r (attempt bigint, found jsonb)
    JOIN dataflow.attempt a ON a.attempt = r.attempt AND a.outcome = 'DONE'
    CROSS JOIN LATERAL jsonb_each(CASE jsonb_typeof(r.found -> 'inputs') WHEN 'object' THEN r.found -> 'inputs' ELSE '{}' END) AS i
    CROSS JOIN LATERAL jsonb_array_elements(CASE jsonb_typeof(i.value -> 'listed') WHEN 'array' THEN i.value -> 'listed' ELSE '[]' END) AS l
    JOIN dataflow.dataset d ON d.datasetid = i.key AND dataflow._is_measured(d)
    JOIN dataflow.datastatus s ON s.datasetid = d.datasetid AND s.dataid = l.value ->> 'dataid' AND s.locktype = 'OUT' AND s.external
        AND s.version = (a.inputs ->> (i.key || '/' || s.dataid))::integer
    WHERE r.attempt = ANY (accepted)
        AND NOT EXISTS (SELECT FROM dataflow.batch b WHERE b.datasetid = s.datasetid AND b.dataid = s.dataid)
        AND NOT EXISTS (SELECT FROM dataflow.measurement k WHERE k.datasetid = s.datasetid AND k.dataid = s.dataid AND k.version = s.version)
    ORDER BY s.datasetid, s.dataid, s.version
    ON CONFLICT DO NOTHING;
END $$;

-- work_order(), and what the host has to compare with the files: for a dataset "digest": true; for a chunk "measured", "judged", and
-- "not_older": its newest file must not be older than this moment. Hosts of release 0.1 know none of these.
CREATE OR REPLACE FUNCTION dataflow.attempt_order(attempt bigint, token uuid) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER
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
    given constant jsonb := dataflow.work_order(attempt_order.attempt, attempt_order.token);
    inputs jsonb;
    outputs jsonb;
BEGIN
    IF given IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT jsonb_object_agg(i.key, jsonb_build_object(
        'dataset', (i.value -> 'dataset') || CASE WHEN d.digest THEN '{"digest": true}'::jsonb ELSE '{}' END,
        'chunks', (
            SELECT coalesce(jsonb_agg(c.value || jsonb_strip_nulls(jsonb_build_object('measured', m.found, 'judged', j.passed, 'not_older',
                CASE WHEN d.expect_newer THEN to_char(dataflow._moment(c.value ->> 'dataid') AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.000"+00:00"') END)) ORDER BY c.ordinality), '[]')
            FROM jsonb_array_elements(i.value -> 'chunks') WITH ORDINALITY AS c
            LEFT JOIN dataflow.measurement m ON m.datasetid = d.datasetid AND m.dataid = c.value ->> 'dataid' AND m.version = (c.value ->> 'version')::integer
            LEFT JOIN dataflow.judgement j ON j.datasetid = d.datasetid AND j.dataid = c.value ->> 'dataid' AND j.version = (c.value ->> 'version')::integer)))
    INTO inputs FROM jsonb_each(given -> 'inputs') AS i JOIN dataflow.dataset d ON d.datasetid = coalesce(i.value #>> '{dataset,stored_as}', i.key);
    SELECT jsonb_object_agg(o.key, o.value || jsonb_build_object('dataset', (o.value -> 'dataset') || CASE WHEN d.digest THEN '{"digest": true}'::jsonb ELSE '{}' END))
    INTO outputs FROM jsonb_each(given -> 'outputs') AS o JOIN dataflow.dataset d ON d.datasetid = coalesce(o.value #>> '{dataset,stored_as}', o.key);
    RETURN given || jsonb_build_object('inputs', coalesce(inputs, '{}'), 'outputs', coalesce(outputs, '{}'));
END $$;
COMMENT ON FUNCTION dataflow.attempt_order(bigint, uuid) IS
    'All that a runner needs to know about an attempt''s inputs and outputs, and what it must find there; NULL: the attempt is fenced, stop';
