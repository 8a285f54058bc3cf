-- The queries that Python sends, each under its name and purpose. Rules live in functions/, not here.

-- migration_lock: wait for whoever else is upgrading this database
SELECT pg_advisory_lock(hashtextextended('dataflow.migrate', 0));

-- migration_unlock: let the next one in
SELECT pg_advisory_unlock(hashtextextended('dataflow.migrate', 0));

-- migration_timeout: a migration may take long, but never wait for ever
SET LOCAL statement_timeout = '1h';
SET LOCAL check_function_bodies = off;

-- migration_owner: what follows belongs to dataflow_admin; before the first migration there is no such role
SELECT set_config('role', 'dataflow_admin', true) WHERE to_regrole('dataflow_admin') IS NOT NULL;

-- migration_bookkeeping: what was applied, with its checksum
CREATE SCHEMA IF NOT EXISTS dataflow;
CREATE TABLE IF NOT EXISTS dataflow.migration (
    name text PRIMARY KEY,
    checksum text NOT NULL,
    applied timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE dataflow.migration IS 'Files of sql/ that were applied to this database';
COMMENT ON COLUMN dataflow.migration.name IS 'File name; functions/<name> for those that are applied again when they change';
COMMENT ON COLUMN dataflow.migration.checksum IS 'SHA-256 of the file as it was applied';
COMMENT ON COLUMN dataflow.migration.applied IS 'When it was applied last';

-- migration_exists: NULL when this database was never initialised
SELECT to_regclass('dataflow.migration')::text;

-- migration_applied: names and checksums of all that was applied
SELECT name, checksum FROM dataflow.migration;

-- migration_record: remember that a file was applied
INSERT INTO dataflow.migration (name, checksum) VALUES (%(name)s, %(checksum)s)
ON CONFLICT (name) DO UPDATE SET checksum = excluded.checksum, applied = now();

-- doctor_roles: which of the four roles this user has
SELECT rolname::text FROM pg_roles
WHERE rolname IN ('dataflow_admin', 'dataflow_operator', 'dataflow_reader', 'dataflow_daemon')
    AND pg_has_role(current_user, oid, 'MEMBER')
ORDER BY rolname;

-- doctor_session: the server process that answers, and its clock
SELECT pg_backend_pid(), clock_timestamp();

-- doctor_listen: the first half of a test of NOTIFY
LISTEN dataflow_doctor;

-- doctor_notify: the second half, from another connection
SELECT pg_notify('dataflow_doctor', %(payload)s);

-- flow_apply: compare a flow with the database and, unless it is a dry run, write the difference
SELECT kind, name, action, changed FROM dataflow.apply_flow(%(flow)s, %(prune)s, %(dry_run)s);

-- flow_conflicts: what belongs to another flow, so that this one cannot be applied
SELECT kind, name, datasetid, what, remedy FROM dataflow.flow_conflicts(%(flow)s, %(prune)s);
