"""The JSON files of a run have the text that the standard library would write, whatever is in them."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from testbed_runtime.runner.manifest import indented, write_json

DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(DATA)
@example({})
@example([])
@example({"a": [], "b": {}})
@example([math.nan])
@example(["\ud800"])
@example({"é": ["\u2028", 1e300]})
def test_any_data_is_indented_as_json_dumps_does(data: Any):
    """The fast formatter changes nothing. What it does not know is written too: a NaN, half of a surrogate pair, empty containers."""
    assert indented(data) == json.dumps(data, indent=1, ensure_ascii=False)


def test_a_file_is_complete_and_ends_with_a_line_break(tmp_path):
    """No part of it is left beside it."""
    write_json(tmp_path / "metrics.json", [{"value": 1.5}])
    assert (tmp_path / "metrics.json").read_text() == '[\n {\n  "value": 1.5\n }\n]\n'
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.json"]
