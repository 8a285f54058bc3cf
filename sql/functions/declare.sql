-- Declares datasets and jobs by SQL, for programs that write no flow file. This is metadata alone: only a flow file on a host names the
-- code of a job. Everything goes through apply_flow(), under a flow name that no file can have. A flow file that declares the same name
-- takes the dataset or job over; from then on the file decides.
--
-- The rules are those of flow files (dataflowd/flow), as far as the database can check them. Each host checks what only a host knows (its
-- roots and allowed hosts, the options that Spark takes) before use. Nobody checks what only a whole file shows (two datasets at one
-- place). tests/sql/test_declare.py compares the normal forms of checks and mappings with those of flow files.

CREATE OR REPLACE FUNCTION dataflow._wrong(what text, remedy text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION '%', what USING ERRCODE = 'DF400', HINT = remedy;
END $$;

CREATE OR REPLACE FUNCTION dataflow._require_name(kind text, name text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT dataflow._is_name(name) THEN
        PERFORM dataflow._wrong(format('%s cannot name a %s', coalesce(quote_literal(left(name, 80)), 'NULL'), kind), 'write a letter, then up to 62 letters, digits and _ . -');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION dataflow._require_word(thing text, word text, allowed text[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF word IS NULL OR word <> ALL (allowed) THEN
        PERFORM dataflow._wrong(format('%s is %s', thing, coalesce(quote_literal(left(word, 80)), 'NULL')), 'write one of ' || array_to_string(allowed, ', '));
    END IF;
END $$;

CREATE OR REPLACE FUNCTION dataflow._is_whole(value jsonb, lowest bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT coalesce(CASE WHEN jsonb_typeof(value) = 'number' THEN value::numeric = trunc(value::numeric) AND value::numeric BETWEEN lowest AND 2147483647 END, false) $$;

CREATE OR REPLACE FUNCTION dataflow._require_location(location text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schemes constant text[] := '{file,s3a,hdfs,abfs,abfss,gs}';
    bare text := replace(location, '{dataid}', '');
    scheme text := substring(location FROM '^([A-Za-z][A-Za-z0-9+.-]*):');
BEGIN
    IF bare ~ '[{}]' THEN
        PERFORM dataflow._wrong('location has an unknown placeholder', 'use {dataid}; {root} is a setting of hosts, write the path that it stands for');
    ELSIF bare ~ '[^ -~]' OR bare ~ '[]*?[]' OR strpos(bare, chr(92)) > 0 OR bare ~* '%(00|25|2e|2f|5c)' THEN
        PERFORM dataflow._wrong('location has a character that not everybody reads as the same place', 'write it in plain ASCII, without * ? [ ], backslashes and encoded dots and slashes');
    ELSIF '..' = ANY (string_to_array(location, '/')) THEN
        PERFORM dataflow._wrong('location has ''..'' in it', 'write the path without it');
    ELSIF scheme IS NOT NULL AND scheme <> ALL (schemes) THEN
        PERFORM dataflow._wrong(format('location has the scheme %s', quote_literal(scheme)), 'use a path or one of ' || array_to_string(schemes, ', '));
    ELSIF scheme IS NULL AND location !~ '^/' OR scheme = 'file' AND location !~ '^file:(//)?/' THEN
        PERFORM dataflow._wrong('location is a relative path', 'start it with a slash');
    ELSIF location ~ '^//|^file:////' OR scheme = 'file' AND location ~ '^file://[^/]' THEN
        PERFORM dataflow._wrong('location names a host', 'write a plain path, or file:///path with three slashes');
    ELSIF scheme <> ALL ('{file,hdfs}') AND location !~ '^[a-z0-9]+://[^/]+' THEN
        PERFORM dataflow._wrong('location names no bucket or container', format('write %s://name/path', scheme));
    END IF;
END $$;

-- Checks in the form that the table keeps: each an object with its limit and its severity. min_rows => 1 is {"value": 1}.
CREATE OR REPLACE FUNCTION dataflow._normal_checks(checks jsonb) RETURNS jsonb
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    -- The key that the short form of a check sets; for checks by column, the key of one column.
    short constant jsonb := '{"min_rows": "value", "max_rows": "value", "not_null": "columns", "unique": "columns", "schema": "columns", "row_count": "input",
        "accepted_values": "values", "range": "", "regex": "pattern"}';
    by_column constant text[] := '{accepted_values,range,regex}';
    found jsonb := '{}';
    named record;
    part record;
    made jsonb;
BEGIN
    IF jsonb_typeof(checks) IS DISTINCT FROM 'object' THEN
        PERFORM dataflow._wrong('checks are no object', 'write {"min_rows": 1}');
    END IF;
    FOR named IN SELECT key, value FROM jsonb_each(checks) LOOP
        PERFORM dataflow._require_word('a check', named.key, ARRAY(SELECT k FROM jsonb_object_keys(short) AS k ORDER BY k));
        IF named.key = ANY (by_column) THEN
            IF jsonb_typeof(named.value) <> 'object' OR named.value = '{}' THEN
                PERFORM dataflow._wrong(format('the check %s names no columns', named.key), format('write {"%s": {"amount": ...}}', named.key));
            END IF;
            made := '{}';
            FOR part IN SELECT key, value FROM jsonb_each(named.value) LOOP
                made := made || jsonb_build_object(part.key, dataflow._normal_check(named.key, short ->> named.key, part.value));
            END LOOP;
        ELSE
            made := dataflow._normal_check(named.key, short ->> named.key, named.value);
        END IF;
        found := found || jsonb_build_object(named.key, made);
    END LOOP;
    RETURN found;
END $$;

CREATE OR REPLACE FUNCTION dataflow._normal_check(name text, short text, given jsonb) RETURNS jsonb
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    made jsonb := '{"severity": "error"}'::jsonb || CASE name WHEN 'row_count' THEN '{"tolerance": 0}'::jsonb ELSE '{}' END
        || CASE WHEN jsonb_typeof(given) = 'object' THEN given ELSE jsonb_build_object(short, given) END;
    known text[] := ARRAY['severity'] || CASE name WHEN 'range' THEN ARRAY['min', 'max'] WHEN 'row_count' THEN ARRAY['input', 'tolerance'] ELSE ARRAY[short] END;
    main jsonb := made -> short;
    is_right boolean;
BEGIN
    is_right := NOT EXISTS (SELECT FROM jsonb_object_keys(made) AS k WHERE k <> ALL (known))
        AND made ->> 'severity' IN ('error', 'warn')
        AND CASE
            WHEN name IN ('min_rows', 'max_rows') THEN dataflow._is_whole(main, 0)
            WHEN name IN ('not_null', 'unique') THEN jsonb_typeof(main) = 'array' AND main <> '[]'
                AND NOT EXISTS (SELECT FROM jsonb_array_elements(CASE WHEN jsonb_typeof(main) = 'array' THEN main ELSE '[]' END) AS c WHERE jsonb_typeof(c) <> 'string' OR c = '""')
            WHEN name = 'accepted_values' THEN jsonb_typeof(main) = 'array' AND main <> '[]'
                AND NOT EXISTS (SELECT FROM jsonb_array_elements(CASE WHEN jsonb_typeof(main) = 'array' THEN main ELSE '[]' END) AS v WHERE jsonb_typeof(v) NOT IN ('string', 'number', 'boolean'))
            WHEN name IN ('schema', 'regex') THEN jsonb_typeof(main) = 'string' AND main <> '""'
            WHEN name = 'row_count' THEN jsonb_typeof(main) = 'string'
                AND coalesce(CASE WHEN jsonb_typeof(made -> 'tolerance') = 'number' THEN (made ->> 'tolerance')::numeric BETWEEN 0 AND 1 END, false)
            ELSE (made ? 'min' OR made ? 'max') AND coalesce(jsonb_typeof(made -> 'min') IN ('string', 'number'), true) AND coalesce(jsonb_typeof(made -> 'max') IN ('string', 'number'), true)
                AND coalesce(CASE WHEN jsonb_typeof(made -> 'min') = 'number' AND jsonb_typeof(made -> 'max') = 'number' THEN (made ->> 'min')::numeric <= (made ->> 'max')::numeric END, true)
        END;
    IF NOT coalesce(is_right, false) THEN
        PERFORM dataflow._wrong(format('the check %s is not of its form: %s', name, left(given::text, 200)), 'docs/checks.md lists the forms; severity is error or warn');
    END IF;
    RETURN made;
END $$;

-- A mapping in the form that the table keeps: an object with a kind and all that belongs to it.
CREATE OR REPLACE FUNCTION dataflow._normal_mapping(datasetid text, given jsonb) RETURNS jsonb
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    units constant text[] := '{hour,day,week,month,year,number}';
    nests constant jsonb := '{"hour": ["day", "week", "month", "year"], "day": ["week", "month", "year"], "week": [], "month": ["year"]}';
    made jsonb := CASE jsonb_typeof(given) WHEN 'string' THEN jsonb_build_object('kind', given) ELSE given END;
    kind text := made ->> 'kind';
    known text[];
    is_right boolean;
BEGIN
    IF jsonb_typeof(made) IS DISTINCT FROM 'object' THEN
        PERFORM dataflow._wrong(format('the mapping of %s is no mapping', datasetid), 'write "identity" or {"kind": "offset", "by": -1, "unit": "day"}');
    END IF;
    PERFORM dataflow._require_word(format('the kind of the mapping of %s', datasetid), kind, '{identity,offset,window,all,fixed}');
    IF kind = 'window' AND made ? 'from' THEN
        made := '{"zone": "UTC"}'::jsonb || made;
    ELSIF kind = 'all' THEN
        made := '{"dataid": "all"}'::jsonb || made;
    END IF;
    known := CASE kind WHEN 'identity' THEN '{kind}' WHEN 'offset' THEN '{kind,by,unit}' WHEN 'fixed' THEN '{kind,dataid}' WHEN 'all' THEN '{kind,dataid,dataids,partitioning}'
        ELSE CASE WHEN made ? 'from' THEN '{kind,from,to,zone}' WHEN made ? 'size' THEN '{kind,size}' ELSE '{kind,last,unit}' END END;
    is_right := NOT EXISTS (SELECT FROM jsonb_object_keys(made) AS k WHERE k <> ALL (known)) AND CASE
        WHEN kind = 'identity' THEN true
        WHEN kind = 'offset' THEN dataflow._is_whole(made -> 'by', -2147483647) AND made -> 'by' <> '0' AND made ->> 'unit' = ANY (units)
        WHEN kind = 'fixed' THEN dataflow._is_dataid(made -> 'dataid')
        WHEN kind = 'all' THEN dataflow._is_dataid(made -> 'dataid') AND (made ? 'dataids') <> (made ? 'partitioning')
            AND CASE WHEN made ? 'dataids' THEN jsonb_typeof(made -> 'dataids') = 'array' AND made -> 'dataids' <> '[]' AND NOT EXISTS (
                    SELECT FROM jsonb_array_elements(CASE WHEN jsonb_typeof(made -> 'dataids') = 'array' THEN made -> 'dataids' ELSE '[]' END) AS d WHERE NOT dataflow._is_dataid(d))
                ELSE jsonb_typeof(made -> 'partitioning') = 'string' AND dataflow._is_name(made ->> 'partitioning') END
        WHEN made ? 'from' THEN coalesce(nests -> (made ->> 'from') ? (made ->> 'to'), false) AND EXISTS (SELECT FROM pg_timezone_names AS z WHERE z.name = made ->> 'zone')
        WHEN made ? 'size' THEN dataflow._is_whole(made -> 'size', 1)
        ELSE dataflow._is_whole(made -> 'last', 1) AND made ->> 'unit' = ANY (units)
    END;
    IF NOT coalesce(is_right, false) THEN
        PERFORM dataflow._wrong(format('the mapping of %s is not of its form: %s', datasetid, left(given::text, 200)), 'docs/flow.md lists the mappings');
    END IF;
    RETURN made;
END $$;

CREATE OR REPLACE FUNCTION dataflow._is_dataid(value jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT coalesce(jsonb_typeof(value) = 'string' AND dataflow._is_chunkid(value #>> '{}'), false) $$;

-- Whether a mapping reads only chunks of earlier dataids. A job may read its own output through such a mapping.
CREATE OR REPLACE FUNCTION dataflow._looks_back(mapping jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT coalesce(mapping ->> 'kind' = 'offset' AND (mapping ->> 'by')::numeric < 0, false) $$;

CREATE OR REPLACE FUNCTION dataflow._declare(document jsonb) RETURNS text
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    owner record;
BEGIN
    SELECT x.* INTO owner FROM (
        SELECT 'dataset' AS kind, d.datasetid::text AS name, d.flow FROM dataflow.dataset d
            WHERE d.retired IS NULL AND d.datasetid IN (SELECT t ->> 'datasetid' FROM jsonb_array_elements(document -> 'datasets') AS t)
        UNION ALL
        SELECT 'job', j.jobid, j.flow FROM dataflow.job j WHERE j.retired IS NULL AND j.jobid IN (SELECT t ->> 'jobid' FROM jsonb_array_elements(document -> 'jobs') AS t)
    ) AS x WHERE x.flow NOT IN ('', document ->> 'name') OR (x.kind = 'dataset' AND x.name = 'today');
    IF owner.flow = '' THEN
        RAISE EXCEPTION '% % is built in', owner.kind, owner.name USING ERRCODE = 'DF409', HINT = 'give this one another name';
    ELSIF FOUND THEN
        RAISE EXCEPTION '% % belongs to flow %', owner.kind, owner.name, owner.flow USING ERRCODE = 'DF409', HINT = 'change the flow file, and dataflowctl apply it';
    END IF;
    RETURN (SELECT p.action FROM dataflow.apply_flow(document) AS p LIMIT 1);
END $$;

CREATE OR REPLACE FUNCTION dataflow.declare_dataset(
    datasetid text, format text DEFAULT NULL, location text DEFAULT NULL, description text DEFAULT '', hostname text DEFAULT NULL, port integer DEFAULT NULL,
    database text DEFAULT NULL, schemaname text DEFAULT NULL, tablename text DEFAULT NULL, username text DEFAULT NULL, columns text DEFAULT NULL,
    options jsonb DEFAULT '{}', checks jsonb DEFAULT '{}', ordering text DEFAULT 'natural', publish text DEFAULT 'pointer', environment text DEFAULT NULL,
    calendar text DEFAULT NULL, zone text DEFAULT 'UTC', start timestamp DEFAULT NULL, ready text DEFAULT 'end'
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    files constant text[] := '{csv,json,parquet,orc,text,delta,iceberg}';
    stored_as constant text := coalesce(format, CASE WHEN calendar IS NULL THEN 'parquet' ELSE 'none' END);
BEGIN
    PERFORM dataflow._require_name('dataset', datasetid);
    PERFORM dataflow._require_word('format', stored_as, files || '{postgres,jdbc,none}');
    PERFORM dataflow._require_word('ordering', ordering, '{natural,date,number,text}');
    PERFORM dataflow._require_word('publish', publish, '{pointer,rename}');
    PERFORM dataflow._require_word('ready', ready, '{start,end}');
    IF location IS NOT NULL THEN
        PERFORM dataflow._require_location(location);
    ELSIF stored_as = ANY (files) AND calendar IS NULL THEN
        PERFORM dataflow._wrong(format('location is missing for format %s', stored_as), 'write the path or URL of its directory');
    END IF;
    IF stored_as IN ('postgres', 'jdbc') AND coalesce(tablename, '') = '' THEN
        PERFORM dataflow._wrong(format('tablename is missing for format %s', stored_as), 'name the table');
    END IF;
    IF port NOT BETWEEN 1 AND 65535 THEN
        PERFORM dataflow._wrong(format('port is %s', port), 'write a whole number from 1 to 65535');
    END IF;
    IF environment IS NOT NULL THEN
        PERFORM dataflow._require_name('environment', environment);
    END IF;
    IF publish = 'rename' AND (NOT dataflow._is_files(stored_as) OR strpos(location, '{dataid}') > 0 OR location !~ '^(/|file:)') THEN
        PERFORM dataflow._wrong('publish is rename, which needs files on a disk of the host and a location without {dataid}', 'write pointer');
    END IF;
    IF jsonb_typeof(options) IS DISTINCT FROM 'object' OR EXISTS (SELECT FROM jsonb_each(options) AS o WHERE jsonb_typeof(o.value) NOT IN ('string', 'number', 'boolean')) THEN
        PERFORM dataflow._wrong('options are no object of texts, numbers and booleans', 'write {"header": true}');
    END IF;
    IF calendar IS NOT NULL THEN
        PERFORM dataflow._require_word('calendar', calendar, '{hourly,daily,weekly,monthly}');
        IF EXISTS (SELECT FROM dataflow.job_output AS o WHERE o.datasetid = declare_dataset.datasetid) THEN
            PERFORM dataflow._wrong(format('dataset %s is made by a job, and the chunks of a calendar become READY by themselves', datasetid), 'give the calendar another name');
        END IF;
    ELSIF start IS NOT NULL THEN
        PERFORM dataflow._wrong('start is given without a calendar', 'write calendar as hourly, daily, weekly or monthly');
    END IF;
    IF NOT EXISTS (SELECT FROM pg_timezone_names AS z WHERE z.name = zone) THEN
        PERFORM dataflow._wrong(format('zone is %s, which is no time zone', coalesce(quote_literal(left(zone, 80)), 'NULL')), 'write a name such as Europe/Berlin');
    END IF;
    IF calendar IS NOT NULL AND start IS DISTINCT FROM date_trunc(CASE calendar WHEN 'hourly' THEN 'hour' WHEN 'daily' THEN 'day' WHEN 'weekly' THEN 'week' ELSE 'month' END, start)
        OR calendar IS NOT NULL AND (start IS NULL OR start NOT BETWEEN '1900-01-01' AND '9999-01-01') THEN
        PERFORM dataflow._wrong(format('start of a calendar is %s', coalesce(start::text, 'missing')), 'write the start of its first period, in its zone');
    END IF;
    RETURN dataflow._declare(jsonb_build_object('name', '(sql)', 'jobs', '[]'::jsonb, 'datasets', jsonb_build_array(jsonb_build_object(
        'datasetid', datasetid, 'description', coalesce(description, ''), 'format', stored_as, 'location', location, 'hostname', hostname, 'port', port, 'database', database,
        'schemaname', schemaname, 'tablename', tablename, 'username', username, 'columns', columns, 'options', options, 'checks', dataflow._normal_checks(checks),
        'ordering', ordering, 'publish', publish, 'environment', environment, 'calendar', calendar, 'calendar_zone', zone,
        'calendar_start', start AT TIME ZONE zone, 'calendar_ready', ready))));
END $$;
COMMENT ON FUNCTION dataflow.declare_dataset(text, text, text, text, text, integer, text, text, text, text, text, jsonb, jsonb, text, text, text, text, text, timestamp, text) IS
    'Declares a dataset, or declares it anew: what is left out has its default again. Returns created, changed or unchanged. A dataset of a flow file is refused; a flow file that declares this name later takes it over. declare_dataset(''raw'', ''csv'', ''/srv/data/raw/{dataid}.csv'')';

CREATE OR REPLACE FUNCTION dataflow.declare_job(
    jobid text, inputs jsonb, outputs text[], kind text DEFAULT 'outside', description text DEFAULT '', params jsonb DEFAULT '{}', max_running integer DEFAULT NULL,
    max_attempts integer DEFAULT 1, max_lost integer DEFAULT 5, retry_delay interval DEFAULT '30 seconds', timeout interval DEFAULT NULL, priority integer DEFAULT 0,
    strict_order boolean DEFAULT false
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    mapped jsonb := '{}';
    named record;
    wrong record;
    ring text;
BEGIN
    PERFORM dataflow._require_name('job', jobid);
    PERFORM dataflow._require_word('kind', kind, '{python,sql,command,spark_submit,outside}');
    IF outputs IS NULL OR cardinality(outputs) = 0 OR EXISTS (SELECT FROM unnest(outputs) AS o WHERE o IS NULL) THEN
        PERFORM dataflow._wrong('outputs are missing', 'name at least one dataset: the status of a run is kept there');
    END IF;
    IF jsonb_typeof(inputs) IS DISTINCT FROM 'object' AND jsonb_typeof(inputs) IS DISTINCT FROM 'array' THEN
        PERFORM dataflow._wrong('inputs are neither a list of datasets nor an object of mappings', 'write ["raw"], {"raw": {"kind": "offset", "by": -1, "unit": "day"}} or []');
    END IF;
    FOR named IN SELECT i #>> '{}' AS name, '"identity"'::jsonb AS given, jsonb_typeof(i) AS of_type FROM jsonb_array_elements(CASE jsonb_typeof(inputs) WHEN 'array' THEN inputs ELSE '[]' END) AS i
        UNION ALL SELECT i.key, i.value, 'string' FROM jsonb_each(CASE jsonb_typeof(inputs) WHEN 'object' THEN inputs ELSE '{}' END) AS i LOOP
        PERFORM dataflow._require_name('dataset', CASE named.of_type WHEN 'string' THEN named.name END);
        mapped := mapped || jsonb_build_object(named.name, dataflow._normal_mapping(named.name, named.given));
    END LOOP;
    IF mapped <> '{}' AND NOT EXISTS (SELECT FROM jsonb_each(mapped) AS m WHERE m.value ->> 'kind' <> 'fixed') THEN
        PERFORM dataflow._wrong(format('job %s has only fixed inputs: nothing says which dataids it runs for', jobid), 'add an input that is not fixed, such as the calendar "today"');
    END IF;
    IF jsonb_typeof(params) IS DISTINCT FROM 'object' THEN
        PERFORM dataflow._wrong('params are no object', 'write {"least": 0}');
    END IF;
    IF max_running < 0 OR coalesce(max_attempts, 0) < 1 OR coalesce(max_lost, 0) < 1 OR coalesce(retry_delay, '-1 second') < interval '0' OR timeout < interval '1 second'
        OR priority IS NULL OR strict_order IS NULL THEN
        PERFORM dataflow._wrong('a number or a time of the job is out of its bounds', 'max_running is 0 or more, max_attempts and max_lost 1 or more, retry_delay 0 or more, timeout a second or more');
    END IF;
    -- Rules about several inputs or outputs. apply_flow() checks that each dataset exists and has one producer.
    SELECT o.name AS dataset INTO wrong FROM unnest(outputs) AS o (name) JOIN dataflow.dataset AS d ON d.datasetid = o.name AND d.calendar IS NOT NULL;
    IF FOUND THEN
        PERFORM dataflow._wrong(format('job %s writes %s, which is a calendar', jobid, wrong.dataset), 'the chunks of a calendar become READY by themselves; name another output');
    END IF;
    SELECT o.name AS dataset INTO wrong FROM unnest(outputs) AS o (name) WHERE mapped ? o.name AND NOT dataflow._looks_back(mapped -> o.name);
    IF FOUND THEN
        PERFORM dataflow._wrong(format('job %s reads its own output %s of the same dataid', jobid, wrong.dataset), 'read an earlier one: {"kind": "offset", "by": -1, "unit": "day"}');
    END IF;
    SELECT string_agg(DISTINCT d.environment, ', ') AS names, count(DISTINCT d.environment) AS environments INTO wrong
        FROM dataflow.dataset AS d WHERE d.datasetid = ANY (outputs) OR mapped ? d.datasetid;
    IF wrong.environments > 1 THEN
        PERFORM dataflow._wrong(format('job %s mixes environments: %s', jobid, wrong.names), 'use datasets of one environment in a job');
    END IF;
    SELECT d.datasetid AS dataset, c AS name INTO wrong FROM dataflow.dataset AS d, jsonb_object_keys(d.checks) AS c
        WHERE d.datasetid = ANY (outputs) AND kind IN ('command', 'spark_submit', 'outside') AND c NOT IN ('min_rows', 'max_rows', 'row_count') LIMIT 1;
    IF FOUND THEN
        PERFORM dataflow._wrong(format('the check %s of dataset %s cannot be made of what a job of kind %s writes', wrong.name, wrong.dataset, kind),
            'leave the check out, or let a job with dataflowd.jobs:validate follow it');
    END IF;
    SELECT d.datasetid AS dataset, d.checks -> 'row_count' ->> 'input' AS source INTO wrong FROM dataflow.dataset AS d
        WHERE d.datasetid = ANY (outputs) AND d.checks ? 'row_count' AND NOT mapped ? (d.checks -> 'row_count' ->> 'input') LIMIT 1;
    IF FOUND THEN
        PERFORM dataflow._wrong(format('row_count of %s compares with %s, which job %s does not read', wrong.dataset, wrong.source, jobid), 'name one of its inputs');
    END IF;
    WITH RECURSIVE upstream AS (
        SELECT o.jobid::text AS job, ARRAY[o.jobid::text] AS path FROM dataflow.job_output AS o WHERE mapped ? o.datasetid AND NOT dataflow._looks_back(mapped -> o.datasetid)
        UNION ALL
        SELECT o.jobid, u.path || o.jobid::text FROM upstream AS u
        JOIN dataflow.job_input AS i ON i.jobid = u.job AND NOT dataflow._looks_back(i.mapping)
        JOIN dataflow.job_output AS o ON o.datasetid = i.datasetid
        WHERE u.job <> declare_job.jobid AND o.jobid <> ALL (u.path)
    )
    SELECT array_to_string(declare_job.jobid || u.path, ' <- ') INTO ring FROM upstream AS u
        WHERE u.job = declare_job.jobid OR EXISTS (SELECT FROM dataflow.job_input AS i WHERE i.jobid = u.job AND i.datasetid = ANY (outputs) AND NOT dataflow._looks_back(i.mapping)) LIMIT 1;
    IF ring IS NOT NULL THEN
        PERFORM dataflow._wrong(format('jobs wait for each other in a cycle: %s', ring), 'remove one of the inputs, or read an earlier dataid with an offset');
    END IF;
    RETURN dataflow._declare(jsonb_build_object('name', '(sql)', 'datasets', '[]'::jsonb, 'jobs', jsonb_build_array(jsonb_build_object(
        'jobid', jobid, 'description', coalesce(description, ''), 'kind', kind, 'params', params, 'max_running', max_running, 'max_attempts', max_attempts, 'max_lost', max_lost,
        'retry_delay', retry_delay, 'timeout', timeout, 'priority', priority, 'strict_order', strict_order, 'inputs', mapped,
        'outputs', (SELECT jsonb_agg(DISTINCT o ORDER BY o) FROM unnest(outputs) AS o)))));
END $$;
COMMENT ON FUNCTION dataflow.declare_job(text, jsonb, text[], text, text, jsonb, integer, integer, integer, interval, interval, integer, boolean) IS
    'Declares a job, or declares it anew: what is left out has its default again. Which code it runs is named by a flow file alone; kind outside, the default, needs none. Returns created, changed or unchanged. declare_job(''train'', ''["orders"]'', ''{model}'')';

-- Retires what declare_dataset() or declare_job() made, as a flow file does that no longer declares it.
CREATE OR REPLACE FUNCTION dataflow._retire_declared(kind text, name text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    owner text;
BEGIN
    SELECT x.flow INTO owner FROM (
        SELECT d.flow FROM dataflow.dataset AS d WHERE kind = 'dataset' AND d.datasetid = name AND d.retired IS NULL
        UNION ALL
        SELECT j.flow FROM dataflow.job AS j WHERE kind = 'job' AND j.jobid = name AND j.retired IS NULL
    ) AS x;
    IF owner IS NULL THEN
        RAISE EXCEPTION 'there is no % %', kind, coalesce(left(name, 80), 'NULL') USING ERRCODE = 'DF404', HINT = format('see `dataflowctl %ss`', kind);
    END IF;
    IF owner <> '(sql)' THEN
        RAISE EXCEPTION '% % was not declared by SQL, but by flow %', kind, name, owner USING ERRCODE = 'DF409', HINT = 'remove it from the flow file, and dataflowctl apply --prune';
    END IF;
    SELECT j.jobid INTO owner FROM dataflow.job AS j WHERE kind = 'dataset' AND j.retired IS NULL AND (
        EXISTS (SELECT FROM dataflow.job_input AS i WHERE i.jobid = j.jobid AND i.datasetid = name)
        OR EXISTS (SELECT FROM dataflow.job_output AS o WHERE o.jobid = j.jobid AND o.datasetid = name)) ORDER BY j.jobid LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'dataset % is used by job %', name, owner USING ERRCODE = 'DF409', HINT = 'retire or change that job first';
    END IF;
    PERFORM dataflow.apply_flow(jsonb_build_object('name', '(sql)',
        'datasets', (SELECT coalesce(jsonb_agg(to_jsonb(d)), '[]') FROM dataflow.dataset AS d WHERE d.flow = '(sql)' AND d.retired IS NULL AND NOT (kind = 'dataset' AND d.datasetid = name)),
        'jobs', (SELECT coalesce(jsonb_agg(dataflow._job_document(j.jobid)), '[]') FROM dataflow.job AS j WHERE j.flow = '(sql)' AND j.retired IS NULL AND NOT (kind = 'job' AND j.jobid = name))), true);
END $$;

CREATE OR REPLACE FUNCTION dataflow.retire_dataset(datasetid text) RETURNS void
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT dataflow._retire_declared('dataset', datasetid) $$;
COMMENT ON FUNCTION dataflow.retire_dataset(text) IS 'Retires a dataset that declare_dataset() made and no job uses; its history stays';

CREATE OR REPLACE FUNCTION dataflow.retire_job(jobid text) RETURNS void
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT dataflow._retire_declared('job', jobid) $$;
COMMENT ON FUNCTION dataflow.retire_job(text) IS 'Retires a job that declare_job() made; its history stays';
