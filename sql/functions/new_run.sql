-- Runs of jobs without inputs. No arriving chunk asks for them, so a person, a program or cron does, and names the dataid or gets one.

-- A dataid made of the current time in UTC; of the day, if the ordering is `date`. It has no colons, because it becomes part of a path.
CREATE OR REPLACE FUNCTION dataflow._new_dataid(ordering text) RETURNS text
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', CASE ordering
        WHEN 'date' THEN 'YYYY-MM-DD' WHEN 'number' THEN 'YYYYMMDDHH24MISSMS' ELSE 'YYYY-MM-DD"T"HH24-MI-SS.MS' END)
$$;

CREATE OR REPLACE FUNCTION dataflow.new_run(of_job text, of_dataid text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    facts record;
    named text;
    there text;
    made bigint;
BEGIN
    PERFORM dataflow._known_job(new_run.of_job);
    SELECT min(d.ordering) AS ordering, count(*) AS outputs, j.retired IS NOT NULL AS is_retired,
        EXISTS (SELECT FROM dataflow.job_input i WHERE i.jobid = j.jobid) AS has_inputs INTO facts
        FROM dataflow.job j LEFT JOIN dataflow.job_output o ON o.jobid = j.jobid LEFT JOIN dataflow.dataset d ON d.datasetid = o.datasetid
        WHERE j.jobid = new_run.of_job GROUP BY j.jobid;
    IF facts.is_retired THEN
        RAISE EXCEPTION 'job % is retired: its flow no longer declares it', of_job USING ERRCODE = 'DF409', HINT = 'dataflowctl apply a flow that declares it';
    END IF;
    IF facts.has_inputs THEN
        RAISE EXCEPTION 'job % has inputs, and they say which runs it has', of_job USING ERRCODE = 'DF409',
            HINT = format('register what has arrived with `dataflowctl ready`, or see `dataflowctl why %s`', of_job);
    END IF;
    named := coalesce(new_run.of_dataid, dataflow._new_dataid(facts.ordering));
    PERFORM dataflow._checked_dataid(named);
    IF NOT dataflow._fits_ordering(facts.ordering, named) THEN
        RAISE EXCEPTION '% is no %, and the outputs of job % are ordered so', named, facts.ordering, of_job USING ERRCODE = 'DF400',
            HINT = format('leave it out, or write it as %s', dataflow._new_dataid(facts.ordering));
    END IF;
    -- As in hold(): waits for a claim of this run that is under way.
    PERFORM pg_advisory_xact_lock_shared(dataflow._hold_lock(new_run.of_job, named));
    SELECT format('%s/%s is %s already', s.datasetid, s.dataid, s.status) INTO there FROM dataflow.job_output o
        JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = named AND s.locktype = 'OUT' WHERE o.jobid = new_run.of_job ORDER BY 1 LIMIT 1;
    IF there IS NULL THEN
        INSERT INTO dataflow.datastatus (datasetid, dataid, jobid, run, status, reason, version, sortkey)
        SELECT d.datasetid, named, new_run.of_job, named, 'RESUBMIT', 'asked for by ' || session_user, coalesce(gone.version, 0), dataflow._ordered(d.ordering, named)
            FROM dataflow.job_output o JOIN dataflow.dataset d ON d.datasetid = o.datasetid
            LEFT JOIN dataflow.deleted_version gone ON gone.datasetid = d.datasetid AND gone.dataid = named WHERE o.jobid = new_run.of_job
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS made = ROW_COUNT;
    END IF;
    IF there IS NOT NULL OR made < facts.outputs THEN
        RAISE EXCEPTION '%', coalesce(there, format('somebody else has just asked for %s of job %s', named, of_job)) USING ERRCODE = 'DF409',
            HINT = format('dataflowctl resubmit %s --dataid %s --status READY makes it again', of_job, named);
    END IF;
    RETURN named;
END $$;
COMMENT ON FUNCTION dataflow.new_run(text, text) IS
    'Asks for a run of a job without inputs, and returns its dataid, by default one made of the current time (UTC); the next free daemon claims it. SELECT dataflow.new_run(''fetch_rates'')';

CREATE OR REPLACE FUNCTION dataflow.claim_new(daemon text, incarnation uuid, of_job text) RETURNS TABLE (
    attempt bigint, token uuid, jobid text, dataid text, number integer, tag text, inputs jsonb, params jsonb, timeout_seconds double precision
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    -- In one transaction, so that nobody else can claim the run.
    RETURN QUERY SELECT c.* FROM dataflow.claim_run(claim_new.daemon, claim_new.incarnation, claim_new.of_job, dataflow.new_run(claim_new.of_job)) AS c;
END $$;
COMMENT ON FUNCTION dataflow.claim_new(text, uuid, text) IS 'new_run() and claim_run() in one: asks for a run of a job without inputs, and takes it';
