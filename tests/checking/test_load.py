"""The load curves of the report, computed by hand: columns, heat map, busy shares, waits for credit, goodput and lag."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec import to_builtins

from testbed_runtime.checking.load import (
    COLUMNS_MAX,
    VERTICES_MAX,
    columns,
    credit_waits,
    heat,
    progress_curves,
    vertex_load,
)
from testbed_runtime.core.judgement.series import Heat
from testbed_runtime.history.schema import LATENCY_BOUNDS_NS
from tests.checking.conftest import NS, History, at, entry

EDGES = np.asarray([at(10 + n / 2) for n in range(5)], dtype=np.int64)
"""Four columns of half a second, from 10 s to 12 s."""


@pytest.mark.parametrize(
    ("bins", "width"), [(1, 1), (COLUMNS_MAX, 1), (COLUMNS_MAX + 1, 2), (2 * COLUMNS_MAX, 2)]
)
def test_a_drawing_has_a_limited_number_of_columns(bins: int, width: int):
    """Each has as few bins as fit; the last one ends with the last bin."""
    found = columns(np.arange(bins + 1, dtype=np.int64)).tolist()
    assert found == [*range(0, bins, width), bins]
    assert len(found) - 1 <= COLUMNS_MAX


def latency(*rows: tuple[float, dict[int, int]]) -> pa.Table:
    """Windows of 0.2 s: start, records by bucket."""
    history = History()
    for t, buckets in rows:
        counts = [buckets.get(i, 0) for i in range(len(LATENCY_BOUNDS_NS) + 1)]
        history.add("tm-0-1", "latency", t, task="sink-0", window_start_ns=at(t), window_ns=NS // 5,
                    count=sum(counts), buckets=counts, max_ns=1)  # fmt: skip
    return history.trial().table("latency")


def test_a_heat_map_has_three_buckets_a_row():
    """A window counts where its middle is. Rows without records below the lowest and above the highest are left out."""
    found = to_builtins(
        heat(
            latency((9.8, {0: 9}), (10.4, {3: 1, 5: 2}), (10.6, {11: 4}), (11.9, {0: 9}), (11.8, {3: 1})),
            EDGES,
        )
    )
    bounds = [LATENCY_BOUNDS_NS[bucket] / NS for bucket in (2, 5, 8, 11)]
    assert found == {
        "starts_s": [0.0, 0.5, 1.0, 1.5], "low_s": bounds[0], "bounds_s": bounds[1:],
        "columns": [[0, 0, 0], [3, 0, 4], [0, 0, 0], [1, 0, 0]],
    }  # fmt: skip


def test_the_ends_of_a_heat_map_are_those_of_the_buckets():
    """It begins at 0 with the first bucket. The last bucket has no bound, so its row ends where the others do."""
    last = len(LATENCY_BOUNDS_NS)
    found = to_builtins(heat(latency((10.0, {0: 1, last: 1})), EDGES))
    assert (found["low_s"], found["bounds_s"][0]) == (0.0, LATENCY_BOUNDS_NS[2] / NS)
    assert found["bounds_s"][-1] == LATENCY_BOUNDS_NS[-1] / NS
    assert (found["columns"][0][0], found["columns"][0][-1]) == (1, 1)
    assert heat(latency((9.0, {0: 1})), EDGES) == Heat()


def tasks(*rows: tuple[float, str, int, float, float]) -> pa.Table:
    """Samples: second, task, attempt, seconds busy and back-pressured so far."""
    history = History()
    for t, task, attempt, busy, pressed in rows:
        history.add("tm-0-1", "tasks", t, task=task, vertex=task.rpartition("-")[0], role="operator", attempt=attempt,
                    busy_ns=round(busy * NS), backpressured_ns=round(pressed * NS))  # fmt: skip
    return history.trial().table("tasks")


LOADS = [
    ("half busy, a fifth back-pressured", [(10, "a-0", 0, 0, 0), (12, "a-0", 0, 1, 0.4)], [0.5] * 4, [0.2] * 4),
    (
        "the worst subtask of each kind",
        [(10, "a-0", 0, 0, 0), (12, "a-0", 0, 1, 0.4), (10, "a-1", 0, 0, 0), (12, "a-1", 0, 0.2, 1.2)], [0.5] * 4, [0.6] * 4,
    ),
    ("only while it ran", [(10.5, "a-0", 0, 0, 0), (11, "a-0", 0, 0.25, 0)], [0.0, 0.5, 0.0, None], [0.0, 0.0, 0.0, None]),
    ("an attempt counts from 0 again", [(10, "a-0", 0, 5, 0), (10.5, "a-0", 0, 5.25, 0), (11, "a-0", 1, 0, 0), (11.5, "a-0", 1, 0.25, 0)], [0.5, 0.0, 0.5, 0.0], [0.0] * 4),
    ("never more than all of the time", [(10, "a-0", 0, 0, 0), (12, "a-0", 0, 4, -1)], [1.0] * 4, [0.0] * 4),
]  # fmt: skip


@pytest.mark.parametrize(("case", "rows", "busy", "pressed"), LOADS)
def test_the_load_is_the_growth_of_the_counters_as_a_share_of_the_time(
    case: str, rows: list[Any], busy: list[float | None], pressed: list[float | None]
):
    """None where no subtask ran."""
    found = to_builtins(vertex_load(tasks(*rows), EDGES))
    assert found["starts_s"] == [0.0, 0.5, 1.0, 1.5]
    assert found["vertices"] == [{"vertex": "a", "busy": busy, "backpressured": pressed}], case


def test_an_attempt_with_one_sample_has_no_load():
    """Nothing is known of its time. Vertices keep the order of their first samples, and have a limit."""
    assert to_builtins(vertex_load(tasks((10, "a-0", 0, 1, 1)), EDGES)) == {"starts_s": [], "vertices": []}
    assert to_builtins(vertex_load(tasks(), EDGES)) == {"starts_s": [], "vertices": []}
    many = [(t, f"v{n:02}-0", 0, 0.0, 0.0) for n in reversed(range(VERTICES_MAX + 1)) for t in (10, 12)]
    found = [v["vertex"] for v in to_builtins(vertex_load(tasks(*many), EDGES))["vertices"]]
    assert found == [f"v{n:02}" for n in range(VERTICES_MAX, 0, -1)]


def test_the_waits_for_credit_of_a_channel_add_up():
    """Other waits do not count. Channels that waited equally long are ordered by name."""
    history = History()
    for who, what, start, end in (
        ("b", "x", 0, 0.25),
        ("b", "x", 1, 1.75),
        ("a", "x", 1, 2),
        ("c", "x", 0, 3),
    ):
        history.wait("credit", who, what, (start, end))
    history.wait("restart-delay", "JobMaster", "", (0, 9))
    assert to_builtins(credit_waits(history.trial())) == {
        "channels": [
            {"who": "c", "what": "x", "seconds": 3.0, "count": 1, "longest_s": 3.0},
            {"who": "a", "what": "x", "seconds": 1.0, "count": 1, "longest_s": 1.0},
            {"who": "b", "what": "x", "seconds": 1.0, "count": 2, "longest_s": 0.75},
        ],
        "more": 0,
    }
    assert to_builtins(credit_waits(History().trial())) == {"channels": [], "more": 0}


def curves(*rows: tuple[float, str, int, float]) -> dict[str, list[float | None]]:
    """The curves of these samples: second, task, records received or emitted so far, lag in seconds."""
    history = History()
    for t, task, count, lag in rows:
        vertex = task.rpartition("-")[0]
        history.add("tm-0-1", "tasks", t, task=task, vertex=vertex, role=vertex, records_in=count, records_out=count,
                    lag_ns=round(lag * NS))  # fmt: skip
    return progress_curves(history.trial(), entry(), EDGES)


def test_goodput_adds_up_the_sinks_while_one_is_sampled():
    """Two sinks of 100 and 20 records per second from 10.5 s to 11 s. A source counts for the lag only."""
    found = curves((10.5, "sink-0", 0, 0), (11, "sink-0", 50, 0), (10.5, "sink-1", 0, 0), (11, "sink-1", 10, 0),
                   (10, "source-0", 0, 0), (12, "source-0", 500, 0))  # fmt: skip
    assert found["goodput"] == [0.0, 120.0, 0.0, None]
    assert curves((10, "source-0", 0, 0), (12, "source-0", 9, 0))["goodput"] == [None] * 4
    assert curves() == {"goodput": [None] * 4, "lag_s": [None] * 4}


def test_the_lag_of_a_bin_is_that_of_its_worst_task():
    """The larger one of its middle and its end. A task that falls silent lags more from GAP_NS on."""
    steady = [(10 + n / 8, "source-0", n, 0.1) for n in range(17)]
    late = [(10 + n / 8, "source-1", n, 1.0 if n <= 10 else 0.2) for n in range(17)]
    assert curves(*steady)["lag_s"] == [0.1] * 4
    assert curves(*steady, *late)["lag_s"] == [1.0, 1.0, 1.0, 0.2]
    earlier = [(10 + n / 8, "source-1", n, 1.0 if n <= 9 else 0.2) for n in range(17)]
    assert curves(*earlier)["lag_s"] == [1.0, 1.0, 0.2, 0.2]
    silent = [row for row in steady if row[0] <= 10.5]
    assert curves(*silent)["lag_s"] == [0.1, 0.6, 1.1, 1.6]


def test_curves_are_as_exact_as_a_drawing_can_show():
    """Milliseconds of a column, a thousandth of a share, a tenth of a record per second, a tenth of a millisecond of lag."""
    edges = np.asarray([at(10), at(10.1234567), at(11)], dtype=np.int64)
    rows = tasks((10, "a-0", 0, 0, 0), (13, "a-0", 0, 1, 1))
    assert to_builtins(vertex_load(rows, edges)) == {
        "starts_s": [0.0, 0.123], "vertices": [{"vertex": "a", "busy": [0.333] * 2, "backpressured": [0.333] * 2}],
    }  # fmt: skip
    found = curves((10.4, "sink-0", 0, 0), (10.55, "sink-0", 10, 0.123456), (10.7, "sink-0", 20, 0.123456))
    assert (found["goodput"][0], found["lag_s"][1]) == (13.3, 0.1235)
