"""Sessions of dataflowd set the settings that its decisions need, whatever the defaults of the database, the role or the DSN."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import anyio
import psycopg
import pytest
from psycopg import sql
from pydantic import SecretStr

from dataflowd.database import db
from dataflowd.database import session as links
from tests.fix_daemon import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataflowd.host.settings import Settings
    from tests.fix_daemon import Shop, StartDaemon
    from tests.fix_postgres import RunCtl, Server

STRANGE = {
    "default_transaction_isolation": "repeatable read",
    "DateStyle": "German",
    "IntervalStyle": "sql_standard",
    "bytea_output": "escape",
    "extra_float_digits": "-5",
    "transform_null_equals": "on",
    "TimeZone": "Asia/Kolkata",
}
SHOWN = "SELECT lower(name), setting FROM pg_settings WHERE lower(name) = ANY (%s)"
# Records the isolation level of each session that writes an event.
WITNESS = """
    CREATE TABLE public.witness (application text, isolation text);
    GRANT INSERT ON public.witness TO PUBLIC;
    CREATE FUNCTION public.witness() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO public.witness VALUES (current_setting('application_name'), current_setting('transaction_isolation'));
        RETURN NULL;
    END $$;
    CREATE TRIGGER witness AFTER INSERT ON dataflow.event FOR EACH STATEMENT EXECUTE FUNCTION public.witness();
"""


@pytest.fixture(params=["database", "role"])
def strange(request: pytest.FixtureRequest, server: Server, dsn: str) -> Iterator[None]:
    """Sets defaults that change what a statement sees and how values are written."""
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname" if request.param == "database" else "user"]
    which = sql.SQL(request.param.upper())
    try:
        for setting, value in STRANGE.items():
            change = sql.SQL("ALTER {} {} SET {} = {}")
            server.execute(change.format(which, sql.Identifier(str(name)), sql.Identifier(setting), value))
        yield
    finally:
        server.execute(sql.SQL("ALTER {} {} RESET ALL").format(which, sql.Identifier(str(name))))


def shown(rows: list[tuple[str, str]]) -> dict[str, str]:
    return dict(rows) | {"datestyle": dict(rows)["datestyle"].partition(",")[0]}


@pytest.mark.usefixtures("strange")
def test_sessions_of_commands_and_daemons_have_the_pinned_settings(settings: Settings, dsn: str) -> None:
    expected = {name.lower(): value for name, value in db.PINNED.items()}
    # The DSN's own `options` do not win either. The value has a space, which must stay.
    own = settings.model_copy(update={"dsn": SecretStr(f"{dsn} options='-c DateStyle=SQL,\\\\ DMY'")})
    with db.connect(own) as connection:
        found = connection.execute(SHOWN, [[*expected, "timezone"]]).fetchall()
    assert shown(found) == expected | {"timezone": "Asia/Kolkata"}

    async def of_a_daemon() -> list[tuple[str, str]]:
        async with await links.connect(own, lambda: db.dsn(own), "dataflowd d1", seconds=5) as opened:
            return [
                (name, value)
                for name, value in await (await opened.execute(SHOWN, [[*expected, "timezone"]])).fetchall()
            ]

    assert shown(anyio.run(of_a_daemon)) == expected | {"timezone": "UTC"}


@pytest.mark.usefixtures("strange")
def test_daemons_and_operators_work_in_read_committed(
    shop: Shop, start_daemon: StartDaemon, run_ctl: RunCtl
) -> None:
    shop.connection.execute(WITNESS)
    shop.connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # for the test's own session
    shop.job("true")
    shop.connection.execute("DELETE FROM public.witness")
    start_daemon()
    assert run_ctl("ready", "raw", "1").returncode == 0
    eventually(lambda: shop.count("READY") == 1)
    assert json.loads(run_ctl("status", "--json").stdout)
    found = shop.connection.execute("SELECT DISTINCT application, isolation FROM public.witness").fetchall()
    assert {application for application, _ in found} >= {"dataflowctl", "dataflowd d1"}
    assert {isolation for _, isolation in found} == {"read committed"}
