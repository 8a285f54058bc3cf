"""Checks the form of a work order: names, dataids, formats and the types of all values.

Half of an order comes from the database, and the owner of the database can drop its constraints. So the form is checked
again here, before a value becomes part of a path, a variable's name or a call of Spark. Who vets what:

- Whoever composes an order (a daemon, `dataflowctl`) vets its form once, in dataflowd.flow.compose.vetted, and compares it
  with the flow files of this host, in dataflowd.flow.agreement.
- The process that executes it gets it as JSON, and parses it by the same rules. Before any job code it asks what the values
  mean: dataflowd.host.allowed_order the locations and hosts, dataflowd.model.formats the options.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from dataflowd.model.check_shapes import BY_COLUMN, SEVERITIES, SHAPES
from dataflowd.model.faults import AttemptError
from dataflowd.model.formats import OPTIONS
from dataflowd.model.identifiers import DATAID, DATAID_REMEDY, NAME, NAME_REMEDY

if TYPE_CHECKING:
    from collections.abc import Iterable

TEXT_CHARACTERS = 1024 * 1024
DEPTH = 32
REMEDY = "see who writes to the control database; `dataflowctl apply` declares the datasets and jobs anew"
CONNECTION_TEXTS = ("hostname", "database", "schemaname", "tablename", "username", "encryptedpass")

FROM_DATABASE = frozenset({"inputs", "outputs", "resolved", "forced", "params", "replay"})
MOST_SHOWN = 10_000
MOST_ROWS = 2**31 - 1
LONG = 2**63
_PORTS = range(1, 65536)
_TAG = re.compile(r"[A-Za-z0-9_.-]{0,100}")
_TRIAL = frozenset({"share", "rows", "seed", "shown"})

# No environment variable, path or Postgres text can hold these characters.
_UNUSABLE = re.compile("[\x00\ud800-\udfff]")
_NUMBER = (int, float)
_SCALAR = (str, int, float)  # bool is an int


def order(document: Any) -> None:
    """Raises INVALID_ORDER."""
    _require(isinstance(document, dict), "is no object")
    _texts(document, DEPTH)
    for name in ("attempt", "number"):
        _require(_is_within(document.get(name, 1), 0, LONG), f"has at {name} {document.get(name)!r:.100}")
    tag = document["tag"]
    _require(isinstance(tag, str) and _TAG.fullmatch(tag), f"has the tag {tag!r:.100}")
    _require(isinstance(document.get("forced", False), bool), "is neither forced nor not")
    _trial(document.get("trial"))
    _replay(document.get("replay"))
    _name(document["jobid"])
    _dataid(document["dataid"])
    _require(isinstance(document.get("params", {}), dict), "has params that are no object")
    for name in ("inputs", "outputs"):
        _require(isinstance(document[name], dict), f"has {name} that are no object")
    for name, source in document["inputs"].items():
        _dataset(name, source["dataset"])
        for chunk in source["chunks"]:
            _chunk(chunk)
    for name, output in document["outputs"].items():
        _dataset(name, output["dataset"])
        _optional(output, "location", str)
    for record in document.get("resolved") or ():
        _require(isinstance(record["mark"], str), "resolves a record without a mark")
        _optional(record, "repaired", dict)


def _replay(replay: Any) -> None:
    """The order does not say where the earlier rows lie: the host computes where an attempt writes."""
    if replay is None:
        return
    for name in ("attempt", "version", "rows", "dropped", "aside"):
        _require(_is_within(replay[name], 0, LONG), f"replays with {name} {replay[name]!r:.100}")
    _require(isinstance(replay["columns"], str), "replays rows without columns")
    for name in replay["inputs"]:
        _name(name)
    for file in replay["files"]:
        _require(isinstance(file["path"], str) and _is_whole(file["bytes"]), "lists no files to replay")
    for node in replay["nodes"]:
        is_right = isinstance(node["node"], str) and all(
            _is_whole(node[key]) for key in ("items", "successes", "failures")
        )
        _require(is_right, "has a node that is not of its form")
    for record in replay["records"]:
        texts = all(isinstance(record[key], str) for key in ("code", "reason", "mark"))
        _require(texts and isinstance(record["is_dropped"], bool), "replays a record without its place")
        if not record["is_dropped"]:
            is_right = isinstance(record["columns"], dict) and isinstance(record["repaired"], dict)
            _require(is_right, "replays a record without its columns")
            _optional(record, "text", str)


def database_half(document: Any) -> None:
    """Raises INVALID_ORDER if the database sets a field that only this host may set: the code, its directory, a trial."""
    _require(isinstance(document, dict), "is no object")
    for name in document:
        _require(name in FROM_DATABASE, f"says {name!r:.100}, which is not the database's to say")


def malformed(error: Exception) -> AttemptError:
    return _wrong(f"is not of the form that this host knows: {type(error).__name__}: {error}")


def _trial(trial: Any) -> None:
    """A share that is a text would be repeated as often as there are parts."""
    if trial is None:
        return
    _require(isinstance(trial, dict) and trial.keys() <= _TRIAL, "has a trial that is not of its form")
    share, rows = trial.get("share"), trial.get("rows")
    is_share = isinstance(share, _NUMBER) and not isinstance(share, bool) and math.isfinite(share)
    _require(share is None or (is_share and 0 < share <= 1), f"tries the share {share!r:.100}")
    _require(rows is None or _is_within(rows, 1, MOST_ROWS + 1), f"tries {rows!r:.100} rows")
    seed, shown = trial.get("seed", 0), trial.get("shown", 0)
    _require(_is_within(seed, -LONG, LONG), f"has the seed {seed!r:.100}")
    _require(_is_within(shown, 0, MOST_SHOWN + 1), f"shows {shown!r:.100} rows")


def _dataset(called: str, dataset: dict[str, Any]) -> None:
    _name(dataset["name"])
    # Jobs and checks look a dataset up by its key; variables and passwords use its name. The two must agree.
    _require(called == dataset["name"], f"calls the dataset {dataset['name']} by the name {called!r:.100}")
    if dataset.get("stored_as") is not None:
        _name(dataset["stored_as"])
    if dataset.get("format", "parquet") not in OPTIONS:
        raise _wrong(
            f"has the dataset {dataset['name']} in the format {dataset['format']!r:.100}",
            f"the formats are {', '.join(OPTIONS)}",
        )
    _require(dataset.get("publish", "pointer") in {"pointer", "rename"}, "publishes in an unknown way")
    for name in ("location", "columns"):
        _optional(dataset, name, str)
    _optional(dataset, "digest", bool)
    options = dataset.get("options", {})
    _require(
        isinstance(options, dict) and all(isinstance(value, _SCALAR) for value in options.values()),
        f"has options of {dataset['name']} that are no texts, numbers or truth values",
    )
    _checks(dataset["name"], dataset.get("checks", {}))
    connection = dataset.get("connection") or {}
    for name in CONNECTION_TEXTS:
        _optional(connection, name, str)
    port = connection.get("port")
    is_port = port is None or (_is_whole(port) and port in _PORTS)
    _require(is_port, f"has the port {port!r:.100} for {dataset['name']}")


def _checks(dataset: str, checks: Any) -> None:
    _require(isinstance(checks, dict), f"has checks of {dataset} that are no object")
    for name, check in checks.items():
        _require(name in SHAPES, f"has a check {name!r:.100} of {dataset}, which is unknown")
        each: Iterable[Any] = check.values() if name in BY_COLUMN else [check]
        for one in each:
            is_right = (
                isinstance(one, dict)
                and one.get("severity") in SEVERITIES
                and all(isinstance(one.get(key), kinds) for key, kinds in SHAPES[name].items())
                and (name != "range" or any(isinstance(one.get(key), _SCALAR) for key in ("min", "max")))
                and all(isinstance(column, str) for column in _listed(one.get("columns")))
                and all(isinstance(value, _SCALAR) for value in one.get("values", ()))
            )
            _require(is_right, f"has a check {name} of {dataset} that is not of its form")


def _listed(columns: Any) -> Iterable[Any]:
    return columns if isinstance(columns, list | tuple) else ()


def _chunk(chunk: dict[str, Any]) -> None:
    _dataid(chunk["dataid"])
    _optional(chunk, "location", str)
    _require(isinstance(chunk.get("validated", True), bool), "has a chunk that is neither validated nor not")
    for name in ("version", "rows"):
        _require(chunk.get(name) is None or _is_whole(chunk[name]), f"has a chunk with a wrong {name}")
    for file in chunk.get("files") or ():
        # A table's manifest has one entry, which names the attempt.
        _require(isinstance(file.get("path", ""), str) and _is_whole(file.get("bytes", 0)), "lists no files")
    _optional(chunk, "not_older", str)
    _optional(chunk, "judged", bool)
    _measured(chunk.get("measured"))
    batch = chunk.get("batch")
    if batch is not None:
        is_right = isinstance(batch["bounds"], dict) and all(isinstance(one, str) for one in batch["columns"])
        _require(is_right, "has a batch without columns and bounds")


def _measured(found: Any) -> None:
    if found is None:
        return
    is_right = isinstance(found, dict) and all(_is_whole(found.get(name)) for name in ("files", "bytes"))
    _require(is_right, "has a measurement that is not of its form")
    for name in ("modified", "digest"):
        _optional(found, name, str)


def _name(name: Any) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise _wrong(f"has the name {name!r:.100}", NAME_REMEDY)


def _dataid(dataid: Any) -> None:
    if not isinstance(dataid, str) or not DATAID.fullmatch(dataid):
        raise _wrong(f"has the dataid {dataid!r:.100}", DATAID_REMEDY)


def _texts(value: Any, depth: int) -> None:
    match value:
        case str():
            _require(len(value) <= TEXT_CHARACTERS, f"has a text of {len(value)} characters")
            _require(not _UNUSABLE.search(value), "has a NUL, or half a character, in a text")
        case dict():
            _require(depth > 0, "is nested too deeply")
            for key, item in value.items():
                _texts(key, depth - 1)
                _texts(item, depth - 1)
        case list() | tuple():
            _require(depth > 0, "is nested too deeply")
            for item in value:
                _texts(item, depth - 1)


def _optional(document: dict[str, Any], name: str, kind: type) -> None:
    value = document.get(name)
    _require(value is None or isinstance(value, kind), f"has at {name} something else than {kind.__name__}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_within(value: Any, low: int, end: int) -> bool:
    return _is_whole(value) and low <= value < end


def _require(is_right: object, what: str) -> None:
    if not is_right:
        raise _wrong(what)


def _wrong(what: str, remedy: str = REMEDY) -> AttemptError:
    return AttemptError("INVALID_ORDER", f"the work order {what}", remedy)
