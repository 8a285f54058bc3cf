-- What a dataset or chunk is made of, and what is made of it.

DROP FUNCTION IF EXISTS dataflow.lineage(text, text);
CREATE OR REPLACE FUNCTION dataflow.lineage(dataset text, chunk text DEFAULT NULL) RETURNS TABLE (
    direction text, depth integer, path text[], jobid text, datasetid text, dataid text, status text, version integer, code text,
    forced boolean, missing text[]
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    shown constant integer := 2000;
BEGIN
    PERFORM dataflow._known_dataset(dataset);
    IF chunk IS NULL THEN
        RETURN QUERY
        WITH RECURSIVE up AS (
            SELECT 0 AS depth, ARRAY[dataset COLLATE "C"] AS path, NULL::text COLLATE "C" AS jobid, dataset COLLATE "C" AS datasetid
            UNION ALL
            SELECT u.depth + 1, u.path || i.datasetid::text, o.jobid, i.datasetid
            FROM up u JOIN dataflow.job_output o ON o.datasetid = u.datasetid JOIN dataflow.job_input i ON i.jobid = o.jobid
            WHERE i.datasetid <> ALL (u.path)
        ), down AS (
            SELECT 0 AS depth, ARRAY[dataset COLLATE "C"] AS path, NULL::text COLLATE "C" AS jobid, dataset COLLATE "C" AS datasetid
            UNION ALL
            SELECT u.depth + 1, u.path || o.datasetid::text, o.jobid, o.datasetid
            FROM down u JOIN dataflow.job_input i ON i.datasetid = u.datasetid JOIN dataflow.job_output o ON o.jobid = i.jobid
            WHERE o.datasetid <> ALL (u.path)
        )
        (SELECT 'up', u.depth, u.path, u.jobid, u.datasetid, NULL::text, NULL::text, NULL::integer, NULL::text, NULL::boolean, NULL::text[] FROM up u LIMIT shown)
        UNION ALL
        (SELECT 'down', u.depth, u.path, u.jobid, u.datasetid, NULL, NULL, NULL, NULL, NULL, NULL FROM down u WHERE u.depth > 0 LIMIT shown)
        ORDER BY 1 DESC, 3;
        RETURN;
    END IF;
    PERFORM dataflow._checked_dataid(chunk);
    RETURN QUERY
    WITH RECURSIVE up AS (
        SELECT 0 AS depth, ARRAY[(dataset || '/' || chunk) COLLATE "C"] AS path, NULL::text COLLATE "C" AS jobid, dataset COLLATE "C" AS datasetid, chunk COLLATE "C" AS dataid
        UNION ALL
        SELECT u.depth + 1, u.path || (i.datasetid || '/' || i.dataid), o.jobid, i.datasetid, i.dataid
        FROM up u JOIN dataflow.job_output o ON o.datasetid = u.datasetid CROSS JOIN LATERAL dataflow.required_inputs(o.jobid, u.dataid) AS i
        WHERE i.datasetid || '/' || i.dataid <> ALL (u.path)
    ), down AS (
        SELECT 0 AS depth, ARRAY[(dataset || '/' || chunk) COLLATE "C"] AS path, NULL::text COLLATE "C" AS jobid, dataset COLLATE "C" AS datasetid, chunk COLLATE "C" AS dataid
        UNION ALL
        SELECT u.depth + 1, u.path || (o.datasetid || '/' || r.dataid), o.jobid, o.datasetid, r.dataid
        FROM down u CROSS JOIN LATERAL dataflow.affected_runs(u.datasetid, u.dataid) AS r JOIN dataflow.job_output o ON o.jobid = r.jobid
        WHERE o.datasetid || '/' || r.dataid <> ALL (u.path)
    ), found AS (
        (SELECT 'up' AS direction, u.* FROM up u LIMIT shown)
        UNION ALL
        (SELECT 'down', u.* FROM down u WHERE u.depth > 0 LIMIT shown)
    )
    SELECT f.direction, f.depth, f.path, f.jobid, f.datasetid, f.dataid, s.status, s.version, s.code,
        CASE WHEN s.status IS NOT NULL THEN coalesce(a.forced, false) END, CASE WHEN a.forced THEN dataflow._not_given(a) END
    FROM found f LEFT JOIN dataflow.datastatus s ON s.datasetid = f.datasetid AND s.dataid = f.dataid AND s.locktype = 'OUT'
    LEFT JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest
    LEFT JOIN dataflow.attempt a ON a.attempt = m.attempt
    ORDER BY 1 DESC, 3;
END $$;
COMMENT ON FUNCTION dataflow.lineage(text, text) IS
    'What a dataset or chunk is made of (up) and what is made of it (down), at most 2000 rows each; path leads from it to the row, forced and missing say that a version was made by force and without which inputs';
