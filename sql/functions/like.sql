-- Jobs that run the code of another one, over a source, with parameters and a description of their own.
--
-- Such a job is stored as a flow of its own, job:<name>, that no file declares. So apply_flow() checks, locks and judges it like any
-- other, and `apply --prune` of a file does not retire it. All that was not given at its creation comes from the other job (its base). When
-- a file changes the base, _write_likes() writes the jobs that share its code anew in the same transaction.

-- The job whose code a job runs: usually the job itself.
CREATE OR REPLACE FUNCTION dataflow._code_of(jobid text) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT coalesce((SELECT l.base::text FROM dataflow.job_like l WHERE l.jobid = _code_of.jobid), _code_of.jobid) $$;

CREATE OR REPLACE FUNCTION dataflow.code_of(jobid text) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT dataflow._code_of(jobid) $$;
COMMENT ON FUNCTION dataflow.code_of(text) IS 'The job whose code a job runs: the job that it was created like, else the job itself';

-- What the job reads: for each name in the code the dataset, and its mapping.
CREATE OR REPLACE FUNCTION dataflow._like_inputs(jobid text) RETURNS TABLE (role text, datasetid text, mapping jsonb)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT i.datasetid, coalesce(l.sources ->> i.datasetid, i.datasetid),
        CASE WHEN l.partitioning IS NOT NULL AND l.sources ? i.datasetid THEN jsonb_build_object('kind', 'partitioning', 'name', l.partitioning) ELSE i.mapping END
    FROM dataflow.job_like l JOIN dataflow.job_input i ON i.jobid = l.base
    WHERE l.jobid = _like_inputs.jobid
$$;

-- A dataset that is made for the job lies beside that of the base, and is declared like it in everything else.
CREATE OR REPLACE FUNCTION dataflow._like_outputs(jobid text) RETURNS TABLE (role text, datasetid text, made jsonb)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT o.datasetid, n.datasetid, CASE WHEN NOT l.outputs ? o.datasetid THEN
        to_jsonb(d) - ARRAY['flow', 'encryptedpass', 'calendar_next', 'created', 'modified', 'retired'] || jsonb_build_object('datasetid', n.datasetid,
            'location', rtrim(d.location, '/') || '.' || l.jobid, 'description', format('%s of job %s', o.datasetid, l.jobid)) END
    FROM dataflow.job_like l JOIN dataflow.job_output o ON o.jobid = l.base JOIN dataflow.dataset d ON d.datasetid = o.datasetid
    CROSS JOIN LATERAL (SELECT coalesce(l.outputs ->> o.datasetid, l.jobid || '.' || o.datasetid) AS datasetid) AS n
    WHERE l.jobid = _like_outputs.jobid
$$;

CREATE OR REPLACE FUNCTION dataflow._like_config(jobid text) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT encode(sha256(convert_to(b.config_hash || l.params::text || (
        SELECT coalesce(jsonb_agg(to_jsonb(i) ORDER BY i.role COLLATE "C"), '[]') FROM dataflow._like_inputs(l.jobid) AS i)::text, 'UTF8')), 'hex')
    FROM dataflow.job_like l JOIN dataflow.job b ON b.jobid = l.base WHERE l.jobid = _like_config.jobid
$$;

-- The document that apply_flow() takes.
CREATE OR REPLACE FUNCTION dataflow._like_document(jobid text) RETURNS jsonb
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT jsonb_build_object('name', 'job:' || l.jobid,
        'datasets', (SELECT coalesce(jsonb_agg(o.made), '[]') FROM dataflow._like_outputs(l.jobid) AS o WHERE o.made IS NOT NULL),
        'jobs', jsonb_build_array(jsonb_build_object('jobid', l.jobid, 'description', l.description, 'kind', b.kind, 'params', b.params || l.params,
            'max_running', b.max_running, 'max_attempts', b.max_attempts, 'max_lost', b.max_lost, 'retry_delay', b.retry_delay, 'timeout', b.timeout,
            'priority', b.priority, 'strict_order', b.strict_order, 'rowwise', b.rowwise, 'config_hash', dataflow._like_config(l.jobid),
            'inputs', (SELECT coalesce(jsonb_object_agg(i.datasetid, i.mapping), '{}') FROM dataflow._like_inputs(l.jobid) AS i),
            'outputs', (SELECT coalesce(jsonb_agg(o.datasetid), '[]') FROM dataflow._like_outputs(l.jobid) AS o))))
    FROM dataflow.job_like l JOIN dataflow.job b ON b.jobid = l.base WHERE l.jobid = _like_document.jobid
$$;

-- Refuses sources, outputs and parameters that the base does not have. The base may have changed since the job was created.
CREATE OR REPLACE FUNCTION dataflow._require_like(jobid text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    l dataflow.job_like;
    fault text;
    needed text;
BEGIN
    SELECT * INTO l FROM dataflow.job_like k WHERE k.jobid = _require_like.jobid;
    IF EXISTS (SELECT FROM dataflow.job b WHERE b.jobid = l.base AND b.retired IS NOT NULL) THEN
        fault := format('runs the code of %s, which is retired', l.base);
    ELSE
        SELECT format('gives %s an input %s, which that does not read', l.base, k) INTO fault FROM jsonb_object_keys(l.sources) AS k
            WHERE NOT EXISTS (SELECT FROM dataflow.job_input i WHERE i.jobid = l.base AND i.datasetid = k) LIMIT 1;
        IF fault IS NULL THEN
            SELECT format('gives %s an output %s, which that does not write', l.base, k) INTO fault FROM jsonb_object_keys(l.outputs) AS k
                WHERE NOT EXISTS (SELECT FROM dataflow.job_output o WHERE o.jobid = l.base AND o.datasetid = k) LIMIT 1;
        END IF;
        IF fault IS NULL THEN
            SELECT format('would read %s twice', i.datasetid) INTO fault FROM dataflow._like_inputs(l.jobid) AS i GROUP BY i.datasetid HAVING count(*) > 1 LIMIT 1;
        END IF;
        IF fault IS NULL THEN
            SELECT format('would write %s, which it reads', o.datasetid) INTO fault FROM dataflow._like_outputs(l.jobid) AS o
                JOIN dataflow._like_inputs(l.jobid) AS i USING (datasetid) LIMIT 1;
        END IF;
        IF fault IS NULL THEN
            -- Nobody could tell apart the rows of two jobs in one table, or their files below one location with {dataid} in it.
            SELECT o.role, format('needs an output of its own for %s, which %s', o.role, CASE WHEN length(o.datasetid) > 63 THEN 'would have a name of more than 63 characters'
                    WHEN d.location IS NULL THEN 'is no directory of files' ELSE 'has a place for each chunk' END)
            INTO needed, fault
            FROM dataflow._like_outputs(l.jobid) AS o JOIN dataflow.dataset d ON d.datasetid = o.role
            WHERE o.made IS NOT NULL AND (d.location IS NULL OR d.location LIKE '%{dataid}%' OR length(o.datasetid) > 63) LIMIT 1;
        END IF;
    END IF;
    IF needed IS NOT NULL THEN
        RAISE EXCEPTION 'job % %', jobid, fault USING ERRCODE = 'DF409', HINT = format('declare a dataset for it, and name that: --output %s=DATASET', needed);
    END IF;
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION 'job % %', jobid, fault USING ERRCODE = 'DF409', HINT = format('give it others; or leave the other job as it was; or: dataflowctl job drop %s', jobid);
    END IF;
END $$;

-- The names by which the code knows the datasets of the job.
CREATE OR REPLACE FUNCTION dataflow._write_roles(jobid text) RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    UPDATE dataflow.job_input i SET role = nullif(k.role, k.datasetid) FROM dataflow._like_inputs(_write_roles.jobid) AS k
        WHERE i.jobid = _write_roles.jobid AND i.datasetid = k.datasetid AND i.role IS DISTINCT FROM nullif(k.role, k.datasetid);
    UPDATE dataflow.job_output o SET role = nullif(k.role, k.datasetid) FROM dataflow._like_outputs(_write_roles.jobid) AS k
        WHERE o.jobid = _write_roles.jobid AND o.datasetid = k.datasetid AND o.role IS DISTINCT FROM nullif(k.role, k.datasetid);
$$;

-- Writes the jobs anew that run the code of jobs which a flow has just changed.
CREATE OR REPLACE FUNCTION dataflow._write_likes(changed text[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    l record;
BEGIN
    FOR l IN SELECT k.jobid FROM dataflow.job_like k WHERE k.base = ANY (changed) ORDER BY k.jobid LOOP
        PERFORM dataflow._require_like(l.jobid);
        PERFORM dataflow._write_flow(dataflow._like_document(l.jobid), false);
        PERFORM dataflow._write_roles(l.jobid);
    END LOOP;
END $$;

-- Daemons report the code and configuration of the base alone; the jobs that share its code get the same.
CREATE OR REPLACE FUNCTION dataflow._tell_likes(base text) RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO dataflow.job_code (jobid, code_hash, same_as, parts)
        SELECT l.jobid, c.code_hash, c.same_as, c.parts FROM dataflow.job_like l JOIN dataflow.job_code c ON c.jobid = l.base WHERE l.base = _tell_likes.base
        ON CONFLICT DO NOTHING;
    UPDATE dataflow.job j SET code_hash = b.code_hash, config_hash = dataflow._like_config(l.jobid), modified = now()
        FROM dataflow.job_like l JOIN dataflow.job b ON b.jobid = l.base
        WHERE l.base = _tell_likes.base AND j.jobid = l.jobid
            AND (j.code_hash, j.config_hash) IS DISTINCT FROM (b.code_hash, dataflow._like_config(l.jobid));
$$;

CREATE OR REPLACE FUNCTION dataflow.create_job_like(
    jobid text, base text, sources jsonb DEFAULT '{}', partitioning text DEFAULT NULL, description text DEFAULT '', params jsonb DEFAULT '{}',
    outputs jsonb DEFAULT '{}'
) RETURNS TABLE (kind text, name text, action text, changed text[])
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    given_sources jsonb;
    given_outputs jsonb;
    wrong record;
BEGIN
    PERFORM dataflow._require_read_committed();
    -- The base must not change before the new job is written.
    PERFORM pg_advisory_xact_lock(hashtextextended('dataflow.apply', 0));
    IF NOT dataflow._is_name(create_job_like.jobid) THEN
        RAISE EXCEPTION 'not a name: %', quote_nullable(left(jobid, 80)) USING ERRCODE = 'DF400',
            HINT = 'a letter, then up to 62 letters, digits, and _ . -; such as load_eu';
    END IF;
    PERFORM dataflow._known_job(create_job_like.base);
    IF dataflow._code_of(create_job_like.base) <> create_job_like.base THEN
        RAISE EXCEPTION 'job % was itself created like %', base, dataflow._code_of(create_job_like.base) USING ERRCODE = 'DF409',
            HINT = format('say --like %s', dataflow._code_of(create_job_like.base));
    END IF;
    IF EXISTS (SELECT FROM dataflow.job j WHERE j.jobid = create_job_like.jobid AND j.retired IS NULL) THEN
        RAISE EXCEPTION 'there is a job % already', jobid USING ERRCODE = 'DF409', HINT = 'choose another name; or, if it was created so: dataflowctl job drop ' || jobid;
    END IF;
    given_sources := dataflow._named_roles(create_job_like.base, 'input', coalesce(create_job_like.sources, '{}'));
    given_outputs := dataflow._named_roles(create_job_like.base, 'output', coalesce(create_job_like.outputs, '{}'));
    IF create_job_like.partitioning IS NOT NULL AND given_sources = '{}' THEN
        -- The source of the base, but only one partitioning of it.
        given_sources := dataflow._named_roles(create_job_like.base, 'input', jsonb_build_object('', dataflow._only_role(create_job_like.base, 'input')));
    END IF;
    SELECT g.key AS role, g.value AS datasetid INTO wrong FROM jsonb_each_text(given_sources) AS g
        WHERE create_job_like.partitioning IS NOT NULL AND NOT EXISTS (
            SELECT FROM dataflow.partitioning p WHERE p.datasetid = g.value AND p.partitioning = create_job_like.partitioning) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'dataset % has no partitioning %', wrong.datasetid, partitioning USING ERRCODE = 'DF404',
            HINT = coalesce('it has ' || (SELECT string_agg(p.partitioning, ', ' ORDER BY p.partitioning) FROM dataflow.partitioning p WHERE p.datasetid = wrong.datasetid),
                format('make it first: dataflowctl partition create %s --dataset %s --key COLUMN ...', partitioning, wrong.datasetid));
    END IF;
    SELECT g.value AS datasetid, o.jobid AS producer INTO wrong FROM jsonb_each_text(given_outputs) AS g JOIN dataflow.job_output o ON o.datasetid = g.value LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'dataset % is made by job %', wrong.datasetid, wrong.producer USING ERRCODE = 'DF409',
            HINT = 'a dataset has one producer; name another, or none, and one is made';
    END IF;
    -- job_like refers to the job's row, so the row is written first, as retired; apply_flow() then writes the rest.
    INSERT INTO dataflow.job AS j (jobid, flow, kind, code_hash, retired)
        SELECT create_job_like.jobid, 'job:' || create_job_like.jobid, b.kind, b.code_hash, now() FROM dataflow.job b WHERE b.jobid = create_job_like.base
        ON CONFLICT ON CONSTRAINT job_pkey DO UPDATE SET code_hash = excluded.code_hash, flow = excluded.flow;
    INSERT INTO dataflow.job_like (jobid, base, sources, partitioning, outputs, params, description)
        VALUES (create_job_like.jobid, create_job_like.base, given_sources, create_job_like.partitioning, given_outputs,
            coalesce(dataflow._checked_params(create_job_like.base, coalesce(create_job_like.params, '{}')), '{}'), coalesce(create_job_like.description, ''));
    PERFORM dataflow._require_like(create_job_like.jobid);
    RETURN QUERY
        SELECT a.kind, a.name, CASE a.name WHEN create_job_like.jobid THEN 'created' ELSE a.action END, CASE a.name WHEN create_job_like.jobid THEN '{}' ELSE a.changed END
        FROM dataflow.apply_flow(dataflow._like_document(create_job_like.jobid)) AS a;
    PERFORM dataflow._write_roles(create_job_like.jobid);
    PERFORM dataflow._tell_likes(create_job_like.base);
END $$;
COMMENT ON FUNCTION dataflow.create_job_like(text, text, jsonb, text, text, jsonb, jsonb) IS
    'Creates a job that runs the code of another over a source of its own: SELECT * FROM dataflow.create_job_like(''load_eu'', ''load'', ''{"customers": "customers_eu"}'', ''size_5000'', ''Customers of Europe'', ''{"currency": "EUR"}''). Without outputs, {"loaded": "loaded_eu"}, a dataset <job>.<output> is made for each';

CREATE OR REPLACE FUNCTION dataflow._roles(jobid text, what text) RETURNS SETOF text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT i.datasetid::text FROM dataflow.job_input i WHERE i.jobid = _roles.jobid AND what = 'input'
    UNION ALL
    SELECT o.datasetid::text FROM dataflow.job_output o WHERE o.jobid = _roles.jobid AND what = 'output'
    ORDER BY 1
$$;

-- The input that is meant if no input is named: the only one that is not a reference.
CREATE OR REPLACE FUNCTION dataflow._only_role(jobid text, what text) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    found_roles text[] := ARRAY(
        SELECT r FROM dataflow._roles(_only_role.jobid, what) AS r
        WHERE NOT EXISTS (SELECT FROM dataflow.job_input i WHERE what = 'input' AND i.jobid = _only_role.jobid AND i.datasetid = r AND i.kind = 'fixed'));
BEGIN
    IF cardinality(found_roles) <> 1 THEN
        RAISE EXCEPTION 'job % has % %s', jobid, CASE cardinality(found_roles) WHEN 0 THEN 'no' ELSE 'several' END, what USING ERRCODE = 'DF400',
            HINT = coalesce(format('say which: %s=DATASET, of %s', found_roles[1], array_to_string(found_roles, ', ')), 'choose another job');
    END IF;
    RETURN found_roles[1];
END $$;

-- {role: dataset}; the role "" means the only one.
CREATE OR REPLACE FUNCTION dataflow._named_roles(jobid text, what text, given jsonb) RETURNS jsonb
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    named jsonb := '{}';
    pair record;
    role text;
BEGIN
    IF jsonb_typeof(given) <> 'object' OR EXISTS (SELECT FROM jsonb_each(given) AS g WHERE jsonb_typeof(g.value) <> 'string') THEN
        RAISE EXCEPTION 'the datasets of an % have to be an object of names', what USING ERRCODE = 'DF400', HINT = format('{"name of the %s in the code": "dataset"}', what);
    END IF;
    FOR pair IN SELECT g.key, g.value FROM jsonb_each_text(given) AS g ORDER BY g.key LOOP
        role := CASE pair.key WHEN '' THEN dataflow._only_role(_named_roles.jobid, what) ELSE pair.key END;
        IF role NOT IN (SELECT r FROM dataflow._roles(_named_roles.jobid, what) AS r) THEN
            RAISE EXCEPTION 'job % has no % %', jobid, what, quote_literal(left(role, 80)) USING ERRCODE = 'DF404',
                HINT = coalesce((SELECT format('its %ss are %s', what, string_agg(r, ', ')) FROM dataflow._roles(_named_roles.jobid, what) AS r HAVING count(*) > 0), 'it has none');
        END IF;
        PERFORM dataflow._known_dataset(pair.value);
        named := named || jsonb_build_object(role, pair.value);
    END LOOP;
    RETURN named;
END $$;

CREATE OR REPLACE FUNCTION dataflow.drop_job(jobid text, dry_run boolean DEFAULT false) RETURNS TABLE (kind text, name text, action text, changed text[])
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._require_read_committed();
    PERFORM pg_advisory_xact_lock(hashtextextended('dataflow.apply', 0));
    PERFORM dataflow._known_job(drop_job.jobid);
    IF NOT EXISTS (SELECT FROM dataflow.job_like l WHERE l.jobid = drop_job.jobid) THEN
        RAISE EXCEPTION 'job % was not created like another: its flow declares it', jobid USING ERRCODE = 'DF409',
            HINT = format('remove it from flow %s and apply that with --prune', (SELECT j.flow FROM dataflow.job j WHERE j.jobid = drop_job.jobid));
    END IF;
    -- From here on no claim takes a run of the job.
    PERFORM FROM dataflow.job j WHERE j.jobid = drop_job.jobid FOR UPDATE;
    IF EXISTS (SELECT FROM dataflow.attempt a WHERE a.jobid = drop_job.jobid AND a.ended IS NULL) THEN
        RAISE EXCEPTION 'job % is running', jobid USING ERRCODE = 'DF409', HINT = format('wait for it, or: dataflowctl cancel %s', jobid);
    END IF;
    RETURN QUERY SELECT a.kind, a.name, a.action, a.changed
        FROM dataflow.apply_flow(jsonb_build_object('name', 'job:' || drop_job.jobid, 'datasets', '[]'::jsonb, 'jobs', '[]'::jsonb), true, dry_run) AS a;
    IF NOT dry_run THEN
        DELETE FROM dataflow.job_like l WHERE l.jobid = drop_job.jobid;
    END IF;
END $$;
COMMENT ON FUNCTION dataflow.drop_job(text, boolean) IS
    'Retires a job that was created like another, and the datasets that were made for it; its history and its data stay. Refused while it runs';

REVOKE EXECUTE ON FUNCTION dataflow.create_job_like, dataflow.drop_job FROM PUBLIC;
