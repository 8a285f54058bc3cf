-- An entry names a run, the first open run of a job, a chunk, or all chunks of a dataset that changed since a transaction. A chunk
-- is named where the runs that it affects cannot be named yet: a flow is being applied, a reference chunk's partners are not
-- committed, or the snapshot is an old one.
ALTER TABLE dataflow.recheck
    ALTER COLUMN jobid DROP NOT NULL,
    ADD COLUMN datasetid dataflow.name,
    ADD COLUMN since xid8,
    ADD CONSTRAINT recheck_kind CHECK (
        num_nonnulls(jobid, datasetid) = 1 AND (since IS NOT NULL) = (datasetid IS NOT NULL AND dataid IS NULL)
    );
-- A claim asks whether anything that a job in strict order depends on has not been judged yet.
CREATE INDEX recheck_new_run ON dataflow.recheck (jobid) WHERE looked IS NULL AND jobid IS NOT NULL;
CREATE INDEX recheck_new_chunk ON dataflow.recheck (datasetid) WHERE looked IS NULL AND datasetid IS NOT NULL;
COMMENT ON TABLE dataflow.recheck IS
    'Runs and chunks that settle() judges again, because another transaction was changing status or a flow meanwhile. Derived';
COMMENT ON COLUMN dataflow.recheck.datasetid IS 'All runs that read or make the chunk are judged again';
COMMENT ON COLUMN dataflow.recheck.since IS 'Without a dataid: all chunks of the dataset that this transaction or a later one has written';
