"""Pages of docs/ name every public member, and every block of code in them parses. `python -m tests.unit.test_docs` renews the tables of members."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import shlex
import tomllib
from typing import TYPE_CHECKING, Any

import pglast
import pytest
import typer

from dataflowd import testing
from dataflowd.cli.app import app
from dataflowd.host import sqlfiles
from dataflowd.model import check_shapes, work_order
from dataflowd.sdk.context import Context, Log, Node
from tests import readme
from tests.readme import DOCS, README, ROOT

if TYPE_CHECKING:
    from pathlib import Path

CONTEXT, CHECKS, STALE = (DOCS / f"{name}.md" for name in ("context", "checks", "stale"))
MEMBERS = re.compile(r"(?<=<!-- context -->\n).*(?=<!-- /context -->)", re.DOTALL)
TESTING = re.compile(r"(?<=<!-- testing -->\n).*(?=<!-- /testing -->)", re.DOTALL)
ARCHITECTURE, CONTRIBUTING = (DOCS / f"{name}.md" for name in ("architecture", "contributing"))
LEAST_NAMES = 20  # fewer means that the pattern no longer matches, and the test checks nothing
DEFINED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
LANGUAGES = {"", "console", "json", "python", "sh", "sql", "toml"}

# Descriptions of the attributes, which cannot have a docstring.
ATTRIBUTES = {
    "spark": "The session of this attempt; its Spark is shared: never stop it.",
    "params": "The flow's `params`, as a mapping with attributes, or as the model of `@job(params=...)`.",
    "log": '`ctx.log.info("loaded", rows=10)`: events with keys, to the attempt\'s own log.',
    "order": "All that the runner was told about this attempt: inputs, outputs, parameters.",
    "reporter": "Where words and progress go.",
    "stop": "Set when the attempt is cancelled.",
    "frames": "Inputs that a test has given as they are.",
}
# Members that the runner reads after the job has returned. They are public for the runner; the page does not list them.
OF_THE_RUNNER = {
    *("frames", "order", "reporter", "stop"),
    *("counted", "input_rows", "nodes", "rows_read", "seen", "set_aside", "stored", "written"),
}


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def signature_of(name: str, member: Any) -> str:
    if isinstance(member, property):
        return f"{name}: {inspect.signature(member.fget).return_annotation}"  # type: ignore[arg-type]
    found = inspect.signature(member)
    shown = [_shown(one) for one in found.parameters.values() if one.name != "self"]
    kinds = [one.kind for one in found.parameters.values() if one.name != "self"]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        shown.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    return f"{name}({', '.join(shown)}) -> {found.return_annotation}"


def _shown(parameter: inspect.Parameter) -> str:
    """Formats the parameter by hand: annotations are strings here, and str(parameter) would put quotes around them."""
    has_default = parameter.default is not inspect.Parameter.empty
    return f"{parameter.name}: {parameter.annotation}" + (f" = {parameter.default!r}" if has_default else "")


def members() -> dict[str, tuple[str, str]]:
    """Each public member: its signature, and the first sentences of its docstring."""
    found = {
        one.name: (f"{one.name}: {one.type}", ATTRIBUTES[one.name])
        for one in dataclasses.fields(Context)
        if not one.name.startswith("_")
    }
    found["log"] = (f"log: {Log.__name__}", ATTRIBUTES["log"])
    for name, member in vars(Context).items():
        if name.startswith("_") or name in found:
            continue
        said = (inspect.getdoc(member) or "").partition("\n\n")[0].replace("\n", " ")
        assert said, f"Context.{name} has no docstring"
        found[name] = signature_of(name, member), said
    return found


def cell(content: str) -> str:
    return content.replace("|", "\\|")


def members_table() -> str:
    found = members()
    ours = sorted(found.keys() - OF_THE_RUNNER)
    rows = ["| member | what it is |", "| --- | --- |"]
    rows += [f"| `{cell(found[name][0])}` | {cell(found[name][1])} |" for name in ours]
    rows += ["", "Public for the runner, and of no use to a job:", "", *rows[:2]]
    rows += [f"| `{cell(found[name][0])}` | {cell(found[name][1])} |" for name in sorted(OF_THE_RUNNER)]
    return "\n".join(rows) + "\n"


def functions_table() -> str:
    rows = ["| function | what it does |", "| --- | --- |"]
    for function in (testing.run_job, testing.local_spark, testing.load_flow):
        said = (inspect.getdoc(function) or "").partition("\n\n")[0].replace("\n", " ")
        rows.append(f"| `{cell(signature_of(function.__name__, function))}` | {cell(said)} |")
    return "\n".join(rows) + "\n"


def test_every_public_member_of_the_context_is_on_its_page_with_its_signature() -> None:
    assert members().keys() >= OF_THE_RUNNER
    for pattern, table in ((MEMBERS, members_table()), (TESTING, functions_table())):
        found = pattern.search(text(CONTEXT))
        assert found is not None
        assert found[0] == table, "renew it with `python -m tests.unit.test_docs`"


@pytest.mark.parametrize(
    "kind",
    [
        work_order.Input,
        work_order.Output,
        work_order.Chunk,
        work_order.Dataset,
        work_order.Connection,
        Node,
        testing.Ran,
    ],
    ids=lambda kind: kind.__name__,
)
def test_every_public_attribute_of_what_the_context_gives_is_on_its_page(kind: type) -> None:
    named = {one.name for one in dataclasses.fields(kind)}
    named |= {name for name, member in vars(kind).items() if isinstance(member, property)}
    if kind is Node:
        named = {"count"}  # the numbers themselves are read by the runner
    for name in named:
        assert re.search(rf"[`.]{name}\b", text(CONTEXT)), f"{kind.__name__}.{name}"


def test_every_rule_and_severity_of_a_check_is_on_its_page() -> None:
    named = re.findall(r"^\| `(\w+)` \|", text(CHECKS), re.MULTILINE)
    assert set(named) == {*check_shapes.SHAPES, "custom", *check_shapes.SEVERITIES}
    shown = tomllib.loads(readme.page_blocks(CHECKS, "toml")[0])
    assert shown["dataset"]["orders"]["checks"].keys() == {*check_shapes.SHAPES, "custom"}


def test_every_reason_for_a_stale_chunk_has_its_heading() -> None:
    declared = re.search(
        r"COMMENT ON COLUMN dataflow\.stale\.because IS '([A-Z, ]+)'",
        text(sqlfiles.sql_dir() / "functions" / "stale.sql"),
    )
    assert declared is not None
    headings = [title for title in readme.sections(STALE) if title.isupper()]
    assert headings == declared[1].split(", ")


def test_readme_leads_to_every_page() -> None:
    for page in readme.pages():
        assert f"](docs/{page.name}" in text(README), page.name


@pytest.mark.parametrize("page", [README, *readme.pages()], ids=lambda page: page.name)
def test_every_block_of_code_parses(page: Path) -> None:
    assert set(re.findall(r"^ *```(\w*)\n(?:.|\n)*?^ *```$", text(page), re.MULTILINE)) <= LANGUAGES
    for code in readme.page_blocks(page, "python"):
        ast.parse(code)
    for code in readme.page_blocks(page, "toml"):
        tomllib.loads(code)
    for code in readme.page_blocks(page, "sql"):
        pglast.parse_sql(code)
    for block in readme.page_blocks(page, "console"):
        for line in block.splitlines():
            if line.startswith("$ dataflowctl "):
                assert_command(shlex.split(line.removeprefix("$ "), comments=True))


@pytest.mark.parametrize("page", [README, *readme.pages()], ids=lambda page: page.name)
def test_every_command_inside_a_sentence_exists(page: Path) -> None:
    for line in readme.inline_commands(page, "dataflowctl"):
        assert_command(shlex.split(re.sub(r"[\[\]]|\.\.\.", "", line)))


@pytest.mark.parametrize("page", [ARCHITECTURE, CONTRIBUTING], ids=lambda page: page.name)
def test_every_file_function_and_sql_object_that_a_page_names_exists(page: Path) -> None:
    """Names of files, of functions in files, and of objects in the schema `dataflow`: a stale name would mislead the reader."""
    content = text(page)
    named = re.findall(r"`((?:dataflowd|sql|tests|systemd|\.ci)/[\w./@-]*)(?:::(\w+))?`", content)
    assert len(named) > LEAST_NAMES
    for path, function in named:
        assert (ROOT / path).exists(), path
        if function:
            tree = ast.parse(text(ROOT / path))
            assert function in {node.name for node in ast.walk(tree) if isinstance(node, DEFINED)}, (
                f"{path}::{function}"
            )
    objects = sql_objects()
    for name in set(re.findall(r"`dataflow\.(\w+)[`(]", content)):
        assert name in objects, f"dataflow.{name}"


def sql_objects() -> set[str]:
    """Functions, views and tables of the schema."""
    found = set[str]()
    for path in (*sqlfiles.migrations(), *sqlfiles.functions()):
        found |= set(
            re.findall(
                r"^CREATE (?:OR REPLACE )?(?:FUNCTION|VIEW|TABLE) dataflow\.(\w+)", text(path), re.MULTILINE
            )
        )
    return found


def assert_command(words: list[str]) -> None:
    """Asserts that dataflowctl has this command and these options. Words after `--` belong to another program."""
    words = words[: words.index("--")] if "--" in words else words
    command: Any = typer.main.get_command(app)
    for word in words[1:]:
        if not hasattr(command, "commands"):
            break
        command = command.get_command(None, word)
        assert command is not None, words
    if command.context_settings.get("ignore_unknown_options"):
        return
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known, words


if __name__ == "__main__":
    page = MEMBERS.sub(lambda _: members_table(), text(CONTEXT))
    CONTEXT.write_text(TESTING.sub(lambda _: functions_table(), page), encoding="utf-8")
