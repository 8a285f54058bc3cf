"""Plays operations against each other, step by step, in every order.

A schedule is one line: `join/waiting rc/rc ready_a claim_beta ABAB`. It names the scene (world and state), the isolation
levels of people and of daemons (rc, rr or ser), the operations A, B and so on, and the order of their steps. A step that must
wait for a lock is left waiting, and the others go on. Steps that are left when the letters are used up are done in the order of
the operations. `rebuild@work:insert` stops in the middle, at its first insert into `work`, even if there is no row to insert;
its continuation is a step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.interleave.operations import ISOLATIONS, OPERATIONS, part
from tests.interleave.sessions import Answer
from tests.interleave.stage import PAUSE_KEYS, text

if TYPE_CHECKING:
    from tests.interleave.operations import Part, Step
    from tests.interleave.stage import Stage
    from tests.judge import Violation

LETTERS = "ABC"
# A rule refused the operation, or it ended by a conflict, a deadlock or a lock timeout: it had no effect.
REFUSALS = ("DF", "25001", "40001", "40P01", "55P03", "57014")


@dataclass(frozen=True)
class Case:
    """A schedule without its order of steps."""

    world: str
    state: str
    names: tuple[str, ...]
    people: str = "rc"
    daemons: str = "rc"


@dataclass(frozen=True)
class Schedule:
    case: Case
    order: str

    def __str__(self) -> str:
        case = self.case
        return f"{case.world}/{case.state} {case.people}/{case.daemons} {' '.join(case.names)} {self.order}"

    @classmethod
    def parse(cls, line: str) -> Schedule:
        scene, levels, *names, order = line.split()
        world, state = scene.split("/")
        people, daemons = levels.split("/")
        return cls(Case(world, state, tuple(names), people, daemons), order)


@dataclass
class Tally:
    schedules: int = 0
    stopped_inside: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    found: dict[str, list[Violation]] = field(default_factory=dict)

    def kinds(self) -> Counter[str]:
        return Counter(
            kind for each in self.found.values() for kind in {violation.kind for violation in each}
        )


class Actor:
    """One operation while it is played."""

    def __init__(self, played: Part, letter: str, name: str) -> None:
        self.session, self.steps, self.daemon = played.session, played.steps, played.daemon
        self.letter, self.name = letter, name
        self.under_way: Step | None = None
        self.was_paused = False

    @property
    def is_done(self) -> bool:
        return not self.steps and self.under_way is None


class Player:
    def __init__(self, stage: Stage, schedule: Schedule, tally: Tally) -> None:
        case = schedule.case
        _set(stage, case)
        self.stage, self.tally = stage, tally
        self.actors = [
            Actor(part(stage, name, slot), LETTERS[slot], name) for slot, name in enumerate(case.names)
        ]
        self.gates = {
            actor.letter: gate
            for actor, gate in zip(self.actors, stage.gates, strict=False)
            if "@" in actor.name
        }
        for slot, actor in enumerate(self.actors):
            if actor.letter in self.gates:
                self.gates[actor.letter].ask(text("SELECT pg_advisory_lock({})", PAUSE_KEYS[slot]))

    def play(self, order: str) -> None:
        for letter in order:
            actor = self.actors[LETTERS.index(letter)]
            if not actor.is_done:
                self._advance(actor)
        while remaining := [actor for actor in self.actors if not actor.is_done]:
            for actor in remaining:
                self._advance(actor)
        for gate in self.gates.values():
            gate.ask("SELECT pg_advisory_unlock_all()")
        for actor in self.actors:
            if actor.letter in self.gates and actor.session.is_open:
                actor.session.ask("SELECT set_config('interleave.pause_at', '', false)")

    def _advance(self, actor: Actor) -> None:
        """Plays the next step of one operation, and then the waiting steps of others that can go on."""
        if actor.under_way is not None:
            if actor.steps and actor.steps[0].is_going_on and self._is_paused(actor):
                actor.steps.pop(0)
                self.gates[actor.letter].ask("SELECT pg_advisory_unlock_all()")
        elif actor.steps:
            step = actor.steps.pop(0)
            statements = step.send()
            if statements is None:
                step.then(Answer([]))
            else:
                actor.under_way = step
                actor.session.send(statements)
        self._wait(actor)
        for other in self.actors:
            if other is not actor:
                self._wait(other)

    def _wait(self, actor: Actor) -> None:
        """Waits until the statement has returned, or waits for a lock."""
        while actor.under_way is not None:
            answer = actor.session.poll()
            if answer is not None:
                step, actor.under_way = actor.under_way, None
                self._answered(actor, step, answer)
            elif self._blockers(actor):
                actor.was_paused = actor.was_paused or self._is_paused(actor)
                return

    def _answered(self, actor: Actor, step: Step, answer: Answer) -> None:
        if not answer.is_error:
            step.then(answer)
            return
        self.tally.refused[answer.sqlstate or ""] += 1
        if not (answer.sqlstate or "").startswith(REFUSALS):
            self.stage.report("error", f"{actor.name}: {answer.sqlstate} {answer.message}")
        actor.session.roll_back()
        actor.steps.clear()
        if actor.daemon is not None:
            # The locks of a failed claim last as long as the session, so dataflowd closes the session.
            self.stage.cut(actor.daemon)

    def _blockers(self, actor: Actor) -> set[int]:
        [[pids]] = self.stage.observer.execute("SELECT pg_blocking_pids(%s)", [actor.session.pid]).fetchall()
        return set(pids)

    def _is_paused(self, actor: Actor) -> bool:
        return actor.letter in self.gates and self.gates[actor.letter].pid in self._blockers(actor)


def play(stage: Stage, schedule: Schedule, tally: Tally) -> list[Violation]:
    player = Player(stage, schedule, tally)
    player.play(schedule.order)
    tally.schedules += 1
    tally.stopped_inside += any(actor.was_paused for actor in player.actors)
    found = stage.verdict()
    if found:
        tally.found[str(schedule)] = found
    return found


def _merged(lengths: list[int]) -> list[str]:
    if not any(lengths):
        return [""]
    return [
        LETTERS[slot] + rest
        for slot, length in enumerate(lengths)
        if length
        for rest in _merged([each - (place == slot) for place, each in enumerate(lengths)])
    ]


def schedules_of(stage: Stage, case: Case) -> list[Schedule]:
    """All schedules of a case."""
    return [Schedule(case, order) for order in _merged(_lengths(stage, case))]


def _lengths(stage: Stage, case: Case) -> list[int]:
    """The number of steps of each operation, which is the same in every scene."""
    found = []
    for slot, name in enumerate(case.names):
        key = (name, case.people, case.daemons)
        if key not in stage.lengths:
            _set(stage, case)
            stage.lengths[key] = len(part(stage, name, slot).steps)
        found.append(stage.lengths[key])
    return found


def _set(stage: Stage, case: Case) -> None:
    stage.set_scene(case.world, case.state)
    stage.isolation, stage.daemon_isolation = ISOLATIONS[case.people], ISOLATIONS[case.daemons]


def can_meet(*names: str) -> bool:
    """Whether the operations can be played together: one session can do only one operation at a time."""
    actors = [OPERATIONS[name.partition("@")[0]].actor for name in names]
    daemons = [actor for actor in actors if actor != "person"]
    return len(daemons) == len(set(daemons))


def states_of(world: str, *names: str) -> list[str]:
    """The states in which the operations affect each other; otherwise the states in which one of them has an effect."""
    operations = [OPERATIONS[name.partition("@")[0]] for name in names]
    if any(each.worlds is not None and world not in each.worlds for each in operations):
        return []
    return sorted(common_states(*names) or frozenset.union(*(each.states for each in operations)))


def common_states(*names: str) -> frozenset[str]:
    return frozenset.intersection(*(OPERATIONS[name.partition("@")[0]].states for name in names))
