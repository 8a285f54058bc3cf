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
    -- An operator and a daemon see what a reader sees.
    FOREACH role_name IN ARRAY ARRAY['dataflow_operator', 'dataflow_daemon'] LOOP
        BEGIN
            IF NOT pg_has_role(role_name, 'dataflow_reader', 'MEMBER') THEN
                EXECUTE format('GRANT dataflow_reader TO %I', role_name);
            END IF;
        EXCEPTION
            WHEN unique_violation THEN NULL;
        END;
    END LOOP;
    -- Since Postgres 16 whoever creates a role is its member, yet may not act as it.
    IF NOT pg_has_role(
        current_user, 'dataflow_admin', CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END
    ) THEN
        EXECUTE format('GRANT dataflow_admin TO %I', current_user);
    END IF;
END $$;

-- Everything belongs to dataflow_admin; the framework's functions run as it, and that is how the rules of
-- datastatus tell the framework's writes from a person's.
DO $$
BEGIN
    IF (SELECT nspowner FROM pg_namespace WHERE nspname = 'dataflow') <> 'dataflow_admin'::regrole THEN
        -- Only a role that may create schemas can be given one.
        EXECUTE format('GRANT CREATE ON DATABASE %I TO dataflow_admin', current_database());
        ALTER SCHEMA dataflow OWNER TO dataflow_admin;
        ALTER TABLE dataflow.migration OWNER TO dataflow_admin;
    END IF;
END $$;
