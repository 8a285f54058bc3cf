-- Versions of a chunk never repeat, also when it was deleted in between: what was made of an old one would pass for made of the new one.
CREATE TABLE dataflow.deleted_version (
    datasetid dataflow.name NOT NULL,
    dataid dataflow.chunkid NOT NULL,
    version integer NOT NULL,
    PRIMARY KEY (datasetid, dataid)
);
COMMENT ON TABLE dataflow.deleted_version IS 'The last version of every chunk that was deleted or withdrawn: the next one counts from there';
COMMENT ON COLUMN dataflow.deleted_version.datasetid IS 'Name of the dataset';
COMMENT ON COLUMN dataflow.deleted_version.dataid IS 'Which chunk';
COMMENT ON COLUMN dataflow.deleted_version.version IS 'The last version that it had';

-- What a person has set to FAILED stays hidden from readers until there is a newer version, also while that is being made.
ALTER TABLE dataflow.datastatus ADD COLUMN rejected integer;
COMMENT ON COLUMN dataflow.datastatus.rejected IS 'The version that a person has set to FAILED: readers from outside do not get it';
