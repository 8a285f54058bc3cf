--
-- PostgreSQL database dump
--


-- Dumped from database version 18.4
-- Dumped by pg_dump version 18.4

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET transaction_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: dataflow; Type: SCHEMA; Schema: -; Owner: dataflow_admin
--

CREATE SCHEMA dataflow;


ALTER SCHEMA dataflow OWNER TO dataflow_admin;

--
-- Name: chunkid; Type: DOMAIN; Schema: dataflow; Owner: dataflow_admin
--

CREATE DOMAIN dataflow.chunkid AS text COLLATE pg_catalog."C"
	CONSTRAINT chunkid_check CHECK (((VALUE !~ '[^A-Za-z0-9._:+=-]|^[.-]|^$'::text) AND (length(VALUE) <= 128)));


ALTER DOMAIN dataflow.chunkid OWNER TO dataflow_admin;

--
-- Name: DOMAIN chunkid; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON DOMAIN dataflow.chunkid IS 'A dataid: 1 to 128 letters, digits and . _ : + = -, not starting with a dot or a dash';


--
-- Name: name; Type: DOMAIN; Schema: dataflow; Owner: dataflow_admin
--

CREATE DOMAIN dataflow.name AS text COLLATE pg_catalog."C"
	CONSTRAINT name_check CHECK (((VALUE !~ '[^A-Za-z0-9_.-]|^[^A-Za-z]|^$'::text) AND (length(VALUE) <= 63)));


ALTER DOMAIN dataflow.name OWNER TO dataflow_admin;

--
-- Name: DOMAIN name; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON DOMAIN dataflow.name IS 'Name of a dataset, job or daemon: a letter, then up to 62 letters, digits, and _ . -';


--
-- Name: status_change; Type: TYPE; Schema: dataflow; Owner: dataflow_admin
--

CREATE TYPE dataflow.status_change AS (
	datasetid text,
	dataid text,
	locktype text,
	jobid text,
	run text,
	was text,
	now text,
	attempt bigint,
	code text,
	reason text
);


ALTER TYPE dataflow.status_change OWNER TO dataflow_admin;

--
-- Name: TYPE status_change; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON TYPE dataflow.status_change IS 'One row of datastatus that changed: was NULL when inserted, now NULL when deleted';


--
-- Name: _alone(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._alone() RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    gate constant bigint := hashtextextended('dataflow.changing', 0);
BEGIN
    PERFORM pg_advisory_xact_lock_shared(gate);
    RETURN dataflow._is_quiet();
END $$;


ALTER FUNCTION dataflow._alone() OWNER TO dataflow_admin;

--
-- Name: _are_literal(text[]); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._are_literal(patterns text[]) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT cardinality(patterns) > 0 AND NOT EXISTS (SELECT FROM unnest(patterns) AS p WHERE p ~ '[*?]' OR strpos(p, '..') > 0) $$;


ALTER FUNCTION dataflow._are_literal(patterns text[]) OWNER TO dataflow_admin;

--
-- Name: _bounded_selector(jsonb); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._bounded_selector(selector jsonb) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    AS $$
#variable_conflict use_column
BEGIN
    IF selector = '{}' THEN
        RAISE EXCEPTION 'nothing is selected' USING ERRCODE = 'DF400', HINT = 'name a job, a dataset, a dataid or a pattern';
    END IF;
END $$;


ALTER FUNCTION dataflow._bounded_selector(selector jsonb) OWNER TO dataflow_admin;

SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: dataset; Type: TABLE; Schema: dataflow; Owner: dataflow_admin
--

CREATE TABLE dataflow.dataset (
    datasetid dataflow.name NOT NULL,
    flow text DEFAULT ''::text NOT NULL,
    description text DEFAULT ''::text NOT NULL,
    format text DEFAULT 'parquet'::text NOT NULL,
    location text,
    hostname text,
    port integer,
    database text,
    schemaname text,
    tablename text,
    username text,
    encryptedpass text,
    columns text,
    options jsonb DEFAULT '{}'::jsonb NOT NULL,
    checks jsonb DEFAULT '{}'::jsonb NOT NULL,
    ordering text DEFAULT 'natural'::text NOT NULL,
    publish text DEFAULT 'pointer'::text NOT NULL,
    environment text,
    calendar text,
    calendar_zone text DEFAULT 'UTC'::text NOT NULL,
    calendar_start timestamp with time zone,
    calendar_ready text DEFAULT 'end'::text NOT NULL,
    calendar_next timestamp with time zone,
    created timestamp with time zone DEFAULT now() NOT NULL,
    modified timestamp with time zone DEFAULT now() NOT NULL,
    retired timestamp with time zone,
    CONSTRAINT dataset_calendar_check CHECK ((calendar = ANY (ARRAY['hourly'::text, 'daily'::text, 'weekly'::text, 'monthly'::text]))),
    CONSTRAINT dataset_calendar_ready_check CHECK ((calendar_ready = ANY (ARRAY['start'::text, 'end'::text]))),
    CONSTRAINT dataset_check CHECK (((calendar IS NULL) = (calendar_start IS NULL))),
    CONSTRAINT dataset_check1 CHECK (((calendar IS NULL) = (calendar_next IS NULL))),
    CONSTRAINT dataset_checks_check CHECK ((jsonb_typeof(checks) = 'object'::text)),
    CONSTRAINT dataset_format_check CHECK ((format = ANY (ARRAY['csv'::text, 'json'::text, 'parquet'::text, 'orc'::text, 'text'::text, 'delta'::text, 'iceberg'::text, 'postgres'::text, 'jdbc'::text, 'none'::text]))),
    CONSTRAINT dataset_options_check CHECK ((jsonb_typeof(options) = 'object'::text)),
    CONSTRAINT dataset_ordering_check CHECK ((ordering = ANY (ARRAY['natural'::text, 'text'::text, 'date'::text, 'number'::text]))),
    CONSTRAINT dataset_port_check CHECK (((port >= 1) AND (port <= 65535))),
    CONSTRAINT dataset_publish_check CHECK ((publish = ANY (ARRAY['pointer'::text, 'rename'::text])))
);


ALTER TABLE dataflow.dataset OWNER TO dataflow_admin;

--
-- Name: TABLE dataset; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON TABLE dataflow.dataset IS 'A named collection of data with everything needed to reach it, given a key';


--
-- Name: COLUMN dataset.datasetid; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.datasetid IS 'Name of the dataset';


--
-- Name: COLUMN dataset.flow; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.flow IS 'The flow file (its name) that declares it';


--
-- Name: COLUMN dataset.description; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.description IS 'What it is, for people';


--
-- Name: COLUMN dataset.format; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.format IS 'How the data is stored: a format of files, or a kind of table';


--
-- Name: COLUMN dataset.location; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.location IS 'Where the files are: a path or URL; {dataid} stands for the dataid. NULL for tables and calendars';


--
-- Name: COLUMN dataset.hostname; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.hostname IS 'Host of the database that holds it; NULL for files';


--
-- Name: COLUMN dataset.port; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.port IS 'Port of that database; NULL: its default';


--
-- Name: COLUMN dataset.database; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.database IS 'Database that holds the table';


--
-- Name: COLUMN dataset.schemaname; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.schemaname IS 'Schema of the table';


--
-- Name: COLUMN dataset.tablename; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.tablename IS 'Table that holds the data';


--
-- Name: COLUMN dataset.username; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.username IS 'Who logs in there; the password is encryptedpass';


--
-- Name: COLUMN dataset.encryptedpass; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.encryptedpass IS 'Password sealed to a public key; nothing in this database can open it';


--
-- Name: COLUMN dataset.columns; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.columns IS 'Schema as Spark DDL: order_id bigint, customer string';


--
-- Name: COLUMN dataset.options; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.options IS 'Reader and writer options, checked against an allow-list before use';


--
-- Name: COLUMN dataset.checks; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.checks IS 'Declared checks: min_rows, not_null, unique, ...';


--
-- Name: COLUMN dataset.ordering; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.ordering IS 'How dataids are ordered: natural (2 < 10, 1.9 < 1.10), date, number, or text';


--
-- Name: COLUMN dataset.publish; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.publish IS 'pointer: readers resolve through manifest; rename: also at a fixed path, location/dataid=<id>, a link that is replaced in one moment';


--
-- Name: COLUMN dataset.environment; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.environment IS 'Only hosts of this environment may use it; NULL: any';


--
-- Name: COLUMN dataset.calendar; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.calendar IS 'Chunks become READY by themselves, one a period; NULL: an ordinary dataset';


--
-- Name: COLUMN dataset.calendar_zone; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.calendar_zone IS 'Time zone in which periods begin and end';


--
-- Name: COLUMN dataset.calendar_start; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.calendar_start IS 'Start of the first period';


--
-- Name: COLUMN dataset.calendar_ready; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.calendar_ready IS 'Whether a period is READY when it starts or when it has ended';


--
-- Name: COLUMN dataset.calendar_next; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.calendar_next IS 'Start of the first period that is not registered yet';


--
-- Name: COLUMN dataset.created; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.created IS 'When the row was made';


--
-- Name: COLUMN dataset.modified; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.modified IS 'When the row was changed last';


--
-- Name: COLUMN dataset.retired; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.dataset.retired IS 'When the flow stopped declaring it; its history stays';


--
-- Name: _calendar_due(dataflow.dataset, timestamp with time zone); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._calendar_due(d dataflow.dataset, start timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE sql STABLE
    AS $$
    SELECT CASE d.calendar_ready WHEN 'start' THEN start
        ELSE dataflow.period_add(dataflow._calendar_unit(d.calendar), start, 1, d.calendar_zone) END
$$;


ALTER FUNCTION dataflow._calendar_due(d dataflow.dataset, start timestamp with time zone) OWNER TO dataflow_admin;

--
-- Name: _calendar_unit(text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._calendar_unit(calendar text) RETURNS text
    LANGUAGE sql IMMUTABLE
    AS $$ SELECT CASE calendar WHEN 'hourly' THEN 'hour' WHEN 'daily' THEN 'day' WHEN 'weekly' THEN 'week' WHEN 'monthly' THEN 'month' END $$;


ALTER FUNCTION dataflow._calendar_unit(calendar text) OWNER TO dataflow_admin;

--
-- Name: _changed(dataflow.status_change[]); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._changed(changes dataflow.status_change[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_nestloop TO 'on'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_material TO 'off'
    SET enable_memoize TO 'off'
    SET enable_bitmapscan TO 'off'
    SET join_collapse_limit TO '1'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
DECLARE
    resets boolean;
    judges boolean;
    alone boolean;
    jobids text[];
    dataids text[];
BEGIN
    IF changes IS NULL THEN
        RETURN;
    END IF;
    SELECT
        bool_or(c.locktype = 'OUT' AND (c.was = 'RUNNING' AND c.now IS DISTINCT FROM 'READY' OR c.now = 'RESUBMIT')),
        bool_or(c.now IS DISTINCT FROM 'RUNNING' OR c.was = 'READY')
    INTO resets, judges FROM unnest(changes) AS c;

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
    SELECT 'status', c.jobid, c.dataid, c.datasetid, c.attempt, c.was, c.now, c.code, c.reason FROM chunks c;

    -- For who watches. Daemons hear only of what they can act upon.
    PERFORM pg_notify('dataflow_status', '');
    IF resets THEN
        PERFORM dataflow._reset_runs(changes);
    END IF;
    -- A chunk that comes into being makes its consumers known, and those of a strict order wait for it from now on.
    judges := judges OR EXISTS (
        SELECT FROM unnest(changes) AS c JOIN dataflow.job_input i ON i.datasetid = c.datasetid JOIN dataflow.job j ON j.jobid = i.jobid
        WHERE c.locktype = 'OUT' AND c.was IS NULL AND j.strict_order);
    IF NOT judges THEN
        RETURN;
    END IF;

    alone := dataflow._alone();
    SELECT array_agg(r.jobid), array_agg(r.dataid) INTO jobids, dataids FROM (
        -- consumers of what became or ceased to be READY
        SELECT a.jobid, a.dataid FROM unnest(changes) AS c, LATERAL dataflow.affected_runs(c.datasetid, c.dataid) AS a
        WHERE c.locktype = 'OUT' AND (c.was IS NOT DISTINCT FROM 'READY') <> (c.now IS NOT DISTINCT FROM 'READY')
        UNION ALL
        -- consumers in strict order of what came into being or was deleted
        SELECT a.jobid, a.dataid FROM unnest(changes) AS c, LATERAL dataflow.affected_runs(c.datasetid, c.dataid) AS a
        JOIN dataflow.job j ON j.jobid = a.jobid AND j.strict_order
        WHERE c.locktype = 'OUT' AND (c.was IS NULL OR c.now IS NULL)
        UNION ALL
        -- the run itself; a claim and an ordinary finish have seen to theirs
        SELECT o.jobid, c.dataid FROM unnest(changes) AS c JOIN dataflow.job_output o ON o.datasetid = c.datasetid
        JOIN dataflow.job j ON j.jobid = o.jobid
        WHERE c.locktype = 'OUT' AND c.now IS DISTINCT FROM 'RUNNING'
            AND (c.now IS DISTINCT FROM 'READY' OR c.was IS DISTINCT FROM 'RUNNING' OR j.strict_order)
        UNION ALL
        -- the producer of what is no longer being read
        SELECT o.jobid, c.dataid FROM unnest(changes) AS c JOIN dataflow.job_output o ON o.datasetid = c.datasetid
        WHERE c.locktype = 'IN' AND c.was = 'RUNNING' AND (NOT alone OR EXISTS (
            SELECT FROM dataflow.datastatus s WHERE s.datasetid = c.datasetid AND s.dataid = c.dataid AND s.locktype = 'OUT'
                AND s.status IN ('RESUBMIT', 'FAILED')))
    ) AS r;
    PERFORM dataflow._refresh(jobids, dataids, alone);
END $$;


ALTER FUNCTION dataflow._changed(changes dataflow.status_change[]) OWNER TO dataflow_admin;

--
-- Name: _checked_dataid(text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._checked_dataid(dataid text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    AS $_$
#variable_conflict use_column
BEGIN
    IF dataid IS NULL OR dataid ~ '[^A-Za-z0-9._:+=-]|^[.-]|^$' OR length(dataid) > 128 THEN
        RAISE EXCEPTION 'not a dataid: %', coalesce(quote_literal(left(dataid, 140)), 'NULL') USING ERRCODE = 'DF400',
            HINT = 'a dataid is 1 to 128 letters, digits and . _ : + = -, and does not start with a dot or a dash';
    END IF;
END $_$;


ALTER FUNCTION dataflow._checked_dataid(dataid text) OWNER TO dataflow_admin;

--
-- Name: _checked_statuses(text[]); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._checked_statuses(statuses text[]) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    AS $$
#variable_conflict use_column
DECLARE
    known constant text[] := ARRAY['RUNNING', 'READY', 'FAILED', 'RESUBMIT', 'PENDING', 'HOLD'];
    unknown text;
BEGIN
    SELECT s INTO unknown FROM unnest(statuses) AS s WHERE s <> ALL (known) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% is no status', unknown USING ERRCODE = 'DF400', HINT = 'allowed are ' || array_to_string(known, ', ');
    END IF;
END $$;


ALTER FUNCTION dataflow._checked_statuses(statuses text[]) OWNER TO dataflow_admin;

--
-- Name: _control_changed(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._control_changed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO dataflow.event (kind, from_status, to_status, reason)
    SELECT 'control', o.concurrency::text, n.concurrency::text, n.scope || CASE WHEN n.paused THEN ' (paused)' ELSE '' END
    FROM new_rows n LEFT JOIN old_rows o ON o.scope = n.scope;
    PERFORM pg_notify('dataflow', 'control');
    RETURN NULL;
END $$;


ALTER FUNCTION dataflow._control_changed() OWNER TO dataflow_admin;

--
-- Name: _control_checked(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._control_checked() RETURNS trigger
    LANGUAGE plpgsql
    AS $_$
#variable_conflict use_column
BEGIN
    IF NEW.concurrency < 0 THEN
        RAISE EXCEPTION 'concurrency of % cannot be %', NEW.scope, NEW.concurrency USING ERRCODE = 'DF400', HINT = 'it is 0 or more; 0 starts nothing';
    END IF;
    IF NEW.scope = 'global' AND NEW.concurrency IS NULL THEN
        RAISE EXCEPTION 'the global concurrency cannot be NULL' USING ERRCODE = 'DF400', HINT = 'it is 0 or more; 0 starts nothing';
    END IF;
    IF NEW.scope <> 'global' AND NEW.scope !~ '^(job|daemon):[A-Za-z][A-Za-z0-9_.-]{0,62}$' THEN
        RAISE EXCEPTION 'there is no scope %', NEW.scope USING ERRCODE = 'DF404', HINT = 'scopes are global, job:<jobid> and daemon:<name>';
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.scope <> OLD.scope THEN
        RAISE EXCEPTION 'the scope of a control cannot be changed' USING ERRCODE = 'DF409', HINT = 'set concurrency and paused of the other scope';
    END IF;
    IF NEW.scope LIKE 'job:%' THEN
        PERFORM dataflow._known_job(substr(NEW.scope, 5));
    END IF;
    NEW.modified := now();
    RETURN NEW;
END $_$;


ALTER FUNCTION dataflow._control_checked() OWNER TO dataflow_admin;

--
-- Name: _control_inserted(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._control_inserted() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO dataflow.event (kind, to_status, reason)
    SELECT 'control', n.concurrency::text, n.scope || CASE WHEN n.paused THEN ' (paused)' ELSE '' END FROM new_rows n;
    PERFORM pg_notify('dataflow', 'control');
    RETURN NULL;
END $$;


ALTER FUNCTION dataflow._control_inserted() OWNER TO dataflow_admin;

--
-- Name: _counted(bigint, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._counted(n bigint, thing text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT n || ' ' || thing || CASE n WHEN 1 THEN '' ELSE 's' END $$;


ALTER FUNCTION dataflow._counted(n bigint, thing text) OWNER TO dataflow_admin;

--
-- Name: _dataset_checked(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._dataset_checked() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
DECLARE
    unit text := dataflow._calendar_unit(NEW.calendar);
BEGIN
    IF NEW.calendar IS NULL THEN
        RETURN NEW;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_timezone_names z WHERE z.name = NEW.calendar_zone) THEN
        RAISE EXCEPTION 'calendar % has an unknown time zone %', NEW.datasetid, NEW.calendar_zone USING ERRCODE = 'DF400',
            HINT = 'use a name such as Europe/Berlin; SELECT name FROM pg_timezone_names lists them';
    END IF;
    NEW.calendar_next := dataflow.period_start(unit, dataflow.period_id(unit, NEW.calendar_next, NEW.calendar_zone), NEW.calendar_zone);
    RETURN NEW;
END $$;


ALTER FUNCTION dataflow._dataset_checked() OWNER TO dataflow_admin;

--
-- Name: _datastatus_by_hand(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._datastatus_by_hand() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
DECLARE
    allowed constant text[] := ARRAY['RESUBMIT', 'HOLD', 'PENDING', 'FAILED', 'READY'];
    chunk text;
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
    NEW.held_from := CASE
        WHEN NEW.status NOT IN ('HOLD', 'PENDING') THEN NULL
        WHEN OLD.held_from IS NOT NULL THEN OLD.held_from
        WHEN OLD.status = 'RUNNING' THEN 'RESUBMIT'
        ELSE OLD.status
    END;
    IF NEW.status = 'READY' AND OLD.held_from IS DISTINCT FROM 'READY' THEN
        NEW.external := true;
        NEW.manifest := NULL;
        NEW.version := OLD.version + 1;
        NEW.validated := true;
    END IF;
    NEW.code := CASE WHEN NEW.status = 'FAILED' THEN 'BY_HAND' WHEN NEW.status IN ('HOLD', 'PENDING') THEN OLD.code END;
    IF NEW.reason IS NOT DISTINCT FROM OLD.reason THEN
        NEW.reason := NULL;
    END IF;
    RETURN NEW;
END $$;


ALTER FUNCTION dataflow._datastatus_by_hand() OWNER TO dataflow_admin;

--
-- Name: _datastatus_deleted(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._datastatus_deleted() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._changed(array_agg(ROW(
        o.datasetid, o.dataid, o.locktype, o.jobid, o.run, o.status, NULL, o.attempt, o.code, o.reason)::dataflow.status_change))
    FROM old_rows o WHERE o.locktype = 'OUT' OR o.status = 'RUNNING' HAVING count(*) > 0;
    RETURN NULL;
END $$;


ALTER FUNCTION dataflow._datastatus_deleted() OWNER TO dataflow_admin;

--
-- Name: _datastatus_inserted(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._datastatus_inserted() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._changed(array_agg(ROW(
        n.datasetid, n.dataid, n.locktype, n.jobid, n.run, NULL, n.status, n.attempt, n.code, n.reason)::dataflow.status_change))
    FROM new_rows n WHERE n.locktype = 'OUT' HAVING count(*) > 0;
    RETURN NULL;
END $$;


ALTER FUNCTION dataflow._datastatus_inserted() OWNER TO dataflow_admin;

--
-- Name: _datastatus_updated(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._datastatus_updated() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_nestloop TO 'off'
    SET enable_hashjoin TO 'on'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._changed(array_agg(ROW(
        n.datasetid, n.dataid, n.locktype, n.jobid, n.run, o.status, n.status, n.attempt, n.code, n.reason)::dataflow.status_change))
    FROM new_rows n
    JOIN old_rows o ON o.datasetid = n.datasetid AND o.dataid = n.dataid AND o.locktype = n.locktype AND o.run = n.run AND o.jobid = n.jobid
    WHERE o.status <> n.status AND (n.locktype = 'OUT' OR o.status = 'RUNNING') HAVING count(*) > 0;
    RETURN NULL;
END $$;


ALTER FUNCTION dataflow._datastatus_updated() OWNER TO dataflow_admin;

--
-- Name: _described(dataflow.dataset); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._described(d dataflow.dataset) RETURNS jsonb
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT jsonb_build_object('name', d.datasetid, 'format', d.format, 'location', d.location, 'columns', d.columns, 'options', d.options,
        'checks', d.checks, 'publish', d.publish, 'connection', jsonb_build_object('hostname', d.hostname, 'port', d.port,
        'database', d.database, 'schemaname', d.schemaname, 'tablename', d.tablename, 'username', d.username, 'encryptedpass', d.encryptedpass))
$$;


ALTER FUNCTION dataflow._described(d dataflow.dataset) OWNER TO dataflow_admin;

--
-- Name: _differing_keys(jsonb, jsonb, jsonb); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._differing_keys(declared jsonb, before jsonb, after jsonb) RETURNS text[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT coalesce(array_agg(k.key ORDER BY k.key), '{}')
    FROM jsonb_object_keys(declared) AS k (key)
    WHERE after ? k.key AND before -> k.key IS DISTINCT FROM after -> k.key
$$;


ALTER FUNCTION dataflow._differing_keys(declared jsonb, before jsonb, after jsonb) OWNER TO dataflow_admin;

--
-- Name: FUNCTION _differing_keys(declared jsonb, before jsonb, after jsonb); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow._differing_keys(declared jsonb, before jsonb, after jsonb) IS 'Which of the declared keys have another value after than before';


--
-- Name: _evaluate(text[], text[]); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._evaluate(jobids text[], dataids text[]) RETURNS TABLE(jobid text, dataid text, not_ready text, wrong_data text, invalid_path text, not_validated text, locked text, inputs jsonb, not_before timestamp with time zone, last_attempt bigint, out_status text, sortkey text)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_nestloop TO 'on'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_material TO 'off'
    SET enable_memoize TO 'off'
    SET enable_bitmapscan TO 'off'
    SET join_collapse_limit TO '1'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH jobs AS MATERIALIZED (
        -- What is the same for all runs of a job is looked up once.
        SELECT j.jobid, j.strict_order, j.retired, facts.outputs, facts.ordering, CASE
            WHEN facts.homeless IS NOT NULL THEN format('dataset %s has neither a location nor a table', facts.homeless)
            WHEN facts.last_environment <> facts.first_environment
                THEN format('its datasets belong to different environments: %s and %s', facts.first_environment, facts.last_environment)
        END AS invalid_path
        FROM dataflow.job j
        CROSS JOIN LATERAL (
            SELECT
                count(*) FILTER (WHERE used.written) AS outputs,
                min(d.ordering) FILTER (WHERE used.written) AS ordering,
                min(d.datasetid::text) FILTER (WHERE d.location IS NULL AND d.tablename IS NULL AND d.format <> 'none'
                    AND (used.written OR d.calendar IS NULL)) AS homeless,
                min(d.environment) AS first_environment,
                max(d.environment) AS last_environment
            FROM (
                SELECT i.datasetid, false AS written FROM dataflow.job_input i WHERE i.jobid = j.jobid
                UNION ALL
                SELECT o.datasetid, true FROM dataflow.job_output o WHERE o.jobid = j.jobid
            ) AS used
            JOIN dataflow.dataset d ON d.datasetid = used.datasetid
        ) AS facts
        WHERE j.jobid IN (SELECT DISTINCT named FROM unnest(jobids) AS named)
    )
    SELECT
        j.jobid::text,
        r.dataid,
        i.not_ready || CASE WHEN i.missing > 1 THEN format(' (and %s more)', i.missing - 1) ELSE '' END,
        CASE
            WHEN i.chunks = 0 THEN 'the job has no inputs'
            WHEN i.unmapped IS NOT NULL THEN format('%s has no input chunk for dataid %s: its mapping does not know such ids', i.unmapped, r.dataid)
            WHEN earlier.dataid IS NOT NULL THEN format('%s comes first: the job keeps strict order', earlier.dataid)
        END,
        j.invalid_path,
        CASE WHEN i.unvalidated IS NOT NULL THEN format('%s has arrived, but is not validated', i.unvalidated) END,
        CASE
            WHEN j.retired IS NOT NULL THEN 'the job is retired: its flow no longer declares it'
            WHEN j.outputs = 0 THEN 'the job has no outputs'
            ELSE coalesce(o.locked, i.locked)
        END,
        i.versions,
        o.retry_at,
        o.last_attempt,
        o.status,
        dataflow._ordered(j.ordering, r.dataid)
    FROM unnest(jobids, dataids) AS r (jobid, dataid)
    JOIN jobs j ON j.jobid = r.jobid
    CROSS JOIN LATERAL (
        SELECT
            count(*) AS chunks,
            count(*) FILTER (WHERE s.status IS DISTINCT FROM 'READY' AND q.dataid IS NOT NULL) AS missing,
            min(format('%s/%s %s', q.datasetid, q.dataid, coalesce('is ' || s.status, 'is not there')))
                FILTER (WHERE s.status IS DISTINCT FROM 'READY' AND q.dataid IS NOT NULL) AS not_ready,
            min(q.datasetid) FILTER (WHERE q.dataid IS NULL) AS unmapped,
            min(q.datasetid || '/' || q.dataid) FILTER (WHERE NOT s.validated) AS unvalidated,
            min(format('%s/%s is %s', q.datasetid, q.dataid, coalesce(s.status || ': ' || s.reason, s.status)))
                FILTER (WHERE s.status IN ('HOLD', 'PENDING')) AS locked,
            jsonb_object_agg(q.datasetid || '/' || q.dataid, s.version) FILTER (WHERE s.status = 'READY') AS versions
        FROM dataflow._inputs(r.jobid, r.dataid) AS q
        LEFT JOIN LATERAL (
            SELECT c.status, c.version, c.validated, c.reason FROM dataflow.datastatus c
            WHERE c.datasetid = q.datasetid AND c.dataid = q.dataid AND c.locktype = 'OUT' OFFSET 0
        ) AS s ON true
    ) AS i
    CROSS JOIN LATERAL (
        SELECT
            max(s.status) AS status,
            max(s.attempt) AS last_attempt,
            max(a.retry_at) AS retry_at,
            min(CASE
                WHEN s.status IN ('HOLD', 'PENDING') THEN format('%s/%s is %s', p.datasetid, r.dataid, coalesce(s.status || ': ' || s.reason, s.status))
                WHEN s.status = 'RUNNING' THEN format('%s/%s is being written by attempt %s', p.datasetid, r.dataid, s.attempt)
                WHEN s.status = 'READY' THEN format('%s/%s is published already (version %s); RESUBMIT rewrites it', p.datasetid, r.dataid, s.version)
                WHEN s.status = 'FAILED' AND a.retry_at IS NULL THEN format('%s/%s has FAILED (%s) and waits for RESUBMIT', p.datasetid, r.dataid, coalesce(s.code, 'no code'))
                WHEN reader.jobid IS NOT NULL THEN format('%s/%s is being read by job %s', p.datasetid, r.dataid, reader.jobid)
            END) AS locked
        FROM dataflow.job_output p
        LEFT JOIN LATERAL (
            SELECT c.status, c.attempt, c.version, c.code, c.reason FROM dataflow.datastatus c
            WHERE c.datasetid = p.datasetid AND c.dataid = r.dataid AND c.locktype = 'OUT' OFFSET 0
        ) AS s ON true
        LEFT JOIN LATERAL (
            SELECT b.retry_at FROM dataflow.attempt b WHERE s.status = 'FAILED' AND s.code IS DISTINCT FROM 'BY_HAND' AND b.attempt = s.attempt OFFSET 0
        ) AS a ON true
        LEFT JOIN LATERAL (
            SELECT c.jobid FROM dataflow.datastatus c
            WHERE s.status IN ('RESUBMIT', 'FAILED') AND c.datasetid = p.datasetid AND c.dataid = r.dataid
                AND c.locktype = 'IN' AND c.status = 'RUNNING'
            LIMIT 1
        ) AS reader ON true
        WHERE p.jobid = r.jobid
    ) AS o
    LEFT JOIN LATERAL (
        SELECT x.dataid FROM dataflow.open_run x
        WHERE j.strict_order AND x.jobid = r.jobid
            AND (x.sortkey, x.dataid) < (dataflow._ordered(j.ordering, r.dataid), r.dataid)
        ORDER BY x.sortkey, x.dataid
        LIMIT 1
    ) AS earlier ON true;
END $$;


ALTER FUNCTION dataflow._evaluate(jobids text[], dataids text[]) OWNER TO dataflow_admin;

--
-- Name: _finish(jsonb); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._finish(results jsonb) RETURNS TABLE(attempt bigint, verdict text)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_nestloop TO 'on'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_material TO 'off'
    SET enable_memoize TO 'off'
    SET enable_bitmapscan TO 'off'
    SET join_collapse_limit TO '1'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
DECLARE
    accepted bigint[];
    stopped bigint[];
BEGIN
    WITH ending AS (
        UPDATE dataflow.attempt a SET
            ended = now(),
            let_go = true,
            outcome = r.outcome,
            started = coalesce(a.started, r.started),
            code = CASE r.outcome WHEN 'DONE' THEN NULL ELSE coalesce(r.code, r.outcome) END,
            error = r.error,
            code_hash = r.code_hash,
            config_hash = r.config_hash,
            usage = coalesce(r.usage, '{}'),
            retry_at = CASE WHEN r.outcome = 'FAILED' AND coalesce(r.retry, a.tries < j.max_attempts)
                -- doubles with each try, spread by a fifth so that what failed together does not return together
                THEN now() + coalesce(make_interval(secs => r.retry_after), j.retry_delay * (2 ^ least(a.tries - 1, 20)) * (0.9 + random() * 0.2)) END
        FROM jsonb_to_recordset(results) AS r (attempt bigint, token uuid, outcome text, code text, error text, started timestamptz,
            retry boolean, retry_after double precision, code_hash text, config_hash text, usage jsonb)
        JOIN dataflow.attempt x ON x.attempt = r.attempt
        JOIN dataflow.job j ON j.jobid = x.jobid
        WHERE a.attempt = r.attempt AND a.token = r.token AND a.ended IS NULL
        RETURNING a.attempt
    )
    SELECT array_agg(e.attempt) INTO accepted FROM ending e;
    IF accepted IS NOT NULL THEN
        PERFORM dataflow._publish(results, accepted);
        IF EXISTS (SELECT FROM jsonb_array_elements(results) AS r WHERE r ?| ARRAY['checks', 'nodes', 'quarantine', 'applied']) THEN
            PERFORM dataflow._record_details(results, accepted);
        END IF;
    END IF;

    IF coalesce(cardinality(accepted), 0) < jsonb_array_length(results) THEN
        -- A cancelled attempt that reports now has stopped: its run may be claimed again here.
        WITH stopping AS (
            UPDATE dataflow.attempt a SET let_go = true
            FROM jsonb_to_recordset(results) AS r (attempt bigint, token uuid)
            WHERE a.attempt = r.attempt AND a.token = r.token AND a.outcome = 'CANCELLED' AND NOT a.let_go
            RETURNING a.attempt
        )
        SELECT array_agg(s.attempt) INTO stopped FROM stopping s;
        -- The claim may have set it aside until then.
        UPDATE dataflow.work w SET not_before = NULL FROM dataflow.attempt a
            WHERE a.attempt = ANY (stopped) AND w.jobid = a.jobid AND w.dataid = a.dataid AND w.not_before IS NOT NULL;
    END IF;
    PERFORM pg_advisory_unlock(dataflow._run_lock(a.jobid, a.dataid))
    FROM unnest(accepted || stopped) AS n (attempt) JOIN dataflow.attempt a ON a.attempt = n.attempt
    JOIN dataflow.daemon d ON d.daemon = a.daemon AND d.incarnation = a.incarnation AND d.session_pid = pg_backend_pid();

    RETURN QUERY SELECT (r ->> 'attempt')::bigint, CASE WHEN (r ->> 'attempt')::bigint = ANY (accepted) THEN 'accepted' ELSE 'fenced' END
    FROM jsonb_array_elements(results) AS r;
END $$;


ALTER FUNCTION dataflow._finish(results jsonb) OWNER TO dataflow_admin;

--
-- Name: _forget_small_plans(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._forget_small_plans() RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
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


ALTER FUNCTION dataflow._forget_small_plans() OWNER TO dataflow_admin;

--
-- Name: _inputs(text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._inputs(jobid text, dataid text) RETURNS TABLE(datasetid text, dataid text)
    LANGUAGE sql STABLE
    AS $$
    SELECT i.datasetid, _inputs.dataid FROM dataflow.job_input i
    WHERE i.jobid = _inputs.jobid AND i.kind = 'identity'
    UNION ALL
    SELECT i.datasetid, mapped FROM dataflow.job_input i
    LEFT JOIN LATERAL dataflow._mapped_inputs(i.mapping, i.datasetid, _inputs.dataid) AS mapped ON true
    WHERE i.jobid = _inputs.jobid AND i.kind <> 'identity'
$$;


ALTER FUNCTION dataflow._inputs(jobid text, dataid text) OWNER TO dataflow_admin;

--
-- Name: _is_quiet(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._is_quiet() RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    gate constant bigint := hashtextextended('dataflow.changing', 0);
BEGIN
    IF pg_try_advisory_lock(gate) THEN
        PERFORM pg_advisory_unlock(gate);
        RETURN true;
    END IF;
    RETURN false;
END $$;


ALTER FUNCTION dataflow._is_quiet() OWNER TO dataflow_admin;

--
-- Name: _job_document(dataflow.name); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._job_document(jobid dataflow.name) RETURNS jsonb
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT to_jsonb(j) || jsonb_build_object(
        'inputs', coalesce(
            (SELECT jsonb_object_agg(i.datasetid, i.mapping) FROM dataflow.job_input AS i WHERE i.jobid = j.jobid), '{}'),
        'outputs', coalesce(
            (SELECT jsonb_agg(o.datasetid ORDER BY o.datasetid COLLATE "C")
             FROM dataflow.job_output AS o WHERE o.jobid = j.jobid), '[]'))
    FROM dataflow.job AS j
    WHERE j.jobid = _job_document.jobid
$$;


ALTER FUNCTION dataflow._job_document(jobid dataflow.name) OWNER TO dataflow_admin;

--
-- Name: FUNCTION _job_document(jobid dataflow.name); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow._job_document(jobid dataflow.name) IS 'A job with its inputs and outputs, as a flow would declare it';


--
-- Name: _job_input_checked(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._job_input_checked() RETURNS trigger
    LANGUAGE plpgsql
    AS $_$
#variable_conflict use_column
DECLARE
    units constant text[] := ARRAY['hour', 'day', 'week', 'month', 'year'];
    m jsonb := NEW.mapping;
    known text[];
    fault text;
BEGIN
    known := CASE m ->> 'kind'
        WHEN 'identity' THEN ARRAY['kind']
        WHEN 'offset' THEN ARRAY['kind', 'by', 'unit']
        WHEN 'fixed' THEN ARRAY['kind', 'dataid']
        WHEN 'all' THEN ARRAY['kind', 'dataid', 'dataids', 'partitioning']
        WHEN 'window' THEN CASE
            WHEN m ? 'size' THEN ARRAY['kind', 'size']
            WHEN m ? 'last' THEN ARRAY['kind', 'last', 'unit']
            ELSE ARRAY['kind', 'from', 'to', 'zone']
        END
    END;
    fault := CASE
        WHEN known IS NULL THEN 'kind must be identity, offset, window, all or fixed'
        WHEN EXISTS (SELECT FROM jsonb_object_keys(m) AS k WHERE k <> ALL (known)) THEN 'its keys may be ' || array_to_string(known, ', ')
        WHEN m ->> 'kind' = 'offset' AND NOT coalesce(
            jsonb_typeof(m -> 'by') = 'number' AND m ->> 'by' ~ '^-?[0-9]{1,6}$' AND m ->> 'unit' = ANY (units || 'number'::text), false)
            THEN 'offset needs a whole number "by" and a "unit": hour, day, week, month, year or number'
        WHEN m ->> 'kind' = 'fixed' AND m ->> 'dataid' IS NULL THEN 'fixed needs a "dataid"'
        WHEN m ->> 'kind' = 'all' AND coalesce(jsonb_typeof(m -> 'dataids') = 'array', false) = (m ? 'partitioning')
            THEN 'all needs either "dataids", a list, or "partitioning"'
        WHEN m ->> 'kind' = 'all' AND m ? 'dataids' AND (jsonb_array_length(m -> 'dataids') = 0
            OR EXISTS (SELECT FROM jsonb_array_elements(m -> 'dataids') AS d WHERE jsonb_typeof(d) <> 'string'))
            THEN '"dataids" must be texts, at least one'
        WHEN m ->> 'kind' IN ('fixed', 'all') AND EXISTS (
            SELECT FROM (
                SELECT m ->> 'dataid' AS d WHERE m ? 'dataid'
                UNION ALL
                SELECT jsonb_array_elements_text(m -> 'dataids') WHERE m ? 'dataids'
            ) AS named WHERE d IS NULL OR d ~ '[^A-Za-z0-9._:+=-]|^[.-]|^$' OR length(d) > 128)
            THEN 'a dataid is 1 to 128 letters, digits and . _ : + = -, and does not start with a dot or a dash'
        WHEN m ->> 'kind' <> 'window' THEN NULL
        WHEN m ? 'size' THEN CASE WHEN m ->> 'size' !~ '^[1-9][0-9]{0,8}$'
            THEN 'a window of numbers needs "size", a whole number of at least 1, and nothing else' END
        WHEN m ? 'last' THEN CASE WHEN m ->> 'last' !~ '^[1-9][0-9]{0,4}$'
            OR NOT coalesce(m ->> 'unit' = ANY (units || 'number'::text), false)
            THEN 'a trailing window needs "last", a whole number of at least 1, and a "unit"' END
        WHEN NOT coalesce(array_position(units, m ->> 'from') < array_position(units, m ->> 'to'), false)
            THEN 'a window needs "from" and "to", of hour, day, week, month and year, the smaller first'
        WHEN m ->> 'from' = 'week' THEN 'weeks do not fit into months or years'
        WHEN m ? 'zone' AND NOT EXISTS (SELECT FROM pg_timezone_names z WHERE z.name = m ->> 'zone')
            THEN format('there is no time zone %s', m ->> 'zone')
    END;
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION 'mapping of input % of job % cannot be used: %', NEW.datasetid, NEW.jobid, m USING
            ERRCODE = 'DF400', HINT = fault;
    END IF;
    RETURN NEW;
END $_$;


ALTER FUNCTION dataflow._job_input_checked() OWNER TO dataflow_admin;

--
-- Name: _job_output_deleted(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._job_output_deleted() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    PERFORM dataflow._own_chunks(array_agg(o.datasetid::text)) FROM old_rows o HAVING count(*) > 0;
    RETURN NULL;
END $$;


ALTER FUNCTION dataflow._job_output_deleted() OWNER TO dataflow_admin;

--
-- Name: _job_output_inserted(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._job_output_inserted() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    PERFORM dataflow._own_chunks(array_agg(n.datasetid::text)) FROM new_rows n HAVING count(*) > 0;
    RETURN NULL;
END $$;


ALTER FUNCTION dataflow._job_output_inserted() OWNER TO dataflow_admin;

--
-- Name: _job_output_updated(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._job_output_updated() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    PERFORM dataflow._own_chunks(array_agg(DISTINCT c.datasetid))
    FROM (SELECT n.datasetid::text FROM new_rows n UNION SELECT o.datasetid::text FROM old_rows o) AS c HAVING count(*) > 0;
    RETURN NULL;
END $$;


ALTER FUNCTION dataflow._job_output_updated() OWNER TO dataflow_admin;

--
-- Name: _known_dataset(text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._known_dataset(datasetid text) RETURNS void
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM dataflow.dataset d WHERE d.datasetid = _known_dataset.datasetid) THEN
        RAISE EXCEPTION 'there is no dataset %', coalesce(datasetid, 'NULL') USING ERRCODE = 'DF404',
            HINT = coalesce('the datasets are: ' || (SELECT string_agg(d.datasetid, ', ' ORDER BY d.datasetid) FROM (
                SELECT e.datasetid FROM dataflow.dataset e WHERE e.retired IS NULL ORDER BY e.datasetid LIMIT 20) AS d), 'no dataset is declared; `dataflowctl apply` a flow');
    END IF;
END $$;


ALTER FUNCTION dataflow._known_dataset(datasetid text) OWNER TO dataflow_admin;

--
-- Name: _known_job(text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._known_job(jobid text) RETURNS void
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM dataflow.job j WHERE j.jobid = _known_job.jobid) THEN
        RAISE EXCEPTION 'there is no job %', coalesce(jobid, 'NULL') USING ERRCODE = 'DF404',
            HINT = coalesce('the jobs are: ' || (SELECT string_agg(j.jobid, ', ' ORDER BY j.jobid) FROM (
                SELECT k.jobid FROM dataflow.job k WHERE k.retired IS NULL ORDER BY k.jobid LIMIT 20) AS j), 'no job is declared; `dataflowctl apply` a flow');
    END IF;
END $$;


ALTER FUNCTION dataflow._known_job(jobid text) OWNER TO dataflow_admin;

--
-- Name: _leased(text, uuid); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._leased(daemon text, incarnation uuid) RETURNS text
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
DECLARE
    daemon_environment text;
BEGIN
    SELECT d.environment INTO daemon_environment FROM dataflow.daemon d
        WHERE d.daemon = _leased.daemon AND d.incarnation = _leased.incarnation AND d.stopped IS NULL AND d.lease_until > clock_timestamp()
            AND d.session_pid = pg_backend_pid();
    IF NOT FOUND THEN
        RAISE EXCEPTION 'daemon % holds no lease in this session', _leased.daemon USING ERRCODE = 'DF409',
            HINT = 'register_daemon() first, and retake() after a reconnect';
    END IF;
    RETURN daemon_environment;
END $$;


ALTER FUNCTION dataflow._leased(daemon text, incarnation uuid) OWNER TO dataflow_admin;

--
-- Name: _long_sortkey(text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._long_sortkey(dataid text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT string_agg(
        part[1] || CASE
            WHEN part[2] = '' THEN ''
            WHEN length(digits) <= 10 AND digits <> '9999999999' THEN lpad(digits, 10, '0')
            ELSE '9999999999' || lpad(length(digits)::text, 3, '0') || digits
        END, '' ORDER BY ordinal)
    FROM regexp_matches(dataid, '([^0-9]*)([0-9]*)', 'g') WITH ORDINALITY AS found (part, ordinal),
        LATERAL (SELECT ltrim(part[2], '0') AS digits) AS significant
$$;


ALTER FUNCTION dataflow._long_sortkey(dataid text) OWNER TO dataflow_admin;

--
-- Name: _look(text, text, integer, boolean); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._look(daemon text, environment text, want integer, from_start boolean, OUT jobids text[], OUT dataids text[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_nestloop TO 'on'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_material TO 'off'
    SET enable_memoize TO 'off'
    SET enable_bitmapscan TO 'off'
    SET join_collapse_limit TO '1'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
BEGIN
    WITH taken AS MATERIALIZED (
        -- Rows that another transaction has locked are passed over; nobody waits inside the claim.
        SELECT w.jobid, w.dataid, w.sortkey FROM dataflow._shares(_look.daemon, _look.environment, want, from_start) AS s,
            LATERAL (
                SELECT q.jobid, q.dataid, q.sortkey FROM dataflow.work q
                WHERE q.jobid || '' = s.jobid AND q.not_before IS NULL AND q.sortkey >= CASE WHEN from_start THEN '' ELSE dataflow._mark(s.jobid) END
                ORDER BY q.sortkey LIMIT s.share
                FOR UPDATE SKIP LOCKED
            ) AS w
    ), marked AS MATERIALIZED (
        SELECT set_config('dataflow.mark_' || md5(t.jobid), max(t.sortkey), false) FROM taken t GROUP BY t.jobid
    )
    SELECT array_agg(t.jobid), array_agg(t.dataid) INTO jobids, dataids FROM taken t, (SELECT count(*) FROM marked) AS all_marked;
END $$;


ALTER FUNCTION dataflow._look(daemon text, environment text, want integer, from_start boolean, OUT jobids text[], OUT dataids text[]) OWNER TO dataflow_admin;

--
-- Name: _lose(bigint[]); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._lose(lost bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM s.attempt FROM dataflow.datastatus s WHERE s.attempt = ANY (_lose.lost) AND s.locktype = 'OUT'
        AND (s.datasetid, s.dataid) IN (
            SELECT o.datasetid, a.dataid FROM dataflow.attempt a JOIN dataflow.job_output o ON o.jobid = a.jobid WHERE a.attempt = ANY (_lose.lost))
        ORDER BY s.datasetid, s.dataid FOR UPDATE;
    UPDATE dataflow.attempt a SET ended = now(), outcome = 'LOST', code = 'LOST',
        error = format('daemon %s stopped answering; its lease has ended', a.daemon)
        WHERE a.attempt = ANY (_lose.lost) AND a.ended IS NULL;
    UPDATE dataflow.datastatus s SET modified = now(),
        status = CASE WHEN a.lost + 1 >= j.max_lost THEN 'FAILED' ELSE 'RESUBMIT' END,
        code = 'LOST',
        reason = CASE WHEN a.lost + 1 >= j.max_lost THEN format('lost its runner %s times', a.lost + 1) ELSE a.error END
    FROM dataflow.attempt a JOIN dataflow.job j ON j.jobid = a.jobid JOIN dataflow.job_output o ON o.jobid = a.jobid
    WHERE a.attempt = ANY (_lose.lost) AND a.outcome = 'LOST' AND s.attempt = a.attempt
        AND s.datasetid = o.datasetid AND s.dataid = a.dataid AND s.locktype = 'OUT' AND s.status = 'RUNNING';
    UPDATE dataflow.datastatus s SET status = 'ERROR', modified = now()
    FROM dataflow.attempt a, jsonb_object_keys(a.inputs) AS i
    WHERE a.attempt = ANY (_lose.lost) AND s.datasetid = split_part(i, '/', 1) AND s.dataid = split_part(i, '/', 2)
        AND s.locktype = 'IN' AND s.jobid = a.jobid AND s.run = a.dataid AND s.attempt = a.attempt AND s.status = 'RUNNING';
END $$;


ALTER FUNCTION dataflow._lose(lost bigint[]) OWNER TO dataflow_admin;

--
-- Name: _mapped_inputs(jsonb, text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._mapped_inputs(mapping jsonb, datasetid text, run text) RETURNS SETOF text
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    zone text := coalesce(mapping ->> 'zone', 'UTC');
    size bigint := (mapping ->> 'size')::bigint;
    largest constant bigint := 999999999999999999;
    number bigint;
    first timestamptz;
BEGIN
    CASE mapping ->> 'kind'
    WHEN 'offset' THEN
        RETURN QUERY SELECT shifted FROM dataflow._shifted(mapping ->> 'unit', run, (mapping ->> 'by')::int) AS shifted
            WHERE shifted IS NOT NULL;
    WHEN 'fixed' THEN
        RETURN NEXT mapping ->> 'dataid';
    WHEN 'all' THEN
        IF run = coalesce(mapping ->> 'dataid', 'all') THEN
            RETURN QUERY SELECT jsonb_array_elements_text(mapping -> 'dataids') WHERE mapping ? 'dataids'
                UNION ALL SELECT b.dataid FROM dataflow.batch b
                    WHERE b.datasetid = _mapped_inputs.datasetid AND b.partitioning = mapping ->> 'partitioning';
        END IF;
    WHEN 'window' THEN
        IF size IS NOT NULL THEN
            number := dataflow._number(run);
            IF number <= largest / size THEN
                RETURN QUERY SELECT i::text FROM generate_series(number * size, least(number * size + size - 1, largest)) AS i;
            END IF;
        ELSIF mapping ? 'last' THEN
            RETURN QUERY SELECT shifted
                FROM generate_series(1 - (mapping ->> 'last')::int, 0) AS i,
                    LATERAL dataflow._shifted(mapping ->> 'unit', run, i) AS shifted
                WHERE shifted IS NOT NULL;
        ELSE
            first := dataflow.period_start(mapping ->> 'to', run, zone);
            RETURN QUERY SELECT DISTINCT dataflow.period_id(mapping ->> 'from', moment, zone)
                FROM dataflow._moments(mapping ->> 'from', first, dataflow.period_add(mapping ->> 'to', first, 1, zone), zone) AS moment;
        END IF;
    END CASE;
END $$;


ALTER FUNCTION dataflow._mapped_inputs(mapping jsonb, datasetid text, run text) OWNER TO dataflow_admin;

--
-- Name: _mapped_runs(text, jsonb, text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._mapped_runs(jobid text, mapping jsonb, datasetid text, dataid text) RETURNS SETOF text
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    zone text := coalesce(mapping ->> 'zone', 'UTC');
    size bigint := (mapping ->> 'size')::bigint;
    driver record;
BEGIN
    CASE mapping ->> 'kind'
    WHEN 'offset' THEN
        RETURN QUERY SELECT shifted FROM dataflow._shifted(mapping ->> 'unit', dataid, -(mapping ->> 'by')::int) AS shifted
            WHERE shifted IS NOT NULL;
    WHEN 'fixed' THEN
        IF dataid = mapping ->> 'dataid' THEN
            -- Every known run: those that another input leads to.
            SELECT i.datasetid, i.mapping, i.kind INTO driver FROM dataflow.job_input i
                WHERE i.jobid = _mapped_runs.jobid AND i.kind <> 'fixed' ORDER BY i.datasetid LIMIT 1;
            RETURN QUERY SELECT DISTINCT runs.run
                FROM dataflow.datastatus s,
                    LATERAL (
                        SELECT s.dataid::text AS run WHERE driver.kind = 'identity'
                        UNION ALL
                        SELECT m FROM dataflow._mapped_runs(_mapped_runs.jobid, driver.mapping, driver.datasetid, s.dataid) AS m
                        WHERE driver.kind <> 'identity'
                    ) AS runs
                WHERE s.datasetid = driver.datasetid AND s.locktype = 'OUT';
        END IF;
    WHEN 'all' THEN
        IF coalesce(mapping -> 'dataids' ? dataid, false)
            OR EXISTS (SELECT FROM dataflow.batch b WHERE b.datasetid = _mapped_runs.datasetid
                AND b.dataid = _mapped_runs.dataid AND b.partitioning = mapping ->> 'partitioning') THEN
            RETURN NEXT coalesce(mapping ->> 'dataid', 'all');
        END IF;
    WHEN 'window' THEN
        IF size IS NOT NULL THEN
            RETURN QUERY SELECT (number / size)::text FROM dataflow._number(dataid) AS number WHERE number IS NOT NULL;
        ELSIF mapping ? 'last' THEN
            RETURN QUERY SELECT shifted
                FROM generate_series(0, (mapping ->> 'last')::int - 1) AS i,
                    LATERAL dataflow._shifted(mapping ->> 'unit', dataid, i) AS shifted
                WHERE shifted IS NOT NULL;
        ELSE
            RETURN QUERY SELECT dataflow.period_id(mapping ->> 'to', moment, zone)
                FROM dataflow.period_start(mapping ->> 'from', dataid, zone) AS moment WHERE moment IS NOT NULL;
        END IF;
    END CASE;
END $$;


ALTER FUNCTION dataflow._mapped_runs(jobid text, mapping jsonb, datasetid text, dataid text) OWNER TO dataflow_admin;

--
-- Name: _mark(text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._mark(jobid text) RETURNS text
    LANGUAGE sql STABLE
    AS $$ SELECT coalesce(current_setting('dataflow.mark_' || md5(jobid), true), '') $$;


ALTER FUNCTION dataflow._mark(jobid text) OWNER TO dataflow_admin;

--
-- Name: _may_have_written(text, timestamp with time zone); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._may_have_written(outcome text, started timestamp with time zone) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$ SELECT started IS NOT NULL OR outcome IN ('LOST', 'CANCELLED') $$;


ALTER FUNCTION dataflow._may_have_written(outcome text, started timestamp with time zone) OWNER TO dataflow_admin;

--
-- Name: _moments(text, timestamp with time zone, timestamp with time zone, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._moments(unit text, first timestamp with time zone, until timestamp with time zone, zone text) RETURNS SETOF timestamp with time zone
    LANGUAGE sql STABLE STRICT
    AS $$
    SELECT moment FROM generate_series(
        date_trunc('hour', first + interval '1 hour' - interval '1 microsecond'), until, interval '1 hour') AS moment
    WHERE unit = 'hour' AND moment < until
    UNION ALL
    SELECT local AT TIME ZONE zone FROM generate_series(
        first AT TIME ZONE zone, until AT TIME ZONE zone, ('1 ' || unit)::interval) AS local
    WHERE unit <> 'hour' AND local < until AT TIME ZONE zone
$$;


ALTER FUNCTION dataflow._moments(unit text, first timestamp with time zone, until timestamp with time zone, zone text) OWNER TO dataflow_admin;

--
-- Name: _next_work(text, text, integer); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._next_work(daemon text, environment text, want integer, OUT jobids text[], OUT dataids text[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    share_of_looks constant integer := 20;
    cheap constant interval := '10 milliseconds';
    bearable constant interval := '250 milliseconds';
    last_cost interval := coalesce(nullif(current_setting('dataflow.look_cost', true), ''), '0')::interval;
    next_look timestamptz := coalesce(nullif(current_setting('dataflow.next_look', true), ''), '-infinity')::timestamptz;
    began timestamptz := clock_timestamp();
BEGIN
    IF last_cost > cheap AND began < next_look THEN
        SELECT n.jobids, n.dataids INTO jobids, dataids FROM dataflow._look(_next_work.daemon, _next_work.environment, want, false) AS n;
        -- Nothing found is not bearable at any cost: nobody would look again before something else happens.
        IF cardinality(jobids) >= want OR (cardinality(jobids) > 0 AND last_cost > bearable) THEN
            RETURN;
        END IF;
    END IF;
    SELECT n.jobids, n.dataids INTO jobids, dataids FROM dataflow._look(_next_work.daemon, _next_work.environment, want, true) AS n;
    PERFORM set_config('dataflow.look_cost', (clock_timestamp() - began)::text, false),
        set_config('dataflow.next_look', (clock_timestamp() + share_of_looks * (clock_timestamp() - began))::text, false);
END $$;


ALTER FUNCTION dataflow._next_work(daemon text, environment text, want integer, OUT jobids text[], OUT dataids text[]) OWNER TO dataflow_admin;

--
-- Name: _number(text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._number(dataid text) RETURNS bigint
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $_$ SELECT CASE WHEN dataid ~ '^(0|[1-9][0-9]{0,17})$' THEN dataid::bigint END $_$;


ALTER FUNCTION dataflow._number(dataid text) OWNER TO dataflow_admin;

--
-- Name: _obstacles(text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._obstacles(jobid text) RETURNS TABLE(number integer, question text, answer boolean, code text, detail text, remedy text)
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT 6, 'Is it free to start?', NOT coalesce(g.paused OR l.paused, g.paused), CASE WHEN g.paused OR l.paused THEN 'PAUSED' END,
        CASE WHEN g.paused THEN 'everything is paused' WHEN l.paused THEN format('job %s is paused', _obstacles.jobid) ELSE 'neither the job nor everything is paused' END,
        CASE WHEN g.paused THEN 'dataflowctl resume' WHEN l.paused THEN format('dataflowctl resume %s', _obstacles.jobid) END
    FROM dataflow.limits g LEFT JOIN dataflow.limits l ON l.scope = 'job:' || _obstacles.jobid WHERE g.scope = 'global'
    UNION ALL
    SELECT 7, 'Is there a free place?', NOT coalesce(full_scope.is_full, false), CASE WHEN full_scope.is_full THEN 'AT_LIMIT' END,
        CASE WHEN full_scope.is_full THEN format('%s: %s of %s are running', full_scope.scope, full_scope.running, full_scope.concurrency)
            ELSE concat_ws(', ', format('global: %s of %s are running', g.running, g.concurrency), CASE WHEN l.scope IS NOT NULL THEN format('job: %s of %s', l.running, l.concurrency) END) END,
        CASE WHEN full_scope.is_full THEN 'wait, or dataflowctl concurrency ' || full_scope.concurrency + 1 || CASE full_scope.scope WHEN 'global' THEN '' ELSE ' --job ' || _obstacles.jobid END END
    FROM dataflow.limits g
    LEFT JOIN dataflow.limits l ON l.scope = 'job:' || _obstacles.jobid AND l.concurrency IS NOT NULL
    LEFT JOIN LATERAL (
        SELECT true AS is_full, f.scope, f.running, f.concurrency FROM (VALUES (g.scope, g.running, g.concurrency), (l.scope, l.running, l.concurrency)) AS f (scope, running, concurrency)
        WHERE f.running >= f.concurrency ORDER BY f.scope <> 'global' LIMIT 1
    ) AS full_scope ON true
    WHERE g.scope = 'global'
    UNION ALL
    SELECT 8, 'Is a daemon there to run it?', d.fit > 0, CASE WHEN d.fit = 0 THEN CASE WHEN d.elsewhere > 0 THEN 'WRONG_ENVIRONMENT' WHEN d.alive > 0 THEN 'PAUSED' ELSE 'NO_DAEMON' END END,
        CASE WHEN d.fit > 0 THEN d.names WHEN d.elsewhere > 0 THEN format('no daemon of environment %s is alive', e.environment)
            WHEN d.alive > 0 THEN 'every daemon is paused, or its limit is 0' ELSE 'no daemon is alive' END,
        CASE WHEN d.fit > 0 THEN NULL WHEN d.elsewhere > 0 THEN format('start dataflowd on a host of environment %s', e.environment)
            WHEN d.alive > 0 THEN 'dataflowctl resume --daemon NAME' ELSE 'start dataflowd' END
    FROM (
        SELECT max(s.environment) AS environment FROM dataflow.job_output o JOIN dataflow.dataset s ON s.datasetid = o.datasetid WHERE o.jobid = _obstacles.jobid
    ) AS e
    CROSS JOIN LATERAL (
        SELECT count(*) AS alive, count(*) FILTER (WHERE x.environment <> e.environment) AS elsewhere,
            count(*) FILTER (WHERE x.environment = coalesce(e.environment, x.environment) AND NOT x.paused AND coalesce(x.concurrency, 1) > 0) AS fit,
            string_agg(x.daemon || ' on ' || x.hostname, ', ' ORDER BY x.daemon)
                FILTER (WHERE x.environment = coalesce(e.environment, x.environment) AND NOT x.paused AND coalesce(x.concurrency, 1) > 0) AS names
        FROM dataflow.daemons x WHERE x.state = 'ALIVE'
    ) AS d
$$;


ALTER FUNCTION dataflow._obstacles(jobid text) OWNER TO dataflow_admin;

--
-- Name: _order(text, text, jsonb); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._order(jobid text, dataid text, inputs jsonb) RETURNS jsonb
    LANGUAGE plpgsql STABLE
    AS $$
#variable_conflict use_column
DECLARE
    sources jsonb;
    outputs jsonb;
BEGIN
    SELECT coalesce(jsonb_object_agg(c.datasetid, jsonb_build_object('dataset', c.dataset, 'chunks', c.chunks)), '{}') INTO sources FROM (
        SELECT d.datasetid, dataflow._described(d) AS dataset, coalesce(jsonb_agg(jsonb_build_object(
            'dataid', k.dataid, 'version', k.version, 'location', coalesce(m.location, replace(d.location, '{dataid}', k.dataid)),
            'files', m.files, 'rows', m.rows, 'validated', coalesce(s.validated, true),
            'batch', CASE WHEN b.bounds IS NOT NULL THEN jsonb_build_object('columns', to_jsonb(p.key_columns), 'bounds', b.bounds) END) ORDER BY s.sortkey, k.dataid)
            FILTER (WHERE k.dataid IS NOT NULL), '[]') AS chunks
        FROM dataflow.job_input i
        JOIN dataflow.dataset d ON d.datasetid = i.datasetid
        LEFT JOIN LATERAL (
            SELECT split_part(g.key, '/', 2) AS dataid, g.value::integer AS version
            FROM jsonb_each_text(_order.inputs) AS g WHERE split_part(g.key, '/', 1) = i.datasetid
        ) AS k ON true
        LEFT JOIN dataflow.datastatus s ON s.datasetid = d.datasetid AND s.dataid = k.dataid AND s.locktype = 'OUT'
        LEFT JOIN dataflow.manifest m ON m.datasetid = d.datasetid AND m.dataid = k.dataid AND m.version = k.version
        LEFT JOIN dataflow.batch b ON b.datasetid = d.datasetid AND b.dataid = k.dataid
        LEFT JOIN dataflow.partitioning p ON p.datasetid = b.datasetid AND p.partitioning = b.partitioning
        WHERE i.jobid = _order.jobid
        GROUP BY d.datasetid
    ) AS c;
    SELECT coalesce(jsonb_object_agg(d.datasetid, jsonb_build_object('dataset', dataflow._described(d), 'location', dataflow._written_to(d))), '{}')
    INTO outputs
    FROM dataflow.job_output o JOIN dataflow.dataset d ON d.datasetid = o.datasetid WHERE o.jobid = _order.jobid;
    RETURN jsonb_build_object('inputs', sources, 'outputs', outputs, 'resolved', coalesce((
        SELECT jsonb_agg(jsonb_build_object('mark', q.details ->> 'mark', 'repaired', q.resolution -> 'repaired') ORDER BY q.itemid)
        FROM dataflow.quarantine q WHERE q.jobid = _order.jobid AND q.dataid = _order.dataid AND q.is_resolved AND q.details ? 'mark'), '[]'));
END $$;


ALTER FUNCTION dataflow._order(jobid text, dataid text, inputs jsonb) OWNER TO dataflow_admin;

--
-- Name: _ordered(text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._ordered(ordering text, dataid text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT CASE ordering WHEN 'text' THEN dataid ELSE dataflow.sortkey(dataid) END COLLATE "C" $$;


ALTER FUNCTION dataflow._ordered(ordering text, dataid text) OWNER TO dataflow_admin;

--
-- Name: _own_chunks(text[]); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._own_chunks(datasetids text[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    UPDATE dataflow.datastatus s SET modified = now(), status = CASE WHEN o.jobid IS NULL THEN 'FAILED' ELSE 'RESUBMIT' END,
        code = CASE WHEN o.jobid IS NULL THEN 'RETIRED' END, reason = 'its producer changed while it was being written'
    FROM unnest(datasetids) AS d (datasetid) LEFT JOIN dataflow.job_output o ON o.datasetid = d.datasetid
    WHERE s.datasetid = d.datasetid AND s.locktype = 'OUT' AND s.status = 'RUNNING' AND s.jobid <> coalesce(o.jobid, '');

    WITH strangers AS MATERIALIZED (
        SELECT s.datasetid, s.dataid, s.status, s.jobid AS was, coalesce(o.jobid, '') AS now
        FROM unnest(datasetids) AS d (datasetid)
        JOIN dataflow.datastatus s ON s.datasetid = d.datasetid AND s.locktype = 'OUT'
        LEFT JOIN dataflow.job_output o ON o.datasetid = d.datasetid
        WHERE s.jobid <> coalesce(o.jobid, '')
    ), counted AS (
        INSERT INTO dataflow.counter (datasetid, jobid, locktype, status, chunks)
        SELECT x.datasetid, owner.jobid, 'OUT', x.status, sum(owner.difference)
        FROM strangers x, LATERAL (VALUES (x.was, -1), (x.now, 1)) AS owner (jobid, difference)
        GROUP BY x.datasetid, owner.jobid, x.status
    )
    UPDATE dataflow.datastatus s SET jobid = x.now FROM strangers x
    WHERE s.datasetid = x.datasetid AND s.dataid = x.dataid AND s.locktype = 'OUT';
END $$;


ALTER FUNCTION dataflow._own_chunks(datasetids text[]) OWNER TO dataflow_admin;

--
-- Name: _publish(jsonb, bigint[]); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._publish(results jsonb, accepted bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_nestloop TO 'on'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_material TO 'off'
    SET enable_memoize TO 'off'
    SET enable_bitmapscan TO 'off'
    SET join_collapse_limit TO '1'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO dataflow.manifest (datasetid, dataid, version, attempt, location, files, bytes, rows, columns, fingerprint)
    SELECT s.datasetid, s.dataid, s.version + 1, a.attempt, m.location, coalesce(m.files, '[]'), m.bytes, m.rows, m.columns, m.fingerprint
    FROM jsonb_to_recordset(results) AS r (attempt bigint, outcome text, outputs jsonb)
    JOIN dataflow.attempt a ON a.attempt = r.attempt
    JOIN dataflow.job_output o ON o.jobid = a.jobid
    CROSS JOIN LATERAL (
        SELECT c.datasetid, c.dataid, c.version FROM dataflow.datastatus c
        WHERE c.datasetid = o.datasetid AND c.dataid = a.dataid AND c.locktype = 'OUT' AND c.attempt = a.attempt OFFSET 0
    ) AS s
    CROSS JOIN LATERAL jsonb_to_record(coalesce(r.outputs -> o.datasetid, '{}')) AS m (
        location text, files jsonb, bytes bigint, rows bigint, columns text, fingerprint text)
    WHERE r.outcome = 'DONE' AND r.attempt = ANY (accepted);

    UPDATE dataflow.datastatus s SET
        modified = now(),
        status = CASE
            WHEN s.locktype = 'OUT' THEN CASE a.outcome WHEN 'DONE' THEN 'READY' WHEN 'FAILED' THEN 'FAILED' ELSE 'RESUBMIT' END
            ELSE CASE a.outcome WHEN 'DONE' THEN 'DONE' ELSE 'ERROR' END
        END,
        version = CASE WHEN s.locktype = 'OUT' AND a.outcome = 'DONE' THEN s.version + 1 ELSE s.version END,
        manifest = CASE WHEN s.locktype = 'OUT' AND a.outcome = 'DONE' THEN s.version + 1 ELSE s.manifest END,
        external = s.external AND a.outcome <> 'DONE',
        validated = s.validated OR a.outcome = 'DONE',
        code = a.code,
        reason = left(a.error, 500)
    FROM (
        SELECT x.attempt, o.datasetid, x.dataid, 'OUT' AS locktype, x.jobid, x.dataid AS run, x.outcome, x.code, x.error
        FROM unnest(accepted) AS n (attempt) JOIN dataflow.attempt x ON x.attempt = n.attempt JOIN dataflow.job_output o ON o.jobid = x.jobid
        UNION ALL
        SELECT x.attempt, split_part(i, '/', 1), split_part(i, '/', 2), 'IN', x.jobid, x.dataid, x.outcome, NULL, NULL
        FROM unnest(accepted) AS n (attempt) JOIN dataflow.attempt x ON x.attempt = n.attempt CROSS JOIN jsonb_object_keys(x.inputs) AS i
    ) AS a
    WHERE s.datasetid = a.datasetid AND s.dataid = a.dataid AND s.locktype = a.locktype AND s.jobid = a.jobid AND s.run = a.run
        AND s.attempt = a.attempt;
END $$;


ALTER FUNCTION dataflow._publish(results jsonb, accepted bigint[]) OWNER TO dataflow_admin;

--
-- Name: _queue_position(text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._queue_position(jobid text, dataid text) RETURNS bigint
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT q.place FROM (
        SELECT w.dataid, row_number() OVER (ORDER BY w.sortkey) AS place FROM dataflow.work w
        WHERE w.jobid || '' = _queue_position.jobid AND w.not_before IS NULL ORDER BY w.sortkey LIMIT 10000
    ) AS q WHERE q.dataid = _queue_position.dataid
$$;


ALTER FUNCTION dataflow._queue_position(jobid text, dataid text) OWNER TO dataflow_admin;

--
-- Name: _record_details(jsonb, bigint[]); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._record_details(results jsonb, accepted bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO dataflow.check_result (attempt, datasetid, name, severity, passed, observed, expected)
    SELECT r.attempt, c.dataset, c.name, coalesce(c.severity, 'error'), c.passed, c.observed, c.expected
    FROM jsonb_to_recordset(results) AS r (attempt bigint, checks jsonb),
        jsonb_to_recordset(r.checks) AS c (dataset text, name text, severity text, passed boolean, observed text, expected text)
    WHERE r.attempt = ANY (accepted)
    ON CONFLICT DO NOTHING;

    INSERT INTO dataflow.node_stat (attempt, node, ordinal, items, successes, failures, seconds)
    SELECT r.attempt, n.value ->> 'node', n.ordinality, coalesce((n.value ->> 'items')::bigint, 0), coalesce((n.value ->> 'successes')::bigint, 0),
        coalesce((n.value ->> 'failures')::bigint, 0), coalesce((n.value ->> 'seconds')::double precision, 0)
    FROM jsonb_to_recordset(results) AS r (attempt bigint, nodes jsonb), jsonb_array_elements(r.nodes) WITH ORDINALITY AS n
    WHERE r.attempt = ANY (accepted)
    ON CONFLICT DO NOTHING;

    -- A rerun replaces the open records of its run and keeps what a person has resolved.
    DELETE FROM dataflow.quarantine q USING dataflow.attempt a
    WHERE a.attempt = ANY (accepted) AND a.outcome = 'DONE' AND q.jobid = a.jobid AND q.dataid = a.dataid AND NOT q.is_resolved;
    INSERT INTO dataflow.quarantine (jobid, dataid, itemid, attempt, code, reason, details)
    SELECT a.jobid, a.dataid, q.item, a.attempt, coalesce(q.code, 'BAD_RECORD'), coalesce(q.reason, ''), coalesce(q.details, '{}')
    FROM jsonb_to_recordset(results) AS r (attempt bigint, quarantine jsonb)
    JOIN dataflow.attempt a ON a.attempt = r.attempt AND a.outcome = 'DONE',
        jsonb_to_recordset(r.quarantine) AS q (item text, code text, reason text, details jsonb)
    WHERE r.attempt = ANY (accepted)
    -- What was repaired and is bad again, or has come again as another record, waits for a person once more.
    ON CONFLICT (jobid, dataid, itemid) DO UPDATE SET attempt = excluded.attempt, code = excluded.code, reason = excluded.reason,
        details = excluded.details, created = excluded.created, is_resolved = false, resolved_by = NULL, resolved = NULL, resolution = NULL, applied = NULL;

    -- The order is read after the claim: what was resolved before has been in it.
    UPDATE dataflow.quarantine q SET applied = a.attempt
    FROM jsonb_to_recordset(results) AS r (attempt bigint, applied boolean)
    JOIN dataflow.attempt a ON a.attempt = r.attempt AND a.outcome = 'DONE'
    WHERE r.applied AND r.attempt = ANY (accepted) AND q.jobid = a.jobid AND q.dataid = a.dataid AND q.is_resolved AND q.resolved <= a.claimed;
END $$;


ALTER FUNCTION dataflow._record_details(results jsonb, accepted bigint[]) OWNER TO dataflow_admin;

--
-- Name: _refresh(text[], text[], boolean); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._refresh(jobids text[], dataids text[], alone boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_nestloop TO 'on'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_material TO 'off'
    SET enable_memoize TO 'off'
    SET enable_bitmapscan TO 'off'
    SET join_collapse_limit TO '1'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
DECLARE
    strict_jobs text[];
    queued integer;
BEGIN
    IF coalesce(cardinality(jobids), 0) = 0 THEN
        RETURN;
    END IF;
    PERFORM dataflow._forget_small_plans();
    SELECT array_agg(j.jobid) INTO strict_jobs FROM dataflow.job j
        WHERE j.strict_order AND j.jobid IN (SELECT unnest(jobids));
    IF strict_jobs IS NOT NULL THEN
        PERFORM dataflow._track_open_runs(strict_jobs, jobids, dataids);
        -- Whoever is first now may be ready because of what changed; whoever was first, and is queued, may no longer be.
        SELECT jobids || array_agg(x.jobid), dataids || array_agg(x.dataid) INTO jobids, dataids
        FROM unnest(strict_jobs) AS s (jobid),
            LATERAL (
                (SELECT o.jobid, o.dataid FROM dataflow.open_run o WHERE o.jobid = s.jobid ORDER BY o.sortkey, o.dataid LIMIT 1)
                UNION
                SELECT w.jobid, w.dataid FROM dataflow.work w WHERE w.jobid = s.jobid
            ) AS x;
        IF NOT alone THEN
            INSERT INTO dataflow.recheck (jobid) SELECT unnest(strict_jobs);
        END IF;
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
        -- A row that somebody else is removing or claiming needs no help.
        SELECT w.jobid, w.dataid FROM judged j JOIN dataflow.work w ON w.jobid = j.jobid AND w.dataid = j.dataid
        WHERE j.code IS NOT NULL
        FOR UPDATE OF w SKIP LOCKED
    ), deleted AS (
        DELETE FROM dataflow.work w USING gone g WHERE w.jobid = g.jobid AND w.dataid = g.dataid
    ), again AS (
        INSERT INTO dataflow.recheck (jobid, dataid)
        SELECT j.jobid, j.dataid FROM judged j WHERE j.code IS NOT NULL AND NOT alone
    ), told AS (
        -- A published, running or failed chunk says why by its own transition; here the story of waiting is told.
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
    SELECT count(*) INTO queued FROM inserted;
    IF queued > 0 OR NOT alone THEN
        PERFORM pg_notify('dataflow', 'work');
    END IF;
END $$;


ALTER FUNCTION dataflow._refresh(jobids text[], dataids text[], alone boolean) OWNER TO dataflow_admin;

--
-- Name: _reset_runs(dataflow.status_change[]); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._reset_runs(changes dataflow.status_change[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
BEGIN
    UPDATE dataflow.attempt a SET ended = now(), outcome = 'CANCELLED', code = 'CANCELLED',
        error = format('%s/%s was set to %s by %s', c.datasetid, c.dataid, coalesce(c.now, 'nothing'), session_user)
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

    -- An attempt that a person failed has not told its other rows; one that finished or was cancelled has.
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
END $$;


ALTER FUNCTION dataflow._reset_runs(changes dataflow.status_change[]) OWNER TO dataflow_admin;

--
-- Name: _run_lock(text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._run_lock(jobid text, dataid text) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT hashtextextended(jobid || '/' || dataid, 20250101) $$;


ALTER FUNCTION dataflow._run_lock(jobid text, dataid text) OWNER TO dataflow_admin;

--
-- Name: _shares(text, text, integer, boolean); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._shares(daemon text, environment text, want integer, from_start boolean, OUT jobid text, OUT share integer) RETURNS SETOF record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_nestloop TO 'on'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_material TO 'off'
    SET enable_memoize TO 'off'
    SET enable_bitmapscan TO 'off'
    SET join_collapse_limit TO '1'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
DECLARE
    -- Claims are serialised, so every attempt below the oldest that runs has ended for good.
    oldest bigint := coalesce(nullif(current_setting('dataflow.oldest_running', true), ''), '0')::bigint;
    served text[] := (SELECT d.jobs FROM dataflow.daemon d WHERE d.daemon = _shares.daemon);
    free integer;
    running jsonb;
BEGIN
    SELECT
        least(want, g.concurrency - coalesce(sum(live.attempts), 0), d.concurrency - coalesce(sum(live.attempts) FILTER (WHERE live.daemon = _shares.daemon), 0)),
        coalesce(jsonb_object_agg(live.jobid, live.of_job) FILTER (WHERE live.jobid IS NOT NULL), '{}'),
        coalesce(min(live.oldest), (SELECT max(a.attempt) FROM dataflow.attempt a), 0)
    INTO free, running, oldest
    FROM dataflow.control g
    LEFT JOIN dataflow.control d ON d.scope = 'daemon:' || _shares.daemon
    LEFT JOIN LATERAL (
        SELECT a.jobid, a.daemon, count(*) AS attempts, sum(count(*)) OVER (PARTITION BY a.jobid) AS of_job, min(a.attempt) AS oldest
        FROM dataflow.attempt a WHERE a.ended IS NULL AND a.attempt >= oldest GROUP BY a.jobid, a.daemon
    ) AS live ON true
    WHERE g.scope = 'global' AND NOT g.paused AND NOT coalesce(d.paused, false)
    GROUP BY g.concurrency, d.concurrency;
    IF free IS NOT NULL THEN
        PERFORM set_config('dataflow.oldest_running', oldest::text, false);
    END IF;
    IF coalesce(free, 0) <= 0 THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH open AS MATERIALIZED (
        SELECT j.jobid, j.priority, coalesce((running ->> j.jobid)::int, 0) AS running,
            least(free, coalesce(c.concurrency, j.max_running) - coalesce((running ->> j.jobid)::int, 0)) AS places
        FROM dataflow.job j
        LEFT JOIN dataflow.control c ON c.scope = 'job:' || j.jobid
        WHERE j.retired IS NULL AND NOT coalesce(c.paused, false) AND (served IS NULL OR j.jobid = ANY (served))
            AND NOT EXISTS (
                SELECT FROM dataflow.job_output o JOIN dataflow.dataset d ON d.datasetid = o.datasetid
                WHERE o.jobid = j.jobid AND d.environment <> _shares.environment)
    ), waiting AS (
        -- A job at its limit is not looked at; of the others only as many rows as they could get.
        SELECT o.jobid, o.priority, o.running + w.position AS turn
        FROM open o, LATERAL (
            SELECT row_number() OVER (ORDER BY q.sortkey) AS position
            FROM dataflow.work q
            WHERE q.jobid || '' = o.jobid AND q.not_before IS NULL AND q.sortkey >= CASE WHEN from_start THEN '' ELSE dataflow._mark(o.jobid) END
            ORDER BY q.sortkey LIMIT o.places
        ) AS w
        WHERE o.places > 0
    ), chosen AS (
        -- Fair: of equal priority, who has the fewest running comes first, whatever waits behind it.
        SELECT w.jobid FROM waiting w ORDER BY w.priority DESC, w.turn, w.jobid LIMIT free
    )
    SELECT c.jobid::text, count(*)::integer FROM chosen c GROUP BY c.jobid;
END $$;


ALTER FUNCTION dataflow._shares(daemon text, environment text, want integer, from_start boolean, OUT jobid text, OUT share integer) OWNER TO dataflow_admin;

--
-- Name: _shifted(text, text, integer); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._shifted(unit text, dataid text, units integer) RETURNS text
    LANGUAGE sql STABLE STRICT PARALLEL SAFE
    AS $$
    SELECT CASE
        WHEN unit = 'number' THEN
            (SELECT dataflow._number((number + units)::text)::text FROM dataflow._number(dataid) AS number)
        ELSE
            -- Before the year 1 and after 9999 there are no dataids, only texts that look like one or lead nowhere.
            (SELECT shifted FROM dataflow.period_add(unit, dataflow.period_start(unit, dataid, 'UTC'), units, 'UTC') AS moment,
                dataflow.period_id(unit, moment, 'UTC') AS shifted
            WHERE dataflow.period_start(unit, shifted, 'UTC') = moment)
    END
$$;


ALTER FUNCTION dataflow._shifted(unit text, dataid text, units integer) OWNER TO dataflow_admin;

--
-- Name: _take(text, uuid, text[], text[], boolean); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._take(daemon text, incarnation uuid, jobids text[], dataids text[], forced boolean) RETURNS TABLE(attempt bigint, token uuid, jobid text, dataid text, number integer, tag text, inputs jsonb, params jsonb, timeout_seconds double precision)
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
DECLARE
    step_aside constant interval := '5 seconds';
BEGIN
    RETURN QUERY
    WITH judged AS MATERIALIZED (
        SELECT e.*, CASE WHEN NOT _take.forced THEN coalesce(e.not_ready, e.wrong_data, e.invalid_path, e.not_validated, e.locked) END AS reason
        FROM dataflow._evaluate(jobids, dataids) AS e
    ), turned_away AS (
        DELETE FROM dataflow.work w USING judged j
        WHERE j.reason IS NOT NULL AND w.jobid = j.jobid AND w.dataid = j.dataid
    ), told AS (
        INSERT INTO dataflow.event (kind, jobid, dataid, code, reason)
        SELECT 'refused', j.jobid, j.dataid, CASE
            WHEN j.not_ready IS NOT NULL THEN 'DATA_NOT_READY' WHEN j.wrong_data IS NOT NULL THEN 'WRONG_DATA'
            WHEN j.invalid_path IS NOT NULL THEN 'INVALID_PATH' WHEN j.not_validated IS NOT NULL THEN 'NOT_VALIDATED' ELSE 'LOCKED' END, j.reason
        FROM judged j WHERE j.reason IS NOT NULL
    ), guarded AS MATERIALIZED (
        -- A session's own lock does not keep the session out, and that of a daemon which lost its connection is gone; that the
        -- runner has ended, the daemon says with let_go. It stops it when its lease ends, at the latest.
        SELECT j.*, CASE WHEN last.outcome = 'CANCELLED' AND NOT last.let_go AND EXISTS (
                SELECT FROM dataflow.daemon d WHERE d.daemon = last.daemon AND d.incarnation = last.incarnation
                    AND (d.incarnation = _take.incarnation OR (d.stopped IS NULL AND d.lease_until > clock_timestamp()))) THEN false
            ELSE pg_try_advisory_lock(dataflow._run_lock(j.jobid, j.dataid)) END AS mine,
            last.number, last.outcome, last.code, last.tries, last.lost
        FROM judged j
        -- not the one that the chunk names: a chunk may be deleted, its attempts stay
        LEFT JOIN LATERAL (
            SELECT a.number, a.outcome, a.code, a.tries, a.lost, a.let_go, a.daemon, a.incarnation FROM dataflow.attempt a
            WHERE a.jobid = j.jobid AND a.dataid = j.dataid ORDER BY a.number DESC LIMIT 1
        ) AS last ON true
        WHERE j.reason IS NULL
    ), aside AS (
        UPDATE dataflow.work w SET not_before = now() + step_aside FROM guarded g
        WHERE NOT g.mine AND w.jobid = g.jobid AND w.dataid = g.dataid
    ), taken AS (
        DELETE FROM dataflow.work w USING guarded g WHERE g.mine AND w.jobid = g.jobid AND w.dataid = g.dataid
        RETURNING w.jobid, w.dataid
    ), attempts AS (
        INSERT INTO dataflow.attempt AS a (jobid, dataid, number, tries, lost, daemon, incarnation, tag, forced, inputs, answers)
        SELECT g.jobid, g.dataid, coalesce(g.number, 0) + 1,
            -- what asked for a later time has not spent a try
            CASE WHEN g.outcome = 'FAILED' AND g.out_status = 'FAILED' THEN g.tries + (g.code <> 'RETRY_LATER')::int
                WHEN g.outcome IN ('LOST', 'RETURNED') THEN g.tries ELSE 1 END,
            -- who lost too many runners has failed, and is here because he was resubmitted
            CASE WHEN g.outcome = 'LOST' AND g.lost + 1 < k.max_lost THEN g.lost + 1 WHEN g.outcome = 'RETURNED' THEN g.lost ELSE 0 END,
            _take.daemon, _take.incarnation, 'dataflow-' || gen_random_uuid(), _take.forced, coalesce(g.inputs, '{}'),
            jsonb_build_object('ready', g.not_ready IS NULL, 'right_data', g.wrong_data IS NULL, 'right_place', g.invalid_path IS NULL,
                'validated', g.not_validated IS NULL, 'safe', g.locked IS NULL)
        FROM guarded g JOIN dataflow.job k ON k.jobid = g.jobid WHERE g.mine
        RETURNING a.attempt, a.token, a.jobid, a.dataid, a.number, a.tag, a.inputs
    ), locks AS (
        INSERT INTO dataflow.datastatus AS s (datasetid, dataid, locktype, jobid, run, status, attempt, version, sortkey)
        SELECT o.datasetid, a.dataid, 'OUT', a.jobid, a.dataid, 'RUNNING', a.attempt, 0, dataflow._ordered(d.ordering, a.dataid)
        FROM attempts a JOIN dataflow.job_output o ON o.jobid = a.jobid JOIN dataflow.dataset d ON d.datasetid = o.datasetid
        UNION ALL
        SELECT split_part(i.key, '/', 1), split_part(i.key, '/', 2), 'IN', a.jobid, a.dataid, 'RUNNING', a.attempt, i.value::int, ''
        FROM attempts a, jsonb_each_text(a.inputs) AS i
        ON CONFLICT (datasetid, dataid, locktype, jobid, run) DO UPDATE SET
            status = 'RUNNING', attempt = excluded.attempt, modified = now(), code = NULL, reason = NULL, held_from = NULL,
            version = CASE s.locktype WHEN 'IN' THEN excluded.version ELSE s.version END
    )
    SELECT a.attempt, a.token, a.jobid::text, a.dataid::text, a.number, a.tag, a.inputs, j.params, extract(epoch FROM j.timeout)::double precision
    FROM attempts a JOIN dataflow.job j ON j.jobid = a.jobid;
END $$;


ALTER FUNCTION dataflow._take(daemon text, incarnation uuid, jobids text[], dataids text[], forced boolean) OWNER TO dataflow_admin;

--
-- Name: _texts(jsonb); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._texts(value jsonb) RETURNS SETOF text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT jsonb_array_elements_text(CASE jsonb_typeof(value) WHEN 'array' THEN value ELSE jsonb_build_array(value) END) WHERE value IS NOT NULL $$;


ALTER FUNCTION dataflow._texts(value jsonb) OWNER TO dataflow_admin;

--
-- Name: _track_open_runs(text[], text[], text[]); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._track_open_runs(strict_jobs text[], jobids text[], dataids text[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
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


ALTER FUNCTION dataflow._track_open_runs(strict_jobs text[], jobids text[], dataids text[]) OWNER TO dataflow_admin;

--
-- Name: _work_deleted(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._work_deleted() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO dataflow.counter (datasetid, jobid, locktype, status, chunks)
    SELECT '', o.jobid, 'WORK', 'QUEUED', -count(*) FROM old_rows o GROUP BY o.jobid;
    RETURN NULL;
END $$;


ALTER FUNCTION dataflow._work_deleted() OWNER TO dataflow_admin;

--
-- Name: _work_inserted(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._work_inserted() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO dataflow.counter (datasetid, jobid, locktype, status, chunks)
    SELECT '', n.jobid, 'WORK', 'QUEUED', count(*) FROM new_rows n GROUP BY n.jobid;
    RETURN NULL;
END $$;


ALTER FUNCTION dataflow._work_inserted() OWNER TO dataflow_admin;

--
-- Name: _write_flow(jsonb, boolean); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._write_flow(declared jsonb, prune boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    flow_name text := declared ->> 'name';
    declared_jobs text[] := ARRAY(SELECT item ->> 'jobid' FROM jsonb_array_elements(declared -> 'jobs') AS item);
    declared_datasets text[] := ARRAY(SELECT item ->> 'datasetid' FROM jsonb_array_elements(declared -> 'datasets') AS item);
    retired_jobs text[] := '{}';
BEGIN
    INSERT INTO dataflow.dataset AS d (
        datasetid, flow, description, format, location, hostname, port, database, schemaname, tablename, username,
        columns, options, checks, ordering, publish, environment,
        calendar, calendar_zone, calendar_start, calendar_ready, calendar_next)
    SELECT
        r.datasetid, flow_name, r.description, r.format, r.location, r.hostname, r.port, r.database, r.schemaname,
        r.tablename, r.username, r.columns, r.options, r.checks, r.ordering, r.publish, r.environment,
        r.calendar, r.calendar_zone, r.calendar_start, r.calendar_ready, r.calendar_start
    FROM jsonb_populate_recordset(NULL::dataflow.dataset, declared -> 'datasets') AS r
    ON CONFLICT (datasetid) DO UPDATE SET
        (flow, description, format, location, hostname, port, database, schemaname, tablename, username, columns,
         options, checks, ordering, publish, environment, calendar, calendar_zone, calendar_start, calendar_ready,
         calendar_next, modified, retired) = ROW (
            excluded.flow, excluded.description, excluded.format, excluded.location, excluded.hostname, excluded.port,
            excluded.database, excluded.schemaname, excluded.tablename, excluded.username, excluded.columns,
            excluded.options, excluded.checks, excluded.ordering, excluded.publish, excluded.environment,
            excluded.calendar, excluded.calendar_zone, excluded.calendar_start, excluded.calendar_ready,
            -- Periods that were registered stay so, unless the calendar itself is another one now.
            CASE WHEN (d.calendar, d.calendar_zone, d.calendar_start)
                IS NOT DISTINCT FROM (excluded.calendar, excluded.calendar_zone, excluded.calendar_start)
                THEN d.calendar_next ELSE excluded.calendar_start END,
            now(), NULL)
    WHERE d.retired IS NOT NULL OR (
            d.flow, d.description, d.format, d.location, d.hostname, d.port, d.database, d.schemaname, d.tablename,
            d.username, d.columns, d.options, d.checks, d.ordering, d.publish, d.environment,
            d.calendar, d.calendar_zone, d.calendar_start, d.calendar_ready)
        IS DISTINCT FROM (
            excluded.flow, excluded.description, excluded.format, excluded.location, excluded.hostname, excluded.port,
            excluded.database, excluded.schemaname, excluded.tablename, excluded.username, excluded.columns,
            excluded.options, excluded.checks, excluded.ordering, excluded.publish, excluded.environment,
            excluded.calendar, excluded.calendar_zone, excluded.calendar_start, excluded.calendar_ready);

    INSERT INTO dataflow.job AS j (
        jobid, flow, description, kind, params, max_running, max_attempts, max_lost, retry_delay, timeout, priority,
        strict_order, config_hash)
    SELECT
        r.jobid, flow_name, r.description, r.kind, r.params, r.max_running, r.max_attempts, r.max_lost, r.retry_delay,
        r.timeout, r.priority, r.strict_order, r.config_hash
    FROM jsonb_populate_recordset(NULL::dataflow.job, declared -> 'jobs') AS r
    ON CONFLICT (jobid) DO UPDATE SET
        (flow, description, kind, params, max_running, max_attempts, max_lost, retry_delay, timeout, priority,
         strict_order, config_hash, modified, retired) = ROW (
            excluded.flow, excluded.description, excluded.kind, excluded.params, excluded.max_running,
            excluded.max_attempts, excluded.max_lost, excluded.retry_delay, excluded.timeout, excluded.priority,
            excluded.strict_order, excluded.config_hash, now(), NULL)
    WHERE j.retired IS NOT NULL OR (
            j.flow, j.description, j.kind, j.params, j.max_running, j.max_attempts, j.max_lost, j.retry_delay,
            j.timeout, j.priority, j.strict_order, j.config_hash)
        IS DISTINCT FROM (
            excluded.flow, excluded.description, excluded.kind, excluded.params, excluded.max_running,
            excluded.max_attempts, excluded.max_lost, excluded.retry_delay, excluded.timeout, excluded.priority,
            excluded.strict_order, excluded.config_hash);

    IF prune THEN
        WITH gone AS (
            UPDATE dataflow.job AS j SET retired = now(), modified = now()
            WHERE j.flow = flow_name AND j.retired IS NULL AND j.jobid <> ALL (declared_jobs)
            RETURNING j.jobid
        )
        SELECT coalesce(array_agg(g.jobid::text), '{}') INTO retired_jobs FROM gone AS g;
        UPDATE dataflow.dataset AS d SET retired = now(), modified = now()
        WHERE d.flow = flow_name AND d.retired IS NULL AND d.datasetid <> ALL (declared_datasets);
    END IF;

    -- Deletes come before inserts: an output may move from one job to another, and from a retired one.
    DELETE FROM dataflow.job_output AS o
    WHERE o.jobid = ANY (declared_jobs || retired_jobs) AND NOT EXISTS (
        SELECT FROM jsonb_array_elements(declared -> 'jobs') AS item
        WHERE item ->> 'jobid' = o.jobid AND item -> 'outputs' ? o.datasetid);
    DELETE FROM dataflow.job_input AS i
    WHERE i.jobid = ANY (declared_jobs || retired_jobs) AND NOT EXISTS (
        SELECT FROM jsonb_array_elements(declared -> 'jobs') AS item
        WHERE item ->> 'jobid' = i.jobid AND item -> 'inputs' ? i.datasetid);
    INSERT INTO dataflow.job_output (jobid, datasetid)
    SELECT item ->> 'jobid', o
    FROM jsonb_array_elements(declared -> 'jobs') AS item, jsonb_array_elements_text(item -> 'outputs') AS o
    ON CONFLICT (jobid, datasetid) DO NOTHING;
    INSERT INTO dataflow.job_input AS i (jobid, datasetid, mapping)
    SELECT item ->> 'jobid', n.key, n.value
    FROM jsonb_array_elements(declared -> 'jobs') AS item, jsonb_each(item -> 'inputs') AS n
    ON CONFLICT (jobid, datasetid) DO UPDATE SET mapping = excluded.mapping
    WHERE i.mapping <> excluded.mapping;
END $$;


ALTER FUNCTION dataflow._write_flow(declared jsonb, prune boolean) OWNER TO dataflow_admin;

--
-- Name: FUNCTION _write_flow(declared jsonb, prune boolean); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow._write_flow(declared jsonb, prune boolean) IS 'The writing half of apply_flow, which checks first';


--
-- Name: _written_to(dataflow.dataset); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._written_to(d dataflow.dataset) RETURNS text
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$ SELECT CASE d.publish WHEN 'rename' THEN rtrim(d.location, '/') || '/.attempts' ELSE d.location END $$;


ALTER FUNCTION dataflow._written_to(d dataflow.dataset) OWNER TO dataflow_admin;

--
-- Name: _written_until(text, timestamp with time zone); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow._written_until(outcome text, ended timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$ SELECT CASE WHEN outcome IN ('LOST', 'CANCELLED') THEN NULL ELSE ended END $$;


ALTER FUNCTION dataflow._written_until(outcome text, ended timestamp with time zone) OWNER TO dataflow_admin;

--
-- Name: add_key(text, bytea); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.add_key(suite text, public_key bytea) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    -- The id is a hash of the key, so that another key cannot bear it.
    born constant text := left(encode(sha256(convert_to('dataflowd ' || add_key.suite || ' ', 'UTF8') || add_key.public_key), 'hex'), 32);
BEGIN
    IF coalesce(add_key.suite NOT IN ('mlkem768-x25519', 'x25519'), true) THEN
        RAISE EXCEPTION 'there is no suite %', coalesce(suite, 'NULL') USING ERRCODE = 'DF400', HINT = 'the suites are mlkem768-x25519 and x25519';
    END IF;
    IF coalesce(length(add_key.public_key) <> CASE add_key.suite WHEN 'x25519' THEN 32 ELSE 1216 END, true) THEN
        RAISE EXCEPTION 'a public key of % bytes is none for %', coalesce(length(public_key), 0), suite USING ERRCODE = 'DF400',
            HINT = 'make one with `dataflowctl key generate`';
    END IF;
    INSERT INTO dataflow.key (keyid, suite, public_key) VALUES (born, add_key.suite, add_key.public_key) ON CONFLICT (keyid) DO NOTHING;
    IF FOUND THEN
        INSERT INTO dataflow.event (kind, to_status, reason) VALUES ('credential', 'KEY_ADDED', born);
    END IF;
    RETURN born;
END $$;


ALTER FUNCTION dataflow.add_key(suite text, public_key bytea) OWNER TO dataflow_admin;

--
-- Name: FUNCTION add_key(suite text, public_key bytea); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.add_key(suite text, public_key bytea) IS 'Stores a public key, with which passwords are sealed from now on; returns its id';


--
-- Name: affected_runs(text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.affected_runs(datasetid text, dataid text) RETURNS TABLE(jobid text, dataid text)
    LANGUAGE sql STABLE
    AS $$
    SELECT i.jobid, affected_runs.dataid FROM dataflow.job_input i
    WHERE i.datasetid = affected_runs.datasetid AND i.kind = 'identity'
    UNION ALL
    SELECT i.jobid, mapped FROM dataflow.job_input i,
        LATERAL dataflow._mapped_runs(i.jobid, i.mapping, i.datasetid, affected_runs.dataid) AS mapped
    WHERE i.datasetid = affected_runs.datasetid AND i.kind <> 'identity'
$$;


ALTER FUNCTION dataflow.affected_runs(datasetid text, dataid text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION affected_runs(datasetid text, dataid text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.affected_runs(datasetid text, dataid text) IS 'The runs that need the chunk (dataset, dataid). The inverse of required_inputs';


--
-- Name: apply_flow(jsonb, boolean, boolean); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.apply_flow(declared jsonb, prune boolean DEFAULT false, dry_run boolean DEFAULT false) RETURNS TABLE(kind text, name text, action text, changed text[])
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    conflict record;
BEGIN
    IF jsonb_typeof(declared -> 'name') IS DISTINCT FROM 'string' OR declared ->> 'name' = ''
        OR jsonb_typeof(declared -> 'datasets') IS DISTINCT FROM 'array'
        OR jsonb_typeof(declared -> 'jobs') IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'this is no flow' USING
            ERRCODE = 'DF400', HINT = 'a flow has a name, an array of datasets and an array of jobs';
    END IF;
    IF NOT dry_run THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('dataflow.apply', 0));
    END IF;
    BEGIN
        SELECT * INTO conflict FROM dataflow.flow_conflicts(declared, prune) LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION '%', conflict.what USING ERRCODE = 'DF409', HINT = conflict.remedy;
        END IF;
        RETURN QUERY SELECT p.kind, p.name, p.action, p.changed FROM dataflow.plan_flow(declared, prune) AS p;
        IF dry_run OR NOT EXISTS (SELECT FROM dataflow.plan_flow(declared, prune) AS p WHERE p.action <> 'unchanged') THEN
            RETURN;
        END IF;
        PERFORM dataflow._write_flow(declared, prune);
    EXCEPTION WHEN data_exception OR integrity_constraint_violation THEN
        RAISE EXCEPTION 'the flow holds a value that cannot be stored: %', SQLERRM USING
            ERRCODE = 'DF400', HINT = 'check the file with `dataflowctl apply --check`';
    END;
    PERFORM dataflow.rebuild_work();
END $$;


ALTER FUNCTION dataflow.apply_flow(declared jsonb, prune boolean, dry_run boolean) OWNER TO dataflow_admin;

--
-- Name: FUNCTION apply_flow(declared jsonb, prune boolean, dry_run boolean); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.apply_flow(declared jsonb, prune boolean, dry_run boolean) IS 'Upserts what a flow declares and, with prune, retires what it no longer does; returns the changes. dry_run writes nothing';


--
-- Name: attempts(text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.attempts(jobid text, dataid text) RETURNS TABLE(number integer, attempt bigint, status text, tries integer, lost integer, claimed timestamp with time zone, started timestamp with time zone, ended timestamp with time zone, seconds double precision, daemon text, hostname text, code text, error text, retry_at timestamp with time zone, forced boolean, tag text, inputs jsonb, code_hash text, config_hash text, usage jsonb, checks jsonb, nodes jsonb)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_job(attempts.jobid);
    PERFORM dataflow._checked_dataid(attempts.dataid);
    RETURN QUERY
    SELECT a.number, a.attempt, coalesce(a.outcome, 'RUNNING'), a.tries, a.lost, a.claimed, a.started, a.ended,
        extract(epoch FROM coalesce(a.ended, clock_timestamp()) - coalesce(a.started, a.claimed))::double precision,
        a.daemon::text, d.hostname, a.code, a.error, a.retry_at, a.forced, a.tag, a.inputs, a.code_hash, a.config_hash, a.usage,
        (SELECT coalesce(jsonb_agg(jsonb_build_object('datasetid', c.datasetid, 'name', c.name, 'severity', c.severity, 'passed', c.passed,
            'observed', c.observed, 'expected', c.expected) ORDER BY c.datasetid, c.name), '[]') FROM dataflow.check_result c WHERE c.attempt = a.attempt),
        (SELECT coalesce(jsonb_agg(jsonb_build_object('node', n.node, 'items', n.items, 'successes', n.successes, 'failures', n.failures,
            'seconds', n.seconds) ORDER BY n.ordinal, n.node), '[]') FROM dataflow.node_stat n WHERE n.attempt = a.attempt)
    FROM dataflow.attempt a LEFT JOIN dataflow.daemon d ON d.daemon = a.daemon
    WHERE a.jobid = attempts.jobid AND a.dataid = attempts.dataid ORDER BY a.number;
END $$;


ALTER FUNCTION dataflow.attempts(jobid text, dataid text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION attempts(jobid text, dataid text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.attempts(jobid text, dataid text) IS 'All attempts of a run, with what they were given, what they used, their checks and node statistics';


--
-- Name: blockers(text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.blockers(jobid text) RETURNS TABLE(code text, what text, runs bigint, first text, last text, detail text, remedy text)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    looked_at constant integer := 5000;
    dataids text[];
    queued bigint;
BEGIN
    PERFORM dataflow._known_job(blockers.jobid);
    SELECT array_agg(k.dataid) INTO dataids FROM (
        SELECT a.dataid FROM dataflow.job_input i
        CROSS JOIN LATERAL (
            SELECT s.datasetid, s.dataid FROM dataflow.datastatus s
            WHERE s.datasetid || '' = i.datasetid AND s.locktype = 'OUT' ORDER BY s.sortkey DESC LIMIT looked_at
        ) AS c
        CROSS JOIN LATERAL dataflow.affected_runs(c.datasetid, c.dataid) AS a
        WHERE i.jobid = blockers.jobid AND a.jobid = blockers.jobid AND i.kind <> 'fixed'
        UNION
        SELECT s.dataid FROM dataflow.chunk_count n JOIN dataflow.datastatus s ON s.datasetid = n.datasetid AND s.locktype = 'OUT' AND s.status = n.status
        WHERE n.jobid = blockers.jobid AND n.status IN ('FAILED', 'RESUBMIT', 'HOLD', 'PENDING')
        UNION
        SELECT x.dataid FROM dataflow.open_run x WHERE x.jobid = blockers.jobid
        LIMIT 2 * looked_at
    ) AS k;
    RETURN QUERY
    WITH judged AS MATERIALIZED (
        SELECT e.* FROM dataflow._evaluate(array_fill(blockers.jobid, ARRAY[coalesce(cardinality(dataids), 0)]), coalesce(dataids, '{}')) AS e
        WHERE e.out_status IS NULL OR e.out_status NOT IN ('READY', 'RUNNING')
    ), kept AS (
        SELECT 'DATA_NOT_READY' AS code, i.datasetid || CASE WHEN o.jobid IS NULL THEN '' ELSE ' (made by ' || o.jobid || ')' END AS what, j.dataid, j.sortkey,
            format('%s/%s %s', i.datasetid, i.dataid, coalesce('is ' || s.status || coalesce(' (' || s.code || ')', ''), 'is not there')) AS detail,
            CASE WHEN s.status IN ('HOLD', 'PENDING') THEN format('dataflowctl release --dataset %s --dataid %s', i.datasetid, i.dataid)
                WHEN o.jobid IS NULL THEN format('when it has arrived: dataflowctl ready %s %s', i.datasetid, i.dataid) ELSE format('dataflowctl why %s %s', o.jobid, i.dataid) END AS remedy
        FROM judged j CROSS JOIN LATERAL dataflow.required_inputs(j.jobid, j.dataid) AS i
        LEFT JOIN dataflow.job_output o ON o.datasetid = i.datasetid
        LEFT JOIN dataflow.datastatus s ON s.datasetid = i.datasetid AND s.dataid = i.dataid AND s.locktype = 'OUT'
        WHERE j.not_ready IS NOT NULL AND s.status IS DISTINCT FROM 'READY'
        UNION ALL
        SELECT n.code, n.what, j.dataid, j.sortkey, n.detail, format('dataflowctl why %s %s', j.jobid, j.dataid)
        FROM judged j
        LEFT JOIN dataflow.attempt a ON a.attempt = j.last_attempt
        CROSS JOIN LATERAL (VALUES
            ('WRONG_DATA', 'the dataid or its order', j.wrong_data), ('INVALID_PATH', 'a dataset''s place', j.invalid_path),
            ('NOT_VALIDATED', 'an input that nobody vouched for', j.not_validated),
            ('LOCKED', CASE j.out_status WHEN 'FAILED' THEN 'FAILED before: ' || coalesce(a.code, 'BY_HAND') WHEN 'HOLD' THEN 'held' WHEN 'PENDING' THEN 'held' ELSE 'a lock' END,
                CASE WHEN j.not_ready IS NULL OR j.out_status IS NOT NULL THEN j.locked END)
        ) AS n (code, what, detail)
        WHERE n.detail IS NOT NULL
    )
    SELECT k.code, k.what, count(DISTINCT k.dataid), (array_agg(k.dataid ORDER BY k.sortkey))[1], (array_agg(k.dataid ORDER BY k.sortkey DESC))[1],
        (array_agg(k.detail ORDER BY k.sortkey))[1], (array_agg(k.remedy ORDER BY k.sortkey))[1]
    FROM kept k GROUP BY k.code, k.what ORDER BY 3 DESC, 1, 2;
    SELECT s.queued INTO queued FROM dataflow.status() AS s WHERE s.jobid = blockers.jobid;
    RETURN QUERY SELECT o.code, 'ready to run', queued, NULL::text, NULL::text, o.detail, o.remedy
        FROM dataflow._obstacles(blockers.jobid) AS o WHERE NOT o.answer AND queued > 0;
END $$;


ALTER FUNCTION dataflow.blockers(jobid text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION blockers(jobid text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.blockers(jobid text) IS 'What keeps the runs of a job, grouped and most frequent first: looks at the latest 5000 chunks of each input, and at all that is FAILED, held or to be resubmitted';


--
-- Name: cancel(text, text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.cancel(jobid text, dataid text, reason text DEFAULT NULL::text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_job(cancel.jobid);
    UPDATE dataflow.datastatus s SET status = 'FAILED', modified = now(), code = 'CANCELLED', reason = coalesce(cancel.reason, 'cancelled by ' || session_user)
        FROM dataflow.job_output o
        WHERE o.jobid = cancel.jobid AND s.datasetid = o.datasetid AND s.dataid = cancel.dataid AND s.locktype = 'OUT' AND s.status = 'RUNNING';
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE dataflow.datastatus s SET status = 'ERROR', modified = now()
        FROM dataflow.attempt a, jsonb_object_keys(a.inputs) AS i
        WHERE a.jobid = cancel.jobid AND a.dataid = cancel.dataid AND a.outcome = 'CANCELLED' AND a.ended = now()
            AND s.datasetid = split_part(i, '/', 1) AND s.dataid = split_part(i, '/', 2)
            AND s.locktype = 'IN' AND s.jobid = a.jobid AND s.run = a.dataid AND s.status = 'RUNNING';
    RETURN true;
END $$;


ALTER FUNCTION dataflow.cancel(jobid text, dataid text, reason text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION cancel(jobid text, dataid text, reason text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.cancel(jobid text, dataid text, reason text) IS 'Cancels the running attempt of a run: its token dies at once, the chunk goes to FAILED and waits for RESUBMIT. False: nothing was running';


--
-- Name: cancel_runs(jsonb, text, boolean); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.cancel_runs(selector jsonb, reason text DEFAULT NULL::text, dry_run boolean DEFAULT false) RETURNS TABLE(jobid text, dataid text, attempt bigint, daemon text, claimed timestamp with time zone)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._bounded_selector(selector);
    RETURN QUERY
    WITH chosen AS MATERIALIZED (
        SELECT r.jobid, r.dataid, a.attempt, a.daemon::text, a.claimed FROM dataflow.select_runs(selector || '{"status": "RUNNING"}') AS r
        JOIN dataflow.attempt a ON a.jobid = r.jobid AND a.dataid = r.dataid AND a.ended IS NULL
    ), done AS MATERIALIZED (
        SELECT c.*, dry_run OR dataflow.cancel(c.jobid, c.dataid, cancel_runs.reason) AS is_done FROM chosen c
    )
    SELECT d.jobid, d.dataid, d.attempt, d.daemon, d.claimed FROM done d WHERE d.is_done ORDER BY d.jobid, dataflow.sortkey(d.dataid);
END $$;


ALTER FUNCTION dataflow.cancel_runs(selector jsonb, reason text, dry_run boolean) OWNER TO dataflow_admin;

--
-- Name: FUNCTION cancel_runs(selector jsonb, reason text, dry_run boolean); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.cancel_runs(selector jsonb, reason text, dry_run boolean) IS 'cancel() for every running run that a selector names (see select_runs)';


--
-- Name: cancelled(text, uuid, bigint[]); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.cancelled(daemon text, incarnation uuid, attempts bigint[]) RETURNS SETOF bigint
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT n.attempt FROM unnest(attempts) AS n (attempt)
    LEFT JOIN dataflow.attempt a ON a.attempt = n.attempt AND a.daemon = cancelled.daemon AND a.incarnation = cancelled.incarnation
    WHERE a.attempt IS NULL OR a.ended IS NOT NULL
$$;


ALTER FUNCTION dataflow.cancelled(daemon text, incarnation uuid, attempts bigint[]) OWNER TO dataflow_admin;

--
-- Name: FUNCTION cancelled(daemon text, incarnation uuid, attempts bigint[]); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.cancelled(daemon text, incarnation uuid, attempts bigint[]) IS 'Which of these attempts are no longer the daemon''s: it must stop them';


--
-- Name: causes(text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.causes(jobid text DEFAULT NULL::text) RETURNS TABLE(code text, runs bigint, retrying bigint, jobs bigint, first timestamp with time zone, last timestamp with time zone, example_jobid text, example_dataid text, reason text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
    WITH counted AS MATERIALIZED (
        SELECT c.datasetid, c.jobid, c.chunks FROM dataflow.chunk_count c
        WHERE c.status = 'FAILED' AND (causes.jobid IS NULL OR c.jobid = causes.jobid)
    ), found AS MATERIALIZED (
        SELECT c.datasetid, c.jobid, a.dataid::text, coalesce(s.code, 'FAILED') AS code, s.reason, s.modified, a.retry_at
        FROM counted c
        JOIN dataflow.attempt a ON a.jobid = c.jobid AND a.outcome IN ('FAILED', 'LOST', 'CANCELLED')
        CROSS JOIN LATERAL (
            SELECT x.code, x.reason, x.modified FROM dataflow.datastatus x
            WHERE x.datasetid = c.datasetid AND x.dataid = a.dataid AND x.locktype = 'OUT' AND x.status = 'FAILED' AND x.attempt = a.attempt OFFSET 0
        ) AS s
    ), by_hand AS (
        SELECT c.jobid, c.chunks - count(f.dataid) AS runs FROM counted c LEFT JOIN found f ON f.datasetid = c.datasetid AND f.jobid = c.jobid
        GROUP BY c.datasetid, c.jobid, c.chunks HAVING c.chunks > count(f.dataid)
    )
    SELECT f.code, count(DISTINCT (f.jobid, f.dataid)), count(DISTINCT (f.jobid, f.dataid)) FILTER (WHERE f.retry_at IS NOT NULL),
        count(DISTINCT f.jobid), min(f.modified), max(f.modified),
        (array_agg(f.jobid ORDER BY f.retry_at IS NOT NULL, f.modified, f.jobid))[1],
        (array_agg(f.dataid ORDER BY f.retry_at IS NOT NULL, f.modified, f.jobid))[1],
        (array_agg(f.reason ORDER BY f.retry_at IS NOT NULL, f.modified, f.jobid))[1]
    FROM found f GROUP BY f.code
    UNION ALL
    SELECT 'BY_HAND', sum(h.runs)::bigint, 0, count(DISTINCT h.jobid), NULL, NULL, max(h.jobid), NULL, 'set to FAILED by hand'
    FROM by_hand h HAVING count(*) > 0
    ORDER BY 2 DESC, 1
$$;


ALTER FUNCTION dataflow.causes(jobid text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION causes(jobid text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.causes(jobid text) IS 'Why runs are FAILED now, grouped by code, most frequent first; retrying says how many of them the job''s own policy tries again';


--
-- Name: chunk_map(text, integer, text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.chunk_map(datasetid text, width integer DEFAULT 60, low text DEFAULT NULL::text, high text DEFAULT NULL::text) RETURNS TABLE(first text, last text, map text)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    dataset_ordering text;
BEGIN
    PERFORM dataflow._known_dataset(chunk_map.datasetid);
    SELECT d.ordering INTO dataset_ordering FROM dataflow.dataset d WHERE d.datasetid = chunk_map.datasetid;
    RETURN QUERY
    WITH numbered AS (
        SELECT s.dataid, s.status, s.validated, row_number() OVER (ORDER BY s.sortkey) - 1 AS place
        FROM dataflow.datastatus s
        WHERE s.datasetid || '' = chunk_map.datasetid AND s.locktype = 'OUT'
            AND (low IS NULL OR s.sortkey >= dataflow._ordered(dataset_ordering, low))
            AND (high IS NULL OR s.sortkey <= dataflow._ordered(dataset_ordering, high))
    )
    SELECT (array_agg(n.dataid::text ORDER BY n.place))[1], (array_agg(n.dataid::text ORDER BY n.place DESC))[1],
        string_agg(CASE n.status WHEN 'READY' THEN CASE WHEN n.validated THEN '.' ELSE '?' END WHEN 'RUNNING' THEN 'R' WHEN 'FAILED' THEN 'F'
            WHEN 'RESUBMIT' THEN 's' ELSE 'H' END, '' ORDER BY n.place)
    FROM numbered n GROUP BY n.place / greatest(width, 1) ORDER BY n.place / greatest(width, 1);
END $$;


ALTER FUNCTION dataflow.chunk_map(datasetid text, width integer, low text, high text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION chunk_map(datasetid text, width integer, low text, high text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.chunk_map(datasetid text, width integer, low text, high text) IS 'A heat map of a dataset, one character a chunk in the order of its dataids: . READY, ? not validated, R RUNNING, F FAILED, s RESUBMIT, H held';


--
-- Name: chunks(text, text[], text, text, text, boolean, text, boolean, integer); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.chunks(datasetid text, statuses text[] DEFAULT NULL::text[], first text DEFAULT NULL::text, last text DEFAULT NULL::text, pattern text DEFAULT NULL::text, only_stale boolean DEFAULT false, sort text DEFAULT 'dataid'::text, descending boolean DEFAULT false, at_most integer DEFAULT 100) RETURNS TABLE(dataid text, status text, jobid text, rows bigint, bytes bigint, version integer, modified timestamp with time zone, attempt bigint, code_hash text, config_hash text, validated boolean, external boolean, stale text[], code text, reason text, location text)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    sorts constant text[] := ARRAY['dataid', 'modified', 'rows', 'bytes', 'status'];
    wanted constant text[] := ARRAY(SELECT upper(s) FROM unnest(statuses) AS s);
    dataset_ordering text;
    from_key text;
    to_key text;
    plain constant boolean := NOT only_stale AND sort = 'dataid';
BEGIN
    PERFORM dataflow._known_dataset(chunks.datasetid);
    PERFORM dataflow._checked_statuses(wanted);
    IF sort <> ALL (sorts) THEN
        RAISE EXCEPTION 'chunks cannot be sorted by %', sort USING ERRCODE = 'DF400', HINT = 'sort by ' || array_to_string(sorts, ', ');
    END IF;
    SELECT d.ordering INTO dataset_ordering FROM dataflow.dataset d WHERE d.datasetid = chunks.datasetid;
    from_key := coalesce(dataflow._ordered(dataset_ordering, first), '');
    to_key := dataflow._ordered(dataset_ordering, last);
    RETURN QUERY
    WITH page AS MATERIALIZED (
        -- The index gives the order of dataids; every other order has to see them all.
        (SELECT s.* FROM dataflow.datastatus s
        WHERE plain AND NOT descending AND s.datasetid || '' = chunks.datasetid AND s.locktype = 'OUT' AND s.sortkey >= from_key
            AND (to_key IS NULL OR s.sortkey <= to_key) AND (statuses IS NULL OR s.status = ANY (wanted)) AND (pattern IS NULL OR dataflow.matches(s.dataid, pattern))
        ORDER BY s.sortkey LIMIT at_most)
        UNION ALL
        (SELECT s.* FROM dataflow.datastatus s
        WHERE plain AND descending AND s.datasetid || '' = chunks.datasetid AND s.locktype = 'OUT' AND s.sortkey >= from_key
            AND (to_key IS NULL OR s.sortkey <= to_key) AND (statuses IS NULL OR s.status = ANY (wanted)) AND (pattern IS NULL OR dataflow.matches(s.dataid, pattern))
        ORDER BY s.sortkey DESC LIMIT at_most)
        UNION ALL
        (SELECT s.* FROM dataflow.datastatus s
        LEFT JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest
        CROSS JOIN LATERAL (
            SELECT CASE sort WHEN 'modified' THEN extract(epoch FROM s.modified) WHEN 'rows' THEN m.rows WHEN 'bytes' THEN m.bytes END
        ) AS measured (value)
        WHERE NOT plain AND s.datasetid || '' = chunks.datasetid AND s.locktype = 'OUT' AND s.sortkey >= from_key
            AND (to_key IS NULL OR s.sortkey <= to_key) AND (statuses IS NULL OR s.status = ANY (wanted)) AND (pattern IS NULL OR dataflow.matches(s.dataid, pattern))
            AND (NOT only_stale OR s.dataid IN (SELECT t.dataid FROM dataflow.stale t WHERE t.datasetid = chunks.datasetid))
        ORDER BY
            CASE WHEN descending THEN -measured.value ELSE measured.value END NULLS LAST,
            CASE WHEN sort = 'status' AND NOT descending THEN s.status END,
            CASE WHEN sort = 'status' AND descending THEN s.status END DESC,
            CASE WHEN descending AND sort = 'dataid' THEN s.sortkey END DESC,
            s.sortkey
        LIMIT at_most)
    ), numbered AS MATERIALIZED (
        SELECT row_number() OVER () AS place, p.* FROM page p
    )
    SELECT p.dataid::text, p.status, nullif(p.jobid, ''), m.rows, m.bytes, p.version, p.modified, coalesce(m.attempt, p.attempt),
        a.code_hash, a.config_hash, p.validated, p.external, x.because, p.code, p.reason, m.location
    FROM numbered p
    LEFT JOIN dataflow.manifest m ON m.datasetid = p.datasetid AND m.dataid = p.dataid AND m.version = p.manifest
    LEFT JOIN dataflow.attempt a ON a.attempt = m.attempt
    LEFT JOIN LATERAL (SELECT t.because FROM dataflow.stale t WHERE t.datasetid = p.datasetid AND t.dataid = p.dataid OFFSET 0) AS x ON true
    ORDER BY p.place;
END $$;


ALTER FUNCTION dataflow.chunks(datasetid text, statuses text[], first text, last text, pattern text, only_stale boolean, sort text, descending boolean, at_most integer) OWNER TO dataflow_admin;

--
-- Name: FUNCTION chunks(datasetid text, statuses text[], first text, last text, pattern text, only_stale boolean, sort text, descending boolean, at_most integer); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.chunks(datasetid text, statuses text[], first text, last text, pattern text, only_stale boolean, sort text, descending boolean, at_most integer) IS 'Chunks of a dataset with status, producer, size, version and what made them; first and last bound the dataids in the dataset''s order. SELECT * FROM dataflow.chunks(''orders'', ''{FAILED}'')';


--
-- Name: claim(text, uuid, integer); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.claim(daemon text, incarnation uuid, want integer) RETURNS TABLE(attempt bigint, token uuid, jobid text, dataid text, number integer, tag text, inputs jsonb, params jsonb, timeout_seconds double precision)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_nestloop TO 'on'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_material TO 'off'
    SET enable_memoize TO 'off'
    SET enable_bitmapscan TO 'off'
    SET join_collapse_limit TO '1'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
DECLARE
    step_aside constant interval := '5 seconds';
    settled_per_claim constant integer := 1000;
    daemon_environment text;
    jobids text[];
    dataids text[];
    locked_jobids text[];
    locked_dataids text[];
BEGIN
    PERFORM dataflow._forget_small_plans();
    PERFORM pg_advisory_xact_lock(hashtextextended('dataflow.claim', 0));
    daemon_environment := dataflow._leased(claim.daemon, claim.incarnation);
    PERFORM dataflow.settle(settled_per_claim);
    UPDATE dataflow.work w SET not_before = NULL
    FROM (SELECT l.jobid, l.dataid FROM dataflow.work l WHERE l.not_before <= now() FOR UPDATE SKIP LOCKED) AS due
    WHERE w.jobid = due.jobid AND w.dataid = due.dataid;

    SELECT n.jobids, n.dataids INTO jobids, dataids FROM dataflow._next_work(claim.daemon, daemon_environment, want) AS n;
    IF jobids IS NULL THEN
        RETURN;
    END IF;
    -- The chunks are locked before they are judged: what is judged stays true until the commit.
    SELECT
        array_agg(r.jobid) FILTER (WHERE outputs.taken + inputs.taken = 0), array_agg(r.dataid) FILTER (WHERE outputs.taken + inputs.taken = 0),
        array_agg(r.jobid) FILTER (WHERE outputs.taken + inputs.taken > 0), array_agg(r.dataid) FILTER (WHERE outputs.taken + inputs.taken > 0)
    INTO jobids, dataids, locked_jobids, locked_dataids
    FROM unnest(jobids, dataids) AS r (jobid, dataid)
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE mine.found IS NULL AND EXISTS (
            SELECT FROM dataflow.datastatus x WHERE x.datasetid = o.datasetid AND x.dataid = r.dataid AND x.locktype = 'OUT')) AS taken
        FROM dataflow.job_output o
        LEFT JOIN LATERAL (
            SELECT true AS found FROM dataflow.datastatus x
            WHERE x.datasetid = o.datasetid AND x.dataid = r.dataid AND x.locktype = 'OUT' FOR UPDATE SKIP LOCKED
        ) AS mine ON true
        WHERE o.jobid = r.jobid
    ) AS outputs
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE mine.found IS NULL AND EXISTS (
            SELECT FROM dataflow.datastatus x WHERE x.datasetid = i.datasetid AND x.dataid = i.dataid AND x.locktype = 'OUT')) AS taken
        FROM dataflow._inputs(r.jobid, r.dataid) AS i
        LEFT JOIN LATERAL (
            SELECT true AS found FROM dataflow.datastatus x
            WHERE x.datasetid = i.datasetid AND x.dataid = i.dataid AND x.locktype = 'OUT' FOR SHARE SKIP LOCKED
        ) AS mine ON true
    ) AS inputs;
    IF locked_jobids IS NOT NULL THEN
        -- Left where they are, they would be the first at every claim, and what waits behind them would not be reached.
        UPDATE dataflow.work w SET not_before = now() + step_aside FROM unnest(locked_jobids, locked_dataids) AS l (jobid, dataid)
        WHERE w.jobid = l.jobid AND w.dataid = l.dataid;
    END IF;
    IF jobids IS NULL THEN
        RETURN;
    END IF;

    RETURN QUERY SELECT * FROM dataflow._take(claim.daemon, claim.incarnation, jobids, dataids, false);
END $$;


ALTER FUNCTION dataflow.claim(daemon text, incarnation uuid, want integer) OWNER TO dataflow_admin;

--
-- Name: FUNCTION claim(daemon text, incarnation uuid, want integer); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.claim(daemon text, incarnation uuid, want integer) IS 'Takes up to so many ready runs, within every limit, and returns their attempts. Only the session that registered the daemon may call it';


--
-- Name: claim_run(text, uuid, text, text, boolean); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.claim_run(daemon text, incarnation uuid, of_job text, of_dataid text, forced boolean DEFAULT false) RETURNS TABLE(attempt bigint, token uuid, jobid text, dataid text, number integer, tag text, inputs jsonb, params jsonb, timeout_seconds double precision)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '10s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
DECLARE
    daemon_environment text;
    stopper text;
    noes text;
BEGIN
    PERFORM dataflow._known_job(claim_run.of_job);
    PERFORM dataflow._checked_dataid(claim_run.of_dataid);
    PERFORM pg_advisory_xact_lock(hashtextextended('dataflow.claim', 0));
    daemon_environment := dataflow._leased(claim_run.daemon, claim_run.incarnation);
    SELECT format('dataset %s belongs to environment %s, and this host works for %s', d.datasetid, d.environment, daemon_environment) INTO stopper
        FROM dataflow.job_output o JOIN dataflow.dataset d ON d.datasetid = o.datasetid
        WHERE o.jobid = claim_run.of_job AND d.environment <> daemon_environment LIMIT 1;
    IF stopper IS NOT NULL THEN
        RAISE EXCEPTION '%', stopper USING ERRCODE = 'DF409', HINT = 'run it on a host of that environment';
    END IF;
    SELECT CASE WHEN c.paused THEN c.scope || ' is paused' ELSE format('the limit of %s attempts of %s is reached', c.concurrency, c.scope) END INTO stopper
        FROM dataflow.control c
        WHERE c.scope IN ('global', 'job:' || claim_run.of_job) AND (c.paused OR c.concurrency <= (
            SELECT count(*) FROM dataflow.attempt a WHERE a.ended IS NULL AND (c.scope = 'global' OR a.jobid = claim_run.of_job))) LIMIT 1;
    IF stopper IS NOT NULL THEN
        RAISE EXCEPTION '%', stopper USING ERRCODE = 'DF423', HINT = 'wait, or see `dataflowctl concurrency` and `dataflowctl resume`';
    END IF;
    -- As in a claim, the chunks are locked before they are judged.
    PERFORM FROM dataflow.job_output o JOIN dataflow.datastatus s ON s.datasetid = o.datasetid
        WHERE o.jobid = claim_run.of_job AND s.dataid = claim_run.of_dataid AND s.locktype = 'OUT' ORDER BY s.datasetid FOR UPDATE OF s;
    PERFORM FROM dataflow._inputs(claim_run.of_job, claim_run.of_dataid) AS i JOIN dataflow.datastatus s ON s.datasetid = i.datasetid AND s.dataid = i.dataid
        WHERE s.locktype = 'OUT' ORDER BY s.datasetid, s.dataid FOR SHARE OF s;
    SELECT format('attempt %s of daemon %s is at it', a.attempt, a.daemon) INTO stopper FROM dataflow.attempt a
        WHERE a.jobid = claim_run.of_job AND a.dataid = claim_run.of_dataid AND a.ended IS NULL;
    IF stopper IS NOT NULL THEN
        RAISE EXCEPTION '%', stopper USING ERRCODE = 'DF423', HINT = 'wait for it, or `dataflowctl cancel` it';
    END IF;
    IF forced THEN
        SELECT string_agg(format('%s: %s', q.code, q.detail), '; ' ORDER BY q.number) INTO noes
            FROM dataflow.five_questions(claim_run.of_job, claim_run.of_dataid) AS q WHERE NOT q.answer;
        INSERT INTO dataflow.event (kind, jobid, dataid, code, reason)
        VALUES ('status', claim_run.of_job, claim_run.of_dataid, 'FORCED', coalesce(noes, 'every question was answered yes'));
    END IF;
    RETURN QUERY SELECT * FROM dataflow._take(
        claim_run.daemon, claim_run.incarnation, ARRAY[claim_run.of_job], ARRAY[claim_run.of_dataid], claim_run.forced);
END $$;


ALTER FUNCTION dataflow.claim_run(daemon text, incarnation uuid, of_job text, of_dataid text, forced boolean) OWNER TO dataflow_admin;

--
-- Name: FUNCTION claim_run(daemon text, incarnation uuid, of_job text, of_dataid text, forced boolean); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.claim_run(daemon text, incarnation uuid, of_job text, of_dataid text, forced boolean) IS 'Takes one run that a person has named, within the limits; nothing is returned if it may not run. forced: also if questions are answered no, which the attempt and the history keep';


--
-- Name: code_version(text, text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.code_version(jobid text, code_hash text, config_hash text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    UPDATE dataflow.job j SET code_hash = code_version.code_hash, config_hash = code_version.config_hash
        WHERE j.jobid = code_version.jobid
            AND (j.code_hash, j.config_hash) IS DISTINCT FROM (code_version.code_hash, code_version.config_hash);
    RETURN FOUND;
END $$;


ALTER FUNCTION dataflow.code_version(jobid text, code_hash text, config_hash text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION code_version(jobid text, code_hash text, config_hash text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.code_version(jobid text, code_hash text, config_hash text) IS 'A daemon says which code and configuration a job runs with now; what was made with others is stale. False: nothing new';


--
-- Name: collect(text[], text[], bigint[], interval, interval, boolean); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.collect(datasets text[], dataids text[], attempts bigint[], grace interval, retention interval, dry_run boolean DEFAULT true) RETURNS TABLE(datasetid text, dataid text, attempt bigint, why text, since timestamp with time zone, claimed timestamp with time zone, written_until timestamp with time zone)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
DECLARE
    most constant integer := 10000;
BEGIN
    IF cardinality(attempts) > most THEN
        RAISE EXCEPTION 'collect takes at most % directories at a time', most USING ERRCODE = 'DF400', HINT = 'call it in batches';
    END IF;
    IF grace < interval '0' OR retention < interval '0' THEN
        RAISE EXCEPTION 'grace and retention cannot be negative' USING ERRCODE = 'DF400', HINT = 'for example ''1 day'' and ''7 days''';
    END IF;
    RETURN QUERY
    WITH found AS MATERIALIZED (
        SELECT f.datasetid, f.dataid, f.attempt FROM unnest(datasets, dataids, attempts) AS f (datasetid, dataid, attempt)
    ), failed AS (
        SELECT f.datasetid, f.dataid, f.attempt, a.outcome AS why, a.ended AS since, a.claimed, dataflow._written_until(a.outcome, a.ended) AS written_until
        FROM found f JOIN dataflow.attempt a ON a.attempt = f.attempt AND a.dataid = f.dataid
        WHERE a.outcome <> 'DONE' AND a.ended < now() - grace AND dataflow._may_have_written(a.outcome, a.started)
            AND NOT EXISTS (SELECT FROM dataflow.manifest m WHERE m.attempt = a.attempt)
    ), superseded AS (
        SELECT f.datasetid, f.dataid, f.attempt, 'SUPERSEDED' AS why, next.published AS since, a.claimed, a.ended AS written_until, m.version
        FROM found f
        JOIN dataflow.attempt a ON a.attempt = f.attempt AND a.dataid = f.dataid
        JOIN dataflow.manifest m ON m.attempt = f.attempt AND m.datasetid = f.datasetid AND m.dataid = f.dataid
        JOIN dataflow.datastatus s ON s.datasetid = m.datasetid AND s.dataid = m.dataid AND s.locktype = 'OUT' AND s.manifest > m.version
        CROSS JOIN LATERAL (
            SELECT min(n.published) AS published FROM dataflow.manifest n
            WHERE n.datasetid = m.datasetid AND n.dataid = m.dataid AND n.version > m.version
        ) AS next
        WHERE next.published < now() - retention
            AND NOT EXISTS (
                SELECT FROM dataflow.datastatus r WHERE r.datasetid = m.datasetid AND r.dataid = m.dataid AND r.locktype = 'IN'
                    AND r.status = 'RUNNING' AND r.version = m.version)
    ), forgotten AS (
        SELECT f.datasetid, f.dataid, f.attempt, 'FORGOTTEN' AS why, g.forgotten AS since, g.claimed, g.ended AS written_until
        FROM found f JOIN dataflow.forgotten g ON g.attempt = f.attempt AND g.datasetid = f.datasetid AND g.dataid = f.dataid
        WHERE g.forgotten < now() - grace
    ), marked AS (
        UPDATE dataflow.manifest m SET collected = now() FROM superseded x
        WHERE NOT dry_run AND m.datasetid = x.datasetid AND m.dataid = x.dataid AND m.version = x.version AND m.collected IS NULL
    )
    SELECT x.datasetid, x.dataid, x.attempt, x.why, x.since, x.claimed, x.written_until FROM failed x
    UNION ALL
    SELECT x.datasetid, x.dataid, x.attempt, x.why, x.since, x.claimed, x.written_until FROM superseded x
    UNION ALL
    SELECT x.datasetid, x.dataid, x.attempt, x.why, x.since, x.claimed, x.written_until FROM forgotten x;
END $$;


ALTER FUNCTION dataflow.collect(datasets text[], dataids text[], attempts bigint[], grace interval, retention interval, dry_run boolean) OWNER TO dataflow_admin;

--
-- Name: FUNCTION collect(datasets text[], dataids text[], attempts bigint[], grace interval, retention interval, dry_run boolean); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.collect(datasets text[], dataids text[], attempts bigint[], grace interval, retention interval, dry_run boolean) IS 'Which of these directories (dataset, dataid, attempt) nobody needs: of attempts that published nothing and ended longer than grace ago, of versions that were superseded longer than retention ago and are not being read, and of what was deleted. claimed and written_until bound when the attempt can have written it. dry_run => false also marks superseded versions as collected';


--
-- Name: create_partitioning(text, text, text[], text, bigint, jsonb, boolean); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.create_partitioning(datasetid text, partitioning text, key_columns text[], kind text, size bigint, batches jsonb, held boolean DEFAULT false) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_column
DECLARE
    producer text;
    made bigint;
BEGIN
    PERFORM dataflow._known_dataset(create_partitioning.datasetid);
    IF create_partitioning.partitioning !~ '^[A-Za-z][A-Za-z0-9_.-]{0,62}$' THEN
        RAISE EXCEPTION 'not a name: %', quote_literal(left(partitioning, 80)) USING ERRCODE = 'DF400',
            HINT = 'a letter, then up to 62 letters, digits, and _ . -; such as size_5000';
    END IF;
    SELECT o.jobid INTO producer FROM dataflow.job_output o WHERE o.datasetid = create_partitioning.datasetid;
    IF FOUND THEN
        RAISE EXCEPTION 'dataset % is made by job %, and has its chunks from there', datasetid, producer USING ERRCODE = 'DF409',
            HINT = 'split a source that no job produces';
    END IF;
    IF EXISTS (SELECT FROM dataflow.partitioning p WHERE p.datasetid = create_partitioning.datasetid AND p.partitioning = create_partitioning.partitioning) THEN
        RAISE EXCEPTION 'dataset % has a partitioning % already', datasetid, partitioning USING ERRCODE = 'DF409',
            HINT = 'choose another name; several live side by side. Or delete it first';
    END IF;
    INSERT INTO dataflow.partitioning (partitioning, datasetid, key_columns, kind, size)
    VALUES (create_partitioning.partitioning, create_partitioning.datasetid, create_partitioning.key_columns, create_partitioning.kind, create_partitioning.size);
    INSERT INTO dataflow.batch (datasetid, dataid, partitioning, bounds, items)
    SELECT create_partitioning.datasetid, b.dataid, create_partitioning.partitioning, b.bounds, b.items
    FROM jsonb_to_recordset(batches) AS b (dataid text, bounds jsonb, items bigint);
    GET DIAGNOSTICS made = ROW_COUNT;
    PERFORM dataflow.ready(create_partitioning.datasetid, ARRAY(SELECT b.dataid FROM jsonb_to_recordset(batches) AS b (dataid text)));
    IF held THEN
        PERFORM dataflow.hold(create_partitioning.datasetid, b.dataid, 'registered on hold with partitioning ' || create_partitioning.partitioning)
        FROM jsonb_to_recordset(batches) AS b (dataid text);
    END IF;
    RETURN made;
END $_$;


ALTER FUNCTION dataflow.create_partitioning(datasetid text, partitioning text, key_columns text[], kind text, size bigint, batches jsonb, held boolean) OWNER TO dataflow_admin;

--
-- Name: FUNCTION create_partitioning(datasetid text, partitioning text, key_columns text[], kind text, size bigint, batches jsonb, held boolean); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.create_partitioning(datasetid text, partitioning text, key_columns text[], kind text, size bigint, batches jsonb, held boolean) IS 'Stores a split of a source, [{"dataid", "bounds", "items"}], and registers its batches as chunks; held => true puts them on hold. dataflowctl partition create computes the split';


--
-- Name: data_location(text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.data_location(datasetid text, dataid text) RETURNS TABLE(status text, version integer, format text, location text, files jsonb, rows bigint, bytes bigint, hostname text, port integer, database text, schemaname text, tablename text, username text, encryptedpass text, columns text, options jsonb)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_dataset(data_location.datasetid);
    PERFORM dataflow._checked_dataid(data_location.dataid);
    RETURN QUERY
    SELECT s.status, s.version, d.format,
        coalesce(m.location, replace(d.location, '{dataid}', data_location.dataid)), m.files, m.rows, m.bytes,
        d.hostname, d.port, d.database, d.schemaname, d.tablename, d.username, d.encryptedpass, d.columns, d.options
    FROM dataflow.dataset d
    LEFT JOIN dataflow.datastatus s ON s.datasetid = d.datasetid AND s.dataid = data_location.dataid AND s.locktype = 'OUT'
    LEFT JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest
    WHERE d.datasetid = data_location.datasetid;
END $$;


ALTER FUNCTION dataflow.data_location(datasetid text, dataid text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION data_location(datasetid text, dataid text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.data_location(datasetid text, dataid text) IS 'Where a chunk is, with all that is needed to reach it: the published version''s location, or the place where the dataset says it would be';


--
-- Name: dataid_range(text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.dataid_range(bounds text) RETURNS SETOF text
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_column
DECLARE
    at_most constant integer := 1000000;
    low constant text := split_part(bounds, '..', 1);
    high constant text := split_part(bounds, '..', 2);
    unit text;
    number bigint;
    moment timestamptz;
    until timestamptz;
    made integer := 0;
BEGIN
    IF low ~ '^[0-9]{1,18}$' AND high ~ '^[0-9]{1,18}$' AND low::bigint <= high::bigint AND (length(low) = length(high) OR (low !~ '^0.' AND high !~ '^0.')) THEN
        IF high::bigint - low::bigint >= at_most THEN
            RAISE EXCEPTION 'the range % has more than % dataids', bounds, at_most USING ERRCODE = 'DF400', HINT = 'register it in parts';
        END IF;
        RETURN QUERY SELECT CASE WHEN low ~ '^0.' THEN lpad(n::text, length(low), '0') ELSE n::text END FROM generate_series(low::bigint, high::bigint) AS n;
        RETURN;
    END IF;
    FOREACH unit IN ARRAY ARRAY['hour', 'day', 'week', 'month'] LOOP
        moment := dataflow.period_start(unit, low, 'UTC');
        until := dataflow.period_start(unit, high, 'UTC');
        IF moment <= until THEN
            WHILE moment <= until LOOP
                made := made + 1;
                IF made > at_most THEN
                    RAISE EXCEPTION 'the range % has more than % dataids', bounds, at_most USING ERRCODE = 'DF400', HINT = 'register it in parts';
                END IF;
                RETURN NEXT dataflow.period_id(unit, moment, 'UTC');
                moment := dataflow.period_add(unit, moment, 1, 'UTC');
            END LOOP;
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'not a range of dataids: %', bounds USING ERRCODE = 'DF400',
        HINT = 'write two dates, hours, weeks, months or whole numbers, the smaller first: 2026-01-01..2026-01-31, 1..500';
END $_$;


ALTER FUNCTION dataflow.dataid_range(bounds text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION dataid_range(bounds text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.dataid_range(bounds text) IS 'All dataids from A to B of ''A..B'': dates, hours, weeks, months or whole numbers';


--
-- Name: delete_chunk(text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.delete_chunk(datasetid text, dataid text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_dataset(delete_chunk.datasetid);
    IF EXISTS (SELECT FROM dataflow.datastatus s WHERE s.datasetid = delete_chunk.datasetid AND s.dataid = delete_chunk.dataid AND s.status = 'RUNNING') THEN
        RAISE EXCEPTION 'chunk %/% is being written or read', datasetid, dataid USING ERRCODE = 'DF409', HINT = 'wait, or dataflow.cancel() the run';
    END IF;
    DELETE FROM dataflow.datastatus s WHERE s.datasetid = delete_chunk.datasetid AND s.dataid = delete_chunk.dataid;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    WITH gone AS (
        DELETE FROM dataflow.manifest m WHERE m.datasetid = delete_chunk.datasetid AND m.dataid = delete_chunk.dataid
        RETURNING m.attempt, m.datasetid, m.dataid
    )
    INSERT INTO dataflow.forgotten (attempt, datasetid, dataid, claimed, ended)
    SELECT a.attempt, g.datasetid, g.dataid, a.claimed, a.ended FROM gone g JOIN dataflow.attempt a ON a.attempt = g.attempt
    ON CONFLICT DO NOTHING;
    RETURN true;
END $$;


ALTER FUNCTION dataflow.delete_chunk(datasetid text, dataid text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION delete_chunk(datasetid text, dataid text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.delete_chunk(datasetid text, dataid text) IS 'Forgets a chunk: its status, locks and manifests. Its files stay until they are collected, its history stays. False: there was none';


--
-- Name: delete_partitioning(text, text, boolean); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.delete_partitioning(datasetid text, partitioning text, dry_run boolean DEFAULT false) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    found_batches bigint;
BEGIN
    PERFORM dataflow._known_dataset(delete_partitioning.datasetid);
    IF NOT EXISTS (SELECT FROM dataflow.partitioning p WHERE p.datasetid = delete_partitioning.datasetid AND p.partitioning = delete_partitioning.partitioning) THEN
        RAISE EXCEPTION 'dataset % has no partitioning %', datasetid, partitioning USING ERRCODE = 'DF404',
            HINT = coalesce('it has ' || (SELECT string_agg(p.partitioning, ', ' ORDER BY p.partitioning) FROM dataflow.partitioning p WHERE p.datasetid = delete_partitioning.datasetid),
                'it has none');
    END IF;
    SELECT count(*) INTO found_batches FROM dataflow.batch b WHERE b.datasetid = delete_partitioning.datasetid AND b.partitioning = delete_partitioning.partitioning;
    IF NOT dry_run THEN
        -- refused for a chunk that is being read
        PERFORM dataflow.delete_chunk(b.datasetid, b.dataid) FROM dataflow.batch b
            WHERE b.datasetid = delete_partitioning.datasetid AND b.partitioning = delete_partitioning.partitioning;
        DELETE FROM dataflow.partitioning p WHERE p.datasetid = delete_partitioning.datasetid AND p.partitioning = delete_partitioning.partitioning;
    END IF;
    RETURN found_batches;
END $$;


ALTER FUNCTION dataflow.delete_partitioning(datasetid text, partitioning text, dry_run boolean) OWNER TO dataflow_admin;

--
-- Name: FUNCTION delete_partitioning(datasetid text, partitioning text, dry_run boolean); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.delete_partitioning(datasetid text, partitioning text, dry_run boolean) IS 'Forgets a partitioning and its chunks; what jobs made of them stays. Refused while one is being read. Returns the number of batches';


--
-- Name: delete_runs(text, text[], boolean, integer); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.delete_runs(jobid text, patterns text[] DEFAULT NULL::text[], dry_run boolean DEFAULT false, at_most integer DEFAULT 1000000) RETURNS TABLE(dataid text, status text, chunks bigint, attempts bigint, versions bigint, quarantined bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    is_literal constant boolean := coalesce(dataflow._are_literal(patterns), false);
    chosen text[];
    busy text;
BEGIN
    PERFORM dataflow._known_job(delete_runs.jobid);
    chosen := ARRAY(
        SELECT k.dataid FROM (
            SELECT s.dataid::text FROM dataflow.job_output o JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.locktype = 'OUT'
            WHERE o.jobid = delete_runs.jobid AND (NOT is_literal OR s.dataid = ANY (patterns))
            UNION SELECT a.dataid FROM dataflow.attempt a WHERE a.jobid = delete_runs.jobid AND (NOT is_literal OR a.dataid = ANY (patterns))
            UNION SELECT q.dataid FROM dataflow.quarantine q WHERE q.jobid = delete_runs.jobid AND (NOT is_literal OR q.dataid = ANY (patterns))
        ) AS k
        WHERE is_literal OR patterns IS NULL OR EXISTS (SELECT FROM unnest(patterns) AS p WHERE dataflow.matches(k.dataid, p))
        ORDER BY dataflow.sortkey(k.dataid) LIMIT at_most);
    SELECT format('%s/%s', s.datasetid, s.dataid) INTO busy
    FROM unnest(chosen) AS c (dataid) JOIN dataflow.job_output o ON o.jobid = delete_runs.jobid
    JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = c.dataid
    WHERE s.status = 'RUNNING' ORDER BY 1 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'chunk % is being written or read: nothing was deleted', busy USING ERRCODE = 'DF409',
            HINT = format('wait, or dataflowctl cancel %s; dataflowctl pause %s keeps new ones from starting', jobid, jobid);
    END IF;
    RETURN QUERY
    SELECT c.dataid, max(s.status), count(s.datasetid),
        (SELECT count(*) FROM dataflow.attempt a WHERE a.jobid = delete_runs.jobid AND a.dataid = c.dataid),
        coalesce(sum((SELECT count(*) FROM dataflow.manifest m WHERE m.datasetid = s.datasetid AND m.dataid = s.dataid)), 0)::bigint,
        (SELECT count(*) FROM dataflow.quarantine q WHERE q.jobid = delete_runs.jobid AND q.dataid = c.dataid)
    FROM unnest(chosen) WITH ORDINALITY AS c (dataid, place)
    LEFT JOIN dataflow.job_output o ON o.jobid = delete_runs.jobid
    LEFT JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = c.dataid AND s.locktype = 'OUT'
    GROUP BY c.dataid, c.place ORDER BY c.place;
    IF dry_run THEN
        RETURN;
    END IF;
    DELETE FROM dataflow.datastatus s
    USING dataflow.attempt a, jsonb_object_keys(a.inputs) AS i
    WHERE a.jobid = delete_runs.jobid AND a.dataid = ANY (chosen) AND s.datasetid = split_part(i, '/', 1) AND s.dataid = split_part(i, '/', 2)
        AND s.locktype = 'IN' AND s.jobid = a.jobid AND s.run = a.dataid;
    PERFORM dataflow.delete_chunk(o.datasetid, c.dataid) FROM unnest(chosen) AS c (dataid), dataflow.job_output o WHERE o.jobid = delete_runs.jobid;
    WITH gone AS (
        DELETE FROM dataflow.attempt a WHERE a.jobid = delete_runs.jobid AND a.dataid = ANY (chosen)
        RETURNING a.attempt, a.jobid, a.dataid, a.claimed, a.ended, a.started, a.outcome
    )
    INSERT INTO dataflow.forgotten (attempt, datasetid, dataid, claimed, ended)
    SELECT g.attempt, o.datasetid, g.dataid, g.claimed, dataflow._written_until(g.outcome, g.ended)
    FROM gone g JOIN dataflow.job_output o ON o.jobid = g.jobid WHERE dataflow._may_have_written(g.outcome, g.started)
    ON CONFLICT DO NOTHING;
    DELETE FROM dataflow.quarantine q WHERE q.jobid = delete_runs.jobid AND q.dataid = ANY (chosen);
END $$;


ALTER FUNCTION dataflow.delete_runs(jobid text, patterns text[], dry_run boolean, at_most integer) OWNER TO dataflow_admin;

--
-- Name: FUNCTION delete_runs(jobid text, patterns text[], dry_run boolean, at_most integer); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.delete_runs(jobid text, patterns text[], dry_run boolean, at_most integer) IS 'Forgets runs of a job: status, locks, attempts, versions, statistics and quarantine. Files stay until they are collected, history stays, and a run whose inputs are READY is queued anew. dry_run => true only shows them';


--
-- Name: expire_daemon(text, uuid); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.expire_daemon(daemon text, incarnation uuid) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    UPDATE dataflow.daemon d SET lease_until = clock_timestamp()
        WHERE d.daemon = expire_daemon.daemon AND d.incarnation = expire_daemon.incarnation AND d.lease_until > clock_timestamp();
    RETURN FOUND;
END $$;


ALTER FUNCTION dataflow.expire_daemon(daemon text, incarnation uuid) OWNER TO dataflow_admin;

--
-- Name: FUNCTION expire_daemon(daemon text, incarnation uuid); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.expire_daemon(daemon text, incarnation uuid) IS 'Ends the lease of a daemon whose process is known to be dead (its host says so), so that rescue() need not wait for it';


--
-- Name: finish(jsonb); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.finish(results jsonb) RETURNS TABLE(attempt bigint, verdict text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '100ms'
    AS $_$
#variable_conflict use_column
DECLARE
    result jsonb;
BEGIN
    IF jsonb_typeof(results) IS DISTINCT FROM 'array' OR EXISTS (
        SELECT FROM jsonb_array_elements(results) AS r
        WHERE NOT coalesce(r ->> 'outcome' IN ('DONE', 'FAILED', 'RETURNED') AND r ->> 'attempt' ~ '^[0-9]{1,18}$'
            AND r ->> 'token' ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$', false)) THEN
        RAISE EXCEPTION 'finish needs a list of results with attempt, token and outcome' USING ERRCODE = 'DF400',
            HINT = 'outcome is DONE, FAILED or RETURNED';
    END IF;
    BEGIN
        RETURN QUERY SELECT * FROM dataflow._finish(results);
        RETURN;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
        NULL;
    END;
    FOR result IN SELECT jsonb_array_elements(results) LOOP
        BEGIN
            RETURN QUERY SELECT * FROM dataflow._finish(jsonb_build_array(result));
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            RETURN QUERY SELECT (result ->> 'attempt')::bigint, 'busy';
        END;
    END LOOP;
END $_$;


ALTER FUNCTION dataflow.finish(results jsonb) OWNER TO dataflow_admin;

--
-- Name: FUNCTION finish(results jsonb); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.finish(results jsonb) IS 'Ends attempts, a batch at a time, and publishes what they made. Per attempt: accepted; fenced (it lost its claim: stop, throw its output away); busy (somebody has its rows locked: offer it again)';


--
-- Name: five_questions(text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.five_questions(jobid text, dataid text) RETURNS TABLE(number integer, question text, answer boolean, code text, detail text)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_job(five_questions.jobid);
    PERFORM dataflow._checked_dataid(five_questions.dataid);
    RETURN QUERY
    SELECT q.number, q.question, q.no IS NULL, CASE WHEN q.no IS NOT NULL THEN q.code END, coalesce(q.no, q.yes)
    FROM dataflow._evaluate(ARRAY[five_questions.jobid], ARRAY[five_questions.dataid]) AS e,
        LATERAL (VALUES
            (1, 'Is the data ready?', 'DATA_NOT_READY', e.not_ready, coalesce((
                SELECT string_agg(format('%s v%s', key, value), ', ' ORDER BY key) FROM jsonb_each_text(e.inputs)), '')),
            (2, 'Is it the right data?', 'WRONG_DATA', e.wrong_data, 'every input has a chunk for this dataid'),
            (3, 'Is it in the right place?', 'INVALID_PATH', e.invalid_path, 'every dataset says where its data is'),
            (4, 'Has it been validated?', 'NOT_VALIDATED', e.not_validated, 'every input is validated'),
            (5, 'Is it safe to access?', 'LOCKED', e.locked, 'no input and no output is locked')
        ) AS q (number, question, code, no, yes);
END $$;


ALTER FUNCTION dataflow.five_questions(jobid text, dataid text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION five_questions(jobid text, dataid text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.five_questions(jobid text, dataid text) IS 'May this job run on this dataid now? One row a question; the claim obeys the same answers. SELECT * FROM dataflow.five_questions(''clean_orders'', ''2026-01-01'')';


--
-- Name: fixed_paths(text, text, integer); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.fixed_paths(after_dataset text DEFAULT ''::text, after_dataid text DEFAULT ''::text, at_most integer DEFAULT 5000) RETURNS TABLE(datasetid text, dataid text, location text, current text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT d.datasetid::text, s.dataid::text, d.location, m.location
    FROM dataflow.dataset d
    JOIN dataflow.datastatus s ON s.datasetid = d.datasetid AND s.locktype = 'OUT'
    JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest
    WHERE d.publish = 'rename' AND (d.datasetid::text, s.dataid::text) > (after_dataset, after_dataid)
    ORDER BY d.datasetid::text, s.dataid::text
    LIMIT at_most
$$;


ALTER FUNCTION dataflow.fixed_paths(after_dataset text, after_dataid text, at_most integer) OWNER TO dataflow_admin;

--
-- Name: FUNCTION fixed_paths(after_dataset text, after_dataid text, at_most integer); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.fixed_paths(after_dataset text, after_dataid text, at_most integer) IS 'Chunks that are published at a fixed path, location/dataid=<id>, and the directory that each has to lead to; a page at a time';


--
-- Name: flow_conflicts(jsonb, boolean); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.flow_conflicts(declared jsonb, prune boolean DEFAULT false) RETURNS TABLE(kind text, name text, datasetid text, what text, remedy text)
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    WITH wanted_dataset AS (
        SELECT item ->> 'datasetid' AS datasetid FROM jsonb_array_elements(declared -> 'datasets') AS item
    ),
    wanted_job AS (
        SELECT item ->> 'jobid' AS jobid, item -> 'inputs' AS inputs, item -> 'outputs' AS outputs
        FROM jsonb_array_elements(declared -> 'jobs') AS item
    ),
    wanted_output AS (
        SELECT w.jobid, o AS datasetid FROM wanted_job AS w, jsonb_array_elements_text(w.outputs) AS o
    ),
    wanted_input AS (
        SELECT w.jobid, i AS datasetid FROM wanted_job AS w, jsonb_object_keys(w.inputs) AS i
    )
    SELECT 'dataset', d.datasetid::text, NULL::text,
        format('dataset %s belongs to flow %s', d.datasetid, d.flow),
        format('rename it here, or remove it from flow %s and apply that with --prune first', d.flow)
    FROM wanted_dataset AS w JOIN dataflow.dataset AS d USING (datasetid)
    WHERE d.flow NOT IN ('', declared ->> 'name') AND d.retired IS NULL
    UNION ALL
    SELECT 'job', j.jobid::text, NULL,
        format('job %s belongs to flow %s', j.jobid, j.flow),
        format('rename it here, or remove it from flow %s and apply that with --prune first', j.flow)
    FROM wanted_job AS w JOIN dataflow.job AS j USING (jobid)
    WHERE j.flow NOT IN ('', declared ->> 'name') AND j.retired IS NULL
    UNION ALL
    SELECT 'outputs', w.jobid, w.datasetid,
        format('dataset %s is produced by job %s of flow %s', w.datasetid, j.jobid, j.flow),
        CASE WHEN j.flow = declared ->> 'name'
            THEN 'this flow no longer declares that job: apply with --prune to retire it'
            ELSE 'a dataset has one producer; give this job an output of its own' END
    FROM wanted_output AS w
    JOIN dataflow.job_output AS o USING (datasetid)
    JOIN dataflow.job AS j ON j.jobid = o.jobid AND j.jobid <> w.jobid
    WHERE NOT EXISTS (SELECT FROM wanted_job AS mine WHERE mine.jobid = j.jobid AND j.flow IN ('', declared ->> 'name'))
        AND NOT (prune AND j.flow = declared ->> 'name')
    UNION ALL
    SELECT n.kind, n.jobid, n.datasetid,
        format('job %s names dataset %s, which does not exist', n.jobid, n.datasetid),
        'declare it in this flow'
    FROM (
        SELECT 'inputs' AS kind, i.jobid, i.datasetid FROM wanted_input AS i
        UNION ALL
        SELECT 'outputs', o.jobid, o.datasetid FROM wanted_output AS o
    ) AS n
    WHERE NOT EXISTS (SELECT FROM wanted_dataset AS w WHERE w.datasetid = n.datasetid)
        AND NOT EXISTS (SELECT FROM dataflow.dataset AS d WHERE d.datasetid = n.datasetid AND d.retired IS NULL)
    UNION ALL
    SELECT 'dataset', d.datasetid::text, NULL,
        format('dataset %s would be retired, but job %s of flow %s uses it', d.datasetid, j.jobid, j.flow),
        'keep declaring it, or change that flow first'
    FROM dataflow.dataset AS d
    JOIN (
        SELECT i.datasetid, i.jobid FROM dataflow.job_input AS i
        UNION
        SELECT o.datasetid, o.jobid FROM dataflow.job_output AS o
    ) AS u USING (datasetid)
    JOIN dataflow.job AS j ON j.jobid = u.jobid AND j.retired IS NULL AND j.flow <> declared ->> 'name'
    WHERE prune AND d.flow = declared ->> 'name' AND d.retired IS NULL
        AND NOT EXISTS (SELECT FROM wanted_dataset AS w WHERE w.datasetid = d.datasetid)
    ORDER BY 1, 2, 3
$$;


ALTER FUNCTION dataflow.flow_conflicts(declared jsonb, prune boolean) OWNER TO dataflow_admin;

--
-- Name: FUNCTION flow_conflicts(declared jsonb, prune boolean); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.flow_conflicts(declared jsonb, prune boolean) IS 'Why a flow cannot be applied: what it declares belongs to another, or does not exist';


--
-- Name: fold_counters(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.fold_counters() RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    folded integer;
BEGIN
    -- One folder at a time; who comes second has nothing to do.
    IF NOT pg_try_advisory_xact_lock(hashtextextended('dataflow.fold', 0)) THEN
        RETURN 0;
    END IF;
    WITH taken AS (
        DELETE FROM dataflow.counter RETURNING datasetid, jobid, locktype, status, chunks
    ), summed AS (
        INSERT INTO dataflow.counter (datasetid, jobid, locktype, status, chunks)
        SELECT t.datasetid, t.jobid, t.locktype, t.status, sum(t.chunks) FROM taken t
        GROUP BY t.datasetid, t.jobid, t.locktype, t.status HAVING sum(t.chunks) <> 0
    )
    SELECT count(*) INTO folded FROM taken;
    RETURN folded;
END $$;


ALTER FUNCTION dataflow.fold_counters() OWNER TO dataflow_admin;

--
-- Name: FUNCTION fold_counters(); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.fold_counters() IS 'Adds up the differences in dataflow.counter; the sums stay the same. Daemons call it now and then';


--
-- Name: history(text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.history(jobid text, dataid text) RETURNS TABLE(at timestamp with time zone, actor text, application text, kind text, datasetid text, attempt bigint, from_status text, to_status text, code text, reason text)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_job(history.jobid);
    RETURN QUERY
    SELECT e.at, e.actor, e.application, e.kind, e.datasetid, e.attempt, e.from_status, e.to_status, e.code, e.reason
    FROM dataflow.event e WHERE e.jobid = history.jobid AND e.dataid = history.dataid ORDER BY e.event;
END $$;


ALTER FUNCTION dataflow.history(jobid text, dataid text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION history(jobid text, dataid text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.history(jobid text, dataid text) IS 'The story of a run in order: every transition, and every change of what it waited for';


--
-- Name: hold(text, text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.hold(datasetid text, dataid text, reason text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    was text;
BEGIN
    PERFORM dataflow._known_dataset(hold.datasetid);
    PERFORM dataflow._checked_dataid(hold.dataid);
    SELECT s.status INTO was FROM dataflow.datastatus s
        WHERE s.datasetid = hold.datasetid AND s.dataid = hold.dataid AND s.locktype = 'OUT' FOR UPDATE;
    -- A claim cannot see a row that is not committed yet, and would wait for it; the lock tells it to step aside. Where a
    -- daemon has it, there is a row.
    PERFORM pg_try_advisory_xact_lock(dataflow._run_lock(o.jobid, hold.dataid)) FROM dataflow.job_output o WHERE o.datasetid = hold.datasetid;
    INSERT INTO dataflow.datastatus AS s (datasetid, dataid, jobid, run, status, held_from, reason, sortkey)
    SELECT d.datasetid, hold.dataid, coalesce(o.jobid, ''), hold.dataid, 'HOLD', 'NONE', hold.reason, dataflow._ordered(d.ordering, hold.dataid)
        FROM dataflow.dataset d LEFT JOIN dataflow.job_output o ON o.datasetid = d.datasetid WHERE d.datasetid = hold.datasetid
    ON CONFLICT (datasetid, dataid, locktype, jobid, run) DO UPDATE SET
        status = 'HOLD', modified = now(), reason = excluded.reason,
        held_from = coalesce(s.held_from, CASE s.status WHEN 'RUNNING' THEN 'RESUBMIT' ELSE s.status END);
    RETURN coalesce(was, 'NONE');
END $$;


ALTER FUNCTION dataflow.hold(datasetid text, dataid text, reason text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION hold(datasetid text, dataid text, reason text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.hold(datasetid text, dataid text, reason text) IS 'Puts an operator''s hand on a chunk: nobody reads or writes it until release(). A running attempt is cancelled. Returns the status it had';


--
-- Name: hold_chunks(jsonb, text, boolean); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.hold_chunks(selector jsonb, reason text DEFAULT NULL::text, dry_run boolean DEFAULT false) RETURNS TABLE(datasetid text, dataid text, was text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._bounded_selector(selector);
    RETURN QUERY
    WITH chosen AS MATERIALIZED (
        SELECT c.datasetid, c.dataid, c.status, dataflow.sortkey(c.dataid) AS place FROM dataflow.select_chunks(selector) AS c WHERE c.status NOT IN ('HOLD', 'PENDING')
        UNION
        -- A chunk that is not there yet can be held by its name.
        SELECT d.datasetid, p, 'NONE', dataflow.sortkey(p)
        FROM dataflow._texts(selector -> 'dataid') AS p,
            LATERAL (
                SELECT selector ->> 'dataset' AS datasetid WHERE selector ? 'dataset'
                UNION SELECT o.datasetid FROM dataflow.job_output o WHERE o.jobid = selector ->> 'job' AND NOT selector ? 'dataset'
            ) AS d
        WHERE NOT selector ? 'status' AND NOT selector ? 'error' AND p !~ '[*?]' AND strpos(p, '..') = 0
            AND NOT EXISTS (SELECT FROM dataflow.datastatus s WHERE s.datasetid = d.datasetid AND s.dataid = p AND s.locktype = 'OUT')
    )
    SELECT c.datasetid, c.dataid, CASE WHEN dry_run THEN c.status ELSE dataflow.hold(c.datasetid, c.dataid, hold_chunks.reason) END
    FROM chosen c ORDER BY c.datasetid, c.place;
END $$;


ALTER FUNCTION dataflow.hold_chunks(selector jsonb, reason text, dry_run boolean) OWNER TO dataflow_admin;

--
-- Name: FUNCTION hold_chunks(selector jsonb, reason text, dry_run boolean); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.hold_chunks(selector jsonb, reason text, dry_run boolean) IS 'hold() for every chunk that a selector names (see select_chunks); a literal dataid also before the chunk exists. dry_run => true only shows them';


--
-- Name: job_stats(text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.job_stats(jobid text) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_job(job_stats.jobid);
    RETURN (
        SELECT jsonb_build_object('jobid', j.jobid, 'description', j.description, 'created', j.created, 'modified', j.modified, 'retired', j.retired,
            'flow', j.flow, 'kind', j.kind, 'code_hash', j.code_hash, 'config_hash', j.config_hash, 'inputs', j.inputs, 'outputs', j.outputs,
            'configuration', jsonb_build_object('params', j.params, 'max_running', j.max_running, 'max_attempts', j.max_attempts, 'retry_delay_seconds', j.retry_delay_seconds,
                'timeout_seconds', j.timeout_seconds, 'priority', j.priority, 'strict_order', j.strict_order, 'paused', j.paused),
            'chunks', (SELECT coalesce(jsonb_object_agg(c.status, c.chunks), '{}') FROM (
                SELECT n.status, max(n.chunks) AS chunks FROM dataflow.chunk_count n WHERE n.jobid = j.jobid GROUP BY n.status) AS c),
            'exceptions', (SELECT coalesce(jsonb_agg(jsonb_build_object('code', x.code, 'attempts', x.attempts, 'last', x.last, 'error', x.error) ORDER BY x.attempts DESC, x.code), '[]') FROM (
                SELECT a.code, count(*) AS attempts, max(a.ended) AS last, (array_agg(a.error ORDER BY a.ended DESC))[1] AS error
                FROM dataflow.attempt a WHERE a.jobid = j.jobid AND a.outcome IN ('FAILED', 'LOST', 'CANCELLED') GROUP BY a.code) AS x),
            'quarantine', (SELECT jsonb_build_object('open', count(*) FILTER (WHERE NOT q.is_resolved), 'resolved', count(*) FILTER (WHERE q.is_resolved))
                FROM dataflow.quarantine q WHERE q.jobid = j.jobid),
            'execution', (SELECT jsonb_build_object('attempts', count(*), 'done', count(*) FILTER (WHERE t.outcome = 'DONE'), 'failed', count(*) FILTER (WHERE t.outcome = 'FAILED'),
                    'lost', count(*) FILTER (WHERE t.outcome = 'LOST'), 'cancelled', count(*) FILTER (WHERE t.outcome = 'CANCELLED'), 'running', count(*) FILTER (WHERE t.outcome IS NULL),
                    'first', min(t.claimed), 'last', max(t.ended), 'seconds', jsonb_build_object('total', sum(t.seconds), 'least', min(t.seconds), 'mean', avg(t.seconds),
                        'median', percentile_cont(0.5) WITHIN GROUP (ORDER BY t.seconds), 'p95', percentile_cont(0.95) WITHIN GROUP (ORDER BY t.seconds), 'most', max(t.seconds)))
                FROM (SELECT a.outcome, a.claimed, a.ended, round(extract(epoch FROM a.ended - coalesce(a.started, a.claimed)), 3)::double precision AS seconds
                    FROM dataflow.attempt a WHERE a.jobid = j.jobid) AS t),
            'published', (SELECT jsonb_build_object('rows', coalesce(sum(m.rows), 0), 'bytes', coalesce(sum(m.bytes), 0))
                FROM dataflow.job_output o JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.locktype = 'OUT' AND s.status = 'READY'
                JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest WHERE o.jobid = j.jobid),
            'nodes', (SELECT coalesce(jsonb_agg(to_jsonb(n) - 'place' ORDER BY n.place, n.node), '[]') FROM (
                SELECT k.node, min(k.ordinal) AS place, count(*) AS attempts, sum(k.items) AS items, sum(k.successes) AS successes, sum(k.failures) AS failures, sum(k.seconds) AS seconds
                FROM dataflow.attempt a JOIN dataflow.node_stat k ON k.attempt = a.attempt WHERE a.jobid = j.jobid GROUP BY k.node) AS n))
        FROM dataflow.jobs j WHERE j.jobid = job_stats.jobid);
END $$;


ALTER FUNCTION dataflow.job_stats(jobid text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION job_stats(jobid text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.job_stats(jobid text) IS 'A job as one JSON object: created, flow, configuration, description, chunks, exceptions, quarantine, execution, published, nodes';


--
-- Name: lineage(text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.lineage(dataset text, chunk text DEFAULT NULL::text) RETURNS TABLE(direction text, depth integer, path text[], jobid text, datasetid text, dataid text, status text, version integer, code text)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    shown constant integer := 2000;
BEGIN
    PERFORM dataflow._known_dataset(dataset);
    IF chunk IS NULL THEN
        RETURN QUERY
        WITH RECURSIVE up AS (
            SELECT 0 AS depth, ARRAY[dataset COLLATE "C"] AS path, NULL::text COLLATE "C" AS jobid, dataset COLLATE "C" AS datasetid
            UNION ALL
            SELECT u.depth + 1, u.path || i.datasetid::text, o.jobid, i.datasetid
            FROM up u JOIN dataflow.job_output o ON o.datasetid = u.datasetid JOIN dataflow.job_input i ON i.jobid = o.jobid
            WHERE i.datasetid <> ALL (u.path)
        ), down AS (
            SELECT 0 AS depth, ARRAY[dataset COLLATE "C"] AS path, NULL::text COLLATE "C" AS jobid, dataset COLLATE "C" AS datasetid
            UNION ALL
            SELECT u.depth + 1, u.path || o.datasetid::text, o.jobid, o.datasetid
            FROM down u JOIN dataflow.job_input i ON i.datasetid = u.datasetid JOIN dataflow.job_output o ON o.jobid = i.jobid
            WHERE o.datasetid <> ALL (u.path)
        )
        (SELECT 'up', u.depth, u.path, u.jobid, u.datasetid, NULL::text, NULL::text, NULL::integer, NULL::text FROM up u LIMIT shown)
        UNION ALL
        (SELECT 'down', u.depth, u.path, u.jobid, u.datasetid, NULL, NULL, NULL, NULL FROM down u WHERE u.depth > 0 LIMIT shown)
        ORDER BY 1 DESC, 3;
        RETURN;
    END IF;
    PERFORM dataflow._checked_dataid(chunk);
    RETURN QUERY
    WITH RECURSIVE up AS (
        SELECT 0 AS depth, ARRAY[(dataset || '/' || chunk) COLLATE "C"] AS path, NULL::text COLLATE "C" AS jobid, dataset COLLATE "C" AS datasetid, chunk COLLATE "C" AS dataid
        UNION ALL
        SELECT u.depth + 1, u.path || (i.datasetid || '/' || i.dataid), o.jobid, i.datasetid, i.dataid
        FROM up u JOIN dataflow.job_output o ON o.datasetid = u.datasetid CROSS JOIN LATERAL dataflow.required_inputs(o.jobid, u.dataid) AS i
        WHERE i.datasetid || '/' || i.dataid <> ALL (u.path)
    ), down AS (
        SELECT 0 AS depth, ARRAY[(dataset || '/' || chunk) COLLATE "C"] AS path, NULL::text COLLATE "C" AS jobid, dataset COLLATE "C" AS datasetid, chunk COLLATE "C" AS dataid
        UNION ALL
        SELECT u.depth + 1, u.path || (o.datasetid || '/' || r.dataid), o.jobid, o.datasetid, r.dataid
        FROM down u CROSS JOIN LATERAL dataflow.affected_runs(u.datasetid, u.dataid) AS r JOIN dataflow.job_output o ON o.jobid = r.jobid
        WHERE o.datasetid || '/' || r.dataid <> ALL (u.path)
    ), found AS (
        (SELECT 'up' AS direction, u.* FROM up u LIMIT shown)
        UNION ALL
        (SELECT 'down', u.* FROM down u WHERE u.depth > 0 LIMIT shown)
    )
    SELECT f.direction, f.depth, f.path, f.jobid, f.datasetid, f.dataid, s.status, s.version, s.code
    FROM found f LEFT JOIN dataflow.datastatus s ON s.datasetid = f.datasetid AND s.dataid = f.dataid AND s.locktype = 'OUT'
    ORDER BY 1 DESC, 3;
END $$;


ALTER FUNCTION dataflow.lineage(dataset text, chunk text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION lineage(dataset text, chunk text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.lineage(dataset text, chunk text) IS 'What a dataset or chunk is made of (up) and what is made of it (down), at most 2000 rows each; path leads from it to the row';


--
-- Name: matches(text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.matches(dataid text, pattern text) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT CASE
        WHEN strpos(pattern, '..') > 0 THEN
            dataflow.sortkey(dataid) BETWEEN dataflow.sortkey(split_part(pattern, '..', 1)) AND dataflow.sortkey(split_part(pattern, '..', 2))
        WHEN pattern ~ '[*?]' THEN
            dataid LIKE replace(replace(replace(pattern, '_', '\_'), '*', '%'), '?', '_')
        ELSE dataid = pattern
    END
$$;


ALTER FUNCTION dataflow.matches(dataid text, pattern text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION matches(dataid text, pattern text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.matches(dataid text, pattern text) IS 'Whether a dataid fits a pattern: a glob (2026-01-*) or a range (2026-01-01..2026-01-31)';


--
-- Name: next_inputs(text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.next_inputs(jobid text) RETURNS TABLE(run text, datasetid text, dataid text, status text, version integer, format text, location text, files jsonb, rows bigint, bytes bigint, hostname text, port integer, database text, schemaname text, tablename text, username text, encryptedpass text, columns text, options jsonb)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_job(next_inputs.jobid);
    RETURN QUERY
    SELECT w.dataid::text, i.datasetid, i.dataid, l.*
    FROM (
        SELECT q.dataid FROM dataflow.work q WHERE q.jobid || '' = next_inputs.jobid AND q.not_before IS NULL
        ORDER BY q.sortkey LIMIT 1
    ) AS w
    CROSS JOIN LATERAL dataflow.required_inputs(next_inputs.jobid, w.dataid) AS i
    CROSS JOIN LATERAL dataflow.data_location(i.datasetid, i.dataid) AS l;
END $$;


ALTER FUNCTION dataflow.next_inputs(jobid text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION next_inputs(jobid text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.next_inputs(jobid text) IS 'The input chunks of the run that a job would do next: neither processed nor being processed, with all that is needed to read them';


--
-- Name: next_tick(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.next_tick() RETURNS timestamp with time zone
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT min(dataflow._calendar_due(d, d.calendar_next)) FROM dataflow.dataset d WHERE d.calendar IS NOT NULL AND d.retired IS NULL
$$;


ALTER FUNCTION dataflow.next_tick() OWNER TO dataflow_admin;

--
-- Name: FUNCTION next_tick(); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.next_tick() IS 'When the next period of a calendar is due';


--
-- Name: output_dataid(text, text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.output_dataid(jobid text, datasetid text, dataid text) RETURNS SETOF text
    LANGUAGE plpgsql STABLE
    AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM dataflow.job_input i WHERE i.jobid = output_dataid.jobid AND i.datasetid = output_dataid.datasetid) THEN
        RAISE EXCEPTION 'job % does not read dataset %', jobid, datasetid USING ERRCODE = 'DF404',
            HINT = 'see SELECT * FROM dataflow.job_input';
    END IF;
    RETURN QUERY SELECT r.dataid FROM dataflow.affected_runs(output_dataid.datasetid, output_dataid.dataid) r WHERE r.jobid = output_dataid.jobid;
END $$;


ALTER FUNCTION dataflow.output_dataid(jobid text, datasetid text, dataid text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION output_dataid(jobid text, datasetid text, dataid text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.output_dataid(jobid text, datasetid text, dataid text) IS 'The dataids that a job makes out of one input chunk';


--
-- Name: overview(text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.overview(jobid text DEFAULT NULL::text) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    jobs jsonb;
    causes jsonb;
    daemons jsonb;
    limits record;
    alive bigint;
    queued numeric;
    held numeric;
    quarantined numeric;
    hands jsonb;
BEGIN
    IF overview.jobid IS NOT NULL THEN
        PERFORM dataflow._known_job(overview.jobid);
    END IF;
    SELECT l.concurrency, l.paused, l.running INTO limits FROM dataflow.limits l WHERE l.scope = 'global';
    SELECT coalesce(jsonb_agg(to_jsonb(d) ORDER BY d.daemon), '[]'), count(*) FILTER (WHERE d.state = 'ALIVE') INTO daemons, alive
        FROM dataflow.daemons d WHERE d.state <> 'STOPPED';
    SELECT coalesce(jsonb_agg(to_jsonb(c)), '[]') INTO causes FROM dataflow.causes(overview.jobid) AS c;
    SELECT coalesce(jsonb_agg(jsonb_build_object(
            'jobid', s.jobid, 'done', s.ready, 'running', s.running, 'limit', s.max_running, 'waiting', s.queued, 'retry_later', s.retry_later,
            'failed', s.failed, 'resubmit', s.resubmit, 'held', s.held, 'quarantined', s.quarantined, 'oldest_waiting', s.oldest_queued,
            'per_hour', round(r.per_hour::numeric, 1), 'eta_seconds', round(((s.queued + s.running) * 3600 / nullif(r.per_hour, 0))::numeric), 'paused', s.paused)
            ORDER BY s.failed > 0 DESC, s.running > 0 DESC, s.queued > 0 DESC, s.jobid), '[]'),
        coalesce(sum(s.queued), 0), coalesce(sum(s.quarantined), 0)
    INTO jobs, queued, quarantined
    FROM dataflow.status() AS s LEFT JOIN dataflow.rates() AS r ON r.jobid = s.jobid
    WHERE overview.jobid IS NULL OR s.jobid = overview.jobid;

    SELECT coalesce(sum(c.chunks), 0) INTO held FROM dataflow.chunk_count c
        WHERE c.status IN ('HOLD', 'PENDING') AND (overview.jobid IS NULL OR c.jobid = overview.jobid);
    SELECT coalesce(jsonb_agg(jsonb_build_object('code', h.code, 'count', h.count, 'detail', h.detail, 'remedy', h.remedy) ORDER BY h.place, h.count DESC, h.code), '[]')
    INTO hands FROM (
        SELECT 1 AS place, 'NO_DAEMON' AS code, queued AS count, format('%s runs are ready and no daemon is alive', queued) AS detail, 'start dataflowd' AS remedy
        WHERE queued > 0 AND alive = 0
        UNION ALL
        SELECT 2, 'PAUSED', queued, format('everything is paused; %s runs wait', queued), 'dataflowctl resume' WHERE limits.paused
        UNION ALL
        SELECT 2, 'LIMIT_ZERO', queued, format('the global limit is 0; %s runs wait', queued), 'dataflowctl concurrency 4' WHERE limits.concurrency = 0
        UNION ALL
        SELECT 3, 'LOST_DAEMON', (d ->> 'running')::numeric, format('daemon %s on %s has not answered since %s; %s attempts were its own',
            d ->> 'daemon', d ->> 'hostname', to_char((d ->> 'lease_until')::timestamptz, 'YYYY-MM-DD HH24:MI:SSOF'), d ->> 'running'),
            format('another daemon rescues them; look after %s', d ->> 'hostname')
        FROM jsonb_array_elements(daemons) AS d WHERE d ->> 'state' = 'LOST' AND (d ->> 'running')::int > 0
        UNION ALL
        SELECT 4, c ->> 'code', (c ->> 'runs')::numeric - (c ->> 'retrying')::numeric,
            format('%s of %s FAILED: %s', dataflow._counted((c ->> 'runs')::bigint - (c ->> 'retrying')::bigint, 'run'),
                dataflow._counted((c ->> 'jobs')::bigint, 'job'), coalesce(split_part(c ->> 'reason', E'\n', 1), 'no reason is known')),
            concat_ws(', then ', format('dataflowctl why %s %s', c ->> 'example_jobid', c ->> 'example_dataid'), format('dataflowctl resubmit --error %s', c ->> 'code'))
        FROM jsonb_array_elements(causes) AS c WHERE (c ->> 'runs')::bigint > (c ->> 'retrying')::bigint
        UNION ALL
        SELECT 5, 'HELD', held, format('%s held by an operator', chunks), 'dataflowctl release --status HOLD --dry-run'
        FROM dataflow._counted(held::bigint, 'chunk') AS chunks WHERE held > 0
        UNION ALL
        SELECT 6, 'QUARANTINED', quarantined, format('%s set aside', records), 'dataflowctl quarantine list'
        FROM dataflow._counted(quarantined::bigint, 'record') AS records WHERE quarantined > 0
    ) AS h;
    RETURN jsonb_build_object('at', now(), 'running', limits.running, 'limit', limits.concurrency, 'paused', limits.paused, 'waiting', queued,
        'needs_hand', hands, 'causes', causes, 'daemons', daemons, 'jobs', jobs);
END $$;


ALTER FUNCTION dataflow.overview(jobid text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION overview(jobid text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.overview(jobid text) IS 'All that `dataflowctl status` shows, what needs a hand first: needs_hand, causes, daemons, jobs. Cheap at any size';


--
-- Name: partitionings(text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.partitionings(dataset text DEFAULT NULL::text) RETURNS TABLE(datasetid text, partitioning text, key_columns text[], kind text, size bigint, created timestamp with time zone, batches bigint, items bigint, ready bigint, held bigint, consumed bigint)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    IF partitionings.dataset IS NOT NULL THEN
        PERFORM dataflow._known_dataset(partitionings.dataset);
    END IF;
    RETURN QUERY
    SELECT p.datasetid::text, p.partitioning::text, p.key_columns, p.kind, p.size, p.created, n.batches, n.items, n.ready, n.held, n.consumed
    FROM dataflow.partitioning p
    CROSS JOIN LATERAL (
        SELECT count(*) AS batches, sum(b.items)::bigint AS items, count(*) FILTER (WHERE s.status = 'READY') AS ready,
            count(*) FILTER (WHERE s.status IN ('HOLD', 'PENDING')) AS held,
            count(*) FILTER (WHERE EXISTS (
                SELECT FROM dataflow.datastatus r WHERE r.datasetid = b.datasetid AND r.dataid = b.dataid AND r.locktype = 'IN' AND r.status = 'DONE')) AS consumed
        FROM dataflow.batch b
        LEFT JOIN dataflow.datastatus s ON s.datasetid = b.datasetid AND s.dataid = b.dataid AND s.locktype = 'OUT'
        WHERE b.datasetid = p.datasetid AND b.partitioning = p.partitioning
    ) AS n
    WHERE partitionings.dataset IS NULL OR p.datasetid = partitionings.dataset
    ORDER BY p.datasetid, p.partitioning;
END $$;


ALTER FUNCTION dataflow.partitionings(dataset text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION partitionings(dataset text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.partitionings(dataset text) IS 'Partitionings with the state of their batches; consumed: by at least one job';


--
-- Name: pause(text, boolean); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.pause(scope text DEFAULT 'global'::text, paused boolean DEFAULT true) RETURNS void
    LANGUAGE sql
    AS $$
    -- The row that is proposed has to be a valid one, also where it is there already.
    INSERT INTO dataflow.control (scope, concurrency, paused)
    VALUES (pause.scope, (SELECT c.concurrency FROM dataflow.control c WHERE c.scope = pause.scope), pause.paused)
    ON CONFLICT (scope) DO UPDATE SET paused = excluded.paused
$$;


ALTER FUNCTION dataflow.pause(scope text, paused boolean) OWNER TO dataflow_admin;

--
-- Name: FUNCTION pause(scope text, paused boolean); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.pause(scope text, paused boolean) IS 'Stops claiming in a scope; what runs goes on. pause(scope, false) resumes';


--
-- Name: pause_scopes(text[], text, text, boolean); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.pause_scopes(jobs text[] DEFAULT NULL::text[], dataset text DEFAULT NULL::text, daemon text DEFAULT NULL::text, paused boolean DEFAULT true) RETURNS TABLE(scope text, was boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    scopes text[];
    fruitless text;
BEGIN
    IF dataset IS NOT NULL THEN
        PERFORM dataflow._known_dataset(dataset);
    END IF;
    SELECT p INTO fruitless FROM unnest(jobs) AS p WHERE NOT EXISTS (SELECT FROM dataflow.job j WHERE dataflow.matches(j.jobid, p)) LIMIT 1;
    IF FOUND THEN
        PERFORM dataflow._known_job(fruitless);
    END IF;
    scopes := ARRAY(
        SELECT 'job:' || j.jobid FROM dataflow.job j WHERE EXISTS (SELECT FROM unnest(jobs) AS p WHERE dataflow.matches(j.jobid, p))
        UNION SELECT 'job:' || o.jobid FROM dataflow.job_output o WHERE o.datasetid = dataset
        UNION SELECT 'daemon:' || daemon WHERE daemon IS NOT NULL
        UNION SELECT 'global' WHERE cardinality(coalesce(jobs, '{}')) = 0 AND dataset IS NULL AND daemon IS NULL
        ORDER BY 1);
    IF cardinality(scopes) = 0 THEN
        RAISE EXCEPTION 'no job produces dataset %', dataset USING ERRCODE = 'DF404', HINT = 'dataflowctl hold --dataset locks its chunks';
    END IF;
    RETURN QUERY
    WITH before AS MATERIALIZED (
        SELECT s AS scope, coalesce(c.paused, false) AS was FROM unnest(scopes) AS s LEFT JOIN dataflow.control c ON c.scope = s
    ), changed AS MATERIALIZED (
        SELECT b.scope, b.was, CASE WHEN b.was <> pause_scopes.paused THEN dataflow.pause(b.scope, pause_scopes.paused) END FROM before b
    )
    SELECT c.scope, c.was FROM changed c ORDER BY c.scope;
END $$;


ALTER FUNCTION dataflow.pause_scopes(jobs text[], dataset text, daemon text, paused boolean) OWNER TO dataflow_admin;

--
-- Name: FUNCTION pause_scopes(jobs text[], dataset text, daemon text, paused boolean); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.pause_scopes(jobs text[], dataset text, daemon text, paused boolean) IS 'pause() for jobs (names or globs), the producer of a dataset, or a daemon; without any of them, for everything. Returns the scopes and whether each was paused before';


--
-- Name: period_add(text, timestamp with time zone, integer, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.period_add(unit text, start timestamp with time zone, periods integer, zone text) RETURNS timestamp with time zone
    LANGUAGE sql STABLE STRICT PARALLEL SAFE
    AS $$
    SELECT CASE unit
        WHEN 'hour' THEN start + make_interval(hours => periods)
        -- Where midnight is skipped, a day starts at one o'clock, and the next at midnight all the same.
        ELSE (date_trunc(unit, start AT TIME ZONE zone) + CASE unit
            WHEN 'day' THEN make_interval(days => periods)
            WHEN 'week' THEN make_interval(weeks => periods)
            WHEN 'month' THEN make_interval(months => periods)
            WHEN 'year' THEN make_interval(years => periods)
        END) AT TIME ZONE zone
    END
$$;


ALTER FUNCTION dataflow.period_add(unit text, start timestamp with time zone, periods integer, zone text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION period_add(unit text, start timestamp with time zone, periods integer, zone text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.period_add(unit text, start timestamp with time zone, periods integer, zone text) IS 'The start of the period that lies so many periods later: days of 23 and 25 hours are days';


--
-- Name: period_id(text, timestamp with time zone, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.period_id(unit text, moment timestamp with time zone, zone text) RETURNS text
    LANGUAGE sql STABLE STRICT PARALLEL SAFE
    AS $$
    SELECT to_char(moment AT TIME ZONE CASE unit WHEN 'hour' THEN 'UTC' ELSE zone END, CASE unit
        WHEN 'hour' THEN 'YYYY-MM-DD"T"HH24'
        WHEN 'day' THEN 'YYYY-MM-DD'
        WHEN 'week' THEN 'IYYY-"W"IW'
        WHEN 'month' THEN 'YYYY-MM'
        WHEN 'year' THEN 'YYYY'
    END)
$$;


ALTER FUNCTION dataflow.period_id(unit text, moment timestamp with time zone, zone text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION period_id(unit text, moment timestamp with time zone, zone text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.period_id(unit text, moment timestamp with time zone, zone text) IS 'The dataid of the hour (UTC), day, week, month or year that a moment falls into, in a time zone';


--
-- Name: period_start(text, text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.period_start(unit text, dataid text, zone text) RETURNS timestamp with time zone
    LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
    AS $_$
#variable_conflict use_column
DECLARE
    part text[];
    first_of_month date;
    day date;
BEGIN
    part := regexp_match(dataid, CASE unit
        WHEN 'hour' THEN '^(\d{4})-(\d{2})-(\d{2})T(\d{2})$'
        WHEN 'day' THEN '^(\d{4})-(\d{2})-(\d{2})$'
        WHEN 'week' THEN '^(\d{4})-W(\d{2})$'
        WHEN 'month' THEN '^(\d{4})-(\d{2})$'
        WHEN 'year' THEN '^(\d{4})$'
    END);
    IF part IS NULL OR part[1] = '0000' THEN
        RETURN NULL;
    END IF;
    IF unit = 'week' THEN
        day := make_date(part[1]::int, 1, 4);
        day := day - (extract(isodow FROM day)::int - 1) + (part[2]::int - 1) * 7;
        RETURN CASE WHEN to_char(day, 'IYYY-"W"IW') = dataid THEN day::timestamp AT TIME ZONE zone END;
    END IF;
    IF unit = 'year' THEN
        RETURN make_date(part[1]::int, 1, 1)::timestamp AT TIME ZONE zone;
    END IF;
    IF part[2] NOT BETWEEN '01' AND '12' THEN
        RETURN NULL;
    END IF;
    first_of_month := make_date(part[1]::int, part[2]::int, 1);
    IF unit = 'month' THEN
        RETURN first_of_month::timestamp AT TIME ZONE zone;
    END IF;
    day := first_of_month + part[3]::int - 1;
    IF part[3] = '00' OR to_char(day, 'MM') <> part[2] OR (unit = 'hour' AND part[4] > '23') THEN
        RETURN NULL;
    END IF;
    RETURN CASE unit
        WHEN 'day' THEN day::timestamp AT TIME ZONE zone
        ELSE (day::timestamp + make_interval(hours => part[4]::int)) AT TIME ZONE 'UTC'
    END;
END $_$;


ALTER FUNCTION dataflow.period_start(unit text, dataid text, zone text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION period_start(unit text, dataid text, zone text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.period_start(unit text, dataid text, zone text) IS 'When the period named by a dataid begins in a time zone; NULL where the dataid does not name such a period';


--
-- Name: plan_flow(jsonb, boolean); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.plan_flow(declared jsonb, prune boolean DEFAULT false) RETURNS TABLE(kind text, name text, action text, changed text[])
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    WITH wanted AS (
        SELECT 'dataset' AS kind, item ->> 'datasetid' AS name, item || jsonb_build_object('flow', declared -> 'name') AS item
        FROM jsonb_array_elements(declared -> 'datasets') AS item
        UNION ALL
        SELECT 'job', item ->> 'jobid', item || jsonb_build_object('flow', declared -> 'name')
        FROM jsonb_array_elements(declared -> 'jobs') AS item
    ),
    compared AS (
        SELECT w.kind, w.name, d.datasetid IS NOT NULL AS existed, d.retired, dataflow._differing_keys(
            w.item, to_jsonb(d), to_jsonb(jsonb_populate_record(NULL::dataflow.dataset, w.item))) AS changed
        FROM wanted AS w LEFT JOIN dataflow.dataset AS d ON d.datasetid = w.name
        WHERE w.kind = 'dataset'
        UNION ALL
        SELECT w.kind, w.name, j.jobid IS NOT NULL, j.retired, dataflow._differing_keys(
            w.item,
            dataflow._job_document(j.jobid),
            to_jsonb(jsonb_populate_record(NULL::dataflow.job, w.item)) || jsonb_build_object(
                'inputs', w.item -> 'inputs',
                'outputs', (SELECT jsonb_agg(o ORDER BY o COLLATE "C") FROM jsonb_array_elements_text(w.item -> 'outputs') AS o)))
        FROM wanted AS w LEFT JOIN dataflow.job AS j ON j.jobid = w.name
        WHERE w.kind = 'job'
    ),
    existing AS (
        SELECT 'dataset' AS kind, d.datasetid::text AS name FROM dataflow.dataset AS d
        WHERE d.flow = declared ->> 'name' AND d.retired IS NULL
        UNION ALL
        SELECT 'job', j.jobid FROM dataflow.job AS j
        WHERE j.flow = declared ->> 'name' AND j.retired IS NULL
    )
    SELECT c.kind, c.name,
        CASE
            WHEN NOT c.existed THEN 'created'
            WHEN c.retired IS NOT NULL OR c.changed <> '{}' THEN 'changed'
            ELSE 'unchanged'
        END,
        CASE
            WHEN NOT c.existed THEN '{}'
            WHEN c.retired IS NOT NULL THEN c.changed || 'retired'::text
            ELSE c.changed
        END
    FROM compared AS c
    UNION ALL
    SELECT e.kind, e.name, 'retired', '{retired}'
    FROM existing AS e
    WHERE prune AND NOT EXISTS (SELECT FROM wanted AS w WHERE w.kind = e.kind AND w.name = e.name)
    ORDER BY 1, 2
$$;


ALTER FUNCTION dataflow.plan_flow(declared jsonb, prune boolean) OWNER TO dataflow_admin;

--
-- Name: FUNCTION plan_flow(declared jsonb, prune boolean); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.plan_flow(declared jsonb, prune boolean) IS 'What apply_flow would do: created, changed (which columns), retired or unchanged';


--
-- Name: preview_order(text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.preview_order(jobid text, dataid text) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    inputs jsonb;
BEGIN
    PERFORM dataflow._known_job(preview_order.jobid);
    PERFORM dataflow._checked_dataid(preview_order.dataid);
    SELECT coalesce(jsonb_object_agg(i.datasetid || '/' || i.dataid, coalesce(s.version, 0)), '{}') INTO inputs
        FROM dataflow._inputs(preview_order.jobid, preview_order.dataid) AS i
        LEFT JOIN dataflow.datastatus s ON s.datasetid = i.datasetid AND s.dataid = i.dataid AND s.locktype = 'OUT'
        WHERE i.dataid IS NOT NULL;
    RETURN dataflow._order(preview_order.jobid, preview_order.dataid, inputs) || jsonb_build_object('params', (
        SELECT j.params FROM dataflow.job j WHERE j.jobid = preview_order.jobid));
END $$;


ALTER FUNCTION dataflow.preview_order(jobid text, dataid text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION preview_order(jobid text, dataid text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.preview_order(jobid text, dataid text) IS 'What an attempt of this run would be told now, with the job''s parameters; whether it may run is not asked';


--
-- Name: prunable(interval); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.prunable(older_than interval) RETURNS bigint
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$ SELECT count(*) FROM dataflow.event e WHERE e.at < now() - older_than $$;


ALTER FUNCTION dataflow.prunable(older_than interval) OWNER TO dataflow_admin;

--
-- Name: FUNCTION prunable(older_than interval); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.prunable(older_than interval) IS 'How many events prune() would delete';


--
-- Name: prune(interval); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.prune(older_than interval) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    pruned bigint;
BEGIN
    IF older_than < interval '1 day' THEN
        RAISE EXCEPTION 'history younger than a day is kept' USING ERRCODE = 'DF400', HINT = 'for example dataflow.prune(''90 days'')';
    END IF;
    DELETE FROM dataflow.event e WHERE e.at < now() - older_than;
    GET DIAGNOSTICS pruned = ROW_COUNT;
    RETURN pruned;
END $$;


ALTER FUNCTION dataflow.prune(older_than interval) OWNER TO dataflow_admin;

--
-- Name: FUNCTION prune(older_than interval); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.prune(older_than interval) IS 'Deletes events older than this; returns how many';


--
-- Name: quarantine_export(text, text[], boolean); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.quarantine_export(job text, patterns text[] DEFAULT NULL::text[], with_resolved boolean DEFAULT false) RETURNS TABLE(dataid text, itemid text, code text, reason text, record jsonb, resolution jsonb)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_job(job);
    RETURN QUERY
    SELECT q.dataid::text, q.itemid, q.code, q.reason, q.details -> 'record', q.resolution
    FROM dataflow.quarantine q
    WHERE q.jobid = job AND (with_resolved OR NOT q.is_resolved)
        AND (patterns IS NULL OR EXISTS (SELECT FROM unnest(patterns) AS p WHERE dataflow.matches(q.dataid, p)))
    ORDER BY dataflow.sortkey(q.dataid), q.itemid;
END $$;


ALTER FUNCTION dataflow.quarantine_export(job text, patterns text[], with_resolved boolean) OWNER TO dataflow_admin;

--
-- Name: FUNCTION quarantine_export(job text, patterns text[], with_resolved boolean); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.quarantine_export(job text, patterns text[], with_resolved boolean) IS 'The records that a job set aside, whole, for a person to repair';


--
-- Name: quarantine_groups(text, text, boolean); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.quarantine_groups(job text DEFAULT NULL::text, pattern text DEFAULT NULL::text, with_resolved boolean DEFAULT false) RETURNS TABLE(jobid text, code text, reason text, open bigint, resolved bigint, unapplied bigint, chunks bigint, first timestamp with time zone, last timestamp with time zone, example_dataid text, example_itemid text, example jsonb)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    IF job IS NOT NULL THEN
        PERFORM dataflow._known_job(job);
    END IF;
    RETURN QUERY
    WITH grouped AS MATERIALIZED (
        SELECT q.jobid, q.code, q.reason, count(*) FILTER (WHERE NOT q.is_resolved) AS open, count(*) FILTER (WHERE q.is_resolved) AS resolved,
            count(*) FILTER (WHERE q.is_resolved AND q.applied IS NULL) AS unapplied, count(DISTINCT q.dataid) AS chunks,
            min(q.created) AS first, max(q.created) AS last, min(ARRAY[q.dataid, q.itemid]) AS example
        FROM dataflow.quarantine q
        WHERE (job IS NULL OR q.jobid = job) AND (pattern IS NULL OR dataflow.matches(q.dataid, pattern)) AND (with_resolved OR NOT q.is_resolved)
        GROUP BY q.jobid, q.code, q.reason
    )
    SELECT g.jobid::text, g.code, g.reason, g.open, g.resolved, g.unapplied, g.chunks, g.first, g.last, g.example[1], g.example[2], x.details -> 'record'
    FROM grouped g
    LEFT JOIN dataflow.quarantine x ON x.jobid = g.jobid AND x.dataid = g.example[1] AND x.itemid = g.example[2]
    ORDER BY g.open DESC, g.jobid, g.code, g.reason;
END $$;


ALTER FUNCTION dataflow.quarantine_groups(job text, pattern text, with_resolved boolean) OWNER TO dataflow_admin;

--
-- Name: FUNCTION quarantine_groups(job text, pattern text, with_resolved boolean); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.quarantine_groups(job text, pattern text, with_resolved boolean) IS 'Records that were set aside, by job and reason, most frequent first, each with an example';


--
-- Name: quarantine_record(text, text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.quarantine_record(jobid text, dataid text, itemid text) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    found_record jsonb;
BEGIN
    PERFORM dataflow._known_job(quarantine_record.jobid);
    SELECT to_jsonb(q) INTO found_record FROM dataflow.quarantine q
        WHERE q.jobid = quarantine_record.jobid AND q.dataid = quarantine_record.dataid AND q.itemid = quarantine_record.itemid;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'job % has set aside no record % of %', jobid, itemid, dataid USING ERRCODE = 'DF404',
            HINT = format('dataflowctl quarantine list %s shows those that it has', jobid);
    END IF;
    RETURN found_record;
END $$;


ALTER FUNCTION dataflow.quarantine_record(jobid text, dataid text, itemid text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION quarantine_record(jobid text, dataid text, itemid text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.quarantine_record(jobid text, dataid text, itemid text) IS 'One record that was set aside, with its details';


--
-- Name: quarantined(text, text, boolean, integer); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.quarantined(job text DEFAULT NULL::text, pattern text DEFAULT NULL::text, with_resolved boolean DEFAULT false, at_most integer DEFAULT 100) RETURNS TABLE(jobid text, dataid text, itemid text, code text, reason text, created timestamp with time zone, attempt bigint, is_resolved boolean, resolved_by text, resolved timestamp with time zone)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    IF job IS NOT NULL THEN
        PERFORM dataflow._known_job(job);
    END IF;
    RETURN QUERY
    SELECT q.jobid::text, q.dataid::text, q.itemid, q.code, q.reason, q.created, q.attempt, q.is_resolved, q.resolved_by, q.resolved
    FROM dataflow.quarantine q
    WHERE (job IS NULL OR q.jobid = job) AND (pattern IS NULL OR dataflow.matches(q.dataid, pattern))
        AND (with_resolved OR NOT q.is_resolved)
    ORDER BY q.jobid, q.dataid, q.itemid LIMIT at_most;
END $$;


ALTER FUNCTION dataflow.quarantined(job text, pattern text, with_resolved boolean, at_most integer) OWNER TO dataflow_admin;

--
-- Name: FUNCTION quarantined(job text, pattern text, with_resolved boolean, at_most integer); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.quarantined(job text, pattern text, with_resolved boolean, at_most integer) IS 'Records that were set aside; the record itself is in quarantine_record()';


--
-- Name: rates(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.rates() RETURNS TABLE(jobid text, per_hour double precision)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    WITH recent AS MATERIALIZED (
        SELECT a.jobid, a.outcome, a.claimed, a.ended FROM dataflow.attempt a ORDER BY a.attempt DESC LIMIT 2000
    ), span AS (
        SELECT greatest(min(r.claimed), now() - interval '1 hour') AS began FROM recent r
    )
    SELECT r.jobid::text, count(*) * 3600 / greatest(extract(epoch FROM now() - s.began), 60)::double precision
    FROM recent r, span s WHERE r.outcome = 'DONE' AND r.ended >= s.began GROUP BY r.jobid, s.began
$$;


ALTER FUNCTION dataflow.rates() OWNER TO dataflow_admin;

--
-- Name: FUNCTION rates(); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.rates() IS 'Runs done per hour and job, measured over the last hour or the last 2000 attempts, whichever is shorter';


--
-- Name: ready(text, text[], boolean, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.ready(datasetid text, dataids text[], validated boolean DEFAULT true, reason text DEFAULT NULL::text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_column
DECLARE
    slice constant integer := 10000;
    bad text;
    producer text;
    dataset_ordering text;
    registered bigint := 0;
    written bigint;
BEGIN
    PERFORM dataflow._known_dataset(ready.datasetid);
    SELECT d FROM unnest(dataids) AS d WHERE d IS NULL OR d ~ '[^A-Za-z0-9._:+=-]|^[.-]|^$' OR length(d) > 128 LIMIT 1 INTO bad;
    IF FOUND THEN
        PERFORM dataflow._checked_dataid(bad);
    END IF;
    SELECT coalesce(o.jobid, ''), d.ordering INTO producer, dataset_ordering
        FROM dataflow.dataset d LEFT JOIN dataflow.job_output o ON o.datasetid = d.datasetid WHERE d.datasetid = ready.datasetid;
    -- Slices bound the memory that a trigger needs for a million rows.
    FOR low IN 1 .. coalesce(cardinality(dataids), 0) BY slice LOOP
        INSERT INTO dataflow.datastatus AS s (datasetid, dataid, jobid, run, status, version, external, validated, reason, sortkey)
        SELECT ready.datasetid, d, producer, d, 'READY', 1, true, ready.validated, ready.reason, dataflow._ordered(dataset_ordering, d)
        FROM (SELECT DISTINCT d FROM unnest(dataids[low : low + slice - 1]) AS d) AS distinct_ids
        ON CONFLICT (datasetid, dataid, locktype, jobid, run) DO UPDATE SET
            status = 'READY', modified = now(), version = s.version + 1, manifest = NULL, external = true,
            validated = excluded.validated, code = NULL, reason = excluded.reason
        WHERE s.status IN ('READY', 'FAILED', 'RESUBMIT');
        GET DIAGNOSTICS written = ROW_COUNT;
        registered := registered + written;
    END LOOP;
    SELECT s.dataid || ' is ' || s.status INTO bad FROM unnest(dataids) AS d
        JOIN dataflow.datastatus s ON s.datasetid = ready.datasetid AND s.dataid = d AND s.locktype = 'OUT'
        WHERE s.status <> 'READY' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'chunk %/% and cannot be registered', datasetid, bad USING ERRCODE = 'DF409',
            HINT = 'wait for its attempt or cancel it; dataflow.release() a held chunk first';
    END IF;
    RETURN registered;
END $_$;


ALTER FUNCTION dataflow.ready(datasetid text, dataids text[], validated boolean, reason text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION ready(datasetid text, dataids text[], validated boolean, reason text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.ready(datasetid text, dataids text[], validated boolean, reason text) IS 'Registers external chunks as READY, a million at once if need be; a chunk that is READY already gets a new version. validated => false: arrived, but not to be used yet';


--
-- Name: ready(text, text, boolean, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.ready(datasetid text, dataid text, validated boolean DEFAULT true, reason text DEFAULT NULL::text) RETURNS bigint
    LANGUAGE sql
    AS $$ SELECT dataflow.ready(datasetid, ARRAY[dataid], validated, reason) $$;


ALTER FUNCTION dataflow.ready(datasetid text, dataid text, validated boolean, reason text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION ready(datasetid text, dataid text, validated boolean, reason text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.ready(datasetid text, dataid text, validated boolean, reason text) IS 'Registers one external chunk: SELECT dataflow.ready(''raw_orders'', ''2026-01-01'')';


--
-- Name: rebuild_work(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.rebuild_work() RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    jobids text[];
    dataids text[];
BEGIN
    DELETE FROM dataflow.work;
    DELETE FROM dataflow.open_run;
    SELECT array_agg(r.jobid), array_agg(r.dataid) INTO jobids, dataids FROM (
        SELECT a.jobid, a.dataid FROM dataflow.datastatus s, LATERAL dataflow.affected_runs(s.datasetid, s.dataid) AS a
        WHERE s.locktype = 'OUT'
        UNION
        SELECT o.jobid, s.dataid FROM dataflow.datastatus s JOIN dataflow.job_output o ON o.datasetid = s.datasetid
        WHERE s.locktype = 'OUT' AND s.status IN ('RESUBMIT', 'FAILED', 'RUNNING', 'HOLD', 'PENDING')
    ) AS r;
    PERFORM dataflow._refresh(jobids, dataids, dataflow._alone());
    RETURN (SELECT count(*) FROM dataflow.work);
END $$;


ALTER FUNCTION dataflow.rebuild_work() OWNER TO dataflow_admin;

--
-- Name: FUNCTION rebuild_work(); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.rebuild_work() IS 'Makes the queue of ready runs anew from datastatus; returns how many are queued. Never needed in ordinary operation';


--
-- Name: register_daemon(text, text, integer, interval, text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.register_daemon(daemon text, hostname text, pid integer, lease interval DEFAULT '00:01:00'::interval, environment text DEFAULT 'dev'::text, version text DEFAULT ''::text) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    other record;
    born uuid;
BEGIN
    -- A daemon of this name that may still be alive keeps it. A dead one's attempts are rescued by expire_daemon.
    SELECT d.* INTO other FROM dataflow.daemon d WHERE d.daemon = register_daemon.daemon FOR UPDATE;
    IF FOUND AND other.stopped IS NULL AND other.lease_until > clock_timestamp() AND EXISTS (
        SELECT FROM pg_stat_activity a WHERE a.pid = other.session_pid AND a.datname = current_database()) THEN
        RAISE EXCEPTION 'a daemon named % runs already, on % with pid %', daemon, other.hostname, other.pid USING ERRCODE = 'DF409',
            HINT = 'stop it, or give this one another name';
    END IF;
    INSERT INTO dataflow.daemon AS d (daemon, hostname, pid, session_pid, environment, version, lease, lease_until)
    VALUES (register_daemon.daemon, register_daemon.hostname, register_daemon.pid, pg_backend_pid(),
        register_daemon.environment, register_daemon.version, register_daemon.lease, clock_timestamp() + register_daemon.lease)
    ON CONFLICT (daemon) DO UPDATE SET
        incarnation = gen_random_uuid(), hostname = excluded.hostname, pid = excluded.pid, session_pid = excluded.session_pid,
        environment = excluded.environment, version = excluded.version, jobs = NULL, started = now(), lease = excluded.lease,
        lease_until = excluded.lease_until, stopped = NULL
    RETURNING d.incarnation INTO born;
    INSERT INTO dataflow.event (kind, to_status, reason) VALUES ('daemon', 'STARTED', format('%s on %s, pid %s', daemon, hostname, pid));
    RETURN born;
END $$;


ALTER FUNCTION dataflow.register_daemon(daemon text, hostname text, pid integer, lease interval, environment text, version text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION register_daemon(daemon text, hostname text, pid integer, lease interval, environment text, version text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.register_daemon(daemon text, hostname text, pid integer, lease interval, environment text, version text) IS 'Announces a daemon and starts its lease; returns the incarnation that its claims must name';


--
-- Name: release(text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.release(datasetid text, dataid text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
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


ALTER FUNCTION dataflow.release(datasetid text, dataid text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION release(datasetid text, dataid text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.release(datasetid text, dataid text) IS 'Takes the operator''s hand off a chunk; returns the status that it has again';


--
-- Name: release_chunks(jsonb, boolean); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.release_chunks(selector jsonb, dry_run boolean DEFAULT false) RETURNS TABLE(datasetid text, dataid text, becomes text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._bounded_selector(selector);
    RETURN QUERY
    WITH chosen AS MATERIALIZED (
        SELECT c.datasetid, c.dataid, s.held_from, s.sortkey
        FROM dataflow.select_chunks(selector) AS c
        JOIN dataflow.datastatus s ON s.datasetid = c.datasetid AND s.dataid = c.dataid AND s.locktype = 'OUT'
        WHERE s.held_from IS NOT NULL
    )
    SELECT c.datasetid, c.dataid, CASE WHEN dry_run THEN c.held_from ELSE dataflow.release(c.datasetid, c.dataid) END
    FROM chosen c ORDER BY c.datasetid, c.sortkey;
END $$;


ALTER FUNCTION dataflow.release_chunks(selector jsonb, dry_run boolean) OWNER TO dataflow_admin;

--
-- Name: FUNCTION release_chunks(selector jsonb, dry_run boolean); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.release_chunks(selector jsonb, dry_run boolean) IS 'release() for every held chunk that a selector names (see select_chunks)';


--
-- Name: renew_lease(text, uuid); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.renew_lease(daemon text, incarnation uuid) RETURNS timestamp with time zone
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
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


ALTER FUNCTION dataflow.renew_lease(daemon text, incarnation uuid) OWNER TO dataflow_admin;

--
-- Name: FUNCTION renew_lease(daemon text, incarnation uuid); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.renew_lease(daemon text, incarnation uuid) IS 'Prolongs a daemon''s lease; NULL says that this incarnation is no longer the daemon of that name';


--
-- Name: replay(text, text[], boolean, boolean); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.replay(job text, patterns text[] DEFAULT NULL::text[], with_open boolean DEFAULT false, dry_run boolean DEFAULT false) RETURNS TABLE(dataid text, was text, resolved bigint, open bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    chosen text[];
BEGIN
    PERFORM dataflow._known_job(job);
    chosen := ARRAY(
        SELECT DISTINCT q.dataid::text FROM dataflow.quarantine q
        WHERE q.jobid = job AND CASE WHEN q.is_resolved THEN q.applied IS NULL ELSE with_open END
            AND (patterns IS NULL OR EXISTS (SELECT FROM unnest(patterns) AS p WHERE dataflow.matches(q.dataid, p))));
    RETURN QUERY
    SELECT c.dataid, max(s.status), n.resolved, n.open
    FROM unnest(chosen) AS c (dataid)
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE q.is_resolved AND q.applied IS NULL) AS resolved, count(*) FILTER (WHERE NOT q.is_resolved) AS open
        FROM dataflow.quarantine q WHERE q.jobid = job AND q.dataid = c.dataid
    ) AS n
    LEFT JOIN dataflow.job_output o ON o.jobid = job
    LEFT JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = c.dataid AND s.locktype = 'OUT'
    GROUP BY c.dataid, n.resolved, n.open ORDER BY dataflow.sortkey(c.dataid);
    IF NOT dry_run AND cardinality(chosen) > 0 THEN
        PERFORM dataflow.resubmit(jsonb_build_object('job', job, 'dataid', to_jsonb(chosen), 'status', '["READY", "FAILED"]'::jsonb));
    END IF;
END $$;


ALTER FUNCTION dataflow.replay(job text, patterns text[], with_open boolean, dry_run boolean) OWNER TO dataflow_admin;

--
-- Name: FUNCTION replay(job text, patterns text[], with_open boolean, dry_run boolean); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.replay(job text, patterns text[], with_open boolean, dry_run boolean) IS 'Makes the chunks again that have resolved records which no version contains yet; with_open => true also those with open records, for code that has learned to take them. A second call finds nothing to do';


--
-- Name: required_inputs(text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.required_inputs(jobid text, dataid text) RETURNS TABLE(datasetid text, dataid text)
    LANGUAGE sql STABLE
    AS $$ SELECT i.datasetid, i.dataid FROM dataflow._inputs(jobid, dataid) i WHERE i.dataid IS NOT NULL $$;


ALTER FUNCTION dataflow.required_inputs(jobid text, dataid text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION required_inputs(jobid text, dataid text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.required_inputs(jobid text, dataid text) IS 'The input chunks that the run (job, dataid) needs. The inverse of affected_runs';


--
-- Name: rescue(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.rescue() RETURNS TABLE(attempt bigint, jobid text, dataid text, daemon text, tag text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    orphans bigint[];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('dataflow.claim', 0));
    -- An expired lease alone is not enough: a session that still holds the run's lock is alive. An earlier incarnation
    -- has no lease.
    WITH expired AS MATERIALIZED (
        SELECT a.attempt, a.jobid, a.dataid FROM dataflow.attempt a
        LEFT JOIN dataflow.daemon d ON d.daemon = a.daemon AND d.incarnation = a.incarnation
        WHERE a.ended IS NULL AND (d.daemon IS NULL OR d.stopped IS NOT NULL OR d.lease_until < clock_timestamp())
    ), free AS MATERIALIZED (
        SELECT e.attempt, pg_try_advisory_xact_lock(dataflow._run_lock(e.jobid, e.dataid)) AS is_free FROM expired e
    )
    SELECT array_agg(f.attempt) INTO orphans FROM free f WHERE f.is_free;
    IF orphans IS NULL THEN
        RETURN;
    END IF;
    PERFORM dataflow._lose(orphans);
    RETURN QUERY SELECT a.attempt, a.jobid::text, a.dataid::text, a.daemon::text, a.tag FROM dataflow.attempt a WHERE a.attempt = ANY (orphans);
END $$;


ALTER FUNCTION dataflow.rescue() OWNER TO dataflow_admin;

--
-- Name: FUNCTION rescue(); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.rescue() IS 'Takes back the attempts of daemons whose lease has ended and whose session is gone; returns them. Never looks at run time';


--
-- Name: resolve(text, text, text[], jsonb); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.resolve(jobid text, dataid text, itemids text[], resolution jsonb DEFAULT '{}'::jsonb) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    unknown text;
    done bigint;
BEGIN
    PERFORM dataflow._known_job(resolve.jobid);
    SELECT i INTO unknown FROM unnest(itemids) AS i WHERE NOT EXISTS (
        SELECT FROM dataflow.quarantine q WHERE q.jobid = resolve.jobid AND q.dataid = resolve.dataid AND q.itemid = i) LIMIT 1;
    IF FOUND THEN
        PERFORM dataflow.quarantine_record(resolve.jobid, resolve.dataid, unknown);
    END IF;
    UPDATE dataflow.quarantine q SET is_resolved = true, resolved = clock_timestamp(), resolved_by = session_user, applied = NULL,
        resolution = resolve.resolution
        WHERE q.jobid = resolve.jobid AND q.dataid = resolve.dataid AND (itemids IS NULL OR q.itemid = ANY (itemids)) AND NOT q.is_resolved;
    GET DIAGNOSTICS done = ROW_COUNT;
    RETURN done;
END $$;


ALTER FUNCTION dataflow.resolve(jobid text, dataid text, itemids text[], resolution jsonb) OWNER TO dataflow_admin;

--
-- Name: FUNCTION resolve(jobid text, dataid text, itemids text[], resolution jsonb); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.resolve(jobid text, dataid text, itemids text[], resolution jsonb) IS 'Marks quarantined records of a run as dealt with, all open ones where itemids is NULL; returns how many';


--
-- Name: resolve_records(text, jsonb); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.resolve_records(job text, records jsonb) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    unknown record;
    done bigint;
BEGIN
    PERFORM dataflow._known_job(job);
    SELECT r.dataid, r.itemid INTO unknown FROM jsonb_to_recordset(records) AS r (dataid text, itemid text)
        WHERE NOT EXISTS (SELECT FROM dataflow.quarantine q WHERE q.jobid = job AND q.dataid = r.dataid AND q.itemid = r.itemid) LIMIT 1;
    IF FOUND THEN
        PERFORM dataflow.quarantine_record(job, unknown.dataid, unknown.itemid);
    END IF;
    UPDATE dataflow.quarantine q SET is_resolved = true, resolved = clock_timestamp(), resolved_by = session_user, applied = NULL,
        resolution = coalesce(r.resolution, '{}')
    FROM jsonb_to_recordset(records) AS r (dataid text, itemid text, resolution jsonb)
    WHERE q.jobid = job AND q.dataid = r.dataid AND q.itemid = r.itemid AND q.resolution IS DISTINCT FROM coalesce(r.resolution, '{}');
    GET DIAGNOSTICS done = ROW_COUNT;
    RETURN done;
END $$;


ALTER FUNCTION dataflow.resolve_records(job text, records jsonb) OWNER TO dataflow_admin;

--
-- Name: FUNCTION resolve_records(job text, records jsonb); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.resolve_records(job text, records jsonb) IS 'Takes back records that a person has edited: [{"dataid", "itemid", "resolution": {"repaired": {...}} or {"reason": "..."}}]; all or none. Returns how many were new';


--
-- Name: resubmit(jsonb, boolean, boolean); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.resubmit(selector jsonb, downstream boolean DEFAULT false, dry_run boolean DEFAULT false) RETURNS TABLE(depth integer, jobid text, dataid text, was text, code text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    chosen_jobs text[];
    chosen_dataids text[];
    depths integer[];
BEGIN
    WITH RECURSIVE chosen AS (
        SELECT r.jobid, r.dataid FROM dataflow.select_runs(selector) AS r
        WHERE r.status IN ('FAILED', 'READY', 'RUNNING', 'RESUBMIT')
        UNION
        SELECT a.jobid, a.dataid
        FROM chosen c
        JOIN dataflow.job_output o ON o.jobid = c.jobid
        CROSS JOIN LATERAL dataflow.affected_runs(o.datasetid, c.dataid) AS a
        WHERE downstream AND EXISTS (
            SELECT FROM dataflow.job_output p JOIN dataflow.datastatus s ON s.datasetid = p.datasetid AND s.dataid = a.dataid AND s.locktype = 'OUT'
            WHERE p.jobid = a.jobid)
    ), jobs AS MATERIALIZED (
        SELECT DISTINCT c.jobid FROM chosen c
    ), edges AS MATERIALIZED (
        SELECT DISTINCT o.jobid AS producer, i.jobid AS consumer
        FROM dataflow.job_output o JOIN dataflow.job_input i ON i.datasetid = o.datasetid AND i.jobid <> o.jobid
        WHERE o.jobid IN (SELECT j.jobid FROM jobs j) AND i.jobid IN (SELECT j.jobid FROM jobs j)
    ), levels AS (
        -- Depth is a matter of jobs; a job that continues its own output goes through it in the order of its dataids. No
        -- chain is longer than there are jobs, unless they run in a circle.
        SELECT j.jobid::text COLLATE "C" AS jobid, 0 AS level FROM jobs j
        UNION
        SELECT e.consumer::text COLLATE "C", l.level + 1 FROM levels l JOIN edges e ON e.producer = l.jobid
        WHERE l.level < (SELECT count(*) FROM jobs)
    ), deepest AS (
        SELECT l.jobid, max(l.level) AS depth FROM levels l GROUP BY l.jobid
    )
    SELECT array_agg(c.jobid), array_agg(c.dataid), array_agg(d.depth) INTO chosen_jobs, chosen_dataids, depths
    FROM chosen c JOIN deepest d ON d.jobid = c.jobid;

    RETURN QUERY
    SELECT r.depth, r.jobid, r.dataid, max(s.status), max(s.code)
    FROM unnest(chosen_jobs, chosen_dataids, depths) AS r (jobid, dataid, depth)
    JOIN dataflow.job_output o ON o.jobid = r.jobid
    JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = r.dataid AND s.locktype = 'OUT'
    WHERE s.status IN ('FAILED', 'READY', 'RUNNING', 'RESUBMIT')
    GROUP BY r.depth, r.jobid, r.dataid
    ORDER BY r.depth, r.jobid, dataflow.sortkey(r.dataid);

    IF NOT dry_run THEN
        UPDATE dataflow.datastatus s SET status = 'RESUBMIT', modified = now(), code = NULL, reason = NULL
        FROM unnest(chosen_jobs, chosen_dataids) AS r (jobid, dataid)
        JOIN dataflow.job_output o ON o.jobid = r.jobid
        WHERE s.datasetid = o.datasetid AND s.dataid = r.dataid AND s.locktype = 'OUT' AND s.status IN ('FAILED', 'READY', 'RUNNING');
    END IF;
END $$;


ALTER FUNCTION dataflow.resubmit(selector jsonb, downstream boolean, dry_run boolean) OWNER TO dataflow_admin;

--
-- Name: FUNCTION resubmit(selector jsonb, downstream boolean, dry_run boolean); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.resubmit(selector jsonb, downstream boolean, dry_run boolean) IS 'Runs again what a selector names (see select_runs), with downstream => true also every consumer, transitively; returns the runs in the order in which they will run. dry_run => true only shows them. SELECT * FROM dataflow.resubmit(''{"status": "FAILED", "dataid": "2026-01-*"}'')';


--
-- Name: retake(text, uuid); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.retake(daemon text, incarnation uuid) RETURNS TABLE(attempt bigint, token uuid, jobid text, dataid text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('dataflow.claim', 0));
    UPDATE dataflow.daemon d SET session_pid = pg_backend_pid(), lease_until = clock_timestamp() + d.lease
        WHERE d.daemon = retake.daemon AND d.incarnation = retake.incarnation AND d.stopped IS NULL;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH live AS MATERIALIZED (
        SELECT a.attempt, a.token, a.jobid, a.dataid FROM dataflow.attempt a
        WHERE a.ended IS NULL AND a.daemon = retake.daemon AND a.incarnation = retake.incarnation
        UNION ALL
        -- locked, but not returned: they are to be stopped
        SELECT a.attempt, NULL, a.jobid, a.dataid FROM dataflow.attempt a
        WHERE a.outcome = 'CANCELLED' AND NOT a.let_go AND a.daemon = retake.daemon AND a.incarnation = retake.incarnation
    ), locked AS MATERIALIZED (
        SELECT l.*, pg_try_advisory_lock(dataflow._run_lock(l.jobid, l.dataid)) AS mine FROM live l
    )
    SELECT l.attempt, l.token, l.jobid::text, l.dataid::text FROM locked l WHERE l.mine AND l.token IS NOT NULL;
END $$;


ALTER FUNCTION dataflow.retake(daemon text, incarnation uuid) OWNER TO dataflow_admin;

--
-- Name: FUNCTION retake(daemon text, incarnation uuid); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.retake(daemon text, incarnation uuid) IS 'After a lost connection: takes a daemon''s run locks again in this session and returns the attempts that are still its own; it must stop all others';


--
-- Name: retire_key(text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.retire_key(keyid text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    used text;
BEGIN
    SELECT min(d.datasetid::text) INTO used FROM dataflow.dataset d WHERE split_part(d.encryptedpass, '.', 3) = retire_key.keyid;
    IF used IS NOT NULL THEN
        RAISE EXCEPTION 'key % is in use by dataset %', keyid, used USING ERRCODE = 'DF409', HINT = 'run `dataflowctl key rotate` first';
    END IF;
    UPDATE dataflow.key k SET retired = now() WHERE k.keyid = retire_key.keyid AND k.retired IS NULL;
    IF FOUND THEN
        INSERT INTO dataflow.event (kind, to_status, reason) VALUES ('credential', 'KEY_RETIRED', keyid);
    END IF;
    RETURN FOUND;
END $$;


ALTER FUNCTION dataflow.retire_key(keyid text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION retire_key(keyid text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.retire_key(keyid text) IS 'Nothing is sealed with this key any more; false: it was retired already, or there is none';


--
-- Name: root_causes(text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.root_causes(jobid text, dataid text) RETURNS TABLE(depth integer, datasetid text, dataid text, jobid text, status text, code text, reason text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
    WITH RECURSIVE missing AS (
        SELECT 1 AS depth, i.datasetid, i.dataid, o.jobid::text, s.status, s.code, s.reason
        FROM dataflow.required_inputs(root_causes.jobid, root_causes.dataid) AS i
        LEFT JOIN dataflow.job_output o ON o.datasetid = i.datasetid
        LEFT JOIN dataflow.datastatus s ON s.datasetid = i.datasetid AND s.dataid = i.dataid AND s.locktype = 'OUT'
        WHERE s.status IS DISTINCT FROM 'READY'
        UNION
        SELECT m.depth + 1, i.datasetid, i.dataid, o.jobid, s.status, s.code, s.reason
        FROM missing m
        CROSS JOIN LATERAL dataflow.required_inputs(m.jobid, m.dataid) AS i
        LEFT JOIN dataflow.job_output o ON o.datasetid = i.datasetid
        LEFT JOIN dataflow.datastatus s ON s.datasetid = i.datasetid AND s.dataid = i.dataid AND s.locktype = 'OUT'
        WHERE m.depth < 50 AND m.status IS DISTINCT FROM 'FAILED' AND s.status IS DISTINCT FROM 'READY'
    ), looked_at AS MATERIALIZED (
        SELECT * FROM missing LIMIT 2000
    )
    SELECT max(l.depth), l.datasetid, l.dataid, l.jobid, l.status, l.code, l.reason FROM looked_at l
    WHERE NOT EXISTS (
        SELECT FROM dataflow.required_inputs(l.jobid, l.dataid) AS i
        LEFT JOIN dataflow.datastatus s ON s.datasetid = i.datasetid AND s.dataid = i.dataid AND s.locktype = 'OUT'
        WHERE l.status IS DISTINCT FROM 'FAILED' AND s.status IS DISTINCT FROM 'READY')
    GROUP BY l.datasetid, l.dataid, l.jobid, l.status, l.code, l.reason
    ORDER BY 1 DESC, 2, 3
$$;


ALTER FUNCTION dataflow.root_causes(jobid text, dataid text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION root_causes(jobid text, dataid text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.root_causes(jobid text, dataid text) IS 'The chunks at the far end of what a run waits for: those that are missing or FAILED although all that they need is there';


--
-- Name: run_state(text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.run_state(jobid text, dataid text) RETURNS TABLE(state text, datasetid text, since timestamp with time zone, version integer, reason text, attempt bigint, number integer, tries integer, max_attempts integer, outcome text, code text, error text, claimed timestamp with time zone, ended timestamp with time zone, retry_at timestamp with time zone, daemon text, hostname text, inputs jsonb, not_before timestamp with time zone)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_job(run_state.jobid);
    PERFORM dataflow._checked_dataid(run_state.dataid);
    RETURN QUERY
    SELECT CASE
            WHEN s.status IN ('HOLD', 'PENDING') THEN 'HELD'
            WHEN s.status = 'FAILED' AND a.retry_at IS NOT NULL AND w.jobid IS NOT NULL THEN 'RETRYING'
            WHEN s.status IN ('RUNNING', 'READY', 'FAILED') THEN s.status
            WHEN w.jobid IS NOT NULL THEN 'QUEUED'
            WHEN s.status IS NOT NULL OR EXISTS (
                SELECT FROM dataflow.required_inputs(run_state.jobid, run_state.dataid) AS i JOIN dataflow.job_input k ON k.jobid = run_state.jobid AND k.datasetid = i.datasetid
                JOIN dataflow.datastatus c ON c.datasetid = i.datasetid AND c.dataid = i.dataid AND c.locktype = 'OUT' WHERE k.kind <> 'fixed') THEN 'WAITING'
            ELSE 'UNKNOWN'
        END,
        s.datasetid::text, s.modified, s.version, s.reason, a.attempt, a.number, a.tries, j.max_attempts,
        a.outcome, a.code, a.error, a.claimed, a.ended, a.retry_at, a.daemon::text, d.hostname, a.inputs, w.not_before
    FROM dataflow.job j
    LEFT JOIN LATERAL (
        SELECT c.* FROM dataflow.job_output o JOIN dataflow.datastatus c ON c.datasetid = o.datasetid AND c.dataid = run_state.dataid AND c.locktype = 'OUT'
        WHERE o.jobid = j.jobid ORDER BY c.status <> 'READY' DESC, c.datasetid LIMIT 1
    ) AS s ON true
    LEFT JOIN LATERAL (
        SELECT t.* FROM dataflow.attempt t WHERE t.jobid = j.jobid AND t.dataid = run_state.dataid ORDER BY t.number DESC LIMIT 1
    ) AS a ON true
    LEFT JOIN dataflow.daemon d ON d.daemon = a.daemon
    LEFT JOIN dataflow.work w ON w.jobid = j.jobid AND w.dataid = run_state.dataid
    WHERE j.jobid = run_state.jobid;
END $$;


ALTER FUNCTION dataflow.run_state(jobid text, dataid text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION run_state(jobid text, dataid text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.run_state(jobid text, dataid text) IS 'Where a run stands: READY, RUNNING, FAILED, RETRYING, HELD, QUEUED, WAITING (for its data) or UNKNOWN, with its last attempt';


--
-- Name: runs(text, boolean, timestamp with time zone, integer); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.runs(job text DEFAULT NULL::text, only_failed boolean DEFAULT false, since timestamp with time zone DEFAULT NULL::timestamp with time zone, at_most integer DEFAULT 50) RETURNS TABLE(jobid text, dataid text, number integer, attempt bigint, status text, claimed timestamp with time zone, ended timestamp with time zone, seconds double precision, daemon text, code text, error text, retry_at timestamp with time zone)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    IF job IS NOT NULL THEN
        PERFORM dataflow._known_job(job);
    END IF;
    RETURN QUERY
    SELECT a.jobid::text, a.dataid::text, a.number, a.attempt, coalesce(a.outcome, 'RUNNING'), a.claimed, a.ended,
        extract(epoch FROM coalesce(a.ended, clock_timestamp()) - coalesce(a.started, a.claimed))::double precision,
        a.daemon::text, a.code, a.error, a.retry_at
    FROM dataflow.attempt a
    WHERE (job IS NULL OR a.jobid = job)
        AND (NOT only_failed OR a.outcome IN ('FAILED', 'LOST', 'CANCELLED'))
        AND (since IS NULL OR a.ended IS NULL OR a.ended >= since)
        AND NOT EXISTS (SELECT FROM dataflow.attempt b WHERE b.jobid = a.jobid AND b.dataid = a.dataid AND b.number = a.number + 1)
    ORDER BY a.attempt DESC LIMIT at_most;
END $$;


ALTER FUNCTION dataflow.runs(job text, only_failed boolean, since timestamp with time zone, at_most integer) OWNER TO dataflow_admin;

--
-- Name: FUNCTION runs(job text, only_failed boolean, since timestamp with time zone, at_most integer); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.runs(job text, only_failed boolean, since timestamp with time zone, at_most integer) IS 'Recent runs, each by its last attempt, newest first';


--
-- Name: seal(text, text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.seal(datasetid text, sealed text, was text DEFAULT NULL::text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_dataset(seal.datasetid);
    IF coalesce(seal.sealed !~ '^dataflowd-sealed-v1\.[a-z0-9-]+\.[0-9a-f]{32}\.[A-Za-z0-9_-]+$', true) OR length(seal.sealed) > 20000 THEN
        RAISE EXCEPTION 'this is no sealed password' USING ERRCODE = 'DF400',
            HINT = 'seal it with `dataflowctl seal`; a password that was sent here in the clear has to be changed';
    END IF;
    IF NOT EXISTS (SELECT FROM dataflow.key k WHERE k.keyid = split_part(seal.sealed, '.', 3) AND k.retired IS NULL) THEN
        RAISE EXCEPTION 'it is sealed with key %, which is not in use', split_part(sealed, '.', 3) USING ERRCODE = 'DF409',
            HINT = '`dataflowctl key list` shows the keys';
    END IF;
    UPDATE dataflow.dataset d SET encryptedpass = seal.sealed, modified = now()
        WHERE d.datasetid = seal.datasetid AND (seal.was IS NULL OR d.encryptedpass = seal.was);
    IF FOUND THEN
        INSERT INTO dataflow.event (kind, datasetid, to_status, reason)
        VALUES ('credential', datasetid, 'SEALED', 'key ' || split_part(sealed, '.', 3));
    END IF;
    RETURN FOUND;
END $_$;


ALTER FUNCTION dataflow.seal(datasetid text, sealed text, was text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION seal(datasetid text, sealed text, was text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.seal(datasetid text, sealed text, was text) IS 'Stores a sealed password of a dataset. False: it is no longer the one that it was to replace';


--
-- Name: sealing_key(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.sealing_key() RETURNS TABLE(keyid text, suite text, public_key bytea)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT k.keyid, k.suite, k.public_key FROM dataflow.key k WHERE k.retired IS NULL ORDER BY k.created DESC, k.keyid LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no key to seal with' USING ERRCODE = 'DF404', HINT = 'make one with `dataflowctl key generate`, on the host that runs the jobs';
    END IF;
END $$;


ALTER FUNCTION dataflow.sealing_key() OWNER TO dataflow_admin;

--
-- Name: FUNCTION sealing_key(); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.sealing_key() IS 'The key that passwords are sealed with: the newest that is not retired';


--
-- Name: select_chunks(jsonb); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.select_chunks(selector jsonb) RETURNS TABLE(datasetid text, dataid text, jobid text, status text, reason text, modified timestamp with time zone)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    patterns constant text[] := ARRAY(SELECT dataflow._texts(selector -> 'dataid'));
    is_literal constant boolean := dataflow._are_literal(patterns);
BEGIN
    RETURN QUERY
    SELECT s.datasetid::text, s.dataid::text, s.jobid, s.status, s.reason, s.modified
    FROM dataflow.select_runs(selector) AS r
    JOIN dataflow.job_output o ON o.jobid = r.jobid AND (NOT selector ? 'dataset' OR o.datasetid = selector ->> 'dataset')
    JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.dataid = r.dataid AND s.locktype = 'OUT'
    UNION ALL
    SELECT s.datasetid::text, s.dataid::text, s.jobid, s.status, s.reason, s.modified
    FROM dataflow.datastatus s
    WHERE NOT selector ? 'job' AND NOT selector ? 'stale' AND s.locktype = 'OUT' AND s.jobid = ''
        AND (NOT selector ? 'dataset' OR s.datasetid = selector ->> 'dataset')
        AND (NOT is_literal OR s.dataid = ANY (patterns))
        AND (is_literal OR NOT selector ? 'dataid' OR EXISTS (SELECT FROM unnest(patterns) AS p WHERE dataflow.matches(s.dataid, p)))
        AND (NOT selector ? 'status' OR s.status IN (SELECT upper(t) FROM dataflow._texts(selector -> 'status') AS t))
        AND (NOT selector ? 'error' OR s.code = selector ->> 'error')
        AND (NOT selector ? 'since' OR s.modified >= (selector ->> 'since')::timestamptz);
END $$;


ALTER FUNCTION dataflow.select_chunks(selector jsonb) OWNER TO dataflow_admin;

--
-- Name: FUNCTION select_chunks(selector jsonb); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.select_chunks(selector jsonb) IS 'The chunks that a selector names: those of the runs of select_runs, and without "job" also chunks that no job produces';


--
-- Name: select_runs(jsonb); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.select_runs(selector jsonb) RETURNS TABLE(jobid text, dataid text, status text, code text, modified timestamp with time zone)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    known constant text[] := ARRAY['job', 'dataset', 'dataid', 'status', 'error', 'since', 'stale'];
    unknown text;
    patterns text[];
    is_literal boolean;
    statuses text[];
BEGIN
    SELECT k INTO unknown FROM jsonb_object_keys(selector) AS k WHERE k <> ALL (known) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'a selector has no key %', unknown USING ERRCODE = 'DF400', HINT = 'its keys are ' || array_to_string(known, ', ');
    END IF;
    IF selector ? 'job' THEN
        PERFORM dataflow._known_job(selector ->> 'job');
    END IF;
    IF selector ? 'dataset' THEN
        PERFORM dataflow._known_dataset(selector ->> 'dataset');
    END IF;
    patterns := ARRAY(SELECT jsonb_array_elements_text(CASE jsonb_typeof(selector -> 'dataid') WHEN 'array' THEN selector -> 'dataid' ELSE jsonb_build_array(selector -> 'dataid') END) WHERE selector ? 'dataid');
    is_literal := dataflow._are_literal(patterns);
    statuses := ARRAY(SELECT upper(jsonb_array_elements_text(CASE jsonb_typeof(selector -> 'status') WHEN 'array' THEN selector -> 'status' ELSE jsonb_build_array(selector -> 'status') END)) WHERE selector ? 'status');
    SELECT s INTO unknown FROM unnest(statuses) AS s WHERE s NOT IN ('RUNNING', 'READY', 'FAILED', 'RESUBMIT', 'PENDING', 'HOLD') LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% is no status', unknown USING ERRCODE = 'DF400', HINT = 'allowed are RUNNING, READY, FAILED, RESUBMIT, PENDING, HOLD';
    END IF;
    RETURN QUERY
    SELECT s.jobid::text, s.dataid::text, max(s.status), max(s.code), max(s.modified)
    FROM dataflow.job_output o JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.locktype = 'OUT' AND s.jobid = o.jobid
    WHERE (NOT selector ? 'job' OR o.jobid = selector ->> 'job')
        AND (NOT selector ? 'dataset' OR o.datasetid = selector ->> 'dataset')
        AND (NOT is_literal OR s.dataid = ANY (patterns))
        AND (is_literal OR NOT selector ? 'dataid' OR EXISTS (SELECT FROM unnest(patterns) AS p WHERE dataflow.matches(s.dataid, p)))
        AND (NOT selector ? 'status' OR s.status = ANY (statuses))
        AND (NOT selector ? 'error' OR s.code = selector ->> 'error')
        AND (NOT selector ? 'since' OR s.modified >= (selector ->> 'since')::timestamptz)
        AND (NOT coalesce((selector ->> 'stale')::boolean, false) OR (s.datasetid, s.dataid) IN (SELECT x.datasetid, x.dataid FROM dataflow.stale x))
    GROUP BY s.jobid, s.dataid;
END $$;


ALTER FUNCTION dataflow.select_runs(selector jsonb) OWNER TO dataflow_admin;

--
-- Name: FUNCTION select_runs(selector jsonb); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.select_runs(selector jsonb) IS 'The runs that a selector names: {"job", "dataset", "dataid": pattern or list, "status", "error", "since", "stale"}, all optional';


--
-- Name: serve_jobs(text, uuid, text[]); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.serve_jobs(daemon text, incarnation uuid, jobs text[]) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    UPDATE dataflow.daemon d SET jobs = serve_jobs.jobs WHERE d.daemon = serve_jobs.daemon AND d.incarnation = serve_jobs.incarnation;
    RETURN FOUND;
END $$;


ALTER FUNCTION dataflow.serve_jobs(daemon text, incarnation uuid, jobs text[]) OWNER TO dataflow_admin;

--
-- Name: FUNCTION serve_jobs(daemon text, incarnation uuid, jobs text[]); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.serve_jobs(daemon text, incarnation uuid, jobs text[]) IS 'Says which jobs a daemon can run: those whose flow files its host has. NULL: any. False: there is no such incarnation';


--
-- Name: set_concurrency(text, integer); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.set_concurrency(scope text, concurrency integer) RETURNS void
    LANGUAGE sql
    AS $$
    INSERT INTO dataflow.control (scope, concurrency) VALUES (set_concurrency.scope, set_concurrency.concurrency)
    ON CONFLICT (scope) DO UPDATE SET concurrency = excluded.concurrency
$$;


ALTER FUNCTION dataflow.set_concurrency(scope text, concurrency integer) OWNER TO dataflow_admin;

--
-- Name: FUNCTION set_concurrency(scope text, concurrency integer); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.set_concurrency(scope text, concurrency integer) IS 'Attempts at a time in a scope: global, job:<jobid> or daemon:<name>; effective at once. NULL takes a job''s or daemon''s own limit away';


--
-- Name: settle(integer); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.settle(at_most integer DEFAULT 100000) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    again constant interval := '1 second';
    oldest_open constant xid8 := pg_snapshot_xmin(pg_current_snapshot());
    -- A number that is given out now is greater than that of every transaction that an entry was made for. No snapshot
    -- knows such a bound: those that have begun after the last one that ended are beyond its xmax.
    is_new constant boolean := pg_current_xact_id_if_assigned() IS NULL;
    is_last boolean;
    entries bigint[];
    jobids text[];
    dataids text[];
    taken integer;
BEGIN
    SELECT array_agg(m.recheck) INTO entries FROM (
        SELECT r.recheck FROM dataflow.recheck r
        WHERE r.looked IS NULL OR r.looked < now() - again OR r.horizon <= oldest_open
        ORDER BY r.recheck LIMIT at_most FOR UPDATE SKIP LOCKED
    ) AS m;
    IF entries IS NULL THEN
        RETURN 0;
    END IF;
    is_last := dataflow._is_quiet();
    WITH finished AS (
        DELETE FROM dataflow.recheck r WHERE r.recheck = ANY (entries) AND (is_last OR r.horizon <= oldest_open)
        RETURNING r.jobid, r.dataid
    ), kept AS (
        UPDATE dataflow.recheck r SET looked = now(), horizon = coalesce(r.horizon, CASE WHEN is_new THEN pg_current_xact_id() END)
        WHERE r.recheck = ANY (entries) AND NOT is_last AND (r.horizon IS NULL OR r.horizon > oldest_open)
        RETURNING r.jobid, r.dataid
    ), runs AS (
        SELECT DISTINCT m.jobid, coalesce(m.dataid, head.dataid) AS dataid
        FROM (SELECT f.jobid, f.dataid FROM finished f UNION ALL SELECT k.jobid, k.dataid FROM kept k) AS m
        LEFT JOIN LATERAL (
            SELECT o.dataid FROM dataflow.open_run o WHERE m.dataid IS NULL AND o.jobid = m.jobid ORDER BY o.sortkey, o.dataid LIMIT 1
        ) AS head ON true
    )
    SELECT array_agg(r.jobid) FILTER (WHERE r.dataid IS NOT NULL), array_agg(r.dataid) FILTER (WHERE r.dataid IS NOT NULL), count(*)
    INTO jobids, dataids, taken FROM runs r;
    IF taken > 0 THEN
        PERFORM dataflow._refresh(jobids, dataids, true);
    END IF;
    RETURN taken;
END $$;


ALTER FUNCTION dataflow.settle(at_most integer) OWNER TO dataflow_admin;

--
-- Name: FUNCTION settle(at_most integer); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.settle(at_most integer) IS 'Judges again the runs that were judged while another transaction was changing status; returns how many. Every claim calls it';


--
-- Name: shed(text, integer, boolean); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.shed(scope text, concurrency integer DEFAULT NULL::integer, dry_run boolean DEFAULT false) RETURNS TABLE(jobid text, dataid text, attempt bigint, daemon text, claimed timestamp with time zone)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    surplus bigint;
    shed_attempts bigint[];
BEGIN
    IF NOT dry_run THEN
        -- No claim may count while the surplus is being counted.
        PERFORM pg_advisory_xact_lock(hashtextextended('dataflow.claim', 0));
    END IF;
    PERFORM dataflow._known_job(substr(shed.scope, 5)) WHERE shed.scope LIKE 'job:%';
    SELECT greatest(count(*) - coalesce(shed.concurrency, min(l.concurrency)), 0) INTO surplus
    FROM dataflow.attempt a LEFT JOIN dataflow.limits l ON l.scope = shed.scope
    WHERE a.ended IS NULL AND (shed.scope = 'global' OR shed.scope = 'job:' || a.jobid OR shed.scope = 'daemon:' || a.daemon);
    -- The youngest have the least to lose.
    shed_attempts := ARRAY(
        SELECT a.attempt FROM dataflow.attempt a
        WHERE a.ended IS NULL AND (shed.scope = 'global' OR shed.scope = 'job:' || a.jobid OR shed.scope = 'daemon:' || a.daemon)
        ORDER BY a.attempt DESC LIMIT surplus);
    IF NOT dry_run THEN
        UPDATE dataflow.datastatus s SET status = 'RESUBMIT', modified = now(), code = NULL, reason = 'stopped: the limit of ' || shed.scope || ' was lowered'
        FROM dataflow.attempt a JOIN dataflow.job_output o ON o.jobid = a.jobid
        WHERE a.attempt = ANY (shed_attempts) AND s.datasetid = o.datasetid AND s.dataid = a.dataid AND s.locktype = 'OUT' AND s.status = 'RUNNING';
    END IF;
    RETURN QUERY SELECT a.jobid::text, a.dataid::text, a.attempt, a.daemon::text, a.claimed
        FROM dataflow.attempt a WHERE a.attempt = ANY (shed_attempts) ORDER BY a.attempt;
END $$;


ALTER FUNCTION dataflow.shed(scope text, concurrency integer, dry_run boolean) OWNER TO dataflow_admin;

--
-- Name: FUNCTION shed(scope text, concurrency integer, dry_run boolean); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.shed(scope text, concurrency integer, dry_run boolean) IS 'Stops the youngest attempts beyond the limit of a scope, or beyond the one that is given, at once; they run again when there is a place. dry_run => true only shows them';


--
-- Name: sortkey(text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.sortkey(dataid text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT CASE
        -- Numbers and ISO dates are what most dataids are; the general way costs ten times as much.
        WHEN dataid !~ '[^0-9]' AND length(dataid) <= 10 THEN lpad(dataid, 10, '0')
        WHEN translate(dataid, '0123456789', '0000000000') = '0000-00-00'
            THEN '000000' || substr(dataid, 1, 4) || '-00000000' || substr(dataid, 6, 2) || '-00000000' || substr(dataid, 9, 2)
        WHEN dataid ~ '[0-9]{11}|9{10}' THEN dataflow._long_sortkey(dataid)
        ELSE regexp_replace(
            regexp_replace(dataid, '[0-9]+', '0000000000\&', 'g'), '[0-9]*([0-9]{10})', '\1', 'g')
    END COLLATE "C"
$$;


ALTER FUNCTION dataflow.sortkey(dataid text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION sortkey(dataid text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.sortkey(dataid text) IS 'Text that sorts bytewise as its dataid sorts naturally: 2 < 10, 1.9 < 1.10, ISO dates in time order';


--
-- Name: started(bigint, uuid); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.started(attempt bigint, token uuid) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    UPDATE dataflow.attempt a SET started = clock_timestamp()
        WHERE a.attempt = started.attempt AND a.token = started.token AND a.ended IS NULL;
    RETURN FOUND;
END $$;


ALTER FUNCTION dataflow.started(attempt bigint, token uuid) OWNER TO dataflow_admin;

--
-- Name: FUNCTION started(attempt bigint, token uuid); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.started(attempt bigint, token uuid) IS 'The job''s own code begins now; false: the attempt is fenced, stop';


--
-- Name: status(); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.status() RETURNS TABLE(jobid text, ready bigint, running bigint, failed bigint, resubmit bigint, held bigint, queued bigint, oldest_queued timestamp with time zone, retry_later bigint, quarantined bigint, max_running integer, paused boolean)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
    WITH counted AS (
        SELECT c.jobid, c.status, max(c.chunks) AS chunks FROM dataflow.chunk_count c GROUP BY c.jobid, c.status
    )
    SELECT j.jobid::text,
        coalesce(max(c.chunks) FILTER (WHERE c.status = 'READY'), 0),
        coalesce(max(c.chunks) FILTER (WHERE c.status = 'RUNNING'), 0),
        coalesce(max(c.chunks) FILTER (WHERE c.status = 'FAILED'), 0),
        coalesce(max(c.chunks) FILTER (WHERE c.status = 'RESUBMIT'), 0),
        coalesce(sum(c.chunks) FILTER (WHERE c.status IN ('HOLD', 'PENDING')), 0)::bigint,
        coalesce(max(q.queued), 0), max(w.oldest), coalesce(max(l.later), 0), coalesce(max(x.records), 0),
        coalesce(k.concurrency, j.max_running), coalesce(k.paused, false)
    FROM dataflow.job j
    LEFT JOIN counted c ON c.jobid = j.jobid
    LEFT JOIN dataflow.control k ON k.scope = 'job:' || j.jobid
    LEFT JOIN (SELECT n.jobid, sum(n.chunks)::bigint AS queued FROM dataflow.counter n WHERE n.locktype = 'WORK' GROUP BY n.jobid) AS q ON q.jobid = j.jobid
    LEFT JOIN LATERAL (SELECT min(o.enqueued) AS oldest FROM dataflow.work o WHERE o.jobid || '' = j.jobid) AS w ON true
    LEFT JOIN (SELECT r.jobid, count(*) AS later FROM dataflow.work r WHERE r.not_before IS NOT NULL GROUP BY r.jobid) AS l ON l.jobid = j.jobid
    LEFT JOIN LATERAL (SELECT count(*) AS records FROM dataflow.quarantine z WHERE z.jobid = j.jobid AND NOT z.is_resolved) AS x ON true
    WHERE j.retired IS NULL
    GROUP BY j.jobid, k.concurrency, k.paused
    ORDER BY j.jobid
$$;


ALTER FUNCTION dataflow.status() OWNER TO dataflow_admin;

--
-- Name: FUNCTION status(); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.status() IS 'One row a job: its runs by status, what is queued and since when, and its limit. Cheap at any size';


--
-- Name: stop_daemon(text, uuid); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.stop_daemon(daemon text, incarnation uuid) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    UPDATE dataflow.daemon d SET stopped = now(), lease_until = clock_timestamp()
        WHERE d.daemon = stop_daemon.daemon AND d.incarnation = stop_daemon.incarnation AND d.stopped IS NULL;
    IF FOUND THEN
        INSERT INTO dataflow.event (kind, to_status, reason) VALUES ('daemon', 'STOPPED', daemon);
    END IF;
    RETURN FOUND;
END $$;


ALTER FUNCTION dataflow.stop_daemon(daemon text, incarnation uuid) OWNER TO dataflow_admin;

--
-- Name: FUNCTION stop_daemon(daemon text, incarnation uuid); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.stop_daemon(daemon text, incarnation uuid) IS 'A daemon says that it has stopped: whatever it still held may be rescued at once';


--
-- Name: tick(timestamp with time zone); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.tick(until timestamp with time zone DEFAULT clock_timestamp()) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    d dataflow.dataset;
    unit text;
    start timestamptz;
    due text[];
    registered bigint := 0;
BEGIN
    FOR d IN SELECT * FROM dataflow.dataset x WHERE x.calendar IS NOT NULL AND x.retired IS NULL
        AND dataflow._calendar_due(x, x.calendar_next) <= until ORDER BY x.datasetid FOR UPDATE SKIP LOCKED LOOP
        unit := dataflow._calendar_unit(d.calendar);
        start := d.calendar_next;
        due := '{}';
        WHILE dataflow._calendar_due(d, start) <= until LOOP
            due := due || dataflow.period_id(unit, start, d.calendar_zone);
            start := dataflow.period_add(unit, start, 1, d.calendar_zone);
        END LOOP;
        UPDATE dataflow.dataset x SET calendar_next = start WHERE x.datasetid = d.datasetid;
        -- A period that somebody registered or holds already stays as it is.
        registered := registered + dataflow.ready(d.datasetid, ARRAY(
            SELECT p FROM unnest(due) AS p WHERE NOT EXISTS (
                SELECT FROM dataflow.datastatus s WHERE s.datasetid = d.datasetid AND s.dataid = p AND s.locktype = 'OUT')));
    END LOOP;
    RETURN registered;
END $$;


ALTER FUNCTION dataflow.tick(until timestamp with time zone) OWNER TO dataflow_admin;

--
-- Name: FUNCTION tick(until timestamp with time zone); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.tick(until timestamp with time zone) IS 'Makes the due periods of all calendars READY, after an outage all that were missed; returns how many. The daemon calls it at the right moments';


--
-- Name: trial_order(text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.trial_order(jobid text, dataid text) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    found record;
BEGIN
    PERFORM dataflow._known_job(trial_order.jobid);
    PERFORM dataflow._checked_dataid(trial_order.dataid);
    -- Neither a lock on the output nor the order of the runs matters to who writes nothing.
    -- A batch that waits on hold for its release is there to be tried; the hold of any other chunk may mean that it is wrong.
    SELECT tried.inputs, CASE
            WHEN NOT tried.is_ready THEN 'DATA_NOT_READY' WHEN tried.is_unmapped THEN 'WRONG_DATA'
            WHEN e.invalid_path IS NOT NULL THEN 'INVALID_PATH' WHEN e.not_validated IS NOT NULL THEN 'NOT_VALIDATED' END AS code,
        coalesce(CASE WHEN NOT tried.is_ready THEN e.not_ready END, CASE WHEN tried.is_unmapped THEN e.wrong_data END, e.invalid_path, e.not_validated) AS detail
    INTO found
    FROM dataflow._evaluate(ARRAY[trial_order.jobid], ARRAY[trial_order.dataid]) AS e
    CROSS JOIN LATERAL (
        SELECT coalesce(bool_or(q.dataid IS NULL), true) AS is_unmapped,
            coalesce(bool_and(coalesce(s.status = 'READY' OR b.dataid IS NOT NULL, false)) FILTER (WHERE q.dataid IS NOT NULL), true) AS is_ready,
            jsonb_object_agg(q.datasetid || '/' || q.dataid, s.version) FILTER (WHERE s.status IS NOT NULL) AS inputs
        FROM dataflow._inputs(trial_order.jobid, trial_order.dataid) AS q
        LEFT JOIN dataflow.datastatus s ON s.datasetid = q.datasetid AND s.dataid = q.dataid AND s.locktype = 'OUT'
        LEFT JOIN dataflow.batch b ON b.datasetid = s.datasetid AND b.dataid = s.dataid AND s.held_from = 'READY'
    ) AS tried;
    IF found.code IS NOT NULL THEN
        RETURN jsonb_build_object('code', found.code, 'detail', found.detail);
    END IF;
    RETURN dataflow._order(trial_order.jobid, trial_order.dataid, found.inputs)
        || (SELECT jsonb_build_object('params', j.params) FROM dataflow.job j WHERE j.jobid = trial_order.jobid);
END $$;


ALTER FUNCTION dataflow.trial_order(jobid text, dataid text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION trial_order(jobid text, dataid text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.trial_order(jobid text, dataid text) IS 'What dataflowctl try runs a job with: its parameters, and its inputs as they are READY now, or batches on hold; else the code and detail of the first question that is answered no. Claims nothing';


--
-- Name: validated(text, text, boolean, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.validated(datasetid text, dataid text, is_valid boolean DEFAULT true, reason text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    jobids text[];
    dataids text[];
BEGIN
    PERFORM dataflow._known_dataset(validated.datasetid);
    UPDATE dataflow.datastatus s SET validated = is_valid, reason = validated.reason, modified = now()
        WHERE s.datasetid = validated.datasetid AND s.dataid = validated.dataid AND s.locktype = 'OUT' AND s.status = 'READY';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'chunk %/% is not READY', datasetid, dataid USING ERRCODE = 'DF404',
            HINT = 'only a chunk that has arrived can be validated; dataflow.ready() registers it';
    END IF;
    INSERT INTO dataflow.event (kind, datasetid, dataid, code, reason)
        VALUES ('status', validated.datasetid, validated.dataid, CASE WHEN is_valid THEN 'VALIDATED' ELSE 'NOT_VALIDATED' END, validated.reason);
    SELECT array_agg(a.jobid), array_agg(a.dataid) INTO jobids, dataids FROM dataflow.affected_runs(validated.datasetid, validated.dataid) AS a;
    PERFORM dataflow._refresh(jobids, dataids, dataflow._alone());
END $$;


ALTER FUNCTION dataflow.validated(datasetid text, dataid text, is_valid boolean, reason text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION validated(datasetid text, dataid text, is_valid boolean, reason text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.validated(datasetid text, dataid text, is_valid boolean, reason text) IS 'Vouches for an external chunk that was registered with validated => false, or withdraws that';


--
-- Name: why(text, text); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.why(jobid text, dataid text) RETURNS TABLE(number integer, question text, answer boolean, code text, detail text, remedy text)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    run record;
    missing record;
    unvalidated text;
    held record;
    root record;
    roots bigint;
    place bigint;
    here constant text := format('%s %s', why.jobid, why.dataid);
    again constant text := format('dataflowctl resubmit %s --dataid %s', why.jobid, why.dataid);
    stamp constant text := 'YYYY-MM-DD HH24:MI:SSOF';
BEGIN
    SELECT r.* INTO run FROM dataflow.run_state(why.jobid, why.dataid) AS r;
    RETURN QUERY SELECT 0, 'Where does it stand?', NULL::boolean, run.state, CASE run.state
            WHEN 'READY' THEN CASE WHEN run.outcome = 'DONE'
                THEN format('attempt %s on %s made version %s, finished %s, of %s', run.number, run.daemon, run.version, to_char(run.ended, stamp),
                    coalesce((SELECT string_agg(format('%s v%s', key, value), ', ' ORDER BY key) FROM jsonb_each_text(run.inputs)), 'nothing'))
                ELSE format('version %s was registered by hand %s', run.version, to_char(run.since, stamp)) END
            WHEN 'RUNNING' THEN format('attempt %s runs on %s (%s) since %s', run.number, run.daemon, coalesce(run.hostname, 'an unknown host'), to_char(run.claimed, stamp))
            WHEN 'FAILED' THEN format('%s, %s: %s', CASE WHEN run.outcome IN ('FAILED', 'LOST', 'CANCELLED') THEN format('attempt %s ended %s', run.number, to_char(run.ended, stamp)) ELSE 'set by hand ' || to_char(run.since, stamp) END,
                CASE WHEN run.outcome IN ('FAILED', 'LOST', 'CANCELLED') THEN run.code ELSE 'BY_HAND' END,
                coalesce(split_part(CASE WHEN run.outcome IN ('FAILED', 'LOST', 'CANCELLED') THEN run.error END, E'\n', 1), run.reason, 'no reason is known'))
            WHEN 'RETRYING' THEN format('try %s of %s failed, %s: %s', run.tries, run.max_attempts, run.code, coalesce(split_part(run.error, E'\n', 1), 'no reason is known'))
            WHEN 'HELD' THEN format('held since %s: %s', to_char(run.since, stamp), coalesce(run.reason, 'no reason was given'))
            WHEN 'QUEUED' THEN 'all its data is there; it is in the queue'
            WHEN 'WAITING' THEN 'it cannot start yet; the questions say why'
            ELSE 'nothing is known of it: none of its chunks was ever registered' END,
        CASE run.state
            WHEN 'READY' THEN again || ' --status READY makes it again'
            WHEN 'RUNNING' THEN format('dataflowctl logs %s --follow', here)
            WHEN 'FAILED' THEN format('dataflowctl logs %s, then %s', here, again)
            WHEN 'RETRYING' THEN format('it is tried again by itself; %s does so at once', again)
            WHEN 'HELD' THEN format('dataflowctl release --dataset %s --dataid %s', run.datasetid, why.dataid)
        END;

    SELECT i.datasetid, i.dataid, o.jobid, s.status INTO missing
    FROM dataflow.required_inputs(why.jobid, why.dataid) AS i
    LEFT JOIN dataflow.job_output o ON o.datasetid = i.datasetid
    LEFT JOIN dataflow.datastatus s ON s.datasetid = i.datasetid AND s.dataid = i.dataid AND s.locktype = 'OUT'
    WHERE s.status IS DISTINCT FROM 'READY' ORDER BY i.datasetid || '/' || i.dataid LIMIT 1;
    SELECT i.datasetid || ' ' || i.dataid INTO unvalidated FROM dataflow.required_inputs(why.jobid, why.dataid) AS i
    JOIN dataflow.datastatus s ON s.datasetid = i.datasetid AND s.dataid = i.dataid AND s.locktype = 'OUT'
    WHERE NOT s.validated ORDER BY 1 LIMIT 1;
    SELECT i.datasetid, i.dataid INTO held FROM dataflow.required_inputs(why.jobid, why.dataid) AS i
    JOIN dataflow.datastatus s ON s.datasetid = i.datasetid AND s.dataid = i.dataid AND s.locktype = 'OUT'
    WHERE s.status IN ('HOLD', 'PENDING') ORDER BY 1, 2 LIMIT 1;
    RETURN QUERY SELECT q.number, q.question, q.answer, q.code, q.detail, CASE q.code
            WHEN 'DATA_NOT_READY' THEN CASE
                WHEN missing.status IN ('HOLD', 'PENDING') THEN format('dataflowctl release --dataset %s --dataid %s', missing.datasetid, missing.dataid)
                WHEN missing.jobid IS NOT NULL THEN format('dataflowctl why %s %s', missing.jobid, missing.dataid)
                ELSE format('when it has arrived: dataflowctl ready %s %s', missing.datasetid, missing.dataid) END
            WHEN 'WRONG_DATA' THEN 'use a dataid that every input''s mapping knows; for strict order see to the earlier run first'
            WHEN 'INVALID_PATH' THEN 'correct the dataset in its flow, and dataflowctl apply it'
            WHEN 'NOT_VALIDATED' THEN format('when it is right: dataflowctl ready %s', unvalidated)
            WHEN 'LOCKED' THEN CASE run.state
                WHEN 'READY' THEN 'nothing to do'
                WHEN 'RUNNING' THEN format('wait, or dataflowctl cancel %s --dataid %s', why.jobid, why.dataid)
                WHEN 'FAILED' THEN again
                WHEN 'HELD' THEN format('dataflowctl release --dataset %s --dataid %s', run.datasetid, why.dataid)
                ELSE CASE WHEN held.datasetid IS NOT NULL THEN format('dataflowctl release --dataset %s --dataid %s', held.datasetid, held.dataid) ELSE 'wait until it is free' END END
        END
    FROM dataflow.five_questions(why.jobid, why.dataid) AS q ORDER BY q.number;

    IF run.state IN ('QUEUED', 'RETRYING') THEN
        RETURN QUERY SELECT o.* FROM dataflow._obstacles(why.jobid) AS o;
        IF run.not_before IS NOT NULL THEN
            RETURN QUERY SELECT 9, 'Is it due?', run.not_before <= now(), CASE WHEN run.not_before > now() THEN 'RETRY_LATER' END,
                format('it is tried again at %s', to_char(run.not_before, stamp)), CASE WHEN run.not_before > now() THEN 'wait, or ' || again END;
        ELSE
            place := dataflow._queue_position(why.jobid, why.dataid);
            RETURN QUERY SELECT 9, 'Is it its turn?', coalesce(place, 0) = 1, CASE WHEN place = 1 THEN NULL ELSE 'IN_QUEUE' END,
                CASE WHEN place = 1 THEN 'it is the next run of its job' WHEN place IS NULL THEN 'more than 10000 runs of the job come before it'
                    ELSE format('%s of the job come before it', dataflow._counted(place - 1, 'run')) END,
                CASE WHEN place = 1 THEN NULL ELSE 'wait' END;
        END IF;
    END IF;
    IF missing.jobid IS NOT NULL AND missing.status IS DISTINCT FROM 'FAILED' THEN
        SELECT c.*, count(*) OVER () AS others INTO root FROM dataflow.root_causes(why.jobid, why.dataid) AS c LIMIT 1;
        IF root.depth > 1 THEN
            RETURN QUERY SELECT 10, 'What is at the root?', NULL::boolean, coalesce(root.code, root.status, 'NOT_THERE'),
                format('%s/%s %s%s', root.datasetid, root.dataid, coalesce('is ' || root.status, 'is not there'), coalesce(': ' || root.reason, ''))
                    || CASE WHEN root.others > 1 THEN format(' (and %s more)', root.others - 1) ELSE '' END,
                CASE WHEN root.jobid IS NULL THEN format('when it has arrived: dataflowctl ready %s %s', root.datasetid, root.dataid)
                    ELSE format('dataflowctl why %s %s', root.jobid, root.dataid) END;
        END IF;
    END IF;
END $$;


ALTER FUNCTION dataflow.why(jobid text, dataid text) OWNER TO dataflow_admin;

--
-- Name: FUNCTION why(jobid text, dataid text); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.why(jobid text, dataid text) IS 'Why a run did, does or does not run: where it stands (0), the five questions (1 to 5), what else keeps it (6 to 9) and what is at the root (10), each with a remedy';


--
-- Name: work_order(bigint, uuid); Type: FUNCTION; Schema: dataflow; Owner: dataflow_admin
--

CREATE FUNCTION dataflow.work_order(attempt bigint, token uuid) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_material TO 'off'
    SET enable_memoize TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
DECLARE
    mine record;
BEGIN
    SELECT a.jobid, a.dataid, a.inputs, a.forced INTO mine FROM dataflow.attempt a
        WHERE a.attempt = work_order.attempt AND a.token = work_order.token AND a.ended IS NULL;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN dataflow._order(mine.jobid, mine.dataid, mine.inputs) || jsonb_build_object('forced', mine.forced);
END $$;


ALTER FUNCTION dataflow.work_order(attempt bigint, token uuid) OWNER TO dataflow_admin;

--
-- Name: FUNCTION work_order(attempt bigint, token uuid); Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON FUNCTION dataflow.work_order(attempt bigint, token uuid) IS 'All that a runner needs to know about an attempt''s inputs and outputs; NULL: the attempt is fenced, stop';


--
-- Name: attempt; Type: TABLE; Schema: dataflow; Owner: dataflow_admin
--

CREATE TABLE dataflow.attempt (
    attempt bigint NOT NULL,
    jobid dataflow.name NOT NULL,
    dataid dataflow.chunkid NOT NULL,
    number integer NOT NULL,
    tries integer NOT NULL,
    lost integer DEFAULT 0 NOT NULL,
    token uuid DEFAULT gen_random_uuid() NOT NULL,
    daemon dataflow.name NOT NULL,
    incarnation uuid NOT NULL,
    tag text NOT NULL,
    forced boolean DEFAULT false NOT NULL,
    inputs jsonb NOT NULL,
    answers jsonb NOT NULL,
    claimed timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    started timestamp with time zone,
    ended timestamp with time zone,
    outcome text,
    code text,
    error text,
    retry_at timestamp with time zone,
    code_hash text,
    config_hash text,
    usage jsonb DEFAULT '{}'::jsonb NOT NULL,
    let_go boolean DEFAULT false NOT NULL,
    CONSTRAINT attempt_check CHECK (((ended IS NULL) = (outcome IS NULL))),
    CONSTRAINT attempt_check1 CHECK (((retry_at IS NULL) OR (NOT (outcome IS DISTINCT FROM 'FAILED'::text)))),
    CONSTRAINT attempt_check2 CHECK (((outcome IS DISTINCT FROM 'FAILED'::text) OR (code IS NOT NULL))),
    CONSTRAINT attempt_lost_check CHECK ((lost >= 0)),
    CONSTRAINT attempt_number_check CHECK ((number >= 1)),
    CONSTRAINT attempt_outcome_check CHECK ((outcome = ANY (ARRAY['DONE'::text, 'FAILED'::text, 'LOST'::text, 'CANCELLED'::text, 'RETURNED'::text]))),
    CONSTRAINT attempt_tries_check CHECK ((tries >= 1))
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.02', autovacuum_analyze_scale_factor='0.02');


ALTER TABLE dataflow.attempt OWNER TO dataflow_admin;

--
-- Name: TABLE attempt; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON TABLE dataflow.attempt IS 'One try of a run. The row is the claim, the token is the fence';


--
-- Name: COLUMN attempt.attempt; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.attempt.attempt IS 'Number of the attempt, unique in this database';


--
-- Name: COLUMN attempt.number; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.attempt.number IS 'Counts the attempts of the run, from 1';


--
-- Name: COLUMN attempt.tries; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.attempt.tries IS 'Which try of this production it is; RESUBMIT starts again at 1';


--
-- Name: COLUMN attempt.lost; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.attempt.lost IS 'How often this production lost its runner before';


--
-- Name: COLUMN attempt.token; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.attempt.token IS 'Every write by the attempt names it; another token means stop';


--
-- Name: COLUMN attempt.tag; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.attempt.tag IS 'Unique mark that goes to Spark as job tag, so that a restarted daemon can find or kill it';


--
-- Name: COLUMN attempt.forced; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.attempt.forced IS 'Started by an operator although a question was answered no';


--
-- Name: COLUMN attempt.inputs; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.attempt.inputs IS 'Which version of each input it was given: {dataset: {dataid: version}}';


--
-- Name: COLUMN attempt.answers; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.attempt.answers IS 'The five answers at the moment of the claim';


--
-- Name: COLUMN attempt.claimed; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.attempt.claimed IS 'When a daemon claimed the run';


--
-- Name: COLUMN attempt.started; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.attempt.started IS 'When the job''s own code began';


--
-- Name: COLUMN attempt.ended; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.attempt.ended IS 'When it ended; NULL: it is alive';


--
-- Name: COLUMN attempt.outcome; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.attempt.outcome IS 'DONE, FAILED, LOST (its daemon died), CANCELLED, RETURNED (given back at shutdown)';


--
-- Name: COLUMN attempt.error; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.attempt.error IS 'What went wrong, for people';


--
-- Name: COLUMN attempt.retry_at; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.attempt.retry_at IS 'When the job''s own retry policy tries again; NULL: it waits for RESUBMIT';


--
-- Name: COLUMN attempt.usage; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.attempt.usage IS 'Exit status, signal, max_rss, cpu_seconds and the like';


--
-- Name: COLUMN attempt.let_go; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.attempt.let_go IS 'Its daemon says that its runner is gone; a cancelled run is not claimed again by the same daemon before that';


--
-- Name: attempt_attempt_seq; Type: SEQUENCE; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE dataflow.attempt ALTER COLUMN attempt ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME dataflow.attempt_attempt_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: batch; Type: TABLE; Schema: dataflow; Owner: dataflow_admin
--

CREATE TABLE dataflow.batch (
    datasetid dataflow.name NOT NULL,
    dataid dataflow.chunkid NOT NULL,
    partitioning dataflow.name NOT NULL,
    bounds jsonb NOT NULL,
    items bigint
);


ALTER TABLE dataflow.batch OWNER TO dataflow_admin;

--
-- Name: TABLE batch; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON TABLE dataflow.batch IS 'One batch of a partitioning, as data: which keys belong to the chunk';


--
-- Name: COLUMN batch.dataid; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.batch.dataid IS 'Id of the slice: a date, a sequence number, a shard';


--
-- Name: COLUMN batch.bounds; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.batch.bounds IS 'Which keys belong to the chunk, by the kind of its partitioning';


--
-- Name: COLUMN batch.items; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.batch.items IS 'Records counted when it was made; NULL: not counted';


--
-- Name: check_result; Type: TABLE; Schema: dataflow; Owner: dataflow_admin
--

CREATE TABLE dataflow.check_result (
    attempt bigint NOT NULL,
    datasetid dataflow.name NOT NULL,
    name text NOT NULL,
    severity text DEFAULT 'error'::text NOT NULL,
    passed boolean NOT NULL,
    observed text,
    expected text,
    CONSTRAINT check_result_severity_check CHECK ((severity = ANY (ARRAY['error'::text, 'warn'::text])))
);


ALTER TABLE dataflow.check_result OWNER TO dataflow_admin;

--
-- Name: TABLE check_result; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON TABLE dataflow.check_result IS 'What each declared check observed, and its limit';


--
-- Name: COLUMN check_result.name; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.check_result.name IS 'Name of the check, such as min_rows';


--
-- Name: COLUMN check_result.severity; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.check_result.severity IS 'error: the attempt fails with it; warn: it does not';


--
-- Name: COLUMN check_result.passed; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.check_result.passed IS 'Whether the data kept to it';


--
-- Name: COLUMN check_result.observed; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.check_result.observed IS 'What was found';


--
-- Name: COLUMN check_result.expected; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.check_result.expected IS 'What was declared';


--
-- Name: counter; Type: TABLE; Schema: dataflow; Owner: dataflow_admin
--

CREATE TABLE dataflow.counter (
    datasetid text NOT NULL COLLATE pg_catalog."C",
    jobid text NOT NULL COLLATE pg_catalog."C",
    locktype text NOT NULL COLLATE pg_catalog."C",
    status text NOT NULL COLLATE pg_catalog."C",
    chunks bigint NOT NULL
);


ALTER TABLE dataflow.counter OWNER TO dataflow_admin;

--
-- Name: TABLE counter; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON TABLE dataflow.counter IS 'Chunks by dataset, job and status (locktype OUT), and queued runs by job (locktype WORK): the sum of all rows of a key is exact. Writers append differences, so that no row is hot; fold_counters() adds them up';


--
-- Name: COLUMN counter.chunks; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.counter.chunks IS 'A difference to be added up';


--
-- Name: chunk_count; Type: VIEW; Schema: dataflow; Owner: dataflow_admin
--

CREATE VIEW dataflow.chunk_count AS
 SELECT datasetid,
    jobid,
    status,
    (sum(chunks))::bigint AS chunks
   FROM dataflow.counter c
  WHERE (locktype = 'OUT'::text)
  GROUP BY datasetid, jobid, status
 HAVING (sum(chunks) <> (0)::numeric);


ALTER VIEW dataflow.chunk_count OWNER TO dataflow_admin;

--
-- Name: VIEW chunk_count; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON VIEW dataflow.chunk_count IS 'How many chunks of each dataset have which status; exact, without looking at the chunks';


--
-- Name: control; Type: TABLE; Schema: dataflow; Owner: dataflow_admin
--

CREATE TABLE dataflow.control (
    scope text NOT NULL,
    concurrency integer,
    paused boolean DEFAULT false NOT NULL,
    modified timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT control_check CHECK (((scope <> 'global'::text) OR (concurrency IS NOT NULL))),
    CONSTRAINT control_concurrency_check CHECK ((concurrency >= 0)),
    CONSTRAINT control_scope_check CHECK (((scope = 'global'::text) OR (scope ~ '^(job|daemon):[A-Za-z][A-Za-z0-9_.-]{0,62}$'::text)))
);


ALTER TABLE dataflow.control OWNER TO dataflow_admin;

--
-- Name: TABLE control; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON TABLE dataflow.control IS 'Limits and pauses, effective at once: UPDATE dataflow.control SET concurrency = 20 WHERE scope = ''global''';


--
-- Name: COLUMN control.scope; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.control.scope IS 'global, job:<jobid> or daemon:<name>';


--
-- Name: COLUMN control.concurrency; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.control.concurrency IS 'Attempts at a time in this scope; NULL: no limit of its own';


--
-- Name: COLUMN control.paused; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.control.paused IS 'No new attempts start in this scope; running ones go on';


--
-- Name: daemon; Type: TABLE; Schema: dataflow; Owner: dataflow_admin
--

CREATE TABLE dataflow.daemon (
    daemon dataflow.name NOT NULL,
    incarnation uuid DEFAULT gen_random_uuid() NOT NULL,
    hostname text NOT NULL,
    pid integer NOT NULL,
    session_pid integer,
    environment text DEFAULT 'dev'::text NOT NULL,
    version text DEFAULT ''::text NOT NULL,
    jobs text[],
    started timestamp with time zone DEFAULT now() NOT NULL,
    lease interval NOT NULL,
    lease_until timestamp with time zone NOT NULL,
    stopped timestamp with time zone,
    CONSTRAINT daemon_lease_check CHECK ((lease > '00:00:00'::interval))
);


ALTER TABLE dataflow.daemon OWNER TO dataflow_admin;

--
-- Name: TABLE daemon; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON TABLE dataflow.daemon IS 'Who claims work, and until when its claims are to be respected without asking';


--
-- Name: COLUMN daemon.daemon; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.daemon.daemon IS 'Name of the daemon; one process at a time bears it';


--
-- Name: COLUMN daemon.incarnation; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.daemon.incarnation IS 'Changes with every start: an old process under the same name can claim nothing';


--
-- Name: COLUMN daemon.hostname; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.daemon.hostname IS 'Host it runs on';


--
-- Name: COLUMN daemon.pid; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.daemon.pid IS 'Its process on that host';


--
-- Name: COLUMN daemon.session_pid; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.daemon.session_pid IS 'The server process of its claiming session, which holds its advisory locks';


--
-- Name: COLUMN daemon.environment; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.daemon.environment IS 'The environment of its host';


--
-- Name: COLUMN daemon.version; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.daemon.version IS 'Version of its program';


--
-- Name: COLUMN daemon.jobs; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.daemon.jobs IS 'The jobs whose code its host has: it claims no others. NULL: any';


--
-- Name: COLUMN daemon.started; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.daemon.started IS 'When this incarnation started';


--
-- Name: COLUMN daemon.lease; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.daemon.lease IS 'How long a renewal is good for';


--
-- Name: COLUMN daemon.lease_until; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.daemon.lease_until IS 'Until when its claims stand without asking';


--
-- Name: COLUMN daemon.stopped; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.daemon.stopped IS 'When it stopped in order; NULL: it runs, or died';


--
-- Name: daemons; Type: VIEW; Schema: dataflow; Owner: dataflow_admin
--

CREATE VIEW dataflow.daemons AS
 SELECT (d.daemon)::text AS daemon,
    d.hostname,
    d.pid,
    d.environment,
    d.version,
    d.started,
    d.lease_until,
        CASE
            WHEN (d.stopped IS NOT NULL) THEN 'STOPPED'::text
            WHEN (d.lease_until < clock_timestamp()) THEN 'LOST'::text
            ELSE 'ALIVE'::text
        END AS state,
    COALESCE(live.attempts, (0)::bigint) AS running,
    c.concurrency,
    COALESCE(c.paused, false) AS paused
   FROM ((dataflow.daemon d
     LEFT JOIN dataflow.control c ON ((c.scope = ('daemon:'::text || (d.daemon)::text))))
     LEFT JOIN ( SELECT a.daemon,
            count(*) AS attempts
           FROM dataflow.attempt a
          WHERE (a.ended IS NULL)
          GROUP BY a.daemon) live ON (((live.daemon)::text = (d.daemon)::text)));


ALTER VIEW dataflow.daemons OWNER TO dataflow_admin;

--
-- Name: VIEW daemons; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON VIEW dataflow.daemons IS 'Every daemon that was ever seen: ALIVE, LOST (its lease ended without a word) or STOPPED, and what it runs';


--
-- Name: job_input; Type: TABLE; Schema: dataflow; Owner: dataflow_admin
--

CREATE TABLE dataflow.job_input (
    jobid dataflow.name NOT NULL,
    datasetid dataflow.name NOT NULL,
    mapping jsonb DEFAULT '{"kind": "identity"}'::jsonb NOT NULL,
    kind text GENERATED ALWAYS AS ((mapping ->> 'kind'::text)) STORED NOT NULL,
    CONSTRAINT job_input_kind_check CHECK ((kind = ANY (ARRAY['identity'::text, 'offset'::text, 'window'::text, 'all'::text, 'fixed'::text]))),
    CONSTRAINT job_input_mapping_check CHECK ((jsonb_typeof(mapping) = 'object'::text))
);


ALTER TABLE dataflow.job_input OWNER TO dataflow_admin;

--
-- Name: TABLE job_input; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON TABLE dataflow.job_input IS 'What a job reads, and which input chunks make one output chunk';


--
-- Name: COLUMN job_input.mapping; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.job_input.mapping IS '{"kind": "identity" | "offset" | "window" | "all" | "fixed", ...}; see dataflow.required_inputs';


--
-- Name: COLUMN job_input.kind; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.job_input.kind IS 'The kind of the mapping, from its JSON';


--
-- Name: job_output; Type: TABLE; Schema: dataflow; Owner: dataflow_admin
--

CREATE TABLE dataflow.job_output (
    jobid dataflow.name NOT NULL,
    datasetid dataflow.name NOT NULL
);


ALTER TABLE dataflow.job_output OWNER TO dataflow_admin;

--
-- Name: TABLE job_output; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON TABLE dataflow.job_output IS 'What a job writes. A dataset has one producer';


--
-- Name: datasets; Type: VIEW; Schema: dataflow; Owner: dataflow_admin
--

CREATE VIEW dataflow.datasets AS
 SELECT (d.datasetid)::text AS datasetid,
    d.flow,
    d.format,
    d.description,
    (o.jobid)::text AS producer,
    ARRAY( SELECT (i.jobid)::text AS jobid
           FROM dataflow.job_input i
          WHERE ((i.datasetid)::text = (d.datasetid)::text)
          ORDER BY i.jobid) AS consumers,
    COALESCE(d.location, NULLIF(concat_ws('.'::text, d.database, d.schemaname, d.tablename), ''::text), ('calendar '::text || d.calendar)) AS place,
    d.hostname,
    d.ordering,
    d.environment,
    COALESCE(c.chunks, (0)::bigint) AS chunks,
    COALESCE(c.ready, (0)::bigint) AS ready,
    d.created,
    d.modified,
    d.retired
   FROM ((dataflow.dataset d
     LEFT JOIN dataflow.job_output o ON (((o.datasetid)::text = (d.datasetid)::text)))
     LEFT JOIN ( SELECT n.datasetid,
            (sum(n.chunks))::bigint AS chunks,
            (sum(n.chunks) FILTER (WHERE (n.status = 'READY'::text)))::bigint AS ready
           FROM dataflow.counter n
          WHERE (n.locktype = 'OUT'::text)
          GROUP BY n.datasetid) c ON ((c.datasetid = (d.datasetid)::text)));


ALTER VIEW dataflow.datasets OWNER TO dataflow_admin;

--
-- Name: VIEW datasets; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON VIEW dataflow.datasets IS 'Every dataset with its producer, its consumers, its place and how many chunks it has; no credentials';


--
-- Name: datastatus; Type: TABLE; Schema: dataflow; Owner: dataflow_admin
--

CREATE TABLE dataflow.datastatus (
    datasetid dataflow.name NOT NULL,
    dataid dataflow.chunkid NOT NULL,
    locktype text DEFAULT 'OUT'::text NOT NULL COLLATE pg_catalog."C",
    jobid text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    run text NOT NULL COLLATE pg_catalog."C",
    status text NOT NULL COLLATE pg_catalog."C",
    modified timestamp with time zone DEFAULT now() NOT NULL,
    attempt bigint,
    version integer DEFAULT 0 NOT NULL,
    manifest integer,
    external boolean DEFAULT false NOT NULL,
    validated boolean DEFAULT true NOT NULL,
    held_from text,
    code text,
    reason text,
    sortkey text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    CONSTRAINT datastatus_held CHECK (((held_from IS NOT NULL) = (status = ANY (ARRAY['HOLD'::text, 'PENDING'::text])))),
    CONSTRAINT datastatus_published CHECK (((status <> 'READY'::text) OR (external <> (manifest IS NOT NULL)))),
    CONSTRAINT datastatus_run CHECK (
CASE locktype
    WHEN 'OUT'::text THEN (run = (dataid)::text)
    ELSE (jobid <> ''::text)
END),
    CONSTRAINT datastatus_running CHECK (((status <> 'RUNNING'::text) OR (attempt IS NOT NULL))),
    CONSTRAINT datastatus_status CHECK ((((locktype = 'OUT'::text) AND (status = ANY (ARRAY['RUNNING'::text, 'READY'::text, 'FAILED'::text, 'RESUBMIT'::text, 'PENDING'::text, 'HOLD'::text]))) OR ((locktype = 'IN'::text) AND (status = ANY (ARRAY['RUNNING'::text, 'DONE'::text, 'ERROR'::text]))))),
    CONSTRAINT datastatus_version_check CHECK ((version >= 0))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_analyze_scale_factor='0.02');


ALTER TABLE dataflow.datastatus OWNER TO dataflow_admin;

--
-- Name: TABLE datastatus; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON TABLE dataflow.datastatus IS 'The status of every chunk, and the lock table. OUT: RUNNING (being written), READY (published and validated), FAILED, RESUBMIT (may be rewritten), PENDING and HOLD (an operator''s hand). IN: RUNNING (being consumed), DONE, ERROR. No row: no lock. UPDATE ... SET status = ''RESUBMIT'' recovers';


--
-- Name: COLUMN datastatus.locktype; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.datastatus.locktype IS 'OUT: the chunk as its producer''s output; IN: the chunk as a job''s input';


--
-- Name: COLUMN datastatus.jobid; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.datastatus.jobid IS 'OUT: the producer, empty for a chunk that no job produces; IN: the consumer';


--
-- Name: COLUMN datastatus.run; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.datastatus.run IS 'The dataid of the run; differs from dataid where a mapping does';


--
-- Name: COLUMN datastatus.status; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.datastatus.status IS 'See the table''s comment; synonyms are normalised, anything else is refused';


--
-- Name: COLUMN datastatus.attempt; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.datastatus.attempt IS 'The last attempt that wrote or read it';


--
-- Name: COLUMN datastatus.version; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.datastatus.version IS 'OUT: counts publications; IN: the version that was used';


--
-- Name: COLUMN datastatus.manifest; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.datastatus.manifest IS 'The version whose manifest describes the published data';


--
-- Name: COLUMN datastatus.external; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.datastatus.external IS 'Registered from outside: READY without a manifest';


--
-- Name: COLUMN datastatus.validated; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.datastatus.validated IS 'False: it has arrived, but nobody has vouched for it yet';


--
-- Name: COLUMN datastatus.held_from; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.datastatus.held_from IS 'The status that release() restores';


--
-- Name: COLUMN datastatus.code; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.datastatus.code IS 'Why it is FAILED: one word';


--
-- Name: COLUMN datastatus.reason; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.datastatus.reason IS 'Why it is FAILED or held: a sentence';


--
-- Name: COLUMN datastatus.sortkey; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.datastatus.sortkey IS 'Orders the dataids of a dataset; see dataflow.sortkey()';


--
-- Name: event; Type: TABLE; Schema: dataflow; Owner: dataflow_admin
--

CREATE TABLE dataflow.event (
    event bigint NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    actor text DEFAULT SESSION_USER NOT NULL,
    application text DEFAULT current_setting('application_name'::text) NOT NULL,
    kind text NOT NULL,
    jobid text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    dataid text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    datasetid text COLLATE pg_catalog."C",
    attempt bigint,
    from_status text,
    to_status text,
    code text,
    reason text,
    CONSTRAINT event_kind_check CHECK ((kind = ANY (ARRAY['status'::text, 'queued'::text, 'blocked'::text, 'refused'::text, 'control'::text, 'daemon'::text, 'credential'::text])))
);


ALTER TABLE dataflow.event OWNER TO dataflow_admin;

--
-- Name: TABLE event; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON TABLE dataflow.event IS 'Append-only history of every transition and of every change of a run''s blocking reason: who, when, from, to, why';


--
-- Name: COLUMN event.event; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.event.event IS 'Number of the event; a later one is larger';


--
-- Name: COLUMN event.at; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.event.at IS 'When it happened';


--
-- Name: COLUMN event.actor; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.event.actor IS 'The database user who did it';


--
-- Name: COLUMN event.application; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.event.application IS 'The program it was done with (application_name)';


--
-- Name: COLUMN event.kind; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.event.kind IS 'What it is about: a status, the queue, a refusal, a control, a daemon or a credential';


--
-- Name: COLUMN event.from_status; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.event.from_status IS 'Status before';


--
-- Name: COLUMN event.to_status; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.event.to_status IS 'Status after';


--
-- Name: event_event_seq; Type: SEQUENCE; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE dataflow.event ALTER COLUMN event ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME dataflow.event_event_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: forgotten; Type: TABLE; Schema: dataflow; Owner: dataflow_admin
--

CREATE TABLE dataflow.forgotten (
    attempt bigint NOT NULL,
    datasetid dataflow.name NOT NULL,
    dataid dataflow.chunkid NOT NULL,
    claimed timestamp with time zone NOT NULL,
    ended timestamp with time zone,
    forgotten timestamp with time zone DEFAULT now() NOT NULL
);


ALTER TABLE dataflow.forgotten OWNER TO dataflow_admin;

--
-- Name: TABLE forgotten; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON TABLE dataflow.forgotten IS 'Attempts whose runs or chunks were deleted: collect() knows by them that the files were ours, and since when nobody wants them';


--
-- Name: COLUMN forgotten.forgotten; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.forgotten.forgotten IS 'When the run or chunk was deleted';


--
-- Name: job; Type: TABLE; Schema: dataflow; Owner: dataflow_admin
--

CREATE TABLE dataflow.job (
    jobid dataflow.name NOT NULL,
    flow text DEFAULT ''::text NOT NULL,
    description text DEFAULT ''::text NOT NULL,
    kind text DEFAULT 'python'::text NOT NULL,
    params jsonb DEFAULT '{}'::jsonb NOT NULL,
    max_running integer,
    max_attempts integer DEFAULT 1 NOT NULL,
    max_lost integer DEFAULT 5 NOT NULL,
    retry_delay interval DEFAULT '00:00:30'::interval NOT NULL,
    timeout interval,
    priority integer DEFAULT 0 NOT NULL,
    strict_order boolean DEFAULT false NOT NULL,
    code_hash text,
    config_hash text,
    created timestamp with time zone DEFAULT now() NOT NULL,
    modified timestamp with time zone DEFAULT now() NOT NULL,
    retired timestamp with time zone,
    CONSTRAINT job_kind_check CHECK ((kind = ANY (ARRAY['python'::text, 'sql'::text, 'command'::text, 'spark_submit'::text]))),
    CONSTRAINT job_max_attempts_check CHECK ((max_attempts >= 1)),
    CONSTRAINT job_max_lost_check CHECK ((max_lost >= 1)),
    CONSTRAINT job_max_running_check CHECK ((max_running >= 0)),
    CONSTRAINT job_params_check CHECK ((jsonb_typeof(params) = 'object'::text)),
    CONSTRAINT job_retry_delay_check CHECK ((retry_delay >= '00:00:00'::interval)),
    CONSTRAINT job_timeout_check CHECK ((timeout > '00:00:00'::interval))
);


ALTER TABLE dataflow.job OWNER TO dataflow_admin;

--
-- Name: TABLE job; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON TABLE dataflow.job IS 'A named transformation of input datasets into output datasets. Which code it runs is named only in the flow file on the host';


--
-- Name: COLUMN job.jobid; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.job.jobid IS 'Name of the job';


--
-- Name: COLUMN job.kind; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.job.kind IS 'What sort of code the flow file names for it; a label, never executed';


--
-- Name: COLUMN job.params; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.job.params IS 'Parameters, passed to the job as data';


--
-- Name: COLUMN job.max_running; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.job.max_running IS 'At most this many attempts at a time; NULL: no limit of its own';


--
-- Name: COLUMN job.max_attempts; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.job.max_attempts IS 'Tries of a run before it stays FAILED';


--
-- Name: COLUMN job.max_lost; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.job.max_lost IS 'Times a run may lose its runner before it goes to FAILED';


--
-- Name: COLUMN job.retry_delay; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.job.retry_delay IS 'Delay before the second try; doubles with each further one, with jitter';


--
-- Name: COLUMN job.timeout; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.job.timeout IS 'An attempt that runs longer is cancelled and failed; NULL: none';


--
-- Name: COLUMN job.priority; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.job.priority IS 'Higher is claimed first; equal priorities share fairly';


--
-- Name: COLUMN job.strict_order; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.job.strict_order IS 'A dataid waits until every earlier one of the job is READY';


--
-- Name: COLUMN job.code_hash; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.job.code_hash IS 'Hash of the code that would run now; attempts made with another are stale';


--
-- Name: COLUMN job.config_hash; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.job.config_hash IS 'Hash of the configuration that would be used now';


--
-- Name: jobs; Type: VIEW; Schema: dataflow; Owner: dataflow_admin
--

CREATE VIEW dataflow.jobs AS
 SELECT (j.jobid)::text AS jobid,
    j.flow,
    j.kind,
    j.description,
    ARRAY( SELECT ((i.datasetid)::text ||
                CASE i.kind
                    WHEN 'identity'::text THEN ''::text
                    ELSE ((' ('::text || i.kind) || ')'::text)
                END)
           FROM dataflow.job_input i
          WHERE ((i.jobid)::text = (j.jobid)::text)
          ORDER BY i.datasetid) AS inputs,
    ARRAY( SELECT (o.datasetid)::text AS datasetid
           FROM dataflow.job_output o
          WHERE ((o.jobid)::text = (j.jobid)::text)
          ORDER BY o.datasetid) AS outputs,
    COALESCE(c.concurrency, j.max_running) AS max_running,
    j.max_attempts,
    (EXTRACT(epoch FROM j.retry_delay))::double precision AS retry_delay_seconds,
    (EXTRACT(epoch FROM j.timeout))::double precision AS timeout_seconds,
    j.priority,
    j.strict_order,
    COALESCE(c.paused, false) AS paused,
    j.params,
    j.code_hash,
    j.config_hash,
    j.created,
    j.modified,
    j.retired
   FROM (dataflow.job j
     LEFT JOIN dataflow.control c ON ((c.scope = ('job:'::text || (j.jobid)::text))));


ALTER VIEW dataflow.jobs OWNER TO dataflow_admin;

--
-- Name: VIEW jobs; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON VIEW dataflow.jobs IS 'Every job with what it reads and writes and how it is run';


--
-- Name: key; Type: TABLE; Schema: dataflow; Owner: dataflow_admin
--

CREATE TABLE dataflow.key (
    keyid text NOT NULL,
    suite text NOT NULL,
    public_key bytea NOT NULL,
    created timestamp with time zone DEFAULT now() NOT NULL,
    retired timestamp with time zone
);


ALTER TABLE dataflow.key OWNER TO dataflow_admin;

--
-- Name: TABLE key; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON TABLE dataflow.key IS 'Public keys to seal credentials with. The private keys are files on the hosts that run jobs';


--
-- Name: COLUMN key.keyid; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.key.keyid IS 'Short name of the key, which sealed values carry';


--
-- Name: COLUMN key.suite; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.key.suite IS 'HPKE cipher suite it is for';


--
-- Name: COLUMN key.public_key; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.key.public_key IS 'The public key, raw';


--
-- Name: COLUMN key.retired; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.key.retired IS 'When values ceased to be sealed with it';


--
-- Name: keys; Type: VIEW; Schema: dataflow; Owner: dataflow_admin
--

CREATE VIEW dataflow.keys AS
SELECT
    NULL::text AS keyid,
    NULL::text AS suite,
    NULL::timestamp with time zone AS created,
    NULL::timestamp with time zone AS retired,
    NULL::bigint AS datasets,
    NULL::boolean AS is_current;


ALTER VIEW dataflow.keys OWNER TO dataflow_admin;

--
-- Name: VIEW keys; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON VIEW dataflow.keys IS 'Every key, and how many passwords are sealed with it';


--
-- Name: COLUMN keys.datasets; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.keys.datasets IS 'How many datasets have a password that is sealed with it';


--
-- Name: COLUMN keys.is_current; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.keys.is_current IS 'Whether new passwords are sealed with it';


--
-- Name: limits; Type: VIEW; Schema: dataflow; Owner: dataflow_admin
--

CREATE VIEW dataflow.limits AS
 WITH live AS MATERIALIZED (
         SELECT a.jobid,
            a.daemon,
            count(*) AS attempts
           FROM dataflow.attempt a
          WHERE (a.ended IS NULL)
          GROUP BY a.jobid, a.daemon
        )
 SELECT scope,
    concurrency,
    paused,
    (COALESCE(( SELECT sum(v.attempts) AS sum
           FROM live v
          WHERE ((l.scope = 'global'::text) OR (l.scope = ('job:'::text || (v.jobid)::text)) OR (l.scope = ('daemon:'::text || (v.daemon)::text)))), (0)::numeric))::bigint AS running,
    declared_in
   FROM ( SELECT c.scope,
            COALESCE(c.concurrency, j.max_running) AS concurrency,
            c.paused,
                CASE
                    WHEN ((c.concurrency IS NULL) AND (j.max_running IS NOT NULL)) THEN 'flow'::text
                    ELSE 'control'::text
                END AS declared_in
           FROM (dataflow.control c
             LEFT JOIN dataflow.job j ON ((c.scope = ('job:'::text || (j.jobid)::text))))
        UNION ALL
         SELECT ('job:'::text || (j.jobid)::text),
            j.max_running,
            false,
            'flow'::text
           FROM dataflow.job j
          WHERE ((j.max_running IS NOT NULL) AND (j.retired IS NULL) AND (NOT (EXISTS ( SELECT
                   FROM dataflow.control c
                  WHERE (c.scope = ('job:'::text || (j.jobid)::text))))))) l;


ALTER VIEW dataflow.limits OWNER TO dataflow_admin;

--
-- Name: VIEW limits; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON VIEW dataflow.limits IS 'Every limit and pause that is in force, with how many attempts run under it; declared_in says whether the control table or the flow set it';


--
-- Name: manifest; Type: TABLE; Schema: dataflow; Owner: dataflow_admin
--

CREATE TABLE dataflow.manifest (
    datasetid dataflow.name NOT NULL,
    dataid dataflow.chunkid NOT NULL,
    version integer NOT NULL,
    attempt bigint NOT NULL,
    location text,
    files jsonb DEFAULT '[]'::jsonb NOT NULL,
    bytes bigint,
    rows bigint,
    columns text,
    fingerprint text,
    published timestamp with time zone DEFAULT now() NOT NULL,
    collected timestamp with time zone,
    CONSTRAINT manifest_bytes_check CHECK ((bytes >= 0)),
    CONSTRAINT manifest_rows_check CHECK ((rows >= 0)),
    CONSTRAINT manifest_version_check CHECK ((version >= 1))
);


ALTER TABLE dataflow.manifest OWNER TO dataflow_admin;

--
-- Name: TABLE manifest; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON TABLE dataflow.manifest IS 'What an attempt published for a chunk. datastatus.manifest points at the current one';


--
-- Name: COLUMN manifest.version; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.manifest.version IS 'Counts the publications of the chunk, from 1';


--
-- Name: COLUMN manifest.files; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.manifest.files IS 'The files: [{"path", "bytes", "rows"}]';


--
-- Name: COLUMN manifest.bytes; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.manifest.bytes IS 'Size of all files';


--
-- Name: COLUMN manifest.rows; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.manifest.rows IS 'Number of rows, as counted and as the files say';


--
-- Name: COLUMN manifest.fingerprint; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.manifest.fingerprint IS 'Hash of the content, where the job gives one';


--
-- Name: COLUMN manifest.published; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.manifest.published IS 'When it became current';


--
-- Name: COLUMN manifest.collected; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.manifest.collected IS 'When its files were removed, because a later version had long replaced it; NULL: they are there';


--
-- Name: migration; Type: TABLE; Schema: dataflow; Owner: dataflow_admin
--

CREATE TABLE dataflow.migration (
    name text NOT NULL,
    checksum text NOT NULL,
    applied timestamp with time zone DEFAULT now() NOT NULL
);


ALTER TABLE dataflow.migration OWNER TO dataflow_admin;

--
-- Name: TABLE migration; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON TABLE dataflow.migration IS 'Files of sql/ that were applied to this database';


--
-- Name: COLUMN migration.name; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.migration.name IS 'File name; functions/<name> for those that are applied again when they change';


--
-- Name: COLUMN migration.checksum; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.migration.checksum IS 'SHA-256 of the file as it was applied';


--
-- Name: COLUMN migration.applied; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.migration.applied IS 'When it was applied last';


--
-- Name: node_stat; Type: TABLE; Schema: dataflow; Owner: dataflow_admin
--

CREATE TABLE dataflow.node_stat (
    attempt bigint NOT NULL,
    node text NOT NULL,
    ordinal integer DEFAULT 0 NOT NULL,
    items bigint DEFAULT 0 NOT NULL,
    successes bigint DEFAULT 0 NOT NULL,
    failures bigint DEFAULT 0 NOT NULL,
    seconds double precision DEFAULT 0 NOT NULL
);


ALTER TABLE dataflow.node_stat OWNER TO dataflow_admin;

--
-- Name: TABLE node_stat; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON TABLE dataflow.node_stat IS 'What each named node of a job did in an attempt';


--
-- Name: COLUMN node_stat.node; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.node_stat.node IS 'Name that the job gave to the step';


--
-- Name: COLUMN node_stat.ordinal; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.node_stat.ordinal IS 'Place of the node in the job';


--
-- Name: COLUMN node_stat.items; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.node_stat.items IS 'Records that came to the node';


--
-- Name: COLUMN node_stat.successes; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.node_stat.successes IS 'Records that passed';


--
-- Name: COLUMN node_stat.failures; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.node_stat.failures IS 'Records that did not';


--
-- Name: COLUMN node_stat.seconds; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.node_stat.seconds IS 'Time spent';


--
-- Name: open_run; Type: TABLE; Schema: dataflow; Owner: dataflow_admin
--

CREATE TABLE dataflow.open_run (
    jobid dataflow.name NOT NULL,
    sortkey text NOT NULL COLLATE pg_catalog."C",
    dataid dataflow.chunkid NOT NULL
);


ALTER TABLE dataflow.open_run OWNER TO dataflow_admin;

--
-- Name: TABLE open_run; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON TABLE dataflow.open_run IS 'The known runs of strict_order jobs that are not READY, in order. Derived';


--
-- Name: partitioning; Type: TABLE; Schema: dataflow; Owner: dataflow_admin
--

CREATE TABLE dataflow.partitioning (
    partitioning dataflow.name NOT NULL,
    datasetid dataflow.name NOT NULL,
    key_columns text[] NOT NULL,
    kind text NOT NULL,
    size bigint,
    created timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT partitioning_key_columns_check CHECK ((cardinality(key_columns) > 0)),
    CONSTRAINT partitioning_kind_check CHECK ((kind = ANY (ARRAY['size'::text, 'every'::text, 'count'::text, 'ids'::text]))),
    CONSTRAINT partitioning_size_check CHECK ((size > 0))
);


ALTER TABLE dataflow.partitioning OWNER TO dataflow_admin;

--
-- Name: TABLE partitioning; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON TABLE dataflow.partitioning IS 'A named way to split a keyed source into batches; several live side by side';


--
-- Name: COLUMN partitioning.partitioning; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.partitioning.partitioning IS 'Name of the partitioning, such as size_5000';


--
-- Name: COLUMN partitioning.key_columns; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.partitioning.key_columns IS 'Columns that make up the key, in order';


--
-- Name: COLUMN partitioning.kind; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.partitioning.kind IS 'size: ranges of so many records; every: every n-th record; count: so many parts; ids: listed keys';


--
-- Name: COLUMN partitioning.size; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.partitioning.size IS 'The number that belongs to the kind';


--
-- Name: quarantine; Type: TABLE; Schema: dataflow; Owner: dataflow_admin
--

CREATE TABLE dataflow.quarantine (
    jobid dataflow.name NOT NULL,
    dataid dataflow.chunkid NOT NULL,
    itemid text NOT NULL,
    attempt bigint NOT NULL,
    code text DEFAULT 'BAD_RECORD'::text NOT NULL,
    reason text DEFAULT ''::text NOT NULL,
    details jsonb DEFAULT '{}'::jsonb NOT NULL,
    created timestamp with time zone DEFAULT now() NOT NULL,
    is_resolved boolean DEFAULT false NOT NULL,
    resolved_by text,
    resolved timestamp with time zone,
    resolution jsonb,
    applied bigint,
    CONSTRAINT quarantine_check CHECK ((is_resolved = (resolved IS NOT NULL)))
);


ALTER TABLE dataflow.quarantine OWNER TO dataflow_admin;

--
-- Name: TABLE quarantine; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON TABLE dataflow.quarantine IS 'Bad records, set aside for a person';


--
-- Name: COLUMN quarantine.itemid; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.quarantine.itemid IS 'Key of the record in its chunk';


--
-- Name: COLUMN quarantine.details; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.quarantine.details IS 'The record, and what is wrong with it';


--
-- Name: COLUMN quarantine.is_resolved; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.quarantine.is_resolved IS 'Whether a person has dealt with it';


--
-- Name: COLUMN quarantine.resolved_by; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.quarantine.resolved_by IS 'Who has';


--
-- Name: COLUMN quarantine.resolved; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.quarantine.resolved IS 'When';


--
-- Name: COLUMN quarantine.resolution; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.quarantine.resolution IS '{"repaired": {column: value}}, or why it is dropped';


--
-- Name: COLUMN quarantine.applied; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.quarantine.applied IS 'The attempt that published the chunk with the resolution; NULL: replay() does';


--
-- Name: recheck; Type: TABLE; Schema: dataflow; Owner: dataflow_admin
--

CREATE TABLE dataflow.recheck (
    recheck bigint NOT NULL,
    jobid dataflow.name NOT NULL,
    dataid dataflow.chunkid,
    horizon xid8,
    looked timestamp with time zone
);


ALTER TABLE dataflow.recheck OWNER TO dataflow_admin;

--
-- Name: TABLE recheck; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON TABLE dataflow.recheck IS 'Runs judged not ready while another transaction was changing status: settle() judges them again. Derived';


--
-- Name: COLUMN recheck.recheck; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.recheck.recheck IS 'Number of the entry, in order of arrival';


--
-- Name: COLUMN recheck.dataid; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.recheck.dataid IS 'NULL: the first open run of a strict_order job';


--
-- Name: COLUMN recheck.horizon; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.recheck.horizon IS 'Once every transaction before this one has ended, one more look is the last; NULL: settle() has not looked yet';


--
-- Name: COLUMN recheck.looked; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.recheck.looked IS 'When settle() looked last, while an earlier transaction was still open';


--
-- Name: recheck_recheck_seq; Type: SEQUENCE; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE dataflow.recheck ALTER COLUMN recheck ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME dataflow.recheck_recheck_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: stale; Type: VIEW; Schema: dataflow; Owner: dataflow_admin
--

CREATE VIEW dataflow.stale AS
 SELECT (s.datasetid)::text AS datasetid,
    (s.dataid)::text AS dataid,
    s.jobid,
    s.version,
    a.attempt,
    array_remove(ARRAY[
        CASE
            WHEN (a.code_hash <> j.code_hash) THEN 'CODE'::text
            ELSE NULL::text
        END,
        CASE
            WHEN (a.config_hash <> j.config_hash) THEN 'CONFIGURATION'::text
            ELSE NULL::text
        END,
        CASE
            WHEN (newer.input IS NOT NULL) THEN 'INPUT'::text
            ELSE NULL::text
        END], NULL::text) AS because,
    newer.input
   FROM ((((dataflow.datastatus s
     JOIN dataflow.job j ON (((j.jobid)::text = s.jobid)))
     JOIN dataflow.manifest m ON ((((m.datasetid)::text = (s.datasetid)::text) AND ((m.dataid)::text = (s.dataid)::text) AND (m.version = s.manifest))))
     JOIN dataflow.attempt a ON ((a.attempt = m.attempt)))
     LEFT JOIN LATERAL ( SELECT min(i.key) AS input
           FROM (jsonb_each_text(a.inputs) i(key, value)
             JOIN dataflow.datastatus p ON ((((p.datasetid)::text = split_part(i.key, '/'::text, 1)) AND ((p.dataid)::text = split_part(i.key, '/'::text, 2)) AND (p.locktype = 'OUT'::text))))
          WHERE (p.version > (i.value)::integer)) newer ON (true))
  WHERE ((s.locktype = 'OUT'::text) AND (s.status = 'READY'::text) AND ((a.code_hash <> j.code_hash) OR (a.config_hash <> j.config_hash) OR (newer.input IS NOT NULL)));


ALTER VIEW dataflow.stale OWNER TO dataflow_admin;

--
-- Name: VIEW stale; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON VIEW dataflow.stale IS 'READY chunks that were made by other code or configuration than the job has now, or from inputs that were published again since';


--
-- Name: COLUMN stale.because; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.stale.because IS 'CODE, CONFIGURATION, INPUT';


--
-- Name: COLUMN stale.input; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.stale.input IS 'The first input that is newer';


--
-- Name: work; Type: TABLE; Schema: dataflow; Owner: dataflow_admin
--

CREATE TABLE dataflow.work (
    jobid dataflow.name NOT NULL,
    dataid dataflow.chunkid NOT NULL,
    sortkey text NOT NULL COLLATE pg_catalog."C",
    not_before timestamp with time zone,
    enqueued timestamp with time zone DEFAULT now() NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.01', autovacuum_analyze_scale_factor='0.05');


ALTER TABLE dataflow.work OWNER TO dataflow_admin;

--
-- Name: TABLE work; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON TABLE dataflow.work IS 'Runs that are ready now. Derived: never edited by hand, rebuilt by dataflow.rebuild_work()';


--
-- Name: COLUMN work.not_before; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.work.not_before IS 'A retry waits until then; NULL: at once';


--
-- Name: COLUMN work.enqueued; Type: COMMENT; Schema: dataflow; Owner: dataflow_admin
--

COMMENT ON COLUMN dataflow.work.enqueued IS 'When it became ready';


--
-- Data for Name: attempt; Type: TABLE DATA; Schema: dataflow; Owner: dataflow_admin
--

INSERT INTO dataflow.attempt OVERRIDING SYSTEM VALUE VALUES
	(8, 'clean_orders', '2026-01-08', 1, 1, 0, 'fa94152f-7553-43f4-8865-bc6ad7d14893', 'old-1', '30b36dc9-f7b1-4f00-ac2c-055139ee1cdc', 'dataflow-8c6cd746-7e24-4a9c-8b98-f14c06ec5510', false, '{"raw/2026-01-08": 1}', '{"safe": true, "ready": true, "validated": true, "right_data": true, "right_place": true}', '2026-11-16 12:50:38.635024+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{}', false),
	(9, 'clean_orders', '2026-01-09', 1, 1, 0, '6fc464ac-737a-4e1e-bd31-4188c3bde3ee', 'old-1', '30b36dc9-f7b1-4f00-ac2c-055139ee1cdc', 'dataflow-348a0314-57f1-4997-ad24-eaf34211aff2', false, '{"raw/2026-01-09": 1}', '{"safe": true, "ready": true, "validated": true, "right_data": true, "right_place": true}', '2026-11-16 12:50:38.635041+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{}', false),
	(10, 'clean_orders', '2026-01-10', 1, 1, 0, '32fec8cf-df29-4983-8d31-868c0cf24afe', 'old-1', '30b36dc9-f7b1-4f00-ac2c-055139ee1cdc', 'dataflow-e758be47-0d14-432a-9562-6b1bab15cb78', false, '{"raw/2026-01-10": 1}', '{"safe": true, "ready": true, "validated": true, "right_data": true, "right_place": true}', '2026-11-16 12:50:38.635059+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{}', false),
	(1, 'clean_orders', '2026-01-01', 1, 1, 0, '13c086ec-227b-4522-9bfc-34465a467980', 'old-1', '30b36dc9-f7b1-4f00-ac2c-055139ee1cdc', 'dataflow-2bf50c07-231b-4e18-bcda-78f2b458f572', false, '{"raw/2026-01-01": 1}', '{"safe": true, "ready": true, "validated": true, "right_data": true, "right_place": true}', '2026-11-16 12:50:38.629207+00', NULL, '2026-11-16 12:50:38.638318+00', 'DONE', NULL, NULL, NULL, NULL, NULL, '{}', true),
	(2, 'clean_orders', '2026-01-02', 1, 1, 0, '66e0bb3a-d48c-4cb7-a8ab-6ff559f810e7', 'old-1', '30b36dc9-f7b1-4f00-ac2c-055139ee1cdc', 'dataflow-a54cc9bf-6fb9-438f-8136-fefea9615a01', false, '{"raw/2026-01-02": 1}', '{"safe": true, "ready": true, "validated": true, "right_data": true, "right_place": true}', '2026-11-16 12:50:38.634894+00', NULL, '2026-11-16 12:50:38.670407+00', 'DONE', NULL, NULL, NULL, NULL, NULL, '{}', true),
	(3, 'clean_orders', '2026-01-03', 1, 1, 0, '2dd81d29-527a-4373-b3bb-2dbb361ee7de', 'old-1', '30b36dc9-f7b1-4f00-ac2c-055139ee1cdc', 'dataflow-1bae6224-f8e8-4094-9815-3f9996e80dd0', false, '{"raw/2026-01-03": 1}', '{"safe": true, "ready": true, "validated": true, "right_data": true, "right_place": true}', '2026-11-16 12:50:38.634926+00', NULL, '2026-11-16 12:50:38.682945+00', 'FAILED', 'JOB_FAILED', 'no such file', NULL, NULL, NULL, '{}', true),
	(4, 'clean_orders', '2026-01-04', 1, 1, 0, '62674c15-3616-4bc5-a5fb-b64ab3b67f06', 'old-1', '30b36dc9-f7b1-4f00-ac2c-055139ee1cdc', 'dataflow-2f487df5-e41d-4098-948f-a017bb384d26', false, '{"raw/2026-01-04": 1}', '{"safe": true, "ready": true, "validated": true, "right_data": true, "right_place": true}', '2026-11-16 12:50:38.63495+00', NULL, '2026-11-16 12:50:38.696591+00', 'FAILED', 'NETWORK', 'no route to host', '2026-11-16 12:50:39.691621+00', NULL, NULL, '{}', true),
	(5, 'clean_orders', '2026-01-05', 1, 1, 0, '9e4821ff-2262-44d8-b231-4f7607e2a182', 'old-1', '30b36dc9-f7b1-4f00-ac2c-055139ee1cdc', 'dataflow-47e100fe-5eb2-4163-97df-b55341dee5eb', false, '{"raw/2026-01-05": 1}', '{"safe": true, "ready": true, "validated": true, "right_data": true, "right_place": true}', '2026-11-16 12:50:38.634971+00', NULL, '2026-11-16 12:50:38.715954+00', 'RETURNED', 'RETURNED', NULL, NULL, NULL, NULL, '{}', true),
	(11, 'in_order', '2026-01-01', 1, 1, 0, 'fa0f5433-16f0-4161-bdf0-f20bc663a630', 'old-1', '30b36dc9-f7b1-4f00-ac2c-055139ee1cdc', 'dataflow-6113441b-ee54-445f-972a-a6a604a226a7', false, '{"raw/2026-01-01": 1}', '{"safe": true, "ready": true, "validated": true, "right_data": true, "right_place": true}', '2026-11-16 12:50:38.635076+00', NULL, '2026-11-16 12:50:38.72792+00', 'DONE', NULL, NULL, NULL, NULL, NULL, '{}', true),
	(6, 'clean_orders', '2026-01-06', 1, 1, 0, 'c59ef2ee-8a91-49a7-8543-560a0c55ccef', 'old-1', '30b36dc9-f7b1-4f00-ac2c-055139ee1cdc', 'dataflow-c137ec34-5a2f-499d-bde1-5c35857e637b', false, '{"raw/2026-01-06": 1}', '{"safe": true, "ready": true, "validated": true, "right_data": true, "right_place": true}', '2026-11-16 12:50:38.634988+00', NULL, '2026-11-16 12:50:38.746694+00', 'CANCELLED', 'CANCELLED', 'clean/2026-01-06 was set to HOLD by postgres', NULL, NULL, NULL, '{}', false),
	(7, 'clean_orders', '2026-01-07', 1, 1, 0, 'ed07cbff-1dd4-4778-b4e1-6d446470ee38', 'old-1', '30b36dc9-f7b1-4f00-ac2c-055139ee1cdc', 'dataflow-3e650b89-e50a-41ea-b261-975b6747c546', false, '{"raw/2026-01-07": 1}', '{"safe": true, "ready": true, "validated": true, "right_data": true, "right_place": true}', '2026-11-16 12:50:38.635005+00', NULL, '2026-11-16 12:50:38.774534+00', 'CANCELLED', 'CANCELLED', 'clean/2026-01-07 was set to FAILED by postgres', NULL, NULL, NULL, '{}', false),
	(12, 'clean_orders', '2026-01-05', 2, 1, 0, '2904efda-7e64-4699-af18-bf4ee6dad276', 'old-1', '30b36dc9-f7b1-4f00-ac2c-055139ee1cdc', 'dataflow-7866f87a-d20b-4594-811a-cb4420be9a80', false, '{"raw/2026-01-05": 1}', '{"safe": true, "ready": true, "validated": true, "right_data": true, "right_place": true}', '2026-11-16 12:50:38.79239+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{}', false),
	(13, 'in_order', '2026-01-02', 1, 1, 0, '6e4bab03-148a-4028-b94c-ead265b6080b', 'old-1', '30b36dc9-f7b1-4f00-ac2c-055139ee1cdc', 'dataflow-3f24663e-c8f7-4964-b902-ee0ece51ea02', false, '{"raw/2026-01-02": 1}', '{"safe": true, "ready": true, "validated": true, "right_data": true, "right_place": true}', '2026-11-16 12:50:38.792526+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{}', false),
	(15, 'sum_orders', '2026-01-02', 1, 1, 0, '9fd273eb-68ae-491c-abc0-edb45f7152cd', 'old-1', '30b36dc9-f7b1-4f00-ac2c-055139ee1cdc', 'dataflow-18e52379-8d7f-4447-95b8-57c6002a38e3', false, '{"clean/2026-01-02": 1}', '{"safe": true, "ready": true, "validated": true, "right_data": true, "right_place": true}', '2026-11-16 12:50:38.792778+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{}', false),
	(14, 'sum_orders', '2026-01-01', 1, 1, 0, 'c0a8e753-e504-48c1-9130-84e946a95d0b', 'old-1', '30b36dc9-f7b1-4f00-ac2c-055139ee1cdc', 'dataflow-6c7cf1d6-5e93-4c41-bb39-cf8f95181006', false, '{"clean/2026-01-01": 1}', '{"safe": true, "ready": true, "validated": true, "right_data": true, "right_place": true}', '2026-11-16 12:50:38.792758+00', NULL, '2026-11-16 12:50:38.803944+00', 'DONE', NULL, NULL, NULL, NULL, NULL, '{}', true);


--
-- Data for Name: batch; Type: TABLE DATA; Schema: dataflow; Owner: dataflow_admin
--



--
-- Data for Name: check_result; Type: TABLE DATA; Schema: dataflow; Owner: dataflow_admin
--

INSERT INTO dataflow.check_result VALUES
	(1, 'clean', 'min_rows', 'error', true, '9', '1');


--
-- Data for Name: control; Type: TABLE DATA; Schema: dataflow; Owner: dataflow_admin
--

INSERT INTO dataflow.control VALUES
	('global', 100, false, '2026-11-16 12:50:38.540109+00'),
	('job:in_order', 1, false, '2026-11-16 12:50:38.540109+00');


--
-- Data for Name: counter; Type: TABLE DATA; Schema: dataflow; Owner: dataflow_admin
--

INSERT INTO dataflow.counter VALUES
	('raw', '', 'OUT', 'READY', 10),
	('', 'in_order', 'WORK', 'QUEUED', 1),
	('', 'clean_orders', 'WORK', 'QUEUED', 10),
	('clean', 'clean_orders', 'OUT', 'RUNNING', 10),
	('ordered', 'in_order', 'OUT', 'RUNNING', 1),
	('', 'in_order', 'WORK', 'QUEUED', -1),
	('', 'clean_orders', 'WORK', 'QUEUED', -10),
	('clean', 'clean_orders', 'OUT', 'RUNNING', -1),
	('clean', 'clean_orders', 'OUT', 'READY', 1),
	('', 'sum_orders', 'WORK', 'QUEUED', 1),
	('clean', 'clean_orders', 'OUT', 'RUNNING', -1),
	('clean', 'clean_orders', 'OUT', 'READY', 1),
	('', 'sum_orders', 'WORK', 'QUEUED', 1),
	('clean', 'clean_orders', 'OUT', 'RUNNING', -1),
	('clean', 'clean_orders', 'OUT', 'FAILED', 1),
	('clean', 'clean_orders', 'OUT', 'RUNNING', -1),
	('clean', 'clean_orders', 'OUT', 'FAILED', 1),
	('', 'clean_orders', 'WORK', 'QUEUED', 1),
	('clean', 'clean_orders', 'OUT', 'RUNNING', -1),
	('clean', 'clean_orders', 'OUT', 'RESUBMIT', 1),
	('', 'clean_orders', 'WORK', 'QUEUED', 1),
	('ordered', 'in_order', 'OUT', 'RUNNING', -1),
	('ordered', 'in_order', 'OUT', 'READY', 1),
	('', 'in_order', 'WORK', 'QUEUED', 1),
	('raw', '', 'OUT', 'HOLD', 1),
	('clean', 'clean_orders', 'OUT', 'HOLD', 1),
	('clean', 'clean_orders', 'OUT', 'RUNNING', -1),
	('clean', 'clean_orders', 'OUT', 'RUNNING', -1),
	('clean', 'clean_orders', 'OUT', 'FAILED', 1),
	('clean', 'clean_orders', 'OUT', 'RUNNING', 1),
	('clean', 'clean_orders', 'OUT', 'RESUBMIT', -1),
	('ordered', 'in_order', 'OUT', 'RUNNING', 1),
	('sums', 'sum_orders', 'OUT', 'RUNNING', 2),
	('', 'in_order', 'WORK', 'QUEUED', -1),
	('', 'sum_orders', 'WORK', 'QUEUED', -2),
	('', 'clean_orders', 'WORK', 'QUEUED', -1),
	('sums', 'sum_orders', 'OUT', 'RUNNING', -1),
	('sums', 'sum_orders', 'OUT', 'READY', 1),
	('clean', 'clean_orders', 'OUT', 'READY', -1),
	('clean', 'clean_orders', 'OUT', 'RESUBMIT', 1);


--
-- Data for Name: daemon; Type: TABLE DATA; Schema: dataflow; Owner: dataflow_admin
--

INSERT INTO dataflow.daemon VALUES
	('old-1', '30b36dc9-f7b1-4f00-ac2c-055139ee1cdc', 'gone', 1, 22914, 'dev', '', NULL, '2026-11-16 12:50:38.54449+00', '00:00:01', '2026-11-16 12:50:39.545662+00', NULL);


--
-- Data for Name: dataset; Type: TABLE DATA; Schema: dataflow; Owner: dataflow_admin
--

INSERT INTO dataflow.dataset VALUES
	('today', '', 'Every day (UTC), READY when it begins', 'none', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{}', '{}', 'natural', 'pointer', NULL, 'daily', 'UTC', '2026-11-16 00:00:00+00', 'start', '2026-11-16 00:00:00+00', '2026-11-16 12:50:38.006133+00', '2026-11-16 12:50:38.006133+00', NULL),
	('raw', '', '', 'csv', '/data/raw/{dataid}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{}', '{}', 'natural', 'pointer', NULL, NULL, 'UTC', NULL, 'end', NULL, '2026-11-16 12:50:38.532247+00', '2026-11-16 12:50:38.532247+00', NULL),
	('clean', '', '', 'parquet', '/data/clean', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{}', '{}', 'natural', 'pointer', NULL, NULL, 'UTC', NULL, 'end', NULL, '2026-11-16 12:50:38.532247+00', '2026-11-16 12:50:38.532247+00', NULL),
	('sums', '', '', 'parquet', '/data/sums', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{}', '{}', 'natural', 'pointer', NULL, NULL, 'UTC', NULL, 'end', NULL, '2026-11-16 12:50:38.532247+00', '2026-11-16 12:50:38.532247+00', NULL),
	('ordered', '', '', 'parquet', '/data/ordered', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{}', '{}', 'natural', 'pointer', NULL, NULL, 'UTC', NULL, 'end', NULL, '2026-11-16 12:50:38.532247+00', '2026-11-16 12:50:38.532247+00', NULL);


--
-- Data for Name: datastatus; Type: TABLE DATA; Schema: dataflow; Owner: dataflow_admin
--

INSERT INTO dataflow.datastatus VALUES
	('raw', '2026-01-09', 'OUT', '', '2026-01-09', 'READY', '2026-11-16 12:50:38.547247+00', NULL, 1, NULL, true, true, NULL, NULL, NULL, '0000002026-0000000001-0000000009'),
	('raw', '2026-01-06', 'OUT', '', '2026-01-06', 'READY', '2026-11-16 12:50:38.547247+00', NULL, 1, NULL, true, true, NULL, NULL, NULL, '0000002026-0000000001-0000000006'),
	('raw', '2026-01-04', 'OUT', '', '2026-01-04', 'READY', '2026-11-16 12:50:38.547247+00', NULL, 1, NULL, true, true, NULL, NULL, NULL, '0000002026-0000000001-0000000004'),
	('raw', '2026-01-01', 'OUT', '', '2026-01-01', 'READY', '2026-11-16 12:50:38.547247+00', NULL, 1, NULL, true, true, NULL, NULL, NULL, '0000002026-0000000001-0000000001'),
	('raw', '2026-01-07', 'OUT', '', '2026-01-07', 'READY', '2026-11-16 12:50:38.547247+00', NULL, 1, NULL, true, true, NULL, NULL, NULL, '0000002026-0000000001-0000000007'),
	('raw', '2026-01-03', 'OUT', '', '2026-01-03', 'READY', '2026-11-16 12:50:38.547247+00', NULL, 1, NULL, true, true, NULL, NULL, NULL, '0000002026-0000000001-0000000003'),
	('raw', '2026-01-02', 'OUT', '', '2026-01-02', 'READY', '2026-11-16 12:50:38.547247+00', NULL, 1, NULL, true, true, NULL, NULL, NULL, '0000002026-0000000001-0000000002'),
	('raw', '2026-01-10', 'OUT', '', '2026-01-10', 'READY', '2026-11-16 12:50:38.547247+00', NULL, 1, NULL, true, true, NULL, NULL, NULL, '0000002026-0000000001-0000000010'),
	('raw', '2026-01-08', 'OUT', '', '2026-01-08', 'READY', '2026-11-16 12:50:38.547247+00', NULL, 1, NULL, true, true, NULL, NULL, NULL, '0000002026-0000000001-0000000008'),
	('raw', '2026-01-05', 'OUT', '', '2026-01-05', 'READY', '2026-11-16 12:50:38.547247+00', NULL, 1, NULL, true, true, NULL, NULL, NULL, '0000002026-0000000001-0000000005'),
	('clean', '2026-01-08', 'OUT', 'clean_orders', '2026-01-08', 'RUNNING', '2026-11-16 12:50:38.586654+00', 8, 0, NULL, false, true, NULL, NULL, NULL, '0000002026-0000000001-0000000008'),
	('clean', '2026-01-09', 'OUT', 'clean_orders', '2026-01-09', 'RUNNING', '2026-11-16 12:50:38.586654+00', 9, 0, NULL, false, true, NULL, NULL, NULL, '0000002026-0000000001-0000000009'),
	('clean', '2026-01-10', 'OUT', 'clean_orders', '2026-01-10', 'RUNNING', '2026-11-16 12:50:38.586654+00', 10, 0, NULL, false, true, NULL, NULL, NULL, '0000002026-0000000001-0000000010'),
	('raw', '2026-01-08', 'IN', 'clean_orders', '2026-01-08', 'RUNNING', '2026-11-16 12:50:38.586654+00', 8, 1, NULL, false, true, NULL, NULL, NULL, ''),
	('raw', '2026-01-09', 'IN', 'clean_orders', '2026-01-09', 'RUNNING', '2026-11-16 12:50:38.586654+00', 9, 1, NULL, false, true, NULL, NULL, NULL, ''),
	('raw', '2026-01-10', 'IN', 'clean_orders', '2026-01-10', 'RUNNING', '2026-11-16 12:50:38.586654+00', 10, 1, NULL, false, true, NULL, NULL, NULL, ''),
	('clean', '2026-01-01', 'OUT', 'clean_orders', '2026-01-01', 'READY', '2026-11-16 12:50:38.638318+00', 1, 1, 1, false, true, NULL, NULL, NULL, '0000002026-0000000001-0000000001'),
	('raw', '2026-01-01', 'IN', 'clean_orders', '2026-01-01', 'DONE', '2026-11-16 12:50:38.638318+00', 1, 1, NULL, false, true, NULL, NULL, NULL, ''),
	('clean', '2026-01-03', 'OUT', 'clean_orders', '2026-01-03', 'FAILED', '2026-11-16 12:50:38.682945+00', 3, 0, NULL, false, true, NULL, 'JOB_FAILED', 'no such file', '0000002026-0000000001-0000000003'),
	('raw', '2026-01-03', 'IN', 'clean_orders', '2026-01-03', 'ERROR', '2026-11-16 12:50:38.682945+00', 3, 1, NULL, false, true, NULL, NULL, NULL, ''),
	('clean', '2026-01-04', 'OUT', 'clean_orders', '2026-01-04', 'FAILED', '2026-11-16 12:50:38.696591+00', 4, 0, NULL, false, true, NULL, 'NETWORK', 'no route to host', '0000002026-0000000001-0000000004'),
	('raw', '2026-01-04', 'IN', 'clean_orders', '2026-01-04', 'ERROR', '2026-11-16 12:50:38.696591+00', 4, 1, NULL, false, true, NULL, NULL, NULL, ''),
	('clean', '2026-01-02', 'OUT', 'clean_orders', '2026-01-02', 'RESUBMIT', '2026-11-16 12:50:38.81053+00', 2, 1, 1, false, true, NULL, NULL, NULL, '0000002026-0000000001-0000000002'),
	('raw', 'held', 'OUT', '', 'held', 'HOLD', '2026-11-16 12:50:38.746694+00', NULL, 0, NULL, false, true, 'NONE', NULL, 'bad feed', 'held'),
	('ordered', '2026-01-01', 'OUT', 'in_order', '2026-01-01', 'READY', '2026-11-16 12:50:38.72792+00', 11, 1, 1, false, true, NULL, NULL, NULL, '0000002026-0000000001-0000000001'),
	('raw', '2026-01-01', 'IN', 'in_order', '2026-01-01', 'DONE', '2026-11-16 12:50:38.72792+00', 11, 1, NULL, false, true, NULL, NULL, NULL, ''),
	('clean', '2026-01-06', 'OUT', 'clean_orders', '2026-01-06', 'HOLD', '2026-11-16 12:50:38.746694+00', 6, 0, NULL, false, true, 'RESUBMIT', NULL, 'look at it', '0000002026-0000000001-0000000006'),
	('clean', '2026-01-07', 'OUT', 'clean_orders', '2026-01-07', 'FAILED', '2026-11-16 12:50:38.774534+00', 7, 0, NULL, false, true, NULL, 'CANCELLED', 'cancelled by postgres', '0000002026-0000000001-0000000007'),
	('raw', '2026-01-07', 'IN', 'clean_orders', '2026-01-07', 'ERROR', '2026-11-16 12:50:38.774534+00', 7, 1, NULL, false, true, NULL, NULL, 'cancelled by postgres', ''),
	('clean', '2026-01-05', 'OUT', 'clean_orders', '2026-01-05', 'RUNNING', '2026-11-16 12:50:38.786662+00', 12, 0, NULL, false, true, NULL, NULL, NULL, '0000002026-0000000001-0000000005'),
	('ordered', '2026-01-02', 'OUT', 'in_order', '2026-01-02', 'RUNNING', '2026-11-16 12:50:38.786662+00', 13, 0, NULL, false, true, NULL, NULL, NULL, '0000002026-0000000001-0000000002'),
	('sums', '2026-01-02', 'OUT', 'sum_orders', '2026-01-02', 'RUNNING', '2026-11-16 12:50:38.786662+00', 15, 0, NULL, false, true, NULL, NULL, NULL, '0000002026-0000000001-0000000002'),
	('raw', '2026-01-05', 'IN', 'clean_orders', '2026-01-05', 'RUNNING', '2026-11-16 12:50:38.786662+00', 12, 1, NULL, false, true, NULL, NULL, NULL, ''),
	('raw', '2026-01-02', 'IN', 'in_order', '2026-01-02', 'RUNNING', '2026-11-16 12:50:38.786662+00', 13, 1, NULL, false, true, NULL, NULL, NULL, ''),
	('sums', '2026-01-01', 'OUT', 'sum_orders', '2026-01-01', 'READY', '2026-11-16 12:50:38.803944+00', 14, 1, 1, false, true, NULL, NULL, NULL, '0000002026-0000000001-0000000001'),
	('clean', '2026-01-01', 'IN', 'sum_orders', '2026-01-01', 'DONE', '2026-11-16 12:50:38.803944+00', 14, 1, NULL, false, true, NULL, NULL, NULL, ''),
	('clean', '2026-01-02', 'IN', 'sum_orders', '2026-01-02', 'RUNNING', '2026-11-16 12:50:38.786662+00', 15, 1, NULL, false, true, NULL, NULL, NULL, '');


--
-- Data for Name: event; Type: TABLE DATA; Schema: dataflow; Owner: dataflow_admin
--

INSERT INTO dataflow.event OVERRIDING SYSTEM VALUE VALUES
	(1, '2026-11-16 12:50:38.540891+00', 'postgres', '', 'control', '', '', NULL, NULL, '4', '100', NULL, 'global'),
	(2, '2026-11-16 12:50:38.541927+00', 'postgres', '', 'control', '', '', NULL, NULL, NULL, '1', NULL, 'job:in_order'),
	(3, '2026-11-16 12:50:38.545818+00', 'postgres', '', 'daemon', '', '', NULL, NULL, NULL, 'STARTED', NULL, 'old-1 on gone, pid 1'),
	(4, '2026-11-16 12:50:38.549658+00', 'postgres', '', 'status', '', '2026-01-09', 'raw', NULL, NULL, 'READY', NULL, NULL),
	(5, '2026-11-16 12:50:38.549692+00', 'postgres', '', 'status', '', '2026-01-06', 'raw', NULL, NULL, 'READY', NULL, NULL),
	(6, '2026-11-16 12:50:38.549698+00', 'postgres', '', 'status', '', '2026-01-04', 'raw', NULL, NULL, 'READY', NULL, NULL),
	(7, '2026-11-16 12:50:38.549702+00', 'postgres', '', 'status', '', '2026-01-01', 'raw', NULL, NULL, 'READY', NULL, NULL),
	(8, '2026-11-16 12:50:38.549707+00', 'postgres', '', 'status', '', '2026-01-07', 'raw', NULL, NULL, 'READY', NULL, NULL),
	(9, '2026-11-16 12:50:38.54971+00', 'postgres', '', 'status', '', '2026-01-03', 'raw', NULL, NULL, 'READY', NULL, NULL),
	(10, '2026-11-16 12:50:38.549712+00', 'postgres', '', 'status', '', '2026-01-02', 'raw', NULL, NULL, 'READY', NULL, NULL),
	(11, '2026-11-16 12:50:38.549715+00', 'postgres', '', 'status', '', '2026-01-10', 'raw', NULL, NULL, 'READY', NULL, NULL),
	(12, '2026-11-16 12:50:38.549721+00', 'postgres', '', 'status', '', '2026-01-08', 'raw', NULL, NULL, 'READY', NULL, NULL),
	(13, '2026-11-16 12:50:38.549724+00', 'postgres', '', 'status', '', '2026-01-05', 'raw', NULL, NULL, 'READY', NULL, NULL),
	(14, '2026-11-16 12:50:38.579771+00', 'postgres', '', 'blocked', 'in_order', '2026-01-02', NULL, NULL, NULL, NULL, 'WRONG_DATA', '2026-01-01 comes first: the job keeps strict order'),
	(15, '2026-11-16 12:50:38.579819+00', 'postgres', '', 'blocked', 'in_order', '2026-01-03', NULL, NULL, NULL, NULL, 'WRONG_DATA', '2026-01-01 comes first: the job keeps strict order'),
	(16, '2026-11-16 12:50:38.579824+00', 'postgres', '', 'blocked', 'in_order', '2026-01-04', NULL, NULL, NULL, NULL, 'WRONG_DATA', '2026-01-01 comes first: the job keeps strict order'),
	(17, '2026-11-16 12:50:38.579828+00', 'postgres', '', 'blocked', 'in_order', '2026-01-05', NULL, NULL, NULL, NULL, 'WRONG_DATA', '2026-01-01 comes first: the job keeps strict order'),
	(18, '2026-11-16 12:50:38.579831+00', 'postgres', '', 'blocked', 'in_order', '2026-01-06', NULL, NULL, NULL, NULL, 'WRONG_DATA', '2026-01-01 comes first: the job keeps strict order'),
	(19, '2026-11-16 12:50:38.579834+00', 'postgres', '', 'blocked', 'in_order', '2026-01-07', NULL, NULL, NULL, NULL, 'WRONG_DATA', '2026-01-01 comes first: the job keeps strict order'),
	(20, '2026-11-16 12:50:38.579838+00', 'postgres', '', 'blocked', 'in_order', '2026-01-08', NULL, NULL, NULL, NULL, 'WRONG_DATA', '2026-01-01 comes first: the job keeps strict order'),
	(21, '2026-11-16 12:50:38.579844+00', 'postgres', '', 'blocked', 'in_order', '2026-01-09', NULL, NULL, NULL, NULL, 'WRONG_DATA', '2026-01-01 comes first: the job keeps strict order'),
	(22, '2026-11-16 12:50:38.579847+00', 'postgres', '', 'blocked', 'in_order', '2026-01-10', NULL, NULL, NULL, NULL, 'WRONG_DATA', '2026-01-01 comes first: the job keeps strict order'),
	(23, '2026-11-16 12:50:38.579852+00', 'postgres', '', 'queued', 'clean_orders', '2026-01-01', NULL, NULL, NULL, NULL, NULL, NULL),
	(24, '2026-11-16 12:50:38.579854+00', 'postgres', '', 'queued', 'clean_orders', '2026-01-02', NULL, NULL, NULL, NULL, NULL, NULL),
	(25, '2026-11-16 12:50:38.579857+00', 'postgres', '', 'queued', 'clean_orders', '2026-01-03', NULL, NULL, NULL, NULL, NULL, NULL),
	(26, '2026-11-16 12:50:38.579859+00', 'postgres', '', 'queued', 'clean_orders', '2026-01-04', NULL, NULL, NULL, NULL, NULL, NULL),
	(27, '2026-11-16 12:50:38.579862+00', 'postgres', '', 'queued', 'clean_orders', '2026-01-05', NULL, NULL, NULL, NULL, NULL, NULL),
	(28, '2026-11-16 12:50:38.579865+00', 'postgres', '', 'queued', 'clean_orders', '2026-01-06', NULL, NULL, NULL, NULL, NULL, NULL),
	(29, '2026-11-16 12:50:38.579867+00', 'postgres', '', 'queued', 'clean_orders', '2026-01-07', NULL, NULL, NULL, NULL, NULL, NULL),
	(30, '2026-11-16 12:50:38.57987+00', 'postgres', '', 'queued', 'clean_orders', '2026-01-08', NULL, NULL, NULL, NULL, NULL, NULL),
	(31, '2026-11-16 12:50:38.579872+00', 'postgres', '', 'queued', 'clean_orders', '2026-01-09', NULL, NULL, NULL, NULL, NULL, NULL),
	(32, '2026-11-16 12:50:38.579875+00', 'postgres', '', 'queued', 'clean_orders', '2026-01-10', NULL, NULL, NULL, NULL, NULL, NULL),
	(33, '2026-11-16 12:50:38.57988+00', 'postgres', '', 'queued', 'in_order', '2026-01-01', NULL, NULL, NULL, NULL, NULL, NULL),
	(34, '2026-11-16 12:50:38.635766+00', 'postgres', '', 'status', 'clean_orders', '2026-01-01', 'clean', 1, NULL, 'RUNNING', NULL, NULL),
	(35, '2026-11-16 12:50:38.635811+00', 'postgres', '', 'status', 'clean_orders', '2026-01-02', 'clean', 2, NULL, 'RUNNING', NULL, NULL),
	(36, '2026-11-16 12:50:38.635815+00', 'postgres', '', 'status', 'clean_orders', '2026-01-03', 'clean', 3, NULL, 'RUNNING', NULL, NULL),
	(37, '2026-11-16 12:50:38.635822+00', 'postgres', '', 'status', 'clean_orders', '2026-01-04', 'clean', 4, NULL, 'RUNNING', NULL, NULL),
	(38, '2026-11-16 12:50:38.635825+00', 'postgres', '', 'status', 'clean_orders', '2026-01-05', 'clean', 5, NULL, 'RUNNING', NULL, NULL),
	(39, '2026-11-16 12:50:38.635828+00', 'postgres', '', 'status', 'clean_orders', '2026-01-06', 'clean', 6, NULL, 'RUNNING', NULL, NULL),
	(40, '2026-11-16 12:50:38.635831+00', 'postgres', '', 'status', 'clean_orders', '2026-01-07', 'clean', 7, NULL, 'RUNNING', NULL, NULL),
	(41, '2026-11-16 12:50:38.635834+00', 'postgres', '', 'status', 'clean_orders', '2026-01-08', 'clean', 8, NULL, 'RUNNING', NULL, NULL),
	(42, '2026-11-16 12:50:38.635836+00', 'postgres', '', 'status', 'clean_orders', '2026-01-09', 'clean', 9, NULL, 'RUNNING', NULL, NULL),
	(43, '2026-11-16 12:50:38.635839+00', 'postgres', '', 'status', 'clean_orders', '2026-01-10', 'clean', 10, NULL, 'RUNNING', NULL, NULL),
	(44, '2026-11-16 12:50:38.635842+00', 'postgres', '', 'status', 'in_order', '2026-01-01', 'ordered', 11, NULL, 'RUNNING', NULL, NULL),
	(45, '2026-11-16 12:50:38.642268+00', 'postgres', '', 'status', 'clean_orders', '2026-01-01', 'clean', 1, 'RUNNING', 'READY', NULL, NULL),
	(46, '2026-11-16 12:50:38.654165+00', 'postgres', '', 'queued', 'sum_orders', '2026-01-01', NULL, NULL, NULL, NULL, NULL, NULL),
	(47, '2026-11-16 12:50:38.674927+00', 'postgres', '', 'status', 'clean_orders', '2026-01-02', 'clean', 2, 'RUNNING', 'READY', NULL, NULL),
	(48, '2026-11-16 12:50:38.675958+00', 'postgres', '', 'queued', 'sum_orders', '2026-01-02', NULL, NULL, NULL, NULL, NULL, NULL),
	(49, '2026-11-16 12:50:38.683981+00', 'postgres', '', 'status', 'clean_orders', '2026-01-03', 'clean', 3, 'RUNNING', 'FAILED', 'JOB_FAILED', 'no such file'),
	(50, '2026-11-16 12:50:38.691725+00', 'postgres', '', 'blocked', 'clean_orders', '2026-01-03', NULL, NULL, NULL, NULL, 'LOCKED', 'clean/2026-01-03 has FAILED (JOB_FAILED) and waits for RESUBMIT');
INSERT INTO dataflow.event OVERRIDING SYSTEM VALUE VALUES
	(51, '2026-11-16 12:50:38.697527+00', 'postgres', '', 'status', 'clean_orders', '2026-01-04', 'clean', 4, 'RUNNING', 'FAILED', 'NETWORK', 'no route to host'),
	(52, '2026-11-16 12:50:38.70545+00', 'postgres', '', 'queued', 'clean_orders', '2026-01-04', NULL, NULL, NULL, NULL, NULL, 'retry at 2026-11-16 12:50:39.691621+00'),
	(53, '2026-11-16 12:50:38.717082+00', 'postgres', '', 'status', 'clean_orders', '2026-01-05', 'clean', 5, 'RUNNING', 'RESUBMIT', 'RETURNED', NULL),
	(54, '2026-11-16 12:50:38.721391+00', 'postgres', '', 'queued', 'clean_orders', '2026-01-05', NULL, NULL, NULL, NULL, NULL, NULL),
	(55, '2026-11-16 12:50:38.728762+00', 'postgres', '', 'status', 'in_order', '2026-01-01', 'ordered', 11, 'RUNNING', 'READY', NULL, NULL),
	(56, '2026-11-16 12:50:38.731818+00', 'postgres', '', 'queued', 'in_order', '2026-01-02', NULL, NULL, NULL, NULL, NULL, NULL),
	(57, '2026-11-16 12:50:38.748128+00', 'postgres', '', 'status', '', 'held', 'raw', NULL, NULL, 'HOLD', NULL, 'bad feed'),
	(58, '2026-11-16 12:50:38.749749+00', 'postgres', '', 'blocked', 'in_order', 'held', NULL, NULL, NULL, NULL, 'DATA_NOT_READY', 'raw/held is HOLD'),
	(59, '2026-11-16 12:50:38.766625+00', 'postgres', '', 'status', 'clean_orders', '2026-01-06', 'clean', 6, 'RUNNING', 'HOLD', NULL, 'look at it'),
	(60, '2026-11-16 12:50:38.769723+00', 'postgres', '', 'blocked', 'clean_orders', '2026-01-06', NULL, NULL, NULL, NULL, 'LOCKED', 'clean/2026-01-06 is HOLD: look at it'),
	(61, '2026-11-16 12:50:38.775308+00', 'postgres', '', 'status', 'clean_orders', '2026-01-07', 'clean', 7, 'RUNNING', 'FAILED', 'CANCELLED', 'cancelled by postgres'),
	(62, '2026-11-16 12:50:38.78254+00', 'postgres', '', 'blocked', 'clean_orders', '2026-01-07', NULL, NULL, NULL, NULL, 'LOCKED', 'clean/2026-01-07 has FAILED (CANCELLED) and waits for RESUBMIT'),
	(63, '2026-11-16 12:50:38.793293+00', 'postgres', '', 'status', 'clean_orders', '2026-01-05', 'clean', 12, 'RESUBMIT', 'RUNNING', NULL, NULL),
	(64, '2026-11-16 12:50:38.793433+00', 'postgres', '', 'status', 'in_order', '2026-01-02', 'ordered', 13, NULL, 'RUNNING', NULL, NULL),
	(65, '2026-11-16 12:50:38.793454+00', 'postgres', '', 'status', 'sum_orders', '2026-01-01', 'sums', 14, NULL, 'RUNNING', NULL, NULL),
	(66, '2026-11-16 12:50:38.793488+00', 'postgres', '', 'status', 'sum_orders', '2026-01-02', 'sums', 15, NULL, 'RUNNING', NULL, NULL),
	(67, '2026-11-16 12:50:38.804946+00', 'postgres', '', 'status', 'sum_orders', '2026-01-01', 'sums', 14, 'RUNNING', 'READY', NULL, NULL),
	(68, '2026-11-16 12:50:38.811612+00', 'postgres', '', 'status', 'clean_orders', '2026-01-02', 'clean', 2, 'READY', 'RESUBMIT', NULL, NULL),
	(69, '2026-11-16 12:50:38.812844+00', 'postgres', '', 'blocked', 'clean_orders', '2026-01-02', NULL, NULL, NULL, NULL, 'LOCKED', 'clean/2026-01-02 is being read by job sum_orders'),
	(70, '2026-11-16 12:50:38.817081+00', 'postgres', '', 'credential', '', '', NULL, NULL, NULL, 'KEY_ADDED', NULL, 'e2bb440ae8cff04595ca8d9dc4f9433d');


--
-- Data for Name: forgotten; Type: TABLE DATA; Schema: dataflow; Owner: dataflow_admin
--



--
-- Data for Name: job; Type: TABLE DATA; Schema: dataflow; Owner: dataflow_admin
--

INSERT INTO dataflow.job VALUES
	('clean_orders', '', '', 'python', '{}', NULL, 3, 5, '00:00:01', NULL, 0, false, NULL, NULL, '2026-11-16 12:50:38.532247+00', '2026-11-16 12:50:38.532247+00', NULL),
	('sum_orders', '', '', 'python', '{}', NULL, 1, 5, '00:00:01', NULL, 0, false, NULL, NULL, '2026-11-16 12:50:38.532247+00', '2026-11-16 12:50:38.532247+00', NULL),
	('in_order', '', '', 'python', '{}', NULL, 1, 5, '00:00:01', NULL, 0, true, NULL, NULL, '2026-11-16 12:50:38.532247+00', '2026-11-16 12:50:38.532247+00', NULL);


--
-- Data for Name: job_input; Type: TABLE DATA; Schema: dataflow; Owner: dataflow_admin
--

INSERT INTO dataflow.job_input VALUES
	('clean_orders', 'raw', '{"kind": "identity"}', DEFAULT),
	('sum_orders', 'clean', '{"kind": "identity"}', DEFAULT),
	('in_order', 'raw', '{"kind": "identity"}', DEFAULT);


--
-- Data for Name: job_output; Type: TABLE DATA; Schema: dataflow; Owner: dataflow_admin
--

INSERT INTO dataflow.job_output VALUES
	('clean_orders', 'clean'),
	('sum_orders', 'sums'),
	('in_order', 'ordered');


--
-- Data for Name: key; Type: TABLE DATA; Schema: dataflow; Owner: dataflow_admin
--

INSERT INTO dataflow.key VALUES
	('e2bb440ae8cff04595ca8d9dc4f9433d', 'x25519', '\x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f', '2026-11-16 12:50:38.816435+00', NULL);


--
-- Data for Name: manifest; Type: TABLE DATA; Schema: dataflow; Owner: dataflow_admin
--

INSERT INTO dataflow.manifest VALUES
	('clean', '2026-01-01', 1, 1, '/data/clean/dataid=2026-01-01/attempt=1', '[]', 900, 9, NULL, NULL, '2026-11-16 12:50:38.638318+00', NULL),
	('clean', '2026-01-02', 1, 2, NULL, '[]', NULL, NULL, NULL, NULL, '2026-11-16 12:50:38.670407+00', NULL),
	('ordered', '2026-01-01', 1, 11, NULL, '[]', NULL, NULL, NULL, NULL, '2026-11-16 12:50:38.72792+00', NULL),
	('sums', '2026-01-01', 1, 14, NULL, '[]', NULL, NULL, NULL, NULL, '2026-11-16 12:50:38.803944+00', NULL);


--
-- Data for Name: migration; Type: TABLE DATA; Schema: dataflow; Owner: dataflow_admin
--

INSERT INTO dataflow.migration VALUES
	('0001_roles.sql', 'c158d07e0006af83b650941ca09d0e01e64c394328401a5bbabe09a4ea646d5e', '2026-11-16 12:50:37.930041+00'),
	('0002_metadata.sql', 'a492c024979c201ab50aa3552b7a33457f29852e9dcc1aa3bbe19b0f6776811d', '2026-11-16 12:50:38.006133+00'),
	('0003_status.sql', '2f52598cdc9409e102e10d776a828d31102f710a5af689d5e6aebdb04ada4bee', '2026-11-16 12:50:38.18014+00'),
	('functions/apply.sql', '6cb2a10e1bd352cdd4bf66da61e0ea50f25d22385ac45921007dc8be43d845e0', '2026-11-16 12:50:38.37094+00'),
	('functions/calendar.sql', '717dec316e860b67fe8cd851b880d64ffb2baa77591f614f4e976239814306bb', '2026-11-16 12:50:38.37094+00'),
	('functions/claim.sql', '911196c710576a29b1169b20c3e3ab488c6b67bc9c42eb8d960d7183dd48fbdd', '2026-11-16 12:50:38.37094+00'),
	('functions/collect.sql', 'c8996e6cb875338f04041662039ae26a119bac7df3c6efd78edc25f36368bd42', '2026-11-16 12:50:38.37094+00'),
	('functions/control.sql', '9bd2c97c6c8a6885ffe20452c6c0544f6a33b25398a98d1eb191fb2a5bdae720', '2026-11-16 12:50:38.37094+00'),
	('functions/credential.sql', 'c1cbcc0a16b7ed80f0c8fb3c2e09edb177e08743bd26a53fcaa347c0dbfd0b2f', '2026-11-16 12:50:38.37094+00'),
	('functions/finish.sql', 'c12360f62a11c4bf33863993f39768852a96a9e5a46407ccfa72f0ca4ab13c0d', '2026-11-16 12:50:38.37094+00'),
	('functions/mapping.sql', 'b0f3dbf2c26e4934171473f6771303fe861c57b4f145f49e904759f10647cb3b', '2026-11-16 12:50:38.37094+00'),
	('functions/operate.sql', '35c3afc88f4706ac626756107a1edf2c10762278c1aa8b6526059c53ac05fbf3', '2026-11-16 12:50:38.37094+00'),
	('functions/order.sql', '97fd3a33b85f839e7804d8a642117c1c27d01afcc42e430ce7bcc9fdbe5362d2', '2026-11-16 12:50:38.37094+00'),
	('functions/ordering.sql', '62293b0b619983e298eb4ceaf8747c5fc5d74523ec84a09631df4fb77c04b913', '2026-11-16 12:50:38.37094+00'),
	('functions/partition.sql', '6f5be0a324fc0cbe2e60c334ff1ba57a1ade3e70bd0c006427e13cb525d81ae1', '2026-11-16 12:50:38.37094+00'),
	('functions/quarantine.sql', 'ae4c119bafd5f27a80e3b7201042193019131b6c41556a0f3df5f58a9b54bb00', '2026-11-16 12:50:38.37094+00'),
	('functions/questions.sql', 'c284b379567089c50ede1a87a9ec883943af4e9d42c2781b9a46c811df372b80', '2026-11-16 12:50:38.37094+00'),
	('functions/report.sql', '54b58f609fd4c013bc575efc51d08e7659ae33e49a7850f87b8a599e28113d53', '2026-11-16 12:50:38.37094+00'),
	('functions/resubmit.sql', '80c4bfb94f7d24cabe630a28169f45fdb377ad55a91a9b1c6e4be9f8df0515ef', '2026-11-16 12:50:38.37094+00'),
	('functions/status.sql', '2184aea034cf37314bef433bdfb8becb9e1115a47b143b11bd7fa9de6dac6f8b', '2026-11-16 12:50:38.37094+00'),
	('functions/work.sql', 'd7249929d17f904c4df391b9c5038120cdd755c2b3c687e9401210e65cae33f3', '2026-11-16 12:50:38.37094+00'),
	('functions/roles.sql', '7582ee65a2b1c4c5e86ee6a87a06d8e750185f77fe1ca2023abb9fdabac22edd', '2026-11-16 12:50:38.37094+00');


--
-- Data for Name: node_stat; Type: TABLE DATA; Schema: dataflow; Owner: dataflow_admin
--

INSERT INTO dataflow.node_stat VALUES
	(1, 'read', 1, 10, 9, 1, 0.5);


--
-- Data for Name: open_run; Type: TABLE DATA; Schema: dataflow; Owner: dataflow_admin
--

INSERT INTO dataflow.open_run VALUES
	('in_order', '0000002026-0000000001-0000000006', '2026-01-06'),
	('in_order', '0000002026-0000000001-0000000009', '2026-01-09'),
	('in_order', '0000002026-0000000001-0000000003', '2026-01-03'),
	('in_order', '0000002026-0000000001-0000000005', '2026-01-05'),
	('in_order', '0000002026-0000000001-0000000008', '2026-01-08'),
	('in_order', '0000002026-0000000001-0000000002', '2026-01-02'),
	('in_order', '0000002026-0000000001-0000000010', '2026-01-10'),
	('in_order', '0000002026-0000000001-0000000007', '2026-01-07'),
	('in_order', '0000002026-0000000001-0000000004', '2026-01-04'),
	('in_order', 'held', 'held');


--
-- Data for Name: partitioning; Type: TABLE DATA; Schema: dataflow; Owner: dataflow_admin
--

INSERT INTO dataflow.partitioning VALUES
	('every_2', 'raw', '{id}', 'every', 2, '2026-11-16 12:50:38.8195+00');


--
-- Data for Name: quarantine; Type: TABLE DATA; Schema: dataflow; Owner: dataflow_admin
--

INSERT INTO dataflow.quarantine VALUES
	('clean_orders', '2026-01-01', '4711', 1, 'BAD_RECORD', 'no date', '{}', '2026-11-16 12:50:38.638318+00', false, NULL, NULL, NULL, NULL);


--
-- Data for Name: recheck; Type: TABLE DATA; Schema: dataflow; Owner: dataflow_admin
--



--
-- Data for Name: work; Type: TABLE DATA; Schema: dataflow; Owner: dataflow_admin
--

INSERT INTO dataflow.work VALUES
	('clean_orders', '2026-01-04', '0000002026-0000000001-0000000004', '2026-11-16 12:50:39.691621+00', '2026-11-16 12:50:38.696591+00');


--
-- Name: attempt_attempt_seq; Type: SEQUENCE SET; Schema: dataflow; Owner: dataflow_admin
--

SELECT pg_catalog.setval('dataflow.attempt_attempt_seq', 15, true);


--
-- Name: event_event_seq; Type: SEQUENCE SET; Schema: dataflow; Owner: dataflow_admin
--

SELECT pg_catalog.setval('dataflow.event_event_seq', 70, true);


--
-- Name: recheck_recheck_seq; Type: SEQUENCE SET; Schema: dataflow; Owner: dataflow_admin
--

SELECT pg_catalog.setval('dataflow.recheck_recheck_seq', 1, false);


--
-- Name: attempt attempt_pkey; Type: CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.attempt
    ADD CONSTRAINT attempt_pkey PRIMARY KEY (attempt);


--
-- Name: batch batch_pkey; Type: CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.batch
    ADD CONSTRAINT batch_pkey PRIMARY KEY (datasetid, dataid);


--
-- Name: check_result check_result_pkey; Type: CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.check_result
    ADD CONSTRAINT check_result_pkey PRIMARY KEY (attempt, datasetid, name);


--
-- Name: control control_pkey; Type: CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.control
    ADD CONSTRAINT control_pkey PRIMARY KEY (scope);


--
-- Name: daemon daemon_pkey; Type: CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.daemon
    ADD CONSTRAINT daemon_pkey PRIMARY KEY (daemon);


--
-- Name: dataset dataset_pkey; Type: CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.dataset
    ADD CONSTRAINT dataset_pkey PRIMARY KEY (datasetid);


--
-- Name: datastatus datastatus_pkey; Type: CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.datastatus
    ADD CONSTRAINT datastatus_pkey PRIMARY KEY (datasetid, dataid, locktype, jobid, run);


--
-- Name: event event_pkey; Type: CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.event
    ADD CONSTRAINT event_pkey PRIMARY KEY (event);


--
-- Name: forgotten forgotten_pkey; Type: CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.forgotten
    ADD CONSTRAINT forgotten_pkey PRIMARY KEY (attempt, datasetid);


--
-- Name: job_input job_input_pkey; Type: CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.job_input
    ADD CONSTRAINT job_input_pkey PRIMARY KEY (jobid, datasetid);


--
-- Name: job_output job_output_datasetid_key; Type: CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.job_output
    ADD CONSTRAINT job_output_datasetid_key UNIQUE (datasetid);


--
-- Name: job_output job_output_pkey; Type: CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.job_output
    ADD CONSTRAINT job_output_pkey PRIMARY KEY (jobid, datasetid);


--
-- Name: job job_pkey; Type: CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.job
    ADD CONSTRAINT job_pkey PRIMARY KEY (jobid);


--
-- Name: key key_pkey; Type: CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.key
    ADD CONSTRAINT key_pkey PRIMARY KEY (keyid);


--
-- Name: manifest manifest_pkey; Type: CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.manifest
    ADD CONSTRAINT manifest_pkey PRIMARY KEY (datasetid, dataid, version);


--
-- Name: migration migration_pkey; Type: CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (name);


--
-- Name: node_stat node_stat_pkey; Type: CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.node_stat
    ADD CONSTRAINT node_stat_pkey PRIMARY KEY (attempt, node);


--
-- Name: open_run open_run_pkey; Type: CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.open_run
    ADD CONSTRAINT open_run_pkey PRIMARY KEY (jobid, sortkey, dataid);


--
-- Name: partitioning partitioning_pkey; Type: CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.partitioning
    ADD CONSTRAINT partitioning_pkey PRIMARY KEY (datasetid, partitioning);


--
-- Name: quarantine quarantine_pkey; Type: CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.quarantine
    ADD CONSTRAINT quarantine_pkey PRIMARY KEY (jobid, dataid, itemid);


--
-- Name: recheck recheck_pkey; Type: CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.recheck
    ADD CONSTRAINT recheck_pkey PRIMARY KEY (recheck);


--
-- Name: work work_pkey; Type: CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.work
    ADD CONSTRAINT work_pkey PRIMARY KEY (jobid, dataid);


--
-- Name: attempt_failed; Type: INDEX; Schema: dataflow; Owner: dataflow_admin
--

CREATE INDEX attempt_failed ON dataflow.attempt USING btree (jobid, ended) WHERE (outcome = ANY (ARRAY['FAILED'::text, 'LOST'::text, 'CANCELLED'::text]));


--
-- Name: attempt_live; Type: INDEX; Schema: dataflow; Owner: dataflow_admin
--

CREATE UNIQUE INDEX attempt_live ON dataflow.attempt USING btree (jobid, dataid) WHERE ((ended IS NULL) AND (NOT let_go));


--
-- Name: attempt_run; Type: INDEX; Schema: dataflow; Owner: dataflow_admin
--

CREATE UNIQUE INDEX attempt_run ON dataflow.attempt USING btree (jobid, dataid, number);


--
-- Name: attempt_running; Type: INDEX; Schema: dataflow; Owner: dataflow_admin
--

CREATE INDEX attempt_running ON dataflow.attempt USING btree (attempt) INCLUDE (jobid, daemon) WHERE (ended IS NULL);


--
-- Name: attempt_stopping; Type: INDEX; Schema: dataflow; Owner: dataflow_admin
--

CREATE INDEX attempt_stopping ON dataflow.attempt USING btree (daemon) WHERE ((outcome = 'CANCELLED'::text) AND (NOT let_go));


--
-- Name: batch_partitioning; Type: INDEX; Schema: dataflow; Owner: dataflow_admin
--

CREATE INDEX batch_partitioning ON dataflow.batch USING btree (datasetid, partitioning);


--
-- Name: datastatus_chunk; Type: INDEX; Schema: dataflow; Owner: dataflow_admin
--

CREATE UNIQUE INDEX datastatus_chunk ON dataflow.datastatus USING btree (datasetid, dataid) WHERE (locktype = 'OUT'::text);


--
-- Name: datastatus_order; Type: INDEX; Schema: dataflow; Owner: dataflow_admin
--

CREATE INDEX datastatus_order ON dataflow.datastatus USING btree ((((datasetid)::text || ''::text)), sortkey) WHERE (locktype = 'OUT'::text);


--
-- Name: event_at; Type: INDEX; Schema: dataflow; Owner: dataflow_admin
--

CREATE INDEX event_at ON dataflow.event USING brin (at);


--
-- Name: event_run; Type: INDEX; Schema: dataflow; Owner: dataflow_admin
--

CREATE INDEX event_run ON dataflow.event USING btree (jobid, dataid, event);


--
-- Name: job_input_datasetid; Type: INDEX; Schema: dataflow; Owner: dataflow_admin
--

CREATE INDEX job_input_datasetid ON dataflow.job_input USING btree (datasetid);


--
-- Name: manifest_attempt; Type: INDEX; Schema: dataflow; Owner: dataflow_admin
--

CREATE INDEX manifest_attempt ON dataflow.manifest USING btree (attempt);


--
-- Name: work_age; Type: INDEX; Schema: dataflow; Owner: dataflow_admin
--

CREATE INDEX work_age ON dataflow.work USING btree ((((jobid)::text || ''::text)), enqueued);


--
-- Name: work_later; Type: INDEX; Schema: dataflow; Owner: dataflow_admin
--

CREATE INDEX work_later ON dataflow.work USING btree (not_before) WHERE (not_before IS NOT NULL);


--
-- Name: work_next; Type: INDEX; Schema: dataflow; Owner: dataflow_admin
--

CREATE INDEX work_next ON dataflow.work USING btree ((((jobid)::text || ''::text)), sortkey) WHERE (not_before IS NULL);


--
-- Name: keys _RETURN; Type: RULE; Schema: dataflow; Owner: dataflow_admin
--

CREATE OR REPLACE VIEW dataflow.keys AS
 SELECT k.keyid,
    k.suite,
    k.created,
    k.retired,
    count(d.datasetid) AS datasets,
    ((k.retired IS NULL) AND (k.created >= ALL ( SELECT o.created
           FROM dataflow.key o
          WHERE (o.retired IS NULL)))) AS is_current
   FROM (dataflow.key k
     LEFT JOIN dataflow.dataset d ON ((split_part(d.encryptedpass, '.'::text, 3) = k.keyid)))
  GROUP BY k.keyid
  ORDER BY k.created DESC, k.keyid;


--
-- Name: control control_changed; Type: TRIGGER; Schema: dataflow; Owner: dataflow_admin
--

CREATE TRIGGER control_changed AFTER UPDATE ON dataflow.control REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION dataflow._control_changed();


--
-- Name: control control_checked; Type: TRIGGER; Schema: dataflow; Owner: dataflow_admin
--

CREATE TRIGGER control_checked BEFORE INSERT OR UPDATE ON dataflow.control FOR EACH ROW EXECUTE FUNCTION dataflow._control_checked();


--
-- Name: control control_inserted; Type: TRIGGER; Schema: dataflow; Owner: dataflow_admin
--

CREATE TRIGGER control_inserted AFTER INSERT ON dataflow.control REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION dataflow._control_inserted();


--
-- Name: dataset dataset_checked; Type: TRIGGER; Schema: dataflow; Owner: dataflow_admin
--

CREATE TRIGGER dataset_checked BEFORE INSERT OR UPDATE OF calendar, calendar_zone, calendar_next ON dataflow.dataset FOR EACH ROW EXECUTE FUNCTION dataflow._dataset_checked();


--
-- Name: datastatus datastatus_by_hand; Type: TRIGGER; Schema: dataflow; Owner: dataflow_admin
--

CREATE TRIGGER datastatus_by_hand BEFORE INSERT OR DELETE OR UPDATE ON dataflow.datastatus FOR EACH ROW WHEN ((CURRENT_USER <> 'dataflow_admin'::name)) EXECUTE FUNCTION dataflow._datastatus_by_hand();


--
-- Name: datastatus datastatus_deleted; Type: TRIGGER; Schema: dataflow; Owner: dataflow_admin
--

CREATE TRIGGER datastatus_deleted AFTER DELETE ON dataflow.datastatus REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION dataflow._datastatus_deleted();


--
-- Name: datastatus datastatus_inserted; Type: TRIGGER; Schema: dataflow; Owner: dataflow_admin
--

CREATE TRIGGER datastatus_inserted AFTER INSERT ON dataflow.datastatus REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION dataflow._datastatus_inserted();


--
-- Name: datastatus datastatus_updated; Type: TRIGGER; Schema: dataflow; Owner: dataflow_admin
--

CREATE TRIGGER datastatus_updated AFTER UPDATE ON dataflow.datastatus REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION dataflow._datastatus_updated();


--
-- Name: job_input job_input_checked; Type: TRIGGER; Schema: dataflow; Owner: dataflow_admin
--

CREATE TRIGGER job_input_checked BEFORE INSERT OR UPDATE ON dataflow.job_input FOR EACH ROW EXECUTE FUNCTION dataflow._job_input_checked();


--
-- Name: job_output job_output_deleted; Type: TRIGGER; Schema: dataflow; Owner: dataflow_admin
--

CREATE TRIGGER job_output_deleted AFTER DELETE ON dataflow.job_output REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION dataflow._job_output_deleted();


--
-- Name: job_output job_output_inserted; Type: TRIGGER; Schema: dataflow; Owner: dataflow_admin
--

CREATE TRIGGER job_output_inserted AFTER INSERT ON dataflow.job_output REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION dataflow._job_output_inserted();


--
-- Name: job_output job_output_updated; Type: TRIGGER; Schema: dataflow; Owner: dataflow_admin
--

CREATE TRIGGER job_output_updated AFTER UPDATE ON dataflow.job_output REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION dataflow._job_output_updated();


--
-- Name: work work_deleted; Type: TRIGGER; Schema: dataflow; Owner: dataflow_admin
--

CREATE TRIGGER work_deleted AFTER DELETE ON dataflow.work REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION dataflow._work_deleted();


--
-- Name: work work_inserted; Type: TRIGGER; Schema: dataflow; Owner: dataflow_admin
--

CREATE TRIGGER work_inserted AFTER INSERT ON dataflow.work REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION dataflow._work_inserted();


--
-- Name: batch batch_datasetid_partitioning_fkey; Type: FK CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.batch
    ADD CONSTRAINT batch_datasetid_partitioning_fkey FOREIGN KEY (datasetid, partitioning) REFERENCES dataflow.partitioning(datasetid, partitioning) ON DELETE CASCADE;


--
-- Name: check_result check_result_attempt_fkey; Type: FK CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.check_result
    ADD CONSTRAINT check_result_attempt_fkey FOREIGN KEY (attempt) REFERENCES dataflow.attempt(attempt) ON DELETE CASCADE;


--
-- Name: datastatus datastatus_datasetid_dataid_manifest_fkey; Type: FK CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.datastatus
    ADD CONSTRAINT datastatus_datasetid_dataid_manifest_fkey FOREIGN KEY (datasetid, dataid, manifest) REFERENCES dataflow.manifest(datasetid, dataid, version);


--
-- Name: job_input job_input_datasetid_fkey; Type: FK CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.job_input
    ADD CONSTRAINT job_input_datasetid_fkey FOREIGN KEY (datasetid) REFERENCES dataflow.dataset(datasetid);


--
-- Name: job_input job_input_jobid_fkey; Type: FK CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.job_input
    ADD CONSTRAINT job_input_jobid_fkey FOREIGN KEY (jobid) REFERENCES dataflow.job(jobid) ON DELETE CASCADE;


--
-- Name: job_output job_output_datasetid_fkey; Type: FK CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.job_output
    ADD CONSTRAINT job_output_datasetid_fkey FOREIGN KEY (datasetid) REFERENCES dataflow.dataset(datasetid);


--
-- Name: job_output job_output_jobid_fkey; Type: FK CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.job_output
    ADD CONSTRAINT job_output_jobid_fkey FOREIGN KEY (jobid) REFERENCES dataflow.job(jobid) ON DELETE CASCADE;


--
-- Name: node_stat node_stat_attempt_fkey; Type: FK CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.node_stat
    ADD CONSTRAINT node_stat_attempt_fkey FOREIGN KEY (attempt) REFERENCES dataflow.attempt(attempt) ON DELETE CASCADE;


--
-- Name: partitioning partitioning_datasetid_fkey; Type: FK CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.partitioning
    ADD CONSTRAINT partitioning_datasetid_fkey FOREIGN KEY (datasetid) REFERENCES dataflow.dataset(datasetid) ON DELETE CASCADE;


--
-- Name: quarantine quarantine_jobid_fkey; Type: FK CONSTRAINT; Schema: dataflow; Owner: dataflow_admin
--

ALTER TABLE ONLY dataflow.quarantine
    ADD CONSTRAINT quarantine_jobid_fkey FOREIGN KEY (jobid) REFERENCES dataflow.job(jobid);


--
-- Name: SCHEMA dataflow; Type: ACL; Schema: -; Owner: dataflow_admin
--

GRANT USAGE ON SCHEMA dataflow TO dataflow_reader;
GRANT USAGE ON SCHEMA dataflow TO dataflow_operator;
GRANT USAGE ON SCHEMA dataflow TO dataflow_daemon;


--
-- Name: FUNCTION _alone(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._alone() FROM PUBLIC;


--
-- Name: FUNCTION _are_literal(patterns text[]); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._are_literal(patterns text[]) FROM PUBLIC;


--
-- Name: FUNCTION _bounded_selector(selector jsonb); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._bounded_selector(selector jsonb) FROM PUBLIC;


--
-- Name: TABLE dataset; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.dataset TO dataflow_reader;


--
-- Name: FUNCTION _calendar_due(d dataflow.dataset, start timestamp with time zone); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._calendar_due(d dataflow.dataset, start timestamp with time zone) FROM PUBLIC;


--
-- Name: FUNCTION _calendar_unit(calendar text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._calendar_unit(calendar text) FROM PUBLIC;


--
-- Name: FUNCTION _changed(changes dataflow.status_change[]); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._changed(changes dataflow.status_change[]) FROM PUBLIC;


--
-- Name: FUNCTION _checked_dataid(dataid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._checked_dataid(dataid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow._checked_dataid(dataid text) TO dataflow_reader;


--
-- Name: FUNCTION _checked_statuses(statuses text[]); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._checked_statuses(statuses text[]) FROM PUBLIC;


--
-- Name: FUNCTION _control_changed(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._control_changed() FROM PUBLIC;


--
-- Name: FUNCTION _control_checked(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._control_checked() FROM PUBLIC;


--
-- Name: FUNCTION _control_inserted(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._control_inserted() FROM PUBLIC;


--
-- Name: FUNCTION _counted(n bigint, thing text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._counted(n bigint, thing text) FROM PUBLIC;


--
-- Name: FUNCTION _dataset_checked(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._dataset_checked() FROM PUBLIC;


--
-- Name: FUNCTION _datastatus_by_hand(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._datastatus_by_hand() FROM PUBLIC;


--
-- Name: FUNCTION _datastatus_deleted(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._datastatus_deleted() FROM PUBLIC;


--
-- Name: FUNCTION _datastatus_inserted(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._datastatus_inserted() FROM PUBLIC;


--
-- Name: FUNCTION _datastatus_updated(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._datastatus_updated() FROM PUBLIC;


--
-- Name: FUNCTION _described(d dataflow.dataset); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._described(d dataflow.dataset) FROM PUBLIC;


--
-- Name: FUNCTION _differing_keys(declared jsonb, before jsonb, after jsonb); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._differing_keys(declared jsonb, before jsonb, after jsonb) FROM PUBLIC;


--
-- Name: FUNCTION _evaluate(jobids text[], dataids text[]); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._evaluate(jobids text[], dataids text[]) FROM PUBLIC;


--
-- Name: FUNCTION _finish(results jsonb); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._finish(results jsonb) FROM PUBLIC;


--
-- Name: FUNCTION _forget_small_plans(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._forget_small_plans() FROM PUBLIC;


--
-- Name: FUNCTION _inputs(jobid text, dataid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._inputs(jobid text, dataid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow._inputs(jobid text, dataid text) TO dataflow_reader;


--
-- Name: FUNCTION _is_quiet(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._is_quiet() FROM PUBLIC;


--
-- Name: FUNCTION _job_document(jobid dataflow.name); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._job_document(jobid dataflow.name) FROM PUBLIC;


--
-- Name: FUNCTION _job_input_checked(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._job_input_checked() FROM PUBLIC;


--
-- Name: FUNCTION _job_output_deleted(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._job_output_deleted() FROM PUBLIC;


--
-- Name: FUNCTION _job_output_inserted(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._job_output_inserted() FROM PUBLIC;


--
-- Name: FUNCTION _job_output_updated(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._job_output_updated() FROM PUBLIC;


--
-- Name: FUNCTION _known_dataset(datasetid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._known_dataset(datasetid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow._known_dataset(datasetid text) TO dataflow_reader;


--
-- Name: FUNCTION _known_job(jobid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._known_job(jobid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow._known_job(jobid text) TO dataflow_reader;


--
-- Name: FUNCTION _leased(daemon text, incarnation uuid); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._leased(daemon text, incarnation uuid) FROM PUBLIC;


--
-- Name: FUNCTION _long_sortkey(dataid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._long_sortkey(dataid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow._long_sortkey(dataid text) TO dataflow_reader;


--
-- Name: FUNCTION _look(daemon text, environment text, want integer, from_start boolean, OUT jobids text[], OUT dataids text[]); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._look(daemon text, environment text, want integer, from_start boolean, OUT jobids text[], OUT dataids text[]) FROM PUBLIC;


--
-- Name: FUNCTION _lose(lost bigint[]); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._lose(lost bigint[]) FROM PUBLIC;


--
-- Name: FUNCTION _mapped_inputs(mapping jsonb, datasetid text, run text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._mapped_inputs(mapping jsonb, datasetid text, run text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow._mapped_inputs(mapping jsonb, datasetid text, run text) TO dataflow_reader;


--
-- Name: FUNCTION _mapped_runs(jobid text, mapping jsonb, datasetid text, dataid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._mapped_runs(jobid text, mapping jsonb, datasetid text, dataid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow._mapped_runs(jobid text, mapping jsonb, datasetid text, dataid text) TO dataflow_reader;


--
-- Name: FUNCTION _mark(jobid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._mark(jobid text) FROM PUBLIC;


--
-- Name: FUNCTION _may_have_written(outcome text, started timestamp with time zone); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._may_have_written(outcome text, started timestamp with time zone) FROM PUBLIC;


--
-- Name: FUNCTION _moments(unit text, first timestamp with time zone, until timestamp with time zone, zone text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._moments(unit text, first timestamp with time zone, until timestamp with time zone, zone text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow._moments(unit text, first timestamp with time zone, until timestamp with time zone, zone text) TO dataflow_reader;


--
-- Name: FUNCTION _next_work(daemon text, environment text, want integer, OUT jobids text[], OUT dataids text[]); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._next_work(daemon text, environment text, want integer, OUT jobids text[], OUT dataids text[]) FROM PUBLIC;


--
-- Name: FUNCTION _number(dataid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._number(dataid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow._number(dataid text) TO dataflow_reader;


--
-- Name: FUNCTION _obstacles(jobid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._obstacles(jobid text) FROM PUBLIC;


--
-- Name: FUNCTION _order(jobid text, dataid text, inputs jsonb); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._order(jobid text, dataid text, inputs jsonb) FROM PUBLIC;


--
-- Name: FUNCTION _ordered(ordering text, dataid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._ordered(ordering text, dataid text) FROM PUBLIC;


--
-- Name: FUNCTION _own_chunks(datasetids text[]); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._own_chunks(datasetids text[]) FROM PUBLIC;


--
-- Name: FUNCTION _publish(results jsonb, accepted bigint[]); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._publish(results jsonb, accepted bigint[]) FROM PUBLIC;


--
-- Name: FUNCTION _queue_position(jobid text, dataid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._queue_position(jobid text, dataid text) FROM PUBLIC;


--
-- Name: FUNCTION _record_details(results jsonb, accepted bigint[]); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._record_details(results jsonb, accepted bigint[]) FROM PUBLIC;


--
-- Name: FUNCTION _refresh(jobids text[], dataids text[], alone boolean); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._refresh(jobids text[], dataids text[], alone boolean) FROM PUBLIC;


--
-- Name: FUNCTION _reset_runs(changes dataflow.status_change[]); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._reset_runs(changes dataflow.status_change[]) FROM PUBLIC;


--
-- Name: FUNCTION _run_lock(jobid text, dataid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._run_lock(jobid text, dataid text) FROM PUBLIC;


--
-- Name: FUNCTION _shares(daemon text, environment text, want integer, from_start boolean, OUT jobid text, OUT share integer); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._shares(daemon text, environment text, want integer, from_start boolean, OUT jobid text, OUT share integer) FROM PUBLIC;


--
-- Name: FUNCTION _shifted(unit text, dataid text, units integer); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._shifted(unit text, dataid text, units integer) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow._shifted(unit text, dataid text, units integer) TO dataflow_reader;


--
-- Name: FUNCTION _take(daemon text, incarnation uuid, jobids text[], dataids text[], forced boolean); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._take(daemon text, incarnation uuid, jobids text[], dataids text[], forced boolean) FROM PUBLIC;


--
-- Name: FUNCTION _texts(value jsonb); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._texts(value jsonb) FROM PUBLIC;


--
-- Name: FUNCTION _track_open_runs(strict_jobs text[], jobids text[], dataids text[]); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._track_open_runs(strict_jobs text[], jobids text[], dataids text[]) FROM PUBLIC;


--
-- Name: FUNCTION _work_deleted(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._work_deleted() FROM PUBLIC;


--
-- Name: FUNCTION _work_inserted(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._work_inserted() FROM PUBLIC;


--
-- Name: FUNCTION _write_flow(declared jsonb, prune boolean); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._write_flow(declared jsonb, prune boolean) FROM PUBLIC;


--
-- Name: FUNCTION _written_to(d dataflow.dataset); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._written_to(d dataflow.dataset) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow._written_to(d dataflow.dataset) TO dataflow_reader;


--
-- Name: FUNCTION _written_until(outcome text, ended timestamp with time zone); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow._written_until(outcome text, ended timestamp with time zone) FROM PUBLIC;


--
-- Name: FUNCTION add_key(suite text, public_key bytea); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.add_key(suite text, public_key bytea) FROM PUBLIC;


--
-- Name: FUNCTION affected_runs(datasetid text, dataid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.affected_runs(datasetid text, dataid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.affected_runs(datasetid text, dataid text) TO dataflow_reader;


--
-- Name: FUNCTION apply_flow(declared jsonb, prune boolean, dry_run boolean); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.apply_flow(declared jsonb, prune boolean, dry_run boolean) FROM PUBLIC;


--
-- Name: FUNCTION attempts(jobid text, dataid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.attempts(jobid text, dataid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.attempts(jobid text, dataid text) TO dataflow_reader;


--
-- Name: FUNCTION blockers(jobid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.blockers(jobid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.blockers(jobid text) TO dataflow_reader;


--
-- Name: FUNCTION cancel(jobid text, dataid text, reason text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.cancel(jobid text, dataid text, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.cancel(jobid text, dataid text, reason text) TO dataflow_operator;


--
-- Name: FUNCTION cancel_runs(selector jsonb, reason text, dry_run boolean); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.cancel_runs(selector jsonb, reason text, dry_run boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.cancel_runs(selector jsonb, reason text, dry_run boolean) TO dataflow_operator;


--
-- Name: FUNCTION cancelled(daemon text, incarnation uuid, attempts bigint[]); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.cancelled(daemon text, incarnation uuid, attempts bigint[]) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.cancelled(daemon text, incarnation uuid, attempts bigint[]) TO dataflow_daemon;


--
-- Name: FUNCTION causes(jobid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.causes(jobid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.causes(jobid text) TO dataflow_reader;


--
-- Name: FUNCTION chunk_map(datasetid text, width integer, low text, high text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.chunk_map(datasetid text, width integer, low text, high text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.chunk_map(datasetid text, width integer, low text, high text) TO dataflow_reader;


--
-- Name: FUNCTION chunks(datasetid text, statuses text[], first text, last text, pattern text, only_stale boolean, sort text, descending boolean, at_most integer); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.chunks(datasetid text, statuses text[], first text, last text, pattern text, only_stale boolean, sort text, descending boolean, at_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.chunks(datasetid text, statuses text[], first text, last text, pattern text, only_stale boolean, sort text, descending boolean, at_most integer) TO dataflow_reader;


--
-- Name: FUNCTION claim(daemon text, incarnation uuid, want integer); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.claim(daemon text, incarnation uuid, want integer) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.claim(daemon text, incarnation uuid, want integer) TO dataflow_daemon;


--
-- Name: FUNCTION claim_run(daemon text, incarnation uuid, of_job text, of_dataid text, forced boolean); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.claim_run(daemon text, incarnation uuid, of_job text, of_dataid text, forced boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.claim_run(daemon text, incarnation uuid, of_job text, of_dataid text, forced boolean) TO dataflow_daemon;


--
-- Name: FUNCTION code_version(jobid text, code_hash text, config_hash text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.code_version(jobid text, code_hash text, config_hash text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.code_version(jobid text, code_hash text, config_hash text) TO dataflow_daemon;


--
-- Name: FUNCTION collect(datasets text[], dataids text[], attempts bigint[], grace interval, retention interval, dry_run boolean); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.collect(datasets text[], dataids text[], attempts bigint[], grace interval, retention interval, dry_run boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.collect(datasets text[], dataids text[], attempts bigint[], grace interval, retention interval, dry_run boolean) TO dataflow_operator;
GRANT ALL ON FUNCTION dataflow.collect(datasets text[], dataids text[], attempts bigint[], grace interval, retention interval, dry_run boolean) TO dataflow_daemon;


--
-- Name: FUNCTION create_partitioning(datasetid text, partitioning text, key_columns text[], kind text, size bigint, batches jsonb, held boolean); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.create_partitioning(datasetid text, partitioning text, key_columns text[], kind text, size bigint, batches jsonb, held boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.create_partitioning(datasetid text, partitioning text, key_columns text[], kind text, size bigint, batches jsonb, held boolean) TO dataflow_operator;


--
-- Name: FUNCTION data_location(datasetid text, dataid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.data_location(datasetid text, dataid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.data_location(datasetid text, dataid text) TO dataflow_reader;


--
-- Name: FUNCTION dataid_range(bounds text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.dataid_range(bounds text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.dataid_range(bounds text) TO dataflow_reader;


--
-- Name: FUNCTION delete_chunk(datasetid text, dataid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.delete_chunk(datasetid text, dataid text) FROM PUBLIC;


--
-- Name: FUNCTION delete_partitioning(datasetid text, partitioning text, dry_run boolean); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.delete_partitioning(datasetid text, partitioning text, dry_run boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.delete_partitioning(datasetid text, partitioning text, dry_run boolean) TO dataflow_operator;


--
-- Name: FUNCTION delete_runs(jobid text, patterns text[], dry_run boolean, at_most integer); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.delete_runs(jobid text, patterns text[], dry_run boolean, at_most integer) FROM PUBLIC;


--
-- Name: FUNCTION expire_daemon(daemon text, incarnation uuid); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.expire_daemon(daemon text, incarnation uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.expire_daemon(daemon text, incarnation uuid) TO dataflow_daemon;


--
-- Name: FUNCTION finish(results jsonb); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.finish(results jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.finish(results jsonb) TO dataflow_daemon;


--
-- Name: FUNCTION five_questions(jobid text, dataid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.five_questions(jobid text, dataid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.five_questions(jobid text, dataid text) TO dataflow_reader;


--
-- Name: FUNCTION fixed_paths(after_dataset text, after_dataid text, at_most integer); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.fixed_paths(after_dataset text, after_dataid text, at_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.fixed_paths(after_dataset text, after_dataid text, at_most integer) TO dataflow_reader;


--
-- Name: FUNCTION flow_conflicts(declared jsonb, prune boolean); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.flow_conflicts(declared jsonb, prune boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.flow_conflicts(declared jsonb, prune boolean) TO dataflow_reader;


--
-- Name: FUNCTION fold_counters(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.fold_counters() FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.fold_counters() TO dataflow_daemon;


--
-- Name: FUNCTION history(jobid text, dataid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.history(jobid text, dataid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.history(jobid text, dataid text) TO dataflow_reader;


--
-- Name: FUNCTION hold(datasetid text, dataid text, reason text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.hold(datasetid text, dataid text, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.hold(datasetid text, dataid text, reason text) TO dataflow_operator;


--
-- Name: FUNCTION hold_chunks(selector jsonb, reason text, dry_run boolean); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.hold_chunks(selector jsonb, reason text, dry_run boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.hold_chunks(selector jsonb, reason text, dry_run boolean) TO dataflow_operator;


--
-- Name: FUNCTION job_stats(jobid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.job_stats(jobid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.job_stats(jobid text) TO dataflow_reader;


--
-- Name: FUNCTION lineage(dataset text, chunk text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.lineage(dataset text, chunk text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.lineage(dataset text, chunk text) TO dataflow_reader;


--
-- Name: FUNCTION matches(dataid text, pattern text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.matches(dataid text, pattern text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.matches(dataid text, pattern text) TO dataflow_reader;


--
-- Name: FUNCTION next_inputs(jobid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.next_inputs(jobid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.next_inputs(jobid text) TO dataflow_reader;


--
-- Name: FUNCTION next_tick(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.next_tick() FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.next_tick() TO dataflow_reader;


--
-- Name: FUNCTION output_dataid(jobid text, datasetid text, dataid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.output_dataid(jobid text, datasetid text, dataid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.output_dataid(jobid text, datasetid text, dataid text) TO dataflow_reader;


--
-- Name: FUNCTION overview(jobid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.overview(jobid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.overview(jobid text) TO dataflow_reader;


--
-- Name: FUNCTION partitionings(dataset text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.partitionings(dataset text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.partitionings(dataset text) TO dataflow_reader;


--
-- Name: FUNCTION pause(scope text, paused boolean); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.pause(scope text, paused boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.pause(scope text, paused boolean) TO dataflow_operator;


--
-- Name: FUNCTION pause_scopes(jobs text[], dataset text, daemon text, paused boolean); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.pause_scopes(jobs text[], dataset text, daemon text, paused boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.pause_scopes(jobs text[], dataset text, daemon text, paused boolean) TO dataflow_operator;


--
-- Name: FUNCTION period_add(unit text, start timestamp with time zone, periods integer, zone text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.period_add(unit text, start timestamp with time zone, periods integer, zone text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.period_add(unit text, start timestamp with time zone, periods integer, zone text) TO dataflow_reader;


--
-- Name: FUNCTION period_id(unit text, moment timestamp with time zone, zone text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.period_id(unit text, moment timestamp with time zone, zone text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.period_id(unit text, moment timestamp with time zone, zone text) TO dataflow_reader;


--
-- Name: FUNCTION period_start(unit text, dataid text, zone text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.period_start(unit text, dataid text, zone text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.period_start(unit text, dataid text, zone text) TO dataflow_reader;


--
-- Name: FUNCTION plan_flow(declared jsonb, prune boolean); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.plan_flow(declared jsonb, prune boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.plan_flow(declared jsonb, prune boolean) TO dataflow_reader;


--
-- Name: FUNCTION preview_order(jobid text, dataid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.preview_order(jobid text, dataid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.preview_order(jobid text, dataid text) TO dataflow_reader;


--
-- Name: FUNCTION prunable(older_than interval); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.prunable(older_than interval) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.prunable(older_than interval) TO dataflow_reader;


--
-- Name: FUNCTION prune(older_than interval); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.prune(older_than interval) FROM PUBLIC;


--
-- Name: FUNCTION quarantine_export(job text, patterns text[], with_resolved boolean); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.quarantine_export(job text, patterns text[], with_resolved boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.quarantine_export(job text, patterns text[], with_resolved boolean) TO dataflow_reader;


--
-- Name: FUNCTION quarantine_groups(job text, pattern text, with_resolved boolean); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.quarantine_groups(job text, pattern text, with_resolved boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.quarantine_groups(job text, pattern text, with_resolved boolean) TO dataflow_reader;


--
-- Name: FUNCTION quarantine_record(jobid text, dataid text, itemid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.quarantine_record(jobid text, dataid text, itemid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.quarantine_record(jobid text, dataid text, itemid text) TO dataflow_reader;


--
-- Name: FUNCTION quarantined(job text, pattern text, with_resolved boolean, at_most integer); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.quarantined(job text, pattern text, with_resolved boolean, at_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.quarantined(job text, pattern text, with_resolved boolean, at_most integer) TO dataflow_reader;


--
-- Name: FUNCTION rates(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.rates() FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.rates() TO dataflow_reader;


--
-- Name: FUNCTION ready(datasetid text, dataids text[], validated boolean, reason text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.ready(datasetid text, dataids text[], validated boolean, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.ready(datasetid text, dataids text[], validated boolean, reason text) TO dataflow_operator;
GRANT ALL ON FUNCTION dataflow.ready(datasetid text, dataids text[], validated boolean, reason text) TO dataflow_daemon;


--
-- Name: FUNCTION ready(datasetid text, dataid text, validated boolean, reason text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.ready(datasetid text, dataid text, validated boolean, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.ready(datasetid text, dataid text, validated boolean, reason text) TO dataflow_operator;


--
-- Name: FUNCTION rebuild_work(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.rebuild_work() FROM PUBLIC;


--
-- Name: FUNCTION register_daemon(daemon text, hostname text, pid integer, lease interval, environment text, version text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.register_daemon(daemon text, hostname text, pid integer, lease interval, environment text, version text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.register_daemon(daemon text, hostname text, pid integer, lease interval, environment text, version text) TO dataflow_daemon;


--
-- Name: FUNCTION release(datasetid text, dataid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.release(datasetid text, dataid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.release(datasetid text, dataid text) TO dataflow_operator;


--
-- Name: FUNCTION release_chunks(selector jsonb, dry_run boolean); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.release_chunks(selector jsonb, dry_run boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.release_chunks(selector jsonb, dry_run boolean) TO dataflow_operator;


--
-- Name: FUNCTION renew_lease(daemon text, incarnation uuid); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.renew_lease(daemon text, incarnation uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.renew_lease(daemon text, incarnation uuid) TO dataflow_daemon;


--
-- Name: FUNCTION replay(job text, patterns text[], with_open boolean, dry_run boolean); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.replay(job text, patterns text[], with_open boolean, dry_run boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.replay(job text, patterns text[], with_open boolean, dry_run boolean) TO dataflow_operator;


--
-- Name: FUNCTION required_inputs(jobid text, dataid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.required_inputs(jobid text, dataid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.required_inputs(jobid text, dataid text) TO dataflow_reader;


--
-- Name: FUNCTION rescue(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.rescue() FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.rescue() TO dataflow_daemon;


--
-- Name: FUNCTION resolve(jobid text, dataid text, itemids text[], resolution jsonb); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.resolve(jobid text, dataid text, itemids text[], resolution jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.resolve(jobid text, dataid text, itemids text[], resolution jsonb) TO dataflow_operator;


--
-- Name: FUNCTION resolve_records(job text, records jsonb); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.resolve_records(job text, records jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.resolve_records(job text, records jsonb) TO dataflow_operator;


--
-- Name: FUNCTION resubmit(selector jsonb, downstream boolean, dry_run boolean); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.resubmit(selector jsonb, downstream boolean, dry_run boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.resubmit(selector jsonb, downstream boolean, dry_run boolean) TO dataflow_operator;


--
-- Name: FUNCTION retake(daemon text, incarnation uuid); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.retake(daemon text, incarnation uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.retake(daemon text, incarnation uuid) TO dataflow_daemon;


--
-- Name: FUNCTION retire_key(keyid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.retire_key(keyid text) FROM PUBLIC;


--
-- Name: FUNCTION root_causes(jobid text, dataid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.root_causes(jobid text, dataid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.root_causes(jobid text, dataid text) TO dataflow_reader;


--
-- Name: FUNCTION run_state(jobid text, dataid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.run_state(jobid text, dataid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.run_state(jobid text, dataid text) TO dataflow_reader;


--
-- Name: FUNCTION runs(job text, only_failed boolean, since timestamp with time zone, at_most integer); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.runs(job text, only_failed boolean, since timestamp with time zone, at_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.runs(job text, only_failed boolean, since timestamp with time zone, at_most integer) TO dataflow_reader;


--
-- Name: FUNCTION seal(datasetid text, sealed text, was text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.seal(datasetid text, sealed text, was text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.seal(datasetid text, sealed text, was text) TO dataflow_operator;


--
-- Name: FUNCTION sealing_key(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.sealing_key() FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.sealing_key() TO dataflow_reader;


--
-- Name: FUNCTION select_chunks(selector jsonb); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.select_chunks(selector jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.select_chunks(selector jsonb) TO dataflow_reader;


--
-- Name: FUNCTION select_runs(selector jsonb); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.select_runs(selector jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.select_runs(selector jsonb) TO dataflow_reader;


--
-- Name: FUNCTION serve_jobs(daemon text, incarnation uuid, jobs text[]); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.serve_jobs(daemon text, incarnation uuid, jobs text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.serve_jobs(daemon text, incarnation uuid, jobs text[]) TO dataflow_daemon;


--
-- Name: FUNCTION set_concurrency(scope text, concurrency integer); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.set_concurrency(scope text, concurrency integer) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.set_concurrency(scope text, concurrency integer) TO dataflow_operator;


--
-- Name: FUNCTION settle(at_most integer); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.settle(at_most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.settle(at_most integer) TO dataflow_daemon;


--
-- Name: FUNCTION shed(scope text, concurrency integer, dry_run boolean); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.shed(scope text, concurrency integer, dry_run boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.shed(scope text, concurrency integer, dry_run boolean) TO dataflow_operator;


--
-- Name: FUNCTION sortkey(dataid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.sortkey(dataid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.sortkey(dataid text) TO dataflow_reader;


--
-- Name: FUNCTION started(attempt bigint, token uuid); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.started(attempt bigint, token uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.started(attempt bigint, token uuid) TO dataflow_daemon;


--
-- Name: FUNCTION status(); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.status() FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.status() TO dataflow_reader;


--
-- Name: FUNCTION stop_daemon(daemon text, incarnation uuid); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.stop_daemon(daemon text, incarnation uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.stop_daemon(daemon text, incarnation uuid) TO dataflow_daemon;


--
-- Name: FUNCTION tick(until timestamp with time zone); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.tick(until timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.tick(until timestamp with time zone) TO dataflow_daemon;


--
-- Name: FUNCTION trial_order(jobid text, dataid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.trial_order(jobid text, dataid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.trial_order(jobid text, dataid text) TO dataflow_reader;


--
-- Name: FUNCTION validated(datasetid text, dataid text, is_valid boolean, reason text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.validated(datasetid text, dataid text, is_valid boolean, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.validated(datasetid text, dataid text, is_valid boolean, reason text) TO dataflow_operator;


--
-- Name: FUNCTION why(jobid text, dataid text); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.why(jobid text, dataid text) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.why(jobid text, dataid text) TO dataflow_reader;


--
-- Name: FUNCTION work_order(attempt bigint, token uuid); Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

REVOKE ALL ON FUNCTION dataflow.work_order(attempt bigint, token uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION dataflow.work_order(attempt bigint, token uuid) TO dataflow_daemon;


--
-- Name: COLUMN attempt.attempt; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(attempt) ON TABLE dataflow.attempt TO dataflow_reader;


--
-- Name: COLUMN attempt.jobid; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(jobid) ON TABLE dataflow.attempt TO dataflow_reader;


--
-- Name: COLUMN attempt.dataid; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(dataid) ON TABLE dataflow.attempt TO dataflow_reader;


--
-- Name: COLUMN attempt.number; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(number) ON TABLE dataflow.attempt TO dataflow_reader;


--
-- Name: COLUMN attempt.tries; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(tries) ON TABLE dataflow.attempt TO dataflow_reader;


--
-- Name: COLUMN attempt.lost; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(lost) ON TABLE dataflow.attempt TO dataflow_reader;


--
-- Name: COLUMN attempt.daemon; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(daemon) ON TABLE dataflow.attempt TO dataflow_reader;


--
-- Name: COLUMN attempt.tag; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(tag) ON TABLE dataflow.attempt TO dataflow_reader;


--
-- Name: COLUMN attempt.forced; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(forced) ON TABLE dataflow.attempt TO dataflow_reader;


--
-- Name: COLUMN attempt.inputs; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(inputs) ON TABLE dataflow.attempt TO dataflow_reader;


--
-- Name: COLUMN attempt.answers; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(answers) ON TABLE dataflow.attempt TO dataflow_reader;


--
-- Name: COLUMN attempt.claimed; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(claimed) ON TABLE dataflow.attempt TO dataflow_reader;


--
-- Name: COLUMN attempt.started; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(started) ON TABLE dataflow.attempt TO dataflow_reader;


--
-- Name: COLUMN attempt.ended; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(ended) ON TABLE dataflow.attempt TO dataflow_reader;


--
-- Name: COLUMN attempt.outcome; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(outcome) ON TABLE dataflow.attempt TO dataflow_reader;


--
-- Name: COLUMN attempt.code; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(code) ON TABLE dataflow.attempt TO dataflow_reader;


--
-- Name: COLUMN attempt.error; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(error) ON TABLE dataflow.attempt TO dataflow_reader;


--
-- Name: COLUMN attempt.retry_at; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(retry_at) ON TABLE dataflow.attempt TO dataflow_reader;


--
-- Name: COLUMN attempt.code_hash; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(code_hash) ON TABLE dataflow.attempt TO dataflow_reader;


--
-- Name: COLUMN attempt.config_hash; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(config_hash) ON TABLE dataflow.attempt TO dataflow_reader;


--
-- Name: COLUMN attempt.usage; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(usage) ON TABLE dataflow.attempt TO dataflow_reader;


--
-- Name: COLUMN attempt.let_go; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(let_go) ON TABLE dataflow.attempt TO dataflow_reader;


--
-- Name: TABLE batch; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.batch TO dataflow_reader;


--
-- Name: TABLE check_result; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.check_result TO dataflow_reader;


--
-- Name: TABLE counter; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.counter TO dataflow_reader;


--
-- Name: TABLE chunk_count; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.chunk_count TO dataflow_reader;


--
-- Name: TABLE control; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.control TO dataflow_reader;


--
-- Name: COLUMN control.scope; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT INSERT(scope) ON TABLE dataflow.control TO dataflow_operator;


--
-- Name: COLUMN control.concurrency; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT INSERT(concurrency),UPDATE(concurrency) ON TABLE dataflow.control TO dataflow_operator;


--
-- Name: COLUMN control.paused; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT INSERT(paused),UPDATE(paused) ON TABLE dataflow.control TO dataflow_operator;


--
-- Name: TABLE daemon; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.daemon TO dataflow_daemon;


--
-- Name: COLUMN daemon.daemon; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(daemon) ON TABLE dataflow.daemon TO dataflow_reader;


--
-- Name: COLUMN daemon.hostname; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(hostname) ON TABLE dataflow.daemon TO dataflow_reader;


--
-- Name: COLUMN daemon.pid; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(pid) ON TABLE dataflow.daemon TO dataflow_reader;


--
-- Name: COLUMN daemon.session_pid; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(session_pid) ON TABLE dataflow.daemon TO dataflow_reader;


--
-- Name: COLUMN daemon.environment; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(environment) ON TABLE dataflow.daemon TO dataflow_reader;


--
-- Name: COLUMN daemon.version; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(version) ON TABLE dataflow.daemon TO dataflow_reader;


--
-- Name: COLUMN daemon.jobs; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(jobs) ON TABLE dataflow.daemon TO dataflow_reader;


--
-- Name: COLUMN daemon.started; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(started) ON TABLE dataflow.daemon TO dataflow_reader;


--
-- Name: COLUMN daemon.lease; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(lease) ON TABLE dataflow.daemon TO dataflow_reader;


--
-- Name: COLUMN daemon.lease_until; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(lease_until) ON TABLE dataflow.daemon TO dataflow_reader;


--
-- Name: COLUMN daemon.stopped; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT(stopped) ON TABLE dataflow.daemon TO dataflow_reader;


--
-- Name: TABLE daemons; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.daemons TO dataflow_reader;


--
-- Name: TABLE job_input; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.job_input TO dataflow_reader;


--
-- Name: TABLE job_output; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.job_output TO dataflow_reader;


--
-- Name: TABLE datasets; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.datasets TO dataflow_reader;


--
-- Name: TABLE datastatus; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.datastatus TO dataflow_reader;


--
-- Name: COLUMN datastatus.status; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT UPDATE(status) ON TABLE dataflow.datastatus TO dataflow_operator;


--
-- Name: COLUMN datastatus.reason; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT UPDATE(reason) ON TABLE dataflow.datastatus TO dataflow_operator;


--
-- Name: TABLE event; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.event TO dataflow_reader;


--
-- Name: TABLE forgotten; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.forgotten TO dataflow_reader;


--
-- Name: TABLE job; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.job TO dataflow_reader;


--
-- Name: TABLE jobs; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.jobs TO dataflow_reader;


--
-- Name: TABLE key; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.key TO dataflow_reader;


--
-- Name: TABLE keys; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.keys TO dataflow_reader;


--
-- Name: TABLE limits; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.limits TO dataflow_reader;


--
-- Name: TABLE manifest; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.manifest TO dataflow_reader;


--
-- Name: TABLE migration; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.migration TO dataflow_reader;


--
-- Name: TABLE node_stat; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.node_stat TO dataflow_reader;


--
-- Name: TABLE open_run; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.open_run TO dataflow_reader;


--
-- Name: TABLE partitioning; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.partitioning TO dataflow_reader;


--
-- Name: TABLE quarantine; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.quarantine TO dataflow_reader;


--
-- Name: TABLE recheck; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.recheck TO dataflow_reader;


--
-- Name: TABLE stale; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.stale TO dataflow_reader;


--
-- Name: TABLE work; Type: ACL; Schema: dataflow; Owner: dataflow_admin
--

GRANT SELECT ON TABLE dataflow.work TO dataflow_reader;


--
-- PostgreSQL database dump complete
--


