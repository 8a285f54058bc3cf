"""Removes the directories of attempts that nobody needs. The disk is walked, the database decides, the host removes.

A walk finds the directories `attempt=<n>` of chunks: below `.attempts` of the roots, and where older releases wrote, in the
datasets' own directories. It offers them to dataflow.collect in batches; only what comes back is removed. So a directory
that reappears, because a runner that was believed dead wrote once more, is found by the next walk; each host collects
what it can see; and what this database does not know stays, for it may be another's. A directory must also be as old as its attempt: one that existed before the
claim, or was written after the end of an attempt that is known to have ended, bears the number by chance.

Removing is two steps. A rename inside the same parent takes the directory out of sight in one moment, then its content
goes. Whoever is killed in between leaves a directory with the mark of a removal, which the next walk completes. Below
the fixed part of a location no link is followed, neither on the walk nor by the removal, which goes by descriptors; and
the fixed part itself, as the kernel resolved it, has to lie under an allowed root.

Only paths of this host are walked. What lies in object stores is left to the rules for expiry that these have.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataflowd.host.allowed_roots import check, local
from dataflowd.model.faults import AttemptError
from dataflowd.model.identifiers import DATAID
from dataflowd.model.location import ATTEMPTS
from dataflowd.model.work_order import chunk_location, without_attempts
from dataflowd.storage import fixed_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

BATCH = 500
CLOCKS = timedelta(minutes=5)  # by which the clocks of the database and of the file system may differ
REMOVING = ".dataflow-removing-"
HALF_REMOVED = "HALF_REMOVED"
GONE = "is gone"  # somebody else has removed it meanwhile
FORGOTTEN = "FORGOTTEN"  # as dataflow.collect says
_ATTEMPT = re.compile(rf"(?P<half>{re.escape(REMOVING)})?attempt=(?P<attempt>[1-9][0-9]{{0,17}})")
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True)
class Place:
    """Where the attempts of a dataset write: a directory, and the names of those below it."""

    dataset: str
    location: str  # of the dataset
    fixed: Path
    below: tuple[str, ...]
    allowed_roots: tuple[str, ...]


@dataclass(frozen=True)
class Skipped:
    dataset: str
    location: str
    why: str
    is_empty: bool = False  # nothing was ever written there


@dataclass(frozen=True)
class Found:
    """The directory of one attempt on one dataset."""

    place: Place
    dataid: str
    attempt: int
    names: tuple[str, ...]  # below place.fixed, the attempt's own last
    is_half_removed: bool = False

    @property
    def path(self) -> Path:
        return self.place.fixed.joinpath(*self.names)


@dataclass(frozen=True)
class Garbage:
    """What dataflow.collect said of a directory, or that a removal was not completed."""

    found: Found
    why: str
    since: datetime | None = None
    claimed: datetime | None = None
    written_until: datetime | None = None


@dataclass(frozen=True)
class Removed:
    is_removed: bool
    bytes: int = 0
    why_not: str = ""


def places(dataset: str, location: str, allowed_roots: Sequence[str]) -> list[Place] | Skipped:
    """Where attempts on the dataset write, and where those of older releases did."""
    own = without_attempts(location)
    try:
        path = local(own)
    except AttemptError as error:
        return Skipped(dataset, location, error.message)
    if path is None:
        return Skipped(dataset, location, "is not a path of this host")
    parts = Path(chunk_location(str(path), "{dataid}")).parts
    first = _first_of_chunk(parts)
    fixed, below = Path(*parts[:first]), parts[first:]
    before = [(fixed, below)] if "{dataid}" in own else [(fixed, below), (fixed / ATTEMPTS, below)]
    now = [(root, (ATTEMPTS, *parts[len(root.parts) :])) for root in _roots_above(path, allowed_roots)]
    found = {
        start.joinpath(*names): Place(dataset, own, start, names, tuple(allowed_roots))
        for start, names in (*before, *now)
        if _is_directory(start / ATTEMPTS if names[0] == ATTEMPTS else start)
    }
    try:
        for each in found.values():
            check(str(each.fixed), allowed_roots)
    except AttemptError as error:
        return Skipped(dataset, location, error.message)
    return list(found.values()) or Skipped(dataset, location, "is not there", is_empty=True)


def _roots_above(path: Path, allowed_roots: Sequence[str]) -> list[Path]:
    """All that hold the path: the nearest of them may have been set, or unset, since an attempt wrote."""
    roots = (local(root) for root in allowed_roots)
    return [root for root in roots if root is not None and path.is_relative_to(root)]


def _first_of_chunk(names: Sequence[str]) -> int:
    return next(number for number, name in enumerate(names) if "{dataid}" in name)


def _is_directory(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - a name that is too long is no directory either


def walk(places: Iterable[Place]) -> Iterator[list[Found]]:
    """Batches of what lies there."""
    everything = (found for each in places for found in _walk(each, each.fixed, _patterns(each), (), None))
    while batch := list(islice(everything, BATCH)):
        yield batch


def asked(batch: Sequence[Found]) -> dict[str, Any]:
    """The batch as the query gc_collect takes it."""
    whole = [found for found in batch if not found.is_half_removed]
    return {
        "datasets": [found.place.dataset for found in whole],
        "dataids": [found.dataid for found in whole],
        "attempts": [found.attempt for found in whole],
    }


def judged(batch: Sequence[Found], rows: Iterable[Sequence[Any]]) -> list[Garbage]:
    """The rows that came back, each with the directory that it is about; and what only has to be completed.

    What was not asked about does not concern us, whatever the database says of it.
    """
    known = {
        (found.place.dataset, found.dataid, found.attempt): found
        for found in batch
        if not found.is_half_removed
    }
    chosen = [
        Garbage(known[dataset, dataid, attempt], why, since, claimed, until)
        for dataset, dataid, attempt, why, since, claimed, until in rows
        if (dataset, dataid, attempt) in known
    ]
    return chosen + [Garbage(found, HALF_REMOVED) for found in batch if found.is_half_removed]


def size(found: Found) -> int:
    """Bytes of the files in it, as far as they can be seen."""
    total = 0
    for directory, _, names in os.walk(found.path):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(directory, name)).st_size  # noqa: PTH118 - a Path for each file costs more than the look
    return total


def remove(garbage: Garbage) -> Removed:
    """Somebody else may remove it at the same time: one of the two does, and both go on."""
    found = garbage.found
    try:
        with _opened(found) as parent:
            there = os.stat(found.names[-1], dir_fd=parent, follow_symlinks=False)
            if wrong := _not_its_own(there.st_mtime, garbage) or _still_shown(garbage):
                return Removed(is_removed=False, why_not=wrong)
            total, name = size(found), found.names[-1]
            if not found.is_half_removed:
                name = REMOVING + name
                with suppress(FileNotFoundError):
                    shutil.rmtree(name, dir_fd=parent)
                os.rename(found.names[-1], name, src_dir_fd=parent, dst_dir_fd=parent)
            shutil.rmtree(name, dir_fd=parent)
    except FileNotFoundError:
        return Removed(is_removed=False, why_not=GONE)
    except (OSError, AttemptError) as error:
        return Removed(is_removed=False, why_not=str(error))
    return Removed(is_removed=True, bytes=total)


def remove_empty(found: Found) -> None:
    """The directories of a chunk that nothing is left of; one in which somebody has begun to write is not empty."""
    for end in range(len(found.names) - 1, _first_of_chunk(found.place.below), -1):
        try:
            with _opened(replace(found, names=found.names[:end])) as parent:
                os.rmdir(found.names[end - 1], dir_fd=parent)
        except (OSError, AttemptError):
            return


def _not_its_own(modified: float, garbage: Garbage) -> str:
    written = datetime.fromtimestamp(modified, UTC)
    if garbage.claimed is not None and written < garbage.claimed - CLOCKS:
        return "is older than the attempt: another database may use the same location"
    if garbage.written_until is not None and written > garbage.written_until + CLOCKS:
        return "was changed after the attempt's end, by somebody else"
    return ""


def _still_shown(garbage: Garbage) -> str:
    """A fixed path follows what is published, and may lag; what was deleted, it need not show any longer."""
    found = garbage.found
    location = found.place.location
    if "{dataid}" in location:
        return ""
    if garbage.why == FORGOTTEN:
        fixed_path.forget(location, found.dataid, str(found.path))
    is_shown = fixed_path.leads_to(location, found.dataid, str(found.path))
    return "is where the path of its chunk leads" if is_shown else ""


@contextmanager
def _opened(found: Found) -> Iterator[int]:
    """The directory that holds the attempt's, reached without following a link below the fixed part."""
    current = os.open(found.place.fixed, _OPEN)
    try:
        check(str(Path(f"/proc/self/fd/{current}").readlink()), found.place.allowed_roots)
        for name in found.names[:-1]:
            below = os.open(name, _OPEN | os.O_NOFOLLOW, dir_fd=current)
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)


def _walk(
    each: Place, directory: Path, patterns: list[re.Pattern[str]], names: tuple[str, ...], dataid: str | None
) -> Iterator[Found]:
    """`patterns`: those of the names that are still to come before the attempt's own."""
    for name in _directories(directory):
        if patterns:
            matched = patterns[0].fullmatch(name)
            own = matched.groupdict().get("dataid", dataid) if matched else None
            if matched and dataid in {None, own}:
                yield from _walk(each, directory / name, patterns[1:], (*names, name), own)
        elif dataid is not None and (matched := _ATTEMPT.fullmatch(name)):
            is_half = matched["half"] is not None
            yield Found(each, dataid, int(matched["attempt"]), (*names, name), is_half)
        elif name == ATTEMPTS and names[-1:] != (ATTEMPTS,):
            yield from _walk(each, directory / name, [], (*names, name), dataid)


def _patterns(each: Place) -> list[re.Pattern[str]]:
    return [_pattern(name) for name in each.below]


def _pattern(name: str) -> re.Pattern[str]:
    """Where {dataid} stands more than once in a name, it is the same each time."""
    first, *rest = map(re.escape, name.split("{dataid}"))
    for number, part in enumerate(rest):
        first += (f"(?P<dataid>{DATAID.pattern})" if number == 0 else "(?P=dataid)") + part
    return re.compile(first)


def _directories(path: Path) -> list[str]:
    """A directory that vanishes or may not be read has nothing for us."""
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []
