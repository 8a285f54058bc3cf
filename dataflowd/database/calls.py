"""The functions of the database that a daemon calls, typed. Each is one transaction; the rules are in sql/functions.

What only the claiming session may call (register, claim, finish, renew, retake, stop) goes through `Claims`; everything
else through any link.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from psycopg.types.json import Jsonb

from dataflowd import __version__
from dataflowd.database import answers
from dataflowd.model.attempt import Attempt
from dataflowd.model.connection_changes import Change
from dataflowd.model.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dataflowd.database.session import Link, Row
    from dataflowd.model.attempt import Result

NOBODY = UUID(int=0)

Verdict = Literal["accepted", "fenced", "busy"]


@dataclass(frozen=True)
class Look:
    queued: int
    later: int  # how many of the queued runs wait for their retry
    due: float | None  # seconds until the first retry
    recheck: bool

    @property
    def waiting(self) -> bool:
        return self.queued > self.later


@dataclass(frozen=True)
class Limits:
    limit: int
    paused: bool
    runners: int | None = None  # Spark applications; None: as the settings say
    slots: int | None = None  # chunks side by side in one of them


@dataclass(frozen=True)
class Neighbour:
    daemon: str
    incarnation: UUID
    pid: int
    started: float


@dataclass(frozen=True)
class Retaken:
    """An attempt whose run this session has locked again after a reconnect."""

    attempt: Attempt
    is_live: bool  # False: it was cancelled, and the database waits until the daemon says that it has stopped


@dataclass(frozen=True)
class Turned:
    """A chunk that is published at a fixed path, and the directory that the path must lead to."""

    dataset: str
    dataid: str
    location: str
    current: str


@dataclass
class Claims:
    """The session that claims: its locks and the lease belong to one incarnation of one daemon."""

    link: Link
    daemon: str
    incarnation: UUID = NOBODY

    @property
    def _self(self) -> dict[str, object]:
        return {"daemon": self.daemon, "incarnation": self.incarnation}

    async def register(self, hostname: str, pid: int, lease: float, environment: str) -> None:
        rows = await self.link.call(
            "daemon_register",
            {
                "daemon": self.daemon,
                "hostname": hostname,
                "pid": pid,
                "lease": lease,
                "environment": environment,
                "version": __version__,
            },
        )
        self.incarnation = rows[0][0]

    async def serve(self, jobs: Sequence[str] | None, unserved: Mapping[str, str]) -> None:
        """Registers the jobs that this host can run (None: any), and why it cannot run others of its flow files."""
        told = {"jobs": None if jobs is None else list(jobs), "unserved": Jsonb(dict(unserved))}
        await self.link.call("daemon_serve", self._self | told)

    async def reloaded(self, jobs: Sequence[str] | None) -> None:
        """Records in the history that the daemon has read its settings and flow files again."""
        await self.link.call("daemon_reloaded", self._self | {"jobs": None if jobs is None else len(jobs)})

    async def claim(self, want: int, scarce: Sequence[str] = (), room: int = 0) -> list[Attempt]:
        """Claims at most `want` runs, and at most `room` of them from the scarce jobs together."""
        asked = {"want": want, "scarce": list(scarce), "room": room}
        rows = await self.link.call("daemon_claim", self._self | asked)
        if len(rows) > want:
            raise answers.wrong("daemon_claim", f"has {len(rows)} runs where {want} were asked for")
        return [Attempt(*row) for row in rows]

    async def claim_run(
        self, jobid: str, dataid: str, *, forced: bool, reason: str | None = None
    ) -> list[Attempt]:
        """Claims one run. Empty if the run may not start now."""
        named = {"jobid": jobid, "dataid": dataid, "forced": forced, "reason": reason}
        return [Attempt(*row) for row in await self.link.call("daemon_claim_run", self._self | named)]

    async def claim_new(self, jobid: str) -> list[Attempt]:
        """Creates and claims a run of a job without inputs."""
        rows = await self.link.call("daemon_claim_new", self._self | {"jobid": jobid})
        return [Attempt(*row) for row in rows]

    async def finish(self, results: Sequence[tuple[Result, float | None]]) -> dict[int, Verdict]:
        """Ends attempts, each with how many seconds ago its code began (None: it did not)."""
        documents = [result.document() for result, _ in results]
        for document, (_, ran) in zip(documents, results, strict=True):
            if ran is not None:
                document["ran"] = ran
        told = {"results": Jsonb(documents, dumps=_dumps)}
        verdicts: dict[int, Verdict] = dict(await self.link.call("daemon_finish", told))
        if untold := [result.attempt for result, _ in results if result.attempt not in verdicts]:
            raise answers.wrong("daemon_finish", f"says nothing of the attempt {untold[0]}")
        return verdicts

    async def renew(self) -> bool:
        """False: another incarnation is now the daemon of that name."""
        return (await self.link.call("daemon_renew", self._self))[0][0] is not None

    async def retake(self) -> list[Retaken]:
        """Locks the runs of this incarnation again, and returns those that it may go on with or must report as stopped."""
        await self.link.call("daemon_end_session", self._self)
        rows = await self.link.call("daemon_retake", self._self)
        return [
            Retaken(Attempt(attempt, token, jobid, dataid, 0, ""), is_live)
            for attempt, token, jobid, dataid, is_live in rows
        ]

    async def stop(self) -> None:
        await self.link.call("daemon_stop", self._self)


async def neighbours(link: Link, hostname: str) -> list[Neighbour]:
    return [Neighbour(*row) for row in await link.call("daemon_neighbours", {"hostname": hostname})]


async def expire(link: Link, neighbour: Neighbour) -> None:
    await link.call("daemon_expire", {"daemon": neighbour.daemon, "incarnation": neighbour.incarnation})


async def end_frozen(link: Link) -> list[Row]:
    return await link.call("daemon_end_frozen")


async def rescue(link: Link) -> list[Row]:
    """attempt, jobid, dataid, daemon, tag of each attempt that was lost."""
    return await link.call("daemon_rescue")


async def cancelled(link: Link, claims: Claims, attempts: Iterable[int]) -> list[int]:
    rows = await link.call(
        "daemon_cancelled",
        {"daemon": claims.daemon, "incarnation": claims.incarnation, "attempts": list(attempts)},
    )
    return [row[0] for row in rows]


async def began(link: Link, begun: Sequence[tuple[Attempt, float, dict[str, Any] | None]]) -> list[int]:
    """Reports how long each attempt has run, and what its check of the inputs found. Returns the attempts to stop."""
    rows = await link.call(
        "daemon_began",
        {
            "attempts": [attempt.attempt for attempt, _, _ in begun],
            "tokens": [attempt.token for attempt, _, _ in begun],
            "seconds": [seconds for _, seconds, _ in begun],
            "found": [None if found is None else _dumps(found) for _, _, found in begun],
        },
    )
    return [attempt for attempt, is_ours in rows if not is_ours]


async def waits(link: Link, changed: Sequence[tuple[Attempt, int | None]]) -> list[int]:
    """Reports attempts that wait for one of so many Spark applications (None: no longer). Returns the attempts to stop."""
    rows = await link.call(
        "daemon_waits",
        {
            "attempts": [attempt.attempt for attempt, _ in changed],
            "tokens": [attempt.token for attempt, _ in changed],
            "applications": [applications for _, applications in changed],
        },
    )
    return [attempt for attempt, is_ours in rows if not is_ours]


async def waited(link: Link, attempts: Sequence[int]) -> dict[int, float]:
    """How many seconds each attempt's run had been ready when it was claimed."""
    return dict(await link.call("daemon_waited", {"attempts": list(attempts)}))


async def look(link: Link, jobs: Sequence[str] | None) -> Look:
    """Looks at the queued runs of these jobs (None: of all jobs)."""
    parameters = {"jobs": None if jobs is None else list(jobs)}
    return Look(*(await link.call("daemon_look", parameters))[0])


async def limits(link: Link, daemon: str) -> Limits:
    found = await link.call("daemon_limits", {"daemon": daemon})
    if not found:
        raise NotFoundError(
            "the table dataflow.control has no row 'global'",
            "SELECT dataflow.set_concurrency('global', 4), and start the daemon again",
        )
    every, own, paused, runners, slots = found[0]
    return Limits(every if own is None else min(own, every), paused, runners, slots)


async def connection_changes(link: Link, jobid: str) -> list[Change]:
    """The changes of the job's datasets since their passwords were sealed."""
    rows = await link.call("connection_changes", {"datasetid": None, "jobid": jobid})
    return [Change(*row) for row in rows]


async def tick(link: Link) -> int:
    return int((await link.call("daemon_tick"))[0][0])


async def next_tick(link: Link) -> float | None:
    """Seconds until a calendar's next period is due; None: there is no calendar."""
    seconds: float | None = (await link.call("daemon_next_tick"))[0][0]
    return seconds


async def fixed_paths(link: Link, after_dataset: str, after_dataid: str) -> list[Turned]:
    after = {"after_dataset": after_dataset, "after_dataid": after_dataid}
    return [Turned(*row) for row in await link.call("fixed_paths", after)]


async def fixed_path(link: Link, datasetid: str, dataid: str) -> Turned | None:
    rows = await link.call("fixed_path", {"datasetid": datasetid, "dataid": dataid})
    return Turned(*rows[0]) if rows else None


async def gc_places(link: Link, environment: str) -> list[Row]:
    """Name and location of each dataset."""
    return await link.call("gc_places", {"environment": environment, "jobid": None})


async def gc_collect(link: Link, batch: Mapping[str, object], grace: float, retention: float) -> list[Row]:
    limits = {"grace": grace, "retention": retention, "dry_run": False}
    return await link.call("gc_collect", {**batch, **limits})


async def fold(link: Link) -> None:
    await link.call("daemon_fold")


async def queued(link: Link) -> int:
    return int((await link.call("daemon_queued"))[0][0])


async def status(link: Link) -> list[Row]:
    return await link.call("daemon_status")


def _dumps(value: object) -> str:
    """Compact JSON. Postgres cannot store a NUL, so it is written as an escape."""
    return json.dumps(value, separators=(",", ":"), default=str).replace("\\u0000", "\\\\x00")
