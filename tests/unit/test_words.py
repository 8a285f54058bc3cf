"""Words of a command: what is replaced, and what is never replaced."""

from __future__ import annotations

import pytest

from dataflowd.flow import command_words
from dataflowd.model.faults import AttemptError

VALUES = {"dataid": "d1", "raw_location": "/r/a b.csv", "param_n": "-5", "param_evil": "--conf=x", "none": ""}


@pytest.mark.parametrize(
    ("word", "made"),
    [
        ("{raw_location}", "/r/a b.csv"),
        ("--in={raw_location}:{dataid}", "--in=/r/a b.csv:d1"),
        ("{none}", ""),
        ("{param_n}", "-5"),
        ("--set={param_evil}", "--set=--conf=x"),
        ("{{dataid}}", "{dataid}"),
        ("${dataid} $dataid", "${dataid} $dataid"),
        ('{} {"day": "{dataid}"} {print $1} {1..9}', '{} {"day": "d1"} {print $1} {1..9}'),
    ],
)
def test_a_name_in_braces_is_replaced_and_nothing_else(word: str, made: str) -> None:
    assert command_words.filled(["./load.sh", word], VALUES) == ["./load.sh", made]


@pytest.mark.parametrize(
    ("command", "executed"),
    [
        ("./load.sh x -c y", "./load.sh"),
        ("env -i A={x} ./load.sh x", "env -i ./load.sh"),
        ("env A=x python3.11 -u load.py -c x", "env python3.11 -u load.py"),
        ("/bin/bash -o pipefail -euc text x", "/bin/bash -o pipefail -euc text"),
        ("nice -n 5 timeout 10m sh -c text x", "nice -n 5 timeout 10m sh -c text"),
        ("--jars a.jar etl.py x", "--jars a.jar etl.py x"),
        ("etl.py x", "etl.py"),
    ],
)
def test_what_is_executed_is_not_replaced(command: str, executed: str) -> None:
    given = command.split()
    assert [given[place] for place in sorted(command_words.executed_places(given))] == executed.split()


def test_a_value_never_becomes_an_option_and_an_unknown_name_is_reported() -> None:
    with pytest.raises(AttemptError, match="would become the option --conf=x"):
        command_words.filled(["etl.py", "{param_evil}"], VALUES)
    with pytest.raises(AttemptError, match="is no variable of this run"):
        command_words.filled(["etl.py", "{param_gone}"], VALUES)
