"""Functions of the database return wrong answers: the daemon logs it, and goes on when they are right again."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dataflowd.database import answers
from tests.fix_daemon import eventually
from tests.hostile.stage import opened

if TYPE_CHECKING:
    from tests.hostile.stage import Stage

CLAIMED = "TABLE (attempt {0}, token text, jobid text, dataid text, number integer, tag text, inputs jsonb, params jsonb, timeout_seconds double precision)"
NINES = "9" * 5000
# The function with the types of its arguments; the result type and the body of the twin that replaces it.
TWINS = {
    "a claim of what is no number": (
        "claim_within(text, uuid, integer, text[], integer)",
        CLAIMED.format("jsonb"),
        "SELECT '[1]'::jsonb, 't', 'work', 'd1', 1, 'tag', '{}'::jsonb, '{}'::jsonb, 1",
    ),
    "a claim without a name": (
        "claim_within(text, uuid, integer, text[], integer)",
        CLAIMED.format("bigint"),
        "SELECT 7, 'ab', NULL, 'd1', 1, 'tag', '{}'::jsonb, '{}'::jsonb, 1",
    ),
    "a claim of a path": (
        "claim_within(text, uuid, integer, text[], integer)",
        CLAIMED.format("bigint"),
        "SELECT 7, 'ab', 'work', '../../outside', 1, 'tag', '{}'::jsonb, '{}'::jsonb, 1",
    ),
    "a claim of one attempt again and again": (
        "claim_within(text, uuid, integer, text[], integer)",
        CLAIMED.format("bigint"),
        "SELECT 7, 'ab', 'live', 'd1', 1, 'tag', '{}'::jsonb, '{}'::jsonb, 1 FROM generate_series(1, 2)",
    ),
    "more claims than were asked for": (
        "claim_within(text, uuid, integer, text[], integer)",
        CLAIMED.format("bigint"),
        "SELECT n, 'ab', 'live', 'd1', 1, 'tag', '{}'::jsonb, '{}'::jsonb, 1 FROM generate_series(1, 100000) n",
    ),
    "a number that is too long": (
        "claim_within(text, uuid, integer, text[], integer)",
        CLAIMED.format("bigint"),
        f"SELECT 7, 'ab', 'live', 'd1', 1, 'tag', '{{}}'::jsonb, '{{\"a\": {NINES}}}'::jsonb, 1",
    ),
    "a document that is too deep": (
        "claim_within(text, uuid, integer, text[], integer)",
        CLAIMED.format("bigint"),
        f"SELECT 7, 'ab', 'live', 'd1', 1, 'tag', '{{}}'::jsonb, '{'[' * 1500}{']' * 1500}'::jsonb, 1",
    ),
    "no verdict": ("finish(jsonb)", "TABLE (attempt bigint, verdict text)", "SELECT 0, 'accepted'"),
    "a verdict that is none": ("finish(jsonb)", "TABLE (attempt bigint, verdict text)", "SELECT 1, NULL::text"),
    "no lease and no word of it": ("renew_lease(text, uuid)", "SETOF timestamptz", "SELECT now() WHERE false"),
    "a moment that is no number": ("next_tick()", "timestamptz", "SELECT '-infinity'::timestamptz"),
    "what nobody asked about": (
        "collect(text[], text[], bigint[], interval, interval, boolean)",
        "TABLE (datasetid text, dataid text, attempt bigint, why text, since timestamptz, claimed timestamptz, written_until timestamptz)",
        "SELECT 'raw', 'd9', 9, 'FORGOTTEN', '0001-01-01Z'::timestamptz, '9999-12-31Z'::timestamptz, NULL::timestamptz",
    ),
    "a list without an end": (
        "fixed_paths(text, text, integer)",
        "TABLE (datasetid text, dataid text, location text, current text)",
        "SELECT 'raw', 'd1', '/', '/'",
    ),
    "orders that are none": ("take_order(bigint, uuid)", "text", "SELECT 'rm -rf /'"),
}  # fmt: skip


def _replaced(stage: Stage, name: str, result: str, body: str) -> None:
    bare = name.partition("(")[0]
    arguments = stage.connection.execute(
        "SELECT pg_get_function_arguments(%s::regprocedure)", [f"dataflow.{name}"]
    ).fetchone()
    assert arguments is not None
    stage.connection.execute(
        f"ALTER FUNCTION dataflow.{name} RENAME TO {bare}__kept;"
        f"CREATE FUNCTION dataflow.{bare}({arguments[0]}) RETURNS {result} LANGUAGE sql AS $twin$ SELECT nextval('public.asked'); {body} $twin$".encode()
    )


def _put_right(stage: Stage, name: str) -> None:
    bare, _, types = name.partition("(")
    stage.connection.execute(
        f"DROP FUNCTION dataflow.{name}; ALTER FUNCTION dataflow.{bare}__kept({types} RENAME TO {bare}".encode()
    )


def test_no_answer_ends_the_daemon_or_leads_it_astray(dsn: str, tmp_path: Path) -> None:
    with opened(dsn, tmp_path) as stage:
        stage.connection.execute("CREATE SEQUENCE public.asked")
        for what, (name, result, body) in TWINS.items():
            _replaced(stage, name, result, body)
            asked = _calls(stage)
            stage.ready()
            for word in ("work", "control", "cancel"):
                stage.connection.execute("SELECT pg_notify('dataflow', %s)", [word])
            eventually(partial(_is_asked, stage, asked))
            _put_right(stage, name)
            assert stage.is_alive(), f"{what}: {stage.last_words()}"
            stage.work_off()
            assert stage.violations() == [], what


def _is_asked(stage: Stage, before: int) -> bool:
    return _calls(stage) > before + 1 or not stage.is_alive()


def _calls(stage: Stage) -> int:
    """How often the twins were called. A sequence also counts calls that were rolled back."""
    row = stage.connection.execute("SELECT last_value FROM public.asked").fetchone()
    return int(row[0]) if row else 0


def test_a_daemon_whose_row_names_another_session_goes_on(dsn: str, tmp_path: Path) -> None:
    """The daemon's row names another session, as after the restore of a backup or a manual change."""
    with opened(dsn, tmp_path) as stage:
        stage.connection.execute("UPDATE dataflow.daemon SET session_pid = 1")
        stage.work_off()


def test_every_call_of_a_daemon_declares_the_form_of_its_answer() -> None:
    package = Path(answers.__file__).parents[1]
    called = {
        name
        for path in package.rglob("*.py")
        for name in re.findall(
            r'(?:link\.call|self\._call)\(\s*"([a-z_]+)"', path.read_text(encoding="utf-8")
        )
    }
    assert called - answers.ANSWERS.keys() == set()
    assert len(called) > 20


CLAIM: dict[str, object] = {
    "attempt": 1,
    "token": "ab",
    "jobid": "work",
    "dataid": "d1",
    "number": 1,
    "tag": "tag",
    "params": {},
    "timeout": None,
}
WRONG_CLAIMS: list[dict[str, object]] = [
    {"attempt": True},
    {"attempt": -1},
    {"attempt": 1 << 63},
    {"token": "x"},
    {"token": None},
    {"jobid": "../work"},
    {"jobid": "work\n"},
    {"dataid": "../d1"},
    {"tag": "a b"},
    {"params": []},
    {"params": None},
    {"timeout": float("nan")},
    {"timeout": -1.0},
    {"timeout": True},
    {"timeout": "1"},
]


@pytest.mark.parametrize("changes", WRONG_CLAIMS, ids=str)
def test_a_claim_that_is_none_is_refused(changes: dict[str, object]) -> None:
    answers.check("daemon_claim", [tuple(CLAIM.values())])
    column = [*CLAIM].index(min(changes)) + 1
    with pytest.raises(answers.WrongAnswerError, match=f"daemon_claim has in column {column} "):
        answers.check("daemon_claim", [tuple((CLAIM | changes).values())])


@pytest.mark.parametrize("rows", [[(1,)], [()], [(*CLAIM.values(), 1)], [tuple(CLAIM.values())] * 257])
def test_claims_with_other_rows_or_columns_are_refused(rows: list[tuple[object, ...]]) -> None:
    with pytest.raises(answers.WrongAnswerError, match=r"daemon_claim has .*(rows|columns)"):
        answers.check("daemon_claim", rows)


NOW = datetime(2026, 1, 31, tzinfo=UTC)


@pytest.mark.parametrize(
    "moment", [NOW.replace(tzinfo=None), NOW.replace(year=9500), NOW.replace(year=1), "now"]
)
def test_an_impossible_time_is_refused(moment: object) -> None:
    answers.check("daemon_renew", [(NOW,)])
    with pytest.raises(answers.WrongAnswerError):
        answers.check("daemon_renew", [(moment,)])


@pytest.mark.parametrize("number", [True, "1", None, float("inf"), Decimal("NaN"), Decimal("1e400")])
def test_an_impossible_number_is_refused(number: object) -> None:
    for right in (1, 0.5, Decimal("1.5")):
        answers.check("daemon_look", [(right, 1, None, False)])
    with pytest.raises(answers.WrongAnswerError):
        answers.check("daemon_look", [(number, 1, None, False)])
