"""The form of the database's answer to each call of a daemon.

The owner of the database can make its functions return anything. A wrong type, a NULL, a name that is part of a path, an
infinite number or a million rows would end a service far from the call, and with the service the daemon. So each answer
is compared with its form as soon as it arrives. A wrong answer is an error of the database: every service logs it and
goes on. Work orders are checked by dataflowd.model.vetting.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

import psycopg
from pydantic import (
    AwareDatetime,
    FailFast,
    Field,
    InstanceOf,
    Strict,
    StrictBool,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)

from dataflowd.model.identifiers import DATAID, NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

WHOLE_MOST = (1 << 63) - 1
FLOAT_MOST = Decimal(10) ** 308
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9000, 1, 1, tzinfo=UTC)  # a later date overflows when a few minutes are added to it
TEXT_CHARACTERS = 16_384
ROWS_MOST = 100_000
CLAIM_AT_MOST = 256
SHOWN_CHARACTERS = 100


class WrongAnswerError(psycopg.DataError):
    """The answer does not have the form that this module declares."""


def _like(pattern: re.Pattern[str]) -> Any:
    """A text that the pattern matches as a whole."""
    return Annotated[str, Strict(), StringConstraints(pattern=rf"^(?:{pattern.pattern})$")]


_Flag = StrictBool
_Object = InstanceOf[dict]  # type: ignore[type-arg] # its content is checked elsewhere
_Uuid = InstanceOf[UUID]
_Whole = Annotated[int, Strict(), Field(ge=0, le=WHOLE_MOST)]
_Text = Annotated[str, Strict(), Field(max_length=TEXT_CHARACTERS)]
_Moment = Annotated[AwareDatetime, Strict(), Field(ge=EARLIEST, lt=LATEST)]
_Float = Annotated[float, Strict(), Field(allow_inf_nan=False)]
_Decimal = Annotated[Decimal, Strict(), Field(allow_inf_nan=False, ge=-FLOAT_MOST, le=FLOAT_MOST)]
_Number = Annotated[_Float | _Decimal, Field(union_mode="left_to_right")]  # a whole number passes as a float
_Duration = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)] | None
_Name, _Dataid = _like(NAME), _like(DATAID)
_Token = _like(re.compile(r"[0-9a-fA-F-]{1,64}"))
_Tag = _like(re.compile(r"[A-Za-z0-9_.:+=/-]{1,400}"))


@dataclass(frozen=True)
class Answer:
    columns: tuple[Any, ...]
    least: int = 0  # rows
    most: int = ROWS_MOST


_IGNORED = Answer((Any,))
_CLAIM = (_Whole, _Token, _Name, _Dataid, _Whole, _Tag, _Object, _Duration)

ANSWERS: dict[str, Answer] = {
    "daemon_register": Answer((_Uuid,), 1, 1),
    "daemon_serve": _IGNORED,
    "daemon_reloaded": _IGNORED,
    "daemon_claim": Answer(_CLAIM, most=CLAIM_AT_MOST),
    "daemon_claim_run": Answer(_CLAIM, most=1),
    "daemon_claim_new": Answer(_CLAIM, most=1),
    "daemon_finish": Answer((_Whole, Literal["accepted", "fenced", "busy"])),
    "daemon_renew": Answer((_Moment | None,), 1, 1),
    "daemon_end_session": _IGNORED,
    "daemon_retake": Answer((_Whole, _Token, _Name, _Dataid, _Flag)),
    "daemon_stop": _IGNORED,
    "daemon_neighbours": Answer((_Text, _Uuid, _Whole, _Number)),
    "daemon_expire": _IGNORED,
    "daemon_rescue": Answer((_Whole, _Name, _Dataid, _Text | None, _Text | None)),
    "daemon_end_frozen": Answer((_Text, _Text, _Whole, _Whole, _Flag)),
    "daemon_cancelled": Answer((_Whole,)),
    "daemon_began": Answer((_Whole, _Flag | None)),
    "daemon_waits": Answer((_Whole, _Flag | None)),
    "daemon_look": Answer((_Number, _Whole, _Number | None, _Flag), 1, 1),
    "daemon_limits": Answer((_Whole, _Whole | None, _Flag, _Whole | None, _Whole | None), most=1),
    "daemon_waited": Answer((_Whole, _Number | None)),
    "daemon_tick": Answer((_Whole,), 1, 1),
    "daemon_next_tick": Answer((_Number | None,), 1, 1),
    "daemon_fold": _IGNORED,
    "daemon_queued": Answer((_Whole,), 1, 1),
    "daemon_status": Answer((_Name, *[_Number] * 8)),
    "fixed_paths": Answer((_Name, _Dataid, _Text, _Text)),
    "fixed_path": Answer((_Name, _Dataid, _Text, _Text), most=1),
    "gc_places": Answer((_Name, _Text)),
    "gc_collect": Answer((_Name, _Dataid, _Whole, _Text, *[_Moment | None] * 3)),
    "work_orders": Answer((_Whole, _Object | None, _Name, _Text | None), 1, CLAIM_AT_MOST),
    "applied_config": Answer((_Text | None,), 1, 1),
    "is_alive": Answer((_Flag,), 1, 1),
    "add_words": Answer((_Flag,), 1, 1),
    "code_versions": Answer((Any, Any)),
    "connection_changes": Answer((_Name, *[_Text | None] * 3, _Moment, *[_Text | None] * 2)),
}


@cache
def _form(name: str) -> TypeAdapter[Any]:
    """Built at the first call, because most processes make few of the calls."""
    answer = ANSWERS[name]
    rows = Field(min_length=answer.least, max_length=answer.most)
    form: Any = Annotated[list[tuple[answer.columns]], rows, FailFast()]  # type: ignore[name-defined]
    return TypeAdapter(form)


def check(name: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Raises WrongAnswerError."""
    try:
        _form(name).validate_python(rows)
    except ValidationError as error:
        raise wrong(name, _difference(error)) from None


def _difference(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    place = first["loc"]
    if not place:
        return f"has {len(first['input'])} rows"
    if len(place) == 1 or first["type"] == "missing":
        return "has another number of columns"
    value = first["input"]
    return f"has in column {int(place[1]) + 1} {type(value).__name__} {str(value)[:SHOWN_CHARACTERS]!r}"


def wrong(name: str, what: str) -> WrongAnswerError:
    return WrongAnswerError(
        f"the answer of the database to {name} {what}, which this daemon does not understand:"
        " see who changes the functions of the schema dataflow; `dataflowctl init` restores them"
    )
