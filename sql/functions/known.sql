-- Errors that every function gives for the same mistake.

CREATE OR REPLACE FUNCTION dataflow._known_job(jobid text) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM dataflow.job j WHERE j.jobid = _known_job.jobid) THEN
        RAISE EXCEPTION 'there is no job %', coalesce(jobid, 'NULL') USING ERRCODE = 'DF404',
            HINT = coalesce('the jobs are: ' || (SELECT string_agg(j.jobid, ', ' ORDER BY j.jobid) FROM (
                SELECT k.jobid FROM dataflow.job k WHERE k.retired IS NULL ORDER BY k.jobid LIMIT 20) AS j), 'no job is declared; `dataflowctl apply` a flow');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION dataflow._known_dataset(datasetid text) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM dataflow.dataset d WHERE d.datasetid = _known_dataset.datasetid) THEN
        RAISE EXCEPTION 'there is no dataset %', coalesce(datasetid, 'NULL') USING ERRCODE = 'DF404',
            HINT = coalesce('the datasets are: ' || (SELECT string_agg(d.datasetid, ', ' ORDER BY d.datasetid) FROM (
                SELECT e.datasetid FROM dataflow.dataset e WHERE e.retired IS NULL ORDER BY e.datasetid LIMIT 20) AS d), 'no dataset is declared; `dataflowctl apply` a flow');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION dataflow._known_daemon(daemon text) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM dataflow.daemon d WHERE d.daemon = _known_daemon.daemon) THEN
        RAISE EXCEPTION 'there is no daemon %', coalesce(daemon, 'NULL') USING ERRCODE = 'DF404',
            HINT = coalesce('the daemons are: ' || (SELECT string_agg(d.daemon, ', ' ORDER BY d.daemon) FROM (
                SELECT e.daemon FROM dataflow.daemon e ORDER BY e.stopped IS NOT NULL, e.daemon LIMIT 20) AS d), 'none was ever started');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION dataflow._checked_dataid(dataid text) RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF dataid IS NULL OR dataid ~ '[^A-Za-z0-9._:+=-]|^[.-]|^$' OR length(dataid) > 128 THEN
        RAISE EXCEPTION 'not a dataid: %', coalesce(quote_literal(left(dataid, 140)), 'NULL') USING ERRCODE = 'DF400',
            HINT = 'a dataid is 1 to 128 letters, digits and . _ : + = -, and does not start with a dot or a dash';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION dataflow._checked_statuses(statuses text[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    known constant text[] := ARRAY['RUNNING', 'READY', 'FAILED', 'RESUBMIT', 'PENDING', 'HOLD'];
    unknown text;
BEGIN
    SELECT s INTO unknown FROM unnest(statuses) AS s WHERE s <> ALL (known) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% is no status', unknown USING ERRCODE = 'DF400', HINT = 'allowed are ' || array_to_string(known, ', ');
    END IF;
END $$;
