-- Daemons and their leases.

CREATE OR REPLACE FUNCTION dataflow.register_daemon(
    daemon text, hostname text, pid integer, lease interval DEFAULT '60 seconds', environment text DEFAULT 'dev', version text DEFAULT ''
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    other record;
    born uuid;
BEGIN
    -- A daemon that may still be alive keeps its name. If it is dead, expire_daemon() lets its attempts be rescued.
    SELECT d.* INTO other FROM dataflow.daemon d WHERE d.daemon = register_daemon.daemon FOR UPDATE;
    IF FOUND AND other.stopped IS NULL AND other.lease_until > clock_timestamp() AND dataflow._has_session(other.session_pid) THEN
        RAISE EXCEPTION 'a daemon named % runs already, on % with pid %', daemon, other.hostname, other.pid USING ERRCODE = 'DF409',
            HINT = 'stop it, or give this one another name';
    END IF;
    INSERT INTO dataflow.daemon AS d (daemon, hostname, pid, session_pid, environment, version, lease, lease_until)
    VALUES (register_daemon.daemon, register_daemon.hostname, register_daemon.pid, pg_backend_pid(),
        register_daemon.environment, register_daemon.version, register_daemon.lease, clock_timestamp() + register_daemon.lease)
    ON CONFLICT (daemon) DO UPDATE SET
        incarnation = gen_random_uuid(), hostname = excluded.hostname, pid = excluded.pid, session_pid = excluded.session_pid,
        environment = excluded.environment, version = excluded.version, jobs = NULL, unserved = '{}', started = now(), lease = excluded.lease,
        lease_until = excluded.lease_until, stopped = NULL
    RETURNING d.incarnation INTO born;
    INSERT INTO dataflow.event (kind, scope, to_status, reason) VALUES ('daemon', 'daemon:' || daemon, 'STARTED', format('%s on %s, pid %s', daemon, hostname, pid));
    RETURN born;
END $$;
COMMENT ON FUNCTION dataflow.register_daemon(text, text, integer, interval, text, text) IS
    'Announces a daemon and starts its lease; returns the incarnation that its claims must name';

CREATE OR REPLACE FUNCTION dataflow.serve_jobs(daemon text, incarnation uuid, jobs text[], unserved jsonb) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    UPDATE dataflow.daemon d SET jobs = serve_jobs.jobs, unserved = coalesce(serve_jobs.unserved, '{}')
        WHERE d.daemon = serve_jobs.daemon AND d.incarnation = serve_jobs.incarnation;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION dataflow.serve_jobs(text, uuid, text[], jsonb) IS
    'Records which jobs a daemon can run: those whose flow files its host has. NULL: any. unserved: jobs of these flow files that it cannot run, each with the reason, which why() shows. False: there is no such incarnation';

CREATE OR REPLACE FUNCTION dataflow.serve_jobs(daemon text, incarnation uuid, jobs text[]) RETURNS boolean
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$ SELECT dataflow.serve_jobs(daemon, incarnation, jobs, '{}') $$;
COMMENT ON FUNCTION dataflow.serve_jobs(text, uuid, text[]) IS 'serve_jobs() without reasons';

CREATE OR REPLACE FUNCTION dataflow.renew_lease(daemon text, incarnation uuid) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    until timestamptz;
BEGIN
    UPDATE dataflow.daemon d SET lease_until = clock_timestamp() + d.lease
        WHERE d.daemon = renew_lease.daemon AND d.incarnation = renew_lease.incarnation AND d.stopped IS NULL
        RETURNING d.lease_until INTO until;
    RETURN until;
END $$;
COMMENT ON FUNCTION dataflow.renew_lease(text, uuid) IS
    'Prolongs a daemon''s lease; NULL says that this incarnation is no longer the daemon of that name';

CREATE OR REPLACE FUNCTION dataflow.retake_attempts(daemon text, incarnation uuid) RETURNS TABLE (
    attempt bigint, token uuid, jobid text, dataid text, is_live boolean
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = 0
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM FROM dataflow.daemon d WHERE d.daemon = retake_attempts.daemon FOR UPDATE;
    -- Waits until a claim of the lost session has ended, and keeps later ones out.
    PERFORM dataflow._claim_lock();
    UPDATE dataflow.daemon d SET session_pid = pg_backend_pid(), lease_until = clock_timestamp() + d.lease
        WHERE d.daemon = retake_attempts.daemon AND d.incarnation = retake_attempts.incarnation AND d.stopped IS NULL;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT a.attempt, a.token, a.jobid, a.dataid, true AS is_live FROM dataflow.attempt a
        WHERE a.ended IS NULL AND a.daemon = retake_attempts.daemon AND a.incarnation = retake_attempts.incarnation
        UNION ALL
        SELECT a.attempt, a.token, a.jobid, a.dataid, false FROM dataflow.attempt a
        WHERE a.outcome = 'CANCELLED' AND NOT a.let_go AND a.daemon = retake_attempts.daemon AND a.incarnation = retake_attempts.incarnation
    ), locked AS MATERIALIZED (
        SELECT h.*, pg_try_advisory_lock(dataflow._run_lock(h.jobid, h.dataid)) AS mine FROM held h
    )
    -- Also attempts whose run lock another session has: only this daemon can give them back.
    SELECT l.attempt, l.token, l.jobid::text, l.dataid::text, l.is_live AND l.mine FROM locked l;
END $$;
COMMENT ON FUNCTION dataflow.retake_attempts(text, uuid) IS
    'After a lost connection: takes the run locks of a daemon again in this session, and returns its attempts. is_live true: the attempt is still its own. is_live false: it was cancelled, or another session has its lock; the daemon must stop it and say so with finish(), and its run waits for that. The daemon must stop every attempt that is not returned';

-- For daemons of release 0.1.0, which go on with every attempt that is returned.
CREATE OR REPLACE FUNCTION dataflow.retake(daemon text, incarnation uuid) RETURNS TABLE (attempt bigint, token uuid, jobid text, dataid text)
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT a.attempt, a.token, a.jobid, a.dataid FROM dataflow.retake_attempts(daemon, incarnation) AS a WHERE a.is_live $$;
COMMENT ON FUNCTION dataflow.retake(text, uuid) IS
    'retake_attempts(), only the attempts with is_live; for daemons of release 0.1, and gone after 0.2';

CREATE OR REPLACE FUNCTION dataflow.stop_daemon(daemon text, incarnation uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    UPDATE dataflow.daemon d SET stopped = now(), lease_until = clock_timestamp()
        WHERE d.daemon = stop_daemon.daemon AND d.incarnation = stop_daemon.incarnation AND d.stopped IS NULL;
    IF FOUND THEN
        INSERT INTO dataflow.event (kind, scope, to_status, reason) VALUES ('daemon', 'daemon:' || daemon, 'STOPPED', daemon);
    END IF;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION dataflow.stop_daemon(text, uuid) IS 'Records that a daemon has stopped: attempts that it still has may be rescued at once';

CREATE OR REPLACE FUNCTION dataflow.expire_daemon(daemon text, incarnation uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    UPDATE dataflow.daemon d SET lease_until = clock_timestamp()
        WHERE d.daemon = expire_daemon.daemon AND d.incarnation = expire_daemon.incarnation AND d.lease_until > clock_timestamp();
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION dataflow.expire_daemon(text, uuid) IS
    'Ends the lease of a daemon whose process is known to be dead (its host says so), so that rescue() need not wait for it';

CREATE OR REPLACE FUNCTION dataflow.reloaded(daemon text, incarnation uuid, jobs integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO dataflow.event (kind, scope, to_status, reason)
    SELECT 'daemon', 'daemon:' || d.daemon, 'RELOADED', format('%s on %s read its flow files again%s', d.daemon, d.hostname, ' and has the code of ' || dataflow._counted(reloaded.jobs, 'job'))
    FROM dataflow.daemon d WHERE d.daemon = reloaded.daemon AND d.incarnation = reloaded.incarnation;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION dataflow.reloaded(text, uuid, integer) IS
    'Records that a daemon has read its settings and flow files again, and of how many jobs it has the code; NULL: of any. False: there is no such incarnation';

-- A backup does not know the attempts that were made after it. They have used up numbers, directories with these numbers, and fences of
-- tables, so the numbers are skipped. No daemon that the backup knows is connected to this server.
CREATE OR REPLACE FUNCTION dataflow.restored(passed_over bigint DEFAULT 1000000) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = 0
AS $$
#variable_conflict use_column
DECLARE
    last bigint;
BEGIN
    IF coalesce(passed_over, 0) < 1 THEN
        RAISE EXCEPTION 'so many attempts cannot be skipped: %', coalesce(passed_over::text, 'NULL') USING ERRCODE = 'DF400',
            HINT = 'name more than were made since the backup; a million by default';
    END IF;
    PERFORM FROM dataflow.daemon d WHERE d.stopped IS NULL ORDER BY d.daemon FOR UPDATE;
    PERFORM dataflow._claim_lock();
    IF EXISTS (SELECT FROM dataflow.daemon d JOIN pg_stat_activity a ON a.pid = d.session_pid
        WHERE d.stopped IS NULL AND a.datname = current_database() AND a.application_name = dataflow._session_name(d.daemon)) THEN
        RAISE EXCEPTION 'a daemon works on this database' USING ERRCODE = 'DF409', HINT = 'call it after the restore, before the first daemon starts';
    END IF;
    last := setval(pg_get_serial_sequence('dataflow.attempt', 'attempt'), coalesce((SELECT max(a.attempt) FROM dataflow.attempt a), 0) + passed_over);
    UPDATE dataflow.daemon d SET session_pid = NULL, lease_until = clock_timestamp() WHERE d.stopped IS NULL;
    -- Transaction ids of the other server mean nothing here: all chunks are looked at again.
    UPDATE dataflow.recheck r SET horizon = NULL, looked = NULL, since = CASE WHEN r.since IS NOT NULL THEN '3'::xid8 END;
    INSERT INTO dataflow.event (kind, to_status, reason) VALUES ('daemon', 'RESTORED', format('attempts go on at %s', last + 1));
    RETURN last + 1;
END $$;
COMMENT ON FUNCTION dataflow.restored(bigint) IS
    'After a restore from a backup, before the first daemon starts: skips the numbers of attempts that were made since, and lets attempts that were running be rescued at once; returns the number of the next attempt';
