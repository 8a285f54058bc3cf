-- A dataset gets another producer, or loses it.

-- The dataset keeps its chunks. A chunk that is being written at that moment is taken from its attempt: the new producer makes it again;
-- without a new producer the chunk is FAILED.
CREATE OR REPLACE FUNCTION dataflow._own_chunks(datasetids text[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
-- The chunks of other datasets must not be read: of many datasets only a few change their producer.
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
    jobids text[];
    dataids text[];
BEGIN
    UPDATE dataflow.datastatus s SET modified = now(), status = CASE WHEN o.jobid IS NULL THEN 'FAILED' ELSE 'RESUBMIT' END,
        code = CASE WHEN o.jobid IS NULL THEN 'RETIRED' END, reason = 'its producer changed while it was being written'
    FROM unnest(datasetids) AS d (datasetid) LEFT JOIN dataflow.job_output o ON o.datasetid = d.datasetid
    CROSS JOIN LATERAL (
        SELECT c.dataid FROM dataflow.datastatus c
        WHERE c.datasetid || '' = d.datasetid AND c.locktype = 'OUT' AND c.status = 'RUNNING' AND c.jobid <> coalesce(o.jobid, '') OFFSET 0
    ) AS written
    WHERE s.datasetid = d.datasetid AND s.dataid = written.dataid AND s.locktype = 'OUT' AND s.status = 'RUNNING' AND s.jobid <> coalesce(o.jobid, '');

    -- The counters use the status that UPDATE returns: another transaction may have changed it since the SELECT.
    WITH strangers AS MATERIALIZED (
        SELECT s.datasetid, s.dataid, s.jobid AS was, coalesce(o.jobid, '') AS now
        FROM unnest(datasetids) AS d (datasetid) LEFT JOIN dataflow.job_output o ON o.datasetid = d.datasetid
        CROSS JOIN LATERAL (
            SELECT c.datasetid, c.dataid, c.jobid FROM dataflow.datastatus c
            WHERE c.datasetid || '' = d.datasetid AND c.locktype = 'OUT' AND c.jobid <> coalesce(o.jobid, '') OFFSET 0
        ) AS s
    ), moved AS (
        UPDATE dataflow.datastatus s SET jobid = x.now, params = NULL FROM strangers x
        WHERE s.datasetid = x.datasetid AND s.dataid = x.dataid AND s.locktype = 'OUT' AND s.jobid = x.was
        RETURNING s.datasetid, s.dataid, s.status, x.was, x.now
    ), counted AS (
        INSERT INTO dataflow.counter (datasetid, jobid, locktype, status, chunks)
        SELECT m.datasetid, owner.jobid, 'OUT', m.status, sum(owner.difference)
        FROM moved m, LATERAL (VALUES (m.was, -1), (m.now, 1)) AS owner (jobid, difference)
        GROUP BY m.datasetid, owner.jobid, m.status
    )
    SELECT array_agg(m.now), array_agg(m.dataid::text) INTO jobids, dataids FROM moved m WHERE m.status = 'RESUBMIT' AND m.now <> '';
    -- A run makes all its outputs together. If one of them has to be made again, so do the others.
    UPDATE dataflow.datastatus s SET status = 'RESUBMIT', modified = now(), code = NULL, reason = 'another output of its run is to be made again'
    FROM unnest(jobids, dataids) AS r (jobid, dataid) JOIN dataflow.job_output o ON o.jobid = r.jobid
    WHERE s.datasetid = o.datasetid AND s.dataid = r.dataid AND s.locktype = 'OUT' AND s.jobid = o.jobid AND s.status IN ('READY', 'FAILED', 'RUNNING');
END $$;

CREATE OR REPLACE FUNCTION dataflow._job_output_inserted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM dataflow._own_chunks(array_agg(n.datasetid::text)) FROM new_rows n HAVING count(*) > 0;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION dataflow._job_output_deleted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM dataflow._own_chunks(array_agg(o.datasetid::text)) FROM old_rows o HAVING count(*) > 0;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION dataflow._job_output_updated() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM dataflow._own_chunks(array_agg(DISTINCT c.datasetid))
    FROM (SELECT n.datasetid::text FROM new_rows n UNION SELECT o.datasetid::text FROM old_rows o) AS c HAVING count(*) > 0;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER job_output_inserted AFTER INSERT ON dataflow.job_output
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION dataflow._job_output_inserted();
CREATE OR REPLACE TRIGGER job_output_deleted AFTER DELETE ON dataflow.job_output
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION dataflow._job_output_deleted();
CREATE OR REPLACE TRIGGER job_output_updated AFTER UPDATE ON dataflow.job_output
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION dataflow._job_output_updated();
