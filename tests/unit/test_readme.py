"""Tables in README and docs/ agree with the program. `python -m tests.unit.test_readme` renews settings and figures."""

from __future__ import annotations

import ast
import json
import re

from dataflowd.daemon.metrics import Metrics
from dataflowd.host.settings import Settings, description
from dataflowd.model.endings import AGAIN, BY_TRIES, ENDINGS, NEVER
from dataflowd.model.errors import EXIT
from tests import readme
from tests.bench import gather
from tests.readme import DOCS, README, REFERENCE, ROOT

BENCHMARKS = DOCS / "benchmarks.md"
CONTRIBUTING = DOCS / "contributing.md"
MOST_LINES = 200  # of README; everything else belongs into docs/
SETTINGS = re.compile(r"(?<=<!-- settings -->\n).*(?=<!-- /settings -->)", re.DOTALL)
ENDINGS_TABLE = re.compile(r"(?<=<!-- endings -->\n).*(?=<!-- /endings -->)", re.DOTALL)
FIGURES = re.compile(r"(?<=<!-- bench -->\n).*(?=<!-- /bench -->)", re.DOTALL)


def settings_table() -> str:
    rows = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        default = (
            f"`{field.default}`"
            if field.default and not field.is_required() and not field.default_factory
            else ""
        )
        rows.append(f"| `{name}` | {default} | {description(name)} |")
    return "\n".join(rows) + "\n"


def endings_table() -> str:
    again = {AGAIN: "yes, whatever max_attempts", BY_TRIES: "while max_attempts allows it", NEVER: "no"}
    rows = ["| what happened | outcome | code | tried again |", "| --- | --- | --- | --- |"]
    for ending in ENDINGS:
        retry = {"DONE": "", "RETURNED": "yes, no try is spent"}.get(ending.outcome, again[ending.retry])
        code = f"`{ending.code}`" if ending.code else ""
        rows.append(f"| {ending.what} | {ending.outcome} | {code} | {retry} |")
    return "\n".join(rows) + "\n"


def figures_table() -> str:
    return gather.table(json.loads((DOCS / gather.JSON_FILE).read_text(encoding="utf-8")))


def reference() -> str:
    return REFERENCE.read_text(encoding="utf-8")


def benchmarks() -> str:
    return BENCHMARKS.read_text(encoding="utf-8")


def test_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def test_every_setting_is_documented_as_the_program_documents_it() -> None:
    found = SETTINGS.search(reference())
    assert found is not None
    assert found[0] == settings_table(), "renew it with `python -m tests.unit.test_readme`"


def test_every_way_to_end_stands_in_the_reference_as_the_program_knows_it() -> None:
    found = ENDINGS_TABLE.search(reference())
    assert found is not None
    assert found[0] == endings_table(), "renew it with `python -m tests.unit.test_readme`"


def test_every_code_that_is_raised_stands_in_the_table() -> None:
    known = {ending.code for ending in ENDINGS}
    for path in (ROOT / "dataflowd").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match call:
                case ast.Call(func=ast.Name(id="AttemptError"), args=[ast.Constant(value=str(code)), *_]):
                    assert code in known, (path, code)
                case ast.Call(func=ast.Name(id="failed"), args=[_, ast.Constant(value=str(code)), *_]):
                    assert code in known, (path, code)


def test_the_figures_are_those_that_were_measured() -> None:
    found = FIGURES.search(benchmarks())
    assert found is not None
    assert found[0] == figures_table(), "renew it with `python -m tests.unit.test_readme`"


def test_every_link_leads_somewhere() -> None:
    linking = [README, ROOT / "CHANGELOG.md", *readme.pages(), *(ROOT / "examples").rglob("*.md")]
    for path in linking:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", path.read_text(encoding="utf-8")):
            if "://" in target:
                continue
            found = (path.parent / target).resolve() if target else path
            assert found.exists(), (path, target)
            assert not anchor or anchor in readme.anchors(found), (path, target, anchor)


def test_every_exit_status_is_documented() -> None:
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \| \S.* \|$", reference(), re.MULTILINE)
    assert {code: int(status) for status, code in rows} == EXIT


def test_every_metric_is_documented() -> None:
    shown = {metric.name for metric in Metrics().registry.collect()}
    assert (
        set(re.findall(r"`(dataflow_[a-z_]+)`", reference().partition("| metric |")[2].partition("\n\n")[0]))
        == shown
    )


def test_every_make_target_is_documented() -> None:
    targets = re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for target in set(targets) - {"help", "install"}:
        assert f"| `make {target}` |" in CONTRIBUTING.read_text(encoding="utf-8")


if __name__ == "__main__":
    REFERENCE.write_text(SETTINGS.sub(lambda _: settings_table(), reference()), encoding="utf-8")
    REFERENCE.write_text(ENDINGS_TABLE.sub(lambda _: endings_table(), reference()), encoding="utf-8")
    BENCHMARKS.write_text(FIGURES.sub(lambda _: figures_table(), benchmarks()), encoding="utf-8")
