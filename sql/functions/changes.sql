-- History of what is declared: who changed which dataset, job, mapping or limit, from what, to what, and by which flow file.
--
-- Triggers write it, so that a change is told whoever makes it: `dataflowctl apply`, a function, or a hand in psql. One event
-- a changed column: kind dataset or job, code the column (or input, output, declared, retired), the values before and after. Values that
-- are named like secrets are masked, and a sealed password is told of by seal().

-- Of release 0.1, whose trigger told of six columns only.
DROP FUNCTION IF EXISTS dataflow._connection_changed();

-- Said by apply_flow() for the rest of its transaction, and nothing is decided by it.
CREATE OR REPLACE FUNCTION dataflow._say_source(flow text, file text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('dataflow.source', left('flow ' || _say_source.flow || coalesce(', ' || _say_source.file, ''), 500), true);
END $$;

CREATE OR REPLACE FUNCTION dataflow._source() RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT nullif(current_setting('dataflow.source', true), '') $$;

-- A value as history tells it.
CREATE OR REPLACE FUNCTION dataflow._told_value(value jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN left(dataflow._without_secrets(_told_value.value) #>> '{}', 2000);
END $$;

CREATE OR REPLACE FUNCTION dataflow._tell_changes(kind text, jobid text, datasetid text, was jsonb, is_now jsonb) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    -- Not declared: clocks, what a calendar has reached, and passwords.
    untold constant text[] := '{created,modified,calendar_next,encryptedpass}';
BEGIN
    INSERT INTO dataflow.event (kind, jobid, datasetid, code, from_status, to_status, reason)
    SELECT _tell_changes.kind, _tell_changes.jobid, _tell_changes.datasetid, c.key,
        dataflow._told_value(_tell_changes.was -> c.key), dataflow._told_value(c.value), dataflow._source()
    FROM jsonb_each(_tell_changes.is_now - untold) AS c
    WHERE c.value IS DISTINCT FROM _tell_changes.was -> c.key ORDER BY c.key;
END $$;

CREATE OR REPLACE FUNCTION dataflow._dataset_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO dataflow.event (kind, datasetid, code, to_status, reason)
        VALUES ('dataset', new.datasetid, 'declared', dataflow._told_value(to_jsonb(dataflow._place(new, NULL))), dataflow._source());
    ELSE
        PERFORM dataflow._tell_changes('dataset', '', new.datasetid, to_jsonb(old), to_jsonb(new));
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION dataflow._job_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO dataflow.event (kind, jobid, code, to_status, reason) VALUES ('job', new.jobid, 'declared', new.kind, dataflow._source());
    ELSE
        PERFORM dataflow._tell_changes('job', new.jobid, NULL, to_jsonb(old), to_jsonb(new));
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION dataflow._job_input_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO dataflow.event (kind, jobid, datasetid, code, from_status, to_status, reason)
    SELECT 'job', c.jobid, c.datasetid, 'input', dataflow._told_value(c.was), dataflow._told_value(c.is_now), dataflow._source()
    FROM (VALUES (CASE TG_OP WHEN 'DELETE' THEN old.jobid ELSE new.jobid END, CASE TG_OP WHEN 'DELETE' THEN old.datasetid ELSE new.datasetid END,
        CASE WHEN TG_OP <> 'INSERT' THEN old.mapping END, CASE WHEN TG_OP <> 'DELETE' THEN new.mapping END)) AS c (jobid, datasetid, was, is_now)
    WHERE c.was IS DISTINCT FROM c.is_now;
    RETURN NULL;
END $$;

-- An output that moves is lost by one job and got by another.
CREATE OR REPLACE FUNCTION dataflow._job_output_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO dataflow.event (kind, jobid, datasetid, code, from_status, reason) VALUES ('job', old.jobid, old.datasetid, 'output', 'written', dataflow._source());
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO dataflow.event (kind, jobid, datasetid, code, to_status, reason) VALUES ('job', new.jobid, new.datasetid, 'output', 'written', dataflow._source());
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER dataset_changed AFTER INSERT OR UPDATE ON dataflow.dataset
    FOR EACH ROW EXECUTE FUNCTION dataflow._dataset_changed();
CREATE OR REPLACE TRIGGER job_changed AFTER INSERT OR UPDATE ON dataflow.job
    FOR EACH ROW EXECUTE FUNCTION dataflow._job_changed();
CREATE OR REPLACE TRIGGER job_input_changed AFTER INSERT OR UPDATE OR DELETE ON dataflow.job_input
    FOR EACH ROW EXECUTE FUNCTION dataflow._job_input_changed();
CREATE OR REPLACE TRIGGER job_output_changed AFTER INSERT OR UPDATE OR DELETE ON dataflow.job_output
    FOR EACH ROW EXECUTE FUNCTION dataflow._job_output_changed();
