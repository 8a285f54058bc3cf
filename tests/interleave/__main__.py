"""`python -m tests.interleave --seed 7`: plays operations against each other in every order, and reports violations.

In the richest world all pairs of operations that affect each other are played in every order; of all other cases a sample is
played. Exit status 0: no violation; 1: violations, each with the option that plays it again:
`--replay 'join/waiting rc/rc ready_a ready_b ABAB'`.
"""

from __future__ import annotations

import argparse
import itertools
import random
import signal
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from dataflowd.database import migrate
from tests.fix_postgres import TEST_SERVER_SETTINGS, running_server
from tests.interleave import cases
from tests.interleave.play import Schedule, Tally, play, schedules_of
from tests.interleave.scenes import WORLDS
from tests.interleave.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.interleave.play import Case

LARGEST_SEED = 1_000_000
SAMPLE = 5_000
DATABASE = "interleave"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.interleave", description="Plays operations against each other."
    )
    parser.add_argument("--seed", type=int, help="decides the sample; default: by chance")
    parser.add_argument("--sample", type=int, default=SAMPLE, help=f"schedules besides the pairs ({SAMPLE})")
    parser.add_argument("--no-pairs", action="store_true", help="only the sample")
    parser.add_argument("--pair", nargs="+", metavar="NAME", help="only these operations, in every world")
    parser.add_argument("--replay", metavar="LINE", help="only this schedule")
    arguments = parser.parse_args()
    # SIGTERM ends the run as Ctrl-C does, so that it stops its programs.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = arguments.seed if arguments.seed is not None else random.randrange(LARGEST_SEED)  # noqa: S311
    with running_server(TEST_SERVER_SETTINGS) as server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
        with psycopg.connect(server.database(DATABASE), autocommit=True) as connection:
            migrate.init(connection)
        with closing(Stage(server.database(DATABASE))) as stage:
            if arguments.replay:
                schedules: Iterator[Schedule] = iter([Schedule.parse(arguments.replay)])
            elif arguments.pair:
                schedules = every_order(stage, of_these(tuple(arguments.pair)))
            else:
                schedules = itertools.chain(
                    every_order(stage, [] if arguments.no_pairs else cases.close()),
                    cases.sample(seed, lambda case: schedules_of(stage, case), arguments.sample),
                )
            tally = tell(stage, schedules)
    print(f"interleave: {summary(tally)}; --seed {seed}", flush=True)
    sys.exit(1 if tally.found else 0)


def of_these(names: tuple[str, ...]) -> list[Case]:
    return [
        case for world in WORLDS for people in ("rc", "rr", "ser") for case in cases.met(world, names, people)
    ]


def every_order(stage: Stage, chosen: list[Case]) -> Iterator[Schedule]:
    for case in chosen:
        yield from schedules_of(stage, case)


def tell(stage: Stage, schedules: Iterator[Schedule]) -> Tally:
    tally, began = Tally(), time.monotonic()
    for schedule in schedules:
        for violation in play(stage, schedule, tally):
            print(f"{schedule}: {violation}", flush=True)
    print(f"interleave: {time.monotonic() - began:.0f} s", flush=True)
    return tally


def summary(tally: Tally) -> str:
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(tally.kinds().items())) or "none"
    refused = ", ".join(f"{state} {count}" for state, count in sorted(tally.refused.items())) or "none"
    return f"{tally.schedules} schedules, {tally.stopped_inside} stopped inside a call; violations: {kinds}; operations refused: {refused}"


if __name__ == "__main__":
    main()
