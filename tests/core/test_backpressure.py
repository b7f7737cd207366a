"""Back-pressure levels and a task's times."""

from __future__ import annotations

import pytest

from testbed_runtime.core.exchange.backpressure import (
    BackPressureLevel,
    TaskTimes,
    Wait,
    busy_ms_per_second,
    level,
    ratio,
    vertex_ratio,
)


@pytest.mark.parametrize(
    ("ms", "expected"),
    [
        (1000, (1.0, BackPressureLevel.HIGH)),
        (500, (0.5, BackPressureLevel.LOW)),
        (100, (0.1, BackPressureLevel.OK)),
    ],
)
def test_J_19_a_subtask_has_the_level_of_its_share(
    ms: int, expected: tuple[float, BackPressureLevel]
) -> None:
    """The bounds belong to the lower level."""
    assert (ratio(ms), level(ratio(ms))) == expected


def test_J_19_a_vertex_is_as_bad_as_its_worst_subtask() -> None:
    """The maximum counts, and no subtask is no pressure."""
    assert level(vertex_ratio([1000, 500, 100])) is BackPressureLevel.HIGH
    assert vertex_ratio([]) == 0.0


def test_busy_is_what_was_not_waited() -> None:
    """Waits that add up to more than a second leave nothing."""
    assert busy_ms_per_second(200, 300) == 500
    assert busy_ms_per_second(800, 300) == 0


def test_a_tasks_time_is_split_without_remainder() -> None:
    """Soft and hard waits are back-pressure; a wait that still runs counts."""
    times = TaskTimes(10.0)
    times.start(Wait.SOFT, 11.0)
    times.start(Wait.HARD, 12.0)
    times.end(12.5)
    times.end(13.0)
    times.start(Wait.IDLE, 14.0)
    assert times.back_pressured_s(16.0) == 1.5
    assert times.waited_s(Wait.IDLE, 16.0) == 2.0
    assert times.busy_s(16.0) == 2.5
