"""Opens a keyed source while it is being split: a table through its own database, files through a Spark in this process."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from psycopg import IsolationLevel

from dataflowd.host import allowed_roots, passwords, scratch
from dataflowd.host.keyfile import KeySource
from dataflowd.model import formats
from dataflowd.model.errors import NotAllowedError
from dataflowd.runner.own_spark import own_spark
from dataflowd.storage.partition.files import FileSource
from dataflowd.storage.partition.table import TableSource
from dataflowd.storage.tables import catalog
from dataflowd.storage.tables.place import table_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dataflowd.host.settings import Settings
    from dataflowd.model.work_order import Dataset
    from dataflowd.storage.partition.plan import Source


@contextmanager
def opened(dataset: Dataset, columns: Sequence[str], settings: Settings) -> Iterator[Source]:
    """Yields the source, open until the block ends."""
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
    hosts = settings.effective_allowed_hosts
    with (
        passwords.offered(KeySource.of(settings), settings.cleartext_hosts),
        catalog.connection(table_of(dataset, hosts)) as connection,
    ):
        connection.isolation_level, connection.read_only = IsolationLevel.REPEATABLE_READ, True
        with connection.transaction():
            yield TableSource(connection, dataset, columns, hosts)


@contextmanager
def _opened_files(dataset: Dataset, columns: Sequence[str], settings: Settings) -> Iterator[Source]:
    location = dataset.location or ""
    if "{dataid}" in location:
        raise NotAllowedError(
            f"dataset {dataset.name} has a place for each chunk ({location}), and is split already",
            "split a dataset whose location has no {dataid}",
        )
    allowed_roots.check(location, settings.effective_allowed_roots)
    allowed_roots.check_below(location, settings.effective_allowed_roots)
    with own_spark(settings, "*", scratch.SPLIT, java_below=settings.data_dir) as spark:
        yield FileSource(spark, dataset, location, columns)
