"""How many keys are repeated: each algorithm counts the same number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflowd.storage import files

BITS = {"int8": 7, "int32": 31, "int64": 63, "datetime64[D]": 20, "datetime64[us]": 50}


@pytest.mark.parametrize("kind", BITS)
@given(data=st.data())
def test_keys_are_counted_alike_in_order_close_together_and_far_apart(kind: str, data: st.DataObject) -> None:
    most = 2 ** data.draw(st.integers(1, BITS[kind])) - 1
    keys = data.draw(st.lists(st.integers(-most, most), max_size=50))
    keys = sorted(keys) if data.draw(st.booleans()) else keys
    values = np.array(keys, dtype=np.int64).astype(kind)
    assert files._repeated(values) == len(keys) - len(set(keys))
