"""The work order: everything that a runner needs to execute one attempt.

One part comes from the database (dataflow.work_order: where the input versions are, what the outputs must be like), the
other from this host (which code, its checks and limits, the allowed roots and hosts). An order is sent as JSON. It holds no
credential of the control database and no fencing token, because job code could read them. `Order.parse` vets every order.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dataflowd.model import vetting
from dataflowd.model.location import ATTEMPTS, split_at_root

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, kw_only=True)
class Connection:
    hostname: str | None = None
    port: int | None = None
    database: str | None = None
    schemaname: str | None = None
    tablename: str | None = None
    username: str | None = None
    encryptedpass: str | None = None


@dataclass(frozen=True, kw_only=True)
class Dataset:
    name: str
    format: str = "parquet"
    location: str | None = None
    columns: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    checks: dict[str, Any] = field(default_factory=dict)
    custom_checks: tuple[dict[str, str], ...] = ()
    publish: str = "pointer"
    digest: bool = False  # True: files are compared by the digest of their content, too
    connection: Connection = field(default_factory=Connection)
    stored_as: str | None = None  # the dataset's own name, if the job's code uses another name for it

    @property
    def datasetid(self) -> str:
        return self.stored_as or self.name

    @classmethod
    def parse(cls, document: dict[str, Any]) -> Dataset:
        return cls(
            **document
            | {
                "connection": Connection(**document.get("connection") or {}),
                "custom_checks": tuple(document.get("custom_checks") or ()),
            }
        )


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The records of a keyed source that make a chunk; for the bounds see sql/functions/partition.sql."""

    columns: tuple[str, ...]
    bounds: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """One version of one input chunk, as its manifest describes it; without a manifest, files and rows are unknown."""

    dataid: str
    version: int = 0
    location: str | None = None
    files: tuple[dict[str, Any], ...] | None = None
    rows: int | None = None
    validated: bool = True
    batch: Batch | None = None
    # The measurement (dataflowd.storage.found) when the chunk was registered, or used for the first time.
    measured: dict[str, Any] | None = None
    # Whether a chunk from outside has passed its checks; None: they were not judged yet.
    judged: bool | None = None
    not_older: str | None = None  # ISO 8601: the newest file must not be older than this


@dataclass(frozen=True, kw_only=True)
class Input:
    dataset: Dataset
    chunks: tuple[Chunk, ...]

    @property
    def name(self) -> str:
        return self.dataset.name

    @property
    def connection(self) -> Connection:
        return self.dataset.connection

    @property
    def locations(self) -> list[str]:
        return [chunk.location for chunk in self.chunks if chunk.location is not None]

    @property
    def location(self) -> str | None:
        """The location, if the input is one chunk with a location; else None. `locations` serves every mapping."""
        return self.locations[0] if len(self.locations) == 1 else None

    @property
    def rows(self) -> int | None:
        """The sum of the rows in the manifests; None if one of them has no number of rows."""
        known = [chunk.rows for chunk in self.chunks if chunk.rows is not None]
        return sum(known) if len(known) == len(self.chunks) else None


@dataclass(frozen=True, kw_only=True)
class Output:
    dataset: Dataset
    location: str | None

    @property
    def name(self) -> str:
        return self.dataset.name

    @property
    def connection(self) -> Connection:
        return self.dataset.connection


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A trial runs the job on a part of its input, publishes nothing, and returns some rows of the outputs."""

    share: float | None = None
    rows: int | None = None
    seed: int = 0
    shown: int = 10


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A replay runs the job on repaired records only, and adds their rows to those that an earlier attempt published."""

    attempt: int
    code_hash: str | None
    config_hash: str | None
    version: int
    files: tuple[dict[str, Any], ...]
    rows: int
    columns: str
    inputs: tuple[str, ...]  # the inputs that are read as empty: their records come from the quarantine
    nodes: tuple[dict[str, Any], ...]  # of the earlier attempt
    # Each has the keys code, reason, mark, is_dropped, repaired, columns, text.
    records: tuple[dict[str, Any], ...]
    dropped: int  # how many records of the run a person has dropped
    aside: int  # how many records of the run still wait for a person


@dataclass(frozen=True, kw_only=True)
class Order:
    attempt: int
    number: int = 1
    jobid: str
    dataid: str
    tag: str
    forced: bool = False  # True: an operator runs the attempt although a question was answered no
    params: dict[str, Any] = field(default_factory=dict)
    kind: str = "python"
    code: str
    directory: str
    quarantine: int | float | None = None
    inputs: dict[str, Input]
    outputs: dict[str, Output]
    resolved: tuple[dict[str, Any], ...] = ()  # bad records that a person has resolved: {"mark", "repaired"}
    allowed_roots: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    code_hash: str | None = None
    config_hash: str | None = None
    trial: Trial | None = None
    replay: Replay | None = None

    def document(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def parse(cls, document: dict[str, Any]) -> Order:
        """Vets and parses an order; raises INVALID_ORDER."""
        try:
            vetting.order(document)
            return cls._parse(document)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise vetting.malformed(error) from None

    @classmethod
    def _parse(cls, document: dict[str, Any]) -> Order:
        inputs = {
            name: Input(
                dataset=Dataset.parse(value["dataset"]),
                chunks=tuple(_chunk(chunk) for chunk in value["chunks"]),
            )
            for name, value in document["inputs"].items()
        }
        outputs = {
            name: Output(dataset=Dataset.parse(value["dataset"]), location=value["location"])
            for name, value in document["outputs"].items()
        }
        lists = {
            name: tuple(document.get(name) or ()) for name in ("allowed_roots", "allowed_hosts", "resolved")
        }
        trial = Trial(**document["trial"]) if document.get("trial") else None
        replay = _replay(document["replay"]) if document.get("replay") else None
        return cls(
            **document | {"inputs": inputs, "outputs": outputs, "trial": trial, "replay": replay} | lists
        )


def _replay(document: dict[str, Any]) -> Replay:
    listed = {name: tuple(document[name] or ()) for name in ("files", "inputs", "nodes", "records")}
    return Replay(**document | listed)


def _chunk(document: dict[str, Any]) -> Chunk:
    files, batch = document.get("files"), document.get("batch")
    return Chunk(
        **document
        | {
            "files": None if files is None else tuple(files),
            "batch": batch and Batch(columns=tuple(batch["columns"]), bounds=batch["bounds"]),
        }
    )


def chunk_location(location: str, dataid: str) -> str:
    """The directory of a chunk that a job makes. A location with {dataid} in it has a directory for each chunk already."""
    place = location.rstrip("/")
    return place.replace("{dataid}", dataid) if "{dataid}" in place else f"{place}/dataid={dataid}"


def attempt_location(location: str, dataid: str, attempt: int, allowed_roots: Iterable[str]) -> str:
    """The directory that this attempt alone writes: below `.attempts` of the root that the dataset lies under.

    A reader that lists the dataset's directory, instead of using manifests, must not find old versions and failed attempts
    there. A hidden directory inside the dataset's directory is not enough: DuckDB and patterns with `**` do not skip it. Only
    where the dataset's directory is itself a root, `.attempts` lies inside it. The name of the attempt's directory begins
    with no dot, because Hadoop refuses to read a directory with such a name, even if it is named. An underscore would not
    hide it from Spark, which takes any name with `=` in it for a partition column.
    """
    above, below = split_at_root(without_attempts(location), allowed_roots)
    return f"{chunk_location(f'{above}/{ATTEMPTS}{below}', dataid)}/attempt={attempt}"


def without_attempts(location: str) -> str:
    """The location of a dataset with a fixed path: the database adds `.attempts` to it, for daemons of 0.1.0."""
    return location.rstrip("/").removesuffix(f"/{ATTEMPTS}")
