"""Removes the directories of attempts that are no longer needed. The host walks the disk, the database decides, the host removes.

A walk finds the directories `attempt=<n>` of chunks: below `.attempts` of the roots and, where older releases wrote, in the
datasets' own directories. It offers them to dataflow.collect in batches, and only directories that the database returns are
removed. So each host collects what it can see. A directory that reappears, because a runner that was believed dead wrote
once more, is found by the next walk. A directory that this database does not know stays: it may belong to another database.
The directory's time must also fit the attempt: if it is older than the claim, or was written after the attempt's end, it has
the same number by chance and stays.

A removal has two steps. A rename inside the same parent hides the directory at once; then its content is deleted. A process
that is killed in between leaves a directory with the prefix REMOVING, which the next walk deletes. Below the fixed part of a
location no link is followed, neither by the walk nor by the removal, which works by descriptors. The fixed part itself, as
the kernel resolved it, must lie under an allowed root.

Only paths of this host are walked. Object stores have their own rules for expiry.
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

from dataflowd.host.allowed_roots import check, local_path
from dataflowd.model.faults import AttemptError
from dataflowd.model.identifiers import DATAID
from dataflowd.model.location import ATTEMPTS
from dataflowd.model.work_order import chunk_location, without_attempts
from dataflowd.storage import fixed_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

BATCH = 500
CLOCKS = timedelta(minutes=5)  # the clocks of the database and of the file system may differ by this
REMOVING = ".dataflow-removing-"
HALF_REMOVED = "HALF_REMOVED"
GONE = "is gone"  # another process has removed it meanwhile
FORGOTTEN = "FORGOTTEN"  # a reason of dataflow.collect
_ATTEMPT = re.compile(rf"(?P<half>{re.escape(REMOVING)})?attempt=(?P<attempt>[1-9][0-9]{{0,17}})")
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True)
class Place:
    """Where the attempts of a dataset write: a directory, and the names of the directories below it."""

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
    names: tuple[str, ...]  # of the directories below place.fixed; the last is the attempt's own
    is_half_removed: bool = False

    @property
    def path(self) -> Path:
        return self.place.fixed.joinpath(*self.names)


@dataclass(frozen=True)
class Garbage:
    """A directory to remove: one that dataflow.collect returned, or one whose removal was not completed."""

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
    """Where attempts of the dataset write, and where attempts of older releases wrote."""
    own = without_attempts(location)
    try:
        path = local_path(own)
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
    """All roots that hold the path: the nearest one may have been added, or removed, after an attempt wrote."""
    roots = (local_path(root) for root in allowed_roots)
    return [root for root in roots if root is not None and path.is_relative_to(root)]


def _first_of_chunk(names: Sequence[str]) -> int:
    return next(number for number, name in enumerate(names) if "{dataid}" in name)


def _is_directory(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises if a name is too long


def walk(places: Iterable[Place]) -> Iterator[list[Found]]:
    """Batches of the attempts' directories."""
    everything = (found for each in places for found in _walk(each, each.fixed, _patterns(each), (), None))
    while batch := list(islice(everything, BATCH)):
        yield batch


def asked(batch: Sequence[Found]) -> dict[str, Any]:
    """The parameters of the query gc_collect for a batch."""
    whole = [found for found in batch if not found.is_half_removed]
    return {
        "datasets": [found.place.dataset for found in whole],
        "dataids": [found.dataid for found in whole],
        "attempts": [found.attempt for found in whole],
    }


def judged(batch: Sequence[Found], rows: Iterable[Sequence[Any]]) -> list[Garbage]:
    """The directories to remove: those of the returned rows, and those whose removal was not completed.

    A row about a directory that is not in the batch is ignored.
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
    """The bytes of the files in the directory, as far as they can be read."""
    total = 0
    for directory, _, names in os.walk(found.path):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(directory, name)).st_size  # noqa: PTH118 - a Path for each file costs more than the lstat
    return total


def remove(garbage: Garbage) -> Removed:
    """Removes a directory. Another process may do the same at the same time: one of them succeeds, and both go on."""
    found = garbage.found
    try:
        with _opened(found) as parent:
            there = os.stat(found.names[-1], dir_fd=parent, follow_symlinks=False)
            if wrong := _why_not_of_attempt(there.st_mtime, garbage) or _why_still_shown(garbage):
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
    """Removes the empty directories of a chunk. rmdir keeps a directory in which an attempt has begun to write."""
    for end in range(len(found.names) - 1, _first_of_chunk(found.place.below), -1):
        try:
            with _opened(replace(found, names=found.names[:end])) as parent:
                os.rmdir(found.names[end - 1], dir_fd=parent)
        except (OSError, AttemptError):
            return


def _why_not_of_attempt(modified: float, garbage: Garbage) -> str:
    written = datetime.fromtimestamp(modified, UTC)
    if garbage.claimed is not None and written < garbage.claimed - CLOCKS:
        return "is older than the attempt: another database may use the same location"
    if garbage.written_until is not None and written > garbage.written_until + CLOCKS:
        return "was changed after the attempt's end, by somebody else"
    return ""


def _why_still_shown(garbage: Garbage) -> str:
    """A fixed path follows the manifest later, so it may still lead here. For a deleted chunk the path is removed."""
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
    """A descriptor of the parent of the attempt's directory. Follows no link below the fixed part."""
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
    """`patterns`: of the directories' names between this directory and the attempt's own."""
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
    """If {dataid} occurs more than once in a name, it must be the same each time."""
    first, *rest = map(re.escape, name.split("{dataid}"))
    for number, part in enumerate(rest):
        first += (f"(?P<dataid>{DATAID.pattern})" if number == 0 else "(?P=dataid)") + part
    return re.compile(first)


def _directories(path: Path) -> list[str]:
    """The names of the directories below. Empty if `path` vanishes or cannot be read."""
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []
