"""`python -m tests.hostile.siege --seed 7 --rounds 20`: a superuser of the control database against a live host.

The seed chooses some deeds for each round (see superuser.py). The round does each deed, lets the daemon and some commands work
on it, and looks for canaries (see stage.py). Then it undoes the deeds, and the daemon must make a chunk as before. Exit status
0: no finding; 1: findings, each with the command that repeats its round. `--all` does every deed once; `--only PATTERN` those
whose name matches.
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from dataflowd.database import migrate
from tests.fix_postgres import TEST_SERVER_SETTINGS, reachable_directory, running_server
from tests.hostile.stage import Stage, opened
from tests.hostile.superuser import Superuser

if TYPE_CHECKING:
    from collections.abc import Sequence

DEEDS = 4  # of a round
COMMANDS_A_DEED = 2
ROUNDS = 20
LARGEST_SEED = 1_000_000
DATABASE = "siege"
COMMANDS: list[list[str]] = [
    ["status"],
    ["status", "--json"],
    ["why", "work", "d2"],
    ["why", "work"],
    ["chunks", "clean"],
    ["chunks", "clean", "--stale", "--json"],
    ["runs"],
    ["attempts", "work", "d2"],
    ["history", "work", "d2"],
    ["logs", "work", "d2"],
    ["jobs"],
    ["datasets"],
    ["lineage", "clean"],
    ["stats", "work"],
    ["env", "work", "d2"],
    ["resubmit", "--job", "work", "--dry-run"],
    ["hold", "--dataset", "raw", "--dataid", "x*", "--yes"],
    ["cancel", "--job", "work", "--yes"],
    ["concurrency"],
    ["quarantine", "list"],
    ["partition", "list", "--dataset", "src"],
    ["partition", "create", "p1", "--dataset", "src", "--key", "id", "--size", "10"],
    ["delete", "work", "--data", "--yes"],
    ["delete", "work", "--data", "--dry-run"],
    ["gc", "--grace", "0s", "--yes"],
    ["prune", "--older-than", "1d", "--dry-run"],
    ["rebuild"],
    ["key", "list"],
    ["doctor"],
    ["run", "work"],
]


@dataclass
class Tally:
    rounds: int = 0
    deeds: int = 0
    refused: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)


class Siege:
    def __init__(self, stage: Stage, seed: int, *, only: str = "", deeds: int = DEEDS) -> None:
        self.stage = stage
        self.tally = Tally()
        self._seed = seed
        self._only = only
        self._deeds = deeds
        self._superuser = Superuser(stage)
        chosen = [deed for deed in self._superuser.deeds() if re.search(only, str(deed))]
        random.Random(seed).shuffle(chosen)  # noqa: S311 - must be repeatable
        self._rounds = [chosen[start : start + deeds] for start in range(0, len(chosen), deeds)]

    @property
    def rounds(self) -> int:
        return len(self._rounds)

    def play(self, number: int) -> list[str]:
        """Plays one round, and returns its findings."""
        chance = random.Random(f"{self._seed} {number}")  # noqa: S311
        found: list[str] = []
        deeds = self._rounds[number % len(self._rounds)]
        for deed in deeds:
            if not self._superuser.do(deed, chance):
                self.tally.refused.append(str(deed))
                continue
            self.tally.deeds += 1
            found += [f"{deed}: {what}" for what in self._meet(chance)]
        self._superuser.undo()
        # Look before the daemon works again: its last answer may hold a canary.
        found += self.stage.violations()
        found += self._recovered()
        self.tally.rounds += 1
        again = f"--seed {self._seed} --deeds {self._deeds} --only '{self._only}' --replay {number}"
        told = "; ".join(map(str, deeds))
        self.tally.found += [f"{what}\n  round {number} ({told}): {again}" for what in found]
        return found

    def _meet(self, chance: random.Random) -> list[str]:
        """Gives the daemon work, and runs commands as a person would."""
        with suppress(psycopg.Error):
            self.stage.ready()
        with suppress(psycopg.Error):
            self.stage.ask()
        for word in ("work", "control", "cancel"):
            self.stage.connection.execute("SELECT pg_notify('dataflow', %s)", [word])
        for path in ("/metrics", "/health"):
            with suppress(OSError):
                self.stage.daemon.get(path)
        return [
            what for command in chance.sample(COMMANDS, COMMANDS_A_DEED) for what in self.stage.ctl(*command)
        ]

    def _recovered(self) -> list[str]:
        """Checks that the daemon works again. It may have stopped with a clear error; then it is started again."""
        try:
            self.stage.work_off()
        except AssertionError as error:
            wrong = (
                self.stage.how_it_ended()
                if not self.stage.is_alive()
                else [f"{error}: {self.stage.last_words()}"]
            )
            self.stage.restart()
            return wrong
        return []


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.hostile.siege", description="Besieges a host from its database."
    )
    parser.add_argument("--seed", type=int, help="decides the deeds; default: by chance")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"how many ({ROUNDS})")
    parser.add_argument("--deeds", type=int, default=DEEDS, help=f"of a round ({DEEDS})")
    parser.add_argument(
        "--only", default="", metavar="PATTERN", help="only deeds that match, such as 'dataset.format'"
    )
    parser.add_argument("--all", action="store_true", help="every deed once")
    parser.add_argument("--replay", type=int, metavar="ROUND", help="only this round")
    arguments = parser.parse_args()
    # SIGTERM ends the run as Ctrl-C does, so that it stops its programs.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = arguments.seed if arguments.seed is not None else random.randrange(LARGEST_SEED)  # noqa: S311
    with running_server(TEST_SERVER_SETTINGS) as server, reachable_directory() as directory:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
        with psycopg.connect(server.database(DATABASE), autocommit=True) as connection:
            migrate.init(connection)
        with opened(server.database(DATABASE), directory) as stage:
            siege = Siege(stage, seed, only=arguments.only, deeds=arguments.deeds)
            rounds: Sequence[int] = range(
                siege.rounds if arguments.all else min(arguments.rounds, siege.rounds)
            )
            tell(siege, rounds if arguments.replay is None else [arguments.replay])
    print(summary(siege, seed), flush=True)
    sys.exit(1 if siege.tally.found else 0)


def tell(siege: Siege, rounds: Sequence[int]) -> None:
    for number in rounds:
        began = time.monotonic()
        known = len(siege.tally.found)
        siege.play(number)
        print(f"siege: round {number}, {time.monotonic() - began:.0f} s", flush=True)
        for what in siege.tally.found[known:]:
            print(what, flush=True)


def summary(siege: Siege, seed: int) -> str:
    tally = siege.tally
    return (
        f"siege: {tally.rounds} of {siege.rounds} rounds, {tally.deeds} deeds, {len(tally.refused)} that the database refused;"
        f" found: {len(tally.found) or 'nothing'}; --seed {seed}"
    )


if __name__ == "__main__":
    main()
