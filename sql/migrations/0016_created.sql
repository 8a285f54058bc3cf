-- From which nodes the rows of a node come, so that a job that branches can be drawn as it is.
ALTER TABLE dataflow.node_stat ADD COLUMN sources text[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN dataflow.node_stat.sources IS 'The nodes whose rows came to it, the nearest on each way';

-- A job may be bound to one partitioning of its source.
-- NOT VALID: rows that are there obey the narrower rule that this one replaces.
ALTER TABLE dataflow.job_input
    DROP CONSTRAINT job_input_kind_check,
    ADD CONSTRAINT job_input_kind_check CHECK (kind IN ('identity', 'offset', 'window', 'all', 'fixed', 'partitioning')) NOT VALID;
COMMENT ON COLUMN dataflow.job_input.mapping IS
    '{"kind": "identity" | "offset" | "window" | "all" | "fixed" | "partitioning", ...}; see dataflow.required_inputs';

-- Jobs that run the code of another one on data of their own. That code knows its datasets by the other's names.
ALTER TABLE dataflow.job_input ADD COLUMN role dataflow.name;
COMMENT ON COLUMN dataflow.job_input.role IS 'Name by which the job''s code knows it; NULL: the dataset''s own';
ALTER TABLE dataflow.job_output ADD COLUMN role dataflow.name;
COMMENT ON COLUMN dataflow.job_output.role IS 'Name by which the job''s code knows it; NULL: the dataset''s own';

CREATE TABLE dataflow.job_like (
    jobid dataflow.name PRIMARY KEY REFERENCES dataflow.job,
    base dataflow.name NOT NULL REFERENCES dataflow.job,
    sources jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(sources) = 'object'),
    partitioning dataflow.name,
    outputs jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(outputs) = 'object'),
    params jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(params) = 'object'),
    description text NOT NULL DEFAULT '',
    created timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL DEFAULT session_user,
    CHECK (jobid <> base)
);
CREATE INDEX job_like_base ON dataflow.job_like (base);
COMMENT ON TABLE dataflow.job_like IS 'Jobs that were created like another: they run its code, with a source, parameters and a description of their own';
COMMENT ON COLUMN dataflow.job_like.jobid IS 'Name of the job';
COMMENT ON COLUMN dataflow.job_like.base IS 'The job whose code it runs, as a flow declares it';
COMMENT ON COLUMN dataflow.job_like.sources IS 'The dataset that it reads in the place of an input of the other: {"customers": "customers_eu"}';
COMMENT ON COLUMN dataflow.job_like.partitioning IS 'It runs on the batches of this partitioning of its sources alone; NULL: as the other does';
COMMENT ON COLUMN dataflow.job_like.outputs IS 'The dataset that it writes in the place of an output of the other, where that is not made for it';
COMMENT ON COLUMN dataflow.job_like.params IS 'Parameters that differ from the other''s';
COMMENT ON COLUMN dataflow.job_like.description IS 'What it is, for people';
COMMENT ON COLUMN dataflow.job_like.created IS 'When the row was made';
COMMENT ON COLUMN dataflow.job_like.created_by IS 'Who created the job';

-- Repaired records of a job whose output rows each depend on one input row are run alone, and merged with what is published.
ALTER TABLE dataflow.job ADD COLUMN rowwise boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN dataflow.job.rowwise IS 'Each output row depends on one input row, so that single records can be replayed';
ALTER TABLE dataflow.quarantine ADD COLUMN contained boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN dataflow.quarantine.contained IS 'What is published holds an earlier resolution of the record: its chunk has to be made again as a whole';

CREATE TABLE dataflow.row_replay (
    jobid dataflow.name NOT NULL REFERENCES dataflow.job ON DELETE CASCADE,
    dataid dataflow.chunkid NOT NULL,
    attempt bigint NOT NULL,
    asked timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (jobid, dataid)
);
COMMENT ON TABLE dataflow.row_replay IS 'Runs whose next attempt replays repaired records alone, and adds their rows to what an earlier attempt published';
COMMENT ON COLUMN dataflow.row_replay.jobid IS 'Name of the job';
COMMENT ON COLUMN dataflow.row_replay.dataid IS 'Id of the slice';
COMMENT ON COLUMN dataflow.row_replay.attempt IS 'The attempt whose rows it adds to';
COMMENT ON COLUMN dataflow.row_replay.asked IS 'When somebody has asked for it';
