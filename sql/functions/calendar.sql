-- Calendars: datasets whose chunks are periods of time. The daemon makes a period READY when it is due.

CREATE OR REPLACE FUNCTION dataflow._calendar_unit(calendar text) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE calendar WHEN 'hourly' THEN 'hour' WHEN 'daily' THEN 'day' WHEN 'weekly' THEN 'week' WHEN 'monthly' THEN 'month' END $$;

-- When the period that starts at a moment becomes READY.
CREATE OR REPLACE FUNCTION dataflow._calendar_due(d dataflow.dataset, start timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE
AS $$
    SELECT CASE d.calendar_ready WHEN 'start' THEN start
        ELSE dataflow.period_add(dataflow._calendar_unit(d.calendar), start, 1, d.calendar_zone) END
$$;

CREATE OR REPLACE FUNCTION dataflow.tick(until timestamptz DEFAULT clock_timestamp()) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    -- At most this many periods of one calendar in one call. The daemon calls again while next_tick() lies in the past.
    most constant integer := 10000;
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
        WHILE cardinality(due) < most AND dataflow._calendar_due(d, start) <= until LOOP
            due := due || dataflow.period_id(unit, start, d.calendar_zone);
            start := dataflow.period_add(unit, start, 1, d.calendar_zone);
        END LOOP;
        UPDATE dataflow.dataset x SET calendar_next = start WHERE x.datasetid = d.datasetid;
        -- A period that a person has registered or holds is left as it is.
        registered := registered + dataflow.ready(d.datasetid, ARRAY(
            SELECT p FROM unnest(due) AS p WHERE NOT EXISTS (
                SELECT FROM dataflow.datastatus s WHERE s.datasetid = d.datasetid AND s.dataid = p AND s.locktype = 'OUT')));
    END LOOP;
    RETURN registered;
END $$;
COMMENT ON FUNCTION dataflow.tick(timestamptz) IS
    'Makes the due periods of all calendars READY, after an outage also those that were missed, at most ten thousand of each calendar in one call; returns how many. Daemons call it when next_tick() is due';

CREATE OR REPLACE FUNCTION dataflow.next_tick() RETURNS timestamptz
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT min(dataflow._calendar_due(d, d.calendar_next)) FROM dataflow.dataset d WHERE d.calendar IS NOT NULL AND d.retired IS NULL
$$;
COMMENT ON FUNCTION dataflow.next_tick() IS 'When the next period of a calendar is due';

-- Moves the beginning of a calendar to the start of a period.
CREATE OR REPLACE FUNCTION dataflow._dataset_checked() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
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

CREATE OR REPLACE TRIGGER dataset_checked BEFORE INSERT OR UPDATE OF calendar, calendar_zone, calendar_next ON dataflow.dataset
    FOR EACH ROW EXECUTE FUNCTION dataflow._dataset_checked();
