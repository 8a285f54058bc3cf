"""Loads flow files of every kind: noise, broken TOML, flows with one mistake, good flows.

A file is accepted, or refused with its mistakes, each with a line of the file. The database accepts an accepted flow too, or
refuses it with one of our errors. Each case is rolled back.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from typing import TYPE_CHECKING, Any

from dataflowd import flow
from dataflowd.model.errors import DataflowError
from tests.fuzz.words import Speaker, cases

if TYPE_CHECKING:
    from pathlib import Path

    from dataflowd.host.settings import Settings
    from tests.fix_world import World

FILES = 2000
LINES = (
    "[flow]", 'name = "x"', "[dataset.a]", "[job.j]", 'format = "csv"', "[[dataset]]", "x = {", "]", '"""', "a.b.c = 1",
    "inputs = [", "x = 1979-05-27T07:32:00Z", "x = 1e999", "x = 0x", "'a' = 1", "[dataset.a.checks]", "# \u20ac", "x = [1,,]",
)  # fmt: skip


class Author(Speaker):
    def toml(self, value: Any) -> str:
        """The value as TOML. JSON strings are valid in TOML, except for DEL."""
        match value:
            case None | str():
                return json.dumps(value or "", ensure_ascii=False).replace("\x7f", "\\u007f")
            case float() if not math.isfinite(value):
                return "nan" if math.isnan(value) else "inf"
            case list():
                return "[" + ", ".join(map(self.toml, value)) + "]"
            case dict():
                return "{" + ", ".join(f"{self.toml(k)} = {self.toml(v)}" for k, v in value.items()) + "}"
            case dt.date():
                return value.isoformat()
            case _:
                return json.dumps(value)

    def file(self) -> str:
        if self.chance(0.1):
            return "\n".join(self.noise() if self.chance(0.3) else self.one(LINES) for _ in range(8))
        self.talkative = self.one((0.004, 0.004, 0.03, 0.3))
        names = [each if self.chance(0.98) else self.text() for each in ("raw", "clean", "sums")]
        tables = [("flow", {"name": "fuzz"} | self.some_of(name=self.text, description=self.text))]
        tables += [(f"dataset.{self.toml(name)}", self.dataset()) for name in dict.fromkeys(names)]
        tables += [("job.first", self.job(names[0], names[1])), ("job.second", self.job(names[1], names[2]))]
        lines = [
            line
            for title, keys in tables
            for line in (
                f"[{title}]",
                *(f"{self.toml(key)} = {self.toml(value)}" for key, value in keys.items()),
            )
        ]
        if self.chance(0.1):
            lines.insert(self.random.randint(0, len(lines)), self.one(LINES))
        return "\n".join(lines) + "\n"

    def dataset(self) -> dict[str, Any]:
        place = f"{{root}}/{self.random.randint(0, 10**9)}"
        return {"format": self.one(("csv", "parquet", "none", "json")), "location": place} | self.some_of(
            description=self.text,
            location=lambda: self.one(("{root}/y", "{root}/{dataid}", "/etc", "s3a://b/x", "{root}/../x", self.text())),
            format=self.text, schema=lambda: self.one(("id bigint", "id bigint, id string", "x", self.text())),
            options=self.json, checks=self.checks, ordering=lambda: self.one(("natural", "date", self.text())),
            publish=lambda: self.one(("pointer", "rename")), environment=self.text, calendar=lambda: self.one(("daily", "hourly", "x")),
            zone=lambda: self.one(("UTC", "Europe/Berlin", "../x", self.text())), start=self.moment, ready=self.text,
            tablename=self.text, schemaname=self.text, hostname=self.text, port=self.whole, database=self.text, username=self.text,
        )  # fmt: skip

    def moment(self) -> Any:
        moments = (
            dt.date(2026, 1, 1),
            dt.date(1, 1, 1),
            dt.date(9999, 12, 31),
            dt.datetime(2026, 1, 1, 5, tzinfo=dt.UTC),
        )
        return self.one((*moments, self.text(), self.whole()))

    def checks(self) -> dict[str, Any]:
        return self.some_of(
            min_rows=self.whole, max_rows=self.whole, not_null=lambda: self.several(self.text, 2), unique=lambda: ["id"],
            accepted_values=lambda: {"id": self.several(self.plain, 2)}, range=lambda: {"id": [self.whole(), self.whole()]},
            regex=lambda: {"id": self.text()}, schema=self.text, row_count=self.json, custom=lambda: ["jobs:check"],
            severity=self.text,
        )  # fmt: skip

    def job(self, reads: str, writes: str) -> dict[str, Any]:
        code: dict[str, Any] = self.one(({"command": ["true"]}, {"python": "dataflowd.jobs:copy"}))
        inputs = {reads: self.mapping()}
        declared = code | {"inputs": inputs if self.chance(0.5) else [reads], "outputs": [writes]}
        return declared | self.some_of(
            description=self.text, params=lambda: {self.text(): self.json()}, max_running=self.whole, max_attempts=self.whole,
            max_lost=self.whole, retry_delay=lambda: self.one(("30s", "99999999999d", self.text(), self.number_())),
            timeout=lambda: self.one(("1h", self.number_())), priority=self.whole, strict_order=lambda: self.chance(0.5),
            quarantine=self.number_, reuse=self.whole, slots=self.whole, spark=self.json, checks=self.checks, sql=self.text,
            inputs=lambda: self.several(self.text, 3), outputs=lambda: self.several(self.text, 3), command=self.json, python=self.text,
        )  # fmt: skip

    def mapping(self) -> Any:
        if self.chance(0.5):
            return "identity"
        return self.one((
            "identity",
            {"kind": "offset", "by": self.whole(), "unit": self.one(("day", "hour", "number", "x"))},
            {"kind": "window", "from": "hour", "to": "day", "zone": self.one(("UTC", "Europe/Berlin", "x"))},
            {"kind": "window", "last": self.whole(), "unit": "day"},
            {"kind": "all", "dataids": self.several(self.text, 3)},
            {"kind": "fixed", "dataid": self.text()},
            {"kind": "partitioning", "name": self.one(("size_5", self.text()))},
            self.json(),
        ))  # fmt: skip


def test_every_file_is_accepted_or_refused_with_its_mistakes(
    world: World, settings: Settings, tmp_path: Path
) -> None:
    path, before, taken = tmp_path / "flow.toml", world.everything(), 0

    def try_one(number: int) -> None:
        nonlocal taken
        text = Author(number).file()
        path.write_text(text, encoding="utf-8")
        found, mistakes = _loaded(path, settings)
        assert all(1 <= mistake.line <= text.count("\n") + 1 for mistake in mistakes), text
        if found is not None:
            taken += 1
            assert _refusal(world, found) != "INTERNAL", text

    cases(FILES, try_one)
    assert taken > FILES / 50, f"only {taken} of {FILES} files were good"
    assert world.everything() == before


def _loaded(path: Path, settings: Settings) -> tuple[flow.Flow | None, list[flow.Mistake]]:
    try:
        return flow.load(path, settings), []
    except flow.FlowMistakesError as refused:
        return None, refused.mistakes


def _refusal(world: World, found: flow.Flow) -> str | None:
    """The code of the error with which the database refuses the flow."""
    with world.connection.transaction(force_rollback=True):
        try:
            flow.conflicts(world.connection, found)
            flow.apply(world.connection, found)
        except DataflowError as refused:
            return refused.code
    return None
