-- The release of the schema, and the oldest release that it serves. During a rolling upgrade daemons of two releases work on one database:
-- the schema is upgraded first, and serves programs of the release before until the last of them is restarted. Therefore every function
-- that a released program calls (tests/upgrade/kept lists them) keeps its name, its arguments and its columns for one release more.
CREATE OR REPLACE FUNCTION dataflow.schema_version(OUT made_by text, OUT serves_from text)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT '0.1.0', '0.1.0' $$;
COMMENT ON FUNCTION dataflow.schema_version() IS
    'The release of dataflowd that made this schema, and the oldest one whose daemons and commands may still use it';
