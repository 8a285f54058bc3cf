-- A host may be unable to run a job of its flow files: its script is gone, or a dataset lies where the host may not go. People are told why.
ALTER TABLE dataflow.daemon ADD COLUMN unserved jsonb NOT NULL DEFAULT '{}';
COMMENT ON COLUMN dataflow.daemon.unserved IS 'The jobs that its flow files declare and that it cannot run, each with the reason';
