"""Writes a week of orders for the quickstart where its flow looks for them: {root}/raw/orders/<day>.csv.

    python examples/quickstart/sample.py 2026-01-01 7

Each day has orders, two that are malformed and one whose amount is negative; these end up in quarantine.
"""

from __future__ import annotations

import datetime as dt
import random
import sys
from pathlib import Path

from dataflowd.settings import load

ORDERS_A_DAY = 200
CUSTOMERS = ("Ada", "Grace", "Edsger", "Barbara", "Donald")


def day_of_orders(day: dt.date) -> str:
    dice = random.Random(day.isoformat())  # noqa: S311 - the same week every time, and no secret
    first = day.toordinal() * 1000
    lines = ["order_id,customer,amount,ordered_at"]
    for number in range(ORDERS_A_DAY):
        moment = f"{day}T{dice.randrange(24):02}:{dice.randrange(60):02}:00"
        lines.append(
            f"{first + number},{dice.choice(CUSTOMERS)},{dice.randrange(100, 99999) / 100:.2f},{moment}"
        )
    lines.append(f"{first + ORDERS_A_DAY},Ada,-5.00,{day}T12:00:00")
    lines.append(f"not-a-number,Grace,10.00,{day}T12:00:00")
    lines.append(f"{first + ORDERS_A_DAY + 1},Edsger,ten,{day}T12:00:00")
    return "\n".join(lines) + "\n"


def main(start: str, days: str) -> None:
    directory = Path(load().settings.effective_root) / "raw" / "orders"
    directory.mkdir(parents=True, exist_ok=True)
    for offset in range(int(days)):
        day = dt.date.fromisoformat(start) + dt.timedelta(days=offset)
        (directory / f"{day}.csv").write_text(day_of_orders(day), encoding="utf-8")
    sys.stdout.write(f"{days} days of orders in {directory}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
