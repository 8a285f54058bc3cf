-- History of what is declared: who changed which dataset, job, mapping or limit, from what, to what, and by which flow file.
--
-- A trigger writes the events, so that every change is recorded: by `dataflowctl apply`, by a function, or by hand in psql. There is one
-- event for each changed column: its kind is dataset or job, its code is the column (or input, output, declared), from_status and to_status
-- are the values. Values whose names look like secrets are masked; seal() records changes of a sealed password.

-- The trigger function of release 0.1, which recorded six columns only.
DROP FUNCTION IF EXISTS dataflow._connection_changed();

-- apply_flow() names its flow for the rest of the transaction. Only history uses it; nothing is decided by it.
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

-- A value as history stores it.
CREATE OR REPLACE FUNCTION dataflow._told_value(value jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN left(dataflow._without_secrets(_told_value.value) #>> '{}', 2000);
END $$;

CREATE OR REPLACE FUNCTION dataflow._declaration_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    -- Columns that nobody declares: clocks, how far a calendar has come, and passwords.
    untold constant text[] := '{created,modified,calendar_next,encryptedpass}';
    is_thing constant boolean := TG_TABLE_NAME IN ('dataset', 'job');
    was constant jsonb := CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(old) END;
    is_now constant jsonb := CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(new) END;
BEGIN
    INSERT INTO dataflow.event (kind, jobid, datasetid, code, from_status, to_status, reason)
    SELECT CASE TG_TABLE_NAME WHEN 'dataset' THEN 'dataset' ELSE 'job' END, coalesce(c.whose ->> 'jobid', ''), c.whose ->> 'datasetid', c.code,
        dataflow._told_value(c.before), dataflow._told_value(c.after), dataflow._source()
    FROM (
        SELECT is_now, 'declared', NULL::jsonb, CASE TG_TABLE_NAME WHEN 'job' THEN is_now -> 'kind'
            ELSE to_jsonb(dataflow._place(jsonb_populate_record(NULL::dataflow.dataset, is_now), NULL)) END
        WHERE is_thing AND was IS NULL
        UNION ALL
        SELECT is_now, v.key, was -> v.key, v.value FROM jsonb_each(is_now - untold) AS v
        WHERE is_thing AND was IS NOT NULL AND v.value IS DISTINCT FROM was -> v.key
        UNION ALL
        SELECT coalesce(is_now, was), 'input', was -> 'mapping', is_now -> 'mapping'
        WHERE TG_TABLE_NAME = 'job_input' AND was -> 'mapping' IS DISTINCT FROM is_now -> 'mapping'
        UNION ALL
        -- When an output moves to another job, each of the two jobs gets an event.
        SELECT was, 'output', '"written"', NULL WHERE TG_TABLE_NAME = 'job_output' AND was IS NOT NULL
        UNION ALL
        SELECT is_now, 'output', NULL, '"written"' WHERE TG_TABLE_NAME = 'job_output' AND is_now IS NOT NULL
    ) AS c (whose, code, before, after)
    ORDER BY c.code, c.after IS NOT NULL;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER dataset_changed AFTER INSERT OR UPDATE ON dataflow.dataset
    FOR EACH ROW EXECUTE FUNCTION dataflow._declaration_changed();
CREATE OR REPLACE TRIGGER job_changed AFTER INSERT OR UPDATE ON dataflow.job
    FOR EACH ROW EXECUTE FUNCTION dataflow._declaration_changed();
CREATE OR REPLACE TRIGGER job_input_changed AFTER INSERT OR UPDATE OR DELETE ON dataflow.job_input
    FOR EACH ROW EXECUTE FUNCTION dataflow._declaration_changed();
CREATE OR REPLACE TRIGGER job_output_changed AFTER INSERT OR UPDATE OR DELETE ON dataflow.job_output
    FOR EACH ROW EXECUTE FUNCTION dataflow._declaration_changed();
