-- Where the data of a chunk lies, for people and programs.

-- The formats whose data is files that dataflowd itself lists and reads: dataflowd.model.formats.FILES, see tests/sql/test_rules.py.
CREATE OR REPLACE FUNCTION dataflow._is_files(format text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT format IN ('csv', 'json', 'parquet', 'orc', 'text') $$;

CREATE OR REPLACE FUNCTION dataflow.data_location(datasetid text, dataid text) RETURNS TABLE (
    status text, version integer, format text, location text, files jsonb, rows bigint, bytes bigint,
    hostname text, port integer, database text, schemaname text, tablename text, username text, encryptedpass text, columns text, options jsonb
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_dataset(data_location.datasetid);
    PERFORM dataflow._checked_dataid(data_location.dataid);
    RETURN QUERY
    SELECT s.status, s.version, d.format,
        coalesce(m.location, dataflow._chunk_location(d, data_location.dataid)), m.files, m.rows, m.bytes,
        d.hostname, d.port, d.database, d.schemaname, d.tablename, d.username, d.encryptedpass, d.columns, d.options
    FROM dataflow.dataset d
    LEFT JOIN dataflow.datastatus s ON s.datasetid = d.datasetid AND s.dataid = data_location.dataid AND s.locktype = 'OUT'
    LEFT JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest
    WHERE d.datasetid = data_location.datasetid;
END $$;
COMMENT ON FUNCTION dataflow.data_location(text, text) IS
    'Where a chunk lies, with all that is needed to reach it: the location of the published version, else the location that the dataset declares';

-- Where a chunk without a manifest lies. Below the location of a job's output lie the directories of all chunks, so the chunk's own is added.
CREATE OR REPLACE FUNCTION dataflow._chunk_location(d dataflow.dataset, dataid text) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN strpos(d.location, '{dataid}') = 0 AND EXISTS (SELECT FROM dataflow.job_output o WHERE o.datasetid = d.datasetid)
        THEN rtrim(d.location, '/') || '/dataid=' || dataid ELSE replace(d.location, '{dataid}', dataid) END
$$;

-- For programs that read a whole dataset from outside. One statement sees one moment, and gc keeps the versions that it names for
-- gc_retention. While a chunk is being made again, or after its next version has failed, the view shows the version before; a held chunk
-- is not shown.
CREATE OR REPLACE VIEW dataflow.published AS
SELECT s.datasetid::text, s.dataid::text, coalesce(m.version, s.version) AS version, d.format, coalesce(m.location, dataflow._chunk_location(d, s.dataid)) AS location,
    m.rows, m.bytes, m.columns, m.published, s.status
FROM dataflow.datastatus s
JOIN dataflow.dataset d ON d.datasetid = s.datasetid
LEFT JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest
WHERE s.locktype = 'OUT' AND (s.status = 'READY'
    OR (m.collected IS NULL AND m.version IS NOT NULL AND s.status NOT IN ('HOLD', 'PENDING') AND s.manifest IS DISTINCT FROM s.rejected));
COMMENT ON COLUMN dataflow.published.status IS 'READY; or the status of the next version: RESUBMIT, RUNNING, FAILED. Held chunks, and versions that were set to FAILED by hand, have no row';
COMMENT ON VIEW dataflow.published IS
    'The published version of every chunk that has one, for readers from outside: SELECT location FROM dataflow.published WHERE datasetid = ''orders''';
COMMENT ON COLUMN dataflow.published.location IS 'Directory, file or table of the published version; for a chunk from outside, the location that its dataset declares';

CREATE OR REPLACE FUNCTION dataflow.next_inputs(jobid text) RETURNS TABLE (
    run text, datasetid text, dataid text, status text, version integer, format text, location text, files jsonb, rows bigint, bytes bigint,
    hostname text, port integer, database text, schemaname text, tablename text, username text, encryptedpass text, columns text, options jsonb
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_job(next_inputs.jobid);
    RETURN QUERY
    SELECT w.dataid::text, i.datasetid, i.dataid, l.*
    FROM (
        SELECT q.dataid FROM dataflow.work q WHERE q.jobid || '' = next_inputs.jobid AND q.not_before IS NULL
        ORDER BY q.sortkey LIMIT 1
    ) AS w
    CROSS JOIN LATERAL dataflow.required_inputs(next_inputs.jobid, w.dataid) AS i
    CROSS JOIN LATERAL dataflow.data_location(i.datasetid, i.dataid) AS l;
END $$;
COMMENT ON FUNCTION dataflow.next_inputs(text) IS
    'The input chunks of the run that a job would do next: neither processed nor being processed, with all that is needed to read them';

-- Where a chunk lies, in words: a path, or a table. dataid NULL: the dataset as a whole, as it is declared.
CREATE OR REPLACE FUNCTION dataflow._place(d dataflow.dataset, dataid text) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN CASE
        WHEN d.location IS NOT NULL THEN CASE WHEN _place.dataid IS NULL THEN d.location ELSE dataflow._chunk_location(d, _place.dataid) END
        WHEN d.tablename IS NOT NULL THEN format('table %s%s%s', d.schemaname || '.', d.tablename,
            ' on ' || nullif(concat_ws('/', d.hostname || coalesce(':' || d.port, ''), d.database), '')) END;
END $$;

-- The directory below which attempts write. With publish = "rename" the location itself holds the fixed paths.
CREATE OR REPLACE FUNCTION dataflow._written_to(d dataflow.dataset) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT CASE d.publish WHEN 'rename' THEN rtrim(d.location, '/') || '/.attempts' ELSE d.location END $$;

CREATE OR REPLACE FUNCTION dataflow.fixed_paths(after_dataset text DEFAULT '', after_dataid text DEFAULT '', at_most integer DEFAULT 5000)
RETURNS TABLE (datasetid text, dataid text, location text, current text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.datasetid::text, s.dataid::text, d.location, m.location
    FROM dataflow.dataset d
    JOIN dataflow.datastatus s ON s.datasetid = d.datasetid AND s.locktype = 'OUT'
    JOIN dataflow.manifest m ON m.datasetid = s.datasetid AND m.dataid = s.dataid AND m.version = s.manifest
    WHERE d.publish = 'rename' AND (d.datasetid::text, s.dataid::text) > (after_dataset, after_dataid)
    ORDER BY d.datasetid::text, s.dataid::text
    LIMIT at_most
$$;
COMMENT ON FUNCTION dataflow.fixed_paths(text, text, integer) IS
    'Chunks that are published at a fixed path, location/dataid=<id>, and the directory that each path has to point to; a page at a time';
