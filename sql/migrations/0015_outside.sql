-- Attempts that something outside executes: they hold no session of a daemon, so each has a lease of its own. And words that a
-- person has added to a command.
ALTER TABLE dataflow.job
    DROP CONSTRAINT job_kind_check,
    ADD CONSTRAINT job_kind_check CHECK (kind IN ('python', 'sql', 'command', 'spark_submit', 'outside'));
COMMENT ON COLUMN dataflow.job.kind IS
    'What sort of code the flow file names for it, a label, never executed; outside: something else executes it, and no daemon claims it';

ALTER TABLE dataflow.attempt
    ADD COLUMN lease_until timestamptz,
    ADD COLUMN words text[];
COMMENT ON COLUMN dataflow.attempt.lease_until IS
    'Of an attempt that begin_run() made: when rescue() takes it back unless it is renewed or ended; NULL: a daemon has it, with the lease of that daemon';
COMMENT ON COLUMN dataflow.attempt.daemon IS 'The daemon that claimed it or, of an attempt that begin_run() made, what executes it';
COMMENT ON COLUMN dataflow.attempt.words IS 'What the person who ran it added to the words of its command, or the command that was executed in its place; NULL: nothing';

ALTER TABLE dataflow.daemon ADD COLUMN is_outside boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN dataflow.daemon.is_outside IS
    'The row stands for something outside while begin_run() claims for it, and is gone before anybody else can see it';
