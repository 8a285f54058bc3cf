-- The life of a chunk: the changes that a person may make by hand, and the consequences of every change.

-- Plain SQL is an interface: UPDATE dataflow.datastatus SET status = 'RESUBMIT' WHERE ... This trigger fires for all changes but those of
-- our own functions, which run as dataflow_admin.
CREATE OR REPLACE FUNCTION dataflow._datastatus_by_hand() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    allowed constant text[] := ARRAY['RESUBMIT', 'HOLD', 'PENDING', 'FAILED', 'READY'];
    chunk text;
    last_version integer;
BEGIN
    IF TG_OP = 'INSERT' THEN
        RAISE EXCEPTION 'rows of datastatus are not inserted by hand' USING ERRCODE = 'DF409',
            HINT = 'SELECT dataflow.ready(dataset, dataid) registers a chunk; SELECT dataflow.hold(dataset, dataid, reason) locks one';
    END IF;
    chunk := OLD.datasetid || '/' || OLD.dataid;
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'rows of datastatus are not deleted by hand: %', chunk USING ERRCODE = 'DF409',
            HINT = 'SELECT dataflow.delete_chunk(dataset, dataid) forgets a chunk with all that belongs to it';
    END IF;
    IF (to_jsonb(NEW) - ARRAY['status', 'reason']) <> (to_jsonb(OLD) - ARRAY['status', 'reason']) THEN
        RAISE EXCEPTION 'only status and reason of % may be set by hand', chunk USING ERRCODE = 'DF409',
            HINT = 'everything else is written by the framework';
    END IF;
    NEW.status := CASE upper(NEW.status)
        WHEN 'RERUN' THEN 'RESUBMIT'
        WHEN 'COMPLETE' THEN CASE OLD.locktype WHEN 'OUT' THEN 'READY' ELSE 'DONE' END
        WHEN 'ERROR' THEN CASE OLD.locktype WHEN 'OUT' THEN 'FAILED' ELSE 'ERROR' END
        WHEN 'FAILED' THEN CASE OLD.locktype WHEN 'OUT' THEN 'FAILED' ELSE 'ERROR' END
        ELSE upper(NEW.status)
    END;
    IF OLD.locktype = 'IN' THEN
        IF NEW.status <> ALL (allowed || ARRAY['RUNNING', 'DONE', 'ERROR']) THEN
            RAISE EXCEPTION '% is no status: %', NEW.status, chunk USING ERRCODE = 'DF400',
                HINT = 'an IN row is RUNNING, DONE or ERROR, and follows its run: set the status of the OUT row';
        END IF;
        RETURN NULL;
    END IF;
    IF NEW.status = OLD.status THEN
        RETURN NEW;
    END IF;
    IF NEW.status = 'RUNNING' OR (NEW.status = 'READY' AND OLD.status = 'RUNNING') THEN
        RAISE EXCEPTION '% cannot be set to % by hand', chunk, NEW.status USING ERRCODE = 'DF409',
            HINT = 'a claim sets RUNNING, and the attempt that holds the token publishes; RESUBMIT cancels it and runs again';
    END IF;
    IF NEW.status <> ALL (allowed) THEN
        RAISE EXCEPTION '% is no status: %', NEW.status, chunk USING ERRCODE = 'DF400',
            HINT = 'allowed are ' || array_to_string(allowed, ', ') || ' (also RERUN, COMPLETE, ERROR)';
    END IF;
    IF NEW.status = 'RESUBMIT' AND OLD.jobid = '' THEN
        RAISE NOTICE '% is left alone: no job produces it', chunk USING HINT = 'dataflow.ready() registers a new version of it';
        RETURN NULL;
    END IF;
    IF NEW.status = 'RESUBMIT' AND OLD.status IN ('HOLD', 'PENDING') THEN
        RAISE NOTICE '% is left alone: it is held (%)', chunk, coalesce(OLD.reason, 'no reason given') USING HINT = 'dataflow.release() it first';
        RETURN NULL;
    END IF;
    NEW.modified := now();
    -- Only resubmit_with() gives a run its own parameters. A RESUBMIT by hand goes back to those of the job.
    NEW.params := CASE WHEN NEW.status NOT IN ('RESUBMIT', 'READY') THEN OLD.params END;
    NEW.held_from := CASE
        WHEN NEW.status NOT IN ('HOLD', 'PENDING') THEN NULL
        WHEN OLD.held_from IS NOT NULL THEN OLD.held_from
        WHEN OLD.status = 'RUNNING' THEN 'RESUBMIT'
        ELSE OLD.status
    END;
    IF NEW.status = 'READY' AND OLD.held_from IS DISTINCT FROM 'READY' THEN
        NEW.validated := true;
        IF OLD.external OR (OLD.jobid = '' AND OLD.attempt IS NULL) THEN
            NEW.external := true;
            NEW.manifest := NULL;
            NEW.version := OLD.version + 1;
        ELSE
            -- Readers find the output of a job through its manifest. Without a manifest they would read the whole directory, with the
            -- files of failed attempts and of older versions.
            SELECT m.version INTO last_version FROM dataflow.manifest m
                WHERE m.datasetid = OLD.datasetid AND m.dataid = OLD.dataid AND m.version = OLD.manifest AND m.collected IS NULL;
            IF last_version IS NULL THEN
                RAISE EXCEPTION '% cannot be set to READY by hand: %', chunk,
                    CASE OLD.jobid WHEN '' THEN 'there is no published version of it' ELSE format('there is no version of it that job %s has published', OLD.jobid) END
                    USING ERRCODE = 'DF409', HINT = format('dataflowctl ready %s %s registers data that was brought from outside', OLD.datasetid, OLD.dataid)
                        || CASE WHEN OLD.jobid <> '' THEN '; status RESUBMIT has the job make it' ELSE '' END;
            END IF;
            NEW.manifest := last_version;
            NEW.version := last_version;
        END IF;
    END IF;
    NEW.rejected := CASE NEW.status WHEN 'FAILED' THEN OLD.manifest WHEN 'READY' THEN NULL ELSE OLD.rejected END;
    NEW.code := CASE WHEN NEW.status = 'FAILED' THEN 'BY_HAND' WHEN NEW.status IN ('HOLD', 'PENDING') THEN OLD.code END;
    IF NEW.reason IS NOT DISTINCT FROM OLD.reason THEN
        NEW.reason := NULL;
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER datastatus_by_hand BEFORE INSERT OR UPDATE OR DELETE ON dataflow.datastatus
    FOR EACH ROW WHEN (current_user <> 'dataflow_admin') EXECUTE FUNCTION dataflow._datastatus_by_hand();

-- A RESUBMIT by hand of a run that already waits for RESUBMIT takes back its parameters, as resubmit() does. The trigger fires only for
-- statements that name the status, so that a change of the reason alone does not count. Its name sorts after that of the trigger above, so
-- it fires second.
CREATE OR REPLACE FUNCTION dataflow._resubmitted_again_by_hand() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    NEW.params := NULL;
    IF NEW.reason IS NOT DISTINCT FROM OLD.reason THEN
        NEW.reason := NULL;
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER datastatus_resubmitted_again BEFORE UPDATE OF status ON dataflow.datastatus
    FOR EACH ROW WHEN (current_user <> 'dataflow_admin' AND OLD.status = 'RESUBMIT' AND NEW.status = 'RESUBMIT' AND OLD.params IS NOT NULL)
    EXECUTE FUNCTION dataflow._resubmitted_again_by_hand();

-- The consequences of every change of status: history, counters, fencing, and the queue.
CREATE OR REPLACE FUNCTION dataflow._changed(changes dataflow.status_change[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_nestloop = on
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_material = off
SET enable_memoize = off
SET enable_bitmapscan = off
SET join_collapse_limit = 1
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    is_stale constant boolean := current_setting('transaction_isolation') <> 'read committed';
    resets boolean;
    judges boolean;
    registers boolean;
    misnamed text[] := '{}';
    alone boolean;
    applying boolean;
    jobids text[];
    dataids text[];
BEGIN
    IF changes IS NULL THEN
        RETURN;
    END IF;
    SELECT
        bool_or(c.locktype = 'OUT' AND (c.was = 'RUNNING' AND c.now IS DISTINCT FROM 'READY' OR c.now = 'RESUBMIT' OR (c.now IN ('HOLD', 'PENDING') AND c.was IS NOT NULL))),
        -- A chunk that is registered again was READY before, so no run becomes ready by it.
        bool_or((c.now IS DISTINCT FROM 'RUNNING' OR c.was = 'READY') AND c.code IS DISTINCT FROM 'NEW_VERSION'),
        bool_or(c.was IS NULL AND c.now <> 'RUNNING')
    INTO resets, judges, registers FROM unnest(changes) AS c;

    WITH chunks AS MATERIALIZED (
        SELECT c.* FROM unnest(changes) AS c WHERE c.locktype = 'OUT'
    ), counted AS (
        INSERT INTO dataflow.counter (datasetid, jobid, locktype, status, chunks)
        SELECT d.datasetid, d.jobid, 'OUT', d.status, sum(d.difference)
        FROM (
            SELECT c.datasetid, c.jobid, c.now AS status, 1 AS difference FROM chunks c WHERE c.now IS NOT NULL
            UNION ALL
            SELECT c.datasetid, c.jobid, c.was, -1 FROM chunks c WHERE c.was IS NOT NULL
        ) AS d
        GROUP BY d.datasetid, d.jobid, d.status HAVING sum(d.difference) <> 0
    )
    INSERT INTO dataflow.event (kind, jobid, dataid, datasetid, attempt, from_status, to_status, code, reason)
    SELECT 'status', c.jobid, c.dataid, c.datasetid, c.attempt, nullif(c.was, c.now), nullif(c.now, c.was), c.code, c.reason FROM chunks c;

    -- For programs that show status. Daemons listen to another channel, with the changes that concern them.
    PERFORM pg_notify('dataflow_status', '');
    IF resets THEN
        PERFORM dataflow._reset_runs(changes);
    END IF;
    -- A new chunk makes runs of its consumers known. Later runs of consumers in strict order wait for them from now on.
    judges := judges OR EXISTS (
        SELECT FROM unnest(changes) AS c JOIN dataflow.job_input i ON i.datasetid = c.datasetid JOIN dataflow.job j ON j.jobid = i.jobid
        WHERE c.locktype = 'OUT' AND c.was IS NULL AND j.strict_order);
    IF NOT judges THEN
        RETURN;
    END IF;

    IF is_stale OR current_setting('dataflow.defer', true) = 'on' THEN
        PERFORM dataflow._defer(changes, is_stale);
        RETURN;
    END IF;

    SELECT c.is_alone, c.is_applying INTO alone, applying FROM dataflow._company() AS c;
    alone := alone AND NOT applying;
    IF registers THEN
        -- This transaction may have read the producer before another one applied a flow. settle() corrects such rows.
        misnamed := ARRAY(
            SELECT d.datasetid FROM (SELECT DISTINCT c.datasetid, c.jobid FROM unnest(changes) AS c WHERE c.locktype = 'OUT' AND c.was IS NULL) AS d
            WHERE d.jobid <> coalesce((SELECT o.jobid::text FROM dataflow.job_output o WHERE o.datasetid = d.datasetid), ''));
    END IF;
    IF NOT alone OR misnamed <> '{}' THEN
        -- Some runs cannot be named yet: those of jobs that are being declared, and those that another input beside a reference leads to.
        INSERT INTO dataflow.recheck (datasetid, dataid, only_producer)
        SELECT c.datasetid, c.dataid, bool_and(c.locktype = 'IN') FROM unnest(changes) AS c
        WHERE applying OR (c.locktype = 'OUT' AND (c.datasetid = ANY (misnamed) OR NOT alone AND EXISTS (
            SELECT FROM dataflow.job_input i WHERE i.datasetid = c.datasetid AND i.kind = 'fixed' AND i.mapping ->> 'dataid' = c.dataid)))
        GROUP BY c.datasetid, c.dataid;
    END IF;
    SELECT array_agg(r.jobid), array_agg(r.dataid) INTO jobids, dataids FROM (
        -- Consumers of chunks that became READY, are no longer READY, or were validated.
        SELECT a.jobid, a.dataid FROM unnest(changes) AS c, LATERAL dataflow.affected_runs(c.datasetid, c.dataid) AS a
        WHERE c.locktype = 'OUT' AND ((c.was IS NOT DISTINCT FROM 'READY') <> (c.now IS NOT DISTINCT FROM 'READY') OR (c.was = c.now AND c.code <> 'NEW_VERSION'))
        UNION ALL
        -- Consumers in strict order of chunks that are new or were deleted.
        SELECT a.jobid, a.dataid FROM unnest(changes) AS c, LATERAL dataflow.affected_runs(c.datasetid, c.dataid) AS a
        JOIN dataflow.job j ON j.jobid = a.jobid AND j.strict_order
        WHERE c.locktype = 'OUT' AND (c.was IS NULL OR c.now IS NULL) AND c.now IS DISTINCT FROM 'READY' AND c.was IS DISTINCT FROM 'READY'
        UNION ALL
        -- The run that makes the chunk, unless a claim or an ordinary finish made the change.
        SELECT o.jobid, c.dataid FROM unnest(changes) AS c JOIN dataflow.job_output o ON o.datasetid = c.datasetid
        JOIN dataflow.job j ON j.jobid = o.jobid
        WHERE c.locktype = 'OUT' AND c.now IS DISTINCT FROM 'RUNNING'
            AND (c.now IS DISTINCT FROM 'READY' OR c.was IS DISTINCT FROM 'RUNNING' OR j.strict_order)
        UNION ALL
        -- The producer of a chunk that is no longer being read.
        SELECT o.jobid, c.dataid FROM unnest(changes) AS c JOIN dataflow.job_output o ON o.datasetid = c.datasetid
        WHERE c.locktype = 'IN' AND c.was = 'RUNNING' AND (NOT alone OR EXISTS (
            SELECT FROM dataflow.datastatus s WHERE s.datasetid = c.datasetid AND s.dataid = c.dataid AND s.locktype = 'OUT'
                AND s.status IN ('RESUBMIT', 'FAILED')))
    ) AS r;
    PERFORM dataflow._refresh(jobids, dataids, alone);
END $$;

-- Leaves the changes to settle(), which judges after this transaction has ended. A row with only_producer says that only the run which makes
-- the chunk has to be judged; a transaction with an old snapshot cannot know that.
CREATE OR REPLACE FUNCTION dataflow._defer(changes dataflow.status_change[], is_stale boolean) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO dataflow.recheck (datasetid, dataid, only_producer)
    SELECT c.datasetid, c.dataid, bool_and(NOT is_stale AND (c.locktype = 'IN' OR NOT (
        (c.was IS NOT DISTINCT FROM 'READY') <> (c.now IS NOT DISTINCT FROM 'READY') OR (c.was = c.now AND c.code <> 'NEW_VERSION')
        OR ((c.was IS NULL OR c.now IS NULL) AND EXISTS (
            SELECT FROM dataflow.job_input i JOIN dataflow.job j ON j.jobid = i.jobid WHERE i.datasetid = c.datasetid AND j.strict_order)))))
    FROM unnest(changes) AS c
    WHERE c.now IS DISTINCT FROM 'RUNNING' OR c.was = 'READY' OR (c.was IS NULL AND EXISTS (
        SELECT FROM dataflow.job_input i JOIN dataflow.job j ON j.jobid = i.jobid WHERE i.datasetid = c.datasetid AND j.strict_order))
    GROUP BY c.datasetid, c.dataid;
    IF FOUND THEN
        PERFORM pg_notify('dataflow', 'work');
    END IF;
END $$;

-- Nobody may read a held chunk: the attempts that read it are cancelled, and their runs wait for the release. The caller has locked the row
-- of the chunk. A claim locks it, too, so it has either committed before, and its attempt is seen here, or it judges after the hold. Only a
-- transaction with an old snapshot may miss an attempt; it leaves the chunk to settle().
CREATE OR REPLACE FUNCTION dataflow._stop_readers(datasetids text[], dataids text[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    UPDATE dataflow.datastatus s SET status = 'RESUBMIT', modified = now(), code = NULL,
        reason = format('stopped: %s/%s is %s', h.datasetid, h.dataid, coalesce(h.status || ': ' || split_part(h.reason, E'\n', 1), h.status))
    FROM unnest(datasetids, dataids) AS c (datasetid, dataid)
    JOIN dataflow.datastatus h ON h.datasetid = c.datasetid AND h.dataid = c.dataid AND h.locktype = 'OUT' AND h.status IN ('HOLD', 'PENDING')
    JOIN dataflow.datastatus r ON r.datasetid = h.datasetid AND r.dataid = h.dataid AND r.locktype = 'IN' AND r.status = 'RUNNING'
    JOIN dataflow.job_output o ON o.jobid = r.jobid
    WHERE s.datasetid = o.datasetid AND s.dataid = r.run AND s.locktype = 'OUT' AND s.attempt = r.attempt AND s.status = 'RUNNING';
END $$;

-- For runs whose output was taken from them: ends their attempt, removes their input locks, and sets their other outputs to the same.
CREATE OR REPLACE FUNCTION dataflow._reset_runs(changes dataflow.status_change[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    UPDATE dataflow.attempt a SET ended = now(), outcome = 'CANCELLED', code = 'CANCELLED',
        error = format('%s/%s was set to %s by %s%s', c.datasetid, c.dataid, coalesce(c.now, 'nothing'), session_user, ': ' || c.reason)
    FROM unnest(changes) AS c
    WHERE c.locktype = 'OUT' AND c.was = 'RUNNING' AND c.now IS DISTINCT FROM 'READY'
        AND a.attempt = c.attempt AND a.ended IS NULL;
    IF FOUND THEN
        PERFORM pg_notify('dataflow', 'cancel');
    END IF;

    DELETE FROM dataflow.datastatus s
    USING unnest(changes) AS c, dataflow.attempt a, jsonb_object_keys(a.inputs) AS input
    WHERE c.locktype = 'OUT' AND a.attempt = c.attempt
        AND (c.now = 'RESUBMIT' OR (c.was = 'RUNNING' AND c.now IN ('HOLD', 'PENDING')))
        AND s.datasetid = split_part(input, '/', 1) AND s.dataid = split_part(input, '/', 2)
        AND s.locktype = 'IN' AND s.jobid = a.jobid AND s.run = a.dataid;

    -- If a person set one output to FAILED, the other rows of the attempt are still RUNNING. After a finish or a cancel they are not.
    UPDATE dataflow.datastatus s SET status = CASE s.locktype WHEN 'OUT' THEN 'FAILED' ELSE 'ERROR' END, modified = now(),
        code = CASE s.locktype WHEN 'OUT' THEN c.code END, reason = c.reason
    FROM unnest(changes) AS c JOIN dataflow.attempt a ON a.attempt = c.attempt AND a.outcome = 'CANCELLED',
        LATERAL (
            SELECT o.datasetid::text AS datasetid, a.dataid::text AS dataid, 'OUT' AS locktype FROM dataflow.job_output o WHERE o.jobid = a.jobid
            UNION ALL
            SELECT split_part(i, '/', 1), split_part(i, '/', 2), 'IN' FROM jsonb_object_keys(a.inputs) AS i
        ) AS k
    WHERE c.locktype = 'OUT' AND c.was = 'RUNNING' AND c.now = 'FAILED'
        AND s.datasetid = k.datasetid AND s.dataid = k.dataid AND s.locktype = k.locktype AND s.jobid = a.jobid AND s.run = a.dataid
        AND s.status = 'RUNNING';

    UPDATE dataflow.datastatus s SET status = 'RESUBMIT', modified = now(), code = NULL, reason = c.reason
    FROM unnest(changes) AS c
    JOIN dataflow.job_output o ON o.jobid = c.jobid AND o.datasetid <> c.datasetid
    WHERE c.locktype = 'OUT' AND s.datasetid = o.datasetid AND s.dataid = c.dataid AND s.locktype = 'OUT'
        AND ((c.now = 'RESUBMIT' AND s.status IN ('RUNNING', 'READY', 'FAILED')) OR (c.was = 'RUNNING' AND c.now IN ('HOLD', 'PENDING') AND s.status = 'RUNNING'));

    PERFORM dataflow._stop_readers(array_agg(c.datasetid), array_agg(c.dataid)) FROM unnest(changes) AS c
    WHERE c.locktype = 'OUT' AND c.now IN ('HOLD', 'PENDING') AND c.was IS NOT NULL HAVING count(*) > 0;
END $$;

-- What follows when many chunks of a dataset that no job makes are registered, as _changed() has it, in one look at all of them: a run that needs
-- nothing but its new chunk is queued unless an output of it has a row. False: this is not such a case, and nothing was done.
CREATE OR REPLACE FUNCTION dataflow._registered(datasetid text, dataids text[], sortkeys text[], reasons text[]) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_nestloop = on
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_material = off
SET enable_memoize = off
SET enable_bitmapscan = off
SET join_collapse_limit = 1
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    who constant text := session_user;
    program constant text := current_setting('application_name');
    first_dataid text;
    last_dataid text;
    is_text boolean;
    has_outputs boolean;
    alone boolean;
    applying boolean;
    reader record;
    sole_readers text[] := '{}';
    taken_dataids text[];
    other_jobids text[];
    other_dataids text[];
    queued integer := 0;
    written integer;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('dataflow.defer', true) = 'on' THEN
        RETURN false;
    END IF;
    SELECT c.is_alone, c.is_applying INTO alone, applying FROM dataflow._company() AS c;
    -- _changed() leaves what cannot be judged yet to settle().
    IF applying OR EXISTS (SELECT FROM dataflow.job_output o WHERE o.datasetid = _registered.datasetid)
        OR NOT alone AND EXISTS (SELECT FROM dataflow.job_input i WHERE i.datasetid = _registered.datasetid AND i.kind = 'fixed') THEN
        RETURN false;
    END IF;
    INSERT INTO dataflow.counter (datasetid, jobid, locktype, status, chunks) VALUES (_registered.datasetid, '', 'OUT', 'READY', cardinality(dataids));
    INSERT INTO dataflow.event (kind, dataid, datasetid, to_status, reason, actor, application)
    SELECT 'status', c.dataid, _registered.datasetid, 'READY', c.reason, who, program FROM unnest(dataids, reasons) AS c (dataid, reason);
    PERFORM pg_notify('dataflow_status', '');
    PERFORM dataflow._forget_small_plans();

    SELECT min(c COLLATE "C"), max(c COLLATE "C") INTO first_dataid, last_dataid FROM unnest(dataids) AS c;
    SELECT d.ordering = 'text' INTO is_text FROM dataflow.dataset d WHERE d.datasetid = _registered.datasetid;
    FOR reader IN SELECT r.jobid::dataflow.name AS jobid, r.outputs, r.ordering = 'text' AS is_text FROM dataflow._sole_readers(_registered.datasetid) AS r LOOP
        sole_readers := sole_readers || reader.jobid::text;
        -- Most often nothing was ever made between the first and the last of them, and one look tells.
        has_outputs := EXISTS (
            SELECT FROM (SELECT unnest(reader.outputs) AS datasetid) AS o CROSS JOIN LATERAL (
                SELECT FROM dataflow.datastatus s WHERE s.datasetid = o.datasetid AND s.dataid >= first_dataid AND s.dataid <= last_dataid AND s.locktype = 'OUT' LIMIT 1) AS made);
        WITH runs AS MATERIALIZED (
            SELECT c.dataid, c.sortkey, has_outputs AND EXISTS (
                SELECT FROM (SELECT unnest(reader.outputs) AS datasetid) AS o JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = c.dataid AND s.locktype = 'OUT') AS is_taken
            FROM unnest(dataids, sortkeys) AS c (dataid, sortkey)
        ), inserted AS (
            INSERT INTO dataflow.work AS w (jobid, dataid, sortkey)
            SELECT reader.jobid, r.dataid, CASE WHEN reader.is_text = is_text THEN r.sortkey ELSE dataflow._ordered(CASE WHEN reader.is_text THEN 'text' END, r.dataid) END
            FROM runs r WHERE NOT r.is_taken
            ON CONFLICT (jobid, dataid) DO UPDATE SET not_before = NULL WHERE w.not_before IS NOT NULL
            RETURNING w.dataid
        ), told AS (
            INSERT INTO dataflow.event (kind, jobid, dataid, actor, application)
            SELECT 'queued', reader.jobid, i.dataid, who, program FROM inserted i
        )
        SELECT (SELECT count(*) FROM inserted), (SELECT array_agg(r.dataid) FROM runs r WHERE r.is_taken) INTO written, taken_dataids;
        queued := queued + written;
        IF taken_dataids IS NOT NULL THEN
            PERFORM dataflow._refresh(array_fill(reader.jobid::text, ARRAY[cardinality(taken_dataids)]), taken_dataids, alone);
        END IF;
    END LOOP;
    IF queued > 0 THEN
        PERFORM pg_notify('dataflow', 'work');
    END IF;
    SELECT array_agg(a.jobid), array_agg(a.dataid) INTO other_jobids, other_dataids
    FROM unnest(dataids) AS c (dataid) CROSS JOIN LATERAL dataflow.affected_runs(_registered.datasetid, c.dataid) AS a
    WHERE a.jobid <> ALL (sole_readers) AND EXISTS (SELECT FROM dataflow.job_input i WHERE i.datasetid = _registered.datasetid AND i.jobid <> ALL (sole_readers));
    PERFORM dataflow._refresh(other_jobids, other_dataids, alone);
    RETURN true;
END $$;

CREATE OR REPLACE FUNCTION dataflow._datastatus_inserted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    chunks record;
BEGIN
    SELECT min(n.datasetid) AS datasetid, array_agg(n.dataid::text) AS dataids, array_agg(n.sortkey) AS sortkeys, array_agg(n.reason) AS reasons INTO chunks
    FROM new_rows n HAVING count(*) > 1 AND min(n.datasetid) = max(n.datasetid) AND bool_and(n.locktype = 'OUT' AND n.status = 'READY' AND n.validated AND n.jobid = '' AND n.code IS NULL AND n.attempt IS NULL);
    IF chunks.dataids IS NOT NULL AND dataflow._registered(chunks.datasetid, chunks.dataids, chunks.sortkeys, chunks.reasons) THEN
        RETURN NULL;
    END IF;
    PERFORM dataflow._changed(array_agg(ROW(
        n.datasetid, n.dataid, n.locktype, n.jobid, n.run, NULL, n.status, n.attempt, CASE WHEN n.validated THEN n.code ELSE 'NOT_VALIDATED' END, n.reason)::dataflow.status_change))
    FROM new_rows n WHERE n.locktype = 'OUT' HAVING count(*) > 0;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION dataflow._datastatus_updated() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_nestloop = off
SET enable_hashjoin = on
AS $$
#variable_conflict use_column
BEGIN
    -- These count as changes of a READY chunk although its status stays: validated, no longer validated, registered again.
    PERFORM dataflow._changed(array_agg(ROW(
        n.datasetid, n.dataid, n.locktype, n.jobid, n.run, o.status, n.status, n.attempt,
        CASE WHEN o.status <> n.status THEN n.code WHEN o.validated = n.validated THEN 'NEW_VERSION' WHEN n.validated THEN 'VALIDATED' ELSE 'NOT_VALIDATED' END,
        CASE WHEN o.status <> n.status OR o.version = n.version THEN n.reason ELSE concat_ws(': ', 'version ' || n.version, n.reason) END)::dataflow.status_change))
    FROM new_rows n
    JOIN old_rows o ON o.datasetid = n.datasetid AND o.dataid = n.dataid AND o.locktype = n.locktype AND o.run = n.run AND o.jobid = n.jobid
    WHERE (o.status <> n.status AND (n.locktype = 'OUT' OR o.status = 'RUNNING'))
        OR (o.status = n.status AND n.locktype = 'OUT' AND n.status = 'READY' AND (o.validated <> n.validated OR o.version <> n.version)) HAVING count(*) > 0;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION dataflow._datastatus_deleted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._changed(array_agg(ROW(
        o.datasetid, o.dataid, o.locktype, o.jobid, o.run, o.status, NULL, o.attempt, o.code, o.reason)::dataflow.status_change))
    FROM old_rows o WHERE o.locktype = 'OUT' OR o.status = 'RUNNING' HAVING count(*) > 0;
    -- If the chunk is registered again, its new version must not find old measurements.
    DELETE FROM dataflow.measurement m USING old_rows o
        WHERE o.locktype = 'OUT' AND o.external AND m.datasetid = o.datasetid AND m.dataid = o.dataid;
    DELETE FROM dataflow.judgement j USING old_rows o
        WHERE o.locktype = 'OUT' AND o.external AND j.datasetid = o.datasetid AND j.dataid = o.dataid;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER datastatus_inserted AFTER INSERT ON dataflow.datastatus
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION dataflow._datastatus_inserted();
CREATE OR REPLACE TRIGGER datastatus_updated AFTER UPDATE ON dataflow.datastatus
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION dataflow._datastatus_updated();
CREATE OR REPLACE TRIGGER datastatus_deleted AFTER DELETE ON dataflow.datastatus
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION dataflow._datastatus_deleted();

-- A transaction that registers chunks of a dataset which a job makes holds this lock, shared. A claim takes it for each output of a job; if
-- it cannot, it skips the job.
CREATE OR REPLACE FUNCTION dataflow._registration_lock(datasetid text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT hashtextextended('dataflow.registering/' || datasetid, 0) $$;

-- The same for a single chunk that is put on hold before it exists. A claim takes it for each run; if it cannot, it skips the run.
CREATE OR REPLACE FUNCTION dataflow._hold_lock(jobid text, dataid text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT hashtextextended('dataflow.holding/' || jobid || '/' || dataid, 0) $$;

CREATE OR REPLACE FUNCTION dataflow.ready(datasetid text, dataids text[], validated boolean DEFAULT true, reason text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    slice constant integer := 10000;
    dataset dataflow.name; -- of the column's type, so that the name is not checked again for each row
    bad text;
    producer text;
    dataset_ordering text;
    is_calendar boolean;
    registered bigint := 0;
    written bigint;
BEGIN
    PERFORM dataflow._known_dataset(ready.datasetid);
    dataset := ready.datasetid;
    SELECT d FROM unnest(dataids) AS d WHERE NOT dataflow._is_chunkid(d) LIMIT 1 INTO bad;
    IF FOUND THEN
        PERFORM dataflow._checked_dataid(bad);
    END IF;
    SELECT coalesce(o.jobid, ''), d.ordering, d.calendar IS NOT NULL INTO producer, dataset_ordering, is_calendar
        FROM dataflow.dataset d LEFT JOIN dataflow.job_output o ON o.datasetid = d.datasetid WHERE d.datasetid = ready.datasetid;
    IF dataset_ordering IN ('date', 'number') AND NOT is_calendar THEN
        SELECT d FROM unnest(dataids) AS d WHERE NOT dataflow._fits_ordering(dataset_ordering, d) LIMIT 1 INTO bad;
        IF FOUND THEN
            RAISE EXCEPTION '% is no %, and the ordering of dataset % is %: nothing is registered', bad, dataset_ordering, datasetid, dataset_ordering USING ERRCODE = 'DF400',
                HINT = CASE dataset_ordering WHEN 'date' THEN 'a day is written 2026-01-31, an hour 2026-01-31T05, a week 2026-W05, a month 2026-01, a year 2026'
                    ELSE 'a number is written in digits alone' END;
        END IF;
    END IF;
    -- A claim cannot see a row that is not committed yet, and would wait for it; the lock tells it to pass over the job.
    IF producer <> '' THEN
        PERFORM pg_advisory_xact_lock_shared(dataflow._registration_lock(ready.datasetid));
    END IF;
    -- The first chunk of a job that continues its own output comes from outside; what the job has made is not lost by a slip.
    SELECT s.dataid INTO bad FROM unnest(dataids) AS d JOIN dataflow.datastatus s ON s.datasetid = ready.datasetid AND s.dataid = d AND s.locktype = 'OUT'
        WHERE producer <> '' AND NOT s.external AND s.manifest IS NOT NULL AND s.status IN ('READY', 'FAILED', 'RESUBMIT') LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'chunk %/% is made by job %: it is not registered', datasetid, bad, producer USING ERRCODE = 'DF409',
            HINT = format('dataflowctl resubmit %s --dataid %s --status any makes it again; status READY in dataflow.datastatus points at its last version again', producer, bad);
    END IF;
    -- Slices bound the memory that a trigger needs for a million rows. In their order each index grows at one place.
    FOR low IN 1 .. coalesce(cardinality(dataids), 0) BY slice LOOP
        INSERT INTO dataflow.datastatus AS s (datasetid, dataid, jobid, run, status, version, external, validated, reason, sortkey)
        SELECT dataset, d, producer, d, 'READY', coalesce(gone.version, 0) + 1, true, ready.validated, ready.reason, dataflow._ordered(dataset_ordering, d)
        FROM (SELECT DISTINCT g COLLATE "C" AS d FROM unnest(dataids[low : low + slice - 1]) AS g ORDER BY 1) AS distinct_ids
        LEFT JOIN LATERAL (
            SELECT v.version FROM dataflow.deleted_version v
            WHERE (SELECT EXISTS (SELECT FROM dataflow.deleted_version e WHERE e.datasetid = dataset)) AND v.datasetid = dataset AND v.dataid = d
        ) AS gone ON true
        ON CONFLICT (datasetid, dataid, locktype, jobid, run) DO UPDATE SET
            status = 'READY', modified = now(), version = s.version + 1, manifest = NULL, external = true,
            validated = excluded.validated, code = NULL, reason = excluded.reason, params = NULL
        WHERE s.status IN ('READY', 'FAILED', 'RESUBMIT');
        GET DIAGNOSTICS written = ROW_COUNT;
        registered := registered + written;
    END LOOP;
    IF registered = cardinality(dataids) THEN
        RETURN registered;
    END IF;
    -- Some were named twice, or were not written.
    SELECT s.dataid || ' is ' || s.status INTO bad FROM unnest(dataids) AS d
        JOIN dataflow.datastatus s ON s.datasetid = ready.datasetid AND s.dataid = d AND s.locktype = 'OUT'
        WHERE s.status <> 'READY' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'chunk %/% and cannot be registered', datasetid, bad USING ERRCODE = 'DF409',
            HINT = 'wait for its attempt or cancel it; dataflow.release() a held chunk first';
    END IF;
    RETURN registered;
END $$;
COMMENT ON FUNCTION dataflow.ready(text, text[], boolean, text) IS
    'Registers external chunks as READY, a million at once if need be; a chunk that is READY already gets a new version. validated => false: arrived, but not to be used yet';

CREATE OR REPLACE FUNCTION dataflow.ready(datasetid text, dataid text, validated boolean DEFAULT true, reason text DEFAULT NULL) RETURNS bigint
LANGUAGE sql
AS $$ SELECT dataflow.ready(datasetid, ARRAY[dataid], validated, reason) $$;
COMMENT ON FUNCTION dataflow.ready(text, text, boolean, text) IS
    'Registers one external chunk: SELECT dataflow.ready(''raw_orders'', ''2026-01-01'')';

-- What a person should look at twice before chunks are registered. Mistakes lie at the ends of their order: of very many only these are looked at.
CREATE OR REPLACE FUNCTION dataflow.preview_ready(datasetid text, dataids text[], at_most integer DEFAULT 1000) RETURNS TABLE (
    dataid text, location text, code text, detail text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    far constant interval := '366 days';
    d dataflow.dataset;
BEGIN
    PERFORM dataflow._known_dataset(preview_ready.datasetid);
    SELECT x.* INTO d FROM dataflow.dataset x WHERE x.datasetid = preview_ready.datasetid;
    RETURN QUERY
    WITH given AS MATERIALIZED (
        SELECT i.dataid, i.sortkey, row_number() OVER (ORDER BY i.sortkey) AS place, count(*) OVER () AS number
        FROM (SELECT DISTINCT g AS dataid, dataflow._ordered(d.ordering, g) AS sortkey FROM unnest(dataids) AS g) AS i
    ), chosen AS MATERIALIZED (
        SELECT g.dataid, g.sortkey, dataflow._moment(g.dataid) AS moment, dataflow._number(ltrim(g.dataid, '0')) AS number
        FROM given g WHERE g.number <= at_most OR g.place <= at_most / 2 OR g.place > g.number - at_most / 2
    ), greatest_known AS MATERIALIZED (
        SELECT dataflow._number(ltrim(k.dataid, '0')) AS number, k.dataid FROM (
            SELECT s.dataid::text FROM dataflow.datastatus s WHERE s.datasetid || '' = preview_ready.datasetid AND s.locktype = 'OUT' ORDER BY s.sortkey DESC LIMIT 1
        ) AS k
    )
    SELECT c.dataid, CASE WHEN d.format <> 'none' AND d.tablename IS NULL THEN dataflow._chunk_location(d, c.dataid) END,
        odd.code, odd.detail
    FROM chosen c
    LEFT JOIN LATERAL (
        SELECT k.dataid, k.distance FROM (
            SELECT n.dataid, abs(extract(epoch FROM dataflow._moment(n.dataid) - c.moment)) AS distance FROM (
                (SELECT s.dataid::text FROM dataflow.datastatus s WHERE s.datasetid || '' = preview_ready.datasetid AND s.locktype = 'OUT'
                    AND s.sortkey <= c.sortkey ORDER BY s.sortkey DESC LIMIT 1)
                UNION ALL
                (SELECT s.dataid::text FROM dataflow.datastatus s WHERE s.datasetid || '' = preview_ready.datasetid AND s.locktype = 'OUT'
                    AND s.sortkey >= c.sortkey ORDER BY s.sortkey LIMIT 1)
            ) AS n
        ) AS k WHERE k.distance IS NOT NULL ORDER BY k.distance LIMIT 1
    ) AS nearest ON true
    LEFT JOIN greatest_known g ON true
    LEFT JOIN LATERAL (
        SELECT o.code, o.detail FROM (VALUES
            (c.moment IS NULL AND d.ordering = 'natural' AND c.dataid ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2})?$',
                'NO_DATE', 'it looks like a date, and there is no such date; ordering = "date" in the flow refuses these'),
            (c.moment > now() + far, 'FAR_AWAY', 'it lies more than a year in the future'),
            (nearest.distance > extract(epoch FROM far), 'FAR_AWAY', format('every known chunk is more than a year away; the nearest is %s', nearest.dataid)),
            (c.number > 10 * g.number::numeric + 1000, 'FAR_AWAY', format('it is more than ten times the greatest that is known, %s', g.dataid))
        ) AS o (applies, code, detail) WHERE o.applies LIMIT 1
    ) AS odd ON true
    ORDER BY c.sortkey;
END $$;
COMMENT ON FUNCTION dataflow.preview_ready(text, text[], integer) IS
    'Where chunks that are to be registered would lie, and what is odd about their dataids: NO_DATE, FAR_AWAY. Of more than at_most only both ends of their order. Changes nothing';

CREATE OR REPLACE FUNCTION dataflow.validated(datasetid text, dataid text, is_valid boolean DEFAULT true, reason text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_dataset(validated.datasetid);
    UPDATE dataflow.datastatus s SET validated = is_valid, reason = validated.reason, modified = now()
        WHERE s.datasetid = validated.datasetid AND s.dataid = validated.dataid AND s.locktype = 'OUT' AND s.status = 'READY';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'chunk %/% is not READY', datasetid, dataid USING ERRCODE = 'DF404',
            HINT = 'only a chunk that has arrived can be validated; dataflow.ready() registers it';
    END IF;
    IF is_valid THEN
        PERFORM dataflow._note_vouched(validated.datasetid, validated.dataid);
    END IF;
END $$;
COMMENT ON FUNCTION dataflow.validated(text, text, boolean, text) IS
    'Vouches for an external chunk that was registered with validated => false; is_valid => false takes that back';

CREATE OR REPLACE FUNCTION dataflow.hold(datasetid text, dataid text, reason text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    was text;
BEGIN
    PERFORM dataflow._known_dataset(hold.datasetid);
    PERFORM dataflow._checked_dataid(hold.dataid);
    SELECT s.status INTO was FROM dataflow.datastatus s
        WHERE s.datasetid = hold.datasetid AND s.dataid = hold.dataid AND s.locktype = 'OUT' FOR UPDATE;
    -- A claim cannot see a row that is not committed yet, and would wait for it. This lock makes it skip the run instead. If a claim of the
    -- run is under way, hold() waits for it here; then the row exists, and the attempt is cancelled.
    IF was IS NULL THEN
        PERFORM pg_advisory_xact_lock_shared(dataflow._hold_lock(o.jobid, hold.dataid)) FROM dataflow.job_output o WHERE o.datasetid = hold.datasetid;
    END IF;
    INSERT INTO dataflow.datastatus AS s (datasetid, dataid, jobid, run, status, held_from, reason, version, sortkey)
    SELECT d.datasetid, hold.dataid, coalesce(o.jobid, ''), hold.dataid, 'HOLD', 'NONE', hold.reason, coalesce(gone.version, 0), dataflow._ordered(d.ordering, hold.dataid)
        FROM dataflow.dataset d LEFT JOIN dataflow.job_output o ON o.datasetid = d.datasetid
        LEFT JOIN dataflow.deleted_version gone ON gone.datasetid = d.datasetid AND gone.dataid = hold.dataid WHERE d.datasetid = hold.datasetid
    ON CONFLICT (datasetid, dataid, locktype, jobid, run) DO UPDATE SET
        status = 'HOLD', modified = now(), reason = excluded.reason,
        held_from = coalesce(s.held_from, CASE s.status WHEN 'RUNNING' THEN 'RESUBMIT' ELSE s.status END);
    RETURN coalesce(was, 'NONE');
END $$;
COMMENT ON FUNCTION dataflow.hold(text, text, text) IS
    'Holds a chunk: nobody reads or writes it until release(). An attempt that writes or reads it is cancelled, and its run waits for the release without spending a try. Returns the status that the chunk had';

CREATE OR REPLACE FUNCTION dataflow.release(datasetid text, dataid text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    back_to text;
BEGIN
    PERFORM dataflow._known_dataset(release.datasetid);
    SELECT s.held_from INTO back_to FROM dataflow.datastatus s
        WHERE s.datasetid = release.datasetid AND s.dataid = release.dataid AND s.locktype = 'OUT' FOR UPDATE;
    IF back_to IS NULL THEN
        RAISE EXCEPTION 'chunk %/% is not held', datasetid, dataid USING ERRCODE = 'DF404',
            HINT = 'SELECT * FROM dataflow.datastatus WHERE status IN (''HOLD'', ''PENDING'') lists those that are';
    END IF;
    IF back_to = 'NONE' THEN
        DELETE FROM dataflow.datastatus s WHERE s.datasetid = release.datasetid AND s.dataid = release.dataid AND s.locktype = 'OUT';
    ELSE
        UPDATE dataflow.datastatus s SET status = back_to, held_from = NULL, reason = NULL, modified = now()
            WHERE s.datasetid = release.datasetid AND s.dataid = release.dataid AND s.locktype = 'OUT';
    END IF;
    RETURN back_to;
END $$;
COMMENT ON FUNCTION dataflow.release(text, text) IS
    'Ends the hold of a chunk; returns the status that it has again';
