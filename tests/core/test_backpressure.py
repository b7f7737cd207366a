"""Back-pressure levels and rounds of samples."""

from __future__ import annotations

import pytest

from testbed_runtime.core.exchange.backpressure import SamplePlan, SampleRound, level
from testbed_runtime.core.options import Options


@pytest.mark.parametrize(
    ("share", "expected"),
    [(1.0, "HIGH"), (0.501, "HIGH"), (0.5, "LOW"), (0.101, "LOW"), (0.1, "OK"), (0.0, "OK")],
)
def test_J_19_a_share_of_time_has_a_level(share: float, expected: str) -> None:
    """The bounds belong to the lower level."""
    assert level(share).value == expected


def test_a_round_has_flinks_hundred_samples_and_begins_every_minute() -> None:
    """100 samples every 50 ms last 99 × 50 ms = 4.95 s; the next round begins 60 s after the first one did."""
    plan = SamplePlan.read(Options({}, flink_version="1.12"))
    assert (plan.samples, plan.delay_s, plan.pause_s) == (100, 0.05, pytest.approx(60 - 4.95))
    taken = SampleRound(plan)
    ends = [taken.take({"map-0": n % 4 == 0, **({"late-0": 1} if n >= 90 else {})}, 1) for n in range(100)]
    assert ends == [False] * 99 + [True]
    assert taken.counts == {"map-0": (100, 25), "late-0": (10, 10)}


def test_a_refresh_interval_shorter_than_a_round_leaves_one_delay_between_rounds() -> None:
    """The rounds follow each other without a gap, and never without a delay."""
    keys = {"num-samples": "20", "delay-between-samples": "0 ms", "refresh-interval": "1 ms"}
    plan = SamplePlan.read(Options({f"web.backpressure.{k}": v for k, v in keys.items()}))
    assert (plan.samples, plan.delay_s, plan.pause_s) == (20, 0.001, 0.001)
