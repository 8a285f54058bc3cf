-- Bad records: listed, taken out for a person, taken back, and applied when their run is made again.
--
-- A resolution says what becomes of a record: {"repaired": {column: value}} replaces its values, anything else drops it. The runner
-- finds the record by its mark, a hash of its content, wherever the job meets it. So a repair is applied as often as the record appears,
-- and to no other record.

CREATE OR REPLACE FUNCTION dataflow.quarantined(job text DEFAULT NULL, pattern text DEFAULT NULL, with_resolved boolean DEFAULT false, at_most integer DEFAULT 100) RETURNS TABLE (
    jobid text, dataid text, itemid text, code text, reason text, created timestamptz, attempt bigint, is_resolved boolean, resolved_by text, resolved timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF job IS NOT NULL THEN
        PERFORM dataflow._known_job(job);
    END IF;
    RETURN QUERY
    SELECT q.jobid::text, q.dataid::text, q.itemid, q.code, q.reason, q.created, q.attempt, q.is_resolved, q.resolved_by, q.resolved
    FROM dataflow.quarantine q
    WHERE (job IS NULL OR q.jobid = job) AND (pattern IS NULL OR dataflow.matches(q.dataid, pattern))
        AND (with_resolved OR NOT q.is_resolved)
    ORDER BY q.jobid, q.dataid, q.itemid LIMIT at_most;
END $$;
COMMENT ON FUNCTION dataflow.quarantined(text, text, boolean, integer) IS 'Records that were set aside; the record itself is in quarantine_record()';

CREATE OR REPLACE FUNCTION dataflow.quarantine_record(jobid text, dataid text, itemid text) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    found_record jsonb;
BEGIN
    PERFORM dataflow._known_job(quarantine_record.jobid);
    SELECT to_jsonb(q) INTO found_record FROM dataflow.quarantine q
        WHERE q.jobid = quarantine_record.jobid AND q.dataid = quarantine_record.dataid AND q.itemid = quarantine_record.itemid;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'job % has set aside no record % of %', jobid, itemid, dataid USING ERRCODE = 'DF404',
            HINT = format('dataflowctl quarantine list %s shows those that it has', jobid);
    END IF;
    RETURN found_record;
END $$;
COMMENT ON FUNCTION dataflow.quarantine_record(text, text, text) IS 'One record that was set aside, with its details';

-- Refuses items of which the run has set aside no record.
CREATE OR REPLACE FUNCTION dataflow._known_records(jobid text, dataid text, itemids text[]) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_job(_known_records.jobid);
    PERFORM dataflow.quarantine_record(_known_records.jobid, _known_records.dataid, i.itemid) FROM (
        SELECT u AS itemid FROM unnest(itemids) AS u
        WHERE NOT EXISTS (SELECT FROM dataflow.quarantine q WHERE q.jobid = _known_records.jobid AND q.dataid = _known_records.dataid AND q.itemid = u)
        LIMIT 1
    ) AS i;
END $$;

CREATE OR REPLACE FUNCTION dataflow.resolve(jobid text, dataid text, itemids text[], resolution jsonb DEFAULT '{}') RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    done bigint;
BEGIN
    PERFORM dataflow._known_records(resolve.jobid, resolve.dataid, itemids);
    UPDATE dataflow.quarantine q SET is_resolved = true, resolved = clock_timestamp(), resolved_by = session_user,
        contained = q.contained OR q.applied IS NOT NULL, applied = NULL, resolution = resolve.resolution
        WHERE q.jobid = resolve.jobid AND q.dataid = resolve.dataid AND (itemids IS NULL OR q.itemid = ANY (itemids)) AND NOT q.is_resolved;
    GET DIAGNOSTICS done = ROW_COUNT;
    RETURN done;
END $$;
COMMENT ON FUNCTION dataflow.resolve(text, text, text[], jsonb) IS
    'Marks quarantined records of a run as dealt with, all open ones where itemids is NULL; returns how many';

CREATE OR REPLACE FUNCTION dataflow.unresolve(jobid text, dataid text, itemids text[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    done bigint;
BEGIN
    PERFORM dataflow._known_records(unresolve.jobid, unresolve.dataid, itemids);
    -- `applied` stays: a published version contains the resolution, and replay() has to make the chunk again without it.
    UPDATE dataflow.quarantine q SET is_resolved = false, resolved = NULL, resolved_by = NULL, resolution = NULL,
        details = q.details || jsonb_build_object('earlier', jsonb_build_object('record', q.details -> 'record', 'resolution', q.resolution,
            'resolved_by', q.resolved_by, 'resolved', q.resolved))
        WHERE q.jobid = unresolve.jobid AND q.dataid = unresolve.dataid AND (itemids IS NULL OR q.itemid = ANY (itemids)) AND q.is_resolved;
    GET DIAGNOSTICS done = ROW_COUNT;
    RETURN done;
END $$;
COMMENT ON FUNCTION dataflow.unresolve(text, text, text[]) IS
    'Opens resolved records of a run again, all of them where itemids is NULL; returns how many. replay() then makes the chunk again without their resolution';

CREATE OR REPLACE FUNCTION dataflow.quarantine_groups(job text DEFAULT NULL, pattern text DEFAULT NULL, with_resolved boolean DEFAULT false) RETURNS TABLE (
    jobid text, code text, reason text, open bigint, resolved bigint, unapplied bigint, chunks bigint, first timestamptz, last timestamptz,
    example_dataid text, example_itemid text, example jsonb
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF job IS NOT NULL THEN
        PERFORM dataflow._known_job(job);
    END IF;
    RETURN QUERY
    WITH grouped AS MATERIALIZED (
        SELECT q.jobid, q.code, q.reason, count(*) FILTER (WHERE NOT q.is_resolved) AS open, count(*) FILTER (WHERE q.is_resolved) AS resolved,
            count(*) FILTER (WHERE q.is_resolved AND q.applied IS NULL) AS unapplied, count(DISTINCT q.dataid) FILTER (WHERE s.is_shown) AS chunks,
            min(q.created) FILTER (WHERE s.is_shown) AS first, max(q.created) FILTER (WHERE s.is_shown) AS last,
            min(ARRAY[q.dataid, q.itemid]) FILTER (WHERE s.is_shown) AS example
        FROM dataflow.quarantine q
        CROSS JOIN LATERAL (SELECT with_resolved OR NOT q.is_resolved AS is_shown) AS s
        WHERE (job IS NULL OR q.jobid = job) AND (pattern IS NULL OR dataflow.matches(q.dataid, pattern))
        GROUP BY q.jobid, q.code, q.reason
        HAVING bool_or(s.is_shown)
    )
    SELECT g.jobid::text, g.code, g.reason, g.open, g.resolved, g.unapplied, g.chunks, g.first, g.last, g.example[1], g.example[2], x.details -> 'record'
    FROM grouped g
    LEFT JOIN dataflow.quarantine x ON x.jobid = g.jobid AND x.dataid = g.example[1] AND x.itemid = g.example[2]
    ORDER BY g.open DESC, g.jobid, g.code, g.reason;
END $$;
COMMENT ON FUNCTION dataflow.quarantine_groups(text, text, boolean) IS
    'Records that were set aside, by job and reason, most frequent first, each with an example';

CREATE OR REPLACE FUNCTION dataflow.quarantine_for_repair(job text, patterns text[] DEFAULT NULL, with_resolved boolean DEFAULT false) RETURNS TABLE (
    dataid text, itemid text, code text, reason text, record jsonb, resolution jsonb, parsed jsonb
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_job(job);
    RETURN QUERY
    SELECT q.dataid::text, q.itemid, q.code, q.reason, q.details -> 'record', q.resolution, q.details -> 'parsed'
    FROM dataflow.quarantine q
    WHERE q.jobid = job AND (with_resolved OR NOT q.is_resolved)
        AND (patterns IS NULL OR EXISTS (SELECT FROM unnest(patterns) AS p WHERE dataflow.matches(q.dataid, p)))
    ORDER BY dataflow.sortkey(q.dataid), q.itemid;
END $$;
COMMENT ON FUNCTION dataflow.quarantine_for_repair(text, text[], boolean) IS
    'The whole records that a job set aside, for a person to repair. A record that could not be parsed has its text, and in parsed the columns that could be read';

CREATE OR REPLACE FUNCTION dataflow.quarantine_export(job text, patterns text[] DEFAULT NULL, with_resolved boolean DEFAULT false) RETURNS TABLE (
    dataid text, itemid text, code text, reason text, record jsonb, resolution jsonb
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT r.dataid, r.itemid, r.code, r.reason, r.record, r.resolution FROM dataflow.quarantine_for_repair(job, patterns, with_resolved) AS r
$$;
COMMENT ON FUNCTION dataflow.quarantine_export(text, text[], boolean) IS 'As dataflow.quarantine_for_repair, for dataflowctl of 0.1.0';

CREATE OR REPLACE FUNCTION dataflow.resolve_records(job text, records jsonb) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    done bigint;
BEGIN
    PERFORM dataflow._known_job(job);
    PERFORM dataflow._known_records(job, r.dataid, array_agg(r.itemid)) FROM jsonb_to_recordset(records) AS r (dataid text, itemid text) GROUP BY r.dataid;
    UPDATE dataflow.quarantine q SET is_resolved = true, resolved = clock_timestamp(), resolved_by = session_user,
        contained = q.contained OR q.applied IS NOT NULL, applied = NULL, resolution = coalesce(r.resolution, '{}')
    FROM jsonb_to_recordset(records) AS r (dataid text, itemid text, resolution jsonb)
    WHERE q.jobid = job AND q.dataid = r.dataid AND q.itemid = r.itemid AND q.resolution IS DISTINCT FROM coalesce(r.resolution, '{}');
    GET DIAGNOSTICS done = ROW_COUNT;
    RETURN done;
END $$;
COMMENT ON FUNCTION dataflow.resolve_records(text, jsonb) IS
    'Takes back records that a person has edited: [{"dataid", "itemid", "resolution": {"repaired": {...}} or {"reason": "..."}}]; all or none. Returns how many were new';
