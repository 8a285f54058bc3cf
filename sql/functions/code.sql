-- The code that jobs run now, and the chunks that a person accepts although other code made them.

CREATE OR REPLACE FUNCTION dataflow.code_version(jobid text, code_hash text, config_hash text, parts jsonb, whole_hash text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO dataflow.job_code (jobid, code_hash, parts)
        SELECT j.jobid, code_version.code_hash, code_version.parts FROM dataflow.job j WHERE j.jobid = code_version.jobid
        ON CONFLICT DO NOTHING;
    INSERT INTO dataflow.job_code (jobid, code_hash, same_as)
        SELECT j.jobid, code_version.whole_hash, code_version.code_hash FROM dataflow.job j
        WHERE j.jobid = code_version.jobid AND code_version.whole_hash <> code_version.code_hash
        ON CONFLICT DO NOTHING;
    RETURN dataflow.code_version(code_version.jobid, code_version.code_hash, code_version.config_hash);
END $$;
COMMENT ON FUNCTION dataflow.code_version(text, text, text, jsonb, text) IS
    'Records which code and configuration a job runs with now, the parts of that code, and the hash that release 0.1 has for it; chunks that others made are stale. False: nothing is new';

CREATE OR REPLACE FUNCTION dataflow.code_version(jobid text, code_hash text, config_hash text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    -- A daemon of release 0.1 computes another hash for the same code; same_as leads to the one of this release.
    told constant text := coalesce((
        SELECT k.same_as FROM dataflow.job_code k WHERE k.jobid = code_version.jobid AND k.code_hash = code_version.code_hash), code_version.code_hash);
BEGIN
    UPDATE dataflow.job j SET code_hash = told, config_hash = code_version.config_hash, modified = now()
        WHERE j.jobid = code_version.jobid AND (j.code_hash, j.config_hash) IS DISTINCT FROM (told, code_version.config_hash);
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM dataflow._tell_likes(code_version.jobid);
    RETURN true;
END $$;
COMMENT ON FUNCTION dataflow.code_version(text, text, text) IS 'code_version() without the parts, for daemons of release 0.1';

CREATE OR REPLACE FUNCTION dataflow.accept(
    jobid text, patterns text[] DEFAULT NULL, reason text DEFAULT NULL, with_code text DEFAULT NULL, with_config text DEFAULT NULL, dry_run boolean DEFAULT false
) RETURNS TABLE (datasetid text, dataid text, version integer, because text[], changed text[], code_hash text, config_hash text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    is_literal constant boolean := coalesce(dataflow._are_literal(patterns), false);
    now_runs record;
BEGIN
    PERFORM dataflow._known_job(accept.jobid);
    SELECT j.code_hash, j.config_hash INTO now_runs FROM dataflow.job j WHERE j.jobid = accept.jobid;
    IF with_code <> now_runs.code_hash OR with_config <> now_runs.config_hash THEN
        RAISE EXCEPTION 'job % has changed again meanwhile: nothing was accepted', jobid USING ERRCODE = 'DF409',
            HINT = format('look at it once more: dataflowctl accept %s --dry-run', jobid);
    END IF;
    RETURN QUERY
    WITH chosen AS MATERIALIZED (
        SELECT x.datasetid, x.dataid, s.manifest AS version, x.attempt, x.because, x.changed, s.sortkey
        FROM dataflow.stale x JOIN dataflow.datastatus s ON s.datasetid = x.datasetid AND s.dataid = x.dataid AND s.locktype = 'OUT'
        WHERE x.jobid = accept.jobid AND x.because && ARRAY['CODE', 'CONFIGURATION']
            AND (patterns IS NULL OR CASE WHEN is_literal THEN x.dataid = ANY (patterns)
                ELSE EXISTS (SELECT FROM unnest(patterns) AS p WHERE dataflow.matches(x.dataid, p)) END)
    ), marked AS (
        INSERT INTO dataflow.acceptance AS a (datasetid, dataid, version, code_hash, config_hash, reason)
        SELECT c.datasetid, c.dataid, c.version, now_runs.code_hash, now_runs.config_hash, accept.reason FROM chosen c WHERE NOT dry_run
        ON CONFLICT ON CONSTRAINT acceptance_pkey DO UPDATE SET code_hash = excluded.code_hash, config_hash = excluded.config_hash,
            reason = excluded.reason, accepted = excluded.accepted, accepted_by = excluded.accepted_by
    ), told AS (
        INSERT INTO dataflow.event (kind, jobid, dataid, datasetid, attempt, from_status, to_status, code, reason)
        SELECT 'accepted', accept.jobid, c.dataid, c.datasetid, c.attempt, t.code_hash, now_runs.code_hash, 'ACCEPTED', accept.reason
        FROM chosen c JOIN dataflow.attempt t ON t.attempt = c.attempt WHERE NOT dry_run
    )
    SELECT c.datasetid, c.dataid, c.version, c.because, c.changed, now_runs.code_hash, now_runs.config_hash FROM chosen c ORDER BY c.datasetid, c.sortkey;
END $$;
COMMENT ON FUNCTION dataflow.accept(text, text[], text, text, text, boolean) IS
    'Accepts chunks that other code or configuration made: they no longer count as stale for that. with_code and with_config: refused unless the job still has these. dry_run => true only shows them. SELECT * FROM dataflow.accept(''clean_orders'', ''{2026-01-*}'', ''only a log line changed'')';
