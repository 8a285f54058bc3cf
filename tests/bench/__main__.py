"""`python -m tests.bench NAME`: runs one bench, or `all`, and prints the results, one JSON object a line.

A missed goal is printed and is no error: a busy machine may be the reason.
"""

from __future__ import annotations

import argparse
import importlib
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench import gather, server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.report import Result
    from tests.bench.server import Place

BENCHES = (
    "claim",
    "register",
    "resubmit",
    "status",
    "latency",
    "drain",
    "recovery",
    "partition",
    "spark",
    "soak",
)
LARGEST = 1_000_000
LARGEST_FULL = 10_000_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Measures dataflowd.")
    parser.add_argument("name", choices=[*BENCHES, "all"])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="also with ten million chunks")
    size.add_argument(
        "--largest",
        type=int,
        default=LARGEST,
        help="leave out larger numbers of chunks; 20 makes `spark` quick, and `partition`",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIRECTORY",
        help=f"also write {gather.JSON_FILE} and {gather.CHART_FILE} there, with the machine and the versions",
    )
    arguments = parser.parse_args()
    # SIGTERM ends the bench as Ctrl-C does, so that it stops its server.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with server.place(LARGEST_FULL if arguments.full else arguments.largest) as place:
        facts = gather.machine(place.server.database("postgres")) if arguments.keep else {}
        results = []
        for name in BENCHES if arguments.name == "all" else [arguments.name]:
            for result in _run(name, place):
                print(result.line(), flush=True)
                results.append(result)
                if arguments.keep:  # write after each bench, so that an interrupted run keeps its results
                    gather.write(arguments.keep, facts, results)


def _run(name: str, place: Place) -> Iterator[Result]:
    """Runs a bench. Its module is imported here, because only some benches need the peers to be installed."""
    results: Iterator[Result] = importlib.import_module(f"tests.bench.{name}").run(place)
    return results


if __name__ == "__main__":
    main()
