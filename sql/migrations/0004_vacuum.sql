-- How the server keeps the busy tables small, without a setting of its own. None of this waits for, or keeps out, anybody
-- who claims or finishes.

-- A queue: rows come and go. It is small, so that a vacuum at full speed costs little, and a late one is paid by every claim.
ALTER TABLE dataflow.work SET (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE dataflow.recheck SET (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE dataflow.open_run SET (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE dataflow.counter SET (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);

-- One row a daemon, updated with each renewal of its lease: with free space in its page that needs no index entry.
ALTER TABLE dataflow.daemon SET (fillfactor = 50);

-- They only grow: vacuumed and analysed a little at a time, and not a fifth of all history at once.
ALTER TABLE dataflow.event SET (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
ALTER TABLE dataflow.manifest SET (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02);
