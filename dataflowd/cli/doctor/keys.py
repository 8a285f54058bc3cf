"""The doctor's checks of keys and sealed passwords: whether they open, and whether a foreign key would be noticed."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from dataflowd.cli.doctor.finding import Finding
from dataflowd.database import db
from dataflowd.host import known_keys
from dataflowd.host.keyfile import KeySource
from dataflowd.host.seal import WITHOUT_PORT, Binding, unseal
from dataflowd.model.connection_changes import Change, describe_changes
from dataflowd.model.errors import InvalidCredentialError
from dataflowd.model.plural import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from dataflowd.host.settings import Settings


OPENS = "opens"
OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def examine(settings: Settings, connection: psycopg.Connection) -> Iterator[Finding]:
    """Opens every sealed password as a job would. Reports nothing if no password is sealed."""
    yield from _pinned(settings, connection)
    sealed = connection.execute(db.query("credentials")).fetchall()
    if not sealed:
        return
    yield _who_opens(settings)
    try:
        ring = KeySource.of(settings).ring()
    except InvalidCredentialError as error:
        yield Finding("key", "failed", f"{error.code}: {error.message}", error.remedy)
        return
    is_right = True
    for *bound, value in sealed:
        try:
            unseal(value, ring, Binding(*bound))
        except InvalidCredentialError as error:
            is_right = False
            reason = ", ".join(filter(None, (error.message, _changed(connection, bound[0]))))
            yield Finding("key", "failed", f"{error.code}: {reason}", error.remedy)
    if is_right:
        yield Finding("key", "ok", f"opens the passwords of {counted(len(sealed), 'dataset')}")
    unbound = [bound[0] for *bound, value in sealed if value.startswith(f"{WITHOUT_PORT}.")]
    if unbound:
        yield Finding(
            "key",
            "warning",
            f"the passwords of {', '.join(unbound)} open for any port of their host: an earlier release has sealed them",
            "when every host runs this release: dataflowctl key rotate",
        )


def _who_opens(settings: Settings) -> Finding:
    """Reports whether the daemon's user could open passwords, or has no right to. Root always could."""
    source = KeySource.of(settings)
    file, user = source.file, settings.runner_user
    place = "what key_command prints" if file is None else str(file)
    if not user:
        return Finding(
            OPENS,
            "ok",
            f"the framework does not open passwords, but could: jobs and daemon run as one user, who can read {place}",
            "if the daemon must not be able to open them: set runner_user, as docs/security.md says",
        )
    if file is not None and file.exists() and (file.stat().st_uid != 0 or file.stat().st_mode & OF_OTHERS):
        return Finding(
            OPENS,
            "warning",
            f"runner_user is {user}, but others than root can read {file}",
            f"chown root: {file} && chmod 600 {file}",
        )
    how = (
        f"only {user} runs key_command"
        if file is None
        else f"{file} is root's, and only what becomes a job of {user} gets a copy"
    )
    return Finding(OPENS, "ok", f"the framework cannot open passwords, root apart: {how}")


def _pinned(settings: Settings, connection: psycopg.Connection) -> Iterator[Finding]:
    """Reports whether a key that somebody else adds to the database would be noticed. Reports nothing without a key."""
    offered = [str(row[0]) for row in connection.execute(db.query("keys"), {"every": False}) if row[-1]]
    if not offered or set(offered) <= set(settings.trusted_keys):
        return
    if settings.trusted_keys:
        yield Finding(
            "key",
            "warning",
            f"the database offers the key {offered[0]}, which is not one of the trusted_keys",
            "seal nothing; find out who made it, and add it to trusted_keys only if it is right",
        )
        return
    try:
        remembered = known_keys.of(connection).keyid
    except InvalidCredentialError as error:
        yield Finding("key", "warning", error.message, error.remedy)
        return
    if remembered is None:
        yield Finding(
            "key",
            "warning",
            f"nothing on this host confirms the key {offered[0]}, which the database offers to seal with",
            "compare it with the key file of the host that runs the jobs, then name it in the setting trusted_keys",
        )
    elif remembered not in offered:
        yield Finding(
            "key",
            "warning",
            f"the database offers the key {offered[0]}, and this user knows {remembered}: it was rotated, or exchanged",
            f"ask who runs the jobs; if it is right: dataflowctl seal DATASET --key {offered[0]}",
        )


def _changed(connection: psycopg.Connection, datasetid: str) -> str:
    rows = connection.execute(db.query("connection_changes"), {"datasetid": datasetid, "jobid": None})
    return describe_changes([Change(*row) for row in rows])
