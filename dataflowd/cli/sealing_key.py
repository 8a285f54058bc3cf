"""Decides which key a command may seal with. The database offers a key, and an attacker who writes there could offer another.

If the setting `trusted_keys` is set, it decides. Otherwise the key has to be the one that this user has used before
(known_keys); the first key is shown and remembered. A rotation also needs the private half of the key on this host.
"""

from __future__ import annotations

import secrets
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from dataflowd.cli.ask import call
from dataflowd.model.errors import InvalidCredentialError
from dataflowd.model.masking import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    import psycopg

    from dataflowd.host.keyfile import Ring
    from dataflowd.host.known_keys import KnownKeys
    from dataflowd.host.seal import PublicKey
    from dataflowd.host.settings import Settings


def tell(line: str) -> None:
    """Prints a line for the person to stderr; scripts read standard output."""
    sys.stderr.write(printable(line) + "\n")
    sys.stderr.flush()


def offered(connection: psycopg.Connection) -> PublicKey:
    """Returns the key that the database offers; refuses a key whose id does not fit it."""
    from dataflowd.host.seal import PublicKey

    [row] = call("sealing_key").send(connection)
    key = PublicKey(row["suite"], bytes(row["public_key"]))
    if key.keyid != row["keyid"]:
        raise InvalidCredentialError(
            f"the public key in the database is not the key {row['keyid']}: somebody has exchanged it",
            "seal nothing, and find out who wrote to the table key",
        )
    return key


def accepted(connection: psycopg.Connection, settings: Settings, confirmed: str | None) -> PublicKey:
    """Returns the key to seal with, and remembers it. `confirmed`: the id that a person has typed."""
    key = offered(connection)
    require_confirmed(key, confirmed)
    if settings.trusted_keys:
        require_trusted(key.keyid, settings)
        return key
    held = _held(settings)
    is_sure = confirmed is not None or key.keyid in held
    known = _known_keys(connection, is_sure=is_sure)
    if known is None or (before := known.keyid) == key.keyid:
        return key
    if confirmed is None:
        _require_expected(key, known, before, held)
    _remember(known, key.keyid, is_sure=is_sure)
    return key


def require_trusted(keyid: str, settings: Settings) -> None:

    if settings.trusted_keys and keyid not in settings.trusted_keys:
        raise InvalidCredentialError(
            f"the database offers the key {keyid}, which is not one of the trusted_keys of this host",
            "find out who made it; if it is right, add it to the setting trusted_keys",
        )


def require_held(key: PublicKey, ring: Ring) -> None:
    """Raises unless this host holds the private half. Seals and opens a probe, because an id alone proves nothing."""
    from dataflowd.host.seal import Binding, seal, unseal

    probe, binding = secrets.token_hex(16), Binding("", None, None, None)
    if key.keyid not in ring or unseal(seal(probe, key, binding), ring, binding) != probe:
        raise InvalidCredentialError(
            f"the database offers the key {key.keyid}, and its private half is not on this host: whoever has the private half "
            "can read every password that is sealed with this key",
            "find out who added it; if another host of yours made it, copy the key file from there first; if not, retire it "
            f"with dataflow.retire_key('{key.keyid}') in `dataflowctl psql`",
        )


def require_newest(connection: psycopg.Connection, key: PublicKey, ring: Ring, used: Iterable[str]) -> None:
    """Raises if the offered key is older than a key in use: an old key, which may have leaked, must not come back."""
    order = list(ring)  # as they were added to the file
    newer = [one for one in (remembered(connection), *used) if one in order[order.index(key.keyid) + 1 :]]
    if newer:
        raise InvalidCredentialError(
            f"the database offers the key {key.keyid}, which is older than the key {newer[0]} in use",
            "find out who made it current again; if that is intended, confirm it: "
            f"dataflowctl key rotate --key {key.keyid}",
        )


def remembered(connection: psycopg.Connection) -> str | None:
    """Returns the key that this user has used before."""
    known = _known_keys(connection, is_sure=True)
    return known.keyid if known else None


def remember_own(connection: psycopg.Connection, keyid: str, settings: Settings) -> None:
    """Remembers a key that this host has made, or whose private half it holds. Failing to remember it is only a warning."""
    if not settings.trusted_keys:
        known = _known_keys(connection, is_sure=True)
        if known is not None and known.keyid != keyid:
            _remember(known, keyid, is_sure=True)


def require_confirmed(key: PublicKey, confirmed: str | None) -> None:

    if confirmed is not None and confirmed != key.keyid:
        raise InvalidCredentialError(
            f"the database offers the key {key.keyid}, and not {confirmed}",
            "ask the person who runs the jobs for the id of the key, and find out where the other key comes from",
        )


def _require_expected(key: PublicKey, known: KnownKeys, before: str | None, held: list[str]) -> None:

    if before is not None:
        message = f"the database offers the key {key.keyid}, and {known.path} remembers {before}"
    elif held and key.keyid not in held:
        message = (
            f"the database offers the key {key.keyid}, and the key file of this host has {', '.join(held)}"
        )
    else:
        return
    raise InvalidCredentialError(
        f"{message}: the key was rotated, or somebody wants to read what you seal",
        f"ask the person who runs the jobs for the id of the key; only if it is this one, confirm it: --key {key.keyid}",
    )


def _known_keys(connection: psycopg.Connection, *, is_sure: bool) -> KnownKeys | None:
    """Returns None, with a warning, if this user has no place for known keys. Raises instead unless the key is sure to be right."""
    from dataflowd.host import known_keys

    try:
        return known_keys.of(connection)
    except InvalidCredentialError as error:
        if not is_sure:
            raise
        tell(f"warning: {error.message}; {error.remedy}")
        return None


def _remember(known: KnownKeys, keyid: str, *, is_sure: bool) -> None:

    try:
        known.remember(keyid)
    except InvalidCredentialError as error:
        if not is_sure:
            raise
        tell(f"warning: {error.message}; {error.remedy}")
    else:
        tell(f"key {keyid} is remembered in {known.path}; another key is refused from now on")


def _held(settings: Settings) -> list[str]:
    """Returns the ids of the keys in this host's key file; none if this user may not read it."""
    from dataflowd.host.keyfile import KeySource

    with suppress(InvalidCredentialError, OSError):
        return KeySource.of(settings).keyids()
    return []
