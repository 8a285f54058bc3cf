"""Which hosts tables may be on. Host names come from the control database: who can write there could otherwise have data
or passwords sent to a host of his own. So whatever goes to a table asks here first, before a password is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataflowd.faults import AttemptError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataflowd.order import Dataset

DEFAULT_PORT = 5432
LOCAL = "localhost"  # also what a table without a hostname is taken for: libpq's own socket


def is_allowed(host: str | None, port: int | None, allowed_hosts: Sequence[str]) -> bool:
    """An entry is a host, for any port, or host:port. A list of hosts, as libpq takes it, is equal to no entry."""
    name = (host or LOCAL).lower()
    names = {name, f"{name}:{port or DEFAULT_PORT}"}
    return any(entry.lower() in names for entry in allowed_hosts)


def check(dataset: Dataset, allowed_hosts: Sequence[str]) -> None:
    """Raises INVALID_PATH."""
    there = dataset.connection
    if not is_allowed(there.hostname, there.port, allowed_hosts):
        raise AttemptError(
            "INVALID_PATH",
            f"dataset {dataset.name}: {there.hostname or LOCAL} is no host that tables may be on here",
            f"allowed are {', '.join(allowed_hosts) or 'none'}: add it to the setting allowed_hosts",
        )
