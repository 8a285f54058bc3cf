"""Which hosts tables may be on.

Host names come from the control database. Without this check, anybody who can write there could have data or passwords
sent to a host of their own. So all code that connects to a table asks here first, before it opens a password.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from dataflowd.model import formats
from dataflowd.model.faults import AttemptError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataflowd.model.work_order import Dataset

DEFAULT_PORT = 5432
SCHEME = "postgres://"
LOCAL = "localhost"  # also stands for a table without a hostname, which libpq reaches by its own socket

# The form that dataflowd.storage.tables.place.Table.url writes. Each part is quoted, so it holds no separator of a URL.
_TABLE = re.compile(
    rf"{SCHEME}(?P<host>[A-Za-z0-9_.~%-]+)(?::(?P<port>[0-9]{{1,5}}))?/[A-Za-z0-9_.~%-]*/[A-Za-z0-9_.~%-]+"
)


def is_allowed(host: str | None, port: int | None, allowed_hosts: Sequence[str]) -> bool:
    """An entry is a host (any port) or host:port. A list of hosts, which libpq would accept, equals no entry."""
    name = (host or LOCAL).lower()
    names = {name, f"{name}:{port or DEFAULT_PORT}"}
    return any(entry.lower() in names for entry in allowed_hosts)


def check(dataset: Dataset, allowed_hosts: Sequence[str]) -> None:
    """Raises INVALID_PATH."""
    there = dataset.connection
    if not is_allowed(there.hostname, there.port, allowed_hosts):
        raise _not_allowed(dataset.name, there.hostname or LOCAL, allowed_hosts)


def is_table(kind: str, location: str) -> bool:
    """Whether a chunk's location names a table, in the form that a manifest has."""
    return kind in formats.TABLES and location.startswith(SCHEME)


def check_table(name: str, location: str, allowed_hosts: Sequence[str]) -> None:
    """Raises INVALID_PATH. The manifest may name an older host than the dataset; that host must be allowed too."""
    found = _TABLE.fullmatch(location)
    if found is None:
        raise AttemptError(
            "INVALID_PATH",
            f"dataset {name}: {location!r:.200} is not where a table may be",
            "make the chunk again: `dataflowctl resubmit` on its producer",
        )
    host, port = unquote(found["host"]), int(found["port"] or DEFAULT_PORT)
    if not is_allowed(host, port, allowed_hosts):
        raise _not_allowed(name, host, allowed_hosts)


def _not_allowed(name: str, host: str, allowed_hosts: Sequence[str]) -> AttemptError:
    return AttemptError(
        "INVALID_PATH",
        f"dataset {name}: {host} is no host that tables may be on here",
        f"allowed are {', '.join(allowed_hosts) or 'none'}: add it to the setting allowed_hosts",
    )
