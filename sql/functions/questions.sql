-- The five questions. _evaluate() answers them for many runs at once. The claim, the queue, `why` and the evidence all use it, so they
-- cannot disagree.

-- What the questions need to know of a job, the same for all its runs. invalid_path says why question 3 is answered no for every one of them.
CREATE OR REPLACE FUNCTION dataflow._job_facts(jobids text[]) RETURNS TABLE (
    jobid text,
    strict_order boolean,
    retired timestamptz,
    outputs text[],
    ordering text,
    same_inputs text[],
    has_mappings boolean,
    invalid_path text
)
LANGUAGE sql STABLE
AS $$
    SELECT j.jobid::text, j.strict_order, j.retired, facts.outputs, facts.ordering, facts.same_inputs, facts.has_mappings, CASE
        WHEN facts.homeless IS NOT NULL THEN format('dataset %s has neither a location nor a table', facts.homeless)
        WHEN facts.last_environment <> facts.first_environment
            THEN format('its datasets belong to different environments: %s and %s', facts.first_environment, facts.last_environment)
    END
    FROM dataflow.job j
    CROSS JOIN LATERAL (
        SELECT
            coalesce(array_agg(d.datasetid::text) FILTER (WHERE used.written), '{}') AS outputs,
            min(d.ordering) FILTER (WHERE used.written) AS ordering,
            coalesce(array_agg(d.datasetid::text) FILTER (WHERE used.kind = 'identity'), '{}') AS same_inputs,
            coalesce(bool_or(used.kind <> 'identity'), false) AS has_mappings,
            min(d.datasetid::text) FILTER (WHERE d.location IS NULL AND d.tablename IS NULL AND d.format <> 'none'
                AND (used.written OR d.calendar IS NULL)) AS homeless,
            min(d.environment) AS first_environment,
            max(d.environment) AS last_environment
        FROM (
            SELECT i.datasetid, false AS written, i.kind FROM dataflow.job_input i WHERE i.jobid = j.jobid
            UNION ALL
            SELECT o.datasetid, true, NULL FROM dataflow.job_output o WHERE o.jobid = j.jobid
        ) AS used
        JOIN dataflow.dataset d ON d.datasetid = used.datasetid
    ) AS facts
    WHERE j.jobid IN (SELECT DISTINCT named FROM unnest(jobids) AS named)
$$;

-- The jobs that one chunk of this dataset, READY and validated, suffices for: they read nothing else, and read it by identity. A run of such a job whose
-- outputs have no row has five answers of yes, and needs no look of _evaluate: 1, 2 and 4 ask about that chunk, 3 is the job's, and nothing is locked.
CREATE OR REPLACE FUNCTION dataflow._sole_readers(datasetid text) RETURNS TABLE (jobid text, outputs text[], ordering text)
LANGUAGE sql STABLE
AS $$
    SELECT f.jobid, f.outputs, f.ordering
    FROM dataflow._job_facts(ARRAY(SELECT i.jobid::text FROM dataflow.job_input i WHERE i.datasetid = _sole_readers.datasetid)) AS f
    WHERE f.same_inputs = ARRAY[_sole_readers.datasetid] AND NOT f.has_mappings AND NOT f.strict_order AND f.retired IS NULL AND f.invalid_path IS NULL AND f.outputs <> '{}'
$$;

-- Each of the five texts says why the answer is no; NULL: the answer is yes.
CREATE OR REPLACE FUNCTION dataflow._evaluate(jobids text[], dataids text[]) RETURNS TABLE (
    jobid text,
    dataid text,
    not_ready text,
    wrong_data text,
    invalid_path text,
    not_validated text,
    locked text,
    inputs jsonb,
    not_before timestamptz,
    last_attempt bigint,
    out_status text,
    sortkey text
)
LANGUAGE plpgsql STABLE
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
BEGIN
    RETURN QUERY
    WITH jobs AS MATERIALIZED (
        -- Looked up once for all runs of a job.
        SELECT f.* FROM dataflow._job_facts(jobids) AS f
    )
    SELECT
        j.jobid,
        r.dataid,
        i.not_ready || CASE WHEN i.missing > 1 THEN format(' (and %s more)', i.missing - 1) ELSE '' END,
        CASE
            -- No arriving chunk asks for such a run. new_run() does, by writing a row for each output.
            WHEN i.chunks = 0 AND j.retired IS NULL AND o.status IS NULL THEN 'the job has no inputs, and nobody has asked for this run'
            WHEN i.unmapped IS NOT NULL THEN format('%s has no input chunk for dataid %s: its mapping does not know such ids', i.unmapped, r.dataid)
            WHEN earlier.dataid IS NOT NULL THEN format('%s comes first: the job keeps strict order', earlier.dataid)
        END,
        j.invalid_path,
        i.unvalidated,
        CASE
            WHEN j.retired IS NOT NULL THEN 'the job is retired: its flow no longer declares it'
            WHEN j.outputs = '{}' THEN 'the job has no outputs'
            ELSE coalesce(o.locked, i.locked)
        END,
        i.versions,
        o.retry_at,
        o.last_attempt,
        o.status,
        dataflow._ordered(j.ordering, r.dataid)
    FROM unnest(jobids, dataids) AS r (jobid, dataid)
    JOIN jobs j ON j.jobid = r.jobid
    CROSS JOIN LATERAL (
        SELECT
            count(*) AS chunks,
            -- A held input is a matter of question 5, whatever its status was before.
            count(*) FILTER (WHERE coalesce(s.status NOT IN ('READY', 'HOLD', 'PENDING'), true) AND q.dataid IS NOT NULL) AS missing,
            min(format('%s/%s %s', q.datasetid, q.dataid, coalesce('is ' || s.status, 'is not there')))
                FILTER (WHERE coalesce(s.status NOT IN ('READY', 'HOLD', 'PENDING'), true) AND q.dataid IS NOT NULL) AS not_ready,
            min(q.datasetid) FILTER (WHERE q.dataid IS NULL) AS unmapped,
            min(concat_ws(': ', format('%s/%s has arrived, but is not validated', q.datasetid, q.dataid), split_part(s.reason, E'\n', 1))) FILTER (WHERE NOT s.validated) AS unvalidated,
            min(format('%s/%s is %s', q.datasetid, q.dataid, coalesce(s.status || ': ' || split_part(s.reason, E'\n', 1), s.status)))
                FILTER (WHERE s.status IN ('HOLD', 'PENDING')) AS locked,
            jsonb_object_agg(q.datasetid || '/' || q.dataid, s.version) FILTER (WHERE s.status = 'READY') AS versions
        FROM dataflow._known_inputs(r.jobid, r.dataid, j.same_inputs, j.has_mappings) AS q
        LEFT JOIN LATERAL (
            SELECT c.status, c.version, c.validated, c.reason FROM dataflow.datastatus c
            WHERE c.datasetid = q.datasetid AND c.dataid = q.dataid AND c.locktype = 'OUT' OFFSET 0
        ) AS s ON true
    ) AS i
    CROSS JOIN LATERAL (
        SELECT
            -- READY only if every output that has a row is READY: a run with a held or failed output is not done. An output that was
            -- declared later has no row, and does not open earlier runs.
            CASE WHEN bool_and(s.status = 'READY') THEN 'READY' ELSE max(s.status) FILTER (WHERE s.status <> 'READY') END AS status,
            max(s.attempt) AS last_attempt,
            max(a.retry_at) AS retry_at,
            min(CASE
                WHEN s.status IN ('HOLD', 'PENDING') THEN format('%s/%s is %s', p.datasetid, r.dataid, coalesce(s.status || ': ' || split_part(s.reason, E'\n', 1), s.status))
                WHEN s.status = 'RUNNING' THEN format('%s/%s is being written', p.datasetid, r.dataid)
                WHEN s.status = 'READY' THEN format('%s/%s is published already (version %s); RESUBMIT rewrites it', p.datasetid, r.dataid, s.version)
                WHEN s.status = 'FAILED' AND a.retry_at IS NULL THEN format('%s/%s has FAILED (%s) and waits for RESUBMIT', p.datasetid, r.dataid, coalesce(s.code, 'no code'))
                WHEN reader.jobid IS NOT NULL THEN format('%s/%s is being read by job %s', p.datasetid, r.dataid, reader.jobid)
            END) AS locked
        FROM (SELECT unnest(j.outputs) AS datasetid) AS p
        LEFT JOIN LATERAL (
            SELECT c.status, c.attempt, c.version, c.code, c.reason FROM dataflow.datastatus c
            WHERE c.datasetid = p.datasetid AND c.dataid = r.dataid AND c.locktype = 'OUT' OFFSET 0
        ) AS s ON true
        LEFT JOIN LATERAL (
            SELECT b.retry_at FROM dataflow.attempt b WHERE s.status = 'FAILED' AND s.code IS DISTINCT FROM 'BY_HAND' AND b.attempt = s.attempt OFFSET 0
        ) AS a ON true
        LEFT JOIN LATERAL (
            SELECT c.jobid FROM dataflow.datastatus c
            WHERE s.status IN ('RESUBMIT', 'FAILED') AND c.datasetid = p.datasetid AND c.dataid = r.dataid
                AND c.locktype = 'IN' AND c.status = 'RUNNING'
            LIMIT 1
        ) AS reader ON true
    ) AS o
    LEFT JOIN LATERAL (
        SELECT x.dataid FROM dataflow.open_run x
        WHERE j.strict_order AND x.jobid = r.jobid
            AND (x.sortkey, x.dataid) < (dataflow._ordered(j.ordering, r.dataid), r.dataid)
        ORDER BY x.sortkey, x.dataid
        LIMIT 1
    ) AS earlier ON true;
END $$;

-- The questions that are answered no, each with the reason, from the columns of _evaluate(): {code: reason}. The host's answer no of the last attempt
-- counts while the run waits for RESUBMIT. The claim is kept away by question 5.
CREATE OR REPLACE FUNCTION dataflow._noes(
    jobid text, dataid text, not_ready text, wrong_data text, invalid_path text, not_validated text, locked text, last_attempt bigint, out_status text
) RETURNS jsonb
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    host record;
    noes constant jsonb := jsonb_strip_nulls(jsonb_build_object('DATA_NOT_READY', not_ready, 'WRONG_DATA', wrong_data, 'INVALID_PATH', invalid_path,
        'NOT_VALIDATED', not_validated, 'LOCKED', locked));
BEGIN
    IF out_status = 'FAILED' AND locked IS NOT NULL THEN
        SELECT r.code, r.detail INTO host FROM dataflow._refused(_noes.jobid, _noes.dataid, _noes.last_attempt) AS r;
        IF host.code IS NOT NULL THEN
            RETURN jsonb_build_object(host.code, host.detail) || noes;
        END IF;
    END IF;
    RETURN noes;
END $$;

-- is_of_host: the database answers yes, and the host of the last attempt answered no.
CREATE OR REPLACE FUNCTION dataflow._questions(jobid text, dataid text) RETURNS TABLE (
    number integer,
    question text,
    answer boolean,
    code text,
    detail text,
    is_of_host boolean
)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_job(_questions.jobid);
    PERFORM dataflow._checked_dataid(_questions.dataid);
    RETURN QUERY
    SELECT q.number, q.question, said.no IS NULL, CASE WHEN said.no IS NOT NULL THEN q.code END, coalesce(said.no, q.yes), q.no IS NULL AND said.no IS NOT NULL
    FROM dataflow._evaluate(ARRAY[_questions.jobid], ARRAY[_questions.dataid]) AS e
    CROSS JOIN LATERAL dataflow._noes(e.jobid, e.dataid, e.not_ready, e.wrong_data, e.invalid_path, e.not_validated, e.locked, e.last_attempt, e.out_status) AS noes
    CROSS JOIN LATERAL (VALUES
            (1, 'Is the data ready?', 'DATA_NOT_READY', e.not_ready, coalesce((
                SELECT string_agg(format('%s v%s', key, value), ', ' ORDER BY key) FROM jsonb_each_text(e.inputs)),
                CASE WHEN e.locked IS NULL THEN 'it has no inputs' ELSE 'nothing is missing; see question 5' END)),
            (2, 'Is it the right data?', 'WRONG_DATA', e.wrong_data, 'every input has a chunk for this dataid'),
            (3, 'Is it in the right place?', 'INVALID_PATH', e.invalid_path, dataflow._places_of(_questions.jobid, _questions.dataid)),
            (4, 'Has it been validated?', 'NOT_VALIDATED', e.not_validated, 'every input is validated'),
            (5, 'Is it safe to access?', 'LOCKED', e.locked, 'no input and no output is locked')
        ) AS q (number, question, code, no, yes)
    CROSS JOIN LATERAL (SELECT noes ->> q.code AS no) AS said;
END $$;

CREATE OR REPLACE FUNCTION dataflow.five_questions(jobid text, dataid text) RETURNS TABLE (
    number integer,
    question text,
    answer boolean,
    code text,
    detail text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT q.number, q.question, q.answer, q.code, q.detail FROM dataflow._questions(five_questions.jobid, five_questions.dataid) AS q;
END $$;
COMMENT ON FUNCTION dataflow.five_questions(text, text) IS
    'May this job run on this dataid now? One row a question; the claim obeys the same answers. SELECT * FROM dataflow.five_questions(''clean_orders'', ''2026-01-01'')';
