"""A sealed password opens with its key for its dataset, and for nothing else."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflowd.host import keyfile, passwords, seal
from dataflowd.host.keyfile import KeySource
from dataflowd.model import masking
from dataflowd.model.errors import InvalidCredentialError
from dataflowd.model.work_order import Connection, Dataset

if TYPE_CHECKING:
    from pathlib import Path

BOUND = seal.Binding("orders", "etl", "db7", "sales", 5433)
KEYS = {suite: seal.generate(suite) for suite in seal.SUITES}
# Release 0.1.0 sealed "hunter-2" for the same dataset, with the key that is made of the bytes 0 to 31.
WITHOUT_PORT = "dataflowd-sealed-v1.x25519.acfc31418dfc4a8f0e69309004f9e712.PU8AW6gatHmXsWPKQGKkAb8PYnleoKmHZ9ElCPbmI1ttEmSH7aS1QDUTFN3QzNAO4Ho5TJNEOI_hkLGWz9URNrdoHcncHAO-1_mIYAZTdsVLyreRjCynLbzqF47yf652NWfx1lkde2mG_-umNPMBog"
PASSWORD = "s3cr'et $HOME\n\u00fc/"  # noqa: S105 - known to everybody


def ring(*keys: seal.PrivateKey) -> keyfile.Ring:
    return {key.public.keyid: key for key in keys}


def key_file(path: Path, *lines: str) -> KeySource:
    path.write_text("".join(lines), encoding="ascii")
    path.chmod(0o600)
    return KeySource(key_file=str(path))


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_what_was_sealed_opens_again(key: seal.PrivateKey) -> None:
    sealed = seal.seal(PASSWORD, key.public, BOUND)
    assert sealed.startswith(f"dataflowd-sealed-v2.{key.suite}.{key.public.keyid}.")
    assert PASSWORD not in sealed
    assert seal.seal(PASSWORD, key.public, BOUND) != sealed
    assert seal.unseal(sealed, ring(key), BOUND) == PASSWORD


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_a_sealed_value_does_not_tell_how_long_the_password_is(key: seal.PrivateKey) -> None:
    assert len(seal.seal("a", key.public, BOUND)) == len(seal.seal("a" * 60, key.public, BOUND))


@pytest.mark.parametrize("column", ["datasetid", "username", "hostname", "database", "port"])
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_a_sealed_value_that_was_moved_does_not_open(key: seal.PrivateKey, column: str) -> None:
    sealed = seal.seal(PASSWORD, key.public, BOUND)
    others: list[Any] = [1, None] if column == "port" else ["other", ""]
    for other in others:
        with pytest.raises(InvalidCredentialError, match="does not open"):
            seal.unseal(sealed, ring(key), replace(BOUND, **{column: other}))


def test_what_an_earlier_release_has_sealed_opens_and_cannot_pass_for_a_new_one() -> None:
    key = seal.PrivateKey(seal.PLAIN, bytes(range(32)))
    assert seal.unseal(WITHOUT_PORT, ring(key), BOUND) == "hunter-2"
    assert not seal.binds_port(WITHOUT_PORT)
    with pytest.raises(InvalidCredentialError, match="does not open for etl@evil:5433/sales"):
        seal.unseal(WITHOUT_PORT, ring(key), replace(BOUND, hostname="evil"))
    sealed = seal.seal(PASSWORD, key.public, BOUND)
    assert seal.binds_port(sealed)
    forged = sealed.replace(seal.FORMAT, seal.WITHOUT_PORT)
    with pytest.raises(InvalidCredentialError, match="does not open"):
        seal.unseal(forged, ring(key), BOUND)


_parts = st.tuples(st.text(), *[st.none() | st.text()] * 3, st.none() | st.integers())
_Parts = tuple[str, str | None, str | None, str | None, int | None]


@given(_parts, _parts)
def test_two_bindings_are_never_written_alike(one: _Parts, two: _Parts) -> None:
    written = [seal.Binding(*parts).encoded(seal.FORMAT, "x25519", "id") for parts in (one, two)]
    assert (written[0] == written[1]) == (one == two)


@given(place=st.integers(min_value=0), bit=st.integers(0, 7))
def test_a_damaged_value_is_an_error_and_never_another_password(place: int, bit: int) -> None:
    key = KEYS[seal.PLAIN]
    sealed = bytearray(seal.seal(PASSWORD, key.public, BOUND).encode())
    sealed[place % len(sealed)] ^= 1 << bit
    with suppress(InvalidCredentialError):
        assert seal.unseal(sealed.decode("latin-1"), ring(key), BOUND) == PASSWORD


def test_the_error_names_the_key_that_is_missing() -> None:
    sealed = seal.seal(PASSWORD, KEYS[seal.HYBRID].public, BOUND)
    with pytest.raises(InvalidCredentialError, match=f"sealed with key {KEYS[seal.HYBRID].public.keyid}"):
        seal.unseal(sealed, ring(KEYS[seal.PLAIN]), BOUND)


def test_a_key_file_is_made_for_its_user_alone_and_keeps_earlier_keys(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "key"
    old = os.umask(0)
    try:
        keyfile.add(path, [keyfile.line(KEYS[seal.PLAIN])])
        keyfile.add(path, [keyfile.line(KEYS[seal.HYBRID], "open sesame")])
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]
    source = KeySource(key_file=str(path))
    assert source.ring(lambda: "open sesame") == ring(*reversed(KEYS.values()))
    assert str(KEYS[seal.PLAIN].raw) not in repr(KEYS)


def test_a_wrong_key_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    good = keyfile.line(KEYS[seal.PLAIN])
    path = tmp_path / "key"
    with pytest.raises(InvalidCredentialError, match="does not exist"):
        KeySource(key_file=str(path)).ring()
    with pytest.raises(InvalidCredentialError, match="holds no key"):
        key_file(path, "# nothing\n").ring()
    with pytest.raises(InvalidCredentialError, match="damaged in line 2"):
        key_file(path, good, good[:-9] + "AAAAAAA=\n").ring()
    for mode in (0o640, 0o604, 0o666):
        source = key_file(path, good)
        path.chmod(mode)
        with pytest.raises(InvalidCredentialError, match=rf"readable by others \(mode {mode:04o}\)"):
            source.ring()
    protected = key_file(path, keyfile.line(KEYS[seal.PLAIN], "open sesame"))
    with pytest.raises(InvalidCredentialError, match="the passphrase does not open"):
        protected.ring(lambda: "close sesame")
    with pytest.raises(InvalidCredentialError, match="none is given"):
        protected.ring()


def test_a_key_may_come_from_systemd_or_from_a_command(tmp_path: Path) -> None:
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    key_file(credentials / "dataflowd.key", keyfile.line(KEYS[seal.PLAIN], "open sesame"))
    (credentials / "dataflowd.passphrase").write_text("open sesame\n", encoding="ascii")
    for path in credentials.iterdir():
        path.chmod(0o440)  # the mode that systemd gives to credentials
    expected = ring(KEYS[seal.PLAIN])
    assert KeySource(credentials=str(credentials), default="/nowhere").ring() == expected
    told = key_file(tmp_path / "told", keyfile.line(KEYS[seal.PLAIN]))
    assert KeySource(key_command=("cat", str(told.file))).ring() == expected
    with pytest.raises(InvalidCredentialError, match="the key command false ended with status 1"):
        KeySource(key_command=("false",)).ring()


def test_an_opened_password_is_masked_in_its_process_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = KEYS[seal.HYBRID]
    source = key_file(tmp_path / "key", keyfile.line(key))
    monkeypatch.setattr(passwords, "_ring", [])
    monkeypatch.setattr(masking, "_hidden", [])
    for name, value in passwords.offer(source).items():
        monkeypatch.setenv(name, value)
    sealed = seal.seal("hunter/2", key.public, BOUND)
    connection = Connection(username="etl", hostname="db7", port=5433, database="sales", encryptedpass=sealed)
    dataset = Dataset(name="orders", connection=connection)
    assert passwords.password_of(Dataset(name="files")) is None
    assert masking.mask("it is hunter/2") == "it is hunter/2"
    assert passwords.password_of(dataset) == "hunter/2"
    assert masking.mask("it is hunter/2, or hunter%2F2 in a URL") == "it is ***, or *** in a URL"


def test_a_process_that_runs_while_the_key_is_rotated_opens_with_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = KEYS[seal.HYBRID], KEYS[seal.PLAIN]
    source = key_file(tmp_path / "key", keyfile.line(old))
    monkeypatch.setattr(passwords, "_ring", [])
    monkeypatch.setattr(masking, "_hidden", [])
    for name, value in passwords.offer(source).items():
        monkeypatch.setenv(name, value)

    def dataset(key: seal.PrivateKey) -> Dataset:
        sealed = seal.seal("hunter/2", key.public, BOUND)
        return Dataset(
            name="orders",
            connection=Connection(
                username="etl", hostname="db7", port=5433, database="sales", encryptedpass=sealed
            ),
        )

    assert passwords.password_of(dataset(old)) == "hunter/2"
    with pytest.raises(InvalidCredentialError, match="bring that key to this host"):
        passwords.password_of(dataset(new))
    before = source.mark()
    assert source.mark() == before
    keyfile.add(tmp_path / "key", [keyfile.line(new)])
    assert source.mark() != before  # the engine compares marks to find runners with old keys
    for key in (new, old):
        assert passwords.password_of(dataset(key)) == "hunter/2"
