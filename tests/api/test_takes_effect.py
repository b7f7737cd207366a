"""Documents in which a bound or a fault cannot take effect, found before anything runs."""

from __future__ import annotations

import pytest

from tests.api.test_validate import errors

BAD = {
    "fraction of a whole number": (
        lambda s: s["testbed"]["job"]["vertices"][0]["source"].update(recordsPerSecond=2.5),
        "spec.testbed.job.vertices[0].source.recordsPerSecond: 2.5 is not an integer (write a whole number from 1 to",
    ),
    "bounds the wrong way round": (
        lambda s: s["expect"].append({"metric": "recovery.detect", "min": "3 s", "max": "2 s"}),
        "spec.expect[1]: no value is at least 3 s and at most 2 s: swap `min` and `max`",
    ),
    "milestone of an unknown fault": (
        lambda s: s["expect"].append({"metric": "lag.max", "phase": "outage/long-gv", "max": "2 s"}),
        "spec.expect[1].phase: the fault 'long-gv' does not exist (did you mean long-gc?)",
    ),
}


@pytest.mark.parametrize(("change", "text"), BAD.values(), ids=BAD.keys())
def test_what_cannot_take_effect_is_refused(change, text):
    """The alternative is to find it after all trials."""
    assert any(text in e for e in errors(change)), errors(change)
