"""Hostile values in the inputs of people and scripts: SQL, the command line, flow files. Refused, or stored as plain text."""

from __future__ import annotations

import json
import os
import re
import sys
import tty
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
import pytest
from psycopg.types.json import Jsonb

from dataflowd import flow
from dataflowd.cli import output, show
from dataflowd.flow.mistakes import FlowMistakesError
from dataflowd.host.settings import Settings
from dataflowd.model.errors import EXIT
from dataflowd.model.identifiers import DATAID, NAME
from tests.hostile import corpus
from tests.terminals import open_terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fix_postgres import RunCtl
    from tests.fix_world import World

DAY = "2026-01-01"
# Each statement gets one hostile text in one place.
AS_DATAID: list[LiteralString] = [
    "SELECT dataflow.ready('raw', %s::text)",
    "SELECT dataflow.ready('raw', ARRAY['2026-01-02', %s])",
    "SELECT dataflow.hold('raw', %s)",
    "SELECT dataflow.release('raw', %s)",
    "SELECT dataflow.validated('raw', %s)",
    "SELECT * FROM dataflow.five_questions('clean_orders', %s)",
    "SELECT * FROM dataflow.data_location('raw', %s)",
    "SELECT dataflow.preview_order('clean_orders', %s)",
]
AS_NAME: list[LiteralString] = [
    "SELECT dataflow.ready(%s, '2026-01-02'::text)",
    "SELECT dataflow.hold(%s, '2026-01-01')",
    "SELECT dataflow.cancel(%s, '2026-01-01')",
    "SELECT dataflow.set_concurrency(%s, 1)",
    "SELECT dataflow.pause('job:' || %s)",
    "SELECT * FROM dataflow.resubmit(jsonb_build_object('job', %s::text))",
    "SELECT * FROM dataflow.resubmit(jsonb_build_object('dataset', %s::text))",
    "SELECT * FROM dataflow.resubmit(jsonb_build_object('status', %s::text))",
    "SELECT * FROM dataflow.resubmit(jsonb_build_object(%s::text, 'x'))",
    "SELECT * FROM dataflow.resubmit(to_jsonb(%s::text))",
    "SELECT dataflow.resolve(%s, '2026-01-01', ARRAY['x'])",
    "SELECT dataflow.create_partitioning(%s, 'p', ARRAY['id'], 'range', 10, '[]')",
    "SELECT dataflow.create_partitioning('raw', %s, ARRAY['id'], 'range', 10, '[]')",
    "SELECT dataflow.create_partitioning('raw', 'p', ARRAY['id'], %s, 10, '[]')",
    "SELECT dataflow.seal('raw', %s)",
    "SELECT dataflow.preview_order(%s, '2026-01-01')",
]
# Patterns and free texts are accepted and have no effect.
AS_TEXT: list[LiteralString] = [
    "SELECT * FROM dataflow.resubmit(jsonb_build_object('dataid', 'no' || %s::text))",
    "SELECT * FROM dataflow.chunks('raw', pattern => 'no' || %s::text)",
    "SELECT dataflow.matches('nothing', 'no' || %s::text)",
    "SELECT dataflow.resolve('clean_orders', '2026-01-01', ARRAY[%s])",
    "SELECT dataflow.sortkey(%s)",
    "SELECT dataflow.cancel('clean_orders', %s)",
]
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]")
STRIDE = 4  # each text goes through every fourth statement, each statement sees every fourth text
OUR_STATES = ("DF", "22", "23")  # our own errors, invalid values, violated constraints


def _storable() -> list[str]:
    """Whether the driver can send the text: no NUL, no half character. Very long texts are left out to save time."""
    found = [text for text in corpus.texts("/nowhere/marker") if not re.search("[\x00\ud800-\udfff]", text)]
    return [text for text in found if len(text) < 100_000]


def test_hostile_texts_in_sql_are_refused_or_stored_as_text(pipeline: World) -> None:
    pipeline.ready("raw", DAY)
    before = pipeline.everything()
    wrong = []
    statements = [*AS_DATAID, *AS_NAME, *AS_TEXT]
    for index, text in enumerate(_storable()):
        for statement in statements[index % STRIDE :: STRIDE]:
            said = _said(pipeline, statement, text)
            is_fine = (
                statement in AS_TEXT
                or (statement in AS_DATAID and DATAID.fullmatch(text))
                or text == "global"
            )
            if said is None and not is_fine:
                wrong.append((statement, text[:50], "accepted"))
            if said is not None and not (said.sqlstate or "").startswith(OUR_STATES):
                wrong.append((statement, text[:50], str(said)))
    assert wrong == []
    assert pipeline.everything() == before


def _said(world: World, statement: LiteralString, text: str) -> psycopg.Error | None:
    """Runs a statement and rolls it back, because a valid dataid among the values would have an effect."""
    with world.connection.transaction(force_rollback=True):
        try:
            with world.connection.transaction():
                world.connection.execute(statement, [text]).fetchall()
        except psycopg.Error as error:
            return error
    return None


def test_a_reason_is_kept_as_it_is_and_shown_without_steering_the_terminal(
    pipeline: World, run_ctl: RunCtl
) -> None:
    texts = [text for text in _storable() if text.strip() and len(text) < 200]
    dataids = [f"d{index}" for index in range(len(texts))]
    for dataid, text in zip(dataids, texts, strict=True):
        pipeline.do("SELECT dataflow.hold('raw', %s, %s)", dataid, text)
    kept: dict[str, str] = dict(
        pipeline.rows("SELECT dataid::text, reason FROM dataflow.datastatus WHERE datasetid = 'raw'")
    )
    assert kept == dict(zip(dataids, texts, strict=True))
    for command in (["chunks", "raw", "--limit", "1000"], ["why", "clean_orders", "d100"], ["history", "clean_orders", "d100"]):  # fmt: skip
        done = run_ctl(*command)
        assert not UNPRINTABLE.search(done.stdout + done.stderr), command
        assert "Traceback" not in done.stderr
    listed = json.loads(run_ctl("chunks", "raw", "--limit", "1000", "--json").stdout)
    assert {row["dataid"]: row["reason"] for row in listed} == kept


def test_only_our_own_colours_reach_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a stored text nor a job's log can control it."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    ours, theirs = open_terminal()
    tty.setraw(theirs)
    with os.fdopen(ours, "rb", buffering=0) as screen, os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        job_output = output.JobOutput(terminal)
        for text in (text for text in _storable() if len(text) < 500):
            output.say(output.bold("ours") + " " + show.cell(text))
            job_output.write(text.encode() + b"\n")
            output.say("end")
            terminal.flush()
            shown = b""
            while not shown.endswith(b"\nend\n"):
                shown += screen.read(1 << 16)
            seen = shown.decode()
            assert seen.startswith("\x1b[1mours\x1b[0m ")
            assert not UNPRINTABLE.search(seen.removeprefix("\x1b[1mours\x1b[0m ")), text


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["ready", "raw", "../../etc/passwd"], "USAGE"),
        (["ready", "raw\x1b[2J", "1"], "NOT_FOUND"),
        (["why", "clean_orders'; DROP SCHEMA dataflow; --", "1"], "NOT_FOUND"),
        (["hold", "--dataset", "$(touch marker)", "--reason", "\x1b]0;x\x07"], "NOT_FOUND"),
        (["logs", "../../etc", "passwd"], "NOT_FOUND"),
        (["env", "clean_orders", "x\u202e/.."], "USAGE"),
        (["apply", "/proc/self/environ\x1b[2J"], "INVALID_FLOW"),
    ],
)
def test_the_command_line_refuses_in_one_error_and_changes_nothing(
    pipeline: World, run_ctl: RunCtl, tmp_path: Path, arguments: list[str], code: str
) -> None:
    pipeline.ready("raw", DAY)
    before = pipeline.everything()
    done = run_ctl(*arguments)
    assert (done.returncode, f"error [{code}]" in done.stderr) == (EXIT[code], True), done.stderr
    assert done.stderr.count("error [") == 1
    assert "Traceback" not in done.stderr
    assert not UNPRINTABLE.search(done.stdout + done.stderr)
    assert pipeline.everything() == before
    assert not list(tmp_path.rglob("marker"))


def _flow(values: dict[str, dict[str, Any]]) -> str:
    """A flow with one dataset for each text. JSON strings are valid in TOML, except for DEL."""
    lines = ["[flow]", 'name = "hostile"']
    for name, columns in values.items():
        lines += [f"[dataset.{name}]", 'format = "csv"']
        lines += [f"{column} = {_toml(value)}" for column, value in columns.items()]
    return "\n".join(lines) + "\n"


def _toml(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _mistakes(path: Path, text: str, settings: Settings) -> set[int]:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FlowMistakesError) as refused:
        flow.load(path, settings)
    assert refused.value.exit_code == EXIT["INVALID_FLOW"]
    return {mistake.line for mistake in refused.value.mistakes}


def test_a_flow_file_has_no_location_outside_the_roots(tmp_path: Path) -> None:
    """Links are not checked here: a flow file may be checked on another host than the one that runs it."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    settings = Settings(data_dir=tmp_path, root=str(root), allowed_roots=[str(root), "s3a://bucket/data"])
    lexical = [
        location
        for location in corpus.locations(root, outside)
        if not re.search("[\ud800-\udfff]|/link|/chain|/relative|/proc/environ", location)
        and len(location.encode()) < 250
    ]
    values = {f"d{index}": {"location": each} for index, each in enumerate(lexical)}
    text = _flow(values)
    lines = text.split("\n")
    wanted = {number for number, line in enumerate(lines, 1) if line.startswith("location")}
    missed = wanted - _mistakes(tmp_path / "flow.toml", text, settings)
    assert [lines[number - 1] for number in sorted(missed)] == []


def test_a_flow_file_names_nothing_by_a_hostile_text(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    texts = {text for text in _storable() if not NAME.fullmatch(text)}
    header = '[flow]\nname = "hostile"\n'
    text = header + "".join(f'[dataset.{_toml(each)}]\nformat = "none"\n' for each in sorted(texts))
    found = _mistakes(tmp_path / "flow.toml", text, settings)
    assert len(found) >= len(texts)


def test_a_flow_file_gives_spark_no_hostile_option(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    text = _flow({f"d{index}": {"location": "{root}/x"} for index in range(len(corpus.OPTIONS))})
    for index, option in enumerate(corpus.OPTIONS):
        table = f"[dataset.d{index}]\n"
        text = text.replace(table, f'{table}options = {{{_toml(option)} = "x"}}\n')
    lines = text.split("\n")
    wanted = {number for number, line in enumerate(lines, 1) if line.startswith("options")}
    missed = wanted - _mistakes(tmp_path / "flow.toml", text, settings)
    assert [lines[number - 1] for number in sorted(missed)] == []


def test_what_a_dataset_says_of_itself_reaches_the_order_as_data(pipeline: World) -> None:
    """The database passes the values of a row on as data; the host checks them (see test_orders)."""
    for text in _storable()[::10]:
        pipeline.as_framework("ALTER TABLE dataflow.dataset DISABLE TRIGGER USER")
        pipeline.do(
            "UPDATE dataflow.dataset SET location = %s, hostname = %s, columns = %s, options = %s WHERE datasetid = 'raw'",
            text, text, text, Jsonb({text: text}),
        )  # fmt: skip
        order = pipeline.value("SELECT dataflow.preview_order('clean_orders', '2026-01-01')")
        dataset = order["inputs"]["raw"]["dataset"]
        assert (dataset["location"], dataset["columns"], dataset["options"]) == (text, text, {text: text})
        assert dataset["connection"]["hostname"] == text
