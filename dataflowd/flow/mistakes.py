"""Collects the mistakes of a flow file, and raises all of them at once, sorted by line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataflowd.model.errors import InvalidFlowError
from dataflowd.model.plural import counted

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from dataflowd.flow.source import Key, Source


@dataclass(frozen=True, order=True)
class Mistake:
    line: int
    what: str
    remedy: str

    def told(self, path: Path) -> str:
        return f"{path}:{self.line}: {self.what}; {self.remedy}"


class FlowMistakesError(InvalidFlowError):
    """All mistakes of one file, each as a line `file:line: what; remedy`."""

    def __init__(self, path: Path, mistakes: Iterable[Mistake]) -> None:
        self.path = path
        self.mistakes = sorted(set(mistakes))
        count = counted(len(self.mistakes), "mistake")
        super().__init__(
            "\n".join([f"{path} has {count}", *(mistake.told(path) for mistake in self.mistakes)])
        )


class Report:
    """Gathers the mistakes of one source while it is being read."""

    def __init__(
        self,
        source: Source,
        lacking: dict[str, Mistake] | None = None,
        unreachable: dict[str, Mistake] | None = None,
    ) -> None:
        self.source = source
        self.mistakes: list[Mistake] = []
        self.lacking = lacking
        self.unreachable = unreachable

    def add(self, key: Key, what: str, remedy: str) -> None:
        self.mistakes.append(Mistake(self.source.line(key), what, remedy))

    def lacks_code(self, key: Key, what: str, remedy: str) -> None:
        """Reports missing code: as a mistake, or in `lacking` if the caller can leave the job out."""
        if self.lacking is None:
            self.add(key, what, remedy)
        else:
            self.lacking[str(key[-2])] = Mistake(self.source.line(key), what, remedy)

    def elsewhere(self, key: Key, what: str, remedy: str) -> None:
        """Reports a forbidden location or host: as a mistake, or in `unreachable` if the caller can leave its jobs out."""
        if self.unreachable is None:
            self.add(key, what, remedy)
        else:
            self.unreachable[str(key[1])] = Mistake(self.source.line(key), what, remedy)

    def raise_if_any(self) -> None:
        if self.mistakes:
            raise FlowMistakesError(self.source.path, self.mistakes)
