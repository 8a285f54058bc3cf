-- What programs decide by stands in columns. Texts are for people, and nothing reads them again.

-- Both locks are taken before any row is changed: a migration that gives one up then has nothing to undo.
ALTER TABLE dataflow.attempt ADD COLUMN remedy text;
ALTER TABLE dataflow.event ADD COLUMN scope text, ADD COLUMN paused boolean;

-- Until now the remedy of a failed attempt was the last line of its error.
COMMENT ON COLUMN dataflow.attempt.remedy IS 'What to do about the error before the run is resubmitted; NULL: nothing is known';
-- Release 0.1 named the resubmission there, too, which why() adds by itself.
UPDATE dataflow.attempt a SET remedy = regexp_replace(substring(a.error FROM 'remedy: (.*)$'), '[,;] then resubmit( the chunk)?$', '')
    WHERE a.outcome IN ('FAILED', 'LOST', 'CANCELLED') AND a.error LIKE '%remedy: %';

-- Until now the reason of such an event began with its scope, and held the word (paused).
COMMENT ON COLUMN dataflow.event.scope IS 'Of a control, its scope: global, job:<jobid> or daemon:<name>; of a daemon, daemon:<name>; otherwise NULL';
COMMENT ON COLUMN dataflow.event.paused IS 'Of a control, whether its scope is paused from then on; otherwise NULL';
UPDATE dataflow.event e SET scope = split_part(e.reason, ' ', 1), paused = e.reason LIKE '%(paused)%'
    WHERE e.jobid = '' AND e.dataid = '' AND e.kind = 'control';
UPDATE dataflow.event e SET scope = 'daemon:' || split_part(split_part(e.reason, ' ', 1), ':', 1)
    WHERE e.jobid = '' AND e.dataid = '' AND e.kind = 'daemon' AND e.to_status IN ('STARTED', 'STOPPED', 'RELOADED', 'GONE');
