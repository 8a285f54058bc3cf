-- How numbers, lists and moments are written for people.

CREATE OR REPLACE FUNCTION dataflow._counted(n bigint, thing text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT n || ' ' || thing || CASE n WHEN 1 THEN '' ELSE 's' END $$;

-- A list that a person reads: the first five, and how many more there are.
CREATE OR REPLACE FUNCTION dataflow._listed(things text[], total bigint) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT array_to_string(things[:5], '; ') || CASE WHEN total > 5 THEN format(' (and %s more)', total - 5) ELSE '' END
$$;

CREATE OR REPLACE FUNCTION dataflow._stamp(moment timestamptz) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT to_char(moment, 'YYYY-MM-DD HH24:MI:SSOF') $$;
