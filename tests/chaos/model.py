"""A model of the protocol of claim, lease, fence, finish and rescue: a small state machine, of which every state is visited.

It has one run, two daemons, an operator who resubmits, and a consumer who reads. The faults are a lost connection, a daemon
that is frozen (SIGSTOP, a paused machine) while its runner goes on, and a crash. Each action below is one transaction of the
SQL functions, or one step of a daemon; its guard is what the function checks. There is no time: a lease may end at any
moment. The commit of a claim and the reply to the daemon are two actions: the reply is lost with the connection, and anything
may happen to the attempt before `retake` tells the daemon of it.

Safe means: a production is published once; a consumer reads what was published; and two runners work on the run at the same
time only if the daemon of the older runner is frozen and cannot know it. Live means: from every state, when no more faults
happen, the chunk becomes READY, in whatever order the actions come. If a protection is switched off, one of these must fail:
otherwise the model would prove nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOBODY = -1
NONE = 0


@dataclass(frozen=True)
class Protections:
    token: bool = True  # finish names the attempt and its token; a wrong token is refused
    lease: bool = True  # rescue needs an expired lease
    lock: bool = True  # rescue and claim need the run's advisory lock to be free
    own_directory: bool = True  # an attempt writes to a directory of its own
    let_go: bool = True  # a cancelled run is claimed only after its runner has stopped, or must have stopped
    returns_cancelled: bool = (
        True  # retake names cancelled attempts too, so that a daemon that never started one releases it
    )
    returns_unknown: bool = True  # a live attempt that its daemon does not know is given back
    returns_locked: bool = True  # retake names its attempts also if another session has the lock


@dataclass(frozen=True)
class Bounds:
    attempts: int = 3
    productions: int = 2
    crashes: int = 1


# Both are made and compared a million times; tuples are several times as fast as dataclasses.
class Daemon(NamedTuple):
    incarnation: int = 0
    is_connected: bool = True
    has_lease: bool = True
    is_frozen: bool = False
    awaited: int = NONE  # the attempt that it has claimed, while the reply is under way
    runner: int = NONE  # the attempt that its runner works on
    has_written: bool = False
    returns: tuple[int, ...] = ()  # attempts that it does not run and must report as such


class State(NamedTuple):
    status: str = "RESUBMIT"
    live: int = NONE  # the attempt whose row has not ended
    owner: tuple[int, int] = (NOBODY, 0)  # daemon and incarnation of that attempt
    made: int = 0
    cancelled: tuple[
        tuple[int, int, int], ...
    ] = ()  # attempt, daemon, incarnation of cancelled attempts that were not released yet
    lock: int = NOBODY  # the daemon whose session holds the run's advisory lock
    held: int = 0  # how often the session holds the lock: it may take its own lock again
    production: int = 1
    published: tuple[int, ...] = (0,)  # how often each production was published
    pointer: int = NONE  # the attempt whose output the manifest names
    writer: int = NONE  # the attempt that wrote last into the directory of the manifest
    is_read: bool = False
    is_doubled: bool = False  # a daemon has claimed a run that another runner of its own still works on
    crashes: int = 0
    daemons: tuple[Daemon, Daemon] = (Daemon(), Daemon())


class BrokenError(Exception):
    """A forbidden state, and the actions that led to it."""


Step = tuple[str, State]


def steps(state: State, protections: Protections, bounds: Bounds) -> Iterator[Step]:
    """The actions that are possible without a fault."""
    for number in range(len(state.daemons)):
        yield from _claim(state, number, protections, bounds)
        yield from _reply(state, number)
        yield from _runner(state, number, protections)
        yield from _finish(state, number, protections)
        yield from _return(state, number)
        yield from _daemon(state, number, protections)
        yield from _rescue(state, number, protections)
    if state.status == "READY" and not state.is_read:
        yield "a consumer begins to read", state._replace(is_read=True)
    if state.is_read:
        yield "the consumer ends", state._replace(is_read=False)


def faults(state: State, bounds: Bounds) -> Iterator[Step]:
    """The possible faults, and the possible acts of a person."""
    is_new = state.status == "READY"
    if state.status == "RUNNING" or (is_new and state.production < bounds.productions):
        yield (
            "an operator resubmits",
            _ended(state)._replace(
                status="RESUBMIT",
                production=state.production + is_new,
                published=state.published + (0,) * is_new,
            ),
        )
    for number, daemon in enumerate(state.daemons):
        if daemon.is_connected:
            yield f"{number} loses its connection", _disconnected(state, number)
        if daemon.has_lease:
            # A daemon that is awake and has no connection stops its runners before its lease ends.
            stops = not daemon.is_connected and not daemon.is_frozen
            ended = _with(state, number, has_lease=False)
            yield f"the lease of {number} ends", _stopped(ended, number) if stops else ended
        if not daemon.is_frozen:
            yield f"{number} freezes", _with(state, number, is_frozen=True)
        if state.crashes < bounds.crashes:
            # The runner dies with the daemon; the next incarnation must register first.
            dead = _disconnected(state, number)._replace(crashes=state.crashes + 1)
            fresh = Daemon(incarnation=daemon.incarnation + 1, is_connected=False, has_lease=False)
            # Its cancelled attempts name an old incarnation, so no daemon has to report them.
            others = tuple(each for each in dead.cancelled if each[1] != number)
            yield f"{number} crashes and starts again", _put(dead._replace(cancelled=others), number, fresh)


def _claim(state: State, number: int, protections: Protections, bounds: Bounds) -> Iterator[Step]:
    daemon = state.daemons[number]
    is_able = daemon.is_connected and daemon.has_lease and not daemon.is_frozen
    if not is_able or state.status != "RESUBMIT" or state.is_read or state.made >= bounds.attempts:
        return
    if protections.lock and state.lock not in {NOBODY, number}:
        return
    if protections.let_go and any(
        attempt == state.made
        and state.daemons[holder].incarnation == incarnation
        and (holder == number or state.daemons[holder].has_lease)
        for attempt, holder, incarnation in state.cancelled
    ):
        return
    attempt = state.made + 1
    claimed = state._replace(status="RUNNING", live=attempt, owner=(number, daemon.incarnation), made=attempt)
    yield (
        f"{number} claims, attempt {attempt}",
        _with(_locked(claimed, number) if protections.lock else claimed, number, awaited=attempt),
    )


def _reply(state: State, number: int) -> Iterator[Step]:
    """The reply arrives, and the daemon starts the attempt, even if the attempt has ended meanwhile."""
    daemon = state.daemons[number]
    if daemon.awaited and daemon.is_connected and not daemon.is_frozen:
        begun = _with(state, number, awaited=NONE, runner=daemon.awaited, has_written=False)
        doubled = begun._replace(is_doubled=begun.is_doubled or daemon.runner != NONE)
        yield f"{number} hears of attempt {daemon.awaited}", doubled


def _runner(state: State, number: int, protections: Protections) -> Iterator[Step]:
    """A runner goes on while its daemon is frozen or cut off."""
    daemon = state.daemons[number]
    if daemon.runner and not daemon.has_written:
        is_the_place = not protections.own_directory or daemon.runner == state.pointer
        written = state._replace(writer=daemon.runner) if is_the_place else state
        yield f"the runner of {number} has written", _with(written, number, has_written=True)


def _finish(state: State, number: int, protections: Protections) -> Iterator[Step]:
    daemon = state.daemons[number]
    # On any connection: safety must not depend on a daemon that calls retake before finish.
    if not (daemon.runner and daemon.has_written and not daemon.is_frozen):
        return
    idle = _with(state, number, runner=NONE, has_written=False)
    if state.status == "RUNNING" and (state.live == daemon.runner or not protections.token):
        counts = (*state.published[:-1], state.published[-1] + 1)
        yield (
            f"{number} publishes attempt {daemon.runner}",
            _unlocked(idle, number)._replace(
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
        yield f"{number} publishes attempt {daemon.runner}", idle._replace(published=counts)
    else:
        yield f"{number} is fenced", _let_go(idle, number, daemon.runner)


def _return(state: State, number: int) -> Iterator[Step]:
    """finish() for an attempt that is not run: gives a live attempt back, and releases a cancelled one."""
    daemon = state.daemons[number]
    if not daemon.returns or not daemon.is_connected or daemon.is_frozen:
        return
    attempt, *rest = daemon.returns
    said = _with(state, number, returns=tuple(rest))
    if state.live == attempt:
        given_back = said._replace(status="RESUBMIT", live=NONE, owner=(NOBODY, 0))
        yield f"{number} gives attempt {attempt} back", _unlocked(given_back, number)
    else:
        yield f"{number} says that attempt {attempt} has stopped", _let_go(said, number, attempt)


def _daemon(state: State, number: int, protections: Protections) -> Iterator[Step]:
    daemon = state.daemons[number]
    if daemon.is_frozen:
        yield f"{number} wakes", _with(state, number, is_frozen=False)
        return
    if not daemon.is_connected:
        yield f"{number} is connected again", _retaken(state, number, protections)
        return
    if not daemon.has_lease:
        yield f"{number} renews its lease", _with(state, number, has_lease=True)
    if daemon.runner and state.live != daemon.runner:
        yield f"{number} stops what is no longer its own", _stopped(state, number)


def _retaken(state: State, number: int, protections: Protections) -> State:
    """retake(): takes the lock again for each attempt of this incarnation, live or cancelled, if the lock is free.

    A live attempt that the daemon knows goes on; all others that it knows are stopped. If the daemon does not know an attempt,
    the reply of its claim was lost.
    """
    daemon = state.daemons[number]
    mine = (number, daemon.incarnation)
    after = _with(state, number, is_connected=True, has_lease=True)
    is_free = state.lock in {NOBODY, number}
    live = [state.live] if state.live and state.owner == mine else []
    cancelled = [attempt for attempt, *holder in state.cancelled if tuple(holder) == mine]
    for _ in (*live, *cancelled) if is_free else ():
        after = _locked(after, number)
    if daemon.runner and not (daemon.runner in live and is_free):
        after = _stopped(after, number)
    if not is_free and not protections.returns_locked:
        live, cancelled = [], []
    told = [
        *(live if protections.returns_unknown else []),
        *(cancelled if protections.returns_cancelled else []),
    ]
    known = {daemon.runner, *daemon.returns}
    unknown = [attempt for attempt in told if attempt not in known]
    return _with(after, number, returns=(*after.daemons[number].returns, *unknown))


def _rescue(state: State, number: int, protections: Protections) -> Iterator[Step]:
    daemon = state.daemons[number]
    if state.status != "RUNNING" or not daemon.is_connected or daemon.is_frozen:
        return
    holder, incarnation = state.owner
    owner = state.daemons[holder]
    has_lease = owner.has_lease and owner.incarnation == incarnation
    if (protections.lease and has_lease) or (protections.lock and state.lock != NOBODY):
        return
    # An attempt of this session is no orphan: the daemon knows it, or gets the reply soon.
    if holder == number and owner.incarnation == incarnation and state.live in {owner.runner, owner.awaited}:
        return
    yield (
        f"{number} rescues attempt {state.live}",
        state._replace(status="RESUBMIT", live=NONE, owner=(NOBODY, 0)),
    )


def _ended(state: State) -> State:
    """Cancels the live attempt, if there is one: its token is invalid, and its daemon must stop it."""
    if state.live == NONE:
        return state
    cancelled = (*state.cancelled, (state.live, *state.owner))
    return state._replace(live=NONE, owner=(NOBODY, 0), cancelled=cancelled)


def _stopped(state: State, number: int) -> State:
    """The runner has stopped; the daemon must still report it."""
    daemon = state.daemons[number]
    if daemon.runner == NONE:
        return state
    return _with(state, number, runner=NONE, has_written=False, returns=(*daemon.returns, daemon.runner))


def _let_go(state: State, number: int, attempt: int) -> State:
    """Releases a cancelled attempt and its lock. A lost attempt has neither."""
    mine = (attempt, number, state.daemons[number].incarnation)
    if mine not in state.cancelled:
        return state
    kept = tuple(each for each in state.cancelled if each != mine)
    return _unlocked(state._replace(cancelled=kept), number)


def _disconnected(state: State, number: int) -> State:
    """Ends the session: its locks are released, however often it held them, and a reply under way is lost."""
    cut_off = _with(state, number, is_connected=False, awaited=NONE)
    return cut_off._replace(lock=NOBODY, held=0) if state.lock == number else cut_off


def _locked(state: State, number: int) -> State:
    return state._replace(lock=number, held=state.held + 1 if state.lock == number else 1)


def _unlocked(state: State, number: int) -> State:
    if state.lock != number:
        return state
    return state._replace(lock=number if state.held > 1 else NOBODY, held=state.held - 1)


def _with(state: State, number: int, **changes: Any) -> State:
    return _put(state, number, state.daemons[number]._replace(**changes))


def _put(state: State, number: int, daemon: Daemon) -> State:
    first, second = state.daemons
    return state._replace(daemons=(daemon, second) if number == 0 else (first, daemon))


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
        # A woken daemon may need a moment to see that its attempt is gone. One without a connection stopped with its lease.
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
    """Visits every state. Raises BrokenError with the shortest sequence of actions that breaks a property."""
    protections, bounds = protections or Protections(), bounds or Bounds()
    start = State()
    came_from: dict[State, Step | None] = {start: None}
    healthy: dict[State, list[State]] = {}
    waiting = deque([start])
    transitions = 0
    while waiting:
        state = waiting.popleft()
        calm = list(steps(state, protections, bounds))
        healthy[state] = [_either_way(after) for _, after in calm]
        for action, reached in [*calm, *faults(state, bounds)]:
            transitions += 1
            after = _either_way(reached)
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
    """Checks that every state leads to READY without faults: a backward search from READY must reach all states."""
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
    # A state without attempts left cannot go on; a state with one left must.
    stuck = [state for state in healthy if state not in reached and state.made < bounds.attempts]
    if stuck:
        raise BrokenError(f"nothing leads to READY any more: {' -> '.join(_story(came_from, stuck[0]))}")


def _either_way(state: State) -> State:
    """The two daemons are interchangeable, so a state and its mirror image count as one."""
    first, second = state.daemons
    if first >= second:
        return state
    other = {0: 1, 1: 0, NOBODY: NOBODY}
    return state._replace(
        daemons=(second, first),
        owner=(other[state.owner[0]], state.owner[1]),
        lock=other[state.lock],
        cancelled=tuple((attempt, other[holder], born) for attempt, holder, born in state.cancelled),
    )


def _story(came_from: dict[State, Step | None], state: State) -> list[str]:
    actions: list[str] = []
    while (step := came_from[state]) is not None:
        actions.append(step[0])
        state = step[1]
    return actions[::-1]
