-- Runs repaired records alone, and adds their rows to those that are published. The result is a new version, as if the whole chunk had been
-- made again. This is right only if nothing else has changed and each row of the job depends on one record; in all other cases the whole
-- chunk is made again. The runner checks what only it can see (types, columns), and makes the whole chunk if they do not fit.

-- Why rows cannot be added to those of an attempt; NULL: they can.
CREATE OR REPLACE FUNCTION dataflow._whole_because(jobid text, dataid text, base bigint) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE
        WHEN NOT j.rowwise THEN 'the job does not say rowwise = true'
        WHEN j.kind <> 'python' THEN format('a job of the kind %s is always run whole', j.kind)
        WHEN (SELECT count(*) FROM dataflow.job_output o WHERE o.jobid = j.jobid) <> 1 THEN 'the job has several outputs'
        WHEN (SELECT count(*) FROM dataflow.job_input i WHERE i.jobid = j.jobid AND i.kind <> 'fixed') <> 1 THEN 'the job reads several inputs that are no references'
        WHEN d.format NOT IN ('parquet', 'orc', 'json') OR (d.format = 'json' AND d.options <> '{}')
            THEN format('%s is %s%s: rows can be added to Parquet, ORC and JSON', d.datasetid, d.format, CASE d.format WHEN 'json' THEN ' with options' ELSE '' END)
        WHEN b.attempt IS NULL THEN 'nothing that the job made is published'
        WHEN b.forced OR b.params IS NOT NULL THEN 'what is published was made by force, or with parameters of its own'
        WHEN (b.code_hash, b.config_hash) IS DISTINCT FROM (j.code_hash, j.config_hash) THEN 'other code or configuration made what is published'
        WHEN EXISTS (
            SELECT FROM jsonb_each_text(b.inputs) AS g
            LEFT JOIN dataflow.datastatus s ON s.datasetid = split_part(g.key, '/', 1) AND s.dataid = split_part(g.key, '/', 2) AND s.locktype = 'OUT'
            WHERE s.version IS DISTINCT FROM g.value::integer) THEN 'its input has a newer version'
        WHEN n.reopened THEN 'a record was opened again that what is published holds as it was resolved'
        WHEN n.contained THEN 'what is published holds an earlier resolution of a record'
        WHEN n.unknown THEN 'a record is not stored whole'
        WHEN n.foreign_drop THEN 'a record was dropped from another version of the input'
    END
    FROM dataflow.job j
    LEFT JOIN dataflow.job_output o ON o.jobid = j.jobid
    LEFT JOIN dataflow.dataset d ON d.datasetid = o.datasetid
    LEFT JOIN dataflow.attempt b ON b.attempt = _whole_because.base AND b.outcome = 'DONE'
    CROSS JOIN LATERAL (
        SELECT bool_or(NOT q.is_resolved AND (q.applied IS NOT NULL OR q.contained)) AS reopened, bool_or(q.is_resolved AND q.applied IS NULL AND q.contained) AS contained,
            bool_or(q.is_resolved AND q.applied IS NULL AND q.resolution -> 'repaired' IS NOT NULL
                AND (NOT q.details ? 'mark' OR dataflow._stored_record(q.details) IS NULL)) AS unknown,
            -- A dropped record counts only if this input, code and configuration have set it aside.
            bool_or(q.is_resolved AND q.resolution -> 'repaired' IS NULL
                AND (x.inputs, x.code_hash, x.config_hash) IS DISTINCT FROM (b.inputs, b.code_hash, b.config_hash)) AS foreign_drop
        FROM dataflow.quarantine q LEFT JOIN dataflow.attempt x ON x.attempt = q.attempt
        WHERE q.jobid = j.jobid AND q.dataid = _whole_because.dataid
    ) AS n
    WHERE j.jobid = _whole_because.jobid
    LIMIT 1
$$;

-- The columns of a record as it was set aside. A line that could not be parsed has its text, and the columns that could be read. NULL: the
-- record was cut off.
CREATE OR REPLACE FUNCTION dataflow._stored_record(details jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN jsonb_typeof(details -> 'parsed') = 'object' THEN jsonb_build_object('columns', details -> 'parsed',
            'text', CASE jsonb_typeof(details -> 'record') WHEN 'string' THEN details -> 'record' END)
        WHEN jsonb_typeof(details -> 'record') = 'object' THEN jsonb_build_object('columns', details -> 'record') END
$$;

-- The attempt that made the published version of a run.
CREATE OR REPLACE FUNCTION dataflow._published_by(jobid text, dataid text) RETURNS bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT max(m.attempt) FROM dataflow.job_output o
    JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = _published_by.dataid AND s.locktype = 'OUT'
    JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest
    WHERE o.jobid = _published_by.jobid
$$;

CREATE OR REPLACE FUNCTION dataflow.replay_rows(job text, patterns text[] DEFAULT NULL, dry_run boolean DEFAULT false) RETURNS TABLE (
    dataid text, was text, resolved bigint, open bigint, way text, because text
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    row_dataids text[];
    row_attempts bigint[];
BEGIN
    RETURN QUERY
    SELECT r.dataid, r.was, r.resolved, r.open, CASE WHEN w.because IS NULL THEN 'rows' ELSE 'whole' END, w.because
    FROM dataflow.replay(job, patterns, false, true) AS r
    CROSS JOIN LATERAL (
        SELECT CASE WHEN r.was IS DISTINCT FROM 'READY' THEN format('the chunk is %s', coalesce(r.was, 'not there'))
            ELSE dataflow._whole_because(job, r.dataid, dataflow._published_by(job, r.dataid)) END AS because
    ) AS w
    ORDER BY dataflow.sortkey(r.dataid);
    IF dry_run THEN
        RETURN;
    END IF;
    SELECT array_agg(r.dataid), array_agg(p.attempt) INTO row_dataids, row_attempts
        FROM dataflow.replay(job, patterns, false, true) AS r CROSS JOIN LATERAL (SELECT dataflow._published_by(job, r.dataid) AS attempt) AS p
        WHERE r.was = 'READY' AND dataflow._whole_because(job, r.dataid, p.attempt) IS NULL;
    PERFORM dataflow.replay(job, patterns, false, false);
    INSERT INTO dataflow.row_replay AS k (jobid, dataid, attempt)
        SELECT job, r.dataid, r.attempt FROM unnest(row_dataids, row_attempts) AS r (dataid, attempt)
        ON CONFLICT ON CONSTRAINT row_replay_pkey DO UPDATE SET attempt = excluded.attempt, asked = excluded.asked;
END $$;
COMMENT ON FUNCTION dataflow.replay_rows(text, text[], boolean) IS
    'replay(), but a job that declares rowwise = true runs only the repaired records, and their rows are added to what is published. way: rows or whole; because: why whole';

-- What an attempt needs to add rows; NULL: it makes the whole chunk. It is called after the claim, so all conditions are checked again.
-- After an attempt that failed, the next one makes the whole chunk.
CREATE OR REPLACE FUNCTION dataflow._row_replay(attempt bigint) RETURNS jsonb
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT jsonb_build_object('attempt', b.attempt, 'code_hash', b.code_hash, 'config_hash', b.config_hash,
        'version', m.version, 'files', m.files, 'rows', m.rows, 'columns', m.columns,
        'inputs', (SELECT jsonb_agg(coalesce(i.role, i.datasetid)) FROM dataflow.job_input i WHERE i.jobid = a.jobid AND i.kind <> 'fixed'),
        'nodes', (SELECT coalesce(jsonb_agg(jsonb_build_object('node', n.node, 'parent', n.parent, 'sources', n.sources, 'items', n.items, 'successes', n.successes, 'failures', n.failures, 'seconds', n.seconds)
            ORDER BY n.ordinal), '[]') FROM dataflow.node_stat n WHERE n.attempt = b.attempt),
        'records', g.records, 'dropped', g.dropped, 'aside', g.aside)
    FROM dataflow.attempt a
    JOIN dataflow.row_replay r ON r.jobid = a.jobid AND r.dataid = a.dataid AND r.asked <= a.claimed
    JOIN dataflow.attempt b ON b.attempt = r.attempt AND b.inputs = a.inputs
    JOIN dataflow.job_output o ON o.jobid = a.jobid
    JOIN dataflow.manifest m ON m.datasetid = o.datasetid AND m.dataid = a.dataid AND m.attempt = b.attempt AND m.collected IS NULL
    CROSS JOIN LATERAL (
        SELECT coalesce(jsonb_agg(jsonb_build_object('code', q.code, 'reason', q.reason, 'mark', q.details ->> 'mark', 'is_dropped', c.is_dropped,
                'repaired', q.resolution -> 'repaired') || CASE WHEN c.is_dropped THEN '{}' ELSE dataflow._stored_record(q.details) END ORDER BY q.itemid)
                FILTER (WHERE c.is_given AND q.applied IS NULL), '[]') AS records,
            count(*) FILTER (WHERE c.is_given AND c.is_dropped) AS dropped, count(*) FILTER (WHERE NOT c.is_given) AS aside
        FROM dataflow.quarantine q
        -- As in finish(): records that were resolved after the claim are left for the next attempt.
        CROSS JOIN LATERAL (
            SELECT q.is_resolved AND q.resolved <= a.claimed AS is_given, q.resolution -> 'repaired' IS NULL AS is_dropped
        ) AS c
        WHERE q.jobid = a.jobid AND q.dataid = a.dataid
    ) AS g
    WHERE a.attempt = _row_replay.attempt AND NOT a.forced AND a.params IS NULL
        AND dataflow._whole_because(a.jobid, a.dataid, b.attempt) IS NULL
        AND NOT EXISTS (SELECT FROM dataflow.manifest x WHERE x.datasetid = m.datasetid AND x.dataid = m.dataid AND x.version > m.version)
        AND NOT EXISTS (SELECT FROM dataflow.attempt x WHERE x.jobid = a.jobid AND x.dataid = a.dataid AND x.claimed >= r.asked AND x.outcome = 'FAILED')
$$;

CREATE OR REPLACE FUNCTION dataflow.replay(job text, patterns text[] DEFAULT NULL, with_open boolean DEFAULT false, dry_run boolean DEFAULT false) RETURNS TABLE (
    dataid text, was text, resolved bigint, open bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    chosen text[];
BEGIN
    PERFORM dataflow._known_job(job);
    chosen := ARRAY(
        SELECT DISTINCT q.dataid::text FROM dataflow.quarantine q
        WHERE q.jobid = job AND CASE WHEN q.is_resolved THEN q.applied IS NULL ELSE with_open OR q.applied IS NOT NULL OR q.contained END
            AND (patterns IS NULL OR EXISTS (SELECT FROM unnest(patterns) AS p WHERE dataflow.matches(q.dataid, p))));
    RETURN QUERY
    SELECT c.dataid, max(s.status), n.resolved, n.open
    FROM unnest(chosen) AS c (dataid)
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE q.is_resolved AND q.applied IS NULL) AS resolved, count(*) FILTER (WHERE NOT q.is_resolved) AS open
        FROM dataflow.quarantine q WHERE q.jobid = job AND q.dataid = c.dataid
    ) AS n
    LEFT JOIN dataflow.job_output o ON o.jobid = job
    LEFT JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = c.dataid AND s.locktype = 'OUT'
    GROUP BY c.dataid, n.resolved, n.open ORDER BY dataflow.sortkey(c.dataid);
    IF NOT dry_run AND cardinality(chosen) > 0 THEN
        PERFORM dataflow.resubmit(jsonb_build_object('job', job, 'dataid', to_jsonb(chosen), 'status', '["READY", "FAILED"]'::jsonb));
    END IF;
END $$;
COMMENT ON FUNCTION dataflow.replay(text, text[], boolean, boolean) IS
    'Makes chunks again whose resolved records are in no version yet, or whose reopened records are still in a version as they were resolved; with_open => true: also chunks with open records, for code that can handle them now. A second call finds nothing to do';
