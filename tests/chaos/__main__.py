"""`python -m tests.chaos --minutes 60 --seed 7`: injects faults into a real pipeline for so long, and reports violations.

Exit status 0: no violation; 1: each violation is named. The same `--seed` replays the schedule of faults.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
from pathlib import Path

from tests.chaos import play, schedule
from tests.chaos.report import write

LARGEST_SEED = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Tries to break dataflowd.")
    parser.add_argument("--minutes", type=float, default=5, help="for how long there are faults (5)")
    parser.add_argument("--seed", type=int, help="decides the schedule of faults; default: by chance")
    parser.add_argument("--spark", action="store_true", help="also a pipeline on Spark")
    parser.add_argument("--no-noop", action="store_true", help="without the pipeline that only counts")
    parser.add_argument("--daemons", type=int, default=2, help="of each engine but Spark (2)")
    parser.add_argument(
        "--pause", type=float, default=schedule.MEAN_PAUSE_SECONDS, help="mean seconds between faults"
    )
    parser.add_argument(
        "--drain", type=float, default=15, help="minutes in which all must be READY afterwards"
    )
    parser.add_argument(
        "--without",
        default="",
        metavar="KIND,...",
        help="pass over these kinds; the rest of the schedule stays",
    )
    parser.add_argument("--report", type=Path, help="where the report is written as JSON")
    parser.add_argument("--keep", action="store_true", help="keep the database and all files for a look")
    arguments = parser.parse_args()
    # SIGTERM ends the run as Ctrl-C does, so that it stops its programs.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = arguments.seed if arguments.seed is not None else random.randrange(LARGEST_SEED)  # noqa: S311
    engines = ["process", *([] if arguments.no_noop else ["noop"]), *(["spark"] if arguments.spark else [])]
    try:
        report = play.run(
            play.Options(
                seed=seed,
                minutes=arguments.minutes,
                engines=tuple(engines),
                daemons=arguments.daemons,
                mean_pause=arguments.pause,
                drain_minutes=arguments.drain,
                without=_kinds(parser, arguments.without),
                keep=arguments.keep,
                say=lambda line: print(line, flush=True),
            )
        )
    except BaseException:
        print(f"chaos: it fell over; replay with --seed {seed}", flush=True)
        raise
    if arguments.report:
        write(report, arguments.report)
    print(report.text(), flush=True)
    sys.exit(1 if report.violations else 0)


def _kinds(parser: argparse.ArgumentParser, named: str) -> frozenset[str]:
    kinds = frozenset(filter(None, named.split(",")))
    if unknown := kinds - schedule.WEIGHTS.keys():
        parser.error(f"no such kind: {', '.join(sorted(unknown))}; there are {', '.join(schedule.WEIGHTS)}")
    return kinds


if __name__ == "__main__":
    main()
