"""A person's open transaction stops nobody: claims, rescues and the like pass over the rows that it holds, and go on.

Under the claim lock a wait fails after 100 ms (dataflow._claim_lock), so a call that returns has not waited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, LiteralString

import pytest
from psycopg.types.json import Jsonb

if TYPE_CHECKING:
    from tests.fix_world import Daemon, World

# Statements that a person may have typed after BEGIN.
HELD: dict[str, LiteralString] = {
    "all_rows": "SELECT FROM dataflow.datastatus FOR UPDATE",
    "consumed_rows": "SELECT FROM dataflow.datastatus WHERE locktype = 'IN' FOR UPDATE",
    "resubmit": "UPDATE dataflow.datastatus SET status = 'RESUBMIT' WHERE dataid IN ('1', '2')",
    "hold": "SELECT dataflow.hold('clean', '1'), dataflow.hold('clean', '5'), dataflow.hold('raw', '6')",
    "release_and_hold": "SELECT dataflow.hold('raw', '5'), dataflow.release('raw', '5')",
    "registered_outputs": "SELECT dataflow.ready('clean', ARRAY['5', '6', '7'])",
    "registered_inputs": "SELECT dataflow.ready('raw', ARRAY['5', '6', '7', '8'])",
    "deleted": "SELECT dataflow.delete_runs('make_clean', ARRAY['4'])",
    "queue": "SELECT FROM dataflow.work FOR UPDATE",
    "emptied_queue": "DELETE FROM dataflow.work",
    "rebuilt_queue": "SELECT dataflow.rebuild_work()",
    "open_runs": "DELETE FROM dataflow.open_run",
    "rechecks": "SELECT FROM dataflow.recheck FOR UPDATE",
    "attempts": "SELECT FROM dataflow.attempt FOR UPDATE",
    "jobs": "SELECT FROM dataflow.job FOR UPDATE",
    "datasets": "SELECT FROM dataflow.dataset FOR UPDATE",
    "limits": "UPDATE dataflow.control SET concurrency = 7",
    "manifests": "SELECT FROM dataflow.manifest FOR UPDATE",
}


@pytest.fixture
def busy(world: World) -> tuple[World, Daemon, Daemon]:
    """Runs 1 and 2 belong to a dead daemon, 3 is running, 4 has failed and waits for its retry, 5 and 6 are queued."""
    world.job("make_clean", "raw", ["clean", "odd"], max_attempts=3)
    world.job("book", "raw", "books", strict_order=True)
    world.job("sum", {"clean": {"kind": "identity"}, "rates": {"kind": "fixed", "dataid": "all"}}, "sums")
    dead, alive = world.daemon("dead"), world.daemon("alive")
    world.do("SELECT dataflow.pause('job:book')")
    world.ready("raw", "1", "2", "3", "4")
    dead.claim(2)
    three, four = alive.claim(2)
    assert (three.dataid, four.dataid) == ("3", "4")
    alive.fail(four)
    dead.crash()
    world.ready("raw", "5", "6")
    world.later()
    world.do("SELECT dataflow.pause('job:book', false)")
    return world, dead, alive


@pytest.mark.parametrize("held", HELD)
def test_whatever_a_person_holds_claims_and_rescues_go_on(
    busy: tuple[World, Daemon, Daemon], held: str
) -> None:
    world, _, alive = busy
    # A job whose rows the person does not hold.
    world.job("other", "other_raw", "other_out")
    with world.session() as person:
        person.execute(HELD[held])
        if held not in {"jobs", "datasets"}:
            world.ready("other_raw", "1")
        world.rows("SELECT * FROM dataflow.rescue()")
        alive.connection.execute("SELECT dataflow.settle()")
        alive.claim()
        newcomer = world.daemon("newcomer")
        newcomer.claim()
        world.rows("SELECT * FROM dataflow.shed('global', 0)")
        alive.connection.execute(
            "SELECT FROM dataflow.retake_attempts(%s, %s)", [alive.name, alive.incarnation]
        )
        person.rollback()
    world.later()
    world.rows("SELECT * FROM dataflow.rescue()")
    assert world.value("SELECT count(*) FROM dataflow.attempt WHERE ended IS NULL AND daemon = 'dead'") == 0


def test_an_open_transaction_on_a_dead_daemons_chunk_delays_only_that_chunk(
    busy: tuple[World, Daemon, Daemon],
) -> None:
    world, _, alive = busy
    with world.session() as person:
        person.execute(
            "UPDATE dataflow.datastatus SET status = 'HOLD' WHERE datasetid = 'clean' AND dataid = '1'"
        )
        assert world.rows("SELECT jobid, dataid FROM dataflow.rescue()") == [("make_clean", "2")]
        assert ("make_clean", "2") in alive.runs()
        person.rollback()
    assert world.rows("SELECT jobid, dataid FROM dataflow.rescue()") == [("make_clean", "1")]
    assert ("make_clean", "1") in alive.runs()


def test_shedding_passes_over_what_a_person_holds(busy: tuple[World, Daemon, Daemon]) -> None:
    world, _, alive = busy
    alive.claim()
    [youngest] = [
        (dataset, dataid)
        for dataset, dataid in world.rows(
            "SELECT o.datasetid, a.dataid FROM dataflow.attempt a JOIN dataflow.job_output o USING (jobid)"
            " WHERE a.ended IS NULL AND a.daemon = 'alive' ORDER BY a.attempt DESC, o.datasetid LIMIT 1"
        )
    ]
    with world.session() as person:
        person.execute(
            "SELECT FROM dataflow.datastatus WHERE datasetid = %s AND dataid = %s FOR UPDATE", youngest
        )
        live = world.value("SELECT count(*) FROM dataflow.attempt WHERE ended IS NULL")
        [(shed_job, shed_dataid)] = world.rows(
            "SELECT jobid, dataid FROM dataflow.shed('global', %s)", live - 1
        )
        assert world.status(*youngest) == "RUNNING"
        person.rollback()
    assert world.outcomes(shed_job, shed_dataid)[-1] == "CANCELLED"


def test_a_flow_that_is_being_applied_delays_only_the_jobs_that_it_changes(world: World) -> None:
    world.job("make_clean", "raw", "clean")
    world.job("other", "other_raw", "other_out")
    world.ready("raw", "1")
    world.ready("other_raw", "1")
    alive = world.daemon()
    flow = {
        "name": "shop",
        "datasets": [],
        "jobs": [
            {
                "jobid": "make_clean", "description": "", "kind": "python", "params": {}, "max_running": 3,
                "max_attempts": 1, "max_lost": 5, "retry_delay": "30s", "timeout": None, "priority": 0,
                "strict_order": False, "config_hash": None, "outputs": ["clean"],
                "inputs": {"raw": {"kind": "identity"}},
            }
        ],
    }  # fmt: skip
    with world.session() as person:
        person.execute("SELECT * FROM dataflow.apply_flow(%s)", [Jsonb(flow)])
        assert alive.runs() == {("other", "1")}
        person.commit()
    world.later()
    assert alive.runs() == {("make_clean", "1")}
