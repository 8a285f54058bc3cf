"""The protocol of claim, lease, fence, finish and rescue as a small machine, every state of which is visited.

One run, two daemons, an operator who resubmits, and a consumer who reads. Faults are a lost connection, a daemon that is
frozen (SIGSTOP, a paused machine) while its runner goes on, and a crash. Each action below is one transaction of the SQL
functions, or one step of a daemon; its guard is what the function checks. Time is not counted: a lease may end at any moment.

Safe means: a production is published once; what a consumer reads is what was published; and two runners work on the run
at the same time only where the older one's daemon is frozen and cannot know. Live means: from every state, once faults stop,
the chunk gets READY whatever order things take. A protection that is taken away must make one of these fail, or the
model sees nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOBODY = -1
NONE = 0


@dataclass(frozen=True)
class Protections:
    token: bool = True  # finish names the attempt, and another one's is refused
    lease: bool = True  # rescue needs an expired lease
    lock: bool = True  # rescue and claim need the run's advisory lock to be free
    own_directory: bool = True  # an attempt writes where nobody else does
    let_go: bool = True  # a cancelled run is not claimed before its runner is known, or due, to have stopped


@dataclass(frozen=True)
class Bounds:
    attempts: int = 3
    productions: int = 2
    crashes: int = 1


@dataclass(frozen=True)
class Daemon:
    incarnation: int = 0
    is_connected: bool = True
    has_lease: bool = True
    is_frozen: bool = False
    runner: int = NONE  # the attempt that its runner works on
    has_written: bool = False


@dataclass(frozen=True)
class State:
    status: str = "RESUBMIT"
    live: int = NONE  # the attempt whose row has not ended
    owner: tuple[int, int] = (NOBODY, 0)  # daemon and incarnation of that attempt
    made: int = 0
    stopping: tuple[int, ...] = ()  # daemons with a cancelled attempt of theirs that they have not let go
    lock: int = NOBODY  # the daemon whose session holds the run's advisory lock
    production: int = 1
    published: tuple[int, ...] = (0,)  # how often, for each production
    pointer: int = NONE  # the attempt whose output the manifest names
    writer: int = NONE  # who wrote last into the directory that the manifest names
    is_read: bool = False
    is_doubled: bool = False  # a daemon has claimed what another runner of its own still works on
    crashes: int = 0
    daemons: tuple[Daemon, Daemon] = (Daemon(), Daemon())


class BrokenError(Exception):
    """A state that must not be, and the actions that led to it."""


Step = tuple[str, State]


def steps(state: State, protections: Protections, bounds: Bounds) -> Iterator[Step]:
    """What may happen next without a fault."""
    for number in range(len(state.daemons)):
        yield from _claim(state, number, protections, bounds)
        yield from _runner(state, number, protections)
        yield from _finish(state, number, protections)
        yield from _daemon(state, number)
        yield from _rescue(state, number, protections)
    if state.status == "READY" and not state.is_read:
        yield "a consumer begins to read", replace(state, is_read=True)
    if state.is_read:
        yield "the consumer ends", replace(state, is_read=False)


def faults(state: State, bounds: Bounds) -> Iterator[Step]:
    """What may go wrong, and what a person may do."""
    if state.production < bounds.productions and state.status in {"READY", "RUNNING"}:
        is_new = state.status == "READY"
        yield (
            "an operator resubmits",
            replace(
                _ended(state),
                status="RESUBMIT",
                production=state.production + is_new,
                published=state.published + (0,) * is_new,
            ),
        )
    for number, daemon in enumerate(state.daemons):
        if daemon.is_connected:
            yield f"{number} loses its connection", _disconnected(state, number)
        if daemon.has_lease:
            # One that is awake and cut off stops its runners before the lease ends.
            stops = not daemon.is_connected and not daemon.is_frozen
            yield (
                f"the lease of {number} ends",
                _with(
                    state,
                    number,
                    has_lease=False,
                    **({"runner": NONE, "has_written": False} if stops else {}),
                ),
            )
        if not daemon.is_frozen:
            yield f"{number} freezes", _with(state, number, is_frozen=True)
        if state.crashes < bounds.crashes:
            # Its runner dies with it; the next incarnation has yet to register.
            dead = replace(_disconnected(state, number), crashes=state.crashes + 1)
            dead = replace(dead, stopping=tuple(each for each in dead.stopping if each != number))
            fresh = Daemon(incarnation=daemon.incarnation + 1, is_connected=False, has_lease=False)
            yield f"{number} crashes and starts again", _put(dead, number, fresh)


def _claim(state: State, number: int, protections: Protections, bounds: Bounds) -> Iterator[Step]:
    daemon = state.daemons[number]
    is_able = daemon.is_connected and daemon.has_lease and not daemon.is_frozen
    if not is_able or state.status != "RESUBMIT" or state.is_read or state.made >= bounds.attempts:
        return
    if protections.lock and state.lock not in {NOBODY, number}:
        return
    if protections.let_go and any(each == number or state.daemons[each].has_lease for each in state.stopping):
        return
    attempt = state.made + 1
    claimed = replace(
        state,
        status="RUNNING",
        live=attempt,
        owner=(number, daemon.incarnation),
        made=attempt,
        lock=number if protections.lock else NOBODY,
    )
    yield (
        f"{number} claims, attempt {attempt}",
        _with(replace(claimed, is_doubled=daemon.runner != NONE), number, runner=attempt, has_written=False),
    )


def _runner(state: State, number: int, protections: Protections) -> Iterator[Step]:
    """A runner goes on while its daemon is frozen or cut off."""
    daemon = state.daemons[number]
    if daemon.runner and not daemon.has_written:
        is_the_place = not protections.own_directory or daemon.runner == state.pointer
        written = replace(state, writer=daemon.runner) if is_the_place else state
        yield f"the runner of {number} has written", _with(written, number, has_written=True)


def _finish(state: State, number: int, protections: Protections) -> Iterator[Step]:
    daemon = state.daemons[number]
    # On any connection: that a daemon retakes before it tells is its good manners, and not what keeps others safe.
    if not (daemon.runner and daemon.has_written and not daemon.is_frozen):
        return
    idle = _with(state, number, runner=NONE, has_written=False)
    idle = replace(idle, stopping=tuple(each for each in idle.stopping if each != number))
    mine = (number, daemon.incarnation)
    if state.status == "RUNNING" and (state.live == daemon.runner or not protections.token):
        counts = (*state.published[:-1], state.published[-1] + 1)
        yield (
            f"{number} publishes attempt {daemon.runner}",
            replace(
                _unlocked(idle, number) if state.owner == mine else idle,
                status="READY",
                live=NONE if protections.token else state.live,
                owner=(NOBODY, 0),
                published=counts,
                pointer=daemon.runner,
                writer=daemon.runner if protections.own_directory else state.writer,
            ),
        )
    elif not protections.token and state.status == "READY":
        counts = (*state.published[:-1], state.published[-1] + 1)
        yield f"{number} publishes attempt {daemon.runner}", replace(idle, published=counts)
    else:
        yield f"{number} is fenced", _unlocked(idle, number) if state.owner != mine else idle


def _daemon(state: State, number: int) -> Iterator[Step]:
    daemon = state.daemons[number]
    mine = (number, daemon.incarnation)
    if daemon.is_frozen:
        yield f"{number} wakes", _with(state, number, is_frozen=False)
        return
    if not daemon.is_connected:
        # retake(): the lock again where it is free, and only what is still its own goes on.
        is_mine = state.owner == mine and state.lock in {NOBODY, number}
        back = _with(
            state,
            number,
            is_connected=True,
            has_lease=True,
            runner=daemon.runner if is_mine and state.live == daemon.runner else NONE,
            has_written=daemon.has_written and is_mine and state.live == daemon.runner,
        )
        back = replace(back, stopping=tuple(each for each in back.stopping if each != number))
        yield f"{number} is connected again", replace(back, lock=number) if is_mine else back
        return
    if state.owner == mine and state.live != daemon.runner:
        # It stopped its runner when it could not prove the claim, or never heard that it had one.
        given_back = replace(state, status="RESUBMIT", live=NONE, owner=(NOBODY, 0))
        yield f"{number} gives attempt {state.live} back", _unlocked(given_back, number)
        return
    if not daemon.has_lease:
        yield f"{number} renews its lease", _with(state, number, has_lease=True)
    if daemon.runner and state.live != daemon.runner:
        stopped = _with(state, number, runner=NONE, has_written=False)
        stopped = replace(stopped, stopping=tuple(each for each in stopped.stopping if each != number))
        is_others = state.owner != mine
        yield (
            f"{number} stops what is no longer its own",
            _unlocked(stopped, number) if is_others else stopped,
        )


def _rescue(state: State, number: int, protections: Protections) -> Iterator[Step]:
    daemon = state.daemons[number]
    if state.status != "RUNNING" or not daemon.is_connected or daemon.is_frozen:
        return
    holder, incarnation = state.owner
    owner = state.daemons[holder]
    has_lease = owner.has_lease and owner.incarnation == incarnation
    if (protections.lease and has_lease) or (protections.lock and state.lock != NOBODY):
        return
    # An attempt of this very session is not an orphan: the daemon knows it.
    if holder == number and owner.incarnation == incarnation and owner.runner == state.live:
        return
    yield (
        f"{number} rescues attempt {state.live}",
        replace(state, status="RESUBMIT", live=NONE, owner=(NOBODY, 0)),
    )


def _ended(state: State) -> State:
    """The live attempt, if there is one, is cancelled: its token dies, its daemon has yet to stop it."""
    if state.live == NONE:
        return state
    holder, incarnation = state.owner
    is_there = state.daemons[holder].incarnation == incarnation and state.daemons[holder].runner == state.live
    stopping = tuple(sorted({*state.stopping, holder})) if is_there else state.stopping
    return replace(state, live=NONE, owner=(NOBODY, 0), stopping=stopping)


def _disconnected(state: State, number: int) -> State:
    return _unlocked(_with(state, number, is_connected=False), number)


def _unlocked(state: State, number: int) -> State:
    return replace(state, lock=NOBODY) if state.lock == number else state


def _with(state: State, number: int, **changes: Any) -> State:
    return _put(state, number, replace(state.daemons[number], **changes))


def _put(state: State, number: int, daemon: Daemon) -> State:
    first, second = state.daemons
    return replace(state, daemons=(daemon, second) if number == 0 else (first, daemon))


def broken_promise(state: State) -> str:
    if max(state.published) > 1:
        return "a production was published twice"
    if state.is_read and state.writer != state.pointer:
        return "a consumer reads what its writer did not publish"
    if state.is_doubled:
        return "two runners of one daemon work on a run"
    running = [daemon for daemon in state.daemons if daemon.runner]
    if len(running) > 1:
        older = min(running, key=lambda daemon: daemon.runner)
        # One that was woken has a moment to see that its attempt is gone; a cut-off one has stopped with its lease.
        if not older.is_frozen and older.is_connected and older.runner == state.live:
            return "two runners work on a run although the first is entitled and awake"
        if not older.is_frozen and older.has_lease and not older.is_connected:
            return "two runners work on a run although the first has a lease"
    return ""


@dataclass
class Explored:
    states: int
    transitions: int


def explore(protections: Protections | None = None, bounds: Bounds | None = None) -> Explored:
    """Visits every state; raises BrokenError with the shortest story that breaks a promise."""
    protections, bounds = protections or Protections(), bounds or Bounds()
    start = State()
    came_from: dict[State, Step | None] = {start: None}
    healthy: dict[State, list[State]] = {}
    waiting = deque([start])
    transitions = 0
    while waiting:
        state = waiting.popleft()
        calm = list(steps(state, protections, bounds))
        healthy[state] = [after for _, after in calm]
        for action, after in [*calm, *faults(state, bounds)]:
            transitions += 1
            if after not in came_from:
                came_from[after] = (action, state)
                waiting.append(after)
                if broken := broken_promise(after):
                    raise BrokenError(f"{broken}: {' -> '.join(_story(came_from, after))}")
    _check_liveness(healthy, came_from, bounds)
    return Explored(len(came_from), transitions)


def _check_liveness(
    healthy: dict[State, list[State]], came_from: dict[State, Step | None], bounds: Bounds
) -> None:
    """Without faults every state leads to READY: going backwards from READY reaches all of them."""
    before: dict[State, list[State]] = {state: [] for state in healthy}
    for state, following in healthy.items():
        for after in following:
            before[after].append(state)
    is_done: Callable[[State], bool] = lambda state: state.status == "READY"  # noqa: E731
    reached = {state for state in healthy if is_done(state)}
    waiting = deque(reached)
    while waiting:
        for earlier in before[waiting.popleft()]:
            if earlier not in reached:
                reached.add(earlier)
                waiting.append(earlier)
    # A story that has used up its attempts cannot go on; with one to spare it must.
    stuck = [state for state in healthy if state not in reached and state.made < bounds.attempts]
    if stuck:
        raise BrokenError(f"nothing leads to READY any more: {' -> '.join(_story(came_from, stuck[0]))}")


def _story(came_from: dict[State, Step | None], state: State) -> list[str]:
    actions: list[str] = []
    while (step := came_from[state]) is not None:
        actions.append(step[0])
        state = step[1]
    return actions[::-1]
