"""Opens passwords of datasets, in the process that executes the job, when the job first needs one.

The daemon says where the key is and which hosts may ask for a password in clear text (`offer`); it never reads the key.
An opened password is registered with `masking`, so that no line of the job's output shows it. It never goes into Spark's
configuration or default options: the caller passes it to the one connection that needs it.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dataflowd.model import masking
from dataflowd.model.errors import InvalidCredentialError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dataflowd.host.keyfile import KeySource, Ring
    from dataflowd.model.work_order import Dataset

KEY_VARIABLE = "DATAFLOW_RUNNER_KEY"
CLEARTEXT_VARIABLE = "DATAFLOW_RUNNER_CLEARTEXT"

_lock = threading.Lock()
_ring: list[Ring] = []


def offer(source: KeySource, cleartext_hosts: Sequence[str] = ()) -> dict[str, str]:
    """The variables for a runner's environment. Both come from the settings of this host, never from the database."""
    return {KEY_VARIABLE: json.dumps(source.document()), CLEARTEXT_VARIABLE: json.dumps(cleartext_hosts)}


@contextmanager
def offered(source: KeySource, cleartext_hosts: Sequence[str] = ()) -> Iterator[None]:
    """For a command that connects to a table itself: inside, passwords open with the key of the user who called it."""
    given = offer(source, cleartext_hosts)
    os.environ.update(given)
    try:
        yield
    finally:
        for name in given:
            del os.environ[name]


def may_ask_in_clear(dataset: Dataset) -> bool:
    from dataflowd.host import allowed_hosts  # noqa: PLC0415 - tables import this module

    there = dataset.connection
    return allowed_hosts.is_allowed(
        there.hostname, there.port, json.loads(os.environ.get(CLEARTEXT_VARIABLE, "[]"))
    )


def password_of(dataset: Dataset) -> str | None:
    """The opened password, or None if the dataset has no sealed one. Raises InvalidCredentialError."""
    from dataflowd.host.seal import Binding, keyid_of, unseal  # noqa: PLC0415 - most jobs open nothing, and need no cryptography

    connection = dataset.connection
    if connection.encryptedpass is None:
        return None
    keys = _keys()
    if keyid_of(connection.encryptedpass) not in keys:
        keys = _keys(again=True)
    password = unseal(connection.encryptedpass, keys, Binding.of(dataset))
    masking.hide(password)
    return password


def _keys(*, again: bool = False) -> Ring:
    """The keys, read once for all attempts of a runner. `again`: reads them again, because a rotation may have added the key."""
    from dataflowd.host.keyfile import KeySource  # noqa: PLC0415

    with _lock:
        if not _ring or again:
            if KEY_VARIABLE not in os.environ:
                raise InvalidCredentialError(
                    "this process was given no key", "only a job that a daemon runs can open a password"
                )
            _ring[:] = [KeySource.parse(json.loads(os.environ[KEY_VARIABLE])).ring()]
        return _ring[0]
