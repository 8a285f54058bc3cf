"""The pages that hot functions touch do not grow with the queue: measured at a thousand and at a million chunks.

EXPLAIN counts all pages that a call touches, also those of functions inside it. The count does not depend on the machine:
a plan that scans a table shows at once, and only the depth of indexes may differ. The fixture writes the million rows with
triggers off, in the state that a million calls of ready() would leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
import pytest
from psycopg.types.json import Jsonb

from dataflowd.database import db
from tests.fix_postgres import Server, database
from tests.fix_world import Daemon, World

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL, LARGE = 1_000, 1_000_000
BATCH = 16
ATTEMPTS_SHARE = 5
# What a call may touch more: two more levels in each index that it descends.
GROWTH = 1.6
DEEPER = 60


@dataclass
class Crowd:
    """`first` (raw -> a) and `second` (a -> b) have room; `full` waits at its limit; `short` lacks its second input."""

    world: World
    daemon: Daemon
    chunks: int

    def touched(self, statement: LiteralString, *parameters: Any) -> int:
        """Pages that a call touches once its plan is made. The transaction is rolled back.

        Takes the least of three calls, because a call that makes the plan touches more: the first one, and one just after an autovacuum.
        """
        connection = self.daemon.connection
        pages: list[int] = []
        for _ in range(3):
            connection.execute("BEGIN")
            try:
                explain = connection.execute(
                    b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statement.encode(), parameters
                )
                [[plan]] = explain.fetchall()
            finally:
                connection.execute("ROLLBACK")
                # Session locks of a claim outlive its rollback.
                connection.execute("SELECT pg_advisory_unlock_all()")
            top = plan[0]["Plan"]
            pages.append(int(top["Shared Hit Blocks"] + top["Shared Read Blocks"]))
        return min(pages)

    def claim(self) -> int:
        return self.touched(
            "SELECT * FROM dataflow.claim(%s, %s, %s)", self.daemon.name, self.daemon.incarnation, BATCH
        )

    def finish(self, batch: int = BATCH) -> int:
        attempts = self.daemon.claim(batch)
        assert len(attempts) == batch
        results = [{"attempt": a.attempt, "token": str(a.token), "outcome": "DONE"} for a in attempts]
        pages = self.touched("SELECT * FROM dataflow.finish(%s)", Jsonb(results))
        self.daemon.finish(*attempts)
        return pages


def _crowd(world: World, chunks: int) -> Crowd:
    world.job("first", "raw", "a")
    world.job("second", "a", "b")
    world.job("full", "raw", "c", max_running=0)
    world.job("short", ["raw", "never"], "d")
    world.do("UPDATE dataflow.control SET concurrency = 100000")
    daemon = world.daemon()
    # A daemon on a new database plans while the tables are empty. ANALYZE lets the planner know it.
    world.do("VACUUM ANALYZE")
    crowd = Crowd(world, daemon, chunks)
    world.ready("raw", "0")
    crowd.claim()
    crowd.finish(1)
    with world.connection.transaction():
        world.connection.execute("SET LOCAL session_replication_role = replica")
        world.do(
            "INSERT INTO dataflow.datastatus (datasetid, dataid, run, status, version, external, sortkey)"
            " SELECT 'raw', i::text, i::text, 'READY', 1, true, lpad(i::text, 10, '0') FROM generate_series(1, %s) i",
            chunks,
        )
        world.do(
            "INSERT INTO dataflow.work (jobid, dataid, sortkey)"
            " SELECT j, i::text, lpad(i::text, 10, '0') FROM generate_series(1, %s) i, unnest(ARRAY['first', 'full']) j",
            chunks,
        )
        world.do(
            "INSERT INTO dataflow.attempt (jobid, dataid, number, tries, daemon, incarnation, tag, inputs, answers, ended, outcome)"
            " SELECT 'first', 'past-' || i, 1, 1, %s, %s, '', '{}', '{}', now(), 'DONE' FROM generate_series(1, %s) i",
            daemon.name,
            daemon.incarnation,
            chunks // ATTEMPTS_SHARE,
        )
        world.do(
            "INSERT INTO dataflow.counter (datasetid, jobid, locktype, status, chunks) VALUES"
            " ('raw', '', 'OUT', 'READY', %s)",
            chunks,
        )
    return crowd


@pytest.fixture(scope="module")
def crowds(server: Server, template: str) -> Iterator[tuple[Crowd, Crowd]]:
    with database(server, template) as small, database(server, template) as large:
        worlds = [World(dsn, psycopg.connect(dsn, autocommit=True)) for dsn in (small, large)]
        try:
            made = _crowd(worlds[0], SMALL), _crowd(worlds[1], LARGE)
            for crowd in made:
                # Writing a million rows took longer than a lease.
                crowd.world.do(
                    "SELECT dataflow.renew_lease(%s, %s)", crowd.daemon.name, crowd.daemon.incarnation
                )
            yield made
        finally:
            for world in worlds:
                world.close()
                world.connection.close()


def _assert_flat(small: int, large: int) -> None:
    assert large <= small * GROWTH + DEEPER, f"{small} pages at {SMALL}, {large} at {LARGE}"


def test_a_claim_touches_as_little_among_a_million(crowds: tuple[Crowd, Crowd]) -> None:
    _assert_flat(*(crowd.claim() for crowd in crowds))


def test_a_finish_touches_as_little_among_a_million(crowds: tuple[Crowd, Crowd]) -> None:
    _assert_flat(*(crowd.finish() for crowd in crowds))


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT dataflow.ready('raw', 'new')",
        "SELECT dataflow.ready('never', '500')",
        "SELECT dataflow.hold('raw', '500', 'bad feed')",
        "SELECT * FROM dataflow.five_questions('first', '500')",
        "SELECT * FROM dataflow.five_questions('short', '500')",
        "SELECT * FROM dataflow.next_inputs('first')",
        "SELECT * FROM dataflow.data_location('raw', '500')",
        "SELECT * FROM dataflow.five_questions_at('first', '500', now())",
        "SELECT * FROM dataflow.why_at('short', '500', now())",
        "SELECT * FROM dataflow.history('first', '500')",
        "SELECT * FROM dataflow.status()",
        "SELECT count(*) FROM dataflow.stale t WHERE t.datasetid = 'a' AND t.dataid = '5'",
        "SELECT * FROM dataflow.forced",
        "SELECT * FROM dataflow.rescue()",
        "SELECT * FROM dataflow.end_frozen_sessions()",
        "SELECT dataflow.settle()",
        "SELECT dataflow.cancel('first', '500')",
        "UPDATE dataflow.datastatus SET status = 'FAILED' WHERE datasetid = 'raw' AND dataid = '500'",
    ],
)
def test_what_concerns_one_chunk_touches_as_little_among_a_million(
    crowds: tuple[Crowd, Crowd], statement: LiteralString
) -> None:
    _assert_flat(*(crowd.touched(statement) for crowd in crowds))


def test_the_evidence_of_an_attempt_touches_as_little_among_a_million(crowds: tuple[Crowd, Crowd]) -> None:
    pages = []
    for crowd in crowds:
        [attempt] = crowd.daemon.claim(1)
        pages.append(crowd.touched("SELECT dataflow.take_order(%s, %s)", attempt.attempt, attempt.token))
        crowd.daemon.finish(attempt)
    _assert_flat(*pages)


def test_applying_a_flow_touches_as_little_among_a_million_runs_of_another(
    crowds: tuple[Crowd, Crowd],
) -> None:
    apply: LiteralString = (
        "SELECT * FROM dataflow.apply_flow(jsonb_build_object('name', 'small',"
        " 'datasets', (SELECT jsonb_agg(to_jsonb(d) || jsonb_build_object('datasetid', n)) FROM dataflow.dataset d,"
        " unnest(ARRAY['source', 'target']) n WHERE d.datasetid = 'a'),"
        " 'jobs', jsonb_build_array(dataflow._job_document('first')"
        ' || \'{"jobid": "copy", "inputs": {"source": {"kind": "identity"}}, "outputs": ["target"]}\')))'
    )
    _assert_flat(*(crowd.touched(apply) for crowd in crowds))


def test_applying_a_change_that_no_question_reads_judges_none_of_a_million_runs(
    crowds: tuple[Crowd, Crowd],
) -> None:
    for crowd in crowds:
        crowd.world.do("UPDATE dataflow.job SET flow = 'crowd' WHERE jobid = 'full'")
    apply: LiteralString = (
        "SELECT * FROM dataflow.apply_flow(jsonb_build_object('name', 'crowd', 'datasets', '[]'::jsonb,"
        " 'jobs', jsonb_build_array(dataflow._job_document('full') || '{\"description\": \"waits\", \"priority\": 3}')))"
    )
    _assert_flat(*(crowd.touched(apply) for crowd in crowds))


def test_a_claim_does_not_walk_over_what_was_claimed_while_an_old_snapshot_is_held(
    crowds: tuple[Crowd, Crowd],
) -> None:
    """Dead entries stay at the head of the queue's index for as long as an old snapshot may see them."""
    crowd = crowds[1]
    before = crowd.claim()
    with psycopg.connect(crowd.world.dsn) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM dataflow.control")
        for _ in range(30):
            attempts = crowd.daemon.claim(200)
            assert crowd.daemon.finish(*attempts) == "accepted"
        # Tells claim() that a scan from the start of the queue was slow. Real scans become slow only after millions of entries.
        crowd.daemon.connection.execute(
            "SELECT set_config('dataflow.look_seconds', '1', false),"
            " set_config('dataflow.look_again', 'infinity', false)"
        )
        after = crowd.claim()
    crowd.daemon.connection.execute("SELECT set_config('dataflow.look_seconds', '0', false)")
    assert after <= before * GROWTH + DEEPER, f"{before} pages before, {after} after 6,000 dead entries"


def test_a_finish_does_not_depend_on_how_many_others_run(crowds: tuple[Crowd, Crowd]) -> None:
    """Holds also when ANALYZE ran while no attempt was running."""
    crowd = crowds[1]
    crowd.world.do("ANALYZE dataflow.attempt")
    before = crowd.finish()
    others = crowd.daemon.claim(600)
    crowd.daemon.connection.execute("DISCARD PLANS")
    after = crowd.finish()
    crowd.daemon.finish(*others)
    assert after <= before * GROWTH + DEEPER, f"{before} pages alone, {after} beside 600 others"


def test_a_rescue_and_a_look_touch_as_little_while_an_old_snapshot_is_held(
    crowds: tuple[Crowd, Crowd],
) -> None:
    crowd = crowds[0]
    look: LiteralString = db.query("daemon_look").replace("%(jobs)s", "NULL").rstrip(";")
    crowd.world.do("SELECT dataflow.ready('raw', ARRAY(SELECT i::text FROM generate_series(2001, 6000) i))")
    asked: list[LiteralString] = [
        "SELECT * FROM dataflow.rescue()",
        "SELECT * FROM dataflow.end_frozen_sessions()",
        look,
    ]
    before = [crowd.touched(statement) for statement in asked]
    with psycopg.connect(crowd.world.dsn) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT pg_current_xact_id()")
        for _ in range(20):
            attempts = crowd.daemon.claim(200)
            assert crowd.daemon.finish(*attempts) == "accepted"
        crowd.daemon.connection.execute("SELECT * FROM dataflow.rescue()")
        after = [crowd.touched(statement) for statement in asked]
    for few, many in zip(before, after, strict=True):
        assert many <= few * GROWTH + DEEPER, f"{before} pages before, {after} after 4,000 dead entries"
