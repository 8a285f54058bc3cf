-- The sessions of daemons in the server: whether a daemon has one, and whether a frozen daemon keeps the locks of its runs.
--
-- A daemon that is killed loses its session at once, long before its lease ends. One that is frozen (stopped by a signal, a paused
-- machine, a hanging disk) keeps it: its kernel goes on answering the server, and rescue() never finds the locks of its runs
-- free. When the lease has been over for as long as it lasted, another daemon ends the session. If the frozen daemon wakes up later, it
-- finds its runs gone and stops their runners.

CREATE OR REPLACE FUNCTION dataflow._has_session(session_pid integer) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (
        SELECT FROM pg_catalog.pg_stat_get_activity(session_pid) AS a
        WHERE session_pid IS NOT NULL AND a.datid = (SELECT b.oid FROM pg_catalog.pg_database b WHERE b.datname = current_database()))
$$;

-- The application_name of a daemon's claiming session. The server cuts longer names off.
CREATE OR REPLACE FUNCTION dataflow._session_name(daemon text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT left('dataflowd ' || daemon, 63) $$;

CREATE OR REPLACE VIEW dataflow.daemon_session AS
SELECT d.daemon::text, d.hostname, d.pid, a.pid AS session_pid, u.rolname::text AS username,
    -- The rule of pg_terminate_backend().
    (me.rolsuper OR NOT u.rolsuper) AND (pg_has_role(me.oid, u.oid, 'USAGE') OR pg_has_role(me.oid, 'pg_signal_backend', 'USAGE')) AS may_end
FROM dataflow.daemon d
JOIN pg_stat_activity a ON a.datname = current_database() AND a.application_name = dataflow._session_name(d.daemon)
JOIN pg_roles u ON u.oid = a.usesysid
JOIN pg_roles me ON me.rolname = current_user;
COMMENT ON VIEW dataflow.daemon_session IS 'The claiming sessions of daemons, and whether the current user may end them (may_end). A frozen daemon''s session has to be ended';

CREATE OR REPLACE FUNCTION dataflow.frozen_sessions() RETURNS TABLE (
    daemon text, hostname text, pid integer, session_pid integer, lease_ended timestamptz, attempts bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    -- As in rescue(): attempts that have ended for good are not read.
    oldest constant bigint := coalesce(nullif(current_setting('dataflow.oldest_running', true), ''), '0')::bigint;
BEGIN
    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT a.daemon, a.incarnation, a.jobid, a.dataid FROM dataflow.attempt a WHERE a.ended IS NULL AND a.attempt >= oldest
        UNION ALL
        -- A cancelled run starts again only when its lock is free.
        SELECT a.daemon, a.incarnation, a.jobid, a.dataid FROM dataflow.attempt a WHERE a.outcome = 'CANCELLED' AND NOT a.let_go
    ), overdue AS MATERIALIZED (
        -- If another incarnation has registered under the name, the lease of the earlier one was over at that moment.
        SELECT d.daemon, d.hostname, d.pid, CASE WHEN d.incarnation = h.incarnation THEN d.lease_until ELSE d.started END AS lease_ended,
            dataflow._run_lock(h.jobid, h.dataid) AS lock
        FROM held h JOIN dataflow.daemon d ON d.daemon = h.daemon
        WHERE d.lease + CASE WHEN d.incarnation = h.incarnation THEN d.lease_until ELSE d.started END < clock_timestamp()
    )
    SELECT o.daemon::text, o.hostname, o.pid, l.pid, min(o.lease_ended), count(*)
    FROM overdue o
    JOIN pg_locks l ON l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND (l.classid::bigint << 32) | l.objid::bigint = o.lock
        AND l.database = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())
    JOIN pg_stat_activity s ON s.pid = l.pid AND s.application_name = dataflow._session_name(o.daemon)
    GROUP BY o.daemon, o.hostname, o.pid, l.pid;
END $$;
COMMENT ON FUNCTION dataflow.frozen_sessions() IS
    'Sessions of frozen daemons: they keep the locks of runs although their lease has been over for as long as it lasted. hostname and pid are those of the daemon that has the name now';

CREATE OR REPLACE FUNCTION dataflow._session_ended(daemon text, session_pid integer, lease_ended timestamptz) RETURNS void
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO dataflow.event (kind, scope, to_status, reason) VALUES ('daemon', 'daemon:' || daemon, 'ENDED', format(
        'session %s of %s, whose lease ended %s: its process hangs', session_pid, daemon, dataflow._stamp(lease_ended)))
$$;

-- With the caller's rights: Postgres decides by them whose session may be ended.
CREATE OR REPLACE FUNCTION dataflow.end_frozen_sessions() RETURNS TABLE (daemon text, hostname text, pid integer, session_pid integer, is_ended boolean)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    patience constant bigint := 1000; -- milliseconds
    frozen record;
BEGIN
    FOR frozen IN SELECT f.* FROM dataflow.frozen_sessions() AS f LOOP
        BEGIN
            is_ended := pg_terminate_backend(frozen.session_pid, patience);
        EXCEPTION WHEN insufficient_privilege THEN
            is_ended := false;
        END;
        IF is_ended THEN
            PERFORM dataflow._session_ended(frozen.daemon, frozen.session_pid, frozen.lease_ended);
        END IF;
        daemon := frozen.daemon;
        hostname := frozen.hostname;
        pid := frozen.pid;
        session_pid := frozen.session_pid;
        RETURN NEXT;
    END LOOP;
END $$;
COMMENT ON FUNCTION dataflow.end_frozen_sessions() IS
    'Ends the sessions that frozen_sessions() lists, so that rescue() can take their runs back. is_ended false: the caller may not end the session; that needs the role of the session, or pg_signal_backend';

-- What a person can do about a frozen session. ends: when another daemon tries to end it; NULL: there is no other daemon.
CREATE OR REPLACE FUNCTION dataflow._hanging(pid integer, hostname text, session_pid integer, ends timestamptz) RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT 'its process hangs, and its session keeps others out: ' || CASE WHEN ends > clock_timestamp()
            THEN format('another daemon ends the session %s and takes them over, if its role may; or ', to_char(ends, 'HH24:MI:SS')) ELSE '' END
        || format('kill -KILL %s on %s, or as a superuser SELECT pg_terminate_backend(%s)', coalesce(pid::text, 'the old process'), hostname, session_pid)
        || CASE WHEN ends < clock_timestamp() THEN '; GRANT pg_signal_backend to the role of the daemons lets them do so' ELSE '' END
$$;
