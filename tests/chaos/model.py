"""The protocol of claim, lease, fence, finish and rescue as a small machine, every state of which is visited.

One run, two daemons, an operator who resubmits, and a consumer who reads. Faults are a lost connection, a daemon that is
frozen (SIGSTOP, a paused machine) while its runner goes on, and a crash. Each action below is one transaction of the SQL
functions, or one step of a daemon; its guard is what the function checks. Time is not counted: a lease may end at any moment.
That a claim is committed, and that its daemon knows of it, are two things: a reply that is under way is lost with the
connection, and anything may happen to the attempt before the daemon is told of it by `retake`.

Safe means: a production is published once; what a consumer reads is what was published; and two runners work on the run
at the same time only where the older one's daemon is frozen and cannot know. Live means: from every state, once faults stop,
the chunk gets READY whatever order things take. A protection that is taken away must make one of these fail, or the
model sees nothing.
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
    token: bool = True  # finish names the attempt, and another one's is refused
    lease: bool = True  # rescue needs an expired lease
    lock: bool = True  # rescue and claim need the run's advisory lock to be free
    own_directory: bool = True  # an attempt writes where nobody else does
    let_go: bool = True  # a cancelled run is not claimed before its runner is known, or due, to have stopped
    returns_cancelled: bool = True  # retake names cancelled attempts too: who never started one lets it go
    returns_unknown: bool = True  # a live attempt that its daemon knows nothing of is given back
    returns_locked: bool = True  # retake names its attempts also where another session has the lock


@dataclass(frozen=True)
class Bounds:
    attempts: int = 3
    productions: int = 2
    crashes: int = 1


# Both are made and looked up a million times; tuples do that several times as fast as dataclasses.
class Daemon(NamedTuple):
    incarnation: int = 0
    is_connected: bool = True
    has_lease: bool = True
    is_frozen: bool = False
    awaited: int = NONE  # the attempt that it has claimed, if the reply is under way
    runner: int = NONE  # the attempt that its runner works on
    has_written: bool = False
    returns: tuple[int, ...] = ()  # attempts that it does not run, and has yet to say so


class State(NamedTuple):
    status: str = "RESUBMIT"
    live: int = NONE  # the attempt whose row has not ended
    owner: tuple[int, int] = (NOBODY, 0)  # daemon and incarnation of that attempt
    made: int = 0
    cancelled: tuple[
        tuple[int, int, int], ...
    ] = ()  # attempt, daemon, incarnation: those that nobody has let go
    lock: int = NOBODY  # the daemon whose session holds the run's advisory lock
    held: int = 0  # how often: a session may take its own lock again
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
    """What may go wrong, and what a person may do."""
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
            # One that is awake and cut off stops its runners before the lease ends.
            stops = not daemon.is_connected and not daemon.is_frozen
            ended = _with(state, number, has_lease=False)
            yield f"the lease of {number} ends", _stopped(ended, number) if stops else ended
        if not daemon.is_frozen:
            yield f"{number} freezes", _with(state, number, is_frozen=True)
        if state.crashes < bounds.crashes:
            # Its runner dies with it; the next incarnation has yet to register.
            dead = _disconnected(state, number)._replace(crashes=state.crashes + 1)
            fresh = Daemon(incarnation=daemon.incarnation + 1, is_connected=False, has_lease=False)
            # What it had cancelled names an incarnation that is no more: nobody asks for it.
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
    """The daemon starts what it is told of, whatever has become of it meanwhile."""
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
    # On any connection: that a daemon retakes before it tells is its good manners, and not what keeps others safe.
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
    """finish(), of an attempt that is not run: a live one is given back, a cancelled one let go."""
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
    """retake(): the lock again for each attempt of this incarnation, live or cancelled, where it is free.

    What is live and known goes on; all else that is known is stopped. What is not known was claimed by a reply that was lost.
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
    # An attempt of this very session is not an orphan: the daemon knows it, or is about to.
    if holder == number and owner.incarnation == incarnation and state.live in {owner.runner, owner.awaited}:
        return
    yield (
        f"{number} rescues attempt {state.live}",
        state._replace(status="RESUBMIT", live=NONE, owner=(NOBODY, 0)),
    )


def _ended(state: State) -> State:
    """The live attempt, if there is one, is cancelled: its token dies, its daemon has yet to stop it."""
    if state.live == NONE:
        return state
    cancelled = (*state.cancelled, (state.live, *state.owner))
    return state._replace(live=NONE, owner=(NOBODY, 0), cancelled=cancelled)


def _stopped(state: State, number: int) -> State:
    """Its runner is gone, which it has yet to say."""
    daemon = state.daemons[number]
    if daemon.runner == NONE:
        return state
    return _with(state, number, runner=NONE, has_written=False, returns=(*daemon.returns, daemon.runner))


def _let_go(state: State, number: int, attempt: int) -> State:
    """Of an attempt that was lost there is nothing to let go, and no lock."""
    mine = (attempt, number, state.daemons[number].incarnation)
    if mine not in state.cancelled:
        return state
    kept = tuple(each for each in state.cancelled if each != mine)
    return _unlocked(state._replace(cancelled=kept), number)


def _disconnected(state: State, number: int) -> State:
    """The session's locks go with it, however often it had them, and so does a reply that was under way."""
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


def _either_way(state: State) -> State:
    """The two daemons are alike: a state and its mirror image are one."""
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
