-- The declared checks of chunks that come from outside. The first attempt that reads a version on Spark checks it before the job's code
-- begins. A version that fails is no longer validated: question 4 keeps every job from reading it, until somebody registers a new version
-- or vouches for this one.

CREATE OR REPLACE FUNCTION dataflow._note_judged(results jsonb, accepted bigint[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    failed_datasets text[];
    failed_dataids text[];
    failed_versions integer[];
    failed_reasons text[];
BEGIN
    -- A version that a person has vouched for, or that another attempt has judged first, is left as it is.
    WITH told AS (
        SELECT DISTINCT ON (k.dataset, k.dataid) k.dataset, k.dataid, k.passed, k.said, a.attempt, a.daemon, (a.inputs ->> (k.dataset || '/' || k.dataid))::integer AS version
        FROM jsonb_to_recordset(results) AS r (attempt bigint, judged jsonb)
        JOIN dataflow.attempt a ON a.attempt = r.attempt
        CROSS JOIN LATERAL jsonb_to_recordset(r.judged) AS k (dataset text, dataid text, passed boolean, said text)
        WHERE r.attempt = ANY (accepted) AND jsonb_typeof(r.judged) = 'array' AND a.inputs ? (k.dataset || '/' || k.dataid)
        ORDER BY k.dataset, k.dataid, a.attempt
    ), noted AS (
        INSERT INTO dataflow.judgement AS j (datasetid, dataid, version, passed, attempt, judged_by)
        SELECT t.dataset, t.dataid, t.version, t.passed, t.attempt, t.daemon FROM told t ORDER BY t.dataset, t.dataid
        ON CONFLICT DO NOTHING
        RETURNING j.datasetid, j.dataid, j.version, j.passed
    )
    SELECT array_agg(n.datasetid::text), array_agg(n.dataid::text), array_agg(n.version), array_agg(left(t.said, 500))
    INTO failed_datasets, failed_dataids, failed_versions, failed_reasons
    FROM noted n JOIN told t ON t.dataset = n.datasetid AND t.dataid = n.dataid WHERE NOT n.passed;
    IF failed_datasets IS NULL THEN
        RETURN;
    END IF;
    -- This waits for no row: the next attempt reads in its work order that the version has failed.
    UPDATE dataflow.datastatus s SET validated = false, reason = k.reason, modified = now()
    FROM (
        SELECT x.datasetid, x.dataid, x.jobid, x.run, f.reason
        FROM unnest(failed_datasets, failed_dataids, failed_versions, failed_reasons) AS f (datasetid, dataid, version, reason)
        CROSS JOIN LATERAL (
            SELECT c.datasetid, c.dataid, c.jobid, c.run FROM dataflow.datastatus c
            WHERE c.datasetid = f.datasetid AND c.dataid = f.dataid AND c.locktype = 'OUT' AND c.version = f.version AND c.status = 'READY' AND c.external
            FOR UPDATE SKIP LOCKED
        ) AS x
    ) AS k
    WHERE s.datasetid = k.datasetid AND s.dataid = k.dataid AND s.locktype = 'OUT' AND s.jobid = k.jobid AND s.run = k.run;
END $$;

-- A person vouches for a version that has failed its checks. A version that was not checked yet is still checked.
CREATE OR REPLACE FUNCTION dataflow._note_vouched(datasetid text, dataid text) RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    UPDATE dataflow.judgement j SET passed = true, attempt = NULL, judged = now(), judged_by = session_user
    FROM dataflow.datastatus s
    WHERE s.datasetid = _note_vouched.datasetid AND s.dataid = _note_vouched.dataid AND s.locktype = 'OUT'
        AND j.datasetid = s.datasetid AND j.dataid = s.dataid AND j.version = s.version AND NOT j.passed
$$;
