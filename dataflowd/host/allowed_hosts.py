"""Which hosts tables may be on. Host names come from the control database: who can write there could otherwise have data
or passwords sent to a host of his own. So whatever goes to a table asks here first, before a password is opened.
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
LOCAL = "localhost"  # also what a table without a hostname is taken for: libpq's own socket

# As dataflowd.storage.tables.place.Table.url writes it: each part is quoted, so that no sign of a URL is in one.
_TABLE = re.compile(
    rf"{SCHEME}(?P<host>[A-Za-z0-9_.~%-]+)(?::(?P<port>[0-9]{{1,5}}))?/[A-Za-z0-9_.~%-]*/[A-Za-z0-9_.~%-]+"
)


def is_allowed(host: str | None, port: int | None, allowed_hosts: Sequence[str]) -> bool:
    """An entry is a host, for any port, or host:port. A list of hosts, as libpq takes it, is equal to no entry."""
    name = (host or LOCAL).lower()
    names = {name, f"{name}:{port or DEFAULT_PORT}"}
    return any(entry.lower() in names for entry in allowed_hosts)


def check(dataset: Dataset, allowed_hosts: Sequence[str]) -> None:
    """Raises INVALID_PATH."""
    there = dataset.connection
    if not is_allowed(there.hostname, there.port, allowed_hosts):
        raise _not_allowed(dataset.name, there.hostname or LOCAL, allowed_hosts)


def is_table(kind: str, location: str) -> bool:
    """Whether a chunk's location is that of a table, as a manifest names it."""
    return kind in formats.TABLES and location.startswith(SCHEME)


def check_table(name: str, location: str, allowed_hosts: Sequence[str]) -> None:
    """Raises INVALID_PATH. The table may have moved since: another host than the dataset's has to be allowed too."""
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
