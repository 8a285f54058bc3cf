-- What a runner has to know about an attempt. The fencing token opens it and is not part of it: job code could read it.

-- {"inputs": {dataset: {"dataset": {...}, "chunks": [{"dataid", "version", "location", "files", "rows", "validated"}]}},
--  "outputs": {dataset: {"dataset": {...}, "location"}}, "resolved": [{"mark", "repaired": {column: value} or null}]}
CREATE OR REPLACE FUNCTION dataflow.work_order(attempt bigint, token uuid) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
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
    mine record;
    inputs jsonb;
    outputs jsonb;
BEGIN
    SELECT a.jobid, a.dataid, a.inputs INTO mine FROM dataflow.attempt a
        WHERE a.attempt = work_order.attempt AND a.token = work_order.token AND a.ended IS NULL;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- The version that the claim has named, not the newest: what the attempt was given is what it reads.
    SELECT coalesce(jsonb_object_agg(c.datasetid, jsonb_build_object('dataset', c.dataset, 'chunks', c.chunks)), '{}') INTO inputs FROM (
        SELECT d.datasetid, dataflow._described(d) AS dataset, jsonb_agg(jsonb_build_object(
            'dataid', k.dataid, 'version', k.version, 'location', coalesce(m.location, replace(d.location, '{dataid}', k.dataid)),
            'files', m.files, 'rows', m.rows, 'validated', coalesce(s.validated, true)) ORDER BY s.sortkey, k.dataid) AS chunks
        FROM jsonb_each_text(mine.inputs) AS i
        CROSS JOIN LATERAL (
            SELECT split_part(i.key, '/', 1) AS datasetid, split_part(i.key, '/', 2) AS dataid, i.value::integer AS version
        ) AS k
        JOIN dataflow.dataset d ON d.datasetid = k.datasetid
        LEFT JOIN dataflow.datastatus s ON s.datasetid = k.datasetid AND s.dataid = k.dataid AND s.locktype = 'OUT'
        LEFT JOIN dataflow.manifest m ON m.datasetid = k.datasetid AND m.dataid = k.dataid AND m.version = k.version
        GROUP BY d.datasetid
    ) AS c;
    SELECT coalesce(jsonb_object_agg(d.datasetid, jsonb_build_object('dataset', dataflow._described(d), 'location', d.location)), '{}')
    INTO outputs
    FROM dataflow.job_output o JOIN dataflow.dataset d ON d.datasetid = o.datasetid WHERE o.jobid = mine.jobid;
    RETURN jsonb_build_object('inputs', inputs, 'outputs', outputs, 'resolved', coalesce((
        SELECT jsonb_agg(jsonb_build_object('mark', q.details ->> 'mark', 'repaired', q.resolution -> 'repaired') ORDER BY q.itemid)
        FROM dataflow.quarantine q WHERE q.jobid = mine.jobid AND q.dataid = mine.dataid AND q.is_resolved AND q.details ? 'mark'), '[]'));
END $$;
COMMENT ON FUNCTION dataflow.work_order(bigint, uuid) IS
    'All that a runner needs to know about an attempt''s inputs and outputs; NULL: the attempt is fenced, stop';

CREATE OR REPLACE FUNCTION dataflow._described(d dataflow.dataset) RETURNS jsonb
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT jsonb_build_object('name', d.datasetid, 'format', d.format, 'location', d.location, 'columns', d.columns, 'options', d.options,
        'checks', d.checks, 'publish', d.publish, 'connection', jsonb_build_object('hostname', d.hostname, 'port', d.port,
        'database', d.database, 'schemaname', d.schemaname, 'tablename', d.tablename, 'username', d.username, 'encryptedpass', d.encryptedpass))
$$;

CREATE OR REPLACE FUNCTION dataflow.code_version(jobid text, code_hash text, config_hash text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    UPDATE dataflow.job j SET code_hash = code_version.code_hash, config_hash = code_version.config_hash
        WHERE j.jobid = code_version.jobid
            AND (j.code_hash, j.config_hash) IS DISTINCT FROM (code_version.code_hash, code_version.config_hash);
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION dataflow.code_version(text, text, text) IS
    'A daemon says which code and configuration a job runs with now; what was made with others is stale. False: nothing new';
