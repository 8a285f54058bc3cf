"""Fills in the words of a command: `{NAME}` in a word is replaced by the value of the script's variable NAME.

Values come from the database; the code that is executed never does. So nothing is replaced in words that say what is
executed: the program, and after a program that starts another (`env`, `python3`, `sh -c`) that other program too. A value
must not become an option. A password must not become a word, because every user of the host can read a process's words.
`{{NAME}}` is the text `{NAME}`. Braces around anything but a name stay as they are, and so does `${NAME}`.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from dataflowd.model.faults import AttemptError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Programs whose words say what to execute.
_SHELLS = ("ash", "awk", "bash", "busybox", "dash", "fish", "gawk", "ksh", "mawk", "sh", "zsh")
_INTERPRETERS = ("java", "node", "perl", "php", "python", "Rscript", "ruby")
_WRAPPERS = ("env", "ionice", "nice", "nohup", "setsid", "stdbuf", "sudo", "time", "timeout", "xargs")
STARTERS = frozenset((*_SHELLS, *_INTERPRETERS, *_WRAPPERS))

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_PLACE = re.compile(rf"\{{(?P<text>\{{{_NAME}\}})\}}|(?<!\$)\{{(?P<name>{_NAME})\}}")
_SHELL = re.compile(rf"\$\{{?({_NAME})")
_ASSIGNMENT = re.compile(rf"{_NAME}=")
_BEFORE_TEXT = re.compile(r"-[A-Za-z]*[ce]")  # sh -c, bash -euc, perl -e
_BEFORE_VALUE = frozenset({"-o", "+o", "-O", "+O"})  # bash -o pipefail
_NUMBER = re.compile(r"-?[0-9][0-9.]*[smhd]?")


def filled(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """The words with their values. Raises AttemptError for an unknown name, and for a value that becomes an option."""
    executed = executed_places(words)
    return [word if place in executed else _filled(word, values) for place, word in enumerate(words)]


def names(word: str) -> list[str]:
    return [found["name"] for found in _PLACE.finditer(word) if found["name"]]


def shell_names(word: str) -> list[str]:
    """The variables of a word in the form of a shell. Empty for a word with blanks, which may be a text for a shell."""
    return [] if re.search(r"\s", word) else _SHELL.findall(word)


def executed_places(words: Sequence[str]) -> set[int]:
    if words[0].startswith(
        "-"
    ):  # options of spark-submit: only spark-submit knows which word is the application
        return set(range(len(words)))
    found = {0}
    if not _starts(words[0]):
        return found
    for place, word in enumerate(words[1:], 1):
        before = words[place - 1]
        if _ASSIGNMENT.match(word):
            continue
        found.add(place)
        is_program = not word.startswith(("-", "+")) and before not in _BEFORE_VALUE
        if _BEFORE_TEXT.fullmatch(before) or (
            is_program and not _starts(word) and not _NUMBER.fullmatch(word)
        ):
            break
    return found


def _starts(program: str) -> bool:
    return PurePath(program).name.rstrip("0123456789.") in STARTERS


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name in names(word):
        if name not in values:
            raise AttemptError(
                "INVALID_CODE",
                f"the command has {{{name}}} in {word!r}, which is no variable of this run",
                "apply the flow file that this host runs",
            )
    made = _PLACE.sub(lambda found: values[found["name"]] if found["name"] else found["text"], word)
    if made.startswith("-") and not word.startswith("-") and not _NUMBER.fullmatch(made):
        raise AttemptError(
            "INVALID_ORDER",
            f"the word {word} of the command would become the option {made:.100}",
            "put a text before it, such as --name=, or see who writes to the control database",
        )
    return made
