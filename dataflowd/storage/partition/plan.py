"""Plans the batches of a keyed source: their names, bounds and numbers of records.

The source finds the boundaries: the database of a table, or Spark for files. The same split of the same source gives the
same batches. Records without a key are a batch of their own; a source without records has no batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Kind = Literal["size", "every", "count", "ids"]
MOST_KEYS = 100_000


@dataclass(frozen=True)
class Split:
    name: str
    columns: tuple[str, ...]
    kind: Kind
    size: int | None = None
    keys: tuple[tuple[str, ...], ...] = ()


class Source(Protocol):
    def counts(self) -> tuple[int, int]: ...

    def keyless(self) -> int: ...

    def ranges(self, size: int) -> list[tuple[dict[str, Any], int]]: ...


def batches(source: Source, split: Split) -> list[dict[str, Any]]:
    """In the form that dataflow.create_partitioning takes."""
    found: Sequence[tuple[dict[str, Any], int | None]]
    match split.kind:
        case "ids":
            return [_batch(split, "1", {"keys": [list(key) for key in split.keys]}, len(split.keys))]
        case "every":
            records, keys = source.counts()
            every = split.size or 1
            is_unique = records == keys
            found = [
                ({"every": every, "rest": rest}, (keys - rest + every - 1) // every if is_unique else None)
                for rest in range(min(every, keys))
            ]
        case "count":
            records, _ = source.counts()
            found = source.ranges(max(1, -(-records // (split.size or 1))))
        case "size":
            found = source.ranges(split.size or 1)
    named = [
        _batch(split, str(number), bounds, items) for number, (bounds, items) in enumerate(found, start=1)
    ]
    keyless = source.keyless()
    return [*named, _batch(split, "null", {"null": True}, keyless)] if keyless else named


def ranges(begins: Mapping[tuple[str, ...], int], records: int) -> list[tuple[dict[str, Any], int]]:
    """The bounds from each key to the next, with the number of records. `begins`: how many records come before each key."""
    edges = [None, *list(begins)[1:], None] if begins else []
    counts = [*begins.values(), records]
    return [
        ({"low": low and list(low), "high": high and list(high)}, after - before)
        for (low, high), (before, after) in zip(pairwise(edges), pairwise(counts), strict=True)
    ]


def _batch(split: Split, place: str, bounds: dict[str, Any], items: int | None) -> dict[str, Any]:
    return {"dataid": f"{split.name}.{place}", "bounds": bounds, "items": items}
