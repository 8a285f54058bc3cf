"""Keys and sealed passwords: key generate, key list, key rotate, seal.

A password comes from a prompt or from standard input, never from the command line, and leaves this process sealed, with a
key that is known here (`sealing_key`), for the user, host, port and database that were shown before it was asked for.
Rotation goes one dataset at a time and can be repeated: what is sealed with the current key already is left alone.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dataflowd.cli import options, sealing_key
from dataflowd.cli.ask import ask, call, connected, explain
from dataflowd.cli.output import say
from dataflowd.cli.setup import settings_of
from dataflowd.cli.show import as_json, table
from dataflowd.model.connection_changes import Change, describe_changes
from dataflowd.model.errors import DataflowError, InvalidCredentialError, NotAllowedError
from dataflowd.model.plural import counted

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg

    from dataflowd.host.keyfile import KeySource, Ring
    from dataflowd.host.seal import Binding, PrivateKey, PublicKey
    from dataflowd.host.settings import Settings

SEALED = "<what dataflowctl has sealed>"

SuiteOption = Annotated[
    Literal["mlkem768-x25519", "x25519"],
    typer.Option("--suite", help="mlkem768-x25519 also withstands quantum computers; x25519 is short."),
]
Passphrase = Annotated[
    bool,
    typer.Option("--passphrase", help="Protect it: asked for, or read from the setting passphrase_file."),
]
Confirmed = Annotated[
    str | None,
    typer.Option(
        "--key", metavar="ID", help="Confirm this key, where it is another than the one that you used before."
    ),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, help="Keys that passwords are sealed with."
    )
    options.add(group, generate, prefix="key")
    options.add(group, list_, "list", prefix="key")
    options.add(group, rotate, prefix="key")
    app.add_typer(group, name="key")
    options.add(app, seal)


def generate(
    context: typer.Context,
    *,
    suite: SuiteOption = "mlkem768-x25519",
    passphrase: Passphrase = False,
    json: options.Json = False,
) -> None:
    """Make a key pair: the private key goes to the key file, mode 0600; the public one to the database.

    Passwords are sealed with it from now on. An earlier key stays in the file for what it has sealed. Run it as the
    user who runs the jobs, on their host; copy the file to every other host that runs them.

    Examples:
    dataflowctl key generate
    dataflowctl key generate --passphrase
    """
    settings = settings_of(context)
    with connected(context) as connection:
        key, path = _made(connection, settings, suite, protected=passphrase)
        sealing_key.remember_own(connection, key.keyid, settings)
    if json:
        as_json({"keyid": key.keyid, "suite": suite, "file": str(path)})
        return
    say(f"key {key.keyid} is in {path}: keep a copy in a safe place, nothing else opens what it seals")
    say("next: dataflowctl seal DATASET")


def list_(
    context: typer.Context,
    *,
    every: Annotated[bool, typer.Option("--all", help="Also retired ones that nothing uses.")] = False,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Keys, and how many passwords are sealed with each. An old key is listed until nothing uses it."""
    found = ask(context, call("keys", every=every), explained=explained)
    if json:
        as_json(found)
        return
    table(
        ["key", "suite", "created", "retired", "datasets", "current"],
        [
            [row["keyid"], row["suite"], row["created"], row["retired"], row["datasets"], row["is_current"]]
            for row in found
        ],
        nothing="no keys; `dataflowctl key generate` makes one",
    )


def rotate(
    context: typer.Context,
    *,
    suite: SuiteOption = "mlkem768-x25519",
    passphrase: Passphrase = False,
    key: Confirmed = None,
    json: options.Json = False,
) -> None:
    """Seal every password anew, with a new key. It needs the old key, and can be repeated after a crash.

    A new key is made unless some passwords are still sealed with an old one: then it goes on with those. With several
    hosts: dataflowctl key generate, copy the key file to all of them, then dataflowctl key rotate. A key whose private
    half is not on this host is refused.

    Examples:
    dataflowctl key rotate
    """
    from dataflowd.host.keyfile import KeySource

    settings = settings_of(context)
    with connected(context) as connection:
        ring = KeySource.of(settings).ring(_asked)
        rows = call("credentials").send(connection)
        keys = call("keys", every=True).send(connection)
        if any(row["is_current"] for row in keys):
            _require_own(connection, settings, ring, rows, key)
        if not any(row["datasets"] and not row["is_current"] for row in keys):
            _require_new_is_trusted(settings)
            made, _ = _made(connection, settings, suite, protected=passphrase)
            ring, key = KeySource.of(settings).ring(_asked), made.keyid
        current = _require_own(connection, settings, ring, rows, key)
        sealing_key.remember_own(connection, current.keyid, settings)
        done, failures = [], []
        for row in rows:
            try:
                if _resealed(connection, row, ring, current, settings):
                    done.append(row["datasetid"])
            except DataflowError as error:
                failures.append(_explained(connection, row["datasetid"], error))
        retired = [] if failures else _retire_unused(connection, current)
    if json:
        as_json({"keyid": current.keyid, "sealed": done, "retired": retired, "failed": len(failures)})
    else:
        say(f"key {current.keyid}: {counted(len(done), 'password')} sealed anew")
        for keyid in retired:
            say(f"key {keyid} is retired; take its line out of the key file when no backup needs it")
    if failures:
        raise InvalidCredentialError("; ".join(failures), "correct these, then run it again")


def seal(  # noqa: PLR0913 - each is an option of the command
    context: typer.Context,
    dataset: options.Dataset,
    *,
    key: Confirmed = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="USER@HOST:PORT/DATABASE",
            help="Confirm where the password will be sent; needed where that was changed since it was sealed.",
        ),
    ] = None,
    json: options.Json = False,
    explained: options.Explain = False,
) -> None:
    """Seal the password of a dataset, which is asked for, or read from standard input.

    It opens only for this dataset with its present username, hostname, port and database, which are shown first. The
    key is remembered when it is first used; another one is refused until you confirm it with --key.

    Examples:
    dataflowctl seal orders_db
    pass show orders_db | dataflowctl seal orders_db
    dataflowctl seal orders_db --for etl@db8:5432/sales
    """
    from dataflowd.host.seal import seal as sealed_with

    if explained:
        explain(
            call("sealing_key"),
            call("credential", datasetid=dataset),
            call("seal", datasetid=dataset, sealed=SEALED, was=None),
        )
    settings = settings_of(context)
    with connected(context) as connection:
        [row] = call("credential", datasetid=dataset).send(connection)
        binding = _binding(row)
        _require_host(binding, settings)
        _require_target(connection, binding, target)
        chosen = sealing_key.accepted(connection, settings, key)
        sealing_key.tell(f"{dataset}: the password of {binding.target}, sealed with key {chosen.keyid}")
        value = sealed_with(_password(dataset), chosen, binding)
        call("seal", datasetid=dataset, sealed=value, was=None).send(connection)
    if json:
        as_json({"datasetid": dataset, "keyid": chosen.keyid, "target": binding.target})
    else:
        say(f"{dataset}: sealed with key {chosen.keyid}")


def _require_host(binding: Binding, settings: Settings) -> None:
    """Refuses a host that allowed_hosts does not list. Without such a list a person may seal for any host."""
    from dataflowd.host import allowed_hosts

    if settings.allowed_hosts and not allowed_hosts.is_allowed(
        binding.hostname, binding.port, settings.allowed_hosts
    ):
        raise NotAllowedError(
            f"dataset {binding.datasetid}: {binding.target} is on none of the allowed_hosts of this host",
            f"allowed are {', '.join(settings.allowed_hosts)}; find out who chose the other one before you add it",
        )


def _require_target(connection: psycopg.Connection, binding: Binding, target: str | None) -> None:

    if target is not None and target != binding.target:
        raise NotAllowedError(
            f"the password of {binding.datasetid} would be sealed for {binding.target}, and not for {target}",
            "correct the dataset in its flow file and apply it, or correct --for",
        )
    changes = describe_changes(_changes(connection, binding.datasetid))
    if changes and target is None:
        raise InvalidCredentialError(
            f"dataset {binding.datasetid} is {binding.target} now, {changes}",
            "find out whether that is right, and put the old value back if it is not; "
            f"if it is, confirm it: dataflowctl seal {binding.datasetid} --for {binding.target}",
        )


def _changes(connection: psycopg.Connection, datasetid: str) -> list[Change]:

    found = call("connection_changes", datasetid=datasetid, jobid=None).send(connection)
    return [Change(**row) for row in found]


def _explained(connection: psycopg.Connection, datasetid: str, error: DataflowError) -> str:

    return ", ".join(filter(None, (error.message, describe_changes(_changes(connection, datasetid)))))


def _require_own(
    connection: psycopg.Connection,
    settings: Settings,
    ring: Ring,
    rows: list[dict[str, Any]],
    confirmed: str | None,
) -> PublicKey:
    """The key to rotate to. Anybody may have written to the database, so only a key whose private half is on this host counts."""
    key = sealing_key.offered(connection)
    sealing_key.require_confirmed(key, confirmed)
    sealing_key.require_trusted(key.keyid, settings)
    sealing_key.require_held(key, ring)
    if confirmed is None:
        sealing_key.require_newest(connection, key, ring, _used(rows))
    return key


def _used(rows: list[dict[str, Any]]) -> list[str]:
    """The keys that values are sealed with. A value that is not sealed properly is reported when its turn comes."""
    from dataflowd.host.seal import keyid_of

    found = []
    for row in rows:
        with suppress(InvalidCredentialError):
            found.append(keyid_of(row["encryptedpass"]))
    return found


def _require_new_is_trusted(settings: Settings) -> None:

    if settings.trusted_keys:
        raise NotAllowedError(
            "a new key would be none of the trusted_keys of this host",
            "make it with `dataflowctl key generate`, add its id to trusted_keys on every host, then rotate",
        )


def _made(
    connection: psycopg.Connection, settings: Settings, suite: str, *, protected: bool
) -> tuple[PublicKey, Path]:
    """Writes the key to the file first and to the database second, so that no password is sealed with a lost key."""
    from dataflowd.host import keyfile
    from dataflowd.host import seal as sealing

    source = keyfile.KeySource.of(settings)
    path = source.file
    if path is None:
        raise NotAllowedError(
            "the setting key_command says where the keys come from, and nothing can be written there",
            "make the key with DATAFLOW_KEY_FILE set and key_command unset, then bring it where the command finds it",
        )
    key = _waiting(connection, source, suite) if path.exists() else None
    if key is None:
        key = sealing.generate(suite)
        phrase = source.passphrase(lambda: _asked(twice=True)) if protected else None
        keyfile.add(path, [keyfile.line(key, phrase)])
    call("add_key", suite=suite, public_key=key.public.raw).send(connection)
    return key.public, path


def _waiting(connection: psycopg.Connection, source: KeySource, suite: str) -> PrivateKey | None:
    """The last key of the file, if the database does not know it: an earlier `generate` was interrupted.

    A key that was in use before is never returned: a database that lost it would take it for a new one.
    """
    *_, newest = source.ring(_asked).values()
    known = {row["keyid"] for row in call("keys", every=True).send(connection)}
    known |= {sealing_key.remembered(connection), *_used(call("credentials").send(connection))}
    return newest if newest.suite == suite and newest.public.keyid not in known else None


def _resealed(
    connection: psycopg.Connection, row: dict[str, Any], ring: Ring, current: PublicKey, settings: Settings
) -> bool:
    from dataflowd.host.seal import binds_port, keyid_of, seal, unseal

    was, binding = row["encryptedpass"], _binding(row)
    if keyid_of(was) == current.keyid and binds_port(was):
        return False
    if not binds_port(was):
        # The value was sealed without a port; nothing has confirmed the port until now.
        _require_host(binding, settings)
        sealing_key.tell(f"{binding.datasetid}: bound to its port now, {binding.target}")
    value = seal(unseal(was, ring, binding), current, binding)
    stored = call("seal", datasetid=row["datasetid"], sealed=value, was=was)
    # If somebody has sealed the value meanwhile, it is sealed with the current key.
    return bool(stored.send(connection)[0]["sealed"])


def _retire_unused(connection: psycopg.Connection, current: PublicKey) -> list[str]:
    old = [
        row["keyid"]
        for row in call("keys", every=False).send(connection)
        if row["keyid"] != current.keyid and not row["datasets"] and row["retired"] is None
    ]
    for keyid in old:
        call("retire_key", keyid=keyid).send(connection)
    return old


def _binding(row: dict[str, Any]) -> Binding:
    from dataflowd.host.seal import Binding

    return Binding(row["datasetid"], row["username"], row["hostname"], row["database"], row["port"])


def _password(dataset: str) -> str:
    if sys.stdin.isatty():
        return str(typer.prompt(f"password of {dataset}", hide_input=True, confirmation_prompt=True))
    given = sys.stdin.read().removesuffix("\n")
    if not given or "\0" in given:
        raise typer.BadParameter("standard input holds no password")
    return given


def _asked(*, twice: bool = False) -> str:

    if not sys.stdin.isatty():
        raise InvalidCredentialError(
            "the key is protected by a passphrase, and nobody is at a terminal to type it",
            "put it into a file of mode 0600 and name that in DATAFLOW_PASSPHRASE_FILE",
        )
    return str(typer.prompt("passphrase of the key", hide_input=True, confirmation_prompt=twice))
