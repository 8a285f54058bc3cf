-- The words that a person adds to the command of an attempt when calling it. They are kept for history; nothing executes them.

CREATE OR REPLACE FUNCTION dataflow.add_words(attempt bigint, token uuid, words text[]) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    secret constant text := dataflow._secret_names();
BEGIN
    IF words IS NULL OR cardinality(words) > 10000 OR EXISTS (SELECT FROM unnest(words) AS w WHERE w IS NULL) OR length(array_to_string(words, '')) > 1000000 THEN
        RAISE EXCEPTION 'these cannot be the words of a command' USING ERRCODE = 'DF400', HINT = 'give up to 10000 of them, none of them NULL, of a million characters';
    END IF;
    -- Everybody who reads attempts sees the words, so values whose names look like secrets, and passwords in URLs, are masked.
    UPDATE dataflow.attempt a SET words = ARRAY(
        SELECT CASE
            WHEN lag(w.word) OVER (ORDER BY w.place) ~* ('^-+[a-z0-9_-]*' || secret || '[a-z0-9_-]*$') THEN '***'
            WHEN w.word ~* ('^[a-z0-9_-]*' || secret || '[a-z0-9_-]*=') THEN split_part(w.word, '=', 1) || '=***'
            ELSE dataflow._without_secrets(to_jsonb(w.word)) #>> '{}' END
        FROM unnest(add_words.words) WITH ORDINALITY AS w (word, place) ORDER BY w.place) WHERE a.attempt = add_words.attempt AND a.token = add_words.token AND a.ended IS NULL;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION dataflow.add_words(bigint, uuid, text[]) IS
    'Keeps the words that a person has added to the command of an attempt, or executes instead of its code; false: the attempt is fenced, stop';

-- For people: as one would type them. NULL: nothing was added.
CREATE OR REPLACE FUNCTION dataflow._words_text(words text[]) RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT string_agg(CASE WHEN w.word ~ '^[A-Za-z0-9_@%+=:,./-]+$' THEN w.word ELSE '''' || replace(w.word, '''', '''"''"''') || '''' END, ' ' ORDER BY w.place)
    FROM unnest(words) WITH ORDINALITY AS w (word, place)
$$;
