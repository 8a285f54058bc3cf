-- The four roles. They belong to the server and not to this database, so another database's init may be making
-- them at this moment.
DO $$
DECLARE
    role_name text;
BEGIN
    FOREACH role_name IN ARRAY ARRAY['dataflow_admin', 'dataflow_operator', 'dataflow_reader', 'dataflow_daemon'] LOOP
        BEGIN
            IF to_regrole(role_name) IS NULL THEN
                EXECUTE format('CREATE ROLE %I NOLOGIN', role_name);
            END IF;
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN NULL;
            WHEN insufficient_privilege THEN
                RAISE EXCEPTION 'this user may not create the role %', role_name USING
                    ERRCODE = 'DF409',
                    HINT = 'run `dataflowctl init` once as a superuser, or create dataflow_admin, dataflow_operator, '
                        'dataflow_reader and dataflow_daemon (NOLOGIN) and grant dataflow_admin to this user';
        END;
    END LOOP;
    IF NOT pg_has_role(current_user, 'dataflow_admin', 'MEMBER') THEN
        EXECUTE format('GRANT dataflow_admin TO %I', current_user);
    END IF;
END $$;

-- Everything belongs to dataflow_admin; the framework's functions run as it, and that is how the rules of
-- datastatus tell the framework's writes from a person's.
DO $$
BEGIN
    IF (SELECT nspowner FROM pg_namespace WHERE nspname = 'dataflow') <> 'dataflow_admin'::regrole THEN
        ALTER SCHEMA dataflow OWNER TO dataflow_admin;
        ALTER TABLE dataflow.migration OWNER TO dataflow_admin;
    END IF;
END $$;
