"""Keys and passwords as an operator handles them: no password is stored in clear text, none is lost, and every step can be repeated."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING

import pytest

from dataflowd.host import keyfile, seal
from dataflowd.host.settings import Settings  # noqa: TC001 - pytest reads it

if TYPE_CHECKING:
    import psycopg

    from tests.fix_postgres import RunCtl

SECRET = "correct horse 'battery' $staple"  # noqa: S105


@pytest.fixture
def datasets(connection: psycopg.Connection) -> list[str]:
    names = ["orders", "customers"]
    for name in names:
        connection.execute(
            "INSERT INTO dataflow.dataset (datasetid, format, hostname, database, tablename, username)"
            " VALUES (%s, 'postgres', 'db7', 'sales', %s, 'etl')",
            [name, name],
        )
    return names


def opened(connection: psycopg.Connection, settings: Settings) -> dict[str, str]:
    """The passwords that a job could open now."""
    ring = keyfile.KeySource.of(settings).ring()
    rows = connection.execute(
        "SELECT encryptedpass, datasetid, username, hostname, database, port FROM dataflow.dataset"
        " WHERE encryptedpass IS NOT NULL"
    )
    return {bound[0]: seal.unseal(value, ring, seal.Binding(*bound)) for value, *bound in rows}


def test_a_password_is_sealed_from_stdin_and_is_nowhere_in_the_clear(
    run_ctl: RunCtl, connection: psycopg.Connection, settings: Settings, datasets: list[str]
) -> None:
    assert run_ctl("seal", "orders", stdin=SECRET).returncode == 9  # there is no key yet
    made = run_ctl("key", "generate", "--json")
    assert made.returncode == 0, made.stderr
    key = json.loads(made.stdout)
    assert key["suite"] == "mlkem768-x25519"
    assert stat.S_IMODE((settings.data_dir / "key").stat().st_mode) == 0o600
    said = [run_ctl("seal", name, stdin=f"{SECRET}\n") for name in datasets]
    assert [done.returncode for done in said] == [0, 0]
    assert opened(connection, settings) == dict.fromkeys(datasets, SECRET)
    [listed] = json.loads(run_ctl("key", "list", "--json").stdout)
    assert (listed["keyid"], listed["datasets"], listed["is_current"]) == (key["keyid"], 2, True)
    stored = "".join(
        str(row)
        for row in connection.execute(
            "SELECT d::text FROM dataflow.dataset d UNION ALL SELECT e::text FROM dataflow.event e"
        )
    )
    assert SECRET not in stored + "".join(done.stdout + done.stderr for done in said)
    assert "SEALED" in stored
    doctor = run_ctl("doctor", "--no-spark")
    assert "opens the passwords of 2 datasets" in doctor.stdout
    assert run_ctl("seal", "orders").returncode == 2
    assert run_ctl("seal", "ordres", stdin=SECRET).returncode == 9


def test_rotation_goes_on_where_it_was_interrupted_and_keeps_every_password(
    run_ctl: RunCtl, connection: psycopg.Connection, settings: Settings, datasets: list[str]
) -> None:
    run_ctl("key", "generate", "--suite", "x25519")
    for name in datasets:
        run_ctl("seal", name, stdin=SECRET)
    # As after a rotation that was killed: the new key is in the file, and the database does not have it.
    keyfile.add(settings.data_dir / "key", [keyfile.line(seal.generate())])
    first = run_ctl("key", "rotate", "--json")
    assert first.returncode == 0, first.stderr
    done = json.loads(first.stdout)
    assert sorted(done["sealed"]) == sorted(datasets)
    assert len(done["retired"]) == 1
    assert len(keyfile.KeySource.of(settings).ring()) == 2
    assert opened(connection, settings) == dict.fromkeys(datasets, SECRET)
    # As after a rotation that was killed between two datasets.
    run_ctl("key", "generate")
    run_ctl("seal", "orders", stdin="another")
    again = json.loads(run_ctl("key", "rotate", "--json").stdout)
    assert again["sealed"] == ["customers"]
    assert opened(connection, settings) == {"orders": "another", "customers": SECRET}
    assert len(json.loads(run_ctl("key", "list", "--json").stdout)) == 1
    assert len(json.loads(run_ctl("key", "list", "--all", "--json").stdout)) == 3


def test_a_password_that_does_not_open_is_reported_and_does_not_stop_the_rotation_of_others(
    run_ctl: RunCtl, connection: psycopg.Connection, settings: Settings, datasets: list[str]
) -> None:
    run_ctl("key", "generate")
    for name in datasets:
        run_ctl("seal", name, stdin=SECRET)
    connection.execute("UPDATE dataflow.dataset SET hostname = 'evil' WHERE datasetid = 'orders'")
    doctor = run_ctl("doctor", "--no-spark")
    assert doctor.returncode == 1
    assert "INVALID_CREDENTIAL: the sealed password of dataset orders does not open" in doctor.stdout
    rotated = run_ctl("key", "rotate")
    assert rotated.returncode == 15
    assert "1 password sealed anew" in rotated.stdout
    assert "dataset orders does not open" in rotated.stderr
    (settings.data_dir / "key").chmod(0o644)
    assert "is readable by others (mode 0644)" in run_ctl("doctor", "--no-spark").stdout


def test_a_key_that_somebody_slipped_into_the_database_seals_nothing(
    run_ctl: RunCtl, connection: psycopg.Connection, datasets: list[str]
) -> None:
    trusted = json.loads(run_ctl("key", "generate", "--json").stdout)["keyid"]
    own = seal.generate(seal.PLAIN).public
    connection.execute("SELECT dataflow.add_key(%s, %s)", [own.suite, own.raw])
    refused = run_ctl("seal", datasets[0], stdin=SECRET, env={"DATAFLOW_TRUSTED_KEYS": trusted})
    assert refused.returncode == 15
    assert own.keyid in refused.stderr
    connection.execute("DELETE FROM dataflow.key WHERE keyid = %s", [own.keyid])
    connection.execute(
        "UPDATE dataflow.key SET suite = %s, public_key = %s WHERE keyid = %s", [own.suite, own.raw, trusted]
    )
    exchanged = run_ctl("seal", datasets[0], stdin=SECRET)
    assert exchanged.returncode == 15
    assert "somebody has exchanged it" in exchanged.stderr


def test_the_passphrase_of_a_protected_key_is_read_from_its_file(
    run_ctl: RunCtl, settings: Settings, datasets: list[str]
) -> None:
    phrase = settings.data_dir / "passphrase"
    phrase.parent.mkdir(parents=True)
    phrase.write_text("open sesame\n", encoding="ascii")
    phrase.chmod(0o600)
    given = {"DATAFLOW_PASSPHRASE_FILE": str(phrase)}
    assert run_ctl("key", "generate", "--passphrase").returncode == 15
    assert run_ctl("key", "generate", "--passphrase", env=given).returncode == 0
    assert " scrypt:" in (settings.data_dir / "key").read_text(encoding="ascii")
    run_ctl("seal", datasets[0], stdin=SECRET)
    assert "key       opens" in run_ctl("doctor", "--no-spark", env=given).stdout
    phrase.write_text("close sesame", encoding="ascii")
    assert "the passphrase does not open" in run_ctl("doctor", "--no-spark", env=given).stdout
    assert "none is given" in run_ctl("doctor", "--no-spark").stdout
