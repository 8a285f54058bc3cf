"""Runs a job in a unit test: on DataFrames or files, with no daemon and no database.

```python
def test_negative_amounts_are_set_aside(spark):
    raw = spark.createDataFrame([(1, 5.0), (2, -1.0)], "order_id bigint, amount double")
    ran = run_job(clean_orders, spark, {"raw_orders": raw}, ["orders"], params={"currency": "EUR"})
    assert [row.order_id for row in ran.outputs["orders"].collect()] == [1]
    assert ran.quarantine[0]["item"] == "2"
```

The job goes through the same steps as under the daemon, including checks and quarantine. Its outputs are read into memory,
and no file stays on the disk. If the attempt would fail, AttemptError is raised. A fixture `spark` can use `local_spark()`,
which finds Java as dataflowd does. With `flow=load_flow(path)` the job has the parameters, schemas, checks and limit of bad
records that the flow file declares.
"""

from __future__ import annotations

from dataflowd.runner.rehearsal import Ran, load_flow, local_spark, run_job

__all__ = ["Ran", "load_flow", "local_spark", "run_job"]
