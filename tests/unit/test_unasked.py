"""`apply` lists declared checks that no job runs on data from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dataflowd.flow import load
from dataflowd.flow.unasked import unasked

if TYPE_CHECKING:
    from pathlib import Path

    from dataflowd.host.settings import Settings

FLOW = """
[flow]
name = "f"
[dataset.raw]
{dataset}
[dataset.clean]
format = "none"
[job.load]
{job}
inputs = ["raw"]
outputs = ["clean"]
{more}
"""
FILES = "format = 'csv'\nlocation = '{root}/raw/{dataid}.csv'\n"
SCRIPT = "command = ['true']"
SPARK = "python = 'dataflowd.jobs:copy'"
SECOND = "[dataset.sums]\nformat='none'\n[job.sum]\ncommand=['true']\ninputs=['raw']\noutputs=['sums']"


@pytest.mark.parametrize(
    ("dataset", "job", "more", "says"),
    [
        (FILES, SCRIPT, "", []),
        (FILES + "checks = { not_null = ['id'] }", SPARK, "", []),
        (FILES + "checks = { not_null = ['id'] }", SCRIPT, "", ["(not_null) are not run: no job makes it, and only scripts read it (load)"]),
        ("format = 'none'\nchecks = { min_rows = 1 }", SPARK, "", ["(min_rows) are not run: no job makes it, and format 'none'"]),
        (FILES + "checks = { not_null = ['id'] }", SPARK, SECOND, ["by the first Spark job that reads it; sum may start before"]),
    ],
)  # fmt: skip
def test_a_check_that_no_job_runs_is_reported(  # noqa: PLR0913, PLR0917
    settings: Settings, tmp_path: Path, dataset: str, job: str, more: str, says: list[str]
) -> None:
    path = tmp_path / "flow.toml"
    path.write_text(FLOW.format(dataset=dataset, job=job, more=more))
    found = unasked(load(path, settings))
    assert len(found) == len(says), found
    for line, part in zip(found, says, strict=True):
        assert line.startswith("dataset raw: ")
        assert part in line
