"""A runner sends anything: its daemon accepts messages of a known form or closes the connection, and goes on.

A result of the right form may still have wrong values: invalid manifests, invalid checks. The database accepts it, or the
attempt is recorded as failed. In any case the attempt ends, and nothing else does.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dataflowd.daemon import finisher, service
from dataflowd.daemon.finisher import Offer
from dataflowd.daemon.pool import Running
from dataflowd.daemon.state import Assignment
from dataflowd.engine.noop import NoopEngine
from dataflowd.engine.spark import result_of
from dataflowd.host.settings import Current
from dataflowd.runner import wire
from tests.fuzz.words import Speaker, cases

if TYPE_CHECKING:
    from dataflowd.daemon.state import State
    from dataflowd.host.settings import Settings
    from dataflowd.model.attempt import Attempt
    from tests.fix_world import World

LINES = 3500
RESULTS = 500
MOST_TELLS = 3
KINDS = ("hello", "ready", "pong", "step", "log", "progress", "confirm", "result", "order", "stop", "claim")


class Runner(Speaker):
    def line(self) -> bytes:
        if self.chance(0.2):
            return self.random.randbytes(self.random.randint(0, 60)).replace(b"\n", b"")
        said = json.dumps(self.message()).encode()
        return said[: self.random.randint(0, len(said))] if self.chance(0.1) else said

    def message(self) -> Any:
        if self.chance(0.1):
            return self.json()
        return {"type": self.one(KINDS)} | self.some_of(
            token=self.text, attempt=self.whole, step=self.text, line=self.text, heap=self.number_, heap_max=self.number_,
            done=self.json, total=self.json, result=self.result,
        )  # fmt: skip

    def result(self) -> dict[str, Any]:
        return {"outcome": self.one(wire.OUTCOMES)} | self.some_of(
            code=self.text, error=self.text, retry=lambda: self.chance(0.5), code_hash=self.text, config_hash=self.text,
            usage=lambda: {self.text(): self.json()}, applied=lambda: self.chance(0.5), preview=lambda: {self.text(): self.json()},
            outputs=lambda: {self.text(): self.json() if self.chance(0.3) else self.manifest() for _ in range(2)},
            checks=lambda: self.several(self.check, 3), nodes=lambda: self.several(self.node, 3), quarantine=lambda: self.several(self.bad, 3),
        )  # fmt: skip

    def manifest(self) -> dict[str, Any]:
        return self.some_of(
            location=lambda: self.one((self.text(), "/x/.attempts/dataid=7/attempt=1")), files=self.json, bytes=self.whole, rows=self.whole,
            columns=self.text, fingerprint=self.text,
        )  # fmt: skip

    def check(self) -> Any:
        return self.some_of(
            dataset=self.text, name=self.text, severity=lambda: self.one(("error", "warn", "x")), passed=lambda: self.chance(0.5),
            observed=self.plain, expected=self.plain,
        )  # fmt: skip

    def node(self) -> Any:
        return self.some_of(
            node=self.text,
            parent=self.text,
            items=self.whole,
            successes=self.whole,
            failures=self.number_,
            seconds=self.number_,
        )

    def bad(self) -> Any:
        return self.some_of(item=self.text, code=self.text, reason=self.text, details=self.json)


def test_anything_that_arrives_is_a_message_or_closes_the_connection() -> None:
    heard = 0

    def try_one(number: int) -> None:
        nonlocal heard
        runner, parser = Runner(number, forbidden="[\ud800-\udfff]"), wire.Lines(most=2000)
        data = b"\n".join(runner.line() for _ in range(3)) + b"\n"
        cut = runner.random.randint(1, 200)
        with suppress(wire.WireError):
            for start in range(0, len(data), cut):
                for message in parser.feed(data[start : start + cut]):
                    wire.check(message)
                    heard += 1

    cases(LINES, try_one)
    assert heard > LINES / 20


def test_a_result_of_the_right_form_ends_its_attempt_and_nothing_else(
    world: World, settings: Settings
) -> None:
    world.job("clean_orders", "raw", ["clean", "sums"])
    state = service.assemble(Current(settings), "alpha", NoopEngine(), Assignment())
    with asyncio.Runner() as loop:
        loop.run(_open(state))
        try:
            cases(RESULTS, lambda number: loop.run(_tell_one(world, state, number)))
        finally:
            loop.run(service._farewell(state))
    ended = world.rows("SELECT outcome, count(*)::int FROM dataflow.attempt GROUP BY outcome")
    assert dict(ended).keys() == {"DONE", "FAILED"}
    assert world.value("SELECT count(*) FROM dataflow.attempt WHERE code = 'RESULT_REFUSED'") < RESULTS / 2


async def _open(state: State) -> None:
    await state.link.open()
    await state.claims.link.open()
    await state.claims.register("localhost", 1, 3600, "dev")


async def _tell_one(world: World, state: State, number: int) -> None:
    result = Runner(number).result()
    try:
        wire.check({"type": "result", "attempt": 1, "result": result})
    except wire.WireError:
        return
    world.ready("raw", str(number))
    [attempt] = await state.claims.claim(1)
    await _told(state, attempt, result)
    assert attempt.attempt not in state.attempts.running, f"attempt {attempt.attempt} goes on after {result}"


async def _told(state: State, attempt: Attempt, result: dict[str, Any]) -> None:
    state.attempts.running[attempt.attempt] = Running(attempt)
    offer = Offer(result_of(attempt, result))
    state.results.offers.append(offer)
    for _ in range(MOST_TELLS):
        if offer in state.results.offers:
            await finisher._tell(state, [offer])
