"""The second judge: computes from the raw tables alone what must be true of the control database at a quiet moment.

It shares no code with the functions in sql/: it computes mappings, order, the five questions and every derived table again,
so that a mistake stays unseen only if it is made twice. `judge(connection)` returns the violations. Their kinds are

| kind | violation |
| --- | --- |
| missing | a run is ready and not in `work`: no daemon will ever claim it |
| queued_not_ready | a run is in `work` and not ready; harmless before a claim, because a claim evaluates the run again |
| counters | the sums of `counter` differ from `datastatus` and `work` |
| open_run | `open_run` is not the set of known runs of strict jobs that are not READY in all outputs |
| recheck | an entry is left although settle() was called and no other session was there |
| lock | an advisory lock is held that no session may hold, or by the wrong session, or it is not held |
| attempt | `datastatus` and `attempt` disagree |
| producer | an OUT row names another job than the present producer |
| limit | more attempts run than a limit allows |
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import psycopg

    # The dataids of a partitioning.
    Batches = Callable[[str], Iterable[str]]

Chunk = tuple[str, str]
Run = tuple[str, str]
Mapping = dict[str, Any]
Row = dict[str, Any]

# In the order of the questions.
QUESTIONS = ("DATA_NOT_READY", "WRONG_DATA", "INVALID_PATH", "NOT_VALIDATED", "LOCKED")
LARGEST_NUMBER = 10**18 - 1
HARMLESS_BEFORE_A_CLAIM = "queued_not_ready"

# One statement, so that all tables are of the same moment.
PICTURE = """
    SELECT json_build_object(
        'dataset', (SELECT json_agg(t) FROM dataflow.dataset t),
        'job', (SELECT json_agg(t) FROM dataflow.job t),
        'job_input', (SELECT json_agg(t) FROM dataflow.job_input t),
        'job_output', (SELECT json_agg(t) FROM dataflow.job_output t),
        'datastatus', (SELECT json_agg(t) FROM (
            SELECT datasetid, dataid, locktype, jobid, run, status, attempt, validated, code FROM dataflow.datastatus) t),
        'attempt', (SELECT json_agg(t) FROM (
            SELECT attempt, jobid, dataid, daemon, incarnation, inputs, outcome, let_go, retry_at FROM dataflow.attempt) t),
        'batch', (SELECT json_agg(t) FROM (SELECT datasetid, dataid, partitioning FROM dataflow.batch) t),
        'control', (SELECT json_agg(t) FROM dataflow.control t),
        'daemon', (SELECT json_agg(t) FROM (
            SELECT d.daemon, d.incarnation, d.session_pid, EXISTS (
                SELECT FROM pg_stat_activity a WHERE a.pid = d.session_pid AND a.datname = current_database()) AS is_connected
            FROM dataflow.daemon d) t),
        'work', (SELECT json_agg(t) FROM (SELECT jobid, dataid FROM dataflow.work) t),
        'open_run', (SELECT json_agg(t) FROM dataflow.open_run t),
        'recheck', (SELECT json_agg(t) FROM dataflow.recheck t),
        'counter', (SELECT json_agg(t) FROM (
            SELECT datasetid, jobid, locktype, status, sum(chunks) AS chunks FROM dataflow.counter GROUP BY 1, 2, 3, 4) t),
        'lock', (SELECT json_agg(t) FROM (
            SELECT l.pid, l.mode, ((l.classid::bigint << 32) | l.objid::bigint)::text AS key FROM pg_locks l
            JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
            WHERE l.locktype = 'advisory' AND l.granted) t),
        'key', (SELECT json_agg(t) FROM (
            SELECT r.jobid, r.dataid, hashtextextended(r.jobid || '/' || r.dataid, 20250101)::text AS key FROM (
                SELECT jobid::text, dataid::text FROM dataflow.attempt
                UNION SELECT jobid, dataid FROM dataflow.work
                UNION SELECT jobid, run FROM dataflow.datastatus) AS r) t)
    )
"""


@dataclass(frozen=True, order=True)
class Violation:
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def judge(connection: psycopg.Connection[Any]) -> list[Violation]:
    """The violations. The connection must be able to see everything, and no other session may change anything meanwhile."""
    return look(connection).violations()


def look(connection: psycopg.Connection[Any]) -> Picture:
    [[found]] = connection.execute(PICTURE).fetchall()
    return Picture({table: rows or [] for table, rows in found.items()})


def is_harmful(violation: Violation) -> bool:
    """Whether a violation matters before a claim: an extra row in the queue does not."""
    return violation.kind != HARMLESS_BEFORE_A_CLAIM


# --- order ---


def natural_key(dataid: str) -> tuple[tuple[int, int], ...]:
    """Consecutive digits count as one number, every other character as its code."""
    parts = re.findall(r"[0-9]+|[^0-9]", dataid)
    return tuple((ord("0"), int(part)) if part[0].isdigit() else (ord(part), 0) for part in parts)


# --- mappings; a period is the date of its first day, an hour is its moment in UTC ---


@cache
def zone_of(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def number_of(dataid: str) -> int | None:
    return int(dataid) if re.fullmatch(r"0|[1-9][0-9]{0,17}", dataid, re.ASCII) else None


def period_of(unit: str, dataid: str) -> datetime | None:
    """The start of a period, without a zone."""
    shape = {
        "hour": "%Y-%m-%dT%H",
        "day": "%Y-%m-%d",
        "week": "%G-W%V",
        "month": "%Y-%m",
        "year": "%Y",
    }[unit]
    try:
        found = datetime.strptime(*((f"{dataid}-1", f"{shape}-%u") if unit == "week" else (dataid, shape)))  # noqa: DTZ007 - a period has no zone
    except ValueError:
        return None
    return found if period_id(unit, found) == dataid else None


def period_id(unit: str, start: datetime) -> str:
    year, week, _ = start.isocalendar()
    return {
        "hour": f"{start.year:04}-{start.month:02}-{start.day:02}T{start.hour:02}",
        "day": f"{start.year:04}-{start.month:02}-{start.day:02}",
        "week": f"{year:04}-W{week:02}",
        "month": f"{start.year:04}-{start.month:02}",
        "year": f"{start.year:04}",
    }[unit]


def shifted(unit: str, dataid: str, units: int) -> str | None:
    if unit == "number":
        number = number_of(dataid)
        return None if number is None or not 0 <= number + units <= LARGEST_NUMBER else str(number + units)
    start = period_of(unit, dataid)
    if start is None:
        return None
    try:
        if unit in {"hour", "day", "week"}:
            moved = (
                start
                + units
                * {
                    "hour": timedelta(hours=1),
                    "day": timedelta(days=1),
                    "week": timedelta(weeks=1),
                }[unit]
            )
        else:
            months = start.year * 12 + start.month - 1 + units * (12 if unit == "year" else 1)
            moved = start.replace(year=months // 12, month=months % 12 + 1)
        found = period_id(unit, moved)
    except (OverflowError, ValueError):
        return None
    return found if period_of(unit, found) is not None else None


def containing(mapping: Mapping, dataid: str) -> str | None:
    """The period of the larger unit in which a period of the smaller unit begins."""
    start = period_of(mapping["from"], dataid)
    if start is None:
        return None
    if mapping["from"] == "hour":
        try:
            start = start.replace(tzinfo=UTC).astimezone(zone_of(mapping.get("zone", "UTC")))
        except OverflowError:
            return None
    return period_id(mapping["to"], start)


def contained(mapping: Mapping, run: str) -> list[str]:
    """Every period of the smaller unit that belongs to this one, found by trying all candidates."""
    first = period_of(mapping["to"], run)
    if first is None:
        return []
    longest = {"day": 1, "week": 7, "month": 31, "year": 366}[mapping["to"]]
    step = {"hour": timedelta(hours=1)}.get(mapping["from"], timedelta(days=1))
    margin = timedelta(days=2)  # every zone is nearer to UTC than this
    moment, found = first - margin, []
    while moment < first + timedelta(days=longest) + margin:
        found.append(period_id(mapping["from"], moment))
        moment += step
    return [each for each in dict.fromkeys(found) if containing(mapping, each) == run]


def inputs_of(mapping: Mapping, run: str, batches: Batches) -> list[str]:
    """The dataids of an input that a run needs; empty if the mapping has no such run."""
    kind = mapping["kind"]
    if kind == "identity":
        return [run]
    if kind == "fixed":
        return [mapping["dataid"]]
    if kind == "offset":
        return _there(shifted(mapping["unit"], run, mapping["by"]))
    if kind == "all":
        return list(_members(mapping, batches)) if run == mapping.get("dataid", "all") else []
    if kind == "partitioning":
        return [run] if run in batches(mapping["name"]) else []
    return _window(mapping, run)


def _window(mapping: Mapping, run: str) -> list[str]:
    if "last" in mapping:
        return _there(*(shifted(mapping["unit"], run, -back) for back in range(mapping["last"])))
    if "size" not in mapping:
        return contained(mapping, run)
    number, size = number_of(run), mapping["size"]
    if number is None or number * size > LARGEST_NUMBER:
        return []
    return [str(each) for each in range(number * size, min(number * size + size, LARGEST_NUMBER + 1))]


def runs_of(mapping: Mapping, dataid: str, batches: Batches) -> list[str]:
    """The runs that a chunk makes possible by itself. A fixed chunk makes none possible."""
    kind = mapping["kind"]
    if kind == "identity":
        return [dataid]
    if kind == "offset":
        return _there(shifted(mapping["unit"], dataid, -mapping["by"]))
    if kind == "all":
        return [mapping.get("dataid", "all")] if dataid in _members(mapping, batches) else []
    if kind == "partitioning":
        return [dataid] if dataid in batches(mapping["name"]) else []
    return _windows(mapping, dataid) if kind == "window" else []


def _windows(mapping: Mapping, dataid: str) -> list[str]:
    if "last" in mapping:
        return _there(*(shifted(mapping["unit"], dataid, ahead) for ahead in range(mapping["last"])))
    if "size" not in mapping:
        return _there(containing(mapping, dataid))
    number = number_of(dataid)
    return [] if number is None else [str(number // mapping["size"])]


def _members(mapping: Mapping, batches: Batches) -> Iterable[str]:
    members: Iterable[str] = mapping["dataids"] if "dataids" in mapping else batches(mapping["partitioning"])
    return members


def _there(*found: str | None) -> list[str]:
    return [each for each in found if each is not None]


@dataclass(frozen=True)
class Job:
    name: str
    is_strict: bool
    is_retired: bool
    max_running: int | None
    inputs: dict[str, Mapping]
    outputs: list[str]


class Picture:
    """All tables at one moment."""

    def __init__(self, tables: dict[str, list[Row]]) -> None:
        self.tables = tables
        self.datasets = {row["datasetid"]: row for row in tables["dataset"]}
        self.jobs = {
            row["jobid"]: Job(
                row["jobid"],
                row["strict_order"],
                row["retired"] is not None,
                row["max_running"],
                {i["datasetid"]: i["mapping"] for i in tables["job_input"] if i["jobid"] == row["jobid"]},
                [o["datasetid"] for o in tables["job_output"] if o["jobid"] == row["jobid"]],
            )
            for row in tables["job"]
        }
        self.producers = {row["datasetid"]: row["jobid"] for row in tables["job_output"]}
        self.chunks = {
            (row["datasetid"], row["dataid"]): row for row in tables["datastatus"] if row["locktype"] == "OUT"
        }
        self.sessions = {(row["daemon"], row["incarnation"]): row for row in tables["daemon"]}
        self.attempts = {row["attempt"]: row for row in tables["attempt"]}
        self.live = [row for row in tables["attempt"] if row["outcome"] is None]
        self.being_read = {
            (row["datasetid"], row["dataid"])
            for row in tables["datastatus"]
            if (row["locktype"], row["status"]) == ("IN", "RUNNING")
        }
        self.queue = {(row["jobid"], row["dataid"]) for row in tables["work"]}

    # --- the five questions ---

    @cached_property
    def known(self) -> set[Run]:
        """The known runs: an output has a row, or an input chunk that leads to the run has one."""
        found = {
            (job.name, dataid)
            for job in self.jobs.values()
            for dataset, dataid in self.chunks
            if dataset in job.outputs
        }
        for job in self.jobs.values():
            for dataset, mapping in job.inputs.items():
                for chunk, dataid in self.chunks:
                    if chunk == dataset:
                        found |= {(job.name, run) for run in runs_of(mapping, dataid, self._batches(dataset))}
        return found

    @cached_property
    def ready(self) -> set[Run]:
        return {run for run in self.known if self.obstacle(run) is None}

    def obstacle(self, run: Run) -> str | None:
        """The first reason why a run may not start, or None."""
        return next((reason for _, reason in self.obstacles(run)), None)

    def code(self, run: Run) -> str | None:
        """The code of the first question that is answered no, or None."""
        found = {code for code, _ in self.obstacles(run)}
        return next((code for code in QUESTIONS if code in found), None)

    def obstacles(self, run: Run) -> Iterator[tuple[str, str]]:
        """All reasons why a run may not start, each with the code of its question."""
        job = self.jobs[run[0]]
        # A run of a job without inputs is known by the row of its output, which a person asked for.
        if job.is_retired or not job.outputs:
            yield "LOCKED", "the job is retired, or has no outputs"
        if misplaced := self._misplaced(job):
            yield "INVALID_PATH", misplaced
        yield from self._missing_inputs(run)
        yield from (("LOCKED", reason) for reason in self._locked(run) if reason)
        if early := self._early(run):
            yield "WRONG_DATA", early

    def inputs(self, run: Run) -> list[tuple[str, list[str]]]:
        name, dataid = run
        return [
            (dataset, inputs_of(mapping, dataid, self._batches(dataset)))
            for dataset, mapping in self.jobs[name].inputs.items()
        ]

    def is_open(self, run: Run) -> bool:
        """Whether later runs of a strict job wait for this run. An output that was declared later does not reopen a done run."""
        name, dataid = run
        chunks = [(dataset, dataid) for dataset in self.jobs[name].outputs]
        statuses = [self.chunks[chunk]["status"] for chunk in chunks if chunk in self.chunks]
        return not statuses or any(status != "READY" for status in statuses)

    def _batches(self, dataset: str) -> Callable[[str], list[str]]:
        return lambda partitioning: [
            row["dataid"]
            for row in self.tables["batch"]
            if (row["datasetid"], row["partitioning"]) == (dataset, partitioning)
        ]

    def _misplaced(self, job: Job) -> str | None:
        used = [self.datasets[name] for name in [*job.inputs, *job.outputs]]
        for row in used:
            comes_by_itself = row["calendar"] is not None and row["datasetid"] not in job.outputs
            has_a_place = row["location"] is not None or row["tablename"] is not None
            if not (has_a_place or comes_by_itself or row["format"] == "none"):
                return f"{row['datasetid']} has no place"
        environments = {row["environment"] for row in used} - {None}
        return "several environments" if len(environments) > 1 else None

    def _missing_inputs(self, run: Run) -> Iterator[tuple[str, str]]:
        for dataset, dataids in self.inputs(run):
            if not dataids:
                yield "WRONG_DATA", f"{dataset} has no chunk for it"
            for dataid in dataids:
                row = self.chunks.get((dataset, dataid))
                if row is None or row["status"] != "READY":
                    # A chunk that a person holds is LOCKED.
                    is_held = row is not None and row["status"] in {"HOLD", "PENDING"}
                    code = "LOCKED" if is_held else "DATA_NOT_READY"
                    yield code, f"{dataset}/{dataid} is {row['status'] if row else 'not there'}"
                if row is not None and not row["validated"]:
                    yield "NOT_VALIDATED", f"{dataset}/{dataid} is not validated"

    def _locked(self, run: Run) -> Iterator[str | None]:
        name, dataid = run
        for dataset in self.jobs[name].outputs:
            row = self.chunks.get((dataset, dataid))
            if row is None:
                continue
            last = self.attempts.get(row["attempt"])
            will_retry = row["code"] != "BY_HAND" and last is not None and last["retry_at"] is not None
            if row["status"] != "RESUBMIT" and not (row["status"] == "FAILED" and will_retry):
                yield f"{dataset}/{dataid} is {row['status']}"
            elif (dataset, dataid) in self.being_read:
                yield f"{dataset}/{dataid} is being read"

    def _early(self, run: Run) -> str | None:
        name, dataid = run
        if not self.jobs[name].is_strict:
            return None
        place = self._place(name, dataid)
        earlier = [
            other
            for job, other in self.known
            if job == name and self._place(name, other) < place and self.is_open((job, other))
        ]
        return f"{min(earlier)} comes first" if earlier else None

    def _place(self, job: str, dataid: str) -> tuple[Any, str]:
        by_text = all(self.datasets[dataset]["ordering"] == "text" for dataset in self.jobs[job].outputs)
        return ((), dataid) if by_text else (natural_key(dataid), dataid)

    # --- violations ---

    def violations(self) -> list[Violation]:
        found = [
            *self._queue_violations(),
            *self._counter_violations(),
            *self._open_run_violations(),
            *self._lock_violations(),
            *self._status_violations(),
            *self._attempt_violations(),
            *self._limit_violations(),
        ]
        found += [
            Violation("recheck", f"{row['jobid']}/{row['dataid']} is left (horizon {row['horizon']})")
            for row in self.tables["recheck"]
        ]
        return sorted(found)

    def _queue_violations(self) -> Iterator[Violation]:
        for run in self.ready - self.queue:
            yield Violation("missing", f"{'/'.join(run)} is ready and not queued")
        for run in self.queue - self.ready:
            why = (
                self.obstacle(run)
                if run in self.known
                else "nothing leads to it"
                if run[0] in self.jobs
                else "no such job"
            )
            yield Violation(HARMLESS_BEFORE_A_CLAIM, f"{'/'.join(run)} is queued, but {why}")

    def _counter_violations(self) -> Iterator[Violation]:
        counted = Counter(
            (row["datasetid"], row["jobid"], "OUT", row["status"]) for row in self.chunks.values()
        ) + Counter(("", job, "WORK", "QUEUED") for job, _ in self.queue)
        summed = {
            (row["datasetid"], row["jobid"], row["locktype"], row["status"]): row["chunks"]
            for row in self.tables["counter"]
        }
        for key in sorted(counted.keys() | summed.keys()):
            if counted.get(key, 0) != summed.get(key, 0):
                stored, there = summed.get(key, 0), counted.get(key, 0)
                yield Violation("counters", f"{'/'.join(key)} is {stored}, counted {there}")

    def _open_run_violations(self) -> Iterator[Violation]:
        stored = {(row["jobid"], row["dataid"]) for row in self.tables["open_run"]}
        wanted = {run for run in self.known if self.jobs[run[0]].is_strict and self.is_open(run)}
        for run in wanted - stored:
            yield Violation("open_run", f"{'/'.join(run)} is open and has no row")
        for run in stored - wanted:
            yield Violation("open_run", f"{'/'.join(run)} has a row and is not open")

    def _lock_violations(self) -> Iterator[Violation]:
        """pg_locks does not show how often a session holds a lock. A lock that was taken twice is found after the attempt's end."""
        runs = {row["key"]: (row["jobid"], row["dataid"]) for row in self.tables["key"]}
        allowed: dict[Run, set[int | None]] = {}
        for row in self.attempts.values():
            if row["outcome"] is None or (row["outcome"] == "CANCELLED" and not row["let_go"]):
                pid = self.sessions.get((row["daemon"], row["incarnation"]), {}).get("session_pid")
                allowed.setdefault((row["jobid"], row["dataid"]), set()).add(pid)
        holders: dict[Run, list[int]] = {}
        for lock in self.tables["lock"]:
            run, pid = runs.get(lock["key"]), lock["pid"]
            if run is None:
                yield Violation("lock", f"{lock['key']} ({lock['mode']}) is held by {pid}, and is no run's")
                continue
            holders.setdefault(run, []).append(pid)
            if run not in allowed:
                yield Violation("lock", f"{'/'.join(run)} is held by {pid}, and nobody is at it")
            elif pid not in allowed[run]:
                yield Violation("lock", f"{'/'.join(run)} is held by {pid}, not by its daemon")
        for run, pids in holders.items():
            if len(pids) > 1:
                yield Violation("lock", f"{'/'.join(run)} is held {len(pids)} times")
        yield from self._unlocked(holders)

    def _unlocked(self, holders: dict[Run, list[int]]) -> Iterator[Violation]:
        for row in self.live:
            session = self.sessions.get((row["daemon"], row["incarnation"]))
            run = (row["jobid"], row["dataid"])
            if session and session["is_connected"] and session["session_pid"] not in holders.get(run, []):
                yield Violation("lock", f"{'/'.join(run)} runs, and its daemon {row['daemon']} has no lock")

    def _status_violations(self) -> Iterator[Violation]:
        for (dataset, dataid), row in self.chunks.items():
            producer = self.producers.get(dataset, "")
            if row["jobid"] != producer:
                yield Violation(
                    "producer", f"{dataset}/{dataid} names {row['jobid']!r}, its producer is {producer!r}"
                )
        for row in self.tables["datastatus"]:
            last = self.attempts.get(row["attempt"])
            if row["status"] == "RUNNING" and (last is None or last["outcome"] is not None):
                chunk = f"{row['datasetid']}/{row['dataid']}"
                yield Violation(
                    "attempt",
                    f"{row['locktype']} {chunk} is RUNNING for {row['jobid']}/{row['run']}, which is not alive",
                )

    def _attempt_violations(self) -> Iterator[Violation]:
        held = {
            (row["locktype"], row["datasetid"], row["dataid"], row["attempt"])
            for row in self.tables["datastatus"]
            if row["status"] == "RUNNING"
        }
        alive = Counter((row["jobid"], row["dataid"]) for row in self.live)
        for row in self.live:
            run = f"{row['jobid']}/{row['dataid']}"
            if alive[row["jobid"], row["dataid"]] > 1:
                yield Violation("attempt", f"{run} has several live attempts")
            for key in row["inputs"]:
                dataset, _, dataid = key.partition("/")
                if self.chunks.get((dataset, dataid), {}).get("status") in {"HOLD", "PENDING"}:
                    yield Violation("attempt", f"{run} is alive, and reads {key}, which is held")
            wanted = [("OUT", dataset, row["dataid"]) for dataset in self.jobs[row["jobid"]].outputs]
            wanted += [("IN", *key.split("/", 1)) for key in row["inputs"]]
            for locktype, dataset, dataid in wanted:
                if (locktype, dataset, dataid, row["attempt"]) not in held:
                    yield Violation(
                        "attempt", f"{run} is alive, and does not hold {locktype} {dataset}/{dataid}"
                    )

    def _limit_violations(self) -> Iterator[Violation]:
        limits = {row["scope"]: row["concurrency"] for row in self.tables["control"]}
        for job in self.jobs.values():
            scope = f"job:{job.name}"
            if limits.get(scope) is None:
                limits[scope] = job.max_running
        for scope, limit in limits.items():
            kind, _, name = scope.partition(":")
            column = {"job": "jobid", "daemon": "daemon"}.get(kind)
            running = sum(column is None or row[column] == name for row in self.live)
            if limit is not None and running > limit:
                yield Violation("limit", f"{running} attempts run, {scope} allows {limit}")
