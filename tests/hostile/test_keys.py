"""The owner of the control database offers a key of their own, or another host, and gets no password."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

import pytest

from dataflowd.host import keyfile, seal
from dataflowd.host.settings import Settings  # noqa: TC001 - pytest reads it

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg

    from tests.fix_postgres import RunCtl

SECRET = "correct horse 'battery' $staple"  # noqa: S105
NAMES = ["customers", "orders"]
# Release 0.1.0 sealed "hunter-2" for etl@db7/sales of the dataset orders, for any port, with the key that is made of the bytes 0 to 31.
WITHOUT_PORT = "dataflowd-sealed-v1.x25519.acfc31418dfc4a8f0e69309004f9e712.PU8AW6gatHmXsWPKQGKkAb8PYnleoKmHZ9ElCPbmI1ttEmSH7aS1QDUTFN3QzNAO4Ho5TJNEOI_hkLGWz9URNrdoHcncHAO-1_mIYAZTdsVLyreRjCynLbzqF47yf652NWfx1lkde2mG_-umNPMBog"


@pytest.fixture
def known(tmp_path: Path) -> Path:
    """The known_keys of this test's user."""
    return tmp_path / ".config" / "dataflowd" / "known_keys"


@pytest.fixture(autouse=True)
def _datasets(connection: psycopg.Connection) -> None:
    for name in NAMES:
        connection.execute(
            "INSERT INTO dataflow.dataset (datasetid, format, hostname, database, tablename, username)"
            " VALUES (%s, 'postgres', 'db7', 'sales', %s, 'etl')",
            [name, name],
        )


def sealed(connection: psycopg.Connection) -> dict[str, str | None]:
    return dict(
        connection.execute(
            "SELECT datasetid::text, encryptedpass FROM dataflow.dataset WHERE hostname IS NOT NULL"
        ).fetchall()
    )


def opened(connection: psycopg.Connection, settings: Settings) -> dict[str, str]:
    ring = keyfile.KeySource.of(settings).ring()
    rows = connection.execute(
        "SELECT encryptedpass, datasetid, username, hostname, database, port FROM dataflow.dataset WHERE encryptedpass IS NOT NULL"
    )
    return {bound[0]: seal.unseal(value, ring, seal.Binding(*bound)) for value, *bound in rows}


def slipped_in(connection: psycopg.Connection) -> seal.PrivateKey:
    """Inserts a key of the attacker, which the database always names as the newest."""
    key = seal.generate(seal.PLAIN)
    connection.execute(
        "INSERT INTO dataflow.key (keyid, suite, public_key, created) VALUES (%s, %s, %s, now() + interval '1 year')",
        [key.public.keyid, key.suite, key.public.raw],
    )
    return key


def generated(run_ctl: RunCtl) -> str:
    made = run_ctl("key", "generate", "--json")
    assert made.returncode == 0, made.stderr
    return str(json.loads(made.stdout)["keyid"])


def test_rotation_seals_nothing_with_a_key_whose_private_half_is_elsewhere(
    run_ctl: RunCtl, connection: psycopg.Connection, settings: Settings
) -> None:
    generated(run_ctl)
    for name in NAMES:
        assert run_ctl("seal", name, stdin=SECRET).returncode == 0
    before, keys = sealed(connection), (settings.data_dir / "key").read_bytes()
    theirs = slipped_in(connection)
    for confirmed in ([], ["--key", theirs.public.keyid]):
        rotated = run_ctl("key", "rotate", *confirmed)
        assert rotated.returncode == 15
        assert theirs.public.keyid in rotated.stderr
        assert "its private half is not on this host" in rotated.stderr
    assert sealed(connection) == before
    assert (settings.data_dir / "key").read_bytes() == keys
    connection.execute("DELETE FROM dataflow.key WHERE keyid = %s", [theirs.public.keyid])
    assert run_ctl("key", "rotate").returncode == 0
    assert opened(connection, settings) == dict.fromkeys(NAMES, SECRET)


def test_rotation_does_not_go_back_to_a_key_that_was_given_up(
    run_ctl: RunCtl, connection: psycopg.Connection, settings: Settings
) -> None:
    """The old key was replaced because it had leaked. Its private half is still in the file, for backups."""
    leaked = generated(run_ctl)
    assert run_ctl("seal", "orders", stdin=SECRET).returncode == 0
    assert run_ctl("key", "rotate").returncode == 0
    before = sealed(connection)
    connection.execute(
        "UPDATE dataflow.key SET retired = NULL, created = now() + interval '1 year' WHERE keyid = %s",
        [leaked],
    )
    rotated = run_ctl("key", "rotate")
    assert rotated.returncode == 15
    assert "older than the key" in rotated.stderr
    again = run_ctl("seal", "orders", stdin=SECRET)
    assert again.returncode == 15
    assert sealed(connection) == before
    assert len(keyfile.KeySource.of(settings).ring()) == 2


def test_a_key_that_the_database_lost_does_not_come_back_as_a_new_one(
    run_ctl: RunCtl, connection: psycopg.Connection, settings: Settings
) -> None:
    """The key has leaked to the owner of the database, who wants it to stay in use. Rotation must make a new key."""
    leaked = generated(run_ctl)
    assert run_ctl("seal", "orders", stdin=SECRET).returncode == 0
    connection.execute("DELETE FROM dataflow.key")
    rotated = run_ctl("key", "rotate", "--json")
    assert rotated.returncode == 0, rotated.stderr
    assert json.loads(rotated.stdout)["sealed"] == ["orders"]
    assert json.loads(rotated.stdout)["keyid"] != leaked
    assert opened(connection, settings) == {"orders": SECRET}


def test_a_person_who_seals_notices_another_key_and_confirms_it_by_its_id(
    run_ctl: RunCtl, connection: psycopg.Connection, settings: Settings, known: Path
) -> None:
    """The person has no private key, and knows the right key only from earlier use."""
    theirs, own = {"DATAFLOW_DATA_DIR": str(settings.data_dir / "elsewhere")}, generated(run_ctl)
    known.unlink(missing_ok=True)
    first = run_ctl("seal", "orders", stdin=SECRET, env=theirs)
    assert first.returncode == 0
    assert own in first.stderr
    assert own in known.read_text()
    assert stat.S_IMODE(known.stat().st_mode) == 0o600
    before = sealed(connection)
    attacker = slipped_in(connection).public.keyid
    for more in ([], ["--key", own]):
        refused = run_ctl("seal", "orders", *more, stdin=SECRET, env=theirs)
        assert refused.returncode == 15
        assert attacker in refused.stderr
    assert sealed(connection) == before
    warned = run_ctl("doctor", "--no-spark", env=theirs)
    assert f"the database offers the key {attacker}, and this user knows {own}" in warned.stdout
    # A person who confirms the key can go on, also without a terminal. If trusted_keys is set, it decides alone.
    assert run_ctl("seal", "orders", "--key", attacker, stdin=SECRET, env=theirs).returncode == 0
    assert run_ctl("seal", "orders", stdin=SECRET, env=theirs).returncode == 0
    trusting = theirs | {"DATAFLOW_TRUSTED_KEYS": own}
    assert run_ctl("seal", "orders", "--key", attacker, stdin=SECRET, env=trusting).returncode == 15
    connection.execute("DELETE FROM dataflow.key WHERE keyid = %s", [attacker])
    assert run_ctl("seal", "orders", stdin=SECRET, env=trusting).returncode == 0
    assert attacker in known.read_text()


def test_without_known_keys_the_key_file_of_the_host_proves_the_key(
    run_ctl: RunCtl, connection: psycopg.Connection, known: Path
) -> None:
    """As after an upgrade from a release without known_keys."""
    own = generated(run_ctl)
    known.unlink(missing_ok=True)
    attacker = slipped_in(connection).public.keyid
    refused = run_ctl("seal", "orders", stdin=SECRET)
    assert refused.returncode == 15
    assert "the key file of this host has" in refused.stderr
    assert sealed(connection)["orders"] is None
    assert not known.exists()
    warned = run_ctl("doctor", "--no-spark").stdout
    assert f"nothing says here that the key {attacker}" in warned
    connection.execute("DELETE FROM dataflow.key WHERE keyid = %s", [attacker])
    assert run_ctl("seal", "orders", stdin=SECRET).returncode == 0
    assert "nothing says here" not in run_ctl("doctor", "--no-spark").stdout
    assert own in known.read_text()


def test_a_user_without_a_place_to_remember_keys_names_the_key(
    run_ctl: RunCtl, connection: psycopg.Connection, settings: Settings, tmp_path: Path
) -> None:
    own = generated(run_ctl)
    closed = tmp_path / "closed"
    closed.write_text("no directory")
    elsewhere = {"DATAFLOW_DATA_DIR": str(settings.data_dir / "elsewhere"), "XDG_CONFIG_HOME": str(closed)}
    refused = run_ctl("seal", "orders", stdin=SECRET, env=elsewhere)
    assert refused.returncode == 15
    assert "cannot be remembered" in refused.stderr
    assert "trusted_keys" in refused.stderr
    assert sealed(connection)["orders"] is None
    assert run_ctl("seal", "orders", "--key", own, stdin=SECRET, env=elsewhere).returncode == 0
    # A host that has the private half needs no other proof.
    holding = {"XDG_CONFIG_HOME": str(closed)}
    assert run_ctl("seal", "orders", stdin=SECRET, env=holding).returncode == 0
    assert run_ctl("key", "rotate", env=holding).returncode == 0


def test_a_known_keys_file_that_is_open_linked_or_damaged_is_not_trusted(
    run_ctl: RunCtl, known: Path
) -> None:
    generated(run_ctl)
    text = known.read_text()
    known.chmod(0o666)
    assert "can be changed by others (mode 0666)" in run_ctl("seal", "orders", stdin=SECRET).stderr
    known.unlink()
    known.symlink_to(known.with_name("another"))
    known.with_name("another").write_text(text)
    assert run_ctl("seal", "orders", stdin=SECRET).returncode == 15
    known.unlink()
    os.mkfifo(known)
    assert run_ctl("seal", "orders", stdin=SECRET).returncode == 15
    known.unlink()
    known.write_text("rubbish\n")
    assert "is damaged in line 1" in run_ctl("seal", "orders", stdin=SECRET).stderr
    known.unlink()
    assert run_ctl("seal", "orders", stdin=SECRET).returncode == 0


def test_a_password_is_not_sealed_for_a_host_that_somebody_has_changed(
    run_ctl: RunCtl, connection: psycopg.Connection, settings: Settings
) -> None:
    generated(run_ctl)
    first = run_ctl("seal", "orders", stdin=SECRET)
    assert "orders: the password of etl@db7:5432/sales, sealed with key" in first.stderr
    before = sealed(connection)
    connection.execute(
        "UPDATE dataflow.dataset SET hostname = 'evil', port = 5433 WHERE datasetid = 'orders'"
    )
    [[actor]] = connection.execute("SELECT session_user::text").fetchall()
    changed = "hostname of orders from 'db7' to 'evil' on 20"
    for said in (
        run_ctl("doctor", "--no-spark").stdout,
        run_ctl("key", "rotate").stderr,
        run_ctl("seal", "orders", stdin=SECRET).stderr,
    ):
        assert changed in said
        assert "port of orders from nothing to '5433'" in said
        assert f"by {actor}" in said
        assert "seal it again" not in said
    assert sealed(connection) == before
    allowed = {"DATAFLOW_ALLOWED_HOSTS": "db7,evil:5432"}
    evil = "etl@evil:5433/sales"
    outside = run_ctl("seal", "orders", "--for", evil, stdin=SECRET, env=allowed)
    assert outside.returncode == 8
    assert f"{evil} is on none of the allowed_hosts" in outside.stderr
    wrong = run_ctl("seal", "orders", "--for", "etl@db7:5432/sales", stdin=SECRET)
    assert wrong.returncode == 8
    assert sealed(connection) == before
    # The person must name the target; and a column that has its old value again counts as unchanged.
    assert run_ctl("seal", "orders", "--for", evil, stdin=SECRET).returncode == 0
    assert opened(connection, settings) == {"orders": SECRET}
    connection.execute("UPDATE dataflow.dataset SET port = 1 WHERE datasetid = 'orders'")
    connection.execute("UPDATE dataflow.dataset SET port = 5433 WHERE datasetid = 'orders'")
    assert run_ctl("seal", "orders", stdin=SECRET).returncode == 0


def test_what_an_earlier_release_sealed_is_named_and_bound_by_rotation(
    run_ctl: RunCtl, connection: psycopg.Connection, settings: Settings
) -> None:
    key = seal.PrivateKey(seal.PLAIN, bytes(range(32)))
    keyfile.add(settings.data_dir / "key", [keyfile.line(key)])
    connection.execute("SELECT dataflow.add_key(%s, %s)", [key.suite, key.public.raw])
    connection.execute("SELECT dataflow.seal('orders', %s)", [WITHOUT_PORT])
    assert opened(connection, settings) == {"orders": "hunter-2"}
    assert "the passwords of orders open for any port of their host" in run_ctl("doctor", "--no-spark").stdout
    # Only the settings of this host limit the port.
    connection.execute("UPDATE dataflow.dataset SET port = 5433 WHERE datasetid = 'orders'")
    refused = run_ctl("key", "rotate", env={"DATAFLOW_ALLOWED_HOSTS": "db7:5432"})
    assert refused.returncode == 15
    assert "etl@db7:5433/sales is on none of the allowed_hosts" in refused.stderr
    connection.execute("UPDATE dataflow.dataset SET port = NULL WHERE datasetid = 'orders'")
    assert run_ctl("key", "rotate").returncode == 0
    assert str(sealed(connection)["orders"]).startswith("dataflowd-sealed-v2.")
    assert opened(connection, settings) == {"orders": "hunter-2"}
    assert "for any port" not in run_ctl("doctor", "--no-spark").stdout
