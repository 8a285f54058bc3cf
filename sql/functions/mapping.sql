-- Which input chunks make an output chunk. Only required_inputs() and its inverse affected_runs() know; all other functions here
-- serve these two.
--
-- Periods have one spelling each: hour 2026-01-31T05 (UTC), day 2026-01-31, week 2026-W05 (ISO), month 2026-01,
-- year 2026. Numbers are written without leading zeros. Any other spelling maps to nothing.

-- The first moment at which the clocks of a zone show this time. Where clocks are put back over midnight, the day begins at the first midnight.
CREATE OR REPLACE FUNCTION dataflow._first_moment(local timestamp, zone text) RETURNS timestamptz
LANGUAGE sql STABLE STRICT PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN (last - interval '1 hour') AT TIME ZONE zone = local THEN last - interval '1 hour'
        WHEN (last - interval '30 minutes') AT TIME ZONE zone = local THEN last - interval '30 minutes'
        ELSE last
    END
    FROM (SELECT local AT TIME ZONE zone AS last) AS found
$$;

CREATE OR REPLACE FUNCTION dataflow.period_start(unit text, dataid text, zone text) RETURNS timestamptz
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    part text[];
    first_of_month date;
    day date;
BEGIN
    part := regexp_match(dataid, CASE unit
        WHEN 'hour' THEN '^([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2})$'
        WHEN 'day' THEN '^([0-9]{4})-([0-9]{2})-([0-9]{2})$'
        WHEN 'week' THEN '^([0-9]{4})-W([0-9]{2})$'
        WHEN 'month' THEN '^([0-9]{4})-([0-9]{2})$'
        WHEN 'year' THEN '^([0-9]{4})$'
    END);
    IF part IS NULL OR part[1] = '0000' THEN
        RETURN NULL;
    END IF;
    IF unit = 'week' THEN
        day := make_date(part[1]::int, 1, 4);
        day := day - (extract(isodow FROM day)::int - 1) + (part[2]::int - 1) * 7;
        RETURN CASE WHEN to_char(day::timestamp, 'IYYY-"W"IW') = dataid THEN dataflow._first_moment(day::timestamp, zone) END;
    END IF;
    IF unit = 'year' THEN
        RETURN dataflow._first_moment(make_date(part[1]::int, 1, 1)::timestamp, zone);
    END IF;
    IF part[2] NOT BETWEEN '01' AND '12' THEN
        RETURN NULL;
    END IF;
    first_of_month := make_date(part[1]::int, part[2]::int, 1);
    IF unit = 'month' THEN
        RETURN dataflow._first_moment(first_of_month::timestamp, zone);
    END IF;
    day := first_of_month + part[3]::int - 1;
    IF part[3] = '00' OR to_char(day::timestamp, 'MM') <> part[2] OR (unit = 'hour' AND part[4] > '23') THEN
        RETURN NULL;
    END IF;
    RETURN CASE unit
        WHEN 'day' THEN dataflow._first_moment(day::timestamp, zone)
        ELSE (day::timestamp + make_interval(hours => part[4]::int)) AT TIME ZONE 'UTC'
    END;
END $$;
COMMENT ON FUNCTION dataflow.period_start(text, text, text) IS
    'When the period named by a dataid begins in a time zone; NULL where the dataid does not name such a period';

CREATE OR REPLACE FUNCTION dataflow.period_id(unit text, moment timestamptz, zone text) RETURNS text
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
COMMENT ON FUNCTION dataflow.period_id(text, timestamptz, text) IS
    'The dataid of the hour (UTC), day, week, month or year that a moment falls into, in a time zone';

CREATE OR REPLACE FUNCTION dataflow.period_add(unit text, start timestamptz, periods integer, zone text) RETURNS timestamptz
LANGUAGE sql STABLE STRICT PARALLEL SAFE
AS $$
    SELECT CASE unit
        WHEN 'hour' THEN start + make_interval(hours => periods)
        -- Where clocks skip midnight, that day starts at one o'clock; the next day starts at midnight again.
        ELSE dataflow._first_moment(date_trunc(unit, start AT TIME ZONE zone) + CASE unit
            WHEN 'day' THEN make_interval(days => periods)
            WHEN 'week' THEN make_interval(weeks => periods)
            WHEN 'month' THEN make_interval(months => periods)
            WHEN 'year' THEN make_interval(years => periods)
        END, zone)
    END
$$;
COMMENT ON FUNCTION dataflow.period_add(text, timestamptz, integer, text) IS
    'The start of the period so many periods later; a day of 23 or 25 hours counts as a day';

-- When the period that a dataid names begins; NULL: it names none. Four digits could be a year or a number, so they count as neither.
CREATE OR REPLACE FUNCTION dataflow._moment(dataid text) RETURNS timestamptz
LANGUAGE sql STABLE STRICT PARALLEL SAFE
AS $$
    SELECT coalesce(dataflow.period_start('day', dataid, 'UTC'), dataflow.period_start('hour', dataid, 'UTC'),
        dataflow.period_start('week', dataid, 'UTC'), dataflow.period_start('month', dataid, 'UTC'))
$$;

-- Whether a dataset of this ordering may have this dataid.
CREATE OR REPLACE FUNCTION dataflow._fits_ordering(ordering text, dataid text) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT CASE ordering
        WHEN 'date' THEN dataflow._moment(dataid) IS NOT NULL OR dataflow.period_start('year', dataid, 'UTC') IS NOT NULL
        WHEN 'number' THEN dataid ~ '^[0-9]+$'
        ELSE true
    END
$$;

CREATE OR REPLACE FUNCTION dataflow._number(dataid text) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
AS $$ SELECT CASE WHEN dataid ~ '^(0|[1-9][0-9]{0,17})$' THEN dataid::bigint END $$;

-- The dataid so many units later; NULL: there is none.
CREATE OR REPLACE FUNCTION dataflow._shifted(unit text, dataid text, units integer) RETURNS text
LANGUAGE sql STABLE STRICT PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN unit = 'number' THEN
            (SELECT dataflow._number((number + units)::text)::text FROM dataflow._number(dataid) AS number)
        ELSE
            -- There are no dataids before the year 1 or after 9999. Moments far beyond are not computed: the server cannot
            -- represent them.
            (SELECT shifted FROM dataflow.period_add(unit, dataflow.period_start(unit, dataid, 'UTC'), units, 'UTC') AS moment,
                dataflow.period_id(unit, moment, 'UTC') AS shifted
            WHERE dataflow.period_start(unit, shifted, 'UTC') = moment)
    END
    WHERE unit = 'number' OR coalesce(substring(dataid FROM '^[0-9]{4}')::int, 0) + units / (CASE unit
        WHEN 'hour' THEN 8766 WHEN 'day' THEN 365 WHEN 'week' THEN 52 WHEN 'month' THEN 12 ELSE 1 END) BETWEEN -100 AND 10100
$$;

-- The dataids of one input that a run needs, for every mapping but identity.
CREATE OR REPLACE FUNCTION dataflow._mapped_inputs(mapping jsonb, datasetid text, run text) RETURNS SETOF text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
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
    WHEN 'partitioning' THEN
        RETURN QUERY SELECT b.dataid::text FROM dataflow.batch b
            WHERE b.datasetid = _mapped_inputs.datasetid AND b.dataid = run AND b.partitioning = mapping ->> 'name';
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

-- The starts of all periods that begin in [first, until).
CREATE OR REPLACE FUNCTION dataflow._moments(unit text, first timestamptz, until timestamptz, zone text) RETURNS SETOF timestamptz
LANGUAGE sql STABLE STRICT
AS $$
    -- Hours are counted in UTC: in the session's time zone they might begin at half past.
    SELECT moment FROM generate_series(
        date_trunc('hour', first + interval '1 hour' - interval '1 microsecond', 'UTC'), until, interval '1 hour') AS moment
    WHERE unit = 'hour' AND moment < until
    UNION ALL
    SELECT dataflow._first_moment(local, zone) FROM generate_series(
        first AT TIME ZONE zone, until AT TIME ZONE zone, ('1 ' || unit)::interval) AS local
    WHERE unit <> 'hour' AND local < until AT TIME ZONE zone
$$;

-- The runs that need a chunk through one input, for every mapping but identity.
CREATE OR REPLACE FUNCTION dataflow._mapped_runs(jobid text, mapping jsonb, datasetid text, dataid text) RETURNS SETOF text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
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
    WHEN 'partitioning' THEN
        RETURN QUERY SELECT b.dataid::text FROM dataflow.batch b
            WHERE b.datasetid = _mapped_runs.datasetid AND b.dataid = _mapped_runs.dataid AND b.partitioning = mapping ->> 'name';
    WHEN 'fixed' THEN
        IF dataid = mapping ->> 'dataid' THEN
            -- A reference affects every known run: those that another input of the job leads to.
            SELECT i.datasetid, i.mapping, i.kind INTO driver FROM dataflow.job_input i
                WHERE i.jobid = _mapped_runs.jobid AND i.kind <> 'fixed' ORDER BY i.datasetid LIMIT 1;
            IF driver.kind IS NULL THEN
                -- A job that reads only references runs on the dataids that a person has named.
                RETURN QUERY SELECT DISTINCT s.dataid::text FROM dataflow.job_output o
                    JOIN dataflow.datastatus s ON s.datasetid = o.datasetid AND s.locktype = 'OUT' WHERE o.jobid = _mapped_runs.jobid;
                RETURN;
            END IF;
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

-- One row for each input chunk. dataid NULL: the mapping leads to no chunk, so the run is impossible.
CREATE OR REPLACE FUNCTION dataflow._inputs(jobid text, dataid text) RETURNS TABLE (datasetid text, dataid text)
LANGUAGE sql STABLE
AS $$
    SELECT i.datasetid, _inputs.dataid FROM dataflow.job_input i
    WHERE i.jobid = _inputs.jobid AND i.kind = 'identity'
    UNION ALL
    SELECT i.datasetid, mapped FROM dataflow.job_input i
    LEFT JOIN LATERAL dataflow._mapped_inputs(i.mapping, i.datasetid, _inputs.dataid) AS mapped ON true
    WHERE i.jobid = _inputs.jobid AND i.kind <> 'identity'
$$;

-- The same for a caller that asks for many runs of a job, and has looked up once which inputs map by identity and whether others map otherwise.
CREATE OR REPLACE FUNCTION dataflow._known_inputs(jobid text, dataid text, same_inputs text[], has_mappings boolean) RETURNS TABLE (datasetid text, dataid text)
LANGUAGE sql STABLE
AS $$
    SELECT unnest(same_inputs), _known_inputs.dataid
    UNION ALL
    SELECT i.datasetid, mapped FROM dataflow.job_input i
    LEFT JOIN LATERAL dataflow._mapped_inputs(i.mapping, i.datasetid, _known_inputs.dataid) AS mapped ON true
    WHERE has_mappings AND i.jobid = _known_inputs.jobid AND i.kind <> 'identity'
$$;

CREATE OR REPLACE FUNCTION dataflow.required_inputs(jobid text, dataid text) RETURNS TABLE (datasetid text, dataid text)
LANGUAGE sql STABLE
AS $$ SELECT i.datasetid, i.dataid FROM dataflow._inputs(jobid, dataid) i WHERE i.dataid IS NOT NULL $$;
COMMENT ON FUNCTION dataflow.required_inputs(text, text) IS
    'The input chunks that the run (job, dataid) needs. The inverse of affected_runs';

CREATE OR REPLACE FUNCTION dataflow.affected_runs(datasetid text, dataid text) RETURNS TABLE (jobid text, dataid text)
LANGUAGE sql STABLE
AS $$
    SELECT i.jobid, affected_runs.dataid FROM dataflow.job_input i
    WHERE i.datasetid = affected_runs.datasetid AND i.kind = 'identity'
    UNION ALL
    SELECT i.jobid, mapped FROM dataflow.job_input i,
        LATERAL dataflow._mapped_runs(i.jobid, i.mapping, i.datasetid, affected_runs.dataid) AS mapped
    WHERE i.datasetid = affected_runs.datasetid AND i.kind <> 'identity'
$$;
COMMENT ON FUNCTION dataflow.affected_runs(text, text) IS
    'The runs that need the chunk (dataset, dataid). The inverse of required_inputs';

CREATE OR REPLACE FUNCTION dataflow.output_dataid(jobid text, datasetid text, dataid text) RETURNS SETOF text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM dataflow.job_input i WHERE i.jobid = output_dataid.jobid AND i.datasetid = output_dataid.datasetid) THEN
        RAISE EXCEPTION 'job % does not read dataset %', jobid, datasetid USING ERRCODE = 'DF404',
            HINT = 'see SELECT * FROM dataflow.job_input';
    END IF;
    RETURN QUERY SELECT r.dataid FROM dataflow.affected_runs(output_dataid.datasetid, output_dataid.dataid) r WHERE r.jobid = output_dataid.jobid;
END $$;
COMMENT ON FUNCTION dataflow.output_dataid(text, text, text) IS
    'The dataids that a job makes out of one input chunk';

-- Refuses a mapping that required_inputs() and affected_runs() could not follow in both directions.
CREATE OR REPLACE FUNCTION dataflow._job_input_checked() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
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
        WHEN 'partitioning' THEN ARRAY['kind', 'name']
        WHEN 'all' THEN ARRAY['kind', 'dataid', 'dataids', 'partitioning']
        WHEN 'window' THEN CASE
            WHEN m ? 'size' THEN ARRAY['kind', 'size']
            WHEN m ? 'last' THEN ARRAY['kind', 'last', 'unit']
            ELSE ARRAY['kind', 'from', 'to', 'zone']
        END
    END;
    fault := CASE
        WHEN known IS NULL THEN 'kind must be identity, offset, window, all, fixed or partitioning'
        WHEN EXISTS (SELECT FROM jsonb_object_keys(m) AS k WHERE k <> ALL (known)) THEN 'its keys may be ' || array_to_string(known, ', ')
        WHEN m ->> 'kind' = 'offset' AND NOT coalesce(
            jsonb_typeof(m -> 'by') = 'number' AND m ->> 'by' ~ '^-?[0-9]{1,6}$' AND m ->> 'unit' = ANY (units || 'number'::text), false)
            THEN 'offset needs a whole number "by" and a "unit": hour, day, week, month, year or number'
        WHEN m ->> 'kind' = 'fixed' AND m ->> 'dataid' IS NULL THEN 'fixed needs a "dataid"'
        WHEN m ->> 'kind' = 'partitioning' AND NOT dataflow._is_name(m ->> 'name')
            THEN 'partitioning needs the "name" of one, such as size_5000'
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
            ) AS named WHERE NOT dataflow._is_chunkid(d))
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
END $$;

CREATE OR REPLACE TRIGGER job_input_checked BEFORE INSERT OR UPDATE ON dataflow.job_input
    FOR EACH ROW EXECUTE FUNCTION dataflow._job_input_checked();
