-- The rules for names and dataids, and the errors that every function gives for the same mistake.

-- As the domains dataflow.name and dataflow.chunkid have it, for those who want to say more than that a CHECK is violated.
-- tests/sql/test_rules.py holds both and dataflowd.model.identifiers to each other.
CREATE OR REPLACE FUNCTION dataflow._is_name(name text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT coalesce(name !~ '[^A-Za-z0-9_.-]|^[^A-Za-z]|^$' AND length(name) <= 63, false) $$;

CREATE OR REPLACE FUNCTION dataflow._is_chunkid(dataid text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT coalesce(dataid !~ '[^A-Za-z0-9._:+=-]|^[.-]|^$' AND length(dataid) <= 128, false) $$;

-- Programs read from COLUMN what was asked for, and from CONSTRAINT, as a list in JSON, what there is; psql shows neither.
CREATE OR REPLACE FUNCTION dataflow._unknown(kind text, name text, known text[], otherwise text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'there is no % %', kind, coalesce(name, 'NULL') USING ERRCODE = 'DF404',
        HINT = CASE cardinality(known) WHEN 0 THEN otherwise ELSE format('the %ss are: %s', kind, array_to_string(known, ', ')) END,
        TABLE = kind, COLUMN = coalesce(name, 'NULL'), CONSTRAINT = to_json(known)::text;
END $$;

CREATE OR REPLACE FUNCTION dataflow._known_job(jobid text) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM dataflow.job k WHERE k.jobid = _known_job.jobid) THEN
        PERFORM dataflow._unknown('job', jobid, ARRAY(SELECT k.jobid::text FROM dataflow.job k WHERE k.retired IS NULL ORDER BY k.jobid LIMIT 20), 'no job is declared; `dataflowctl apply` a flow');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION dataflow._known_dataset(datasetid text) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM dataflow.dataset k WHERE k.datasetid = _known_dataset.datasetid) THEN
        PERFORM dataflow._unknown('dataset', datasetid, ARRAY(SELECT k.datasetid::text FROM dataflow.dataset k WHERE k.retired IS NULL ORDER BY k.datasetid LIMIT 20), 'no dataset is declared; `dataflowctl apply` a flow');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION dataflow._known_daemon(daemon text) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM dataflow.daemon k WHERE k.daemon = _known_daemon.daemon) THEN
        PERFORM dataflow._unknown('daemon', daemon, ARRAY(SELECT k.daemon::text FROM dataflow.daemon k ORDER BY k.stopped IS NOT NULL, k.daemon LIMIT 20), 'none was ever started');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION dataflow._checked_dataid(dataid text) RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF NOT dataflow._is_chunkid(dataid) THEN
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
