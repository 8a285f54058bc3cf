-- Which parts a job's code consists of, so that a stale chunk can say what changed; and which chunks somebody has accepted as
-- they are.
CREATE TABLE dataflow.job_code (
    jobid dataflow.name NOT NULL REFERENCES dataflow.job,
    code_hash text NOT NULL,
    same_as text,
    parts jsonb CHECK (jsonb_typeof(parts) = 'object'),
    told timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (jobid, code_hash),
    CHECK (num_nonnulls(same_as, parts) = 1)
);
COMMENT ON TABLE dataflow.job_code IS 'Every version of a job''s code that was told, with its parts';
COMMENT ON COLUMN dataflow.job_code.jobid IS 'Name of the job';
COMMENT ON COLUMN dataflow.job_code.code_hash IS 'Hash of the whole, as attempts store it';
COMMENT ON COLUMN dataflow.job_code.same_as IS 'Release 0.1 hashed the same code in another way: this is its hash now';
COMMENT ON COLUMN dataflow.job_code.parts IS 'A digest of each file, function and constant that the job reaches: {"jobs.py:clean": "..."}';
COMMENT ON COLUMN dataflow.job_code.told IS 'When it was told first';

CREATE TABLE dataflow.acceptance (
    datasetid dataflow.name NOT NULL,
    dataid dataflow.chunkid NOT NULL,
    version integer NOT NULL,
    code_hash text,
    config_hash text,
    accepted timestamptz NOT NULL DEFAULT now(),
    accepted_by text NOT NULL DEFAULT session_user,
    reason text,
    PRIMARY KEY (datasetid, dataid, version),
    FOREIGN KEY (datasetid, dataid, version) REFERENCES dataflow.manifest (datasetid, dataid, version) ON DELETE CASCADE
);
COMMENT ON TABLE dataflow.acceptance IS 'Published versions that somebody has accepted as good with other code or configuration than made them';
COMMENT ON COLUMN dataflow.acceptance.version IS 'The version of the chunk''s manifest';
COMMENT ON COLUMN dataflow.acceptance.code_hash IS 'The code that it is good with';
COMMENT ON COLUMN dataflow.acceptance.config_hash IS 'The configuration that it is good with';
COMMENT ON COLUMN dataflow.acceptance.accepted IS 'When';
COMMENT ON COLUMN dataflow.acceptance.accepted_by IS 'Who has';
COMMENT ON COLUMN dataflow.acceptance.reason IS 'Why';

-- NOT VALID: rows that are there obey the narrower rule that this one replaces.
ALTER TABLE dataflow.event
    DROP CONSTRAINT event_kind_check,
    ADD CONSTRAINT event_kind_check
        CHECK (kind IN ('status', 'queued', 'blocked', 'refused', 'control', 'daemon', 'credential', 'dataset', 'accepted')) NOT VALID;
COMMENT ON COLUMN dataflow.event.kind IS
    'What it is about: a status, the queue, a refusal, a control, a daemon, a credential, how a dataset is reached, or a chunk that was accepted as it is';
COMMENT ON COLUMN dataflow.event.from_status IS 'Status before; of a control or a dataset, the value before; of what was accepted, the code that made it';
COMMENT ON COLUMN dataflow.event.to_status IS 'Status after; of a control or a dataset, the value after; of what was accepted, the code that it is good with';
