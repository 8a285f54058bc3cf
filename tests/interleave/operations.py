"""The operations of people and daemons, as steps. Other operations may come between two steps.

An operation is a list of steps, each sent at its turn. Most operations have two: `BEGIN; call` and `COMMIT`. At a stricter
isolation level the snapshot is a step of its own. `@work:insert` after a name stops the call in the middle, at its first write
of that kind; its continuation is a step too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg.types.json import Jsonb

from tests.interleave.stage import PAUSE_KEYS, Daemon, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.interleave.sessions import Answer, Session
    from tests.interleave.stage import Stage

READ_COMMITTED = "read committed"
ISOLATIONS = {"rc": READ_COMMITTED, "rr": "repeatable read", "ser": "serializable"}


@dataclass(frozen=True)
class Step:
    """A statement, computed at its turn, and what to do with the answer. None: nothing is sent."""

    send: Callable[[], str | None]
    then: Callable[[Answer], None] = lambda _: None
    is_call: bool = False
    is_going_on: bool = False


@dataclass
class Part:
    """An operation as it is played: its session and its steps."""

    session: Session
    steps: list[Step]
    daemon: Daemon | None = None


@dataclass(frozen=True)
class Operation:
    name: str
    states: frozenset[str]
    actor: str
    play: Callable[[Stage], list[Step]]
    worlds: frozenset[str] | None = None


OPERATIONS: dict[str, Operation] = {}

Statement = tuple[Any, ...]


def person(name: str, states: str, *transactions: Callable[[Stage], Statement], worlds: str = "") -> None:
    """The steps of a person's calls; each call is one transaction."""

    def play(stage: Stage) -> list[Step]:
        return [
            step
            for transaction in transactions
            for step in transaction_steps(text(*transaction(stage)), stage.isolation)
        ]

    _register(name, states, "person", play, worlds)


def _register(
    name: str, states: str, actor: str, play: Callable[[Stage], list[Step]], worlds: str = ""
) -> None:
    OPERATIONS[name] = Operation(
        name, frozenset(states.split()), actor, play, frozenset(worlds.split()) or None
    )


def transaction_steps(
    call: str, isolation: str, then: Callable[[Answer], None] = lambda _: None
) -> list[Step]:
    answers: list[Answer] = []
    commit = Step(lambda: "COMMIT", lambda _: then(answers[-1]))
    if isolation == READ_COMMITTED:
        return [Step(lambda: f"BEGIN; {call}", answers.append, is_call=True), commit]
    snapshot = f"BEGIN ISOLATION LEVEL {isolation}; SELECT FROM dataflow.job"
    return [Step(lambda: snapshot), Step(lambda: call, answers.append, is_call=True), commit]


# --- people ---

person("ready_a", "waiting queued made running", lambda s: ("SELECT dataflow.ready({}, {})", *s.inputs[0]))
person("ready_b", "waiting queued", lambda s: ("SELECT dataflow.ready({}, {})", *s.inputs[1]))
person(
    "ready_many",
    "waiting queued",
    lambda s: (
        "SELECT dataflow.ready({}, {}::text[])",
        s.inputs[0][0],
        [d for dataset, d in s.world.needs if dataset == s.inputs[0][0]] + ["3"],
    ),
)
person("unvalidated_a", "waiting queued", lambda s: ("SELECT dataflow.ready({}, {}, false)", *s.inputs[0]))
person("ready_again", "unvalidated", lambda s: ("SELECT dataflow.ready({}, {})", *s.inputs[0]))
person("validated_a", "unvalidated waiting", lambda s: ("SELECT dataflow.validated({}, {})", *s.inputs[0]))
person(
    "invalidated_a",
    "queued unvalidated",
    lambda s: ("SELECT dataflow.validated({}, {}, false)", *s.inputs[0]),
)

person(
    "ready_other",
    "waiting queued running made",
    lambda s: ("SELECT dataflow.ready({}, '77')", s.inputs[0][0]),
)

SET = "UPDATE dataflow.datastatus SET status = {} WHERE datasetid = {} AND dataid = {}"
person(
    "resubmit_sql",
    "running made failed read cancelled orphaned",
    lambda s: (SET, "RESUBMIT", s.world.outputs[0], s.world.dataid),
)
person(
    "resubmit",
    "running made failed read cancelled",
    lambda s: (
        "SELECT dataflow.resubmit({}, true)",
        Jsonb({"job": "make", "dataid": s.world.dataid}),
    ),
)
person(
    "hold_sql",
    "queued running made failed stopping",
    lambda s: (SET, "HOLD", s.world.outputs[0], s.world.dataid),
)
person(
    "hold_out",
    "queued running made failed stopping read",
    lambda s: ("SELECT dataflow.hold({}, {}, 'why not')", s.world.outputs[-1], s.world.dataid),
)
person(
    "hold_in", "waiting queued running", lambda s: ("SELECT dataflow.hold({}, {}, 'why not')", *s.inputs[0])
)
person("release_in", "stale", lambda s: ("SELECT dataflow.release({}, {})", *s.inputs[0]))
person(
    "release_out", "held", lambda s: ("SELECT dataflow.release({}, {})", s.world.outputs[0], s.world.dataid)
)
person(
    "hold_release_in",
    "queued waiting",
    lambda s: ("SELECT dataflow.hold({}, {}, 'why not')", *s.inputs[0]),
    lambda s: ("SELECT dataflow.release({}, {})", *s.inputs[0]),
)
person(
    "hold_release_out",
    "queued running made",
    lambda s: ("SELECT dataflow.hold({}, {}, 'why not')", s.world.outputs[0], s.world.dataid),
    lambda s: ("SELECT dataflow.release({}, {})", s.world.outputs[0], s.world.dataid),
)
person(
    "failed_sql",
    "running made read queued",
    lambda s: (SET, "FAILED", s.world.outputs[-1], s.world.dataid),
)
person("failed_in", "queued running", lambda s: (SET, "FAILED", *s.inputs[0]))
person("ready_sql", "failed cancelled held", lambda s: (SET, "READY", s.world.outputs[0], s.world.dataid))
person(
    "failed_ready_sql",
    "made read",
    lambda s: (SET, "FAILED", s.world.outputs[0], s.world.dataid),
    lambda s: (SET, "READY", s.world.outputs[0], s.world.dataid),
)
person(
    "ready_out",
    "failed cancelled",
    lambda s: ("SELECT dataflow.ready({}, {})", s.world.outputs[0], s.world.dataid),
)
person("cancel", "running orphaned queued", lambda s: ("SELECT dataflow.cancel({}, {})", *s.world.run))
DELETE_RUNS = "SELECT * FROM dataflow.delete_runs('make', ARRAY[{}])"
person(
    "cancel_delete",
    "running",
    lambda s: ("SELECT dataflow.cancel({}, {})", *s.world.run),
    lambda s: (DELETE_RUNS, s.world.dataid),
)
person("delete_runs", "made failed cancelled stopping", lambda s: (DELETE_RUNS, s.world.dataid))
person("delete_in", "queued made waiting", lambda s: ("SELECT dataflow.delete_chunk({}, {})", *s.inputs[0]))
person(
    "unregister_in",
    "queued made waiting",
    lambda s: ("SELECT dataflow.unregister({}, ARRAY[{}], 'keep')", *s.inputs[0]),
)
person(
    "delete_out",
    "made failed cancelled held",
    lambda s: ("SELECT dataflow.delete_chunk({}, {})", s.world.outputs[0], s.world.dataid),
)
person("rebuild", "waiting queued stale stopping", lambda _: ("SELECT dataflow.rebuild_work()",))
person("settle", "waiting queued stale", lambda _: ("SELECT dataflow.settle()",))
person("fold", "queued running", lambda _: ("SELECT dataflow.fold_counters()",))
person("rescue", "orphaned running", lambda _: ("SELECT dataflow.rescue()",))
person("tick", "waiting", lambda _: ("SELECT dataflow.tick('2026-01-03Z')",), worlds="calendar")

APPLY = "SELECT dataflow.apply_flow({}, {})"


def flow(name: str, *jobs: dict[str, Any], prune: bool = False) -> Statement:
    return APPLY, Jsonb({"name": name, "datasets": [], "jobs": list(jobs)}), prune


def new_job(stage: Stage, name: str, dataset: str, output: str) -> dict[str, Any]:
    return {
        **stage.saved.jobs["copy"],
        "jobid": name,
        "inputs": {dataset: {"kind": "identity"}},
        "outputs": [output],
    }


def remapped(stage: Stage) -> Statement:
    make = stage.saved.jobs["make"]
    dataset = stage.inputs[0][0]
    mapping = make["inputs"][dataset]
    other = (
        {"kind": "offset", "by": -1, "unit": "number"}
        if mapping["kind"] == "identity"
        else {"kind": "identity"}
    )
    return flow("f", {**make, "inputs": {**make["inputs"], dataset: other}})


def moved(stage: Stage) -> Statement:
    make = stage.saved.jobs["make"]
    *rest, last = stage.world.outputs
    return flow("f", {**make, "outputs": rest}, new_job(stage, "other", stage.inputs[0][0], last))


def restrained(stage: Stage) -> Statement:
    make = stage.saved.jobs["make"]
    return flow("f", {**make, "strict_order": not make["strict_order"]})


person(
    "apply_new",
    "waiting queued unvalidated",
    lambda s: flow("g", new_job(s, "more", s.inputs[0][0], "extra")),
)
person("apply_map", "waiting queued running", remapped)
person("apply_prune", "waiting queued running stopping", lambda _: flow("f", prune=True))
person("apply_move", "waiting queued running made", moved)
person("apply_strict", "waiting queued made running", restrained)


# --- daemons ---


def claiming(name: str, call: Callable[[Daemon, Stage], str]) -> Callable[[Stage], list[Step]]:
    def play(stage: Stage) -> list[Step]:
        daemon = stage.daemons[name]
        return transaction_steps(
            call(daemon, stage),
            stage.daemon_isolation,
            lambda answer: stage.start_runners(daemon, answer.rows),
        )

    return play


def finishing(outcome: str) -> Callable[[Stage], list[Step]]:
    def play(stage: Stage) -> list[Step]:
        daemon = stage.daemons["alpha"]
        return transaction_steps(
            daemon.finish_call(daemon.runners.values(), outcome),
            stage.daemon_isolation,
            lambda answer: stage.stop_runners(daemon, answer),
        )

    return play


def lost_claim(stage: Stage) -> list[Step]:
    """A claim that the server carries out, but whose answer never arrives."""
    daemon = stage.daemons["alpha"]
    return [
        Step(daemon.claim_call, lambda _: stage.cut(daemon)),
        *retaking(stage),
    ]


def lost_connection(stage: Stage) -> list[Step]:
    daemon = stage.daemons["alpha"]
    return [Step(lambda: None, lambda _: stage.cut(daemon)), *retaking(stage)]


def crash(stage: Stage) -> list[Step]:
    return [Step(lambda: None, lambda _: stage.crash(stage.daemons["alpha"]))]


def ready_both(stage: Stage) -> list[Step]:
    """One transaction of two statements; other operations may come between them."""
    first, second = (text("SELECT dataflow.ready({}, {})", *chunk) for chunk in stage.inputs)
    begin, commit = transaction_steps(first, READ_COMMITTED)
    return [begin, Step(lambda: second), commit]


def retaking(stage: Stage) -> list[Step]:
    daemon = stage.daemons["alpha"]
    strangers: list[Any] = []

    def connect() -> str:
        daemon.session.reconnect()
        return daemon.retake_call()

    def give_back() -> str | None:
        return daemon.finish_call(strangers, "RETURNED") if strangers else None

    return [
        Step(connect, lambda answer: strangers.extend(stage.unknown(daemon, answer))),
        Step(give_back),
    ]


def beginning(outcome: str | None) -> Callable[[Stage], list[Step]]:
    """An executor outside begins the run, and ends it with this outcome; None: it never ends it."""

    def play(stage: Stage) -> list[Step]:
        handles: list[str] = []
        result: dict[str, Any] = {"outputs": {name: {"files": []} for name in stage.world.outputs}}

        def end() -> str | None:
            if not handles:
                return None
            told = Jsonb(result if outcome == "DONE" else {})
            return text("SELECT dataflow.end_run({}, {}, 'x', NULL, {})", handles[0], outcome, told)

        call = text("SELECT handle FROM dataflow.begin_instead({}, {})", *stage.world.run)
        steps = transaction_steps(
            call, stage.isolation, lambda answer: handles.extend(row["handle"] or "" for row in answer.rows)
        )
        return steps if outcome is None else [*steps, Step(end)]

    return play


for _outcome in (None, "DONE", "FAILED"):
    _register(
        f"begin_{(_outcome or 'lost').lower()}",
        "queued failed stopping waiting",
        "person",
        beginning(_outcome),
    )

CLAIMABLE = "queued failed stopping stale waiting unvalidated made held cancelled"
for _name in ("alpha", "beta"):
    _register(f"claim_{_name}", CLAIMABLE, _name, claiming(_name, lambda daemon, _: daemon.claim_call()))
    _register(
        f"claim_run_{_name}",
        "queued failed stopping waiting",
        _name,
        claiming(
            _name,
            lambda daemon, stage: text(
                "SELECT * FROM dataflow.claim_run({}, {}, {}, {})",
                *(daemon.name, daemon.incarnation, *stage.world.run),
            ),
        ),
    )
for _outcome in ("DONE", "FAILED", "RETURNED"):
    _register(f"finish_{_outcome.lower()}", "running stopping read", "alpha", finishing(_outcome))
_register("ready_both", "waiting", "person", ready_both)
_register("crash", "running stopping read queued", "alpha", crash)
_register(
    "claim_other",
    "queued running",
    "beta",
    claiming(
        "beta",
        lambda daemon, _: text(
            "SELECT * FROM dataflow.claim_run({}, {}, 'make', '2')", daemon.name, daemon.incarnation
        ),
    ),
    "limited",
)
_register("lost_claim", "queued failed", "alpha", lost_claim)
_register("lost_connection", "running stopping read", "alpha", lost_connection)


def part(stage: Stage, name: str, slot: int) -> Part:
    """The operation of a name, `rebuild` or `rebuild@work:insert`, for the person of this slot or for its daemon."""
    bare, _, stop = name.partition("@")
    operation = OPERATIONS[bare]
    daemon = stage.daemons.get(operation.actor)
    session = daemon.session if daemon else stage.people[slot]
    steps = operation.play(stage)
    if stop:
        call = next(index for index, step in enumerate(steps) if step.is_call)
        steps.insert(call + 1, Step(lambda: None, is_going_on=True))
        session.ask(
            text(
                "SELECT set_config('interleave.pause_at', {}, false), set_config('interleave.pause_key', {}, false)",
                *(stop, str(PAUSE_KEYS[slot])),
            )
        )
    return Part(session, steps, daemon)
