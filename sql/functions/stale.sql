-- Which published chunks were made by force, and which are not up to date.

-- The inputs that a forced attempt did not get although its mapping names them. NULL: it got everything.
CREATE OR REPLACE FUNCTION dataflow._not_given(a dataflow.attempt) RETURNS text[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT array_agg(q.datasetid || '/' || q.dataid ORDER BY q.datasetid, dataflow.sortkey(q.dataid))
    FROM dataflow._inputs(a.jobid, a.dataid) AS q
    WHERE a.forced AND NOT (a.answers ->> 'ready')::boolean AND q.dataid IS NOT NULL AND NOT a.inputs ? (q.datasetid || '/' || q.dataid)
$$;

-- The inputs of an attempt whose versions were made by force. NULL: none.
CREATE OR REPLACE FUNCTION dataflow._forced_inputs(inputs jsonb) RETURNS text[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT array_agg(i.key ORDER BY i.key) FROM jsonb_each_text(_forced_inputs.inputs) AS i
    JOIN dataflow.manifest m ON m.datasetid = split_part(i.key, '/', 1) AND m.dataid = split_part(i.key, '/', 2) AND m.version = i.value::integer
    JOIN dataflow.attempt a ON a.attempt = m.attempt
    WHERE a.forced
$$;

CREATE OR REPLACE VIEW dataflow.forced AS
SELECT m.datasetid::text, m.dataid::text, a.jobid::text, m.version, a.attempt, m.published, dataflow._not_given(a) AS missing
FROM dataflow.attempt a
JOIN dataflow.manifest m ON m.attempt = a.attempt
JOIN dataflow.datastatus s ON s.datasetid = m.datasetid AND s.dataid = m.dataid AND s.locktype = 'OUT' AND s.manifest = m.version AND s.status = 'READY'
WHERE a.forced;
COMMENT ON VIEW dataflow.forced IS 'READY chunks whose version was made by force';
COMMENT ON COLUMN dataflow.forced.missing IS 'The inputs that the version was made without; NULL: it was made of all inputs';

-- A chunk is stale if other code or configuration than that of now made it and nobody has accepted it, if one of its inputs was
-- published again since, or if it was made by force without an input that is there now.
CREATE OR REPLACE VIEW dataflow.stale AS
SELECT s.datasetid::text, s.dataid::text, s.jobid, s.version, a.attempt,
    array_remove(ARRAY[
        CASE WHEN other.code THEN 'CODE' END,
        CASE WHEN other.configuration THEN 'CONFIGURATION' END,
        CASE WHEN newer.input IS NOT NULL THEN 'INPUT' END
    ], NULL) AS because,
    newer.input,
    CASE WHEN other.code THEN (
        SELECT array_agg(d.part ORDER BY d.part)
        FROM dataflow.job_code was
        JOIN dataflow.job_code runs ON runs.jobid = was.jobid AND runs.code_hash = j.code_hash
        CROSS JOIN LATERAL (
            SELECT coalesce(o.key, n.key) || CASE WHEN n.key IS NULL THEN ' (gone)' WHEN o.key IS NULL THEN ' (new)' ELSE '' END AS part
            FROM jsonb_each_text(was.parts) AS o FULL JOIN jsonb_each_text(runs.parts) AS n ON n.key = o.key
            WHERE o.value IS DISTINCT FROM n.value
        ) AS d
        WHERE was.jobid = j.jobid AND was.code_hash = coalesce(k.same_as, a.code_hash)
    ) END AS changed
FROM dataflow.datastatus s
JOIN dataflow.job j ON j.jobid = s.jobid
JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest
JOIN dataflow.attempt a ON a.attempt = m.attempt
LEFT JOIN dataflow.job_code k ON k.jobid = a.jobid AND k.code_hash = a.code_hash
LEFT JOIN dataflow.acceptance c ON c.datasetid = m.datasetid AND c.dataid = m.dataid AND c.version = m.version
CROSS JOIN LATERAL (SELECT
    coalesce(k.same_as, a.code_hash) <> j.code_hash AND c.code_hash IS DISTINCT FROM j.code_hash AS code,
    a.config_hash <> j.config_hash AND c.config_hash IS DISTINCT FROM j.config_hash AS configuration
) AS other
LEFT JOIN LATERAL (
    SELECT min(i.key) AS input FROM jsonb_each_text(a.inputs) AS i
    JOIN dataflow.datastatus p ON p.datasetid = split_part(i.key, '/', 1) AND p.dataid = split_part(i.key, '/', 2) AND p.locktype = 'OUT'
    WHERE p.version > i.value::int
) AS changed ON true
LEFT JOIN LATERAL (
    SELECT min(n.input) AS input FROM unnest(dataflow._not_given(a)) AS n (input)
    JOIN dataflow.datastatus p ON p.datasetid = split_part(n.input, '/', 1) AND p.dataid = split_part(n.input, '/', 2) AND p.locktype = 'OUT'
    WHERE a.forced AND p.status = 'READY'
) AS arrived ON true
CROSS JOIN LATERAL (SELECT least(changed.input, arrived.input) AS input) AS newer
WHERE s.locktype = 'OUT' AND s.status = 'READY'
    AND (other.code OR other.configuration OR newer.input IS NOT NULL);
COMMENT ON VIEW dataflow.stale IS
    'READY chunks that were made by other code or configuration than the job has now, from inputs that were published again since, or by force without an input that is READY now';
COMMENT ON COLUMN dataflow.stale.because IS 'CODE, CONFIGURATION, INPUT';
COMMENT ON COLUMN dataflow.stale.input IS 'The first input that is newer than the version, or that was missing then';
COMMENT ON COLUMN dataflow.stale.changed IS 'The files, functions and constants of the code that changed since: jobs.py:clean. NULL: the code has not changed, or the parts are not known';
