"""The stage: one database, the sessions of people and daemons on it, and a scene that is restored in a few milliseconds.

A daemon here is its claiming session and the runners that it has started. It does what dataflowd does: it starts a runner for
each attempt that a claim returns, stops cancelled attempts and reports it, and after a lost connection takes its locks again
and gives back the attempts that it does not know.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from tests.interleave.scenes import WORLDS
from tests.interleave.sessions import Session
from tests.judge import Violation, is_harmful, look

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.interleave.scenes import World
    from tests.interleave.sessions import Answer, Row
    from tests.judge import Chunk, Run

PLENTY = 100
MOST_ROUNDS = 30
SCHEDULES_PER_VACUUM = 200

# Tables that are empty when a scene begins. All other tables, also future ones, are restored.
EMPTIED = ("event", "forgotten", "check_result", "node_stat", "quarantine")

# Stops a function in the middle, at its first write of the kind that the session has named, such as work:insert. The stage
# holds an advisory lock; the function goes on when the lock is released.
PAUSES = """
    CREATE FUNCTION public.pause_here() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_TABLE_NAME || ':' || lower(TG_OP) = current_setting('interleave.pause_at', true) THEN
            PERFORM pg_advisory_xact_lock(current_setting('interleave.pause_key')::bigint);
        END IF;
        RETURN NULL;
    END $$;
"""
PAUSE_TABLES = (
    *("event", "work", "counter", "recheck", "open_run", "attempt", "datastatus", "manifest"),
    *("job", "job_input", "job_output", "daemon"),
)
PAUSE = """
    CREATE TRIGGER pause BEFORE INSERT OR UPDATE OR DELETE ON dataflow.{}
        FOR EACH STATEMENT EXECUTE FUNCTION public.pause_here()
"""
PAUSE_KEYS = (-101, -102, -103)

# An hour passes.
LATER = """
    BEGIN; SET LOCAL ROLE dataflow_admin;
    UPDATE dataflow.recheck SET looked = looked - interval '1 hour';
    UPDATE dataflow.attempt SET retry_at = retry_at - interval '1 hour' WHERE retry_at IS NOT NULL;
    UPDATE dataflow.work SET not_before = not_before - interval '1 hour' WHERE not_before IS NOT NULL;
    COMMIT
"""


class Runner(NamedTuple):
    attempt: int
    token: str
    job: str
    dataid: str

    @property
    def run(self) -> Run:
        return self.job, self.dataid


@dataclass
class Daemon:
    name: str
    session: Session
    incarnation: UUID
    runners: dict[int, Runner] = field(default_factory=dict)
    has_crashed: bool = False

    def claim_call(self, want: int = PLENTY) -> str:
        return text(
            "SELECT set_config('dataflow.look_cost', '0', false); SELECT * FROM dataflow.claim({}, {}, {})",
            *(self.name, self.incarnation, want),
        )

    def finish_call(self, runners: Iterable[Runner], outcome: str) -> str:
        results = [
            {"attempt": each.attempt, "token": each.token, "outcome": outcome, "code": "BAD"}
            for each in runners
        ]
        return text("SELECT attempt, verdict FROM dataflow.finish({})", Jsonb(results))

    def retake_call(self) -> str:
        return text("SELECT * FROM dataflow.retake_attempts({}, {})", self.name, self.incarnation)


@dataclass(frozen=True)
class Saved:
    """A saved scene: the statements that restore its rows, and its running attempts."""

    restore: str
    jobs: dict[str, dict[str, Any]]
    runners: dict[str, tuple[Runner, ...]]


class Stage:
    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.observer = psycopg.connect(dsn, autocommit=True, application_name="observer")
        self.observer.execute(PAUSES)
        for table in PAUSE_TABLES:
            self.observer.execute(sql.SQL(PAUSE).format(sql.Identifier(table)))
        self.people = [Session(dsn, f"person {slot}") for slot in range(3)]
        self.gates = [Session(dsn, f"gate {slot}") for slot in range(3)]
        self.daemons = {name: self._daemon(name) for name in ("alpha", "beta")}
        self._incarnations = {name: daemon.incarnation for name, daemon in self.daemons.items()}
        self.problems: list[Violation] = []
        self.isolation = self.daemon_isolation = "read committed"
        self.world = WORLDS["identity"]
        self.state = ""
        self.lengths: dict[tuple[str, str, str], int] = {}
        self._saved: dict[tuple[str, str], Saved] = {}
        self._scenes_set = 0
        self._columns = self._read_columns()
        # The rows of the migrations, with which every scene begins.
        self._initial = self._snapshot()

    def close(self) -> None:
        for session in [*self.people, *self.gates, *(each.session for each in self.daemons.values())]:
            session.close()
        self.observer.close()

    # --- the scene ---

    def set_scene(self, world: str, state: str) -> None:
        self._scenes_set += 1
        if self._scenes_set % SCHEDULES_PER_VACUUM == 0:
            self.observer.execute("VACUUM")
        self.problems = []
        self.world, self.state = WORLDS[world], state
        saved = self._saved.get((world, state))
        if saved is None:
            self._restore(self._initial)
            self._prepare(self.world, state)
            saved = self._saved[world, state] = self._snapshot()
        self._restore(saved)

    @property
    def saved(self) -> Saved:
        return self._saved[self.world.name, self.state]

    @property
    def inputs(self) -> tuple[Chunk, Chunk]:
        """The two input chunks that operations work on. If the run has only one, it is returned twice."""
        return self.world.needs[0], self.world.needs[-1]

    def _prepare(self, world: World, state: str) -> None:
        self._declare(world)
        for chunk in world.others:
            self.do("SELECT dataflow.ready({}, {})", *chunk)
        first, second = self.inputs
        to_come = {first, second} if state == "waiting" else set()
        for chunk in world.needs:
            if chunk not in to_come:
                is_valid = not (state == "unvalidated" and chunk == first)
                self.do("SELECT dataflow.ready({}, {}, {})", *chunk, is_valid)
        if state == "held":
            self.do("SELECT dataflow.hold({}, {}, 'wait')", world.outputs[0], world.dataid)
        if state == "stale":
            self._leave_in_queue(first)
        if state not in {"waiting", "unvalidated", "queued", "held", "stale"}:
            self._run(state)
        self.settle()

    def _run(self, state: str) -> None:
        """Claims the run, and brings it into the state."""
        alpha, world = self.daemons["alpha"], self.world
        self._claim_run(alpha, *world.run)
        if state in {"stopping", "cancelled"}:
            self.do("SELECT dataflow.cancel({}, {})", *world.run)
        if state == "stopping":
            self.do("UPDATE dataflow.datastatus SET status = 'RESUBMIT' WHERE dataid = {}", world.dataid)
        if state in {"failed", "made", "read"}:
            self.finish(alpha, list(alpha.runners.values()), "FAILED" if state == "failed" else "DONE")
        if state == "read":
            self._claim_run(alpha, "copy", world.dataid)
        if state == "orphaned":
            self._kill_daemon(alpha)

    def _leave_in_queue(self, chunk: Chunk) -> None:
        """Leaves the run in the queue although it is held: a claim had its row locked while the hold was set."""
        self.do("SELECT dataflow.hold({}, {}, 'wait')", *chunk)
        self._by_force(
            text(
                "INSERT INTO dataflow.work (jobid, dataid, sortkey) VALUES ('make', {0}, dataflow.sortkey({0}))",
                self.world.dataid,
            ),
            "INSERT INTO dataflow.counter VALUES ('', 'make', 'WORK', 'QUEUED', 1)",
        )

    def _kill_daemon(self, daemon: Daemon) -> None:
        """Gives the daemon's attempts to another daemon without a session and with an expired lease."""
        self.do("SELECT dataflow.register_daemon('gone', 'host', 1)")
        self._by_force(
            "UPDATE dataflow.daemon SET lease_until = now() - interval '1 hour', session_pid = NULL WHERE daemon = 'gone'",
            "UPDATE dataflow.attempt SET daemon = d.daemon, incarnation = d.incarnation FROM dataflow.daemon d WHERE d.daemon = 'gone'",
        )
        daemon.runners.clear()

    def _declare(self, world: World) -> None:
        place = "/data/{dataid}"
        for dataset in [*world.inputs, *world.outputs, "copied", "extra"]:
            if dataset == world.calendar:
                self.do(
                    "INSERT INTO dataflow.dataset (datasetid, format, calendar, calendar_start, calendar_next)"
                    " VALUES ({}, 'none', 'daily', '2026-01-02Z', '2026-01-02Z')",
                    dataset,
                )
            else:
                self.do("INSERT INTO dataflow.dataset (datasetid, location) VALUES ({}, {})", dataset, place)
        columns = {"max_attempts": 1, "retry_delay": "30 s", "strict_order": False, "max_running": None}
        columns |= world.columns
        self.do(
            "INSERT INTO dataflow.job (jobid, flow, max_attempts, retry_delay, strict_order, max_running)"
            " VALUES ('make', 'f', {}, {}, {}, {}), ('copy', '', 1, '0', false, NULL)",
            *(columns[name] for name in ("max_attempts", "retry_delay", "strict_order", "max_running")),
        )
        for job, inputs, outputs in [
            ("make", world.inputs, world.outputs),
            ("copy", {world.outputs[0]: {"kind": "identity"}}, ("copied",)),
        ]:
            for dataset, mapping in inputs.items():
                self.do("INSERT INTO dataflow.job_input VALUES ({}, {}, {})", job, dataset, Jsonb(mapping))
            for dataset in outputs:
                self.do("INSERT INTO dataflow.job_output VALUES ({}, {})", job, dataset)
        if world.batches:
            self.do(
                "INSERT INTO dataflow.partitioning VALUES ('parts', {}, ARRAY['k'], 'ids')",
                next(iter(world.inputs)),
            )
        for dataid in world.batches:
            self.do(
                "INSERT INTO dataflow.batch VALUES ({}, {}, 'parts', '{{}}')",
                next(iter(world.inputs)),
                dataid,
            )
        self.do("UPDATE dataflow.control SET concurrency = {}", world.limit)
        for daemon, jobs in world.serves.items():
            self.do("UPDATE dataflow.daemon SET jobs = {}::text[] WHERE daemon = {}", jobs, daemon)

    def _claim_run(self, daemon: Daemon, job: str, dataid: str) -> None:
        claim = "SELECT * FROM dataflow.claim_run({}, {}, {}, {})"
        answer = daemon.session.ask(text(claim, daemon.name, daemon.incarnation, job, dataid))
        self.start_runners(daemon, answer.rows)
        assert daemon.runners, f"{job}/{dataid} could not be claimed: {answer}"

    def _by_force(self, *statements: str) -> None:
        """Runs a statement that no person may run, with triggers disabled."""
        with self.observer.transaction():
            self.observer.execute("SET LOCAL session_replication_role = replica")
            for statement in statements:
                self.observer.execute(statement.encode())

    # --- saving and restoring ---

    def _read_columns(self) -> dict[str, list[str]]:
        found = self.observer.execute(
            "SELECT table_name, array_agg(column_name::text ORDER BY ordinal_position)"
            " FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)"
            " WHERE table_schema = 'dataflow' AND table_type = 'BASE TABLE' AND is_generated = 'NEVER' GROUP BY 1"
        )
        return dict(found.fetchall())

    def _snapshot(self) -> Saved:
        restore = ["BEGIN", "SET LOCAL session_replication_role = replica"]
        delete = sql.SQL("DELETE FROM dataflow.{}")
        restore += [delete.format(sql.Identifier(table)).as_string(None) for table in self._columns]
        for table in self._columns.keys() - set(EMPTIED):
            query = sql.SQL("SELECT json_agg(t) FROM dataflow.{} t").format(sql.Identifier(table))
            [[rows]] = self.observer.execute(query).fetchall()
            if rows:
                insert = sql.SQL(
                    "INSERT INTO dataflow.{0} ({1}) OVERRIDING SYSTEM VALUE"
                    " SELECT {1} FROM json_populate_recordset(NULL::dataflow.{0}, {2})"
                ).format(
                    sql.Identifier(table),
                    sql.SQL(", ").join(map(sql.Identifier, self._columns[table])),
                    sql.Literal(json.dumps(rows)),
                )
                restore.append(insert.as_string(None))
        restore.append("COMMIT")
        picture = look(self.observer)
        jobs = {
            row["jobid"]: {
                **{key: value for key, value in row.items() if key not in {"created", "modified", "retired"}},
                "inputs": picture.jobs[row["jobid"]].inputs,
                "outputs": picture.jobs[row["jobid"]].outputs,
            }
            for row in picture.tables["job"]
        }
        runners = {name: tuple(daemon.runners.values()) for name, daemon in self.daemons.items()}
        return Saved("; ".join(restore), jobs, runners)

    def _restore(self, saved: Saved) -> None:
        people = [*self.people, *self.gates]
        for session in [*people, *(daemon.session for daemon in self.daemons.values())]:
            if not session.is_open:
                session.reconnect()
            session.roll_back()
        self._plain(saved.restore)
        # A session's memory of attempts and queues belongs to the last scene.
        forget = (
            "SELECT pg_advisory_unlock_all(), set_config('dataflow.oldest_running', '', false),"
            " set_config('dataflow.look_cost', '0', false), set_config('interleave.pause_at', '', false)"
        )
        self.do(forget)
        for session in people:
            if session.was_used:
                session.ask(forget)
                session.was_used = False
        for name, daemon in self.daemons.items():
            daemon.runners = {runner.attempt: runner for runner in saved.runners[name]}
            daemon.incarnation, daemon.has_crashed = self._incarnations[name], False
            locks = "".join(
                text(", pg_try_advisory_lock(dataflow._run_lock({}, {}))", *runner.run)
                for runner in saved.runners[name]
            )
            daemon.session.ask(forget + locks)
            self.do(
                "UPDATE dataflow.daemon SET session_pid = {}, lease_until = now() + interval '1 hour' WHERE daemon = {}",
                *(daemon.session.pid, name),
            )

    def _plain(self, statements: str) -> None:
        """Sends several statements in one round trip."""
        answer = self.observer.pgconn.exec_(statements.encode())
        assert not answer.error_message, answer.error_message.decode()

    # --- operations of all sessions ---

    def do(self, statement: str, *values: Any) -> None:
        self.observer.execute(text(statement, *values).encode())

    def settle(self) -> None:
        """Lets time pass while no session is active, so that all rechecks are done."""
        self._plain(LATER)
        self.do("SELECT dataflow.settle()")

    def report(self, kind: str, text: str) -> None:
        self.problems.append(Violation(kind, text))

    # --- operations of daemons ---

    def start_runners(self, daemon: Daemon, rows: list[Row]) -> None:
        for row in rows:
            runner = Runner(
                int(row["attempt"] or 0), row["token"] or "", row["jobid"] or "", row["dataid"] or ""
            )
            for other in self.daemons.values():
                if runner.run in {each.run for each in other.runners.values()}:
                    self.report(
                        "two_processes",
                        f"{daemon.name} starts {'/'.join(runner.run)} beside the runner of {other.name}",
                    )
            daemon.runners[runner.attempt] = runner

    def stop_runners(self, daemon: Daemon, answer: Answer) -> None:
        """Stops the runners whose result was accepted, or refused for good."""
        for row in answer.rows:
            if row["verdict"] != "busy":
                daemon.runners.pop(int(row["attempt"] or 0), None)

    def finish(self, daemon: Daemon, runners: list[Runner], outcome: str) -> None:
        if runners:
            answer = daemon.session.ask(daemon.finish_call(runners, outcome))
            if answer.is_error:
                self.report("error", f"finish: {answer.sqlstate} {answer.message}")
            self.stop_runners(daemon, answer)

    def cut(self, daemon: Daemon) -> None:
        """Breaks the connection, and returns when the server has noticed."""
        pid = daemon.session.pid
        daemon.session.close()
        while self.observer.execute("SELECT pid FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone():
            pass

    def crash(self, daemon: Daemon) -> None:
        """Kills the daemon and its runners; a daemon on the same host ends its lease."""
        self.cut(daemon)
        daemon.has_crashed = True
        daemon.runners.clear()
        self.do("SELECT dataflow.expire_daemon({}, {})", daemon.name, daemon.incarnation)

    def unknown(self, daemon: Daemon, answer: Answer) -> list[Runner]:
        """The attempts of retake_attempts() that this daemon does not know."""
        return [
            Runner(int(row["attempt"] or 0), row["token"] or "", row["jobid"] or "", row["dataid"] or "")
            for row in answer.rows
            if int(row["attempt"] or 0) not in daemon.runners
        ]

    def mend(self, daemon: Daemon) -> None:
        """Opens a new session after a lost one, as dataflowd does; after a crash, registers a new incarnation."""
        daemon.session.reconnect()
        if daemon.has_crashed:
            daemon.incarnation = self._register(daemon.name, daemon.session)
            return
        answer = daemon.session.ask(daemon.retake_call())
        if answer.is_error:
            self.report("error", f"retake: {answer.sqlstate} {answer.message}")
        self.finish(daemon, self.unknown(daemon, answer), "RETURNED")

    # --- the end of a schedule ---

    def drain(self) -> None:
        """Runs everything to its end without faults. Every claimed run must be ready, and nothing may be left."""
        for daemon in self.daemons.values():
            if not daemon.session.is_open:
                self.mend(daemon)
        self.do(
            "UPDATE dataflow.attempt SET lease_until = now() - interval '1 second' WHERE lease_until IS NOT NULL"
        )
        self.do("SELECT dataflow.rescue()")
        for daemon in self.daemons.values():
            self.finish(daemon, list(daemon.runners.values()), "DONE")
            if daemon.runners:
                self.report("stuck", f"{daemon.name} cannot finish {list(daemon.runners.values())}")
        idle = 0
        for turn in range(MOST_ROUNDS):
            daemon = list(self.daemons.values())[turn % len(self.daemons)]
            idle = 0 if self._claim_and_finish(daemon) else idle + 1
            if idle == len(self.daemons):
                break
        self._look_for_remains()

    def _look_for_remains(self) -> None:
        self.settle()
        picture = look(self.observer)
        self.problems += picture.violations()
        for run in sorted(picture.ready):
            self.report("stuck", f"{'/'.join(run)} is ready, and no daemon gets it")
        for row in picture.live:
            self.report("stuck", f"{row['jobid']}/{row['dataid']} is alive, and nobody ends it")
        incarnations = {str(daemon.incarnation) for daemon in self.daemons.values()}
        for row in picture.tables["attempt"]:
            if row["outcome"] == "CANCELLED" and not row["let_go"] and row["incarnation"] in incarnations:
                self.report(
                    "stuck", f"{row['jobid']}/{row['dataid']} was cancelled, and nobody lets go of it"
                )

    def _claim_and_finish(self, daemon: Daemon) -> bool:
        self.settle()
        ready = look(self.observer).ready
        answer = daemon.session.ask(daemon.claim_call())
        if answer.is_error:
            self.report("error", f"claim: {answer.sqlstate} {answer.message}")
            return False
        self.start_runners(daemon, answer.rows)
        for runner in daemon.runners.values():
            if runner.run not in ready:
                self.report("claimed_not_ready", f"{'/'.join(runner.run)} was claimed")
        claimed = list(daemon.runners.values())
        self.finish(daemon, claimed, "DONE")
        return bool(claimed)

    def verdict(self) -> list[Violation]:
        """The violations after all operations have ended."""
        self.settle()
        self.problems += [each for each in look(self.observer).violations() if is_harmful(each)]
        self.drain()
        return list(dict.fromkeys(self.problems))

    def _daemon(self, name: str) -> Daemon:
        session = Session(self.dsn, f"dataflowd {name}")
        return Daemon(name, session, self._register(name, session))

    def _register(self, name: str, session: Session) -> UUID:
        register = "SELECT dataflow.register_daemon(%s, 'host', 1, '1 hour')"
        [[incarnation]] = session.connection.execute(register, [name]).fetchall()
        assert isinstance(incarnation, UUID)
        return incarnation


def text(statement: str, *values: Any) -> str:
    """A statement with its values written into it, as a person would type it."""
    return sql.SQL(statement).format(*map(sql.Literal, values)).as_string(None)
