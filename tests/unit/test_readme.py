"""What README says in tables is what the program does. `python -m tests.unit.test_readme` renews the settings."""

from __future__ import annotations

import re
from pathlib import Path

from dataflowd.errors import EXIT
from dataflowd.http.metrics import Metrics
from dataflowd.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
SETTINGS = re.compile(r"(?<=<!-- settings -->\n).*(?=<!-- /settings -->)", re.DOTALL)


def settings_table() -> str:
    rows = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        default = (
            f"`{field.default}`"
            if field.default and not field.is_required() and not field.default_factory
            else ""
        )
        rows.append(f"| `{name}` | {default} | {field.description} |")
    return "\n".join(rows) + "\n"


def text() -> str:
    return README.read_text(encoding="utf-8")


def test_every_setting_stands_in_readme_as_the_program_documents_it() -> None:
    found = SETTINGS.search(text())
    assert found is not None
    assert found[0] == settings_table(), "renew it with `python -m tests.unit.test_readme`"


def test_every_exit_status_stands_in_readme() -> None:
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \| \S.* \|$", text(), re.MULTILINE)
    assert {code: int(status) for status, code in rows} == EXIT


def test_every_metric_stands_in_readme() -> None:
    shown = {metric.name for metric in Metrics().registry.collect()}
    assert (
        set(re.findall(r"`(dataflow_[a-z_]+)`", text().partition("| metric |")[2].partition("\n\n")[0]))
        == shown
    )


def test_every_make_target_stands_in_readme() -> None:
    targets = re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for target in set(targets) - {"help", "install"}:
        assert f"| `make {target}` |" in text()


if __name__ == "__main__":
    README.write_text(SETTINGS.sub(lambda _: settings_table(), text()), encoding="utf-8")
