"""The owner of the database changes where datasets are. The host refuses, because its flow files say otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

import anyio
import pytest
from psycopg import sql

from dataflowd import flow
from dataflowd.engine.orders import Orders
from dataflowd.flow.loaded import Declared
from dataflowd.host import keyfile, seal
from dataflowd.host.settings import Current
from dataflowd.model.faults import AttemptError
from tests.attempts import claimed
from tests.fix_daemon import daemons

if TYPE_CHECKING:
    from dataflowd.host.settings import Settings
    from dataflowd.model.attempt import Attempt
    from dataflowd.model.work_order import Order
    from tests.fix_postgres import RunCtl
    from tests.fix_world import World

SECRET = "opened-by-the-job-alone"  # noqa: S105 - used in this test only
FLOW = """
[flow]
name = "steal"
[dataset.raw]
format = "csv"
location = "{root}/raw/{dataid}.csv"
[dataset.bank]
format = "postgres"
hostname = "localhost"
port = 5432
database = "bank"
schemaname = "public"
tablename = "accounts"
username = "etl"
[dataset.clean]
format = "csv"
location = "{root}/clean"
[dataset.fixed]
format = "csv"
location = "{root}/fixed"
publish = "rename"
[job.steal]
command = ["./steal.sh"]
inputs = ["raw", "bank"]
outputs = ["clean", "fixed"]
"""
# The script stores its environment, and publishes the content of its input.
SCRIPT = """#!/bin/sh
env > "{kept}"
cp "$raw_location" "$clean_location/part-1.csv"
cp "$raw_location" "$fixed_location/part-1.csv"
"""
CHANGES: list[tuple[str, str, Any]] = [
    ("raw", "format", "postgres"),
    ("raw", "format", "none"),
    ("raw", "location", "{root}/other/{dataid}.csv"),
    ("raw", "location", None),
    ("raw", "hostname", "localhost"),
    ("bank", "format", "jdbc"),
    ("bank", "hostname", "evil.example"),
    ("bank", "hostname", None),
    ("bank", "port", 5433),
    ("bank", "port", None),
    ("bank", "database", "host=evil.example"),
    ("bank", "schemaname", "private"),
    ("bank", "tablename", "wages"),
    ("bank", "username", "postgres"),
    ("bank", "location", "{root}/raw/1.csv"),
    ("clean", "format", "jdbc"),
    ("clean", "location", "{root}/raw"),
    ("clean", "publish", "rename"),
    ("fixed", "publish", "pointer"),
]


@dataclass
class Host:
    """This host: its flow file, and the daemon's half of an order."""

    settings: Settings
    world: World
    file: Path
    kept: Path

    @property
    def root(self) -> Path:
        return Path(self.settings.effective_root)

    def write(self, text: str = FLOW) -> None:
        self.file.write_text(text, encoding="utf-8")

    def apply(self) -> None:
        flow.apply(self.world.connection, flow.load(self.file, self.settings))

    def arrive(self, *dataids: str) -> None:
        (self.root / "raw").mkdir(parents=True, exist_ok=True)
        for dataid in dataids:
            (self.root / "raw" / f"{dataid}.csv").write_text("1\n", encoding="ascii")
            for dataset in ("raw", "bank"):
                self.world.do("SELECT dataflow.ready(%s, %s)", dataset, dataid)

    def claim(self) -> Attempt:
        return claimed(self.world.daemon().claim_one())

    def order(self, attempt: Attempt, declared: Declared) -> Order:
        async def ask() -> Order:
            orders = Orders(Current(self.settings))
            try:
                [taken] = [each async for each in orders.take([attempt])]
                return (await orders.ordered(taken, declared)).order
            finally:
                await orders.close()

        return anyio.run(ask)

    def refused(self, attempt: Attempt, declared: Declared) -> AttemptError:
        with pytest.raises(AttemptError) as refused:
            self.order(attempt, declared)
        assert (refused.value.code, refused.value.retry) == ("INVALID_ORDER", False)
        return refused.value

    def rewrite(self, statement: LiteralString, *parameters: Any) -> None:
        """Changes rows as the owner of the database can, without our triggers."""
        self.world.as_framework("ALTER TABLE dataflow.dataset DISABLE TRIGGER USER")
        self.world.do(statement, *parameters)

    def last(self) -> dict[str, Any]:
        return dict(
            self.world.value("SELECT to_jsonb(a) FROM dataflow.attempt a ORDER BY attempt DESC LIMIT 1")
        )


@pytest.fixture
def host(world: World, settings: Settings, tmp_path: Path) -> Host:
    found = Host(
        settings.model_copy(update={"flows": [tmp_path / "flow.toml"]}),
        world,
        tmp_path / "flow.toml",
        tmp_path / "kept",
    )
    (tmp_path / "steal.sh").write_text(SCRIPT.format(kept=found.kept), encoding="utf-8")
    (tmp_path / "steal.sh").chmod(0o755)
    found.write()
    found.apply()
    found.arrive("1")
    return found


def test_what_differs_from_the_flow_file_is_refused_and_named(host: Host) -> None:
    declared, attempt = Declared(host.settings), host.claim()
    host.order(attempt, declared)
    for dataset, column, value in CHANGES:
        changed = value.replace("{root}", str(host.root)) if isinstance(value, str) else value
        [[before]] = host.world.rows(_select(column), dataset)
        host.rewrite(_update(column), changed, dataset)
        error = host.refused(attempt, declared)
        said = f"{column} is {_shown(before)} in the file and {_shown(changed)} in the database"
        assert f"dataset {dataset} is not what {host.file} declares" in error.message
        assert said in error.message
        assert f"`dataflowctl apply {host.file}`" in error.remedy
        host.rewrite(_update(column), before, dataset)
    host.order(attempt, declared)


def _select(column: str) -> Any:
    return sql.SQL("SELECT {} FROM dataflow.dataset WHERE datasetid = %s").format(sql.Identifier(column))


def _update(column: str) -> Any:
    return sql.SQL("UPDATE dataflow.dataset SET {} = %s WHERE datasetid = %s").format(sql.Identifier(column))


def _shown(value: Any) -> str:
    return "not given" if value is None else repr(value)


def test_a_function_that_the_owner_has_replaced_sends_no_output_elsewhere(host: Host) -> None:
    """A replaced function may return anything. The flow file also decides the directory that an attempt writes."""
    declared, attempt = Declared(host.settings), host.claim()
    host.world.as_framework(
        "CREATE OR REPLACE FUNCTION dataflow._written_to(d dataflow.dataset) RETURNS text LANGUAGE sql STABLE "
        "AS $$ SELECT d.location || '/../raw' $$"
    )
    assert "location is" in host.refused(attempt, declared).message


@pytest.mark.parametrize(
    "said",
    [
        "'trial', jsonb_build_object('share', '0.1')",
        "'code', 'os:system'",
        "'kind', 'python'",
        "'directory', '/'",
        "'allowed_roots', jsonb_build_array('/')",
        "'allowed_hosts', jsonb_build_array('evil.example')",
        "'quarantine', 1000000",
    ],
)
def test_the_database_says_nothing_that_is_the_hosts_to_say(host: Host, said: LiteralString) -> None:
    """For example, an attempt as a trial would publish a sample instead of the whole chunk."""
    declared, attempt = Declared(host.settings), host.claim()
    host.world.as_framework(
        "CREATE OR REPLACE FUNCTION dataflow.work_order(attempt bigint, token uuid) RETURNS jsonb LANGUAGE sql STABLE "
        "AS $$ SELECT dataflow._order(a.jobid, a.dataid, a.inputs) || jsonb_build_object(" + said + ") "
        "FROM dataflow.attempt a WHERE a.attempt = $1 $$"
    )
    assert "which is not the database's to say" in host.refused(attempt, declared).message


def test_a_job_reads_and_writes_no_more_than_its_flow_file_says(host: Host) -> None:
    declared, attempt = Declared(host.settings), host.claim()
    host.rewrite(
        "INSERT INTO dataflow.dataset (datasetid, format, location) VALUES ('wages', 'csv', %s)",
        f"{host.root}/wages",
    )
    host.rewrite("INSERT INTO dataflow.job_input (jobid, datasetid) VALUES ('steal', 'wages')")
    said = host.refused(attempt, declared).message
    assert f"the job steal reads bank, raw in {host.file} and bank, raw, wages in the database" in said


def test_a_flow_file_counts_as_the_daemon_read_it_or_as_it_is_on_disk(host: Host) -> None:
    """After `apply` a daemon may not have been reloaded yet: until then the new file on the disk counts too."""
    declared, attempt = Declared(host.settings), host.claim()
    moved = FLOW.replace("{root}/raw", "{root}/moved")
    host.write(moved)
    assert host.order(attempt, declared)  # edited, not applied
    host.apply()
    assert host.order(attempt, declared)  # applied, not reloaded
    host.write(moved.replace("[job.steal]", "[job.steal"))
    assert (
        "raw/{dataid}.csv' in the file" in host.refused(attempt, declared).message
    )  # the file cannot be read
    host.write(FLOW.replace("{root}/raw", "{root}/elsewhere"))
    said = host.refused(attempt, declared).message
    assert "elsewhere/{dataid}.csv' in the file and" in said
    assert "moved/{dataid}.csv' in the database" in said
    host.write(moved)
    assert host.order(attempt, declared)


def test_a_configuration_counts_from_the_moment_when_it_was_applied(host: Host) -> None:
    """A chunk that is made with the new configuration is not stale, even if no daemon was reloaded."""
    declared, attempt = Declared(host.settings), host.claim()
    before = host.order(attempt, declared)
    host.write(FLOW.replace("[job.steal]", "[job.steal]\nquarantine = 0.25"))
    assert host.order(attempt, declared) == before  # edited, not applied
    host.apply()
    after = host.order(attempt, declared)
    assert (before.quarantine, after.quarantine) == (None, 0.25)
    applied = host.world.value("SELECT config_hash FROM dataflow.job WHERE jobid = 'steal'")
    assert before.config_hash != after.config_hash == applied
    host.write(FLOW)
    mixed = host.order(attempt, declared)  # no file has the applied configuration
    assert mixed.quarantine is None
    assert mixed.config_hash not in {before.config_hash, after.config_hash}


def outside(host: Host) -> str:
    """A file that no job may read."""
    path = host.file.parent / "outside" / "secret.csv"
    path.parent.mkdir()
    path.write_text("secret\n", encoding="ascii")
    return str(path)


def sealed(host: Host, hostname: str) -> str:
    """An operator was tricked into sealing the password again, for the host that is in the row now."""
    key = seal.generate(seal.PLAIN)
    keyfile.add(host.settings.data_dir / "key", [keyfile.line(key)])
    return seal.seal(SECRET, key.public, seal.Binding("bank", "etl", hostname, "bank"))


def test_a_daemon_gives_a_script_no_file_outside_the_roots(host: Host) -> None:
    host.rewrite(
        "UPDATE dataflow.dataset SET format = 'postgres', location = %s WHERE datasetid = 'raw'",
        outside(host),
    )
    with daemons(host.world.dsn, host.file, host.file.parent) as start:
        assert start("--once", wait=False).ended() == 1
    assert host.last()["code"] == "INVALID_ORDER"
    assert not host.kept.exists()
    assert not list(host.root.glob("clean/**/*.csv"))


@pytest.mark.parametrize("kind", ["csv", "text", "delta", "postgres", "jdbc", "none"])
def test_a_script_without_a_flow_file_gets_no_file_outside_the_roots(
    host: Host, run_ctl: RunCtl, kind: str
) -> None:
    """No file of the host declares the dataset, so the allowed roots limit it, whatever its format."""
    host.rewrite(
        "UPDATE dataflow.dataset SET format = %s, location = %s WHERE datasetid = 'raw'", kind, outside(host)
    )
    host.file.unlink()
    ran = run_ctl("run", str(host.file.parent / "steal.sh"))
    assert ran.returncode != 0
    assert (host.last()["code"], host.last()["started"]) == ("INVALID_PATH", None)
    assert "secret.csv is outside the allowed roots" in host.last()["error"]
    assert not host.kept.exists()


@pytest.mark.parametrize("kind", ["postgres", "jdbc", "none", "csv"])
def test_a_script_without_a_flow_file_gets_no_password_beside_a_foreign_host(
    host: Host, run_ctl: RunCtl, kind: str
) -> None:
    host.rewrite(
        "UPDATE dataflow.dataset SET format = %s, hostname = 'evil.example', encryptedpass = %s WHERE datasetid = 'bank'",
        kind,
        sealed(host, "evil.example"),
    )
    host.file.unlink()
    ran = run_ctl("run", str(host.file.parent / "steal.sh"))
    assert ran.returncode != 0
    assert host.last()["code"] == "INVALID_PATH"
    assert "evil.example is no host that tables may be on here" in host.last()["error"]
    assert not host.kept.exists()


def test_a_script_without_a_flow_file_gets_no_connection_string(host: Host, run_ctl: RunCtl) -> None:
    """`psql -h "$bank_hostname" -d "$bank_database"` would connect to the host in that string."""
    host.rewrite("UPDATE dataflow.dataset SET database = 'host=evil.example' WHERE datasetid = 'bank'")
    host.file.unlink()
    run_ctl("run", str(host.file.parent / "steal.sh"))
    assert host.last()["code"] == "INVALID_ORDER"
    assert "is a connection string" in host.last()["error"]
    assert not host.kept.exists()
