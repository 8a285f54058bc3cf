"""Sealed passwords: anybody with the public key can seal a password, and only the private key opens it.

HPKE (RFC 9180) encrypts; the suites are its post-quantum hybrid and plain X25519. A sealed value is one line of text,
`dataflowd-sealed-v2.<suite>.<keyid>.<base64>`. Its binding (datasetid, username, hostname, port, database) is part of the
encryption: a value that was copied to another dataset, or whose host or port was changed, does not open. So somebody
who writes to the control database cannot have a password sent elsewhere. Passwords are padded, so that a sealed value
does not show their length. Values of the first form, `dataflowd-sealed-v1`, do not bind the port; they still open.

The id of a key is a hash of its public key. If somebody replaces the public key in the database, its id differs.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)

from dataflowd.host.allowed_hosts import DEFAULT_PORT, LOCAL
from dataflowd.model.errors import InvalidCredentialError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dataflowd.model.work_order import Dataset

FORMAT = "dataflowd-sealed-v2"
WITHOUT_PORT = "dataflowd-sealed-v1"
HYBRID = "mlkem768-x25519"
PLAIN = "x25519"
KEYID_CHARACTERS = 32
PADDED_BYTES = 64
MLKEM_SEED_BYTES = 64
MLKEM_PUBLIC_BYTES = 1184


class _Kind(Protocol):
    """Makes the keys of a suite, and converts them from and to bytes."""

    hpke: Suite

    def generate(self) -> bytes: ...
    def private(self, raw: bytes) -> Any: ...
    def public(self, raw: bytes) -> Any: ...
    def public_of(self, raw: bytes) -> bytes: ...


class _Hybrid:
    hpke = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)

    def generate(self) -> bytes:
        return (
            MLKEM768PrivateKey.generate().private_bytes_raw()
            + X25519PrivateKey.generate().private_bytes_raw()
        )

    def private(self, raw: bytes) -> MLKEM768X25519PrivateKey:
        return MLKEM768X25519PrivateKey(
            MLKEM768PrivateKey.from_seed_bytes(raw[:MLKEM_SEED_BYTES]),
            X25519PrivateKey.from_private_bytes(raw[MLKEM_SEED_BYTES:]),
        )

    def public(self, raw: bytes) -> MLKEM768X25519PublicKey:
        return MLKEM768X25519PublicKey(
            MLKEM768PublicKey.from_public_bytes(raw[:MLKEM_PUBLIC_BYTES]),
            X25519PublicKey.from_public_bytes(raw[MLKEM_PUBLIC_BYTES:]),
        )

    def public_of(self, raw: bytes) -> bytes:
        lattice = MLKEM768PrivateKey.from_seed_bytes(raw[:MLKEM_SEED_BYTES])
        curve = X25519PrivateKey.from_private_bytes(raw[MLKEM_SEED_BYTES:])
        return lattice.public_key().public_bytes_raw() + curve.public_key().public_bytes_raw()


class _Curve:
    hpke = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)

    def generate(self) -> bytes:
        return X25519PrivateKey.generate().private_bytes_raw()

    def private(self, raw: bytes) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(raw)

    def public(self, raw: bytes) -> X25519PublicKey:
        return X25519PublicKey.from_public_bytes(raw)

    def public_of(self, raw: bytes) -> bytes:
        return self.private(raw).public_key().public_bytes_raw()


SUITES: dict[str, _Kind] = {HYBRID: _Hybrid(), PLAIN: _Curve()}


@dataclass(frozen=True)
class Binding:
    """What a password is for. A sealed password opens only if all five are the same as when it was sealed."""

    datasetid: str
    username: str | None
    hostname: str | None
    database: str | None
    port: int | None = None

    @classmethod
    def of(cls, dataset: Dataset) -> Binding:
        there = dataset.connection
        return cls(dataset.datasetid, there.username, there.hostname, there.database, there.port)

    @property
    def target(self) -> str:
        """Where the password goes, in the form that a person confirms."""
        host, port = self.hostname or LOCAL, self.port or DEFAULT_PORT
        return f"{self.username or ''}@{host}:{port}/{self.database or ''}"

    def encoded(self, form: str, suite: str, keyid: str) -> bytes:
        """As JSON: it separates the parts whatever they contain, and NULL differs from an empty text."""
        parts: list[str | int | None] = [
            form,
            suite,
            keyid,
            self.datasetid,
            self.username,
            self.hostname,
            self.database,
        ]
        parts += [] if form == WITHOUT_PORT else [self.port]
        return json.dumps(parts, separators=(",", ":")).encode()


@dataclass(frozen=True)
class PublicKey:
    suite: str
    raw: bytes

    @property
    def keyid(self) -> str:
        return hashlib.sha256(f"dataflowd {self.suite} ".encode() + self.raw).hexdigest()[:KEYID_CHARACTERS]


@dataclass(frozen=True)
class PrivateKey:
    suite: str
    raw: bytes = field(repr=False)

    @property
    def public(self) -> PublicKey:
        return PublicKey(self.suite, SUITES[self.suite].public_of(self.raw))


def generate(suite: str = HYBRID) -> PrivateKey:
    return PrivateKey(suite, SUITES[suite].generate())


def seal(password: str, key: PublicKey, binding: Binding) -> str:
    kind, keyid = _kind(key.suite), key.keyid
    plain = password.encode()
    padded = plain + b"\0" * (-len(plain) % PADDED_BYTES)
    try:
        public = kind.public(key.raw)
    except ValueError as error:
        raise InvalidCredentialError(
            f"the public key {keyid} cannot be used: {error}", "make another with `dataflowctl key generate`"
        ) from None
    sealed = kind.hpke.encrypt(padded, public, binding.encoded(FORMAT, key.suite, keyid))
    return ".".join((FORMAT, key.suite, keyid, base64.urlsafe_b64encode(sealed).decode().rstrip("=")))


def keyid_of(sealed: str) -> str:
    return _parts(sealed)[2]


def binds_port(sealed: str) -> bool:
    return _parts(sealed)[0] != WITHOUT_PORT


def unseal(sealed: str, keys: Mapping[str, PrivateKey], binding: Binding) -> str:
    """Raises InvalidCredentialError. The error never contains any part of the password."""
    form, suite, keyid, data = _parts(sealed)
    key = keys.get(keyid)
    if key is None:
        has = f"the keys at hand are {', '.join(keys)}" if keys else "there is no key at hand"
        raise InvalidCredentialError(
            f"the password of dataset {binding.datasetid} is sealed with key {keyid}, and {has}",
            f"bring that key to this host, or seal the password again: dataflowctl seal {binding.datasetid}",
        )
    kind = _kind(suite)
    try:
        plain: bytes = kind.hpke.decrypt(data, kind.private(key.raw), binding.encoded(form, suite, keyid))
        return plain.rstrip(b"\0").decode()
    except (InvalidTag, ValueError):
        raise InvalidCredentialError(
            f"the sealed password of dataset {binding.datasetid} does not open for {binding.target}: its username, hostname, "
            "port or database was changed after it was sealed, or it is damaged or of another dataset",
            "`dataflowctl doctor` says what was changed, when and by whom: put the old value back; only if the change "
            f"is intended, seal the password for it: dataflowctl seal {binding.datasetid} --for {binding.target}",
        ) from None


def _parts(sealed: str) -> tuple[str, str, str, bytes]:
    try:
        form, suite, keyid, data = sealed.split(".")
        raw = base64.b64decode(data + "=" * (-len(data) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        form = ""
    if form not in {FORMAT, WITHOUT_PORT}:
        raise InvalidCredentialError(
            f"encryptedpass is no sealed value ({FORMAT}...)", "seal the password: dataflowctl seal DATASET"
        )
    return form, suite, keyid, raw


def _kind(suite: str) -> _Kind:
    if suite not in SUITES:
        raise InvalidCredentialError(
            f"the suite {suite!r} is not known to this version", f"use one of {', '.join(SUITES)}"
        )
    return SUITES[suite]
