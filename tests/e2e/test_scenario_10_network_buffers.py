"""`scenarios/10-network-buffers` on this machine."""

from __future__ import annotations

from tests.e2e.shipped import MARKS, Finished, shortcomings

pytestmark = MARKS


def test_the_scenario_passes_and_writes_all_its_files(finished: Finished):
    """Pass, with exit code 0."""
    assert shortcomings(finished) == []


def test_a_fifth_is_too_little_and_three_tenths_are_used_by_three_quarters(finished: Finished):
    """92 buffers are fewer than the 102 that are needed; of 138, 102 are 73.9 %."""
    for trial in finished.trials:
        if trial.startswith("fraction-02"):
            assert "currently set to 92 of 32768 bytes" in finished.text(trial, "job.cause")
        else:
            assert 0.73 <= finished.value(trial, "buffers.used", "observation") <= 0.78
            assert "count ← parse 4 × 2 + 3" in finished.text(trial, "buffers.gate")
            assert finished.value(trial, "buffers.pool-deviation") < 1
        assert finished.value(trial, "buffers.leaked") == 0
