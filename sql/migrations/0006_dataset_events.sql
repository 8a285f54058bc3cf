-- History also tells who changed how a dataset is reached: a sealed password that no longer opens is explained by it.
-- NOT VALID: rows that are there obey the narrower rule that this one replaces, and a scan would keep everybody out meanwhile.
ALTER TABLE dataflow.event
    DROP CONSTRAINT event_kind_check,
    ADD CONSTRAINT event_kind_check
        CHECK (kind IN ('status', 'queued', 'blocked', 'refused', 'control', 'daemon', 'credential', 'dataset')) NOT VALID;
COMMENT ON COLUMN dataflow.event.kind IS
    'What it is about: a status, the queue, a refusal, a control, a daemon, a credential, or how a dataset is reached';
COMMENT ON COLUMN dataflow.event.from_status IS 'Status before; of a control or a dataset, the value before';
COMMENT ON COLUMN dataflow.event.to_status IS 'Status after; of a control or a dataset, the value after';
