"""The host's half of an attempt's evidence: what the host found before the job's code began. It is stored with the attempt.

    {"inputs": {dataset: {"chunks", "files", "bytes", "modified", "listed": [{"dataid", "location", "files", ...}]}},
     "outputs": {dataset: location}, "code_hash", "config_hash", "directory"}

For each input it holds the sums over all chunks; the first LISTED chunks of all inputs are also listed one by one. A sum
has a digest only if the input has one chunk. If an input could not be measured, `note` says why. The database's half is
made by dataflow.take_order. Neither half holds a password: an order has only sealed ones.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dataflowd.model.faults import AttemptError
from dataflowd.model.work_order import attempt_location

if TYPE_CHECKING:
    from dataflowd.model.work_order import Chunk, Order
    from dataflowd.storage.found import Found

LISTED = 100  # chunks of all inputs together: at most 64 KiB are stored
STORED_CHARACTERS = 65536
IN_A_TABLE = "a table, which is read by the job"
NOTHING_THERE = "nothing is there"


def bounded(document: dict[str, Any]) -> dict[str, Any]:
    """Replaces a document that is too large for the database by its size: job code could send any amount."""
    size = len(json.dumps(document))
    return document if size <= STORED_CHARACTERS else {"left_out": size}


def _written(order: Order, location: str) -> str:
    """Where the attempt writes. A malformed location is returned unchanged; a later check refuses it."""
    try:
        return attempt_location(location, order.dataid, order.attempt, order.allowed_roots)
    except AttemptError:
        return location


class Evidence:
    """Collects the evidence while an order is prepared. If a question is answered no, the evidence so far is kept."""

    def __init__(self, order: Order) -> None:
        self._listed = 0
        # The datasets' own names: the code of a job that was created like another uses that job's names.
        self._own = {source.name: source.dataset.datasetid for source in order.inputs.values()}
        self._inputs: dict[str, dict[str, Any]] = {}
        self._document: dict[str, Any] = {
            "inputs": self._inputs,
            "outputs": {
                output.dataset.datasetid: _written(order, output.location)
                for output in order.outputs.values()
                if output.location is not None
            },
            "code_hash": order.code_hash,
            "config_hash": order.config_hash,
            "directory": order.directory,
        }

    def measured(self, dataset: str, chunk: Chunk, found: Found | None) -> None:
        """Adds a measured chunk. `found` is None if the chunk is not on this host's disk, so that it cannot be measured."""
        if found is None:
            self.note(dataset, f"{chunk.location} is not on this host's disk: the job looks there itself")
            return
        total = self._inputs.setdefault(self._own[dataset], {})
        document = found.document()
        total["chunks"] = total.get("chunks", 0) + 1
        for name in ("files", "bytes"):
            total[name] = total.get(name, 0) + document[name]
        times = [each for each in (total.get("modified"), document.get("modified")) if each is not None]
        # All times are ISO 8601 in UTC, so the later time is the greater text.
        if times:
            total["modified"] = max(times)
        total.pop("digest", None)
        if total["chunks"] == 1 and "digest" in document:
            total["digest"] = document["digest"]
        if self._listed < LISTED:
            self._listed += 1
            known = {"dataid": chunk.dataid, "version": chunk.version, "location": chunk.location}
            total.setdefault("listed", []).append(known | document)

    def note(self, dataset: str, text: str) -> None:
        self._inputs.setdefault(self._own[dataset], {})["note"] = text

    def document(self) -> dict[str, Any]:
        return self._document
