-- Answers for people and programs. Nothing here changes anything but fold_counters and prune.

CREATE OR REPLACE FUNCTION dataflow.data_location(datasetid text, dataid text) RETURNS TABLE (
    status text, version integer, format text, location text, files jsonb, rows bigint, bytes bigint,
    hostname text, port integer, database text, schemaname text, tablename text, username text, encryptedpass text, columns text, options jsonb
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_dataset(data_location.datasetid);
    PERFORM dataflow._checked_dataid(data_location.dataid);
    RETURN QUERY
    SELECT s.status, s.version, d.format,
        coalesce(m.location, dataflow._chunk_location(d, data_location.dataid)), m.files, m.rows, m.bytes,
        d.hostname, d.port, d.database, d.schemaname, d.tablename, d.username, d.encryptedpass, d.columns, d.options
    FROM dataflow.dataset d
    LEFT JOIN dataflow.datastatus s ON s.datasetid = d.datasetid AND s.dataid = data_location.dataid AND s.locktype = 'OUT'
    LEFT JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest
    WHERE d.datasetid = data_location.datasetid;
END $$;
COMMENT ON FUNCTION dataflow.data_location(text, text) IS
    'Where a chunk is, with all that is needed to reach it: the published version''s location, or the place where the dataset says it would be';

-- Where a chunk without a manifest is. What a job makes lies beside its other attempts, so that the location alone would be all of them.
CREATE OR REPLACE FUNCTION dataflow._chunk_location(d dataflow.dataset, dataid text) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN strpos(d.location, '{dataid}') = 0 AND EXISTS (SELECT FROM dataflow.job_output o WHERE o.datasetid = d.datasetid)
        THEN rtrim(d.location, '/') || '/dataid=' || dataid ELSE replace(d.location, '{dataid}', dataid) END
$$;

-- For whoever reads a whole dataset from outside: one statement sees one moment, and gc keeps what it named for gc_retention. A chunk that
-- is being made again, or whose next version failed, is what it was; an operator's hand takes it away.
CREATE OR REPLACE VIEW dataflow.published AS
SELECT s.datasetid::text, s.dataid::text, coalesce(m.version, s.version) AS version, d.format, coalesce(m.location, dataflow._chunk_location(d, s.dataid)) AS location,
    m.rows, m.bytes, m.columns, m.published, s.status
FROM dataflow.datastatus s
JOIN dataflow.dataset d ON d.datasetid = s.datasetid
LEFT JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest
WHERE s.locktype = 'OUT' AND (s.status = 'READY'
    OR (m.collected IS NULL AND m.version IS NOT NULL AND s.status NOT IN ('HOLD', 'PENDING') AND s.manifest IS DISTINCT FROM s.rejected));
COMMENT ON COLUMN dataflow.published.status IS 'READY; or what becomes of the next version: RESUBMIT, RUNNING, FAILED. Held chunks, and versions that were set to FAILED by hand, have no row';
COMMENT ON VIEW dataflow.published IS
    'The published version of every chunk that has one, for readers from outside: SELECT location FROM dataflow.published WHERE datasetid = ''orders''';
COMMENT ON COLUMN dataflow.published.location IS 'Directory, file or table of the published version; what came from outside is where its dataset says';

CREATE OR REPLACE FUNCTION dataflow.next_inputs(jobid text) RETURNS TABLE (
    run text, datasetid text, dataid text, status text, version integer, format text, location text, files jsonb, rows bigint, bytes bigint,
    hostname text, port integer, database text, schemaname text, tablename text, username text, encryptedpass text, columns text, options jsonb
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_job(next_inputs.jobid);
    RETURN QUERY
    SELECT w.dataid::text, i.datasetid, i.dataid, l.*
    FROM (
        SELECT q.dataid FROM dataflow.work q WHERE q.jobid || '' = next_inputs.jobid AND q.not_before IS NULL
        ORDER BY q.sortkey LIMIT 1
    ) AS w
    CROSS JOIN LATERAL dataflow.required_inputs(next_inputs.jobid, w.dataid) AS i
    CROSS JOIN LATERAL dataflow.data_location(i.datasetid, i.dataid) AS l;
END $$;
COMMENT ON FUNCTION dataflow.next_inputs(text) IS
    'The input chunks of the run that a job would do next: neither processed nor being processed, with all that is needed to read them';

-- Only a forced attempt may have been given less than its mapping says. NULL: it was given everything.
CREATE OR REPLACE FUNCTION dataflow._not_given(a dataflow.attempt) RETURNS text[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT array_agg(q.datasetid || '/' || q.dataid ORDER BY q.datasetid, dataflow.sortkey(q.dataid))
    FROM dataflow._inputs(a.jobid, a.dataid) AS q
    WHERE a.forced AND NOT (a.answers ->> 'ready')::boolean AND q.dataid IS NOT NULL AND NOT a.inputs ? (q.datasetid || '/' || q.dataid)
$$;

-- Which of the versions that an attempt was given were made by force. NULL: none.
CREATE OR REPLACE FUNCTION dataflow._forced_inputs(inputs jsonb) RETURNS text[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT array_agg(i.key ORDER BY i.key) FROM jsonb_each_text(_forced_inputs.inputs) AS i
    JOIN dataflow.manifest m ON m.datasetid = split_part(i.key, '/', 1) AND m.dataid = split_part(i.key, '/', 2) AND m.version = i.value::integer
    JOIN dataflow.attempt a ON a.attempt = m.attempt
    WHERE a.forced
$$;

CREATE OR REPLACE VIEW dataflow.forced AS
SELECT m.datasetid::text, m.dataid::text, a.jobid::text, m.version, a.attempt, m.published, dataflow._not_given(a) AS missing
FROM dataflow.attempt a
JOIN dataflow.manifest m ON m.attempt = a.attempt
JOIN dataflow.datastatus s ON s.datasetid = m.datasetid AND s.dataid = m.dataid AND s.locktype = 'OUT' AND s.manifest = m.version AND s.status = 'READY'
WHERE a.forced;
COMMENT ON VIEW dataflow.forced IS 'READY chunks whose version was made by force';
COMMENT ON COLUMN dataflow.forced.missing IS 'The inputs that it was made without; NULL: it was made of all of them';

-- A chunk is stale when it was made by other code or configuration than the job has now, and nobody has accepted it with these,
-- from inputs that were published again since, or by force without an input that is there now.
CREATE OR REPLACE VIEW dataflow.stale AS
SELECT s.datasetid::text, s.dataid::text, s.jobid, s.version, a.attempt,
    array_remove(ARRAY[
        CASE WHEN other.code THEN 'CODE' END,
        CASE WHEN other.configuration THEN 'CONFIGURATION' END,
        CASE WHEN newer.input IS NOT NULL THEN 'INPUT' END
    ], NULL) AS because,
    newer.input,
    CASE WHEN other.code THEN (
        SELECT array_agg(d.part ORDER BY d.part)
        FROM dataflow.job_code was
        JOIN dataflow.job_code runs ON runs.jobid = was.jobid AND runs.code_hash = j.code_hash
        CROSS JOIN LATERAL (
            SELECT coalesce(o.key, n.key) || CASE WHEN n.key IS NULL THEN ' (gone)' WHEN o.key IS NULL THEN ' (new)' ELSE '' END AS part
            FROM jsonb_each_text(was.parts) AS o FULL JOIN jsonb_each_text(runs.parts) AS n ON n.key = o.key
            WHERE o.value IS DISTINCT FROM n.value
        ) AS d
        WHERE was.jobid = j.jobid AND was.code_hash = coalesce(k.same_as, a.code_hash)
    ) END AS changed
FROM dataflow.datastatus s
JOIN dataflow.job j ON j.jobid = s.jobid
JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest
JOIN dataflow.attempt a ON a.attempt = m.attempt
LEFT JOIN dataflow.job_code k ON k.jobid = a.jobid AND k.code_hash = a.code_hash
LEFT JOIN dataflow.acceptance c ON c.datasetid = m.datasetid AND c.dataid = m.dataid AND c.version = m.version
CROSS JOIN LATERAL (SELECT
    coalesce(k.same_as, a.code_hash) <> j.code_hash AND c.code_hash IS DISTINCT FROM j.code_hash AS code,
    a.config_hash <> j.config_hash AND c.config_hash IS DISTINCT FROM j.config_hash AS configuration
) AS other
LEFT JOIN LATERAL (
    SELECT min(i.key) AS input FROM jsonb_each_text(a.inputs) AS i
    JOIN dataflow.datastatus p ON p.datasetid = split_part(i.key, '/', 1) AND p.dataid = split_part(i.key, '/', 2) AND p.locktype = 'OUT'
    WHERE p.version > i.value::int
) AS changed ON true
LEFT JOIN LATERAL (
    SELECT min(n.input) AS input FROM unnest(dataflow._not_given(a)) AS n (input)
    JOIN dataflow.datastatus p ON p.datasetid = split_part(n.input, '/', 1) AND p.dataid = split_part(n.input, '/', 2) AND p.locktype = 'OUT'
    WHERE a.forced AND p.status = 'READY'
) AS arrived ON true
CROSS JOIN LATERAL (SELECT least(changed.input, arrived.input) AS input) AS newer
WHERE s.locktype = 'OUT' AND s.status = 'READY'
    AND (other.code OR other.configuration OR newer.input IS NOT NULL);
COMMENT ON VIEW dataflow.stale IS
    'READY chunks that were made by other code or configuration than the job has now, from inputs that were published again since, or by force without an input that is READY now';
COMMENT ON COLUMN dataflow.stale.because IS 'CODE, CONFIGURATION, INPUT';
COMMENT ON COLUMN dataflow.stale.input IS 'The first input that is newer, or was not there';
COMMENT ON COLUMN dataflow.stale.changed IS 'The files, functions and constants of the code that changed since: jobs.py:clean. NULL: not the code, or it is not known';

CREATE OR REPLACE FUNCTION dataflow.fold_counters() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    folded integer;
BEGIN
    -- One folder at a time; who comes second has nothing to do.
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

CREATE OR REPLACE FUNCTION dataflow.status() RETURNS TABLE (
    jobid text, ready bigint, running bigint, failed bigint, resubmit bigint, held bigint,
    queued bigint, oldest_queued timestamptz, retry_later bigint, quarantined bigint, max_running integer, paused boolean
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
    WITH counted AS (
        SELECT c.jobid, c.status, max(c.chunks) AS chunks FROM dataflow.chunk_count c GROUP BY c.jobid, c.status
    )
    SELECT j.jobid::text,
        coalesce(max(c.chunks) FILTER (WHERE c.status = 'READY'), 0),
        coalesce(max(c.chunks) FILTER (WHERE c.status = 'RUNNING'), 0),
        coalesce(max(c.chunks) FILTER (WHERE c.status = 'FAILED'), 0),
        coalesce(max(c.chunks) FILTER (WHERE c.status = 'RESUBMIT'), 0),
        coalesce(sum(c.chunks) FILTER (WHERE c.status IN ('HOLD', 'PENDING')), 0)::bigint,
        coalesce(max(q.queued), 0), max(w.oldest), coalesce(max(l.later), 0), coalesce(max(x.records), 0),
        coalesce(k.concurrency, j.max_running), coalesce(k.paused, false)
    FROM dataflow.job j
    LEFT JOIN counted c ON c.jobid = j.jobid
    LEFT JOIN dataflow.control k ON k.scope = 'job:' || j.jobid
    LEFT JOIN (SELECT n.jobid, sum(n.chunks)::bigint AS queued FROM dataflow.counter n WHERE n.locktype = 'WORK' GROUP BY n.jobid) AS q ON q.jobid = j.jobid
    LEFT JOIN LATERAL (SELECT min(o.enqueued) AS oldest FROM dataflow.work o WHERE o.jobid || '' = j.jobid) AS w ON true
    LEFT JOIN (SELECT r.jobid, count(*) AS later FROM dataflow.work r WHERE r.not_before IS NOT NULL GROUP BY r.jobid) AS l ON l.jobid = j.jobid
    LEFT JOIN LATERAL (SELECT count(*) AS records FROM dataflow.quarantine z WHERE z.jobid = j.jobid AND NOT z.is_resolved) AS x ON true
    WHERE j.retired IS NULL
    GROUP BY j.jobid, k.concurrency, k.paused
    ORDER BY j.jobid
$$;
COMMENT ON FUNCTION dataflow.status() IS 'One row a job: its runs by status, what is queued and since when, and its limit. Cheap at any size';

CREATE OR REPLACE FUNCTION dataflow.delete_chunk(datasetid text, dataid text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_dataset(delete_chunk.datasetid);
    -- From here on nobody begins to write or to read it.
    PERFORM FROM dataflow.datastatus s WHERE s.datasetid = delete_chunk.datasetid AND s.dataid = delete_chunk.dataid AND s.locktype = 'OUT' FOR UPDATE;
    IF EXISTS (SELECT FROM dataflow.datastatus s WHERE s.datasetid = delete_chunk.datasetid AND s.dataid = delete_chunk.dataid AND s.status = 'RUNNING') THEN
        RAISE EXCEPTION 'chunk %/% is being written or read', datasetid, dataid USING ERRCODE = 'DF409', HINT = 'wait, or dataflow.cancel() the run';
    END IF;
    INSERT INTO dataflow.deleted_version AS v (datasetid, dataid, version)
    SELECT s.datasetid, s.dataid, s.version FROM dataflow.datastatus s
    WHERE s.datasetid = delete_chunk.datasetid AND s.dataid = delete_chunk.dataid AND s.locktype = 'OUT' AND s.version > 0
    ON CONFLICT (datasetid, dataid) DO UPDATE SET version = greatest(v.version, excluded.version);
    DELETE FROM dataflow.datastatus s WHERE s.datasetid = delete_chunk.datasetid AND s.dataid = delete_chunk.dataid AND s.status <> 'RUNNING';
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    WITH gone AS (
        DELETE FROM dataflow.manifest m WHERE m.datasetid = delete_chunk.datasetid AND m.dataid = delete_chunk.dataid
        RETURNING m.attempt, m.datasetid, m.dataid
    )
    INSERT INTO dataflow.forgotten (attempt, datasetid, dataid, claimed, ended)
    SELECT a.attempt, g.datasetid, g.dataid, a.claimed, a.ended FROM gone g JOIN dataflow.attempt a ON a.attempt = g.attempt
    ON CONFLICT DO NOTHING;
    RETURN true;
END $$;
COMMENT ON FUNCTION dataflow.delete_chunk(text, text) IS
    'Forgets a chunk: its status, locks and manifests. Its files stay until they are collected, its history stays, and its versions count on. False: there was none';

CREATE OR REPLACE FUNCTION dataflow.prune(older_than interval) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    pruned bigint;
BEGIN
    IF older_than < interval '1 day' THEN
        RAISE EXCEPTION 'history younger than a day is kept' USING ERRCODE = 'DF400', HINT = 'for example dataflow.prune(''90 days'')';
    END IF;
    DELETE FROM dataflow.event e WHERE e.at < now() - older_than;
    GET DIAGNOSTICS pruned = ROW_COUNT;
    DELETE FROM dataflow.evidence e USING dataflow.attempt a WHERE a.attempt = e.attempt AND a.ended < now() - older_than;
    DELETE FROM dataflow.measurement m USING dataflow.datastatus s
        WHERE s.datasetid = m.datasetid AND s.dataid = m.dataid AND s.locktype = 'OUT' AND m.version < s.version;
    DELETE FROM dataflow.judgement j USING dataflow.datastatus s
        WHERE s.datasetid = j.datasetid AND s.dataid = j.dataid AND s.locktype = 'OUT' AND j.version < s.version;
    RETURN pruned;
END $$;
COMMENT ON FUNCTION dataflow.prune(interval) IS 'Deletes events older than this, with the evidence of attempts that ended before, and what was measured of versions that are replaced; returns how many events';
