-- Who may do what. Applied after all other files, whenever one of them has changed.
--   dataflow_reader    sees everything but tokens, changes nothing
--   dataflow_operator  also registers, holds, resubmits, cancels, seals passwords, and sets limits; begins and ends runs of jobs that are
--                      executed outside; cannot claim or finish runs of other jobs
--   dataflow_daemon    also claims, finishes, rescues; what `dataflowd run` connects as
--   dataflow_admin     owns the schema; applies flows, upgrades, deletes, and adds keys (whoever adds a key can read what is sealed with it)

GRANT USAGE ON SCHEMA dataflow TO dataflow_reader, dataflow_operator, dataflow_daemon;
REVOKE ALL ON ALL TABLES IN SCHEMA dataflow FROM PUBLIC, dataflow_reader, dataflow_operator, dataflow_daemon;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA dataflow FROM PUBLIC, dataflow_reader, dataflow_operator, dataflow_daemon;

GRANT SELECT ON dataflow.migration, dataflow.dataset, dataflow.job, dataflow.job_input, dataflow.job_output, dataflow.datastatus, dataflow.work, dataflow.open_run,
    dataflow.recheck, dataflow.manifest, dataflow.forgotten, dataflow.deleted_version, dataflow.check_result, dataflow.node_stat, dataflow.quarantine,
    dataflow.event, dataflow.job_code, dataflow.acceptance, dataflow.control, dataflow.counter, dataflow.partitioning, dataflow.batch, dataflow.key,
    dataflow.measurement, dataflow.judgement, dataflow.evidence, dataflow.job_like, dataflow.row_replay,
    dataflow.stale, dataflow.forced, dataflow.published, dataflow.chunk_count TO dataflow_reader;
-- Without token and incarnation: the token is the fence of an attempt, the incarnation gives the right to claim.
GRANT SELECT (attempt, jobid, dataid, number, tries, lost, daemon, tag, forced, inputs, answers, claimed, started, ended, outcome, code,
    error, remedy, retry_at, code_hash, config_hash, usage, let_go, params, waits, lease_until, words) ON dataflow.attempt TO dataflow_reader;
GRANT SELECT (daemon, hostname, pid, session_pid, environment, version, jobs, unserved, started, lease, lease_until, stopped, is_outside) ON dataflow.daemon
    TO dataflow_reader;

GRANT EXECUTE ON FUNCTION
    dataflow.schema_version(), dataflow.five_questions(text, text), dataflow.five_questions_at(text, text, timestamptz), dataflow.why_at(text, text, timestamptz), dataflow.why_attempt(text, text, integer), dataflow.required_inputs(text, text), dataflow.affected_runs(text, text),
    dataflow.output_dataid(text, text, text), dataflow.data_location(text, text), dataflow.trial_order(text, text), dataflow.bound_elsewhere(text, text), dataflow.measures(text), dataflow.fixed_paths(text, text, integer),
    dataflow._written_to(dataflow.dataset), dataflow._not_given(dataflow.attempt), dataflow.next_inputs(text), dataflow.history(text, text), dataflow.preview_ready(text, text[], integer),
    dataflow.status(), dataflow.select_runs(jsonb), dataflow.matches(text, text), dataflow.sortkey(text), dataflow.next_tick(),
    dataflow.period_start(text, text, text), dataflow.period_id(text, timestamptz, text),
    dataflow.period_add(text, timestamptz, integer, text), dataflow.plan_flow(jsonb, boolean), dataflow.flow_conflicts(jsonb, boolean),
    dataflow._inputs(text, text), dataflow._mapped_inputs(jsonb, text, text), dataflow._mapped_runs(text, jsonb, text, text),
    dataflow._shifted(text, text, integer), dataflow._first_moment(timestamp, text), dataflow._number(text), dataflow._moments(text, timestamptz, timestamptz, text),
    dataflow._long_sortkey(text), dataflow._known_job(text), dataflow._known_dataset(text), dataflow._known_daemon(text), dataflow._checked_dataid(text), dataflow._is_name(text), dataflow._is_chunkid(text), dataflow._described(dataflow.dataset),
    dataflow._chunk_location(dataflow.dataset, text)
    TO dataflow_reader;

GRANT SELECT ON dataflow.daemons, dataflow.daemon_session, dataflow.limits, dataflow.jobs, dataflow.datasets, dataflow.keys TO dataflow_reader;
GRANT EXECUTE ON FUNCTION
    dataflow._has_session(integer), dataflow._session_name(text), dataflow._limit_of(dataflow.job, dataflow.control), dataflow.frozen_sessions(),
    dataflow.sealing_key(), dataflow.preview_order(text, text),
    dataflow.causes(text), dataflow.rates(), dataflow.overview(text), dataflow.overview(text, text[]), dataflow.needs_hand(text, text[]),
    dataflow.chunks(text, text[], text, text, text, boolean, text, boolean, integer), dataflow.chunk_map(text, integer, text, text), dataflow.chunk_grid(text, integer, text, text),
    dataflow.runs(text, boolean, timestamptz, integer), dataflow.attempts(text, text), dataflow.run_state(text, text),
    dataflow.root_causes(text, text), dataflow.why(text, text), dataflow.blockers(text), dataflow.select_chunks(jsonb),
    dataflow.dataid_range(text), dataflow.code_of(text), dataflow._code_of(text), dataflow.lineage(text, text), dataflow.job_stats(text),
    dataflow.partitionings(text), dataflow.quarantine_groups(text, text, boolean), dataflow.quarantine_export(text, text[], boolean), dataflow.quarantine_for_repair(text, text[], boolean),
    dataflow.quarantined(text, text, boolean, integer), dataflow.quarantine_record(text, text, text), dataflow.prunable(interval)
    TO dataflow_reader;

GRANT UPDATE (status, reason) ON dataflow.datastatus TO dataflow_operator;
GRANT INSERT (scope, concurrency, paused, runners, slots), UPDATE (concurrency, paused, runners, slots) ON dataflow.control TO dataflow_operator;
GRANT EXECUTE ON FUNCTION
    dataflow.ready(text, text[], boolean, text), dataflow.ready(text, text, boolean, text), dataflow.note_found(text, jsonb), dataflow.validated(text, text, boolean, text),
    dataflow.hold(text, text, text), dataflow.release(text, text), dataflow.cancel(text, text, text),
    dataflow.resubmit(jsonb, boolean, boolean), dataflow.resubmit_with(jsonb, jsonb, boolean, boolean), dataflow.accept(text, text[], text, text, text, boolean), dataflow.set_concurrency(text, integer), dataflow.set_runners(text, integer), dataflow.set_slots(text, integer), dataflow.pause(text, boolean),
    dataflow.hold_chunks(jsonb, text, boolean), dataflow.release_chunks(jsonb, boolean), dataflow.cancel_runs(jsonb, text, boolean),
    dataflow.pause_scopes(text[], text, text, boolean), dataflow.shed(text, integer, boolean), dataflow.resolve(text, text, text[], jsonb), dataflow.unresolve(text, text, text[]),
    dataflow.create_partitioning(text, text, text[], text, bigint, jsonb, boolean), dataflow.delete_partitioning(text, text, boolean),
    dataflow.unregister(text, text[], text, boolean), dataflow._withdraw(text, text[], text, boolean),
    dataflow.resolve_records(text, jsonb), dataflow.replay(text, text[], boolean, boolean), dataflow.replay_rows(text, text[], boolean),
    dataflow.seal(text, text, text),
    dataflow.collect(text[], text[], bigint[], interval, interval, boolean)
    TO dataflow_operator;

GRANT SELECT ON dataflow.daemon TO dataflow_daemon;
GRANT EXECUTE ON FUNCTION
    dataflow.register_daemon(text, text, integer, interval, text, text), dataflow.serve_jobs(text, uuid, text[]), dataflow.reloaded(text, uuid, integer),
    dataflow.serve_jobs(text, uuid, text[], jsonb),
    dataflow.renew_lease(text, uuid), dataflow.retake(text, uuid), dataflow.retake_attempts(text, uuid),
    dataflow.stop_daemon(text, uuid), dataflow.expire_daemon(text, uuid), dataflow.queue_of(text[]), dataflow.claim(text, uuid, integer), dataflow.claim_within(text, uuid, integer, text[], integer),
    dataflow.claim_run(text, uuid, text, text, boolean), dataflow.claim_run(text, uuid, text, text, boolean, text), dataflow.started(bigint, uuid), dataflow.waits(bigint, uuid, integer),
    dataflow.end_frozen_sessions(), dataflow._session_ended(text, integer, timestamptz),
    dataflow.finish(jsonb), dataflow.rescue(), dataflow.cancelled(text, uuid, bigint[]), dataflow.settle(integer),
    dataflow.tick(timestamptz), dataflow.fold_counters(), dataflow.ready(text, text[], boolean, text), dataflow.work_order(bigint, uuid), dataflow.attempt_order(bigint, uuid), dataflow.take_order(bigint, uuid), dataflow.began(bigint, uuid, double precision, jsonb),
    dataflow.code_version(text, text, text), dataflow.code_version(text, text, text, jsonb, text), dataflow.collect(text[], text[], bigint[], interval, interval, boolean)
    TO dataflow_daemon;

GRANT EXECUTE ON FUNCTION
    dataflow.begin_run(text, text, interval, text, text, boolean), dataflow.run_order(text), dataflow.renew_run(text, interval),
    dataflow.end_run(text, text, text, bigint, jsonb), dataflow.new_run(text, text)
    TO dataflow_operator, dataflow_daemon;
GRANT EXECUTE ON FUNCTION dataflow.begin_instead(text, text, interval, text, text, boolean), dataflow.add_words(bigint, uuid, text[]),
    dataflow.claim_new(text, uuid, text) TO dataflow_daemon;
