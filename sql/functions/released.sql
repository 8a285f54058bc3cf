-- What serves release 0.1.0 alone: its private functions, in its signatures, for calls that are under way while the schema is upgraded; and what
-- its daemons write otherwise than this release.
--
-- A call that began before the upgrade goes on with its old body, and looks up the functions which that body calls by name and arguments
-- when it gets there. Without the functions of this file a daemon's claim would fail at the moment of the upgrade. The release after 0.2
-- drops them. tests/upgrade/test_upgrade.py compares them with every released schema.

CREATE OR REPLACE FUNCTION dataflow._alone() RETURNS boolean
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$ SELECT c.is_alone FROM dataflow._company() AS c $$;

CREATE OR REPLACE FUNCTION dataflow._next_work(daemon text, environment text, want integer, OUT jobids text[], OUT dataids text[])
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$ SELECT n.jobids, n.dataids FROM dataflow._next_work(daemon, environment, want, '{}', 0) AS n $$;

CREATE OR REPLACE FUNCTION dataflow._look(daemon text, environment text, want integer, from_start boolean, OUT jobids text[], OUT dataids text[])
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$ SELECT n.jobids, n.dataids FROM dataflow._look(daemon, environment, want, from_start, '{}', 0) AS n $$;

CREATE OR REPLACE FUNCTION dataflow._shares(daemon text, environment text, want integer, from_start boolean, OUT jobid text, OUT share integer)
RETURNS SETOF record
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$ SELECT s.jobid, s.share FROM dataflow._shares(daemon, environment, want, from_start, '{}', 0) AS s $$;

-- Daemons of release 0.1.0 call this when the code of an attempt begins.
CREATE OR REPLACE FUNCTION dataflow.started(attempt bigint, token uuid) RETURNS boolean
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT dataflow.began(attempt, token, 0, NULL) $$;
COMMENT ON FUNCTION dataflow.started(bigint, uuid) IS 'began(), for daemons of release 0.1: the job''s own code begins now; false: the attempt is fenced, stop';

-- Daemons of release 0.1.0 write the remedy, and the resubmission behind it, into the last line of the error.
CREATE OR REPLACE FUNCTION dataflow._remedy_in(error text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT regexp_replace(substring(error FROM E'\n  remedy: (.*)$'), '[,;] then resubmit( the chunk)?$', '') $$;
