-- Which directories of attempts may be removed. The host says what it has found on its disk, a batch at a time, and removes
-- only what is returned. Nothing is inferred from a missing row: a directory that this database does not know stays, for
-- it may be another database's.

-- Only attempts that have ended are considered. rescue() ends an attempt whose lease has expired; until then its daemon may come back
-- and needs its output.
CREATE OR REPLACE FUNCTION dataflow.collect(
    datasets text[], dataids text[], attempts bigint[], grace interval, retention interval, dry_run boolean DEFAULT true
) RETURNS TABLE (
    datasetid text, dataid text, attempt bigint, why text, since timestamptz, claimed timestamptz, written_until timestamptz
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_material = off
SET enable_memoize = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    most constant integer := 10000;
BEGIN
    IF cardinality(attempts) > most THEN
        RAISE EXCEPTION 'collect takes at most % directories at a time', most USING ERRCODE = 'DF400', HINT = 'call it in batches';
    END IF;
    IF grace < interval '0' OR retention < interval '0' THEN
        RAISE EXCEPTION 'grace and retention cannot be negative' USING ERRCODE = 'DF400', HINT = 'for example ''1 day'' and ''7 days''';
    END IF;
    RETURN QUERY
    WITH found AS MATERIALIZED (
        SELECT f.datasetid, f.dataid, f.attempt FROM unnest(datasets, dataids, attempts) AS f (datasetid, dataid, attempt)
    ), failed AS (
        SELECT f.datasetid, f.dataid, f.attempt, a.outcome AS why, a.ended AS since, a.claimed, dataflow._written_until(a.outcome, a.ended) AS written_until
        FROM found f JOIN dataflow.attempt a ON a.attempt = f.attempt AND a.dataid = f.dataid
        WHERE a.outcome <> 'DONE' AND a.ended < now() - grace AND dataflow._may_have_written(a.outcome, a.started)
            AND NOT EXISTS (SELECT FROM dataflow.manifest m WHERE m.attempt = a.attempt)
    ), superseded AS (
        SELECT f.datasetid, f.dataid, f.attempt, 'SUPERSEDED' AS why, next.published AS since, a.claimed, a.ended AS written_until, m.version
        FROM found f
        JOIN dataflow.attempt a ON a.attempt = f.attempt AND a.dataid = f.dataid
        JOIN dataflow.manifest m ON m.attempt = f.attempt AND m.datasetid = f.datasetid AND m.dataid = f.dataid
        JOIN dataflow.datastatus s ON s.datasetid = m.datasetid AND s.dataid = m.dataid AND s.locktype = 'OUT' AND s.manifest > m.version
        CROSS JOIN LATERAL (
            SELECT min(n.published) AS published FROM dataflow.manifest n
            WHERE n.datasetid = m.datasetid AND n.dataid = m.dataid AND n.version > m.version
        ) AS next
        WHERE next.published < now() - retention
            AND NOT EXISTS (
                SELECT FROM dataflow.datastatus r WHERE r.datasetid = m.datasetid AND r.dataid = m.dataid AND r.locktype = 'IN'
                    AND r.status = 'RUNNING' AND r.version = m.version)
    ), forgotten AS (
        SELECT f.datasetid, f.dataid, f.attempt, 'FORGOTTEN' AS why, g.forgotten AS since, g.claimed, g.ended AS written_until
        FROM found f JOIN dataflow.forgotten g ON g.attempt = f.attempt AND g.datasetid = f.datasetid AND g.dataid = f.dataid
        WHERE g.forgotten < now() - grace
    ), marked AS (
        UPDATE dataflow.manifest m SET collected = now() FROM superseded x
        WHERE NOT dry_run AND m.datasetid = x.datasetid AND m.dataid = x.dataid AND m.version = x.version AND m.collected IS NULL
    )
    SELECT x.datasetid, x.dataid, x.attempt, x.why, x.since, x.claimed, x.written_until FROM failed x
    UNION ALL
    SELECT x.datasetid, x.dataid, x.attempt, x.why, x.since, x.claimed, x.written_until FROM superseded x
    UNION ALL
    SELECT x.datasetid, x.dataid, x.attempt, x.why, x.since, x.claimed, x.written_until FROM forgotten x;
END $$;
COMMENT ON FUNCTION dataflow.collect(text[], text[], bigint[], interval, interval, boolean) IS
    'Which of these directories (dataset, dataid, attempt) nobody needs: of attempts that published nothing and ended longer than grace ago, of versions that were superseded longer than retention ago and are not being read, and of what was deleted. claimed and written_until bound when the attempt can have written it. dry_run => false also marks superseded versions as collected';

-- An attempt that failed before its code began has written nothing, so a directory with its number belongs to another database. An
-- attempt that was lost, cancelled or given back may have begun before anybody recorded it.
CREATE OR REPLACE FUNCTION dataflow._may_have_written(outcome text, started timestamptz) RETURNS boolean
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT started IS NOT NULL OR outcome IN ('LOST', 'CANCELLED', 'RETURNED') $$;

-- The runner of a lost or cancelled attempt may have gone on writing after its end was recorded. NULL: without a limit.
CREATE OR REPLACE FUNCTION dataflow._written_until(outcome text, ended timestamptz) RETURNS timestamptz
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT CASE WHEN outcome IN ('LOST', 'CANCELLED') THEN NULL ELSE ended END $$;
