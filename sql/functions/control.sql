-- Limits and pauses. Daemons get a notice when one changes.

CREATE OR REPLACE FUNCTION dataflow._control_checked() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF NEW.concurrency < 0 THEN
        RAISE EXCEPTION 'concurrency of % cannot be %', NEW.scope, NEW.concurrency USING ERRCODE = 'DF400', HINT = 'it is 0 or more; 0 starts nothing';
    END IF;
    IF NEW.scope = 'global' AND NEW.concurrency IS NULL THEN
        RAISE EXCEPTION 'the global concurrency cannot be NULL' USING ERRCODE = 'DF400', HINT = 'it is 0 or more; 0 starts nothing';
    END IF;
    IF NEW.runners < 1 OR NEW.slots < 1 THEN
        RAISE EXCEPTION '% of % cannot be %', CASE WHEN NEW.runners < 1 THEN 'runners' ELSE 'slots' END, NEW.scope, least(NEW.runners, NEW.slots)
            USING ERRCODE = 'DF400', HINT = 'it is 1 or more; NULL leaves it to the settings of each host';
    END IF;
    IF NEW.scope LIKE 'job:%' AND (NEW.runners IS NOT NULL OR NEW.slots IS NOT NULL) THEN
        RAISE EXCEPTION 'a job has no runners and slots of its own here: %', NEW.scope USING ERRCODE = 'DF400',
            HINT = 'set them of global or daemon:<name>; `slots` of a job is declared in its flow';
    END IF;
    IF NEW.scope <> 'global' AND NOT (NEW.scope ~ '^(job|daemon):' AND dataflow._is_name(regexp_replace(NEW.scope, '^(job|daemon):', ''))) THEN
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
END $$;

CREATE OR REPLACE TRIGGER control_checked BEFORE INSERT OR UPDATE ON dataflow.control
    FOR EACH ROW EXECUTE FUNCTION dataflow._control_checked();

CREATE OR REPLACE FUNCTION dataflow._control_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO dataflow.event (kind, scope, paused, from_status, to_status, reason)
    SELECT 'control', n.scope, n.paused, o.concurrency::text, n.concurrency::text, n.scope || CASE WHEN n.paused THEN ' (paused)' ELSE '' END
        || CASE WHEN n.runners IS DISTINCT FROM o.runners THEN format(' (runners %s -> %s)', coalesce(o.runners::text, 'by host'), coalesce(n.runners::text, 'by host')) ELSE '' END
        || CASE WHEN n.slots IS DISTINCT FROM o.slots THEN format(' (slots %s -> %s)', coalesce(o.slots::text, 'by host'), coalesce(n.slots::text, 'by host')) ELSE '' END
    FROM new_rows n LEFT JOIN old_rows o ON o.scope = n.scope;
    PERFORM pg_notify('dataflow', 'control');
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION dataflow._control_inserted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO dataflow.event (kind, scope, paused, to_status, reason)
    SELECT 'control', n.scope, n.paused, n.concurrency::text, n.scope || CASE WHEN n.paused THEN ' (paused)' ELSE '' END FROM new_rows n;
    PERFORM pg_notify('dataflow', 'control');
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER control_changed AFTER UPDATE ON dataflow.control
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION dataflow._control_changed();
CREATE OR REPLACE TRIGGER control_inserted AFTER INSERT ON dataflow.control
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION dataflow._control_inserted();

CREATE OR REPLACE FUNCTION dataflow.set_concurrency(scope text, concurrency integer) RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO dataflow.control (scope, concurrency) VALUES (set_concurrency.scope, set_concurrency.concurrency)
    ON CONFLICT (scope) DO UPDATE SET concurrency = excluded.concurrency
$$;
COMMENT ON FUNCTION dataflow.set_concurrency(text, integer) IS
    'Attempts at a time in a scope: global, job:<jobid> or daemon:<name>; effective at once. NULL takes a job''s or daemon''s own limit away';

-- The check of the row runs before ON CONFLICT, so that the proposed row has to be valid even if a row is there already.
CREATE OR REPLACE FUNCTION dataflow.set_runners(scope text, runners integer) RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO dataflow.control (scope, concurrency, runners)
    VALUES (set_runners.scope, (SELECT c.concurrency FROM dataflow.control c WHERE c.scope = set_runners.scope), set_runners.runners)
    ON CONFLICT (scope) DO UPDATE SET runners = excluded.runners
$$;
COMMENT ON FUNCTION dataflow.set_runners(text, integer) IS
    'Spark applications of each daemon in a scope: global or daemon:<name>; effective at once. NULL leaves it to the settings of each host';

CREATE OR REPLACE FUNCTION dataflow.set_slots(scope text, slots integer) RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO dataflow.control (scope, concurrency, slots)
    VALUES (set_slots.scope, (SELECT c.concurrency FROM dataflow.control c WHERE c.scope = set_slots.scope), set_slots.slots)
    ON CONFLICT (scope) DO UPDATE SET slots = excluded.slots
$$;
COMMENT ON FUNCTION dataflow.set_slots(text, integer) IS
    'Chunks side by side in one Spark application, in a scope: global or daemon:<name>; for applications that start from now on. NULL leaves it to the settings of each host';

CREATE OR REPLACE FUNCTION dataflow.pause(scope text DEFAULT 'global', paused boolean DEFAULT true) RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO dataflow.control (scope, concurrency, paused)
    VALUES (pause.scope, (SELECT c.concurrency FROM dataflow.control c WHERE c.scope = pause.scope), pause.paused)
    ON CONFLICT (scope) DO UPDATE SET paused = excluded.paused
$$;
COMMENT ON FUNCTION dataflow.pause(text, boolean) IS
    'Stops claiming in a scope; what runs goes on. pause(scope, false) resumes';

-- How many attempts of a job may run at a time: what the control table says, else what the flow declares. NULL: any number.
CREATE OR REPLACE FUNCTION dataflow._limit_of(j dataflow.job, c dataflow.control) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT coalesce(c.concurrency, j.max_running) $$;

-- Whether no run of a job may start, however many places are free: it is paused, or its limit is 0. Daemons get a notice when that ends.
CREATE OR REPLACE FUNCTION dataflow._is_stopped(j dataflow.job, c dataflow.control) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT coalesce(c.paused OR coalesce(c.concurrency, j.max_running) = 0, false) $$;

CREATE OR REPLACE VIEW dataflow.limits AS
WITH live AS MATERIALIZED (
    SELECT a.jobid, a.daemon, count(*) AS attempts FROM dataflow.attempt a WHERE a.ended IS NULL GROUP BY a.jobid, a.daemon
)
SELECT l.scope, l.concurrency, l.paused, coalesce((
    SELECT sum(v.attempts) FROM live v
    WHERE l.scope = 'global' OR l.scope = 'job:' || v.jobid OR l.scope = 'daemon:' || v.daemon), 0)::bigint AS running, l.declared_in, l.runners, l.slots
FROM (
    SELECT c.scope, dataflow._limit_of(j, c) AS concurrency, c.paused, c.runners, c.slots,
        CASE WHEN c.concurrency IS NULL AND j.max_running IS NOT NULL THEN 'flow' ELSE 'control' END AS declared_in
    FROM dataflow.control c LEFT JOIN dataflow.job j ON c.scope = 'job:' || j.jobid
    UNION ALL
    SELECT 'job:' || j.jobid, j.max_running, false, NULL, NULL, 'flow' FROM dataflow.job j
    WHERE j.max_running IS NOT NULL AND j.retired IS NULL
        AND NOT EXISTS (SELECT FROM dataflow.control c WHERE c.scope = 'job:' || j.jobid)
) AS l;
COMMENT ON VIEW dataflow.limits IS
    'Every limit and pause that is in force, with how many attempts run under it; declared_in says whether the control table or the flow set it';
