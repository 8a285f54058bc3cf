"""While many chunks are registered, a terminal shows progress, and a pipe does not."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import pytest

from dataflowd.cli import ready, show

if TYPE_CHECKING:
    import psycopg


CHUNKS = 3 * ready.SLICE


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [Terminal(), io.StringIO()])
def test_registering_many_shows_a_bar_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, connection: psycopg.Connection, terminal: io.StringIO
) -> None:
    connection.execute("INSERT INTO dataflow.dataset (datasetid, location) VALUES ('raw', '/data/raw')")
    monkeypatch.setattr(show, "SIGN_OF_LIFE_SECONDS", 0)
    monkeypatch.setattr(sys, "stderr", terminal)
    dataids = [str(number) for number in range(CHUNKS)]
    done = ready._register(connection, "raw", dataids, validated=True, reason=None)
    assert done == CHUNKS
    said = terminal.getvalue()
    if terminal.isatty():
        assert "registering [##########" in said
        assert f"{ready.SLICE:,} of {CHUNKS:,}" in said
    else:
        assert said == ""
