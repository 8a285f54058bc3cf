-- What comes from outside is measured, so that a file that was exchanged since is found.
ALTER TABLE dataflow.dataset
    ADD COLUMN digest boolean NOT NULL DEFAULT false,
    ADD COLUMN expect_newer boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN dataflow.dataset.digest IS 'Whether files are compared by what is in them: they are read when they are registered or published, and before each use';
COMMENT ON COLUMN dataflow.dataset.expect_newer IS 'Whether a chunk whose newest file is older than the day that its dataid names is refused';

CREATE TABLE dataflow.measurement (
    datasetid dataflow.name NOT NULL,
    dataid dataflow.chunkid NOT NULL,
    version integer NOT NULL,
    found jsonb NOT NULL CHECK (jsonb_typeof(found) = 'object'),
    measured timestamptz NOT NULL DEFAULT now(),
    measured_by text NOT NULL DEFAULT session_user,
    PRIMARY KEY (datasetid, dataid, version)
);
COMMENT ON TABLE dataflow.measurement IS
    'What lay at the location of a chunk from outside when it was registered, or when the first attempt that succeeded read it';
COMMENT ON COLUMN dataflow.measurement.version IS 'The version of the chunk that was measured';
COMMENT ON COLUMN dataflow.measurement.found IS '{"files", "bytes", "modified", "digest"}: modified is that of the newest file; digest is there where the dataset asks for it';
COMMENT ON COLUMN dataflow.measurement.measured IS 'When it was noted';
COMMENT ON COLUMN dataflow.measurement.measured_by IS 'Who noted it: whoever registered the chunk, or a daemon';

-- Declared checks of a chunk from outside are judged by the first Spark job that reads it, before its code begins.
CREATE TABLE dataflow.judgement (
    datasetid dataflow.name NOT NULL,
    dataid dataflow.chunkid NOT NULL,
    version integer NOT NULL,
    passed boolean NOT NULL,
    attempt bigint,
    judged timestamptz NOT NULL DEFAULT now(),
    judged_by text NOT NULL DEFAULT session_user,
    PRIMARY KEY (datasetid, dataid, version)
);
COMMENT ON TABLE dataflow.judgement IS 'Whether a version of a chunk from outside has passed the declared checks of its dataset; no row: nobody has asked yet';
COMMENT ON COLUMN dataflow.judgement.version IS 'The version of the chunk that was judged';
COMMENT ON COLUMN dataflow.judgement.passed IS 'Whether no check of severity error failed; of what failed nobody starts until a new version is registered, or a person vouches for it';
COMMENT ON COLUMN dataflow.judgement.attempt IS 'The attempt that judged it; check_result has what it observed. NULL: a person vouched for it';
COMMENT ON COLUMN dataflow.judgement.judged IS 'When';
COMMENT ON COLUMN dataflow.judgement.judged_by IS 'By whom: a daemon, or who vouched for it';
