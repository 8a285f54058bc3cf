-- How many Spark applications a daemon keeps, and how many chunks each takes, may be set at run time, for all daemons or for one.
-- NOT VALID: the rows that are there obey these rules, and a scan would keep everybody out meanwhile.
ALTER TABLE dataflow.control
    ADD COLUMN runners integer,
    ADD COLUMN slots integer,
    ADD CONSTRAINT control_runners CHECK (runners >= 1 AND slots >= 1) NOT VALID;
COMMENT ON COLUMN dataflow.control.runners IS
    'Spark applications of each daemon in this scope (global or a daemon), in the place of its own setting; NULL: as its host says';
COMMENT ON COLUMN dataflow.control.slots IS
    'Chunks side by side in one Spark application, where a job does not say, in the place of the daemon''s own setting; NULL: as its host says';

-- 0: its Spark application starts.
ALTER TABLE dataflow.attempt
    DROP CONSTRAINT attempt_waits,
    ADD CONSTRAINT attempt_waits CHECK (waits >= 0) NOT VALID;
COMMENT ON COLUMN dataflow.attempt.waits IS
    'While it is alive: it waits for one of so many Spark applications of its daemon, which are all in use; 0: its own starts; NULL: it does not wait';
