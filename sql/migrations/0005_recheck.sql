-- An entry names a run, the first open run of a job, a chunk, or all chunks of a dataset that changed since a transaction. A chunk
-- is named where the runs that it affects cannot be named yet: a flow is being applied, a reference chunk's partners are not
-- committed, or the snapshot is an old one.
ALTER TABLE dataflow.recheck
    ALTER COLUMN jobid DROP NOT NULL,
    ADD COLUMN datasetid dataflow.name,
    ADD COLUMN only_producer boolean NOT NULL DEFAULT false,
    ADD COLUMN since xid8,
    ADD COLUMN is_judged boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT recheck_kind CHECK (
        num_nonnulls(jobid, datasetid) = 1
        AND (since IS NOT NULL) = (datasetid IS NOT NULL AND dataid IS NULL)
        AND (NOT only_producer OR (datasetid IS NOT NULL AND dataid IS NOT NULL))
    );
-- A claim asks whether anything that a job in strict order depends on has not been judged yet.
CREATE INDEX recheck_new_run ON dataflow.recheck (jobid) WHERE NOT is_judged AND jobid IS NOT NULL;
CREATE INDEX recheck_new_chunk ON dataflow.recheck (datasetid) WHERE NOT is_judged AND datasetid IS NOT NULL;
COMMENT ON TABLE dataflow.recheck IS
    'Runs and chunks that settle() judges again, because another transaction was changing status or a flow meanwhile. Derived';
COMMENT ON COLUMN dataflow.recheck.datasetid IS 'The runs that read or make the chunk are judged again';
COMMENT ON COLUMN dataflow.recheck.only_producer IS 'Only the run that makes the chunk is judged again: the chunk is no longer read';
COMMENT ON COLUMN dataflow.recheck.since IS 'Without a dataid: all chunks of the dataset that this transaction or a later one has written';
COMMENT ON COLUMN dataflow.recheck.is_judged IS 'Whether settle() has judged it since it was made; a job in strict order waits until then';
COMMENT ON COLUMN dataflow.recheck.horizon IS 'Once every transaction before this one has ended, one more look is the last; NULL: not known yet';
