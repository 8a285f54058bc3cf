"""The words of a command: `{NAME}` in one stands for what the script finds in its environment as NAME.

Values come from the database, and what is executed never does. So nothing is replaced in the words that say what is
executed: the program, and behind one that starts another (`env`, `python3`, `sh -c`) that other one too. No value becomes
an option, and no password a word, for everybody on the host can read these. `{{NAME}}` is the text `{NAME}`; braces around
anything but a name stay as they are, and so does `${NAME}`.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from dataflowd.model.faults import AttemptError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Programs that are told what to execute.
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
    """Raises AttemptError for what the flow's own check could not see: values, and what the database knows otherwise."""
    executed = executed_places(words)
    return [word if place in executed else _filled(word, values) for place, word in enumerate(words)]


def names(word: str) -> list[str]:
    return [found["name"] for found in _PLACE.finditer(word) if found["name"]]


def shell_names(word: str) -> list[str]:
    """Variables as a shell reads them. In a word with blanks they may be meant for one."""
    return [] if re.search(r"\s", word) else _SHELL.findall(word)


def executed_places(words: Sequence[str]) -> set[int]:
    if words[0].startswith("-"):  # options of spark-submit: which word is the application, it alone knows
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
                f"the command has {{{name}}} in {word!r}, which this run knows nothing of",
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
