-- Which versions were made by force is asked at every look at the status. There are few of them among millions of attempts.
CREATE INDEX attempt_forced ON dataflow.attempt (attempt) WHERE forced;

-- A run that is resubmitted with parameters of its own: what its next attempts get, and what each has got.
ALTER TABLE dataflow.datastatus ADD COLUMN params jsonb;
ALTER TABLE dataflow.attempt ADD COLUMN params jsonb;
COMMENT ON COLUMN dataflow.datastatus.params IS
    'What the next attempts get in the place of the job''s own parameters, until one is DONE or the run is resubmitted again; NULL: nothing';
COMMENT ON COLUMN dataflow.attempt.params IS 'What it got in the place of the job''s own parameters; NULL: nothing';
