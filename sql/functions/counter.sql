-- Numbers of chunks and of queued runs, known without counting rows. Triggers of datastatus and work write differences.

CREATE OR REPLACE FUNCTION dataflow.fold_counters() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    folded integer;
BEGIN
    -- One session folds at a time. A second one has nothing to do.
    IF NOT pg_try_advisory_xact_lock(hashtextextended('dataflow.fold', 0)) THEN
        RETURN 0;
    END IF;
    WITH taken AS (
        DELETE FROM dataflow.counter RETURNING datasetid, jobid, locktype, status, chunks
    ), summed AS (
        INSERT INTO dataflow.counter (datasetid, jobid, locktype, status, chunks)
        SELECT t.datasetid, t.jobid, t.locktype, t.status, sum(t.chunks) FROM taken t
        GROUP BY t.datasetid, t.jobid, t.locktype, t.status HAVING sum(t.chunks) <> 0
    )
    SELECT count(*) INTO folded FROM taken;
    RETURN folded;
END $$;
COMMENT ON FUNCTION dataflow.fold_counters() IS 'Adds up the differences in dataflow.counter; the sums stay the same. Daemons call it now and then';

CREATE OR REPLACE VIEW dataflow.chunk_count AS
SELECT c.datasetid, c.jobid, c.status, sum(c.chunks)::bigint AS chunks
FROM dataflow.counter c WHERE c.locktype = 'OUT' GROUP BY c.datasetid, c.jobid, c.status HAVING sum(c.chunks) <> 0;
COMMENT ON VIEW dataflow.chunk_count IS 'How many chunks of each dataset have which status; exact, without looking at the chunks';
