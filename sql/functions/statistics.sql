-- Statistics of a job: what it reads, how it is run, how much is done, how long it took, what its nodes did.

CREATE OR REPLACE FUNCTION dataflow.job_stats(jobid text) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_job(job_stats.jobid);
    RETURN (
        SELECT jsonb_build_object('jobid', j.jobid, 'description', j.description, 'created', j.created, 'modified', j.modified, 'retired', j.retired,
            'flow', j.flow, 'kind', j.kind, 'code_hash', j.code_hash, 'config_hash', j.config_hash, 'inputs', j.inputs, 'outputs', j.outputs,
            'configuration', jsonb_build_object('params', j.params, 'max_running', j.max_running, 'max_attempts', j.max_attempts, 'retry_delay_seconds', j.retry_delay_seconds,
                'timeout_seconds', j.timeout_seconds, 'priority', j.priority, 'strict_order', j.strict_order, 'paused', j.paused),
            'sources', dataflow._job_sources(j.jobid),
            'chunks', (SELECT coalesce(jsonb_object_agg(c.status, c.chunks), '{}') FROM (
                SELECT n.status, max(n.chunks) AS chunks FROM dataflow.chunk_count n WHERE n.jobid = j.jobid GROUP BY n.status) AS c),
            'exceptions', (SELECT coalesce(jsonb_agg(jsonb_build_object('code', x.code, 'attempts', x.attempts, 'last', x.last, 'error', x.error) ORDER BY x.attempts DESC, x.code), '[]') FROM (
                SELECT a.code, count(*) AS attempts, max(a.ended) AS last, (array_agg(a.error ORDER BY a.ended DESC))[1] AS error
                FROM dataflow.attempt a WHERE a.jobid = j.jobid AND a.outcome IN ('FAILED', 'LOST', 'CANCELLED') GROUP BY a.code) AS x),
            'quarantine', (SELECT jsonb_build_object('open', count(*) FILTER (WHERE NOT q.is_resolved), 'resolved', count(*) FILTER (WHERE q.is_resolved),
                    'unapplied', count(*) FILTER (WHERE q.is_resolved AND q.applied IS NULL))
                FROM dataflow.quarantine q WHERE q.jobid = j.jobid),
            'execution', dataflow._job_execution(j.jobid),
            'published', (SELECT jsonb_build_object('rows', coalesce(sum(m.rows), 0), 'bytes', coalesce(sum(m.bytes), 0))
                FROM dataflow.job_output o JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.locktype = 'OUT' AND s.status = 'READY'
                JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest WHERE o.jobid = j.jobid),
            'nodes', dataflow._job_nodes(j.jobid))
        FROM dataflow.jobs j WHERE j.jobid = job_stats.jobid);
END $$;
COMMENT ON FUNCTION dataflow.job_stats(text) IS
    'A job as one JSON object: created, flow, configuration, description, sources, chunks, exceptions, quarantine, execution, published, nodes';

-- The state of a batch is that of the chunk that the job made of it; before that it is HOLD or WAITING.
CREATE OR REPLACE FUNCTION dataflow._job_sources(jobid text) RETURNS jsonb
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(jsonb_agg(jsonb_build_object('datasetid', d.datasetid, 'format', d.format, 'place', d.place, 'hostname', d.hostname,
        'partitionings', (
            SELECT coalesce(jsonb_agg(jsonb_build_object('partitioning', p.partitioning, 'batches', p.batches, 'items', p.items, 'states', p.states) ORDER BY p.partitioning), '[]')
            FROM (
                SELECT g.partitioning, sum(g.batches)::bigint AS batches, sum(g.items)::bigint AS items, jsonb_object_agg(g.state, g.batches) AS states
                FROM (
                    SELECT b.partitioning, coalesce(r.status, CASE WHEN s.status IN ('HOLD', 'PENDING') THEN 'HOLD' ELSE 'WAITING' END) AS state,
                        count(*) AS batches, sum(b.items) AS items
                    FROM dataflow.batch b
                    LEFT JOIN dataflow.datastatus s ON s.datasetid = b.datasetid AND s.dataid = b.dataid AND s.locktype = 'OUT'
                    LEFT JOIN LATERAL (
                        SELECT max(x.status) AS status FROM dataflow.job_output o
                        JOIN dataflow.datastatus x ON x.datasetid = o.datasetid AND x.dataid = b.dataid AND x.locktype = 'OUT'
                        WHERE o.jobid = _job_sources.jobid
                    ) AS r ON true
                    WHERE b.datasetid = d.datasetid GROUP BY b.partitioning, state
                ) AS g GROUP BY g.partitioning
            ) AS p)) ORDER BY d.datasetid), '[]')
    FROM dataflow.job_input i JOIN dataflow.datasets d ON d.datasetid = i.datasetid
    WHERE i.jobid = _job_sources.jobid
$$;

-- Times are those of the job's own code, if they are known. busy: the time in which at least one attempt ran; attempts side by side add up
-- to more. A lost attempt has no time, because nobody knows when it ended. Every attempt of a production after its first is a retry: after
-- a failure that the job may repeat, or after a lost runner.
CREATE OR REPLACE FUNCTION dataflow._job_execution(jobid text) RETURNS jsonb
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH tried AS MATERIALIZED (
        SELECT a.attempt, a.dataid, a.outcome, a.claimed, a.ended, a.tries + a.lost > 1 AS is_retry,
            CASE WHEN a.outcome <> 'LOST' THEN round(extract(epoch FROM a.ended - coalesce(a.started, a.claimed)), 3) END::double precision AS seconds,
            CASE WHEN a.outcome <> 'LOST' THEN tstzrange(coalesce(a.started, a.claimed), greatest(a.ended, a.started, a.claimed), '[]') END AS span,
            (a.usage ->> 'cpu_seconds')::double precision AS cpu_seconds, m.items
        FROM dataflow.attempt a
        LEFT JOIN LATERAL (SELECT sum(v.rows)::bigint AS items FROM dataflow.manifest v WHERE v.attempt = a.attempt) AS m ON true
        WHERE a.jobid = _job_execution.jobid
    ), summed AS (
        SELECT count(*) AS attempts, count(*) FILTER (WHERE t.outcome = 'DONE') AS done, count(*) FILTER (WHERE t.outcome = 'FAILED') AS failed,
            count(*) FILTER (WHERE t.outcome = 'LOST') AS lost, count(*) FILTER (WHERE t.outcome = 'CANCELLED') AS cancelled,
            count(*) FILTER (WHERE t.outcome IS NULL) AS running, count(*) FILTER (WHERE t.is_retry) AS retries,
            min(t.claimed) AS first, max(t.ended) AS last, coalesce(sum(t.items), 0)::bigint AS items, sum(t.cpu_seconds) AS cpu_seconds,
            sum(t.seconds) AS total, min(t.seconds) AS least, avg(t.seconds) AS mean, max(t.seconds) AS most,
            percentile_cont(ARRAY[0.5, 0.9, 0.95, 0.99]) WITHIN GROUP (ORDER BY t.seconds) AS percentiles,
            (SELECT sum(extract(epoch FROM upper(r) - lower(r)))::double precision FROM unnest(range_agg(t.span) FILTER (WHERE t.ended IS NOT NULL)) AS r) AS busy
        FROM tried t
    )
    SELECT jsonb_build_object('attempts', s.attempts, 'done', s.done, 'failed', s.failed, 'lost', s.lost, 'cancelled', s.cancelled, 'running', s.running,
        'retries', s.retries, 'first', s.first, 'last', s.last, 'items', s.items, 'items_per_second', s.items / nullif(s.busy, 0), 'cpu_seconds', s.cpu_seconds,
        'seconds', jsonb_build_object('busy', s.busy, 'total', s.total, 'least', s.least, 'mean', s.mean, 'median', s.percentiles[1], 'p90', s.percentiles[2],
            'p95', s.percentiles[3], 'p99', s.percentiles[4], 'most', s.most),
        'slowest', (
            SELECT coalesce(jsonb_agg(jsonb_build_object('dataid', w.dataid, 'attempt', w.attempt, 'outcome', w.outcome, 'seconds', w.seconds,
                'cpu_seconds', w.cpu_seconds, 'items', w.items) ORDER BY w.seconds DESC, w.attempt), '[]')
            FROM (SELECT * FROM tried t WHERE t.seconds IS NOT NULL ORDER BY t.seconds DESC, t.attempt LIMIT 5) AS w))
    FROM summed s
$$;

-- Only the attempt that made the published version of a chunk counts, so the sums describe what is published.
CREATE OR REPLACE FUNCTION dataflow._job_nodes(jobid text) RETURNS jsonb
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(jsonb_agg(to_jsonb(n) - 'place' ORDER BY n.place, n.node), '[]')
    FROM (
        SELECT k.node, (array_agg(k.parent ORDER BY k.attempt DESC))[1] AS parent,
            (jsonb_agg(to_jsonb(k.sources) ORDER BY k.attempt DESC)) -> 0 AS sources, min(k.ordinal) AS place, count(*) AS attempts, sum(k.items) AS items, sum(k.successes) AS successes, sum(k.failures) AS failures,
            sum(k.seconds) AS seconds
        FROM (
            SELECT DISTINCT m.attempt FROM dataflow.job_output o
            JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.locktype = 'OUT'
            JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest
            WHERE o.jobid = _job_nodes.jobid
        ) AS current
        JOIN dataflow.node_stat k ON k.attempt = current.attempt
        GROUP BY k.node
    ) AS n
$$;

-- Runners report the sources. Anything that is not a list of names counts as none.
CREATE OR REPLACE FUNCTION dataflow._node_sources(told jsonb) RETURNS text[]
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(array_agg(s.name ORDER BY s.place), '{}')
    FROM jsonb_array_elements_text(CASE WHEN jsonb_typeof(told) = 'array' THEN told ELSE '[]' END) WITH ORDINALITY AS s (name, place)
    WHERE s.name IS NOT NULL
$$;
