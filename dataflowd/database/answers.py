"""What the database may answer to each call of a daemon. Whoever owns the database can have its functions return anything.

A wrong type, a NULL, a name that is part of a path, an infinite number or a million rows would end a service, and with it
the daemon, somewhere far from here. So each answer is compared with its form as soon as it is there. One that differs is an
error of the database, which every service survives and says in its log. Orders are vetted by dataflowd.model.vetting.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg

from dataflowd.model.identifiers import DATAID, NAME

WHOLE_MOST = (1 << 63) - 1
# Dates beyond would overflow when a few minutes are added.
YEARS = range(1970, 9000)
TEXT_CHARACTERS = 16_384
ROWS_MOST = 100_000
CLAIM_AT_MOST = 256

_TOKEN = re.compile(r"[0-9a-fA-F-]{1,64}")
_TAG = re.compile(r"[A-Za-z0-9_.:+=/-]{1,400}")


class WrongAnswerError(psycopg.DataError):
    """An answer that is not of its form."""


Kind = Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float | Decimal)
        and not isinstance(value, bool)
        and math.isfinite(float(value))
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= WHOLE_MOST


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= TEXT_CHARACTERS


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_uuid(value: Any) -> bool:
    return isinstance(value, UUID)


def _is_moment(value: Any) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None and value.year in YEARS


def _anything(_value: Any) -> bool:
    return True


def _like(pattern: re.Pattern[str]) -> Kind:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _or_null(kind: Kind) -> Kind:
    return lambda value: value is None or kind(value)


def _one_of(*words: str) -> Kind:
    return lambda value: isinstance(value, str) and value in words


_is_name, _is_dataid, _is_token, _is_tag = map(_like, (NAME, DATAID, _TOKEN, _TAG))
_is_duration = _or_null(lambda value: _is_number(value) and value >= 0)


@dataclass(frozen=True)
class Answer:
    kinds: tuple[Kind, ...]
    least: int = 0  # rows
    most: int = ROWS_MOST


_IGNORED = Answer((_anything,))
_CLAIM = (_is_whole, _is_token, _is_name, _is_dataid, _is_whole, _is_tag, _is_object, _is_object, _is_duration)  # fmt: skip

ANSWERS: dict[str, Answer] = {
    "daemon_register": Answer((_is_uuid,), 1, 1),
    "daemon_serve": _IGNORED,
    "daemon_reloaded": _IGNORED,
    "daemon_claim": Answer(_CLAIM, most=CLAIM_AT_MOST),
    "daemon_claim_run": Answer(_CLAIM, most=1),
    "daemon_claim_new": Answer(_CLAIM, most=1),
    "daemon_finish": Answer((_is_whole, _one_of("accepted", "fenced", "busy"))),
    "daemon_renew": Answer((_or_null(_is_moment),), 1, 1),
    "daemon_end_session": _IGNORED,
    "daemon_retake": Answer((_is_whole, _is_token, _is_name, _is_dataid, _is_flag)),
    "daemon_stop": _IGNORED,
    "daemon_neighbours": Answer((_is_text, _is_uuid, _is_whole, _is_number)),
    "daemon_expire": _IGNORED,
    "daemon_rescue": Answer((_is_whole, _is_name, _is_dataid, _or_null(_is_text), _or_null(_is_text))),
    "daemon_end_frozen": Answer((_is_text, _is_text, _is_whole, _is_whole, _is_flag)),
    "daemon_cancelled": Answer((_is_whole,)),
    "daemon_started": Answer((_is_whole, _or_null(_is_flag))),
    "daemon_waits": Answer((_is_whole, _or_null(_is_flag))),
    "daemon_look": Answer((_is_number, _is_whole, _or_null(_is_number), _is_flag), 1, 1),
    "daemon_limits": Answer(
        (_is_whole, _or_null(_is_whole), _is_flag, _or_null(_is_whole), _or_null(_is_whole)), most=1
    ),
    "daemon_waited": Answer((_is_whole, _or_null(_is_number))),
    "daemon_tick": Answer((_is_whole,), 1, 1),
    "daemon_next_tick": Answer((_or_null(_is_number),), 1, 1),
    "daemon_fold": _IGNORED,
    "daemon_queued": Answer((_is_whole,), 1, 1),
    "daemon_status": Answer((_is_name, *[_is_number] * 8)),
    "fixed_paths": Answer((_is_name, _is_dataid, _is_text, _is_text)),
    "fixed_path": Answer((_is_name, _is_dataid, _is_text, _is_text), most=1),
    "gc_places": Answer((_is_name, _is_text)),
    "gc_collect": Answer((_is_name, _is_dataid, _is_whole, _is_text, *[_or_null(_is_moment)] * 3)),
    "work_orders": Answer((_is_whole, _or_null(_is_object), _or_null(_is_text)), least=1, most=CLAIM_AT_MOST),
    "applied_config": Answer((_or_null(_is_text),), 1, 1),
    "is_alive": Answer((_is_flag,), 1, 1),
    "add_words": Answer((_is_flag,), 1, 1),
    "code_of": Answer((_is_name,), 1, 1),
    "code_versions": Answer((_anything, _anything)),
    "connection_changes": Answer(
        (_is_name, *[_or_null(_is_text)] * 3, _is_moment, *[_or_null(_is_text)] * 2)
    ),
}


def check(name: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Raises WrongAnswerError."""
    form = ANSWERS[name]
    if not form.least <= len(rows) <= form.most:
        raise wrong(name, f"has {len(rows)} rows")
    for row in rows:
        if len(row) != len(form.kinds):
            raise wrong(name, f"has {len(row)} columns")
        for number, (value, is_right) in enumerate(zip(row, form.kinds, strict=True), 1):
            if not is_right(value):
                raise wrong(name, f"has in column {number} {type(value).__name__} {str(value)[:100]!r}")


def wrong(name: str, what: str) -> WrongAnswerError:
    return WrongAnswerError(
        f"the answer of the database to {name} {what}, which this daemon does not understand:"
        " see who changes the functions of the schema dataflow; `dataflowctl init` restores them"
    )
