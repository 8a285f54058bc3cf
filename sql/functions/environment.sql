-- A dataset may belong to an environment. Only hosts of that environment read and write it.

CREATE OR REPLACE FUNCTION dataflow.bound_elsewhere(jobid text, environment text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_job(bound_elsewhere.jobid);
    RETURN (
        SELECT format('dataset %s belongs to environment %s, and this host works for %s', d.datasetid, d.environment, bound_elsewhere.environment)
        FROM (
            SELECT i.datasetid FROM dataflow.job_input i WHERE i.jobid = bound_elsewhere.jobid
            UNION ALL
            SELECT o.datasetid FROM dataflow.job_output o WHERE o.jobid = bound_elsewhere.jobid
        ) AS used
        JOIN dataflow.dataset d ON d.datasetid = used.datasetid
        WHERE d.environment <> bound_elsewhere.environment
        ORDER BY d.datasetid LIMIT 1);
END $$;
COMMENT ON FUNCTION dataflow.bound_elsewhere(text, text) IS
    'Why a host of this environment may not run a job: a dataset of the job belongs to another environment; NULL: it may';
