"""Numbers with their nouns: 1 run, 2 runs."""

from __future__ import annotations


def counted(number: int, thing: str, things: str = "") -> str:
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def agreeing(number: int, thing: str, one: str, many: str) -> str:
    """A number, its noun and its verb: 1 row was, 2 rows were."""
    return f"{counted(number, thing)} {one if number == 1 else many}"
