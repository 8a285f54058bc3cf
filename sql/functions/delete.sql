-- Deletes chunks, runs, registrations and old history. Files stay; collect() finds those that nobody needs.

-- Keeps the last version number of chunks that are deleted. If a chunk comes again, its versions count on from there.
CREATE OR REPLACE FUNCTION dataflow._remember_versions(datasetid text, dataids text[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO dataflow.deleted_version AS v (datasetid, dataid, version)
    SELECT s.datasetid, s.dataid, s.version FROM dataflow.datastatus s
    WHERE s.datasetid = _remember_versions.datasetid AND s.dataid = ANY (dataids) AND s.locktype = 'OUT' AND s.version > 0
    ON CONFLICT ON CONSTRAINT deleted_version_pkey DO UPDATE SET version = greatest(v.version, excluded.version);
END $$;

CREATE OR REPLACE FUNCTION dataflow.delete_chunk(datasetid text, dataid text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_dataset(delete_chunk.datasetid);
    -- From here on no claim begins to write or read the chunk.
    PERFORM FROM dataflow.datastatus s WHERE s.datasetid = delete_chunk.datasetid AND s.dataid = delete_chunk.dataid AND s.locktype = 'OUT' FOR UPDATE;
    IF EXISTS (SELECT FROM dataflow.datastatus s WHERE s.datasetid = delete_chunk.datasetid AND s.dataid = delete_chunk.dataid AND s.status = 'RUNNING') THEN
        RAISE EXCEPTION 'chunk %/% is being written or read', datasetid, dataid USING ERRCODE = 'DF409', HINT = 'wait, or dataflow.cancel() the run';
    END IF;
    PERFORM dataflow._remember_versions(delete_chunk.datasetid, ARRAY[delete_chunk.dataid]);
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
    'Forgets a chunk: its status, locks and manifests. Its files stay until they are collected, its history stays, and its version numbers go on if it comes again. False: there was no such chunk';

CREATE OR REPLACE FUNCTION dataflow.delete_runs(jobid text, patterns text[] DEFAULT NULL, dry_run boolean DEFAULT false, at_most integer DEFAULT 1000000) RETURNS TABLE (
    dataid text, status text, chunks bigint, attempts bigint, versions bigint, quarantined bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    is_literal constant boolean := coalesce(dataflow._are_literal(patterns), false);
    chosen text[];
    busy text;
    orphan_datasets text[];
    orphan_dataids text[];
BEGIN
    PERFORM dataflow._known_job(delete_runs.jobid);
    chosen := ARRAY(
        SELECT k.dataid FROM (
            SELECT s.dataid::text FROM dataflow.job_output o JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.locktype = 'OUT'
            WHERE o.jobid = delete_runs.jobid AND (NOT is_literal OR s.dataid = ANY (patterns))
            UNION SELECT a.dataid FROM dataflow.attempt a WHERE a.jobid = delete_runs.jobid AND (NOT is_literal OR a.dataid = ANY (patterns))
            UNION SELECT q.dataid FROM dataflow.quarantine q WHERE q.jobid = delete_runs.jobid AND (NOT is_literal OR q.dataid = ANY (patterns))
        ) AS k
        WHERE is_literal OR patterns IS NULL OR EXISTS (SELECT FROM unnest(patterns) AS p WHERE dataflow.matches(k.dataid, p))
        ORDER BY dataflow.sortkey(k.dataid) LIMIT at_most);
    -- Chunks of the job in datasets that no job makes any more: a retired job has no outputs.
    SELECT array_agg(s.datasetid::text), array_agg(s.dataid::text) INTO orphan_datasets, orphan_dataids
    FROM dataflow.dataset d JOIN dataflow.attempt a ON a.jobid = delete_runs.jobid AND a.dataid = ANY (chosen)
    JOIN dataflow.datastatus s ON s.datasetid = d.datasetid AND s.dataid = a.dataid AND s.locktype = 'OUT' AND s.attempt = a.attempt AND NOT s.external
    WHERE NOT EXISTS (SELECT FROM dataflow.job_output o WHERE o.datasetid = d.datasetid);
    IF NOT dry_run THEN
        -- From here on no claim begins to write or read these chunks.
        PERFORM FROM dataflow.job_output o JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.locktype = 'OUT' AND s.dataid = ANY (chosen)
            WHERE o.jobid = delete_runs.jobid ORDER BY s.datasetid, s.dataid FOR UPDATE OF s;
    END IF;
    SELECT format('%s/%s', s.datasetid, s.dataid) INTO busy
    FROM unnest(chosen) AS c (dataid) JOIN dataflow.job_output o ON o.jobid = delete_runs.jobid
    JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = c.dataid
    WHERE s.status = 'RUNNING' ORDER BY 1 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'chunk % is being written or read: nothing was deleted', busy USING ERRCODE = 'DF409',
            HINT = format('wait, or dataflowctl cancel %s; dataflowctl pause %s keeps new ones from starting', jobid, jobid);
    END IF;
    RETURN QUERY
    SELECT c.dataid, max(s.status), count(s.datasetid) + (SELECT count(*) FROM unnest(orphan_dataids) AS x WHERE x = c.dataid),
        (SELECT count(*) FROM dataflow.attempt a WHERE a.jobid = delete_runs.jobid AND a.dataid = c.dataid),
        coalesce(sum((SELECT count(*) FROM dataflow.manifest m WHERE m.datasetid = s.datasetid AND m.dataid = s.dataid)), 0)::bigint,
        (SELECT count(*) FROM dataflow.quarantine q WHERE q.jobid = delete_runs.jobid AND q.dataid = c.dataid)
    FROM unnest(chosen) WITH ORDINALITY AS c (dataid, place)
    LEFT JOIN dataflow.job_output o ON o.jobid = delete_runs.jobid
    LEFT JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = c.dataid AND s.locktype = 'OUT'
    GROUP BY c.dataid, c.place ORDER BY c.place;
    IF dry_run THEN
        RETURN;
    END IF;
    DELETE FROM dataflow.datastatus s
    USING dataflow.attempt a, jsonb_object_keys(a.inputs) AS i
    WHERE a.jobid = delete_runs.jobid AND a.dataid = ANY (chosen) AND s.datasetid = split_part(i, '/', 1) AND s.dataid = split_part(i, '/', 2)
        AND s.locktype = 'IN' AND s.jobid = a.jobid AND s.run = a.dataid;
    PERFORM dataflow.delete_chunk(o.datasetid, c.dataid) FROM unnest(chosen) AS c (dataid), dataflow.job_output o WHERE o.jobid = delete_runs.jobid;
    PERFORM dataflow.delete_chunk(x.datasetid, x.dataid) FROM unnest(orphan_datasets, orphan_dataids) AS x (datasetid, dataid);
    -- A cancelled attempt stays until its daemon reports that the runner has stopped: its row keeps the run from being claimed meanwhile.
    -- An attempt that has not ended was claimed after the runs were chosen, and stays too.
    WITH gone AS (
        DELETE FROM dataflow.attempt a WHERE a.jobid = delete_runs.jobid AND a.dataid = ANY (chosen) AND a.ended IS NOT NULL
            AND NOT (a.outcome = 'CANCELLED' AND NOT a.let_go AND (coalesce(a.lease_until > clock_timestamp(), false) OR EXISTS (
                SELECT FROM dataflow.daemon d WHERE d.daemon = a.daemon AND d.incarnation = a.incarnation AND d.stopped IS NULL)))
        RETURNING a.attempt, a.jobid, a.dataid, a.claimed, a.ended, a.started, a.outcome
    )
    INSERT INTO dataflow.forgotten (attempt, datasetid, dataid, claimed, ended)
    SELECT g.attempt, o.datasetid, g.dataid, g.claimed, dataflow._written_until(g.outcome, g.ended)
    FROM gone g JOIN dataflow.job_output o ON o.jobid = g.jobid WHERE dataflow._may_have_written(g.outcome, g.started)
    ON CONFLICT DO NOTHING;
    DELETE FROM dataflow.quarantine q WHERE q.jobid = delete_runs.jobid AND q.dataid = ANY (chosen);
END $$;
COMMENT ON FUNCTION dataflow.delete_runs(text, text[], boolean, integer) IS
    'Forgets runs of a job: status, locks, attempts (but for one that is still being stopped), versions, statistics and quarantine. Files stay until they are collected, history stays, and a run whose inputs are READY is queued anew. dry_run => true only shows them';

-- The runs that have read a chunk, and the resubmitted runs that will read it again.
CREATE OR REPLACE FUNCTION dataflow._readers(datasetid text, dataid text) RETURNS TABLE (jobid text, dataid text)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
    SELECT r.jobid, r.dataid FROM (
        SELECT s.jobid COLLATE "C" AS jobid, s.run COLLATE "C" AS dataid FROM dataflow.datastatus s
        WHERE s.datasetid = _readers.datasetid AND s.dataid = _readers.dataid AND s.locktype = 'IN'
        UNION
        SELECT a.jobid COLLATE "C", a.dataid COLLATE "C" FROM dataflow.affected_runs(_readers.datasetid, _readers.dataid) AS a
        WHERE EXISTS (
            SELECT FROM dataflow.job_output o JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = a.dataid AND s.locktype = 'OUT'
            WHERE o.jobid = a.jobid AND s.status = 'RESUBMIT')
    ) AS r
$$;

CREATE OR REPLACE FUNCTION dataflow._withdraw(datasetid text, patterns text[], made text, dry_run boolean) RETURNS TABLE (
    deed text, jobid text, dataset text, dataid text, status text, version integer
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    is_literal constant boolean := coalesce(dataflow._are_literal(patterns), false);
    chosen text[];
    jobids text[];
    runs text[];
    odd record;
    unknown text;
BEGIN
    PERFORM dataflow._known_dataset(_withdraw.datasetid);
    IF made NOT IN ('keep', 'delete') THEN
        RAISE EXCEPTION 'made cannot be %', made USING ERRCODE = 'DF400', HINT = 'write keep or delete';
    END IF;
    chosen := ARRAY(
        SELECT s.dataid::text FROM dataflow.datastatus s
        WHERE s.datasetid = _withdraw.datasetid AND s.locktype = 'OUT' AND (NOT is_literal OR s.dataid = ANY (patterns))
            AND (is_literal OR EXISTS (SELECT FROM unnest(patterns) AS p WHERE dataflow.matches(s.dataid, p)))
        ORDER BY s.sortkey);
    SELECT p INTO unknown FROM unnest(patterns) AS p
        WHERE CASE WHEN is_literal THEN p <> ALL (chosen) ELSE NOT EXISTS (SELECT FROM unnest(chosen) AS c WHERE dataflow.matches(c, p)) END LIMIT 1;
    IF FOUND OR chosen = '{}' THEN
        RAISE EXCEPTION 'nothing is registered as %/%', datasetid, coalesce(unknown, '...') USING ERRCODE = 'DF404',
            HINT = format('dataflowctl chunks %s lists what is', datasetid);
    END IF;
    IF NOT dry_run THEN
        -- From here on no claim begins to read these chunks.
        PERFORM FROM dataflow.datastatus s WHERE s.datasetid = _withdraw.datasetid AND s.dataid = ANY (chosen) AND s.locktype = 'OUT'
            ORDER BY s.dataid FOR UPDATE;
    END IF;
    SELECT s.dataid, s.jobid, s.held_from, b.partitioning, a.jobid AS maker INTO odd
    FROM dataflow.datastatus s
    LEFT JOIN dataflow.batch b ON b.datasetid = s.datasetid AND b.dataid = s.dataid
    LEFT JOIN dataflow.attempt a ON a.attempt = s.attempt
    WHERE s.datasetid = _withdraw.datasetid AND s.dataid = ANY (chosen) AND s.locktype = 'OUT'
        AND (NOT s.external OR s.attempt IS NOT NULL OR b.partitioning IS NOT NULL)
    ORDER BY s.sortkey LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'chunk %/% %: nothing is withdrawn', datasetid, odd.dataid, CASE
                WHEN odd.partitioning IS NOT NULL THEN format('is a batch of partitioning %s', odd.partitioning)
                WHEN odd.held_from = 'NONE' THEN 'is on hold, and was never registered'
                ELSE format('is made by job %s, and not registered', coalesce(odd.maker, odd.jobid)) END USING ERRCODE = 'DF409',
            HINT = CASE
                WHEN odd.partitioning IS NOT NULL THEN format('dataflowctl partition delete %s --dataset %s', odd.partitioning, datasetid)
                WHEN odd.held_from = 'NONE' THEN format('dataflowctl release --dataset %s --dataid %s', datasetid, odd.dataid)
                ELSE format('dataflowctl delete %s --dataid %s forgets it', coalesce(odd.maker, odd.jobid), odd.dataid) END;
    END IF;
    SELECT s.dataid, s.jobid, s.run INTO odd FROM dataflow.datastatus s
        WHERE s.datasetid = _withdraw.datasetid AND s.dataid = ANY (chosen) AND s.locktype = 'IN' AND s.status = 'RUNNING' ORDER BY s.dataid, s.jobid, s.run LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'chunk %/% is being read by % %: nothing is withdrawn', datasetid, odd.dataid, odd.jobid, odd.run USING ERRCODE = 'DF409',
            HINT = format('wait; or dataflowctl hold --dataset %s --dataid %s, then dataflowctl cancel %s --dataid %s', datasetid, odd.dataid, odd.jobid, odd.run);
    END IF;

    -- UNION visits each run once, however many paths lead to it: a job that reads its own output makes long chains.
    WITH RECURSIVE met AS (
        SELECT r.jobid, r.dataid FROM unnest(chosen) AS c, LATERAL dataflow._readers(_withdraw.datasetid, c) AS r
        UNION
        SELECT r.jobid, r.dataid FROM met m JOIN dataflow.job_output o ON o.jobid = m.jobid, LATERAL dataflow._readers(o.datasetid, m.dataid) AS r
    ), ordered AS MATERIALIZED (
        SELECT m.jobid, m.dataid, row_number() OVER () AS place FROM met m
    )
    SELECT array_agg(m.jobid ORDER BY m.place), array_agg(m.dataid ORDER BY m.place) INTO jobids, runs FROM ordered m
    WHERE EXISTS (
        SELECT FROM dataflow.job_output o JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = m.dataid AND s.locktype = 'OUT' WHERE o.jobid = m.jobid);
    IF runs IS NOT NULL AND made IS NULL AND NOT dry_run THEN
        RAISE EXCEPTION '% read %/%: nothing is withdrawn', CASE cardinality(runs) WHEN 1 THEN '1 run has' ELSE cardinality(runs) || ' runs have' END, datasetid,
            chosen[1] || CASE WHEN cardinality(chosen) > 1 THEN format(' and %s', dataflow._counted(cardinality(chosen) - 1, 'other chunk')) ELSE '' END USING ERRCODE = 'DF409',
            HINT = 'say what becomes of that: made => ''delete'' forgets it, made => ''keep'' leaves it as it is';
    END IF;

    RETURN QUERY
    SELECT 'withdraw', NULL::text, s.datasetid::text, s.dataid::text, s.status, s.version FROM dataflow.datastatus s
    WHERE s.datasetid = _withdraw.datasetid AND s.dataid = ANY (chosen) AND s.locktype = 'OUT' ORDER BY s.sortkey;
    RETURN QUERY
    SELECT coalesce(made, 'undecided'), s.jobid, s.datasetid::text, s.dataid::text, s.status, s.version
    FROM unnest(jobids, runs) WITH ORDINALITY AS r (jobid, dataid, place)
    JOIN dataflow.job_output o ON o.jobid = r.jobid
    JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = r.dataid AND s.locktype = 'OUT'
    ORDER BY r.place, s.datasetid;
    IF dry_run THEN
        RETURN;
    END IF;
    PERFORM dataflow._remember_versions(_withdraw.datasetid, chosen);
    -- The IN rows of runs that are kept stay: they say which version these runs have read.
    DELETE FROM dataflow.datastatus s WHERE s.datasetid = _withdraw.datasetid AND s.dataid = ANY (chosen) AND s.locktype = 'OUT';
END $$;

-- Runs are deleted with the caller's rights: an operator may withdraw registrations, but only an admin may delete runs.
CREATE OR REPLACE FUNCTION dataflow.unregister(datasetid text, patterns text[], made text DEFAULT NULL, dry_run boolean DEFAULT false) RETURNS TABLE (
    deed text, jobid text, dataset text, dataid text, status text, version integer
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    told record;
    jobids text[] := '{}';
    runs text[] := '{}';
BEGIN
    FOR told IN SELECT w.* FROM dataflow._withdraw(unregister.datasetid, patterns, made, dry_run) AS w LOOP
        IF told.deed = 'delete' THEN
            jobids := jobids || told.jobid;
            runs := runs || told.dataid;
        END IF;
        RETURN QUERY SELECT told.deed, told.jobid, told.dataset, told.dataid, told.status, told.version;
    END LOOP;
    IF NOT dry_run AND runs <> '{}' THEN
        -- Producers first: a run whose inputs are gone is not queued again.
        PERFORM dataflow.delete_runs(r.jobid, r.dataids)
        FROM (
            SELECT u.jobid, array_agg(DISTINCT u.dataid) AS dataids, min(u.place) AS place FROM unnest(jobids, runs) WITH ORDINALITY AS u (jobid, dataid, place) GROUP BY u.jobid
            ORDER BY min(u.place) OFFSET 0
        ) AS r;
    END IF;
END $$;
COMMENT ON FUNCTION dataflow.unregister(text, text[], text, boolean) IS
    'Withdraws the registration of external chunks (dataids, globs or ranges). made says what to do with the runs that have read them: ''delete'' forgets these runs, too, ''keep'' leaves them. Files stay. dry_run => true only shows chunks and runs. SELECT * FROM dataflow.unregister(''raw_orders'', ''{2026-01-31}'', dry_run => true)';

CREATE OR REPLACE FUNCTION dataflow.prunable(older_than interval) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT count(*) FROM dataflow.event e WHERE e.at < now() - older_than $$;
COMMENT ON FUNCTION dataflow.prunable(interval) IS 'How many events prune() would delete';

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
