"""Writes files of orders where the flow of the quickstart reads them: {root}/raw/orders/<day>.csv.

    python examples/quickstart/sample.py 2026-02-01 28 --missing 2026-02-12 --cents 2026-02-19

Each file has mistakes: some records are broken, a few have a wrong amount, some come twice, and some were ordered on an
earlier day, one of them so long ago that a person should look. `--missing` leaves a day's file out. `--cents` writes a file
with amounts in cents, which the checks of `orders` find. The same day always gives the same file.
"""

from __future__ import annotations

import argparse
import datetime as dt
import random
import sys
from pathlib import Path

from dataflowd.host.settings import load

ORDERS_A_DAY = 200
CUSTOMERS = ("Ada", "Barbara", "Donald", "Edsger", "Grace", "Margaret", "Niklaus", "Tony")
LATE_SHARE, AGAIN_SHARE = 0.03, 0.02
LATE_DAYS, TOO_LATE_DAYS = 3, 9
COLUMNS = "order_id,customer,amount,ordered_at"


def day_of_orders(day: dt.date, *, in_cents: bool = False) -> str:
    dice = random.Random(day.isoformat())  # noqa: S311 - a seed, so that a day is always the same; no secret
    first, lines = day.toordinal() * 1000, []
    for number in range(ORDERS_A_DAY):
        days_late = dice.randint(1, LATE_DAYS) if dice.random() < LATE_SHARE else 0
        line = _order(dice, first + number, day - dt.timedelta(days=days_late), in_cents=in_cents)
        lines += [line, line] if dice.random() < AGAIN_SHARE else [line]
    lines += _broken(dice, first + ORDERS_A_DAY, day)
    return "\n".join([COLUMNS, *lines]) + "\n"


def _order(dice: random.Random, number: int, day: dt.date, *, in_cents: bool) -> str:
    cents = round(dice.lognormvariate(8, 0.7))
    amount = f"{cents}.00" if in_cents else f"{cents / 100:.2f}"
    return f"{number},{dice.choice(CUSTOMERS)},{amount},{_moment(dice, day)}"


def _broken(dice: random.Random, number: int, day: dt.date) -> list[str]:
    long_ago = day - dt.timedelta(days=TOO_LATE_DAYS)
    return [
        f"{number},Ada,-5.00,{_moment(dice, day)}",
        f"{number + 1},Edsger,ten,{_moment(dice, day)}",
        f"no-number,Grace,10.00,{_moment(dice, day)}",
        f"{number + 2},Tony,12.50,{_moment(dice, long_ago)}",
        f"{number + 3},Niklaus",
    ][: dice.randint(2, 5)]


def _moment(dice: random.Random, day: dt.date) -> str:
    return f"{day}T{dice.randint(7, 22):02}:{dice.randrange(60):02}:{dice.randrange(60):02}"


def main() -> None:
    arguments = _parser().parse_args()
    directory = Path(load().settings.effective_root) / "raw" / "orders"
    directory.mkdir(parents=True, exist_ok=True)
    days = [arguments.start + dt.timedelta(days=offset) for offset in range(arguments.days)]
    written = [day for day in days if day not in arguments.missing]
    records = 0
    for day in written:
        text = day_of_orders(day, in_cents=day in arguments.cents)
        (directory / f"{day}.csv").write_text(text, encoding="utf-8")
        records += text.count("\n") - 1
    days_written = "1 day" if len(written) == 1 else f"{len(written)} days"
    sys.stdout.write(f"{days_written} with {records:,} records in {directory}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Write days of orders for the quickstart.")
    parser.add_argument("start", type=dt.date.fromisoformat, help="the first day, such as 2026-02-01")
    parser.add_argument("days", type=int, help="how many days")
    for name, what in (
        ("--missing", "leave this day's file out"),
        ("--cents", "write this day in cents"),
    ):
        parser.add_argument(name, type=dt.date.fromisoformat, action="append", default=[], help=what)
    return parser


if __name__ == "__main__":
    main()
