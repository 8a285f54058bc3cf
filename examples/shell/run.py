"""Bring your scripts: a shell script and a PySpark script run unchanged, with a sealed password for a Postgres.

The shop's database demands a password. First the wrong password is sealed, as if it had been changed without notice.
`dataflowctl why` explains the failure, then the right password is sealed and the run is resubmitted.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import psycopg
import pyarrow.parquet
from psycopg import sql

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from stage import Stage, arguments, play, whole

HERE = Path(__file__).resolve().parent
DAYS = 2
MOST_DAYS = 28
SHOP = """
    CREATE TABLE orders AS
    SELECT i AS order_id, (ARRAY['Ada', 'Grace', 'Edsger'])[1 + i % 3] AS customer, (i * 37 % 5000 / 100.0)::numeric(12, 2) AS amount,
        (DATE '2026-01-01' + (i % %s)::int)::text AS day
    FROM generate_series(1, 300) AS i
"""
TOTALS = (
    "SELECT customer, count(*), sum(amount) FROM orders WHERE day = %s GROUP BY customer ORDER BY customer"
)


def story(stage: Stage, days: int) -> None:
    password = secrets.token_urlsafe(12)
    shop = stage.database("shop")
    with psycopg.connect(shop, autocommit=True) as owner:
        create_shop(owner, days, password)
        stage.flow(HERE, {"shop.example": stage.socket})
        stage.configure(flows=["flow/flow.toml"], allowed_hosts=[stage.socket], runners=1, master="local[2]")

        stage.step("The shop's database demands a password")
        login = ["psql", "-w", "-h", stage.socket, "-U", "report", "-d", "shop"]
        stage.run([*login, "-c", "SELECT count(*) FROM orders"], status=2)

        stage.step("Two scripts that have been in use for years become jobs; none of their lines changes")
        stage.ctl("init", lines=2)
        stage.ctl("apply", "flow/flow.toml")

        stage.step("The password is sealed; only the process that becomes the script can open it")
        stage.ctl("key", "generate")
        stage.tell("(the password comes from standard input, and is the wrong one)")
        stage.ctl("seal", "shop", stdin="last year's password\n")

        stage.step("A daemon runs what is ready. The first day arrives")
        daemon = stage.daemon("shell")
        stage.ctl("ready", "shop", "2026-01-01")
        stage.ctl("env", "export_orders", "2026-01-01", only="shop_")
        stage.until(
            lambda: stage.rows("SELECT 1 FROM dataflow.attempt WHERE outcome = 'FAILED'"), "a failure"
        )
        stage.ctl("why", "export_orders", "2026-01-01", lines=20)

        stage.step("Seal the right password, resubmit the run, and add the other days; no more is necessary")
        stage.tell("(the password comes from standard input)")
        stage.ctl("seal", "shop", stdin=f"{password}\n")
        stage.ctl("resubmit", "export_orders", "--yes")
        if days > 1:
            stage.ctl("ready", "shop", "--range", f"2026-01-02..2026-01-{days:02}")
        stage.until(lambda: len(published(stage)) == days, f"{days} chunks of totals")
        stage.ctl("logs", "export_orders", "2026-01-01")
        stage.ctl("chunks", "totals")
        daemon.stop()

        stage.step("The totals of the scripts agree with the database, and no file holds the password")
        for day, location in published(stage):
            table = pyarrow.parquet.read_table(location).to_pylist()
            made = sorted((row["customer"], row["orders"], row["total"]) for row in table)
            stage.require(made == owner.execute(TOTALS, [day]).fetchall(), f"the totals of {day} are right")
    files = [path for path in stage.directory.rglob("*") if path.is_file()]
    stage.require(
        not [path for path in files if password.encode() in path.read_bytes()], "no file has the password"
    )
    stage.tell(f"The totals are right. The password is in none of {len(files):,} files: no log, no table.")


def create_shop(connection: psycopg.Connection, days: int, password: str) -> None:
    connection.execute(sql.SQL(SHOP.replace("%s", "{}")).format(days))
    connection.execute(sql.SQL("CREATE ROLE report LOGIN PASSWORD {}").format(password))
    connection.execute("GRANT SELECT ON orders TO report")


def published(stage: Stage) -> list[tuple[str, str]]:
    return stage.rows(
        "SELECT m.dataid, m.location FROM dataflow.manifest AS m WHERE m.datasetid = 'totals' ORDER BY 1"
    )


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--days", type=whole(1, MOST_DAYS), default=DAYS, help=f"of orders; default {DAYS}")
    given = parser.parse_args()
    return play(lambda stage: story(stage, given.days), given.directory)


if __name__ == "__main__":
    sys.exit(main())
