"""README's script is typed in and run, line by line."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from dataflowd.settings import Settings
    from tests.fix_postgres import RunCtl

README = Path(__file__).parents[2] / "README.md"


def blocks(section: str, language: str) -> list[str]:
    text = README.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_five_lines_bring_a_script_to_its_first_run(
    run_ctl: RunCtl, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    [flow], [script], [session] = (
        blocks("Bring your script", language) for language in ("toml", "sh", "console")
    )
    Path("flow.toml").write_text(flow, encoding="utf-8")
    Path("load_orders.sh").write_text(script, encoding="utf-8")
    Path("load_orders.sh").chmod(0o755)
    raw = settings.data_dir / "data" / "raw" / "2026-01-01.csv"
    raw.parent.mkdir(parents=True)
    raw.write_text("# header\n1,a\n2,b\n", encoding="utf-8")
    lines = [line.removeprefix("$ dataflowctl ") for line in session.splitlines() if line.startswith("$ ")]
    assert len(lines) == 5
    for line in lines:
        done = run_ctl(*shlex.split(line, comments=True))
        assert done.returncode == 0, (line, done.stderr)
    assert re.search(r"2026-01-01 +READY +\w+ +1 +2 ", done.stdout), done.stdout
