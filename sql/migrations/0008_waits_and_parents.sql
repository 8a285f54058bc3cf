-- An attempt that was claimed may wait for a Spark application of its daemon; people are told so. Nodes know inside which node they began.
-- NOT VALID: the rows that are there have no such number, and a scan would keep everybody out meanwhile.
ALTER TABLE dataflow.attempt
    ADD COLUMN waits integer,
    ADD CONSTRAINT attempt_waits CHECK (waits > 0) NOT VALID;
COMMENT ON COLUMN dataflow.attempt.waits IS
    'While it is alive: it waits for one of so many Spark applications of its daemon, which are all in use; NULL: it does not wait';

ALTER TABLE dataflow.node_stat ADD COLUMN parent text;
COMMENT ON COLUMN dataflow.node_stat.parent IS 'The node inside which it began; NULL: none';
