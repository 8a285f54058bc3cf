-- Keys and sealed passwords. The database cannot open them: the private keys are files on the hosts that run jobs.

CREATE OR REPLACE FUNCTION dataflow.add_key(suite text, public_key bytea) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    -- The id is a hash of the key, so that no other key can have it.
    born constant text := left(encode(sha256(convert_to('dataflowd ' || add_key.suite || ' ', 'UTF8') || add_key.public_key), 'hex'), 32);
BEGIN
    IF coalesce(add_key.suite NOT IN ('mlkem768-x25519', 'x25519'), true) THEN
        RAISE EXCEPTION 'there is no suite %', coalesce(suite, 'NULL') USING ERRCODE = 'DF400', HINT = 'the suites are mlkem768-x25519 and x25519';
    END IF;
    IF coalesce(length(add_key.public_key) <> CASE add_key.suite WHEN 'x25519' THEN 32 ELSE 1216 END, true) THEN
        RAISE EXCEPTION 'suite % has no public keys of % bytes', suite, coalesce(length(public_key), 0) USING ERRCODE = 'DF400',
            HINT = 'make one with `dataflowctl key generate`';
    END IF;
    INSERT INTO dataflow.key (keyid, suite, public_key) VALUES (born, add_key.suite, add_key.public_key) ON CONFLICT (keyid) DO NOTHING;
    IF FOUND THEN
        INSERT INTO dataflow.event (kind, to_status, reason) VALUES ('credential', 'KEY_ADDED', born);
    END IF;
    RETURN born;
END $$;
COMMENT ON FUNCTION dataflow.add_key(text, bytea) IS 'Stores a public key, with which passwords are sealed from now on; returns its id';

CREATE OR REPLACE FUNCTION dataflow.retire_key(keyid text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    used text;
BEGIN
    SELECT min(d.datasetid::text) INTO used FROM dataflow.dataset d WHERE split_part(d.encryptedpass, '.', 3) = retire_key.keyid;
    IF used IS NOT NULL THEN
        RAISE EXCEPTION 'key % is in use by dataset %', keyid, used USING ERRCODE = 'DF409', HINT = 'run `dataflowctl key rotate` first';
    END IF;
    UPDATE dataflow.key k SET retired = now() WHERE k.keyid = retire_key.keyid AND k.retired IS NULL;
    IF FOUND THEN
        INSERT INTO dataflow.event (kind, to_status, reason) VALUES ('credential', 'KEY_RETIRED', keyid);
    END IF;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION dataflow.retire_key(text) IS 'Retires a key: no password is sealed with it any more; false: it was retired already, or there is no such key';

CREATE OR REPLACE FUNCTION dataflow.sealing_key() RETURNS TABLE (keyid text, suite text, public_key bytea)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT k.keyid, k.suite, k.public_key FROM dataflow.key k WHERE k.retired IS NULL ORDER BY k.created DESC, k.keyid LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no key to seal with' USING ERRCODE = 'DF404', HINT = 'make one with `dataflowctl key generate`, on the host that runs the jobs';
    END IF;
END $$;
COMMENT ON FUNCTION dataflow.sealing_key() IS 'The key that passwords are sealed with: the newest that is not retired';

CREATE OR REPLACE FUNCTION dataflow.seal(datasetid text, sealed text, was text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM dataflow._known_dataset(seal.datasetid);
    IF coalesce(seal.sealed !~ '^dataflowd-sealed-v[12][.][a-z0-9-]+[.][0-9a-f]{32}[.][A-Za-z0-9_-]+$', true) OR length(seal.sealed) > 20000 THEN
        RAISE EXCEPTION 'this is no sealed password' USING ERRCODE = 'DF400',
            HINT = 'seal it with `dataflowctl seal`; a password that was sent here in the clear has to be changed';
    END IF;
    IF NOT EXISTS (SELECT FROM dataflow.key k WHERE k.keyid = split_part(seal.sealed, '.', 3) AND k.retired IS NULL) THEN
        RAISE EXCEPTION 'it is sealed with key %, which is not in use', split_part(sealed, '.', 3) USING ERRCODE = 'DF409',
            HINT = '`dataflowctl key list` shows the keys';
    END IF;
    UPDATE dataflow.dataset d SET encryptedpass = seal.sealed, modified = now()
        WHERE d.datasetid = seal.datasetid AND (seal.was IS NULL OR d.encryptedpass = seal.was);
    IF FOUND THEN
        INSERT INTO dataflow.event (kind, datasetid, to_status, reason)
        VALUES ('credential', datasetid, 'SEALED', 'key ' || split_part(sealed, '.', 3));
    END IF;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION dataflow.seal(text, text, text) IS
    'Stores a sealed password of a dataset. False: the password that it should replace has changed meanwhile';

CREATE OR REPLACE VIEW dataflow.keys AS
SELECT k.keyid, k.suite, k.created, k.retired, count(d.datasetid) AS datasets,
    k.retired IS NULL AND k.created >= ALL (SELECT o.created FROM dataflow.key o WHERE o.retired IS NULL) AS is_current
FROM dataflow.key k LEFT JOIN dataflow.dataset d ON split_part(d.encryptedpass, '.', 3) = k.keyid
GROUP BY k.keyid ORDER BY k.created DESC, k.keyid;
COMMENT ON VIEW dataflow.keys IS 'Every key, and how many passwords are sealed with it';
COMMENT ON COLUMN dataflow.keys.datasets IS 'How many datasets have a password that is sealed with it';
COMMENT ON COLUMN dataflow.keys.is_current IS 'Whether new passwords are sealed with it';
