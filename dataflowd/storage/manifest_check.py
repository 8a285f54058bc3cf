"""Checks that the files of an input are those that were published or registered.

A published chunk has a manifest, a registered chunk a measurement. Both are compared with the files that lie there now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dataflowd.host import allowed_roots
from dataflowd.model.faults import AttemptError
from dataflowd.storage import evidence, found

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dataflowd.model.work_order import Chunk, Dataset, Input
    from dataflowd.storage.files import File
    from dataflowd.storage.found import Found


def require_validated(name: str, chunk: Chunk) -> None:
    if not chunk.validated:
        raise AttemptError(
            "NOT_VALIDATED",
            f"{name}/{chunk.dataid} is not validated",
            "check it and call dataflow.validated()",
        )


def missing(name: str, chunk: Chunk) -> AttemptError:
    return AttemptError(
        "INVALID_PATH",
        f"{name}/{chunk.dataid} is READY, but there is nothing at {chunk.location}",
        f"put the data there, and register it again: `dataflowctl ready {name} {chunk.dataid}`"
        if chunk.files is None
        else "restore it, or make it again: `dataflowctl resubmit` on its producer",
        heals=True,
    )


class Places:
    """Checks the inputs of an order. Each location is listed once, however many chunks share it."""

    def __init__(
        self, seen: evidence.Evidence, listing: Callable[[Dataset, str], Sequence[File] | None]
    ) -> None:
        """`listing` returns None if the location does not exist."""
        self._seen = seen
        self._listing = listing
        self._listed: dict[tuple[str, str, bool], Sequence[File]] = {}
        self._measured: set[tuple[str, str]] = set()

    def check(self, source: Input, chunk: Chunk, location: str) -> None:
        """Checks one chunk and adds it to the evidence. The source of several batches is added once."""
        listed = self._files(source, chunk, location)
        place = (source.name, location)
        if chunk.batch is None or place not in self._measured:
            self._seen.measured(source.name, chunk, found.of(listed))
        self._measured.add(place)
        require_right(source, chunk, listed)

    def _files(self, source: Input, chunk: Chunk, location: str) -> Sequence[File]:
        key = (location, source.dataset.format, source.dataset.digest)
        if key not in self._listed:
            try:
                listed = self._listing(source.dataset, location)
            except OSError as error:
                if allowed_roots.local_path(location) is None:
                    raise  # an error of the connection to the process that lists other stores
                raise AttemptError(
                    "INVALID_PATH",
                    f"{source.name}/{chunk.dataid}: {error.filename or location} cannot be read: {error.strerror or error}",
                    "let the user who runs the jobs read it",
                ) from None
            if listed is None:
                self._seen.note(source.name, evidence.NOTHING_THERE)
                raise missing(source.name, chunk)
            self._listed[key] = listed
        return self._listed[key]


def require_right(source: Input, chunk: Chunk, listed: Sequence[File]) -> None:
    """Raises WRONG_DATA unless these are the files that were published or registered."""
    if chunk.files is not None:
        compare(source.name, chunk.dataid, chunk.files, listed)
    elif chunk.measured is not None:
        _compare_measured(source.name, chunk, chunk.measured, found.of(listed))
    if chunk.not_older is not None:
        _require_newer(source.name, chunk, chunk.not_older, found.of(listed))


def compare(name: str, dataid: str, manifest: Sequence[dict[str, Any]], listed: Sequence[File]) -> None:
    """Digests are compared if both have one: a chunk may be older than the dataset's setting `digest`."""
    expected = {file["path"]: file for file in manifest}
    there = {file.path: file for file in listed}
    gone, more = sorted(expected.keys() - there.keys()), sorted(there.keys() - expected.keys())
    both = sorted(expected.keys() & there.keys())
    resized = [path for path in both if expected[path]["bytes"] != there[path].bytes]
    changed = [
        path
        for path in both
        if path not in resized
        and "digest" in expected[path]
        and there[path].digest is not None
        and expected[path]["digest"] != there[path].digest
    ]
    kinds = [
        ("missing", gone),
        ("not in the manifest", more),
        ("of another size", resized),
        ("of the same size with other content", changed),
    ]
    what = "; ".join(f"{len(names)} {how}, such as {names[0]}" for how, names in kinds if names)
    if what:
        raise AttemptError(
            "WRONG_DATA",
            f"the files of {name}/{dataid} are not those that were published: {what}",
            "restore them, or make the chunk again: `dataflowctl resubmit` on its producer",
        )


def _compare_measured(name: str, chunk: Chunk, measured: dict[str, Any], there: Found) -> None:
    """If both have a digest, the time does not count: a restored copy has another time and is the same data."""
    now = there.document()
    has_both = "digest" in measured and there.digest is not None
    asked = ["files", "bytes", "digest" if has_both else "modified"]
    if not has_both and "modified" not in measured:
        asked.remove("modified")
    differs = [key for key in asked if measured.get(key) != now.get(key)]
    if differs:
        what = ", ".join(f"{key} {measured.get(key)} then, {now.get(key)} now" for key in differs)
        raise AttemptError(
            "WRONG_DATA",
            f"the data at {chunk.location} is not the data that was registered as {name}/{chunk.dataid}: {what}",
            f"restore it; if it is right as it is now, `dataflowctl ready {name} {chunk.dataid}` registers it as a new version",
        )


def _require_newer(name: str, chunk: Chunk, not_older: str, there: Found) -> None:
    # Both are ISO 8601 in UTC with milliseconds, so the later moment is the greater text.
    if there.moment is not None and there.moment < not_older:
        raise AttemptError(
            "WRONG_DATA",
            f"the newest file of {name}/{chunk.dataid} is of {there.moment}, before the day of the chunk",
            f"bring the file of that day and `dataflowctl ready {name} {chunk.dataid}`; "
            "if old files are right, remove expect_newer from the dataset",
        )
