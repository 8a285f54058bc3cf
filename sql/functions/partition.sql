-- Batches: a keyed source is split into chunks, and the split is stored as data.
--
-- A batch says which keys belong to it, by the kind of its partitioning:
--   size, count: {"low": [key] or null, "high": [key] or null}, low inclusive, high exclusive, null open
--   every:       {"every": n, "rest": r}: the records whose rank in key order leaves r when divided by n
--   ids:         {"keys": [[key], ...]}
--   of any kind: {"null": true}: the records with a NULL in their key
-- A key is a list of texts, one for each key column, as the source's own type reads it. The split itself is computed by the
-- source; see dataflowd.storage.partition.plan.

CREATE OR REPLACE FUNCTION dataflow.create_partitioning(
    datasetid text, partitioning text, key_columns text[], kind text, size bigint, batches jsonb, held boolean DEFAULT false
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    producer text;
    made bigint;
    dataids text[];
BEGIN
    PERFORM dataflow._known_dataset(create_partitioning.datasetid);
    IF NOT dataflow._is_name(create_partitioning.partitioning) THEN
        RAISE EXCEPTION 'not a name: %', quote_nullable(left(partitioning, 80)) USING ERRCODE = 'DF400',
            HINT = 'a letter, then up to 62 letters, digits, and _ . -; such as size_5000';
    END IF;
    SELECT o.jobid INTO producer FROM dataflow.job_output o WHERE o.datasetid = create_partitioning.datasetid;
    IF FOUND THEN
        RAISE EXCEPTION 'dataset % is made by job %, and has its chunks from there', datasetid, producer USING ERRCODE = 'DF409',
            HINT = 'split a source that no job produces';
    END IF;
    IF EXISTS (SELECT FROM dataflow.partitioning p WHERE p.datasetid = create_partitioning.datasetid AND p.partitioning = create_partitioning.partitioning) THEN
        RAISE EXCEPTION 'dataset % has a partitioning % already', datasetid, partitioning USING ERRCODE = 'DF409',
            HINT = 'choose another name; several live side by side. Or delete it first';
    END IF;
    INSERT INTO dataflow.partitioning (partitioning, datasetid, key_columns, kind, size)
    VALUES (create_partitioning.partitioning, create_partitioning.datasetid, create_partitioning.key_columns, create_partitioning.kind, create_partitioning.size);
    INSERT INTO dataflow.batch (datasetid, dataid, partitioning, bounds, items)
    SELECT create_partitioning.datasetid, b.dataid, create_partitioning.partitioning, b.bounds, b.items
    FROM jsonb_to_recordset(batches) AS b (dataid text, bounds jsonb, items bigint);
    GET DIAGNOSTICS made = ROW_COUNT;
    dataids := ARRAY(SELECT b.dataid FROM jsonb_to_recordset(batches) AS b (dataid text));
    PERFORM dataflow.ready(create_partitioning.datasetid, dataids);
    IF held THEN
        -- In one statement: hold() for each of ten thousand batches takes minutes, and nobody can make or read a chunk that is just registered.
        UPDATE dataflow.datastatus s SET status = 'HOLD', held_from = s.status, modified = now(),
            reason = 'registered on hold with partitioning ' || create_partitioning.partitioning
        WHERE s.datasetid = create_partitioning.datasetid AND s.dataid = ANY (dataids) AND s.locktype = 'OUT' AND s.held_from IS NULL;
    END IF;
    RETURN made;
END $$;
COMMENT ON FUNCTION dataflow.create_partitioning(text, text, text[], text, bigint, jsonb, boolean) IS
    'Stores a split of a source, [{"dataid", "bounds", "items"}], and registers its batches as chunks; held => true puts them on hold. dataflowctl partition create computes the split';

CREATE OR REPLACE FUNCTION dataflow.partitionings(dataset text DEFAULT NULL) RETURNS TABLE (
    datasetid text, partitioning text, key_columns text[], kind text, size bigint, created timestamptz, batches bigint, items bigint, ready bigint, held bigint,
    consumed bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF partitionings.dataset IS NOT NULL THEN
        PERFORM dataflow._known_dataset(partitionings.dataset);
    END IF;
    RETURN QUERY
    SELECT p.datasetid::text, p.partitioning::text, p.key_columns, p.kind, p.size, p.created, n.batches, n.items, n.ready, n.held, n.consumed
    FROM dataflow.partitioning p
    CROSS JOIN LATERAL (
        SELECT count(*) AS batches, sum(b.items)::bigint AS items, count(*) FILTER (WHERE b.status = 'READY') AS ready,
            count(*) FILTER (WHERE b.status IN ('HOLD', 'PENDING')) AS held, count(*) FILTER (WHERE b.is_consumed) AS consumed
        FROM (
            -- Each batch is looked up by the primary key. This is called when the tables have just been filled and have no statistics; a join
            -- or a partial index would then read all chunks of the dataset for each batch.
            SELECT b.items, chunk.status, chunk.is_consumed
            FROM dataflow.batch b
            CROSS JOIN LATERAL (
                SELECT max(s.status) FILTER (WHERE s.locktype = 'OUT') AS status,
                    bool_or(s.locktype = 'IN' AND s.status = 'DONE') AS is_consumed
                FROM dataflow.datastatus s WHERE s.datasetid = b.datasetid AND s.dataid = b.dataid
            ) AS chunk
            WHERE b.datasetid = p.datasetid AND b.partitioning = p.partitioning
        ) AS b
    ) AS n
    WHERE partitionings.dataset IS NULL OR p.datasetid = partitionings.dataset
    ORDER BY p.datasetid, p.partitioning;
END $$;
COMMENT ON FUNCTION dataflow.partitionings(text) IS 'Partitionings with the state of their batches; consumed: by at least one job';

CREATE OR REPLACE FUNCTION dataflow.delete_partitioning(datasetid text, partitioning text, dry_run boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    found_batches bigint;
BEGIN
    PERFORM dataflow._known_dataset(delete_partitioning.datasetid);
    IF NOT EXISTS (SELECT FROM dataflow.partitioning p WHERE p.datasetid = delete_partitioning.datasetid AND p.partitioning = delete_partitioning.partitioning) THEN
        RAISE EXCEPTION 'dataset % has no partitioning %', datasetid, partitioning USING ERRCODE = 'DF404',
            HINT = coalesce('it has ' || (SELECT string_agg(p.partitioning, ', ' ORDER BY p.partitioning) FROM dataflow.partitioning p WHERE p.datasetid = delete_partitioning.datasetid),
                'it has none');
    END IF;
    SELECT count(*) INTO found_batches FROM dataflow.batch b WHERE b.datasetid = delete_partitioning.datasetid AND b.partitioning = delete_partitioning.partitioning;
    IF NOT dry_run THEN
        -- delete_chunk() refuses a chunk that is being read.
        PERFORM dataflow.delete_chunk(b.datasetid, b.dataid) FROM dataflow.batch b
            WHERE b.datasetid = delete_partitioning.datasetid AND b.partitioning = delete_partitioning.partitioning;
        DELETE FROM dataflow.partitioning p WHERE p.datasetid = delete_partitioning.datasetid AND p.partitioning = delete_partitioning.partitioning;
    END IF;
    RETURN found_batches;
END $$;
COMMENT ON FUNCTION dataflow.delete_partitioning(text, text, boolean) IS
    'Forgets a partitioning and its chunks; what jobs made of them stays. Refused while one is being read. Returns the number of batches';
