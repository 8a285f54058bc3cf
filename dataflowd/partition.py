"""Splits a keyed source into batches, and names them. The source itself finds the boundaries; here they become data.

A partitioning of a table is computed by its database, one of files by Spark. The same split of the same source gives the
same batches. Records without a key are a batch of their own; a source without records has none.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Protocol

from dataflowd import formats
from dataflowd.errors import NotAllowedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dataflowd.order import Dataset
    from dataflowd.settings import Settings

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
    """As dataflow.create_partitioning takes them."""
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
    """Bounds from one key to the next, each with its number of records. `begins`: how many come before each key."""
    edges = [None, *list(begins)[1:], None] if begins else []
    counts = [*begins.values(), records]
    return [
        ({"low": low and list(low), "high": high and list(high)}, after - before)
        for (low, high), (before, after) in zip(pairwise(edges), pairwise(counts), strict=True)
    ]


def _batch(split: Split, place: str, bounds: dict[str, Any], items: int | None) -> dict[str, Any]:
    return {"dataid": f"{split.name}.{place}", "bounds": bounds, "items": items}


@contextmanager
def opened(dataset: Dataset, columns: Sequence[str], settings: Settings) -> Iterator[Source]:
    """The source, for as long as it is being split."""
    if dataset.format in formats.TABLES:
        with _opened_table(dataset, columns, settings) as source:
            yield source
    elif dataset.format in formats.FILES:
        with _opened_files(dataset, columns, settings) as source:
            yield source
    else:
        raise NotAllowedError(
            f"dataset {dataset.name} has the format {dataset.format}, which cannot be split",
            "split a table in Postgres, or files",
        )


@contextmanager
def _opened_table(dataset: Dataset, columns: Sequence[str], settings: Settings) -> Iterator[Source]:
    from psycopg import IsolationLevel  # noqa: PLC0415

    from dataflowd.keyfile import KeySource  # noqa: PLC0415
    from dataflowd.runner import secrets  # noqa: PLC0415
    from dataflowd.tables import catalog  # noqa: PLC0415
    from dataflowd.tables.place import table_of  # noqa: PLC0415
    from dataflowd.tables.splitting import TableSource  # noqa: PLC0415

    hosts = settings.effective_allowed_hosts
    with (
        secrets.offered(KeySource.of(settings), settings.cleartext_hosts),
        catalog.connection(table_of(dataset, hosts)) as connection,
    ):
        connection.isolation_level, connection.read_only = IsolationLevel.REPEATABLE_READ, True
        with connection.transaction():
            yield TableSource(connection, dataset, columns, hosts)


@contextmanager
def _opened_files(dataset: Dataset, columns: Sequence[str], settings: Settings) -> Iterator[Source]:
    import os  # noqa: PLC0415
    import shutil  # noqa: PLC0415
    import tempfile  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    from dataflowd import leftovers, paths, supervise  # noqa: PLC0415
    from dataflowd.embedded import java  # noqa: PLC0415
    from dataflowd.runner import session  # noqa: PLC0415
    from dataflowd.splitting import FileSource  # noqa: PLC0415

    location = dataset.location or ""
    if "{dataid}" in location:
        raise NotAllowedError(
            f"dataset {dataset.name} has a place for each chunk ({location}), and is split already",
            "split a dataset whose location has no {dataid}",
        )
    paths.check(location, settings.effective_allowed_roots)
    paths.check_below(location, settings.effective_allowed_roots)
    os.environ.update(java.environment(java.find(settings)))
    leftovers.remove(settings)
    scratch = supervise.own_directory(Path(tempfile.gettempdir()), leftovers.SPLIT)
    try:
        quiet = {"spark.log.level": "ERROR"}
        spark = session.start(session.configuration(quiet, "local[*]", str(scratch), leftovers.SPLIT))
        try:
            yield FileSource(spark, dataset, location, columns)
        finally:
            spark.stop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
