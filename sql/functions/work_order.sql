-- What a runner needs to know about an attempt. The caller proves its claim with the token. The order does not contain the token, because
-- job code can read the order.

-- {"inputs": {dataset: {"dataset": {...}, "chunks": [{"dataid", "version", "location", "files", "rows", "validated",
--  "batch": {"columns", "bounds"} or null}]}},
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
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    mine record;
BEGIN
    SELECT a.jobid, a.dataid, a.inputs, a.forced INTO mine FROM dataflow.attempt a
        WHERE a.attempt = work_order.attempt AND a.token = work_order.token AND a.ended IS NULL;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN dataflow._order(mine.jobid, mine.dataid, mine.inputs) || jsonb_build_object('forced', mine.forced)
        || coalesce((SELECT jsonb_build_object('config_hash', j.config_hash) FROM dataflow.job_like l JOIN dataflow.job j ON j.jobid = l.jobid WHERE l.jobid = mine.jobid), '{}')
        || coalesce((SELECT jsonb_build_object('replay', r) FROM dataflow._row_replay(work_order.attempt) AS r WHERE r IS NOT NULL), '{}');
END $$;
COMMENT ON FUNCTION dataflow.work_order(bigint, uuid) IS
    'All that a runner needs to know about an attempt''s inputs and outputs; NULL: the attempt is fenced, stop';

CREATE OR REPLACE FUNCTION dataflow.preview_order(jobid text, dataid text) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    inputs jsonb;
BEGIN
    PERFORM dataflow._known_job(preview_order.jobid);
    PERFORM dataflow._checked_dataid(preview_order.dataid);
    SELECT coalesce(jsonb_object_agg(i.datasetid || '/' || i.dataid, coalesce(s.version, 0)), '{}') INTO inputs
        FROM dataflow._inputs(preview_order.jobid, preview_order.dataid) AS i
        LEFT JOIN dataflow.datastatus s ON s.datasetid = i.datasetid AND s.dataid = i.dataid AND s.locktype = 'OUT'
        WHERE i.dataid IS NOT NULL;
    RETURN dataflow._order(preview_order.jobid, preview_order.dataid, inputs) || jsonb_build_object('params', (
        SELECT j.params || coalesce(dataflow._given_params(preview_order.jobid, preview_order.dataid), '{}') FROM dataflow.job j WHERE j.jobid = preview_order.jobid));
END $$;
COMMENT ON FUNCTION dataflow.preview_order(text, text) IS
    'The work order that an attempt of this run would get now, with the job''s parameters, whether or not it may run';

-- Uses the versions that the attempt was given, not the newest ones. An input of which a forced attempt was given nothing is described
-- without chunks.
CREATE OR REPLACE FUNCTION dataflow._order(jobid text, dataid text, inputs jsonb) RETURNS jsonb
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    sources jsonb;
    outputs jsonb;
BEGIN
    SELECT coalesce(jsonb_object_agg(c.role, jsonb_build_object('dataset', c.dataset, 'chunks', c.chunks)), '{}') INTO sources FROM (
        SELECT coalesce(i.role, d.datasetid) AS role, dataflow._described(d) || dataflow._called(i.role, d.datasetid) AS dataset, coalesce(jsonb_agg(jsonb_build_object(
            'dataid', k.dataid, 'version', k.version, 'location', coalesce(m.location, dataflow._chunk_location(d, k.dataid)),
            'files', m.files, 'rows', m.rows, 'validated', coalesce(s.validated, true),
            'batch', CASE WHEN b.bounds IS NOT NULL THEN jsonb_build_object('columns', to_jsonb(p.key_columns), 'bounds', b.bounds) END) ORDER BY s.sortkey, k.dataid)
            FILTER (WHERE k.dataid IS NOT NULL), '[]') AS chunks
        FROM dataflow.job_input i
        JOIN dataflow.dataset d ON d.datasetid = i.datasetid
        LEFT JOIN LATERAL (
            SELECT split_part(g.key, '/', 2) AS dataid, g.value::integer AS version
            FROM jsonb_each_text(_order.inputs) AS g WHERE split_part(g.key, '/', 1) = i.datasetid
        ) AS k ON true
        LEFT JOIN dataflow.datastatus s ON s.datasetid = d.datasetid AND s.dataid = k.dataid AND s.locktype = 'OUT'
        LEFT JOIN dataflow.manifest m ON m.datasetid = d.datasetid AND m.dataid = k.dataid AND m.version = k.version
        LEFT JOIN dataflow.batch b ON b.datasetid = d.datasetid AND b.dataid = k.dataid
        LEFT JOIN dataflow.partitioning p ON p.datasetid = b.datasetid AND p.partitioning = b.partitioning
        WHERE i.jobid = _order.jobid
        GROUP BY d.datasetid, i.role
    ) AS c;
    SELECT coalesce(jsonb_object_agg(coalesce(o.role, d.datasetid), jsonb_build_object('dataset', dataflow._described(d) || dataflow._called(o.role, d.datasetid),
        'location', dataflow._written_to(d))), '{}')
    INTO outputs
    FROM dataflow.job_output o JOIN dataflow.dataset d ON d.datasetid = o.datasetid WHERE o.jobid = _order.jobid;
    RETURN jsonb_build_object('inputs', sources, 'outputs', outputs, 'resolved', coalesce((
        SELECT jsonb_agg(jsonb_build_object('mark', q.details ->> 'mark', 'repaired', q.resolution -> 'repaired') ORDER BY q.itemid)
        FROM dataflow.quarantine q WHERE q.jobid = _order.jobid AND q.dataid = _order.dataid AND q.is_resolved AND q.details ? 'mark'), '[]'));
END $$;

-- Code that several jobs share knows a dataset by a role name; passwords and manifests use the dataset's own name.
CREATE OR REPLACE FUNCTION dataflow._called(role text, datasetid text) RETURNS jsonb
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT CASE WHEN role IS NULL THEN '{}'::jsonb ELSE jsonb_build_object('name', role, 'stored_as', datasetid) END $$;

CREATE OR REPLACE FUNCTION dataflow.trial_order(jobid text, dataid text) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    found record;
BEGIN
    PERFORM dataflow._known_job(trial_order.jobid);
    PERFORM dataflow._checked_dataid(trial_order.dataid);
    -- A trial writes nothing, so locks on the output and the order of the runs do not matter. A batch that was created on hold may be
    -- tried; the hold of any other chunk may mean that it is wrong.
    SELECT tried.inputs, CASE
            WHEN e.not_ready IS NOT NULL THEN 'DATA_NOT_READY' WHEN tried.is_unmapped THEN 'WRONG_DATA'
            WHEN e.invalid_path IS NOT NULL THEN 'INVALID_PATH' WHEN e.not_validated IS NOT NULL THEN 'NOT_VALIDATED'
            WHEN tried.held IS NOT NULL THEN 'LOCKED' END AS code,
        coalesce(e.not_ready, CASE WHEN tried.is_unmapped THEN e.wrong_data END, e.invalid_path, e.not_validated, tried.held) AS detail,
        tried.release
    INTO found
    FROM dataflow._evaluate(ARRAY[trial_order.jobid], ARRAY[trial_order.dataid]) AS e
    CROSS JOIN LATERAL (
        SELECT coalesce(bool_or(q.dataid IS NULL), true) AS is_unmapped,
            min(format('%s/%s is %s', q.datasetid, q.dataid, concat_ws(': ', s.status, split_part(s.reason, E'\n', 1))))
                FILTER (WHERE s.status IN ('HOLD', 'PENDING') AND b.dataid IS NULL) AS held,
            min(format('dataflowctl release --dataset %s --dataid %s', q.datasetid, q.dataid)) FILTER (WHERE s.status IN ('HOLD', 'PENDING') AND b.dataid IS NULL) AS release,
            jsonb_object_agg(q.datasetid || '/' || q.dataid, s.version) FILTER (WHERE s.status IS NOT NULL) AS inputs
        FROM dataflow._inputs(trial_order.jobid, trial_order.dataid) AS q
        LEFT JOIN dataflow.datastatus s ON s.datasetid = q.datasetid AND s.dataid = q.dataid AND s.locktype = 'OUT'
        LEFT JOIN dataflow.batch b ON b.datasetid = s.datasetid AND b.dataid = s.dataid AND s.held_from = 'READY'
    ) AS tried;
    IF found.code IS NOT NULL THEN
        RETURN jsonb_build_object('code', found.code, 'detail', found.detail, 'remedy', CASE WHEN found.code = 'LOCKED' THEN found.release WHEN found.code = 'DATA_NOT_READY' THEN (
            SELECT dataflow._arrival(q.datasetid, q.dataid)
            FROM dataflow._inputs(trial_order.jobid, trial_order.dataid) AS q
            WHERE q.dataid IS NOT NULL AND found.detail LIKE q.datasetid || '/' || q.dataid || ' is not there%'
                AND NOT EXISTS (SELECT FROM dataflow.job_output o WHERE o.datasetid = q.datasetid)
        ) END);
    END IF;
    RETURN dataflow._order(trial_order.jobid, trial_order.dataid, found.inputs)
        || (SELECT jsonb_build_object('params', j.params) FROM dataflow.job j WHERE j.jobid = trial_order.jobid);
END $$;
COMMENT ON FUNCTION dataflow.trial_order(text, text) IS
    'The work order for dataflowctl try: the job''s parameters, and its inputs that are READY now, or batches on hold; else the code and detail of the first question that is answered no. Claims nothing';

CREATE OR REPLACE FUNCTION dataflow._described(d dataflow.dataset) RETURNS jsonb
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT jsonb_build_object('name', d.datasetid, 'format', d.format, 'location', d.location, 'columns', d.columns, 'options', d.options,
        'checks', d.checks, 'publish', d.publish, 'connection', jsonb_build_object('hostname', d.hostname, 'port', d.port,
        'database', d.database, 'schemaname', d.schemaname, 'tablename', d.tablename, 'username', d.username, 'encryptedpass', d.encryptedpass))
$$;
