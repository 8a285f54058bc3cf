"""Runs a job in a unit test: on DataFrames or files, with no daemon and no database.

```python
def test_negative_amounts_are_set_aside(spark):
    raw = spark.createDataFrame([(1, 5.0), (2, -1.0)], "order_id bigint, amount double")
    ran = run_job(clean_orders, spark, {"raw_orders": raw}, ["orders"], params={"currency": "EUR"})
    assert [row.order_id for row in ran.outputs["orders"].collect()] == [1]
    assert ran.quarantine[0]["item"] == "2"
```

It goes through the same steps as under the daemon, checks and quarantine included; what the job wrote is read into
memory, and nothing stays on the disk. A failing job raises as its attempt would have failed (AttemptError). A fixture
`spark` may be made of `local_spark()`, which brings the Java that dataflowd has found. With `flow=load_flow(path)` the job
has the parameters, schemas, checks and limit of bad records that the flow file declares, as a run of it would.
"""

from __future__ import annotations

from dataflowd.runner.rehearsal import Ran, load_flow, local_spark, run_job

__all__ = ["Ran", "load_flow", "local_spark", "run_job"]
