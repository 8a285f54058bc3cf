"""The answer to a claim is lost with the connection: the database has given the run to the daemon, and the daemon does not know it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, LiteralString

import pytest

from tests.fix_daemon import eventually
from tests.fix_proxy import Relay

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_daemon import Shop, StartDaemon

NO_POLL = {"DATAFLOW_POLL": "600"}
RESUBMIT = "UPDATE dataflow.datastatus SET status = 'RESUBMIT' WHERE datasetid = 'clean'"
HOLD = "SELECT dataflow.hold('clean', '1', 'a look at it')"
RELEASE = "SELECT dataflow.release('clean', '1')"
CANCEL = "SELECT dataflow.cancel('work', '1')"
TAG = b"dataflow-"  # the tag is in the answer to a claim, and in no other answer to a daemon


@pytest.fixture
def wire(dsn: str) -> Iterator[Relay]:
    with closing(Relay(dsn)) as relay:
        yield relay


def claimed_in_vain(shop: Shop, wire: Relay) -> None:
    wire.lose_row(TAG)
    shop.ready(1)
    eventually(wire.has_lost.is_set)
    assert shop.live() == 1


@pytest.mark.parametrize(
    "deeds",
    [(), (RESUBMIT,), (HOLD, RELEASE), (CANCEL, RESUBMIT)],
    ids=["nothing", "resubmit", "hold and release", "cancel and resubmit"],
)
def test_a_run_whose_claim_got_no_answer_is_made_whatever_an_operator_did_meanwhile(
    shop: Shop, start_daemon: StartDaemon, wire: Relay, deeds: tuple[LiteralString, ...]
) -> None:
    shop.job("true")
    daemon = start_daemon(env=NO_POLL | {"DATAFLOW_DSN": wire.dsn})
    claimed_in_vain(shop, wire)
    for deed in deeds:
        shop.connection.execute(deed)
    wire.reset()
    eventually(lambda: shop.count("READY") == 1)
    assert shop.outcomes() == ["CANCELLED" if deeds else "RETURNED", "DONE"]
    assert shop.value("SELECT bool_and(let_go) FROM dataflow.attempt")
    [retaken] = daemon.events("lease.retaken")
    assert (retaken["attempts"], retaken["cancelled"], retaken["unknown"]) == (not deeds, bool(deeds), 1)


def test_a_run_that_was_cancelled_while_its_daemon_was_away_is_stopped_and_let_go(
    shop: Shop, start_daemon: StartDaemon, wire: Relay, tmp_path: Path
) -> None:
    shop.job(f"[ -e {tmp_path}/second ] || {{ touch {tmp_path}/second; exec sleep 600; }}")
    daemon = start_daemon(env=NO_POLL | {"DATAFLOW_DSN": wire.dsn})
    shop.ready(1)
    daemon.said("attempt.started")
    eventually((tmp_path / "second").exists)
    wire.refuse()
    shop.connection.execute(RESUBMIT)
    wire.resume()
    eventually(lambda: shop.count("READY") == 1)
    assert shop.outcomes() == ["CANCELLED", "DONE"]
    # The daemon learns of the cancellation when it retakes its runs, or a moment before. In both cases it reports that it let go.
    assert shop.value("SELECT bool_and(let_go) FROM dataflow.attempt")
    assert daemon.said("lease.retaken")
