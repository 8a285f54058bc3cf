"""Rules for every message: it says what happened, to what, and what to type next. `python -m tests.messages` lists all messages."""

from __future__ import annotations

import re

import pytest

from dataflowd.host import sqlfiles
from tests.messages import Message, collected

MESSAGES = collected()
LEAST = 500  # fewer means that the collector no longer works, and the tests check nothing

# Messages that need no remedy here: there is nothing to type, or the remedy comes with the text from elsewhere.
WITHOUT_REMEDY = {
    "sql/functions/declare.sql RAISE": "each caller gives the remedy",
    "dataflowd/engine/script_process.py AttemptError": "what the process that becomes the script has said, remedy and all",
    "dataflowd/engine/orders.py ClaimLostError": "the daemon gives the run back; nobody reads it but in the log",
    "dataflowd/storage/foreign_types.py ForeignTypeError": "caught, and told with a remedy",
    "dataflowd/runner/explain.py AttemptError": "a cancelled attempt: its chunk says who did it",
    "sql/functions/apply.sql RAISE": "the remedy is the conflict's",
    "sql/functions/mapping.sql RAISE": "the remedy is the mapping's fault in words",
    "sql/functions/claim.sql RAISE": "a daemon is told, not a person",
}
# Messages whose number cannot be 1.
ALWAYS_MANY = (
    "{} runs are in the foreground already",
    "job {} has {} outputs, and a SQL file makes one",
    "dataset {}: {} chunks are wanted, and",
)
THINGS = (
    r"runs(?! on\b| already)|jobs|chunks|datasets|records|rows|files|attempts|batches|keys|columns|changes|events|questions|causes|"
    r"versions|directories|passwords|daemons|dataids|lines|messages|others|places|inputs|outputs|parts"
)
PLURAL = re.compile(rf"(?:\{{\}}|%s|%) (?:{THINGS})\b")
# A message begins in lower case. Exceptions: proper names such as Python and Postgres, and names in capitals.
BEGINS = re.compile(r"[a-z`%{'\[(-]|[A-Z_]{2}|NOTIFY|LISTEN|Postgres|Java|Spark|Python")


def place(message: Message) -> str:
    return f"{message.where.partition(':')[0]} {message.name}"


def told(message: Message) -> list[str]:
    return [text for text in (message.text, message.remedy or "") if text]


def test_the_list_of_messages_is_complete() -> None:
    assert len(MESSAGES) > LEAST
    assert {message.kind for message in MESSAGES} == {"error", "usage", "mistake", "finding", "answer", "sql"}
    assert any("needs a yes" in message.text for message in MESSAGES)
    assert any(message.remedy == "it is 0 or more; 0 starts nothing" for message in MESSAGES)


def test_every_error_has_a_remedy() -> None:
    is_due = [
        message
        for message in MESSAGES
        if message.kind in {"error", "mistake", "sql"}
        or (message.kind == "finding" and message.name.endswith((" failed", " warning")))
    ]
    lacking = {place(message) for message in is_due if not message.remedy}
    assert lacking - set(WITHOUT_REMEDY) == set()


def test_messages_count_in_singular_and_plural() -> None:
    """No message says `1 runs`: numbers come from dataflowd.model.plural, in SQL from dataflow._counted."""
    assert [
        str(message)
        for message in MESSAGES
        for text in told(message)
        if PLURAL.search(text) and not text.startswith(ALWAYS_MANY) and "at most {}" not in text
        if not re.search(r"more than % dataids|at most % directories", text)
    ] == []


@pytest.mark.parametrize("name", [path.name for path in sqlfiles.functions()])
def test_sql_functions_count_in_singular_and_plural(name: str) -> None:
    [path] = [path for path in sqlfiles.functions() if path.name == name]
    texts = re.findall(r"format\('((?:[^']|'')*)'", path.read_text(encoding="utf-8"))
    assert [text for text in texts if PLURAL.search(text)] == []


def test_the_remedy_of_an_attempt_does_not_repeat_the_resubmit() -> None:
    """`why` appends `dataflowctl resubmit JOB --dataid X` to the remedy, so the remedy itself does not say `then resubmit`."""
    assert [
        str(message)
        for message in MESSAGES
        if message.name == "AttemptError" and re.search(r"then (resubmit|try again)", message.remedy or "")
    ] == []


def test_messages_are_clauses_and_not_sentences() -> None:
    """A message stands between a code and a remedy: no capital letter, no full stop, no exclamation mark."""
    spoken = [message for message in MESSAGES if message.kind != "answer"]
    assert [str(message) for message in spoken for text in told(message) if not BEGINS.match(text)] == []
    assert [
        str(message)
        for message in spoken
        for text in told(message)
        if text.endswith((".", "!")) and not text.endswith("...")
    ] == []


def test_messages_have_no_empty_phrases() -> None:
    empty = re.compile(
        r"\b(please|sorry|oops|illegal|unexpected error|something went wrong|invalid input|bad request)\b",
        re.IGNORECASE,
    )
    assert [str(message) for message in MESSAGES for text in told(message) if empty.search(text)] == []
