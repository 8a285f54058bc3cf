"""Starts a daemon from the command line: reads settings and flows, checks the schema, creates the engine, runs the loop."""

from __future__ import annotations

import faulthandler
from functools import partial
from typing import TYPE_CHECKING

import anyio
from pydantic import ValidationError

from dataflowd import daemon
from dataflowd.daemon.state import Assignment
from dataflowd.database import db, migrate
from dataflowd.engine.command import CommandEngine
from dataflowd.engine.noop import NoopEngine
from dataflowd.engine.orders import Orders
from dataflowd.engine.spark import SparkEngine
from dataflowd.flow.compose import as_parameters, versions
from dataflowd.flow.loaded import Declared
from dataflowd.host import log, private, runner_user, settings
from dataflowd.host.settings import Current
from dataflowd.model.errors import InvalidValueError, NotAllowedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from dataflowd.daemon.state import Wanted
    from dataflowd.engine import Engine
    from dataflowd.host.settings import Settings
    from dataflowd.host.supervise import Echo
    from dataflowd.model.attempt import Attempt, Result

FOREGROUND_MOST = 100


def serve(config: Path | None, given: Mapping[str, str], *, once: bool, patience: float) -> int:
    """Runs the daemon in the foreground; returns its exit status."""
    # systemd's watchdog ends a hanging daemon with SIGABRT. The handler then prints where the daemon hangs.
    faulthandler.enable()
    begun_with = _settings(config, given)
    log.configure(begun_with)
    runner_user.require(begun_with)
    current = Current(begun_with)
    declared = Declared(begun_with)
    _check_schema(begun_with)

    def reload() -> None:
        fresh, waiting = settings.reloaded(current.settings, _settings(config, given))
        declared.load(fresh)
        log.configure(fresh)
        current.settings = fresh
        _tell_left_out(declared)
        if waiting:
            log.logger(__name__).warning("daemon.needs_restart", settings=waiting)

    def serves() -> list[str] | None:
        kind = begun_with.engine
        return None if kind == "noop" else declared.jobs(commands_only=kind == "process")

    _tell_left_out(declared)
    if serves() == []:
        log.logger(__name__).warning(
            "daemon.serves_nothing", remedy="name flow files in DATAFLOW_FLOWS, and reload"
        )
    if begun_with.engine != "noop":
        _tell_versions(begun_with, declared)
    engine = create(current, declared)
    assignment = Assignment(
        once=once,
        patience=patience,
        serves=serves,
        unserved=declared.unserved,
        has_fixed_paths=declared.has_fixed_paths,
    )
    return anyio.run(partial(daemon.run, current, engine, assignment, reload=reload))


def _tell_left_out(declared: Declared) -> None:
    said = [
        (job, f"{error.path}:{mistake.line}: {mistake.what}", mistake.remedy)
        for job, error in declared.lacking.items()
        for mistake in error.mistakes
    ]
    said += [(job, error.message, error.remedy) for job, error in declared.elsewhere.items()]
    for job, error, remedy in said:
        log.logger(__name__).error(
            "job.left_out", job=job, error=error, remedy=f"{remedy}, then reload the daemon"
        )


def run_wanted(
    chosen: Settings,
    declared: Declared,
    wanted: Wanted,
    told: Callable[[Attempt, Result], None],
    echo: Echo,
) -> None:
    """Runs what a person wants, in a daemon of its own in this process, which then ends."""
    assignment = Assignment(
        once=True,
        wanted=wanted,
        told=told,
        serves=lambda: [wanted.jobid],
        has_fixed_paths=declared.has_fixed_paths,
    )
    log.configure(chosen)
    runner_user.require(chosen)
    _check_schema(chosen)
    for number in range(1, FOREGROUND_MOST):
        # Only one process may have a name. Other people may run jobs here too, so this takes the first free name.
        name = f"{chosen.effective_daemon_name[:50]}-run{number}"
        mine = Current(chosen.model_copy(update={"daemon_name": name}))
        engine = create(mine, declared, echo)
        try:
            anyio.run(partial(daemon.run, mine, engine, assignment))
        except daemon.NameTakenError:
            continue
        return
    raise NotAllowedError(f"{FOREGROUND_MOST} runs are in the foreground already", "wait for some of them")


def create(current: Current, declared: Declared, echo: Echo | None = None) -> Engine:
    private.make_passage(current.settings.data_dir)
    match current.settings.engine:
        case "noop":
            return NoopEngine()
        case "process":
            return CommandEngine(current, declared, Orders(current), echo)
        case "spark":
            orders = Orders(current)
            commands = CommandEngine(current, declared, orders, echo, is_looked_at=True)
            return SparkEngine(current, declared, orders, commands, echo)


def _settings(config: Path | None, given: Mapping[str, str]) -> Settings:
    """The settings of files and environment. What the command line gives replaces them."""
    found = settings.load(config).settings
    for name, value in given.items():
        try:
            found = settings.replaced(found, name, value)
        except ValidationError as error:
            option = name.removeprefix("daemon_")  # --name is the setting daemon_name
            wrong = "; ".join(item["msg"] for item in error.errors(include_url=False))
            raise InvalidValueError(f"--{option} {value}: {wrong}", "run `dataflowd run --help`") from None
    return found


def _tell_versions(current: Settings, declared: Declared) -> None:
    """Tells the database the code version of every job, so that `chunks --stale` lists what older code made."""
    with db.connect(current, "dataflowd") as connection:
        for flow in declared.flows.values():
            connection.execute(db.query("code_versions"), as_parameters(versions(flow)))


def _check_schema(current: Settings) -> None:
    """Refuses a schema that this release cannot use. Accepts a newer one that still serves this release, with a warning."""
    with db.connect(current, "dataflowd") as connection:
        found = migrate.require(connection)
    if not found.is_current:
        log.logger(__name__).warning(
            "schema.newer",
            schema=found.made_by,
            remedy="upgrade dataflowd on this host before the next release",
        )
