"""The comparison for the batches of `bench partition`: one Spark job over the whole table, written by hand.

`python -m tests.bench.bare_table ROOT PARTS DATASET` answers each line on its standard input with seconds: the time to read
all rows, in PARTS parts side by side, and to write them as Parquet. The session is warm, and it reads over the same kind of
connection as a batch. The difference: nothing is split, recorded, checked, published or retried.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import Any

from pyspark.sql import SparkSession

from dataflowd.model.work_order import Chunk, Dataset
from dataflowd.storage.tables import reading
from tests.bench.bare_spark import SPARK
from tests.bench.batch_flow import etl


def main() -> None:
    root, parts, document = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    dataset = Dataset.parse(document)
    builder: Any = SparkSession.builder.master(f"local[{parts}]")
    for name, value in (SPARK | {"spark.local.dir": f"{root}/bare_local"}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    print(json.dumps({"seconds": 0}), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        rows = reading.read(spark, dataset, [Chunk(dataid="all")], [str(dataset.connection.hostname)])
        etl.named(rows).write.parquet(f"{root}/bare_loaded")
        print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)
        shutil.rmtree(f"{root}/bare_loaded")
    spark.stop()


if __name__ == "__main__":
    main()
