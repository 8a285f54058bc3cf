-- The queue of runs that are ready, kept by the triggers of datastatus.
--
-- A run is judged inside the transaction that changed one of its chunks. Two transactions that each bring one of its two inputs would both
-- judge it not ready, and nobody would judge it again. Therefore every transaction that changes status holds an advisory lock (the gate,
-- shared) until it ends, and checks whether it is the only holder. If it is not, it leaves a recheck row for each run that it judged not
-- ready. settle(), which each claim calls, judges these runs again, for the last time when every transaction that was open then has ended.
-- Of two concurrent transactions at least one sees the other or its result. None waits for another. settle() itself takes the gate if there
-- are jobs in strict order, because it changes which runs are open.
--
-- Three kinds of transactions cannot name the runs that they affect. They leave the chunk (or dataset) instead, and settle()
-- finds the runs. (1) One that runs while a flow is being applied does not see the new jobs. apply_flow() takes its lock, then
-- looks at the gate; a change of status takes the gate, then looks at that lock: at least one of the two sees the other. (2) A
-- reference chunk (mapping `fixed`) affects the runs of partners that are not committed yet. (3) With another isolation level
-- than READ COMMITTED a transaction sees only what there was when it began.
--
-- While a session holds the claim lock it waits for nothing, so it inserts no row of `work` or `open_run`, which might wait
-- for another's uncommitted row: claim(), rescue() and the like set dataflow.defer until their transaction ends, and leave all
-- to settle().
--
-- A run that is queued but not ready does no harm: the claim judges it again and removes it. A run that is ready but not queued would
-- never start.

CREATE OR REPLACE FUNCTION dataflow._require_read_committed() RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'this cannot be done in a transaction of isolation level %', current_setting('transaction_isolation') USING ERRCODE = 'DF409',
            HINT = 'it has to see what others have committed: BEGIN ISOLATION LEVEL READ COMMITTED';
    END IF;
END $$;

-- Serialises claims until the transaction ends. From here on nothing may wait: rows are locked with SKIP LOCKED, no run is judged
-- (dataflow.defer), and a statement that would wait all the same fails soon, instead of stopping every daemon. The calling function has a
-- SET lock_timeout of its own, so that the session's value is restored at its end.
CREATE OR REPLACE FUNCTION dataflow._claim_lock() RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM dataflow._require_read_committed();
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('dataflow.claim', 0));
    PERFORM set_config('lock_timeout', '100ms', true), set_config('dataflow.defer', 'on', true);
END $$;

-- Whether no other transaction is changing status now.
CREATE OR REPLACE FUNCTION dataflow._is_quiet() RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    gate constant bigint := hashtextextended('dataflow.changing', 0);
BEGIN
    -- Lock and unlock are one expression: if a statement were cancelled between the two, the session would keep the lock.
    RETURN CASE WHEN pg_try_advisory_lock(gate) THEN pg_advisory_unlock(gate) ELSE false END;
END $$;

-- Takes the gate, then reports whether this transaction is its only holder, and whether another one is applying a flow.
CREATE OR REPLACE FUNCTION dataflow._company(OUT is_alone boolean, OUT is_applying boolean)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    gate constant bigint := hashtextextended('dataflow.changing', 0);
    apply_lock constant bigint := hashtextextended('dataflow.apply', 0);
BEGIN
    PERFORM pg_advisory_xact_lock_shared(gate);
    is_alone := dataflow._is_quiet();
    is_applying := NOT CASE WHEN pg_try_advisory_lock_shared(apply_lock) THEN pg_advisory_unlock_shared(apply_lock) ELSE false END;
END $$;

-- A plan that was made while the tables were small may scan them. In a long session only a later ANALYZE makes the server plan again. So
-- the session discards its plans each time that the tables have doubled.
CREATE OR REPLACE FUNCTION dataflow._forget_small_plans() RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    unnoticed constant bigint := 65536;
    planned_for bigint := coalesce(nullif(current_setting('dataflow.planned_for', true), ''), '0')::bigint;
    size bigint := pg_relation_size('dataflow.attempt') + pg_relation_size('dataflow.datastatus') + pg_relation_size('dataflow.work');
BEGIN
    IF size > 2 * planned_for + unnoticed THEN
        DISCARD PLANS;
        PERFORM set_config('dataflow.planned_for', size::text, false);
    END IF;
END $$;

-- Judges runs and brings `work` and `open_run` in line.
CREATE OR REPLACE FUNCTION dataflow._refresh(jobids text[], dataids text[], alone boolean) RETURNS void
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
    strict_jobs text[];
    queued integer;
    doubtful_jobids text[];
    doubtful_dataids text[];
BEGIN
    IF coalesce(cardinality(jobids), 0) = 0 THEN
        RETURN;
    END IF;
    PERFORM dataflow._forget_small_plans();
    SELECT coalesce(array_agg(j.jobid::text), '{}') INTO strict_jobs FROM dataflow.job j
        WHERE j.strict_order AND j.jobid IN (SELECT unnest(jobids));
    IF strict_jobs <> '{}' THEN
        PERFORM dataflow._track_open_runs(strict_jobs, jobids, dataids);
        IF NOT alone THEN
            -- Every run of a strict job is judged again, also one that is ready now: as long as it is open, later runs wait for it.
            INSERT INTO dataflow.recheck (jobid, dataid)
            SELECT DISTINCT r.jobid, r.dataid FROM unnest(jobids, dataids) AS r (jobid, dataid) WHERE r.jobid = ANY (strict_jobs)
            UNION ALL
            SELECT s, NULL FROM unnest(strict_jobs) AS s;
        END IF;
        -- The run that is first now may have become ready. Runs that are queued may no longer be first.
        SELECT jobids || array_agg(x.jobid), dataids || array_agg(x.dataid) INTO jobids, dataids
        FROM unnest(strict_jobs) AS s (jobid),
            LATERAL (
                (SELECT o.jobid, o.dataid FROM dataflow.open_run o WHERE o.jobid = s.jobid ORDER BY o.sortkey, o.dataid LIMIT 1)
                UNION
                SELECT w.jobid, w.dataid FROM dataflow.work w WHERE w.jobid = s.jobid
            ) AS x;
    END IF;

    WITH judged AS MATERIALIZED (
        SELECT DISTINCT ON (e.jobid, e.dataid) e.*,
            CASE
                WHEN e.not_ready IS NOT NULL THEN 'DATA_NOT_READY'
                WHEN e.wrong_data IS NOT NULL THEN 'WRONG_DATA'
                WHEN e.invalid_path IS NOT NULL THEN 'INVALID_PATH'
                WHEN e.not_validated IS NOT NULL THEN 'NOT_VALIDATED'
                WHEN e.locked IS NOT NULL THEN 'LOCKED'
            END AS code,
            coalesce(e.not_ready, e.wrong_data, e.invalid_path, e.not_validated, e.locked) AS reason
        FROM dataflow._evaluate(jobids, dataids) AS e
    ), inserted AS (
        INSERT INTO dataflow.work AS w (jobid, dataid, sortkey, not_before)
        SELECT j.jobid, j.dataid, j.sortkey, CASE WHEN j.not_before > now() THEN j.not_before END
        FROM judged j WHERE j.code IS NULL
        ON CONFLICT (jobid, dataid) DO UPDATE SET not_before = excluded.not_before
            WHERE w.not_before IS DISTINCT FROM excluded.not_before
        RETURNING w.jobid, w.dataid, w.not_before
    ), gone AS (
        -- Rows that another transaction is removing or claiming are skipped. LATERAL forces a look-up of each row: a join that was planned
        -- while the queue was empty would read all of it, and all judged runs for each row.
        SELECT w.jobid, w.dataid FROM judged j CROSS JOIN LATERAL (
            SELECT k.jobid, k.dataid FROM dataflow.work k WHERE k.jobid = j.jobid AND k.dataid = j.dataid FOR UPDATE SKIP LOCKED
        ) AS w
        WHERE j.code IS NOT NULL
    ), again AS (
        INSERT INTO dataflow.recheck (jobid, dataid)
        SELECT j.jobid, j.dataid FROM judged j WHERE j.code IS NOT NULL AND NOT alone
    ), told AS (
        -- Published and running chunks have events of their own. These events say what a run waits for, whenever that changes.
        INSERT INTO dataflow.event (kind, jobid, dataid, code, reason)
        SELECT 'blocked', j.jobid, j.dataid, j.code, j.reason
        FROM judged j
        LEFT JOIN LATERAL (
            SELECT e.kind, e.code, e.reason FROM dataflow.event e
            WHERE e.jobid = j.jobid AND e.dataid = j.dataid ORDER BY e.event DESC LIMIT 1
        ) AS last ON true
        WHERE j.code IS NOT NULL AND j.out_status IS DISTINCT FROM 'READY' AND j.out_status IS DISTINCT FROM 'RUNNING'
            AND (last.kind IS DISTINCT FROM 'blocked' OR last.code <> j.code OR last.reason <> j.reason)
        UNION ALL
        SELECT 'queued', i.jobid, i.dataid, NULL, CASE WHEN i.not_before IS NOT NULL THEN 'retry at ' || i.not_before END FROM inserted i
    )
    SELECT (SELECT count(*) FROM inserted), (SELECT array_agg(g.jobid::text) FROM gone g), (SELECT array_agg(g.dataid::text) FROM gone g)
    INTO queued, doubtful_jobids, doubtful_dataids;
    IF doubtful_jobids IS NOT NULL THEN
        -- Judged again now that their rows are locked: between the judgement and the lock another transaction may have made a run ready and
        -- left its row as it was. A transaction that makes the run ready later waits for this lock before it queues the run.
        DELETE FROM dataflow.work w USING dataflow._evaluate(doubtful_jobids, doubtful_dataids) AS e
        WHERE w.jobid = e.jobid AND w.dataid = e.dataid
            AND coalesce(e.not_ready, e.wrong_data, e.invalid_path, e.not_validated, e.locked) IS NOT NULL;
    END IF;
    IF queued > 0 OR NOT alone THEN
        PERFORM pg_notify('dataflow', 'work');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION dataflow._track_open_runs(strict_jobs text[], jobids text[], dataids text[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    WITH known AS MATERIALIZED (
        -- A run exists when its output or an input that leads to it has a row, whatever its status.
        SELECT e.jobid, e.dataid, e.sortkey, e.out_status IS DISTINCT FROM 'READY' AND (e.out_status IS NOT NULL OR EXISTS (
            SELECT FROM dataflow._inputs(e.jobid, e.dataid) AS q
            JOIN dataflow.job_input i ON i.jobid = e.jobid AND i.datasetid = q.datasetid AND i.kind <> 'fixed'
            JOIN dataflow.datastatus s ON s.datasetid = q.datasetid AND s.dataid = q.dataid AND s.locktype = 'OUT')) AS is_open
        FROM dataflow._evaluate(jobids, dataids) AS e WHERE e.jobid = ANY (strict_jobs)
    ), closed AS (
        DELETE FROM dataflow.open_run x USING known k
        WHERE x.jobid = k.jobid AND x.sortkey = k.sortkey AND x.dataid = k.dataid AND NOT k.is_open
    )
    INSERT INTO dataflow.open_run (jobid, sortkey, dataid)
    SELECT DISTINCT k.jobid, k.sortkey, k.dataid FROM known k WHERE k.is_open
    ON CONFLICT DO NOTHING;
END $$;

-- Judges runs without waiting for locks: if a batch fails because of a lock, its two halves are tried. Returns the places of the runs that
-- could not be judged.
CREATE OR REPLACE FUNCTION dataflow._refresh_free(jobids text[], dataids text[]) RETURNS integer[]
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    patience constant text := '5ms';
    deadline constant timestamptz := clock_timestamp() + interval '1 second';
    lows integer[] := ARRAY[1];
    highs integer[] := ARRAY[coalesce(cardinality(jobids), 0)];
    held integer[] := '{}';
    low integer;
    high integer;
BEGIN
    WHILE cardinality(lows) > 0 LOOP
        low := lows[cardinality(lows)];
        high := highs[cardinality(highs)];
        lows := trim_array(lows, 1);
        highs := trim_array(highs, 1);
        IF clock_timestamp() > deadline THEN
            held := held || ARRAY(SELECT generate_series(low, high));
            CONTINUE;
        END IF;
        BEGIN
            PERFORM dataflow._refresh(jobids[low : high], dataids[low : high], true);
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            PERFORM set_config('lock_timeout', patience, true);
            IF low = high THEN
                held := held || low;
            ELSE
                lows := lows || low || ((low + high) / 2 + 1);
                highs := highs || ((low + high) / 2) || high;
            END IF;
        END;
    END LOOP;
    RETURN held;
END $$;

-- A claim must not take long: if the changes affect more than at_most runs, these are stored as recheck rows for later calls.
CREATE OR REPLACE FUNCTION dataflow.settle(at_most integer DEFAULT 100000) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- A person's open transaction may hold a row of the queue. settle() gives up such a row soon.
SET lock_timeout = '100ms'
AS $$
#variable_conflict use_column
DECLARE
    again constant interval := '1 second';
    chunk_again constant interval := '15 seconds'; -- between looks whether other transactions have ended
    oldest_open constant xid8 := pg_snapshot_xmin(pg_current_snapshot());
    -- A transaction id that is assigned now is greater than that of every transaction for which an entry was made. A snapshot gives no such
    -- bound: transactions that began after the last one ended lie beyond its xmax.
    is_new constant boolean := pg_current_xact_id_if_assigned() IS NULL;
    is_last boolean;
    entries bigint[];
    chunk_datasets text[];
    chunk_dataids text[];
    strangers text[];
    jobids text[];
    dataids text[];
    later_jobids text[];
    later_dataids text[];
    held integer[];
    taken integer;
BEGIN
    PERFORM dataflow._require_read_committed();
    -- Under the claim lock no run is judged.
    IF current_setting('dataflow.defer', true) = 'on' THEN
        RETURN 0;
    END IF;
    SELECT array_agg(m.recheck) INTO entries FROM (
        SELECT r.recheck FROM dataflow.recheck r
        WHERE r.looked IS NULL OR r.looked < now() - CASE WHEN r.datasetid IS NULL THEN again ELSE chunk_again END OR r.horizon <= oldest_open
        ORDER BY r.recheck LIMIT at_most FOR UPDATE SKIP LOCKED
    ) AS m;
    IF entries IS NULL THEN
        RETURN 0;
    END IF;
    IF EXISTS (SELECT FROM dataflow.job j WHERE j.strict_order AND j.retired IS NULL) THEN
        PERFORM pg_advisory_xact_lock_shared(hashtextextended('dataflow.changing', 0));
    END IF;
    is_last := dataflow._is_quiet();
    WITH finished AS (
        DELETE FROM dataflow.recheck r WHERE r.recheck = ANY (entries) AND (is_last OR r.horizon <= oldest_open)
        RETURNING r.jobid, r.dataid, r.datasetid, r.only_producer, r.since
    ), first_looks AS MATERIALIZED (
        SELECT r.recheck FROM dataflow.recheck r WHERE r.recheck = ANY (entries) AND r.looked IS NULL
    ), kept AS (
        UPDATE dataflow.recheck r SET looked = now(), is_judged = true, horizon = coalesce(r.horizon, CASE WHEN is_new THEN pg_current_xact_id() END)
        WHERE r.recheck = ANY (entries) AND NOT is_last AND (r.horizon IS NULL OR r.horizon > oldest_open)
        RETURNING r.recheck, r.jobid, r.dataid, r.datasetid, r.only_producer
    ), looked_at AS MATERIALIZED (
        SELECT f.jobid::text, f.dataid::text, f.datasetid::text, f.only_producer, f.since FROM finished f
        UNION
        -- The runs of a chunk are found at the first look and at the last one.
        SELECT k.jobid, k.dataid, k.datasetid, k.only_producer, NULL FROM kept k
        WHERE k.datasetid IS NULL OR k.recheck IN (SELECT n.recheck FROM first_looks n)
    ), chunks AS MATERIALIZED (
        SELECT l.datasetid, l.dataid, bool_and(l.only_producer) AS only_producer FROM looked_at l
        WHERE l.datasetid IS NOT NULL AND l.dataid IS NOT NULL GROUP BY l.datasetid, l.dataid
        UNION
        SELECT s.datasetid, s.dataid, false FROM looked_at l
        JOIN dataflow.datastatus s ON s.datasetid = l.datasetid AND s.locktype = 'OUT'
            AND age(s.xmin) <= age((l.since::text::numeric % 4294967296)::text::xid)
        WHERE l.since IS NOT NULL
    ), named AS (
        SELECT l.jobid, coalesce(l.dataid, head.dataid) AS dataid FROM looked_at l
        LEFT JOIN LATERAL (
            SELECT o.dataid FROM dataflow.open_run o WHERE l.dataid IS NULL AND o.jobid = l.jobid ORDER BY o.sortkey, o.dataid LIMIT 1
        ) AS head ON true
        WHERE l.jobid IS NOT NULL
    ), affected AS MATERIALIZED (
        SELECT a.jobid, a.dataid FROM chunks c, LATERAL dataflow.affected_runs(c.datasetid, c.dataid) AS a WHERE NOT c.only_producer
        UNION
        SELECT o.jobid, c.dataid FROM chunks c JOIN dataflow.job_output o ON o.datasetid = c.datasetid
        UNION
        -- The job that was the producer of the chunk until now.
        SELECT s.jobid, s.dataid FROM chunks c JOIN dataflow.datastatus s ON s.datasetid = c.datasetid AND s.dataid = c.dataid AND s.locktype = 'OUT'
        WHERE s.jobid <> ''
        UNION
        -- Runs that were queued while their job was being retired. No claim would look at them.
        SELECT w.jobid, w.dataid FROM dataflow.job j JOIN dataflow.work w ON w.jobid = j.jobid
        WHERE j.retired IS NOT NULL AND EXISTS (SELECT FROM chunks)
    ), counted AS MATERIALIZED (
        SELECT count(*) > at_most AS are_many FROM affected
    ), runs AS (
        SELECT n.jobid, n.dataid FROM named n
        UNION
        SELECT a.jobid, a.dataid FROM affected a, counted c WHERE NOT c.are_many
    )
    SELECT array_agg(r.jobid) FILTER (WHERE r.dataid IS NOT NULL), array_agg(r.dataid) FILTER (WHERE r.dataid IS NOT NULL), count(*),
        (SELECT array_agg(a.jobid) FROM affected a, counted c WHERE c.are_many), (SELECT array_agg(a.dataid) FROM affected a, counted c WHERE c.are_many),
        (SELECT array_agg(c.datasetid) FROM chunks c), (SELECT array_agg(c.dataid) FROM chunks c)
    INTO jobids, dataids, taken, later_jobids, later_dataids, chunk_datasets, chunk_dataids FROM runs r;
    INSERT INTO dataflow.recheck (jobid, dataid) SELECT l.jobid, l.dataid FROM unnest(later_jobids, later_dataids) AS l (jobid, dataid);
    -- A chunk that was registered while its dataset got another producer still names the old one.
    SELECT array_agg(DISTINCT s.datasetid::text) INTO strangers
    FROM unnest(chunk_datasets, chunk_dataids) AS c (datasetid, dataid)
    JOIN dataflow.datastatus s ON s.datasetid = c.datasetid AND s.dataid = c.dataid AND s.locktype = 'OUT'
    LEFT JOIN dataflow.job_output o ON o.datasetid = c.datasetid
    WHERE s.jobid <> coalesce(o.jobid, '');
    IF chunk_datasets IS NOT NULL THEN
        BEGIN
            IF strangers IS NOT NULL THEN
                PERFORM dataflow._own_chunks(strangers);
            END IF;
            -- A transaction with an old snapshot that held a chunk may have missed an attempt that reads it.
            PERFORM dataflow._stop_readers(chunk_datasets, chunk_dataids);
            -- A transaction that saw one of these jobs as strict may have left open runs.
            DELETE FROM dataflow.open_run x WHERE x.jobid = ANY (ARRAY(
                SELECT j.jobid::text FROM dataflow.job j WHERE NOT j.strict_order AND j.jobid IN (SELECT unnest(jobids || later_jobids))));
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            INSERT INTO dataflow.recheck (datasetid, dataid, looked)
            SELECT c.datasetid, c.dataid, now() FROM unnest(chunk_datasets, chunk_dataids) AS c (datasetid, dataid);
        END;
    END IF;
    held := dataflow._refresh_free(jobids, dataids);
    IF held <> '{}' THEN
        UPDATE dataflow.recheck r SET is_judged = false FROM unnest(held) AS h (place)
        WHERE r.recheck = ANY (entries) AND r.jobid = jobids[h.place] AND r.dataid IS NOT DISTINCT FROM dataids[h.place];
        INSERT INTO dataflow.recheck (jobid, dataid, looked)
        SELECT jobids[h.place], dataids[h.place], now() FROM unnest(held) AS h (place)
        WHERE NOT EXISTS (
            SELECT FROM dataflow.recheck r WHERE r.recheck = ANY (entries) AND r.jobid = jobids[h.place] AND r.dataid IS NOT DISTINCT FROM dataids[h.place]);
    END IF;
    RETURN taken;
END $$;
COMMENT ON FUNCTION dataflow.settle(integer) IS
    'Judges again the runs that were judged while another transaction was changing status; returns how many. Every claim calls it';

-- Brings the queue of these jobs in line with datastatus, without reading chunks and runs of other jobs.
CREATE OR REPLACE FUNCTION dataflow._rebuild_queue(of_jobs text[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
-- Jobs are looked up by name, then their chunks by the index for order. Any other plan might read the chunks of all other jobs.
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
    jobids text[];
    dataids text[];
BEGIN
    IF coalesce(cardinality(of_jobs), 0) = 0 THEN
        RETURN;
    END IF;
    DELETE FROM dataflow.open_run x WHERE x.jobid = ANY (of_jobs);
    -- Runs that are queued rightly stay in the queue, and keep the time since when. They are not locked, so that claims go on.
    SELECT array_agg(w.jobid::text), array_agg(w.dataid::text) INTO jobids, dataids
        FROM dataflow.job j JOIN dataflow.work w ON w.jobid = j.jobid WHERE j.jobid = ANY (of_jobs) AND NOT j.strict_order;
    SELECT array_agg(r.jobid), array_agg(r.dataid) INTO jobids, dataids FROM (
        SELECT k.jobid, k.dataid FROM (
            SELECT a.jobid, a.dataid FROM (SELECT DISTINCT i.datasetid FROM dataflow.job_input i WHERE i.jobid = ANY (of_jobs)) AS d
            CROSS JOIN LATERAL (SELECT c.dataid FROM dataflow.datastatus c WHERE c.datasetid || '' = d.datasetid AND c.locktype = 'OUT' OFFSET 0) AS s
            CROSS JOIN LATERAL dataflow.affected_runs(d.datasetid, s.dataid) AS a
            WHERE a.jobid = ANY (of_jobs)
            UNION
            SELECT o.jobid, s.dataid FROM dataflow.job_output o
            CROSS JOIN LATERAL (
                SELECT c.dataid FROM dataflow.datastatus c WHERE c.datasetid || '' = o.datasetid AND c.locktype = 'OUT'
                    AND c.status IN ('RESUBMIT', 'FAILED', 'RUNNING', 'HOLD', 'PENDING') OFFSET 0
            ) AS s
            WHERE o.jobid = ANY (of_jobs)
            UNION
            SELECT w.jobid, w.dataid FROM dataflow.work w WHERE w.jobid = ANY (of_jobs)
        ) AS k
        LEFT JOIN dataflow.work q ON q.jobid = k.jobid AND q.dataid = k.dataid
        WHERE q.jobid IS NULL OR EXISTS (SELECT FROM dataflow.job j WHERE j.jobid = k.jobid AND j.strict_order)
        UNION ALL
        SELECT e.jobid, e.dataid FROM dataflow._evaluate(coalesce(jobids, '{}'), coalesce(dataids, '{}')) AS e
        WHERE coalesce(e.not_ready, e.wrong_data, e.invalid_path, e.not_validated, e.locked) IS NOT NULL
    ) AS r;
    UPDATE dataflow.work w SET sortkey = dataflow._ordered(f.ordering, w.dataid)
    FROM (
        SELECT o.jobid, min(d.ordering) AS ordering FROM dataflow.job_output o JOIN dataflow.dataset d ON d.datasetid = o.datasetid
        WHERE o.jobid = ANY (of_jobs) GROUP BY o.jobid
    ) AS f
    WHERE w.jobid = f.jobid AND w.sortkey <> dataflow._ordered(f.ordering, w.dataid);
    PERFORM dataflow._refresh(jobids, dataids, (SELECT c.is_alone FROM dataflow._company() AS c));
    -- Rows of retired jobs that a claim had locked. No claim will look at them again, so settle() has to.
    INSERT INTO dataflow.recheck (jobid, dataid)
    SELECT w.jobid, w.dataid FROM dataflow.job j JOIN dataflow.work w ON w.jobid = j.jobid WHERE j.jobid = ANY (of_jobs) AND j.retired IS NOT NULL;
END $$;

CREATE OR REPLACE FUNCTION dataflow.rebuild_work() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._require_read_committed();
    -- apply_flow() rebuilds the queue of some jobs. Neither would see what the other removes.
    PERFORM pg_advisory_xact_lock(hashtextextended('dataflow.apply', 0));
    PERFORM dataflow._rebuild_queue(ARRAY(SELECT j.jobid::text FROM dataflow.job j));
    RETURN (SELECT count(*) FROM dataflow.work);
END $$;
COMMENT ON FUNCTION dataflow.rebuild_work() IS
    'Makes the queue of ready runs anew from datastatus; returns how many are queued. Never needed in ordinary operation';

-- Keeps the length of the queue, so that nobody has to count its rows.
CREATE OR REPLACE FUNCTION dataflow._work_inserted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO dataflow.counter (datasetid, jobid, locktype, status, chunks)
    SELECT '', n.jobid, 'WORK', 'QUEUED', count(*) FROM new_rows n GROUP BY n.jobid;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION dataflow._work_deleted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO dataflow.counter (datasetid, jobid, locktype, status, chunks)
    SELECT '', o.jobid, 'WORK', 'QUEUED', -count(*) FROM old_rows o GROUP BY o.jobid;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER work_inserted AFTER INSERT ON dataflow.work
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION dataflow._work_inserted();
CREATE OR REPLACE TRIGGER work_deleted AFTER DELETE ON dataflow.work
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION dataflow._work_deleted();
