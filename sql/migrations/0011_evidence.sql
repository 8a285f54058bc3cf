-- What an attempt was given and what its host found there, so that the five questions can be answered about the past.
-- A table of its own: a claim and a finish go on with rows of `attempt` that are as short as before.
CREATE TABLE dataflow.evidence (
    attempt bigint PRIMARY KEY REFERENCES dataflow.attempt ON DELETE CASCADE,
    told jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(told) = 'object'),
    found jsonb CHECK (jsonb_typeof(found) = 'object')
);
COMMENT ON TABLE dataflow.evidence IS
    'What an attempt was given, and what its host found there. Of very many chunks only the first are listed, the others are counted: a row is at most 128 KiB of text';
COMMENT ON COLUMN dataflow.evidence.told IS
    'What the database knew when the attempt got its order: of each input version, status, who made it and when, where, its checks and lock rows; of each output where; daemon, host, environment, flow, parameters; of a forced attempt what the questions said';
COMMENT ON COLUMN dataflow.evidence.found IS
    'What the host found before the job''s code began: files, bytes, newest change and digest of each input, where it writes, with which code and configuration; NULL: it has not said';

-- History also tells what was declared. NOT VALID: rows that are there obey the narrower rule that this one replaces.
ALTER TABLE dataflow.event
    DROP CONSTRAINT event_kind_check,
    ADD CONSTRAINT event_kind_check
        CHECK (kind IN ('status', 'queued', 'blocked', 'refused', 'control', 'daemon', 'credential', 'dataset', 'job', 'accepted')) NOT VALID;
COMMENT ON COLUMN dataflow.event.kind IS
    'What it is about: a status, the queue, a refusal, a control, a daemon, a credential, what is declared of a dataset or a job, or a chunk that was accepted as it is';
COMMENT ON COLUMN dataflow.event.from_status IS 'Status before; of a control, a dataset or a job, the value before; of what was accepted, the code that made it';
COMMENT ON COLUMN dataflow.event.to_status IS 'Status after; of a control, a dataset or a job, the value after; of what was accepted, the code that it is good with';
COMMENT ON COLUMN dataflow.event.code IS 'Why, in one word; of a dataset or a job, what changed: the name of a column, input, output, or declared';
COMMENT ON COLUMN dataflow.event.reason IS 'Why, in a sentence; of what was declared, the flow and its file';
COMMENT ON COLUMN dataflow.attempt.answers IS
    'The five answers at the moment of the claim. An attempt that its host refused before the job''s code began has the host''s answer: false, and refused: {"code", "detail"}';

-- Replaced by triggers that tell of every column (functions/changes.sql). Here, because it needs a lock that keeps readers out.
DROP TRIGGER IF EXISTS connection_changed ON dataflow.dataset;
