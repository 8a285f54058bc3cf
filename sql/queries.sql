-- The queries that Python sends, each under its name and purpose. Rules live in functions/, not here. %(name)s is a bound value.
-- Where SQL binds none, {name} stands for a quoted identifier or a list of them, and {text} for a quoted string.

-- migration_lock: wait until nobody else upgrades this database
SELECT pg_advisory_lock(hashtextextended('dataflow.migrate', 0));

-- migration_unlock: let the next upgrade begin
SELECT pg_advisory_unlock(hashtextextended('dataflow.migrate', 0));

-- migration_patience: another upgrade may be running a long migration
SET LOCAL statement_timeout = '1h';

-- migration_timeout: a migration may take long, but gives up a lock soon: while it waits for one, all others wait behind it.
-- The time-out is shorter than deadlock_timeout, so that the server never ends somebody else's statement instead
SET LOCAL statement_timeout = '1h';
SET LOCAL lock_timeout = '500ms';
SET LOCAL check_function_bodies = off;

-- migration_quiet: the tables whose triggers are made anew, in the order in which a claim locks them
LOCK TABLE dataflow.control, dataflow.work, dataflow.datastatus, dataflow.dataset, dataflow.job, dataflow.job_input, dataflow.job_output
IN SHARE ROW EXCLUSIVE MODE;

-- migration_blockers: who holds locks on our tables, and since when
SELECT DISTINCT a.pid, a.usename::text, a.application_name, a.xact_start::text FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND l.granted AND a.pid <> pg_backend_pid()
    AND l.relation IN (SELECT c.oid FROM pg_class c WHERE c.relnamespace = to_regnamespace('dataflow')) AND a.xact_start < now() - interval '1 second'
ORDER BY a.xact_start::text;

-- schema_version_exists: NULL for a schema that is older than the function
SELECT to_regprocedure('dataflow.schema_version()')::text;

-- schema_version: which release made the schema, and from which on it serves programs
SELECT made_by, serves_from FROM dataflow.schema_version();

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

-- copy_snapshot: the transaction reads the state of one moment
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;

-- copy_patience: copying a million rows takes longer than the time-out of a command
SET LOCAL statement_timeout = '6h';

-- copy_tables: the tables of a copy of this database, their columns that can be written, and the tables that have to be copied before
SELECT c.relname::text,
    ARRAY(SELECT a.attname::text FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum),
    ARRAY(SELECT r.relname::text FROM pg_constraint k JOIN pg_class r ON r.oid = k.confrelid
        WHERE k.conrelid = c.oid AND k.contype = 'f' AND k.confrelid <> c.oid ORDER BY r.relname)
FROM pg_class c
WHERE c.relnamespace = to_regnamespace('dataflow') AND c.relkind = 'r' AND c.relname <> 'migration'
ORDER BY c.relname;

-- copy_rest: the triggers of a table do nothing until copy_go_on
ALTER TABLE {table} DISABLE TRIGGER USER;

-- copy_empty: the tables lose what `dataflowctl init` has put there
TRUNCATE {tables};

-- copy_read: the rows of a table, as text
COPY {table} ({columns}) TO STDOUT;

-- copy_write: rows into a table, as text
COPY {table} ({columns}) FROM STDIN;

-- copy_go_on: the triggers of a table work again
ALTER TABLE {table} ENABLE TRIGGER USER;

-- copy_daemons: the daemons that still work on this database
SELECT daemon, lease_until::text FROM dataflow.daemons WHERE state IN ('ALIVE', 'IDLE', 'GONE') ORDER BY daemon;

-- copy_occupied: how much a copy would overwrite; all zero: the database holds only what `dataflowctl init` has made
SELECT (SELECT count(*) FROM dataflow.job), (SELECT count(*) FROM dataflow.dataset WHERE datasetid <> 'today'),
    (SELECT count(*) FROM dataflow.datastatus), (SELECT count(*) FROM dataflow.attempt), (SELECT count(*) FROM dataflow.key);

-- copy_numbers: the last number of every sequence that has been used
SELECT sequencename::text, last_value FROM pg_sequences WHERE schemaname = 'dataflow' AND last_value IS NOT NULL ORDER BY sequencename;

-- copy_number: a sequence goes on after this number
SELECT setval(format('dataflow.%%I', %(name)s::text)::regclass, %(value)s);

-- copy_end: let running attempts be rescued at once, and judge again what names transactions of the other server
SELECT dataflow.restored();

-- doctor_roles: which of the four roles this user has
SELECT rolname::text FROM pg_roles
WHERE rolname IN ('dataflow_admin', 'dataflow_operator', 'dataflow_reader', 'dataflow_daemon')
    AND pg_has_role(current_user, oid, 'MEMBER')
ORDER BY rolname;

-- doctor_daemon_sessions: the sessions of daemons that this user could not end if they were frozen
SELECT daemon, session_pid, username FROM dataflow.daemon_session WHERE NOT may_end ORDER BY daemon;

-- doctor_frozen: the sessions of frozen daemons, which keep the locks of their runs
SELECT daemon, hostname, session_pid, attempts FROM dataflow.frozen_sessions() ORDER BY daemon;

-- doctor_flow: where a flow file and the database differ
SELECT kind, name, action, changed FROM dataflow.plan_flow(%(flow)s, false) WHERE action <> 'unchanged' ORDER BY kind, name;

-- doctor_session: the server process that answers, and its clock
SELECT pg_backend_pid(), clock_timestamp();

-- doctor_login: how the server authenticated this user; NULL: it trusted it. Since Postgres 16
SELECT system_user;

-- doctor_listen: the first half of a test of NOTIFY
LISTEN dataflow_doctor;

-- doctor_notify: the second half, from another connection
SELECT pg_notify('dataflow_doctor', %(payload)s);

-- embedded_password: who connects as this role needs a password from now on; the server keeps {text}, from which nobody learns the password
ALTER ROLE {role} PASSWORD {text};

-- embedded_rules: where the server's rules for who may connect are
SHOW hba_file;

-- embedded_reload: let the server read them again
SELECT pg_reload_conf();

-- flow_apply: compare a flow with the database and, unless it is a dry run, write the difference
SELECT kind, name, action, changed FROM dataflow.apply_flow(%(flow)s, %(prune)s, %(dry_run)s);

-- flow_conflicts: what belongs to another flow, so that this one cannot be applied
SELECT kind, name, datasetid, what, remedy FROM dataflow.flow_conflicts(%(flow)s, %(prune)s);

-- daemon_register: announce a daemon and start its lease
SELECT dataflow.register_daemon(%(daemon)s, %(hostname)s, %(pid)s, make_interval(secs => %(lease)s), %(environment)s, %(version)s);

-- daemon_serve: say which jobs this host can run, and why not others of its flow files
SELECT dataflow.serve_jobs(%(daemon)s, %(incarnation)s, %(jobs)s::text[], %(unserved)s);

-- daemon_reloaded: say that settings and flow files were read again
SELECT dataflow.reloaded(%(daemon)s, %(incarnation)s, %(jobs)s::integer);

-- daemon_claim: take ready runs; of the scarce jobs together at most `room`
SELECT attempt, token::text, jobid, dataid, number, tag, params, timeout_seconds
FROM dataflow.claim_within(%(daemon)s, %(incarnation)s, %(want)s, %(scarce)s::text[], %(room)s);

-- daemon_claim_run: take one run that a person has named
SELECT attempt, token::text, jobid, dataid, number, tag, params, timeout_seconds
FROM dataflow.claim_run(%(daemon)s, %(incarnation)s, %(jobid)s, %(dataid)s, %(forced)s, %(reason)s);

-- daemon_claim_new: ask for a run of a job without inputs, and take it
SELECT attempt, token::text, jobid, dataid, number, tag, params, timeout_seconds
FROM dataflow.claim_new(%(daemon)s, %(incarnation)s, %(jobid)s);

-- daemon_finish: end attempts, a batch at a time
SELECT attempt, verdict FROM dataflow.finish(%(results)s);

-- daemon_renew: prolong the lease; NULL: this incarnation is no longer the daemon of that name
SELECT dataflow.renew_lease(%(daemon)s, %(incarnation)s);

-- daemon_end_session: end this daemon's lost session, which may live on in the server and hold its locks
SELECT pg_terminate_backend(a.pid, 5000) FROM dataflow.daemon d JOIN pg_stat_activity a ON a.pid = d.session_pid
WHERE d.daemon = %(daemon)s AND d.incarnation = %(incarnation)s
    AND a.pid <> pg_backend_pid() AND a.datname = current_database() AND a.usename = current_user
    AND a.application_name = current_setting('application_name');

-- daemon_retake: after a lost connection, the attempts that are still this daemon's, and the cancelled ones that it has not let go
SELECT attempt, token::text, jobid, dataid, is_live FROM dataflow.retake_attempts(%(daemon)s, %(incarnation)s);

-- daemon_stop: say that this daemon has stopped
SELECT dataflow.stop_daemon(%(daemon)s, %(incarnation)s);

-- daemon_neighbours: daemons of this host that have not said that they stopped
SELECT daemon::text, incarnation, pid, extract(epoch FROM started)::double precision FROM dataflow.daemon
WHERE hostname = %(hostname)s AND stopped IS NULL;

-- daemon_expire: end the lease of a daemon whose process is dead
SELECT dataflow.expire_daemon(%(daemon)s, %(incarnation)s);

-- daemon_rescue: take back the attempts of dead daemons
SELECT attempt, jobid, dataid, daemon, tag FROM dataflow.rescue();

-- daemon_end_frozen: end the sessions of frozen daemons, which keep rescue() from their attempts
SELECT daemon, hostname, pid, session_pid, is_ended FROM dataflow.end_frozen_sessions();

-- daemon_cancelled: which of these attempts this daemon has lost
SELECT dataflow.cancelled(%(daemon)s, %(incarnation)s, %(attempts)s);

-- daemon_began: say that the code of these attempts runs, and what the host had found; false: the attempt is fenced, stop
SELECT s.attempt, dataflow.began(s.attempt, s.token::uuid, s.seconds, s.found::jsonb)
FROM unnest(%(attempts)s::bigint[], %(tokens)s::text[], %(seconds)s::double precision[], %(found)s::text[]) AS s (attempt, token, seconds, found);

-- daemon_waits: say that these attempts wait for one of so many Spark applications; NULL: no longer; false: the attempt is fenced, stop
SELECT w.attempt, dataflow.waits(w.attempt, w.token::uuid, w.applications)
FROM unnest(%(attempts)s::bigint[], %(tokens)s::text[], %(applications)s::integer[]) AS w (attempt, token, applications);

-- daemon_look: of the runs that this host can do, how many are queued, how many of these wait for their retry, and seconds until the
-- first of them is due; and whether runs have to be judged again
SELECT queued, later, due_seconds, has_rechecks FROM dataflow.queue_of(%(jobs)s::text[]);

-- daemon_limits: the global limit, this daemon's own, whether either is paused, and its Spark applications and their slots (NULL: as its settings say)
SELECT g.concurrency, d.concurrency, g.paused OR coalesce(d.paused, false), coalesce(d.runners, g.runners), coalesce(d.slots, g.slots)
FROM dataflow.control g LEFT JOIN dataflow.control d ON d.scope = 'daemon:' || %(daemon)s
WHERE g.scope = 'global';

-- daemon_waited: how many seconds these attempts' runs had been ready when they were claimed; a retry is ready when it is due
SELECT a.attempt, extract(epoch FROM a.claimed - greatest(q.at, before.retry_at))::double precision
FROM unnest(%(attempts)s::bigint[]) AS n (attempt)
JOIN dataflow.attempt a ON a.attempt = n.attempt
CROSS JOIN LATERAL (
    SELECT e.at FROM dataflow.event e WHERE e.jobid = a.jobid AND e.dataid = a.dataid AND e.kind = 'queued' AND e.at <= a.claimed
    ORDER BY e.event DESC LIMIT 1
) AS q
LEFT JOIN LATERAL (
    SELECT p.retry_at FROM dataflow.attempt p
    WHERE a.number > 1 AND p.jobid = a.jobid AND p.dataid = a.dataid AND p.number = a.number - 1 AND p.retry_at <= a.claimed LIMIT 1
) AS before ON true;

-- daemon_tick: make the due periods of calendars READY
SELECT dataflow.tick();

-- daemon_next_tick: seconds until the next period is due
SELECT extract(epoch FROM dataflow.next_tick() - clock_timestamp())::double precision;

-- daemon_fold: add up the counters
SELECT dataflow.fold_counters();

-- daemon_queued: how many runs are queued
SELECT coalesce(sum(chunks), 0)::bigint FROM dataflow.counter WHERE locktype = 'WORK';

-- daemon_status: each job's runs by status, what is queued, and for how many seconds the oldest has waited
SELECT jobid, ready, running, failed, resubmit, held, queued, retry_later,
    coalesce(extract(epoch FROM clock_timestamp() - oldest_queued), 0)::double precision
FROM dataflow.status();

-- daemon_listen: get notices of changes
LISTEN dataflow;

-- daemon_echo: a notification to ourselves, to see that notifications arrive
SELECT pg_notify('dataflow', %(payload)s);

-- status: what needs a hand, daemons, limits and jobs, as one JSON object
SELECT dataflow.overview(%(jobid)s, %(ignored)s::text[]) AS overview;

-- status_listen: get notices of changes; a notice is a hint only
LISTEN dataflow;
LISTEN dataflow_status;

-- chunks: a page of a dataset's chunks; for those that other code made, what has changed
SELECT c.*, CASE WHEN 'CODE' = ANY (c.stale) THEN (
    SELECT t.changed FROM dataflow.stale t WHERE t.datasetid = %(datasetid)s AND t.dataid = c.dataid) END AS changed
FROM dataflow.chunks(%(datasetid)s, %(statuses)s::text[], %(first)s, %(last)s, %(pattern)s, %(stale)s, %(sort)s, %(descending)s, %(at_most)s) AS c;

-- chunk_grid: a dataset as lines of one character a chunk, with gaps for what is missing
SELECT * FROM dataflow.chunk_grid(%(datasetid)s, %(width)s, %(first)s, %(last)s);

-- chunk_map: a dataset as lines of one character a chunk
SELECT * FROM dataflow.chunk_map(%(datasetid)s, %(width)s, %(first)s, %(last)s);

-- runs: recent runs by their last attempt
SELECT * FROM dataflow.runs(%(jobid)s, %(failed)s, %(since)s::timestamptz, %(at_most)s);

-- attempts: all attempts of one run
SELECT * FROM dataflow.attempts(%(jobid)s, %(dataid)s);

-- why: the five questions about one run, and what else keeps it
SELECT * FROM dataflow.why(%(jobid)s, %(dataid)s);

-- why_at: the five questions about one run as they were at a moment
SELECT * FROM dataflow.why_at(%(jobid)s, %(dataid)s, %(moment)s::timestamptz);

-- why_attempt: the five questions as they were answered for one attempt of a run
SELECT * FROM dataflow.why_attempt(%(jobid)s, %(dataid)s, %(attempt)s);

-- blockers: what keeps the runs of a job, most frequent first
SELECT * FROM dataflow.blockers(%(jobid)s);

-- history: the story of one run
SELECT * FROM dataflow.history(%(jobid)s, %(dataid)s);

-- resubmit: choose runs and run them again, or only show them
SELECT * FROM dataflow.resubmit_with(%(selector)s, %(params)s::jsonb, %(downstream)s, %(dry_run)s);

-- hold: hold chunks, or only show them
SELECT * FROM dataflow.hold_chunks(%(selector)s, %(reason)s, %(dry_run)s);

-- release: end the hold of chunks, or only show them
SELECT * FROM dataflow.release_chunks(%(selector)s, %(dry_run)s);

-- cancel: stop running attempts, or only show them
SELECT * FROM dataflow.cancel_runs(%(selector)s, %(reason)s, %(dry_run)s);

-- pause: stop or start claiming in scopes
SELECT * FROM dataflow.pause_scopes(%(jobs)s::text[], %(dataset)s, %(daemon)s, %(paused)s);

-- limits: every limit and pause in force
SELECT * FROM dataflow.limits WHERE %(scope)s::text IS NULL OR scope = %(scope)s ORDER BY scope <> 'global', scope;

-- set_runners: Spark applications of each daemon in a scope
SELECT dataflow.set_runners(%(scope)s, %(runners)s::integer)
WHERE CASE WHEN starts_with(%(scope)s, 'daemon:') THEN dataflow._known_daemon(substr(%(scope)s, 8)) IS NOT NULL ELSE true END;

-- set_slots: chunks side by side in one Spark application in a scope
SELECT dataflow.set_slots(%(scope)s, %(slots)s::integer)
WHERE CASE WHEN starts_with(%(scope)s, 'daemon:') THEN dataflow._known_daemon(substr(%(scope)s, 8)) IS NOT NULL ELSE true END;

-- set_concurrency: attempts at a time in a scope
SELECT dataflow.set_concurrency(%(scope)s, %(concurrency)s::integer)
WHERE CASE WHEN starts_with(%(scope)s, 'daemon:') THEN dataflow._known_daemon(substr(%(scope)s, 8)) IS NOT NULL ELSE true END;

-- shed: stop what runs beyond a limit, or only show it
SELECT * FROM dataflow.shed(%(scope)s, %(concurrency)s::integer, %(dry_run)s);

-- dataid_range: all dataids of A..B
SELECT dataflow.dataid_range(%(bounds)s) AS dataid;

-- ready: register external chunks
SELECT dataflow.ready(%(datasetid)s, %(dataids)s::text[], %(validated)s, %(reason)s) AS registered;

-- preview_ready: where chunks that are to be registered would lie, and what is odd about them
SELECT * FROM dataflow.preview_ready(%(datasetid)s, %(dataids)s::text[]);

-- unregister: withdraw external chunks, or only show them and what was made of them
SELECT * FROM dataflow.unregister(%(datasetid)s, %(patterns)s::text[], %(made)s, %(dry_run)s);

-- jobs: what is declared
SELECT * FROM dataflow.jobs WHERE %(retired)s OR retired IS NULL ORDER BY jobid;

-- datasets: what is declared
SELECT * FROM dataflow.datasets WHERE %(retired)s OR retired IS NULL ORDER BY datasetid;

-- lineage: what a dataset or chunk is made of, and what is made of it
SELECT * FROM dataflow.lineage(%(datasetid)s, %(dataid)s);

-- job_stats: all about a job, as one JSON object
SELECT dataflow.job_stats(%(jobid)s) AS stats;

-- quarantine_list: records that were set aside, by job and reason
SELECT * FROM dataflow.quarantine_groups(%(jobid)s, %(pattern)s, %(resolved)s);

-- quarantine_records: single records that were set aside
SELECT * FROM dataflow.quarantined(%(jobid)s, %(pattern)s, %(resolved)s, %(at_most)s);

-- quarantine_show: one record that was set aside
SELECT dataflow.quarantine_record(%(jobid)s, %(dataid)s, %(itemid)s) AS record;

-- quarantine_resolve: mark records as dealt with
SELECT dataflow.resolve(%(jobid)s, %(dataid)s, %(itemids)s::text[], %(resolution)s) AS resolved;

-- quarantine_unresolve: open resolved records again
SELECT dataflow.unresolve(%(jobid)s, %(dataid)s, %(itemids)s::text[]) AS unresolved;

-- quarantine_export: records as they were set aside, for a person to repair
SELECT * FROM dataflow.quarantine_for_repair(%(jobid)s, %(patterns)s::text[], %(resolved)s);

-- quarantine_resolve_records: take edited records back
SELECT dataflow.resolve_records(%(jobid)s, %(records)s::jsonb) AS resolved;

-- quarantine_replay: make the chunks of resolved records again, or only show them
SELECT r.*, 'whole' AS way, NULL AS because FROM dataflow.replay(%(jobid)s, %(patterns)s::text[], %(open)s, %(dry_run)s) AS r;

-- quarantine_replay_rows: run repaired records alone where that is possible, else the whole chunk; shows which
SELECT * FROM dataflow.replay_rows(%(jobid)s, %(patterns)s::text[], %(dry_run)s);

-- delete: forget runs of a job, or only show them
SELECT * FROM dataflow.delete_runs(%(jobid)s, %(patterns)s::text[], %(dry_run)s, %(at_most)s);

-- delete_patience: how long this transaction may be idle while rows are removed from other databases
SELECT set_config(name, %(milliseconds)s::text, true) FROM pg_settings WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout');

-- prunable: how many events prune would delete
SELECT dataflow.prunable(%(older_than)s::interval) AS events;

-- prune: delete old events
SELECT dataflow.prune(%(older_than)s::interval) AS events;

-- rebuild: make the queue anew
SELECT dataflow.rebuild_work() AS queued, dataflow.fold_counters() AS folded;

-- long_timeout: the next statement may take long
SELECT set_config('statement_timeout', '1h', true);

-- work_orders: of attempts that were claimed together the order, stored as evidence (NULL: the attempt is fenced), the job whose code it runs,
-- and which configuration of that job was applied last
SELECT a.attempt, dataflow.take_order(a.attempt, a.token), b.base, (SELECT j.config_hash FROM dataflow.job j WHERE j.jobid = b.base)
FROM unnest(%(attempts)s::bigint[], %(tokens)s::uuid[], %(jobids)s::text[]) AS a (attempt, token, jobid)
CROSS JOIN LATERAL (SELECT dataflow.code_of(a.jobid) AS base) AS b;

-- applied_config: which configuration of a job was applied last
SELECT (SELECT j.config_hash FROM dataflow.job j WHERE j.jobid = %(jobid)s);

-- code_of: the job whose code a job runs
SELECT dataflow.code_of(%(jobid)s) AS base;

-- is_alive: whether an attempt still holds its claim, asked before its rows replace others in a table
SELECT dataflow.work_order(%(attempt)s, %(token)s) IS NOT NULL;

-- trial_order: the work order for `dataflowctl try`, or why there is none
SELECT dataflow.trial_order(%(jobid)s, %(dataid)s) AS found;

-- code_versions: record which code and configuration jobs run with now
SELECT v.jobid, dataflow.code_version(v.jobid, v.code_hash, v.config_hash, v.parts::jsonb, v.whole_hash)
FROM unnest(%(jobids)s::text[], %(code_hashes)s::text[], %(config_hashes)s::text[], %(parts)s::text[], %(whole_hashes)s::text[])
    AS v (jobid, code_hash, config_hash, parts, whole_hash);

-- other_code: which of these jobs have other code than before, and whether they have chunks
SELECT j.jobid::text, EXISTS (SELECT FROM dataflow.chunk_count c WHERE c.jobid = j.jobid AND c.status = 'READY')
FROM unnest(%(jobids)s::text[], %(code_hashes)s::text[], %(whole_hashes)s::text[]) AS v (jobid, code_hash, whole_hash)
JOIN dataflow.job j ON j.jobid = v.jobid WHERE j.code_hash IS DISTINCT FROM v.code_hash AND j.code_hash IS DISTINCT FROM v.whole_hash;

-- accept: accept chunks that other code made, or only show them
SELECT * FROM dataflow.accept(%(jobid)s, %(patterns)s::text[], %(reason)s, %(with_code)s, %(with_config)s, %(dry_run)s);

-- keys: every key, and what is sealed with it
SELECT * FROM dataflow.keys WHERE %(every)s OR retired IS NULL OR datasets > 0;

-- add_key: passwords are sealed with this key from now on
SELECT dataflow.add_key(%(suite)s, %(public_key)s) AS keyid;

-- retire_key: nothing is sealed with this key any more
SELECT dataflow.retire_key(%(keyid)s) AS retired;

-- sealing_key: the key that passwords are sealed with
SELECT keyid, suite, public_key FROM dataflow.sealing_key();

-- credential: the user, host and database that the password of a dataset is for
SELECT d.datasetid::text, d.username, d.hostname, d.database, d.port, d.encryptedpass
FROM dataflow._known_dataset(%(datasetid)s) AS known, dataflow.dataset d WHERE d.datasetid = %(datasetid)s;

-- credentials: every sealed password, with its user, host and database
SELECT datasetid::text, username, hostname, database, port, encryptedpass FROM dataflow.dataset
WHERE encryptedpass IS NOT NULL AND retired IS NULL ORDER BY datasetid;

-- connection_changes: who changed how a dataset with a password is reached since the password was sealed; NULL: any dataset, any job
SELECT e.datasetid, e.code AS attribute, e.from_status AS was, e.to_status AS is_now, e.at, e.actor, e.application
FROM dataflow.dataset d JOIN dataflow.event e ON e.jobid = '' AND e.dataid = '' AND e.kind = 'dataset' AND e.datasetid = d.datasetid
WHERE d.encryptedpass IS NOT NULL AND coalesce(%(datasetid)s, d.datasetid::text) = d.datasetid
    AND (%(jobid)s::text IS NULL OR EXISTS (SELECT FROM dataflow.job_input i WHERE i.jobid = %(jobid)s AND i.datasetid = d.datasetid)
        OR EXISTS (SELECT FROM dataflow.job_output o WHERE o.jobid = %(jobid)s AND o.datasetid = d.datasetid))
    AND e.code IN ('username', 'hostname', 'port', 'database')
    AND e.event > coalesce((SELECT max(s.event) FROM dataflow.event s
        WHERE s.jobid = '' AND s.dataid = '' AND s.kind = 'credential' AND s.to_status = 'SEALED' AND s.datasetid = d.datasetid), 0)
ORDER BY e.event;

-- seal: store a sealed password, if the one that it replaces is still there
SELECT dataflow.seal(%(datasetid)s, %(sealed)s, %(was)s) AS sealed;

-- gc_places: where attempts of this environment write files; jobid: only those of one job
SELECT d.datasetid::text, dataflow._written_to(d) AS location FROM dataflow.dataset d
WHERE d.location IS NOT NULL AND d.format <> 'none' AND coalesce(d.environment, %(environment)s) = %(environment)s
    AND (%(jobid)s::text IS NULL OR EXISTS (SELECT FROM dataflow.job_output o WHERE o.datasetid = d.datasetid AND o.jobid = %(jobid)s))
ORDER BY d.datasetid;

-- fixed_paths: a page of the chunks that are published at a fixed path, and the directory that each path has to point to
SELECT datasetid, dataid, location, current FROM dataflow.fixed_paths(%(after_dataset)s, %(after_dataid)s);

-- fixed_path: the directory that the fixed path of one chunk has to point to now
SELECT d.datasetid::text, s.dataid::text, d.location, m.location FROM dataflow.dataset d
JOIN dataflow.datastatus s ON s.datasetid = d.datasetid AND s.dataid = %(dataid)s AND s.locktype = 'OUT'
JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest
WHERE d.datasetid = %(datasetid)s AND d.publish = 'rename';

-- gc_collect: which of these directories may be removed; unless it is a dry run, superseded versions are marked as collected
SELECT datasetid, dataid, attempt, why, since, claimed, written_until
FROM dataflow.collect(%(datasets)s::text[], %(dataids)s::text[], %(attempts)s::bigint[],
    make_interval(secs => %(grace)s), make_interval(secs => %(retention)s), %(dry_run)s);

-- preview_order: what an attempt of this run would be told
SELECT dataflow.preview_order(%(jobid)s, %(dataid)s) AS document;

-- five_questions: whether this run may start now
SELECT number, question, answer, code, detail FROM dataflow.five_questions(%(jobid)s, %(dataid)s);

-- measures: whether the chunks of a dataset are measured when they are registered, and whether their files are read for it
SELECT is_measured, digest FROM dataflow.measures(%(datasetid)s);

-- note_found: store what was measured of chunks that were just registered
SELECT dataflow.note_found(%(datasetid)s, %(found)s::jsonb) AS noted;

-- bound_elsewhere: why a host of this environment may not run a job; NULL: it may
SELECT dataflow.bound_elsewhere(%(jobid)s, %(environment)s) AS reason;

-- declared_job: what the database knows about a job
SELECT jobid::text, kind, config_hash, retired FROM dataflow._known_job(%(jobid)s) AS known, dataflow.job WHERE jobid = %(jobid)s;

-- next_inputs: what a job would read next
SELECT * FROM dataflow.next_inputs(%(jobid)s);

-- job_create: a job that runs the code of another, over a source of its own
SELECT kind, name, action, changed FROM dataflow.create_job_like(%(jobid)s, %(base)s, %(sources)s::jsonb, %(partitioning)s, %(description)s, %(params)s::jsonb, %(outputs)s::jsonb);

-- job_drop: retire a job that job_create made, or only show what would be retired
SELECT kind, name, action, changed FROM dataflow.drop_job(%(jobid)s, %(dry_run)s);

-- partition_source: what is needed to reach a source
SELECT dataflow._described(d) AS dataset FROM dataflow.dataset d WHERE d.datasetid = %(datasetid)s;

-- delete_places: what is needed to reach the outputs of a job
SELECT dataflow._described(d) AS dataset FROM dataflow.job_output o JOIN dataflow.dataset d ON d.datasetid = o.datasetid WHERE o.jobid = %(jobid)s;

-- partition_create: store a split and register its batches
SELECT dataflow.create_partitioning(%(datasetid)s, %(name)s, %(columns)s::text[], %(kind)s, %(size)s, %(batches)s::jsonb, %(held)s) AS batches;

-- partition_list: partitionings and the state of their batches
SELECT * FROM dataflow.partitionings(%(datasetid)s);

-- partition_delete: forget a partitioning and its chunks, or only count them
SELECT dataflow.delete_partitioning(%(datasetid)s, %(name)s, %(dry_run)s) AS batches;

-- begin: claim a run for something that executes it outside
SELECT * FROM dataflow.begin_run(%(jobid)s, %(dataid)s, %(lease)s::interval, %(environment)s, %(executor)s, false);

-- begin_instead: the same for a job that daemons execute
SELECT * FROM dataflow.begin_instead(%(jobid)s, %(dataid)s, %(lease)s::interval, %(environment)s, %(executor)s, false);

-- run_order: what begin has returned; no row: the attempt has lost its claim
SELECT * FROM dataflow.run_order(%(handle)s);

-- renew: prolong the lease of a run that was begun outside; NULL: it has lost its claim
SELECT dataflow.renew_run(%(handle)s, %(lease)s::interval) AS lease_until;

-- end: end a run that was begun outside, and publish its output
SELECT dataflow.end_run(%(handle)s, %(outcome)s, %(reason)s, NULL, %(result)s::jsonb) AS verdict;

-- add_words: keep what a person has added to the words of an attempt's command
SELECT dataflow.add_words(%(attempt)s, %(token)s, %(words)s::text[]);

-- new_run: ask for a run of a job without inputs
SELECT dataflow.new_run(%(jobid)s) AS dataid;
