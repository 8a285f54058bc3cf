"""The patterns of names and dataids, for code without a database. The SQL domains dataflow.name and dataflow.chunkid have the same."""

from __future__ import annotations

import re

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")
DATAID = re.compile(r"[A-Za-z0-9_:+=][A-Za-z0-9._:+=-]{0,127}")
NAME_REMEDY = "a name is a letter, then up to 62 letters, digits, and _ . -"
DATAID_REMEDY = "a dataid is 1 to 128 letters, digits and . _ : + = -, not starting with a dot or a dash"
