"""Processor time per record: samples of the TaskManagers against what the sinks received."""

from __future__ import annotations

import pytest

from testbed_runtime.checking.common import Window
from testbed_runtime.checking.cpu import Spent

NS = 1_000_000_000


@pytest.mark.parametrize(
    ("start_s", "end_s", "seconds", "buffers"),
    [(1, 2, 0.5, 100), (1.5, 2, 0.25, 50), (0, 1, 0.5, 100), (2, 4, 0.0, 0)],
)
def test_the_time_of_a_window_lies_between_samples(start_s, end_s, seconds, buffers):
    """Samples are cumulative: 0.5 s and 100 buffers in each second, and nothing after the last one."""
    spent = Spent([0, NS, 2 * NS], [0.0, 0.5, 1.0], [0, 100, 200])
    found = spent.within(Window(int(start_s * NS), int(end_s * NS)))
    assert found == pytest.approx((seconds, buffers))
