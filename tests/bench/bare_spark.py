"""The comparison for `bench spark`: the same pipeline in one warm session, without dataflowd.

`python -m tests.bench.bare_spark ROOT THREADS` reads one JSON request a line, and answers each with the seconds that it
took. {"chunks": [...]} runs both steps on the chunks, THREADS of them side by side; {"make": rows} writes the large input
once; {"large": name} copies it as the large job does.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from tests.bench.spark_flow import etl

if TYPE_CHECKING:
    from collections.abc import Callable

SPARK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}
LARGE = (
    "id AS order_id",
    "concat('customer', id % 5000) AS customer",
    "element_at(array('DE', 'FR', 'IT', 'NL', 'PL'), cast(id % 5 + 1 AS int)) AS country",
    "cast(id % 90000 + 1 AS decimal(12,2)) AS amount",
    "timestamp_seconds(1767225600 + id) AS ordered_at",
)


def main() -> None:
    root, threads = sys.argv[1], int(sys.argv[2])
    builder: Any = SparkSession.builder.master(f"local[{threads}]")
    for name, value in (SPARK | {"spark.local.dir": f"{root}/bare_local"}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    with ThreadPoolExecutor(threads) as pool:
        print(json.dumps({"seconds": 0}), flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            began = time.perf_counter()
            _answer(spark, root, pool.map, request)
            print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)
    spark.stop()


def _answer(spark: SparkSession, root: str, each: Callable[..., Any], request: dict[str, Any]) -> None:
    def chunk(dataid: str) -> None:
        etl.write_clean(spark, f"{root}/raw/{dataid}.csv", f"{root}/bare_orders/{dataid}")
        etl.write_total(spark, f"{root}/bare_orders/{dataid}", f"{root}/bare_totals/{dataid}")

    match request:
        case {"chunks": dataids}:
            list(each(chunk, dataids))
        case {"make": rows}:
            frame = spark.range(0, rows, 1, 4).selectExpr(*LARGE)
            frame.write.parquet(f"{root}/large_raw/input")
        case {"large": name}:
            etl.write_large(spark, f"{root}/large_raw/input", f"{root}/bare_large/{name}")
            shutil.rmtree(f"{root}/bare_large/{name}")


if __name__ == "__main__":
    main()
