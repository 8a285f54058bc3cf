-- Why a run did not run at a moment of the past: the five questions as they were answered then (why.sql asks them now, history.sql tells all
-- that happened to a run). For a moment at which an attempt ran, its evidence answers them. For a moment at which the run waited,
-- history answers them: the events of the run, of its chunks, and of what was declared. An answer that history does not know is NULL, with
-- the reason in its detail.

CREATE OR REPLACE FUNCTION dataflow._measured(seen jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN concat_ws(', ', dataflow._counted((seen ->> 'files')::bigint, 'file'), dataflow._counted((seen ->> 'bytes')::bigint, 'byte'),
        'changed last ' || (seen ->> 'modified'), 'digest ' || left(seen ->> 'digest', 16));
END $$;

-- Where the inputs and outputs of a run lie now.
CREATE OR REPLACE FUNCTION dataflow._places_of(jobid text, dataid text) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    reads text;
    writes text;
BEGIN
    SELECT dataflow._listed(array_agg(format('%s/%s at %s', i.datasetid, i.dataid, i.place) ORDER BY i.datasetid, i.dataid), max(i.total)) INTO reads
    FROM (
        SELECT q.datasetid, q.dataid, coalesce(m.location, dataflow._place(d, q.dataid)) AS place, q.total
        FROM (
            SELECT p.datasetid, p.dataid, count(*) OVER () AS total, row_number() OVER (ORDER BY p.datasetid, p.dataid) AS place
            FROM dataflow._inputs(_places_of.jobid, _places_of.dataid) AS p JOIN dataflow.dataset k ON k.datasetid = p.datasetid
            WHERE p.dataid IS NOT NULL AND (k.location IS NOT NULL OR k.tablename IS NOT NULL)
        ) AS q
        JOIN dataflow.dataset d ON d.datasetid = q.datasetid
        LEFT JOIN dataflow.datastatus s ON s.datasetid = q.datasetid AND s.dataid = q.dataid AND s.locktype = 'OUT'
        LEFT JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest
        WHERE q.place <= 5
    ) AS i;
    SELECT string_agg(format('%s is written %s', d.datasetid, coalesce('below ' || replace(dataflow._written_to(d), '{dataid}', _places_of.dataid), 'to ' || dataflow._place(d, NULL))), '; ' ORDER BY d.datasetid) INTO writes
    FROM dataflow.job_output o JOIN dataflow.dataset d ON d.datasetid = o.datasetid
    WHERE o.jobid = _places_of.jobid AND (d.location IS NOT NULL OR d.tablename IS NOT NULL);
    RETURN coalesce(concat_ws('; ', reads, writes), 'none of its datasets has data of its own');
END $$;

-- The question that the host of a run's last attempt has answered with no. It counts until the run is resubmitted, or one of its inputs or
-- datasets changes.
CREATE OR REPLACE FUNCTION dataflow._refused(jobid text, dataid text, attempt bigint, OUT code text, OUT detail text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    SELECT a.answers -> 'refused' ->> 'code', format('attempt %s found: %s', a.number, a.answers -> 'refused' ->> 'detail') INTO code, detail
    FROM dataflow.attempt a
    WHERE a.attempt = _refused.attempt AND a.jobid = _refused.jobid AND a.answers ? 'refused' AND a.outcome = 'FAILED'
        AND NOT EXISTS (
            SELECT FROM dataflow.dataset d WHERE d.modified > a.ended AND (
                EXISTS (SELECT FROM dataflow.job_input i WHERE i.jobid = _refused.jobid AND i.datasetid = d.datasetid)
                OR EXISTS (SELECT FROM dataflow.job_output o WHERE o.jobid = _refused.jobid AND o.datasetid = d.datasetid)))
        AND NOT EXISTS (
            SELECT FROM jsonb_object_keys(a.inputs) AS i
            JOIN dataflow.datastatus s ON s.datasetid = split_part(i, '/', 1) AND s.dataid = split_part(i, '/', 2) AND s.locktype = 'OUT'
            WHERE s.modified > a.ended);
END $$;

CREATE OR REPLACE FUNCTION dataflow._of_run(jobid text, dataid text, number integer) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    chosen bigint;
BEGIN
    PERFORM dataflow._known_job(_of_run.jobid);
    PERFORM dataflow._checked_dataid(_of_run.dataid);
    SELECT a.attempt INTO chosen FROM dataflow.attempt a WHERE a.jobid = _of_run.jobid AND a.dataid = _of_run.dataid AND a.number = _of_run.number;
    IF chosen IS NULL THEN
        RAISE EXCEPTION '% % has no attempt %', jobid, dataid, coalesce(number::text, 'NULL') USING ERRCODE = 'DF404',
            HINT = coalesce((
                SELECT format('its attempts are %s to %s; dataflowctl attempts %s %s lists them', min(a.number), max(a.number), _of_run.jobid, _of_run.dataid)
                FROM dataflow.attempt a WHERE a.jobid = _of_run.jobid AND a.dataid = _of_run.dataid HAVING count(*) > 0), 'it was never tried');
    END IF;
    RETURN chosen;
END $$;

-- The five answers for an attempt, from its evidence.
CREATE OR REPLACE FUNCTION dataflow._attempt_answers(attempt bigint) RETURNS TABLE (number integer, question text, answer boolean, code text, detail text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    codes constant text[] := ARRAY['DATA_NOT_READY', 'WRONG_DATA', 'INVALID_PATH', 'NOT_VALIDATED', 'LOCKED'];
    a dataflow.attempt;
    e dataflow.evidence;
    total bigint;
    given text;
    seen text;
    places text;
    vouched text;
    locks text;
    host_is_silent text;
BEGIN
    SELECT x.* INTO a FROM dataflow.attempt x WHERE x.attempt = _attempt_answers.attempt;
    SELECT x.* INTO e FROM dataflow.evidence x WHERE x.attempt = _attempt_answers.attempt;
    total := (SELECT count(*) FROM jsonb_object_keys(a.inputs));
    host_is_silent := CASE
        WHEN e.found ? 'left_out' THEN 'what its host found there was too much to be stored'
        WHEN a.ended IS NULL THEN 'its host has not yet said what it found there'
        WHEN a.outcome IN ('LOST', 'CANCELLED', 'RETURNED') THEN 'it ended before its host said what it found there'
        ELSE 'its host has not said what it found there' END;
    SELECT dataflow._listed(array_agg(format('%s/%s v%s %s%s', i.key, c ->> 'dataid', c ->> 'version', coalesce(c ->> 'status', 'not there'),
                ', by ' || (c ->> 'by') || ' at ' || dataflow._stamp((c ->> 'at')::timestamptz)) ORDER BY i.key, c ->> 'dataid'), total),
        dataflow._listed(array_agg(format('%s/%s at %s', i.key, c ->> 'dataid', c ->> 'location') ORDER BY i.key, c ->> 'dataid') FILTER (WHERE c ? 'location'), total),
        dataflow._listed(array_agg(format('%s/%s %s', i.key, c ->> 'dataid', CASE
                WHEN NOT coalesce((c ->> 'validated')::boolean, true) THEN 'was not vouched for'
                WHEN c ? 'checks' THEN (
                    SELECT string_agg(format('%s %s (%s, expected %s)', k ->> 'name', CASE WHEN (k ->> 'passed')::boolean THEN 'passed' ELSE 'failed' END,
                        coalesce(k ->> 'observed', '-'), coalesce(k ->> 'expected', '-')), ', ') FROM jsonb_array_elements(c -> 'checks') AS k)
                ELSE 'was vouched for, with no stored check' END) ORDER BY i.key, c ->> 'dataid'), total),
        dataflow._listed(array_agg(format('%s/%s %s', i.key, c ->> 'dataid', c ->> 'lock') ORDER BY i.key, c ->> 'dataid') FILTER (WHERE c ? 'lock'), total)
    INTO given, places, vouched, locks
    FROM jsonb_each(e.told -> 'inputs') AS i, jsonb_array_elements(i.value -> 'listed') AS c;
    SELECT dataflow._listed(array_agg(format('%s: %s', i.key, CASE WHEN i.value ? 'files' THEN
                dataflow._measured(i.value) || CASE WHEN (i.value ->> 'chunks')::bigint > 1 THEN ' in ' || dataflow._counted((i.value ->> 'chunks')::bigint, 'chunk') ELSE '' END
            ELSE i.value ->> 'note' END) ORDER BY i.key), count(*))
    INTO seen FROM jsonb_each(e.found -> 'inputs') AS i;
    RETURN QUERY
    SELECT q.number, q.question, said.answer, CASE WHEN NOT said.answer THEN codes[q.number] END,
        CASE
            WHEN a.answers -> 'refused' ->> 'code' = codes[q.number] THEN concat_ws('; ', 'the host found: ' || (a.answers -> 'refused' ->> 'detail'), q.detail)
            WHEN NOT said.answer THEN coalesce(e.told -> 'forced' ->> codes[q.number], 'it was forced, and the reason is not stored')
            ELSE q.detail END
    FROM (VALUES
        (1, 'Is the data ready?', 'ready', CASE WHEN total = 0 THEN 'it has no inputs'
            ELSE coalesce(given, (SELECT dataflow._listed(array_agg(format('%s v%s', i.key, i.value) ORDER BY i.key), total) FROM jsonb_each_text(a.inputs) AS i)) END),
        (2, 'Is it the right data?', 'right_data', CASE WHEN total = 0 THEN 'it has no inputs' ELSE coalesce('found ' || seen, host_is_silent) END),
        (3, 'Is it in the right place?', 'right_place', coalesce(concat_ws('; ', places, (
            SELECT string_agg(format('%s is written to %s', o.key, coalesce(e.found -> 'outputs' ->> o.key, o.value ->> 'place')), '; ' ORDER BY o.key)
            FROM jsonb_each(e.told -> 'outputs') AS o WHERE coalesce(e.found -> 'outputs' ->> o.key, o.value ->> 'place') IS NOT NULL),
            'host ' || (e.told ->> 'hostname') || ', environment ' || (e.told ->> 'environment')), 'where is not stored: it asked for no order')),
        (4, 'Has it been validated?', 'validated', coalesce(vouched, CASE WHEN total = 0 THEN 'it has no inputs' ELSE 'every input was validated' END)),
        (5, 'Is it safe to access?', 'safe', coalesce(concat_ws('; ', locks, (
            SELECT string_agg(format('%s/%s %s', o.key, a.dataid, o.value ->> 'lock'), '; ' ORDER BY o.key) FROM jsonb_each(e.told -> 'outputs') AS o WHERE o.value ? 'lock')),
            'no input and no output was locked'))
    ) AS q (number, question, name, detail)
    CROSS JOIN LATERAL (SELECT (a.answers ->> q.name)::boolean AS answer) AS said
    ORDER BY q.number;
END $$;

-- Question 15: what was declared of a job and its datasets after a moment. No row: nothing was.
CREATE OR REPLACE FUNCTION dataflow._changes_since(jobid text, moment timestamptz) RETURNS TABLE (
    number integer, question text, answer boolean, code text, detail text, remedy text
)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    used constant text[] := dataflow._used_datasets(ARRAY[_changes_since.jobid]);
BEGIN
    RETURN QUERY
    SELECT 15, 'What was changed since?', NULL::boolean, NULL::text, dataflow._listed(array_agg(format('%s of %s from %s to %s, at %s by %s%s',
            e.code, coalesce(e.datasetid, e.jobid), coalesce(e.from_status, 'nothing'), coalesce(e.to_status, 'nothing'),
            dataflow._stamp(e.at), e.actor, ' (' || e.reason || ')') ORDER BY e.at, e.event), count(*)), NULL::text
    FROM dataflow.event e
    WHERE e.jobid IN ('', _changes_since.jobid) AND e.dataid = '' AND e.kind IN ('dataset', 'job') AND e.at > _changes_since.moment
        AND (e.jobid = _changes_since.jobid OR e.datasetid = ANY (used))
    HAVING count(*) > 0;
END $$;

CREATE OR REPLACE FUNCTION dataflow.why_attempt(jobid text, dataid text, attempt_number integer) RETURNS TABLE (
    number integer, question text, answer boolean, code text, detail text, remedy text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    a dataflow.attempt;
    e dataflow.evidence;
BEGIN
    SELECT x.* INTO a FROM dataflow.attempt x WHERE x.attempt = dataflow._of_run(why_attempt.jobid, why_attempt.dataid, why_attempt.attempt_number);
    SELECT x.* INTO e FROM dataflow.evidence x WHERE x.attempt = a.attempt;
    RETURN QUERY SELECT 0, 'How did it go?', NULL::boolean, coalesce(a.outcome, 'RUNNING'),
        concat_ws(', ', format('attempt %s%s was claimed by %s at %s', a.number, CASE WHEN a.forced THEN ', forced,' ELSE '' END, a.daemon, dataflow._stamp(a.claimed)),
            coalesce('its code began ' || dataflow._stamp(a.started), CASE WHEN a.ended IS NOT NULL THEN 'its code never began' END),
            CASE WHEN a.ended IS NULL THEN 'and it is at it' ELSE 'it ended ' || dataflow._stamp(a.ended) END)
        || coalesce(', ' || a.code || ': ' || coalesce(split_part(a.error, E'\n', 1), 'no reason is known'), ''),
        format('how it stands now: dataflowctl why %s %s', a.jobid, a.dataid);
    RETURN QUERY SELECT q.*, CASE WHEN NOT q.answer THEN a.remedy END FROM dataflow._attempt_answers(a.attempt) AS q;
    RETURN QUERY SELECT 14, 'With what did it run?', NULL::boolean, NULL::text, concat_ws('; ',
            format('daemon %s%s%s%s', a.daemon, ' of host ' || (e.told ->> 'hostname'), ', environment ' || (e.told ->> 'environment'), ', dataflowd ' || nullif(e.told ->> 'version', '')),
            'flow ' || (e.told ->> 'flow') || coalesce(' in ' || (e.found ->> 'directory'), ''),
            coalesce('code ' || left(coalesce(a.code_hash, e.found ->> 'code_hash'), 12), 'its code was not told'),
            'configuration ' || left(coalesce(a.config_hash, e.found ->> 'config_hash'), 12), 'params ' || (e.told ->> 'params'), 'words ' || dataflow._words_text(a.words)), NULL::text;
    RETURN QUERY SELECT c.* FROM dataflow._changes_since(why_attempt.jobid, a.claimed) AS c;
END $$;
COMMENT ON FUNCTION dataflow.why_attempt(text, text, integer) IS
    'The five questions as they were answered for one attempt of a run, from its evidence: how it went (0), the questions (1 to 5), with what it ran (14), and what was declared otherwise since (15)';

-- The status of a chunk at a moment, and who had set it. is_known false: history does not reach back so far.
CREATE OR REPLACE FUNCTION dataflow._status_at(
    datasetid text, dataid text, moment timestamptz, OUT status text, OUT since timestamptz, OUT who text, OUT code text, OUT reason text, OUT validated boolean, OUT is_known boolean
)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    owners constant text[] := ARRAY(
        SELECT '' UNION SELECT o.jobid::text FROM dataflow.job_output o WHERE o.datasetid = _status_at.datasetid
        UNION SELECT s.jobid FROM dataflow.datastatus s WHERE s.datasetid = _status_at.datasetid AND s.dataid = _status_at.dataid AND s.locktype = 'OUT');
    last record;
    now_is record;
BEGIN
    SELECT e.* INTO last FROM dataflow.event e
        WHERE e.jobid = ANY (owners) AND e.dataid = _status_at.dataid AND e.datasetid = _status_at.datasetid AND e.kind = 'status'
            AND num_nonnulls(e.from_status, e.to_status) > 0 AND e.at <= _status_at.moment
        ORDER BY e.at DESC, e.event DESC LIMIT 1;
    SELECT s.status, s.modified, s.code, s.reason, s.validated INTO now_is FROM dataflow.datastatus s
        WHERE s.datasetid = _status_at.datasetid AND s.dataid = _status_at.dataid AND s.locktype = 'OUT';
    IF last.event IS NOT NULL THEN
        status := last.to_status;
        since := last.at;
        who := last.actor || coalesce(' with ' || nullif(last.application, ''), '');
        code := last.code;
        reason := last.reason;
        is_known := true;
    ELSIF now_is.modified <= _status_at.moment THEN
        status := now_is.status;
        since := now_is.modified;
        code := now_is.code;
        reason := now_is.reason;
        is_known := true;
    ELSE
        -- There is no event before the moment: the chunk was not there, or the event was pruned. The first event after it may know the status before.
        SELECT e.from_status, e.from_status IS NOT NULL INTO status, is_known FROM dataflow.event e
            WHERE e.jobid = ANY (owners) AND e.dataid = _status_at.dataid AND e.datasetid = _status_at.datasetid AND e.kind = 'status'
                AND num_nonnulls(e.from_status, e.to_status) > 0
            ORDER BY e.event LIMIT 1;
        is_known := coalesce(is_known, false) OR dataflow._history_begins() <= _status_at.moment;
    END IF;
    SELECT CASE e.code WHEN 'VALIDATED' THEN true WHEN 'NOT_VALIDATED' THEN false END INTO validated FROM dataflow.event e
        WHERE e.jobid = ANY (owners) AND e.dataid = _status_at.dataid AND e.datasetid = _status_at.datasetid AND e.kind = 'status'
            AND (e.code IN ('VALIDATED', 'NOT_VALIDATED') OR e.to_status = 'READY') AND e.at <= _status_at.moment
        ORDER BY e.at DESC, e.event DESC LIMIT 1;
END $$;

CREATE OR REPLACE FUNCTION dataflow._history_begins() RETURNS timestamptz
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT e.at FROM dataflow.event e ORDER BY e.event LIMIT 1 $$;

CREATE OR REPLACE FUNCTION dataflow._beyond_history() RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT coalesce('history begins at ' || dataflow._stamp(dataflow._history_begins()), 'there is no history') || ', and tells nothing of this' $$;

-- What the database had noted last of a run that waited: it was queued, blocked, or refused by a claim.
CREATE OR REPLACE FUNCTION dataflow._noted_last(jobid text, dataid text, moment timestamptz, OUT kind text, OUT at timestamptz, OUT code text, OUT reason text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    SELECT e.kind, e.at, e.code, e.reason INTO kind, at, code, reason FROM dataflow.event e
        WHERE e.jobid = _noted_last.jobid AND e.dataid = _noted_last.dataid AND e.kind IN ('queued', 'blocked', 'refused') AND e.at <= _noted_last.moment
        ORDER BY e.at DESC, e.event DESC LIMIT 1;
END $$;

CREATE OR REPLACE FUNCTION dataflow._attempt_before(jobid text, dataid text, moment timestamptz) RETURNS dataflow.attempt
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    found dataflow.attempt;
BEGIN
    SELECT a.* INTO found FROM dataflow.attempt a
        WHERE a.jobid = _attempt_before.jobid AND a.dataid = _attempt_before.dataid AND a.ended <= _attempt_before.moment ORDER BY a.number DESC LIMIT 1;
    RETURN found;
END $$;

-- Where a chunk lay at a moment: the location that the first change after the moment replaced, else the location of now.
CREATE OR REPLACE FUNCTION dataflow._location_at(datasetid text, dataid text, moment timestamptz) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    d dataflow.dataset;
    was record;
    made text;
BEGIN
    SELECT x.* INTO d FROM dataflow.dataset x WHERE x.datasetid = _location_at.datasetid;
    SELECT e.event, e.from_status INTO was FROM dataflow.event e
        WHERE e.jobid = '' AND e.dataid = '' AND e.kind = 'dataset' AND e.datasetid = _location_at.datasetid AND e.code = 'location' AND e.at > _location_at.moment
        ORDER BY e.at, e.event LIMIT 1;
    IF was.event IS NOT NULL THEN
        d.location := was.from_status;
    END IF;
    -- A version that a job had published by then lies where its manifest says.
    SELECT m.location INTO made FROM dataflow.manifest m
        WHERE m.datasetid = _location_at.datasetid AND m.dataid = _location_at.dataid AND m.published <= _location_at.moment ORDER BY m.version DESC LIMIT 1;
    RETURN coalesce(made, dataflow._place(d, _location_at.dataid));
END $$;

-- The five answers for a run that no attempt ran at that moment.
CREATE OR REPLACE FUNCTION dataflow._waiting_answers(jobid text, dataid text, moment timestamptz) RETURNS TABLE (
    number integer, question text, answer boolean, code text, detail text
)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    looked_at constant integer := 1000;
    last record;
    changed record;
    inputs record;
    outputs record;
    before dataflow.attempt;
    refusal jsonb;
    note text;
BEGIN
    SELECT n.* INTO last FROM dataflow._noted_last(_waiting_answers.jobid, _waiting_answers.dataid, _waiting_answers.moment) AS n;
    SELECT e.at, e.actor INTO changed FROM dataflow.event e
        WHERE e.jobid = _waiting_answers.jobid AND e.dataid = '' AND e.kind = 'job' AND e.code = 'input' AND e.at > _waiting_answers.moment ORDER BY e.event LIMIT 1;
    note := '; by the inputs that the job has now, which ' || changed.actor || ' changed at ' || dataflow._stamp(changed.at);
    before := dataflow._attempt_before(_waiting_answers.jobid, _waiting_answers.dataid, _waiting_answers.moment);

    SELECT
        count(*) AS chunks,
        min(i.datasetid) FILTER (WHERE i.dataid IS NULL) AS unmapped,
        bool_and(s.is_known) FILTER (WHERE i.dataid IS NOT NULL) AS are_known,
        dataflow._listed(array_agg(format('%s/%s %s', i.datasetid, i.dataid, CASE
            WHEN s.status IS NULL THEN 'was not there' || coalesce('; it came at ' || dataflow._stamp(later.at), '')
            ELSE format('was %s', s.status) END) ORDER BY i.datasetid, i.dataid)
            FILTER (WHERE i.dataid IS NOT NULL AND s.is_known AND coalesce(s.status, '') NOT IN ('READY', 'HOLD', 'PENDING')),
            count(*) FILTER (WHERE i.dataid IS NOT NULL AND s.is_known AND coalesce(s.status, '') NOT IN ('READY', 'HOLD', 'PENDING'))) AS missing,
        dataflow._listed(array_agg(format('%s/%s was READY since %s%s', i.datasetid, i.dataid, dataflow._stamp(s.since), ', by ' || s.who) ORDER BY i.datasetid, i.dataid)
            FILTER (WHERE s.status = 'READY'), count(*) FILTER (WHERE s.status = 'READY')) AS ready,
        dataflow._listed(array_agg(format('%s/%s was %s%s', i.datasetid, i.dataid, s.status, ': ' || s.reason) ORDER BY i.datasetid, i.dataid)
            FILTER (WHERE s.status IN ('HOLD', 'PENDING')), count(*) FILTER (WHERE s.status IN ('HOLD', 'PENDING'))) AS held,
        dataflow._listed(array_agg(format('%s/%s', i.datasetid, i.dataid) ORDER BY i.datasetid, i.dataid) FILTER (WHERE s.validated IS FALSE),
            count(*) FILTER (WHERE s.validated IS FALSE)) AS unvalidated,
        dataflow._listed(array_agg(format('%s/%s at %s', i.datasetid, i.dataid, p.place) ORDER BY i.datasetid, i.dataid) FILTER (WHERE p.place IS NOT NULL),
            count(*) FILTER (WHERE p.place IS NOT NULL)) AS places
    INTO inputs
    FROM (SELECT q.datasetid, q.dataid FROM dataflow._inputs(_waiting_answers.jobid, _waiting_answers.dataid) AS q LIMIT looked_at) AS i
    LEFT JOIN LATERAL dataflow._status_at(i.datasetid, i.dataid, _waiting_answers.moment) AS s ON i.dataid IS NOT NULL
    LEFT JOIN LATERAL (SELECT dataflow._location_at(i.datasetid, i.dataid, _waiting_answers.moment) AS place) AS p ON i.dataid IS NOT NULL
    LEFT JOIN LATERAL (
        SELECT e.at FROM dataflow.event e
        WHERE i.dataid IS NOT NULL AND e.jobid IN ('', coalesce((SELECT o.jobid::text FROM dataflow.job_output o WHERE o.datasetid = i.datasetid), '')) AND e.dataid = i.dataid
            AND e.datasetid = i.datasetid AND e.to_status = 'READY' AND e.at > _waiting_answers.moment
        ORDER BY e.event LIMIT 1
    ) AS later ON s.status IS NULL;

    SELECT bool_and(s.is_known) AS are_known, min(s.status) FILTER (WHERE s.status <> 'READY') AS status, bool_or(s.status = 'READY') AS has_ready,
        string_agg(CASE s.status
            WHEN 'READY' THEN format('%s/%s was published already, since %s', o.datasetid, _waiting_answers.dataid, dataflow._stamp(s.since))
            WHEN 'FAILED' THEN format('%s/%s had FAILED (%s) at %s, and waited for RESUBMIT%s', o.datasetid, _waiting_answers.dataid, coalesce(s.code, 'no code'), dataflow._stamp(s.since),
                CASE WHEN before.retry_at IS NOT NULL THEN format(' or its retry at %s', dataflow._stamp(before.retry_at)) ELSE '' END)
            WHEN 'RUNNING' THEN format('%s/%s was being written', o.datasetid, _waiting_answers.dataid)
            ELSE format('%s/%s was %s%s', o.datasetid, _waiting_answers.dataid, s.status, ': ' || s.reason) END, '; ' ORDER BY o.datasetid)
            FILTER (WHERE s.status IN ('READY', 'FAILED', 'RUNNING', 'HOLD', 'PENDING')) AS locked,
        string_agg(o.datasetid || ' is written below ' || replace(dataflow._location_at(o.datasetid, NULL, _waiting_answers.moment), '{dataid}', _waiting_answers.dataid), '; ' ORDER BY o.datasetid) AS places
    INTO outputs
    FROM dataflow.job_output o CROSS JOIN LATERAL dataflow._status_at(o.datasetid, _waiting_answers.dataid, _waiting_answers.moment) AS s
    WHERE o.jobid = _waiting_answers.jobid;
    refusal := CASE WHEN outputs.status = 'FAILED' THEN before.answers -> 'refused' END;

    RETURN QUERY
    SELECT q.number, q.question, CASE WHEN q.no IS NOT NULL THEN false WHEN q.yes IS NOT NULL THEN true END, CASE WHEN q.no IS NOT NULL THEN q.code END,
        coalesce(q.no, q.yes, dataflow._beyond_history()) || CASE WHEN q.number IN (1, 2) THEN coalesce(note, '') ELSE '' END
    FROM (
        SELECT v.number, v.question, v.code, v.yes, coalesce(
            CASE WHEN refusal ->> 'code' = v.code THEN format('attempt %s found: %s', before.number, refusal ->> 'detail') END,
            v.no,
            -- The reason that the database noted at that time.
            CASE WHEN last.kind IN ('blocked', 'refused') AND last.code = v.code AND v.code IN ('WRONG_DATA', 'INVALID_PATH', 'NOT_VALIDATED') THEN last.reason END) AS no
        FROM (VALUES
            (1, 'Is the data ready?', 'DATA_NOT_READY', inputs.missing,
                CASE WHEN coalesce(inputs.are_known, true) THEN coalesce(inputs.ready, CASE WHEN inputs.chunks = 0 THEN 'it has no inputs' ELSE 'what is held counts as there' END) END),
            (2, 'Is it the right data?', 'WRONG_DATA', inputs.unmapped || format(' has no input chunk for dataid %s: its mapping does not know such ids', _waiting_answers.dataid),
                'every input has a chunk for this dataid; only attempts know what lay there then'),
            (3, 'Is it in the right place?', 'INVALID_PATH', NULL,
                coalesce(concat_ws('; ', inputs.places, outputs.places), 'none of its datasets has data of its own') || '; only attempts know whether anything lay there'),
            (4, 'Has it been validated?', 'NOT_VALIDATED', inputs.unvalidated || ' had arrived, but was not validated',
                CASE WHEN coalesce(inputs.are_known, true) THEN 'no input had arrived without being validated' END),
            (5, 'Is it safe to access?', 'LOCKED', coalesce(outputs.locked, inputs.held),
                CASE WHEN coalesce(outputs.are_known, true) AND coalesce(inputs.are_known, true) THEN 'no input and no output was locked' END)
        ) AS v (number, question, code, no, yes)
    ) AS q
    ORDER BY q.number;
END $$;

-- The attempt that ran at a moment; the moments of its claim and of its end count.
CREATE OR REPLACE FUNCTION dataflow._attempt_at(jobid text, dataid text, moment timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_job(_attempt_at.jobid);
    PERFORM dataflow._checked_dataid(_attempt_at.dataid);
    IF _attempt_at.moment IS NULL OR _attempt_at.moment > clock_timestamp() + interval '1 minute' THEN
        RAISE EXCEPTION 'nothing is known of %', coalesce(dataflow._stamp(moment), 'no time at all') USING ERRCODE = 'DF400',
            HINT = 'name a time that is over; five_questions() answers for now';
    END IF;
    RETURN (
        SELECT a.attempt FROM dataflow.attempt a
        WHERE a.jobid = _attempt_at.jobid AND a.dataid = _attempt_at.dataid AND a.claimed <= _attempt_at.moment AND coalesce(a.ended, 'infinity') >= _attempt_at.moment
        ORDER BY a.number DESC LIMIT 1);
END $$;

CREATE OR REPLACE FUNCTION dataflow.five_questions_at(jobid text, dataid text, moment timestamptz) RETURNS TABLE (
    number integer, question text, answer boolean, code text, detail text
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT w.number, w.question, w.answer, w.code, w.detail
    FROM dataflow.why_at(five_questions_at.jobid, five_questions_at.dataid, five_questions_at.moment) AS w WHERE w.number BETWEEN 1 AND 5
$$;
COMMENT ON FUNCTION dataflow.five_questions_at(text, text, timestamptz) IS
    'The five questions as they were at a moment: while an attempt was at the run, from its evidence; while it waited, from history, and NULL where history cannot tell. SELECT * FROM dataflow.five_questions_at(''clean_orders'', ''2026-01-01'', ''2026-01-02 06:00Z'')';

CREATE OR REPLACE FUNCTION dataflow.why_at(jobid text, dataid text, moment timestamptz) RETURNS TABLE (
    number integer, question text, answer boolean, code text, detail text, remedy text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    at_it constant bigint := dataflow._attempt_at(why_at.jobid, why_at.dataid, why_at.moment);
    last record;
    before dataflow.attempt;
    after dataflow.attempt;
    made record;
    stood text;
BEGIN
    IF at_it IS NOT NULL THEN
        RETURN QUERY SELECT w.* FROM dataflow.why_attempt(why_at.jobid, why_at.dataid, (SELECT a.number FROM dataflow.attempt a WHERE a.attempt = at_it)) AS w;
        RETURN;
    END IF;
    SELECT n.* INTO last FROM dataflow._noted_last(why_at.jobid, why_at.dataid, why_at.moment) AS n;
    SELECT s.status, s.since, s.code, s.reason, s.is_known INTO made FROM dataflow.job_output o
        CROSS JOIN LATERAL dataflow._status_at(o.datasetid, why_at.dataid, why_at.moment) AS s WHERE o.jobid = why_at.jobid ORDER BY o.datasetid LIMIT 1;
    before := dataflow._attempt_before(why_at.jobid, why_at.dataid, why_at.moment);
    SELECT a.* INTO after FROM dataflow.attempt a
        WHERE a.jobid = why_at.jobid AND a.dataid = why_at.dataid AND a.claimed > why_at.moment ORDER BY a.number LIMIT 1;
    stood := CASE
        WHEN last.kind = 'queued' AND coalesce(made.status, 'FAILED') IN ('FAILED', 'RESUBMIT') AND last.at >= coalesce(made.since, last.at) THEN 'QUEUED'
        WHEN made.status IN ('READY', 'FAILED') THEN made.status
        WHEN made.status IN ('HOLD', 'PENDING') THEN 'HELD'
        WHEN last.kind IS NOT NULL OR made.status IS NOT NULL THEN 'WAITING'
        ELSE 'UNKNOWN' END;
    RETURN QUERY SELECT 0, 'Where did it stand?', NULL::boolean, stood, concat_ws('; ',
            format('at %s no attempt was at it', dataflow._stamp(why_at.moment)),
            CASE stood
                WHEN 'QUEUED' THEN format('it was in the queue since %s%s', dataflow._stamp(last.at), ', ' || last.reason)
                WHEN 'READY' THEN format('it was published since %s', dataflow._stamp(made.since))
                WHEN 'FAILED' THEN format('it had failed at %s, %s: %s', dataflow._stamp(made.since), coalesce(made.code, 'no code'), coalesce(split_part(made.reason, E'\n', 1), 'no reason is known'))
                WHEN 'HELD' THEN format('it was held since %s: %s', dataflow._stamp(made.since), coalesce(made.reason, 'no reason was given'))
                WHEN 'WAITING' THEN coalesce('it waited since ' || dataflow._stamp(last.at) || ': ' || last.code || ', ' || last.reason, 'it waited')
                ELSE CASE WHEN made.is_known THEN 'nothing was known of it' ELSE dataflow._beyond_history() END END,
            'attempt ' || before.number || ' had ended at ' || dataflow._stamp(before.ended) || ', ' || coalesce(before.code, before.outcome),
            'attempt ' || after.number || ' was claimed at ' || dataflow._stamp(after.claimed)),
        coalesce(format('dataflowctl why %s %s --attempt ', why_at.jobid, why_at.dataid) || before.number || ' has the evidence of the attempt before',
            format('how it stands now: dataflowctl why %s %s', why_at.jobid, why_at.dataid));
    RETURN QUERY SELECT q.*, NULL::text FROM dataflow._waiting_answers(why_at.jobid, why_at.dataid, why_at.moment) AS q;
    RETURN QUERY SELECT c.* FROM dataflow._changes_since(why_at.jobid, why_at.moment) AS c;
END $$;
COMMENT ON FUNCTION dataflow.why_at(text, text, timestamptz) IS
    'Why a run did, or did not, run at a moment: where it stood (0), the five questions as they were then (1 to 5), of an attempt with what it ran (14), and what was declared otherwise since (15)';
