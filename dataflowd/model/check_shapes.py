"""Which checks of data there are, and of what each consists: for flow files, work orders and reports alike.

dataflow._normal_checks in sql/functions/declare.sql has the same rules for those who declare by SQL; tests/sql/test_rules.py
holds both to each other.
"""

from __future__ import annotations

SEVERITIES = ("error", "warn")

_NUMBER = (int, float)
# Of each check: what it has beside its severity. Those of BY_COLUMN have it for each column. A range has a min, a max, or both.
SHAPES: dict[str, dict[str, tuple[type, ...]]] = {
    "min_rows": {"value": _NUMBER},
    "max_rows": {"value": _NUMBER},
    "not_null": {"columns": (list, tuple)},
    "unique": {"columns": (list, tuple)},
    "accepted_values": {"values": (list, tuple)},
    "range": {},
    "regex": {"pattern": (str,)},
    "schema": {"columns": (str,)},
    "row_count": {"input": (str,), "tolerance": _NUMBER},
}
BY_COLUMN = frozenset({"accepted_values", "range", "regex"})
WITH_COLUMN_LIST = frozenset({"not_null", "unique"})
