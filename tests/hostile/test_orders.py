"""A host refuses a row that an attacker has written, with one clear error, and changes nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from psycopg import conninfo

from dataflowd.flow import script_variables
from dataflowd.host import allowed_hosts, allowed_roots, log
from dataflowd.host.settings import Settings
from dataflowd.model import formats
from dataflowd.model.faults import AttemptError
from dataflowd.model.identifiers import DATAID, NAME
from dataflowd.model.masking import printable
from dataflowd.model.work_order import Connection, Dataset, Order
from dataflowd.runner import script, split_source
from dataflowd.runner.execute import execute
from dataflowd.runner.rehearsal import Recorded
from dataflowd.storage import gc
from dataflowd.storage.evidence import Evidence
from dataflowd.storage.tables.place import table_of
from tests.hostile import corpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

UNPRINTABLE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]")
ARGUMENT_BYTES = 100_000  # Linux allows no longer variable
NESTED = json.loads("[" * 40 + "]" * 40)
NO_OBJECT: list[Any] = [[1], "x", 7]
# By the path of the replaced value in an order.
WRONG: dict[str, list[Any]] = {
    "inputs.raw.dataset.format": [*corpus.FORMATS, *corpus.OPTIONS, None, 7],
    "outputs.out.dataset.checks": corpus.CHECKS,
    "outputs.out.dataset.publish": ["exec", None],
    "inputs.raw.dataset.custom_checks": [7],
    "inputs.raw.dataset.evil": [1],
    "inputs.raw.dataset.options": [[], "x", None, {"sep": ["a"]}, {"sep": {"a": 1}}, {"sep": None}],
    "inputs.raw.dataset.connection": [
        *("x", {"port": "5432,1"}, {"port": 1.5}, {"hostname": ["localhost"]}),
        *({"hostaddr": "203.0.113.1"}, {"options": "-c x"}),
    ],
    "inputs.raw.chunks": [
        *(7, "x", [7], [{}], [{"dataid": "d1", "files": [7]}], [{"dataid": "d1", "evil": 1}]),
        [{"dataid": "d1", "batch": {"columns": [1], "bounds": {}}}],
        [{"dataid": "d1", "validated": "no"}],
    ],
    "inputs": NO_OBJECT,
    "outputs": NO_OBJECT,
    "inputs.raw": NO_OBJECT,
    "inputs.raw.dataset": NO_OBJECT,
    "outputs.out": NO_OBJECT,
    "params": [*NO_OBJECT, NESTED, {"a": NESTED}, {"a": "x\0"}, {"\ud800": 1}, {"a": "x" * (1 << 21)}],
    "resolved": [7, [7], [{}], [{"mark": 1, "repaired": None}], [{"mark": "x", "repaired": "DROP"}]],
    "attempt": ["7", "../7", 7.5, None, True, -1, 2**63],
    "tag": [None, 7, "a,b", "x y", "x\n", "../x", "x" * 101, "spark.yarn.tags=x"],
    "forced": ["no", 1, None, []],
    "trial": [
        *(7, "x", [1], {"evil": 1}, {"share": "0.5"}, {"share": "x" * 1000}, {"share": True}, {"share": 0}),
        *({"share": -0.1}, {"share": 1.5}, {"share": float("nan")}, {"share": float("inf")}, {"share": [1]}),
        *({"rows": "5"}, {"rows": 0}, {"rows": -1}, {"rows": 2**31}, {"rows": 1.5}, {"rows": True}),
        *({"seed": "0"}, {"seed": 2**63}, {"seed": None}, {"seed": 0.5}, {"seed": "1) OR (1=1"}),
        *({"shown": "9"}, {"shown": -1}, {"shown": 10**9}, {"shown": None}, {"shown": 1.5}),
    ],
    "inputs.raw.dataset.connection.port": [0, -1, 65536, "5432", True, 5432.0],
    "evil": [1],
}


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A forbidden directory beside the root, and links in the root that lead to it."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "data").mkdir(parents=True)
    (root / "data" / "part.csv").write_text("1\n")
    outside.mkdir()
    (outside / "secret.csv").write_text("secret\n")
    targets = {"link": str(outside), "chain": f"{root}/link", "relative": "../outside", "proc": "/proc/self"}
    for name, target in targets.items():
        (root / name).symlink_to(target)
    before = _tree(tmp_path)
    yield outside
    assert _tree(tmp_path) == before


def _tree(path: Path) -> list[tuple[str, int]]:
    return sorted((str(each), each.lstat().st_mtime_ns) for each in path.rglob("*"))


def document(root: Path, **changes: Any) -> dict[str, Any]:
    """A work order as it comes from the database; a change is named by its path: `inputs.raw.dataset.format`."""
    dataset = {
        "name": "raw",
        "format": "csv",
        "location": f"{root}/data",
        "columns": "id int",
        "options": {},
        "checks": {},
        "connection": {},
    }
    found: dict[str, Any] = {
        "attempt": 7, "number": 1, "jobid": "copy", "dataid": "d1", "tag": "t", "params": {}, "kind": "command", "code": "", "directory": "",
        "inputs": {"raw": {"dataset": dataset, "chunks": [{"dataid": "d1", "version": 1, "location": f"{root}/data", "files": None, "rows": None, "validated": True, "batch": None}]}},
        "outputs": {"out": {"dataset": dataset | {"name": "out", "location": f"{root}/out"}, "location": f"{root}/out"}},
        "allowed_roots": [str(root), "s3a://bucket/data"], "allowed_hosts": ["localhost"],
    }  # fmt: skip
    found = json.loads(json.dumps(found))
    for path, value in changes.items():
        *parents, last = path.split(".")
        at: Any = found
        for name in parents:
            at = at[int(name) if isinstance(at, list) else name]
        at[last] = value
    return found


def refused(act: Callable[..., object], *arguments: Any) -> str:
    """The code of the one clear error; '' if the order was not refused."""
    try:
        act(*arguments)
    except AttemptError as error:
        is_clear = error.remedy and "Traceback" not in str(error) and error.retry is False
        return error.code if is_clear else f"unclear: {error}"
    return ""


def prepared(root: Path, changes: dict[str, Any]) -> None:
    order = Order.parse(document(root, **changes))
    script.prepare(order, Evidence(order))


def parsed(root: Path, changes: dict[str, Any]) -> None:
    Order.parse(document(root, **changes))


def test_the_corpus_has_at_least_five_hundred_values() -> None:
    assert corpus.size() >= 500


def test_an_order_that_nobody_has_touched_is_prepared(outside: Path) -> None:
    order = Order.parse(document(outside.parent / "root", outputs={}))
    script.prepare(order, Evidence(order))


def test_no_location_leaves_the_roots(outside: Path) -> None:
    root = outside.parent / "root"
    taken = []
    for location in corpus.locations(root, outside):
        for change in (
            {"inputs.raw.chunks.0.location": location, "outputs": {}},
            {"outputs.out.location": location},
        ):
            code = refused(prepared, root, change)
            if code not in {"INVALID_PATH", "INVALID_ORDER"}:
                taken.append((location, code))
        if not refused(allowed_roots.check, location, [str(root), "s3a://bucket/data"]):
            taken.append((location, "paths.check"))
    assert taken == []


FORMATS = [*formats.OPTIONS]


@pytest.mark.parametrize("kind", FORMATS)
def test_no_format_switches_the_look_at_locations_off(outside: Path, kind: str) -> None:
    """Neither for a script nor for job code, neither for inputs nor for outputs."""
    root = outside.parent / "root"
    asked = [
        *(str(outside / "secret.csv"), "/etc/passwd", f"{root}/link/secret.csv", f"/{root}/data"),
        *("postgres://evil.example/db/public.t", "postgres://localhost,evil.example/db/public.t"),
        *("postgres://etl@localhost/db/public.t", "postgres://localhost/db/public.t?host=evil.example"),
        *("postgres://evil.example%2Flocalhost/db/public.t", "postgres://localhost:5432@evil.example/db/a.t"),
        *("postgresql://localhost/db/public.t", "jdbc:postgresql://evil.example/db"),
    ]
    for location in asked:
        for path in (
            "inputs.raw.chunks.0.location",
            "inputs.raw.dataset.location",
            "outputs.out.dataset.location",
            "outputs.out.location",
        ):
            side = path.partition(".dataset")[0] if ".dataset" in path else ".".join(path.split(".")[:2])
            changes = {f"{side}.dataset.format": kind, path: location}
            assert refused(prepared, root, changes) == "INVALID_PATH", (path, location)
            assert _run(root, changes) == ("INVALID_PATH", ["prepare"]), (path, location)


@pytest.mark.parametrize("kind", FORMATS)
def test_no_format_switches_the_look_at_hosts_off(outside: Path, kind: str) -> None:
    root = outside.parent / "root"
    for host in corpus.HOSTS:
        if "\0" in host:
            continue  # no order that is parsed has it
        for side in ("inputs.raw", "outputs.out"):
            changes = {f"{side}.dataset.format": kind, f"{side}.dataset.connection": {"hostname": host}}
            assert refused(prepared, root, changes) == "INVALID_PATH", (side, host)
            assert _run(root, changes) == ("INVALID_PATH", ["prepare"]), (side, host)


def _run(root: Path, changes: dict[str, Any]) -> tuple[str | None, list[str]]:
    """Runs an order without Spark: every order is refused before Spark is needed."""
    order = Order.parse(document(root, kind="python", code="dataflowd.jobs:copy", **changes))
    said, no_spark = Recorded(), cast("Any", None)
    return execute(order, no_spark, said, threading.Event()).get("code"), said.steps


def test_a_table_that_was_published_is_where_its_manifest_says(outside: Path) -> None:
    changes = {
        "inputs.raw.dataset.format": "postgres",
        "inputs.raw.chunks.0.location": "postgres://localhost:5433/sales%20db/public.orders",
        "outputs": {},
    }
    assert refused(prepared, outside.parent / "root", changes) == ""


def test_a_path_with_two_slashes_is_allowed(outside: Path) -> None:
    """Release 0.1 wrote two slashes if a location ended with {dataid}/."""
    root = outside.parent / "root"
    for location in (
        "{root}/data/",
        "{root}//data",
        "{root}/./data",
        "file:{root}/data",
        "file://{root}/data",
    ):
        allowed_roots.check(location.replace("{root}", str(root)), [str(root)])
    allowed_roots.check("s3a://bucket/data//x", ["s3a://bucket/data"])


def test_no_location_has_garbage_collected_elsewhere(outside: Path) -> None:
    for location in corpus.locations(outside.parent / "root", outside):
        with suppress(AttemptError):
            found = gc.places("raw", location, [str(outside.parent / "root")])
            for each in [] if isinstance(found, gc.Skipped) else found:
                assert each.fixed.resolve().is_relative_to(outside.parent / "root"), location


def test_a_link_among_the_data_that_leaves_the_root_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root" / "data" / "deep").mkdir(parents=True)
    (tmp_path / "root" / "data" / "deep" / "inside.csv").symlink_to(tmp_path / "root" / "data")
    order = Order.parse(document(tmp_path / "root", outputs={}))
    script.prepare(order, Evidence(order))
    (tmp_path / "root" / "data" / "deep" / "part.csv").symlink_to("/etc/passwd")
    assert refused(script.prepare, order, Evidence(order)) == "INVALID_PATH"


def test_a_split_follows_no_link_that_leaves_the_root(outside: Path) -> None:
    root = str(outside.parent / "root")
    whole = split_source.opened(
        Dataset(name="raw", format="csv", location=root), ["id"], Settings(data_dir=outside.parent, root=root)
    )
    assert refused(whole.__enter__) == "INVALID_PATH"


@pytest.mark.parametrize("path", ["dataid", "inputs.raw.chunks.0.dataid"])
def test_an_order_with_an_invalid_dataid_is_refused(outside: Path, path: str) -> None:
    """The dataid is part of the names of the attempt's log, directory and environment."""
    for text in corpus.texts(outside / "marker"):
        code = refused(parsed, outside.parent / "root", {path: text})
        assert code == ("" if DATAID.fullmatch(text) else "INVALID_ORDER"), text


def test_an_order_with_an_invalid_name_is_refused(outside: Path) -> None:
    root = outside.parent / "root"
    raw, out = document(root)["inputs"]["raw"], document(root)["outputs"]["out"]
    for text in corpus.texts(outside / "marker"):
        named = {
            "jobid": text,
            "inputs": {text: raw | {"dataset": raw["dataset"] | {"name": text}}},
            "outputs": {text: out | {"dataset": out["dataset"] | {"name": text}}},
        }
        for path, value in named.items():
            code = refused(parsed, root, {path: value})
            assert code == ("" if NAME.fullmatch(text) else "INVALID_ORDER"), (path, text)


@pytest.mark.parametrize("side", ["inputs.raw", "outputs.out"])
def test_a_dataset_is_called_by_its_own_name(outside: Path, side: str) -> None:
    """Otherwise a check or the job would ask for one dataset and get another one, with its password."""
    for name in ("wages", "Raw", "raw ", "out" if side == "inputs.raw" else "raw"):
        assert refused(parsed, outside.parent / "root", {f"{side}.dataset.name": name}) == "INVALID_ORDER"


def test_no_option_reaches_spark_that_is_not_listed() -> None:
    taken = [
        (kind, name)
        for kind in formats.OPTIONS
        for name in [*corpus.OPTIONS, *(corpus.TEXTS if kind == "csv" else [])]
        for options in (formats.read_options, formats.write_options)
        if refused(options, "raw", kind, {name: "x"}) != "INVALID_OPTION"
    ]
    assert taken == []


def test_no_value_of_an_option_is_loaded_as_a_class() -> None:
    for kind, name, value in corpus.OPTION_VALUES:
        for options in (formats.read_options, formats.write_options):
            assert refused(options, "raw", kind, {name: value}) == "INVALID_OPTION", (name, value)
    assert (
        formats.write_options("raw", "csv", {"compression": "GZIP", "encoding": "UTF-8"})["compression"]
        == "GZIP"
    )


def test_an_order_with_a_value_of_another_form_is_refused(outside: Path) -> None:
    root = outside.parent / "root"
    taken = [
        (path, value)
        for path, values in WRONG.items()
        for value in values
        if refused(parsed, root, {path: value}) != "INVALID_ORDER"
    ]
    assert taken == []


def test_no_host_is_reached_that_is_not_allowed() -> None:
    for host in [*corpus.HOSTS, *corpus.TEXTS]:
        assert not allowed_hosts.is_allowed(host, None, ["localhost", "db.example:5433"]) or not host, host
        dataset = Dataset(
            name="raw", format="postgres", connection=Connection(hostname=host or "evil", tablename="t")
        )
        assert refused(table_of, dataset, ["localhost"]) == "INVALID_PATH", host


@pytest.mark.parametrize("column", ["database", "username", "schemaname", "tablename"])
def test_other_columns_of_a_connection_do_not_change_its_host(column: str) -> None:
    for text in [*corpus.CONNINFO, *corpus.TEXTS]:
        if "\0" in text or "\ud800" <= max(text, default="") <= "\udfff" or not text:
            continue  # no order that is parsed has it
        there = replace(Connection(hostname="localhost", tablename="t"), **{column: text})  # type: ignore[arg-type]
        login = conninfo.conninfo_to_dict(
            table_of(Dataset(name="raw", format="postgres", connection=there), ["localhost"]).login.conninfo()
        )
        assert login["host"] == "localhost"
        assert login["require_auth"] == "!password"
        assert set(login) <= {"host", "dbname", "user", "connect_timeout", "application_name", "require_auth"}


def test_a_script_gets_every_value_as_it_is_and_nothing_is_executed(outside: Path) -> None:
    """There is no shell. We choose the names of the variables, whatever the names of the parameters are."""
    root, marker = outside.parent / "root", outside / "marker"
    values = [text for text in corpus.texts(marker) if _fits(text)]
    params = {f"p{index}": text for index, text in enumerate(values)}
    named = {text: "x" for text in values if len(text) < 1000}
    order = Order.parse(document(root, params=params, outputs={}))
    assert (
        len({name for name in script_variables.variables(order) if not re.fullmatch(r"[A-Za-z0-9_]+", name)})
        == 0
    )
    for name in named:
        odd = Order.parse(document(root, params={name: "x"}, outputs={}))
        added = (
            script_variables.variables(odd).keys()
            - script_variables.variables(Order.parse(document(root, outputs={}))).keys()
        )
        assert all(re.fullmatch(r"param_[A-Za-z0-9_]*", each) for each in added), name
    env = _environment_of_script(order)
    assert {f"param_{name}": text for name, text in params.items()}.items() <= env.items()
    assert not marker.exists()


def _fits(text: str) -> bool:
    return "\0" not in text and len(text) < ARGUMENT_BYTES and not re.search("[\ud800-\udfff]", text)


def _environment_of_script(order: Order) -> dict[str, str]:
    told = {
        "order": order.document(),
        "before": [],
        "words": ["env", "-0"],
        "env": {"PATH": os.environ["PATH"]},
        "key": {},
    }
    given = os.memfd_create("order", 0)
    os.write(given, json.dumps(told).encode())
    os.lseek(given, 0, os.SEEK_SET)
    receive, send = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-m", "dataflowd.runner.script", str(given), str(send)],
            pass_fds=(given, send), capture_output=True, check=True, timeout=60,
        )  # fmt: skip
    finally:
        for handle in (given, receive, send):
            os.close(handle)
    return dict(line.decode().split("=", 1) for line in done.stdout.split(b"\0") if line)


def test_no_text_forges_a_line_of_a_log_or_steers_a_terminal(outside: Path) -> None:
    for text in corpus.texts(outside / "marker"):
        shown = printable(text)
        assert not UNPRINTABLE.search(shown)
        assert "\n" not in shown
        line = log.console_lines({"event": text, "level": "info", text: text}, colours=False)
        assert not UNPRINTABLE.search(line)
        assert "\n" not in line
