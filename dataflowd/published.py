"""Whether the files of an input are those that were published: its manifest against what lies there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dataflowd.faults import AttemptError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataflowd.formats.files import File
    from dataflowd.order import Chunk


def require_validated(name: str, chunk: Chunk) -> None:
    if not chunk.validated:
        raise AttemptError(
            "NOT_VALIDATED",
            f"nobody has vouched for {name}/{chunk.dataid}",
            "check it and call dataflow.validated()",
        )


def missing(name: str, chunk: Chunk) -> AttemptError:
    return AttemptError(
        "WRONG_DATA",
        f"{name}/{chunk.dataid} is READY, but there is nothing at {chunk.location}",
        f"put it there; what was registered is registered again with `dataflowctl ready {name} {chunk.dataid}`"
        if chunk.files is None
        else "restore it, or make it again: `dataflowctl resubmit` on its producer",
    )


def compare(name: str, dataid: str, manifest: Sequence[dict[str, Any]], found: Sequence[File]) -> None:
    expected = {file["path"]: file["bytes"] for file in manifest}
    there = {file.path: file.bytes for file in found}
    if expected == there:
        return
    gone, more = sorted(expected.keys() - there.keys()), sorted(there.keys() - expected.keys())
    changed = sorted(path for path in expected.keys() & there.keys() if expected[path] != there[path])
    listed = [("missing", gone), ("not in the manifest", more), ("of another size", changed)]
    what = "; ".join(f"{len(names)} {how}, such as {names[0]}" for how, names in listed if names)
    raise AttemptError(
        "WRONG_DATA",
        f"the files of {name}/{dataid} are not those that were published: {what}",
        "restore them, or make the chunk again: `dataflowctl resubmit` on its producer",
    )
