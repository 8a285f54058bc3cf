-- Writes what a flow file declares. A flow arrives as one document:
-- {"name": .., "file": .. (for history; may be missing), "datasets": [{columns of dataflow.dataset}], "jobs": [{columns of dataflow.job, "inputs": {dataset: mapping}, "outputs": [..]}]}

CREATE OR REPLACE FUNCTION dataflow._differing_keys(declared jsonb, before jsonb, after jsonb)
RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(array_agg(k.key ORDER BY k.key), '{}')
    FROM jsonb_object_keys(declared) AS k (key)
    WHERE after ? k.key AND before -> k.key IS DISTINCT FROM after -> k.key
$$;
COMMENT ON FUNCTION dataflow._differing_keys IS 'Which of the declared keys have another value after than before';

CREATE OR REPLACE FUNCTION dataflow._job_document(jobid dataflow.name)
RETURNS jsonb
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT to_jsonb(j) || jsonb_build_object(
        'inputs', coalesce(
            (SELECT jsonb_object_agg(i.datasetid, i.mapping) FROM dataflow.job_input AS i WHERE i.jobid = j.jobid), '{}'),
        'outputs', coalesce(
            (SELECT jsonb_agg(o.datasetid ORDER BY o.datasetid COLLATE "C")
             FROM dataflow.job_output AS o WHERE o.jobid = j.jobid), '[]'))
    FROM dataflow.job AS j
    WHERE j.jobid = _job_document.jobid
$$;
COMMENT ON FUNCTION dataflow._job_document IS 'A job with its inputs and outputs, as a flow would declare it';

CREATE OR REPLACE FUNCTION dataflow.plan_flow(declared jsonb, prune boolean DEFAULT false)
RETURNS TABLE (kind text, name text, action text, changed text[])
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH wanted AS (
        SELECT 'dataset' AS kind, item ->> 'datasetid' AS name, item || jsonb_build_object('flow', declared -> 'name') AS item
        FROM jsonb_array_elements(declared -> 'datasets') AS item
        UNION ALL
        SELECT 'job', item ->> 'jobid', item || jsonb_build_object('flow', declared -> 'name')
        FROM jsonb_array_elements(declared -> 'jobs') AS item
    ),
    compared AS (
        SELECT w.kind, w.name, d.datasetid IS NOT NULL AS existed, d.retired, dataflow._differing_keys(
            w.item, to_jsonb(d), to_jsonb(jsonb_populate_record(NULL::dataflow.dataset, w.item))) AS changed
        FROM wanted AS w LEFT JOIN dataflow.dataset AS d ON d.datasetid = w.name
        WHERE w.kind = 'dataset'
        UNION ALL
        SELECT w.kind, w.name, j.jobid IS NOT NULL, j.retired, dataflow._differing_keys(
            w.item,
            dataflow._job_document(j.jobid),
            to_jsonb(jsonb_populate_record(NULL::dataflow.job, w.item)) || jsonb_build_object(
                'inputs', w.item -> 'inputs',
                'outputs', (SELECT jsonb_agg(o ORDER BY o COLLATE "C") FROM jsonb_array_elements_text(w.item -> 'outputs') AS o)))
        FROM wanted AS w LEFT JOIN dataflow.job AS j ON j.jobid = w.name
        WHERE w.kind = 'job'
    ),
    existing AS (
        SELECT 'dataset' AS kind, d.datasetid::text AS name FROM dataflow.dataset AS d
        WHERE d.flow = declared ->> 'name' AND d.retired IS NULL
        UNION ALL
        SELECT 'job', j.jobid FROM dataflow.job AS j
        WHERE j.flow = declared ->> 'name' AND j.retired IS NULL
    )
    SELECT c.kind, c.name,
        CASE
            WHEN NOT c.existed THEN 'created'
            WHEN c.retired IS NOT NULL OR c.changed <> '{}' THEN 'changed'
            ELSE 'unchanged'
        END,
        CASE
            WHEN NOT c.existed THEN '{}'
            WHEN c.retired IS NOT NULL THEN c.changed || 'retired'::text
            ELSE c.changed
        END
    FROM compared AS c
    UNION ALL
    SELECT e.kind, e.name, 'retired', '{retired}'
    FROM existing AS e
    WHERE prune AND NOT EXISTS (SELECT FROM wanted AS w WHERE w.kind = e.kind AND w.name = e.name)
    ORDER BY 1, 2
$$;
COMMENT ON FUNCTION dataflow.plan_flow IS 'What apply_flow would do: created, changed (which columns), retired or unchanged';

CREATE OR REPLACE FUNCTION dataflow.flow_conflicts(declared jsonb, prune boolean DEFAULT false)
RETURNS TABLE (kind text, name text, datasetid text, what text, remedy text)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH wanted_dataset AS (
        SELECT item ->> 'datasetid' AS datasetid FROM jsonb_array_elements(declared -> 'datasets') AS item
    ),
    wanted_job AS (
        SELECT item ->> 'jobid' AS jobid, item -> 'inputs' AS inputs, item -> 'outputs' AS outputs
        FROM jsonb_array_elements(declared -> 'jobs') AS item
    ),
    wanted_output AS (
        SELECT w.jobid, o AS datasetid FROM wanted_job AS w, jsonb_array_elements_text(w.outputs) AS o
    ),
    wanted_input AS (
        SELECT w.jobid, i AS datasetid FROM wanted_job AS w, jsonb_object_keys(w.inputs) AS i
    )
    SELECT 'dataset', d.datasetid::text, NULL::text,
        format('dataset %s belongs to flow %s', d.datasetid, d.flow),
        format('rename it here, or remove it from flow %s and apply that with --prune first', d.flow)
    FROM wanted_dataset AS w JOIN dataflow.dataset AS d USING (datasetid)
    -- A flow file may take over what was declared by SQL alone.
    WHERE d.flow NOT IN ('', '(sql)', declared ->> 'name') AND d.retired IS NULL
    UNION ALL
    SELECT 'job', j.jobid::text, NULL,
        format('job %s belongs to flow %s', j.jobid, j.flow),
        CASE WHEN j.flow = 'job:' || j.jobid THEN format('rename it here, or first: dataflowctl job drop %s', j.jobid)
            ELSE format('rename it here, or remove it from flow %s and apply that with --prune first', j.flow) END
    FROM wanted_job AS w JOIN dataflow.job AS j USING (jobid)
    WHERE j.flow NOT IN ('', '(sql)', declared ->> 'name') AND j.retired IS NULL
    UNION ALL
    SELECT 'outputs', w.jobid, w.datasetid,
        format('dataset %s is produced by job %s of flow %s', w.datasetid, j.jobid, j.flow),
        CASE WHEN j.flow = declared ->> 'name'
            THEN 'this flow no longer declares that job: apply with --prune to retire it'
            ELSE 'a dataset has one producer; give this job an output of its own' END
    FROM wanted_output AS w
    JOIN dataflow.job_output AS o USING (datasetid)
    JOIN dataflow.job AS j ON j.jobid = o.jobid AND j.jobid <> w.jobid
    WHERE NOT EXISTS (SELECT FROM wanted_job AS mine WHERE mine.jobid = j.jobid AND j.flow IN ('', '(sql)', declared ->> 'name'))
        AND NOT (prune AND j.flow = declared ->> 'name')
    UNION ALL
    SELECT n.kind, n.jobid, n.datasetid,
        format('job %s names dataset %s, which does not exist', n.jobid, n.datasetid),
        'declare it in this flow'
    FROM (
        SELECT 'inputs' AS kind, i.jobid, i.datasetid FROM wanted_input AS i
        UNION ALL
        SELECT 'outputs', o.jobid, o.datasetid FROM wanted_output AS o
    ) AS n
    WHERE NOT EXISTS (SELECT FROM wanted_dataset AS w WHERE w.datasetid = n.datasetid)
        AND NOT EXISTS (SELECT FROM dataflow.dataset AS d WHERE d.datasetid = n.datasetid AND d.retired IS NULL)
    UNION ALL
    SELECT 'dataset', d.datasetid::text, NULL,
        format('dataset %s would be retired, but job %s of flow %s uses it', d.datasetid, j.jobid, j.flow),
        'keep declaring it, or change that flow first'
    FROM dataflow.dataset AS d
    JOIN (
        SELECT i.datasetid, i.jobid FROM dataflow.job_input AS i
        UNION
        SELECT o.datasetid, o.jobid FROM dataflow.job_output AS o
    ) AS u USING (datasetid)
    JOIN dataflow.job AS j ON j.jobid = u.jobid AND j.retired IS NULL AND j.flow <> declared ->> 'name'
    WHERE prune AND d.flow = declared ->> 'name' AND d.retired IS NULL
        AND NOT EXISTS (SELECT FROM wanted_dataset AS w WHERE w.datasetid = d.datasetid)
    UNION ALL
    SELECT 'job', l.base::text, NULL,
        format('job %s would be retired, but job %s was created like it', l.base, l.jobid),
        format('keep declaring it, or first: dataflowctl job drop %s', l.jobid)
    FROM dataflow.job_like AS l JOIN dataflow.job AS j ON j.jobid = l.base
    WHERE prune AND j.flow = declared ->> 'name' AND j.retired IS NULL
        AND NOT EXISTS (SELECT FROM wanted_job AS w WHERE w.jobid = l.base)
    ORDER BY 1, 2, 3
$$;
COMMENT ON FUNCTION dataflow.flow_conflicts IS 'Why a flow cannot be applied: what it declares belongs to another, or does not exist';

CREATE OR REPLACE FUNCTION dataflow._write_flow(declared jsonb, prune boolean)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    flow_name text := declared ->> 'name';
    declared_jobs text[] := ARRAY(SELECT item ->> 'jobid' FROM jsonb_array_elements(declared -> 'jobs') AS item);
    declared_datasets text[] := ARRAY(SELECT item ->> 'datasetid' FROM jsonb_array_elements(declared -> 'datasets') AS item);
    retired_jobs text[] := '{}';
BEGIN
    INSERT INTO dataflow.dataset AS d (
        datasetid, flow, description, format, location, hostname, port, database, schemaname, tablename, username,
        columns, options, checks, ordering, publish, environment, digest, expect_newer,
        calendar, calendar_zone, calendar_start, calendar_ready, calendar_next)
    SELECT
        r.datasetid, flow_name, r.description, r.format, r.location, r.hostname, r.port, r.database, r.schemaname,
        r.tablename, r.username, r.columns, r.options, r.checks, r.ordering, r.publish, r.environment,
        coalesce(r.digest, false), coalesce(r.expect_newer, false),
        r.calendar, r.calendar_zone, r.calendar_start, r.calendar_ready, r.calendar_start
    FROM jsonb_populate_recordset(NULL::dataflow.dataset, declared -> 'datasets') AS r
    ON CONFLICT (datasetid) DO UPDATE SET
        (flow, description, format, location, hostname, port, database, schemaname, tablename, username, columns,
         options, checks, ordering, publish, environment, digest, expect_newer, calendar, calendar_zone, calendar_start, calendar_ready,
         calendar_next, modified, retired) = ROW (
            excluded.flow, excluded.description, excluded.format, excluded.location, excluded.hostname, excluded.port,
            excluded.database, excluded.schemaname, excluded.tablename, excluded.username, excluded.columns,
            excluded.options, excluded.checks, excluded.ordering, excluded.publish, excluded.environment, excluded.digest, excluded.expect_newer,
            excluded.calendar, excluded.calendar_zone, excluded.calendar_start, excluded.calendar_ready,
            -- The calendar goes on where it was, unless the flow declares another calendar.
            CASE WHEN (d.calendar, d.calendar_zone, d.calendar_start)
                IS NOT DISTINCT FROM (excluded.calendar, excluded.calendar_zone, excluded.calendar_start)
                THEN d.calendar_next ELSE excluded.calendar_start END,
            now(), NULL)
    WHERE d.retired IS NOT NULL OR (
            d.flow, d.description, d.format, d.location, d.hostname, d.port, d.database, d.schemaname, d.tablename,
            d.username, d.columns, d.options, d.checks, d.ordering, d.publish, d.environment, d.digest, d.expect_newer,
            d.calendar, d.calendar_zone, d.calendar_start, d.calendar_ready)
        IS DISTINCT FROM (
            excluded.flow, excluded.description, excluded.format, excluded.location, excluded.hostname, excluded.port,
            excluded.database, excluded.schemaname, excluded.tablename, excluded.username, excluded.columns,
            excluded.options, excluded.checks, excluded.ordering, excluded.publish, excluded.environment, excluded.digest, excluded.expect_newer,
            excluded.calendar, excluded.calendar_zone, excluded.calendar_start, excluded.calendar_ready);

    INSERT INTO dataflow.job AS j (
        jobid, flow, description, kind, params, max_running, max_attempts, max_lost, retry_delay, timeout, priority,
        strict_order, rowwise, config_hash)
    SELECT
        r.jobid, flow_name, r.description, r.kind, r.params, r.max_running, r.max_attempts, r.max_lost, r.retry_delay,
        r.timeout, r.priority, r.strict_order, coalesce(r.rowwise, false), r.config_hash
    FROM jsonb_populate_recordset(NULL::dataflow.job, declared -> 'jobs') AS r
    ON CONFLICT (jobid) DO UPDATE SET
        (flow, description, kind, params, max_running, max_attempts, max_lost, retry_delay, timeout, priority,
         strict_order, rowwise, config_hash, modified, retired) = ROW (
            excluded.flow, excluded.description, excluded.kind, excluded.params, excluded.max_running,
            excluded.max_attempts, excluded.max_lost, excluded.retry_delay, excluded.timeout, excluded.priority,
            excluded.strict_order, excluded.rowwise, excluded.config_hash, now(), NULL)
    WHERE j.retired IS NOT NULL OR (
            j.flow, j.description, j.kind, j.params, j.max_running, j.max_attempts, j.max_lost, j.retry_delay,
            j.timeout, j.priority, j.strict_order, j.rowwise, j.config_hash)
        IS DISTINCT FROM (
            excluded.flow, excluded.description, excluded.kind, excluded.params, excluded.max_running,
            excluded.max_attempts, excluded.max_lost, excluded.retry_delay, excluded.timeout, excluded.priority,
            excluded.strict_order, excluded.rowwise, excluded.config_hash);

    IF prune THEN
        WITH gone AS (
            UPDATE dataflow.job AS j SET retired = now(), modified = now()
            WHERE j.flow = flow_name AND j.retired IS NULL AND j.jobid <> ALL (declared_jobs)
            RETURNING j.jobid
        )
        SELECT coalesce(array_agg(g.jobid::text), '{}') INTO retired_jobs FROM gone AS g;
        UPDATE dataflow.dataset AS d SET retired = now(), modified = now()
        WHERE d.flow = flow_name AND d.retired IS NULL AND d.datasetid <> ALL (declared_datasets);
    END IF;

    -- An output that moves from one job to another, or away from a retired job, is updated in one statement, so that it always has a
    -- producer. The new producer makes again what was being written.
    UPDATE dataflow.job_output AS o SET jobid = item ->> 'jobid'
    FROM jsonb_array_elements(declared -> 'jobs') AS item
    WHERE item -> 'outputs' ? o.datasetid AND o.jobid <> item ->> 'jobid';
    DELETE FROM dataflow.job_output AS o
    WHERE o.jobid = ANY (declared_jobs || retired_jobs) AND NOT EXISTS (
        SELECT FROM jsonb_array_elements(declared -> 'jobs') AS item
        WHERE item ->> 'jobid' = o.jobid AND item -> 'outputs' ? o.datasetid);
    DELETE FROM dataflow.job_input AS i
    WHERE i.jobid = ANY (declared_jobs || retired_jobs) AND NOT EXISTS (
        SELECT FROM jsonb_array_elements(declared -> 'jobs') AS item
        WHERE item ->> 'jobid' = i.jobid AND item -> 'inputs' ? i.datasetid);
    INSERT INTO dataflow.job_output (jobid, datasetid)
    SELECT item ->> 'jobid', o
    FROM jsonb_array_elements(declared -> 'jobs') AS item, jsonb_array_elements_text(item -> 'outputs') AS o
    ON CONFLICT (jobid, datasetid) DO NOTHING;
    INSERT INTO dataflow.job_input AS i (jobid, datasetid, mapping)
    SELECT item ->> 'jobid', n.key, n.value
    FROM jsonb_array_elements(declared -> 'jobs') AS item, jsonb_each(item -> 'inputs') AS n
    ON CONFLICT (jobid, datasetid) DO UPDATE SET mapping = excluded.mapping
    WHERE i.mapping <> excluded.mapping;
END $$;
COMMENT ON FUNCTION dataflow._write_flow IS 'The writing half of apply_flow, which checks first';

-- The jobs that a flow changes, or whose datasets it changes, and the jobs that share the code of one of these.
CREATE OR REPLACE FUNCTION dataflow._touched_jobs(declared jsonb, prune boolean)
RETURNS text[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH changed AS MATERIALIZED (
        SELECT p.kind, p.name FROM dataflow.plan_flow(declared, prune) AS p WHERE p.action <> 'unchanged'
    ),
    touched AS MATERIALIZED (
        SELECT c.name AS jobid FROM changed AS c WHERE c.kind = 'job'
        UNION
        SELECT i.jobid FROM changed AS c JOIN dataflow.job_input AS i ON i.datasetid = c.name WHERE c.kind = 'dataset'
        UNION
        SELECT o.jobid FROM changed AS c JOIN dataflow.job_output AS o ON o.datasetid = c.name WHERE c.kind = 'dataset'
    )
    SELECT ARRAY(
        SELECT t.jobid FROM touched AS t
        UNION
        SELECT l.jobid FROM touched AS t JOIN dataflow.job_like AS l ON l.base = t.jobid)
$$;

-- Of the jobs that a flow touches, those whose runs have to be judged again. The columns that no question reads are listed here; a change
-- of any other column, also of a new one, has the runs judged.
CREATE OR REPLACE FUNCTION dataflow._jobs_to_judge(declared jsonb, prune boolean)
RETURNS text[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH changed AS MATERIALIZED (
        SELECT p.kind, p.name FROM dataflow.plan_flow(declared, prune) AS p
        WHERE p.action IN ('created', 'retired') OR p.action = 'changed' AND NOT p.changed <@ CASE p.kind
            WHEN 'job' THEN ARRAY['description', 'params', 'config_hash', 'priority', 'timeout', 'max_running', 'max_attempts', 'max_lost', 'retry_delay']
            ELSE ARRAY['description'] END
    ), touched AS MATERIALIZED (
        SELECT c.name AS jobid FROM changed AS c WHERE c.kind = 'job'
        UNION
        SELECT i.jobid FROM changed AS c JOIN dataflow.job_input AS i ON i.datasetid = c.name WHERE c.kind = 'dataset'
        UNION
        SELECT o.jobid FROM changed AS c JOIN dataflow.job_output AS o ON o.datasetid = c.name WHERE c.kind = 'dataset'
    )
    SELECT ARRAY(
        SELECT t.jobid FROM touched AS t
        UNION
        SELECT l.jobid FROM touched AS t JOIN dataflow.job_like AS l ON l.base = t.jobid)
$$;

CREATE OR REPLACE FUNCTION dataflow._used_datasets(jobids text[])
RETURNS text[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ARRAY(
        SELECT i.datasetid::text FROM dataflow.job_input AS i WHERE i.jobid = ANY (jobids)
        UNION
        SELECT o.datasetid FROM dataflow.job_output AS o WHERE o.jobid = ANY (jobids))
$$;

CREATE OR REPLACE FUNCTION dataflow.apply_flow(declared jsonb, prune boolean DEFAULT false, dry_run boolean DEFAULT false)
RETURNS TABLE (kind text, name text, action text, changed text[])
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    conflict record;
    is_alone boolean;
    oldest_open xid8;
    touched text[];
    judged text[];
    used text[];
BEGIN
    IF jsonb_typeof(declared -> 'name') IS DISTINCT FROM 'string' OR declared ->> 'name' = ''
        OR jsonb_typeof(declared -> 'datasets') IS DISTINCT FROM 'array'
        OR jsonb_typeof(declared -> 'jobs') IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'this is no flow' USING
            ERRCODE = 'DF400', HINT = 'a flow has a name, an array of datasets and an array of jobs';
    END IF;
    IF NOT dry_run THEN
        PERFORM dataflow._require_read_committed();
        -- History names this flow for all changes of the transaction, also for the code versions that follow.
        PERFORM dataflow._say_source(declared ->> 'name', declared ->> 'file');
        PERFORM pg_advisory_xact_lock(hashtextextended('dataflow.apply', 0));
        -- A transaction that changes status from here on sees the apply lock. One that began before holds the gate, and is seen here.
        SELECT c.is_alone INTO is_alone FROM dataflow._company() AS c;
        oldest_open := pg_snapshot_xmin(pg_current_snapshot());
    END IF;
    BEGIN
        SELECT * INTO conflict FROM dataflow.flow_conflicts(declared, prune) LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION '%', conflict.what USING ERRCODE = 'DF409', HINT = conflict.remedy;
        END IF;
        RETURN QUERY SELECT p.kind, p.name, p.action, p.changed FROM dataflow.plan_flow(declared, prune) AS p;
        IF dry_run OR NOT EXISTS (SELECT FROM dataflow.plan_flow(declared, prune) AS p WHERE p.action <> 'unchanged') THEN
            RETURN;
        END IF;
        -- Locked job rows keep claims away from these jobs until the commit; earlier claims have committed and are visible.
        touched := dataflow._touched_jobs(declared, prune);
        judged := dataflow._jobs_to_judge(declared, prune);
        PERFORM FROM dataflow.job AS j WHERE j.jobid = ANY (touched) ORDER BY j.jobid FOR UPDATE;
        used := dataflow._used_datasets(touched);
        PERFORM dataflow._write_flow(declared, prune);
        PERFORM dataflow._write_likes(touched);
        -- A claim of a job that feeds a strict job creates runs of the strict job, so these claims have to wait, too.
        PERFORM FROM dataflow.job AS j WHERE j.jobid IN (
            SELECT o.jobid FROM dataflow.job AS k JOIN dataflow.job_input AS i ON i.jobid = k.jobid JOIN dataflow.job_output AS o ON o.datasetid = i.datasetid
            WHERE k.jobid = ANY (touched) AND k.strict_order) ORDER BY j.jobid FOR UPDATE;
    EXCEPTION WHEN data_exception OR integrity_constraint_violation THEN
        RAISE EXCEPTION 'the flow holds a value that cannot be stored: %', SQLERRM USING
            ERRCODE = 'DF400', HINT = 'check the file with `dataflowctl apply --check`';
    END;
    IF NOT is_alone THEN
        -- Chunks that open transactions are changing: they do not see the new flow, and _rebuild_queue() does not see their changes.
        INSERT INTO dataflow.recheck (datasetid, since)
        SELECT d, oldest_open FROM unnest(used) AS d
        UNION
        SELECT d, oldest_open FROM unnest(dataflow._used_datasets(touched)) AS d;
        -- An open transaction may have judged a run by the old declaration and taken it from the queue.
        INSERT INTO dataflow.recheck (jobid, dataid)
        SELECT w.jobid, w.dataid FROM dataflow.work AS w WHERE w.jobid = ANY (touched);
    END IF;
    PERFORM dataflow._rebuild_queue(judged);
END $$;
COMMENT ON FUNCTION dataflow.apply_flow IS
    'Upserts what a flow declares and, with prune, retires what it no longer does; returns the changes. dry_run writes nothing';

REVOKE EXECUTE ON FUNCTION dataflow._differing_keys, dataflow._job_document, dataflow.plan_flow, dataflow.flow_conflicts,
    dataflow._write_flow, dataflow._touched_jobs, dataflow._jobs_to_judge, dataflow._used_datasets, dataflow.apply_flow FROM PUBLIC;
