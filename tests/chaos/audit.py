"""What the harness adds to the database: copies of deleted rows, a record of validations, and traps for search paths.

Triggers of the harness copy rows in the transaction that deletes them, so that the checks know every attempt and every
version that ever existed. Nothing here changes what the product does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psycopg

EVIL = "evil"  # first in the search path of a hostile session

AUDIT = """
CREATE SCHEMA chaos;
CREATE TABLE chaos.attempt (LIKE dataflow.attempt, deleted timestamptz NOT NULL);
CREATE TABLE chaos.manifest (LIKE dataflow.manifest, deleted timestamptz NOT NULL);
CREATE TABLE chaos.vouched (at timestamptz NOT NULL, datasetid text NOT NULL, dataid text NOT NULL, is_valid boolean NOT NULL);

CREATE FUNCTION chaos.kept() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    EXECUTE format('INSERT INTO chaos.%I SELECT ($1).*, clock_timestamp()', TG_TABLE_NAME) USING OLD;
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_kept AFTER DELETE ON dataflow.attempt FOR EACH ROW EXECUTE FUNCTION chaos.kept();
CREATE TRIGGER chaos_kept AFTER DELETE ON dataflow.manifest FOR EACH ROW EXECUTE FUNCTION chaos.kept();

CREATE FUNCTION chaos.vouch() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    INSERT INTO chaos.vouched VALUES (clock_timestamp(), NEW.datasetid, NEW.dataid, NEW.validated);
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_arrived AFTER INSERT ON dataflow.datastatus FOR EACH ROW
    WHEN (NEW.locktype = 'OUT' AND NOT NEW.validated) EXECUTE FUNCTION chaos.vouch();
CREATE TRIGGER chaos_vouched AFTER UPDATE OF validated ON dataflow.datastatus FOR EACH ROW
    WHEN (NEW.locktype = 'OUT' AND OLD.validated <> NEW.validated) EXECUTE FUNCTION chaos.vouch();
"""
# A function that trusts the caller's search path would call these instead of Postgres' own.
TRAPS = """
CREATE SCHEMA evil;
CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE sql IMMUTABLE AS 'SELECT timestamptz ''2001-01-01 00:00:00+00''';
CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql IMMUTABLE AS 'SELECT timestamptz ''2001-01-01 00:00:00+00''';
CREATE FUNCTION evil.upper(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT ''EVIL''';
CREATE FUNCTION evil.split_part(text, text, integer) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT ''evil''';
CREATE FUNCTION evil.hashtextextended(text, bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 1::bigint';
CREATE TYPE evil.text AS ENUM ('evil');
"""


def install(connection: psycopg.Connection) -> None:
    connection.execute(AUDIT)
    connection.execute(TRAPS)
